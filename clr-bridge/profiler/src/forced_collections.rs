//! Collections that a change of the bridge's own sessions makes.
//!
//! While any tool has a session with the keyword `GCHeapCollect` (0x800000), as `dotnet-gcdump` and
//! sessions with all keywords have, the runtime collects fully each time that a session of its provider
//! is opened or closed (.NET 10: opened), and the thread that does so waits for it
//! (src/coreclr/vm/eventtrace.cpp, `EtwCallbackCommon`). No interface reveals the keywords of other sessions, so it is seen by the
//! collections only.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// `gc_reason` of a collection that was asked for (src/coreclr/gc/gc.h).
const INDUCED: u32 = 1;
const OLDEST: u32 = 2;

/// A collection during a change may be one that the program has asked for, or that this thread's own
/// allocations have made necessary. In so many changes in a row it is not: openings and closings in a row
/// are counted apart, and added.
const IN_A_ROW: u32 = 2;

/// What a change does to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Opens,
    Closes,
}

/// Whether changes of sessions make the runtime collect.
pub struct ForcedCollections {
    /// The thread that changes a session; 0: none does.
    changing: AtomicU32,
    /// It has suspended the others to collect.
    collects_itself: AtomicBool,
    /// There was a full collection that was asked for, on any thread.
    is_induced: AtomicBool,
    /// There was another one.
    is_ordinary: AtomicBool,
    /// Changes in a row that made a collection, as it seems: those of [`Change::Opens`] and of the other.
    opened_in_a_row: AtomicU32,
    closed_in_a_row: AtomicU32,
    /// In this process the threads that need a collection make it, so one for a change is made by the thread
    /// of the change. A server collector has threads of its own.
    is_made_where_needed: AtomicBool,
    is_forced: AtomicBool,
}

impl ForcedCollections {
    pub const fn new() -> Self {
        Self {
            changing: AtomicU32::new(0),
            collects_itself: AtomicBool::new(false),
            is_induced: AtomicBool::new(false),
            is_ordinary: AtomicBool::new(false),
            opened_in_a_row: AtomicU32::new(0),
            closed_in_a_row: AtomicU32::new(0),
            is_made_where_needed: AtomicBool::new(false),
            is_forced: AtomicBool::new(false),
        }
    }

    /// Whether the last change made the runtime collect.
    pub fn is_forced(&self) -> bool {
        self.is_forced.load(Ordering::Relaxed)
    }

    /// The next change will tell again.
    pub fn forget(&self) {
        self.opened_in_a_row.store(0, Ordering::Relaxed);
        self.closed_in_a_row.store(0, Ordering::Relaxed);
        self.is_forced.store(false, Ordering::Relaxed);
    }

    /// Makes a change on this thread; one is made at a time. `collections` counts those of the process.
    pub fn watch<T>(
        &self,
        thread: u32,
        what: Change,
        collections: impl Fn() -> u64,
        change: impl FnOnce() -> T,
    ) -> T {
        let before = collections();
        self.collects_itself.store(false, Ordering::Relaxed);
        self.is_induced.store(false, Ordering::Relaxed);
        self.is_ordinary.store(false, Ordering::Relaxed);
        self.changing.store(thread, Ordering::Relaxed);
        let result = change();
        self.changing.store(0, Ordering::Relaxed);
        let is_there = |one: &AtomicBool| one.load(Ordering::Relaxed);
        let collects_itself = is_there(&self.collects_itself);
        // A session that is closed does not have the event any more.
        let is_unknown = collections() != before && !is_there(&self.is_ordinary);
        let is_made = if is_there(&self.is_made_where_needed) {
            collects_itself && (is_there(&self.is_induced) || is_unknown)
        } else {
            is_there(&self.is_induced)
        };
        let (same, other) = match what {
            Change::Opens => (&self.opened_in_a_row, &self.closed_in_a_row),
            Change::Closes => (&self.closed_in_a_row, &self.opened_in_a_row),
        };
        let in_a_row = match same.load(Ordering::Relaxed) {
            in_a_row if is_made => in_a_row + 1,
            in_a_row if is_unknown => in_a_row,
            _ => 0,
        };
        same.store(in_a_row, Ordering::Relaxed);
        let sum = in_a_row + other.load(Ordering::Relaxed);
        self.is_forced.store(sum >= IN_A_ROW, Ordering::Relaxed);
        result
    }

