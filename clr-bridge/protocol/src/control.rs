//! The owner's commands to the bridge: wishes and requests, and how the bridge reads them.
//!
//! The owner writes, the bridge reads; the owner's writes are copies by the kernel, not stores, so
//! what lies here carries a checksum, and half a change is read again a little later.
//!
//! An owner starts with a new *epoch*. Requests carry the epoch in their sequence number, so what a
//! killed owner left behind is never mistaken for a request of the next one.
//!
//! Invariant: for any bytes in the control page the bridge does bounded work; the worst case is an
//! ignored request.

use std::sync::atomic::Ordering;

use crate::layout::{
    ANSWER_SLOTS, ANSWERED, BEAT, REQUEST_SLOTS, REQUESTS, RequestSlot, WISHES, WishBlock, checksum,
};
use crate::memory::{Memory, Word};
use crate::status;

/// Bits of [`Wishes::flags`].
pub mod wish {
    use crate::clr_event::kind;

    /// Report methods as they are compiled, modules, threads and AppDomains; at the start also what
    /// exists already.
    pub const JIT_EVENTS: u64 = 1;
    /// Add the IL map to every compiled method.
    pub const IL_MAPS: u64 = 2;
    /// Detach: stop everything and leave the process.
    pub const DETACH: u64 = 4;
    /// Write diagnostics of [`crate::record::Level::Debug`] too.
    pub const VERBOSE: u64 = 8;
    /// Report exceptions ([`crate::clr_event`]).
    pub const EXCEPTIONS: u64 = 16;
    /// Report waits for locks.
    pub const LOCKS: u64 = 32;
    /// Report allocations.
    pub const ALLOCATIONS: u64 = 64;
    /// Report exceptions with their messages.
    pub const MESSAGES: u64 = 128;
    /// Report pauses for garbage collections.
    pub const PAUSES: u64 = 256;
    /// Watch sampled objects, and report them when they are allocated.
    pub const OBJECTS: u64 = 512;
    /// Report waits for handles.
    pub const WAIT_HANDLES: u64 = 1024;
    /// Have the runtime walk the stacks of events, and push them into the ring: the owner cannot have
    /// a probe in the process. Of the owner alone, who reads the ring.
    pub const SNAPSHOTS: u64 = 2048;
    /// The bits above that are about events, and that readers beside the owner may set.
    pub const EVENTS: u64 = {
        let (mut all, mut at) = (MESSAGES, 0);
        while at < OF_KINDS.len() {
            all |= OF_KINDS[at].1;
            at += 1;
        }
        all
    };
    /// The kinds of events ([`kind`]), and the wish for each.
    pub const OF_KINDS: [(u8, u64); 6] = [
        (kind::EXCEPTION, EXCEPTIONS),
        (kind::LOCK, LOCKS),
        (kind::ALLOCATION, ALLOCATIONS),
        (kind::OBJECT, OBJECTS),
        (kind::PAUSE, PAUSES),
        (kind::WAIT_HANDLE, WAIT_HANDLES),
    ];
}

/// Bits of [`Wishes::capabilities`]: what the owner's reader can do.
pub mod capability {
    /// It notices that segments were given back, and goes on with those that are there
    /// ([`crate::compaction`]). Without it, the bridge only appends.
    pub const COMPACTION: u64 = 1;
    /// All of this version's.
    pub const ALL: u64 = COMPACTION;
}

/// Numbers of [`Request::kind`].
pub mod request {
    /// `first` is an address: answered by a `Method` of kind `Resolved` or `NotFound`.
    pub const RESOLVE_IP: u32 = 1;
    /// `first` is where a method's code starts, `second` its function: answered by an `IlMap`.
    pub const IL_MAP: u32 = 2;
    /// `first` is an AppDomain: it is reported again.
    pub const APP_DOMAIN: u32 = 3;
    /// `first` and `second` are for the bridge's binding to other libraries.
    pub const REBIND: u32 = 4;
}

/// The owner's wishes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wishes {
    /// The owner's epoch: each owner takes a number different from the last one's. 0: no owner yet.
    pub epoch: u32,
    /// Counted up with every change.
    pub generation: u32,
    /// Bits of [`wish`].
    pub flags: u64,
    /// In the owner's PID namespace; for display only.
    pub owner_pid: u32,
    /// At most 32 bytes; for display only.
    pub owner_name: String,
    /// Events per second and type, for the event types that have a rate.
    pub rates: [u32; 32],
    /// Bits of [`capability`].
    pub capabilities: u64,
}

impl Wishes {
    #[must_use]
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn to_bytes(&self) -> [u8; size_of::<WishBlock>()] {
        let mut block = WishBlock {
            epoch: self.epoch,
            owner_pid: self.owner_pid,
            generation: u64::from(self.generation),
            flags: self.flags,
            rates: self.rates,
            capabilities: self.capabilities,
            ..WishBlock::zero()
        };
        let end = self.owner_name.floor_char_boundary(block.owner_name.len());
        for (to, from) in block.owner_name.iter_mut().zip(self.owner_name.bytes().take(end)) {
            *to = from;
        }
        block.check = checksum(block.to_bytes().get(8..).unwrap_or_default());
        block.to_bytes()
    }

