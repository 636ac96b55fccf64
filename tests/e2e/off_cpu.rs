//! Off-CPU profiles: what threads wait for, for how long, with whole stacks, and what is not there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use strata_tests::daemon::{Daemon, PATIENCE, burn_as};
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::{self, dotnet};
use strata_tests::strata::{Recorded, record};
use strata_tests::text_outputs::{self, Folded};
use strata_tests::{machine, targets};

use crate::dotnet_running;

/// The target's threads, and the kernel's function that each waits in.
const WAYS: [(&str, &str); 9] = [
    ("wait_sleep", "do_nanosleep"),
    ("wait_lock", "futex"),
    ("wait_semaphore", "futex"),
    ("wait_fifo", "pipe_read"),
    ("wait_socket", "recv"),
    ("wait_poll", "poll"),
    ("wait_epoll", "epoll"),
    ("wait_child", "wait4"),
    ("wait_condition", "futex"),
];

fn target() -> Result<PathBuf> {
    targets::c("waits").flag("-fomit-frame-pointer").flag("-pthread").build()
}

fn stacks(recorded: &Recorded, file: &str) -> Result<Vec<Folded>> {
    text_outputs::folded(&recorded.text(file)?)
}

/// Seconds below a function.
fn below(stacks: &[Folded], function: &str) -> f64 {
    let stacks = stacks.iter().filter(|stack| stack.frames.iter().any(|frame| frame == function));
    stacks.map(|stack| stack.count as f64 / 1e9).sum()
}

/// What a thread of the target measured itself: seconds and errors.
fn measured(text: &str) -> BTreeMap<String, (f64, u32)> {
    let number = |line: &str, key: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(key)?.parse::<f64>().ok())
    };
    let lines = text.lines().filter_map(|line| {
        let name = line.split(' ').next()?;
        let (seconds, errors) = (number(line, "seconds=")?, number(line, "errors=")?);
        Some((name.to_owned(), (seconds, errors as u32)))
    });
    lines.collect()
}

#[test]
fn each_kind_of_wait_has_its_whole_stack_and_its_time() -> Result<()> {
    let _machine = machine::alone()?;
    let recorded = record()?
        .option("-e", "cpu,off_cpu")
        .output("out.folded")
        .command(target()?, &["10"])
        .run()?;
    let (waits, cpu) =
        (stacks(&recorded, "out.off_cpu.folded")?, stacks(&recorded, "out.cpu.folded")?);
    recorded.print_losses();
    let own = measured(&recorded.ended.stdout);
    for (way, function) in WAYS {
        let (seconds, errors) = *own.get(way).with_context(|| format!("no {way}"))?;
        // A forked child sleeps below its parent's function.
        let has =
            |stack: &Folded, part: &str| stack.frames.iter().any(|frame| frame.contains(part));
        let of_way =
            |stack: &&Folded| has(stack, way) && (way != "wait_child" || !has(stack, "nanosleep"));
        let all: Vec<&Folded> = waits.iter().filter(of_way).collect();
        let seen = all.iter().map(|stack| stack.count as f64 / 1e9).sum::<f64>();
        let ends_there = |stack: &&&Folded| {
            let starts = stack.frames.iter().any(|frame| frame == "start_thread");
            let waits = stack.frames.iter().any(|frame| frame.contains(function));
            starts && waits && stack.frames.last().is_some_and(|leaf| leaf == "__schedule")
        };
        let whole = all.iter().filter(ends_there).map(|stack| stack.count as f64 / 1e9);
        let whole = whole.sum::<f64>();
        println!("{way}: measured {seconds:.2} s, seen {seen:.2} s, whole {whole:.2} s");
        assert_eq!(errors, 0, "{way}: a call failed");
        assert!((seen / seconds - 1.0).abs() < 0.03, "{way}");
        // The rest are moments in which it was runnable, outside of its wait.
        assert!(whole > seen * 0.97, "{way}");
    }
    let (burns, rests) = (below(&cpu, "burn_and_rest"), below(&waits, "burn_and_rest"));
    let total =
        |stacks: &[Folded]| stacks.iter().map(|stack| stack.count as f64 / 1e9).sum::<f64>();
    println!("burns {burns:.2} of {:.2} s, rests {rests:.2} s", total(&cpu));
    assert!(rests > 6.0 && burns > 0.7 * total(&cpu));
    let incomplete = below(&waits, "[incomplete]");
    println!("incomplete {incomplete:.2} of {:.2} s", total(&waits));
    assert!(incomplete < total(&waits) * 0.005);
    // The report has the program's own functions, not the scheduler's. Ten are shown of twelve.
    let report = recorded.summary()?.0;
    let names = |list: &str| -> Vec<String> {
        let list = report["kinds"]["off_cpu"]["waits"][list].as_array().cloned();
        let name = |share: serde_json::Value| share["name"].as_str().unwrap_or_default().to_owned();
        list.unwrap_or_default().into_iter().map(name).collect()
    };
    let (functions, calls) = (names("functions"), names("system_calls"));
    println!("{functions:?}, {calls:?}, {:?}", names("states"));
    let shown = WAYS.iter().filter(|(way, _)| functions.iter().any(|name| name == way)).count();
    assert!(shown + 2 >= WAYS.len());
    assert!(["futex", "poll", "wait4"].iter().all(|call| calls.iter().any(|name| name == call)));
    Ok(())
}

