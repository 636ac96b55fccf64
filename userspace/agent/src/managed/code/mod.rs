//! The code that a runtime has generated in one process: which method lies where, and how it is
//! unwound.
//!
//! - `eras`: when code was what it was
//! - `row_lists`: the rules of methods, equal lists once
//! - `unit_rows`: the table of one unit, for the kernel
//!
//! Methods come and go while they are sampled, so the code is versioned by *era*: a new era begins
//! when code is replaced by other code, and an address is looked up in the era of its sample, which
//! follows from the sample's time and those of the records ([`CodeMap::era_of_sample`]). While
//! records are read that were written long before, code comes and goes that no sample at that time is
//! of: such samples have an era before all of it ([`CodeMap::hold_era`]). For
//! the kernel the code is divided into units of 256 KiB; a unit is rebuilt when code in it has
//! changed.
//!
//! Invariant: spans do not overlap, and what a process claims is bounded by [`MAX_SPANS`],
//! [`MAX_UNITS`], [`MAX_ROWS`], [`MAX_RETIRED`] and [`NEW_RULES_PER_OWNER`]. What all of it takes
//! is counted ([`CodeMap::bytes`]), and every search is by address.

mod eras;
mod row_lists;
mod unit_rows;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use strata_abi::rule::{Kind, Packed, Rule};
use strata_unwind::UnwindTable;

use self::eras::Eras;
use self::row_lists::{ListNumber, Row, RowLists};
use self::unit_rows::UnitRows;
use crate::hash::HashMap;
use crate::tables::rule_set::NEW_RULES_PER_OWNER;

const UNIT_SHIFT: u32 = 18;
pub const UNIT: u64 = 1 << UNIT_SHIFT;
/// The most spans (methods' code and stubs) of one process.
pub const MAX_SPANS: usize = 400_000;
/// Units that the code of one process may lie in: 2 GiB of address space, each with a table.
const MAX_UNITS: usize = 8192;
/// Units rebuilt in one turn; the others follow.
pub const UNITS_AT_ONCE: usize = 64;
/// The most rows of one method's code. Code beyond them is not unwound.
const MAX_ROWS: usize = 1024;
/// Retired code kept to unwind and symbolize its samples, counted in pages.
const MAX_RETIRED: usize = 400_000;
/// The same in one page.
const MAX_RETIRED_IN_PAGE: usize = 2048;
const PAGE: u32 = 12;
/// The largest code of one method; more is invalid.
const MAX_SIZE: u32 = 16 << 20;
/// A stub is a few instructions; this much around an address without a known owner counts as one.
const STUB: u64 = 16;
/// A method may run before the record of it is written: on another thread than the one that has compiled
/// it, which reports it when it is scheduled again. In nanoseconds.
pub const WRITTEN_LATE: u64 = 300_000_000;

/// Position of a method in its process's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MethodIndex(pub u32);

/// A method's code, or a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    size: u32,
    /// Position in [`CodeMap::row_lists`].
    rows: ListNumber,
    owner: SpanOwner,
    born: u32,
}

/// The method that a span is code of, in four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SpanOwner(u32);

impl Span {
    /// `None`: code that belongs to no method.
    fn method(&self) -> Option<MethodIndex> {
        (self.owner.0 != u32::MAX).then_some(MethodIndex(self.owner.0))
    }
}

impl From<Option<MethodIndex>> for SpanOwner {
    fn from(method: Option<MethodIndex>) -> Self {
        Self(method.map_or(u32::MAX, |method| method.0))
    }
}

#[derive(Clone, Copy, Debug)]
struct Retired {
    start: u64,
    /// No sample of this era or a later one is of it.
    died: u32,
    span: Span,
    /// The era that began with its end: a later one than `died` where that was held.
    ended: u32,
    /// Its runtime unloaded it; else it was taken for gone.
    is_unloaded: bool,
}

impl Retired {
    fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < u64::from(self.span.size)
    }
}

/// The lookup of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub method: MethodIndex,
    pub start: u64,
}

