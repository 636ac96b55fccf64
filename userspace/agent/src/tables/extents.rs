//! What the kernel's programs find by a process's addresses: its mappings as extents, and the
//! files' tables that they lead to.

use std::sync::Arc;

use strata_abi::tables::{EXTENT_WORDS, Extent, ExtentKind};
use strata_unwind::Load;

use super::arena::Range;

/// A file's table in kernel memory.
pub struct Table {
    pub(super) pieces: Vec<LoadedPiece>,
    pub(super) numbers: Vec<u16>,
    pub loads: Vec<Load>,
}

impl Table {
    /// What it takes in kernel memory.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.range.words) * 4).sum()
    }
}

pub(super) struct LoadedPiece {
    pub first_page: u64,
    pub pages: u32,
    pub row_count: u32,
    pub range: Range,
}

/// One mapping of a process, and how its code is unwound.
pub struct Stretch {
    pub start: u64,
    pub end: u64,
    pub code: Code,
}

pub enum Code {
    Table {
        table: Arc<Table>,
        bias: u64,
    },
    /// A part of a runtime's generated code. Tables of the same era agree wherever both have
    /// rules.
    Generated {
        table: Arc<Table>,
        era: u32,
    },
    /// Where a runtime that publishes its code may put more of it.
    Unannounced,
    FramePointer,
}

/// The extents of a process. Not bounded by [`MAX_EXTENTS`].
pub fn extents_of(code: &[Stretch]) -> Vec<Extent> {
    let mut extents = Vec::with_capacity(code.len());
    for stretch in code {
        append_extents(&mut extents, stretch.start, stretch.end, &stretch.code);
    }
    extents
}

/// The extents of one mapping: its pieces, and between them what the rest of it is.
fn append_extents(extents: &mut Vec<Extent>, start: u64, end: u64, code: &Code) {
    let (table, bias, between, era) = match code {
        Code::Table { table, bias } => (Some(table), *bias, ExtentKind::FramePointer, 0),
        Code::Generated { table, era } => {
            (Some(table), 0, ExtentKind::Unannounced, era.wrapping_add(1).max(1))
        }
        Code::Unannounced => (None, 0, ExtentKind::Unannounced, 0),
        Code::FramePointer => (None, 0, ExtentKind::FramePointer, 0),
    };
    let plain = |start, end| plain(start, end, between);
    let mut at = start;
    for piece in table.map(|table| table.pieces.as_slice()).unwrap_or_default() {
        let piece_start = (piece.first_page << 8).wrapping_add(bias);
        let piece_end = ((piece.first_page + u64::from(piece.pages)) << 8).wrapping_add(bias);
        let (from, to) = (piece_start.max(at), piece_end.min(end));
        if from >= to {
            continue;
        }
        if from > at {
            extents.push(plain(at, from));
        }
        let index_words = piece.pages + 1;
        extents.push(Extent {
            start: from,
            end: to,
            bias,
            first_page: piece.first_page,
            kind: ExtentKind::Rows as u32,
            segment: piece.range.segment,
            index: piece.range.offset,
            rows: piece.range.offset + index_words,
            pages: piece.pages,
            row_count: piece.row_count,
            era,
            reserved: 0,
        });
        at = to;
    }
    if at < end {
        extents.push(plain(at, end));
    }
}

/// An extent without a table.
fn plain(start: u64, end: u64, kind: ExtentKind) -> Extent {
    Extent {
        start,
        end,
        bias: 0,
        first_page: 0,
        kind: kind as u32,
        segment: 0,
        index: 0,
        rows: 0,
        pages: 0,
        row_count: 0,
        era: 0,
        reserved: 0,
    }
}

/// Whether every rule found in an extent is found in these extents too.
pub(super) fn still_holds(old: &Extent, extents: &[Extent]) -> bool {
    if old.kind == ExtentKind::Unannounced as u32 {
        return true;
    }
    let at = extents.partition_point(|extent| extent.end <= old.start);
    extents.get(at).is_some_and(|new| {
        let same_code = Extent { start: old.start, end: old.end, ..*new } == *old;
        let same_era = old.era != 0 && old.era == new.era;
        new.start <= old.start && old.end <= new.end && (same_code || same_era)
    })
}

pub(super) fn extent_words(extent: &Extent) -> [u32; EXTENT_WORDS] {
    let split = |long: u64| [long as u32, (long >> 32) as u32];
    let [start, end] = [split(extent.start), split(extent.end)];
    let [bias, page] = [split(extent.bias), split(extent.first_page)];
    [
        start[0],
        start[1],
        end[0],
        end[1],
        bias[0],
        bias[1],
        page[0],
        page[1],
        extent.kind,
        extent.segment,
        extent.index,
        extent.rows,
        extent.pages,
        extent.row_count,
        extent.era,
        0,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, end: u64, bias: u64) -> Extent {
        Extent { bias, ..plain(start, end, ExtentKind::Rows) }
    }

    #[test]
    fn cached_rules_hold_while_extents_only_grow() {
        let old = extent(0x2000, 0x3000, 7);
        let more = [extent(0, 0x1000, 1), extent(0x2000, 0x4000, 7)];
        assert!(still_holds(&old, &more));
        assert!(!still_holds(&old, &[extent(0x2000, 0x3000, 8)]), "other code");
        assert!(!still_holds(&old, &[extent(0x2000, 0x2800, 7)]), "a part is gone");
        assert!(!still_holds(&old, &[]), "unmapped");
        let generated = Extent { era: 3, index: 7, ..old };
        assert!(still_holds(&generated, &[Extent { index: 9, ..generated }]), "more of it");
        assert!(!still_holds(&generated, &[Extent { era: 4, ..generated }]), "other code");
    }
}
