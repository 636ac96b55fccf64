//! Work on the disk of the spool, on a thread that may wait for it.
//!
//! It is waited for [`PATIENCE`]. If the disk has not answered then, the worker goes on without the
//! spool, and takes up the outcome when it comes: batches that a thread is storing may have been
//! delivered meanwhile.
//!
//! Invariant: there is one such thread at a time, and it has the spool.

use tokio::task::JoinHandle;

use super::Worker;
use super::storing::{Errand, Report};
use crate::Batch;
use crate::disks::PATIENCE;
use crate::spool::{Key, Spool, SpoolError};

/// An outcome.
#[derive(Debug)]
pub(super) enum Done {
    Opened(Result<Spool, SpoolError>),
    Stored { spool: Spool, report: Report, is_sync: bool },
    Read { spool: Spool, key: Key, read: Result<Batch, SpoolError> },
}

/// The outcome that is awaited. `None` if the work panicked: then the spool is opened anew.
pub(super) async fn answer(at_disk: &mut Option<JoinHandle<Done>>) -> Option<Done> {
    match at_disk {
        Some(working) => working.await.ok(),
        None => std::future::pending().await,
    }
}

impl Worker {
    /// Runs an errand with the spool, if there is one.
    pub(super) async fn run_errand(&mut self, errand: Errand) {
        let Some(mut spool) = self.spool.take() else { return };
        self.ask_disk(move || {
            let is_sync = errand.is_sync;
            let report = errand.run(&mut spool);
            Done::Stored { spool, report, is_sync }
        })
        .await;
    }

    /// Reads a batch back. `None` if there is no spool, or its disk does not answer.
    pub(super) async fn read(&mut self, key: Key) -> Option<Result<Batch, SpoolError>> {
        let mut spool = self.spool.take()?;
        let work = move || {
            let read = spool.read(key);
            Done::Read { spool, key, read }
        };
        match self.await_disk(work).await? {
            Done::Read { spool, read, .. } => {
                self.spool = Some(spool);
                Some(read)
            }
            other => {
                self.take_up(other);
                None
            }
        }
    }

    pub(super) async fn ask_disk(&mut self, work: impl FnOnce() -> Done + Send + 'static) {
        if let Some(done) = self.await_disk(work).await {
            self.take_up(done);
        }
    }

    /// The outcome, if it comes soon; else [`answer`] has it.
    async fn await_disk(&mut self, work: impl FnOnce() -> Done + Send + 'static) -> Option<Done> {
        let busy = self.plan.spool_dir.as_deref().map(|path| self.disks.begin(path));
        let mut working = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(busy);
            done
        });
        match tokio::time::timeout(PATIENCE, &mut working).await {
            Ok(done) => done.ok(),
            Err(_) => {
                self.at_disk = Some(working);
                None
            }
        }
    }

    /// At the end: a disk that has not answered gets a last chance.
    pub(super) async fn wait_for_disk(&mut self) {
        let Some(mut working) = self.at_disk.take() else { return };
        match tokio::time::timeout(PATIENCE, &mut working).await {
            Ok(done) => self.disk_answered(done.ok()),
            Err(_) => self.at_disk = Some(working),
        }
    }

    pub(super) fn disk_answered(&mut self, done: Option<Done>) {
        self.at_disk = None;
        if let Some(done) = done {
            self.take_up(done);
        }
    }

    fn take_up(&mut self, done: Done) {
        match done {
            Done::Opened(opened) => self.opened(opened),
            Done::Stored { spool, report, is_sync } => {
                self.take_back(spool);
                self.done(report, is_sync);
            }
            Done::Read { spool, key, read } => {
                self.take_back(spool);
                match read {
                    Ok(batch) => self.queue.update(key, |pending| pending.kept = Some(batch)),
                    // It is read again.
                    Err(error) => self.health.spool_error = self.trouble(error.to_string()),
                }
            }
        }
    }

    fn take_back(&mut self, mut spool: Spool) {
        spool.pin_only(self.flights.values().map(|flight| flight.key));
        self.spool = Some(spool);
    }
}
