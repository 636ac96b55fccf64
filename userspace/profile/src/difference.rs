//! The difference between two profiles: by stack for a flame graph, by function for a table.
//!
//! Stacks are compared by the names and kinds of their frames, so two recordings of different
//! processes, days or versions compare. Windows of different length do too, by shares: see
//! [`StackDifference::share_change`].
//!
//! Invariant: every positive value of both profiles is in exactly one stack, up to saturation; a
//! function that calls itself counts once in a stack.

use hashbrown::HashMap;
use serde::Serialize;

use crate::format::View;
use crate::intern::Children;
use crate::kind::FrameKind;
use crate::model::{Profile, Sample, StringId};
use crate::tree::{Branches, NodeKind, Roots, lay};

/// Smaller changes of a share count as none: a tenth of a percent of the total.
const SMALLEST_CHANGE: f64 = 0.001;

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
    /// The numbers of samples, or of events, in the totals; 0 where a profile does not count them.
    pub samples: Change,
    /// The names of the tree's nodes; the first is the root's.
    pub names: Vec<Name>,
    /// The first is the root, which stands for all; callers come before their callees.
    pub stacks: Vec<StackDifference>,
    /// Those whose own share changed most come first.
    pub functions: Vec<FunctionDifference>,
}

/// The kind of a node in the call tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Name {
    pub text: String,
    /// `None` for the root, processes and threads.
    pub kind: Option<FrameKind>,
}

/// A node of the call tree. Its name is a number, because there are millions of nodes and few
/// names.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StackDifference {
    /// The position of its caller in [`Difference::stacks`]; the root is its own.
    pub caller: u32,
    /// The position of its name in [`Difference::names`].
    pub name: u32,
    /// Self and total values.
    pub own: Change,
    pub value: Change,
    /// The change of its share of the total: -1 to 1.
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
    /// The change of its share of the total, self and with callees.
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
    /// Compares the sample type of this name. A profile without that type contributes nothing.
    #[must_use]
    pub fn between(before: &Profile, after: &Profile, sample_type: &str) -> Self {
        Self::between_shown(before, after, sample_type, View::default())
    }

    /// The same without the frames for which `hidden` is true; their callees are attached to their
    /// callers.
    #[must_use]
    pub fn between_shown(before: &Profile, after: &Profile, sample_type: &str, view: View) -> Self {
        let mut overlay = Overlay::new();
        let mut compared = Self { sample_type: sample_type.to_owned(), ..Self::default() };
        for (profile, side) in [(before, Side::Before), (after, Side::After)] {
            let Some(shown) = profile.sample_type(sample_type) else { continue };
            let samples = profile.count_of(shown).map_or(0, |counting| profile.total(counting));
            compared.samples.add(side.change(samples));
            if let Some(kind) = profile.sample_types.get(shown) {
                profile.string(kind.unit).clone_into(&mut compared.unit);
            }
            let mut laid = Laid { overlay: &mut overlay, profile, side, names: Vec::new() };
            lay(profile, Roots::ProcessThenComm, shown, view, &mut laid);
        }
        overlay.finish(compared)
    }

    /// The largest change of a share that counts as noise: a tenth of a percent of all, or what the
    /// same program would show by chance in one of twenty such comparisons (two standard deviations
    /// for these numbers of samples).
    #[must_use]
    pub fn noise(&self, value: Change) -> f64 {
        let (before, after) = value.shares(self.total);
        let variance = |share: f64, samples: i64| match samples {
            0 => 0.0,
            count => (share * (1.0 - share)).max(0.0) / count as f64,
        };
        let sum = variance(before, self.samples.before) + variance(after, self.samples.after);
        (2.0 * sum.sqrt()).max(SMALLEST_CHANGE)
    }

    /// What is not called a change: see [`noise`](Self::noise).
    #[must_use]
    pub fn noise_text(&self) -> &'static str {
        match self.samples {
            Change { before: 1.., after: 1.. } => "0.1 points, or what chance explains (2σ)",
            _ => "0.1 points",
        }
    }

    /// The name of a node.
    #[must_use]
    pub fn name_of(&self, stack: &StackDifference) -> Option<&Name> {
        self.names.get(stack.name as usize)
    }
}

