//! Opens one file: found with `O_PATH`, checked, and only then opened for reading.
//!
//! `O_PATH` has no side effects: a FIFO does not block, a device is not activated, a FUSE server is
//! not called. The descriptor pins the file, so what is opened through `/proc/self/fd` afterwards
//! is what was checked.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, SealFlags, Statx, StatxFlags, fcntl_add_seals,
    fstatfs, open, openat, openat2, statx,
};
use rustix::io::Errno;

use super::filesystems::{Manners, Mounts};
use super::process::HeldProcesses;
use super::{Lane, Opened, Refused, refused};
use crate::error::Refusal;
use crate::identity::{FileIdentity, IdentityTrust, trust_of_filesystem};
use crate::protocol::{Locator, OpenedFacts, ProcessRef};

/// The largest file that is copied from a filesystem that may hang.
pub(crate) const MAX_COPY: u64 = 64 << 20;
/// A server that is merely slow is no reason to call its files, and their process, hung.
const COPYING: Duration = Duration::from_secs(3);
/// How often a walk is tried again when a rename raced with it (openat2(2), EAGAIN).
const RACED_WALKS: usize = 8;

/// Opens files by locator, with state kept between requests.
pub struct Resolver {
    lane: Lane,
    processes: HeldProcesses,
    mounts: Mounts,
    /// Of the request that is served: see [`OpenRequest::most_copied`].
    most_copied: Option<u64>,
}

impl Resolver {
    pub fn new(lane: Lane) -> Self {
        Self {
            lane,
            processes: HeldProcesses::default(),
            mounts: Mounts::default(),
            most_copied: None,
        }
    }

    pub fn open(&mut self, locator: &Locator, most_copied: Option<u64>) -> Result<Opened, Refused> {
        self.most_copied = most_copied;
        let first = self.try_open(locator);
        match (first, locator.process()) {
            (Err((Refusal::ProcessGone | Refusal::NotFound, _)), Some(process))
                if process.start_time.is_none() =>
            {
                // The held descriptor may be of an earlier process with that pid.
                self.processes.forget(process);
                self.try_open(locator)
            }
            (first, _) => first,
        }
    }

    fn try_open(&mut self, locator: &Locator) -> Result<Opened, Refused> {
        match locator {
            Locator::Mapped { process, start, end } => self.open_mapped(*process, *start, *end),
            Locator::InRoot { process, path } => {
                let directory = self.processes.directory(*process)?;
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let root =
                    openat(directory, "root", flags, Mode::empty()).map_err(
                        |errno| match errno {
                            Errno::NOENT => (Refusal::ProcessGone, errno.raw_os_error()),
                            errno => refused(errno),
                        },
                    )?;
                self.open_below(root.as_fd(), path, Some(*process))
            }
            Locator::Host { path } => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let root = open("/", flags, Mode::empty()).map_err(refused)?;
                self.open_below(root.as_fd(), path, None)
            }
        }
    }

    fn open_mapped(
        &mut self,
        process: ProcessRef,
        start: u64,
        end: u64,
    ) -> Result<Opened, Refused> {
        let directory = self.processes.directory(process)?;
        let name = format!("map_files/{start:x}-{end:x}");
        let found = openat(directory, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(refused)?;
        self.open_found(found, Some(process))
    }

    fn open_below(
        &mut self,
        root: BorrowedFd<'_>,
        path: &Path,
        process: Option<ProcessRef>,
    ) -> Result<Opened, Refused> {
        let path =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| (Refusal::UnsafePath, 0))?;
        let found = match self.lane {
            Lane::Slow => walk(root, &path, ResolveFlags::empty()).map_err(refused)?,
            Lane::Fast { .. } => {
                // What the kernel has in its cache is found without asking the file system's
                // server.
                match walk_once(root, &path, ResolveFlags::CACHED) {
                    Ok(found) => found,
                    Err(Errno::AGAIN) => {
                        let looked_at = look(root)?;
                        if !self.is_fast(&looked_at, process) {
                            return Err((Refusal::SlowFilesystem, 0));
                        }
                        walk(root, &path, ResolveFlags::NO_XDEV).map_err(|errno| match errno {
                            Errno::XDEV => (Refusal::SlowFilesystem, 0),
                            errno => refused(errno),
                        })?
                    }
                    Err(errno) => return Err(refused(errno)),
                }
            }
        };
        self.open_found(found, process)
    }

    /// Whether this lane may open files on the filesystem of this file.
    fn is_fast(&mut self, looked_at: &Statx, process: Option<ProcessRef>) -> bool {
        if looked_at.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return false;
        }
        let directory = process.and_then(|process| self.processes.directory(process).ok());
        match self.mounts.manners(looked_at.stx_mnt_id, directory.map(AsFd::as_fd)) {
            Manners::Local => true,
            Manners::Overlay => self.lane == Lane::Fast { wary: false },
            Manners::MayHang => false,
        }
    }

    fn open_found(
        &mut self,
        found: OwnedFd,
        process: Option<ProcessRef>,
    ) -> Result<Opened, Refused> {
        let looked_at = look(found.as_fd())?;
        if FileType::from_raw_mode(looked_at.stx_mode.into()) != FileType::RegularFile {
            return Err((Refusal::NotRegular, 0));
        }
        if self.lane != Lane::Slow && !self.is_fast(&looked_at, process) {
            return Err((Refusal::SlowFilesystem, 0));
        }
        // From here on a filesystem may hang the opener.
        let filesystem_magic = fstatfs(&found).map_err(refused)?.f_type as u64;
        let trust = trust_of_filesystem(filesystem_magic);
        if self.lane != Lane::Slow && trust == IdentityTrust::WithinProcess {
            return Err((Refusal::SlowFilesystem, 0));
        }
        let file = reopen(found.as_fd())?;
        let (identity, deleted, owner) = identify(file.as_fd())?;
        let facts = OpenedFacts { identity, filesystem_magic, deleted, owner, copied: false };
        if trust == IdentityTrust::WithinProcess {
            let copy = match self.most_copied {
                Some(_) if identity.size > MAX_COPY => return Err((Refusal::TooLarge, 0)),
                Some(most) if identity.size > most => return Err((Refusal::NotCopied, 0)),
                Some(_) => copy_of(file.as_fd(), identity.size)?,
                None => copy_of(file.as_fd(), 0)?,
            };
            return Ok((copy, OpenedFacts { copied: true, ..facts }));
        }
        Ok((file, facts))
    }
}

