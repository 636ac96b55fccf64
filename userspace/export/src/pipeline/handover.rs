//! The sampling loop's side of the pipeline: passes profiles to its thread, and queues them while
//! that is busy with a slow disk.
//!
//! Invariant: nothing here blocks. The queue is bounded in bytes: beyond that the oldest profiles
//! are dropped and counted; the length of their flush still reaches the exporters, for their
//! periods.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strata_store::LateSymbol;
use tokio::runtime::Handle;

use super::disk::Surroundings;
use super::exporters::Exporters;
use super::pooling::Pooling;
use super::store_queue::StoreQueue;
use super::{Figures, FlushedProfile, Hooks, Message, PipelineSettings, Work};
use crate::{Queues, StartError};

/// The most messages queued for the pipeline's thread; more would only take memory.
const AHEAD: usize = 2;
/// The interval of checks for room at the end.
const RETRY: Duration = Duration::from_millis(5);

struct Waiting {
    message: Message,
    bytes: usize,
}

/// See the module.
pub struct Pipeline {
    sender: SyncSender<Message>,
    /// Messages that the thread had no room for, oldest first.
    waiting: VecDeque<Waiting>,
    /// Of the profiles among it.
    bytes: usize,
    most_bytes: usize,
    figures: Arc<Mutex<Figures>>,
    /// Profiles dropped for lack of room.
    pub dropped: u64,
    thread: JoinHandle<()>,
}

impl Pipeline {
    /// `queues` has the exporters of `destinations` already.
    pub fn start(
        destinations: PipelineSettings,
        queues: Arc<Queues>,
        network: Handle,
        hooks: Hooks,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(AHEAD);
        let figures = Arc::new(Mutex::new(Figures::default()));
        let most_bytes = destinations.waiting;
        let surroundings = Surroundings { disks: queues.disks().clone(), started: hooks.started };
        let mut work = Work {
            store: StoreQueue::start(most_bytes / 2, &surroundings)?,
            trim: hooks.trim,
            exporters: Exporters::new(queues, network, surroundings),
            pooling: Pooling::new(destinations.pool.clone()),
            flush: Vec::new(),
            flush_bytes: 0,
            tended: Instant::now(),
            done_with: 0,
            shown: figures.clone(),
        };
        let thread = std::thread::Builder::new().name("pipeline".into()).spawn(move || {
            (hooks.started)();
            work.store.configure(destinations.store.clone());
            work.exporters.configure(destinations);
            work.run(&receiver);
        })?;
        let waiting = VecDeque::new();
        Ok(Self { sender, waiting, bytes: 0, most_bytes, figures, dropped: 0, thread })
    }

    pub fn figures(&self) -> Arc<Mutex<Figures>> {
        self.figures.clone()
    }

    /// Passes on profiles of a flush; the last ones carry the length of the flush.
    pub fn publish(&mut self, profiles: Vec<FlushedProfile>, end: Option<Duration>) {
        // What was passed on while there was room displaces nothing, however large one profile is.
        let had_room = !self.is_full();
        let bytes = profiles.iter().map(FlushedProfile::memory).sum();
        self.bytes = self.bytes.saturating_add(bytes);
        self.waiting.push_back(Waiting { message: Message::Profiles(profiles, end), bytes });
        self.retry();
        if !had_room {
            self.make_room();
        }
    }

    /// Whether late symbols are queued for the thread: no further ones are passed on.
    pub fn is_naming(&self) -> bool {
        self.waiting.iter().any(|waiting| matches!(waiting.message, Message::NameLate(_)))
    }

    /// Passes on symbols of frames that the store has without.
    pub fn name_late(&mut self, symbols: Vec<LateSymbol>) {
        let bytes = LateSymbol::memory(&symbols);
        self.bytes = self.bytes.saturating_add(bytes);
        self.waiting.push_back(Waiting { message: Message::NameLate(symbols), bytes });
        self.retry();
    }

    /// Profiles of so many bytes are to be passed on together at most.
    pub fn most_bytes_at_once(&self) -> usize {
        self.most_bytes / 4
    }

    /// Passes on queued messages, as far as there is room now.
    pub fn retry(&mut self) {
        while let Some(Waiting { message, bytes }) = self.waiting.pop_front() {
            match self.sender.try_send(message) {
                Ok(()) => self.bytes = self.bytes.saturating_sub(bytes),
                Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) => {
                    self.waiting.push_front(Waiting { message, bytes });
                    return;
                }
            }
        }
    }

    /// Whether messages are queued for the thread: [`Self::retry`] has work.
    pub fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether further profiles should be held back. Those published nevertheless may displace the
    /// oldest.
    pub fn is_full(&self) -> bool {
        self.bytes > self.most_bytes / 2
    }

    /// The number of queued profiles.
    pub fn waiting(&self) -> usize {
        let profiles = self.waiting.iter().map(|waiting| match &waiting.message {
            Message::Profiles(profiles, _) => profiles.len(),
            _ => 0,
        });
        profiles.sum()
    }

    /// Drops the oldest profiles, but never the newest message.
    fn make_room(&mut self) {
        let mut at = 0;
        while self.bytes > self.most_bytes && at + 1 < self.waiting.len() {
            let Some(Waiting { message, bytes }) = self.waiting.get_mut(at) else { return };
            let Message::Profiles(profiles, end) = message else {
                at += 1;
                continue;
            };
            self.dropped = self.dropped.saturating_add(profiles.len() as u64);
            profiles.clear();
            self.bytes = self.bytes.saturating_sub(std::mem::take(bytes));
            // Messages without profiles are merged into one with the length of all their flushes.
            let length = end.take();
            self.waiting.remove(at);
            let before = at.checked_sub(1).and_then(|before| self.waiting.get_mut(before));
            match (before, length) {
                (_, None) => {}
                (
                    Some(Waiting { message: Message::Profiles(_, Some(lengths)), .. }),
                    Some(length),
                ) => {
                    *lengths = lengths.saturating_add(length);
                }
                (_, Some(length)) => {
                    let message = Message::Profiles(Vec::new(), Some(length));
                    self.waiting.insert(at, Waiting { message, bytes: 0 });
                    at += 1;
                }
            }
        }
    }

    /// Memory is short: periods end early.
    pub fn end_early(&self) {
        // A busy thread does so anyway.
        let _ = self.sender.try_send(Message::Hurry);
    }

    /// Whether its thread is gone, which only a defect can cause.
    pub fn has_died(&self) -> bool {
        self.thread.is_finished()
    }

    /// Changes the exporters of later profiles; the receiver gets whether that succeeded. The
    /// thread applies it after the waiting profiles: see [`Self::retry`].
    pub fn configure(
        &mut self,
        destinations: PipelineSettings,
    ) -> Receiver<Result<(), StartError>> {
        let (done, outcome) = sync_channel(1);
        self.most_bytes = destinations.waiting;
        let message = Message::Configure(Box::new(destinations), done);
        self.waiting.push_back(Waiting { message, bytes: 0 });
        self.retry();
        outcome
    }

    /// Sends everything, also unfinished periods; false if that took too long.
    pub fn end(mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let (done, wait) = sync_channel(1);
        self.waiting.push_back(Waiting { message: Message::End(done), bytes: 0 });
        loop {
            self.retry();
            if !self.is_behind() {
                return wait
                    .recv_timeout(deadline.saturating_duration_since(Instant::now()))
                    .is_ok();
            }
            if Instant::now() >= deadline || self.has_died() {
                let profiles = self.waiting();
                tracing::warn!(profiles, "lost: writing those before them takes too long");
                return false;
            }
            std::thread::sleep(RETRY);
        }
    }
}
