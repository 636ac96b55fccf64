//! Events with stacks that the runtime has walked, from the ring of the bridge's memory.
//!
//! Only the owner reads the ring: it frees the cells that it has read.
//!
//! Invariant: of one process's ring a bounded amount is read in a window of time, whatever it writes.
//! What is left there takes its own room: the bridge counts what finds none.

use std::io;

use strata_bridge_protocol::clr_event::{MOST_REPORTS, capability, kind};
use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::event::EventRecord;
use strata_bridge_protocol::owning::Owner;
use strata_bridge_protocol::reader::ring::RingReader;
use strata_bridge_protocol::reader::{Budget, ReaderLosses};
use strata_bridge_protocol::ring::RingPlaces;
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::{Count, StatusRecord};

use super::{Life, Rights, Session, SessionError};

/// A window of time: 2^27 nanoseconds, 134 ms, as the bridge's budgets have.
const WINDOW_SHIFT: u32 = 27;
/// What is read of one process in a window. An event has a kilobyte where stacks are deep.
const PER_WINDOW: Budget = Budget { records: MOST_REPORTS, bytes: 768 << 10 };

/// What a read counts for at least, in events: a ring that makes no sense is left at its head again and
/// again.
const COST: usize = 8;

/// All that a ring holds.
const WHOLE: Budget = Budget {
    records: RingPlaces::MAIN.cells,
    bytes: RingPlaces::MAIN.cells * RingPlaces::MAIN.cell,
};

/// The kinds of events.
const KINDS: std::ops::RangeInclusive<u8> = kind::EXCEPTION..=kind::WAIT_HANDLE;

/// The events that are read of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// As many as a process may have in a window of time.
    OfWindow,
    /// All that are there: it is not read again.
    All,
    /// All that a process has left that has ended: those that it was writing are stepped over.
    OfEnded,
}

/// The ring of a bridge, and what became of its events.
#[derive(Debug)]
pub(super) struct Snapshots {
    ring: RingReader,
    window: u64,
    left: Budget,
    losses: ReaderLosses,
    /// Events without room that the bridge had counted before.
    before: [u64; 16],
}

fn without_room(status: &StatusRecord, kind: u8) -> u64 {
    Count::of_events_without_room(kind).map_or(0, |count| status.count(count))
}

impl Snapshots {
    fn begin(owner: &Owner, status: &StatusRecord) -> io::Result<Self> {
        let ring = RingReader::new(owner.file(), RingPlaces::MAIN)?;
        // What the owner before has left there is of no use.
        owner.set_ring_tail(ring.tail())?;
        let mut before = [0; 16];
        for kind in KINDS {
            if let Some(place) = before.get_mut(usize::from(kind)) {
                *place = without_room(status, kind);
            }
        }
        Ok(Self { ring, window: 0, left: PER_WINDOW, losses: ReaderLosses::default(), before })
    }

    fn read(&mut self, owner: &Owner, which: Which) -> io::Result<Vec<EventRecord>> {
        let window = monotonic_time() >> WINDOW_SHIFT;
        if std::mem::replace(&mut self.window, window) != window {
            self.left = PER_WINDOW;
        }
        if which == Which::OfEnded {
            self.ring.process_ended();
        }
        if which != Which::OfWindow {
            self.left = WHOLE;
        }
        let mut events = Vec::new();
        // Each call reads 80 KiB at most.
        while self.left.records > 0 && self.left.bytes > 0 {
            let budget = Budget { records: self.left.records.min(256), bytes: 1 };
            let before = self.ring.tail();
            let read = self.ring.poll(owner.file(), budget, &mut self.losses)?;
            if read.tail == before {
                break;
            }
            owner.set_ring_tail(read.tail)?;
            let cells = read.tail.wrapping_sub(before);
            let cells = usize::try_from(cells).unwrap_or(usize::MAX);
            let bytes = cells.saturating_mul(RingPlaces::MAIN.cell);
            self.left.bytes = self.left.bytes.saturating_sub(bytes);
            self.left.records = self.left.records.saturating_sub(read.events.len().max(COST));
            events.extend(read.events);
        }
        Ok(events)
    }
}

impl Session {
    /// Has the bridge push events into the ring, with stacks that the runtime walks. False: it is of
    /// an older version, or of another owner.
    pub fn take_snapshots(&mut self) -> Result<bool, SessionError> {
        if self.status.event_kinds & capability::SNAPSHOTS == 0 {
            return Ok(false);
        }
        let Rights::Owner(owner) = &self.rights else { return Ok(false) };
        self.snapshots = Some(Box::new(Snapshots::begin(owner, &self.status)?));
        self.wished |= wish::SNAPSHOTS;
        Ok(true)
    }

    /// Whether [`Self::take_snapshots`] was called, and could be done.
    #[must_use]
    pub fn takes_snapshots(&self) -> bool {
        self.snapshots.is_some()
    }

    /// The events that are in the ring: claims of the process.
    pub fn snapshots(&mut self, which: Which) -> Result<Vec<EventRecord>, SessionError> {
        let which = if self.life == Life::Running { which } else { Which::OfEnded };
        match (&mut self.snapshots, &self.rights) {
            (Some(snapshots), Rights::Owner(owner)) => Ok(snapshots.read(owner, which)?),
            _ => Ok(Vec::new()),
        }
    }

    /// Events of a kind that found no room in the ring since it is read, as the bridge has counted.
    #[must_use]
    pub fn snapshots_without_room(&self, kind: u8) -> u64 {
        let Some(snapshots) = &self.snapshots else { return 0 };
        let before = snapshots.before.get(usize::from(kind)).copied().unwrap_or_default();
        without_room(&self.status, kind).saturating_sub(before)
    }

    /// Events in the ring that hold together as none or were not finished, and how often the ring did not.
    #[must_use]
    pub fn snapshots_unreadable(&self) -> u64 {
        self.snapshots.as_ref().map_or(0, |snapshots| {
            let losses = &snapshots.losses;
            let none = losses.malformed_events.saturating_add(losses.unfinished);
            none.saturating_add(losses.ring_restarts)
        })
    }
}
