//! `strata record -- command`: profiled from start to exit, transparent for exit codes and
//! signals, run as the calling user, with outputs that are that user's.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use strata_tests::collector::{Answer, Collector};
use strata_tests::fuse::SilentFileSystem;
use strata_tests::running::{Running, cpu_seconds_of, wait_until, wait_until_used};
use strata_tests::{machine, pprof, strata, targets};

const NOBODY: u32 = 65534;

#[test]
fn the_exit_code_is_the_commands() -> Result<()> {
    let _machine = machine::beside_others()?;
    for code in [0, 7, 255] {
        let record = strata::record()?.shell(&format!("exit {code}"));
        let ended = Running::from_command(record.to_command()?)?;
        let ended = ended.wait(Duration::from_secs(60))?;
        println!("exit {code} -> {}", ended.status);
        assert_eq!(ended.status.code(), Some(code), "{}", ended.stderr);
    }
    let record = strata::record()?.shell("kill -TERM $$");
    let ended = Running::from_command(record.to_command()?)?;
    let ended = ended.wait(Duration::from_secs(60))?;
    println!("killed by TERM -> {}", ended.status);
    assert!(ended.status.code() == Some(128 + 15) || ended.status.signal() == Some(15));
    let record = strata::record()?.command("/no/such/program", &[]);
    let missing = Running::from_command(record.to_command()?)?;
    let missing = missing.wait(Duration::from_secs(60))?;
    println!("missing program -> {}: {}", missing.status, missing.stderr.trim());
    assert!(!missing.status.success() && missing.stderr.contains("/no/such/program"));
    Ok(())
}

#[test]
fn a_standard_error_that_is_full_or_closed_changes_no_exit_code() -> Result<()> {
    let _machine = machine::beside_others()?;
    let (reader, closed) = std::io::pipe()?;
    drop(reader);
    let full = File::options().write(true).open("/dev/full")?;
    for stderr in [Stdio::from(full), Stdio::from(closed)] {
        // A message before the recording, the log, and one after it.
        let record = strata::record()?.as_text().frequency(100).flag("-vv").seconds(0.3);
        let record = record.shell("sleep 0.5; exit 7");
        let mut strata = record.to_command()?.stderr(stderr).stdout(Stdio::null()).spawn()?;
        let in_time = wait_until("strata ends", Duration::from_secs(60), || {
            !matches!(strata.try_wait(), Ok(None))
        });
        if in_time.is_err() {
            strata.kill()?;
        }
        let ended = strata.wait()?;
        println!("{ended}");
        in_time?;
        assert_eq!(ended.code(), Some(7));
        assert!(record.folder().join("profile.pb.gz").exists());
    }
    Ok(())
}

#[test]
fn the_commands_output_and_environment_are_its_own() -> Result<()> {
    let _machine = machine::beside_others()?;
    let record =
        strata::record()?.shell("echo to-out; echo to-err >&2; echo $STRATA_TEST_VALUE; pwd");
    let mut command = record.to_command()?;
    command.env("STRATA_TEST_VALUE", "passed on").current_dir("/usr");
    let ended = Running::from_command(command)?.wait(Duration::from_secs(60))?;
    assert!(ended.stdout.contains("to-out\n") && ended.stderr.contains("to-err\n"));
    assert!(
        ended.stdout.contains("passed on\n") && ended.stdout.contains("/usr\n"),
        "{}",
        ended.stdout
    );
    Ok(())
}

#[test]
fn the_peak_of_memory_is_stratas_own_however_large_the_process_is_that_starts_it() -> Result<()> {
    let _machine = machine::beside_others()?;
    // Touched, so that it is resident.
    let large = vec![1_u8; 600 << 20];
    let recorded = strata::record()?.shell("exit 0").run()?;
    let peak = recorded.summary()?.number("agent.peak_rss_bytes")?;
    println!("{:.1} MB beside {:.1} MB", peak / 1e6, large.len() as f64 / 1e6);
    assert!(std::hint::black_box(&large).iter().all(|byte| *byte == 1));
    assert!(peak > 1e6 && peak < 300e6, "{peak}");
    Ok(())
}

