//! Output: a process's service, environment, version, labels and sample types, each with its
//! source.
//!
//! Every fact makes claims; of the claims to one field the one of the earliest [`Source`] wins,
//! and of several in one source the first as written. Names of labels that strata gives itself
//! cannot be claimed by a target.

use std::borrow::Cow;

use strata_kinds::Kinds;

use crate::control_group;
use crate::destinations::{self, Wish};
use crate::environment::{
    DD_ENV, DD_SERVICE, DD_TAGS, DD_VERSION, OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME,
    PYROSCOPE_APPLICATION_NAME, PYROSCOPE_LABELS,
};
use crate::facts::{Choice, Facts, Pod};
use crate::known_variables::Known;
use crate::source::Source;
use crate::text::{self, Limits, List};
use crate::types::{self, Switched};

/// A value, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced {
    pub value: String,
    pub source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub name: String,
    pub value: String,
    pub source: Source,
}

/// The identity of a process (or of one runtime in it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Never empty.
    pub service: Sourced,
    pub env: Option<Sourced>,
    pub version: Option<Sourced>,
    /// By name; each name once.
    pub labels: Vec<Label>,
    pub types: Switched,
    /// Variables of the target that were ignored: those for endpoints and credentials.
    pub ignored: Vec<&'static str>,
    /// Those variables, where a rule allows this target its own destination.
    pub wishes: Vec<Wish>,
    pub refused: Refused,
}

/// Counts of claims that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Values that were too long and are truncated.
    pub cut: u32,
    /// Entries of lists that are no labels, or too many for one list.
    pub malformed: u32,
    /// Labels whose names are strata's own.
    pub reserved: u32,
    /// Labels over [`Limits::LABELS`].
    pub over_limit: u32,
    /// Bytes of the environment that were not read.
    pub environment: usize,
}

/// Labels that strata or its exporters set, by each backend's name of them. A target that sets one
/// could impersonate another.
pub const RESERVED: &[&str] = &[
    "container",
    "container_id",
    "container_image",
    "container_name",
    "executable",
    "executable_name",
    "host",
    "host.arch",
    "host.name",
    "hostname",
    "k8s.namespace.name",
    "k8s.node.name",
    "k8s.pod.name",
    "kube_namespace",
    "kube_node",
    "language",
    "namespace",
    "node",
    "number_of_cpu_cores",
    "pid",
    "pod",
    "pod_name",
    "process.executable.name",
    "process.executable.path",
    "process.pid",
    "process.runtime.name",
    "process.runtime.version",
    "process_architecture",
    "process_id",
    "profile_seq",
    "profiler_version",
    "pyroscope_spy",
    "runtime-id",
    "runtime_id",
    "runtime_version",
    "service.instance.id",
    "span_id",
    "systemd_unit",
    "trace_id",
];

/// Labels with the URL of a repository, by each backend's name.
const REPOSITORIES: &[&str] =
    &["git.repository_url", "service_repository", "vcs.repository.url.full"];

#[derive(Debug, PartialEq, Eq)]
enum Field {
    Service,
    Env,
    Version,
    Label(String),
}

struct Claim {
    field: Field,
    source: Source,
    value: String,
}

#[derive(Default)]
struct Claims {
    claims: Vec<Claim>,
    refused: Refused,
}

impl Claims {
    fn add(&mut self, field: Field, source: Source, value: impl AsRef<str>) {
        let value = value.as_ref();
        let cleaned = match field {
            Field::Service => text::name(value),
            Field::Env | Field::Version => text::value(value, Limits::NAME),
            Field::Label(_) => text::value(value, Limits::LABEL_VALUE),
        };
        let Some((value, cut)) = cleaned else { return };
        self.refused.cut = self.refused.cut.saturating_add(u32::from(cut));
        self.claims.push(Claim { field, source, value });
    }

    fn maybe(&mut self, field: Field, source: Source, value: Option<impl AsRef<str>>) {
        if let Some(value) = value {
            self.add(field, source, value);
        }
    }

    /// A label by any name, or what the name stands for.
    fn pair(&mut self, source: Source, name: &str, value: &str) {
        match name {
            "service_name" | "service" | "service.name" => self.add(Field::Service, source, value),
            "env" | "deployment.environment.name" | "deployment.environment" => {
                self.add(Field::Env, source, value);
            }
            "version" | "service.version" => self.add(Field::Version, source, value),
            _ => match text::label_name(name) {
                None => self.refused.malformed = self.refused.malformed.saturating_add(1),
                Some(name) if source != Source::Rule && is_reserved(&name) => {
                    self.refused.reserved = self.refused.reserved.saturating_add(1);
                }
                Some(name) if REPOSITORIES.iter().any(|known| is_same(known, &name)) => {
                    self.add(Field::Label(name), source, text::without_userinfo(value));
                }
                Some(name) => self.add(Field::Label(name), source, value),
            },
        }
    }

