//! Numbers and texts as bytes: LEB128 numbers, zigzag for those with a sign, texts by length.
//!
//! Invariant: reading never panics, and never promises more items than there are bytes left.

use crate::error::Damage;

pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// What is left to read.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'b> {
    bytes: &'b [u8],
}

impl<'b> Cursor<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn number(&mut self) -> Result<u64, Damage> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.bytes.split_first().ok_or(Damage("it ends early"))?;
            self.bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damage("a number is too long"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Damage> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn small(&mut self) -> Result<u32, Damage> {
        u32::try_from(self.number()?).map_err(|_| Damage("a number is too large"))
    }

    /// How many things follow, each of which takes a byte at least.
    pub(crate) fn count(&mut self) -> Result<usize, Damage> {
        let count = self.number()?;
        usize::try_from(count)
            .ok()
            .filter(|&count| count <= self.bytes.len())
            .ok_or(Damage("it counts more than it holds"))
    }

    pub(crate) fn text(&mut self) -> Result<&'b str, Damage> {
        let length = self.count()?;
        let text = self.bytes(length)?;
        std::str::from_utf8(text).map_err(|_| Damage("a text is not UTF-8"))
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'b [u8], Damage> {
        let (bytes, rest) = self.bytes.split_at_checked(length).ok_or(Damage("it ends early"))?;
        self.bytes = rest;
        Ok(bytes)
    }

    /// A part with its length in front.
    pub(crate) fn part(&mut self) -> Result<Cursor<'b>, Damage> {
        let length = self.count()?;
        Ok(Cursor { bytes: self.bytes(length)? })
    }
}

#[cfg(test)]
mod tests {
    use super::{Cursor, put, put_signed};

    #[test]
    fn numbers_come_back_as_they_were() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(Cursor::new(&bytes).number().unwrap(), value);
        }
        for value in [0, -1, 1, i64::MIN, i64::MAX] {
            let mut bytes = Vec::new();
            put_signed(&mut bytes, value);
            assert_eq!(Cursor::new(&bytes).signed().unwrap(), value);
        }
    }

    #[test]
    fn a_number_without_an_end_is_refused() {
        assert!(Cursor::new(&[0xff; 20]).number().is_err());
        assert!(Cursor::new(&[0x80]).number().is_err());
        assert!(Cursor::new(&[200, 1, 2]).count().is_err());
    }
}
