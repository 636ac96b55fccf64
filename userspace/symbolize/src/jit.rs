//! Names of generated code: perf maps (`/tmp/perf-PID.map`) and jitdump files.
//!
//! Both lie in the target's own namespaces: the path in its root, the number as the process itself
//! sees it. They grow: each is read on from its position at the last flush.
//!
//! A process can write its files anew all the time: what is read of them is paced, and what all
//! processes' files take together is bounded ([`Room`]).
//!
//! Invariant: only a file that belongs to the process's user or to root is trusted: every user can
//! write to `/tmp`, and symbols must come from a user who could write into the process anyway.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use strata_agent::image_id::ImageId;
use strata_agent::processes::credentials::{Ancestor, Credentials};
use strata_dotnet::names::of_perf_map;
use strata_profile::FrameKind;
use strata_profile::text::shortened;
use strata_sandbox::{FileIdentity, Locator, OpenFile, ProcessRef, Reply, Request};
use strata_symbols::{JitDump, PerfMap};

use crate::NamedFrame;
use crate::file_client::Ask;

/// Bytes read of one file at a flush, for a recording: at its end, all of it.
const MOST: u64 = 512 << 20;
/// And at each of many flushes.
const MOST_OFTEN: u64 = 64 << 20;
const PIECE: u64 = 4 << 20;
/// Bytes that may be read of one process's files at once in a daemon, and a second from then on.
const MOST_CREDIT: u64 = 128 << 20;
const CREDIT_A_SECOND: u64 = 1 << 20;
/// Bytes that the files of all processes take in a daemon: kept ones, and those being read.
const MOST_IN_ALL: usize = 64 << 20;
/// And those of one.
const MOST_OF_ONE: usize = MOST_IN_ALL / 4 * 3;
/// What was read last of a file, by which it is recognised.
const TAIL: usize = 64;

/// What one process's files may take.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Bytes read of each file.
    pub read: u64,
    /// Memory.
    pub memory: usize,
}

impl Allowance {
    /// For a recording, which reads them once.
    pub const ONCE: Self = Self { read: MOST, memory: usize::MAX };
}

/// The pace of one process.
#[derive(Clone, Copy, Debug)]
struct Credit {
    left: u64,
    since: Instant,
}

impl Credit {
    fn left(&mut self, now: Instant) -> u64 {
        let earned = now.saturating_duration_since(self.since).as_secs();
        if earned > 0 {
            self.left = self.left.saturating_add(earned * CREDIT_A_SECOND).min(MOST_CREDIT);
            self.since = now;
        }
        self.left
    }
}

/// The files of all processes in a daemon, and what more may be read.
#[derive(Default)]
pub struct Room {
    kept: HashMap<ImageId, JitFiles>,
    /// Memory that files being read may take.
    reserved: HashMap<ImageId, usize>,
    credits: HashMap<ImageId, Credit>,
}

impl Room {
    /// What is kept of a process, and what reading on may take.
    pub fn take(&mut self, image: ImageId, now: Instant) -> (JitFiles, Allowance) {
        let files = self.kept.remove(&image).unwrap_or_default();
        let kept: usize = self.kept.values().map(JitFiles::memory).sum();
        let used = kept + files.memory() + self.reserved.values().sum::<usize>();
        // Half of what is left, so that there is some for the next.
        let memory = files.memory() + MOST_IN_ALL.saturating_sub(used) / 2;
        let memory = memory.min(MOST_OF_ONE);
        self.reserved.insert(image, memory);
        let full = Credit { left: MOST_CREDIT, since: now };
        let left = self.credits.entry(image).or_insert(full).left(now);
        (files, Allowance { read: left.min(MOST_OFTEN), memory })
    }

    /// The files of a process were read on.
    pub fn give_back(&mut self, image: ImageId, mut files: JitFiles) {
        if let Some(credit) = self.credits.get_mut(&image) {
            credit.left = credit.left.saturating_sub(std::mem::take(&mut files.read));
        }
        let kept: usize = self.kept.values().map(JitFiles::memory).sum();
        if kept.saturating_add(files.memory()) <= MOST_IN_ALL {
            self.kept.insert(image, files);
        }
    }

    /// The files of a process are not read any more.
    pub fn done(&mut self, image: ImageId) {
        self.reserved.remove(&image);
    }

