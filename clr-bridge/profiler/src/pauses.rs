//! Which suspensions of the process are pauses for a garbage collection, and for which one.
//!
//! The runtime suspends all threads also for profilers, debuggers, and changes to its code. Several
//! threads may begin to at the same time, and one after the other succeeds; a thread may begin while
//! the last one has let the threads run and has not reported it yet. So each thread that suspends has a
//! place of its own. It is the one that lets the threads run again, whatever thread collects
//! meanwhile: the server collector has several (src/coreclr/gc/gc.cpp, `gc_thread_function`).
//!
//! A background collection makes two pauses, the second one on a thread of its own, and others may
//! happen in between. A pause may have two collections: one of a young generation goes before a
//! background one. One that is reported as in the background may end within its first pause, as it
//! does while the collector's thread is not there yet (seen on 8 to 10): it was a blocking one.
//!
//! **Invariant:** no lock, no allocation, no call: all threads may be suspended. What began before
//! the events came is not reported.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use strata_bridge_protocol::collection::{BACKGROUND, BLOCKING, Collection, UNKNOWN};

/// Reasons of a suspension (src/coreclr/vm/threadsuspend.h, `SUSPEND_REASON`): a collection, and the
/// second pause of one in the background.
const FOR_COLLECTION: u32 = 1;
const FOR_BACKGROUND: u32 = 6;

/// Threads that suspend for a collection at the same time: the collector has a lock, so that there
/// are two at most, one of which has let the threads run.
const MOST: usize = 4;

/// A collection in a word: its number in the upper half, then this bit.
const IS_THERE: u64 = 1 << 31;
/// It has suspended the threads a second time.
const CONTINUES: u64 = 1 << 30;

/// The oldest generation, which alone is collected in the background.
const OLDEST: u8 = 2;

/// A pause that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    pub nanoseconds: u64,
    pub collection: Collection,
    /// The collection's, counted by the runtime from 1; 0: unknown.
    pub number: u32,
}

/// A suspension for a collection.
struct Suspension {
    /// 0: this place is free.
    thread: AtomicU32,
    /// Whether a background collection continues in it.
    is_background: AtomicBool,
    began: AtomicU64,
    collection: AtomicU64,
}

impl Suspension {
    const fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            is_background: AtomicBool::new(false),
            began: AtomicU64::new(0),
            collection: AtomicU64::new(0),
        }
    }

    fn free(&self) {
        self.thread.store(0, Ordering::Release);
    }
}

/// The suspensions for collections that are under way.
pub struct Pauses {
    suspensions: [Suspension; MOST],
    /// The background collection under way.
    background: AtomicU64,
}

impl Pauses {
    pub const fn new() -> Self {
        let suspensions = [const { Suspension::new() }; MOST];
        Self { suspensions, background: AtomicU64::new(0) }
    }

    /// Nothing is known to be under way.
    pub fn reset(&self) {
        self.background.store(0, Ordering::Release);
        self.suspensions.iter().for_each(Suspension::free);
    }

    fn of(&self, thread: u32) -> Option<&Suspension> {
        self.suspensions.iter().find(|one| one.thread.load(Ordering::Acquire) == thread)
    }

    /// A thread begins to suspend the others.
    pub fn suspends(&self, reason: u32, thread: u32, time: u64) {
        // One whose end was missed.
        self.of(thread).into_iter().for_each(Suspension::free);
        if reason != FOR_COLLECTION && reason != FOR_BACKGROUND {
            return;
        }
        let mut places = self.suspensions.iter();
        let place = places.find(|place| {
            let taken =
                place.thread.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        });
        let Some(place) = place else { return };
        if reason == FOR_BACKGROUND && self.background.load(Ordering::Acquire) != 0 {
            self.background.fetch_or(CONTINUES, Ordering::AcqRel);
        }
        place.is_background.store(reason == FOR_BACKGROUND, Ordering::Release);
        place.collection.store(0, Ordering::Release);
        place.began.store(time, Ordering::Release);
    }

