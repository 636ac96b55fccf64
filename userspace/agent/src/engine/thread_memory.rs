//! The memory of what is kept of threads (waits, accounts of wall-clock time), by process.
//!
//! A process that is alone may use most of it. The last quarter of it is for processes that have
//! less than a quarter, and when one of those finds no room, those that have more give the excess
//! back: as much is admitted again before that happens once more.
//!
//! Invariant: while a process with less than a quarter is refused, none has more than a quarter.

use crate::hash::HashMap;

/// Whether something more is kept of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Admitted,
    /// Once other processes have given back their [`ThreadMemory::excess`].
    AfterExcess,
    Refused,
}

/// The bytes in use, of `LIMIT`.
#[derive(Default)]
pub(super) struct ThreadMemory<const LIMIT: usize> {
    used: usize,
    by_process: HashMap<u32, usize>,
    /// Processes that have more than a quarter.
    heavy: usize,
}

impl<const LIMIT: usize> ThreadMemory<LIMIT> {
    /// Of one process, when others need memory too.
    const SHARE: usize = LIMIT / 4;
    /// Up to here a process may exceed its share.
    const FREE: usize = LIMIT - LIMIT / 4;

    pub fn admits(&self, pid: u32, bytes: usize) -> Admission {
        let used = self.used.saturating_add(bytes);
        let is_heavy = self.of(pid).saturating_add(bytes) > Self::SHARE;
        match is_heavy {
            true if used <= Self::FREE => Admission::Admitted,
            false if used <= LIMIT => Admission::Admitted,
            false if self.heavy > 0 => Admission::AfterExcess,
            _ => Admission::Refused,
        }
    }

    pub fn take(&mut self, pid: u32, bytes: usize) {
        self.set(pid, self.of(pid).saturating_add(bytes));
    }

    pub fn give_back(&mut self, pid: u32, bytes: usize) {
        self.set(pid, self.of(pid).saturating_sub(bytes));
    }

    /// What each process has beyond its share.
    pub fn excess(&self) -> Excess {
        let beyond = |(pid, bytes): (&u32, &usize)| {
            Some((*pid, bytes.checked_sub(Self::SHARE).filter(|beyond| *beyond > 0)?))
        };
        Excess(self.by_process.iter().filter_map(beyond).collect())
    }

    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.used
    }

    pub fn of(&self, pid: u32) -> usize {
        self.by_process.get(&pid).copied().unwrap_or_default()
    }

    fn set(&mut self, pid: u32, bytes: usize) {
        let before = match bytes {
            0 => self.by_process.remove(&pid),
            _ => self.by_process.insert(pid, bytes),
        };
        let before = before.unwrap_or_default();
        self.used = self.used.saturating_sub(before).saturating_add(bytes);
        self.heavy = self.heavy.saturating_sub(usize::from(before > Self::SHARE))
            + usize::from(bytes > Self::SHARE);
    }
}

/// Bytes that processes have to give back.
pub(super) struct Excess(HashMap<u32, usize>);

impl Excess {
    /// Whether something of this process is given back; it is counted as such.
    pub fn includes(&mut self, pid: u32, bytes: usize) -> bool {
        let Some(left) = self.0.get_mut(&pid).filter(|left| **left > 0) else { return false };
        *left = left.saturating_sub(bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Memory = ThreadMemory<1_600>;

    #[test]
    fn a_process_that_is_alone_leaves_a_quarter_to_others() {
        let mut memory = Memory::default();
        assert_eq!(memory.admits(1, 1_200), Admission::Admitted);
        memory.take(1, 1_200);
        assert_eq!(memory.admits(1, 1), Admission::Refused);
        assert_eq!(memory.admits(2, 400), Admission::Admitted);
        assert_eq!(memory.admits(2, 401), Admission::Refused);
    }

    #[test]
    fn a_process_below_its_share_is_refused_only_when_none_is_above() {
        let mut memory = Memory::default();
        for (pid, bytes) in [(1, 1_200), (2, 400)] {
            memory.take(pid, bytes);
        }
        assert_eq!(memory.admits(3, 10), Admission::AfterExcess);
        let mut excess = memory.excess();
        let given_back = (0..100).filter(|_| excess.includes(1, 10)).count();
        assert_eq!(given_back, 80);
        assert!(!excess.includes(2, 10), "it has its share");
        memory.give_back(1, 800);
        assert_eq!(memory.admits(3, 10), Admission::Admitted);
        for (pid, bytes) in [(3, 400), (4, 400)] {
            memory.take(pid, bytes);
        }
        assert_eq!(memory.admits(5, 10), Admission::Refused);
        // What is given back is not the heavy one's again before a quarter of all is free.
        memory.give_back(2, 300);
        assert_eq!(memory.admits(1, 10), Admission::Refused);
        assert_eq!(memory.admits(5, 10), Admission::Admitted);
    }

    #[test]
    fn what_is_given_back_leaves_nothing_behind() {
        let mut memory = Memory::default();
        memory.take(1, 1_000);
        memory.take(1, 10);
        memory.give_back(1, 1_010);
        assert_eq!((memory.used(), memory.by_process.len(), memory.heavy), (0, 0, 0));
    }
}
