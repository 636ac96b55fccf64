//! The writer's algorithms and the real reader under a model checker: every interleaving, and every
//! stale value that the memory model allows, for small numbers of threads and records.
//!
//! The memory is the checker's; the code is the crate's own, by its `Memory` and `ReadAt`
//! parameters.

mod checker;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use checker::{Bounds, ModelMemory, World, check, spawn};
use strata_bridge_protocol::contexts::{Context, Contexts, Registrar};
use strata_bridge_protocol::event::{Event, EventRecord};
use strata_bridge_protocol::layout::{
    CONTEXT_SLOTS, CONTEXTS, MainHeader, RECORD_COMMITTED, SEGMENT_DATA, STATUS, SegmentHeader,
    StatusPage, context_place,
};
use strata_bridge_protocol::log::{Appended, Prepared, RecordWord, Segment};
use strata_bridge_protocol::memory::{Memory, Word};
use strata_bridge_protocol::reader::ring::RingReader;
use strata_bridge_protocol::reader::{Budget, Limits, ReadAt, Reader, ReaderLosses};
use strata_bridge_protocol::record::{MethodUnload, NotFound, Record};
use strata_bridge_protocol::ring::{CellWord, Pushed, Ring, RingPlaces, tail_check};

/// What the reader reads: by relaxed loads, as little ordered as a copy by the kernel.
#[derive(Clone)]
struct ModelFile {
    /// What lies before the memory.
    fixed: &'static [u8],
    memory: Option<Arc<ModelMemory>>,
}

impl ModelFile {
    fn shared(memory: &Arc<ModelMemory>) -> Self {
        Self { fixed: &[], memory: Some(Arc::clone(memory)) }
    }
}

impl ReadAt for ModelFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let memory = match &self.memory {
            Some(memory) if offset as usize >= self.fixed.len() => memory,
            _ => return self.fixed.read_at(offset, buffer),
        };
        let mut read = 0;
        for chunk in buffer.chunks_mut(8) {
            let Some(word) = memory.word(offset as usize + read) else { break };
            let value = word.load(Ordering::Relaxed).to_le_bytes();
            chunk.copy_from_slice(&value[..chunk.len()]);
            read += chunk.len();
        }
        Ok(read)
    }

    fn settle(&self) {
        if let Some(memory) = &self.memory {
            memory.fence(Ordering::Acquire);
        }
    }
}

/// Enough for every mistake that was planted for a trial.
const BOUNDS: Bounds = Bounds { preemptions: 2, stale: 2 };
/// For three threads, which have many more orders.
const THREE: Bounds = Bounds { preemptions: 1, stale: 2 };

// The log.

const ID: [u8; 16] = [7; 16];
/// A `NotFound` takes three words.
const RECORD: usize = 24;

fn segment(world: &Arc<World>, records: usize) -> Arc<ModelMemory> {
    let header = SegmentHeader::new(ID, 0).to_bytes();
    ModelMemory::new(world, 0, &header, (SEGMENT_DATA + records * RECORD) / 8)
}

fn append(memory: &ModelMemory, size: usize, ip: u64) -> Appended {
    let record = NotFound { ip };
    let prepared = Prepared::new(ip, &record).expect("short");
    Segment::new(memory, size).append(&prepared, size)
}

/// A main file in whose log there is always something new.
static MAIN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut main = MainHeader::new(ID).to_bytes().to_vec();
    main.resize(STATUS, 0);
    main.extend(StatusPage { committed: [u64::MAX; 64], ..StatusPage::zero() }.to_bytes());
    main
});

fn reader(memory: &Arc<ModelMemory>) -> Reader<ModelFile> {
    let main = ModelFile { fixed: &MAIN, memory: None };
    let mut reader = Reader::new(main, Limits::default()).expect("a main file");
    reader.add_segment(ModelFile::shared(memory)).expect("a segment");
    reader
}

