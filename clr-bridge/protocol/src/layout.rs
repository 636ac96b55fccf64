//! Where everything lies: sizes, offsets and the fixed structures of the shared memory.
//!
//! The tables that explain these numbers are in the [crate's documentation](crate). Everything is
//! little-endian, every offset counts from the start of its file, structures have no padding.
//!
//! Invariant: a number of the layout stands here and nowhere else, and version 1 means exactly
//! these.

/// The version that this crate's reader supports.
pub const VERSION: u32 = 1;

pub const MAIN_NAME: &std::ffi::CStr = c"strata-clr";
pub const SEGMENT_NAME: &std::ffi::CStr = c"strata-clr-log";
pub const MAIN_MAGIC: [u8; 8] = *b"STRTCLR\0";
pub const SEGMENT_MAGIC: [u8; 8] = *b"STRTLOG\0";

const PAGE: usize = 4096;

/// Bytes of the main file.
pub const MAIN_SIZE: usize = 2 << 20;
/// Bytes of a log segment.
pub const SEGMENT_SIZE: usize = 4 << 20;
/// The most log segments of one main file.
pub const MAX_SEGMENTS: usize = 64;

/// Written by the owner.
pub const CONTROL: usize = PAGE;
/// Written by the owner.
pub const REQUESTS: usize = 2 * PAGE;
pub const REQUEST_SLOTS: usize = 256;
/// Written by the bridge, as everything that follows.
pub const STATUS: usize = 4 * PAGE;
pub const ANSWERS: usize = 5 * PAGE;
/// Number of the last request handled; the slots follow at [`ANSWER_SLOTS`].
pub const ANSWERED: usize = ANSWERS;
/// One word for each request slot.
pub const ANSWER_SLOTS: usize = ANSWERS + PAGE / 2;
pub const RING_HEAD: usize = 6 * PAGE;
/// The last whole tail that the bridge saw.
pub const RING_TAIL_SEEN: usize = RING_HEAD + 64;
pub const CONTEXTS: usize = 16 * PAGE;
pub const CONTEXT_SLOTS: usize = 4096;
/// One word for each cell of the ring.
pub const RING_WORDS: usize = CONTEXTS + CONTEXT_SLOTS * size_of::<ContextSlot>();
pub const RING_CELLS: usize = 16384;
pub const RING_CELL: usize = 64;
pub const RING_DATA: usize = RING_WORDS + RING_CELLS * 8;
/// Figures about the watched objects ([`crate::objects`]): samples without a place.
pub const OBJECTS: usize = RING_DATA + RING_CELLS * RING_CELL;
/// One word for each watched object.
pub const OBJECT_WORDS: usize = OBJECTS + PAGE;
pub const OBJECT_SLOTS: usize = 8192;
/// The rest is zero, reserved for later versions.
pub const MAIN_END: usize = OBJECT_WORDS + OBJECT_SLOTS * 8;

/// Within [`CONTROL`]: the [`WishBlock`].
pub const WISHES: usize = CONTROL;
/// Within [`CONTROL`]: how far the ring has been read, and the same with its bytes reversed.
pub const RING_TAIL: usize = CONTROL + 512;
pub const RING_TAIL_CHECK: usize = CONTROL + 520;
/// Within [`CONTROL`]: incremented by the owner on every poll.
pub const BEAT: usize = CONTROL + 576;
/// Within [`CONTROL`]: the futex that the bridge's thread sleeps on ([`crate::doorbell`]).
pub const DOORBELL: usize = CONTROL + 640;

/// Within [`CONTROL`]: a [`ReaderBlock`] for each reader beside the owner that has wishes.
pub const READER_WISHES: usize = CONTROL + 1024;
pub const READER_SLOTS: usize = 16;

/// Byte of the main file that the owner locks.
pub const OWNER_LOCK: i64 = 0;
/// The bytes that readers with wishes lock, one for each of [`READER_SLOTS`].
pub const READER_LOCKS: i64 = 1;

