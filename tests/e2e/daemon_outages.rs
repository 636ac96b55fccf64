//! Outages: the server is down, slow and failing, the daemon is killed, a disk does not answer.
//! Afterwards the server has exactly the samples of the store.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use strata_tests::collector::{Answer, Collector};
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::disk::Disk;
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
fn a_bad_hour_loses_no_sample_and_what_is_sent_twice_is_marked_as_the_same() -> Result<()> {
    let _machine = machine::long_beside_others()?;
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
    let failing = daemon.status()?;
    assert_eq!(failing["healthy"], false);
    assert_eq!(failing["failing_exporters"], serde_json::json!(["pyroscope"]));
    server.answer(Answer { after: Duration::from_millis(4900), ..Answer::default() });
    part(8.0);
    server.answer(Answer::default());
    part(9.2);
    wait_until("it is healthy again", PATIENCE, || {
        daemon.status().is_ok_and(|status| status["healthy"] == true)
    })?;
    // An answer that is late comes after one that is not: it may begin and end again.
    let warnings = daemon.kill()?.stderr;
    let number_of = |text: &str| warnings.matches(text).count();
    let (failed, recovered) = (number_of("a delivery failed"), number_of("delivers again"));
    assert!((1..=4).contains(&failed) && recovered == failed, "{warnings}");
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

/// A daemon whose store, whose exporter `files` and the spool of whose exporter `held` lie on a disk of
/// their own, and what does not need that disk: the exporter `free`.
fn beside_a_disk(held: SocketAddr, free: SocketAddr) -> Result<(Daemon, Disk)> {
    let daemon = Daemon::prepared()?;
    let folder = daemon.folder().display();
    daemon.configure(&format!(
        "[sampling]\nfrequency = 99\n\
         [exporter.held]\nkind = \"pyroscope\"\nurl = \"http://{held}\"\nperiod = \"4s\"\n\
         [exporter.free]\nkind = \"pyroscope\"\nurl = \"http://{free}\"\nperiod = \"2s\"\n\
         [exporter.files]\nkind = \"file\"\npath = \"{folder}/files\"\nperiod = \"2s\"\n\
         [[rule]]\nenable = true\nmatch = {{ env = {{ DD_SERVICE = \"{SERVICE}\" }} }}\n\
         [[rule]]\nenable = false\nmatch = {{ exe = \"*\" }}\n"
    ))?;
    let mut disk = Disk::mounted(&daemon.folder().join("disk"))?;
    for name in ["store", "files", "spool/held"] {
        disk.bind(&daemon.folder().join(name))?;
    }
    Ok((daemon, disk))
}

#[test]
fn a_full_disk_of_an_exporter_of_files_makes_the_daemon_unhealthy() -> Result<()> {
    let _machine = machine::long_beside_others()?;
    let mut daemon = Daemon::prepared()?;
    let folder = daemon.folder().join("files");
    daemon.configure(&format!(
        "[sampling]\nfrequency = 99\n\
         [exporter.files]\nkind = \"file\"\npath = \"{}\"\nperiod = \"2s\"\n",
        folder.display()
    ))?;
    let mut disk = Disk::mounted(&daemon.folder().join("disk"))?;
    disk.bind(&folder)?;
    disk.fill()?;
    daemon.start()?;
    let mut command = Command::new(targets::c("shares").build()?);
    command.arg("3600").env("DD_SERVICE", SERVICE);
    let _target = Running::from_command(command)?;
    wait_until("the daemon is not healthy", PATIENCE, || {
        daemon.status().is_ok_and(|status| status["healthy"] == false)
    })?;
    let status = daemon.status()?;
    println!("{}", status["file_exporters"]);
    assert_eq!(status["failing_exporters"], serde_json::json!(["files"]));
    let why = "No space left on device";
    assert!(status["file_exporters"][0]["trouble"].to_string().contains(why));
    assert!(status["file_exporters"][0]["failed"].as_u64() > Some(0));
    let ended = daemon.end()?;
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    Ok(())
}

/// Samples in the files of the exporter `files`.
fn in_files(daemon: &Daemon) -> Result<i64> {
    let mut total = 0;
    for file in fs::read_dir(daemon.folder().join("files").join(SERVICE))? {
        total += pprof::read(&file?.path())?.total()?;
    }
    Ok(total)
}

/// More profiles arrive than there are.
fn more_arrive(server: &Collector) -> Result<()> {
    let before = arrived(server)?.0;
    wait_until("a server is sent more", PATIENCE, || {
        arrived(server).is_ok_and(|(now, _)| now > before)
    })
}

/// The status names the disk, and so does `/healthz`, which is well all the same.
fn wait_until_named(daemon: &Daemon) -> Result<()> {
    let folder = daemon.folder().display().to_string();
    let names = |text: &str, name: &str| text.contains(&format!("{folder}/{name}"));
    wait_until("the disk is named", PATIENCE * 2, || {
        let status = daemon.status().unwrap_or_default();
        let disks = status["silent_disks"].to_string();
        ["store", "files", "spool/held"].iter().all(|name| names(&disks, name))
            && status["healthy"] == false
            && daemon.health().is_ok_and(|text| text.starts_with("ok\n") && names(&text, ""))
    })
}

#[test]
fn a_disk_that_does_not_answer_holds_up_only_what_needs_it() -> Result<()> {
    let _machine = machine::long_beside_others()?;
    let ((held, held_at), (free, free_at)) = (Collector::on_port(0)?, Collector::on_port(0)?);
    // The disk is dropped, and thawed, first: a process that waits for it cannot end.
    let (mut daemon, mut disk) = beside_a_disk(held_at, free_at)?;
    daemon.start()?;
    let mut command = Command::new(targets::c("shares").build()?);
    command.arg("3600").env("DD_SERVICE", SERVICE);
    let target = Running::from_command(command)?;
    more_arrive(&held)?;
    more_arrive(&free)?;

    disk.freeze()?;
    // More than is on its way already, and longer than any patience.
    for _ in 0..10 {
        more_arrive(&free)?;
    }
    wait_until_named(&daemon)?;
    more_arrive(&free)?;
    // What has no room on its disk is sent from memory.
    more_arrive(&held)?;
    let status = daemon.status()?;
    println!("{}\n{}", status["silent_disks"], daemon.health()?);
    disk.thaw()?;

    wait_until("the disk is not named any more", PATIENCE, || {
        daemon.status().is_ok_and(|status| {
            status["silent_disks"] == serde_json::json!([])
                && status["exporters"].as_array().is_some_and(|exporters| {
                    exporters.iter().all(|exporter| exporter["waiting_batches"] == 0)
                })
        })
    })?;
    drop(target);
    let status = daemon.status()?;
    println!("{}\n{}", status["exporters"], status["store"]);
    assert_eq!(status["store"]["not_stored"], 0);
    let ended = daemon.end()?;
    println!("{}", ended.stderr);
    assert!(ended.status.success(), "{}", ended.stderr);
    let (kept, files) = (stored(&daemon)?, in_files(&daemon)?);
    let (held, free) = (arrived(&held)?, arrived(&free)?);
    println!("{kept} samples in the store, {files} in files, at the servers {held:?} and {free:?}");
    assert!(kept > 100, "{kept}");
    assert_eq!((files, held, free), (kept, (kept, 0), (kept, 0)));
    Ok(())
}

#[test]
fn a_disk_that_does_not_answer_keeps_no_daemon_from_ending() -> Result<()> {
    let _machine = machine::long_beside_others()?;
    let ((held, held_at), (free, free_at)) = (Collector::on_port(0)?, Collector::on_port(0)?);
    let (mut daemon, mut disk) = beside_a_disk(held_at, free_at)?;
    daemon.start()?;
    let mut command = Command::new(targets::c("shares").build()?);
    command.arg("3600").env("DD_SERVICE", SERVICE);
    let _target = Running::from_command(command)?;
    more_arrive(&held)?;
    disk.freeze()?;
    wait_until_named(&daemon)?;
    more_arrive(&free)?;
    let pid = daemon.pid()?;
    daemon.running()?.signal(Signal::TERM)?;
    // Its threads in the kernel end with the disk's answer, and the process with the last of them:
    // until then the kernel keeps what is left of it.
    wait_until("the daemon has ended", PATIENCE, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|state| state.starts_with('Z'))
    })?;
    disk.thaw()?;
    let ended = daemon.end()?;
    println!("{}", ended.stderr);
    assert!(ended.status.success(), "{}", ended.stderr);
    Ok(())
}

#[test]
fn a_disk_that_does_not_answer_keeps_no_daemon_from_beginning() -> Result<()> {
    let _machine = machine::long_beside_others()?;
    let ((held, held_at), (free, free_at)) = (Collector::on_port(0)?, Collector::on_port(0)?);
    let (mut daemon, mut disk) = beside_a_disk(held_at, free_at)?;
    disk.freeze()?;
    daemon.start()?;
    let mut command = Command::new(targets::c("shares").build()?);
    command.arg("3600").env("DD_SERVICE", SERVICE);
    let target = Running::from_command(command)?;
    more_arrive(&free)?;
    more_arrive(&held)?;
    wait_until_named(&daemon)?;
    disk.thaw()?;
    more_arrive(&free)?;
    drop(target);
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{}", ended.stderr);
    let (kept, files) = (stored(&daemon)?, in_files(&daemon)?);
    let (held, free) = (arrived(&held)?, arrived(&free)?);
    println!("{kept} samples in the store, {files} in files, at the servers {held:?} and {free:?}");
    assert_eq!((files, held, free), (kept, (kept, 0), (kept, 0)));
    Ok(())
}
