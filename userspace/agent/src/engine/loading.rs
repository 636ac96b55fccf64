//! Loads unwind tables on demand: files are opened and parsed in helper processes.
//!
//! A file goes through: named by a mapping → opened (which gives its identity) → its table built or
//! taken from the cache → loaded into kernel memory. Files are opened when a new process maps them
//! or an old one is sampled; tables are shared by every file name that turns out to be the same
//! file. Assemblies inside a single-file program have tables of their own ([`bundles`]).
//!
//! Invariant: a file that cannot be opened, read or understood never delays other files: its code
//! is then unwound by frame pointers, and the reason is kept for `doctor` and the summary.

mod bundles;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_sandbox::{
    Config, FileError, FileIdentity, FilePart, FileService, IdentityTrust, Locator, OpenFile,
    ProcessRef, Reply, Request, RequestId,
};
use strata_unwind::{Limits, UnwindTable};

use crate::kernel::loader::Programs;
use crate::kernel::perf_record::MappedInode;
use crate::managed::units::Units;
use crate::processes::mapped::{FileId, MappedFile};
use crate::processes::table::{Backing, MappedProgram, Mapping, ProcessTable, Space};
use crate::tables::store::{Code, Store, Stretch, Table};
use bundles::Bundles;

/// The state of a file, as named by mappings.
#[derive(Default)]
enum State {
    #[default]
    Unknown,
    Opening,
    Opened(Arc<OpenFile>),
    Failed(String),
    /// Not opened for now: a limit of strata's or of its process was reached. Tried again when its
    /// process is sampled after this moment.
    Later(Instant),
}

struct Entry {
    state: State,
    verified: Instant,
    /// A process that maps it, whose root may have its debug file.
    process: Option<u32>,
}

/// The state of the table of a file's content.
enum TableState {
    Building,
    Loaded(Arc<Table>),
    /// Unwound by frame pointers, and why.
    None(String),
    /// The same for a while: since then the table memory was full.
    NoRoom(Instant),
    /// The same for a moment: strata was overloaded or short of a resource.
    Later(Instant),
}

/// Time until a table is built again after the table memory was full.
const NO_ROOM_FOR: Duration = Duration::from_secs(300);
/// Time until a file or a table is tried again after an overload.
const BUSY_FOR: Duration = Duration::from_secs(2);
/// Files that may be opened for one process at once, and as many a second from then on, so that a
/// process that maps files without end delays only itself.
const FILES_AT_ONCE: u32 = 512;
const FILES_A_SECOND: u32 = 32;
const NO_ROOM: &str = "no room in kernel memory (--table-memory)";

/// The owner of the table: the file's identity, or this mapped file alone where the file system's
/// answers cannot be trusted; the whole file, or a file inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TableKey {
    identity: FileIdentity,
    only_for: Option<FileId>,
    part: Option<FilePart>,
}

impl TableKey {
    fn of(file: FileId, opened: &OpenFile, part: Option<FilePart>) -> Self {
        let alone = opened.trust() == IdentityTrust::WithinProcess;
        Self { identity: opened.identity(), only_for: alone.then_some(file), part }
    }
}

/// The subject of a request in flight.
enum Asked {
    Open { file: FileId, fallback: Option<Locator>, by_path: bool },
    Verify { file: FileId },
    Table(TableKey),
    Bundle(TableKey),
}

pub struct Loading {
    service: FileService,
    entries: HashMap<FileId, Entry>,
    tables: HashMap<TableKey, TableState>,
    bundles: Bundles,
    asked: HashMap<RequestId, Asked>,
    waiting: HashSet<u32>,
    progress: bool,
    vdso: Option<Arc<Table>>,
    /// Helper processes of symbolization that have ended.
    others: Helpers,
    /// Unused tables are dropped only when memory is tight.
    pub built: u64,
    pub failed_files: u64,
    /// Files delayed by the limit of their process, or by an overload.
    pub delayed_files: u64,
    /// By process: the number of files that may be opened now.
    allowances: HashMap<u32, Allowance>,
    /// Processes with delayed files, and when these may be opened.
    delayed: HashMap<u32, Instant>,
}

/// The budget of files to open for a process.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u32,
    since: Instant,
}

