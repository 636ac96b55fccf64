//! What changed between two profiles: stack by stack for a picture, function by function for a
//! table.
//!
//! Stacks are compared by the names and kinds of their frames, so two recordings of different
//! processes, days or versions compare. Windows of different length do too, by shares: see
//! [`StackDifference::share_change`].
//!
//! Invariant: every positive value of both profiles is in exactly one stack, up to saturation; a
//! function that calls itself counts once in a stack.

use hashbrown::HashMap;
use serde::Serialize;

use crate::format::{FrameView, show_all};
use crate::kind::FrameKind;
use crate::model::{Profile, StringId};
use crate::tree::{CallTree, NodeKind, Roots};

/// A value before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    pub before: i64,
    pub after: i64,
}

/// Two profiles, compared by one sample type.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    pub sample_type: String,
    pub unit: String,
    pub total: Change,
    /// The first is the root, which stands for all; callers come before what they call.
    pub stacks: Vec<StackDifference>,
    /// Those whose own share changed most come first.
    pub functions: Vec<FunctionDifference>,
}

/// A node of the tree of calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackDifference {
    /// The position of its caller in [`Difference::stacks`]; the root is its own.
    pub caller: usize,
    pub name: String,
    /// `None` for the root, processes and threads.
    pub kind: Option<FrameKind>,
    /// Without and with what it calls.
    pub own: Change,
    pub value: Change,
    /// By how much its share of all grew: -1 to 1.
    pub share_change: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionDifference {
    pub name: String,
    pub kind: FrameKind,
    /// In stacks whose leaf it is.
    pub own: Change,
    /// In stacks that it is in.
    pub value: Change,
    /// By how much its share of all grew, without and with what it calls.
    pub own_share_change: f64,
    pub share_change: f64,
}

impl Change {
    /// Both as parts of `total`: 0 to 1.
    #[must_use]
    pub fn shares(self, total: Self) -> (f64, f64) {
        (share(self.before, total.before), share(self.after, total.after))
    }

    fn share_change(self, total: Self) -> f64 {
        let (before, after) = self.shares(total);
        after - before
    }

    fn add(&mut self, other: Self) {
        self.before = self.before.saturating_add(other.before);
        self.after = self.after.saturating_add(other.after);
    }
}

fn share(value: i64, total: i64) -> f64 {
    if total > 0 { value as f64 / total as f64 } else { 0.0 }
}

impl Difference {
    /// Compares the sample type of this name. A profile without it has nothing of it.
    #[must_use]
    pub fn between(before: &Profile, after: &Profile, sample_type: &str) -> Self {
        Self::between_shown(before, after, sample_type, show_all)
    }

    /// The same without the frames that `hidden` says; what they called stands below their
    /// callers.
    #[must_use]
    pub fn between_shown(
        before: &Profile,
        after: &Profile,
        sample_type: &str,
        hidden: fn(&FrameView<'_>) -> bool,
    ) -> Self {
        let mut overlay = Overlay::new(sample_type);
        overlay.lay(before, hidden, |value| Change { before: value, after: 0 });
        overlay.lay(after, hidden, |value| Change { before: 0, after: value });
        overlay.finish()
    }
}

/// A node of both trees; names are numbers, because there are millions of nodes and few names.
struct Overlaid {
    caller: usize,
    name: usize,
    kind: NodeKind,
    own: Change,
    value: Change,
}

/// The tree of one profile, laid over the other's.
struct Overlay {
    sample_type: String,
    unit: String,
    names: HashMap<String, usize>,
    nodes: Vec<Overlaid>,
    children: HashMap<(usize, usize, NodeKind), usize>,
}

impl Overlay {
    fn new(sample_type: &str) -> Self {
        let (own, value) = (Change::default(), Change::default());
        Self {
            sample_type: sample_type.to_owned(),
            unit: String::new(),
            names: HashMap::from([(String::new(), 0)]),
            nodes: vec![Overlaid { caller: 0, name: 0, kind: NodeKind::All, own, value }],
            children: HashMap::new(),
        }
    }

