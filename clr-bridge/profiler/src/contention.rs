//! Who a thread waits for when a lock is taken.
//!
//! The runtime reports that a thread begins to wait (`ContentionStart`), with the lock and the thread
//! that has it, and that it has got the lock (`ContentionStop`), with the time alone. A lock that is
//! free but promised to a waiter has no owner at the start: then it is the thread that got this lock
//! first while the wait lasted.
//!
//! **Invariant:** no lock, no allocation; tables of fixed size. A wait without a place, or one that was
//! under way when the events came, has no lock and no owner.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use strata_bridge_protocol::clr_event::LockWait;

use crate::sampling::mix;

/// Threads that wait at the same time.
const WAITS: usize = 1024;
/// Places that a thread tries.
const TRIES: usize = 8;
/// A wait that has not ended since then has no end, or its thread has ended: its place is taken.
const ABANDONED: u64 = 60_000_000_000;
/// Groups of locks, and how many times that one of them was got each group has.
const GROUPS: usize = 128;
const REMEMBERED: usize = 8;

/// A thread that waits. Only the thread itself writes to the place that it has.
struct Wait {
    /// 0: free.
    thread: AtomicU64,
    lock: AtomicU64,
    owner: AtomicU64,
    since: AtomicU64,
}

/// A thread has got a lock.
struct Got {
    /// 0 while the rest changes.
    time: AtomicU64,
    lock: AtomicU64,
    thread: AtomicU64,
}

struct Group {
    next: AtomicU32,
    last: [Got; REMEMBERED],
}

struct Tables {
    waits: [Wait; WAITS],
    groups: [Group; GROUPS],
}

pub struct Contention {
    /// Made when waits are first wanted, and freed with this. All zero: nothing waits.
    tables: AtomicPtr<Tables>,
}

impl Drop for Contention {
    fn drop(&mut self) {
        let tables = *self.tables.get_mut();
        if !tables.is_null() {
            // SAFETY: allocated in `prepare` with this layout, and nothing uses it any more.
            unsafe { dealloc(tables.cast(), Layout::new::<Tables>()) };
        }
    }
}

impl Contention {
    pub const fn new() -> Self {
        Self { tables: AtomicPtr::new(null_mut()) }
    }

    /// Makes the tables. Without memory waits have no lock and no owner.
    pub fn prepare(&self) {
        if self.tables.load(Ordering::Acquire).is_null() {
            // SAFETY: the type has a size.
            let tables = unsafe { alloc_zeroed(Layout::new::<Tables>()) }.cast::<Tables>();
            self.tables.store(tables, Ordering::Release);
        }
    }

    fn tables(&self) -> Option<&Tables> {
        // SAFETY: null or made in `prepare`, where it is all zero, which is valid for atomics; it
        // lives as long as this.
        unsafe { self.tables.load(Ordering::Acquire).as_ref() }
    }

    /// A thread begins to wait. `owner` is 0 when the runtime knows none.
    pub fn begins(&self, thread: u32, lock: u64, owner: u32, now: u64) {
        let Some(wait) = self.tables().and_then(|tables| tables.claim(thread, now)) else { return };
        wait.lock.store(lock, Ordering::Relaxed);
        wait.owner.store(u64::from(owner), Ordering::Relaxed);
        wait.since.store(now, Ordering::Relaxed);
    }

    /// A thread has got the lock that it waited for.
    pub fn ends(&self, thread: u32, now: u64) -> Option<LockWait> {
        let tables = self.tables()?;
        let number = u64::from(thread);
        let wait =
            tables.places(thread).find(|wait| wait.thread.load(Ordering::Relaxed) == number)?;
        let [lock, owner, since] =
            [&wait.lock, &wait.owner, &wait.since].map(|word| word.load(Ordering::Relaxed));
        // Another thread has taken the place if it was given up.
        let is_free = wait.thread.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
        is_free.ok()?;
        let group = tables.group(lock)?;
        let owner = if owner == 0 { group.first_since(lock, since, number) } else { owner };
        group.remember(lock, number, now);
        Some(LockWait { lock, owner: owner as u32 })
    }
}

/// No thread's number: its place is being taken.
const TAKEN: u64 = u64::MAX;

impl Tables {
    fn places(&self, thread: u32) -> impl Iterator<Item = &Wait> {
        let first = mix(u64::from(thread)) as usize;
        (0..TRIES).filter_map(move |attempt| self.waits.get(first.wrapping_add(attempt) % WAITS))
    }

