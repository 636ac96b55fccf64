//! The runtime's own events, as far as the shared memory shows them; what is in them is tested with
//! strata's probe (`tests/e2e/dotnet_events.rs`).

use strata_bridge_protocol::clr_event::capability;
use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::status::{Count, Loss};

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
