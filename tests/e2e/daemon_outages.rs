//! Outages: the server is down, slow and failing, the daemon is killed. Afterwards the server has
//! exactly the samples of the store.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use strata_tests::collector::{Answer, Collector};
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::running::{Running, wait_until};
use strata_tests::{backends, machine, places, pprof, targets};

const SERVICE: &str = "badhour";

/// Samples of the service in the daemon's store.
fn stored(daemon: &Daemon) -> Result<i64> {
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", SERVICE, "-o", "all.pb.gz", "--store"]).arg(daemon.store());
    command.current_dir(daemon.folder());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    anyhow::ensure!(ended.status.success(), "{}", ended.stderr);
    let total = pprof::read(&daemon.folder().join("all.pb.gz"))?.total()?;
    fs::remove_file(daemon.folder().join("all.pb.gz"))?;
    Ok(total)
}

/// Samples of the service at the server, and those that arrived more than once.
fn arrived(server: &Collector) -> Result<(i64, i64)> {
    let (mut once, mut again) = (0, 0);
    let mut seen: BTreeMap<(String, i64), i64> = BTreeMap::new();
    let answered: Vec<_> = server.taken();
    for one in backends::pyroscope(&answered)? {
        if one.label("service_name") != SERVICE {
            continue;
        }
        let total = one.profile.total()?;
        // Profiles of a series have times of their own: the same time is the same profile.
        let series = format!("{:?}", one.labels);
        match seen.insert((series, one.profile.time_nanos), total) {
            None => once += total,
            Some(before) => {
                assert_eq!(before, total, "two profiles of one time");
                again += total;
            }
        }
    }
    Ok((once, again))
}

#[test]
fn a_bad_hour_loses_and_doubles_no_sample() -> Result<()> {
    let _machine = machine::alone()?;
    let (server, address) = Collector::on_port(0)?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&format!(
        "[sampling]\nfrequency = 99\n\
         [exporter.pyroscope]\nurl = \"http://{address}\"\nperiod = \"5s\"\ntimeout = \"4s\"\n"
    ))?;
    daemon.start()?;
    let mut command = Command::new(targets::c("shares").build()?);
    command.arg("3600").env("DD_SERVICE", SERVICE);
    let target = Running::from_command(command)?;
    let part = |seconds: f64| {
        let seconds = seconds * machine::short_or_long(1.0, 10.0);
        std::thread::sleep(Duration::from_secs_f64(seconds));
    };
    // Healthy; down, with the daemon killed twice; failing; slower than the timeout; healthy again,
    // with the daemon killed once more.
    part(9.0);
    server.answer(Answer::hang_up());
    part(4.0);
    daemon.kill()?;
    daemon.start()?;
    part(6.3);
    daemon.kill()?;
    daemon.start()?;
    part(1.7);
    server.answer(Answer::status(503));
    part(8.0);
    server.answer(Answer { after: Duration::from_millis(4900), ..Answer::default() });
    part(8.0);
    server.answer(Answer::default());
    part(9.2);
    daemon.kill()?;
    daemon.start()?;
    part(10.0);
    drop(target);
    wait_until("everything is delivered", PATIENCE, || {
        let status = daemon.status().unwrap_or_default();
        status["exporters"][0]["waiting_batches"] == 0
    })?;
    let status = daemon.status()?;
    println!("{}", status["exporters"][0]);
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{}", ended.stderr);
    let (kept, (once, again)) = (stored(&daemon)?, arrived(&server)?);
    println!("{kept} samples in the store, {once} at the server, {again} of them twice");
    assert!(kept > 100, "{kept}");
    assert_eq!(kept, once);
    Ok(())
}
