//! The pipeline: passes profiles to the store, and to each exporter in its own period.
//!
//! It runs on a thread of its own, because compression is slow and sampling must not wait, and what is
//! written to a disk on further ones ([`disk`]): one that does not answer holds up no other
//! destination. The shortest period decides the interval of flushes; for an exporter with a longer
//! one, several are merged.
//!
//! Invariant: every profile passed in is delivered, stored or counted as dropped.

mod ages;
mod disk;
mod exporters;
mod folder_queue;
mod handover;
mod pooling;
mod sequences;
mod store_queue;
mod store_writer;
mod unfinished;
mod unfinished_queue;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strata_metadata::Source;
use strata_metadata::destinations::Wish;
use strata_store::{Head, LateSymbol};

use crate::exporter::Exporter;
use crate::limits::Cuts;
use crate::{ExporterSettings, Outgoing, StartError, orphans};
use exporters::Exporters;
pub use handover::Pipeline;
use pooling::Pooling;
pub use pooling::{PoolSettings, Pooled};
use store_queue::StoreQueue;
pub use store_writer::{Kept, StoreSettings};

/// The interval of maintenance of the store and of targets' own destinations.
const TEND: Duration = Duration::from_secs(15);

/// A failure of the store or of a folder is shown, and makes the daemon unhealthy, for this long: several
/// flushes.
pub(crate) const LASTING: Duration = Duration::from_secs(60);

/// Returning memory to the kernel costs some milliseconds.
const WORTH_GIVING_BACK: usize = 1 << 20;

/// Where everything goes.
#[derive(Clone, Debug, Default)]
pub struct PipelineSettings {
    pub store: Option<StoreSettings>,
    pub exporters: Vec<Exporter>,
    /// Of the exporters that have an endpoint.
    pub plans: Vec<ExporterSettings>,
    /// The folder of all spools; exporters that targets configure by themselves have theirs there.
    pub spools: Option<PathBuf>,
    /// The memory limit of each of those.
    pub memory: usize,
    /// Bytes of profiles that may wait for the end of their period.
    pub waiting: usize,
    pub pool: PoolSettings,
}

impl PipelineSettings {
    /// Warns of spools that no exporter has.
    pub fn warn_of_orphans(&self) {
        if let Some(spools) = &self.spools {
            let used = self.plans.iter().filter_map(|plan| plan.spool_dir.as_deref());
            let used = used.collect();
            orphans::warn(spools, &used);
            // Beside the store, where they were.
            let in_store = self.store.as_ref().filter(|store| spools.starts_with(&store.directory));
            if let Some(beside) = in_store.and_then(|store| store.directory.parent()) {
                orphans::warn(&beside.join("spool"), &used);
            }
        }
    }
}

/// The profile of one runtime of a process, of one flush.
#[derive(Clone, Debug)]
pub struct FlushedProfile {
    pub outgoing: Outgoing,
    /// For the store, which keeps each kind of samples by itself and names it.
    pub head: Head,
    /// Whether the store keeps the times that the profile has.
    pub stores_times: bool,
    /// Variables of the process that configure an exporter of its own.
    pub own_settings: Vec<Wish>,
    /// What its service's name is from.
    pub named_by: Source,
}

impl FlushedProfile {
    /// Bytes of the profile itself.
    pub fn memory(&self) -> usize {
        self.outgoing.profile.memory()
    }
}

/// Functions that the pipeline needs from its program.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Called once in each of the pipeline's threads.
    pub started: fn(),
    /// Returns free memory to the kernel.
    pub trim: fn(),
}

/// What the publisher has done.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Profiles not sent to any exporter yet, or being merged.
    pub pending: usize,
    /// Of all stores that were open, one after the other.
    pub kept: Kept,
    pub store_bytes: u64,
    /// Memory that the dictionaries of its open segment take.
    pub store_dictionaries: u64,
    /// Why the store accepts no profiles.
    pub store_trouble: Option<String>,
    /// It is not open, or a recent write failed.
    pub store_fails: bool,
    /// Profiles that the store did not take.
    pub not_stored: u64,
    pub cuts: Cuts,
    /// Profiles that became part of the pool's.
    pub pooled: Pooled,
    pub files: Vec<FileFigures>,
    /// Profiles of targets whose own destination had no room.
    pub refused_own: u64,
    /// Batches that found no exporter.
    pub undelivered: u64,
    /// How often profiles were sent before the end of their period, for lack of memory.
    pub early: u64,
}

