//! Address ranges of dynamic methods that have ended.
//!
//! The runtime may free such memory at the next collection, while a lookup reads it. Ranges noted
//! here are not looked up until new code is reported in their place. **Invariant:** when there is
//! no room, a larger range counts as dead, never a smaller one.

/// Ranges that do not touch, in their order.
pub struct DeadCode {
    ranges: Vec<(usize, usize)>,
    /// There was no memory: everything counts as dead.
    everything: bool,
}

/// Ranges lie close together: the runtime packs dynamic methods into heaps of their own.
const MOST: usize = 4096;

impl DeadCode {
    pub const fn new() -> Self {
        DeadCode { ranges: Vec::new(), everything: false }
    }

    pub fn insert(&mut self, start: usize, size: usize) {
        let (mut start, Some(mut end)) = (start, start.checked_add(size)) else { return };
        if start == end {
            return;
        }
        // Those that touch the new one become part of it.
        let first = self.ranges.partition_point(|range| range.1 < start);
        let last = self.ranges.partition_point(|range| range.0 <= end);
        if let Some(touched) = self.ranges.get(first..last)
            && let (Some(low), Some(high)) = (touched.first(), touched.last())
        {
            start = start.min(low.0);
            end = end.max(high.1);
        }
        if self.ranges.try_reserve(1).is_err() {
            self.everything = true;
            return;
        }
        self.ranges.splice(first..last.max(first), [(start, end)]);
        if self.ranges.len() > MOST {
            self.coarsen();
        }
    }

    pub fn remove(&mut self, start: usize, size: usize) {
        let Some(end) = start.checked_add(size) else { return };
        let first = self.ranges.partition_point(|range| range.1 <= start);
        let last = self.ranges.partition_point(|range| range.0 < end);
        if first >= last {
            return;
        }
        let (low, high) = match (self.ranges.get(first), self.ranges.get(last - 1)) {
            (Some(low), Some(high)) => (low.0, high.1),
            _ => return,
        };
        // A range split in the middle becomes two.
        if self.ranges.try_reserve(1).is_err() {
            return;
        }
        let mut from = first;
        if low < start
            && let Some(range) = self.ranges.get_mut(from)
        {
            *range = (low, start);
            from += 1;
        }
        // With an iterator of unknown length `splice` would allocate what it did not expect.
        if end < high {
            self.ranges.splice(from..last, [(end, high)]);
        } else {
            self.ranges.drain(from..last);
        }
    }

    pub fn contains(&self, address: usize) -> bool {
        let next = self.ranges.partition_point(|range| range.1 <= address);
        self.everything || self.ranges.get(next).is_some_and(|range| range.0 <= address)
    }

    /// Merges the nearest neighbours until half of the ranges are left.
    fn coarsen(&mut self) {
        let mut gap = 4096usize;
        while self.ranges.len() > MOST / 2 {
            self.ranges.dedup_by(|next, kept| {
                let is_near = next.0 - kept.1 <= gap;
                if is_near {
                    kept.1 = next.1;
                }
                is_near
            });
            gap = gap.saturating_mul(4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_dead_until_new_code_is_in_its_place() {
        let mut dead = DeadCode::new();
        dead.insert(100, 50);
        dead.insert(200, 50);
        assert!(dead.contains(100) && dead.contains(149) && !dead.contains(150));
        dead.insert(150, 50);
        assert_eq!(dead.ranges, [(100, 250)]);
        dead.remove(120, 10);
        assert_eq!(dead.ranges, [(100, 120), (130, 250)]);
        assert!(!dead.contains(120) && dead.contains(130));
        dead.remove(110, 200);
        assert_eq!(dead.ranges, [(100, 110)]);
        dead.remove(0, 1000);
        assert!(dead.ranges.is_empty());
        dead.remove(0, 1000);
    }

    #[test]
    fn new_code_over_several_ranges_leaves_their_ends() {
        let all = [(100, 150), (200, 250), (300, 350), (400, 450)];
        let rest = |start, end| {
            let mut dead = DeadCode::new();
            all.iter().for_each(|range| dead.insert(range.0, range.1 - range.0));
            dead.remove(start, end - start);
            dead.ranges
        };
        assert_eq!(rest(220, 320), [(100, 150), (200, 220), (320, 350), (400, 450)]);
        assert_eq!(rest(120, 420), [(100, 120), (420, 450)]);
        assert_eq!(rest(200, 350), [(100, 150), (400, 450)]);
        assert_eq!(rest(180, 320), [(100, 150), (320, 350), (400, 450)]);
        assert_eq!(rest(220, 370), [(100, 150), (200, 220), (400, 450)]);
        assert_eq!(rest(150, 200), all);
    }

    #[test]
    fn too_many_ranges_count_as_fewer_and_larger_ones() {
        let mut dead = DeadCode::new();
        for number in 0..3 * MOST {
            dead.insert(number * 10_000, 100);
            assert!(dead.ranges.len() <= MOST);
        }
        for number in 0..3 * MOST {
            assert!(dead.contains(number * 10_000 + 50));
        }
        assert!(dead.ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }
}
