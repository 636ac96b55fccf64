//! The iterator over threads: its program, maps, and the process that reads it.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use aya::maps::{Array, HashMap, MapData, RingBuf};
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{BtfTracePoint, Iter};
use aya::{Btf, Ebpf, EbpfLoader, Pod};
use strata_abi::record::Counter;
use strata_abi::tables::{Pass, READERS, SEEN_THREADS, Walking};

use super::quarantine::Quarantine;
use super::{HotValue, LoadError, Programs, map, program};
use crate::blocking_reader::{Owner, ROOT, owner_of};
use crate::kernel::thread_reader::client::{Ending, Reader};
use crate::kernel::thread_reader::{Cost, Order, iterator};

const PROGRAM: &str = "walk_threads";
/// What sends the last counters of a thread.
const ENDED: &str = "thread_ended";

#[repr(transparent)]
#[derive(Clone, Copy)]
struct PassValue(Pass);
// SAFETY: `Pass` is `repr(C)` without padding and any bytes are a value of it.
unsafe impl Pod for PassValue {}

#[repr(transparent)]
#[derive(Clone, Copy)]
struct WalkingValue(Walking);
// SAFETY: as above.
unsafe impl Pod for WalkingValue {}

/// Sets the sizes of the maps.
pub(super) fn size(loader: &mut EbpfLoader<'_>, ring_bytes: u32) {
    for name in ["THREADS_HOT", "THREADS_RECORD", "THREADS_CACHE", "WALKING"] {
        loader.map_max_entries(name, READERS);
    }
    loader.map_max_entries("SEEN", SEEN_THREADS).map_max_entries("THREADS", ring_bytes);
}

/// The reader that has orders.
struct Running {
    slot: u32,
    reader: Reader,
    /// The number of its last order.
    order: u32,
    /// That one is for a pass over all threads, which is not over. Records that had found no room in the
    /// ring before, of all readers with this slot.
    over_all: Option<u64>,
}

/// A reader that hangs.
struct LeftBehind {
    slot: u32,
    reader: Reader,
    /// The process that it hangs at, and its user.
    pid: u32,
    user: Owner,
}

/// Switched on by [`super::Settings::threads_of`] and [`super::Settings::wall`].
pub(super) struct Threads {
    pub(super) records: RingBuf<MapData>,
    hot: Array<MapData, HotValue>,
    pass: Array<MapData, PassValue>,
    walking: Array<MapData, WalkingValue>,
    processes: HashMap<MapData, u32, u32>,
    users: HashMap<MapData, u32, u32>,
    program: OwnedFd,
    current: Option<Running>,
    left_behind: Vec<LeftBehind>,
    /// Readers that are of no use any more.
    ending: Ending,
    quarantine: Quarantine,
    /// What of it is in the maps.
    held_processes: HashSet<u32>,
    held_users: HashSet<Owner>,
    ended: Option<BtfTracePointLinkId>,
}

/// What has become of passes since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// Of those over targets.
    pub repeated: Cost,
    /// Of one over all threads, and whether the ring had no room for some records.
    pub over_all: Option<(Cost, bool)>,
    /// The reader has failed: another one begins with the next order.
    pub has_failed: bool,
}

impl Threads {
    /// `with_ended`: threads that end are sent too.
    pub(super) fn of(ebpf: &mut Ebpf, with_ended: bool) -> Result<Self, LoadError> {
        let types = Btf::from_sys_fs().map_err(LoadError::Types)?;
        let named = |source| LoadError::Program { name: PROGRAM, source };
        let threads: &mut Iter = program(ebpf, PROGRAM)?;
        threads.load("task", &types).map_err(LoadError::Walker)?;
        let fd = threads.fd().map_err(named)?;
        iterator::check(fd.as_fd()).map_err(LoadError::Walk)?;
        let walker = fd.as_fd().try_clone_to_owned().map_err(LoadError::Walk)?;
        if with_ended {
            let program: &mut BtfTracePoint = program(ebpf, ENDED)?;
            let named = |source| LoadError::Program { name: ENDED, source };
            program.load("sched_process_exit", &types).map_err(named)?;
        }
        Ok(Self {
            records: map(ebpf, "THREADS")?,
            hot: map(ebpf, "THREADS_HOT")?,
            pass: map(ebpf, "PASS")?,
            walking: map(ebpf, "WALKING")?,
            processes: map(ebpf, "QUARANTINE")?,
            users: map(ebpf, "QUARANTINED_USERS")?,
            program: walker,
            current: None,
            left_behind: Vec::new(),
            ending: Ending::default(),
            quarantine: Quarantine::default(),
            held_processes: HashSet::new(),
            held_users: HashSet::new(),
            ended: None,
        })
    }

