//! Text without the heap: converts the runtime's UTF-16 to the log's UTF-8, in a fixed-size buffer.

use std::mem::MaybeUninit;

/// UTF-8 text in a fixed buffer. Text that does not fit is truncated at a character boundary.
///
/// **Invariant:** the first `length` bytes are whole characters, and the others are never read:
/// most texts are short, and their room is not cleared first.
pub struct Text<const N: usize> {
    bytes: [MaybeUninit<u8>; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    pub const fn new() -> Self {
        Text { bytes: [MaybeUninit::uninit(); N], length: 0 }
    }

    pub fn as_str(&self) -> &str {
        // SAFETY: `push` and `prepend` have filled these bytes with whole characters.
        unsafe {
            let bytes = std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.length);
            std::str::from_utf8_unchecked(bytes)
        }
    }

    /// There is no room for any more.
    pub fn is_full(&self) -> bool {
        self.length + 4 > N
    }

    pub fn clear(&mut self) {
        self.length = 0;
    }

    pub fn push(&mut self, text: &str) {
        let part = beginning(text, N - self.length);
        if let Some(room) = self.bytes.get_mut(self.length..self.length + part.len()) {
            room.write_copy_of_slice(part.as_bytes());
            self.length += part.len();
        }
    }

    /// Half of a pair that stands alone becomes a replacement character.
    pub fn push_units(&mut self, units: &[u16]) {
        for character in char::decode_utf16(units.iter().copied()) {
            let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.push(character.encode_utf8(&mut [0; 4]));
        }
    }

    /// Text in UTF-16 as bytes, of which as many units are read as fit.
    pub fn push_utf16(&mut self, bytes: &[u8]) {
        let units = bytes.as_chunks::<2>().0.iter().take(N).map(|unit| u16::from_le_bytes(*unit));
        for character in char::decode_utf16(units) {
            let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.push(character.encode_utf8(&mut [0; 4]));
        }
    }

    /// In decimal.
    pub fn push_number(&mut self, number: u32) {
        let mut digits = [0u8; 10];
        let mut rest = number;
        let mut start = digits.len();
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            start -= 1;
            if rest == 0 {
                break;
            }
        }
        self.push(valid_part(digits.get(start..).unwrap_or_default()));
    }

    /// In hexadecimal.
    pub fn push_hexadecimal(&mut self, number: u64) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [0u8; 16];
        let mut rest = number;
        let mut start = digits.len();
        for digit in digits.iter_mut().rev() {
            *digit = DIGITS.get(rest as usize & 15).copied().unwrap_or(b'0');
            rest >>= 4;
            start -= 1;
            if rest == 0 {
                break;
            }
        }
        self.push(valid_part(digits.get(start..).unwrap_or_default()));
    }

    /// Prepends text.
    pub fn prepend(&mut self, text: &str) {
        let part = beginning(text, N);
        let kept = beginning(self.as_str(), N - part.len()).len();
        self.bytes.copy_within(..kept, part.len());
        if let Some(room) = self.bytes.get_mut(..part.len()) {
            room.write_copy_of_slice(part.as_bytes());
            self.length = part.len() + kept;
        }
    }
}

/// As many whole characters as fit.
fn beginning(text: &str, room: usize) -> &str {
    if text.len() <= room {
        return text;
    }
    text.get(..text.floor_char_boundary(room)).unwrap_or_default()
}

/// Bytes that are text when they are UTF-8; else the part of them that is.
pub fn valid_part(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let part = bytes.get(..error.valid_up_to()).unwrap_or_default();
            std::str::from_utf8(part).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_become_characters() {
        let mut text = Text::<64>::new();
        text.push_units(&"Größe😀".encode_utf16().collect::<Vec<_>>());
        text.push_units(&[0xd800]);
        assert_eq!(text.as_str(), "Größe😀\u{fffd}");
    }

    #[test]
    fn bytes_of_units_become_characters_and_no_more_are_read_than_fit() {
        let bytes: Vec<u8> = "Größe😀".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let mut text = Text::<64>::new();
        text.push_utf16(&bytes);
        assert_eq!(text.as_str(), "Größe😀");
        let mut short = Text::<3>::new();
        short.push_utf16(&[b'a', 0].repeat(30_000));
        assert_eq!(short.as_str(), "aaa");
    }

    #[test]
    fn what_does_not_fit_is_cut_at_a_character() {
        let mut text = Text::<5>::new();
        text.push("abc");
        text.push("éé");
        assert_eq!(text.as_str(), "abcé");
        text.prepend("xy");
        assert_eq!(text.as_str(), "xyabc");
    }

    #[test]
    fn a_prefix_goes_before() {
        let mut text = Text::<64>::new();
        text.push("Inner");
        text.prepend("Outer+");
        assert_eq!(text.as_str(), "Outer+Inner");
    }

    #[test]
    fn a_number_is_in_decimal_or_hexadecimal() {
        let mut text = Text::<64>::new();
        for number in [0, 40, u32::MAX] {
            text.push_number(number);
            text.push(" ");
        }
        assert_eq!(text.as_str(), "0 40 4294967295 ");
        text.clear();
        for number in [0, 0x7f00_1234_abcd, u64::MAX] {
            text.push_hexadecimal(number);
            text.push(" ");
        }
        assert_eq!(text.as_str(), "0 7f001234abcd ffffffffffffffff ");
    }

    #[test]
    fn bytes_that_are_no_text_are_cut() {
        assert_eq!(valid_part(b"Main"), "Main");
        assert_eq!(valid_part(b"Ma\xffin"), "Ma");
    }
}