#[test]
fn signals_reach_the_command_and_the_recording_is_written() -> Result<()> {
    let _machine = machine::beside_others()?;
    let recording = strata::record()?.frequency(997);
    let folder = recording.folder().to_path_buf();
    let marker = folder.join("ready");
    let script = format!("trap 'exit 9' TERM; echo $$ > {}; while :; do :; done", marker.display());
    let recording = recording.shell(&script);
    let running = Running::from_command(recording.to_command()?)?;
    let mut pid = None;
    wait_until("the command runs", Duration::from_secs(60), || {
        let text = std::fs::read_to_string(&marker).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|text| text.parse().ok());
        pid.is_some()
    })?;
    wait_until_used(pid.context("the command's pid")?, 1.0)?;
    // Twice, as `timeout` sends it: one request.
    running.signal(Signal::TERM)?;
    running.signal_group(Signal::TERM)?;
    let ended = running.wait(Duration::from_secs(60))?;
    println!("TERM -> {}", ended.status);
    assert_eq!(ended.status.code(), Some(9), "{}", ended.stderr);
    let samples = pprof::read(&folder.join("profile.pb.gz"))?.stacks()?.total();
    println!("{samples} samples were kept");
    assert!(samples > 300);
    Ok(())
}

#[test]
fn a_command_is_profiled_from_its_start() -> Result<()> {
    let _machine = machine::alone()?;
    let recorded = strata::record()?
        .frequency(997)
        .command(targets::c("short_life").build()?, &["200"])
        .run()?;
    let own = recorded.stacks()?.of_comm("short_life");
    println!("{} samples of 200 ms; complete {}", own.total(), own.completeness());
    assert!(own.total() >= 190 && own.share_with("short_life_burn") > 0.95);
    Ok(())
}

#[test]
fn a_command_is_one_process_from_its_fork_to_its_end() -> Result<()> {
    let _machine = machine::beside_others()?;
    let recorded = strata::record()?.frequency(19_999).output("a.folded").shell("exit 0").run()?;
    let (summary, folded) = (recorded.summary()?, recorded.text("a.folded")?);
    println!("{folded}");
    assert_eq!(summary.number("processes")?, 1.0);
    assert!(folded.lines().all(|stack| stack.starts_with("sh;")), "the moments before its exec");
    Ok(())
}

#[test]
fn the_same_file_twice_is_refused_before_the_command_is_started() -> Result<()> {
    let _machine = machine::beside_others()?;
    let record = strata::record()?.output("./profile.pb.gz").shell("echo started");
    let ended = Running::from_command(record.to_command()?)?.wait(Duration::from_secs(60))?;
    assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("is written by two outputs"), "{}", ended.stderr);
    Ok(())
}

#[test]
fn children_are_followed_by_default() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("forks").build()?;
    let unrelated = Running::start(&targets::c("shares").build()?, &["600"])?;
    let record =
        || Ok::<_, anyhow::Error>(strata::record()?.frequency(997).command(&program, &["2"]));
    let followed = record()?.by_cpu_time().run()?.stacks()?;
    let alone = record()?.by_cpu_time().flag("--no-children").run()?.stacks()?;
    println!(
        "children: {:.3} of {}, then {:.3} of {}",
        followed.share_with("fork_child_leaf"),
        followed.total(),
        alone.share_with("fork_child_leaf"),
        alone.total()
    );
    assert!(
        followed.share_with("fork_child_leaf") > 0.2
            && followed.share_with("fork_parent_leaf") > 0.2
    );
    assert!(
        alone.share_with("fork_child_leaf") == 0.0 && alone.share_with("fork_parent_leaf") > 0.9
    );
    assert!(
        followed.of_pid(unrelated.pid()).total() == 0,
        "a process outside the command was recorded"
    );
    Ok(())
}

#[test]
fn comm_and_pid_select_processes() -> Result<()> {
    let _machine = machine::beside_others()?;
    let shares = Running::start(&targets::c("shares").build()?, &["600"])?;
    // No other test's program has this name.
    let alloca = targets::c("alloca").named("alloca_chosen").build()?;
    let alloca = Running::start(&alloca, &["600"])?;
    let record = || Ok::<_, anyhow::Error>(strata::record()?.frequency(997));
    let by_comm = record()?.option("--comm", "alloca_chosen").start()?;
    let by_comm = by_comm.finish_when_used(&[alloca.pid()], 2.0)?.stacks()?;
    let by_pid = record()?.pid(shares.pid()).start()?;
    let by_pid = by_pid.finish_when_used(&[shares.pid()], 2.0)?.stacks()?;
    println!("--comm: {} samples, --pid: {} samples", by_comm.total(), by_pid.total());
    assert!(by_comm.total() > 200 && by_comm.of_pid(alloca.pid()).total() == by_comm.total());
    assert!(by_pid.total() > 200 && by_pid.of_pid(shares.pid()).total() == by_pid.total());
    Ok(())
}

