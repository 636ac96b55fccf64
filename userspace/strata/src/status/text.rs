//! What `strata status` prints of a [`Status`].

use strata_profile::text::sanitize_for_terminal;

use super::{Exporter, Sourced, Status};
use crate::losses::{self, Running};
use crate::printing::{frequency, grouped};
use crate::terminal::counted;

fn sanitize(lines: &[String]) -> String {
    let lines = lines.iter().flat_map(|line| line.lines());
    lines.map(|line| format!("{}\n", sanitize_for_terminal(line))).collect()
}

fn bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        _ if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        _ if bytes >= 1e6 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.0} kB", bytes / 1e3),
    }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A line of its own, if there is any loss.
fn lost(count: u64, what: &str) -> Option<String> {
    (count > 0).then(|| format!("               {} {what}", grouped(count)))
}

pub fn status(status: &Status) -> String {
    let mut lines = Vec::new();
    lines.push(format!(
        "strata {} (pid {}), {}, up {}",
        status.version,
        status.pid,
        if status.healthy { "healthy" } else { "NOT HEALTHY" },
        span(status.uptime_seconds)
    ));
    settings(status, &mut lines);
    sampling(status, &mut lines);
    targets(status, &mut lines);
    delivery(status, &mut lines);
    cost(status, &mut lines);
    sanitize(&lines)
}

fn settings(status: &Status, lines: &mut Vec<String>) {
    let configuration = &status.configuration;
    let file = match configuration.file.as_str() {
        "" => "defaults, environment and flags",
        file => file,
    };
    let reloads = counted(configuration.reloads, "time");
    lines.push(format!("configuration  {file}, reloaded {reloads}"));
    if let Some(trouble) = &configuration.trouble {
        lines.push(
            "               the file on disk was refused, the previous configuration is in use:"
                .into(),
        );
        lines.extend(trouble.lines().map(|line| format!("               {line}")));
    }
    if let Some(trouble) = &status.sampling.trouble {
        lines.push(format!("sampling       stopped for some or all types, retried: {trouble}"));
    }
    if let Some(trouble) = &status.metrics_trouble {
        lines.push(format!("metrics        are not served: {trouble}"));
    }
    if let Some(trouble) = status.broker.as_ref().and_then(|broker| broker.trouble.as_ref()) {
        lines.push(format!("helper         {trouble}"));
    }
    for disk in &status.silent_disks {
        lines.push(format!("disk           {}", disk.text()));
    }
}

fn sampling(status: &Status, lines: &mut Vec<String>) {
    let sampling = &status.sampling;
    lines.push(format!(
        "sampling       {}, {}; {} in profiles, {} left out",
        frequency(sampling.frequency, sampling.highest_frequency),
        counted(sampling.processes as u64, "process"),
        counted(sampling.samples, "sample"),
        grouped(sampling.left_out)
    ));
    for (cause, count) in &sampling.losses {
        let text = losses::explained_for(cause, *count).unwrap_or_else(|| cause.clone());
        let advice = losses::advice(cause, Running::Daemon);
        let advice = advice.map_or(String::new(), |advice| format!(": {advice}"));
        lines.push(format!("               missing: {} {text}{advice}", grouped(*count)));
    }
    for file in &sampling.unreadable_files {
        lines.push(format!("               unreadable: {}: {}", file.path, file.why));
    }
    let profiles = &status.profiles;
    lines.push(format!(
        "profiles       {} in {}, {} dropped",
        grouped(profiles.made),
        counted(profiles.flushes, "flush"),
        grouped(profiles.dropped)
    ));
    lines.extend(lost(profiles.undelivered_batches, "batches found no exporter"));
    lines.extend(lost(profiles.unwritable, "profiles could not be encoded"));
    lines.extend(lost(
        profiles.refused_own_destination,
        "profiles did not go to their process's own destination: too many have one",
    ));
    lines.extend(lost(
        sampling.unattributed,
        "samples are of processes that exited before their metadata was read",
    ));
}

