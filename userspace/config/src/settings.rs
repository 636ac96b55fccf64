//! All settings, and their defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use strata_kinds::{Frequencies, Kind, Kinds};

use crate::exporters::{self, ExporterConfig};
use crate::families;
use crate::frequencies::{check_frequency, sampled_by_clocks};
use crate::layers::{Inputs, Layers, Shown};
use crate::origin::Sourced;
use crate::problem::Problem;
use crate::rules::{self, BridgePolicy, Rule};
use crate::value::{Bytes, words};

words! {
    LogLevel { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" }
}

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Samples a second of each kind that a clock samples.
    pub frequencies: Vec<(Kind, Sourced<u32>)>,
    pub types: Sourced<Kinds>,
    pub memory_limit: Sourced<Bytes>,
    pub bridge: Sourced<BridgePolicy>,
    /// Age of processes that are attached to.
    pub bridge_age: Sourced<Duration>,
    /// Whether exceptions have their messages.
    pub exception_messages: Sourced<bool>,
    pub exporters: Vec<ExporterConfig>,
    pub services: Services,
    pub store: Store,
    pub containers: Containers,
    /// Of `/metrics` and `/healthz`.
    pub metrics: Sourced<Option<SocketAddr>>,
    /// The unix socket of `/status`, which `strata status` asks.
    pub status_socket: Sourced<Option<PathBuf>>,
    /// `stderr`, `journald`, `syslog`, `none` or a file.
    pub log_target: Sourced<String>,
    pub log_level: Sourced<LogLevel>,
    pub profile_self: Sourced<bool>,
    /// The host's name; `None` is its own.
    pub host: Sourced<Option<String>>,
    pub rules: Vec<Rule>,
}

impl Configuration {
    /// How often each kind is sampled unless a rule changes it.
    #[must_use]
    pub fn frequencies(&self) -> Frequencies {
        let all = self.frequencies.iter();
        all.fold(Frequencies::of_daemon(), |sum, (kind, frequency)| {
            sum.with(*kind, frequency.value)
        })
    }
}

/// What is a service of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Services {
    /// The service of processes that are known by their executable's name and have few samples;
    /// empty for none.
    pub pool: Sourced<String>,
    /// Below so many samples an hour.
    pub pool_below: Sourced<u32>,
    /// Services an hour; those beyond are in the pool.
    pub most: Sourced<u32>,
}

/// Profiles that stay on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    pub enabled: Sourced<bool>,
    pub path: Sourced<PathBuf>,
    pub age: Sourced<Duration>,
    pub size: Sourced<Bytes>,
    /// Whether the time of every sample is kept.
    pub timestamps: Sourced<bool>,
}

/// The sources of names of containers and pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Containers {
    /// Sockets; missing ones are skipped.
    pub docker: Sourced<Vec<PathBuf>>,
    pub cri: Sourced<Vec<PathBuf>>,
    /// URL of the node's kubelet.
    pub kubelet: Sourced<Option<String>>,
    pub kubelet_token_file: Sourced<Option<PathBuf>>,
    pub kubelet_ca_file: Sourced<Option<PathBuf>>,
    /// Whether the kubelet's certificate has to be signed by one of those.
    pub kubelet_verify: Sourced<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub configuration: Configuration,
    /// Every value, in the order of the example.
    pub shown: Vec<Shown>,
    /// What was ignored, and why.
    pub notices: Vec<String>,
}

impl Loaded {
    /// Lines of `strata config show`.
    pub fn show(&self) -> String {
        self.shown
            .iter()
            .map(|shown| format!("{} = {}  # {}\n", shown.key, shown.value, shown.origin))
            .collect()
    }
}

/// Reads a configuration. All problems are reported, in the order they were met.
pub fn load(inputs: &Inputs<'_>) -> Result<Loaded, Vec<Problem>> {
    let (of_agents, mut notices) = families::entries(inputs.environment);
    let mut layers = Layers::new(inputs, of_agents);
    if !layers.problems.is_empty() {
        return Err(layers.problems);
    }
    let configuration = read(&mut layers);
    notices.extend(layers.finish());
    if layers.problems.is_empty() {
        Ok(Loaded { configuration, shown: layers.shown, notices })
    } else {
        Err(layers.problems)
    }
}

/// What `strata config check` prints: the problems of a configuration, or none.
pub fn check(inputs: &Inputs<'_>) -> Vec<Problem> {
    load(inputs).err().unwrap_or_default()
}

/// The status socket alone, for finding a daemon that runs although the configuration has problems
/// by now: a file that cannot be parsed sets nothing. `None`: the daemon serves no status.
pub fn status_socket(inputs: &Inputs<'_>) -> Option<PathBuf> {
    read_status_socket(&mut Layers::new(inputs, Vec::new())).value
}

fn read_status_socket(layers: &mut Layers<'_>) -> Sourced<Option<PathBuf>> {
    layers.get_switchable(&["metrics", "socket"], Some(PathBuf::from("/run/strata/status.sock")))
}

