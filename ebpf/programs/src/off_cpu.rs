//! The off-CPU sampler: where threads are when they are switched out, and for how long.
//!
//! [`switched`] runs at every context switch, with the run queue locked and interrupts off. Of the
//! waits of a thread some are chosen by chance; of those the stack is walked at once and sent up,
//! and when one of them runs again its wait's end follows. [`woken`] notes when a chosen thread
//! could have run.
//!
//! Which share of a thread's waits is chosen depends only on how often the thread and its CPU were
//! walked lately, never on how long a wait will last, and every record carries it as its weight:
//! sums are unbiased. A thread that is switched now and then is walked each time.
//!
//! Invariant: nothing here waits, faults or allocates. A switch that is not chosen costs a look at
//! two sets of slots; at most a fixed number of stacks is walked in each window of time.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_get_prandom_u32, bpf_jiffies64, bpf_ktime_get_ns,
    bpf_task_pt_regs,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use strata_abi::record::{
    Counter, End, FLAG_LATE, FLAG_WAIT, FORM_ENDED, FORM_RAW, FORM_UNWOUND, Header,
    MAX_KERNEL_FRAMES, NO_SYSCALL, RAW_OTHER_PAGES, RAW_WAIT_PAGES, SOURCE_OFF_CPU, STATE_RUNNABLE,
    WAIT_WORDS,
};
use strata_abi::tables::UNWANTED_OFF_CPU;
use strata_abi::wait_slots;

use crate::arch::{SAVED_MODE, SAVED_SYSCALL, is_native, is_user};
use crate::context::read_context;
use crate::maps::{
    Block, CpuPace, Hot, OFF_CPU_CACHE, OFF_CPU_HOT, OFF_CPU_PACES, OFF_CPU_RECORD, PROCESSES,
    Pace, Record, WAIT_SLOTS, WaitSet, WaitSlot, count, is_left_out, task_mm, task_offsets,
    wait_budget, window_shift,
};
use crate::sampler::{
    BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, Whose, emit, fill_header, has_program, kernel_stack,
    raw_stack, saved, user_stack, waits_ring,
};
use crate::task::{field, word};

/// A thread is walked so often in a window at most, on average.
const THREAD_WALKS: u16 = 16;
/// Blocks are no longer than `2^MAX_BLOCK_SHIFT`.
const MAX_BLOCK_SHIFT: u32 = 4;
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
    // SAFETY: tasks of the tracepoint, and offsets of fields from the kernel's own type
    // information; the verifier checks both.
    let (from_tid, to_tid, state, memory) = unsafe {
        (
            field(from, offsets.pid),
            field(to, offsets.pid),
            field(from, offsets.state),
            word(from, task_mm()),
        )
    };
    if to_tid != 0 {
        end_wait(to_tid, 0);
    }
    // Threads of the kernel have no memory of their own.
    if from_tid != 0 && memory != 0 {
        // The few switches that this program is not run for, and those while it was not attached.
        end_wait(from_tid, FLAG_LATE);
        let state = if preempted as u8 != 0 { 0 } else { state };
        let weight = choose(from_tid, state);
        if weight != 0 {
            send_begin(&context, state, weight);
        }
    }
    0
}

#[btf_tracepoint(function = "sched_wakeup")]
pub fn woken(context: BtfTracePointContext) -> i32 {
    let task: *const task_struct = context.arg(0);
    // SAFETY: as above.
    let tid = unsafe { field(task, task_offsets().pid) };
    let Some(slot) = slot_of(tid) else { return 0 };
    // SAFETY: a map value; plain words that another CPU may change, read for themselves.
    unsafe {
        if (*slot).began != 0 && (*slot).woken == 0 {
            (*slot).woken = bpf_ktime_get_ns();
        }
    }
    0
}

/// The slots of threads with the same low bits.
#[inline(always)]
fn set_of(tid: u32) -> Option<*mut WaitSet> {
    WAIT_SLOTS.get_ptr_mut(wait_slots::set_of(tid))
}

/// The slot that is the thread's own, if it has one.
#[inline(always)]
fn slot_of(tid: u32) -> Option<*mut WaitSlot> {
    let set = set_of(tid)?;
    // SAFETY: a map value; words that another CPU may change.
    unsafe {
        let way = wait_slots::own(&(*set).owners, tid)?;
        Some(&raw mut (*set).slots[way & (wait_slots::WAYS - 1)])
    }
}

/// The thread runs: sends the end of its wait, if it has one that was sent.
#[inline(always)]
fn end_wait(tid: u32, flags: u8) {
    let Some(slot) = slot_of(tid) else { return };
    // SAFETY: a map value; a thread is switched in on one CPU at a time, and its slot is its own.
    let slot = unsafe { &mut *slot };
    if slot.began == 0 {
        return;
    }
    send_end(tid, slot.began, slot.woken, flags);
    slot.began = 0;
    slot.woken = 0;
}

