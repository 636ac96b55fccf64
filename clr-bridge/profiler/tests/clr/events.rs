//! The runtime's own events, as far as the shared memory shows them; what is in them is tested with
//! strata's probe (`tests/e2e/dotnet_events.rs`).

use std::time::{Duration, Instant};

use strata_bridge_protocol::clr_event::capability;
use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::record::Record;
use strata_bridge_protocol::status::{Count, Loss, State};

use crate::support::*;

/// A program with the bridge, and an open session of events.
fn with_objects(version: &'static str, start: Start) -> (Target, Watcher) {
    let target = Target::start(version, start);
    attach_bridge(&target);
    let mut watcher = Watcher::find(&target);
    watcher.own();
    watcher.until_enumerated();
    watcher.wish(wish::JIT_EVENTS | wish::EVENTS & !(wish::EXCEPTIONS | wish::MESSAGES));
    eventually("a session of events", || {
        (watcher.status().count(Count::EventSessionsOpened) == 1).then_some(())
    });
    (target, watcher)
}

#[test]
fn objects_whose_class_has_a_name_of_thousands_of_characters_are_watched() {
    for version in versions_with_events() {
        let (mut target, watcher) = with_objects(version, Start::default());
        assert_ne!(watcher.status().event_kinds & capability::CHECKED_OBJECTS, 0, "{version}");
        // 80 MB: some hundred are sampled.
        let length = target.tell("deep 2000000");
        assert!(length.parse::<u32>().is_ok_and(|length| length > 2_000), "{version}: {length}");
        let watched = watcher.objects().iter().count();
        target.tell("collect");
        target.tell("collect");
        eventually("objects in use", || {
            watcher.objects().iter().any(|(_, object)| object.in_use).then_some(())
        });
        println!("{version}: a name of {length} characters, {watched} objects watched");
        assert!(watched > 50, "{version}: {watched}");
        let status = watcher.status();
        for loss in [Loss::EventInvalid, Loss::RuntimeCall, Loss::Panic] {
            assert_eq!(status.lost(loss), 0, "{version}: {status:?}");
        }
        target.quit();
    }
}

#[test]
fn waits_for_handles_and_collections_have_sessions_of_their_own() {
    for version in versions_with_events() {
        let (mut target, mut watcher) = watched(version);
        // 8 has no events of waits for handles.
        let both = if version == "9" { 2 } else { 1 };
        for (wishes, expected) in [
            (wish::PAUSES | wish::WAIT_HANDLES, both),
            (wish::PAUSES, 1),
            (wish::PAUSES | wish::WAIT_HANDLES | wish::OBJECTS, 1),
            (wish::PAUSES | wish::WAIT_HANDLES | wish::LOCKS, both),
            (0, 0),
        ] {
            watcher.wish_until_obeyed(wish::JIT_EVENTS | wishes);
            target.tell("collect");
            let status = watcher.status();
            let open =
                status.count(Count::EventSessionsOpened) - status.count(Count::EventSessionsClosed);
            assert_eq!(open, expected, "{version}: {wishes:#x}");
            assert_eq!(status.lost(Loss::RuntimeCall), 0, "{version}");
        }
        target.quit();
    }
}

const ALLOCATIONS: u64 = wish::JIT_EVENTS | wish::ALLOCATIONS | wish::PAUSES;

/// The thread that opens and closes windows.
fn has_windows(target: &Target) -> bool {
    target.threads().iter().any(|name| name == "strata-clr-duty")
}

fn windows(watcher: &Watcher) -> u64 {
    watcher.status().count(Count::AllocationWindows)
}

fn until_more_windows(watcher: &Watcher) {
    let before = windows(watcher);
    eventually("windows", || (windows(watcher) > before + 3).then_some(()));
}

#[test]
fn a_flood_of_allocations_has_windows_until_it_is_over() {
    for version in versions_with_events() {
        let (mut target, mut watcher) = with_objects(version, Start::default());
        watcher.wish(ALLOCATIONS);
        target.tell("deep 200000");
        assert!(!has_windows(&target), "{version}");
        for _ in 0..2 {
            target.tell("flood on");
            until_more_windows(&watcher);
            assert!(has_windows(&target), "{version}");
            target.tell("flood off");
            eventually("the end of windows", || (!has_windows(&target)).then_some(()));
        }
        let (before, status) = (windows(&watcher), watcher.status());
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(windows(&watcher), before, "{version}: an idle program has windows");
        println!("{version}: {before} windows");
        // Collections have a session of their own by now, and so have allocations.
        let open =
            status.count(Count::EventSessionsOpened) - status.count(Count::EventSessionsClosed);
        assert_eq!(open, 2, "{version}: {status:?}");
        for loss in [Loss::EventInvalid, Loss::RuntimeCall, Loss::Panic] {
            assert_eq!(status.lost(loss), 0, "{version}: {status:?}");
        }
        target.quit();
    }
}

