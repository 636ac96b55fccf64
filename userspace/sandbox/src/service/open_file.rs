//! An opened file, as the daemon holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shares::Owner;
use crate::channel::Envelope;
use crate::identity::{FileIdentity, IdentityTrust};

/// The bytes of a copy, counted while it is there.
#[derive(Debug)]
pub(super) struct Copied {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl Copied {
    pub fn new(all: &Arc<AtomicU64>, bytes: u64) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        Self { all: all.clone(), bytes }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// An opened file of a target. Holds it open (also when it is deleted) without being able to
/// touch it: only a worker can.
#[derive(Debug)]
pub struct OpenFile {
    pub(super) envelope: Envelope,
    pub(super) identity: FileIdentity,
    pub(super) trust: IdentityTrust,
    pub(super) deleted: bool,
    pub(super) copy: Option<Copied>,
    pub(super) owner: u32,
    /// Whose time of workers it takes.
    pub(super) share: Owner,
}

impl OpenFile {
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    pub fn trust(&self) -> IdentityTrust {
        self.trust
    }

    /// It has no name any more.
    pub fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// The user that owned the file when it was opened, as this process numbers users.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    pub(crate) fn share(&self) -> Owner {
        self.share
    }

    /// A copy in memory of a file that may hang its reader. There is room for [`Config::copies`].
    ///
    /// [`Config::copies`]: super::Config::copies
    pub fn is_copy(&self) -> bool {
        self.copy.is_some()
    }
}
