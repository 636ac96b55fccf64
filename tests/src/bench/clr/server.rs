//! What a loaded server pays beside a daemon: `bench clr --part server`. Requests a second of clients that ask
//! again at once; latencies at half of that rate, from when a request was due, as the program itself measures
//! them; and the longest pause while a daemon starts and attaches.
//!
//! Windows with and without a daemon alternate, each pair in the opposite order of the one before. A pair in
//! which other programs used the CPUs is measured again.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use strata_bridge_protocol::shared_file::monotonic_time;
use tempfile::TempDir;

use super::Effort;
use crate::bench::bpf_objects::{self, Loaded};
use crate::bench::figure::Figure;
use crate::bench::meters::{HostBusy, ProcessMeter};
use crate::bench::pairs::{self, median, percentile};
use crate::daemon::Daemon;
use crate::running::{Running, wait_until};
use crate::runtimes::{self, Version};

const PART: &str = "server";
/// Longer than any run here.
const LONG: f64 = 7200.0;
/// After which code is optimised, and a daemon attaches at once.
const WARM_UP: Duration = Duration::from_secs(12);
const SETTLE: Duration = Duration::from_secs(1);
const CALM_DOWN: Duration = Duration::from_millis(700);
/// After a change of the rate, and until the program has written its log.
const CHANGE: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(60);
/// Seconds before and after the bridge is there, which are an attach.
const BEFORE: f64 = 1.0;
const AFTER: f64 = 2.0;
/// CPU that other programs may use beside a window, of one.
const OTHERS: f64 = 0.08;
/// Pairs that are measured at most, for one that is wanted.
const TRIES: usize = 6;
/// Percent of throughput.
const BOUND: f64 = 0.5;

/// What a daemon samples.
const TYPES: [&[&str]; 5] = [
    &["cpu"],
    &["cpu", "wall"],
    &["cpu", "wall", "off_cpu"],
    &["cpu", "exceptions", "locks"],
    &["cpu", "exceptions", "locks", "allocations", "heap", "gc"],
];

/// Rows of the table, beside one for each set of types, and its columns.
const NOTHING: &str = "nothing";
const ATTACH: &str = "the 3 s around an attach";
const DIRECT: &str = "BPF and bridge";
const DAEMON: &str = "the daemon";
const FEWER: &str = "fewer requests a second";
const MORE_CPU: &str = "more CPU time a request";
/// Of a latency: its difference.
const MORE: &str = ", more than without";

/// Latencies in milliseconds.
#[derive(Clone, Copy)]
struct Latencies {
    half: f64,
    p99: f64,
    p999: f64,
    longest: f64,
}

/// Requests in two windows, one at full and one at half speed.
#[derive(Clone, Copy)]
struct Measured {
    per_second: f64,
    per_cpu_second: f64,
    at_half: Latencies,
    /// At half speed, in a window as long as an attach's.
    as_attach: Latencies,
    /// CPUs that other programs had.
    others: f64,
    /// At full speed: BPF programs and the bridge's thread, in percent of the program's CPU time.
    direct: f64,
    /// The same of the daemon, in percent of a CPU.
    daemon: f64,
}

/// A daemon that is attached.
struct Beside {
    pid: i32,
    programs: Loaded,
    samples_switches: bool,
}

struct Server {
    running: Running,
    folder: TempDir,
    log: File,
    /// When each request was answered, and how long it took, in seconds.
    requests: Vec<(f64, f64)>,
    half_speed: f64,
}

/// The clock of the program's log, in seconds.
fn now() -> f64 {
    monotonic_time() as f64 / 1e9
}

