//! Precompiled (ReadyToRun) code: finds the method of a code address.
//!
//! The tables are read once, into memory; signatures of instances stay bytes until they are needed.
//!
//! Invariant: what the tables claim is checked against the bytes present: no index, count or
//! overlap in them costs more than reading each byte a few times.
//!
//! References: `docs/design/coreclr/botr/readytorun-format.md`, `src/coreclr/inc/readytorun.h`,
//! `ILCompiler.Reflection.ReadyToRun` (all of the .NET runtime).

pub(crate) mod debug_info;
pub(crate) mod instance;
mod native_format;

use std::ops::Range;

use crate::Error;
use crate::pe::{Directory, Machine, PeImage};
use debug_info::DebugInfo;
use native_format::{SparseArray, entry_point, hash_entries};
use strata_bytes::{bounded_text, index, u32_at, until_nul};
use strata_ecma::ready_to_run::{Header, section};

/// Of one table; those of the largest images have some megabytes.
const MAX_TABLE: u64 = 32 << 20;

/// Whether an image holds its own code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Code and metadata of one assembly.
    Single,
    /// The code of several assemblies, whose metadata is elsewhere.
    Composite,
    /// The metadata of an assembly whose code is in a composite image of this file name.
    Component { owner: String },
}

/// A piece of code with unwind information of its own: a method, or a funclet or cold part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeFunction {
    pub begin: u32,
    pub end: u32,
}

/// The method of an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The row of a MethodDef.
    Method(u32),
    /// The offset of a signature in the table of instances.
    Instance(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The first runtime function of the method; funclets follow it.
    function: u32,
    owner: Owner,
    /// Further methods have the same code. Crossgen of .NET Core 3 lets P/Invokes of one signature
    /// share their stub.
    shared: bool,
}

/// A runtime function and its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub owner: Owner,
    /// Of the whole method, as far as it lies in one piece.
    pub entry: RuntimeFunction,
    pub function: RuntimeFunction,
    pub cold: bool,
    pub shared: bool,
    /// The method's first runtime function.
    pub first: u32,
}

/// The tables of one image.
#[derive(Debug)]
pub struct NativeCode {
    pub major_version: u16,
    pub minor_version: u16,
    pub kind: Kind,
    functions: Vec<RuntimeFunction>,
    /// By function, each once.
    entries: Vec<Entry>,
    /// Cold function and hot function, by the former.
    cold: Vec<(u32, u32)>,
    instances: Vec<u8>,
    instance_count: u32,
    /// Metadata with references that the assembly's own does not have.
    pub(crate) manifest: Option<crate::Metadata>,
    /// Where the lists of statements are, which are read on demand.
    debug_info: Option<Directory>,
    /// Parts that could not be used.
    problems: Vec<&'static str>,
}

/// The sections that a header lists.
struct Sections(Vec<(u32, Directory)>);

impl Sections {
    fn find(&self, wanted: u32) -> Option<Directory> {
        self.0.iter().find(|(kind, _)| *kind == wanted).map(|(_, directory)| *directory)
    }

    fn read(&self, image: &PeImage<'_>, what: &'static str, wanted: u32) -> Result<Vec<u8>, Error> {
        match self.find(wanted) {
            Some(at) if at.size > 0 => image.read(what, at.rva, at.size.into(), MAX_TABLE),
            _ => Ok(Vec::new()),
        }
    }
}

impl NativeCode {
    /// The tables of an image; `None` when it has no precompiled code. `methods` is how many
    /// MethodDefs its metadata has.
    pub(crate) fn read(image: &PeImage<'_>, methods: u32) -> Result<Option<Self>, Error> {
        let what = "ReadyToRun header";
        let Some(header_rva) = header_of(image) else { return Ok(None) };
        let length = Header::BYTES as u64;
        let header = image.read(what, header_rva, length, length)?;
        let Some(header) = Header::parse(&header) else { return Ok(None) };
        let (start, length) = (header_rva.saturating_add(16), header.list_bytes() as u64);
        let list = image.read(what, start, length, length)?;
        let sections = Sections(header.sections(&list).collect());
        let mut code = Self {
            major_version: header.major_version,
            minor_version: header.minor_version,
            kind: Kind::Single,
            functions: Vec::new(),
            entries: Vec::new(),
            cold: Vec::new(),
            instances: Vec::new(),
            instance_count: 0,
            manifest: None,
            debug_info: sections.find(section::DEBUG_INFO),
            problems: Vec::new(),
        };
        code.fill(image, &sections, methods)?;
        Ok(Some(code))
    }

