//! The .NET test programs on every version, without strata: verifies what the tests assume of them.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use strata_tests::dotnet_calls::{CallGraph, printed_chains};
use strata_tests::dotnet_profiler::SecondProfiler;
use strata_tests::running::{Ended, Running};
use strata_tests::runtimes::assemblies::Assembly;
use strata_tests::runtimes::{Version, dotnet};
use strata_tests::{dotnet_names, dotnet_parked, fake_clr, machine, targets};

const PATIENCE: Duration = Duration::from_secs(120);

fn run(command: Command) -> Result<Ended> {
    let mut running = Running::from_command(command)?;
    running.wait_for_line("ready", PATIENCE)?;
    let ended = running.wait(PATIENCE)?;
    assert!(ended.status.success(), "{}{}", ended.stdout, ended.stderr);
    Ok(ended)
}

#[test]
fn every_program_runs_on_every_version() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let programs: &[(&str, &[&str])] = &[
        ("Busy", &["1.2", "0.1"]),
        ("Sleeper", &["3", "0.3", "50"]),
        ("Reader", &["file", "/dev/zero", "0.3"]),
        ("Reader", &["socket", "0.3"]),
        ("Lines", &["0.1"]),
        ("Names", &["0.002"]),
        ("Shares", &["0.5"]),
        ("ManyMethods", &["dynamic", "1000"]),
        ("ManyMethods", &["collectible", "4000"]),
        ("ManyMethods", &["generics", "1000"]),
        ("Basic", &["0.002"]),
        ("Functional", &["0.002"]),
    ];
    for version in dotnet.versions() {
        for (name, arguments) in programs {
            if let Err(reason) = dotnet.supports(version, name) {
                println!("{version}: not {name}: {reason}");
                continue;
            }
            let ended = run(dotnet.program(version, name, arguments)?)?;
            let last = ended.stdout.lines().last().unwrap_or_default();
            println!("{version}: {name} {}: {last}", arguments.join(" "));
        }
    }
    Ok(())
}

#[test]
fn the_three_shares_are_what_they_should_be() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let mut command = dotnet.program(version, "Shares", &["1"])?;
        command.env("STRATA_TARGET_CLOCK", "cpu");
        let ended = run(command)?;
        for (name, wanted) in [("Fifty", 0.5), ("Thirty", 0.3), ("Twenty", 0.2)] {
            let line = format!("share name=Shares.Burn{name} of=");
            let share = ended.stdout.lines().find_map(|l| l.strip_prefix(&line));
            let share: f64 = share.with_context(|| ended.stdout.clone())?.parse()?;
            println!("{version}: {name} {share}");
            assert!((share - wanted).abs() < 0.01, "{share}");
        }
    }
    Ok(())
}

/// The runtime's own stack traces, taken in the innermost methods, agree with the call graph: so a
/// recording that does not is wrong.
#[test]
fn the_call_graph_of_small_methods_agrees_with_the_runtime() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let folder = tempfile::tempdir()?;
    let program = Assembly::program("SmallMethods").define("VERIFY");
    for version in dotnet.versions() {
        let file = folder.path().join("graph");
        let path = file.display().to_string();
        let mut command = dotnet.run(version, &program, &[&path, "6"])?;
        command.env("STRATA_TARGET_CLOCK", "cpu");
        let ended = run(command)?;
        let verdict = CallGraph::read(&file)?.check(&printed_chains(&ended.stdout));
        println!("{version}: {verdict}");
        assert!(verdict.samples >= 40 && verdict.wrong == 0 && verdict.coverage() > 0.95);
    }
    Ok(())
}