/// The counters of a `file` exporter.
#[derive(Clone, Debug, Default)]
pub struct FileFigures {
    pub name: String,
    pub written: u64,
    /// Profiles that could not be written.
    pub failed: u64,
    /// Since when some or all are not written, and why.
    pub failing_since: Option<Instant>,
    pub trouble: Option<String>,
}

enum Message {
    /// Some of a flush's profiles; with the last of them comes how long the flush was.
    Profiles(Vec<FlushedProfile>, Option<Duration>),
    /// Symbols of frames that the store has without.
    NameLate(Vec<LateSymbol>),
    /// The exporters from now on; the answer is whether they could be set up.
    Configure(Box<PipelineSettings>, SyncSender<Result<(), StartError>>),
    /// Memory is short: profiles that wait for the end of their period are sent now.
    Hurry,
    /// Everything passed in is sent now, and nothing follows.
    End(SyncSender<()>),
}

struct Work {
    store: StoreQueue,
    trim: fn(),
    exporters: Exporters,
    pooling: Pooling,
    /// The results of the flush so far.
    flush: Vec<FlushedProfile>,
    flush_bytes: usize,
    tended: Instant,
    /// Bytes of profiles processed since memory was last returned.
    done_with: usize,
    shown: Arc<Mutex<Figures>>,
}

impl Work {
    fn run(&mut self, receiver: &Receiver<Message>) {
        self.exporters.send_left();
        loop {
            let message = receiver.recv_timeout(TEND);
            let is_over = !matches!(message, Ok(Message::Profiles(_, None) | Message::NameLate(_)));
            match message {
                Ok(Message::Profiles(parcels, end)) => self.take(parcels, end),
                Ok(Message::NameLate(symbols)) => self.store.name_late(symbols),
                Ok(Message::Hurry) => {
                    self.hand_over(None);
                    self.exporters.send_all();
                }
                Ok(Message::Configure(destinations, done)) => {
                    self.hand_over(None);
                    self.exporters.send_all();
                    self.pooling.configure(destinations.pool.clone());
                    let outcome = self.exporters.reconfigure(&destinations);
                    if outcome.is_ok() {
                        self.store.configure(destinations.store);
                    }
                    // Who asked may have gone.
                    let _ = done.try_send(outcome);
                }
                Ok(Message::End(done)) => {
                    self.end();
                    // Who asked may have gone.
                    let _ = done.try_send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.end(),
            }
            if self.tended.elapsed() >= TEND {
                self.tended = Instant::now();
                self.store.tend();
                self.exporters.forget_unused(self.tended);
            }
            self.done_with = self.done_with.saturating_add(self.exporters.take_sent());
            // The loop has freed its own memory at the flush, when all this was still in use.
            if is_over && self.done_with >= WORTH_GIVING_BACK {
                self.done_with = 0;
                (self.trim)();
            }
            self.show();
        }
    }

    fn end(&mut self) {
        self.hand_over(None);
        self.exporters.end();
        self.store.close();
        self.show();
    }

    fn take(&mut self, profiles: Vec<FlushedProfile>, end: Option<Duration>) {
        let bytes = profiles.iter().map(FlushedProfile::memory);
        self.flush_bytes = self.flush_bytes.saturating_add(bytes.sum());
        self.flush.extend(profiles);
        // A crowded host's flush is passed on in parts.
        if end.is_some() || self.flush_bytes > self.exporters.waiting_limit() {
            self.hand_over(end);
        }
    }

    /// A flush's profiles go to the exporters' spools first, and then into the store, so that
    /// stored profiles also reach the servers, even if this process is killed.
    fn hand_over(&mut self, end: Option<Duration>) {
        self.done_with = self.done_with.saturating_add(std::mem::take(&mut self.flush_bytes));
        let flush = std::mem::take(&mut self.flush);
        let mut flush = self.pooling.apply(flush, Instant::now());
        // The store has a dictionary for each service, and perhaps no room for all of them.
        flush.sort_by(|one, other| one.head.service.cmp(&other.head.service));
        for profile in &flush {
            self.exporters.take(profile);
        }
        self.exporters.send_early();
        self.exporters.flushed(end);
        self.store.keep(flush);
    }

    fn show(&mut self) {
        let mut figures = Figures::default();
        self.store.show(&mut figures);
        self.exporters.show(&mut figures);
        figures.pooled = self.pooling.pooled;
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }
}
