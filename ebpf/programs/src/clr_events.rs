//! Events of the CLR: where a thread is when the bridge in its process reports one.
//!
//! The bridge calls an empty function of its own with the address of a block about the event; this
//! program runs at that function's first instruction (a uprobe), on the reporting thread. It walks
//! the stack, copies the block, and sends both up. The process is hostile: the words are copied as
//! they are, only the kind is checked, and in a window of time each CPU takes a bounded number, of
//! which one process has a part at most.
//!
//! A thread may lose its CPU in here to another one that reports an event too. So working memory is
//! taken by a flag, and there is more of it than there are CPUs.
//!
//! Invariant: nothing here waits; an event that finds no memory or no room, or is one too many, is
//! counted, by its kind.

use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_xchg};

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_probe_read_user, bpf_task_pt_regs,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id};
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use strata_abi::record::{
    Counter, EVENT_KIND_WORD, EVENT_VALUE_WORD, EVENT_WORDS, End, FLAG_EVENT, MOST_EVENTS,
    RAW_EVENT_PAGES, SOURCE_FIRST_EVENT, SOURCE_LAST_EVENT, event_slot,
};

use crate::arch::{SAVED_ARGUMENT, SAVED_MODE, is_native};
use crate::context::read_context;
use crate::maps::{
    CLR_EVENT_CACHE, CLR_EVENT_HOT, CLR_EVENT_IN_USE, CLR_EVENT_PACES, CLR_EVENT_RECORD,
    CLR_EVENT_SHARES, EventShare, Hot, PROCESSES, Record, clr_event_sets, count,
};
use crate::sampler::{
    BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, Whose, clr_events_ring, emit, fill_header,
    has_room_for_copies, raw_stack, saved, user_stack,
};

/// A window of time is 2^27 nanoseconds (134 ms), as the bridge's.
const WINDOW_SHIFT: u64 = 27;
/// Events that a CPU takes in a window.
const PER_WINDOW: u32 = 8192;
/// Stacks of code without tables that a CPU copies in a window. The first events of a method are
/// often its first calls, when its code is not published yet.
const RAW_PER_WINDOW: u32 = 160;
/// The same of one process, on all CPUs.
const RAW_PER_PROCESS: u32 = 128;
/// Sets of working memory that are tried.
const TRIES: u32 = 8;
const NONE: u32 = u32::MAX;

/// What a run is about.
struct Event {
    cpu: u32,
    ids: u64,
    source: u8,
    /// Where the bridge's block is.
    block: u64,
    registers: *const u8,
}

#[uprobe]
pub fn clr_event(_context: ProbeContext) -> u32 {
    // SAFETY: the helpers have no preconditions, and bpf_task_pt_regs returns a trusted pointer.
    let (cpu, registers) = unsafe {
        (bpf_get_smp_processor_id(), bpf_task_pt_regs(bpf_get_current_task_btf()) as *const u8)
    };
    // SAFETY: the offsets lie within pt_regs.
    let (mode, block) = unsafe { (saved(registers, SAVED_MODE), saved(registers, SAVED_ARGUMENT)) };
    if !is_native(mode) {
        return 0;
    }
    let ids = bpf_get_current_pid_tgid();
    let source = source_of(block);
    if !is_event(source) {
        note_unreadable(cpu);
        return 0;
    }
    let event = Event { cpu, ids, source, block, registers };
    let may_copy = match admit(&event) {
        Admitted::No => {
            refuse(cpu, source);
            return 0;
        }
        Admitted::WithCopy => true,
        Admitted::WithoutCopy => false,
    };
    let set = take_set(cpu);
    if set == NONE {
        refuse(cpu, source);
        return 0;
    }
    report(&event, set, may_copy);
    if let Some(flag) = CLR_EVENT_IN_USE.get_ptr_mut(set) {
        // SAFETY: a map value, which this run has taken.
        unsafe { core::ptr::write_volatile(flag, 0) };
    }
    0
}

/// The kind of a block's event; one that is of no event if it cannot be read.
#[inline(always)]
fn source_of(block: u64) -> u8 {
    let mut word = 0u64;
    // SAFETY: a place for 8 bytes on the stack; the helper checks the source.
    let read = unsafe {
        let from = (block + EVENT_KIND_WORD as u64 * 8) as *const c_void;
        bpf_probe_read_user((&raw mut word).cast(), 8, from)
    };
    if read == 0 { word as u8 } else { 0 }
}

#[inline(always)]
fn is_event(source: u8) -> bool {
    (SOURCE_FIRST_EVENT..=SOURCE_LAST_EVENT).contains(&source)
}

enum Admitted {
    No,
    WithCopy,
    WithoutCopy,
}

