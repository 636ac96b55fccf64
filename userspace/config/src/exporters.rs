//! The exporters of the configuration.

use std::cmp::Ordering;
use std::path::PathBuf;
use std::time::Duration;

use crate::layers::Layers;
use crate::origin::{Origin, Sourced};
use crate::secret::{Credential, Secret};
use crate::value::{Bytes, words};

words! {
    /// What an exporter speaks.
    Kind { Pyroscope = "pyroscope", Datadog = "datadog", Otlp = "otlp", File = "file" }
}

words! {
    /// How OTLP is sent.
    Protocol { Http = "http", Grpc = "grpc" }
}

words! {
    /// Pyroscope's protocol: `ingest` is for servers before 1.0's push.
    Api { Push = "push", Ingest = "ingest" }
}

/// One destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExporterConfig {
    pub name: String,
    pub kind: Kind,
    /// `http`, `https` or `unix`; none for files.
    pub url: Option<Sourced<String>>,
    /// The folder of a `file` exporter.
    pub path: Option<Sourced<PathBuf>>,
    pub api: Sourced<Api>,
    pub protocol: Sourced<Protocol>,
    /// A bearer token.
    pub token: Option<Sourced<Credential>>,
    pub user: Sourced<Option<String>>,
    pub password: Option<Sourced<Credential>>,
    pub tenant: Sourced<Option<String>>,
    pub headers: Vec<(String, Secret)>,
    pub ca_file: Sourced<Option<PathBuf>>,
    pub period: Sourced<Duration>,
    pub timeout: Sourced<Duration>,
    pub concurrency: Sourced<u32>,
    /// Names of labels that are sent; `*` stands for any characters.
    pub labels: Sourced<Vec<String>>,
    /// Whether labels that a process sets in its own environment are sent besides.
    pub target_labels: Sourced<bool>,
    /// Values that a label may have in an hour; those beyond are sent as `other`.
    pub label_values: Sourced<u32>,
    /// Whether samples are sent with their times, where they are kept.
    pub timestamps: Sourced<bool>,
    pub spool_size: Sourced<Bytes>,
    pub spool_age: Sourced<Duration>,
}

/// Labels that make series on a Pyroscope server. Each value is a series of its own, so nothing
/// that has many.
const SERIES: [&str; 10] = [
    "env",
    "version",
    "host",
    "namespace",
    "pod",
    "container",
    "container_name",
    "systemd_unit",
    "exception type",
    "state",
];

