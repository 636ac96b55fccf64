//! The writer of the whole shared memory, used by the bridge.
//!
//! [`Writer`] owns the main mapping and the log segments, makes further segments when they are
//! needed, and counts every loss in the status page. All methods take `&self` and may be called by
//! any thread. The log's lock is held only to add a segment or memory, every 256 KiB of log;
//! callbacks that append may wait for each other there, never for the owner. Pushing events and
//! setting contexts takes no lock at all, so it may be done while the runtime is suspended.
//!
//! Segments that [`crate::compaction`] has emptied are given back: their memory is freed, and they
//! are used again at another position of the log. Their mappings stay, so a thread can never write
//! to memory that is gone; and all appending shares a lock ([`Quiet`] excludes it), so it can never
//! write to a segment of another position.
//!
//! In a forked child every method does nothing and returns that.
//!
//! Invariant: no method panics, blocks on another process, or raises a signal. Dropping the writer
//! unmaps the memory: the bridge drops it when no callback can be using it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard, TryLockError,
};

use crate::contexts::{Context, Contexts, Registrar, Slot};
use crate::control::ControlReader;
use crate::doorbell;
use crate::event::Event;
use crate::layout::{
    CONTEXTS, DOORBELL, MAIN_END, MAIN_NAME, MAIN_SIZE, MAX_SEGMENTS, MainHeader, OBJECTS,
    RING_CELLS, RING_DATA, RING_WORDS, SEGMENT_DATA, SEGMENT_NAME, SEGMENT_SIZE, SEGMENT_STAMP,
    SEGMENT_TAIL, SegmentHeader,
};
use crate::log::{Appended, Prepared, Segment};
use crate::memory::{Memory, Region};
use crate::objects::Objects;
use crate::owner::OwnerWatch;
use crate::record::Encode;
use crate::ring::{Pushed, Ring, RingPlaces};
use crate::shared_file::{CreateError, ForkGuard, Mapping, create, monotonic_time, random_id};
use crate::status::{Loss, State, Status};

/// What is not given back of a segment: its header lies there.
const KEPT: usize = 4096;
/// Memory is taken for the log in pieces of so many bytes.
const LOG_STEP: usize = 256 << 10;
/// The next segment is made when the last has less room than this.
const LOG_RESERVE: usize = 1 << 20;
/// After a failure to get memory, the next try waits so long.
const RETRY: u64 = 1_000_000_000;

/// Why a record or an event was lost. It has been counted already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("{}", .0.text())]
    Counted(Loss),
    #[error("this is a forked child of the process that was attached to")]
    Forked,
}

#[derive(Debug)]
struct LogSegment {
    mapping: Mapping,
    /// Bytes of it that have memory.
    populated: AtomicUsize,
    /// It was given back, and can be used again.
    is_free: AtomicBool,
}

/// Which segments the log is made of.
#[derive(Debug)]
struct Order {
    /// The position of the first.
    oldest: u64,
    /// Their numbers; never longer than its capacity.
    numbers: Vec<u8>,
}

impl Order {
    fn position(&self, index: usize) -> u64 {
        self.oldest + index as u64
    }
}

/// While it exists, no record is being appended.
#[derive(Debug)]
pub(crate) struct Quiet<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

/// The outcome of appending a record once more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AppendedAgain {
    Done,
    /// There must be more memory first, up to here.
    NoRoom(usize),
    /// The segment is full.
    Full,
}

/// The bridge's side of the shared memory.
#[derive(Debug)]
pub struct Writer {
    /// First of all to be dropped: when no memory is mapped any more, no descriptor is open either.
    watch: Mutex<OwnerWatch>,
    main: Mapping,
    id: [u8; 16],
    guard: Arc<ForkGuard>,
    segments: [OnceLock<LogSegment>; MAX_SEGMENTS],
    current: AtomicUsize,
    /// There is a segment behind the current one.
    has_next: AtomicBool,
    growing: Mutex<Order>,
    /// Shared by all threads that append.
    appending: RwLock<()>,
    /// Before this time no memory is asked for again.
    retry: AtomicU64,
    /// The lookup thread has been asked to make memory ready.
    wants_memory: AtomicBool,
    ring_ready: AtomicBool,
    objects_ready: AtomicBool,
    registrar: Registrar,
}

