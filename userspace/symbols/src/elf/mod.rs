//! ELF files: headers up front, everything else when it is asked for.
//!
//! Only the headers are kept; sections are read by offset, each under a limit. 64-bit little-endian
//! files are read. The parsing is our own because a file's bytes must stay bounded: the usual crates
//! read from a slice, or from a cache that keeps all it ever read.
//!
//! Invariant: no offset, count or size of the file is used before it was checked against the file's
//! length and a limit.

mod link;
mod notes;

pub use link::{AlternateLink, DebugLink};

use crate::read_at::read_bytes;
use crate::{Error, ReadAt, compressed};
use strata_bytes::{array, bounded_text, u16_at, u32_at, u64_at, until_nul};

/// Longer names are of no section that is looked for.
const LONGEST_SECTION_NAME: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SECTION_BYTES: usize = 64;
/// Executables have some dozens; object files are not supported.
const MAX_SECTIONS: u64 = 65_536;
const MAX_SECTION_NAMES: u64 = 4 << 20;

pub const SECTION_NOBITS: u32 = 8;
pub const SECTION_SYMTAB: u32 = 2;
pub const SECTION_RELA: u32 = 4;
pub const SECTION_NOTE: u32 = 7;
pub const SECTION_DYNSYM: u32 = 11;
pub const FLAG_EXECUTABLE: u64 = 4;
const FLAG_COMPRESSED: u64 = 0x800;
const SEGMENT_LOAD: u32 = 1;
const SEGMENT_NOTE: u32 = 4;

/// A program header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub address: u64,
    pub file_size: u64,
    pub memory_size: u64,
}

/// A section header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    name: u32,
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub entry_size: u64,
}

impl Section {
    /// Whether the file holds bytes for it (debug files have headers of sections they do not hold).
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.kind != SECTION_NOBITS && self.kind != 0 && self.size > 0
    }

    #[must_use]
    pub fn is_executable(&self) -> bool {
        self.flags & FLAG_EXECUTABLE != 0
    }

    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|offset| offset < self.size)
    }
}

/// The sources for symbolization in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    pub symtab: bool,
    pub dynsym: bool,
    pub dwarf: bool,
    /// A compressed table of local symbols (`.gnu_debugdata`).
    pub mini_debug: bool,
    pub debug_link: bool,
    pub go: bool,
}

/// An ELF file, of which the headers have been read.
#[derive(Clone)]
pub struct ElfFile<'a> {
    file: &'a dyn ReadAt,
    /// `e_machine`: 62 is x86-64, 183 arm64.
    pub machine: u16,
    /// `e_type`: 2 fixed address, 3 position-independent.
    pub kind: u16,
    pub entry: u64,
    pub segments: Vec<Segment>,
    pub sections: Vec<Section>,
    section_names: Vec<u8>,
}

impl<'a> ElfFile<'a> {
    /// Reads the headers.
    ///
    /// # Errors
    /// When this is not a 64-bit little-endian ELF file, or its headers lie outside of it.
    pub fn open(file: &'a dyn ReadAt) -> Result<Self, Error> {
        if file.len() < 64 {
            return Err(Error::NotElf);
        }
        let header = read_bytes(file, "header", 0, 64, 64)?;
        if header.get(..4) != Some(b"\x7fELF") {
            return Err(Error::NotElf);
        }
        match array(&header, 4) {
            Some([2, 1]) => {}
            Some([1, _]) => return Err(Error::Foreign { what: "32 bits" }),
            _ => return Err(Error::Foreign { what: "big-endian" }),
        }
        let cut = || Error::Cut { what: "header" };
        let half = |offset| u16_at(&header, offset).ok_or_else(cut);
        let word = |offset| u64_at(&header, offset).ok_or_else(cut);
        let mut elf = Self {
            file,
            kind: half(16)?,
            machine: half(18)?,
            entry: word(24)?,
            segments: Vec::new(),
            sections: Vec::new(),
            section_names: Vec::new(),
        };
        let (segments_at, sections_at) = (word(32)?, word(40)?);
        let (segment_bytes, segment_count) = (half(54)?, half(56)?);
        let (section_bytes, section_count) = (half(58)?, half(60)?);
        if segment_count > 0 && usize::from(segment_bytes) == SEGMENT_BYTES {
            elf.read_segments(segments_at, segment_count)?;
        }
        if sections_at != 0 && usize::from(section_bytes) == SECTION_BYTES {
            elf.read_sections(sections_at, section_count, half(62)?)?;
        }
        Ok(elf)
    }