    pub fn forget(&mut self, is_gone: impl Fn(ImageId) -> bool) {
        self.kept.retain(|image, _| !is_gone(*image));
        self.credits.retain(|image, _| !is_gone(*image));
    }

    /// Drops what was read.
    pub fn clear(&mut self) {
        self.kept.clear();
    }
}

/// A file that is read as it grows.
struct Growing<P> {
    file: FileIdentity,
    offset: u64,
    /// The last bytes before the offset.
    tail: Vec<u8>,
    parsed: P,
}

impl<P> Growing<P> {
    fn keep_tail(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(piece.get(piece.len().saturating_sub(TAIL)..).unwrap_or(piece));
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
    }

    /// Whether what was read last lies there still: `jcmd PID Compiler.perfmap` writes its file anew,
    /// mostly a longer one.
    fn goes_on(&self, service: &mut dyn Ask, file: &Arc<OpenFile>) -> bool {
        let length = self.tail.len() as u64;
        let Some(offset) = self.offset.checked_sub(length).filter(|_| length > 0) else {
            return true;
        };
        match service.ask(Request::Read { file: file.clone(), offset, length }) {
            Ok(Reply::Bytes(bytes)) => bytes == self.tail,
            _ => true,
        }
    }
}

/// How CPython's perf map names Python functions.
const OF_PYTHON: &str = "py::";

/// The symbol files of one process's JIT compilers, as far as they were read.
#[derive(Default)]
pub struct JitFiles {
    map: Option<Growing<PerfMap>>,
    dump: Option<Growing<JitDump>>,
    is_dump_broken: bool,
    /// Bytes read since the files were taken.
    read: u64,
}

/// Whether the file is the one that was read, longer at most. One that was opened once has the size of
/// that moment.
fn has_only_grown(before: &FileIdentity, offset: u64, now: &FileIdentity) -> bool {
    let is_longer =
        || before.device == now.device && before.inode == now.inode && now.size >= offset;
    before == now || is_longer()
}

impl JitFiles {
    /// Reads the files of a process, which may have ended; false when there was no memory for all.
    pub fn read_on(
        &mut self,
        service: &mut dyn Ask,
        pid: u32,
        credentials: Option<Credentials>,
        dump: Option<&Arc<OpenFile>>,
        allowance: Allowance,
    ) -> bool {
        let mut is_whole = true;
        if let Some(file) = open_map(service, pid, credentials) {
            let others = self.dump_memory();
            if self.map.as_ref().is_some_and(|map| !map.goes_on(service, &file)) {
                self.map = None;
            }
            let map = growing(&mut self.map, &file);
            let (begun, mut offset) = (map.offset, map.offset);
            let mut has_room = others + map.parsed.memory() < allowance.memory;
            if has_room {
                read_pieces(service, &file, &mut offset, allowance.read, |piece| {
                    map.parsed.feed(piece);
                    map.keep_tail(piece);
                    has_room = others + map.parsed.memory() < allowance.memory;
                    has_room
                });
            }
            map.offset = offset;
            is_whole &= has_room;
            self.read += offset - begun;
        }
        if let Some(file) = dump.filter(|file| is_believed(credentials, file)) {
            if self.dump.as_ref().is_some_and(|dump| dump.file.inode != file.identity().inode) {
                self.is_dump_broken = false;
            }
            let others = self.map.as_ref().map_or(0, |map| map.parsed.memory());
            let dump = growing(&mut self.dump, file);
            if !self.is_dump_broken {
                let mut is_broken = false;
                let begun = dump.offset;
                let most = allowance.read.saturating_sub(self.read);
                let mut has_room = others + dump.parsed.memory() < allowance.memory;
                if has_room {
                    // More is read of a dump than is kept of it.
                    read_pieces(service, file, &mut dump.offset, most, |piece| {
                        is_broken = dump.parsed.feed(piece).is_err();
                        has_room = others + dump.parsed.memory() < allowance.memory;
                        !is_broken && has_room
                    });
                }
                is_whole &= has_room;
                self.is_dump_broken = is_broken;
                self.read += dump.offset - begun;
            }
        }
        is_whole
    }

