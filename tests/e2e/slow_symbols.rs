//! Slow symbolization delays the profile of that process only.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use strata_tests::backends::{self, Received};
use strata_tests::collector::Collector;
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::fuse::SilentFileSystem;
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::{Version, dotnet};
use strata_tests::stacks::Stacks;
use strata_tests::{machine, targets};

const PERIOD: Duration = Duration::from_secs(2);
/// Just within the time limit of opening a file of such a file system.
const SLOW: Duration = Duration::from_millis(4_900);

fn of_service(collector: &Collector, service: &str) -> Vec<Received> {
    let received = backends::pyroscope(&collector.requests()).unwrap_or_default();
    received.into_iter().filter(|one| one.label("service_name") == service).collect()
}

/// A program that sees debug files in a file system that answers late.
fn slow_program(files: &SilentFileSystem) -> Result<Running> {
    std::fs::create_dir_all("/usr/lib/debug")?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg("mount --bind \"$0\" /usr/lib/debug && exec \"$1\" 600");
    command.arg(files.folder()).arg(targets::c("shares").named("late").stripped().build()?);
    command.env("DD_SERVICE", "late");
    Running::from_command(command)
}

/// The share of a known function in each profile. The first one may have begun just before a flush: its few samples
/// are mostly of the program's start.
fn named_shares(profiles: &[Received]) -> Result<Vec<f64>> {
    const ENOUGH: u64 = 50;
    let stacks: Vec<Stacks> =
        profiles.iter().map(|one| one.profile.stacks()).collect::<Result<_>>()?;
    let judged = stacks.iter().filter(|stacks| stacks.total() >= ENOUGH);
    Ok(judged.map(|stacks| stacks.share_with("burn_fifty")).collect())
}

/// The share of stacks with a frame of which not even the file is known.
fn without_a_module(stacks: &Stacks) -> f64 {
    stacks.share_that(|stack| {
        let is_frame = |name: &str| name != "[incomplete]";
        let mut frames = stack.frames.iter().filter(|frame| is_frame(&frame.name));
        frames.any(|frame| !frame.is_kernel() && frame.file.is_empty())
    })
}

/// Enough for each to be a file of its own that every flush reads.
const MODULES: usize = 1_000;

/// A program that spends its time in many libraries, and what has them.
fn program_of_many_modules() -> Result<(Running, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let plugin = std::fs::read(targets::plugin()?)?;
    for number in 0..MODULES {
        std::fs::write(folder.path().join(format!("module{number}.so")), &plugin)?;
    }
    let mut command = Command::new(targets::c("modules").build()?);
    command.arg(folder.path()).arg("600").env("DD_SERVICE", "many");
    Ok((Running::from_command(command)?, folder))
}

/// A daemon that samples so often in a second and attaches at once, and the server that it sends to every
/// [`PERIOD`].
fn daemon_sending(frequency: u32) -> Result<(Daemon, Collector)> {
    let mut daemon = Daemon::prepared()?;
    let (collector, push) = Collector::on_port(0)?;
    daemon.configure(&format!(
        "[sampling]\nfrequency = {frequency}\n[dotnet]\nage = \"0s\"\n\
         [exporter.pyroscope]\nurl = \"http://{push}\"\nperiod = \"{}s\"\n",
        PERIOD.as_secs()
    ))?;
    daemon.start()?;
    Ok((daemon, collector))
}

/// Of one process, each a file of its own.
const SLOW_FILES: usize = 512;

/// What of a slow file takes its time.
#[derive(Clone, Copy, Debug)]
enum SlowPart {
    Opening,
    FirstRead,
}

