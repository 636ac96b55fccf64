//! The CPU sampler: one record per tick and CPU, kernel stack on top of user stack.
//!
//! Ticks come from a perf event. A tick on an idle CPU ends at once. The user's registers are
//! always the ones saved at the kernel's entry (`bpf_task_pt_regs`): an interrupt from user
//! mode saves them in the same place as a system call.

use core::ffi::c_void;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_current_task_btf, bpf_get_stack,
    bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_probe_read_user, bpf_ringbuf_output,
    bpf_ringbuf_query, bpf_task_pt_regs,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id};
use aya_ebpf::macros::perf_event;
use aya_ebpf::programs::PerfEventContext;
use strata_abi::epilogue::{BYTES_BEFORE, Code};
use strata_abi::record::{
    Counter, End, FLAG_KERNEL_CUT, FORM_RAW, FORM_UNWOUND, Header, MAX_KERNEL_FRAMES,
    RAW_CODE_WORD, RAW_LEFT_FP_WORD, RAW_LEFT_SP_WORD, RAW_OTHER_BYTES_WORD, RAW_OTHER_PAGES,
    RAW_OTHER_WORD, RAW_PC_WORD, RAW_REGISTERS_WORD, RAW_STACK_PAGES, RAW_STACK_WORD, SOURCE_CPU,
    raw_stack_start,
};
use strata_abi::register;
use strata_abi::step::Frame;
use strata_abi::tables::{PROCESS_PATIENT, PROCESS_SKIP, Process};

use crate::arch::{
    CLONE, CLONE3, SAVED_EXTRA, SAVED_FIRST, SAVED_FP, SAVED_MODE, SAVED_PC, SAVED_RESULT,
    SAVED_SECOND, SAVED_SP, SAVED_SYSCALL, is_native, is_user, saved_register,
};
use crate::context::read_context;
use crate::go_stacks::{LEFT_FP_WORD, LEFT_SP_WORD, other_stack};
use crate::maps::{
    CLR_EVENTS, Hot, PROCESSES, RECORDS, Record, SAMPLER_CACHE, SAMPLER_HOT, SAMPLER_RECORD,
    THREADS, WAITS, count, max_frames, mm_start_code, task_mm, wakeup_bytes,
};
use crate::unwind::{Walk, walk};

/// Raw stacks of a process that waits for its runtime.
const PATIENT_WAKEUP: u32 = 32;

pub const BPF_RB_NO_WAKEUP: u64 = 1;
pub const BPF_RB_FORCE_WAKEUP: u64 = 2;
const BPF_RB_AVAIL_DATA: u64 = 0;