    fn list(&mut self, source: Source, text: Option<Cow<'_, str>>, list: List) {
        let Some(text) = text else { return };
        let (pairs, refused) = text::pairs(&text, list);
        self.refused.malformed = self.refused.malformed.saturating_add(refused);
        for (name, value) in pairs {
            self.pair(source, &name, &value);
        }
    }

    /// The claim with precedence. Claims are in order.
    fn take(&mut self, field: &Field) -> Option<Sourced> {
        let claim = self.claims.iter_mut().find(|claim| claim.field == *field)?;
        Some(Sourced { value: std::mem::take(&mut claim.value), source: claim.source })
    }

    fn labels(self) -> (Vec<Label>, Refused) {
        let mut refused = self.refused;
        let mut labels: Vec<Label> = Vec::new();
        for Claim { field, source, value } in self.claims {
            let Field::Label(name) = field else { continue };
            if labels.iter().any(|label| label.name == name) {
                continue;
            }
            // The host's own facts always have room, however many labels a target claims.
            let own = RESERVED.contains(&name.as_str());
            let claimed = labels.iter().filter(|label| !RESERVED.contains(&label.name.as_str()));
            if !own && claimed.count() >= Limits::LABELS {
                refused.over_limit = refused.over_limit.saturating_add(1);
                continue;
            }
            labels.push(Label { name, value, source });
        }
        labels.sort_by(|a, b| a.name.cmp(&b.name));
        (labels, refused)
    }
}

/// Whether a label of this name is dropped unless a rule or the host sets it.
pub fn is_reserved(name: &str) -> bool {
    let fields = ["service_name", "service", "env", "version"];
    name.starts_with("__") || RESERVED.iter().chain(&fields).any(|reserved| is_same(reserved, name))
}

