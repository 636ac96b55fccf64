//! The code that a runtime has generated in one process: who is where, and how it is unwound.
//!
//! Methods come and go while they are sampled, so addresses have *eras*: a new one begins when
//! code gives way to other code, and an address is looked up in the era of its sample. For the
//! kernel the code is cut into units of 256 KiB; a unit is built anew when code in it has changed.
//!
//! Invariant: spans do not overlap, and what a process claims is bounded by [`MAX_SPANS`],
//! [`MAX_RETIRED`] and [`NEW_RULES_PER_OWNER`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use strata_abi::rule::{Kind, Packed, Rule};
use strata_abi::tables::{self, PAGE_SHIFT};
use strata_unwind::{Piece, UnwindTable};

use crate::tables::rule_set::NEW_RULES_PER_OWNER;

const UNIT_SHIFT: u32 = 18;
pub const UNIT: u64 = 1 << UNIT_SHIFT;
/// Methods' code and stubs of one process at most.
pub const MAX_SPANS: usize = 400_000;
/// Code that is gone and remembered for the names of its samples.
const MAX_RETIRED: usize = 100_000;
/// One method's code at most; more is no method.
const MAX_SIZE: u32 = 16 << 20;
/// A stub is a few instructions; this much around an address nobody claims counts as one.
const STUB: u64 = 16;

/// Position of a method in its process's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MethodIndex(pub u32);

/// A method's code, or a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    size: u32,
    /// Position in [`CodeMap::row_lists`].
    rows: u32,
    /// `None`: code that the runtime does not know as a method's.
    method: Option<MethodIndex>,
    born: u32,
}

#[derive(Clone, Copy, Debug)]
struct Retired {
    start: u64,
    died: u32,
    span: Span,
}

type Rows = Box<[(u32, u16)]>;

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub method: MethodIndex,
    pub start: u64,
}

pub struct CodeMap {
    spans: BTreeMap<u64, Span>,
    retired: Vec<Retired>,
    era: u32,
    dirty: BTreeSet<u64>,
    rules: Vec<Rule>,
    numbers: HashMap<Rule, u16>,
    row_lists: Vec<Rows>,
    row_list_numbers: HashMap<Rows, u32>,
    /// Code left out because a bound was reached, or because it makes no sense.
    pub refused: u64,
}

const NONE: u16 = 0;
const UNANNOUNCED: u16 = 1;
const UNSUPPORTED: u16 = 2;

impl Default for CodeMap {
    fn default() -> Self {
        let fixed = [Packed::NONE, Packed::UNANNOUNCED, Packed::UNSUPPORTED].map(Rule::simple);
        Self {
            spans: BTreeMap::new(),
            retired: Vec::new(),
            era: 0,
            dirty: BTreeSet::new(),
            numbers: fixed.iter().enumerate().map(|(n, rule)| (*rule, n as u16)).collect(),
            rules: fixed.to_vec(),
            row_lists: Vec::new(),
            row_list_numbers: HashMap::new(),
            refused: 0,
        }
    }
}

impl CodeMap {
    /// Code of a method, with its rules by offset. Replaces whatever was there.
    pub fn insert(&mut self, start: u64, size: u32, rules: &[(u32, Rule)], method: MethodIndex) {
        self.put(start, size, rules, Some(method));
    }

    /// Nobody claims the code at this address: a stub. It has no frame of its own.
    pub fn insert_stub(&mut self, address: u64) {
        let start = address & !(STUB - 1);
        let end = start + STUB;
        if self.span_at(start).is_some() || self.spans.range(start..end).next().is_some() {
            return;
        }
        let Some(leaf) = Packed::frame(Kind::Sp, 8, 0, 0) else { return };
        self.put(start, STUB as u32, &[(0, Rule::simple(leaf))], None);
    }

