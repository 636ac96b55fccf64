//! For any bytes in the memory, reading ends, does not panic, does bounded work and is repeatable.

use std::cell::Cell;
use std::io;

use proptest::collection::vec;
use proptest::prelude::*;
use strata_bridge_protocol::layout::{
    CONTEXTS, MAIN_SIZE, MainHeader, RECORD_COMMITTED, RECORD_END, RECORD_FREE, RECORD_RESERVED,
    RING_DATA, RING_HEAD, RING_WORDS, SEGMENT_DATA, SEGMENT_SIZE, STATUS, SegmentHeader,
};
use strata_bridge_protocol::log::{Appended, Prepared, RecordWord, Segment};
use strata_bridge_protocol::memory::Region;
use strata_bridge_protocol::reader::ring::RingReader;
use strata_bridge_protocol::reader::{
    Budget, Entry, HeaderError, Limits, ReadAt, Reader, ReaderLosses,
};
use strata_bridge_protocol::record::NotFound;
use strata_bridge_protocol::ring::RingPlaces;

const ID: [u8; 16] = [3; 16];

/// Counts what is read.
struct Counted<'a> {
    bytes: &'a [u8],
    read: &'a Cell<usize>,
    calls: &'a Cell<usize>,
}

impl ReadAt for Counted<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.read.set(self.read.get() + buffer.len());
        self.calls.set(self.calls.get() + 1);
        self.bytes.read_at(offset, buffer)
    }
}

#[derive(Debug, Default, PartialEq)]
struct Seen {
    entries: Vec<Entry>,
    losses: ReaderLosses,
    read: usize,
    calls: usize,
}

/// Reads a log to its end, in calls of this budget, and checks what each may cost.
fn read_log(main: &[u8], segment: &[u8], budget: Budget, ended: bool) -> Result<Seen, HeaderError> {
    let (read, calls) = (Cell::new(0), Cell::new(0));
    let counted = |bytes| Counted { bytes, read: &read, calls: &calls };
    let mut reader = Reader::new(counted(main), Limits { records: 2000, per_second: 0 })?;
    reader.add_segment(counted(segment))?;
    if ended {
        reader.process_ended();
    }
    let mut seen = Seen::default();
    // Each call advances by 16 bytes or reports the end.
    for round in 0..SEGMENT_SIZE / 16 {
        let before = read.get();
        // Time passes, so that nothing is waited for.
        let now = round as u64 * 3_000_000_000;
        let poll = reader.poll(budget, now).expect("bytes can be read");
        assert!(poll.entries.len() <= budget.records);
        // One record or chunk more than the budget, copied twice, and the status.
        assert!(read.get() - before <= budget.bytes + (512 << 10), "{}", read.get() - before);
        seen.entries.extend(poll.entries);
        if !poll.more && round > 40 {
            break;
        }
    }
    assert!(seen.entries.len() <= 2000);
    (seen.losses, seen.read, seen.calls) = (reader.losses(), read.get(), calls.get());
    Ok(seen)
}

/// The first bytes of a segment's data.
fn segment(data: &[u8]) -> Vec<u8> {
    let mut bytes = SegmentHeader::new(ID, 0).to_bytes().to_vec();
    bytes.extend(data);
    bytes
}

fn main_memory() -> Vec<u8> {
    let mut main = vec![0; MAIN_SIZE];
    main[..128].copy_from_slice(&MainHeader::new(ID).to_bytes());
    // Always something new.
    main[STATUS + 1024..STATUS + 1536].fill(0xff);
    main
}

/// Bytes without a pattern (xorshift); proptest is slow at making many.
fn noise(seed: u64) -> impl Iterator<Item = u8> {
    std::iter::successors(Some(seed | 1), |state| {
        let state = state ^ state << 13;
        let state = state ^ state >> 7;
        Some(state ^ state << 17)
    })
    .map(|state| (state >> 32) as u8)
}

