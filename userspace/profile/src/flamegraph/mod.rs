//! The flame graph: one SVG file that shows itself.
//!
//! It looks right without scripts (in a README, as a PNG) and, opened in a browser, fits the
//! window, zooms and searches. Processes stand at the top, their frames below them, coloured by
//! the kind of code: one look tells kernel from native from JIT from managed.
//!
//! Written here rather than with `inferno`, which colours by name patterns, not by what a frame
//! is, and has no legend.
//!
//! Each frame is a `<g>` with `data-x` and `data-v`, its exact place and value, and a `<title>`
//! with its name, its exact number of samples and its share.
//!
//! Invariant: names appear only as escaped text with every active character spelt out; the
//! script and style are constants. The file's size is bounded (see `layout`).

mod compared;
mod layout;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::hash::Hasher;
use std::io::Write;

pub use self::compared::write_difference;
use self::layout::{Layout, Placed, lay_out};
use crate::error::WriteError;
use crate::format::FrameView;
use crate::kind::FrameKind;
use crate::model::Profile;
use crate::text::{columns, duration, grouped, push_xml, quantity, shortened};
use crate::tree::{CallTree, Node, NodeKind, Roots};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 12.0;
const TOP: f64 = 112.0;
const ROW: f64 = 18.0;
const FOOT: f64 = 34.0;
/// Width of a character of the frames' fixed-width font.
const COLUMN: f64 = 6.63;
/// Characters of a name in a tooltip.
const LONGEST_NAME: usize = 1_000;
const SHADES: u64 = 5;

/// Writes one sample type as a flame graph. `title` stands at the top.
pub fn write(
    profile: &Profile,
    sample_type: usize,
    title: &str,
    hidden: fn(&FrameView<'_>) -> bool,
    mut out: impl Write,
) -> Result<(), WriteError> {
    let counting = profile.counting_sample_type();
    let tree = CallTree::new(profile, Roots::ProcessThenComm, sample_type, counting, hidden);
    let layout = lay_out(profile, &tree);
    let picture = Picture { profile, tree: &tree, sample_type, counting };
    let height = TOP + ROW * (f64::from(layout.depth) + 1.0) + FOOT;
    let mut text = String::with_capacity(8 << 10);
    picture.head(&mut text, title, height);
    out.write_all(text.as_bytes())?;
    for &placed in &layout.frames {
        text.clear();
        picture.frame(&mut text, placed);
        out.write_all(text.as_bytes())?;
    }
    text.clear();
    foot(&mut text, picture.total(), &layout, height);
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

struct Picture<'p> {
    profile: &'p Profile,
    tree: &'p CallTree,
    sample_type: usize,
    counting: Option<usize>,
}

impl Picture<'_> {
    fn head(&self, text: &mut String, title: &str, height: f64) {
        opening(text, title, &self.subtitle(), height, self.total());
        self.legend(text);
        controls(text);
    }

    fn subtitle(&self) -> String {
        let profile = self.profile;
        let mut parts = Vec::new();
        let host = profile.string(profile.host);
        if !host.is_empty() {
            parts.push(shortened(host, 60).into_owned());
        }
        if profile.duration_nanos > 0 {
            parts.push(duration(profile.duration_nanos));
        }
        let samples = self.tree.nodes.first().map_or(0, |root| root.samples);
        if self.counting.is_some() {
            parts.push(format!("{} samples", grouped(samples)));
        }
        if self.counting != Some(self.sample_type) {
            let (name, unit) = self.shown();
            parts.push(format!("{} {}", quantity(self.total(), unit), shortened(name, 40)));
        }
        if profile.start_nanos > 0 {
            parts.push(utc(profile.start_nanos));
        }
        parts.join("  ·  ")
    }

    /// A chip for each kind of code, with the share of time spent in it.
    fn legend(&self, text: &mut String) {
        let mut x = MARGIN;
        for kind in FrameKind::ALL {
            let of_kind = self.tree.nodes.iter().filter(|node| node.kind == NodeKind::Frame(kind));
            let (present, own) =
                of_kind.fold((false, 0_i64), |(_, sum), node| (true, sum.saturating_add(node.own)));
            // A stack that was cut has a marker, but no time is spent in it.
            if !present || kind == FrameKind::Marker && own == 0 {
                continue;
            }
            let label = format!("{} {:.1} %", kind.label(), self.share(own));
            put(
                text,
                format_args!(
                    "<rect class=\"{}2\" x=\"{x}\" y=\"66\" width=\"13\" height=\"13\" rx=\"3\"/>\
                 <text class=\"l\" x=\"{}\" y=\"77\">{label}</text>\n",
                    letter(kind),
                    x + 19.0
                ),
            );
            x += 19.0 + label.len() as f64 * 7.2 + 18.0;
        }
    }

    fn frame(&self, text: &mut String, placed: Placed) {
        let Some(node) = self.tree.nodes.get(placed.node as usize) else { return };
        let name = self.name(node);
        text.push_str("<g class=\"");
        push_class(text, node.kind, &name);
        put(text, format_args!("\" data-x=\"{}\" data-v=\"{}\"><title>", placed.start, node.value));
        push_xml(text, &name);
        text.push('\n');
        self.push_figures(text, node);
        body(text, &name, place_of(placed, node.value, self.total()), node.depth);
    }

    /// `(1,234 samples, 4.25 s cpu, 12.34 %, self 0.50 %, kernel)`
    fn push_figures(&self, text: &mut String, node: &Node) {
        let (_, unit) = self.shown();
        text.push('(');
        if self.counting.is_some() {
            let plural = if node.samples == 1 { "" } else { "s" };
            put(text, format_args!("{} sample{plural}, ", grouped(node.samples)));
        }
        if self.counting != Some(self.sample_type) {
            push_xml(text, &quantity(node.value, unit));
            text.push_str(", ");
        }
        put(text, format_args!("{:.2} %", self.share(node.value)));
        if node.own > 0 {
            put(text, format_args!(", self {:.2} %", self.share(node.own)));
        }
        match node.kind {
            NodeKind::All => {}
            NodeKind::Process => text.push_str(", process"),
            NodeKind::Frame(kind) => put(text, format_args!(", {}", kind.label())),
        }
        text.push(')');
    }

    fn name(&self, node: &Node) -> Cow<'_, str> {
        match node.kind {
            NodeKind::All => Cow::Borrowed("all"),
            _ => crate::text::visible(self.profile.string(node.name)),
        }
        .clip()
    }

    fn shown(&self) -> (&str, &str) {
        let kind = self.profile.sample_types.get(self.sample_type).copied().unwrap_or_default();
        (self.profile.string(kind.name), self.profile.string(kind.unit))
    }

    fn total(&self) -> i64 {
        self.tree.nodes.first().map_or(0, |root| root.value)
    }

    fn share(&self, value: i64) -> f64 {
        100.0 * value as f64 / self.total().max(1) as f64
    }
}

