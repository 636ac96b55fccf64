//! Re-reads processes from `/proc` after their events were lost.
//!
//! The kernel drops process events when a ring is full, and reports the loss. Then any process may
//! have executed another program or mapped unknown code, and its samples would be unwound and
//! symbolized with stale data. A process is also suspected when its stacks repeatedly lead through
//! addresses without a known mapping; a deferred sample waits for the repair. A process whose
//! mapping events were skipped is read afterwards.
//!
//! Invariant: reading is done off the event loop, and the same process is read at most once in
//! [`AGAIN`], but for once more after a loss, and [`MOST_AT_ONCE`] times of one that executes programs or
//! copies its code.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::{Engine, monotonic_nanos};
use crate::processes::scan::{Repair, has_ended};
use crate::processes::table::Change;

/// Time until the same process, or after many losses all processes, are read again.
const AGAIN: Duration = Duration::from_secs(10);
/// Losses until then after which all are read at once: each CPU that is switched on is one.
const FEW_LOSSES: u8 = 8;
/// The time between two of these.
const BETWEEN_LOSSES: Duration = Duration::from_secs(1);
/// A read that takes longer than this counts as hanging.
const BEING_READ: Duration = Duration::from_secs(1);
/// Stacks that end in memory that is not mapped before their process is read.
const SUSPICIOUS: u32 = 3;
/// Reads of a process that do not wait for [`AGAIN`].
const MOST_AT_ONCE: u8 = 4;
/// Processes that are suspected at the same time.
const MOST_SUSPECTS: usize = 4096;

#[derive(Default)]
pub(super) struct Repairs {
    /// Events were lost since all processes were read.
    is_lost: bool,
    last_all: Option<Instant>,
    /// How often all were read since there was no loss for so long as [`AGAIN`].
    losses: u8,
    last_lost: Option<Instant>,
    /// Processes without tables when all others were read after a loss: each at its next sample.
    unread: HashSet<u32>,
    suspects: HashMap<u32, Suspect>,
    /// Processes of which a reading took too long since.
    hung: HashSet<u32>,
    /// Processes that have ended, and when the kernel was asked: events and records of them may still come.
    gone: Vec<u32>,
    gone_at: u64,
    /// Processes whose program or mappings turned out to be out of date.
    pub done: u64,
}

#[derive(Default)]
struct Suspect {
    stacks: u32,
    /// When the last of them was seen.
    seen: Option<Instant>,
    read: Option<Instant>,
    /// Reads of it that did not wait, after [`Repairs::read_at_once`].
    at_once: u8,
}

impl Repairs {
    pub fn events_were_lost(&mut self, now: Instant) {
        self.is_lost = true;
        if self.last_lost.is_some_and(|last| now.saturating_duration_since(last) >= AGAIN) {
            self.losses = 0;
        }
        self.last_lost = Some(now);
    }

    /// All processes are read after a loss; these at their next samples, because they have no tables. What
    /// was read of any before does not count, but one whose events are skipped is read when that ends.
    fn wait_for_samples_of(&mut self, unread: HashSet<u32>) {
        for suspect in self.suspects.values_mut().filter(|suspect| suspect.at_once < MOST_AT_ONCE) {
            suspect.read = None;
        }
        self.unread = unread;
        self.hung.clear();
    }

    /// A stack of a process led to an address without a known mapping.
    pub fn unknown_address(&mut self, pid: u32, now: Instant) {
        if self.suspects.len() < MOST_SUSPECTS || self.suspects.contains_key(&pid) {
            let suspect = self.suspects.entry(pid).or_default();
            suspect.stacks = suspect.stacks.saturating_add(1);
            suspect.seen = Some(now);
        }
    }

    /// A process has an unknown mapping: it is read at once, unless it was read lately. Returns
    /// whether a stack should wait for that.
    pub fn is_missing_some(&mut self, pid: u32, now: Instant) -> bool {
        if self.suspects.len() >= MOST_SUSPECTS && !self.suspects.contains_key(&pid) {
            return false;
        }
        self.unread.remove(&pid);
        let suspect = self.suspects.entry(pid).or_default();
        suspect.stacks = SUSPICIOUS;
        let read = suspect.read.map(|read| now.saturating_duration_since(read));
        read.is_none_or(|since| since < BEING_READ || since >= AGAIN)
    }

    /// What is known of a process is surely not so: it has mapped memory in the middle of a file's code, or
    /// has executed a program without an event. It is read at once, some times also if it was read lately: it
    /// may be starting.
    pub fn is_surely_outdated(&mut self, pid: u32, now: Instant) {
        self.is_missing_some(pid, now);
        self.read_at_once(pid, now);
    }