/// Whether this CPU takes one more event in this window, and of this process, and may copy its
/// stack. Another run may interfere, and then a few more or fewer are taken.
#[inline(always)]
fn admit(event: &Event) -> Admitted {
    let Some(pace) = CLR_EVENT_PACES.get_ptr_mut(event.cpu) else { return Admitted::No };
    // SAFETY: a map value of this CPU; the helper has no preconditions.
    let (pace, window) = unsafe { (&mut *pace, (bpf_ktime_get_ns() >> WINDOW_SHIFT) as u32) };
    if pace.window != window {
        pace.window = window;
        pace.taken = 0;
        pace.raw = 0;
    }
    if pace.taken >= PER_WINDOW {
        return Admitted::No;
    }
    let process = (event.ids >> 32) as u32;
    let mut may_copy = pace.raw < RAW_PER_WINDOW;
    if let Some(share) = CLR_EVENT_SHARES.get_ptr_mut(process) {
        // SAFETY: a map value.
        let share = unsafe { &mut *share };
        if share.window != window {
            share.window = window;
            share.taken = 0;
            share.raw = 0;
        }
        if share.taken >= MOST_EVENTS {
            return Admitted::No;
        }
        share.taken += 1;
        may_copy &= share.raw < RAW_PER_PROCESS;
    } else {
        let share = EventShare { window, taken: 1, raw: 0, reserved: 0 };
        let _ = CLR_EVENT_SHARES.insert(process, share, BPF_ANY as u64);
    }
    pace.taken += 1;
    may_copy &= has_room_for_copies(clr_events_ring());
    if may_copy { Admitted::WithCopy } else { Admitted::WithoutCopy }
}

#[inline(always)]
fn refuse(cpu: u32, source: u8) {
    if let Some(pace) = CLR_EVENT_PACES.get_ptr_mut(cpu) {
        // SAFETY: as above.
        unsafe { (*pace).refused[event_slot(source)] += 1 };
    }
}

#[inline(always)]
fn note_unreadable(cpu: u32) {
    if let Some(pace) = CLR_EVENT_PACES.get_ptr_mut(cpu) {
        // SAFETY: as above.
        unsafe { (*pace).unreadable += 1 };
    }
}

/// Takes a set of working memory, or [`NONE`].
#[inline(never)]
fn take_set(cpu: u32) -> u32 {
    let sets = clr_event_sets();
    // There may be fewer than CPUs.
    let mut number = if sets == 0 { 0 } else { cpu * 2 % sets };
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
fn report(event: &Event, set: u32, may_copy: bool) {
    let (Some(hot), Some(record), Some(cache)) = (
        CLR_EVENT_HOT.get_ptr_mut(set),
        CLR_EVENT_RECORD.get_ptr_mut(set),
        CLR_EVENT_CACHE.get_ptr_mut(set),
    ) else {
        return;
    };
    // SAFETY: map values that this run has taken.
    let (hot, record) = unsafe { (&mut *hot, &mut *record) };
    let process = PROCESSES.get_ptr_mut((event.ids >> 32) as u32);
    hot.hits = 0;
    hot.misses = 0;
    fill_header(&mut record.header, event.ids, event.cpu);
    record.header.flags = FLAG_EVENT;
    record.header.end = End::NoProcess as u8;
    // SAFETY: the current task is valid for the whole program.
    read_context(&mut record.header, unsafe { bpf_get_current_task_btf() });
    let whose = if may_copy { Whose::CurrentCounted } else { Whose::CurrentAsFar };
    let words = if user_stack(hot, record, cache, event.registers, process, whose) {
        record.header.user_frames as u64
    } else if may_copy {
        note_copy(event);
        raw_stack::<RAW_EVENT_PAGES, 0>(hot, record, event.registers)
    } else {
        0
    };
    send(hot, record, words, event.block);
}

#[inline(always)]
fn note_copy(event: &Event) {
    if let Some(pace) = CLR_EVENT_PACES.get_ptr_mut(event.cpu) {
        // SAFETY: as in `admit`.
        unsafe { (*pace).raw += 1 };
    }
    if let Some(share) = CLR_EVENT_SHARES.get_ptr_mut((event.ids >> 32) as u32) {
        // SAFETY: as in `admit`.
        unsafe { (*share).raw += 1 };
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
    let kind = record.words[at + EVENT_KIND_WORD];
    // The process may have written another one there meanwhile.
    if read != 0 || !is_event(kind as u8) {
        note_unreadable(record.header.cpu);
        return;
    }
    record.header.value = record.words[at + EVENT_VALUE_WORD];
    record.header.source = kind as u8;
    record.header.weight = (kind >> 32) as u32;
    let is_raw = record.header.form == strata_abi::record::FORM_RAW;
    let wakeup = if is_raw { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    if !emit(clr_events_ring(), hot, record, words + EVENT_WORDS as u64, wakeup) {
        refuse(record.header.cpu, kind as u8);
    }
    count(&mut hot.counters, Counter::Raw as u32, is_raw as u64);
}