#[inline(never)]
fn send_end(tid: u32, began: u64, woken: u64, flags: u8) {
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
    record.header.flags = flags;
    if flags & FLAG_LATE != 0 && woken != 0 {
        record.header.time = woken;
    }
    record.words[0] = woken;
    hot.hits = 0;
    hot.misses = 0;
    emit(waits_ring(), hot, record, 1, BPF_RB_NO_WAKEUP);
}

/// What the wait that the current thread begins is to stand for; 0 if it is not chosen. A call, so
/// that its variables are not on the stack while frames are walked.
#[inline(never)]
fn choose(tid: u32, state: u32) -> u32 {
    let window = window();
    if state & TASK_DEAD != 0 {
        leave_slot(tid);
        return 0;
    }
    let Some(slot) = slot_of(tid).or_else(|| take_slot(tid, window)) else {
        note_crowded();
        return 0;
    };
    // SAFETY: as in `end_wait`. Two threads that take a slot at the same moment may lose a wait by
    // it; neither gets the other's.
    let slot = unsafe { &mut *slot };
    if slot.pace.walks == LEFT_OUT {
        if window.wrapping_sub(slot.pace.window) < SKIPPED_WINDOWS {
            return 0;
        }
        slot.pace.walks = 0;
    }
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let Some(all) = OFF_CPU_PACES.get_ptr_mut(cpu) else { return 0 };
    // SAFETY: a map value of this CPU.
    let all = unsafe { &mut *all };
    turn(&mut slot.pace, window);
    turn_cpu(all, window);
    let shift = slot.pace.shift as u32 + all.shift;
    if !is_chosen(&mut slot.block, if shift > MAX_SHIFT { MAX_SHIFT } else { shift }) {
        return 0;
    }
    1 << (slot.block.shift as u32 & 31)
}

/// A slot for a thread that has none: one whose owner neither waits nor was switched lately.
#[inline(always)]
fn take_slot(tid: u32, window: u32) -> Option<*mut WaitSlot> {
    // SAFETY: a map value; words that another CPU may change.
    let set = unsafe { &mut *set_of(tid)? };
    let is_idle = |way: usize| {
        let slot = &set.slots[way & (wait_slots::WAYS - 1)];
        slot.began == 0 && window.wrapping_sub(slot.pace.window) >= 2
    };
    let way = wait_slots::free(&set.owners, is_idle)? & (wait_slots::WAYS - 1);
    set.owners[way] = tid;
    let slot = &mut set.slots[way];
    slot.began = 0;
    slot.woken = 0;
    slot.pace = Pace { window, walks: 0, shift: 0 };
    slot.block = Block { shift: 0, length: 0, choice: 0, passed: 0 };
    Some(slot)
}

/// The thread ends.
#[inline(always)]
fn leave_slot(tid: u32) {
    let Some(set) = set_of(tid) else { return };
    // SAFETY: as above.
    let set = unsafe { &mut *set };
    if let Some(way) = wait_slots::own(&set.owners, tid) {
        let way = way & (wait_slots::WAYS - 1);
        set.owners[way] = 0;
        set.slots[way].began = 0;
    }
}

/// The current thread's wait finds no slot: a loss, if its process is sampled.
#[inline(never)]
fn note_crowded() {
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    if is_left_out(pid, UNWANTED_OFF_CPU) {
        return;
    }
    // SAFETY: the helper has no preconditions.
    let Some(hot) = OFF_CPU_HOT.get_ptr_mut(unsafe { bpf_get_smp_processor_id() }) else { return };
    // SAFETY: as in `send_end`.
    count(unsafe { &mut (*hot).counters }, Counter::Crowded as u32, 1);
}

#[inline(always)]
fn window() -> u32 {
    // SAFETY: a helper without preconditions.
    (unsafe { bpf_jiffies64() } >> (window_shift() as u64 & 31)) as u32
}

