//! What a profile describes, and the name of each fact in every backend. One row per fact.
//!
//! Pyroscope makes a time series of each set of labels, so a fact that is new with every process
//! (its id, its container's id) is no label there unless it is configured. Everything here may come
//! from the profiled programs: names are made valid, values are bounded.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::OnceLock;

use strata_profile::{FrameKind, Profile};
use xxhash_rust::xxh3::Xxh3Default;

use crate::label_names::pyroscope_name;
use crate::limits::{Cuts, shortened};

/// The origin of a profile; empty or `None` where unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    pub service: String,
    pub env: String,
    pub version: String,
    pub host: String,
    pub pid: Option<u32>,
    pub runtime_id: String,
    pub language: Language,
    pub runtime_version: String,
    pub container_id: String,
    pub container_name: String,
    pub pod: String,
    pub namespace: String,
    pub node: String,
    pub git_repository: String,
    pub git_commit: String,
    pub cores: Option<u32>,
    /// As Rust names it: `x86_64`, `aarch64`.
    pub architecture: String,
    /// The path of its program, as the process itself has it.
    pub executable: String,
    /// The sequence number of a profile: greater than those of this runtime's earlier profiles.
    pub sequence: u64,
    /// Configured labels, as (name, value).
    pub labels: Vec<(String, String)>,
    /// The names of those that the process's own variables set.
    pub target_labels: Vec<String>,
    /// Those of [`CLAIMABLE`] that the process itself set.
    pub claimed_facts: Vec<String>,
}

/// Facts that a process may set: the number of their values is limited as that of its labels is.
pub const CLAIMABLE: [&str; 4] = ["env", "version", "git_repository", "git_commit"];

impl Origin {
    /// The origin of a profile of several processes that differ in pid and runtime id only. Its runtime
    /// id is the same for all such profiles since the start of the host: they are of one instance.
    #[must_use]
    pub fn of_several(&self) -> Self {
        let mut origin = Self { pid: None, runtime_id: String::new(), ..self.clone() };
        let mut facts = Xxh3Default::new();
        origin.hash(&mut facts);
        let facts = facts.digest128();
        origin.runtime_id = shared_runtime_id(&format!("processes of {} {facts:x}", self.host));
        origin
    }
}

/// A runtime id for what is no process: the same after every start of strata, another one after every
/// start of the host, as for any process, because sequence numbers restart there.
pub(crate) fn shared_runtime_id(name: &str) -> String {
    static BOOT: OnceLock<String> = OnceLock::new();
    let boot = BOOT.get_or_init(|| {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
    });
    let hash = xxhash_rust::xxh3::xxh3_128(format!("strata's {name} {boot}").as_bytes());
    uuid::Builder::from_random_bytes(hash.to_le_bytes()).into_uuid().to_string()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Language {
    #[default]
    Native,
    DotNet,
    Go,
}

impl Language {
    /// Sets the language in Pyroscope, which otherwise rewrites stacks that look like Go.
    #[must_use]
    pub fn spy(self) -> &'static str {
        match self {
            Self::Native => "ebpfspy",
            Self::DotNet => "dotnetspy",
            Self::Go => "gospy",
        }
    }

    /// The language of [`Self::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let all = [Self::DotNet, Self::Go];
        all.into_iter().find(|language| language.name() == name).unwrap_or_default()
    }

    /// The language runtime, where there is one.
    fn runtime(self) -> &'static str {
        match self {
            Self::Native => "",
            Self::DotNet | Self::Go => self.name(),
        }
    }

    /// The language of what was recorded, by its functions.
    #[must_use]
    pub fn of_profile(profile: &Profile) -> Self {
        let mut frames = profile.locations().iter().flat_map(|at| profile.frames(*at));
        match frames.any(|frame| frame.kind == FrameKind::Managed) {
            true => Self::DotNet,
            false => Self::of_native(profile),
        }
    }

    /// The language of a native program, by its functions: every Go stack begins in Go's scheduler.
    #[must_use]
    pub fn of_native(profile: &Profile) -> Self {
        let is_root = |name: &str| {
            let name = name.strip_suffix(".abi0").unwrap_or(name);
            matches!(name, "runtime.goexit" | "runtime.mstart" | "runtime.rt0_go")
        };
        let mut frames = profile.locations().iter().flat_map(|at| profile.frames(*at));
        let is_go = frames.any(|frame| is_root(profile.string(frame.name)));
        if is_go { Self::Go } else { Self::Native }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::DotNet => "dotnet",
            Self::Go => "go",
        }
    }
}

