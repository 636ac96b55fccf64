//! Errors: a clear message with the next step, never a panic, nothing recorded lost.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags};
use strata_tests::daemon::PATIENCE;
use strata_tests::elf_edit::{ElfCopy, garbage};
use strata_tests::running::{Ended, Running, run};
use strata_tests::runtimes::{self, dotnet};
use strata_tests::{machine, places, pprof, strata, targets};

use crate::dotnet_running;

/// Runs strata and returns its output; a panic is never acceptable.
fn strata_says(command: &mut Command) -> Result<(Ended, String)> {
    let done = run(command)?;
    let text = format!("{}{}", done.stdout, done.stderr);
    println!("{:?} -> {}\n{}", command.get_args().collect::<Vec<_>>(), done.status, text.trim());
    assert!(!text.contains("panicked"), "strata panicked");
    Ok((done, text))
}

/// A copy of the binary that every user may run.
fn public_binary(folder: &Path) -> Result<PathBuf> {
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    let copy = folder.join("strata");
    std::fs::copy(places::strata_binary()?, &copy)?;
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755))?;
    Ok(copy)
}

#[test]
fn without_root_it_says_what_to_run() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let binary = public_binary(folder.path())?;
    let mut command = Command::new(places::required("setpriv", "util-linux")?);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary);
    // A folder that this user may write to: only the permission to profile is missing.
    std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534))?;
    let arguments = ["record", "--duration", "1", "-o", "p.pb.gz", "--", "sh", "-c", "echo it's"];
    command.args(arguments).current_dir(folder.path());
    let (done, text) = strata_says(&mut command)?;
    assert!(!done.status.success());
    assert_eq!(text.lines().count(), 1, "one sentence is enough");
    assert!(
        text.contains("sudo ") || text.contains("su -c "),
        "the message does not say what to do"
    );
    assert!(
        text.contains("record --duration 1 -o p.pb.gz -- sh -c "),
        "its arguments are not kept"
    );
    Ok(())
}

#[test]
fn a_selection_that_matches_no_process_is_an_error_and_writes_nothing() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    for (option, value) in [("--comm", "nosuchprogram"), ("--container", "ffffffffffff")] {
        let mut command = Command::new(places::strata_binary()?);
        command.args(["record", "--duration", "1", option, value]).current_dir(folder.path());
        let (done, text) = strata_says(&mut command)?;
        assert_eq!(done.status.code(), Some(1));
        assert!(text.contains(&format!("`{value}`")) && text.contains("nothing was recorded"));
        assert!(!text.contains("nothing was lost"));
    }
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 0, "an empty picture was written");
    Ok(())
}

#[test]
fn recordings_that_start_in_the_same_second_keep_their_files() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let start = || -> Result<Running> {
        let mut command = Command::new(places::strata_binary()?);
        command.args(["record", "--quiet", "--duration", "2"]).current_dir(folder.path());
        Running::from_command(command)
    };
    let recordings = [start()?, start()?, start()?];
    for recording in recordings {
        let ended = recording.wait(PATIENCE * 2)?;
        assert!(ended.status.success(), "{}", ended.stderr);
    }
    let files: Vec<_> =
        std::fs::read_dir(folder.path())?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    println!("{files:?}");
    assert_eq!(files.len(), 6);
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "gz")) {
        pprof::read(file)?;
    }
    Ok(())
}

#[test]
fn a_reader_of_the_standard_output_that_leaves_early_is_no_failure() -> Result<()> {
    let _machine = machine::beside_others()?;
    let script = format!(
        "{} record --duration 1 -o - --format perf | head -c 100 > /dev/null; exit ${{PIPESTATUS[0]}}",
        places::strata_binary()?.display()
    );
    let (done, text) = strata_says(Command::new("/bin/bash").arg("-c").arg(script))?;
    assert!(done.status.success(), "{text}");
    assert!(!text.contains("failed") && !text.contains("rescued") && !text.contains("kept in"));
    Ok(())
}

#[test]
fn without_capabilities_it_says_which_are_missing() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let binary = public_binary(folder.path())?;
    let mut command = Command::new(places::required("setpriv", "util-linux")?);
    let dropped = "-bpf,-perfmon,-sys_admin,-sys_ptrace";
    command
        .args([format!("--bounding-set={dropped}"), format!("--inh-caps={dropped}")])
        .arg(binary);
    command.args(["record", "--duration", "1"]).current_dir(folder.path());
    let (done, text) = strata_says(&mut command)?;
    assert!(!done.status.success());
    assert!(text.to_lowercase().contains("cap_"), "the message names no capability");
    Ok(())
}

