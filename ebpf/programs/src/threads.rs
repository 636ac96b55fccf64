//! Passes over threads: a sleepable task iterator, run when userspace reads it. Of all threads, of one
//! process or of one thread: what the link that is read was made for.
//!
//! A thread that does not run has its registers saved and its stack lies still, so it is walked
//! from outside, by the same unwinder, without stopping or even touching it. A thread on a CPU has
//! stale saved registers: only its counters are sent, and its stack is left to the CPU sampler.
//!
//! A thread that was not switched since it was last sent is where it was: it costs a look, and
//! userspace counts its time by itself. Of the others the record says how long they have run and
//! waited for a CPU so far.
//!
//! Invariant: reading another process's memory may never end. What is about to be walked is noted
//! before, and a reader that was left behind and comes back neither sends nor looks any further.

use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_ANY, task_struct};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_current_comm, bpf_get_task_stack, bpf_ktime_get_ns, bpf_probe_read_kernel,
    bpf_ringbuf_output, bpf_task_pt_regs,
};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use strata_abi::record::{
    Counter, End, FLAG_KERNEL_CUT, FLAG_THREAD, FORM_UNWOUND, Header, MAX_KERNEL_FRAMES,
    NO_SYSCALL, SOURCE_WALL, STATE_ENDED, STATE_RUNNABLE, STATE_RUNNING, THREAD_WORDS,
};
use strata_abi::tables::{Pass, UNWANTED_WALL, Walking};

use crate::arch::{SAVED_MODE, SAVED_SYSCALL, is_native};
use crate::maps::{
    Hot, PASS, PROCESSES, QUARANTINE, QUARANTINED_USERS, Record, SEEN, Seen, THREADS_CACHE,
    THREADS_HOT, THREADS_RECORD, WALKING, activity_offsets, count, is_left_out, task_mm,
    task_offsets, user_offsets, wanted_process,
};
use crate::sampler::{
    BPF_RB_NO_WAKEUP, Whose, emit, has_program, has_user_mode, saved, threads_ring, user_stack,
};
use crate::task::{byte, field, word};

/// `struct bpf_iter__task` (kernel/bpf/task_iter.c).
#[repr(C)]
pub struct Context {
    meta: *const Meta,
    task: *mut task_struct,
}

/// `struct bpf_iter_meta` (include/linux/bpf.h).
#[repr(C)]
pub struct Meta {
    file: *const c_void,
    session: u64,
    /// Which thread of the pass this is.
    number: u64,
}

/// `PF_KTHREAD` (include/linux/sched.h).
const KERNEL_THREAD: u32 = 0x0020_0000;
/// `PF_EXITING`.
const EXITING: u32 = 4;
/// A stack without tables is walked again after 1, 2, 4 … times 2^26 ns (67 ms), so often.
const MOST_TRIES: u32 = 12;
const AGAIN: u32 = 26;

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter.s/task")]
pub extern "C" fn walk_threads(context: *const Context) -> i32 {
    // SAFETY: the kernel passes its context; the task is null at the end of the pass.
    let task = unsafe { (*context).task };
    if task.is_null() {
        return 0;
    }
    let zero = 0u32;
    let Some(pass) = PASS.get_ptr_mut(zero) else { return 0 };
    if !is_current(pass) {
        return 0;
    }
    // SAFETY: a map value.
    let slot = unsafe { (*pass).slot };
    // SAFETY: the kernel's own, valid for the whole program.
    if unsafe { (*(*context).meta).number } == 0
        && let Some(walking) = WALKING.get_ptr_mut(slot)
    {
        // SAFETY: a map value of this reader, which runs one program at a time.
        unsafe { (*walking).began = bpf_ktime_get_ns() };
    }
    if !prepare(task, pass) {
        return 0;
    }
    let (Some(record), Some(walking)) =
        (THREADS_RECORD.get_ptr_mut(slot), WALKING.get_ptr_mut(slot))
    else {
        return 0;
    };
    // SAFETY: map values of this reader, which runs one program at a time.
    let (record, walking) = unsafe { (&mut *record, &mut *walking) };
    if walking.state != STATE_RUNNING as u32 {
        walking.pid = record.header.pid;
        walking.tid = record.header.tid;
        walking.walked += 1;
        // SAFETY: a map value.
        walk_stack(record, task, slot, unsafe { (*pass).kernel_only } != 0);
        walking.tid = 0;
        // It may have been left behind meanwhile.
        if !is_current(pass) {
            return 0;
        }
    }
    finish(task, pass, slot);
    0
}

