//! Taking events from the ring. Only the owner does.
//!
//! As with the log, the words are copied first, and the committed cells after an acquiring fence.
//! The new tail is returned to the caller, which writes it
//! ([`crate::owning::Owner::set_ring_tail`]): only then may the bridge use the cells again.
//!
//! A reserved event of a living process is waited for: its cells are still being written, and the
//! ring drops what does not fit behind it. When the process has ended, it is stepped over.
//!
//! Invariant: a ring that makes no sense is left at its head; the loop ends.

use std::io;
use std::sync::atomic::{Ordering, fence};

use super::{Budget, ReadAt, ReaderLosses, read_array};
use crate::event::EventRecord;
use crate::layout::MAX_EVENT;
use crate::ring::{CellWord, RingPlaces};

/// Bytes of events that are copied at once.
const CHUNK: usize = 64 << 10;

/// Reads the ring of one process.
#[derive(Debug)]
pub struct RingReader {
    places: RingPlaces,
    tail: u64,
    ended: bool,
}

/// What a call has read.
#[derive(Debug, Default)]
pub struct Events {
    pub events: Vec<EventRecord>,
    /// To be written as the ring's tail, if it changed.
    pub tail: u64,
    /// The budget ended the call: there may be more.
    pub more: bool,
}

/// How far events are readable, in cells.
enum Readable {
    /// So many cells, in events of these sizes.
    Cells(u64, Vec<u64>),
    /// So many cells of an event that was never finished.
    Unfinished(u64),
    Nothing,
    /// No correct writer leaves this.
    Nonsense,
}

impl RingReader {
    /// Starts at the head: older events were meant for an earlier owner.
    pub fn new(main: &impl ReadAt, places: RingPlaces) -> io::Result<Self> {
        let tail = u64::from_le_bytes(read_array(main, places.head as u64)?);
        Ok(Self { places, tail, ended: false })
    }

    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// The process has ended: unfinished events stay unfinished.
    pub fn process_ended(&mut self) {
        self.ended = true;
    }

    pub fn poll(
        &mut self,
        main: &impl ReadAt,
        budget: Budget,
        losses: &mut ReaderLosses,
    ) -> io::Result<Events> {
        let mut events = Vec::new();
        let mut bytes = budget.bytes;
        let mut more = true;
        while events.len() < budget.records && bytes > 0 {
            let head = u64::from_le_bytes(read_array(main, self.places.head as u64)?);
            main.settle();
            match self.readable(main, head, budget.records - events.len(), &mut bytes)? {
                Readable::Cells(cells, sizes) => {
                    main.settle();
                    let copy = self.copy_cells(main, cells, &mut bytes)?;
                    let mut rest = copy.as_slice();
                    for size in sizes {
                        let length = (size as usize).saturating_mul(self.places.cell);
                        let (event, behind) = rest.split_at(length.min(rest.len()));
                        rest = behind;
                        match EventRecord::decode(event) {
                            Ok(event) => events.push(event),
                            Err(_) => losses.malformed_events += 1,
                        }
                    }
                    self.tail = self.tail.wrapping_add(cells);
                }
                Readable::Unfinished(cells) if self.ended => {
                    losses.unfinished += 1;
                    bytes = bytes.saturating_sub(self.places.cell);
                    self.tail = self.tail.wrapping_add(cells);
                }
                Readable::Unfinished(_) | Readable::Nothing => {
                    more = false;
                    break;
                }
                Readable::Nonsense => {
                    losses.ring_restarts += 1;
                    self.tail = head;
                    more = false;
                    break;
                }
            }
        }
        // The copies are complete before the tail frees the cells.
        fence(Ordering::SeqCst);
        Ok(Events { events, tail: self.tail, more })
    }

    /// Reads the words from the tail on.
    fn readable(
        &self,
        main: &impl ReadAt,
        head: u64,
        most: usize,
        bytes: &mut usize,
    ) -> io::Result<Readable> {
        let used = match head.checked_sub(self.tail) {
            Some(0) => return Ok(Readable::Nothing),
            Some(used) if used <= self.places.cells as u64 => used,
            _ => return Ok(Readable::Nonsense),
        };
        let chunk = (CHUNK / self.places.cell.max(1)) as u64;
        // Up to the end of the ring; the next round goes on at its start.
        let first = self.places.cell_of(self.tail);
        let window = used.min(chunk).min((self.places.cells - first) as u64) as usize;
        let mut words = vec![0; 8 * window];
        let read = main.read_at((self.places.words + 8 * first) as u64, &mut words)?;
        words.truncate(read);
        *bytes = bytes.saturating_sub(8 * window);
        let (words, _) = words.as_chunks::<8>();

        let mut cells = 0;
        let mut sizes = Vec::new();
        let mut end = Readable::Nothing;
        while sizes.len() < most {
            let Some(word) = words.get(cells as usize) else { break };
            let word = CellWord::unpack(u64::from_le_bytes(*word));
            let largest = (MAX_EVENT / self.places.cell.max(1)) as u64;
            let fits = (1..=largest.min(used - cells)).contains(&word.cells);
            if word.pass != self.places.pass_of(self.tail + cells) || !fits {
                end = Readable::Nonsense;
                break;
            }
            if !word.committed {
                end = Readable::Unfinished(word.cells);
                break;
            }
            cells += word.cells;
            sizes.push(word.cells);
            if cells >= used {
                break;
            }
        }
        Ok(if sizes.is_empty() { end } else { Readable::Cells(cells, sizes) })
    }

    /// Copies the events' cells from the tail on, round the end of the ring if need be.
    fn copy_cells(&self, main: &impl ReadAt, cells: u64, bytes: &mut usize) -> io::Result<Vec<u8>> {
        let size = self.places.cells * self.places.cell;
        let start = self.places.cell_of(self.tail) * self.places.cell;
        let length = (cells as usize).saturating_mul(self.places.cell).min(size);
        let mut copy = vec![0; length];
        let (first, second) = copy.split_at_mut(length.min(size - start));
        main.read_at((self.places.data + start) as u64, first)?;
        main.read_at(self.places.data as u64, second)?;
        *bytes = bytes.saturating_sub(length);
        Ok(copy)
    }
}
