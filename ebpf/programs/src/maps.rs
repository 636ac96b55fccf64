//! Maps shared with userspace, and the settings patched in before loading.

use aya_ebpf::btf_maps::{Array, ArrayOfMaps, HashMap, LruHashMap, RingBuf};
use aya_ebpf::macros::btf_map;
pub use strata_abi::memory::{Counters, Hot, WINDOW_WORDS};
use strata_abi::memory::{EventPace, KERNEL_NAME_BYTES};
use strata_abi::record::{COUNTER_SLOTS, Header, MAX_WORDS};
use strata_abi::rule::{MAX_RULES, Rule};
use strata_abi::tables::{
    CACHE_LINES, CacheLine, MAX_SEGMENTS, PROCESS_SKIP, Pass, Process, QUARANTINED, SEGMENT_WORDS,
    Walking,
};
use strata_abi::wait_pace::Block;
use strata_abi::wait_slots;

const MMAPABLE: usize = 0x400;

pub type Segment = [u32; SEGMENT_WORDS];

/// pid (thread group, initial namespace) → its extents.
#[btf_map]
pub static PROCESSES: HashMap<u32, Process, 32768> = HashMap::new();

/// Processes that were given their parent's entry since userspace has seen to those before.
#[btf_map]
pub static INHERITED: Array<u64, 1> = Array::new();

/// pid → `UNWANTED_*`. The size is set by userspace.
#[btf_map]
pub static UNWANTED: HashMap<u32, u32, 64> = HashMap::new();

/// pid → where the process has mapped its table of thread contexts.
#[btf_map]
pub static CONTEXTS: HashMap<u32, u64, 4096> = HashMap::new();

/// Extents and rows; segments are added by userspace as they are needed.
#[btf_map]
pub static SEGMENTS: ArrayOfMaps<Array<Segment, 1, MMAPABLE>, { MAX_SEGMENTS as usize }> =
    ArrayOfMaps::new();

/// Rule number → rule.
#[btf_map]
pub static RULES: Array<Rule, { MAX_RULES as usize }, MMAPABLE> = Array::new();

/// What the programs send up. The size is set by userspace.
#[btf_map]
pub static RECORDS: RingBuf<Header, { 4 << 20 }> = RingBuf::new();

/// The CPU sampler's working memory; one entry per CPU, set by userspace.
///
/// Small on purpose: the kernel takes array maps of up to 32 KiB from its linear mapping, where a
/// sample does not have to walk page tables for them; larger ones are mapped page by page.
#[btf_map]
pub static SAMPLER_HOT: Array<Hot, 1> = Array::new();

/// The CPU sampler's record under construction; one entry per CPU, set by userspace.
#[btf_map]
pub static SAMPLER_RECORD: Array<Record, 1> = Array::new();

/// The CPU sampler's cache from pc to rule; one entry per CPU, set by userspace.
#[btf_map]
pub static SAMPLER_CACHE: Array<Cache, 1> = Array::new();

/// The same three for the thread walker, which is not bound to a CPU: one entry per reader, because
/// one that was left behind may still hold its own.
#[btf_map]
pub static THREADS_HOT: Array<Hot, 1> = Array::new();

#[btf_map]
pub static THREADS_RECORD: Array<Record, 1> = Array::new();

#[btf_map]
pub static THREADS_CACHE: Array<Cache, 1> = Array::new();

/// The pass that is on.
#[btf_map]
pub static PASS: Array<Pass, 1> = Array::new();

/// By reader.
#[btf_map]
pub static WALKING: Array<Walking, 1> = Array::new();

/// Processes whose memory a reader hung on: their threads have no user stacks.
#[btf_map]
pub static QUARANTINE: HashMap<u32, u32, { QUARANTINED as usize }> = HashMap::new();

/// Users whose processes' memory is not read: readers hung on several of theirs.
#[btf_map]
pub static QUARANTINED_USERS: HashMap<u32, u32, { QUARANTINED as usize }> = HashMap::new();

