//! Whether a file of another process may be read at all.
//!
//! A file that is opened because a process maps it can be anything, and another thing a moment
//! later: a path in `map_files` is only a range of addresses. So it is first opened with `O_PATH`,
//! which involves no file system; then its device shows whether it is on the kernel's own tmpfs,
//! where memfds live; and only then is it opened for reading. No userspace file system can make
//! strata hang. After opening, its seals, size and header are checked.
//!
//! Invariant: what passes has the size it must have, and keeps it; reading it allocates no memory
//! and cannot block on the process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

use super::{HeaderError, main_header};
use crate::layout::{MAIN_SIZE, SEGMENT_SIZE};

/// `include/uapi/linux/magic.h`
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Why a file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{call} failed: {source}")]
    Call { call: &'static str, source: io::Error },
    #[error("not in the kernel's own tmpfs, where memfds are")]
    NoMemfd,
    #[error("the process holds a lease on the file")]
    Leased,
    #[error("not a file that can be sealed")]
    NotSealable,
    #[error("not on tmpfs (file system {0:#x}); huge pages are not supported")]
    FileSystem(i64),
    #[error("not a regular file")]
    NotRegular,
    #[error("not sealed against shrinking and growing (seals {0:#x})")]
    Seals(i32),
    #[error("sealed against writing (seals {0:#x})")]
    WriteSealed(i32),
    #[error("{found} bytes instead of {expected}")]
    Size { found: u64, expected: u64 },
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// Opens a memfd through `/proc/PID/map_files` or `/proc/PID/fd`, for reading and writing. A lease
/// would make the opening wait for its holder (fcntl(2), "Leases"): `O_NONBLOCK` refuses instead.
pub fn open(path: &Path) -> Result<File, Refused> {
    let failed = |call| move |source| Refused::Call { call, source };
    let held = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)
        .map_err(failed("open(O_PATH)"))?;
    let memfds = memfd_device().map_err(failed("memfd_create"))?;
    if device(&held).map_err(failed("statx"))? != memfds {
        return Err(Refused::NoMemfd);
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", held.as_raw_fd()))
        .map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => Refused::Leased,
            _ => Refused::Call { call: "open", source },
        })
}

/// The device of a file, without asking its file system (statx(2), `AT_STATX_DONT_SYNC`).
fn device(file: &File) -> io::Result<u64> {
    // SAFETY: a plain C structure for which zero is a value.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is a C string, `status` is valid for writing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_statx,
            file.as_raw_fd(),
            c"".as_ptr(),
            flags,
            libc::STATX_TYPE,
            &raw mut status,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(libc::makedev(status.stx_dev_major, status.stx_dev_minor))
}

/// Checks a main file: what it is, and its header. It can be owned and read then.
pub fn check_main(file: &File) -> Result<(), Refused> {
    let seals = check_file(file, MAIN_SIZE as u64)?;
    if seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0 {
        return Err(Refused::WriteSealed(seals));
    }
    main_header(file)?;
    Ok(())
}

/// Checks what a segment's file is. [`super::Reader::add_segment`] checks its header.
pub fn check_segment(file: &File) -> Result<(), Refused> {
    check_file(file, SEGMENT_SIZE as u64).map(drop)
}

/// Queries the seals first: for any other file system the kernel refuses that by itself.
fn check_file(file: &File, expected: u64) -> Result<i32, Refused> {
    // SAFETY: the descriptor is open; no memory is involved.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return Err(Refused::NotSealable);
    }
    // SAFETY: a plain C structure for which zero is a value.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `system` is valid for writing.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut system) } != 0 {
        return Err(Refused::Call { call: "fstatfs", source: io::Error::last_os_error() });
    }
    // The field's type differs between the C libraries.
    let kind = system.f_type as i64;
    if kind != TMPFS_MAGIC {
        return Err(Refused::FileSystem(kind));
    }
    let metadata = file.metadata().map_err(|source| Refused::Call { call: "fstat", source })?;
    if !metadata.is_file() {
        return Err(Refused::NotRegular);
    }
    let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    if seals & needed != needed {
        return Err(Refused::Seals(seals));
    }
    if metadata.size() != expected {
        return Err(Refused::Size { found: metadata.size(), expected });
    }
    Ok(seals)
}

/// The device number that all memfds have, as `stat` gives it: major and minor as `/proc/PID/maps`
/// shows them are `libc::major` and `libc::minor` of it. Other files on it are shared anonymous
/// memory and System V segments.
pub fn memfd_device() -> io::Result<u64> {
    static DEVICE: OnceLock<u64> = OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(*device);
    }
    let name = c"strata-device";
    // SAFETY: a C string that outlives the call.
    let descriptor =
        unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    let file = match i32::try_from(descriptor) {
        // SAFETY: a descriptor that the kernel just made, and no other owner exists.
        Ok(descriptor) if descriptor >= 0 => unsafe { File::from_raw_fd(descriptor) },
        _ => return Err(io::Error::last_os_error()),
    };
    let device = file.metadata()?.dev();
    Ok(*DEVICE.get_or_init(|| device))
}