/// A process whose many files are slow holds up neither a process on a local disk nor one whose files
/// are opened by the same helper, because they lie in such a file system, too.
fn slow_files_hold_up_no_other(part: SlowPart) -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::c("shares").build()?;
    let names = (0..SLOW_FILES).map(|number| format!("module{number}.so")).collect();
    let slow = SilentFileSystem::with_files(std::fs::read(targets::plugin()?)?, names)?;
    let network = SilentFileSystem::with_program(&program)?;
    let mut command = Command::new(targets::c("modules").build()?);
    command.arg(slow.folder()).arg("600").env("DD_SERVICE", "hostile");
    let mut hostile = Running::from_command(command)?;
    hostile.wait_for_line(&format!("loaded {SLOW_FILES}"), PATIENCE)?;
    match part {
        SlowPart::Opening => slow.answer_openings_after(SLOW),
        SlowPart::FirstRead => slow.answer_first_reads_after(SLOW),
    }
    let (mut daemon, collector) = daemon_sending(997)?;
    // By its first profile it was sampled everywhere: its files are waited for.
    wait_until("the slow files are waited for", PATIENCE, || {
        !of_service(&collector, "hostile").is_empty()
    })?;
    let start = |service: &str, program: &Path| -> Result<Running> {
        let mut command = Command::new(program);
        command.arg("600").env("DD_SERVICE", service);
        Running::from_command(command)
    };
    let _others = (start("local", &program)?, start("network", &network.program())?);
    let named = |service: &str| -> Result<f64> {
        let received = of_service(&collector, service);
        let last = received.last().context("no profile yet")?;
        Ok(last.profile.stacks()?.share_with("burn_fifty"))
    };
    for service in ["local", "network"] {
        wait_until(&format!("{service} has its names"), PATIENCE, || {
            named(service).is_ok_and(|share| share > 0.3)
        })?;
        println!(
            "{part:?}: {service} has its names in profile {}",
            of_service(&collector, service).len()
        );
    }
    let health = daemon.health()?;
    let ended = daemon.end()?;
    assert!(ended.status.success() && health == "ok\n", "{} {}", ended.status, ended.stderr);
    Ok(())
}

#[test]
fn hundreds_of_files_that_open_slowly_hold_up_no_other_process() -> Result<()> {
    slow_files_hold_up_no_other(SlowPart::Opening)
}

#[test]
fn hundreds_of_files_that_are_read_slowly_hold_up_no_other_process() -> Result<()> {
    slow_files_hold_up_no_other(SlowPart::FirstRead)
}

/// Each takes less than the time limit of reading a process; all together, far more than a process's
/// identity waits for its environment.
const SLOW_ENVIRONMENT: Duration = Duration::from_millis(100);
const SLOW_PROCESSES: usize = 300;

#[test]
fn hundreds_of_slow_environments_of_one_user_delay_no_other_users_identity() -> Result<()> {
    let _machine = machine::alone()?;
    let names = (0..SLOW_PROCESSES).map(|number| format!("file{number}")).collect();
    let files = SilentFileSystem::with_files(vec![0; 4096], names)?;
    let (mut daemon, collector) = daemon_sending(997)?;
    files.answer_writes_after(SLOW_ENVIRONMENT);
    let mut command = Command::new(targets::c("slow_environ").build()?);
    command.arg(files.folder()).args([&SLOW_PROCESSES.to_string(), "1000", "600"]);
    let mut slow = Running::from_command(command)?;
    slow.wait_for_line("ready", PATIENCE)?;
    let program = targets::c("shares").named("identified").build()?;
    let mut command = Command::new(program);
    command.arg("600").env("DD_SERVICE", "bystander").uid(1001);
    let _bystander = Running::from_command(command)?;
    let name = |service| of_service(&collector, service).len();
    wait_until("its profiles arrive", PATIENCE, || name("bystander") + name("identified") >= 3)?;
    let (identified, not) = (name("bystander"), name("identified"));
    println!("{identified} profiles of the bystander, {not} of its program's name");
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert!(identified >= 3 && not == 0, "decided without its environment");
    Ok(())
}

#[test]
fn a_target_with_a_thousand_modules_delays_no_other_flush() -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::c("shares").build()?;
    let (_many, _folder) = program_of_many_modules()?;
    let (mut daemon, collector) = daemon_sending(997)?;
    let mut command = Command::new(&program);
    command.arg("600").env("DD_SERVICE", "bystander");
    let _bystander = Running::from_command(command)?;
    wait_until("some periods have passed", PATIENCE, || {
        daemon.health().is_ok_and(|health| health == "ok\n")
            && of_service(&collector, "bystander").len() >= 6
            && of_service(&collector, "many").len() >= 6
    })?;
    let bystander = of_service(&collector, "bystander");
    let many = of_service(&collector, "many");
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let mut modules = BTreeSet::new();
    for one in &many {
        for stack in &one.profile.stacks()?.stacks {
            let frames = stack.frames.iter().filter(|frame| frame.file.contains("/module"));
            modules.extend(frames.map(|frame| frame.file.clone()));
        }
    }
    let lengths: Vec<f64> =
        bystander.iter().map(|one| one.profile.duration_nanos as f64 / 1e9).collect();
    let named = named_shares(&bystander)?;
    let last = many.last().context("its profiles")?.profile.stacks()?;
    let entries = last.share_with("plugin_entry");
    println!(
        "{} modules sampled, {entries:.3} named at the end; bystander: {lengths:.1?} s, named {named:.2?}",
        modules.len()
    );
    assert!(modules.len() > MODULES / 2, "{} modules", modules.len());
    // A process has 512 files opened at once, then 32 a second; frames in the others have their module.
    assert!(entries > 0.3 && without_a_module(&last) < 0.05, "{entries}");
    assert!(lengths.iter().all(|length| *length < SLOW.as_secs_f64()), "{lengths:?}");
    assert!(named.len() >= 5 && named.iter().all(|share| *share > 0.3), "{named:?}");
    Ok(())
}

