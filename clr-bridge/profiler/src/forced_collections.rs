//! Collections that a change of the bridge's own sessions makes.
//!
//! While any tool has a session with the keyword `GCHeapCollect` (0x800000), as `dotnet-gcdump` and
//! sessions with all keywords have, the runtime collects fully each time that a session of its provider
//! is opened or closed, and the thread that does so waits for it (src/coreclr/vm/eventtrace.cpp,
//! `EtwCallbackCommon`). No interface reveals the keywords of other sessions, so it is seen by the
//! collections only.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// `gc_reason` of a collection that was asked for (src/coreclr/gc/gc.h).
const INDUCED: u32 = 1;
const OLDEST: u32 = 2;

/// With a collector that has threads of its own, a full collection during a change may be one that the
/// program has asked for. In so many changes in a row it is not.
const IN_A_ROW: u32 = 2;

/// Whether changes of sessions make the runtime collect.
pub struct ForcedCollections {
    /// The thread that changes a session; 0: none does.
    changing: AtomicU32,
    /// It has suspended the others to collect.
    collects_itself: AtomicBool,
    /// There was a full collection that was asked for, on any thread.
    is_induced: AtomicBool,
    /// Changes in a row during which there was one.
    in_a_row: AtomicU32,
    /// A thread that changes a session collects by itself in this process.
    has_collected_itself: AtomicBool,
    is_forced: AtomicBool,
}

impl ForcedCollections {
    pub const fn new() -> Self {
        Self {
            changing: AtomicU32::new(0),
            collects_itself: AtomicBool::new(false),
            is_induced: AtomicBool::new(false),
            in_a_row: AtomicU32::new(0),
            has_collected_itself: AtomicBool::new(false),
            is_forced: AtomicBool::new(false),
        }
    }

    /// Whether the last change made the runtime collect.
    pub fn is_forced(&self) -> bool {
        self.is_forced.load(Ordering::Relaxed)
    }

    /// The next change will tell again.
    pub fn forget(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
        self.is_forced.store(false, Ordering::Relaxed);
    }

    /// Makes a change on this thread; one is made at a time. `collections` counts those of the process.
    pub fn watch<T>(
        &self,
        thread: u32,
        collections: impl Fn() -> u64,
        change: impl FnOnce() -> T,
    ) -> T {
        let before = collections();
        self.collects_itself.store(false, Ordering::Relaxed);
        self.is_induced.store(false, Ordering::Relaxed);
        self.changing.store(thread, Ordering::Relaxed);
        let result = change();
        self.changing.store(0, Ordering::Relaxed);
        let in_a_row = match self.in_a_row.load(Ordering::Relaxed) {
            before if self.is_induced.load(Ordering::Relaxed) => before + 1,
            _ if collections() == before => 0,
            // A session that is closed does not have the event any more.
            before => before,
        };
        self.in_a_row.store(in_a_row, Ordering::Relaxed);
        let collects_itself = self.collects_itself.load(Ordering::Relaxed);
        if collects_itself {
            self.has_collected_itself.store(true, Ordering::Relaxed);
        }
        let is_by_itself = self.has_collected_itself.load(Ordering::Relaxed);
        let is_forced = collects_itself || !is_by_itself && in_a_row >= IN_A_ROW;
        self.is_forced.store(is_forced, Ordering::Relaxed);
        result
    }

    /// This thread suspends the others to collect.
    pub fn suspends(&self, thread: u32) {
        if self.changing.load(Ordering::Relaxed) == thread {
            self.collects_itself.store(true, Ordering::Relaxed);
        }
    }

    /// A collection starts.
    pub fn starts(&self, generation: u32, reason: u32) {
        let is_full = generation == OLDEST && reason == INDUCED;
        if is_full && self.changing.load(Ordering::Relaxed) != 0 {
            self.is_induced.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const CHANGER: u32 = 7;
    const COLLECTOR: u32 = 8;

    fn is_made(forced: &ForcedCollections, collection: Option<(u32, u32, u32)>) -> bool {
        let count = Cell::new(0);
        let collect = || {
            if let Some((thread, generation, reason)) = collection {
                forced.suspends(thread);
                forced.starts(generation, reason);
                count.set(1);
            }
        };
        forced.watch(CHANGER, || count.get(), collect);
        forced.is_forced()
    }

    #[test]
    fn a_collection_of_the_thread_that_changes_a_session_is_forced() {
        let forced = ForcedCollections::new();
        assert!(is_made(&forced, Some((CHANGER, OLDEST, INDUCED))));
        assert!(!is_made(&forced, None));
        forced.suspends(CHANGER);
        forced.starts(OLDEST, INDUCED);
        assert!(!is_made(&forced, None));
    }

    #[test]
    fn what_was_seen_is_forgotten() {
        let forced = ForcedCollections::new();
        assert!(is_made(&forced, Some((CHANGER, OLDEST, INDUCED))));
        forced.forget();
        assert!(!forced.is_forced());
        // Where the thread collects by itself, other collections are the program's.
        for _ in 0..10 {
            assert!(!is_made(&forced, Some((COLLECTOR, OLDEST, INDUCED))));
        }
    }

    #[test]
    fn full_collections_on_other_threads_are_when_there_is_one_in_each_change() {
        let forced = ForcedCollections::new();
        let (full, young) = ((COLLECTOR, OLDEST, INDUCED), (COLLECTOR, 0, 0));
        for _ in 0..100 {
            assert!(!is_made(&forced, Some(full)));
            assert!(!is_made(&forced, None));
            assert!(!is_made(&forced, Some(young)));
        }
        assert!(!is_made(&forced, Some(full)));
        // The session with the event was closed.
        assert!(!is_made(&forced, Some(young)));
        assert!(is_made(&forced, Some(full)));
        assert!(!is_made(&forced, None));
    }
}
