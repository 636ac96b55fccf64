//! CAP_SYS_ADMIN is kept by a helper alone, which parses nothing that a target wrote, ends with its
//! strata, and is replaced when it dies.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use strata_tests::daemon::{Daemon, attaching_to};
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::strata::record;
use strata_tests::{machine, places, text_outputs};

use crate::dotnet_events::{REPORTED, Target};
use crate::dotnet_running::PATIENCE;

// include/uapi/linux/capability.h.
const DAC_READ_SEARCH: u32 = 2;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const CHECKPOINT_RESTORE: u32 = 40;

/// What the helper keeps.
const KEPT: u64 = 1 << DAC_READ_SEARCH
    | 1 << SYS_PTRACE
    | 1 << SYS_ADMIN
    | 1 << PERFMON
    | 1 << CHECKPOINT_RESTORE;

/// What a thread may do, by its `status` in `/proc`.
#[derive(Debug)]
struct Rights {
    name: String,
    /// Effective and permitted.
    capabilities: u64,
    no_new_privileges: bool,
    is_filtered: bool,
}

impl Rights {
    fn read(path: &str) -> Result<Self> {
        let status = fs::read_to_string(path)?;
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map(str::trim).with_context(|| format!("{path} has no {name}"))
        };
        let set = |name| Ok::<_, anyhow::Error>(u64::from_str_radix(field(name)?, 16)?);
        Ok(Self {
            name: field("Name")?.to_owned(),
            capabilities: set("CapEff")? | set("CapPrm")?,
            no_new_privileges: field("NoNewPrivs")? == "1",
            is_filtered: field("Seccomp")? == "2",
        })
    }

    fn may_administrate(&self) -> bool {
        self.capabilities >> SYS_ADMIN & 1 == 1
    }
}

/// Of each thread of a process.
fn threads_of(pid: i32) -> Result<Vec<Rights>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    let paths = tasks.flatten().map(|task| task.path().join("status"));
    // Threads come and go.
    Ok(paths.filter_map(|path| Rights::read(&path.to_string_lossy()).ok()).collect())
}

/// The processes below one, by pid.
pub fn helpers_of(pid: i32) -> Result<BTreeMap<i32, String>> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        let parent = rest.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
        let name = name.split_once('(').map_or("", |(_, name)| name).to_owned();
        if let Some(parent) = parent {
            parents.insert(pid, (parent, name));
        }
    }
    let is_below = |mut of: i32| {
        for _ in 0..8 {
            match parents.get(&of) {
                Some((parent, _)) if *parent == pid => return true,
                Some((parent, _)) => of = *parent,
                None => return false,
            }
        }
        false
    };
    let below = parents.iter().filter(|(of, _)| is_below(**of));
    Ok(below.map(|(of, (_, name))| (*of, name.clone())).collect())
}

/// One that has just been forked has its parent's name for a moment.
fn helper(pid: i32, name: &str) -> Result<i32> {
    let mut all = BTreeMap::new();
    let mut found = None;
    let there = wait_until("a helper", PATIENCE, || {
        all = helpers_of(pid).unwrap_or_default();
        found = all.iter().find(|(_, of)| *of == name).map(|(pid, _)| *pid);
        found.is_some()
    });
    there.and(found.context("a helper")).with_context(|| format!("no {name} among {all:?}"))
}

/// The processes that attach probes.
const BROKER: [&str; 3] = ["strata-keeper", "strata-broker", "strata-attach"];

/// Checks what strata and each of its helpers may do. Those that have just been started are as root
/// starts them, for a moment.
pub fn check(pid: i32) -> Result<()> {
    let wrong = || -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        for thread in threads_of(pid)? {
            if thread.may_administrate() {
                wrong.push(format!("strata's thread {thread:x?}"));
            }
        }
        for of in helpers_of(pid)?.keys() {
            let Ok(rights) = Rights::read(&format!("/proc/{of}/status")) else { continue };
            let is_right = match BROKER.contains(&rights.name.as_str()) {
                true => {
                    rights.may_administrate()
                        && rights.capabilities & !KEPT == 0
                        && rights.no_new_privileges
                        && rights.is_filtered
                }
                false => !rights.may_administrate(),
            };
            if !is_right {
                wrong.push(format!("{of}: {rights:x?}"));
            }
        }
        Ok(wrong)
    };
    let mut last = Vec::new();
    let holds = wait_until("only the broker has CAP_SYS_ADMIN", Duration::from_secs(20), || {
        last = wrong().unwrap_or_else(|error| vec![format!("{error:#}")]);
        last.is_empty()
    });
    holds.with_context(|| last.join("\n"))?;
    for name in ["strata-keeper", "strata-broker"] {
        println!("{:x?}", Rights::read(&format!("/proc/{}/status", helper(pid, name)?))?);
    }
    Ok(())
}

