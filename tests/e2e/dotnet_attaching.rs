//! strata attaches to .NET programs, whenever they started, and leaves nothing behind.

use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::Signal;
use strata_tests::running::Running;
use strata_tests::runtimes::{Version, dotnet};
use strata_tests::stacks::Stacks;
use strata_tests::strata::Recorded;
use strata_tests::{machine, places, strata};

use crate::dotnet_running::{
    Clr, FREQUENCY, PATIENCE, Wrongs, ask, count_of, each, listed, listed_by, print_examples,
    recorded_command, recorded_without_variables, start, start_command,
};

const BURNERS: [&str; 3] = ["Shares.BurnFifty", "Shares.BurnThirty", "Shares.BurnTwenty"];

/// The fraction of a program's samples that its own methods are in, by their names: each burner
/// below what calls it, and all below Main.
fn named_share(own: &Stacks) -> f64 {
    own.share_that(|stack| {
        BURNERS.iter().any(|burner| stack.has(burner))
            && stack.has("Shares.Turn")
            && stack.has("Shares.Main")
    })
}

fn check(
    version: Version,
    how: &str,
    recorded: &Recorded,
    own: &Stacks,
    wrongs: &mut Wrongs,
) -> Result<Clr> {
    let clr = Clr::of(recorded)?;
    let named = named_share(own);
    let complete = own.completeness();
    println!(
        "{version}, {how}: {} samples, {:.2} % below the program's methods, {clr:?}, complete {complete}",
        own.total(),
        100.0 * named
    );
    let few = own.that(|stack| !stack.has("Shares.Main"));
    print_examples(&few, 2);
    wrongs.unless(own.total() >= 900, || format!("{version}, {how}: {} samples", own.total()));
    wrongs.unless(named > 0.9, || format!("{version}, {how}: {named} named"));
    wrongs.unless(clr.attached == 1 && clr.refused.is_empty(), || {
        format!("{version}, {how}: {clr:?}")
    });
    wrongs.unless(complete.fraction() > 0.99, || format!("{version}, {how}: {complete}"));
    Ok(clr)
}

#[test]
fn a_program_that_runs_already_shows_its_methods_by_name() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let mut app = start(&dotnet, version, "Shares", &["120"])?;
        let recording = strata::record()?.frequency(FREQUENCY).pid(app.pid()).start()?;
        let recorded = recording.finish_when_used(&[app.pid()], 1.5)?;
        let own = recorded.stacks()?.of_pid(app.pid());
        let clr = check(version, "before", &recorded, &own, &mut wrongs)?;
        wrongs.unless(clr.came_and_left_once(), || format!("{version}: {clr:?}"));
        wrongs.unless(app.is_alive(), || format!("{version}: the program ended"));
    }
    wrongs.none();
    Ok(())
}

#[test]
fn a_program_that_starts_later_shows_its_methods_by_name_too() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let mut command = dotnet.program(version, "Shares", &["3"])?;
        command.env("STRATA_TARGET_CLOCK", "cpu");

        let record = strata::record()?.frequency(FREQUENCY);
        let recorded = recorded_command(record, &command)?.run()?;
        let own = recorded.stacks()?.that(is_of_main_thread);
        let clr = check(version, "started by strata", &recorded, &own, &mut wrongs)?;
        wrongs.unless(clr.loaded == 0, || format!("{version}: attached to its own child {clr:?}"));

        let record = strata::record()?.frequency(FREQUENCY);
        let recorded = recorded_without_variables(record, &command)?.run()?;
        let own = recorded.stacks()?.that(is_of_main_thread);
        let clr = check(version, "started while recording", &recorded, &own, &mut wrongs)?;
        wrongs.unless(clr.loaded == 1, || format!("{version}: not attached {clr:?}"));
    }
    wrongs.none();
    Ok(())
}

#[test]
fn a_runtime_inside_its_program_is_recognised_without_memory_files() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in [Version::V8, Version::V10] {
        let mut command = dotnet.program(version, "Shares", &["3"])?;
        command.env("STRATA_TARGET_CLOCK", "cpu").env("DOTNET_EnableWriteXorExecute", "0");
        let record = strata::record()?.frequency(FREQUENCY);
        let recorded = recorded_without_variables(record, &command)?.run()?;
        let own = recorded.stacks()?.that(is_of_main_thread);
        let clr = check(version, "started while recording", &recorded, &own, &mut wrongs)?;
        wrongs.unless(clr.loaded == 1, || format!("{version}: not attached {clr:?}"));

        let mut command = dotnet.program(version, "Shares", &["120"])?;
        command.env("DOTNET_EnableWriteXorExecute", "0");
        let app = start_command(command)?;
        let pid = app.pid();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        assert!(!maps.contains("doublemapper") && !maps.contains("libcoreclr"), "{version}");
        let report = ask(&["doctor", "--pid", &pid.to_string()])?;
        wrongs.unless(report.contains("runtime: .NET"), || format!("{version}: {report}"));
        let recording = strata::record()?.frequency(FREQUENCY).pid(pid).start()?;
        let recorded = recording.finish_when_used(&[pid], 1.5)?;
        let own = recorded.stacks()?.of_pid(pid);
        let clr = check(version, "before", &recorded, &own, &mut wrongs)?;
        wrongs.unless(clr.came_and_left_once(), || format!("{version}: {clr:?}"));
    }
    wrongs.none();
    Ok(())
}

