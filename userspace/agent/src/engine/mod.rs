//! The engine: from the kernel's records to an aggregate.
//!
//! - [`loading`]: loads unwind tables on demand; files are opened and parsed in helper processes.
//! - `pacing`: scans processes with many mappings less often.
//! - [`rates`]: reduced sampling rates of processes.
//! - [`repairing`]: re-reads processes after their events were lost.
//! - [`samples`]: turns records into samples. `deferred`: samples that wait for their tables.
//! - `starting`: starts and pauses the samplers. `turning`: one turn of the loop. `state`: the engine's own state.
//! - `clr_events`: events of the CLR: probes, and samples with labels.
//! - [`eviction`]: evicts tables and drops ended processes; periodic maintenance.
//! - [`stalled_cpus`]: detects CPUs whose sampling event has stalled.
//! - `passes`: runs passes over threads. [`wall`]: turns their records into elapsed time.
//! - `objects`: objects in use of .NET processes.
//! - [`waits`]: turns the waits of threads into samples with a duration.
//! - this module: ties them to the process table, in the order of time.
//!
//! Order matters: an event that came before a sample must be applied before it, or the sample
//! is attributed to what the process was before. Records carry the time they were taken, and
//! events are drained at least up to that time first.
//!
//! Invariant: nothing here waits. Files, tables and symbols arrive as messages.

mod active_threads;
mod clr_events;
mod cpus;
mod deferred;
mod eviction;
pub mod loading;
mod objects;
mod pacing;
mod passes;
pub mod rates;
mod repairing;
pub mod samples;
mod snapshots;
pub mod stalled_cpus;
mod starting;
mod state;
mod thread_memory;
mod turning;
pub mod waits;
pub mod wall;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_abi::record::{Counter, End};
use strata_abi::tables::{UNWANTED_OFF_CPU, UNWANTED_WALL};
use strata_kinds::{Frequencies, Kind, Kinds};

use crate::aggregate::{Aggregate, Shortfalls};
pub use crate::clock::monotonic_nanos;
use crate::image_id::ImageId;
use crate::kernel::broker::client::BrokerState;
use crate::kernel::loader::{LoadError, Programs, Settings};
use crate::kernel::names::KernelNames;
use crate::kernel::sideband::{InOrder, Sideband, Wakeup};
use crate::kernel::{introspect, perf_event};
use crate::managed::{self, Managed};
use crate::processes::container::Groups;
use crate::processes::credentials::AllCredentials;
use crate::processes::scan::Scanner;
use crate::processes::table::ProcessTable;
use crate::selection::{Selection, Wanted};
use crate::tables::store::Store;
use deferred::Pending;
use eviction::Eviction;
use loading::Loading;
pub use objects::Heaps;
pub use passes::PassFigures;
use passes::Passes;
use rates::Rates;
use samples::OwnedSample;
pub use state::Figures;
use state::{Events, Processes, Sampling, Turn};
use waits::Waits;
use wall::Wall;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("process events cannot be opened (perf_event_open): {0}")]
    Sideband(io::Error),
    #[error("the file service cannot be started: {0}")]
    Files(io::Error),
}

/// The engine's settings at the start.
pub struct Options {
    pub settings: Settings,
    /// Of process events.
    pub wakeup: Wakeup,
    pub wanted: Wanted,
    /// The kinds sampled. Records of other kinds are a loss.
    pub kinds: Kinds,
    /// Of these every sample's time is kept.
    pub times: Kinds,
    pub frequencies: Frequencies,
    /// Bytes of kernel memory for unwind tables.
    pub table_memory: u64,
    /// Bytes of copied stacks that wait until they can be unwound.
    pub waiting_memory: usize,
    /// Processes whose samples are left out (strata's own).
    pub own_pid: u32,
    /// What strata may do to .NET processes.
    pub managed: managed::Policy,
    /// Exceptions have their messages.
    pub messages: bool,
    /// Names of .NET methods have the types of their parameters.
    pub signatures: bool,
    /// Called once all is done that needs CAP_SYS_ADMIN, before the first thread starts: from then on
    /// this process may be without. What needs it later is the broker's, which is started before.
    pub opened: Option<fn()>,
}