#[perf_event]
pub fn sample_cpu(context: PerfEventContext) -> u32 {
    let ids = bpf_get_current_pid_tgid();
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let pid = (ids >> 32) as u32;
    let Some(hot) = SAMPLER_HOT.get_ptr_mut(cpu) else {
        return 0;
    };
    // SAFETY: a map value; this program is alone on its CPU.
    let hot = unsafe { &mut *hot };
    if pid == 0 {
        count(&mut hot.counters, Counter::Idle as u32, 1);
        return 0;
    }
    let process = PROCESSES.get_ptr_mut(pid);
    // SAFETY: a map value.
    if process.is_some_and(|process| unsafe { (*process).flags } & PROCESS_SKIP != 0) {
        count(&mut hot.counters, Counter::Skipped as u32, 1);
        return 0;
    }
    let (Some(record), Some(cache)) =
        (SAMPLER_RECORD.get_ptr_mut(cpu), SAMPLER_CACHE.get_ptr_mut(cpu))
    else {
        return 0;
    };
    // SAFETY: as above.
    let record = unsafe { &mut *record };
    hot.hits = 0;
    hot.misses = 0;
    fill_header(&mut record.header, ids, cpu);
    record.header.source = SOURCE_CPU;
    let in_kernel = interrupted_kernel_stack(&context, record);

    // SAFETY: the current task is valid for the whole program.
    let (task, registers) = unsafe {
        let task = bpf_get_current_task_btf();
        (task, bpf_task_pt_regs(task) as *const u8)
    };
    read_context(&mut record.header, task);
    // SAFETY: bpf_task_pt_regs returns a trusted pointer; the offsets lie within pt_regs.
    let (mode, has_user_mode) = unsafe { (saved(registers, SAVED_MODE), has_user_mode(registers)) };
    let mut words = record.header.kernel_frames as u64;
    let mut wakeup = BPF_RB_NO_WAKEUP;
    if in_kernel && !(has_user_mode && has_program(task)) {
        record.header.end = End::KernelOnly as u8;
    } else if !is_native(mode) {
        record.header.end = End::Compat as u8;
    } else if user_stack(hot, record, cache, registers, process, Whose::Current) {
        words += record.header.user_frames as u64;
    } else {
        #[cfg(feature = "log")]
        aya_log_ebpf::info!(&context, "no table: pid {} at {:x}", pid, unsafe {
            saved(registers, SAVED_PC)
        });
        words = raw_stack::<RAW_STACK_PAGES, RAW_OTHER_PAGES>(hot, record, registers);
        // SAFETY: a map value.
        if process.is_none_or(|process| unsafe { is_awaited(&*process) }) {
            wakeup = BPF_RB_FORCE_WAKEUP;
        }
        count(&mut hot.counters, Counter::Raw as u32, 1);
    }
    let sent = emit(ring(), hot, record, words, wakeup);
    #[cfg(feature = "log")]
    if !sent {
        aya_log_ebpf::warn!(&context, "the record ring is full: pid {}, cpu {}", pid, cpu);
    }
    let _ = sent;
    0
}

/// Whether a raw stack of a known process is worth waking userspace for. What the process has
/// mapped lately is, of which only a few stacks may come this way. Code that a runtime has yet to
/// announce comes with the next turn, but that has to come before no more stacks may.
#[inline(always)]
fn is_awaited(process: &Process) -> bool {
    process.flags & PROCESS_PATIENT == 0 || process.captures.is_multiple_of(PATIENT_WAKEUP)
}

/// Whether a task has a program in its memory, which its saved registers speak of. An exit gives
/// the memory back early, and the tearing down of a large one takes long enough to be sampled. An
/// exec puts a new one in its place, and fills it, while the registers are the old program's.
#[inline(always)]
pub fn has_program(task: *mut task_struct) -> bool {
    let (mm, start_code) = (task_mm(), mm_start_code());
    if mm == 0 {
        return true;
    }
    // SAFETY: the offsets are the fields', from the kernel's own type information; the verifier
    // checks them.
    unsafe {
        let memory: *const u8 = core::ptr::read_volatile(task.cast::<u8>().add(mm as usize).cast());
        if memory.is_null() {
            return false;
        }
        // Said once everything is mapped, just before the registers are the new program's.
        start_code == 0
            || core::ptr::read_volatile(memory.add(start_code as usize).cast::<u64>()) != 0
    }
}

/// Whether a thread's saved registers are those of user mode. A worker of the kernel in a process (of
/// io_uring, or vhost) never enters it: its program counter and stack pointer there are 0
/// (`copy_thread` in arch/x86/kernel/process.c, Linux 6.12).
///
/// # Safety
/// `registers` must be what bpf_task_pt_regs returned.
#[inline(always)]
pub unsafe fn has_user_mode(registers: *const u8) -> bool {
    // SAFETY: the offsets lie within `struct pt_regs`.
    unsafe {
        is_user(saved(registers, SAVED_MODE))
            && saved(registers, SAVED_PC) | saved(registers, SAVED_SP) != 0
    }
}

/// # Safety
/// `registers` must be what bpf_task_pt_regs returned, `offset` within `struct pt_regs`.
#[inline(always)]
pub unsafe fn saved(registers: *const u8, offset: usize) -> u64 {
    // SAFETY: by the caller's promise; the verifier allows plain loads from it.
    unsafe { core::ptr::read_volatile(registers.add(offset).cast()) }
}

