//! What the kernel has put in the place of a program's own addresses for the probes of any tool, as agents
//! have them on `SSL_read`:
//! - while a probe waits for a function's return (a uretprobe), the stack has the address of a trampoline; the
//!   return address is kept with the task (`struct return_instance`);
//! - the instruction under a probe is executed in a slot elsewhere (`uprobe_task.xol_vaddr`).
//!
//! Invariant: at most [`MOST`] entries are looked at, and only for a frame whose code is in no mapping that is
//! known.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{bpf_get_current_task, bpf_probe_read_kernel};

use strata_abi::step::{EXACT, Frame};

use crate::maps::probe_offsets::{
    instances, instruction, next, of_task, return_address, slot, stack,
};

/// A slot has so many bytes at most (`UPROBE_XOL_SLOT_BYTES`).
const SLOT: u64 = 128;
/// Entries of a task looked at. A task has 64 at most.
pub const MOST: u32 = 64;

/// The address of the program's that stands behind `pc`, an instruction's itself or a return address that lay
/// just below `sp`; 0: none does. `task` is null for the current one.
///
/// The offsets are read where they are needed: kernels before 6.13 count the stacks of nested calls together.
#[inline(never)]
pub fn original(task: *mut task_struct, frame: &Frame) -> u64 {
    if of_task() == 0 {
        return 0;
    }
    // SAFETY: a helper without preconditions.
    let task = if task.is_null() { unsafe { bpf_get_current_task() } } else { task as u64 };
    let probed = word(task, of_task());
    if frame.exact & EXACT == 0 {
        return returned_to(probed, frame.sp);
    }
    let slot = word(probed, slot());
    let inside = frame.pc.wrapping_sub(slot);
    if slot == 0 || inside >= SLOT {
        return 0;
    }
    word(probed, instruction()).wrapping_add(inside)
}

#[inline(always)]
fn returned_to(probed: u64, sp: u64) -> u64 {
    let mut instance = word(probed, instances());
    let mut found = 0;
    for _ in 0..MOST {
        if instance == 0 {
            break;
        }
        let at = word(instance, stack());
        // Those of callers lie further up.
        if at >= sp {
            break;
        }
        // Of several probes of one function, the last has what the first one found.
        if at.wrapping_add(8) == sp {
            found = word(instance, return_address());
        }
        instance = word(instance, next());
    }
    found
}

/// The word at an offset from an address of the kernel's; 0 where it cannot be read.
#[inline(always)]
fn word(address: u64, offset: u64) -> u64 {
    let mut value = 0u64;
    if address == 0 {
        return 0;
    }
    let from = address.wrapping_add(offset) as *const c_void;
    // SAFETY: 8 bytes of our own stack; the helper checks the source.
    let read = unsafe { bpf_probe_read_kernel((&raw mut value).cast(), 8, from) };
    if read == 0 { value } else { 0 }
}
