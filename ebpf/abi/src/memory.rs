//! The programs' own memory, as far as userspace reads it too: counters.

use crate::record::{COUNTER_SLOTS, EVENT_KINDS, HOT_WORDS};
use crate::step::Frame;
use crate::tables::Process;

/// The counters of one CPU.
pub type Counters = [u64; COUNTER_SLOTS];

/// Words of the stack window (2 KiB).
pub const WINDOW_WORDS: usize = 256;

/// A name of the kernel (`KSYM_NAME_LEN`), its module in brackets, and a NUL.
pub const KERNEL_NAME_BYTES: usize = 512 + 64;

/// Working memory of one program on one CPU. The loop's scalars live here and not on the BPF
/// stack: there they would be tracked by the verifier and its states never converge.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hot {
    /// All that userspace reads.
    pub counters: Counters,
    pub frame: Frame,
    pub process: Process,
    /// Address of the window's first word; the window is empty when `window_bytes` is 0.
    pub window_at: u64,
    pub window_bytes: u64,
    pub user_frames: u32,
    pub max_frames: u32,
    /// Index of the first user frame in the record's words.
    pub first_word: u32,
    pub end: u32,
    pub hits: u32,
    pub misses: u32,
    /// 1 once the walk has asked where the thread left its goroutine.
    pub left_goroutine: u64,
    pub window: [u64; WINDOW_WORDS],
}

const _: () = assert!(size_of::<Hot>() == HOT_WORDS * 8);

/// The events of one CPU in the current window of time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventPace {
    pub window: u32,
    pub taken: u32,
    /// Stacks sent raw.
    pub raw: u32,
    /// Since the start: events whose block could not be read, or is of no kind.
    pub unreadable: u32,
    /// Since the start, by kind ([`crate::record::event_slot`]): events that were not taken.
    pub refused: [u32; EVENT_KINDS],
}

const _: () = assert!(size_of::<EventPace>() == (4 + EVENT_KINDS) * 4);
