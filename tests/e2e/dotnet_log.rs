//! The log of a bridge stays as long as what lives, and every strata still gets the names.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::layout::SEGMENT_SIZE;
use strata_bridge_protocol::owning::Owner;
use strata_bridge_protocol::reader::file;
use strata_bridge_protocol::record::Record;
use strata_clr::session::{Budget, Life, Loss, SessionOptions, State};
use strata_clr::{AttachOptions, Session, Target, attach};
use strata_tests::daemon::{Daemon, attaching_to};
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::strata::{Recording, record};
use strata_tests::{machine, places, text_outputs};

use crate::dotnet_running::{Wrongs, each, start_command};
use crate::dotnet_unloading::{number_of, versions};

/// A second's records take 2.6 MB.
const METHODS: &str = "2000";
const LETTERS: &str = "1000";
/// A log of little that lives is compacted when it has four segments; two more are in use meanwhile.
const MOST_MEMORY: u64 = 7 * SEGMENT_SIZE as u64;
/// What a living method takes in the log.
const METHOD: u64 = 1_310;
/// The log of much that lives is this many times as long: a runtime that collects rarely keeps tens of
/// thousands of dropped methods.
const TIMES: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(180);

fn start_dropping(dotnet: &DotNet, version: Version, service: Option<&str>) -> Result<Running> {
    let mut command = dotnet.program(version, "DropsMethods", &["3600", METHODS, LETTERS])?;
    command.envs(service.map(|service| ("DD_SERVICE", service)));
    let app = start_command(command)?;
    wait_until("it makes methods", PATIENCE, || made(&app).is_ok())?;
    Ok(app)
}

/// Methods that the program has made: it prints that twice a second.
fn made(app: &Running) -> Result<u64> {
    let printed = app.printed();
    let line = printed.lines().rev().find(|line| line.starts_with("made "));
    let words: Vec<&str> = line.context("nothing made")?.split(' ').collect();
    match words[..] {
        [_, made, _, "0"] => Ok(made.parse()?),
        _ => bail!("{words:?}"),
    }
}

/// The memory that the log takes in the process, in bytes.
fn log_memory(pid: i32) -> Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let mut is_log = false;
    let mut kilobytes = 0;
    for line in maps.lines() {
        if let Some(size) = line.strip_prefix("Rss:") {
            let size = size.trim().strip_suffix(" kB").context("a size")?;
            kilobytes += if is_log { size.trim().parse()? } else { 0 };
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            is_log = line.ends_with("/memfd:strata-clr-log (deleted)");
        }
    }
    Ok(kilobytes * 1024)
}

/// What a session takes to live.
#[derive(Default)]
struct Names {
    by_start: HashMap<u64, String>,
    confirmed: Option<HashSet<u64>>,
    gaps: usize,
}

impl Names {
    /// Reads until there is no more for now, or the session ends.
    fn read(&mut self, session: &mut Session) -> Result<Life> {
        loop {
            let read = session.look_and_poll(Budget::default())?;
            if read.gap {
                self.gaps += 1;
                self.confirmed = Some(HashSet::new());
            }
            for entry in read.entries {
                match entry.record {
                    Record::Method(method) => {
                        let Some(range) = method.ranges.first() else { continue };
                        if let Some(confirmed) = &mut self.confirmed {
                            confirmed.insert(range.start);
                        }
                        self.by_start.insert(range.start, method.name);
                    }
                    Record::MethodUnload(gone) => drop(self.by_start.remove(&gone.start)),
                    _ => {}
                }
            }
            if read.caught_up
                && let Some(confirmed) = self.confirmed.take()
            {
                self.by_start.retain(|start, _| confirmed.contains(start));
            }
            if !read.more {
                return Ok(read.life);
            }
        }
    }

    fn read_for(&mut self, session: &mut Session, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if self.read(session)? != Life::Running {
                bail!("the bridge left: {:?}", session.status());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.by_start.values().any(|known| known == name)
    }

    /// The numbers of the program's methods.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.by_start.values().filter_map(|name| number_of(name))
    }
}