#[derive(Clone, Copy)]
enum Side {
    Before,
    After,
}

impl Side {
    fn change(self, value: i64) -> Change {
        match self {
            Self::Before => Change { before: value, after: 0 },
            Self::After => Change { before: 0, after: value },
        }
    }
}

/// Both trees in one.
struct Overlay {
    names: HashMap<Name, u32>,
    nodes: Vec<StackDifference>,
    children: Children,
}

/// A profile being translated into both.
struct Laid<'o, 'p> {
    overlay: &'o mut Overlay,
    profile: &'p Profile,
    side: Side,
    /// By the profile's string, as a process and as each kind of frame.
    names: Vec<[Option<u32>; 1 + FrameKind::ALL.len()]>,
}

impl Laid<'_, '_> {
    fn name(&mut self, name: StringId, kind: NodeKind) -> u32 {
        let kind = frame_kind(kind);
        if self.names.len() <= name.position() {
            self.names.resize(name.position().saturating_add(1), Default::default());
        }
        let kinds = self.names.get_mut(name.position());
        let Some(known) = kinds.and_then(|kinds| kinds.get_mut(kind.map_or(0, place_of))) else {
            return 0;
        };
        *known.get_or_insert_with(|| {
            let text = self.profile.string(name).to_owned();
            let next = u32::try_from(self.overlay.names.len()).unwrap_or(u32::MAX);
            *self.overlay.names.entry(Name { text, kind }).or_insert(next)
        })
    }
}

fn place_of(kind: FrameKind) -> usize {
    1 + kind as usize
}

impl Branches for Laid<'_, '_> {
    fn child(&mut self, caller: u32, name: StringId, kind: NodeKind) -> u32 {
        let name = self.name(name, kind);
        let Overlay { nodes, children, .. } = &mut *self.overlay;
        let next = nodes.len();
        let key = (caller, name);
        let key_at =
            |node: u32| nodes.get(node as usize).map_or(key, |node| (node.caller, node.name));
        let Some(child) = children.position_of(caller, &key, next, key_at) else { return caller };
        if child as usize == next {
            nodes.push(StackDifference::new(caller, name));
        }
        child
    }

    fn add(&mut self, node: u32, value: i64, _: Sample<'_>) {
        if let Some(node) = self.overlay.nodes.get_mut(node as usize) {
            node.own.add(self.side.change(value));
        }
    }
}

impl StackDifference {
    fn new(caller: u32, name: u32) -> Self {
        let (own, value) = (Change::default(), Change::default());
        Self { caller, name, own, value, share_change: 0.0 }
    }
}

impl Overlay {
    fn new() -> Self {
        Self {
            names: HashMap::from([(Name::default(), 0)]),
            nodes: vec![StackDifference::new(0, 0)],
            children: Children::default(),
        }
    }

    fn finish(self, compared: Difference) -> Difference {
        let Self { names: numbers, nodes: mut stacks, children } = self;
        drop(children);
        // Callers come before what they call.
        for position in (0..stacks.len()).rev() {
            let Some(stack) = stacks.get_mut(position) else { continue };
            let own = stack.own;
            stack.value.add(own);
            let (caller, value) = (stack.caller as usize, stack.value);
            if let Some(caller) = stacks.get_mut(caller).filter(|_| position != 0) {
                caller.value.add(value);
            }
        }
        let total = stacks.first().map_or(Change::default(), |root| root.value);
        for stack in &mut stacks {
            stack.share_change = stack.value.share_change(total);
        }
        let mut names = vec![Name::default(); numbers.len()];
        for (name, number) in numbers {
            if let Some(place) = names.get_mut(number as usize) {
                *place = name;
            }
        }
        let functions = functions(&stacks, &names, total);
        Difference { total, names, stacks, functions, ..compared }
    }
}