    fn read_segments(&mut self, offset: u64, count: u16) -> Result<(), Error> {
        let what = "program headers";
        let size = u64::from(count).saturating_mul(SEGMENT_BYTES as u64);
        let table = read_bytes(self.file, what, offset, size, size)?;
        self.segments = table
            .chunks_exact(SEGMENT_BYTES)
            .filter_map(|header| {
                Some(Segment {
                    kind: u32_at(header, 0)?,
                    flags: u32_at(header, 4)?,
                    offset: u64_at(header, 8)?,
                    address: u64_at(header, 16)?,
                    file_size: u64_at(header, 32)?,
                    memory_size: u64_at(header, 40)?,
                })
            })
            .collect();
        Ok(())
    }

    fn read_sections(&mut self, offset: u64, count: u16, names_index: u16) -> Result<(), Error> {
        let what = "section headers";
        let entry = SECTION_BYTES as u64;
        // Counts that do not fit their field are in the first section header.
        let first = read_bytes(self.file, what, offset, entry, entry)?;
        let first = section(&first).ok_or(Error::Cut { what })?;
        let count = if count == 0 { first.size } else { u64::from(count) };
        let names_index = if names_index == u16::MAX { first.link } else { u32::from(names_index) };
        let size = count.saturating_mul(entry);
        let table = read_bytes(self.file, what, offset, size, MAX_SECTIONS * entry)?;
        self.sections = table.chunks_exact(SECTION_BYTES).filter_map(section).collect();
        if let Some(names) = self.section(names_index).copied().filter(Section::has_data) {
            self.section_names = read_bytes(
                self.file,
                "section names",
                names.offset,
                names.size,
                MAX_SECTION_NAMES,
            )?;
        }
        Ok(())
    }