impl Server {
    fn start() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("strata-bench-").tempdir()?;
        std::fs::write(folder.path().join("rate"), "0")?;
        let path = folder.path().to_str().context("a path")?;
        let words = [path, &LONG.to_string()];
        let command = runtimes::dotnet()?.program(Version::V9, "Requests", &words)?;
        let mut running = Running::from_command(command)?;
        running.wait_for_line("ready", PATIENCE)?;
        let log = folder.path().join("log");
        wait_until("there is a log", PATIENCE, || log.exists())?;
        let log = File::open(log)?;
        let mut server = Self { running, folder, log, requests: Vec::new(), half_speed: 0.0 };
        std::thread::sleep(WARM_UP);
        let from = now() - 3.0;
        server.read_log()?;
        let answered = server.requests.iter().filter(|(at, _)| *at >= from).count();
        server.half_speed = answered as f64 / 6.0;
        eprintln!("  half speed: {:.0} requests a second", server.half_speed);
        Ok(server)
    }

    fn set_rate(&self, rate: f64) -> Result<()> {
        let new = self.folder.path().join("new");
        std::fs::write(&new, rate.to_string())?;
        std::fs::rename(new, self.folder.path().join("rate"))?;
        std::thread::sleep(CHANGE);
        Ok(())
    }

    fn read_log(&mut self) -> Result<()> {
        std::thread::sleep(CHANGE);
        let mut bytes = Vec::new();
        self.log.read_to_end(&mut bytes)?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(f64::NAN, f64::from_le_bytes);
        let (records, rest) = bytes.as_chunks::<16>();
        anyhow::ensure!(rest.is_empty(), "a record of the log is half there");
        let records = records.iter().map(|record| record.split_at(8));
        self.requests.clear();
        self.requests.extend(records.map(|(at, took)| (number(at), number(took))));
        Ok(())
    }

    /// Of those that were answered in this time.
    fn latencies(&self, from: f64, to: f64) -> Result<Latencies> {
        let within = self.requests.iter().filter(|(at, _)| (from..to).contains(at));
        let took: Vec<f64> = within.map(|(_, took)| took * 1e3).collect();
        anyhow::ensure!(!took.is_empty(), "no requests");
        let at = |fraction| percentile(&took, fraction);
        Ok(Latencies { half: at(0.5), p99: at(0.99), p999: at(0.999), longest: at(1.0) })
    }

    /// Nanoseconds of BPF programs that interrupt the program, and of the bridge's threads, without what the
    /// runtime and the bridge do for an event in the program's own ones. Passes over
    /// threads run in the daemon, whose CPU time has them. The kernel does not count them apart from what
    /// runs at switches, and their time goes on while they wait for a CPU: beside those it is too much.
    fn direct_nanoseconds(&self, daemon: Option<&Beside>) -> u64 {
        let Some(Beside { programs, samples_switches, .. }) = daemon else { return 0 };
        let of_thread = |text: String| text.split(' ').next()?.parse::<u64>().ok();
        let of_bridge: u64 = self.bridge_files("schedstat").filter_map(of_thread).sum();
        let traced = if *samples_switches { programs.tracing_runs().nanoseconds } else { 0 };
        let events = programs.event_runs().nanoseconds;
        programs.sampler_runs().nanoseconds + events + traced + of_bridge
    }

    fn window(&mut self, seconds: f64, daemon: Option<&Beside>) -> Result<Measured> {
        let pids = [Some(self.running.pid()), daemon.map(|daemon| daemon.pid)];
        let mut meters = pids.map(|pid| pid.map(ProcessMeter::of));
        let mut used = || -> [f64; 2] {
            meters.each_mut().map(|meter| {
                meter.as_mut().map_or(0.0, |meter| {
                    meter.read_cpu();
                    meter.cpu_seconds()
                })
            })
        };
        self.set_rate(0.0)?;
        let (host, began) = (HostBusy::now()?, now());
        let (direct, before, from) = (self.direct_nanoseconds(daemon), used(), now());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (after, to) = (used(), now());
        let direct = (self.direct_nanoseconds(daemon) - direct) as f64 / 1e9;
        self.read_log()?;
        let answered =
            self.requests.iter().filter(|(at, _)| (from..to).contains(at)).count() as f64;
        self.set_rate(self.half_speed)?;
        let half_from = now();
        std::thread::sleep(Duration::from_secs_f64(seconds.max(BEFORE + AFTER)));
        let half_to = now();
        let end = used();
        let (of_all, elapsed) = (host.seconds_since()?, now() - began);
        let known: f64 = end.iter().zip(before).map(|(end, before)| end - before).sum();
        self.read_log()?;
        Ok(Measured {
            per_second: answered / (to - from),
            per_cpu_second: answered / (after[0] - before[0]),
            at_half: self.latencies(half_from, half_to)?,
            as_attach: self.latencies(half_to - BEFORE - AFTER, half_to)?,
            others: (of_all - known) / elapsed,
            direct: 100.0 * direct / (after[0] - before[0]),
            daemon: 100.0 * (after[1] - before[1]) / (to - from),
        })
    }

    /// A file of each of the bridge's threads.
    fn bridge_files(&self, name: &'static str) -> impl Iterator<Item = String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.running.pid()));
        let read = |task: &Path, name| std::fs::read_to_string(task.join(name)).ok();
        tasks.into_iter().flatten().flatten().map(|task| task.path()).filter_map(move |task| {
            read(&task, "comm")?.starts_with("strata-clr").then(|| read(&task, name))?
        })
    }

    fn has_bridge(&self) -> bool {
        self.bridge_files("comm").next().is_some()
    }

    /// Starts a daemon, at half speed: the latencies around its attach; then a window beside it.
    fn window_with(&mut self, types: &[&str], seconds: f64) -> Result<(Latencies, Measured)> {
        self.set_rate(self.half_speed)?;
        let mut daemon = Daemon::prepared()?;
        daemon.configure(&format!("[sampling]\ntypes = {types:?}\n"))?;
        std::thread::sleep(Duration::from_secs_f64(BEFORE));
        let before = bpf_objects::loaded();
        daemon.start()?;
        wait_until("the daemon has attached", PATIENCE, || self.has_bridge())?;
        let attached = now();
        std::thread::sleep(Duration::from_secs_f64(AFTER));
        self.read_log()?;
        let attach = self.latencies(attached - BEFORE, attached + AFTER)?;
        std::thread::sleep(SETTLE);
        let beside = Beside {
            pid: daemon.pid()?,
            programs: Loaded::since(&before),
            samples_switches: types.contains(&"off_cpu"),
        };
        let measured = self.window(seconds, Some(&beside))?;
        daemon.end()?;
        wait_until("the bridge has left", PATIENCE, || !self.has_bridge())?;
        std::thread::sleep(CALM_DOWN);
        Ok((attach, measured))
    }
}

