//! An exporter's health, in figures.

use std::time::{Duration, SystemTime};

/// Batches, and the profiles in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub batches: u64,
    /// How many an unreadable file held is unknown.
    pub profiles: u64,
}

impl Count {
    pub(crate) fn add(&mut self, batches: u64, profiles: u64) {
        self.batches = self.batches.saturating_add(batches);
        self.profiles = self.profiles.saturating_add(profiles);
    }

    pub(crate) fn add_batch(&mut self, profiles: u32) {
        self.add(1, u64::from(profiles));
    }
}

/// Losses by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Older than the exporter's age.
    pub too_old: Count,
    /// Evicted from the spool by newer ones.
    pub spool_full: Count,
    /// The server refused it permanently.
    pub refused: Count,
    /// The disk could not keep it, or give it back, and memory was full or strata ended.
    pub disk_error: Count,
    /// Damaged or half written on disk.
    pub corrupt: Count,
    /// Arrived faster than the disk could store it.
    pub memory_full: Count,
    /// Memory was full or strata ended, and no spool is set.
    pub no_spool: Count,
    /// Made for another kind of server, API or protocol than is configured since.
    pub reconfigured: Count,
}

impl Drops {
    /// All of them, with their names.
    #[must_use]
    pub fn by_cause(&self) -> [(&'static str, Count); 8] {
        [
            ("too_old", self.too_old),
            ("spool_full", self.spool_full),
            ("refused", self.refused),
            ("disk_error", self.disk_error),
            ("corrupt", self.corrupt),
            ("memory_full", self.memory_full),
            ("no_spool", self.no_spool),
            ("reconfigured", self.reconfigured),
        ]
    }

    /// Profiles that the exporter's spool and memory had no room for: the causes that are not logged
    /// where they happen.
    pub(crate) fn own(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = self.by_cause().into_iter().filter(|(cause, count)| {
            !matches!(*cause, "refused" | "memory_full") && count.profiles > 0
        });
        own.map(|(cause, count)| (cause, count.profiles))
    }

    #[must_use]
    pub fn batches(&self) -> u64 {
        self.by_cause().iter().fold(0, |sum, (_, count)| sum.saturating_add(count.batches))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing to send.
    #[default]
    Idle,
    /// Sending.
    Ok,
    /// The last request failed, or there is no credential; the next is then.
    Waiting(SystemTime),
    /// Ended: what it had is in its spool.
    Stopped,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub at: SystemTime,
    pub reason: String,
}

/// Since an exporter of this name was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExporterHealth {
    pub name: String,
    pub state: State,
    pub delivered: Count,
    pub delivered_bytes: u64,
    /// Profiles that the server did not store though it took their batch.
    pub rejected_profiles: u64,
    pub in_flight: usize,
    /// Batches in memory and not on disk.
    pub queued: usize,
    pub spooled: usize,
    pub spooled_bytes: u64,
    /// When the oldest batch began that is not delivered, in nanoseconds since 1970.
    pub oldest: Option<i64>,
    /// How long ago that is.
    pub lag: Duration,
    /// Requests that have to be made again.
    pub retries: u64,
    pub drops: Drops,
    pub last_success: Option<SystemTime>,
    pub last_error: Option<Trouble>,
    /// The last that was refused, and why.
    pub last_refusal: Option<Trouble>,
    /// Since when nothing is delivered though there is something: a request failed, and none has
    /// succeeded after it.
    pub failing_since: Option<SystemTime>,
    /// The spool's current error.
    pub spool_error: Option<Trouble>,
}

impl ExporterHealth {
    /// An exporter of the same name has the spool `before` had elsewhere: its sums go on.
    pub(crate) fn go_on_from(&mut self, before: Self) {
        let Self { delivered, delivered_bytes, rejected_profiles, retries, drops, .. } = before;
        let Self { last_success, last_error, last_refusal, .. } = before;
        *self = Self {
            delivered,
            delivered_bytes,
            rejected_profiles,
            retries,
            drops,
            last_success,
            last_error,
            last_refusal,
            name: std::mem::take(&mut self.name),
            ..Self::default()
        };
    }
}
