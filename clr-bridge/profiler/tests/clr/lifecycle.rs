//! Attaching, owning, leaving, and doing so again.

use strata_bridge_protocol::control::{Outcome, request, wish};
use strata_bridge_protocol::owning::TakeError;
use strata_bridge_protocol::record::Record;
use strata_bridge_protocol::status::{Count, State};

use crate::support::*;

/// CORPROF_E_PROFILER_ALREADY_ACTIVE
const ALREADY_ACTIVE: u32 = 0x8013_136a;

fn detach(target: &Target, watcher: &mut Watcher) {
    watcher.wish(wish::DETACH);
    eventually("the end of the bridge", || (target.footprint().memory == 0).then_some(()));
}

#[test]
fn attaching_twenty_times_leaves_nothing_behind() {
    for version in versions() {
        let mut target = Target::start(version, Start::default());
        let mut after_first: Option<Footprint> = None;
        for cycle in 0..20 {
            attach_bridge(&target);
            let mut watcher = Watcher::find(&target);
            watcher.own();
            watcher.until_enumerated();
            assert!(watcher.methods().any(|method| method.name == "Main"), "{version} {cycle}");
            target.tell(&format!("dynamic Cycle{cycle}"));
            detach(&target, &mut watcher);
            eventually("the end of the bridge's thread", || {
                (!target.threads().contains(&"strata-clr".to_string())).then_some(())
            });
            let first = *after_first.get_or_insert_with(|| target.footprint());
            // The runtime has a file open for a moment now and then; what is left behind stays.
            let what = format!("{version} {cycle}: {first:?} and nothing more");
            let now = eventually(&what, || {
                let now = target.footprint();
                let is_same = now.libraries == first.libraries && now.memory == first.memory;
                (is_same && now.files <= first.files).then_some(now)
            });
            // The runtime's own pools come and go.
            assert!(now.threads <= first.threads + 2, "{version} {cycle}: {:?}", target.threads());
        }
        target.quit();
    }
}

#[test]
fn a_second_attach_is_refused_and_harms_nothing() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        for _ in 0..5 {
            assert_eq!(attach(target.pid(), SONAME), ALREADY_ACTIVE, "{version}");
        }
        target.tell("dynamic StillThere");
        watcher.until("what is compiled later", |entries| {
            entries
                .iter()
                .any(|entry| matches!(&entry.record, Record::Method(m) if m.name == "StillThere"))
                .then_some(())
        });
        detach(&target, &mut watcher);
        target.quit();
    }
}

#[test]
fn a_second_owner_is_refused_until_the_first_is_gone() {
    let target = Target::start("9", Start::default());
    attach_bridge(&target);
    let mut watcher = Watcher::find(&target);
    watcher.own();
    assert!(matches!(watcher.try_own(), Err(TakeError::Owned { name, .. }) if name == "test"));
    watcher.disown();
    watcher.own();
    watcher.until_enumerated();
    target.quit();
}

#[test]
fn a_bridge_loaded_by_environment_is_quiet_until_an_owner_comes_and_after_it_went() {
    for version in versions() {
        let start = Start { loaded: Some(Loaded::AsMain), ..Start::default() };
        let mut target = Target::start(version, start);
        let mut watcher = Watcher::find(&target);
        watcher.read();
        assert_eq!(watcher.entries.len(), 0, "{version}: {:?}", watcher.entries);

        watcher.own();
        watcher.until_enumerated();
        let names = watcher.full_names();
        for name in ["Shop.Program.Main", "Shop.Cart`1<Shop.Money>.Same", "Shop.Program.Burn"] {
            assert!(names.iter().any(|found| found == name), "{version}: no {name}");
        }
        target.tell("dynamic WhileOwned");
        watcher.until("what is compiled while owned", |entries| named(entries, "WhileOwned"));

        watcher.disown();
        std::thread::sleep(std::time::Duration::from_millis(600));
        let callbacks = watcher.status().count(Count::Callbacks);
        target.tell("dynamic WhileQuiet");
        target.tell("compile 20");
        assert_eq!(watcher.status().count(Count::Callbacks), callbacks, "{version}");

        // What was reported stays; what happened in between is reported to the next owner, once.
        let before = watcher.methods().filter(|method| method.name == "Main").count();
        watcher.own();
        watcher.until_enumerated();
        assert_eq!(watcher.methods().filter(|method| method.name == "Main").count(), before);
        target.tell("dynamic OwnedAgain");
        watcher.until("what is compiled later", |entries| named(entries, "OwnedAgain"));
        target.quit();
    }
}

fn named(entries: &[strata_bridge_protocol::reader::Entry], name: &str) -> Option<()> {
    entries
        .iter()
        .any(|entry| matches!(&entry.record, Record::Method(method) if method.name == name))
        .then_some(())
}

#[test]
fn two_hundred_and_thirty_fast_cycles_do_not_crash() {
    // Most of the time they wait for their runtimes.
    std::thread::scope(|scope| {
        for version in versions() {
            scope.spawn(move || fast_cycles(version));
        }
    });
}

fn fast_cycles(version: &'static str) {
    let mut target = Target::start(version, Start::default());
    for cycle in 0..230 {
        attach_bridge(&target);
        let mut watcher = Watcher::find(&target);
        watcher.wish(if cycle % 2 == 0 { wish::JIT_EVENTS } else { 0 });
        if cycle % 10 == 0 {
            target.tell("compile 5");
        }
        detach(&target, &mut watcher);
    }
    assert_eq!(target.tell("forms"), "done", "{version}");
    target.quit();
}

#[test]
fn a_program_that_ends_or_is_killed_leaves_its_records_to_the_reader() {
    for version in versions() {
        let start = Start { loaded: Some(Loaded::AsMain), eager: true, ..Start::default() };
        let mut target = Target::start(version, start);
        target.tell("compile 200");
        let mut watcher = Watcher::find(&target);
        watcher.read();
        target.tell("compile 200");
        target.kill();
        watcher.read();
        assert!(named(&watcher.entries, "Many199").is_some(), "{version}");
        assert_eq!(watcher.methods().filter(|method| method.name == "Many199").count(), 2);

        let target = Target::start(version, start);
        let watcher = Watcher::find(&target);
        target.quit();
        assert_eq!(watcher.status().state, Some(State::Detached), "{version}");
    }
}

#[test]
fn an_unknown_request_is_answered_as_such() {
    let (target, mut watcher) = watched("9");
    assert_eq!(watcher.ask(999, 1, 2), Outcome::Unknown);
    assert_eq!(watcher.ask(request::RESOLVE_IP, 0x1234, 0), Outcome::Answered);
    watcher.until("an answer", |entries| {
        entries
            .iter()
            .any(|entry| matches!(entry.record, Record::NotFound(answer) if answer.ip == 0x1234))
            .then_some(())
    });
    target.quit();
}