#[test]
fn the_log_of_a_program_that_drops_methods_stays_small_and_complete() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    // Segments, three or five times what the log may have.
    let given_back = machine::short_or_long(12, 20);
    each(&versions(&dotnet)?, 4, |version, wrongs| {
        let mut app = start_dropping(&dotnet, version, None)?;
        let pid = u32::try_from(app.pid())?;
        let options = SessionOptions { owner_name: "test".to_owned(), ..Default::default() };
        let options = AttachOptions { session: options, time: PATIENCE };
        let mut session = attach(pid, &options)?.session;
        let (mut names, mut largest, mut living) = (Names::default(), 0, 0);
        let began = Instant::now();
        while session.status().oldest_segment < given_back && began.elapsed() < PATIENCE {
            names.read_for(&mut session, Duration::from_millis(100))?;
            largest = largest.max(log_memory(app.pid())?);
            living = living.max(names.by_start.len() as u64);
        }
        let most = MOST_MEMORY.max(TIMES * METHOD * living);
        let (oldest, busy) = (
            session.status().oldest_segment,
            session.status().count(strata_clr::session::Count::BusyNanoseconds),
        );
        let lasted = began.elapsed();
        // One that comes late has the same, and what is made from now on.
        let target = Target::open(pid)?;
        let beside = SessionOptions { beside: true, ..SessionOptions::default() };
        let mut late_session = Session::open(target, &beside)?;
        let mut late = Names::default();
        let before = made(&app)?;
        late.read_for(&mut late_session, Duration::from_secs(2))?;
        // A collection drops thousands at once: both read to the same end.
        stop(&app)?;
        names.read_for(&mut session, Duration::from_secs(3))?;
        late.read_for(&mut late_session, Duration::from_secs(3))?;
        app.signal(Signal::CONT)?;
        for (what, known) in [("first", &names), ("late", &late)] {
            // Compiled before the attach, or right after it.
            for name in ["Main", "Make", "Loop"] {
                wrongs.unless(known.has(name), || format!("{version}: {what}: no {name}"));
            }
            let newest = known.numbers().max().unwrap_or(0);
            wrongs.unless(newest > before, || format!("{version}: {what}: {newest} <= {before}"));
        }
        let [of_first, of_late] = [&names, &late].map(|known| known.by_start.len());

        println!(
            "{version}: {} methods in {lasted:.1?}, {oldest} segments given back, at most {largest} bytes; {of_first} and {of_late} methods known, gaps {}, busy {} ms",
            made(&app)?,
            names.gaps,
            busy / 1_000_000
        );
        wrongs.unless(oldest >= given_back, || format!("{version}: {oldest} given back"));
        wrongs.unless(largest <= most, || format!("{version}: {largest} bytes, {living} live"));
        wrongs.unless(names.gaps == 0, || format!("{version}: {} gaps", names.gaps));
        wrongs.unless(names.by_start == late.by_start, || {
            format!("{version}: {of_first} and {of_late} methods")
        });
        let lost: u64 = Loss::ALL.iter().map(|loss| session.status().lost(*loss)).sum();
        wrongs.unless(lost == 0, || format!("{version}: {:?}", session.status()));
        // One that is stopped meanwhile.
        let segments = session.status().newest_segment;
        wait_until("the log goes on", PATIENCE, || {
            late.read(&mut late_session).is_ok()
                && late_session.status().oldest_segment > segments + 1
        })?;
        stop(&app)?;
        names.read_for(&mut session, Duration::from_secs(3))?;
        late.read_for(&mut late_session, Duration::from_secs(3))?;
        app.signal(Signal::CONT)?;
        let [of_first, of_late] = [&names, &late].map(|known| known.by_start.len());
        println!("{version}: after a gap {of_first} methods are known, {of_late} by the other");
        wrongs.unless(names.by_start == late.by_start, || {
            format!("{version}: {of_first} and {of_late} methods after a gap")
        });
        wrongs.unless(names.gaps == 1, || format!("{version}: {} gaps", names.gaps));
        wrongs.unless(names.has("Make"), || format!("{version}: no Make after a gap"));

        wrongs.unless(app.is_alive(), || format!("{version}: died"));
        Ok(())
    })
}