/// Data that looks like a log often enough to get somewhere.
fn log_data() -> impl Strategy<Value = Vec<u8>> {
    let state = prop_oneof![
        1 => Just(RECORD_FREE),
        2 => Just(RECORD_RESERVED),
        12 => Just(RECORD_COMMITTED),
        1 => Just(RECORD_END),
        1 => any::<u8>(),
    ];
    let length = prop_oneof![
        12 => (0..40_u32).prop_map(|words| 8 * words),
        1 => any::<u32>(),
        1 => Just(0),
        1 => Just(131_072),
    ];
    let record = (length, 0..16_u16, any::<u8>(), state, any::<u64>()).prop_map(
        |(length, kind, flags, state, seed)| {
            let mut bytes = RecordWord { length, kind, flags, state }.pack().to_le_bytes().to_vec();
            // Mostly zero and small bytes, so that lengths within the record are often right.
            bytes.extend(noise(seed).take(312).map(|byte| match byte % 8 {
                0..5 => 0,
                5..7 => byte >> 6,
                _ => byte,
            }));
            bytes.truncate((length as usize).clamp(8, 320));
            bytes
        },
    );
    vec(record, 0..40).prop_map(|records| records.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_log_is_read_the_same_twice_and_in_any_pieces(
        data in log_data(),
        records in 1..9_usize,
        bytes in 1..4096_usize,
        ended in any::<bool>(),
    ) {
        let main = main_memory();
        let segment = segment(&data);
        let small = Budget { records, bytes };
        let whole = read_log(&main, &segment, Budget::default(), ended).expect("headers");
        let again = read_log(&main, &segment, Budget::default(), ended).expect("headers");
        prop_assert_eq!(&whole, &again);
        let pieces = read_log(&main, &segment, small, ended).expect("headers");
        prop_assert_eq!(whole.entries, pieces.entries);
        prop_assert_eq!(whole.losses, pieces.losses);
    }

    #[test]
    fn any_first_bytes_are_headers_or_refused(
        main in vec(any::<u8>(), 0..200),
        good in any::<bool>(),
        changes in vec((0..128_usize, any::<u8>()), 0..3),
    ) {
        let mut header = if good { MainHeader::new(ID).to_bytes().to_vec() } else { main };
        for (at, byte) in changes {
            if let Some(place) = header.get_mut(at) {
                *place = byte;
            }
        }
        let is_right = header.get(..128).is_some_and(|header| {
            let id = *header[24..40].first_chunk().expect("16 bytes");
            header == MainHeader::new(id).to_bytes()
        });
        prop_assert_eq!(Reader::new(header, Limits::default()).is_ok(), is_right);
    }

    #[test]
    fn any_ring_is_left_in_bounded_time_and_the_same_twice(
        head in prop_oneof![any::<u64>(), 0..40_000_u64],
        words in vec((0..64_usize, 0..4_u64, 0..300_u64, 0..4_u64), 0..64),
        seed in any::<u64>(),
        ended in any::<bool>(),
        start in 0..64_u64,
        budget in (1..50_usize, 1..100_000_usize),
    ) {
        let mut main = main_memory();
        let mut put = |at: usize, word: u64| main[at..at + 8].copy_from_slice(&word.to_le_bytes());
        put(RING_HEAD, start);
        for (cell, pass, cells, state) in words {
            put(RING_WORDS + 8 * cell, pass << 24 | cells << 2 | state);
        }
        for (place, byte) in main[RING_DATA..RING_DATA + 4096].iter_mut().zip(noise(seed)) {
            *place = byte;
        }
        let budget = Budget { records: budget.0, bytes: budget.1 };
        let mut rings = [(); 2].map(|()| RingReader::new(&main, RingPlaces::MAIN).expect("bytes"));
        main[RING_HEAD..RING_HEAD + 8].copy_from_slice(&head.to_le_bytes());
        let read = |ring: &mut RingReader| {
            if ended {
                ring.process_ended();
            }
            let mut losses = ReaderLosses::default();
            let mut events = Vec::new();
            let mut tails = Vec::new();
            for _ in 0..20 {
                let some = ring.poll(&main, budget, &mut losses).expect("bytes");
                prop_assert!(some.events.len() <= budget.records);
                tails.push(some.tail);
                events.extend(some.events);
            }
            Ok((events, tails, losses))
        };
        let [first, second] = &mut rings;
        prop_assert_eq!(read(first)?, read(second)?);
    }

    #[test]
    fn any_context_table_gives_an_answer(
        seed in any::<u64>(),
        tid in any::<u32>(),
    ) {
        let mut main = main_memory();
        let pattern: Vec<u8> = noise(seed).take(4096).collect();
        for chunk in main[CONTEXTS..RING_WORDS].chunks_mut(pattern.len()) {
            chunk.copy_from_slice(&pattern[..chunk.len()]);
        }
        let reader = Reader::new(main, Limits::default()).expect("headers");
        reader.context(tid).expect("bytes");
        reader.status().expect("bytes");
    }

    /// The bridge, too, may read any bytes: the app's memory may be overwritten.
    #[test]
    fn any_segment_leaves_a_writer_unharmed(
        mut data in log_data(),
        tail in prop_oneof![any::<u64>(), (0..600_u64).prop_map(|word| 8 * word)],
    ) {
        data.resize(4096 - SEGMENT_DATA, 0);
        let mut bytes = segment(&data);
        bytes[64..72].copy_from_slice(&tail.to_le_bytes());
        let mut words: Vec<u64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|chunk| u64::from_le_bytes(*chunk))
            .collect();
        let start = std::ptr::NonNull::new(words.as_mut_ptr().cast::<u8>()).expect("not null");
        // SAFETY: 4096 bytes, aligned to 8, that nothing else uses while the region exists.
        let region = unsafe { Region::new(start, 4096) };
        let record = NotFound { ip: 1 };
        let prepared = Prepared::new(0, &record).expect("short");
        for _ in 0..3 {
            let result = Segment::new(&region, 4096).append(&prepared, 4096);
            let done = result == Appended::Done(24);
            let possible = done || matches!(result, Appended::Full(_) | Appended::Contended);
            prop_assert!(possible, "{:?}", result);
        }
    }
}

