//! How long a thread has waited for a wait handle.
//!
//! The runtime reports that a wait begins (`WaitHandleWaitStart`), with its source, and that it has
//! ended (`WaitHandleWaitStop`), with nothing: the time is measured here, between the two events of a
//! thread. Of waits within a wait (a `SynchronizationContext` may wait in between) the innermost is
//! counted. A thread that waits for a contended lock does so by a handle of the runtime's
//! (`AwareLock::EnterEpilogHelper`, src/coreclr/vm/syncblk.cpp), between `ContentionStart` and
//! `ContentionStop`: that is a wait for the lock ([`crate::contention`]), and none here. A thread that
//! gives a lock up (`Lock.TryEnter` with a timeout) gets no `ContentionStop`: its next wait from another
//! source, or a minute, ends that.
//!
//! **Invariant:** no lock, no allocation; a table of fixed size. An end without its beginning is no
//! wait: one that was under way when the events came, or whose beginning found no place, is not counted.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::sampling::mix;

/// Threads that wait at the same time: 256 KiB, of which those pages are in use that hold a thread.
const WAITS: usize = 16_384;
/// Places that a thread tries.
const TRIES: usize = 16;
/// Where there is no room, a wait that has lasted as long gives up its place.
const ABANDONED: u64 = 60_000_000_000;
/// Waits for a handle: also the runtime's own while a thread waits for a lock. Another source is of no
/// wait for a lock.
const HANDLE: u8 = 0;
/// A source that the runtime does not have: the thread waits for a lock.
const LOCK: u8 = u8::MAX;
/// No thread's word: its place is being taken.
const TAKEN: u64 = u64::MAX;
/// The low bits of a place's first word.
const SOURCE_BITS: u32 = 8;

/// A thread that waits. Only the thread itself writes to the place that it has.
struct Wait {
    /// The thread's number, and the source in the low bits. 0: free.
    thread: AtomicU64,
    since: AtomicU64,
}

struct Table([Wait; WAITS]);

pub struct WaitHandles {
    /// Made when waits are first wanted, and freed with this. All zero: nothing waits.
    table: AtomicPtr<Table>,
    /// What began before is not known any more.
    from: AtomicU64,
}

/// A wait that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleWait {
    pub nanoseconds: u64,
    pub source: u8,
}

struct Ended {
    since: u64,
    source: u8,
}

/// What became of a beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    Kept,
    /// In the place of a wait that has lasted long: that one is lost.
    Instead,
    /// There is no room.
    Lost,
}

impl Drop for WaitHandles {
    fn drop(&mut self) {
        let table = *self.table.get_mut();
        if !table.is_null() {
            // SAFETY: allocated in `prepare` with this layout, and nothing uses it any more.
            unsafe { dealloc(table.cast(), Layout::new::<Table>()) };
        }
    }
}

impl WaitHandles {
    pub const fn new() -> Self {
        Self { table: AtomicPtr::new(null_mut()), from: AtomicU64::new(0) }
    }

    /// Makes the table. Without memory no wait is kept.
    pub fn prepare(&self) {
        if self.table.load(Ordering::Acquire).is_null() {
            // SAFETY: the type has a size.
            let table = unsafe { alloc_zeroed(Layout::new::<Table>()) }.cast::<Table>();
            self.table.store(table, Ordering::Release);
        }
    }

    /// Forgets what is under way: the events stop, or come anew.
    pub fn reset(&self, now: u64) {
        self.from.store(now, Ordering::Release);
    }

    /// The places of a thread.
    fn places(&self, number: u64) -> impl Iterator<Item = &Wait> {
        // SAFETY: null or made in `prepare`, where it is all zero, which is valid for atomics; it
        // lives as long as this.
        let table = unsafe { self.table.load(Ordering::Acquire).as_ref() };
        let first = mix(number) as usize;
        table.into_iter().flat_map(move |table| {
            (0..TRIES).filter_map(move |at| table.0.get(first.wrapping_add(at) % WAITS))
        })
    }

