//! Tailing the log.
//!
//! A segment is copied twice: once for the records' first words, which show how far it is
//! committed, and, after an acquiring fence, the committed part once more for the records
//! themselves. One copy would not do: the kernel may copy its bytes in any order.
//!
//! The reader stops at a record that is reserved and not yet committed. When the process has ended,
//! it steps over it. While the process lives, it steps over it after [`PATIENCE`] and keeps looking
//! at it, so that a thread that was only stopped loses nothing; a thread that is gone has lost one
//! record.
//!
//! Segments are read in the order of their positions in the log. A bridge may give segments back and
//! use them again ([`crate::compaction`]): the stamp in a segment's header is compared after each
//! copy, and what was copied of another segment is dropped. A reader that was overtaken goes on with
//! the oldest segment ([`Poll::gap`]).
//!
//! Invariant: a position in the log only grows, and so does a position within a segment.

use std::collections::VecDeque;
use std::io;
use std::mem::offset_of;

use super::{
    Budget, HeaderError, Limits, ReadAt, ReaderLosses, main_header, read_array, segment_header,
};
use crate::contexts::Context;
use crate::decode_error::DecodeError;
use crate::layout::{
    CONTEXT_FREE, CONTEXT_PROBES, CONTEXT_SLOTS, CONTEXTS, ContextSlot, MAX_RECORD, MAX_SEGMENTS,
    RECORD_COMMITTED, RECORD_END, RECORD_FREE, RECORD_RESERVED, RecordHeader, SEGMENT_DATA,
    SEGMENT_SIZE, SEGMENT_STAMP, STATUS, SegmentHeader, StatusPage, context_place,
};
use crate::log::RecordWord;
use crate::objects::ObjectTable;
use crate::record::{FLAG_CUT, RawRecord, Record};
use crate::status::StatusRecord;

/// How long a reserved record is waited for, in nanoseconds.
pub const PATIENCE: u64 = 2_000_000_000;
/// Bytes that are copied at once.
const CHUNK: usize = 64 << 10;
/// The most reserved records that are checked again.
const MAX_LATE: usize = 16;
/// Every so many calls a segment is read although nothing seems to be new.
const LOOK_ANYWAY: u32 = 64;
const HEADER: usize = size_of::<RecordHeader>();
/// After this time, in nanoseconds, a segment is given up that is not found though later ones are.
const ABSENCE: u64 = 10_000_000_000;
/// What a gap costs of the records that a process may write: all that is known is gone through.
const GAP_COSTS: usize = 20_000;
/// The positions of the oldest and the newest segment.
const EXTENT: usize = STATUS + offset_of!(StatusPage, oldest_segment);
const COMMITTED: usize = STATUS + offset_of!(StatusPage, committed);

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// A text or list of it was truncated.
    pub cut: bool,
    pub record: Record,
}

/// What a call has read.
#[derive(Debug, Default)]
pub struct Poll {
    pub entries: Vec<Entry>,
    /// The budget ended the call: there may be more.
    pub more: bool,
    /// Before these entries, segments had been given back that were not read. Everything that lives
    /// is reported again from here on, until [`Poll::caught_up`]; what is not has ended.
    pub gap: bool,
    /// With these entries, all has been read that was in the log at the first call, or at the last
    /// gap. Before, a record may have its end further on in the log.
    pub caught_up: bool,
}

/// What the records of a call are passed to, in their order.
pub trait Consumer {
    /// Segments had been given back that were not read, see [`Poll::gap`].
    fn gap(&mut self);

    /// Takes a record out of the copy that was made of it. One with an error is counted.
    fn record(&mut self, record: RawRecord<'_>) -> Result<(), DecodeError>;
}

/// How far a call has read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// How many records were taken.
    pub records: usize,
    /// See [`Poll`].
    pub more: bool,
    pub caught_up: bool,
    /// There was no more in the log.
    pub at_end: bool,
}

/// Decodes what it is passed.
impl Consumer for Poll {
    fn gap(&mut self) {
        self.gap = true;
    }

    fn record(&mut self, record: RawRecord<'_>) -> Result<(), DecodeError> {
        let RawRecord { time, cut, .. } = record;
        self.entries.push(Entry { time, cut, record: record.decode()? });
        Ok(())
    }
}

