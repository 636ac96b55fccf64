//! The daemon's log: its target and level, changeable at run time.
//!
//! journald and syslog use their documented protocols: datagrams with fields
//! (systemd.io/JOURNAL_NATIVE_PROTOCOL) and RFC 3164 lines. When they are unreachable, a line is
//! lost and the next one tries again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use strata_config::settings::LogLevel;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::Registry;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";

/// The target of lines.
#[derive(Debug)]
enum Target {
    Stderr,
    Journal(UnixDatagram),
    Syslog(UnixDatagram),
    File(File),
    None,
}

impl Target {
    fn open(name: &str) -> Result<Self> {
        Ok(match name {
            "stderr" => Self::Stderr,
            "none" => Self::None,
            "journald" => Self::Journal(socket().context("a socket for journald")?),
            "syslog" => Self::Syslog(socket().context("a socket for syslog")?),
            path => {
                let mut options = OpenOptions::new();
                let options = options.append(true).create(true).mode(0o640);
                let file = options.custom_flags(libc::O_NOFOLLOW).open(path);
                Self::File(file.with_context(|| format!("the log file {path} cannot be opened"))?)
            }
        })
    }

    fn write(&mut self, level: Level, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().write_all(line),
            Self::File(file) => file.write_all(line),
            Self::None => Ok(()),
            Self::Journal(socket) => socket.send_to(&journal_entry(level, line), JOURNAL).map(drop),
            Self::Syslog(socket) => {
                // Facility 3: daemons.
                let mut message =
                    format!("<{}>strata[{}]: ", 3 * 8 + priority(level), std::process::id())
                        .into_bytes();
                message.extend_from_slice(line.trim_ascii());
                socket.send_to(&message, SYSLOG).map(drop)
            }
        }
    }
}

/// A log that hangs delays no other part.
fn socket() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Fields with their length, so that a line may hold anything.
fn journal_entry(level: Level, line: &[u8]) -> Vec<u8> {
    let line = line.trim_ascii();
    let mut entry =
        format!("PRIORITY={}\nSYSLOG_IDENTIFIER=strata\nMESSAGE\n", priority(level)).into_bytes();
    entry.extend_from_slice(&(line.len() as u64).to_le_bytes());
    entry.extend_from_slice(line);
    entry.push(b'\n');
    entry
}

/// Hands lines to the target of the moment.
#[derive(Clone)]
struct Writers(Arc<Mutex<Target>>);

/// One line to be written.
struct Line {
    target: Arc<Mutex<Target>>,
    level: Level,
    text: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
            // There is no receiver for the error.
            let _ = target.write(self.level, &self.text);
        }
    }
}

impl<'a> MakeWriter<'a> for Writers {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { target: self.0.clone(), level: Level::INFO, text: Vec::new() }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Line {
        Line { target: self.0.clone(), level: *about.level(), text: Vec::new() }
    }
}

/// The log that has been started.
pub struct Log {
    target: Arc<Mutex<Target>>,
    name: String,
    level: reload::Handle<LevelFilter, Registry>,
}

impl Log {
    pub fn start(name: &str, level: LogLevel) -> Result<Self> {
        let target = Arc::new(Mutex::new(Target::open(name)?));
        let (filter, handle) = reload::Layer::new(filter(level));
        let lines = tracing_subscriber::fmt::layer()
            .with_target(false)
            .with_ansi(false)
            .with_writer(Writers(target.clone()));
        tracing_subscriber::registry().with(filter).with(lines).init();
        Ok(Self { target, name: name.to_owned(), level: handle })
    }

    /// Changes the target or the level. A file is reopened, so that it can be rotated.
    pub fn change(&mut self, name: &str, level: LogLevel) -> Result<()> {
        let opened = Target::open(name)?;
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        if self.name != name {
            tracing::info!("the log goes on here");
            name.clone_into(&mut self.name);
        }
        self.level.reload(filter(level)).context("the log's level cannot be changed")
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_entry_says_how_long_its_message_is() {
        let entry = journal_entry(Level::WARN, b"two\nlines\n");
        let expected = b"PRIORITY=4\nSYSLOG_IDENTIFIER=strata\nMESSAGE\n\
            \x09\0\0\0\0\0\0\0two\nlines\n";
        assert_eq!(entry, expected);
    }
}
