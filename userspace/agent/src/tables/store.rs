//! Files' tables and processes' extents in kernel memory.
//!
//! Tables are loaded once per file and shared by every process that maps it. Extents are one block
//! per process, shared by processes that map the same (forks). Over the memory limit, the process
//! that was published longest ago without a sample since is evicted: if it runs again, its next
//! sample arrives deferred and reloads it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_abi::rule::Rule;
use strata_abi::tables::{
    EXTENT_WORDS, Extent, ExtentKind, MAX_EXTENTS, MAX_INHERITED, PROCESS_PATIENT, PROCESS_SKIP,
    Process, row_rule,
};
use strata_unwind::UnwindTable;

use super::arena::Range;
use super::extents::{Code, LoadedPiece, Stretch, Table, extent_words, extents_of, still_holds};
use super::rule_set::{NEW_RULES_PER_OWNER, RuleSet};
use super::search;
use super::segments::Segments;
use crate::hash::{HashMap, HashSet};
use crate::kernel::loader::{LoadError, Programs};

/// A process that was not sampled for so long is evicted before any other.
const IDLE: Duration = Duration::from_secs(10);
/// Raw records that a process may send for code outside its extents before it is republished.
const CAPTURES: u32 = 8;
/// Time until as many more are accepted from a process that has mapped nothing since: an unknown
/// address stays unknown, and each such stack costs a copy and a turn.
const CAPTURES_AGAIN: Duration = Duration::from_secs(1);
/// The same while tables are being built: a start-up maps file after file, and runs each at once.
const CAPTURES_MEANWHILE: u32 = 64;
/// The same for code that a runtime has not published yet: the process entry is republished as soon
/// as such stacks arrive.
const PATIENT_CAPTURES: u32 = 256;
/// Publications of a process whose generations are remembered: one may happen between a process's
/// execution of another program and the event that reports it.
const REMEMBERED: usize = 4;
const WORDS_PER_RULE: usize = size_of::<Rule>() / 4;

struct Published {
    extents: Arc<[Extent]>,
    /// Kept alive by the processes published with them.
    _tables: Vec<Arc<Table>>,
    range: Range,
    generation: u32,
    users: u32,
}

impl Published {
    /// Whether it is what an entry of the kernel's refers to.
    fn is_of(&self, entry: &Process) -> bool {
        let Range { segment, offset, .. } = self.range;
        (entry.segment, entry.offset, entry.generation) == (segment, offset, self.generation)
    }

    /// Kernel memory attributed to it: its own, and its share of tables used by others too.
    fn weight(&self) -> u64 {
        let of_table = |table: &Arc<Table>| table.bytes() / Arc::strong_count(table).max(1) as u64;
        u64::from(self.range.words) * 4 + self._tables.iter().map(of_table).sum::<u64>()
    }
}

#[derive(Clone)]
struct Owner {
    block: u64,
    /// Of its last publications.
    generations: [u32; REMEMBERED],
    last_used: Instant,
    /// When it was last allowed raw records.
    granted: Instant,
}

pub struct Store {
    rules: RuleSet,
    pub segments: Segments,
    blocks: HashMap<u64, Published>,
    owners: HashMap<u32, Owner>,
    /// Processes whose samples are not wanted, and whether the kernel's map has that.
    skipped: HashMap<u32, bool>,
    /// There was no entry for one of them, and none has become free since.
    is_full: bool,
    /// Processes of which some elapsed time is not wanted (`UNWANTED_*`).
    unwanted: HashMap<u32, u32>,
    /// By process: generations of the program that it was before.
    outdated: HashMap<u32, [u32; REMEMBERED]>,
    /// Processes without a budget of raw records at their last publication.
    withheld: HashSet<u32>,
    by_content: HashMap<Arc<[Extent]>, u64>,
    next_block: u64,
    generation: u32,
    /// Since as many processes again were allowed to be given an entry.
    forks: u64,
    /// Dropped tables whose memory is not freed yet.
    pub evicted: u64,
    /// Tables or extents refused for lack of room.
    pub refused: u64,
    /// Extents beyond [`MAX_EXTENTS`].
    pub dropped_extents: u64,
}

