//! A target's file, as the parsers in a worker see it: read by `pread`, never mapped.
//!
//! A mapped file that shrinks kills its reader (SIGBUS); with `pread` it gives a short read, which
//! is an error here. Small reads are served from one window, so that a parser which reads headers
//! field by field does not pay a system call for each. What one job may read is bounded, so that a
//! sparse file of terabytes costs seconds at most, whatever its headers claim.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Stat;

use crate::identity::FileIdentity;

/// Reads up to this size go through the window.
const WINDOW: usize = 16 << 10;

#[derive(Debug)]
pub struct TargetFile {
    file: OwnedFd,
    size: u64,
    /// Changes with the content; unlike the change time not when the file is merely deleted.
    modified: (i64, u64),
    /// Bytes that may still be read.
    budget: Cell<u64>,
    window: RefCell<Window>,
}

#[derive(Debug, Default)]
struct Window {
    offset: u64,
    bytes: Vec<u8>,
}

pub(crate) fn identity_of_stat(stat: &Stat) -> FileIdentity {
    FileIdentity {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        ctime_ns: stat
            .st_ctime
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
    }
}

fn modification_of_stat(stat: &Stat) -> (i64, u64) {
    (stat.st_mtime, stat.st_mtime_nsec)
}

impl TargetFile {
    /// A file of which at most `budget` bytes are read, counting repeated reads.
    pub fn new(file: OwnedFd, budget: u64) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&file)?;
        let size = identity_of_stat(&stat).size;
        let modified = modification_of_stat(&stat);
        Ok(Self { file, size, modified, budget: Cell::new(budget), window: RefCell::default() })
    }

    /// The size when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether the content is unchanged: reads across a change mix two files. A file whose owner
    /// hides the change harms its own tables only.
    pub fn is_unchanged(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|stat| {
            identity_of_stat(&stat).size == self.size
                && modification_of_stat(&stat) == self.modified
        })
    }

    /// Whether there is more of it now.
    pub fn has_grown(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|stat| identity_of_stat(&stat).size > self.size)
    }

    /// Fills all of `buffer` from `offset` on; a file that ends earlier is an error.
    pub fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(buffer.len() as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        if end > self.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if buffer.len() > WINDOW / 2 {
            return self.read_through(offset, buffer);
        }
        let mut window = self.window.borrow_mut();
        if !window.fill(offset, buffer) {
            let length = self.size.saturating_sub(offset).min(WINDOW as u64);
            window.bytes.resize(length as usize, 0);
            window.offset = offset;
            let outcome = self.read_through(offset, &mut window.bytes);
            if outcome.is_err() {
                window.bytes.clear();
            }
            outcome?;
            if !window.fill(offset, buffer) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    fn read_through(&self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        let left = self.budget.get().checked_sub(buffer.len() as u64);
        let left = left
            .ok_or_else(|| io::Error::other("more would have to be read of it than it is worth"))?;
        self.budget.set(left);
        while !buffer.is_empty() {
            match rustix::io::pread(&self.file, &mut *buffer, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    buffer = buffer.get_mut(length..).unwrap_or_default();
                    offset = offset.saturating_add(length as u64);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

impl strata_bytes::ReadAt for TargetFile {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.size.saturating_sub(offset);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.read_exact_at(offset, buffer.get_mut(..length).unwrap_or_default())?;
        Ok(length)
    }
}

impl Window {
    /// Fills `buffer` if the window holds all of it.
    fn fill(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let start = offset.checked_sub(self.offset).and_then(|start| usize::try_from(start).ok());
        let end = start.and_then(|start| start.checked_add(buffer.len()));
        match start.zip(end).and_then(|(start, end)| self.bytes.get(start..end)) {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_that_shrinks_while_read_is_a_clean_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        let target = TargetFile::new(file.try_clone().unwrap().into(), u64::MAX).unwrap();
        let mut buffer = vec![0; 100_000];
        target.read_exact_at(500_000, &mut buffer).unwrap();
        assert!(target.is_unchanged());
        file.set_len(1000).unwrap();
        assert_eq!(
            target.read_exact_at(500_000, &mut buffer).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(
            target.read_exact_at(500_000, &mut buffer[..8]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert!(!target.is_unchanged());
    }

    #[test]
    fn small_reads_see_what_large_reads_see() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        file.write_all(&content).unwrap();
        let target = TargetFile::new(file.into(), u64::MAX).unwrap();
        for offset in (0..99_990).step_by(777).chain((0..99_990).rev().step_by(5003)) {
            let mut buffer = [0; 9];
            target.read_exact_at(offset as u64, &mut buffer).unwrap();
            assert_eq!(buffer, content[offset..offset + 9]);
        }
        assert!(target.read_exact_at(99_995, &mut [0; 9]).is_err());
        assert!(target.read_exact_at(u64::MAX, &mut [0; 9]).is_err());
        target.read_exact_at(100_000, &mut []).unwrap();
    }

    #[test]
    fn no_more_is_read_than_the_budget_allows() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 << 30).unwrap();
        let target = TargetFile::new(file.into(), 1 << 20).unwrap();
        let mut buffer = vec![0; 400_000];
        target.read_exact_at(0, &mut buffer).unwrap();
        target.read_exact_at(5 << 30, &mut buffer).unwrap();
        assert_eq!(
            target.read_exact_at(9 << 30, &mut buffer).unwrap_err().kind(),
            io::ErrorKind::Other
        );
    }
}
