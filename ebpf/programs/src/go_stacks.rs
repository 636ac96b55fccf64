//! The second stack of a thread of a Go program.
//!
//! Such a thread runs C functions and parts of the runtime on a *system stack* (`g0`), and
//! everything else on its goroutine's. A call from one to the other (`runtime.asmcgocall`,
//! `runtime.systemstack`, `runtime.cgocallback`) leaves its caller on the stack it came from, so
//! that a copy of one stack alone ends there. Since Go 1.21 all three save their caller's frame
//! pointer, and a walk follows it; before, `systemstack` and `asmcgocall` keep no trace of their caller
//! on the system stack.
//!
//! Where the other stack was left is in the runtime's own structures (`runtime/runtime2.go`, Go
//! 1.9 to 1.26: `g.stack`, `g.m`, `g.sched`; `m.g0`, `m.curg`). The thread's current `g` is in its
//! thread-local storage, at -8 in most programs, further below where libraries that are linked
//! statically have variables of their own. What is taken for a `g` must lead to an `m` whose `g0`
//! leads back to it.
//!
//! Invariant: no frame is found that the thread does not have. A wrong place makes a copy that is of
//! no use; a walk goes on only where the goroutine was left with the frame pointer that the walk has
//! found on the system stack.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::bpf_get_current_task_btf;

use crate::maps::{Hot, task_thread_pointer};
use crate::unwind::copy;

/// How many words below the thread pointer may hold the current `g`.
const LOCAL_WORDS: usize = 16;

/// `g.m`.
const G_THREAD: u64 = 0x30;
/// `g.sched.sp`: where the stack was left.
const G_SP: u64 = 0x38;
/// Words of a `g` from its start: `stack.lo`, `stack.hi`, `m`, and of `sched` its `sp`, `g` and `bp`
/// (that one until Go 1.24; later ones are not asked for it).
const G_WORDS: usize = 14;
const LOW_WORD: usize = 0;
const HIGH_WORD: usize = 1;
const THREAD_WORD: usize = 6;
/// The stack pointer with which it was left.
pub const LEFT_SP_WORD: usize = 7;
const G_WORD: usize = 9;
/// The frame pointer with which it was left.
pub const LEFT_FP_WORD: usize = 13;
/// `m.curg` is one of four words from here on: at 0xb8 since Go 1.25, before at 0xc0.
const M_CURRENT: u64 = 0xb0;
const CURRENT_WORDS: usize = 4;

// Below a walk there are 32 bytes of stack left (Linux before 6.9 counts so much for any function), and
// none for a further call: everything is kept in the stack window, behind what is read to its start.
const CURRENT_START: usize = 16;
const WORD: usize = 20;
const WANTED: usize = 21;

const _: () = assert!(LOCAL_WORDS <= CURRENT_START && G_WORDS <= CURRENT_START);
const _: () = assert!(CURRENT_START + CURRENT_WORDS <= WORD);

/// Where the current thread left its other stack; 0 when it has none. Uses the stack window, which then
/// has [`LEFT_SP_WORD`] and [`LEFT_FP_WORD`] of the thread's goroutine, 0 where it was not left.
#[inline(never)]
pub fn other_stack(hot: &mut Hot) -> u64 {
    hot.window_bytes = 0;
    let task = core::ptr::null_mut();
    let (current, thread) = current(hot, task);
    if thread == 0 {
        return 0;
    }
    let system = word(hot, task, thread);
    let is_left = read_goroutine(hot, task, thread);
    if !is_left {
        hot.window[LEFT_SP_WORD] = 0;
        hot.window[LEFT_FP_WORD] = 0;
    }
    let sp = if current != system {
        word(hot, task, system.wrapping_add(G_SP))
    } else {
        hot.window[LEFT_SP_WORD]
    };
    sp & !7
}

