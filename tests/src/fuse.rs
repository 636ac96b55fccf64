//! A FUSE file system that answers until it is switched to hang, or to be late: the worst case for a
//! mapped file. It has a program, or many files of the same content.
//!
//! The protocol is `include/uapi/linux/fuse.h` (Linux 5.17, version 7.36); only the messages needed
//! to run one program are implemented. Answers have a cache lifetime of zero, so that after the
//! switch every access to the file waits for a server that never answers.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// Of the first file.
const FILE_NODE: u64 = 2;
/// `FOPEN_DIRECT_IO`: what is read through this opening comes from the server.
const DIRECT_IO: u32 = 1;

/// What is answered late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Late {
    Name,
    Opening,
    /// Of an opening that was made since.
    FirstRead,
    /// Of what is not in the page cache, if it is not a first one.
    Read,
    Write,
}

/// The mounted file system; unmounted when dropped.
pub struct SilentFileSystem {
    folder: TempDir,
    silent: Arc<AtomicBool>,
    /// Milliseconds that answers take, by [`Late`].
    slowness: Arc<[AtomicU64; 5]>,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl SilentFileSystem {
    /// Mounts a file system that holds a copy of one program.
    pub fn with_program(program: &Path) -> Result<Self> {
        Self::with_files(std::fs::read(program)?, vec!["program".into()])
    }

    /// Mounts a file system of files by these names, each with this content.
    pub fn with_files(content: Vec<u8>, names: Vec<String>) -> Result<Self> {
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .context("opening /dev/fuse")?;
        rustix::fs::fcntl_setfl(&device, rustix::fs::OFlags::NONBLOCK)?;
        let folder = tempfile::Builder::new().prefix("strata-fuse-").tempdir()?;
        let options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        rustix::mount::mount(
            "strata-test",
            folder.path(),
            "fuse",
            MountFlags::empty(),
            CString::new(options)?.as_c_str(),
        )
        .context("mounting FUSE")?;
        let silent = Arc::new(AtomicBool::new(false));
        let stop = Arc::new(AtomicBool::new(false));
        let slowness = Arc::<[AtomicU64; 5]>::default();
        let mut server = Server {
            device: device.into(),
            content,
            names,
            silent: silent.clone(),
            slowness: slowness.clone(),
            stop: stop.clone(),
            unread: HashSet::new(),
            openings: 0,
        };
        let server = Some(std::thread::spawn(move || server.serve()));
        Ok(Self { folder, silent, slowness, stop, server })
    }

    /// The path of the program in it.
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// From now on each look for a name takes so long.
    pub fn answer_names_after(&self, time: Duration) {
        self.is_late(Late::Name, time);
    }

    /// From now on each opening of a file takes so long.
    pub fn answer_openings_after(&self, time: Duration) {
        self.is_late(Late::Opening, time);
    }

    /// From now on the first read of each newly opened file takes so long; the others, and those of
    /// mapped memory, are as fast as before.
    pub fn answer_first_reads_after(&self, time: Duration) {
        self.is_late(Late::FirstRead, time);
    }

    /// From now on each read of what is not in the page cache takes so long, as of a slow disk: by a
    /// system call, or by a page of mapped memory.
    pub fn answer_reads_after(&self, time: Duration) {
        self.is_late(Late::Read, time);
    }

    /// From now on each write takes so long.
    pub fn answer_writes_after(&self, time: Duration) {
        self.is_late(Late::Write, time);
    }

    fn is_late(&self, what: Late, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if let Some(slowness) = self.slowness.get(what as usize) {
            slowness.store(millis, Ordering::SeqCst);
        }
    }

    /// From now on nothing is answered.
    pub fn fall_silent(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }
}

impl Drop for SilentFileSystem {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(server) = self.server.take() {
            let _ = server.join(); // closes the device, which aborts what still waits
        }
        let _ = rustix::mount::unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}

struct Server {
    device: Arc<File>,
    content: Vec<u8>,
    names: Vec<String>,
    silent: Arc<AtomicBool>,
    slowness: Arc<[AtomicU64; 5]>,
    stop: Arc<AtomicBool>,
    /// Openings whose first read is late.
    unread: HashSet<u64>,
    openings: u64,
}

/// The answer to a request.
enum Answer {
    Bytes(Vec<u8>),
    Error(i32),
    Nothing,
}

impl Server {
    fn serve(&mut self) {
        let mut buffer = vec![0u8; 1 << 20];
        while !self.stop.load(Ordering::SeqCst) {
            if self.silent.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            match (&*self.device).read(&mut buffer) {
                Ok(length) => self.answer(buffer.get(..length).unwrap_or_default()),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn answer(&mut self, request: &[u8]) {
        let (Some(opcode), Some(unique), Some(node)) =
            (u32_at(request, 4), u64_at(request, 8), u64_at(request, 16))
        else {
            return;
        };
        let body = request.get(40..).unwrap_or_default();
        let late = match opcode {
            LOOKUP => Some(Late::Name),
            OPEN => Some(Late::Opening),
            READ if u64_at(body, 0).is_some_and(|handle| self.unread.remove(&handle)) => {
                Some(Late::FirstRead)
            }
            READ => Some(Late::Read),
            WRITE => Some(Late::Write),
            _ => None,
        };
        let millis = late.map_or(0, |late| self.slowness_of(late));
        let (error, payload) = match self.reply(opcode, node, body) {
            Answer::Nothing => return,
            Answer::Error(error) => (-error, vec![]),
            Answer::Bytes(payload) => (0, payload),
        };
        let mut out = Vec::with_capacity(16 + payload.len());
        out.extend(u32::try_from(16 + payload.len()).unwrap_or(16).to_le_bytes());
        out.extend(error.to_le_bytes());
        out.extend(unique.to_le_bytes());
        out.extend(payload);
        if millis == 0 {
            let _ = (&*self.device).write(&out);
            return;
        }
        // Others are answered meanwhile.
        let (device, stop) = (self.device.clone(), self.stop.clone());
        let end = Instant::now() + Duration::from_millis(millis);
        std::thread::spawn(move || {
            while Instant::now() < end && !stop.load(Ordering::SeqCst) {
                let left = end.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_millis(20)));
            }
            let _ = (&*device).write(&out);
        });
    }

    fn slowness_of(&self, what: Late) -> u64 {
        self.slowness.get(what as usize).map_or(0, |slowness| slowness.load(Ordering::SeqCst))
    }

    /// `struct fuse_open_out`: a handle, and how it is read.
    fn opening(&mut self) -> Vec<u8> {
        let (mut handle, mut flags) = (0_u64, 0_u32);
        if self.slowness_of(Late::FirstRead) > 0 {
            self.openings += 1;
            self.unread.insert(self.openings);
            (handle, flags) = (self.openings, DIRECT_IO);
        }
        [&handle.to_le_bytes()[..], &flags.to_le_bytes(), &[0; 4]].concat()
    }

    fn reply(&mut self, opcode: u32, node: u64, body: &[u8]) -> Answer {
        match opcode {
            INIT => {
                let mut out = vec![0u8; 64];
                out[0..4].copy_from_slice(&7u32.to_le_bytes());
                out[4..8].copy_from_slice(&31u32.to_le_bytes());
                out[8..12].copy_from_slice(&(128u32 << 10).to_le_bytes()); // max_readahead
                out[20..24].copy_from_slice(&(128u32 << 10).to_le_bytes()); // max_write
                out[24..28].copy_from_slice(&1u32.to_le_bytes()); // time_gran
                Answer::Bytes(out)
            }
            LOOKUP => {
                let is_it = |name: &String| body.strip_suffix(&[0]) == Some(name.as_bytes());
                let Some(at) = self.names.iter().position(is_it) else {
                    return Answer::Error(libc::ENOENT);
                };
                let node = FILE_NODE + at as u64;
                let mut out = vec![0u8; 40];
                out[0..8].copy_from_slice(&node.to_le_bytes());
                out.extend(self.attributes(node));
                Answer::Bytes(out)
            }
            GETATTR => Answer::Bytes([vec![0u8; 16], self.attributes(node)].concat()),
            OPEN => Answer::Bytes(self.opening()),
            OPENDIR => Answer::Bytes(vec![0u8; 16]),
            READDIR => Answer::Bytes(self.entries(body)),
            READ => {
                let offset =
                    u64_at(body, 8).and_then(|o| usize::try_from(o).ok()).unwrap_or(usize::MAX);
                let size = u32_at(body, 16).and_then(|s| usize::try_from(s).ok()).unwrap_or(0);
                let rest = self.content.get(offset..).unwrap_or_default();
                Answer::Bytes(rest.get(..size.min(rest.len())).unwrap_or_default().to_vec())
            }
            // All of it, which is kept nowhere.
            WRITE => Answer::Bytes([body.get(16..20).unwrap_or(&[0; 4]), &[0; 4]].concat()),
            STATFS => Answer::Bytes(vec![0; 80]),
            FLUSH | RELEASE | RELEASEDIR => Answer::Bytes(vec![]),
            FORGET | BATCH_FORGET | INTERRUPT => Answer::Nothing,
            _ => Answer::Error(libc::ENOSYS),
        }
    }

    /// `struct fuse_dirent` of each file from the offset on, as many as fit.
    fn entries(&self, request: &[u8]) -> Vec<u8> {
        let from = u64_at(request, 8).and_then(|at| usize::try_from(at).ok()).unwrap_or(usize::MAX);
        let size = u32_at(request, 16).and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
        let mut out = Vec::new();
        for (at, name) in self.names.iter().enumerate().skip(from) {
            let padded = name.len().next_multiple_of(8);
            if out.len() + 24 + padded > size {
                break;
            }
            out.extend((FILE_NODE + at as u64).to_le_bytes());
            out.extend((at as u64 + 1).to_le_bytes());
            out.extend((name.len() as u32).to_le_bytes());
            out.extend(8_u32.to_le_bytes()); // DT_REG
            out.extend(name.as_bytes());
            out.resize(out.len() + padded - name.len(), 0);
        }
        out
    }

    /// `struct fuse_attr`: 88 bytes.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let is_file = node >= FILE_NODE;
        let size = if is_file { self.content.len() as u64 } else { 0 };
        let mode: u32 = if is_file { 0o100_755 } else { 0o040_755 };
        let mut out = Vec::with_capacity(88);
        for word in [node, size, size.div_ceil(512), 0, 0, 0] {
            out.extend(word.to_le_bytes());
        }
        for half in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
            out.extend(half.to_le_bytes());
        }
        out
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