pub struct CodeMap {
    spans: BTreeMap<u64, Span>,
    /// By page, the oldest first.
    retired: HashMap<u64, Vec<Retired>>,
    retired_count: usize,
    pub eras: Eras,
    /// How many spans lie in a unit.
    units: HashMap<u64, u32>,
    dirty: BTreeSet<u64>,
    /// Not all of them could be taken at the last turn.
    is_behind: bool,
    rules: Vec<Rule>,
    numbers: HashMap<Rule, u16>,
    row_lists: RowLists,
    /// Reused buffer of [`CodeMap::row_list`].
    rows: Vec<Row>,
    /// By method: spans that are its code, retired ones included.
    uses: Vec<u32>,
    /// Methods that had no span some time since [`CodeMap::take_unused`].
    unused: Vec<MethodIndex>,
    /// Code left out because a bound was reached, or because it is invalid.
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
            retired: HashMap::default(),
            retired_count: 0,
            eras: Eras::default(),
            units: HashMap::default(),
            dirty: BTreeSet::new(),
            is_behind: false,
            numbers: fixed.iter().enumerate().map(|(n, rule)| (*rule, n as u16)).collect(),
            rules: fixed.to_vec(),
            row_lists: RowLists::default(),
            rows: Vec::new(),
            uses: Vec::new(),
            unused: Vec::new(),
            refused: 0,
        }
    }
}

impl CodeMap {
    /// Adds the code of a method, with its rules by offset. Replaces overlapping code.
    pub fn insert(&mut self, start: u64, size: u32, rules: &[(u32, Rule)], method: MethodIndex) {
        self.put(start, size, rules, Some(method));
    }

    /// No method owns the code at this address: a stub. It has no frame of its own.
    pub fn insert_stub(&mut self, address: u64, is_caller: bool) {
        let start = address & !(STUB - 1);
        let Some(end) = start.checked_add(STUB) else { return };
        if self.span_at(start).is_some() || self.spans.range(start..end).next().is_some() {
            return;
        }
        // The stack is aligned to 16 bytes at a call: code that has called something keeps more
        // than its return address there. It may be a method that was unloaded before its record
        // was read, and compiled methods that call keep a frame pointer.
        let rule = if is_caller {
            Packed::frame(Kind::Fp, 16, 16, 0)
        } else {
            Packed::frame(Kind::Sp, 8, 0, 0)
        };
        let Some(rule) = rule else { return };
        self.put(start, STUB as u32, &[(0, Rule::simple(rule))], None);
    }

    /// Whether code of the runtime is known nearby: it reserves memory in blocks of this size.
    pub fn is_beside_known(&self, address: u64) -> bool {
        const BLOCK: u64 = 64 << 10;
        let start = address & !(BLOCK - 1);
        let Some(end) = start.checked_add(BLOCK) else { return false };
        self.spans.range(start..end).any(|(_, span)| span.method().is_some())
    }

    /// A stub that is known in whole.
    pub fn insert_known_stub(&mut self, start: u64, size: u32, rules: &[(u32, Rule)]) {
        let end = start.saturating_add(u64::from(size));
        let before = self.span_at(start).map(|(_, span)| span);
        let within = self.spans.range(start..end).map(|(_, span)| span);
        if before.into_iter().chain(within).all(|span| span.method().is_none()) {
            self.put(start, size, rules, None);
        }
    }

    fn put(&mut self, start: u64, size: u32, rules: &[(u32, Rule)], method: Option<MethodIndex>) {
        let end = start.saturating_add(u64::from(size));
        if size == 0 || size > MAX_SIZE || end >= 1 << 47 || self.spans.len() >= MAX_SPANS {
            self.refused += 1;
            return;
        }
        // Units are searched only where they may be too many.
        let is_new = |unit: &u64| !self.units.contains_key(unit);
        if self.units.len() + units_of(start, end).count() > MAX_UNITS
            && self.units.len() + units_of(start, end).filter(is_new).count() > MAX_UNITS
        {
            self.refused += 1;
            return;
        }
        let rows = self.row_list(rules);
        if self.has_code_within(start, end) {
            let same = self
                .spans
                .get(&start)
                .is_some_and(|span| (span.size, span.rows, span.method()) == (size, rows, method));
            if same {
                self.row_lists.release(rows);
                return;
            }
            self.clear(start, end, false);
        }
        let mut born = self.eras.of_changes();
        if method.is_some() {
            // Another thread than the one that reports it may have run it already.
            let earliest = self.eras.at(self.eras.time().saturating_sub(WRITTEN_LATE));
            if earliest < born && !self.had_code_within(start, end) {
                born = earliest;
            }
        }
        self.spans.insert(start, Span { size, rows, owner: method.into(), born });
        self.use_method(method);
        for unit in units_of(start, end) {
            *self.units.entry(unit).or_default() += 1;
        }
        self.touch(start, end);
    }