    /// A collection starts, on a thread that has suspended the others or on one of the collector's.
    pub fn collects(&self, thread: u32, number: u32, collection: Collection) {
        let word = pack(number, collection);
        if collection.kind == BACKGROUND {
            self.background.store(word, Ordering::Release);
        }
        let is_first = |place: &&Suspension| {
            place.thread.load(Ordering::Acquire) != 0
                && !place.is_background.load(Ordering::Acquire)
        };
        let place = self.of(thread).or_else(|| self.suspensions.iter().find(is_first));
        let Some(place) = place else { return };
        let before = unpack(place.collection.load(Ordering::Acquire));
        let is_less = before.is_some_and(|(_, before)| {
            before.kind == BACKGROUND || before.generation > collection.generation
        });
        if !is_less || collection.kind == BACKGROUND {
            place.collection.store(word, Ordering::Release);
        }
    }

    /// A collection has ended.
    pub fn collected(&self, number: u32) {
        let background = self.background.load(Ordering::Acquire);
        let Some((of, collection)) = unpack(background) else { return };
        if of != number {
            return;
        }
        self.background.store(0, Ordering::Release);
        if background & CONTINUES == 0 {
            let blocking = pack(number, Collection { kind: BLOCKING, ..collection });
            let whole = pack(number, collection);
            for place in &self.suspensions {
                let place = &place.collection;
                // Another one may be there by now, and stays.
                let _ =
                    place.compare_exchange(whole, blocking, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// A thread has let the others run again: the pause that is over, if it was one for a
    /// collection.
    pub fn restarted(&self, thread: u32, time: u64) -> Option<Pause> {
        let place = self.of(thread)?;
        let began = place.began.load(Ordering::Acquire);
        let collection = unpack(place.collection.load(Ordering::Acquire));
        let is_background = place.is_background.load(Ordering::Acquire);
        place.free();
        let (number, collection) = if is_background {
            let background = unpack(self.background.load(Ordering::Acquire));
            // It began before the events came.
            let unknown = Collection { generation: OLDEST, reason: UNKNOWN, kind: BACKGROUND };
            background.unwrap_or((0, unknown))
        } else {
            // Without one the threads were suspended for something else.
            collection?
        };
        Some(Pause { nanoseconds: time.saturating_sub(began), collection, number })
    }
}

fn pack(number: u32, collection: Collection) -> u64 {
    u64::from(number) << 32 | IS_THERE | collection.pack()
}

fn unpack(word: u64) -> Option<(u32, Collection)> {
    (word & IS_THERE != 0).then(|| ((word >> 32) as u32, Collection::unpack(word)))
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::collection::FOREGROUND;

    use super::*;

    const APP: u32 = 7;
    const COLLECTOR: u32 = 8;
    const PROFILER: u32 = 9;

    fn collection(generation: u8, kind: u8) -> Collection {
        Collection { generation, reason: 1, kind }
    }

    fn pause(nanoseconds: u64, number: u32, collection: Collection) -> Option<Pause> {
        Some(Pause { nanoseconds, collection, number })
    }

    #[test]
    fn a_pause_lasts_from_the_suspension_to_the_restart() {
        let pauses = Pauses::new();
        pauses.suspends(FOR_COLLECTION, APP, 1_000);
        pauses.collects(APP, 1, collection(0, BLOCKING));
        pauses.collected(1);
        assert_eq!(pauses.restarted(APP, 1_500), pause(500, 1, collection(0, BLOCKING)));
        assert_eq!(pauses.restarted(APP, 1_600), None);
    }

    #[test]
    fn another_thread_than_suspends_may_collect() {
        let pauses = Pauses::new();
        pauses.suspends(FOR_COLLECTION, COLLECTOR, 1_000);
        pauses.collects(COLLECTOR + 1, 1, collection(1, BLOCKING));
        assert_eq!(pauses.restarted(COLLECTOR, 1_500), pause(500, 1, collection(1, BLOCKING)));
    }

    #[test]
    fn a_background_collection_makes_two_pauses_and_others_have_theirs() {
        let pauses = Pauses::new();
        pauses.suspends(FOR_COLLECTION, APP, 1_000);
        pauses.collects(APP, 1, collection(1, BLOCKING));
        pauses.collected(1);
        pauses.collects(APP, 2, collection(2, BACKGROUND));
        assert_eq!(pauses.restarted(APP, 1_100), pause(100, 2, collection(2, BACKGROUND)));
        pauses.suspends(FOR_COLLECTION, APP, 2_000);
        pauses.collects(APP, 3, collection(0, FOREGROUND));
        pauses.collected(3);
        assert_eq!(pauses.restarted(APP, 2_010), pause(10, 3, collection(0, FOREGROUND)));
        pauses.suspends(FOR_BACKGROUND, COLLECTOR, 3_000);
        assert_eq!(pauses.restarted(COLLECTOR, 3_300), pause(300, 2, collection(2, BACKGROUND)));
        pauses.collected(2);
        // The end of one whose beginning was not seen.
        pauses.suspends(FOR_BACKGROUND, COLLECTOR, 4_000);
        let unknown = Collection { generation: 2, reason: UNKNOWN, kind: BACKGROUND };
        assert_eq!(pauses.restarted(COLLECTOR, 4_001), pause(1, 0, unknown));
    }

    #[test]
    fn the_next_pause_may_begin_before_the_last_one_is_reported() {
        let pauses = Pauses::new();
        pauses.suspends(FOR_COLLECTION, APP, 1_000);
        pauses.collects(APP, 1, collection(2, BACKGROUND));
        pauses.suspends(FOR_BACKGROUND, COLLECTOR, 1_200);
        assert_eq!(pauses.restarted(APP, 1_300), pause(300, 1, collection(2, BACKGROUND)));
        assert_eq!(pauses.restarted(COLLECTOR, 1_400), pause(200, 1, collection(2, BACKGROUND)));
    }

    #[test]
    fn a_collection_that_ends_in_its_first_pause_is_a_blocking_one() {
        let pauses = Pauses::new();
        pauses.suspends(FOR_COLLECTION, APP, 1_000);
        pauses.collects(APP, 1, collection(2, BACKGROUND));
        pauses.collected(1);
        assert_eq!(pauses.restarted(APP, 1_300), pause(300, 1, collection(2, BLOCKING)));
        // Reported late, after all of it.
        pauses.suspends(FOR_COLLECTION, APP, 2_000);
        pauses.collects(APP, 2, collection(2, BACKGROUND));
        pauses.suspends(FOR_BACKGROUND, COLLECTOR, 2_200);
        assert_eq!(pauses.restarted(COLLECTOR, 2_300), pause(100, 2, collection(2, BACKGROUND)));
        pauses.collected(2);
        assert_eq!(pauses.restarted(APP, 2_400), pause(400, 2, collection(2, BACKGROUND)));
    }

    #[test]
    fn suspensions_for_other_reasons_are_no_pauses_of_collections() {
        const FOR_PROFILER: u32 = 8;
        let pauses = Pauses::new();
        pauses.suspends(FOR_PROFILER, PROFILER, 1_000);
        // The collection waits for the profiler.
        pauses.suspends(FOR_COLLECTION, APP, 1_100);
        assert_eq!(pauses.restarted(PROFILER, 1_200), None);
        pauses.collects(APP, 1, collection(1, BLOCKING));
        assert_eq!(pauses.restarted(APP, 1_400), pause(300, 1, collection(1, BLOCKING)));
        // For a collection that did not happen.
        pauses.suspends(FOR_COLLECTION, APP, 2_000);
        assert_eq!(pauses.restarted(APP, 2_100), None);
    }

    #[test]
    fn what_began_before_the_events_came_is_no_pause() {
        let pauses = Pauses::new();
        pauses.collects(APP, 1, collection(2, BLOCKING));
        assert_eq!(pauses.restarted(APP, 1_000), None);
        pauses.suspends(FOR_COLLECTION, APP, 2_000);
        pauses.suspends(0, APP, 3_000);
        assert_eq!(pauses.restarted(APP, 3_001), None);
        pauses.suspends(FOR_COLLECTION, APP, 4_000);
        pauses.reset();
        assert_eq!(pauses.restarted(APP, 4_001), None);
    }

    #[test]
    fn ends_that_were_missed_do_not_fill_the_places() {
        let pauses = Pauses::new();
        for time in 0..100 {
            pauses.suspends(FOR_COLLECTION, APP, time);
        }
        pauses.suspends(FOR_BACKGROUND, COLLECTOR, 200);
        assert!(pauses.restarted(COLLECTOR, 210).is_some());
    }
}
