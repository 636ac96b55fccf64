//! Events of allocations that are switched off for part of the time, where there are so many that the
//! runtime's own work for them would slow the program down.
//!
//! Up to [`BOUND`] events a second they are on all the time. Beyond, a thread ([`thread`]) opens a
//! session for them in *windows*: of each *cycle* of `2^shift` parts one is a window, chosen by chance
//! ([`planning`]). Length and shift of a cycle are settled before it begins, so the chance of a moment
//! to be in a window is the same for all moments of a cycle, and an event in a window stands for
//! `2^shift`.
//!
//! Cycles are measured in collections where these are frequent, else in nanoseconds. Between two
//! collections about the same number of bytes is allocated, so sums of a program that allocates in
//! bursts, or has other work at times, scatter little. A collection also ends what every thread has
//! allocated ahead, in which .NET 10 has settled before what it samples: a window that begins and
//! ends with one has no edges.
//!
//! **Invariant:** an event counts by its own position on the cycle's clock, not by when the session
//! happened to be open. Nothing here waits on the thread of an event.

pub mod planning;
pub mod thread;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::gate;
use planning::{BOUND, Clock, Window};

/// Events beyond the bound that are let pass at once, as the time in which the bound allows as many: 60,000
/// events, of 6 GB, whose sums are exact. They cost 0.3 s of CPU time.
const TOLERANCE: u64 = 15_000_000_000;
/// What is left of it after windows.
const TOLERANCE_AGAIN: u64 = 500_000_000;

const SECOND: u64 = 1_000_000_000;

/// Which events of allocations count, and what they stand for.
pub struct DutyCycle {
    opens: AtomicU64,
    closes: AtomicU64,
    shift: AtomicU32,
    by_collections: AtomicBool,
    /// What the events that counted stood for.
    counted: AtomicU64,
    collections: Collections,
    bound: Bound,
    /// For how long windows are given up next time; 0: as at first.
    rest: AtomicU64,
    /// When those are tried again that were given up.
    rests_until: AtomicU64,
}

/// Collections of the process, as a clock.
struct Collections {
    /// Suspensions for one that are complete.
    count: AtomicU64,
    /// One is about to be.
    is_next: AtomicBool,
    /// The count that a thread waits for.
    awaited: AtomicU64,
    /// What it sleeps on.
    bell: AtomicU32,
}

/// The generic cell rate algorithm (ITU-T I.371): one word says whether there are more events than allowed.
struct Bound {
    /// When the events so far would be over at the rate allowed.
    due: AtomicU64,
    /// Nanoseconds of an event at that rate.
    interval: AtomicU64,
    is_exceeded: AtomicBool,
}

impl Bound {
    fn takes(&self, now: u64) -> bool {
        let interval = self.interval.load(Ordering::Relaxed);
        let due = self.due.load(Ordering::Relaxed);
        if due < now {
            // Of several threads that do this at once the events of one count.
            self.due.store(now + interval, Ordering::Relaxed);
            return true;
        }
        self.due.fetch_add(interval, Ordering::Relaxed).saturating_sub(now) < TOLERANCE
    }
}

impl DutyCycle {
    pub const fn new() -> Self {
        Self {
            opens: AtomicU64::new(0),
            closes: AtomicU64::new(u64::MAX),
            shift: AtomicU32::new(0),
            by_collections: AtomicBool::new(false),
            counted: AtomicU64::new(0),
            collections: Collections {
                count: AtomicU64::new(0),
                is_next: AtomicBool::new(false),
                awaited: AtomicU64::new(u64::MAX),
                bell: AtomicU32::new(0),
            },
            bound: Bound {
                due: AtomicU64::new(0),
                interval: AtomicU64::new(SECOND / BOUND),
                is_exceeded: AtomicBool::new(false),
            },
            rest: AtomicU64::new(0),
            rests_until: AtomicU64::new(0),
        }
    }

    /// How many events the current one stands for; 0: it is in no window. Calls `alarm` once when there are
    /// too many events to be on all the time.
    pub fn weight(&self, now: u64, alarm: impl FnOnce()) -> u32 {
        let closes = self.closes.load(Ordering::Acquire);
        let clock = if self.by_collections.load(Ordering::Relaxed) {
            Clock::Collections
        } else {
            Clock::Time
        };
        let position = self.position(clock, now);
        if position < self.opens.load(Ordering::Relaxed) || position >= closes {
            return 0;
        }
        if closes == u64::MAX {
            if !self.bound.takes(now) && !self.bound.is_exceeded.swap(true, Ordering::Relaxed) {
                alarm();
            }
            return 1;
        }
        let weight = 1 << self.shift.load(Ordering::Relaxed);
        self.counted.fetch_add(u64::from(weight), Ordering::Relaxed);
        weight
    }