/// Data of a segment starts here.
pub const SEGMENT_DATA: usize = size_of::<SegmentHeader>();
/// [`SegmentHeader::stamp`], and behind it the order.
pub const SEGMENT_STAMP: usize = 40;
/// How far a segment is reserved, counted from its start.
pub const SEGMENT_TAIL: usize = 64;

/// The largest log record, with its header.
pub const MAX_RECORD: usize = 128 << 10;
/// The largest ring event, with its header.
pub const MAX_EVENT: usize = 16 << 10;

/// A slot of the context table is looked for in this many places, from its first on.
pub const CONTEXT_PROBES: usize = 16;

// As in the crate's documentation.
const _: () = {
    assert!(WISHES == 0x1000 && RING_TAIL == 0x1200 && RING_TAIL_CHECK == 0x1208);
    assert!(BEAT == 0x1240 && DOORBELL == 0x1280 && READER_WISHES == 0x1400);
    assert!(REQUESTS == 0x2000 && STATUS == 0x4000 && ANSWERS == 0x5000);
    assert!(ANSWER_SLOTS == 0x5800 && RING_HEAD == 0x6000 && RING_TAIL_SEEN == 0x6040);
    assert!(CONTEXTS == 0x10000 && RING_WORDS == 0x50000 && RING_DATA == 0x70000);
    assert!(OBJECTS == 0x17_0000 && OBJECT_WORDS == 0x17_1000 && MAIN_END == 0x18_1000);
    assert!(SEGMENT_TAIL == 64 && SEGMENT_DATA == 128);
    assert!(std::mem::offset_of!(SegmentHeader, stamp) == SEGMENT_STAMP);
    assert!(std::mem::offset_of!(SegmentHeader, order) == SEGMENT_STAMP + 8);
};

const _: () = {
    assert!(MAIN_END <= MAIN_SIZE);
    assert!(REQUESTS + REQUEST_SLOTS * size_of::<RequestSlot>() <= STATUS);
    assert!(ANSWER_SLOTS + REQUEST_SLOTS * 8 <= RING_HEAD);
    assert!(RING_HEAD + PAGE <= CONTEXTS);
    assert!(CONTEXT_SLOTS.is_power_of_two() && RING_CELLS.is_power_of_two());
    assert!(WISHES + size_of::<WishBlock>() <= RING_TAIL);
    assert!(READER_WISHES + READER_SLOTS * size_of::<ReaderBlock>() <= REQUESTS);
    assert!(MAX_RECORD < SEGMENT_SIZE - SEGMENT_DATA && MAX_EVENT < RING_CELLS * RING_CELL / 2);
};