impl Allowance {
    fn full(now: Instant) -> Self {
        Self { left: FILES_AT_ONCE, since: now }
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.since).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(FILES_A_SECOND);
            self.left = self.left.saturating_add(more).min(FILES_AT_ONCE);
            self.since = now;
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

/// The age of the last check after which a file is checked again when a process maps it.
const VERIFY_AFTER: Duration = Duration::from_secs(2);

impl Loading {
    pub fn start(programs: &mut Programs, store: &mut Store) -> io::Result<Self> {
        let service = FileService::new(Config::default())?;
        let vdso = crate::processes::vdso::image()
            .and_then(|image| strata_unwind::build(image.as_slice(), &Limits::default()).ok())
            .and_then(|table| store.load(programs, &table))
            .map(Arc::new);
        Ok(Self {
            service,
            entries: HashMap::new(),
            tables: HashMap::new(),
            bundles: Bundles::default(),
            asked: HashMap::new(),
            waiting: HashSet::new(),
            progress: false,
            vdso,
            others: Helpers::default(),
            built: 0,
            failed_files: 0,
            delayed_files: 0,
            allowances: HashMap::new(),
            delayed: HashMap::new(),
        })
    }

    /// Readable when answers have come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.service.poll_fd()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        if self.asked.is_empty() { None } else { self.service.next_deadline() }
    }

    pub fn service(&mut self) -> &mut FileService {
        &mut self.service
    }

    /// Waits for an answer, at most so long. Only for the end of a recording.
    pub fn block(&mut self, most: Duration) {
        let mut poll = libc::pollfd {
            fd: std::os::fd::AsRawFd::as_raw_fd(&self.service.poll_fd()),
            events: libc::POLLIN,
            revents: 0,
        };
        let milliseconds = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one valid descriptor.
        unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
    }

    fn entry(&mut self, file: FileId) -> &mut Entry {
        self.entries.entry(file).or_insert_with(|| Entry {
            state: State::Unknown,
            verified: Instant::now(),
            process: None,
        })
    }

    /// A new mapping: its file is opened at once if it is new, while the process certainly exists.
    pub fn first_seen(&mut self, table: &ProcessTable, pid: u32, mapping: &Mapping) {
        let Backing::File(file) = mapping.backing else { return };
        // A file not opened now is opened when its process is sampled.
        if matches!(self.entry(file).state, State::Unknown) {
            if self.may_open(pid) {
                self.open(table, file, pid, mapping);
            }
            return;
        }
        let entry = self.entry(file);
        match entry.state {
            State::Opened(_) if entry.verified.elapsed() > VERIFY_AFTER => {
                entry.verified = Instant::now();
                let locator = mapped(pid, mapping);
                let id = self.service.submit(Request::Open(locator));
                self.asked.insert(id, Asked::Verify { file });
            }
            _ => {}
        }
    }

    fn open(&mut self, table: &ProcessTable, file: FileId, pid: u32, mapping: &Mapping) {
        let path = table.files.get(file).map(clean_path);
        let fallback = path.map(|path| Locator::InRoot { process: process_ref(pid), path });
        let entry = self.entry(file);
        entry.state = State::Opening;
        entry.process = Some(pid);
        let id = self.service.submit(Request::Open(mapped(pid, mapping)));
        self.asked.insert(id, Asked::Open { file, fallback, by_path: false });
    }

    fn may_open(&mut self, pid: u32) -> bool {
        let now = Instant::now();
        self.allowances.entry(pid).or_insert_with(|| Allowance::full(now)).take(now)
    }

    /// A process was sampled at an address: requests the file mapped there.
    pub fn need_at(&mut self, table: &ProcessTable, pid: u32, address: u64) {
        let Some(process) = table.get(pid) else { return };
        if let Some(mapping) = process.space.mapping_of(address) {
            self.need_mapping(table, pid, mapping);
        }
    }

    /// A process was sampled at an address: requests every file that it has mapped, that one first.
    pub fn need(&mut self, table: &ProcessTable, pid: u32, address: u64) {
        let Some(process) = table.get(pid) else { return };
        let first = process.space.mapping_of(address);
        for mapping in first.into_iter().chain(process.space.mappings()) {
            self.need_mapping(table, pid, mapping);
        }
    }