impl Writer {
    /// Makes the main file and the first segment.
    pub fn create() -> Result<Self, CreateError> {
        let guard = Arc::new(ForkGuard::new()?);
        let id = random_id();
        let file = create(MAIN_NAME, MAIN_SIZE, &MainHeader::new(id).to_bytes())?;
        let main = Mapping::new(&file, MAIN_SIZE, &guard)?;
        main.populate(0, RING_WORDS)?;
        let watch =
            OwnerWatch::new(file).map_err(|source| CreateError::Call { call: "fstat", source })?;
        let writer = Self {
            main,
            id,
            guard,
            segments: std::array::from_fn(|_| OnceLock::new()),
            current: AtomicUsize::new(0),
            has_next: AtomicBool::new(false),
            growing: Mutex::new(Order { oldest: 0, numbers: Vec::with_capacity(MAX_SEGMENTS) }),
            appending: RwLock::new(()),
            retry: AtomicU64::new(0),
            wants_memory: AtomicBool::new(false),
            ring_ready: AtomicBool::new(false),
            objects_ready: AtomicBool::new(false),
            registrar: Registrar::default(),
            watch: Mutex::new(watch),
        };
        writer.add_segment(&mut writer.order())?;
        writer.status().set_created(monotonic_time());
        writer.status().set_pid(std::process::id());
        writer.status().set_state(State::Starting);
        Ok(writer)
    }

