//! The thread contexts of a process, as the sampler finds them in the process's own memory.
//!
//! The CLR bridge keeps a hash table of 64-byte slots in shared memory, and userspace publishes
//! where the process has mapped it. The layout is the bridge's; userspace asserts that both agree.
//!
//! Invariant: whatever the table holds, a search reads at most [`CONTEXT_PROBES`] slots.

pub const CONTEXT_SLOTS: u32 = 4096;
pub const CONTEXT_PROBES: u32 = 16;
pub const CONTEXT_SLOT_BYTES: u32 = 64;
/// A slot that no thread has had: a search ends here.
pub const CONTEXT_FREE: u32 = 0;

/// What the sampler reads of a slot: its start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextStart {
    /// In the thread's innermost PID namespace.
    pub tid: u32,
    /// Odd while the slot is being written.
    pub sequence: u32,
    pub app_domain: u64,
    pub label_set: u64,
}

const _: () = assert!(size_of::<ContextStart>() == 24);

/// The first slot in which a thread's context may be.
#[inline(always)]
#[must_use]
pub const fn context_place(tid: u32) -> u32 {
    tid.wrapping_mul(0x9e37_79b9) >> (32 - CONTEXT_SLOTS.trailing_zeros())
}
