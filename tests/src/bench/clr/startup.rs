//! What the bridge costs a program that compiles very many methods in two seconds: the C# compiler.
//!
//! Both variants run at the same time, each on its own CPU, and then once more with the CPUs
//! exchanged, so that other load affects both. CPU time of all threads is the measure; wall time is
//! printed beside it.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use strata_clr::environment;
use strata_clr::session::{Budget, Count, SessionOptions, StatusRecord};
use strata_clr::{CLibrary, Session, Target, bridge_library};
use tempfile::TempDir;

use super::Effort;
use crate::bench::figure::Figure;
use crate::bench::pairs::{self, median};
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
    /// Loaded, without a reader.
    Quiet,
    /// Reporting from the first method on.
    Telling,
    /// The same beside room for another profiler.
    NotificationOnly,
}

const VARIANTS: [(Variant, &str); 3] = [
    (Variant::Quiet, "loaded, not read"),
    (Variant::Telling, "telling every method"),
    (Variant::NotificationOnly, "the same, notification-only"),
];

/// Seconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

impl Cost {
    fn and(self, other: Cost) -> Cost {
        Cost { wall: self.wall + other.wall, cpu: self.cpu + other.cpu }
    }
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

    fn compiler(&self, variant: Variant, library: &Path, number: usize) -> Result<Command> {
        let source = places::target_sources().join("csharp/Recursion.cs");
        let output = self.folder.path().join(format!("output-{number}.dll"));
        let mut command = runtimes::dotnet()?.compiler(&source, &output);
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

/// Runs the compiler on one CPU.
fn run(setting: &Setting, variant: Variant, cpu: usize) -> Result<Cost> {
    let mut command = setting.compiler(variant, &setting.library, cpu)?;
    pin(&mut command, cpu);
    let start = Instant::now();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let (status, usage) = wait(&child.context("starting the compiler")?)?;
    if !status.success() {
        bail!("the compiler: {status}");
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Cost {
        wall: start.elapsed().as_secs_f64(),
        cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime),
    })
}

fn pin(command: &mut Command, cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    // SAFETY: between fork and exec there is one system call, and nothing is allocated.
    unsafe {
        command.pre_exec(move || Ok(sched_setaffinity(None, &only)?));
    }
}

/// Waits for a child, and returns what it and its threads have used.
fn wait(child: &Child) -> Result<(ExitStatus, libc::rusage)> {
    let (pid, mut status) = (i32::try_from(child.id())?, 0);
    // SAFETY: a plain C structure for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid for writing; the child is ours and is waited for only here.
    if unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) } != pid {
        return Err(std::io::Error::last_os_error()).context("waiting for the compiler");
    }
    Ok((ExitStatus::from_raw(status), usage))
}

/// Two runs at the same time, on two CPUs.
fn both(setting: &Setting, variants: [(Variant, usize); 2]) -> Result<[Cost; 2]> {
    let [first, second] = variants;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(setting, second.0, second.1));
        let one = run(setting, first.0, first.1)?;
        Ok([one, other.join().map_err(|_| anyhow!("a thread ended"))??])
    })
}

/// With and without a variant, on each of two CPUs.
fn pair(setting: &Setting, variant: Variant, [a, b]: [usize; 2]) -> Result<[Cost; 2]> {
    let [without_a, with_b] = both(setting, [(Variant::Without, a), (variant, b)])?;
    let [with_a, without_b] = both(setting, [(variant, a), (Variant::Without, b)])?;
    Ok([without_a.and(without_b), with_a.and(with_b)])
}

/// The first and the last CPU that this process may use: seldom two halves of one core.
fn two_cpus() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(None)?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let first = cpus.next().context("a CPU")?;
    Ok([first, cpus.next_back().context("this compares two CPUs, and there is one")?])
}

/// Measures this part.
pub fn measure(effort: Effort) -> Result<Vec<Figure>> {
    let (setting, cpus) = (Setting::new()?, two_cpus()?);
    let mut pairs = [const { Vec::new() }; VARIANTS.len()];
    // The first round warms the caches.
    for round in 0..=effort.pairs {
        for ((variant, _), pairs) in VARIANTS.iter().zip(&mut pairs) {
            let pair = pair(&setting, *variant, cpus)?;
            if round > 0 {
                pairs.push(pair);
            }
        }
    }
    let column = |pairs: &[[Cost; 2]], place: usize, of: fn(&Cost) -> f64| -> Vec<f64> {
        pairs.iter().filter_map(|pair| pair.get(place)).map(of).collect()
    };
    let every: Vec<[Cost; 2]> = pairs.iter().flatten().copied().collect();
    let half = |values: Vec<f64>| median(&values) / 2.0;
    let without = half(column(&every, 0, |cost| cost.cpu));
    let mut figures = vec![
        Figure::new(PART, "compiler run without", without, "s CPU")
            .note(format!("median; {:.3} s of wall time", half(column(&every, 0, |c| c.wall)))),
    ];
    let mut more = Vec::new();
    for ((_, name), pairs) in VARIANTS.iter().zip(&pairs) {
        for (kind, of) in
            [("CPU", (|cost| cost.cpu) as fn(&Cost) -> f64), ("wall", |cost| cost.wall)]
        {
            let difference = pairs::relative(&column(pairs, 1, of), &column(pairs, 0, of));
            let figure = Figure::difference(PART, format!("{name}: {kind}"), &difference);
            figures.push(figure.at_most(BOUND));
            if kind == "CPU" {
                more.push(difference.median / 100.0 * without);
            }
        }
    }
    let [quiet, telling, _] = more.as_slice() else { bail!("three variants") };
    figures.extend(events(&setting, telling - quiet)?);
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
            .note("telling minus loaded; with what the runtime does for the event itself"),
    ])
}

/// Runs once with a reader, and returns the bridge's counters.
fn counted(setting: &Setting, library: &Path) -> Result<StatusRecord> {
    let mut running = Running::from_command(setting.compiler(Variant::Telling, library, 0)?)?;
    let pid = u32::try_from(running.pid())?;
    let mut session = None;
    wait_until("the bridge is loaded", PATIENCE, || {
        let target = Target::open(pid);
        session = target.ok().and_then(|t| Session::open(t, &SessionOptions::default()).ok());
        session.is_some() || !running.is_alive()
    })?;
    let mut session = session.context("the compiler ended without the bridge")?;
    while running.is_alive() {
        session.look_and_poll(Budget::default())?;
        std::thread::sleep(Duration::from_millis(20));
    }
    session.process_ended();
    running.wait(PATIENCE)?;
    // A look at the status comes every 20 ms at most.
    std::thread::sleep(Duration::from_millis(30));
    while session.look_and_poll(Budget::default())?.more {}
    Ok(session.status().clone())
}
