//! Folded stacks and flame graph SVGs, read back as text.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// One folded line: frames from the root to the leaf.
#[derive(Debug)]
pub struct Folded {
    pub frames: Vec<String>,
    pub count: u64,
}

impl Folded {
    /// Whether any of the frames is this function.
    pub fn has(&self, function: &str) -> bool {
        self.frames.iter().any(|frame| frame == function)
    }
}

/// Reads `a;b;c 42` lines.
pub fn folded(text: &str) -> Result<Vec<Folded>> {
    let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines
        .map(|line| {
            let (stack, count) =
                line.rsplit_once(' ').with_context(|| format!("no count: {line}"))?;
            let count = count.parse().with_context(|| format!("no count: {line}"))?;
            Ok(Folded { frames: stack.split(';').map(String::from).collect(), count })
        })
        .collect()
}

/// A box of a flame graph.
#[derive(Debug, Clone)]
pub struct FlameBox {
    pub title: String,
    pub width: f64,
    pub y: f64,
}

/// The boxes of a flame graph: each `<title>` with the `<rect>` after it.
pub fn svg_boxes(svg: &str) -> Result<Vec<FlameBox>> {
    let mut boxes = Vec::new();
    for part in svg.split("<title>").skip(1) {
        let (title, rest) = part.split_once("</title>").context("an open title")?;
        // The picture's own title has no box.
        let Some(rect) = rest.trim_start().strip_prefix("<rect") else { continue };
        let rect = rect.split('>').next().unwrap_or_default();
        let width = attribute(rect, "width").context("a box without a width")?;
        let y = attribute(rect, "y").context("a box without a place")?;
        boxes.push(FlameBox { title: unescape(title), width: number(width)?, y: number(y)? });
    }
    if boxes.is_empty() {
        bail!("no boxes in the SVG");
    }
    Ok(boxes)
}

/// Summed widths of the boxes by function name, as fractions of the widest box. A function below
/// itself is counted once per box, so this suits functions that do not recurse.
pub fn svg_shares(boxes: &[FlameBox]) -> BTreeMap<String, f64> {
    let widest = boxes.iter().map(|b| b.width).fold(0.0, f64::max);
    let mut shares = BTreeMap::new();
    for flame_box in boxes {
        let name = flame_box.title.split(['\n', '(']).next().unwrap_or_default().trim().to_string();
        *shares.entry(name).or_insert(0.0) += flame_box.width / widest;
    }
    shares
}

fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    element.split(&format!(" {name}=\"")).nth(1)?.split('"').next()
}

/// `12.5` or `12.5%`.
fn number(text: &str) -> Result<f64> {
    text.trim_end_matches('%').parse().with_context(|| format!("not a number: {text}"))
}

fn unescape(text: &str) -> String {
    let pairs = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    pairs.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}
