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
//! The server collector also suspends all threads to change its number of heaps (.NET 9, on 8 where
//! it is asked for), for the reason of a background collection's second pause; the thread that does
//! it tells them apart. It may find a background collection under way, and change nothing
//! (src/coreclr/gc/gc.cpp, `check_heap_count`).
//!
//! **Invariant:** no lock, no allocation, no call: all threads may be suspended. What began before
//! the events came is not reported.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use strata_bridge_protocol::collection::{
    BACKGROUND, BLOCKING, Collection, HEAP_COUNT_CHANGE, UNKNOWN,
};

/// Reasons of a suspension (src/coreclr/vm/threadsuspend.h, `SUSPEND_REASON`): a collection, and
/// what prepares or continues one.
const FOR_COLLECTION: u32 = 1;
const FOR_PREPARATION: u32 = 6;

/// What a suspension is for.
const COLLECTION: u8 = 0;
/// The second pause of a background collection.
const CONTINUATION: u8 = 1;
const HEAP_COUNT: u8 = 2;

/// A thread that suspends the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspender {
    /// The server collector's, of a heap.
    Server,
    /// That of background collections.
    Background,
    Other,
}

impl Suspender {
    /// By the name that the runtime gives its threads (src/coreclr/gc/gc.cpp), padded with zeros.
    pub fn named(name: [u8; 16]) -> Self {
        match &name {
            b".NET Server GC\0\0" => Self::Server,
            b".NET BGC\0\0\0\0\0\0\0\0" => Self::Background,
            _ => Self::Other,
        }
    }
}

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
    purpose: AtomicU8,
    began: AtomicU64,
    collection: AtomicU64,
}

impl Suspension {
    const fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            purpose: AtomicU8::new(COLLECTION),
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

