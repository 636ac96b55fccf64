//! The parts common to every flame graph: header and footer, a frame's rectangle and label.
//!
//! The header is a group of its own, which the script keeps in view.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::layout::{Layout, Placed};
use crate::text::{columns, grouped, push_xml, shortened};

pub(super) const WIDTH: f64 = 1200.0;
pub(super) const MARGIN: f64 = 12.0;
pub(super) const TOP: f64 = 126.0;
pub(super) const ROW: f64 = 18.0;
pub(super) const FOOT: f64 = 34.0;
/// Width of the search box and the buttons.
const CONTROLS: f64 = 440.0;
/// Width of a character of the frames' fixed-width font.
const COLUMN: f64 = 6.63;
/// Characters of a name in a tooltip.
pub(super) const LONGEST_NAME: usize = 1_000;

pub(super) fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(arguments);
}

/// Everything above the legend.
/// `nanoseconds` is what a value of 1 stands for, where values are times or have a period.
pub(super) fn opening(
    text: &mut String,
    (title, subtitle): (&str, &str),
    height: f64,
    total: i64,
    nanoseconds: Option<i64>,
) {
    put(
        text,
        format_args!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" data-total=\"{total}\""
        ),
    );
    if let Some(nanoseconds) = nanoseconds {
        put(text, format_args!(" data-ns=\"{nanoseconds}\""));
    }
    text.push_str(">\n<title>");
    push_xml(text, &shortened(title, LONGEST_NAME));
    text.push_str("</title>\n<style><![CDATA[\n");
    text.push_str(include_str!("style.css"));
    text.push_str(
        "]]></style>\n<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n<g id=\"head\">\n",
    );
    put(text, format_args!("<rect class=\"bg\" width=\"100%\" height=\"{}\"/>\n", TOP - 2.0));
    put(text, format_args!("<text class=\"h\" x=\"{MARGIN}\" y=\"32\">"));
    push_xml(text, &shortened(title, 70));
    put(text, format_args!("</text>\n<text class=\"s\" x=\"{MARGIN}\" y=\"53\">"));
    push_xml(text, &shortened(subtitle, 150));
    text.push_str("</text>\n");
}

/// Everything between the legend and the frames.
pub(super) fn controls(text: &mut String) {
    put(
        text,
        format_args!(
            "<text id=\"details\" x=\"{MARGIN}\" y=\"99\"></text>\n\
             <text id=\"figures\" x=\"{MARGIN}\" y=\"115\"></text>\n\
             <text id=\"matched\" class=\"l\" x=\"{}\" y=\"77\" text-anchor=\"end\"></text>\n\
             <foreignObject id=\"controls\" x=\"{}\" y=\"14\" width=\"{CONTROLS}\" height=\"32\"></foreignObject>\n\
             </g>\n<g id=\"frames\">\n",
            WIDTH - MARGIN,
            WIDTH - MARGIN - CONTROLS
        ),
    );
}

/// The position and width of a frame, as parts of `total`.
pub(super) fn place_of(placed: Placed, value: i64, total: i64) -> (f64, f64) {
    let inner = WIDTH - 2.0 * MARGIN;
    let total = total.max(1) as f64;
    (MARGIN + placed.start as f64 / total * inner, value as f64 / total * inner)
}

/// A frame's rectangle and its label, after its title.
pub(super) fn body(text: &mut String, name: &str, (x, width): (f64, f64), depth: u32) {
    let y = TOP + ROW * f64::from(depth);
    let gap = if width > 3.0 { 0.6 } else { 0.0 };
    put(
        text,
        format_args!(
            "</title><rect x=\"{x:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{}\" rx=\"2\"/>",
            (width - gap).max(0.05),
            ROW - 1.0
        ),
    );
    let label = fitting(name, width);
    if !label.is_empty() {
        put(text, format_args!("<text x=\"{:.2}\" y=\"{}\">", x + 4.0, y + 13.0));
        push_xml(text, &label);
        text.push_str("</text>");
    }
    text.push_str("</g>\n");
}

/// Everything below the frames.
pub(super) fn foot(text: &mut String, total: i64, layout: &Layout, height: f64) {
    text.push_str("</g>\n");
    let note = match (total, layout.left_out) {
        (0, _) => "no samples".to_owned(),
        (_, 0) => String::new(),
        (_, count) => format!(
            "{} frames too narrow to be seen are not drawn; their callers' widths contain them",
            grouped(i64::try_from(count).unwrap_or(i64::MAX))
        ),
    };
    put(
        text,
        format_args!(
            "<text id=\"note\" class=\"s\" x=\"{MARGIN}\" y=\"{}\">{note}</text>\n<script><![CDATA[\n",
            height - 12.0
        ),
    );
    text.push_str(include_str!("script.js"));
    text.push_str("]]></script>\n</svg>\n");
}

pub(super) trait Clip<'t> {
    fn clip(self) -> Cow<'t, str>;
}

impl<'t> Clip<'t> for Cow<'t, str> {
    /// At most [`LONGEST_NAME`] characters.
    fn clip(self) -> Cow<'t, str> {
        match self {
            Cow::Borrowed(text) => shortened(text, LONGEST_NAME),
            Cow::Owned(text) => Cow::Owned(shortened(&text, LONGEST_NAME).into_owned()),
        }
    }
}

/// As much of the name as `width` has room for; nothing if that is too short to be useful.
fn fitting(name: &str, width: f64) -> String {
    let room = ((width - 7.0) / COLUMN).floor();
    if room < 3.0 {
        return String::new();
    }
    let room = room as usize;
    let mut label = String::new();
    let mut used = 0_usize;
    let mut before_last = 0;
    for character in name.chars() {
        used = used.saturating_add(columns(character));
        if used > room {
            label.truncate(before_last);
            label.push('…');
            break;
        }
        if used < room {
            before_last = label.len().saturating_add(character.len_utf8());
        }
        label.push(character);
    }
    label
}

#[cfg(test)]
mod tests {
    use super::fitting;

    #[test]
    fn a_label_is_never_wider_than_its_frame() {
        assert_eq!(fitting("abcdef", 7.0 + 6.0 * 6.63), "abcdef");
        assert_eq!(fitting("abcdefg", 7.0 + 6.0 * 6.63), "abcde…");
        assert_eq!(fitting("abcdefg", 20.0), "");
        assert_eq!(fitting("名前名前", 7.0 + 5.0 * 6.63 + 0.1), "名前…");
    }
}
