//! Assemblies inside single-file .NET programs: finds the assembly that a mapping belongs to.
//!
//! A bundle is a program with files behind it (`strata_dotnet::bundle`). The runtime maps the
//! sections of an assembly from where they lie in it; of a compressed assembly it makes a copy in
//! memory without a file, and only the runtime knows where (`PEImageLayout::LoadConverted`,
//! src/coreclr/vm/peimagelayout.cpp). Either way the unwind table is that of the part.
//!
//! Invariant: a bundle's manifest is untrusted. How much of it is kept and how many of its parts
//! are tried for one mapping is bounded, and wrong entries harm stacks of this file only.

use std::collections::HashMap;
use std::sync::Arc;

use strata_dotnet::Bundle;
use strata_dotnet::bundle::FileKind;
use strata_sandbox::{FileError, FilePart, Reply, Request};
use strata_unwind::Load;

use super::{Asked, Loading, State, TableKey, Unknown};
use crate::managed::units::{LoadedModule, Units};
use crate::processes::mapped::FileId;
use crate::processes::table::{MappedProgram, Mapping};
use crate::tables::extents::{Code, Stretch, Table};

/// The most assemblies kept of one bundle; programs have some hundreds.
const MAX_ASSEMBLIES: usize = 8192;
/// Of all bundles together.
const MAX_ALL: usize = 256 << 10;
/// Longer names are not names of assemblies.
const MAX_NAME: usize = 255;
/// Parts tried for one mapping: pages at its edges hold a neighbour, too.
const MAX_TRIED: usize = 4;
const PAGE: u64 = 4096;

/// Whether a file is a bundle.
enum Inside {
    Asking,
    Known(Arc<Assemblies>),
    /// It is not a bundle, or one that cannot be read.
    Nothing,
}

/// The bundles among files, by content.
#[derive(Default)]
pub(super) struct Bundles {
    known: HashMap<TableKey, Inside>,
    kept: usize,
}

/// Where the assemblies of one bundle lie.
#[derive(Default)]
struct Assemblies {
    /// By offset, without overlaps.
    stored: Vec<FilePart>,
    /// By path below the program's folder.
    compressed: HashMap<Box<str>, FilePart>,
}

impl Assemblies {
    fn of(bundle: &Bundle) -> Self {
        let mut assemblies = Self::default();
        let files = bundle.files.iter().filter(|file| file.kind == FileKind::Assembly);
        for file in files.take(MAX_ASSEMBLIES) {
            let part = FilePart::of(file);
            if part.unpacked.is_none() {
                assemblies.stored.push(part);
            } else if file.path.len() <= MAX_NAME {
                assemblies.compressed.insert(file.path.as_str().into(), part);
            }
        }
        assemblies.stored.sort_unstable_by_key(|part| (part.offset, part.length));
        let mut end = 0;
        assemblies.stored.retain(|part| {
            let apart = part.length != 0 && part.offset >= end;
            if apart {
                end = part.offset.saturating_add(part.length);
            }
            apart
        });
        assemblies
    }

    fn len(&self) -> usize {
        self.stored.len() + self.compressed.len()
    }

    /// The assemblies that have bytes in a range of the file, those with most of them first.
    fn within(&self, start: u64, end: u64) -> Vec<FilePart> {
        let end_of = |part: &FilePart| part.offset.saturating_add(part.length);
        let first = self.stored.partition_point(|part| end_of(part) <= start);
        let here = self.stored.get(first..).unwrap_or_default();
        let mut here: Vec<(u64, FilePart)> = here
            .iter()
            .take_while(|part| part.offset < end)
            .map(|part| (end_of(part).min(end) - part.offset.max(start), *part))
            .collect();
        here.sort_by_key(|(shared, _)| std::cmp::Reverse(*shared));
        here.into_iter().take(MAX_TRIED).map(|(_, part)| part).collect()
    }
}

impl Bundles {
    /// Drops bundles of dropped files.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&TableKey) -> bool) {
        self.known.retain(|key, _| is_kept(key));
        let kept = self.known.values().map(|inside| match inside {
            Inside::Known(assemblies) => assemblies.len(),
            Inside::Asking | Inside::Nothing => 0,
        });
        self.kept = kept.sum();
    }
}

/// The position of a mapping relative to the code of a part.
struct Fit {
    /// The address, in the part's own numbering, of the mapping's start.
    address: u64,
    /// It is all of a section, from its first page to its last.
    whole: bool,
}

fn fit(loads: &[Load], mapping: &Mapping) -> Option<Fit> {
    let mapped_end = mapping.offset.saturating_add(mapping.end - mapping.start);
    loads
        .iter()
        .filter(|load| load.executable && load.file_size != 0)
        .filter_map(|load| {
            let first = load.offset & !(PAGE - 1);
            let end = load.offset.saturating_add(load.file_size);
            (first <= mapping.offset && mapping.offset < end).then(|| Fit {
                address: load.address.wrapping_add(mapping.offset).wrapping_sub(load.offset),
                whole: first == mapping.offset
                    && end.checked_next_multiple_of(PAGE) == Some(mapped_end),
            })
        })
        .max_by_key(|fit| fit.whole)
}

