//! The code that a runtime has generated in one process: which method lies where, and how it is
//! unwound.
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

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use std::ops::RangeInclusive;

use strata_abi::rule::{Kind, Packed, Rule};
use strata_abi::tables::{self, PAGE_SHIFT};
use strata_unwind::{Piece, UnwindTable};

use super::row_lists::{ListNumber, Row, RowLists};
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
/// The eras for which stacks are unwound through code that is gone: some seconds of a program that
/// replaces all of its code all the time. Later, other code may be there without a record.
const LATELY: u32 = 16_384;
/// The eras whose beginnings are known: samples arrive in the turn after they were taken.
const MOST_BEGUN: usize = LATELY as usize;
/// For so many nanoseconds.
const BEGUN_FOR: u64 = 5_000_000_000;
/// An era is held for so many nanoseconds, where what is written is not read to its end.
const LONGEST_HOLD: u64 = 1_000_000_000;
/// Records are written while others are read; reading takes less than this many nanoseconds.
const READING: u64 = 1_000_000_000;
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
    era: u32,
    /// The era of samples, while records are read that were written before them.
    held: Option<u32>,
    /// The time of the last sample of that era.
    held_for: u64,
    /// The monotonic time until which all has been read.
    known_until: u64,
    /// See [`CodeMap::version`].
    version: u32,
    /// When the last eras began, in the monotonic clock's nanoseconds; the oldest first.
    begun: VecDeque<(u64, u32)>,
    /// When the record was written that is applied now.
    time: u64,
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
            era: 0,
            held: None,
            held_for: 0,
            known_until: 0,
            version: 1,
            begun: VecDeque::new(),
            time: 0,
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
        let end = start + STUB;
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
        self.spans.range(start..start + BLOCK).any(|(_, span)| span.method().is_some())
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
        // Samples of a held era are of what is there when all is read, also if that ends before they
        // are named.
        let mut born = self.held.unwrap_or(self.era);
        if method.is_some() {
            // Another thread than the one that reports it may have run it already.
            let earliest = self.era_at(self.time.saturating_sub(WRITTEN_LATE));
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
            // Rules cached for the old code must not be used any more.
            self.begin_era();
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
        self.begin_era();
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
                    let died = self.held.unwrap_or(self.era);
                    let ended = self.era;
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
            + self.begun.capacity() * size_of::<(u64, u32)>()
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

    pub fn era(&self) -> u32 {
        self.era
    }

    /// What is applied next was written at this time: a claim of the process. Records of several
    /// threads may be out of order by moments. A time that is still to come is another clock's, in a
    /// time namespace: then samples are of what was read before they were taken in.
    pub fn set_time(&mut self, time: u64, read_at: u64) {
        if time <= read_at.saturating_add(READING) {
            self.time = self.time.max(time);
        }
    }

    /// Rules that were cached for the code before must not be used any more.
    fn begin_era(&mut self) {
        self.era = self.era.wrapping_add(1);
        self.version = self.version.wrapping_add(1).max(1);
        if self.held.is_some() {
            return;
        }
        let oldest = self.time.saturating_sub(BEGUN_FOR);
        // The last one before is in force until the next.
        while self.begun.get(1).is_some_and(|(time, _)| *time < oldest) {
            self.begun.pop_front();
        }
        self.note_beginning(self.time, self.era);
    }

    fn note_beginning(&mut self, time: u64, era: u32) {
        if self.begun.len() >= MOST_BEGUN {
            self.begun.pop_front();
        }
        let time = self.begun.back().map_or(time, |(last, _)| time.max(*last));
        // No sample lies between two of the same time.
        self.begun.pop_back_if(|(last, _)| *last == time);
        self.begun.push_back((time, era));
    }

    /// The version of its rules: it changes with each that does not hold any more.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// From here on records are read that were written before the samples that come meanwhile: what
    /// they say of code may be over. Such a sample is of code that is there when all is read, or was
    /// there last.
    pub fn hold_era(&mut self) {
        if self.held.is_some() {
            return;
        }
        if self.spans.is_empty() && self.retired.is_empty() && self.begun.is_empty() {
            // As samples from before anything was known.
            self.begun.push_back((0, self.era));
        } else {
            // What ends meanwhile had ended when this era began.
            self.era = self.era.wrapping_add(1);
            self.note_beginning(self.known_until.saturating_add(1), self.era);
        }
        self.held = Some(self.era);
        self.held_for = 0;
    }

    /// All has been read that was written until this time: samples until then are of what is known.
    pub fn was_read_until(&mut self, time: u64) {
        self.known_until = self.known_until.max(time);
        if self.held_for <= self.known_until
            && let Some(held) = self.held.take()
            && held != self.era
        {
            self.note_beginning(self.known_until.saturating_add(1), self.era);
        }
    }

    /// Reading falls behind: what was sampled more than a second ago is of what is known now.
    pub fn was_read_in_part_until(&mut self, time: u64, now: u64) {
        self.was_read_until(time);
        if self.held.is_some() && self.known_until.saturating_add(LONGEST_HOLD) < now {
            if self.held == Some(self.era) {
                self.era = self.era.wrapping_add(1);
            }
            self.was_read_until(self.held_for);
        }
    }

    /// The time of the last record, as far as it can be believed.
    pub fn time(&self) -> u64 {
        self.time
    }

    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether this is the era of samples whose code is not known before all is read.
    pub fn is_held_at(&self, era: u32) -> bool {
        self.held == Some(era)
    }

    /// Whether all is known that was written until this time.
    pub fn is_known_at(&self, time: u64) -> bool {
        time <= self.known_until
    }

    /// The era of a sample that was taken at this time.
    pub fn era_of_sample(&mut self, time: u64) -> u32 {
        if !self.is_known_at(time) {
            self.hold_era();
            self.held_for = self.held_for.max(time);
        }
        self.era_at(time)
    }

    fn era_at(&self, time: u64) -> u32 {
        let later = self.begun.partition_point(|(begun, _)| *begun <= time);
        let then = self.begun.get(later.saturating_sub(1));
        then.map_or(self.era, |(_, era)| if later == 0 { era.wrapping_sub(1) } else { *era })
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
        let is_lately = self.era.wrapping_sub(gone.ended) < LATELY;
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
            // Tables of the last era are out of date where units were left over: rules cached from
            // them must not outlive them.
            self.begin_era();
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

/// Rows of one unit, in ascending order of address.
struct UnitRows<'a> {
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

    fn new(map: &'a CodeMap, unit: u64) -> Self {
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

    fn rule_from(&mut self, pc: u64, rule: u16) {
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
        assert_eq!(map.take_dirty(10), [0x10_0000, 0x14_0000]);
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
        assert_eq!(map.method_at(0x9000, before), None, "it came later");
    }

    #[test]
    fn a_sample_is_of_the_code_that_was_there_at_its_time() {
        let mut map = CodeMap::default();
        let found =
            |map: &CodeMap, time| map.method_at(0x1008, map.era_at(time)).map(|f| f.method.0);
        map.set_time(100, 1000);
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
        assert_eq!(found(&map, 150), Some(1));
        // Other code comes to its place, and goes, before any of it was read.
        map.set_time(200, 1000);
        map.remove(0x1000);
        map.set_time(300, 1000);
        map.insert(0x1000, 0x60, &[(0, rule(8))], MethodIndex(2));
        map.set_time(400, 1000);
        map.remove(0x1000);
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(3));
        let at = |map: &CodeMap, times: [u64; 5]| times.map(|time| found(map, time));
        let all = [Some(1), Some(1), Some(2), Some(2), Some(3)];
        assert_eq!(at(&map, [99, 199, 300, 399, 400]), all);
        // A record that is out of order, and one that claims a time to come.
        map.set_time(350, 1000);
        map.remove(0x1000);
        map.insert(0x1000, 0x50, &[(0, rule(8))], MethodIndex(4));
        map.set_time(500, 1000);
        map.set_time(u64::MAX, 1000);
        map.remove(0x1000);
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(5));
        let all = [Some(2), Some(2), Some(4), Some(4), Some(5)];
        assert_eq!(at(&map, [300, 399, 400, 499, 500]), all);
    }

    #[test]
    fn code_that_runs_before_its_record_is_written_is_that_of_the_record() {
        const SECOND: u64 = 1_000_000_000;
        let mut map = CodeMap::default();
        let insert = |map: &mut CodeMap, time, start, method| {
            map.set_time(time, time);
            map.insert(start, 0x40, &[(0, rule(8))], MethodIndex(method));
        };
        insert(&mut map, SECOND, 0x1000, 1);
        let ran = map.era_at(SECOND);
        map.set_time(SECOND + 1, SECOND + 1);
        map.remove(0x1000);
        insert(&mut map, SECOND + 2, 0x2000, 2);
        insert(&mut map, SECOND + 3, 0x1000, 3);
        insert(&mut map, 2 * SECOND, 0x3000, 4);
        let found = [0x1000, 0x2000, 0x3000].map(|at| map.method_at(at, ran).map(|f| f.method.0));
        assert_eq!(found, [Some(1), Some(2), None]);
    }

    #[test]
    fn beginnings_of_eras_are_known_for_some_seconds() {
        let mut map = CodeMap::default();
        let mut replace = |time: u64| {
            map.set_time(time, time);
            map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(time as u32));
            map.remove(0x1000);
            map.begun.len()
        };
        let lengths: Vec<_> = (0..40_000).map(&mut replace).collect();
        assert_eq!(lengths.iter().max(), Some(&MOST_BEGUN));
        assert_eq!(replace(BEGUN_FOR + 39_999), 3);
        assert_eq!(replace(BEGUN_FOR * 3), 2);
        // Until the last one the one before was in force, and before that an earlier one.
        let before = BEGUN_FOR + 39_999;
        assert_eq!([before - 1, before].map(|time| map.era() - map.era_at(time)), [2, 1]);
    }

    #[test]
    fn a_sample_that_came_while_older_records_were_read_is_of_what_they_leave() {
        let mut map = CodeMap::default();
        let found = |map: &CodeMap, address, era| map.method_at(address, era).map(|f| f.method.0);
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
        map.insert(0x2000, 0x40, &[(0, rule(8))], MethodIndex(2));
        map.insert(0x3000, 0x40, &[(0, rule(8))], MethodIndex(3));
        map.insert(0x4000, 0x40, &[(0, rule(8))], MethodIndex(4));
        map.was_read_until(10);
        let before = map.era_of_sample(10);
        let meanwhile = map.era_of_sample(20);
        // All of this was over when the sample was taken.
        map.remove(0x1000);
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(11));
        assert_eq!([10, 20, u64::MAX].map(|time| map.era_at(time)), [before, meanwhile, meanwhile]);
        map.was_read_until(19);
        map.remove(0x1000);
        map.insert(0x1000, 0x60, &[(0, rule(8))], MethodIndex(12));
        map.insert(0x2010, 0x40, &[(0, rule(8))], MethodIndex(13));
        map.insert(0x5000, 0x40, &[(0, rule(8))], MethodIndex(14));
        map.remove(0x5000);
        map.remove_ended(0x3000);
        assert!(map.is_held_at(meanwhile) && !map.is_held_at(before));
        map.was_read_until(20);
        assert!(!map.is_held());
        let at =
            |era| [0x1008, 0x2008, 0x2018, 0x3008, 0x4008].map(|address| found(&map, address, era));
        assert_eq!(at(before), [Some(1), Some(2), Some(2), Some(3), Some(4)]);
        for era in [meanwhile, map.era_at(u64::MAX)] {
            assert_eq!(at(era), [Some(12), None, Some(13), None, Some(4)], "{era}");
        }
        assert_eq!(found(&map, 0x5008, meanwhile), Some(14), "it may have ended just now");
        // What was read meanwhile, and ends before its samples are named.
        map.remove(0x2010);
        map.insert(0x2010, 0x40, &[(0, rule(8))], MethodIndex(16));
        assert_eq!(found(&map, 0x2018, meanwhile), Some(13));
        assert_eq!(found(&map, 0x2018, map.era_at(u64::MAX)), Some(16));
        // What ends later was there.
        map.remove(0x4000);
        map.insert(0x4000, 0x40, &[(0, rule(8))], MethodIndex(15));
        assert_eq!(found(&map, 0x4008, meanwhile), Some(4));
        assert_eq!(found(&map, 0x4008, map.era_at(u64::MAX)), Some(15));
    }

    #[test]
    fn an_era_is_held_for_a_second_where_the_log_is_never_read_to_its_end() {
        const SECOND: u64 = 1_000_000_000;
        let mut map = CodeMap::default();
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
        map.was_read_until(SECOND);
        let held = map.era_of_sample(SECOND * 2);
        map.was_read_in_part_until(SECOND + 5, SECOND * 2);
        assert!(map.is_held_at(held));
        map.was_read_in_part_until(SECOND + 9, SECOND * 3);
        assert!(!map.is_held());
        // The next one is another.
        let next = map.era_of_sample(SECOND * 4);
        assert!(map.is_held_at(next) && next != held);
        assert_eq!(map.era_of_sample(SECOND * 2), held);
    }

    #[test]
    fn code_that_is_gone_is_unwound_and_named_until_other_code_is_there() {
        let mut map = CodeMap::default();
        map.insert(0x1000, 0x40, &[(0, rule(8)), (4, rule(40))], MethodIndex(1));
        map.remove(0x1000);
        assert!(!map.knows(0x1010) && map.is_gone(0x1010) && !map.is_gone(0x1040));
        assert_eq!(map.rule_of_gone(0x1003), Some(rule(8)));
        assert_eq!(map.rule_of_gone(0x1010), Some(rule(40)));
        // Its stack arrived later than the record of its end.
        let found = map.method_at(0x1010, map.era());
        assert_eq!(found.map(|found| found.method), Some(MethodIndex(1)));
        map.insert(0x1008, 0x40, &[(0, rule(16))], MethodIndex(2));
        assert_eq!(map.rule_of_gone(0x1010), None, "the next publication has its rule");
        assert_eq!(map.rule_of_gone(0x1004), Some(rule(40)));
        let found = map.method_at(0x1010, map.era());
        assert_eq!(found.map(|found| found.method), Some(MethodIndex(2)));
    }

    #[test]
    fn unknown_code_that_has_called_something_is_followed_by_its_frame_pointer() {
        let mut map = CodeMap::default();
        map.insert_stub(0x1008, false);
        map.insert_stub(0x2008, true);
        assert_eq!(looked_up(&map, 0x1008), rule(8));
        assert_eq!(map.keeps_frame_pointer(0x2008), Some(true));
    }

    #[test]
    fn code_that_has_long_been_gone_is_not_unwound() {
        let mut map = CodeMap::default();
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
        map.remove(0x1000);
        for _ in 0..LATELY {
            assert!(map.is_gone(0x1010));
            map.insert(0x9000, 0x40, &[(0, rule(8))], MethodIndex(2));
            map.remove(0x9000);
        }
        assert!(!map.is_gone(0x1010));
    }

    #[test]
    fn a_stub_gives_way_to_a_method_and_never_the_other_way_round() {
        let mut map = CodeMap::default();
        map.insert_stub(0x1008, false);
        assert!(map.knows(0x1000) && map.method_at(0x1008, map.era()).is_none());
        map.insert(0x1000, 0x100, &[(0, rule(8))], MethodIndex(0));
        map.insert_stub(0x1010, false);
        assert_eq!(map.method_at(0x1018, map.era()).map(|f| f.start), Some(0x1000));
    }

    #[test]
    fn claimed_code_is_bounded_by_the_units_it_lies_in() {
        let mut map = CodeMap::default();
        for n in 0..100_000u64 {
            map.insert(0x10_0000 + n * u64::from(MAX_SIZE), MAX_SIZE, &[], MethodIndex(n as u32));
        }
        assert!(map.units.len() <= MAX_UNITS && map.dirty.len() <= MAX_UNITS);
        assert_eq!(map.refused, 100_000 - map.spans.len() as u64);
        // Each turn builds a few, and none is forgotten.
        let all = map.dirty.len();
        let mut built = 0;
        while map.is_dirty() {
            let (era, taken) = (map.era(), map.take_dirty(UNITS_AT_ONCE).len());
            assert!(taken <= UNITS_AT_ONCE);
            assert!(built == 0 || map.era() != era, "what was cached meanwhile is out of date");
            built += taken;
        }
        assert_eq!(built, all);
        for start in map.spans.keys().copied().collect::<Vec<_>>() {
            map.remove(start);
        }
        assert!(map.units.is_empty());
    }

    #[test]
    fn every_byte_that_a_process_makes_strata_keep_is_counted() {
        let mut map = CodeMap::default();
        // Crafted code: a row for nearly every instruction, all lists different.
        for n in 0..100u32 {
            let rules: Vec<_> = (0..8000).map(|at| (at + n, rule(8 + at % 2 * 8))).collect();
            map.insert(u64::from(n) << 16, 0xf000, &rules, MethodIndex(n));
        }
        let longest = map.row_lists.all().map(<[Row]>::len).max();
        assert_eq!(longest, Some(MAX_ROWS + 1));
        let rows: usize = map.row_lists.all().map(size_of_val).sum();
        assert!(map.bytes() >= rows, "{} {rows}", map.bytes());
        assert_eq!(looked_up(&map, 0xe000).packed, Packed::UNSUPPORTED, "and not another's rule");
        assert_eq!(map.refused, 100);
    }

    #[test]
    fn code_that_comes_and_goes_is_remembered_until_its_samples_are_named() {
        let mut map = CodeMap::default();
        for n in 0..2 * MAX_RETIRED_IN_PAGE as u32 {
            map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(n));
        }
        assert!(map.retired_count <= MAX_RETIRED_IN_PAGE && map.refused > 0);
        let (last, now) = (map.era() - 1, map.era());
        let newest = 2 * MAX_RETIRED_IN_PAGE as u32 - 2;
        assert_eq!(map.method_at(0x1010, last).map(|found| found.method.0), Some(newest));
        map.forget_retired(now, |_| false);
        assert_eq!((map.retired_count, map.retired.len()), (0, 0));
        assert!(map.method_at(0x1010, now).is_some(), "what is there stays");
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

    #[test]
    fn code_that_comes_and_goes_without_end_takes_no_more_than_it_did() {
        let mut map = CodeMap::default();
        let mut once = 0;
        for turn in 0..200u32 {
            // Every time other rules, and other methods.
            for n in 0..100u64 {
                let start = 0x10_0000 + n * 0x80;
                let rules = [(0, rule(8)), (1 + turn % 50, rule(16))];
                map.insert(start, 0x60, &rules, MethodIndex(n as u32));
                map.insert(start + 0x60, 0x20, &rules, MethodIndex(n as u32));
            }
            for n in 0..100u64 {
                map.remove(0x10_0000 + n * 0x80);
                assert!(map.has_code_of(MethodIndex(n as u32)), "its other code");
                map.remove(0x10_0060 + n * 0x80);
            }
            assert!(map.take_unused().is_empty(), "what is gone has samples");
            map.forget_retired(map.era(), |_| false);
            assert_eq!(map.take_unused().len(), 100);
            map.take_dirty(UNITS_AT_ONCE);
            if turn == 0 {
                once = map.bytes();
            }
            assert!(map.bytes() <= once, "{} {once}", map.bytes());
        }
    }

    #[test]
    fn code_that_was_sampled_outlives_its_end() {
        let mut map = CodeMap::default();
        for n in 0..4u32 {
            map.insert(0x1000 + u64::from(n) * 0x40, 0x40, &[(0, rule(8))], MethodIndex(n));
        }
        let before = map.era();
        for n in 0..4u64 {
            map.remove(0x1000 + n * 0x40);
        }
        map.forget_retired(map.era(), |method| method.0 == 2);
        let at = |n: u64| map.method_at(0x1010 + n * 0x40, before).map(|found| found.method.0);
        assert_eq!([at(0), at(1), at(2), at(3)], [None, None, Some(2), None]);
        let unused: Vec<u32> = map.take_unused().into_iter().map(|method| method.0).collect();
        assert_eq!(unused, [0, 1, 3]);
    }

    #[test]
    fn stubs_found_long_ago_are_forgotten_and_methods_are_not() {
        let mut map = CodeMap::default();
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
        map.insert_stub(0x2000, false);
        let era = map.era();
        map.insert(0x1000, 0x80, &[(0, rule(8))], MethodIndex(2));
        map.insert_stub(0x3000, false);
        map.forget_stubs(era);
        assert_eq!([0x1000, 0x2000, 0x3000].map(|at| map.knows(at)), [true, false, true]);
    }
}