pub struct Engine {
    pub(crate) programs: Programs,
    events: Events,
    pub table: ProcessTable,
    processes: Processes,
    pub store: Store,
    pub loading: Loading,
    pub groups: Groups,
    pub credentials: AllCredentials,
    pub selection: Selection,
    pub aggregate: Aggregate,
    pub managed: Managed,
    pub rates: Rates,
    /// Images as they are first sampled, with their pid, where a caller reads them.
    pub newcomers: Option<Vec<(ImageId, u32)>>,
    pending: Pending,
    pub waits: Waits,
    pub heaps: Heaps,
    /// With wall-clock time.
    wall: Option<Wall>,
    passes: Passes,
    /// The next record of each ring: CPU samples, waits, threads, events of the CLR.
    heads: [Option<OwnedSample>; 4],
    eviction: Eviction,
    turn: Turn,
    sampling: Sampling,
    pub figures: Figures,
}

/// The interval of polls of a bridge that stacks wait for.
const BRIDGE_LOOK: Duration = Duration::from_millis(20);
/// The time between checks for processes that are read anew.
const REPAIR_LOOK: Duration = Duration::from_millis(20);
/// At the end, attaches under way are waited for so long.
const LAST_BRIDGES: Duration = Duration::from_secs(2);
/// A walk over one process's threads.
const WALKING: Duration = Duration::from_secs(10);
/// A runtime answers within milliseconds.
const SETTLING: Duration = Duration::from_secs(1);

impl Engine {
    /// Loads the programs, opens the event streams and reads the state of the host. Sampling
    /// starts with [`Self::start`].
    pub fn new(options: Options) -> Result<Self, EngineError> {
        let mut programs = Programs::load(options.settings)?;
        if options.kinds.contains(Kind::Cpu) || options.settings.wall {
            programs.open_clocks();
        }
        // Events first, then the scan: what happens in between is seen twice, not missed.
        let sideband =
            Sideband::open(programs.cpus(), options.wakeup).map_err(EngineError::Sideband)?;
        if let Some(opened) = options.opened {
            programs.start_broker();
            opened();
        }
        let mut store = Store::new(options.table_memory);
        let mut table = ProcessTable::default();
        let mut scanner = Scanner::default();
        scanner.scan(&mut table);
        let loading = Loading::start(&mut programs, &mut store).map_err(EngineError::Files)?;
        let pids = options.wanted.pids.clone();
        let mut selection = Selection::new(options.wanted, &table);
        // Of those that have ended meanwhile there is no event.
        let is_gone = |pid: &u32| {
            table.get(*pid).is_none() && !std::path::Path::new(&format!("/proc/{pid}")).exists()
        };
        pids.into_iter().filter(is_gone).for_each(|pid| selection.ended(pid));
        table.forget_refusals(|pid| selection.surely_drops(pid));
        let waits = match options.kinds.contains(Kind::OffCpu) {
            true => Waits::sampled(),
            false => Waits::default(),
        };
        let period = perf_event::period(options.settings.frequency);
        let wall = options.settings.wall.then(|| Wall::new(period));
        let sampling = Sampling {
            kinds: options.kinds,
            max_frames: options.settings.max_frames as usize,
            own_pid: options.own_pid,
            started: 0,
            stalled: stalled_cpus::Watch::default(),
            cpus_expected: None,
            failing: None,
        };
        let cpus = programs.cpus().len();
        let mut managed = Managed::new(options.managed, options.signatures);
        managed.want_events(managed::events::Wanted {
            kinds: options.kinds,
            messages: options.messages,
        });
        Ok(Self {
            programs,
            events: Events {
                sideband,
                in_order: InOrder::default(),
                drained: Vec::new(),
                has_no_names: false,
            },
            table,
            processes: Processes { scanner, ..Processes::default() },
            store,
            loading,
            groups: Groups::default(),
            credentials: AllCredentials::default(),
            selection,
            aggregate: Aggregate::new(options.times),
            managed,
            rates: Rates::new(&options.frequencies),
            newcomers: None,
            pending: Pending::new(options.waiting_memory),
            waits,
            heaps: Heaps::default(),
            wall,
            passes: Passes::new(options.frequencies.of(Kind::Wall), cpus),
            heads: [None, None, None, None],
            eviction: Eviction::new(),
            turn: Turn {
                now: Instant::now(),
                has_more: false,
                took_some: false,
                records_until: 0,
                applied_until: 0,
            },
            sampling,
            figures: Figures::default(),
        })
    }

    /// The helper that keeps CAP_SYS_ADMIN; `None` where nothing needs it.
    pub fn broker(&self) -> Option<BrokerState> {
        self.programs.broker()
    }

