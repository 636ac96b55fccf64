//! Which sampled objects of the process are alive: a table with a word for each object that the
//! bridge watches.
//!
//! An object is watched from its allocation on, when its [`ObjectId`] is reported with the stack
//! ([`crate::clr_event`]), until the bridge notices that it is gone. The table is what holds now,
//! not a list of what happened: a reader that has missed anything is right again at its next look.
//! A place is used again for another object, with another serial number.
//!
//! Invariant: any bytes are a table; a reader believes only what fits an id that was reported to
//! it.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::Ordering;

use crate::layout::{OBJECT_SLOTS, OBJECT_WORDS, OBJECTS};
use crate::memory::{Memory, Word};
use crate::reader::ReadAt;

/// The largest shift that is read: a word that states more stands for this much.
pub const MAX_SHIFT: u8 = 20;

/// A watched object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Less than [`OBJECT_SLOTS`].
    pub slot: u16,
    /// Of the objects that have had this place; from 1.
    pub serial: u32,
}

/// As events have it: `slot:serial`.
impl fmt::Display for ObjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.slot, self.serial)
    }
}

/// The text is no object's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the id of an object")]
pub struct NoObjectId;

impl FromStr for ObjectId {
    type Err = NoObjectId;

    fn from_str(text: &str) -> Result<Self, NoObjectId> {
        let (slot, serial) = text.split_once(':').ok_or(NoObjectId)?;
        let id = Self {
            slot: slot.parse().map_err(|_| NoObjectId)?,
            serial: serial.parse().map_err(|_| NoObjectId)?,
        };
        let is_one = usize::from(id.slot) < OBJECT_SLOTS && id.serial != 0;
        is_one.then_some(id).ok_or(NoObjectId)
    }
}

/// The word of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectWord {
    /// Of the object there; 0: there is none.
    pub serial: u32,
    /// It stands for `2^shift` times what its event states.
    pub shift: u8,
    /// Collections have found that it is in use. Before, it may be garbage.
    pub in_use: bool,
    /// Collections since its allocation; 65,535 or more.
    pub survived: u16,
}

impl ObjectWord {
    #[must_use]
    pub fn pack(self) -> u64 {
        u64::from(self.serial)
            | u64::from(self.shift) << 32
            | u64::from(self.in_use) << 40
            | u64::from(self.survived) << 48
    }

    #[must_use]
    pub fn unpack(word: u64) -> Self {
        Self {
            serial: word as u32,
            shift: ((word >> 32) as u8).min(MAX_SHIFT),
            in_use: word >> 40 & 1 != 0,
            survived: (word >> 48) as u16,
        }
    }
}

/// The table, to be written to. Its memory must have been taken
/// ([`crate::writer::Writer::prepare_objects`]).
#[derive(Debug)]
pub struct Objects<'a, M> {
    memory: &'a M,
}

impl<'a, M: Memory> Objects<'a, M> {
    pub fn new(memory: &'a M) -> Self {
        Self { memory }
    }

    fn place(&self, slot: usize) -> Option<&'a M::Word> {
        if slot < OBJECT_SLOTS { self.memory.word(OBJECT_WORDS + 8 * slot) } else { None }
    }

    #[must_use]
    pub fn get(&self, slot: usize) -> ObjectWord {
        ObjectWord::unpack(self.place(slot).map_or(0, |word| word.load(Ordering::Acquire)))
    }

    pub fn set(&self, slot: usize, word: ObjectWord) {
        if let Some(place) = self.place(slot) {
            place.store(word.pack(), Ordering::Release);
        }
    }

    /// A sampled object found no place.
    pub fn refused(&self) {
        if let Some(word) = self.memory.word(OBJECTS) {
            word.add(1, Ordering::Relaxed);
        }
    }
}

/// The table, as read: claims of the process.
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectTable {
    /// Sampled objects without a place so far.
    pub refused: u64,
    words: Vec<u64>,
}

impl fmt::Debug for ObjectTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ObjectTable").field("refused", &self.refused).finish()
    }
}

impl ObjectTable {
    /// Reads the table from the main file.
    pub fn read(main: &impl ReadAt) -> io::Result<Self> {
        let mut bytes = vec![0; OBJECT_WORDS - OBJECTS + OBJECT_SLOTS * 8];
        if main.read_at(OBJECTS as u64, &mut bytes)? < bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let refused = bytes.first_chunk().map_or(0, word);
        let words = bytes.get(OBJECT_WORDS - OBJECTS..).unwrap_or_default();
        Ok(Self { refused, words: words.as_chunks::<8>().0.iter().map(word).collect() })
    }

    /// The objects that are watched.
    pub fn iter(&self) -> impl Iterator<Item = (ObjectId, ObjectWord)> + '_ {
        self.words.iter().zip(0..).filter_map(|(word, slot)| {
            let word = ObjectWord::unpack(*word);
            (word.serial != 0).then_some((ObjectId { slot, serial: word.serial }, word))
        })
    }

    /// The object's word while it is watched; `None` when it is gone.
    #[must_use]
    pub fn get(&self, id: ObjectId) -> Option<ObjectWord> {
        let word = ObjectWord::unpack(*self.words.get(usize::from(id.slot))?);
        (id.serial != 0 && word.serial == id.serial).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::MAIN_SIZE;

    #[test]
    fn a_word_is_read_as_it_was_written_and_states_no_more_than_it_may() {
        let word = ObjectWord { serial: 7, shift: 3, in_use: true, survived: 0xffff };
        assert_eq!(ObjectWord::unpack(word.pack()), word);
        assert_eq!(ObjectWord::unpack(u64::MAX).shift, MAX_SHIFT);
        assert_eq!(ObjectWord::unpack(0), ObjectWord::default());
    }

    #[test]
    fn an_id_is_read_as_it_was_written_and_others_are_refused() {
        let id = ObjectId { slot: 8191, serial: u32::MAX };
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "1", "1:", ":1", "8192:1", "1:0", "-1:1", "1:4294967296", "1:1:1"] {
            assert_eq!(text.parse::<ObjectId>(), Err(NoObjectId), "{text}");
        }
    }

    #[test]
    fn an_object_is_found_by_its_id_and_not_by_that_of_the_one_before() {
        let mut main = vec![0u8; MAIN_SIZE];
        let word = ObjectWord { serial: 2, in_use: true, ..ObjectWord::default() };
        let at = OBJECT_WORDS + 8 * 5;
        main[at..at + 8].copy_from_slice(&word.pack().to_le_bytes());
        main[OBJECTS] = 9;
        let table = ObjectTable::read(&main.as_slice()).expect("a table");
        assert_eq!(table.refused, 9);
        assert_eq!(table.get(ObjectId { slot: 5, serial: 2 }), Some(word));
        for id in [(5, 1), (5, 0), (6, 2), (u16::MAX, 2)] {
            assert_eq!(table.get(ObjectId { slot: id.0, serial: id.1 }), None);
        }
        assert!(ObjectTable::read(&&main[..MAIN_SIZE / 2]).is_err());
    }
}
