//! Samples merged into one tree of calls by name, for flame graphs and folded stacks.
//!
//! Stacks share callers in the profile already, so each distinct caller is resolved to a node
//! once, not once for each sample. Inlined functions are frames of their own.
//!
//! Invariant: a node's value is its own plus its children's, up to saturation; children come
//! after their parent.

use hashbrown::HashMap;

use crate::format::FrameView;
use crate::kind::FrameKind;
use crate::model::{Frame, LocationId, Profile, StackId, StringId};

/// What stands above the frames of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    /// The thread's name, as folded stacks have it.
    Comm,
    /// The process, and below it the thread if it has a name of its own.
    ProcessThenComm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NodeKind {
    All,
    Process,
    Frame(FrameKind),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) parent: u32,
    pub(crate) name: StringId,
    pub(crate) kind: NodeKind,
    pub(crate) depth: u32,
    /// Of the shown sample type, children included.
    pub(crate) value: i64,
    /// Number of samples (if the profile counts them), children included.
    pub(crate) samples: i64,
    /// Of the shown sample type, without children.
    pub(crate) own: i64,
}

pub(crate) struct CallTree {
    /// The first is the root, which stands for all.
    pub(crate) nodes: Vec<Node>,
    children: HashMap<(u32, StringId, NodeKind), u32>,
    known_stacks: HashMap<(u32, StackId), u32>,
}

impl CallTree {
    /// The tree of the samples' values at `shown`, with those at `counting` beside them.
    /// Values that are not positive are left out: they have no width.
    pub(crate) fn new(
        profile: &Profile,
        roots: Roots,
        shown: usize,
        counting: Option<usize>,
        hidden: fn(&FrameView<'_>) -> bool,
    ) -> Self {
        let root = Node {
            parent: 0,
            name: StringId::default(),
            kind: NodeKind::All,
            depth: 0,
            value: 0,
            samples: 0,
            own: 0,
        };
        let mut tree =
            Self { nodes: vec![root], children: HashMap::new(), known_stacks: HashMap::new() };
        for sample in profile.samples() {
            let value = sample.values.get(shown).copied().unwrap_or(0);
            if value <= 0 {
                continue;
            }
            let identity = profile.identity(sample.labels);
            let mut top = 0;
            let owners = match roots {
                Roots::Comm => [identity.comm, identity.comm],
                Roots::ProcessThenComm => [identity.process, identity.comm],
            };
            if owners[0] != StringId::default() {
                top = tree.child(top, owners[0], NodeKind::Process);
            }
            if owners[1] != owners[0] && owners[1] != StringId::default() {
                top = tree.child(top, owners[1], NodeKind::Process);
            }
            let leaf = tree.node_of(profile, top, sample.stack, hidden);
            if let Some(node) = tree.nodes.get_mut(leaf as usize) {
                let count = counting.and_then(|at| sample.values.get(at)).copied();
                node.own = node.own.saturating_add(value);
                node.samples = node.samples.saturating_add(count.unwrap_or(0).max(0));
            }
        }
        tree.known_stacks = HashMap::new();
        tree.children = HashMap::new();
        tree.sum();
        tree
    }

    /// A tree whose nodes have values of their own only; callers come before what they call.
    pub(crate) fn of_nodes(nodes: Vec<Node>) -> Self {
        let mut tree = Self { nodes, children: HashMap::new(), known_stacks: HashMap::new() };
        tree.sum();
        tree
    }

    fn node_of(
        &mut self,
        profile: &Profile,
        top: u32,
        stack: StackId,
        hidden: fn(&FrameView<'_>) -> bool,
    ) -> u32 {
        let mut missing: Vec<(StackId, LocationId)> = Vec::new();
        let mut at = stack;
        let mut node = loop {
            let Some(leaf) = profile.stacks.leaf(at.0) else { break top };
            if let Some(&known) = self.known_stacks.get(&(top, at)) {
                break known;
            }
            missing.push((at, LocationId(leaf.location)));
            at = StackId(leaf.caller);
        };
        for &(stack, location) in missing.iter().rev() {
            let location = profile.location(location);
            let mapping = location.mapping.map(|mapping| profile.mapping(mapping));
            let mapping = mapping.map_or("", |mapping| profile.string(mapping.path));
            for frame in profile.frames(location).iter().rev() {
                let Frame { name, kind, .. } = *frame;
                if hidden(&FrameView { kind, name: profile.string(name), mapping }) {
                    continue;
                }
                node = self.child(node, name, NodeKind::Frame(kind));
            }
            self.known_stacks.insert((top, stack), node);
        }
        node
    }

    fn child(&mut self, parent: u32, name: StringId, kind: NodeKind) -> u32 {
        let Ok(next) = u32::try_from(self.nodes.len()) else { return parent };
        let child = *self.children.entry((parent, name, kind)).or_insert(next);
        if child == next {
            let above = self.nodes.get(parent as usize).map_or(0, |node| node.depth);
            let depth = above.saturating_add(1);
            self.nodes.push(Node { parent, name, kind, depth, value: 0, samples: 0, own: 0 });
        }
        child
    }

    fn sum(&mut self) {
        for position in (0..self.nodes.len()).rev() {
            let Some(node) = self.nodes.get_mut(position) else { continue };
            node.value = node.value.saturating_add(node.own);
            let (parent, value, samples) = (node.parent as usize, node.value, node.samples);
            if position == 0 {
                continue;
            }
            if let Some(parent) = self.nodes.get_mut(parent) {
                parent.value = parent.value.saturating_add(value);
                parent.samples = parent.samples.saturating_add(samples);
            }
        }
    }
}
