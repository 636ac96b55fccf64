//! Which disks do not answer: a frozen file system, a network mount that is lost.
//!
//! Work that may wait for a disk is announced by [`Disks::begin`] and done on a thread that nothing
//! else needs. Whoever needs its outcome waits for [`PATIENCE`] at most, and goes on without.
//!
//! Invariant: nothing here waits for a disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a disk is waited for. One that is busy with one piece of work for longer is not waited
/// for any more.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long a flush waits for a disk that is slow and answers.
pub const FLUSH: Duration = Duration::from_secs(30);
/// A disk that is busy with one piece of work for so long does not answer.
pub const SILENT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Work {
    number: u64,
    path: PathBuf,
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    busy: Vec<Work>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Disks {
    state: Mutex<State>,
}

/// A path whose disk does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentDisk {
    pub path: PathBuf,
    pub lasting: Duration,
}

/// `/a: its disk has not answered for 12 s`.
pub(crate) fn silence(path: &Path, lasting: Duration) -> String {
    format!("{}: its disk has not answered for {} s", path.display(), lasting.as_secs())
}

/// Work on a disk, until it is dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    disks: Arc<Disks>,
    number: u64,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.disks.lock().busy.retain(|work| work.number != self.number);
    }
}

impl Disks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work begins that may wait for this path's disk.
    pub(crate) fn begin(self: &Arc<Self>, path: &Path) -> Busy {
        let mut state = self.lock();
        let number = state.next;
        state.next = number.wrapping_add(1);
        state.busy.push(Work { number, path: path.to_owned(), since: Instant::now() });
        drop(state);
        Busy { disks: Arc::clone(self), number }
    }

    /// For how long the oldest piece of work with this path has lasted.
    pub(crate) fn busy_for(&self, path: &Path) -> Option<Duration> {
        let state = self.lock();
        let since = state.busy.iter().filter(|work| work.path == path).map(|work| work.since);
        since.min().map(|since| since.elapsed())
    }

    /// As [`Self::busy_for`], if that is too long.
    pub(crate) fn silent_for(&self, path: &Path) -> Option<Duration> {
        self.busy_for(path).filter(|lasting| *lasting >= SILENT)
    }

    /// Each path once, in their order.
    #[must_use]
    pub fn silent(&self) -> Vec<SilentDisk> {
        let state = self.lock();
        let silent = state.busy.iter().map(|work| (work, work.since.elapsed()));
        let silent = silent.filter(|(_, lasting)| *lasting >= SILENT);
        let mut silent: Vec<_> =
            silent.map(|(work, lasting)| SilentDisk { path: work.path.clone(), lasting }).collect();
        drop(state);
        silent
            .sort_by(|one, other| one.path.cmp(&other.path).then(other.lasting.cmp(&one.lasting)));
        silent.dedup_by(|one, other| one.path == other.path);
        silent
    }
}