    /// Gives the reader another order; what is of it in `pass` is filled in. False where too many
    /// readers hang.
    pub(super) fn order(&mut self, pass: Pass, order: &Order) -> Result<bool, LoadError> {
        self.ending.reap();
        let quarantine = &mut self.quarantine;
        self.left_behind.retain_mut(|left| {
            let has_ended = left.reader.has_ended();
            if has_ended && left.pid != 0 {
                quarantine.came_back(left.pid, left.user);
            }
            !has_ended
        });
        self.hold();
        if self.current.is_none() {
            let is_free = |slot: &u32| self.left_behind.iter().all(|left| left.slot != *slot);
            let Some(slot) = (0..READERS).find(is_free) else { return Ok(false) };
            let reader = Reader::start(self.program.as_fd()).map_err(LoadError::Pass)?;
            self.current = Some(Running { slot, reader, order: 0, over_all: None });
        }
        let kernel_only = u32::from(self.left_behind.len() + 1 >= READERS as usize);
        let lost = self.current.as_ref().map(|running| self.ring_full(running.slot));
        let Some(running) = &mut self.current else { return Ok(false) };
        let pass = Pass { reader: running.reader.pid(), slot: running.slot, kernel_only, ..pass };
        let named = |source| LoadError::Map { name: "PASS", source };
        if let Err(source) = self.pass.set(0, PassValue(pass), 0) {
            self.give_up();
            return Err(named(source));
        }
        running.order = running.order.wrapping_add(1);
        running.over_all = lost.filter(|_| order.over_all);
        if let Err(error) = running.reader.order(running.order, order) {
            self.give_up();
            return Err(LoadError::Pass(error));
        }
        Ok(true)
    }

    /// Brings the maps up to date with the quarantine.
    fn hold(&mut self) {
        if self.quarantine.is_empty()
            && self.held_processes.is_empty()
            && self.held_users.is_empty()
        {
            return;
        }
        let now = Instant::now();
        for user in self.quarantine.users(now).difference(&self.held_users) {
            tracing::warn!(
                uid = user,
                "readers of threads hang at a user's processes again and again: their stacks are \
                 not read for a while"
            );
        }
        apply(&mut self.processes, &mut self.held_processes, self.quarantine.processes(now));
        apply(&mut self.users, &mut self.held_users, self.quarantine.users(now));
    }

    fn ring_full(&self, slot: u32) -> u64 {
        let hot = self.hot.get(&slot, 0).ok();
        let counted = hot.and_then(|hot| hot.counter(Counter::RingFull as usize));
        counted.unwrap_or_default()
    }

    /// The current reader is of no use any more.
    fn give_up(&mut self) {
        if let Some(Running { reader, .. }) = self.current.take() {
            self.ending.add(reader);
        }
    }

    pub(super) fn report(&mut self) -> PassReport {
        let mut report = PassReport::default();
        let Some(running) = &mut self.current else { return report };
        let reports = match running.reader.reports() {
            Ok(reports) => reports,
            Err(error) => {
                tracing::warn!(%error, "the process that reads threads has ended");
                self.give_up();
                return PassReport { has_failed: true, ..report };
            }
        };
        let (slot, order) = (running.slot, running.order);
        let mut over_all = running.over_all;
        for of in reports {
            if of.order == order
                && let Some(lost_before) = over_all.take()
            {
                report.over_all = Some((of.cost, self.ring_full(slot) > lost_before));
            } else {
                report.repeated += of.cost;
            }
        }
        if let Some(running) = &mut self.current {
            running.over_all = over_all;
        }
        report
    }

    /// Where the reader is.
    pub(super) fn position(&self) -> Walking {
        let walking =
            self.current.as_ref().and_then(|running| self.walking.get(&running.slot, 0).ok());
        walking.map(|value| value.0).unwrap_or_default()
    }

    /// Whether the reader waits in the kernel: one without a CPU does not.
    pub(super) fn sleeps(&self) -> bool {
        self.current.as_ref().is_some_and(|running| running.reader.sleeps())
    }

    /// Leaves the reader behind. Memory of the process that it reads is not read for a while.
    pub(super) fn leave_behind(&mut self, pid: u32) {
        // Once it is killed its reads fail at once: what it sent of other threads would be stacks that
        // cannot be read.
        if let Ok(PassValue(pass)) = self.pass.get(&0, 0) {
            let _ = self.pass.set(0, PassValue(Pass { reader: 0, ..pass }), 0);
        }
        let user = if pid == 0 { ROOT } else { owner_of(pid) };
        if let Some(Running { slot, mut reader, .. }) = self.current.take() {
            reader.kill();
            self.left_behind.push(LeftBehind { slot, reader, pid, user });
        }
        if pid != 0 {
            self.quarantine.hung(pid, user, Instant::now());
        }
        self.hold();
    }