impl Loading {
    /// How the code of a mapping is unwound that lies in no segment of its file.
    pub(super) fn code_of_part(
        &mut self,
        file: FileId,
        mapping: &Mapping,
    ) -> Result<Option<Code>, Unknown> {
        let Some((key, assemblies)) = self.assemblies_of(file)? else { return Ok(None) };
        let end = mapping.offset.saturating_add(mapping.end - mapping.start);
        let mut found = None;
        for part in assemblies.within(mapping.offset, end) {
            let Some(table) = self.table_of_part(file, key, part)? else { continue };
            let Some(fit) = fit(&table.loads, mapping) else { continue };
            if fit.whole || found.is_none() {
                let bias = mapping.start.wrapping_sub(fit.address);
                found = Some(Code::Table { table, bias });
            }
            if fit.whole {
                break;
            }
        }
        Ok(found)
    }

    /// The code of generated memory between two addresses: copies of assemblies, and code that the
    /// runtime has published. False when a table is still missing; then that code is left out.
    pub(super) fn code_of_memory(
        &mut self,
        program: Option<&MappedProgram<'_>>,
        (start, end): (u64, u64),
        units: &Units,
        to: &mut Vec<Stretch>,
    ) -> bool {
        let mut complete = true;
        let mut at = start;
        for module in units.precompiled_within(start, end) {
            let table = match self.table_of_copy(program, module) {
                Ok(Some(table)) => table,
                Ok(None) => continue,
                Err(Unknown) => {
                    complete = false;
                    continue;
                }
            };
            for load in table.loads.iter().filter(|load| load.executable) {
                let from = module.start.saturating_add(load.address).max(at);
                let until = module.start.saturating_add(load.address);
                let until = until.saturating_add(load.memory_size).min(module.end).min(end);
                if from >= until {
                    continue;
                }
                if from > at {
                    units.stretches(at, from, to);
                }
                let code = Code::Table { table: table.clone(), bias: module.start };
                to.push(Stretch { start: from, end: until, code });
                at = until;
            }
        }
        if at < end {
            units.stretches(at, end, to);
        }
        complete
    }

    /// The table of an assembly of which the runtime has made a copy.
    fn table_of_copy(
        &mut self,
        program: Option<&MappedProgram<'_>>,
        module: &LoadedModule,
    ) -> Result<Option<Arc<Table>>, Unknown> {
        let Some(program) = program else { return Ok(None) };
        let Some(name) = program.name_inside(&module.path) else { return Ok(None) };
        if self.table_of(program.file)?.is_none() {
            return Ok(None);
        }
        let Some((key, assemblies)) = self.assemblies_of(program.file)? else { return Ok(None) };
        let Some(part) = assemblies.compressed.get(name) else { return Ok(None) };
        let table = self.table_of_part(program.file, key, *part)?;
        Ok(table.filter(|table| is_as_large(&table.loads, module)))
    }

    /// The assemblies of a file, if it is a bundle.
    fn assemblies_of(
        &mut self,
        file: FileId,
    ) -> Result<Option<(TableKey, Arc<Assemblies>)>, Unknown> {
        let opened = match &self.entry(file).state {
            State::Unknown | State::Opening => return Err(Unknown),
            State::Failed(_) | State::NoAnswer { .. } | State::Later { .. } => return Ok(None),
            State::Opened(opened) => opened.clone(),
        };
        let key = TableKey::of(file, &opened, None);
        match self.bundles.known.get(&key) {
            Some(Inside::Known(assemblies)) => Ok(Some((key, assemblies.clone()))),
            Some(Inside::Nothing) => Ok(None),
            Some(Inside::Asking) => Err(Unknown),
            None => {
                self.bundles.known.insert(key, Inside::Asking);
                let id = self.service.submit(Request::Bundle { file: opened });
                self.asked.insert(id, Asked::Bundle(key));
                Err(Unknown)
            }
        }
    }

    fn table_of_part(
        &mut self,
        file: FileId,
        of_file: TableKey,
        part: FilePart,
    ) -> Result<Option<Arc<Table>>, Unknown> {
        let key = TableKey { part: Some(part), ..of_file };
        let State::Opened(opened) = &self.entry(file).state else { return Ok(None) };
        let opened = opened.clone();
        self.known_table(key, &opened)
    }

    /// A worker's answer about a file.
    pub(super) fn bundle_read(&mut self, key: TableKey, outcome: Result<Reply, FileError>) {
        let assemblies = match outcome {
            Ok(Reply::Bundle(bundle)) => Assemblies::of(&bundle),
            Ok(_) => Assemblies::default(),
            Err(error) => {
                tracing::debug!(%error, "a file with code behind its segments is no bundle");
                Assemblies::default()
            }
        };
        let kept = self.bundles.kept + assemblies.len();
        let inside = if assemblies.len() == 0 || kept > MAX_ALL {
            Inside::Nothing
        } else {
            self.bundles.kept = kept;
            Inside::Known(Arc::new(assemblies))
        };
        self.bundles.known.insert(key, inside);
    }
}

