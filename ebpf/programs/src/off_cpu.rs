//! The off-CPU sampler: where threads are when they are switched out, and for how long.
//!
//! [`switched`] runs at every context switch, with the run queue locked and interrupts off. Of the
//! waits of a thread some are chosen by chance; of those the stack is walked at once and sent up,
//! and when one of them runs again its wait's end follows. [`woken`] notes when a chosen thread
//! could have run, and by which CPU: where a chosen wait stands for many that are shorter than the walk
//! is long, what the walk adds to it would be a large part of the sum.
//!
//! Which share of a thread's waits is chosen depends only on how often the thread and its CPU were
//! walked lately, never on how long a wait will last, and every record carries it as its weight:
//! sums are unbiased. A thread that is switched now and then is walked each time.
//!
//! Invariant: nothing here waits, faults or allocates. A switch that is not chosen costs two cache
//! lines: the CPU's count, and the set of the thread that is switched out; a bit says whether the
//! other one has a wait to end. What the switches of all user threads of the host cost is taken off
//! the time for walks, but for a quarter of it.

use core::intrinsics::{AtomicOrdering, atomic_and, atomic_cxchg, atomic_or, atomic_xadd};

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
    Counter, ENDED_WORDS, End, FLAG_LATE, FLAG_WAIT, FORM_ENDED, FORM_RAW, FORM_UNWOUND, Header,
    MAX_KERNEL_FRAMES, NO_SYSCALL, RAN, RAN_BITS, RAW_OTHER_PAGES, RAW_WAIT_PAGES, SOURCE_OFF_CPU,
    STATE_RUNNABLE, WAIT_WORDS, WOKEN_BY_OWN_CPU,
};
use strata_abi::tables::UNWANTED_OFF_CPU;
use strata_abi::wait_pace::{self, Block, MAX_SHIFT};
use strata_abi::wait_slots;

use crate::arch::{SAVED_MODE, SAVED_SP, SAVED_SYSCALL, is_native};
use crate::context::read_context;
use crate::maps::{
    CpuPace, HOST_WINDOWS, Hot, OFF_CPU_CACHE, OFF_CPU_HOT, OFF_CPU_PACES, OFF_CPU_RECORD,
    OFF_CPU_SWITCHES, PROCESSES, Pace, Record, WAIT_SLOTS, WAIT_TIMES, WAITING, WOKEN_THERE,
    WaitSet, WaitTimes, count, is_left_out, switch_offsets, task_mm, task_run, wait_budget,
    wait_cpus, wait_seed, window_shift,
};
use crate::sampler::{
    BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, Whose, emit, fill_header, has_program, has_user_mode,
    kernel_stack, raw_stack, saved, user_stack, waits_ring,
};
use crate::task::{field, word};

/// A thread is walked so often in a window at most, on average.
const THREAD_WALKS: u8 = 16;
/// The first wait of a thread in each place is chosen in a window whatever the CPU has spent: it may last for
/// minutes, and for one that is not chosen no later one makes up. A place is the system call and the stack
/// pointer in user mode: after hundreds of short waits in one place, the first in another is walked. Where a
/// thread is preempted, it goes on soon. [`Pace::seen`] has a bit for each of so many places.
const PLACE_BITS: u32 = 3;
/// Of more waits of a thread in a window it is not looked at where they are: that costs as much as the rest of
/// a switch.
const MOST_LOOKS: u8 = u8::MAX;
/// So many in a window of a CPU; beyond them such a wait is chosen so many powers of two more often than
/// others.
const MOST_FAVOURED: u32 = 64;
const FAVOUR: u32 = 4;
/// What a CPU has not spent is kept for so many windows: bursts of a program that is switched little on
/// average are walked whole. While there is half of it, threads have no limit of their own.
const KEPT_WINDOWS: u32 = 8;
/// A process that is left out is looked at again after so many windows.
const SKIPPED_WINDOWS: u32 = 8;
/// An owner that was not switched for so many windows is idle.
const IDLE_WINDOWS: u32 = 2;
/// The thread ends: bits of `task_struct.__state` (include/linux/sched.h).
const TASK_DEAD: u32 = 0x80;
/// Stacks of code without tables that a CPU copies in a window at least: a program that begins has some
/// dozens before there are tables, and a first wait may last as long as the program.
const RAW_PER_WINDOW: u32 = 16;
/// Where the budget is larger than so many nanoseconds for each of these, one more for each as many.
const RAW_NANOS: u32 = 30_000;
/// No slot of a set.
const NO_SLOT: u32 = u32::MAX;
/// `Pace.walks` of a thread whose process is left out.
const LEFT_OUT: u8 = u8::MAX;
const SEQUENTIAL: AtomicOrdering = AtomicOrdering::SeqCst;

