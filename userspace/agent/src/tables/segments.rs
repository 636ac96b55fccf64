//! The segments: kernel memory for tables and extents, up to a limit.
//!
//! In this process a segment is mapped only while something is written to it or searched in it.

use std::time::Instant;

use strata_abi::tables::SEGMENT_BYTES;

use super::arena::{Arena, Range};
use crate::kernel::loader::Programs;
use crate::kernel::memory::{MapMemory, RestingMemory};

pub struct Segments {
    arena: Arena,
    /// A segment's number is its position.
    memory: Vec<RestingMemory>,
    limit: usize,
    /// An allocation failed since the last query.
    is_short: bool,
}

impl Segments {
    /// `limit` bounds their bytes.
    pub fn new(limit: u64) -> Self {
        let limit = segments_within(limit);
        Self { arena: Arena::default(), memory: Vec::new(), limit, is_short: false }
    }

    /// Changes the limit. Existing segments stay.
    pub fn set_limit(&mut self, limit: u64) {
        let (wanted, existing) = (segments_within(limit), self.arena.segments());
        if wanted < existing {
            tracing::warn!("the memory of unwind tables shrinks with a restart only");
        }
        self.limit = wanted.max(existing);
    }

    pub fn bytes(&self) -> u64 {
        (self.arena.segments() * SEGMENT_BYTES) as u64
    }

    /// Bytes that there may be for tables and extents.
    pub fn limit_bytes(&self) -> u64 {
        (self.limit * SEGMENT_BYTES) as u64
    }

    pub fn used_bytes(&self) -> u64 {
        self.arena.used_bytes()
    }

    /// True when they are at their limit and nearly full.
    pub fn is_tight(&self) -> bool {
        self.arena.segments() >= self.limit && self.arena.used_bytes() * 8 > self.bytes() * 7
    }

    /// Whether an allocation failed, although that much may be free in fragments.
    pub fn take_shortage(&mut self) -> bool {
        std::mem::take(&mut self.is_short)
    }

    /// A segment's memory, mapped from now on.
    pub fn memory(&self, segment: u32) -> Option<&MapMemory> {
        self.memory.get(segment as usize)?.get()
    }

    /// Words in a segment that is mapped.
    pub fn allocate(&mut self, programs: &mut Programs, words: u32) -> Option<Range> {
        if let Some(range) = self.arena.allocate(words) {
            if self.memory(range.segment).is_none() {
                self.arena.free(range, Instant::now());
                return None;
            }
            return Some(range);
        }
        if self.arena.segments() >= self.limit {
            self.is_short = true;
            return None;
        }
        match programs.add_segment() {
            Ok(memory) => {
                self.memory.push(memory);
                self.arena.add_segment();
                let range = self.arena.allocate(words)?;
                self.memory(range.segment).map(|_| range)
            }
            Err(error) => {
                tracing::warn!(%error, "no further memory for unwind tables");
                self.limit = self.arena.segments();
                None
            }
        }
    }

    /// Frees a range; it is reused once the grace period has passed.
    pub fn free(&mut self, range: Range, now: Instant) {
        self.arena.free(range, now);
    }

    /// Housekeeping: memory whose grace period has passed is available again, and what is not used
    /// is unmapped.
    pub fn reclaim(&mut self, now: Instant) {
        self.arena.reclaim(now);
        self.memory.iter_mut().for_each(RestingMemory::rest);
    }
}

/// Segments that a limit has room for; less than two are of no use.
fn segments_within(limit: u64) -> usize {
    usize::try_from(limit / SEGMENT_BYTES as u64).unwrap_or(usize::MAX).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_limit_holds_for_segments_that_are_still_to_come() {
        let segments = |count: usize| (count * SEGMENT_BYTES) as u64;
        let mut all = Segments::new(segments(3));
        assert_eq!(all.limit, 3);
        all.set_limit(segments(7));
        assert_eq!(all.limit, 7);
        for _ in 0..5 {
            all.arena.add_segment();
        }
        all.set_limit(segments(4));
        assert_eq!(all.limit, 5, "those that exist stay");
        all.set_limit(segments(6));
        assert_eq!(all.limit, 6);
        assert_eq!(Segments::new(0).limit, 2);
    }
}
