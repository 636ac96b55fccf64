//! Whether a file of another process may be read at all.
//!
//! A file that is opened because a process maps it can be anything. Before it is opened, its device
//! number in `/proc/PID/maps` says whether it is on the kernel's own tmpfs, where memfds live
//! ([`memfd_device`]): nothing else is touched, so no file system of somebody's can be asked and
//! hang. After opening, its seals, size and header are checked.
//!
//! Invariant: what passes has the size it must have, and keeps it; reading it allocates no memory
//! and cannot block on the process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{HeaderError, main_header};
use crate::layout::{MAIN_SIZE, SEGMENT_SIZE};

/// `include/uapi/linux/magic.h`
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Why a file is not touched.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{call} failed: {source}")]
    Call { call: &'static str, source: io::Error },
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

/// Opens a file through `/proc/PID/map_files` or `/proc/PID/fd`. A lease would make the opening
/// wait for its holder (fcntl(2), "Leases"): `O_NONBLOCK` refuses instead.
pub fn open(path: &Path) -> Result<File, Refused> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => Refused::Leased,
            _ => Refused::Call { call: "open", source },
        })
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

/// Asks for seals first: any other file system refuses that without being asked itself.
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
/// shows them are `libc::major` and `libc::minor` of it.
pub fn memfd_device() -> io::Result<u64> {
    let name = c"strata-device";
    // SAFETY: a C string that outlives the call.
    let descriptor =
        unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    match i32::try_from(descriptor) {
        // SAFETY: a descriptor that the kernel just made, and nobody else knows.
        Ok(descriptor) if descriptor >= 0 => unsafe { File::from_raw_fd(descriptor) },
        _ => return Err(io::Error::last_os_error()),
    }
    .metadata()
    .map(|metadata| metadata.dev())
}
