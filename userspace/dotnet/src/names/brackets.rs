//! Angle brackets in names: compilers nest names within names.

/// Splits "<inner>rest" into `inner` and `rest`.
pub(super) fn enclosed(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return if at == 0 { None } else { Some((text.get(1..at)?, text.get(at + 1..)?)) };
        }
    }
    None
}

/// The pieces between the separators that are outside of all brackets. Where brackets do not
/// match, they are characters like others.
pub(super) fn split_outside(text: &str, separator: u8) -> Vec<&str> {
    let mut pieces = vec![];
    let (mut depth, mut start) = (0usize, 0);
    let matched = is_matched(text);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' if matched => depth += 1,
            b'>' if matched => depth = depth.saturating_sub(1),
            _ if byte == separator && depth == 0 => {
                pieces.extend(text.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.extend(text.get(start..));
    pieces
}

/// Splits at the last separator that is outside of all brackets.
pub(super) fn rsplit_outside(text: &str, separator: u8) -> Option<(&str, &str)> {
    let last = split_outside(text, separator).pop()?;
    let before = text.len().checked_sub(last.len() + 1)?;
    Some((text.get(..before)?, last))
}

fn is_matched(text: &str) -> bool {
    let mut depth = 0usize;
    for byte in text.bytes() {
        match byte {
            b'<' => depth += 1,
            b'>' => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return false,
            },
            _ => {}
        }
    }
    depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_within_names_are_found() {
        assert_eq!(enclosed("<<Main>$>g__Go|0_0"), Some(("<Main>$", "g__Go|0_0")));
        assert_eq!(enclosed("<>c"), Some(("", "c")));
        assert_eq!(enclosed("Run"), None);
        assert_eq!(enclosed("<Run"), None);
        assert_eq!(enclosed(">"), None);
    }

    #[test]
    fn separators_in_brackets_separate_nothing() {
        assert_eq!(split_outside("A+<B+C>d+E", b'+'), ["A", "<B+C>d", "E"]);
        assert_eq!(split_outside("A+<B", b'+'), ["A", "<B"]);
        assert_eq!(rsplit_outside("I<A.B>.M", b'.'), Some(("I<A.B>", "M")));
        assert_eq!(rsplit_outside("M", b'.'), None);
        assert_eq!(rsplit_outside(".M", b'.'), Some(("", "M")));
    }
}
