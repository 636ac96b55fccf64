//! The writer of the whole shared memory, used by the bridge.
//!
//! [`Writer`] owns the main mapping and the log segments, makes further segments when they are
//! needed, and counts every loss in the status page. All methods take `&self` and may be called by
//! any thread. The log's lock is held only to add a segment or memory, every 256 KiB of log;
//! callbacks that append may wait for each other there, never for the owner. Pushing events and
//! setting contexts takes no lock at all, so it may be done while the runtime is suspended.
//!
//! In a forked child every method does nothing and returns that.
//!
//! Invariant: no method panics, blocks on another process, or raises a signal. Dropping the writer
//! unmaps the memory: the bridge drops it when no callback can be using it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::contexts::{Context, Contexts, Registrar, Slot};
use crate::control::ControlReader;
use crate::doorbell;
use crate::event::Event;
use crate::layout::{
    CONTEXTS, DOORBELL, MAIN_END, MAIN_NAME, MAIN_SIZE, MAX_SEGMENTS, MainHeader, OBJECTS,
    RING_CELLS, RING_DATA, RING_WORDS, SEGMENT_DATA, SEGMENT_NAME, SEGMENT_SIZE, SegmentHeader,
};
use crate::log::{Appended, Prepared, Segment};
use crate::memory::{Memory, Region};
use crate::objects::Objects;
use crate::owner::OwnerWatch;
use crate::record::Encode;
use crate::ring::{Pushed, Ring, RingPlaces};
use crate::shared_file::{CreateError, ForkGuard, Mapping, create, monotonic_time, random_id};
use crate::status::{Loss, State, Status};

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
    growing: Mutex<()>,
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
            growing: Mutex::new(()),
            retry: AtomicU64::new(0),
            wants_memory: AtomicBool::new(false),
            ring_ready: AtomicBool::new(false),
            objects_ready: AtomicBool::new(false),
            registrar: Registrar::default(),
            watch: Mutex::new(watch),
        };
        writer.make_segment(0)?;
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
                    self.ask_for_memory(number, segment, now);
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
        let (wanted, is_next_wanted) = self.wanted_memory(number, segment);
        // What fails here is tried again, and counted, when a record needs it.
        _ = self.populate_log(segment, wanted, now);
        if is_next_wanted {
            let _held = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
            _ = self.ensure_segment(number + 1, now);
        }
    }

    /// How much of the current segment is to have memory by now, and whether the next one is to be
    /// made.
    fn wanted_memory(&self, number: usize, segment: &LogSegment) -> (usize, bool) {
        let room = Segment::new(segment.mapping.region(), SEGMENT_SIZE).room();
        let wanted = (SEGMENT_SIZE - room.min(SEGMENT_SIZE) + LOG_STEP / 2).min(SEGMENT_SIZE);
        let next = self.segments.get(number + 1);
        (wanted, room < LOG_RESERVE && next.is_some_and(|next| next.get().is_none()))
    }

    /// Wakes the lookup thread when memory runs short: once for every piece of it.
    fn ask_for_memory(&self, number: usize, segment: &LogSegment, now: u64) {
        let (wanted, is_next_wanted) = self.wanted_memory(number, segment);
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
        let _held = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
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
        let _held = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.current.load(Ordering::Acquire) != number {
            return Ok(());
        }
        self.ensure_segment(number + 1, now)?;
        self.current.store(number + 1, Ordering::Release);
        Ok(())
    }

    /// Makes a segment unless it is there. The caller holds the lock.
    fn ensure_segment(&self, number: usize, now: u64) -> Result<(), Loss> {
        if self.segments.get(number).ok_or(Loss::LogFull)?.get().is_some() {
            return Ok(());
        }
        self.with_memory(now, || self.make_segment(number))
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
    fn make_segment(&self, number: usize) -> Result<(), CreateError> {
        let header = SegmentHeader::new(self.id, number as u32).to_bytes();
        let file = create(SEGMENT_NAME, SEGMENT_SIZE, &header)?;
        let mapping = Mapping::new(&file, SEGMENT_SIZE, &self.guard)?;
        mapping.populate(0, LOG_STEP)?;
        let segment = LogSegment { mapping, populated: AtomicUsize::new(LOG_STEP) };
        if let Some(place) = self.segments.get(number)
            && place.set(segment).is_ok()
        {
            self.status().set_segments(number + 1);
        }
        Ok(())
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

const _: () = {
    // Pieces that `populate` takes are whole pages.
    assert!(RING_WORDS.is_multiple_of(4096) && RING_DATA.is_multiple_of(4096));
    assert!(OBJECTS.is_multiple_of(4096) && MAIN_END.is_multiple_of(4096));
    assert!(CONTEXTS.is_multiple_of(4096) && SEGMENT_SIZE.is_multiple_of(LOG_STEP));
    assert!(SEGMENT_DATA < LOG_STEP);
};
