//! Keeps the log as long as what lives, for a program that makes and drops code without end.
//!
//! When the log has grown to a limit, the bridge's own thread reads it once from its start and notes
//! the last record about each thing that lives ([`Index`]). Of the older half of the segments it
//! then appends every such record once more, as it is, and gives the segment back
//! ([`Writer::give_back_oldest`]): it is used again at the end of the log.
//!
//! A record may not be appended once more after the record of its end. So while records are appended
//! once more, no thread appends, and what was appended meanwhile has been noted: some microseconds
//! for a few records ([`AT_ONCE`]), and the thread gives way whenever a record is being appended.
//!
//! Because the oldest segments go first, a record that is still in the log has its end behind it, if
//! it has one. A reader that was overtaken thus goes on with the oldest segment, and has met all that
//! lives when it gets to the end.
//!
//! The limit follows what lives: it grows when more than half of the bytes had to be appended once
//! more, so that each byte is on average.
//!
//! Invariant: a turn does bounded work. Whatever happens in the middle of it, a reader finds each
//! living record at least once, and applies one that it knows without effect.

mod index;

use std::sync::atomic::Ordering;

use self::index::{Index, Place};
use crate::field::Sink;
use crate::layout::{
    MAX_RECORD, RECORD_COMMITTED, RECORD_END, RECORD_FREE, RECORD_RESERVED, RecordHeader,
    SEGMENT_SIZE,
};
use crate::life;
use crate::log::{Prepared, RecordWord};
use crate::memory::{Memory, Region};
use crate::record::{Encode, FLAG_CUT};
use crate::table::NoMemory;
use crate::writer::{AppendedAgain, Quiet, Writer};

/// Segments that a log has before it is looked at.
pub const SMALLEST: u64 = 4;
/// The limit grows up to this: the rest of the segments is for what is appended meanwhile.
const LARGEST: u64 = 40;
/// Bytes of the log that a turn looks at.
const LOOKED_AT: usize = 512 << 10;
/// Records appended once more while no thread appends, and their bytes.
const AT_ONCE: usize = 16;
const BYTES_AT_ONCE: usize = 16 << 10;
/// How often a turn does that.
const TIMES: usize = 16;
const HEADER: usize = size_of::<RecordHeader>();

/// What lies at a place.
enum Found {
    Record(Place, RecordWord),
    /// A record that is being written, or never will be.
    Reserved(RecordWord),
    /// Nothing yet.
    Tail,
    /// This is no log.
    Broken,
}

