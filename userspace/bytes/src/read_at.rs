//! How files are read: at an offset, into memory of our own.
//!
//! Files belong to processes that may be hostile. A mapped file that shrinks kills its reader with
//! SIGBUS, so files are never mapped: a short read is an error like any other.
//!
//! Invariant: no read is larger than the file is long *and* than the limit its caller names.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::vec;
use std::vec::Vec;

/// Something that is read at offsets: a file, a part of one, or bytes in memory.
pub trait ReadAt {
    /// The length in bytes, as far as it is known.
    fn len(&self) -> u64;

    /// Reads at `offset`; 0 means that there is nothing more.
    ///
    /// # Errors
    /// Those of the medium.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ReadAt for [u8] {
    fn len(&self) -> u64 {
        u64::try_from(<[u8]>::len(self)).unwrap_or(u64::MAX)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest =
            usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), rest.get(..count)) {
            to.copy_from_slice(from);
        }
        Ok(count)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        ReadAt::len(self.as_slice())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        ReadAt::read_at(self.as_slice(), offset, buffer)
    }
}

impl<R: ReadAt + ?Sized> ReadAt for &R {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buffer)
    }
}

/// An open file, read with `pread`. Its length is that of when it was opened.
#[derive(Debug)]
pub struct FileAt {
    file: File,
    length: u64,
}

impl FileAt {
    /// # Errors
    /// When the file's length cannot be asked for.
    pub fn new(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self { file, length })
    }
}

impl ReadAt for FileAt {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
}

/// A part of a file as a file of its own, such as an assembly inside a bundle. What lies beyond the
/// end of the file is not there.
#[derive(Debug)]
pub struct Part<'a, R: ?Sized> {
    source: &'a R,
    offset: u64,
    length: u64,
}

impl<'a, R: ReadAt + ?Sized> Part<'a, R> {
    #[must_use]
    pub fn new(source: &'a R, offset: u64, length: u64) -> Self {
        let length = length.min(source.len().saturating_sub(offset));
        Self { source, offset, length }
    }
}

impl<R: ReadAt + ?Sized> ReadAt for Part<'_, R> {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = buffer.len().min(left);
        match (self.offset.checked_add(offset), buffer.get_mut(..count)) {
            (Some(at), Some(buffer)) if count != 0 => self.source.read_at(at, buffer),
            _ => Ok(0),
        }
    }
}

/// Why a part of a file could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// More than the caller's limit.
    TooLarge,
    /// The file does not have it.
    Cut,
    Io(io::Error),
}

/// Reads exactly `length` bytes at `offset`, of which at most `limit` are allowed. Nothing is
/// allocated for a part that the file does not have.
///
/// # Errors
/// When it is too long, not there, or not readable.
pub fn read_range<R: ReadAt + ?Sized>(
    source: &R,
    offset: u64,
    length: u64,
    limit: u64,
) -> Result<Vec<u8>, ReadError> {
    if length > limit {
        return Err(ReadError::TooLarge);
    }
    if offset.checked_add(length).is_none_or(|end| end > source.len()) {
        return Err(ReadError::Cut);
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| ReadError::Cut)?];
    if fill(source, offset, &mut bytes).map_err(ReadError::Io)? < bytes.len() {
        return Err(ReadError::Cut);
    }
    Ok(bytes)
}

/// Fills `buffer` as far as the file goes and returns how much was read.
///
/// # Errors
/// Those of the medium; interrupted reads are tried again.
pub fn fill<R: ReadAt + ?Sized>(source: &R, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0_usize;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
        match source.read_at(at, rest) {
            Ok(0) => break,
            Ok(count) => filled = filled.saturating_add(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled.min(buffer.len()))
}

/// Fills all of `buffer`.
///
/// # Errors
/// Those of the medium, and `UnexpectedEof` when the file ends before.
pub fn read_whole<R: ReadAt + ?Sized>(
    source: &R,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    if fill(source, offset, buffer)? < buffer.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_shows_nothing_around_itself() {
        let file = b"before[inside]after".to_vec();
        let part = Part::new(&file, 6, 8);
        assert_eq!(read_range(&part, 0, 8, 8).unwrap(), b"[inside]");
        assert_eq!(read_range(&part, 1, 6, 8).unwrap(), b"inside");
        assert!(matches!(read_range(&part, 1, 8, 8), Err(ReadError::Cut)));
        assert!(matches!(read_range(&part, 0, 8, 7), Err(ReadError::TooLarge)));
        assert!(matches!(read_range(&part, u64::MAX, 1, 7), Err(ReadError::Cut)));
        assert_eq!(Part::new(&file, 14, u64::MAX).len(), 5);
        assert!(Part::new(&file, u64::MAX, u64::MAX).is_empty());
        assert_eq!(Part::new(&file, 6, 8).read_at(u64::MAX, &mut [0; 4]).unwrap(), 0);
    }

    #[test]
    fn a_file_that_lies_about_its_length_is_cut() {
        struct Short;
        impl ReadAt for Short {
            fn len(&self) -> u64 {
                100
            }
            fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
                ReadAt::read_at(&[1_u8; 10][..], offset, buffer)
            }
        }
        assert!(matches!(read_range(&Short, 0, 100, 100), Err(ReadError::Cut)));
        assert_eq!(fill(&Short, 4, &mut [0; 20]).unwrap(), 6);
        assert!(read_whole(&Short, 4, &mut [0; 20]).is_err());
    }
}
