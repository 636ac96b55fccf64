//! A FUSE filesystem with one file under any name, which stops answering on command.
//!
//! It implements the kernel's protocol directly (include/uapi/linux/fuse.h of Linux 6.12, version
//! 7.31) over a mounted `/dev/fuse`.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub const LOOKUP: u32 = 1;
pub const GETATTR: u32 = 3;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const FLUSH: u32 = 25;
const FORGET: u32 = 2;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// Answers to everything.
pub const NOTHING: u32 = 0;

pub struct Fuse {
    pub mount: PathBuf,
    silent: Arc<AtomicU32>,
    server: Option<std::thread::JoinHandle<()>>,
}

impl Fuse {
    /// Mounts at `mount`; `None`, with the reason printed, where the kernel has no FUSE.
    pub fn mount(mount: &Path, content: Vec<u8>) -> Option<Self> {
        let device = match File::options().read(true).write(true).open("/dev/fuse") {
            Ok(device) => device,
            Err(error) => {
                strata_skip::skipped!(
                    "this kernel has no FUSE (CONFIG_FUSE_FS): /dev/fuse: {error}"
                );
                return None;
            }
        };
        let options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let text = |text: &str| CString::new(text).unwrap();
        let target = text(mount.to_str().unwrap());
        // SAFETY: all pointers are to terminated strings that live through the call.
        let mounted = unsafe {
            libc::mount(
                text("strata-test").as_ptr(),
                target.as_ptr(),
                text("fuse.strata-test").as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV,
                text(&options).as_ptr().cast(),
            )
        };
        if mounted != 0 {
            strata_skip::skipped!("cannot mount FUSE: {}", std::io::Error::last_os_error());
            return None;
        }
        let silent = Arc::new(AtomicU32::new(NOTHING));
        let server = std::thread::spawn({
            let silent = silent.clone();
            move || serve(device, &content, &silent)
        });
        Some(Self { mount: mount.into(), silent, server: Some(server) })
    }

    /// From now on requests of this kind are read and never answered.
    pub fn never_answer(&self, operation: u32) {
        self.silent.store(operation, Ordering::SeqCst);
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let target = CString::new(self.mount.to_str().unwrap()).unwrap();
        // SAFETY: a terminated string. MNT_FORCE ends all requests that wait.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }
}

fn serve(mut device: File, content: &[u8], silent: &AtomicU32) {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let length = match device.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            Err(_) => continue,
        };
        let request = &buffer[..length];
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().unwrap());
        let (operation, unique, node) = (word(4), long(8), long(16));
        if operation == silent.load(Ordering::SeqCst) {
            continue;
        }
        let answer = match operation {
            INIT => Ok(init()),
            LOOKUP => {
                let mut entry = Vec::new();
                // Node, generation; nothing of it may be kept by the kernel.
                push(&mut entry, &[2, 0, 0, 0, 0]);
                entry.extend(attributes(2, content.len() as u64));
                Ok(entry)
            }
            GETATTR => {
                let mut answer = Vec::new();
                push(&mut answer, &[0, 0]);
                answer.extend(attributes(node, content.len() as u64));
                Ok(answer)
            }
            OPEN | 27 => Ok(vec![0; 16]),
            READ => {
                let (offset, size) = (long(48) as usize, word(56) as usize);
                let rest = content.get(offset..).unwrap_or_default();
                Ok(rest[..rest.len().min(size)].to_vec())
            }
            // As much as was to be written.
            WRITE => Ok([&request[56..60], &[0; 4]].concat()),
            STATFS => Ok(vec![0; 80]),
            FLUSH | RELEASE | 29 => Ok(Vec::new()),
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let mut message = Vec::new();
        message.extend(u32::try_from(16 + body.len()).unwrap().to_le_bytes());
        message.extend(i32::to_le_bytes(error));
        message.extend(unique.to_le_bytes());
        message.extend(body);
        // ENOENT: the requesting process was killed.
        let _ = device.write(&message);
    }
}

fn push(bytes: &mut Vec<u8>, values: &[u64]) {
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn init() -> Vec<u8> {
    let mut answer = Vec::new();
    for value in [7_u32, 31, 128 << 10, 0, 0, 128 << 10, 1] {
        answer.extend(value.to_le_bytes());
    }
    answer.resize(64, 0);
    answer
}

fn attributes(node: u64, size: u64) -> Vec<u8> {
    let is_root = node == 1;
    let mut attributes = Vec::new();
    push(&mut attributes, &[node, if is_root { 0 } else { size }, 0, 1, 1, 1]);
    let mode = if is_root { libc::S_IFDIR } else { libc::S_IFREG } | 0o755;
    for value in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        attributes.extend(u32::to_le_bytes(value));
    }
    attributes
}