#[test]
fn without_btf_it_works_or_says_so() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let script = format!(
        "mount -t tmpfs none /sys/kernel/btf && exec {} record --duration 1 -o {}/p.pb.gz",
        places::strata_binary()?.display(),
        folder.path().display()
    );
    let mut command = Command::new(places::required("unshare", "util-linux")?);
    command.args(["--mount", "/bin/sh", "-c", &script]).current_dir(folder.path());
    let (done, text) = strata_says(&mut command)?;
    assert!(done.status.success() || text.contains("BTF"), "the message does not name BTF");
    if done.status.success() {
        pprof::read(&folder.path().join("p.pb.gz"))?.stacks()?;
    }
    assert!(!text.contains('\x1b'), "colours were printed although there is no terminal");
    Ok(())
}

#[test]
fn an_output_folder_that_is_not_there_is_named_before_recording() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut command = Command::new(places::strata_binary()?);
    command.args(["record", "--duration", "1", "-o", "/proc/no/such/folder/p.pb.gz"]);
    let (done, text) = strata_says(&mut command)?;
    assert!(!done.status.success() && text.contains("/proc/no/such/folder"));
    Ok(())
}

#[test]
fn an_unknown_format_is_refused_with_the_known_ones() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut command = Command::new(places::strata_binary()?);
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("profile.unknown");
    command.args(["record", "--duration", "1", "-o"]).arg(&output);
    let (done, text) = strata_says(&mut command)?;
    assert!(
        !done.status.success() && text.contains(".pb.gz") && text.contains(".folded"),
        "{text}"
    );
    assert!(!output.exists());
    Ok(())
}

#[test]
fn a_dead_pid_is_named() -> Result<()> {
    let _machine = machine::beside_others()?;
    let ended = Running::start(Path::new("/bin/true"), &[])?;
    let pid = ended.pid();
    ended.wait(PATIENCE)?;
    for (pid, what) in [(pid.to_string(), "ended"), ("999999999".to_string(), "impossible")] {
        let mut command = Command::new(places::strata_binary()?);
        command.args(["record", "--duration", "1", "--pid", &pid]);
        let (done, text) = strata_says(&mut command)?;
        assert!(!done.status.success() && text.contains(&pid), "{what}");
    }
    Ok(())
}

/// A small tmpfs, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn with_space_for(kilobytes: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        rustix::mount::mount("none", folder.path(), "tmpfs", MountFlags::empty(), c"size=64k")?;
        let filler = vec![7u8; (64 - kilobytes) << 10];
        std::fs::write(folder.path().join("filler"), filler)?;
        Ok(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_costs_only_the_file_on_it() -> Result<()> {
    let _machine = machine::beside_others()?;
    let disk = SmallDisk::with_space_for(4)?;
    let folder = tempfile::tempdir()?;
    let good = folder.path().join("good.pb.gz");
    let mut command = Command::new(places::strata_binary()?);
    command.args(["record", "--frequency", "997", "-o"]).arg(disk.0.path().join("full.svg"));
    command.arg("-o").arg(&good).arg("--").arg(targets::c("shares").build()?).arg("1.5");
    command.env("STRATA_TARGET_CLOCK", "cpu");
    let (done, text) = strata_says(&mut command)?;
    assert!(!done.status.success(), "a file was lost silently");
    assert!(
        text.contains("No space left") && text.contains("full.svg"),
        "the message does not say what happened"
    );
    let stacks = pprof::read(&good)?.stacks()?;
    println!("the other file has {} samples", stacks.total());
    assert!(stacks.of_comm("shares").total() > 200, "the other file was lost, too");
    let half_written = disk.0.path().join("full.svg");
    assert!(
        !half_written.exists() || std::fs::metadata(half_written)?.len() == 0,
        "half a file was left behind"
    );
    Ok(())
}

#[test]
fn crafted_unwind_tables_hurt_only_their_own_process() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let program = targets::c("shares").build()?;
    let mut hostile = Vec::new();
    let mut programs: Vec<PathBuf> = Vec::new();
    for seed in 1..=6u64 {
        let mut copy = ElfCopy::of(&program)?;
        match seed {
            // Nothing but garbage, garbage behind a good start, lengths of all ones, zeros.
            1 | 2 => copy.overwrite_section(".eh_frame", 0, garbage(seed))?,
            3 => copy.overwrite_section(".eh_frame", 32, garbage(seed))?,
            4 => copy.overwrite_section(".eh_frame", 0, |_| 0xff)?,
            5 => copy.overwrite_section(".eh_frame_hdr", 0, garbage(seed))?,
            _ => copy.claim_section_size(".eh_frame", u64::MAX - 4096)?,
        }
        if seed % 2 == 0 {
            copy.overwrite_section(".symtab", 24, garbage(seed))?;
            copy.claim_section_size(".strtab", 1 << 60)?;
        }
        programs.push(copy.write(&folder.path().join(format!("crafted{seed}")))?);
    }
    for program in &programs {
        hostile.push(Running::start(program, &["300"])?);
    }
    let good = Running::start(&program, &["300"])?;
    let mut pids: Vec<i32> = hostile.iter().map(Running::pid).collect();
    pids.push(good.pid());
    let recorded = strata::record()?.frequency(997).start()?.finish_when_used(&pids, 0.5)?;
    let stacks = recorded.stacks()?;
    for (index, target) in hostile.iter().enumerate() {
        let own = stacks.of_pid(target.pid());
        println!(
            "crafted{}: {} samples, complete {:.3}",
            index + 1,
            own.total(),
            own.completeness().fraction()
        );
        assert!(own.total() > 100, "samples of a crafted program are missing");
    }
    let own = stacks.of_pid(good.pid());
    println!("the good one: {} samples, complete {}", own.total(), own.completeness());
    recorded.print_losses();
    assert!(
        own.total() > 100
            && own.completeness().fraction() > 0.995
            && own.share_with("descend") > 0.99
    );
    assert!(!recorded.ended.stderr.contains("panicked"));
    Ok(())
}