/// Declares a structure of little-endian integers with its conversions to and from bytes.
macro_rules! structure {
    ($(#[$about:meta])* $name:ident: $size:literal {
        $($(#[$field_about:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_about])* pub $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $size && 0 $(+ size_of::<$type>())* == $size);

        impl $name {
            /// A structure whose bytes are all zero.
            #[must_use]
            pub const fn zero() -> Self {
                Self { $($field: <$type as Plain>::ZERO,)* }
            }

            #[must_use]
            pub fn from_bytes(bytes: &[u8; $size]) -> Self {
                let mut rest = &bytes[..];
                Self { $($field: <$type as Plain>::take(&mut rest),)* }
            }

            #[must_use]
            pub fn to_bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                let mut rest = &mut bytes[..];
                $(self.$field.put(&mut rest);)*
                bytes
            }
        }
    };
}

/// An integer or an array of integers within a structure.
trait Plain: Sized + Copy {
    const ZERO: Self;
    fn take(rest: &mut &[u8]) -> Self;
    fn put(self, rest: &mut &mut [u8]);
}

macro_rules! plain_integers {
    ($($integer:ty)*) => {$(
        impl Plain for $integer {
            const ZERO: Self = 0;

            fn take(rest: &mut &[u8]) -> Self {
                let Some((head, tail)) = rest.split_first_chunk() else { return 0 };
                *rest = tail;
                Self::from_le_bytes(*head)
            }

            fn put(self, rest: &mut &mut [u8]) {
                let whole = std::mem::take(rest);
                if let Some((head, tail)) = whole.split_first_chunk_mut() {
                    *head = self.to_le_bytes();
                    *rest = tail;
                }
            }
        }
    )*};
}

plain_integers!(u8 u16 u32 u64);

impl<T: Plain, const N: usize> Plain for [T; N] {
    const ZERO: Self = [T::ZERO; N];

    fn take(rest: &mut &[u8]) -> Self {
        std::array::from_fn(|_| T::take(rest))
    }

    fn put(self, rest: &mut &mut [u8]) {
        self.into_iter().for_each(|item| item.put(rest));
    }
}

structure! {
    /// Start of the main file.
    MainHeader: 128 {
        magic: [u8; 8],
        version: u32,
        header_size: u32,
        size: u64,
        /// Random; every segment repeats it.
        id: [u8; 16],
        segment_size: u64,
        max_segments: u32,
        request_slots: u32,
        context_slots: u32,
        context_size: u32,
        ring_cells: u32,
        ring_cell: u32,
        control: u32,
        requests: u32,
        status: u32,
        answers: u32,
        contexts: u32,
        ring_head: u32,
        ring_words: u32,
        ring_data: u32,
        reserved: [u32; 6],
    }
}

impl MainHeader {
    /// The header of this version.
    #[must_use]
    pub const fn new(id: [u8; 16]) -> Self {
        Self {
            magic: MAIN_MAGIC,
            version: VERSION,
            header_size: size_of::<Self>() as u32,
            size: MAIN_SIZE as u64,
            id,
            segment_size: SEGMENT_SIZE as u64,
            max_segments: MAX_SEGMENTS as u32,
            request_slots: REQUEST_SLOTS as u32,
            context_slots: CONTEXT_SLOTS as u32,
            context_size: size_of::<ContextSlot>() as u32,
            ring_cells: RING_CELLS as u32,
            ring_cell: RING_CELL as u32,
            control: CONTROL as u32,
            requests: REQUESTS as u32,
            status: STATUS as u32,
            answers: ANSWERS as u32,
            contexts: CONTEXTS as u32,
            ring_head: RING_HEAD as u32,
            ring_words: RING_WORDS as u32,
            ring_data: RING_DATA as u32,
            reserved: [0; 6],
        }
    }
}

structure! {
    /// Start of a segment. Its tail changes with every record, `stamp` and `order` when its memory is
    /// given back and used again.
    SegmentHeader: 128 {
        magic: [u8; 8],
        version: u32,
        number: u32,
        /// The main file's.
        id: [u8; 16],
        size: u64,
        /// Even while the segment is a part of the log; odd from when its memory is given back until
        /// it is used again. 0 when it was never used before, and `order` is its number.
        stamp: u64,
        /// The position of the segment in the log.
        order: u64,
        reserved: u64,
        tail: u64,
        reserved2: [u64; 7],
    }
}

impl SegmentHeader {
    /// The header of the segment whose position in the log is its number: as in all versions.
    #[must_use]
    pub const fn new(id: [u8; 16], number: u32) -> Self {
        Self::at(id, number, number as u64)
    }

    /// The header of a segment that was never used before, at this position in the log.
    #[must_use]
    pub const fn at(id: [u8; 16], number: u32, order: u64) -> Self {
        let is_first = order == number as u64;
        Self {
            magic: SEGMENT_MAGIC,
            version: VERSION,
            number,
            id,
            size: SEGMENT_SIZE as u64,
            stamp: if is_first { 0 } else { 2 },
            order: if is_first { 0 } else { order },
            reserved: 0,
            tail: SEGMENT_DATA as u64,
            reserved2: [0; 7],
        }
    }
}

structure! {
    /// The owner's wishes in memory; see [`crate::control::Wishes`].
    WishBlock: 256 {
        /// [`checksum`] of the rest. The bytes are not written at once, so the bridge may read half
        /// of a change: it then reads again.
        check: u64,
        epoch: u32,
        owner_pid: u32,
        generation: u64,
        flags: u64,
        owner_name: [u8; 32],
        rates: [u32; 32],
        /// Bits of [`crate::control::capability`].
        capabilities: u64,
        reserved: [u64; 7],
    }
}

structure! {
    /// The wishes of a reader beside the owner; see [`crate::beside`].
    ReaderBlock: 64 {
        /// [`checksum`] of the rest.
        check: u64,
        flags: u64,
        reserved: [u64; 6],
    }
}

structure! {
    /// A request of the owner.
    RequestSlot: 32 {
        /// Epoch in the upper half, number from 1 in the lower.
        sequence: u64,
        first: u64,
        second: u64,
        kind: u32,
        /// Lower half of the [`checksum`] of the rest.
        check: u32,
    }
}

structure! {
    /// The bridge's status.
    StatusPage: 4096 {
        state: u64,
        /// In the process's own PID namespace.
        pid: u64,
        /// Nanoseconds of the monotonic clock.
        created: u64,
        /// Major, minor, build, revision, as the runtime reports them.
        runtime: [u16; 4],
        /// Which `ICorProfilerInfo` the bridge obtained.
        interface: u64,
        /// Segments that exist.
        segments: u64,
        /// Epoch and generation (lower half) of the wishes that are in force.
        obeyed: u64,
        reserved: u64,
        runtime_text: [u8; 64],
        bridge_text: [u8; 64],
        /// Where the function is that is called with events; 0 without one.
        event_function: u64,
        /// Kinds of events that can be wished for, a bit each.
        event_kinds: u64,
        /// Positions in the log of the oldest and of the newest segment.
        oldest_segment: u64,
        newest_segment: u64,
        reserved2: [u64; 4],
        losses: [u64; 32],
        counts: [u64; 32],
        reserved3: [u64; 32],
        /// Bytes of each segment that are committed, in whichever order.
        committed: [u64; 64],
        reserved4: [u64; 320],
    }
}

structure! {
    /// What a thread is doing, for a sampler.
    ContextSlot: 64 {
        /// In the thread's innermost PID namespace; [`CONTEXT_FREE`], [`CONTEXT_GONE`].
        tid: u32,
        /// Odd while the slot is being written.
        sequence: u32,
        app_domain: u64,
        label_set: u64,
        span: u64,
        /// Upper half first, as in its text form.
        trace: [u64; 2],
        root_span: u64,
        /// Counts the threads that have had this slot.
        generation: u64,
    }
}

/// A slot that was never used; a search ends here.
pub const CONTEXT_FREE: u32 = 0;
/// A slot whose thread is gone; a search goes on.
pub const CONTEXT_GONE: u32 = u32::MAX;

/// The first place where a thread's slot may lie (Fibonacci hashing: neighbours spread out).
#[must_use]
pub const fn context_place(tid: u32) -> usize {
    (tid.wrapping_mul(0x9e37_79b9) >> (32 - CONTEXT_SLOTS.trailing_zeros())) as usize
}

structure! {
    /// Start of a log record.
    RecordHeader: 16 {
        /// With this header and the padding to a multiple of 8.
        length: u32,
        kind: u16,
        flags: u8,
        /// `RECORD_*`.
        state: u8,
        /// Nanoseconds of the monotonic clock.
        time: u64,
    }
}

/// Nothing here yet.
pub const RECORD_FREE: u8 = 0;
/// Being written.
pub const RECORD_RESERVED: u8 = 1;
pub const RECORD_COMMITTED: u8 = 2;
/// Nothing more in this segment; only the first 8 bytes of the header are there.
pub const RECORD_END: u8 = 3;

structure! {
    /// Start of an event in the ring; then `frames` words, then `detail` bytes.
    EventHeader: 48 {
        kind: u16,
        frames: u16,
        detail: u32,
        /// Nanoseconds of the monotonic clock.
        time: u64,
        /// In the thread's innermost PID namespace.
        tid: u32,
        flags: u32,
        app_domain: u64,
        values: [u64; 2],
    }
}

/// FNV-1a. It detects a half-written block; it is no protection against forgery.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
