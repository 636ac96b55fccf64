//! The headers of a PE image: sections, data directories, where the .NET parts are.
//!
//! Read by hand: all that is needed is a dozen fields at fixed places, the same in images for 32 and
//! 64 bits, and nothing here maps a file or wants it in memory.
//!
//! References: "PE Format" (Microsoft), ECMA-335 II.25, `src/coreclr/inc/corhdr.h`.

use crate::Error;
use crate::bytes::{array, index, u16_at, u32_at};
use crate::source::{read_bytes, read_some};
use strata_symbols::ReadAt;

/// DOS, COFF, optional header and section table of real images fit many times.
const MAX_HEADERS: usize = 64 << 10;
/// The loader refuses more (96).
const MAX_SECTIONS: usize = 96;
const MAX_DIRECTORIES: u32 = 16;

/// Number of the CLI header's data directory (`IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR`).
const CLI_DIRECTORY: usize = 14;
const DEBUG_DIRECTORY: usize = 6;
const EXPORT_DIRECTORY: usize = 0;
const CLI_HEADER_BYTES: u64 = 72;

/// `COMIMAGE_FLAGS_IL_LIBRARY`: the IL has precompiled code beside it (`corhdr.h`).
const FLAG_IL_LIBRARY: u32 = 4;

/// Images with code for another system than Windows say so by their machine, exclusive-or a number
/// of that system (`IMAGE_FILE_MACHINE_NATIVE_OS_OVERRIDE`, `src/coreclr/inc/pedecoder.h`).
const SYSTEMS: [u16; 6] = [0, 0x7b79, 0x4644, 0xadc4, 0x1993, 0x1992];

/// What an image's native code runs on.
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

/// A place in the loaded image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    pub rva: u32,
    pub size: u32,
}

impl Directory {
    pub(crate) fn read(bytes: &[u8], offset: usize) -> Option<Self> {
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
    /// `IMAGE_SCN_MEM_EXECUTE`.
    #[must_use]
    pub fn is_executable(&self) -> bool {
        self.characteristics & 0x2000_0000 != 0
    }

    fn offset_of(&self, rva: u32) -> Option<u64> {
        let within = rva.checked_sub(self.rva)?;
        (within < self.file_size).then(|| u64::from(self.file_offset) + u64::from(within))
    }

    fn rva_of(&self, offset: u64) -> Option<u32> {
        let within = u32::try_from(offset.checked_sub(self.file_offset.into())?).ok()?;
        (within < self.file_size).then(|| self.rva.checked_add(within))?
    }
}

/// The CLI header (ECMA-335 II.25.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CliHeader {
    pub metadata: Directory,
    pub flags: u32,
    /// Of the `READYTORUN_HEADER`, in an image with precompiled code.
    pub managed_native_header: Directory,
}

impl CliHeader {
    #[must_use]
    pub fn has_native_code(&self) -> bool {
        self.flags & FLAG_IL_LIBRARY != 0 && !self.managed_native_header.is_empty()
    }
}

/// An image's headers, and the file they were read from.
pub struct PeImage<'a> {
    file: &'a dyn ReadAt,
    pub machine: Machine,
    pub size_of_image: u32,
    size_of_headers: u32,
    sections: Vec<Section>,
    directories: Vec<Directory>,
    cli: Option<CliHeader>,
}

impl<'a> PeImage<'a> {
    /// # Errors
    /// When the file is no PE image, or its headers are cut.
    pub fn open(file: &'a dyn ReadAt) -> Result<Self, Error> {
        let mut bytes = vec![0; MAX_HEADERS];
        let length = read_some(file, "headers", 0, &mut bytes)?;
        bytes.truncate(length);
        if array(&bytes, 0) != Some(*b"MZ") {
            return Err(Error::NotPe);
        }
        let coff = u32_at(&bytes, 0x3c).map(index).ok_or(Error::NotPe)?;
        if array(&bytes, coff) != Some(*b"PE\0\0") {
            return Err(Error::NotPe);
        }
        let cut = || Error::Cut { what: "headers" };
        let mut image = Self::parse(file, bytes.get(coff..).ok_or_else(cut)?).ok_or_else(cut)?;
        image.cli = image.read_cli_header()?;
        Ok(image)
    }

