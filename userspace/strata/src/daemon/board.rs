//! How the daemon is doing: kept up by the loop, read by whoever asks over HTTP.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use strata_delivery::{Delivery, SinkHealth, State, Trouble};

use super::memory;
use super::publishing::Figures;
use crate::aside;
use crate::record::report::Loss;

/// What the loop knows.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub frequency: u32,
    pub processes: usize,
    pub images: usize,
    pub files: usize,
    pub people: usize,
    /// How reading their environments goes.
    pub readings: aside::Figures,
    /// Who they are.
    pub services: Arc<Vec<Value>>,
    pub containers: strata_containers::Health,
    pub samples: u64,
    pub left_out: u64,
    pub nobodys: u64,
    pub own_samples: u64,
    pub cuts: u64,
    pub early_cuts: u64,
    pub profiles: u64,
    pub dropped_profiles: u64,
    pub names: usize,
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
    pub cut_seconds: f64,
    pub sampler_seconds: f64,
    pub sampler_runs: u64,
    pub bridges: Bridges,
    pub reloads: u64,
    /// Why the configuration on disk is not the one in use.
    pub reload_trouble: Option<String>,
    pub configuration: String,
}

/// What memory was given back by, in the order it is done.
pub const SHED: [&str; 4] = ["names", "early_cut", "workers", "tables"];

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
    pub delivery: Arc<Delivery>,
    /// When the loop turned last.
    pub beat: Mutex<Instant>,
}

/// A loop that has not turned for so long is stuck.
const STUCK: Duration = Duration::from_secs(30);