/// The program's full collections in some seconds.
fn full_collections(target: &mut Target) -> u64 {
    let mut count = || target.tell("collections").parse::<u64>().unwrap_or_default();
    let before = count();
    std::thread::sleep(Duration::from_secs(5));
    count() - before
}

fn forgone(watcher: &Watcher) -> u64 {
    watcher.status().count(Count::AllocationWindowsForgone)
}

#[test]
fn there_are_no_windows_beside_a_tool_for_which_the_runtime_would_collect_each_time() {
    for version in versions_with_events() {
        // One has a collector with threads of its own.
        let server = version == "9";
        let start = Start { server, faults: Some("rest=12000"), ..Start::default() };
        let (mut target, mut watcher) = with_objects(version, start);
        watcher.wish(ALLOCATIONS);
        target.tell("flood on");
        until_more_windows(&watcher);
        let without = full_collections(&mut target);
        assert_eq!(forgone(&watcher), 0, "{version}");
        target.tell("listen on");
        eventually("no windows", || (forgone(&watcher) == 1).then_some(()));
        let at_first = target.tell("collections");
        let beside = full_collections(&mut target);
        println!(
            "{version}, {server}: {without} full collections in five seconds, {beside} beside the \
             tool, {at_first} at first"
        );
        // One that opened the session for good may have been under way.
        assert!(beside <= without + 1, "{version}: {beside} of {without}");
        // Exceptions need no session.
        let opened = |watcher: &Watcher| watcher.status().count(Count::EventSessionsOpened);
        let before = opened(&watcher);
        for _ in 0..5 {
            watcher.wish_until_obeyed(ALLOCATIONS | wish::EXCEPTIONS);
            watcher.wish_until_obeyed(ALLOCATIONS);
        }
        assert_eq!(opened(&watcher), before, "{version}");
        target.tell("listen off");
        until_more_windows(&watcher);
        assert_eq!(watcher.status().lost(Loss::RuntimeCall), 0, "{version}");
        target.tell("flood off");
        target.quit();
    }
}

#[test]
fn events_are_switched_a_thousand_times_while_there_are_windows() {
    for version in versions_with_events() {
        let (mut target, mut watcher) = with_objects(version, Start::default());
        watcher.wish(ALLOCATIONS);
        target.tell("flood on");
        until_more_windows(&watcher);
        for round in 0..1_000 {
            watcher.wish(if round % 2 == 0 { wish::JIT_EVENTS } else { ALLOCATIONS });
            // At every moment of the change before.
            std::thread::sleep(Duration::from_micros(round * 37 % 5_000));
        }
        until_more_windows(&watcher);
        let status = watcher.status();
        assert_eq!((status.state, status.lost(Loss::Panic)), (Some(State::Ready), 0), "{version}");
        watcher.wish(wish::JIT_EVENTS);
        eventually("no sessions", || {
            let status = watcher.status();
            let closed = status.count(Count::EventSessionsClosed);
            (status.count(Count::EventSessionsOpened) == closed).then_some(())
        });
        assert!(!has_windows(&target), "{version}");
        target.quit();
    }
}

#[test]
fn a_bridge_is_detached_and_a_program_ends_while_there_are_windows() {
    for version in versions_with_events() {
        let mut target = Target::start(version, Start::default());
        target.tell("flood on");
        for round in 0..10 {
            attach_bridge(&target);
            let mut watcher = Watcher::find(&target);
            watcher.own();
            watcher.until_enumerated();
            watcher.wish(ALLOCATIONS);
            until_more_windows(&watcher);
            if round < 9 {
                watcher.wish(wish::DETACH);
                eventually("the end of the bridge", || {
                    (target.footprint().memory == 0).then_some(())
                });
                assert!(!has_windows(&target), "{version}");
            }
        }
        // The thread of windows does not keep it.
        target.exit();
    }
}

