//! What the bridge costs a program that compiles very many methods in two seconds: the C# compiler.
//!
//! Every round runs each variant once, in another order each time, and differences are between runs
//! of the same round. CPU time of all its threads is the measure on a machine that does other things
//! too; wall time is printed beside it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use strata_clr::environment;
use strata_clr::session::{Budget, Count, SessionOptions, StatusRecord};
use strata_clr::{CLibrary, Session, Target, bridge_library};
use tempfile::TempDir;

use super::Effort;
use super::figure::Figure;
use super::pairs::{self, median};
use crate::running::{Running, wait_until};
use crate::{places, runtimes};

const PART: &str = "startup";
/// On .NET 9, percent.
const BOUND: f64 = 5.0;
/// A library that counts its own time by the thread's CPU clock (feature `measure`).
const MEASURING_LIBRARY: &str = "STRATA_BENCH_MEASURING_BRIDGE";
/// Another library than the one in this program.
const LIBRARY: &str = "STRATA_CLR_BRIDGE";
/// Runs in which the cost of an event is counted.
const COUNTED_RUNS: usize = 5;
/// For the compiler to end, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Without,
    /// Loaded, and nobody reads.
    Quiet,
    /// Telling from the first method on.
    Telling,
    /// The same beside room for another profiler.
    NotificationOnly,
}

const VARIANTS: [Variant; 4] =
    [Variant::Without, Variant::Quiet, Variant::Telling, Variant::NotificationOnly];

/// Seconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

/// The library as a file, and a place for what the compiler writes.
struct Setting {
    folder: TempDir,
    library: PathBuf,
}

impl Setting {
    fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("strata-bench-").tempdir()?;
        let library = match std::env::var_os(LIBRARY) {
            Some(path) => PathBuf::from(path),
            None => {
                let content = bridge_library::content(CLibrary::Glibc).context("no library")?;
                let path = folder.path().join("libstrata_clr.so");
                std::fs::write(&path, content)?;
                path
            }
        };
        Ok(Self { folder, library })
    }

    fn compiler(&self, variant: Variant, library: &Path) -> Result<Command> {
        let source = places::target_sources().join("csharp/Recursion.cs");
        let mut command =
            runtimes::dotnet()?.compiler(&source, &self.folder.path().join("output.dll"));
        // As if another profiler were the main one, which only the list of the others is seen of.
        let beside = b"CORECLR_ENABLE_PROFILING=1\0CORECLR_PROFILER={00000000-0000-0000-0000-000000000001}\0";
        let existing: &[u8] = match variant {
            Variant::Without => return Ok(command),
            Variant::Quiet | Variant::Telling => b"",
            Variant::NotificationOnly => beside,
        };
        let set = environment::environment(library, existing, variant != Variant::Quiet)?;
        command.envs(set.variables.iter().map(|variable| (variable.name, &variable.value)));
        Ok(command)
    }
}

/// CPU seconds of the children that have ended.
fn cpu_of_children() -> f64 {
    // SAFETY: a plain C structure for which zero is a value, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn run(setting: &Setting, variant: Variant) -> Result<Cost> {
    let mut command = setting.compiler(variant, &setting.library)?;
    let (before, start) = (cpu_of_children(), Instant::now());
    let done = command.stdin(Stdio::null()).output().context("starting the compiler")?;
    let cost = Cost { wall: start.elapsed().as_secs_f64(), cpu: cpu_of_children() - before };
    if !done.status.success() {
        bail!("the compiler: {}\n{}", done.status, String::from_utf8_lossy(&done.stdout));
    }
    Ok(cost)
}

