//! Memory and disk: new batches are written to the spool, finished ones removed, and those too old
//! or over the limit dropped and counted.
//!
//! With a failing disk, or one that does not answer, batches stay in memory up to its bound and are
//! sent from there.

use std::time::Duration;

use crate::Batch;

use super::Worker;
use super::disk::Done;
use super::warnings::QUIET;
use crate::queue::clock::Moment;
use crate::queue::order::Pending;
use crate::spool::{Facts, Key, Spool, SpoolError};

/// How often a disk that failed is tried again.
const DISK_AGAIN: Duration = Duration::from_secs(5);

/// The time between syncs: bounds what a power loss may cost.
const SYNC_EVERY: Duration = Duration::from_secs(30);

/// One disk operation.
#[derive(Debug, Default)]
pub(super) struct Errand {
    /// What the spool may hold from now on.
    most: Option<u64>,
    remove: Vec<Key>,
    put: Vec<(Key, Batch)>,
    pub(super) is_sync: bool,
    /// Batches not stored now are lost.
    is_last: bool,
}

#[derive(Debug, Default)]
pub(super) struct Report {
    stored: Vec<Key>,
    dropped: Vec<(Key, Facts)>,
    error: Option<SpoolError>,
}

impl Errand {
    fn is_empty(&self) -> bool {
        self.most.is_none() && self.remove.is_empty() && self.put.is_empty() && !self.is_sync
    }

    pub(super) fn run(self, spool: &mut Spool) -> Report {
        let mut report = Report::default();
        for key in self.remove {
            report.error = spool.remove(key).err().or(report.error);
        }
        if let Some(most) = self.most {
            report.error = spool.set_most(most, &mut report.dropped).err().or(report.error);
        }
        for (key, batch) in self.put {
            match spool.put(key.number, &batch, &mut report.dropped) {
                Ok(key) => report.stored.push(key),
                Err(error) => {
                    let is_of_the_disk = error.is_of_the_disk();
                    report.error = Some(error);
                    if is_of_the_disk && !self.is_last {
                        break;
                    }
                }
            }
        }
        if self.is_sync {
            report.error = spool.sync().err().or(report.error);
        }
        report
    }
}

impl Worker {
    /// `is_last` is when strata ends: then the disk has everything before this returns.
    pub(super) async fn keep(&mut self, is_last: bool) {
        let now = self.clock.now();
        self.open_spool(now).await;
        let fresh = self.admit();
        self.warn_of_overflow(now);
        self.expire();
        self.warn_of_drops(now);
        let errand = self.errand(fresh, now, is_last);
        if !errand.is_empty() {
            self.run_errand(errand).await;
        }
        if self.queue.unstored() > 0 && self.next_store <= now {
            self.next_store = now.saturating_add(DISK_AGAIN);
        }
        self.queue.forget_bodies(self.plan.memory / 2);
        while self.queue.kept_bytes() > self.plan.memory / 2 {
            // One alone may be larger.
            let Some(key) = self.queue.oldest_unstored().filter(|_| self.queue.unstored() > 1)
            else {
                break;
            };
            self.drop_one_unstored(key);
        }
    }

    /// Moves batches from the intake into the queue.
    fn admit(&mut self) -> Vec<Key> {
        let given = self.intake.take_all();
        let mut fresh = Vec::with_capacity(given.len());
        for batch in given {
            let number = u64::try_from(self.clock.nanos()).unwrap_or(0);
            self.last_number = number.max(self.last_number.saturating_add(1));
            let key = Key { oldest: batch.oldest, number: self.last_number };
            self.queue.insert(key, Pending::new(batch));
            fresh.push(key);
        }
        fresh
    }

    /// What its memory had no room for is dropped before it comes here.
    fn warn_of_overflow(&mut self, now: Moment) {
        let (_, _, dropped) = self.intake.figures();
        if dropped.profiles == self.overflowed || self.next_overflow_warning > now {
            return;
        }
        self.overflowed = dropped.profiles;
        self.next_overflow_warning = now.saturating_add(QUIET);
        tracing::warn!(
            exporter = self.plan.name,
            "{} profiles in all are dropped: they came faster than its disk took them, and its \
             memory is full (memory_limit)",
            dropped.profiles
        );
    }