    /// Whether code that has ended overlaps a range, as far as that is remembered.
    fn had_code_within(&self, start: u64, end: u64) -> bool {
        let overlaps = |retired: &Retired| {
            retired.start < end && retired.start + u64::from(retired.span.size) > start
        };
        let pages = start >> PAGE..=(end - 1) >> PAGE;
        let mut in_pages = pages.filter_map(|page| self.retired.get(&page));
        in_pages.any(|in_page| in_page.iter().rev().any(overlaps))
    }

    /// Whether a span overlaps a range. Spans do not overlap each other, so the last one that starts
    /// before its end reaches furthest.
    fn has_code_within(&self, start: u64, end: u64) -> bool {
        let last = self.spans.range(..end).next_back();
        last.is_some_and(|(at, span)| at + u64::from(span.size) > start)
    }

    /// Replaces the rules of the code that starts here.
    pub fn refine(&mut self, start: u64, rules: &[(u32, Rule)]) {
        let rows = self.row_list(rules);
        if let Some(span) = self.spans.get_mut(&start)
            && span.rows != rows
        {
            let before = std::mem::replace(&mut span.rows, rows);
            let end = start + u64::from(span.size);
            self.eras.renew_rules();
            self.touch(start, end);
            self.row_lists.release(before);
        } else {
            self.row_lists.release(rows);
        }
    }

    fn use_method(&mut self, method: Option<MethodIndex>) {
        let Some(MethodIndex(index)) = method else { return };
        let index = index as usize;
        if self.uses.len() <= index {
            self.uses.resize(index + 1, 0);
        }
        if let Some(uses) = self.uses.get_mut(index) {
            *uses += 1;
        }
    }

    /// A span is kept no longer, live or retired.
    fn release(&mut self, span: &Span) {
        self.row_lists.release(span.rows);
        let Some(method) = span.method() else { return };
        if let Some(uses) = self.uses.get_mut(method.0 as usize) {
            *uses -= 1;
            if *uses == 0 {
                self.unused.push(method);
            }
        }
    }

    /// Whether a method has code here, or had some that is kept.
    pub fn has_code_of(&self, method: MethodIndex) -> bool {
        self.uses.get(method.0 as usize).is_some_and(|uses| *uses > 0)
    }

    /// Methods without code: all that is known of them may be forgotten.
    pub fn take_unused(&mut self) -> Vec<MethodIndex> {
        let mut unused = std::mem::take(&mut self.unused);
        unused.retain(|method| !self.has_code_of(*method));
        unused
    }

    /// Removes the code that starts here, which its runtime has unloaded.
    pub fn remove(&mut self, start: u64) {
        self.remove_from(start, true);
    }

    /// Removes the code that starts here: it ended at some time before now.
    pub fn remove_ended(&mut self, start: u64) {
        self.remove_from(start, false);
    }

    fn remove_from(&mut self, start: u64, is_unloaded: bool) {
        if let Some(span) = self.spans.get(&start) {
            let end = start + u64::from(span.size);
            self.clear(start, end, is_unloaded);
            self.touch(start, end);
        }
    }

    /// Removes everything that overlaps a range.
    fn clear(&mut self, start: u64, end: u64, is_unloaded: bool) {
        let before = self.spans.range(..start).next_back();
        let first = before
            .filter(|(at, span)| **at + u64::from(span.size) > start)
            .map_or(start, |(at, _)| *at);
        let gone: Vec<u64> = self.spans.range(first..end).map(|(at, _)| *at).collect();
        if gone.is_empty() {
            return;
        }
        if gone.iter().any(|at| self.spans.get(at).is_some_and(|span| span.method().is_some())) {
            self.eras.begin();
        } else {
            self.eras.renew_rules();
        }
        for at in gone {
            if let Some(span) = self.spans.remove(&at) {
                let end = at + u64::from(span.size);
                self.touch(at, end);
                for unit in units_of(at, end) {
                    if let Entry::Occupied(mut spans) = self.units.entry(unit) {
                        *spans.get_mut() -= 1;
                        if *spans.get() == 0 {
                            spans.remove();
                        }
                    }
                }
                if span.method().is_some() {
                    let died = self.eras.of_changes();
                    let ended = self.eras.now();
                    self.retire(Retired { start: at, died, span, ended, is_unloaded });
                }
                self.release(&span);
            }
        }
    }

