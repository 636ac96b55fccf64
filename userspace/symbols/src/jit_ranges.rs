//! Named address ranges that come and go: code of just-in-time compilers.
//!
//! Ranges never overlap: a new one takes its addresses from the older ones, which keep what is left
//! of them. Names lie in one buffer, which is packed when most of it is no longer used.
//!
//! Invariant: the number of ranges and the bytes of names stay under fixed limits, whatever is fed.

use std::collections::{BTreeMap, HashMap};

/// No function is larger; a line with more is damaged.
const MAX_RANGE: u64 = 1 << 30;

#[derive(Debug, Clone, Copy)]
struct Range {
    end: u64,
    /// Where the code of this name began before parts of it were taken.
    origin: u64,
    name: u32,
    name_size: u16,
    tag: u32,
}

/// A range that holds an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    pub name: &'a str,
    pub origin: u64,
    pub tag: u32,
}

#[derive(Debug)]
pub(crate) struct JitRanges {
    ranges: BTreeMap<u64, Range>,
    names: Vec<u8>,
    used_names: usize,
    max_ranges: usize,
    max_names: usize,
}

impl JitRanges {
    pub fn new(max_ranges: usize, max_names: usize) -> Self {
        Self {
            ranges: BTreeMap::new(),
            names: Vec::new(),
            used_names: 0,
            max_ranges,
            max_names: max_names.min(1 << 31),
        }
    }

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Names `size` bytes from `start`. `false` when there is no room, or the range is impossible.
    pub fn insert(&mut self, start: u64, size: u64, name: &str, tag: u32) -> bool {
        let name = strata_bytes::bounded_str(name);
        let Some(end) =
            start.checked_add(size).filter(|_| size > 0 && size <= MAX_RANGE && !name.is_empty())
        else {
            return false;
        };
        self.remove(start, end);
        let gone = self.names.len().saturating_sub(self.used_names);
        // Only when enough can be freed: a full table of names in use must not be walked per line.
        if self.names.len().saturating_add(name.len()) > self.max_names
            && gone >= self.max_names / 8
        {
            self.pack_names();
        }
        let room = self.ranges.len() < self.max_ranges
            && self.names.len().saturating_add(name.len()) <= self.max_names;
        let (Ok(offset), Ok(name_size), true) =
            (u32::try_from(self.names.len()), u16::try_from(name.len()), room)
        else {
            return false;
        };
        self.names.extend_from_slice(name.as_bytes());
        self.used_names = self.used_names.saturating_add(name.len());
        self.ranges.insert(start, Range { end, origin: start, name: offset, name_size, tag });
        if self.names.len() > 1 << 20 && self.used_names < self.names.len() / 2 {
            self.pack_names();
        }
        true
    }

    /// Removes `start..end` from the ranges that hold it.
    pub fn remove(&mut self, start: u64, end: u64) {
        let before = self.ranges.range(..start).next_back();
        if let Some((&from, &range)) = before.filter(|(_, range)| range.end > start) {
            if let Some(kept) = self.ranges.get_mut(&from) {
                kept.end = start;
            }
            if range.end > end && self.ranges.len() < self.max_ranges {
                self.ranges.insert(end, range);
                self.used_names = self.used_names.saturating_add(usize::from(range.name_size));
            }
        }
        while let Some((&from, &range)) = self.ranges.range(start..end).next() {
            self.ranges.remove(&from);
            if range.end > end {
                self.ranges.insert(end, range);
            } else {
                self.used_names = self.used_names.saturating_sub(usize::from(range.name_size));
            }
        }
    }

    /// The tags of names whose code begins and ends within so many bytes; none where [`Self::insert`] would
    /// refuse them, which takes what it walks over.
    pub fn tags_within(&self, start: u64, size: u64) -> impl Iterator<Item = u32> + '_ {
        let end = start.checked_add(size).filter(|_| size <= MAX_RANGE).unwrap_or(start);
        let within = self.ranges.range(start..end);
        within
            .filter(move |(from, range)| range.end <= end && range.origin == **from)
            .map(|(_, range)| range.tag)
    }

    pub fn find(&self, address: u64) -> Option<Found<'_>> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address < range.end).then(|| Found {
            name: self.name(range),
            origin: range.origin,
            tag: range.tag,
        })
    }

    fn name(&self, range: &Range) -> &str {
        usize::try_from(range.name)
            .ok()
            .and_then(|offset| self.names.get(offset..))
            .and_then(|rest| rest.get(..usize::from(range.name_size)))
            .and_then(|name| std::str::from_utf8(name).ok())
            .unwrap_or_default()
    }

    /// Drops names without a range. Parts of one range share their name.
    fn pack_names(&mut self) {
        let mut packed = Vec::new();
        let mut moved: HashMap<u32, u32> = HashMap::new();
        self.used_names = 0;
        for range in self.ranges.values_mut() {
            self.used_names = self.used_names.saturating_add(usize::from(range.name_size));
            range.name = *moved.entry(range.name).or_insert_with(|| {
                let name = usize::try_from(range.name)
                    .ok()
                    .and_then(|offset| self.names.get(offset..))
                    .and_then(|rest| rest.get(..usize::from(range.name_size)))
                    .unwrap_or_default();
                let offset = u32::try_from(packed.len()).unwrap_or(u32::MAX);
                packed.extend_from_slice(name);
                offset
            });
        }
        self.names = packed;
    }

    /// The memory held, in bytes, nearly.
    pub fn memory(&self) -> usize {
        let entry = size_of::<(u64, Range)>().saturating_mul(4) / 3;
        self.ranges.len().saturating_mul(entry).saturating_add(self.names.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(ranges: &JitRanges, address: u64) -> Option<&str> {
        ranges.find(address).map(|found| found.name)
    }

    #[test]
    fn a_later_range_takes_its_addresses_from_older_ones() {
        let mut ranges = JitRanges::new(100, 1000);
        assert!(ranges.insert(100, 100, "old", 0));
        assert!(ranges.insert(140, 20, "new", 0));
        assert_eq!(named(&ranges, 139), Some("old"));
        assert_eq!(named(&ranges, 140), Some("new"));
        assert_eq!(named(&ranges, 160), Some("old"));
        assert_eq!(named(&ranges, 200), None);
        assert!(ranges.insert(90, 200, "all", 0));
        assert_eq!(ranges.len(), 1);
        assert_eq!(named(&ranges, 150), Some("all"));
    }

    #[test]
    fn limits_hold_whatever_is_fed() {
        let mut ranges = JitRanges::new(50, 400);
        for round in 0..10_000_u64 {
            let name = format!("function{round}");
            ranges.insert((round * 7919) % 5000, round % 90, &name, 0);
            assert!(ranges.len() <= 51 && ranges.names.len() <= 400);
        }
        assert!(!ranges.insert(u64::MAX - 1, 100, "past the end", 0));
        assert!(!ranges.insert(0, u64::MAX, "everything", 0));
    }

    #[test]
    fn names_that_are_gone_make_room() {
        let mut ranges = JitRanges::new(50, 400);
        for round in 0..1000 {
            assert!(ranges.insert(100, 10, &format!("version {round}"), 0));
        }
        assert_eq!(named(&ranges, 105), Some("version 999"));
    }
}