/// Whether this switch is the chosen one of its block. In short blocks exactly one is, so that the
/// number of samples is as even as can be; where few are chosen each switch is a block, and a
/// chance.
///
/// A block goes on to its end, however often the thread is to be walked by then: that depends on
/// whether its chosen switch has come, and sums would not be unbiased.
#[inline(always)]
fn is_chosen(block: &mut Block, shift: u32) -> bool {
    if block.passed >= block.length {
        // SAFETY: a helper without preconditions.
        let chance = if shift == 0 { 0 } else { unsafe { bpf_get_prandom_u32() } };
        let chance = chance & ((1 << shift) - 1);
        *block = if shift <= MAX_BLOCK_SHIFT {
            Block { shift: shift as u16, length: 1 << shift, choice: chance as u16, passed: 0 }
        } else {
            Block { shift: shift as u16, length: 1, choice: (chance != 0) as u16, passed: 0 }
        };
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

/// Sends the current thread's stack and state, and notes that it waits, if it is not left out.
#[inline(always)]
fn send_begin(context: &BtfTracePointContext, state: u32, weight: u32) {
    let ids = bpf_get_current_pid_tgid();
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let process = PROCESSES.get_ptr_mut((ids >> 32) as u32);
    if is_left_out((ids >> 32) as u32, UNWANTED_OFF_CPU) {
        leave_out(ids as u32);
        return;
    }
    let (Some(hot), Some(record), Some(cache)) = (
        OFF_CPU_HOT.get_ptr_mut(cpu),
        OFF_CPU_RECORD.get_ptr_mut(cpu),
        OFF_CPU_CACHE.get_ptr_mut(cpu),
    ) else {
        return;
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
    // Kept here meanwhile: the stack is small.
    header.value = state as u64;
    header.end = End::NoProcess as u8;
    kernel_stack(context.as_ptr(), record);
    // SAFETY: the current task is valid for the whole program.
    let (task, registers) = unsafe {
        let task = bpf_get_current_task_btf();
        (task, bpf_task_pt_regs(task) as *const u8)
    };
    read_context(&mut record.header, task);
    // SAFETY: bpf_task_pt_regs returns a trusted pointer; the offset lies within pt_regs.
    let mode = unsafe { saved(registers, SAVED_MODE) };
    let mut words = record.header.kernel_frames as u64;
    if !is_user(mode) || !has_program(task) {
        record.header.end = End::KernelOnly as u8;
    } else if !is_native(mode) {
        record.header.end = End::Compat as u8;
    } else if !may_copy(cpu) {
        if user_stack(hot, record, cache, registers, process, Whose::CurrentAsFar) {
            words += record.header.user_frames as u64;
        }
    } else if user_stack(hot, record, cache, registers, process, Whose::Current) {
        words += record.header.user_frames as u64;
    } else {
        words = raw_stack::<RAW_WAIT_PAGES, RAW_OTHER_PAGES>(hot, record, registers);
    }
    send(record, hot, words, registers);
}

#[inline(always)]
fn send(record: &mut Record, hot: &mut Hot, words: u64, registers: *const u8) {
    // SAFETY: as in `send_begin`.
    let syscall = unsafe { saved(registers, SAVED_SYSCALL) };
    let state = record.header.value;
    // SAFETY: as above. Calls of 32-bit programs have numbers of their own.
    let is_native = is_native(unsafe { saved(registers, SAVED_MODE) });
    let in_syscall = state != STATE_RUNNABLE && is_native && (syscall as i32) >= 0;
    record.header.value = 0;
    put(record, words as usize, state);
    put(record, words as usize + 1, if in_syscall { syscall as u32 as u64 } else { NO_SYSCALL });
    // A copied stack waits for userspace.
    let is_raw = record.header.form == FORM_RAW;
    let wakeup = if is_raw { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    let is_sent = emit(waits_ring(), hot, record, words + WAIT_WORDS as u64, wakeup);
    count(&mut hot.counters, Counter::Raw as u32, is_raw as u64);
    let Header { tid, cpu, time, .. } = record.header;
    note_sent(tid, cpu, time, is_sent, is_raw);
}

/// The stack of the thread's wait has been walked, and sent if there was room.
#[inline(never)]
fn note_sent(tid: u32, cpu: u32, began: u64, is_sent: bool, is_raw: bool) {
    let (Some(slot), Some(all)) = (slot_of(tid), OFF_CPU_PACES.get_ptr_mut(cpu)) else {
        return;
    };
    // SAFETY: as in `choose`.
    let (slot, all) = unsafe { (&mut *slot, &mut *all) };
    note(&mut slot.pace);
    // SAFETY: a helper without preconditions.
    note_cpu(all, unsafe { bpf_ktime_get_ns() }.wrapping_sub(began));
    all.raw += is_raw as u32;
    if is_sent {
        slot.woken = 0;
        slot.began = began;
    }
}

/// The thread is not walked for some windows: its process is left out.
#[inline(always)]
fn leave_out(tid: u32) {
    let Some(slot) = slot_of(tid) else { return };
    // SAFETY: as in `choose`.
    unsafe {
        (*slot).pace.walks = LEFT_OUT;
        (*slot).pace.window = window();
    }
}

/// The thread executes another program, which may be wanted.
pub fn take_in(tid: u32) {
    let Some(slot) = slot_of(tid) else { return };
    // SAFETY: as in `choose`.
    unsafe {
        if (*slot).pace.walks == LEFT_OUT {
            (*slot).pace.walks = 0;
        }
    }
}

/// Whether this CPU may copy a stack of code without tables in this window.
#[inline(always)]
fn may_copy(cpu: u32) -> bool {
    // SAFETY: a map value of this CPU.
    OFF_CPU_PACES.get_ptr(cpu).is_some_and(|pace| unsafe { (*pace).raw } < RAW_PER_WINDOW)
}

#[inline(always)]
fn put(record: &mut Record, index: usize, word: u64) {
    // All frames together are fewer, and so are the words of a copied stack.
    record.words[index & 4095] = word;
}

const _: () = assert!(size_of::<WaitSet>() == wait_slots::SET_BYTES);
const _: () = assert!(size_of::<Header>() % 8 == 0);