    /// What was dropped here. Refusals by the server are logged where it answers.
    fn warn_of_drops(&mut self, now: Moment) {
        if self.next_drop_warning > now {
            return;
        }
        let own: Vec<_> = self.health.drops.own().collect();
        let sum = own.iter().map(|(_, profiles)| profiles).sum();
        if sum <= self.dropped {
            return;
        }
        self.dropped = sum;
        self.next_drop_warning = now.saturating_add(QUIET);
        let causes = own.iter().map(|(cause, profiles)| format!("{cause} {profiles}"));
        tracing::warn!(
            exporter = self.plan.name,
            "{sum} profiles in all are dropped: {}",
            causes.collect::<Vec<_>>().join(", ")
        );
    }

    /// Drops what is older than the exporter's age.
    pub(super) fn expire(&mut self) {
        let age = i64::try_from(self.plan.spool_age.as_nanos()).unwrap_or(i64::MAX);
        for (key, pending) in self.queue.take_older(self.clock.nanos().saturating_sub(age)) {
            self.health.drops.too_old.add_batch(pending.profiles);
            if pending.is_stored {
                self.finished.push(key);
            }
        }
    }

    /// When a batch becomes too old.
    pub(super) fn expiry(&self, key: Key, now: Moment) -> Moment {
        let age = i64::try_from(self.plan.spool_age.as_nanos()).unwrap_or(i64::MAX);
        let left = key.oldest.saturating_add(age).saturating_sub(self.clock.nanos());
        let left = Duration::from_nanos(u64::try_from(left).unwrap_or(0).saturating_add(1));
        now.saturating_add(left)
    }

    fn errand(&mut self, fresh: Vec<Key>, now: Moment, is_last: bool) -> Errand {
        let Some(spool) = &self.spool else { return Errand::default() };
        let is_due = self.next_store <= now;
        let mut keys = if is_due || is_last { self.queue.unstored_keys() } else { fresh };
        keys.retain(|&key| self.queue.contains(key));
        if spool.unsynced() == 0 {
            self.next_sync = None;
        }
        let is_sync = is_last || self.next_sync.is_some_and(|moment| moment <= now);
        let batch = |key: Key| Some((key, self.queue.body(key)?.clone()));
        let put = keys.into_iter().filter_map(batch).collect();
        let most = std::mem::take(&mut self.is_resized).then_some(self.plan.spool_size);
        Errand { most, remove: std::mem::take(&mut self.finished), put, is_sync, is_last }
    }

    /// Batches may have been sent, delivered or dropped from memory meanwhile.
    pub(super) fn done(&mut self, report: Report, is_sync: bool) {
        for &key in &report.stored {
            if self.queue.contains(key) {
                self.queue.update(key, |pending| pending.is_stored = true);
            } else if let Some(flight) = self.flight_of(key) {
                flight.pending.is_stored = true;
            } else {
                self.finished.push(key);
            }
        }
        for (key, facts) in report.dropped {
            if let Some(flight) = self.flight_of(key) {
                flight.pending.is_stored = false;
            } else if self.queue.remove(key).is_some() {
                self.health.drops.spool_full.add_batch(facts.profiles);
            }
        }
        if let Some(error) = &report.error {
            self.is_refused_by_spool = !error.is_of_the_disk();
        }
        match report.error {
            Some(error) => self.health.spool_error = self.trouble(error.to_string()),
            None if !report.stored.is_empty() || is_sync => self.health.spool_error = None,
            None => {}
        }
        let unsynced = self.spool.as_ref().map_or(0, Spool::unsynced);
        let now = self.clock.now();
        self.next_sync = match self.next_sync {
            _ if unsynced == 0 => None,
            Some(moment) if !is_sync => Some(moment),
            _ => Some(now.saturating_add(SYNC_EVERY)),
        };
    }

