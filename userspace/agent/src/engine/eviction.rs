//! Housekeeping: evicts tables, drops ended processes and unused files, and replaces CPU events
//! that stalled.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use super::Engine;
use super::wall::Wall;
use crate::code_address::CodeAddress;
use crate::image_id::ImageId;
use crate::processes::mapped::FileId;
use crate::processes::scan::has_ended;
use crate::processes::table::Space;
use crate::tables;

/// How long ended processes are kept for samples that are still in the ring.
const SWEEP: Duration = Duration::from_secs(1);
/// Files are dropped when two checks in a row found them unused.
const FILE_SWEEP: Duration = Duration::from_secs(300);
/// Beyond this number, files that no process maps are dropped at once: each is an open descriptor.
const MANY_FILES: usize = 4096;
/// With so many more than at the last check, a process maps files without end: they are checked
/// before the period ends.
const MANY_NEW_FILES: usize = 8192;
/// The same of images: each process that starts has two, before and after it executes its program.
const MANY_NEW_IMAGES: usize = 16_384;

/// Processes without a main thread that are looked for at a time.
const LEADERLESS_LOOKS: usize = 64;

/// The most processes evicted after an allocation failed. The allocation is tried again later:
/// freed memory is reused only after a grace period.
const FOR_A_SHORTAGE: usize = 4;

/// When housekeeping was last done, and what it found.
pub(super) struct Eviction {
    /// When tables were evicted because something found no room.
    shortage: Option<Instant>,
    last_sweep: Instant,
    last_file_sweep: Instant,
    /// Files that were in use at the last check.
    files_in_use: HashSet<FileId>,
    /// Images that were left at the last check.
    images: usize,
    /// A flush is being symbolized: its files are not in use here, and needed.
    pub(super) is_symbolizing: bool,
}

impl Eviction {
    pub(super) fn new() -> Self {
        let (last_sweep, last_file_sweep) = (Instant::now(), Instant::now());
        let files_in_use = HashSet::new();
        let (shortage, images, is_symbolizing) = (None, 0, false);
        Self { shortage, last_sweep, last_file_sweep, files_in_use, images, is_symbolizing }
    }
}

impl Engine {
    /// Evicts least-used processes' tables while memory is tight.
    pub(super) fn make_room(&mut self) {
        let mut evicted = 0;
        // Memory freed for the last one is in its grace period until then.
        let is_early =
            self.eviction.shortage.is_some_and(|last| self.turn.now < last + 2 * tables::GRACE);
        let mut at_least = 0;
        if !is_early && self.store.segments.take_shortage() {
            self.eviction.shortage = Some(self.turn.now);
            at_least = FOR_A_SHORTAGE;
        }
        while (self.store.segments.is_tight() || at_least > 0) && evicted < 64 {
            let Some(pid) = self.store.next_evicted(self.turn.now) else { break };
            self.store.withdraw(&mut self.programs, pid);
            self.loading.release_unused(&mut self.store);
            evicted += 1;
            at_least = at_least.saturating_sub(1);
        }
    }

    /// Housekeeping: drops ended processes once no more records of theirs can arrive.
    pub(super) fn sweep(&mut self) {
        if self.eviction.last_sweep.elapsed() < SWEEP {
            return;
        }
        self.eviction.last_sweep = Instant::now();
        self.programs.flush_diagnostics();
        self.meet_executed();
        self.store.reclaim();
        self.store.allow_inheriting(&mut self.programs);
        self.programs.rest();
        self.processes.paces.sweep(self.turn.now);
        self.processes.dirty.extend(self.store.take_withheld());
        for pid in self.loading.take_delayed() {
            if self.store.is_published(pid) {
                self.loading.need(&self.table, pid, 0);
                self.processes.dirty.insert(pid);
            }
        }
        if self.loading.take_second_chances() {
            self.processes.dirty.extend(self.store.published());
        }
        self.look_after_cpus();
        self.look_after_leaderless();
        self.take_last_snapshots_of_ended();
        let pending = &self.pending;
        let table = &mut self.table;
        let (programs, store) = (&mut self.programs, &mut self.store);
        let managed = &mut self.managed;
        self.processes.ended.retain(|&pid| {
            // The pid may be another process by now.
            if !table.get(pid).is_some_and(|process| process.exited) {
                return false;
            }
            if pending.waits_for(pid) || still_runs(pid) {
                return true;
            }
            managed.left(pid);
            store.withdraw(programs, pid);
            store.set_unwanted(programs, pid, 0);
            table.remove(pid);
            false
        });
        let table = &self.table;
        let is_there = |pid, image| table.get(pid).is_some_and(|process| process.image == image);
        self.waits.retain(is_there);
        self.waits.memory.retain_users(|pid| table.get(pid).is_some());
        if let Some(wall) = &mut self.wall {
            wall.retain(|pid| table.get(pid).is_some());
            wall.memory.retain_users(|pid| table.get(pid).is_some());
            wall.look_for_threads(is_thread);
        }
        self.loading.sweep();
        let are_many = self.table.files.count() > self.eviction.files_in_use.len() + MANY_NEW_FILES;
        if are_many && !self.eviction.is_symbolizing {
            self.forget_files(true);
        }
        // A recording has no flushes, and a program may be started many thousand times in a period.
        let are_many = self.table.image_count() > self.eviction.images + MANY_NEW_IMAGES;
        if are_many && !self.eviction.is_symbolizing {
            self.drop_images();
        }
    }