/// Without a daemon, its attach, and beside it.
type Pair = (Measured, Latencies, Measured);

pub fn measure(effort: Effort) -> Result<Vec<Figure>> {
    let mut server = Server::start()?;
    let mut all: [Vec<Pair>; TYPES.len()] = Default::default();
    for _ in 0..effort.pairs * TYPES.len() * TRIES {
        // The one that has fewest, so that a busy while of the machine falls on all of them.
        let Some((types, own)) = TYPES.iter().zip(&mut all).min_by_key(|(_, own)| own.len()) else {
            break;
        };
        if own.len() == effort.pairs {
            break;
        }
        let pair = if own.len().is_multiple_of(2) {
            let without = server.window(effort.seconds, None)?;
            let (attach, with) = server.window_with(types, effort.seconds)?;
            (without, attach, with)
        } else {
            let (attach, with) = server.window_with(types, effort.seconds)?;
            (server.window(effort.seconds, None)?, attach, with)
        };
        let others = pair.0.others.max(pair.2.others);
        eprintln!(
            "  {types:?}: {:.0} and {:.0} requests a second, {:.0} and {:.0} a CPU second; longest \
             {:.1} ms, attach {:.1} ms, {:.1} ms; BPF and bridge {:.2} %; \
             others used {others:.2} CPUs{}",
            pair.0.per_second,
            pair.2.per_second,
            pair.0.per_cpu_second,
            pair.2.per_cpu_second,
            pair.0.at_half.longest,
            pair.1.longest,
            pair.2.at_half.longest,
            pair.2.direct,
            if others > OTHERS { ": again" } else { "" },
        );
        if others <= OTHERS {
            own.push(pair);
        }
    }
    anyhow::ensure!(all.iter().all(|pairs| pairs.len() > 1), "other programs used the CPUs");
    Ok(figures(&all, server.half_speed))
}

