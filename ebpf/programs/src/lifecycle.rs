//! Entries of processes that execute another program, or begin.
//!
//! Userspace learns of both a little later. Until then the extents of the program before would still
//! answer for the new one's addresses, while those of a parent hold for its child.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::{btf_tracepoint, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use strata_abi::tables::{MAX_INHERITED, PROCESS_SKIP};

use crate::maps::{CONTEXTS, INHERITED, PROCESSES, UNWANTED, task_offsets};
use crate::off_cpu::take_in;
use crate::task::field;

/// Forgets a process's mappings the moment it executes another program. Without an entry the sampler
/// sends the raw stack. A raw tracepoint, because it needs neither a mount nor type information.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn forget_on_exec(_context: RawTracePointContext) -> i32 {
    let ids = bpf_get_current_pid_tgid();
    let pid = (ids >> 32) as u32;
    let _ = PROCESSES.remove(pid);
    let _ = CONTEXTS.remove(pid);
    let _ = UNWANTED.remove(pid);
    take_in(ids as u32);
    0
}

/// Gives a process that begins its parent's entry: its memory is a copy of the parent's. What its
/// number's last owner had is forgotten in any case.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn inherit_on_fork(context: BtfTracePointContext) -> i32 {
    let child: *const task_struct = context.arg(1);
    let parent = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: a task of the tracepoint, and an offset of a field from the kernel's own type
    // information; the verifier checks both.
    let child = unsafe { field(child, task_offsets().tgid) };
    if child == parent {
        // A thread.
        return 0;
    }
    // SAFETY: a map value, copied.
    let entry = PROCESSES.get_ptr(parent).map(|process| unsafe { *process });
    match entry {
        Some(entry) if entry.flags & PROCESS_SKIP == 0 && take_one() => {
            let _ = PROCESSES.insert(child, entry, 0);
        }
        _ => {
            let _ = PROCESSES.remove(child);
        }
    }
    0
}

/// Whether another process may be given an entry before userspace has seen the last ones: one that
/// forks without end would take all.
#[inline(always)]
fn take_one() -> bool {
    let Some(given) = INHERITED.get_ptr_mut(0) else { return false };
    // SAFETY: a map value.
    unsafe {
        core::ptr::read_volatile(given) < MAX_INHERITED
            && atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(given, 1) < MAX_INHERITED
    }
}
