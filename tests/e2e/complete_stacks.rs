//! Complete stacks: user stacks of every kind of program end where a thread starts, and those that
//! do not have a counted cause.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use rustix::process::Signal;
use strata_tests::daemon::PATIENCE;
use strata_tests::running::{PerfMaps, Running};
use strata_tests::stacks::{Completeness, Stack};
use strata_tests::strata::Recorded;
use strata_tests::{machine, runtimes, strata, targets, text_outputs};

/// Four times the default: strata starts after the processes, and their samples from before their
/// tables are loaded must be complete, too.
const FREQUENCY: u32 = 399;
/// Where more programs run than there are CPUs for.
const OVERLOADED: u32 = 199;

/// Records the whole host while all of these run, until each has used so many CPU seconds.
fn record_together(
    frequency: u32,
    commands: Vec<(&str, Command)>,
    cpu_seconds: f64,
) -> Result<(Recorded, Vec<(String, i32)>)> {
    let mut running = Vec::new();
    let mut pids = Vec::new();
    for (name, command) in commands {
        let process = Running::from_command(command)?;
        pids.push((name.to_string(), process.pid()));
        running.push(process);
    }
    std::thread::sleep(std::time::Duration::from_secs(1));
    let numbers: Vec<i32> = pids.iter().map(|(_, pid)| *pid).collect();
    let recording = strata::record()?.frequency(frequency).start()?;
    let recorded = recording.finish_when_used(&numbers, cpu_seconds)?;
    Ok((recorded, pids))
}

/// Prints and checks the completeness of each process and of all together.
/// `by_comm`: names of children, and how many samples those have at least.
fn check(recorded: &Recorded, pids: &[(String, i32)], by_comm: &[(&str, u64)]) -> Result<()> {
    let stacks = recorded.stacks()?;
    let mut all = Completeness::default();
    let mut bad = Vec::new();
    for (name, pid) in pids {
        let own = stacks.of_pid(*pid);
        let completeness = own.completeness();
        println!("  {name}: {completeness}");
        if own.total() < 50 {
            bad.push(format!("{name} has only {} samples", own.total()));
        }
        if completeness.fraction() < 0.97 {
            bad.push(format!("{name}: {completeness}"));
        }
        all = all.and(completeness);
    }
    for (comm, least) in by_comm {
        let own =
            stacks.that(|s| s.comm() == *comm && !pids.iter().any(|(_, p)| s.pid() == Some(*p)));
        println!("  {comm} (children): {}", own.completeness());
        if own.total() < *least {
            bad.push(format!("children of {comm} have only {} samples", own.total()));
        }
        all = all.and(own.completeness());
    }
    println!("all: {:.3} % of {}", 100.0 * all.fraction(), all.total);
    if all.total == 0 {
        println!("no sample at all; strata printed: {}", recorded.ended.stderr);
    }
    let losses = recorded.summary()?.losses();
    println!("losses: {losses:?}");
    if all.fraction() < 0.995 {
        bad.push(format!("all: {all}"));
    }
    let counted = recorded.summary()?.losses_named(&["stack_"]);
    if counted < all.incomplete() {
        bad.push(format!(
            "{} stacks are incomplete, but only {counted} losses are counted",
            all.incomplete()
        ));
    }
    assert!(bad.is_empty(), "{bad:#?}");
    Ok(())
}

