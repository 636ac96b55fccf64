//! Several stratas read one .NET process: a recording beside the daemon, recordings beside each other.
//! Each has the events that it asks for, and no others.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;
use strata_tests::daemon::Daemon;
use strata_tests::event_sessions::{self, EventSession};
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::{Version, dotnet};
use strata_tests::stacks::Stacks;
use strata_tests::strata::{Recording, record};
use strata_tests::{machine, places, text_outputs};

use crate::dotnet_events::{REPORTED, Target, WAYS, of_method, recording_of, thrown, with_events};
use crate::dotnet_running::{PATIENCE, each, listed};

/// What `strata ps` says of a process's bridge.
fn bridge_of(pid: i32) -> String {
    let row = listed(pid).ok().flatten().unwrap_or_default();
    row["bridge"].as_str().unwrap_or_default().to_owned()
}

/// Waits until the daemon (`pid` and its number) owns the bridge in each of these processes; others on the
/// host may have one.
fn owns(daemon: &str, pids: &[i32]) -> Result<()> {
    wait_until("the daemon is attached", PATIENCE, || {
        pids.iter().all(|pid| bridge_of(*pid).contains(daemon))
    })
}

/// A daemon that asks for no events and owns the bridge of a program that throws without end.
fn flood_beside_daemon() -> Result<(Daemon, Target)> {
    let target = Target::start(&dotnet()?, Version::V9, "flood", "600")?;
    let daemon = daemon_that_owns(&[target.pid()])?;
    target.go()?;
    Ok((daemon, target))
}

fn daemon_that_owns(pids: &[i32]) -> Result<Daemon> {
    let mut daemon = Daemon::prepared()?;
    daemon.configure("[dotnet]\nage = \"0s\"\n")?;
    daemon.start()?;
    owns(&format!("pid {}", daemon.pid()?), pids)?;
    Ok(daemon)
}

fn all_thrown(stacks: &Stacks) -> u64 {
    WAYS.iter().map(|(_, name, _)| thrown(stacks, name)).sum()
}

/// The types that the daemon's store has.
fn stored_types(daemon: &Daemon) -> Result<String> {
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--store"]).arg(daemon.store());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    Ok(ended.stdout)
}

/// A daemon that asks for no events, and a recording beside it that asks for three kinds: it has the
/// counts that it would have alone, and the daemon has none.
#[test]
fn a_recording_beside_a_daemon_has_the_events_that_only_it_asks_for() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let versions: Vec<_> = with_events(&dotnet).collect();
    // Compiled first: the daemon attaches to the compiler, too.
    for version in &versions {
        for name in ["Throws", "Contends", "Allocates"] {
            dotnet.program(*version, name, &[])?;
        }
    }
    let mut daemon = daemon_that_owns(&[])?;
    let own = format!("pid {}", daemon.pid()?);
    each(&versions, 3, |version, _| {
        let throws = Target::start(&dotnet, version, "paced", "500")?;
        let contends = Target::start_program(&dotnet, version, "Contends", "50")?;
        let allocates = Target::start_program(&dotnet, version, "Allocates", "30000")?;
        let targets = [throws.pid(), contends.pid(), allocates.pid()];
        owns(&own, &targets)?;
        let mut record = record()?.option("-e", "cpu,exceptions,locks,allocations").flag("-v");
        for pid in targets {
            record = record.pid(pid);
        }
        let recording = record.start()?;
        for pid in targets {
            wait_until("its events are reported", PATIENCE, || {
                bridge_of(pid).ends_with("; reports exceptions, locks, allocations")
            })?;
            let bridge = bridge_of(pid);
            println!("{version}: {bridge}");
            assert!(bridge.contains(&own), "the daemon owns it: {bridge}");
        }
        throws.go()?;
        contends.go()?;
        allocates.go()?;
        let (thrown_own, waited, allocated) =
            (throws.counts()?, contends.counts()?, allocates.counts()?);
        let recorded = recording.end()?;
        recorded.print_losses();
        let summary = recorded.summary()?;
        println!("{version}: {}", summary.0["clr"]);
        assert_eq!(summary.0["clr"]["without_events"], Value::Array(Vec::new()), "{version}");
        assert_eq!(summary.0["clr"]["taken_over"], 0, "{version}");
        let profile = recorded.profile()?;
        let exceptions = profile.stacks_of("exceptions")?;
        for (name, type_name, _) in WAYS {
            let seen = thrown(&exceptions, type_name);
            println!("{version} {type_name}: {} thrown, {seen} seen", thrown_own[name]);
            assert_eq!(seen, thrown_own[name], "{version} {type_name}");
        }
        let waits = profile.stacks_of("lock_count")?;
        let (count, _) = of_method(&waits, "Shop.Contends.Enter");
        println!("{version}: {} waits, {count} seen", waited["waits"]);
        assert!((count as f64 / waited["waits"] as f64 - 1.0).abs() < 0.1, "{version}");
        let bytes = profile.stacks_of("alloc_size")?;
        for (name, method) in [
            ("small", "Shop.Allocates.MakeSmall"),
            ("middle", "Shop.Allocates.MakeMiddle"),
            ("large", "Shop.Allocates.MakeLarge"),
        ] {
            let (size, made) = (of_method(&bytes, method).0, allocated[&format!("{name}_bytes")]);
            println!("{version} {name}: {made} bytes, {size} seen");
            assert!((size as f64 / made as f64 - 1.0).abs() < 0.25, "{version} {name}");
        }
        Ok(())
    })?;
    let status = daemon.status()?;
    println!("the daemon: {} {}", status["sampling"], status["dotnet"]);
    daemon.end()?;
    let types = stored_types(&daemon)?;
    println!("{types}");
    assert!(types.contains("cpu"), "{types}");
    for kind in ["exception", "lock", "alloc"] {
        assert!(!types.contains(kind), "the daemon has not asked for it: {types}");
    }
    Ok(())
}

