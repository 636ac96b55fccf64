//! The files that a process runs code from: how each is opened, unwound and symbolized.
//!
//! Everything goes through the file service: files are opened by the opener and parsed in the
//! sandbox, as in a recording, so that this report shows what a recording would find.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_sandbox::{
    FileError, FileFacts, FileService, Locator, OpenFile, ProcessRef, Reply, Request,
};
use strata_symbols::debug_files;
use strata_unwind::{Limits, Statistics};

use crate::doctor::line::State;
use crate::doctor::parse::CodeMapping;
use crate::doctor::text::printable;

/// How a file was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// What is mapped, whatever its path names by now.
    ByMapping,
    /// Its path in the process's root.
    ByPath,
}

impl Opened {
    pub fn text(self) -> &'static str {
        match self {
            Self::ByMapping => "by its mapping (map_files)",
            Self::ByPath => "by its path in the process's root",
        }
    }
}

/// What unwinds its code.
#[derive(Clone, Debug)]
pub struct Unwinding {
    pub rows: u64,
    pub rules: u64,
    pub bytes: u64,
    pub statistics: Statistics,
}

/// What names its code.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Why nothing is known.
    pub trouble: Option<String>,
    pub symtab: bool,
    pub dynsym: bool,
    pub dwarf: bool,
    pub mini_debug: bool,
    pub go: bool,
    pub debug_file: Option<String>,
    /// Places where a debug file was looked for in vain.
    pub searched: Vec<String>,
}

impl Symbols {
    pub fn state(&self) -> State {
        if self.dwarf || self.symtab || self.mini_debug || self.go || self.debug_file.is_some() {
            State::Ok
        } else if self.dynsym {
            State::Degraded
        } else {
            State::Missing
        }
    }
}

pub struct FileReport {
    pub path: String,
    pub deleted: bool,
    /// Bytes of code that are mapped.
    pub code_bytes: u64,
    pub opened: Result<Opened, String>,
    pub build_id: Option<String>,
    /// A program of 32 bits: its stacks are not unwound.
    pub is_32_bit: bool,
    /// A .NET assembly: its code is unwound and symbolized with the runtime's data, and it needs no
    /// ELF tables.
    pub is_assembly: bool,
    pub unwinding: Result<Unwinding, String>,
    pub symbols: Symbols,
}

impl FileReport {
    pub fn state(&self) -> State {
        if self.is_without_rules() { State::Missing } else { self.symbols_state() }
    }

    pub fn is_without_rules(&self) -> bool {
        self.unwinding.is_err() && !self.is_assembly
    }

    pub fn symbols_state(&self) -> State {
        if self.is_assembly { State::Ok } else { self.symbols.state() }
    }
}

/// A file by what mappings say.
struct Named<'a> {
    path: &'a [u8],
    deleted: bool,
    first: &'a CodeMapping,
    code_bytes: u64,
}

const DELETED: &[u8] = b" (deleted)";

/// Whether a mapping is of a file that may hold a program (and not of memory, of any name).
pub fn is_file(mapping: &CodeMapping) -> bool {
    mapping.path.starts_with(b"/")
        && mapping.inode != 0
        && !["/memfd:", "/dev/zero", "/SYSV", "//anon", "/dev/shm/", "/anon_hugepage"]
            .iter()
            .any(|prefix| mapping.path.starts_with(prefix.as_bytes()))
}

fn named(mappings: &[CodeMapping]) -> Vec<Named<'_>> {
    let mut found: Vec<Named<'_>> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| is_file(mapping)) {
        let bytes = mapping.end.saturating_sub(mapping.start);
        let same = |known: &&mut Named<'_>| {
            (known.first.device, known.first.inode, &known.first.path)
                == (mapping.device, mapping.inode, &mapping.path)
        };
        if let Some(known) = found.iter_mut().find(same) {
            known.code_bytes = known.code_bytes.saturating_add(bytes);
            continue;
        }
        let stripped = mapping.path.strip_suffix(DELETED);
        found.push(Named {
            path: stripped.unwrap_or(&mapping.path),
            deleted: stripped.is_some(),
            first: mapping,
            code_bytes: bytes,
        });
    }
    found
}

