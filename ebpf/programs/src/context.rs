//! The context of the current thread, read from its process's memory at the time of a sample.
//!
//! Userspace publishes where a process has mapped its table ([`CONTEXTS`]). The slot is copied and
//! its first word read again: a slot that is being written, or was meanwhile, is left out, and
//! userspace then knows that nothing was read.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_probe_read_user};
use strata_abi::context::{
    CONTEXT_FREE, CONTEXT_PROBES, CONTEXT_SLOT_BYTES, CONTEXT_SLOTS, ContextStart, context_place,
};
use strata_abi::record::{FLAG_CONTEXT, Header};

use crate::maps::{CONTEXTS, pid_offsets};

/// Bytes of `struct upid`: a number and a pointer to its namespace.
const UPID_BYTES: u64 = 16;
/// PID namespaces nest this deep at most (MAX_PID_NS_LEVEL, include/linux/pid_namespace.h).
const MAX_LEVEL: u32 = 32;

/// Fills in what the thread has published of itself. A call, so that its variables are not on the
/// stack while frames are walked: kernels allow 512 bytes for both (6.1 counts them together).
#[inline(never)]
pub fn read_context(header: &mut Header, task: *mut task_struct) {
    // SAFETY: the value is one word, copied at once.
    let Some(table) = (unsafe { CONTEXTS.get(header.pid) }) else { return };
    let table = *table;
    let tid = innermost_tid(task, header.tid);
    let first = context_place(tid);
    for probe in 0..CONTEXT_PROBES {
        let place = first.wrapping_add(probe) & (CONTEXT_SLOTS - 1);
        let at = table.wrapping_add(u64::from(place) * u64::from(CONTEXT_SLOT_BYTES));
        let mut slot = ContextStart::default();
        if !read_user((&raw mut slot).cast(), size_of::<ContextStart>() as u32, at)
            || slot.tid == CONTEXT_FREE
        {
            return;
        }
        if slot.tid != tid {
            continue;
        }
        let mut again = ContextStart::default();
        if slot.sequence & 1 == 0
            && read_user((&raw mut again).cast(), 8, at)
            && again.tid == slot.tid
            && again.sequence == slot.sequence
        {
            header.app_domain = slot.app_domain;
            header.label_set = slot.label_set;
            header.flags |= FLAG_CONTEXT;
        }
        return;
    }
}

#[inline(always)]
fn read_user(to: *mut c_void, bytes: u32, from: u64) -> bool {
    // SAFETY: the callers' buffers are `bytes` long; the helper checks the source.
    unsafe { bpf_probe_read_user(to, bytes, from as *const c_void) == 0 }
}

#[inline(always)]
fn read_kernel<T>(to: &mut T, from: u64) -> bool {
    // SAFETY: `to` has that length; the helper checks the source.
    unsafe {
        let to: *mut T = to;
        bpf_probe_read_kernel(to.cast(), size_of::<T>() as u32, from as *const c_void) == 0
    }
}

/// The current thread's number in its innermost PID namespace, by which it knows itself.
#[inline(always)]
fn innermost_tid(task: *mut task_struct, tid: u32) -> u32 {
    let offsets = pid_offsets();
    if offsets.thread_pid == 0 {
        return tid;
    }
    let (mut pid, mut level, mut number) = (0u64, 0u32, 0u32);
    if !read_kernel(&mut pid, task as u64 + offsets.thread_pid)
        || !read_kernel(&mut level, pid + offsets.level)
        || level > MAX_LEVEL
    {
        return tid;
    }
    let at = pid + offsets.numbers + u64::from(level) * UPID_BYTES;
    if read_kernel(&mut number, at) { number } else { tid }
}
