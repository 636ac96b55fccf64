//! The daemon's configuration: where it is read from, and how its problems are reported.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use strata_agent::managed::events::KINDS as CLR_EVENTS;
use strata_config::{Configuration, Flag, Inputs, Loaded};
use strata_export::datadog::DEFAULT_SOCKET;
use strata_kinds::{Frequencies, Kind, Kinds};

use crate::doctor::NeedsRoot;

/// Read if it exists and no other file is given.
pub const DEFAULT_FILE: &str = "/etc/strata/strata.toml";

/// Larger files are refused.
const MOST_BYTES: u64 = 1 << 20;

/// The sources of the configuration.
#[derive(Clone, Default)]
pub struct Source {
    /// As given; else [`DEFAULT_FILE`] if it exists.
    pub file: Option<PathBuf>,
    pub flags: Vec<Flag>,
}

impl Source {
    /// The file that is read, if there is one.
    pub fn path(&self) -> Option<PathBuf> {
        let default = || {
            let path = PathBuf::from(DEFAULT_FILE);
            path.exists().then_some(path)
        };
        self.file.clone().or_else(default)
    }

    /// Reads everything again. The error lists all problems.
    pub fn load(&self) -> Result<Loaded> {
        let environment: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let path = self.path();
        let text = match &path {
            None => None,
            Some(path) => Some(read(path)?),
        };
        let name = path.map(|path| path.display().to_string()).unwrap_or_default();
        let file = text.as_deref().map(|text| (name.as_str(), text));
        let agent_socket = is_socket(DEFAULT_SOCKET).then_some(DEFAULT_SOCKET);
        let inputs = Inputs { file, environment: &environment, flags: &self.flags, agent_socket };
        strata_config::load(&inputs).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("the configuration has {}", listed(&problems))
        })
    }

    pub fn shown(&self) -> String {
        self.path().map(|path| path.display().to_string()).unwrap_or_default()
    }
}

/// The store's directory of this host's daemon: as given, else from its configuration.
pub fn store_directory(asked: Option<PathBuf>, file: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(directory) = asked {
        return Ok(directory);
    }
    let source = Source { file, flags: Vec::new() };
    let store = source.load().context("--store DIR names the store itself")?.configuration.store;
    if !store.enabled.value {
        bail!(
            "the daemon keeps no store: store.enabled is false ({}); --store DIR reads one that was \
             kept before",
            store.enabled.origin
        );
    }
    Ok(store.path.value)
}

/// The status socket of this host's daemon, likewise.
pub fn status_socket(asked: Option<PathBuf>, file: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(path) = asked {
        return Ok(path);
    }
    let source = Source { file, flags: Vec::new() };
    let loaded = source.load().context("--socket PATH names the daemon's socket itself")?;
    match loaded.configuration.status_socket.value {
        Some(path) => Ok(path),
        None => bail!("the daemon serves no status: metrics.socket is empty in its configuration"),
    }
}

/// Whether a process listens, or did, at a path.
fn is_socket(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

pub fn listed(problems: &[String]) -> String {
    match problems {
        [one] => format!("a problem\n{one}"),
        many => format!("{} problems\n{}", many.len(), many.join("\n")),
    }
}

fn read(path: &std::path::Path) -> Result<String> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let text = format!("the configuration {shown} cannot be read: {error}");
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => NeedsRoot(text).into(),
            _ => anyhow::Error::msg(text),
        }
    };
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > MOST_BYTES {
        bail!("the configuration {shown} has {size} bytes; more than {MOST_BYTES} are not read");
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

/// Samples a second of each kind that the kernel takes: the most that any setting asks for.
pub fn kernel_frequencies(configuration: &Configuration) -> Frequencies {
    let rules = configuration.rules.iter().flat_map(|rule| &rule.frequencies);
    let of_rules = rules.filter_map(|(kind, frequency)| Some((*kind, frequency.value?)));
    of_rules.fold(configuration.frequencies(), |most, (kind, frequency)| {
        most.with(kind, most.of(kind).max(frequency))
    })
}

/// Whether exporters are sent the times of samples.
pub fn exports_times(configuration: &Configuration) -> bool {
    configuration.exporters.iter().any(|exporter| exporter.timestamps.value)
}

/// The kinds that some process may be sampled by. Wall-clock and off-CPU time and events of the CLR have
/// programs of their own, which must be chosen; the environment of a process may switch the others.
pub fn sampled_kinds(configuration: &Configuration) -> Kinds {
    let rules = configuration.rules.iter().filter_map(|rule| rule.types.value);
    let chosen = rules.fold(configuration.types.value, Kinds::or);
    let costly = CLR_EVENTS.with(Kind::Wall, true).with(Kind::OffCpu, true);
    let is_sampled = |kind: &Kind| chosen.contains(*kind) || !costly.contains(*kind);
    Kinds::all().iter().filter(is_sampled).collect()
}

/// The kinds of which the time of every sample is kept, for the store or an exporter: according to
/// the table.
pub fn kept_times(configuration: &Configuration) -> Kinds {
    let store = &configuration.store;
    let by_rule = configuration.rules.iter().any(|rule| rule.timestamps.value == Some(true));
    let stored = store.enabled.value && (store.timestamps.value || by_rule);
    let is_kept = stored || exports_times(configuration);
    Kinds::all().iter().filter(|kind| is_kept && kind.info().keeps_times).collect()
}