/// What a poll delivers; every record is whole.
fn read(reader: &mut Reader<ModelFile>) -> Vec<u64> {
    let poll = reader.poll(Budget::default(), 0).expect("memory can be read");
    poll.entries
        .iter()
        .map(|entry| match entry.record {
            Record::NotFound(NotFound { ip }) => {
                assert_eq!(entry.time, ip, "a torn record");
                ip
            }
            _ => panic!("no test wrote {entry:?}"),
        })
        .collect()
}

#[test]
fn what_two_threads_append_is_read_once_and_whole_while_they_write() {
    check(THREE, |world| {
        let memory = segment(world, 2);
        let size = SEGMENT_DATA + 2 * RECORD;
        let writers = [11, 21].map(|ip| {
            let memory = Arc::clone(&memory);
            spawn(world, move || append(&memory, size, ip))
        });
        let mut reader = reader(&memory);
        let mut seen = read(&mut reader);
        for writer in writers {
            assert_eq!(writer.join(), Appended::Done(24));
        }
        seen.extend(read(&mut reader));
        assert_eq!(seen.len(), 2);
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([11, 21]));
        assert_eq!(reader.losses(), ReaderLosses::default());
    });
}

#[test]
fn one_threads_records_keep_their_order_while_they_are_read() {
    check(BOUNDS, |world| {
        let memory = segment(world, 2);
        let size = SEGMENT_DATA + 2 * RECORD;
        let writer = Arc::clone(&memory);
        let writer = spawn(world, move || {
            assert_eq!(append(&writer, size, 11), Appended::Done(24));
            assert_eq!(append(&writer, size, 12), Appended::Done(24));
        });
        let mut reader = reader(&memory);
        let mut seen = read(&mut reader);
        writer.join();
        seen.extend(read(&mut reader));
        assert_eq!(seen, [11, 12]);
        assert_eq!(reader.losses(), ReaderLosses::default());
    });
}

#[test]
fn three_appends_by_two_threads_are_all_there() {
    check(BOUNDS, |world| {
        let memory = segment(world, 3);
        let size = SEGMENT_DATA + 3 * RECORD;
        let first = Arc::clone(&memory);
        let first = spawn(world, move || {
            assert_eq!(append(&first, size, 11), Appended::Done(24));
            assert_eq!(append(&first, size, 12), Appended::Done(24));
        });
        assert_eq!(append(&memory, size, 21), Appended::Done(24));
        first.join();
        let seen = read(&mut reader(&memory));
        assert_eq!(seen.iter().copied().filter(|ip| *ip < 20).collect::<Vec<_>>(), [11, 12]);
        assert_eq!(seen.len(), 3);
    });
}

#[test]
fn the_last_room_of_a_segment_goes_to_one_thread_and_its_end_is_closed_once() {
    check(BOUNDS, |world| {
        let memory = segment(world, 2);
        let size = SEGMENT_DATA + RECORD + 8;
        let writers: Vec<_> = [11, 21]
            .map(|ip| {
                let memory = Arc::clone(&memory);
                spawn(world, move || append(&memory, size, ip))
            })
            .into_iter()
            .collect();
        let results: Vec<Appended> = writers.into_iter().map(|writer| writer.join()).collect();
        let done = results.iter().filter(|result| **result == Appended::Done(24)).count();
        let closed = results.iter().filter(|result| **result == Appended::Full(8)).count();
        assert_eq!((done, closed), (1, 1), "{results:?}");
        assert_eq!(read(&mut reader(&memory)).len(), 1);
    });
}

