//! Whose memory passes over threads do not read, because a reader hung at it.
//!
//! A read may hang because its process wants it to, or because swap space or a network's file system
//! is slow for a while. So a process is tried again some time after its reader has come back, and
//! later each time. A user other than root whose processes hang readers again and again, or hold
//! several at once, is left alone with all of them for a while.
//!
//! Invariant: what is kept is bounded by how often readers can hang: each costs a second.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::blocking_reader::{Owner, ROOT};

/// A process is tried again after so long, and each time after twice as long.
const FIRST: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(3600);
/// Readers that may hang at processes of one user, at the same time or in [`LATELY`].
const OF_ONE: usize = 4;
const LATELY: Duration = Duration::from_secs(600);

#[derive(Clone, Default)]
pub(super) struct Quarantine {
    processes: HashMap<u32, Hangs>,
    /// Users at whose processes a reader hung, and when.
    lately: Vec<(Owner, Instant)>,
    /// Readers that have not come back, by process and its user. Of an image that is gone the
    /// process is 0.
    hanging: Vec<(u32, Owner)>,
}

/// How often readers hung at a process, and when the last one did.
#[derive(Clone, Copy)]
struct Hangs {
    count: u32,
    last: Instant,
}

impl Hangs {
    fn is_over(self, now: Instant) -> bool {
        let doubled = FIRST.saturating_mul(1 << self.count.saturating_sub(1).min(16));
        now.saturating_duration_since(self.last) >= doubled.min(LONGEST)
    }
}

impl Quarantine {
    /// A reader hangs at a process.
    pub(super) fn hung(&mut self, pid: u32, user: Owner, now: Instant) {
        let count = self.processes.get(&pid).map_or(0, |hangs| hangs.count);
        self.processes.insert(pid, Hangs { count: count.saturating_add(1), last: now });
        self.hanging.push((pid, user));
        self.lately.push((user, now));
    }

    /// A reader that hung at a process has ended: what it read has answered, or has gone.
    pub(super) fn came_back(&mut self, pid: u32, user: Owner) {
        let its = |&(of, by): &(u32, Owner)| by == user && (of == pid || of == 0);
        if let Some(place) = self.hanging.iter().position(its) {
            self.hanging.swap_remove(place);
        }
    }

    /// The process has ended, or executes another program: its memory is another one's.
    pub(super) fn release(&mut self, pid: u32) {
        if self.processes.remove(&pid).is_some() {
            let own = self.hanging.iter_mut().filter(|(of, _)| *of == pid);
            own.for_each(|(of, _)| *of = 0);
        }
    }

    /// Whether there may be something to try again.
    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.lately.is_empty()
    }

    /// Processes whose memory is not read now.
    pub(super) fn processes(&mut self, now: Instant) -> HashSet<u32> {
        // One that has not hung for long is forgotten.
        let is_hanging = |pid: u32| self.hanging.iter().any(|(of, _)| *of == pid);
        self.processes.retain(|pid, hangs| {
            is_hanging(*pid) || now.saturating_duration_since(hangs.last) < LONGEST * 2
        });
        let held = self.processes.iter();
        let held = held.filter(|(pid, hangs)| is_hanging(**pid) || !hangs.is_over(now));
        held.map(|(pid, _)| *pid).collect()
    }

    /// Users none of whose processes' memory is read now.
    pub(super) fn users(&mut self, now: Instant) -> HashSet<Owner> {
        self.lately.retain(|(_, at)| now.saturating_duration_since(*at) < LATELY);
        let hanging = self.hanging.iter().map(|(_, user)| *user);
        let lately = self.lately.iter().map(|(user, _)| *user);
        let [mut at_once, mut often]: [HashMap<Owner, usize>; 2] = Default::default();
        hanging.for_each(|user| *at_once.entry(user).or_default() += 1);
        lately.for_each(|user| *often.entry(user).or_default() += 1);
        let all = at_once.into_iter().chain(often);
        all.filter(|(user, count)| *user != ROOT && *count >= OF_ONE)
            .map(|(user, _)| user)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_process_is_tried_again_once_its_reader_is_back_and_later_each_time() {
        let (mut quarantine, mut now) = (Quarantine::default(), Instant::now());
        let mut held_for = Vec::new();
        for _ in 0..10 {
            quarantine.hung(7, 1000, now);
            // Nothing answers for an hour and a half.
            let at = now + 90 * 60 * SECOND;
            assert!(quarantine.processes(at).contains(&7));
            quarantine.came_back(7, 1000);
            let mut seconds = 0;
            while quarantine.processes(now + seconds * SECOND).contains(&7) {
                seconds += 1;
            }
            held_for.push(seconds);
            now += seconds * SECOND;
        }
        assert_eq!(held_for, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
        // One that has answered for long begins anew.
        assert!(quarantine.processes(now + 2 * LONGEST).is_empty());
        assert!(quarantine.users(now + 2 * LONGEST).is_empty() && quarantine.is_empty());
    }

    #[test]
    fn a_program_that_was_just_executed_is_read() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        quarantine.hung(7, 1000, now);
        quarantine.release(7);
        assert!(quarantine.processes(now).is_empty());
        // Its reader still counts for its user.
        assert_eq!(quarantine.hanging, [(0, 1000)]);
        quarantine.came_back(7, 1000);
        assert!(quarantine.hanging.is_empty());
    }

    #[test]
    fn a_user_whose_processes_hold_several_readers_is_left_alone_and_no_other_one() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        for pid in 1..4 {
            quarantine.hung(pid, 1000, now);
            quarantine.hung(100 + pid, 1001, now);
        }
        assert!(quarantine.users(now).is_empty());
        quarantine.hung(4, 1000, now);
        assert_eq!(quarantine.users(now), HashSet::from([1000]));
        // For a while, and as long as they hang.
        let mut answering = quarantine.clone();
        (1..5).for_each(|pid| answering.came_back(pid, 1000));
        assert_eq!(answering.users(now + SECOND), HashSet::from([1000]));
        assert!(answering.users(now + LATELY).is_empty());
        assert_eq!(quarantine.users(now + 2 * LATELY), HashSet::from([1000]));
    }

    #[test]
    fn a_user_whose_processes_hang_readers_by_turns_is_left_alone_for_a_while() {
        let (mut quarantine, mut now) = (Quarantine::default(), Instant::now());
        for _ in 0..4 {
            now += 2 * SECOND;
            quarantine.hung(7, 1000, now);
            quarantine.came_back(7, 1000);
            // It executes itself, so that it is another program's memory.
            quarantine.release(7);
        }
        assert_eq!(quarantine.users(now), HashSet::from([1000]));
        assert!(quarantine.users(now + LATELY).is_empty());
    }

    #[test]
    fn root_is_not_left_alone_with_all_of_its_processes() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        (1..20).for_each(|pid| quarantine.hung(pid, ROOT, now));
        assert!(quarantine.users(now).is_empty());
        assert_eq!(quarantine.processes(now).len(), 19);
    }
}
