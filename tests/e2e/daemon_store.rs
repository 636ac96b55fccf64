//! The daemon's local store, queried while no exporter's server is reachable.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::running::{Ended, Running, wait_until};
use strata_tests::{machine, places, pprof, targets};

/// `strata query` of a service's last hour, to a file in the daemon's folder.
fn query(daemon: &Daemon, service: &str, file: &str) -> Result<Ended> {
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", service, "-o", file, "--store"]).arg(daemon.store());
    command.current_dir(daemon.folder());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    assert!(ended.status.success(), "{}", ended.stderr);
    Ok(ended)
}

/// Seconds since the start of the profile of each event that burns.
fn times(script: &str) -> Result<Vec<f64>> {
    let heads = script.lines().filter(|line| line.starts_with("shares"));
    heads
        .map(|head| {
            let time = head.split_whitespace().find_map(|word| word.strip_suffix(':'));
            Ok(time.context("an event has a time")?.parse()?)
        })
        .collect()
}

#[test]
fn times_of_samples_are_kept_where_a_rule_asks_for_them() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(
        "[sampling]\nfrequency = 199\n\
         [[rule]]\nmatch = { comm = \"shares\", env = { DD_SERVICE = \"timed\" } }\n\
         timestamps = true\n",
    )?;
    daemon.start()?;
    let shares = targets::c("shares").build()?;
    // One second, nothing for a second, and one more.
    for service in ["timed", "untimed", "timed"] {
        let mut command = Command::new(&shares);
        command.arg("1").env("DD_SERVICE", service).env("STRATA_TARGET_CLOCK", "cpu");
        let ended = Running::from_command(command)?.wait(PATIENCE)?;
        assert!(ended.status.success(), "{}", ended.stderr);
    }
    daemon.end()?;

    query(&daemon, "timed", "timed.pb.gz")?;
    let samples = pprof::read(&daemon.folder().join("timed.pb.gz"))?.total()?;
    let ended = query(&daemon, "timed", "timed.perf")?;
    assert!(!ended.stderr.contains("note:"), "{}", ended.stderr);
    let times = times(&std::fs::read_to_string(daemon.folder().join("timed.perf"))?)?;
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    let longest = gaps.clone().fold(0.0, f64::max);
    let shortest = gaps.fold(f64::INFINITY, f64::min);
    println!("{} of {samples} samples, gaps of {shortest:.4} to {longest:.3} s", times.len());
    assert_eq!(times.len() as i64, samples);
    assert!(samples > 100, "it has run for two seconds");
    // In order, and with the second in which it did not run.
    assert!(shortest >= 0.0 && longest > 0.9, "{times:?}");

    let ended = query(&daemon, "untimed", "untimed.perf")?;
    assert!(ended.stderr.contains("no times"), "{}", ended.stderr);
    let script = std::fs::read_to_string(daemon.folder().join("untimed.perf"))?;
    assert!(script.contains("burn_fifty"), "its samples are shown all the same");
    Ok(())
}

#[test]
fn a_second_daemon_of_one_store_ends_and_names_the_first() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("")?;
    daemon.start()?;
    let second = |socket: &str| -> Result<Ended> {
        let mut command = Command::new(places::strata_binary()?);
        command.arg("daemon").arg("--config").arg(daemon.configuration());
        command.args(["--set", "metrics.address=127.0.0.1:0", "--set"]);
        Running::from_command({
            command.arg(format!("metrics.socket={socket}"));
            command
        })?
        .wait(PATIENCE)
    };
    let same_socket = second(&daemon.status_socket().display().to_string())?;
    let own_socket = second(&daemon.folder().join("other.sock").display().to_string())?;
    let pid = daemon.pid()?.to_string();
    for ended in [same_socket, own_socket] {
        println!("{} {}", ended.status, ended.stderr);
        assert_eq!(ended.status.code(), Some(1));
        assert!(ended.stderr.contains(&pid), "the owner is not named: {}", ended.stderr);
    }
    daemon.end().map(drop)
}

#[test]
fn a_full_disk_is_named_and_is_not_healthy() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("[sampling]\nfrequency = 199\n")?;
    std::fs::create_dir(daemon.store())?;
    let options = c"size=16k";
    mount("none", daemon.store(), "tmpfs", MountFlags::empty(), Some(options))?;
    let disk = Mounted(daemon.store());
    daemon.start()?;
    let _busy = Running::start(&targets::c("shares").build()?, &["300"])?;
    wait_until("profiles are not stored", PATIENCE * 2, || {
        daemon.status().is_ok_and(|status| status["store"]["not_stored"].as_u64() > Some(0))
    })?;
    let status = daemon.status()?;
    println!("{:#}", status["store"]);
    assert_eq!(status["healthy"], false);
    let trouble = status["store"]["trouble"].as_str().unwrap_or_default();
    assert!(trouble.contains("No space left on device"), "{trouble}");
    daemon.end()?;
    drop(disk);
    Ok(())
}

/// A file system that is unmounted when the test ends.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn code_without_names_is_one_frame() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("[sampling]\nfrequency = 199\n")?;
    daemon.start()?;
    // Its functions are JIT-compiled, and no perf map lists them.
    let mut command = Command::new(places::required("node", "nodejs")?);
    command.arg(places::target_sources().join("node/shares.js")).arg("4");
    command.env("DD_SERVICE", "unnamed");
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    assert!(ended.status.success(), "{}", ended.stderr);
    daemon.end()?;

    query(&daemon, "unnamed", "unnamed.folded")?;
    let folded = std::fs::read_to_string(daemon.folder().join("unnamed.folded"))?;
    assert!(folded.contains(";[jit]"), "{folded}");
    assert!(!folded.contains("[jit]!0x"), "places of one process are no names");
    query(&daemon, "unnamed", "unnamed.pb.gz")?;
    let profile = pprof::read(&daemon.folder().join("unnamed.pb.gz"))?;
    let stacks = profile.stacks()?;
    println!("{} samples in {} stacks", stacks.total(), stacks.stacks.len());
    assert!(stacks.total() > 400, "it has run for four seconds");
    Ok(())
}