#[derive(Debug)]
struct Tail<R> {
    file: R,
    /// As in its header when it was read.
    stamp: u64,
    /// Its position in the log.
    order: u64,
    position: usize,
    /// Bytes of committed records that were read.
    consumed: u64,
    /// Since when the record at `position` is reserved.
    waiting: Option<u64>,
    done: bool,
}

impl<R: ReadAt> Tail<R> {
    fn new(file: R, header: &SegmentHeader) -> Self {
        let (stamp, order, position) = (header.stamp, order_of(header), SEGMENT_DATA);
        Self { file, stamp, order, position, consumed: 0, waiting: None, done: false }
    }

    /// Whether it is a part of the log.
    fn is_used(&self) -> bool {
        self.stamp.is_multiple_of(2)
    }

    /// Whether what was read so far is of the segment that it was.
    fn is_unchanged(&mut self) -> io::Result<bool> {
        self.file.settle();
        let found = u64::from_le_bytes(read_array(&self.file, SEGMENT_STAMP as u64)?);
        if found == self.stamp {
            return Ok(true);
        }
        // Until its header is read again.
        self.stamp |= 1;
        Ok(false)
    }

    /// Begins anew if it is at another position of the log now.
    fn look_again(&mut self, id: &[u8; 16]) -> io::Result<()> {
        let header = match segment_header(&self.file, id) {
            Ok(header) => header,
            Err(HeaderError::Read(error)) => return Err(error),
            Err(_) => return Ok(()),
        };
        let (stamp, order) = (header.stamp, order_of(&header));
        // The kernel may have copied them in either order: they belong together if both are the same
        // once more.
        self.file.settle();
        let again: [u8; 16] = read_array(&self.file, SEGMENT_STAMP as u64)?;
        let is_whole = again == (u128::from(header.order) << 64 | u128::from(stamp)).to_le_bytes();
        let is_other = (stamp, order) != (self.stamp, self.order);
        if is_whole && is_other && stamp.is_multiple_of(2) {
            self.stamp = stamp;
            self.order = order;
            self.position = SEGMENT_DATA;
            self.consumed = 0;
            self.waiting = None;
            self.done = false;
        }
        Ok(())
    }
}

/// The position of a segment in the log; of older bridges, too.
fn order_of(header: &SegmentHeader) -> u64 {
    let is_first = header.stamp == 0 && header.order == 0;
    if is_first { u64::from(header.number) } else { header.order }
}

/// How the reading of a chunk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    /// There may be more.
    Some,
    /// There is no more now.
    Nothing,
    /// A record is being written, or the process has written too many.
    Waiting,
    /// The segment has no more.
    Done,
    /// The segment was given back meanwhile.
    GivenBack,
}

/// A reserved record that was stepped over.
#[derive(Debug, Clone, Copy)]
struct Late {
    segment: usize,
    stamp: u64,
    position: usize,
    length: usize,
}

/// Reads the log and the status of one process.
#[derive(Debug)]
pub struct Reader<R> {
    main: R,
    id: [u8; 16],
    /// By number; always [`MAX_SEGMENTS`] places.
    segments: Vec<Option<Tail<R>>>,
    /// The position in the log that is read next; `None` before the first call.
    next: Option<u64>,
    /// Since when the segment there is not found, though later ones are.
    absent: Option<u64>,
    /// At first and after a gap: everything that was in the log then has been read with this segment,
    /// or at the end of the log.
    until: Option<u64>,
    late: VecDeque<Late>,
    allowance: Allowance,
    polls: u32,
    ended: bool,
    losses: ReaderLosses,
}

/// How many records may be read now.
#[derive(Debug)]
struct Allowance {
    limits: Limits,
    left: u64,
    /// The time up to which it has grown.
    since: Option<u64>,
}

impl Allowance {
    fn grow(&mut self, now: u64) {
        const SECOND: u128 = 1_000_000_000;
        let since = *self.since.get_or_insert(now);
        let earned =
            u128::from(now.saturating_sub(since)) * u128::from(self.limits.per_second) / SECOND;
        if earned > 0 {
            let earned = u64::try_from(earned).unwrap_or(u64::MAX);
            self.left = self.left.saturating_add(earned).min(self.limits.records);
            self.since = Some(now);
        }
    }

