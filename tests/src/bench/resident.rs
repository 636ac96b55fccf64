//! What a daemon costs that runs for good: `bench daemon`. Its whole control group, helpers that have
//! ended included, at 19 Hz: from its start, with no table of code in a cache and files to be read from
//! the disk, and once it has warmed up.
//!
//! Other programs that run meanwhile cost the daemon too: how busy the host was is in the notes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::control_group::ControlGroup;
use super::figure::Figure;
use super::meters::HostBusy;
use super::scenes::Scene;
use crate::daemon::Daemon;

const PART: &str = "daemon";
/// Sampling frequency of the daemon here.
pub const FREQUENCY: u32 = 19;
const FIRST: Duration = Duration::from_secs(15);
const WARM: Duration = Duration::from_secs(45);
const MINUTE: Duration = Duration::from_secs(60);
/// Percent of a core that an idle host may pay.
const IDLE_BOUND: f64 = 0.1;
/// Megabytes, proportionally.
const MEMORY_BOUND: f64 = 30.0;
/// Where a daemon that runs as root keeps tables of code.
const CACHE: &str = "/var/cache/strata";

/// What the host does beside the daemon.
pub const SCENES: [Scene; 5] = [
    Scene::Idle,
    Scene::Recursion { depth: 50 },
    Scene::CSharpCompiler,
    Scene::Pythons { count: 200 },
    Scene::ManyProcesses { count: 10_000 },
];

/// A scene's figures. Percent are of a core.
#[derive(Clone, Debug, Serialize)]
pub struct Resident {
    pub scene: String,
    pub first_quarter_percent: f64,
    pub first_minute_percent: f64,
    pub steady_percent: f64,
    pub steady_seconds: f64,
    /// How busy all CPUs were in the steady part.
    pub host_busy_percent: f64,
    /// At its end.
    pub proportional_mb: f64,
}

/// Measures a scene; its steady part is so many seconds long, and ends a minute after the start at the
/// earliest.
pub fn measure(scene: Scene, seconds: f64) -> Result<Resident> {
    let mut stage = scene.start()?;
    let _cold = ColdCache::new(Path::new(CACHE))?;
    let group = ControlGroup::new(PART)?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&format!("[sampling]\nfrequency = {FREQUENCY}\n"))?;
    let started = Instant::now();
    group.around(|| daemon.start())?;
    scene.continue_with_profiler(&mut stage)?;
    let used_at = |after: Duration| -> Result<(Duration, f64)> {
        std::thread::sleep(after.saturating_sub(started.elapsed()));
        Ok((started.elapsed(), group.cpu_seconds()?))
    };
    let (quarter, used_in_quarter) = used_at(FIRST)?;
    let (warm, used_until_warm) = used_at(WARM)?;
    let busy = HostBusy::now()?;
    let (minute, used_in_minute) = used_at(MINUTE)?;
    let (end, used) = used_at(WARM + Duration::from_secs_f64(seconds))?;
    let host_busy_percent = busy.percent_since()?;
    let proportional_mb = group.proportional_bytes()? as f64 / 1e6;
    daemon.end()?;
    let percent = |used: f64, of: Duration| 100.0 * used / of.as_secs_f64();
    Ok(Resident {
        scene: scene.name(),
        first_quarter_percent: percent(used_in_quarter, quarter),
        first_minute_percent: percent(used_in_minute, minute),
        steady_percent: percent(used - used_until_warm, end - warm),
        steady_seconds: (end - warm).as_secs_f64(),
        host_busy_percent,
        proportional_mb,
    })
}

impl Resident {
    /// As lines of the table.
    pub fn figures(&self) -> Vec<Figure> {
        let name = |what: &str| format!("{}: {what}", self.scene);
        let percent = |what, value| Figure::new(PART, name(what), value, "% of a core");
        let steady = percent("after 45 s", self.steady_percent).note(format!(
            "{:.0} s; the host was {:.0} % busy",
            self.steady_seconds, self.host_busy_percent
        ));
        let is_idle = self.scene == Scene::Idle.name();
        vec![
            percent("first 15 s", self.first_quarter_percent).note("cold caches"),
            percent("first minute", self.first_minute_percent).note("cold caches"),
            if is_idle { steady.at_most(IDLE_BOUND) } else { steady },
            Figure::new(PART, name("memory (PSS)"), self.proportional_mb, "MB")
                .note("maps of BPF that are mapped included")
                .at_most(MEMORY_BOUND),
        ]
    }
}

/// No tables of code are in the cache, and no files in memory. What was cached comes back with the end
/// of this.
struct ColdCache {
    directory: PathBuf,
    aside: PathBuf,
}

impl ColdCache {
    fn new(directory: &Path) -> Result<Self> {
        let aside = directory.with_extension(format!("aside-{}", std::process::id()));
        if directory.exists() {
            fs::rename(directory, &aside).with_context(|| format!("{}", aside.display()))?;
        }
        let cold = Self { directory: directory.to_owned(), aside };
        rustix::fs::sync();
        fs::write("/proc/sys/vm/drop_caches", "3").context("cannot empty the page cache")?;
        Ok(cold)
    }
}

impl Drop for ColdCache {
    fn drop(&mut self) {
        if self.aside.exists() {
            let _ = fs::remove_dir_all(&self.directory);
            let _ = fs::rename(&self.aside, &self.directory);
        }
    }
}
