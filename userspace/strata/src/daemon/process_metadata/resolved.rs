//! The resolved identity of one runtime of a process, in the form for exporters and the store.

use std::sync::Arc;

use strata_config::rules::Decision;
use strata_export::origin::{Language, Origin};
use strata_metadata::identity::Sourced;
use strata_metadata::{Facts, Identity, Source};
use uuid::Uuid;

use crate::status::{self, Service};

/// One runtime of a process: its identity, and the treatment of its samples.
#[derive(Debug)]
pub struct ResolvedProcess {
    pub identity: Identity,
    pub decision: Decision,
    /// Without a sequence.
    pub origin: Arc<Origin>,
    /// Names and values for the store.
    pub labels: Vec<(String, String)>,
}

impl ResolvedProcess {
    /// Every value with where it comes from.
    pub(super) fn described(&self, pid: u32) -> Service {
        let identity = &self.identity;
        let sourced = |value: &str, source: Source| status::Sourced {
            value: value.to_owned(),
            from: source.name().to_owned(),
        };
        let maybe = |known: &Option<Sourced>| {
            known.as_ref().map(|known| sourced(&known.value, known.source))
        };
        let labels = identity.labels.iter();
        Service {
            pid,
            runtime_id: self.origin.runtime_id.to_string(),
            service: sourced(&identity.service.value, identity.service.source),
            env: maybe(&identity.env),
            version: maybe(&identity.version),
            labels: labels
                .map(|label| (label.name.clone(), sourced(&label.value, label.source)))
                .collect(),
            types: identity.types.on.iter().map(|kind| kind.name().to_owned()).collect(),
            enabled: self.decision.choice.enabled != Some(false),
            ignored: identity.ignored.iter().map(|name| (*name).to_owned()).collect(),
        }
    }
}

/// Facts that have a place of their own among those of an origin.
const OWN_PLACES: [&str; 5] = ["container_id", "container_name", "container", "namespace", "pod"];

pub(super) fn origin(
    identity: &Identity,
    facts: &Facts<'_>,
    host: &str,
    pid: u32,
    runtime_id: Uuid,
    language: Language,
) -> Origin {
    let value = |sourced: &Option<Sourced>| {
        sourced.as_ref().map(|sourced| sourced.value.clone()).unwrap_or_default()
    };
    let label = |name: &str| {
        let found = identity.labels.iter().find(|label| label.name == name);
        found.map(|label| label.value.clone())
    };
    let variable = |name: &str| {
        let value = facts.environment.get(name).map(String::from_utf8_lossy);
        value.and_then(|value| strata_metadata::text::value(&value, 512)).map(|(value, _)| value)
    };
    let git = |names: [&str; 2], name: &str| {
        names.into_iter().find_map(label).or_else(|| variable(name)).unwrap_or_default()
    };
    let others = identity.labels.iter().filter(|label| !OWN_PLACES.contains(&label.name.as_str()));
    Origin {
        service: identity.service.value.clone(),
        env: value(&identity.env),
        version: value(&identity.version),
        host: host.to_owned(),
        pid: Some(pid),
        runtime_id: runtime_id.to_string(),
        language,
        runtime_version: String::new(),
        container_id: label("container_id").unwrap_or_default(),
        container_name: label("container").or_else(|| label("container_name")).unwrap_or_default(),
        pod: label("pod").unwrap_or_default(),
        namespace: label("namespace").unwrap_or_default(),
        node: String::new(),
        git_repository: git(["git.repository_url", "service_repository"], "DD_GIT_REPOSITORY_URL"),
        git_commit: git(["git.commit.sha", "service_git_ref"], "DD_GIT_COMMIT_SHA"),
        cores: cores(),
        architecture: std::env::consts::ARCH.to_owned(),
        executable: facts.exe.unwrap_or_default().to_owned(),
        sequence: 0,
        target_labels: identity
            .labels
            .iter()
            .filter(|label| is_of_target(label.source))
            .map(|label| label.name.clone())
            .collect(),
        labels: others.map(|label| (label.name.clone(), label.value.clone())).collect(),
    }
}

/// Processors that this host has for strata. Asking reads the limits of control groups: once is enough.
fn cores() -> Option<u32> {
    static CORES: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    *CORES.get_or_init(|| {
        let cores = std::thread::available_parallelism().ok();
        cores.and_then(|cores| cores.get().try_into().ok())
    })
}

/// Labels that a process's own environment sets, for the backend that it expects them in.
fn is_of_target(source: Source) -> bool {
    matches!(source, Source::PyroscopeLabels | Source::DdTags | Source::OtelResourceAttributes)
}

pub(super) fn stored_labels(identity: &Identity) -> Vec<(String, String)> {
    let mut labels: Vec<(String, String)> =
        identity.labels.iter().map(|label| (label.name.clone(), label.value.clone())).collect();
    for (name, sourced) in [("env", &identity.env), ("version", &identity.version)] {
        if let Some(sourced) = sourced {
            labels.push((name.to_owned(), sourced.value.clone()));
        }
    }
    labels
}