#[btf_tracepoint(function = "sched_switch")]
pub fn switched(context: BtfTracePointContext) -> i32 {
    let (preempted, from, to): (u64, *const task_struct, *const task_struct) =
        (context.arg(0), context.arg(1), context.arg(2));
    let (pid, state) = switch_offsets();
    // SAFETY: tasks of the tracepoint, and offsets of fields from the kernel's own type
    // information; the verifier checks both.
    let (from_tid, to_tid, state, memory) =
        unsafe { (field(from, pid), field(to, pid), field(from, state), word(from, task_mm())) };
    // SAFETY: the helper has no preconditions.
    let Some(all) = OFF_CPU_PACES.get_ptr_mut(unsafe { bpf_get_smp_processor_id() }) else {
        return 0;
    };
    // SAFETY: a map value of this CPU.
    let all = unsafe { &mut *all };
    let window = window();
    if all.window != window {
        turn_cpu(all, window);
    }
    if to_tid != 0 && has_waits(to_tid) {
        end_wait(to_tid, 0);
    }
    // Threads of the kernel have no memory of their own.
    if from_tid == 0 || memory == 0 {
        // A thread that ends has given its memory back.
        if state & TASK_DEAD != 0 {
            leave_slot(from_tid);
        }
        return 0;
    }
    all.switches += 1;
    // The few switches that this program is not run for, and those while it was not attached.
    if has_waits(from_tid) {
        end_wait(from_tid, FLAG_LATE);
    }
    let state = if preempted as u8 != 0 { 0 } else { state };
    let weight = choose((from_tid, from), state, window, all);
    if weight != 0 {
        send_begin(&context, state, weight);
    }
    0
}

/// Runs where a thread is woken from; `sched_wakeup` may run where it will run.
#[btf_tracepoint(function = "sched_waking")]
pub fn woken(context: BtfTracePointContext) -> i32 {
    let task: *const task_struct = context.arg(0);
    // SAFETY: as above.
    let tid = unsafe { field(task, switch_offsets().0) };
    if !has_waits(tid) {
        return 0;
    }
    let Some((way, times)) = wait_of(tid) else { return 0 };
    // SAFETY: helpers without preconditions.
    let (now, cpu) = unsafe { (bpf_ktime_get_ns(), bpf_get_smp_processor_id()) };
    // SAFETY: a map value; plain words that another CPU may change, read for themselves.
    unsafe {
        // Another thread may have taken the slot, and wait.
        if (*times).woken == 0 && owner(tid, way) == tid {
            (*times).woken = now;
            if (*times).cpu == cpu {
                (*times).cpu = cpu | WOKEN_THERE;
            }
        }
    }
    0
}

/// Whether a thread of the same set has a wait that was sent.
#[inline(always)]
fn has_waits(tid: u32) -> bool {
    let set = set_number(tid);
    let Some(word) = WAITING.get_ptr(wait_slots::waiting_word(set)) else { return false };
    // SAFETY: a map value; a word that another CPU may change.
    let word = unsafe { core::ptr::read_volatile(word) };
    word >> wait_slots::waiting_shift(set) & ((1 << wait_slots::WAYS) - 1) != 0
}

#[inline(always)]
fn set_number(tid: u32) -> u32 {
    wait_slots::set_of(tid, wait_seed())
}

/// The bit of a slot in its word of the map of slots with a wait.
#[inline(always)]
fn bit_of(set: u32, way: usize) -> u64 {
    1 << ((wait_slots::waiting_shift(set) + way as u32) & 63)
}

#[inline(always)]
fn is_waiting(tid: u32, way: usize) -> bool {
    let set = set_number(tid);
    let word = WAITING.get_ptr(wait_slots::waiting_word(set));
    // SAFETY: as in `has_waits`.
    word.is_some_and(|word| unsafe { core::ptr::read_volatile(word) } & bit_of(set, way) != 0)
}

