//! What the bridge does after a panic, and when the runtime refuses what it is asked for. The faults are
//! provoked, in a library that was built for debugging.

use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::record::Record;
use strata_bridge_protocol::status::{Count, Loss, State};

use crate::support::*;

const EVERYTHING: u64 = wish::JIT_EVENTS | wish::EVENTS & !wish::MESSAGES;

/// A program whose bridge has these faults, and watches objects where its runtime can.
fn with_faults(version: &'static str, faults: &'static str) -> (Target, Watcher) {
    let start = Start { faults: Some(faults), ..Start::default() };
    let mut target = Target::start(version, start);
    attach_bridge(&target);
    let mut watcher = Watcher::find(&target);
    watcher.own();
    watcher.until_enumerated();
    watcher.wish(EVERYTHING);
    if version != "3.1" {
        eventually("a session of events", || {
            (watcher.status().count(Count::EventSessionsOpened) == 1).then_some(())
        });
        eventually("watched objects", || {
            target.tell("deep 200000");
            (watcher.objects().iter().count() > 10).then_some(())
        });
    }
    (target, watcher)
}

fn sessions(watcher: &Watcher) -> (u64, u64) {
    let status = watcher.status();
    (status.count(Count::EventSessionsOpened), status.count(Count::EventSessionsClosed))
}

fn until_it_is_gone(target: &Target) {
    eventually("the end of the bridge", || (target.footprint().memory == 0).then_some(()));
}

/// The bridge works again.
fn check_another(target: &mut Target) {
    attach_bridge(target);
    let mut watcher = Watcher::find(target);
    watcher.own();
    watcher.until_enumerated();
    target.tell("dynamic Again");
    watcher.until("what is compiled later", |entries| {
        let is = |record: &Record| matches!(record, Record::Method(m) if m.name == "Again");
        entries.iter().any(|entry| is(&entry.record)).then_some(())
    });
}

#[test]
fn after_a_panic_nothing_of_the_runtimes_is_held_or_used_and_the_bridge_can_be_detached() {
    for version in versions() {
        let (mut target, mut watcher) = with_faults(version, "panic");
        target.tell("thread panic");
        eventually("the panic", || (watcher.status().lost(Loss::Panic) == 1).then_some(()));
        assert_eq!(watcher.status().state, Some(State::Failed), "{version}");
        eventually("no session and no objects", || {
            let (opened, closed) = sessions(&watcher);
            (opened == closed && watcher.objects().iter().count() == 0).then_some(())
        });
        watcher.read();
        let (records, callbacks) =
            (watcher.entries.len(), watcher.status().count(Count::Callbacks));
        for command in ["dynamic AfterIt", "deep 200000", "collect", "collectible AfterIt"] {
            target.tell(command);
        }
        watcher.read();
        assert_eq!(watcher.entries.len(), records, "{version}");
        assert_eq!(watcher.status().count(Count::Callbacks), callbacks, "{version}");
        assert_eq!(watcher.objects().iter().count(), 0, "{version}");
        watcher.wish(wish::DETACH);
        until_it_is_gone(&target);
        check_another(&mut target);
        target.quit();
    }
}

#[test]
fn a_bridge_that_panics_before_the_runtime_is_ready_can_be_detached() {
    for version in versions() {
        let start = Start { faults: Some("early"), ..Start::default() };
        let mut target = Target::start(version, start);
        attach_bridge(&target);
        let mut watcher = Watcher::find(&target);
        eventually("the panic", || (watcher.status().lost(Loss::Panic) == 1).then_some(()));
        watcher.wish(wish::DETACH);
        until_it_is_gone(&target);
        target.tell("forms");
        target.quit();
    }
}

#[test]
fn a_runtime_that_refuses_to_detach_is_asked_until_it_does() {
    for version in versions() {
        let (mut target, mut watcher) = with_faults(version, "detach=2");
        watcher.wish(wish::DETACH);
        watcher.until("a word about it", |entries| {
            let is = |record: &Record| matches!(record, Record::Diagnostic(_));
            entries.iter().any(|entry| is(&entry.record)).then_some(())
        });
        until_it_is_gone(&target);
        let (opened, closed) = sessions(&watcher);
        assert_eq!(opened, closed, "{version}");
        assert_eq!(watcher.status().state, Some(State::Detached), "{version}");
        target.tell("forms");
        target.quit();
    }
}

#[test]
fn a_session_that_cannot_be_closed_is_closed_before_the_bridge_is_detached() {
    for version in versions_with_events() {
        let (mut target, mut watcher) = with_faults(version, "stop=2");
        // Without an owner it closes what it has, and cannot at first.
        watcher.wish(wish::DETACH);
        until_it_is_gone(&target);
        assert_eq!(sessions(&watcher), (1, 1), "{version}");
        assert!(watcher.status().lost(Loss::RuntimeCall) >= 2, "{version}");
        check_another(&mut target);
        target.quit();
    }
}

#[test]
fn a_session_that_cannot_be_closed_at_once_is_closed_later_without_an_owner() {
    for version in versions_with_events() {
        let (target, mut watcher) = with_faults(version, "stop=2");
        watcher.disown();
        eventually("the end of the session", || (sessions(&watcher) == (1, 1)).then_some(()));
        assert_eq!(watcher.objects().iter().count(), 0, "{version}");
        target.quit();
    }
}
