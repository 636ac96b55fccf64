//! A .NET program that calls the bridge's function by itself, with false blocks, as fast as it can: it
//! costs strata a bounded time and memory, and another program's events are all there.

use std::collections::BTreeMap;

use anyhow::Result;
use rustix::process::Signal;
use strata_tests::running::{Running, Usage, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::{machine, strata, targets};

use crate::dotnet_events::{REPORTED, Target, WAYS, thrown};
use crate::dotnet_running::{PATIENCE, each, listed, start_command};

/// How it pretends (`tests/targets/c/pretends.c`).
const WAYS_TO_PRETEND: [&str; 5] = ["words", "counts", "edges", "names", "memory"];
const EVENTS: &str = "exceptions,locks,allocations,heap,gc,wait_handles";

/// The limits of recording two small processes, whatever one of them does: seconds of CPU, and bytes.
const MOST_CPU: f64 = 5.0;
const MOST_MEMORY: f64 = (512 << 20) as f64;

fn start_pretending(dotnet: &DotNet, version: Version, how: &str) -> Result<Running> {
    let library = targets::c("pretends").library().build()?;
    let mut command = dotnet.program(version, "Busy", &["600", "0.2"])?;
    command.env("LD_PRELOAD", library).env("STRATA_TEST_PRETENDS", how);
    start_command(command)
}

fn calls(app: &Running) -> u64 {
    let printed = app.printed();
    let line = printed.lines().rev().find_map(|line| line.strip_prefix("calls "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[test]
fn a_program_that_calls_the_probed_function_itself_takes_no_event_of_another() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let some =
        machine::short_or_long(&[Version::V9][..], &[Version::V8, Version::V9, Version::V10]);
    let ways = machine::short_or_long(&WAYS_TO_PRETEND[3..], &WAYS_TO_PRETEND[..]);
    let cases: Vec<_> =
        some.iter().flat_map(|version| ways.iter().map(|how| (*version, *how))).collect();
    each(&cases, 1, |(version, how), wrongs| {
        let hostile = start_pretending(&dotnet, version, how)?;
        let honest = Target::start(&dotnet, Version::V9, "paced", "500")?;
        let pid = honest.pid();
        let record = strata::record()?.pid(hostile.pid()).pid(pid).option("-e", EVENTS);
        let mut recording = record.flag("-v").start()?;
        recording.running().wait_for_log(REPORTED, PATIENCE)?;
        wait_until("both have their events on", PATIENCE, || {
            let is_on = |pid| {
                let row = listed(pid).ok().flatten().unwrap_or_default();
                row["bridge"].as_str().unwrap_or_default().contains("reports exceptions")
            };
            is_on(pid) && (is_on(hostile.pid()) || how == "memory")
        })?;
        let before = calls(&hostile);
        honest.go()?;
        let own: BTreeMap<String, u64> = honest.counts()?;
        let called = calls(&hostile) - before;
        let usage = Usage::of(recording.running().pid())?;
        recording.running().signal(Signal::INT)?;
        let recorded = recording.finish()?;
        recorded.print_losses();
        let summary = recorded.summary()?;
        let memory = summary.number("agent.peak_rss_bytes")?;
        let stacks = recorded.profile()?.stacks_of("exceptions")?.of_pid(pid);
        println!(
            "{version}, {how}: {called} calls meanwhile, {:.2} s of CPU, {:.0} MiB; {:?}",
            usage.cpu_seconds,
            memory / f64::from(1 << 20),
            summary.losses()
        );
        for (name, type_name, _) in WAYS {
            let seen = thrown(&stacks, type_name);
            println!("{version}, {how}: {type_name}: {} thrown, {seen} seen", own[name]);
            wrongs.unless(seen == own[name], || {
                format!("{version}, {how}: {type_name}: {} thrown, {seen} seen", own[name])
            });
        }
        // What it states to have lost does not drown what others have lost.
        let stated = summary.losses_named(&["clr_records_lost"]);
        wrongs.unless(stated <= 1 << 33, || format!("{version}, {how}: {stated} records lost"));
        wrongs.unless(called > 100_000, || format!("{version}, {how}: {called} calls"));
        wrongs.unless(usage.cpu_seconds < MOST_CPU, || {
            format!("{version}, {how}: {} s of CPU", usage.cpu_seconds)
        });
        wrongs.unless(memory < MOST_MEMORY, || format!("{version}, {how}: {memory} bytes"));
        Ok(())
    })
}
