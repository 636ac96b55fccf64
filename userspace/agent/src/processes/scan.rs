//! The state at the start, from `/proc`, and processes that were missed.
//!
//! What a process has mapped is read under its memory's lock, which may be held forever: one
//! process with a hanging file system would stall the recording of the whole host. So a blocking
//! reader does it, and a process that hangs has no known mappings.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::time::{Duration, Instant};

use super::space;
use super::table::{Change, Existing, Mapping, ProcessTable, Threads};
use crate::blocking_reader::{BlockingReader, Missing, Patience, Ticket, owner_of};
use crate::clock::monotonic_nanos;
use crate::image_id::ImageId;
use crate::kernel::perf_record::MappedInode;
use strata_sandbox::{living_thread, process_text};

/// Hosts with a dead file system have some such processes.
const PATIENCE: Patience = Patience { limit: Duration::from_millis(500), threads: 64, of_one: 8 };
/// The number of processes read in one batch at the start, and the time limit of all batches. Those
/// that are not read by then are read when they are sampled.
const AT_ONCE: usize = 64;
const ALL_OF_THEM: Duration = Duration::from_secs(20);
/// Bytes of mappings that are read of one process, and kept until they are in the table.
const MAX_MAPS: u64 = 64 << 20;
const MAX_CODE: usize = 1 << 20;

/// Reads processes into the table.
pub struct Scanner {
    reader: BlockingReader<u32, Option<Found>>,
    /// The same for processes that are known, and of which events may have been lost.
    repairs: BlockingReader<u32, Option<Found>>,
    /// Requested repairs: the process as it was known then.
    asked: HashMap<Ticket, Suspect>,
    /// Readings that may show what events do that were not applied yet.
    early: Vec<(Ticket, Result<Option<Found>, Missing>)>,
}

/// A process of which `/proc` may show more than its events did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Suspect {
    pid: u32,
    image: ImageId,
    epoch: u32,
    is_outdated: bool,
    /// Readings that were not applied because it had changed.
    tries: u8,
}

/// The result of re-reading a known process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    Done {
        pid: u32,
        change: Change,
        /// Its parent was not known before.
        is_adopted: bool,
    },
    /// It is gone.
    Gone { pid: u32 },
    /// Reading it takes too long.
    Hung { pid: u32 },
    /// It changes all the time.
    Changing { pid: u32 },
    /// It was not read: others hang, or strata lacks memory or descriptors.
    Later { pid: u32 },
}

/// The most processes re-read at the same time: this bounds the cost of a lost event.
const MOST_REPAIRS: usize = 4096;
/// Readings of a process that changes while it is read.
const MOST_TRIES: u8 = 3;

/// What `/proc` shows of a process.
struct Found {
    /// Lines of executable mappings.
    code: Vec<u8>,
    has_memory: bool,
    /// Strata may not read what it has mapped.
    is_unreadable: bool,
    stat: Stat,
    /// When it was read, by the clock of events.
    read: u64,
}

impl Default for Scanner {
    fn default() -> Self {
        Self::with([read, read_steadily])
    }
}

impl Scanner {
    fn with([read, again]: [fn(u32) -> Option<Found>; 2]) -> Self {
        Self {
            reader: BlockingReader::new("processes", PATIENCE, read),
            repairs: BlockingReader::new("repairs", PATIENCE, again),
            asked: HashMap::new(),
            early: Vec::new(),
        }
    }

    /// Whether so many re-reads are requested that others have to wait.
    pub fn has_enough_repairs(&self) -> bool {
        self.asked.len() >= MOST_REPAIRS
    }