#[test]
fn doctor_says_ok_here_and_what_is_missing_without_root() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut command = Command::new(places::strata_binary()?);
    let (done, text) = strata_says(command.arg("doctor"))?;
    assert!(
        done.status.success() || text.contains("degraded"),
        "doctor is unhappy on a machine that works"
    );
    assert!(text.contains("BTF"));
    let folder = tempfile::tempdir()?;
    let binary = public_binary(folder.path())?;
    let mut command = Command::new(places::required("setpriv", "util-linux")?);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary).arg("doctor");
    let (done, text) = strata_says(command.current_dir("/"))?;
    assert!(!done.status.success() && text.contains("missing"));
    Ok(())
}

/// The link of an iterator of threads, and the iterator.
#[test]
fn doctor_says_that_a_filter_of_system_calls_keeps_threads_from_being_walked() -> Result<()> {
    let _machine = machine::beside_others()?;
    for (what, command) in [("BPF_LINK_CREATE", "28"), ("BPF_ITER_CREATE", "33")] {
        let mut doctor = runtimes::python("refuses_bpf.py", &[command])?;
        let (_, text) = strata_says(doctor.arg(places::strata_binary()?).arg("doctor"))?;
        let line = text.lines().find(|line| line.contains("wall-clock time")).context("no line")?;
        println!("without {what}: {line}");
        assert!(line.contains("degraded") && line.contains("Operation not permitted"), "{line}");
    }
    Ok(())
}

#[test]
fn doctor_explains_one_process() -> Result<()> {
    let _machine = machine::beside_others()?;
    let target =
        Running::start(&targets::c("shares").named("stripped").stripped().build()?, &["30"])?;
    target.wait_until_used(0.05)?; // it has loaded its libraries
    let mut command = Command::new(places::strata_binary()?);
    let (done, text) = strata_says(command.args(["doctor", "--pid", &target.pid().to_string()]))?;
    assert!(done.status.code().is_some());
    assert!(text.contains("stripped") && text.contains("libc"), "its mappings are not listed");
    Ok(())
}

#[test]
fn doctor_misses_nothing_in_the_assemblies_of_a_dotnet_program() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let app = dotnet_running::start(&dotnet, version, "Busy", &["60", "0.2"])?;
        let mut command = Command::new(places::strata_binary()?);
        let words = ["doctor", "--json", "--pid", &app.pid().to_string()];
        let (_, text) = strata_says(command.args(words))?;
        let report: serde_json::Value = serde_json::from_str(&text)?;
        let report = report.get("process").unwrap_or(&report);
        let files = report["files"].as_array().context("no files")?;
        let assemblies = files.iter().filter(|file| file["is_assembly"] == true).count();
        println!("{version}: {assemblies} assemblies of {} files", files.len());
        for file in files {
            let is_dll = file["path"].as_str().is_some_and(|path| path.ends_with(".dll"));
            anyhow::ensure!(
                !is_dll || (file["is_assembly"] == true && file["state"] == "ok"),
                "{version}: {file}"
            );
            anyhow::ensure!(!file.to_string().contains("not an ELF file") || is_dll, "{file}");
        }
    }
    Ok(())
}