fn functions(stacks: &[StackDifference], names: &[Name], total: Change) -> Vec<FunctionDifference> {
    let mut changes = vec![(Change::default(), Change::default()); names.len()];
    let recursions = recursions(stacks, names.len());
    for (stack, is_recursion) in stacks.iter().zip(recursions).skip(1) {
        let Some((own, value)) = changes.get_mut(stack.name as usize) else { continue };
        own.add(stack.own);
        if !is_recursion {
            value.add(stack.value);
        }
    }
    let function = |(name, (own, value)): (&Name, (Change, Change))| {
        Some(FunctionDifference {
            name: name.text.clone(),
            kind: name.kind?,
            own,
            value,
            own_share_change: own.share_change(total),
            share_change: value.share_change(total),
        })
    };
    let mut functions: Vec<_> = names.iter().zip(changes).filter_map(function).collect();
    functions.sort_by(|one, other| {
        let by_own = other.own_share_change.abs().total_cmp(&one.own_share_change.abs());
        let by_all = other.share_change.abs().total_cmp(&one.share_change.abs());
        by_own.then(by_all).then_with(|| (&one.name, one.kind).cmp(&(&other.name, other.kind)))
    });
    functions
}

/// Which nodes have the same function among their callers.
fn recursions(stacks: &[StackDifference], names: usize) -> Vec<bool> {
    // The first that each calls and the next of the same caller; 0, the root, has no caller.
    let mut first = vec![0_u32; stacks.len()];
    let mut next = vec![0_u32; stacks.len()];
    for position in (1..u32::try_from(stacks.len()).unwrap_or(u32::MAX)).rev() {
        let caller = stacks.get(position as usize).map_or(0, |stack| stack.caller);
        let Some(first) = first.get_mut(caller as usize) else { continue };
        if let Some(next) = next.get_mut(position as usize) {
            *next = std::mem::replace(first, position);
        }
    }
    let mut found = vec![false; stacks.len()];
    // How often a name is on the path from the root to the current node.
    let mut on_the_way = vec![0_u32; names];
    let of = |list: &[u32], at: u32| list.get(at as usize).copied().unwrap_or(0);
    let mut at = of(&first, 0);
    while let Some(stack) = stacks.get(at as usize).filter(|_| at != 0) {
        if let Some(count) = on_the_way.get_mut(stack.name as usize) {
            if let Some(found) = found.get_mut(at as usize) {
                *found = *count > 0;
            }
            *count = count.saturating_add(1);
        }
        let mut going = of(&first, at);
        // Back up to the next sibling.
        while let Some(stack) = stacks.get(at as usize).filter(|_| going == 0 && at != 0) {
            if let Some(count) = on_the_way.get_mut(stack.name as usize) {
                *count = count.saturating_sub(1);
            }
            going = of(&next, at);
            at = stack.caller;
        }
        at = going;
    }
    found
}

