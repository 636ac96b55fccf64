//! A program that throws, contends, waits, allocates in bursts, collects garbage, unloads code and forks,
//! all at once, survives bridges that come and go and kinds of events that are switched on and off
//! meanwhile, and nothing of strata's adds up in it.

use std::fs;
use std::ops::Range;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use strata_bridge_protocol::control::wish;
use strata_clr::session::{Budget, Life, Loss, SessionOptions};
use strata_clr::{AttachOptions, Session, attach};
use strata_tests::daemon::Daemon;
use strata_tests::running::{Ended, Running, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::strata::record;
use strata_tests::{machine, targets};

use crate::dotnet_events::REPORTED;
use crate::dotnet_running::{Clr, PATIENCE, Wrongs, count_of, each, start_command};
use crate::dotnet_unloading::{counts, versions};

const EVENTS: &str = "exceptions,locks,allocations,heap,gc,wait_handles";

/// How often kinds are switched on and off while a bridge is attached.
const SWITCHES: u64 = 5;

fn command_of(dotnet: &DotNet, version: Version, seconds: &str) -> Result<Command> {
    let plugin = dotnet.library(version, "UnloadingPlugin")?;
    let plugin = plugin.to_str().context("a path that is text")?;
    let mut command = dotnet.program(version, "Storms", &[seconds, plugin])?;
    let forks = targets::c("forks_inside").library().build()?;
    command.env("LD_PRELOAD", forks).env("STRATA_TEST_FORKS", "50");
    Ok(command)
}

fn start_storm(dotnet: &DotNet, version: Version) -> Result<Running> {
    let app = start_command(command_of(dotnet, version, "7200")?)?;
    wait_until("it has made some turns", PATIENCE, || {
        counts(&app).is_ok_and(|(turns, _)| turns >= 1_000)
    })?;
    Ok(app)
}

/// It is alive, goes on, and nothing in it went wrong.
fn check_unharmed(version: Version, how: &str, app: &mut Running, wrongs: &mut Wrongs) {
    let before = counts(app).map_or(0, |(turns, _)| turns);
    let goes_on = wait_until("it goes on", PATIENCE, || {
        !app.is_alive() || counts(app).is_ok_and(|(turns, _)| turns > before + 50)
    });
    let (alive, counted) = (app.is_alive(), counts(app));
    let printed = app.printed();
    let forks = printed.lines().rev().find(|line| line.starts_with("forks ")).unwrap_or("no forks");
    println!("{version}, {how}: alive {alive}, turns and failures {counted:?}, {forks}");
    wrongs.unless(alive && goes_on.is_ok() && forks != "no forks", || {
        format!("{version}, {how}: alive {alive}, {goes_on:?}, {forks}")
    });
    for line in printed.lines().filter(|line| line.starts_with("failure")).take(5) {
        wrongs.unless(false, || format!("{version}, {how}: {line}"));
    }
}

/// What could add up in a program.
#[derive(Clone, Copy, Debug)]
struct Held {
    threads: usize,
    files: usize,
    mappings: usize,
    /// Those of the bridge and of its memory.
    of_strata: usize,
    kibibytes: u64,
}

impl Held {
    fn of(pid: i32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.context("no VmRSS")?.trim().trim_end_matches(" kB");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        Ok(Self {
            threads: count_of(pid, "task")?,
            files: count_of(pid, "fd")?,
            mappings: maps.lines().count(),
            of_strata: maps.lines().filter(|line| line.contains("strata")).count(),
            kibibytes: resident.parse()?,
        })
    }
}

/// One figure of it.
type Part = fn(&Held) -> u64;

/// The first and the last quarter of what was held after each cycle: the first cycle loads the library
/// and starts the runtime's own thread of events.
fn check_flat(version: Version, held: &[Held], wrongs: &mut Wrongs) {
    let quarter = (held.len() / 4).max(1);
    let least = |range: Range<usize>, part: Part| {
        held.get(range).unwrap_or_default().iter().map(part).min().unwrap_or(0)
    };
    let most = |part: Part| held.iter().take(quarter + 1).map(part).max().unwrap_or(0);
    let parts: [(&str, Part, f64, u64); 5] = [
        ("threads", |held| held.threads as u64, 1.0, 1),
        ("files", |held| held.files as u64, 1.0, 1),
        ("mappings", |held| held.mappings as u64, 1.25, 50),
        ("mappings of strata", |held| held.of_strata as u64, 1.0, 0),
        ("KiB", |held| held.kibibytes, 1.25, 32 << 10),
    ];
    for (name, part, times, more) in parts {
        let (first, last) = (most(part), least(held.len() - quarter..held.len(), part));
        println!("{version}: {name}: {first} at first, {last} in the end");
        let limit = (first as f64 * times) as u64 + more;
        wrongs.unless(last <= limit, || format!("{version}: {name} grow: {first}, then {last}"));
    }
}

/// Totals of many attaches.
#[derive(Default)]
struct Attaches {
    switches: u64,
    obeyed: u64,
    given_up: u64,
    panics: u64,
    slowest: Duration,
}

impl Attaches {
    /// Attaches, switches kinds on and off, and leaves, by a detach or as if killed.
    fn once(&mut self, pid: u32, number: u64) -> Result<()> {
        let began = Instant::now();
        let options = SessionOptions { owner_name: "test".to_owned(), ..Default::default() };
        let mut session = attach(pid, &AttachOptions { session: options, time: PATIENCE })?.session;
        for switch in 0..SWITCHES {
            // Each kind in a rhythm of its own; all of them in the first, none in the last.
            let mixed = (number * SWITCHES + switch).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
            let wishes = match switch {
                0 => wish::EVENTS,
                _ if switch + 1 == SWITCHES => 0,
                _ => mixed & wish::EVENTS,
            };
            session.wish_for_events(wishes | wish::SNAPSHOTS)?;
            self.switches += 1;
            // Long enough for windows of allocations now and then.
            self.read_for(
                &mut session,
                Duration::from_millis(if mixed & 7 == 0 { 400 } else { 30 }),
            )?;
        }
        self.given_up += session.status().lost(Loss::UnloadNotAwaited);
        self.panics += session.status().lost(Loss::Panic);
        // With events on, in two of three.
        if !number.is_multiple_of(3) {
            session.wish_for_events(wish::EVENTS)?;
        }
        if number.is_multiple_of(4) {
            session.release()?;
        } else if let Err(error) = session.detach_and_wait(PATIENCE, Budget::default(), |_| {}) {
            bail!("{error}: {:?}", session.status());
        }
        self.slowest = self.slowest.max(began.elapsed());
        Ok(())
    }

    fn read_for(&mut self, session: &mut Session, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let read = session.look_and_poll(Budget::default())?;
            if read.life != Life::Running {
                bail!("the bridge is {:?}", read.life);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.obeyed += u64::from(session.is_obeyed());
        Ok(())
    }
}

fn attaches() -> Result<u64> {
    match std::env::var("STRATA_TEST_ATTACHES") {
        Ok(number) => Ok(number.parse()?),
        Err(_) => Ok(machine::short_or_long(6, 200)),
    }
}

#[test]
fn a_storm_is_unharmed_by_bridges_that_come_and_go_with_every_kind() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let wanted = attaches()?;
    let versions = versions(&dotnet)?;
    let some = machine::short_or_long(versions.get(1..3).unwrap_or(&versions), &versions);
    each(some, 2, |version, wrongs| {
        let mut app = start_storm(&dotnet, version)?;
        let pid = app.pid();
        let mut seen = Attaches::default();
        let mut held = Vec::new();
        for number in 0..wanted {
            if let Err(error) = seen.once(u32::try_from(pid)?, number) {
                wrongs.unless(false, || format!("{version}: attach {number}: {error:#}"));
                break;
            }
            held.push(Held::of(pid)?);
        }
        println!(
            "{version}: {} attaches, {} switches, {} obeyed at once, slowest {:.1?}, {:?}",
            held.len(),
            seen.switches,
            seen.obeyed,
            seen.slowest,
            held.last()
        );
        check_unharmed(version, "after all", &mut app, wrongs);
        wrongs.unless(seen.given_up == 0 && seen.panics == 0, || {
            format!("{version}: {} unloads not awaited, {} panics", seen.given_up, seen.panics)
        });
        wrongs.unless(seen.obeyed > 0, || format!("{version}: no wish was obeyed"));
        if app.is_alive() && held.len() > 1 {
            check_flat(version, &held, wrongs);
        }
        Ok(())
    })
}

#[test]
fn a_storm_is_unharmed_by_recordings_that_are_killed_and_the_next_reports_every_kind() -> Result<()>
{
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let versions = versions(&dotnet)?;
    let some = machine::short_or_long(versions.get(2..3).unwrap_or(&versions), &versions);
    each(some, 1, |version, wrongs| {
        let mut app = start_storm(&dotnet, version)?;
        let pid = app.pid();
        let mut held = Vec::new();
        // Of fewer, one thread or file that is left by each would not show.
        for number in 0..machine::short_or_long(5, 30) {
            let mut killed = record()?.pid(pid).option("-e", EVENTS).flag("-v").start()?;
            killed.running().wait_for_log(REPORTED, PATIENCE)?;
            std::thread::sleep(Duration::from_millis(number * 37 % 700));
            killed.running().signal(Signal::KILL)?;
            drop(killed);
            held.push(Held::of(pid)?);
        }
        let mut last = record()?.pid(pid).option("-e", EVENTS).flag("-v").start()?;
        last.running().wait_for_log(REPORTED, PATIENCE)?;
        std::thread::sleep(Duration::from_secs(5));
        last.running().signal(Signal::INT)?;
        let recorded = last.finish()?;
        recorded.print_losses();
        let (clr, profile) = (Clr::of(&recorded)?, recorded.profile()?);
        println!("{version}: {clr:?}");
        wrongs.unless(clr.refused.is_empty(), || format!("{version}: {clr:?}"));
        for kind in kinds_of(version) {
            let total = profile.stacks_of(kind).map(|stacks| stacks.total());
            println!("{version}: {kind}: {total:?}");
            // What it keeps is dropped again soon: at the end there may be no sampled object.
            let least = u64::from(*kind != "inuse_space");
            wrongs.unless(matches!(total, Ok(seen) if seen >= least), || {
                format!("{version}: {kind}: {total:?}")
            });
        }
        check_unharmed(version, "after kills", &mut app, wrongs);
        check_flat(version, &held, wrongs);
        Ok(())
    })
}

/// The profile's types of the kinds that a runtime reports.
fn kinds_of(version: Version) -> &'static [&'static str] {
    const ALL: [&str; 6] =
        ["exceptions", "lock_count", "alloc_size", "gc_count", "inuse_space", "wait_handle_count"];
    match version {
        Version::V3_1 => ALL.get(..1),
        Version::V8 => ALL.get(..5),
        _ => Some(&ALL[..]),
    }
    .unwrap_or_default()
}

