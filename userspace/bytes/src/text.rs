//! Text of bounded length: names come from files that their owner made as long as they liked.

use std::borrow::{Cow, ToOwned};
use std::string::String;

/// No name that is read from a file is longer.
pub const MAX_NAME_BYTES: usize = 4096;

/// Text of at most [`MAX_NAME_BYTES`]; what is not UTF-8 is replaced.
#[must_use]
pub fn bounded_text(bytes: &[u8]) -> Cow<'_, str> {
    match String::from_utf8_lossy(bytes.get(..MAX_NAME_BYTES).unwrap_or(bytes)) {
        Cow::Borrowed(text) => Cow::Borrowed(text),
        // Replacement characters are longer than what they replace.
        Cow::Owned(text) => Cow::Owned(bounded_str(&text).to_owned()),
    }
}

/// Text truncated to [`MAX_NAME_BYTES`], at a character boundary.
#[must_use]
pub fn bounded_str(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_NAME_BYTES)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_bounded_at_a_character() {
        assert_eq!(bounded_text(b"name"), "name");
        assert_eq!(bounded_text(&[b'a'; 2 * MAX_NAME_BYTES]).len(), MAX_NAME_BYTES);
        // Each byte becomes a character of three.
        let replaced = bounded_text(&[0xff; MAX_NAME_BYTES]);
        assert_eq!(replaced.len(), MAX_NAME_BYTES / 3 * 3);
    }
}
