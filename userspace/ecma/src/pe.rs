//! The headers of a PE image: sections, data directories, where the .NET parts are.
//!
//! Read by hand: a dozen fields at fixed places, the same in images for 32 and 64 bits. `object`
//! wants the whole file as a slice or behind a reader of its own, and has a type for each of the
//! two kinds.
//!
//! References: "PE Format" (Microsoft), ECMA-335 II.25, `src/coreclr/inc/corhdr.h`.

use strata_bytes::{array, index, u16_at, u32_at};

/// DOS, COFF, optional header and section table of real images fit many times.
pub const MAX_HEADERS: usize = 64 << 10;
/// The loader refuses more.
const MAX_SECTIONS: usize = 96;
const MAX_DIRECTORIES: u32 = 16;
const SECTION_BYTES: usize = 40;
const DIRECTORY_BYTES: usize = 8;

/// Numbers of data directories (`IMAGE_DIRECTORY_ENTRY_*`).
pub mod directory {
    pub const EXPORT: usize = 0;
    pub const EXCEPTION: usize = 3;
    pub const DEBUG: usize = 6;
    pub const CLI: usize = 14;
}

/// `COMIMAGE_FLAGS_IL_LIBRARY`: the IL has precompiled code beside it (`corhdr.h`).
const FLAG_IL_LIBRARY: u32 = 4;

/// Images with code for another system than Windows say so by their machine, exclusive-or a number
/// of that system (`IMAGE_FILE_MACHINE_NATIVE_OS_OVERRIDE`, `src/coreclr/inc/pedecoder.h`).
const SYSTEMS: [u16; 6] = [0, 0x7b79, 0x4644, 0xadc4, 0x1993, 0x1992];

/// Why headers could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    NotPe,
    /// The headers go beyond the bytes.
    Cut,
}

/// The machine of an image's native code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    Amd64,
    Arm64,
    /// IL only, or code for 32 bits.
    I386,
    Other(u16),
}

impl Machine {
    fn from_field(field: u16) -> Self {
        let known = |machine: u16| match machine {
            0x8664 => Some(Self::Amd64),
            0xaa64 => Some(Self::Arm64),
            0x014c => Some(Self::I386),
            _ => None,
        };
        SYSTEMS.iter().find_map(|system| known(field ^ system)).unwrap_or(Self::Other(field))
    }
}

/// An address in the loaded image, and a size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    pub rva: u32,
    pub size: u32,
}

impl Directory {
    #[must_use]
    pub fn read(bytes: &[u8], offset: usize) -> Option<Self> {
        Some(Self { rva: u32_at(bytes, offset)?, size: u32_at(bytes, offset.checked_add(4)?)? })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rva == 0 || self.size == 0
    }
}

/// A section, as the headers describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: [u8; 8],
    pub rva: u32,
    pub virtual_size: u32,
    pub file_offset: u32,
    pub file_size: u32,
    pub characteristics: u32,
}

impl Section {
    fn read(header: &[u8; SECTION_BYTES]) -> Option<Self> {
        Some(Self {
            name: array(header, 0)?,
            virtual_size: u32_at(header, 8)?,
            rva: u32_at(header, 12)?,
            file_size: u32_at(header, 16)?,
            file_offset: u32_at(header, 20)?,
            characteristics: u32_at(header, 36)?,
        })
    }

    /// `IMAGE_SCN_MEM_EXECUTE`.
    #[must_use]
    pub fn is_executable(&self) -> bool {
        self.characteristics & 0x2000_0000 != 0
    }

    /// Where the byte at an address is in the file.
    #[must_use]
    pub fn offset_of(&self, rva: u32) -> Option<u64> {
        self.holds(rva, 1)
            .then(|| u64::from(self.file_offset) + u64::from(rva.wrapping_sub(self.rva)))
    }