    /// `None`: this kernel cannot be asked for names.
    pub fn kernel_names(&self) -> Option<Arc<KernelNames>> {
        self.programs.kernel_names()
    }

    /// Leaves all processes out but these, from the first walk on.
    pub fn walk_only(&mut self, pids: &BTreeSet<u32>) {
        let others: Vec<u32> = self.table.pids().filter(|pid| !pids.contains(pid)).collect();
        for pid in others {
            self.store.skip(&mut self.programs, pid);
        }
    }

    /// Loads what a process's stacks need before it was sampled, and looks for its runtime.
    pub fn prepare(&mut self, pid: u32) {
        self.loading.need(&self.table, pid, 0);
        self.processes.dirty.insert(pid);
        self.look_for_runtime(pid);
        self.turn();
    }

    /// Whether everything that [`Self::prepare`] requested has arrived. Without patience a silent
    /// bridge is not waited for.
    pub fn is_prepared(&self, pid: u32, patient: bool) -> bool {
        let Some(process) = self.table.get(pid) else { return true };
        let attaching = patient && self.managed.is_attaching(process.image);
        // It may have been published with less than its bridge has reported.
        self.store.is_published(pid) && !self.loading.is_waited_for_by(pid) && !attaching
    }

    /// A bridge that is not attached by now is waited for no longer.
    pub fn stop_expecting(&mut self) {
        self.managed.stop_expecting();
        self.turn();
    }

