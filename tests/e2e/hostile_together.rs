//! All attacks of hostile programs at once, on a daemon with its default limits: it keeps
//! answering, stays within them, and the other processes' profiles are complete.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::fuse::SilentFileSystem;
use strata_tests::probing::Prober;
use strata_tests::running::{Running, Usage};
use strata_tests::stacks::Frame;
use strata_tests::{machine, places, pprof, targets};

/// The daemon's memory limit, in bytes: its default.
const MEMORY_LIMIT: f64 = 256e6;
/// Of one core, in steady state: attaching and first tables come on top, in the first seconds.
const MOST_CPU: f64 = 0.2;
const STARTING: f64 = 6.0;
/// `/healthz`, which neither the loop nor other programs delay; and where even a thread with a
/// deadline may come late, because the machine itself is a guest of a busy one.
const SLOWEST_ANSWER: Duration = Duration::from_millis(100);
const HANGS: Duration = Duration::from_secs(1);
/// What the last program has to use, in seconds: some 57 samples.
const ENOUGH_CPU: f64 = 3.0;
const PROBED_EVERY: Duration = Duration::from_millis(200);
const SILENT_CONNECTIONS: usize = 1_200;
/// How long each name of a file takes in a file system that is slow.
const SLOW: Duration = Duration::from_millis(300);
/// Libraries of one process, of which each takes nearly as long as may be waited for it.
const SLOW_FILES: usize = 512;
const SLOWEST: Duration = Duration::from_millis(4_900);

/// All hostile programs, until they are dropped.
struct Hostile {
    programs: Vec<Running>,
    perf_maps: Vec<Running>,
    _file_systems: [SilentFileSystem; 3],
    _connections: Vec<TcpStream>,
}

impl Hostile {
    fn start(daemon: &Daemon, folder: &Path, program: &Path) -> Result<Self> {
        let mut programs = Vec::new();
        let fake = targets::c("fake_clr").build()?;
        for mode in ["units", "rows", "churn", "locked", "names", "many-names"] {
            let mut command = Command::new(&fake);
            command.args([mode, "3600", "nonsense"]).env("TMPDIR", folder);
            programs.push(Running::from_command(command)?);
        }
        let storm = targets::c("mapping_storm").build()?;
        for _ in 0..3 {
            programs.push(Running::start(&storm, &["3600"])?);
        }
        programs.push(Running::start(&targets::c("rename_storm").build()?, &["3600"])?);
        let maps = targets::c("perf_maps").build()?;
        let perf_maps = ["rewritten", "foreign", "locked"]
            .map(|mode| Running::start(&maps, &[mode, "3600"]))
            .into_iter()
            .collect::<Result<_>>()?;
        let slow = SilentFileSystem::with_program(program)?;
        let silent = SilentFileSystem::with_program(program)?;
        for files in [&silent, &silent, &silent, &silent, &slow] {
            programs.push(Running::start(&files.program(), &["3600"])?);
        }
        let names = (0..SLOW_FILES).map(|number| format!("module{number}.so")).collect();
        let libraries = SilentFileSystem::with_files(std::fs::read(targets::plugin()?)?, names)?;
        let mut command = Command::new(targets::c("modules").build()?);
        command.arg(libraries.folder()).arg("3600");
        let mut modules = Running::from_command(command)?;
        modules.wait_for_line(&format!("loaded {SLOW_FILES}"), PATIENCE)?;
        programs.push(modules);
        libraries.answer_first_reads_after(SLOWEST);
        silent.fall_silent();
        slow.answer_names_after(SLOW);
        let connections = (0..SILENT_CONNECTIONS)
            .map(|_| TcpStream::connect(daemon.metrics_address()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            programs,
            perf_maps,
            _file_systems: [slow, silent, libraries],
            _connections: connections,
        })
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.programs.clear();
        for program in self.perf_maps.drain(..) {
            let map = format!("/tmp/perf-{}.map", program.pid());
            drop(program);
            let _ = std::fs::remove_file(map); // some were never sampled, and wrote none
        }
    }
}

