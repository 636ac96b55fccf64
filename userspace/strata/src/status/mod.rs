//! The status of a daemon: one [`Status`], filled in by the daemon, served by `/status` as JSON and
//! by `/metrics` as Prometheus' text ([`metrics`]), and shown by `strata status` ([`text`], through
//! [`client`]).
//!
//! Invariant: a figure is declared here once. Every field has a default, so that the status of an
//! older or newer daemon can be shown.

pub mod client;
pub mod metrics;
mod text;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use strata_export::pipeline::FileFigures;
use strata_export::{ExporterHealth, State, Trouble};

use crate::{printing, terminal};

/// The ways of freeing memory, in their order.
pub const SHED: [&str; 5] = ["names", "early_flush", "workers", "tables", "lines"];

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub uptime_seconds: u64,
    /// Seconds since 1970.
    pub start_time_seconds: f64,
    pub healthy: bool,
    pub failing_exporters: Vec<String>,
    /// Why metrics are not served at their address.
    pub metrics_trouble: Option<String>,
    /// Of the store and of exporters.
    pub silent_disks: Vec<SilentDisk>,
    /// `None` where nothing needs it.
    pub broker: Option<Broker>,
    pub configuration: Configuration,
    pub sampling: Sampling,
    pub profiles: Profiles,
    pub dotnet: DotNet,
    pub reading: Reading,
    /// `None` where no thread is walked.
    pub wall: Option<Wall>,
    pub containers: Containers,
    pub store: Store,
    /// Services and identities of sampled processes.
    pub services: Vec<Service>,
    /// Identities that the list has no room for.
    pub services_not_listed: usize,
    pub exporters: Vec<Exporter>,
    pub file_exporters: Vec<FileExporter>,
    pub memory: Memory,
    pub cpu_seconds: CpuSeconds,
    pub bpf_runs: u64,
    pub open_files: usize,
    pub threads: usize,
    /// Symbols that are kept for the next flush.
    pub names: usize,
    pub images: usize,
    pub mapped_files: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Configuration {
    pub file: String,
    pub reloads: u64,
    /// Why the configuration on disk is not the one in use.
    pub trouble: Option<String>,
}

/// The helper process that keeps CAP_SYS_ADMIN.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Broker {
    /// While it runs.
    pub pid: Option<u32>,
    pub restarts: u64,
    /// Why it does nothing, or not everything.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Samples of the CPU a second of a process that no rule gives another rate.
    pub frequency: u32,
    /// The most that a rule or `frequency` asks for: what the kernel takes.
    pub highest_frequency: u32,
    /// Why some kinds, or all, are not sampled since the configuration changed.
    pub trouble: Option<String>,
    /// Processes of the host.
    pub processes: usize,
    /// Processes that were sampled and whose metadata is kept.
    pub sampled_processes: usize,
    pub samples: u64,
    pub left_out: u64,
    pub unattributed: u64,
    pub own: u64,
    /// Losses of profiles, by cause.
    pub losses: BTreeMap<String, u64>,
    /// Some of the files that cannot be read now.
    pub unreadable_files: Vec<UnreadableFile>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Profiles {
    pub flushes: u64,
    pub early_flushes: u64,
    pub made: u64,
    pub dropped: u64,
    pub undelivered_batches: u64,
    pub refused_own_destination: u64,
    pub trimmed_stacks: u64,
    pub unwritable: u64,
    pub waiting: usize,
    /// Code addresses whose symbols came too late for their flush.
    pub late_symbols: u64,
    /// Those whose symbols are awaited for the store, and those that stay without there.
    pub late_awaited: usize,
    pub late_unnamed: u64,
    pub early_sends: u64,
    pub pooled_short: u64,
    pub pooled_over_limit: u64,
    pub other_label_values: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DotNet {
    /// Since the start.
    pub attached: u64,
    pub detached: u64,
    /// Whose bridge is read now.
    pub read_now: usize,
    pub waiting: usize,
    pub methods: u64,
    pub refused: Vec<RefusedProcess>,
    /// `dotnet.bridge` of the configuration.
    pub policy: String,
}

/// A mapped file that cannot be read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UnreadableFile {
    pub path: String,
    pub why: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedProcess {
    pub pid: u32,
    pub why: String,
}

/// Passes over threads, for wall-clock time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Wall {
    pub passes: u64,
    /// From the last to the next.
    pub interval_seconds: f64,
    pub threads: usize,
    pub cpu_seconds: f64,
    /// Processes whose threads are not walked for a while.
    pub not_walked: Vec<RefusedProcess>,
}