/// Notes that the wait of a slot was sent.
#[inline(always)]
fn set_waiting(tid: u32, way: usize) {
    let set = set_number(tid);
    let Some(word) = WAITING.get_ptr_mut(wait_slots::waiting_word(set)) else { return };
    // SAFETY: a map value, only changed by this and the next.
    unsafe { atomic_or::<u64, u64, SEQUENTIAL>(word, bit_of(set, way)) };
}

/// Notes that the wait of a slot has ended; whether it had one. Of several that end a wait at the same
/// moment, it holds for one.
#[inline(always)]
fn clear_waiting(tid: u32, way: usize) -> bool {
    let set = set_number(tid);
    let Some(word) = WAITING.get_ptr_mut(wait_slots::waiting_word(set)) else { return false };
    let bit = bit_of(set, way);
    // SAFETY: as in `set_waiting`.
    unsafe { atomic_and::<u64, u64, SEQUENTIAL>(word, !bit) & bit != 0 }
}

/// The slots of a thread's set.
#[inline(always)]
fn set_of(tid: u32) -> Option<*mut WaitSet> {
    WAIT_SLOTS.get_ptr_mut(set_number(tid))
}

/// The thread's set, and which slot of it is its own, if it has one.
#[inline(always)]
fn slot_of(tid: u32) -> Option<(*mut WaitSet, usize)> {
    let set = set_of(tid)?;
    // SAFETY: a map value; words that another CPU may change.
    let way = wait_slots::own(unsafe { &(*set).owners }, tid)?;
    Some((set, way & (wait_slots::WAYS - 1)))
}

/// Who has a slot of a thread's set.
#[inline(always)]
fn owner(tid: u32, way: usize) -> u32 {
    let way = way & (wait_slots::WAYS - 1);
    // SAFETY: a map value; a word that another CPU may change.
    set_of(tid).map_or(0, |set| unsafe { core::ptr::read_volatile(&raw const (*set).owners[way]) })
}

/// The thread's slot and its wait, if it has one that was sent.
#[inline(always)]
fn wait_of(tid: u32) -> Option<(usize, *mut WaitTimes)> {
    let (_, way) = slot_of(tid)?;
    is_waiting(tid, way).then_some((way, times_of(tid, way)?))
}

#[inline(always)]
fn times_of(tid: u32, way: usize) -> Option<*mut WaitTimes> {
    let times = WAIT_TIMES.get_ptr_mut(set_number(tid))?;
    // SAFETY: a map value.
    Some(unsafe { &raw mut (*times)[way & (wait_slots::WAYS - 1)] })
}

/// The thread runs: sends the end of its wait, if it has one that was sent.
#[inline(never)]
fn end_wait(tid: u32, flags: u8) {
    let Some((way, times)) = wait_of(tid) else { return };
    // SAFETY: a map value; words that another CPU may change.
    let wait = unsafe { core::ptr::read_volatile(times) };
    // Another thread may take the slot at this moment, and end the wait.
    if !clear_waiting(tid, way) {
        return;
    }
    // SAFETY: as above.
    if unsafe { core::ptr::read_volatile(times) }.began != wait.began {
        // It has begun a wait of its own: that one's bit was cleared.
        set_waiting(tid, way);
        return;
    }
    send_end(tid, flags, wait.began, wait.woken, walk_of(&wait));
}

/// How long the thread of a wait was walked, and whether its own CPU has woken it.
#[inline(always)]
fn walk_of(wait: &WaitTimes) -> u64 {
    wait.walk as u64 | if wait.cpu & WOKEN_THERE != 0 { WOKEN_BY_OWN_CPU } else { 0 }
}

