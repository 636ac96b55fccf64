//! Short-lived processes and churn: processes that exit before their metadata can be read.

use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use strata_tests::running::Running;
use strata_tests::{machine, strata, targets};

const FREQUENCY: u32 = 997;

#[test]
fn two_hundred_short_lives_are_counted_and_named() -> Result<()> {
    let _machine = machine::alone()?;
    let life = targets::c("short_life").build()?.display().to_string();
    let mut recording = strata::record()?.frequency(FREQUENCY).seconds(60.0).start()?;
    let driver = Running::start(&targets::c("short_lives").build()?, &[&life, "200"])?;
    let driver = driver.wait(Duration::from_secs(60))?;
    std::thread::sleep(Duration::from_millis(300));
    recording.running().signal(Signal::INT)?;
    let recorded = recording.finish()?;
    let own = recorded.stacks()?.of_comm("short_life");
    let called_for = driver.cpu_seconds("short_life") * f64::from(FREQUENCY);
    let named = own.that(|s| {
        s.has("short_life_work")
            || s.frames.iter().all(|f| f.is_kernel())
            || s.leaf().is_some_and(|f| f.is_named() && !s.has("main"))
    });
    let mut pids: Vec<_> = own.stacks.iter().filter_map(|s| s.pid()).collect();
    pids.sort_unstable();
    pids.dedup();
    println!(
        "{} samples of {} processes, their CPU time calls for {called_for:.0}; {} named; complete {}",
        own.total(),
        pids.len(),
        named.total(),
        own.completeness()
    );
    recorded.print_losses();
    assert!(pids.len() >= 198, "only {} of the 200 processes were seen", pids.len());
    assert!(
        named.total() as f64 >= 0.95 * called_for,
        "{} of {called_for} are named",
        named.total()
    );
    assert!(own.share_with("short_life_burn") > 0.85);
    Ok(())
}

#[test]
fn a_program_deleted_after_its_start_is_symbolised() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("deleted_one");
    std::fs::copy(targets::c("shares").build()?, &copy)?;
    let target = Running::start(&copy, &["30"])?;
    target.wait_until_used(0.05)?;
    std::fs::remove_file(&copy)?;
    let recorded =
        strata::record()?.frequency(FREQUENCY).start()?.finish_when_used(&[target.pid()], 1.5)?;
    let own = recorded.stacks()?.of_pid(target.pid());
    let named = own.share_that(|s| s.has("descend") && s.has("main"));
    println!("{} samples, {named:.4} named; complete {}", own.total(), own.completeness());
    assert!(own.total() > 200 && named > 0.99);
    Ok(())
}

#[test]
fn a_program_deleted_while_it_is_recorded_is_symbolised() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("deleted_two");
    std::fs::copy(targets::c("shares").build()?, &copy)?;
    let line = format!("STRATA_TARGET_CLOCK=cpu {0} 2 & sleep 1; rm {0}; wait", copy.display());
    let recorded = strata::record()?.frequency(FREQUENCY).shell(&line).run()?;
    let own = recorded.stacks()?.of_comm("deleted_two");
    let named = own.share_that(|s| s.has("descend") && s.has("main"));
    println!("{} samples, {named:.4} named; complete {}", own.total(), own.completeness());
    assert!(own.total() > 200 && named > 0.98);
    Ok(())
}

#[test]
fn a_replaced_program_is_named_by_what_runs() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("replaced");
    std::fs::copy(targets::c("shares").build()?, &copy)?;
    let target = Running::start(&copy, &["30"])?;
    target.wait_until_used(0.05)?;
    let newer = folder.path().join("newer");
    std::fs::copy(targets::c("alloca").build()?, &newer)?;
    std::fs::rename(newer, &copy)?;
    let recorded =
        strata::record()?.frequency(FREQUENCY).start()?.finish_when_used(&[target.pid()], 1.5)?;
    let own = recorded.stacks()?.of_pid(target.pid());
    println!(
        "{} samples, {:.4} with descend; complete {}",
        own.total(),
        own.share_with("descend"),
        own.completeness()
    );
    assert!(own.total() > 200 && own.share_with("descend") > 0.99);
    assert!(own.share_with("alloca_descend") == 0.0, "names of the file that replaced it");
    Ok(())
}

