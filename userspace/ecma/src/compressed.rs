//! Compressed integers (ECMA-335 II.23.2).

use strata_bytes::Cursor;

#[inline]
pub fn unsigned(cursor: &mut Cursor<'_>) -> Option<u32> {
    let first = cursor.u8()?;
    if first & 0x80 == 0 {
        return Some(first.into());
    }
    if first & 0x40 == 0 {
        return Some(u32::from_be_bytes([0, 0, first & 0x3f, cursor.u8()?]));
    }
    if first & 0x20 != 0 {
        return None;
    }
    let [second, third, fourth] = cursor.array()?;
    Some(u32::from_be_bytes([first & 0x1f, second, third, fourth]))
}

/// The sign bit is the lowest one.
pub fn signed(cursor: &mut Cursor<'_>) -> Option<i32> {
    let before = cursor.rest().len();
    let raw = unsigned(cursor)?;
    let bits = match before.saturating_sub(cursor.rest().len()) {
        1 => 6,
        2 => 13,
        _ => 28,
    };
    let value = i32::try_from(raw >> 1).ok()?;
    Some(if raw & 1 == 0 { value } else { value.wrapping_sub(1 << bits) })
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
            assert_eq!(unsigned(&mut cursor), Some(value));
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
            assert_eq!(signed(&mut Cursor::new(bytes)), Some(value));
        }
        assert_eq!(unsigned(&mut Cursor::new(&[0xff, 0, 0, 0])), None);
        assert_eq!(unsigned(&mut Cursor::new(&[0x80])), None);
    }
}
