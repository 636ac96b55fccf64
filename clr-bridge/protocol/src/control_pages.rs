//! The pages that an owner and readers with wishes write.
//!
//! They write into memory of a process that may do anything with it. `pwrite` would wait for
//! the file's inode lock, which the process can hold for as long as it likes: by a `write` of its
//! own from memory that a FUSE server or userfaultfd provides (mm/filemap.c,
//! `generic_perform_write` faults the source in under the lock that `shmem_file_write_iter` took).
//! A store through a mapping needs no such lock, but a fault that the kernel cannot serve is a
//! signal. So the control page is mapped and written by `process_vm_writev` to this very process:
//! the kernel does the copying, and what it cannot do is an error.
//!
//! Invariant: nothing here waits for the process or faults.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::doorbell;
use crate::layout::{CONTROL, STATUS};

/// The pages that the owner and readers with wishes write, mapped.
#[derive(Debug)]
pub(crate) struct ControlPages {
    start: NonNull<u8>,
}

const PAGES: usize = STATUS - CONTROL;

// SAFETY: only the kernel reads and writes through the address.
unsafe impl Send for ControlPages {}
// SAFETY: as above.
unsafe impl Sync for ControlPages {}

impl ControlPages {
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: a new mapping where the kernel finds room; nothing existing is replaced.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                CONTROL as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).map(|start| Self { start }).ok_or_else(io::Error::last_os_error)
    }

    /// Writes at an offset of the file.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let inside = offset.checked_sub(CONTROL).filter(|at| at + bytes.len() <= PAGES);
        let inside = inside.ok_or(io::ErrorKind::InvalidInput)?;
        let from = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let to = libc::iovec {
            iov_base: self.start.as_ptr().wrapping_add(inside).cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the kernel checks both ranges; `to` lies in our own mapping by the check above,
        // of which there are no references.
        let written = unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0)
        };
        match usize::try_from(written) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Wakes the threads that sleep on the word at an offset of the file.
    pub(crate) fn wake(&self, offset: usize) {
        if let Some(inside) = offset.checked_sub(CONTROL).filter(|at| at + 4 <= PAGES) {
            doorbell::wake(self.start.as_ptr().wrapping_add(inside).cast());
        }
    }
}

impl Drop for ControlPages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, not used afterwards.
        unsafe { libc::munmap(self.start.as_ptr().cast(), PAGES) };
    }
}
