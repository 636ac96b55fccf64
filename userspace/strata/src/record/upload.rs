//! `strata record --upload`: sends a recording to a server, with the code of the daemon's
//! exporters.
//!
//! Credentials come from where the daemon has them: the environment (`PYROSCOPE_AUTH_TOKEN`,
//! `STRATA_EXPORTER_OTLP_TOKEN`, …), never the command line, which every user of the host can read.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use strata_config::{Flag, Inputs};
use strata_export::origin::{Language, Origin};
use strata_export::{Backend, Outgoing};
use strata_export::{Clock, ExporterSettings, Queues};
use strata_profile::Profile;
use uuid::Uuid;

use strata_agent::host;
use strata_export::exporter::{self, Exporter, Output};

/// The options.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub url: String,
    /// `pyroscope`, `datadog` or `otlp`; guessed from the URL by default.
    pub kind: Option<&'static str>,
    pub service: String,
    pub env: String,
    pub version: String,
}

/// Everything that can be wrong was looked at.
#[derive(Debug)]
pub struct Upload {
    wanted: Wanted,
    exporter: Exporter,
    backend: Backend,
    plan: ExporterSettings,
    /// As the environment has it.
    host: Option<String>,
}

/// A server that does not answer is given up after this.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of batches in memory: a recording is sent in one go.
const MEMORY: usize = 1 << 30;

impl Upload {
    pub fn prepare(wanted: Wanted) -> Result<Self> {
        let kind = wanted.kind.unwrap_or_else(|| kind_of(&wanted.url));
        let flag = |key: &str, value: &str| Flag {
            name: "--upload".into(),
            key: format!("exporter.{kind}.{key}"),
            value: value.into(),
        };
        let mut flags = vec![flag("url", &wanted.url)];
        if kind == "otlp" && has_port(&wanted.url, "4317") {
            flags.push(flag("protocol", "grpc"));
        }
        let environment: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let inputs = Inputs { environment: &environment, flags: &flags, ..Inputs::default() };
        let loaded = strata_config::load(&inputs).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("{}", problems.join("\n"))
        })?;
        let host = loaded.configuration.host.value;
        let configured: Vec<_> = loaded
            .configuration
            .exporters
            .into_iter()
            .filter(|exporter| exporter.name == kind)
            .collect();
        let (mut exporters, mut plans) = exporter::of(&configured, None, MEMORY)?;
        let (Some(exporter), Some(plan)) = (exporters.pop(), plans.pop()) else {
            bail!(
                "cannot upload to {}: write it as http://HOST:PORT, https://HOST or unix:///PATH",
                wanted.url
            );
        };
        let Output::Endpoint(backend) = exporter.output.clone() else {
            bail!(
                "cannot upload to {}: write it as http://HOST:PORT, https://HOST or unix:///PATH",
                wanted.url
            );
        };
        let mut plan = plan;
        // The user waits for the answer.
        plan.keeps_denied = false;
        // The profile is in a file then.
        plan.reports_losses = false;
        Ok(Self { wanted, exporter, backend, plan, host })
    }

    /// Sends it; returns the message for the user.
    pub fn send(self, profile: &Arc<Profile>) -> Result<String> {
        let Self { wanted, exporter, backend, plan, host } = self;
        let origin = Origin {
            service: wanted.service.clone(),
            env: wanted.env,
            version: wanted.version,
            host: host.unwrap_or_else(|| host::name().to_owned()),
            pid: Some(pid_of(profile)),
            container_id: container_of(profile),
            language: Language::of_profile(profile),
            runtime_id: Uuid::new_v4().to_string(),
            architecture: std::env::consts::ARCH.to_owned(),
            ..Origin::default()
        };
        let origin = Arc::new(exporter.shaped(&origin));
        let encoded = backend.encode(
            &[Outgoing { profile: profile.clone(), origin }],
            &mut strata_export::EncoderState::default(),
        );
        let batches = encoded.batches.len() as u64;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the event loop cannot be started")?;
        let name = plan.name.clone();
        let health = runtime.block_on(async {
            let delivery = Queues::start(vec![plan], Clock::real()).await?;
            for batch in encoded.batches {
                delivery.enqueue(&name, batch)?;
            }
            Ok::<_, anyhow::Error>(delivery.shutdown(PATIENCE).await)
        })?;
        let exporter = health.first().context("the upload was not made")?;
        if batches == 0 {
            bail!("there was nothing to upload: no sample of a type that the server takes");
        }
        if exporter.rejected_profiles > 0 {
            bail!("{} accepted the profile but did not store it: see the server's log", wanted.url);
        }
        if exporter.delivered.batches < batches {
            let trouble = exporter.last_refusal.as_ref().or(exporter.last_error.as_ref());
            let why = trouble.map_or("no answer in time", |trouble| trouble.reason.as_str());
            bail!("the profile was not uploaded to {}: {why}", wanted.url);
        }
        Ok(format!("uploaded to {} as {}", wanted.url, wanted.service))
    }
}

