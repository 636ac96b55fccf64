//! The differential flame graph: two profiles in one picture.
//!
//! A frame is as wide as the mean of its two shares, so that new and removed frames are both
//! visible, and red where its share grew, blue where it shrank, the stronger the more: the legend
//! is the scale. Shares, because the windows compared are rarely of one length. A change within
//! sampling noise has no colour ([`Difference::noise`]).
//!
//! Invariant: as for every flame graph, names are escaped, the file's size is bounded, a caller is
//! as wide as all its callees together.

use std::io::Write;

use super::layout::{Placed, lay_out};
use super::page::{
    FOOT, LONGEST_NAME, MARGIN, ROW, TOP, body, controls, foot, opening, place_of, put,
};
use crate::builder::ProfileBuilder;
use crate::difference::{Difference, StackDifference};
use crate::error::WriteError;
use crate::text::{push_xml, quantity, shortened, visible};
use crate::tree::{CallTree, Node, NodeKind, Place};

/// The width of the whole picture, in units of shares.
const WHOLE: f64 = 1e12;
/// The changes, as parts of the total, at which the steps of colour start.
const STEPS: [f64; 4] = [0.005, 0.02, 0.05, 0.15];

/// Writes a comparison as a flame graph. `title` and `subtitle` stand at the top.
pub fn write_difference(
    difference: &Difference,
    title: &str,
    subtitle: &str,
    mut out: impl Write,
) -> Result<(), WriteError> {
    let mut names = ProfileBuilder::new(&[]);
    let tree = tree_of(difference, &mut names);
    let profile = names.finish();
    let layout = lay_out(&profile, &tree);
    let total = tree.nodes.first().map_or(0, |root| root.value);
    let height = TOP + ROW * (f64::from(layout.depth) + 1.0) + FOOT;
    let mut text = String::with_capacity(8 << 10);
    opening(&mut text, (title, &shortened(subtitle, 200)), height, total, None);
    legend(&mut text, difference.noise_text());
    controls(&mut text);
    out.write_all(text.as_bytes())?;
    for &placed in &layout.frames {
        text.clear();
        frame(&mut text, difference, &tree, placed);
        out.write_all(text.as_bytes())?;
    }
    text.clear();
    foot(&mut text, total, &layout, height);
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The tree with widths in place of values, node by node.
fn tree_of(difference: &Difference, names: &mut ProfileBuilder) -> CallTree {
    let mut nodes: Vec<Node> = Vec::with_capacity(difference.stacks.len());
    let known: Vec<_> =
        difference.names.iter().map(|name| (names.string(&name.text), name.kind)).collect();
    for stack in &difference.stacks {
        let (name, kind) = known.get(stack.name as usize).copied().unwrap_or_default();
        let kind = match kind {
            Some(kind) => NodeKind::Frame(kind),
            None if nodes.is_empty() => NodeKind::All,
            None => NodeKind::Process,
        };
        let (before, after) = stack.own.shares(difference.total);
        let above = nodes.get(stack.caller as usize).map(|caller| caller.depth.saturating_add(1));
        nodes.push(Node {
            parent: stack.caller,
            name,
            kind,
            depth: above.unwrap_or(0),
            value: 0,
            samples: 0,
            place: Place::default(),
            own: ((before + after) / 2.0 * WHOLE).round() as i64,
        });
    }
    CallTree::of_nodes(nodes)
}

fn frame(text: &mut String, difference: &Difference, tree: &CallTree, placed: Placed) {
    let place = placed.node as usize;
    let (Some(node), Some(stack)) = (tree.nodes.get(place), difference.stacks.get(place)) else {
        return;
    };
    let total = tree.nodes.first().map_or(0, |root| root.value);
    let all;
    let name = if place == 0 {
        "all"
    } else {
        all = visible(difference.name_of(stack).map_or("", |name| &name.text));
        &shortened(&all, LONGEST_NAME)
    };
    put(
        text,
        format_args!(
            "<g class=\"{}\" data-x=\"{}\" data-v=\"{}\"><title>",
            class(stack.share_change, difference.noise(stack.value)),
            placed.start,
            node.value
        ),
    );
    push_xml(text, name);
    text.push('\n');
    push_figures(text, difference, stack);
    body(text, name, place_of(placed, node.value, total), node.depth);
}

/// `(12.00 % → 15.50 %: +3.50, self +1.20; 1.2 s → 1.6 s)`
fn push_figures(text: &mut String, difference: &Difference, stack: &StackDifference) {
    let (before, after) = stack.value.shares(difference.total);
    let own = stack.own.shares(difference.total);
    put(
        text,
        format_args!(
            "({:.2} % → {:.2} %: {:+.2}, self {:+.2}; ",
            100.0 * before,
            100.0 * after,
            100.0 * (after - before),
            100.0 * (own.1 - own.0),
        ),
    );
    push_xml(text, &quantity(stack.value.before, &difference.unit));
    text.push_str(" → ");
    push_xml(text, &quantity(stack.value.after, &difference.unit));
    text.push(')');
}

/// The CSS class: `w` where it did not change, `r0` to `r4` where it grew, `b0` to `b4` where it
/// shrank.
fn class(change: f64, noise: f64) -> String {
    let size = change.abs();
    if size < noise {
        return "w".to_owned();
    }
    let depth = STEPS.iter().filter(|&&step| size >= step).count();
    format!("{}{depth}", if change > 0.0 { 'r' } else { 'b' })
}

/// The scale: percentage points at which each colour starts.
fn legend(text: &mut String, noise: &str) {
    const WIDE: f64 = 34.0;
    let steps = || std::iter::once(0.0).chain(STEPS).enumerate();
    let shrank = steps().map(|(depth, step)| (format!("b{depth}"), -step));
    let grew = steps().map(|(depth, step)| (format!("r{depth}"), step));
    let mut scale: Vec<(String, f64)> = shrank.collect();
    scale.reverse();
    scale.push(("w".to_owned(), f64::NAN));
    scale.extend(grew);
    put(
        text,
        format_args!("<text class=\"l\" x=\"{MARGIN}\" y=\"77\">share of all, in points:</text>\n"),
    );
    let mut x = MARGIN + 158.0;
    for (class, step) in scale {
        let label = match step {
            step if step.is_nan() => "same".to_owned(),
            0.0 => "<½".to_owned(),
            step => format!("{:+}", 100.0 * step),
        };
        put(
            text,
            format_args!(
                "<rect class=\"{class}\" x=\"{x}\" y=\"64\" width=\"{WIDE}\" height=\"17\"/>\
                 <text class=\"l c\" x=\"{}\" y=\"77\" text-anchor=\"middle\">",
                x + WIDE / 2.0
            ),
        );
        push_xml(text, &label);
        text.push_str("</text>\n");
        x += WIDE;
    }
    put(
        text,
        format_args!("<text class=\"l\" x=\"{}\" y=\"77\">same: within {noise}</text>\n", x + 12.0),
    );
}

#[cfg(test)]
mod tests {
    use super::write_difference;
    use crate::difference::Difference;
    use crate::folded;

    fn picture(before: &str, after: &str) -> String {
        let [before, after] =
            [before, after].map(|text| folded::read(text).expect("it is folded stacks"));
        let difference = Difference::between(&before, &after, "samples");
        let mut bytes = Vec::new();
        write_difference(&difference, "before and <after>", "", &mut bytes).expect("it is written");
        String::from_utf8(bytes).expect("it is text")
    }

    fn class_of<'t>(picture: &'t str, name: &str) -> &'t str {
        let at = picture.find(&format!("<title>{name}\n")).expect("it is drawn");
        let start = picture[..at].rfind("class=\"").expect("it has a class") + 7;
        picture[start..].split('"').next().unwrap_or_default()
    }

    #[test]
    fn what_grew_is_red_what_shrank_is_blue_and_the_rest_is_neither() {
        let picture = picture(
            "app;main;old 50\napp;main;same 40\napp;main;less 10",
            "app;main;new 100\napp;main;same 80\napp;main;less 10\napp;main;less 10",
        );
        assert_eq!(class_of(&picture, "old"), "b4");
        assert_eq!(class_of(&picture, "new"), "r4");
        assert_eq!(class_of(&picture, "same"), "w");
        assert_eq!(class_of(&picture, "less"), "w");
        assert_eq!(class_of(&picture, "main"), "w");
        assert!(picture.contains("before and &lt;after&gt;"));
        assert!(picture.contains("(50.00 % → 0.00 %: -50.00, self -50.00; 50 → 0)"), "{picture}");
    }

    #[test]
    fn nothing_at_all_is_a_picture_too() {
        let mut bytes = Vec::new();
        write_difference(&Difference::default(), "nothing", "", &mut bytes).expect("it is written");
        assert!(String::from_utf8(bytes).expect("it is text").contains("no samples"));
    }
}