    /// `bytes` begin at the signature.
    fn parse(file: &'a dyn ReadAt, bytes: &[u8]) -> Option<Self> {
        let machine = Machine::from_field(u16_at(bytes, 4)?);
        let section_count = usize::from(u16_at(bytes, 6)?).min(MAX_SECTIONS);
        let optional_size = usize::from(u16_at(bytes, 20)?);
        let optional = bytes.get(24..)?.get(..optional_size)?;
        // PE32+ has no BaseOfData, and four fields of twice the size.
        let directories_at: usize = if u16_at(optional, 0)? == 0x20b { 112 } else { 96 };
        let directory_count = u32_at(optional, directories_at.checked_sub(4)?)?;
        let directories = (0..index(directory_count.min(MAX_DIRECTORIES)))
            .map_while(|number| {
                Directory::read(optional, directories_at.saturating_add(number * 8))
            })
            .collect();
        let table = bytes.get(24_usize.checked_add(optional_size)?..)?;
        let sections = table.chunks_exact(40).take(section_count).map_while(|header| {
            Some(Section {
                name: array(header, 0)?,
                virtual_size: u32_at(header, 8)?,
                rva: u32_at(header, 12)?,
                file_size: u32_at(header, 16)?,
                file_offset: u32_at(header, 20)?,
                characteristics: u32_at(header, 36)?,
            })
        });
        Some(Self {
            file,
            machine,
            size_of_image: u32_at(optional, 56)?,
            size_of_headers: u32_at(optional, 60)?,
            sections: sections.collect(),
            directories,
            cli: None,
        })
    }

    fn directory(&self, number: usize) -> Option<Directory> {
        self.directories.get(number).copied().filter(|directory| !directory.is_empty())
    }

    fn read_cli_header(&self) -> Result<Option<CliHeader>, Error> {
        let Some(directory) = self.directory(CLI_DIRECTORY) else { return Ok(None) };
        let what = "CLI header";
        let bytes = self.read(what, directory.rva, CLI_HEADER_BYTES, CLI_HEADER_BYTES)?;
        let header = || {
            Some(CliHeader {
                metadata: Directory::read(&bytes, 8)?,
                flags: u32_at(&bytes, 16)?,
                managed_native_header: Directory::read(&bytes, 64)?,
            })
        };
        Ok(header())
    }

    #[must_use]
    pub fn file(&self) -> &'a dyn ReadAt {
        self.file
    }

    #[must_use]
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    #[must_use]
    pub fn cli(&self) -> Option<&CliHeader> {
        self.cli.as_ref()
    }

    pub(crate) fn debug_directory(&self) -> Option<Directory> {
        self.directory(DEBUG_DIRECTORY)
    }

    /// Where the byte at an address of the loaded image is in the file.
    #[must_use]
    pub fn offset_of(&self, rva: u32) -> Option<u64> {
        self.sections
            .iter()
            .find_map(|section| section.offset_of(rva))
            .or_else(|| (rva < self.size_of_headers).then_some(rva.into()))
    }

    /// Where a byte of the file is in the loaded image. Mappings begin at page boundaries, so a
    /// byte a little before its section belongs to nothing.
    #[must_use]
    pub fn rva_of(&self, offset: u64) -> Option<u32> {
        self.sections.iter().find_map(|section| section.rva_of(offset)).or_else(|| {
            let offset = u32::try_from(offset).ok()?;
            (offset < self.size_of_headers).then_some(offset)
        })
    }

    /// The bytes at an address, which all have to be in the file.
    pub(crate) fn read(
        &self,
        what: &'static str,
        rva: u32,
        length: u64,
        limit: u64,
    ) -> Result<Vec<u8>, Error> {
        let offset = self.offset_of(rva).ok_or(Error::Cut { what })?;
        read_bytes(self.file, what, offset, length, limit)
    }

    /// The address of an exported symbol (`RTR_HEADER` of a composite image).
    pub(crate) fn export(&self, wanted: &[u8]) -> Option<u32> {
        const MAX_EXPORTS: u32 = 1024;
        const MAX_NAME: usize = 64;
        let directory = self.directory(EXPORT_DIRECTORY)?;
        let table = self.read("exports", directory.rva, 40, 40).ok()?;
        let count = u32_at(&table, 24)?.min(MAX_EXPORTS);
        let words = |rva: u32, width: u32| {
            let length = u64::from(count.saturating_mul(width));
            self.read("exports", rva, length, length).ok()
        };
        let functions_at = u32_at(&table, 28)?;
        let names = words(u32_at(&table, 32)?, 4)?;
        let ordinals = words(u32_at(&table, 36)?, 2)?;
        (0..index(count)).find_map(|number| {
            let at = self.offset_of(u32_at(&names, number.checked_mul(4)?)?)?;
            let mut name = [0; MAX_NAME];
            let length = read_some(self.file, "exports", at, &mut name).ok()?;
            let name = name.get(..length)?;
            if crate::bytes::name_bytes(name) != wanted {
                return None;
            }
            let ordinal = u16_at(&ordinals, number.checked_mul(2)?)?;
            let slot = functions_at.checked_add(u32::from(ordinal).checked_mul(4)?)?;
            u32_at(&self.read("exports", slot, 4, 4).ok()?, 0)
        })
    }
}
