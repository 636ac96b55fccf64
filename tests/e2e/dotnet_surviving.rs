//! The program survives strata's end, strata survives the program's, and two instances of strata do
//! not share one program.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::dotnet;
use strata_tests::{machine, strata};

use crate::dotnet_running::{Clr, FREQUENCY, PATIENCE, Wrongs, count_of, listed, start};

/// How often a program has printed its speed.
fn rates(app: &Running) -> usize {
    app.printed().lines().filter(|line| line.starts_with("rate ")).count()
}

fn works_on(app: &mut Running) -> bool {
    let before = rates(app);
    wait_until("it works on", PATIENCE, || rates(app) > before + 2).is_ok() && app.is_alive()
}

fn is_read(pid: i32) -> Result<()> {
    wait_until("strata reads it", PATIENCE, || {
        let row = listed(pid).ok().flatten().unwrap_or_default();
        row["bridge"].as_str().unwrap_or_default().starts_with("attached")
    })
}

#[test]
fn a_killed_strata_harms_nobody_and_the_next_recording_works() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let mut app = start(&dotnet, version, "Busy", &["600", "0.2"])?;
        let pid = app.pid();
        let mut counts = vec![];
        // At any moment: while it attaches, while it reads.
        for milliseconds in [150, 400, 700, 1500, 3000] {
            let record = strata::record()?.frequency(FREQUENCY).seconds(60.0).pid(pid);
            let killed = Running::from_command(record.to_command()?)?;
            std::thread::sleep(Duration::from_millis(milliseconds));
            killed.signal(Signal::KILL)?;
            drop(killed);
            wrongs.unless(works_on(&mut app), || {
                format!("{version}: it stopped when strata was killed after {milliseconds} ms")
            });
            let recorded = strata::record()?.frequency(FREQUENCY).seconds(2.0).pid(pid).run()?;
            let own = recorded.stacks()?.of_pid(pid);
            let (clr, named) = (Clr::of(&recorded)?, own.share_with("Busy.Main"));
            counts.push((count_of(pid, "task")?, count_of(pid, "fd")?));
            println!("{version}, killed after {milliseconds} ms, then {named:.3} named, {clr:?}");
            wrongs.unless(clr.attached == 1 && clr.refused.is_empty() && named > 0.8, || {
                format!("{version}: after {milliseconds} ms and a kill: {named} named, {clr:?}")
            });
        }
        println!("{version}: threads and files {counts:?}");
        let first = counts.first().copied().unwrap_or_default();
        wrongs
            .unless(counts.iter().all(|now| now.0 <= first.0 + 1 && now.1 <= first.1 + 1), || {
                format!("{version}: threads and files grow: {counts:?}")
            });
    }
    wrongs.none();
    Ok(())
}

/// How often the thread of strata's library has slept, if there is one in the process.
fn library_thread_slept(pid: i32) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let thread = tasks.flatten().map(|task| task.path()).find(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == "strata-clr")
    })?;
    let status = std::fs::read_to_string(thread.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// Whether the process has a descriptor of the library's memory.
fn has_library_file(pid: i32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    names.any(|name| name.to_string_lossy().contains("strata"))
}

#[test]
fn the_library_idles_while_strata_reads_and_leaves_when_strata_is_killed() -> Result<()> {
    const LEAVING: Duration = Duration::from_secs(30);
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let mut app = start(&dotnet, version, "Busy", &["600", "0.2"])?;
        let pid = app.pid();
        let record = strata::record()?.frequency(97).seconds(600.0).pid(pid);
        let strata = Running::from_command(record.to_command()?)?;
        is_read(pid)?;
        std::thread::sleep(Duration::from_secs(12));
        let before = library_thread_slept(pid).context("the library has no thread")?;
        std::thread::sleep(Duration::from_secs(10));
        let slept = library_thread_slept(pid).context("the library has no thread")? - before;
        println!("{version}: {slept} wake-ups in 10 s");
        ensure!(slept <= 30, "{version}: {slept} wake-ups in 10 s");

        strata.signal(Signal::KILL)?;
        let killed = std::time::Instant::now();
        drop(strata);
        wait_until("the library leaves", LEAVING, || {
            library_thread_slept(pid).is_none() && !has_library_file(pid)
        })?;
        println!("{version}: the library left {:?} after the kill", killed.elapsed());
        ensure!(works_on(&mut app), "{version}: the program stopped");

        let recorded = strata::record()?.frequency(FREQUENCY).seconds(2.0).pid(pid).run()?;
        let named = recorded.stacks()?.of_pid(pid).share_with("Busy.Main");
        let clr = Clr::of(&recorded)?;
        ensure!(clr.came_and_left_once() && named > 0.8, "{version}: {named} named, {clr:?}");
        ensure!(!has_library_file(pid), "{version}: a descriptor is left");
    }
    Ok(())
}

#[test]
fn what_a_killed_program_had_said_is_kept() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        // It compiles methods all the time: the kill comes while it publishes them.
        let command = dotnet.program(version, "ManyMethods", &["collectible", "4000000"])?;
        let app = Running::from_command(command)?;
        std::thread::sleep(Duration::from_secs(2));
        let pid = app.pid();
        let record = strata::record()?.frequency(FREQUENCY).seconds(6.0).pid(pid);
        let recording = record.start()?;
        std::thread::sleep(Duration::from_secs(3));
        app.signal(Signal::KILL)?;
        drop(app);
        let recorded = recording.finish()?;
        let own = recorded.stacks()?.of_pid(pid);
        let (clr, named) = (Clr::of(&recorded)?, own.share_with("ManyMethods.Main"));
        println!("{version}: {} samples, {named:.3} below Main, {clr:?}", own.total());
        recorded.print_losses();
        wrongs.unless(clr.attached == 1 && clr.methods > 500 && own.total() > 500, || {
            format!("{version}: {} samples, {clr:?}", own.total())
        });
        wrongs.unless(named > 0.5, || format!("{version}: {named} below Main"));
    }
    wrongs.none();
    Ok(())
}

#[test]
fn a_second_strata_is_told_who_reads() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let mut app = start(&dotnet, version, "Busy", &["600", "0.2"])?;
        let pid = app.pid();
        let mut first = strata::record()?.frequency(97).seconds(600.0).pid(pid).start()?;
        is_read(pid)?;
        let holder = first.running().pid();
        let second = strata::record()?.frequency(FREQUENCY).seconds(2.0).pid(pid).run()?;
        let clr = Clr::of(&second)?;
        let samples = second.stacks()?.of_pid(pid).total();
        let why = clr.why_not(pid).context("no reason")?;
        println!("{version}: {holder} reads; the second: {samples} samples, {why}");
        wrongs.unless(why.contains(&holder.to_string()) && samples > 500, || {
            format!("{version}: {holder} reads, but {why:?}; {samples} samples")
        });
        first.running().signal(Signal::INT)?;
        let first = first.finish()?;
        let (clr, own) = (Clr::of(&first)?, first.stacks()?.of_pid(pid));
        let named = own.share_with("Busy.Main");
        println!("  the first: {named:.3} of {} named, {clr:?}", own.total());
        wrongs.unless(clr.came_and_left_once() && named > 0.8, || {
            format!("{version}: the first {named} named, {clr:?}")
        });
        wrongs.unless(works_on(&mut app), || format!("{version}: the program stopped"));
    }
    wrongs.none();
    Ok(())
}
