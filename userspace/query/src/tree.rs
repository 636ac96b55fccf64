//! A profile as a tree of calls for a terminal: from the roots down, or from a function to its
//! callers.
//!
//! Invariant: a sample is counted once, at the occurrence of the function that is nearest the running
//! code; a node's value is at least that of all below it.

use std::collections::BTreeMap;

use strata_profile::{FrameKind, LocationId, Profile};
use strata_store::Pattern;

/// The kind of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    name: String,
    module: String,
}

#[derive(Debug, Default)]
pub struct Node {
    pub name: String,
    /// The file of its code, without folders; empty for kernel code.
    pub module: String,
    pub value: i64,
    /// The largest first.
    pub below: Vec<Node>,
}

#[derive(Default)]
struct Growing {
    value: i64,
    below: BTreeMap<Key, Growing>,
}

impl Growing {
    fn add(&mut self, path: impl Iterator<Item = Key>, value: i64) {
        let mut at = self;
        at.value = at.value.saturating_add(value);
        for key in path.take(DEEPEST) {
            at = at.below.entry(key).or_default();
            at.value = at.value.saturating_add(value);
        }
    }

    fn finish(self, key: Key) -> Node {
        let mut below: Vec<Node> =
            self.below.into_iter().map(|(key, node)| node.finish(key)).collect();
        below.sort_by_key(|node| std::cmp::Reverse(node.value));
        Node { name: key.name, module: key.module, value: self.value, below }
    }
}

/// The most levels kept: more than a terminal has columns for.
const DEEPEST: usize = 256;

/// From processes down to the leaves.
#[must_use]
pub fn calls(profile: &Profile, sample_type: usize) -> Node {
    let mut tree = Growing::default();
    for sample in profile.samples() {
        let value = sample.values.get(sample_type).copied().unwrap_or(0);
        if value <= 0 {
            continue;
        }
        let process = profile.string(profile.identity(sample.labels).process);
        let mut frames: Vec<Key> =
            profile.stack(sample.stack).flat_map(|at| frames_of(profile, at)).collect();
        if !process.is_empty() {
            frames.push(Key { name: process.to_owned(), module: String::new() });
        }
        tree.add(frames.into_iter().rev(), value);
    }
    tree.finish(Key { name: "all".to_owned(), module: String::new() })
}

/// From a function to its callers. `function` is a name, a pattern, or else a part of names.
/// `None` if no function has such a name.
#[must_use]
pub fn callers(profile: &Profile, sample_type: usize, function: &str) -> Option<Node> {
    let pattern = Pattern::new(function);
    callers_of(profile, sample_type, function, |name| pattern.matches(name))
        .or_else(|| callers_of(profile, sample_type, function, |name| name.contains(function)))
}

fn callers_of(
    profile: &Profile,
    sample_type: usize,
    function: &str,
    is_it: impl Fn(&str) -> bool,
) -> Option<Node> {
    let mut tree = Growing::default();
    for sample in profile.samples() {
        let value = sample.values.get(sample_type).copied().unwrap_or(0);
        if value <= 0 {
            continue;
        }
        let frames = profile.stack(sample.stack).flat_map(|at| frames_of(profile, at));
        let mut path = frames.skip_while(|key| !is_it(&key.name)).peekable();
        if path.peek().is_some() {
            tree.add(path, value);
        }
    }
    let root = tree.finish(Key { name: function.to_owned(), module: String::new() });
    // Of one function the function itself is the root, of several their pattern.
    match <[Node; 1]>::try_from(root.below) {
        Ok([one]) => Some(one),
        Err(below) if below.is_empty() => None,
        Err(below) => {
            Some(Node { below, ..Node { name: root.name, value: root.value, ..Node::default() } })
        }
    }
}

/// The functions at a location, the innermost first.
fn frames_of(profile: &Profile, at: LocationId) -> Vec<Key> {
    let location = profile.location(at);
    let path = profile.path_of(location);
    let module = path.rsplit('/').next().unwrap_or_default();
    let key = |frame: &strata_profile::Frame| Key {
        name: profile.string(frame.name).to_owned(),
        module: match frame.kind {
            FrameKind::Kernel | FrameKind::Marker => String::new(),
            _ => module.to_owned(),
        },
    };
    profile.frames(location).iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::{Node, callers, calls};

    fn text(node: &Node, depth: usize, into: &mut String) {
        into.push_str(&format!("{}{} {}\n", " ".repeat(depth), node.name, node.value));
        node.below.iter().for_each(|below| text(below, depth + 1, into));
    }

    fn shown(node: &Node) -> String {
        let mut lines = String::new();
        text(node, 0, &mut lines);
        lines
    }

    #[test]
    fn a_function_has_its_callers_and_recursion_counts_once() {
        let profile = strata_profile::read(
            b"app;main;serve;parse;malloc 3\napp;main;load;malloc 2\napp;main;walk;walk 4\napp;main 1\n",
        )
        .expect("it is folded stacks");
        let of = |function| callers(&profile, 0, function).map(|tree| shown(&tree));
        assert_eq!(
            of("malloc").as_deref(),
            Some("malloc 5\n parse 3\n  serve 3\n   main 3\n load 2\n  main 2\n")
        );
        assert_eq!(of("walk").as_deref(), Some("walk 4\n walk 4\n  main 4\n"));
        assert_eq!(of("all").as_deref(), of("malloc").as_deref(), "a part of a name");
        assert_eq!(of("free"), None);
        let down = shown(&calls(&profile, 0));
        assert!(
            down.starts_with("all 10\n app 10\n  main 10\n   walk 4\n    walk 4\n   serve 3\n"),
            "{down}"
        );
    }
}
