//! Symbols and lines of code in mapped files: the file itself, its debug file where one is found in
//! the target's root or the host's, all parsed by the worker.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_profile::FrameKind;
use strata_sandbox::{
    FileError, FileFacts, IdentityTrust, Locator, OpenFile, ProcessRef, Reply, Request, Symbols,
};
use strata_symbols::elf::AlternateLink;
use strata_symbols::{Options, Resolved, debug_files};

use crate::file_client::Ask;

use crate::{ModuleInfo, NamedFrame, Shortfalls};

/// The superuser's number.
const ROOT: u32 = 0;

/// A file whose offsets want names.
pub struct Wanted<'a> {
    pub file: Arc<OpenFile>,
    /// As its processes see it.
    pub path: &'a Path,
    /// A process in whose root debug files are looked for first.
    pub process: Option<ProcessRef>,
    /// File offsets, sorted.
    pub offsets: &'a [u64],
    /// Lines and inlined functions too.
    pub lines: bool,
}

/// The facts from a file's headers, if they can be read.
pub fn facts(
    service: &mut dyn Ask,
    wanted: &Wanted<'_>,
    shortfalls: &mut Shortfalls,
) -> Option<FileFacts> {
    match service.ask(Request::Facts { file: wanted.file.clone() }) {
        Ok(Reply::Facts(facts)) => Some(facts),
        Ok(_) => None,
        Err(error) => {
            shortfalls.problem(format!("{}: {error}", wanted.path.display()));
            None
        }
    }
}

/// The mapping that a file's addresses are shown in.
pub fn module_of(path: &Path, facts: &FileFacts) -> ModuleInfo {
    let mut module = ModuleInfo::of(path);
    describe(&mut module, facts);
    module
}

/// Whether an offset of the file lies outside of everything that its headers describe.
pub fn code_is_elsewhere(facts: &FileFacts, offset: u64) -> bool {
    let inside = |start: u64, size: u64| (start..start.saturating_add(size)).contains(&offset);
    !facts.segments.is_empty()
        && !facts.segments.iter().any(|segment| inside(segment.offset, segment.file_size))
}

/// What is known of a file's offsets, in their order.
pub struct Named {
    /// The address in the file's own numbering and the frames, innermost first; an offset without a
    /// symbol has no frames.
    pub frames: Vec<(u64, Vec<NamedFrame>)>,
    /// Lines and inlined functions are left out, which the file has: they were not wanted, or there
    /// was not enough memory for them.
    pub without_lines: bool,
}

/// `None` when symbols could not be read.
pub fn resolve(
    service: &mut dyn Ask,
    wanted: &Wanted<'_>,
    facts: &FileFacts,
    shortfalls: &mut Shortfalls,
) -> Option<Named> {
    let path = wanted.path.display();
    let addresses: Vec<u64> =
        wanted.offsets.iter().map(|offset| facts.address_of(*offset).unwrap_or(*offset)).collect();
    let mut sources = Sources::default();
    let mut link = facts.alternate_link.clone();
    let mut linked_from = wanted.path.to_owned();
    if !facts.features.dwarf
        && let Some((debug, path)) = find_debug_file(service, wanted, facts, shortfalls)
    {
        link = alternate_link_of(service, &debug);
        linked_from = path;
        sources.debug = Some(debug);
    }
    if wanted.lines
        && let Some(link) = link
    {
        let paths = debug_files::alternates(&linked_from, &link);
        let build_id = Some(link.build_id.as_slice());
        let found = first_that_fits(service, wanted, &paths, build_id, None, shortfalls);
        sources.alternate = found.map(|(file, _)| file);
    }
    let options = service.options();
    // Lines of Go are not in DWARF, and cost nothing.
    let dwarf_limit = if wanted.lines { options.dwarf_limit } else { 0 };
    let options = Options { dwarf_limit, ..options };
    let mut answer = symbolize(service, &wanted.file, &sources, &addresses, options);
    if (sources.debug.is_some() || sources.alternate.is_some())
        && let Err(error) = &answer
        && !service.is_late()
    {
        // The file's own symbols are worth more than none.
        shortfalls.problem(format!("{path}: its debug file: {error}"));
        let none = Sources::default();
        answer = symbolize(service, &wanted.file, &none, &addresses, options);
    }
    let symbols = match answer {
        Ok(symbols) => symbols,
        Err(error) => {
            shortfalls.problem(format!("{path}: {error}"));
            return None;
        }
    };
    for problem in symbols.problems {
        shortfalls.problem(format!("{path}: {problem}"));
    }
    if symbols.without_lines && wanted.lines {
        shortfalls.without_lines += 1;
        shortfalls
            .problem(format!("{path}: its debug information takes too much memory: no lines"));
    }
    let mut resolved = symbols.resolved.into_iter();
    let module = ModuleInfo::of(wanted.path);
    let frames = |address| (address, frames_of(resolved.next().unwrap_or_default(), &module));
    let without_lines = symbols.without_lines;
    Some(Named { frames: addresses.into_iter().map(frames).collect(), without_lines })
}

