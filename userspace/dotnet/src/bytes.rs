//! Little-endian reads that answer `None` instead of panicking, and bounded text.

use strata_symbols::MAX_NAME_BYTES;

pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_le_bytes)
}

/// A `u32` as an index; on the 64-bit hosts this runs on it always fits.
pub(crate) fn index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// The bytes before the first NUL (all, when there is none), and no more than a name may have.
pub(crate) fn name_bytes(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.get(..MAX_NAME_BYTES).unwrap_or(bytes);
    memchr::memchr(0, bytes).and_then(|end| bytes.get(..end)).unwrap_or(bytes)
}

/// Text of at most [`MAX_NAME_BYTES`]; what is not UTF-8 is replaced.
pub(crate) fn bounded_text(bytes: &[u8]) -> String {
    let mut text =
        String::from_utf8_lossy(bytes.get(..MAX_NAME_BYTES).unwrap_or(bytes)).into_owned();
    bound(&mut text);
    text
}

/// Cuts text that grew too long, at a character boundary.
pub(crate) fn bound(text: &mut String) {
    if text.len() > MAX_NAME_BYTES {
        text.truncate(text.floor_char_boundary(MAX_NAME_BYTES));
    }
}

/// A position in bytes that only moves forward.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }

    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.chunk().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }

    /// A compressed unsigned integer (ECMA-335 II.23.2).
    pub fn compressed(&mut self) -> Option<u32> {
        let first = self.u8()?;
        if first & 0x80 == 0 {
            return Some(first.into());
        }
        if first & 0x40 == 0 {
            return Some(u32::from_be_bytes([0, 0, first & 0x3f, self.u8()?]));
        }
        if first & 0x20 != 0 {
            return None;
        }
        let [second, third, fourth] = self.chunk()?;
        Some(u32::from_be_bytes([first & 0x1f, second, third, fourth]))
    }

    /// A compressed signed integer: the sign bit is the lowest one (ECMA-335 II.23.2).
    pub fn compressed_signed(&mut self) -> Option<i32> {
        let before = self.rest.len();
        let raw = self.compressed()?;
        let bits = match before.saturating_sub(self.rest.len()) {
            1 => 6,
            2 => 13,
            _ => 28,
        };
        let value = i32::try_from(raw >> 1).ok()?;
        Some(if raw & 1 == 0 { value } else { value.wrapping_sub(1 << bits) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_integers_are_those_of_the_standard() {
        // The examples of ECMA-335 II.23.2.
        for (bytes, value) in [
            (&[0x03][..], 0x03),
            (&[0x7f], 0x7f),
            (&[0x80, 0x80], 0x80),
            (&[0xae, 0x57], 0x2e57),
            (&[0xbf, 0xff], 0x3fff),
            (&[0xc0, 0x00, 0x40, 0x00], 0x4000),
            (&[0xdf, 0xff, 0xff, 0xff], 0x1fff_ffff),
        ] {
            let mut cursor = Cursor::new(bytes);
            assert_eq!(cursor.compressed(), Some(value));
            assert!(cursor.is_empty());
        }
        for (bytes, value) in [
            (&[0x06][..], 3),
            (&[0x7b], -3),
            (&[0x80, 0x80], 64),
            (&[0x01], -64),
            (&[0xc0, 0x00, 0x40, 0x00], 8192),
            (&[0x80, 0x01], -8192),
            (&[0xdf, 0xff, 0xff, 0xfe], 268_435_455),
            (&[0xc0, 0x00, 0x00, 0x01], -268_435_456),
        ] {
            assert_eq!(Cursor::new(bytes).compressed_signed(), Some(value));
        }
        assert_eq!(Cursor::new(&[0xff, 0, 0, 0]).compressed(), None);
        assert_eq!(Cursor::new(&[0x80]).compressed(), None);
    }
}
