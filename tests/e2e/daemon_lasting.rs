//! The daemon over a long time, compressed: processes and runtimes that come and go, reloads, many
//! processes and stacks at once. Afterwards it holds no more than before.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use strata_tests::collector::Collector;
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::running::{Running, pss_without_bpf_maps, wait_until};
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
    /// Programs that have ended and are remembered, where that is fewest: until the next flush those
    /// are of all processes of the host.
    ended: f64,
    /// As the kernel has it, helpers included and BPF maps not.
    pss: f64,
    open: Open,
}

/// BPF objects that a process has open.
#[derive(Debug, Default)]
struct Open {
    programs: usize,
    /// Perf events too.
    links: usize,
    maps: usize,
}

impl Open {
    fn of(pid: i32) -> Result<Self> {
        let mut open = Self::default();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let Ok(object) = std::fs::read_link(entry.path()) else { continue };
            match object.to_string_lossy().as_ref() {
                "anon_inode:bpf-prog" => open.programs += 1,
                "anon_inode:bpf-map" => open.maps += 1,
                "anon_inode:bpf_link" | "anon_inode:[perf_event]" => open.links += 1,
                _ => {}
            }
        }
        Ok(open)
    }
}

fn number(status: &Value, path: &str) -> f64 {
    let found = path.split('.').try_fold(status, |value, key| value.get(key));
    found.and_then(Value::as_f64).unwrap_or(f64::NAN)
}

impl Held {
    fn now(daemon: &mut Daemon) -> Result<Self> {
        // Some figures are updated every ten seconds, and a flush must have dropped what is gone. A
        // flush takes memory for a moment: what is held is the least of many.
        let pid = daemon.pid()?;
        let least = |least: &mut f64, now: f64| *least = least.min(now);
        let [mut ended, mut own, mut helpers, mut pss] = [f64::INFINITY; 4];
        let mut status = Value::Null;
        for _ in 0..18 {
            std::thread::sleep(Duration::from_secs(1));
            status = daemon.status()?;
            least(&mut ended, number(&status, "images") - number(&status, "sampling.processes"));
            least(&mut own, number(&status, "memory.own"));
            least(&mut helpers, number(&status, "memory.workers"));
            least(&mut pss, pss_without_bpf_maps(pid)? as f64);
        }
        Ok(Self {
            own,
            dictionaries: number(&status, "store.dictionaries"),
            helpers,
            names: number(&status, "names"),
            // Files that processes had mapped stay open for some minutes: they are often used again.
            files: number(&status, "open_files") - number(&status, "mapped_files"),
            threads: number(&status, "threads"),
            maps: number(&status, "memory.bpf_maps"),
            ended,
            pss,
            open: Open::of(pid)?,
        })
    }
}

/// So many short processes, runtimes that come and go, and reloads, mixed.
fn trouble(
    daemon: &mut Daemon,
    (processes, runtimes, reloads): (usize, usize, usize),
) -> Result<()> {
    const ROUND: usize = 2_000;
    let rounds = processes.div_ceil(ROUND).max(1);
    for _ in 0..rounds {
        round_of_trouble(daemon, processes / rounds, runtimes / rounds, reloads / rounds)?;
    }
    Ok(())
}

fn round_of_trouble(
    daemon: &mut Daemon,
    processes: usize,
    runtimes: usize,
    reloads: usize,
) -> Result<()> {
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

/// Only what the test starts is profiled: what else runs here would count as growth.
fn configuration(frequency: u32) -> String {
    let wanted = ["short_life", "dotnet"].map(|program| {
        format!(
            "[[rule]]\nname = \"{program}\"\nenable = true\n[rule.match]\nexe = \"*/{program}*\"\n"
        )
    });
    let others = "[[rule]]\nname = \"others\"\nenable = false\nmatch = { exe = \"*\" }\n";
    format!(
        "[sampling]\nfrequency = {frequency}\n[dotnet]\nage = \"0s\"\n{}{others}",
        wanted.concat()
    )
}

#[test]
fn what_comes_and_goes_leaves_nothing_behind() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&configuration(99))?;
    daemon.start()?;
    // Tables and names of a runtime are there before and after.
    let dotnet = runtimes::dotnet()?;
    let [.., version, _] = dotnet.versions();
    let _lasting = start(&dotnet, version, "Shares", &["3000"])?;
    // Caches of what ended are kept for some minutes, and so many processes fill them.
    let first = machine::short_or_long((100, 3, 4), (8_000, 40, 80));
    let (processes, runtimes, reloads) = machine::short_or_long((300, 3, 6), (20_000, 100, 200));
    trouble(&mut daemon, first)?;
    let before = Held::now(&mut daemon)?;
    trouble(&mut daemon, (processes, runtimes, reloads))?;
    let after = Held::now(&mut daemon)?;
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
    let rest_of_pss = |held: &Held| held.pss - held.names * BYTES_OF_A_NAME - held.dictionaries;
    let grown = machine::short_or_long(2e6, 0.0);
    assert!(rest(&after) < rest(&before) * 1.1 + grown, "memory grew");
    assert!(after.helpers < before.helpers + 16e6, "helpers grew");
    assert!(after.files < before.files + 24.0, "files stay open");
    // A thread that a reload has waited in ends some seconds later.
    assert!(after.threads <= before.threads + 1.0, "threads stay");
    // Unwind tables stay until others need their room: a sixth of 256 MB.
    assert!(after.maps < 20e6 + 256e6 / 6.0 + 9e6, "maps grew");
    assert!(after.ended < before.ended + 50.0, "processes that are gone are remembered");
    assert!(
        rest_of_pss(&after) < rest_of_pss(&before) * 1.1 + 2.0 * grown,
        "memory grew, as the kernel has it"
    );
    assert!(after.open.programs <= before.open.programs, "BPF programs stay");
    assert!(after.open.links <= before.open.links, "BPF links and perf events stay");
    // One for each 4 MiB of unwind tables.
    assert!(after.open.maps <= before.open.maps + 11, "BPF maps stay");
    let status = daemon.status()?;
    assert_eq!(number(&status, "profiles.dropped"), 0.0);
    // Of many .NET programs, the lasting one is read now, and what else the host has.
    let [attached, read] = ["dotnet.attached", "dotnet.read_now"].map(|name| number(&status, name));
    assert!(read >= 1.0 && read + 6.0 <= attached, "{attached} attached, {read} read now");
    let [all, sampled] =
        ["processes", "sampled_processes"].map(|name| number(&status, &format!("sampling.{name}")));
    assert!((1.0..=all).contains(&sampled), "{sampled} of {all} processes");
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
    let dropped = number(&status, "profiles.dropped");
    assert!(dropped == 0.0, "{} {}", status["profiles"], status["exporters"]);
    assert!(!server.requests().is_empty());
    Ok(())
}
