//! Symbols and lines of .NET methods: generated code from the bridge's records, precompiled code
//! from its assembly.
//!
//! Lines come from the portable PDB that has the assembly's own id: inside it, beside it, or where
//! the compiler put it; looked for in the process's root, and in its program if that is a bundle.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_dotnet::Statement;
use strata_sandbox::{
    FilePart, IlPlace, ImagePlace, ManagedFacts, ManagedMethod, OpenFile, Reply, Request,
};

use super::assemblies::{ProcessFiles, Source};
use super::native::may_describe;
use crate::file_client::Ask;
use crate::{NamedFrame, Shortfalls};
use strata_agent::managed::names::{self, Described};
use strata_agent::managed::stubs::NAMELESS;

/// An address in generated code, in the era of its sample.
#[derive(Clone, Copy)]
pub struct GeneratedCode {
    pub address: u64,
    pub era: u32,
    /// In memory that only .NET maps so.
    pub of_runtime: bool,
    /// The runtime reports that it is no method's: what it is, if that is known.
    pub stub: Option<Option<&'static str>>,
}

/// The line of a described method's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineOf {
    Found(Arc<str>, u32),
    /// There is none.
    Nowhere,
    /// There was no time to look.
    Late,
}

/// The lines of described methods, in their order; module by module.
pub fn lines(
    service: &mut dyn Ask,
    files: &mut ProcessFiles,
    described: &[(GeneratedCode, Described)],
    shortfalls: &mut Shortfalls,
) -> Vec<LineOf> {
    let mut found = vec![LineOf::Nowhere; described.len()];
    // By path and id.
    let mut wanted: BTreeMap<_, Vec<(usize, IlPlace)>> = BTreeMap::new();
    for (at, (_, described)) in described.iter().enumerate() {
        if let Some(Statement { method, start, .. }) = described.il {
            let place = IlPlace { token: method, il_offset: start };
            wanted.entry((&described.module, described.mvid)).or_default().push((at, place));
        }
    }
    for ((module, mvid), places) in wanted {
        let il: Vec<IlPlace> = places.iter().map(|(_, place)| *place).collect();
        let lines = match loaded_assembly(service, files, module, mvid, shortfalls) {
            Some((assembly, facts)) => {
                lines_of(service, files, module, assembly, &facts, &il, shortfalls)
            }
            None => vec![None; il.len()],
        };
        let is_late = service.is_late();
        for ((at, _), line) in places.iter().zip(lines) {
            let Some(found) = found.get_mut(*at) else { continue };
            match line {
                Some((file, line)) => *found = LineOf::Found(file, line),
                None if is_late => *found = LineOf::Late,
                None => {}
            }
        }
    }
    found
}

/// A document and a line in it, if the PDB has one.
type Line = Option<(Arc<str>, u32)>;

/// The assembly that a module was loaded from, unless another build lies there by now.
fn loaded_assembly(
    service: &mut dyn Ask,
    files: &mut ProcessFiles,
    module: &str,
    mvid: [u8; 16],
    shortfalls: &mut Shortfalls,
) -> Option<(Source, ManagedFacts)> {
    let assembly = files.assembly(service, module)?;
    let facts = facts_of(service, &assembly)?;
    // Without one the runtime reported none.
    if mvid != [0; 16] && facts.mvid != Some(mvid) {
        shortfalls.problem(format!(
            "{module}: the file there is another build than the one that runs: no lines"
        ));
        return None;
    }
    Some((assembly, facts))
}

fn facts_of(service: &mut dyn Ask, assembly: &Source) -> Option<ManagedFacts> {
    let request = Request::ManagedFacts { file: assembly.file.clone(), part: assembly.part };
    match service.ask(request) {
        Ok(Reply::ManagedFacts(facts)) => Some(facts),
        _ => None,
    }
}

/// Document and line of IL of an assembly, for each place, if its PDB is there.
fn lines_of(
    service: &mut dyn Ask,
    files: &mut ProcessFiles,
    module: &str,
    assembly: Source,
    facts: &ManagedFacts,
    places: &[IlPlace],
    shortfalls: &mut Shortfalls,
) -> Vec<Line> {
    let nothing = vec![None; places.len()];
    let Some(pdb) = &facts.pdb else { return nothing };
    let described = assembly.file.clone();
    let mut why_not = None;
    if facts.has_embedded_pdb
        && let Some(lines) = ask_lines(service, assembly, pdb.id, places, &mut why_not)
    {
        return lines;
    }
    for path in pdb_paths(Path::new(module), facts) {
        let found = files.inside(service, &path).or_else(|| {
            let path = files.path_of(path.to_str()?)?;
            files.open(service, &path)
        });
        if let Some(found) = found
            && may_describe(&found.file, &described)
            && let Some(lines) = ask_lines(service, found, pdb.id, places, &mut why_not)
        {
            return lines;
        }
    }
    if let Some(why) = why_not {
        shortfalls.problem(format!("{module}: {why}"));
    }
    nothing
}

fn ask_lines(
    service: &mut dyn Ask,
    Source { file, part }: Source,
    pdb: strata_dotnet::PdbId,
    places: &[IlPlace],
    why_not: &mut Option<String>,
) -> Option<Vec<Line>> {
    match service.ask(Request::ManagedLines { file, part, pdb, places: places.to_vec() }) {
        Ok(Reply::ManagedLines(lines)) => Some(lines.lines),
        Ok(_) => None,
        Err(error) => {
            *why_not = Some(error.to_string());
            None
        }
    }
}