/// The files beside the mapped one that its debug information is in.
#[derive(Default)]
struct Sources {
    debug: Option<Arc<OpenFile>>,
    /// What dwz has put into a file of its own.
    alternate: Option<Arc<OpenFile>>,
}

fn alternate_link_of(service: &mut dyn Ask, debug: &Arc<OpenFile>) -> Option<AlternateLink> {
    match service.ask(Request::Facts { file: debug.clone() }) {
        Ok(Reply::Facts(facts)) => facts.alternate_link,
        _ => None,
    }
}

/// Names and lines of addresses; in parts where the names of all are too long for one answer.
fn symbolize(
    service: &mut dyn Ask,
    file: &Arc<OpenFile>,
    sources: &Sources,
    addresses: &[u64],
    options: Options,
) -> Result<Symbols, FileError> {
    let request = Request::Symbolize {
        file: file.clone(),
        debug: sources.debug.clone(),
        alternate: sources.alternate.clone(),
        addresses: addresses.to_vec(),
        options,
    };
    match service.ask(request) {
        Ok(Reply::Symbols(symbols)) => Ok(symbols),
        Ok(_) => Err(FileError::InvalidRequest("an answer to another question")),
        Err(FileError::ReplyTooLarge(_)) if addresses.len() > 1 => {
            let (first, second) = addresses.split_at(addresses.len() / 2);
            let mut all = symbolize(service, file, sources, first, options)?;
            let rest = symbolize(service, file, sources, second, options)?;
            all.resolved.extend(rest.resolved);
            for problem in rest.problems {
                if !all.problems.contains(&problem) {
                    all.problems.push(problem);
                }
            }
            all.without_lines |= rest.without_lines;
            Ok(all)
        }
        // Of one address: the others have theirs.
        Err(FileError::ReplyTooLarge(_)) => Ok(Symbols {
            resolved: vec![Resolved::default(); addresses.len()],
            problems: vec!["names that are too long are left out".to_owned()],
            ..Symbols::default()
        }),
        Err(error) => Err(error),
    }
}

/// A function without a symbol has one made of where it begins, so that its addresses are one function.
fn frames_of(resolved: Resolved, module: &ModuleInfo) -> Vec<NamedFrame> {
    if let Some(start) = resolved.unnamed {
        let name = strata_profile::unnamed(&module.path, start);
        return vec![NamedFrame::plain(FrameKind::Native, &name)];
    }
    let frames = resolved.frames.into_iter();
    frames
        .map(|frame| NamedFrame {
            kind: FrameKind::Native,
            system_name: if frame.system_name == frame.name {
                "".into()
            } else {
                frame.system_name
            },
            name: frame.name,
            file: frame.file.unwrap_or_else(|| "".into()),
            line: frame.line.unwrap_or_default(),
        })
        .collect()
}