    fn put(&mut self, start: u64, size: u32, rules: &[(u32, Rule)], method: Option<MethodIndex>) {
        let end = start.saturating_add(u64::from(size));
        if size == 0 || size > MAX_SIZE || end >= 1 << 47 || self.spans.len() >= MAX_SPANS {
            self.refused += 1;
            return;
        }
        let rows = self.row_list(rules);
        let same = self
            .spans
            .get(&start)
            .is_some_and(|span| (span.size, span.rows, span.method) == (size, rows, method));
        if same {
            return;
        }
        self.clear(start, end);
        self.spans.insert(start, Span { size, rows, method, born: self.era });
        self.touch(start, end);
    }

    /// The code that starts here is unwound by these rules, as is known by now.
    pub fn refine(&mut self, start: u64, rules: &[(u32, Rule)]) {
        let rows = self.row_list(rules);
        if let Some(span) = self.spans.get_mut(&start)
            && span.rows != rows
        {
            span.rows = rows;
            let end = start + u64::from(span.size);
            // What was cached for the old rules must not be used any more.
            self.era = self.era.wrapping_add(1);
            self.touch(start, end);
        }
    }

    /// The code that starts here is gone.
    pub fn remove(&mut self, start: u64) {
        if let Some(span) = self.spans.get(&start) {
            let end = start + u64::from(span.size);
            self.clear(start, end);
            self.touch(start, end);
        }
    }

    /// Takes out everything that overlaps a range.
    fn clear(&mut self, start: u64, end: u64) {
        let before = self.spans.range(..start).next_back();
        let first = before
            .filter(|(at, span)| **at + u64::from(span.size) > start)
            .map_or(start, |(at, _)| *at);
        let gone: Vec<u64> = self.spans.range(first..end).map(|(at, _)| *at).collect();
        if gone.is_empty() {
            return;
        }
        self.era = self.era.wrapping_add(1);
        for at in gone {
            if let Some(span) = self.spans.remove(&at) {
                self.touch(at, at + u64::from(span.size));
                if self.retired.len() < MAX_RETIRED && span.method.is_some() {
                    self.retired.push(Retired { start: at, died: self.era, span });
                }
            }
        }
    }

    fn touch(&mut self, start: u64, end: u64) {
        self.dirty.extend(start >> UNIT_SHIFT..=(end - 1) >> UNIT_SHIFT);
    }

    fn row_list(&mut self, rules: &[(u32, Rule)]) -> u32 {
        let rows: Rows = rules.iter().map(|(at, rule)| (*at, self.number(rule))).collect();
        if let Some(&known) = self.row_list_numbers.get(&rows) {
            return known;
        }
        let number = self.row_lists.len() as u32;
        self.row_lists.push(rows.clone());
        self.row_list_numbers.insert(rows, number);
        number
    }

    fn number(&mut self, rule: &Rule) -> u16 {
        if let Some(&known) = self.numbers.get(rule) {
            return known;
        }
        if self.rules.len() >= NEW_RULES_PER_OWNER {
            return UNSUPPORTED;
        }
        let number = self.rules.len() as u16;
        self.rules.push(*rule);
        self.numbers.insert(*rule, number);
        number
    }

    pub fn era(&self) -> u32 {
        self.era
    }

    fn span_at(&self, address: u64) -> Option<(u64, &Span)> {
        let (&start, span) = self.spans.range(..=address).next_back()?;
        (address - start < u64::from(span.size)).then_some((start, span))
    }

    /// Whether somebody is known to be at this address now.
    pub fn knows(&self, address: u64) -> bool {
        self.span_at(address).is_some()
    }

    /// Whether following the frame pointer leads from this code to its caller; `None` where nobody
    /// is known to be.
    pub fn keeps_frame_pointer(&self, address: u64) -> Option<bool> {
        let (start, span) = self.span_at(address)?;
        let rows = self.row_lists.get(span.rows as usize)?;
        let before = rows.iter().take_while(|(at, _)| start + u64::from(*at) <= address);
        let rule = self.rules.get(usize::from(before.last()?.1))?.packed;
        let is_frame = rule.kind() == Kind::Fp as u32 && rule.fp_below() == 16;
        Some(is_frame && rule.cfa_offset() == 16)
    }

