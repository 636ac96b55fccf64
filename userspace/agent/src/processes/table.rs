//! Processes and their images, kept up to date by perf events. Their executable mappings are in
//! `space`.
//!
//! An *image* is one program run by one process: exec makes a new one. Samples belong to
//! images, so that what a pid did before an exec, or before it was reused, stays apart.
//!
//! - `events`: what an event changes.
//! - `images`: the images that are kept.
//!
//! This module has the rest: what `/proc` shows at the start and after events were lost, and files that
//! have changed.

mod events;
mod images;

use std::collections::{HashMap, HashSet};

use super::mapped::{FileId, MappedFiles};
use super::mapping_events::MappingEvents;
pub use super::space::{Backing, MAX_MAPPINGS, Mapping, Space};
use crate::image_id::ImageId;
use crate::kernel::perf_record::MappedInode;
pub use events::Change;
use images::Images;
pub use images::{Image, MappedProgram};

#[derive(Debug)]
pub struct Process {
    pub parent: u32,
    pub image: ImageId,
    pub space: Space,
    /// Its last thread has ended.
    pub exited: bool,
    /// Its main thread has ended, and others may go on.
    is_leaderless: bool,
    /// Threads beside the main one, as far as is known.
    others: u32,
    events: MappingEvents,
    /// It executes a new program, without mappings yet.
    is_executing: bool,
    /// It was reported as ended while it executed a program, and has mapped nothing since.
    may_have_ended: bool,
}

impl Process {
    fn new(parent: u32, image: ImageId, space: Space, events: MappingEvents) -> Self {
        Self {
            parent,
            image,
            space,
            exited: false,
            is_leaderless: false,
            others: 0,
            events,
            is_executing: false,
            may_have_ended: false,
        }
    }

    fn take_threads(&mut self, threads: Threads) {
        (self.is_leaderless, self.others) = (threads.is_leaderless, threads.others);
    }
}

/// What `/proc` shows of a process that was there before events were, or of which some were lost.
#[derive(Clone, Copy, Debug)]
pub struct Existing<'a> {
    pub pid: u32,
    pub parent: u32,
    pub comm: &'a str,
    pub threads: Threads,
}

/// The threads of a process: whether its main thread has ended, and how many others there are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads {
    pub is_leaderless: bool,
    pub others: u32,
}

#[derive(Default)]
pub struct ProcessTable {
    processes: HashMap<u32, Process>,
    images: Images,
    pub files: MappedFiles,
    /// Process events the kernel had no room for.
    pub lost_events: u64,
    /// Mappings that processes beyond [`MAX_MAPPINGS`] were refused.
    pub refused_mappings: u64,
    /// Skipped mapping events of processes that map without end.
    pub muted_events: u64,
    /// Processes whose main thread has ended before others since [`Self::take_leaderless`].
    leaderless: Vec<u32>,
}

impl ProcessTable {
    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// Files that mappings of processes, and images, refer to.
    pub fn files_in_use(&self) -> HashSet<FileId> {
        let spaces = self.processes.values().flat_map(|process| process.space.files());
        spaces.chain(self.images.files()).collect()
    }

