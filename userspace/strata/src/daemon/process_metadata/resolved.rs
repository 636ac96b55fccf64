//! The resolved identity of one runtime of a process, in the form for exporters and the store.

use std::sync::Arc;

use strata_config::rules::Decision;
use strata_export::origin::{CLAIMABLE, Language, Origin};
use strata_metadata::identity::Sourced;
use strata_metadata::text::{self, Limits};
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
    let is_claim = |sourced: &Option<Sourced>| {
        sourced.as_ref().is_some_and(|sourced| sourced.source.is_claim())
    };
    let found = |name: &str| identity.labels.iter().find(|label| label.name == name);
    let label = |name: &str| found(name).map(|label| label.value.clone());
    let variable = |name: &str| {
        let value = facts.environment.get(name).map(String::from_utf8_lossy)?;
        let (value, _) = text::value(&text::without_userinfo(&value), Limits::LABEL_VALUE)?;
        Some((value, true))
    };
    // The value, and whether the process itself set it.
    let git = |names: [&str; 2], name: &str| {
        let label = names.into_iter().find_map(found);
        let label = label.map(|label| (label.value.clone(), label.source.is_claim()));
        label.or_else(|| variable(name)).unwrap_or_default()
    };
    let (git_repository, claims_repository) =
        git(["git.repository_url", "service_repository"], "DD_GIT_REPOSITORY_URL");
    let (git_commit, claims_commit) =
        git(["git.commit.sha", "service_git_ref"], "DD_GIT_COMMIT_SHA");
    let are_claims =
        [is_claim(&identity.env), is_claim(&identity.version), claims_repository, claims_commit];
    let claimed = CLAIMABLE.iter().zip(are_claims).filter(|(_, is_claim)| *is_claim);
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
        git_repository,
        git_commit,
        cores: cores(),
        architecture: std::env::consts::ARCH.to_owned(),
        executable: facts.exe.unwrap_or_default().to_owned(),
        sequence: 0,
        target_labels: identity
            .labels
            .iter()
            .filter(|label| label.source.is_claim())
            .map(|label| label.name.clone())
            .collect(),
        claimed_facts: claimed.map(|(name, _)| (*name).to_owned()).collect(),
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

#[cfg(test)]
mod tests {
    use strata_kinds::Kinds;
    use strata_metadata::{Choice, Container, Environment, identify};

    use super::*;

    fn origin_of(facts: &Facts<'_>, choice: &Choice) -> Origin {
        let identity = identify(facts, choice, Kinds::NONE);
        origin(&identity, facts, "host", 7, Uuid::nil(), Language::Native)
    }

    #[test]
    fn values_that_the_process_sets_are_known_from_those_of_rules_and_containers() {
        let block = b"DD_ENV=a\0DD_VERSION=1\0DD_GIT_COMMIT_SHA=c0ffee\0\
            DD_TAGS=git.repository_url:https://host/x,team:b\0";
        let facts = Facts { environment: Environment::new(block), ..Facts::default() };
        let origin = origin_of(&facts, &Choice::default());
        assert_eq!(origin.claimed_facts, CLAIMABLE);
        assert_eq!(origin.target_labels, ["git.repository_url", "team"]);
        let pairs = [("git.repository_url", "https://host/y"), ("team", "c")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let choice = Choice { env: Some("b".into()), labels: pairs.into(), ..Choice::default() };
        let origin = origin_of(&facts, &choice);
        assert_eq!(origin.claimed_facts, ["version", "git_commit"]);
        assert!(origin.target_labels.is_empty());
        let labels = vec![("com.datadoghq.tags.version".to_owned(), "2".to_owned())];
        let container = Container { labels, ..Container::default() };
        let facts = Facts { container: Some(&container), ..Facts::default() };
        let origin = origin_of(&facts, &Choice::default());
        assert_eq!((origin.version.as_str(), origin.claimed_facts.len()), ("2", 0));
    }

    #[test]
    fn no_token_of_a_repository_is_kept() {
        for variable in [
            "DD_GIT_REPOSITORY_URL=https://ci:secret@host/x.git",
            "DD_TAGS=git.repository_url:https://ci:secret@host/x.git",
            "PYROSCOPE_LABELS=service_repository=https://ci:secret@host/x.git",
        ] {
            let facts =
                Facts { environment: Environment::new(variable.as_bytes()), ..Facts::default() };
            let origin = origin_of(&facts, &Choice::default());
            assert_eq!(origin.git_repository, "https://host/x.git");
            assert!(!format!("{origin:?}").contains("secret"), "{variable}");
        }
    }
}