    #[must_use]
    pub fn file(&self) -> &'a dyn ReadAt {
        self.file
    }

    #[must_use]
    pub fn section(&self, index: u32) -> Option<&Section> {
        self.sections.get(usize::try_from(index).ok()?)
    }

    #[must_use]
    pub fn section_name(&self, section: &Section) -> &[u8] {
        usize::try_from(section.name)
            .ok()
            .and_then(|offset| self.section_names.get(offset..))
            // Of a table without an end, as many names can be asked for as there are sections.
            .map(|rest| until_nul(rest.get(..LONGEST_SECTION_NAME).unwrap_or(rest)))
            .unwrap_or_default()
    }

    /// The section of that name; sections without bytes in the file included.
    #[must_use]
    pub fn section_by_name(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| self.section_name(section) == name.as_bytes())
    }

    /// The section of that name, if the file holds its bytes.
    #[must_use]
    pub fn section_with_data(&self, name: &str) -> Option<&Section> {
        self.section_by_name(name).filter(|section| section.has_data())
    }

    #[must_use]
    pub fn section_by_kind(&self, kind: u32) -> Option<&Section> {
        self.sections.iter().find(|section| section.kind == kind && section.has_data())
    }

    /// The bytes of a section, unpacked if need be; neither form may be larger than `limit`.
    ///
    /// # Errors
    /// When it is too large, truncated, or does not unpack.
    pub fn read_section(
        &self,
        section: &Section,
        what: &'static str,
        limit: u64,
    ) -> Result<Vec<u8>, Error> {
        if !section.has_data() {
            return Ok(Vec::new());
        }
        let bytes = read_bytes(self.file, what, section.offset, section.size, limit)?;
        if section.flags & FLAG_COMPRESSED != 0 {
            return compressed::section(&bytes, what, limit);
        }
        if self.section_name(section).starts_with(b".zdebug_") {
            return compressed::old_section(&bytes, what, limit);
        }
        Ok(bytes)
    }

    /// The sources for symbolization in the file.
    #[must_use]
    pub fn features(&self) -> Features {
        let has = |name| self.section_with_data(name).is_some();
        Features {
            symtab: self.section_by_kind(SECTION_SYMTAB).is_some(),
            dynsym: self.section_by_kind(SECTION_DYNSYM).is_some(),
            dwarf: has(".debug_info") || has(".zdebug_info"),
            mini_debug: has(".gnu_debugdata"),
            debug_link: has(".gnu_debuglink"),
            go: has(".gopclntab")
                || has(".data.rel.ro.gopclntab")
                || has(".go.buildinfo")
                || has(".note.go.buildid"),
        }
    }

    fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == SEGMENT_LOAD)
    }

    /// The address at which the byte at `offset` of the file is linked: from a mapping's file offset
    /// to the addresses that all tables of the file use.
    #[must_use]
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        // Segments may share a page of the file; the executable one is what profilers ask about.
        let executable = |segment: &&Segment| segment.flags & 1 != 0;
        let address = |segment: &Segment| {
            let inside = offset.checked_sub(segment.offset)?;
            (inside < segment.file_size).then(|| segment.address.checked_add(inside))?
        };
        self.loads()
            .filter(executable)
            .find_map(address)
            .or_else(|| self.loads().find_map(address))
            .or_else(|| {
                // Mappings begin at page boundaries, a little before their segment may.
                self.loads().filter(executable).find_map(|segment| {
                    let before = segment.offset.checked_sub(offset)?;
                    (before < 0x1_0000).then(|| segment.address.checked_sub(before))?
                })
            })
    }

    /// The file offset of the byte that is linked at `address`.
    #[must_use]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        self.loads().find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            (inside < segment.file_size).then(|| segment.offset.checked_add(inside))?
        })
    }

    /// Reads `length` bytes at a linked address, as far as the segment goes.
    ///
    /// # Errors
    /// When no segment holds the address, or reading fails.
    pub fn read_address(
        &self,
        address: u64,
        length: u64,
        what: &'static str,
    ) -> Result<Vec<u8>, Error> {
        let segment = self
            .loads()
            .find(|segment| {
                address
                    .checked_sub(segment.address)
                    .is_some_and(|inside| inside < segment.file_size)
            })
            .ok_or(Error::Cut { what })?;
        let inside = address.saturating_sub(segment.address);
        let length = length.min(segment.file_size.saturating_sub(inside));
        let offset = segment.offset.saturating_add(inside);
        read_bytes(self.file, what, offset, length, length)
    }

    /// Address ranges that hold code, ascending: executable sections, or segments where a file has
    /// no section headers.
    #[must_use]
    pub fn code_ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = self
            .sections
            .iter()
            .filter(|section| section.is_executable() && section.size > 0)
            .map(|section| (section.address, section.address.saturating_add(section.size)))
            .collect();
        if ranges.is_empty() {
            ranges = self
                .loads()
                .filter(|segment| segment.flags & 1 != 0)
                .map(|segment| {
                    let end = segment.address.saturating_add(segment.memory_size);
                    (segment.address, end)
                })
                .collect();
        }
        ranges.sort_unstable();
        ranges
    }

    /// The name of a section, for display.
    #[must_use]
    pub fn section_text(&self, section: &Section) -> String {
        bounded_text(self.section_name(section)).into_owned()
    }
}

fn section(header: &[u8]) -> Option<Section> {
    Some(Section {
        name: u32_at(header, 0)?,
        kind: u32_at(header, 4)?,
        flags: u64_at(header, 8)?,
        address: u64_at(header, 16)?,
        offset: u64_at(header, 24)?,
        size: u64_at(header, 32)?,
        link: u32_at(header, 40)?,
        info: u32_at(header, 44)?,
        entry_size: u64_at(header, 56)?,
    })
}