    /// A place for a thread: the one that it has, or one that is free, or was given up.
    fn claim(&self, thread: u32, now: u64) -> Option<&Wait> {
        let number = u64::from(thread);
        let has = |wait: &&Wait| wait.thread.load(Ordering::Relaxed) == number;
        self.places(thread).find(has).or_else(|| {
            self.places(thread).find(|wait| {
                let there = wait.thread.load(Ordering::Relaxed);
                let since = wait.since.load(Ordering::Relaxed);
                let is_given_up = there != TAKEN && now.saturating_sub(since) > ABANDONED;
                let is_taken = (there == 0 || is_given_up)
                    && wait
                        .thread
                        .compare_exchange(there, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok();
                if is_taken {
                    // Until then it looks given up, and another thread could take it.
                    wait.since.store(now, Ordering::Relaxed);
                    wait.thread.store(number, Ordering::Release);
                }
                is_taken
            })
        })
    }

    fn group(&self, lock: u64) -> Option<&Group> {
        self.groups.get(mix(lock) as usize % GROUPS)
    }
}

impl Group {
    fn remember(&self, lock: u64, thread: u64, now: u64) {
        let next = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let Some(got) = self.last.get(next % REMEMBERED) else { return };
        got.time.store(0, Ordering::Release);
        got.lock.store(lock, Ordering::Release);
        got.thread.store(thread, Ordering::Release);
        got.time.store(now, Ordering::Release);
    }

    /// The first other thread that has got a lock since a time, as far as that is remembered; 0: none.
    fn first_since(&self, lock: u64, since: u64, own: u64) -> u64 {
        let read = |got: &Got| {
            let time = got.time.load(Ordering::Acquire);
            let is_it = got.lock.load(Ordering::Acquire) == lock;
            let thread = got.thread.load(Ordering::Acquire);
            let is_whole = got.time.load(Ordering::Acquire) == time;
            (is_it && is_whole && time >= since && thread != own).then_some((time, thread))
        };
        let first = self.last.iter().filter_map(read).min();
        first.map_or(0, |(_, thread)| thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: u64 = 0x7f00_1234_5678;

    fn ready() -> Contention {
        let contention = Contention::new();
        contention.prepare();
        contention
    }

    #[test]
    fn an_owner_that_the_runtime_knows_is_the_owner() {
        let contention = ready();
        contention.begins(7, LOCK, 8, 1_000);
        assert_eq!(contention.ends(7, 2_000), Some(LockWait { lock: LOCK, owner: 8 }));
        assert_eq!(contention.ends(7, 3_000), None, "a wait ends once");
    }

    #[test]
    fn of_a_promised_lock_the_owner_is_who_got_it_first_during_the_wait() {
        let contention = ready();
        for (thread, since) in [(1, 100), (2, 110), (3, 120), (4, 130)] {
            contention.begins(thread, LOCK, 0, since);
        }
        // Another lock does not matter, nor does what was got before.
        contention.begins(9, LOCK + 64, 0, 90);
        assert_eq!(contention.ends(9, 131), Some(LockWait { lock: LOCK + 64, owner: 0 }));
        assert_eq!(contention.ends(1, 200), Some(LockWait { lock: LOCK, owner: 0 }));
        assert_eq!(contention.ends(2, 300), Some(LockWait { lock: LOCK, owner: 1 }));
        contention.begins(1, LOCK, 0, 310);
        assert_eq!(contention.ends(3, 400), Some(LockWait { lock: LOCK, owner: 1 }));
        assert_eq!(contention.ends(1, 500), Some(LockWait { lock: LOCK, owner: 3 }));
        assert_eq!(contention.ends(4, 600), Some(LockWait { lock: LOCK, owner: 1 }));
    }

    #[test]
    fn without_memory_or_a_start_there_is_no_owner() {
        let contention = Contention::new();
        contention.begins(7, LOCK, 8, 1_000);
        assert_eq!(contention.ends(7, 2_000), None);
        assert_eq!(ready().ends(7, 2_000), None);
    }

    #[test]
    fn places_of_threads_that_have_ended_are_taken() {
        let contention = ready();
        for thread in 1..100_000 {
            contention.begins(thread, LOCK, 0, 1_000);
        }
        let later = 1_001 + ABANDONED;
        contention.begins(200_000, LOCK, 5, later);
        assert_eq!(contention.ends(200_000, later), Some(LockWait { lock: LOCK, owner: 5 }));
    }

    #[test]
    fn threads_that_wait_at_the_same_time_do_not_disturb_each_other() {
        let contention = ready();
        std::thread::scope(|scope| {
            for thread in 1..5u32 {
                let contention = &contention;
                scope.spawn(move || {
                    let lock = u64::from(thread) * 64;
                    for time in 1..20_000 {
                        contention.begins(thread, lock, thread + 100, time);
                        let wait = contention.ends(thread, time + 1);
                        assert_eq!(wait, Some(LockWait { lock, owner: thread + 100 }));
                    }
                });
            }
        });
    }
}