#[test]
fn millions_of_records_cost_no_more_than_the_limit() {
    let main = main_memory();
    let record = RecordWord { length: 16, kind: 3, flags: 0, state: RECORD_COMMITTED };
    let mut data = Vec::new();
    while data.len() + SEGMENT_DATA < SEGMENT_SIZE {
        data.extend(record.pack().to_le_bytes());
        data.extend([0; 8]);
    }
    let budget = Budget { records: 1000, bytes: 1 << 20 };
    let seen = read_log(&main, &segment(&data), budget, false).expect("headers");
    assert!(seen.losses.over_limit && seen.losses.malformed == 2000, "{:?}", seen.losses);
    // Two thousand of them were read, not a quarter of a million.
    assert!(seen.read < 1 << 20, "{}", seen.read);
}

#[test]
fn what_is_written_too_fast_is_read_late() {
    let main = main_memory();
    let record = RecordWord { length: 16, kind: 3, flags: 0, state: RECORD_COMMITTED };
    let record = [record.pack().to_le_bytes(), [0; 8]].concat();
    let segment = segment(&record.repeat(5000));
    let limits = Limits { records: 1000, per_second: 500 };
    let mut reader = Reader::new(&main, limits).expect("a header");
    reader.add_segment(&segment).expect("a segment");
    let budget = Budget { records: 10_000, bytes: 1 << 20 };
    let mut read_at = |milliseconds: u64| {
        reader.poll(budget, milliseconds * 1_000_000).expect("bytes can be read");
        let losses = reader.losses();
        (losses.malformed, losses.over_limit)
    };
    // Times that are too short to earn a record add up.
    assert_eq!(read_at(10_000), (1000, true));
    assert_eq!((1..=1000).map(|more| read_at(10_000 + more)).last(), Some((1500, true)));
    assert_eq!(read_at(12_000), (2000, true));
    // A long pause earns no more than a start.
    assert_eq!(read_at(60_000), (3000, true));
    assert_eq!((1..10).map(|more| read_at(60_000 + more * 1000)).last(), Some((5000, true)));
}
