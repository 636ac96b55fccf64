//! Queries while a store is written: they succeed on the data present, without damage, and nothing
//! is in an answer twice.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use strata_store::{Detail, Options, Reader, Selection, Store};
use support::{HOUR, SECOND, START, counts, head, options, profile};

const SEGMENT: i64 = 30;
const SEGMENTS: i64 = 15;
/// Enough that what a question reads is not read at once.
const SERVICES: i64 = 12;

/// A period of all services: its number is in the names.
fn append(store: &mut Store, period: i64) {
    let start = START + period * HOUR / SEGMENT;
    for service in 0..SERVICES {
        let stack = format!("main;{}", period * SERVICES + service);
        let written = profile(&[(&stack, 1)]);
        store.append(&head(&format!("service {service}"), start), &written, start).unwrap();
    }
}

/// Writes all segments. `written` is how many profiles are there to be found, `begun` how many may
/// be.
fn write(mut store: Store, begun: &AtomicI64, written: &AtomicI64) -> Store {
    for period in 0..SEGMENTS * SEGMENT {
        begun.store((period + 1) * SERVICES, SeqCst);
        append(&mut store, period);
        written.store((period + 1) * SERVICES, SeqCst);
        if period % SEGMENT == SEGMENT - 1 {
            store.tend(START + (period + 1) * HOUR / SEGMENT + 61 * SECOND).unwrap();
        }
    }
    store
}

/// What an answer has, by the number of the profile.
fn found(reader: &Reader, selection: &Selection) -> BTreeMap<i64, i64> {
    let answer = reader.query(selection).unwrap();
    assert_eq!(answer.damaged, 0);
    let number = |(stack, count): (String, i64)| {
        (stack.strip_prefix("main;").unwrap().parse().unwrap(), count)
    };
    counts(&answer).into_iter().map(number).collect()
}

/// Asks until the writer has ended; returns how often.
fn ask(directory: &Path, ended: &AtomicBool, begun: &AtomicI64, written: &AtomicI64) -> usize {
    let reader = Reader::new(directory);
    let all = Selection { detail: Detail::All, ..Selection::default() };
    let mut asked = 0;
    while !ended.load(SeqCst) {
        for selection in [&Selection::default(), &Selection::default(), &all] {
            let before = written.load(SeqCst);
            let found = found(&reader, selection);
            let most = begun.load(SeqCst);
            assert!(found.values().all(|&count| count == 1), "something is counted twice");
            let (first, last) = (found.keys().next(), found.keys().next_back());
            let first = first.copied().unwrap_or(before);
            // Retention takes the oldest, and nothing of what is younger may be missing.
            let missing = (first..before).find(|number| !found.contains_key(number));
            assert_eq!(missing, None, "of {first} to {before}");
            assert!(last.is_none_or(|&last| last < most), "{last:?} of {most}");
            reader.holdings(&Selection::default()).unwrap();
            asked += 1;
        }
    }
    asked
}

fn asked_while_written(bounds: Options) -> Store {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), bounds).unwrap();
    let (begun, written, ended) = (AtomicI64::new(0), AtomicI64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(directory.path(), &ended, &begun, &written));
        let store = write(store, &begun, &written);
        ended.store(true, SeqCst);
        assert!(asking.join().unwrap() > 5);
        store
    })
}

#[test]
fn questions_are_answered_while_segments_are_sealed_and_rolled_up() {
    let store = asked_while_written(options());
    assert!(store.counters().rollups_made > 5, "{:?}", store.counters());
}

#[test]
fn questions_are_answered_while_retention_drops_segments() {
    let max_age = Duration::from_secs(8 * 3600);
    let store = asked_while_written(Options { max_age, ..options() });
    assert!(store.counters().dropped_by_age > 5, "{:?}", store.counters());
}