/// A value of a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'o> {
    Text(Cow<'o, str>),
    Number(i64),
}

impl Value<'_> {
    #[must_use]
    pub fn into_text(self) -> String {
        match self {
            Self::Text(text) => text.into_owned(),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// A row: where the fact is, and what each backend calls it (empty: not sent).
struct Fact {
    own: &'static str,
    of: fn(&Origin) -> Option<Value<'_>>,
    pyroscope: &'static str,
    /// Whether it is sent to Pyroscope by default.
    usual: bool,
    datadog: &'static str,
    otlp: &'static str,
}

fn text(text: &str) -> Option<Value<'_>> {
    (!text.is_empty()).then_some(Value::Text(Cow::Borrowed(text)))
}

macro_rules! facts {
    ($($own:literal, $of:expr, $pyroscope:literal, $usual:literal, $datadog:literal, $otlp:literal;)*) => {
        &[$(Fact { own: $own, of: $of, pyroscope: $pyroscope, usual: $usual, datadog: $datadog, otlp: $otlp }),*]
    };
}

static FACTS: &[Fact] = facts! {
    "service", |o| text(&o.service), "service_name", true, "service", "service.name";
    "env", |o| text(&o.env), "env", true, "env", "deployment.environment.name";
    "version", |o| text(&o.version), "version", true, "version", "service.version";
    "host", |o| text(&o.host), "hostname", true, "host", "host.name";
    "namespace", |o| text(&o.namespace), "namespace", true, "kube_namespace", "k8s.namespace.name";
    "pod", |o| text(&o.pod), "pod", true, "pod_name", "k8s.pod.name";
    "container_name", |o| text(&o.container_name), "container", true, "container_name", "container.name";
    "node", |o| text(&o.node), "node", true, "kube_node", "k8s.node.name";
    "git_repository", |o| text(&o.git_repository), "service_repository", true, "git.repository_url", "vcs.repository.url.full";
    "git_commit", |o| text(&o.git_commit), "service_git_ref", true, "git.commit.sha", "vcs.ref.head.revision";
    "language", |o| text(o.language.name()), "language", false, "language", "";
    "runtime_name", |o| text(o.language.runtime()), "", false, "", "process.runtime.name";
    "runtime_version", |o| text(&o.runtime_version), "runtime_version", false, "runtime_version", "process.runtime.version";
    "container_id", |o| text(&o.container_id), "container_id", false, "container_id", "container.id";
    "runtime_id", |o| text(&o.runtime_id), "runtime_id", false, "runtime-id", "service.instance.id";
    "pid", |o| o.pid.map(|pid| Value::Number(i64::from(pid))), "pid", false, "process_id", "process.pid";
    "cores", |o| o.cores.map(|cores| Value::Number(i64::from(cores))), "", false, "number_of_cpu_cores", "";
    "architecture", |o| text(&o.architecture), "", false, "process_architecture", "";
    "otel_architecture", |o| text(otel_architecture(&o.architecture)), "", false, "", "host.arch";
    "executable_name", |o| text(file_name(&o.executable)), "executable_name", false, "", "process.executable.name";
    "executable", |o| text(&o.executable), "executable", false, "", "process.executable.path";
    "sequence", |o| Some(Value::Number(i64::try_from(o.sequence).unwrap_or(i64::MAX))), "", false, "profile_seq", "";
};

/// An architecture as a value of OpenTelemetry's `host.arch`.
fn otel_architecture(architecture: &str) -> &str {
    match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Labels reserved for strata, whatever is configured.
const RESERVED: [&str; 3] = ["__name__", "__delta__", "pyroscope_spy"];

/// The limits of a set of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelLimits {
    pub count: usize,
    pub name_bytes: usize,
    pub value_bytes: usize,
}

/// The labels of a Pyroscope series, sorted by name, without `__name__`. `also` are facts (by
/// strata's name) that are no labels by themselves.
#[must_use]
pub fn pyroscope_labels(
    origin: &Origin,
    also: &[String],
    limits: &LabelLimits,
    cuts: &mut Cuts,
) -> Vec<(String, String)> {
    let mut labels = vec![
        ("__delta__".to_owned(), "false".to_owned()),
        ("pyroscope_spy".to_owned(), origin.language.spy().to_owned()),
    ];
    if origin.service.is_empty() {
        // A series without a service is refused.
        labels.push(("service_name".to_owned(), "unknown".to_owned()));
    }
    let facts = FACTS.iter().filter(|fact| !fact.pyroscope.is_empty());
    let facts = facts.filter(|fact| fact.usual || also.iter().any(|name| name == fact.own));
    let facts = facts.filter_map(|fact| {
        let value = (fact.of)(origin)?;
        Some((fact.pyroscope.to_owned(), value.into_text()))
    });
    let chosen = origin.labels.iter().map(|(name, value)| (name.clone(), value.clone()));
    for (name, value) in facts.chain(chosen) {
        if value.is_empty() {
            continue;
        }
        // A shortened name is valid too, and may equal another one.
        let (name, is_short) = bounded(pyroscope_name(&name), limits.name_bytes);
        let name = pyroscope_name(&name);
        let known = labels.iter().any(|(other, _)| *other == name);
        // One place is for `__name__`.
        let full = labels.len().saturating_add(1) >= limits.count;
        if known || full || RESERVED.contains(&name.as_str()) {
            cuts.dropped_labels = cuts.dropped_labels.saturating_add(1);
            continue;
        }
        let (value, is_short_too) = bounded(value, limits.value_bytes);
        count_short(cuts, [is_short, is_short_too]);
        labels.push((name, value));
    }
    labels.sort();
    labels
}

/// The tags of a Datadog profile, as `name:value`.
#[must_use]
pub fn datadog_tags(origin: &Origin, limits: &LabelLimits, cuts: &mut Cuts) -> Vec<String> {
    let facts = FACTS.iter().filter(|fact| !fact.datadog.is_empty());
    let facts =
        facts.filter_map(|fact| Some((fact.datadog.to_owned(), (fact.of)(origin)?.into_text())));
    let own = [("profiler_version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    let chosen = origin.labels.iter().cloned();
    let mut tags: Vec<(String, String)> = Vec::new();
    for (name, value) in facts.chain(own).chain(chosen) {
        if name.is_empty() || value.is_empty() {
            continue;
        }
        let (name, is_short) = bounded(name, limits.name_bytes);
        // Datadog makes the names of tags lower case.
        if tags.len() >= limits.count
            || tags.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name))
        {
            cuts.dropped_labels = cuts.dropped_labels.saturating_add(1);
            continue;
        }
        let (value, is_short_too) = bounded(value, limits.value_bytes);
        count_short(cuts, [is_short, is_short_too]);
        tags.push((name, value));
    }
    // A comma ends a tag; a colon ends its name.
    tags.iter()
        .map(|(name, value)| {
            let name = name.replace([',', ':'], "_");
            format!("{name}:{}", value.replace(',', "_"))
        })
        .collect()
}

/// The attributes of an OTLP resource.
#[must_use]
pub fn otlp_attributes<'o>(
    origin: &'o Origin,
    limits: &LabelLimits,
    cuts: &mut Cuts,
) -> Vec<(String, Value<'o>)> {
    let facts = FACTS.iter().filter(|fact| !fact.otlp.is_empty());
    let facts = facts.filter_map(|fact| Some((fact.otlp.to_owned(), (fact.of)(origin)?)));
    let chosen =
        origin.labels.iter().filter_map(|(name, value)| Some((name.clone(), text(value)?)));
    let mut attributes: Vec<(String, Value)> = Vec::new();
    for (name, value) in facts.chain(chosen) {
        // Keys are compared in the form in which they are sent.
        let (name, is_short) = bounded(name, limits.name_bytes);
        let known = attributes.iter().any(|(other, _)| *other == name);
        if name.is_empty() || known || attributes.len() >= limits.count {
            cuts.dropped_labels = cuts.dropped_labels.saturating_add(1);
            continue;
        }
        let (value, is_short_too) = match value {
            Value::Text(text) => {
                let short = shortened(&text, limits.value_bytes);
                let is_short = short.is_some();
                (Value::Text(short.map_or(text, Cow::Owned)), is_short)
            }
            number @ Value::Number(_) => (number, false),
        };
        count_short(cuts, [is_short, is_short_too]);
        attributes.push((name, value));
    }
    attributes
}