    fn need_mapping(&mut self, table: &ProcessTable, pid: u32, mapping: &Mapping) {
        let Backing::File(file) = mapping.backing else { return };
        match self.entry(file).state {
            State::Later(until) if until > Instant::now() => {}
            State::Unknown | State::Later(_) => {
                if self.may_open(pid) {
                    self.open(table, file, pid, mapping);
                } else {
                    self.entry(file).process = Some(pid);
                    self.delay(file);
                }
            }
            State::Opened(ref opened) => {
                let opened = opened.clone();
                self.want_table(TableKey::of(file, &opened, None), &opened);
            }
            State::Opening | State::Failed(_) => {}
        }
    }

    /// A file is opened later: until then its code is unwound by frame pointers.
    fn delay(&mut self, file: FileId) {
        self.delayed_files += 1;
        let until = Instant::now() + BUSY_FOR;
        let entry = self.entry(file);
        entry.state = State::Later(until);
        if let Some(pid) = entry.process {
            self.delayed.entry(pid).or_insert(until);
        }
    }

    /// Processes whose delayed files may be opened now.
    pub fn take_delayed(&mut self) -> Vec<u32> {
        let now = Instant::now();
        let due = |until: &Instant| *until <= now;
        let pids = self.delayed.iter().filter(|(_, until)| due(until)).map(|(pid, _)| *pid);
        let pids: Vec<u32> = pids.collect();
        self.delayed.retain(|_, until| !due(until));
        pids
    }

    fn want_table(&mut self, key: TableKey, opened: &Arc<OpenFile>) {
        if self.tables.contains_key(&key) {
            return;
        }
        self.tables.insert(key, TableState::Building);
        let limits = Limits::default();
        let request = Request::UnwindTable { file: opened.clone(), part: key.part, limits };
        let id = self.service.submit(request);
        self.asked.insert(id, Asked::Table(key));
    }

    /// Takes the answers that have come.
    pub fn answers(
        &mut self,
        programs: &mut Programs,
        store: &mut Store,
        processes: &mut ProcessTable,
    ) {
        if self.asked.is_empty() && self.service.pending() == 0 {
            return;
        }
        let answers = self.service.drain();
        if answers.is_empty() {
            return;
        }
        for (id, outcome) in answers {
            match self.asked.remove(&id) {
                Some(Asked::Open { file, fallback, by_path }) => {
                    self.opened(processes, file, fallback, by_path, outcome);
                }
                Some(Asked::Verify { file }) => self.verified(processes, file, outcome),
                Some(Asked::Table(key)) => {
                    self.table_built(programs, store, key, outcome);
                }
                Some(Asked::Bundle(key)) => {
                    self.progress = true;
                    self.bundle_read(key, outcome);
                }
                None => {}
            }
        }
    }

    fn opened(
        &mut self,
        processes: &mut ProcessTable,
        file: FileId,
        fallback: Option<Locator>,
        by_path: bool,
        outcome: Result<Reply, FileError>,
    ) {
        self.progress = true;
        match outcome {
            Ok(Reply::Opened(opened)) => {
                let named = processes.files.get(file).map(|file| file.inode);
                let same = named.is_some_and(|inode| is_same(&inode, &opened.identity()));
                if !same {
                    // Stacked file systems show other numbers. A path may by now name another file;
                    // only a mapping is certain.
                    processes.files.forget(file);
                    if by_path && named.is_some_and(|inode| inode.inode != opened.identity().inode)
                    {
                        self.fail(file, "the file at its path is another one now".into());
                        return;
                    }
                }
                let entry = self.entry(file);
                entry.verified = Instant::now();
                entry.state = State::Opened(opened.clone());
                self.want_table(TableKey::of(file, &opened, None), &opened);
            }
            Ok(_) => self.fail(file, "an answer to another question".into()),
            Err(error) if error.may_pass() => self.delay(file),
            Err(_) if fallback.is_some() => {
                if let Some(locator) = fallback {
                    let next = match &locator {
                        Locator::InRoot { path, .. } => Some(Locator::Host { path: path.clone() }),
                        _ => None,
                    };
                    let id = self.service.submit(Request::Open(locator));
                    self.asked.insert(id, Asked::Open { file, fallback: next, by_path: true });
                }
            }
            Err(error) => {
                processes.files.forget(file);
                self.fail(file, error.to_string());
            }
        }
    }