/// A program's end disposes of the event sources that a change of a session calls. `STRATA_TEST_ENDS`:
/// how often a program of each version ends (20).
#[test]
fn programs_end_well_in_the_middle_of_changes_of_sessions() {
    let ends = std::env::var("STRATA_TEST_ENDS").map_or(20, |ends| ends.parse().expect("a number"));
    for version in versions_with_events() {
        let mut changes = 0;
        for end in 0..ends {
            let (mut target, mut watcher) = with_objects(version, Start::default());
            target.tell("flood on");
            let opened = |watcher: &Watcher| watcher.status().count(Count::EventSessionsOpened);
            let (before, until) = (opened(&watcher), Instant::now() + Duration::from_millis(50));
            let mut kinds = [wish::LOCKS, 0, wish::ALLOCATIONS].into_iter().cycle();
            let mut change = |watcher: &mut Watcher| {
                watcher.wish(wish::JIT_EVENTS | kinds.next().unwrap_or_default());
            };
            while Instant::now() < until {
                change(&mut watcher);
                std::thread::sleep(Duration::from_micros(end * 97 % 2_000));
            }
            change(&mut watcher);
            // At every moment of the last change.
            std::thread::sleep(Duration::from_micros(end * 37 % 500));
            changes += opened(&watcher) - before;
            target.exit();
        }
        println!("{version}: {ends} programs ended, {changes} sessions in them");
        assert!(changes > ends, "{version}: {changes}");
    }
}

/// Sessions of .NET 8 have the runtime's events of what is unloaded.
#[test]
fn modules_are_unloaded_while_there_are_sessions() {
    for version in versions_with_events() {
        let (mut target, mut watcher) = with_objects(version, Start::default());
        for round in 0..60 {
            target.tell(&format!("collectible Shelf{round}"));
            if round % 4 == 3 {
                target.tell("collect");
            }
        }
        watcher.until("unloaded modules", |entries| {
            let unloads =
                entries.iter().filter(|entry| matches!(entry.record, Record::ModuleUnload(_)));
            (unloads.count() > 30).then_some(())
        });
        let status = watcher.status();
        assert_eq!((status.state, status.lost(Loss::Panic)), (Some(State::Ready), 0), "{version}");
        target.quit();
    }
}

#[test]
fn a_fault_of_the_programs_own_code_on_the_thread_that_changes_a_session_is_an_exception() {
    for version in versions_with_events() {
        let (mut target, mut watcher) = with_objects(version, Start::default());
        target.tell("faulty");
        for kinds in [wish::LOCKS, wish::ALLOCATIONS].into_iter().cycle().take(20) {
            watcher.wish_until_obeyed(wish::JIT_EVENTS | kinds);
        }
        let faults = target.tell("faults");
        println!("{version}: faults handled and thrown: {faults}");
        let counts: Vec<u32> = faults.split(' ').map(|count| count.parse().unwrap()).collect();
        assert!(counts[0] >= 20 && counts[0] == counts[1], "{version}: {faults}");
        assert_eq!(watcher.status().lost(Loss::RuntimeCall), 0, "{version}");
        target.quit();
    }
}

#[test]
fn a_program_ends_whose_code_returns_late_to_the_thread_that_changes_a_session() {
    for version in versions_with_events() {
        let (mut target, mut watcher) = with_objects(version, Start::default());
        watcher.wish_until_obeyed(wish::JIT_EVENTS | wish::LOCKS);
        target.tell("faulty late");
        watcher.wish(wish::JIT_EVENTS | ALLOCATIONS);
        eventually("a call that returns late", || (target.tell("faults") == "0 1").then_some(()));
        target.tell("compile 100");
        target.exit();
    }
}

#[test]
fn a_program_that_is_stopped_at_any_moment_goes_on() {
    let signal = |target: &Target, signal| {
        // SAFETY: kill has no preconditions.
        assert_eq!(unsafe { libc::kill(target.pid() as i32, signal) }, 0);
    };
    for version in versions_with_events() {
        let (mut target, mut watcher) = with_objects(version, Start::default());
        watcher.wish(ALLOCATIONS);
        target.tell("flood on");
        until_more_windows(&watcher);
        for round in 0..200 {
            signal(&target, libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(round % 20));
            signal(&target, libc::SIGCONT);
            std::thread::sleep(Duration::from_micros(round * 337 % 10_000));
            if round % 10 == 0 {
                target.tell(&format!("collectible Stopped{round}"));
                target.tell("collect");
            }
        }
        // The program's own full collections are not taken for some of a change's.
        assert_eq!(forgone(&watcher), 0, "{version}");
        until_more_windows(&watcher);
        let status = watcher.status();
        for loss in [Loss::Panic, Loss::RuntimeCall, Loss::UnloadNotAwaited] {
            assert_eq!(status.lost(loss), 0, "{version}: {status:?}");
        }
        watcher.wish(wish::DETACH);
        eventually("the end of the bridge", || (target.footprint().memory == 0).then_some(()));
        target.tell("flood off");
        target.quit();
    }
}
