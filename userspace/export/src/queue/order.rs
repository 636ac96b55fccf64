//! The undelivered batches, in the order of their time, and the choice of the next.
//!
//! Pure. Bodies may be in memory, on disk, or both; this knows where each is.

use std::collections::BTreeMap;

use crate::Batch;

use crate::queue::clock::Moment;
use crate::spool::Key;

/// Every so many failures in a row, another batch is tried: the failure may be caused by this one.
const SECOND_OPINION: u32 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) profiles: u32,
    /// In memory or on disk.
    pub(crate) bytes: usize,
    /// Whether the spool has it.
    pub(crate) is_stored: bool,
    /// The batch, if it is in memory.
    pub(crate) kept: Option<Batch>,
    /// How often it was tried.
    pub(crate) attempts: u32,
    /// The server took others while it failed on this one.
    pub(crate) is_suspect: bool,
    pub(crate) not_before: Option<Moment>,
}

impl Pending {
    pub(crate) fn new(batch: Batch) -> Self {
        Self {
            profiles: batch.profiles,
            bytes: batch.body.len(),
            is_stored: false,
            kept: Some(batch),
            attempts: 0,
            is_suspect: false,
            not_before: None,
        }
    }

    pub(crate) fn stored(profiles: u32, bytes: u64) -> Self {
        Self {
            profiles,
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            is_stored: true,
            kept: None,
            attempts: 0,
            is_suspect: false,
            not_before: None,
        }
    }

    fn kept_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, |batch| batch.body.len())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pending: BTreeMap<Key, Pending>,
    kept_bytes: usize,
    unstored: usize,
}