/// Everything of a header but its kind, as of now and the current thread.
#[inline(always)]
pub fn fill_header(header: &mut Header, ids: u64, cpu: u32) {
    // SAFETY: helpers without preconditions; `comm` is 16 bytes of a map value.
    unsafe {
        header.time = bpf_ktime_get_ns();
        bpf_get_current_comm((&raw mut header.comm).cast(), 16);
    }
    header.pid = (ids >> 32) as u32;
    header.tid = ids as u32;
    header.cpu = cpu;
    header.generation = 0;
    header.kernel_frames = 0;
    header.user_frames = 0;
    header.form = FORM_UNWOUND;
    header.flags = 0;
    header.cgroup = 0;
    header.stack_bytes = 0;
    header.weight = 1;
    header.value = 0;
    header.app_domain = 0;
    header.label_set = 0;
}

/// Takes the stack of the tick in the kernel; false when it hit user mode, and there is none.
#[inline(always)]
fn interrupted_kernel_stack(context: &PerfEventContext, record: &mut Record) -> bool {
    // Interrupted in user mode there is no kernel stack, and asking for it is not free.
    // SAFETY: `bpf_perf_event_data` starts with the interrupted `struct pt_regs`.
    let mode = unsafe {
        core::ptr::read_volatile(context.as_ptr().cast::<u8>().add(SAVED_MODE).cast::<u64>())
    };
    if is_user(mode) {
        return false;
    }
    kernel_stack(context.as_ptr(), record);
    true
}

/// The current thread's kernel stack: the first words of a record.
#[inline(always)]
pub fn kernel_stack(context: *mut c_void, record: &mut Record) {
    // SAFETY: the record has room for MAX_KERNEL_FRAMES words.
    let bytes = unsafe {
        bpf_get_stack(context, (&raw mut record.words).cast(), (MAX_KERNEL_FRAMES * 8) as u32, 0)
    };
    if bytes > 0 {
        let frames = (bytes as u64 >> 3) & 127;
        record.header.kernel_frames = frames as u16;
        if frames == MAX_KERNEL_FRAMES as u64 {
            record.header.flags |= FLAG_KERNEL_CUT;
        }
    }
}

/// Whose stack is walked, and what becomes of one that leads through code without tables.
#[derive(Clone, Copy)]
pub enum Whose {
    /// The current thread's. It is sent raw, while its process's captures last.
    Current,
    /// The current thread's. It is sent raw; the program itself bounds how often.
    CurrentCounted,
    /// The current thread's. It ends there.
    CurrentAsFar,
    /// Another thread's, which does not run. It ends there: it is walked again once its runtime has
    /// published what this code is.
    Other(*mut task_struct),
}

/// Whether the current thread has not left the system call yet that made it, with a stack of its own: it has
/// been nowhere, and no call has led to where it goes on.
///
/// # Safety
/// `registers` must be what bpf_task_pt_regs returned.
#[inline(always)]
unsafe fn begins_on_own_stack(registers: *const u8) -> bool {
    // SAFETY: the offsets lie within `struct pt_regs`; the helper checks the source.
    unsafe {
        let call = saved(registers, SAVED_SYSCALL) as u32;
        if call != CLONE && call != CLONE3 || saved(registers, SAVED_RESULT) != 0 {
            return false;
        }
        let mut stack = saved(registers, SAVED_SECOND);
        if call == CLONE3 {
            let at = saved(registers, SAVED_FIRST).wrapping_add(STACK_OF_CLONE);
            if bpf_probe_read_user((&raw mut stack).cast(), 8, at as *const c_void) != 0 {
                return false;
            }
        }
        stack != 0
    }
}

/// `stack` in `struct clone_args` (include/uapi/linux/sched.h).
const STACK_OF_CLONE: u64 = 40;

