//! Loads unwind tables on demand: files are opened and parsed in helper processes.
//!
//! A file goes through: named by a mapping → opened (which gives its identity) → its table built or
//! taken from the cache → loaded into kernel memory. Files are opened when a process is sampled, or
//! maps them afterwards, or at once if it was selected; not of a host's other processes. Tables are
//! shared by every file name that turns out to be the same file. Assemblies inside a single-file
//! program have tables of their own ([`bundles`]).
//!
//! - `answers`: the answers of the helper processes. `code`: the unwind tables of a process's code.
//! - `allowance`: limits the files opened for a process. `forgetting`: drops unused files and
//!   tables.
//!
//! Invariant: a file that cannot be opened, read or understood never delays other files: its code
//! is then unwound by frame pointers, and the reason is kept for `doctor` and the summary.

mod allowance;
mod answers;
mod bundles;
mod code;
mod forgetting;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_sandbox::{
    Config, FileIdentity, FilePart, FileService, IdentityTrust, Locator, OpenFile, ProcessRef,
    Request, RequestId,
};
use strata_unwind::{Limits, UnwindTable};

use crate::hash::{HashMap, HashSet};
use crate::kernel::loader::Programs;
use crate::kernel::perf_record::MappedInode;
use crate::processes::mapped::{FileId, MappedFile};
use crate::processes::table::{Backing, Mapping, ProcessTable};
use crate::tables::extents::Table;
use crate::tables::store::Store;
use allowance::Allowance;
use bundles::Bundles;

/// The state of a file, as named by mappings.
#[derive(Default)]
enum State {
    #[default]
    Unknown,
    Opening,
    Opened(Arc<OpenFile>),
    Failed(String),
    /// A helper has died over it, or it did not answer in time: it is opened again after this moment.
    NoAnswer {
        why: String,
        again: Instant,
    },
    /// Not opened for now: tried again when a process that maps it is sampled after this moment.
    Later {
        until: Instant,
        why: Delay,
    },
}

/// Why a file is not opened for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delay {
    /// This process has opened as many as it may. Others that map it may open it.
    Allowance(u32),
    /// Strata was overloaded or short of a resource.
    Overload,
}

struct Entry {
    state: State,
    verified: Instant,
    /// A process that maps it, whose root may have its debug file.
    process: Option<u32>,
    /// Tries without an answer.
    tries: u32,
}

/// The state of the table of a file's content.
enum TableState {
    Building,
    Loaded(Arc<Table>),
    /// Unwound by frame pointers, and why.
    None(String),
    /// The same until then: a helper has died over it, or did not end in time.
    NoAnswer {
        why: String,
        again: Instant,
    },
    /// The same for a while: since then the table memory was full.
    NoRoom(Instant),
    /// The same for a moment: strata was overloaded or short of a resource.
    Later(Instant),
}

/// Time until a table is built again after the table memory was full.
const NO_ROOM_FOR: Duration = Duration::from_secs(300);
/// Time until a file or a table is tried again after an overload.
const BUSY_FOR: Duration = Duration::from_secs(2);
/// Time until a file that had no answer is tried again, for the first time and at most.
const NO_ANSWER_FOR: Duration = Duration::from_secs(60);
const LONGEST_NO_ANSWER: Duration = Duration::from_secs(3600);
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
    /// Tries to build a table without an answer.
    table_tries: HashMap<TableKey, u32>,
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
    /// Files whose content turned out to have changed in place.
    changed: Vec<FileId>,
}

/// The age of the last check after which a file is checked again when a process maps it.
const VERIFY_AFTER: Duration = Duration::from_secs(2);
/// The same when a process with it is first sampled: a compiler that is started again and again maps a
/// hundred files.
const VERIFY_SAMPLED_AFTER: Duration = Duration::from_secs(10);

impl Loading {
    pub fn start(programs: &mut Programs, store: &mut Store) -> io::Result<Self> {
        let service = FileService::new(Config::default())?;
        let vdso = crate::processes::vdso::image()
            .and_then(|image| strata_unwind::build(image.as_slice(), &Limits::default()).ok())
            .and_then(|table| store.load(programs, &table))
            .map(Arc::new);
        Ok(Self {
            service,
            entries: HashMap::default(),
            tables: HashMap::default(),
            table_tries: HashMap::default(),
            bundles: Bundles::default(),
            asked: HashMap::default(),
            waiting: HashSet::default(),
            progress: false,
            vdso,
            others: Helpers::default(),
            built: 0,
            failed_files: 0,
            delayed_files: 0,
            allowances: HashMap::default(),
            delayed: HashMap::default(),
            changed: Vec::new(),
        })
    }

