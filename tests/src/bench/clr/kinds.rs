//! What each kind of event costs a server, and whether its totals are right: `bench clr --part kinds`
//! and `--part ladder`.
//!
//! *kinds*: a program that answers requests on four threads, in alternating windows without strata and
//! with a recording of one kind, or of several; each pair is in the opposite order of the one before.
//! Requests per CPU second of the process exclude other load, except for what it does to caches;
//! requests per second include everything.
//!
//! *ladder*: a program makes 1,000, 10,000 and 100,000 events a second of a kind, or as many as it can;
//! what it, or the runtime, has counted is compared with the recording's total, and events that the
//! kernel's ring had no room for are shown.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::Effort;
use crate::bench::figure::Figure;
use crate::bench::pairs;
use crate::running::{Running, wait_until};
use crate::runtimes::{self, Version};
use crate::strata;

const VERSION: Version = Version::V9;
const INTERVAL: &str = "0.1";
/// Longer than any run here.
const LONG: f64 = 7200.0;
const WARM_UP: Duration = Duration::from_secs(5);
/// After the bridge reports events.
const SETTLE: Duration = Duration::from_millis(1500);
const CALM_DOWN: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_secs(60);
/// What the recording says once the bridge reports events.
const REPORTED: &str = "events of a .NET process are reported";

/// What is recorded, and the bound in percent of throughput, where there is one.
const RECORDED: [(&str, f64); 8] = [
    ("exceptions", 2.0),
    ("locks", 2.0),
    ("allocations", 2.0),
    ("heap", 2.0),
    ("gc", 2.0),
    ("wait_handles", 2.0),
    ("cpu,exceptions,locks", 1.0),
    ("cpu,exceptions,locks,allocations,heap,gc", 2.0),
];

/// Requests in a window.
#[derive(Clone, Copy)]
struct Speed {
    per_second: f64,
    per_cpu_second: f64,
}

struct Server {
    running: Running,
}

impl Server {
    fn start() -> Result<Self> {
        let dotnet = runtimes::dotnet()?;
        let command = dotnet.program(VERSION, "Serves", &[&LONG.to_string(), INTERVAL])?;
        let mut running = Running::from_command(command)?;
        running.wait_for_line("ready", PATIENCE)?;
        Ok(Self { running })
    }

    /// Its next line: requests, seconds, CPU seconds so far.
    fn next_progress(&self) -> Result<[f64; 3]> {
        let lines = || self.running.printed().matches("progress ").count();
        let before = lines();
        wait_until("the program goes on", PATIENCE, || lines() > before)?;
        let output = self.running.printed();
        // The last line may be half there.
        let line = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let line = line.rsplit('\n').next().unwrap_or_default();
        let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().ok().context("three numbers")
    }

    fn window(&self, seconds: f64) -> Result<Speed> {
        let from = self.next_progress()?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let to = self.next_progress()?;
        let [work, wall, cpu] = [to[0] - from[0], to[1] - from[1], to[2] - from[2]];
        Ok(Speed { per_second: work / wall, per_cpu_second: work / cpu })
    }

    fn window_with(&self, kinds: &str, seconds: f64) -> Result<Speed> {
        let record = strata::record()?.pid(self.running.pid()).option("-e", kinds).flag("-v");
        let mut recording = record.seconds(LONG).start()?;
        recording.running().wait_for_log(REPORTED, PATIENCE)?;
        std::thread::sleep(SETTLE);
        let speed = self.window(seconds)?;
        recording.running().signal(Signal::INT)?;
        drop(recording.finish()?);
        std::thread::sleep(CALM_DOWN);
        Ok(speed)
    }
}

