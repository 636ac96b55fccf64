//! The off-CPU sampler: where threads are when they are switched out, and for how long.
//!
//! [`switched`] runs at every context switch, with the run queue locked and interrupts off. Of the
//! waits of a thread some are chosen by chance; of those the stack is walked at once
//! and sent up, and when one of them runs again its wait's end follows. [`woken`] notes when a
//! chosen thread could have run.
//!
//! Which share of a thread's waits is chosen depends only on how often the thread and its CPU were walked lately, never
//! on how long a wait will last, and every record carries it as its weight: sums are unbiased. A
//! thread that is switched now and then is walked each time.
//!
//! Invariant: nothing here waits, faults or allocates. A switch that is not chosen costs a look at two
//! slots; at most a fixed number of stacks is walked in each window of time.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_get_prandom_u32, bpf_get_stack, bpf_jiffies64, bpf_ktime_get_ns,
    bpf_task_pt_regs,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use strata_abi::record::{
    Counter, End, FLAG_KERNEL_CUT, FLAG_WAIT, FORM_ENDED, FORM_RAW, FORM_UNWOUND, Header,
    MAX_KERNEL_FRAMES, NO_SYSCALL, RAW_WAIT_PAGES, SOURCE_OFF_CPU, STATE_RUNNABLE, WAIT_WORDS,
};
use strata_abi::tables::PROCESS_SKIP;

use crate::arch::{SAVED_MODE, SAVED_SYSCALL, is_native, is_user};
use crate::context::read_context;
use crate::maps::{
    Block, CpuPace, OFF_CPU_CACHE, OFF_CPU_HOT, OFF_CPU_PACES, OFF_CPU_RECORD, PROCESSES, Pace,
    Record, WAIT_SLOT_COUNT, WAIT_SLOTS, WaitSlot, count, task_mm, task_offsets, wait_budget,
};
use crate::sampler::{
    BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, Whose, emit, fill_header, has_program, raw_stack, saved,
    user_stack, waits_ring,
};

/// A window of time is 32 jiffies: 32 to 320 ms, by the kernel's HZ.
const WINDOW_SHIFT: u64 = 5;
/// A thread is walked so often in a window at most, on average.
const THREAD_WALKS: u16 = 16;
/// A wait stands for at most `2^MAX_SHIFT` others.
const MAX_SHIFT: u32 = 20;
/// A process that is left out is looked at again after so many windows.
const SKIPPED_WINDOWS: u32 = 8;
/// The thread ends: bits of `task_struct.__state` (include/linux/sched.h).
const TASK_DEAD: u32 = 0x80;
/// Stacks of code without tables that a CPU copies in a window.
const RAW_PER_WINDOW: u32 = 16;
/// `Pace.walks` of a thread whose process is left out.
const LEFT_OUT: u16 = u16::MAX;

#[btf_tracepoint(function = "sched_switch")]
pub fn switched(context: BtfTracePointContext) -> i32 {
    let (preempted, from, to): (u64, *const task_struct, *const task_struct) =
        (context.arg(0), context.arg(1), context.arg(2));
    let offsets = task_offsets();
    // SAFETY: tasks of the tracepoint, and offsets of fields from the kernel's own type information;
    // the verifier checks both.
    let (from_tid, to_tid, state, memory) = unsafe {
        (
            field(from, offsets.pid),
            field(to, offsets.pid),
            field(from, offsets.state),
            word(from, task_mm()),
        )
    };
    if to_tid != 0 {
        end_wait(to_tid);
    }
    // Threads of the kernel have no memory of their own.
    if from_tid != 0 && memory != 0 {
        begin_wait(&context, from_tid, if preempted as u8 != 0 { 0 } else { state });
    }
    0
}

#[btf_tracepoint(function = "sched_wakeup")]
pub fn woken(context: BtfTracePointContext) -> i32 {
    let task: *const task_struct = context.arg(0);
    // SAFETY: as above.
    let tid = unsafe { field(task, task_offsets().pid) };
    let Some(slot) = WAIT_SLOTS.get_ptr_mut(tid & (WAIT_SLOT_COUNT - 1)) else { return 0 };
    // SAFETY: a map value; plain words that another CPU may change, read for themselves.
    unsafe {
        if (*slot).owner == tid && (*slot).began != 0 && (*slot).woken == 0 {
            (*slot).woken = bpf_ktime_get_ns();
        }
    }
    0
}

/// The slot's thread runs again: tells how long it has waited, if that is wanted.
#[inline(always)]
fn end_wait(tid: u32) {
    let Some(slot) = WAIT_SLOTS.get_ptr_mut(tid & (WAIT_SLOT_COUNT - 1)) else { return };
    // SAFETY: a map value; a thread is switched in on one CPU at a time, and its slot is its own.
    let slot = unsafe { &mut *slot };
    if slot.owner != tid || slot.began == 0 {
        return;
    }
    send_end(tid, slot.began, slot.woken);
    slot.began = 0;
    slot.woken = 0;
}

