//! The code under analysis: its bytes and, for every instruction seen, what is known there.
//!
//! Invariant: three bytes of memory per byte of code, and as much code as the budget allows.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use object::LittleEndian as LE;
use object::elf::{self, Sym64};

use crate::coverage::{self, Coverage};
use crate::elf::Elf;
use crate::frame_section::Entry;
use crate::limits::Limits;
use crate::read::ReadAt;

use super::ALIGNMENT;

/// A function starts here.
pub(super) const STARTS: u8 = 0x40;
/// Jumps to where a register or memory says.
pub(super) const SWITCHES: u8 = 0x80;
const LENGTH: u8 = 0x0f;

/// Symbol tables are read up to this size.
const MAX_SYMBOLS: u64 = 32 << 20;
/// An instruction is not longer than this.
const LONGEST: usize = 15;

pub(crate) struct Region {
    pub start: u64,
    pub bytes: Vec<u8>,
    /// By offset: the number of the state before the instruction there; 0: none seen there.
    states: Vec<u16>,
    /// By offset: the instruction's length, and flags.
    shapes: Vec<u8>,
}

impl Region {
    pub fn state(&self, offset: usize) -> u16 {
        self.states.get(offset).copied().unwrap_or(0)
    }

    pub fn set_state(&mut self, offset: usize, state: u16) {
        if let Some(place) = self.states.get_mut(offset) {
            *place = state;
        }
    }

    pub fn flag(&self, offset: usize, flag: u8) -> bool {
        self.shapes.get(offset).is_some_and(|shape| shape & flag != 0)
    }

    pub fn set_flag(&mut self, offset: usize, flag: u8) {
        if let Some(shape) = self.shapes.get_mut(offset) {
            *shape |= flag;
        }
    }

    pub fn length(&self, offset: usize) -> usize {
        self.shapes.get(offset).map_or(0, |shape| usize::from(shape & LENGTH))
    }

    pub fn set_length(&mut self, offset: usize, length: usize) {
        if let Some(shape) = self.shapes.get_mut(offset) {
            *shape = *shape & !LENGTH | length as u8 & LENGTH;
        }
    }

    pub fn decode(&self, offset: usize) -> Option<Instruction> {
        let end = offset.saturating_add(LONGEST).min(self.bytes.len());
        let bytes = self.bytes.get(offset..end)?;
        let address = self.start.checked_add(offset as u64)?;
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }
}

pub(crate) struct Regions {
    /// Sorted by address.
    pub list: Vec<Region>,
}

impl Regions {
    /// Reads the gaps of a coverage, but for the padding between functions.
    pub fn read<R: ReadAt + ?Sized>(
        elf: &Elf,
        source: &R,
        covered: &Coverage,
        limits: &Limits,
    ) -> Self {
        let mut list = Vec::new();
        let mut budget = limits.max_decoded;
        for gap in &covered.gaps {
            let size = gap.end - gap.start;
            if coverage::is_padding(gap.start, gap.end) || size > budget {
                continue;
            }
            budget -= size;
            let Some(bytes) = elf.read_address(source, gap.start, size as usize) else { continue };
            let states = vec![0; bytes.len()];
            let shapes = vec![0; bytes.len()];
            list.push(Region { start: gap.start, bytes, states, shapes });
        }
        Self { list }
    }

    pub fn at(&mut self, address: u64) -> Option<(&mut Region, usize)> {
        let after = self.list.partition_point(|region| region.start <= address);
        let region = self.list.get_mut(after.checked_sub(1)?)?;
        let offset = usize::try_from(address - region.start).ok()?;
        (offset < region.bytes.len()).then_some((region, offset))
    }

    fn holds(&self, address: u64) -> bool {
        let after = self.list.partition_point(|region| region.start <= address);
        after
            .checked_sub(1)
            .and_then(|before| self.list.get(before))
            .is_some_and(|region| address - region.start < region.bytes.len() as u64)
    }

    /// Entries that end where a region starts, when code may run on from one into the other.
    pub fn continued<'e>(&self, entries: &'e [Entry]) -> Vec<&'e Entry> {
        let starts = self.list.iter().map(|region| region.start);
        // Aligned code is a function of its own.
        starts
            .filter(|start| !start.is_multiple_of(ALIGNMENT))
            .filter_map(|start| {
                let after = entries.partition_point(|entry| entry.start < start);
                entries.get(after.checked_sub(1)?).filter(|entry| entry.end() == start)
            })
            .collect()
    }
}

/// Addresses of functions in the regions, by the file's symbols, sorted.
pub(crate) fn function_symbols<R: ReadAt + ?Sized>(
    elf: &Elf,
    source: &R,
    regions: &Regions,
) -> Vec<u64> {
    let mut functions = Vec::new();
    for section in elf.sections.iter().filter(|section| {
        matches!(section.kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM) && section.size <= MAX_SYMBOLS
    }) {
        let Ok(bytes) = crate::elf::read_exact(source, section.offset, section.size as usize)
        else {
            continue;
        };
        let count = bytes.len() / size_of::<Sym64<LE>>();
        let Ok((symbols, _)) = object::pod::slice_from_bytes::<Sym64<LE>>(&bytes, count) else {
            continue;
        };
        for symbol in symbols {
            let kind = symbol.st_info & 0xf;
            let address = symbol.st_value.get(LE);
            if (kind == elf::STT_FUNC || kind == elf::STT_GNU_IFUNC) && regions.holds(address) {
                functions.push(address);
            }
        }
    }
    functions.sort_unstable();
    functions.dedup();
    functions
}
