//! The header of a Go line table: which version it is and where its parts lie.
//!
//! Four layouts are in the field: Go 1.2–1.15, 1.16–1.17, 1.18–1.19 and 1.20 on (1.26 included; it
//! no longer stores the start of the text). Values are from `internal/abi/symtab.go`.
//!
//! Invariant: a header that parses has every part inside the bytes it was parsed from.

use crate::Error;
use crate::bytes::word_at;
use strata_bytes::{array, u8_at, u32_at};

/// The layout, named for the first Go release that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Go12,
    Go116,
    Go118,
    Go120,
}

const MAGIC_GO12: u32 = 0xffff_fffb;
const MAGIC_GO116: u32 = 0xffff_fffa;
const MAGIC_GO118: u32 = 0xffff_fff0;
const MAGIC_GO120: u32 = 0xffff_fff1;

fn version_of(magic: u32) -> Option<Version> {
    match magic {
        MAGIC_GO12 => Some(Version::Go12),
        MAGIC_GO116 => Some(Version::Go116),
        MAGIC_GO118 => Some(Version::Go118),
        MAGIC_GO120 => Some(Version::Go120),
        _ => None,
    }
}

/// A parsed header. Offsets count from the start of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub version: Version,
    /// The least distance between two instructions (1 on x86, 4 on arm64).
    pub quantum: u8,
    pub pointer_size: u8,
    pub function_count: u32,
    /// The start of the text as written in the table; 0 where the table does not contain it (Go
    /// ≤1.17 has absolute addresses, Go ≥1.26 leaves it to the module data, position-independent
    /// ones to the loader).
    pub text_start: u64,
    pub names: usize,
    pub unit_files: usize,
    pub files: usize,
    pub values: usize,
    pub functions: usize,
}

impl Header {
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// When the magic is not one of Go's, or a part would lie outside of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let magic: [u8; 4] = array(bytes, 0).ok_or(Error::Magic)?;
        let Some(version) = version_of(u32::from_le_bytes(magic)) else {
            return Err(match version_of(u32::from_be_bytes(magic)) {
                Some(_) => Error::ForeignByteOrder,
                None => Error::Magic,
            });
        };
        let [pad1, pad2, quantum, pointer_size] =
            array(bytes, 4).ok_or(Error::Cut { part: "header" })?;
        if pad1 != 0 || pad2 != 0 || !matches!(quantum, 1 | 2 | 4) || !matches!(pointer_size, 4 | 8)
        {
            return Err(Error::Header { quantum, pointer_size });
        }
        let word = |index: usize| {
            let offset = index.saturating_mul(usize::from(pointer_size)).saturating_add(8);
            word_at(bytes, offset, pointer_size).ok_or(Error::Cut { part: "header" })
        };
        let part = |index: usize, part: &'static str| {
            usize::try_from(word(index)?)
                .ok()
                .filter(|&offset| offset < bytes.len())
                .ok_or(Error::Cut { part })
        };
        let function_count =
            u32::try_from(word(0)?).map_err(|_| Error::Cut { part: "functions" })?;
        let mut header = Self {
            version,
            quantum,
            pointer_size,
            function_count,
            text_start: 0,
            names: 0,
            unit_files: 0,
            files: 0,
            values: 0,
            functions: 0,
        };
        match version {
            Version::Go118 | Version::Go120 => {
                header.text_start = word(2)?;
                header.names = part(3, "names")?;
                header.unit_files = part(4, "unit files")?;
                header.files = part(5, "files")?;
                header.values = part(6, "values")?;
                header.functions = part(7, "functions")?;
            }
            Version::Go116 => {
                header.names = part(2, "names")?;
                header.unit_files = part(3, "unit files")?;
                header.files = part(4, "files")?;
                header.values = part(5, "values")?;
                header.functions = part(6, "functions")?;
            }
            Version::Go12 => {
                // Everything counts from the table's start; the function table follows the count, and
                // the offset of the file table follows that.
                header.functions = usize::from(pointer_size).saturating_add(8);
                let after = header.functions.saturating_add(header.table_bytes());
                header.files = u32_at(bytes, after)
                    .and_then(|offset| usize::try_from(offset).ok())
                    .filter(|&offset| offset < bytes.len())
                    .ok_or(Error::Cut { part: "files" })?;
            }
        }
        if header.functions.checked_add(header.table_bytes()).is_none_or(|end| end > bytes.len()) {
            return Err(Error::Cut { part: "functions" });
        }
        Ok(header)
    }

    /// The size of one field (an address, or an offset) of the function table.
    pub(crate) fn field_bytes(&self) -> usize {
        if self.version >= Version::Go118 { 4 } else { usize::from(self.pointer_size) }
    }

    /// The size of the function table: a pair of fields per function and the last one's end.
    fn table_bytes(&self) -> usize {
        usize::try_from(self.function_count)
            .unwrap_or(usize::MAX)
            .saturating_mul(2)
            .saturating_add(1)
            .saturating_mul(self.field_bytes())
    }
}

/// Searches `section` for a line table and returns its offset: for programs whose linker gave the
/// table no section of its own (it then lies in `.rodata`, `.data.rel.ro` or
/// `.data.rel.ro.gopclntab`).
#[must_use]
pub fn find_header(section: &[u8]) -> Option<usize> {
    // Linkers align the table to at least a pointer.
    (0..section.len()).step_by(4).find(|&offset| {
        // The low byte and three of 0xff: cheap to refuse before the whole header is parsed.
        u8_at(section, offset.saturating_add(3)) == Some(0xff)
            && section
                .get(offset..)
                .is_some_and(|table| Header::parse(table).is_ok_and(|header| header.is_plausible()))
    })
}

impl Header {
    /// Whether the parts come in the order every Go linker writes them: guards the search against
    /// four bytes of chance.
    fn is_plausible(&self) -> bool {
        self.function_count > 0
            && (self.version == Version::Go12
                || (self.names <= self.unit_files
                    && self.unit_files <= self.files
                    && self.files <= self.values
                    && self.values <= self.functions))
    }
}