#[test]
fn ctrl_c_ends_early_and_keeps_everything() -> Result<()> {
    let _machine = machine::beside_others()?;
    let target = Running::start(&targets::c("shares").build()?, &["60"])?;
    let mut recording = strata::record()?.frequency(997).seconds(600.0).start()?;
    wait_until_used(target.pid(), cpu_seconds_of(target.pid())? + 1.0)?;
    recording.running().signal_group(Signal::INT)?;
    let stacks = recording.finish()?.stacks()?;
    let own = stacks.of_pid(target.pid());
    println!("{} samples after Ctrl-C", own.total());
    assert!(own.total() > 200);
    Ok(())
}

#[test]
fn a_signal_that_comes_twice_at_once_is_one_request() -> Result<()> {
    let _machine = machine::beside_others()?;
    // As `timeout` sends it: to the process, and to its group.
    for signal in [Signal::INT, Signal::TERM] {
        for _ in 0..5 {
            let mut recording = strata::record()?.frequency(997).seconds(600.0).start()?;
            recording.running().signal(signal)?;
            recording.running().signal_group(signal)?;
            let recorded = recording.finish()?;
            assert!(recorded.stacks()?.total() > 0);
        }
    }
    Ok(())
}

/// Also while the recording reads a file that does not answer.
#[test]
fn a_second_ctrl_c_ends_at_once_a_recording_that_is_finishing() -> Result<()> {
    let _machine = machine::beside_others()?;
    let files = SilentFileSystem::with_program(&targets::c("shares").build()?)?;
    let target = Running::start(&files.program(), &["60"])?;
    target.wait_until_used(0.1)?;
    files.answer_first_reads_after(Duration::from_secs(20));
    let mut recording =
        strata::record()?.frequency(997).pid(target.pid()).seconds(600.0).start()?;
    wait_until_used(target.pid(), cpu_seconds_of(target.pid())? + 0.5)?;
    recording.running().signal(Signal::INT)?;
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(recording.running().is_alive(), "it has finished: the file answered");
    recording.running().signal(Signal::INT)?;
    let ended = recording.end()?.ended;
    println!("{}: {}", ended.status, ended.stderr.trim());
    assert_eq!(ended.status.signal(), Some(Signal::INT.as_raw()));
    assert!(ended.stderr.contains("stopped before the profile was written"));
    Ok(())
}

/// It comes while the recording waits for the server that it is uploaded to.
#[test]
fn a_signal_that_comes_after_the_recording_reaches_the_command_that_goes_on() -> Result<()> {
    let _machine = machine::beside_others()?;
    let (server, address) = Collector::on_port(0)?;
    server.answer(Answer { after: Duration::from_secs(4), ..Answer::default() });
    let record = strata::record()?.frequency(997).seconds(1.0);
    let record = record.option("--upload", format!("http://{address}"));
    let record = record.option("--upload-as", "pyroscope");
    let mut recording = record.command(targets::c("shares").build()?, &["60"]).start()?;
    wait_until("it is uploaded", Duration::from_secs(30), || !server.requests().is_empty())?;
    recording.running().signal(Signal::TERM)?;
    let ended = recording.end()?.ended;
    println!("{}: {}", ended.status, ended.stderr.trim());
    assert_eq!(ended.status.code(), Some(128 + Signal::TERM.as_raw()));
    assert!(ended.stderr.contains("finishing already"));
    Ok(())
}

/// At every moment of that: the recording notices it, reads the last samples, names and writes.
#[test]
fn the_first_ctrl_c_loses_nothing_though_the_process_has_just_ended() -> Result<()> {
    let _machine = machine::beside_others()?;
    for delay in (0..8).map(|eighths| Duration::from_millis(125 * eighths)) {
        let target = Running::start(&targets::c("shares").build()?, &["60"])?;
        let mut recording =
            strata::record()?.frequency(997).pid(target.pid()).seconds(600.0).start()?;
        wait_until_used(target.pid(), cpu_seconds_of(target.pid())? + 0.5)?;
        drop(target);
        std::thread::sleep(delay);
        // It may have written everything by now.
        _ = recording.running().signal_group(Signal::INT);
        let own = recording.finish()?.stacks()?;
        println!("{delay:?} later: {} samples", own.total());
        assert!(own.total() > 100);
    }
    Ok(())
}

