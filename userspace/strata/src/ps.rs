//! `strata ps`: the .NET processes of this host, and the state of their bridges.
//!
//! Read only: nothing is loaded, attached or locked. Runtimes inside their program are asked for
//! their version over their diagnostics socket.

use anyhow::Result;
use serde_json::{Value, json};
use strata_agent::managed::events::wished;
use strata_clr::session::{BridgeState, EventsWished, presence};
use strata_clr::{ClrProcess, Machine, discover, runtime_version};
use strata_profile::text::sanitize_for_terminal;

use crate::printing::{self, message};
use strata_agent::processes::container;

/// A line of the table.
struct Row {
    pid: u32,
    name: String,
    runtime: String,
    bridge: String,
    /// Why it cannot be attached to, if it cannot.
    refused: Option<String>,
    methods: u64,
    losses: u64,
    container: String,
}

/// The exit status: 0, whatever is found.
pub fn run(as_json: bool) -> Result<i32> {
    let rows = rows()?;
    if as_json {
        return printing::json(&rows.iter().map(Row::json).collect::<Vec<Value>>());
    }
    if rows.is_empty() {
        return printing::print("no .NET process is running\n");
    }
    let text = |row: &Row| {
        let bridge = match &row.refused {
            Some(why) => format!("{}: {why}", row.bridge),
            None => row.bridge.clone(),
        };
        let cells = [
            row.pid.to_string(),
            row.name.clone(),
            row.runtime.clone(),
            row.methods.to_string(),
            row.losses.to_string(),
            row.container.get(..12).unwrap_or(&row.container).to_owned(),
            bridge,
        ];
        cells.map(|cell| sanitize_for_terminal(&cell).into_owned())
    };
    let heads = ["PID", "NAME", "RUNTIME", "METHODS", "LOST", "CONTAINER", "BRIDGE"];
    let lines: Vec<[String; 7]> =
        std::iter::once(heads.map(str::to_owned)).chain(rows.iter().map(text)).collect();
    let width = |column: usize| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut table = String::new();
    for line in &lines {
        for (cell, width) in line.iter().zip(&widths) {
            table.push_str(&format!("{cell:<width$}  "));
        }
        table.truncate(table.trim_end().len());
        table.push('\n');
    }
    printing::print(&table)
}

fn rows() -> Result<Vec<Row>> {
    let mut processes = Vec::new();
    // Root is denied none, and does not open them all for a count.
    let is_root = rustix::process::geteuid().is_root();
    let mut unreadable = 0;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        match discover(pid) {
            Ok(Some(process)) => processes.push((pid, process)),
            Ok(None) => unreadable += usize::from(!is_root && is_denied(pid)),
            // It ended while it was looked at, or is not ours to look at.
            Err(error) => {
                unreadable += usize::from(!is_root && is_denied(pid));
                tracing::debug!(pid, %error, "a process cannot be looked at");
            }
        }
    }
    if unreadable > 0 {
        message!(
            "note: {unreadable} of the host's processes cannot be read, .NET or not: run this as root"
        );
    }
    processes.sort_by_key(|(pid, _)| *pid);
    // Single-file programs are asked for their version, and need not answer.
    let mut rows = Vec::new();
    for some in processes.chunks(AT_ONCE) {
        rows.extend(std::thread::scope(|scope| {
            let asked: Vec<_> =
                some.iter().map(|(pid, process)| scope.spawn(|| row(*pid, process))).collect();
            asked.into_iter().filter_map(|row| row.join().ok()).collect::<Vec<_>>()
        }));
    }
    Ok(rows)
}

/// Whether this user may not look at a process. Threads of the kernel have no arguments.
fn is_denied(pid: u32) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if arguments.is_empty() {
        return false;
    }
    let opened = std::fs::File::open(format!("/proc/{pid}/maps"));
    opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Processes that are asked at the same time.
const AT_ONCE: usize = 16;

fn row(pid: u32, process: &ClrProcess) -> Row {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let comm = String::from_utf8_lossy(read("comm").trim_ascii_end()).into_owned();
    let group = container::parse(&String::from_utf8_lossy(&read("cgroup")));
    let Bridge { text: bridge, methods, losses } = bridge_of(process);
    let refused = (bridge == NOT_LOADED).then(|| refusal(process)).flatten();
    Row {
        pid,
        name: comm,
        runtime: runtime(process),
        bridge,
        refused,
        methods,
        losses,
        container: group.container.unwrap_or_default(),
    }
}

/// A process without a bridge.
pub const NOT_LOADED: &str = "not loaded";

/// A process's bridge.
pub struct Bridge {
    pub text: String,
    methods: u64,
    losses: u64,
}

pub fn bridge_of(process: &ClrProcess) -> Bridge {
    let (text, methods, losses) = match presence(&process.target, &process.shared) {
        BridgeState::NotLoaded => (NOT_LOADED.to_owned(), 0, 0),
        BridgeState::Unusable(why) => (format!("unusable: {why}"), 0, 0),
        BridgeState::Loaded { state, holder, methods, losses, events, .. } => {
            let state = state.map_or("in a state of another version", |state| state.text());
            let bridge = match holder {
                Some(holder) => format!("attached, read by {holder}{}", events_text(events)),
                None => format!("loaded, {state}, not read"),
            };
            (bridge, methods, losses)
        }
    };
    Bridge { text, methods, losses }
}

/// The events that a bridge is to report; empty where there are none.
fn events_text(events: EventsWished) -> String {
    let kinds = wished(events.wishes);
    if kinds.is_empty() {
        return String::new();
    }
    let only = if events.are_snapshots { ", with managed frames only" } else { "" };
    match events.are_in_force {
        true => format!("; reports {kinds}{only}"),
        false => format!(
            "; does not report {kinds} yet: its runtime is busy, or refuses an event session (it has \
             64 at most, those of other tools included)"
        ),
    }
}

fn runtime(process: &ClrProcess) -> String {
    if let Some(version) = process.version {
        return version.to_string();
    }
    match runtime_version(process) {
        Some(version) => format!("{version} single-file"),
        None => "single-file".to_owned(),
    }
}

/// Why an attach would be refused, as far as that is known without trying.
pub fn refusal(process: &ClrProcess) -> Option<String> {
    if let Some(machine) = process.machine
        && machine != Machine::OWN
    {
        return Some(format!("it is a program for {machine}"));
    }
    if let Some(variable) = process.switches.profilers_switched_off() {
        return Some(format!("profilers are switched off by {variable}"));
    }
    if let Err(error) = &process.sockets {
        return Some(error.to_string());
    }
    // Profilers that are only notified came with .NET 6 (corprof.idl, ICorProfilerCallback11).
    let takes_one = process.version.is_some_and(|version| version.major < 6);
    let other = process.switches.profilers().into_iter().find(|profiler| !profiler.is_strata());
    if let (true, Some(other)) = (takes_one, other) {
        return Some(format!("its runtime takes one profiler only and has {other}"));
    }
    None
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "pid": self.pid,
            "name": self.name,
            "runtime": self.runtime,
            "bridge": self.bridge,
            "refused": self.refused,
            "methods": self.methods,
            "losses": self.losses,
            "container": self.container,
        })
    }
}
