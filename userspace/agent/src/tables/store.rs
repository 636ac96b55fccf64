//! Processes whose samples the kernel unwinds, or skips: each is published with its extents, which lead to
//! files' tables.
//!
//! - `loading`: those tables, once per file, shared by every process that maps it.
//! - `forks`: processes that the kernel has given their parents' entry.
//!
//! Over the memory limit, the process that was published longest ago without a sample since is
//! evicted: if it runs again, its next sample arrives deferred and reloads it.

mod forks;
mod loading;

use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_abi::tables::{Extent, ExtentKind, MAX_EXTENTS, PROCESS_PATIENT, PROCESS_SKIP, Process};

use super::blocks::{Block, Blocks};
use super::extents::{Stretch, extents_of};
use super::rule_set::RuleSet;
use super::search;
use super::segments::Segments;
use crate::clock::monotonic_nanos;
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
/// The kernel has a process's entry so long after [`Owner::since`], in nanoseconds.
const BEING_PUBLISHED: u64 = 5_000_000;
/// Publications of a process whose generations are remembered: one may happen between a process's
/// execution of another program and the event that reports it.
const REMEMBERED: usize = 4;

#[derive(Clone)]
struct Owner {
    block: u64,
    /// Of its last publications.
    generations: [u32; REMEMBERED],
    last_used: Instant,
    /// When it was last allowed raw records.
    granted: Instant,
    /// Since when it has been published, by the clock of records.
    since: u64,
}

pub struct Store {
    rules: RuleSet,
    pub segments: Segments,
    blocks: Blocks,
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
            blocks: Blocks::default(),
            owners: HashMap::default(),
            skipped: HashMap::default(),
            is_full: false,
            unwanted: HashMap::default(),
            outdated: HashMap::default(),
            withheld: HashSet::default(),
            forks: 0,
            evicted: 0,
            refused: 0,
            dropped_extents: 0,
        }
    }

    pub fn rule_count(&self) -> usize {
        self.rules.count()
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
        let block = self.blocks.find(&extents).or_else(|| {
            let owner = self.owners.get(&pid);
            let kept = owner.and_then(|owner| self.blocks.kept_generation(owner.block, &extents));
            self.blocks.write(programs, &mut self.segments, &extents, code, kept)
        });
        let Some(block) = block else {
            self.refused += 1;
            return Ok(());
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
        let generation = self.blocks.get(block).map_or(0, Block::generation);
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
        let since = self.owners.get(&pid).map_or_else(monotonic_nanos, |old| old.since);
        let owner = Owner { block, generations, last_used: now, granted, since };
        let old = self.owners.insert(pid, owner);
        if let Some(published) = self.blocks.add_user(block) {
            let entry = Process {
                captures: match (complete, waits) {
                    _ if withheld.is_some() => 0,
                    (false, _) => CAPTURES_MEANWHILE,
                    (true, true) => PATIENT_CAPTURES,
                    (true, false) => CAPTURES,
                },
                flags: if waits { PROCESS_PATIENT } else { 0 },
                ..published.entry()
            };
            if let Err(error) = self.set_process(programs, pid, entry) {
                self.refused += 1;
                if let Some(owner) = self.owners.remove(&pid) {
                    self.blocks.release(&mut self.segments, owner.block, now);
                }
                if let Some(old) = old {
                    self.blocks.release(&mut self.segments, old.block, now);
                }
                return Err(error);
            }
        }
        if let Some(old) = old {
            self.blocks.release(&mut self.segments, old.block, now);
        }
        Ok(())
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
            self.blocks.release(&mut self.segments, owner.block, Instant::now());
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
            self.blocks.release(&mut self.segments, owner.block, Instant::now());
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

    /// Whether a process was published for a while at a time.
    pub fn was_published_before(&self, pid: u32, time: u64) -> bool {
        self.owners.get(&pid).is_some_and(|owner| time > owner.since + BEING_PUBLISHED)
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
            let weight = self.blocks.get(owner.block)?.weight();
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

#[cfg(test)]
mod tests {
    use strata_abi::tables::SEGMENT_BYTES;

    use super::*;
    use crate::kernel::loader::Settings;
    use crate::tables::extents::Code;

    /// A process with so many bytes of extents, last sampled at a time.
    fn publish_plain(store: &mut Store, pid: u32, bytes: u64, last_used: Instant) {
        let block = store.blocks.add_plain((bytes / 4) as u32);
        let generations = [0; REMEMBERED];
        let owner = Owner { block, generations, last_used, granted: last_used, since: 0 };
        store.owners.insert(pid, owner);
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
    pub(super) fn programs() -> Programs {
        Programs::load(Settings::of_tests()).expect("the programs load, as root")
    }

    /// A store that allocates its memory in the kernel.
    pub(super) fn store() -> Store {
        Store::new(8 * SEGMENT_BYTES as u64)
    }

    /// So many mappings from this address on.
    pub(super) fn code(start: u64, mappings: u64) -> Vec<Stretch> {
        let stretch = |number: u64| {
            let start = start + number * 0x2000;
            Stretch { start, end: start + 0x1000, code: Code::FramePointer }
        };
        (0..mappings).map(stretch).collect()
    }

    /// Publishes a process with a mapping at this address, and returns its generation in the kernel.
    pub(super) fn publish(store: &mut Store, programs: &mut Programs, pid: u32, start: u64) -> u32 {
        store.publish(programs, pid, &code(start, 1), true).expect("there is room");
        programs.process(pid).expect("it is published").generation
    }

    /// No process of this host has such a number.
    pub(super) const PID: u32 = 1 << 23;

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
            assert_eq!(store.blocks.count(), 0);
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
