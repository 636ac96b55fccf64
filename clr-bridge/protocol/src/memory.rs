//! Memory that several threads and another process share, as the writer sees it.
//!
//! The algorithms of the writer are generic over [`Memory`], so that a model checker can run them
//! over memory of its own. Words are 8 bytes at multiples of 8; bytes that were reserved by one
//! thread are written by it alone, without atomics, before a releasing store publishes them.
//!
//! Invariant: an offset outside the memory is refused, never followed.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word that several threads use.
pub trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// `true` if the word was `current` and is `new` now; acquires and releases.
    fn replace(&self, current: u64, new: u64) -> bool;
    fn add(&self, value: u64, order: Ordering) -> u64;
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
}

pub trait Memory {
    type Word: Word;

    /// The word at an offset that is a multiple of 8, if it lies inside.
    fn word(&self, offset: usize) -> Option<&Self::Word>;

    /// Copies bytes to where no other thread writes; out of range, it does nothing.
    fn write(&self, offset: usize, bytes: &[u8]);

    fn fence(&self, order: Ordering);
}

impl<M: Memory> Memory for &M {
    type Word = M::Word;

    fn word(&self, offset: usize) -> Option<&Self::Word> {
        (**self).word(offset)
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        (**self).write(offset, bytes);
    }

    fn fence(&self, order: Ordering) {
        (**self).fence(order);
    }
}

/// A mapped piece of shared memory.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: all access goes through atomics, or to bytes that the algorithms give to one thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// # Safety
    ///
    /// `start` is 8-byte aligned, and `length` bytes from there on are mapped for reading and
    /// writing as long as the region exists. No Rust reference to them exists.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self { start, length }
    }

    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    fn contains(&self, offset: usize, length: usize) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }
}

impl Memory for Region {
    type Word = AtomicU64;

    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        if !offset.is_multiple_of(8) || !self.contains(offset, 8) {
            return None;
        }
        // SAFETY: inside the mapping and aligned, by the check above and the promise of `new`.
        Some(unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU64>() })
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        if !self.contains(offset, bytes.len()) {
            return;
        }
        // SAFETY: inside the mapping by the check above; `bytes` is a reference, so not in it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.start.as_ptr().add(offset),
                bytes.len(),
            );
        }
    }

    fn fence(&self, order: Ordering) {
        std::sync::atomic::fence(order);
    }
}
