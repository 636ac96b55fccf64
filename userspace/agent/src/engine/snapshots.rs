//! Events of the CLR with stacks that the runtime has walked: takes what bridges have pushed into their
//! rings, and makes the samples of it that a record of a probe would be.
//!
//! Invariant: everything in such an event is a claim of its process: it becomes samples of that process
//! alone, at a time since the last one was read, with addresses that are looked up and nothing else.

use std::time::{Duration, Instant};

use strata_abi::record::{End, FLAG_CONTEXT, FLAG_EVENT, FORM_UNWOUND, FRAME_ADDRESS, Header};
use strata_bridge_protocol::clr_event::{Block, snapshot};
use strata_bridge_protocol::event::EventRecord;
use strata_clr::session::Which;
use strata_kinds::Kind;

use super::samples::Event;
use super::{Engine, monotonic_nanos};
use crate::aggregate::Words;
use crate::image_id::ImageId;
use crate::managed::events::KINDS;
use crate::processes::table::Space;

/// In the flags of a header: the stack was walked by the runtime. No record has it.
pub(super) const FLAG_SNAPSHOT: u8 = 1 << 7;

/// The time of one turn: those not reached are first in the next one.
const ALL_TOGETHER: Duration = Duration::from_millis(10);

/// Events wait in a ring for this long, if the loop is not late.
const WAITED: u64 = 60_000_000_000;

/// An event that holds together.
struct Snapshot {
    kind: Kind,
    block: Block,
    header: Header,
    user: Vec<u64>,
}

impl Snapshot {
    /// `None`: it does not.
    fn of(event: &EventRecord, pid: u32, now: u64, most_frames: usize) -> Option<Self> {
        let kind = Kind::from_number(u8::try_from(event.kind).ok()?);
        let kind = kind.filter(|kind| KINDS.contains(*kind))?;
        let block = Block::from_used(&event.detail)?;
        let stated = block.event().filter(|stated| stated.kind == kind as u8)?;
        let is_cut = event.frames.len() > most_frames;
        let user = event.frames.iter().take(most_frames).map(|word| word & FRAME_ADDRESS);
        let user: Vec<u64> = user.collect();
        let end = match event.flags {
            _ if is_cut => End::FrameLimit,
            flags if flags & snapshot::TRUNCATED != 0 => End::FrameLimit,
            flags if flags & snapshot::INCOMPLETE != 0 => End::UnreadableStack,
            _ => End::Complete,
        };
        let mut comm = [0; 16];
        for (to, word) in comm.as_chunks_mut::<8>().0.iter_mut().zip(event.values) {
            *to = word.to_le_bytes();
        }
        let header = Header {
            time: event.time.clamp(now.saturating_sub(WAITED), now),
            cgroup: 0,
            pid,
            tid: event.tid,
            cpu: 0,
            generation: 0,
            kernel_frames: 0,
            user_frames: u16::try_from(user.len()).unwrap_or(u16::MAX),
            end: end as u8,
            form: FORM_UNWOUND,
            flags: FLAG_EVENT | FLAG_CONTEXT | FLAG_SNAPSHOT,
            source: kind as u8,
            stack_bytes: 0,
            weight: stated.weight,
            value: stated.value,
            app_domain: event.app_domain,
            label_set: 0,
            comm,
        };
        Some(Self { kind, block, header, user })
    }
}

impl Engine {
    /// Takes what bridges have pushed since the last turn.
    pub(super) fn take_snapshots(&mut self) {
        let until = Instant::now() + ALL_TOGETHER;
        for (image, pid) in self.managed.with_snapshots() {
            if Instant::now() >= until {
                self.managed.go_on_with_snapshots(image);
                break;
            }
            self.take_snapshots_of(image, pid, Which::OfWindow);
        }
    }

    /// Takes all that is there: nothing is read after it.
    pub(super) fn take_all_snapshots(&mut self) {
        for (image, pid) in self.managed.with_snapshots() {
            self.take_snapshots_of(image, pid, Which::All);
        }
    }

    /// Takes what is left of processes whose bridge is about to be given up.
    pub(super) fn take_last_snapshots(&mut self, pids: &[u32]) {
        for (image, pid) in self.managed.with_snapshots() {
            if pids.contains(&pid) {
                self.take_snapshots_of(image, pid, Which::OfEnded);
            }
        }
    }

