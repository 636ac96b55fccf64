//! Which collections have been, and when they started: by these it is known whether a sampled object
//! has been examined ([`crate::objects`]).
//!
//! **Invariant:** the callbacks of a collection write to a few words and do nothing else: all threads
//! may be suspended.

use std::sync::atomic::{AtomicU64, Ordering};

/// Collections under way are two at most: one in the background, and one before it goes on.
const UNDER_WAY: usize = 16;
/// Collections that are remembered until they are looked at.
const REMEMBERED: usize = 64;

/// Bits of a time that are given up for a number beside it: 4 µs.
const NUMBER: u64 = 0xfff;
/// The same for the pass and the generation: 1 µs.
const REST: u64 = 0x3ff;

/// A collection that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// When it started: objects allocated later were not examined.
    pub started: u64,
    /// The oldest one collected.
    pub generation: u8,
}

pub struct Collections {
    /// By the collection's number: its start, and the number's lower bits.
    started: [AtomicU64; UNDER_WAY],
    /// By position: the start, the pass through this list, the generation.
    ended: [AtomicU64; REMEMBERED],
    /// How many have ended.
    count: AtomicU64,
}

impl Collections {
    pub const fn new() -> Self {
        Self {
            started: [const { AtomicU64::new(0) }; UNDER_WAY],
            ended: [const { AtomicU64::new(u64::MAX) }; REMEMBERED],
            count: AtomicU64::new(0),
        }
    }

    /// What began before is not known any more.
    pub fn reset(&self) {
        self.started.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    }

    pub fn starts(&self, number: u32, time: u64) {
        if let Some(place) = self.started.get(number as usize % UNDER_WAY) {
            place.store(time & !NUMBER | u64::from(number) & NUMBER, Ordering::Release);
        }
    }

    /// One whose start was missed is left out.
    pub fn ends(&self, number: u32, generation: u8) {
        let place = self.started.get(number as usize % UNDER_WAY);
        let word = place.map_or(0, |place| place.swap(0, Ordering::AcqRel));
        if word == 0 || word & NUMBER != u64::from(number) & NUMBER {
            return;
        }
        let position = self.count.fetch_add(1, Ordering::AcqRel);
        if let Some(place) = self.ended.get(position as usize % REMEMBERED) {
            let time = word & !NUMBER & !REST;
            let generation = u64::from(generation.min(2));
            place.store(time | pass_of(position) << 2 | generation, Ordering::Release);
        }
    }

    /// How many have ended.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Passes on those from this position on that are remembered; returns the next position.
    pub fn since(&self, position: u64, mut each: impl FnMut(Ended)) -> u64 {
        let end = self.count();
        let first = position.max(end.saturating_sub(REMEMBERED as u64));
        for position in first..end {
            let Some(place) = self.ended.get(position as usize % REMEMBERED) else { break };
            let word = place.load(Ordering::Acquire);
            if word >> 2 & 0xff != pass_of(position) {
                // Not written yet, or already by a later one.
                if self.count() < position + REMEMBERED as u64 {
                    return position;
                }
                continue;
            }
            each(Ended { started: word & !REST, generation: (word & 3) as u8 });
        }
        end
    }
}

/// The pass through the list that a position is in.
fn pass_of(position: u64) -> u64 {
    (position / REMEMBERED as u64) & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn all(collections: &Collections, from: u64) -> (Vec<(u64, u8)>, u64) {
        let mut found = Vec::new();
        let next = collections.since(from, |ended| {
            found.push((ended.started.div_ceil(SECOND), ended.generation));
        });
        (found, next)
    }

    #[test]
    fn collections_are_in_the_order_of_their_ends_with_their_starts() {
        let collections = Collections::new();
        collections.starts(1, SECOND);
        collections.starts(2, 2 * SECOND);
        collections.ends(2, 0);
        collections.ends(1, 2);
        assert_eq!(all(&collections, 0), (vec![(2, 0), (1, 2)], 2));
        assert_eq!(all(&collections, 2), (vec![], 2));
    }

    #[test]
    fn one_whose_start_was_missed_is_left_out() {
        let collections = Collections::new();
        collections.ends(1, 2);
        collections.starts(2, SECOND);
        collections.ends(2 + UNDER_WAY as u32, 2);
        collections.starts(3, SECOND);
        collections.reset();
        collections.ends(3, 2);
        assert_eq!(collections.count(), 0);
    }

    #[test]
    fn only_the_last_ones_are_remembered() {
        let collections = Collections::new();
        for number in 1..=200 {
            collections.starts(number, u64::from(number) * SECOND);
            collections.ends(number, 1);
        }
        let (found, next) = all(&collections, 0);
        assert_eq!((found.len(), next), (REMEMBERED, 200));
        assert_eq!((found[0], found[63]), ((137, 1), (200, 1)));
    }
}