/// A text within its bound, and whether it was shortened for that.
fn bounded(text: String, bytes: usize) -> (String, bool) {
    match shortened(&text, bytes) {
        Some(short) => (short, true),
        None => (text, false),
    }
}

fn count_short(cuts: &mut Cuts, are_short: [bool; 2]) {
    let count = are_short.into_iter().map(u64::from).sum();
    cuts.shortened_texts = cuts.shortened_texts.saturating_add(count);
}

#[cfg(test)]
mod tests {
    use super::{
        FACTS, LabelLimits, Language, Origin, datadog_tags, otlp_attributes, pyroscope_labels,
    };
    use crate::limits::Cuts;

    const LIMITS: LabelLimits = LabelLimits { count: 30, name_bytes: 1024, value_bytes: 2048 };

    fn shop() -> Origin {
        Origin {
            service: "shop".to_owned(),
            env: "prod".to_owned(),
            pid: Some(7),
            runtime_id: "a-b".to_owned(),
            language: Language::DotNet,
            labels: vec![
                ("team.name".to_owned(), "one,two".to_owned()),
                ("service_name".to_owned(), "other".to_owned()),
                ("__name__".to_owned(), "wall".to_owned()),
            ],
            ..Origin::default()
        }
    }

    #[test]
    fn a_chosen_label_never_replaces_what_strata_says() {
        let mut cuts = Cuts::default();
        let labels = pyroscope_labels(&shop(), &[], &LIMITS, &mut cuts);
        let labels: Vec<(&str, &str)> =
            labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            labels,
            [
                ("__delta__", "false"),
                ("env", "prod"),
                ("pyroscope_spy", "dotnetspy"),
                ("service_name", "shop"),
                ("team_name", "one,two"),
            ]
        );
        assert_eq!(cuts.dropped_labels, 2);
    }

    #[test]
    fn processes_that_differ_in_nothing_else_are_one_instance_without_a_pid() {
        let one = shop().of_several();
        let other = Origin { pid: Some(8), runtime_id: "c-d".to_owned(), ..shop() }.of_several();
        assert_eq!(one, other);
        assert_eq!(one.pid, None);
        assert_ne!(one.runtime_id, shop().runtime_id);
        let of_next = Origin { version: "2".to_owned(), ..shop() }.of_several();
        assert_ne!(one.runtime_id, of_next.runtime_id);
    }

    #[test]
    fn a_process_id_is_a_label_only_when_asked_for() {
        let also = ["pid".to_owned()];
        let labels = pyroscope_labels(&shop(), &also, &LIMITS, &mut Cuts::default());
        assert!(labels.contains(&("pid".to_owned(), "7".to_owned())));
    }

    #[test]
    fn a_native_program_has_no_language_runtime_in_otlp() {
        let of = |language| {
            let origin = Origin { language, ..shop() };
            let attributes = otlp_attributes(&origin, &LIMITS, &mut Cuts::default());
            let found = attributes.into_iter().find(|(name, _)| name == "process.runtime.name");
            found.map(|(_, value)| value.into_text())
        };
        assert_eq!(of(Language::Native), None);
        assert_eq!(of(Language::Go).as_deref(), Some("go"));
    }

    #[test]
    fn a_program_whose_stacks_begin_in_gos_scheduler_is_a_go_program() {
        for (root, language) in
            [("runtime.goexit.abi0", Language::Go), ("__libc_start_main", Language::Native)]
        {
            let mut builder = strata_profile::ProfileBuilder::new(&[("samples", "count")]);
            let frame = builder.frame(strata_profile::FrameKind::Native, root, "", "", 0);
            builder.location(7, None, &[frame]);
            let of_one = builder.finish();
            assert_eq!(Language::of_native(&of_one), language);
            assert_eq!(Language::of_profile(&of_one), language);
        }
    }

    #[test]
    fn what_has_managed_frames_is_of_dotnet() {
        let mut builder = strata_profile::ProfileBuilder::new(&[("samples", "count")]);
        for (kind, name) in [
            (strata_profile::FrameKind::Native, "runtime.goexit"),
            (strata_profile::FrameKind::Managed, "Main"),
        ] {
            let frame = builder.frame(kind, name, "", "", 0);
            builder.location(name.len() as u64, None, &[frame]);
        }
        assert_eq!(Language::of_profile(&builder.finish()), Language::DotNet);
    }

    #[test]
    fn labels_over_the_limit_are_counted_and_leave_room_for_the_name() {
        let mut origin = shop();
        origin.labels = (0..50).map(|at| (format!("label{at}"), "x".to_owned())).collect();
        let mut cuts = Cuts::default();
        let labels = pyroscope_labels(&origin, &[], &LIMITS, &mut cuts);
        assert_eq!(labels.len(), 29);
        assert_eq!(cuts.dropped_labels, 50 - 25);
    }

    #[test]
    fn a_comma_in_a_value_makes_no_second_tag() {
        let tags = datadog_tags(&shop(), &LIMITS, &mut Cuts::default());
        assert!(tags.contains(&"team.name:one_two".to_owned()));
        assert!(tags.contains(&"runtime-id:a-b".to_owned()));
        assert!(tags.contains(&"process_id:7".to_owned()));
        assert!(tags.iter().all(|tag| !tag.contains(',')));
    }

    #[test]
    fn a_tag_never_replaces_a_fact_by_another_case_of_its_name() {
        let mut origin = shop();
        origin.namespace = "shop".to_owned();
        origin.labels = vec![("KUBE_NAMESPACE".to_owned(), "other".to_owned())];
        let mut cuts = Cuts::default();
        let mut tags = datadog_tags(&origin, &LIMITS, &mut cuts);
        tags.retain(|tag| tag.to_ascii_lowercase().starts_with("kube_namespace"));
        assert_eq!((tags, cuts.dropped_labels), (vec!["kube_namespace:shop".to_owned()], 1));
    }

    #[test]
    fn a_process_cannot_set_a_label_with_the_name_of_a_fact_of_its_host() {
        use strata_metadata::identity::is_reserved;
        for fact in FACTS {
            // A process may set these: they are of its build.
            if ["git_repository", "git_commit"].contains(&fact.own) {
                continue;
            }
            for name in [fact.pyroscope, fact.datadog, fact.otlp] {
                let is_field = ["service.name", "deployment.environment.name", "service.version"];
                let is_dropped = name.is_empty() || is_field.contains(&name) || is_reserved(name);
                assert!(is_dropped, "{name} is not reserved");
            }
        }
    }

    #[test]
    fn long_names_that_begin_alike_are_one_label_in_every_protocol() {
        let mut origin = shop();
        let long = |end: &str| (format!("{}{end}", "n".repeat(2_000)), "x".repeat(3_000));
        origin.labels = vec![long("one"), long("two")];
        let mut sent = Vec::new();
        for protocol in 0..3 {
            let mut cuts = Cuts::default();
            let mut names: Vec<String> = match protocol {
                0 => pyroscope_labels(&origin, &[], &LIMITS, &mut cuts)
                    .into_iter()
                    .map(|(name, _)| name)
                    .collect(),
                1 => datadog_tags(&origin, &LIMITS, &mut cuts)
                    .into_iter()
                    .map(|tag| tag.split(':').next().unwrap_or_default().to_owned())
                    .collect(),
                _ => otlp_attributes(&origin, &LIMITS, &mut cuts)
                    .into_iter()
                    .map(|(name, _)| name)
                    .collect(),
            };
            names.sort();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all, "a name is there twice");
            // The name and value of the label that is sent.
            sent.push((cuts.dropped_labels, cuts.shortened_texts));
        }
        assert_eq!(sent, [(1, 2); 3]);
    }
}
