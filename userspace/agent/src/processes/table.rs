//! Processes and their images, kept up to date by perf events. Their executable mappings are in
//! `space`.
//!
//! An *image* is one program run by one process: exec makes a new one. Samples belong to
//! images, so that what a pid did before an exec, or before it was reused, stays apart.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::mapped::{FileId, MappedFiles};
use super::mapping_events::{MappingEvents, Price};
pub use super::space::{Backing, MAX_MAPPINGS, Mapping, Space};
use crate::image_id::ImageId;
use crate::kernel::perf_record::{Event, MappedInode};

#[derive(Clone, Debug)]
pub struct Image {
    pub pid: u32,
    pub comm: Arc<str>,
    /// The file it was started from: the first one it mapped.
    pub program: Option<FileId>,
    /// When it began, by the clock of events; 0 if it was there before them.
    pub started: u64,
    /// When the process became another image, by the clock of events: readings of `/proc` since
    /// then are of that one.
    pub replaced: Option<u64>,
}

/// The file that a process was started from.
#[derive(Clone, Copy, Debug)]
pub struct MappedProgram<'a> {
    pub file: FileId,
    pub path: &'a [u8],
}

impl MappedProgram<'_> {
    /// The name of a file inside the program, when it is known by a path: by one below the
    /// program's folder, or by its own.
    pub fn name_inside<'a>(&self, path: &'a str) -> Option<&'a str> {
        if !path.starts_with('/') {
            return Some(path);
        }
        let folder = self.path.iter().rposition(|byte| *byte == b'/')?;
        let folder = std::str::from_utf8(self.path.get(..=folder)?).ok()?;
        path.strip_prefix(folder)
    }
}

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

    /// A thread ends. Whether it is the last one, as far as is known.
    fn end_of_thread(&mut self, is_leader: bool) -> bool {
        if is_leader {
            self.is_leaderless = true;
        } else {
            self.others = self.others.saturating_sub(1);
        }
        let is_last = self.is_leaderless && self.others == 0 && !self.exited;
        self.exited |= is_last;
        is_last
    }
}

/// What `/proc` shows of a process that was there before events were.
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

/// The effect of an event, for components with state of their own per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    /// A process appeared by fork; its mappings are its parent's.
    Forked {
        pid: u32,
        parent: u32,
    },
    /// A new program: nothing of the old one's is mapped any more.
    Executed {
        pid: u32,
    },
    Mapped {
        pid: u32,
        mapping: Mapping,
    },
    /// The process has another name.
    Renamed {
        pid: u32,
    },
    /// A thread has a name that only .NET's runtime gives to one of its own.
    RuntimeThread {
        pid: u32,
    },
    /// The last thread of a process has ended.
    Exited {
        pid: u32,
    },
    /// It maps more than [`MAX_MAPPINGS`], as far as is known.
    Refused {
        pid: u32,
    },
    /// It maps so much that its events are skipped for a while.
    Muted {
        pid: u32,
    },
    /// Events were lost: the program and mappings of any process may be out of date.
    Lost,
}

#[derive(Default)]
pub struct ProcessTable {
    processes: HashMap<u32, Process>,
    images: HashMap<ImageId, Image>,
    next_image: u32,
    /// Images that map a jitdump file: JIT compilers map it to make its path known.
    jitdumps: HashMap<ImageId, FileId>,
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

    pub fn image_count(&self) -> usize {
        self.images.len()
    }

    /// Drops images that nothing refers to any more; those of processes stay.
    pub fn retain_images(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        let current: HashSet<ImageId> =
            self.processes.values().map(|process| process.image).collect();
        self.images.retain(|id, _| current.contains(id) || is_kept(*id));
        let images = &self.images;
        self.jitdumps.retain(|id, _| images.contains_key(id));
    }

