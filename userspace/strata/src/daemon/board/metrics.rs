//! `/metrics`, in the text format of Prometheus.

use std::time::{SystemTime, UNIX_EPOCH};

use strata_export::ExporterHealth;

use super::{Board, SHED, read};
use strata_export::pipeline::FileFigures;

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
    /// In the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let snapshot = read(&self.snapshot);
        let published = read(&self.publisher);
        let exporters = self.delivery.health();
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
            "samples_unattributed_total",
            counter,
            "Samples of processes that exited before their metadata was read.",
            snapshot.unattributed as f64,
        );
        one("profiles_total", counter, "Profiles that were made.", snapshot.profiles as f64);
        one(
            "profiles_dropped_total",
            counter,
            "Profiles dropped because the exporters were busy.",
            snapshot.dropped_profiles as f64,
        );
        one("flushes_total", counter, "Flush cycles.", snapshot.flushes as f64);
        one(
            "flush_seconds_total",
            counter,
            "Time that the sampling loop was busy with flushes.",
            snapshot.flush_seconds,
        );
        one(
            "sampled_processes",
            gauge,
            "Processes that were sampled and are still there.",
            snapshot.sampled_processes as f64,
        );
        one(
            "process_readings_given_up_total",
            counter,
            "Processes whose environment could not be read in time.",
            snapshot.readings.given_up as f64,
        );
        one(
            "process_environment_bytes",
            gauge,
            "Bytes of the environments of sampled processes that are kept.",
            snapshot.environments.0 as f64,
        );
        one(
            "process_variables_dropped_total",
            counter,
            "Variables of processes that would name them and were too large to be kept.",
            snapshot.environments.1 as f64,
        );
        one(
            "process_readings_refused_total",
            counter,
            "Processes whose environment was not read because the readers were busy.",
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
        one("symbols", gauge, "Symbols that are kept for the next flush.", snapshot.names as f64);
        one(
            "symbols_late_total",
            counter,
            "Code addresses flushed without a symbol because their files answered too late.",
            snapshot.late_symbols as f64,
        );
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
            "Configurations that were applied by a reload.",
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
            "profiles_pooled_total",
            counter,
            "Profiles of short commands, which became part of the pool's.",
            published.pooled.short as f64,
        );
        one(
            "services_over_limit_total",
            counter,
            "Profiles of services beyond services.most, which became part of the pool's.",
            published.pooled.over as f64,
        );
        one(
            "label_values_other_total",
            counter,
            "Values of labels sent as `other`: their label has more than label_values.",
            published.cuts.other_values as f64,
        );
        one(
            "batches_undelivered_total",
            counter,
            "Batches that found no exporter.",
            published.undelivered as f64,
        );
        one(
            "own_destination_refused_total",
            counter,
            "Profiles that their target's own destination did not get: too many have one.",
            published.refused_own as f64,
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
            "Profiles that could not be written for an exporter.",
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
        let by_exporter = |value: fn(&ExporterHealth) -> f64| {
            exporters
                .iter()
                .map(|exporter| (exporter.name.clone(), value(exporter)))
                .collect::<Vec<_>>()
        };
        labelled(
            "exporter_delivered_batches_total",
            counter,
            "Batches that an exporter has taken.",
            "exporter",
            by_exporter(|exporter| exporter.delivered.batches as f64),
        );
        labelled(
            "exporter_delivered_profiles_total",
            counter,
            "Profiles that an exporter has taken.",
            "exporter",
            by_exporter(|exporter| exporter.delivered.profiles as f64),
        );
        labelled(
            "exporter_delivered_bytes_total",
            counter,
            "Bytes that an exporter has taken.",
            "exporter",
            by_exporter(|exporter| exporter.delivered_bytes as f64),
        );
        labelled(
            "exporter_rejected_profiles_total",
            counter,
            "Profiles that a server took and did not store.",
            "exporter",
            by_exporter(|exporter| exporter.rejected_profiles as f64),
        );
        labelled(
            "exporter_retries_total",
            counter,
            "Requests that had to be made again.",
            "exporter",
            by_exporter(|exporter| exporter.retries as f64),
        );
        labelled(
            "exporter_waiting_batches",
            gauge,
            "Batches that wait, in memory and on disk.",
            "exporter",
            by_exporter(|exporter| (exporter.queued + exporter.spooled) as f64),
        );
        labelled(
            "exporter_spool_bytes",
            gauge,
            "What waits on disk.",
            "exporter",
            by_exporter(|exporter| exporter.spooled_bytes as f64),
        );
        labelled(
            "exporter_lag_seconds",
            gauge,
            "Age of the oldest batch that is not delivered.",
            "exporter",
            by_exporter(|exporter| exporter.lag.as_secs_f64()),
        );
        let by_file_exporter = |value: fn(&FileFigures) -> f64| {
            let files = published.files.iter();
            files.map(|file| (file.name.clone(), value(file))).collect::<Vec<_>>()
        };
        labelled(
            "file_exporter_written_total",
            counter,
            "Files that a file exporter has written.",
            "exporter",
            by_file_exporter(|file| file.written as f64),
        );
        labelled(
            "file_exporter_failed_total",
            counter,
            "Profiles that a file exporter could not write.",
            "exporter",
            by_file_exporter(|file| file.failed as f64),
        );
        let drops = exporters.iter().flat_map(|exporter| {
            exporter.drops.by_cause().into_iter().map(|(cause, count)| {
                let labels = vec![("exporter", exporter.name.clone()), ("cause", cause.to_owned())];
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
            name: "exporter_dropped_total",
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
}
