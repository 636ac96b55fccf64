//! The code under analysis: its bytes and, for every instruction seen, what is known there.
//!
//! Invariant: three bytes of memory per byte of code, and as much code as the budget allows.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use object::LittleEndian as LE;
use object::elf::{self, Rela64, Sym64};

use crate::coverage::{self, Coverage};
use crate::elf::Elf;
use crate::frame_section::Entry;
use crate::limits::Limits;
use strata_bytes::ReadAt;

use super::{ALIGNMENT, is_padding};

/// A function starts here.
pub(super) const STARTS: u8 = 0x40;
/// Jumps to an address in a register or in memory.
pub(super) const SWITCHES: u8 = 0x80;
const LENGTH: u8 = 0x0f;

/// Bytes of symbols, and of data, that are worth reading for each byte of code they may name.
const SYMBOLS_PER_CODE: u64 = 64;
const DATA_PER_CODE: u64 = 8;
/// C libraries' `_start` is shorter.
const FIRST_CODE: u64 = 64;
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

    fn holds(&self, address: u64) -> bool {
        address.checked_sub(self.start).is_some_and(|offset| offset < self.bytes.len() as u64)
    }

    pub fn decode(&self, offset: usize) -> Option<Instruction> {
        let end = offset.saturating_add(LONGEST).min(self.bytes.len());
        let bytes = self.bytes.get(offset..end)?;
        let address = self.start.checked_add(offset as u64)?;
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }
}

impl Region {
    /// A `pop` comes here: a call to it only asked for its own address, as position-independent
    /// code of old did.
    pub fn pops_at(&self, offset: usize) -> bool {
        matches!(self.bytes.get(offset..), Some([0x41, 0x58..=0x5f, ..] | [0x58..=0x5f, ..]))
    }

    /// Nothing but padding up to where functions are aligned: the next one may begin there.
    pub fn only_padding_follows(&self, offset: usize) -> bool {
        let mut at = offset;
        while let Some(instruction) = self.decode(at) {
            let address = self.start.saturating_add(at as u64);
            if address.is_multiple_of(ALIGNMENT) {
                return true;
            }
            if !is_padding(&instruction) || at - offset > ALIGNMENT as usize {
                return false;
            }
            at += instruction.len();
        }
        true
    }
}

pub(crate) struct Regions {
    /// Sorted by address.
    pub list: Vec<Region>,
    /// The region found last: code mostly stays in one.
    last: usize,
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
            if coverage::is_padding(gap.start, gap.end) {
                continue;
            }
            let is_small = gap.end - gap.start <= budget;
            let part = if is_small { Some(gap.clone()) } else { first_code(elf, source, gap) };
            let Some(part) = part else { continue };
            let size = part.end - part.start;
            let Some(bytes) = elf.read_address(source, part.start, size as usize) else { continue };
            budget = budget.saturating_sub(size);
            let states = vec![0; bytes.len()];
            let shapes = vec![0; bytes.len()];
            list.push(Region { start: part.start, bytes, states, shapes });
        }
        Self { list, last: 0 }
    }

    /// Leaves a stretch of code to the frame pointer.
    pub fn leave_out(&mut self, range: &Range<u64>) {
        let old = std::mem::take(&mut self.list);
        for region in old {
            let end = region.start.saturating_add(region.bytes.len() as u64);
            for part in [region.start..range.start.min(end), range.end.max(region.start)..end] {
                let inside = |address: u64| (address - region.start) as usize;
                if part.start < part.end
                    && let Some(bytes) =
                        region.bytes.get(inside(part.start)..inside(part.end)).map(<[u8]>::to_vec)
                {
                    let (states, shapes) = (vec![0; bytes.len()], vec![0; bytes.len()]);
                    self.list.push(Region { start: part.start, bytes, states, shapes });
                }
            }
        }
        self.last = 0;
    }

    pub fn at(&mut self, address: u64) -> Option<(&mut Region, usize)> {
        if !self.list.get(self.last).is_some_and(|region| region.holds(address)) {
            let after = self.list.partition_point(|region| region.start <= address);
            self.last = after.checked_sub(1)?;
        }
        let region = self.list.get_mut(self.last).filter(|region| region.holds(address))?;
        let offset = (address - region.start) as usize;
        Some((region, offset))
    }

    fn size(&self) -> u64 {
        self.list.iter().map(|region| region.bytes.len() as u64).sum()
    }

    fn holds(&self, address: u64) -> bool {
        let after = self.list.partition_point(|region| region.start <= address);
        after
            .checked_sub(1)
            .and_then(|before| self.list.get(before))
            .is_some_and(|region| region.holds(address))
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

/// The program's first code, as far as its first call, in a gap that is too large to be decoded: every
/// stack of its main thread ends there.
fn first_code<R: ReadAt + ?Sized>(elf: &Elf, source: &R, gap: &Range<u64>) -> Option<Range<u64>> {
    let start = Some(elf.entry).filter(|entry| gap.contains(entry))?;
    let size = FIRST_CODE.min(gap.end - start);
    let bytes = elf.read_address(source, start, size as usize)?;
    let mut decoder = Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE);
    let call = decoder.iter().find(|instruction| instruction.mnemonic() == Mnemonic::Call)?;
    Some(start..call.next_ip())
}

