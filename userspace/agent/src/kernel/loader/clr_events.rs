//! The program and maps of the CLR's events.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::maps::{Array, MapData, RingBuf};
use aya::programs::UProbe;
use aya::{Ebpf, EbpfLoader, Pod};

use strata_abi::memory::EventPace;
use strata_abi::record::event_slot;

use super::{HotValue, LoadError, Programs, map, program};
use crate::image_id::ImageId;
use crate::kernel::broker::Mapped;
use crate::kernel::probes::Arrival;

const PROGRAM: &str = "clr_event";

/// Sets of working memory at least: events of one CPU may interrupt each other.
const LEAST_SETS: u32 = 16;
/// More than so many (27 MB) are not needed: a run takes some ten microseconds, and CPUs share them.
const MOST_SETS: u32 = 256;

/// Switched on by [`super::Settings::clr_events`].
pub(super) struct ClrEvents {
    pub(super) ring: RingBuf<MapData>,
    hot: Array<MapData, HotValue>,
    paces: Array<MapData, PaceValue>,
    sets: u32,
}

/// The events of one CPU.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct PaceValue(EventPace);
// SAFETY: `EventPace` is `repr(C)` without padding and any bytes are a value of it.
unsafe impl Pod for PaceValue {}

pub(super) fn sets(cpus: u32) -> u32 {
    cpus.saturating_mul(2).clamp(LEAST_SETS, MOST_SETS)
}

/// Sets the sizes of the maps.
pub(super) fn size<'a>(loader: &mut EbpfLoader<'a>, cpus: u32, sets: &'a u32, ring_bytes: u32) {
    for name in ["CLR_EVENT_HOT", "CLR_EVENT_RECORD", "CLR_EVENT_CACHE", "CLR_EVENT_IN_USE"] {
        loader.map_max_entries(name, *sets);
    }
    loader
        .map_max_entries("CLR_EVENT_PACES", cpus)
        .map_max_entries("CLR_EVENTS", ring_bytes)
        .override_global("CLR_EVENT_SETS", sets, true);
}

impl ClrEvents {
    /// And the program, for the [broker](crate::kernel::broker).
    pub(super) fn of(ebpf: &mut Ebpf, cpus: u32) -> Result<(Self, OwnedFd), LoadError> {
        let named = |source| LoadError::Program { name: PROGRAM, source };
        let loaded: &mut UProbe = program(ebpf, PROGRAM)?;
        loaded.load().map_err(named)?;
        let fd = loaded.fd().map_err(named)?.as_fd().try_clone_to_owned();
        let fd = fd.map_err(|source| LoadError::Memory { name: PROGRAM, source })?;
        let events = Self {
            ring: map(ebpf, "CLR_EVENTS")?,
            hot: map(ebpf, "CLR_EVENT_HOT")?,
            paces: map(ebpf, "CLR_EVENT_PACES")?,
            sets: sets(cpus),
        };
        Ok((events, fd))
    }

    /// A counter, of all sets.
    pub(super) fn count(&self, counter: usize) -> u64 {
        let all = (0..self.sets).filter_map(|set| self.hot.get(&set, 0).ok());
        all.filter_map(|hot| hot.counter(counter)).sum()
    }

    fn paces(&self, cpus: u32) -> impl Iterator<Item = PaceValue> {
        (0..cpus).filter_map(|cpu| self.paces.get(&cpu, 0).ok())
    }
}

impl Programs {
    /// As [`Self::records_fd`], of events of the CLR.
    pub fn clr_events_fd(&self) -> Option<BorrowedFd<'_>> {
        self.clr_events.as_ref().map(|events| events.ring.as_fd())
    }

    /// The next record of an event of the CLR.
    pub fn next_clr_event(&mut self) -> Option<impl std::ops::Deref<Target = [u8]> + '_> {
        self.clr_events.as_mut()?.ring.next()
    }

    /// Attaches the program of the CLR's events to a process.
    pub fn attach_probe(&mut self, image: ImageId, mapped: Mapped) {
        if let Some(broker) = &mut self.broker {
            self.probes.attach(broker, image, mapped);
        }
    }

    /// The next result of [`Self::attach_probe`].
    pub fn attached_probe(&mut self) -> Option<Arrival> {
        let broker = self.broker.as_mut()?;
        broker.turn();
        self.probes.arrived(broker)
    }

    /// A counter of the CLR's events; as [`Programs::count`].
    pub fn count_of_clr_events(&self, counter: usize) -> u64 {
        self.clr_events.as_ref().map_or(0, |events| events.count(counter))
    }

    /// Events of the CLR of one kind (`SOURCE_*`) that were not taken: beyond what a process may
    /// report or a CPU takes, or without memory or room.
    pub fn clr_events_refused(&self, source: u8) -> u64 {
        let of_kind =
            |pace: PaceValue| pace.0.refused.get(event_slot(source)).copied().map(u64::from);
        let paces = self.clr_events.iter().flat_map(|events| events.paces(self.room));
        paces.filter_map(of_kind).sum()
    }

    /// Calls of the bridge's function with no event.
    pub fn clr_events_unreadable(&self) -> u64 {
        let paces = self.clr_events.iter().flat_map(|events| events.paces(self.room));
        paces.map(|pace| u64::from(pace.0.unreadable)).sum()
    }
}