    /// A process has executed a program: what was read of it before does not count.
    pub fn executed(&mut self, pid: u32, now: Instant) {
        self.read_at_once(pid, now);
    }

    fn read_at_once(&mut self, pid: u32, now: Instant) {
        if let Some(suspect) = self.suspects.get_mut(&pid)
            && suspect.at_once < MOST_AT_ONCE
        {
            suspect.at_once += 1;
            suspect.read = None;
            suspect.seen = Some(now);
        }
    }

    /// From now on a process's mapping events are skipped: it is read when that ends.
    pub fn was_muted(&mut self, pid: u32) {
        self.read_later(pid);
    }

    /// A process is read after a while.
    fn read_later(&mut self, pid: u32) {
        if self.suspects.len() < MOST_SUSPECTS || self.suspects.contains_key(&pid) {
            let read = Some(Instant::now());
            let suspect = Suspect { stacks: SUSPICIOUS, seen: None, read, at_once: MOST_AT_ONCE };
            self.suspects.insert(pid, suspect);
        }
    }

    /// A process changed while it was read, again and again: it is read in a moment.
    fn read_in_a_moment(&mut self, pid: u32, now: Instant) {
        if self.suspects.len() < MOST_SUSPECTS || self.suspects.contains_key(&pid) {
            let suspect = self.suspects.entry(pid).or_default();
            suspect.stacks = SUSPICIOUS;
            suspect.read = now.checked_sub(AGAIN - BEING_READ);
        }
    }

    /// Reading a process took too long. It is read at its next sample, once until there is another loss: each
    /// try of one that hangs for good costs a thread.
    fn hung(&mut self, pid: u32) {
        if self.hung.len() < MOST_SUSPECTS && self.hung.insert(pid) {
            self.unread.insert(pid);
        }
    }

    /// A process that was due is not read yet: it is at the next turn.
    fn stays_due(&mut self, pid: u32) {
        if let Some(suspect) = self.suspects.get_mut(&pid) {
            suspect.stacks = SUSPICIOUS;
            suspect.read = None;
        }
    }

    /// Whether a sampled process has not been read since events were lost.
    pub fn is_unread(&self, pid: u32) -> bool {
        !self.unread.is_empty() && self.unread.contains(&pid)
    }

    /// A process has ended.
    pub fn forget(&mut self, pid: u32) {
        self.unread.remove(&pid);
        self.suspects.remove(&pid);
        self.hung.remove(&pid);
    }

    /// Processes that are to be read now.
    fn due(&mut self, now: Instant) -> Vec<u32> {
        let is_old = |read: Option<Instant>| {
            read.is_none_or(|read| now.saturating_duration_since(read) >= AGAIN)
        };
        let mut due = Vec::new();
        self.suspects.retain(|pid, suspect| {
            if suspect.stacks >= SUSPICIOUS && is_old(suspect.read) {
                due.push(*pid);
                *suspect = Suspect { stacks: 0, read: Some(now), ..*suspect };
            }
            // A few stacks that led nowhere long ago are no reason to remember a process.
            let is_suspected = suspect.stacks >= SUSPICIOUS || !is_old(suspect.seen);
            suspect.stacks > 0 && is_suspected
                || !is_old(suspect.read)
                || suspect.at_once > 0 && !is_old(suspect.seen)
        });
        due
    }

    /// Whether all processes are to be read now.
    fn all_are_due(&mut self, now: Instant) -> bool {
        let pause = if self.losses < FEW_LOSSES { BETWEEN_LOSSES } else { AGAIN };
        let is_due = self.is_lost
            && self.last_all.is_none_or(|last| now.saturating_duration_since(last) >= pause);
        if is_due {
            self.losses = self.losses.saturating_add(1);
            self.is_lost = false;
            self.last_all = Some(now);
        }
        is_due
    }
}

