//! Samples merged into one tree of calls by name, for flame graphs and folded stacks.
//!
//! Stacks share callers in the profile already, so each distinct caller is resolved to a node
//! once, not once for each sample. Inlined functions are frames of their own.
//!
//! [`lay`] goes through a profile for any tree that is made like this one.
//!
//! Invariant: a node's value is its own plus its children's, up to saturation; children come
//! after their parent.

use crate::format::{FrameView, View};
use crate::idle::{self, Idle};
use crate::intern::Children;
use crate::kind::FrameKind;
use crate::model::{Frame, LabelsId, LocationId, Profile, Sample, StackId, StringId};

/// The nodes above the frames of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    /// The process, and below it the thread if it has a name of its own.
    ProcessThenComm,
    /// The same, and processes of one name stand apart.
    PidThenComm,
}

/// The location of a function, as far as the profile has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The path of its code.
    pub(crate) module: StringId,
    pub(crate) file: StringId,
    /// The lines that were sampled in it; 0 if unknown.
    pub(crate) first_line: u32,
    pub(crate) last_line: u32,
}

impl Place {
    fn with(self, other: Self) -> Self {
        if self == Self::default() {
            return other;
        }
        if other.file != self.file || other.first_line == 0 {
            return self;
        }
        let first_line = match self.first_line {
            0 => other.first_line,
            line => line.min(other.first_line),
        };
        Self { first_line, last_line: self.last_line.max(other.last_line), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NodeKind {
    All,
    Process,
    /// A process that stands apart from others of its name.
    Pid(u32),
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
    pub(crate) place: Place,
}

pub(crate) struct CallTree {
    /// The first is the root, which stands for all.
    pub(crate) nodes: Vec<Node>,
    children: Children,
    counting: Option<usize>,
}

impl CallTree {
    /// The tree of the samples' values at `shown`, with those at `counting` beside them.
    /// Values that are not positive are left out: they have no width.
    pub(crate) fn new(
        profile: &Profile,
        roots: Roots,
        shown: usize,
        counting: Option<usize>,
        view: View,
    ) -> Self {
        let root = Node {
            parent: 0,
            name: StringId::default(),
            kind: NodeKind::All,
            depth: 0,
            value: 0,
            samples: 0,
            own: 0,
            place: Place::default(),
        };
        let mut tree = Self { nodes: vec![root], children: Children::default(), counting };
        lay(profile, roots, shown, view, &mut tree);
        tree.children = Children::default();
        tree.sum();
        tree
    }

    /// A tree of which only self values are given; callers come before their callees.
    pub(crate) fn of_nodes(nodes: Vec<Node>) -> Self {
        let mut tree = Self { nodes, children: Children::default(), counting: None };
        tree.sum();
        tree
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

impl Branches for CallTree {
    fn child(&mut self, parent: u32, name: StringId, kind: NodeKind) -> u32 {
        let next = self.nodes.len();
        let nodes = &self.nodes;
        let key = (parent, name, kind);
        let key_at = |node: u32| {
            nodes.get(node as usize).map_or(key, |node| (node.parent, node.name, node.kind))
        };
        let Some(child) = self.children.position_of(parent, &key, next, key_at) else {
            return parent;
        };
        if child as usize == next {
            let above = self.nodes.get(parent as usize).map_or(0, |node| node.depth);
            let depth = above.saturating_add(1);
            let place = Place::default();
            self.nodes.push(Node {
                parent,
                name,
                kind,
                depth,
                value: 0,
                samples: 0,
                own: 0,
                place,
            });
        }
        child
    }

    fn note(&mut self, node: u32, place: Place) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.place = node.place.with(place);
        }
    }

    fn add(&mut self, node: u32, value: i64, sample: Sample<'_>) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            let count = self.counting.and_then(|at| sample.values.get(at)).copied();
            node.own = node.own.saturating_add(value);
            node.samples = node.samples.saturating_add(count.unwrap_or(0).max(0));
        }
    }
}

/// A tree of calls: its nodes are known by their parent, name and kind. 0 is the root.
pub(crate) trait Branches {
    /// A full tree gives the parent itself.
    fn child(&mut self, parent: u32, name: StringId, kind: NodeKind) -> u32;

    /// Where the function of a node lies, once for each of its locations below a caller.
    fn note(&mut self, _node: u32, _place: Place) {}

    fn add(&mut self, node: u32, value: i64, sample: Sample<'_>);
}

/// Adds every sample whose value at `shown` is positive to its stack's node.
pub(crate) fn lay(
    profile: &Profile,
    roots: Roots,
    shown: usize,
    view: View,
    tree: &mut impl Branches,
) {
    let mut laying = Laying {
        profile,
        hidden: view.hidden,
        tops: Vec::new(),
        known: Vec::new(),
        of_stacks: Children::default(),
        places: vec![None; profile.locations.len()],
        frames: Vec::new(),
        missing: Vec::new(),
    };
    for sample in profile.samples() {
        let value = sample.values.get(shown).copied().unwrap_or(0);
        if value <= 0 {
            continue;
        }
        let top = laying.top(tree, roots, sample.labels);
        let kind = match view.idle {
            Idle::Whole => None,
            Idle::Folded | Idle::Hidden => idle::of_labels(profile, sample.labels),
        };
        let leaf = match kind {
            None => laying.node_of(tree, top, sample.stack),
            Some(_) if view.idle == Idle::Hidden => continue,
            Some((label, kind)) => {
                let idle = tree.child(top, label, NodeKind::Frame(FrameKind::Marker));
                tree.child(idle, kind, NodeKind::Frame(FrameKind::Marker))
            }
        };
        tree.add(leaf, value, sample);
    }
}

/// A stack below a process or thread, and the node that was found for it.
#[derive(Clone, Copy)]
struct Known {
    stack: u32,
    top: u32,
    node: u32,
}

/// What is known about a profile while it is added to a tree.
struct Laying<'p> {
    profile: &'p Profile,
    hidden: fn(&FrameView<'_>) -> bool,
    /// By label set.
    tops: Vec<Option<u32>>,
    known: Vec<Known>,
    /// The places of a stack in `known`.
    of_stacks: Children,
    /// By location where its frames are in `frames`, the caller first.
    places: Vec<Option<(u32, u32)>>,
    frames: Vec<(StringId, FrameKind, Place)>,
    /// Stacks from a leaf up, by place in `known`.
    missing: Vec<(Option<u32>, LocationId)>,
}

impl Laying<'_> {
    /// The node of a sample's process or thread.
    fn top(&mut self, tree: &mut impl Branches, roots: Roots, labels: LabelsId) -> u32 {
        if let Some(Some(top)) = self.tops.get(labels.position()) {
            return *top;
        }
        let identity = self.profile.identity(labels);
        let owners = [identity.process, identity.comm];
        let process = match (roots, identity.pid) {
            (Roots::PidThenComm, Some(pid)) => NodeKind::Pid(pid),
            _ => NodeKind::Process,
        };
        let mut top = 0;
        if owners[0] != StringId::default() || process != NodeKind::Process {
            top = tree.child(top, owners[0], process);
        }
        if owners[1] != owners[0] && owners[1] != StringId::default() {
            top = tree.child(top, owners[1], NodeKind::Process);
        }
        if self.tops.len() <= labels.position() {
            self.tops.resize(labels.position().saturating_add(1), None);
        }
        if let Some(place) = self.tops.get_mut(labels.position()) {
            *place = Some(top);
        }
        top
    }

    fn node_of(&mut self, tree: &mut impl Branches, top: u32, stack: StackId) -> u32 {
        self.missing.clear();
        let mut at = stack.0;
        let mut node = loop {
            let Some(leaf) = self.profile.stacks.leaf(at) else { break top };
            let next = self.known.len();
            let known = &self.known;
            let key_at = |place: u32| {
                known.get(place as usize).map_or((at, top), |known| (known.stack, known.top))
            };
            let place = self.of_stacks.position_of(at, &(at, top), next, key_at);
            match place.and_then(|place| self.known.get(place as usize)) {
                Some(known) => break known.node,
                // Its node is found below, where its caller's is known.
                None if place.is_some() => self.known.push(Known { stack: at, top, node: top }),
                None => {}
            }
            self.missing.push((place, LocationId(leaf.location)));
            at = leaf.caller;
        };
        while let Some((place, location)) = self.missing.pop() {
            let (start, end) = self.frames_of(location);
            for at in start..end {
                let Some(&(name, kind, place)) = self.frames.get(at as usize) else { break };
                node = tree.child(node, name, NodeKind::Frame(kind));
                tree.note(node, place);
            }
            if let Some(known) = place.and_then(|place| self.known.get_mut(place as usize)) {
                known.node = node;
            }
        }
        node
    }

    /// Where the frames of a location that are not hidden lie.
    fn frames_of(&mut self, id: LocationId) -> (u32, u32) {
        let Some(place) = self.places.get_mut(id.position()) else { return (0, 0) };
        if let Some(place) = *place {
            return place;
        }
        let position = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let profile = self.profile;
        let location = profile.location(id);
        let mapping = profile.path_of(location);
        let start = position(self.frames.len());
        let module = location.mapping.map(|mapping| profile.mapping(mapping).path);
        let module = module.unwrap_or_default();
        for &Frame { name, kind, file, line, .. } in profile.frames(location).iter().rev() {
            if !(self.hidden)(&FrameView { kind, name: profile.string(name), mapping }) {
                let place = Place { module, file, first_line: line, last_line: line };
                self.frames.push((name, kind, place));
            }
        }
        *place.insert((start, position(self.frames.len())))
    }
}