    /// The method whose code was at an address in an era.
    pub fn method_at(&self, address: u64, era: u32) -> Option<Found> {
        let now = self.span_at(address);
        if let Some((start, span)) = now
            && span.born <= era
        {
            return span.method.map(|method| Found { method, start });
        }
        let then = self
            .retired
            .iter()
            .find(|old| {
                let inside = address.wrapping_sub(old.start) < u64::from(old.span.size);
                inside && old.span.born <= era && era < old.died
            })
            .and_then(|old| old.span.method.map(|method| Found { method, start: old.start }));
        // Nobody was known to be there: who came next was there already, and announced later.
        then.or_else(|| now.and_then(|(start, span)| Some(Found { method: span.method?, start })))
    }

    /// Units whose code has changed since they were last taken.
    pub fn take_dirty(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.dirty).into_iter().map(|unit| unit << UNIT_SHIFT).collect()
    }

    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The rows of the unit that starts at `unit`; `None` when there is no code in it.
    pub fn table_of(&self, unit: u64) -> Option<UnwindTable> {
        let mut rows = UnitRows::new(self, unit);
        let end = unit + UNIT;
        let before = self.spans.range(..unit).next_back();
        let into = before.filter(|(at, span)| **at + u64::from(span.size) > unit);
        for (&start, span) in into.into_iter().chain(self.spans.range(unit..end)) {
            let span_end = start + u64::from(span.size);
            for &(at, rule) in self.row_lists.get(span.rows as usize)?.iter() {
                rows.rule_from(start + u64::from(at.min(span.size)), rule);
            }
            rows.rule_from(span_end, UNANNOUNCED);
        }
        rows.finish()
    }
}

/// Rows of one unit, in ascending order of address.
struct UnitRows<'a> {
    map: &'a CodeMap,
    unit: u64,
    rules: Vec<Rule>,
    numbers: HashMap<u16, u16>,
    rows: Vec<(u64, u16)>,
    any: bool,
}

impl<'a> UnitRows<'a> {
    fn new(map: &'a CodeMap, unit: u64) -> Self {
        let mut rows = Self {
            map,
            unit,
            rules: Vec::new(),
            numbers: HashMap::new(),
            rows: Vec::new(),
            any: false,
        };
        rows.local(NONE);
        let unannounced = rows.local(UNANNOUNCED);
        rows.rows.push((unit, unannounced));
        rows
    }

    fn local(&mut self, number: u16) -> u16 {
        let rules = &mut self.rules;
        let map = self.map;
        *self.numbers.entry(number).or_insert_with(|| {
            let none = Rule::simple(Packed::NONE);
            rules.push(map.rules.get(usize::from(number)).copied().unwrap_or(none));
            (rules.len() - 1) as u16
        })
    }

    fn rule_from(&mut self, pc: u64, rule: u16) {
        if pc >= self.unit + UNIT {
            return;
        }
        self.any |= rule != UNANNOUNCED;
        let number = self.local(rule);
        let pc = pc.max(self.unit);
        match self.rows.last_mut() {
            // The row before holds for nothing, or says the same.
            Some(last) if last.0 >= pc => last.1 = number,
            Some(last) if last.1 == number => {}
            _ => self.rows.push((pc, number)),
        }
    }

    fn finish(self) -> Option<UnwindTable> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(cfa: u32) -> Rule {
        Rule::simple(Packed::frame(Kind::Sp, cfa, 0, 0).unwrap())
    }

    fn looked_up(map: &CodeMap, address: u64) -> Rule {
        map.table_of(address & !(UNIT - 1)).unwrap().lookup(address)
    }

    #[test]
    fn a_method_has_its_rules_and_what_is_around_it_is_unannounced() {
        let mut map = CodeMap::default();
        map.insert(0x10_0123, 0x40, &[(0, rule(8)), (4, rule(40))], MethodIndex(0));
        assert_eq!(looked_up(&map, 0x10_0123), rule(8));
        assert_eq!(looked_up(&map, 0x10_0126), rule(8));
        assert_eq!(looked_up(&map, 0x10_0127), rule(40));
        assert_eq!(looked_up(&map, 0x10_0162), rule(40));
        for outside in [0x10_0122, 0x10_0163, 0x10_0000, 0x13_ffff] {
            assert_eq!(looked_up(&map, outside).packed, Packed::UNANNOUNCED, "{outside:x}");
        }
        assert!(map.table_of(0x14_0000).is_none());
    }