    /// Whether readings are to come.
    pub fn is_reading(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Events were lost: readings that were requested before do not show what they said.
    pub fn events_were_lost(&mut self) {
        self.asked.values_mut().for_each(|asked| asked.is_outdated = true);
    }

    /// Requests a re-read of a known process, off the event loop: see [`Self::take_repairs`]. False
    /// when it cannot be read now.
    pub fn ask_repair(&mut self, table: &ProcessTable, pid: u32) -> bool {
        self.ask_again(table, pid, 0)
    }

    fn ask_again(&mut self, table: &ProcessTable, pid: u32, tries: u8) -> bool {
        let Some(process) = table.get(pid) else { return true };
        if self.has_enough_repairs() {
            return false;
        }
        let (image, epoch) = (process.image, process.space.epoch);
        let suspect = Suspect { pid, image, epoch, is_outdated: false, tries };
        if self.asked.values().any(|asked| Suspect { tries, ..*asked } == suspect) {
            return true;
        }
        let ticket = self.repairs.ask_of(owner_of(pid), pid);
        if let Some(ticket) = ticket {
            self.asked.insert(ticket, suspect);
        }
        ticket.is_some()
    }

    /// Applies readings of `/proc`, once all events before each have been applied: those up to this time.
    /// Processes that changed since they were requested are read again.
    pub fn take_repairs(&mut self, table: &mut ProcessTable, applied_until: u64) -> Vec<Repair> {
        if self.asked.is_empty() {
            return Vec::new();
        }
        let mut repairs = Vec::new();
        let mut answers = std::mem::take(&mut self.early);
        answers.append(&mut self.repairs.answers());
        for (ticket, found) in answers {
            if let Ok(Some(early)) = &found
                && early.read > applied_until
                && self.asked.get(&ticket).is_some_and(|asked| !asked.is_outdated)
            {
                self.early.push((ticket, found));
                continue;
            }
            let Some(asked) = self.asked.remove(&ticket) else { continue };
            let Suspect { pid, image, epoch, is_outdated, tries } = asked;
            let found = match found {
                Ok(found) => found,
                Err(Missing::GivenUp) => {
                    if table.get(pid).is_some_and(|process| process.image == image) {
                        repairs.push(Repair::Hung { pid });
                    }
                    continue;
                }
                Err(Missing::Refused) => {
                    repairs.push(Repair::Later { pid });
                    continue;
                }
            };
            let Some(process) = table.get(pid) else { continue };
            let has_changed = process.image != image || process.space.epoch != epoch;
            if has_changed || is_outdated {
                let tries = tries + u8::from(has_changed);
                if tries >= MOST_TRIES {
                    repairs.push(Repair::Changing { pid });
                } else if !self.ask_again(table, pid, tries) {
                    repairs.push(Repair::Later { pid });
                }
                continue;
            }
            match found {
                // What it has mapped stays as it is known.
                Some(found) if found.is_unreadable => {
                    let is_adopted = table.adopt(found.existing(pid));
                    repairs.push(Repair::Done { pid, change: Change::None, is_adopted });
                }
                // A kernel thread has nothing mapped.
                Some(found) if found.has_memory || !found.stat.is_zombie() => {
                    let mappings = found.mappings(table);
                    let change = table.repair(found.existing(pid), &mappings, found.read);
                    let is_adopted = table.adopt(found.existing(pid));
                    repairs.push(Repair::Done { pid, change, is_adopted });
                }
                None if !has_ended(pid) => repairs.push(Repair::Later { pid }),
                _ => repairs.push(Repair::Gone { pid }),
            }
        }
        repairs
    }

    /// Reads every process of the host into the table; those that are there already stay.
    pub fn scan(&mut self, table: &mut ProcessTable) -> usize {
        let Ok(entries) = fs::read_dir("/proc") else { return 0 };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let pids: Vec<u32> = pids.collect();
        let until = Instant::now() + ALL_OF_THEM;
        pids.chunks(AT_ONCE).map(|pids| self.scan_these(table, pids, until)).sum()
    }

    /// Processes that could not be read because they, or others before them, hang.
    pub fn unread(&self) -> u64 {
        let figures = self.reader.figures();
        figures.given_up + figures.refused
    }

    fn scan_these(&mut self, table: &mut ProcessTable, pids: &[u32], until: Instant) -> usize {
        let tickets: Vec<_> =
            pids.iter().map(|pid| (self.reader.ask_of(owner_of(*pid), *pid), *pid)).collect();
        self.reader.settle(until.saturating_duration_since(Instant::now()));
        let mut answers: HashMap<_, _> = self.reader.answers().into_iter().collect();
        let mut found = 0;
        for (ticket, pid) in tickets {
            match ticket.and_then(|ticket| answers.remove(&ticket)) {
                Some(Ok(Some(process))) => found += usize::from(process.insert(table, pid)),
                // It is gone.
                Some(Ok(None)) => {}
                Some(Err(_)) | None => {
                    tracing::debug!(pid, "what a process has mapped cannot be read: it hangs")
                }
            }
        }
        found
    }
}

/// Its name is that of the program whose mappings were read: it may execute another one meanwhile.
fn read_steadily(pid: u32) -> Option<Found> {
    let mut found = read(pid)?;
    for _ in 1..MOST_TRIES {
        if stat(pid).is_none_or(|stat| stat.comm == found.stat.comm) {
            break;
        }
        found = read(pid)?;
    }
    Some(found)
}

/// Processes may end at any moment, then there is nothing to read.
fn read(pid: u32) -> Option<Found> {
    let stat = stat(pid)?;
    let nothing = |stat| Found {
        code: Vec::new(),
        has_memory: false,
        is_unreadable: false,
        stat,
        read: monotonic_nanos(),
    };
    let thread = if stat.is_zombie() { living_thread(pid) } else { Some(pid) };
    let Some(thread) = thread else { return Some(nothing(stat)) };
    let place = format!("/proc/{pid}/task/{thread}/maps");
    let file = match File::open(place) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Some(Found { has_memory: true, is_unreadable: true, ..nothing(stat) });
        }
        Err(_) => return None,
    };
    let mut lines = BufReader::new(file.take(MAX_MAPS));
    let mut found = nothing(stat);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).ok()? > 0 && found.code.len() < MAX_CODE {
        found.has_memory = true;
        // A truncated one has no end.
        if line.pop() == Some(b'\n') && parse_line(&line).is_some() {
            found.code.extend_from_slice(&line);
            found.code.push(b'\n');
        }
        line.clear();
    }
    found.read = monotonic_nanos();
    Some(found)
}

