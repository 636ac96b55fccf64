//! The flame graph: one self-contained, interactive SVG file.
//!
//! It renders correctly without scripts (in a README, as a PNG) and, opened in a browser, fits the
//! window, zooms, searches and shows the tree from the leaves (inverted). Processes stand at the
//! top, their frames below them, coloured by the kind of code: so kernel, native, JIT and managed
//! frames differ at a glance.
//!
//! Written here rather than with `inferno`, which colours by name patterns, not by what a frame
//! is, and has no legend.
//!
//! Each frame is a `<g>` with `data-x` and `data-v`, its exact place and value (`data-o`: what of
//! it is its own), and a `<title>` with its name, its exact number of samples, its share, its
//! module and its lines.
//!
//! Invariant: names appear only as escaped text with every active character spelt out; the
//! script and style are constants. The file's size is bounded (see `layout`).

mod compared;
mod layout;
mod page;

use std::borrow::Cow;
use std::hash::Hasher;
use std::io::Write;

pub use self::compared::write_difference;
use self::layout::{Placed, lay_out};
use self::page::{Clip, FOOT, MARGIN, ROW, TOP, body, controls, foot, opening, place_of, put};
use crate::error::WriteError;
use crate::format::WriteOptions;
use crate::kind::{FrameKind, base_name};
use crate::model::Profile;
use crate::text::{duration, grouped, push_xml, quantity, shortened, visible};
use crate::tree::{CallTree, Node, NodeKind, Roots};

const SHADES: u64 = 5;

/// Writes one sample type as a flame graph.
pub fn write(
    profile: &Profile,
    sample_type: usize,
    options: &WriteOptions,
    mut out: impl Write,
) -> Result<(), WriteError> {
    let counting = profile.samples_beside(sample_type);
    let roots = match options.split_processes {
        true => Roots::PidThenComm,
        false => Roots::ProcessThenComm,
    };
    let tree = CallTree::new(profile, roots, sample_type, counting, options.view);
    let layout = lay_out(profile, &tree);
    let picture = Picture { profile, tree: &tree, sample_type, counting };
    let height = TOP + ROW * (f64::from(layout.depth) + 1.0) + FOOT;
    let mut text = String::with_capacity(8 << 10);
    picture.head(&mut text, &options.title, height);
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
        let (_, unit) = self.shown();
        let nanoseconds = match unit {
            "nanoseconds" => Some(1),
            _ if self.counting == Some(self.sample_type) => self.period(),
            _ => None,
        };
        opening(text, (title, &self.subtitle()), height, self.total(), nanoseconds);
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
            // A truncated or incomplete stack has a marker, but no time is spent in it.
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
        put(text, format_args!("\" data-x=\"{}\" data-v=\"{}\"", placed.start, node.value));
        if node.own > 0 {
            put(text, format_args!(" data-o=\"{}\"", node.own));
        }
        text.push_str("><title>");
        push_xml(text, &name);
        text.push('\n');
        self.push_figures(text, node);
        body(text, &name, place_of(placed, node.value, self.total()), node.depth);
    }

    /// `(1,234 samples, 4.25 s, 12.34 %, self 0.50 %, native, shop, orders.c:41)`
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
        } else if let Some(period) = self.period() {
            put(text, format_args!("{}, ", duration(node.value.saturating_mul(period))));
        }
        put(text, format_args!("{:.2} %", self.share(node.value)));
        if node.own > 0 {
            put(text, format_args!(", self {:.2} %", self.share(node.own)));
        }
        match node.kind {
            NodeKind::All => {}
            NodeKind::Process | NodeKind::Pid(_) => text.push_str(", process"),
            NodeKind::Frame(kind) => {
                put(text, format_args!(", {}", kind.label()));
                self.push_place(text, node);
            }
        }
        text.push(')');
    }

    /// `, libshop.so, orders.c:41-57`
    fn push_place(&self, text: &mut String, node: &Node) {
        let place = node.place;
        for (part, limit) in [(place.module, 60), (place.file, 80)] {
            // Within folders of the same name the end distinguishes files.
            let path = self.profile.string(part);
            let start = path.char_indices().rev().nth(limit).map_or(0, |(at, _)| at);
            let shown = match part == place.module {
                true => base_name(path),
                false => path.get(start..).unwrap_or(path),
            };
            // The kind shows it already.
            let is_kernel = shown.starts_with("[kernel");
            if !shown.is_empty() && !is_kernel {
                text.push_str(", ");
                push_xml(text, &shortened(&visible(shown), limit));
            }
        }
        match (place.first_line, place.last_line) {
            (0, _) => {}
            (first, last) if first == last => put(text, format_args!(":{first}")),
            (first, last) => put(text, format_args!(":{first}-{last}")),
        }
    }

    /// Nanoseconds of CPU time that a sample stands for.
    fn period(&self) -> Option<i64> {
        let unit = self.profile.string(self.profile.period_type.unit);
        (unit == "nanoseconds" && self.profile.period > 0).then_some(self.profile.period)
    }

    fn name(&self, node: &Node) -> Cow<'_, str> {
        match node.kind {
            NodeKind::All => Cow::Borrowed("all"),
            NodeKind::Pid(pid) => {
                let name = visible(self.profile.string(node.name));
                Cow::Owned(format!("{} [{pid}]", shortened(&name, 200)))
            }
            _ => visible(self.profile.string(node.name)),
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

fn push_class(text: &mut String, kind: NodeKind, name: &str) {
    match kind {
        NodeKind::All => text.push('a'),
        NodeKind::Process | NodeKind::Pid(_) => text.push('o'),
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
    use super::utc;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_709_210_096_000_000_000), "2024-02-29 12:34:56 UTC");
        assert_eq!(utc(1_763_712_550_000_000_000), "2025-11-21 08:09:10 UTC");
    }
}
