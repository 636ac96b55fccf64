//! What strata costs a busy program: attached, and sampling at 97 Hz.
//!
//! Two independent measurements. Direct: the CPU time of the BPF programs (by the kernel's
//! `run_time_ns`) and of the bridge's thread. Overall: the program's throughput in alternating
//! windows with and without strata in one process, each pair in the opposite order of the one
//! before. Work per CPU second of its thread excludes other load and includes interrupts; work per
//! second of wall time includes everything.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::Effort;
use super::quota::Quota;
use crate::bench::bpf_objects::{self, Loaded};
use crate::bench::figure::Figure;
use crate::bench::meters::ProcessMeter;
use crate::bench::pairs::{self, median};
use crate::running::{Running, wait_until};
use crate::runtimes::{self, Version};
use crate::strata;

const FREQUENCY: u32 = 97;
/// Percent.
const BOUND: f64 = 0.5;
/// Of the program: between two lines that say how far it is.
const INTERVAL: &str = "0.1";
/// Longer than any run here.
const LONG: f64 = 7200.0;
/// After which code is optimised and strata has read what was there.
const WARM_UP: Duration = Duration::from_secs(8);
const SETTLE: Duration = Duration::from_millis(2500);
const CALM_DOWN: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_secs(60);

/// Work done in a window.
#[derive(Clone, Copy)]
struct Speed {
    per_second: f64,
    per_cpu_second: f64,
    /// CPUs that the program's thread had.
    cpus: f64,
}

/// What strata used while the program worked.
#[derive(Clone, Copy)]
struct Shares {
    /// Percent of the program's CPU time, so for the next.
    bpf: f64,
    bridge: f64,
    /// Percent of a CPU.
    strata: f64,
    runs_per_second: f64,
}

/// How far the program is: operations, wall seconds, CPU seconds of its thread.
#[derive(Clone, Copy)]
struct Progress([f64; 3]);

struct Busy {
    running: Running,
}

impl Busy {
    fn start() -> Result<Self> {
        let dotnet = runtimes::dotnet()?;
        let command = dotnet.program(Version::V9, "Busy", &[&LONG.to_string(), INTERVAL])?;
        let mut running = Running::from_command(command)?;
        running.wait_for_line("ready", PATIENCE)?;
        Ok(Self { running })
    }

    fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Its next line: older ones may be from before a change.
    fn next_progress(&self) -> Result<Progress> {
        let lines =
            || self.running.printed().lines().filter(|l| l.starts_with("progress ")).count();
        let before = lines();
        wait_until("the program goes on", PATIENCE, || lines() > before)?;
        let output = self.running.printed();
        let line = output.lines().rev().find(|l| l.starts_with("progress "));
        let numbers: Vec<f64> =
            line.unwrap_or("").split(' ').filter_map(|word| word.parse().ok()).collect();
        Ok(Progress(numbers.try_into().ok().context("three numbers")?))
    }

    fn window(&self, seconds: f64) -> Result<Speed> {
        let Progress(from) = self.next_progress()?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let Progress(to) = self.next_progress()?;
        let [work, wall, cpu] = [to[0] - from[0], to[1] - from[1], to[2] - from[2]];
        Ok(Speed { per_second: work / wall, per_cpu_second: work / cpu, cpus: cpu / wall })
    }