fn with(program: std::path::PathBuf, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// The native test set: name and command.
fn native() -> Result<Vec<(&'static str, Command)>> {
    let mut commands = Vec::new();
    for name in [
        "shares",
        "alloca",
        "longjmp",
        "signals",
        "threads",
        "vdso",
        "forks",
        "vfork",
        "stack_realign",
        "takes_off",
        "thread_starts",
        "zero",
    ] {
        commands.push((name, with(targets::c(name).build()?, &["400"])));
    }
    let variants = [
        ("static_pie", targets::c("shares").named("static_pie").flag("-static-pie").build()?),
        ("static", targets::c("signals").named("static").flag("-static").build()?),
        ("musl", targets::c("threads").named("musl").musl().build()?),
        ("musl_signals", targets::c("signals").named("musl_signals").musl().build()?),
        ("stripped", targets::c("shares").named("stripped").stripped().build()?),
        ("no_pie", targets::c("alloca").named("no_pie").flag("-no-pie").build()?),
        ("avx", targets::c("stack_realign").named("avx").flag("-mavx2").build()?),
        ("lazy_plt", targets::plt("plt_lazy", &[])?),
        ("ibt_plt", targets::plt("plt_ibt", &["-fcf-protection=full", "-Wl,-z,ibtplt"])?),
        ("now_plt", targets::plt("plt_now", &["-Wl,-z,now"])?),
        ("cpp", targets::cpp_shares().build()?),
        ("rust", targets::rust_shares()?),
    ];
    commands.extend(variants.map(|(name, program)| (name, with(program, &["400"]))));
    let plugin = targets::plugin()?.display().to_string();
    commands.push(("dlopen", with(targets::c("dlopen").build()?, &[&plugin, "400"])));
    commands.push(("deep", with(targets::c("recurse").build()?, &["500", "2", "400"])));
    Ok(commands)
}

#[test]
fn native_stacks_end_at_thread_starts() -> Result<()> {
    let _machine = machine::alone()?;
    let mut commands = native()?;
    // A few at a time: each needs its share of the CPUs to have samples enough.
    while !commands.is_empty() {
        let some = commands.split_off(commands.len().saturating_sub(6));
        let (recorded, pids) = record_together(FREQUENCY, some, machine::short_or_long(0.75, 5.0))?;
        let started = |(name, _): &(&str, u64)| pids.iter().any(|(of, _)| of == name);
        let children = [("forks", 20), ("vfork", 20)].into_iter().filter(started);
        check(&recorded, &pids, &children.collect::<Vec<_>>())?;
    }
    Ok(())
}

#[test]
fn on_an_overloaded_host_what_is_missing_is_counted() -> Result<()> {
    let _machine = machine::alone()?;
    let (recorded, pids) =
        record_together(OVERLOADED, native()?, machine::short_or_long(0.4, 2.0))?;
    let stacks = recorded.stacks()?;
    let own = stacks.that(|s| pids.iter().any(|(_, pid)| s.pid() == Some(*pid)));
    let completeness = own.completeness();
    println!("{} programs at once: {completeness}", pids.len());
    let losses = recorded.summary()?;
    let lost = losses.losses_named(&["ring_full"]);
    let called_for =
        losses.number("duration_seconds")? * f64::from(OVERLOADED) * machine::cpus() as f64;
    println!(
        "{} samples and {lost} lost, {called_for:.0} called for; {:?}",
        stacks.total(),
        losses.losses()
    );
    assert!((stacks.total() + lost) as f64 > 0.9 * called_for, "samples are missing uncounted");
    assert!(losses.losses_named(&["stack_"]) >= completeness.incomplete());
    assert!(completeness.fraction() > 0.9);
    Ok(())
}

#[test]
fn stacks_of_runtimes_and_compilers_end_at_thread_starts() -> Result<()> {
    let _machine = machine::alone()?;
    let folder = tempfile::tempdir()?;
    let compile = format!(
        "while :; do g++ -O2 -c {} -o {}/x.o; done",
        strata_tests::places::target_sources().join("cpp/shares.cpp").display(),
        folder.path().display()
    );
    let commands = vec![
        ("go", with(targets::go("shares", "shares_go", &[])?, &["400", "2"])),
        (
            "go_stripped",
            with(targets::go("shares", "go_stripped", &["-ldflags=-s -w"])?, &["400", "1"]),
        ),
        ("go_pie", with(targets::go("shares", "go_pie", &["-buildmode=pie"])?, &["400", "1"])),
        ("cgo", with(targets::go("cgo", "cgo", &[])?, &["400"])),
        ("python", runtimes::python("shares.py", &["400"])?),
        ("node", runtimes::node(&["400"])?),
        ("java", runtimes::java("400")?),
    ];
    let _compiler = Running::from_command(with("/bin/sh".into(), &["-c", &compile]))?;
    let (recorded, pids) =
        record_together(FREQUENCY, commands, machine::short_or_long(1.25, 10.0))?;
    let _maps = PerfMaps::of(pids.iter().map(|(_, pid)| *pid));
    check(&recorded, &pids, &[("cc1plus", 20), ("as", 0)])
}

#[test]
fn a_return_address_of_zero_is_not_taken_for_the_end_of_a_stack() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("zero_stack").build()?;
    let recorded = strata::record()?.frequency(997).command(program, &["2"]).by_cpu_time().run()?;
    let own = recorded.stacks()?.of_comm("zero_stack");
    let burning = own.that(|s| s.has("burn_without_caller"));
    let marked =
        burning.share_that(|s| s.frames.last().is_some_and(|f| f.name.contains("incomplete")));
    let counted = recorded.summary()?.losses_named(&["stack_no_return_address"]);
    println!("{} samples, {marked:.3} marked, {counted} counted", burning.total());
    for stack in burning.stacks.iter().take(2) {
        println!("  {} x {}", stack.count, stack.line());
    }
    assert!(burning.total() > 200 && marked > 0.99, "{marked}");
    assert!(counted >= burning.total());
    Ok(())
}

