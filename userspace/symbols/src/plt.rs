//! Names for the stubs through which calls leave a library: `name@plt`.
//!
//! Stubs differ between linkers and hardening options, but each of them jumps through a slot of the
//! global offset table, and a relocation names what fills the slot. So a stub is decoded up to its
//! jump and the slot looked up.
//!
//! Invariant: the table of slots is bounded; a stub that cannot be decoded has no name.

use crate::arch;
use crate::elf::{ElfFile, SECTION_DYNSYM, SECTION_RELA, Section};
use crate::symbol_table::read_name;
use strata_bytes::{u32_at, u64_at};

const MAX_RELOCATIONS: u64 = 8 << 20;
const MAX_SLOTS: usize = 1 << 18;
const RELA_BYTES: usize = 24;
/// Stubs are 8 or 16 bytes long.
const STUB_BYTES: u64 = 16;

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// An index into `.dynsym`.
    Symbol(u32),
    /// The address of a function that chooses the implementation.
    Resolver(u64),
}

/// The stubs of one file.
pub struct Plt<'a> {
    elf: ElfFile<'a>,
    stubs: Vec<Section>,
    /// Sorted by the slot's address.
    slots: Vec<(u64, Target)>,
}

/// The name of a stub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StubName {
    Raw(Vec<u8>),
    /// Named after the function at this address.
    Resolver(u64),
    /// The first entry of the table, which all others fall back to.
    Header,
}

impl<'a> Plt<'a> {
    #[must_use]
    pub fn new(elf: &ElfFile<'a>) -> Self {
        let stubs: Vec<Section> = elf
            .sections
            .iter()
            .filter(|section| section.is_executable() && section.has_data())
            .filter(|section| {
                let name = elf.section_name(section);
                name == b".plt" || name.starts_with(b".plt.") || name == b".iplt"
            })
            .copied()
            .collect();
        let mut plt = Self { elf: elf.clone(), stubs, slots: Vec::new() };
        if elf.machine == arch::ELF_MACHINE && !plt.stubs.is_empty() {
            plt.read_slots();
        }
        plt
    }

    fn read_slots(&mut self) {
        let tables = self
            .elf
            .sections
            .iter()
            .filter(|section| section.kind == SECTION_RELA && section.has_data());
        for table in tables.take(16) {
            let Ok(bytes) = self.elf.read_section(table, "relocations", MAX_RELOCATIONS) else {
                continue;
            };
            for entry in bytes.chunks_exact(RELA_BYTES) {
                let (Some(slot), Some(kind), Some(symbol), Some(addend)) =
                    (u64_at(entry, 0), u32_at(entry, 8), u32_at(entry, 12), u64_at(entry, 16))
                else {
                    continue;
                };
                let target = match kind {
                    arch::JUMP_SLOT | arch::GLOBAL_DATA if symbol != 0 => Target::Symbol(symbol),
                    arch::IRELATIVE => Target::Resolver(addend),
                    _ => continue,
                };
                if self.slots.len() < MAX_SLOTS {
                    self.slots.push((slot, target));
                }
            }
        }
        self.slots.sort_unstable_by_key(|&(slot, _)| slot);
    }

    /// Whether `address` lies among the stubs.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        self.stubs.iter().any(|section| section.contains(address))
    }

    /// The name of the stub at `address`; `None` if it is no stub, or an unknown one.
    #[must_use]
    pub fn name(&self, address: u64) -> Option<StubName> {
        let section = self.stubs.iter().find(|section| section.contains(address))?;
        let step = match section.entry_size {
            8 => 8,
            _ => STUB_BYTES,
        };
        let inside = address.checked_sub(section.address)?;
        let stub = section.address.checked_add(inside.checked_div(step)?.checked_mul(step)?)?;
        let code = self.elf.read_address(stub, step, "stubs").ok()?;
        let Some(slot) = arch::slot_of_stub(&code, stub) else {
            let first = inside < step && self.elf.section_name(section) == b".plt";
            return first.then_some(StubName::Header);
        };
        let index = self.slots.binary_search_by_key(&slot, |&(slot, _)| slot).ok();
        match index.and_then(|index| self.slots.get(index)) {
            Some((_, Target::Symbol(symbol))) => self.symbol_name(*symbol).map(StubName::Raw),
            Some((_, Target::Resolver(address))) => Some(StubName::Resolver(*address)),
            // The first entry jumps through a slot the loader fills without a relocation.
            None => (inside < step).then_some(StubName::Header),
        }
    }

    fn symbol_name(&self, index: u32) -> Option<Vec<u8>> {
        let symbols = self.elf.section_by_kind(SECTION_DYNSYM)?;
        let names = self.elf.section(symbols.link)?;
        let at = u64::from(index).checked_mul(24)?;
        let mut name = [0; 4];
        if at.checked_add(24)? > symbols.size
            || self.elf.file().read_at(symbols.offset.checked_add(at)?, &mut name).ok()? < 4
        {
            return None;
        }
        let name = u64::from(u32::from_le_bytes(name));
        read_name(self.elf.file(), names.offset, names.size, name).filter(|name| !name.is_empty())
    }
}
