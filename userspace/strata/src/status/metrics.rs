//! `/metrics`, in the text format of Prometheus.

use std::collections::BTreeMap;

use strata_export::queue::Drops;

use super::{Exporter, FileExporter, Status};
use crate::losses;

/// One metric of `/metrics`, with its values.
struct Metric<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    values: Vec<(Vec<(&'a str, String)>, f64)>,
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// Without labels: name, kind, help and value.
type Single = (&'static str, &'static str, &'static str, f64);

pub fn text(status: &Status) -> String {
    metrics(status).iter().map(Metric::text).collect()
}

fn metrics(status: &Status) -> Vec<Metric<'_>> {
    let single = |(name, kind, help, value): Single| Metric {
        name,
        kind,
        help,
        values: vec![(Vec::new(), value)],
    };
    let mut metrics: Vec<Metric<'_>> = Vec::new();
    metrics.extend(sampling(status).map(single));
    metrics.extend(targets(status).map(single));
    metrics.extend(delivery(status).map(single));
    metrics.extend(itself(status).map(single));
    metrics.extend(labelled(status));
    metrics.extend(exporters(&status.exporters));
    metrics.extend(file_exporters(&status.file_exporters));
    metrics
}

/// Samples and their stacks.
fn sampling(status: &Status) -> impl Iterator<Item = Single> {
    [
        (
            "samples_total",
            COUNTER,
            "Samples that became part of a profile, each counted once.",
            status.sampling.samples as f64,
        ),
        (
            "samples_left_out_total",
            COUNTER,
            "Samples dropped by rules or profiling switches.",
            status.sampling.left_out as f64,
        ),
        (
            "samples_unattributed_total",
            COUNTER,
            "Samples of processes that exited before their metadata was read.",
            status.sampling.unattributed as f64,
        ),
        ("flushes_total", COUNTER, "Flush cycles.", status.profiles.flushes as f64),
        (
            "flush_seconds_total",
            COUNTER,
            "Time that the sampling loop was busy with flushes.",
            status.cpu_seconds.flushes,
        ),
        (
            "sampled_processes",
            GAUGE,
            "Processes that were sampled and are still there.",
            status.sampling.sampled_processes as f64,
        ),
        ("symbols", GAUGE, "Symbols that are kept for the next flush.", status.names as f64),
        (
            "symbols_late_total",
            COUNTER,
            "Code addresses flushed without a symbol because their files answered too late.",
            status.profiles.late_symbols as f64,
        ),
        (
            "symbols_late_awaited",
            GAUGE,
            "Code addresses flushed without a symbol that is still awaited, for the local store.",
            status.profiles.late_awaited as f64,
        ),
        (
            "symbols_late_unnamed_total",
            COUNTER,
            "Code addresses flushed without a symbol that stay so in the local store: their file has \
             none or never answered, or there was no room.",
            status.profiles.late_unnamed as f64,
        ),
        (
            "stacks_trimmed_total",
            COUNTER,
            "Stacks that lost frames at their root to fit a server.",
            status.profiles.trimmed_stacks as f64,
        ),
    ]
    .into_iter()
}

/// The processes of the host.
fn targets(status: &Status) -> impl Iterator<Item = Single> {
    [
        (
            "process_readings_given_up_total",
            COUNTER,
            "Processes whose environment could not be read in time.",
            status.reading.given_up as f64,
        ),
        (
            "process_environment_bytes",
            GAUGE,
            "Bytes of the environments of sampled processes that are kept.",
            status.reading.environment_bytes as f64,
        ),
        (
            "process_variables_dropped_total",
            COUNTER,
            "Variables of processes that would name them and were too large to be kept.",
            status.reading.variables_not_kept as f64,
        ),
        (
            "process_readings_refused_total",
            COUNTER,
            "Processes whose environment was not read because the readers were busy.",
            status.reading.refused as f64,
        ),
        (
            "process_readers_stuck",
            GAUGE,
            "Threads blocked while reading a process.",
            status.reading.stuck as f64,
        ),
        ("processes", GAUGE, "Processes of the host.", status.sampling.processes as f64),
        (
            "containers",
            GAUGE,
            "Containers of which more than the id is known.",
            status.containers.known as f64,
        ),
        (
            "mapped_files",
            GAUGE,
            "Files that are known because processes run code of them.",
            status.mapped_files as f64,
        ),
        (
            "dotnet_attached_total",
            COUNTER,
            ".NET processes that strata has attached to.",
            status.dotnet.attached as f64,
        ),
        (
            "dotnet_bridges",
            GAUGE,
            "Bridges in .NET processes that strata reads now.",
            status.dotnet.read_now as f64,
        ),
        (
            "dotnet_refused",
            GAUGE,
            ".NET processes that could not be reached.",
            status.dotnet.refused.len() as f64,
        ),
    ]
    .into_iter()
}

/// Profiles, the store and the way to exporters.
fn delivery(status: &Status) -> impl Iterator<Item = Single> {
    [
        ("profiles_total", COUNTER, "Profiles built.", status.profiles.made as f64),
        (
            "profiles_dropped_total",
            COUNTER,
            "Profiles dropped because the store or a spool was busy for too long.",
            status.profiles.dropped as f64,
        ),
        ("store_bytes", GAUGE, "Size of the local store.", status.store.bytes as f64),
        (
            "store_dictionary_bytes",
            GAUGE,
            "Memory that the dictionaries of the local store's open segment take.",
            status.store.dictionaries as f64,
        ),
        (
            "store_refused_total",
            COUNTER,
            "Profiles that the local store did not take.",
            status.store.not_stored as f64,
        ),
        (
            "symbols_late_named_total",
            COUNTER,
            "Code addresses flushed without a symbol that have it in the local store now.",
            status.store.late_named as f64,
        ),
        (
            "profiles_pooled_total",
            COUNTER,
            "Profiles of short commands, which became part of the pool's.",
            status.profiles.pooled_short as f64,
        ),
        (
            "services_over_limit_total",
            COUNTER,
            "Profiles of services beyond services.most, which became part of the pool's.",
            status.profiles.pooled_over_limit as f64,
        ),
        (
            "label_values_other_total",
            COUNTER,
            "Values of labels sent as `other`: their label has more than label_values.",
            status.profiles.other_label_values as f64,
        ),
        (
            "batches_undelivered_total",
            COUNTER,
            "Batches lost before they were queued for an exporter.",
            status.profiles.undelivered_batches as f64,
        ),
        (
            "own_destination_refused_total",
            COUNTER,
            "Profiles that their target's own destination did not get: too many have one.",
            status.profiles.refused_own_destination as f64,
        ),
        (
            "early_sends_total",
            COUNTER,
            "How often profiles were sent before their period was over, for want of memory.",
            status.profiles.early_sends as f64,
        ),
        (
            "profiles_unwritable_total",
            COUNTER,
            "Profiles that could not be written for an exporter.",
            status.profiles.unwritable as f64,
        ),
        (
            "store_dropped_total",
            COUNTER,
            "Profiles that were dropped from the local store, for their age or its size.",
            status.store.dropped as f64,
        ),
        (
            "store_folded_total",
            COUNTER,
            "Profiles stored without their stacks, because their service had its share of the store.",
            status.store.folded as f64,
        ),
    ]
    .into_iter()
}

/// The daemon itself.
fn itself(status: &Status) -> impl Iterator<Item = Single> {
    [
        ("start_time_seconds", GAUGE, "When strata was started.", status.start_time_seconds),
        ("memory_limit_bytes", GAUGE, "memory_limit, in bytes.", status.memory.limit as f64),
        ("open_files", GAUGE, "Open file descriptors.", status.open_files as f64),
        ("threads", GAUGE, "Threads.", status.threads as f64),
        (
            "bpf_run_seconds_total",
            COUNTER,
            "Time all of strata's BPF programs spent in the kernel.",
            status.cpu_seconds.bpf,
        ),
        ("bpf_runs_total", COUNTER, "Runs of the CPU sampler, one of these programs.", status.bpf_runs as f64),
        (
            "silent_disks",
            GAUGE,
            "Paths of the store and of exporters whose disk does not answer.",
            status.silent_disks.len() as f64,
        ),
        (
            "broker_restarts_total",
            COUNTER,
            "How often the helper process with CAP_SYS_ADMIN was started again.",
            status.broker.as_ref().map_or(0.0, |broker| broker.restarts as f64),
        ),
        (
            "broker_failing",
            GAUGE,
            "1 if the helper process with CAP_SYS_ADMIN has ended and cannot be replaced, or ends again and again.",
            f64::from(u8::from(status.broker.as_ref().is_some_and(|one| one.trouble.is_some()))),
        ),
        (
            "sampling_failing",
            GAUGE,
            "1 if sampling, or that of some kinds, has not started again since the configuration changed.",
            f64::from(u8::from(status.sampling.trouble.is_some())),
        ),
        (
            "config_reloads_total",
            COUNTER,
            "Configurations that were applied by a reload.",
            status.configuration.reloads as f64,
        ),
        (
            "config_refused",
            GAUGE,
            "1 if the configuration on disk is not the one in use.",
            f64::from(u8::from(status.configuration.trouble.is_some())),
        ),
    ]
    .into_iter()
}

/// Counts by cause, with 0 for known causes that have none: Prometheus' `increase` misses the first
/// count of a series that begins with it.
fn of_causes(
    known: impl IntoIterator<Item = &'static str>,
    counts: &BTreeMap<String, u64>,
) -> BTreeMap<&str, u64> {
    let zeros = known.into_iter().map(|cause| (cause, 0));
    zeros.chain(counts.iter().map(|(cause, count)| (cause.as_str(), *count))).collect()
}

fn labelled(status: &Status) -> [Metric<'_>; 5] {
    let of = |pairs: &[(&str, f64)]| {
        pairs
            .iter()
            .map(|(name, value)| (vec![("component", (*name).to_owned())], *value))
            .collect()
    };
    let by = |label: &'static str, counts: &BTreeMap<String, u64>| {
        counts.iter().map(|(name, count)| (vec![(label, name.clone())], *count as f64)).collect()
    };
    let (cpu, memory) = (&status.cpu_seconds, &status.memory);
    let sources = &status.containers.sources;
    [
        Metric {
            name: "cpu_seconds_total",
            kind: COUNTER,
            help: "CPU time of the daemon and its helper processes.",
            values: of(&[("strata", cpu.own), ("helpers", cpu.helpers)]),
        },
        Metric {
            name: "memory_bytes",
            kind: GAUGE,
            help: "Memory in use; shared pages count once.",
            values: of(&[
                ("strata", memory.own as f64),
                ("helpers", memory.workers as f64),
                ("bpf_maps", memory.bpf_maps as f64),
            ]),
        },
        Metric {
            name: "losses_total",
            kind: COUNTER,
            help: "What is missing from profiles, by cause.",
            values: of_causes(losses::causes(), &status.sampling.losses)
                .into_iter()
                .map(|(cause, count)| (vec![("cause", cause.to_owned())], count as f64))
                .collect(),
        },
        Metric {
            name: "shed_total",
            kind: COUNTER,
            help: "Times memory was freed because memory_limit was near, by action.",
            values: by("action", &memory.shed),
        },
        Metric {
            name: "container_source_failures_total",
            kind: COUNTER,
            help: "Times that a container runtime or the kubelet gave no usable answer.",
            values: sources
                .iter()
                .map(|source| (vec![("source", source.name.clone())], source.failed as f64))
                .collect(),
        },
    ]
}

fn exporters(all: &[Exporter]) -> Vec<Metric<'_>> {
    type Figure = (&'static str, &'static str, &'static str, fn(&Exporter) -> f64);
    let figures: [Figure; 8] = [
        (
            "exporter_delivered_batches_total",
            COUNTER,
            "Batches that an exporter has taken.",
            |exporter| exporter.delivered_batches as f64,
        ),
        (
            "exporter_delivered_profiles_total",
            COUNTER,
            "Profiles that an exporter has taken.",
            |exporter| exporter.delivered_profiles as f64,
        ),
        (
            "exporter_delivered_bytes_total",
            COUNTER,
            "Bytes that an exporter has taken.",
            |exporter| exporter.delivered_bytes as f64,
        ),
        (
            "exporter_rejected_profiles_total",
            COUNTER,
            "Profiles that a server took and did not store.",
            |exporter| exporter.rejected_profiles as f64,
        ),
        ("exporter_retries_total", COUNTER, "Requests that were retried.", |exporter| {
            exporter.retries as f64
        }),
        (
            "exporter_waiting_batches",
            GAUGE,
            "Batches that wait, in memory and on disk.",
            |exporter| exporter.waiting_batches as f64,
        ),
        ("exporter_spool_bytes", GAUGE, "Size of the spool.", |exporter| {
            exporter.spool_bytes as f64
        }),
        (
            "exporter_lag_seconds",
            GAUGE,
            "Age of the oldest batch that is not delivered.",
            |exporter| exporter.lag_seconds,
        ),
    ];
    let mut metrics: Vec<Metric<'_>> = figures
        .into_iter()
        .map(|(name, kind, help, value)| Metric {
            name,
            kind,
            help,
            values: all
                .iter()
                .map(|exporter| (vec![("exporter", exporter.name.clone())], value(exporter)))
                .collect(),
        })
        .collect();
    let causes = Drops::default().by_cause().map(|(cause, _)| cause);
    let drops = all.iter().flat_map(|exporter| {
        of_causes(causes, &exporter.dropped).into_iter().map(|(cause, count)| {
            let labels = vec![("exporter", exporter.name.clone()), ("cause", cause.to_owned())];
            (labels, count as f64)
        })
    });
    metrics.push(Metric {
        name: "exporter_dropped_total",
        kind: COUNTER,
        help: "Profiles that will never arrive, by cause.",
        values: drops.collect(),
    });
    metrics
}

fn file_exporters(all: &[FileExporter]) -> [Metric<'_>; 2] {
    let metric = |name, help, value: fn(&FileExporter) -> u64| Metric {
        name,
        kind: COUNTER,
        help,
        values: all
            .iter()
            .map(|file| (vec![("exporter", file.name.clone())], value(file) as f64))
            .collect(),
    };
    [
        metric("file_exporter_written_total", "Files that a file exporter has written.", |file| {
            file.files_written
        }),
        metric(
            "file_exporter_failed_total",
            "Profiles that a file exporter could not write.",
            |file| file.failed,
        ),
    ]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_its_kind_and_inert_labels() {
        let metric = Metric {
            name: "x_total",
            kind: "counter",
            help: "Things.",
            values: vec![(vec![("exporter", "a\"b\n".to_owned())], 3.0)],
        };
        assert_eq!(
            metric.text(),
            "# HELP strata_x_total Things.\n# TYPE strata_x_total counter\n\
             strata_x_total{exporter=\"a\\\"b\\n\"} 3\n"
        );
    }

    #[test]
    fn counters_of_known_causes_begin_with_zero() {
        let mut status = Status::default();
        let name = "all".to_owned();
        status.exporters.push(Exporter { name, ..Exporter::default() });
        status.exporters[0].dropped.insert("too_old".to_owned(), 3);
        status.sampling.losses.insert("lost_events".to_owned(), 2);
        let text = text(&status);
        for line in [
            "strata_losses_total{cause=\"ring_full\"} 0\n",
            "strata_losses_total{cause=\"lost_events\"} 2\n",
            "strata_losses_total{cause=\"heap_dropped\"} 0\n",
            "strata_losses_total{cause=\"stack_no_mapping\"} 0\n",
            "strata_exporter_dropped_total{exporter=\"all\",cause=\"no_spool\"} 0\n",
            "strata_exporter_dropped_total{exporter=\"all\",cause=\"too_old\"} 3\n",
        ] {
            assert_eq!(text.matches(line).count(), 1, "{line} in\n{text}");
        }
        for cause in losses::causes() {
            let line = format!("strata_losses_total{{cause=\"{cause}\"}} ");
            assert_eq!(text.matches(&line).count(), 1, "{line}");
        }
    }

    /// Names and texts with their values and labels left out.
    fn table() -> String {
        let status = Status::default();
        let mut table = String::new();
        for Metric { name, kind, help, .. } in metrics(&status) {
            table += &format!("| `strata_{name}` | {kind} | {help} |\n");
        }
        table
    }

    #[test]
    fn the_documentation_has_every_metric_with_its_text() {
        let text = include_str!("../../../../docs/metrics.md");
        let (_, rest) =
            text.split_once("| metric | kind | what it is |\n|---|---|---|\n").expect("it");
        let end = rest.find("\n\n").map_or(rest.len(), |end| end + 1);
        let table = table();
        assert_eq!(rest.get(..end), Some(&*table), "docs/metrics.md should have\n{table}");
    }

    #[test]
    fn alerts_are_of_metrics_that_there_are() {
        let status = Status::default();
        let names: Vec<_> =
            metrics(&status).iter().map(|of| format!("strata_{}", of.name)).collect();
        let rules = include_str!("../../../../deploy/prometheus-rules.yaml");
        let is_of_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        let words = rules.split(|letter| !is_of_name(letter));
        let used: Vec<_> = words.filter(|word| word.starts_with("strata_")).collect();
        assert!(used.len() > 8, "{used:?}");
        for name in used {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
    }
}
