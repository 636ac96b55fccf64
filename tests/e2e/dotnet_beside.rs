//! strata beside another profiler in the same process, loaded before it or after.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use strata_tests::dotnet_profiler::{SecondProfiler, diagnostics_socket};
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::{machine, strata};

use crate::dotnet_events::{Target, WAYS, of_method, thrown};
use crate::dotnet_running::{Clr, FREQUENCY, PATIENCE, Wrongs, each, listed, start, start_command};

/// Those that can have several profilers.
const SEVERAL: [Version; 3] = [Version::V8, Version::V9, Version::V10];

/// A program that compiles methods all the time.
fn start_compiling(
    dotnet: &DotNet,
    version: Version,
    with: Option<&SecondProfiler>,
) -> Result<Running> {
    let mut command = dotnet.program(version, "ManyMethods", &["collectible", "4000000"])?;
    if let Some(profiler) = with {
        profiler.load_into(&mut command);
    }
    let running = Running::from_command(command)?;
    let pid = running.pid();
    wait_until("it has a socket", PATIENCE, || diagnostics_socket(pid).is_ok())?;
    // The socket is there before the runtime takes profilers.
    std::thread::sleep(Duration::from_secs(1));
    Ok(running)
}

/// Both see methods being compiled, in one recording of two seconds.
fn both_see(
    version: Version,
    how: &str,
    pid: i32,
    other: &SecondProfiler,
    wrongs: &mut Wrongs,
) -> Result<()> {
    let before = other.counts()?.jit_finished;
    let recorded = strata::record()?.frequency(FREQUENCY).seconds(2.0).pid(pid).run()?;
    let after = other.counts()?.jit_finished;
    let (clr, own) = (Clr::of(&recorded)?, recorded.stacks()?.of_pid(pid));
    let named = own.share_with("ManyMethods.Main");
    println!(
        "{version}, {how}: the other saw {} methods meanwhile, {clr:?}, {named:.3} of {} below Main",
        after - before,
        own.total()
    );
    wrongs.unless(clr.came_and_left_once() && clr.methods > 500 && named > 0.5, || {
        format!("{version}, {how}: {named} named, {clr:?}")
    });
    wrongs.unless(after > before + 100, || {
        format!("{version}, {how}: the other saw {before}, then {after} methods")
    });
    Ok(())
}

#[test]
fn both_profilers_see_what_is_compiled_and_both_leave() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in SEVERAL {
        // The other is there from the start, as an application performance monitor is.
        let folder = tempfile::tempdir()?;
        let profiler = SecondProfiler::new(folder.path())?;
        let mut app = start_compiling(&dotnet, version, Some(&profiler))?;
        both_see(version, "the other at start", app.pid(), &profiler, &mut wrongs)?;
        both_see(version, "again", app.pid(), &profiler, &mut wrongs)?;
        profiler.detach()?;
        wrongs.unless(app.is_alive(), || format!("{version}: the program ended"));
        drop(app);

        // strata is attached before the other.
        let folder = tempfile::tempdir()?;
        let profiler = SecondProfiler::new(folder.path())?;
        let mut app = start_compiling(&dotnet, version, None)?;
        let pid = app.pid();
        let mut recording =
            strata::record()?.frequency(FREQUENCY).seconds(600.0).pid(pid).start()?;
        wait_until("strata is attached", PATIENCE, || {
            let row = listed(pid).ok().flatten().unwrap_or_default();
            row["bridge"].as_str().unwrap_or_default().starts_with("attached")
        })?;
        profiler.attach(pid)?;
        let sees = wait_until("the other counts", PATIENCE, || {
            profiler.counts().is_ok_and(|counts| counts.jit_finished > 100)
        });
        recording.running().signal(Signal::INT)?;
        let recorded = recording.finish()?;
        let (clr, own) = (Clr::of(&recorded)?, recorded.stacks()?.of_pid(pid));
        let named = own.share_with("ManyMethods.Main");
        println!(
            "{version}, strata first: {clr:?}, {named:.3} of {} named; the other {:?}",
            own.total(),
            profiler.counts()?
        );
        wrongs.unless(sees.is_ok() && clr.came_and_left_once() && named > 0.5, || {
            format!("{version}, strata first: {named} named, {clr:?}, {:?}", profiler.counts())
        });
        // strata has detached; the other goes on, and strata attaches again.
        both_see(version, "strata second", pid, &profiler, &mut wrongs)?;
        profiler.detach()?;
        wrongs.unless(app.is_alive(), || format!("{version}: the program ended"));
    }
    wrongs.none();
    Ok(())
}

/// A program that waits for a file, in which another profiler has the place of the only ordinary one.
fn start_with(
    dotnet: &DotNet,
    version: Version,
    profiler: &SecondProfiler,
    name: &str,
    words: [&str; 2],
) -> Result<Target> {
    let folder = tempfile::Builder::new().prefix("strata-beside-").tempdir()?;
    let go = folder.path().join("go").to_string_lossy().into_owned();
    // Throws has the way first.
    let words = match words {
        ["", much] => vec![go.as_str(), much],
        [how, much] => vec![how, &go, much],
    };
    let mut command = dotnet.program(version, name, &words)?;
    profiler.load_into(&mut command);
    Ok(Target::of(start_command(command)?, folder))
}