    pub(crate) fn from_bytes(bytes: &[u8; size_of::<WishBlock>()]) -> Option<Self> {
        let block = WishBlock::from_bytes(bytes);
        if block.check != checksum(bytes.get(8..)?) {
            return None;
        }
        Some(Self {
            epoch: block.epoch,
            generation: block.generation as u32,
            flags: block.flags,
            owner_pid: block.owner_pid,
            owner_name: status::text(&block.owner_name),
            rates: block.rates,
            capabilities: block.capabilities,
        })
    }
}

/// A request of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// Epoch in the upper half, number from 1 in the lower.
    pub sequence: u64,
    /// One of [`request`].
    pub kind: u32,
    pub first: u64,
    pub second: u64,
}

impl Request {
    pub(crate) fn to_bytes(self) -> [u8; size_of::<RequestSlot>()] {
        let mut slot = RequestSlot {
            sequence: self.sequence,
            first: self.first,
            second: self.second,
            kind: self.kind,
            check: 0,
        };
        slot.check = checksum(&slot.to_bytes()) as u32;
        slot.to_bytes()
    }

    pub(crate) fn from_bytes(bytes: &[u8; size_of::<RequestSlot>()]) -> Option<Self> {
        let slot = RequestSlot::from_bytes(bytes);
        let unchecked = RequestSlot { check: 0, ..slot };
        (slot.check == checksum(&unchecked.to_bytes()) as u32).then_some(Self {
            sequence: slot.sequence,
            kind: slot.kind,
            first: slot.first,
            second: slot.second,
        })
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// The log has the answer.
    Answered = 1,
    /// The bridge does not support this kind of request.
    Unknown = 2,
    /// The runtime refused.
    Failed = 3,
    /// The log has no room for the answer.
    Lost = 4,
}

impl Outcome {
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Answered),
            2 => Some(Self::Unknown),
            3 => Some(Self::Failed),
            4 => Some(Self::Lost),
            _ => None,
        }
    }

    /// The word of the answer to a request.
    pub(crate) fn pack(self, sequence: u64) -> u64 {
        sequence << 8 | self as u64
    }

    /// The outcome in a word, if it is of this request.
    pub(crate) fn unpack(word: u64, sequence: u64) -> Option<Self> {
        (word >> 8 == sequence & (u64::MAX >> 8)).then_some(word as u8).and_then(Self::from_byte)
    }
}

/// The slot that a sequence number means.
pub(crate) fn slot_of(sequence: u64) -> usize {
    sequence as usize & (REQUEST_SLOTS - 1)
}

/// The control page as the bridge sees it. Only its lookup thread uses this.
#[derive(Debug)]
pub struct ControlReader<'a, M> {
    memory: &'a M,
}

impl<'a, M: Memory> ControlReader<'a, M> {
    pub fn new(memory: &'a M) -> Self {
        Self { memory }
    }

    fn load(&self, offset: usize) -> u64 {
        self.memory.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn copy<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        for (number, chunk) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *chunk = self.load(offset + 8 * number).to_le_bytes();
        }
        bytes
    }

    /// The wishes; `None` while the owner is changing them, and before the first owner.
    #[must_use]
    pub fn wishes(&self) -> Option<Wishes> {
        Wishes::from_bytes(&self.copy(WISHES)).filter(|wishes| wishes.epoch != 0)
    }

    /// Changes on every poll of the owner.
    #[must_use]
    pub fn beat(&self) -> u64 {
        self.load(BEAT)
    }

    /// The next request of the owner with this epoch, after the last one answered.
    #[must_use]
    pub fn next_request(&self, epoch: u32) -> Option<Request> {
        let answered = self.load(ANSWERED);
        let number = if (answered >> 32) as u32 == epoch { answered as u32 } else { 0 };
        let sequence = u64::from(epoch) << 32 | u64::from(number.checked_add(1)?);
        let offset = REQUESTS + slot_of(sequence) * size_of::<RequestSlot>();
        Request::from_bytes(&self.copy(offset)).filter(|request| request.sequence == sequence)
    }

    /// Publishes the outcome of the request from [`ControlReader::next_request`], after its answer
    /// has been appended to the log.
    pub fn answer(&self, request: &Request, outcome: Outcome) {
        let slot = ANSWER_SLOTS + 8 * slot_of(request.sequence);
        if let Some(word) = self.memory.word(slot) {
            word.store(outcome.pack(request.sequence), Ordering::Release);
        }
        if let Some(word) = self.memory.word(ANSWERED) {
            word.store(request.sequence, Ordering::Release);
        }
    }
}