#[inline(never)]
fn send_end(tid: u32, began: u64, woken: u64) {
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let (Some(hot), Some(record)) = (OFF_CPU_HOT.get_ptr_mut(cpu), OFF_CPU_RECORD.get_ptr_mut(cpu))
    else {
        return;
    };
    // SAFETY: map values; the programs of this module run with interrupts off, one at a time.
    let (hot, record) = unsafe { (&mut *hot, &mut *record) };
    fill_header(&mut record.header, tid as u64, cpu);
    record.header.source = SOURCE_OFF_CPU;
    record.header.form = FORM_ENDED;
    record.header.end = End::Complete as u8;
    record.header.value = began;
    record.words[0] = woken;
    hot.hits = 0;
    hot.misses = 0;
    emit(waits_ring(), hot, record, 1, BPF_RB_NO_WAKEUP);
}

/// The current thread is switched out: sends its stack, if it is chosen.
#[inline(always)]
fn begin_wait(context: &BtfTracePointContext, tid: u32, state: u32) {
    let Some(slot) = WAIT_SLOTS.get_ptr_mut(tid & (WAIT_SLOT_COUNT - 1)) else { return };
    // SAFETY: as in `end_wait`. Two threads that share a slot may take it from each other, and lose a
    // wait by it; neither gets the other's.
    let slot = unsafe { &mut *slot };
    // SAFETY: a helper without preconditions.
    let window = (unsafe { bpf_jiffies64() } >> WINDOW_SHIFT) as u32;
    if slot.owner != tid {
        // The owner is there if it waits, or was switched lately.
        if slot.owner != 0 && (slot.began != 0 || window.wrapping_sub(slot.pace.window) < 2) {
            return;
        }
        slot.owner = tid;
        slot.began = 0;
        slot.pace = Pace { window, walks: 0, shift: 0 };
        slot.block = Block { shift: 0, choice: 0, passed: 1 };
    }
    if state & TASK_DEAD != 0 {
        slot.owner = 0;
        slot.began = 0;
        return;
    }
    if slot.pace.walks == LEFT_OUT {
        if window.wrapping_sub(slot.pace.window) < SKIPPED_WINDOWS {
            return;
        }
        slot.pace.walks = 0;
    }
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let Some(all) = OFF_CPU_PACES.get_ptr_mut(cpu) else { return };
    // SAFETY: a map value of this CPU.
    let all = unsafe { &mut *all };
    turn(&mut slot.pace, window);
    turn_cpu(all, window);
    let shift = slot.pace.shift as u32 + all.shift;
    let shift = if shift > MAX_SHIFT { MAX_SHIFT } else { shift };
    if !is_chosen(&mut slot.block, shift) {
        return;
    }
    // SAFETY: a helper without preconditions.
    let start = unsafe { bpf_ktime_get_ns() };
    let sent = send_begin(context, state, 1 << shift, &mut all.raw);
    // SAFETY: as above.
    let took = unsafe { bpf_ktime_get_ns() }.wrapping_sub(start);
    if sent == 0 {
        slot.pace.walks = LEFT_OUT;
        slot.pace.window = window;
        return;
    }
    note(&mut slot.pace);
    note_cpu(all, took);
    if sent != RING_FULL {
        slot.woken = 0;
        slot.began = sent;
    }
}

/// Whether this switch is the one of its block. Blocks, and not a chance at each switch: the number of
/// samples is as even as can be. A block is given up when the thread is to be walked more often or
/// more rarely; that does not depend on which of its switches is the chosen one, so each counts
/// `2^shift` all the same.
#[inline(always)]
fn is_chosen(block: &mut Block, shift: u32) -> bool {
    if block.shift != shift || block.passed >> shift != 0 {
        // SAFETY: a helper without preconditions.
        let choice = if shift == 0 { 0 } else { unsafe { bpf_get_prandom_u32() } };
        *block = Block { shift, choice: choice & ((1 << shift) - 1), passed: 0 };
    }
    let position = block.passed;
    block.passed = position + 1;
    position == block.choice
}

/// A new window: a thread that was walked little is walked more often.
#[inline(always)]
fn turn(pace: &mut Pace, window: u32) {
    if pace.window == window {
        return;
    }
    let passed = window.wrapping_sub(pace.window);
    if pace.walks < THREAD_WALKS / 2 {
        pace.shift = if passed >= pace.shift as u32 { 0 } else { pace.shift - passed as u16 };
    }
    pace.window = window;
    pace.walks = 0;
}

/// A walk more in this window: a thread that has had enough is walked half as often.
#[inline(always)]
fn note(pace: &mut Pace) {
    pace.walks += 1;
    if pace.walks >= THREAD_WALKS && (pace.shift as u32) < MAX_SHIFT {
        pace.walks = 0;
        pace.shift += 1;
    }
}

/// As [`turn`], for a CPU and its budget.
#[inline(always)]
fn turn_cpu(pace: &mut CpuPace, window: u32) {
    if pace.window == window {
        return;
    }
    let passed = window.wrapping_sub(pace.window);
    if pace.spent < wait_budget() / 2 {
        pace.shift = if passed >= pace.shift { 0 } else { pace.shift - passed };
    }
    pace.window = window;
    pace.spent = 0;
    pace.raw = 0;
}