/// Whether a module has room for all that the sections of its file take.
fn is_as_large(loads: &[Load], module: &LoadedModule) -> bool {
    let size = module.end - module.start;
    let takes = |load: &Load| load.address.checked_add(load.memory_size);
    loads.iter().all(|load| takes(load).is_some_and(|end| end <= size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::table::Backing;
    use strata_dotnet::bundle::BundledFile;

    fn assemblies(files: &[(u64, u64, u64)]) -> Assemblies {
        let file = |&(offset, size, compressed_size): &(u64, u64, u64)| BundledFile {
            path: format!("{offset:x}.dll"),
            kind: FileKind::Assembly,
            offset,
            size,
            compressed_size,
        };
        let files = files.iter().map(file).collect();
        Assemblies::of(&Bundle { major_version: 6, minor_version: 0, files })
    }

    fn offsets(parts: &[FilePart]) -> Vec<u64> {
        parts.iter().map(|part| part.offset).collect()
    }

    fn load(offset: u64, file_size: u64, address: u64) -> Load {
        Load { offset, file_size, address, memory_size: file_size, executable: true }
    }

    fn mapping(start: u64, size: u64, offset: u64) -> Mapping {
        Mapping { start, end: start + size, offset, backing: Backing::File(FileId(0)) }
    }

    #[test]
    fn the_assembly_with_most_bytes_in_a_mapping_comes_first() {
        let bundle = assemblies(&[(0x5000, 0x40, 0), (0x1000, 0x1c80, 0), (0x2c80, 0x2000, 0)]);
        assert_eq!(offsets(&bundle.within(0x2000, 0x5000)), [0x2c80, 0x1000]);
        assert_eq!(offsets(&bundle.within(0x1000, 0x2000)), [0x1000]);
        assert_eq!(offsets(&bundle.within(0x5040, u64::MAX)), [0; 0]);
        assert_eq!(offsets(&bundle.within(0, 0x1000)), [0; 0]);
    }

    #[test]
    fn compressed_assemblies_are_found_by_name_and_never_by_offset() {
        let bundle = assemblies(&[(0x1000, 0x9000, 0x400)]);
        let part = FilePart { offset: 0x1000, length: 0x400, unpacked: Some(0x9000) };
        assert_eq!(bundle.compressed.get("1000.dll"), Some(&part));
        assert!(bundle.within(0, u64::MAX).is_empty());
    }

    #[test]
    fn claims_that_overlap_or_make_no_sense_are_left_out_and_few_are_tried() {
        let bundle = assemblies(&[(0, u64::MAX, 0), (5, 10, 0), (u64::MAX, 1, 0), (7, 0, 0)]);
        assert_eq!(offsets(&bundle.stored), [0, u64::MAX]);
        let many: Vec<_> = (0..100_000).map(|n| (n * 16, 16, 0)).collect();
        let bundle = assemblies(&many);
        assert_eq!(bundle.len(), MAX_ASSEMBLIES);
        assert_eq!(bundle.within(0, u64::MAX).len(), MAX_TRIED);
    }

    #[test]
    fn a_mapping_that_is_all_of_a_section_fits_best() {
        // The pages of a section that begins and ends within one.
        let loads = [load(0x1c80, 0x2400, 0x1_0c80)];
        let whole = fit(&loads, &mapping(0x7000_0000, 0x4000, 0x1000)).unwrap();
        assert_eq!((whole.address, whole.whole), (0x1_0000, true));
        let rest = fit(&loads, &mapping(0x7000_1000, 0x3000, 0x2000)).unwrap();
        assert_eq!((rest.address, rest.whole), (0x1_1000, false));
        assert!(fit(&loads, &mapping(0x7000_0000, 0x1000, 0x5000)).is_none());
        assert!(fit(&loads, &mapping(0x7000_0000, 0x1000, 0)).is_none());
        let data = [Load { executable: false, ..loads[0] }];
        assert!(fit(&data, &mapping(0x7000_0000, 0x4000, 0x1000)).is_none());
        let liar = [load(u64::MAX - 5, u64::MAX, u64::MAX)];
        assert!(fit(&liar, &mapping(0x7000_0000, 0x4000, !0xfff)).is_some());
    }

    #[test]
    fn a_copy_has_room_for_all_sections() {
        let module = |end| LoadedModule {
            start: 0x1_0000,
            end,
            precompiled: true,
            path: "/app/X.dll".into(),
        };
        let loads = [load(0x200, 0x2400, 0x1000)];
        assert!(is_as_large(&loads, &module(0x1_4000)));
        assert!(!is_as_large(&loads, &module(0x1_3000)));
        assert!(!is_as_large(&[load(0, u64::MAX, 1)], &module(u64::MAX)));
    }
}
