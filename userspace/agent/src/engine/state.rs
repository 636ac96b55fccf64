//! The engine's own state, beside the components that it ties together.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use strata_kinds::Kinds;

use super::pacing::DueScans;
use super::repairing::Repairs;
use super::stalled_cpus;
use super::starting::Failing;
use crate::aggregate::Shortfalls;
use crate::kernel::introspect::ProgramUse;
use crate::kernel::perf_record::Timed;
use crate::kernel::sideband::{InOrder, Sideband};
use crate::processes::scan::Scanner;

/// The engine's own counters.
#[derive(Debug, Default)]
pub struct Figures {
    /// CPUs whose sampling had stopped, and was started again.
    pub restarted: u64,
    /// CPUs that were added to the machine and are not sampled.
    pub cpus_without_room: u64,
    pub own_samples: u64,
    pub deselected_samples: u64,
    pub malformed_records: u64,
    /// Of kinds that this version does not know, or that are not sampled.
    pub unexpected_records: u64,
    /// Of aggregates that were taken.
    pub(super) shortfalls: Shortfalls,
    /// The resources used by the BPF programs, when run times were counted.
    pub programs: Vec<ProgramUse>,
}

/// The kinds sampled, and the start of sampling.
pub(super) struct Sampling {
    pub(super) kinds: Kinds,
    pub(super) max_frames: usize,
    pub(super) own_pid: u32,
    /// By the records' clock.
    pub(super) started: u64,
    pub(super) stalled: stalled_cpus::Watch,
    /// When CPUs were last switched on, or found stalled.
    pub(super) cpus_expected: Option<Instant>,
    /// A sampler did not start after a pause.
    pub(super) failing: Option<Failing>,
}

/// Process events, from the kernel's rings to their turn.
pub(super) struct Events {
    pub(super) sideband: Sideband,
    pub(super) in_order: InOrder,
    pub(super) drained: Vec<Timed>,
    /// A CPU has no events of executed programs.
    pub(super) has_no_names: bool,
}

/// Pending work on processes.
#[derive(Default)]
pub(super) struct Processes {
    pub(super) scanner: Scanner,
    /// Their extents may have to be published anew.
    pub(super) dirty: HashSet<u32>,
    /// Their last thread has ended.
    pub(super) ended: Vec<u32>,
    /// Their main thread has ended before others.
    pub(super) leaderless: VecDeque<u32>,
    /// They have executed a program while their time was counted, and are asked who they are: at most
    /// [`MOST_EXECUTED`]; the others are asked at their first record.
    pub(super) executed: HashSet<u32>,
    pub(super) repairs: Repairs,
    pub(super) paces: Paces,
}

/// Each takes some reads of /proc, and they are asked once a second.
const MOST_EXECUTED: usize = 256;

impl Processes {
    pub(super) fn note_executed(&mut self, pid: u32) {
        if self.executed.len() < MOST_EXECUTED {
            self.executed.insert(pid);
        }
    }
}

/// The current turn.
pub(super) struct Turn {
    /// When it began.
    pub(super) now: Instant,
    /// The last turn has left records in the ring.
    pub(super) has_more: bool,
    /// The last turn took a record.
    pub(super) took_some: bool,
    /// It took all records up to this time, by their clock.
    pub(super) records_until: u64,
    /// It applied all events up to this time, by their clock.
    pub(super) applied_until: u64,
}

/// A record is in its ring so long after the time that it carries, at the latest.
const BEING_WRITTEN: u64 = 1_000_000;

impl Turn {
    /// All records were taken that were in the rings at a time; of later ones those before `left`.
    pub(super) fn took_records(&mut self, drained: u64, left: Option<u64>) {
        let drained = drained.saturating_sub(BEING_WRITTEN);
        self.records_until = left.map_or(drained, |left| left.min(drained));
    }
}

/// When processes with many mappings are scanned again.
#[derive(Default)]
pub(super) struct Paces {
    /// Their publication.
    pub(super) publishing: DueScans,
    /// The code of their deferred samples.
    pub(super) settling: DueScans,
    /// Their files that are not opened.
    pub(super) opening: DueScans,
}

impl Paces {
    pub(super) fn sweep(&mut self, now: Instant) {
        self.publishing.sweep(now);
        self.settling.sweep(now);
        self.opening.sweep(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_do_is_known_up_to_the_records_that_were_taken() {
        let now = Instant::now();
        let mut turn =
            Turn { now, has_more: false, took_some: false, records_until: 0, applied_until: 0 };
        turn.took_records(10_000_000, None);
        assert_eq!(turn.records_until, 9_000_000);
        turn.took_records(20_000_000, Some(15_000_000));
        assert_eq!(turn.records_until, 15_000_000);
        turn.took_records(20_000_000, Some(19_500_000));
        assert_eq!(turn.records_until, 19_000_000);
    }

    #[test]
    fn a_process_that_executes_without_end_is_asked_once_and_a_crowd_is_bounded() {
        let mut processes = Processes::default();
        for _ in 0..10_000 {
            processes.note_executed(7);
        }
        assert_eq!(processes.executed.len(), 1);
        (0..10_000).for_each(|pid| processes.note_executed(pid));
        assert_eq!(processes.executed.len(), MOST_EXECUTED);
    }
}