#[test]
fn all_that_is_hostile_at_once_costs_the_others_nothing() -> Result<()> {
    let _machine = machine::alone()?;
    let seconds = machine::short_or_long(30.0, 600.0);
    let mut daemon = Daemon::prepared()?;
    daemon.configure("memory_limit = \"256MB\"\n[dotnet]\nage = \"0s\"\n")?;
    daemon.start()?;
    let shares = targets::c("shares").build()?;
    let service = |name: &str| -> Result<Running> {
        let mut command = Command::new(&shares);
        command.arg("3600").env("DD_SERVICE", name);
        Running::from_command(command)
    };
    let bystander = service("bystander")?;
    let folder = tempfile::tempdir()?;
    let hostile = Hostile::start(&daemon, folder.path(), &shares)?;

    let pid = daemon.pid()?;
    let (started, before) = (Instant::now(), Usage::of(pid)?);
    let mut steady = None;
    let prober = Prober::start(daemon.metrics_address(), PROBED_EVERY);
    let (mut most, mut most_pss) = (0.0_f64, 0);
    let mut newcomer: Option<Running> = None;
    // On a busy machine it takes longer until there are samples enough to judge.
    let has_run = |newcomer: &Option<Running>| {
        let used = newcomer.as_ref().map(|program| Usage::of(program.pid()));
        used.is_some_and(|used| used.is_ok_and(|used| used.cpu_seconds > ENOUGH_CPU))
    };
    while started.elapsed().as_secs_f64() < seconds
        || (!has_run(&newcomer) && started.elapsed() < PATIENCE * 5)
    {
        // A new program, in the middle of it.
        if newcomer.is_none() && started.elapsed().as_secs_f64() > seconds / 3.0 {
            newcomer = Some(service("newcomer")?);
        }
        if steady.is_none() && started.elapsed().as_secs_f64() > seconds / 2.0 {
            steady = Some((Instant::now(), Usage::of(pid)?));
        }
        most = most.max(daemon.status()?["memory"]["bytes"].as_f64().unwrap_or(f64::INFINITY));
        most_pss = most_pss.max(Usage::of(pid)?.pss_bytes);
        std::thread::sleep(Duration::from_millis(500));
    }
    let (took, now) = (started.elapsed().as_secs_f64(), Usage::of(pid)?);
    let used = now.cpu_seconds - before.cpu_seconds;
    let (since, then) = steady.context("it was not long enough")?;
    let steady = (now.cpu_seconds - then.cpu_seconds) / since.elapsed().as_secs_f64();
    let answers = prober.finish()?;
    let slowest = answers.last().copied().unwrap_or_default();
    println!(
        "{took:.0} s: {:.1} MB at most ({:.1} MB of PSS), {:.3} of a core, {steady:.3} in the second \
         half, /healthz {:?}, at most {slowest:?}; {}",
        most / 1e6,
        most_pss as f64 / 1e6,
        used / took,
        answers.get(answers.len() / 2),
        daemon.status()?["sampling"]["losses"]
    );
    drop(hostile);
    let frequency = daemon.status()?["sampling"]["frequency"].as_f64().context("a frequency")?;
    let newcomer = newcomer.context("the newcomer has not started")?;
    let [of_bystander, of_newcomer] = [&bystander, &newcomer]
        .map(|program| Usage::of(program.pid()).map(|used| used.cpu_seconds));
    let called_for = [of_bystander? * frequency, of_newcomer? * frequency];
    // Samples of its last moments have a period like all others.
    drop((bystander, newcomer));
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{}", ended.stderr);
    let mut services = Vec::new();
    for name in ["bystander", "newcomer"] {
        let kept = kept(&daemon, name)?;
        println!("{name}: {} of {} samples are whole and named", kept.whole, kept.all);
        kept.others.iter().for_each(|other| println!("  {other}"));
        services.push((name, kept));
    }
    assert!(most <= MEMORY_LIMIT, "{most} bytes");
    assert!((most_pss as f64) <= MEMORY_LIMIT, "{most_pss} bytes");
    assert!(used <= MOST_CPU * took + STARTING, "{used} s in {took} s");
    assert!(slowest <= HANGS, "{slowest:?}");
    if machine::is_long() {
        assert!(slowest <= SLOWEST_ANSWER, "{slowest:?}");
        assert!(steady <= MOST_CPU, "{steady} of a core");
    }
    for ((name, kept), called_for) in services.into_iter().zip(called_for) {
        println!("{name}: its CPU time calls for {called_for:.0} samples");
        // Each sample is there or not, by chance.
        let least = 0.9 * called_for - 3.0 * called_for.sqrt();
        assert!(kept.all as f64 > least, "{name}: samples are missing");
        // One sample of those few may hit what is neither (the loader's first instructions).
        let allowed = (0.005 * kept.all as f64).max(1.0);
        assert!(kept.all > 30 && (kept.all - kept.whole) as f64 <= allowed, "{name}");
    }
    Ok(())
}

/// Samples of a service: those with a part in user mode, and of them those that lead from `main` to a
/// function with a name.
struct Kept {
    all: u64,
    whole: u64,
    others: Vec<String>,
}

/// The stored profile of a service. Frames in the store have no addresses.
fn kept(daemon: &Daemon, service: &str) -> Result<Kept> {
    let file = format!("{service}.pb.gz");
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", service, "-o", &file, "--store"]);
    command.arg(daemon.store()).current_dir(daemon.folder());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    assert!(ended.status.success(), "{}", ended.stderr);
    let stacks = pprof::read(&daemon.folder().join(file))?.stacks()?;
    let is_kernel = |frame: &Frame| frame.file.starts_with('[') && frame.file != "[vdso]";
    let user = stacks.that(|stack| stack.frames.iter().any(|frame| !is_kernel(frame)));
    // Without its symbol a frame is `module!0xaddress`.
    let is_symbolized = |frame: &Frame| frame.is_named() && !frame.name.contains("!0x");
    let is_whole = |stack: &strata_tests::stacks::Stack| {
        stack.has("main") && stack.has("_start") && stack.leaf().is_some_and(is_symbolized)
    };
    let whole = user.that(is_whole).total();
    let others = user.that(|stack| !is_whole(stack));
    let others = others.stacks.iter().map(|stack| format!("{} x {}", stack.count, stack.line()));
    Ok(Kept { all: user.total(), whole, others: others.collect() })
}