    /// There were more events than may be on all the time.
    pub fn is_exceeded(&self) -> bool {
        self.bound.is_exceeded.load(Ordering::Relaxed)
    }

    fn position(&self, clock: Clock, now: u64) -> u64 {
        match clock {
            Clock::Time => now,
            Clock::Collections => self.collections(),
        }
    }

    /// From now on this window counts. The session of one before with another shift is closed.
    fn set(&self, window: &Window) {
        self.closes.store(0, Ordering::Release);
        self.opens.store(window.opens, Ordering::Relaxed);
        self.shift.store(window.shift, Ordering::Relaxed);
        self.by_collections.store(window.clock == Clock::Collections, Ordering::Relaxed);
        self.closes.store(window.closes, Ordering::Release);
    }

    /// All events count, up to so many a second.
    fn set_always(&self, rate: u64, now: u64) {
        self.bound.interval.store(SECOND / rate.max(1), Ordering::Relaxed);
        self.bound.due.store(now + TOLERANCE - TOLERANCE_AGAIN, Ordering::Relaxed);
        self.set(&Window { clock: Clock::Time, shift: 0, opens: 0, closes: u64::MAX });
        self.bound.is_exceeded.store(false, Ordering::Relaxed);
    }

    /// A suspension of the process begins; `true`: for a collection. On the thread that suspends the
    /// others.
    pub fn suspends(&self, reason: u32) -> bool {
        // COR_PRF_SUSPEND_FOR_GC and COR_PRF_SUSPEND_FOR_GC_PREP (corprof.idl).
        let is_collection = reason == 1 || reason == 6;
        self.collections.is_next.store(is_collection, Ordering::Relaxed);
        is_collection
    }

    /// Suspensions for a collection so far.
    pub fn collections(&self) -> u64 {
        self.collections.count.load(Ordering::Relaxed)
    }

    /// All other threads are suspended: no event is under way.
    pub fn suspended(&self) {
        let collections = &self.collections;
        if !collections.is_next.swap(false, Ordering::Relaxed) {
            return;
        }
        let count = collections.count.fetch_add(1, Ordering::SeqCst) + 1;
        if count >= collections.awaited.load(Ordering::SeqCst) {
            collections.awaited.store(u64::MAX, Ordering::SeqCst);
            self.ring();
        }
    }

    /// Wakes the thread of windows.
    fn ring(&self) {
        self.collections.bell.fetch_add(1, Ordering::SeqCst);
        gate::wake(&self.collections.bell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether there is an alarm, with events at a rate.
    fn is_too_much(duty: &DutyCycle, rate: u64, milliseconds: u64, from: u64) -> bool {
        let mut alarms = 0;
        for number in 0..rate * milliseconds / 1_000 {
            assert_eq!(duty.weight(from + number * SECOND / rate, || alarms += 1), 1);
        }
        assert!(alarms <= 1, "{alarms}");
        alarms == 1
    }

    #[test]
    fn below_the_bound_events_are_on_all_the_time() {
        let duty = DutyCycle::new();
        assert!(!is_too_much(&duty, BOUND * 9 / 10, 5_000, SECOND));
        assert!(!duty.is_exceeded());
    }

    #[test]
    fn a_short_burst_is_let_pass_and_a_flood_is_not() {
        let duty = DutyCycle::new();
        for burst in 0..20 {
            assert!(!is_too_much(&duty, 50_000, 20, SECOND + burst * SECOND / 2));
        }
        assert!(!is_too_much(&duty, 50_000, 1_000, 20 * SECOND));
        assert!(is_too_much(&duty, 50_000, 500, 21 * SECOND));
        assert!(duty.is_exceeded());
        // Soon after windows there is less to spare.
        duty.set_always(BOUND, 22 * SECOND);
        assert!(is_too_much(&duty, 50_000, 100, 22 * SECOND));
    }

    #[test]
    fn an_event_counts_by_its_own_position() {
        let duty = DutyCycle::new();
        let (clock, shift) = (Clock::Time, 3);
        duty.set(&Window { clock, shift, opens: 1_000, closes: 2_000 });
        let weight = |now| duty.weight(now, || unreachable!());
        assert_eq!([999, 1_000, 1_999, 2_000].map(weight), [0, 8, 8, 0]);
        duty.set(&Window { clock: Clock::Collections, shift, opens: 1, closes: 2 });
        assert_eq!(weight(1_500), 0);
        // Other suspensions are no collections.
        for (reason, expected) in [(2, 0), (1, 8), (0, 8), (6, 0)] {
            assert_eq!(duty.suspends(reason), reason % 5 == 1);
            duty.suspended();
            assert_eq!(weight(1_500), expected, "{reason}");
        }
        duty.set_always(BOUND, 1_400);
        assert_eq!(weight(1_500), 1);
    }
}
