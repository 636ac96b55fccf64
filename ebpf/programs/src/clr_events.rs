//! Events of the CLR: where a thread is when the bridge in its process reports one.
//!
//! The bridge calls an empty function of its own with the address of a block about the event; this
//! program runs at that function's first instruction (a uprobe), on the reporting thread. It walks
//! the stack, copies the block, and sends both up. The process is hostile: the words are copied as
//! they are, only the kind is checked, and each CPU takes a bounded number in a window of time.
//!
//! A thread may lose its CPU in here to another one that reports an event too. So working memory is
//! taken by a flag, and there is more of it than there are CPUs.
//!
//! Invariant: nothing here waits; an event that finds no memory, or is one too many, is counted.

use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_xchg};

use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_jiffies64, bpf_probe_read_user, bpf_task_pt_regs,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id};
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use strata_abi::record::{
    Counter, EVENT_KIND_WORD, EVENT_VALUE_WORD, EVENT_WORDS, End, FLAG_EVENT, RAW_EVENT_PAGES,
    SOURCE_FIRST_EVENT, SOURCE_LAST_EVENT,
};

use crate::arch::{SAVED_ARGUMENT, SAVED_MODE, is_native};
use crate::context::read_context;
use crate::maps::{
    CLR_EVENT_CACHE, CLR_EVENT_HOT, CLR_EVENT_IN_USE, CLR_EVENT_PACES, CLR_EVENT_RECORD, Hot,
    PROCESSES, Record, clr_event_sets, count,
};
use crate::sampler::{
    BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, Whose, clr_events_ring, emit, fill_header, raw_stack,
    saved, user_stack,
};

/// A window of time is 32 jiffies: 32 to 320 ms, by the kernel's HZ.
const WINDOW_SHIFT: u64 = 5;
/// Events that a CPU takes in a window. A bridge reports fewer; a process that calls the function
/// itself spends its own time, and room in the ring.
const PER_WINDOW: u32 = 4096;
/// Stacks of code without tables that a CPU copies in a window. The first events of a method are
/// often its first calls, when its code is not published yet.
const RAW_PER_WINDOW: u32 = 64;
/// Sets of working memory that are tried.
const TRIES: u32 = 8;
const NONE: u32 = u32::MAX;

#[uprobe]
pub fn clr_event(_context: ProbeContext) -> u32 {
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let may_copy = match admit(cpu) {
        Admitted::No => return 0,
        Admitted::WithCopy => true,
        Admitted::WithoutCopy => false,
    };
    let set = take_set(cpu);
    if set == NONE {
        refuse(cpu);
        return 0;
    }
    report(cpu, set, may_copy);
    if let Some(flag) = CLR_EVENT_IN_USE.get_ptr_mut(set) {
        // SAFETY: a map value, which this run has taken.
        unsafe { core::ptr::write_volatile(flag, 0) };
    }
    0
}

enum Admitted {
    No,
    WithCopy,
    WithoutCopy,
}

/// Whether this CPU takes one more event in this window, and may copy its stack. Another run on
/// this CPU may interfere, and then a few more or fewer are taken.
#[inline(always)]
fn admit(cpu: u32) -> Admitted {
    let Some(pace) = CLR_EVENT_PACES.get_ptr_mut(cpu) else { return Admitted::No };
    // SAFETY: a map value of this CPU; the helper has no preconditions.
    let (pace, window) = unsafe { (&mut *pace, (bpf_jiffies64() >> WINDOW_SHIFT) as u32) };
    if pace.window != window {
        pace.window = window;
        pace.taken = 0;
        pace.raw = 0;
    }
    if pace.taken >= PER_WINDOW {
        pace.refused += 1;
        return Admitted::No;
    }
    pace.taken += 1;
    if pace.raw < RAW_PER_WINDOW { Admitted::WithCopy } else { Admitted::WithoutCopy }
}

#[inline(always)]
fn refuse(cpu: u32) {
    if let Some(pace) = CLR_EVENT_PACES.get_ptr_mut(cpu) {
        // SAFETY: as above.
        unsafe { (*pace).refused += 1 };
    }
}

