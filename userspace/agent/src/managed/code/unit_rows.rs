//! The table of one unit of generated code, for the kernel.

use strata_abi::rule::Rule;
use strata_abi::tables::{self, PAGE_SHIFT};
use strata_unwind::{Piece, UnwindTable};

use super::{CodeMap, NONE, UNANNOUNCED, UNIT};

/// Rows of one unit, in ascending order of address.
pub(super) struct UnitRows<'a> {
    map: &'a CodeMap,
    unit: u64,
    rules: Vec<Rule>,
    /// By number in the map; [`UnitRows::ABSENT`]: not in this unit so far.
    numbers: Vec<u16>,
    rows: Vec<(u64, u16)>,
    any: bool,
}

impl<'a> UnitRows<'a> {
    const ABSENT: u16 = u16::MAX;

    pub(super) fn new(map: &'a CodeMap, unit: u64) -> Self {
        let mut rows = Self {
            map,
            unit,
            rules: Vec::new(),
            numbers: vec![Self::ABSENT; map.rules.len()],
            rows: Vec::new(),
            any: false,
        };
        rows.local(NONE);
        let unannounced = rows.local(UNANNOUNCED);
        rows.rows.push((unit, unannounced));
        rows
    }

    fn local(&mut self, number: u16) -> u16 {
        let (Some(local), Some(rule)) =
            (self.numbers.get_mut(usize::from(number)), self.map.rules.get(usize::from(number)))
        else {
            return 0;
        };
        if *local == Self::ABSENT {
            *local = self.rules.len() as u16;
            self.rules.push(*rule);
        }
        *local
    }

    pub(super) fn rule_from(&mut self, pc: u64, rule: u16) {
        if pc >= self.unit + UNIT {
            return;
        }
        self.any |= rule != UNANNOUNCED;
        let number = self.local(rule);
        let pc = pc.max(self.unit);
        match self.rows.last_mut() {
            // The previous row covers nothing, or is equal.
            Some(last) if last.0 >= pc => last.1 = number,
            Some(last) if last.1 == number => {}
            _ => self.rows.push((pc, number)),
        }
    }

    pub(super) fn finish(self) -> Option<UnwindTable> {
        if !self.any {
            return None;
        }
        let pages = (UNIT >> PAGE_SHIFT) as u32;
        let mut index = vec![0u32; pages as usize + 1];
        let mut row = 0usize;
        for (page, entry) in index.iter_mut().enumerate() {
            let start = self.unit + ((page as u64) << PAGE_SHIFT);
            while self.rows.get(row).is_some_and(|(pc, _)| *pc < start) {
                row += 1;
            }
            *entry = row as u32;
        }
        let rows = self.rows.iter().map(|(pc, rule)| tables::row(*pc, *rule)).collect();
        let first_page = self.unit >> PAGE_SHIFT;
        Some(UnwindTable {
            rules: self.rules,
            pieces: vec![Piece { first_page, pages, index: index.into(), rows }],
            ..UnwindTable::default()
        })
    }
}