/// The sum of the stacks of a type that lead through a method, as the daemon has stored them.
fn stored(daemon: &Daemon, kind: &str, method: &str) -> Result<u64> {
    let file = format!("{kind}.folded");
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", "*", "--type", kind, "-o", &file, "--store"]);
    command.arg(daemon.store()).current_dir(daemon.folder());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    anyhow::ensure!(ended.status.success(), "{}", ended.stderr);
    let stacks = text_outputs::folded(&std::fs::read_to_string(daemon.folder().join(file))?)?;
    let has =
        |stack: &&text_outputs::Folded| stack.frames.iter().any(|frame| frame.contains(method));
    Ok(stacks.iter().filter(has).map(|stack| stack.count).sum())
}

/// A daemon and two recordings beside it, which ask for the same kinds.
#[test]
fn a_daemon_and_recordings_beside_it_all_have_the_same_events() -> Result<()> {
    const KINDS: &str = "exceptions,locks,allocations,heap,gc,wait_handles";
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    for version in machine::short_or_long(vec![Version::V9], with_events(&dotnet).collect()) {
        let throws = Target::start(&dotnet, version, "paced", "300")?;
        let collects = Target::start_way(&dotnet, version, "Collects", "counted", "40")?;
        let waits = Target::start_way(&dotnet, version, "Waits", "ways", "20")?;
        let targets = [throws.pid(), collects.pid(), waits.pid()];
        let mut daemon = Daemon::prepared()?;
        let types = KINDS.replace(',', "\", \"");
        daemon
            .configure(&format!("[sampling]\ntypes = [\"{types}\"]\n[dotnet]\nage = \"0s\"\n"))?;
        daemon.start()?;
        owns(&format!("pid {}", daemon.pid()?), &targets)?;
        let mut recordings = (0..2)
            .map(|_| {
                let record = record()?.option("-e", KINDS).flag("-v");
                targets.into_iter().fold(record, |record, pid| record.pid(pid)).start()
            })
            .collect::<Result<Vec<_>>>()?;
        for pid in targets {
            wait_until("its events are reported", PATIENCE, || {
                bridge_of(pid).contains("; reports ")
            })?;
            println!("{version}: {}", bridge_of(pid));
        }
        // What is said above may be the daemon's; the recordings have probes of their own.
        for recording in &mut recordings {
            for pid in targets {
                let reported = format!("{REPORTED} pid={pid}");
                recording.running().wait_for_log(&reported, PATIENCE)?;
            }
        }
        throws.go()?;
        collects.go()?;
        waits.go()?;
        let own = throws.counts()?;
        collects.counts()?;
        waits.counts()?;
        let recorded = recordings.into_iter().map(Recording::end).collect::<Result<Vec<_>>>()?;
        daemon.end()?;
        let thrown: u64 = own.values().sum();
        for (kind, column, method) in [
            ("exceptions", "exceptions", "Shop.Throws.Throw"),
            ("gc", "gc_pause", "Shop.Collects.Collect"),
            ("wait_handles", "wait_handle_time", "Shop.Waits.WaitManual"),
        ] {
            if kind == "wait_handles" && version == Version::V8 {
                continue;
            }
            let kept = stored(&daemon, kind, method)?;
            let mut seen = Vec::new();
            for one in &recorded {
                seen.push(of_method(&one.profile()?.stacks_of(column)?, method).0);
            }
            println!("{version} {kind}: the daemon {kept}, recordings {seen:?}, {thrown} thrown");
            assert!(kept > 0 && seen.iter().all(|seen| *seen == kept), "{version} {kind}");
            assert!(kind != "exceptions" || kept == thrown, "{version}: {kept} of {thrown}");
        }
    }
    Ok(())
}

