//! How a file is read: by position, a part at a time.
//!
//! Files belong to hostile processes: a mapped file that shrinks kills its reader (SIGBUS), so
//! nothing here maps. Invariant: a part is read whole, or it is an error.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Something that can be read by position: a file, or bytes in memory.
pub trait ReadAt {
    /// Its size in bytes.
    fn len(&self) -> u64;

    /// Reads at `offset`; 0 means that there is nothing more.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ReadAt for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|start| self.get(start..));
        let rest = rest.unwrap_or_default();
        let count = rest.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), rest.get(..count)) {
            to.copy_from_slice(from);
        }
        Ok(count)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        ReadAt::read_at(self.as_slice(), offset, buffer)
    }
}

/// An open file. What it grows by after it was opened is not seen.
#[derive(Debug)]
pub struct FileReader {
    file: File,
    size: u64,
}

impl FileReader {
    pub fn new(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self { file, size })
    }
}

impl ReadAt for FileReader {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
}

/// A range of something that can be read, as if it were all there is.
#[derive(Debug)]
pub struct Part<'a, R: ?Sized> {
    source: &'a R,
    start: u64,
    size: u64,
}

impl<'a, R: ReadAt + ?Sized> Part<'a, R> {
    /// As much of the range as there is.
    pub fn new(source: &'a R, range: Range<u64>) -> Self {
        let end = range.end.min(source.len());
        Self { source, start: range.start, size: end.saturating_sub(range.start) }
    }
}

impl<R: ReadAt + ?Sized> ReadAt for Part<'_, R> {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = rest.min(buffer.len());
        match (self.start.checked_add(offset), buffer.get_mut(..count)) {
            (Some(at), Some(buffer)) if count != 0 => self.source.read_at(at, buffer),
            _ => Ok(0),
        }
    }
}

/// Fills all of `buffer`, or fails.
pub(crate) fn read_whole<R: ReadAt + ?Sized>(
    source: &R,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset.checked_add(filled as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        match source.read_at(at, rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled = filled.saturating_add(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
