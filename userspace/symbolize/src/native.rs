//! Names and lines of code in mapped files: the file itself, its debug file where one is found in
//! the target's root or the host's, all parsed by the worker.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_profile::FrameKind;
use strata_sandbox::{FileFacts, Locator, OpenFile, ProcessRef, Reply, Request};
use strata_symbols::{Options, Resolved, debug_files};

use super::{Ask, ModuleInfo, NamedFrame, Shortfalls};

/// A file whose offsets want names.
pub struct Wanted<'a> {
    pub file: Arc<OpenFile>,
    /// As its processes see it.
    pub path: &'a Path,
    /// A process in whose root debug files are looked for first.
    pub process: Option<ProcessRef>,
    /// File offsets, sorted.
    pub offsets: &'a [u64],
}

/// What became of them.
pub struct Named {
    pub module: ModuleInfo,
    /// Frames by offset, innermost first; and the address in the file's own numbering.
    pub frames: Vec<(u64, Vec<NamedFrame>)>,
    /// Where the file's segments lie in it; empty when they are not known.
    segments: Vec<(u64, u64)>,
}

impl Named {
    /// Whether an offset of the file lies outside of everything that its headers describe.
    pub fn code_is_elsewhere(&self, offset: u64) -> bool {
        let inside = |(start, end): &(u64, u64)| (*start..*end).contains(&offset);
        !self.segments.is_empty() && !self.segments.iter().any(inside)
    }
}

/// Names all offsets of one file; what cannot be named has no frames.
pub fn resolve(service: &mut dyn Ask, wanted: &Wanted<'_>, shortfalls: &mut Shortfalls) -> Named {
    let path = wanted.path.display();
    let mut module = ModuleInfo::of(wanted.path);
    let unnamed = |module| Named {
        module,
        frames: wanted.offsets.iter().map(|offset| (*offset, Vec::new())).collect(),
        segments: Vec::new(),
    };
    let facts = match service.ask(Request::Facts { file: wanted.file.clone() }) {
        Ok(Reply::Facts(facts)) => facts,
        Ok(_) => return unnamed(module),
        Err(error) => {
            shortfalls.problem(format!("{path}: {error}"));
            return unnamed(module);
        }
    };
    describe(&mut module, &facts);
    let addresses: Vec<u64> =
        wanted.offsets.iter().map(|offset| facts.address_of(*offset).unwrap_or(*offset)).collect();
    let debug = if facts.features.dwarf { None } else { find_debug_file(service, wanted, &facts) };
    let request = Request::Symbolize {
        file: wanted.file.clone(),
        debug,
        addresses: addresses.clone(),
        options: Options::default(),
    };
    let symbols = match service.ask(request) {
        Ok(Reply::Symbols(symbols)) => symbols,
        Ok(_) => return unnamed(module),
        Err(error) => {
            shortfalls.problem(format!("{path}: {error}"));
            return unnamed(module);
        }
    };
    for problem in symbols.problems {
        shortfalls.problem(format!("{path}: {problem}"));
    }
    let mut resolved = symbols.resolved.into_iter();
    let frames = addresses
        .into_iter()
        .map(|address| {
            let resolved = resolved.next().unwrap_or_default();
            (address, frames_of(resolved))
        })
        .collect();
    let segments = facts.segments.iter();
    let segments = segments
        .map(|segment| (segment.offset, segment.offset.saturating_add(segment.file_size)))
        .collect();
    Named { module, frames, segments }
}

fn frames_of(resolved: Resolved) -> Vec<NamedFrame> {
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
