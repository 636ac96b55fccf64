//! Parts of files, and errors that name them.
//!
//! Files are read, never mapped (`strata_bytes::ReadAt`).

use strata_bytes::{ReadAt, ReadError, fill, read_range};

use crate::Error;

/// Reads exactly `length` bytes at `offset`, of which at most `limit` are allowed.
pub(crate) fn read_bytes(
    file: &dyn ReadAt,
    what: &'static str,
    offset: u64,
    length: u64,
    limit: u64,
) -> Result<Vec<u8>, Error> {
    read_range(file, offset, length, limit).map_err(|error| match error {
        ReadError::TooLarge => Error::TooLarge { what, bytes: length, limit },
        ReadError::Cut => Error::Cut { what },
        ReadError::Io(source) => Error::Io { what, source },
    })
}

/// Fills `buffer` as far as the file goes and returns how much was read.
pub(crate) fn read_some(
    file: &dyn ReadAt,
    what: &'static str,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, Error> {
    fill(file, offset, buffer).map_err(|source| Error::Io { what, source })
}