fn figures(all: &[Vec<Pair>; TYPES.len()], half_speed: f64) -> Vec<Figure> {
    let attaches: Vec<&Pair> = all.iter().flatten().collect();
    let medians = |of: &dyn Fn(&Pair) -> f64| {
        median(&attaches.iter().map(|pair| of(pair)).collect::<Vec<_>>())
    };
    let per_second = medians(&|pair| pair.0.per_second);
    let per_request = medians(&|pair| 1e6 / pair.0.per_cpu_second);
    let mut figures = vec![
        Figure::new(PART, name(NOTHING, "requests a second"), per_second, ""),
        Figure::new(PART, name(NOTHING, "CPU time a request"), per_request, "µs"),
    ];
    for (what, of) in LATENCIES {
        let value = medians(&|pair| of(&pair.0.at_half));
        let how = format!("median of windows, {half_speed:.0} requests a second");
        figures.push(Figure::new(PART, name(NOTHING, what), value, "ms").note(how));
    }
    for (types, pairs) in TYPES.iter().zip(all) {
        figures.extend(beside(&types.join(","), pairs));
    }
    for (what, of) in LATENCIES {
        let both = attaches.iter().map(|pair| (of(&pair.0.as_attach), of(&pair.1)));
        let (without, with): (Vec<f64>, Vec<f64>) = both.unzip();
        figures.extend(latency(ATTACH, what, &without, &with));
    }
    figures
}

type Of = fn(&Latencies) -> f64;

const LATENCIES: [(&str, Of); 4] = [
    ("p50", |latencies| latencies.half),
    ("p99", |latencies| latencies.p99),
    ("p99.9", |latencies| latencies.p999),
    ("longest", |latencies| latencies.longest),
];

fn name(beside: &str, what: &str) -> String {
    format!("{beside}: {what}")
}

/// The figures of one set of types.
fn beside(types: &str, pairs: &[Pair]) -> Vec<Figure> {
    let loss = |of: fn(&Measured) -> f64| {
        let both = pairs.iter().map(|(without, _, with)| (of(without), of(with)));
        let (without, with): (Vec<f64>, Vec<f64>) = both.unzip();
        // Fewer requests are a loss: the windows without strata are the larger value.
        pairs::relative(&without, &with)
    };
    let difference =
        |what, estimate| Figure::difference(PART, name(types, what), &estimate).at_most(BOUND);
    let middle = |of: &dyn Fn(&Measured) -> f64| {
        median(&pairs.iter().map(|pair| of(&pair.2)).collect::<Vec<_>>())
    };
    let mut figures = vec![
        Figure::new(PART, name(types, DIRECT), middle(&|measured| measured.direct), "%")
            .note("median, of the program's CPU time")
            .at_most(BOUND),
        Figure::new(PART, name(types, DAEMON), middle(&|measured| measured.daemon), "% of a core"),
        difference(FEWER, loss(|measured| measured.per_second)),
        difference(MORE_CPU, loss(|measured| measured.per_cpu_second)),
    ];
    for (what, of) in LATENCIES {
        let both = pairs.iter().map(|pair| (of(&pair.0.at_half), of(&pair.2.at_half)));
        let (without, with): (Vec<f64>, Vec<f64>) = both.unzip();
        figures.extend(latency(types, what, &without, &with));
    }
    figures
}

