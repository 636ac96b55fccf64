//! `runtime.moduledata`: the linker's record of where a Go program's parts are.
//!
//! It survives stripping. It is needed for the start of the text (Go 1.26 no longer writes it into the
//! line table, and a linker that puts C's start-up code first moves it away from `.text`) and for
//! `go:func.*`, the base of the trees of inlined calls. It lies in `.go.module` (Go 1.26), else in
//! `.noptrdata` or `.data`; its symbol may be gone, so it is searched for by what it must contain.
//!
//! Field offsets follow `runtime/symtab.go`. Position-independent programs hold link-time addresses
//! there, as both Go's linker and GNU ld write them beside the relocations.
//! Linkers that leave the words of relocated data zero (lld) hide the record from this search.
//!
//! Invariant: a record is taken only if five of its words agree with the line table's header.

use crate::header::{Header, Version};
use strata_bytes::u64_at;

/// The addresses of interest, as of link time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleData {
    /// Where the record itself lies.
    pub address: u64,
    /// `runtime.text`.
    pub text: u64,
    pub text_end: u64,
    /// `go:func.*`; absent before Go 1.18.
    pub function_data: Option<u64>,
}

impl ModuleData {
    /// Searches `section`, which lies at `section_address`, for the record that belongs to the line
    /// table at `table_address`. 64-bit programs of Go 1.16 or later only.
    #[must_use]
    pub fn find(
        section: &[u8],
        section_address: u64,
        table_address: u64,
        header: &Header,
    ) -> Option<Self> {
        if header.version == Version::Go12 || header.pointer_size != 8 {
            return None;
        }
        let misaligned = usize::try_from(section_address.wrapping_neg() & 7).ok()?;
        (misaligned..section.len()).step_by(8).find_map(|offset| {
            // One compare refuses nearly every offset.
            if u64_at(section, offset)? != table_address {
                return None;
            }
            let address = section_address.checked_add(u64::try_from(offset).ok()?)?;
            Self::read(section.get(offset..)?, address, table_address, header)
        })
    }

    fn read(record: &[u8], address: u64, table_address: u64, header: &Header) -> Option<Self> {
        let word = |offset: usize| u64_at(record, offset);
        let part = |offset: usize| table_address.checked_add(u64::try_from(offset).ok()?);
        // Slices are (pointer, length, capacity): names, unit files, files, values, functions, and
        // the function table once more, with its length in entries.
        let agrees = word(8)? == part(header.names)?
            && word(32)? == part(header.unit_files)?
            && word(56)? == part(header.files)?
            && word(80)? == part(header.values)?
            && word(104)? == part(header.functions)?
            && word(136)? == u64::from(header.function_count).checked_add(1)?;
        if !agrees {
            return None;
        }
        let (text, text_end) = (word(176)?, word(184)?);
        if text >= text_end {
            return None;
        }
        let function_data = match header.version {
            Version::Go12 | Version::Go116 => None,
            // Go 1.20 put two words for coverage counters before it.
            Version::Go118 => word(304),
            Version::Go120 => word(320),
        };
        Some(Self {
            address,
            text,
            text_end,
            function_data: function_data.filter(|&base| base != 0),
        })
    }
}