/// What was last sent of each thread, by its number; the size is set by userspace. A thread that
/// was evicted is only sent again.
#[btf_map]
pub static SEEN: LruHashMap<u32, Seen, 64> = LruHashMap::new();

/// What passes send up: a ring of its own, so that a host of many threads takes no room from CPU
/// samples. The size is set by userspace.
#[btf_map]
pub static THREADS: RingBuf<Header, 4096> = RingBuf::new();

/// What waits send up: a ring of its own, so that threads that switch without end take no room from
/// CPU samples. The size is set by userspace.
#[btf_map]
pub static WAITS: RingBuf<Header, 4096> = RingBuf::new();

/// The off-CPU sampler's working memory, as the CPU sampler has it: that interrupts this one.
#[btf_map]
pub static OFF_CPU_HOT: Array<Hot, 1> = Array::new();

#[btf_map]
pub static OFF_CPU_RECORD: Array<Record, 1> = Array::new();

#[btf_map]
pub static OFF_CPU_CACHE: Array<Cache, 1> = Array::new();

/// How often each CPU walks; one entry per CPU, set by userspace.
#[btf_map]
pub static OFF_CPU_PACES: Array<CpuPace, 1> = Array::new();

/// How often threads of the whole host were switched out in the last windows: the window in the upper
/// half of each word.
#[btf_map]
pub static OFF_CPU_SWITCHES: Array<u64, { HOST_WINDOWS as usize }> = Array::new();

/// Threads that are switched, by set; the size is set by userspace. Such arrays start at a page, so
/// that a set is a cache line.
#[btf_map]
pub static WAIT_SLOTS: Array<WaitSet, 1, MMAPABLE> = Array::new();

/// When the waits of these threads began; the size is set by userspace.
#[btf_map]
pub static WAIT_TIMES: Array<[WaitTimes; wait_slots::WAYS], 1, MMAPABLE> = Array::new();

/// Which slots have a wait that was sent: a bit each, because most threads that run again or are
/// woken have none.
#[btf_map]
pub static WAITING: Array<u64, { wait_slots::WAITING_WORDS as usize }> = Array::new();

/// What events of the CLR send up. The size is set by userspace.
#[btf_map]
pub static CLR_EVENTS: RingBuf<Header, 4096> = RingBuf::new();

/// Working memory of events: a thread that reports one may lose its CPU to another that does, so
/// there are more than CPUs, each with a flag. How many is set by userspace.
#[btf_map]
pub static CLR_EVENT_HOT: Array<Hot, 1> = Array::new();

#[btf_map]
pub static CLR_EVENT_RECORD: Array<Record, 1> = Array::new();

#[btf_map]
pub static CLR_EVENT_CACHE: Array<Cache, 1> = Array::new();

/// Whether the working memory of the same number is in use.
#[btf_map]
pub static CLR_EVENT_IN_USE: Array<u64, 1> = Array::new();

/// How many events each CPU takes; one entry per CPU, set by userspace.
#[btf_map]
pub static CLR_EVENT_PACES: Array<EventPace, 1> = Array::new();

/// How many events each process reports. One that was evicted is only counted anew.
#[btf_map]
pub static CLR_EVENT_SHARES: LruHashMap<u32, EventShare, 1024> = LruHashMap::new();

/// The name of the kernel's address that was asked for last.
#[btf_map]
pub static KERNEL_NAME: Array<Name, 1> = Array::new();

pub type Name = [u8; KERNEL_NAME_BYTES];

pub type Cache = [CacheLine; CACHE_LINES];

/// A thread as it was last sent.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Seen {
    /// When it started: numbers are used again.
    pub start: u64,
    /// How often it had been switched out.
    pub switches: u64,
    /// As in the record.
    pub state: u32,
    pub epoch: u32,
    /// When it is walked again although it did not run, because tables were missing, in 2^26 ns; 0 if
    /// it need not be.
    pub again: u32,
    /// How often that was.
    pub tries: u32,
    /// When the last pass began in which it was as it is here.
    pub met: u64,
}

