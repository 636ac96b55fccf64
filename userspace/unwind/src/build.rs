//! From a file to its unwind table: the order in which the sources of rules are used. PE files have
//! a single source, their exception directory.
//!
//! Invariant: whatever is wrong with one source, the others still count; an error means that
//! the file as such could not be read.

use std::ops::Range;

use crate::arch::{self, Corrected, Undescribed, rule_of};
use crate::bytes;
use crate::coverage::{self, Coverage};
use crate::elf::{Elf, read_exact};
use crate::frame_program::{Outcome, Program, State};
use crate::frame_section::{Entry, FrameSection};
use crate::golang::{self, LineTable};
use crate::limits::Limits;
use crate::managed::pe;
use crate::pieces::PieceBuilder;
use crate::rules::{self, Rules};
use crate::table::{Statistics, UnwindTable};
use strata_abi::rule::Packed;
use strata_bytes::{Part, ReadAt};

/// Why a file has no unwind table.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("the file could not be read")]
    Read(#[from] std::io::Error),
    #[error("neither an ELF nor a PE file")]
    NotProgram,
    #[error("a file for another machine: only {} are unwound", arch::PROGRAMS)]
    OtherMachine,
    #[error("the file is cut: it is shorter than its headers say")]
    Cut,
    #[error("a section of {size} bytes is larger than the limit of {limit}")]
    TooLarge { size: u64, limit: u64 },
}

/// Builds the unwind table of an ELF file (or of an ELF image in memory, such as the vDSO), or of
/// a PE file: there addresses count from the image's start.
pub fn build<R: ReadAt + ?Sized>(source: &R, limits: &Limits) -> Result<UnwindTable, BuildError> {
    if pe::is_pe(source) {
        return arch::managed_image(source, limits);
    }
    let elf = Elf::read(source)?;
    let mut rules = Rules::new(limits.max_rules);
    let mut statistics = Statistics::default();

    let line_table = LineTable::read(&elf, source, limits);
    // Go's own .debug_frame knows less than its line table.
    let frame_bytes = frame_section_bytes(&elf, source, limits, line_table.is_none())?;
    let (section_bytes, address, debug, terminated) = match &frame_bytes {
        Some(found) => (found.bytes.as_slice(), found.address, found.debug, found.terminated),
        None => (&[][..], 0, false, false),
    };
    let mut section = FrameSection::new(section_bytes, address, debug, terminated);
    let mut entries = Vec::new();
    if section.entries(limits.max_entries, &mut entries) {
        statistics.truncated = 1;
    }
    let found = entries.len();
    keep_code(&elf, &mut entries);
    coverage::settle(&mut entries);
    statistics.entries = entries.len() as u64;
    statistics.skipped_entries = (found - entries.len()) as u64 + section.malformed;

    let code = code_regions(&elf);
    let mut covered = Coverage::new(&code, &entries);
    if let Some(line_table) = &line_table {
        let (proposal, functions) = golang::propose(line_table, &elf, source, limits, &mut rules);
        statistics.go_functions = functions;
        covered.add(proposal);
    }
    covered.add(arch::linkage(&elf, source, limits, &mut rules));
    statistics.undescribed_bytes = covered.gaps.iter().map(|gap| gap.end - gap.start).sum();
    let undescribed = Undescribed {
        elf: &elf,
        source,
        covered: &covered,
        code: &code,
        entries: &entries,
        rule_at_end: &|entry, rules| rule_at_end(&section, entry, rules),
    };
    if let Some((proposal, derived)) = arch::derived(&undescribed, limits, &mut rules) {
        statistics.derived_bytes = derived;
        covered.add(proposal);
    }
    covered.finish();

    let mut writer = RowWriter {
        section: &section,
        rules: &mut rules,
        pieces: PieceBuilder::new(limits.max_rows),
        work: limits.max_work,
        remembered: Vec::new(),
        unsupported: 0,
        context_starts: arch::context_starts(&elf, source),
    };
    writer.write(&entries, &covered);
    statistics.unsupported_rows = writer.unsupported;
    if writer.pieces.truncated || writer.work == 0 {
        statistics.truncated = 1;
    }
    let pieces = writer.pieces.finish();
    statistics.refused_rows = rules.refused;
    Ok(UnwindTable { rules: rules.into_rules(), pieces, loads: elf.loads, statistics })
}