    /// This thread suspends the others to collect. `is_managed`: it is one of the program's.
    pub fn suspends(&self, thread: u32, is_managed: impl FnOnce() -> bool) {
        if !self.is_made_where_needed.load(Ordering::Relaxed) && is_managed() {
            self.is_made_where_needed.store(true, Ordering::Relaxed);
        }
        if self.changing.load(Ordering::Relaxed) == thread {
            self.collects_itself.store(true, Ordering::Relaxed);
        }
    }

    /// A collection starts.
    pub fn starts(&self, generation: u32, reason: u32) {
        if self.changing.load(Ordering::Relaxed) != 0 {
            let is_full = generation == OLDEST && reason == INDUCED;
            let one = if is_full { &self.is_induced } else { &self.is_ordinary };
            one.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const CHANGER: u32 = 7;
    const COLLECTOR: u32 = 8;

    /// A thread, and the generation and reason of an event about its collection.
    type Collected = (u32, Option<(u32, u32)>);

    /// Is one of the program's that can collect.
    const PROGRAMS: u32 = 9;

    fn is_made(forced: &ForcedCollections, collected: Option<Collected>) -> bool {
        changed(forced, Change::Opens, collected)
    }

    fn changed(forced: &ForcedCollections, what: Change, collected: Option<Collected>) -> bool {
        let count = Cell::new(0);
        let collect = || {
            if let Some((thread, event)) = collected {
                forced.suspends(thread, || thread != COLLECTOR);
                if let Some((generation, reason)) = event {
                    forced.starts(generation, reason);
                }
                count.set(1);
            }
        };
        forced.watch(CHANGER, what, || count.get(), collect);
        forced.is_forced()
    }

    #[test]
    fn collections_of_the_thread_that_changes_a_session_are_forced() {
        let forced = ForcedCollections::new();
        let (full, young) = ((CHANGER, Some((OLDEST, INDUCED))), (CHANGER, Some((0, 0))));
        assert!(!is_made(&forced, Some(full)));
        // A session that is closed has no event.
        assert!(is_made(&forced, Some((CHANGER, None))));
        assert!(!is_made(&forced, None));
        // What it allocates itself may make one necessary.
        for _ in 0..10 {
            assert!(!is_made(&forced, Some(young)));
            assert!(!is_made(&forced, Some((CHANGER, None))));
        }
        // Those of other threads are the program's.
        for _ in 0..10 {
            assert!(!is_made(&forced, Some((PROGRAMS, Some((OLDEST, INDUCED))))));
        }
        forced.suspends(CHANGER, || true);
        forced.starts(OLDEST, INDUCED);
        assert!(!is_made(&forced, None));
    }

    #[test]
    fn collections_are_forced_where_only_one_kind_of_change_makes_them() {
        let full = Some((CHANGER, Some((OLDEST, INDUCED))));
        for (first, second) in [(full, None), (None, full)] {
            let forced = ForcedCollections::new();
            assert!(!changed(&forced, Change::Opens, first));
            assert!(!changed(&forced, Change::Closes, second));
            let opened = changed(&forced, Change::Opens, first);
            assert!(opened || changed(&forced, Change::Closes, second));
        }
    }

    #[test]
    fn collections_that_the_program_asks_for_are_none_from_the_first_one_on() {
        let forced = ForcedCollections::new();
        for _ in 0..10 {
            assert!(!is_made(&forced, Some((PROGRAMS, Some((OLDEST, INDUCED))))));
        }
    }

    #[test]
    fn full_collections_of_a_collectors_threads_are_when_there_is_one_in_each_change() {
        let forced = ForcedCollections::new();
        let full = (COLLECTOR, Some((OLDEST, INDUCED)));
        for _ in 0..100 {
            assert!(!is_made(&forced, Some(full)));
            assert!(!is_made(&forced, None));
            assert!(!is_made(&forced, Some((COLLECTOR, Some((0, 0))))));
        }
        assert!(!is_made(&forced, Some(full)));
        assert!(!is_made(&forced, Some((COLLECTOR, None))));
        assert!(is_made(&forced, Some(full)));
        forced.forget();
        assert!(!forced.is_forced());
        assert!(!is_made(&forced, Some(full)));
    }
}
