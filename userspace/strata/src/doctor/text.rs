//! Names that a process chose, made harmless for a terminal.

/// Text without anything that moves a cursor, changes a colour or the direction of writing.
pub fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|char| if is_harmless(char) { char } else { '\u{fffd}' })
        .collect()
}

fn is_harmless(char: char) -> bool {
    // Control characters, and those that reverse what stands around them (Unicode, UAX #9).
    !char.is_control()
        && !matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Bytes in readable form.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KB", bytes.div_ceil(1024)),
        _ => format!("{:.1} MB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_in_names_are_inert() {
        let shown = printable(b"/tmp/\x1b[31mred\x07\n\xe2\x80\xaetxt.\xff");
        assert!(shown.chars().all(is_harmless), "{shown:?}");
        assert!(shown.contains("red") && shown.contains("txt."));
    }
}