fn targets(status: &Status, lines: &mut Vec<String>) {
    let dotnet = &status.dotnet;
    lines.push(match dotnet.policy.as_str() {
        "off" => ".NET           off (dotnet.bridge): methods have no names".to_owned(),
        _ => format!(
            ".NET           {} attached ({} since the start), {} waiting, {}",
            dotnet.read_now,
            dotnet.attached,
            dotnet.waiting,
            counted(dotnet.methods, "method")
        ),
    });
    for refused in dotnet.refused.iter().take(10) {
        lines.push(format!("               {}: {}", refused.pid, refused.why));
    }
    if let Some(wall) = &status.wall {
        lines.push(format!(
            "wall           {}, a pass every {:.0} ms",
            counted(wall.threads as u64, "thread"),
            wall.interval_seconds * 1e3
        ));
        for process in wall.not_walked.iter().take(10) {
            lines.push(format!("               {}: {}", process.pid, process.why));
        }
    }
    let reading = &status.reading;
    if reading.given_up > 0 || reading.refused > 0 {
        lines.push(format!(
            "environments   {} could not be read in time, {} were not tried; {} hanging",
            grouped(reading.given_up),
            grouped(reading.refused),
            counted(reading.stuck as u64, "thread")
        ));
    }
    lines.extend(lost(
        reading.variables_not_kept,
        "variables that would name processes were too large to be kept",
    ));
    let containers = &status.containers;
    lines.push(format!(
        "containers     {} known, {} unknown",
        grouped(containers.known as u64),
        grouped(containers.unknown as u64)
    ));
    for source in &containers.sources {
        if let Some(error) = &source.last_error {
            let (name, failed) = (&source.name, grouped(source.failed));
            lines.push(format!("               {name}: failed {failed} times, last: {error}"));
        }
    }
}

fn delivery(status: &Status, lines: &mut Vec<String>) {
    let store = &status.store;
    lines.push(format!(
        "store          {} written, {}; dictionaries in memory {}",
        counted(store.profiles, "profile"),
        bytes(store.bytes),
        bytes(store.dictionaries)
    ));
    lines.extend(lost(store.not_stored, "profiles were not stored"));
    lines.extend(lost(
        store.folded,
        "profiles were stored without their stacks: their service had its share of store.size",
    ));
    if store.dropped > 0 {
        let dropped = grouped(store.dropped);
        lines.push(format!("               {dropped} profiles were too old, or beyond store.size"));
    }
    lines.extend(lost(
        status.profiles.pooled_over_limit,
        "profiles pooled: more than services.most services in an hour",
    ));
    let (awaited, unnamed) = (status.profiles.late_awaited, status.profiles.late_unnamed);
    if store.late_named > 0 || awaited > 0 || unnamed > 0 {
        lines.push(format!(
            "late symbols   {} named in the store, {} awaited, {} stay without",
            grouped(store.late_named),
            grouped(awaited as u64),
            grouped(unnamed)
        ));
    }
    if let Some(trouble) = &store.trouble {
        lines.push(format!("               {trouble}"));
    }
    for one in &status.exporters {
        exporter(one, lines);
    }
    for file in &status.file_exporters {
        let failing = file.failing_seconds.map(|seconds| format!("failing for {seconds} s; "));
        let (failing, files) = (failing.unwrap_or_default(), counted(file.files_written, "file"));
        lines.push(format!("exporter {:<9} {failing}{files}", file.name));
        lines.extend(lost(file.failed, "profiles could not be written"));
        if let Some(trouble) = &file.trouble {
            lines.push(format!("               {trouble}"));
        }
    }
}

fn exporter(exporter: &Exporter, lines: &mut Vec<String>) {
    lines.push(format!(
        "exporter {:<9} {}; {} ({}) delivered, {} waiting, lag {}",
        exporter.name,
        exporter.state,
        counted(exporter.delivered_profiles, "profile"),
        bytes(exporter.delivered_bytes),
        counted(exporter.waiting_batches as u64, "batch"),
        span(exporter.lag_seconds as u64)
    ));
    lines.extend(lost(exporter.rejected_profiles, "profiles were rejected by the server"));
    for (cause, count) in &exporter.dropped {
        lines.push(format!("               dropped: {cause} {}", grouped(*count)));
    }
    for (what, trouble) in [
        ("last error", &exporter.last_error),
        ("last refusal", &exporter.last_refusal),
        ("spool", &exporter.spool_error),
    ] {
        if let Some(trouble) = trouble {
            let ago = span(trouble.seconds_ago.unwrap_or(0));
            lines.push(format!("               {what} {ago} ago: {}", trouble.reason));
        }
    }
}