/// Functions of coroutines return to a function that nothing calls, or nowhere.
#[test]
fn stacks_of_coroutines_are_whole_and_begin_where_the_coroutine_does() -> Result<()> {
    let _machine = machine::beside_others()?;
    for link in ["-pie", "-static"] {
        let program = targets::c("coroutines").named(&format!("coroutines{link}")).flag(link);
        let recorded = strata::record()?
            .frequency(997)
            .command(program.build()?, &["2"])
            .by_cpu_time()
            .run()?;
        let own = recorded.stacks()?.that(|stack| stack.comm().starts_with("coroutines"));
        println!("{link}: {} samples", own.total());
        for (leaf, start, above) in [
            ("burn_in_makecontext", "by_makecontext", 1),
            ("burn_in_fcontext", "by_fcontext", 1),
            ("burn_without_return", "by_transfer", 0),
        ] {
            let burning = own.that(|stack| stack.has(leaf));
            let whole = burning.share_that(|stack| {
                let code = stack.frames.iter().rev().filter(|frame| frame.address != 0);
                code.map(|frame| &frame.name).position(|name| name == start) == Some(above)
            });
            println!("  {leaf}: {} samples, {whole:.3} whole", burning.total());
            for stack in burning.stacks.iter().take(2) {
                println!("    {} x {}", stack.count, stack.line());
            }
            assert!(burning.total() > 100 && whole > 0.99, "{leaf}: {whole}");
        }
        // Switches between stacks, and what resumes them.
        let cut = own.share_that(|s| s.frames.iter().any(|f| f.name.contains("incomplete")));
        assert!(cut < 0.01, "{cut}");
    }
    Ok(())
}

/// As OCaml 5's: C runs on the thread's stack, OCaml on stacks of its own, above or below.
#[test]
fn stacks_go_on_where_another_stack_was_left() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("stack_switches").build()?;
    let recorded = strata::record()?.frequency(997).command(program, &["4"]).by_cpu_time().run()?;
    let own = recorded.stacks()?.of_comm("stack_switches");
    for (leaf, callers) in [
        ("burn_above", ["on_stack", "switches_up", "on_stack", "main"]),
        ("burn_below", ["on_stack", "switches_down", "on_stack", "main"]),
        ("burn_in_fiber", ["on_fiber", "starts_fiber", "on_fiber", "main"]),
        ("burn_outside", ["leaves", "leaves_up", "on_stack", "main"]),
    ] {
        let burning = own.that(|stack| stack.has(leaf));
        let whole = burning.share_that(|stack| {
            let mut names = stack.frames.iter().map(|frame| frame.name.as_str());
            names.any(|name| name == leaf) && callers.iter().all(|name| names.next() == Some(name))
        });
        println!("{leaf}: {} samples, {whole:.3} whole", burning.total());
        for stack in burning.stacks.iter().take(2) {
            println!("  {} x {}", stack.count, stack.line());
        }
        // The first samples are copies of one stack.
        assert!(burning.total() > 100 && whole > 0.95, "{leaf}: {whole}");
    }
    Ok(())
}