/// Everything above the legend.
fn opening(text: &mut String, title: &str, subtitle: &str, height: f64, total: i64) {
    put(
        text,
        format_args!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" data-total=\"{total}\">\n<title>"
        ),
    );
    push_xml(text, &shortened(title, LONGEST_NAME));
    text.push_str("</title>\n<style><![CDATA[\n");
    text.push_str(include_str!("style.css"));
    text.push_str("]]></style>\n<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n");
    put(text, format_args!("<text class=\"h\" x=\"{MARGIN}\" y=\"32\">"));
    push_xml(text, &shortened(title, 90));
    put(text, format_args!("</text>\n<text class=\"s\" x=\"{MARGIN}\" y=\"53\">"));
    push_xml(text, subtitle);
    text.push_str("</text>\n");
}

/// What stands between the legend and the frames.
fn controls(text: &mut String) {
    put(
        text,
        format_args!(
            "<text id=\"details\" x=\"{MARGIN}\" y=\"102\"></text>\n\
             <text id=\"matched\" class=\"l\" x=\"{}\" y=\"77\" text-anchor=\"end\"></text>\n\
             <foreignObject id=\"controls\" x=\"{}\" y=\"14\" width=\"320\" height=\"32\"></foreignObject>\n\
             <g id=\"frames\">\n",
            WIDTH - MARGIN,
            WIDTH - MARGIN - 320.0
        ),
    );
}

/// Where a frame's part of `total` begins and how wide it is.
fn place_of(placed: Placed, value: i64, total: i64) -> (f64, f64) {
    let inner = WIDTH - 2.0 * MARGIN;
    let total = total.max(1) as f64;
    (MARGIN + placed.start as f64 / total * inner, value as f64 / total * inner)
}

/// A frame's rectangle and its label, after its title.
fn body(text: &mut String, name: &str, (x, width): (f64, f64), depth: u32) {
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
fn foot(text: &mut String, total: i64, layout: &Layout, height: f64) {
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
            "<text class=\"s\" x=\"{MARGIN}\" y=\"{}\">{note}</text>\n<script><![CDATA[\n",
            height - 12.0
        ),
    );
    text.push_str(include_str!("script.js"));
    text.push_str("]]></script>\n</svg>\n");
}

trait Clip<'t> {
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

/// As much of the name as `width` has room for; nothing if that says too little.
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

fn push_class(text: &mut String, kind: NodeKind, name: &str) {
    match kind {
        NodeKind::All => text.push('a'),
        NodeKind::Process => text.push('o'),
        NodeKind::Frame(kind) => {
            // The same function has the same shade in every picture.
            let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
            hash.write(name.as_bytes());
            put(text, format_args!("{}{}", letter(kind), (hash.finish() >> 7) % SHADES));
        }
    }
}

fn letter(kind: FrameKind) -> char {
    match kind {
        FrameKind::Kernel => 'k',
        FrameKind::Native => 'n',
        FrameKind::Jit => 'j',
        FrameKind::Managed => 'm',
        FrameKind::Marker => 'u',
    }
}

/// FNV-1a: stable across runs and machines, unlike the hash of a hash map.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(arguments);
}

/// `2025-11-21 08:09:10 UTC`
fn utc(nanos: i64) -> String {
    let seconds = nanos.div_euclid(1_000_000_000);
    let (days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a number of days since 1970-01-01: counted in years that begin in
/// March, of which 400 always have 146,097 days.
fn civil(days: i64) -> (i64, i64, i64) {
    let since = days.saturating_add(719_468);
    let (era, day_of_era) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era.saturating_mul(400) + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::{fitting, utc};

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_709_210_096_000_000_000), "2024-02-29 12:34:56 UTC");
        assert_eq!(utc(1_763_712_550_000_000_000), "2025-11-21 08:09:10 UTC");
    }

    #[test]
    fn a_label_is_never_wider_than_its_frame() {
        assert_eq!(fitting("abcdef", 7.0 + 6.0 * 6.63), "abcdef");
        assert_eq!(fitting("abcdefg", 7.0 + 6.0 * 6.63), "abcde…");
        assert_eq!(fitting("abcdefg", 20.0), "");
        assert_eq!(fitting("名前名前", 7.0 + 5.0 * 6.63 + 0.1), "名前…");
    }
}
