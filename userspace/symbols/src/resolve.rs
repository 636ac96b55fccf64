//! [`Resolver`]: the addresses of one ELF file to frames.
//!
//! Sources, in order: the line table of Go for Go functions; DWARF for lines and inlined functions;
//! the symbol tables (`.symtab` of the binary or of its debug file, `.gnu_debugdata`, `.dynsym`)
//! for the name of the function itself; PLT stubs. Each is loaded when the first address needs it.
//! An unknown address has no frames; where its function begins is known from unwind tables.
//!
//! Addresses are those the file was linked at ([`ElfFile::address_of`] makes them from file offsets).
//! For a return address pass the address minus one.
//!
//! Invariant: names are made once per function and shared; memory is bounded by the limits in
//! [`Options`], the symbol table's and the number of addresses asked for.

use crate::arch::end_of_function;
use crate::demangle::clean_name;
use crate::dwarf::{self, Dwarf};
use crate::elf::{SECTION_DYNSYM, SECTION_SYMTAB};
use crate::go::GoProgram;
use crate::plt::{Plt, StubName};
use crate::symbol_table::SymbolTable;
use crate::unwind_functions::UnwindFunctions;
use crate::{ElfFile, Error, MAX_NAME_BYTES, ReadAt, compressed, elf};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use strata_bytes::{bounded_str, bounded_text};

/// Bytes in which the end of a function without a size is looked for.
const LOOK: u64 = 1 << 10;

/// The sources to use, and their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Lines and inlined functions; without them names come from symbol tables alone.
    pub lines: bool,
    /// The most that the sections of DWARF may take together, unpacked.
    pub dwarf_limit: u64,
    /// The most that `.gnu_debugdata` may take, unpacked.
    pub mini_debug_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { lines: true, dwarf_limit: 192 << 20, mini_debug_limit: 64 << 20 }
    }
}

/// One frame, ready to be shown. Text is shared between the frames of one resolver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolFrame {
    /// Demangled and cleaned.
    pub name: Arc<str>,
    /// As the linker or compiler wrote it.
    pub system_name: Arc<str>,
    pub file: Option<Arc<str>>,
    pub line: Option<u32>,
}

/// The frames at one address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resolved {
    /// Innermost inlined function first, the function itself last; empty when unknown.
    pub frames: Vec<SymbolFrame>,
    /// Where the function begins that has no name.
    pub unnamed: Option<u64>,
}

/// The sources found and used, for counters and for `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    pub dwarf: dwarf::State,
    pub go: bool,
    /// Functions in the symbol tables in use.
    pub symbols: usize,
    /// Functions left out because there are too many.
    pub symbols_dropped: u64,
    /// A table that could not be read, and why.
    pub problems: Vec<String>,
    pub resolved: u64,
    pub unknown: u64,
}

/// Resolves the addresses of one file.
pub struct Resolver<'a> {
    main: ElfFile<'a>,
    debug: Option<ElfFile<'a>>,
    /// The file of dwz that the debug information links to.
    alternate: Option<ElfFile<'a>>,
    options: Options,
    go: Option<Option<GoProgram>>,
    dwarf: Option<Dwarf>,
    symbols: Option<SymbolTable<'a>>,
    plt: Option<Plt<'a>>,
    functions: OnceCell<UnwindFunctions<'a>>,
    /// Where functions without a size end, by where they begin.
    ends: RefCell<HashMap<u64, Option<u64>>>,
    by_symbol: HashMap<usize, Option<Names>>,
    by_raw_name: HashMap<String, Names>,
    files: HashMap<String, Arc<str>>,
    report: Report,
}

/// The name to show and the raw name.
type Names = (Arc<str>, Arc<str>);

/// Kept names are thrown away beyond this, so that a resolver that lives long stays small.
const MAX_KEPT: usize = 65_536;

impl<'a> Resolver<'a> {
    /// `main` is the binary as it is mapped, `debug` its debug file, already found to belong to it.
    ///
    /// # Errors
    /// When `main` is not an ELF file. A debug file that is not ELF is left out and listed in the
    /// report.
    pub fn new(
        main: &'a dyn ReadAt,
        debug: Option<&'a dyn ReadAt>,
        options: Options,
    ) -> Result<Self, Error> {
        let main = ElfFile::open(main)?;
        let mut report = Report::default();
        let debug = debug.and_then(|file| match ElfFile::open(file) {
            Ok(elf) => Some(elf),
            Err(error) => {
                report.problems.push(format!("debug file: {error}"));
                None
            }
        });
        Ok(Self {
            main,
            debug,
            alternate: None,
            options,
            go: None,
            dwarf: None,
            symbols: None,
            plt: None,
            functions: OnceCell::new(),
            ends: RefCell::default(),
            by_symbol: HashMap::new(),
            by_raw_name: HashMap::new(),
            files: HashMap::new(),
            report,
        })
    }