    fn fill(
        &mut self,
        image: &PeImage<'_>,
        sections: &Sections,
        methods: u32,
    ) -> Result<(), Error> {
        if sections.find(section::OWNER_COMPOSITE_EXECUTABLE).is_some() {
            let what = "name of the composite image";
            let name = sections.read(image, what, section::OWNER_COMPOSITE_EXECUTABLE)?;
            self.kind = Kind::Component { owner: bounded_text(until_nul(&name)).into_owned() };
            return Ok(());
        }
        let functions = sections.read(image, "runtime functions", section::RUNTIME_FUNCTIONS)?;
        self.functions = runtime_functions(image.machine, &functions)?;
        if sections.find(section::COMPONENT_ASSEMBLIES).is_some() {
            self.kind = Kind::Composite;
            return Ok(());
        }
        let what = "method entry points";
        let table = sections.read(image, what, section::METHOD_DEF_ENTRY_POINTS)?;
        self.add_methods(&table, methods);
        match sections.read(image, "instance entry points", section::INSTANCE_ENTRY_POINTS) {
            Ok(table) => {
                self.instances = table;
                self.add_instances();
            }
            Err(error) => self.allow(error, "instance entry points")?,
        }
        self.entries.sort_by_key(|entry| entry.function);
        self.entries.dedup_by(|later, first| {
            first.shared |= later.function == first.function;
            later.function == first.function
        });
        match sections.read(image, "hot and cold parts", section::HOT_COLD_MAP) {
            Ok(table) => self.add_cold(&table),
            Err(error) => self.allow(error, "hot and cold parts")?,
        }
        match sections.read(image, "manifest metadata", section::MANIFEST_METADATA) {
            Ok(bytes) if !bytes.is_empty() => match crate::Metadata::parse(bytes) {
                Ok(metadata) => self.manifest = Some(metadata),
                Err(error) => self.allow(error, "manifest metadata")?,
            },
            Ok(_) => {}
            Err(error) => self.allow(error, "manifest metadata")?,
        }
        Ok(())
    }

    /// Damaged parts are left out; unreadable ones are an error.
    fn allow(&mut self, error: Error, what: &'static str) -> Result<(), Error> {
        if matches!(error, Error::Io { .. }) {
            return Err(error);
        }
        self.problems.push(what);
        Ok(())
    }

    fn add_methods(&mut self, table: &[u8], methods: u32) {
        let Some(array) = SparseArray::new(table) else { return };
        for row in 1..=array.count().min(methods) {
            let Some(function) = array.get(row - 1).and_then(|at| entry_point(table, at)) else {
                continue;
            };
            self.add(function, Owner::Method(row));
        }
    }

    fn add_instances(&mut self) {
        let table = std::mem::take(&mut self.instances);
        // The most that real signatures take together, with the numbers between them.
        let mut budget = u32::try_from(table.len()).unwrap_or(u32::MAX).saturating_mul(2);
        for at in hash_entries(&table, self.functions.len().saturating_mul(2)) {
            let Some(function) = instance::entry_of(&table, at, &mut budget) else {
                continue;
            };
            if let Ok(at) = u32::try_from(at) {
                self.instance_count = self.instance_count.saturating_add(1);
                self.add(function, Owner::Instance(at));
            }
        }
        self.instances = table;
    }

    fn add(&mut self, function: u32, owner: Owner) {
        // Crossgen of .NET Core 3 enters some functions under several names, but few.
        let most = self.functions.len().saturating_mul(2).saturating_add(64);
        if index(function) < self.functions.len() && self.entries.len() < most {
            self.entries.push(Entry { function, owner, shared: false });
        }
    }

