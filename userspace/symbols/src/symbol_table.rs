//! A compact, sorted table of the functions in an ELF file's symbol tables.
//!
//! Sixteen bytes a symbol; names stay in the file and are read when they are asked for, so that a
//! library with a million symbols costs 16 MB and not its string table.
//!
//! Which symbol names an address: a function whose size holds it, the innermost one; else a symbol
//! without a size (hand-written assembly), which reaches to the next symbol or function, but not out of
//! its section and not far. Among several at one address: functions before labels, visible before local ones, then
//! the fewest leading underscores (`write`, not `__write`), strong before weak, the shortest.
//!
//! Invariant: the table never holds more than [`MAX_SYMBOLS`] symbols, and a lookup looks at a
//! bounded number of them.

use crate::elf::{ElfFile, SECTION_DYNSYM, SECTION_SYMTAB, Section};
use crate::read_at::read_some;
use crate::{Error, ReadAt};
use strata_bytes::{u16_at, u32_at, u64_at, until_nul};

/// 64 MB of table. The largest browsers have about a million functions.
pub const MAX_SYMBOLS: usize = 4 << 20;
const SYMBOL_BYTES: usize = 24;
const CHUNK_SYMBOLS: usize = 4096;
/// How far a symbol without a size reaches: where functions have none, what follows it in a stripped file is
/// other code.
const MAX_FUNCTION: u64 = 16 << 10;
const MAX_LABEL: u64 = 4 << 10;
/// Marks the size of a function that has none of its own.
const GUESSED: u32 = 1 << 31;
/// Behind a function that is no longer lies padding.
const ALIGNED: u64 = 16;
/// How far a lookup goes back in search of a function that holds the address.
const MAX_LOOK_BACK: usize = 256;
/// How many names at one address are compared.
const MAX_ALIASES: usize = 32;
/// Mangled names longer than this are truncated, and then shown without demangling.
const MAX_RAW_NAME: usize = 16 << 10;

const TYPE_NONE: u8 = 0;
const TYPE_FUNCTION: u8 = 2;
const TYPE_INDIRECT: u8 = 10;
const BIND_LOCAL: u8 = 0;
const BIND_WEAK: u8 = 2;

const RANK_LABEL: u64 = 4;
const RANK_LOCAL: u64 = 2;
const RANK_WEAK: u64 = 1;

/// Where a table's names lie.
enum Names<'a> {
    File { file: &'a dyn ReadAt, offset: u64, size: u64 },
    Memory(Vec<u8>),
}

#[derive(Clone, Copy)]
struct Symbol {
    /// Address, source (2 bits), rank (3 bits): one word to sort by.
    key: u64,
    size: u32,
    name: u32,
}

const KEY_SHIFT: u32 = 8;
const SOURCE_SHIFT: u32 = 4;

impl Symbol {
    fn address(self) -> u64 {
        self.key >> KEY_SHIFT
    }

    fn source(self) -> usize {
        usize::try_from((self.key >> SOURCE_SHIFT) & 3).unwrap_or(0)
    }

    fn rank(self) -> u64 {
        self.key & 7
    }

    fn is_label(self) -> bool {
        self.key & RANK_LABEL != 0
    }

    fn holds(self, address: u64) -> bool {
        let size = u64::from(self.size & !GUESSED);
        address.checked_sub(self.address()).is_some_and(|inside| inside < size)
    }

    /// A function whose size is that of the room behind it.
    fn is_guessed(self) -> bool {
        self.size & GUESSED != 0
    }
}

/// The symbol that names an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    pub address: u64,
    pub size: u32,
    /// As the linker wrote it.
    pub raw_name: Vec<u8>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct SymbolTable<'a> {
    symbols: Vec<Symbol>,
    names: Vec<Names<'a>>,
    /// Symbols left out because there are too many.
    pub dropped: u64,
}

impl<'a> SymbolTable<'a> {
    /// Adds the functions of `.symtab` or `.dynsym`. Call [`finish`](Self::finish) after the last.
    ///
    /// # Errors
    /// When the table lies outside of the file.
    pub fn add(&mut self, elf: &ElfFile<'a>, kind: u32) -> Result<usize, Error> {
        let (Some(section), Some(names)) = Self::sections(elf, kind) else {
            return Ok(0);
        };
        let names = Names::File { file: elf.file(), offset: names.offset, size: names.size };
        self.add_from(elf, &section, names)
    }

