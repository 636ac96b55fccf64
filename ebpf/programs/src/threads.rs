//! The stacks of threads that do not run: a sleepable task iterator, run when userspace reads it.
//!
//! A blocked thread's registers are saved and its stack lies still, so it is walked from outside,
//! by the same unwinder, without stopping or even touching it. A thread that runs has stale saved
//! registers: it is left to the CPU sampler, and only counted.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{
    bpf_get_task_stack, bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_task_pt_regs,
};
use strata_abi::record::{Counter, End, FORM_UNWOUND, MAX_KERNEL_FRAMES, SOURCE_WALL};

use crate::maps::{
    PROCESSES, THREADS_CACHE, THREADS_HOT, THREADS_RECORD, count, task_offsets, wanted_process,
};
use crate::sampler::{BPF_RB_NO_WAKEUP, Whose, emit, has_program, ring, user_stack};

/// `struct bpf_iter__task` (kernel/bpf/task_iter.c).
#[repr(C)]
pub struct Context {
    meta: *const c_void,
    task: *mut task_struct,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter.s/task")]
pub extern "C" fn walk_threads(context: *const Context) -> i32 {
    // SAFETY: the kernel passes its context; the task is null at the end of the pass.
    let task = unsafe { (*context).task };
    if task.is_null() {
        return 0;
    }
    let offsets = task_offsets();
    // SAFETY: offsets of fields, from the kernel's own type information; the verifier checks them.
    let (process, thread, state) = unsafe {
        (field(task, offsets.tgid), field(task, offsets.pid), field(task, offsets.state))
    };
    if process != wanted_process() {
        return 0;
    }
    let zero = 0u32;
    let (Some(hot), Some(record), Some(cache)) = (
        THREADS_HOT.get_ptr_mut(zero),
        THREADS_RECORD.get_ptr_mut(zero),
        THREADS_CACHE.get_ptr_mut(zero),
    ) else {
        return 0;
    };
    // SAFETY: map values; one pass runs at a time, because one descriptor is read by one reader.
    let (hot, record) = unsafe { (&mut *hot, &mut *record) };
    if state == 0 {
        count(&mut hot.counters, Counter::Skipped as u32, 1);
        return 0;
    }
    let header = &mut record.header;
    // SAFETY: a helper without preconditions; `comm` is 16 bytes of the task and of the record.
    unsafe {
        header.time = bpf_ktime_get_ns();
        let comm = task.cast::<u8>().add(offsets.comm as usize);
        bpf_probe_read_kernel((&raw mut header.comm).cast(), 16, comm.cast());
    }
    header.pid = process;
    header.tid = thread;
    header.cpu = 0;
    header.generation = 0;
    header.cgroup = 0;
    header.user_frames = 0;
    header.kernel_frames = 0;
    header.form = FORM_UNWOUND;
    header.flags = 0;
    header.stack_bytes = 0;
    header.source = SOURCE_WALL;
    header.weight = 1;
    header.value = 0;
    header.app_domain = 0;
    header.label_set = 0;
    header.end = End::NoProcess as u8;
    // SAFETY: the record has room for MAX_KERNEL_FRAMES words.
    let bytes = unsafe {
        bpf_get_task_stack(task, (&raw mut record.words).cast(), (MAX_KERNEL_FRAMES * 8) as u32, 0)
    };
    if bytes > 0 {
        record.header.kernel_frames = ((bytes as u64 >> 3) & 127) as u16;
    }
    let mut words = record.header.kernel_frames as u64;
    if has_program(task) {
        // SAFETY: the task is valid for the whole program.
        let registers = unsafe { bpf_task_pt_regs(task) as *const u8 };
        let process = PROCESSES.get_ptr_mut(process);
        let known = process.is_some();
        if !user_stack(hot, record, cache, registers, process, Whose::Other(task)) && known {
            // What the walk has found as far as it got; nothing is sent raw from here.
            record.header.user_frames = hot.user_frames as u16;
            record.header.end = hot.end as u8;
        }
        words += record.header.user_frames as u64;
    } else {
        record.header.end = End::KernelOnly as u8;
    }
    emit(ring(), hot, record, words, BPF_RB_NO_WAKEUP);
    0
}

/// # Safety
/// `offset` must be that of a `u32` in `struct task_struct`.
#[inline(always)]
unsafe fn field(task: *const task_struct, offset: u32) -> u32 {
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::read_volatile(task.cast::<u8>().add(offset as usize).cast()) }
}