    /// Walks the threads of prepared processes again; earlier results are dropped.
    pub fn walk(&mut self, pids: &BTreeSet<u32>) {
        self.aggregate = Aggregate::new(Kinds::NONE);
        self.pending.clear();
        self.managed.forget_places();
        self.passes.send_all();
        self.pass_now(WALKING);
        self.turn();
        while self.turn.has_more {
            self.turn();
        }
        let images = pids.iter().filter_map(|pid| self.table.get(*pid)).map(|found| found.image);
        let images: Vec<ImageId> = images.collect();
        let deadline = Instant::now() + SETTLING;
        while images.iter().any(|image| self.managed.is_settling(*image))
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(10));
            self.turn();
        }
    }

    /// Whether every stack was followed to its end or to a cause that another look would not
    /// change.
    pub fn is_settled(&self) -> bool {
        self.aggregate.ends().get(End::NoMapping as usize) == Some(&0)
    }

    /// Notes which of the names and groups that are wanted processes have that were not sampled.
    pub fn note_matches(&mut self) {
        if self.selection.is_everything() {
            return;
        }
        let pids: Vec<u32> = self.table.pids().collect();
        for pid in pids {
            let Some(process) = self.table.get(pid) else { continue };
            if pid == self.sampling.own_pid || process.parent == self.sampling.own_pid {
                continue;
            }
            let comm = self.table.image(process.image).map(|image| image.comm.clone());
            let group = crate::proc_file::text(pid, "cgroup").ok();
            let group = group.map(|text| crate::processes::container::parse(&text));
            self.selection.note_match(&comm.unwrap_or_default(), group.as_ref());
        }
    }

    /// Some of the mapped files that could not be read, and why.
    pub fn unreadable_files(&self, most: usize) -> Vec<(String, String)> {
        let known = self.loading.unreadable().filter_map(|(file, why)| {
            let path = self.table.files.get(file)?.path.to_vec();
            Some((String::from_utf8_lossy(&path).into_owned(), why.to_owned()))
        });
        known.take(most).collect()
    }

    /// Readable when processes have changed.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.sideband.fd()
    }

    pub fn clear_events_ready(&self) {
        self.events.sideband.clear_ready();
    }

    /// When [`Self::turn`] is due although nothing has arrived.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.turn.has_more {
            return Some(self.turn.now);
        }
        let waits = self.pending.owners().any(|(image, _)| self.managed.expects(image));
        let expected = waits.then(|| self.turn.now + BRIDGE_LOOK);
        let passes = self.passes.next();
        let reading = self.processes.scanner.is_reading().then(|| self.turn.now + REPAIR_LOOK);
        let (loading, managed) = (self.loading.next_deadline(), self.managed.next_deadline());
        let deadlines = [loading, managed, reading, expected, passes, self.next_cpu_look()];
        deadlines.into_iter().flatten().min()
    }

    /// Nothing was sampled lately, and there is no bridge that may have something to report.
    pub fn is_quiet(&self) -> bool {
        !self.turn.took_some && !self.has_bridges()
    }

    /// Whether there is a .NET process whose bridge may have something to report.
    pub fn has_bridges(&self) -> bool {
        self.managed.images().next().is_some()
    }

    /// Whether something was sampled, or bridges reported something, in the last turn.
    pub fn is_busy(&self) -> bool {
        self.turn.took_some || self.managed.is_busy()
    }

    /// Takes everything that has arrived, and counts the time that a flush would leave to the next one.
    pub fn count_elapsed(&mut self) {
        self.turn();
        self.count_wall(self.turn.records_until, true);
    }

    /// Everything sampled since the last flush; sampling goes on.
    pub fn take_aggregate(&mut self) -> Aggregate {
        // What threads do is counted up to the last record taken: the end of a wait that is in the
        // ring still was before now.
        self.turn();
        self.meet_executed();
        self.count_waits(self.turn.records_until);
        self.count_wall(self.turn.records_until, false);
        self.count_objects();
        self.managed.ask_last(&self.aggregate);
        self.eviction.is_symbolizing = true;
        let waiting: HashSet<ImageId> = self.pending.owners().map(|(image, _)| image).collect();
        self.rates.end_period(|image| waiting.contains(&image));
        self.figures.shortfalls = self.shortfalls();
        let fresh = Aggregate::new(self.aggregate.times_kept());
        std::mem::replace(&mut self.aggregate, fresh)
    }

    /// See [`Managed::ask_again`]. The generated code of processes that lost their bridge is
    /// unpublished.
    pub fn take_bridges_back(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        let left = self.managed.ask_again(is_kept);
        self.processes.dirty.extend(left);
    }

    fn count_wall(&mut self, until: u64, is_last: bool) {
        if let Some(wall) = &mut self.wall {
            wall.count(until, is_last, &mut self.aggregate);
        }
    }

    /// The kinds that were chosen at the start.
    pub fn sampled_kinds(&self) -> Kinds {
        self.sampling.kinds
    }

    /// Processes that were left out are sampled again.
    pub fn take_all_in(&mut self) {
        self.passes.send_all();
        self.store.take_all_in(&mut self.programs);
    }

    /// A process that was left out is sampled again.
    pub fn take_in(&mut self, pid: u32) {
        if self.store.is_skipped(pid) {
            self.passes.send_all();
            self.store.withdraw(&mut self.programs, pid);
        }
    }

    /// Processes whose samples are dropped.
    pub fn set_own_pid(&mut self, pid: u32) {
        self.sampling.own_pid = pid;
    }

    /// Bytes of copied stacks that wait until they can be unwound.
    pub fn set_waiting_memory(&mut self, bytes: usize) {
        self.pending.most_bytes = bytes;
    }

    /// Which kinds of an image's samples are wanted: the kernel takes no elapsed time of the others, until its
    /// process executes another program.
    pub fn set_wanted_kinds(&mut self, image: ImageId, wanted: Kinds) {
        // The process may be another program by now.
        let Some(pid) = self.pid_of(image) else { return };
        let of = |kind, flag| match self.sampling.kinds.contains(kind) && !wanted.contains(kind) {
            true => flag,
            false => 0,
        };
        let unwanted = of(Kind::Wall, UNWANTED_WALL) | of(Kind::OffCpu, UNWANTED_OFF_CPU);
        let before = self.store.set_unwanted(&mut self.programs, pid, unwanted);
        if unwanted & UNWANTED_WALL != 0
            && let Some(wall) = &mut self.wall
        {
            wall.leave_out(pid);
        }
        if unwanted & !before & UNWANTED_OFF_CPU != 0 {
            self.waits.leave_out(pid);
        }
        if before & !unwanted & UNWANTED_WALL != 0 {
            // Threads that have not moved since are sent again.
            self.passes.send_all();
        }
    }

    /// Images of which some elapsed time is not wanted.
    pub fn unwanted_images(&self) -> Vec<ImageId> {
        let processes = self.store.unwanted().filter_map(|pid| self.table.get(pid));
        processes.map(|process| process.image).collect()
    }

    /// The process that still runs an image.
    pub fn pid_of(&self, image: ImageId) -> Option<u32> {
        let pid = self.table.image(image)?.pid;
        let is_current = self.table.get(pid).is_some_and(|process| process.image == image);
        is_current.then_some(pid)
    }

    /// A process that is not selected: the kernel takes no more samples of it.
    pub fn leave_out(&mut self, pid: u32) {
        self.store.skip(&mut self.programs, pid);
        self.waits.leave_out(pid);
        if let Some(wall) = &mut self.wall {
            wall.leave_out(pid);
        }
    }

    /// Stops sampling, takes what is left and settles every waiting stack.
    pub fn finish(&mut self, patience: Duration) {
        self.pass_last();
        self.stop_sampling();
        let (stopped, stopped_at) = (Instant::now(), monotonic_nanos());
        self.turn();
        while (self.turn.has_more || !self.pending.is_empty()) && stopped.elapsed() < patience {
            if stopped.elapsed() > LAST_BRIDGES {
                self.managed.stop_expecting();
            }
            if !self.turn.has_more {
                self.loading.block(Duration::from_millis(20));
            }
            self.turn();
        }
        // What is left in the rings. Events of .NET programs still come, at their pace.
        while self.turn.has_more && stopped.elapsed() < patience * 3 {
            self.turn();
        }
        self.settle_pending(true);
        self.take_all_snapshots();
        if self.wall.is_some() {
            let PassFigures { passes, reading, sending_all, threads, .. } = self.pass_figures();
            // For `cargo xtask bench wall`.
            tracing::debug!(
                "{passes} passes over threads took {reading} ns, of which {sending_all} ns to send every thread; \
                 {threads} threads at last"
            );
        }
        self.count_last_waits(stopped_at);
        self.count_wall(stopped_at, true);
        self.count_objects();
        self.managed.finish(&self.aggregate);
        // Of processes that ended meanwhile.
        self.take_all_snapshots();
    }

    /// What the sampler has used so far, if the kernel counts run times.
    pub fn sampler_use_so_far(&self) -> Option<introspect::ProgramUse> {
        self.programs.sampler_use()
    }

    /// The time that all BPF programs have taken so far, if the kernel counts run times.
    pub fn run_time_so_far(&self) -> Duration {
        self.programs.run_time()
    }

    /// Notes the resources that the BPF programs have used so far.
    pub fn note_kernel_use(&mut self) {
        match introspect::of_this_process() {
            Ok(own) => self.figures.programs = own.programs,
            Err(error) => tracing::warn!(%error, "BPF programs cannot be inspected"),
        }
    }

    /// Processes without metadata because they hang.
    pub fn processes_unread(&self) -> u64 {
        self.processes.scanner.unread()
    }

    pub fn raw_stacks_dropped(&self) -> u64 {
        self.pending.dropped
    }

    /// Stacks of .NET code whose frame pointers were followed because the bridge was not attached
    /// yet.
    pub fn stacks_followed(&self) -> u64 {
        self.pending.followed
    }

    /// A counter of the CLR's events.
    pub fn count_of_clr_events(&self, counter: Counter) -> u64 {
        self.programs.count_of_clr_events(counter as usize)
    }

    /// Events of the CLR of one kind that the kernel did not take, or that found no room in their
    /// process. Of kinds that only another strata asks for, none is missed.
    pub fn clr_events_refused(&self, kind: Kind) -> u64 {
        if !self.sampling.kinds.contains(kind) {
            return 0;
        }
        let refused = self.programs.clr_events_refused(kind as u8);
        refused.saturating_add(self.managed.snapshots_lost(kind))
    }

    /// Calls of a bridge's event function with no event.
    pub fn clr_events_unreadable(&self) -> u64 {
        let unreadable = self.programs.clr_events_unreadable();
        unreadable.saturating_add(self.managed.snapshots_unreadable())
    }

    /// A counter of the off-CPU sampler.
    pub fn count_of_waits(&self, counter: Counter) -> u64 {
        self.programs.count_of_waits(counter as usize)
    }

    /// Records of CPU samples, waits and threads that their ring had no room for. Those of events of
    /// the CLR are counted by kind.
    pub fn ring_full(&self) -> u64 {
        self.count(Counter::RingFull)
            + self.count_of_waits(Counter::RingFull)
            + self.count_of_threads(Counter::RingFull)
    }

    /// What samples lack that were taken so far.
    pub fn shortfalls(&self) -> Shortfalls {
        self.figures.shortfalls + self.aggregate.shortfalls()
    }

    /// A counter of passes over threads.
    pub fn count_of_threads(&self, counter: Counter) -> u64 {
        self.programs.count_of_threads(counter as usize)
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.programs.count(counter as usize)
    }
}
