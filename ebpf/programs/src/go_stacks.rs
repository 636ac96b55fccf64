//! The second stack of a thread of a Go program.
//!
//! Such a thread runs C functions and parts of the runtime on a *system stack* (`g0`), and
//! everything else on its goroutine's. A call from one to the other (`runtime.asmcgocall`,
//! `runtime.systemstack`, `runtime.cgocallback`) leaves its caller on the stack it came from, so
//! that a copy of one stack alone ends there.
//!
//! Where the other stack was left is in the runtime's own structures (`runtime/runtime2.go`, Go
//! 1.9 to 1.26: `g.stack`, `g.m`, `g.sched`; `m.g0`, `m.curg`). The thread's current `g` is in its
//! thread-local storage, at -8 in most programs, further below where libraries that are linked
//! statically have variables of their own. What is taken for a `g` must lead to an `m` whose `g0`
//! leads back to it.
//!
//! Invariant: this only chooses what is copied. Where a wrong place is chosen, the copy is of no
//! use, and no frame is found in it that the thread does not have.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_probe_read_user};

use crate::maps::{Hot, task_thread_pointer};

/// How many words below the thread pointer may hold the current `g`.
const LOCAL_WORDS: usize = 16;

/// `g.m`.
const G_THREAD: u64 = 0x30;
/// `g.sched.sp`: where the stack was left.
const G_SP: u64 = 0x38;
/// `m.curg` is one of four words from here on: at 0xb8 since Go 1.25, before at 0xc0.
const M_CURRENT: u64 = 0xb0;
const CURRENT_WORDS: usize = 4;

/// Where the current thread left its other stack; 0 when it has none. Uses the stack window.
#[inline(never)]
pub fn other_stack(hot: &mut Hot) -> u64 {
    hot.window_bytes = 0;
    let pointer = thread_pointer();
    let locals = pointer.wrapping_sub(LOCAL_WORDS as u64 * 8);
    if pointer == 0 || !read(&raw mut hot.window, LOCAL_WORDS, locals) {
        return 0;
    }
    let (mut current, mut thread) = (0, 0);
    for index in 1..=LOCAL_WORDS {
        current = hot.window[LOCAL_WORDS - index];
        thread = thread_of(current);
        if thread != 0 {
            break;
        }
    }
    if thread == 0 {
        return 0;
    }
    let system = word(thread);
    let mut other = system;
    if current == system {
        if !read(&raw mut hot.window, CURRENT_WORDS, thread.wrapping_add(M_CURRENT)) {
            return 0;
        }
        other = 0;
        for index in 0..CURRENT_WORDS {
            let candidate = hot.window[index];
            if candidate != system && thread_of(candidate) == thread {
                other = candidate;
                break;
            }
        }
    }
    if other == 0 { 0 } else { word(other.wrapping_add(G_SP)) & !7 }
}

/// The `m` that runs a `g`; 0 when this is no `g`, or one that does not run.
#[inline(never)]
fn thread_of(goroutine: u64) -> u64 {
    if !is_pointer(goroutine) {
        return 0;
    }
    let thread = word(goroutine.wrapping_add(G_THREAD));
    if !is_pointer(thread) {
        return 0;
    }
    let system = word(thread);
    if is_pointer(system) && word(system.wrapping_add(G_THREAD)) == thread { thread } else { 0 }
}

#[inline(always)]
fn is_pointer(word: u64) -> bool {
    word & 7 == 0 && word >= 4096 && word >> 47 == 0
}

#[inline(always)]
fn word(address: u64) -> u64 {
    let mut word = 0u64;
    // SAFETY: 8 bytes of our own stack; the helper checks the source.
    let read = unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, address as *const c_void) };
    if read == 0 { word } else { 0 }
}

#[inline(always)]
fn read<const ROOM: usize>(to: *mut [u64; ROOM], words: usize, from: u64) -> bool {
    // SAFETY: callers pass fewer words than there is room for; the helper checks the source.
    unsafe { bpf_probe_read_user(to.cast(), words as u32 * 8, from as *const c_void) == 0 }
}

/// The current thread's thread pointer (x86-64: the base of FS); 0 when it is not known.
#[inline(always)]
fn thread_pointer() -> u64 {
    let offset = task_thread_pointer();
    if offset == 0 {
        return 0;
    }
    // SAFETY: the current task is valid for the whole program; the offset is the field's, from the
    // kernel's own type information, and the verifier checks it.
    unsafe {
        let task: *mut task_struct = bpf_get_current_task_btf();
        core::ptr::read_volatile(task.cast::<u8>().add(offset as usize).cast::<u64>())
    }
}