    /// Readable when answers have come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.service.poll_fd()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_asked() { self.service.next_deadline() } else { None }
    }

    /// Whether answers are to come.
    pub fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    pub fn service(&mut self) -> &mut FileService {
        &mut self.service
    }

    /// Waits for an answer, at most so long. Only where nothing is sampled: before the start and at the end.
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
            tries: 0,
        })
    }

    /// A new mapping: its file is opened at once if it is new, while the process certainly exists.
    pub fn first_seen(&mut self, table: &ProcessTable, pid: u32, mapping: &Mapping) {
        let Backing::File(file) = mapping.backing else { return };
        // A file not opened now is opened when its process is sampled.
        match self.entry(file).state {
            State::Unknown => {
                if self.may_open(pid) {
                    self.open(table, file, pid, mapping);
                }
                return;
            }
            State::Later { .. } => return self.need_mapping(table, pid, mapping),
            _ => {}
        }
        self.verify(file, pid, mapping, VERIFY_AFTER);
    }

    /// Checks whether a file is still what it was when it was opened.
    fn verify(&mut self, file: FileId, pid: u32, mapping: &Mapping, after: Duration) {
        let entry = self.entry(file);
        let is_due = matches!(entry.state, State::Opened(_)) && entry.verified.elapsed() > after;
        if is_due && self.may_open(pid) {
            self.entry(file).verified = Instant::now();
            let id = self.service.submit(Request::Identify(mapped(pid, mapping)));
            self.asked.insert(id, Asked::Verify { file });
        }
    }

    /// Files whose content has changed in place.
    pub fn take_changed(&mut self) -> Vec<FileId> {
        std::mem::take(&mut self.changed)
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
            State::Later { until, why } if until > Instant::now() => {
                let is_anothers = matches!(why, Delay::Allowance(of) if of != pid);
                if is_anothers && self.may_open(pid) {
                    self.open(table, file, pid, mapping);
                } else {
                    self.try_later(pid, until);
                }
            }
            State::NoAnswer { again, .. } if again > Instant::now() => {
                self.try_later(pid, again);
            }
            State::Unknown | State::Later { .. } | State::NoAnswer { .. } => {
                if self.may_open(pid) {
                    self.open(table, file, pid, mapping);
                } else {
                    self.entry(file).process = Some(pid);
                    self.delay(file, Delay::Allowance(pid));
                }
            }
            State::Opened(ref opened) => {
                let opened = opened.clone();
                self.want_table(TableKey::of(file, &opened, None), &opened);
                self.verify(file, pid, mapping, VERIFY_SAMPLED_AFTER);
            }
            State::Opening | State::Failed(_) => {}
        }
    }

    /// A file is opened later: until then its code is unwound by frame pointers.
    fn delay(&mut self, file: FileId, why: Delay) {
        self.delayed_files += 1;
        let until = Instant::now() + BUSY_FOR;
        let entry = self.entry(file);
        entry.state = State::Later { until, why };
        if let Some(pid) = entry.process {
            self.try_later(pid, until);
        }
    }

    fn try_later(&mut self, pid: u32, until: Instant) {
        let known = self.delayed.entry(pid).or_insert(until);
        *known = until.min(*known);
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
            State::Failed(why) | State::NoAnswer { why, .. } => Some(why),
            State::Opened(opened) => match self.tables.get(&TableKey::of(file, opened, None))? {
                TableState::None(why) | TableState::NoAnswer { why, .. } => Some(why),
                TableState::NoRoom(_) => Some(NO_ROOM),
                _ => None,
            },
            _ => None,
        }
    }

    /// Files that could not be opened, and why.
    pub fn unreadable(&self) -> impl Iterator<Item = (FileId, &str)> {
        self.entries.iter().filter_map(|(file, entry)| match &entry.state {
            State::Failed(why) | State::NoAnswer { why, .. } => Some((*file, why.as_str())),
            _ => None,
        })
    }

    /// Whether a request about a file is still pending.
    pub fn is_asked_about(&self, file: FileId) -> bool {
        self.entries.get(&file).is_some_and(|entry| matches!(entry.state, State::Opening))
    }
}

/// When something that had no answer is tried again.
fn again_after(tries: u32) -> Instant {
    let wait = NO_ANSWER_FOR.saturating_mul(1 << tries.min(10)).min(LONGEST_NO_ANSWER);
    Instant::now() + wait
}

/// Resources used by strata's helper processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Helpers {
    pub processor_time: Duration,
    pub peak_memory_bytes: u64,
}

struct Unknown;

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