/// Looks at a thread: whether it is sent. Its record is begun then. A call, as `finish` is, so that
/// its variables are not on the stack while frames are walked: Linux 6.1 counts both together.
#[inline(never)]
fn prepare(task: *mut task_struct, pass: *mut Pass) -> bool {
    // SAFETY: a map value.
    let (slot, epoch, previous) = unsafe { ((*pass).slot, (*pass).epoch, (*pass).previous) };
    let offsets = task_offsets();
    // SAFETY: offsets of fields, from the kernel's own type information; the verifier checks them.
    let (pid, tid) = unsafe { (field(task, offsets.tgid), field(task, offsets.pid)) };
    let wanted = wanted_process();
    if wanted != 0 && pid != wanted {
        return false;
    }
    // SAFETY: as above. Threads of the kernel have no memory of their own.
    if unsafe { field(task, activity_offsets().flags) } & KERNEL_THREAD != 0 {
        return false;
    }
    let Some(walking) = WALKING.get_ptr_mut(slot) else { return false };
    // SAFETY: a map value of this reader.
    let walking = unsafe { &mut *walking };
    walking.visited += 1;
    walking.switches = switches_of(task);
    // SAFETY: as above.
    walking.start = unsafe { word(task, activity_offsets().start as u64) };
    walking.tries = 0;
    walking.previous = previous;
    let began = walking.began;
    // One that ran is sent again, as is one that was not sent.
    let mut known_state = STATE_RUNNING as u32;
    if let Some(known) = SEEN.get_ptr_mut(tid) {
        // SAFETY: a map value; a thread is in one pass at a time.
        let known = unsafe { &mut *known };
        if known.start == walking.start && known.epoch == epoch {
            walking.previous = known.met;
            if known.switches == walking.switches {
                let now = (began >> AGAIN) as u32;
                let is_due = known.again != 0 && known.again.wrapping_sub(now) as i32 <= 0;
                if !is_due {
                    known_state = known.state;
                }
                walking.tries = known.tries;
            }
        }
        // Most threads end here: each further field is of another cache line, which is not in the cache.
        if stays(task, known_state) {
            known.met = began;
            return false;
        }
        walking.state = state_of(task);
        if walking.state == known_state && known_state != STATE_RUNNING as u32 {
            known.met = began;
            return false;
        }
    } else {
        walking.state = state_of(task);
    }
    // SAFETY: as above. Ending threads have no memory any more.
    if unsafe { word(task, task_mm()) } == 0 {
        return false;
    }
    if is_left_out(pid, UNWANTED_WALL) {
        return false;
    }
    let Some(record) = THREADS_RECORD.get_ptr_mut(slot) else { return false };
    // SAFETY: a map value of this reader.
    fill(unsafe { &mut *record }, task, pid, tid);
    true
}

