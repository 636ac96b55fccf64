//! Builds an exporter from its configuration: a backend, and an endpoint or folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::http::{Credential, EndpointSettings};
use crate::origin::Origin;
use crate::sample_labels::{Form, LabelRule};
use crate::{
    Address, Backend, CredentialSource, ExporterSettings, Secret, datadog, otlp, pyroscope,
};
use strata_config::Origin as Source;
use strata_config::exporters::{Api, ExporterConfig, Kind, Protocol};
use strata_config::rules::matches;
use strata_config::secret::Credential as Configured;
use strata_kinds::labels::SAMPLE_LABELS;

/// The destination of an exporter's profiles.
#[derive(Clone, Debug)]
pub enum Output {
    /// Through the delivery's exporter of the same name.
    Endpoint(Backend),
    /// Into a folder, as files.
    Folder(PathBuf),
}

/// One exporter, as the pipeline sees it.
#[derive(Clone, Debug)]
pub struct Exporter {
    pub name: String,
    pub output: Output,
    pub period: Duration,
    /// Names of labels that are sent.
    pub labels: Vec<String>,
    /// Whether labels that a process's own variables set are sent besides.
    pub target_labels: bool,
    /// Values that a label, or a fact that processes set, may have in an hour; further ones are sent
    /// as `other`.
    pub label_values: usize,
    /// Whether samples are sent with the times that were kept of them.
    pub timestamps: bool,
    /// Where its queue lies on disk, and how much that may take.
    pub spool: Option<(PathBuf, u64)>,
}

/// Why an exporter cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("exporter {exporter}: {why}")]
pub struct ExporterError {
    pub exporter: String,
    pub why: String,
}

/// The exporters of a configuration. `spools` is the folder of their spools, `memory` what each may
/// keep in memory.
pub fn of(
    configured: &[ExporterConfig],
    spools: Option<&Path>,
    memory: usize,
) -> Result<(Vec<Exporter>, Vec<ExporterSettings>), ExporterError> {
    let mut exporters = Vec::new();
    let mut plans = Vec::new();
    for exporter in configured {
        let output = match (&exporter.path, backend(exporter)) {
            (Some(path), _) => Output::Folder(path.value.clone()),
            (None, Some(backend)) => {
                plans.push(plan(exporter, backend.clone(), spools, memory)?);
                Output::Endpoint(backend)
            }
            (None, None) => continue,
        };
        exporters.push(Exporter {
            name: exporter.name.clone(),
            output,
            period: exporter.period.value,
            labels: exporter.labels.value.clone(),
            target_labels: exporter.target_labels.value,
            label_values: exporter.label_values.value as usize,
            timestamps: exporter.timestamps.value,
            spool: plans
                .last()
                .filter(|plan| plan.name == exporter.name)
                .and_then(|plan| Some((plan.spool_dir.clone()?, plan.spool_size))),
        });
    }
    Ok((exporters, plans))
}

fn backend(exporter: &ExporterConfig) -> Option<Backend> {
    let is_sent = |name: &str| exporter.labels.value.iter().any(|pattern| matches(pattern, name));
    Some(match exporter.kind {
        Kind::Pyroscope => {
            let mut settings = pyroscope::Settings {
                api: match exporter.api.value {
                    Api::Push => pyroscope::Api::Push,
                    Api::Ingest => pyroscope::Api::Ingest,
                },
                // A fact with a value for each process is sent only if it is named.
                more_labels: exporter.labels.value.clone(),
                ..pyroscope::Settings::default()
            };
            // A text makes a series of its own.
            settings.sample_labels.retain(|rule| rule.form == Form::Number || is_sent(&rule.own));
            settings.sample_labels.extend(own_labels(exporter, Form::Series));
            Backend::Pyroscope(settings)
        }
        Kind::Datadog => {
            let timestamps = exporter.timestamps.value;
            let mut settings = datadog::Settings { timestamps, ..datadog::Settings::default() };
            settings.sample_labels.retain(|rule| is_sent(&rule.own));
            settings.sample_labels.extend(own_labels(exporter, Form::AsItIs));
            Backend::Datadog(settings)
        }
        Kind::Otlp => {
            let mut settings = otlp::Settings {
                transport: match exporter.protocol.value {
                    Protocol::Http => otlp::Transport::Http,
                    Protocol::Grpc => otlp::Transport::Grpc,
                },
                timestamps: exporter.timestamps.value,
                ..otlp::Settings::default()
            };
            settings.sample_labels.retain(|rule| is_sent(&rule.own));
            settings.sample_labels.extend(own_labels(exporter, Form::AsItIs));
            Backend::Otlp(settings)
        }
        Kind::File => return None,
    })
}

