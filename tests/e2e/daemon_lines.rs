//! The daemon reads a program's debug information once its samples are worth it.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::running::{Running, wait_until};
use strata_tests::stacks::{Frame, Stacks};
use strata_tests::{machine, places, pprof, targets};

/// Runs a program for so much CPU time.
fn burn(program: &Path, seconds: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.arg(seconds).env("STRATA_TARGET_CLOCK", "cpu");
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    ensure!(ended.status.success(), "{}", ended.stderr);
    Ok(())
}

/// All stacks in the store.
fn stored(daemon: &Daemon) -> Result<Stacks> {
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", "*", "-o", "all.pb.gz", "--store"]).arg(daemon.store());
    command.current_dir(daemon.folder());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    ensure!(ended.status.success(), "{}", ended.stderr);
    pprof::read(&daemon.folder().join("all.pb.gz"))?.stacks()
}

/// Samples in a program's own function, and those of them with its line.
fn descending(stacks: &Stacks, program: &Path) -> (u64, u64) {
    let with = |wanted: &dyn Fn(i64) -> bool| {
        let is_it = |frame: &Frame| {
            frame.name == "descend" && Path::new(&frame.file) == program && wanted(frame.line)
        };
        stacks.that(|stack| stack.frames.iter().any(is_it)).total()
    };
    (with(&|_| true), with(&|line| line > 0))
}

#[test]
fn lines_are_read_when_samples_pay_for_them() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = |name| targets::c("shares").flag("-g").named(name).build();
    let (rare, busy) = (program("lines_rare")?, program("lines_busy")?);
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&format!(
        "[dotnet]\nbridge = \"off\"\n[exporter.file]\npath = \"{}\"\nperiod = \"1s\"\n",
        daemon.folder().join("profiles").display()
    ))?;
    daemon.start()?;
    let flushes = |daemon: &Daemon| {
        daemon.status().unwrap_or_default()["profiles"]["flushes"].as_u64().unwrap_or(0)
    };
    // Some six samples, and at least two flushes for all they will get.
    burn(&rare, "0.3")?;
    let so_far = flushes(&daemon);
    wait_until("its profile is made", PATIENCE, || flushes(&daemon) > so_far + 1)?;
    burn(&busy, "3")?;
    daemon.end()?;
    let all = stored(&daemon)?;
    let (rare, rare_lined) = descending(&all, &rare);
    let (busy, busy_lined) = descending(&all, &busy);
    println!("rare: {rare}, with lines {rare_lined}; busy: {busy}, with lines {busy_lined}");
    ensure!((1..20).contains(&rare), "{rare} samples in 0.3 s");
    ensure!(rare_lined == 0, "six samples do not pay for reading debug information");
    ensure!(busy_lined > 0, "sixty do");
    Ok(())
}