    /// Keeps retired code, for samples of it that are not symbolized yet.
    fn retire(&mut self, retired: Retired) {
        let last = retired.start + u64::from(retired.span.size) - 1;
        for page in retired.start >> PAGE..=last >> PAGE {
            if self.retired_count >= MAX_RETIRED {
                self.refused += 1;
                return;
            }
            let in_page = self.retired.entry(page).or_default();
            let is_full = in_page.len() >= MAX_RETIRED_IN_PAGE;
            let oldest = is_full.then(|| in_page.remove(0));
            in_page.push(retired);
            self.row_lists.use_again(retired.span.rows);
            self.use_method(retired.span.method());
            match oldest {
                Some(oldest) => {
                    self.refused += 1;
                    self.release(&oldest.span);
                }
                None => self.retired_count += 1,
            }
        }
    }

    /// Drops code that was gone when this era began, unless it is still needed.
    pub fn forget_retired(&mut self, era: u32, is_needed: impl Fn(MethodIndex) -> bool) {
        let mut dropped = Vec::new();
        self.retired.retain(|_, in_page| {
            in_page.retain(|retired| {
                let stays = retired.ended > era || retired.span.method().is_some_and(&is_needed);
                if !stays {
                    dropped.push(retired.span);
                }
                stays
            });
            in_page.shrink_to(in_page.len() * 2);
            !in_page.is_empty()
        });
        self.retired_count -= dropped.len();
        dropped.iter().for_each(|span| self.release(span));
    }

    /// Drops stubs that were found when this era had not ended: they are found again where they
    /// are met again.
    pub fn forget_stubs(&mut self, era: u32) {
        let stubs =
            self.spans.iter().filter(|(_, span)| span.method().is_none() && span.born <= era);
        let stubs: Vec<_> = stubs.map(|(at, span)| (*at, at + u64::from(span.size))).collect();
        for (start, end) in stubs {
            self.clear(start, end, true);
        }
    }

    /// The method whose code starts here: now, or else the last that was here.
    pub fn method_from(&self, start: u64) -> Option<MethodIndex> {
        if let Some(span) = self.spans.get(&start) {
            return span.method();
        }
        let in_page = self.retired.get(&(start >> PAGE))?;
        in_page.iter().rev().find(|retired| retired.start == start)?.span.method()
    }

    /// The size of a method's code that starts here now.
    pub fn size_of(&self, start: u64, method: MethodIndex) -> Option<u32> {
        let span = self.spans.get(&start)?;
        (span.method() == Some(method)).then_some(span.size)
    }

    /// The methods whose code is there now, with the starts of its pieces.
    pub fn methods(&self) -> impl Iterator<Item = (u64, MethodIndex)> {
        self.spans.iter().filter_map(|(start, span)| Some((*start, span.method()?)))
    }

    /// The method whose code is at just this place now.
    pub fn method_in(&self, start: u64, size: u32) -> Option<MethodIndex> {
        self.spans.get(&start).filter(|span| span.size == size)?.method()
    }

    /// What it takes.
    pub fn bytes(&self) -> usize {
        const SPAN: usize = (size_of::<u64>() + size_of::<Span>()) * 2;
        const SMALL: usize = 32;
        self.spans.len() * SPAN
            + self.row_lists.bytes()
            + self.rows.capacity() * size_of::<Row>()
            + self.uses.len() * size_of::<u32>()
            + self.unused.len() * size_of::<MethodIndex>()
            + self.retired_count * size_of::<Retired>() * 2
            + (self.retired.len() + self.units.len() + self.dirty.len()) * SMALL
            + self.eras.bytes()
            + self.rules.len() * (size_of::<Rule>() * 2 + SMALL)
    }

    fn touch(&mut self, start: u64, end: u64) {
        self.dirty.extend(units_of(start, end));
    }

