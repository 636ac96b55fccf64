//! What the bridge passes with an event of the runtime's: an exception, a wait for a lock, an
//! allocation, an object that is watched, a pause for a garbage collection, a wait for a handle.
//!
//! The bridge calls an empty function with the address of a [`Block`]. strata has a BPF program
//! there, which walks the thread's stack and copies the block. The program reads only the first two
//! words: the kind and the weight, and the value. The function starts with [`FUNCTION`], so that
//! strata can check that it is there before it attaches to it.
//!
//! Invariant: any bytes are a block or are refused; texts are within the block.

use std::fmt;
use std::str::FromStr;

/// Words of a block.
pub const BLOCK_WORDS: usize = 64;
const BLOCK_BYTES: usize = BLOCK_WORDS * 8;

/// Events that a bridge reports in a window of time (2^27 nanoseconds) at most, of all kinds together.
pub const MOST_REPORTS: usize = 3328;

/// The function's code: `nop; ret` (a probe on `nop` costs the least), and bytes that no other
/// function starts with.
pub const FUNCTION: [u8; 16] = *b"\x90\xc3strata-event-1";

/// Numbers of [`ClrEvent::kind`]: those of strata's kinds of samples.
pub mod kind {
    pub const EXCEPTION: u8 = 3;
    pub const LOCK: u8 = 4;
    pub const ALLOCATION: u8 = 5;
    /// An allocation whose object is watched from then on ([`crate::objects`]).
    pub const OBJECT: u8 = 6;
    pub const PAUSE: u8 = 7;
    /// A wait for a wait handle, or in `Monitor.Wait`.
    pub const WAIT_HANDLE: u8 = 8;
}

/// Bits of a status's [`event_kinds`](crate::status::StatusRecord::event_kinds) beside those of the
/// kinds: what a bridge does that older ones do not.
pub mod capability {
    /// An object's address is taken only from an event that holds together. An older bridge hands text
    /// to the runtime as an address where a class has a name of more than 1,024 characters, so it may
    /// not be asked for [`kind::OBJECT`](super::kind::OBJECT).
    pub const CHECKED_OBJECTS: u64 = 1 << 32;
    /// The bridge has the runtime walk the stack of an event, and pushes both into the ring, where its
    /// owner wishes for that ([`control::wish::SNAPSHOTS`](crate::control::wish::SNAPSHOTS)).
    pub const SNAPSHOTS: u64 = 1 << 33;
}

/// Bits of the flags of an event in the ring ([`crate::event::Event::flags`]): why its stack is not
/// whole.
pub mod snapshot {
    /// It has more frames than the event.
    pub const TRUNCATED: u32 = 1;
    /// The runtime did not walk it to its end.
    pub const INCOMPLETE: u32 = 2;
}

/// Bits of [`ClrEvent::flags`].
pub mod flag {
    /// The exception was thrown before: `throw;`, `ExceptionDispatchInfo.Throw`.
    pub const RETHROWN: u8 = 1;
    /// A text was longer than its bound.
    pub const CUT: u8 = 2;
}

/// Where allocations are sampled by chance, one byte in so many is chosen (.NET 10,
/// src/coreclr/gc/env/gcenv.ee.h).
pub const SAMPLED_EVERY: u64 = 100 << 10;

/// Limits of the durations that waits are grouped by, in nanoseconds, and their names: those
/// that Datadog's profiler has. Each has a budget of its own.
pub const WAIT_BUCKETS: [(u64, &str); 5] = [
    (10_000_000, "0 - 9 ms"),
    (50_000_000, "10 - 49 ms"),
    (100_000_000, "50 - 99 ms"),
    (500_000_000, "100 - 499 ms"),
    (u64::MAX, "+500 ms"),
];

/// The position of a wait's duration in [`WAIT_BUCKETS`].
#[must_use]
pub fn wait_bucket(nanoseconds: u64) -> usize {
    let last = WAIT_BUCKETS.len() - 1;
    WAIT_BUCKETS.iter().position(|(limit, _)| nanoseconds < *limit).unwrap_or(last)
}

/// What a thread waits by, as the runtime numbers it in [`ClrEvent::size`] (`WaitHandleWaitSourceMap`,
/// .NET 9, src/coreclr/vm/ClrEtwAll.man).
#[must_use]
pub fn wait_source_name(number: u64) -> &'static str {
    const NAMES: [&str; 2] = ["Unknown", "MonitorWait"];
    usize::try_from(number).ok().and_then(|at| NAMES.get(at)).copied().unwrap_or_default()
}