/// As npm's `bun.exe`: a program for Linux that is named as an assembly, of whose code nothing is
/// described, its first instructions included, and which is too large to be decoded.
#[test]
fn a_large_program_without_tables_has_whole_stacks() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("wide")
        .named("wide.exe")
        .flag("-nostartfiles")
        .flag("-fno-omit-frame-pointer")
        .flag("-fno-asynchronous-unwind-tables")
        .build()?;
    let recorded = strata::record()?.frequency(997).command(program, &["2"]).by_cpu_time().run()?;
    let own = recorded.stacks()?.of_comm("wide.exe");
    let burning = own.that(|stack| stack.has("burns"));
    let whole = burning.share_that(|stack| stack.has("main") && stack.has("_start"));
    let completeness = burning.completeness();
    println!("{} of {} samples, {completeness}, {whole:.3} whole", burning.total(), own.total());
    assert!(burning.total() > 200 && whole > 0.99 && completeness.fraction() > 0.99);
    Ok(())
}

#[test]
fn dotnet_stacks_end_at_thread_starts() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = runtimes::dotnet()?;
    let mut command = dotnet.command(&dotnet.recursion()?);
    command.args(["50", "2", "400"]);
    let (recorded, pids) =
        record_together(FREQUENCY, vec![("dotnet", command)], machine::short_or_long(2.5, 10.0))?;
    check(&recorded, &pids, &[])
}

/// Go before 1.21 keeps no trace on a system stack of where the goroutine's was left for it.
#[test]
fn go_1_19_stacks_go_on_where_their_goroutine_was_left() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::go_1_19("allocates", "allocates_1_19")?;
    let recorded = strata::record()?.frequency(997).command(program, &["3"]).run()?;
    let own = recorded.stacks()?.of_comm("allocates_1_19");
    let on_system_stack = own.that(|s| s.has("runtime.systemstack"));
    // A closure that is run there is named after the function that calls for it.
    let callee_and_caller = |s: &Stack| {
        let at = s.frames.iter().position(|f| f.name == "runtime.systemstack")?;
        let callee = s.frames.get(at.checked_sub(1)?)?.name.split_once(".func")?.0;
        Some((callee.to_string(), s.frames.get(at + 1)?.name.clone()))
    };
    let closures = on_system_stack.that(|s| callee_and_caller(s).is_some());
    let right =
        closures.that(|s| callee_and_caller(s).is_some_and(|(callee, caller)| callee == caller));
    let assists = on_system_stack.that(|s| s.has("runtime.gcAssistAlloc.func1"));
    let whole = assists.that(|s| s.has("runtime.mallocgc") && s.has("main.allocates"));
    let completeness = own.completeness();
    println!(
        "{completeness}; {} on a system stack, {} of them in a closure, {} below its function; {} assist \
         the collector, {} in main.allocates",
        on_system_stack.total(),
        closures.total(),
        right.total(),
        assists.total(),
        whole.total()
    );
    for stack in
        closures.that(|s| callee_and_caller(s).is_some_and(|(a, b)| a != b)).stacks.iter().take(4)
    {
        println!("  {} x {}", stack.count, stack.line());
    }
    recorded.print_losses();
    assert!(completeness.fraction() > 0.99, "{completeness}");
    assert!(closures.total() > 100 && right.total() * 100 >= closures.total() * 99);
    assert!(assists.total() > 50 && whole.total() * 100 >= assists.total() * 99);
    Ok(())
}

#[test]
fn go_and_c_are_on_one_stack() -> Result<()> {
    let _machine = machine::beside_others()?;
    are_go_and_c_on_one_stack(targets::go("cgo", "cgo", &[])?, "cgo", 0.99)?;
    // Where the runtime has left the goroutine once more, in a callback, how it was left for C is lost.
    are_go_and_c_on_one_stack(targets::go_1_19("cgo", "cgo_1_19")?, "cgo_1_19", 0.9)
}

