//! The executable mappings of one process.
//!
//! Mapping events tell what a process maps, and nothing what it unmaps: a mapping stays until
//! another takes its place, or until the process is read from `/proc` because it has no room for
//! more. Generated code is kept by areas.
//!
//! Invariant: mappings are sorted by address and do not overlap. From [`MAX_MAPPINGS`] on, those that
//! would make them more are refused and counted.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::mapped::FileId;

/// The most executable mappings of one process.
pub const MAX_MAPPINGS: usize = 4096;

/// The backing of an executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    File(FileId),
    /// Code without a file: generated at run time.
    Anonymous,
    /// The same, in memory that only .NET maps in this way (its "doublemapper").
    Runtime,
    /// The kernel's own code page in user mode (vDSO).
    Vdso,
}

impl Backing {
    /// Whether it is code generated at run time.
    pub fn is_generated(self) -> bool {
        matches!(self, Self::Anonymous | Self::Runtime)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// File offset of `start`.
    pub offset: u64,
    pub backing: Backing,
}

impl Mapping {
    /// File offset of an address, as if the mapping reached there.
    fn offset_at(&self, address: u64) -> u64 {
        self.offset.wrapping_add(address.wrapping_sub(self.start))
    }
}

/// The executable mappings of a process at some moment. Cheap to keep: copied only when the process
/// maps something while another reference to it exists.
#[derive(Clone, Debug, Default)]
pub struct Space {
    mappings: Arc<Vec<Mapping>>,
    /// Changes whenever the mappings do; unique within an image.
    pub epoch: u32,
    /// Mappings refused by [`MAX_MAPPINGS`].
    pub refused: u64,
}

impl Space {
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The files that are mapped, some of them several times.
    pub fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.mappings.iter().filter_map(|mapping| match mapping.backing {
            Backing::File(file) => Some(file),
            _ => None,
        })
    }

