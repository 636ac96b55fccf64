//! The Go part of an ELF file: finds the line table and what belongs to it.
//!
//! Invariant: table and function data are read under limits; without the module data a table that
//! needs it is used only if the text's start can be found another way, and checked.

use crate::elf::{ElfFile, Section};
use crate::read_at::read_bytes;
use strata_golang::{Header, ModuleData, PclnTab, find_header};

/// The largest Go programs in the field have tables of about 60 MB.
const MAX_TABLE: u64 = 192 << 20;
const MAX_FUNCTION_DATA: u64 = 48 << 20;
const MAX_DATA: u64 = 64 << 20;

/// A Go line table with its surroundings.
pub struct GoProgram {
    /// Starts at the table's header.
    table: Vec<u8>,
    text_start: Option<u64>,
    function_data: FunctionData,
}

enum FunctionData {
    None,
    /// Go 1.26 puts it behind the table, in the same section.
    InTable(usize),
    Apart(Vec<u8>),
}

impl GoProgram {
    /// Finds the line table of `elf`. `None` for programs of other languages.
    #[must_use]
    pub fn load(elf: &ElfFile<'_>) -> Option<Self> {
        if !elf.features().go {
            return None;
        }
        let (table_address, table) = find_table(elf)?;
        let header = Header::parse(&table).ok()?;
        let module = [".go.module", ".noptrdata", ".data", ".data.rel.ro"]
            .into_iter()
            .filter_map(|name| elf.section_with_data(name))
            .find_map(|section| {
                let bytes = elf.read_section(section, "Go module data", MAX_DATA).ok()?;
                ModuleData::find(&bytes, section.address, table_address, &header)
            });
        let text = elf.section_by_name(".text").map(|section| section.address);
        let text_start = match module {
            Some(module) => Some(module.text),
            None if header.text_start != 0 => None,
            None => Some(text.filter(|&text| starts_at_entry(elf, &table, text))?),
        };
        let function_data =
            module.and_then(|module| module.function_data).map_or(FunctionData::None, |address| {
                function_data(elf, address, table_address, table.len())
            });
        PclnTab::parse(&table, text_start).ok()?;
        Some(Self { table, text_start, function_data })
    }

    /// The table, ready for lookups.
    #[must_use]
    pub fn table(&self) -> Option<PclnTab<'_>> {
        let table = PclnTab::parse(&self.table, self.text_start).ok()?;
        Some(match &self.function_data {
            FunctionData::None => table,
            FunctionData::InTable(offset) => {
                table.with_function_data(self.table.get(*offset..).unwrap_or_default())
            }
            FunctionData::Apart(bytes) => table.with_function_data(bytes),
        })
    }
}

/// Whether Go's text starts where `.text` does: so it is in programs that Go's own linker made, whose
/// entry point is a function of Go's. A wrong start would shift every name.
fn starts_at_entry(elf: &ElfFile<'_>, table: &[u8], text: u64) -> bool {
    let Ok(table) = PclnTab::parse(table, Some(text)) else {
        return false;
    };
    table.lookup(elf.entry).is_some_and(|function| {
        function.entry == elf.entry
            && table.name(&function).is_some_and(|name| name.starts_with("_rt0_"))
    })
}

fn find_table(elf: &ElfFile<'_>) -> Option<(u64, Vec<u8>)> {
    let named = [".gopclntab", ".data.rel.ro.gopclntab"]
        .into_iter()
        .find_map(|name| elf.section_with_data(name));
    if let Some(section) = named {
        let bytes = elf.read_section(section, "Go line table", MAX_TABLE).ok()?;
        return at_header(section, bytes);
    }
    [".data.rel.ro", ".rodata"].into_iter().filter_map(|name| elf.section_with_data(name)).find_map(
        |section| {
            let bytes = elf.read_section(section, "Go line table", MAX_TABLE).ok()?;
            at_header(section, bytes)
        },
    )
}

fn at_header(section: &Section, mut bytes: Vec<u8>) -> Option<(u64, Vec<u8>)> {
    let offset = find_header(&bytes)?;
    let address = section.address.checked_add(u64::try_from(offset).ok()?)?;
    bytes.drain(..offset);
    Some((address, bytes))
}

fn function_data(
    elf: &ElfFile<'_>,
    address: u64,
    table_address: u64,
    table_size: usize,
) -> FunctionData {
    let inside = address
        .checked_sub(table_address)
        .and_then(|offset| usize::try_from(offset).ok())
        .filter(|&offset| offset < table_size);
    if let Some(offset) = inside {
        return FunctionData::InTable(offset);
    }
    let Some(section) =
        elf.sections.iter().find(|section| section.has_data() && section.contains(address))
    else {
        return FunctionData::None;
    };
    let from = address.saturating_sub(section.address);
    let size = section.size.saturating_sub(from).min(MAX_FUNCTION_DATA);
    let offset = section.offset.saturating_add(from);
    read_bytes(elf.file(), "Go function data", offset, size, MAX_FUNCTION_DATA)
        .map_or(FunctionData::None, FunctionData::Apart)
}