#[test]
fn a_wait_that_does_not_end_is_counted_as_long_as_it_was_recorded() -> Result<()> {
    let _machine = machine::beside_others()?;
    let recorded =
        record()?.option("-e", "off_cpu").seconds(5.0).output("out.folded").shell("sleep 8").run();
    let recorded = recorded?;
    let slept = below(&stacks(&recorded, "out.folded")?, "do_nanosleep");
    println!("{slept:.2} s");
    assert!((3.5..6.0).contains(&slept));
    Ok(())
}

/// The on/off-CPU experiment: one function burns, the other waits.
#[test]
fn the_burning_method_is_on_cpu_and_the_waiting_one_off_cpu() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let mut all = Vec::new();
    for version in dotnet.versions() {
        let target = dotnet_running::start(&dotnet, version, "OnOff", &["600"])?;
        let recorded = record()?
            .pid(target.pid())
            .option("-e", "cpu,off_cpu")
            .seconds(6.0)
            .output("out.folded")
            .run()?;
        recorded.print_losses();
        let cpu = stacks(&recorded, "out.cpu.folded")?;
        let off = stacks(&recorded, "out.off_cpu.folded")?;
        let seconds = |stacks: &[Folded], part: &str| {
            let is_in = |stack: &&Folded| stack.frames.iter().any(|frame| frame.contains(part));
            stacks.iter().filter(is_in).map(|stack| stack.count as f64 / 1e9).sum::<f64>()
        };
        let on = [seconds(&cpu, "OnOff.Burns"), seconds(&cpu, "")];
        let waits = seconds(&off, "OnOff.Waits");
        let whole = off.iter().filter(|stack| {
            let has = |part: &str| stack.frames.iter().any(|frame| frame.contains(part));
            has("OnOff.Waits") && has("start_thread") && has("__schedule")
        });
        let whole = whole.map(|stack| stack.count as f64 / 1e9).sum::<f64>();
        println!("{version}: on CPU {on:.2?}, waits {waits:.2} s, whole {whole:.2} s");
        // The counts of CPU samples.
        assert!(on[0] > on[1] * 0.9, "{version}");
        // Threads that spin before they wait switch so often that one switch of several is recorded:
        // of 300 waits, each for four others, the sum has a standard error of a tenth.
        assert!((20.0..40.0).contains(&waits) && whole > waits * 0.98, "{version}");
        all.push(waits);
    }
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    println!("mean {mean:.2} s");
    assert!((25.0..35.0).contains(&mean));
    Ok(())
}