fn cost(status: &Status, lines: &mut Vec<String>) {
    let memory = &status.memory;
    lines.push(format!(
        "memory         {} of {} (own {}, helpers {}, kernel {}), peak {}",
        bytes(memory.bytes),
        bytes(memory.limit),
        bytes(memory.own),
        bytes(memory.workers),
        bytes(memory.bpf_maps),
        bytes(memory.peak)
    ));
    let cpu = &status.cpu_seconds;
    let uptime = status.uptime_seconds.max(1) as f64;
    let share = |seconds: f64| seconds / uptime * 100.0;
    lines.push(format!(
        "processor      {:.2} % of one CPU: own {:.2} %, helpers {:.2} %, in the kernel {:.2} %",
        share(cpu.own + cpu.helpers + cpu.bpf),
        share(cpu.own),
        share(cpu.helpers),
        share(cpu.bpf)
    ));
}

/// The sampled processes: each value of their identities, and where it comes from.
pub fn services(status: &Status) -> String {
    let sourced = |known: &Sourced| format!("{} ({})", known.value, known.from);
    let mut lines = Vec::new();
    for one in &status.services {
        let mut line = format!("{:>7}  {}", one.pid, sourced(&one.service));
        for (name, known) in [("env", &one.env), ("version", &one.version)] {
            if let Some(known) = known {
                line.push_str(&format!("  {name}={}", sourced(known)));
            }
        }
        for (name, value) in &one.labels {
            line.push_str(&format!("  {name}={}", sourced(value)));
        }
        if !one.enabled {
            line.push_str("  left out by a rule");
        }
        if !one.ignored.is_empty() {
            line.push_str(&format!("  ignored: {}", one.ignored.join(", ")));
        }
        lines.push(line);
    }
    if lines.is_empty() {
        lines.push("no process is described yet: the list is renewed every ten seconds".to_owned());
    }
    if status.services_not_listed > 0 {
        let more = grouped(status.services_not_listed as u64);
        lines.push(format!("… and {more} more that are not listed"));
    }
    sanitize(&lines)
}

#[cfg(test)]
mod tests {
    use super::super::{Broker, FileExporter, PastTrouble, Profiles, Service, Store};
    use super::*;

    #[test]
    fn a_status_with_nothing_in_it_is_shown_all_the_same() {
        let shown = status(&Status::default());
        assert!(shown.contains("NOT HEALTHY"), "{shown}");
    }

    #[test]
    fn processes_that_the_list_has_no_room_for_are_counted() {
        let one = Service { pid: 7, ..Service::default() };
        let shown = services(&Status {
            services: vec![one],
            services_not_listed: 1_200,
            ..Status::default()
        });
        assert!(shown.ends_with("\n… and 1,200 more that are not listed\n"), "{shown}");
        assert!(services(&Status::default()).starts_with("no process is described yet"));
    }

    #[test]
    fn a_rate_that_only_rules_ask_for_is_not_that_of_the_host() {
        let with = |frequency, highest_frequency| {
            let sampling =
                super::super::Sampling { frequency, highest_frequency, ..Default::default() };
            status(&Status { sampling, ..Status::default() })
        };
        assert!(with(19, 19).contains("sampling       19 Hz, 0 processes"));
        assert!(with(19, 99).contains("sampling       19 Hz (up to 99 Hz by rules), 0 processes"));
    }

    #[test]
    fn a_helper_that_has_ended_is_shown() {
        let with = |trouble: Option<&str>| {
            let trouble = trouble.map(str::to_owned);
            let broker = Some(Broker { trouble, ..Broker::default() });
            status(&Status { broker, ..Status::default() })
        };
        assert!(with(Some("no events: restart strata")).contains("helper   "));
        assert!(!with(None).contains("helper   "));
    }