/// Its own samples of managed code: not those of the runtime's start and of its other threads.
fn is_of_main_thread(stack: &strata_tests::stacks::Stack) -> bool {
    stack.pid() == stack.tid() && stack.has("Shares.Main")
        || stack.frames.iter().any(|frame| BURNERS.contains(&frame.name.as_str()))
}

#[test]
fn many_recordings_of_one_program_leave_nothing_behind() -> Result<()> {
    /// Of the first recordings the most that was there afterwards is compared with the last ones' median.
    const COMPARED: usize = 5;
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    each(&dotnet.versions(), 4, |version, wrongs| {
        let mut app = start(&dotnet, version, "Busy", &["600", "0.2"])?;
        let pid = app.pid();
        let state = || -> Result<[usize; 4]> {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
            let of_strata = maps.lines().filter(|line| line.contains("strata")).count();
            let counts = [count_of(pid, "task")?, count_of(pid, "fd")?, maps.lines().count()];
            Ok([counts[0], counts[1], counts[2], of_strata])
        };
        let before = state()?;
        let mut after: Vec<[usize; 4]> = vec![];
        for cycle in 0..machine::short_or_long(12, 20) {
            let record = strata::record()?.frequency(FREQUENCY).seconds(1.0).pid(pid);
            let recorded = record.run()?;
            let clr = Clr::of(&recorded)?;
            // Threads of the runtime's own compile now and then what has become hot.
            let own = recorded.stacks()?.of_pid(pid).that(|stack| stack.tid() == Some(pid));
            let named = own.share_with("Busy.Main");
            wrongs.unless(own.total() > 100, || format!("{version}, {cycle}: {}", own.total()));
            wrongs.unless(clr.came_and_left_once(), || format!("{version}, {cycle}: {clr:?}"));
            wrongs.unless(named > 0.95, || {
                format!("{version}, {cycle}: {named} of {} below Busy.Main", own.total())
            });
            // No frame's caller is skipped, from the first sample on.
            let skipped = own.share_that(|stack| {
                let mut calls = stack.frames.windows(2);
                calls.any(|call| call[0].name == "Busy.Until" && call[1].name != "Busy.Main")
            });
            wrongs.unless(skipped < 0.01, || {
                format!("{version}, {cycle}: {skipped} of {} without a caller", own.total())
            });
            after.push(state()?);
        }
        let rates = |output: &str| output.lines().filter(|line| line.starts_with("rate ")).count();
        let so_far = rates(&app.printed());
        let goes_on = strata_tests::running::wait_until("it works on", PATIENCE, || {
            rates(&app.printed()) > so_far + 3
        });
        println!(
            "{version}: threads, files, mappings, of them strata's: {before:?}, then {after:?}"
        );
        wrongs.unless(goes_on.is_ok() && app.is_alive(), || format!("{version}: it stopped"));
        // Threads of the runtime's own come and go, and it maps memory while it works: anything
        // that strata leaves behind each time would add up.
        let sorted = |column: usize, of: &[[usize; 4]]| {
            let mut values: Vec<usize> = of.iter().map(|row| row[column]).collect();
            values.sort_unstable();
            values
        };
        assert!(after.len() >= 2 * COMPARED, "{version}: {} recordings", after.len());
        let (first, last) = (&after[..COMPARED], &after[after.len() - COMPARED..]);
        for (column, what) in
            ["threads", "files", "mappings", "strata's mappings"].iter().enumerate()
        {
            let slack = if column == 2 { 4 } else { 0 };
            let (early, late) =
                (sorted(column, first)[COMPARED - 1], sorted(column, last)[COMPARED / 2]);
            wrongs.unless(late <= early + slack, || {
                format!("{version}: {early} {what}, and later {late}")
            });
        }
        Ok(())
    })
}

#[test]
fn a_program_started_with_the_variables_of_strata_env_is_read_without_attaching() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let printed = ask(&["env"])?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let mut command = dotnet.program(version, "Shares", &["120"])?;
        for line in printed.lines() {
            let line = line.strip_prefix("export ").context("not an export")?;
            let (name, value) = line.split_once('=').context("no value")?;
            command.env(name, value.trim_matches('\''));
        }
        let app = start_command(command)?;
        let row = listed(app.pid())?.context("strata ps does not list it")?;
        println!("{version}: {row}");
        let record = strata::record()?.frequency(FREQUENCY).pid(app.pid());
        let recording = record.option("--clr", "environment").start()?;
        let recorded = recording.finish_when_used(&[app.pid()], 1.5)?;
        let own = recorded.stacks()?.of_pid(app.pid());
        let clr = check(version, "strata env", &recorded, &own, &mut wrongs)?;
        wrongs.unless(clr.loaded == 0, || format!("{version}: {clr:?}"));
        let row = listed(app.pid())?.context("strata ps does not list it")?;
        let bridge = row.get("bridge").and_then(serde_json::Value::as_str).unwrap_or_default();
        wrongs.unless(bridge.starts_with("loaded"), || format!("{version}: {row}"));
    }
    wrongs.none();
    Ok(())
}

