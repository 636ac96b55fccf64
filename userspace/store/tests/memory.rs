//! What an open segment keeps in memory is what it says, and is bounded.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use strata_store::{Options, Selection, Store};
use support::{SECOND, START, counts, head, options, profile};

/// Bytes that are in use, with what the allocator takes for each piece.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

fn size(layout: Layout) -> isize {
    isize::try_from(layout.size() + 16).unwrap_or(isize::MAX)
}

// SAFETY: everything is the system allocator's; this only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(size(layout), Relaxed);
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

// One test, because what another thread takes would be counted.
#[test]
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
        store.append(&head(service, START), &written, START).unwrap();
        drop(written);
        let said = store.dictionaries();
        most = most.max(said);
        if store.counters().segments_sealed == 0 && said > limit / 16 {
            let really = usize::try_from(IN_USE.load(Relaxed) - before).unwrap();
            assert!(said.abs_diff(really) < really / 8, "{said} said, {really} taken");
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