/// The main file of a process's bridge.
fn main_file(pid: u32) -> Result<File> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let main = maps.lines().find(|line| line.ends_with("/memfd:strata-clr (deleted)"));
    let range = main.and_then(|line| line.split(' ').next()).context("no bridge")?;
    Ok(file::open(&PathBuf::from(format!("/proc/{pid}/map_files/{range}")))?)
}

#[test]
fn an_older_strata_gets_a_log_that_is_only_appended_to() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    let version = Version::V9;
    let mut app = start_dropping(&dotnet, version, None)?;
    let pid = u32::try_from(app.pid())?;
    let session = attach(pid, &AttachOptions { time: PATIENCE, ..Default::default() })?.session;
    session.release()?;
    let reader = strata_bridge_protocol::reader::Reader::new(main_file(pid)?, Default::default())?;
    // As a strata wishes that does not know of capabilities.
    let mut old = Owner::take(main_file(pid)?, "older")?;
    old.set_capabilities(0);
    old.wish(wish::JIT_EVENTS, [0; 32])?;
    wait_until("the log has ten segments", PATIENCE, || {
        old.beat().is_ok() && reader.status().is_ok_and(|status| status.segments >= 10)
    })?;
    let status = reader.status()?;
    wrongs.unless(status.oldest_segment == 0, || format!("{version}: {status:?}"));
    drop(old);
    // The next one may have it compacted.
    let mut session = attach(pid, &AttachOptions { time: PATIENCE, ..Default::default() })?.session;
    let mut names = Names::default();
    wait_until("segments are given back", PATIENCE, || {
        names.read(&mut session).is_ok() && session.status().oldest_segment > 0
    })?;
    wrongs.unless(names.has("Make"), || format!("{version}: no Make"));
    session.release()?;
    // And the older one does not get what is left of the log, but another.
    let mut old = Owner::take(main_file(pid)?, "older")?;
    old.set_capabilities(0);
    old.wish(wish::JIT_EVENTS, [0; 32])?;
    wait_until("the bridge leaves", PATIENCE, || {
        _ = old.beat();
        let state = reader.status().map(|status| status.state);
        matches!(state, Ok(Some(State::Detached)))
    })?;
    drop(old);
    let mut session = attach(pid, &AttachOptions { time: PATIENCE, ..Default::default() })?.session;
    let mut names = Names::default();
    names.read_for(&mut session, Duration::from_secs(2))?;
    println!("{version}: {} methods known in the new log", names.by_start.len());
    wrongs.unless(names.has("Make"), || format!("{version}: no Make"));
    wrongs.unless(app.is_alive(), || format!("{version}: died"));
    wrongs.none();
    Ok(())
}

/// The numbers of the methods in folded stacks.
fn numbers_of(folded: &str) -> Result<HashSet<u64>> {
    let stacks = text_outputs::folded(folded)?;
    let frames = stacks.iter().flat_map(|stack| &stack.frames);
    Ok(frames.filter_map(|frame| number_of(frame)).collect())
}

/// The numbers of the methods in a service's samples of a part of a store.
fn numbers_in(daemon: &Daemon, service: &str, from: &str) -> Result<HashSet<u64>> {
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", service, "--from", from, "-o", "some.folded", "--store"]);
    command.arg(daemon.store()).current_dir(daemon.folder());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    if !ended.status.success() {
        bail!("{}", ended.stderr);
    }
    numbers_of(&fs::read_to_string(daemon.folder().join("some.folded"))?)
}

/// Stops a program, and waits until no thread of it runs: the bridge's may be giving segments back.
fn stop(app: &Running) -> Result<()> {
    app.signal(Signal::STOP)?;
    let tasks = format!("/proc/{}/task", app.pid());
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread?.path().join("stat"))?;
        std::io::Result::Ok(stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    };
    wait_until("every thread is stopped", PATIENCE, || {
        let threads = std::fs::read_dir(&tasks).into_iter().flatten();
        threads.map(is_stopped).all(|stopped| stopped.unwrap_or(true))
    })
}