fn read<T: Clone>(mutex: &Mutex<T>) -> T {
    mutex.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// One line of `/metrics`.
struct Metric<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    values: Vec<(Vec<(&'a str, String)>, f64)>,
}

fn seconds_since_epoch(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
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

    /// The loop is alive.
    pub fn turned(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// For people and scripts.
    pub fn status(&self) -> Value {
        let snapshot = read(&self.snapshot);
        let published = read(&self.publisher);
        let uptime = self.started.at.elapsed();
        let sinks: Vec<Value> = self.delivery.health().iter().map(sink).collect();
        let files: Vec<Value> = published
            .files
            .iter()
            .map(|(name, written, trouble)| {
                json!({ "name": name, "files_written": written, "trouble": trouble })
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
            "pid": std::process::id(),
            "uptime_seconds": uptime.as_secs(),
            "healthy": self.health().is_ok(),
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
                "of_nobody": snapshot.nobodys,
                "own": snapshot.own_samples,
                "losses": losses,
            },
            "profiles": {
                "cuts": snapshot.cuts,
                "early_cuts": snapshot.early_cuts,
                "made": snapshot.profiles,
                "dropped": snapshot.dropped_profiles,
                "undelivered_batches": published.undelivered,
                "trimmed_stacks": published.cuts.trimmed_stacks,
                "waiting": published.pending,
                "early_sends": published.early,
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
            "sinks": sinks,
            "file_sinks": files,
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

    /// In the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let snapshot = read(&self.snapshot);
        let published = read(&self.publisher);
        let sinks = self.delivery.health();
        let mut metrics: Vec<Metric<'_>> = Vec::new();
        let mut one = |name, kind, help, value: f64| {
            metrics.push(Metric { name, kind, help, values: vec![(Vec::new(), value)] });
        };
        let (counter, gauge) = ("counter", "gauge");
        one(
            "start_time_seconds",
            gauge,
            "When strata was started.",
            seconds_since_epoch(self.started.wall),
        );
        one(
            "samples_total",
            counter,
            "Samples that became part of a profile.",
            snapshot.samples as f64,
        );
        one(
            "samples_left_out_total",
            counter,
            "Samples of processes that are not wanted.",
            snapshot.left_out as f64,
        );
        one(
            "samples_of_nobody_total",
            counter,
            "Samples of processes that were gone before anybody knew them.",
            snapshot.nobodys as f64,
        );
        one("profiles_total", counter, "Profiles that were made.", snapshot.profiles as f64);
        one(
            "profiles_dropped_total",
            counter,
            "Profiles that nobody had time for.",
            snapshot.dropped_profiles as f64,
        );
        one("cuts_total", counter, "Ends of periods.", snapshot.cuts as f64);
        one(
            "cut_seconds_total",
            counter,
            "Time that naming and making profiles took.",
            snapshot.cut_seconds,
        );
        one(
            "sampled_processes",
            gauge,
            "Processes that were sampled and are still there.",
            snapshot.people as f64,
        );
        one(
            "process_readings_given_up_total",
            counter,
            "Processes whose environment could not be read in time.",
            snapshot.readings.given_up as f64,
        );
        one(
            "process_readings_refused_total",
            counter,
            "Processes whose environment nobody had time to read.",
            snapshot.readings.refused as f64,
        );
        one(
            "process_readers_stuck",
            gauge,
            "Threads that hang in reading a process.",
            snapshot.readings.stuck as f64,
        );
        one("processes", gauge, "Processes of the host.", snapshot.processes as f64);
        one(
            "containers",
            gauge,
            "Containers of which more than the id is known.",
            snapshot.containers.known as f64,
        );
        one(
            "mapped_files",
            gauge,
            "Files that are known because processes run code of them.",
            snapshot.files as f64,
        );
        one("names", gauge, "Names that are kept for the next profile.", snapshot.names as f64);
        one("memory_limit_bytes", gauge, "What strata may use.", snapshot.memory_limit as f64);
        one("open_files", gauge, "Open file descriptors.", snapshot.open_files as f64);
        one("threads", gauge, "Threads.", snapshot.threads as f64);
        one(
            "bpf_run_seconds_total",
            counter,
            "Time the sampler spent in the kernel.",
            snapshot.sampler_seconds,
        );
        one("bpf_runs_total", counter, "Runs of the sampler.", snapshot.sampler_runs as f64);
        one(
            "dotnet_attached_total",
            counter,
            ".NET processes that were reached.",
            snapshot.bridges.attached as f64,
        );
        one(
            "dotnet_refused",
            gauge,
            ".NET processes that could not be reached.",
            snapshot.bridges.refused.len() as f64,
        );
        one(
            "config_reloads_total",
            counter,
            "Configurations that were taken over.",
            snapshot.reloads as f64,
        );
        one(
            "config_refused",
            gauge,
            "1 if the configuration on disk is not the one in use.",
            f64::from(u8::from(snapshot.reload_trouble.is_some())),
        );
        one("store_bytes", gauge, "Size of the local store.", published.store_bytes as f64);
        one(
            "store_dictionary_bytes",
            gauge,
            "Memory that the dictionaries of the local store's open segment take.",
            published.store_dictionaries as f64,
        );
        one(
            "store_refused_total",
            counter,
            "Profiles that the local store did not take.",
            published.not_stored as f64,
        );
        one(
            "batches_undelivered_total",
            counter,
            "Batches that found no sink.",
            published.undelivered as f64,
        );
        one(
            "early_sends_total",
            counter,
            "How often profiles were sent before their period was over, for want of memory.",
            published.early as f64,
        );
        one(
            "stacks_trimmed_total",
            counter,
            "Stacks that lost frames at their root to fit a server.",
            published.cuts.trimmed_stacks as f64,
        );
        one(
            "profiles_unwritable_total",
            counter,
            "Profiles that could not be written for a sink.",
            published.cuts.failed_profiles as f64,
        );
        one(
            "store_dropped_total",
            counter,
            "Profiles that were dropped from the local store, for their age or its size.",
            published.kept.dropped as f64,
        );
        let mut labelled = |name, kind, help, label, values: Vec<(String, f64)>| {
            let values = values.into_iter().map(|(text, value)| (vec![(label, text)], value));
            metrics.push(Metric { name, kind, help, values: values.collect() });
        };
        let named = |pairs: &[(&str, f64)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect::<Vec<_>>()
        };
        labelled(
            "cpu_seconds_total",
            counter,
            "Processor time.",
            "of",
            named(&[("strata", snapshot.own_seconds), ("helpers", snapshot.helper_seconds)]),
        );
        labelled(
            "memory_bytes",
            gauge,
            "Memory in use; shared pages count once.",
            "of",
            named(&[
                ("strata", snapshot.memory.own as f64),
                ("helpers", snapshot.memory.workers as f64),
                ("bpf_maps", snapshot.memory.maps as f64),
            ]),
        );
        labelled(
            "losses_total",
            counter,
            "What is missing from profiles, by cause.",
            "cause",
            snapshot.losses.iter().map(|(cause, n)| ((*cause).to_owned(), *n as f64)).collect(),
        );
        labelled(
            "shed_total",
            counter,
            "How often memory was given back, by what.",
            "what",
            SHED.iter()
                .zip(snapshot.shed)
                .map(|(what, n)| ((*what).to_owned(), n as f64))
                .collect(),
        );
        let by_sink = |value: fn(&SinkHealth) -> f64| {
            sinks.iter().map(|sink| (sink.name.clone(), value(sink))).collect::<Vec<_>>()
        };
        labelled(
            "sink_delivered_batches_total",
            counter,
            "Batches that a sink has taken.",
            "sink",
            by_sink(|sink| sink.delivered.batches as f64),
        );
        labelled(
            "sink_delivered_profiles_total",
            counter,
            "Profiles that a sink has taken.",
            "sink",
            by_sink(|sink| sink.delivered.profiles as f64),
        );
        labelled(
            "sink_delivered_bytes_total",
            counter,
            "Bytes that a sink has taken.",
            "sink",
            by_sink(|sink| sink.delivered_bytes as f64),
        );
        labelled(
            "sink_rejected_profiles_total",
            counter,
            "Profiles that a server took and did not store.",
            "sink",
            by_sink(|sink| sink.rejected_profiles as f64),
        );
        labelled(
            "sink_retries_total",
            counter,
            "Requests that had to be made again.",
            "sink",
            by_sink(|sink| sink.retries as f64),
        );
        labelled(
            "sink_waiting_batches",
            gauge,
            "Batches that wait, in memory and on disk.",
            "sink",
            by_sink(|sink| (sink.queued + sink.spooled) as f64),
        );
        labelled(
            "sink_spool_bytes",
            gauge,
            "What waits on disk.",
            "sink",
            by_sink(|sink| sink.spooled_bytes as f64),
        );
        labelled(
            "sink_lag_seconds",
            gauge,
            "Age of the oldest batch that is not delivered.",
            "sink",
            by_sink(|sink| sink.lag.as_secs_f64()),
        );
        let drops = sinks.iter().flat_map(|sink| {
            sink.drops.by_cause().into_iter().map(|(cause, count)| {
                let labels = vec![("sink", sink.name.clone()), ("cause", cause.to_owned())];
                (labels, count.profiles.max(count.batches) as f64)
            })
        });
        let failures = snapshot
            .containers
            .sources
            .iter()
            .map(|source| (vec![("source", source.name.clone())], source.failed as f64));
        metrics.push(Metric {
            name: "container_source_failures_total",
            kind: counter,
            help: "Times that a container runtime or the kubelet gave no usable answer.",
            values: failures.collect(),
        });
        metrics.push(Metric {
            name: "sink_dropped_total",
            kind: counter,
            help: "Profiles that will never arrive, by cause.",
            values: drops.collect(),
        });
        metrics.iter().map(Metric::text).collect()
    }
}

impl Metric<'_> {
    fn text(&self) -> String {
        use std::fmt::Write;
        let Self { name, kind, help, values } = self;
        let mut text = format!("# HELP strata_{name} {help}\n# TYPE strata_{name} {kind}\n");
        for (labels, value) in values {
            let labels: Vec<String> = labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
                .collect();
            let labels =
                if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            // Writing to a string does not fail.
            let _ = writeln!(text, "strata_{name}{labels} {value}");
        }
        text
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
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

fn sink(health: &SinkHealth) -> Value {
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
    json!({
        "name": health.name,
        "state": state,
        "delivered_profiles": health.delivered.profiles,
        "delivered_batches": health.delivered.batches,
        "delivered_bytes": health.delivered_bytes,
        "rejected_profiles": health.rejected_profiles,
        "waiting_batches": health.queued + health.spooled,
        "spool_bytes": health.spooled_bytes,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_its_kind_and_inert_labels() {
        let metric = Metric {
            name: "x_total",
            kind: "counter",
            help: "Things.",
            values: vec![(vec![("sink", "a\"b\n".to_owned())], 3.0)],
        };
        assert_eq!(
            metric.text(),
            "# HELP strata_x_total Things.\n# TYPE strata_x_total counter\n\
             strata_x_total{sink=\"a\\\"b\\n\"} 3\n"
        );
    }
}
