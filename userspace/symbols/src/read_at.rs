//! How files are read: at an offset, into memory of our own.
//!
//! Files belong to processes that may be hostile. A mapped file that shrinks kills its reader with
//! SIGBUS, so files are never mapped: a short read is an error like any other.
//!
//! Invariant: no read is larger than the file is long *and* than the limit its caller names.

use crate::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Something that is read at offsets.
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

impl ReadAt for &[u8] {
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
        ReadAt::len(&self.as_slice())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.as_slice().read_at(offset, buffer)
    }
}

/// An open file, read with `pread`.
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

/// Reads exactly `length` bytes at `offset`, of which at most `limit` are allowed.
pub(crate) fn read_bytes(
    file: &dyn ReadAt,
    what: &'static str,
    offset: u64,
    length: u64,
    limit: u64,
) -> Result<Vec<u8>, Error> {
    if length > limit {
        return Err(Error::TooLarge { what, bytes: length, limit });
    }
    if offset.checked_add(length).is_none_or(|end| end > file.len()) {
        return Err(Error::Cut { what });
    }
    let length = usize::try_from(length).map_err(|_| Error::Cut { what })?;
    let mut bytes = vec![0; length];
    if read_some(file, what, offset, &mut bytes)? < length {
        return Err(Error::Cut { what });
    }
    Ok(bytes)
}

/// Fills `buffer` as far as the file goes and returns how much was read.
pub(crate) fn read_some(
    file: &dyn ReadAt,
    what: &'static str,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, Error> {
    let mut filled = 0_usize;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
        match file.read_at(at, rest) {
            Ok(0) => break,
            Ok(count) => filled = filled.saturating_add(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::Io { what, source }),
        }
    }
    Ok(filled.min(buffer.len()))
}