/// Builds the unwind table of a file that lies inside another one: an assembly in a single-file
/// program. File offsets in the table are the outer file's.
pub fn build_part<R: ReadAt + ?Sized>(
    source: &R,
    range: Range<u64>,
    limits: &Limits,
) -> Result<UnwindTable, BuildError> {
    let mut table =
        build(&Part::new(source, range.start, range.end.saturating_sub(range.start)), limits)?;
    for load in &mut table.loads {
        load.offset = load.offset.saturating_add(range.start);
    }
    Ok(table)
}

/// For fuzzing: any bytes as a file, and as a file with another one inside; what was built survives
/// being written and read.
pub fn fuzz_build(data: &[u8]) {
    let limits = Limits { max_work: 1 << 20, max_rows: 1 << 16, ..Limits::default() };
    fuzz_survival(build(data, &limits));
    // Where it lies and how long it is come out of the bytes, too.
    if let Some((place, rest)) = data.split_first_chunk::<8>() {
        let place = u64::from_le_bytes(*place);
        let start = place % 16;
        fuzz_survival(build_part(rest, start..start.saturating_add(place >> 4), &limits));
        fuzz_survival(build_part(rest, place..u64::MAX, &limits));
    }
}

fn fuzz_survival(built: Result<UnwindTable, BuildError>) {
    if let Ok(table) = built {
        let written = bytes::to_bytes(&table);
        let read = bytes::from_bytes(&written);
        assert!(read.as_ref().is_ok_and(|read| *read == table), "{read:?}");
        for piece in &table.pieces {
            for address in [piece.start(), piece.end() - 1] {
                assert!(table.rules.contains(&table.lookup(address)));
            }
        }
    }
}

struct FrameBytes {
    bytes: Vec<u8>,
    address: u64,
    debug: bool,
    terminated: bool,
}

/// `.eh_frame` by section or by segment, else `.debug_frame`.
fn frame_section_bytes<R: ReadAt + ?Sized>(
    elf: &Elf,
    source: &R,
    limits: &Limits,
    with_debug: bool,
) -> Result<Option<FrameBytes>, BuildError> {
    let by_section = elf.section(".eh_frame").filter(|section| section.size > 4);
    if let Some(section) = by_section {
        let bytes = elf.read_section(source, section, limits)?;
        let address = section.address;
        return Ok(Some(FrameBytes { bytes, address, debug: false, terminated: false }));
    }
    if elf.sections.is_empty()
        && let Some(found) = by_segment(elf, source, limits)
    {
        return Ok(Some(found));
    }
    let Some(section) = elf.section(".debug_frame").filter(|_| with_debug) else { return Ok(None) };
    let bytes = elf.read_section(source, section, limits)?;
    Ok(Some(FrameBytes { bytes, address: 0, debug: true, terminated: false }))
}

/// Files without section headers still name `.eh_frame_hdr`, which points to `.eh_frame`.
fn by_segment<R: ReadAt + ?Sized>(elf: &Elf, source: &R, limits: &Limits) -> Option<FrameBytes> {
    const PCREL_SDATA4: u8 = 0x1b;
    let header = elf.frame_header?;
    let bytes = elf.read_address(source, header, 8)?;
    let [1, PCREL_SDATA4, _, _, a, b, c, d] = *bytes.as_slice() else { return None };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    let address = header.wrapping_add(4).wrapping_add_signed(distance);
    let load = elf
        .loads
        .iter()
        .find(|load| address >= load.address && address - load.address < load.file_size)?;
    let within = address - load.address;
    let size = (load.file_size - within).min(limits.max_section) as usize;
    let bytes = read_exact(source, load.offset.checked_add(within)?, size).ok()?;
    Some(FrameBytes { bytes, address, debug: false, terminated: true })
}

/// Drops entries that describe no code of the file, and shortens those that reach beyond it.
fn keep_code(elf: &Elf, entries: &mut Vec<Entry>) {
    let mut last = 0..0;
    entries.retain_mut(|entry| {
        if entry.size == 0 {
            return false;
        }
        if !last.contains(&entry.start) {
            let Some(load) = elf.code_at(entry.start) else { return false };
            last = load.address..load.address.saturating_add(load.file_size);
        }
        let room = last.end - entry.start;
        entry.size = entry.size.min(u32::try_from(room).unwrap_or(u32::MAX));
        true
    });
}

