//! The daemon reads a program's debug information once its samples are worth it.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::running::{Running, wait_until};
use strata_tests::stacks::Stacks;
use strata_tests::{machine, places, pprof, targets};

/// Runs a program for so much CPU time, as a service of its own.
fn burn(program: &Path, seconds: &str, service: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.arg(seconds).env("STRATA_TARGET_CLOCK", "cpu").env("DD_SERVICE", service);
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    ensure!(ended.status.success(), "{}", ended.stderr);
    Ok(())
}

/// A service's stacks in the store.
fn stacks_of(daemon: &Daemon, service: &str) -> Result<Stacks> {
    let file = format!("{service}.pb.gz");
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", service, "-o", &file, "--store"]).arg(daemon.store());
    command.current_dir(daemon.folder());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    ensure!(ended.status.success(), "{}", ended.stderr);
    pprof::read(&daemon.folder().join(file))?.stacks()
}

/// Samples in a function, and those of them with its line.
fn in_function(stacks: &Stacks, name: &str) -> (u64, u64) {
    let with = |wanted: &dyn Fn(i64) -> bool| {
        let has = |stack: &&strata_tests::stacks::Stack| {
            stack.frames.iter().any(|frame| frame.name == name && wanted(frame.line))
        };
        stacks.stacks.iter().filter(has).map(|stack| stack.count).sum()
    };
    (with(&|_| true), with(&|line| line > 0))
}

#[test]
fn lines_are_read_when_samples_pay_for_them() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("shares").flag("-g").named("lined").build()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&format!(
        "[exporter.file]\npath = \"{}\"\nperiod = \"1s\"\n",
        daemon.folder().join("profiles").display()
    ))?;
    daemon.start()?;
    let flushes = |daemon: &Daemon| {
        daemon.status().unwrap_or_default()["profiles"]["flushes"].as_u64().unwrap_or(0)
    };
    // Some six samples, and at least two flushes for all they will get.
    burn(&program, "0.3", "rare")?;
    let so_far = flushes(&daemon);
    wait_until("its profile is made", PATIENCE, || flushes(&daemon) > so_far + 1)?;
    let rare = stacks_of(&daemon, "rare")?;
    burn(&program, "3", "busy")?;
    daemon.end()?;
    let busy = stacks_of(&daemon, "busy")?;

    let (rare_named, rare_lined) = in_function(&rare, "descend");
    let (busy_named, busy_lined) = in_function(&busy, "descend");
    println!("rare: {rare_named} of {}, lines {rare_lined}", rare.total());
    println!("busy: {busy_named} of {}, lines {busy_lined}", busy.total());
    ensure!(rare.total() < 20, "{} samples in 0.3 s", rare.total());
    ensure!(rare_named > 0, "its functions have their names");
    ensure!(rare_lined == 0, "six samples do not pay for reading debug information");
    ensure!(busy_lined > 0, "sixty do");
    Ok(())
}
