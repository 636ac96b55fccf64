//! The same recording by Linux perf, as the reference for shares and the baseline for cost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::places;
use crate::running::{Running, run, wait_until};
use crate::stacks::{Frame, Stack, Stacks};

/// How perf takes user stacks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallGraph {
    /// By frame pointers, in the kernel.
    FramePointer,
    /// By copying 8 KiB of stack and unwinding afterwards.
    Dwarf,
}

/// A running `perf record`.
pub struct PerfRecording {
    running: Running,
    folder: TempDir,
}

/// The data it wrote.
pub struct PerfData {
    folder: TempDir,
}

/// Starts `perf record` on the whole host, or on one process.
pub fn record(frequency: u32, call_graph: CallGraph, pid: Option<i32>) -> Result<PerfRecording> {
    let perf = places::required("perf", "linux-perf")?;
    let folder = tempfile::Builder::new().prefix("strata-perf-").tempdir()?;
    let mut command = Command::new(perf);
    command.args(["record", "-e", "cpu-clock", "-F", &frequency.to_string(), "-m", "16M"]);
    match call_graph {
        CallGraph::FramePointer => command.arg("-g"),
        CallGraph::Dwarf => command.args(["--call-graph", "dwarf,8192"]),
    };
    match pid {
        Some(pid) => command.args(["-p", &pid.to_string()]),
        None => command.arg("-a"),
    };
    command.arg("-o").arg(folder.path().join("perf.data"));
    let running = Running::from_command(command)?;
    let data = folder.path().join("perf.data");
    let has_begun = || std::fs::metadata(&data).is_ok_and(|m| m.len() > 0);
    wait_until("perf records", Duration::from_secs(60), has_begun)?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(PerfRecording { running, folder })
}

impl PerfRecording {
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Ends the recording as Ctrl-C does.
    pub fn stop(self) -> Result<PerfData> {
        self.running.signal(Signal::INT)?;
        self.running.wait(Duration::from_secs(120))?;
        Ok(PerfData { folder: self.folder })
    }
}

impl PerfData {
    fn path(&self) -> PathBuf {
        self.folder.path().join("perf.data")
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        std::fs::metadata(self.path()).map_or(0, |m| m.len())
    }

    /// Each function's own share of the samples, in percent, as `perf report` prints it.
    pub fn report(&self) -> Result<Vec<(String, f64)>> {
        let options = [
            "--no-children",
            "-g",
            "none",
            "--stdio",
            "--no-inline",
            "-F",
            "overhead,sym",
            "-w",
            "12,200",
        ];
        let text = self.perf("report", &options)?;
        let mut shares = Vec::new();
        for line in text.lines().filter(|l| !l.starts_with('#') && l.contains('%')) {
            // "    49.53%  [.] burn_fifty"
            let (percent, rest) = line.trim().split_once('%').context("a percentage")?;
            let name = rest.split_once("] ").map_or(rest, |(_, name)| name);
            shares.push((name.trim().to_string(), percent.trim().parse()?));
        }
        Ok(shares)
    }

    /// The samples as stacks.
    pub fn stacks(&self) -> Result<Stacks> {
        let text = self.perf("script", &["--no-inline", "-F", "comm,pid,tid,ip,sym,dso"])?;
        parse_script(&text)
    }

    fn perf(&self, verb: &str, options: &[&str]) -> Result<String> {
        let mut command = Command::new(places::required("perf", "linux-perf")?);
        command.arg(verb).arg("-i").arg(self.path()).args(options);
        let done = run(&mut command)?;
        if !done.status.success() {
            bail!("perf {verb}: {}", done.stderr);
        }
        Ok(done.stdout)
    }
}

/// Reads the text of `perf script -F comm,pid,tid,ip,sym,dso` (strata's `.perf` output has the same
/// form, with more fields in the head line).
pub fn parse_script(text: &str) -> Result<Stacks> {
    let mut stacks = Vec::new();
    let mut current: Option<Stack> = None;
    for line in text.lines() {
        if line.trim().is_empty() {
            stacks.extend(current.take());
        } else if !line.starts_with(char::is_whitespace) {
            stacks.extend(current.take());
            current = Some(head(line));
        } else if let Some(stack) = current.as_mut() {
            stack.frames.push(frame(line)?);
        }
    }
    stacks.extend(current);
    Ok(Stacks { stacks })
}

/// `comm with spaces  123/456 …` or `comm 123 …`
fn head(line: &str) -> Stack {
    let mut stack = Stack { count: 1, ..Stack::default() };
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_id =
        |w: &&str| w.split('/').all(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit()));
    let at = words.iter().skip(1).position(is_id).map_or(words.len(), |at| at + 1);
    stack.labels.insert("comm".to_string(), words.get(..at).unwrap_or_default().join(" "));
    if let Some(ids) = words.get(at) {
        let (pid, tid) = ids.split_once('/').unwrap_or((ids, ids));
        stack.labels.insert("pid".to_string(), pid.to_string());
        stack.labels.insert("tid".to_string(), tid.to_string());
    }
    stack
}

/// `    55d0c8a3 name+0x12 (/path)`
fn frame(line: &str) -> Result<Frame> {
    let (address, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let address =
        u64::from_str_radix(address, 16).with_context(|| format!("no address: {line}"))?;
    let (name, file) = rest.rsplit_once(" (").unwrap_or((rest, ""));
    let name = name.rsplit_once("+0x").map_or(name, |(name, _)| name);
    let file = file.trim_end_matches(')').to_string();
    Ok(Frame { name: name.trim().to_string(), file, address, ..Frame::default() })
}

/// Reads a file with the output of `perf script`.
pub fn read_script(path: &Path) -> Result<Stacks> {
    parse_script(&std::fs::read_to_string(path)?)
}