    #[test]
    fn a_method_that_crosses_units_is_in_both() {
        let mut map = CodeMap::default();
        map.insert(0x13_fff0, 0x20, &[(0, rule(16))], MethodIndex(0));
        assert_eq!(map.take_dirty(), [0x10_0000, 0x14_0000]);
        assert_eq!(looked_up(&map, 0x13_ffff), rule(16));
        assert_eq!(looked_up(&map, 0x14_000f), rule(16));
        assert_eq!(looked_up(&map, 0x14_0010).packed, Packed::UNANNOUNCED);
    }

    #[test]
    fn neighbours_keep_their_own_rules() {
        let mut map = CodeMap::default();
        for method in 0..2000u64 {
            let start = 0x20_0000 + method * 0x60;
            map.insert(start, 0x60, &[(0, rule(8)), (1, rule(16))], MethodIndex(method as u32));
        }
        for method in 0..2000u64 {
            let start = 0x20_0000 + method * 0x60;
            assert_eq!(looked_up(&map, start), rule(8));
            assert_eq!(looked_up(&map, start + 1), rule(16));
            assert_eq!(looked_up(&map, start + 0x5f), rule(16));
        }
    }

    #[test]
    fn code_tells_whether_it_keeps_a_frame_pointer() {
        let framed = Rule::simple(Packed::frame(Kind::Fp, 16, 16, 0).unwrap());
        let mut map = CodeMap::default();
        map.insert(0x1000, 0x40, &[(0, rule(8)), (5, framed)], MethodIndex(0));
        assert_eq!(map.keeps_frame_pointer(0x1004), Some(false));
        assert_eq!(map.keeps_frame_pointer(0x1005), Some(true));
        assert_eq!(map.keeps_frame_pointer(0x1040), None);
    }

    #[test]
    fn an_address_is_looked_up_in_the_era_of_its_sample() {
        let mut map = CodeMap::default();
        map.insert(0x1000, 0x100, &[(0, rule(8))], MethodIndex(1));
        let before = map.era();
        map.insert(0x1080, 0x100, &[(0, rule(8))], MethodIndex(2));
        let after = map.era();
        assert_eq!(map.method_at(0x1090, before).map(|f| f.method), Some(MethodIndex(1)));
        assert_eq!(map.method_at(0x1090, after).map(|f| f.method), Some(MethodIndex(2)));
        assert_eq!(map.method_at(0x1010, after), None, "it was overwritten, so it is gone");
        map.insert(0x9000, 0x100, &[(0, rule(8))], MethodIndex(3));
        let late = map.method_at(0x9000, before).map(|f| f.method);
        assert_eq!(late, Some(MethodIndex(3)), "announced after it was sampled");
    }

    #[test]
    fn a_stub_gives_way_to_a_method_and_never_the_other_way_round() {
        let mut map = CodeMap::default();
        map.insert_stub(0x1008);
        assert!(map.knows(0x1000) && map.method_at(0x1008, map.era()).is_none());
        map.insert(0x1000, 0x100, &[(0, rule(8))], MethodIndex(0));
        map.insert_stub(0x1010);
        assert_eq!(map.method_at(0x1018, map.era()).map(|f| f.start), Some(0x1000));
    }

    #[test]
    fn what_a_process_claims_is_bounded() {
        let mut map = CodeMap::default();
        map.insert(0x1000, u32::MAX, &[], MethodIndex(0));
        map.insert(u64::MAX - 5, 100, &[], MethodIndex(0));
        map.insert(0x1000, 0, &[], MethodIndex(0));
        assert_eq!((map.refused, map.spans.len()), (3, 0));
        for n in 0..5000u32 {
            let rules = [(0, Rule { cfa_offset: n as i32, ..Rule::simple(Packed::extended(0)) })];
            map.insert(u64::from(n) * 64, 64, &rules, MethodIndex(n));
        }
        assert!(map.rules.len() <= NEW_RULES_PER_OWNER);
    }
}
