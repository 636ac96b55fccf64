//! Text without the heap: the runtime's UTF-16 to the log's UTF-8, in a buffer of fixed size.

/// UTF-16 units that names are asked with. Type names have at most 1,023 (corhdr.h,
/// MAX_CLASS_NAME), file paths at most 4,095 bytes.
pub type Units<const N: usize> = [u16; N];

/// UTF-8 text in place. What does not fit is left out, at a character's border.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    pub const fn new() -> Self {
        Text { bytes: [0; N], length: 0 }
    }

    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.length).unwrap_or_default();
        // Only whole characters were pushed; were it not so, the text would be empty.
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    pub fn clear(&mut self) {
        self.length = 0;
    }

    pub fn push(&mut self, text: &str) {
        let room = N - self.length;
        let end = if text.len() <= room { text.len() } else { text.floor_char_boundary(room) };
        if let (Some(to), Some(from)) =
            (self.bytes.get_mut(self.length..self.length + end), text.as_bytes().get(..end))
        {
            to.copy_from_slice(from);
            self.length += end;
        }
    }

    /// Half of a pair that stands alone becomes a replacement character.
    pub fn push_units(&mut self, units: &[u16]) {
        for character in char::decode_utf16(units.iter().copied()) {
            let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.push(character.encode_utf8(&mut [0; 4]));
        }
    }

    /// Puts text before what is there.
    pub fn prepend(&mut self, text: &str) {
        let end = text.floor_char_boundary(text.len().min(N));
        let kept = self.length.min(N - end);
        let kept = self.as_str().floor_char_boundary(kept);
        self.bytes.copy_within(..kept, end);
        if let (Some(to), Some(from)) = (self.bytes.get_mut(..end), text.as_bytes().get(..end)) {
            to.copy_from_slice(from);
        }
        self.length = end + kept;
    }
}

impl<const N: usize> std::fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push(text);
        Ok(())
    }
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
    fn bytes_that_are_no_text_are_cut() {
        assert_eq!(valid_part(b"Main"), "Main");
        assert_eq!(valid_part(b"Ma\xffin"), "Ma");
    }
}