/// Sends the record of a thread, and notes that it was sent.
#[inline(never)]
fn finish(task: *mut task_struct, pass: *mut Pass, slot: u32) {
    let (Some(record), Some(walking), Some(hot)) = (
        THREADS_RECORD.get_ptr_mut(slot),
        WALKING.get_ptr_mut(slot),
        THREADS_HOT.get_ptr_mut(slot),
    ) else {
        return;
    };
    // One that ends sends its last record itself. After that one this would begin it anew.
    // SAFETY: as in `state_of`.
    if unsafe { field(task, activity_offsets().flags) } & EXITING != 0 {
        return;
    }
    // SAFETY: map values of this reader.
    let (record, walking, hot) = unsafe { (&mut *record, &mut *walking, &mut *hot) };
    // A thread that ran while it was walked had no stack that lay still.
    if state_of(task) == STATE_RUNNING as u32 || switches_of(task) != walking.switches {
        record.header.kernel_frames = 0;
        record.header.user_frames = 0;
        record.header.end = End::KernelOnly as u8;
        walking.state = STATE_RUNNING as u32;
    }
    if wanted_process() != 0 && walking.state == STATE_RUNNING as u32 {
        count(&mut hot.counters, Counter::Skipped as u32, 1);
        return;
    }
    if !send(record, hot, task, walking) {
        return;
    }
    // SAFETY: a map value.
    let epoch = unsafe { (*pass).epoch };
    let met = walking.began;
    let end = record.header.end;
    let lacks_tables = end == End::NoProcess as u8 || end == End::NoMapping as u8;
    let tries = walking.tries;
    let mut again = 0;
    if lacks_tables && tries < MOST_TRIES {
        again = ((met >> AGAIN) as u32).wrapping_add(1 << (tries & 15));
        again += (again == 0) as u32;
    }
    let Walking { start, switches, state, .. } = *walking;
    let seen = Seen { start, switches, state, epoch, again, tries: tries + 1, met };
    let _ = SEEN.insert(record.header.tid, seen, BPF_ANY as u64);
}

/// A thread ends: its last counters, without a stack.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn thread_ended(context: BtfTracePointContext) -> i32 {
    let task: *mut task_struct = context.arg(0);
    let ids = bpf_get_current_pid_tgid();
    let pid = (ids >> 32) as u32;
    let offsets = activity_offsets();
    let zero = 0u32;
    let Some(pass) = PASS.get_ptr(zero) else { return 0 };
    // SAFETY: a map value; as in `state_of`.
    unsafe {
        if field(task, offsets.flags) & KERNEL_THREAD != 0 || is_left_out(pid, UNWANTED_WALL) {
            return 0;
        }
        let voluntary = word(task, offsets.voluntary as u64);
        let start = word(task, offsets.start as u64);
        let mut previous = (*pass).previous;
        if let Some(known) = SEEN.get_ptr(ids as u32)
            && (*known).start == start
            && (*known).epoch == (*pass).epoch
        {
            previous = (*known).met;
        }
        let mut record = Ended {
            header: Header {
                time: bpf_ktime_get_ns(),
                cgroup: 0,
                pid,
                tid: ids as u32,
                cpu: 0,
                generation: 0,
                kernel_frames: 0,
                user_frames: 0,
                end: End::KernelOnly as u8,
                form: FORM_UNWOUND,
                flags: FLAG_THREAD,
                source: SOURCE_WALL,
                stack_bytes: 0,
                weight: 1,
                value: 0,
                app_domain: 0,
                label_set: 0,
                comm: [0; 16],
            },
            words: [
                STATE_ENDED,
                NO_SYSCALL,
                voluntary,
                word(task, offsets.involuntary as u64),
                word(task, offsets.run as u64),
                if offsets.delay == 0 { 0 } else { word(task, offsets.delay as u64) },
                start,
                previous,
            ],
        };
        bpf_get_current_comm((&raw mut record.header.comm).cast(), 16);
        let at: *mut Ended = &raw mut record;
        // One that is lost is known by the process event.
        bpf_ringbuf_output(threads_ring(), at.cast(), size_of::<Ended>() as u64, BPF_RB_NO_WAKEUP);
    }
    0
}

/// A thread's last record.
#[repr(C)]
struct Ended {
    header: Header,
    words: [u64; THREAD_WORDS],
}