/// The process that the recording is of; strata's own for one of several.
fn pid_of(profile: &Profile) -> u32 {
    let mut pids = profile.threads().iter().map(|thread| thread.pid);
    let first = pids.next().filter(|first| pids.all(|pid| pid == *first));
    first.unwrap_or_else(std::process::id)
}

/// The container that the recording is of, if it is of one.
fn container_of(profile: &Profile) -> String {
    let mut containers = profile.threads().iter().map(|thread| thread.container);
    let first = containers.next().filter(|first| containers.all(|container| container == *first));
    first.map_or_else(String::new, |container| profile.string(container).to_owned())
}

fn has_port(url: &str, port: &str) -> bool {
    let after = url.split(':').skip(1);
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).count();
    after.filter_map(|text| text.get(..digits(text))).any(|number| number == port)
}

/// Which kind of server listens at such an address.
fn kind_of(url: &str) -> &'static str {
    let is_otlp = ["4317", "4318"].iter().any(|port| has_port(url, port));
    if is_otlp || url.contains("/v1development/profiles") {
        "otlp"
    } else if url.starts_with("unix:") || has_port(url, "8126") {
        "datadog"
    } else {
        "pyroscope"
    }
}

#[cfg(test)]
mod tests {
    use strata_export::otlp::Transport;

    use super::*;

    fn wanted(url: &str) -> Wanted {
        Wanted {
            url: url.into(),
            kind: None,
            service: "s".into(),
            env: String::new(),
            version: String::new(),
        }
    }

    #[test]
    fn the_kind_of_server_is_guessed_from_its_address() {
        for (url, kind) in [
            ("http://pyroscope:4040", "pyroscope"),
            ("https://profiles.example.com", "pyroscope"),
            ("http://collector:4318", "otlp"),
            ("https://collector/v1development/profiles", "otlp"),
            ("http://agent:8126", "datadog"),
            ("unix:///var/run/datadog/apm.socket", "datadog"),
        ] {
            assert_eq!(kind_of(url), kind, "{url}");
        }
    }

    #[test]
    fn the_port_of_grpc_is_spoken_to_in_grpc_also_where_the_kind_is_named() {
        for (kind, url, transport) in [
            (None, "http://collector:4317", Transport::Grpc),
            (Some("otlp"), "http://collector:4317", Transport::Grpc),
            (Some("otlp"), "http://collector:4318", Transport::Http),
            (Some("otlp"), "http://collector:43170", Transport::Http),
        ] {
            let upload = Upload::prepare(Wanted { kind, ..wanted(url) }).expect("an address");
            let Backend::Otlp(settings) = upload.backend else { panic!("{:?}", upload.backend) };
            assert_eq!(settings.transport, transport, "{kind:?} {url}");
        }
    }

    #[test]
    fn a_recording_of_one_container_is_that_containers() {
        for (containers, expected) in
            [(["c0ffee", "c0ffee"], "c0ffee"), (["c0ffee", ""], ""), (["", ""], "")]
        {
            let mut builder = strata_profile::ProfileBuilder::of_kinds(strata_kinds::Kinds::NONE);
            for (tid, container) in (7..).zip(containers) {
                builder.thread(7, tid, "worker", "shop", container);
            }
            assert_eq!(container_of(&builder.finish()), expected, "{containers:?}");
        }
    }

    #[test]
    fn what_is_no_address_is_said_before_anything_is_recorded() {
        let refused = Upload::prepare(wanted("ftp://x")).expect_err("no such scheme");
        assert!(refused.to_string().contains("--upload"), "{refused}");
        assert!(Upload::prepare(wanted("http://127.0.0.1:4040")).is_ok());
    }
}