/// Recordings without a daemon: the first owns the bridge and records CPU time only. A wish ends with
/// its recording, however that ends.
#[test]
fn recordings_beside_each_other_have_what_each_asks_for_for_as_long_as_it_runs() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let target = Target::start(&dotnet, version, "paced", "500")?;
        let pid = target.pid();
        let first = record()?.pid(pid).option("-e", "cpu").seconds(600.0);
        let mut first = first.start()?;
        wait_until("the first is attached", PATIENCE, || bridge_of(pid).starts_with("attached"))?;
        assert!(!bridge_of(pid).contains("reports"), "{}", bridge_of(pid));
        let with = recording_of(&target, "exceptions", |record| record)?;
        let without =
            recording_of(&target, "exceptions", |record| record.flag("--no-exception-messages"))?;
        let mut killed = recording_of(&target, "exceptions", |record| record)?;
        killed.running().signal(Signal::KILL)?;
        drop(killed);
        println!("{version}: {}", bridge_of(pid));
        assert!(bridge_of(pid).ends_with("; reports exceptions"), "{}", bridge_of(pid));
        target.go()?;
        let own = target.counts()?;
        for (who, recording, has_messages) in [("with", with, true), ("without", without, false)] {
            let stacks = recording.end()?.profile()?.stacks_of("exceptions")?;
            for (name, type_name, _) in WAYS {
                let seen = thrown(&stacks, type_name);
                println!("{version} {who} {type_name}: {} thrown, {seen} seen", own[name]);
                assert_eq!(seen, own[name], "{version} {who} {type_name}");
            }
            let has_some =
                stacks.stacks.iter().any(|stack| stack.labels.contains_key("exception message"));
            assert_eq!(has_some, has_messages, "{version} {who}");
        }
        first.running().signal(Signal::INT)?;
        let first = first.finish()?;
        assert!(first.profile()?.stacks_of("exceptions").is_err(), "{version}: the first has none");
        println!("{version}: the first: {:?}", first.summary()?.losses());
    }
    Ok(())
}

#[test]
fn the_wishes_of_a_recording_end_with_it_also_when_it_is_killed() -> Result<()> {
    let _machine = machine::alone()?;
    let (mut daemon, mut target) = flood_beside_daemon()?;
    let pid = target.pid();
    for signal in [Signal::KILL, Signal::INT] {
        let mut one = recording_of(&target, "exceptions", |record| record)?;
        let mut other = recording_of(&target, "locks,allocations", |record| record)?;
        wait_until("both wishes are in force", PATIENCE, || {
            bridge_of(pid).ends_with("; reports exceptions, locks, allocations")
        })?;
        other.running().signal(signal)?;
        drop(other);
        wait_until("the other's wishes end", PATIENCE, || {
            bridge_of(pid).ends_with("; reports exceptions")
        })?;
        one.running().signal(signal)?;
        drop(one);
        wait_until("no wishes are left", PATIENCE, || {
            bridge_of(pid).starts_with("attached") && !bridge_of(pid).contains("reports")
        })?;
    }
    assert!(target.running.is_alive());
    daemon.end()?;
    Ok(())
}