fn frame_kind(kind: NodeKind) -> Option<FrameKind> {
    match kind {
        NodeKind::Frame(kind) => Some(kind),
        NodeKind::All | NodeKind::Process | NodeKind::Pid(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use strata_kinds::{Kind, Kinds};

    use super::{Change, Difference, Name};
    use crate::{ProfileBuilder, folded};

    fn between(before: &str, after: &str) -> Difference {
        let [before, after] =
            [before, after].map(|text| folded::read(text).expect("it is folded stacks"));
        Difference::between(&before, &after, "samples")
    }

    #[test]
    fn stacks_that_came_went_and_stayed_are_distinguished() {
        let difference =
            between("app;main;old 6\napp;main;same 4", "app;main;new 5\napp;main;same 15");
        assert_eq!(difference.total, Change { before: 10, after: 20 });
        let of = |name: &str| {
            let is_it = |name_of: Option<&Name>| name_of.is_some_and(|it| it.text == name);
            let found = difference.stacks.iter().find(|stack| is_it(difference.name_of(stack)));
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
    fn what_few_samples_show_by_chance_is_noise() {
        let few = between("app;main;work 5\napp;main;rest 5", "app;main;work 7\napp;main;rest 3");
        let many = between(
            "app;main;work 5000\napp;main;rest 5000",
            "app;main;work 7000\napp;main;rest 3000",
        );
        for (difference, is_noise) in [(few, true), (many, false)] {
            let work = difference.functions.iter().find(|function| function.name == "work");
            let work = work.expect("it is there");
            assert_eq!(work.share_change < difference.noise(work.value), is_noise);
        }
    }

    #[test]
    fn noise_is_that_of_the_events_compared_and_is_called_so_where_they_are_counted() {
        let of = |kinds: Kinds, values: &[i64], sample_type: &str| {
            let mut builder = ProfileBuilder::of_kinds(kinds);
            let stack = builder.stack(&[]);
            let labels = builder.labels(&[]);
            builder.add(stack, labels, values);
            let profile = builder.finish();
            let difference = Difference::between(&profile, &profile, sample_type);
            (difference.samples.before, difference.noise_text())
        };
        let counted = "0.1 points, or what chance explains (2σ)";
        let cpu_and_exceptions = Kinds::NONE.with(Kind::Cpu, true).with(Kind::Exceptions, true);
        assert_eq!(of(cpu_and_exceptions, &[500, 5_000, 12], "exceptions"), (12, counted));
        assert_eq!(of(cpu_and_exceptions, &[500, 5_000, 12], "cpu"), (500, counted));
        assert_eq!(of(Kinds::NONE.with(Kind::Wall, true), &[7_000], "wall"), (0, "0.1 points"));
    }

    #[test]
    fn a_function_that_calls_itself_counts_once() {
        let difference = between("app;walk;walk;walk 5", "app;walk;walk 7");
        let walk = difference.functions.iter().find(|function| function.name == "walk");
        let walk = walk.expect("it is there");
        assert_eq!(walk.value, Change { before: 5, after: 7 });
        assert_eq!(walk.own, Change { before: 5, after: 7 });
    }

    type Stacks = Vec<(Vec<u8>, u8)>;

    fn stacks() -> impl Strategy<Value = Stacks> {
        prop::collection::vec((prop::collection::vec(0_u8..5, 1..6), 1_u8..9), 1..30)
    }

    fn words(functions: &[u8]) -> Vec<String> {
        let functions = functions.iter().map(|function| format!("f{function}"));
        std::iter::once("app".to_owned()).chain(functions).collect()
    }

    fn text(stacks: &Stacks) -> String {
        let line = |(functions, count): &(Vec<u8>, u8)| {
            format!("{} {count}\n", words(functions).join(";"))
        };
        stacks.iter().map(line).collect()
    }

    proptest! {
        #[test]
        fn every_stack_and_function_has_what_was_sampled_in_it(
            before in stacks(), after in stacks(),
        ) {
            let (mut paths, mut functions) = (BTreeMap::new(), BTreeMap::new());
            for (list, is_after) in [(&before, false), (&after, true)] {
                for (stack, count) in list {
                    let count = i64::from(*count);
                    let change = match is_after {
                        false => Change { before: count, after: 0 },
                        true => Change { before: 0, after: count },
                    };
                    let words = words(stack);
                    for length in 0..=words.len() {
                        let value: &mut Change = paths.entry(words[..length].to_vec()).or_default();
                        value.add(change);
                    }
                    for name in words.iter().skip(1).collect::<BTreeSet<_>>() {
                        let value: &mut Change = functions.entry(name.clone()).or_default();
                        value.add(change);
                    }
                }
            }
            let difference = between(&text(&before), &text(&after));
            let mut ways: Vec<Vec<String>> = vec![Vec::new()];
            let mut found = BTreeMap::new();
            for (at, stack) in difference.stacks.iter().enumerate() {
                if at > 0 {
                    let mut way = ways[stack.caller as usize].clone();
                    way.push(difference.name_of(stack).expect("it has a name").text.clone());
                    ways.push(way);
                }
                prop_assert!(found.insert(ways[at].clone(), stack.value).is_none());
            }
            paths.entry(Vec::new()).or_default();
            prop_assert_eq!(found, paths);
            let found: BTreeMap<_, _> =
                difference.functions.iter().map(|it| (it.name.clone(), it.value)).collect();
            prop_assert_eq!(found, functions);
        }
    }
}
