//! mmapable BPF maps as plain memory: [`MapMemory`], and [`RestingMemory`], which is mapped only
//! while it is used.
//!
//! Invariant: words are written with relaxed atomics, because programs read them at any time;
//! what makes new words visible in the right order is the system call that updates the process
//! entry afterwards.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The value area of one mmapable array map, as `u32` words.
pub struct MapMemory {
    start: NonNull<AtomicU32>,
    words: usize,
}

// SAFETY: the memory is only accessed through atomics.
unsafe impl Send for MapMemory {}
// SAFETY: as above.
unsafe impl Sync for MapMemory {}

impl MapMemory {
    /// Maps `bytes` bytes of the map behind `fd`.
    pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: a fresh shared mapping of a map's own pages; the result is checked.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { start, words: bytes / 4 })
    }

    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: the mapping is `words` words long, lives as long as `self`, and is only
        // accessed through atomics on both sides.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// Copies `from` to word `at`; false when it does not fit.
    pub fn write(&self, at: usize, from: impl ExactSizeIterator<Item = u32>) -> bool {
        let Some(to) = self.words().get(at..).and_then(|rest| rest.get(..from.len())) else {
            return false;
        };
        for (to, from) in to.iter().zip(from) {
            to.store(from, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        true
    }

    pub fn read(&self, at: usize) -> Option<u32> {
        self.words().get(at).map(|word| word.load(Ordering::Relaxed))
    }
}

impl Drop for MapMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, not used after this.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * 4) };
    }
}

/// Turns of [`RestingMemory::rest`] without a use after which the memory is unmapped.
const IDLE_TURNS: u32 = 3;

/// A map's memory in this process: mapped to be written or searched, and unmapped again when
/// nothing has needed it for a while. The kernel's programs have it either way.
pub struct RestingMemory {
    map: OwnedFd,
    bytes: usize,
    memory: OnceLock<MapMemory>,
    /// Turns since its last use.
    unused: AtomicU32,
}

impl RestingMemory {
    pub fn of(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let map = map.try_clone_to_owned()?;
        Ok(Self { map, bytes, memory: OnceLock::new(), unused: AtomicU32::new(0) })
    }

    /// The memory, mapped from now on. `None`: it cannot be mapped.
    pub fn get(&self) -> Option<&MapMemory> {
        self.unused.store(0, Ordering::Relaxed);
        if let Some(memory) = self.memory.get() {
            return Some(memory);
        }
        match MapMemory::map(self.map.as_fd(), self.bytes) {
            Ok(memory) => Some(self.memory.get_or_init(|| memory)),
            Err(error) => {
                tracing::debug!(%error, "unwind tables can be neither written nor searched");
                None
            }
        }
    }

    /// Unmaps it if it has not been used for [`IDLE_TURNS`] calls.
    pub fn rest(&mut self) {
        let unused = self.unused.get_mut();
        *unused = unused.saturating_add(1);
        if *unused > IDLE_TURNS {
            self.memory.take();
        }
    }
}