/// What is sent of the process `late`, while a bystander's profiles go on: a flush that waits for one of the
/// late process's files is as long as that takes, and the next one too.
fn late_beside_bystander(daemon: &mut Daemon, collector: &Collector) -> Result<Vec<Received>> {
    let mut command = Command::new(targets::c("shares").build()?);
    command.arg("600").env("DD_SERVICE", "bystander");
    let _bystander = Running::from_command(command)?;
    wait_until("some periods have passed", PATIENCE, || {
        // A status that does not answer, or is not healthy, ends the test.
        daemon.health().is_ok_and(|health| health == "ok\n")
            && of_service(collector, "bystander").len() >= 6
            && !of_service(collector, "late").is_empty()
    })?;
    let late = of_service(collector, "late");
    let bystander = of_service(collector, "bystander");
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let lengths: Vec<f64> =
        bystander.iter().map(|one| one.profile.duration_nanos as f64 / 1e9).collect();
    let named = named_shares(&bystander)?;
    println!("late: {} profiles; bystander: {lengths:.1?} s, named {named:.2?}", late.len());
    assert!(lengths.iter().all(|length| *length < SLOW.as_secs_f64()), "{lengths:?}");
    assert!(named.len() >= 5 && named.iter().all(|share| *share > 0.3), "{named:?}");
    Ok(late)
}

/// Names, signatures and lines of its methods are in a file that answers late however it is read.
#[test]
fn a_dotnet_program_whose_assembly_answers_after_seconds_delays_no_other_flush() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let command = dotnet.program(Version::V9, "Shares", &[])?;
    let words: Vec<_> = command.get_args().collect();
    let &[_exec, assembly] = words.as_slice() else { bail!("unexpected: {command:?}") };
    let assembly = Path::new(assembly);
    let files = SilentFileSystem::with_files(std::fs::read(assembly)?, vec!["Shares.dll".into()])?;
    let mut late = Command::new(command.get_program());
    late.args(["exec", "--runtimeconfig"]).arg(assembly.with_extension("runtimeconfig.json"));
    late.arg(files.folder().join("Shares.dll")).arg("600").env("DD_SERVICE", "late");
    let late = Running::from_command(late)?;
    late.wait_until_used(1.0)?;
    files.answer_openings_after(SLOW);
    files.answer_first_reads_after(SLOW);
    let (mut daemon, collector) = daemon_sending(499)?;
    let sent = late_beside_bystander(&mut daemon, &collector)?;
    // The runtime knows the names of its methods; the file has no part in that.
    // Code that is compiled anew while its lines are read has new places, which have names, too.
    let below: Vec<f64> = sent
        .iter()
        .map(|one| Ok(one.profile.stacks()?.share_with("Shares.Main")))
        .collect::<Result<_>>()?;
    println!("late: {below:.3?} below its main method");
    assert!(below.iter().all(|share| *share > 0.9), "{below:.3?}");
    Ok(())
}

#[test]
fn a_target_whose_files_answer_after_seconds_delays_no_other_flush() -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::c("shares").build()?;
    let files = SilentFileSystem::with_program(&program)?;
    let (mut daemon, collector) = daemon_sending(499)?;
    let _late = slow_program(&files)?;
    files.answer_names_after(SLOW);
    let late = late_beside_bystander(&mut daemon, &collector)?;
    for one in &late {
        let nowhere = without_a_module(&one.profile.stacks()?);
        assert!(nowhere < 0.05, "frames without a name have their module: {nowhere}");
    }
    Ok(())
}