#[test]
fn a_command_runs_as_the_user_and_outputs_are_that_users() -> Result<()> {
    let _machine = machine::beside_others()?;
    for way in ["--user", "sudo"] {
        let record = strata::record()?;
        std::os::unix::fs::chown(record.folder(), Some(NOBODY), Some(NOBODY))?;
        let folder = record.folder().to_path_buf();
        let record = if way == "--user" { record.option("--user", "nobody") } else { record };
        let record = record.output("p.svg").shell("id -u; id -g; cd /; exec sleep 0.2");
        let mut command = record.to_command()?;
        if way == "sudo" {
            // What sudo leaves for the programs it starts.
            command.env("SUDO_UID", NOBODY.to_string()).env("SUDO_GID", NOBODY.to_string());
            command.env("SUDO_USER", "nobody");
        }
        let ended = Running::from_command(command)?.wait(Duration::from_secs(60))?;
        println!(
            "{way}: {} {}",
            ended.status,
            ended.stdout.lines().take(2).collect::<Vec<_>>().join(" ")
        );
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(
            ended.stdout.starts_with("65534\n65534\n"),
            "{way}: the command ran as {}",
            ended.stdout
        );
        for name in ["profile.pb.gz", "p.svg"] {
            let owner = std::fs::metadata(folder.join(name))?.uid();
            assert_eq!(owner, NOBODY, "{way}: {name} belongs to {owner}");
        }
    }
    Ok(())
}

#[test]
fn outputs_never_go_through_a_symbolic_link() -> Result<()> {
    let _machine = machine::beside_others()?;
    let victim_folder = tempfile::tempdir()?;
    let victim = victim_folder.path().join("victim");
    std::fs::write(&victim, "precious")?;
    std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o600))?;
    // Without a link nothing keeps it from being written.
    strata::record()?.shell("true").run()?.profile()?;
    let record = strata::record()?.shell("true");
    symlink(&victim, record.folder().join("profile.pb.gz"))?;
    let folder = record.folder().to_path_buf();
    let ended = Running::from_command(record.to_command()?)?.wait(Duration::from_secs(60))?;
    println!("output through a link -> {} {}", ended.status, ended.stderr.trim());
    assert_eq!(std::fs::read_to_string(&victim)?, "precious");
    let replaced = !std::fs::symlink_metadata(folder.join("profile.pb.gz"))?.is_symlink();
    assert!(replaced || !ended.status.success(), "the link was neither replaced nor refused");

    // A dangling link must not create a file elsewhere, either.
    let record = strata::record()?.shell("true");
    let elsewhere = victim_folder.path().join("elsewhere");
    symlink(&elsewhere, record.folder().join("profile.pb.gz"))?;
    let _ = Running::from_command(record.to_command()?)?.wait(Duration::from_secs(60))?;
    assert!(!elsewhere.exists(), "a file was made through a dangling link");
    Ok(())
}

#[test]
fn by_default_a_pprof_and_an_svg_are_written_and_named() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let mut command = std::process::Command::new(strata_tests::places::strata_binary()?);
    command.args(["record", "--duration", "1"]).current_dir(folder.path());
    let ended = Running::from_command(command)?.wait(Duration::from_secs(60))?;
    assert!(ended.status.success(), "{}", ended.stderr);
    let mut names: Vec<String> = std::fs::read_dir(folder.path())?
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    println!("{names:?}");
    assert_eq!(names.len(), 2);
    let printed = ended.stdout + &ended.stderr;
    for (name, end) in names.iter().zip([".pb.gz", ".svg"]) {
        assert!(
            name.ends_with(end) && printed.contains(name.as_str()),
            "{name} is not what was printed:\n{printed}"
        );
    }
    Ok(())
}

#[test]
fn quiet_says_nothing_and_json_says_one_object() -> Result<()> {
    let _machine = machine::beside_others()?;
    let quiet = strata::record()?.as_text().flag("--quiet").seconds(1.0).run()?.ended;
    assert_eq!((quiet.stdout.trim(), quiet.stderr.trim()), ("", ""));
    let recorded = strata::record()?.seconds(1.0).run()?;
    let summary: serde_json::Value = serde_json::from_str(recorded.ended.stdout.trim())?;
    println!("{summary}");
    assert!(
        summary.get("losses").is_some()
            && summary.get("bpf").is_some()
            && summary.get("agent").is_some()
    );
    Ok(())
}
