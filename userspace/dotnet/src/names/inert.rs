//! Texts that are safe to show: of bounded length, without control characters.

pub use crate::MAX_NAME_BYTES;

const CUT: &str = "…";

/// Characters that a terminal or a page would interpret instead of showing them. Type names may
/// have any characters (ECMA-335 I.8.5.1), hostile ones have these.
fn acts(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            // Direction marks and overrides, line and paragraph separators, byte order mark.
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

/// The text with a mark where something was that is not shown, truncated where it gets too long.
pub(super) fn inert(text: &str) -> String {
    let mut shown: String = front(text)
        .chars()
        .map(|character| if acts(character) { char::REPLACEMENT_CHARACTER } else { character })
        .collect();
    if shown.len() > MAX_NAME_BYTES || text.len() > MAX_NAME_BYTES {
        let end = shown.floor_char_boundary(MAX_NAME_BYTES - CUT.len());
        shown.truncate(end);
        shown.push_str(CUT);
    }
    shown
}

/// The start of a text: the part that is examined.
pub(super) fn front(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_NAME_BYTES)).unwrap_or_default()
}

/// Appends as long as the text is not too long already.
pub(super) fn push(text: &mut String, piece: &str) {
    if text.len() <= MAX_NAME_BYTES {
        text.push_str(front(piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_a_character() {
        let long = inert(&"ä".repeat(MAX_NAME_BYTES));
        assert!(long.len() <= MAX_NAME_BYTES && long.ends_with("ä…"));
        let exact = "a".repeat(MAX_NAME_BYTES);
        assert_eq!(inert(&exact), exact);
        // The marks are longer than what they stand for.
        assert!(inert(&"\u{1}".repeat(MAX_NAME_BYTES)).len() <= MAX_NAME_BYTES);
    }

    #[test]
    fn what_acts_on_a_terminal_is_marked() {
        assert_eq!(inert("a\u{1b}[2Jb\u{202e}c\n"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
    }
}