/// Beside the assembly under either name, and where the compiler wrote it.
fn pdb_paths(module: &Path, facts: &ManagedFacts) -> Vec<PathBuf> {
    let mut paths = vec![module.with_extension("pdb")];
    if let Some(pdb) = &facts.pdb {
        let written = pdb.path.replace('\\', "/");
        if let (Some(folder), Some(name)) = (module.parent(), written.rsplit('/').next())
            && !name.is_empty()
        {
            paths.push(folder.join(name));
        }
        if written.starts_with('/') {
            paths.push(written.into());
        }
    }
    paths.dedup();
    paths
}

/// Whether a file is an assembly by its name, and not a program for Linux: npm's `bun.exe` is one.
pub fn is_assembly(service: &mut dyn Ask, path: &Path, file: &Arc<OpenFile>) -> bool {
    const ELF: &[u8] = b"\x7fELF";
    let is_named_so = path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("dll") || end.eq_ignore_ascii_case("exe"));
    let length = ELF.len() as u64;
    is_named_so
        && !matches!(
            service.ask(Request::Read { file: file.clone(), offset: 0, length }),
            Ok(Reply::Bytes(head)) if head == ELF
        )
}

/// An assembly with precompiled code, and its role in the process.
pub struct Precompiled<'a> {
    pub file: &'a Arc<OpenFile>,
    pub part: Option<FilePart>,
    /// Its path, or its name in a bundle.
    pub module: &'a str,
}

/// Names precompiled code by its assembly, for each file offset, with its lines.
pub fn resolve_assembly(
    service: &mut dyn Ask,
    assembly: &Precompiled<'_>,
    files: &mut ProcessFiles,
    offsets: &[u64],
    signatures: bool,
    shortfalls: &mut Shortfalls,
) -> Vec<Vec<NamedFrame>> {
    let Precompiled { file, part, module } = *assembly;
    let start = part.map_or(0, |part| part.offset);
    let places =
        offsets.iter().map(|offset| ImagePlace::Offset(offset.saturating_sub(start))).collect();
    match service.ask(Request::ManagedNames { file: file.clone(), part, places }) {
        Ok(Reply::ManagedNames(found)) => {
            let mut known: HashMap<*const ManagedMethod, NamedFrame> = HashMap::new();
            let frame = |method: &Option<Arc<ManagedMethod>>| {
                let method = method.as_ref()?;
                let frame = known
                    .entry(Arc::as_ptr(method))
                    .or_insert_with(|| names::of_precompiled(method, &found, signatures));
                Some(vec![frame.clone()])
            };
            let mut frames: Vec<Vec<NamedFrame>> =
                found.methods.iter().map(frame).map(Option::unwrap_or_default).collect();
            let il = found.methods.iter().zip(&found.il_offsets).enumerate();
            let il: Vec<(usize, IlPlace)> = il
                .filter_map(|(at, (method, il_offset))| {
                    // Methods instantiated from another assembly have their lines there.
                    let method = method.as_ref().filter(|method| method.assembly.is_none())?;
                    Some((at, IlPlace { token: method.token, il_offset: (*il_offset)? }))
                })
                .collect();
            if !il.is_empty() {
                let places: Vec<IlPlace> = il.iter().map(|(_, place)| *place).collect();
                // By its path another build may be found by now.
                let mapped = Source { file: file.clone(), part };
                let lines = match facts_of(service, &mapped) {
                    Some(facts) => {
                        lines_of(service, files, module, mapped, &facts, &places, shortfalls)
                    }
                    None => vec![None; places.len()],
                };
                for ((at, _), line) in il.iter().zip(lines) {
                    if let (Some([frame]), Some((file, line))) =
                        (frames.get_mut(*at).map(Vec::as_mut_slice), line)
                    {
                        frame.file = file;
                        frame.line = line;
                    }
                }
            }
            frames
        }
        Ok(_) => vec![Vec::new(); offsets.len()],
        Err(error) => {
            shortfalls.problem(format!("an assembly: {error}"));
            vec![Vec::new(); offsets.len()]
        }
    }
}

/// The parts of a single-file program that hold these file offsets.
pub fn parts_of_bundle(
    service: &mut dyn Ask,
    file: &Arc<OpenFile>,
    offsets: &[u64],
) -> Vec<(FilePart, String)> {
    let Ok(Reply::Bundle(bundle)) = service.ask(Request::Bundle { file: file.clone() }) else {
        return Vec::new();
    };
    bundle
        .files
        .iter()
        .map(|entry| (FilePart::of(entry), &entry.path))
        // A compressed assembly is not mapped from its file.
        .filter(|(part, _)| part.unpacked.is_none())
        .filter(|(part, _)| {
            offsets.iter().any(|offset| offset.wrapping_sub(part.offset) < part.length)
        })
        .map(|(part, path)| (part, path.clone()))
        .collect()
}

/// Code that a runtime has made and that is no method's: how its methods call each other, and calls
/// into it.
pub fn runtime_stub(name: Option<&'static str>) -> NamedFrame {
    let name = name.unwrap_or(NAMELESS);
    NamedFrame::managed(name, name)
}
