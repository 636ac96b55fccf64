//! Rules for Go code, which has no call frame information: from the line table's stack deltas.
//! What frames look like beyond that is the machine's: `arch`.
//!
//! Invariant: the line table yields ascending disjoint ranges; this adds no more rows than it has.

use strata_abi::rule::Packed;
use strata_golang::table::Function;
use strata_golang::{ModuleData, PclnTab};

use crate::arch;
use crate::coverage::Proposal;
use crate::elf::{Elf, Section};
use crate::limits::Limits;
use crate::rules::Rules;
use crate::window::Window;
use strata_bytes::ReadAt;

/// The line table's bytes and what is needed to read them.
pub(crate) struct LineTable {
    bytes: Vec<u8>,
    offset: usize,
    text_start: Option<u64>,
}

impl LineTable {
    /// Finds the line table of a Go program.
    pub fn read<R: ReadAt + ?Sized>(elf: &Elf, source: &R, limits: &Limits) -> Option<Self> {
        let named = [".gopclntab", ".data.rel.ro.gopclntab"];
        let is_go = [".go.buildinfo", ".go.module", ".note.go.buildid"];
        let (section, bytes, offset) = match named.iter().find_map(|name| elf.section(name)) {
            Some(section) => (section, elf.read_section(source, section, limits).ok()?, 0),
            None if is_go.iter().any(|name| elf.section(name).is_some()) => {
                [".rodata", ".data.rel.ro"].iter().find_map(|name| {
                    let section = elf.section(name)?;
                    let bytes = elf.read_section(source, section, limits).ok()?;
                    let offset = strata_golang::find_header(&bytes)?;
                    Some((section, bytes, offset))
                })?
            }
            None => return None,
        };
        let text_start = Self::text_start(elf, source, limits, section, &bytes, offset);
        Some(Self { bytes, offset, text_start })
    }

    fn text_start<R: ReadAt + ?Sized>(
        elf: &Elf,
        source: &R,
        limits: &Limits,
        table: &Section,
        bytes: &[u8],
        offset: usize,
    ) -> Option<u64> {
        let header = strata_golang::Header::parse(bytes.get(offset..)?).ok()?;
        let address = table.address.checked_add(offset as u64)?;
        let holders = [".go.module", ".noptrdata", ".data", ".data.rel.ro"];
        let found = holders.iter().find_map(|name| {
            let section = elf.section(name)?;
            let bytes = elf.read_section(source, section, limits).ok()?;
            ModuleData::find(&bytes, section.address, address, &header)
        });
        match found {
            Some(module) => Some(module.text),
            None if header.text_start != 0 => None,
            None => elf.section(".text").map(|section| section.address),
        }
    }
}

/// Proposes rows for all of Go's functions; returns how many functions there are.
pub(crate) fn propose<R: ReadAt + ?Sized>(
    table: &LineTable,
    elf: &Elf,
    source: &R,
    limits: &Limits,
    rules: &mut Rules,
) -> (Proposal, u64) {
    let mut proposal = Proposal::default();
    let bytes = table.bytes.get(table.offset..).unwrap_or_default();
    let Ok(table) = PclnTab::parse(bytes, table.text_start) else { return (proposal, 0) };
    let mut window = Window::new(elf, source, limits.max_section);
    let mut count = 0;
    for function in table.functions() {
        if proposal.rows.len() > limits.max_rows as usize || count >= u64::from(limits.max_entries)
        {
            break;
        }
        count += 1;
        if arch::is_go_restorer(&table, &function) {
            restorer(&function, rules.packed(Packed::SIGNAL), &mut proposal);
            continue;
        }
        let first = proposal.rows.len();
        arch::go_function(&table, &function, &mut window, rules, &mut proposal.rows);
        proposal.close(function.entry, function.end, first);
    }
    (proposal, count)
}

/// The kernel makes the restorer's first byte the signal handler's return address, and callers
/// are looked up by the byte before: that byte, padding of the function before, is its too.
fn restorer(function: &Function, signal: u16, proposal: &mut Proposal) {
    if let Some(before) = proposal.fills.last_mut()
        && before.end == function.entry
        && before.rows.end == proposal.rows.len()
    {
        proposal.rows.push((function.entry - 1, signal));
        before.rows.end += 1;
    }
    proposal.single(function.entry, function.end, signal);
}