#[test]
fn a_thousand_execs_a_second_stall_nothing() -> Result<()> {
    let _machine = machine::alone()?;
    let seconds = machine::short_or_long(8.0, 20.0);
    let steady = Running::start(&targets::c("shares").build()?, &["120"])?;
    let recording = strata::record()?.frequency(FREQUENCY).seconds(seconds).start()?;
    let seconds_text = seconds.to_string();
    let churn =
        Running::start(&targets::c("exec_churn").build()?, &["/bin/true", "1000", &seconds_text])?;
    let before = strata_tests::running::cpu_seconds_of(steady.pid())?;
    std::thread::sleep(Duration::from_secs_f64(seconds - 0.5));
    let used = strata_tests::running::cpu_seconds_of(steady.pid())? - before;
    let recorded = recording.finish()?;
    let churn = churn.wait(Duration::from_secs(60))?;
    let stacks = recorded.stacks()?;
    let own = stacks.of_pid(steady.pid());
    let short = stacks.of_comm("true");
    println!("{}", churn.stdout.trim());
    println!(
        "steady program: {} samples ({:.0} called for), complete {}",
        own.total(),
        used * f64::from(FREQUENCY),
        own.completeness()
    );
    println!("the short ones: {} samples, complete {}", short.total(), short.completeness());
    recorded.print_losses();
    assert!(
        own.total() as f64 > 0.9 * used * f64::from(FREQUENCY),
        "samples of the steady program are missing"
    );
    assert!(own.completeness().fraction() > 0.995 && own.share_with("descend") > 0.99);
    assert!(short.total() > 100);
    // While a program takes another's place, its registers point into memory that is gone. (They do
    // so for some instructions after the new one's memory is complete.)
    let replacing = stacks.that(|s| s.has("load_elf_binary"));
    let unfounded = replacing.share_that(|s| s.frames.iter().any(|f| f.name == "[unknown]"));
    println!("replacing a program: {} samples, {unfounded:.4} unfounded", replacing.total());
    assert!(replacing.total() > 100 && unfounded < 0.05);
    Ok(())
}

#[test]
fn programs_that_start_while_others_rename_their_threads_without_end_are_named() -> Result<()> {
    let _machine = machine::alone()?;
    let recording = strata::record()?.frequency(FREQUENCY).seconds(6.0).start()?;
    let storm = targets::c("rename_storm").build()?;
    let storms = [(); 2].map(|()| Running::start(&storm, &["60"]));
    // The flood is noticed.
    std::thread::sleep(Duration::from_secs(1));
    let shares = targets::c("shares").build()?;
    let mut pids = Vec::new();
    for _ in 0..3 {
        let program = Running::start(&shares, &["1"])?;
        pids.push(program.pid());
        program.wait(Duration::from_secs(60))?;
    }
    let recorded = recording.finish()?;
    for storm in storms {
        drop(storm?);
    }
    recorded.print_losses();
    let stacks = recorded.stacks()?;
    for pid in pids {
        let own = stacks.of_pid(pid);
        let called = own.of_comm("shares");
        println!(
            "{} samples, {} with the program's name, descend {:.3}, complete {}",
            own.total(),
            called.total(),
            own.share_with("descend"),
            own.completeness()
        );
        assert!(own.total() > 100);
        assert!(own.share_with("descend") > 0.95 && own.completeness().fraction() > 0.95);
        // Until the process is read, it has the name of the one that started it.
        assert!(called.total() * 2 > own.total());
    }
    Ok(())
}