/// The median with a daemon, and the mean of the differences.
fn latency(beside: &str, what: &str, without: &[f64], with: &[f64]) -> [Figure; 2] {
    let differences: Vec<f64> = with.iter().zip(without).map(|(with, not)| with - not).collect();
    let difference = pairs::estimate(&differences);
    let mut more = Figure::new(PART, name(beside, what) + MORE, difference.mean, "ms")
        .note(format!("{} pairs, median {:+.3}", difference.count, difference.median));
    more.plus_minus = Some(difference.half_width);
    let value = Figure::new(PART, name(beside, what), median(with), "ms").note(format!(
        "median of windows, {:.3} without; largest {:.1}, {:.1} without",
        median(without),
        percentile(with, 1.0),
        percentile(without, 1.0),
    ));
    [value, more]
}

/// The README's table of these figures.
pub fn table(figures: &[Figure]) -> Option<String> {
    let find = |beside: &str, what: &str| {
        figures.iter().find(|figure| figure.part == PART && figure.name == name(beside, what))
    };
    let mut text = format!(
        "{:.0} requests a second as fast as the clients can; latencies at about half of that:\n\n",
        find(NOTHING, "requests a second")?.value
    );
    text += "| beside | BPF and bridge | the daemon | fewer requests a second | more CPU time a request | p50, ms | p99, ms | p99.9, ms | longest, ms |\n";
    text += "|---|---|---|---|---|---|---|---|---|\n";
    let rows = TYPES.map(|types| types.join(","));
    let rows = rows.iter().map(String::as_str);
    for beside in [NOTHING].into_iter().chain(rows).chain([ATTACH]) {
        let percent = |what| {
            find(beside, what).map_or(String::new(), |figure| {
                format!("{:+.2} ± {:.2} %", figure.value, figure.plus_minus.unwrap_or_default())
            })
        };
        let share = |what| {
            find(beside, what).map_or(String::new(), |figure| format!("{:.2} %", figure.value))
        };
        let mut cells = vec![beside.to_owned(), share(DIRECT), share(DAEMON)];
        cells.extend([percent(FEWER), percent(MORE_CPU)]);
        for (what, _) in LATENCIES {
            let value = find(beside, what)?.value;
            let more = find(beside, &format!("{what}{MORE}")).map(|figure| {
                format!(" ({:+.2} ± {:.2})", figure.value, figure.plus_minus.unwrap_or_default())
            });
            cells.push(format!("{value:.2}{}", more.unwrap_or_default()));
        }
        text += &format!("| {} |\n", cells.join(" | "));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_daemon_and_one_for_the_attach() {
        let latencies = |longest| Latencies { half: 1.0, p99: 2.0, p999: 3.0, longest };
        let measured = |per_second, longest| Measured {
            per_second,
            per_cpu_second: per_second,
            at_half: latencies(longest),
            as_attach: latencies(longest),
            others: 0.0,
            direct: 0.1,
            daemon: 2.0,
        };
        let pair = (measured(1000.0, 4.0), latencies(9.0), measured(990.0, 5.0));
        let all = TYPES.map(|_| vec![pair, pair]);
        let text = table(&figures(&all, 500.0)).expect("a table");
        let rows: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(rows.len(), 7);
        assert!(
            rows[0].starts_with("| nothing |  |  |  |  | 1.00 |") && rows[0].ends_with("| 4.00 |")
        );
        assert!(rows[2].starts_with("| cpu,wall | 0.10 % | 2.00 % | +1.01 ± 0.00 % |"), "{text}");
        assert!(rows[6].ends_with("| 9.00 (+5.00 ± 0.00) |"), "{text}");
        assert_eq!(table(&[]), None);
    }
}