    /// A thread begins to suspend the others. Which one it is, is asked where that matters.
    pub fn suspends(
        &self,
        reason: u32,
        thread: u32,
        time: u64,
        suspender: impl FnOnce() -> Suspender,
    ) {
        // One whose end was missed.
        self.of(thread).into_iter().for_each(Suspension::free);
        let has_background = || self.background.load(Ordering::Acquire) != 0;
        let purpose = match reason {
            FOR_COLLECTION => COLLECTION,
            FOR_PREPARATION => match suspender() {
                Suspender::Server => HEAP_COUNT,
                Suspender::Background => CONTINUATION,
                // Threads have no names before .NET 6.
                Suspender::Other if has_background() => CONTINUATION,
                Suspender::Other => return,
            },
            _ => return,
        };
        let mut places = self.suspensions.iter();
        let place = places.find(|place| {
            let taken =
                place.thread.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        });
        let Some(place) = place else { return };
        if purpose == CONTINUATION && has_background() {
            self.background.fetch_or(CONTINUES, Ordering::AcqRel);
        }
        place.purpose.store(purpose, Ordering::Release);
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
                && place.purpose.load(Ordering::Acquire) == COLLECTION
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

    /// A thread has let the others run again: the pause that is over, if it was the collector's.
    pub fn restarted(&self, thread: u32, time: u64) -> Option<Pause> {
        let place = self.of(thread)?;
        let began = place.began.load(Ordering::Acquire);
        let collection = unpack(place.collection.load(Ordering::Acquire));
        let purpose = place.purpose.load(Ordering::Acquire);
        place.free();
        let unknown = Collection { generation: OLDEST, reason: UNKNOWN, kind: BACKGROUND };
        let (number, collection) = match purpose {
            // It may have begun before the events came.
            CONTINUATION => unpack(self.background.load(Ordering::Acquire)).unwrap_or((0, unknown)),
            HEAP_COUNT => {
                (0, Collection { generation: UNKNOWN, kind: HEAP_COUNT_CHANGE, ..unknown })
            }
            // Without one the threads were suspended for something else.
            _ => collection?,
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
    const SERVER: u32 = 10;

    fn collection(generation: u8, kind: u8) -> Collection {
        Collection { generation, reason: 1, kind }
    }

    fn suspends(pauses: &Pauses, reason: u32, thread: u32, time: u64) {
        pauses.suspends(reason, thread, time, || match thread {
            SERVER => Suspender::Server,
            COLLECTOR => Suspender::Background,
            _ => Suspender::Other,
        });
    }

    fn pause(nanoseconds: u64, number: u32, collection: Collection) -> Option<Pause> {
        Some(Pause { nanoseconds, collection, number })
    }

    #[test]
    fn a_pause_lasts_from_the_suspension_to_the_restart() {
        let pauses = Pauses::new();
        suspends(&pauses, FOR_COLLECTION, APP, 1_000);
        pauses.collects(APP, 1, collection(0, BLOCKING));
        pauses.collected(1);
        assert_eq!(pauses.restarted(APP, 1_500), pause(500, 1, collection(0, BLOCKING)));
        assert_eq!(pauses.restarted(APP, 1_600), None);
    }

    #[test]
    fn another_thread_than_suspends_may_collect() {
        let pauses = Pauses::new();
        suspends(&pauses, FOR_COLLECTION, COLLECTOR, 1_000);
        pauses.collects(COLLECTOR + 1, 1, collection(1, BLOCKING));
        assert_eq!(pauses.restarted(COLLECTOR, 1_500), pause(500, 1, collection(1, BLOCKING)));
    }

    #[test]
    fn a_background_collection_makes_two_pauses_and_others_have_theirs() {
        let pauses = Pauses::new();
        suspends(&pauses, FOR_COLLECTION, APP, 1_000);
        pauses.collects(APP, 1, collection(1, BLOCKING));
        pauses.collected(1);
        pauses.collects(APP, 2, collection(2, BACKGROUND));
        assert_eq!(pauses.restarted(APP, 1_100), pause(100, 2, collection(2, BACKGROUND)));
        suspends(&pauses, FOR_COLLECTION, APP, 2_000);
        pauses.collects(APP, 3, collection(0, FOREGROUND));
        pauses.collected(3);
        assert_eq!(pauses.restarted(APP, 2_010), pause(10, 3, collection(0, FOREGROUND)));
        suspends(&pauses, FOR_PREPARATION, COLLECTOR, 3_000);
        assert_eq!(pauses.restarted(COLLECTOR, 3_300), pause(300, 2, collection(2, BACKGROUND)));
        pauses.collected(2);
        // The end of one whose beginning was not seen.
        suspends(&pauses, FOR_PREPARATION, COLLECTOR, 4_000);
        let unknown = Collection { generation: 2, reason: UNKNOWN, kind: BACKGROUND };
        assert_eq!(pauses.restarted(COLLECTOR, 4_001), pause(1, 0, unknown));
    }

    #[test]
    fn the_next_pause_may_begin_before_the_last_one_is_reported() {
        let pauses = Pauses::new();
        suspends(&pauses, FOR_COLLECTION, APP, 1_000);
        pauses.collects(APP, 1, collection(2, BACKGROUND));
        suspends(&pauses, FOR_PREPARATION, COLLECTOR, 1_200);
        assert_eq!(pauses.restarted(APP, 1_300), pause(300, 1, collection(2, BACKGROUND)));
        assert_eq!(pauses.restarted(COLLECTOR, 1_400), pause(200, 1, collection(2, BACKGROUND)));
    }

    #[test]
    fn a_collection_that_ends_in_its_first_pause_is_a_blocking_one() {
        let pauses = Pauses::new();
        suspends(&pauses, FOR_COLLECTION, APP, 1_000);
        pauses.collects(APP, 1, collection(2, BACKGROUND));
        pauses.collected(1);
        assert_eq!(pauses.restarted(APP, 1_300), pause(300, 1, collection(2, BLOCKING)));
        // Reported late, after all of it.
        suspends(&pauses, FOR_COLLECTION, APP, 2_000);
        pauses.collects(APP, 2, collection(2, BACKGROUND));
        suspends(&pauses, FOR_PREPARATION, COLLECTOR, 2_200);
        assert_eq!(pauses.restarted(COLLECTOR, 2_300), pause(100, 2, collection(2, BACKGROUND)));
        pauses.collected(2);
        assert_eq!(pauses.restarted(APP, 2_400), pause(400, 2, collection(2, BACKGROUND)));
    }

    #[test]
    fn a_change_of_the_number_of_heaps_is_a_pause_of_its_own_and_no_collection() {
        let none = Collection { generation: UNKNOWN, reason: UNKNOWN, kind: HEAP_COUNT_CHANGE };
        let pauses = Pauses::new();
        suspends(&pauses, FOR_PREPARATION, SERVER, 1_000);
        assert_eq!(pauses.restarted(SERVER, 1_200), pause(200, 0, none));
        // It gives way to a background collection, which goes on.
        pauses.collects(APP, 1, collection(2, BACKGROUND));
        suspends(&pauses, FOR_PREPARATION, SERVER, 2_000);
        assert_eq!(pauses.restarted(SERVER, 2_010), pause(10, 0, none));
        suspends(&pauses, FOR_PREPARATION, COLLECTOR, 3_000);
        assert_eq!(pauses.restarted(COLLECTOR, 3_300), pause(300, 1, collection(2, BACKGROUND)));
        pauses.collected(1);
        // A collection by a thread that did not suspend is not in it.
        suspends(&pauses, FOR_PREPARATION, SERVER, 4_000);
        suspends(&pauses, FOR_COLLECTION, APP, 4_050);
        pauses.collects(APP + 1, 2, collection(0, BLOCKING));
        assert_eq!(pauses.restarted(SERVER, 4_100), pause(100, 0, none));
        assert_eq!(pauses.restarted(APP, 4_200), pause(150, 2, collection(0, BLOCKING)));
    }

    #[test]
    fn a_thread_that_prepares_without_a_name_continues_the_background_collection_there_is() {
        let pauses = Pauses::new();
        suspends(&pauses, FOR_PREPARATION, APP, 1_000);
        assert_eq!(pauses.restarted(APP, 1_100), None);
        pauses.collects(APP, 1, collection(2, BACKGROUND));
        suspends(&pauses, FOR_PREPARATION, APP, 2_000);
        assert_eq!(pauses.restarted(APP, 2_300), pause(300, 1, collection(2, BACKGROUND)));
        assert_eq!(Suspender::named(*b".NET Server GC\0\0"), Suspender::Server);
        assert_eq!(Suspender::named(*b"dotnet\0\0\0\0\0\0\0\0\0\0"), Suspender::Other);
    }

    #[test]
    fn suspensions_for_other_reasons_are_no_pauses_of_collections() {
        const FOR_PROFILER: u32 = 8;
        let pauses = Pauses::new();
        suspends(&pauses, FOR_PROFILER, PROFILER, 1_000);
        // The collection waits for the profiler.
        suspends(&pauses, FOR_COLLECTION, APP, 1_100);
        assert_eq!(pauses.restarted(PROFILER, 1_200), None);
        pauses.collects(APP, 1, collection(1, BLOCKING));
        assert_eq!(pauses.restarted(APP, 1_400), pause(300, 1, collection(1, BLOCKING)));
        // For a collection that did not happen.
        suspends(&pauses, FOR_COLLECTION, APP, 2_000);
        assert_eq!(pauses.restarted(APP, 2_100), None);
    }

    #[test]
    fn what_began_before_the_events_came_is_no_pause() {
        let pauses = Pauses::new();
        pauses.collects(APP, 1, collection(2, BLOCKING));
        assert_eq!(pauses.restarted(APP, 1_000), None);
        suspends(&pauses, FOR_COLLECTION, APP, 2_000);
        suspends(&pauses, 0, APP, 3_000);
        assert_eq!(pauses.restarted(APP, 3_001), None);
        suspends(&pauses, FOR_COLLECTION, APP, 4_000);
        pauses.reset();
        assert_eq!(pauses.restarted(APP, 4_001), None);
    }

    #[test]
    fn ends_that_were_missed_do_not_fill_the_places() {
        let pauses = Pauses::new();
        for time in 0..100 {
            suspends(&pauses, FOR_COLLECTION, APP, time);
        }
        suspends(&pauses, FOR_PREPARATION, COLLECTOR, 200);
        assert!(pauses.restarted(COLLECTOR, 210).is_some());
    }
}
