//! Symbols and lines of code in mapped files: the file itself, its debug file where one is found in
//! the target's root or the host's, all parsed by the worker.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_profile::FrameKind;
use strata_sandbox::{
    FileError, FileFacts, Locator, OpenFile, ProcessRef, Reply, Request, Symbols,
};
use strata_symbols::{Options, Resolved, debug_files};

use crate::file_client::Ask;

/// The superuser's number.
const ROOT: u32 = 0;

use crate::{ModuleInfo, NamedFrame, Shortfalls};

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
    let debug = if facts.features.dwarf { None } else { find_debug_file(service, wanted, facts) };
    let options = service.options();
    // Lines of Go are not in DWARF, and cost nothing.
    let dwarf_limit = if wanted.lines { options.dwarf_limit } else { 0 };
    let options = Options { dwarf_limit, ..options };
    let has_debug = debug.is_some();
    let mut answer = symbolize(service, &wanted.file, debug, &addresses, options);
    if has_debug
        && let Err(error) = &answer
        && !service.is_late()
    {
        // The file's own symbols are worth more than none.
        shortfalls.problem(format!("{path}: its debug file: {error}"));
        answer = symbolize(service, &wanted.file, None, &addresses, options);
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

/// Names and lines of addresses; in parts where the names of all are too long for one answer.
fn symbolize(
    service: &mut dyn Ask,
    file: &Arc<OpenFile>,
    debug: Option<Arc<OpenFile>>,
    addresses: &[u64],
    options: Options,
) -> Result<Symbols, FileError> {
    let request = Request::Symbolize {
        file: file.clone(),
        debug: debug.clone(),
        addresses: addresses.to_vec(),
        options,
    };
    match service.ask(request) {
        Ok(Reply::Symbols(symbols)) => Ok(symbols),
        Ok(_) => Err(FileError::InvalidRequest("an answer to another question")),
        Err(FileError::ReplyTooLarge(_)) if addresses.len() > 1 => {
            let (first, second) = addresses.split_at(addresses.len() / 2);
            let mut all = symbolize(service, file, debug.clone(), first, options)?;
            let rest = symbolize(service, file, debug, second, options)?;
            all.resolved.extend(rest.resolved);
            for problem in rest.problems {
                if !all.problems.contains(&problem) {
                    all.problems.push(problem);
                }
            }
            all.without_lines |= rest.without_lines;
            Ok(all)
        }
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

/// Whether a file may say what is in another one of this owner: all processes that map that one get
/// the names, and what identifies it can be copied by anyone.
pub(crate) fn is_of_owner(file: &OpenFile, owner: u32) -> bool {
    [ROOT, owner].contains(&file.owner())
}

/// The first candidate that exists and belongs to the file.
fn find_debug_file(
    service: &mut dyn Ask,
    wanted: &Wanted<'_>,
    facts: &FileFacts,
) -> Option<Arc<OpenFile>> {
    let build_id = facts.build_id.as_deref();
    let candidates = debug_files::candidates(wanted.path, build_id, facts.debug_link.as_ref());
    let in_root = |path: &PathBuf| {
        let process = wanted.process?;
        Some(Locator::InRoot { process, path: path.clone() })
    };
    let on_host = |path: &PathBuf| Locator::Host { path: path.clone() };
    let locators: Vec<Locator> =
        candidates.iter().filter_map(in_root).chain(candidates.iter().map(on_host)).collect();
    let requests = locators.into_iter().map(Request::Open).collect();
    let opened = service.ask_all(requests);
    let link_crc = facts.debug_link.as_ref().map(|link| link.crc);
    for reply in opened {
        let Ok(Reply::Opened(candidate)) = reply else { continue };
        if !is_of_owner(&candidate, wanted.file.owner()) {
            continue;
        }
        let fits = service.ask(Request::Fits {
            candidate: candidate.clone(),
            build_id: facts.build_id.clone(),
            link_crc,
        });
        if matches!(fits, Ok(Reply::Fits(true))) {
            return Some(candidate);
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
