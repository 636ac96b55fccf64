//! Where functions begin and end by a file's unwind tables, which programs without symbols have too: by
//! `.eh_frame_hdr`, or by `.eh_frame` where there is none, as in programs that gcc links with `-static`.
//!
//! Invariant: a function is one only if its entry holds the address and agrees with the table.

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};

use crate::elf::ElfFile;
use strata_bytes::{array, u32_at};

/// `PT_GNU_EH_FRAME`.
const SEGMENT_FRAME_HEADER: u32 = 0x6474_e550;
/// Version 1; a pointer to `.eh_frame` from here, a count, a table of distances from the header: what all
/// linkers write.
const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const HEADER_BYTES: u64 = 12;
const ENTRY_BYTES: usize = 8;
/// Two million functions.
const MAX_BYTES: u64 = 16 << 20;
/// Bytes of what entries have in common; compilers write some dozens.
const MAX_COMMON: u32 = 1 << 10;

/// The functions of one file.
pub struct UnwindFunctions<'a> {
    elf: ElfFile<'a>,
    /// The address of the header, or of `.eh_frame`.
    header: u64,
    /// Sorted pairs of a function and its entry, as distances from there.
    table: Vec<u8>,
}

impl<'a> UnwindFunctions<'a> {
    /// Without a table that can be read, there are none.
    #[must_use]
    pub fn load(elf: &ElfFile<'a>) -> Self {
        let (header, table) = Self::read(elf).or_else(|| Self::scan(elf)).unwrap_or_default();
        Self { elf: elf.clone(), header, table }
    }

    fn read(elf: &ElfFile<'a>) -> Option<(u64, Vec<u8>)> {
        let by_section = elf.section_with_data(".eh_frame_hdr");
        let (address, size) = match by_section {
            Some(section) => (section.address, section.size),
            None => {
                let is_it = |kind| kind == SEGMENT_FRAME_HEADER;
                let segment = elf.segments.iter().find(|segment| is_it(segment.kind))?;
                (segment.address, segment.file_size)
            }
        };
        let header = elf.read_address(address, HEADER_BYTES, "frame header").ok()?;
        if array(&header, 0)? != FORM {
            return None;
        }
        let length = u64::from(u32_at(&header, 8)?).checked_mul(ENTRY_BYTES as u64)?;
        let length = length.min(size.checked_sub(HEADER_BYTES)?).min(MAX_BYTES);
        let table = elf.read_address(address.checked_add(HEADER_BYTES)?, length, "functions");
        Some((address, table.ok()?))
    }

    /// The same table from the entries themselves.
    fn scan(elf: &ElfFile<'a>) -> Option<(u64, Vec<u8>)> {
        let section = elf.section_with_data(".eh_frame")?;
        let (address, size) = (section.address, section.size.min(MAX_BYTES));
        let bytes = elf.read_address(address, size, "frame entries").ok()?;
        let frames = EhFrame::new(&bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(address);
        let mut functions: Vec<(i32, i32)> = Vec::new();
        let mut entries = frames.entries(&bases);
        // What is damaged ends it: what came before holds.
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let whole = partial.parse(|frames, bases, offset| {
                // It is read for each function: a long one of a crafted file would be read a million times.
                let length = u32_at(&bytes, offset.0);
                if length.is_none_or(|length| length > MAX_COMMON) {
                    return Err(gimli::Error::UnknownAugmentation);
                }
                frames.cie_from_offset(bases, offset)
            });
            let Ok(whole) = whole else { continue };
            let function = whole.initial_address().wrapping_sub(address).cast_signed();
            let (function, entry) = (i32::try_from(function), i32::try_from(whole.offset()));
            functions.extend(function.ok().zip(entry.ok()));
        }
        functions.sort_unstable();
        let bytes = functions.iter().flat_map(|(function, entry)| [*function, *entry]);
        Some((address, bytes.flat_map(i32::to_le_bytes).collect()))
    }

    fn entry(&self, index: usize) -> Option<(u64, u64)> {
        let bytes: [u8; ENTRY_BYTES] = array(&self.table, index.checked_mul(ENTRY_BYTES)?)?;
        let at = |from| {
            let distance = i32::from_le_bytes(array(&bytes, from)?);
            Some(self.header.wrapping_add_signed(distance.into()))
        };
        Some((at(0)?, at(4)?))
    }

    /// How many functions begin at or below an address.
    fn until(&self, address: u64) -> usize {
        let (mut low, mut high) = (0, self.table.len() / ENTRY_BYTES);
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(middle).is_some_and(|(start, _)| start <= address) {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        low
    }

    /// Where the function begins that an address lies in.
    #[must_use]
    pub fn start_of(&self, address: u64) -> Option<u64> {
        let (start, entry) = self.entry(self.until(address).checked_sub(1)?)?;
        // Length, distance to the common part, the function relative to here, its size.
        let bytes = self.elf.read_address(entry, 16, "frame entry").ok()?;
        let relative = i32::from_le_bytes(array(&bytes, 8)?);
        let agrees = entry.checked_add(8)?.wrapping_add_signed(relative.into()) == start;
        let inside = address.checked_sub(start)? < u64::from(u32_at(&bytes, 12)?);
        (agrees && inside).then_some(start)
    }

    /// Where the next function begins behind an address.
    #[must_use]
    pub fn next_after(&self, address: u64) -> Option<u64> {
        self.entry(self.until(address)).map(|(start, _)| start)
    }
}