/// Every file once, in the order of its first mapping.
pub fn examine(
    service: &mut FileService,
    process: ProcessRef,
    mappings: &[CodeMapping],
) -> Vec<FileReport> {
    let files = named(mappings);
    let opened = open_all(service, process, &files);
    let asked: Vec<&Arc<OpenFile>> = opened.iter().flatten().map(|(file, _)| file).collect();
    let facts = asked.iter().map(|&file| Request::Facts { file: file.clone() }).collect();
    let tables = asked
        .iter()
        .map(|&file| Request::UnwindTable {
            file: file.clone(),
            part: None,
            limits: Limits::default(),
        })
        .collect();
    let mut facts = service.call_all(facts).into_iter();
    let mut tables = service.call_all(tables).into_iter();
    files
        .iter()
        .zip(opened)
        .map(|(named, opened)| {
            let mut report = FileReport {
                path: printable(named.path),
                deleted: named.deleted,
                code_bytes: named.code_bytes,
                opened: opened.as_ref().map(|(_, how)| *how).map_err(ToString::to_string),
                build_id: None,
                is_32_bit: false,
                is_assembly: false,
                unwinding: Err("not opened".to_owned()),
                symbols: Symbols { trouble: Some("not opened".to_owned()), ..Symbols::default() },
            };
            if let Ok((file, _)) = opened {
                report.unwinding = unwinding(tables.next());
                report.symbols = match facts.next() {
                    Some(Ok(Reply::Facts(facts))) => {
                        report.build_id = facts.build_id.as_deref().map(hexadecimal);
                        symbols(service, process, named.path, &facts)
                    }
                    Some(Err(error)) => {
                        let head = head(service, &file);
                        report.is_32_bit = head.starts_with(b"\x7fELF\x01");
                        report.is_assembly = is_assembly(&head);
                        Symbols { trouble: Some(error.to_string()), ..Symbols::default() }
                    }
                    _ => Symbols::default(),
                };
            }
            report
        })
        .collect()
}

type OpenedFile = (Arc<OpenFile>, Opened);

/// By mapping; what cannot be opened so, by path, if that is still the same file.
fn open_all(
    service: &mut FileService,
    process: ProcessRef,
    files: &[Named<'_>],
) -> Vec<Result<OpenedFile, FileError>> {
    let locator = |named: &Named<'_>| Locator::Mapped {
        process,
        start: named.first.start,
        end: named.first.end,
    };
    let requests = files.iter().map(|named| Request::Open(locator(named))).collect();
    let by_mapping = service.call_all(requests);
    let mut outcomes = Vec::new();
    for (named, outcome) in files.iter().zip(by_mapping) {
        outcomes.push(match outcome {
            Ok(Reply::Opened(file)) => Ok((file, Opened::ByMapping)),
            Ok(_) => Err(FileError::InvalidRequest("an answer to another question")),
            Err(error) => open_by_path(service, process, named).ok_or(error),
        });
    }
    outcomes
}

fn open_by_path(
    service: &mut FileService,
    process: ProcessRef,
    named: &Named<'_>,
) -> Option<OpenedFile> {
    let path = PathBuf::from(OsStr::from_bytes(named.path));
    match service.call(Request::Open(Locator::InRoot { process, path })) {
        Ok(Reply::Opened(file)) if file.identity().inode == named.first.inode => {
            Some((file, Opened::ByPath))
        }
        _ => None,
    }
}

fn unwinding(answer: Option<Result<Reply, FileError>>) -> Result<Unwinding, String> {
    match answer {
        Some(Ok(Reply::UnwindTable(table))) if table.row_count() > 0 => Ok(Unwinding {
            rows: table.row_count(),
            rules: table.rules.len() as u64,
            bytes: table.kernel_bytes(),
            statistics: table.statistics,
        }),
        Some(Ok(Reply::UnwindTable(_))) => {
            Err("it has no .eh_frame, no Go line table, no known code".to_owned())
        }
        Some(Err(error)) => Err(error.to_string()),
        _ => Err("no answer".to_owned()),
    }
}

