//! What the kernel sends up, and what it counts.
//!
//! A record is a [`Header`] and then words. An *unwound* record's words are its kernel frames,
//! then its user frames, both innermost first. A *raw* record (the kernel had no tables yet for
//! this code) has [`RAW_STACK_WORD`] words of kernel frames and registers at fixed places, and
//! then the user stack's bytes as they were, and those of the thread's other stack where a program
//! of Go has one: userspace unwinds them once it knows the process.
//!
//! Invariant: `size_of(Header) + 8 * words` is the record's length, for both forms.

use crate::epilogue::Code;
use crate::register;

/// Kernel frames of a record at most.
pub const MAX_KERNEL_FRAMES: usize = 127;
/// User frames of a record at most.
pub const MAX_USER_FRAMES: usize = 1024;

/// Set in a user frame whose address is the instruction itself (a leaf, or interrupted by a
/// signal), not a return address.
pub const FRAME_EXACT: u64 = 1 << 63;
/// Set in a user frame that was reached by following a frame pointer, not a rule.
pub const FRAME_BY_POINTER: u64 = 1 << 62;
/// The address in a user frame.
pub const FRAME_ADDRESS: u64 = (1 << 62) - 1;

/// Why a user stack ends where it ends.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// The outermost frame was reached.
    Complete = 0,
    /// More frames than [`MAX_USER_FRAMES`] or than were asked for.
    FrameLimit = 1,
    /// An address in no known mapping.
    NoMapping = 2,
    /// A frame-pointer chain that leads nowhere.
    BrokenChain = 3,
    /// Stack memory that could not be read.
    UnreadableStack = 4,
    /// Call frame information that strata cannot express.
    UnsupportedRule = 5,
    /// A caller's frame at or below its callee's.
    StackNotGrowing = 6,
    /// The process was not known yet.
    NoProcess = 7,
    /// A 32-bit process.
    Compat = 8,
    /// No user stack at all: a kernel thread, a process that has given its memory back, or one
    /// whose program is just being replaced.
    KernelOnly = 9,
    /// A raw stack was cut before its end.
    CaptureLimit = 10,
    /// A return address of 0, where neither a thread, a program nor a coroutine starts: stack memory that
    /// reads as zeros.
    NoReturnAddress = 11,
    /// No stack at all: the time of a thread that came and went between two passes over threads.
    NotWalked = 12,
}

pub const END_COUNT: usize = 13;

impl End {
    pub const ALL: [Self; END_COUNT] = [
        Self::Complete,
        Self::FrameLimit,
        Self::NoMapping,
        Self::BrokenChain,
        Self::UnreadableStack,
        Self::UnsupportedRule,
        Self::StackNotGrowing,
        Self::NoProcess,
        Self::Compat,
        Self::KernelOnly,
        Self::CaptureLimit,
        Self::NoReturnAddress,
        Self::NotWalked,
    ];

    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(byte as usize).copied()
    }
}

/// What a record holds after its header.
pub const FORM_UNWOUND: u8 = 0;
pub const FORM_RAW: u8 = 1;
/// The end of a wait: no stack. `value` is when the wait began, and its words are when the thread was
/// woken, or 0; and for how long it was walked from then on, with [`WOKEN_BY_OWN_CPU`].
pub const FORM_ENDED: u8 = 2;
pub const ENDED_WORDS: usize = 2;
/// The thread was woken by the CPU that it had left, which could do so only when it had been walked.
pub const WOKEN_BY_OWN_CPU: u64 = 1 << 63;

/// The last words of a wait's first record, after its frames or its copied stack: the thread's
/// state, and the number of the system call it is in, or [`NO_SYSCALL`].
pub const WAIT_WORDS: usize = 2;
/// The header's `value` of such a record: for how long the thread has run on a CPU since it was started, in
/// nanoseconds, as far as so many bits have it; and above them its state.
pub const RAN_BITS: u32 = 48;
pub const RAN: u64 = (1 << RAN_BITS) - 1;
pub const NO_SYSCALL: u64 = u64::MAX;
/// The state of a thread that would run if it had a CPU.
pub const STATE_RUNNABLE: u64 = 0;

