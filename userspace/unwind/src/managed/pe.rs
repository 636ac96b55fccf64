//! The parts of a PE file that unwind tables need: machine, sections, data directories.
//!
//! A ReadyToRun image for Linux is a PE file whose machine number is combined with the system's
//! (`IMAGE_FILE_MACHINE_OS_MASK_*` in docs/design/coreclr/botr/readytorun-format.md).
//!
//! Invariant: offsets and sizes are the file's claims; they are checked when something is read.

use object::pe::{
    IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR, IMAGE_DIRECTORY_ENTRY_EXCEPTION, IMAGE_DOS_SIGNATURE,
    IMAGE_NT_OPTIONAL_HDR64_MAGIC, IMAGE_NT_SIGNATURE, IMAGE_SCN_MEM_EXECUTE, ImageDataDirectory,
    ImageDosHeader, ImageNtHeaders64, ImageOptionalHeader64, ImageSectionHeader,
};
use object::{LittleEndian as LE, pod};

use crate::arch;
use crate::build::BuildError;
use crate::elf::read_exact;
use crate::read::{ReadAt, read_whole};
use crate::table::Load;

/// What is combined with the machine number on Linux.
const LINUX: u16 = 0x7b79;
/// Section headers looked at; the format's own limit.
const MAX_SECTIONS: u16 = 96;
const MAX_DIRECTORIES: u32 = 16;

/// A data directory, or a table that some other one names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub address: u32,
    pub size: u32,
}

pub(crate) struct Pe {
    /// By address. Addresses are those relative to the image's start.
    pub sections: Vec<Load>,
    pub exceptions: Option<Table>,
    /// The CLR's header.
    pub managed: Option<Table>,
}

/// The two bytes that every PE file starts with.
pub(crate) fn is_pe<R: ReadAt + ?Sized>(source: &R) -> bool {
    let mut magic = [0; 2];
    source.len() > 64
        && read_whole(source, 0, &mut magic).is_ok()
        && u16::from_le_bytes(magic) == IMAGE_DOS_SIGNATURE
}

impl Pe {
    pub fn read<R: ReadAt + ?Sized>(source: &R) -> Result<Self, BuildError> {
        let start = read_exact(source, 0, size_of::<ImageDosHeader>())?;
        let Ok((dos, _)) = pod::from_bytes::<ImageDosHeader>(&start) else {
            return Err(BuildError::NotProgram);
        };
        let offset = u64::from(dos.e_lfanew.get(LE));
        let bytes = read_exact(source, offset, size_of::<ImageNtHeaders64>())?;
        let Ok((headers, _)) = pod::from_bytes::<ImageNtHeaders64>(&bytes) else {
            return Err(BuildError::NotProgram);
        };
        if headers.signature.get(LE) != IMAGE_NT_SIGNATURE {
            return Err(BuildError::NotProgram);
        }
        let machine = headers.file_header.machine.get(LE);
        if !(arch::is_own_pe(machine) || arch::is_own_pe(machine ^ LINUX))
            || headers.optional_header.magic.get(LE) != IMAGE_NT_OPTIONAL_HDR64_MAGIC
        {
            return Err(BuildError::OtherMachine);
        }
        let directories = offset + size_of::<ImageNtHeaders64>() as u64;
        let count = headers.optional_header.number_of_rva_and_sizes.get(LE).min(MAX_DIRECTORIES);
        let optional = u64::from(headers.file_header.size_of_optional_header.get(LE));
        let sections = directories - size_of::<ImageOptionalHeader64>() as u64 + optional;
        let mut pe = Self { sections: Vec::new(), exceptions: None, managed: None };
        pe.read_directories(source, directories, count as usize)?;
        let count = headers.file_header.number_of_sections.get(LE).min(MAX_SECTIONS);
        pe.read_sections(source, sections, usize::from(count))?;
        Ok(pe)
    }

    fn read_directories<R: ReadAt + ?Sized>(
        &mut self,
        source: &R,
        offset: u64,
        count: usize,
    ) -> Result<(), BuildError> {
        let size = count.saturating_mul(size_of::<ImageDataDirectory>());
        let bytes = read_exact(source, offset, size)?;
        let Ok((directories, _)) = pod::slice_from_bytes::<ImageDataDirectory>(&bytes, count)
        else {
            return Ok(());
        };
        let directory = |number: usize| {
            let found = directories.get(number)?;
            let table = Table { address: found.virtual_address.get(LE), size: found.size.get(LE) };
            (table.size != 0).then_some(table)
        };
        self.exceptions = directory(IMAGE_DIRECTORY_ENTRY_EXCEPTION);
        self.managed = directory(IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR);
        Ok(())
    }

    fn read_sections<R: ReadAt + ?Sized>(
        &mut self,
        source: &R,
        offset: u64,
        count: usize,
    ) -> Result<(), BuildError> {
        let size = count.saturating_mul(size_of::<ImageSectionHeader>());
        let bytes = read_exact(source, offset, size)?;
        let Ok((sections, _)) = pod::slice_from_bytes::<ImageSectionHeader>(&bytes, count) else {
            return Ok(());
        };
        self.sections = sections
            .iter()
            .map(|section| {
                let offset = u64::from(section.pointer_to_raw_data.get(LE));
                let size = u64::from(section.size_of_raw_data.get(LE));
                let memory_size = u64::from(section.virtual_size.get(LE));
                Load {
                    offset,
                    file_size: size.min(source.len().saturating_sub(offset)),
                    address: u64::from(section.virtual_address.get(LE)),
                    memory_size: if memory_size == 0 { size } else { memory_size },
                    executable: section.characteristics.get(LE) & IMAGE_SCN_MEM_EXECUTE != 0,
                }
            })
            .collect();
        self.sections.sort_by_key(|section| section.address);
        Ok(())
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
