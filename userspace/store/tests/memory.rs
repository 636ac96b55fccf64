//! An open segment's memory is what it reports, and is bounded.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use strata_store::{Head, Options, Selection, Store};
use support::{SECOND, START, counts, options, profile};

/// Bytes that are in use, with what the allocator takes for each piece.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);
/// The most that was in use since it was set.
static PEAK: AtomicIsize = AtomicIsize::new(0);

fn size(layout: Layout) -> isize {
    isize::try_from(layout.size() + 16).unwrap_or(isize::MAX)
}

// SAFETY: everything is the system allocator's; this only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = IN_USE.fetch_add(size(layout), Relaxed);
        PEAK.fetch_max(before + size(layout), Relaxed);
        // SAFETY: as asked of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(size(layout), Relaxed);
        // SAFETY: as asked of this function.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A profile of names that no other has.
fn new_names(period: usize) -> strata_profile::Profile {
    let stacks: Vec<_> = (0..20)
        .map(|at| format!("main of {period};a function with a long name {period} {at}"))
        .collect();
    let stacks: Vec<_> = stacks.iter().map(|stack| (stack.as_str(), 1)).collect();
    profile(&stacks)
}

/// A profile of many names, the same each time but for some that are its own.
fn many_names(period: usize) -> strata_profile::Profile {
    let stacks: Vec<_> = (0..2_000)
        .map(|at| if at < 5 { at + 10_000 * (period + 1) } else { at })
        .map(|at| format!("main;a function with a long name {at:040}"))
        .collect();
    let stacks: Vec<_> = stacks.iter().map(|stack| (stack.as_str(), 1)).collect();
    profile(&stacks)
}

/// Of a period of a second.
fn head(service: &str, period: usize) -> Head {
    let start = START + period as i64 * SECOND;
    Head { end_nanos: start + SECOND, ..support::head(service, start) }
}

/// What writing took.
struct Taken {
    /// The most that was reported.
    output: usize,
    /// The most that was in use while a profile was added, without the profile: in the first
    /// period, and after it.
    first_peak: usize,
    peak: usize,
    segments: u64,
    reads_back: u64,
}

/// Two services with large dictionaries and a few with small ones.
fn write_large(limit: usize, periods: usize) -> Taken {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { dictionary_bytes: limit, ..options() };
    let mut store = Store::open(directory.path(), options).unwrap();
    let before = IN_USE.load(Relaxed);
    let (mut output, mut really, mut first_peak, mut peak) = (0, 0, 0, 0);
    for period in 0..periods {
        for (service, is_large) in [("shop", true), ("a", false), ("b", false), ("mail", true)] {
            let written = if is_large { many_names(period) } else { new_names(0) };
            let head = head(service, period);
            PEAK.store(IN_USE.load(Relaxed), Relaxed);
            store.append(&head, &written, START).unwrap();
            let at_most = PEAK.load(Relaxed);
            let with_profile = IN_USE.load(Relaxed);
            drop(written);
            let profile = with_profile - IN_USE.load(Relaxed);
            let taken = usize::try_from(at_most - profile - before).unwrap();
            let peak = if period == 0 { &mut first_peak } else { &mut peak };
            *peak = taken.max(*peak);
            output = output.max(store.dictionaries());
            really = really.max(usize::try_from(IN_USE.load(Relaxed) - before).unwrap());
        }
    }
    assert!(really < output + output / 8, "{output} output, {really} taken");
    store.seal().unwrap();
    let answer = store.reader().query(&Selection::default()).unwrap();
    assert_eq!((answer.profiles, answer.damaged), (periods as u64 * 4, 0));
    let counters = store.counters();
    let (segments, reads_back) = (counters.segments_sealed, counters.dictionaries_read_back);
    Taken { output, first_peak, peak, segments, reads_back }
}