/// The last words of a thread's record ([`FLAG_THREAD`]), after its frames: its state (`__state`,
/// or one of the following), the number of the system call it is in or [`NO_SYSCALL`], how often it
/// was switched out because it waited and because it had to, nanoseconds that it has run and that
/// it has waited for a CPU, when it started, and when the pass before this one began.
pub const THREAD_WORDS: usize = 8;
/// The state of a thread that is on a CPU. Its stack changes, and is not in the record.
pub const STATE_RUNNING: u64 = u32::MAX as u64;
/// The state of a thread that ends.
pub const STATE_ENDED: u64 = STATE_RUNNING - 1;

/// Which kind of sample it is, by its number in the table of kinds (`strata-kinds`, which is not
/// part of the object: userspace asserts that both agree).
pub const SOURCE_CPU: u8 = 0;
pub const SOURCE_WALL: u8 = 1;
pub const SOURCE_OFF_CPU: u8 = 2;
/// First and last of the kinds that the CLR bridge reports.
pub const SOURCE_FIRST_EVENT: u8 = 3;
pub const SOURCE_LAST_EVENT: u8 = 8;
/// Events of one process that are taken in a window of time: what its bridge reports at most. A process
/// that calls the function itself spends its own time, and this much of the ring.
pub const MOST_EVENTS: u32 = 3328;
/// Counters of events by kind: a power of two.
pub const EVENT_KINDS: usize = 8;

const _: () = assert!(((SOURCE_LAST_EVENT - SOURCE_FIRST_EVENT) as usize) < EVENT_KINDS);

/// The counter of a kind of event.
#[inline(always)]
#[must_use]
pub const fn event_slot(source: u8) -> usize {
    source.wrapping_sub(SOURCE_FIRST_EVENT) as usize & (EVENT_KINDS - 1)
}

/// The kernel stack was cut at [`MAX_KERNEL_FRAMES`].
pub const FLAG_KERNEL_CUT: u8 = 1;
/// `app_domain` and `label_set` are the thread's own, read when the sample was taken.
pub const FLAG_CONTEXT: u8 = 2;
/// The sample is the start of a wait: its words end with [`WAIT_WORDS`] more.
pub const FLAG_WAIT: u8 = 4;
/// The end of a wait was noticed late, when the thread was switched out again: its time is when the
/// thread was woken, or, if that is not known, a bound.
pub const FLAG_LATE: u8 = 8;
/// The sample is of one pass over all threads: its words end with [`THREAD_WORDS`] more.
pub const FLAG_THREAD: u8 = 16;
/// The sample is an event of the CLR's: its words end with [`EVENT_WORDS`] more.
pub const FLAG_EVENT: u8 = 32;

/// The last words of an event, after its frames or its copied stack: what the bridge passes with
/// it, as it lay in the process's memory. Its layout is the bridge's (`strata-bridge-protocol`);
/// the first byte is the kind.
pub const EVENT_WORDS: usize = 64;
/// What the program itself reads of it: kind, then weight in the upper half; value.
pub const EVENT_KIND_WORD: usize = 0;
pub const EVENT_VALUE_WORD: usize = 1;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// Number of the control group in the unified hierarchy; raw form only, else 0.
    pub cgroup: u64,
    pub pid: u32,
    pub tid: u32,
    pub cpu: u32,
    /// The process entry's generation that the stack was unwound with.
    pub generation: u32,
    pub kernel_frames: u16,
    pub user_frames: u16,
    /// [`End`].
    pub end: u8,
    /// `FORM_*`.
    pub form: u8,
    pub flags: u8,
    /// `SOURCE_*`.
    pub source: u8,
    /// Raw form: bytes of user stack that follow the registers.
    pub stack_bytes: u32,
    /// How many events the sample stands for.
    pub weight: u32,
    /// What was measured, such as nanoseconds off the CPU; 0 where every sample stands for one
    /// sampling period.
    pub value: u64,
    /// The AppDomain the thread was in; only with [`FLAG_CONTEXT`].
    pub app_domain: u64,
    /// The labels the thread had set; only with [`FLAG_CONTEXT`].
    pub label_set: u64,
    pub comm: [u8; 16],
}

const _: () = assert!(size_of::<Header>() == 88);