    /// Where a byte of the file is in the loaded image.
    #[must_use]
    pub fn rva_of(&self, offset: u64) -> Option<u32> {
        let within = u32::try_from(offset.checked_sub(self.file_offset.into())?).ok()?;
        (within < self.file_size).then(|| self.rva.checked_add(within))?
    }

    /// Whether the file has all of these bytes in this section.
    #[must_use]
    pub fn holds(&self, rva: u32, count: usize) -> bool {
        let end = rva.checked_sub(self.rva).and_then(|within| index(within).checked_add(count));
        end.is_some_and(|end| end <= index(self.file_size))
    }
}

/// The headers of an image.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    pub machine: Machine,
    /// PE32+.
    pub is_64_bit: bool,
    /// How much memory the image takes when it is mapped.
    pub size_of_image: u32,
    pub size_of_headers: u32,
    directories: &'a [[u8; DIRECTORY_BYTES]],
    sections: &'a [[u8; SECTION_BYTES]],
}

impl<'a> Headers<'a> {
    /// Reads the headers of an image from its start: its first page, or up to [`MAX_HEADERS`].
    /// Sections that lie beyond the bytes are left out.
    ///
    /// # Errors
    /// When it is no PE image, or its headers are truncated.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        if array(bytes, 0) != Some(*b"MZ") {
            return Err(Error::NotPe);
        }
        let coff = u32_at(bytes, 0x3c).map(index).ok_or(Error::NotPe)?;
        if array(bytes, coff) != Some(*b"PE\0\0") {
            return Err(Error::NotPe);
        }
        bytes.get(coff..).and_then(Self::parse_coff).ok_or(Error::Cut)
    }

    /// `bytes` begin at the signature.
    fn parse_coff(bytes: &'a [u8]) -> Option<Self> {
        let section_count = usize::from(u16_at(bytes, 6)?).min(MAX_SECTIONS);
        let (optional, table) = bytes.get(24..)?.split_at_checked(u16_at(bytes, 20)?.into())?;
        // PE32+ has no BaseOfData, and four fields of twice the size.
        let is_64_bit = u16_at(optional, 0)? == 0x20b;
        let directories_at: usize = if is_64_bit { 112 } else { 96 };
        let count = index(u32_at(optional, directories_at - 4)?.min(MAX_DIRECTORIES));
        let (directories, _) = optional.get(directories_at..).unwrap_or_default().as_chunks();
        let (sections, _) = table.as_chunks();
        Some(Self {
            machine: Machine::from_field(u16_at(bytes, 4)?),
            is_64_bit,
            size_of_image: u32_at(optional, 56)?,
            size_of_headers: u32_at(optional, 60)?,
            directories: directories.get(..count).unwrap_or(directories),
            sections: sections.get(..section_count).unwrap_or(sections),
        })
    }

    /// A data directory, if it is there.
    #[must_use]
    pub fn directory(&self, number: usize) -> Option<Directory> {
        Directory::read(self.directories.get(number)?, 0).filter(|directory| !directory.is_empty())
    }

    pub fn sections(&self) -> impl Iterator<Item = Section> + use<'a> {
        self.sections.iter().filter_map(Section::read)
    }

    /// The section whose bytes in the file are these addresses.
    #[must_use]
    pub fn section_of(&self, rva: u32, count: usize) -> Option<Section> {
        self.sections().find(|section| section.holds(rva, count))
    }
}

/// The CLI header (ECMA-335 II.25.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CliHeader {
    pub metadata: Directory,
    pub flags: u32,
    /// Of the ReadyToRun header, in an image with precompiled code.
    pub managed_native_header: Directory,
}

impl CliHeader {
    pub const BYTES: usize = 72;

    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            metadata: Directory::read(bytes, 8)?,
            flags: u32_at(bytes, 16)?,
            managed_native_header: Directory::read(bytes, 64)?,
        })
    }

    #[must_use]
    pub fn has_native_code(&self) -> bool {
        self.flags & FLAG_IL_LIBRARY != 0 && !self.managed_native_header.is_empty()
    }
}
