//! The parts of an ELF file that unwind tables need: header, segments, sections.
//!
//! Invariant: offsets and sizes are the file's claims; they are checked when something is read.

use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64};
use object::{LittleEndian as LE, pod};
use strata_abi::arch::USER_ADDRESSES;

use crate::arch;
use crate::build::BuildError;
use crate::limits::Limits;
use crate::table::Load;
use strata_bytes::{ReadAt, ReadError, read_range, read_whole};

/// Section headers looked at; linkers stay far below it.
const MAX_SECTIONS: u16 = 4096;
/// No program is linked beyond user space; sums with what lies below cannot overflow.
const MAX_ADDRESS: u64 = USER_ADDRESSES;
/// Longer names are of no section that is looked for.
const LONGEST_NAME: usize = 64;
const MAX_NAMES: u64 = 1 << 20;

pub(crate) struct Elf {
    pub entry: u64,
    /// All `PT_LOAD` segments, by address.
    pub loads: Vec<Load>,
    pub sections: Vec<Section>,
    /// Address of `.eh_frame_hdr` by `PT_GNU_EH_FRAME`.
    pub frame_header: Option<u64>,
    names: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    name: u32,
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    /// Number of the section that this one refers to: a symbol table's names.
    pub link: u32,
}

impl Section {
    pub fn has_bytes(&self) -> bool {
        self.kind != elf::SHT_NOBITS
            && self.kind != elf::SHT_NULL
            && self.flags & u64::from(elf::SHF_COMPRESSED) == 0
    }

    pub fn is_code(&self) -> bool {
        self.has_bytes() && self.flags & u64::from(elf::SHF_EXECINSTR) != 0
    }

    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

impl Elf {
    pub fn read<R: ReadAt + ?Sized>(source: &R) -> Result<Self, BuildError> {
        let mut bytes = [0; size_of::<FileHeader64<LE>>()];
        if source.len() < bytes.len() as u64 {
            return Err(BuildError::NotProgram);
        }
        read_whole(source, 0, &mut bytes)?;
        let Ok((header, _)) = pod::from_bytes::<FileHeader64<LE>>(&bytes) else {
            return Err(BuildError::NotProgram);
        };
        if header.e_ident.magic != elf::ELFMAG {
            return Err(BuildError::NotProgram);
        }
        if header.e_ident.class != elf::ELFCLASS64
            || header.e_ident.data != elf::ELFDATA2LSB
            || !arch::is_own_elf(header.e_machine.get(LE))
        {
            return Err(BuildError::OtherMachine);
        }
        let mut elf = Self {
            entry: header.e_entry.get(LE),
            loads: Vec::new(),
            sections: Vec::new(),
            frame_header: None,
            names: Vec::new(),
        };
        elf.read_segments(source, header)?;
        elf.read_sections(source, header)?;
        Ok(elf)
    }

    fn read_segments<R: ReadAt + ?Sized>(
        &mut self,
        source: &R,
        header: &FileHeader64<LE>,
    ) -> Result<(), BuildError> {
        let entry = usize::from(header.e_phentsize.get(LE));
        if entry != size_of::<ProgramHeader64<LE>>() {
            return Ok(());
        }
        let count = usize::from(header.e_phnum.get(LE).min(MAX_SECTIONS));
        let bytes = read_exact(source, header.e_phoff.get(LE), count.saturating_mul(entry))?;
        let Ok((segments, _)) = pod::slice_from_bytes::<ProgramHeader64<LE>>(&bytes, count) else {
            return Ok(());
        };
        for segment in segments {
            let address = segment.p_vaddr.get(LE);
            match segment.p_type.get(LE) {
                elf::PT_LOAD if address > MAX_ADDRESS => {}
                elf::PT_LOAD => self.loads.push(Load {
                    offset: segment.p_offset.get(LE),
                    file_size: segment
                        .p_filesz
                        .get(LE)
                        .min(source.len().saturating_sub(segment.p_offset.get(LE))),
                    address,
                    memory_size: segment.p_memsz.get(LE),
                    executable: segment.p_flags.get(LE) & elf::PF_X != 0,
                }),
                elf::PT_GNU_EH_FRAME => self.frame_header = Some(address),
                _ => {}
            }
        }
        self.loads.sort_by_key(|load| load.address);
        Ok(())
    }

