//! The daemon's configuration: where it is read from, and how its problems are reported.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use strata_agent::managed::events::KINDS as CLR_EVENTS;
use strata_config::{Configuration, Flag, Inputs, Loaded};
use strata_export::datadog::DEFAULT_SOCKET;
use strata_kinds::{Frequencies, Kind, Kinds};

use crate::doctor::NeedsRoot;
use crate::printing::message;

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
        let path = self.path();
        let text = match &path {
            None => None,
            Some(path) => Some(read(path)?),
        };
        self.with_inputs(text.as_deref(), strata_config::load).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("the configuration has {}", listed(&problems))
        })
    }

    /// The status socket, whatever problems the rest of the configuration has; of a file that cannot
    /// be read the default.
    fn status_socket(&self) -> Option<PathBuf> {
        let text = self.path().and_then(|path| read(&path).ok());
        self.with_inputs(text.as_deref(), strata_config::status_socket)
    }

    /// `text`: of the file, if there is one.
    fn with_inputs<T>(&self, text: Option<&str>, of: impl FnOnce(&Inputs<'_>) -> T) -> T {
        let environment: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let name = self.shown();
        let file = text.map(|text| (name.as_str(), text));
        let agent_socket = is_socket(DEFAULT_SOCKET).then_some(DEFAULT_SOCKET);
        of(&Inputs { file, environment: &environment, flags: &self.flags, agent_socket })
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

/// The status socket of this host's daemon, likewise; but of a configuration with problems too: the
/// daemon that runs may have read another.
pub fn status_socket(asked: Option<PathBuf>, file: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(path) = asked {
        return Ok(path);
    }
    let source = Source { file, flags: Vec::new() };
    let socket = match source.load() {
        Ok(loaded) => loaded.configuration.status_socket.value,
        // Its socket is root's too.
        Err(error) if error.is::<NeedsRoot>() => {
            return Err(error.context("--socket PATH names the daemon's socket itself"));
        }
        Err(error) => {
            message!("strata: {}", first_problem(&error.to_string()));
            source.status_socket()
        }
    };
    match socket {
        Some(path) => Ok(path),
        None => bail!("the daemon serves no status: metrics.socket is empty in its configuration"),
    }
}

/// Whether a process listens, or did, at a path.
fn is_socket(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// The first problem of an error of [`Source::load`], in one line.
fn first_problem(error: &str) -> String {
    error.lines().take(2).collect::<Vec<_>>().join(": ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_socket_is_found_although_the_configuration_has_problems() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("strata.toml");
        let of = |text: &str| {
            std::fs::write(&file, text).expect("it is written");
            status_socket(None, Some(file.clone())).map_err(|error| error.to_string())
        };
        let default = PathBuf::from("/run/strata/status.sock");
        let own = PathBuf::from("/run/own.sock");
        assert_eq!(of("[metrics]\nsocket = \"/run/own.sock\"\ncolour = 1\n"), Ok(own.clone()));
        assert_eq!(of("memory_limit = 1\n"), Ok(default.clone()));
        assert_eq!(of("[metrics\nsocket = \"/run/own.sock\"\n"), Ok(default.clone()));
        let none = of("[metrics]\nsocket = \"\"\ncolour = 1\n");
        assert!(none.is_err_and(|error| error.contains("serves no status")));
        std::fs::remove_file(&file).expect("it is there");
        assert_eq!(status_socket(None, Some(file)).ok(), Some(default));
    }

    #[test]
    fn a_problem_is_one_line_with_its_place() {
        let problems = ["a.toml:2:1: unknown key\n2 | colour = 1".to_owned()];
        let error = format!("the configuration has {}", listed(&problems));
        assert_eq!(
            first_problem(&error),
            "the configuration has a problem: a.toml:2:1: unknown key"
        );
        assert_eq!(first_problem("it cannot be read"), "it cannot be read");
    }
}
