//! What CPU and wall-clock time together cost a program that uses every CPU and has many waiting threads:
//! a part of `bench wall`. Short windows with a recording and without, in turn, in one life of the program.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::figure::Figure;
use super::pairs;
use crate::machine;
use crate::running::Running;
use crate::{strata, targets};

const PART: &str = "wall";
const PATIENCE: Duration = Duration::from_secs(60);
/// Threads that wait, of which a tenth wakes up all the time.
const SLEEPERS: usize = 2_000;
/// Percent of the program's speed.
const BOUND: f64 = 0.5;
/// As a daemon's.
const FREQUENCY: u32 = 19;
const WINDOW: Duration = Duration::from_millis(2_500);
/// After the start of sampling: every stack has been read by then.
const WARM: Duration = Duration::from_millis(2_500);
/// After the end of a recording.
const REST: Duration = Duration::from_millis(300);

/// Units of work so far, of all threads.
fn units(counts: &Path) -> Result<u64> {
    let bytes = std::fs::read(counts)?;
    let lines = bytes.chunks_exact(64).filter_map(|line| line.first_chunk());
    Ok(lines.map(|count| u64::from_ne_bytes(*count)).sum())
}

/// Nanoseconds of the machine that a unit takes, in one window.
fn window(counts: &Path) -> Result<f64> {
    let (from, before) = (Instant::now(), units(counts)?);
    std::thread::sleep(WINDOW);
    let (time, done) = (from.elapsed(), units(counts)?.saturating_sub(before));
    ensure!(done > 0, "the program does nothing");
    Ok(time.as_nanos() as f64 / done as f64)
}

fn recorded_window(counts: &Path, pid: i32) -> Result<f64> {
    let seconds = (WARM + WINDOW * 4).as_secs_f64();
    let recording = strata::record()?.frequency(FREQUENCY).option("-e", "cpu,wall").pid(pid);
    let mut recording = recording.seconds(seconds).start()?;
    std::thread::sleep(WARM);
    let taken = window(counts)?;
    recording.running().signal(Signal::INT)?;
    let recorded = recording.finish()?;
    let samples = recorded.profile()?.stacks_of("samples")?.total();
    let expected = f64::from(FREQUENCY) * machine::cpus() as f64 * WINDOW.as_secs_f64();
    ensure!(samples as f64 > expected * 0.9, "{samples} samples, {expected:.0} in a window");
    std::thread::sleep(REST);
    Ok(taken)
}

/// So many pairs.
pub fn measure(count: usize) -> Result<Vec<Figure>> {
    let program = targets::c("works").flag("-pthread").build()?;
    let folder = tempfile::tempdir()?;
    let counts = folder.path().join("counts");
    File::create(&counts)?;
    let each = (WARM + WINDOW * 4 + REST).as_secs_f64() * 2.0;
    let arguments = [
        counts.to_str().context("a path that is text")?.to_owned(),
        machine::cpus().to_string(),
        SLEEPERS.to_string(),
        (each * (count + 2) as f64).to_string(),
    ];
    let mut target = Running::start(&program, &arguments.each_ref().map(String::as_str))?;
    target.wait_for_line("ready", PATIENCE)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    // The first pair warms the caches.
    for pair in 0..=count {
        eprintln!("wall, throughput, pair {pair} of {count} …");
        let mut both = [0.0; 2];
        for step in 0..2 {
            let recorded = (pair + step) % 2;
            both[recorded] = match recorded {
                0 => window(&counts)?,
                _ => recorded_window(&counts, target.pid())?,
            };
        }
        ensure!(target.is_alive(), "the program has ended");
        if pair > 0 {
            without.push(both[0]);
            with.push(both[1]);
        }
    }
    let longer = pairs::relative(&with, &without);
    let figure = Figure::difference(PART, "a unit of work takes longer: cpu, wall", &longer);
    Ok(vec![
        figure
            .note(format!("all CPUs busy, {SLEEPERS} threads wait, a tenth active"))
            .at_most(BOUND),
    ])
}
