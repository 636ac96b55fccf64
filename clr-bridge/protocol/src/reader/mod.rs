//! Reading the shared memory of a process that may lie.
//!
//! Everything comes through [`ReadAt`], in bounded copies that are checked after copying; nothing
//! is mapped, so nothing can fault. [`Reader`] tails the log, [`ring::RingReader`] takes events
//! from the ring, [`mod@file`] checks whether a file may be read at all.
//!
//! Invariant: a call does work bounded by its budget, whatever it reads. The same bytes give the
//! same records. What a lie costs is counted in [`ReaderLosses`], and is that process's own data.

pub mod file;
mod log;
pub mod ring;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{Ordering, fence};

pub use self::log::{Consumer, Entry, Poll, Progress, Reader};
use crate::layout::{MAIN_MAGIC, MAX_SEGMENTS, MainHeader, SEGMENT_MAGIC, SegmentHeader, VERSION};

/// Bytes that can be read at an offset.
pub trait ReadAt {
    /// Copies up to `buffer.len()` bytes; fewer only at the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// What is read after this is at least as new as what was read before.
    fn settle(&self) {
        fence(Ordering::Acquire);
    }
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(self, rest, offset + done as u64) {
                Ok(0) => break,
                Ok(length) => done += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
        let from = from.unwrap_or_default();
        let length = from.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..length), from.get(..length)) {
            to.copy_from_slice(from);
        }
        Ok(length)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.as_slice().read_at(offset, buffer)
    }
}

impl<R: ReadAt + ?Sized> ReadAt for &R {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buffer)
    }

    fn settle(&self) {
        (**self).settle();
    }
}

impl<R: ReadAt + ?Sized> ReadAt for std::sync::Arc<R> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buffer)
    }

    fn settle(&self) {
        (**self).settle();
    }
}

/// Reads exactly `N` bytes.
fn read_array<const N: usize>(from: &impl ReadAt, offset: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    if from.read_at(offset, &mut bytes)? < N {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Why a file is not the shared memory that this version reads.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("the header cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("this is not memory of strata's CLR bridge")]
    NotOurs,
    #[error(
        "the process runs a newer bridge (memory layout {found}; this strata reads {VERSION}): \
         use the newer strata, or restart the process"
    )]
    Newer { found: u32 },
    #[error(
        "the process still runs an older bridge (memory layout {found}; this strata reads \
         {VERSION}): restart the process"
    )]
    Older { found: u32 },
    #[error("the header contradicts its own version")]
    Contradiction,
    #[error("the segment belongs to another main file")]
    AnotherMain,
    #[error("segment {0} is there already")]
    Twice(u32),
}

/// Checks the start of a main file and returns its id.
fn main_header(main: &impl ReadAt) -> Result<[u8; 16], HeaderError> {
    let header = MainHeader::from_bytes(&read_array(main, 0)?);
    check_version(header.magic == MAIN_MAGIC, header.version)?;
    if header != MainHeader::new(header.id) {
        return Err(HeaderError::Contradiction);
    }
    Ok(header.id)
}

/// Checks the start of a segment of the main file with this id.
fn segment_header(segment: &impl ReadAt, id: &[u8; 16]) -> Result<SegmentHeader, HeaderError> {
    let header = SegmentHeader::from_bytes(&read_array(segment, 0)?);
    check_version(header.magic == SEGMENT_MAGIC, header.version)?;
    if header.id != *id {
        return Err(HeaderError::AnotherMain);
    }
    let expected = SegmentHeader {
        tail: header.tail,
        stamp: header.stamp,
        order: header.order,
        ..SegmentHeader::new(*id, header.number)
    };
    if header != expected || header.number as usize >= MAX_SEGMENTS {
        return Err(HeaderError::Contradiction);
    }
    Ok(header)
}

fn check_version(ours: bool, found: u32) -> Result<(), HeaderError> {
    match found {
        _ if !ours => Err(HeaderError::NotOurs),
        VERSION => Ok(()),
        _ if found > VERSION => Err(HeaderError::Newer { found }),
        _ => Err(HeaderError::Older { found }),
    }
}

/// The budget of one call. One record or event more than fits may be read, so that every call makes
/// progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub records: usize,
    /// Bytes copied from the process's memory.
    pub bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { records: 4096, bytes: 1 << 20 }
    }
}

/// Limits on the cost of one process over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Records read at once: those of a large program's start.
    pub records: u64,
    /// Records read in a second from then on. Further ones wait in the log.
    pub per_second: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { records: 4 << 20, per_second: 20_000 }
    }
}

/// Losses of a process's data caused by its memory's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReaderLosses {
    /// Records with invalid fields.
    pub malformed: u64,
    /// Records of a kind unknown to this version.
    pub unknown_kind: u64,
    /// Records that were begun and never finished.
    pub unfinished: u64,
    /// Records that were finished so late that others came before them. Not lost.
    pub late: u64,
    /// Segments abandoned because their contents are not a valid log.
    pub broken_segments: u64,
    /// How often segments had been given back that were not read yet: what has ended meanwhile is
    /// lost.
    pub gaps: u64,
    /// The process has written more records than it may: they are read late.
    pub over_limit: bool,
    /// Events with invalid bytes.
    pub malformed_events: u64,
    /// How often the ring was invalid and restarted.
    pub ring_restarts: u64,
}
