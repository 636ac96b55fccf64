//! Runs flushes, and passes their profiles to the pipeline.
//!
//! Invariant: the loop never waits for the pipeline. While that is busy (a slow disk, a full
//! spool), a flush keeps the profiles that are not built yet, and the next one begins later; for
//! [`BUSY_PIPELINE`] at most, because samples taken meanwhile take memory. Profiles without room
//! are counted as dropped.

use std::time::{Duration, Instant};

use super::{Daemon, TURN};
use crate::daemon::memory;

/// A pipeline that is busy for so long after a flush was due loses profiles.
const BUSY_PIPELINE: Duration = Duration::from_secs(20);
/// Symbols of the last flush are waited for so long: the service manager waits too.
const LAST_SYMBOLS: Duration = Duration::from_secs(5);
/// The interval of checks for room in a busy pipeline.
const RETRY: Duration = Duration::from_millis(20);

impl Daemon {
    /// Begins a flush. Symbols still awaited for the last one are given up.
    pub(super) fn flush(&mut self) {
        if self.flusher.is_flushing() {
            self.go_on_with_flush(true);
        }
        for (sum, count) in self.ends.iter_mut().zip(self.engine.aggregate.ends()) {
            *sum += count;
        }
        self.flusher.begin(&mut self.engine, &self.runtimes);
        self.go_on_with_flush(false);
    }

    /// Passes on complete profiles; all of them at their deadline.
    pub(super) fn go_on_with_flush(&mut self, at_once: bool) {
        let publisher = &mut self.publisher;
        let (engine, configuration) = (&mut self.engine, &self.configuration);
        if self.flusher.go_on(engine, configuration, &self.runtimes, publisher, at_once) {
            memory::trim_now_and_then();
        }
    }

    /// Whether the next flush would find no room for its profiles, or the last one has not found it
    /// for all of its own, and may still wait.
    pub(super) fn is_held_up(&self) -> bool {
        let is_building = self.flusher.is_flushing() && self.publisher.is_behind();
        (is_building || self.publisher.is_full())
            && self.flusher.elapsed() < self.period + BUSY_PIPELINE
    }

    /// The next deadline of a flush.
    pub(super) fn next_flush_turn(&self) -> Option<Instant> {
        if self.publisher.is_behind() {
            return Some(Instant::now() + RETRY);
        }
        self.flusher.ends()
    }

    /// Flushes everything and waits for it, while the engine turns: at the end.
    pub(super) async fn flush_all(&mut self) {
        // One that is under way is waited for as well: what it lacks, the last one lacks too.
        self.complete_flush(LAST_SYMBOLS / 2, Instant::now() + LAST_SYMBOLS).await;
        self.flush();
        self.complete_flush(LAST_SYMBOLS, Instant::now() + BUSY_PIPELINE).await;
    }

    /// Waits for what the flush still lacks, for so long.
    async fn complete_flush(&mut self, within: Duration, latest: Instant) {
        self.flusher.symbolizer.end_by(Instant::now() + within);
        while self.flusher.is_flushing() {
            let pause = if self.publisher.is_behind() { RETRY } else { TURN };
            tokio::select! {
                () = self.symbols.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            self.engine.turn();
            self.meet_newcomers();
            self.manager.alive();
            self.status.turned();
            self.publisher.retry();
            self.go_on_with_flush(Instant::now() >= latest);
        }
    }
}