    pub fn mapping_of(&self, address: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        self.mappings.get(after.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }

    /// Whether this is generated code in memory that is known to hold such: mapping it changes
    /// nothing.
    pub fn holds_generated(&self, new: &Mapping) -> bool {
        new.backing.is_generated()
            && self
                .mapping_of(new.start)
                .is_some_and(|old| old.backing == new.backing && new.end <= old.end)
    }

    /// Whether some memory without a file is in the middle of a file's code, as far as is known: see
    /// [`give_to_files`]. What is around it may have been unmapped, which no event reports.
    pub fn has_copies(&self) -> bool {
        !copies(&self.mappings).is_empty()
    }

    /// Whether further mappings are refused. Most of them may be unmapped, which no event reports.
    pub fn is_full(&self) -> bool {
        self.mappings.len() >= MAX_MAPPINGS
    }

    /// Puts a mapping in place of whatever was there.
    pub fn map(&mut self, new: Mapping) {
        if new.end <= new.start || self.holds_generated(&new) {
            return;
        }
        let first = self.mappings.partition_point(|old| old.end <= new.start);
        let last = self.mappings.partition_point(|old| old.start < new.end);
        let new = if new.backing.is_generated() { self.widened(new, first, last) } else { new };
        let mut pieces = [None, Some(new), None];
        if let Some(replaced) = self.mappings.get(first..last) {
            if replaced == [new] {
                return;
            }
            if let Some(old) = replaced.first().filter(|old| old.start < new.start) {
                pieces[0] = Some(Mapping { end: new.start, ..*old });
            }
            if let Some(old) = replaced.last().filter(|old| old.end > new.end) {
                let offset = old.offset.wrapping_add(new.end - old.start);
                pieces[2] = Some(Mapping { start: new.end, offset, ..*old });
            }
        }
        let pieces = || pieces.into_iter().flatten();
        let grows = pieces().count() > last.saturating_sub(first);
        if self.is_full() && grows {
            let before = first.checked_sub(1).and_then(|before| self.mappings.get(before));
            let is_part = || {
                before.is_some_and(|before| are_one(before, &new))
                    || self.mappings.get(first).is_some_and(|after| are_one(&new, after))
            };
            if first != last || !is_part() {
                self.refused += 1;
                return;
            }
        }
        let mappings = Arc::make_mut(&mut self.mappings);
        mappings.splice(first..last.max(first), pieces());
        join_generated(mappings, first);
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Generated code, with the unmapped rest of its areas. JIT compilers add code next to existing
    /// code and run it before the mapping event arrives; they unmap code, of which no event tells,
    /// and map other code nearby, thousands of times a second. By areas this is no change at all.
    /// `first..last` are the mappings that it overlaps.
    fn widened(&self, new: Mapping, first: usize, last: usize) -> Mapping {
        let overlapped = self.mappings.get(first..last).unwrap_or_default();
        let (mut start, mut end) = (new.start, new.end);
        if overlapped.first().is_none_or(|old| old.start >= start) {
            let before = first.checked_sub(1).and_then(|before| self.mappings.get(before));
            start = (start & !(AREA - 1)).max(before.map_or(0, |before| before.end));
        }
        if overlapped.last().is_none_or(|old| old.end <= end) {
            let after = self.mappings.get(last).map_or(u64::MAX, |after| after.start);
            end = end.checked_next_multiple_of(AREA).unwrap_or(end).min(after);
        }
        Mapping { start, end, ..new }
    }

    /// Files that it may map are others from now on; whether it maps some of them.
    pub fn exchange(&mut self, renewed: &HashMap<FileId, FileId>) -> bool {
        if !self.files().any(|file| renewed.contains_key(&file)) {
            return false;
        }
        for mapping in Arc::make_mut(&mut self.mappings) {
            if let Backing::File(old) = mapping.backing
                && let Some(new) = renewed.get(&old)
            {
                mapping.backing = Backing::File(*new);
            }
        }
        self.epoch = self.epoch.wrapping_add(1);
        true
    }

    /// Forgets what is not among these mappings.
    pub fn replace(&mut self, mappings: &[Mapping]) {
        self.mappings = Arc::default();
        for mapping in mappings {
            self.map(*mapping);
        }
    }
}

/// Memory without a file in the middle of a file's code has that code: the program has copied it there,
/// to have it on huge pages (Node's `--use-largepages`, PHP's `opcache.huge_code_pages`). The mappings
/// are sorted.
pub fn give_to_files(mappings: &mut [Mapping]) {
    for copies in copies(mappings) {
        let Some(file) = copies.start.checked_sub(1).and_then(|at| mappings.get(at)).copied()
        else {
            continue;
        };
        for copy in mappings.get_mut(copies).unwrap_or_default() {
            copy.backing = file.backing;
            copy.offset = file.offset_at(copy.start);
        }
    }
}

/// Where such memory is among sorted mappings.
fn copies(mappings: &[Mapping]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // The last mapping of a file, from which on there is no gap.
    let mut last: Option<(usize, &Mapping)> = None;
    let mut end = 0;
    for (at, this) in mappings.iter().enumerate() {
        last = last.filter(|_| end == this.start);
        end = this.end;
        match this.backing {
            Backing::Anonymous => {}
            Backing::File(_) => {
                if let Some((first, file)) = last
                    && first + 1 < at
                    && file.backing == this.backing
                    && file.offset_at(this.start) == this.offset
                {
                    found.push(first + 1..at);
                }
                last = Some((at, this));
            }
            Backing::Runtime | Backing::Vdso => last = None,
        }
    }
    found
}

/// Where a process generates code, all of the memory around it, of this size and alignment, counts
/// as such up to the neighbouring mappings.
const AREA: u64 = 2 << 20;

/// Whether two neighbours are generated code without a gap.
fn are_one(before: &Mapping, after: &Mapping) -> bool {
    before.backing.is_generated() && before.backing == after.backing && before.end == after.start
}

/// Joins what was put in at this position.
fn join_generated(mappings: &mut Vec<Mapping>, position: usize) {
    // As many pieces, and a neighbour on each side.
    let mut at = position.saturating_sub(1);
    for _ in 0..4 {
        match mappings.get(at..at + 2) {
            Some([before, after]) if are_one(before, after) => {
                let end = after.end;
                mappings.remove(at + 1);
                if let Some(joined) = mappings.get_mut(at) {
                    joined.end = end;
                }
            }
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(start: u64, end: u64, offset: u64) -> Mapping {
        Mapping { start, end, offset, backing: Backing::File(FileId(1)) }
    }

    #[test]
    fn a_mapping_in_the_middle_splits_the_old_one() {
        let mut space = Space::default();
        space.map(file(0x1000, 0x9000, 0));
        space.map(Mapping { backing: Backing::Anonymous, ..file(0x3000, 0x4000, 0) });
        let ranges: Vec<_> = space.mappings.iter().map(|m| (m.start, m.end, m.offset)).collect();
        assert_eq!(ranges, [(0x1000, 0x3000, 0), (0x3000, 0x4000, 0), (0x4000, 0x9000, 0x3000)]);
    }

    #[test]
    fn the_same_mapping_again_changes_nothing() {
        let mut space = Space::default();
        space.map(file(0x1000, 0x2000, 0));
        let epoch = space.epoch;
        space.map(file(0x1000, 0x2000, 0));
        assert_eq!(space.epoch, epoch);
    }

    #[test]
    fn neighbouring_generated_code_is_one_mapping() {
        let mut space = Space::default();
        for page in 0..10_000u64 {
            let start = page * 0x1000;
            space.map(Mapping {
                start,
                end: start + 0x1000,
                offset: 0,
                backing: Backing::Anonymous,
            });
        }
        assert_eq!(space.mappings.len(), 1);
    }

    #[test]
    fn generated_code_in_one_area_is_one_mapping_and_files_between_keep_it_apart() {
        let generated = |start: u64, backing| Mapping { backing, ..file(start, start + 0x1000, 0) };
        let runtime = |start: u64| generated(start, Backing::Runtime);
        let mut space = Space::default();
        space.map(runtime(AREA + 0x1_0000));
        space.map(file(AREA + 0x8_0000, AREA + 0x8_1000, 0));
        for start in [AREA + 0x4_0000, AREA + 0xa_0000, AREA + 0x9_0000, 2 * AREA, 4 * AREA] {
            space.map(runtime(start));
        }
        let ranges: Vec<_> = space.mappings.iter().map(|m| (m.start, m.end)).collect();
        let expected = [
            (AREA, AREA + 0x8_0000),
            (AREA + 0x8_0000, AREA + 0x8_1000),
            (AREA + 0x8_1000, 3 * AREA),
            (4 * AREA, 5 * AREA),
        ];
        assert_eq!(ranges, expected);
        let epoch = space.epoch;
        space.map(runtime(AREA + 0x2_0000));
        assert_eq!(space.epoch, epoch, "it is known to hold generated code");
    }

    #[test]
    fn what_is_copied_to_memory_in_the_middle_of_a_file_is_that_file_again() {
        let anonymous = |start, end| Mapping { backing: Backing::Anonymous, ..file(start, end, 0) };
        let after = file(0x40_0000, 0x50_0000, 0x2f_0000);
        let mut mappings = [
            file(0x11_0000, 0x20_0000, 0),
            anonymous(0x20_0000, 0x30_0000),
            anonymous(0x30_0000, 0x40_0000),
            after,
        ];
        let mut moved = mappings;
        give_to_files(&mut mappings);
        let whole = [0, 0xf_0000, 0x1f_0000, 0x2f_0000];
        assert_eq!(mappings.map(|mapping| mapping.offset), whole);
        assert!(mappings.iter().all(|mapping| mapping.backing == after.backing));
        // Of another file, or of another part, or with a gap: code of its own.
        for other in [
            Mapping { backing: Backing::File(FileId(2)), ..after },
            Mapping { offset: 0x30_0000, ..after },
            Mapping { start: 0x40_1000, offset: 0x2f_1000, ..after },
        ] {
            moved[3] = other;
            let before = moved;
            give_to_files(&mut moved);
            assert_eq!(moved, before);
        }
        let mut space = Space::default();
        space.map(file(0x11_0000, 0x50_0000, 0));
        assert!(!space.has_copies());
        space.map(anonymous(0x20_0000, 0x40_0000));
        assert!(space.has_copies());
        space.map(anonymous(0x40_0000, 0x50_0000));
        assert!(!space.has_copies());
    }

    #[test]
    fn a_process_that_maps_without_end_is_refused() {
        let mut space = Space::default();
        for page in 0..10_000u64 {
            space.map(file(page * 0x2000, page * 0x2000 + 0x1000, 0));
        }
        assert_eq!(space.mappings.len(), MAX_MAPPINGS);
        assert_eq!(space.refused, 10_000 - MAX_MAPPINGS as u64);
        // Parts of one large mapping, too.
        let mut space = Space::default();
        space.map(file(0, 100_000 * 0x1000, 0));
        for page in 0..10_000u64 {
            let start = page * 0x3000 + 0x1000;
            space.map(Mapping { backing: Backing::Anonymous, ..file(start, start + 0x1000, 0) });
        }
        assert!((MAX_MAPPINGS..MAX_MAPPINGS + 2).contains(&space.mappings.len()));
        assert!(space.refused > 5_000);
    }
}