/// Unwinds the user stack of a thread; false when the kernel has no tables for it yet.
#[inline(always)]
pub fn user_stack(
    hot: &mut Hot,
    record: &mut Record,
    cache: *mut crate::maps::Cache,
    registers: *const u8,
    process: Option<*mut Process>,
    whose: Whose,
) -> bool {
    let Some(process) = process else {
        return false;
    };
    let task = match whose {
        Whose::Current | Whose::CurrentCounted | Whose::CurrentAsFar => core::ptr::null_mut(),
        Whose::Other(task) => task,
    };
    // SAFETY: map values; `registers` is what bpf_task_pt_regs returned.
    unsafe {
        hot.process = *process;
        match whose {
            Whose::Current => {}
            Whose::CurrentAsFar => hot.process.captures = 0,
            Whose::CurrentCounted | Whose::Other(_) => {
                hot.process.captures = 1;
                hot.process.flags |= PROCESS_PATIENT;
            }
        }
        hot.frame = Frame {
            pc: saved(registers, SAVED_PC),
            sp: saved(registers, SAVED_SP),
            fp: saved(registers, SAVED_FP),
            extra: saved(registers, SAVED_EXTRA),
            extra_at: 0,
            context: 0,
            exact: 1,
            by_pointer: 0,
        };
    }
    record.header.generation = hot.process.generation;
    hot.window_bytes = 0;
    hot.left_goroutine = 0;
    hot.user_frames = 0;
    hot.max_frames = max_frames();
    // SAFETY: as above.
    let begins = task.is_null() && unsafe { begins_on_own_stack(registers) };
    if begins {
        hot.max_frames = 1;
    }
    hot.first_word = record.header.kernel_frames as u32;
    let mut walked = Walk { hot, record, cache, task, registers: registers.cast() };
    walk(&mut walked);
    if begins && hot.end != End::NoMapping as u32 {
        hot.end = End::Complete as u32;
    }
    if hot.end == End::NoMapping as u32 && hot.process.captures != 0 {
        // SAFETY: a map value; a lost update only sends one raw stack more.
        unsafe {
            if matches!(whose, Whose::Current) {
                (*process).captures = hot.process.captures - 1;
            }
        }
        return false;
    }
    record.header.user_frames = hot.user_frames as u16;
    record.header.end = hot.end as u8;
    true
}

/// Copies registers and as many pages of stack as they are, and of the other stack of a Go program
/// (`OTHER_PAGES` of 0: none); returns the words of the record.
#[inline(always)]
pub fn raw_stack<const PAGES: usize, const OTHER_PAGES: usize>(
    hot: &mut Hot,
    record: &mut Record,
    registers: *const u8,
) -> u64 {
    let other = if OTHER_PAGES == 0 { 0 } else { other_stack(hot) };
    let (left_sp, left_fp) =
        if other == 0 { (0, 0) } else { (hot.window[LEFT_SP_WORD], hot.window[LEFT_FP_WORD]) };
    record.header.form = FORM_RAW;
    // Only a process's first samples need it; finding it touches memory all over.
    // SAFETY: a helper without preconditions.
    record.header.cgroup = unsafe { bpf_get_current_cgroup_id() };
    record.header.end = End::NoProcess as u8;
    record.header.user_frames = 0;
    for number in 0..register::COUNT {
        let at = registers as u64 + saved_register(number);
        // SAFETY: a constant place within `words`; the helper checks the source.
        unsafe {
            let to = (&raw mut record.words[RAW_REGISTERS_WORD + number as usize]).cast();
            bpf_probe_read_kernel(to, 8, at as *const c_void);
        }
    }
    // SAFETY: `registers` is what bpf_task_pt_regs returned.
    let (pc, sp) = unsafe { (saved(registers, SAVED_PC), saved(registers, SAVED_SP)) };
    record.words[RAW_PC_WORD] = pc;
    // SAFETY: room for the code at a constant place; the helper clears it when it cannot read.
    unsafe {
        let from = pc.wrapping_sub(BYTES_BEFORE) as *const c_void;
        let to = (&raw mut record.words[RAW_CODE_WORD]).cast();
        bpf_probe_read_user(to, size_of::<Code>() as u32, from);
    }
    let stack: *mut u8 = (&raw mut record.words[RAW_STACK_WORD]).cast();
    let start = raw_stack_start(sp);
    let bytes = copy_pages::<PAGES>(stack, start);
    record.header.stack_bytes = bytes as u32;
    let mut other_bytes = 0;
    if other != 0 && other.wrapping_sub(start) >= bytes {
        // SAFETY: `bytes` are at most `PAGES` pages, and there is room for the others behind them.
        other_bytes = copy_pages::<OTHER_PAGES>(unsafe { stack.add(bytes as usize) }, other);
    }
    record.words[RAW_OTHER_WORD] = other;
    record.words[RAW_OTHER_BYTES_WORD] = other_bytes;
    record.words[RAW_LEFT_SP_WORD] = left_sp;
    record.words[RAW_LEFT_FP_WORD] = left_fp;
    RAW_STACK_WORD as u64 + ((bytes + other_bytes) >> 3)
}

