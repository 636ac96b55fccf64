//! How the daemon is doing: kept up by the loop, read by whoever asks over HTTP.

mod metrics;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use strata_export::{ExporterHealth, Queues, State, Trouble};

use super::memory;
use crate::record::report::Loss;
use strata_agent::blocking_reader;
use strata_export::pipeline::Figures;

/// What the loop knows.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub frequency: u32,
    pub processes: usize,
    pub images: usize,
    pub files: usize,
    /// Processes that were sampled and whose metadata is kept.
    pub sampled_processes: usize,
    /// How reading their environments goes.
    pub readings: blocking_reader::Figures,
    /// Bytes of their environments, and variables that had no room among them.
    pub environments: (usize, u64),
    /// Their services and identities.
    pub services: Arc<Vec<Value>>,
    pub containers: strata_containers::Health,
    pub samples: u64,
    pub left_out: u64,
    pub unattributed: u64,
    pub own_samples: u64,
    pub flushes: u64,
    pub early_flushes: u64,
    pub profiles: u64,
    pub dropped_profiles: u64,
    pub names: usize,
    /// Code addresses whose symbols came too late for their flush.
    pub late_symbols: u64,
    pub shed: [u64; SHED.len()],
    pub losses: Vec<(&'static str, u64)>,
    pub memory: memory::Use,
    pub memory_peak: u64,
    pub memory_limit: u64,
    pub open_files: usize,
    pub threads: usize,
    /// Seconds of processor time: strata, its helpers, cutting, the sampler in the kernel.
    pub own_seconds: f64,
    pub helper_seconds: f64,
    pub flush_seconds: f64,
    pub sampler_seconds: f64,
    pub sampler_runs: u64,
    pub bridges: Bridges,
    pub reloads: u64,
    /// Why the configuration on disk is not the one in use.
    pub reload_trouble: Option<String>,
    pub configuration: String,
}

/// What memory was given back by, in the order it is done.
pub const SHED: [&str; 4] = ["names", "early_flush", "workers", "tables"];

#[derive(Clone, Debug, Default)]
pub struct Bridges {
    pub attached: u64,
    pub detached: u64,
    pub methods: u64,
    pub waiting: usize,
    pub refused: Vec<(u32, String)>,
}

/// When the daemon was started, by both clocks: one may be set.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    pub wall: SystemTime,
    pub at: Instant,
}

impl Started {
    pub fn now() -> Self {
        Self { wall: SystemTime::now(), at: Instant::now() }
    }
}

/// Where the figures of all parts are found.
pub struct Board {
    pub started: Started,
    pub snapshot: Mutex<Snapshot>,
    pub publisher: Arc<Mutex<Figures>>,
    pub delivery: Arc<Queues>,
    /// When the loop turned last.
    pub beat: Mutex<Instant>,
    /// Why metrics are not served at their address.
    pub metrics_trouble: Mutex<Option<String>>,
}

/// A loop that has not turned for so long is stuck.
const STUCK: Duration = Duration::from_secs(30);