    fn pay(&mut self, records: usize) {
        self.left = self.left.saturating_sub(records as u64);
    }
}

/// What lies at a position.
enum Found {
    /// Nothing yet, or not within these bytes.
    Nothing,
    Committed(usize),
    Reserved(usize),
    End,
    Broken,
}

/// Looks at a record's first word at the start of `bytes`; `room` is the rest of the segment.
fn look(bytes: &[u8], room: usize) -> Found {
    let Some(word) = bytes.first_chunk::<8>() else { return Found::Nothing };
    let word = RecordWord::unpack(u64::from_le_bytes(*word));
    let length = word.length as usize;
    let fits = length >= HEADER && length.is_multiple_of(8) && length <= room.min(MAX_RECORD);
    match word.state {
        RECORD_FREE => Found::Nothing,
        RECORD_END => Found::End,
        RECORD_COMMITTED if fits => Found::Committed(length),
        RECORD_RESERVED if fits => Found::Reserved(length),
        _ => Found::Broken,
    }
}

/// What is left of a call's budget.
struct Left {
    records: usize,
    bytes: usize,
}

impl Left {
    fn is_used_up(&self) -> bool {
        self.records == 0 || self.bytes == 0
    }
}

/// One call.
struct Call<'a, C> {
    consumer: &'a mut C,
    progress: Progress,
    left: Left,
    /// Holds the copies, one after the other.
    buffer: Vec<u8>,
    /// The monotonic time.
    now: u64,
}

impl<R: ReadAt> Reader<R> {
    /// Checks the header of a main file.
    pub fn new(main: R, limits: Limits) -> Result<Self, HeaderError> {
        let id = main_header(&main)?;
        Ok(Self {
            main,
            id,
            segments: (0..MAX_SEGMENTS).map(|_| None).collect(),
            next: None,
            absent: None,
            until: None,
            late: VecDeque::new(),
            allowance: Allowance { limits, left: limits.records, since: None },
            polls: 0,
            ended: false,
            losses: ReaderLosses::default(),
        })
    }