/// Whether the process that reads is the one that is to.
#[inline(always)]
fn is_current(pass: *mut Pass) -> bool {
    // SAFETY: a map value, changed by userspace meanwhile: read for itself.
    let reader = unsafe { core::ptr::read_volatile(&raw const (*pass).reader) };
    reader == (bpf_get_current_pid_tgid() >> 32) as u32
}

/// [`STATE_RUNNING`], [`STATE_RUNNABLE`] or the bits of `__state`, as the scheduler has it
/// (`task_is_runnable` in include/linux/sched.h, Linux 6.12).
#[inline(always)]
fn state_of(task: *const task_struct) -> u32 {
    let offsets = activity_offsets();
    // SAFETY: offsets of fields, from the kernel's own type information; the verifier checks them.
    unsafe {
        // Both were words until 7.2: their low bytes hold all of their values.
        if offsets.on_cpu != 0 && byte(task, offsets.on_cpu) != 0 {
            return STATE_RUNNING as u32;
        }
        let is_queued = byte(task, offsets.on_rq) != 0;
        let is_delayed = offsets.delayed != 0 && byte(task, offsets.delayed) != 0;
        let state = field(task, task_offsets().state);
        if is_queued && !is_delayed || state & !WAKING == 0 { STATE_RUNNABLE as u32 } else { state }
    }
}

/// Whether a thread that was blocked in a state, and has not been switched since, is blocked still. It
/// has another state from the moment that it is woken; one that is about to wait, and was preempted
/// before, has been switched.
#[inline(always)]
fn stays(task: *const task_struct, known_state: u32) -> bool {
    let on_cpu = activity_offsets().on_cpu;
    // SAFETY: as in `state_of`.
    unsafe {
        known_state & !WAKING != 0
            && field(task, task_offsets().state) == known_state
            && (on_cpu == 0 || byte(task, on_cpu) == 0)
    }
}

/// `TASK_WAKING` and `TASK_NEW` (include/linux/sched.h): on the way to a run queue.
const WAKING: u32 = 0x200 | 0x800;

#[inline(always)]
fn switches_of(task: *const task_struct) -> u64 {
    let offsets = activity_offsets();
    // SAFETY: as above.
    unsafe {
        word(task, offsets.voluntary as u64).wrapping_add(word(task, offsets.involuntary as u64))
    }
}

#[inline(always)]
fn fill(record: &mut Record, task: *mut task_struct, pid: u32, tid: u32) {
    let header = &mut record.header;
    // SAFETY: a helper without preconditions; `comm` is 16 bytes of the task and of the record.
    unsafe {
        header.time = bpf_ktime_get_ns();
        let comm = task.cast::<u8>().add(task_offsets().comm as usize);
        bpf_probe_read_kernel((&raw mut header.comm).cast(), 16, comm.cast());
    }
    header.pid = pid;
    header.tid = tid;
    header.cpu = 0;
    header.generation = 0;
    header.cgroup = 0;
    header.user_frames = 0;
    header.kernel_frames = 0;
    header.form = FORM_UNWOUND;
    header.flags = FLAG_THREAD;
    header.stack_bytes = 0;
    header.source = SOURCE_WALL;
    header.weight = 1;
    header.value = 0;
    header.app_domain = 0;
    header.label_set = 0;
    header.end = End::KernelOnly as u8;
}