    /// The cause is the error that kept them from the disk.
    fn drop_one_unstored(&mut self, key: Key) {
        let Some(pending) = self.queue.remove(key) else { return };
        let drops = &mut self.health.drops;
        let count = if self.plan.spool_dir.is_none() {
            &mut drops.no_spool
        } else if self.is_refused_by_spool {
            &mut drops.spool_full
        } else {
            &mut drops.disk_error
        };
        count.add_batch(pending.profiles);
    }

    pub(super) fn drop_unstored(&mut self) {
        for key in self.queue.unstored_keys() {
            self.drop_one_unstored(key);
        }
    }

    async fn open_spool(&mut self, now: Moment) {
        if self.spool.is_some() || self.at_disk.is_some() || self.next_open > now {
            return;
        }
        let Some(directory) = self.plan.spool_dir.clone() else { return };
        self.next_open = now.saturating_add(DISK_AGAIN);
        let most = self.plan.spool_size;
        self.ask_disk(move || Done::Opened(Spool::open(&directory, most))).await;
    }

    pub(super) fn opened(&mut self, opened: Result<Spool, SpoolError>) {
        match opened {
            Ok(spool) => self.adopt(spool),
            Err(error) => self.health.spool_error = self.trouble(error.to_string()),
        }
    }

    /// Adds the batches in a spool to the queue.
    fn adopt(&mut self, spool: Spool) {
        let found = spool.found();
        self.health.drops.corrupt.add(found.torn.saturating_add(found.corrupt), 0);
        // Those of before are still there when a spool is opened again.
        let known = std::mem::replace(&mut self.unreadable, found.unreadable);
        self.health.drops.disk_error.add(found.unreadable.saturating_sub(known), 0);
        // After a panic of the disk's thread, the directory is what counts.
        for key in self.queue.stored_keys() {
            if spool.facts(key).is_none() {
                self.lose_file(key);
            }
        }
        for (key, facts) in spool.entries() {
            self.last_number = self.last_number.max(key.number);
            let is_known = self.queue.contains(key)
                || self.finished.contains(&key)
                || self.flights.values().any(|flight| flight.key == key);
            if !is_known {
                self.queue.insert(key, Pending::stored(facts.profiles, facts.bytes));
            }
        }
        self.health.spool_error = None;
        self.spool = Some(spool);
        // It may exceed a lowered limit.
        self.is_resized = true;
    }

    fn lose_file(&mut self, key: Key) {
        if self.queue.body(key).is_some() {
            self.queue.update(key, |pending| pending.is_stored = false);
        } else if let Some(pending) = self.queue.remove(key) {
            self.health.drops.corrupt.add_batch(pending.profiles);
        }
    }

    /// The batch, from memory or from disk. What cannot be read is counted.
    pub(super) async fn body(&mut self, key: Key, pending: &Pending) -> Option<Batch> {
        if let Some(batch) = &pending.kept {
            return Some(batch.clone());
        }
        let error = match self.read(key).await {
            Some(Ok(batch)) => return Some(batch),
            Some(Err(error)) => Some(error),
            None if self.at_disk.is_some() => {
                self.queue.insert(key, pending.clone());
                return None;
            }
            None => None,
        };
        if matches!(error, Some(SpoolError::Corrupt)) {
            self.health.drops.corrupt.add_batch(pending.profiles);
            self.finished.push(key);
        } else {
            // A disk, or a process without descriptors, that fails now may not fail later: what is
            // there when the spool is opened again is sent then, others before what cannot be read.
            let now = self.clock.now();
            let attempts = pending.attempts.saturating_add(1);
            let wait = self.pace.waits.after(attempts, fastrand::f64());
            let not_before = Some(now.saturating_add(wait.max(DISK_AGAIN)));
            self.queue.insert(key, Pending { attempts, not_before, ..pending.clone() });
            self.spool = None;
            self.next_open = now.saturating_add(DISK_AGAIN);
        }
        if let Some(error) = error {
            self.health.spool_error = self.trouble(error.to_string());
        }
        None
    }
}
