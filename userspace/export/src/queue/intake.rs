//! The intake of an exporter: takes batches, bounded and without waiting.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Batch;
use tokio::sync::Notify;

use crate::queue::health::Count;

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// Taken, and not yet in the exporter's own counters.
    in_hand: usize,
    in_hand_oldest: Option<i64>,
    is_closed: bool,
    dropped: Count,
    limit: usize,
}

#[derive(Debug)]
pub(crate) struct Intake {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    /// Notified when batches were taken, and when they are processed.
    emptied: Condvar,
}

impl Intake {
    pub(crate) fn new(limit: usize) -> Self {
        let waiting = Waiting { limit, ..Waiting::default() };
        Self { waiting: Mutex::new(waiting), arrived: Notify::new(), emptied: Condvar::new() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // No code panics while holding it, and nothing is half done if it did.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is still open. When it is full, the oldest goes and is counted.
    pub(crate) fn give(&self, batch: Batch) -> bool {
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return false;
        }
        waiting.bytes = waiting.bytes.saturating_add(batch.body.len());
        waiting.batches.push_back(batch);
        while waiting.bytes > waiting.limit && waiting.batches.len() > 1 {
            let Some(oldest) = waiting.batches.pop_front() else { break };
            waiting.bytes = waiting.bytes.saturating_sub(oldest.body.len());
            waiting.dropped.add_batch(oldest.profiles);
        }
        drop(waiting);
        self.arrived.notify_one();
        true
    }

    /// Waits until there is room for so many bytes, or nothing else is here; false if that took too
    /// long.
    pub(crate) fn wait_for_room(&self, bytes: usize, within: Duration) -> bool {
        self.wait_while(within, |waiting| {
            !waiting.batches.is_empty() && waiting.bytes.saturating_add(bytes) > waiting.limit
        })
    }

    /// They count as being here until [`Self::settled`].
    pub(crate) fn take_all(&self) -> VecDeque<Batch> {
        let mut waiting = self.waiting();
        waiting.bytes = 0;
        waiting.in_hand = waiting.in_hand.saturating_add(waiting.batches.len());
        waiting.in_hand_oldest = oldest(&waiting);
        let batches = std::mem::take(&mut waiting.batches);
        drop(waiting);
        self.emptied.notify_all();
        batches
    }

    /// The batches taken are in the exporter's own counters now.
    pub(crate) fn settled(&self) {
        let mut waiting = self.waiting();
        waiting.in_hand = 0;
        waiting.in_hand_oldest = None;
        drop(waiting);
        self.emptied.notify_all();
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.waiting().limit = limit;
    }

    pub(crate) fn close(&self) {
        self.waiting().is_closed = true;
        self.emptied.notify_all();
        self.arrived.notify_one();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting().batches.is_empty()
    }

    /// How many are here, when the oldest of them began, and what was dropped.
    pub(crate) fn figures(&self) -> (usize, Option<i64>, Count) {
        let waiting = self.waiting();
        let count = waiting.batches.len().saturating_add(waiting.in_hand);
        (count, oldest(&waiting), waiting.dropped)
    }

    /// Waits until the exporter has put what was given into its spool, or could not; false if that
    /// took too long, or the exporter has ended before.
    pub(crate) fn wait(&self, within: Duration) -> bool {
        self.wait_while(within, |waiting| !waiting.batches.is_empty() || waiting.in_hand > 0)
    }

    fn wait_while(&self, within: Duration, is_so: impl Fn(&Waiting) -> bool) -> bool {
        let until = Instant::now() + within;
        let mut waiting = self.waiting();
        while !waiting.is_closed && is_so(&waiting) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.emptied.wait_timeout(waiting, left);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !is_so(&waiting)
    }

    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

fn oldest(waiting: &Waiting) -> Option<i64> {
    waiting.batches.iter().map(|batch| batch.oldest).chain(waiting.in_hand_oldest).min()
}
