//! Forgets a process's mappings the moment it executes another program.
//!
//! Userspace learns of the exec a little later; until then the old program's extents would
//! still answer for the new one's addresses. Without an entry the sampler sends the raw stack.
//!
//! A raw tracepoint, because it needs no mount.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;

use crate::maps::{CONTEXTS, PROCESSES, UNWANTED};
use crate::off_cpu::take_in;

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