    /// Adds the functions of an ELF file in memory (an unpacked `.gnu_debugdata`).
    ///
    /// # Errors
    /// When its table is damaged.
    pub fn add_in_memory(&mut self, elf: &ElfFile<'_>) -> Result<usize, Error> {
        let (Some(section), Some(names)) = Self::sections(elf, SECTION_SYMTAB) else {
            return Ok(0);
        };
        let names = elf.read_section(&names, "symbol names", names.size)?;
        self.add_from(elf, &section, Names::Memory(names))
    }

    fn sections(elf: &ElfFile<'_>, kind: u32) -> (Option<Section>, Option<Section>) {
        let section = elf.section_by_kind(kind).copied();
        let names = section
            .and_then(|section| elf.section(section.link).copied())
            .filter(Section::has_data);
        (section, names)
    }

    fn add_from(
        &mut self,
        elf: &ElfFile<'_>,
        section: &Section,
        names: Names<'a>,
    ) -> Result<usize, Error> {
        let source = u64::try_from(self.names.len()).unwrap_or(u64::MAX);
        if source > 3 {
            return Ok(0);
        }
        let what = "symbol table";
        let before = self.symbols.len();
        let code = elf.code_ranges();
        let mut chunk = vec![0; CHUNK_SYMBOLS.saturating_mul(SYMBOL_BYTES)];
        let end = section.offset.saturating_add(section.size).min(elf.file().len());
        let mut offset = section.offset;
        while offset < end {
            let want =
                usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX).min(chunk.len());
            let Some(buffer) = chunk.get_mut(..want) else {
                break;
            };
            let count = read_some(elf.file(), what, offset, buffer)?;
            if count < SYMBOL_BYTES {
                break;
            }
            for entry in buffer.get(..count).unwrap_or_default().chunks_exact(SYMBOL_BYTES) {
                if let Some(symbol) = read_symbol(entry, source, &code) {
                    if self.symbols.len() < MAX_SYMBOLS {
                        self.symbols.push(symbol);
                    } else {
                        self.dropped = self.dropped.saturating_add(1);
                    }
                }
            }
            offset = offset.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        }
        self.names.push(names);
        Ok(self.symbols.len().saturating_sub(before))
    }

    /// Sorts, and gives symbols without a size the room up to the next symbol of their section, or to the next
    /// function that `next_function` knows behind an address.
    pub fn finish(&mut self, code: &[(u64, u64)], next_function: impl Fn(u64) -> Option<u64>) {
        self.symbols.sort_unstable_by_key(|symbol| symbol.key);
        let mut next = u64::MAX;
        let mut last = u64::MAX;
        for symbol in self.symbols.iter_mut().rev() {
            let address = symbol.address();
            if address != last {
                next = last;
                last = address;
            }
            if symbol.size == 0 {
                let end = range_of(code, address).map_or(address, |(_, end)| end);
                let end = end.min(next).min(next_function(address).unwrap_or(end));
                let most = if symbol.is_label() { MAX_LABEL } else { MAX_FUNCTION };
                let size = u32::try_from(end.saturating_sub(address).min(most)).unwrap_or(0);
                symbol.size = if symbol.is_label() { size } else { size | GUESSED };
            }
        }
        self.symbols.shrink_to_fit();
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The index of the symbol that names `address`: the same for all addresses of one function, so
    /// that its demangled name can be cached.
    ///
    /// A function without a size reaches no further than its instructions, if `end_of` finds where they
    /// end: hidden functions may follow, which have other names.
    #[must_use]
    pub fn find(&self, address: u64, end_of: impl Fn(u64) -> Option<u64>) -> Option<usize> {
        let end = self.symbols.partition_point(|symbol| symbol.address() <= address);
        let mut label = None;
        let mut function = None;
        for index in (end.saturating_sub(MAX_LOOK_BACK)..end).rev() {
            let symbol = *self.symbols.get(index)?;
            if !symbol.holds(address) {
                continue;
            }
            let start = symbol.address();
            if symbol.is_guessed()
                && address.saturating_sub(start) >= ALIGNED
                && end_of(start).is_some_and(|end| address >= end)
            {
                continue;
            }
            if !symbol.is_label() {
                function = Some(index);
                break;
            }
            label = label.or(Some(index));
        }
        let found = function.or(label)?;
        // Symbols at one address are sorted by rank, the found one is the last of its kind.
        let address = self.symbols.get(found)?.address();
        let first = self
            .symbols
            .get(..found)?
            .iter()
            .rev()
            .take(MAX_ALIASES)
            .take_while(|symbol| symbol.address() == address)
            .count();
        Some(found.saturating_sub(first))
    }

    /// The symbol at an index of [`find`](Self::find), with the best of its names for `address`.
    #[must_use]
    pub fn read(&self, index: usize, address: u64) -> Option<Hit> {
        let first = *self.symbols.get(index)?;
        let best = self
            .symbols
            .get(index..)?
            .iter()
            .take(MAX_ALIASES)
            .take_while(|symbol| symbol.address() == first.address())
            .filter(|symbol| symbol.holds(address))
            .filter_map(|symbol| {
                let name = self.name(*symbol)?;
                let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
                let coarse = symbol.rank() & !RANK_WEAK;
                // Mangled names begin with an underscore without meaning.
                let mangled = name.starts_with(b"_Z") || name.starts_with(b"_R");
                let underscores = if mangled { 0 } else { underscores };
                let order = (coarse, underscores, symbol.rank(), name.len());
                Some((order, symbol.size, name))
            })
            .min_by(|left, right| (&left.0, &left.2).cmp(&(&right.0, &right.2)))?;
        Some(Hit { address: first.address(), size: best.1 & !GUESSED, raw_name: best.2 })
    }

    /// The symbol that names `address`.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<Hit> {
        self.read(self.find(address, |_| None)?, address)
    }

    fn name(&self, symbol: Symbol) -> Option<Vec<u8>> {
        let name = match self.names.get(symbol.source())? {
            Names::File { file, offset, size } => {
                read_name(*file, *offset, *size, u64::from(symbol.name))?
            }
            Names::Memory(bytes) => {
                let rest = bytes.get(usize::try_from(symbol.name).ok()?..)?;
                until_nul(rest.get(..MAX_RAW_NAME).unwrap_or(rest)).to_vec()
            }
        };
        // Section symbols have no name.
        let is_mark = name.is_empty() || symbol.is_label() && marks_content(&name);
        (!is_mark).then_some(name)
    }
}