    fn fail(&mut self, file: FileId, why: String) {
        tracing::debug!(file = file.0, %why, "a mapped file cannot be read");
        self.failed_files += 1;
        self.entry(file).state = State::Failed(why);
    }

    fn verified(
        &mut self,
        processes: &mut ProcessTable,
        file: FileId,
        outcome: Result<Reply, FileError>,
    ) {
        let Ok(Reply::Opened(now)) = outcome else { return };
        if let State::Opened(before) = &self.entry(file).state
            && before.identity() != now.identity()
        {
            // Same inode, other content: later mappings of it are of another file.
            processes.files.forget(file);
        }
    }

    fn table_built(
        &mut self,
        programs: &mut Programs,
        store: &mut Store,
        key: TableKey,
        outcome: Result<Reply, FileError>,
    ) {
        self.progress = true;
        let state = match outcome {
            Ok(Reply::UnwindTable(table)) => {
                self.built += 1;
                load(programs, store, &table)
            }
            Ok(_) => TableState::None("an answer to another question".into()),
            Err(error) if error.may_pass() => {
                self.delayed_files += 1;
                TableState::Later(Instant::now() + BUSY_FOR)
            }
            Err(error) => TableState::None(error.to_string()),
        };
        self.tables.insert(key, state);
    }

    /// True once after files or tables have become known.
    pub fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.progress)
    }

    pub fn wait(&mut self, pid: u32) {
        self.waiting.insert(pid);
    }

    /// Whether a process waits for tables to be published with.
    pub fn is_waited_for_by(&self, pid: u32) -> bool {
        self.waiting.contains(&pid)
    }

    pub fn take_waiting(&mut self) -> HashSet<u32> {
        std::mem::take(&mut self.waiting)
    }

    /// How a process's code is unwound, and whether all its tables are loaded: those still missing
    /// are requested, and treated meanwhile as `missing` specifies.
    pub fn code_of(
        &mut self,
        space: &Space,
        program: Option<&MappedProgram<'_>>,
        generated: Option<&Units>,
        missing: Missing,
    ) -> (Vec<Stretch>, bool) {
        let mappings = space.mappings();
        let mut code: Vec<Stretch> = Vec::with_capacity(mappings.len());
        let mut complete = true;
        let mut before = 0;
        for (index, mapping) in mappings.iter().enumerate() {
            let (start, end) = (mapping.start, mapping.end);
            let after_last = code.last().map_or(before, |stretch| stretch.end.max(before));
            before = end;
            let known = match mapping.backing {
                Backing::Anonymous | Backing::Runtime => {
                    let next = mappings.get(index + 1).map_or(u64::MAX, |next| next.start);
                    let area = area_of(mapping, after_last, next);
                    let (start, end) = area;
                    match generated {
                        Some(units) => {
                            complete &= self.code_of_memory(program, area, units, &mut code);
                        }
                        None => code.push(Stretch { start, end, code: Code::FramePointer }),
                    }
                    continue;
                }
                Backing::Vdso => Ok(self.vdso.clone().and_then(|table| in_table(table, mapping))),
                Backing::File(file) => self.code_of_file(file, mapping),
            };
            let known = match known {
                Ok(known) => known,
                Err(Unknown) => {
                    complete = false;
                    if missing == Missing::LeaveOut {
                        continue;
                    }
                    None
                }
            };
            let code_here = known.unwrap_or(Code::FramePointer);
            // A module that lies in a file of another kind, such as a bundle.
            if let (Code::FramePointer, Some(units)) = (&code_here, generated)
                && units.has_module(start)
            {
                units.stretches(start, end, &mut code);
                continue;
            }
            code.push(Stretch { start, end, code: code_here });
        }
        (code, complete)
    }

    /// The unwind tables of a file's mapping.
    fn code_of_file(&mut self, file: FileId, mapping: &Mapping) -> Result<Option<Code>, Unknown> {
        let Some(table) = self.table_of(file)? else { return Ok(None) };
        match in_table(table, mapping) {
            Some(code) => Ok(Some(code)),
            None => self.code_of_part(file, mapping),
        }
    }

    fn table_of(&mut self, file: FileId) -> Result<Option<Arc<Table>>, Unknown> {
        let opened = match &self.entry(file).state {
            State::Unknown | State::Opening => return Err(Unknown),
            State::Failed(_) | State::Later(_) => return Ok(None),
            State::Opened(opened) => opened.clone(),
        };
        self.known_table(TableKey::of(file, &opened, None), &opened)
    }

    fn known_table(
        &mut self,
        key: TableKey,
        opened: &Arc<OpenFile>,
    ) -> Result<Option<Arc<Table>>, Unknown> {
        match self.tables.get(&key) {
            Some(TableState::Loaded(table)) => Ok(Some(table.clone())),
            Some(TableState::None(_) | TableState::NoRoom(_) | TableState::Later(_)) => Ok(None),
            Some(TableState::Building) => Err(Unknown),
            None => {
                self.want_table(key, opened);
                Err(Unknown)
            }
        }
    }

    /// The opened file behind a mapping, for symbols.
    pub fn open_file(&self, file: FileId) -> Option<Arc<OpenFile>> {
        match &self.entries.get(&file)?.state {
            State::Opened(opened) => Some(opened.clone()),
            _ => None,
        }
    }

    /// Resources used by the helper processes, including ended ones.
    pub fn helpers(&self) -> Helpers {
        let statistics = self.service.statistics();
        let living = self.service.children();
        let now = living.iter().map(|child| child.usage.processor_time).sum::<Duration>();
        let memory = living.iter().map(|child| child.usage.peak_memory_bytes).sum::<u64>();
        Helpers {
            processor_time: statistics.ended_processor_time + now + self.others.processor_time,
            peak_memory_bytes: memory
                .max(statistics.peak_worker_memory_bytes)
                .max(self.others.peak_memory_bytes),
        }
    }

    /// Counts the helper processes of symbolization too, when that has ended.
    pub fn add_helpers(&mut self, others: Helpers) {
        self.others.processor_time += others.processor_time;
        self.others.peak_memory_bytes = self.others.peak_memory_bytes.max(others.peak_memory_bytes);
    }

    /// A process that maps a file.
    pub fn process_of(&self, file: FileId) -> Option<u32> {
        self.entries.get(&file)?.process
    }

    /// Why a file has no table, for `doctor`.
    pub fn trouble_of(&self, file: FileId) -> Option<&str> {
        match &self.entries.get(&file)?.state {
            State::Failed(why) => Some(why),
            State::Opened(opened) => match self.tables.get(&TableKey::of(file, opened, None))? {
                TableState::None(why) => Some(why),
                TableState::NoRoom(_) => Some(NO_ROOM),
                _ => None,
            },
            _ => None,
        }
    }

    /// Files that could not be opened, and why.
    pub fn unreadable(&self) -> impl Iterator<Item = (FileId, &str)> {
        self.entries.iter().filter_map(|(file, entry)| match &entry.state {
            State::Failed(why) => Some((*file, why.as_str())),
            _ => None,
        })
    }

    /// Whether a request about a file is still pending.
    pub fn is_asked_about(&self, file: FileId) -> bool {
        self.entries.get(&file).is_some_and(|entry| matches!(entry.state, State::Opening))
    }

    /// Drops files without references, and their tables.
    pub fn retain(&mut self, store: &mut Store, is_kept: impl Fn(FileId) -> bool) {
        self.entries.retain(|file, _| is_kept(*file));
        let wanted: HashSet<FileIdentity> = self
            .entries
            .values()
            .filter_map(|entry| match &entry.state {
                State::Opened(opened) => Some(opened.identity()),
                _ => None,
            })
            .collect();
        let is_wanted =
            |key: &TableKey| wanted.contains(&key.identity) && key.only_for.is_none_or(&is_kept);
        self.bundles.retain(is_wanted);
        self.drop_tables(store, |key| !is_wanted(key), Reasons::Go);
    }

    /// Drops tables that only this module still refers to.
    pub fn release_unused(&mut self, store: &mut Store) {
        store.evicted += self.drop_tables(store, |_| true, Reasons::Stay);
    }

    /// Whether tables refused for lack of room may be tried again.
    pub fn take_second_chances(&mut self) -> bool {
        let before = self.tables.len();
        self.tables.retain(|_, state| {
            !matches!(state, TableState::NoRoom(since) if since.elapsed() >= NO_ROOM_FOR)
                && !matches!(state, TableState::Later(until) if *until <= Instant::now())
        });
        self.tables.len() < before
    }

    /// Drops tables that no process is published with; returns how many were loaded.
    fn drop_tables(
        &mut self,
        store: &mut Store,
        is_dropped: impl Fn(&TableKey) -> bool,
        reasons: Reasons,
    ) -> u64 {
        let mut unloaded = 0;
        self.tables.retain(|key, state| {
            if !is_dropped(key) {
                return true;
            }
            match state {
                TableState::Building => true,
                TableState::None(_) | TableState::NoRoom(_) | TableState::Later(_) => {
                    reasons == Reasons::Stay
                }
                TableState::Loaded(table) if Arc::strong_count(table) > 1 => true,
                TableState::Loaded(_) => {
                    let taken = std::mem::replace(state, TableState::Building);
                    if let TableState::Loaded(table) = taken
                        && let Ok(table) = Arc::try_unwrap(table)
                    {
                        store.unload(table);
                        unloaded += 1;
                    }
                    false
                }
            }
        });
        unloaded
    }

    /// Runs the service's timers: deadlines, idle children.
    pub fn sweep(&mut self) {
        let now = Instant::now();
        // After a long idle time a process has its full budget again.
        self.allowances.retain(|_, allowance| {
            allowance.refill(now);
            allowance.left < FILES_AT_ONCE
        });
        if self.asked.is_empty() {
            // Nothing is waited for: what comes is housekeeping.
            self.service.drain();
        }
    }
}