pub fn measure(effort: Effort) -> Result<Vec<Figure>> {
    let server = Server::start()?;
    std::thread::sleep(WARM_UP);
    let (mut without, mut with) = (vec![vec![]; RECORDED.len()], vec![vec![]; RECORDED.len()]);
    // Kinds in turn, so that a busy while of the machine falls on all of them.
    for pair in 0..effort.pairs {
        for (position, (kinds, _)) in RECORDED.iter().enumerate() {
            let (one, other) = if pair.is_multiple_of(2) {
                let first = server.window(effort.seconds)?;
                (first, server.window_with(kinds, effort.seconds)?)
            } else {
                let second = server.window_with(kinds, effort.seconds)?;
                (server.window(effort.seconds)?, second)
            };
            without[position].push(one);
            with[position].push(other);
        }
    }
    let mut figures = Vec::new();
    for ((kinds, bound), (without, with)) in RECORDED.iter().zip(without.iter().zip(&with)) {
        let loss = |of: fn(&Speed) -> f64| {
            let values = |speeds: &[Speed]| speeds.iter().map(of).collect::<Vec<_>>();
            // Fewer requests are a loss: the windows without strata are the larger value.
            pairs::relative(&values(without), &values(with))
        };
        let name = |per: &str| format!("{kinds}: fewer requests per {per}");
        figures.push(
            Figure::difference("kinds", name("CPU second"), &loss(|s| s.per_cpu_second))
                .at_most(*bound),
        );
        figures.push(
            Figure::difference("kinds", name("second"), &loss(|s| s.per_second)).at_most(*bound),
        );
    }
    Ok(figures)
}

/// A kind, the type of its profile that is compared, and its loss in a recording's summary.
const LADDER: [(&str, &str, &str); 3] = [
    ("exceptions", "exceptions", "exceptions_dropped"),
    ("locks", "lock_count", "locks_dropped"),
    ("allocations", "alloc_size", "allocations_dropped"),
];
const RATES: [u32; 3] = [1_000, 10_000, 100_000];

pub fn ladder(effort: Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (kind, sample_type, loss) in LADDER {
        for rate in RATES {
            figures.extend(step(kind, sample_type, loss, rate, effort.seconds)?);
        }
    }
    Ok(figures)
}

fn step(kind: &str, sample_type: &str, loss: &str, rate: u32, seconds: f64) -> Result<Vec<Figure>> {
    let folder = tempfile::Builder::new().prefix("strata-paces-").tempdir()?;
    let go = folder.path().join("go").to_string_lossy().into_owned();
    let words = [kind, &rate.to_string(), &seconds.to_string(), &go];
    let mut target = Running::from_command(runtimes::dotnet()?.program(VERSION, "Paces", &words)?)?;
    target.wait_for_line("ready", PATIENCE)?;
    let record = strata::record()?.pid(target.pid()).option("-e", kind).flag("-v");
    let mut recording = record.start()?;
    recording.running().wait_for_log(REPORTED, PATIENCE)?;
    std::thread::sleep(SETTLE);
    std::fs::write(&go, [])?;
    let printed = target.wait(PATIENCE + Duration::from_secs_f64(seconds))?.stdout;
    let counted = printed.split("counted=").nth(1).context("no count")?.trim().parse::<f64>()?;
    let recorded = recording.end()?;
    let summary = recorded.summary()?;
    let refused = summary.losses_named(&[loss]);
    let records = summary.0["bpf"]["clr_events"].as_f64().context("no records")?;
    let stacks = recorded.profile()?.stacks_of(sample_type).map(|stacks| stacks.total());
    let seen = stacks.unwrap_or_default() as f64;
    // Of allocations the program counts bytes, of which about each 100 kB are an event.
    let events = if kind == "allocations" { counted / 102_400.0 } else { counted };
    let what = format!("{kind}, {rate} a second wanted");
    let note = format!("{counted:.0} counted, {seen:.0} seen, {records:.0} records");
    Ok(vec![
        Figure::new("ladder", format!("{what}: made"), events / seconds, "a second"),
        Figure::new("ladder", format!("{what}: total"), 100.0 * (seen / counted - 1.0), "%")
            .note(note),
        Figure::new("ladder", format!("{what}: without room"), refused as f64, "events"),
    ])
}