/// Raw form: word at which the registers start, in DWARF numbering, then pc.
pub const RAW_REGISTERS_WORD: usize = 128;
/// Raw form: word of the pc.
pub const RAW_PC_WORD: usize = RAW_REGISTERS_WORD + register::COUNT as usize;
/// Raw form: word at which the code around the pc starts ([`crate::epilogue::Code`]).
pub const RAW_CODE_WORD: usize = RAW_PC_WORD + 1;
/// Raw form: address from which on the thread's other stack was copied (Go's goroutine or system
/// stack, whichever the stack pointer is not on), and how many bytes. They follow the stack's.
pub const RAW_OTHER_WORD: usize = RAW_CODE_WORD + size_of::<Code>() / 8;
pub const RAW_OTHER_BYTES_WORD: usize = RAW_OTHER_WORD + 1;
/// Raw form: the stack and frame pointers with which the thread left its goroutine; 0 where it
/// has not.
pub const RAW_LEFT_SP_WORD: usize = RAW_OTHER_BYTES_WORD + 1;
pub const RAW_LEFT_FP_WORD: usize = RAW_LEFT_SP_WORD + 1;
/// Raw form: word at which the stack's bytes start.
pub const RAW_STACK_WORD: usize = (RAW_LEFT_FP_WORD + 1).next_multiple_of(8);
/// Raw form: where the copy of the stack starts. Where a function ends, its tables still say of
/// registers it has taken back already where they were: just below the stack pointer.
#[inline(always)]
#[must_use]
pub const fn raw_stack_start(sp: u64) -> u64 {
    (sp & !7).wrapping_sub(128)
}
/// Raw form: pages of stack at most, the first of which is usually a partial one.
pub const RAW_STACK_PAGES: usize = 15;
pub const RAW_STACK_BYTES: usize = RAW_STACK_PAGES * 4096;
/// Raw form: pages of the other stack at most; events of the CLR have none.
pub const RAW_OTHER_PAGES: usize = 2;
/// The same of waits: they are copied with the run queue locked.
pub const RAW_WAIT_PAGES: usize = 7;
/// The same of events of the CLR: where it dispatches an exception it keeps registers on the stack.
pub const RAW_EVENT_PAGES: usize = 7;

/// Words after the header that a record may need.
pub const MAX_WORDS: usize = RAW_STACK_WORD + RAW_STACK_BYTES / 8 + RAW_OTHER_PAGES * 512;

const _: () =
    assert!(8192 >= RAW_STACK_WORD + (RAW_WAIT_PAGES + RAW_OTHER_PAGES) * 512 + WAIT_WORDS);
const _: () = assert!(MAX_WORDS < 0x3fff);
const _: () = assert!(MAX_WORDS >= RAW_STACK_WORD + RAW_EVENT_PAGES * 512 + EVENT_WORDS);
const _: () = assert!(MAX_WORDS > 4095 + EVENT_WORDS);

const _: () = assert!(MAX_WORDS >= MAX_KERNEL_FRAMES + MAX_USER_FRAMES + THREAD_WORDS);
const _: () = assert!(RAW_REGISTERS_WORD >= MAX_KERNEL_FRAMES);

/// Counters, one per CPU; index into the counter array.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Records sent up.
    Samples = 0,
    /// Ticks that found the CPU idle.
    Idle = 1,
    /// Records the ring had no room for.
    RingFull = 2,
    /// Raw stacks sent.
    Raw = 3,
    /// The pc cache had the rule.
    CacheHit = 4,
    /// It had not.
    CacheMiss = 5,
    /// Samples of processes that are not wanted.
    Skipped = 6,
    /// Waits of threads that found no slot.
    Crowded = 7,
    /// First of [`END_COUNT`] counters: how user stacks ended.
    FirstEnd = 8,
}

pub const COUNTERS: usize = Counter::FirstEnd as usize + END_COUNT;

/// Room for counters in a CPU's working memory: whole cache lines.
pub const COUNTER_SLOTS: usize = 32;
/// Words of a CPU's working memory, which starts with its counters.
pub const HOT_WORDS: usize = 305;

const _: () = assert!(COUNTERS <= COUNTER_SLOTS);
