//! Scratch buffers for building texts, off the app's stack.
//!
//! Callbacks run on threads of the app's, with whatever is left of their stacks, on top of the
//! runtime's compiler. So a callback takes its buffers from a pool that was allocated with the
//! session. When all of it is in use it allocates, and without memory its report is dropped and
//! counted.
//!
//! **Invariant:** taking never waits: a buffer in use is skipped.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use strata_bridge_protocol::status::Loss;

use crate::session::Session;
use crate::text::Text;

/// Type names in metadata have at most 1,023 characters (corhdr.h, MAX_CLASS_NAME); nested ones
/// are several of them. Paths have 4,096 at most.
pub type LongText = Text<4096>;

/// Buffers for one report. All bytes zero is a value.
pub struct Scratch {
    pub units: [u16; 2048],
    pub text: LongText,
    pub second: LongText,
}

/// More are in use only when as many threads report at the same moment: each takes three at most.
const BUFFERS: usize = 8;

pub struct Pool {
    buffers: NonNull<Scratch>,
    taken: [AtomicBool; BUFFERS],
}

// SAFETY: a buffer is used only by the thread that has set its flag.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// A buffer, until it is dropped.
pub struct Taken<'a> {
    buffer: NonNull<Scratch>,
    /// Its place in the pool; `None`: it was allocated.
    place: Option<&'a AtomicBool>,
}

const ALL: Layout = Layout::new::<[Scratch; BUFFERS]>();
const ONE: Layout = Layout::new::<Scratch>();

fn allocate(layout: Layout) -> Option<NonNull<Scratch>> {
    // SAFETY: the layout has a size.
    NonNull::new(unsafe { alloc_zeroed(layout) }.cast())
}

impl Pool {
    /// `None`: there is no memory.
    pub fn new() -> Option<Pool> {
        Some(Pool { buffers: allocate(ALL)?, taken: [const { AtomicBool::new(false) }; BUFFERS] })
    }

    fn take(&self) -> Option<Taken<'_>> {
        if let Some(taken) = self.take_without_memory() {
            return Some(taken);
        }
        Some(Taken { buffer: allocate(ONE)?, place: None })
    }

    /// A buffer of the pool's, with whatever texts it has: for a thread that may not allocate.
    pub fn take_without_memory(&self) -> Option<Taken<'_>> {
        for (number, place) in self.taken.iter().enumerate() {
            if !place.swap(true, Ordering::Acquire) {
                // SAFETY: one of the buffers that were allocated.
                let buffer = unsafe { self.buffers.add(number) };
                return Some(Taken { buffer, place: Some(place) });
            }
        }
        None
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and no buffer outlives the pool.
        unsafe { dealloc(self.buffers.as_ptr().cast(), ALL) };
    }
}

impl Taken<'_> {
    pub fn get(&mut self) -> &mut Scratch {
        // SAFETY: zeroed when it was allocated, which is a valid value, and not shared until the
        // drop.
        unsafe { self.buffer.as_mut() }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        match self.place {
            Some(place) => place.store(false, Ordering::Release),
            // SAFETY: allocated in `take` with this layout.
            None => unsafe { dealloc(self.buffer.as_ptr().cast(), ONE) },
        }
    }
}

/// Buffers with empty texts.
pub fn take(session: &Session) -> Option<Taken<'_>> {
    let taken = session.scratch().take();
    let Some(mut taken) = taken else {
        session.shared().lost(Loss::LogMemory);
        return None;
    };
    let scratch = taken.get();
    scratch.text.clear();
    scratch.second.clear();
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_and_more_than_the_pool_has_are_allocated() {
        let pool = Pool::new().expect("memory");
        let mut taken: Vec<_> = (0..2 * BUFFERS).map(|_| pool.take().expect("memory")).collect();
        for (number, buffer) in taken.iter_mut().enumerate() {
            buffer.get().text.push(&number.to_string());
        }
        for (number, buffer) in taken.iter_mut().enumerate() {
            assert_eq!(buffer.get().text.as_str(), number.to_string());
        }
        drop(taken);
        assert!((0..BUFFERS).all(|_| pool.take().is_some_and(|taken| taken.place.is_some())));
    }
}