    /// The id of this main file, which its segments repeat.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    pub fn main(&self) -> &R {
        &self.main
    }

    #[must_use]
    pub fn losses(&self) -> ReaderLosses {
        self.losses
    }

    /// Adds a segment that was found; its number.
    pub fn add_segment(&mut self, file: R) -> Result<u32, HeaderError> {
        let header = segment_header(&file, &self.id)?;
        let number = header.number;
        let place = self.segments.get_mut(number as usize).ok_or(HeaderError::Contradiction)?;
        if place.is_some() {
            return Err(HeaderError::Twice(number));
        }
        *place = Some(Tail::new(file, &header));
        Ok(number)
    }

    /// The files of the segments that were added.
    pub fn segments(&self) -> impl Iterator<Item = &R> {
        self.segments.iter().flatten().map(|tail| &tail.file)
    }

    /// How many segments the status names that were not added yet.
    #[must_use]
    pub fn missing_segments(&self, status: &StatusRecord) -> usize {
        self.segments.iter().take(status.segments).filter(|place| place.is_none()).count()
    }

    /// The bridge's status.
    pub fn status(&self) -> io::Result<StatusRecord> {
        Ok(StatusRecord::from_bytes(&read_array(&self.main, STATUS as u64)?))
    }

    /// The watched objects.
    pub fn objects(&self) -> io::Result<ObjectTable> {
        ObjectTable::read(&self.main)
    }

    /// A thread's context, unless it is being written now.
    pub fn context(&self, tid: u32) -> io::Result<Option<Context>> {
        let first = context_place(tid);
        for index in first..first + CONTEXT_PROBES {
            let place = CONTEXTS + (index & (CONTEXT_SLOTS - 1)) * size_of::<ContextSlot>();
            let before = ContextSlot::from_bytes(&read_array(&self.main, place as u64)?);
            if before.tid == CONTEXT_FREE {
                break;
            }
            if before.tid == tid {
                self.main.settle();
                let after = ContextSlot::from_bytes(&read_array(&self.main, place as u64)?);
                let whole = before == after && before.sequence.is_multiple_of(2);
                return Ok(whole.then_some(Context {
                    app_domain: after.app_domain,
                    label_set: after.label_set,
                    span: after.span,
                    trace: after.trace,
                    root_span: after.root_span,
                }));
            }
        }
        Ok(None)
    }

    /// The process has ended: unfinished records stay unfinished.
    pub fn process_ended(&mut self) {
        self.ended = true;
    }

    /// Reads what is new. `now` is the monotonic time.
    pub fn poll(&mut self, budget: Budget, now: u64) -> io::Result<Poll> {
        let mut poll = Poll::default();
        let Progress { more, caught_up, .. } = self.read(budget, now, &mut poll)?;
        (poll.more, poll.caught_up) = (more, caught_up);
        Ok(poll)
    }

    /// As [`Reader::poll`], and passes on each record where it lies.
    pub fn read(
        &mut self,
        budget: Budget,
        now: u64,
        consumer: &mut impl Consumer,
    ) -> io::Result<Progress> {
        self.allowance.grow(now);
        let left = Left { records: budget.records, bytes: budget.bytes };
        let (progress, buffer) = (Progress::default(), Vec::new());
        let mut call = Call { consumer, progress, left, buffer, now };
        self.read_segments(&mut call)?;
        Ok(call.progress)
    }

    fn read_segments(&mut self, call: &mut Call<'_, impl Consumer>) -> io::Result<()> {
        self.read_on(call)?;
        let is_at_end = call.progress.at_end;
        let next = self.next.unwrap_or_default();
        // Behind the end of the log there is nothing, though the next segment is made before it is
        // needed.
        let is_passed = |until: &mut u64| next > *until || is_at_end;
        call.progress.caught_up = self.until.take_if(is_passed).is_some();
        Ok(())
    }

    /// Notes the end of the log: in any case while [`Reader::until`] is set.
    fn read_on(&mut self, call: &mut Call<'_, impl Consumer>) -> io::Result<()> {
        let extent: [u8; 16] = read_array(&self.main, EXTENT as u64)?;
        let (extent, _) = extent.as_chunks::<8>();
        let [oldest, newest] =
            [0, 1].map(|at| extent.get(at).map_or(0, |w| u64::from_le_bytes(*w)));
        let committed: [u8; 8 * MAX_SEGMENTS] = read_array(&self.main, COMMITTED as u64)?;
        let (committed, _) = committed.as_chunks::<8>();
        self.polls = self.polls.wrapping_add(1);
        self.read_late(call)?;
        let mut next = match self.next {
            Some(next) => next,
            None => {
                self.until = Some(newest.max(oldest));
                *self.next.insert(oldest)
            }
        };
        if next < oldest && !self.skip_to(oldest, newest, call) {
            return Ok(());
        }
        // Counts may be behind: the end of the log is where a record's place is free.
        let look_anyway =
            self.ended || self.until.is_some() || self.polls.is_multiple_of(LOOK_ANYWAY);
        loop {
            next = self.next.unwrap_or(next);
            let Some(number) = self.find(next, newest, &mut call.left)? else {
                let Some(later) = self.find_later(next, call.now) else {
                    // Not one that is there and was not opened yet.
                    call.progress.at_end = next > newest;
                    break;
                };
                self.losses.gaps += 1;
                self.next = Some(later);
                self.absent = None;
                continue;
            };
            let Some(tail) = self.segments.get(number).and_then(Option::as_ref) else { break };
            self.absent = None;
            let committed = committed.get(number).map_or(0, |word| u64::from_le_bytes(*word));
            let is_quiet = tail.consumed == committed && tail.waiting.is_none();
            if !tail.done && is_quiet && !look_anyway {
                call.progress.at_end = true;
                break;
            }
            if !tail.done {
                match self.read_segment(number, call)? {
                    Chunk::Done => {}
                    Chunk::Nothing => {
                        call.progress.at_end = true;
                        break;
                    }
                    Chunk::Some | Chunk::GivenBack => {
                        call.progress.more = true;
                        break;
                    }
                    Chunk::Waiting => break,
                }
            }
            let Some(after) = next.checked_add(1) else { break };
            self.next = Some(after);
        }
        Ok(())
    }

    /// Goes on with a later segment than the next one. `false`: not in this call.
    fn skip_to(&mut self, later: u64, newest: u64, call: &mut Call<'_, impl Consumer>) -> bool {
        if call.progress.records > 0 {
            // Those came before.
            call.progress.more = true;
            return false;
        }
        if self.allowance.left == 0 {
            self.losses.over_limit = true;
            return false;
        }
        self.allowance.pay(GAP_COSTS);
        self.losses.gaps += 1;
        self.next = Some(later);
        self.until = Some(newest.max(later));
        self.absent = None;
        call.consumer.gap();
        true
    }

    /// The segment at a position of the log. It may be one that was read at another position.
    fn find(&mut self, position: u64, newest: u64, left: &mut Left) -> io::Result<Option<usize>> {
        let is_there = |place: &Option<Tail<R>>| {
            place.as_ref().is_some_and(|tail| tail.is_used() && tail.order == position)
        };
        let found = self.segments.iter().position(is_there);
        if found.is_some() || position > newest {
            return Ok(found);
        }
        for tail in self.segments.iter_mut().flatten() {
            if tail.done || !tail.is_used() || tail.order < position {
                left.bytes = left.bytes.saturating_sub(size_of::<SegmentHeader>());
                tail.look_again(&self.id)?;
            }
        }
        Ok(self.segments.iter().position(is_there))
    }

    /// The position to go on at, when the next segment was not found for long.
    fn find_later(&mut self, next: u64, now: u64) -> Option<u64> {
        let used = self.segments.iter().flatten().filter(|tail| tail.is_used());
        let later = used.map(|tail| tail.order).filter(|order| *order > next).min()?;
        let since = *self.absent.get_or_insert(now);
        (self.ended || now.saturating_sub(since) >= ABSENCE).then_some(later)
    }

    /// Reads a segment until it has no more, or the budget ends.
    fn read_segment(
        &mut self,
        number: usize,
        call: &mut Call<'_, impl Consumer>,
    ) -> io::Result<Chunk> {
        loop {
            if call.left.is_used_up() {
                return Ok(Chunk::Some);
            }
            match self.read_chunk(number, call)? {
                Chunk::Some => {}
                other => return Ok(other),
            }
        }
    }

    /// Reads some records of a segment.
    fn read_chunk(
        &mut self,
        number: usize,
        call: &mut Call<'_, impl Consumer>,
    ) -> io::Result<Chunk> {
        let Some(tail) = self.segments.get_mut(number).and_then(Option::as_mut) else {
            return Ok(Chunk::Nothing);
        };
        if self.allowance.left == 0 {
            self.losses.over_limit = true;
            return Ok(Chunk::Waiting);
        }
        let room = SEGMENT_SIZE.saturating_sub(tail.position);
        call.fill(&tail.file, tail.position, room.min(CHUNK))?;
        let (committed, next) = committed_part(&call.buffer, room);
        if committed > 0 {
            tail.file.settle();
            call.fill(&tail.file, tail.position, committed)?;
        }
        if !tail.is_unchanged()? {
            return Ok(Chunk::GivenBack);
        }
        if committed > 0 {
            let most = self.allowance.left.min(call.left.records as u64) as usize;
            let (records, bytes) = call.take_records(room, most, &mut self.losses);
            tail.position += bytes;
            tail.consumed += bytes as u64;
            tail.waiting = None;
            // A segment that records fill to its last byte has no mark of its end.
            tail.done = tail.position >= SEGMENT_SIZE;
            call.left.records = call.left.records.saturating_sub(records);
            self.allowance.pay(records);
            if bytes == 0 {
                // A committed record is not committed any more.
                tail.done = true;
                self.losses.broken_segments += 1;
                return Ok(Chunk::Done);
            }
            return Ok(Chunk::Some);
        }
        match next {
            Found::Nothing if room < 8 => {
                tail.done = true;
                Ok(Chunk::Done)
            }
            Found::Nothing | Found::Committed(_) => Ok(Chunk::Nothing),
            Found::End => {
                tail.done = true;
                tail.consumed += room as u64;
                Ok(Chunk::Done)
            }
            Found::Broken => {
                tail.done = true;
                self.losses.broken_segments += 1;
                Ok(Chunk::Done)
            }
            Found::Reserved(length) => {
                let since = *tail.waiting.get_or_insert(call.now);
                if !self.ended && call.now.saturating_sub(since) < PATIENCE {
                    return Ok(Chunk::Waiting);
                }
                if self.ended || self.late.len() >= MAX_LATE {
                    self.losses.unfinished += 1;
                } else {
                    let (position, stamp) = (tail.position, tail.stamp);
                    self.late.push_back(Late { segment: number, stamp, position, length });
                }
                tail.position += length;
                tail.waiting = None;
                Ok(Chunk::Some)
            }
        }
    }

    /// Checks whether records that were stepped over are finished now.
    fn read_late(&mut self, call: &mut Call<'_, impl Consumer>) -> io::Result<()> {
        for _ in 0..self.late.len() {
            if call.left.is_used_up() {
                call.progress.more = true;
                break;
            }
            let Some(late) = self.late.pop_front() else { break };
            let Some(tail) = self.segments.get_mut(late.segment).and_then(Option::as_mut) else {
                continue;
            };
            let room = SEGMENT_SIZE.saturating_sub(late.position);
            let mut word = [0; 8];
            tail.file.read_at(late.position as u64, &mut word)?;
            if tail.stamp != late.stamp || !tail.is_unchanged()? {
                self.losses.unfinished += 1;
                continue;
            }
            match look(&word, room) {
                Found::Committed(length) if length == late.length => {
                    tail.file.settle();
                    call.fill(&tail.file, late.position, length)?;
                    if !tail.is_unchanged()? {
                        self.losses.unfinished += 1;
                        continue;
                    }
                    let (records, bytes) = call.take_records(room, 1, &mut self.losses);
                    tail.consumed += bytes as u64;
                    call.left.records = call.left.records.saturating_sub(records);
                    self.allowance.pay(records);
                    self.losses.late += records as u64;
                }
                Found::Reserved(length) if length == late.length && !self.ended => {
                    self.late.push_back(late);
                }
                _ => self.losses.unfinished += 1,
            }
        }
        Ok(())
    }
}