    fn take_snapshots_of(&mut self, image: ImageId, pid: u32, which: Which) {
        let events = self.managed.snapshots_of(image, which);
        if events.is_empty() {
            return;
        }
        self.turn.took_some = true;
        let process = self.table.get(pid).filter(|process| process.image == image);
        let space = process.map(|process| process.space.clone());
        let now = monotonic_nanos();
        for event in &events {
            let read = Snapshot::of(event, pid, now, self.sampling.max_frames);
            let Some(read) = read else {
                self.figures.malformed_records += 1;
                continue;
            };
            if !self.sampling.kinds.contains(read.kind)
                || !self.managed.wants_event(image, read.kind)
            {
                // Another strata has asked for it.
                continue;
            }
            match &space {
                Some(space) => self.take_snapshot(read, image, space),
                // Another program has taken the place of the one that its addresses are of.
                None => self.managed.lose_snapshot(read.kind, read.header.weight),
            }
        }
    }

    fn take_snapshot(&mut self, read: Snapshot, image: ImageId, space: &Space) {
        let Snapshot { kind, block, mut header, user } = read;
        if !self.is_selected(&header, image) {
            self.figures.deselected_samples += 1;
            return;
        }
        if !self.rates.takes(kind, image) {
            return;
        }
        header.tid = self.managed.outer_tid(image, header.tid);
        let domain = self.managed.domain_of(image, header.tid, Some(header.app_domain));
        let words = Words {
            kernel: &[],
            user: &user,
            end: End::from_byte(header.end).unwrap_or(End::NoProcess),
            flags: 0,
            era: self.managed.era_of(image, header.time),
        };
        let event = Event { kind, header: &header, block: Some(&block), is_kept: true };
        self.take_described(event, (image, domain), words, space);
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::clr_event::{ClrEvent, kind};

    use super::*;

    const NOW: u64 = 1_000_000_000_000;

    fn event(flags: u32, frames: Vec<u64>) -> EventRecord {
        let stated = ClrEvent { kind: kind::LOCK, weight: 4, value: 9, ..ClrEvent::default() };
        EventRecord {
            kind: u16::from(kind::LOCK),
            flags,
            time: NOW - 5,
            tid: 7,
            app_domain: 11,
            values: [u64::from_le_bytes(*b"worker 1"), 0],
            frames,
            detail: Block::new(&stated).used().to_vec(),
        }
    }

    fn end_of(event: &EventRecord) -> u8 {
        Snapshot::of(event, 1, NOW, 4).expect("an event").header.end
    }

    #[test]
    fn an_event_becomes_the_sample_that_a_record_of_a_probe_would_be() {
        let read = Snapshot::of(&event(0, vec![0x7f00, 0x7f10]), 42, NOW, 4).expect("an event");
        let Header { time, pid, tid, weight, value, app_domain, comm, .. } = read.header;
        assert_eq!((time, pid, tid), (NOW - 5, 42, 7));
        assert_eq!((weight, value, app_domain), (4, 9, 11));
        assert_eq!((&comm[..8], read.kind), (&b"worker 1"[..], Kind::Locks));
        assert_eq!((read.user, read.header.end), (vec![0x7f00, 0x7f10], End::Complete as u8));
    }

    #[test]
    fn a_stack_that_is_not_whole_says_so() {
        let whole = vec![1, 2, 3, 4];
        assert_eq!(end_of(&event(0, whole.clone())), End::Complete as u8);
        assert_eq!(end_of(&event(0, vec![1; 5])), End::FrameLimit as u8);
        assert_eq!(end_of(&event(snapshot::TRUNCATED, whole.clone())), End::FrameLimit as u8);
        assert_eq!(end_of(&event(snapshot::INCOMPLETE, whole)), End::UnreadableStack as u8);
        assert_eq!(end_of(&event(snapshot::INCOMPLETE, vec![])), End::UnreadableStack as u8);
    }

    #[test]
    fn what_a_process_makes_up_has_a_time_and_addresses_of_its_own_or_is_no_event() {
        let of = |event: &EventRecord| Snapshot::of(event, 1, NOW, 4);
        let read = of(&EventRecord { time: u64::MAX, ..event(0, vec![u64::MAX]) });
        let read = read.expect("an event");
        assert_eq!((read.header.time, read.user), (NOW, vec![FRAME_ADDRESS]));
        let read = of(&EventRecord { time: 0, ..event(0, vec![]) }).expect("an event");
        assert_eq!(read.header.time, NOW - WAITED);
        for number in [0, 2, u16::from(kind::EXCEPTION), 9, 256 + u16::from(kind::LOCK), u16::MAX] {
            assert!(of(&EventRecord { kind: number, ..event(0, vec![]) }).is_none(), "{number}");
        }
        for detail in [vec![], vec![0; 23], vec![0xff; 512], vec![kind::LOCK; 513]] {
            assert!(of(&EventRecord { detail, ..event(0, vec![]) }).is_none());
        }
    }
}
