//! The program survives strata's end, strata survives the program's, and two instances of strata do
//! not share one program.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use strata_tests::daemon::{Daemon, attaching_to};
use strata_tests::running::{Running, cpu_seconds_of, wait_until, wait_until_used};
use strata_tests::runtimes::{Version, dotnet};
use strata_tests::strata::Recorded;
use strata_tests::{machine, strata};

use crate::dotnet_running::{
    Clr, FREQUENCY, PATIENCE, count_of, each, listed, start, start_command, wait_for_attach,
};

/// How often a program has printed its speed.
fn rates(app: &Running) -> usize {
    app.printed().lines().filter(|line| line.starts_with("rate ")).count()
}

fn works_on(app: &mut Running) -> bool {
    let before = rates(app);
    wait_until("it works on", PATIENCE, || rates(app) > before + 2).is_ok() && app.is_alive()
}

#[test]
fn a_killed_strata_harms_no_program_and_the_next_recording_works() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    each(&dotnet.versions(), 2, |version, wrongs| {
        let mut app = start(&dotnet, version, "Busy", &["600", "0.2"])?;
        let pid = app.pid();
        let mut first = None;
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
            let recording = strata::record()?.frequency(FREQUENCY).pid(pid).start()?;
            let recorded = recording.finish_when_used(&[pid], 1.0)?;
            let own = recorded.stacks()?.of_pid(pid);
            let (clr, named) = (Clr::of(&recorded)?, own.share_with("Busy.Main"));
            let used = || Ok::<_, anyhow::Error>((count_of(pid, "task")?, count_of(pid, "fd")?));
            let (threads, files) = *first.get_or_insert(used()?);
            // The runtime's own come and go; what a strata left would stay.
            let is_given_back =
                || used().is_ok_and(|now| now.0 <= threads + 1 && now.1 <= files + 1);
            let given_back =
                wait_until("threads and files are given back", PATIENCE, is_given_back);
            println!("{version}: threads and files {:?}", used()?);
            wrongs.unless(given_back.is_ok(), || {
                format!(
                    "{version}: threads and files grow: {:?}, then {:?}",
                    (threads, files),
                    used()
                )
            });
            println!("{version}, killed after {milliseconds} ms, then {named:.3} named, {clr:?}");
            wrongs.unless(clr.attached == 1 && clr.refused.is_empty() && named > 0.8, || {
                format!("{version}: after {milliseconds} ms and a kill: {named} named, {clr:?}")
            });
        }
        Ok(())
    })
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
    names.any(|name| name.to_string_lossy().contains("strata-clr"))
}

#[test]
fn the_library_idles_while_strata_reads_and_leaves_when_strata_is_killed() -> Result<()> {
    const LEAVING: Duration = Duration::from_secs(30);
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    each(&dotnet.versions(), 4, |version, _| {
        let mut app = start(&dotnet, version, "Busy", &["600", "0.2"])?;
        let pid = app.pid();
        let record = strata::record()?.frequency(97).seconds(600.0).pid(pid);
        let strata = Running::from_command(record.to_command()?)?;
        wait_for_attach(pid)?;
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

        let recording = strata::record()?.frequency(FREQUENCY).pid(pid).start()?;
        let recorded = recording.finish_when_used(&[pid], 2.0)?;
        let named = recorded.stacks()?.of_pid(pid).share_with("Busy.Main");
        let clr = Clr::of(&recorded)?;
        ensure!(clr.came_and_left_once() && named > 0.8, "{version}: {named} named, {clr:?}");
        ensure!(!has_library_file(pid), "{version}: a descriptor is left");
        Ok(())
    })
}

#[test]
fn what_a_killed_program_had_said_is_kept() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    each(&dotnet.versions(), 2, |version, wrongs| {
        // It compiles methods all the time: the kill comes while it publishes them.
        let command = dotnet.program(version, "ManyMethods", &["collectible", "4000000"])?;
        let app = Running::from_command(command)?;
        app.wait_until_used(1.0)?;
        let pid = app.pid();
        // It ends with the program.
        let recording = strata::record()?.frequency(FREQUENCY).pid(pid).start()?;
        wait_for_attach(pid)?;
        wait_until_used(pid, cpu_seconds_of(pid)? + 2.0)?;
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
        Ok(())
    })
}