    /// A thread ([`crate::tasks::key`]) begins to wait.
    pub fn begins(&self, thread: u64, source: u8, now: u64) -> Begun {
        self.keep(thread, source.min(LOCK - 1), now)
    }

    fn keep(&self, thread: u64, source: u8, now: u64) -> Begun {
        let (number, from) = (numbered(thread), self.from.load(Ordering::Acquire));
        let word = number | u64::from(source);
        if let Some((own, there)) = self.place_of(number) {
            let since = own.since.load(Ordering::Relaxed);
            let may_be_under_way = since >= from && now.saturating_sub(since) <= ABANDONED;
            if there as u8 == LOCK && source == HANDLE && may_be_under_way {
                return Begun::Kept;
            }
            own.since.store(now, Ordering::Relaxed);
            own.thread.store(word, Ordering::Release);
            return Begun::Kept;
        }
        for (begun, longest) in [(Begun::Kept, u64::MAX), (Begun::Instead, ABANDONED)] {
            for place in self.places(number) {
                let there = place.thread.load(Ordering::Acquire);
                let since = place.since.load(Ordering::Relaxed);
                let is_given_up = since < from || now.saturating_sub(since) > longest;
                if (there == 0 || there != TAKEN && is_given_up)
                    && place
                        .thread
                        .compare_exchange(there, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                {
                    // Until then it looks given up, and another thread could take it.
                    place.since.store(now, Ordering::Relaxed);
                    place.thread.store(word, Ordering::Release);
                    return begun;
                }
            }
        }
        Begun::Lost
    }

    /// A thread waits no more. `None`: it is not known since when it has waited.
    pub fn ends(&self, thread: u64, now: u64) -> Option<HandleWait> {
        let ended = self.take(thread, |source| source != LOCK)?;
        let nanoseconds = now.saturating_sub(ended.since);
        Some(HandleWait { nanoseconds, source: ended.source })
    }

    /// A thread finds a lock taken: until it has got it, its waits are for the lock.
    pub fn lock_begins(&self, thread: u64, now: u64) -> Begun {
        self.keep(thread, LOCK, now)
    }

    /// A thread has got the lock.
    pub fn lock_ends(&self, thread: u64) {
        self.take(thread, |source| source == LOCK);
    }

    /// Frees the place of a thread that waits by one of these sources.
    fn take(&self, thread: u64, of: impl Fn(u8) -> bool) -> Option<Ended> {
        let (place, word) = self.place_of(numbered(thread))?;
        if !of(word as u8) {
            return None;
        }
        let since = place.since.load(Ordering::Relaxed);
        // Another thread has taken the place if it was given up.
        place.thread.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let is_known = since >= self.from.load(Ordering::Acquire);
        is_known.then_some(Ended { since, source: word as u8 })
    }

    /// A thread's place, and its word.
    fn place_of(&self, number: u64) -> Option<(&Wait, u64)> {
        let words = self.places(number).map(|place| (place, place.thread.load(Ordering::Acquire)));
        { words }.find(|(_, word)| word >> SOURCE_BITS << SOURCE_BITS == number)
    }
}

/// A thread's number above the bits of the source; an address has 48 bits.
fn numbered(thread: u64) -> u64 {
    thread << SOURCE_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> WaitHandles {
        let waits = WaitHandles::new();
        waits.prepare();
        waits
    }

    fn waited(nanoseconds: u64, source: u8) -> Option<HandleWait> {
        Some(HandleWait { nanoseconds, source })
    }

    #[test]
    fn a_wait_lasts_from_its_beginning_to_its_end_and_ends_once() {
        let waits = ready();
        assert_eq!(waits.begins(7, 1, 1_000), Begun::Kept);
        assert_eq!(waits.begins(8, 0, 1_100), Begun::Kept);
        assert_eq!(waits.ends(7, 3_000), waited(2_000, 1));
        assert_eq!(waits.ends(7, 4_000), None);
        assert_eq!(waits.ends(8, 5_000), waited(3_900, 0));
    }

    #[test]
    fn an_end_without_a_beginning_is_no_wait() {
        assert_eq!(WaitHandles::new().begins(7, 1, 1_000), Begun::Lost, "without memory");
        assert_eq!(WaitHandles::new().ends(7, 1_000), None);
        assert_eq!(ready().ends(7, 1_000), None);
    }

    #[test]
    fn a_wait_that_was_under_way_when_the_events_came_anew_is_none() {
        let waits = ready();
        waits.begins(7, 1, 1_000);
        waits.reset(2_000);
        assert_eq!(waits.ends(7, 3_000), None);
        waits.begins(7, 0, 4_000);
        assert_eq!(waits.ends(7, 4_500), waited(500, 0));
    }

    #[test]
    fn a_wait_within_a_wait_counts_from_its_own_beginning() {
        let waits = ready();
        waits.begins(7, 0, 1_000);
        waits.begins(7, 1, 2_000);
        assert_eq!(waits.ends(7, 2_500), waited(500, 1));
        assert_eq!(waits.ends(7, 9_000), None);
    }

    #[test]
    fn a_lock_that_was_given_up_hides_no_wait_for_long() {
        let waits = ready();
        waits.lock_begins(7, 1_000);
        assert_eq!(waits.begins(7, 1, 1_200), Begun::Kept);
        assert_eq!(waits.ends(7, 1_300), waited(100, 1));
        waits.lock_begins(7, 2_000);
        let later = 2_001 + ABANDONED;
        assert_eq!(waits.begins(7, HANDLE, later), Begun::Kept);
        assert_eq!(waits.ends(7, later + 50), waited(50, HANDLE));
    }

    #[test]
    fn the_waits_between_a_locks_contention_and_its_end_are_none() {
        let waits = ready();
        waits.lock_begins(7, 1_000);
        for time in [1_100, 1_200] {
            assert_eq!(waits.begins(7, 0, time), Begun::Kept);
            assert_eq!(waits.ends(7, time + 50), None);
        }
        waits.lock_ends(7);
        waits.begins(7, 0, 2_000);
        assert_eq!(waits.ends(7, 2_100), waited(100, 0));
        // The lock's end was not delivered, as the events came anew.
        waits.lock_begins(7, 3_000);
        waits.reset(4_000);
        waits.begins(7, 1, 5_000);
        waits.lock_ends(7);
        assert_eq!(waits.ends(7, 5_100), waited(100, 1));
    }

    #[test]
    fn threads_that_wait_without_end_are_many_before_one_is_lost_and_give_up_their_places() {
        let waits = ready();
        // Addresses, as far apart as those of threads.
        let thread = |number: u64| 0x7f00_0000_0000 + number * 8_392_704;
        let begun = |number: u64, now| waits.begins(thread(number), 0, now);
        let lost = (0..8_000).filter(|number| begun(*number, 1_000) != Begun::Kept).count();
        assert!(lost <= 8, "{lost} of 8,000 lost");
        let all: Vec<Begun> = (8_000..40_000).map(|number| begun(number, 2_000)).collect();
        assert!(all.contains(&Begun::Lost) && !all.contains(&Begun::Instead));
        let later = 2_001 + ABANDONED;
        assert_eq!(begun(50_000, later), Begun::Instead);
        assert_eq!(waits.ends(thread(50_000), later + 5), waited(5, 0));
        // All of them are given up at once.
        waits.reset(later + 10);
        let again = (60_000..68_000).filter(|number| begun(*number, later + 11) != Begun::Kept);
        let lost = again.count();
        assert!(lost <= 8, "{lost} of 8,000 lost again");
    }

    #[test]
    fn threads_that_wait_at_the_same_time_do_not_disturb_each_other() {
        let waits = ready();
        std::thread::scope(|scope| {
            for thread in 1..5u64 {
                let waits = &waits;
                scope.spawn(move || {
                    for time in 1..20_000 {
                        assert_eq!(waits.begins(thread, thread as u8, time), Begun::Kept);
                        assert_eq!(waits.ends(thread, time + 3), waited(3, thread as u8));
                    }
                });
            }
        });
    }
}