/// Measures this part.
pub fn measure(effort: Effort) -> Result<Vec<Figure>> {
    let setting = Setting::new()?;
    let mut costs = [const { Vec::new() }; VARIANTS.len()];
    // The first round warms the caches.
    for round in 0..=effort.pairs {
        for turn in 0..VARIANTS.len() {
            let number = (round + turn) % VARIANTS.len();
            let cost = run(&setting, VARIANTS[number])?;
            if round > 0 {
                costs[number].push(cost);
            }
        }
    }
    let [without, quiet, telling, notified] = costs;
    let walls = |costs: &[Cost]| costs.iter().map(|cost| cost.wall).collect::<Vec<_>>();
    let cpus = |costs: &[Cost]| costs.iter().map(|cost| cost.cpu).collect::<Vec<_>>();
    let mut figures = vec![
        Figure::new(PART, "compiler run without", median(&cpus(&without)), "s CPU")
            .note(format!("median; {:.3} s of wall time", median(&walls(&without)))),
    ];
    for (name, costs) in [
        ("loaded, nobody reads", &quiet),
        ("telling every method", &telling),
        ("the same, notification-only", &notified),
    ] {
        let cpu = pairs::relative(&cpus(costs), &cpus(&without));
        let wall = pairs::relative(&walls(costs), &walls(&without));
        let bounded = |figure: Figure| figure.at_most(BOUND);
        figures.push(bounded(Figure::difference(PART, format!("{name}: CPU"), &cpu)));
        figures.push(bounded(Figure::difference(PART, format!("{name}: wall"), &wall)));
    }
    figures.extend(events(&setting, median(&cpus(&telling)) - median(&cpus(&quiet)))?);
    Ok(figures)
}

/// What one event costs, as the bridge counts it itself and as the runs say.
fn events(setting: &Setting, more_seconds: f64) -> Result<Vec<Figure>> {
    let measuring = std::env::var_os(MEASURING_LIBRARY).map(PathBuf::from);
    let library = measuring.as_deref().unwrap_or(&setting.library);
    let mut each = Vec::new();
    let mut last = None;
    for _ in 0..COUNTED_RUNS {
        let status = counted(setting, library)?;
        let events = status.count(Count::Callbacks).max(1) as f64;
        each.push(status.count(Count::BusyNanoseconds) as f64 / events / 1e3);
        last = Some(status);
    }
    let status = last.context("at least one run")?;
    let methods = status.count(Count::Methods).max(1);
    let bytes: u64 = (0..status.segments).map(|segment| status.committed(segment)).sum();
    let clock = if measuring.is_some() { "CPU clock" } else { "monotonic clock" };
    Ok(vec![
        Figure::new(PART, "methods compiled", methods as f64, "")
            .note(format!("{} types, {bytes} bytes of log", status.count(Count::Types))),
        Figure::new(PART, "JIT event, within the bridge", median(&each), "µs")
            .note(format!("median of {COUNTED_RUNS} runs' means, by the {clock}")),
        Figure::new(PART, "JIT event, in all", more_seconds * 1e6 / methods as f64, "µs CPU")
            .note("telling minus quiet; with what the runtime does for the event itself"),
    ])
}

/// Runs once with a reader, and says what the bridge counted.
fn counted(setting: &Setting, library: &Path) -> Result<StatusRecord> {
    let mut running = Running::from_command(setting.compiler(Variant::Telling, library)?)?;
    let pid = u32::try_from(running.pid())?;
    let mut session = None;
    wait_until("the bridge is loaded", PATIENCE, || {
        let target = Target::open(pid);
        session = target.ok().and_then(|t| Session::open(t, &SessionOptions::default()).ok());
        session.is_some() || !running.is_alive()
    })?;
    let mut session = session.context("the compiler ended without the bridge")?;
    while running.is_alive() {
        session.poll(Budget::default())?;
        std::thread::sleep(Duration::from_millis(20));
    }
    session.process_ended();
    running.wait(PATIENCE)?;
    // A look at the status comes every 20 ms at most.
    std::thread::sleep(Duration::from_millis(30));
    while session.poll(Budget::default())?.more {}
    Ok(session.status().clone())
}