/// A process that cannot be read may go on all the same.
pub fn has_ended(pid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let is_there = unsafe { libc::kill(pid as i32, 0) } == 0;
    !is_there && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

impl Found {
    /// A kernel thread, or a zombie.
    fn is_gone(&self) -> bool {
        !self.has_memory && (self.stat.parent == KTHREADD || self.stat.is_zombie())
    }

    fn insert(self, table: &mut ProcessTable, pid: u32) -> bool {
        if self.is_gone() || self.is_unreadable {
            return false;
        }
        let mappings = self.mappings(table);
        table.insert_existing(self.existing(pid), mappings);
        true
    }

    fn existing(&self, pid: u32) -> Existing<'_> {
        let Stat { ref comm, parent, threads, .. } = self.stat;
        let threads =
            Threads { is_leaderless: self.stat.is_zombie(), others: threads.saturating_sub(1) };
        Existing { pid, parent, comm, threads }
    }

    fn mappings(&self, table: &mut ProcessTable) -> Vec<Mapping> {
        let mut mappings = Vec::new();
        for line in self.code.split(|&byte| byte == b'\n') {
            let Some(found) = parse_line(line) else { continue };
            if let Some(backing) = table.backing(found.inode, found.path) {
                mappings.push(Mapping {
                    start: found.start,
                    end: found.end,
                    offset: found.offset,
                    backing,
                });
            }
        }
        space::give_to_files(&mut mappings);
        mappings
    }
}

/// Parent of all kernel threads.
const KTHREADD: u32 = 2;

struct Stat {
    comm: String,
    state: String,
    parent: u32,
    threads: u32,
}

impl Stat {
    /// A process that has ended, or whose main thread has.
    fn is_zombie(&self) -> bool {
        self.state == "Z"
    }
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = process_text::Stat::parse(&text)?;
    let comm = String::from_utf8_lossy(stat.name).into_owned();
    let state = stat.field(3)?.to_owned();
    let parent = stat.field(4)?.parse().ok()?;
    let threads = stat.field(20)?.parse().ok()?;
    Some(Stat { comm, state, parent, threads })
}

struct Line<'a> {
    start: u64,
    end: u64,
    offset: u64,
    inode: MappedInode,
    path: &'a [u8],
}