/// The stack pointer with which a thread left its goroutine for the system stack; 0 unless that was
/// with this frame pointer. `task` is null for the current thread. Uses the stack window.
#[inline(never)]
pub fn left_goroutine(hot: &mut Hot, task: *mut task_struct, fp: u64) -> u64 {
    hot.window_bytes = 0;
    hot.window[WANTED] = fp;
    let (_, thread) = current(hot, task);
    if thread == 0
        || !read_goroutine(hot, task, thread)
        || hot.window[LEFT_FP_WORD] != hot.window[WANTED]
    {
        return 0;
    }
    hot.window[LEFT_SP_WORD]
}

/// The thread's current `g` and its `m`; 0 when it has none.
#[inline(always)]
fn current(hot: &mut Hot, task: *mut task_struct) -> (u64, u64) {
    let pointer = thread_pointer(task);
    let locals = pointer.wrapping_sub(LOCAL_WORDS as u64 * 8);
    if pointer == 0 || !read(task, &raw mut hot.window[0], LOCAL_WORDS, locals) {
        return (0, 0);
    }
    for index in 1..=LOCAL_WORDS {
        let thread = thread_of(hot, task, hot.window[LOCAL_WORDS - index]);
        if thread != 0 {
            return (hot.window[LOCAL_WORDS - index], thread);
        }
    }
    (0, 0)
}

/// Reads the goroutine that an `m` runs into the window's first words; false when it runs none, or has
/// not left it.
#[inline(always)]
fn read_goroutine(hot: &mut Hot, task: *mut task_struct, thread: u64) -> bool {
    let currents = thread.wrapping_add(M_CURRENT);
    if !read(task, &raw mut hot.window[CURRENT_START], CURRENT_WORDS, currents) {
        return false;
    }
    for index in 0..CURRENT_WORDS {
        let goroutine = hot.window[CURRENT_START + index];
        if is_pointer(goroutine)
            && read(task, &raw mut hot.window[0], G_WORDS, goroutine)
            && hot.window[THREAD_WORD] == thread
            && hot.window[G_WORD] == hot.window[CURRENT_START + index]
        {
            let sp = hot.window[LEFT_SP_WORD];
            return sp >= hot.window[LOW_WORD] && sp < hot.window[HIGH_WORD] && sp & 7 == 0;
        }
    }
    false
}

/// The `m` that runs a `g`; 0 when this is no `g`, or one that does not run.
#[inline(always)]
fn thread_of(hot: &mut Hot, task: *mut task_struct, goroutine: u64) -> u64 {
    if !is_pointer(goroutine) {
        return 0;
    }
    let thread = word(hot, task, goroutine.wrapping_add(G_THREAD));
    if !is_pointer(thread) {
        return 0;
    }
    let system = word(hot, task, thread);
    let is_thread = is_pointer(system) && word(hot, task, system.wrapping_add(G_THREAD)) == thread;
    if is_thread { thread } else { 0 }
}

#[inline(always)]
fn is_pointer(word: u64) -> bool {
    word & 7 == 0 && word >= 4096 && word >> 47 == 0
}

#[inline(always)]
fn word(hot: &mut Hot, task: *mut task_struct, address: u64) -> u64 {
    if read(task, &raw mut hot.window[WORD], 1, address) { hot.window[WORD] } else { 0 }
}

/// Callers have room for as many words.
#[inline(always)]
fn read(task: *mut task_struct, to: *mut u64, words: usize, from: u64) -> bool {
    copy(task, to.cast::<c_void>(), words as u32 * 8, from)
}

/// A thread's thread pointer (x86-64: the base of FS); 0 when it is not known.
#[inline(always)]
fn thread_pointer(task: *mut task_struct) -> u64 {
    let offset = task_thread_pointer();
    if offset == 0 {
        return 0;
    }
    // SAFETY: the current task, and the one that is walked, are valid for the whole program; the offset
    // is the field's, from the kernel's own type information, and the verifier checks it.
    unsafe {
        let task = if task.is_null() { bpf_get_current_task_btf() } else { task };
        core::ptr::read_volatile(task.cast::<u8>().add(offset as usize).cast::<u64>())
    }
}
