//! Everything that reads the shared memory, fed with any bytes: for the fuzzer.
//!
//! Input: a byte of flags, the length of the main file's part (`u16`), that part, and what follows
//! a segment's header. The main part is read in the places where it matters: the words of the ring
//! from its byte 8 on, the ring's cells from its byte 64 on, the others from its start.

use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;

use crate::contexts::{Context, Contexts, Registrar};
use crate::control::{ControlReader, Outcome, Request, Wishes};
use crate::event::Event;
use crate::layout::{
    ANSWERS, CONTEXTS, CONTROL, MAIN_SIZE, MainHeader, REQUESTS, RING_DATA, RING_HEAD, RING_WORDS,
    SEGMENT_DATA, STATUS, SegmentHeader, StatusPage,
};
use crate::log::{Prepared, Segment};
use crate::memory::Region;
use crate::reader::ring::RingReader;
use crate::reader::{Budget, Entry, Limits, ReadAt, Reader, ReaderLosses};
use crate::record::{MethodRecord, MethodView, NotFound};
use crate::ring::{Ring, RingPlaces};

const ID: [u8; 16] = [1; 16];
/// The main part is read as the header itself.
const OWN_HEADER: u8 = 1;
/// The process has ended.
const ENDED: u8 = 2;
/// Small budgets.
const PIECES: u8 = 4;
/// Records that a run of the fuzzer may read.
const RECORDS: u64 = 10_000;

/// Pieces of a file; zero between them.
struct Sparse<'a> {
    size: usize,
    pieces: Vec<(usize, &'a [u8])>,
}

impl ReadAt for Sparse<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.size);
        let length = buffer.len().min(self.size - start);
        buffer.fill(0);
        for (at, piece) in &self.pieces {
            let from = start.max(*at);
            let to = (start + length).min(at + piece.len());
            if let (Some(into), Some(bytes)) = (
                buffer.get_mut(from.wrapping_sub(start)..to.wrapping_sub(start)),
                piece.get(from.wrapping_sub(*at)..to.wrapping_sub(*at)),
            ) {
                into.copy_from_slice(bytes);
            }
        }
        Ok(length)
    }
}

/// Reads and writes as directed by the bytes. Panics only if an invariant is violated.
pub fn memory(data: &[u8]) {
    let Some((&[flags, low, high], rest)) = data.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes([low, high]));
    let (main, segment) = rest.split_at(length.min(rest.len()));
    let first = read(flags, main, segment);
    assert_eq!(first, read(flags, main, segment), "the same bytes say the same");
    let (method, view) = (MethodRecord::decode(segment), MethodView::of(segment));
    assert_eq!(method.as_ref().err(), view.as_ref().err(), "as valid where it lies");
    if let (Ok(method), Ok(view)) = (method, view) {
        assert!(
            view.ranges.iter().map(|range| range.code).eq(method.ranges.iter().map(|r| &*r.code))
        );
    }
    write(main, segment);
}