/// Waits until each program has made so many more methods, and returns how many it has made.
fn more(apps: &[Running], methods: u64) -> Result<Vec<u64>> {
    let until: Vec<u64> = apps.iter().map(|app| Ok(made(app)? + methods)).collect::<Result<_>>()?;
    wait_until("more methods", PATIENCE, || {
        let mut all = apps.iter().zip(&until);
        all.all(|(app, until)| made(app).is_ok_and(|made| made >= *until))
    })?;
    apps.iter().map(made).collect()
}

/// A daemon is stopped for longer than the log lasts, a recording beside it comes late and sees what is
/// made while it runs, and another daemon follows when the first is killed.
#[test]
fn daemons_that_were_stopped_or_killed_and_late_recordings_name_what_was_made_since() -> Result<()>
{
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    let versions = [Version::V9, Version::V3_1];
    let services = ["dropping-9", "dropping-3.1"];
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&format!("[sampling]\nfrequency = 499\n{}", attaching_to(&services)))?;
    daemon.start()?;
    let mut apps = versions
        .iter()
        .zip(services)
        .map(|(version, service)| start_dropping(&dotnet, *version, Some(service)))
        .collect::<Result<Vec<_>>>()?;
    more(&apps, 10_000)?;
    let pid = Pid::from_raw(daemon.pid()?).context("a pid")?;
    kill_process(pid, Signal::STOP)?;
    let stopped = more(&apps, 30_000)?;
    kill_process(pid, Signal::CONT)?;
    // For longer than a period of the store: what was not written is lost when it is killed.
    let before = more(&apps, 40_000)?;
    let gaps = daemon.status()?["sampling"]["losses"]["clr_records_lost"].clone();
    let recordings = apps
        .iter()
        .map(|app| {
            record()?.pid(app.pid()).frequency(499).seconds(3.0).output("out.folded").start()
        })
        .collect::<Result<Vec<_>>>()?;
    let recorded = recordings.into_iter().map(Recording::finish).collect::<Result<Vec<_>>>()?;
    daemon.kill()?;
    // What it had stored ends before.
    let killed_at = Instant::now();
    let killed = more(&apps, 20_000)?;
    daemon.start()?;
    more(&apps, 20_000)?;
    let memory = apps.iter().map(|app| log_memory(app.pid())).collect::<Result<Vec<_>>>()?;
    daemon.end()?;
    let seconds = killed_at.elapsed().as_secs();
    for (number, version) in versions.into_iter().enumerate() {
        let memory = memory[number];
        let last = numbers_in(&daemon, services[number], &format!("-{seconds}s"))?;
        let wrong = last.iter().filter(|made| **made < killed[number]).count();
        let all = numbers_in(&daemon, services[number], "-1h")?;
        let while_it_ran = stopped[number]..before[number];
        let after_stop = all.iter().filter(|made| while_it_ran.contains(made)).count();
        println!(
            "{version}: {memory} bytes of log, {gaps} gaps; {after_stop} named after a stop, {} after a kill ({wrong} wrong)",
            last.len()
        );
        wrongs.unless(memory <= MOST_MEMORY, || format!("{version}: {memory} bytes"));
        wrongs.unless(after_stop >= 20, || format!("{version}: {after_stop} after a stop"));
        wrongs.unless(last.len() >= 20 && wrong == 0, || {
            format!("{version}: {} after a kill, {wrong} wrong", last.len())
        });
        wrongs.unless(apps[number].is_alive(), || format!("{version}: died"));
        let late = numbers_of(&recorded[number].text("out.folded")?)?;
        let mut wrong: Vec<&u64> = late.iter().filter(|made| **made < before[number]).collect();
        wrong.sort_unstable();
        println!(
            "{version}: a late recording names {}, from {} on, but for {wrong:?}",
            late.len(),
            before[number]
        );
        wrongs.unless(late.len() >= 20 && wrong.is_empty(), || {
            format!("{version}: {} named by a recording, {} wrong", late.len(), wrong.len())
        });
    }
    wrongs.none();
    Ok(())
}
