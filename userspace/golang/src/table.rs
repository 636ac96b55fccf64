//! [`PclnTab`]: the functions of a Go program, by order and by address, with names and lines.
//!
//! Nothing is copied or indexed beforehand: the table is sorted by address on disk, so a lookup is a
//! binary search in the bytes as they are.
//!
//! Invariant: [`PclnTab::functions`] yields ascending, non-empty, disjoint ranges, so building
//! tables from it costs work in proportion to the text and not to what the bytes claim.

use crate::bytes::{c_string, word_at};
use crate::header::{Header, Version};
use crate::pc_values::PcValues;
use crate::{Error, find_header};
use std::borrow::Cow;
use strata_bytes::{i32_at, u8_at, u32_at};

/// A Go line table over borrowed bytes. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct PclnTab<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) header: Header,
    pub(crate) text_start: u64,
    pub(crate) function_data: Option<&'a [u8]>,
}

/// One function as the linker laid it out (inlined calls are not functions of their own).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    pub entry: u64,
    /// Where the next function begins: padding belongs to the function before it.
    pub end: u64,
    /// Go's number for functions its runtime treats specially. The numbers differ between releases.
    pub func_id: u8,
    /// `internal/abi.FuncFlag`; 0 before Go 1.17.
    pub flags: u8,
    /// The line of the `func` keyword; 0 before Go 1.20.
    pub start_line: u32,
    pub(crate) name: u32,
    pub(crate) stack_values: u32,
    pub(crate) file_values: u32,
    pub(crate) line_values: u32,
    pub(crate) unit: u32,
    pub(crate) pcdata_count: u32,
    pub(crate) funcdata_count: u8,
    /// Where the pcdata offsets begin, from the table's start.
    pub(crate) pcdata: usize,
}

/// The stack ends here: `runtime.goexit`, `runtime.mstart` and their like.
pub const FLAG_TOP_FRAME: u8 = 1;
/// Writes SP in a way that the table cannot express.
pub const FLAG_SP_WRITE: u8 = 2;
/// Written in assembly.
pub const FLAG_ASSEMBLY: u8 = 4;

/// A place in the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine<'a> {
    pub file: Cow<'a, str>,
    pub line: u32,
}

impl<'a> PclnTab<'a> {
    /// Reads the table that starts at the first byte of `bytes` (the section `.gopclntab`).
    ///
    /// `text_start` is the address of `runtime.text`: from the symbol table or from
    /// [`ModuleData`](crate::ModuleData). It takes precedence over the table's value, which is 0 or
    /// not relocated in newer and in position-independent programs. Without it the table's own
    /// value is used.
    ///
    /// # Errors
    /// When the bytes are not a Go line table, are truncated, or have no start of the text.
    pub fn parse(bytes: &'a [u8], text_start: Option<u64>) -> Result<Self, Error> {
        let header = Header::parse(bytes)?;
        let text_start = match (header.version, text_start) {
            (Version::Go12 | Version::Go116, _) => 0,
            (_, Some(address)) => address,
            (_, None) if header.text_start != 0 => header.text_start,
            (_, None) => return Err(Error::TextStartUnknown),
        };
        Ok(Self { bytes, header, text_start, function_data: None })
    }