    /// Files that mappings of processes, and images, refer to.
    pub fn files_in_use(&self) -> HashSet<FileId> {
        let spaces = self.processes.values().flat_map(|process| process.space.files());
        let programs = self.images.values().filter_map(|image| image.program);
        spaces.chain(programs).chain(self.jitdumps.values().copied()).collect()
    }

    pub fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.processes.keys().copied()
    }

    /// A process whose mappings are unknown (a kernel thread, one that was missed).
    pub fn insert_unknown(&mut self, pid: u32, comm: &str) {
        let threads = Threads::default();
        self.insert_existing(Existing { pid, parent: 0, comm, threads }, Vec::new());
    }

    pub fn image(&self, id: ImageId) -> Option<&Image> {
        self.images.get(&id)
    }

    /// The process that one was forked from, if neither has executed anything since: the kernel maps
    /// the vDSO somewhere else in each program that is executed.
    pub fn forked_from(&self, pid: u32) -> Option<u32> {
        let origin = |pid: u32| {
            let process = self.get(pid)?;
            let mappings = process.space.mappings();
            let vdso = mappings.iter().find(|mapping| mapping.backing == Backing::Vdso)?;
            Some((self.image(process.image)?.program?, vdso.start))
        };
        let parent = self.get(pid)?.parent;
        (origin(pid)? == origin(parent)?).then_some(parent)
    }

    /// Whether its process has ended, or runs another image.
    pub fn has_ended(&self, image: ImageId) -> bool {
        let process = self.image(image).and_then(|image| self.get(image.pid));
        process.is_none_or(|process| process.exited || process.image != image)
    }

    pub fn program_of(&self, image: ImageId) -> Option<MappedProgram<'_>> {
        let file = self.image(image)?.program?;
        Some(MappedProgram { file, path: &self.files.get(file)?.path })
    }

    fn new_image(&mut self, pid: u32, comm: &str, started: u64) -> ImageId {
        let mut id = ImageId(self.next_image);
        while self.images.contains_key(&id) {
            id.0 = id.0.wrapping_add(1);
        }
        self.next_image = id.0.wrapping_add(1);
        let comm = comm.into();
        self.images.insert(id, Image { pid, comm, program: None, started, replaced: None });
        id
    }

    /// Exec maps the program first, and below its libraries; only assemblies may lie lower.
    fn note_program(&mut self, image: ImageId, backing: Backing) {
        if let Backing::File(file) = backing
            && let Some(image) = self.images.get_mut(&image)
            && image.program.is_none()
            && self.files.get(file).is_some_and(|file| !file.path.ends_with(b".dll"))
        {
            image.program = Some(file);
        }
    }

    /// A process that was there before events were.
    pub fn insert_existing(&mut self, existing: Existing<'_>, mappings: Vec<Mapping>) {
        let Existing { pid, parent, comm, threads } = existing;
        if self.processes.contains_key(&pid) {
            return;
        }
        let image = self.new_image(pid, comm, 0);
        let mut space = Space::default();
        for mapping in mappings {
            self.note_jitdump(image, mapping.backing);
            self.note_program(image, mapping.backing);
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

    /// The reading of `/proc` of a process whose events may have been lost: its name, and what it
    /// has mapped. The time is that of the reading.
    pub fn repair(&mut self, pid: u32, comm: &str, mappings: &[Mapping], time: u64) -> Change {
        let Some(process) = self.processes.get(&pid) else { return Change::None };
        let program = self.image(process.image).and_then(|image| image.program);
        let is_mapped = |file| mappings.iter().any(|one| one.backing == Backing::File(file));
        let mut change = Change::None;
        if program.is_some_and(|program| !is_mapped(program)) && !mappings.is_empty() {
            // Its program is not mapped any more: it has executed another.
            change = self.rename(pid, pid, comm.as_bytes(), true, time);
        } else if self.image(process.image).is_some_and(|image| *image.comm != *comm) {
            change = self.rename(pid, pid, comm.as_bytes(), false, time);
        }
        let Some(process) = self.processes.get_mut(&pid) else { return change };
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
            self.note_jitdump(image, mapping.backing);
            self.note_program(image, mapping.backing);
        }
        change
    }

    /// The content of files has changed in place: all that map them have the new one, which is another file
    /// from now on. Returns the processes that map some.
    pub fn renew_files(&mut self, changed: &[FileId]) -> Vec<u32> {
        let mut renewed = HashMap::new();
        for old in changed {
            self.files.forget(*old);
            let Some(file) = self.files.get(*old).cloned() else { continue };
            // One that a JIT compiler writes to grows, and no code runs in it.
            if !is_jitdump(&file.path) {
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
            if let Some(image) = self.images.get_mut(&process.image)
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

    pub fn jitdump_of(&self, image: ImageId) -> Option<FileId> {
        self.jitdumps.get(&image).copied()
    }

    fn note_jitdump(&mut self, image: ImageId, backing: Backing) {
        let Backing::File(file) = backing else { return };
        if self.files.get(file).is_some_and(|file| is_jitdump(&file.path)) {
            self.jitdumps.insert(image, file);
        }
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

    /// `time` is the event's.
    pub fn apply(&mut self, event: &Event, time: u64) -> Change {
        match event {
            Event::Mmap { pid, start, length, offset, inode, path } => {
                let Some(process) = self.processes.get_mut(pid) else { return Change::None };
                let was_muted = process.events.is_muted(time);
                let (start, end) = (*start, start.saturating_add(*length));
                let mapping = |backing| Mapping { start, end, offset: *offset, backing };
                let is_known = generated(path)
                    .is_some_and(|backing| process.space.holds_generated(&mapping(backing)));
                let price = if is_known { Price::Known } else { Price::New };
                if !process.events.take(time, price) {
                    self.muted_events += 1;
                    return if was_muted { Change::None } else { Change::Muted { pid: *pid } };
                }
                if is_known {
                    return Change::None;
                }
                let Some(backing) = self.backing(*inode, path) else { return Change::None };
                let Some(process) = self.processes.get_mut(pid) else { return Change::None };
                let mapping = mapping(backing);
                let refused = process.space.refused;
                process.is_executing = false;
                process.may_have_ended = false;
                process.space.map(mapping);
                let is_refused = process.space.refused > refused;
                self.refused_mappings += u64::from(is_refused);
                if is_refused {
                    return Change::Refused { pid: *pid };
                }
                let image = process.image;
                self.note_jitdump(image, backing);
                self.note_program(image, backing);
                Change::Mapped { pid: *pid, mapping }
            }
            Event::Comm { pid, tid, name, exec } => self.rename(*pid, *tid, name, *exec, time),
            Event::Fork { pid, parent, .. } if pid == parent => {
                if let Some(process) = self.processes.get_mut(pid) {
                    process.others = process.others.saturating_add(1);
                }
                Change::None
            }
            Event::Fork { pid, parent, .. } => self.fork(*pid, *parent, time),
            Event::Exit { pid, tid } => {
                let Some(process) = self.processes.get_mut(pid) else { return Change::None };
                let is_leader = pid == tid;
                // A program that gains privileges (a setuid one; any that root's child executes
                // when its parent has given some up) is reported as ended before it has mapped
                // anything: `begin_new_exec` calls `perf_event_exit_task` (fs/exec.c, Linux 6.18).
                // Its end is reported again.
                if is_leader && std::mem::take(&mut process.is_executing) {
                    // An exec that fails from there on ends its process, which is reported once.
                    process.may_have_ended = true;
                    self.leaderless.push(*pid);
                    return Change::None;
                }
                if process.end_of_thread(is_leader) {
                    return Change::Exited { pid: *pid };
                }
                if is_leader {
                    self.leaderless.push(*pid);
                }
                Change::None
            }
            Event::Lost { count } => {
                self.lost_events += count;
                Change::Lost
            }
        }
    }

    /// A process has ended, whatever was known of its threads. False where that was known.
    pub fn end(&mut self, pid: u32) -> bool {
        let Some(process) = self.processes.get_mut(&pid) else { return false };
        !std::mem::replace(&mut process.exited, true)
    }

    /// Processes whose main thread has ended before others, since the last call, of whose ends the
    /// event may be lost, and those that may have ended as they executed a program.
    pub fn take_leaderless(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.leaderless)
    }

    /// Whether the main thread of a process has ended, and others may go on; or it is not known
    /// whether that has.
    pub fn is_leaderless(&self, pid: u32) -> bool {
        self.get(pid).is_some_and(|process| {
            (process.is_leaderless || process.may_have_ended) && !process.exited
        })
    }

    /// The thread that ends with an event, which has not been applied yet.
    pub fn ended_thread(&self, event: &Event) -> Option<u32> {
        let Event::Exit { pid, tid } = *event else { return None };
        // See `apply`.
        let is_executing = pid == tid && self.get(pid).is_some_and(|process| process.is_executing);
        (!is_executing).then_some(tid)
    }

    /// Whether mapping events of a process are skipped at this time.
    pub fn is_muted(&self, pid: u32, time: u64) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.events.is_muted(time))
    }

    /// Whether a process's mapping event is skipped, which is counted where the process is `wanted`.
    pub fn passes_over(&mut self, pid: u32, time: u64, is_wanted: bool) -> bool {
        let is_muted = self.is_muted(pid, time);
        self.muted_events += u64::from(is_muted && is_wanted);
        is_muted
    }

    /// What processes that are not recorded were refused so far is no loss.
    pub fn forget_refusals(&mut self, is_unwanted: impl Fn(u32) -> bool) {
        let unwanted = self.processes.iter().filter(|(pid, _)| is_unwanted(**pid));
        let refused: u64 = unwanted.map(|(_, process)| process.space.refused).sum();
        self.refused_mappings = self.refused_mappings.saturating_sub(refused);
    }

    /// Applies an event of a process that is not recorded: what it was refused is no loss.
    pub fn apply_unwanted(&mut self, event: &Event, time: u64) -> Change {
        let before = (self.refused_mappings, self.muted_events);
        let change = self.apply(event, time);
        (self.refused_mappings, self.muted_events) = before;
        change
    }

    /// Puts a process in place of the one that had its number.
    fn replace(&mut self, pid: u32, new: Process, time: u64) {
        if let Some(old) = self.processes.insert(pid, new)
            && let Some(image) = self.images.get_mut(&old.image)
        {
            image.replaced = Some(time);
        }
    }

    fn rename(&mut self, pid: u32, tid: u32, name: &[u8], exec: bool, time: u64) -> Change {
        if !exec && pid != tid {
            let is_runtimes = strata_clr::is_runtime_thread(name);
            return if is_runtimes { Change::RuntimeThread { pid } } else { Change::None };
        }
        let name = String::from_utf8_lossy(name);
        if exec {
            let image = self.new_image(pid, &name, time);
            let before = self.processes.get(&pid);
            let parent = before.map_or(0, |process| process.parent);
            let events =
                before.map_or_else(Default::default, |process| process.events.of_next_program());
            let space = Space::default();
            let process = Process::new(parent, image, space, events);
            self.replace(pid, Process { is_executing: true, ..process }, time);
            return Change::Executed { pid };
        }
        if let Some(process) = self.processes.get(&pid)
            && let Some(image) = self.images.get_mut(&process.image)
        {
            image.comm = name.as_ref().into();
            return Change::Renamed { pid };
        }
        Change::None
    }

    fn fork(&mut self, pid: u32, parent: u32, time: u64) -> Change {
        let (of_parent, space, events) = match self.processes.get(&parent) {
            Some(parent) => {
                (self.image(parent.image).cloned(), parent.space.clone(), parent.events)
            }
            None => Default::default(),
        };
        let (comm, program) =
            of_parent.map_or_else(Default::default, |image| (image.comm, image.program));
        let image = self.new_image(pid, &comm, time);
        if let Some(image) = self.images.get_mut(&image) {
            image.program = program;
        }
        self.replace(pid, Process::new(parent, image, space, events), time);
        Change::Forked { pid, parent }
    }
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

/// `jit-PID.dump`, by the convention of perf's jitdump format.
fn is_jitdump(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"jit-") && name.ends_with(b".dump")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn existing(pid: u32, comm: &str) -> Existing<'_> {
        Existing { pid, parent: 1, comm, threads: Threads::default() }
    }

    fn file(start: u64, end: u64, offset: u64) -> Mapping {
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
    fn a_program_that_gains_privileges_by_its_execution_has_not_ended() {
        let mut table = ProcessTable::default();
        table.insert_unknown(7, "strata");
        let (pid, tid) = (8, 8);
        table.apply(&Event::Fork { pid, parent: 7, tid }, 1);
        let name = b"su".as_slice().into();
        table.apply(&Event::Comm { pid, tid, name, exec: true }, 2);
        let exit = Event::Exit { pid, tid };
        assert_eq!(table.ended_thread(&exit), None);
        assert_eq!(table.ended_thread(&Event::Exit { pid, tid: 9 }), Some(9));
        assert_eq!(table.apply(&exit, 3), Change::None);
        assert!(table.get(pid).is_some_and(|process| !process.exited));
        assert_eq!(table.ended_thread(&exit), Some(tid));
        // Unless its exec has failed: then this was its end.
        assert_eq!((table.take_leaderless(), table.is_leaderless(pid)), (vec![pid], true));
        table.apply(&mapped(pid, 0x1000, b"/bin/su"), 4);
        assert!(!table.is_leaderless(pid));
        assert_eq!(table.apply(&exit, 5), Change::Exited { pid }, "its end is reported again");
    }

    #[test]
    fn a_process_ends_with_its_last_thread() {
        let mut table = ProcessTable::default();
        let (pid, gone) = (7, Change::Exited { pid: 7 });
        let thread = |tid| Event::Fork { pid, parent: pid, tid };
        let exit = |tid| Event::Exit { pid, tid };
        table.apply(&Event::Fork { pid, parent: 1, tid: pid }, 1);
        for tid in [8, 9] {
            table.apply(&thread(tid), 1);
        }
        assert_eq!(table.apply(&exit(9), 2), Change::None);
        assert_eq!(table.apply(&exit(pid), 3), Change::None);
        assert_eq!((table.take_leaderless(), table.is_leaderless(pid)), (vec![pid], true));
        // A thread that goes on may make others.
        table.apply(&thread(10), 4);
        assert_eq!(table.apply(&exit(8), 5), Change::None);
        assert_eq!(table.apply(&exit(10), 6), gone);
        assert!(!table.is_leaderless(pid) && !table.end(pid));
        // One whose leader had ended before events were, and of whose threads an end is lost.
        let threads = Threads { is_leaderless: true, others: 2 };
        table.insert_existing(Existing { threads, ..existing(11, "late") }, vec![]);
        assert_eq!(table.take_leaderless(), [11]);
        assert_eq!(table.apply(&Event::Exit { pid: 11, tid: 12 }, 7), Change::None);
        assert!(table.end(11));
        // The last thread executes another program.
        table.apply(&Event::Fork { pid: 20, parent: 1, tid: 20 }, 8);
        table.apply(&Event::Fork { pid: 20, parent: 20, tid: 21 }, 8);
        table.apply(&Event::Exit { pid: 20, tid: 20 }, 9);
        let name = b"next".as_slice().into();
        table.apply(&Event::Comm { pid: 20, tid: 20, name, exec: true }, 10);
        assert!(!table.is_leaderless(20));
        table.end(20);
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

    #[test]
    fn an_image_ends_with_its_process_or_with_the_next_image() {
        let mut table = ProcessTable::default();
        table.insert_unknown(7, "sh");
        let (pid, tid) = (8, 8);
        let image = |table: &ProcessTable| table.get(pid).map(|process| process.image).unwrap();
        table.apply(&Event::Fork { pid, parent: 7, tid }, 5);
        let forked = image(&table);
        assert!(!table.has_ended(forked));
        let name = b"ls".as_slice().into();
        table.apply(&Event::Comm { pid, tid, name, exec: true }, 6);
        // A program that has not mapped anything has not begun.
        table.apply(&mapped(pid, 0x1000, b"/bin/ls"), 7);
        let executed = image(&table);
        assert!(table.has_ended(forked) && !table.has_ended(executed));
        table.apply(&Event::Exit { pid, tid }, 8);
        assert!(table.has_ended(executed));
        let started = |image| table.image(image).map(|image| image.started);
        assert_eq!((started(forked), started(executed)), (Some(5), Some(6)));
        let lasting = table.get(7).map(|process| process.image).unwrap();
        assert_eq!((table.has_ended(lasting), started(lasting)), (false, Some(0)));
    }

    /// A mapping event of this path.
    fn mapped(pid: u32, start: u64, path: &[u8]) -> Event {
        let inode = MappedInode { major: 0, minor: 1, inode: 7, generation: 1 };
        Event::Mmap { pid, start, length: 0x1000, offset: 0, inode, path: path.into() }
    }

    #[test]
    fn a_runtime_that_maps_and_unmaps_code_all_the_time_is_not_muted() {
        const SECOND: u64 = 1_000_000_000;
        let mut table = ProcessTable::default();
        table.insert_unknown(7, "dotnet");
        // 5,000 a second, in ever new places of 1 GiB.
        for number in 0..100_000u64 {
            let event = mapped(7, 0x7f00_0000_0000 + number % 16_384 * 0x1_0000, DOUBLE_MAPPED);
            table.apply(&event, number * SECOND / 5_000);
        }
        assert_eq!((table.muted_events, table.refused_mappings), (0, 0));
        assert_eq!(table.get(7).map(|process| process.space.mappings().len()), Some(1));
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
        table.repair(7, "churn", &[last], 1);
        assert_eq!(table.get(7).map(|process| process.space.mappings().to_vec()), Some(vec![last]));
        assert!(matches!(map_at(&mut table, more), Change::Mapped { .. }));
    }

    #[test]
    fn what_processes_that_are_not_recorded_map_is_no_loss() {
        let mut table = ProcessTable::default();
        let page = |number: u64| file(number * 0x2000, number * 0x2000 + 0x1000, 0);
        for (pid, more) in [(7, 3), (8, 5)] {
            let pages = (0..(MAX_MAPPINGS + more) as u64).map(page).collect();
            table.insert_existing(existing(pid, "wide"), pages);
        }
        table.forget_refusals(|pid| pid == 8);
        assert_eq!(table.refused_mappings, 3);
        let more = mapped(8, 0x7f00_0000_0000, b"/tmp/x");
        assert_eq!(table.apply_unwanted(&more, 1), Change::Refused { pid: 8 });
        assert_eq!(table.refused_mappings, 3);
        let muted = |table: &mut ProcessTable| {
            while !table.is_muted(8, 2) {
                table.apply_unwanted(&more, 2);
            }
            table.muted_events
        };
        assert_eq!(muted(&mut table), 0);
        assert!(table.passes_over(8, 2, false) && table.muted_events == 0);
        assert!(table.passes_over(8, 2, true) && table.muted_events == 1);
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
        table.repair(8, "full", &pages(MAX_MAPPINGS + 2), 1);
        assert_eq!(table.refused_mappings, 5);
        table.insert_existing(existing(9, "small"), pages(1));
        table.repair(9, "small", &pages(2), 1);
        assert_eq!(table.refused_mappings, 5);
        table.remove(7);
        assert_eq!(table.refused_mappings, 5, "a total");
    }

    #[test]
    fn the_program_is_the_first_file_that_is_no_assembly_and_children_have_it_too() {
        let mut table = ProcessTable::default();
        let mut mapped = |number: u64, path: &[u8]| {
            let inode = MappedInode { major: 8, minor: 1, inode: number, generation: 0 };
            let backing = table.backing(inode, path).expect("a file");
            Mapping { backing, ..file(number << 16, (number << 16) + 0x1000, 0) }
        };
        let mappings = [mapped(1, b"/app/A.dll"), mapped(2, b"/app/host"), mapped(3, b"/lib/c.so")];
        table.insert_existing(existing(7, "host"), mappings.to_vec());
        table.apply(&Event::Fork { pid: 8, tid: 8, parent: 7 }, 1);
        for pid in [7, 8] {
            let image = table.get(pid).expect("a process").image;
            let program = table.program_of(image).expect("a program");
            assert_eq!(program.path, b"/app/host");
            for (path, name) in [
                ("/app/B.dll", Some("B.dll")),
                ("/app/fr/B.dll", Some("fr/B.dll")),
                ("B.dll", Some("B.dll")),
                ("/other/B.dll", None),
            ] {
                assert_eq!(program.name_inside(path), name);
            }
        }
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
        assert_eq!(table.repair(7, "sh", &seen, 5), Change::None);
        let process = table.get(7).expect("a process");
        assert!(process.image == before && process.space.mapping_of(0x5800).is_some());
        assert_eq!(table.repair(7, "worker", &seen, 6), Change::Renamed { pid: 7 });
        // It executed another program, and that event was lost too.
        let seen = [at(0x1000, other)];
        assert_eq!(table.repair(7, "cat", &seen, 7), Change::Executed { pid: 7 });
        let process = table.get(7).expect("a process");
        assert!(process.image != before && process.space.mapping_of(0x5800).is_none());
        assert_eq!(table.image(before).and_then(|image| image.replaced), Some(7));
        assert_eq!(table.image(process.image).map(|image| &*image.comm), Some("cat"));
    }

    #[test]
    fn a_thread_named_as_only_the_runtimes_own_are_shows_a_runtime() {
        let mut table = ProcessTable::default();
        table.insert_existing(existing(7, "app"), vec![]);
        let comm = |tid, name: &[u8]| Event::Comm { pid: 7, tid, name: name.to_vec(), exec: false };
        let shown = Change::RuntimeThread { pid: 7 };
        assert_eq!(table.apply(&comm(8, b".NET SynchManag"), 5), shown);
        // Programs compiled ahead of time have such threads too.
        assert_eq!(table.apply(&comm(9, b".NET Finalizer"), 6), Change::None);
        assert_eq!(table.apply(&comm(7, b".NET SynchManag"), 7), Change::Renamed { pid: 7 });
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

    #[test]
    fn exec_starts_a_new_image_and_forgets_mappings() {
        let mut table = ProcessTable::default();
        table.insert_existing(existing(7, "sh"), vec![file(0x1000, 0x2000, 0)]);
        let old = table.get(7).map(|process| process.image);
        let exec = Event::Comm { pid: 7, tid: 7, name: b"cat".to_vec(), exec: true };
        assert_eq!(table.apply(&exec, 5), Change::Executed { pid: 7 });
        let replaced = old.and_then(|old| table.image(old)).and_then(|old| old.replaced);
        assert_eq!(replaced, Some(5));
        let process = table.get(7).expect("still there");
        assert!(process.space.mappings().is_empty());
        assert_ne!(Some(process.image), old);
        assert_eq!(process.parent, 1);
    }
}