/// The daemon's store has what the program waited, however its period cut its waits.
#[test]
fn a_daemon_keeps_the_waits_that_a_rule_asks_for() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&format!(
        "[exporter.file]\npath = \"{}\"\nperiod = \"2s\"\n\
         [[rule]]\nmatch = {{ env = {{ DD_SERVICE = \"waiting\" }} }}\n\
         types = [\"cpu\", \"off_cpu\"]\n",
        daemon.folder().join("profiles").display()
    ))?;
    daemon.start()?;
    let program = target()?;
    let [waiting, other] = ["waiting", "others"].map(|service| {
        let mut command = Command::new(&program);
        command.arg("10").env("DD_SERVICE", service);
        Running::from_command(command)
    });
    let (ended, _) = (waiting?.wait(PATIENCE)?, other?.wait(PATIENCE)?);
    let own = measured(&ended.stdout);
    println!("{}", daemon.status()?["sampling"]);
    burn_as("others")?;
    daemon.end()?;
    let waits = daemon.kept("waiting", "off_cpu")?;
    let all = waits.iter().map(|stack| stack.count as f64 / 1e9).sum::<f64>();
    println!("{all:.2} s in all, {:.2} s incomplete", below(&waits, "[incomplete]"));
    let mut sums = (0.0, 0.0);
    for (way, _) in WAYS.iter().filter(|(way, _)| *way != "wait_child") {
        let (seconds, _) = *own.get(*way).with_context(|| format!("no {way}"))?;
        let seen = below(&waits, way);
        println!("{way}: measured {seconds:.2} s, seen {seen:.2} s");
        sums = (sums.0 + seconds, sums.1 + seen);
        // The daemon's budget is the host's: beside other programs one wait in 16 may be taken, of
        // which this thread has a dozen.
        assert!(seen > seconds * 0.2, "{way}");
    }
    // Three standard deviations of a hundred waits.
    assert!((0.7..1.3).contains(&(sums.1 / sums.0)), "{sums:?}");
    assert!(daemon.query("others", "off_cpu")?.is_none(), "other services' waits are kept");
    Ok(())
}

/// Threads that begin together, and wait once for as long as they live, while others of the host are
/// switched all the time: there is no second wait that could make up for one that was not chosen.
#[test]
fn threads_that_wait_once_are_not_lost_beside_others_that_wait_all_the_time() -> Result<()> {
    const THREADS: usize = 40;
    const SECONDS: u32 = 12;
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("[sampling]\ntypes = [\"cpu\", \"off_cpu\"]\n")?;
    daemon.start()?;
    let mut switching = Command::new(targets::c("switches").build()?);
    switching.args(["0", "40"]);
    let _switching = Running::from_command(switching)?;
    // Until what they take is known.
    std::thread::sleep(Duration::from_secs(3));
    let mut waiting = Command::new(targets::c("sleepers").build()?);
    waiting.args([&THREADS.to_string(), "0", &SECONDS.to_string()]).env("DD_SERVICE", "waiting");
    Running::from_command(waiting)?.wait(PATIENCE)?;
    println!("{}", daemon.status()?["sampling"]["losses"]);
    daemon.end()?;
    let waits = daemon.kept("waiting", "off_cpu")?;
    let sum = waits.iter().map(|stack| stack.count as f64 / 1e9).sum::<f64>();
    let whole = below(&waits, "rests");
    let lasted = THREADS as f64 * f64::from(SECONDS);
    println!(
        "{THREADS} threads, {SECONDS} s: {sum:.1} s in all, {whole:.1} s of {lasted:.1} s whole"
    );
    assert!((0.85..1.2).contains(&(sum / (lasted + f64::from(SECONDS)))), "{sum}");
    Ok(())
}

/// The main thread of Java's launcher waits once, before the program has tables, below a frame of 16 KiB.
#[test]
fn the_wait_of_javas_launcher_is_whole_from_the_programs_start_on() -> Result<()> {
    let _machine = machine::beside_others()?;
    let java = runtimes::java("3")?;
    let arguments: Vec<_> = java.get_args().map(|argument| argument.to_string_lossy()).collect();
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    let recorded = record()?.option("-e", "off_cpu").output("out.folded");
    let recorded = recorded.command(PathBuf::from(java.get_program()), &arguments).run()?;
    let stacks = stacks(&recorded, "out.folded")?;
    let (waits, is_cut) = (below(&stacks, "CallJavaMainInNewThread"), |stack: &Folded| {
        stack.frames.iter().any(|frame| frame == "[incomplete]") && stack.count > 1_000_000_000
    });
    println!("{waits:.3} s below the launcher, of 3");
    let cut: Vec<&Folded> = stacks.iter().filter(|stack| is_cut(stack)).collect();
    assert!(waits > 2.5 && cut.is_empty(), "{cut:#?}");
    Ok(())
}