/// As [`note`], for a CPU and its budget.
#[inline(always)]
fn note_cpu(pace: &mut CpuPace, took: u64) {
    let spent = pace.spent as u64 + took;
    pace.spent = spent as u32;
    if spent >= wait_budget() as u64 && pace.shift < MAX_SHIFT {
        pace.spent = 0;
        pace.shift += 1;
    }
}

/// What [`send_begin`] returns when there was no room.
const RING_FULL: u64 = 1;

/// Sends the current thread's stack and state; the time it noted, or 0 when the thread is left out.
#[inline(always)]
fn send_begin(context: &BtfTracePointContext, state: u32, weight: u32, raw: &mut u32) -> u64 {
    let ids = bpf_get_current_pid_tgid();
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let process = PROCESSES.get_ptr_mut((ids >> 32) as u32);
    // SAFETY: a map value.
    if process.is_some_and(|process| unsafe { (*process).flags } & PROCESS_SKIP != 0) {
        return 0;
    }
    let (Some(hot), Some(record), Some(cache)) = (
        OFF_CPU_HOT.get_ptr_mut(cpu),
        OFF_CPU_RECORD.get_ptr_mut(cpu),
        OFF_CPU_CACHE.get_ptr_mut(cpu),
    ) else {
        return 0;
    };
    // SAFETY: as in `send_end`.
    let (hot, record) = unsafe { (&mut *hot, &mut *record) };
    hot.hits = 0;
    hot.misses = 0;
    fill_header(&mut record.header, ids, cpu);
    let header = &mut record.header;
    header.source = SOURCE_OFF_CPU;
    header.form = FORM_UNWOUND;
    header.flags = FLAG_WAIT;
    header.weight = weight;
    header.end = End::NoProcess as u8;
    kernel_stack(context, record);
    // SAFETY: the current task is valid for the whole program.
    let (task, registers) = unsafe {
        let task = bpf_get_current_task_btf();
        (task, bpf_task_pt_regs(task) as *const u8)
    };
    read_context(&mut record.header, task);
    // SAFETY: bpf_task_pt_regs returns a trusted pointer; the offsets lie within pt_regs.
    let (mode, syscall) =
        unsafe { (saved(registers, SAVED_MODE), saved(registers, SAVED_SYSCALL)) };
    let mut words = record.header.kernel_frames as usize;
    if !is_user(mode) || !has_program(task) {
        record.header.end = End::KernelOnly as u8;
    } else if !is_native(mode) {
        record.header.end = End::Compat as u8;
    } else {
        let may_copy = *raw < RAW_PER_WINDOW;
        let whose = if may_copy { Whose::Current } else { Whose::CurrentAsFar };
        if user_stack(hot, record, cache, registers, process, whose) {
            words += record.header.user_frames as usize;
        } else if may_copy {
            *raw += 1;
            words = raw_stack::<RAW_WAIT_PAGES>(record, registers) as usize;
            count(&mut hot.counters, Counter::Raw as u32, 1);
        }
    }
    let is_preempted = state == STATE_RUNNABLE as u32;
    let in_syscall = !is_preempted && (syscall as i32) >= 0;
    put(record, words, state as u64);
    put(record, words + 1, if in_syscall { syscall as u32 as u64 } else { NO_SYSCALL });
    let time = record.header.time;
    // What is copied waits for userspace.
    let is_raw = record.header.form == FORM_RAW;
    let wakeup = if is_raw { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    match emit(waits_ring(), hot, record, words as u64 + WAIT_WORDS as u64, wakeup) {
        true => time,
        false => RING_FULL,
    }
}

#[inline(always)]
fn put(record: &mut Record, index: usize, word: u64) {
    // All frames together are fewer, and so are the words of a copied stack.
    record.words[index & 4095] = word;
}

#[inline(always)]
fn kernel_stack(context: &BtfTracePointContext, record: &mut Record) {
    // SAFETY: the record has room for MAX_KERNEL_FRAMES words.
    let bytes = unsafe {
        bpf_get_stack(
            context.as_ptr(),
            (&raw mut record.words).cast(),
            (MAX_KERNEL_FRAMES * 8) as u32,
            0,
        )
    };
    if bytes > 0 {
        let frames = (bytes as u64 >> 3) & 127;
        record.header.kernel_frames = frames as u16;
        if frames == MAX_KERNEL_FRAMES as u64 {
            record.header.flags |= FLAG_KERNEL_CUT;
        }
    }
}

const _: () = assert!(size_of::<WaitSlot>() == strata_abi::tables::WAIT_SLOT_BYTES);
const _: () = assert!(size_of::<Header>() % 8 == 0);

/// # Safety
/// `offset` must be that of a `u32` in `struct task_struct`.
#[inline(always)]
unsafe fn field(task: *const task_struct, offset: u32) -> u32 {
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::read_volatile(task.cast::<u8>().add(offset as usize).cast()) }
}

/// # Safety
/// `offset` must be that of a `u64` or pointer in `struct task_struct`.
#[inline(always)]
unsafe fn word(task: *const task_struct, offset: u64) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::read_volatile(task.cast::<u8>().add(offset as usize).cast()) }
}