    /// A file without section headers, or with damaged ones, is not an error: segments suffice.
    fn read_sections<R: ReadAt + ?Sized>(
        &mut self,
        source: &R,
        header: &FileHeader64<LE>,
    ) -> Result<(), BuildError> {
        let entry = usize::from(header.e_shentsize.get(LE));
        let count = usize::from(header.e_shnum.get(LE).min(MAX_SECTIONS));
        if entry != size_of::<SectionHeader64<LE>>() || count == 0 {
            return Ok(());
        }
        let Ok(bytes) = read_exact(source, header.e_shoff.get(LE), count.saturating_mul(entry))
        else {
            return Ok(());
        };
        let Ok((sections, _)) = pod::slice_from_bytes::<SectionHeader64<LE>>(&bytes, count) else {
            return Ok(());
        };
        self.sections = sections
            .iter()
            .map(|section| Section {
                name: section.sh_name.get(LE),
                kind: section.sh_type.get(LE),
                flags: section.sh_flags.get(LE),
                address: section.sh_addr.get(LE),
                offset: section.sh_offset.get(LE),
                size: section.sh_size.get(LE),
                link: section.sh_link.get(LE),
            })
            .collect();
        if let Some(names) = self.sections.get(usize::from(header.e_shstrndx.get(LE)))
            && names.has_bytes()
            && names.size <= MAX_NAMES
            && let Ok(names) = read_exact(source, names.offset, names.size as usize)
        {
            self.names = names;
        }
        Ok(())
    }

    pub fn name(&self, section: &Section) -> &[u8] {
        let rest = self.names.get(section.name as usize..).unwrap_or_default();
        // Of a table without an end, as many names can be asked for as there are sections.
        let rest = rest.get(..LONGEST_NAME).unwrap_or(rest);
        rest.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// A section that has bytes, by name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections
            .iter()
            .find(|section| section.has_bytes() && self.name(section) == name.as_bytes())
    }

    pub fn read_section<R: ReadAt + ?Sized>(
        &self,
        source: &R,
        section: &Section,
        limits: &Limits,
    ) -> Result<Vec<u8>, BuildError> {
        if section.size > limits.max_section {
            return Err(BuildError::TooLarge { size: section.size, limit: limits.max_section });
        }
        read_exact(source, section.offset, section.size as usize)
    }

    /// The names that a symbol table's entries point into, if they are no more than `limit` bytes.
    pub fn names_of<R: ReadAt + ?Sized>(
        &self,
        source: &R,
        symbols: &Section,
        limit: u64,
    ) -> Vec<u8> {
        self.sections
            .get(symbols.link as usize)
            .filter(|names| names.kind == elf::SHT_STRTAB && names.size <= limit)
            .and_then(|names| read_exact(source, names.offset, names.size as usize).ok())
            .unwrap_or_default()
    }

    /// The executable segment an address lies in, as far as the file has bytes for it.
    pub fn code_at(&self, address: u64) -> Option<&Load> {
        self.loads.iter().find(|load| {
            load.executable && address >= load.address && address - load.address < load.file_size
        })
    }

    /// Reads `size` bytes at an address that some segment holds.
    pub fn read_address<R: ReadAt + ?Sized>(
        &self,
        source: &R,
        address: u64,
        size: usize,
    ) -> Option<Vec<u8>> {
        let load = self.loads.iter().find(|load| {
            address >= load.address
                && (address - load.address)
                    .checked_add(size as u64)
                    .is_some_and(|end| end <= load.file_size)
        })?;
        let offset = load.offset.checked_add(address - load.address)?;
        read_exact(source, offset, size).ok()
    }
}

/// Reads a part of the file; a part that the file does not have is an error before any
/// memory is taken for it.
pub(crate) fn read_exact<R: ReadAt + ?Sized>(
    source: &R,
    offset: u64,
    size: usize,
) -> Result<Vec<u8>, BuildError> {
    read_range(source, offset, size as u64, u64::MAX).map_err(|error| match error {
        ReadError::Io(error) => BuildError::from(error),
        ReadError::Cut | ReadError::TooLarge => BuildError::Cut,
    })
}