fn are_go_and_c_on_one_stack(program: PathBuf, name: &str, least: f64) -> Result<()> {
    let recorded = strata::record()?.frequency(997).command(program, &["3"]).run()?;
    let own = recorded.stacks()?.of_comm(name);
    let c_below_go = own.share_that(|s| {
        s.leaf_function() == "cgo_c_leaf" && s.has("cgo_c_entry") && s.has("main.callC")
    });
    let go_below_c = own.share_that(|s| {
        s.leaf_function() == "main.goLeaf" && s.has("cgo_c_entry") && s.has("main.callC")
    });
    let c = own.share_of_leaf("cgo_c_leaf");
    let go = own.share_of_leaf("main.goLeaf");
    println!(
        "{} samples: C {c:.3}, with Go callers {c_below_go:.3}; Go {go:.3}, with C callers {go_below_c:.3}",
        own.total()
    );
    for stack in own.stacks.iter().take(4) {
        println!("  {} x {}", stack.count, stack.line());
    }
    assert!(c > 0.3 && c_below_go > 0.99 * c);
    assert!(go > 0.3 && go_below_c > least * go);
    Ok(())
}

/// The first samples of a process are copied stacks, and a call between Go and C leaves its caller on
/// another stack than its callee.
#[test]
fn go_and_c_are_on_one_stack_from_a_programs_first_sample() -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::go("cgo", "cgo", &[])?;
    let record = |kind: &str, arguments: &str| {
        let line = format!("{} {arguments}", program.display());
        let many = format!("i=0; while [ $i -lt 100 ]; do {line}; i=$((i+1)); done");
        let record = strata::record()?.frequency(199).option("-e", kind);
        record.output("out.folded").shell(&many).run()
    };
    let running = record("cpu", "0.02")?;
    let waiting = record("off_cpu", "0.01 20")?;
    for (recorded, leaf, caller, least) in [
        (&running, "cgo_c_leaf", "main.callC", 50),
        (&running, "main.goLeaf", "main.callC", 50),
        // Nanoseconds.
        (&waiting, "cgo_c_wait", "main.waitInC", 100_000_000),
    ] {
        let mut stacks = text_outputs::folded(&recorded.text("out.folded")?)?;
        stacks.retain(|stack| stack.has(leaf));
        let total: u64 = stacks.iter().map(|stack| stack.count).sum();
        stacks.retain(|stack| {
            // A callback's Go frames without their C callers are no whole stack either.
            let has_c = leaf != "main.goLeaf" || stack.has("cgo_c_entry");
            !(stack.has(caller) && stack.has("runtime.goexit") && has_c)
        });
        let broken: u64 = stacks.iter().map(|stack| stack.count).sum();
        println!("{leaf}: {total}, of these {broken} without all of their callers");
        for stack in stacks.iter().take(4) {
            println!("  {} x {}", stack.count, stack.frames.join(";"));
        }
        recorded.print_losses();
        assert!(total > least && broken * 100 <= total, "{leaf}: {broken} of {total}");
    }
    Ok(())
}

#[test]
fn a_500_deep_recursion_is_whole_and_a_3000_deep_one_is_marked_as_cut() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("recurse").build()?;
    for depth in [5usize, 50, 200, 500] {
        let depth_text = depth.to_string();
        let recorded = strata::record()?
            .frequency(997)
            .command(&program, &[&depth_text, "2", "2"])
            .by_cpu_time()
            .run()?;
        let burning =
            recorded.stacks()?.of_comm("recurse").that(|s| s.leaf_function() == "recurse_leaf");
        let whole = burning.share_that(|s| s.times("recurse") == depth);
        println!(
            "depth {depth}: {} samples, {:.2} % with every frame",
            burning.total(),
            100.0 * whole
        );
        assert!(burning.total() > 200 && whole > 0.995);
        assert!(burning.completeness().fraction() > 0.995, "{}", burning.completeness());
    }
    let recorded = strata::record()?
        .frequency(997)
        .command(&program, &["3000", "2", "3"])
        .by_cpu_time()
        .run()?;
    let burning =
        recorded.stacks()?.of_comm("recurse").that(|s| s.leaf_function() == "recurse_leaf");
    let is_marked =
        |f: &strata_tests::stacks::Frame| f.name.contains("truncated") || f.name.contains("cut");
    let marked = burning.share_that(|s| s.frames.last().is_some_and(is_marked));
    let right = burning.share_that(|s| {
        let others =
            s.frames.iter().filter(|f| !["recurse", "recurse_leaf"].contains(&f.name.as_str()));
        s.times("recurse") >= 1000
            && others.filter(|f| !f.is_kernel() && !is_marked(f)).count() == 0
    });
    let deepest = burning.stacks.iter().map(|s| s.times("recurse")).max().unwrap_or(0);
    println!(
        "depth 3000: {} samples, {deepest} frames at most, {marked:.3} marked, {right:.3} right",
        burning.total()
    );
    recorded.print_losses();
    assert!(burning.total() > 200 && marked > 0.995 && right > 0.995);
    let cut = recorded.summary()?.losses_named(&["frame_limit"]);
    assert!(cut as f64 >= 0.99 * burning.total() as f64, "only {cut} cut stacks are counted");
    Ok(())
}