    fn lay(
        &mut self,
        profile: &Profile,
        hidden: fn(&FrameView<'_>) -> bool,
        change: impl Fn(i64) -> Change,
    ) {
        let Some(shown) = profile.sample_type(&self.sample_type) else { return };
        if let Some(kind) = profile.sample_types.get(shown) {
            profile.string(kind.unit).clone_into(&mut self.unit);
        }
        let tree = CallTree::new(profile, Roots::ProcessThenComm, shown, None, hidden);
        let mut known: HashMap<StringId, usize> = HashMap::new();
        let mut places: Vec<usize> = Vec::with_capacity(tree.nodes.len());
        for node in &tree.nodes {
            let place = match places.get(node.parent as usize) {
                None => 0,
                Some(&caller) => {
                    let name = *known.entry(node.name).or_insert_with(|| {
                        let next = self.names.len();
                        *self.names.entry_ref(profile.string(node.name)).or_insert(next)
                    });
                    self.child(caller, name, node.kind)
                }
            };
            places.push(place);
            if let Some(stack) = self.nodes.get_mut(place) {
                stack.own.add(change(node.own));
                stack.value.add(change(node.value));
            }
        }
    }

    fn child(&mut self, caller: usize, name: usize, kind: NodeKind) -> usize {
        let next = self.nodes.len();
        let place = *self.children.entry((caller, name, kind)).or_insert(next);
        if place == next {
            let (own, value) = (Change::default(), Change::default());
            self.nodes.push(Overlaid { caller, name, kind, own, value });
        }
        place
    }

    fn finish(self) -> Difference {
        let total = self.nodes.first().map_or(Change::default(), |root| root.value);
        let mut names = vec![""; self.names.len()];
        for (name, &number) in &self.names {
            if let Some(place) = names.get_mut(number) {
                *place = name;
            }
        }
        let name = |number: usize| names.get(number).copied().unwrap_or_default();
        let stack = |node: &Overlaid| StackDifference {
            caller: node.caller,
            name: name(node.name).to_owned(),
            kind: frame_kind(node.kind),
            own: node.own,
            value: node.value,
            share_change: node.value.share_change(total),
        };
        Difference {
            stacks: self.nodes.iter().map(stack).collect(),
            functions: self.functions(total, name),
            sample_type: self.sample_type,
            unit: self.unit,
            total,
        }
    }

    fn functions<'n>(
        &self,
        total: Change,
        name_of: impl Fn(usize) -> &'n str,
    ) -> Vec<FunctionDifference> {
        let mut changes: HashMap<(usize, FrameKind), (Change, Change)> = HashMap::new();
        for node in &self.nodes {
            let Some(kind) = frame_kind(node.kind) else { continue };
            let (own, value) = changes.entry((node.name, kind)).or_default();
            own.add(node.own);
            if !self.is_recursion(node) {
                value.add(node.value);
            }
        }
        let function = |((name, kind), (own, value)): ((usize, FrameKind), (Change, Change))| {
            FunctionDifference {
                name: name_of(name).to_owned(),
                kind,
                own,
                value,
                own_share_change: own.share_change(total),
                share_change: value.share_change(total),
            }
        };
        let mut functions: Vec<_> = changes.into_iter().map(function).collect();
        functions.sort_by(|one, other| {
            let by_own = other.own_share_change.abs().total_cmp(&one.own_share_change.abs());
            let by_all = other.share_change.abs().total_cmp(&one.share_change.abs());
            by_own.then(by_all).then_with(|| (&one.name, one.kind).cmp(&(&other.name, other.kind)))
        });
        functions
    }

    /// Whether the same function is among the callers already.
    fn is_recursion(&self, node: &Overlaid) -> bool {
        let mut at = node.caller;
        // Callers come before what they call, so this ends at the root.
        while let Some(caller) = self.nodes.get(at).filter(|_| at != 0) {
            if caller.name == node.name && caller.kind == node.kind {
                return true;
            }
            at = caller.caller;
        }
        false
    }
}

fn frame_kind(kind: NodeKind) -> Option<FrameKind> {
    match kind {
        NodeKind::Frame(kind) => Some(kind),
        NodeKind::All | NodeKind::Process => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, Difference};
    use crate::folded;

    fn between(before: &str, after: &str) -> Difference {
        let [before, after] =
            [before, after].map(|text| folded::read(text).expect("it is folded stacks"));
        Difference::between(&before, &after, "samples")
    }

    #[test]
    fn stacks_that_came_went_and_stayed_are_told_apart() {
        let difference =
            between("app;main;old 6\napp;main;same 4", "app;main;new 5\napp;main;same 15");
        assert_eq!(difference.total, Change { before: 10, after: 20 });
        let of = |name: &str| {
            let found = difference.stacks.iter().find(|stack| stack.name == name);
            found.map(|stack| (stack.value, stack.share_change))
        };
        assert_eq!(of("old"), Some((Change { before: 6, after: 0 }, -0.6)));
        assert_eq!(of("new"), Some((Change { before: 0, after: 5 }, 0.25)));
        assert_eq!(of("same"), Some((Change { before: 4, after: 15 }, 0.75 - 0.4)));
        assert_eq!(of("main"), Some((Change { before: 10, after: 20 }, 0.0)));
        assert_eq!(difference.functions[0].name, "old");
    }

    #[test]
    fn the_same_profile_twice_as_long_has_not_changed() {
        let difference = between("app;main;work 3\napp;main 1", "app;main;work 6\napp;main 2");
        assert!(difference.stacks.iter().all(|stack| stack.share_change == 0.0));
        assert!(difference.functions.iter().all(|function| function.own_share_change == 0.0));
    }

    #[test]
    fn a_function_that_calls_itself_counts_once() {
        let difference = between("app;walk;walk;walk 5", "app;walk;walk 7");
        let walk = difference.functions.iter().find(|function| function.name == "walk");
        let walk = walk.expect("it is there");
        assert_eq!(walk.value, Change { before: 5, after: 7 });
        assert_eq!(walk.own, Change { before: 5, after: 7 });
    }
}
