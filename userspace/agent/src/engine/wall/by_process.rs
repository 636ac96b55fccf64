//! The numbers of threads, by process.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

/// Process and thread.
pub(super) type Numbers = (u32, u32);

#[derive(Default)]
pub(super) struct ByProcess {
    all: BTreeSet<Numbers>,
    /// How many each process has.
    counts: HashMap<u32, usize>,
}

impl ByProcess {
    pub(super) fn insert(&mut self, pid: u32, tid: u32) {
        if self.all.insert((pid, tid)) {
            *self.counts.entry(pid).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, pid: u32, tid: u32) {
        if !self.all.remove(&(pid, tid)) {
            return;
        }
        if let Some(count) = self.counts.get_mut(&pid) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&pid);
            }
        }
    }

    pub(super) fn contains(&self, numbers: Numbers) -> bool {
        self.all.contains(&numbers)
    }

    pub(super) fn threads_of(&self, pid: u32) -> Vec<u32> {
        self.all.range((pid, 0)..=(pid, u32::MAX)).map(|(_, tid)| *tid).collect()
    }

    pub(super) fn count_of(&self, pid: u32) -> usize {
        self.counts.get(&pid).copied().unwrap_or_default()
    }

    pub(super) fn after(&self, last: Numbers) -> impl Iterator<Item = Numbers> + '_ {
        self.all.range((Bound::Excluded(last), Bound::Unbounded)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_as_many_as_were_inserted_and_not_removed() {
        let mut threads = ByProcess::default();
        for (pid, tid) in [(1, 1), (1, 2), (1, 2), (2, 7)] {
            threads.insert(pid, tid);
        }
        assert_eq!([1, 2, 3].map(|pid| threads.count_of(pid)), [2, 1, 0]);
        for (pid, tid) in [(1, 2), (1, 2), (1, 3), (2, 7), (3, 1)] {
            threads.remove(pid, tid);
        }
        assert_eq!([1, 2, 3].map(|pid| threads.count_of(pid)), [1, 0, 0]);
        assert_eq!(threads.counts.len(), 1);
    }
}
