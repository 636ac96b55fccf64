//! How values of several periods become one in merges and roll-ups: what happened adds up, what was in
//! use is that of the last period.

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use strata_kinds::Kind;
use strata_profile::{FrameKind, Profile, ProfileBuilder};
use strata_store::{Answer, Detail, Head, Selection, Store};
use support::{HOUR, SECOND, START, head, options, stacks, store};

/// Periods of a minute, of three hours.
const PERIODS: i64 = 180;
const MINUTE: i64 = 60 * SECOND;
const KINDS: [Kind; 2] = [Kind::Heap, Kind::Allocations];

/// A profile of one kind: the objects and bytes of each allocating function.
fn profile(kind: Kind, allocations: &[(&str, i64)]) -> Profile {
    let mut builder = ProfileBuilder::of_kinds([kind].into_iter().collect());
    for &(function, objects) in allocations {
        let frame = builder.frame(FrameKind::Managed, function, "", "", 0);
        let location = builder.location(0x1000, None, &[frame]);
        let stack = builder.stack(&[location]);
        let labels = builder.labels(&[]);
        builder.add_of(kind, stack, labels, &[objects, objects * 100]);
    }
    builder.finish()
}

/// Two processes leak an object each period, hold one that the next period has freed, and allocate both.
fn filled(directory: &Path) -> Store {
    let mut store = store(directory);
    for period in 0..PERIODS {
        let start = START + period * MINUTE;
        let freed = format!("Freed{}", period % 40);
        for runtime_id in ["one", "two"] {
            for kind in KINDS {
                let leaked = if kind == Kind::Heap { period + 1 } else { 1 };
                let profile = profile(kind, &[("Leak", leaked), (&freed, 1)]);
                let head = Head {
                    kind: kind.name().to_owned(),
                    runtime_id: runtime_id.to_owned(),
                    end_nanos: start + MINUTE,
                    ..head("shop", start)
                };
                store.append(&head, &profile, start).expect("there is room");
            }
        }
    }
    store
}

fn asked(store: &Store, kind: Kind, selection: &Selection) -> Answer {
    let kind = Selection::of_service("shop", kind.name()).kind;
    store.reader().query(&Selection { kind, ..selection.clone() }).expect("an answer")
}

/// What is expected of periods `0..until`.
fn expected(kind: Kind, until: i64) -> BTreeMap<String, Vec<i64>> {
    let pair = |objects: i64| vec![2 * objects, 2 * objects * 100];
    let mut expected = BTreeMap::from([("Leak".to_owned(), pair(until))]);
    match kind {
        Kind::Heap => {
            expected.insert(format!("Freed{}", (until - 1) % 40), pair(1));
        }
        _ => (0..until).for_each(|period| {
            let sums = expected.entry(format!("Freed{}", period % 40)).or_insert(vec![0; 2]);
            sums.iter_mut().zip(pair(1)).for_each(|(sum, value)| *sum += value);
        }),
    }
    expected
}

#[test]
fn roll_ups_add_up_what_happened_and_keep_the_last_of_what_was_in_use() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut store = filled(directory.path());
    let all = Selection::default();
    let early = all.clone().between(START, START + 97 * MINUTE);
    for (selection, until) in [(&all, PERIODS), (&early, 97)] {
        for kind in KINDS {
            let before = asked(&store, kind, selection);
            assert_eq!(stacks(&before.profile), expected(kind, until), "{kind}");
        }
    }
    store.seal().expect("sealed");
    store.tend(START + 4 * HOUR).expect("tended");
    let counters = store.counters();
    assert!(counters.merges_made > 0 && counters.rollups_made > 0, "{counters:?}");
    drop(store);
    let store = Store::open(directory.path(), options()).expect("opened again");
    for (selection, until) in [(&all, PERIODS), (&early, 97)] {
        for kind in KINDS {
            let merged = asked(&store, kind, selection);
            assert_eq!(stacks(&merged.profile), expected(kind, until), "{kind}");
            assert_eq!((merged.profiles as i64, merged.damaged), (2 * until, 0), "{kind}");
            let every = Selection { detail: Detail::All, ..selection.clone() };
            let every = asked(&store, kind, &every);
            assert_eq!(stacks(&every.profile), expected(kind, until), "{kind}");
            assert!(merged.records_read * 2 < every.records_read, "{}", merged.records_read);
        }
    }
}

#[test]
fn kinds_that_are_asked_for_together_keep_their_own_rule() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut store = filled(directory.path());
    store.seal().expect("sealed");
    store.tend(START + 4 * HOUR).expect("tended");
    let both = Selection { kind: None, ..Selection::of_service("shop", "") };
    let answer = store.reader().query(&both).expect("an answer");
    let total = |name: &str| answer.profile.sample_type(name).map(|at| answer.profile.total(at));
    assert_eq!(total("inuse_objects"), Some(2 * (PERIODS + 1)));
    assert_eq!(total("inuse_space"), Some(200 * (PERIODS + 1)));
    assert_eq!(total("alloc_samples"), Some(2 * 2 * PERIODS));
}

/// One process frees all that it has while another one goes on: what one has is its own.
#[test]
fn a_process_keeps_its_last_values_beside_others_and_loses_them_when_nothing_is_left() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut store = store(directory.path());
    let of_process = |pid: u32, objects: i64| {
        let mut builder = ProfileBuilder::of_kinds([Kind::Heap].into_iter().collect());
        let frame = builder.frame(FrameKind::Managed, "Holds", "", "", 0);
        let location = builder.location(0x1000, None, &[frame]);
        let stack = builder.stack(&[location]);
        let thread = builder.thread(pid, 0, "shop", "", "");
        let labels = builder.thread_labels(thread);
        builder.add_of(Kind::Heap, stack, labels, &[objects, objects * 100]);
        builder.finish()
    };
    // 7 ends after the first period, 8 has freed everything in the third.
    for (period, pid, objects) in [(0, 7, 3), (0, 8, 5), (1, 8, 5), (2, 8, 0), (2, 9, 0)] {
        let start = START + period * MINUTE;
        let kind = Kind::Heap.name().to_owned();
        let head = Head {
            kind,
            runtime_id: pid.to_string(),
            end_nanos: start + MINUTE,
            ..head("shop", start)
        };
        store.append(&head, &of_process(pid, objects), start).expect("there is room");
    }
    let total = |selection: &Selection| {
        let answer = asked(&store, Kind::Heap, selection);
        (answer.profile.total(0), answer.profiles)
    };
    let of = |pid| Selection { pid: Some(pid), detail: Detail::All, ..Selection::default() };
    assert_eq!(total(&of(7)), (3, 1));
    assert_eq!(total(&of(8)), (0, 3));
    assert_eq!(total(&of(8).between(START, START + 2 * MINUTE)), (5, 2));
    assert_eq!(total(&Selection::default()), (0, 5));
}