/// The information in a file's symbols and data about undescribed code.
#[derive(Default)]
pub(crate) struct Known {
    /// Addresses of functions, sorted.
    pub functions: Vec<u64>,
    pub bodies: Bodies,
    /// Code whose calls do not leave RSP as it was: see [`is_builtin`].
    pub builtins: Option<Range<u64>>,
}

/// The code of the functions whose symbols say how long they are, sorted. An address within one that
/// something takes is a label there, not a function.
#[derive(Default)]
pub(crate) struct Bodies(Vec<Range<u64>>);

impl Bodies {
    /// Without those that others hold.
    fn new(mut bodies: Vec<Range<u64>>) -> Self {
        bodies.sort_unstable_by_key(|body| (body.start, std::cmp::Reverse(body.end)));
        let mut end = 0;
        bodies.retain(|body| {
            let reaches_further = body.end > end;
            end = end.max(body.end);
            reaches_further
        });
        Self(bodies)
    }

    /// Whether one holds this address, behind its first instruction.
    pub fn hold(&self, address: u64) -> bool {
        let after = self.0.partition_point(|body| body.start < address);
        after
            .checked_sub(1)
            .and_then(|last| self.0.get(last))
            .is_some_and(|body| address < body.end)
    }
}

/// V8's builtins, compiled ahead of time into `node` and browsers. They follow conventions of
/// their own (a callee may take its arguments off the stack), so counting pushes goes wrong after
/// calls; but they keep frame pointers throughout.
fn is_builtin(name: &[u8]) -> bool {
    name.starts_with(b"Builtins_")
}

/// Names of symbols are read up to this size.
const MAX_SYMBOL_NAMES: u64 = 64 << 20;

/// Addresses of functions in the regions, by the file's symbols and data, sorted.
pub(crate) fn known_code<R: ReadAt + ?Sized>(elf: &Elf, source: &R, regions: &Regions) -> Known {
    let (mut functions, mut bodies) = (Vec::new(), Vec::new());
    let mut builtins: Option<Range<u64>> = None;
    for section in elf.sections.iter().filter(|section| {
        matches!(section.kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM)
            && section.size <= regions.size().saturating_mul(SYMBOLS_PER_CODE)
    }) {
        let Ok(bytes) = crate::elf::read_exact(source, section.offset, section.size as usize)
        else {
            continue;
        };
        let count = bytes.len() / size_of::<Sym64<LE>>();
        let Ok((symbols, _)) = object::pod::slice_from_bytes::<Sym64<LE>>(&bytes, count) else {
            continue;
        };
        let names = elf.names_of(source, section, MAX_SYMBOL_NAMES);
        for symbol in symbols {
            let kind = symbol.st_info & 0xf;
            let address = symbol.st_value.get(LE);
            if (kind == elf::STT_FUNC || kind == elf::STT_GNU_IFUNC) && regions.holds(address) {
                let name = names.get(symbol.st_name.get(LE) as usize..).unwrap_or_default();
                let end = address.saturating_add(symbol.st_size.get(LE));
                if is_builtin(name) {
                    let known = builtins.unwrap_or(address..end);
                    builtins = Some(known.start.min(address)..known.end.max(end));
                } else {
                    functions.push(address);
                    bodies.push(address..end);
                }
            }
        }
    }
    let bodies = Bodies::new(bodies);
    addresses_in_data(elf, source, regions, &bodies, &mut functions);
    functions.sort_unstable();
    functions.dedup();
    Known { functions, bodies, builtins }
}

/// Functions whose address data holds: relative relocations, and the words of data sections in
/// programs that need none. Jump tables lie elsewhere (`.rodata`).
fn addresses_in_data<R: ReadAt + ?Sized>(
    elf: &Elf,
    source: &R,
    regions: &Regions,
    bodies: &Bodies,
    functions: &mut Vec<u64>,
) {
    const HOLDERS: [&str; 4] = [".data", ".data.rel.ro", ".init_array", ".fini_array"];
    let mut note = |address: u64| {
        if address.is_multiple_of(ALIGNMENT) && regions.holds(address) && !bodies.hold(address) {
            functions.push(address);
        }
    };
    let most = regions.size().saturating_mul(DATA_PER_CODE);
    for section in elf.sections.iter().filter(|section| section.size <= most) {
        let relocates = section.kind == elf::SHT_RELA;
        let holds =
            section.has_bytes() && HOLDERS.iter().any(|name| elf.name(section) == name.as_bytes());
        if !relocates && !holds {
            continue;
        }
        let Ok(bytes) = crate::elf::read_exact(source, section.offset, section.size as usize)
        else {
            continue;
        };
        if relocates {
            let count = bytes.len() / size_of::<Rela64<LE>>();
            let Ok((relocations, _)) = object::pod::slice_from_bytes::<Rela64<LE>>(&bytes, count)
            else {
                continue;
            };
            let relative = relocations
                .iter()
                .filter(|entry| entry.r_info.get(LE) as u32 == elf::R_X86_64_RELATIVE);
            relative.for_each(|entry| note(entry.r_addend.get(LE) as u64));
        } else {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().for_each(|word| note(u64::from_le_bytes(*word)));
        }
    }
}