    /// A list of rules, used once more.
    fn row_list(&mut self, rules: &[(u32, Rule)]) -> ListNumber {
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        rows.extend(rules.iter().take(MAX_ROWS).map(|(at, rule)| (*at, self.number(rule))));
        if let Some((at, _)) = rules.get(MAX_ROWS) {
            rows.push((*at, UNSUPPORTED));
            self.refused += 1;
        }
        let number = self.row_lists.take(&rows);
        self.rows = rows;
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

    /// From here on records are read that were written before the samples that come meanwhile.
    pub fn hold_era(&mut self) {
        self.eras.hold(self.spans.is_empty() && self.retired.is_empty());
    }

    /// The era of a sample that was taken at this time.
    pub fn era_of_sample(&mut self, time: u64) -> u32 {
        if !self.eras.is_known_at(time) {
            self.hold_era();
            self.eras.hold_for(time);
        }
        self.eras.at(time)
    }

    /// Units that are to be built again, by their addresses.
    pub fn touch_units(&mut self, units: impl Iterator<Item = u64>) {
        self.dirty.extend(units.map(|unit| unit >> UNIT_SHIFT));
    }

    /// All units are to be built again.
    pub fn touch_all(&mut self) {
        self.dirty.extend(self.units.keys());
    }

    fn span_at(&self, address: u64) -> Option<(u64, &Span)> {
        let (&start, span) = self.spans.range(..=address).next_back()?;
        (address - start < u64::from(span.size)).then_some((start, span))
    }

    /// Whether code is known at this address now.
    pub fn knows(&self, address: u64) -> bool {
        self.span_at(address).is_some()
    }

    /// Whether following the frame pointer leads from this code to its caller; `None` where no code
    /// is known.
    pub fn keeps_frame_pointer(&self, address: u64) -> Option<bool> {
        let rule = match self.span_at(address) {
            Some((start, span)) => self.rule_in(start, span, address)?.packed,
            None => self.rule_of_gone(address)?.packed,
        };
        let is_frame = rule.kind() == Kind::Fp as u32 && rule.fp_below() == 16;
        Some(is_frame && rule.cfa_offset() == 16)
    }

    fn rule_in(&self, start: u64, span: &Span, address: u64) -> Option<Rule> {
        let rows = self.row_lists.get(span.rows)?;
        let before = rows.iter().take_while(|(at, _)| start + u64::from(*at) <= address);
        self.rules.get(usize::from(before.last()?.1)).copied()
    }

    /// The code of a method that was here until lately, where no other code is known.
    fn gone_at(&self, address: u64) -> Option<&Retired> {
        if self.knows(address) {
            return None;
        }
        let in_page = self.retired.get(&(address >> PAGE))?;
        let gone = in_page.iter().rev().find(|gone| gone.holds(address))?;
        let is_lately = self.eras.now().wrapping_sub(gone.ended) < eras::LATELY;
        (gone.is_unloaded && is_lately).then_some(gone)
    }

    /// Whether a method's code was here until lately: stacks through it are still on their way.
    pub fn is_gone(&self, address: u64) -> bool {
        self.gone_at(address).is_some()
    }

    /// The rule of code that was here until lately, where no other code is known.
    pub fn rule_of_gone(&self, address: u64) -> Option<Rule> {
        let gone = self.gone_at(address)?;
        self.rule_in(gone.start, &gone.span, address)
    }

    /// The method whose code was at an address in an era.
    pub fn method_at(&self, address: u64, era: u32) -> Option<Found> {
        let now = self.span_at(address);
        if let Some((start, span)) = now
            && span.born <= era
        {
            return span.method().map(|method| Found { method, start });
        }
        let then = self
            .retired
            .get(&(address >> PAGE))
            .into_iter()
            .flatten()
            .find(|old| old.holds(address) && old.span.born <= era && era < old.died)
            .and_then(|old| old.span.method().map(|method| Found { method, start: old.start }));
        // Or it lived for so short a time that it was gone when its stack arrived.
        then.or_else(|| {
            let gone = self.gone_at(address)?;
            Some(Found { method: gone.span.method()?, start: gone.start })
        })
    }

    /// The method whose code is at an address now, of whichever era.
    pub fn method_now(&self, address: u64) -> Option<Found> {
        let (start, span) = self.span_at(address)?;
        Some(Found { method: span.method()?, start })
    }

    /// Units whose code has changed since the last call: at most so many, the others at the next
    /// call.
    pub fn take_dirty(&mut self, most: usize) -> Vec<u64> {
        if self.is_behind {
            // Tables of the last version are out of date where units were left over: rules cached from
            // them must not outlive them.
            self.eras.renew_rules();
        }
        let rest = match self.dirty.iter().nth(most) {
            Some(&first) => self.dirty.split_off(&first),
            None => BTreeSet::new(),
        };
        self.is_behind = !rest.is_empty();
        let taken = std::mem::replace(&mut self.dirty, rest);
        taken.into_iter().map(|unit| unit << UNIT_SHIFT).collect()
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
            for &(at, rule) in self.row_lists.get(span.rows)? {
                rows.rule_from(start + u64::from(at.min(span.size)), rule);
            }
            rows.rule_from(span_end, UNANNOUNCED);
        }
        rows.finish()
    }
}

/// The units that code between two addresses lies in.
fn units_of(start: u64, end: u64) -> RangeInclusive<u64> {
    start >> UNIT_SHIFT..=(end - 1) >> UNIT_SHIFT
}

#[cfg(test)]
mod tests;