/// Sends the end of a thread's wait.
#[inline(never)]
fn send_end(tid: u32, flags: u8, began: u64, woken: u64, walk: u64) {
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let (Some(hot), Some(record), Some(all)) = (
        OFF_CPU_HOT.get_ptr_mut(cpu),
        OFF_CPU_RECORD.get_ptr_mut(cpu),
        OFF_CPU_PACES.get_ptr_mut(cpu),
    ) else {
        return;
    };
    // SAFETY: map values; the programs of this module run with interrupts off, one at a time.
    let (hot, record, all) = unsafe { (&mut *hot, &mut *record, &mut *all) };
    fill_header(&mut record.header, tid as u64, cpu);
    let now = record.header.time;
    record.header.source = SOURCE_OFF_CPU;
    record.header.form = FORM_ENDED;
    record.header.end = End::Complete as u8;
    record.header.value = began;
    record.header.flags = flags;
    if flags & FLAG_LATE != 0 && woken != 0 {
        record.header.time = woken;
    }
    record.words[0] = woken;
    record.words[1] = walk;
    hot.hits = 0;
    hot.misses = 0;
    emit(waits_ring(), hot, record, ENDED_WORDS as u64, BPF_RB_NO_WAKEUP);
    // SAFETY: a helper without preconditions.
    note_cpu(all, unsafe { bpf_ktime_get_ns() }.wrapping_sub(now));
}

/// What the wait that the current thread begins is to stand for; 0 if it is not chosen. What most
/// switches do not need is a call: its variables are not on the stack while frames are walked, and
/// where a return costs as much as all the rest (Safe RET), others do not pay for it.
#[inline(always)]
fn choose(
    (tid, task): (u32, *const task_struct),
    state: u32,
    window: u32,
    all: &mut CpuPace,
) -> u32 {
    let Some((set, way)) = slot_of(tid).or_else(|| taken_slot(tid, window)) else {
        return 0;
    };
    // SAFETY: as in `end_wait`. Another thread may take the slot meanwhile: `note_sent` looks for that.
    let (pace, block) = unsafe { (&mut (*set).paces[way], &mut (*set).blocks[way]) };
    if pace.window != window {
        if pace.walks == LEFT_OUT {
            if window.wrapping_sub(pace.window) < SKIPPED_WINDOWS {
                return 0;
            }
            pace.walks = 0;
        }
        // A slot whose owner waits unchosen for so long may be another's by then, with a new block: what
        // is left of a block must not depend on the choice.
        if window.wrapping_sub(pace.window) >= IDLE_WINDOWS {
            block.passed = block.length;
        }
        turn(pace, window, all);
        block.turn();
    }
    if pace.walks == LEFT_OUT {
        return 0;
    }
    let is_rare = pace.shift as u32 + all.shift != 0;
    let may_be_first = is_rare && state != 0 && pace.looks < MOST_LOOKS;
    let is_favoured = may_be_first && is_first_there(pace, task);
    let favour = match (is_favoured, all.favoured < MOST_FAVOURED) {
        (false, _) => 0,
        (true, true) => MAX_SHIFT,
        (true, false) => FAVOUR,
    };
    let shift = pace.shift as u32 + if all.shift > favour { all.shift - favour } else { 0 };
    // A block that is longer ends: whether its chosen switch has come has no part in that.
    if is_favoured && block.shift as u32 > shift {
        block.passed = block.length;
    }
    // SAFETY: a helper without preconditions.
    let random = || unsafe { bpf_get_prandom_u32() };
    if !block.is_chosen(if shift > MAX_SHIFT { MAX_SHIFT } else { shift }, random) {
        return 0;
    }
    all.favoured += is_favoured as u32;
    1 << (block.shift as u32 & 31)
}

/// Whether a wait of a thread is the first one where it waits now.
#[inline(always)]
fn is_first_there(pace: &mut Pace, task: *const task_struct) -> bool {
    // SAFETY: a task of the tracepoint; bpf_task_pt_regs returns a trusted pointer, and the offsets lie
    // within pt_regs.
    let (call, sp) = unsafe {
        let registers = bpf_task_pt_regs(task.cast_mut()) as *const u8;
        (saved(registers, SAVED_SYSCALL), saved(registers, SAVED_SP))
    };
    const SPREAD: u32 = 0x9e37_79b9;
    let place = (sp as u32 ^ (call as u32) << 20).wrapping_mul(SPREAD) >> (u32::BITS - PLACE_BITS);
    let bit = 1_u8 << (place & 7);
    let is_first = pace.seen & bit == 0;
    pace.seen |= bit;
    pace.looks += 1;
    is_first
}

