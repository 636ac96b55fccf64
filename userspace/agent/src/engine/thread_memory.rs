//! The memory of what is kept of threads (waits, accounts of wall-clock time), by process.
//!
//! A process that is alone may use most of it: the last quarter is for processes that have less than a
//! quarter. When one of those finds no room, users give back what is beyond an equal share of the
//! memory, and within a user processes what is beyond an equal share of the user's: a share that is not
//! used up is the others'. A sixteenth becomes free, so that as much is admitted again before that
//! happens once more.
//!
//! Invariant: a process of which nothing is kept finds room. One with less than a quarter is refused only
//! while its user and it have their shares, to within a sixteenth; one with more, while less than a
//! quarter is free.

use crate::blocking_reader::{Owner, ROOT};
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
    /// Of processes, other than root.
    users: HashMap<u32, Owner>,
    shares: Shares,
    /// Bytes taken since these were computed.
    taken: usize,
}

/// What the processes of a user may have each, of users that have more than their share.
#[derive(Default)]
struct Shares(HashMap<Owner, usize>);

impl<const LIMIT: usize> ThreadMemory<LIMIT> {
    /// Up to here a process may use what others have left.
    const SHARE: usize = LIMIT / 4;
    /// Up to here a process may have more.
    const FREE: usize = LIMIT - LIMIT / 4;
    /// What becomes free at once; shares that are older than so many bytes are computed again.
    const STEP: usize = LIMIT / 16;

    pub fn admits(&mut self, pid: u32, bytes: usize) -> Admission {
        let used = self.used.saturating_add(bytes);
        let own = self.of(pid);
        let most = if own.saturating_add(bytes) > Self::SHARE { Self::FREE } else { LIMIT };
        if used <= most {
            return Admission::Admitted;
        }
        if most < LIMIT {
            return Admission::Refused;
        }
        if own > 0 && self.taken >= Self::STEP {
            self.shares = self.shares();
            self.taken = 0;
        }
        let share = self.shares.0.get(&self.user_of(pid));
        let has_share = own > 0 && share.is_some_and(|share| own.saturating_add(bytes) > *share);
        if has_share { Admission::Refused } else { Admission::AfterExcess }
    }

    pub fn take(&mut self, pid: u32, bytes: usize) {
        self.taken = self.taken.saturating_add(bytes);
        self.set(pid, self.of(pid).saturating_add(bytes));
    }

    pub fn give_back(&mut self, pid: u32, bytes: usize) {
        self.set(pid, self.of(pid).saturating_sub(bytes));
    }

    /// Whose process it is.
    pub fn note_user(&mut self, pid: u32, user: Owner) {
        match user {
            ROOT => self.users.remove(&pid),
            _ => self.users.insert(pid, user),
        };
    }

    /// Forgets the users of processes that are gone.
    pub fn retain_users(&mut self, is_there: impl Fn(u32) -> bool) {
        self.users.retain(|pid, _| is_there(*pid));
    }

    /// What is given back of each process, so that others find room.
    pub fn excess(&mut self) -> Excess {
        self.shares = self.shares();
        self.taken = 0;
        let beyond = |(pid, bytes): (&u32, &usize)| {
            let share = self.shares.0.get(&self.user_of(*pid))?;
            Some((*pid, bytes.checked_sub(*share).filter(|beyond| *beyond > 0)?))
        };
        let of_process = self.by_process.iter().filter_map(beyond).collect();
        Excess { of_process, needed: self.used.saturating_sub(LIMIT - Self::STEP) }
    }

    /// The shares by which all would use a sixteenth less than there is.
    fn shares(&self) -> Shares {
        let mut by_user: HashMap<Owner, Vec<usize>> = HashMap::default();
        for (pid, bytes) in &self.by_process {
            by_user.entry(self.user_of(*pid)).or_default().push(*bytes);
        }
        let of_users = by_user.values().map(|all| all.iter().sum()).collect();
        let Some(of_user) = equal_share(of_users, LIMIT - Self::STEP) else {
            return Shares::default();
        };
        let of_processes =
            by_user.into_iter().filter_map(|(user, all)| Some((user, equal_share(all, of_user)?)));
        Shares(of_processes.collect())
    }

    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.used
    }

    pub fn of(&self, pid: u32) -> usize {
        self.by_process.get(&pid).copied().unwrap_or_default()
    }

    fn user_of(&self, pid: u32) -> Owner {
        self.users.get(&pid).copied().unwrap_or(ROOT)
    }

    fn set(&mut self, pid: u32, bytes: usize) {
        let before = match bytes {
            0 => self.by_process.remove(&pid),
            _ => self.by_process.insert(pid, bytes),
        };
        let before = before.unwrap_or_default();
        self.used = self.used.saturating_sub(before).saturating_add(bytes);
    }
}