/// Takes a set of working memory, or [`NONE`].
#[inline(never)]
fn take_set(cpu: u32) -> u32 {
    let sets = clr_event_sets();
    let mut number = cpu * 2;
    for _ in 0..TRIES {
        if number >= sets {
            number = 0;
        }
        let Some(flag) = CLR_EVENT_IN_USE.get_ptr_mut(number) else { return NONE };
        // The target's `AtomicU64` has no exchange; the kernel has had one since 5.12.
        // SAFETY: a map value, only used as an atomic until it is taken.
        if unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(flag, 1) } == 0 {
            return number;
        }
        number += 1;
    }
    NONE
}

#[inline(always)]
fn report(cpu: u32, set: u32, may_copy: bool) {
    let (Some(hot), Some(record), Some(cache)) = (
        CLR_EVENT_HOT.get_ptr_mut(set),
        CLR_EVENT_RECORD.get_ptr_mut(set),
        CLR_EVENT_CACHE.get_ptr_mut(set),
    ) else {
        return;
    };
    // SAFETY: map values that this run has taken.
    let (hot, record) = unsafe { (&mut *hot, &mut *record) };
    let ids = bpf_get_current_pid_tgid();
    let process = PROCESSES.get_ptr_mut((ids >> 32) as u32);
    hot.hits = 0;
    hot.misses = 0;
    fill_header(&mut record.header, ids, cpu);
    record.header.flags = FLAG_EVENT;
    record.header.end = End::NoProcess as u8;
    // SAFETY: the current task is valid for the whole program.
    let (task, registers) = unsafe {
        let task = bpf_get_current_task_btf();
        (task, bpf_task_pt_regs(task) as *const u8)
    };
    // SAFETY: bpf_task_pt_regs returns a trusted pointer; the offsets lie within pt_regs.
    let (mode, block) = unsafe { (saved(registers, SAVED_MODE), saved(registers, SAVED_ARGUMENT)) };
    if !is_native(mode) {
        return;
    }
    read_context(&mut record.header, task);
    let whose = if may_copy { Whose::CurrentCounted } else { Whose::CurrentAsFar };
    let words = if user_stack(hot, record, cache, registers, process, whose) {
        record.header.user_frames as u64
    } else if may_copy {
        note_copy(cpu);
        raw_stack::<RAW_EVENT_PAGES>(record, registers)
    } else {
        0
    };
    send(hot, record, words, block);
}

#[inline(always)]
fn note_copy(cpu: u32) {
    if let Some(pace) = CLR_EVENT_PACES.get_ptr_mut(cpu) {
        // SAFETY: as in `admit`.
        unsafe { (*pace).raw += 1 };
    }
}

/// Adds the bridge's block, and sends the record.
#[inline(never)]
fn send(hot: &mut Hot, record: &mut Record, words: u64, block: u64) {
    let at = (words & 4095) as usize;
    // SAFETY: `EVENT_WORDS` words at most 4095 words into the record's; the helper checks the
    // source.
    let read = unsafe {
        let to = (&raw mut record.words).cast::<u64>().add(at);
        bpf_probe_read_user(to.cast(), (EVENT_WORDS * 8) as u32, block as *const c_void)
    };
    if read != 0 {
        return;
    }
    let kind = record.words[at + EVENT_KIND_WORD];
    record.header.value = record.words[at + EVENT_VALUE_WORD];
    record.header.source = kind as u8;
    record.header.weight = (kind >> 32) as u32;
    if record.header.source < SOURCE_FIRST_EVENT || record.header.source > SOURCE_LAST_EVENT {
        return;
    }
    let is_raw = record.header.form == strata_abi::record::FORM_RAW;
    let wakeup = if is_raw { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    emit(clr_events_ring(), hot, record, words + EVENT_WORDS as u64, wakeup);
    count(&mut hot.counters, Counter::Raw as u32, is_raw as u64);
}