    /// The id of this writer's files.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Whether this is a forked child, which may not write.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        !self.guard.is_creator()
    }

    /// The bridge's status. Not to be used in a forked child.
    #[must_use]
    pub fn status(&self) -> Status<'_, Region> {
        Status::new(self.main.region())
    }

    /// What the owner wants. Not to be used in a forked child.
    #[must_use]
    pub fn control(&self) -> ControlReader<'_, Region> {
        ControlReader::new(self.main.region())
    }

    /// Whether an owner lives.
    #[must_use]
    pub fn owner_lives(&self, now: u64) -> bool {
        if self.is_forked() {
            return false;
        }
        let beat = self.control().beat();
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).lives(beat, now)
    }

    /// Takes the ownership for the bridge itself, so that no owner comes while it leaves. `false`:
    /// there is an owner.
    #[must_use]
    pub fn claim(&self) -> bool {
        !self.is_forked() && self.watch.lock().unwrap_or_else(PoisonError::into_inner).claim()
    }

    /// Lets owners come again.
    pub fn unclaim(&self) {
        if !self.is_forked() {
            self.watch.lock().unwrap_or_else(PoisonError::into_inner).unclaim();
        }
    }

    /// What the lookup thread reads before it looks at anything, for [`Writer::wait`].
    #[must_use]
    pub fn doorbell(&self) -> u32 {
        self.doorbell_word().map_or(0, doorbell::value)
    }

    /// Sleeps until the doorbell rings, or has been rung since it was read, or the time is over.
    pub fn wait(&self, seen: u32, nanoseconds: u64) {
        if let Some(word) = self.doorbell_word() {
            doorbell::wait(word, seen, nanoseconds);
        }
    }

    /// Lets the lookup thread look at everything. Never waits.
    pub fn ring(&self) {
        if let Some(word) = self.doorbell_word() {
            doorbell::ring(word);
        }
    }

    fn doorbell_word(&self) -> Option<&AtomicU64> {
        if self.is_forked() { None } else { self.main.region().word(DOORBELL) }
    }

    fn lost(&self, loss: Loss) -> Lost {
        self.status().lost(loss, 1);
        Lost::Counted(loss)
    }

    /// Appends a record to the log.
    pub fn append<E: Encode>(&self, time: u64, record: &E) -> Result<(), Lost> {
        if self.is_forked() {
            return Err(Lost::Forked);
        }
        let Some(prepared) = Prepared::new(time, record) else {
            return Err(self.lost(Loss::RecordTooLong));
        };
        if prepared.is_cut() {
            self.status().lost(Loss::RecordCut, 1);
        }
        let _shared = self.appending.read().unwrap_or_else(PoisonError::into_inner);
        self.append_prepared(time, &prepared).map_err(|loss| self.lost(loss))
    }

    fn append_prepared<E: Encode>(&self, now: u64, record: &Prepared<'_, E>) -> Result<(), Loss> {
        // Each segment is at most grown to its end, and then left.
        for _ in 0..MAX_SEGMENTS * (SEGMENT_SIZE / LOG_STEP + 2) {
            let number = self.current.load(Ordering::Acquire);
            let segment = self.segments.get(number).and_then(OnceLock::get).ok_or(Loss::LogFull)?;
            let populated = segment.populated.load(Ordering::Acquire);
            let region = segment.mapping.region();
            match Segment::new(region, SEGMENT_SIZE).append(record, populated) {
                Appended::Done(length) => {
                    self.status().committed(number, length);
                    self.ask_for_memory(segment, now);
                    return Ok(());
                }
                Appended::BeyondLimit(end) => self.populate_log(segment, end, now)?,
                Appended::Full(closed) => {
                    self.status().committed(number, closed);
                    self.leave_segment(number, now)?;
                }
                Appended::Contended => break,
            }
        }
        Err(Loss::LogContended)
    }

    /// Makes memory ready before it is needed, so that callbacks do not have to. For the lookup
    /// thread, every time it looks: it is woken when that is worth it.
    pub fn prepare_log(&self, now: u64) {
        if self.is_forked() {
            return;
        }
        self.wants_memory.store(false, Ordering::Relaxed);
        let number = self.current.load(Ordering::Acquire);
        let Some(segment) = self.segments.get(number).and_then(OnceLock::get) else { return };
        let (wanted, is_next_wanted) = self.wanted_memory(segment);
        // What fails here is tried again, and counted, when a record needs it.
        _ = self.populate_log(segment, wanted, now);
        if is_next_wanted {
            _ = self.ensure_next(&mut self.order(), now);
        }
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        self.growing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much of the current segment is to have memory by now, and whether the next one is to be
    /// made.
    fn wanted_memory(&self, segment: &LogSegment) -> (usize, bool) {
        let room = Segment::new(segment.mapping.region(), SEGMENT_SIZE).room();
        let wanted = (SEGMENT_SIZE - room.min(SEGMENT_SIZE) + LOG_STEP / 2).min(SEGMENT_SIZE);
        (wanted, room < LOG_RESERVE && !self.has_next.load(Ordering::Relaxed))
    }

    /// Wakes the lookup thread when memory runs short: once for every piece of it.
    fn ask_for_memory(&self, segment: &LogSegment, now: u64) {
        let (wanted, is_next_wanted) = self.wanted_memory(segment);
        let is_short = is_next_wanted || segment.populated.load(Ordering::Relaxed) < wanted;
        // After a failure it is not woken for every record.
        if is_short
            && now >= self.retry.load(Ordering::Relaxed)
            && !self.wants_memory.swap(true, Ordering::Relaxed)
        {
            self.ring();
        }
    }

    fn populate_log(&self, segment: &LogSegment, end: usize, now: u64) -> Result<(), Loss> {
        if segment.populated.load(Ordering::Acquire) >= end {
            return Ok(());
        }
        let _held = self.order();
        let populated = segment.populated.load(Ordering::Acquire);
        if populated >= end {
            return Ok(());
        }
        let wanted = end.next_multiple_of(LOG_STEP).min(SEGMENT_SIZE);
        self.with_memory(now, || segment.mapping.populate(populated, wanted - populated))?;
        segment.populated.store(wanted, Ordering::Release);
        Ok(())
    }

    fn leave_segment(&self, number: usize, now: u64) -> Result<(), Loss> {
        let mut order = self.order();
        if self.current.load(Ordering::Acquire) != number {
            return Ok(());
        }
        self.ensure_next(&mut order, now)?;
        if let Some(next) = order.numbers.last() {
            self.current.store(usize::from(*next), Ordering::Release);
            self.has_next.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Adds a segment behind the current one, unless there is one.
    fn ensure_next(&self, order: &mut Order, now: u64) -> Result<(), Loss> {
        let current = self.current.load(Ordering::Acquire);
        if order.numbers.last().is_some_and(|last| usize::from(*last) != current) {
            return Ok(());
        }
        if self.unused_segment().is_none() {
            // The lookup thread need not be woken for one until a segment is given back.
            self.has_next.store(true, Ordering::Relaxed);
            return Err(Loss::LogFull);
        }
        self.with_memory(now, || self.add_segment(order))
    }

    /// The number of a segment that was given back or never made.
    fn unused_segment(&self) -> Option<usize> {
        let is_free = |place: &OnceLock<LogSegment>| {
            place.get().is_some_and(|segment| segment.is_free.load(Ordering::Acquire))
        };
        let is_new = |place: &OnceLock<LogSegment>| place.get().is_none();
        self.segments.iter().position(is_free).or_else(|| self.segments.iter().position(is_new))
    }

    /// Adds a segment to the end of the log.
    fn add_segment(&self, order: &mut Order) -> Result<(), CreateError> {
        let Some(number) = self.unused_segment() else { return Ok(()) };
        let position = order.position(order.numbers.len());
        match self.segments.get(number).and_then(OnceLock::get) {
            Some(segment) => use_again(segment, position)?,
            None => self.make_segment(number, position)?,
        }
        order.numbers.push(number as u8);
        self.has_next.store(order.numbers.len() > 1, Ordering::Relaxed);
        self.status().set_newest_segment(position);
        Ok(())
    }

    /// Tries to get memory, but not right after that failed.
    fn with_memory(
        &self,
        now: u64,
        get: impl FnOnce() -> Result<(), CreateError>,
    ) -> Result<(), Loss> {
        if now < self.retry.load(Ordering::Relaxed) {
            return Err(Loss::LogMemory);
        }
        get().map_err(|_| {
            self.retry.store(now.saturating_add(RETRY), Ordering::Relaxed);
            Loss::LogMemory
        })
    }

    /// The file is closed when it is mapped: the app's descriptors stay its own.
    fn make_segment(&self, number: usize, position: u64) -> Result<(), CreateError> {
        let header = SegmentHeader::at(self.id, number as u32, position).to_bytes();
        let file = create(SEGMENT_NAME, SEGMENT_SIZE, &header)?;
        let mapping = Mapping::new(&file, SEGMENT_SIZE, &self.guard)?;
        mapping.populate(0, LOG_STEP)?;
        let segment = LogSegment {
            mapping,
            populated: AtomicUsize::new(LOG_STEP),
            is_free: AtomicBool::new(false),
        };
        if let Some(place) = self.segments.get(number)
            && place.set(segment).is_ok()
        {
            self.status().set_segments(number + 1);
        }
        Ok(())
    }

    /// The positions of the log's oldest segment and of the one that is appended to.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let order = self.order();
        let current = self.current.load(Ordering::Acquire);
        let index = order.numbers.iter().position(|number| usize::from(*number) == current);
        (order.oldest, order.position(index.unwrap_or_default()))
    }

    /// The memory of the segment at a position of the log.
    pub(crate) fn segment_at(&self, position: u64) -> Option<&Region> {
        let order = self.order();
        let index = usize::try_from(position.checked_sub(order.oldest)?).ok()?;
        let number = usize::from(*order.numbers.get(index)?);
        drop(order);
        self.segments.get(number)?.get().map(|segment| segment.mapping.region())
    }

    /// Whether segments were given back.
    #[must_use]
    pub fn was_compacted(&self) -> bool {
        !self.is_forked() && self.order().oldest > 0
    }

    /// Excludes appending, if no record is being appended right now: threads that append never wait
    /// for one that waits for them.
    pub(crate) fn quiet(&self) -> Option<Quiet<'_>> {
        match self.appending.try_write() {
            Ok(held) => Some(Quiet(held)),
            Err(TryLockError::Poisoned(held)) => Some(Quiet(held.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Appends a record once more. It takes no memory, so it is quick.
    pub(crate) fn append_again<E: Encode>(
        &self,
        _quiet: &Quiet<'_>,
        record: &Prepared<'_, E>,
    ) -> AppendedAgain {
        let number = self.current.load(Ordering::Acquire);
        let Some(segment) = self.segments.get(number).and_then(OnceLock::get) else {
            return AppendedAgain::Full;
        };
        let populated = segment.populated.load(Ordering::Acquire);
        match Segment::new(segment.mapping.region(), SEGMENT_SIZE).append(record, populated) {
            Appended::Done(length) => {
                self.status().committed(number, length);
                AppendedAgain::Done
            }
            Appended::BeyondLimit(end) => AppendedAgain::NoRoom(end),
            Appended::Full(closed) => {
                self.status().committed(number, closed);
                AppendedAgain::Full
            }
            Appended::Contended => AppendedAgain::Full,
        }
    }

    /// Makes room for a record that [`Writer::append_again`] had none for.
    pub(crate) fn make_room(&self, lacking: &AppendedAgain, now: u64) -> Result<(), Loss> {
        let number = self.current.load(Ordering::Acquire);
        let segment = self.segments.get(number).and_then(OnceLock::get).ok_or(Loss::LogFull)?;
        match lacking {
            AppendedAgain::Done => Ok(()),
            AppendedAgain::NoRoom(end) => self.populate_log(segment, *end, now),
            // The next record closes it, if this is another one by now.
            AppendedAgain::Full if self.is_closed(segment) => self.leave_segment(number, now),
            AppendedAgain::Full => Ok(()),
        }
    }

    fn is_closed(&self, segment: &LogSegment) -> bool {
        Segment::new(segment.mapping.region(), SEGMENT_SIZE).is_closed()
    }

    /// Takes the oldest segment out of the log, of which every living record was appended once
    /// more, and frees its memory. A reader that is still in it sees the stamp change
    /// ([`SegmentHeader::stamp`]).
    pub(crate) fn give_back_oldest(&self, quiet: Quiet<'_>) {
        let mut order = self.order();
        let current = self.current.load(Ordering::Acquire);
        let Some(number) = order.numbers.first().map(|number| usize::from(*number)) else { return };
        let Some(segment) = self.segments.get(number).and_then(OnceLock::get) else { return };
        if number == current {
            return;
        }
        order.numbers.remove(0);
        order.oldest += 1;
        self.status().set_oldest_segment(order.oldest);
        let region = segment.mapping.region();
        if let Some(stamp) = region.word(SEGMENT_STAMP) {
            stamp.store(stamp.load(Ordering::Relaxed) | 1, Ordering::SeqCst);
        }
        region.fence(Ordering::SeqCst);
        drop(order);
        drop(quiet);
        // No thread appends here until it is free.
        self.status().clear_committed(number);
        if segment.mapping.free(KEPT, SEGMENT_SIZE - KEPT).is_ok() {
            segment.populated.store(KEPT, Ordering::Release);
        } else {
            // The process has locked its memory: it keeps this, and the log uses it again.
            clear(region, KEPT, SEGMENT_SIZE);
        }
        clear(region, SEGMENT_DATA, KEPT);
        segment.is_free.store(true, Ordering::Release);
        let order = self.order();
        let current = self.current.load(Ordering::Acquire);
        let has_next = order.numbers.last().is_some_and(|last| usize::from(*last) != current);
        self.has_next.store(has_next, Ordering::Relaxed);
    }

    /// Takes the ring's memory: when the first owner requests events. Until then they are lost.
    pub fn prepare_ring(&self) -> Result<(), CreateError> {
        if self.is_forked() || self.ring_ready.load(Ordering::Acquire) {
            return Ok(());
        }
        let end = (RING_DATA + RING_CELLS * RingPlaces::MAIN.cell).min(MAIN_SIZE);
        self.main.populate(RING_WORDS, end - RING_WORDS)?;
        self.ring_ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes the memory for watched objects.
    pub fn prepare_objects(&self) -> Result<(), CreateError> {
        if !self.is_forked() && !self.objects_ready.load(Ordering::Acquire) {
            self.main.populate(OBJECTS, MAIN_END - OBJECTS)?;
            self.objects_ready.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The watched objects; `None` in a forked child, and before there is memory for them.
    #[must_use]
    pub fn objects(&self) -> Option<Objects<'_, Region>> {
        let is_ready = !self.is_forked() && self.objects_ready.load(Ordering::Acquire);
        is_ready.then(|| Objects::new(self.main.region()))
    }

    /// Pushes an event. Never waits.
    pub fn push(&self, event: &Event<'_>) -> Result<(), Lost> {
        if self.is_forked() {
            return Err(Lost::Forked);
        }
        if !self.ring_ready.load(Ordering::Acquire) {
            return Err(self.lost(Loss::RingAbsent));
        }
        match Ring::new(self.main.region(), RingPlaces::MAIN).push(event) {
            Pushed::Done => Ok(()),
            Pushed::Full => Err(self.lost(Loss::RingFull)),
            Pushed::TooLong => Err(self.lost(Loss::EventTooLong)),
            Pushed::Contended => Err(self.lost(Loss::RingContended)),
        }
    }

    /// Gives a thread its slot in the context table.
    pub fn register_thread(&self, tid: u32) -> Result<Slot, Lost> {
        if self.is_forked() {
            return Err(Lost::Forked);
        }
        Contexts::new(self.main.region())
            .register(&self.registrar, tid)
            .ok_or_else(|| self.lost(Loss::ContextFull))
    }

    /// Takes the slot of a thread back: called by the thread itself, or when it has ended.
    pub fn remove_thread(&self, tid: u32) {
        if !self.is_forked() {
            Contexts::new(self.main.region()).remove(&self.registrar, tid);
        }
    }

    /// Publishes what a thread is doing from now on. Never waits.
    pub fn set_context(&self, slot: Slot, context: &Context) -> Result<(), Lost> {
        if self.is_forked() {
            return Err(Lost::Forked);
        }
        if Contexts::new(self.main.region()).set(slot, context) {
            return Ok(());
        }
        Err(self.lost(Loss::ContextContended))
    }

    /// What a thread has set last.
    #[must_use]
    pub fn context(&self, slot: Slot) -> Option<Context> {
        if self.is_forked() {
            return None;
        }
        Contexts::new(self.main.region()).get(slot)
    }
}

/// Zeroes a part of a segment.
fn clear(region: &Region, from: usize, to: usize) {
    for at in (from..to).step_by(128) {
        region.write(at, &[0; 128]);
    }
}

/// Begins a segment that was given back at another position of the log.
fn use_again(segment: &LogSegment, position: u64) -> Result<(), CreateError> {
    let populated = segment.populated.load(Ordering::Acquire);
    if populated < LOG_STEP {
        segment.mapping.populate(populated, LOG_STEP - populated)?;
        segment.populated.store(LOG_STEP, Ordering::Release);
    }
    let region = segment.mapping.region();
    let store = |offset, value, order| {
        if let Some(word) = region.word(offset) {
            word.store(value, order);
        }
    };
    let stamp = region.word(SEGMENT_STAMP).map_or(0, |word| word.load(Ordering::Relaxed));
    store(SEGMENT_TAIL, SEGMENT_DATA as u64, Ordering::Relaxed);
    store(SEGMENT_STAMP + 8, position, Ordering::Relaxed);
    store(SEGMENT_STAMP, (stamp | 1).wrapping_add(1), Ordering::SeqCst);
    segment.is_free.store(false, Ordering::Release);
    Ok(())
}

const _: () = {
    // Pieces that `populate` takes are whole pages.
    assert!(RING_WORDS.is_multiple_of(4096) && RING_DATA.is_multiple_of(4096));
    assert!(OBJECTS.is_multiple_of(4096) && MAIN_END.is_multiple_of(4096));
    assert!(CONTEXTS.is_multiple_of(4096) && SEGMENT_SIZE.is_multiple_of(LOG_STEP));
    assert!(KEPT < LOG_STEP && SEGMENT_DATA < KEPT && SEGMENT_DATA.is_multiple_of(128));
};