    /// Takes the file of dwz that the debug information links to, already found to be that one.
    pub fn set_alternate(&mut self, file: &'a dyn ReadAt) {
        match ElfFile::open(file) {
            Ok(elf) => self.alternate = Some(elf),
            Err(error) => self.report.problems.push(format!("file of dwz: {error}")),
        }
    }

    #[must_use]
    pub fn elf(&self) -> &ElfFile<'a> {
        &self.main
    }

    /// The sources used so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut report = self.report.clone();
        if let Some(dwarf) = &self.dwarf {
            report.dwarf = dwarf.state.clone();
            if dwarf.lacks_alternate {
                let why = "its debug information links to a file of dwz that is not there: inlined \
                           functions are missing";
                report.problems.push(why.to_owned());
            }
        }
        report
    }

    /// The frames at each of `addresses`. Sorted addresses are fastest.
    pub fn resolve(&mut self, addresses: &[u64]) -> Vec<Resolved> {
        addresses
            .iter()
            .map(|&address| {
                let frames = self.frames(address);
                let count = if frames.is_empty() {
                    &mut self.report.unknown
                } else {
                    &mut self.report.resolved
                };
                *count = count.saturating_add(1);
                let unnamed = if frames.is_empty() { self.unnamed(address) } else { None };
                Resolved { frames, unnamed }
            })
            .collect()
    }

    fn frames(&mut self, address: u64) -> Vec<SymbolFrame> {
        if self.by_raw_name.len() > MAX_KEPT || self.by_symbol.len() > MAX_KEPT {
            self.by_raw_name.clear();
            self.by_symbol.clear();
            self.files.clear();
        }
        let frames = self.go_frames(address);
        if !frames.is_empty() {
            return frames;
        }
        if let Some(frame) = self.plt_frame(address) {
            return vec![frame];
        }
        let symbol = self.symbol_names(address);
        let mut inner = self.dwarf_frames(address, symbol.is_some());
        // DWARF's last frame is the function itself, whose name the symbol table knows best: with
        // the marks of clones, and for assembly at all.
        let outer = inner.pop();
        let mut frames: Vec<SymbolFrame> =
            inner.into_iter().filter_map(|frame| self.named(frame, None)).collect();
        frames.extend(self.named(outer.unwrap_or_default(), symbol));
        frames
    }

    fn named(&mut self, frame: dwarf::DwarfFrame, names: Option<Names>) -> Option<SymbolFrame> {
        let (name, system_name) = match (names, frame.raw_name) {
            (Some(names), _) => names,
            (None, Some(raw)) => self.cleaned(&raw),
            (None, None) => return None,
        };
        Some(SymbolFrame {
            name,
            system_name,
            file: frame.file.map(|file| self.file(&file)),
            line: frame.line,
        })
    }

    fn functions(&self) -> &UnwindFunctions<'a> {
        self.functions.get_or_init(|| UnwindFunctions::load(&self.main))
    }

    fn unnamed(&self, address: u64) -> Option<u64> {
        self.functions().start_of(address)
    }

    fn go_frames(&mut self, address: u64) -> Vec<SymbolFrame> {
        let main = &self.main;
        let report = &mut self.report;
        let go = self.go.get_or_insert_with(|| {
            let go = GoProgram::load(main);
            report.go = go.is_some();
            go
        });
        let Some(table) = go.as_ref().and_then(GoProgram::table) else {
            return Vec::new();
        };
        let lines = self.options.lines;
        let files = &mut self.files;
        let kept = &mut self.by_raw_name;
        table
            .frames(address)
            .into_iter()
            .filter_map(|frame| {
                let name = frame.name?;
                let (name, system_name) = keep(kept, &name);
                let source = frame.source.filter(|_| lines);
                Some(SymbolFrame {
                    name,
                    system_name,
                    line: source.as_ref().map(|source| source.line),
                    file: source.map(|source| intern(files, &source.file)),
                })
            })
            .collect()
    }

    fn dwarf_frames(&mut self, address: u64, function_is_named: bool) -> Vec<dwarf::DwarfFrame> {
        if !self.options.lines {
            return Vec::new();
        }
        let (main, debug, limit) = (&self.main, &self.debug, self.options.dwarf_limit);
        let alternate = self.alternate.as_ref();
        let dwarf = self.dwarf.get_or_insert_with(|| {
            let mut files = vec![main];
            files.extend(debug);
            Dwarf::load(&files, alternate, limit)
        });
        dwarf.frames(address, function_is_named)
    }

    fn plt_frame(&mut self, address: u64) -> Option<SymbolFrame> {
        let main = &self.main;
        let plt = self.plt.get_or_insert_with(|| Plt::new(main));
        if !plt.contains(address) {
            return None;
        }
        let system_name: Arc<str> = match plt.name(address)? {
            StubName::Raw(name) => Arc::from(stub_of(&bounded_text(&name))),
            StubName::Resolver(target) => {
                let (_, raw) = self.symbol_names(target)?;
                Arc::from(stub_of(&raw))
            }
            StubName::Header => Arc::from("[plt]"),
        };
        let name = match system_name.strip_suffix("@plt") {
            Some(raw) => Arc::from(stub_of(&clean_name(raw))),
            None => Arc::clone(&system_name),
        };
        Some(SymbolFrame { name, system_name, file: None, line: None })
    }

    /// Name and raw name of the symbol at `address`.
    fn symbol_names(&mut self, address: u64) -> Option<Names> {
        if self.symbols.is_none() {
            self.symbols = Some(self.load_symbols());
        }
        let symbols = self.symbols.as_ref()?;
        // Between two functions, a return address lies right behind: that of a function which nothing
        // has called (`__start_context`, a signal's restorer).
        let end_of = |start: u64| {
            *self.ends.borrow_mut().entry(start).or_insert_with(|| {
                let code = self.main.read_address(start, LOOK, "a function").ok()?;
                end_of_function(&code, start)
            })
        };
        let find = |address: u64| symbols.find(address, end_of).map(|index| (address, index));
        let (address, index) = find(address).or_else(|| {
            // Behind an unexported function's last byte the next function begins.
            let is_of_another =
                self.functions().start_of(address).is_some_and(|start| start < address);
            if is_of_another { None } else { find(address.wrapping_add(1)) }
        })?;
        if let Some(names) = self.by_symbol.get(&index) {
            return names.clone();
        }
        let hit = symbols.read(index, address);
        let names = hit.map(|hit| names_of(&String::from_utf8_lossy(&hit.raw_name)));
        self.by_symbol.insert(index, names.clone());
        names
    }

    fn load_symbols(&mut self) -> SymbolTable<'a> {
        let mut table = SymbolTable::default();
        let mut problems = Vec::new();
        let mut full = 0;
        for elf in [Some(&self.main), self.debug.as_ref()].into_iter().flatten() {
            if full == 0 {
                full = table
                    .add(elf, SECTION_SYMTAB)
                    .map_err(|error| problems.push(error.to_string()))
                    .unwrap_or(0);
            }
        }
        if full == 0 {
            if let Err(error) = self.add_mini_debug(&mut table) {
                problems.push(error.to_string());
            }
            if let Err(error) = table.add(&self.main, SECTION_DYNSYM) {
                problems.push(error.to_string());
            }
        }
        table.finish(&self.main.code_ranges(), |address| self.functions().next_after(address));
        self.report.symbols = table.len();
        self.report.symbols_dropped = table.dropped;
        self.report.problems.append(&mut problems);
        table
    }

    fn add_mini_debug(&self, table: &mut SymbolTable<'a>) -> Result<usize, Error> {
        let Some(section) = self.main.section_with_data(".gnu_debugdata") else {
            return Ok(0);
        };
        let limit = self.options.mini_debug_limit;
        let packed = self.main.read_section(section, "compressed symbols", limit)?;
        let unpacked = compressed::xz(&packed, "compressed symbols", limit)?;
        let inner: &[u8] = &unpacked;
        let inner = elf::ElfFile::open(&inner)?;
        table.add_in_memory(&inner)
    }

    fn cleaned(&mut self, raw: &str) -> Names {
        if let Some(names) = self.by_raw_name.get(raw) {
            return names.clone();
        }
        let names = names_of(raw);
        self.by_raw_name.insert(raw.to_owned(), names.clone());
        names
    }

    fn file(&mut self, file: &str) -> Arc<str> {
        intern(&mut self.files, file)
    }
}