    pub fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.processes.keys().copied()
    }

    /// A process whose mappings are unknown (a kernel thread, one that was missed).
    pub fn insert_unknown(&mut self, pid: u32, comm: &str) {
        let threads = Threads::default();
        self.insert_existing(Existing { pid, parent: 0, comm, threads }, Vec::new());
    }

    /// The process that one was forked from, if neither has executed anything since: the kernel maps
    /// the vDSO somewhere else in each program that is executed.
    pub fn forked_from(&self, pid: u32) -> Option<u32> {
        let origin = |pid: u32| {
            let process = self.get(pid)?;
            let vdso = vdso_of(process.space.mappings())?;
            Some((self.image(process.image)?.program?, vdso))
        };
        let parent = self.get(pid)?.parent;
        (origin(pid)? == origin(parent)?).then_some(parent)
    }

    /// A process that was there before events were.
    pub fn insert_existing(&mut self, existing: Existing<'_>, mappings: Vec<Mapping>) {
        let Existing { pid, parent, comm, threads } = existing;
        if self.processes.contains_key(&pid) {
            return;
        }
        let image = self.images.add(pid, comm, 0);
        let mut space = Space::default();
        for mapping in mappings {
            self.images.note_mapped(image, mapping.backing, &self.files);
            space.map(mapping);
        }
        self.refused_mappings += space.refused;
        let Threads { is_leaderless, others } = threads;
        if is_leaderless {
            self.leaderless.push(pid);
        }
        let process = Process::new(parent, image, space, MappingEvents::default());
        self.processes.insert(pid, Process { is_leaderless, others, ..process });
    }

    /// The reading of `/proc` of a process whose events may have been lost: its name and threads, and what it
    /// has mapped. The time is that of the reading.
    pub fn repair(&mut self, found: Existing<'_>, mappings: &[Mapping], time: u64) -> Change {
        let Existing { pid, comm, threads, .. } = found;
        let Some(process) = self.processes.get(&pid) else { return Change::None };
        let program = self.image(process.image).and_then(|image| image.program);
        let is_mapped = |file| mappings.iter().any(|one| one.backing == Backing::File(file));
        let vdsos = vdso_of(process.space.mappings()).zip(vdso_of(mappings));
        let mut change = Change::None;
        if program.is_some_and(|program| !is_mapped(program)) && !mappings.is_empty()
            || vdsos.is_some_and(|(before, now)| before != now)
        {
            // It has executed another program, or its own once more.
            change = self.rename(pid, pid, comm.as_bytes(), true, time);
        } else if self.image(process.image).is_some_and(|image| *image.comm != *comm) {
            change = self.rename(pid, pid, comm.as_bytes(), false, time);
        }
        let Some(process) = self.processes.get_mut(&pid) else { return change };
        if matches!(change, Change::Executed { .. }) {
            process.is_executing = false;
            process.take_threads(threads);
        }
        let (image, refused) = (process.image, process.space.refused);
        if process.space.is_full() && !mappings.is_empty() {
            process.space.replace(mappings);
        } else {
            for mapping in mappings {
                process.space.map(*mapping);
            }
        }
        self.refused_mappings += process.space.refused - refused;
        for mapping in mappings {
            self.images.note_mapped(image, mapping.backing, &self.files);
        }
        change
    }

    /// Sets the parent and the threads of a process of which nothing was known, as `/proc` shows them. False
    /// where its parent was known.
    pub fn adopt(&mut self, found: Existing<'_>) -> bool {
        let Some(process) = self.processes.get_mut(&found.pid) else { return false };
        if process.parent != 0 || found.parent == 0 {
            return false;
        }
        process.parent = found.parent;
        process.take_threads(found.threads);
        true
    }

    /// The content of files has changed in place: all that map them have the new one, which is another file
    /// from now on. Returns the processes that map some.
    pub fn renew_files(&mut self, changed: &[FileId]) -> Vec<u32> {
        let mut renewed = HashMap::new();
        for old in changed {
            self.files.forget(*old);
            let Some(file) = self.files.get(*old).cloned() else { continue };
            // One that a JIT compiler writes to grows, and no code runs in it.
            if !images::is_jitdump(&file.path) {
                renewed.insert(*old, self.files.intern(file.inode, &file.path));
            }
        }
        if renewed.is_empty() {
            return Vec::new();
        }
        let mut mapping = Vec::new();
        for (pid, process) in &mut self.processes {
            if !process.space.exchange(&renewed) {
                continue;
            }
            mapping.push(*pid);
            if let Some(image) = self.images.get_mut(process.image)
                && let Some(new) = image.program.and_then(|program| renewed.get(&program))
            {
                image.program = Some(*new);
            }
        }
        mapping
    }

    pub fn remove(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    pub fn backing(&mut self, inode: MappedInode, path: &[u8]) -> Option<Backing> {
        match path {
            b"[vdso]" => Some(Backing::Vdso),
            b"[vsyscall]" | b"[uprobes]" | b"[uprobes-trampoline]" => None,
            _ => Some(
                generated(path).unwrap_or_else(|| Backing::File(self.files.intern(inode, path))),
            ),
        }
    }
}

/// Where the kernel has mapped its own code: somewhere else in each program that is executed.
fn vdso_of(mappings: &[Mapping]) -> Option<u64> {
    mappings.iter().find(|mapping| mapping.backing == Backing::Vdso).map(|vdso| vdso.start)
}

/// The start of the path of .NET's generated code, which it maps a second time to write it.
const DOUBLE_MAPPED: &[u8] = b"/memfd:doublemapper";

/// The backing of a mapping of this path, if it holds generated code.
fn generated(path: &[u8]) -> Option<Backing> {
    match path {
        b"[vdso]" | b"[vsyscall]" | b"[uprobes]" | b"[uprobes-trampoline]" => None,
        _ if path.starts_with(DOUBLE_MAPPED) => Some(Backing::Runtime),
        _ => is_generated_code(path).then_some(Backing::Anonymous),
    }
}

