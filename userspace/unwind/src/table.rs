//! The result of a build: rules, pieces of rows, segments, and how a rule is found.
//!
//! Invariant: [`search`] is the search the kernel does; nothing else here finds rules.

use strata_abi::rule::{Packed, Rule};
use strata_abi::tables::{self, PAGE_SHIFT};

/// A `PT_LOAD` segment: how file offsets become addresses in the file's own numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Load {
    pub offset: u64,
    pub file_size: u64,
    pub address: u64,
    pub memory_size: u64,
    pub executable: bool,
}

/// A stretch of text with its rows, as a kernel segment holds it: see [`strata_abi::tables`].
/// Rule numbers in the rows count into [`UnwindTable::rules`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first page of 256 bytes, in the file's own numbering.
    pub first_page: u64,
    pub pages: u32,
    /// `pages + 1` row numbers.
    pub index: Box<[u32]>,
    pub rows: Box<[u32]>,
}

impl Piece {
    #[must_use]
    pub fn start(&self) -> u64 {
        self.first_page << PAGE_SHIFT
    }

    #[must_use]
    pub fn end(&self) -> u64 {
        (self.first_page + u64::from(self.pages)) << PAGE_SHIFT
    }
}

/// What a build found, and what it could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Frame description entries used.
    pub entries: u64,
    /// Entries left out: they describe no code of the file, or make no sense.
    pub skipped_entries: u64,
    /// Rows whose call frame information strata cannot express.
    pub unsupported_rows: u64,
    /// Rows that became unsupported because of the quota on rules.
    pub refused_rows: u64,
    /// Functions of Go's line table used.
    pub go_functions: u64,
    /// Bytes of code without any description before `code` looked at it.
    pub undescribed_bytes: u64,
    /// Bytes of that whose rules were derived from the instructions.
    pub derived_bytes: u64,
    /// 1 when a quota limited the table (rows, entries, work).
    pub truncated: u64,
}

impl Statistics {
    pub(crate) const COUNT: usize = 8;

    pub(crate) fn to_array(self) -> [u64; Self::COUNT] {
        [
            self.entries,
            self.skipped_entries,
            self.unsupported_rows,
            self.refused_rows,
            self.go_functions,
            self.undescribed_bytes,
            self.derived_bytes,
            self.truncated,
        ]
    }

    pub(crate) fn from_array(values: [u64; Self::COUNT]) -> Self {
        let [
            entries,
            skipped_entries,
            unsupported_rows,
            refused_rows,
            go_functions,
            undescribed_bytes,
            derived_bytes,
            truncated,
        ] = values;
        Self {
            entries,
            skipped_entries,
            unsupported_rows,
            refused_rows,
            go_functions,
            undescribed_bytes,
            derived_bytes,
            truncated,
        }
    }
}

/// Everything needed to unwind through one file's code.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UnwindTable {
    /// Rules by the numbers that rows carry; 0 is "none". Words of extended rules carry the
    /// number too: a loader that renumbers rules renumbers both.
    pub rules: Vec<Rule>,
    /// Sorted by address, not overlapping. Code outside of them has no rules.
    pub pieces: Vec<Piece>,
    /// All `PT_LOAD` segments by address.
    pub loads: Vec<Load>,
    pub statistics: Statistics,
}

impl UnwindTable {
    /// The rule for an address in the file's own numbering; "none" where nothing is known.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Rule {
        let none = Rule::simple(Packed::NONE);
        let after = self.pieces.partition_point(|piece| piece.start() <= address);
        let Some(piece) = after.checked_sub(1).and_then(|piece| self.pieces.get(piece)) else {
            return none;
        };
        if address >= piece.end() {
            return none;
        }
        let page = ((address >> PAGE_SHIFT) - piece.first_page) as usize;
        let number = search(&piece.index, &piece.rows, page, address);
        number.and_then(|number| self.rules.get(usize::from(number))).copied().unwrap_or(none)
    }

    /// Rows of all pieces.
    #[must_use]
    pub fn row_count(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.rows.len() as u64).sum()
    }

    /// Bytes of rows and index in kernel memory.
    #[must_use]
    pub fn kernel_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| 4 * (piece.rows.len() + piece.index.len()) as u64).sum()
    }

    /// The address, in the file's own numbering, of a file offset within an executable segment.
    #[must_use]
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        address_of_offset(&self.loads, offset)
    }
}

/// The address, in the file's own numbering, of a file offset within an executable segment.
#[must_use]
pub fn address_of_offset(loads: &[Load], offset: u64) -> Option<u64> {
    loads
        .iter()
        .filter(|load| load.executable)
        .find(|load| offset >= load.offset && offset - load.offset < load.file_size)
        .or_else(|| {
            // A mapping starts at the page the segment starts in.
            loads.iter().find(|load| {
                load.executable
                    && offset >= load.offset & !0xfff
                    && offset < load.offset.saturating_add(load.file_size)
            })
        })
        .map(|load| load.address.wrapping_add(offset).wrapping_sub(load.offset))
}

/// The rule number for an address in page `page` of a piece.
///
/// The rows of the page are those in `index[page]..index[page + 1]`. The answer is the last of them
/// whose low byte is not beyond the address's (all else of their addresses is the page's, so the
/// low bytes suffice), and if there is none, the row before them: the one that covers the page's
/// start.
#[must_use]
pub fn search(index: &[u32], rows: &[u32], page: usize, address: u64) -> Option<u16> {
    let mut low = *index.get(page)?;
    let mut high = *index.get(page.checked_add(1)?)?;
    let low_byte = address as u32 & 0xff;
    while low < high {
        let middle = low + (high - low) / 2;
        if *rows.get(middle as usize)? & 0xff <= low_byte {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    rows.get(low.checked_sub(1)? as usize).map(|row| tables::row_rule(*row))
}