/// A server treats `runtime.id` and `Runtime-ID` as one name, so they compare equal.
fn is_same(one: &str, other: &str) -> bool {
    let plain = |byte: u8| match byte {
        b'.' | b'-' | b'/' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    one.bytes().map(plain).eq(other.bytes().map(plain))
}

/// Resolves a process's identity. `defaults` are the types sampled without any setting.
pub fn identify(facts: &Facts<'_>, choice: &Choice, defaults: Kinds) -> Identity {
    let known = facts.environment.known();
    let mut claims = Claims::default();
    claims.refused.environment = known.unread();
    of_rule(&mut claims, choice);
    let application = facts.application;
    claims.add(Field::Service, Source::Application, application.service);
    claims.add(Field::Env, Source::Application, application.env);
    claims.add(Field::Version, Source::Application, application.version);
    of_environment(&mut claims, &known);
    claims.maybe(Field::Service, Source::EntryAssembly, facts.entry_assembly.map(assembly_name));
    of_host(&mut claims, facts);
    of_process(&mut claims, facts);
    claims.claims.sort_by_key(|claim| claim.source);

    let unknown = || Sourced { value: "unknown".to_owned(), source: Source::Nothing };
    let service = claims.take(&Field::Service).unwrap_or_else(unknown);
    let env = claims.take(&Field::Env);
    let version = claims.take(&Field::Version);
    let (labels, refused) = claims.labels();
    let (ignored, wishes) = if choice.own_destination {
        (Vec::new(), destinations::wishes(&known))
    } else {
        (destinations::named(&known).collect(), Vec::new())
    };
    let types = types::switch(&known, choice, defaults);
    Identity { service, env, version, labels, types, ignored, wishes, refused }
}

fn of_rule(claims: &mut Claims, choice: &Choice) {
    claims.maybe(Field::Service, Source::Rule, choice.service.as_ref());
    claims.maybe(Field::Env, Source::Rule, choice.env.as_ref());
    claims.maybe(Field::Version, Source::Rule, choice.version.as_ref());
    for (name, value) in &choice.labels {
        claims.pair(Source::Rule, name, value);
    }
}

fn of_environment(claims: &mut Claims, known: &Known<'_>) {
    let application = known.text(PYROSCOPE_APPLICATION_NAME);
    claims.maybe(Field::Service, Source::PyroscopeApplicationName, application);
    claims.list(Source::PyroscopeLabels, known.text(PYROSCOPE_LABELS), List::Pyroscope);
    claims.maybe(Field::Service, Source::DdService, known.text(DD_SERVICE));
    claims.maybe(Field::Env, Source::DdEnv, known.text(DD_ENV));
    claims.maybe(Field::Version, Source::DdVersion, known.text(DD_VERSION));
    claims.list(Source::DdTags, known.text(DD_TAGS), List::Datadog);
    claims.maybe(Field::Service, Source::OtelServiceName, known.text(OTEL_SERVICE_NAME));
    let attributes = known.text(OTEL_RESOURCE_ATTRIBUTES);
    claims.list(Source::OtelResourceAttributes, attributes, List::OpenTelemetry);
}

fn of_host(claims: &mut Claims, facts: &Facts<'_>) {
    let label = |name: &str| Field::Label(name.to_owned());
    if let Some(group) = facts.group {
        let unit = group.unit.as_deref();
        claims.maybe(Field::Service, Source::SystemdUnit, unit.map(control_group::unit_service));
        claims.maybe(label("systemd_unit"), Source::SystemdUnit, unit);
        claims.maybe(label("container_id"), Source::ContainerId, group.container.as_ref());
    }
    if let Some(container) = facts.container {
        let datadog = |name: &str| container.label(&format!("com.datadoghq.tags.{name}"));
        claims.maybe(Field::Service, Source::ContainerDatadogLabel, datadog("service"));
        claims.maybe(Field::Env, Source::ContainerDatadogLabel, datadog("env"));
        claims.maybe(Field::Version, Source::ContainerDatadogLabel, datadog("version"));
        let name = container.name.as_deref().map(|name| name.trim_start_matches('/'));
        claims.maybe(label("container_name"), Source::ContainerName, name);
        let image = container.image.as_deref();
        claims.maybe(label("container_image"), Source::ContainerImage, image);
        // A name assigned by Kubernetes counts as Kubernetes metadata, which is richer than the
        // name.
        let given = |name: &&str| {
            name.starts_with("k8s_") || facts.pod.is_some_and(|pod| pod.container == *name)
        };
        claims.maybe(Field::Service, Source::ContainerName, name.filter(|name| !given(name)));
    }
    if let Some(pod) = facts.pod {
        of_pod(claims, pod);
    }
}

fn of_pod(claims: &mut Claims, pod: &Pod) {
    let annotation = pod.annotation("pyroscope.io/service_name");
    claims.maybe(Field::Service, Source::PodPyroscopeAnnotation, annotation);
    let datadog = |name: &str| {
        let prefix = "tags.datadoghq.com/";
        pod.label(&format!("{prefix}{}.{name}", pod.container))
            .filter(|value| !value.trim().is_empty())
            .or_else(|| pod.label(&format!("{prefix}{name}")))
    };
    claims.maybe(Field::Service, Source::PodDatadogLabel, datadog("service"));
    claims.maybe(Field::Env, Source::PodDatadogLabel, datadog("env"));
    claims.maybe(Field::Version, Source::PodDatadogLabel, datadog("version"));
    let otel = |name: &str| pod.annotation(&format!("resource.opentelemetry.io/{name}"));
    claims.maybe(Field::Service, Source::PodOtelAnnotation, otel("service.name"));
    claims.maybe(Field::Env, Source::PodOtelAnnotation, otel("deployment.environment.name"));
    claims.maybe(Field::Version, Source::PodOtelAnnotation, otel("service.version"));
    let recommended = |name: &str| pod.label(&format!("app.kubernetes.io/{name}"));
    claims.maybe(Field::Service, Source::PodNameLabel, recommended("name"));
    claims.maybe(Field::Version, Source::PodNameLabel, recommended("version"));
    for (name, value) in
        [("namespace", &pod.namespace), ("pod", &pod.name), ("container", &pod.container)]
    {
        claims.add(Field::Label(name.to_owned()), Source::PodContainer, value);
    }
    let service = match (pod.namespace.trim(), pod.container.trim()) {
        ("", container) => container.to_owned(),
        (_, "") => String::new(),
        (namespace, container) => format!("{namespace}/{container}"),
    };
    claims.add(Field::Service, Source::PodContainer, service);
}

fn of_process(claims: &mut Claims, facts: &Facts<'_>) {
    claims.maybe(Field::Service, Source::Executable, facts.called);
    claims.maybe(Field::Service, Source::Executable, facts.exe.map(executable_name));
    claims.add(Field::Service, Source::Comm, facts.comm);
}

fn assembly_name(assembly: &str) -> &str {
    let name = assembly.rsplit(['/', '\\']).next().unwrap_or(assembly).trim();
    let stem = |name| {
        let name: &str = name;
        let at = name.len().checked_sub(4)?;
        let ending = name.get(at..)?;
        let known = [".dll", ".exe"].iter().any(|known| ending.eq_ignore_ascii_case(known));
        name.get(..at).filter(|_| known)
    };
    stem(name).unwrap_or(name)
}

fn executable_name(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or(path);
    // Executables in memory alone are `/memfd:name`.
    name.strip_prefix("memfd:").unwrap_or(name)
}
