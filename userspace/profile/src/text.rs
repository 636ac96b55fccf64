//! Makes names safe to display.
//!
//! A process chooses its own name, its functions' names and its files' names. Shown as they are
//! they can move a terminal's cursor, reverse the reading direction of what follows them, or end an
//! XML element. [`visible`] turns every such character into text that names it, the same text
//! everywhere, so that a name can be recognised across outputs.
//!
//! Invariant: what [`visible`] returns has no control, format-control or non-character code
//! point, is legal XML 1.0 text once escaped, and is on one line.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with every character that does something, rather than show something, spelt out:
/// `\x1b`, `\u{202e}`.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_active) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len().saturating_add(16));
    for character in text.chars() {
        if is_active(character) {
            push_escape(&mut shown, character);
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// The text as a terminal may print it: no control, escape or direction-changing character.
#[must_use]
pub fn sanitize_for_terminal(text: &str) -> Cow<'_, str> {
    visible(text)
}

/// At most `limit` characters of the text, the last of them `…` if it was longer.
#[must_use]
pub fn shortened(text: &str, limit: usize) -> Cow<'_, str> {
    if text.char_indices().nth(limit).is_none() {
        return Cow::Borrowed(text);
    }
    let kept: String = text.chars().take(limit.saturating_sub(1)).collect();
    Cow::Owned(kept + "…")
}

/// At most `limit` characters of the text: its beginning and its end, with ` … ` between them.
#[must_use]
pub fn without_middle(text: &str, limit: usize) -> Cow<'_, str> {
    const GAP: &str = " … ";
    let count = text.chars().count();
    if count <= limit {
        return Cow::Borrowed(text);
    }
    let kept = limit.saturating_sub(GAP.chars().count());
    let (before, after) = (kept.div_ceil(2), kept / 2);
    let start: String = text.chars().take(before).collect();
    let end: String = text.chars().skip(count - after).collect();
    Cow::Owned(start + GAP + &end)
}

pub(crate) fn push_escape(into: &mut String, character: char) {
    let code = u32::from(character);
    // Writing to a String cannot fail.
    let _ =
        if code < 0x80 { write!(into, "\\x{code:02x}") } else { write!(into, "\\u{{{code:x}}}") };
}

/// Controls, line separators, direction controls, invisible format characters, tags,
/// non-characters.
pub(crate) fn is_active(character: char) -> bool {
    let code = u32::from(character);
    character.is_control()
        || matches!(code,
            0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f
            | 0xfdd0..=0xfdef | 0xfeff | 0xfff9..=0xfffb | 0xe0000..=0xe007f)
        || code & 0xfffe == 0xfffe
}

/// Appends the text as the content of an XML element or a double-quoted attribute.
pub(crate) fn push_xml(into: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\'' => into.push_str("&#39;"),
            active if is_active(active) => push_escape(into, active),
            plain => into.push(plain),
        }
    }
}

/// How many columns of a fixed-width font the character takes.
pub(crate) fn columns(character: char) -> usize {
    match u32::from(character) {
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len().saturating_add(8));
    if number < 0 {
        text.push('-');
    }
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && digits.len().saturating_sub(position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A value with its pprof unit, in readable form: `4.25 s`, `1.5 MiB`, `1,234`.
#[must_use]
pub fn quantity(value: i64, unit: &str) -> String {
    let scaled = value as f64;
    match unit {
        "nanoseconds" | "ns" => duration(value),
        "microseconds" | "us" => duration(value.saturating_mul(1_000)),
        "milliseconds" | "ms" => duration(value.saturating_mul(1_000_000)),
        "seconds" | "s" => duration(value.saturating_mul(1_000_000_000)),
        "bytes" => match scaled.abs() {
            size if size < 1024.0 => format!("{value} B"),
            size if size < 1_048_576.0 => format!("{:.1} KiB", scaled / 1024.0),
            size if size < 1_073_741_824.0 => format!("{:.1} MiB", scaled / 1_048_576.0),
            _ => format!("{:.2} GiB", scaled / 1_073_741_824.0),
        },
        "count" | "" => grouped(value),
        other => format!("{} {}", grouped(value), visible(other)),
    }
}

/// Nanoseconds as `85 ms`, `4.25 s`, `12 min 30 s`.
#[must_use]
pub fn duration(nanoseconds: i64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    match seconds.abs() {
        time if time < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        time if time < 1.0 => format!("{:.1} ms", seconds * 1e3),
        time if time < 120.0 => format!("{seconds:.2} s"),
        time if time < 7200.0 => {
            format!("{:.0} min {:.0} s", (seconds / 60.0).trunc(), (seconds % 60.0).abs().trunc())
        }
        _ => format!(
            "{:.0} h {:.0} min",
            (seconds / 3600.0).trunc(),
            (seconds / 60.0 % 60.0).abs().trunc()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_escape_is_spelt_out() {
        assert_eq!(sanitize_for_terminal("a\x1b[31mb\u{202e}c\0"), "a\\x1b[31mb\\u{202e}c\\x00");
        assert_eq!(sanitize_for_terminal("plain ünïcode 名"), "plain ünïcode 名");
    }

    #[test]
    fn no_character_xml_forbids_is_left() {
        let every: String = (0..=0x10ffff_u32).filter_map(char::from_u32).collect();
        let shown = visible(&every);
        assert!(shown.chars().all(|character| {
            matches!(u32::from(character), 0x20..=0xd7ff | 0xe000..=0xfffd | 0x10000..=0x10ffff)
        }));
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(i64::MIN), "-9,223,372,036,854,775,808");
    }

    #[test]
    fn quantities_read_well() {
        assert_eq!(quantity(4_250_000_000, "nanoseconds"), "4.25 s");
        assert_eq!(quantity(1536, "bytes"), "1.5 KiB");
        assert_eq!(quantity(1234, "count"), "1,234");
        assert_eq!(duration(750_000_000_000), "12 min 30 s");
    }

    #[test]
    fn long_names_are_shortened_by_characters() {
        assert_eq!(shortened("äöüß", 4), "äöüß");
        assert_eq!(shortened("äöüß!", 4), "äöü…");
    }
}
