//! The engine's own state, beside the components that it ties together.

use std::collections::HashSet;
use std::time::Instant;

use strata_kinds::Kinds;

use super::pacing::Pace;
use super::repairing::Repairs;
use super::stalled_cpus;
use crate::kernel::introspect::ProgramUse;
use crate::kernel::perf_record::Timed;
use crate::kernel::sideband::{InOrder, Sideband};
use crate::processes::scan::Scanner;

/// The engine's own counters.
#[derive(Debug, Default)]
pub struct Figures {
    /// CPUs whose sampling had stopped, and was started again.
    pub restarted: u64,
    pub own_samples: u64,
    pub deselected_samples: u64,
    pub malformed_records: u64,
    /// Of kinds that this version does not know, or that are not sampled.
    pub unexpected_records: u64,
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
}

/// Process events, from the kernel's rings to their turn.
pub(super) struct Events {
    pub(super) sideband: Sideband,
    pub(super) in_order: InOrder,
    pub(super) drained: Vec<Timed>,
}

/// Pending work on processes.
#[derive(Default)]
pub(super) struct Processes {
    pub(super) scanner: Scanner,
    /// Their extents may have to be published anew.
    pub(super) dirty: HashSet<u32>,
    /// Their leader has ended.
    pub(super) ended: Vec<u32>,
    pub(super) repairs: Repairs,
    pub(super) paces: Paces,
}

/// The current turn.
pub(super) struct Turn {
    /// When it began.
    pub(super) now: Instant,
    /// The last turn has left records in the ring.
    pub(super) has_more: bool,
    /// The last turn took a record.
    pub(super) took_some: bool,
}

/// When processes with many mappings are scanned again.
#[derive(Default)]
pub(super) struct Paces {
    /// Their publication.
    pub(super) publishing: Pace,
    /// The code of their deferred samples.
    pub(super) settling: Pace,
    /// Their files that are not opened.
    pub(super) opening: Pace,
}

impl Paces {
    pub(super) fn sweep(&mut self, now: Instant) {
        self.publishing.sweep(now);
        self.settling.sweep(now);
        self.opening.sweep(now);
    }
}
