//! Threads that were switched lately. Between two passes over all threads, passes go over these alone.
//!
//! A look at a thread that has not moved costs half a microsecond, most of it the kernel's iterator's, and
//! most threads of a host have not moved for long. Nothing is lost where they are looked at more rarely:
//! while a thread stays, its time is exact. Only when it goes on again is known less exactly, by a quarter
//! of the time that it stayed at most, and by two seconds, or as long as the share of a CPU that passes have
//! puts off the next one over all.
//!
//! Invariant: what is kept is bounded. Where more threads are active than fit, passes go over all threads.

use std::collections::{BTreeMap, HashMap};

use crate::kernel::thread_reader::{MOST_TARGETS, Target};

/// Threads at most, and processes.
const MOST: usize = 4096;
/// As many threads as a link of its own costs: it is opened and read by itself.
const LINK: usize = 13;
/// What a thread costs that has not moved, in nanoseconds.
const LOOK: u64 = 600;

#[derive(Default)]
pub(super) struct ActiveThreads {
    /// By thread: its process, and when it last moved.
    threads: HashMap<u32, (u32, u64)>,
    /// Processes that start threads, or have just begun, and when that was.
    starting: HashMap<u32, u64>,
    /// When one found no room last.
    refused: Option<u64>,
}

/// What is to be walked, and what that costs about, in nanoseconds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Targets {
    pub(super) targets: Vec<Target>,
    pub(super) cost: u64,
}

impl ActiveThreads {
    /// A thread was switched. True if it was not among these before.
    pub(super) fn moved(&mut self, pid: u32, tid: u32, time: u64) -> bool {
        if self.threads.len() >= MOST && !self.threads.contains_key(&tid) {
            self.refused = Some(time);
            return false;
        }
        self.threads.insert(tid, (pid, time)).is_none()
    }

    pub(super) fn ended(&mut self, tid: u32) {
        self.threads.remove(&tid);
    }

    /// A process has ended.
    pub(super) fn exited(&mut self, pid: u32) {
        self.starting.remove(&pid);
    }

    /// A process has begun, or has a new thread: more may come. True if it was not among these before.
    pub(super) fn starts(&mut self, pid: u32, time: u64) -> bool {
        if self.starting.len() >= MOST && !self.starting.contains_key(&pid) {
            self.refused = Some(time);
            return false;
        }
        self.starting.insert(pid, time).is_none()
    }

    /// What has moved since `since`; `None` if it is too much. `count` says how many threads a process has.
    pub(super) fn since(&mut self, since: u64, count: impl Fn(u32) -> usize) -> Option<Targets> {
        self.threads.retain(|_, (_, time)| *time >= since);
        // Each look goes over all places: those of the many that moved at first are given back.
        if self.threads.len() * 8 < self.threads.capacity() {
            self.threads.shrink_to(self.threads.len() * 2);
        }
        self.starting.retain(|_, time| *time >= since);
        if self.refused.is_some_and(|time| time >= since) || self.starting.len() > MOST_TARGETS {
            return None;
        }
        self.refused = None;
        let mut active: BTreeMap<u32, Vec<u32>> =
            self.starting.keys().map(|pid| (*pid, Vec::new())).collect();
        for (tid, (pid, _)) in &self.threads {
            active.entry(*pid).or_default().push(*tid);
        }
        let mut found = Targets { targets: Vec::new(), cost: 0 };
        for (pid, threads) in active {
            let by_thread = LINK * threads.len();
            let all = count(pid);
            let looks = if self.starting.contains_key(&pid) || all + LINK <= by_thread {
                found.targets.push(Target::Process(pid));
                all + LINK
            } else {
                found.targets.extend(threads.into_iter().map(Target::Thread));
                by_thread
            };
            found.cost += looks as u64 * LOOK;
            if found.targets.len() > MOST_TARGETS {
                return None;
            }
        }
        found.targets.sort_unstable();
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(active: &mut ActiveThreads, since: u64) -> Option<Vec<Target>> {
        // Process 1 has 2,000 threads, each other one 4.
        let of = |pid| if pid == 1 { 2_000 } else { 4 };
        active.since(since, of).map(|found| found.targets)
    }

    #[test]
    fn few_threads_of_many_are_walked_one_by_one_and_many_of_few_together() {
        let mut active = ActiveThreads::default();
        assert!(active.moved(1, 11, 5) && !active.moved(1, 11, 6) && active.moved(1, 12, 6));
        assert!(active.moved(2, 21, 6) && active.moved(2, 22, 6));
        let both = vec![Target::Process(2), Target::Thread(11), Target::Thread(12)];
        assert_eq!(targets(&mut active, 0), Some(both));
        for tid in 100..140 {
            active.moved(1, tid, 7);
        }
        let forty: Vec<Target> = (100..140).map(Target::Thread).collect();
        assert_eq!(targets(&mut active, 7), Some(forty));
        active.ended(100);
        active.starts(1, 8);
        assert_eq!(targets(&mut active, 8), Some(vec![Target::Process(1)]));
        active.starts(2, 9);
        active.exited(2);
        assert_eq!(targets(&mut active, 9), Some(vec![]));
    }

    #[test]
    fn where_there_are_too_many_all_threads_are_walked() {
        let mut active = ActiveThreads::default();
        for tid in 0..65 {
            active.moved(1, tid, 1);
        }
        assert_eq!(targets(&mut active, 1), None);
        for number in 0..2 * MOST as u32 {
            active.moved(number, number, 2);
            active.starts(number, 2);
        }
        assert!(active.threads.len() <= MOST && active.starting.len() <= MOST);
        assert_eq!(targets(&mut active, 2), None);
        // Also once the few that are kept have moved no more: those that found no room may have.
        assert_eq!(targets(&mut active, 3), Some(vec![]));
    }
}