fn kill(pid: i32) -> Result<()> {
    kill_process(Pid::from_raw(pid).context("a pid")?, Signal::KILL).context("it is killed")
}

fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().next());
    state.is_some_and(|state| !matches!(state, "Z" | "X"))
}

const SERVICES: [&str; 3] = ["first", "second", "third"];

/// A daemon that records the exceptions of [`SERVICES`].
fn daemon() -> Result<Daemon> {
    let daemon = Daemon::prepared()?;
    let rule = |service: &&str| {
        format!(
            "[[rule]]\nmatch = {{ env = {{ DD_SERVICE = \"{service}\" }} }}\n\
             types = [\"cpu\", \"wall\", \"exceptions\"]\n"
        )
    };
    let rules: String = SERVICES.iter().map(rule).collect();
    daemon.configure(&format!("{}{rules}", attaching_to(&SERVICES)))?;
    Ok(daemon)
}

/// Runs a target that throws, once its events are reported; the number that it has counted.
fn throws(daemon: &mut Daemon, dotnet: &DotNet, service: &str) -> Result<u64> {
    let target = Target::start_as(dotnet, Version::V9, "paced", "500", Some(service))?;
    let reported = format!("{REPORTED} pid={}", target.pid());
    daemon.running()?.wait_for_log(&reported, PATIENCE)?;
    target.go()?;
    Ok(target.counts()?.values().sum())
}

fn seen(daemon: &Daemon, service: &str) -> Result<u64> {
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", service, "--type", "exceptions", "-o", "seen.folded"]);
    command.arg("--store").arg(daemon.store()).current_dir(daemon.folder());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    assert!(ended.status.success(), "{}", ended.stderr);
    let stacks = text_outputs::folded(&fs::read_to_string(daemon.folder().join("seen.folded"))?)?;
    Ok(stacks.iter().map(|stack| stack.count).sum())
}

/// Kills the broker, and then its keeper: events of processes that start afterwards arrive all the
/// same.
#[test]
fn a_helper_alone_may_administrate_and_is_replaced_when_it_is_killed() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut daemon = daemon()?;
    daemon.start()?;
    let pid = daemon.pid()?;
    let mut thrown = Vec::new();
    for (service, dies) in SERVICES.into_iter().zip(["strata-broker", "strata-keeper", ""]) {
        thrown.push(throws(&mut daemon, &dotnet, service)?);
        check(pid)?;
        let names: Vec<String> = helpers_of(pid)?.into_values().collect();
        assert!(names.iter().any(|name| name == "strata-threads"), "{names:?}");
        assert!(daemon.status()?["broker"]["trouble"].is_null());
        if !dies.is_empty() {
            let before = daemon.status()?["broker"]["restarts"].as_u64();
            kill(helper(pid, dies)?)?;
            wait_until("another one serves", PATIENCE, || {
                daemon.status().is_ok_and(|status| {
                    status["broker"]["restarts"].as_u64() > before
                        && status["broker"]["trouble"].is_null()
                }) && helper(pid, "strata-broker").is_ok()
            })?;
        }
    }
    let metrics = daemon.metrics()?;
    assert!(metrics.lines().any(|line| line == "strata_broker_restarts_total 2"), "{metrics}");
    assert!(metrics.lines().any(|line| line == "strata_broker_failing 0"), "{metrics}");
    daemon.end()?;
    for (service, thrown) in SERVICES.into_iter().zip(thrown) {
        let seen = seen(&daemon, service)?;
        println!("{service}: {thrown} thrown, {seen} seen");
        assert!(thrown > 0);
        assert_eq!(seen, thrown, "{service}");
    }
    Ok(())
}

