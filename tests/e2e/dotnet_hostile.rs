//! Hostile programs that pretend to be .NET lose their own data and affect nothing else.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use strata_tests::fake_clr::{MODES, SOCKETS};
use strata_tests::running::{Running, cpu_seconds_of};
use strata_tests::stacks::Stack;
use strata_tests::{machine, strata, targets};

use crate::dotnet_running::{Clr, FREQUENCY, each, start_command};

const SECONDS: f64 = 2.0;

/// The memory limit of recording two small processes, whatever one of them does.
const MOST_MEMORY: f64 = (512 << 20) as f64;

#[test]
fn a_hostile_program_costs_nothing_but_its_own_names() -> Result<()> {
    let _machine = machine::alone()?;
    let fake = targets::c("fake_clr").build()?;
    let other = Running::start(&targets::c("shares").build()?, &["600"])?;
    let with_nonsense = MODES.map(|mode| (mode, "nonsense"));
    let honest = SOCKETS.map(|socket| ("honest", socket));
    let cases: Vec<_> = with_nonsense.into_iter().chain(honest).collect();
    each(&cases, 5, |(mode, socket), wrongs| {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(&fake);
        command.args([mode, "300", socket]).env("TMPDIR", folder.path());
        let mut hostile = start_command(command)?;
        let used = |pid: i32| cpu_seconds_of(pid).unwrap_or_default();

        let start = Instant::now();
        let record = strata::record()?.frequency(FREQUENCY).seconds(SECONDS);
        let recording = record.pid(hostile.pid()).pid(other.pid()).start()?;
        let (before, watched) = ((used(other.pid()), used(hostile.pid())), Instant::now());
        std::thread::sleep(Duration::from_secs_f64(SECONDS / 2.0));
        let meanwhile = (used(other.pid()) - before.0, used(hostile.pid()) - before.1);
        // Where this thread came late, some of it was used after the recording.
        let is_counted = watched.elapsed().as_secs_f64() < SECONDS * 0.9;
        let recorded = recording.finish()?;
        let took = start.elapsed();

        let stacks = recorded.stacks()?;
        let (good, bad) = (stacks.of_pid(other.pid()), stacks.of_pid(hostile.pid()));
        let named = good.share_with("descend");
        // It jumps into the stub from a chain of frames of its own making.
        let is_named = |stack: &Stack| {
            stack.has("hostile_burn") || (mode.contains("names") && stack.has("(stub) P/Invoke"))
        };
        let burning = bad.that(is_named).total() as f64 / bad.total().max(1) as f64;
        // On a busy machine there are few samples, of which some are of its start or its sleep: one or two of
        // them are no share.
        let unnamed = bad.total() - bad.that(is_named).total();
        let good_unnamed = good.total() - good.that(|stack| stack.has("descend")).total();
        let memory = recorded.summary()?.number("agent.peak_rss_bytes")?;
        let clr = Clr::of(&recorded)?;
        println!(
            "{mode}, {socket}: {took:.1?}, {:.0} MiB; the other {} samples, {named:.3} named, complete {}; \
             the hostile one {} samples, {burning:.3} named; {clr:?}",
            memory / f64::from(1 << 20),
            good.total(),
            good.completeness(),
            bad.total()
        );
        let how = format!("{mode}, {socket}");
        // Half of the recording at least was watched.
        let wanted = |seconds: f64| match is_counted {
            true => 0.9 * seconds * f64::from(FREQUENCY),
            false => 1.0,
        };
        wrongs.unless(
            good.total() as f64 >= wanted(meanwhile.0) && (named > 0.99 || good_unnamed <= 2),
            || format!("{how}: the other has {} samples, {named} named", good.total()),
        );
        let complete = good.completeness();
        wrongs.unless(complete.fraction() > 0.99 || complete.incomplete() <= 2, || {
            format!("{how}: the other's stacks are {complete}")
        });
        wrongs.unless(
            bad.total() as f64 >= wanted(meanwhile.1) && (burning > 0.9 || unnamed <= 2),
            || format!("{how}: the hostile one has {} samples, {burning} named", bad.total()),
        );
        wrongs.unless(clr.attached == 1 || clr.why_not(hostile.pid()).is_some(), || {
            format!("{how}: neither read nor refused: {clr:?}")
        });
        wrongs.unless(memory < MOST_MEMORY, || format!("{how}: {memory} bytes"));
        wrongs.unless(hostile.is_alive(), || format!("{how}: the program ended"));
        Ok(())
    })
}

#[test]
fn looking_at_hostile_programs_ends() -> Result<()> {
    let _machine = machine::alone()?;
    let fake = targets::c("fake_clr").build()?;
    // Each is mostly waited for.
    each(&MODES, 10, |mode, _| look_at(&fake, mode))
}

fn look_at(fake: &Path, mode: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(fake);
    command.args([mode, "300", "silent"]).env("TMPDIR", folder.path());
    let hostile = start_command(command)?;
    let start = Instant::now();
    let row = crate::dotnet_running::listed(hostile.pid())?;
    let listed = start.elapsed();
    let start = Instant::now();
    let threads = crate::dotnet_running::waiting_threads(hostile.pid())?;
    println!(
        "{mode}: listed after {listed:.1?}: {}; {} threads after {:.1?}",
        row.context("it is not listed")?,
        threads.total(),
        start.elapsed()
    );
    Ok(())
}
