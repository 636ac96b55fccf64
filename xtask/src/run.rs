//! Runs programs: quietly with a log and a progress line, with visible output, or captured.
//!
//! Invariant: a failure names the program, shows the end of its output and where the rest is.

use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::project;

const POLL: Duration = Duration::from_millis(50);
/// How often progress is printed without a terminal.
const HEARTBEAT: Duration = Duration::from_secs(15);
const LINES_OF_A_FAILURE: usize = 25;

/// Runs `command` with its output in a log; prints `label` and how long it took.
pub fn quietly(label: &str, command: &mut Command) -> Result<()> {
    let directory = project::cache().join("log");
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {directory:?}"))?;
    let log = directory.join(format!("{}.log", file_name_of(label)));
    let output = File::create(&log).with_context(|| format!("cannot create {log:?}"))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);

    let progress = Progress::start(label);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        progress.tick();
        thread::sleep(POLL);
    };
    if status.success() {
        progress.done("done");
        return Ok(());
    }
    progress.done("failed");
    bail!("{} ({status})\n{}\nthe whole log: {}", shown(command), end_of(&log), log.display());
}

/// Runs `command` with this program's own terminal.
pub fn aloud(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ({status})", shown(command));
    }
    Ok(())
}

/// What `command` writes to its standard output.
pub fn output_of(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("{} ({})\n{}", shown(command), output.status, message.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The SHA-256 of a file, in hex, by coreutils: not worth a crate that delays every command.
pub fn sha256_of(file: &Path) -> Result<String> {
    let line = output_of(Command::new("sha256sum").arg("--").arg(file))?;
    // A name with a backslash or a line break makes sha256sum begin its line with a backslash.
    let digest = line.trim_start_matches('\\').split_whitespace().next().unwrap_or_default();
    Ok(digest.to_owned())
}

/// A progress line: redrawn on a terminal, repeated rarely elsewhere.
pub struct Progress<'a> {
    label: &'a str,
    start: Instant,
    shown: std::cell::Cell<Duration>,
    terminal: bool,
}

impl<'a> Progress<'a> {
    pub fn start(label: &'a str) -> Self {
        let terminal = std::io::stderr().is_terminal();
        eprint!("· {label} …{}", if terminal { "" } else { "\n" });
        _ = std::io::stderr().flush();
        Progress { label, start: Instant::now(), shown: Duration::ZERO.into(), terminal }
    }

    pub fn tick(&self) {
        let elapsed = self.start.elapsed();
        let step = if self.terminal { Duration::from_secs(1) } else { HEARTBEAT };
        if elapsed < self.shown.get() + step {
            return;
        }
        self.shown.set(elapsed);
        if self.terminal {
            eprint!("\r· {} … {} s", self.label, elapsed.as_secs());
            _ = std::io::stderr().flush();
        } else {
            eprintln!("· {} … still at it after {} s", self.label, elapsed.as_secs());
        }
    }

    pub fn done(self, how: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        let start = if self.terminal { "\r" } else { "" };
        eprintln!("{start}· {}: {how} in {seconds:.1} s", self.label);
    }
}

/// A command as typed in a shell (for messages; not meant to be parsed back).
pub fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:+,@%".contains(c);
            if !word.is_empty() && word.chars().all(plain) {
                word.into_owned()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

fn file_name_of(label: &str) -> String {
    let name: String = label
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
        .take(60)
        .collect();
    name.trim_matches('-').to_owned()
}

fn end_of(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(LINES_OF_A_FAILURE);
    lines.iter().skip(skipped).map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