fn a_large_dictionary_stays_and_does_not_begin_a_segment_for_each_profile() {
    let alone = write_large(usize::MAX, 1);
    let one = alone.output / 2;
    // What a profile's record takes in the making.
    let record = alone.first_peak - alone.output;
    // Room for one of the large ones beside the small ones, and hardly for one.
    for (limit, most) in [(one * 2, one * 2), (one * 3 / 2, one * 3 / 2), (one / 2, one * 2)] {
        let Taken { output, first_peak, peak, segments, reads_back } = write_large(limit, 20);
        assert!(segments <= 2, "{segments} segments of 20 periods with {limit} bytes");
        assert!(output <= most, "{output} bytes of {limit}");
        assert!(reads_back > 0, "there was room for all");
        // A service that is new is not expected; one that is read back is.
        assert!(first_peak <= limit + one + record, "{first_peak} bytes of {limit} at first");
        let bound = limit.max(one * 3 / 2) + one / 4;
        assert!(peak <= bound, "{peak} bytes of {limit} for a moment");
    }
}

fn an_idle_process_beside_a_busy_one_does_not_begin_a_segment_for_each_period() {
    let one = write_large(usize::MAX, 1).output / 2;
    for idle_first in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        // One of the large ones takes two thirds of it.
        let options = Options { dictionary_bytes: one * 3 / 2, ..options() };
        let mut store = Store::open(directory.path(), options).unwrap();
        for period in 0..20 {
            let (idle, busy) = (new_names(0), many_names(period));
            let both = if idle_first { [&idle, &busy] } else { [&busy, &idle] };
            for (process, written) in both.into_iter().enumerate() {
                let runtime_id = format!("shop-{process}");
                let head = Head { runtime_id, ..head("shop", period) };
                store.append(&head, written, START).unwrap();
            }
        }
        store.seal().unwrap();
        let segments = store.counters().segments_sealed;
        assert!(segments <= 2, "{segments} segments of 20 periods");
    }
}

/// One large service and twenty small ones, in a limit; returns the most memory that was used and
/// how often a dictionary was read back.
fn write_beside(limit: usize) -> (usize, u64) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { dictionary_bytes: limit, ..options() };
    let mut store = Store::open(directory.path(), options).unwrap();
    let mut most = 0;
    for period in 0..20 {
        for service in 0..20 {
            let name = format!("small{service}");
            store.append(&head(&name, period), &new_names(service), START).unwrap();
            most = most.max(store.dictionaries());
        }
        store.append(&head("shop", period), &many_names(0), START).unwrap();
        most = most.max(store.dictionaries());
    }
    (most, store.counters().dictionaries_read_back)
}

fn services_that_fit_together_are_never_read_back() {
    let (all, _) = write_beside(usize::MAX);
    // With less than a quarter to spare too.
    for limit in [all * 3 / 2, all * 9 / 8] {
        let (most, reads_back) = write_beside(limit);
        assert!(most <= limit, "{most} bytes of {limit}");
        assert_eq!(reads_back, 0, "with {limit} for {all}");
    }
}

// One test, because what another thread takes would be counted.
#[test]
fn dictionaries_keep_to_their_memory() {
    services_that_fit_together_are_never_read_back();
    ever_new_names_take_what_is_said_and_begin_a_new_segment_at_the_limit();
    a_large_dictionary_stays_and_does_not_begin_a_segment_for_each_profile();
    an_idle_process_beside_a_busy_one_does_not_begin_a_segment_for_each_period();
}

fn ever_new_names_take_what_is_said_and_begin_a_new_segment_at_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let limit = 1 << 20;
    let options = Options { dictionary_bytes: limit, ..options() };
    let mut store = Store::open(directory.path(), options).unwrap();
    let before = IN_USE.load(Relaxed);
    let (mut most, mut compared) = (0, 0);
    for period in 0..800 {
        let service = ["shop", "mail"][period % 2];
        let written = new_names(period);
        store.append(&head(service, period), &written, START).unwrap();
        drop(written);
        let output = store.dictionaries();
        most = most.max(output);
        if store.counters().segments_sealed == 0 && output > limit / 16 {
            let really = usize::try_from(IN_USE.load(Relaxed) - before).unwrap();
            assert!(output.abs_diff(really) < really / 8, "{output} output, {really} taken");
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
    assert!(store.counters().segments_sealed >= 2, "{:?}", store.counters());
    assert!(most < limit, "{most}");
    let later = START + 2 * 3_600 * SECOND;
    store.tend(later).unwrap();
    assert_eq!(store.dictionaries(), 0);
    let answer = store.reader().query(&Selection::default()).unwrap();
    assert_eq!(counts(&answer).len(), 800 * 20);
}