/// Copies from `start` on what can be read of `PAGES` pages, the first of which is usually a
/// partial one; returns how many bytes.
#[inline(always)]
fn copy_pages<const PAGES: usize>(to: *mut u8, start: u64) -> u64 {
    let first = 4096 - (start & 0xff8);
    let mut bytes = 0u64;
    for page in 0..PAGES as u64 {
        let (offset, size) =
            if page == 0 { (0, first) } else { (first + ((page - 1) << 12), 4096) };
        // SAFETY: at most 4096 bytes at no more than page * 4096: within the stack's room.
        let read = unsafe {
            bpf_probe_read_user(
                to.add(offset as usize).cast(),
                size as u32,
                (start + offset) as *const c_void,
            )
        };
        if read == 0 {
            bytes = offset + size;
        } else if bytes != 0 {
            break;
        }
        // The innermost function may not have touched its frame's first pages yet: they stay zero.
    }
    bytes
}

/// Copies of stacks take half of a ring at most. A late reader then misses the ends of some stacks, and no
/// records: one copy takes the room of thirty.
#[inline(always)]
pub fn has_room_for_copies(ring: *mut c_void) -> bool {
    // SAFETY: a map; the helper has no other preconditions.
    unsafe { bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) < wakeup_bytes() * 2 }
}

/// The ring of CPU samples.
#[inline(always)]
pub fn ring() -> *mut c_void {
    (&raw const RECORDS).cast_mut().cast()
}

/// The ring of passes over threads.
#[inline(always)]
pub fn threads_ring() -> *mut c_void {
    (&raw const THREADS).cast_mut().cast()
}

/// The ring of events of the CLR.
#[inline(always)]
pub fn clr_events_ring() -> *mut c_void {
    (&raw const CLR_EVENTS).cast_mut().cast()
}

/// The ring of waits.
#[inline(always)]
pub fn waits_ring() -> *mut c_void {
    (&raw const WAITS).cast_mut().cast()
}

#[inline(always)]
pub fn emit(
    ring: *mut c_void,
    hot: &mut Hot,
    record: &mut Record,
    words: u64,
    mut wakeup: u64,
) -> bool {
    let size = size_of::<Header>() as u64 + (words & 0x3fff) * 8;
    let most = (size_of::<Header>() + strata_abi::record::MAX_WORDS * 8) as u64;
    let size = if size > most { most } else { size };
    // SAFETY: header and words are adjacent in `Record` and `size` is within them.
    unsafe {
        if wakeup == BPF_RB_NO_WAKEUP
            && bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) >= wakeup_bytes()
        {
            wakeup = BPF_RB_FORCE_WAKEUP;
        }
        let sent = bpf_ringbuf_output(ring, (&raw mut record.header).cast(), size, wakeup);
        if sent != 0 {
            count(&mut hot.counters, Counter::RingFull as u32, 1);
            return false;
        }
    }
    count(&mut hot.counters, Counter::Samples as u32, 1);
    count(&mut hot.counters, Counter::CacheHit as u32, hot.hits as u64);
    count(&mut hot.counters, Counter::CacheMiss as u32, hot.misses as u64);
    count(&mut hot.counters, Counter::FirstEnd as u32 + (record.header.end as u32 & 15), 1);
    true
}