/// Reading the environments of processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    pub given_up: u64,
    pub refused: u64,
    pub stuck: usize,
    pub environment_bytes: usize,
    pub variables_not_kept: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Containers {
    pub known: usize,
    pub unknown: usize,
    pub waiting: usize,
    pub forgotten: u64,
    pub sources: Vec<ContainerSource>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerSource {
    pub name: String,
    pub is_there: bool,
    pub asked: u64,
    pub found: u64,
    pub failed: u64,
    pub skipped: u64,
    pub last_error: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Store {
    pub profiles: u64,
    /// Dropped for their age or the store's size.
    pub dropped: u64,
    /// Stored without their stacks: their service had its share.
    pub folded: u64,
    pub bytes: u64,
    pub dictionaries: u64,
    pub not_stored: u64,
    /// Code addresses that were stored without a symbol and have it now.
    pub late_named: u64,
    /// It is not open, or a recent write failed.
    pub fails: bool,
    pub trouble: Option<String>,
}

/// A value, and where it comes from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sourced {
    pub value: String,
    pub from: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    pub pid: u32,
    pub runtime_id: String,
    pub service: Sourced,
    pub env: Option<Sourced>,
    pub version: Option<Sourced>,
    pub labels: BTreeMap<String, Sourced>,
    pub types: Vec<String>,
    pub enabled: bool,
    /// Settings of the process that are not used, and why.
    pub ignored: Vec<String>,
}

impl Service {
    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        let sourced = |one: &Sourced| one.value.len() + one.from.len();
        let labels = self.labels.iter().map(|(name, value)| name.len() + sourced(value));
        let optional = self.env.iter().chain(&self.version).map(sourced);
        let ignored = self.ignored.iter().map(String::len);
        let texts: usize = labels.chain(optional).chain(ignored).sum();
        size_of::<Self>() + sourced(&self.service) + self.runtime_id.len() + texts
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Exporter {
    pub name: String,
    pub state: String,
    pub delivered_profiles: u64,
    pub delivered_batches: u64,
    pub delivered_bytes: u64,
    pub rejected_profiles: u64,
    pub waiting_batches: usize,
    pub spool_bytes: u64,
    /// For how long nothing was delivered though there was something to deliver.
    pub failing_seconds: Option<u64>,
    pub lag_seconds: f64,
    pub retries: u64,
    pub dropped: BTreeMap<String, u64>,
    pub last_success_seconds_ago: Option<u64>,
    pub last_error: Option<PastTrouble>,
    pub last_refusal: Option<PastTrouble>,
    pub spool_error: Option<PastTrouble>,
}

/// A path whose disk does not answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SilentDisk {
    pub path: String,
    pub seconds: u64,
}

impl SilentDisk {
    pub fn text(&self) -> String {
        format!("{}: its disk has not answered for {} s", self.path, self.seconds)
    }
}

impl From<&strata_export::disks::SilentDisk> for SilentDisk {
    fn from(disk: &strata_export::disks::SilentDisk) -> Self {
        Self { path: disk.path.display().to_string(), seconds: disk.lasting.as_secs() }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PastTrouble {
    pub reason: String,
    pub seconds_ago: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FileExporter {
    pub name: String,
    pub files_written: u64,
    pub failed: u64,
    /// For how long some or all profiles have not been written.
    pub failing_seconds: Option<u64>,
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    pub bytes: u64,
    pub own: u64,
    pub workers: u64,
    pub bpf_maps: u64,
    pub peak: u64,
    pub limit: u64,
    /// Times memory was freed because memory_limit was near, by action.
    pub shed: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuSeconds {
    pub own: f64,
    pub helpers: f64,
    /// Part of `own`: the sampling loop, busy with flushes.
    pub flushes: f64,
    /// All BPF programs, in the kernel.
    pub bpf: f64,
}

fn seconds_since(time: Option<SystemTime>) -> Option<u64> {
    Some(time?.elapsed().ok()?.as_secs())
}

impl PastTrouble {
    fn of(trouble: Option<&Trouble>) -> Option<Self> {
        let Trouble { reason, at } = trouble?;
        Some(Self { reason: reason.clone(), seconds_ago: seconds_since(Some(*at)) })
    }
}

impl From<&ExporterHealth> for Exporter {
    fn from(health: &ExporterHealth) -> Self {
        let state = match health.state {
            State::Idle => "idle".to_owned(),
            State::Ok => "sending".to_owned(),
            State::Stopped => "stopped".to_owned(),
            State::Waiting(until) => {
                let wait = until.duration_since(SystemTime::now()).unwrap_or_default();
                format!("waiting {} s", wait.as_secs())
            }
        };
        let failing_seconds = seconds_since(health.failing_since);
        let state = match failing_seconds {
            Some(seconds) => format!("failing for {seconds} s, {state}"),
            None => state,
        };
        let drops = health.drops.by_cause().into_iter().filter(|(_, count)| count.batches > 0);
        Self {
            name: health.name.clone(),
            state,
            delivered_profiles: health.delivered.profiles,
            delivered_batches: health.delivered.batches,
            delivered_bytes: health.delivered_bytes,
            rejected_profiles: health.rejected_profiles,
            waiting_batches: health.queued + health.spooled,
            spool_bytes: health.spooled_bytes,
            failing_seconds,
            lag_seconds: health.lag.as_secs_f64(),
            retries: health.retries,
            dropped: drops
                .map(|(cause, count)| (cause.to_owned(), count.profiles.max(count.batches)))
                .collect(),
            last_success_seconds_ago: seconds_since(health.last_success),
            last_error: PastTrouble::of(health.last_error.as_ref()),
            last_refusal: PastTrouble::of(health.last_refusal.as_ref()),
            spool_error: PastTrouble::of(health.spool_error.as_ref()),
        }
    }
}

impl From<&FileFigures> for FileExporter {
    fn from(file: &FileFigures) -> Self {
        Self {
            name: file.name.clone(),
            files_written: file.written,
            failed: file.failed,
            failing_seconds: file.failing_since.map(|since| since.elapsed().as_secs()),
            trouble: file.trouble.clone(),
        }
    }
}

impl From<&strata_containers::SourceHealth> for ContainerSource {
    fn from(health: &strata_containers::SourceHealth) -> Self {
        Self {
            name: health.name.clone(),
            is_there: health.is_there,
            asked: health.asked,
            found: health.found,
            failed: health.failed,
            skipped: health.skipped,
            last_error: health.last_error.clone(),
        }
    }
}

/// `strata status --alive`: what `/healthz` answers.
pub fn alive(socket: &Path) -> Result<i32> {
    let health = client::ask_health(socket)?;
    printing::print(&health.answer)?;
    Ok(i32::from(!health.is_alive))
}

/// `strata status`: asks the daemon of this host.
pub fn run(socket: &Path, json: bool, services: bool) -> Result<i32> {
    let (status, body) = client::ask(socket)?;
    let shown = match (json, services) {
        (true, _) => format!("{}\n", body.trim_end()),
        (false, true) => text::services(&status),
        (false, false) => {
            terminal::wrapped(&text::status(&status), terminal::columns(&std::io::stdout()))
        }
    };
    printing::print(&shown)?;
    Ok(i32::from(!status.healthy))
}