/// As in the unit for systemd, nothing that strata executes has more rights than strata has then.
#[test]
fn without_a_way_to_replace_the_keeper_the_status_says_so() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = daemon()?;
    daemon.start_without_new_privileges()?;
    let pid = daemon.pid()?;
    check(pid)?;
    // The keeper replaces a broker.
    kill(helper(pid, "strata-broker")?)?;
    let broker = |daemon: &Daemon| daemon.status().map(|status| status["broker"].clone());
    wait_until("another one serves", PATIENCE, || {
        broker(&daemon).is_ok_and(|broker| broker["restarts"] == 1 && broker["trouble"].is_null())
    })?;
    check(pid)?;
    kill(helper(pid, "strata-keeper")?)?;
    wait_until("the status says what to do", PATIENCE, || {
        broker(&daemon).is_ok_and(|broker| {
            broker["trouble"].as_str().is_some_and(|trouble| trouble.contains("restart strata"))
        })
    })?;
    assert!(daemon.metrics()?.lines().any(|line| line == "strata_broker_failing 1"));
    assert!(daemon.health()?.starts_with("ok\n"), "it samples all the same");
    let threads = threads_of(pid)?;
    assert!(threads.iter().all(|thread| !thread.may_administrate()), "{threads:x?}");
    daemon.end()?;
    Ok(())
}

/// Kills each broker as soon as it is there: the log and the status say so, until one goes on.
#[test]
fn a_broker_that_dies_again_and_again_is_reported_once_and_counted() -> Result<()> {
    const KILLS: u64 = 5;
    const AGAIN: &str = "ends again and again";
    let _machine = machine::beside_others()?;
    let mut daemon = daemon()?;
    daemon.start_without_new_privileges()?;
    let pid = daemon.pid()?;
    let broker = |daemon: &Daemon| daemon.status().map(|status| status["broker"].clone());
    for kills in 1..=KILLS {
        kill(helper(pid, "strata-broker")?)?;
        wait_until("another one serves", PATIENCE, || {
            broker(&daemon).is_ok_and(|broker| broker["restarts"] == kills)
        })?;
    }
    let trouble = broker(&daemon)?["trouble"].as_str().unwrap_or_default().to_owned();
    assert!(trouble.contains(AGAIN), "{trouble}");
    wait_until("the last one goes on", PATIENCE, || {
        broker(&daemon).is_ok_and(|broker| broker["trouble"].is_null())
    })?;
    let log = daemon.end()?.stderr;
    assert_eq!(log.lines().filter(|line| line.contains(AGAIN)).count(), 1, "{log}");
    Ok(())
}

#[test]
fn a_helper_ends_with_its_strata_however_that_ends() -> Result<()> {
    let _machine = machine::beside_others()?;
    for is_killed in [true, false] {
        let mut daemon = daemon()?;
        daemon.start()?;
        let pid = daemon.pid()?;
        let helpers = [helper(pid, "strata-keeper")?, helper(pid, "strata-broker")?];
        // A service manager asks every process of a service to end, and this one ends last.
        for helper in helpers {
            kill_process(Pid::from_raw(helper).context("a pid")?, Signal::TERM)?;
        }
        std::thread::sleep(Duration::from_millis(300));
        assert!(helpers.into_iter().all(is_running));
        if is_killed {
            daemon.kill()?;
        } else {
            daemon.end()?;
        }
        wait_until("its helpers have ended", Duration::from_secs(5), || {
            !helpers.into_iter().any(is_running)
        })?;
    }
    Ok(())
}

/// The level at which Debian's and Ubuntu's kernels ask for CAP_SYS_ADMIN to open any event. This
/// kernel may not, and takes the level all the same.
#[test]
fn at_a_stricter_perf_event_paranoid_the_helper_keeps_it_too() -> Result<()> {
    let _machine = machine::alone()?;
    let level = Level::set("3")?;
    let recording = record()?.seconds(60.0).output("all.folded").start()?;
    let pid = {
        let mut recording = recording;
        let pid = recording.running().pid();
        check(pid)?;
        recording.running().signal(Signal::INT)?;
        recording.finish()?;
        pid
    };
    assert!(!is_running(pid));
    drop(level);
    // Nothing needs it then.
    let mut recording = record()?.seconds(60.0).output("all.folded").start()?;
    let pid = recording.running().pid();
    let names: Vec<String> = helpers_of(pid)?.into_values().collect();
    assert!(!names.iter().any(|name| BROKER.contains(&name.as_str())), "{names:?}");
    let threads = threads_of(pid)?;
    assert!(threads.iter().all(|thread| !thread.may_administrate()), "{threads:x?}");
    recording.running().signal(Signal::INT)?;
    recording.finish()?;
    Ok(())
}

/// A level of `kernel.perf_event_paranoid`, until this is dropped.
struct Level {
    before: String,
}

impl Level {
    const PATH: &str = "/proc/sys/kernel/perf_event_paranoid";

    fn set(level: &str) -> Result<Self> {
        let before = fs::read_to_string(Self::PATH)?;
        fs::write(Self::PATH, level)?;
        Ok(Self { before })
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        let _ = fs::write(Self::PATH, self.before.trim());
    }
}
