//! Wishes of readers beside the owner: events that a recording wants of a bridge that the daemon, or
//! another recording, owns.
//!
//! A reader locks one of the bytes after the owner's and writes its wishes into the slot of that
//! byte. The owner reads the slots that are locked and adds their wishes to its own: the bridge has one
//! set of wishes, and need not know of readers. When a reader ends, also by `kill -9`, the kernel
//! releases its lock, and the owner leaves its wishes out from then on.
//!
//! Both are of any version: an owner that does not look at the slots leaves a reader without the
//! events, which the reader sees from the owner's wishes.
//!
//! Invariant: the process can write anything into the slots and lock them all. Only flags of events
//! are taken from there, so it can have itself report events, or keep readers from wishing for them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::control::wish;
use crate::control_pages::ControlPages;
use crate::layout::{READER_LOCKS, READER_SLOTS, READER_WISHES, ReaderBlock, checksum};
use crate::owner::{Bytes, LockError, is_locked, lock_bytes, unlock_bytes};
use crate::reader::ReadAt;

/// Why a reader cannot wish for events.
#[derive(Debug, thiserror::Error)]
pub enum BesideError {
    #[error("{READER_SLOTS} recordings beside its owner have wishes already")]
    Full,
    #[error("the bridge's memory cannot be used: {0}")]
    Call(#[from] io::Error),
}

/// A reader's place for its wishes, until it is dropped.
#[derive(Debug)]
pub struct ReaderWishes {
    file: File,
    pages: ControlPages,
    slot: usize,
}

/// The byte that stands for a slot.
fn byte_of(slot: usize) -> Bytes {
    Bytes { start: READER_LOCKS + slot as i64, length: 1 }
}

fn place_of(slot: usize) -> usize {
    READER_WISHES + slot * size_of::<ReaderBlock>()
}

impl ReaderBlock {
    fn of(flags: u64) -> Self {
        let block = Self { flags, ..Self::zero() };
        Self { check: block.sum(), ..block }
    }

    fn sum(&self) -> u64 {
        checksum(self.to_bytes().get(8..).unwrap_or_default())
    }
}

impl ReaderWishes {
    /// Takes a free slot. `file` is a main file that was checked, opened by this process itself
    /// (see [`crate::owner`]).
    pub fn take(file: File) -> Result<Self, BesideError> {
        let pages = ControlPages::map(&file)?;
        for slot in 0..READER_SLOTS {
            match lock_bytes(&file, byte_of(slot)) {
                Ok(()) => {
                    let taken = Self { file, pages, slot };
                    taken.wish(0)?;
                    return Ok(taken);
                }
                Err(LockError::Owned) => {}
                Err(LockError::Call(error)) => return Err(error.into()),
            }
        }
        Err(BesideError::Full)
    }

    /// Changes the wishes: bits of [`wish::EVENTS`].
    pub fn wish(&self, flags: u64) -> io::Result<()> {
        self.pages.write(place_of(self.slot), &ReaderBlock::of(flags).to_bytes())
    }
}

/// Releases the lock explicitly: a child of this process may have a descriptor of the file until it
/// executes.
impl Drop for ReaderWishes {
    fn drop(&mut self) {
        _ = self.wish(0);
        _ = unlock_bytes(&self.file, byte_of(self.slot));
    }
}

/// What the readers beside the owner wish for together: bits of [`wish::EVENTS`]. A slot that is being
/// written counts as soon as it is.
pub(crate) fn wishes(file: &File) -> io::Result<u64> {
    let all = Bytes { start: READER_LOCKS, length: READER_SLOTS as i64 };
    let mut flags = 0;
    if !is_locked(file.as_raw_fd(), all)? {
        return Ok(flags);
    }
    for slot in 0..READER_SLOTS {
        if !is_locked(file.as_raw_fd(), byte_of(slot))? {
            continue;
        }
        let mut bytes = [0; size_of::<ReaderBlock>()];
        file.read_at(place_of(slot) as u64, &mut bytes)?;
        let block = ReaderBlock::from_bytes(&bytes);
        if block.check == block.sum() {
            flags |= block.flags & wish::EVENTS;
        }
    }
    Ok(flags)
}