/// Paths of mappings that hold generated code.
fn is_generated_code(path: &[u8]) -> bool {
    path.is_empty()
        || !path.starts_with(b"/")
        || path.starts_with(b"//anon")
        || path.starts_with(b"/dev/zero")
        || path.starts_with(b"/SYSV")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::perf_record::Event;

    pub(super) fn existing(pid: u32, comm: &str) -> Existing<'_> {
        Existing { pid, parent: 1, comm, threads: Threads::default() }
    }

    pub(super) fn file(start: u64, end: u64, offset: u64) -> Mapping {
        Mapping { start, end, offset, backing: Backing::File(FileId(1)) }
    }

    #[test]
    fn files_that_others_were_mapped_over_are_kept_by_nothing() {
        let (mut files, mut space) = (MappedFiles::default(), Space::default());
        for inode in 0..5_000 {
            let inode = MappedInode { major: 8, minor: 1, inode, generation: 1 };
            let id = files.intern(inode, format!("/tmp/{}", inode.inode).as_bytes());
            space.map(Mapping { backing: Backing::File(id), ..file(0x1000, 0x2000, 0) });
        }
        assert_eq!(files.count(), 5_000);
        let used: HashSet<FileId> = space.files().collect();
        files.retain(|id| used.contains(&id));
        assert_eq!((used.len(), files.count()), (1, 1));
    }

    #[test]
    fn a_process_was_forked_from_its_parent_until_one_of_them_executes_another_program() {
        let mut table = ProcessTable::default();
        let program = MappedInode { major: 8, minor: 1, inode: 1, generation: 0 };
        let python = Backing::File(table.files.intern(program, b"/usr/bin/python3.13"));
        let code = |start, backing| Mapping { start, end: start + 0x1000, offset: 0, backing };
        let of_program = |vdso| vec![code(0x1000, python), code(vdso, Backing::Vdso)];
        table.insert_existing(existing(7, "python"), of_program(0x7fff_1000));
        table.apply(&Event::Fork { pid: 8, parent: 7, tid: 8 }, 5);
        // Known from `/proc`, as its children are.
        let parent = |parent, pid| Existing { parent, ..existing(pid, "python") };
        table.insert_existing(parent(8, 9), of_program(0x7fff_1000));
        table.insert_existing(parent(8, 10), of_program(0x7ffe_1000));
        assert_eq!([8, 9, 10].map(|pid| table.forked_from(pid)), [Some(7), Some(8), None]);
        assert_eq!(table.forked_from(7), None);
        let name = b"ls".as_slice().into();
        table.apply(&Event::Comm { pid: 8, tid: 8, name, exec: true }, 6);
        assert_eq!([8, 9].map(|pid| table.forked_from(pid)), [None, None]);
    }

    /// A mapping event of this path.
    pub(super) fn mapped(pid: u32, start: u64, path: &[u8]) -> Event {
        let inode = MappedInode { major: 0, minor: 1, inode: 7, generation: 1 };
        Event::Mmap { pid, start, length: 0x1000, offset: 0, inode, path: path.into() }
    }

    #[test]
    fn what_a_process_has_unmapped_is_forgotten_when_it_has_no_room_for_more() {
        let mut table = ProcessTable::default();
        table.insert_unknown(7, "churn");
        let mut time = 0;
        let mut map_at = |table: &mut ProcessTable, page: u64| {
            time += 1_000_000_000;
            table.apply(&mapped(7, 0x1_0000 + page * 0x2000, b"/tmp/x"), time)
        };
        for page in 0..MAX_MAPPINGS as u64 {
            assert!(matches!(map_at(&mut table, page), Change::Mapped { .. }));
        }
        let more = MAX_MAPPINGS as u64;
        assert_eq!(table.refused_mappings, 0);
        assert_eq!(map_at(&mut table, more), Change::Refused { pid: 7 });
        assert_eq!(table.refused_mappings, 1);
        let last = table.get(7).and_then(|process| process.space.mappings().last().copied());
        let last = last.expect("a mapping");
        table.repair(existing(7, "churn"), &[last], 1);
        assert_eq!(table.get(7).map(|process| process.space.mappings().to_vec()), Some(vec![last]));
        assert!(matches!(map_at(&mut table, more), Change::Mapped { .. }));
    }

    #[test]
    fn refused_mappings_are_counted_of_all_processes_and_however_they_were_seen() {
        let mut table = ProcessTable::default();
        let page = |number: u64| file(number * 0x2000, number * 0x2000 + 0x1000, 0);
        let pages = |count: usize| (0..count as u64).map(page).collect::<Vec<_>>();
        table.insert_existing(existing(7, "wide"), pages(MAX_MAPPINGS + 3));
        assert_eq!(table.refused_mappings, 3);
        table.insert_existing(existing(8, "full"), pages(MAX_MAPPINGS));
        assert_eq!(table.refused_mappings, 3);
        table.repair(existing(8, "full"), &pages(MAX_MAPPINGS + 2), 1);
        assert_eq!(table.refused_mappings, 5);
        table.insert_existing(existing(9, "small"), pages(1));
        table.repair(existing(9, "small"), &pages(2), 1);
        assert_eq!(table.refused_mappings, 5);
        table.remove(7);
        assert_eq!(table.refused_mappings, 5, "a total");
    }

    #[test]
    fn what_events_were_lost_of_is_repaired_by_what_is_there() {
        let mut table = ProcessTable::default();
        let mut backing = |number: u64, path: &[u8]| {
            let inode = MappedInode { major: 8, minor: 1, inode: number, generation: 0 };
            table.backing(inode, path).expect("a file")
        };
        let (shell, library, other) =
            (backing(1, b"/bin/sh"), backing(2, b"/lib/c.so"), backing(3, b"/bin/cat"));
        let at = |start: u64, backing| Mapping { backing, ..file(start, start + 0x1000, 0) };
        table.insert_existing(existing(7, "sh"), vec![at(0x1000, shell)]);
        let before = table.get(7).expect("a process").image;
        // It mapped a library, and the event was lost.
        let seen = [at(0x1000, shell), at(0x5000, library)];
        assert_eq!(table.repair(existing(7, "sh"), &seen, 5), Change::None);
        let process = table.get(7).expect("a process");
        assert!(process.image == before && process.space.mapping_of(0x5800).is_some());
        assert_eq!(table.repair(existing(7, "worker"), &seen, 6), Change::Renamed { pid: 7 });
        // It executed another program, and that event was lost too.
        let seen = [at(0x1000, other)];
        assert_eq!(table.repair(existing(7, "cat"), &seen, 7), Change::Executed { pid: 7 });
        let process = table.get(7).expect("a process");
        assert!(process.image != before && process.space.mapping_of(0x5800).is_none());
        assert_eq!(table.image(before).and_then(|image| image.replaced), Some(7));
        assert_eq!(table.image(process.image).map(|image| &*image.comm), Some("cat"));
        let with_vdso =
            |at: u64| [seen[0], Mapping { backing: Backing::Vdso, ..file(at, at + 1, 0) }];
        assert_eq!(table.repair(existing(7, "cat"), &with_vdso(0x9000), 8), Change::None);
        assert_eq!(table.repair(existing(7, "cat"), &with_vdso(0x9000), 9), Change::None);
        // The same program once more.
        let executed = Change::Executed { pid: 7 };
        assert_eq!(table.repair(existing(7, "cat"), &with_vdso(0xa000), 10), executed);
    }

    #[test]
    fn the_parent_of_a_process_whose_start_was_missed_is_known_by_its_reading() {
        let mut table = ProcessTable::default();
        table.insert_unknown(7, "cc");
        assert!(table.adopt(Existing { parent: 3, ..existing(7, "cc") }));
        assert_eq!(table.get(7).map(|process| process.parent), Some(3));
        assert!(!table.adopt(Existing { parent: 1, ..existing(7, "cc") }), "it was reparented");
    }

    #[test]
    fn a_file_that_changed_in_place_is_another_one_wherever_it_is_mapped() {
        let mut table = ProcessTable::default();
        let inode = MappedInode { major: 8, minor: 1, inode: 5, generation: 1 };
        let old = table.files.intern(inode, b"/app");
        let at = |id| Mapping { backing: Backing::File(id), ..file(0x1000, 0x2000, 0) };
        for pid in [7, 8] {
            table.insert_existing(existing(pid, "app"), vec![at(old)]);
        }
        table.insert_existing(existing(9, "other"), vec![file(0x1000, 0x2000, 0)]);
        let epoch = table.get(7).map(|process| process.space.epoch);
        let mut changed = table.renew_files(&[old]);
        changed.sort_unstable();
        assert_eq!(changed, [7, 8]);
        let new = table.files.intern(inode, b"/app");
        assert_ne!(new, old);
        let process = table.get(7).expect("a process");
        assert_eq!(process.space.mappings(), [at(new)]);
        assert_ne!(Some(process.space.epoch), epoch);
        assert_eq!(table.program_of(process.image).map(|program| program.file), Some(new));
        assert!(table.renew_files(&[old]).is_empty(), "once");
        let dump = table.files.intern(MappedInode { inode: 6, ..inode }, b"/tmp/jit-7.dump");
        table.insert_existing(existing(10, "node"), vec![at(dump)]);
        assert!(table.renew_files(&[dump]).is_empty(), "it grows");
    }
}