/// What each may have of `most`, where those that have less leave the rest to the others. `None`: all
/// of it is no more than that.
fn equal_share(mut amounts: Vec<usize>, most: usize) -> Option<usize> {
    amounts.sort_unstable();
    let (mut left, count) = (most, amounts.len());
    for (position, amount) in amounts.into_iter().enumerate() {
        let share = left / (count - position);
        if amount > share {
            return Some(share);
        }
        left -= amount;
    }
    None
}

/// Bytes that processes have to give back.
pub(super) struct Excess {
    of_process: HashMap<u32, usize>,
    needed: usize,
}

impl Excess {
    /// Whether something of this process is given back; it is counted as such.
    pub fn includes(&mut self, pid: u32, bytes: usize) -> bool {
        if self.needed == 0 {
            return false;
        }
        let Some(left) = self.of_process.get_mut(&pid).filter(|left| **left > 0) else {
            return false;
        };
        *left = left.saturating_sub(bytes);
        self.needed = self.needed.saturating_sub(bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Memory = ThreadMemory<1_600>;

    /// Has processes give back their excess, in parts of ten bytes.
    fn give_back(memory: &mut Memory) {
        let mut excess = memory.excess();
        let mut pids: Vec<u32> = memory.by_process.keys().copied().collect();
        pids.sort_unstable();
        for pid in pids {
            while memory.of(pid) > 0 && excess.includes(pid, 10) {
                memory.give_back(pid, 10);
            }
        }
    }

    /// Takes as much as a process gets, in parts of ten bytes, and what others lose for it.
    fn fill(memory: &mut Memory, pid: u32) -> usize {
        loop {
            match memory.admits(pid, 10) {
                Admission::Admitted => memory.take(pid, 10),
                Admission::AfterExcess => give_back(memory),
                Admission::Refused => return memory.of(pid),
            }
            assert!(memory.used() <= 1_600);
        }
    }

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
    fn the_place_of_a_newcomer_is_taken_from_the_process_that_has_most() {
        let mut memory = Memory::default();
        for (pid, bytes) in [(1, 1_200), (2, 400)] {
            memory.take(pid, bytes);
        }
        assert_eq!(memory.admits(3, 10), Admission::AfterExcess);
        give_back(&mut memory);
        assert_eq!([1, 2].map(|pid| memory.of(pid)), [1_100, 400]);
        assert_eq!(memory.admits(3, 10), Admission::Admitted);
        // What is given back is not the heavy one's again before a quarter of all is free.
        assert_eq!(memory.admits(1, 10), Admission::Refused);
    }

    #[test]
    fn processes_that_fill_it_together_leave_each_newcomer_as_much_as_they_keep() {
        let mut memory = Memory::default();
        for pid in 1..=4 {
            memory.note_user(pid, 1_000);
            memory.take(pid, 400);
        }
        // One of the same user, and more of them; each grows until it has what the others have.
        for (pid, least) in [(5, 280), (6, 230)] {
            memory.note_user(pid, 1_000);
            let own = fill(&mut memory, pid);
            assert!((least..=400).contains(&own), "{pid}: {own}");
            for other in 1..pid {
                assert!(memory.of(other) + 100 >= own, "{other}: {}", memory.of(other));
            }
        }
        // They can take nothing of it back.
        let before = memory.of(6);
        for pid in 1..=4 {
            fill(&mut memory, pid);
        }
        assert!(memory.of(6) + 50 >= before, "{} {before}", memory.of(6));
    }

    #[test]
    fn processes_of_one_user_leave_those_of_another_as_much_together() {
        let mut memory = Memory::default();
        for pid in 1..=160 {
            memory.note_user(pid, 1_000);
            memory.take(pid, 10);
        }
        for pid in [1_001, 1_002] {
            memory.note_user(pid, 1_001);
            assert!(fill(&mut memory, pid) >= 300, "{pid}: {}", memory.of(pid));
        }
        let of_first = memory.used() - memory.of(1_001) - memory.of(1_002);
        assert!(of_first >= 700, "{of_first}");
        // A user's next process has a place of another one of that user.
        memory.note_user(161, 1_000);
        let others = memory.of(1_001) + memory.of(1_002);
        while memory.admits(161, 10) == Admission::AfterExcess {
            give_back(&mut memory);
        }
        assert_eq!(memory.admits(161, 10), Admission::Admitted);
        assert!(memory.of(1_001) + memory.of(1_002) + 100 >= others);
    }

    #[test]
    fn what_is_given_back_leaves_nothing_behind() {
        let mut memory = Memory::default();
        memory.note_user(1, 7);
        memory.take(1, 1_000);
        memory.take(1, 10);
        memory.give_back(1, 1_010);
        memory.retain_users(|_| false);
        assert_eq!((memory.used(), memory.by_process.len(), memory.users.len()), (0, 0, 0));
    }

    #[test]
    fn a_share_that_is_not_used_up_is_the_others() {
        assert_eq!(equal_share(vec![10, 20, 30], 60), None);
        assert_eq!(equal_share(vec![10, 100, 200], 110), Some(50));
        assert_eq!(equal_share(vec![100; 4], 100), Some(25));
        assert_eq!(equal_share(Vec::new(), 0), None);
    }
}