    /// A process has ended.
    pub(super) fn ended(&mut self, pid: u32) {
        self.note_exited(pid);
        self.programs.release(pid);
        self.selection.ended(pid);
        self.processes.repairs.forget(pid);
        self.loading.service().process_ended(pid);
        self.processes.ended.push(pid);
    }

    /// Processes whose main thread has ended end with their last thread, of whose end the event may be lost.
    /// The next ones are looked for at each call: a user may have thousands.
    fn look_after_leaderless(&mut self) {
        let (table, leaderless) = (&mut self.table, &mut self.processes.leaderless);
        leaderless.extend(table.take_leaderless());
        leaderless.retain(|pid| table.is_leaderless(*pid));
        for _ in 0..leaderless.len().min(LEADERLESS_LOOKS) {
            let Some(pid) = self.processes.leaderless.pop_front() else { return };
            if still_runs(pid) {
                self.processes.leaderless.push_back(pid);
            } else if self.table.end(pid) {
                self.ended(pid);
            }
        }
    }

    fn take_last_snapshots_of_ended(&mut self) {
        if self.processes.ended.is_empty() {
            return;
        }
        let mut reporting = self.managed.with_snapshots();
        // The pid may be another process by now, and threads may go on without their leader.
        reporting.retain(|(_, pid)| {
            self.processes.ended.contains(pid)
                && self.table.get(*pid).is_some_and(|process| process.exited)
                && !still_runs(*pid)
        });
        let ended: Vec<u32> = reporting.into_iter().map(|(_, pid)| pid).collect();
        self.take_last_snapshots(&ended);
    }

    /// After a flush has been symbolized: drops data of processes that have exited, and files that
    /// no process has mapped for a while.
    pub fn forget(&mut self) {
        self.eviction.is_symbolizing = false;
        self.managed.forget_ended();
        self.drop_images();
        let crowded = self.table.files.count() > MANY_FILES;
        if crowded || self.eviction.last_file_sweep.elapsed() >= FILE_SWEEP {
            self.forget_files(crowded);
        }
    }

    /// Drops what is known of programs that neither a process runs nor a sample refers to.
    fn drop_images(&mut self) {
        let mut images: HashSet<ImageId> = self.pending.owners().map(|(image, _)| image).collect();
        images.extend(self.waits.owners().map(|(image, _)| image));
        let wall = self.wall.iter().flat_map(Wall::owners);
        images.extend(wall.map(|(image, _)| image));
        images.extend(self.aggregate.threads().map(|thread| thread.image));
        images.extend(self.managed.images());
        self.table.retain_images(|image| images.contains(&image));
        let table = &self.table;
        self.selection.retain(|image| table.image(image).is_some());
        self.groups.retain(|image| table.image(image).is_some());
        self.credentials.retain(|image| table.image(image).is_some());
        self.rates.retain(|image| table.image(image).is_some());
        self.managed.forget_left_alone(|image| table.image(image).is_some());
        self.eviction.images = self.table.image_count();
    }

    /// Drops files that neither a process nor a sample refers to; `crowded`: at the first check.
    fn forget_files(&mut self, crowded: bool) {
        self.eviction.last_file_sweep = Instant::now();
        let mut files = self.table.files_in_use();
        files.extend(self.pending.owners().flat_map(|(_, space)| space.files()));
        files.extend(self.waits.owners().filter_map(|(_, space)| space).flat_map(Space::files));
        let wall = self.wall.iter().flat_map(Wall::owners);
        files.extend(wall.flat_map(|(_, space)| space.files()));
        let of_objects = self.heaps.code_addresses();
        files.extend(self.aggregate.code_addresses().chain(of_objects).filter_map(|place| {
            match place {
                CodeAddress::File { file, .. } => Some(file),
                _ => None,
            }
        }));
        // Programs that run every few seconds use the same files again.
        let spared = std::mem::replace(&mut self.eviction.files_in_use, files);
        let spared = if crowded { HashSet::new() } else { spared };
        let (loading, used) = (&self.loading, &self.eviction.files_in_use);
        let is_kept = |file: FileId| {
            used.contains(&file) || spared.contains(&file) || loading.is_asked_about(file)
        };
        self.table.files.retain(is_kept);
        let table = &self.table;
        self.loading.retain(&mut self.store, |file| table.files.get(file).is_some());
    }
}

/// Whether a process whose leader has ended still has threads that run.
fn still_runs(pid: u32) -> bool {
    if has_ended(pid) {
        return false;
    }
    std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.take(2).count() > 1)
}

/// Whether a process has this thread.
fn is_thread(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    if unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) } == 0 {
        return true;
    }
    io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}
