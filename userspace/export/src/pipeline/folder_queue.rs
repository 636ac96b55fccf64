//! The pipeline's side of an exporter of files, which are written on a thread of their own.
//!
//! Invariant: a folder whose disk does not answer costs its own profiles, which are counted.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::FileFigures;
use super::disk::{Disk, Surroundings};
use crate::Outgoing;
use crate::files::Folder;

pub struct FolderQueue {
    disk: Disk<Outgoing>,
    /// As of the last file.
    shown: Arc<Mutex<FileFigures>>,
    /// Profiles without room, because its disk did not answer.
    refused: u64,
    /// Files that were written, and profiles that could not be, before it was configured anew.
    before: (u64, u64),
}

impl FolderQueue {
    /// `limit` bytes of profiles may wait.
    pub fn start(
        name: &str,
        path: &Path,
        limit: usize,
        surroundings: &Surroundings,
    ) -> io::Result<Self> {
        let figures = FileFigures { name: name.to_owned(), ..FileFigures::default() };
        let shown = Arc::new(Mutex::new(figures));
        let (mut folder, to_show) = (Folder::new(path.to_owned()), shown.clone());
        let work = move |outgoing| {
            folder.write(&[outgoing]);
            let mut figures = to_show.lock().unwrap_or_else(PoisonError::into_inner);
            figures.written = folder.written;
            figures.failed = folder.failed;
            figures.failing_since = folder.failure.as_ref().map(|failure| failure.since);
            figures.trouble = folder.failure.as_ref().map(|failure| failure.reason.clone());
        };
        let disk = Disk::start(path, limit, surroundings, work)?;
        Ok(Self { disk, shown, refused: 0, before: (0, 0) })
    }

    /// Goes on counting where the one before it was.
    pub fn go_on_from(&mut self, before: &Self) {
        let FileFigures { written, failed, .. } = before.figures();
        self.before = (written, failed);
    }

    /// A disk that is only slow makes room until then.
    pub fn write(&mut self, profiles: Vec<Outgoing>, until: Instant) {
        for outgoing in profiles {
            let bytes = outgoing.profile.memory();
            let Err(outgoing) = self.disk.give(outgoing, bytes) else { continue };
            self.disk.wait(until);
            if self.disk.give(outgoing, bytes).is_err() {
                self.refused = self.refused.saturating_add(1);
            }
        }
    }

    /// Waits until all is written; false if it is not.
    pub fn wait(&self, until: Instant) -> bool {
        self.disk.wait(until)
    }

    /// Profiles that are not written.
    pub fn waiting(&self) -> usize {
        self.disk.waiting()
    }

    pub fn figures(&self) -> FileFigures {
        let mut figures = self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (written, failed) = self.before;
        figures.written = figures.written.saturating_add(written);
        figures.failed = figures.failed.saturating_add(self.refused).saturating_add(failed);
        figures
    }
}