/// A slot for a thread that has none.
#[inline(always)]
fn taken_slot(tid: u32, window: u32) -> Option<(*mut WaitSet, usize)> {
    let way = take_slot(tid, window) as usize;
    if way < wait_slots::WAYS { Some((set_of(tid)?, way & (wait_slots::WAYS - 1))) } else { None }
}

/// Takes the slot of an owner that neither waits nor was switched lately, or by chance another's;
/// [`NO_SLOT`] if none is taken.
#[inline(never)]
fn take_slot(tid: u32, window: u32) -> u32 {
    let Some(set) = set_of(tid) else { return NO_SLOT };
    // SAFETY: a map value; words that another CPU may change.
    let set = unsafe { &mut *set };
    let is_idle = |way: usize| {
        let pace = &set.paces[way & (wait_slots::WAYS - 1)];
        !is_waiting(tid, way) && window.wrapping_sub(pace.window) >= IDLE_WINDOWS
    };
    let free = wait_slots::free(&set.owners, is_idle);
    let Some((way, owner)) = free.or_else(|| evicted(set)) else { return NO_SLOT };
    let way = way & (wait_slots::WAYS - 1);
    // SAFETY: a map value. Two threads may want it at the same moment: one has it.
    let (_, is_taken) = unsafe {
        atomic_cxchg::<u32, SEQUENTIAL, SEQUENTIAL>(&raw mut set.owners[way], owner, tid)
    };
    if !is_taken {
        note_crowded();
        return NO_SLOT;
    }
    if let Some(times) = times_of(tid, way) {
        if clear_waiting(tid, way) && owner != 0 {
            // What it has waited until now is counted. Its times were there before its bit.
            // SAFETY: as in `end_wait`.
            let wait = unsafe { core::ptr::read_volatile(times) };
            send_end(owner, FLAG_LATE, wait.began, wait.woken, walk_of(&wait));
        }
    }
    // Threads that take slots from each other are not walked more often for it.
    let Pace { window: last, walks, shift, seen, looks } = set.paces[way];
    let is_new = walks == LEFT_OUT || last != window;
    let (walks, seen, looks) = if is_new { (0, 0, 0) } else { (walks, seen, looks) };
    set.paces[way] = if free.is_some() {
        Pace { window, walks: 0, shift: 0, seen: 0, looks: 0 }
    } else {
        Pace { window, walks, shift, seen, looks }
    };
    set.blocks[way] = Block { shift: 0, length: 0, choice: 0, passed: 0 };
    way as u32
}

/// A slot of a full set, and its owner, if the current thread is to have it. Else its wait is lost.
#[inline(always)]
fn evicted(set: &WaitSet) -> Option<(usize, u32)> {
    if is_left_out((bpf_get_current_pid_tgid() >> 32) as u32, UNWANTED_OFF_CPU) {
        return None;
    }
    // SAFETY: a helper without preconditions.
    let Some(way) = wait_slots::evicted(unsafe { bpf_get_prandom_u32() }) else {
        note_crowded();
        return None;
    };
    // SAFETY: a map value; a word that another CPU may change.
    Some((way, unsafe { core::ptr::read_volatile(&set.owners[way & (wait_slots::WAYS - 1)]) }))
}

/// The thread ends.
#[inline(never)]
fn leave_slot(tid: u32) {
    let Some((set, way)) = slot_of(tid) else { return };
    // A bit that is left is cleared by who takes the slot: by now it may be another's.
    // SAFETY: as in `take_slot`.
    unsafe {
        atomic_cxchg::<u32, SEQUENTIAL, SEQUENTIAL>(&raw mut (*set).owners[way], tid, 0);
    }
}

