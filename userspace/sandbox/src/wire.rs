//! The bytes of a message: little-endian integers and length-prefixed byte strings.
//!
//! Both ends are this very executable, so there is nothing to negotiate; but one end may have been
//! taken over by the file it parsed. Invariant: [`Decoder`] never panics, never reads past its
//! input, and a length it reads never allocates more than the input is long.

use strata_bytes::Cursor;

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("the message ends too early")]
    Truncated,
    #[error("the message has bytes after its end")]
    TrailingBytes,
    #[error("the message holds a value that is not allowed: {0}")]
    Invalid(&'static str),
}

#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A byte string of at most 4 GiB; anything longer is truncated.
    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
        self.u32(length);
        self.bytes.extend(value.iter().take(length as usize));
        self
    }

    pub fn optional_bytes(&mut self, value: Option<&[u8]>) -> &mut Self {
        match value {
            None => self.u8(0),
            Some(value) => self.u8(1).bytes(value),
        }
    }

    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    rest: Cursor<'a>,
}

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: Cursor::new(bytes) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        self.rest.take(length).ok_or(WireError::Truncated)
    }

    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.rest.u8().ok_or(WireError::Truncated)
    }

    pub fn bool(&mut self) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Invalid("a flag")),
        }
    }

    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.rest.u32().ok_or(WireError::Truncated)
    }

    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.rest.u64().ok_or(WireError::Truncated)
    }

    pub fn i64(&mut self) -> Result<i64, WireError> {
        self.rest.i64().ok_or(WireError::Truncated)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    pub fn optional_bytes(&mut self) -> Result<Option<&'a [u8]>, WireError> {
        if self.bool()? { self.bytes().map(Some) } else { Ok(None) }
    }

    /// A byte string that is text; what is not UTF-8 is replaced.
    pub fn text(&mut self) -> Result<String, WireError> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// How many elements follow, where each takes at least `smallest` bytes: a count that the
    /// rest of the message cannot hold is refused before anything is allocated for it.
    pub fn count(&mut self, smallest: usize) -> Result<usize, WireError> {
        let count = self.u32()? as usize;
        match count.checked_mul(smallest.max(1)) {
            Some(needed) if needed <= self.rest.rest().len() => Ok(count),
            _ => Err(WireError::Truncated),
        }
    }

    pub fn finish(self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::TrailingBytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back() {
        let mut encoder = Encoder::new();
        encoder.u8(7).u32(1 << 20).u64(u64::MAX).i64(-1).bytes(b"abc").optional_bytes(None);
        let bytes = encoder.finish();
        let mut decoder = Decoder::new(&bytes);
        assert_eq!(decoder.u8(), Ok(7));
        assert_eq!(decoder.u32(), Ok(1 << 20));
        assert_eq!(decoder.u64(), Ok(u64::MAX));
        assert_eq!(decoder.i64(), Ok(-1));
        assert_eq!(decoder.bytes(), Ok(&b"abc"[..]));
        assert_eq!(decoder.optional_bytes(), Ok(None));
        assert_eq!(decoder.finish(), Ok(()));
    }

    #[test]
    fn a_length_beyond_the_message_is_refused() {
        let bytes = [0xff, 0xff, 0xff, 0xff, 1, 2, 3];
        assert_eq!(Decoder::new(&bytes).bytes(), Err(WireError::Truncated));
        assert_eq!(Decoder::new(&bytes).count(1), Err(WireError::Truncated));
        assert_eq!(Decoder::new(&bytes).count(0), Err(WireError::Truncated));
    }
}
