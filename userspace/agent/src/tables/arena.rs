//! Words in segments: first fit, freed ranges reused after a grace period.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use strata_abi::tables::SEGMENT_WORDS;

use super::GRACE;

/// A range of words in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    pub segment: u32,
    pub offset: u32,
    pub words: u32,
}

/// Ranges are multiples of an extent, so that extents are aligned to their own size.
const UNIT: u32 = 16;

#[derive(Default)]
pub struct Arena {
    /// Per segment: free ranges, offset → words.
    free: Vec<BTreeMap<u32, u32>>,
    /// Freed, but maybe still in use by the kernel.
    waiting: VecDeque<(Instant, Range)>,
    used_words: u64,
}

impl Arena {
    /// Makes a new segment's words available.
    pub fn add_segment(&mut self) {
        self.free.push(BTreeMap::from([(0, SEGMENT_WORDS as u32)]));
    }

    pub fn segments(&self) -> usize {
        self.free.len()
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_words * 4
    }

    pub fn allocate(&mut self, words: u32) -> Option<Range> {
        let words = words.max(1).checked_next_multiple_of(UNIT)?;
        for (segment, free) in self.free.iter_mut().enumerate() {
            let Some((&offset, &available)) = free.iter().find(|(_, size)| **size >= words) else {
                continue;
            };
            free.remove(&offset);
            if available > words {
                free.insert(offset + words, available - words);
            }
            self.used_words += u64::from(words);
            return Some(Range { segment: segment as u32, offset, words });
        }
        None
    }

    /// Frees a range; it is reused once the grace period has passed.
    pub fn free(&mut self, range: Range, now: Instant) {
        self.used_words -= u64::from(range.words);
        self.waiting.push_back((now, range));
    }

    /// Makes ranges whose grace period has passed available again.
    pub fn reclaim(&mut self, now: Instant) {
        while let Some(&(freed, range)) = self.waiting.front() {
            if now.saturating_duration_since(freed) < GRACE {
                break;
            }
            self.waiting.pop_front();
            self.insert(range);
        }
    }

    fn insert(&mut self, range: Range) {
        let Some(free) = self.free.get_mut(range.segment as usize) else { return };
        let (mut offset, mut words) = (range.offset, range.words);
        if let Some((&before, &size)) = free.range(..offset).next_back()
            && before + size == offset
        {
            free.remove(&before);
            offset = before;
            words += size;
        }
        if let Some(size) = free.remove(&(offset + words)) {
            words += size;
        }
        free.insert(offset, words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_range_is_not_reused_within_the_grace_period() {
        let mut arena = Arena::default();
        arena.add_segment();
        let now = Instant::now();
        let all = arena.allocate(SEGMENT_WORDS as u32).expect("a whole segment is free");
        arena.free(all, now);
        arena.reclaim(now + GRACE / 2);
        assert_eq!(arena.allocate(16), None);
        arena.reclaim(now + GRACE);
        assert_eq!(arena.allocate(SEGMENT_WORDS as u32), Some(all));
    }

    #[test]
    fn freed_neighbours_become_one_range() {
        let mut arena = Arena::default();
        arena.add_segment();
        let now = Instant::now();
        let third = SEGMENT_WORDS as u32 / 4;
        let ranges: Vec<_> = (0..4).filter_map(|_| arena.allocate(third)).collect();
        for index in [2, 0, 3, 1] {
            arena.free(ranges[index], now);
        }
        arena.reclaim(now + GRACE);
        assert_eq!(arena.used_bytes(), 0);
        assert!(arena.allocate(SEGMENT_WORDS as u32).is_some());
    }
}
