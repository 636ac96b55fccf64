//! JITs: names from the maps that runtimes write.

use anyhow::Result;
use strata_tests::daemon::PATIENCE;
use strata_tests::running::{PerfMaps, Running};
use strata_tests::stacks::Stack;
use strata_tests::{machine, runtimes, strata, targets};

#[test]
fn node_shows_its_javascript_functions() -> Result<()> {
    let _machine = machine::beside_others()?;
    let node = Running::from_command(runtimes::node(&["300"])?)?;
    let _maps = PerfMaps::of([node.pid()]);
    node.wait_until_used(2.5)?; // its functions are compiled
    let recording = strata::record()?.frequency(997).start()?;
    let recorded = recording.finish_when_used(&[node.pid()], 3.0)?;
    let own = recorded.stacks()?.of_pid(node.pid());
    let with = |name: &str| own.share_that(|s| s.frames.iter().any(|f| f.name.contains(name)));
    println!(
        "{} samples; burnFifty {:.3}, burnThirty {:.3}, burnTwenty {:.3}",
        own.total(),
        with("burnFifty"),
        with("burnThirty"),
        with("burnTwenty")
    );
    for stack in own.stacks.iter().take(3) {
        println!("  {} x {}", stack.count, stack.line());
    }
    // V8 may inline all three into their caller, which then has the samples.
    let burning = own.share_that(|s| {
        s.frames.iter().any(|f| f.name.contains("burn") || f.name.contains("compareAndBurn"))
    });
    assert!(own.total() > 200 && burning > 0.95, "{burning}");
    assert!(
        with("descend") > 0.9,
        "callers written in JavaScript are missing: {}",
        with("descend")
    );
    Ok(())
}

#[test]
fn a_perf_map_of_another_user_names_nothing() -> Result<()> {
    let _machine = machine::beside_others()?;
    let node = Running::from_command(runtimes::node(&["300"])?)?;
    let _maps = PerfMaps::of([node.pid()]);
    node.wait_until_used(2.5)?; // its functions are compiled
    let map = format!("/tmp/perf-{}.map", node.pid());
    // As if any user of the host had been there first.
    std::os::unix::fs::chown(&map, Some(65_534), Some(65_534))?;
    let recording = strata::record()?.frequency(997).start()?;
    let recorded = recording.finish_when_used(&[node.pid()], 1.5)?;
    let own = recorded.stacks()?.of_pid(node.pid());
    let named = own.share_that(|s| s.frames.iter().any(|f| f.name.contains("burn")));
    println!("{} samples, {named:.3} named by the other user's file", own.total());
    assert!(own.total() > 100 && named == 0.0, "{named}");
    Ok(())
}

#[test]
fn java_shows_its_methods() -> Result<()> {
    let _machine = machine::beside_others()?;
    let java = Running::from_command(runtimes::java("300")?)?;
    let _maps = PerfMaps::of([java.pid()]);
    java.wait_until_used(6.0)?;
    let recording = strata::record()?.frequency(997).start()?;
    java.wait_until_used(9.0)?;
    // At the end: the map has what is compiled when it is written.
    runtimes::write_java_perf_map(java.pid())?;
    let recorded = recording.finish_when_used(&[java.pid()], 0.0)?;
    let own = recorded.stacks()?.of_pid(java.pid());
    let share = |name: &str| own.share_of_leaf_like(&["Shares.", name]);
    let (fifty, thirty, twenty) = (share("burnFifty"), share("burnThirty"), share("burnTwenty"));
    let callers = own.share_that(|s| s.frames.iter().any(|f| f.name.contains("Shares.descend")));
    println!("{} samples: {fifty:.3}, {thirty:.3}, {twenty:.3} in the burners", own.total());
    println!("  {callers:.3} below descend; complete {}", own.completeness());
    for stack in own.stacks.iter().take(3) {
        println!("  {} x {}", stack.count, stack.line());
    }
    assert!(own.total() > 200 && fifty + thirty + twenty > 0.9 && callers > 0.9);
    assert!(fifty > thirty && thirty > twenty);
    Ok(())
}

/// Code that a program has copied to memory without a file, at its own place: before the recording, and while
/// it is recorded.
#[test]
fn code_that_a_program_copies_for_huge_pages_is_its_files() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("copies_its_code").flag("-fno-toplevel-reorder").build()?;
    let mut running = Running::start(&program, &["600"])?;
    running.wait_for_line("copied", PATIENCE)?;
    let before = strata::record()?.frequency(499).pid(running.pid()).start()?;
    let before = before.finish_when_used(&[running.pid()], 2.0)?;
    let meanwhile = strata::record()?.frequency(499).command(&program, &["2"]).by_cpu_time();
    let meanwhile = meanwhile.run()?;
    for (when, recorded) in [("before", before), ("meanwhile", meanwhile)] {
        let stacks = recorded.stacks()?.of_comm("copies_its_code");
        let whole = stacks.share_that(|stack| {
            let names = ["burns_copied", "calls_copied", "stays_behind", "_start"];
            names.iter().all(|name| stack.has(name))
        });
        println!("{when}: {} samples, {whole:.3} whole", stacks.total());
        for stack in stacks.stacks.iter().take(3) {
            println!("  {} x {}", stack.count, stack.line());
        }
        // What runs before the process has been read, and outside of the loop.
        assert!(whole > 0.95 && stacks.total() > 100, "{when}");
    }
    Ok(())
}

