//! Files that answer after their flush: the local store has the names of their frames all the same.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use strata_tests::collector::Collector;
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::fuse::SilentFileSystem;
use strata_tests::running::{Running, wait_until};
use strata_tests::stacks::Stacks;
use strata_tests::{backends, machine, places, pprof, targets};

/// Longer than a period, and within the time limits of reading.
const SLOW: Duration = Duration::from_millis(4_900);
const NEVER: Duration = Duration::from_secs(3_600);

/// A program that spends its time in a library of a file system whose first reads take so long, once
/// it has loaded it.
fn program_of(service: &str, slow: Duration) -> Result<(Running, SilentFileSystem)> {
    let name = format!("{service}.so");
    let files = SilentFileSystem::with_files(std::fs::read(targets::plugin()?)?, vec![name])?;
    let mut command = Command::new(targets::c("modules").build()?);
    command.arg(files.folder()).arg("600").env("DD_SERVICE", service);
    let mut program = Running::from_command(command)?;
    program.wait_for_line("loaded 1", PATIENCE)?;
    files.answer_first_reads_after(slow);
    Ok((program, files))
}

/// A service's stacks in the store, up to some time.
fn stored(daemon: &Daemon, service: &str, to: Option<&str>) -> Result<Stacks> {
    let file = daemon.folder().join("answer.pb.gz");
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", service, "--type", "cpu", "-o"]).arg(&file);
    command.arg("--store").arg(daemon.store());
    if let Some(to) = to {
        command.args(["--from", "-1h", "--to", to]);
    }
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    anyhow::ensure!(ended.status.success(), "{}", ended.stderr);
    pprof::read(&file)?.stacks()
}

/// The next second, as RFC 3339: every profile that is stored by now began before it.
fn soon() -> Result<String> {
    let date =
        Command::new("date").args(["-u", "-d", "+1 second", "+%Y-%m-%dT%H:%M:%SZ"]).output()?;
    Ok(String::from_utf8(date.stdout)?.trim().to_owned())
}

/// The share of samples that have a frame of the library without a name.
fn unnamed(stacks: &Stacks, service: &str) -> f64 {
    let made_up = format!("{service}.so!0x");
    stacks.share_that(|stack| stack.frames.iter().any(|frame| frame.name.starts_with(&made_up)))
}

/// The share of samples with a function of the library. Before its unwind table was read, a stack
/// ends in the library's innermost function.
fn named(stacks: &Stacks) -> f64 {
    stacks.share_that(|stack| stack.has("plugin_leaf") || stack.has("plugin_entry"))
}

fn keys(stacks: &Stacks) -> usize {
    let frames = stacks.stacks.iter().flat_map(|stack| &stack.frames);
    frames.filter(|frame| frame.system_name.starts_with("late:")).count()
}

#[test]
fn frames_of_a_file_that_answered_after_their_flush_have_their_names_in_the_store() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    // Its period is the daemon's.
    let (collector, push) = Collector::on_port(0)?;
    daemon.configure(&format!(
        "[sampling]\nfrequency = 199\n[exporter.pyroscope]\nurl = \"http://{push}\"\nperiod = \"2s\"\n"
    ))?;
    let (late, files) = program_of("late", SLOW)?;
    let (_never, _silent) = program_of("never", NEVER)?;
    daemon.start()?;
    let mut status = daemon.status()?;
    wait_until("the store has late names", PATIENCE, || {
        status = daemon.status().unwrap_or_default();
        status["store"]["late_named"].as_u64() > Some(0)
    })?;
    println!("{} {}", status["profiles"], status["store"]);
    // A server has what was flushed, as it was then.
    let sent = || -> Result<Stacks> {
        let mut stacks = Stacks::default();
        for one in backends::pyroscope(&collector.requests())? {
            if one.label("service_name") == "late" {
                stacks.stacks.extend(one.profile.stacks()?.stacks);
            }
        }
        Ok(stacks)
    };
    wait_until("a server has what was flushed", PATIENCE, || {
        sent().is_ok_and(|stacks| unnamed(&stacks, "late") > 0.0)
    })?;
    let before = sent()?;
    let first = soon()?;
    files.answer_first_reads_after(Duration::ZERO);
    let unnamed_before = unnamed(&before, "late");
    assert!(unnamed_before > 0.0 && keys(&before) == 0, "{unnamed_before}");
    wait_until("the store has all names", PATIENCE, || {
        stored(&daemon, "late", None)
            .is_ok_and(|stacks| stacks.total() > 100 && unnamed(&stacks, "late") == 0.0)
    })?;
    // Everything that was sampled until then is flushed, and that time has passed.
    let flushes = status["profiles"]["flushes"].as_u64().context("a counter")?;
    wait_until("more flushes", PATIENCE, || {
        let status = daemon.status().unwrap_or_default();
        status["profiles"]["flushes"].as_u64() > Some(flushes + 3)
    })?;
    let mut total = None;
    let mut check = |daemon: &Daemon, when: &str| -> Result<()> {
        let after = stored(daemon, "late", Some(&first))?;
        let (unnamed, now_named) = (unnamed(&after, "late"), named(&after));
        println!(
            "{when}: of the first {} samples {now_named:.3} have their names, {unnamed:.3} not; of \
             {} that were sent {unnamed_before:.3} had not",
            after.total(),
            before.total()
        );
        assert!(after.total() >= before.total(), "{when}");
        assert_eq!(after.total(), *total.get_or_insert(after.total()), "{when}");
        assert!(
            unnamed == 0.0 && now_named > 0.8 && keys(&after) == 0,
            "{when}: {unnamed} {now_named}"
        );
        let never = stored(daemon, "never", None)?;
        assert!(never.total() > 100, "{when}");
        assert!(named(&never) == 0.0 && keys(&never) == 0, "{when}");
        Ok(())
    };
    check(&daemon, "when it has answered")?;
    let named = status["store"]["late_named"].as_u64().context("a counter")?;
    assert!(named < 1000, "{named}");
    // Those of the file that is silent: each place once.
    let awaited = status["profiles"]["late_awaited"].as_u64().context("a gauge")?;
    assert!((1..1000).contains(&awaited), "{awaited}");
    assert!(daemon.metrics()?.contains("strata_symbols_late_named_total"));
    daemon.kill()?;
    check(&daemon, "after it was killed")?;
    daemon.start()?;
    check(&daemon, "under the next daemon")?;
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    check(&daemon, "when that has ended")?;
    drop(late);
    Ok(())
}