fn walk_once(root: BorrowedFd<'_>, path: &CString, more: ResolveFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | more;
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn walk(root: BorrowedFd<'_>, path: &CString, more: ResolveFlags) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        match walk_once(root, path, more) {
            Err(Errno::AGAIN | Errno::INTR) if tries < RACED_WALKS => tries += 1,
            outcome => return outcome,
        }
    }
}

/// A descriptor's type, from what the kernel holds already: no file system is asked.
fn look(found: BorrowedFd<'_>) -> Result<Statx, Refused> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let looked_at =
        statx(found, "", flags, StatxFlags::TYPE | StatxFlags::MNT_ID).map_err(refused)?;
    if looked_at.stx_mask & StatxFlags::TYPE.bits() == 0 {
        return Err((Refusal::Other, 0));
    }
    Ok(looked_at)
}

fn reopen(found: BorrowedFd<'_>) -> Result<OwnedFd, Refused> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    open(path, flags, Mode::empty()).map_err(|errno| match errno {
        // Our own /proc/self/fd exists; ENOENT is the filesystem's answer about the file.
        Errno::NOENT => (Refusal::NotFound, errno.raw_os_error()),
        errno => refused(errno),
    })
}

fn identify(file: BorrowedFd<'_>) -> Result<(FileIdentity, bool, u32), Refused> {
    let stat = rustix::fs::fstat(file).map_err(refused)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err((Refusal::NotRegular, 0));
    }
    Ok((crate::target_file::identity_of_stat(&stat), stat.st_nlink == 0, stat.st_uid))
}

/// The content in a sealed memory file, so that reading it can never block.
fn copy_of(file: BorrowedFd<'_>, size: u64) -> Result<OwnedFd, Refused> {
    let until = Instant::now() + COPYING;
    let other = |error: io::Error| (Refusal::Other, error.raw_os_error().unwrap_or(0));
    let copy = crate::channel::memory_file("strata-copy").map_err(other)?;
    let mut chunk = vec![0; 256 << 10];
    let mut offset: u64 = 0;
    while offset < size {
        let wanted = usize::try_from(size - offset).unwrap_or(usize::MAX).min(chunk.len());
        let Some(buffer) = chunk.get_mut(..wanted) else { break };
        if Instant::now() >= until {
            return Err((Refusal::NotCopied, 0));
        }
        let length = rustix::io::pread(file, &mut *buffer, offset).map_err(refused)?;
        let read =
            buffer.get(..length).filter(|read| !read.is_empty()).ok_or((Refusal::Changed, 0))?;
        let mut done = 0;
        while let Some(left) = read.get(done..).filter(|left| !left.is_empty()) {
            done += rustix::io::write(&copy, left).map_err(|errno| other(errno.into()))?;
        }
        offset += length as u64;
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&copy, seals).map_err(|errno| other(errno.into()))?;
    Ok(copy)
}
