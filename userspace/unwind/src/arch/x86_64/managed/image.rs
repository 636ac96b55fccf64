//! The unwind table of a PE file with code: from its exception directory.
//!
//! The directory lists functions (handlers are functions of their own) with the address of their
//! unwind information. What lies between them is padding, or a function without a frame: one that
//! has no entry must not move the stack pointer (Windows x64 ABI, "Unwind data for exception
//! handling").
//!
//! Invariant: the file is hostile. Functions that lie outside the file's code, overlap or make no
//! sense are left out and counted; work is bounded by the directory's size.

use super::frame::Frame;
use super::thunks::{self, Thunks};
use super::unwind_codes::{Block, UnwindCodes};
use crate::build::BuildError;
use crate::coverage;
use crate::limits::Limits;
use crate::managed::pe::Pe;
use crate::pieces::PieceBuilder;
use crate::rules::{self, Rules};
use crate::table::{Statistics, UnwindTable};
use strata_bytes::ReadAt;

const ENTRY: usize = 12;
/// The longest unwind information: 255 codes, and a chained function's entry.
const LARGEST_INFORMATION: u64 = 4 + 256 * 2 + 12;
/// Functions further apart than this have something else than code between them.
const FAR: u32 = 4096;

/// A function of the directory.
#[derive(Clone, Copy, Debug)]
struct Function {
    start: u32,
    end: u32,
    information: u32,
}

pub(crate) fn build<R: ReadAt + ?Sized>(
    source: &R,
    limits: &Limits,
) -> Result<UnwindTable, BuildError> {
    let pe = Pe::read(source)?;
    let mut statistics = Statistics::default();
    let functions = functions(&pe, source, limits, &mut statistics)?;
    let thunks = thunks::read(&pe, source, limits).unwrap_or_default();
    let (address, bytes) = information(&pe, source, &functions, limits)?;
    let mut rules = Rules::new(limits.max_rules);
    let leaf = rules.number(Frame::ENTRY.rule());
    let mut writer = Writer {
        rules,
        leaf,
        pieces: PieceBuilder::new(limits.max_rows),
        information: Block { bytes: &bytes, address },
        codes: UnwindCodes::new(limits.max_work),
        unsupported: 0,
    };
    writer.write(&functions, &thunks);
    statistics.unsupported_rows = writer.unsupported;
    statistics.refused_rows = writer.rules.refused;
    if writer.pieces.truncated || writer.codes.work == 0 {
        statistics.truncated = 1;
    }
    Ok(UnwindTable {
        rules: writer.rules.into_rules(),
        pieces: writer.pieces.finish(),
        loads: pe.sections,
        statistics,
    })
}

/// The functions of the directory that are code of the file, by address and apart.
fn functions<R: ReadAt + ?Sized>(
    pe: &Pe,
    source: &R,
    limits: &Limits,
    statistics: &mut Statistics,
) -> Result<Vec<Function>, BuildError> {
    let Some(directory) = pe.exceptions else { return Ok(Vec::new()) };
    let size = u64::from(directory.size);
    if size > limits.max_section {
        return Err(BuildError::TooLarge { size, limit: limits.max_section });
    }
    let bytes = pe.read_address(source, directory.rva, size).ok_or(BuildError::Cut)?;
    let (entries, _) = bytes.as_chunks::<ENTRY>();
    if entries.len() > limits.max_entries as usize {
        statistics.truncated = 1;
    }
    let mut code = 0..0;
    let mut functions: Vec<Function> = entries
        .iter()
        .take(limits.max_entries as usize)
        .filter_map(|entry| {
            let [start, end, information] = words(entry);
            if !code.contains(&u64::from(start)) {
                let section = pe.section_at(start).filter(|section| section.executable)?;
                code = section.address..section.address + section.file_size;
            }
            let end = u32::try_from(u64::from(end).min(code.end)).unwrap_or(u32::MAX);
            (start < end).then_some(Function { start, end, information })
        })
        .collect();
    let found = entries.len().min(limits.max_entries as usize);
    if !functions.is_sorted_by_key(|function| function.start) {
        functions.sort_by_key(|function| function.start);
    }
    functions.dedup_by_key(|function| function.start);
    let mut next = u32::MAX;
    for function in functions.iter_mut().rev() {
        function.end = function.end.min(next);
        next = function.start;
    }
    statistics.entries = functions.len() as u64;
    statistics.skipped_entries = (found - functions.len()) as u64;
    Ok(functions)
}

fn words(entry: &[u8; ENTRY]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *entry;
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
        u32::from_le_bytes([i, j, k, l]),
    ]
}

/// The bytes that hold all functions' unwind information, and their address. Compilers put them
/// into one section.
fn information<R: ReadAt + ?Sized>(
    pe: &Pe,
    source: &R,
    functions: &[Function],
    limits: &Limits,
) -> Result<(u32, Vec<u8>), BuildError> {
    let addresses = functions.iter().map(|function| function.information);
    let (Some(first), Some(last)) = (addresses.clone().min(), addresses.max()) else {
        return Ok((0, Vec::new()));
    };
    let size = u64::from(last - first) + LARGEST_INFORMATION;
    if size > limits.max_section {
        return Err(BuildError::TooLarge { size, limit: limits.max_section });
    }
    Ok((first, pe.read_address(source, first, size).unwrap_or_default()))
}

struct Writer<'a> {
    rules: Rules,
    /// The rule of functions without an entry.
    leaf: u16,
    pieces: PieceBuilder,
    information: Block<'a>,
    codes: UnwindCodes,
    unsupported: u64,
}

impl Writer<'_> {
    /// Writes rows in address order.
    fn write(&mut self, functions: &[Function], thunks: &Thunks) {
        let mut end = None;
        let mut stubs = Some(thunks).filter(|thunks| !thunks.rules.is_empty());
        for function in functions {
            if let Some(thunks) = stubs.take_if(|thunks| thunks.start <= function.start) {
                self.thunks(thunks, &mut end);
            }
            self.gap(end, Some(function.start));
            self.function(function);
            end = Some(function.end);
            if self.pieces.truncated {
                return;
            }
        }
        if let Some(thunks) = stubs {
            self.thunks(thunks, &mut end);
        }
        self.gap(end, None);
    }

    fn gap(&mut self, end: Option<u32>, next: Option<u32>) {
        let Some(end) = end else { return };
        let rule = match next {
            Some(next) if coverage::is_padding(end.into(), next.into()) => return,
            Some(next) if next - end <= FAR => self.leaf,
            _ => rules::NONE,
        };
        self.pieces.rule_from(end.into(), rule);
    }

    fn thunks(&mut self, thunks: &Thunks, end: &mut Option<u32>) {
        self.gap(*end, Some(thunks.start).filter(|start| end.is_none_or(|end| end <= *start)));
        for (address, rule) in &thunks.rules {
            let rule = self.rules.packed(*rule);
            self.pieces.rule_from((*address).into(), rule);
        }
        *end = Some(thunks.end);
    }

    fn function(&mut self, function: &Function) {
        let Self { rules, pieces, information, codes, unsupported, .. } = self;
        let size = function.end - function.start;
        let start = u64::from(function.start);
        match codes.frames(*information, function.information) {
            Some(frames) => {
                for (offset, frame) in frames.iter().take_while(|(offset, _)| *offset < size) {
                    pieces.rule_from(start + u64::from(*offset), rules.number(frame.rule()));
                }
            }
            None => {
                *unsupported += 1;
                pieces.rule_from(start, rules::UNSUPPORTED);
            }
        }
    }
}
