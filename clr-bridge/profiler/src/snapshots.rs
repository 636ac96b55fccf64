//! Stacks of events that the runtime walks, where strata cannot have a probe in the process.
//!
//! The runtime walks the managed frames of the calling thread (`DoStackSnapshot`), and the event goes
//! with them into the ring of the shared memory. The addresses are those that a probe's stack has in
//! managed code: return addresses, and where an instruction has failed its own.
//!
//! **Invariant:** no lock, no allocation: a stack is written into one of a fixed number of buffers, and
//! an event that finds none, or no room in the ring, is counted by its kind. No id that the runtime
//! passes is used.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use strata_bridge_protocol::clr_event::{Block, ClrEvent, snapshot};
use strata_bridge_protocol::event::Event;
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::Count;

use crate::com::{HResult, S_FALSE, S_OK};
use crate::session::Session;
use crate::tasks;

/// Threads that have their stacks walked at the same time. Memory that is not used costs nothing.
const BUFFERS: usize = 64;

/// Frames of a stack that are walked: a frame takes 0.14 µs of the program's time, and the budgets of
/// events are for stacks of ordinary depth.
const MAX_FRAMES: usize = 256;

/// The frames of one stack.
struct Frames {
    words: [u64; MAX_FRAMES],
    count: usize,
    is_truncated: bool,
}

struct Buffer {
    is_taken: AtomicBool,
    frames: UnsafeCell<Frames>,
}

/// The buffers. All bytes zero is a value.
pub struct Snapshots {
    /// Made when stacks are first wanted, and freed with this.
    buffers: AtomicPtr<[Buffer; BUFFERS]>,
}

const LAYOUT: Layout = Layout::new::<[Buffer; BUFFERS]>();

// SAFETY: the frames of a buffer are used only by the thread that has set its flag.
unsafe impl Sync for Buffer {}

impl Drop for Snapshots {
    fn drop(&mut self) {
        let buffers = *self.buffers.get_mut();
        if !buffers.is_null() {
            // SAFETY: allocated in `prepare` with this layout, and nothing uses it any more.
            unsafe { dealloc(buffers.cast(), LAYOUT) };
        }
    }
}

/// A buffer, until it is dropped.
struct Taken<'a>(&'a Buffer);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

impl Taken<'_> {
    fn frames(&mut self) -> &mut Frames {
        // SAFETY: this thread has set the flag, and the buffer is borrowed for as long.
        unsafe { &mut *self.0.frames.get() }
    }
}

impl Snapshots {
    pub const fn new() -> Self {
        Self { buffers: AtomicPtr::new(null_mut()) }
    }

    /// Makes the buffers. Without memory every event is counted as one without room.
    pub fn prepare(&self) {
        if self.buffers.load(Ordering::Acquire).is_null() {
            // SAFETY: the type has a size.
            let buffers = unsafe { alloc_zeroed(LAYOUT) }.cast();
            self.buffers.store(buffers, Ordering::Release);
        }
    }

    fn take(&self) -> Option<Taken<'_>> {
        // SAFETY: null or made in `prepare`, where it is all zero, which is valid; it lives as long as
        // this.
        let buffers = unsafe { self.buffers.load(Ordering::Acquire).as_ref() }?;
        let is_free = |buffer: &&Buffer| {
            !buffer.is_taken.load(Ordering::Relaxed)
                && !buffer.is_taken.swap(true, Ordering::Acquire)
        };
        buffers.iter().find(is_free).map(Taken)
    }
}

/// Pushes an event with the managed frames of the calling thread.
#[inline(never)]
pub fn report(session: &Session, event: &ClrEvent<'_>, block: &Block) {
    let is_reported = session.events().snapshots.take().is_some_and(|mut taken| {
        let frames = taken.frames();
        let flags = walk(session, frames);
        push(session, event.kind, block, frames, flags)
    });
    if !is_reported && let Some(count) = Count::of_events_without_room(event.kind) {
        session.shared().count(count, u64::from(event.weight));
    }
}

/// Writes down the frames of the calling thread; returns the flags of its event.
fn walk(session: &Session, frames: &mut Frames) -> u32 {
    frames.count = 0;
    frames.is_truncated = false;
    let data = std::ptr::from_mut(frames).cast();
    let result = session.info().snapshot_of_own_stack(take_frame, data);
    match result {
        _ if frames.is_truncated => snapshot::TRUNCATED,
        0.. => 0,
        _ => snapshot::INCOMPLETE,
    }
}

/// The runtime calls this for each managed frame, the innermost first, and once for native frames
/// between them, without a function then (corprof.idl, `StackSnapshotCallback`).
unsafe extern "C" fn take_frame(
    function: usize,
    address: usize,
    _frame: usize,
    _context_size: u32,
    _context: *const u8,
    data: *mut c_void,
) -> HResult {
    if function == 0 {
        return S_OK;
    }
    // SAFETY: `walk` passed a buffer of this thread's, which nothing else uses meanwhile.
    let frames = unsafe { &mut *data.cast::<Frames>() };
    let Some(place) = frames.words.get_mut(frames.count) else {
        frames.is_truncated = true;
        return S_FALSE;
    };
    *place = address as u64;
    frames.count += 1;
    S_OK
}

fn push(session: &Session, kind: u8, block: &Block, frames: &Frames, flags: u32) -> bool {
    let info = session.info();
    let app_domain = info.current_thread().and_then(|thread| info.thread_app_domain(thread));
    let event = Event {
        kind: u16::from(kind),
        flags,
        time: monotonic_time(),
        tid: tasks::own(),
        app_domain: app_domain.unwrap_or_default() as u64,
        values: own_name(),
        frames: frames.words.get(..frames.count).unwrap_or_default(),
        detail: block.used(),
    };
    session.shared().writer().push(&event).is_ok()
}

/// The name that the kernel has of the calling thread.
fn own_name() -> [u64; 2] {
    let name = tasks::own_name();
    let (words, _) = name.as_chunks::<8>();
    [0, 1].map(|at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_of_more_frames_than_an_event_has_is_truncated() {
        let snapshots = Snapshots::new();
        snapshots.prepare();
        let mut taken = snapshots.take().expect("a buffer");
        let frames = taken.frames();
        let mut call = |function| {
            let data = std::ptr::from_mut(frames).cast();
            // SAFETY: a buffer of this test's.
            unsafe { take_frame(function, 7, 0, 0, std::ptr::null(), data) }
        };
        assert_eq!(call(0), S_OK, "native code");
        assert!((0..MAX_FRAMES).all(|_| call(1) == S_OK));
        assert_eq!(call(1), S_FALSE);
        assert_eq!((frames.count, frames.is_truncated), (MAX_FRAMES, true));
    }

    #[test]
    fn more_stacks_than_there_are_buffers_find_none_and_buffers_come_back() {
        let snapshots = Snapshots::new();
        assert!(snapshots.take().is_none(), "no memory");
        snapshots.prepare();
        let all: Vec<_> = (0..BUFFERS).map(|_| snapshots.take().expect("a buffer")).collect();
        assert!(snapshots.take().is_none());
        drop(all);
        assert!(snapshots.take().is_some());
    }
}
