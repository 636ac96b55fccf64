//! The daemon answers status requests, whatever other users do to its port.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::running::{Running, wait_until};
use strata_tests::{machine, places};

#[test]
fn a_port_that_another_program_has_delays_metrics_and_nothing_else() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("")?;
    let taken = TcpListener::bind(daemon.metrics_address())?;
    daemon.start()?;
    wait_until("the trouble is reported", PATIENCE, || {
        daemon.status().is_ok_and(|status| status["metrics_trouble"].is_string())
    })?;
    let status = daemon.status()?;
    assert_eq!(status["healthy"], true, "{status}");
    // A probe that runs in the daemon's container needs no port.
    let alive = |socket: &Path| {
        let mut command = Command::new(places::strata_binary()?);
        command.args(["status", "--alive", "--socket"]).arg(socket);
        Running::from_command(command)?.wait(PATIENCE)
    };
    let answered = alive(&daemon.status_socket())?;
    assert!(answered.status.success() && answered.stdout.starts_with("ok"), "{}", answered.stderr);
    let unanswered = alive(&daemon.folder().join("no.sock"))?;
    assert_eq!(unanswered.status.code(), Some(1), "{}", unanswered.stderr);
    drop(taken);
    wait_until("metrics are served", PATIENCE, || daemon.metrics().is_ok())?;
    wait_until("the trouble is over", PATIENCE, || {
        daemon.status().is_ok_and(|status| status["metrics_trouble"].is_null())
    })?;
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("metrics are not served"), "{}", ended.stderr);
    Ok(())
}

#[test]
fn silent_connections_keep_no_answer_back() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("")?;
    daemon.start()?;
    let mut silent = Vec::new();
    let mut slowest = Duration::ZERO;
    for _ in 0..1_200 {
        silent.push(TcpStream::connect(daemon.metrics_address())?);
        if silent.len() % 100 == 0 {
            let asked = Instant::now();
            daemon.health().context("with silent connections")?;
            slowest = slowest.max(asked.elapsed());
        }
    }
    println!("/healthz took {slowest:?} at most beside {} connections", silent.len());
    // One of them would have waited for others to be dropped after two seconds each.
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    daemon.end().map(drop)
}

#[test]
fn only_root_gets_the_list_of_processes() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("")?;
    daemon.start()?;
    let mode = std::fs::metadata(daemon.status_socket())?.permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert!(daemon.status()?["services"].is_array());
    // The port may come later: a connection of another program may have it for a moment.
    wait_until("the port is served", PATIENCE, || daemon.health().is_ok())?;
    let refused = daemon.from_port("/status").expect_err("any user may ask there");
    assert!(refused.to_string().contains("403"), "{refused}");
    daemon.end().map(drop)
}