#[test]
fn a_second_strata_reads_beside_the_first_and_goes_on_without_it() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    each(&dotnet.versions(), 4, |version, wrongs| {
        let mut app = start(&dotnet, version, "Busy", &["600", "0.2"])?;
        let pid = app.pid();
        let mut first = strata::record()?.frequency(97).seconds(600.0).pid(pid).start()?;
        wait_for_attach(pid)?;
        let mut check = |who: &str, recorded: &Recorded, clr: &Clr| -> Result<()> {
            let own = recorded.stacks()?.of_pid(pid);
            let named = own.share_with("Busy.Main");
            println!("{version}, {who}: {named:.3} of {} named, {clr:?}", own.total());
            let has_all = clr.refused.is_empty() && named > 0.8 && own.total() > 20;
            wrongs.unless(has_all, || format!("{version}, {who}: {named} named, {clr:?}"));
            Ok(())
        };
        let second = strata::record()?.frequency(FREQUENCY).seconds(2.0).pid(pid).run()?;
        let clr = Clr::of(&second)?;
        check("beside it", &second, &clr)?;
        ensure!(clr.attached == 1 && clr.loaded == 0, "{version}: {clr:?}");

        let record = strata::record()?.frequency(97).seconds(600.0).pid(pid).flag("-v");
        let mut third = record.start()?;
        let third_pid = third.running().pid().to_string();
        third.running().wait_for_log("read beside another strata", PATIENCE)?;
        // It ends, or dies.
        if matches!(version, Version::V3_1 | Version::V9) {
            first.running().signal(Signal::INT)?;
            let first = first.finish()?;
            let clr = Clr::of(&first)?;
            check("the first", &first, &clr)?;
            ensure!(clr.came_and_left_once(), "{version}: {clr:?}");
        } else {
            first.running().signal(Signal::KILL)?;
            drop(first);
        }
        // Its own bridge comes after the first one's has left.
        let second_owner = || {
            let row = listed(pid).ok().flatten().unwrap_or_default();
            let bridge = row["bridge"].as_str().unwrap_or_default().to_owned();
            bridge.starts_with("attached") && bridge.contains(&third_pid)
        };
        wait_until("the third strata attaches", PATIENCE, second_owner)?;
        std::thread::sleep(Duration::from_secs(2));
        third.running().signal(Signal::INT)?;
        let third = third.finish()?;
        let clr = Clr::of(&third)?;
        check("to its end and after it", &third, &clr)?;
        ensure!(clr.attached >= 2 && clr.detached == 1, "{version}: {clr:?}");
        wrongs.unless(works_on(&mut app), || format!("{version}: the program stopped"));
        Ok(())
    })
}

#[test]
fn a_daemon_beside_a_recording_takes_over_when_that_ends() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut command = dotnet.program(Version::V9, "Busy", &["600", "0.2"])?;
    command.env("DD_SERVICE", "taken-over");
    let mut app = start_command(command)?;
    let pid = app.pid();
    let mut first = strata::record()?.frequency(97).seconds(600.0).pid(pid).start()?;
    wait_for_attach(pid)?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&attaching_to(&["taken-over"]))?;
    daemon.start()?;
    wait_until("the daemon reads it", PATIENCE, || {
        daemon.status().is_ok_and(|status| status["dotnet"]["attached"] == 1)
    })?;
    first.running().signal(Signal::INT)?;
    let clr = Clr::of(&first.finish()?)?;
    ensure!(clr.came_and_left_once(), "{clr:?}");
    let own = daemon.pid()?.to_string();
    wait_until("the daemon attaches", PATIENCE, || {
        let row = listed(pid).ok().flatten().unwrap_or_default();
        let bridge = row["bridge"].as_str().unwrap_or_default().to_owned();
        bridge.starts_with("attached") && bridge.contains(&own)
    })?;
    ensure!(works_on(&mut app), "the program stopped");
    daemon.end()?;
    ensure!(works_on(&mut app), "the program stopped");
    Ok(())
}
