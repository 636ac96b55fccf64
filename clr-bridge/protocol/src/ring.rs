//! Pushing events into the ring, by many threads at once and without a lock; one reader.
//!
//! The ring is cells of 64 bytes, and apart from them one word for each cell. Positions count cells
//! and never go back; position `p` means cell `p % cells` in pass `p / cells + 1`. An event takes
//! whole cells; the word of its first cell holds its pass, its number of cells and its state.
//!
//! The thread that changes the word at the head from an older pass to *reserved* in this pass owns
//! the event; it, or the next thread that finds the word taken, moves the head on; it writes the
//! cells and stores the word again as *committed*, releasing. Passes only grow, so a thread that
//! was asleep with an old head finds its word changed, and events that went round the ring are
//! never mistaken for new ones. The reader writes nothing but the tail.
//!
//! Invariant: nothing is written between tail and head but by the thread that reserved it. A full
//! ring drops the new event. Loops are bounded.

use std::sync::atomic::Ordering;

use crate::event::Event;
use crate::layout::{MAX_EVENT, RING_TAIL, RING_TAIL_CHECK};
use crate::memory::{Memory, Word};

/// A thread that loses this many races in a row gives its event up.
const ATTEMPTS: usize = 4096;

const STATE_RESERVED: u64 = 1;
const STATE_COMMITTED: u64 = 2;

/// Where the parts of a ring lie.
#[derive(Debug, Clone, Copy)]
pub struct RingPlaces {
    pub head: usize,
    pub tail: usize,
    pub tail_check: usize,
    /// The last whole tail that a writer saw; written by writers.
    pub tail_seen: usize,
    pub words: usize,
    pub data: usize,
    /// A power of two.
    pub cells: usize,
    pub cell: usize,
}

impl RingPlaces {
    /// Those of the main file.
    pub const MAIN: Self = Self {
        head: crate::layout::RING_HEAD,
        tail: RING_TAIL,
        tail_check: RING_TAIL_CHECK,
        tail_seen: crate::layout::RING_TAIL_SEEN,
        words: crate::layout::RING_WORDS,
        data: crate::layout::RING_DATA,
        cells: crate::layout::RING_CELLS,
        cell: crate::layout::RING_CELL,
    };

    /// Which cell a position means.
    #[must_use]
    pub fn cell_of(&self, position: u64) -> usize {
        (position & (self.cells as u64 - 1)) as usize
    }

    /// In which pass a position is; from 1.
    #[must_use]
    pub fn pass_of(&self, position: u64) -> u64 {
        (position >> self.cells.trailing_zeros()) + 1
    }
}

/// The word of an event's first cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellWord {
    pub pass: u64,
    pub cells: u64,
    pub committed: bool,
}

impl CellWord {
    fn pack(self) -> u64 {
        let state = if self.committed { STATE_COMMITTED } else { STATE_RESERVED };
        self.pass << 24 | (self.cells & 0x3f_ffff) << 2 | state
    }

    #[must_use]
    pub fn unpack(word: u64) -> Self {
        Self {
            pass: word >> 24,
            cells: word >> 2 & 0x3f_ffff,
            committed: word & 3 == STATE_COMMITTED,
        }
    }
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    Done,
    /// No room: dropped.
    Full,
    /// It is longer than any event may be.
    TooLong,
    /// Other threads were always faster: dropped.
    Contended,
}

/// The tail and its check word, as they must stand together.
#[must_use]
pub fn tail_check(tail: u64) -> u64 {
    !tail.swap_bytes()
}

/// The ring, to be written to.
#[derive(Debug)]
pub struct Ring<'a, M> {
    memory: &'a M,
    places: RingPlaces,
}

impl<'a, M: Memory> Ring<'a, M> {
    pub fn new(memory: &'a M, places: RingPlaces) -> Self {
        Self { memory, places }
    }

    fn word(&self, offset: usize) -> u64 {
        self.memory.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// How far the reader is. While it is changing that: how far it was, which leaves less room.
    fn tail(&self) -> u64 {
        let seen = self.word(self.places.tail_seen);
        let tail = self.word(self.places.tail);
        if self.word(self.places.tail_check) != tail_check(tail) {
            return seen;
        }
        if tail != seen
            && let Some(word) = self.memory.word(self.places.tail_seen)
        {
            word.store(tail, Ordering::Release);
        }
        tail
    }

    pub fn push(&self, event: &Event<'_>) -> Pushed {
        let Some(length) = event.length().filter(|length| *length <= MAX_EVENT) else {
            return Pushed::TooLong;
        };
        let cells = length.div_ceil(self.places.cell.max(1)) as u64;
        let capacity = self.places.cells as u64;
        let Some(head_word) = self.memory.word(self.places.head) else { return Pushed::Full };
        for _ in 0..ATTEMPTS {
            let head = head_word.load(Ordering::Acquire);
            let pass = self.places.pass_of(head);
            let place = self.places.words + 8 * self.places.cell_of(head);
            let Some(word) = self.memory.word(place) else { return Pushed::Full };
            let raw = word.load(Ordering::Relaxed);
            let found = CellWord::unpack(raw);
            if found.pass >= pass {
                // Taken: help its owner, unless the head is an old one.
                if found.pass == pass {
                    head_word.replace(head, head.wrapping_add(found.cells));
                }
                continue;
            }
            let used = head.checked_sub(self.tail());
            let free = used.and_then(|used| capacity.checked_sub(used));
            if free.is_none_or(|free| free < cells) {
                // Behind an old head there is never room: look whether it is one.
                if head_word.load(Ordering::Acquire) == head {
                    return Pushed::Full;
                }
                continue;
            }
            let reserved = CellWord { pass, cells, committed: false };
            if !word.replace(raw, reserved.pack()) {
                continue;
            }
            head_word.replace(head, head.wrapping_add(cells));
            event.write(|at, bytes| self.copy(head, at, bytes));
            word.store(CellWord { committed: true, ..reserved }.pack(), Ordering::Release);
            return Pushed::Done;
        }
        Pushed::Contended
    }

    /// Copies bytes of the event at `position`, round the end of the ring if need be.
    fn copy(&self, position: u64, at: usize, bytes: &[u8]) {
        let size = self.places.cells * self.places.cell;
        let start = self.places.cell_of(position) * self.places.cell + at;
        let start = if start < size { start } else { start - size };
        let (first, second) = bytes.split_at(bytes.len().min(size.saturating_sub(start)));
        self.memory.write(self.places.data + start, first);
        if !second.is_empty() {
            self.memory.write(self.places.data, second);
        }
    }
}