/// Resources used by strata's helper processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Helpers {
    pub processor_time: Duration,
    pub peak_memory_bytes: u64,
}

struct Unknown;

/// Whether the reasons why files have no table survive the dropping of tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reasons {
    Stay,
    Go,
}

/// The treatment of mappings whose file is not opened yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// They are in no extent: stacks through them are sent as raw records, or end there.
    LeaveOut,
    /// They count as files without a table.
    FollowPointer,
}

fn load(programs: &mut Programs, store: &mut Store, table: &UnwindTable) -> TableState {
    match store.load(programs, table) {
        Some(table) => TableState::Loaded(Arc::new(table)),
        None => TableState::NoRoom(Instant::now()),
    }
}

/// JIT compilers add code next to existing code, and run it before the mapping event arrives:
/// unmapped space around one of their mappings counts as theirs too. It also avoids republishing a
/// process for every page.
fn area_of(mapping: &Mapping, before: u64, after: u64) -> (u64, u64) {
    const AREA: u64 = 2 << 20;
    let start = mapping.start & !(AREA - 1);
    let end = mapping.end.checked_next_multiple_of(AREA).unwrap_or(mapping.end);
    (start.max(before), end.min(after))
}

fn process_ref(pid: u32) -> ProcessRef {
    ProcessRef { pid, start_time: None }
}