fn symbols(
    service: &mut FileService,
    process: ProcessRef,
    path: &[u8],
    facts: &FileFacts,
) -> Symbols {
    let features = facts.features;
    let mut symbols = Symbols {
        trouble: None,
        symtab: features.symtab,
        dynsym: features.dynsym,
        dwarf: features.dwarf,
        mini_debug: features.mini_debug,
        go: features.go,
        debug_file: None,
        searched: Vec::new(),
    };
    if features.dwarf {
        return symbols;
    }
    let path = Path::new(OsStr::from_bytes(path));
    let build_id = facts.build_id.as_deref();
    let places = debug_files::candidates(path, build_id, facts.debug_link.as_ref());
    let in_root = |path: &PathBuf| Locator::InRoot { process, path: path.clone() };
    let on_host = |path: &PathBuf| Locator::Host { path: path.clone() };
    let locators: Vec<Locator> =
        places.iter().map(in_root).chain(places.iter().map(on_host)).collect();
    let opened = service.call_all(locators.into_iter().map(Request::Open).collect());
    for (place, outcome) in places.iter().cycle().zip(opened) {
        let Ok(Reply::Opened(candidate)) = outcome else { continue };
        let fits = service.call(Request::Fits {
            candidate,
            build_id: facts.build_id.clone(),
            link_crc: facts.debug_link.as_ref().map(|link| link.crc),
        });
        if matches!(fits, Ok(Reply::Fits(true))) {
            symbols.debug_file = Some(printable(place.as_os_str().as_bytes()));
            return symbols;
        }
    }
    symbols.searched = places.iter().map(|place| printable(place.as_os_str().as_bytes())).collect();
    symbols
}

/// Enough for the headers of an ELF file and of an assembly.
const HEAD: u64 = 1024;

fn head(service: &mut FileService, file: &Arc<OpenFile>) -> Vec<u8> {
    let head = service.call(Request::Read { file: file.clone(), offset: 0, length: HEAD });
    if let Ok(Reply::Bytes(bytes)) = head { bytes } else { Vec::new() }
}

/// Whether these first bytes are a PE file's with a CLI header (ECMA-335 II.25.2).
fn is_assembly(head: &[u8]) -> bool {
    /// The optional header of 64 bits, and where its data directories begin there and in 32 bits.
    const PE32_PLUS: u16 = 0x20b;
    const DIRECTORIES: [usize; 2] = [96, 112];
    const CLI_HEADER: usize = 14;
    let number = |at: usize| {
        let bytes = head.get(at..at.checked_add(4)?)?;
        bytes.try_into().ok().map(u32::from_le_bytes)
    };
    let cli_header = || {
        let start = number(0x3c)? as usize;
        let optional = start.checked_add(24)?;
        let is_64_bit = number(optional)? as u16 == PE32_PLUS;
        let directories = optional.checked_add(DIRECTORIES[usize::from(is_64_bit)])?;
        let is_pe = number(start)? == u32::from_le_bytes(*b"PE\0\0");
        Some(is_pe && number(directories.checked_add(8 * CLI_HEADER)?)? != 0)
    };
    head.starts_with(b"MZ") && cli_header() == Some(true)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::parse::code_mappings;

    #[test]
    fn memory_with_a_name_is_not_a_file() {
        let maps = b"1000-2000 r-xp 00000000 00:01 7 /memfd:doublemapper (deleted)\n\
                     2000-3000 r-xp 00000000 fe:01 8 /usr/bin/x (deleted)\n\
                     3000-5000 r-xp 00001000 fe:01 8 /usr/bin/x (deleted)\n\
                     5000-6000 r-xp 00000000 00:00 0 [vdso]\n";
        let mappings = code_mappings(maps);
        let files = named(&mappings);
        assert_eq!(files.len(), 1);
        assert_eq!(
            (files[0].path, files[0].deleted, files[0].code_bytes),
            (&b"/usr/bin/x"[..], true, 0x3000)
        );
    }

    #[test]
    fn an_assembly_is_a_pe_file_with_a_cli_header() {
        let mut head = vec![0; 512];
        head[..2].copy_from_slice(b"MZ");
        head[0x3c] = 0x80;
        head[0x80..0x84].copy_from_slice(b"PE\0\0");
        head[0x98..0x9a].copy_from_slice(&0x20bu16.to_le_bytes());
        assert!(!is_assembly(&head), "a program for Windows");
        head[0x98 + 112 + 8 * 14] = 1;
        assert!(is_assembly(&head));
        for length in 0..0x98 + 112 + 8 * 14 {
            assert!(!is_assembly(&head[..length]));
        }
        head[0x3c..0x40].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(!is_assembly(&head));
    }

    #[test]
    fn exported_symbols_alone_are_a_loss() {
        let only = |symbols: Symbols| symbols.state();
        assert_eq!(only(Symbols { dynsym: true, ..Symbols::default() }), State::Degraded);
        assert_eq!(only(Symbols { symtab: true, ..Symbols::default() }), State::Ok);
        assert_eq!(only(Symbols::default()), State::Missing);
    }
}