    #[test]
    fn a_store_shows_what_it_takes_on_disk_and_in_memory() {
        let store = Store {
            profiles: 12_000,
            bytes: 120_000_000,
            dictionaries: 4_200_000,
            ..Store::default()
        };
        let shown = status(&Status { store, ..Status::default() });
        let expected = "12,000 profiles written, 120.0 MB; dictionaries in memory 4.2 MB\n";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn losses_are_explained() {
        let mut all = Status::default();
        all.sampling.losses.insert("stack_capture_limit".to_owned(), 1200);
        all.sampling.losses.insert("new_one".to_owned(), 3);
        let shown = status(&all);
        let explained = losses::explained("stack_capture_limit").expect("a loss");
        assert!(shown.contains(&format!("missing: 1,200 {explained}: usual in")), "{shown}");
        // Of another version of strata.
        assert!(shown.contains("missing: 3 new_one\n"), "{shown}");
    }

    #[test]
    fn what_was_not_kept_or_sent_is_shown_when_there_is_any() {
        let with = |count: u64| {
            status(&Status {
                profiles: Profiles { undelivered_batches: count, ..Profiles::default() },
                store: Store { not_stored: count, ..Store::default() },
                file_exporters: vec![FileExporter {
                    name: "files".to_owned(),
                    files_written: 7,
                    failed: count,
                    ..FileExporter::default()
                }],
                ..Status::default()
            })
        };
        let late = |named, awaited, unnamed| {
            let profiles =
                Profiles { late_awaited: awaited, late_unnamed: unnamed, ..Profiles::default() };
            let store = Store { late_named: named, ..Store::default() };
            status(&Status { profiles, store, ..Status::default() })
        };
        assert!(!late(0, 0, 0).contains("late symbols"));
        let expected = "late symbols   1,200 named in the store, 3 awaited, 4 stay without\n";
        assert!(late(1200, 3, 4).contains(expected), "{}", late(1200, 3, 4));
        let losses = [
            "batches found no exporter",
            "profiles were not stored",
            "profiles could not be written",
        ];
        let (none, some) = (with(0), with(1200));
        for loss in losses {
            assert!(!none.contains(loss), "{none}");
            assert!(some.contains(&format!(" 1,200 {loss}\n")), "{some}");
        }
    }

    #[test]
    fn an_exporter_of_files_that_fails_shows_since_when_and_why() {
        let reason = "/profiles: could not write the profile: No space left on device";
        let file = FileExporter {
            name: "files".to_owned(),
            failed: 12,
            failing_seconds: Some(40),
            trouble: Some(reason.to_owned()),
            ..FileExporter::default()
        };
        let shown = status(&Status { file_exporters: vec![file], ..Status::default() });
        for expected in ["exporter files     failing for 40 s; 0 files\n", reason] {
            assert!(shown.contains(expected), "{shown}");
        }
    }

    #[test]
    fn an_exporter_shows_what_it_lost_and_why() {
        let mut lines = Vec::new();
        let one = Exporter {
            name: "pyroscope".to_owned(),
            state: "waiting 7 s".to_owned(),
            lag_seconds: 130.0,
            dropped: [("too_old".to_owned(), 3)].into(),
            last_error: Some(PastTrouble {
                reason: "the server answered 500".to_owned(),
                seconds_ago: Some(4),
            }),
            ..Exporter::default()
        };
        exporter(&one, &mut lines);
        let lines = lines.join("\n");
        for expected in
            ["waiting 7 s", "dropped: too_old 3", "4 s ago: the server answered 500", "2 min"]
        {
            assert!(lines.contains(expected), "{lines}");
        }
    }

    #[test]
    fn the_parts_of_the_processor_time_add_up() {
        let mut all = Status { uptime_seconds: 100, ..Status::default() };
        all.cpu_seconds =
            super::super::CpuSeconds { own: 1.0, helpers: 2.0, flushes: 0.5, bpf: 4.0 };
        let shown = status(&all);
        let expected = "7.00 % of one CPU: own 1.00 %, helpers 2.00 %, in the kernel 4.00 %";
        assert!(shown.contains(expected), "{shown}");
    }
}
