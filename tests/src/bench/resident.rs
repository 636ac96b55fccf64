//! What a daemon costs that runs for good: `bench daemon`. Its whole control group, helpers that have
//! ended included, at 19 Hz: in the first 15 s, and from 45 s on, on an idle host and beside a recursion
//! on two CPUs.
//!
//! Other programs that run meanwhile cost the daemon too: how busy the host was is in the notes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::control_group::ControlGroup;
use super::figure::Figure;
use super::scenes::Scene;
use crate::daemon::Daemon;

const PART: &str = "daemon";
const CONFIGURATION: &str = "[sampling]\nfrequency = 19\n";
const FIRST: Duration = Duration::from_secs(15);
const WARM: Duration = Duration::from_secs(45);
/// Percent of a core that an idle host may pay.
const IDLE_BOUND: f64 = 0.1;
/// Megabytes, proportionally.
const MEMORY_BOUND: f64 = 30.0;

/// Measures both scenes, each for so many seconds after it has warmed up.
pub fn measure(seconds: f64) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for scene in [Scene::Idle, Scene::Recursion { depth: 50 }] {
        eprintln!("daemon, {} …", scene.name());
        figures.extend(of_scene(scene, Duration::from_secs_f64(seconds))?);
    }
    Ok(figures)
}

fn of_scene(scene: Scene, window: Duration) -> Result<Vec<Figure>> {
    let _stage = scene.start()?;
    let group = ControlGroup::new(PART)?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(CONFIGURATION)?;
    let started = Instant::now();
    group.around(|| daemon.start())?;
    let until = |after: Duration| std::thread::sleep(after.saturating_sub(started.elapsed()));
    until(FIRST);
    let first = 100.0 * group.cpu_seconds()? / started.elapsed().as_secs_f64();
    until(WARM);
    let (at, used, busy) = (Instant::now(), group.cpu_seconds()?, Busy::now()?);
    std::thread::sleep(window);
    let steady = 100.0 * (group.cpu_seconds()? - used) / at.elapsed().as_secs_f64();
    let busy = busy.percent_since()?;
    let memory = group.proportional_bytes()? as f64 / 1e6;
    daemon.end()?;
    let name = |what: &str| format!("{}: {what}", scene.name());
    let after = Figure::new(PART, name("after 45 s"), steady, "% of a core")
        .note(format!("{} s; the host was {busy:.0} % busy", window.as_secs()));
    let after = if scene == Scene::Idle { after.at_most(IDLE_BOUND) } else { after };
    Ok(vec![
        Figure::new(PART, name("first 15 s"), first, "% of a core"),
        after,
        Figure::new(PART, name("memory (PSS)"), memory, "MB")
            .note("maps of BPF that are mapped included")
            .at_most(MEMORY_BOUND),
    ])
}

/// How long all CPUs have worked, of how long they were there.
struct Busy {
    worked: u64,
    all: u64,
}

impl Busy {
    fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("an empty /proc/stat")?;
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let all = ticks.iter().take(8).sum::<u64>();
        let idle = ticks.iter().skip(3).take(2).sum::<u64>();
        Ok(Self { worked: all - idle, all })
    }

    fn percent_since(&self) -> Result<f64> {
        let now = Self::now()?;
        Ok(100.0 * (now.worked - self.worked) as f64 / (now.all - self.all).max(1) as f64)
    }
}