/// [`SERIES`], and the labels by which the rules distinguish processes.
fn series(layers: &Layers<'_>) -> Vec<String> {
    let mut names: Vec<String> = SERIES.map(str::to_owned).into();
    for rule in layers.below(&["rule"]) {
        for name in layers.below(&["rule", &rule, "labels"]) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// All exporters: those of the file, of flags, and those that a variable of an agent makes.
pub(crate) fn read(layers: &mut Layers<'_>) -> Vec<ExporterConfig> {
    let mut names = layers.below(&["exporter"]);
    // A credential or a header alone makes no exporter: an address is needed.
    names.retain(|name| makes_a_exporter(layers, name));
    for kind in Kind::WORDS {
        let place = if *kind == "file" { "PATH" } else { "URL" };
        let variable = format!("STRATA_EXPORTER_{}_{place}", kind.to_ascii_uppercase());
        if layers.variable(&variable).is_some() && !names.iter().any(|name| name == kind) {
            names.push((*kind).to_owned());
        }
    }
    names.iter().filter_map(|name| exporter(layers, name)).collect()
}

const SHORTEST_AGE: Duration = Duration::from_secs(60);

fn makes_a_exporter(layers: &Layers<'_>, name: &str) -> bool {
    let of_agent_alone = layers.all_below_are_variables(&["exporter", name]);
    layers.has(&["exporter", name])
        || !of_agent_alone
        || layers.below(&["exporter", name]).iter().any(|key| key == "url")
}

fn exporter(layers: &mut Layers<'_>, name: &str) -> Option<ExporterConfig> {
    let exporter = ["exporter", name];
    let path = |key: &'static str| [exporter[0], exporter[1], key];
    let kind = layers.get::<Option<Kind>>(&path("kind"), None);
    let named = Kind::WORDS.iter().position(|word| *word == name);
    let kind = kind.value.or_else(|| {
        let kinds = [Kind::Pyroscope, Kind::Datadog, Kind::Otlp, Kind::File];
        kinds.get(named?).copied()
    });
    let Some(kind) = kind else {
        let origin = layers.origin_below(&exporter);
        let kind = Sourced { value: (), origin };
        layers.refuse(
            &path("kind"),
            &kind,
            "an exporter needs a kind",
            Some("kind = \"pyroscope\", \"datadog\", \"otlp\" or \"file\""),
        );
        // Its keys count as known all the same.
        read_as(layers, name, Kind::Pyroscope);
        return None;
    };
    Some(read_as(layers, name, kind))
}

fn read_as(layers: &mut Layers<'_>, name: &str, kind: Kind) -> ExporterConfig {
    let path = |key: &'static str| ["exporter", name, key];
    let is_file = kind == Kind::File;
    let (period, labels) = match kind {
        Kind::Pyroscope => (15, series(layers)),
        Kind::Datadog => (60, vec!["*".to_owned()]),
        Kind::Otlp | Kind::File => (15, vec!["*".to_owned()]),
    };
    let protocol = layers.get(&path("protocol"), Protocol::Http);
    let url = (!is_file).then(|| {
        let default = default_url(kind, protocol.value, layers.agent_socket);
        let url = layers.get_or(&path("url"), default);
        check_url(layers, &path("url"), &url, kind);
        url
    });
    let folder =
        is_file.then(|| layers.get(&path("path"), PathBuf::from("/var/lib/strata/profiles")));
    let period = layers.get(&path("period"), Duration::from_secs(period));
    let range = Duration::from_secs(1)..=Duration::from_secs(3600);
    if !range.contains(&period.value) {
        layers.refuse(&path("period"), &period, "a period is from 1s to 1h", None);
    }
    let concurrency = layers.get(&path("concurrency"), 4);
    if !(1..=64).contains(&concurrency.value) {
        layers.refuse(&path("concurrency"), &concurrency, "from 1 to 64 requests at once", None);
    }
    // In Pyroscope each value is a series.
    let most_values = if kind == Kind::Pyroscope { 100 } else { 1000 };
    let label_values = layers.get(&path("label_values"), most_values);
    if label_values.value == 0 {
        layers.refuse(&path("label_values"), &label_values, "at least 1", None);
    }
    let timestamps = layers.get(&path("timestamps"), false);
    if timestamps.value && !matches!(kind, Kind::Datadog | Kind::Otlp) {
        let message = "only datadog and otlp take the times of samples";
        layers.refuse(&path("timestamps"), &timestamps, message, None);
    }
    let timeout = layers.get(&path("timeout"), Duration::from_secs(10));
    if timeout.value.is_zero() {
        layers.refuse(&path("timeout"), &timeout, "no request ends in no time", None);
    }
    let spool_age = layers.get(&path("spool_age"), Duration::from_secs(3600));
    if spool_age.value < SHORTEST_AGE {
        let message = "at least 1m: what a server does not take at once is tried again";
        layers.refuse(&path("spool_age"), &spool_age, message, None);
    }
    let token = credential(layers, name, "token", "token_file");
    let user = layers.get::<Option<String>>(&path("user"), None);
    let password = credential(layers, name, "password", "password_file");
    if let (Some(token), Some(_)) = (&token, &password) {
        layers.refuse(
            &path("token"),
            token,
            "a token and a password: one of them is sent",
            Some("remove one of them"),
        );
    } else if user.value.is_some() && password.is_none() {
        let hint = match token {
            Some(_) => "set password instead of token, or remove user",
            None => "set password or password_file",
        };
        layers.refuse(&path("user"), &user, "a user is sent with a password only", Some(hint));
    }
    let headers = layers.map::<Secret>(&path("headers"));
    let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value.value?)));
    ExporterConfig {
        name: name.to_owned(),
        kind,
        url,
        path: folder,
        api: layers.get(&path("api"), Api::Push),
        protocol,
        token,
        user,
        password,
        tenant: layers.get(&path("tenant"), None),
        headers: headers.collect(),
        ca_file: layers.get_switchable(&path("ca_file"), None),
        period,
        timeout,
        concurrency,
        labels: layers.get(&path("labels"), labels),
        target_labels: layers.get(&path("target_labels"), true),
        label_values,
        timestamps,
        spool_size: layers.get(&path("spool_size"), Bytes(256_000_000)),
        spool_age,
    }
}