#[test]
fn a_segment_is_closed_or_appended_to_at_its_last_place_never_both() {
    check(BOUNDS, |world| {
        let memory = segment(world, 2);
        let size = SEGMENT_DATA + RECORD;
        let long = Arc::clone(&memory);
        let long = spawn(world, move || {
            let record = MethodUnload { function: 31, start: 31 };
            let prepared = Prepared::new(31, &record).expect("short");
            Segment::new(&*long, size).append(&prepared, size)
        });
        let short = append(&memory, size, 11);
        let long = long.join();
        let read = read(&mut reader(&memory));
        match (short, long) {
            (Appended::Done(24), Appended::Full(0)) => assert_eq!(read, [11]),
            (Appended::Full(0), Appended::Full(24)) => assert_eq!(read, []),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_record_longer_than_its_neighbour_never_overlaps_it() {
    check(BOUNDS, |world| {
        let memory = segment(world, 3);
        let size = SEGMENT_DATA + 3 * RECORD;
        let long = Arc::clone(&memory);
        let long = spawn(world, move || {
            let record = MethodUnload { function: 31, start: 31 };
            let prepared = Prepared::new(31, &record).expect("short");
            assert_eq!(Segment::new(&*long, size).append(&prepared, size), Appended::Done(32));
        });
        assert_eq!(append(&memory, size, 11), Appended::Done(24));
        long.join();
        let mut reader = reader(&memory);
        let entries = reader.poll(Budget::default(), 0).expect("memory can be read").entries;
        let records: Vec<Record> = entries.into_iter().map(|entry| entry.record).collect();
        assert!(records.contains(&Record::NotFound(NotFound { ip: 11 })), "{records:?}");
        let unload = Record::MethodUnload(MethodUnload { function: 31, start: 31 });
        assert!(records.contains(&unload), "{records:?}");
    });
}

/// The checker is not asleep: without the release, it finds a torn record.
#[test]
fn a_commit_that_does_not_release_is_found_out() {
    static TORN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    check(BOUNDS, |world| {
        let memory = segment(world, 1);
        let writer = Arc::clone(&memory);
        let writer = spawn(world, move || {
            writer.write(SEGMENT_DATA + 8, &5_u64.to_le_bytes());
            writer.write(SEGMENT_DATA + 16, &5_u64.to_le_bytes());
            let word = RecordWord { length: 24, kind: 8, flags: 0, state: RECORD_COMMITTED };
            writer.word(SEGMENT_DATA).expect("inside").store(word.pack(), Ordering::Relaxed);
        });
        let poll = reader(&memory).poll(Budget::default(), 0).expect("memory can be read");
        let torn = poll.entries.iter().any(|entry| entry.time != 5);
        TORN.fetch_or(torn, Ordering::Relaxed);
        writer.join();
    });
    assert!(TORN.load(Ordering::Relaxed));
}

// The ring.

const CELLS: usize = 2;
/// Head, tail and check, a word for each cell, the cells.
const PLACES: RingPlaces = RingPlaces {
    head: 0,
    tail: 8,
    tail_check: 16,
    tail_seen: 24,
    words: 32,
    data: 32 + 8 * CELLS,
    cells: CELLS,
    cell: 64,
};

fn ring(world: &Arc<World>) -> Arc<ModelMemory> {
    let mut start = [0; 24];
    start[16..].copy_from_slice(&tail_check(0).to_le_bytes());
    ModelMemory::new(world, 0, &start, 4 + CELLS + 8 * CELLS)
}

fn push(memory: &ModelMemory, number: u64) -> Pushed {
    let event = Event { kind: 1, time: number, frames: &[number], ..Event::default() };
    Ring::new(memory, PLACES).push(&event)
}

/// Takes events and gives their cells back.
fn take(reader: &mut RingReader, memory: &Arc<ModelMemory>) -> Vec<u64> {
    let mut losses = ReaderLosses::default();
    let file = ModelFile::shared(memory);
    let taken = reader.poll(&file, Budget::default(), &mut losses).expect("memory can be read");
    assert_eq!(losses, ReaderLosses::default(), "an honest ring makes sense");
    let word = |offset| memory.word(offset).expect("inside");
    word(PLACES.tail).store(taken.tail, Ordering::Release);
    word(PLACES.tail_check).store(tail_check(taken.tail), Ordering::Release);
    taken.events.iter().map(whole).collect()
}

fn whole(event: &EventRecord) -> u64 {
    assert_eq!((event.kind, &event.frames), (1, &vec![event.time]), "a torn event");
    event.time
}

#[test]
fn every_event_is_taken_once_and_whole_or_was_dropped() {
    check(THREE, |world| {
        let memory = ring(world);
        let mut reader = RingReader::new(&ModelFile::shared(&memory), PLACES).expect("a ring");
        let writers = [10, 20].map(|number| {
            let memory = Arc::clone(&memory);
            spawn(world, move || push(&memory, number))
        });
        let mut taken = take(&mut reader, &memory);
        for writer in writers {
            assert_eq!(writer.join(), Pushed::Done);
        }
        taken.extend(take(&mut reader, &memory));
        assert_eq!(taken.len(), 2);
        assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([10, 20]));
    });
}

#[test]
fn the_ring_goes_round_while_it_is_read() {
    check(BOUNDS, |world| {
        let memory = ring(world);
        let mut reader = RingReader::new(&ModelFile::shared(&memory), PLACES).expect("a ring");
        assert_eq!(push(&memory, 1), Pushed::Done);
        assert_eq!(push(&memory, 2), Pushed::Done);
        assert_eq!(push(&memory, 3), Pushed::Full);
        let writer = Arc::clone(&memory);
        let writer = spawn(world, move || {
            [4, 5].map(|number| push(&writer, number)).map(|result| result == Pushed::Done)
        });
        let mut taken = take(&mut reader, &memory);
        let pushed = writer.join();
        taken.extend(take(&mut reader, &memory));
        let mut expected = vec![1, 2];
        expected.extend([4, 5].into_iter().zip(pushed).filter_map(|(n, done)| done.then_some(n)));
        assert_eq!(taken, expected);
    });
}

/// A thread that slept through a whole pass must not reserve what is in use.
#[test]
fn two_threads_at_a_ring_with_one_free_cell() {
    check(BOUNDS, |world| {
        let memory = ring(world);
        let mut reader = RingReader::new(&ModelFile::shared(&memory), PLACES).expect("a ring");
        assert_eq!(push(&memory, 1), Pushed::Done);
        let writers = [10, 20].map(|number| {
            let memory = Arc::clone(&memory);
            spawn(world, move || push(&memory, number))
        });
        let results = writers.map(|writer| writer.join());
        assert_eq!(results.iter().filter(|result| **result == Pushed::Done).count(), 1);
        assert_eq!(results.iter().filter(|result| **result == Pushed::Full).count(), 1);
        assert_eq!(take(&mut reader, &memory).len(), 2);
        let head = memory.word(PLACES.head).expect("inside").load(Ordering::Acquire);
        assert_eq!(head, 2);
        let word = memory.word(PLACES.words).expect("inside").load(Ordering::Acquire);
        assert_eq!(CellWord::unpack(word), CellWord { pass: 1, cells: 1, committed: true });
    });
}

// The contexts.

#[test]
fn a_context_is_never_seen_half_set() {
    check(BOUNDS, |world| {
        let tid = 1;
        let place = context_place(tid);
        assert!(place + 17 < CONTEXT_SLOTS, "no wrap in the model");
        let memory = ModelMemory::new(world, CONTEXTS + 64 * place, &[], 8 * 17);
        let registrar = Registrar::default();
        let slot = Contexts::new(&*memory).register(&registrar, tid).expect("room");
        let setter = Arc::clone(&memory);
        let setter = spawn(world, move || {
            let context = Context { app_domain: 3, root_span: 3, ..Context::default() };
            assert!(Contexts::new(&*setter).set(slot, &context));
        });
        let file = ModelFile { fixed: &MAIN, memory: Some(Arc::clone(&memory)) };
        let reader = Reader::new(file, Limits::default()).expect("a main file");
        if let Some(seen) = reader.context(tid).expect("memory can be read") {
            assert_eq!(seen.app_domain, seen.root_span, "half a context");
        }
        setter.join();
        let seen = reader.context(tid).expect("memory can be read").expect("it is not being set");
        assert_eq!((seen.app_domain, seen.root_span), (3, 3));
    });
}
