//! A position in bytes that only moves forward.

/// What is left to read. A read that the bytes cannot satisfy is `None` and moves nothing.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*head)
    }

    /// Little-endian, as are all numbers here.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    #[inline]
    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;

    #[test]
    fn a_read_beyond_the_end_is_none_and_moves_nothing() {
        let mut cursor = Cursor::new(&[1, 2, 3]);
        assert_eq!(cursor.u32(), None);
        assert_eq!(cursor.u16(), Some(0x0201));
        assert_eq!(cursor.take(2), None);
        assert_eq!(cursor.take(usize::MAX), None);
        assert_eq!(cursor.u8(), Some(3));
        assert!(cursor.is_empty() && cursor.u8().is_none());
        assert_eq!(cursor.take(0), Some(&[][..]));
    }
}