fn mapped(pid: u32, mapping: &Mapping) -> Locator {
    Locator::Mapped { process: process_ref(pid), start: mapping.start, end: mapping.end }
}

/// A mapped file's path without the kernel's remark that it has no name any more.
pub fn clean_path(file: &MappedFile) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let path = file.path.strip_suffix(b" (deleted)").unwrap_or(&file.path);
    std::path::PathBuf::from(std::ffi::OsStr::from_bytes(path))
}

/// Whether an opened file is the one a mapping names.
fn is_same(named: &MappedInode, opened: &FileIdentity) -> bool {
    let device = libc::makedev(named.major, named.minor);
    named.inode == opened.inode && device == opened.device
}

/// The code of a mapping, if it lies in a segment that the table is of.
fn in_table(table: Arc<Table>, mapping: &Mapping) -> Option<Code> {
    let address = strata_unwind::table::address_of_offset(&table.loads, mapping.offset)?;
    Some(Code::Table { bias: mapping.start.wrapping_sub(address), table })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_maps_without_end_has_its_share_of_opened_files() {
        let now = Instant::now();
        let mut allowance = Allowance::full(now);
        let opened = (0..10_000).filter(|_| allowance.take(now)).count();
        assert_eq!(opened, FILES_AT_ONCE as usize);
        let later = now + Duration::from_secs(3);
        let opened = (0..10_000).filter(|_| allowance.take(later)).count();
        assert_eq!(opened, 3 * FILES_A_SECOND as usize);
    }
}