/// `$x`, `$d.12` and the like mark code and data on arm. Swift's functions begin with a dollar too.
fn marks_content(name: &[u8]) -> bool {
    matches!(name, [b'$', b'a' | b'd' | b't' | b'x'] | [b'$', b'a' | b'd' | b't' | b'x', b'.', ..])
}

/// Reads a name of a string table that lies at `offset` of a file.
pub(crate) fn read_name(file: &dyn ReadAt, offset: u64, size: u64, name: u64) -> Option<Vec<u8>> {
    let room = size.checked_sub(name)?;
    let at = offset.checked_add(name)?;
    // Nearly all names fit the first read.
    let mut short = [0; 192];
    for limit in [short.len(), MAX_RAW_NAME] {
        let limit = limit.min(usize::try_from(room).unwrap_or(usize::MAX));
        let mut long;
        let buffer = if limit <= short.len() {
            short.get_mut(..limit)?
        } else {
            long = vec![0; limit];
            long.as_mut_slice()
        };
        let count = read_some(file, "symbol names", at, buffer).ok()?;
        let bytes = buffer.get(..count)?;
        let name = until_nul(bytes);
        if name.len() < bytes.len() || count < limit || limit >= MAX_RAW_NAME {
            return Some(name.to_vec());
        }
        if u64::try_from(limit).is_ok_and(|limit| limit >= room) {
            return Some(name.to_vec());
        }
    }
    None
}

fn range_of(code: &[(u64, u64)], address: u64) -> Option<(u64, u64)> {
    let index = code.partition_point(|&(start, _)| start <= address);
    code.get(index.checked_sub(1)?).copied().filter(|&(_, end)| address < end)
}

fn read_symbol(entry: &[u8], source: u64, code: &[(u64, u64)]) -> Option<Symbol> {
    let name = u32_at(entry, 0)?;
    let info = *entry.get(4)?;
    let section = u16_at(entry, 6)?;
    let address = u64_at(entry, 8)?;
    let size = u64_at(entry, 16)?;
    let label = match info & 15 {
        TYPE_FUNCTION | TYPE_INDIRECT => 0,
        TYPE_NONE => RANK_LABEL,
        _ => return None,
    };
    // Section 0 is "not here"; the address must fit the key and lie in code.
    if name == 0 || section == 0 || address >> (64 - KEY_SHIFT) != 0 {
        return None;
    }
    range_of(code, address)?;
    let bind = match info >> 4 {
        BIND_LOCAL => RANK_LOCAL,
        BIND_WEAK => RANK_WEAK,
        _ => 0,
    };
    Some(Symbol {
        key: address << KEY_SHIFT | source << SOURCE_SHIFT | label | bind,
        size: u32::try_from(size).unwrap_or(u32::MAX),
        name,
    })
}

/// The two tables an ELF file may have.
pub const KINDS: [u32; 2] = [SECTION_SYMTAB, SECTION_DYNSYM];