/// Labels of samples that programs set, by the names and patterns of the configuration.
fn own_labels(exporter: &ExporterConfig, form: Form) -> impl Iterator<Item = LabelRule> {
    let is_strata = |name: &str| SAMPLE_LABELS.iter().any(|label| label.name == name);
    let names = exporter.labels.value.iter().filter(move |name| !is_strata(name));
    names.map(move |name| LabelRule::new(name, "", form))
}

fn plan(
    exporter: &ExporterConfig,
    backend: Backend,
    spools: Option<&Path>,
    memory: usize,
) -> Result<ExporterSettings, ExporterError> {
    let unusable = |why: String| ExporterError { exporter: exporter.name.clone(), why };
    let url = exporter.url.as_ref().map(|url| url.value.as_str()).unwrap_or_default();
    let address = Address::parse(url).map_err(|error| unusable(error.to_string()))?;
    let mut destination = EndpointSettings::new(address);
    destination.other_address = other_address(exporter);
    destination.timeout = exporter.timeout.value;
    destination.connect_timeout = exporter.timeout.value.min(destination.connect_timeout);
    destination.tenant = exporter.tenant.value.as_deref().map(Secret::new);
    let header = |(name, value): &(String, strata_config::Secret)| {
        (name.clone(), Secret::new(value.reveal()))
    };
    destination.headers = exporter.headers.iter().map(header).collect();
    if let Some(path) = &exporter.ca_file.value {
        let read = std::fs::read(path);
        destination.authorities =
            Some(read.map_err(|error| unusable(format!("{}: {error}", path.display())))?);
    }
    let user = || exporter.user.value.clone().unwrap_or_default();
    let mut source = CredentialSource::Settings;
    let token = exporter.token.as_ref().map(|token| &token.value);
    let password = exporter.password.as_ref().map(|password| &password.value);
    match (token, password) {
        (Some(Configured::Value(token)), _) => {
            destination.credential = Credential::Bearer(Secret::new(token.reveal()));
        }
        (Some(Configured::File(path)), _) => source = CredentialSource::TokenFile(path.clone()),
        (None, Some(Configured::Value(password))) => {
            let password = Secret::new(password.reveal());
            destination.credential = Credential::Basic { user: user(), password };
        }
        (None, Some(Configured::File(path))) => {
            source = CredentialSource::PasswordFile { user: user(), path: path.clone() };
        }
        (None, None) => {}
    }
    let mut plan = ExporterSettings::new(&exporter.name, backend, destination);
    plan.credential = source;
    plan.concurrency = exporter.concurrency.value as usize;
    plan.spacing = plan.backend.spacing(plan.concurrency);
    plan.spool_dir = spools.map(|folder| folder.join(folder_of(&exporter.name)));
    plan.spool_size = exporter.spool_size.value.0;
    // A batch is made when its oldest profile is as old as the period.
    plan.spool_age = exporter.spool_age.value.saturating_add(exporter.period.value);
    plan.memory = memory;
    Ok(plan)
}

/// An agent of Datadog's whose address is not configured listens at its socket or its port; which of
/// them is there when the settings are read is tried first. It may start later.
fn other_address(exporter: &ExporterConfig) -> Option<Address> {
    let url = exporter.url.as_ref()?;
    let found = match url.origin {
        Source::Found => true,
        Source::Default => false,
        Source::File { .. } | Source::Variable(_) | Source::Flag(_) => return None,
    };
    let other = datadog::agent_url(None, None, None, !found);
    (exporter.kind == Kind::Datadog).then(|| Address::parse(&other).ok()).flatten()
}

/// Whether each exporter can be set up as it is at the start, and with the credential of its file,
/// whatever that is: certificates and headers. Nothing is connected to, and no spool is touched.
pub fn try_out(plans: &[ExporterSettings]) -> Result<(), ExporterError> {
    for plan in plans {
        let mut destination = plan.destination.clone();
        if plan.credential != CredentialSource::Settings {
            destination.credential = Credential::Bearer(Secret::new("of the file"));
        }
        let tried = crate::Endpoint::new(plan.backend.clone(), &destination);
        tried.map_err(|error| ExporterError {
            exporter: plan.name.clone(),
            why: error.to_string(),
        })?;
    }
    Ok(())
}

/// An exporter's name as the name of a folder.
fn folder_of(name: &str) -> String {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => character,
        _ => '_',
    };
    let plain: String = name.chars().take(64).map(plain).collect();
    if plain == name {
        return plain;
    }
    // Two names that differ in what was replaced have folders of their own.
    format!("{plain}-{:016x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes()))
}

