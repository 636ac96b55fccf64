//! Wall-clock profiles beside threads whose stacks lie in memory that never answers.

use std::process::Command;

use anyhow::{Context, Result};
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::fuse::SilentFileSystem;
use strata_tests::running::{Running, wait_until};
use strata_tests::strata::record;
use strata_tests::{machine, text_outputs};

use crate::dotnet_running;
use crate::wall::{c_target, has, label, number, seconds, wall};

/// A process of which a thread's stack lies in a file whose server never answers. Dropped in this order: the process
/// cannot end while its memory is being read.
struct Unreadable {
    _files: SilentFileSystem,
    process: Running,
}

impl Unreadable {
    fn start() -> Result<Self> {
        let files = SilentFileSystem::with_program(&c_target("sleeper")?)?;
        let path = files.program();
        let program = c_target("stack_on_file")?;
        let mut process = Running::start(&program, &[path.to_str().context("a path")?])?;
        process.wait_for_line("ready", PATIENCE)?;
        files.fall_silent();
        Ok(Self { _files: files, process })
    }
}

/// A thread's stack lies in a file whose server never answers: its reader hangs, and nothing else.
#[test]
fn a_stack_that_cannot_be_read_stalls_nothing() -> Result<()> {
    let _machine = machine::beside_others()?;
    let unreadable = Unreadable::start()?;
    let hostile = &unreadable.process;
    let good = Running::start(&c_target("waits")?, &["600"])?;
    let pids = [hostile.pid(), good.pid()].map(|pid| pid.to_string());
    let recorded = record()?
        .option("--pid", &*pids[0])
        .option("--pid", &*pids[1])
        .option("-e", "wall")
        .seconds(10.0)
        .run()?;
    let stacks = wall(&recorded)?;
    let time_of = |pid: &str| seconds(stacks.stacks.iter().filter(|s| label(s, "pid") == pid));
    let sleeps = seconds(stacks.stacks.iter().filter(|stack| has(stack, "wait_sleep")));
    println!("hostile {:.2} s, good {:.2} s", time_of(&pids[0]), time_of(&pids[1]));
    println!("the good one's sleeper: {sleeps:.2} s");
    let summary = recorded.summary()?;
    assert_eq!(summary.losses_named(&["thread_reads_hung"]), 1);
    // Two threads and twelve. The first pass hung for a second, and its time is not lost; only where the
    // sleeper was before there were tables is not known.
    let lasted = summary.number("duration_seconds")?;
    println!("the recording: {lasted:.2} s");
    assert!((18.0..2.4 * lasted).contains(&time_of(&pids[0])));
    assert!((108.0..14.0 * lasted).contains(&time_of(&pids[1])) && sleeps > 7.0);
    // Another thread's stack of the same process is looked at no more, which is said of it.
    let shown = dotnet_running::ask(&["stacks", "--pid", &pids[0]])?;
    println!("{shown}");
    assert!(shown.contains("stack memory that could not be read"));
    Ok(())
}

/// Several processes with such a stack each, in a file system of its own: each costs the others one pass that is given up, and no time.
#[test]
fn many_stacks_that_cannot_be_read_stall_nothing() -> Result<()> {
    const MANY: usize = 7;
    let _machine = machine::beside_others()?;
    let unreadable: Vec<Unreadable> =
        (0..MANY).map(|_| Unreadable::start()).collect::<Result<_>>()?;
    let hostile = || unreadable.iter().map(|one| &one.process);
    let good = Running::start(&c_target("waits")?, &["600"])?;
    let mut recording = record()?.option("--pid", good.pid().to_string());
    for one in hostile() {
        recording = recording.option("--pid", one.pid().to_string());
    }
    let recorded = recording.option("-e", "wall").seconds(20.0).run()?;
    let stacks = wall(&recorded)?;
    let time_of = |pid: i32| {
        let pid = pid.to_string();
        seconds(stacks.stacks.iter().filter(move |stack| label(stack, "pid") == pid))
    };
    let sleeps = seconds(stacks.stacks.iter().filter(|stack| has(stack, "wait_sleep")));
    println!("good {:.2} s, its sleeper {sleeps:.2} s", time_of(good.pid()));
    let summary = recorded.summary()?;
    assert_eq!(summary.losses_named(&["thread_reads_hung"]), MANY as u64);
    assert_eq!(summary.losses_named(&["thread_passes_refused"]), 0);
    let lasted = summary.number("duration_seconds")?;
    println!("the recording: {lasted:.2} s");
    for one in hostile() {
        let time = time_of(one.pid());
        assert!((38.0..2.3 * lasted).contains(&time), "{}: {time:.2} s", one.pid());
    }
    assert!((228.0..13.5 * lasted).contains(&time_of(good.pid())) && sleeps > 8.0);
    Ok(())
}