impl Queue {
    pub(crate) fn insert(&mut self, key: Key, pending: Pending) {
        self.remove(key);
        self.kept_bytes = self.kept_bytes.saturating_add(pending.kept_bytes());
        self.unstored += usize::from(!pending.is_stored);
        self.pending.insert(key, pending);
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Pending> {
        let pending = self.pending.remove(&key)?;
        self.kept_bytes = self.kept_bytes.saturating_sub(pending.kept_bytes());
        self.unstored = self.unstored.saturating_sub(usize::from(!pending.is_stored));
        Some(pending)
    }

    /// Changes one, wherever it is.
    pub(crate) fn update(&mut self, key: Key, change: impl FnOnce(&mut Pending)) {
        if let Some(mut pending) = self.remove(key) {
            change(&mut pending);
            self.insert(key, pending);
        }
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.pending.contains_key(&key)
    }

    /// The batch, if it is in memory.
    pub(crate) fn body(&self, key: Key) -> Option<&Batch> {
        self.pending.get(&key)?.kept.as_ref()
    }

    pub(crate) fn bytes_of(&self, key: Key) -> usize {
        self.pending.get(&key).map_or(0, |pending| pending.bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Bytes of bodies in memory.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// How many are in memory only.
    pub(crate) fn unstored(&self) -> usize {
        self.unstored
    }

    pub(crate) fn unstored_keys(&self) -> Vec<Key> {
        if self.unstored == 0 {
            return Vec::new();
        }
        let unstored = self.pending.iter().filter(|(_, pending)| !pending.is_stored);
        unstored.map(|(&key, _)| key).collect()
    }

    pub(crate) fn oldest_unstored(&self) -> Option<Key> {
        if self.unstored == 0 {
            return None;
        }
        self.pending.iter().find(|(_, pending)| !pending.is_stored).map(|(&key, _)| key)
    }

    pub(crate) fn oldest(&self) -> Option<Key> {
        self.pending.first_key_value().map(|(&key, _)| key)
    }

    /// The keys of those that the spool has, or should have.
    pub(crate) fn stored_keys(&self) -> Vec<Key> {
        let stored = self.pending.iter().filter(|(_, pending)| pending.is_stored);
        stored.map(|(&key, _)| key).collect()
    }

    /// Takes out what began before `oldest`.
    pub(crate) fn take_older(&mut self, oldest: i64) -> Vec<(Key, Pending)> {
        let mut taken = Vec::new();
        while let Some(key) = self.oldest().filter(|key| key.oldest < oldest) {
            taken.extend(self.remove(key).map(|pending| (key, pending)));
        }
        taken
    }

    /// Drops bodies that the spool has from memory, newest first, until no more than `most` remain.
    pub(crate) fn forget_bodies(&mut self, most: usize) {
        if self.kept_bytes <= most {
            return;
        }
        for pending in self.pending.values_mut().rev().filter(|pending| pending.is_stored) {
            self.kept_bytes = self.kept_bytes.saturating_sub(pending.kept_bytes());
            pending.kept = None;
            if self.kept_bytes <= most {
                return;
            }
        }
    }

    /// The next batch: the oldest. While the server fails, every fourth request takes the one after
    /// it.
    pub(crate) fn next(&self, now: Moment, failures: u32) -> Option<Key> {
        let is_due = |pending: &Pending| pending.not_before.is_none_or(|moment| moment <= now);
        let mut due = self.pending.iter().filter(|(_, pending)| is_due(pending));
        let (&first, _) = due.next()?;
        if failures > 0 && failures.is_multiple_of(SECOND_OPINION) {
            return Some(due.next().map_or(first, |(&second, _)| second));
        }
        Some(first)
    }

    /// A batch was delivered that is newer than others which failed.
    pub(crate) fn suspect_older(&mut self, delivered: Key) {
        let older = self.pending.range_mut(..delivered);
        for (_, pending) in older.take_while(|(_, pending)| pending.attempts > 0) {
            pending.is_suspect |= pending.attempts >= SECOND_OPINION - 1;
        }
    }

    /// When one that was set aside may be tried again.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        let mut soonest = None;
        for pending in self.pending.values() {
            match pending.not_before {
                None => return Some(Moment::ZERO),
                Some(moment) => {
                    soonest = Some(soonest.map_or(moment, |other: Moment| other.min(moment)));
                }
            }
        }
        soonest
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Pending, Queue};
    use crate::queue::clock::Moment;
    use crate::spool::Key;

    fn key(oldest: i64) -> Key {
        Key { oldest, number: 1 }
    }

    fn queue(times: &[i64]) -> Queue {
        let mut queue = Queue::default();
        for &time in times {
            queue.insert(key(time), Pending::stored(1, 10));
        }
        queue
    }

    #[test]
    fn the_oldest_goes_first_and_every_fourth_failure_asks_with_the_next() {
        let queue = queue(&[30, 10, 20]);
        let asked: Vec<_> =
            (0..9).filter_map(|failures| queue.next(Moment::ZERO, failures)).collect();
        assert_eq!(
            asked.iter().map(|key| key.oldest).collect::<Vec<_>>(),
            [10, 10, 10, 10, 20, 10, 10, 10, 20]
        );
    }

    #[test]
    fn one_that_the_server_cannot_take_does_not_hold_the_others_up() {
        let mut queue = queue(&[10, 20, 30]);
        queue.update(key(10), |pending| pending.attempts = 4);
        queue.remove(key(20));
        queue.suspect_older(key(20));
        queue.update(key(10), |pending| {
            assert!(pending.is_suspect);
            pending.not_before = Some(Duration::from_secs(9));
        });
        assert_eq!(queue.next(Moment::ZERO, 0), Some(key(30)));
        assert_eq!(queue.next_due(), Some(Moment::ZERO));
        queue.remove(key(30));
        assert_eq!(queue.next(Moment::ZERO, 0), None);
        assert_eq!(queue.next_due(), Some(Duration::from_secs(9)));
        assert_eq!(queue.next(Duration::from_secs(9), 0), Some(key(10)));
    }

    #[test]
    fn what_is_too_old_is_taken_out() {
        let mut queue = queue(&[10, 20, 30]);
        let taken: Vec<_> = queue.take_older(20).into_iter().map(|(key, _)| key.oldest).collect();
        assert_eq!(taken, [10]);
        assert_eq!(queue.oldest(), Some(key(20)));
    }
}