impl Exporter {
    /// An origin with the facts that this exporter may receive: the service always, the others if
    /// listed.
    pub fn shaped(&self, origin: &Origin) -> Origin {
        if self.labels.iter().any(|pattern| pattern == "*") {
            return origin.clone();
        }
        let is_sent = |name: &str| self.labels.iter().any(|pattern| matches(pattern, name));
        let mut shaped = origin.clone();
        for (name, value) in [
            ("env", &mut shaped.env),
            ("version", &mut shaped.version),
            ("host", &mut shaped.host),
            ("namespace", &mut shaped.namespace),
            ("pod", &mut shaped.pod),
            ("node", &mut shaped.node),
            ("container_id", &mut shaped.container_id),
            ("runtime_version", &mut shaped.runtime_version),
        ] {
            if !is_sent(name) {
                value.clear();
            }
        }
        if !is_sent("container_name") && !is_sent("container") {
            shaped.container_name.clear();
        }
        // A process's own variables set them.
        let git = [
            ("git_repository", &mut shaped.git_repository),
            ("git_commit", &mut shaped.git_commit),
        ];
        for (name, value) in git {
            if !is_sent(name) && !self.target_labels {
                value.clear();
            }
        }
        // Of OTLP's resources they are attributes like all others, of which a server may make series.
        if matches!(self.output, Output::Endpoint(Backend::Otlp(_))) {
            if !is_sent("pid") {
                shaped.pid = None;
            }
            if !is_sent("runtime_id") {
                shaped.runtime_id.clear();
            }
            if !is_sent("executable") {
                shaped.executable.clear();
            }
        }
        let is_target = |name: &String| self.target_labels && origin.target_labels.contains(name);
        shaped.labels.retain(|(name, _)| is_sent(name) || is_target(name));
        shaped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_exporters_become_folders_of_their_own() {
        assert_eq!(folder_of("pyroscope"), "pyroscope");
        let (one, other) = (folder_of("../a/b"), folder_of("../a_b"));
        assert_ne!(one, other);
        assert!(!one.contains('/') && !one.contains('.'));
    }

    #[test]
    fn what_no_server_could_be_asked_with_shows_when_it_is_tried_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "no certificate").expect("it can be written");
        let tried = |text: &str| {
            let text = format!("[exporter.prod]\nkind = \"pyroscope\"\nurl = \"http://h\"\n{text}");
            let inputs =
                strata_config::Inputs { file: Some(("test", &text)), ..Default::default() };
            let loaded = strata_config::load(&inputs).expect("a fine configuration");
            let (_, plans) = of(&loaded.configuration.exporters, None, 1).expect("files are read");
            try_out(&plans).map_err(|error| error.to_string())
        };
        assert_eq!(tried("token = \"t\"\nheaders = { X-Team = \"shop\" }\n"), Ok(()));
        assert_eq!(tried("headers = { Authorization = \"Other\" }\n"), Ok(()));
        for (text, why) in [
            (format!("ca_file = \"{}\"\n", empty.display()), "has no certificate"),
            ("headers = { Host = \"a\" }\n".to_owned(), "Host is strata's own"),
            ("token = \"t\"\nheaders = { Authorization = \"a\" }\n".to_owned(), "Authorization"),
            (
                "token_file = \"/t\"\nheaders = { Authorization = \"a\" }\n".to_owned(),
                "Authorization",
            ),
        ] {
            let error = tried(&text).expect_err(&text);
            assert!(error.starts_with("exporter prod: ") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn an_exporter_gets_what_is_listed_and_the_service() {
        let exporter = Exporter {
            name: "one".into(),
            output: Output::Folder("/nowhere".into()),
            period: Duration::from_secs(15),
            labels: vec!["env".into(), "team*".into()],
            target_labels: true,
            label_values: 100,
            timestamps: false,
            spool: None,
        };
        let origin = Origin {
            service: "shop".into(),
            env: "prod".into(),
            version: "7".into(),
            pod: "cart-1".into(),
            labels: vec![
                ("team_name".into(), "a".into()),
                ("user".into(), "b".into()),
                ("squad".into(), "c".into()),
            ],
            // Set in PYROSCOPE_LABELS, say.
            target_labels: vec!["squad".into()],
            ..Origin::default()
        };
        let shaped = exporter.shaped(&origin);
        assert_eq!((shaped.service.as_str(), shaped.env.as_str()), ("shop", "prod"));
        assert_eq!((shaped.version.as_str(), shaped.pod.as_str()), ("", ""));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(shaped.labels, [pair("team_name", "a"), pair("squad", "c")]);
        let without = Exporter { target_labels: false, ..exporter.clone() };
        assert_eq!(without.shaped(&origin).labels, [pair("team_name", "a")]);
        let all = Exporter { labels: vec!["*".into()], ..exporter };
        assert_eq!(all.shaped(&origin), origin);
    }
}
