//! The memory the kernel searches: segments, extents, process entries.
//!
//! A *segment* is the single 4 MiB value of an mmapable BPF array. Userspace writes it through
//! a mapping, the kernel reads it with plain loads: one helper call finds the segment, none is
//! needed per search step, and the same maps are legal in sleepable programs.
//!
//! In segments lie *extents* (64 bytes; a process's executable mappings, sorted by address)
//! and, per file, *pieces*: an index of one word per 256 bytes of text, then the rows.
//!
//! A *row* is `pc & 0xffff` in the low half and a rule number in the high half; it holds from
//! its pc up to the next row. Index entry `i` is the number of the first row at or after page
//! `i`'s start; the row that covers an address is the last one not beyond it, which may be the
//! row before the page's first. Row 0 of a piece lies at or before the piece's start, so that
//! "the row before" always exists; there is one index entry more than there are pages.
//!
//! Invariant: nothing a process entry can reach is overwritten within the grace period after
//! the entry was replaced.

/// `u32` words in a segment.
pub const SEGMENT_WORDS: usize = 1 << 20;
pub const SEGMENT_BYTES: usize = SEGMENT_WORDS * 4;
/// Segments the outer map has room for.
pub const MAX_SEGMENTS: u32 = 1024;
/// Text is indexed in pages of this many bytes.
pub const PAGE_SHIFT: u32 = 8;
/// Rows of one piece at most: index and rows of a piece fit one segment many times over.
pub const MAX_PIECE_ROWS: u32 = 200_000;
/// Pages of one piece at most (64 MiB of text).
pub const MAX_PIECE_PAGES: u32 = 1 << 18;
/// Extents of one process at most.
pub const MAX_EXTENTS: u32 = 4096;
/// Words of an extent.
pub const EXTENT_WORDS: usize = 16;

#[inline(always)]
#[must_use]
pub const fn row(pc: u64, rule: u16) -> u32 {
    (pc as u32 & 0xffff) | (rule as u32) << 16
}

#[inline(always)]
#[must_use]
pub const fn row_rule(row: u32) -> u16 {
    (row >> 16) as u16
}

/// What an extent's code is, and so how it is unwound.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentKind {
    /// Rows follow.
    Rows = 0,
    /// No table: follow the frame pointer (JIT code, files that could not be read).
    FramePointer = 1,
    /// Code that a runtime will announce, and has not yet: as if nothing were mapped here.
    Unannounced = 2,
}

/// One executable mapping of a process, or the part of one that a piece covers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    pub start: u64,
    pub end: u64,
    /// Address in the process minus address in the file's own numbering.
    pub bias: u64,
    /// Where the piece's first page starts, in the file's own numbering, in pages.
    pub first_page: u64,
    /// [`ExtentKind`].
    pub kind: u32,
    pub segment: u32,
    /// Word offset of the index in its segment.
    pub index: u32,
    /// Word offset of the rows.
    pub rows: u32,
    pub pages: u32,
    pub row_count: u32,
    /// Not read by the kernel: extents of generated code with the same era other than 0 agree.
    pub era: u32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<Extent>() == EXTENT_WORDS * 4);

/// What the kernel knows of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Process {
    pub segment: u32,
    /// Word offset of the extents.
    pub offset: u32,
    pub count: u32,
    /// Invalidates cached rules; from one global counter, never 0.
    pub generation: u32,
    /// Raw stacks the sampler may still send for code it finds no extent for (see `record`).
    pub captures: u32,
    /// `PROCESS_*`.
    pub flags: u32,
}

/// Samples of this process are not wanted: nothing is read and nothing is sent.
pub const PROCESS_SKIP: u32 = 1;

/// Stacks that lead through unannounced code are sent raw, while captures last. Else such code is
/// taken to keep a frame pointer, which nearly all of it does.
pub const PROCESS_PATIENT: u32 = 2;

const _: () = assert!(size_of::<Process>() == 24);

/// Processes that are given their parent's entry at most before userspace has seen to those before:
/// one that forks without end would take the place of all others.
pub const MAX_INHERITED: u64 = 4096;

/// Time of this process's threads that is not wanted: of passes over threads, of waits. Apart from the process's
/// entry, which comes and goes with its tables.
pub const UNWANTED_WALL: u32 = 1;
pub const UNWANTED_OFF_CPU: u32 = 2;
/// Processes at most of which some is not wanted; of others it is taken, and dropped at the flush.
pub const UNWANTED_PROCESSES: u32 = 1 << 14;

/// One line of the per-CPU cache from pc to rule.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CacheLine {
    pub pc: u64,
    pub generation: u32,
    pub rule: u32,
}

const _: () = assert!(size_of::<CacheLine>() == 16);

/// Lines of the cache; a power of two.
pub const CACHE_LINES: usize = 2048;

/// What passes over threads have in common until userspace says otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pass {
    /// The process that reads the iterator (initial namespace). One that was left behind and comes
    /// back is not it, and does nothing any more.
    pub reader: u32,
    /// The reader's own scratch memory, and its place in `WALKING`.
    pub slot: u32,
    /// Threads that were sent under another epoch are sent again.
    pub epoch: u32,
    /// 1: no process's memory is read, because as many readers hang as may.
    pub kernel_only: u32,
    /// When the last complete pass over all threads began, by the monotonic clock; 0 before the first
    /// one is over.
    pub previous: u64,
}

const _: () = assert!(size_of::<Pass>() == 24);

/// What a reader is walking: written before a thread's memory is read, which may never end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Walking {
    pub pid: u32,
    pub tid: u32,
    /// Threads looked at so far.
    pub visited: u64,
    /// Of these, threads whose stacks were walked.
    pub walked: u64,
    /// Of the thread that is looked at: when it started, how often it was switched out, its state,
    /// and how often it was walked without tables.
    pub start: u64,
    pub switches: u64,
    pub state: u32,
    pub tries: u32,
    /// When the last pass began that has met the thread, or that would have.
    pub previous: u64,
    /// When this pass over a target, or over all threads, began.
    pub began: u64,
}

const _: () = assert!(size_of::<Walking>() == 64);

/// Readers at once: the current one and those that were left behind.
pub const READERS: u32 = 33;
/// Threads that are remembered from one pass to the next. Others are walked each time.
pub const SEEN_THREADS: u32 = 1 << 16;
/// Processes at most whose memory is not read, and users.
pub const QUARANTINED: u32 = 1024;