#[test]
fn events_are_as_many_beside_another_profiler_as_without() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let some = machine::short_or_long(&SEVERAL[1..2], &SEVERAL[..]);
    each(some, 1, |version, wrongs| {
        let folders = [tempfile::tempdir()?, tempfile::tempdir()?, tempfile::tempdir()?];
        let profilers = folders
            .iter()
            .map(|folder| SecondProfiler::new(folder.path()))
            .collect::<Result<Vec<_>>>()?;
        let [first, second, third] = &profilers[..] else { anyhow::bail!("three profilers") };
        let throws = start_with(&dotnet, version, first, "Throws", ["paced", "300"])?;
        let contends = start_with(&dotnet, version, second, "Contends", ["", "100"])?;
        let allocates = start_with(&dotnet, version, third, "Allocates", ["", "60000"])?;
        let targets = [throws.pid(), contends.pid(), allocates.pid()];
        let record = strata::record()?.option("-e", "exceptions,locks,allocations").flag("-v");
        let record = targets.into_iter().fold(record, |record, pid| record.pid(pid));
        let recording = record.start()?;
        for pid in targets {
            wait_until("its events are reported", PATIENCE, || {
                let row = listed(pid).ok().flatten().unwrap_or_default();
                row["bridge"].as_str().unwrap_or_default().contains("; reports exceptions, locks")
            })?;
        }
        std::thread::sleep(Duration::from_secs(2));
        throws.go()?;
        contends.go()?;
        allocates.go()?;
        let (thrown_own, waited, made) =
            (throws.counts()?, contends.counts()?, allocates.counts()?);
        let recorded = recording.end()?;
        recorded.print_losses();
        for profiler in &profilers {
            println!("{version}: the other {:?}", profiler.counts()?);
            wrongs.unless(profiler.counts()?.jit_finished > 0, || {
                format!("{version}: the other saw nothing")
            });
        }
        let profile = recorded.profile()?;
        let exceptions = profile.stacks_of("exceptions")?;
        for (name, type_name, _) in WAYS {
            let (seen, own) = (thrown(&exceptions, type_name), thrown_own[name]);
            println!("{version} {type_name}: {own} thrown, {seen} seen");
            wrongs.unless(seen == own, || format!("{version} {type_name}: {seen} of {own}"));
        }
        let (waits, _) = of_method(&profile.stacks_of("lock_count")?, "Shop.Contends.Enter");
        let (bytes, _) = of_method(&profile.stacks_of("alloc_size")?, "Shop.Allocates.MakeMiddle");
        for (what, seen, own, most) in
            [("waits", waits, waited["waits"], 0.1), ("bytes", bytes, made["middle_bytes"], 0.25)]
        {
            println!("{version} {what}: {own}, {seen} seen");
            let error = seen as f64 / own as f64 - 1.0;
            wrongs.unless(error.abs() < most, || format!("{version} {what}: {seen} of {own}"));
        }
        Ok(())
    })
}

#[test]
fn a_runtime_that_takes_one_profiler_refuses_the_second() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let version = Version::V3_1;
    let folder = tempfile::tempdir()?;
    let profiler = SecondProfiler::new(folder.path())?;
    let mut command = dotnet.program(version, "Shares", &["300"])?;
    profiler.load_into(&mut command);
    let app = start_command(command)?;
    let row = listed(app.pid())?.context("strata ps does not list it")?;
    let recorded = strata::record()?.frequency(FREQUENCY).seconds(2.0).pid(app.pid()).run()?;
    let clr = Clr::of(&recorded)?;
    let own = recorded.stacks()?.of_pid(app.pid());
    println!("the other first: {clr:?}, {} samples, {row}", own.total());
    let why = clr.why_not(app.pid()).context("no reason")?;
    assert!(why.contains("profiler") && clr.attached == 0 && own.total() > 500);
    assert!(row["refused"].as_str().unwrap_or_default().contains("profiler"), "{row}");
    assert_eq!(profiler.counts()?.state, "initialized");
    drop(app);

    let folder = tempfile::tempdir()?;
    let profiler = SecondProfiler::new(folder.path())?;
    let app = start(&dotnet, version, "Shares", &["300"])?;
    let mut recording =
        strata::record()?.frequency(FREQUENCY).seconds(60.0).pid(app.pid()).start()?;
    wait_until("strata is attached", PATIENCE, || {
        let row = listed(app.pid()).ok().flatten().unwrap_or_default();
        row["bridge"].as_str().unwrap_or_default().starts_with("attached")
    })?;
    let refused = profiler.attach(app.pid());
    println!("strata first: the other: {refused:?}");
    assert!(refused.is_err());
    recording.running().signal(Signal::INT)?;
    let clr = Clr::of(&recording.finish()?)?;
    assert!(clr.came_and_left_once(), "{clr:?}");
    // After strata has detached, another can attach.
    profiler.attach(app.pid())?;
    profiler.wait_for("attached")?;
    profiler.detach()
}
