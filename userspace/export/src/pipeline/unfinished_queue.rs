//! The pipeline's side of an [`Unfinished`] period, which is written on a thread of its own.
//!
//! Invariant: a disk that does not answer costs only this safety.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;

use super::disk::{Disk, Surroundings};
use super::unfinished::Unfinished;
use crate::Outgoing;
use crate::disks::FLUSH;

/// Profiles that are one piece of work.
const AT_ONCE: usize = 256;

enum Work {
    Left(SyncSender<Vec<Outgoing>>),
    Add(Vec<Outgoing>),
    EndPeriod,
    Clear,
}

pub struct UnfinishedQueue {
    disk: Disk<Work>,
    /// What a process before this one left is being read.
    left: Option<Receiver<Vec<Outgoing>>>,
    /// There may be something of the period that is not over.
    holds: bool,
    /// There may be something to clear.
    holds_ended: bool,
    is_refusing: bool,
}

impl UnfinishedQueue {
    /// In this folder of an exporter's spool, which may take `most` bytes; `limit` bytes of profiles
    /// may wait for its disk.
    pub fn start(
        folder: PathBuf,
        most: u64,
        limit: usize,
        surroundings: &Surroundings,
    ) -> io::Result<Self> {
        let path = folder.clone();
        let mut opened: Option<Option<Unfinished>> = None;
        let work = move |work| {
            let unfinished = opened.get_or_insert_with(|| Unfinished::open(&folder, most));
            match (unfinished, work) {
                (unfinished, Work::Left(to)) => {
                    // Who asked may have gone.
                    let _ = to.send(unfinished.as_mut().map(Unfinished::left).unwrap_or_default());
                }
                (Some(unfinished), Work::Add(profiles)) => unfinished.add(&profiles),
                (Some(unfinished), Work::EndPeriod) => unfinished.end_period(),
                (Some(unfinished), Work::Clear) => unfinished.clear(),
                (None, _) => {}
            }
        };
        let disk = Disk::start(&path, limit, surroundings, work)?;
        // What is there from before is cleared with the first period.
        Ok(Self { disk, left: None, holds: true, holds_ended: false, is_refusing: false })
    }

    /// Reads what a process left that did not end in order: [`Self::left`].
    pub fn read_left(&mut self) {
        if self.left.is_some() {
            return;
        }
        let (sender, receiver) = sync_channel(1);
        if self.disk.give(Work::Left(sender), 0).is_ok() {
            self.left = Some(receiver);
        }
    }

    /// Whether that is under way.
    pub fn is_reading(&self) -> bool {
        self.left.is_some()
    }

    /// Its profiles, once; none if they are not read until then, or are none.
    pub fn left(&mut self, until: Instant) -> Vec<Outgoing> {
        let Some(receiver) = &self.left else { return Vec::new() };
        self.disk.wait(until);
        match receiver.recv_timeout(std::time::Duration::ZERO) {
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            received => {
                self.left = None;
                received.unwrap_or_default()
            }
        }
    }

    /// Profiles of a flush.
    pub fn add(&mut self, profiles: &[Outgoing]) {
        let mut is_refused = false;
        for part in profiles.chunks(AT_ONCE) {
            let bytes = part.iter().map(|outgoing| outgoing.profile.memory()).sum();
            let mut given = self.disk.give(Work::Add(part.to_vec()), bytes);
            if let Err(work) = given {
                // A disk that is only slow makes room.
                self.disk.wait(Instant::now() + FLUSH);
                given = self.disk.give(work, bytes);
            }
            self.holds |= given.is_ok();
            is_refused |= given.is_err();
        }
        if is_refused && !self.is_refusing {
            tracing::warn!(
                "a period that is not over would not outlive this process: its disk does not answer"
            );
        }
        self.is_refusing = is_refused;
    }

    /// The period is over: what is added from now on belongs to the next one.
    pub fn end_period(&mut self) {
        if self.holds && self.disk.give(Work::EndPeriod, 0).is_ok() {
            self.holds = false;
            self.holds_ended = true;
        }
    }

    /// The batches of periods that are over are in the exporter's spool.
    pub fn clear(&mut self) {
        if self.holds_ended && self.disk.give(Work::Clear, 0).is_ok() {
            self.holds_ended = false;
        }
    }

    pub fn wait(&self, until: Instant) {
        self.disk.wait(until);
    }

    /// Its folder can be opened again, unless its disk does not answer.
    pub fn end(self, until: Instant) {
        self.disk.end(until);
    }
}