fn read<T: Clone>(mutex: &Mutex<T>) -> T {
    mutex.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Board {
    /// Whether the daemon does its work; else why not.
    pub fn health(&self) -> Result<(), String> {
        let since = read(&self.beat).elapsed();
        if since > STUCK {
            return Err(format!("the sampling loop has not turned for {} s", since.as_secs()));
        }
        Ok(())
    }

    pub fn metrics_trouble(&self) -> Option<String> {
        read(&self.metrics_trouble)
    }

    pub fn set_metrics_trouble(&self, trouble: Option<String>) {
        *self.metrics_trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// The loop is alive.
    pub fn turned(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// For people and scripts.
    pub fn status(&self) -> Value {
        let snapshot = read(&self.snapshot);
        let published = read(&self.publisher);
        let uptime = self.started.at.elapsed();
        let exporters = self.delivery.health();
        let failing = exporters.iter().filter(|exporter| exporter.failing_since.is_some());
        let failing: Vec<&str> = failing.map(|exporter| exporter.name.as_str()).collect();
        let exporters: Vec<Value> = exporters.iter().map(exporter).collect();
        let files: Vec<Value> = published
            .files
            .iter()
            .map(|file| {
                json!({
                    "name": file.name,
                    "files_written": file.written,
                    "failed": file.failed,
                    "trouble": file.trouble,
                })
            })
            .collect();
        let losses: serde_json::Map<String, Value> = snapshot
            .losses
            .iter()
            .map(|(cause, count)| ((*cause).to_owned(), json!(count)))
            .collect();
        let refused: Vec<Value> = snapshot
            .bridges
            .refused
            .iter()
            .map(|(pid, why)| json!({ "pid": pid, "why": why }))
            .collect();
        let shed: serde_json::Map<String, Value> = SHED
            .iter()
            .zip(snapshot.shed)
            .map(|(what, n)| ((*what).to_owned(), json!(n)))
            .collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "metrics_trouble": self.metrics_trouble(),
            "pid": std::process::id(),
            "uptime_seconds": uptime.as_secs(),
            "healthy": self.health().is_ok() && failing.is_empty(),
            "failing_exporters": failing,
            "configuration": {
                "file": snapshot.configuration,
                "reloads": snapshot.reloads,
                "trouble": snapshot.reload_trouble,
            },
            "sampling": {
                "frequency": snapshot.frequency,
                "processes": snapshot.processes,
                "samples": snapshot.samples,
                "left_out": snapshot.left_out,
                "unattributed": snapshot.unattributed,
                "own": snapshot.own_samples,
                "losses": losses,
            },
            "profiles": {
                "flushes": snapshot.flushes,
                "early_flushes": snapshot.early_flushes,
                "made": snapshot.profiles,
                "dropped": snapshot.dropped_profiles,
                "undelivered_batches": published.undelivered,
                "refused_own_destination": published.refused_own,
                "trimmed_stacks": published.cuts.trimmed_stacks,
                "waiting": published.pending,
                "late_symbols": snapshot.late_symbols,
                "early_sends": published.early,
                "pooled_short": published.pooled.short,
                "pooled_over_limit": published.pooled.over,
                "other_label_values": published.cuts.other_values,
            },
            "dotnet": {
                "attached": snapshot.bridges.attached,
                "detached": snapshot.bridges.detached,
                "waiting": snapshot.bridges.waiting,
                "methods": snapshot.bridges.methods,
                "refused": refused,
            },
            "reading": {
                "given_up": snapshot.readings.given_up,
                "refused": snapshot.readings.refused,
                "stuck": snapshot.readings.stuck,
                "environment_bytes": snapshot.environments.0,
                "variables_not_kept": snapshot.environments.1,
            },
            "containers": {
                "known": snapshot.containers.known,
                "unknown": snapshot.containers.unknown,
                "waiting": snapshot.containers.waiting,
                "forgotten": snapshot.containers.forgotten,
                "sources": snapshot.containers.sources.iter().map(source).collect::<Vec<_>>(),
            },
            "store": {
                "profiles": published.kept.written,
                "bytes": published.store_bytes,
                "dictionaries": published.store_dictionaries,
                "not_stored": published.not_stored,
                "trouble": published.store_trouble,
            },
            "services": *snapshot.services,
            "exporters": exporters,
            "file_exporters": files,
            "memory": {
                "bytes": snapshot.memory.total(),
                "own": snapshot.memory.own,
                "workers": snapshot.memory.workers,
                "bpf_maps": snapshot.memory.maps,
                "peak": snapshot.memory_peak,
                "limit": snapshot.memory_limit,
                "shed": shed,
            },
            "cpu_seconds": {
                "own": snapshot.own_seconds,
                "helpers": snapshot.helper_seconds,
                "bpf": snapshot.sampler_seconds,
            },
            "bpf_runs": snapshot.sampler_runs,
            "open_files": snapshot.open_files,
            "threads": snapshot.threads,
            "names": snapshot.names,
            "images": snapshot.images,
            "mapped_files": snapshot.files,
        })
    }
}

fn source(health: &strata_containers::SourceHealth) -> Value {
    json!({
        "name": health.name,
        "is_there": health.is_there,
        "asked": health.asked,
        "found": health.found,
        "failed": health.failed,
        "skipped": health.skipped,
        "last_error": health.last_error,
    })
}

fn exporter(health: &ExporterHealth) -> Value {
    let ago = |time: Option<SystemTime>| {
        time.and_then(|time| time.elapsed().ok()).map(|since| since.as_secs())
    };
    let trouble = |trouble: &Option<Trouble>| {
        trouble.as_ref().map(
            |trouble| json!({ "reason": trouble.reason, "seconds_ago": ago(Some(trouble.at)) }),
        )
    };
    let drops: serde_json::Map<String, Value> = health
        .drops
        .by_cause()
        .into_iter()
        .filter(|(_, count)| count.batches > 0)
        .map(|(cause, count)| (cause.to_owned(), json!(count.profiles.max(count.batches))))
        .collect();
    let state = match health.state {
        State::Idle => "idle".to_owned(),
        State::Ok => "sending".to_owned(),
        State::Stopped => "stopped".to_owned(),
        State::Waiting(until) => {
            let wait = until.duration_since(SystemTime::now()).unwrap_or_default();
            format!("waiting {} s", wait.as_secs())
        }
    };
    let state = match ago(health.failing_since) {
        Some(seconds) => format!("failing for {seconds} s, {state}"),
        None => state,
    };
    json!({
        "name": health.name,
        "state": state,
        "delivered_profiles": health.delivered.profiles,
        "delivered_batches": health.delivered.batches,
        "delivered_bytes": health.delivered_bytes,
        "rejected_profiles": health.rejected_profiles,
        "waiting_batches": health.queued + health.spooled,
        "spool_bytes": health.spooled_bytes,
        "failing_seconds": ago(health.failing_since),
        "lag_seconds": health.lag.as_secs_f64(),
        "retries": health.retries,
        "dropped": drops,
        "last_success_seconds_ago": ago(health.last_success),
        "last_error": trouble(&health.last_error),
        "last_refusal": trouble(&health.last_refusal),
        "spool_error": trouble(&health.spool_error),
    })
}

/// The losses of a report, as figures.
pub fn causes(losses: Vec<Loss>) -> Vec<(&'static str, u64)> {
    losses.into_iter().map(|loss| (loss.cause, loss.count)).collect()
}
