//! Copies files' tables into kernel memory, and frees it.
//!
//! Invariant: a table is loaded as a whole or not at all. It is freed only when no published process uses
//! it any more.

use std::time::Instant;

use strata_abi::rule::Rule;
use strata_abi::tables::row_rule;
use strata_unwind::UnwindTable;

use super::Store;
use crate::kernel::loader::Programs;
use crate::tables::extents::{LoadedPiece, Table};
use crate::tables::rule_set::NEW_RULES_PER_OWNER;

const WORDS_PER_RULE: usize = size_of::<Rule>() / 4;

impl Store {
    /// Copies a file's table into kernel memory. `None` when there is no room for it.
    pub fn load(&mut self, programs: &mut Programs, table: &UnwindTable) -> Option<Table> {
        self.load_within(programs, table, &mut NEW_RULES_PER_OWNER.clone())
    }

    /// As [`Self::load`]; at most `quota` of its rules may be new.
    pub fn load_within(
        &mut self,
        programs: &mut Programs,
        table: &UnwindTable,
        quota: &mut usize,
    ) -> Option<Table> {
        if programs.rules().is_none() {
            self.refused += 1;
            return None;
        }
        let mut ranges = Vec::with_capacity(table.pieces.len());
        for piece in &table.pieces {
            let words = u32::try_from(piece.index.len() + piece.rows.len()).ok();
            match words.and_then(|words| self.segments.allocate(programs, words)) {
                Some(range) => ranges.push(range),
                None => {
                    let now = Instant::now();
                    ranges.into_iter().for_each(|range| self.segments.free(range, now));
                    self.refused += 1;
                    return None;
                }
            }
        }
        let rule_memory = programs.rules()?;
        let numbers = self.rules.load(&table.rules, quota, |number, rule| {
            let words = rule_words(&rule);
            rule_memory.write(usize::from(number) * WORDS_PER_RULE, words.into_iter());
        });
        let mut pieces = Vec::with_capacity(ranges.len());
        for (piece, range) in table.pieces.iter().zip(ranges) {
            let memory = self.segments.memory(range.segment)?;
            let offset = range.offset as usize;
            memory.write(offset, piece.index.iter().copied());
            let rows = piece.rows.iter().map(|&row| {
                let number = numbers.get(usize::from(row_rule(row))).copied().unwrap_or_default();
                row & 0xffff | u32::from(number) << 16
            });
            memory.write(offset + piece.index.len(), rows);
            pieces.push(LoadedPiece {
                first_page: piece.first_page,
                pages: piece.pages,
                row_count: piece.rows.len() as u32,
                range,
            });
        }
        Some(Table { pieces, numbers, loads: table.loads.clone() })
    }

    /// Frees a table's memory. Only when no published process uses it any more. Returns how many
    /// rule numbers were its own.
    pub fn unload(&mut self, table: Table) -> usize {
        let now = Instant::now();
        let freed = self.rules.unload(&table.numbers, now);
        for piece in table.pieces {
            self.segments.free(piece.range, now);
        }
        freed
    }
}

fn rule_words(rule: &Rule) -> [u32; WORDS_PER_RULE] {
    [
        rule.packed.0,
        u32::from_ne_bytes([rule.base, rule.flags, rule.ra_register, rule.index_register]),
        rule.cfa_offset as u32,
        rule.deref_add as u32,
        rule.fp_offset as u32,
        rule.extra_offset as u32,
        rule.ra_offset as u32,
        rule.second,
    ]
}