    /// As [`parse`](Self::parse), for a section in which the table is only a part.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(section: &'a [u8], text_start: Option<u64>) -> Result<Self, Error> {
        let offset = find_header(section).ok_or(Error::Magic)?;
        Self::parse(section.get(offset..).unwrap_or_default(), text_start)
    }

    /// Sets the bytes that start at `go:func.*` (see [`ModuleData`](crate::ModuleData)), which hold
    /// the trees of inlined calls. Without them frames come without inlining.
    #[must_use]
    pub fn with_function_data(mut self, function_data: &'a [u8]) -> Self {
        self.function_data = Some(function_data);
        self
    }

    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The address of `runtime.text` in use.
    #[must_use]
    pub fn text_start(&self) -> u64 {
        self.text_start
    }

    /// All functions, ascending. Entries out of order are left out.
    pub fn functions(&self) -> impl Iterator<Item = Function> + use<'a> {
        let table = *self;
        let mut last_end = 0;
        (0..self.header.function_count).filter_map(move |index| {
            let function = table.function(index)?;
            if function.entry < last_end {
                return None;
            }
            last_end = function.end;
            Some(function)
        })
    }

    /// The function that holds `pc`.
    #[must_use]
    pub fn lookup(&self, pc: u64) -> Option<Function> {
        let (mut low, mut high) = (0, self.header.function_count);
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(middle)? <= pc {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        let function = self.function(low.checked_sub(1)?)?;
        (function.entry..function.end).contains(&pc).then_some(function)
    }

    /// The name with its package path, as in `net/http.(*Server).Serve`.
    #[must_use]
    pub fn name(&self, function: &Function) -> Option<Cow<'a, str>> {
        self.name_at(function.name)
    }

    pub(crate) fn name_at(&self, offset: u32) -> Option<Cow<'a, str>> {
        c_string(self.bytes.get(self.header.names..)?, usize::try_from(offset).ok()?)
    }

    /// Whether a complete stack ends in this function.
    #[must_use]
    pub fn is_top_frame(&self, function: &Function) -> bool {
        function.flags & FLAG_TOP_FRAME != 0
            || (self.header.version <= Version::Go116
                && self.name(function).is_some_and(|name| {
                    matches!(
                        name.as_ref(),
                        "runtime.goexit" | "runtime.mstart" | "runtime.rt0_go" | "runtime.mcall"
                    )
                }))
    }

    /// How many bytes `rsp` lies below its value at the function's first instruction, range by range.
    /// On x86-64 the caller's frame begins at `rsp + delta + 8`. Negative where a function pops its
    /// return address (`syscall.rawVforkSyscall`).
    ///
    /// Ranges of functions with [`FLAG_SP_WRITE`] are true only up to the write.
    #[must_use]
    pub fn sp_deltas(&self, function: &Function) -> PcValues<'a> {
        self.values(function, function.stack_values)
    }

    /// The file and line at `pc` (of the innermost inlined call, when there is one).
    #[must_use]
    pub fn file_line(&self, pc: u64) -> Option<SourceLine<'a>> {
        self.file_line_in(&self.lookup(pc)?, pc)
    }

    pub(crate) fn file_line_in(&self, function: &Function, pc: u64) -> Option<SourceLine<'a>> {
        let line = self.values(function, function.line_values).value_at(pc)?;
        let file = self.values(function, function.file_values).value_at(pc)?;
        let file = usize::try_from(file).ok()?;
        let (unit, entry_base) = match self.header.version {
            Version::Go12 => (0, self.header.files),
            _ => (usize::try_from(function.unit).ok()?, self.header.unit_files),
        };
        let entry = unit.checked_add(file)?.checked_mul(4)?.checked_add(entry_base)?;
        let name = u32_at(self.bytes, entry).filter(|&offset| offset != u32::MAX)?;
        let names = match self.header.version {
            Version::Go12 => 0,
            _ => self.header.files,
        };
        Some(SourceLine {
            file: c_string(self.bytes.get(names..)?, usize::try_from(name).ok()?)?,
            line: u32::try_from(line).ok()?,
        })
    }

    /// The table of values at `offset` of the values' part; 0 means that there is none.
    pub(crate) fn values(&self, function: &Function, offset: u32) -> PcValues<'a> {
        usize::try_from(offset)
            .ok()
            .filter(|&offset| offset != 0)
            .and_then(|offset| self.header.values.checked_add(offset))
            .and_then(|offset| self.bytes.get(offset..))
            .map_or_else(PcValues::empty, |bytes| {
                PcValues::new(bytes, function.entry, function.end, self.header.quantum)
            })
    }

    /// Field `index` of the function table: addresses and record offsets take turns.
    fn field(&self, index: u64) -> Option<u64> {
        let size = self.header.field_bytes();
        let offset =
            usize::try_from(index).ok()?.checked_mul(size)?.checked_add(self.header.functions)?;
        word_at(self.bytes, offset, u8::try_from(size).ok()?)
    }

    fn entry(&self, index: u32) -> Option<u64> {
        self.field(u64::from(index).checked_mul(2)?)?.checked_add(self.text_start)
    }

    fn function(&self, index: u32) -> Option<Function> {
        let entry = self.entry(index)?;
        let end = self.entry(index.checked_add(1)?)?;
        if end <= entry {
            return None;
        }
        let record_offset = self.field(u64::from(index).checked_mul(2)?.checked_add(1)?)?;
        // Up to Go 1.15 records are found from the table's start, then from the function table's.
        let base = match self.header.version {
            Version::Go12 => 0,
            _ => self.header.functions,
        };
        let record = usize::try_from(record_offset).ok()?.checked_add(base)?;
        let bytes = self.bytes.get(record..)?;
        let shape = RecordShape::of(&self.header);
        let word =
            |index: usize| u32_at(bytes, shape.entry_bytes.checked_add(index.checked_mul(4)?)?);
        Some(Function {
            entry,
            end,
            func_id: u8_at(bytes, shape.tail)?,
            flags: match self.header.version {
                Version::Go12 => 0,
                _ => u8_at(bytes, shape.tail.checked_add(1)?)?,
            },
            start_line: match self.header.version {
                Version::Go120 => i32_at(bytes, shape.tail.checked_sub(4)?)
                    .and_then(|line| u32::try_from(line).ok())
                    .unwrap_or(0),
                _ => 0,
            },
            name: word(0)?,
            stack_values: word(3)?,
            file_values: word(4)?,
            line_values: word(5)?,
            pcdata_count: word(6)?,
            unit: match self.header.version {
                Version::Go12 => 0,
                _ => word(7)?,
            },
            funcdata_count: u8_at(bytes, shape.tail.checked_add(3)?)?,
            pcdata: record.checked_add(shape.tail)?.checked_add(4)?,
        })
    }
}

/// Where the fields of a function's record (`runtime._func`) lie.
struct RecordShape {
    /// The size of its first field, the function's address.
    entry_bytes: usize,
    /// The offset of its last word: function id, flags, padding, count of funcdata.
    tail: usize,
}

impl RecordShape {
    fn of(header: &Header) -> Self {
        let entry_bytes = header.field_bytes();
        // Seven words in all versions (name … npcdata), then the unit, then the first line.
        let words: usize = match header.version {
            Version::Go12 => 7,
            Version::Go116 | Version::Go118 => 8,
            Version::Go120 => 9,
        };
        Self { entry_bytes, tail: words.saturating_mul(4).saturating_add(entry_bytes) }
    }
}