/// Looks at a place, or at the start of the next segment where its own has no more.
fn look(writer: &Writer, at: &mut Place) -> Found {
    loop {
        // Before the word: what is behind it in an older segment was appended before.
        let (oldest, current) = writer.extent();
        if at.position < oldest || at.position > current {
            return Found::Broken;
        }
        let Some(region) = writer.segment_at(at.position) else { return Found::Broken };
        let word = region.word(at.offset).map_or(0, |word| word.load(Ordering::Acquire));
        let word = RecordWord::unpack(word);
        let length = word.length as usize;
        let room = SEGMENT_SIZE.saturating_sub(at.offset);
        let fits = length >= HEADER && length.is_multiple_of(8) && length <= room.min(MAX_RECORD);
        match word.state {
            RECORD_COMMITTED if fits => return Found::Record(*at, word),
            RECORD_RESERVED if fits => return Found::Reserved(word),
            RECORD_FREE if at.position == current => return Found::Tail,
            RECORD_FREE | RECORD_END if at.position < current => {
                *at = Place::start_of(at.position + 1);
            }
            RECORD_END => return Found::Tail,
            _ => return Found::Broken,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Idle,
    /// The log was noted up to `noted`.
    Noting {
        noted: Place,
    },
    /// Records up to `copied` were appended once more; segments before `end` are given back.
    Copying {
        noted: Place,
        copied: Place,
        end: u64,
    },
}

/// Whether there is more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Idle,
    /// Soon.
    More,
}

/// Why a compaction ends early; it begins anew later.
struct Abandoned;

impl From<NoMemory> for Abandoned {
    fn from(_: NoMemory) -> Self {
        Self
    }
}

/// Compacts one writer's log, turn by turn.
#[derive(Debug)]
pub struct Compaction {
    phase: Phase,
    /// Empty between two compactions.
    index: Index,
    /// The log may have so many segments.
    limit: u64,
    /// It is not looked at before this one is appended to.
    rests_until: u64,
    /// Bytes of the segments given back, and of their records that live.
    bytes: u64,
    living: u64,
    buffer: Vec<u8>,
}

impl Default for Compaction {
    fn default() -> Self {
        Self::new()
    }
}

impl Compaction {
    #[must_use]
    pub const fn new() -> Self {
        Self {
            phase: Phase::Idle,
            index: Index::new(0),
            limit: SMALLEST,
            rests_until: 0,
            bytes: 0,
            living: 0,
            buffer: Vec::new(),
        }
    }

    /// The log may have so many segments before some are given back.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Stops, since a reader came that does not know of it. What was appended once more is harmless.
    pub fn stop(&mut self) {
        if !matches!(self.phase, Phase::Idle) {
            self.phase = Phase::Idle;
            self.index = Index::new(0);
            self.buffer = Vec::new();
        }
    }

    /// Does some of what is to be done. `now` is the monotonic time.
    pub fn turn(&mut self, writer: &Writer, now: u64) -> Turn {
        if writer.is_forked() {
            return Turn::Idle;
        }
        let next = match self.phase {
            Phase::Idle => self.begin(writer),
            Phase::Noting { noted } => note_some(writer, &mut self.index, noted),
            Phase::Copying { noted, copied, end } => {
                self.copy_some(writer, now, noted, copied, end)
            }
        };
        match next {
            Ok(Phase::Idle) => Turn::Idle,
            Ok(phase) => {
                self.phase = phase;
                Turn::More
            }
            Err(Abandoned) => {
                self.stop();
                let (_, current) = writer.extent();
                self.rests_until = current + 1;
                Turn::Idle
            }
        }
    }

    fn begin(&mut self, writer: &Writer) -> Result<Phase, Abandoned> {
        let (oldest, current) = writer.extent();
        if current - oldest + 1 < self.limit || current < self.rests_until {
            return Ok(Phase::Idle);
        }
        self.buffer.try_reserve_exact(MAX_RECORD).map_err(|_| Abandoned)?;
        (self.bytes, self.living) = (0, 0);
        self.index = Index::new(oldest);
        Ok(Phase::Noting { noted: Place::start_of(oldest) })
    }

    fn copy_some(
        &mut self,
        writer: &Writer,
        now: u64,
        mut noted: Place,
        mut copied: Place,
        end: u64,
    ) -> Result<Phase, Abandoned> {
        for _ in 0..TIMES {
            if copied.position >= end {
                self.finish(writer);
                return Ok(Phase::Idle);
            }
            writer.prepare_log(now);
            let mut next = copied;
            let (batch, is_over) = next_living(writer, &self.index, &mut next)?;
            // Most of it before threads have to wait.
            note_up_to(writer, &mut self.index, &mut noted, LOOKED_AT, None)?;
            let Some(quiet) = quiet_soon(writer) else { break };
            if !note_up_to(writer, &mut self.index, &mut noted, BYTES_AT_ONCE, Some(&quiet))? {
                break;
            }
            let region = writer.segment_at(copied.position).ok_or(Abandoned)?;
            let mut lacking = AppendedAgain::Done;
            for (at, word) in batch.into_iter().flatten() {
                let life = life::of(region, at.offset, word.kind, word.length as usize);
                if self.index.has(life, at) {
                    lacking = self.append_again(writer, &quiet, region, at.offset, word);
                    if lacking != AppendedAgain::Done {
                        next = at;
                        break;
                    }
                    self.living += u64::from(word.length);
                }
            }
            if lacking != AppendedAgain::Done {
                drop(quiet);
                copied = next;
                writer.make_room(&lacking, now).map_err(|_| Abandoned)?;
            } else if is_over {
                self.bytes += SEGMENT_SIZE as u64;
                writer.give_back_oldest(quiet);
                copied = Place::start_of(copied.position + 1);
            } else {
                copied = next;
            }
        }
        Ok(Phase::Copying { noted, copied, end })
    }

    fn append_again(
        &mut self,
        writer: &Writer,
        quiet: &Quiet<'_>,
        region: &Region,
        at: usize,
        word: RecordWord,
    ) -> AppendedAgain {
        self.buffer.clear();
        let words = (at + 8..at + word.length as usize).step_by(8);
        for word in words.filter_map(|offset| region.word(offset)) {
            self.buffer.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let Some((time, fields)) = self.buffer.split_first_chunk() else {
            return AppendedAgain::Done;
        };
        let word = RecordWord { flags: word.flags & FLAG_CUT, ..word };
        let fields = Again(fields);
        writer.append_again(quiet, &Prepared::again(u64::from_le_bytes(*time), word, &fields))
    }

    /// The limit follows what lives.
    fn finish(&mut self, writer: &Writer) {
        self.stop();
        let (bytes, living) = (self.bytes.max(1), self.living);
        if living * 2 > bytes {
            self.limit = (self.limit + self.limit / 2).min(LARGEST);
        } else if living * 6 < bytes {
            self.limit = (self.limit - self.limit / 4).max(SMALLEST);
        }
        // With more than fits, it is not looked at all the time.
        let (_, current) = writer.extent();
        self.rests_until = current + self.limit / 4;
    }
}

/// Waits a little for a moment in which no record is being appended.
fn quiet_soon(writer: &Writer) -> Option<Quiet<'_>> {
    (0..16).find_map(|_| {
        let quiet = writer.quiet();
        if quiet.is_none() {
            std::thread::yield_now();
        }
        quiet
    })
}

/// Notes some of the log, until all of it is.
fn note_some(writer: &Writer, index: &mut Index, from: Place) -> Result<Phase, Abandoned> {
    let mut noted = from;
    // A record that is never finished is stepped over when no thread appends.
    let quiet = match look(writer, &mut noted) {
        Found::Reserved(_) => writer.quiet(),
        _ => None,
    };
    let is_whole = note_up_to(writer, index, &mut noted, LOOKED_AT, quiet.as_ref())?;
    drop(quiet);
    if !is_whole {
        return Ok(Phase::Noting { noted });
    }
    index.is_whole()?;
    let (oldest, current) = writer.extent();
    let end = oldest + (current - oldest).div_ceil(2);
    Ok(Phase::Copying { noted, copied: Place::start_of(oldest), end })
}

/// Notes what was appended since. `true`: all of it.
fn note_up_to(
    writer: &Writer,
    index: &mut Index,
    noted: &mut Place,
    most: usize,
    quiet: Option<&Quiet<'_>>,
) -> Result<bool, Abandoned> {
    let mut bytes = 0;
    while bytes < most {
        match look(writer, noted) {
            Found::Record(at, word) => {
                let region = writer.segment_at(at.position).ok_or(Abandoned)?;
                let length = word.length as usize;
                index.note(life::of(region, at.offset, word.kind, length), at)?;
                noted.offset += length;
                bytes += length;
            }
            Found::Reserved(word) if quiet.is_some() => noted.offset += word.length as usize,
            Found::Reserved(_) => return Ok(false),
            Found::Tail => return Ok(true),
            Found::Broken => return Err(Abandoned),
        }
    }
    Ok(false)
}

type Batch = [Option<(Place, RecordWord)>; AT_ONCE];

/// The next records that live, and whether their segment has no more.
fn next_living(
    writer: &Writer,
    index: &Index,
    from: &mut Place,
) -> Result<(Batch, bool), Abandoned> {
    let mut batch = [None; AT_ONCE];
    let (mut places, mut bytes, mut looked_at) = (batch.iter_mut(), 0, 0);
    let position = from.position;
    while bytes < BYTES_AT_ONCE && looked_at < LOOKED_AT {
        let mut at = *from;
        let (word, is_reserved) = match look(writer, &mut at) {
            Found::Record(_, word) => (word, false),
            Found::Reserved(word) => (word, true),
            Found::Tail | Found::Broken => return Err(Abandoned),
        };
        if at.position != position {
            return Ok((batch, true));
        }
        let region = writer.segment_at(position).ok_or(Abandoned)?;
        let length = word.length as usize;
        // A reserved one in a segment that was noted was given up.
        if !is_reserved && index.has(life::of(region, at.offset, word.kind, length), at) {
            let Some(place) = places.next() else { return Ok((batch, false)) };
            *place = Some((at, word));
            bytes += length;
        }
        looked_at += length;
        *from = Place { offset: at.offset + length, ..at };
    }
    Ok((batch, false))
}

/// The fields of a record, as they are in the log.
struct Again<'a>(&'a [u8]);

impl Encode for Again<'_> {
    /// Its own kind is in its first word.
    const KIND: u16 = 0;

    fn encode(&self, sink: &mut impl Sink) {
        sink.put(self.0);
    }
}