/// What was not spent while a program was idle is there for its next burst: all of its waits are recorded,
/// the long one after the short ones too.
#[test]
fn a_long_wait_after_many_short_ones_is_counted_as_it_was() -> Result<()> {
    let _machine = machine::alone()?;
    let bursts = targets::c("bursts").flag("-pthread").build()?;
    let recorded = record()?.option("-e", "off_cpu").output("out.folded").command(bursts, &["6"]);
    let recorded = recorded.run()?;
    let stacks = stacks(&recorded, "out.folded")?;
    let measured = recorded.ended.stdout.lines().find_map(|line| line.strip_prefix("bursts: "));
    let measured = measured.context("the target has measured its waits")?;
    let (long, short) = measured.split_once(' ').context("two numbers")?;
    let (long, short): (f64, f64) = (long.parse()?, short.parse()?);
    let seen = ["waits_long", "waits_shortly"].map(|function| below(&stacks, function));
    println!("{seen:.3?} of {long} and {short} s");
    if (seen[0] / long - 1.0).abs() >= 0.03 {
        println!("{}\n{}", recorded.ended.stderr, recorded.text("out.folded")?);
    }
    assert!((seen[0] / long - 1.0).abs() < 0.03, "{seen:?}");
    // What it measured has the time on a CPU too.
    assert!(seen[1] > 0.2 * short && seen[1] < 1.03 * short, "{seen:?}");
    Ok(())
}

/// A rule selects one process among two hundred that wait all the time: what waits cost is spent on it, and its
/// sums are exact.
#[test]
fn waits_of_processes_that_are_not_selected_cost_the_selected_one_nothing() -> Result<()> {
    const OTHERS: usize = 200;
    // Each of its two threads sleeps 20 ms at a time.
    const WAITS_A_SECOND: u64 = OTHERS as u64 * 2 * 50;
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&format!(
        "[exporter.file]\npath = \"{}\"\nperiod = \"2s\"\n\
         [[rule]]\nmatch = {{ env = {{ DD_SERVICE = \"waiting\" }} }}\n\
         types = [\"cpu\", \"wall\", \"off_cpu\"]\n",
        daemon.folder().join("profiles").display()
    ))?;
    let sleepers = targets::c("sleepers").flag("-pthread").build()?;
    let start = || Running::start(&sleepers, &["2", "2", "600"]);
    let mut others = (0..OTHERS).map(|_| start()).collect::<Result<Vec<_>>>()?;
    for other in &mut others {
        other.wait_for_line("ready", PATIENCE)?;
    }
    daemon.start()?;
    // Waits of which the kernel does not know that they are not wanted are dropped at the flush, by weight.
    let left_out = || -> Result<u64> {
        daemon.status()?["sampling"]["left_out"].as_u64().context("no count of what is left out")
    };
    let mut seen = left_out()?;
    let mut has_settled = || {
        let before = std::mem::replace(&mut seen, left_out().unwrap_or_default());
        std::thread::sleep(Duration::from_secs(5));
        let now = left_out().unwrap_or_default();
        println!("left out: {before}, {now}");
        now > 0 && now - before < WAITS_A_SECOND * 5 / 10
    };
    wait_until("the kernel leaves the others out", PATIENCE, &mut has_settled)?;
    let (before, began) = (left_out()?, Instant::now());
    let mut command = Command::new(target()?);
    command.arg("10").env("DD_SERVICE", "waiting");
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    // Its last flush.
    std::thread::sleep(Duration::from_secs(4));
    let walked_of_others = left_out()? - before;
    let waits_of_others = WAITS_A_SECOND * began.elapsed().as_secs();
    let own = measured(&ended.stdout);
    daemon.end()?;
    let (waits, wall) = (daemon.kept("waiting", "off_cpu")?, daemon.kept("waiting", "wall")?);
    let mut sums = [0.0; 3];
    for (way, _) in WAYS.iter().filter(|(way, _)| *way != "wait_child") {
        let (seconds, _) = *own.get(*way).with_context(|| format!("no {way}"))?;
        let seen = [seconds, below(&waits, way), below(&wall, way)];
        println!(
            "{way}: measured {:.2} s, off CPU {:.2} s, wall {:.2} s",
            seen[0], seen[1], seen[2]
        );
        sums.iter_mut().zip(seen).for_each(|(sum, seconds)| *sum += seconds);
        assert!((seen[1] / seen[0] - 1.0).abs() < 0.05, "{way}");
    }
    println!(
        "measured, off CPU, wall: {sums:.2?} s; {walked_of_others} of {waits_of_others} waits of others"
    );
    assert!((sums[1] / sums[0] - 1.0).abs() < 0.03, "off CPU");
    assert!((sums[2] / sums[0] - 1.0).abs() < 0.05, "wall");
    // Processes of the host that start meanwhile are looked at until their first flush.
    assert!(walked_of_others < waits_of_others / 20);
    Ok(())
}