#[test]
fn calls_through_code_written_at_run_time_keep_their_callers() -> Result<()> {
    let _machine = machine::long_beside_others()?;
    for (form, name, flag) in [
        ("plain", "trampolines", "-fomit-frame-pointer"),
        ("plain", "trampolines_fp", "-fno-omit-frame-pointer"),
        ("framed", "trampolines_fp", "-fno-omit-frame-pointer"),
        ("framed", "trampolines", "-fomit-frame-pointer"),
    ] {
        let program = targets::c("trampolines").named(name).flag(flag).build()?;
        let running = Running::from_command(with_arguments(&program, &[form, "100"]))?;
        running.wait_until_used(0.2)?;
        let recording = strata::record()?.frequency(997).start()?;
        let recorded = recording.finish_when_used(&[running.pid()], 4.0)?;
        let own = recorded.stacks()?.of_pid(running.pid()).with_user_part();
        let burning = own.that(|s| s.leaf_function() == "leaf");
        let whole = burning.share_that(|s| s.times("evaluate") == 21);
        println!(
            "{form}, {flag}: {} samples, {whole:.3} whole; {}",
            own.total(),
            own.completeness()
        );
        assert!(burning.total() > 200 && whole > 0.97, "{form}, {flag}: {whole}");
        assert!(own.completeness().fraction() > 0.97, "{}", own.completeness());
    }
    Ok(())
}

#[test]
fn python_with_perf_support_keeps_its_stacks_whole() -> Result<()> {
    let _machine = machine::beside_others()?;
    for version in ["3.12", "3.13"] {
        let Some(command) = runtimes::python_of(version, &["-X", "perf"], &["300"]) else {
            strata_skip::skipped!("no python{version} on the path or in ~/.pyenv");
            continue;
        };
        let python = Running::from_command(command)?;
        let _maps = PerfMaps::of([python.pid()]);
        python.wait_until_used(1.0)?;
        let recording = strata::record()?.frequency(997).start()?;
        let recorded = recording.finish_when_used(&[python.pid()], 3.0)?;
        let own = recorded.stacks()?.of_pid(python.pid()).with_user_part();
        let named = own.share_that(|s| s.frames.iter().any(|f| f.name.contains("py::descend")));
        println!(
            "{version}: {} samples, {named:.3} below descend; {}",
            own.total(),
            own.completeness()
        );
        assert!(own.total() > 200 && named > 0.9, "{version}: {named}");
        assert!(own.completeness().fraction() > 0.97, "{version}: {}", own.completeness());
    }
    Ok(())
}

/// Functions that ran before a server has forked its workers are in its own perf map only: of one
/// that runs already, of one that is started by the recording, and of one that has ended for a while
/// when its code is named.
#[test]
fn python_code_from_before_a_fork_has_names_in_the_children() -> Result<()> {
    let _machine = machine::beside_others()?;
    for version in ["3.12", "3.13"] {
        let command = |seconds| {
            runtimes::python_script_of(version, &["-X", "perf"], "prefork.py", &[seconds])
        };
        let (Some(running), Some(launched)) = (command("30"), command("3")) else {
            strata_skip::skipped!("no python{version} on the path or in ~/.pyenv");
            continue;
        };
        let mut server = Running::from_command(running)?;
        server.wait_for_line("ready", PATIENCE)?;
        let _of_server = PerfMaps::of_family(server.pid());
        let of_host = strata::record()?.frequency(499).seconds(3.0).run()?;
        let children = |pid| of_parent(pid, server.pid());
        let running = of_host.stacks()?.that(|stack| stack.pid().is_some_and(children));
        let program = std::path::PathBuf::from(launched.get_program());
        let arguments: Vec<_> = launched.get_args().filter_map(|one| one.to_str()).collect();
        let recording = strata::record()?.frequency(499).command(&program, &arguments);
        let launched = recording.run()?.stacks()?;
        let mut script = vec!["-c", "\"$0\" \"$@\"; sleep 3", program.to_str().unwrap_or_default()];
        script.extend(&arguments);
        let ended = strata::record()?.frequency(499).command("sh", &script).run()?.stacks()?;
        // Of what they ran, and of nothing else, they have samples.
        let of_ended = launched.stacks.iter().chain(&ended.stacks).filter_map(Stack::pid);
        let _of_ended = PerfMaps::of(of_ended);
        for (how, stacks) in [("running", running), ("launched", launched), ("ended", ended)] {
            let burning =
                stacks.that(|stack| stack.frames.iter().any(|one| one.name.contains("py::leaf")));
            let named = burning.share_that(|stack| {
                ["py::handle", "py::serve", "py::<module>"]
                    .iter()
                    .all(|name| stack.frames.iter().any(|one| one.name.contains(name)))
            });
            let share = burning.total() as f64 / stacks.total() as f64;
            println!(
                "{version}, {how}: {} samples, {share:.3} named, {named:.3} whole",
                stacks.total()
            );
            assert!(stacks.total() > 200 && share > 0.85 && named > 0.98, "{version}, {how}");
        }
    }
    Ok(())
}

/// Whether a process is a child of another.
fn of_parent(pid: i32, parent: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let found = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    found.and_then(|found| found.trim().parse().ok()) == Some(parent)
}

fn with_arguments(program: &std::path::Path, arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    command.args(arguments);
    command
}
