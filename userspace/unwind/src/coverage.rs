//! Which address is described by what: call frame information first, then the fills that later
//! sources propose for the gaps it leaves.
//!
//! Invariant: entries and fills never overlap, and both are sorted by address at the end.

use std::ops::Range;

use crate::frame_section::Entry;

/// Functions are aligned to this much; what lies between a function's end and the next multiple is
/// padding that is never executed.
const ALIGNMENT: u64 = 16;

/// Rows for a range of code, made by something other than call frame information.
#[derive(Clone, Debug)]
pub(crate) struct Fill {
    pub start: u64,
    pub end: u64,
    /// Which of the rows belong to it.
    pub rows: Range<usize>,
}

/// Fills that one source proposes.
#[derive(Default)]
pub(crate) struct Proposal {
    pub fills: Vec<Fill>,
    /// (address, rule), ascending within a fill; the first at or before its start.
    pub rows: Vec<(u64, u16)>,
}

impl Proposal {
    /// Proposes the rows added since `first_row` for a range.
    pub fn close(&mut self, start: u64, end: u64, first_row: usize) {
        if start < end && first_row < self.rows.len() {
            self.fills.push(Fill { start, end, rows: first_row..self.rows.len() });
        }
    }

    pub fn single(&mut self, start: u64, end: u64, rule: u16) {
        let first = self.rows.len();
        self.rows.push((start, rule));
        self.close(start, end, first);
    }
}

pub(crate) struct Coverage {
    pub fills: Vec<Fill>,
    pub rows: Vec<(u64, u16)>,
    /// Code that nothing describes yet, sorted.
    pub gaps: Vec<Range<u64>>,
}

/// Sorts entries and ends each where the next begins.
pub(crate) fn settle(entries: &mut Vec<Entry>) {
    if !entries.is_sorted_by_key(|entry| entry.start) {
        entries.sort_by_key(|entry| entry.start);
    }
    // Of several at one address the one with the longest code stays.
    entries.dedup_by(|next, kept| {
        let same = next.start == kept.start;
        if same && next.size > kept.size {
            *kept = *next;
        }
        same
    });
    let mut next_start = u64::MAX;
    for entry in entries.iter_mut().rev() {
        let room = next_start - entry.start;
        entry.size = entry.size.min(u32::try_from(room).unwrap_or(u32::MAX));
        next_start = entry.start;
    }
}

/// Nothing but padding lies between a function's end and the next one's start.
pub(crate) fn is_padding(end: u64, next: u64) -> bool {
    end >= next || end.checked_next_multiple_of(ALIGNMENT) == Some(next)
}

impl Coverage {
    /// `regions` is the code (sorted), `entries` what is described (settled).
    pub fn new(regions: &[Range<u64>], entries: &[Entry]) -> Self {
        let described = entries.iter().map(|entry| entry.start..entry.end());
        Self { fills: Vec::new(), rows: Vec::new(), gaps: subtract(regions, described) }
    }

    /// Takes what a source proposes, as far as it lies in gaps.
    pub fn add(&mut self, proposal: Proposal) {
        let Proposal { mut fills, rows } = proposal;
        if fills.is_empty() {
            return;
        }
        fills.sort_by_key(|fill| fill.start);
        let base = self.rows.len();
        let mut taken = Vec::new();
        let mut gap = 0;
        let mut free_from = 0;
        for fill in fills {
            let from = fill.start.max(free_from);
            while self.gaps.get(gap).is_some_and(|gap| gap.end <= from) {
                gap += 1;
            }
            for gap in self.gaps.get(gap..).unwrap_or_default() {
                if gap.start >= fill.end {
                    break;
                }
                let start = fill.start.max(gap.start).max(free_from);
                let end = fill.end.min(gap.end);
                if start >= end {
                    continue;
                }
                free_from = end;
                let part = rows_of_part(&rows, &fill, start, end);
                taken.push(start..end);
                self.fills.push(Fill { start, end, rows: base + part.start..base + part.end });
            }
        }
        self.rows.extend(rows);
        self.gaps = subtract(&self.gaps, taken.into_iter());
    }

    pub fn finish(&mut self) {
        self.fills.sort_by_key(|fill| fill.start);
    }
}

/// The rows that hold within a part of a fill.
fn rows_of_part(rows: &[(u64, u16)], fill: &Fill, start: u64, end: u64) -> Range<usize> {
    let own = rows.get(fill.rows.clone()).unwrap_or_default();
    let first = own.partition_point(|row| row.0 <= start).saturating_sub(1);
    let last = own.partition_point(|row| row.0 < end);
    fill.rows.start + first..fill.rows.start + last.max(first)
}

/// What is left of sorted ranges without other sorted ranges.
fn subtract(ranges: &[Range<u64>], without: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut without = without.peekable();
    let mut left = Vec::new();
    for range in ranges {
        let mut start = range.start;
        while let Some(other) = without.peek() {
            if other.end <= start {
                without.next();
                continue;
            }
            if other.start >= range.end {
                break;
            }
            if start < other.start {
                left.push(start..other.start);
            }
            start = other.end;
            if start >= range.end {
                break;
            }
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}