fn read(flags: u8, main: &[u8], segment: &[u8]) -> Option<(Vec<Entry>, ReaderLosses, u64)> {
    let header = MainHeader::new(ID).to_bytes();
    let header = if flags & OWN_HEADER != 0 { main } else { &header };
    let mut pieces = vec![(0, header)];
    let part = |from: usize| main.get(from..main.len().min(from + 4096)).unwrap_or_default();
    for place in [CONTROL, REQUESTS, STATUS, ANSWERS, RING_HEAD, CONTEXTS] {
        pieces.push((place, part(0)));
    }
    pieces.extend([(RING_WORDS, part(8)), (RING_DATA, part(64))]);
    // So that there is always something new in the log.
    pieces.push((STATUS + offset_of!(StatusPage, committed), &[0xff; 8]));
    let main_file = Sparse { size: MAIN_SIZE, pieces };
    let segment_header = SegmentHeader::new(ID, 0).to_bytes();
    let segment_pieces = vec![(0, &segment_header[..]), (SEGMENT_DATA, segment)];
    let segment = Sparse { size: SEGMENT_DATA + segment.len(), pieces: segment_pieces };

    let mut reader =
        Reader::new(&main_file as &dyn ReadAt, Limits { records: RECORDS, per_second: 0 }).ok()?;
    // The head has moved since.
    let mut ring =
        RingReader::new(&Sparse { size: MAIN_SIZE, pieces: Vec::new() }, RingPlaces::MAIN).ok()?;
    _ = reader.add_segment(&segment);
    if flags & ENDED != 0 {
        reader.process_ended();
        ring.process_ended();
    }
    let small = Budget { records: 3, bytes: 500 };
    let budget = if flags & PIECES != 0 { small } else { Budget::default() };
    let mut entries = Vec::new();
    let mut losses = ReaderLosses::default();
    let mut tails = 0_u64;
    let mut quiet = 0;
    for now in 0..100 {
        let poll = reader.poll(budget, now * 1_000_000_000).ok()?;
        assert!(poll.entries.len() <= budget.records, "within the budget");
        entries.extend(poll.entries);
        let events = ring.poll(&main_file, budget, &mut losses).ok()?;
        assert!(events.events.len() <= budget.records, "within the budget");
        tails = tails.wrapping_add(events.tail);
        quiet = if poll.more || events.more { 0 } else { quiet + 1 };
        if quiet > 3 {
            // Longer than a record is waited for.
            break;
        }
    }
    _ = reader.status();
    for tid in [1, 2, 1000, u32::MAX] {
        _ = reader.context(tid);
    }
    if let Some(bytes) = main.first_chunk() {
        _ = Wishes::from_bytes(bytes);
    }
    if let Some(bytes) = main.first_chunk() {
        _ = Request::from_bytes(bytes);
    }
    Some((entries, reader.losses(), tails))
}

/// The bridge's side: its memory may have been overwritten.
fn write(main: &[u8], segment: &[u8]) {
    // Up to what lies behind the words of the ring: an event that would lie there is not written.
    let mut words = vec![0_u64; RING_DATA / 8 + 512];
    let fill = |words: &mut Vec<u64>, place: usize, bytes: &[u8]| {
        for (word, chunk) in words.iter_mut().skip(place / 8).zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
    };
    let page = main.get(..4096).unwrap_or(main);
    for place in [CONTROL, REQUESTS, ANSWERS, RING_HEAD, RING_WORDS, CONTEXTS] {
        fill(&mut words, place, page);
    }
    with_region(&mut words, |region| {
        let frames = [1; 24];
        for _ in 0..3 {
            _ = Ring::new(region, RingPlaces::MAIN)
                .push(&Event { frames: &frames, ..Event::default() });
        }
        let control = ControlReader::new(region);
        let epoch = control.wishes().map_or(0, |wishes| wishes.epoch);
        while let Some(request) = control.next_request(epoch) {
            control.answer(&request, Outcome::Answered);
        }
        let registrar = Registrar::default();
        let contexts = Contexts::new(region);
        for tid in [1, 2, 1000] {
            if let Some(slot) = contexts.register(&registrar, tid) {
                contexts.set(slot, &Context::default());
            }
            contexts.remove(&registrar, tid);
        }
    });
    let mut words = vec![0_u64; 512];
    fill(&mut words, 0, segment);
    with_region(&mut words, |region| {
        let record = NotFound { ip: 1 };
        let Some(record) = Prepared::new(0, &record) else { return };
        for _ in 0..3 {
            _ = Segment::new(region, 4096).append(&record, 4096);
        }
    });
}

fn with_region(words: &mut [u64], run: impl FnOnce(&Region)) {
    let length = size_of_val(words);
    let Some(start) = NonNull::new(words.as_mut_ptr().cast::<u8>()) else { return };
    // SAFETY: aligned to 8, and used by nothing else as long as the region exists.
    let region = unsafe { Region::new(start, length) };
    run(&region);
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_without_a_meaning_do_no_harm() {
        for length in [0, 1, 2, 3, 4, 200, 5000] {
            for byte in [0, 1, 0x5a, 0xff] {
                super::memory(&vec![byte; length]);
            }
        }
    }
}