/// A program whose main thread has ended: before the recording, during it, and where the whole host is
/// recorded. `/proc` shows nothing of it under its own number, and it has not ended.
#[test]
fn a_process_goes_on_when_its_main_thread_has_ended() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("leaderless").flag("-pthread").build()?;
    let start = || -> Result<Running> {
        let mut target = Running::start(&program, &[])?;
        target.wait_for_line("ready", PATIENCE)?;
        Ok(target)
    };
    let (attached, other) = (start()?, start()?);
    let of_one =
        strata::record()?.frequency(FREQUENCY).pid(attached.pid()).option("-e", "cpu,wall");
    let of_one = of_one.seconds(3.0).run()?;
    let of_host = strata::record()?.frequency(FREQUENCY).seconds(3.0).run()?;
    let line = format!("{} & sleep 3; kill $!", program.display());
    let launched = strata::record()?.frequency(FREQUENCY).shell(&line).run()?;
    let of_command = launched.stacks()?.that(|stack| stack.comm() == "leaderless");
    let profile = of_one.profile()?;
    let all = [
        (profile.stacks_of("samples")?, 50),
        (of_host.stacks()?.of_pid(other.pid()), 50),
        (of_command, 50),
    ];
    for (stacks, least) in all {
        let whole = stacks.that(|stack| {
            let has = |name: &str| stack.frames.iter().any(|frame| frame.name == name);
            has("burns") && has("works") && has("start_thread")
        });
        println!("{} samples, {} whole", stacks.total(), whole.total());
        assert!(stacks.total() > least && whole.total() * 100 > stacks.total() * 95);
    }
    let waiting = profile.stacks_of("wall")?.that(|stack| stack.has("rests"));
    assert!(waiting.total() > 0 && waiting.stacks.iter().all(|stack| stack.has("start_thread")));
    // And one that ends ends the recording.
    let recording = strata::record()?.pid(attached.pid()).seconds(60.0).start()?;
    attached.signal(Signal::KILL)?;
    assert!(recording.finish()?.summary()?.number("duration_seconds")? < 60.0);
    Ok(())
}

/// A service that is stopped, copied over and started again: the inode is the same.
#[test]
fn a_program_that_is_replaced_in_place_has_its_own_stacks_and_names() -> Result<()> {
    let _machine = machine::beside_others()?;
    let first = targets::c("redeployed").named("redeployed_1").build()?;
    let second = targets::c("redeployed").named("redeployed_2").flag("-DSECOND").build()?;
    let place = tempfile::tempdir()?;
    let program = place.path().join("redeployed");
    std::fs::copy(&first, &program)?;
    let recording = strata::record()?.frequency(FREQUENCY).seconds(18.0).start()?;
    let start = |seconds| Running::start(&program, &[seconds]);
    assert!(start("2")?.wait(PATIENCE)?.status.success());
    // A file that has just been looked at is not looked at again.
    std::thread::sleep(std::time::Duration::from_secs(11));
    std::fs::copy(&second, &program)?;
    let second = start("4")?;
    let pid = second.pid();
    assert!(second.wait(PATIENCE)?.status.success());
    let own = recording.finish()?.stacks()?.of_pid(pid);
    for stack in own.stacks.iter().take(2) {
        println!("  {} x {}", stack.count, stack.line());
    }
    let whole = own.share_that(|stack| {
        ["burns_second", "calls_second", "main", "_start"].iter().all(|name| stack.has(name))
    });
    println!("{} samples, {whole:.3} whole", own.total());
    // The first ones are taken before the file is looked at.
    assert!(own.total() > 100 && whole > 0.9, "{whole}");
    Ok(())
}