/// How many waits have been walked in the current window of time, and so how few of those to come
/// are: one of `2^shift`.
#[repr(C)]
pub struct Pace {
    pub window: u32,
    pub walks: u8,
    pub shift: u8,
    /// A bit for each of eight places in which its thread was blocked in it.
    pub seen: u8,
    /// How often it was looked at for that.
    pub looks: u8,
}

/// Windows whose switches are kept: those of the last but one are complete.
pub const HOST_WINDOWS: u32 = 4;

/// What the waits of one CPU have cost in the current window. As long as it is, no two CPUs write
/// to one cache line.
#[repr(C)]
pub struct CpuPace {
    pub window: u32,
    pub shift: u32,
    /// Stacks sent raw.
    pub raw: u32,
    /// Nanoseconds of walks since the window began, or since the shift grew in it.
    pub spent: u32,
    /// What they may cost in this window.
    pub budget: u32,
    /// Threads that were switched out in it, whether their waits were chosen or not.
    pub switches: u32,
    /// Chosen waits in it that were among the first of their threads.
    pub favoured: u32,
    /// Nanoseconds that were not spent in the windows before.
    pub kept: u32,
    /// Nanoseconds of all walks in this window.
    pub used: u32,
    pub reserved: [u32; 23],
}

/// The events of one process in the current window of time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventShare {
    pub window: u32,
    pub taken: u32,
    /// Stacks sent raw.
    pub raw: u32,
    pub reserved: u32,
}

/// Threads of a set: what each of their switches needs, in one cache line.
#[repr(C)]
pub struct WaitSet {
    /// The thread of each slot, or 0.
    pub owners: [u32; wait_slots::WAYS],
    pub paces: [Pace; wait_slots::WAYS],
    pub blocks: [Block; wait_slots::WAYS],
}

/// A wait that was sent, or is being walked.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WaitTimes {
    pub began: u64,
    /// When its thread was woken; 0 before.
    pub woken: u64,
    /// Nanoseconds from then on in which its thread was still on the CPU, being walked.
    pub walk: u32,
    /// Where that was, and [`WOKEN_THERE`].
    pub cpu: u32,
}

/// It was woken on the CPU that it had left.
pub const WOKEN_THERE: u32 = 1 << 31;

/// A record under construction: header and words are adjacent, as they are sent.
#[repr(C)]
pub struct Record {
    pub header: Header,
    pub words: [u64; MAX_WORDS],
}

/// User frames of a record at most (`--max-frames`).
#[unsafe(no_mangle)]
static MAX_FRAMES: u32 = 1024;

/// Wakes userspace once this much of the ring is filled; else it drains on its own timer.
#[unsafe(no_mangle)]
static WAKEUP_BYTES: u64 = 1 << 20;

/// Offset of `mm` in `struct task_struct`; 0 when it is not known.
#[unsafe(no_mangle)]
static TASK_MM: u64 = 0;
/// Offset of `start_code` in `struct mm_struct`; 0 when it is not known.
#[unsafe(no_mangle)]
static MM_START_CODE: u64 = 0;
/// Offset of the user's thread pointer in `struct task_struct`; 0 when it is not known.
#[unsafe(no_mangle)]
static TASK_THREAD_POINTER: u64 = 0;

/// Offsets of `thread_pid` in `struct task_struct`, and of `level` and `numbers` in `struct pid`;
/// 0 when they are not known.
#[unsafe(no_mangle)]
static TASK_THREAD_PID: u64 = 0;
#[unsafe(no_mangle)]
static PID_LEVEL: u64 = 0;
#[unsafe(no_mangle)]
static PID_NUMBERS: u64 = 0;
/// What the kernel keeps of probes that wait for functions to return; 0 where it has no such probes.
#[unsafe(no_mangle)]
static TASK_UTASK: u64 = 0;
#[unsafe(no_mangle)]
static UTASK_SLOT: u64 = 0;
#[unsafe(no_mangle)]
static UTASK_INSTRUCTION: u64 = 0;
#[unsafe(no_mangle)]
static UTASK_INSTANCES: u64 = 0;
#[unsafe(no_mangle)]
static INSTANCE_STACK: u64 = 0;
#[unsafe(no_mangle)]
static INSTANCE_ORIGINAL: u64 = 0;
#[unsafe(no_mangle)]
static INSTANCE_NEXT: u64 = 0;