/// What was recorded stays, the recording attaches by itself, and says so.
#[test]
fn a_recording_goes_on_when_the_daemon_that_it_reads_beside_is_killed() -> Result<()> {
    let _machine = machine::alone()?;
    let (mut daemon, mut target) = flood_beside_daemon()?;
    let pid = target.pid();
    let mut recording = recording_of(&target, "exceptions", |record| record)?;
    std::thread::sleep(Duration::from_secs(3));
    daemon.kill()?;
    let own = recording.running().pid().to_string();
    wait_until("the recording owns the bridge", PATIENCE, || {
        let bridge = bridge_of(pid);
        bridge.contains(&own) && bridge.ends_with("; reports exceptions")
    })?;
    std::thread::sleep(Duration::from_secs(3));
    recording.running().signal(Signal::INT)?;
    let recorded = recording.finish()?;
    recorded.print_losses();
    let clr = recorded.summary()?.0["clr"].clone();
    let stacks = recorded.profile()?.stacks_of("exceptions")?;
    println!("{clr}: {} seen", all_thrown(&stacks));
    assert_eq!((&clr["taken_over"], &clr["loaded"]), (&1.into(), &1.into()), "{clr}");
    assert_eq!(clr["without_events"], Value::Array(Vec::new()));
    assert!(all_thrown(&stacks) > 10_000);
    assert!(target.running.is_alive());
    Ok(())
}

/// `stacks` and `ps` beside a daemon.
#[test]
fn threads_and_processes_are_shown_beside_a_daemon() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let target = Target::start(&dotnet, Version::V9, "paced", "10")?;
    let pid = target.pid();
    let mut daemon = daemon_that_owns(&[pid])?;
    let mut command = Command::new(places::strata_binary()?);
    command.args(["stacks", &pid.to_string()]);
    let shown = Running::from_command(command)?.wait(PATIENCE)?;
    println!("{}{}", shown.stdout, shown.stderr);
    assert!(shown.status.success() && shown.stdout.contains("Shop.Throws.WaitForGo"));
    let own = daemon.pid()?.to_string();
    assert!(bridge_of(pid).contains(&own), "the daemon still owns it: {}", bridge_of(pid));
    target.go()?;
    let counted = target.counts()?;
    counted.get("sold").context("it did not go on")?;
    daemon.end()?;
    Ok(())
}

/// A runtime has 64 sessions of events at most. While others have them all, events are missing, and
/// every command says why; when one is free, they come.
#[test]
fn a_runtime_that_refuses_an_event_session_is_named_and_asked_again() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in [Version::V8, Version::V9] {
        let target = Target::start_program(&dotnet, version, "Contends", "40")?;
        let pid = target.pid();
        let mut sessions = Vec::new();
        while sessions.len() < 100
            && let Some(session) = EventSession::open(pid, event_sessions::NOTHING)?
        {
            sessions.push(session);
        }
        println!("{version}: {} sessions", sessions.len());
        assert_eq!(sessions.len(), 64, "{version}");
        let record = record()?.pid(pid).option("-e", "locks").flag("-v");
        let refused = record.seconds(8.0).run()?.summary()?;
        let why = refused.0["clr"]["without_events"][0]["reason"].to_string();
        println!("{version}: {why}");
        assert!(why.contains("refuses an event session"), "{version}: {why}");
        let mut recording = recording_of_refused(&target)?;
        wait_until("ps says so", PATIENCE, || {
            bridge_of(pid).contains("does not report locks yet")
        })?;
        println!("{version}: {}", bridge_of(pid));
        let mut doctor = Command::new(places::strata_binary()?);
        doctor.args(["doctor", "--pid", &pid.to_string()]);
        let doctor = Running::from_command(doctor)?.wait(PATIENCE)?.stdout;
        assert!(doctor.contains("does not report locks yet"), "{doctor}");
        for session in sessions {
            session.close()?;
        }
        recording.running().wait_for_log(REPORTED, PATIENCE)?;
        target.go()?;
        let own = target.counts()?;
        let recorded = recording.end()?;
        let summary = recorded.summary()?;
        let waits = recorded.profile()?.stacks_of("lock_count")?;
        let (count, _) = of_method(&waits, "Shop.Contends.Enter");
        println!("{version}: {} waits, {count} seen", own["waits"]);
        assert!((count as f64 / own["waits"] as f64 - 1.0).abs() < 0.1, "{version}");
        assert_eq!(summary.0["clr"]["without_events"], Value::Array(Vec::new()), "{version}");
    }
    Ok(())
}

/// A recording of locks that has begun, whose wish may not be in force.
fn recording_of_refused(target: &Target) -> Result<Recording> {
    record()?.pid(target.pid()).option("-e", "locks").flag("-v").start()
}