impl Store {
    /// `limit` bounds the segments' bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            rules: RuleSet::default(),
            segments: Segments::new(limit),
            blocks: HashMap::default(),
            owners: HashMap::default(),
            skipped: HashMap::default(),
            is_full: false,
            unwanted: HashMap::default(),
            outdated: HashMap::default(),
            withheld: HashSet::default(),
            by_content: HashMap::default(),
            next_block: 0,
            generation: 0,
            forks: 0,
            evicted: 0,
            refused: 0,
            dropped_extents: 0,
        }
    }

    pub fn rule_count(&self) -> usize {
        self.rules.count()
    }

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

    /// Makes a process's extents known to the kernel. `code` is sorted by address; it is complete
    /// when no part of it is pending.
    pub fn publish(
        &mut self,
        programs: &mut Programs,
        pid: u32,
        code: &[Stretch],
        complete: bool,
    ) -> Result<(), LoadError> {
        let mut extents = extents_of(code);
        if extents.len() > MAX_EXTENTS as usize {
            self.dropped_extents += (extents.len() - MAX_EXTENTS as usize) as u64;
            extents.truncate(MAX_EXTENTS as usize);
        }
        let extents: Arc<[Extent]> = extents.into();
        let block = match self.by_content.get(&extents) {
            Some(&block) => block,
            None => match self.write_block(
                programs,
                &extents,
                code,
                self.kept_generation(pid, &extents),
            ) {
                Some(block) => block,
                None => {
                    self.refused += 1;
                    return Ok(());
                }
            },
        };
        let now = Instant::now();
        self.skipped.remove(&pid);
        let waits = extents.iter().any(|extent| extent.kind == ExtentKind::Unannounced as u32);
        let before = self.owners.get(&pid).filter(|old| old.block == block).map(|old| old.granted);
        let before = before.filter(|granted| now.duration_since(*granted) < CAPTURES_AGAIN);
        let withheld = before.filter(|_| complete && !waits);
        if withheld.is_some() {
            self.withheld.insert(pid);
        }
        let granted = withheld.unwrap_or(now);
        let generation = self.blocks.get(&block).map_or(0, |published| published.generation);
        let mut generations = self.owners.get(&pid).map_or([0; REMEMBERED], |old| old.generations);
        if !generations.contains(&generation) {
            generations.rotate_right(1);
            if let Some(first) = generations.first_mut() {
                *first = generation;
            }
        }
        // The same code as before the execution: its frames are right.
        if self.outdated.get(&pid).is_some_and(|outdated| outdated.contains(&generation)) {
            self.outdated.remove(&pid);
        }
        let owner = Owner { block, generations, last_used: now, granted };
        let old = self.owners.insert(pid, owner);
        if let Some(published) = self.blocks.get_mut(&block) {
            published.users += 1;
            let entry = Process {
                segment: published.range.segment,
                offset: published.range.offset,
                count: published.extents.len() as u32,
                generation: published.generation,
                captures: match (complete, waits) {
                    _ if withheld.is_some() => 0,
                    (false, _) => CAPTURES_MEANWHILE,
                    (true, true) => PATIENT_CAPTURES,
                    (true, false) => CAPTURES,
                },
                flags: if waits { PROCESS_PATIENT } else { 0 },
            };
            if let Err(error) = self.set_process(programs, pid, entry) {
                self.refused += 1;
                if let Some(owner) = self.owners.remove(&pid) {
                    self.release(owner.block, now);
                }
                if let Some(old) = old {
                    self.release(old.block, now);
                }
                return Err(error);
            }
        }
        if let Some(old) = old {
            self.release(old.block, now);
        }
        Ok(())
    }

    /// A process was forked. Where it was given its parent's entry, and that still has it, both are
    /// published with it. What the parent has mapped since may be something else in the child.
    pub fn forked(&mut self, programs: &mut Programs, pid: u32, parent: u32) {
        self.forks += 1;
        if self.forks >= MAX_INHERITED / 4 {
            self.allow_inheriting(programs);
        }
        // A pid may be reused before its last owner was evicted.
        self.withdraw(programs, pid);
        // It may have executed a program since, and has none then.
        let Some(given) = programs.inherited_by(pid) else { return };
        let owner = self.owners.get(&parent).cloned();
        let published = owner.as_ref().and_then(|owner| self.blocks.get_mut(&owner.block));
        match (owner, published.filter(|published| published.is_of(&given))) {
            (Some(owner), Some(published)) => {
                published.users += 1;
                self.owners.insert(pid, Owner { last_used: Instant::now(), ..owner });
            }
            _ => programs.remove_process(pid),
        }
    }

    /// Entries that processes were given are seen to: as many more may be given.
    pub fn allow_inheriting(&mut self, programs: &mut Programs) {
        if std::mem::take(&mut self.forks) > 0 {
            programs.allow_inheriting();
        }
    }

    /// Withdraws entries that processes were given and that nothing is known of: events were lost.
    pub fn withdraw_inherited(&mut self, programs: &mut Programs) {
        for pid in programs.inheritors() {
            if !self.owners.contains_key(&pid) && !self.skipped.contains_key(&pid) {
                programs.remove_process(pid);
            }
        }
        programs.allow_inheriting();
    }

    /// Where the map is full, the entry of a skipped process makes room, whose samples are skipped here
    /// then; where there is none, the least recently sampled process.
    fn set_process(
        &mut self,
        programs: &mut Programs,
        pid: u32,
        entry: Process,
    ) -> Result<(), LoadError> {
        let Err(error) = programs.set_process(pid, entry) else { return Ok(()) };
        if let Some((other, has_entry)) = self.skipped.iter_mut().find(|(_, has_entry)| **has_entry)
        {
            *has_entry = false;
            programs.remove_process(*other);
        } else if let Some(other) = self.least_used().filter(|other| *other != pid) {
            self.withdraw(programs, other);
            self.evicted += 1;
        } else {
            return Err(error);
        }
        programs.set_process(pid, entry)
    }

    /// Processes without a budget of raw records that may get one now.
    pub fn take_withheld(&mut self) -> HashSet<u32> {
        std::mem::take(&mut self.withheld)
    }

    /// Skips samples of this process until it executes another program.
    pub fn skip(&mut self, programs: &mut Programs, pid: u32) {
        if let Some(owner) = self.owners.remove(&pid) {
            self.release(owner.block, Instant::now());
        } else if self.is_full && self.skipped.get(&pid) == Some(&false) {
            return;
        }
        let entry = Process { flags: PROCESS_SKIP, ..Process::default() };
        let set = programs.set_process(pid, entry);
        if let Err(error) = &set {
            tracing::debug!(pid, %error, "a process cannot be skipped in the kernel");
            self.is_full = true;
        }
        self.skipped.insert(pid, set.is_ok());
    }

    /// Which of a process's elapsed time is not wanted (`UNWANTED_*`), until it executes another program.
    /// Returns what was not before.
    pub fn set_unwanted(&mut self, programs: &mut Programs, pid: u32, kinds: u32) -> u32 {
        let before = self.unwanted_of(pid);
        if before == kinds {
            return before;
        }
        if programs.set_unwanted(pid, kinds) && kinds != 0 {
            self.unwanted.insert(pid, kinds);
        } else {
            self.unwanted.remove(&pid);
        }
        before
    }

    /// See [`Self::set_unwanted`].
    pub fn unwanted_of(&self, pid: u32) -> u32 {
        self.unwanted.get(&pid).copied().unwrap_or_default()
    }

    /// Processes of which some elapsed time is not wanted.
    pub fn unwanted(&self) -> impl Iterator<Item = u32> + '_ {
        self.unwanted.keys().copied()
    }

    /// Ends skipping for all processes.
    pub fn take_all_in(&mut self, programs: &mut Programs) {
        for (pid, _) in std::mem::take(&mut self.unwanted) {
            programs.set_unwanted(pid, 0);
        }
        self.is_full = false;
        for (pid, _) in std::mem::take(&mut self.skipped) {
            programs.remove_process(pid);
        }
    }

    /// A process's generation, when its new extents only add to its old ones: every rule cached
    /// for it still holds. Not when others share the old ones: they may grow another way.
    fn kept_generation(&self, pid: u32, new: &[Extent]) -> Option<u32> {
        let owner = self.owners.get(&pid)?;
        let old = self.blocks.get(&owner.block).filter(|old| old.users == 1)?;
        old.extents.iter().all(|extent| still_holds(extent, new)).then_some(old.generation)
    }

    fn write_block(
        &mut self,
        programs: &mut Programs,
        extents: &Arc<[Extent]>,
        code: &[Stretch],
        generation: Option<u32>,
    ) -> Option<u64> {
        let words = u32::try_from(extents.len() * EXTENT_WORDS).ok()?;
        let range = self.segments.allocate(programs, words)?;
        let memory = self.segments.memory(range.segment)?;
        let mut offset = range.offset as usize;
        for extent in extents.iter() {
            memory.write(offset, extent_words(extent).into_iter());
            offset += EXTENT_WORDS;
        }
        let tables = code
            .iter()
            .filter_map(|stretch| match &stretch.code {
                Code::Table { table, .. } | Code::Generated { table, .. } => Some(table.clone()),
                Code::Unannounced | Code::FramePointer => None,
            })
            .collect();
        let generation = generation.unwrap_or_else(|| {
            // 0 means "no rule cached": it is never a generation.
            self.generation = self.generation.wrapping_add(1).max(1);
            self.generation
        });
        self.next_block += 1;
        let published =
            Published { extents: extents.clone(), _tables: tables, range, generation, users: 0 };
        self.blocks.insert(self.next_block, published);
        self.by_content.insert(extents.clone(), self.next_block);
        Some(self.next_block)
    }

    fn release(&mut self, block: u64, now: Instant) {
        let Some(published) = self.blocks.get_mut(&block) else { return };
        published.users = published.users.saturating_sub(1);
        if published.users == 0
            && let Some(published) = self.blocks.remove(&block)
        {
            self.by_content.remove(&published.extents);
            self.segments.free(published.range, now);
        }
    }

    /// Unpublishes a process that has executed another program: stacks that the kernel still
    /// unwinds with the old tables are recognised by their generation.
    pub fn outdate(&mut self, programs: &mut Programs, pid: u32) {
        let before = self.owners.get(&pid).map(|owner| owner.generations);
        // One that was not published since its last execution: that one's still count.
        let before = before.or_else(|| self.outdated.get(&pid).copied());
        self.withdraw(programs, pid);
        if let Some(generations) = before {
            self.outdated.insert(pid, generations);
        }
    }

    /// Whether a stack of this process was unwound with the tables of its previous program.
    pub fn is_outdated(&self, pid: u32, generation: u32) -> bool {
        generation != 0
            && self.outdated.get(&pid).is_some_and(|before| before.contains(&generation))
    }

    /// Unpublishes a process.
    pub fn withdraw(&mut self, programs: &mut Programs, pid: u32) {
        self.outdated.remove(&pid);
        let owner = self.owners.remove(&pid);
        if self.skipped.remove(&pid).is_some() || owner.is_some() {
            self.is_full = false;
            programs.remove_process(pid);
        }
        if let Some(owner) = owner {
            self.release(owner.block, Instant::now());
        }
    }

    /// Whether samples of a process are skipped.
    pub fn is_skipped(&self, pid: u32) -> bool {
        self.skipped.contains_key(&pid)
    }

    /// Whether a process is published.
    pub fn is_published(&self, pid: u32) -> bool {
        self.owners.contains_key(&pid)
    }

    /// Published processes.
    pub fn published(&self) -> impl Iterator<Item = u32> + '_ {
        self.owners.keys().copied()
    }

    /// Notes that a process is being sampled, so that it stays.
    pub fn touch(&mut self, pid: u32, now: Instant) {
        if let Some(owner) = self.owners.get_mut(&pid) {
            owner.last_used = now;
        }
    }

    /// Looks up an address of a process with these extents.
    pub fn lookup(&self, extents: &[Extent], address: u64) -> strata_unwind::unwinder::Lookup {
        search::lookup(extents, &self.segments, &self.rules, address)
    }

    /// Housekeeping: memory whose grace period has passed is available again.
    pub fn reclaim(&mut self) {
        let now = Instant::now();
        self.segments.reclaim(now);
        self.rules.reclaim(now);
    }

    /// The published process to evict first: the one that takes more than a quarter of the total,
    /// else one that was not used for long, else the largest. So none can displace others that run.
    pub fn next_evicted(&self, now: Instant) -> Option<u32> {
        let limit = self.segments.limit_bytes() / 4;
        let weights = self.owners.iter().filter_map(|(pid, owner)| {
            let weight = self.blocks.get(&owner.block)?.weight();
            Some((weight, *pid, owner.last_used))
        });
        let (weight, heaviest, _) = weights.max()?;
        if weight > limit {
            return Some(heaviest);
        }
        let idle = self.least_used().filter(|pid| {
            let owner = self.owners.get(pid);
            owner.is_some_and(|owner| now.saturating_duration_since(owner.last_used) >= IDLE)
        });
        idle.or(Some(heaviest))
    }

    /// The published process that was used longest ago.
    pub fn least_used(&self) -> Option<u32> {
        self.owners.iter().min_by_key(|(_, owner)| owner.last_used).map(|(pid, _)| *pid)
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

#[cfg(test)]
mod tests {
    use strata_abi::tables::SEGMENT_BYTES;

    use super::*;
    use crate::kernel::loader::{Settings, ThreadsOf};

    /// A process with so many bytes of extents, last sampled at a time.
    fn publish_plain(store: &mut Store, pid: u32, bytes: u64, last_used: Instant) {
        let block = u64::from(pid);
        let range = Range { segment: 0, offset: 0, words: (bytes / 4) as u32 };
        let extents = Vec::new().into();
        let published = Published { extents, _tables: Vec::new(), range, generation: 1, users: 1 };
        store.blocks.insert(block, published);
        let generations = [0; REMEMBERED];
        store.owners.insert(pid, Owner { block, generations, last_used, granted: last_used });
    }

    #[test]
    fn a_process_that_fills_the_tables_makes_room_itself_and_not_those_that_run() {
        let mut store = Store::new(8 * SEGMENT_BYTES as u64);
        let began = Instant::now();
        let now = began + 2 * IDLE;
        let share = store.segments.limit_bytes() / 4;
        publish_plain(&mut store, 1, 4096, now - IDLE / 2);
        publish_plain(&mut store, 2, share / 2, now);
        assert_eq!(store.next_evicted(now), Some(2), "the heaviest, though it was sampled last");
        publish_plain(&mut store, 3, 4096, began);
        assert_eq!(store.next_evicted(now), Some(3), "one that does not run");
        publish_plain(&mut store, 4, share + 4096, now);
        assert_eq!(store.next_evicted(now), Some(4), "more than its share");
        assert_eq!(Store::new(0).next_evicted(now), None);
    }

    /// Loads the programs: needs root.
    fn programs() -> Programs {
        Programs::load(Settings::of_tests()).expect("the programs load, as root")
    }

    /// A store that allocates its memory in the kernel.
    fn store() -> Store {
        Store::new(8 * SEGMENT_BYTES as u64)
    }

    /// So many mappings from this address on.
    fn code(start: u64, mappings: u64) -> Vec<Stretch> {
        let stretch = |number: u64| {
            let start = start + number * 0x2000;
            Stretch { start, end: start + 0x1000, code: Code::FramePointer }
        };
        (0..mappings).map(stretch).collect()
    }

    /// Publishes a process with a mapping at this address, and returns its generation in the kernel.
    fn publish(store: &mut Store, programs: &mut Programs, pid: u32, start: u64) -> u32 {
        store.publish(programs, pid, &code(start, 1), true).expect("there is room");
        programs.process(pid).expect("it is published").generation
    }

    /// No process of this host has such a number.
    const PID: u32 = 1 << 23;

    /// Needs root, and loads the programs.
    #[test]
    fn stacks_unwound_by_the_program_before_an_exec_are_known_by_their_generation() {
        let (mut store, mut programs) = (store(), programs());
        let first = publish(&mut store, &mut programs, PID, 0x1000);
        let second = publish(&mut store, &mut programs, PID, 0x10_0000);
        let others = publish(&mut store, &mut programs, PID + 1, 0x20_0000);
        assert!(first != second && second != others);
        assert!(!store.is_outdated(PID, first) && !store.is_outdated(PID, second));
        store.outdate(&mut programs, PID);
        assert!(programs.process(PID).is_none() && !store.is_published(PID));
        assert!(store.is_outdated(PID, first) && store.is_outdated(PID, second));
        assert!(!store.is_outdated(PID, 0), "not unwound by extents at all");
        assert!(!store.is_outdated(PID + 1, second), "another process's");
        // It executes the next program before it was published.
        store.outdate(&mut programs, PID);
        assert!(store.is_outdated(PID, second), "two executions in a row");
        let new = publish(&mut store, &mut programs, PID, 0x30_0000);
        assert!(!store.is_outdated(PID, new), "the new program's");
        assert!(store.is_outdated(PID, second), "a stack that comes later still");
        // Its number is another process's.
        store.withdraw(&mut programs, PID);
        assert!(!store.is_outdated(PID, second));
    }

    /// Needs root, and loads the programs.
    #[test]
    fn stacks_unwound_by_the_same_code_before_an_exec_are_right() {
        let (mut store, mut programs) = (store(), programs());
        let of_child = publish(&mut store, &mut programs, PID, 0x1000);
        let of_parent = publish(&mut store, &mut programs, PID + 1, 0x1000);
        assert_eq!(of_child, of_parent, "they share a block");
        store.outdate(&mut programs, PID);
        assert!(store.is_outdated(PID, of_child));
        assert_eq!(publish(&mut store, &mut programs, PID, 0x1000), of_child);
        assert!(!store.is_outdated(PID, of_child));
    }

    /// A process that goes on with this one's memory, until it is killed.
    struct Forked(u32);

    impl Forked {
        fn new() -> Self {
            // SAFETY: the child does nothing but wait.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                loop {
                    // SAFETY: takes nothing.
                    unsafe { libc::pause() };
                }
            }
            Self(u32::try_from(pid).expect("a process"))
        }
    }

    impl Drop for Forked {
        fn drop(&mut self) {
            // SAFETY: a child of this process that was not waited for.
            unsafe {
                libc::kill(self.0 as i32, libc::SIGKILL);
                libc::waitpid(self.0 as i32, std::ptr::null_mut(), 0);
            }
        }
    }

    /// A store that has published this process, whose children are given its entry.
    fn publishing() -> (Store, Programs, u32) {
        let settings = Settings { threads_of: ThreadsOf::All, ..Settings::of_tests() };
        let (mut store, mut programs) = (store(), Programs::load(settings).expect("as root"));
        let own = std::process::id();
        publish(&mut store, &mut programs, own, 0x1000);
        (store, programs, own)
    }

    /// Needs root, and loads the programs.
    #[test]
    fn a_process_that_is_forked_has_its_parents_entry_until_it_executes_a_program() {
        let (mut store, mut programs, parent) = publishing();
        let of_parent = |programs: &Programs| programs.process(parent);
        let child = Forked::new();
        assert!(of_parent(&programs).is_some());
        assert_eq!(
            programs.process(child.0),
            of_parent(&programs),
            "before anything is known of it"
        );
        store.forked(&mut programs, child.0, parent);
        assert_eq!(programs.process(child.0), of_parent(&programs));
        assert!(store.is_published(child.0));
        // The parent's end leaves it what both had.
        store.withdraw(&mut programs, parent);
        store.reclaim();
        assert_eq!(store.blocks.len(), 1);
        store.withdraw(&mut programs, child.0);
        assert!(store.blocks.is_empty() && programs.process(child.0).is_none());

        // What the child has is released before that is known.
        publish(&mut store, &mut programs, parent, 0x1000);
        let child = Forked::new();
        publish(&mut store, &mut programs, parent, 0x10_0000);
        assert!(programs.process(child.0).is_some_and(|given| Some(given) != of_parent(&programs)));
        store.forked(&mut programs, child.0, parent);
        assert!(programs.process(child.0).is_none() && !store.is_published(child.0));

        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        // The call returns a moment before the program is there.
        let until = Instant::now() + Duration::from_secs(20);
        while programs.process(other.id()).is_some() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        store.forked(&mut programs, other.id(), parent);
        assert!(programs.process(other.id()).is_none() && !store.is_published(other.id()));
        other.kill().and_then(|()| other.wait()).expect("it ends");

        // Its event was lost, and the parent is not known any more.
        let (lost, late) = (Forked::new(), Forked::new());
        assert!(programs.process(lost.0).is_some() && programs.process(late.0).is_some());
        store.withdraw(&mut programs, parent);
        store.forked(&mut programs, late.0, parent);
        assert!(programs.process(late.0).is_none() && programs.process(lost.0).is_some());
        store.withdraw_inherited(&mut programs);
        assert!(programs.process(lost.0).is_none());
        store.skip(&mut programs, parent);
        let of_skipped = Forked::new();
        assert!(programs.process(of_skipped.0).is_none());
    }

    /// Needs root, and loads the programs.
    #[test]
    fn one_that_forks_without_end_does_not_take_the_entries_of_all() {
        let (mut store, mut programs, parent) = publishing();
        let is_given = |programs: &Programs| programs.process(Forked::new().0).is_some();
        assert!(is_given(&programs));
        programs.set_inherited(MAX_INHERITED - 2);
        // Of two, as other tests start processes too.
        let given = (0..5).filter(|_| is_given(&programs)).count();
        assert!(given <= 2, "{given}");
        store.forked(&mut programs, PID, parent);
        store.allow_inheriting(&mut programs);
        assert!(is_given(&programs));
    }

    /// Needs root, and loads the programs.
    #[test]
    fn a_full_process_map_has_room_for_one_that_is_sampled() {
        let (mut store, mut programs) = (store(), programs());
        let mut next = PID;
        while store.evicted == 0 {
            assert!(next - PID < 1 << 18, "the map has a bound");
            publish(&mut store, &mut programs, next, 0x1000);
            next += 1;
        }
        assert!(!store.is_published(PID), "the one used longest ago");
        assert!(programs.process(PID).is_none());
        store.touch(PID + 1, Instant::now());
        publish(&mut store, &mut programs, next, 0x1000);
        assert_eq!((store.evicted, store.refused), (2, 0));
        assert!(store.is_published(PID + 1), "it was sampled meanwhile");
        assert!(!store.is_published(PID + 2));
        assert!(programs.process(PID + 2).is_none());
        assert_eq!(store.published().count(), (next - PID - 1) as usize);
    }

    /// Needs root, and loads the programs.
    #[test]
    fn skipped_processes_make_room_for_those_that_are_sampled() {
        let (mut store, mut programs) = (store(), programs());
        publish(&mut store, &mut programs, PID, 0x1000);
        let mut next = PID + 1;
        let has_entry = |programs: &Programs, pid| programs.process(pid).is_some();
        store.skip(&mut programs, next);
        while has_entry(&programs, next) {
            next += 1;
            assert!(next - PID < 1 << 18, "the map has a bound");
            store.skip(&mut programs, next);
        }
        assert!(store.is_skipped(next), "without an entry");
        for newcomer in 1..=10 {
            publish(&mut store, &mut programs, next + newcomer, 0x1000);
            assert!(store.is_published(PID) && has_entry(&programs, PID));
        }
        let without = (PID + 1..=next).filter(|pid| !has_entry(&programs, *pid)).count();
        assert_eq!((without, store.evicted, store.refused), (11, 0, 0));
        assert!((PID + 1..=next).all(|pid| store.is_skipped(pid)));
        // One of them is sampled again: it takes no other's place.
        store.skip(&mut programs, next);
        assert!(!has_entry(&programs, next) && store.published().count() == 11);
    }

    /// Needs root, and loads the programs.
    #[test]
    fn a_process_without_room_in_a_full_process_map_leaves_nothing_behind() {
        let (mut store, mut programs) = (store(), programs());
        let mut next = PID;
        while programs.set_process(next, Process::default()).is_ok() {
            next += 1;
        }
        for refused in 1..=2 {
            assert!(store.publish(&mut programs, next, &code(0x1000, 1), true).is_err());
            assert_eq!((store.evicted, store.refused), (0, refused));
            assert!(!store.is_published(next));
            assert!(store.blocks.is_empty() && store.by_content.is_empty());
        }
        programs.remove_process(PID);
        publish(&mut store, &mut programs, next, 0x1000);
    }

    /// Needs root, and loads the programs.
    #[test]
    fn mappings_beyond_the_limit_of_a_process_are_left_out_and_counted() {
        let (mut store, mut programs) = (store(), programs());
        let most = u64::from(MAX_EXTENTS);
        let mut publish = |mappings| {
            store.publish(&mut programs, PID, &code(0x1000, mappings), true).expect("room");
            (programs.process(PID).expect("it is published").count, store.dropped_extents)
        };
        assert_eq!(publish(most), (MAX_EXTENTS, 0));
        assert_eq!(publish(most + 3), (MAX_EXTENTS, 3));
        assert_eq!(publish(most + 4), (MAX_EXTENTS, 7));
    }
}