/// The default address of each kind of server, as in its own agents.
fn default_url(kind: Kind, protocol: Protocol, agent_socket: Option<&str>) -> Sourced<String> {
    if let (Kind::Datadog, Some(socket)) = (kind, agent_socket) {
        return Sourced { value: format!("unix://{socket}"), origin: Origin::Found };
    }
    let url = match (kind, protocol) {
        (Kind::Pyroscope, _) => "http://localhost:4040",
        (Kind::Datadog, _) => "http://localhost:8126",
        (Kind::Otlp, Protocol::Http) => "http://localhost:4318",
        (Kind::Otlp, Protocol::Grpc) => "http://localhost:4317",
        (Kind::File, _) => "",
    };
    Sourced { value: url.to_owned(), origin: Origin::Default }
}

/// A secret, or a file with it: that of the higher layer.
fn credential(
    layers: &mut Layers<'_>,
    name: &str,
    key: &'static str,
    file_key: &'static str,
) -> Option<Sourced<Credential>> {
    let (path, file_path) = (["exporter", name, key], ["exporter", name, file_key]);
    let mut value = layers.get::<Option<Secret>>(&path, None);
    let mut file = layers.get_switchable::<PathBuf>(&file_path, None);
    if value.value.is_some() && file.value.is_some() {
        match value.origin.rank().cmp(&file.origin.rank()) {
            Ordering::Equal => {
                let message = format!("`{key}` and `{file_key}` are both set");
                layers.refuse(&path, &value, &message, Some("remove one of them"));
            }
            Ordering::Greater => {
                layers.supersede(&file_path, &value.origin);
                file.value = None;
            }
            Ordering::Less => {
                layers.supersede(&path, &file.origin);
                value.value = None;
            }
        }
    }
    let with = |credential, origin: Origin| Some(Sourced { value: credential, origin });
    match (value.value, file.value) {
        (Some(secret), _) => with(Credential::Value(secret), value.origin),
        (None, Some(path)) => with(Credential::File(path), file.origin),
        (None, None) => None,
    }
}

fn check_url(layers: &mut Layers<'_>, path: &[&str], url: &Sourced<String>, kind: Kind) {
    let Some((scheme, rest)) = url.value.split_once("://") else {
        return layers.refuse(path, url, "a URL starts with http://, https:// or unix://", None);
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        layers.refuse(
            path,
            url,
            "a credential in a URL would be shown",
            Some("set user and password, or token"),
        );
    } else if scheme == "unix" {
        if kind != Kind::Datadog || !rest.starts_with('/') {
            layers.refuse(
                path,
                url,
                "unix:// takes an absolute path, and only a Datadog agent listens there",
                None,
            );
        }
    } else if !matches!(scheme, "http" | "https") || authority.is_empty() {
        layers.refuse(
            path,
            url,
            "a URL starts with http://, https:// or unix://, and names a host",
            None,
        );
    }
}