/// What each thread noted before it waited is what the runtime finds while it waits.
#[test]
fn parked_threads_are_where_they_say() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        for tiered in ["1", "0"] {
            let folder = tempfile::tempdir()?;
            let profiler = SecondProfiler::new(folder.path())?;
            let file = folder.path().join("parked");
            let path = file.display().to_string();
            let mut command = dotnet.program(version, "Parked", &[&path, "60"])?;
            profiler.load_into(&mut command);
            command.env("DOTNET_TieredCompilation", tiered);
            command.env("COMPlus_TieredCompilation", tiered);
            let mut running = Running::from_command(command)?;
            running.wait_for_line("ready", PATIENCE)?;
            let noted = dotnet_parked::read(&file)?;
            let waiting = profiler.snapshot()?;
            let differences = dotnet_parked::agree(&noted, &waiting);
            println!("{version}, tiered {tiered}: {} threads, {differences:#?}", noted.len());
            assert!(noted.len() == 23 && differences.is_empty());
        }
    }
    Ok(())
}

#[test]
fn the_test_profiler_loads_attaches_counts_and_detaches() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let folder = tempfile::tempdir()?;
        let profiler = SecondProfiler::new(folder.path())?;
        let mut command = dotnet.program(version, "Shares", &["60"])?;
        profiler.load_into(&mut command);
        let mut loaded = Running::from_command(command)?;
        loaded.wait_for_line("ready", PATIENCE)?;
        profiler.wait_for("initialized")?;
        // Most methods come precompiled: the rest is made while the program runs.
        strata_tests::running::wait_until("methods are compiled", PATIENCE, || {
            profiler.counts().is_ok_and(|counts| counts.jit_finished > 20)
        })?;
        profiler.detach()?;
        println!("{version}: loaded: {:?}", profiler.counts()?);
        drop(loaded);

        let folder = tempfile::tempdir()?;
        let profiler = SecondProfiler::new(folder.path())?;
        let command = dotnet.program(version, "ManyMethods", &["collectible", "40000"])?;
        let running = Running::from_command(command)?;
        strata_tests::running::wait_until("it has a socket", PATIENCE, || {
            strata_tests::dotnet_profiler::diagnostics_socket(running.pid()).is_ok()
        })?;
        // The socket is there before the runtime takes profilers.
        std::thread::sleep(Duration::from_millis(500));
        profiler.attach(running.pid())?;
        strata_tests::running::wait_until("it counts", PATIENCE, || {
            profiler.counts().is_ok_and(|counts| counts.jit_finished > 100)
        })?;
        profiler.detach()?;
        println!("{version}: attached: {:?}", profiler.counts()?);
    }
    Ok(())
}

/// The fake must be convincing: strata takes `fake_clr honest` for a real CLR.
#[test]
fn the_fake_runtime_starts_in_every_mode() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let program = targets::c("fake_clr").build()?;
    let with_nonsense = fake_clr::MODES.map(|mode| (mode, "nonsense"));
    let honest = fake_clr::SOCKETS.map(|socket| ("honest", socket));
    for (mode, socket) in with_nonsense.into_iter().chain(honest) {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(&program);
        command.args([mode, "0.2", socket]).env("TMPDIR", folder.path());
        let ended = run(command)?;
        println!("{mode} {socket}: {}", ended.stdout.lines().last().unwrap_or_default());
    }
    Ok(())
}

#[test]
fn names_and_hot_lines_are_announced() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let ended = run(dotnet.program(version, "Names", &["0.001"])?)?;
        let expected = dotnet_names::expected(&ended.stdout);
        println!("{version}: {} names", expected.len());
        assert!(expected.len() > 40);
        let lines = Assembly::program("Lines");
        let symbols = dotnet.built(version, &lines)?.with_extension("pdb");
        assert!(symbols.is_file(), "no {}", symbols.display());
    }
    let mut sources = Assembly::program("Lines").sources()?;
    sources.extend(Assembly::csharp("LinesEmbedded").library().sources()?);
    let lines = dotnet_names::hot_lines(&sources)?;
    let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, ["plain", "async", "lambda", "tiered", "embedded"]);
    assert_eq!(Version::ALL.len(), 4);
    Ok(())
}