impl<C: Consumer> Call<'_, C> {
    /// Copies `length` bytes, or as many as there are.
    fn fill<R: ReadAt>(&mut self, file: &R, position: usize, length: usize) -> io::Result<()> {
        self.buffer.resize(length, 0);
        let read = file.read_at(position as u64, &mut self.buffer)?;
        self.buffer.truncate(read);
        self.left.bytes = self.left.bytes.saturating_sub(length);
        Ok(())
    }

    /// Passes on records from the start of the copy on, at most `most`: how many, and of how many
    /// bytes.
    fn take_records(
        &mut self,
        room: usize,
        most: usize,
        losses: &mut ReaderLosses,
    ) -> (usize, usize) {
        let mut at = 0;
        for records in 0..most {
            let rest = self.buffer.get(at..).unwrap_or_default();
            let Found::Committed(length) = look(rest, room.saturating_sub(at)) else {
                return (records, at);
            };
            let Some(record) = rest.get(..length) else { return (records, at) };
            at += length;
            let Some((header, fields)) = record.split_first_chunk::<HEADER>() else { continue };
            let header = RecordHeader::from_bytes(header);
            let cut = header.flags & FLAG_CUT != 0;
            let record = RawRecord { time: header.time, cut, kind: header.kind, fields };
            match self.consumer.record(record) {
                Ok(()) => self.progress.records += 1,
                Err(DecodeError::UnknownKind(_)) => losses.unknown_kind += 1,
                Err(_) => losses.malformed += 1,
            }
        }
        (most, at)
    }
}

/// How many bytes from the start of `bytes` on are whole committed records, and what follows them.
/// The first record may be longer than `bytes`.
fn committed_part(bytes: &[u8], room: usize) -> (usize, Found) {
    let mut at = 0;
    loop {
        match look(bytes.get(at..).unwrap_or_default(), room.saturating_sub(at)) {
            Found::Committed(length) if at == 0 || at + length <= bytes.len() => at += length,
            found => return (at, found),
        }
    }
}