/// What a thread has waited for, as the message of an event: `lock:owner`, the first in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LockWait {
    /// The address of the runtime's lock, or its handle.
    pub lock: u64,
    /// The thread that had the lock, by its number in the process's own namespace; 0: unknown.
    pub owner: u32,
}

/// The text is no wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a wait for a lock")]
pub struct NoLockWait;

impl fmt::Display for LockWait {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}:{}", self.lock, self.owner)
    }
}

impl FromStr for LockWait {
    type Err = NoLockWait;

    fn from_str(text: &str) -> Result<Self, NoLockWait> {
        let (lock, owner) = text.split_once(':').ok_or(NoLockWait)?;
        Ok(Self {
            lock: u64::from_str_radix(lock, 16).map_err(|_| NoLockWait)?,
            owner: owner.parse().map_err(|_| NoLockWait)?,
        })
    }
}

/// The longest name of a type.
pub const MAX_TYPE: usize = 256;
/// The longest message.
pub const MAX_MESSAGE: usize = BLOCK_BYTES - TEXT - MAX_TYPE;
/// Where the texts start: the type's name, then the message.
const TEXT: usize = 24;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClrEvent<'a> {
    /// One of [`kind`].
    pub kind: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// How many events it stands for.
    pub weight: u32,
    /// What all of these have: nanoseconds of waiting or pausing; bytes allocated, or 0 where that
    /// follows from the size and [`SAMPLED_EVERY`].
    pub value: u64,
    /// Bytes of the allocated object; more than 32 bits can say is the most they can. Of a pause
    /// the [`crate::collection::Collection`], of a wait for a handle its source
    /// ([`wait_source_name`]).
    pub size: u64,
    /// In UTF-8; what is longer than [`MAX_TYPE`] is cut.
    pub type_name: &'a str,
    /// In UTF-8; what is longer than [`MAX_MESSAGE`] is cut. Of a pause the collection's number, in
    /// decimal; of a watched object its [`crate::objects::ObjectId`], of a wait for a lock its
    /// [`LockWait`], as text.
    pub message: &'a str,
}

/// An event's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Block([u8; BLOCK_BYTES]);

const _: () = assert!(size_of::<Block>() == BLOCK_WORDS * 8);

impl Block {
    #[must_use]
    pub fn new(event: &ClrEvent<'_>) -> Self {
        let mut bytes = [0; BLOCK_BYTES];
        let type_name = beginning(event.type_name, MAX_TYPE);
        let message = beginning(event.message, MAX_MESSAGE);
        let is_cut = type_name.len() < event.type_name.len() || message.len() < event.message.len();
        let flags = event.flags | if is_cut { flag::CUT } else { 0 };
        let first = u64::from(event.kind) | u64::from(flags) << 8 | u64::from(event.weight) << 32;
        let size = event.size.min(u64::from(u32::MAX));
        let lengths = type_name.len() as u64 | (message.len() as u64) << 16 | size << 32;
        let mut at = 0;
        let mut put = |part: &[u8]| {
            if let Some(room) = bytes.get_mut(at..at + part.len()) {
                room.copy_from_slice(part);
                at += part.len();
            }
        };
        put(&first.to_le_bytes());
        put(&event.value.to_le_bytes());
        put(&lengths.to_le_bytes());
        put(type_name.as_bytes());
        put(message.as_bytes());
        Self(bytes)
    }

    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    /// Its bytes to the end of its texts: those behind are zero.
    #[must_use]
    pub fn used(&self) -> &[u8] {
        let lengths = self.word(2);
        let texts = usize::from(lengths as u16) + usize::from((lengths >> 16) as u16);
        self.0.get(..TEXT + texts).unwrap_or(&self.0)
    }

    /// The block of which these are the first bytes; `None` if there are too few or too many.
    #[must_use]
    pub fn from_used(used: &[u8]) -> Option<Self> {
        let mut bytes = [0; BLOCK_BYTES];
        bytes.get_mut(..used.len()).filter(|_| used.len() >= TEXT)?.copy_from_slice(used);
        Some(Self(bytes))
    }

    /// The block in the words of a record; `None` if there are too few.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let words = words.first_chunk::<BLOCK_WORDS>()?;
        let mut bytes = [0; BLOCK_BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        Some(Self(bytes))
    }