    /// The names of code that was made before the process was forked: CPython begins a new perf map in
    /// a child, without what the parent had already. Other compilers' code may have been replaced
    /// since in one of the two, and what the parent's map says then is of its own.
    pub fn inherited(
        &mut self,
        service: &mut dyn Ask,
        credentials: Option<Credentials>,
        ancestors: &[Ancestor],
        addresses: &[u64],
        allowance: Allowance,
        longest: usize,
    ) -> HashMap<u64, NamedFrame> {
        let mut names = HashMap::new();
        let mut frames: HashMap<String, NamedFrame> = HashMap::new();
        for ancestor in ancestors {
            if names.len() == addresses.len() {
                break;
            }
            let Some(file) = open_map(service, ancestor.pid, ancestor.credentials) else {
                continue;
            };
            if !is_believed(credentials, &file) {
                continue;
            }
            let room = allowance.memory.saturating_sub(self.memory());
            let (mut map, mut read) = (PerfMap::default(), 0);
            let most = allowance.read.saturating_sub(self.read);
            read_pieces(service, &file, &mut read, most, |piece| {
                map.feed(piece);
                map.memory() < room
            });
            self.read += read;
            for &address in addresses {
                let name = map.lookup(address).filter(|name| name.starts_with(OF_PYTHON));
                let Some(name) = name.filter(|_| !names.contains_key(&address)) else { continue };
                // One for all addresses of a function, however long its name is.
                let known = frames.get(name).cloned().unwrap_or_else(|| {
                    let made = frame(name, "", 0, longest);
                    frames.insert(name.to_owned(), made.clone());
                    made
                });
                names.insert(address, known);
            }
        }
        names
    }

    /// Bytes that what was read takes.
    pub fn memory(&self) -> usize {
        self.map.as_ref().map_or(0, |map| map.parsed.memory()) + self.dump_memory()
    }

    fn dump_memory(&self) -> usize {
        self.dump.as_ref().map_or(0, |dump| dump.parsed.memory())
    }
}

/// Frames at addresses: one for all addresses of a function, however long its name is.
pub struct Names<'a> {
    files: &'a JitFiles,
    /// Characters of a name that are used.
    longest: usize,
    /// By the places of the name and its file in what was read, and the line.
    known: HashMap<(*const u8, *const u8, u32), InModule>,
}

/// A frame, and the file of its assembly if it is of a .NET method.
#[derive(Clone, Debug)]
pub struct InModule {
    pub frame: NamedFrame,
    pub assembly: Option<Arc<str>>,
}

impl InModule {
    /// A frame with no more of its names than this many characters. What the CLR has named has the name
    /// that its method has elsewhere, however it was compiled.
    fn of(name: &str, file: &str, line: u32, longest: usize) -> Self {
        let Some(method) = of_perf_map(name) else {
            return Self { frame: frame(name, file, line, longest), assembly: None };
        };
        let [shown, raw] = [&method.frame.name, &method.frame.system_name];
        let mut frame = NamedFrame::managed(&shortened(shown, longest), &shortened(raw, longest));
        frame.file = shortened(file, longest).into();
        frame.line = line;
        let of_file = |assembly| format!("{}.dll", shortened(assembly, longest)).into();
        let assembly = Some(method.assembly).filter(|assembly| !assembly.is_empty());
        Self { frame, assembly: assembly.map(of_file) }
    }
}

/// A frame with no more of its names than this many characters.
pub fn frame(name: &str, file: &str, line: u32, longest: usize) -> NamedFrame {
    let mut frame = NamedFrame::plain(FrameKind::Jit, &shortened(name, longest));
    frame.file = shortened(file, longest).into();
    frame.line = line;
    frame
}

impl<'a> Names<'a> {
    pub fn new(files: &'a JitFiles, longest: usize) -> Self {
        Self { files, longest, known: HashMap::new() }
    }

    pub fn at(&mut self, address: u64) -> Option<InModule> {
        let Self { files, longest, known } = self;
        let frame = |name: &str, file: &str, line| InModule::of(name, file, line, *longest);
        let dump = files.dump.as_ref();
        if let Some(symbol) = dump.and_then(|dump| dump.parsed.lookup(address)) {
            let line = symbol.line.unwrap_or_default();
            let file = symbol.file.unwrap_or_default();
            let key = (symbol.name.as_ptr(), file.as_ptr(), line);
            let new = || frame(symbol.name, file, line);
            return Some(known.entry(key).or_insert_with(new).clone());
        }
        let name = files.map.as_ref()?.parsed.lookup(address)?;
        let key = (name.as_ptr(), std::ptr::null(), 0);
        Some(known.entry(key).or_insert_with(|| frame(name, "", 0)).clone())
    }
}