/// The stack of a thread that does not run.
#[inline(always)]
fn walk_stack(record: &mut Record, task: *mut task_struct, slot: u32, kernel_only: bool) {
    let (Some(hot), Some(cache)) = (THREADS_HOT.get_ptr_mut(slot), THREADS_CACHE.get_ptr_mut(slot))
    else {
        return;
    };
    // SAFETY: a map value of this reader.
    let hot = unsafe { &mut *hot };
    hot.hits = 0;
    hot.misses = 0;
    // SAFETY: the record has room for MAX_KERNEL_FRAMES words.
    let bytes = unsafe {
        bpf_get_task_stack(task, (&raw mut record.words).cast(), (MAX_KERNEL_FRAMES * 8) as u32, 0)
    };
    if bytes > 0 {
        let frames = (bytes as u64 >> 3) & 127;
        record.header.kernel_frames = frames as u16;
        if frames == MAX_KERNEL_FRAMES as u64 {
            record.header.flags |= FLAG_KERNEL_CUT;
        }
    }
    if !has_program(task) {
        return;
    }
    // SAFETY: the task is valid for the whole program; the offset lies within pt_regs.
    let (registers, mode) = unsafe {
        let registers = bpf_task_pt_regs(task) as *const u8;
        if !has_user_mode(registers) {
            return;
        }
        (registers, saved(registers, SAVED_MODE))
    };
    if !is_native(mode) {
        record.header.end = End::Compat as u8;
        return;
    }
    let pid = record.header.pid;
    let user = user_of(task);
    if kernel_only || QUARANTINE.get_ptr(pid).is_some() || QUARANTINED_USERS.get_ptr(user).is_some()
    {
        record.header.end = End::UnreadableStack as u8;
        return;
    }
    record.header.end = End::NoProcess as u8;
    let process = PROCESSES.get_ptr_mut(pid);
    let is_known = process.is_some();
    if !user_stack(hot, record, cache, registers, process, Whose::Other(task)) && is_known {
        // What the walk has found as far as it got; nothing is sent raw from here.
        record.header.user_frames = hot.user_frames as u16;
        record.header.end = hot.end as u8;
    }
}

/// The real user of a thread.
#[inline(always)]
fn user_of(task: *const task_struct) -> u32 {
    let (credentials, uid) = user_offsets();
    // SAFETY: as in `state_of`. A thread has credentials as long as it is there.
    unsafe {
        let credentials: *const u8 =
            core::ptr::read_volatile(task.cast::<u8>().add(credentials as usize).cast());
        if credentials.is_null() {
            return 0;
        }
        core::ptr::read_volatile(credentials.add(uid as usize).cast())
    }
}

/// Sends the record; false when there was no room.
#[inline(always)]
fn send(record: &mut Record, hot: &mut Hot, task: *mut task_struct, walking: &Walking) -> bool {
    // SAFETY: as in `state_of`.
    let (syscall, run, delay, is_native) = unsafe {
        let offsets = activity_offsets();
        let registers = bpf_task_pt_regs(task) as *const u8;
        let delay = if offsets.delay == 0 { 0 } else { word(task, offsets.delay as u64) };
        let run = word(task, offsets.run as u64);
        let is_native = has_user_mode(registers) && is_native(saved(registers, SAVED_MODE));
        (saved(registers, SAVED_SYSCALL), run, delay, is_native)
    };
    let Header { kernel_frames, user_frames, .. } = record.header;
    let words = kernel_frames as usize + user_frames as usize;
    let state = walking.state as u64;
    // Calls of 32-bit programs have numbers of their own; a worker of the kernel has that of its maker.
    let is_waiting = state != STATE_RUNNABLE && state != STATE_RUNNING;
    let in_syscall = is_waiting && is_native && (syscall as i32) >= 0;
    // SAFETY: as in `state_of`.
    let voluntary = unsafe { word(task, activity_offsets().voluntary as u64) };
    put(record, words, state);
    put(record, words + 1, if in_syscall { syscall as u32 as u64 } else { NO_SYSCALL });
    put(record, words + 2, voluntary);
    put(record, words + 3, walking.switches.wrapping_sub(voluntary));
    put(record, words + 4, run);
    put(record, words + 5, delay);
    put(record, words + 6, walking.start);
    put(record, words + 7, walking.previous);
    emit(threads_ring(), hot, record, (words + THREAD_WORDS) as u64, BPF_RB_NO_WAKEUP)
}

#[inline(always)]
fn put(record: &mut Record, index: usize, word: u64) {
    // All frames together are fewer.
    record.words[index & 4095] = word;
}