impl Engine {
    /// Requests re-reads of processes whose data may be incomplete, and applies the results.
    pub(super) fn repair(&mut self) {
        let now = self.turn.now;
        let mut pids = self.processes.repairs.due(now);
        if self.processes.repairs.all_are_due(now) {
            self.look_for_those_gone();
            self.processes.scanner.events_were_lost();
            // One that was never sampled, or not for long, is read at its next sample.
            let store = &self.store;
            let unread = self.table.pids().filter(|pid| !store.is_published(*pid));
            self.processes.repairs.wait_for_samples_of(unread.collect());
            pids.extend(self.store.published());
            self.store.withdraw_inherited(&mut self.programs);
            // One that is skipped may be another program by now.
            self.store.take_all_in(&mut self.programs);
            tracing::debug!(processes = pids.len(), "process events were lost: they are read anew");
        }
        for pid in pids {
            if self.processes.scanner.has_enough_repairs() {
                // The rest follows, each at its next sample.
                self.processes.repairs.unread.insert(pid);
                self.processes.repairs.stays_due(pid);
                continue;
            }
            if !self.processes.scanner.ask_repair(&self.table, pid) {
                // Others of its user hang.
                self.processes.repairs.read_later(pid);
            }
        }
        let applied_until = self.turn.applied_until;
        let mut adopted = Vec::new();
        for repair in self.processes.scanner.take_repairs(&mut self.table, applied_until) {
            match repair {
                Repair::Done { pid, change, is_adopted } => {
                    if is_adopted {
                        adopted.push(pid);
                    }
                    self.repaired(pid, &change);
                }
                Repair::Gone { pid } => {
                    if self.table.end(pid) {
                        self.ended(pid);
                    }
                }
                Repair::Hung { pid } => self.processes.repairs.hung(pid),
                Repair::Changing { pid } => self.processes.repairs.read_in_a_moment(pid, now),
                Repair::Later { pid } => self.processes.repairs.read_later(pid),
            }
        }
        self.adopt(&adopted);
        self.end_those_gone();
    }

    /// Processes whose ends were lost have no samples at which they could be read.
    fn look_for_those_gone(&mut self) {
        let living = self.table.pids().filter(|pid| {
            let process = self.table.get(*pid);
            process.is_some_and(|process| !process.exited)
        });
        self.processes.repairs.gone = living.filter(|pid| has_ended(*pid)).collect();
        self.processes.repairs.gone_at = monotonic_nanos();
    }

    /// Once the records and events until then were taken.
    fn end_those_gone(&mut self) {
        let repairs = &mut self.processes.repairs;
        if repairs.gone.is_empty() || self.turn.applied_until < repairs.gone_at {
            return;
        }
        for pid in std::mem::take(&mut repairs.gone) {
            // Another process may have its number by now.
            if has_ended(pid) && self.table.end(pid) {
                self.ended(pid);
            }
        }
    }

    /// The parents of these processes are known by now: they may be followed, and so may their children.
    fn adopt(&mut self, adopted: &[u32]) {
        for newly in self.selection.adopted(&self.table, adopted) {
            self.store.withdraw(&mut self.programs, newly);
            self.look_for_runtime(newly);
            self.processes.dirty.insert(newly);
        }
    }

    /// A process was read, and this was out of date.
    pub(super) fn repaired(&mut self, pid: u32, change: &Change) {
        self.processes.repairs.done += u64::from(*change != Change::None);
        match change {
            Change::Executed { .. } => {
                self.processes.repairs.executed(pid, self.turn.now);
                self.executed_in_wall(pid, monotonic_nanos());
                self.programs.release(pid);
                self.store.set_unwanted(&mut self.programs, pid, 0);
                self.take_last_snapshots(&[pid]);
                self.managed.left(pid);
                self.store.outdate(&mut self.programs, pid);
            }
            Change::Renamed { .. } if !self.selection.is_everything() => {
                self.store.withdraw(&mut self.programs, pid);
            }
            _ => {}
        }
        if self.is_wanted(pid) {
            self.look_for_runtime(pid);
        }
        self.processes.dirty.insert(pid);
    }

