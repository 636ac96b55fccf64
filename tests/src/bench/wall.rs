//! What passes over threads cost: `bench wall`. One process with many threads, of which none, one, a tenth
//! or all are switched between two passes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::figure::Figure;
use super::meters::ProcessMeter;
use crate::running::Running;
use crate::{strata, targets};

const PART: &str = "wall";
const PATIENCE: Duration = Duration::from_secs(120);
/// After which the first pass has read every stack.
const WARM: f64 = 3.0;

/// Wake-ups a second of all threads: as many as leave room on two CPUs.
const WAKEUPS: u32 = 50_000;

/// How long active threads sleep at a time, in milliseconds: they are switched between two passes, which
/// are the slower the more threads there are.
fn nap(active: u32) -> u32 {
    (active * 1000 / WAKEUPS).max(20)
}

/// Percent of a core that strata may take. Of threads that are blocked less than what passes are slowed
/// down to.
fn bound(threads: u32, active: u32) -> f64 {
    if threads <= 2_000 && active == 0 { 0.3 } else { 1.0 }
}

/// Passes of one recording.
struct Passes {
    count: f64,
    /// Nanoseconds that they took of a CPU, by strata's own account.
    nanoseconds: f64,
    /// Of that, what sending every thread took: the first one.
    first: f64,
    /// Percent of a core that the whole of strata takes, once it is warm.
    from_outside: f64,
}

fn passes(threads: u32, active: u32, seconds: f64) -> Result<Passes> {
    let program = targets::c("sleepers").flag("-pthread").build()?;
    let lifetime = (seconds + 20.0).to_string();
    let arguments = [threads.to_string(), active.to_string(), lifetime, nap(active).to_string()];
    let mut target = Running::start(&program, &arguments.each_ref().map(String::as_str))?;
    target.wait_for_line("ready", PATIENCE)?;
    let recording = strata::record()?.as_text().flag("-vv").option("-e", "wall");
    let recording = recording.pid(target.pid()).seconds(seconds);
    let running = Running::from_command(recording.to_command()?)?;
    let mut meter = ProcessMeter::of(running.pid());
    std::thread::sleep(Duration::from_secs_f64(WARM));
    meter.read_cpu();
    let (from, used) = (Instant::now(), meter.cpu_seconds());
    std::thread::sleep(Duration::from_secs_f64((seconds - WARM - 1.0).max(1.0)));
    meter.read_cpu();
    let from_outside = 100.0 * (meter.cpu_seconds() - used) / from.elapsed().as_secs_f64();
    let said = running.wait(PATIENCE)?.stderr;
    let line = said.lines().find(|line| line.contains("passes over threads"));
    let numbers = line.context("no passes")?.split(' ').filter_map(|word| word.parse().ok());
    match numbers.collect::<Vec<f64>>().as_slice() {
        &[count, nanoseconds, first, ..] => Ok(Passes { count, nanoseconds, first, from_outside }),
        _ => anyhow::bail!("no figures in {said}"),
    }
}

/// By the number of threads and the share that is active. Each recording takes ten seconds at least.
pub fn measure(seconds: f64) -> Result<Vec<Figure>> {
    let seconds = seconds.max(10.0);
    let mut figures = Vec::new();
    for threads in [100, 2_000, 10_000] {
        for active in [0, 1, threads / 10, threads] {
            eprintln!("wall, {threads} threads, {active} active …");
            let Passes { count, nanoseconds, first, from_outside } =
                passes(threads, active, seconds)?;
            let name = |what: &str| format!("{threads} threads, {active} active: {what}");
            let later = nanoseconds - first;
            figures.push(
                Figure::new(PART, name("a pass"), later / (count - 1.0).max(1.0) / 1e6, "ms")
                    .note(format!("the first one {:.1} ms", first / 1e6))
                    .note(format!("{:.1} passes a second", count / seconds)),
            );
            let share = 100.0 * later / 1e9 / seconds;
            figures.push(
                Figure::new(PART, name("all passes"), share, "% of a core")
                    .note("after the first one"),
            );
            figures.push(
                Figure::new(PART, name("all of strata"), from_outside, "% of a core")
                    .note("from three seconds on")
                    .at_most(bound(threads, active)),
            );
        }
    }
    Ok(figures)
}