/// The state of a file: reset when it is another one, or was truncated.
fn growing<'a, P: Default>(
    kept: &'a mut Option<Growing<P>>,
    file: &Arc<OpenFile>,
) -> &'a mut Growing<P> {
    let now = file.identity();
    let goes_on = kept.as_ref().is_some_and(|kept| has_only_grown(&kept.file, kept.offset, &now));
    if !goes_on {
        *kept = None;
    }
    let fresh = || Growing { file: now, offset: 0, tail: Vec::new(), parsed: P::default() };
    kept.get_or_insert_with(fresh)
}

fn is_believed(credentials: Option<Credentials>, file: &OpenFile) -> bool {
    match credentials {
        Some(credentials) => credentials.believes(file.owner()),
        // For a process that exited before its credentials were read.
        None => file.owner() == 0,
    }
}

fn open_map(
    service: &mut dyn Ask,
    pid: u32,
    credentials: Option<Credentials>,
) -> Option<Arc<OpenFile>> {
    let path = |pid: u32| PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let process = ProcessRef { pid, start_time: None };
    let inside = credentials.map_or(pid, |credentials| credentials.inner_pid);
    let locators = [
        Locator::InRoot { process, path: path(inside) },
        // The process is gone, or its map is written by a program outside of its root.
        Locator::Host { path: path(pid) },
    ];
    locators.into_iter().find_map(|locator| match service.ask(Request::Open(locator)) {
        Ok(Reply::Opened(file)) if is_believed(credentials, &file) => Some(file),
        _ => None,
    })
}

fn read_pieces(
    service: &mut dyn Ask,
    file: &Arc<OpenFile>,
    offset: &mut u64,
    most: u64,
    mut take: impl FnMut(&[u8]) -> bool,
) {
    let end = offset.saturating_add(most);
    while *offset < end {
        let request = Request::Read { file: file.clone(), offset: *offset, length: PIECE };
        let Ok(Reply::Bytes(piece)) = service.ask(request) else { return };
        if piece.is_empty() {
            return;
        }
        let goes_on = take(&piece);
        *offset += piece.len() as u64;
        if !goes_on {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What takes so much memory, or little less.
    fn of_memory(bytes: usize) -> JitFiles {
        let file = FileIdentity { device: 0, inode: 1, size: 0, ctime_ns: 0 };
        let name = "n".repeat(4000);
        let mut map = Growing { file, offset: 0, tail: Vec::new(), parsed: PerfMap::default() };
        let mut address = 0;
        while map.parsed.memory() + (64 << 10) < bytes {
            address += 16;
            map.parsed.feed(format!("{address:x} 10 {name}{address}\n").as_bytes());
        }
        JitFiles { map: Some(map), read: bytes as u64, ..JitFiles::default() }
    }

    #[test]
    fn all_processes_together_have_one_room_and_none_takes_all_of_it() {
        let mut room = Room::default();
        let now = Instant::now();
        let taken: Vec<usize> =
            (0..6).map(|image| room.take(ImageId(image), now).1.memory).collect();
        assert!(taken.iter().sum::<usize>() <= MOST_IN_ALL, "{taken:?}");
        assert!(taken.iter().all(|memory| *memory >= 1 << 20), "{taken:?}");
        for (image, memory) in (0..).zip(&taken) {
            room.give_back(ImageId(image), of_memory(*memory));
            room.done(ImageId(image));
        }
        let (files, allowance) = room.take(ImageId(0), now);
        assert!(files.memory() > taken[0] / 4, "it is read on: {}", files.memory());
        assert!(allowance.memory <= MOST_OF_ONE, "the others have room");
    }

    #[test]
    fn a_file_that_is_written_anew_all_the_time_is_read_at_a_pace() {
        let mut room = Room::default();
        let (image, start) = (ImageId(1), Instant::now());
        let mut read = 0;
        // Two hours of flushes.
        for flush in 0..480 {
            let now = start + Duration::from_secs(15) * flush;
            let (_, allowance) = room.take(image, now);
            read += allowance.read;
            room.give_back(image, JitFiles { read: allowance.read, ..JitFiles::default() });
            room.done(image);
        }
        assert!(read <= MOST_CREDIT + 7200 * CREDIT_A_SECOND, "{} MiB", read >> 20);
        let (_, allowance) = room.take(ImageId(2), start);
        assert_eq!(allowance.read, MOST_OFTEN, "another one's is read at once");
    }
}
