//! A FUSE file system of one executable file that answers until it is switched to hang: the worst
//! case for a mapped binary.
//!
//! The protocol is `include/uapi/linux/fuse.h` (Linux 5.17, version 7.36); only the messages needed
//! to run one program are implemented. Answers have a cache lifetime of zero, so that after the
//! switch every access to the file waits for a server that never answers.

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
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

const FILE_NODE: u64 = 2;
const FILE_NAME: &[u8] = b"program";

/// The mounted file system; unmounted when dropped.
pub struct SilentFileSystem {
    folder: TempDir,
    silent: Arc<AtomicBool>,
    /// Milliseconds that each look for a name takes.
    slowness: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl SilentFileSystem {
    /// Mounts a file system that holds a copy of one program.
    pub fn with_program(program: &Path) -> Result<Self> {
        let content = std::fs::read(program)?;
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
        let slowness = Arc::new(AtomicU64::new(0));
        let mut server = Server {
            device,
            content,
            silent: silent.clone(),
            slowness: slowness.clone(),
            stop: stop.clone(),
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
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.slowness.store(millis, Ordering::SeqCst);
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
    device: File,
    content: Vec<u8>,
    silent: Arc<AtomicBool>,
    slowness: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
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
            match self.device.read(&mut buffer) {
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
        if opcode == LOOKUP {
            let millis = self.slowness.load(Ordering::SeqCst);
            let end = Instant::now() + Duration::from_millis(millis);
            while Instant::now() < end && !self.stop.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
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
        let _ = self.device.write(&out);
    }

    fn reply(&self, opcode: u32, node: u64, body: &[u8]) -> Answer {
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
            LOOKUP if body.strip_suffix(&[0]) == Some(FILE_NAME) => {
                let mut out = vec![0u8; 40];
                out[0..8].copy_from_slice(&FILE_NODE.to_le_bytes());
                out.extend(self.attributes(FILE_NODE));
                Answer::Bytes(out)
            }
            LOOKUP => Answer::Error(libc::ENOENT),
            GETATTR => Answer::Bytes([vec![0u8; 16], self.attributes(node)].concat()),
            OPEN | OPENDIR => Answer::Bytes(vec![0u8; 16]),
            READ => {
                let offset =
                    u64_at(body, 8).and_then(|o| usize::try_from(o).ok()).unwrap_or(usize::MAX);
                let size = u32_at(body, 16).and_then(|s| usize::try_from(s).ok()).unwrap_or(0);
                let rest = self.content.get(offset..).unwrap_or_default();
                Answer::Bytes(rest.get(..size.min(rest.len())).unwrap_or_default().to_vec())
            }
            FLUSH | RELEASE | RELEASEDIR => Answer::Bytes(vec![]),
            FORGET | BATCH_FORGET | INTERRUPT => Answer::Nothing,
            _ => Answer::Error(libc::ENOSYS),
        }
    }

    /// `struct fuse_attr`: 88 bytes.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let is_file = node == FILE_NODE;
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