/// The name of a function's stub.
fn stub_of(function: &str) -> String {
    const MARK: &str = "@plt";
    let most = function.floor_char_boundary(MAX_NAME_BYTES - MARK.len());
    format!("{}{MARK}", function.get(..most).unwrap_or_default())
}

/// The name to show and the raw name, the latter truncated to the allowed length.
fn names_of(raw: &str) -> Names {
    let name = clean_name(raw);
    let system_name: Arc<str> = Arc::from(bounded_str(raw));
    let name =
        if *name == *system_name { Arc::clone(&system_name) } else { Arc::from(name.as_ref()) };
    (name, system_name)
}

/// Names that need no cleaning, kept so that each is allocated once.
fn keep(kept: &mut HashMap<String, Names>, raw: &str) -> Names {
    if let Some(names) = kept.get(raw) {
        return names.clone();
    }
    let name: Arc<str> = Arc::from(bounded_str(raw));
    let names = (Arc::clone(&name), name);
    kept.insert(raw.to_owned(), names.clone());
    names
}

fn intern(files: &mut HashMap<String, Arc<str>>, file: &str) -> Arc<str> {
    if let Some(kept) = files.get(file) {
        return Arc::clone(kept);
    }
    let kept: Arc<str> = Arc::from(bounded_str(file));
    files.insert(file.to_owned(), Arc::clone(&kept));
    kept
}