    fn add_cold(&mut self, table: &[u8]) {
        self.cold = table
            .chunks_exact(8)
            .filter_map(|pair| Some((u32_at(pair, 0)?, u32_at(pair, 4)?)))
            .collect();
        self.cold.sort_unstable();
    }

    /// All runtime functions, in the order of the file.
    #[must_use]
    pub fn runtime_functions(&self) -> &[RuntimeFunction] {
        &self.functions
    }

    /// How many methods have code here, and how many instances of generic ones.
    #[must_use]
    pub fn counts(&self) -> (usize, u32) {
        (self.entries.len(), self.instance_count)
    }

    /// Tables that could not be used.
    #[must_use]
    pub fn problems(&self) -> &[&'static str] {
        &self.problems
    }

    /// The lists of statements of all methods.
    pub(crate) fn debug_info(&self, image: &PeImage<'_>) -> Option<DebugInfo> {
        let at = self.debug_info.filter(|at| at.size > 0)?;
        let bytes = image.read("debug information", at.rva, at.size.into(), MAX_TABLE).ok()?;
        Some(DebugInfo::new(bytes, self.major_version))
    }

    pub(crate) fn instances(&self) -> &[u8] {
        &self.instances
    }

    /// The function whose code is at an address.
    #[must_use]
    pub fn function_at(&self, rva: u32) -> Option<(u32, RuntimeFunction)> {
        let after = self.functions.partition_point(|function| function.begin <= rva);
        let number = after.checked_sub(1)?;
        let function = *self.functions.get(number)?;
        (rva < function.end).then_some((u32::try_from(number).ok()?, function))
    }

    pub(crate) fn find(&self, rva: u32) -> Option<Found> {
        let (number, function) = self.function_at(rva)?;
        let first_cold = self.cold.first().map_or(u32::MAX, |(cold, _)| *cold);
        let cold = number >= first_cold;
        let hot = if cold {
            let after = self.cold.partition_point(|(cold, _)| *cold <= number);
            self.cold.get(after.checked_sub(1)?)?.1
        } else {
            number
        };
        let after = self.entries.partition_point(|entry| entry.function <= hot);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        let next = self.entries.get(after).map_or(u32::MAX, |entry| entry.function).min(first_cold);
        let functions =
            self.functions.get(method_range(entry.function, next, self.functions.len()));
        let functions = functions.unwrap_or_default();
        let begin = functions.first()?.begin;
        let end = functions.last()?.end;
        let code = RuntimeFunction { begin, end };
        Some(Found {
            owner: entry.owner,
            entry: code,
            function,
            cold,
            shared: entry.shared,
            first: entry.function,
        })
    }
}

fn method_range(first: u32, next: u32, count: usize) -> Range<usize> {
    index(first)..index(next).min(count)
}

fn header_of(image: &PeImage<'_>) -> Option<u32> {
    match image.cli().filter(|cli| cli.has_native_code()) {
        Some(cli) => Some(cli.managed_native_header.rva),
        // A composite image names its header by an export.
        None => image.export(b"RTR_HEADER"),
    }
}