    /// Processes repaired after events were lost.
    pub fn repaired_processes(&self) -> u64 {
        self.processes.repairs.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_copies_its_code_is_read_at_once_and_not_without_end() {
        let now = Instant::now();
        let mut repairs = Repairs::default();
        repairs.is_missing_some(7, now);
        assert_eq!(repairs.due(now), [7]);
        let again = || {
            repairs.is_surely_outdated(7, now);
            repairs.due(now).len()
        };
        let reads: usize = std::iter::repeat_with(again).take(100).sum();
        assert_eq!(reads, usize::from(MOST_AT_ONCE));
        assert_eq!(repairs.due(now + AGAIN), [7]);
    }

    #[test]
    fn a_process_is_read_when_its_stacks_lead_nowhere_again_and_again() {
        let mut repairs = Repairs::default();
        let now = Instant::now();
        repairs.unknown_address(7, now);
        assert!(repairs.due(now).is_empty(), "once may be the stack's own fault");
        (0..5).for_each(|_| repairs.unknown_address(7, now));
        assert_eq!(repairs.due(now), [7]);
        (0..50).for_each(|_| repairs.unknown_address(7, now));
        assert!(repairs.due(now).is_empty(), "it was read a moment ago");
        assert_eq!(repairs.due(now + AGAIN), [7]);
    }

    #[test]
    fn processes_with_a_stack_that_led_nowhere_are_forgotten() {
        let mut repairs = Repairs::default();
        let now = Instant::now();
        for pid in 1..=MOST_SUSPECTS as u32 {
            repairs.unknown_address(pid, now);
        }
        assert!(!repairs.is_missing_some(1_000_000, now), "there is no room");
        assert!(repairs.due(now).is_empty() && !repairs.suspects.is_empty());
        assert!(repairs.due(now + AGAIN).is_empty() && repairs.suspects.is_empty());
        assert!(repairs.is_missing_some(1_000_000, now + AGAIN));
        assert_eq!(repairs.due(now + AGAIN), [1_000_000]);
        repairs.stays_due(1_000_000);
        assert_eq!(repairs.due(now + AGAIN), [1_000_000]);
        repairs.forget(1_000_000);
        assert!(repairs.suspects.is_empty());
    }

    #[test]
    fn what_was_read_before_a_loss_is_read_once_more() {
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        assert!(repairs.is_missing_some(7, now));
        assert_eq!(repairs.due(now), [7]);
        repairs.events_were_lost(now);
        assert!(repairs.all_are_due(now));
        repairs.was_muted(8);
        repairs.wait_for_samples_of(HashSet::from([7, 8]));
        assert!(repairs.is_unread(7) && repairs.is_missing_some(7, now) && !repairs.is_unread(7));
        repairs.is_missing_some(8, now);
        assert_eq!(repairs.due(now), [7]);
        repairs.is_missing_some(7, now);
        assert!(repairs.due(now).is_empty());
    }

    #[test]
    fn what_is_surely_missing_is_read_at_once_and_waited_for_but_not_for_long() {
        let mut repairs = Repairs::default();
        let now = Instant::now();
        assert!(repairs.is_missing_some(7, now));
        assert_eq!(repairs.due(now), [7]);
        assert!(repairs.is_missing_some(7, now + BEING_READ / 2), "it is being read");
        assert!(!repairs.is_missing_some(7, now + BEING_READ), "reading it has not helped");
        assert!(repairs.due(now + BEING_READ).is_empty());
        assert_eq!(repairs.due(now + AGAIN), [7]);
    }

    #[test]
    fn a_muted_process_is_read_when_it_is_heard_again() {
        let mut repairs = Repairs::default();
        repairs.was_muted(7);
        let now = Instant::now();
        assert!(repairs.due(now).is_empty());
        assert_eq!(repairs.due(now + AGAIN), [7]);
    }

    #[test]
    fn losses_have_all_processes_read_and_not_without_end() {
        let mut repairs = Repairs::default();
        let now = Instant::now();
        assert!(!repairs.all_are_due(now));
        repairs.events_were_lost(now);
        assert!(repairs.all_are_due(now) && !repairs.all_are_due(now));
        repairs.events_were_lost(now);
        assert!(repairs.all_are_due(now + BETWEEN_LOSSES), "CPUs are switched on one by one");
        // A flood.
        let mut often = 0;
        for millis in 0..60_000 {
            let now = now + Duration::from_millis(2_000 + millis);
            repairs.events_were_lost(now);
            often += u8::from(repairs.all_are_due(now));
        }
        assert!((10..=13).contains(&often), "{often} times in a minute");
        let later = now + Duration::from_secs(62) + AGAIN;
        repairs.events_were_lost(later);
        assert!(repairs.all_are_due(later));
        repairs.events_were_lost(later + BETWEEN_LOSSES);
        assert!(repairs.all_are_due(later + BETWEEN_LOSSES));
    }

    #[test]
    fn a_process_that_changes_while_it_is_read_is_read_in_a_moment_and_one_that_hangs_once() {
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        repairs.read_in_a_moment(7, now);
        assert!(repairs.due(now).is_empty());
        assert_eq!(repairs.due(now + BEING_READ), [7]);
        repairs.hung(8);
        assert!(repairs.is_unread(8) && repairs.is_missing_some(8, now) && !repairs.is_unread(8));
        repairs.hung(8);
        assert!(!repairs.is_unread(8), "each try may cost a thread");
        repairs.wait_for_samples_of(HashSet::new());
        repairs.hung(8);
        assert!(repairs.is_unread(8));
    }

    #[test]
    fn what_was_read_of_the_program_before_does_not_count() {
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        let mut reads = 0;
        for _ in 0..100 {
            repairs.is_missing_some(7, now);
            reads += repairs.due(now).len();
            repairs.executed(7, now);
            reads += repairs.due(now).len();
        }
        assert_eq!(reads, 1 + usize::from(MOST_AT_ONCE));
    }
}