/// The current thread's wait finds no slot: a loss.
#[inline(always)]
fn note_crowded() {
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

/// Whether a CPU has so much left that no thread needs a limit.
#[inline(always)]
fn is_rich(all: &CpuPace) -> bool {
    all.kept > all.budget * (KEPT_WINDOWS / 2)
}

/// A new window: a thread that was walked little is walked more often.
#[inline(always)]
fn turn(pace: &mut Pace, window: u32, all: &CpuPace) {
    let passed = window.wrapping_sub(pace.window);
    if pace.walks < THREAD_WALKS / 2 || is_rich(all) {
        pace.shift = if passed >= pace.shift as u32 { 0 } else { pace.shift - passed as u8 };
    }
    pace.window = window;
    pace.walks = 0;
    pace.seen = 0;
    pace.looks = 0;
}

/// A walk more in this window: a thread that has had enough is walked half as often.
#[inline(always)]
fn note(pace: &mut Pace, all: &CpuPace) {
    if pace.walks < THREAD_WALKS {
        pace.walks += 1;
    }
    if pace.walks >= THREAD_WALKS && (pace.shift as u32) < MAX_SHIFT && !is_rich(all) {
        pace.walks = 0;
        pace.shift += 1;
    }
}

/// As [`turn`], for a CPU and its budget.
#[inline(never)]
fn turn_cpu(pace: &mut CpuPace, window: u32) {
    let passed = window.wrapping_sub(pace.window);
    if pace.spent < pace.budget / 2 || is_rich(pace) {
        pace.shift = if passed >= pace.shift { 0 } else { pace.shift - passed };
    }
    // Where a CPU is busy all the time, what chance leaves is not spent later.
    let left = if pace.used < pace.budget / 2 { pace.budget - pace.used } else { 0 };
    // Older ones may be another window's by now.
    if passed < HOST_WINDOWS - 1 {
        report_switches(pace.window, pace.switches);
    }
    // Every CPU that is switched has reported that one.
    let switches = switches_of(window.wrapping_sub(2));
    pace.budget = wait_pace::budget(wait_budget(), switches, wait_cpus());
    let idle = if passed > KEPT_WINDOWS { KEPT_WINDOWS } else { passed - 1 };
    let kept = pace.kept + left + idle * pace.budget;
    let most = KEPT_WINDOWS * pace.budget;
    pace.kept = if kept > most { most } else { kept };
    pace.window = window;
    pace.spent = 0;
    pace.used = 0;
    pace.raw = 0;
    pace.favoured = 0;
    pace.switches = 0;
}

/// Adds a CPU's switches to those of the host.
#[inline(always)]
fn report_switches(window: u32, switches: u32) {
    let Some(place) = OFF_CPU_SWITCHES.get_ptr_mut(window & (HOST_WINDOWS - 1)) else { return };
    // SAFETY: a map value; only changed by these.
    unsafe {
        let seen = core::ptr::read_volatile(place);
        if (seen >> 32) as u32 != window {
            let first = (window as u64) << 32 | switches as u64;
            if atomic_cxchg::<u64, SEQUENTIAL, SEQUENTIAL>(place, seen, first).1 {
                return;
            }
        }
        atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(place, switches as u64);
    }
}

/// The host's switches in a window, if any were reported.
#[inline(always)]
fn switches_of(window: u32) -> u32 {
    let Some(place) = OFF_CPU_SWITCHES.get_ptr(window & (HOST_WINDOWS - 1)) else { return 0 };
    // SAFETY: as in `has_waits`.
    let word = unsafe { core::ptr::read_volatile(place) };
    if (word >> 32) as u32 == window { word as u32 } else { 0 }
}

/// As [`note`], for a CPU and its budget.
#[inline(always)]
fn note_cpu(pace: &mut CpuPace, took: u64) {
    let spent = pace.spent as u64 + took;
    let used = pace.used as u64 + took;
    pace.used = if used > u32::MAX as u64 { u32::MAX } else { used as u32 };
    if spent < pace.budget as u64 {
        pace.spent = spent as u32;
    } else if took < pace.kept as u64 {
        pace.kept -= took as u32;
    } else {
        pace.kept = 0;
        pace.spent = 0;
        pace.shift += (pace.shift < MAX_SHIFT) as u32;
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
    // SAFETY: the current task, and the offset of a word in it. The scheduler has brought it up to this switch.
    let ran = unsafe { word(bpf_get_current_task_btf(), task_run()) };
    header.value = (state as u64) << RAN_BITS | ran & RAN;
    header.end = End::NoProcess as u8;
    note_begun(ids as u32, cpu, record.header.time);
    kernel_stack(context.as_ptr(), record);
    // SAFETY: the current task is valid for the whole program.
    let (task, registers) = unsafe {
        let task = bpf_get_current_task_btf();
        (task, bpf_task_pt_regs(task) as *const u8)
    };
    read_context(&mut record.header, task);
    // SAFETY: bpf_task_pt_regs returns a trusted pointer; the offset lies within pt_regs.
    let (mode, has_user_mode) = unsafe { (saved(registers, SAVED_MODE), has_user_mode(registers)) };
    let mut words = record.header.kernel_frames as u64;
    if !has_user_mode || !has_program(task) {
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
    let state = record.header.value >> RAN_BITS;
    // SAFETY: as above. Calls of 32-bit programs have numbers of their own; a worker of the kernel has that
    // of its maker.
    let is_native = unsafe { has_user_mode(registers) && is_native(saved(registers, SAVED_MODE)) };
    let in_syscall = state != STATE_RUNNABLE && is_native && (syscall as i32) >= 0;
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

/// The thread's wait is about to be walked. It may be woken meanwhile.
#[inline(never)]
fn note_begun(tid: u32, cpu: u32, began: u64) {
    let Some((_, way)) = slot_of(tid) else { return };
    let Some(times) = times_of(tid, way) else { return };
    // SAFETY: as in `end_wait`.
    unsafe { *times = WaitTimes { began, woken: 0, walk: 0, cpu } };
    set_waiting(tid, way);
}

/// The stack of the thread's wait has been walked, and sent if there was room.
#[inline(never)]
fn note_sent(tid: u32, cpu: u32, began: u64, is_sent: bool, is_raw: bool) {
    let Some(all) = OFF_CPU_PACES.get_ptr_mut(cpu) else { return };
    // SAFETY: as in `send_end`.
    let all = unsafe { &mut *all };
    // SAFETY: a helper without preconditions.
    let walk = unsafe { bpf_ktime_get_ns() }.wrapping_sub(began);
    note_cpu(all, walk);
    all.raw += is_raw as u32;
    let slot = slot_of(tid);
    if let Some((set, way)) = slot {
        // SAFETY: as in `choose`.
        note(unsafe { &mut (*set).paces[way] }, all);
        if !is_sent {
            clear_waiting(tid, way);
            return;
        }
        if let Some((way, times)) = wait_of(tid) {
            // SAFETY: as in `end_wait`.
            unsafe {
                if (*times).began == began {
                    (*times).walk = if walk > u32::MAX as u64 { u32::MAX } else { walk as u32 };
                }
            }
            // A thread that has taken the slot meanwhile may not have seen the wait.
            if owner(tid, way) == tid {
                return;
            }
            if !clear_waiting(tid, way) {
                return;
            }
        }
    }
    // Another thread has taken the slot, and what it ended was not sent yet.
    if is_sent {
        send_end(tid, FLAG_LATE, began, 0, 0);
    }
}

/// The thread is not walked for some windows: its process is left out.
#[inline(always)]
fn leave_out(tid: u32) {
    let Some((set, way)) = slot_of(tid) else { return };
    // SAFETY: as in `choose`.
    let pace = unsafe { &mut (*set).paces[way] };
    pace.walks = LEFT_OUT;
    pace.window = window();
}

/// The thread executes another program, which may be wanted.
pub fn take_in(tid: u32) {
    let Some((set, way)) = slot_of(tid) else { return };
    // SAFETY: as in `choose`.
    let (pace, block) = unsafe { (&mut (*set).paces[way], &mut (*set).blocks[way]) };
    if pace.walks == LEFT_OUT {
        pace.walks = 0;
        // It was left out at the chosen switch of its block.
        *block = Block { shift: 0, length: 0, choice: 0, passed: 0 };
    }
}

/// Whether this CPU may copy a stack of code without tables in this window.
#[inline(always)]
fn may_copy(cpu: u32) -> bool {
    // SAFETY: a map value of this CPU.
    let raw = OFF_CPU_PACES.get_ptr(cpu).map(|pace| unsafe { (*pace).raw });
    raw.is_some_and(|raw| raw < RAW_PER_WINDOW || raw < wait_budget() / RAW_NANOS)
}

#[inline(always)]
fn put(record: &mut Record, index: usize, word: u64) {
    // All frames together are fewer, and so are the words of a copied stack.
    record.words[index & 8191] = word;
}

const _: () = assert!(size_of::<WaitSet>() == wait_slots::SET_BYTES);
const _: () = assert!(size_of::<CpuPace>() == 128);
const _: () = assert!(size_of::<Header>() % 8 == 0);