#[test]
fn programs_that_exit_in_the_middle_of_their_events_exit_as_they_would() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(
        "[sampling]\nfrequency = 19\ntypes = [\"cpu\", \"exceptions\", \"locks\", \"allocations\", \"heap\", \"gc\", \"wait_handles\"]\n[dotnet]\nage = \"0s\"\n",
    )?;
    daemon.start()?;
    let versions = versions(&dotnet)?;
    let mut wrongs = Wrongs::default();
    for turn in 0..machine::short_or_long(1, 20) {
        let apps = versions
            .iter()
            .map(|version| {
                let seconds = ["2", "3.5", "5"][(turn + *version as usize) % 3];
                Ok((*version, Running::from_command(command_of(&dotnet, *version, seconds)?)?))
            })
            .collect::<Result<Vec<_>>>()?;
        for (version, app) in apps {
            let Ended { status, stdout, stderr } = app.wait(PATIENCE)?;
            let failures: Vec<&str> =
                stdout.lines().filter(|line| line.starts_with("failure")).collect();
            println!("{version}: {status}, {:?}", stdout.lines().last());
            wrongs.unless(status.success() && failures.is_empty(), || {
                format!("{version}: {status}, {failures:?}, {stderr}")
            });
        }
    }
    let status = daemon.status()?;
    println!("{} {}", status["dotnet"], status["sampling"]["losses"]);
    let attached = status["dotnet"]["attached"].as_u64();
    wrongs.unless(attached >= Some(versions.len() as u64), || format!("{attached:?} attached"));
    wrongs.unless(daemon.running()?.is_alive(), || "the daemon ended".to_owned());
    daemon.end()?;
    wrongs.none();
    Ok(())
}