#[test]
fn without_attaching_nothing_is_loaded_and_stacks_are_still_whole() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        for policy in ["off", "environment"] {
            let app = start(&dotnet, version, "Shares", &["120"])?;
            let record = strata::record()?.frequency(FREQUENCY).pid(app.pid());
            let recording = record.option("--clr", policy).start()?;
            let recorded = recording.finish_when_used(&[app.pid()], 1.0)?;
            let clr = Clr::of(&recorded)?;
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", app.pid()))?;
            let own = recorded.stacks()?.of_pid(app.pid());
            println!("{version}, --clr {policy}: {} samples, {clr:?}", own.total());
            print_examples(&own, 1);
            wrongs.unless(!maps.contains("strata-clr"), || format!("{version}: strata is in it"));
            wrongs.unless(clr.loaded == 0 && own.total() >= 500, || {
                format!("{version}, {policy}: {} samples, {clr:?}", own.total())
            });
        }
    }
    wrongs.none();
    Ok(())
}

#[test]
fn the_list_says_what_runs_and_how_strata_is_in_it() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let folder = tempfile::tempdir()?;
    let (own, other) = (places::strata_binary()?, folder.path().join("strata"));
    std::fs::copy(&own, &other)?;
    for version in dotnet.versions() {
        let app: Running = start(&dotnet, version, "Sleeper", &["2", "120"])?;
        let idle = listed(app.pid())?.context("strata ps does not list it")?;
        let mut recording = strata::record()?.seconds(60.0).pid(app.pid()).start()?;
        strata_tests::running::wait_until("strata is attached", PATIENCE, || {
            let row = listed(app.pid()).ok().flatten().unwrap_or_default();
            row["bridge"].as_str().unwrap_or_default().starts_with("attached")
        })?;
        let read = listed(app.pid())?.context("strata ps does not list it")?;
        println!("{version}: {idle}\n  then {read}");
        assert_eq!(idle["bridge"], "not loaded");
        assert!(idle["refused"].is_null(), "{idle}");
        // The recording has the bridge's control pages mapped, and is no .NET process for that: for
        // another build of strata neither.
        let reader = recording.running().pid();
        let by_other =
            listed_by(&other, app.pid())?.context("the other strata does not list it")?;
        assert_eq!(by_other["bridge"], read["bridge"]);
        for strata in [&own, &other] {
            assert_eq!(listed_by(strata, reader)?, None, "{} lists a strata", strata.display());
        }
        drop(recording);
    }
    Ok(())
}

/// Programs that have compiled all of their methods, and map nothing any more, selected by their names: strata
/// attaches before there is a sample of them.
#[test]
fn a_runtime_that_is_selected_by_its_name_is_attached_to() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let folder = tempfile::tempdir()?;
    each(&dotnet.versions(), 2, |version, wrongs| {
        let command = dotnet.program(version, "Shares", &["600"])?;
        // A name that no other program of the host has.
        let name = format!("only{}", version.to_string().replace(['.', ' '], ""));
        let name = &name[..name.len().min(15)];
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(command.get_program(), &link)?;
        let mut renamed = Command::new(&link);
        renamed.args(command.get_args());
        for (variable, value) in command.get_envs() {
            renamed.env(variable, value.unwrap_or_default());
        }
        let target = start_command(renamed)?;
        target.wait_until_used(3.0)?;
        let record = strata::record()?.option("--comm", name).option("-e", "cpu,wall");
        let recorded = record.seconds(3.0).run()?;
        let profile = recorded.profile()?;
        for kind in ["cpu", "wall"] {
            let own = profile.stacks_of(kind)?.of_pid(target.pid());
            let own = own.that(|stack| stack.labels.get("tid") == stack.labels.get("pid"));
            let named = named_share(&own);
            println!("{version}: {name}: {kind}: {} samples, {named:.3} named", own.total());
            wrongs.unless(named > 0.95, || format!("{version}: {kind}: {named}"));
        }
        Ok(())
    })
}

/// A process that is stopped answers nothing: the report says so, and it is unharmed.
#[test]
fn a_stopped_program_is_said_not_to_be_attached_to() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let [.., version, _] = dotnet.versions();
    let mut target = start(&dotnet, version, "Shares", &["600"])?;
    target.signal(Signal::STOP)?;
    let recorded = strata::record()?.pid(target.pid()).option("-e", "cpu,wall").seconds(3.0).run();
    target.signal(Signal::CONT)?;
    let clr = Clr::of(&recorded?)?;
    let why = clr.why_not(target.pid());
    assert!(why.is_some_and(|why| why.contains("its runtime has not answered")), "{why:?}");
    assert!(target.is_alive());
    Ok(())
}
