//! Ownership of a bridge: an open-file-description write lock on the first byte of the main file.
//!
//! Such a lock belongs to the open file description that took it, not to a process (fcntl(2), "Open
//! file description locks"). The owner opens the file anew, by the target's `/proc/PID/map_files`
//! or `/proc/PID/fd`, so its description is its own; the bridge asks through the description it got
//! when it made the file. A description that both share (a descriptor passed over a socket, or
//! taken with `pidfd_getfd`) would not conflict with itself: the bridge would see no owner. The
//! kernel drops the lock when the last descriptor of the owner's description is closed, also by
//! `kill -9`. An owner must not leave the descriptor to children that outlive it: it is opened
//! close-on-exec.
//!
//! The app may close descriptors that it does not know of, and the number may then be another file.
//! The bridge compares the file's identity each time; when its descriptor is gone, it goes by
//! whether the owner's beat in the control page still changes.
//!
//! A bridge without an owner that is about to detach takes the lock itself ([`OwnerWatch::claim`]):
//! an owner that attaches now finds the lock taken and the bridge detaching.
//!
//! Invariant: no query blocks, and an owner's liveness is tested without changing a lock.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::layout::OWNER_LOCK;

/// An owner whose heartbeat has not changed for so long counts as gone, if its lock cannot be
/// tested.
const BEAT_LIMIT: u64 = 10_000_000_000;

/// Another process is the owner.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another strata owns this process's bridge")]
    Owned,
    #[error("cannot lock the bridge's memory: {0}")]
    Call(#[from] io::Error),
}

/// Bytes of the main file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes {
    pub start: i64,
    pub length: i64,
}

const OWNER: Bytes = Bytes { start: OWNER_LOCK, length: 1 };

fn lock_of(kind: libc::c_int, bytes: Bytes) -> libc::flock {
    // SAFETY: a plain C structure for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = bytes.start;
    lock.l_len = bytes.length;
    lock
}

/// Makes the file's open description the owner, until its last descriptor is closed.
pub fn lock(file: &File) -> Result<(), LockError> {
    lock_bytes(file, OWNER)
}

/// The same of other bytes.
pub(crate) fn lock_bytes(file: &File, bytes: Bytes) -> Result<(), LockError> {
    let Err(error) = set_lock(file.as_raw_fd(), libc::F_WRLCK, bytes) else { return Ok(()) };
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(LockError::Owned),
        _ => Err(LockError::Call(error)),
    }
}

/// Releases the lock while the file stays open.
pub fn unlock(file: &File) -> Result<(), LockError> {
    Ok(unlock_bytes(file, OWNER)?)
}

pub(crate) fn unlock_bytes(file: &File, bytes: Bytes) -> io::Result<()> {
    set_lock(file.as_raw_fd(), libc::F_UNLCK, bytes)
}

fn set_lock(descriptor: RawFd, kind: libc::c_int, bytes: Bytes) -> io::Result<()> {
    let lock = lock_of(kind, bytes);
    // SAFETY: `lock` is a valid structure; a descriptor that is not open is an error.
    if unsafe { libc::fcntl(descriptor, libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Whether an open description other than this descriptor's has locked one of these bytes.
pub(crate) fn is_locked(descriptor: RawFd, bytes: Bytes) -> io::Result<bool> {
    let mut lock = lock_of(libc::F_WRLCK, bytes);
    // SAFETY: `lock` is a valid structure that the kernel overwrites.
    if unsafe { libc::fcntl(descriptor, libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn identity(descriptor: RawFd) -> io::Result<(u64, u64)> {
    // SAFETY: a plain C structure for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `status` is valid for writing.
    if unsafe { libc::fstat(descriptor, &raw mut status) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((status.st_dev, status.st_ino))
}

/// The bridge's state for detecting whether an owner is alive.
#[derive(Debug)]
pub struct OwnerWatch {
    descriptor: RawFd,
    identity: (u64, u64),
    beat: u64,
    beat_time: u64,
}

impl OwnerWatch {
    /// Takes the descriptor with which the file was made.
    pub fn new(file: OwnedFd) -> io::Result<Self> {
        let identity = identity(file.as_raw_fd())?;
        Ok(Self { descriptor: file.into_raw_fd(), identity, beat: 0, beat_time: 0 })
    }

    /// Whether an owner is alive. `beat` is the control page's, `now` the monotonic time.
    pub fn lives(&mut self, beat: u64, now: u64) -> bool {
        if beat != self.beat {
            self.beat = beat;
            self.beat_time = now;
        }
        if self.is_ours()
            && let Ok(locked) = is_locked(self.descriptor, OWNER)
        {
            return locked;
        }
        beat != 0 && now.saturating_sub(self.beat_time) < BEAT_LIMIT
    }

    /// Takes the lock, unless an owner has it. Without the descriptor there is none to be taken.
    pub fn claim(&mut self) -> bool {
        !self.is_ours() || set_lock(self.descriptor, libc::F_WRLCK, OWNER).is_ok()
    }

    /// Releases what [`Self::claim`] took.
    pub fn unclaim(&mut self) {
        if self.is_ours() {
            // What cannot be unlocked is released with the descriptor.
            _ = set_lock(self.descriptor, libc::F_UNLCK, OWNER);
        }
    }

    /// Whether the descriptor is still the file that it was.
    fn is_ours(&self) -> bool {
        identity(self.descriptor).is_ok_and(|identity| identity == self.identity)
    }
}

impl Drop for OwnerWatch {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: ours by the check; a thread that reuses the number between the two calls
            // would have had to close a descriptor of ours first.
            unsafe { libc::close(self.descriptor) };
        }
    }
}