/// One line of `/proc/PID/maps`, when it is an executable mapping.
fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let protection = fields.next()?;
    if protection.get(2) != Some(&b'x') {
        return None;
    }
    let offset = std::str::from_utf8(fields.next()?).ok()?;
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let inode = std::str::from_utf8(fields.next()?).ok()?;
    let path = fields.next().unwrap_or_default();
    let spaces = path.iter().take_while(|&&byte| byte == b' ').count();
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    Some(Line {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        inode: MappedInode {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            inode: inode.parse().ok()?,
            generation: 0,
        },
        path: path.get(spaces..).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_spaces_is_read_whole() {
        let line = b"7f00-7f10 r-xp 00001000 fe:01 1234    /opt/my app/lib x.so (deleted)";
        let line = parse_line(line).expect("a valid line");
        assert_eq!((line.start, line.end, line.offset), (0x7f00, 0x7f10, 0x1000));
        assert_eq!(line.inode.inode, 1234);
        assert_eq!(line.path, b"/opt/my app/lib x.so (deleted)");
    }

    #[test]
    fn data_mappings_are_left_out() {
        assert!(parse_line(b"7f00-7f10 rw-p 00001000 fe:01 1234 /lib/x.so").is_none());
    }

    fn scan_one(table: &mut ProcessTable, pid: u32) -> bool {
        Scanner::default().scan_these(table, &[pid], Instant::now() + ALL_OF_THEM) > 0
    }

    #[test]
    fn a_process_that_only_waits_to_be_waited_for_is_gone() {
        let mut child = std::process::Command::new("/bin/true").spawn().expect("it starts");
        let is_zombie = || stat(child.id()).is_some_and(|stat| stat.state == "Z");
        while !is_zombie() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!scan_one(&mut ProcessTable::default(), child.id()));
        child.wait().expect("it was there");
    }

    #[test]
    fn this_process_is_found_with_its_own_code() {
        let mut table = ProcessTable::default();
        assert!(scan_one(&mut table, std::process::id()));
        let process = table.get(std::process::id()).expect("found");
        let here = this_process_is_found_with_its_own_code as fn() as usize as u64;
        assert!(process.space.mapping_of(here).is_some());
    }

    #[test]
    fn a_process_that_hangs_holds_no_other_up() {
        const HANGS: u32 = u32::MAX >> 1;
        let mut scanner = Scanner::with(
            [|pid| {
                if pid == HANGS {
                    loop {
                        std::thread::park();
                    }
                }
                read(pid)
            }; 2],
        );
        let mut table = ProcessTable::default();
        let here = std::process::id();
        assert_eq!(scanner.scan_these(&mut table, &[HANGS, here], Instant::now() + ALL_OF_THEM), 1);
        assert!(table.get(here).is_some() && table.get(HANGS).is_none());
        assert_eq!(scanner.unread(), 1);
    }

    #[test]
    fn a_process_of_which_events_were_lost_is_read_anew() {
        let here = std::process::id();
        let mut table = ProcessTable::default();
        table.insert_unknown(here, "before");
        let mut scanner = Scanner::default();
        assert!(scanner.ask_repair(&table, here));
        // It may have been read before that: what is read then does not count.
        scanner.events_were_lost();
        let mut take = |until: fn() -> u64| {
            let took = scanner.take_repairs(&mut table, until());
            std::thread::sleep(Duration::from_millis(2));
            took
        };
        // Of what was read a moment ago events may not have been applied.
        let early: Vec<Repair> = (0..50).flat_map(|_| take(|| 1)).collect();
        assert_eq!(early, []);
        let repairs = (0..1000).map(|_| take(monotonic_nanos)).find(|repairs| !repairs.is_empty());
        let change = Change::Renamed { pid: here };
        let renamed = Repair::Done { pid: here, change, is_adopted: true };
        assert_eq!(repairs, Some(vec![renamed]));
        assert!(!scanner.is_reading());
        let code = a_process_of_which_events_were_lost_is_read_anew as fn() as usize as u64;
        assert!(table.get(here).is_some_and(|process| process.space.mapping_of(code).is_some()));
    }

    #[test]
    fn a_process_that_is_not_read_because_others_of_its_user_hang_is_read_later() {
        use std::os::unix::process::CommandExt;
        let sleeps = |_| {
            let mut command = std::process::Command::new("sleep");
            command.arg("60").uid(65_534).spawn().expect("it starts")
        };
        let mut children: Vec<_> = (0..PATIENCE.of_one + 2).map(sleeps).collect();
        let mut scanner = Scanner::with(
            [|_| {
                loop {
                    std::thread::park();
                }
            }; 2],
        );
        let mut table = ProcessTable::default();
        for child in &children {
            table.insert_unknown(child.id(), "sleep");
            assert!(scanner.ask_repair(&table, child.id()));
        }
        let mut later = Vec::new();
        while !scanner.asked.is_empty() {
            later.extend(scanner.take_repairs(&mut table, u64::MAX));
            std::thread::sleep(Duration::from_millis(10));
        }
        for child in &mut children {
            child.kill().expect("it was there");
            child.wait().expect("it was there");
        }
        let left = children.iter().skip(PATIENCE.of_one);
        let expected: Vec<_> = left.map(|child| Repair::Later { pid: child.id() }).collect();
        later.retain(|repair| !matches!(repair, Repair::Hung { .. }));
        assert_eq!(later, expected);
    }

    #[test]
    fn neither_a_kernel_thread_nor_a_process_that_may_not_be_read_is_gone() {
        const UNREADABLE: u32 = 8;
        let mut scanner = Scanner::with(
            [|pid| {
                let (comm, state) = ("kswapd0".to_owned(), "S".to_owned());
                let stat = Stat { comm, state, parent: KTHREADD, threads: 1 };
                let is_unreadable = pid == UNREADABLE;
                let code = Vec::new();
                Some(Found { code, has_memory: is_unreadable, is_unreadable, stat, read: 0 })
            }; 2],
        );
        let mut table = ProcessTable::default();
        for pid in [7, UNREADABLE] {
            table.insert_unknown(pid, "kswapd0");
            assert!(scanner.ask_repair(&table, pid));
            let repairs = loop {
                let repairs = scanner.take_repairs(&mut table, u64::MAX);
                if !repairs.is_empty() {
                    break repairs;
                }
                std::thread::sleep(Duration::from_millis(2));
            };
            assert_eq!(repairs, [Repair::Done { pid, change: Change::None, is_adopted: true }]);
        }
    }

    #[test]
    fn the_whole_host_is_read() {
        let mut table = ProcessTable::default();
        let found = Scanner::default().scan(&mut table);
        assert_eq!(found, table.count());
        assert!(table.get(std::process::id()).is_some());
    }
}