/// With less than this there is no room for tables.
const LEAST_MEMORY: Bytes = Bytes(64_000_000);
/// Profiles may be this old by the time they are stored, and the store refuses those beyond its age.
const LEAST_AGE: Duration = Duration::from_secs(60);

fn read(layers: &mut Layers<'_>) -> Configuration {
    let frequencies = sampled_by_clocks().map(|(kind, rate)| {
        let path = ["sampling", rate.setting];
        let frequency = layers.get(&path, rate.daemon);
        check_frequency(layers, &path, &frequency);
        (kind, frequency)
    });
    let frequencies = frequencies.collect();
    let types = layers.get(&["sampling", "types"], Kinds::defaults());
    let memory_limit = layers.get(&["memory_limit"], Bytes(256_000_000));
    if memory_limit.value < LEAST_MEMORY {
        layers.refuse(&["memory_limit"], &memory_limit, "at least 64MB", None);
    }
    let log_target = layers.get(&["log", "target"], "stderr".to_owned());
    let target = log_target.value.as_str();
    if !matches!(target, "stderr" | "journald" | "syslog" | "none") && !target.starts_with('/') {
        layers.refuse(
            &["log", "target"],
            &log_target,
            "expected stderr, journald, syslog, none or an absolute path",
            None,
        );
    }
    let host = layers.get(&["host"], None::<String>);
    if host.value.as_ref().is_some_and(|name| name.chars().any(char::is_control)) {
        layers.refuse(&["host"], &host, "expected a name, on one line", None);
    }
    Configuration {
        frequencies,
        types,
        memory_limit,
        profile_self: layers.get(&["profile_self"], false),
        host,
        bridge: layers.get(&["dotnet", "bridge"], BridgePolicy::Attach),
        bridge_age: layers.get(&["dotnet", "age"], Duration::from_secs(10)),
        exception_messages: layers.get(&["dotnet", "exception_messages"], true),
        services: services(layers),
        store: Store {
            enabled: layers.get(&["store", "enabled"], true),
            path: layers.get(&["store", "path"], PathBuf::from("/var/lib/strata/store")),
            age: store_age(layers),
            size: layers.get(&["store", "size"], Bytes(1_000_000_000)),
            timestamps: layers.get(&["store", "timestamps"], false),
        },
        containers: containers(layers),
        metrics: layers.get_switchable(
            &["metrics", "address"],
            Some(SocketAddr::from(([127, 0, 0, 1], 9464))),
        ),
        status_socket: read_status_socket(layers),
        log_target,
        log_level: layers.get(&["log", "level"], LogLevel::Info),
        exporters: exporters::read(layers),
        rules: rules::read(layers),
    }
}

fn services(layers: &mut Layers<'_>) -> Services {
    let pool = layers.get_switchable(&["services", "pool"], Some("short-lived".to_owned()));
    let pool_below = layers.get(&["services", "pool_below"], 5);
    let most = layers.get(&["services", "most"], 500);
    if most.value == 0 {
        layers.refuse(&["services", "most"], &most, "at least 1", None);
    }
    let pool = Sourced { value: pool.value.unwrap_or_default(), origin: pool.origin };
    Services { pool, pool_below, most }
}

fn store_age(layers: &mut Layers<'_>) -> Sourced<Duration> {
    let path = ["store", "age"];
    let age = layers.get(&path, Duration::from_secs(7 * 86_400));
    if age.value < LEAST_AGE {
        let hint = Some("for no store: store.enabled = false");
        layers.refuse(&path, &age, "at least 1m: profiles would be too old to be stored", hint);
    }
    age
}

/// Where Kubernetes puts what a pod needs to talk to it.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn containers(layers: &mut Layers<'_>) -> Containers {
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
    let docker = paths(&["/var/run/docker.sock", "/run/podman/podman.sock"]);
    let docker = layers.get(&["containers", "docker"], docker);
    let cri = paths(&[
        "/run/containerd/containerd.sock",
        "/var/run/crio/crio.sock",
        "/run/k3s/containerd/containerd.sock",
    ]);
    let cri = layers.get(&["containers", "cri"], cri);
    let of_account = |file: &str| Some(PathBuf::from(format!("{SERVICE_ACCOUNT}/{file}")));
    let kubelet = layers.get_switchable(&["containers", "kubelet"], None::<String>);
    let is_url = |url: &String| url.starts_with("https://") || url.starts_with("http://");
    if kubelet.value.as_ref().is_some_and(|url| !is_url(url)) {
        let expected = "expected a URL, as in \"https://NODE:10250\"";
        layers.refuse(&["containers", "kubelet"], &kubelet, expected, None);
    }
    Containers {
        docker,
        cri,
        kubelet,
        kubelet_token_file: layers
            .get_switchable(&["containers", "kubelet_token_file"], of_account("token")),
        kubelet_ca_file: layers
            .get_switchable(&["containers", "kubelet_ca_file"], of_account("ca.crt")),
        kubelet_verify: layers.get(&["containers", "kubelet_verify"], true),
    }
}
