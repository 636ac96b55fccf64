//! Processes that fake the memory of strata's library: what it costs is bounded, and theirs.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use strata_bridge_protocol::clr_event::MOST_REPORTS;
use strata_clr::session::{BridgeState, Budget, Entry, Life, Which, presence};
use strata_clr::{Session, SessionError, SessionOptions, Target, discover};
use support::{Clr, must_be_root};

fn hostile(behaviour: &str) -> Clr {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-clr-hostile"));
    command.arg(behaviour);
    Clr::start(command)
}

fn open(clr: &Clr) -> Result<Session, SessionError> {
    Session::open(Target::open(clr.pid()).unwrap(), &SessionOptions::default())
}

/// Resident memory of this process, in KiB, at its highest since it was last asked to forget that.
fn peak_memory(forget: bool) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let peak = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    if forget {
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
    }
    peak
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place may be written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct Cost {
    records: usize,
    polls: usize,
    longest: Duration,
    cpu: Duration,
    memory: u64,
}

/// Polls as strata does, until there is no more or for this long.
fn read_for(session: &mut Session, time: Duration, until_idle: bool) -> Cost {
    peak_memory(true);
    let before = peak_memory(false);
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut cost =
        Cost { records: 0, polls: 0, longest: Duration::ZERO, cpu: Duration::ZERO, memory: 0 };
    while start.elapsed() < time {
        let poll_start = cpu_time();
        let Ok(read) = session.look_and_poll(Budget::default()) else { break };
        cost.longest = cost.longest.max(cpu_time() - poll_start);
        cost.polls += 1;
        cost.records += read.entries.len();
        let entries: Vec<Entry> = read.entries;
        drop(entries);
        if read.life != Life::Running && !read.more {
            break;
        }
        if !read.more {
            if until_idle && cost.polls > 200 {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    cost.cpu = cpu_time() - cpu;
    cost.memory = peak_memory(false).saturating_sub(before);
    cost
}

#[test]
fn whatever_lies_in_the_memory_reading_it_is_bounded() {
    must_be_root();
    for behaviour in ["random", "cycles", "millions", "fat", "reserved", "holes", "promises"] {
        let mut clr = hostile(behaviour);
        let mut session = match open(&clr) {
            Ok(session) => session,
            // The header may just have been punched away.
            Err(error) if behaviour == "holes" => {
                println!("{behaviour}: {error}");
                continue;
            }
            Err(error) => panic!("{behaviour}: {error}"),
        };
        // A reserved record is waited for, two seconds each.
        let until_idle = behaviour != "reserved";
        let cost = read_for(&mut session, Duration::from_secs(6), until_idle);
        println!(
            "{behaviour}: {} records in {} polls, longest {:?}, CPU {:?}, memory +{} KiB, {:?}",
            cost.records,
            cost.polls,
            cost.longest,
            cost.cpu,
            cost.memory,
            session.losses()
        );
        assert!(cost.longest < Duration::from_millis(250), "{behaviour}");
        assert!(cost.memory < 64 << 10, "{behaviour}");
        session.resolve(&(0..100_000).collect::<Vec<u64>>());
        session.look_and_poll(Budget::default()).ok();
        clr.kill();
        let rest = read_for(&mut session, Duration::from_secs(20), false);
        println!("{behaviour}: {} records after its death, {:?}", rest.records, session.life());
        assert_eq!(session.life(), Life::Ended);
        assert!(rest.memory < 64 << 10, "{behaviour}");
        // A debug build reads a million records in some seconds.
        assert!(cost.records + rest.records <= 5 << 20);
    }
}

#[test]
fn memory_that_could_hurt_its_reader_is_refused_before_it_is_read() {
    must_be_root();
    for (behaviour, reason) in [
        ("unsealed", "not sealed"),
        ("huge-pages", "not a file that can be sealed"),
        ("many", "the header contradicts its own version"),
        ("another-version", "newer bridge"),
    ] {
        let clr = hostile(behaviour);
        let start = Instant::now();
        let error = open(&clr).unwrap_err();
        println!("{behaviour}: {error} ({:?})", start.elapsed());
        let text = error.to_string();
        let is_absent = matches!(error, SessionError::NotLoaded) && behaviour == "huge-pages";
        assert!(text.contains(reason) || is_absent, "{behaviour}: {text}");
        assert!(start.elapsed() < Duration::from_secs(30));
        let found = discover(clr.pid()).unwrap();
        if let Some(found) = found {
            let state = presence(&found.target, &found.shared);
            assert!(matches!(state, BridgeState::Unusable(_)), "{state:?}");
        }
    }
}

#[test]
fn segments_that_are_promised_and_never_there_are_looked_for_ever_more_rarely() {
    must_be_root();
    let clr = hostile("promises");
    let mut session = open(&clr).unwrap();
    let cost = read_for(&mut session, Duration::from_secs(5), false);
    println!("{} polls in 5 s, CPU {:?}, longest {:?}", cost.polls, cost.cpu, cost.longest);
    assert!(cost.cpu < Duration::from_millis(1000));
}

#[test]
fn a_process_that_runs_another_program_now_has_no_bridge_any_more() {
    must_be_root();
    let clr = hostile("execs");
    let mut session = open(&clr).unwrap();
    let cost = read_for(&mut session, Duration::from_secs(5), false);
    println!("{:?} after {} polls", session.life(), cost.polls);
    assert_eq!(session.life(), Life::Left);
}

/// Every process is in this state for a moment while it ends: /proc shows the memory of its first thread.
#[test]
fn a_process_has_not_left_its_bridge_when_only_its_first_thread_has_ended() {
    must_be_root();
    let mut clr = hostile("first-thread-ends");
    let mut session = open(&clr).unwrap();
    read_for(&mut session, Duration::from_secs(3), false);
    assert_eq!(session.life(), Life::Running);
    clr.kill();
    read_for(&mut session, Duration::from_secs(3), false);
    assert_eq!(session.life(), Life::Ended);
}

/// What was read of a ring: events, and their words.
fn read_ring(session: &mut Session, are_last: bool) -> (usize, usize) {
    let events =
        session.snapshots(if are_last { Which::OfEnded } else { Which::OfWindow }).unwrap();
    let words = events.iter().map(|event| event.frames.len() + event.detail.len() / 8 + 6).sum();
    (events.len(), words)
}

#[test]
fn of_a_ring_a_bounded_amount_is_read_whatever_its_process_writes() {
    must_be_root();
    for behaviour in ["ring-flood", "ring-noise"] {
        let mut clr = hostile(behaviour);
        let mut session = open(&clr).unwrap();
        assert!(session.take_snapshots().unwrap(), "{behaviour}: it says that it can");
        session.look_and_poll(Budget::default()).unwrap();
        peak_memory(true);
        let before = peak_memory(false);
        let (start, cpu) = (Instant::now(), cpu_time());
        let (mut events, mut words, mut longest) = (0, 0, Duration::ZERO);
        while start.elapsed() < Duration::from_secs(4) {
            let began = cpu_time();
            let read = read_ring(&mut session, false);
            longest = longest.max(cpu_time() - began);
            events += read.0;
            words += read.1;
            std::thread::sleep(Duration::from_millis(2));
        }
        let windows = start.elapsed().as_millis() as usize / 134 + 2;
        let memory = peak_memory(false).saturating_sub(before);
        println!(
            "{behaviour}: {events} events of {words} words in {windows} windows, longest \
             {longest:?}, CPU {:?}, memory +{memory} KiB; {} unreadable",
            cpu_time() - cpu,
            session.snapshots_unreadable()
        );
        // Each read may pass the limit by what it reads at once.
        let most = windows * ((768 + 80) << 10) / 8;
        assert!(words <= most && events <= windows * (MOST_REPORTS + 256), "{behaviour}");
        assert!(memory < 64 << 10, "{behaviour}");
        match behaviour {
            "ring-flood" => assert!(events > 100, "it is read"),
            _ => assert!(session.snapshots_unreadable() > 0, "it is noticed"),
        }
        clr.kill();
        let (last, _) = read_ring(&mut session, true);
        println!("{behaviour}: {last} after its death");
        assert!(last <= 16_384, "{behaviour}");
        assert_eq!(read_ring(&mut session, true).0, 0, "{behaviour}: all was read");
    }
}
