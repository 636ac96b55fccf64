//! Appending to a log segment, by many threads at once and without a lock.
//!
//! A record's first word holds its length, kind, flags and state. The thread that changes the free
//! word at the tail to *reserved* owns the record; it (or the next thread that finds the word
//! taken) moves the tail on; it then writes its bytes and stores the word again as *committed*,
//! releasing. The tail is therefore never past a word whose length is unknown: a thread that dies
//! half-way leaves one record that a reader can step over, and blocks no writer.
//!
//! Words of a fresh segment are zero and each is taken once, so a thread that was asleep with an
//! old tail finds it taken.
//!
//! Invariant: a record lies in one segment. What is reserved changes its state once and its
//! length never. Loops are bounded.

use std::sync::atomic::Ordering;

use crate::field::{Measure, Sink};
use crate::layout::{
    MAX_RECORD, RECORD_COMMITTED, RECORD_END, RECORD_FREE, RECORD_RESERVED, RecordHeader,
    SEGMENT_DATA, SEGMENT_TAIL,
};
use crate::memory::{Memory, Word};
use crate::record::{Encode, FLAG_CUT};

/// A thread that loses this many races in a row drops its record.
const ATTEMPTS: usize = 4096;
const HEADER: usize = size_of::<RecordHeader>();

/// The outcome of appending a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It was appended, and takes so many bytes.
    Done(u64),
    /// The segment is full. With the number of bytes by which its end was closed, if this thread
    /// did that.
    Full(u64),
    /// It would end here, behind the limit.
    BeyondLimit(usize),
    /// Other threads were always faster.
    Contended,
}

/// A record's first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordWord {
    pub length: u32,
    pub kind: u16,
    pub flags: u8,
    pub state: u8,
}

impl RecordWord {
    #[must_use]
    pub fn pack(self) -> u64 {
        u64::from(self.length)
            | u64::from(self.kind) << 32
            | u64::from(self.flags) << 48
            | u64::from(self.state) << 56
    }

    #[must_use]
    pub fn unpack(word: u64) -> Self {
        let [a, b, c, d, e, f, flags, state] = word.to_le_bytes();
        Self {
            length: u32::from_le_bytes([a, b, c, d]),
            kind: u16::from_le_bytes([e, f]),
            flags,
            state,
        }
    }
}

/// A record that is about to be appended.
#[derive(Debug, Clone, Copy)]
pub struct Prepared<'a, E> {
    record: &'a E,
    time: u64,
    word: RecordWord,
}

impl<'a, E: Encode> Prepared<'a, E> {
    /// Measures a record; `None` if it is longer than [`MAX_RECORD`].
    #[must_use]
    pub fn new(time: u64, record: &'a E) -> Option<Self> {
        let Measure { length, cut } = record.measure();
        let whole = HEADER.checked_add(length)?.checked_next_multiple_of(8)?;
        let length = u32::try_from(whole).ok().filter(|_| whole <= MAX_RECORD)?;
        let flags = if cut { FLAG_CUT } else { 0 };
        let word = RecordWord { length, kind: E::KIND, flags, state: RECORD_RESERVED };
        Some(Self { record, time, word })
    }

    /// A record that is in the log already, to be appended once more as it is.
    pub(crate) fn again(time: u64, word: RecordWord, record: &'a E) -> Self {
        let word = RecordWord { state: RECORD_RESERVED, ..word };
        Self { record, time, word }
    }

    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.word.flags & FLAG_CUT != 0
    }
}

/// A log segment to be written to.
#[derive(Debug)]
pub struct Segment<M> {
    memory: M,
    size: usize,
}

impl<M: Memory> Segment<M> {
    /// `memory` starts with a [`crate::layout::SegmentHeader`] and is zero behind it, or another
    /// writer's. `size` is a multiple of 8.
    pub fn new(memory: M, size: usize) -> Self {
        Self { memory, size }
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// How many bytes are not reserved yet.
    #[must_use]
    pub fn room(&self) -> usize {
        self.size.saturating_sub(self.tail().unwrap_or(self.size))
    }

    /// Whether nothing more can be appended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let Some(word) = self.tail().and_then(|tail| self.memory.word(tail)) else { return true };
        RecordWord::unpack(word.load(Ordering::Relaxed)).state == RECORD_END
    }

    fn tail(&self) -> Option<usize> {
        let tail = self.memory.word(SEGMENT_TAIL)?.load(Ordering::Acquire);
        usize::try_from(tail).ok().filter(|tail| (SEGMENT_DATA..=self.size).contains(tail))
    }

    fn advance(&self, from: usize, length: u32) {
        if let Some(tail) = self.memory.word(SEGMENT_TAIL) {
            tail.replace(from as u64, from as u64 + u64::from(length));
        }
    }

    /// Appends a record that ends within the first `limit` bytes of the segment.
    pub fn append<E: Encode>(&self, record: &Prepared<'_, E>, limit: usize) -> Appended {
        let length = record.word.length as usize;
        for _ in 0..ATTEMPTS {
            // A tail outside the segment: it was overwritten. Such a segment counts as full.
            let Some(tail) = self.tail() else { return Appended::Full(0) };
            let Some(word) = self.memory.word(tail) else { return Appended::Full(0) };
            let found = RecordWord::unpack(word.load(Ordering::Relaxed));
            if found.state == RECORD_END {
                return Appended::Full(0);
            }
            if found.state != RECORD_FREE {
                self.advance(tail, found.length);
                continue;
            }
            let end = tail + length;
            if end > self.size {
                let rest = self.size - tail;
                let close = RecordWord {
                    length: u32::try_from(rest).unwrap_or(u32::MAX),
                    kind: 0,
                    flags: 0,
                    state: RECORD_END,
                };
                if word.replace(0, close.pack()) {
                    return Appended::Full(rest as u64);
                }
                continue;
            }
            if end > limit {
                return Appended::BeyondLimit(end);
            }
            if !word.replace(0, record.word.pack()) {
                continue;
            }
            self.advance(tail, record.word.length);
            self.fill(tail, end, record);
            let committed = RecordWord { state: RECORD_COMMITTED, ..record.word };
            word.store(committed.pack(), Ordering::Release);
            return Appended::Done(length as u64);
        }
        Appended::Contended
    }

    fn fill<E: Encode>(&self, tail: usize, end: usize, record: &Prepared<'_, E>) {
        self.memory.write(tail + 8, &record.time.to_le_bytes());
        let mut cursor = Cursor { memory: &self.memory, next: tail + HEADER, end };
        record.record.encode(&mut cursor);
    }
}

/// Writes fields one after another, and nothing beyond the end.
struct Cursor<'a, M> {
    memory: &'a M,
    next: usize,
    end: usize,
}

impl<M: Memory> Sink for Cursor<'_, M> {
    fn put(&mut self, bytes: &[u8]) {
        let Some(after) = self.next.checked_add(bytes.len()).filter(|after| *after <= self.end)
        else {
            return;
        };
        self.memory.write(self.next, bytes);
        self.next = after;
    }
}