/// A process whose stacks cannot be read is named by the daemon's status; the others are walked.
#[test]
fn a_daemon_names_a_process_that_it_cannot_walk() -> Result<()> {
    let _machine = machine::beside_others()?;
    let unreadable = Unreadable::start()?;
    let hostile = &unreadable.process;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("[sampling]\ntypes = [\"cpu\", \"wall\"]\n")?;
    daemon.start()?;
    let named = |daemon: &Daemon| {
        let status = daemon.status().unwrap_or_default();
        let all = status["wall"]["not_walked"].as_array().cloned().unwrap_or_default();
        all.iter().any(|process| process["pid"] == hostile.pid())
    };
    wait_until("the process is named", PATIENCE, || named(&daemon))?;
    let passes = |daemon: &Daemon| -> Result<u64> {
        daemon.status()?["wall"]["passes"].as_u64().context("no passes")
    };
    let before = passes(&daemon)?;
    wait_until("passes go on", PATIENCE, || passes(&daemon).unwrap_or(0) > before + 5)?;
    let socket = daemon.status_socket();
    let text = dotnet_running::ask(&["status", "--socket", socket.to_str().context("a path")?])?;
    assert!(text.contains(&format!("{}: not walked", hostile.pid())));
    // It does not hang at its own end either.
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{}", ended.stderr);
    Ok(())
}

/// Thirty-two threads whose stacks lie on memory that does not answer, of four processes: each process costs one
/// pass that is given up, and is named; the others lose no time, and the daemon is healthy.
#[test]
fn a_daemon_names_all_processes_that_it_cannot_walk_and_others_lose_no_time() -> Result<()> {
    const PROCESSES: usize = 4;
    const THREADS_OF_EACH_KIND: &str = "4";
    let _machine = machine::beside_others()?;
    // Dropped after the file systems: they cannot end while their memory is being read.
    let mut hostile = Vec::new();
    let mut silent = Vec::new();
    let program = c_target("stacks_unanswered")?;
    for _ in 0..PROCESSES {
        let files = SilentFileSystem::with_program(&c_target("sleeper")?)?;
        let path = files.program();
        let words = [path.to_str().context("a path")?, THREADS_OF_EACH_KIND];
        let mut one = Running::start(&program, &words)?;
        one.wait_for_line("ready", PATIENCE)?;
        hostile.push(one);
        files.fall_silent();
        silent.push(files);
    }
    let mut daemon = Daemon::prepared()?;
    daemon.configure("[sampling]\ntypes = [\"cpu\", \"wall\"]\n")?;
    daemon.start()?;
    // It waits while passes are given up.
    let mut command = Command::new(c_target("waits")?);
    command.arg("20").env("DD_SERVICE", "waiting");
    let good = Running::from_command(command)?;
    let named = |daemon: &Daemon| -> usize {
        let status = daemon.status().unwrap_or_default();
        let all = status["wall"]["not_walked"].as_array().cloned().unwrap_or_default();
        let is_named = |one: &&Running| all.iter().any(|process| process["pid"] == one.pid());
        hostile.iter().filter(is_named).count()
    };
    wait_until("all are named", PATIENCE, || named(&daemon) == PROCESSES)?;
    let ended = good.wait(PATIENCE)?;
    // Threads beside the one at which a reader hung are not tried.
    assert_eq!(named(&daemon), PROCESSES);
    println!("{}", daemon.status()?["wall"]);
    assert!(daemon.health()?.starts_with("ok"), "{}", daemon.health()?);
    let stopped = daemon.end()?;
    assert!(stopped.status.success(), "{}", stopped.stderr);
    let waits = daemon.kept("waiting", "wall")?;
    // A pass that hangs is given up after a second.
    let given_up = PROCESSES as f64;
    let (mut all, mut all_seen) = (0.0, 0.0);
    for way in ["wait_sleep", "wait_semaphore", "wait_poll", "wait_epoll", "wait_condition"] {
        let line = ended.stdout.lines().find(|line| line.starts_with(way));
        let measured = line.and_then(|line| number(line, "seconds")).context("no line")?;
        let own = waits.iter().filter(|stack| stack.frames.iter().any(|frame| frame == way));
        let seen = own.map(|stack| stack.count as f64 / 1e9).sum::<f64>();
        println!("{way}: measured {measured:.2} s, seen {seen:.2} s");
        all += measured;
        all_seen += seen;
        // While passes hang, a thread is where the last whole one has met it: without its callers, if it
        // had no tables by then and has moved before it is walked again.
        let most = measured * 1.06;
        assert!((measured * 0.94 - given_up..most).contains(&seen), "{way}");
    }
    // None of that time is lost.
    let ends =
        |stack: &&text_outputs::Folded| stack.frames.iter().any(|frame| frame == "[incomplete]");
    let without = waits.iter().filter(ends).map(|stack| stack.count as f64 / 1e9).sum::<f64>();
    println!("with their callers {all_seen:.2} of {all:.2} s, without {without:.2} s");
    assert!(all_seen + without > all * 0.94);
    Ok(())
}
