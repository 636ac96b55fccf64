//! The one entry point for fuzzers: does with a line table all that strata does with one.
//!
//! Invariant: returns for every input, in time that the size of the input bounds.

use crate::{ModuleData, PclnTab, find_header};

/// Reads `bytes` as a line table (searched for, if it does not start at the first byte) and walks all
/// of it. Returns how many functions, stack ranges and frames it saw, so that nothing is optimised away.
#[must_use]
pub fn line_table(bytes: &[u8]) -> (usize, usize, usize) {
    let offset = find_header(bytes).unwrap_or(0);
    let Some(table) =
        bytes.get(offset..).and_then(|table| PclnTab::parse(table, Some(0x40_1000)).ok())
    else {
        return (0, 0, 0);
    };
    let _ = ModuleData::find(bytes, 0x50_0000, 0x60_0000, table.header());
    let table = table.with_function_data(bytes);
    let (mut functions, mut ranges, mut frames) = (0_usize, 0_usize, 0_usize);
    for function in table.functions().take(4096) {
        functions = functions.saturating_add(1);
        let _ = (table.name(&function), table.is_top_frame(&function));
        ranges = ranges.saturating_add(table.sp_deltas(&function).take(4096).count());
        let middle = function.entry.midpoint(function.end);
        for pc in [function.entry, middle, function.end.saturating_sub(1)] {
            frames = frames.saturating_add(table.frames(pc).len());
        }
    }
    (functions, ranges, frames)
}
