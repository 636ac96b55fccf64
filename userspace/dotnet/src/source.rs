//! Reading a file, or a part of one, by offset.
//!
//! Invariant: what is read is no longer than its source *and* than the limit its caller names.

use crate::Error;
use std::io;
use strata_symbols::ReadAt;

/// A part of a file as a file of its own: an assembly inside a bundle. What lies beyond the end of
/// the file is not there.
pub struct Part<'a> {
    file: &'a dyn ReadAt,
    offset: u64,
    length: u64,
}

impl<'a> Part<'a> {
    #[must_use]
    pub fn new(file: &'a dyn ReadAt, offset: u64, length: u64) -> Self {
        let length = length.min(file.len().saturating_sub(offset));
        Self { file, offset, length }
    }
}

impl ReadAt for Part<'_> {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(at) = self.offset.checked_add(offset) else { return Ok(0) };
        let length = buffer.len().min(left);
        self.file.read_at(at, buffer.get_mut(..length).unwrap_or_default())
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
    if offset.checked_add(length).is_none_or(|end| end > file.len()) {
        return Err(Error::Cut { what });
    }
    if length > limit {
        return Err(Error::TooLarge { what, bytes: length, limit });
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| Error::Cut { what })?];
    if read_some(file, what, offset, &mut bytes)? < bytes.len() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_shows_nothing_around_itself() {
        let file = b"before[inside]after".to_vec();
        let part = Part::new(&file, 6, 8);
        assert_eq!(read_bytes(&part, "part", 0, 8, 8).unwrap(), b"[inside]");
        assert_eq!(read_bytes(&part, "part", 1, 6, 8).unwrap(), b"inside");
        assert!(matches!(read_bytes(&part, "part", 1, 8, 8), Err(Error::Cut { .. })));
        assert!(matches!(read_bytes(&part, "part", 0, 8, 7), Err(Error::TooLarge { .. })));
        assert_eq!(Part::new(&file, 14, u64::MAX).len(), 5);
        assert!(Part::new(&file, u64::MAX, u64::MAX).is_empty());
        assert_eq!(Part::new(&file, 6, 8).read_at(u64::MAX, &mut [0; 4]).unwrap(), 0);
    }
}