/// Executable sections that lie in executable segments, or those segments themselves.
fn code_regions(elf: &Elf) -> Vec<Range<u64>> {
    let mut regions: Vec<Range<u64>> = elf
        .sections
        .iter()
        .filter(|section| section.is_code())
        .filter_map(|section| {
            let load = elf.code_at(section.address)?;
            let end = section.end().min(load.address.saturating_add(load.file_size));
            Some(section.address..end)
        })
        .collect();
    if elf.sections.is_empty() {
        let loads = elf.loads.iter().filter(|load| load.executable);
        regions.extend(loads.map(|load| load.address..load.address.saturating_add(load.file_size)));
    }
    regions.sort_by_key(|region| region.start);
    // Overlapping ones exist in crafted files only.
    let mut end = 0;
    regions.retain_mut(|region| {
        region.start = region.start.max(end);
        let keep = region.start < region.end;
        if keep {
            end = region.end;
        }
        keep
    });
    regions
}

/// The rule behind the last instruction of an entry.
fn rule_at_end(section: &FrameSection<'_>, entry: &Entry, rules: &mut Rules) -> u16 {
    let Some(common) = section.common.get(entry.common as usize) else { return rules::NONE };
    let program = Program { section, common, start: entry.start };
    let mut state = common.initial;
    let from = entry.program as usize;
    let to = from.saturating_add(entry.program_size as usize);
    program.run(from, to, u64::from(entry.size), &mut Vec::new(), &mut state, |_, _| {});
    rule_of(&state, common, section.bytes, rules)
}

/// Writes rows in address order, from entries and fills.
struct RowWriter<'s, 'a> {
    section: &'s FrameSection<'a>,
    rules: &'s mut Rules,
    pieces: PieceBuilder,
    work: u64,
    remembered: Vec<State>,
    unsupported: u64,
    /// See [`arch::context_starts`].
    context_starts: Vec<u64>,
}

impl RowWriter<'_, '_> {
    fn write(&mut self, entries: &[Entry], covered: &Coverage) {
        let mut fills = covered.fills.iter().peekable();
        let mut end = None;
        for entry in entries {
            while let Some(fill) = fills.next_if(|fill| fill.start < entry.start) {
                self.gap(end, fill.start);
                self.fill(fill, covered);
                end = Some(fill.end);
            }
            self.gap(end, entry.start);
            if self.context_starts.binary_search(&entry.start).is_ok() {
                let outermost = self.rules.packed(Packed::END);
                self.pieces.rule_from(entry.start.saturating_sub(1), outermost);
            } else {
                self.entry(entry);
            }
            end = Some(entry.end());
        }
        for fill in fills {
            self.gap(end, fill.start);
            self.fill(fill, covered);
            end = Some(fill.end);
        }
        self.gap(end, u64::MAX);
    }

    fn gap(&mut self, end: Option<u64>, next: u64) {
        if let Some(end) = end
            && !coverage::is_padding(end, next)
        {
            self.pieces.rule_from(end, rules::NONE);
        }
    }

    fn fill(&mut self, fill: &coverage::Fill, covered: &Coverage) {
        for (pc, rule) in covered.rows.get(fill.rows.clone()).unwrap_or_default() {
            self.pieces.rule_from((*pc).max(fill.start), *rule);
        }
    }

    fn entry(&mut self, entry: &Entry) {
        let Some(common) = self.section.common.get(entry.common as usize) else { return };
        let cost = u64::from(entry.program_size) + 1;
        if cost > self.work {
            self.work = 0;
            self.pieces.rule_from(entry.start, rules::UNSUPPORTED);
            return;
        }
        self.work -= cost;
        let program = Program { section: self.section, common, start: entry.start };
        let mut state = common.initial;
        let mut last = None;
        let from = entry.program as usize;
        let to = from.saturating_add(entry.program_size as usize);
        let size = u64::from(entry.size);
        let Self { rules, pieces, remembered, unsupported, section, .. } = self;
        let outcome = program.run(from, to, size, remembered, &mut state, |distance, state| {
            if last.is_some_and(|last| last == *state) {
                return;
            }
            let Corrected { state, earlier } = arch::corrected(last.as_ref(), state, distance);
            if let Some((from, state)) = earlier {
                let rule = rule_of(&state, common, section.bytes, rules);
                pieces.rule_from(entry.start.saturating_add(from), rule);
            }
            last = Some(state);
            let rule = rule_of(&state, common, section.bytes, rules);
            *unsupported += u64::from(rule == rules::UNSUPPORTED);
            pieces.rule_from(entry.start.saturating_add(distance), rule);
        });
        if let Outcome::Malformed(distance) = outcome {
            self.unsupported += 1;
            self.pieces.rule_from(entry.start.saturating_add(distance), rules::UNSUPPORTED);
        }
    }
}
