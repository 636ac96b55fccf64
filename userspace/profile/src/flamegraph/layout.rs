//! Chooses which frames of the tree are drawn, and their positions.
//!
//! Callers above, callees below, the widest on the left: the same profile is always the same
//! picture. Positions and widths are in the unit of the profile's values, so nothing is rounded
//! before it is drawn.
//!
//! Invariant: a frame that is drawn has all its callers drawn, and at most [`MOST_FRAMES`] are.
//! What is left out is only not drawn: the widths of its callers contain it.

use std::cmp::Reverse;

use hashbrown::HashMap;

use crate::model::Profile;
use crate::tree::CallTree;

/// The most frames in one picture: a few megabytes of SVG, which a browser handles smoothly.
pub(super) const MOST_FRAMES: usize = 20_000;
/// The most frames drawn of one stack: strata records at most 1,151.
const DEEPEST: u32 = 1_200;
/// The narrowest frame that is drawn, as a part of the whole picture.
const NARROWEST: f64 = 0.05 / 1_200.0;

/// A frame in the picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) node: u32,
    /// Its start, in the unit of the values.
    pub(super) start: i64,
}

pub(super) struct Layout {
    /// Callers before their callees.
    pub(super) frames: Vec<Placed>,
    /// Rows below the first.
    pub(super) depth: u32,
    /// The number of frames not drawn.
    pub(super) left_out: usize,
}

pub(super) fn lay_out(profile: &Profile, tree: &CallTree) -> Layout {
    let smallest = smallest_drawn(tree);
    let is_drawn = |position: &u32| {
        tree.nodes
            .get(*position as usize)
            .is_some_and(|node| node.value >= smallest && node.depth <= DEEPEST)
    };
    let all = 1..u32::try_from(tree.nodes.len()).unwrap_or(u32::MAX);
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for position in all.filter(is_drawn) {
        let Some(node) = tree.nodes.get(position as usize) else { continue };
        children.entry(node.parent).or_default().push(position);
    }
    let order = |position: &u32| {
        let node = tree.nodes.get(*position as usize);
        (Reverse(node.map(|node| node.value)), node.map(|node| profile.string(node.name)))
    };
    for siblings in children.values_mut() {
        siblings.sort_by_cached_key(order);
    }
    let mut layout = Layout { frames: Vec::new(), depth: 0, left_out: 0 };
    let mut waiting = vec![Placed { node: 0, start: 0 }];
    while let Some(placed) = waiting.pop() {
        let Some(node) = tree.nodes.get(placed.node as usize) else { continue };
        layout.depth = layout.depth.max(node.depth);
        layout.frames.push(placed);
        let mut start = placed.start;
        let first = waiting.len();
        for &child in children.get(&placed.node).map_or(&[][..], Vec::as_slice) {
            waiting.push(Placed { node: child, start });
            let width = tree.nodes.get(child as usize).map_or(0, |node| node.value);
            start = start.saturating_add(width);
        }
        if let Some(added) = waiting.get_mut(first..) {
            added.reverse();
        }
    }
    layout.left_out = tree.nodes.len().saturating_sub(layout.frames.len());
    layout
}

/// The least value that is drawn. A caller's value is at least its callee's, so this separates no
/// frame from its callers.
fn smallest_drawn(tree: &CallTree) -> i64 {
    let total = tree.nodes.first().map_or(0, |root| root.value);
    let visible = ((total as f64 * NARROWEST).ceil() as i64).max(1);
    let mut values: Vec<i64> =
        tree.nodes.iter().map(|node| node.value).filter(|&value| value >= visible).collect();
    if values.len() <= MOST_FRAMES {
        return visible;
    }
    let (_, &mut next, _) = values.select_nth_unstable_by_key(MOST_FRAMES, |&value| Reverse(value));
    next.saturating_add(1)
}