fn runtime_functions(machine: Machine, table: &[u8]) -> Result<Vec<RuntimeFunction>, Error> {
    match machine {
        // With their ends (`RUNTIME_FUNCTION`, winnt.h). A word -1 ends the table.
        Machine::Amd64 => Ok(table
            .chunks_exact(12)
            .filter_map(|entry| {
                Some(RuntimeFunction { begin: u32_at(entry, 0)?, end: u32_at(entry, 4)? })
            })
            .collect()),
        Machine::Arm64 => {
            let begins: Vec<u32> =
                table.chunks_exact(8).filter_map(|entry| u32_at(entry, 0)).collect();
            let ends = begins.iter().skip(1).copied().chain([u32::MAX]);
            Ok(begins
                .iter()
                .zip(ends)
                .map(|(begin, end)| RuntimeFunction { begin: *begin, end })
                .collect())
        }
        Machine::I386 | Machine::Other(_) => Err(Error::Foreign {
            what: "precompiled code",
            form: format!("for another machine: {machine:?}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(begin: u32) -> RuntimeFunction {
        RuntimeFunction { begin, end: begin + 10 }
    }

    fn code() -> NativeCode {
        NativeCode {
            major_version: 9,
            minor_version: 0,
            kind: Kind::Single,
            // Method 1 with a funclet, method 2, and the cold parts of 1 (two of them) and 2.
            functions: [100, 110, 120, 200, 210, 220].map(function).to_vec(),
            entries: [(0, 1), (2, 2)]
                .map(|(function, row)| Entry { function, owner: Owner::Method(row), shared: false })
                .to_vec(),
            cold: vec![(3, 0), (5, 2)],
            instances: Vec::new(),
            instance_count: 0,
            manifest: None,
            debug_info: None,
            problems: Vec::new(),
        }
    }

    #[test]
    fn funclets_and_cold_parts_belong_to_their_method() {
        let code = code();
        let find = |rva| code.find(rva).map(|found| (found.owner, found.entry.begin, found.cold));
        for (rva, row, begin, cold) in [
            (100, 1, 100, false),
            (119, 1, 100, false),
            (120, 2, 120, false),
            (200, 1, 100, true),
            (215, 1, 100, true),
            (229, 2, 120, true),
        ] {
            assert_eq!(find(rva), Some((Owner::Method(row), begin, cold)), "{rva}");
        }
        assert_eq!(code.find(115).map(|found| found.entry.end), Some(120));
        assert_eq!(code.find(125).map(|found| found.entry.end), Some(130), "not the cold parts");
        assert_eq!(find(99), None);
        assert_eq!(find(130), None, "a gap");
        assert_eq!(find(230), None);
    }

    #[test]
    fn code_before_the_first_method_has_no_owner() {
        let mut code = code();
        code.entries.remove(0);
        assert_eq!(code.find(105), None);
        // A map of cold parts that points anywhere.
        code.cold = vec![(0, u32::MAX), (1, 0)];
        assert!(code.find(100).is_none_or(|found| found.cold));
        assert_eq!(code.find(110), None);
    }

    #[test]
    fn instances_that_all_share_one_long_signature_cost_no_more_than_the_table() {
        const ENTRIES: usize = 100_000;
        // One bucket, entries of six bytes: hash, then a distance of five.
        let mut table = vec![2];
        let end = 8 + 6 * ENTRIES;
        table.extend_from_slice(&8_u32.to_le_bytes());
        table.extend_from_slice(&u32::try_from(end).unwrap().to_le_bytes());
        while table.len() <= end {
            let distance =
                i32::try_from(end + 1).unwrap() - i32::try_from(table.len() + 1).unwrap();
            table.extend_from_slice(&[0, 0x0f]);
            table.extend_from_slice(&distance.to_le_bytes());
        }
        // The owner is an array with 16,383 sizes; then a method, and its function 0.
        table.truncate(end + 1);
        table.extend_from_slice(&[0x40, 0x14, 0x08, 1, 0xbf, 0xff]);
        table.resize(table.len() + 0x3fff, 1);
        table.extend_from_slice(&[0, 1, 0]);
        let mut code = code();
        code.functions = (0..100_000).map(|number| function(number * 10)).collect();
        code.entries.clear();
        code.instances = table;
        let before = std::time::Instant::now();
        code.add_instances();
        let most = 2 * code.instances.len() / 0x3fff;
        assert!((1..=most).contains(&code.entries.len()), "{}", code.entries.len());
        assert!(before.elapsed() < std::time::Duration::from_secs(10));
    }

    #[test]
    fn functions_of_arm64_end_where_the_next_begins() {
        let table: Vec<u8> =
            [100_u32, 7, 120, 7].iter().flat_map(|word| word.to_le_bytes()).collect();
        let functions = runtime_functions(Machine::Arm64, &table).unwrap();
        assert_eq!(functions.iter().map(|one| one.end).collect::<Vec<_>>(), [120, u32::MAX]);
        assert!(runtime_functions(Machine::I386, &table).is_err());
    }
}