    /// The process has ended, or executes another program.
    pub(super) fn release(&mut self, pid: u32) {
        self.quarantine.release(pid);
        if self.held_processes.remove(&pid) {
            let _ = self.processes.remove(&pid);
        }
    }

    /// Threads that end are sent from now on. While they are, nothing is done.
    pub(super) fn start(&mut self, ebpf: &mut Ebpf) -> Result<(), LoadError> {
        if self.ended.is_some() {
            return Ok(());
        }
        let program: &mut BtfTracePoint = program(ebpf, ENDED)?;
        let link = program.attach();
        self.ended = Some(link.map_err(|source| LoadError::Program { name: ENDED, source })?);
        Ok(())
    }

    /// Threads that end are not sent any more.
    pub(super) fn stop(&mut self, ebpf: &mut Ebpf) -> Result<(), LoadError> {
        let Some(link) = self.ended.take() else { return Ok(()) };
        let program: &mut BtfTracePoint = program(ebpf, ENDED)?;
        program.detach(link).map_err(|source| LoadError::Program { name: ENDED, source })
    }

    /// A counter of all readers.
    pub(super) fn count(&self, counter: usize) -> u64 {
        let all = (0..READERS).filter_map(|slot| self.hot.get(&slot, 0).ok());
        all.filter_map(|hot| hot.counter(counter)).sum()
    }
}

/// Makes a map hold these keys and no others. One that finds no room is tried again.
fn apply(map: &mut HashMap<MapData, u32, u32>, held: &mut HashSet<u32>, wanted: HashSet<u32>) {
    for key in held.difference(&wanted) {
        let _ = map.remove(key);
    }
    let is_held = |key: &u32| held.contains(key) || map.insert(*key, 1, 0).is_ok();
    *held = wanted.into_iter().filter(is_held).collect();
}

impl Programs {
    /// Threads that end are sent from now on.
    pub fn start_threads(&mut self) -> Result<(), LoadError> {
        match &mut self.threads {
            Some(threads) => threads.start(&mut self.ebpf),
            None => Ok(()),
        }
    }

    /// Orders passes over threads that do not run; what is new comes as records. False if none can
    /// begin, because too many readers hang.
    pub fn order_passes(&mut self, pass: Pass, order: &Order) -> Result<bool, LoadError> {
        self.threads.as_mut().map_or(Ok(false), |threads| threads.order(pass, order))
    }

    /// What passes have done since the last call.
    pub fn pass_report(&mut self) -> PassReport {
        self.threads.as_mut().map(Threads::report).unwrap_or_default()
    }

    /// Where the reader is in its pass.
    pub fn pass_position(&self) -> Walking {
        self.threads.as_ref().map(Threads::position).unwrap_or_default()
    }

    /// Whether it sleeps there.
    pub fn pass_sleeps(&self) -> bool {
        self.threads.as_ref().is_some_and(Threads::sleeps)
    }

    /// Gives the reader up: it hangs at this process, which is not walked for a while.
    pub fn abandon_pass(&mut self, pid: u32) {
        if let Some(threads) = &mut self.threads {
            threads.leave_behind(pid);
        }
    }

    /// Processes that are not walked now, because a reader hung at each.
    pub fn not_walked(&self) -> impl Iterator<Item = u32> + '_ {
        self.threads.iter().flat_map(|threads| threads.held_processes.iter().copied())
    }

    /// The process has ended, or executes another program: it may be walked again.
    pub fn release(&mut self, pid: u32) {
        if let Some(threads) = &mut self.threads {
            threads.release(pid);
        }
    }

    /// As [`Self::records_fd`], of passes over threads.
    pub fn threads_fd(&self) -> Option<BorrowedFd<'_>> {
        self.threads.as_ref().map(|threads| threads.records.as_fd())
    }

    /// The next record of a pass over threads.
    pub fn next_thread(&mut self) -> Option<impl std::ops::Deref<Target = [u8]> + '_> {
        self.threads.as_mut()?.records.next()
    }

    /// A counter of passes over threads; as [`Programs::count`].
    pub fn count_of_threads(&self, counter: usize) -> u64 {
        self.threads.as_ref().map_or(0, |threads| threads.count(counter))
    }
}