    fn word(&self, number: usize) -> u64 {
        self.0.as_chunks::<8>().0.get(number).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// The event, with as much of its texts as is UTF-8; `None` for lengths beyond their bounds.
    #[must_use]
    pub fn event(&self) -> Option<ClrEvent<'_>> {
        let (first, value, lengths) = (self.word(0), self.word(1), self.word(2));
        let [type_length, message_length] = [lengths, lengths >> 16].map(|length| length as u16);
        if usize::from(type_length) > MAX_TYPE || usize::from(message_length) > MAX_MESSAGE {
            return None;
        }
        let texts = self.0.get(TEXT..)?;
        let (type_name, rest) = texts.split_at_checked(usize::from(type_length))?;
        let message = rest.get(..usize::from(message_length))?;
        Some(ClrEvent {
            kind: first as u8,
            flags: (first >> 8) as u8,
            weight: (first >> 32) as u32,
            value,
            size: lengths >> 32,
            type_name: valid(type_name),
            message: valid(message),
        })
    }
}

fn valid(bytes: &[u8]) -> &str {
    let valid = bytes.utf8_chunks().next();
    valid.map_or("", |chunk| chunk.valid())
}

fn beginning(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(block: &Block) -> Vec<u64> {
        (0..BLOCK_WORDS).map(|number| block.word(number)).collect()
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let event = ClrEvent {
            kind: kind::EXCEPTION,
            flags: flag::RETHROWN,
            weight: 64,
            value: u64::MAX,
            size: 24,
            type_name: "Shop.Größe",
            message: "no such item: 7",
        };
        let block = Block::from_words(&words(&Block::new(&event))).expect("enough words");
        assert_eq!(block.event(), Some(event));
        assert!(block.used().len() < 64);
        assert_eq!(Block::from_used(block.used()), Some(block));
    }

    #[test]
    fn a_block_in_too_few_or_too_many_bytes_is_none() {
        let whole = Block::new(&ClrEvent::default());
        assert_eq!(Block::from_used(&whole.0), Some(whole));
        assert_eq!(Block::from_used(&whole.0[..TEXT]), Some(whole));
        assert_eq!(Block::from_used(&whole.0[..TEXT - 1]), None);
        assert_eq!(Block::from_used(&[0; BLOCK_BYTES + 1]), None);
        // Lengths that are a lie are no reason to read beyond the block.
        let lie = Block::from_used(&[0xff; TEXT]).expect("enough bytes");
        assert_eq!((lie.used().len(), lie.event()), (BLOCK_BYTES, None));
    }

    #[test]
    fn long_texts_are_cut_between_characters_and_say_so() {
        let (name, message) = ("ä".repeat(200), "ö".repeat(1_000));
        let event = ClrEvent { type_name: &name, message: &message, ..ClrEvent::default() };
        let block = Block::new(&event);
        let read = block.event().expect("an event");
        assert_eq!((read.type_name.len(), read.message.len()), (MAX_TYPE, MAX_MESSAGE));
        assert_eq!(read.flags, flag::CUT);
    }

    #[test]
    fn a_wait_for_a_lock_is_read_as_it_was_written_and_others_are_refused() {
        let wait = LockWait { lock: 0x7f00_1234_5678, owner: u32::MAX };
        assert_eq!(wait.to_string(), "7f0012345678:4294967295");
        assert_eq!(wait.to_string().parse(), Ok(wait));
        for text in ["", "7", "7:", ":7", "x:1", "7:-1", "7:4294967296", "7:1:1"] {
            assert_eq!(text.parse::<LockWait>(), Err(NoLockWait), "{text}");
        }
    }

    #[test]
    fn every_duration_has_its_bucket() {
        let name = |nanoseconds| WAIT_BUCKETS[wait_bucket(nanoseconds)].1;
        assert_eq!(
            [name(0), name(9_999_999), name(10_000_000)],
            ["0 - 9 ms", "0 - 9 ms", "10 - 49 ms"]
        );
        assert_eq!(
            [name(499_999_999), name(500_000_000), name(u64::MAX)],
            ["100 - 499 ms", "+500 ms", "+500 ms"]
        );
    }

    #[test]
    fn a_source_of_waits_that_the_runtime_does_not_have_has_no_name() {
        let names = [0, 1, 2, u64::MAX].map(wait_source_name);
        assert_eq!(names, ["Unknown", "MonitorWait", "", ""]);
    }

    #[test]
    fn any_words_are_an_event_or_are_refused() {
        assert!(Block::from_words(&[0; BLOCK_WORDS - 1]).is_none());
        assert_eq!(Block::from_words(&[u64::MAX; BLOCK_WORDS]).expect("words").event(), None);
        let mut block = words(&Block::new(&ClrEvent::default()));
        block[2] = 4 | 3 << 16;
        block[3] = u64::from_le_bytes(*b"ok\xff\xffmsg\0");
        let block = Block::from_words(&block).expect("words");
        let event = block.event().expect("an event");
        assert_eq!((event.type_name, event.message), ("ok", "msg"));
    }
}