    /// CPU nanoseconds of the bridge's thread.
    fn bridge_nanoseconds(&self) -> Option<u64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).ok()?;
        let read = |task: &std::path::Path, file| std::fs::read_to_string(task.join(file)).ok();
        tasks.flatten().map(|task| task.path()).find_map(|task| {
            let is_bridge = read(&task, "comm")?.trim() == "strata-clr";
            let text = if is_bridge { read(&task, "schedstat")? } else { return None };
            text.split(' ').next()?.parse().ok()
        })
    }

    /// A window with strata, from its start to its end.
    fn window_with_strata(&self, seconds: f64) -> Result<(Speed, Shares)> {
        let before = bpf_objects::loaded();
        let record = strata::record()?.pid(self.pid()).frequency(FREQUENCY).seconds(LONG);
        let mut recording = record.start()?;
        let own = Loaded::since(&before);
        let mut bridge = None;
        wait_until("strata has attached", PATIENCE, || {
            bridge = self.bridge_nanoseconds();
            bridge.is_some() || !recording.running().is_alive()
        })?;
        if bridge.is_none() {
            bail!("strata ended without having attached");
        }
        std::thread::sleep(SETTLE);
        let mut meter = ProcessMeter::of(recording.running().pid());
        meter.read_cpu();
        let (start, cpu, runs) = (Instant::now(), meter.cpu_seconds(), own.sampler_runs());
        let bridge = self.bridge_nanoseconds().context("the bridge's thread")?;
        let speed = self.window(seconds)?;
        let elapsed = start.elapsed().as_secs_f64();
        meter.read_cpu();
        let after = own.sampler_runs();
        let bridge = self.bridge_nanoseconds().context("the bridge's thread")? - bridge;
        let percent = |nanoseconds: u64| nanoseconds as f64 / elapsed / speed.cpus / 1e7;
        let shares = Shares {
            bpf: percent(after.nanoseconds - runs.nanoseconds),
            bridge: percent(bridge),
            strata: 100.0 * (meter.cpu_seconds() - cpu) / elapsed,
            runs_per_second: (after.count - runs.count) as f64 / elapsed,
        };
        recording.running().signal(Signal::INT)?;
        let recorded = recording.finish()?;
        drop(recorded);
        wait_until("the bridge has left", PATIENCE, || self.bridge_nanoseconds().is_none())?;
        std::thread::sleep(CALM_DOWN);
        Ok((speed, shares))
    }
}

/// Measures this part: with as many cores as there are, or with a quota.
pub fn measure(effort: Effort, cores: Option<f64>) -> Result<Vec<Figure>> {
    let busy = Busy::start()?;
    let quota = cores.map(|cores| Quota::limit(busy.pid(), cores)).transpose()?;
    std::thread::sleep(WARM_UP);
    let measured = in_turns(&busy, effort);
    drop(busy);
    let version = quota.as_ref().map(|quota| quota.version);
    drop(quota);
    let (part, how) = match (cores, version) {
        (Some(cores), Some(version)) => {
            ("quota", format!("{cores} cores by cgroup version {version}"))
        }
        _ => ("steady", String::new()),
    };
    let (without, with, shares) = measured?;
    Ok(figures(part, &how, &without, &with, &shares))
}

fn in_turns(busy: &Busy, effort: Effort) -> Result<(Vec<Speed>, Vec<Speed>, Vec<Shares>)> {
    let (mut without, mut with, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..effort.pairs {
        if pair.is_multiple_of(2) {
            without.push(busy.window(effort.seconds)?);
        }
        let (speed, share) = busy.window_with_strata(effort.seconds)?;
        with.push(speed);
        shares.push(share);
        if !pair.is_multiple_of(2) {
            without.push(busy.window(effort.seconds)?);
        }
    }
    Ok((without, with, shares))
}

fn figures(
    part: &str,
    how: &str,
    without: &[Speed],
    with: &[Speed],
    shares: &[Shares],
) -> Vec<Figure> {
    let middle = |of: fn(&Shares) -> f64| median(&shares.iter().map(of).collect::<Vec<_>>());
    let loss = |of: fn(&Speed) -> f64| {
        let values = |speeds: &[Speed]| speeds.iter().map(of).collect::<Vec<_>>();
        // Less work is a loss: the windows without strata are the larger value.
        pairs::relative(&values(without), &values(with))
    };
    let note = |figure: Figure| figure.note(how);
    vec![
        Figure::new(
            part,
            "BPF and bridge, of the program's CPU time",
            middle(|s| s.bpf + s.bridge),
            "%",
        )
        .at_most(BOUND)
        .note(format!(
            "median of {}: BPF {:.3}, bridge's thread {:.3}",
            shares.len(),
            middle(|s| s.bpf),
            middle(|s| s.bridge)
        )),
        note(Figure::difference(part, "loss of work per CPU second", &loss(|s| s.per_cpu_second)))
            .at_most(BOUND),
        note(Figure::difference(part, "loss of work per second", &loss(|s| s.per_second)))
            .at_most(BOUND),
        Figure::new(part, "strata itself", middle(|s| s.strata), "% of a CPU")
            .note(format!("BPF ran {:.0} times a second", middle(|s| s.runs_per_second))),
    ]
}
