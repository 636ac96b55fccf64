//! The daemon over a long time, compressed: processes and runtimes that come and go, reloads, many
//! processes and stacks at once. Afterwards it holds no more than before.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use strata_tests::collector::Collector;
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::running::{Running, wait_until};
use strata_tests::{machine, runtimes, targets};

use crate::dotnet_running::start;

/// Roughly, with its place.
const BYTES_OF_A_NAME: f64 = 450.0;

/// The figures that must not grow.
#[derive(Debug)]
struct Held {
    own: f64,
    dictionaries: f64,
    helpers: f64,
    names: f64,
    files: f64,
    threads: f64,
    maps: f64,
    images: f64,
}

fn number(status: &Value, path: &str) -> f64 {
    let found = path.split('.').try_fold(status, |value, key| value.get(key));
    found.and_then(Value::as_f64).unwrap_or(f64::NAN)
}

impl Held {
    fn now(daemon: &Daemon) -> Result<Self> {
        // Some figures are updated every ten seconds, and a flush must have dropped what is gone.
        std::thread::sleep(Duration::from_secs(12));
        let status = daemon.status()?;
        Ok(Self {
            own: number(&status, "memory.own"),
            dictionaries: number(&status, "store.dictionaries"),
            helpers: number(&status, "memory.workers"),
            names: number(&status, "names"),
            // Files that processes had mapped stay open for some minutes: they are often used again.
            files: number(&status, "open_files") - number(&status, "mapped_files"),
            threads: number(&status, "threads"),
            maps: number(&status, "memory.bpf_maps"),
            images: number(&status, "images"),
        })
    }
}

/// Short processes, runtimes that come and go, and reloads.
fn trouble(daemon: &mut Daemon, processes: usize, runtimes: usize, reloads: usize) -> Result<()> {
    let short = targets::c("short_life").build()?;
    for _ in 0..processes.div_ceil(100) {
        let mut batch = Vec::new();
        for _ in 0..100 {
            batch.push(Running::start(&short, &["3"])?);
        }
        for process in batch {
            process.wait(PATIENCE)?;
        }
    }
    let dotnet = runtimes::dotnet()?;
    let [.., version, _] = dotnet.versions();
    for _ in 0..runtimes {
        let reached = |daemon: &Daemon| {
            let status = daemon.status().unwrap_or_default();
            number(&status, "dotnet.attached")
        };
        let before = reached(daemon);
        let mut process = start(&dotnet, version, "Shares", &["300"])?;
        wait_until("the bridge is in place", PATIENCE, || reached(daemon) > before)?;
        // Long enough for a look at its methods.
        std::thread::sleep(Duration::from_millis(500));
        assert!(process.is_alive(), "the program has died of it");
    }
    for round in 0..reloads {
        let frequency = [99, 97][round % 2];
        daemon.configure(&configuration(frequency))?;
        daemon.reload()?;
    }
    Ok(())
}

fn configuration(frequency: u32) -> String {
    format!("[sampling]\nfrequency = {frequency}\n[dotnet]\nage = \"0s\"\n")
}

#[test]
fn what_comes_and_goes_leaves_nothing_behind() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&configuration(99))?;
    daemon.start()?;
    let (processes, runtimes, reloads) = machine::short_or_long((300, 2, 6), (10_000, 50, 100));
    trouble(&mut daemon, processes / 3, (runtimes / 3).max(2), (reloads / 3).max(4))?;
    let before = Held::now(&daemon)?;
    trouble(&mut daemon, processes, runtimes, reloads)?;
    let after = Held::now(&daemon)?;
    println!(
        "{processes} processes, {runtimes} runtimes, {reloads} reloads:\n{before:?}\n{after:?}"
    );
    // Names, and the dictionaries of the store's hour, are kept within bounds of their own, and
    // other programs of the host have some of them too.
    let rest = |held: &Held| held.own - held.names * BYTES_OF_A_NAME - held.dictionaries;
    println!(
        "own without names and dictionaries: {:.1} -> {:.1} MB",
        rest(&before) / 1e6,
        rest(&after) / 1e6
    );
    assert!(rest(&after) < rest(&before) * 1.1 + 2e6, "memory grew");
    assert!(after.helpers < before.helpers + 16e6, "helpers grew");
    assert!(after.files < before.files + 24.0, "files stay open");
    // A thread that a reload has waited in ends some seconds later.
    assert!(after.threads <= before.threads + 1.0, "threads stay");
    // Unwind tables stay until others need their room: a sixth of 256 MB.
    assert!(after.maps < 20e6 + 256e6 / 6.0 + 9e6, "maps grew");
    assert!(after.images < before.images + 50.0, "processes that are gone are remembered");
    let status = daemon.status()?;
    assert_eq!(number(&status, "profiles.dropped"), 0.0);
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{}", ended.stderr);
    Ok(())
}

#[test]
fn the_memory_limit_holds_with_a_crowd_and_ever_new_stacks() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    let (server, address) = Collector::on_port(0)?;
    daemon.configure(&format!(
        "memory_limit = \"96MB\"\n[sampling]\nfrequency = 997\n\
         [exporter.pyroscope]\nurl = \"http://{address}\"\n"
    ))?;
    daemon.start()?;
    let (crowd, seconds) = machine::short_or_long((2_000, 25), (10_000, 150));
    // Starting so many processes takes time.
    let until = (seconds + 120).to_string();
    let mut many = Running::start(&targets::c("crowd").build()?, &[&until, &crowd.to_string()])?;
    many.wait_for_line(&format!("born {crowd}"), PATIENCE)?;
    let _stacks = Running::start(&targets::c("many_stacks").build()?, &[&until, "20"])?;
    let mut highest = 0.0f64;
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1));
        highest = highest.max(number(&daemon.status()?, "memory.bytes"));
    }
    let status = daemon.status()?;
    let peak = number(&status, "memory.peak");
    println!(
        "{} processes, {} samples, {} profiles: highest {:.1} MB, peak {:.1} MB; shed {}",
        number(&status, "sampling.processes"),
        number(&status, "sampling.samples"),
        number(&status, "profiles.made"),
        highest / 1e6,
        peak / 1e6,
        status["memory"]["shed"]
    );
    assert!(number(&status, "sampling.processes") > f64::from(crowd));
    assert!(peak < 96e6, "the limit was passed");
    assert!(number(&status, "profiles.dropped") == 0.0);
    assert!(!server.requests().is_empty());
    Ok(())
}
