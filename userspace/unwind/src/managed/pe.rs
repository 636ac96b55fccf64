//! The parts of a PE file that unwind tables need: machine, sections, data directories.
//!
//! Invariant: offsets and sizes are the file's claims; they are checked when something is read.

use strata_bytes::{ReadAt, fill, read_whole};
use strata_ecma::pe::{Error, Headers, MAX_HEADERS, directory};

pub(crate) use strata_ecma::pe::Directory;

use crate::arch;
use crate::build::BuildError;
use crate::elf::read_exact;
use crate::table::Load;

pub(crate) struct Pe {
    /// By address. Addresses are those relative to the image's start.
    pub sections: Vec<Load>,
    pub exceptions: Option<Directory>,
    /// The CLI header.
    pub managed: Option<Directory>,
}

/// The two bytes that every PE file starts with.
pub(crate) fn is_pe<R: ReadAt + ?Sized>(source: &R) -> bool {
    let mut magic = [0; 2];
    source.len() > 64 && read_whole(source, 0, &mut magic).is_ok() && magic == *b"MZ"
}

impl Pe {
    pub fn read<R: ReadAt + ?Sized>(source: &R) -> Result<Self, BuildError> {
        let mut bytes = vec![0; MAX_HEADERS];
        let length = fill(source, 0, &mut bytes)?;
        let headers =
            Headers::parse(bytes.get(..length).unwrap_or_default()).map_err(
                |error| match error {
                    Error::NotPe => BuildError::NotProgram,
                    Error::Cut => BuildError::Cut,
                },
            )?;
        if !arch::is_own_pe(headers.machine) || !headers.is_64_bit {
            return Err(BuildError::OtherMachine);
        }
        let load = |section: strata_ecma::pe::Section| {
            let (offset, size) = (u64::from(section.file_offset), u64::from(section.file_size));
            let memory_size = u64::from(section.virtual_size);
            Load {
                offset,
                file_size: size.min(source.len().saturating_sub(offset)),
                address: u64::from(section.rva),
                memory_size: if memory_size == 0 { size } else { memory_size },
                executable: section.is_executable(),
            }
        };
        let mut sections: Vec<Load> = headers.sections().map(load).collect();
        sections.sort_by_key(|section| section.address);
        Ok(Self {
            sections,
            exceptions: headers.directory(directory::EXCEPTION),
            managed: headers.directory(directory::CLI),
        })
    }

    /// The section that has bytes for an address.
    pub fn section_at(&self, address: u32) -> Option<&Load> {
        let address = u64::from(address);
        self.sections.iter().find(|section| {
            address >= section.address && address - section.address < section.file_size
        })
    }

    /// Up to `size` bytes at an address; fewer at the end of a section.
    pub fn read_address<R: ReadAt + ?Sized>(
        &self,
        source: &R,
        address: u32,
        size: u64,
    ) -> Option<Vec<u8>> {
        let section = self.section_at(address)?;
        let within = u64::from(address) - section.address;
        let size = usize::try_from(size.min(section.file_size - within)).ok()?;
        read_exact(source, section.offset.checked_add(within)?, size).ok()
    }
}