fn describe(module: &mut ModuleInfo, facts: &FileFacts) {
    if let Some(build_id) = &facts.build_id {
        module.build_id = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    let code = facts.segments.iter().filter(|segment| segment.flags & 1 != 0);
    if let Some(first) = code.clone().min_by_key(|segment| segment.address) {
        module.start = first.address & !0xfff;
        module.offset = first.offset & !0xfff;
    }
    if let Some(limit) =
        code.map(|segment| segment.address.saturating_add(segment.memory_size)).max()
    {
        module.limit = limit.checked_next_multiple_of(4096).unwrap_or(limit);
    }
}

/// Whether a file may say what is in another one: all processes that map that one get the names, and
/// what identifies it can be copied by anyone. A server (FUSE) says of its own files only whose they
/// are.
pub(crate) fn may_describe(file: &OpenFile, described: &OpenFile) -> bool {
    let is_trusted = file.trust() != IdentityTrust::WithinProcess
        || described.trust() == IdentityTrust::WithinProcess;
    is_trusted && [ROOT, described.owner()].contains(&file.owner())
}

/// The debug file that belongs to the file, and its path.
fn find_debug_file(
    service: &mut dyn Ask,
    wanted: &Wanted<'_>,
    facts: &FileFacts,
    shortfalls: &mut Shortfalls,
) -> Option<(Arc<OpenFile>, PathBuf)> {
    let build_id = facts.build_id.as_deref();
    let link = facts.debug_link.as_ref();
    let candidates = debug_files::candidates(wanted.path, build_id, link);
    let crc = link.map(|link| link.crc);
    first_that_fits(service, wanted, &candidates, build_id, crc, shortfalls)
}

/// The first of these places where a file with this build id or checksum lies, in the process's root or
/// the host's.
fn first_that_fits(
    service: &mut dyn Ask,
    wanted: &Wanted<'_>,
    places: &[PathBuf],
    build_id: Option<&[u8]>,
    link_crc: Option<u32>,
    shortfalls: &mut Shortfalls,
) -> Option<(Arc<OpenFile>, PathBuf)> {
    let in_root = |path: &PathBuf| {
        let process = wanted.process?;
        Some(Locator::InRoot { process, path: path.clone() })
    };
    let on_host = |path: &PathBuf| Locator::Host { path: path.clone() };
    let inside = places.iter().filter_map(|path| Some((in_root(path)?, path)));
    let outside = places.iter().map(|path| (on_host(path), path));
    let (locators, paths): (Vec<_>, Vec<_>) = inside.chain(outside).unzip();
    let opened = service.ask_all(locators.into_iter().map(Request::Open).collect());
    for (reply, path) in opened.into_iter().zip(paths) {
        let Ok(Reply::Opened(candidate)) = reply else { continue };
        if !may_describe(&candidate, &wanted.file) {
            let (path, owner) = (path.display(), candidate.owner());
            shortfalls.problem(format!(
                "{path} is not used: its owner (user {owner}) is neither root nor that of {}",
                wanted.path.display()
            ));
            continue;
        }
        let fits = service.ask(Request::Fits {
            candidate: candidate.clone(),
            build_id: build_id.map(<[u8]>::to_vec),
            link_crc,
        });
        if matches!(fits, Ok(Reply::Fits(true))) {
            return Some((candidate, path.clone()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_without_a_symbol_is_named_by_its_module() {
        let named = |path: &str| {
            let resolved = Resolved { unnamed: Some(0x1230), ..Resolved::default() };
            let frames = frames_of(resolved, &ModuleInfo::of(Path::new(path)));
            frames.iter().map(|frame| frame.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(named("/usr/bin/git"), ["git!0x1230"]);
        // Strata's own library has another name in each process.
        let own = format!("/tmp/.strata-clr-{}.so", "0123456789abcdef".repeat(2));
        assert_eq!(named(&own), ["[strata-clr]!0x1230"]);
        assert!(frames_of(Resolved::default(), &ModuleInfo::default()).is_empty());
    }
}
