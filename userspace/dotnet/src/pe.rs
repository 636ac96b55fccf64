//! A PE image in a file: its headers, and its bytes by their address in memory.

use crate::Error;
use crate::source::{read_bytes, read_some};
use strata_bytes::{ReadAt, index, u16_at, u32_at, until_nul};
use strata_ecma::pe::{self, Headers, MAX_HEADERS, directory};

pub use strata_ecma::pe::{CliHeader, Directory, Machine, Section};

/// An image's headers, and the file they were read from.
pub struct PeImage<'a> {
    file: &'a dyn ReadAt,
    pub machine: Machine,
    pub size_of_image: u32,
    size_of_headers: u32,
    sections: Vec<Section>,
    exports: Option<Directory>,
    debug: Option<Directory>,
    cli: Option<CliHeader>,
}

impl<'a> PeImage<'a> {
    /// # Errors
    /// When the file is no PE image, or its headers are truncated.
    pub fn open(file: &'a dyn ReadAt) -> Result<Self, Error> {
        let mut bytes = vec![0; MAX_HEADERS];
        let length = read_some(file, "headers", 0, &mut bytes)?;
        let headers =
            Headers::parse(bytes.get(..length).unwrap_or_default()).map_err(
                |error| match error {
                    pe::Error::NotPe => Error::NotPe,
                    pe::Error::Cut => Error::Cut { what: "headers" },
                },
            )?;
        let mut image = Self {
            file,
            machine: headers.machine,
            size_of_image: headers.size_of_image,
            size_of_headers: headers.size_of_headers,
            sections: headers.sections().collect(),
            exports: headers.directory(directory::EXPORT),
            debug: headers.directory(directory::DEBUG),
            cli: None,
        };
        if let Some(place) = headers.directory(directory::CLI) {
            let length = CliHeader::BYTES as u64;
            image.cli = CliHeader::parse(&image.read("CLI header", place.rva, length, length)?);
        }
        Ok(image)
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
        self.debug
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
        let directory = self.exports?;
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
            if until_nul(name) != wanted {
                return None;
            }
            let ordinal = u16_at(&ordinals, number.checked_mul(2)?)?;
            let slot = functions_at.checked_add(u32::from(ordinal).checked_mul(4)?)?;
            u32_at(&self.read("exports", slot, 4, 4).ok()?, 0)
        })
    }
}