/// The process whose threads are walked.
#[unsafe(no_mangle)]
static WANTED_PROCESS: u32 = 0;

/// Offsets in `struct task_struct`.
#[unsafe(no_mangle)]
static TASK_TGID: u32 = 0;
#[unsafe(no_mangle)]
static TASK_PID: u32 = 0;
#[unsafe(no_mangle)]
static TASK_STATE: u32 = 0;
#[unsafe(no_mangle)]
static TASK_COMM: u32 = 0;

/// Further ones, of passes over all threads; 0 for a field that the kernel does not have.
#[unsafe(no_mangle)]
static TASK_FLAGS: u32 = 0;
#[unsafe(no_mangle)]
static TASK_ON_CPU: u32 = 0;
#[unsafe(no_mangle)]
static TASK_ON_RQ: u32 = 0;
#[unsafe(no_mangle)]
static TASK_DELAYED: u32 = 0;
#[unsafe(no_mangle)]
static TASK_VOLUNTARY: u32 = 0;
#[unsafe(no_mangle)]
static TASK_INVOLUNTARY: u32 = 0;
#[unsafe(no_mangle)]
static TASK_START: u32 = 0;
#[unsafe(no_mangle)]
static TASK_RUN: u32 = 0;
#[unsafe(no_mangle)]
static TASK_DELAY: u32 = 0;

/// Offsets of `cred` in `struct task_struct`, and of `uid` in `struct cred`.
#[unsafe(no_mangle)]
static TASK_CRED: u32 = 0;
#[unsafe(no_mangle)]
static CRED_UID: u32 = 0;

/// Nanoseconds that a CPU may spend on switches and on walks in a window of time, on average.
#[unsafe(no_mangle)]
static WAIT_BUDGET: u32 = 300_000;

/// CPUs that share the host's budget.
#[unsafe(no_mangle)]
static WAIT_CPUS: u32 = 1;

/// A window of time is `2^WINDOW_SHIFT` of the kernel's ticks.
#[unsafe(no_mangle)]
static WINDOW_SHIFT: u32 = 5;

/// Which threads share a set of slots (`wait_slots::set_of`): chosen anew at each start.
#[unsafe(no_mangle)]
static WAIT_SEED: u32 = 1;

/// Sets of working memory for events of the CLR.
#[unsafe(no_mangle)]
static CLR_EVENT_SETS: u32 = 1;

#[inline(always)]
pub fn clr_event_sets() -> u32 {
    setting(&CLR_EVENT_SETS)
}

#[inline(always)]
pub fn wait_budget() -> u32 {
    setting(&WAIT_BUDGET)
}

#[inline(always)]
pub fn wait_cpus() -> u32 {
    setting(&WAIT_CPUS)
}

#[inline(always)]
pub fn wait_seed() -> u32 {
    setting(&WAIT_SEED)
}

#[inline(always)]
pub fn window_shift() -> u32 {
    setting(&WINDOW_SHIFT)
}

/// Where a thread's real user is: in its credentials, and where those are.
#[inline(always)]
pub fn user_offsets() -> (u32, u32) {
    (setting(&TASK_CRED), setting(&CRED_UID))
}

/// Where the thread walker finds what it needs of a task.
pub struct TaskOffsets {
    pub tgid: u32,
    pub pid: u32,
    pub state: u32,
    pub comm: u32,
}

/// Where a thread has for how long it has run (`se.sum_exec_runtime`).
#[inline(always)]
pub fn task_run() -> u64 {
    setting(&TASK_RUN) as u64
}

/// What a switch needs of a thread: where its number and its state are.
#[inline(always)]
pub fn switch_offsets() -> (u32, u32) {
    (setting(&TASK_PID), setting(&TASK_STATE))
}

#[inline(always)]
pub fn task_offsets() -> TaskOffsets {
    TaskOffsets {
        tgid: setting(&TASK_TGID),
        pid: setting(&TASK_PID),
        state: setting(&TASK_STATE),
        comm: setting(&TASK_COMM),
    }
}

/// Where passes find what a thread does and has done.
pub struct ActivityOffsets {
    pub flags: u32,
    pub on_cpu: u32,
    pub on_rq: u32,
    pub delayed: u32,
    pub voluntary: u32,
    pub involuntary: u32,
    pub start: u32,
    pub run: u32,
    pub delay: u32,
}

#[inline(always)]
pub fn activity_offsets() -> ActivityOffsets {
    ActivityOffsets {
        flags: setting(&TASK_FLAGS),
        on_cpu: setting(&TASK_ON_CPU),
        on_rq: setting(&TASK_ON_RQ),
        delayed: setting(&TASK_DELAYED),
        voluntary: setting(&TASK_VOLUNTARY),
        involuntary: setting(&TASK_INVOLUNTARY),
        start: setting(&TASK_START),
        run: setting(&TASK_RUN),
        delay: setting(&TASK_DELAY),
    }
}

/// Where a thread's numbers in its PID namespaces are.
pub struct PidOffsets {
    pub thread_pid: u64,
    pub level: u64,
    pub numbers: u64,
}

#[inline(always)]
pub fn pid_offsets() -> PidOffsets {
    PidOffsets {
        thread_pid: setting(&TASK_THREAD_PID),
        level: setting(&PID_LEVEL),
        numbers: setting(&PID_NUMBERS),
    }
}

/// See [`crate::probed`].
pub mod probe_offsets {
    use super::*;

    macro_rules! offsets {
        ($($name:ident $global:ident)*) => {
            $(
                #[inline(always)]
                pub fn $name() -> u64 {
                    setting(&$global)
                }
            )*
        };
    }

    offsets! {
        of_task TASK_UTASK
        slot UTASK_SLOT
        instruction UTASK_INSTRUCTION
        instances UTASK_INSTANCES
        stack INSTANCE_STACK
        return_address INSTANCE_ORIGINAL
        next INSTANCE_NEXT
    }
}

#[inline(always)]
pub fn wanted_process() -> u32 {
    setting(&WANTED_PROCESS)
}

/// A setting patched by userspace: read so that the compiler cannot fold its default in.
#[inline(always)]
fn setting<T: Copy>(place: &'static T) -> T {
    // SAFETY: a reference to a live, initialised static.
    unsafe { core::ptr::read_volatile(place) }
}

#[inline(always)]
pub fn max_frames() -> u32 {
    setting(&MAX_FRAMES)
}

#[inline(always)]
pub fn task_mm() -> u64 {
    setting(&TASK_MM)
}

#[inline(always)]
pub fn mm_start_code() -> u64 {
    setting(&MM_START_CODE)
}

#[inline(always)]
pub fn task_thread_pointer() -> u64 {
    setting(&TASK_THREAD_POINTER)
}

#[inline(always)]
pub fn wakeup_bytes() -> u64 {
    setting(&WAKEUP_BYTES)
}

/// Whether a process is left out, or one kind of its threads' time (`UNWANTED_*`). A call: there is little room on
/// the stacks of those that ask.
#[inline(never)]
pub fn is_left_out(pid: u32, kind: u32) -> bool {
    // SAFETY: map values.
    unsafe {
        PROCESSES.get_ptr(pid).is_some_and(|process| (*process).flags & PROCESS_SKIP != 0)
            || UNWANTED.get_ptr(pid).is_some_and(|unwanted| *unwanted & kind != 0)
    }
}

#[inline(always)]
pub fn count(counters: &mut Counters, counter: u32, by: u64) {
    let slot = counter as usize & (COUNTER_SLOTS - 1);
    counters[slot] += by;
}
