//! Interning tables whose ids are positions: equal items share an id.
//!
//! Strings lie end to end in one buffer. Stacks are a tree in which a node is (caller, location):
//! the callers that stacks share are stored once, a stack's id is its leaf's node, and walking
//! to the root yields it leaf first. A table keeps only positions in its hash index, so a million
//! samples cost tens of megabytes. What hangs in a tree is looked for among its parent's children,
//! which lie near each other, and not in an index of everything, where each look is a cache miss.
//!
//! Invariant: an invalid id finds an empty entry, and never causes a panic. The hash is seeded,
//! since what is hashed belongs to the profiled programs.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

/// An index from items to their positions in a list.
#[derive(Default)]
pub(crate) struct Index {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Index {
    pub(crate) fn hash(&self, thing: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(thing)
    }

    pub(crate) fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        self.table.find(hash, |&position| same(position)).copied()
    }

    /// `hash_at` gives the hash of what is at a position (needed when the table grows).
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        position: u32,
        hash_at: impl Fn(&DefaultHashBuilder, u32) -> u64,
    ) {
        let hasher = &self.hasher;
        self.table.insert_unique(hash, position, |&other| hash_at(hasher, other));
    }
}

/// Children of one parent that are looked through one by one; more are in an index, because a
/// profiled program chooses how many a function calls.
const MOST_IN_A_ROW: u32 = 32;

/// An index of the children of each parent, for lists that are trees: both are positions.
#[derive(Default)]
pub(crate) struct Children {
    /// Positions older than the index are neither parents nor children in it, except parent 0,
    /// which belongs to every tree.
    parents_from: u32,
    children_from: u32,
    /// By parent its first child, and by child the next of the same parent; 0 is none.
    first: Vec<u32>,
    next: Vec<u32>,
    rest: Index,
}

/// The slot for a new child.
enum Place {
    First(usize),
    After(usize),
    Rest(u64),
}

impl Children {
    /// The first positions of parents and children that it covers.
    pub(crate) fn begun_at(parents: usize, children: usize) -> Self {
        let position = |count| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            parents_from: position(parents),
            children_from: position(children),
            ..Self::default()
        }
    }

    /// The child of `parent` that has this key, the parent being part of the key. If there is none
    /// it is the one at `next`, which is added. `None` when the tables are full.
    pub(crate) fn position_of<K: Eq + Hash>(
        &mut self,
        parent: u32,
        key: &K,
        next: usize,
        key_at: impl Fn(u32) -> K,
    ) -> Option<u32> {
        let place = match self.find(parent, key, &key_at) {
            Ok(child) => return Some(child),
            Err(place) => place,
        };
        let child = u32::try_from(next).ok()?;
        let link = child.checked_sub(self.children_from)?.checked_add(1)?;
        match place {
            Place::First(parent) => {
                if self.first.len() <= parent {
                    self.first.resize(parent.saturating_add(1), 0);
                }
                if let Some(first) = self.first.get_mut(parent) {
                    *first = link;
                }
            }
            Place::After(last) => {
                if let Some(next) = self.next.get_mut(last) {
                    *next = link;
                }
            }
            Place::Rest(hash) => {
                let hash_at = |hasher: &DefaultHashBuilder, at| hasher.hash_one(key_at(at));
                self.rest.insert(hash, child, hash_at);
            }
        }
        self.next.resize(link as usize, 0);
        Some(child)
    }

    fn find<K: Eq + Hash>(
        &self,
        parent: u32,
        key: &K,
        key_at: &impl Fn(u32) -> K,
    ) -> Result<u32, Place> {
        let parent = match parent {
            0 => Some(0),
            _ => parent.checked_sub(self.parents_from).and_then(|parent| parent.checked_add(1)),
        };
        if let Some(parent) = parent {
            let parent = parent as usize;
            let mut place = Place::First(parent);
            let mut link = self.first.get(parent).copied().unwrap_or(0);
            for _ in 0..MOST_IN_A_ROW {
                let Some(at) = link.checked_sub(1) else { return Err(place) };
                let child = self.children_from.saturating_add(at);
                if key_at(child) == *key {
                    return Ok(child);
                }
                place = Place::After(at as usize);
                link = self.next.get(at as usize).copied().unwrap_or(0);
            }
        }
        let hash = self.rest.hash(key);
        let found = self.rest.find(hash, |child| key_at(child) == *key);
        found.ok_or(Place::Rest(hash))
    }
}

/// The memory of a list, including its spare capacity.
pub(crate) fn bytes_of<T>(list: &Vec<T>) -> usize {
    list.capacity().saturating_mul(size_of::<T>())
}

/// The strings, in one buffer. Id 0 is the empty string.
#[derive(Clone, Debug)]
pub(crate) struct StringTable {
    text: String,
    ends: Vec<u32>,
}

impl Default for StringTable {
    fn default() -> Self {
        Self { text: String::new(), ends: vec![0] }
    }
}

impl StringTable {
    pub(crate) fn memory(&self) -> usize {
        self.text.capacity().saturating_add(bytes_of(&self.ends))
    }

    pub(crate) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    pub(crate) fn get(&self, id: u32) -> &str {
        let position = id as usize;
        let start = position.checked_sub(1).and_then(|before| self.ends.get(before));
        let start = start.map_or(0, |&start| start as usize);
        let end = self.ends.get(position).map_or(start, |&end| end as usize);
        self.text.get(start..end).unwrap_or_default()
    }

    /// How many there are, with the empty one.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..u32::try_from(self.ends.len()).unwrap_or(u32::MAX)).map(|id| self.get(id))
    }

    /// `None` when the table is full.
    pub(crate) fn intern(&mut self, index: &mut Index, text: &str) -> Option<u32> {
        if text.is_empty() {
            return Some(0);
        }
        let hash = index.hash(text);
        if let Some(id) = index.find(hash, |id| self.get(id) == text) {
            return Some(id);
        }
        let end = u32::try_from(self.text.len().checked_add(text.len())?).ok()?;
        let id = u32::try_from(self.ends.len()).ok()?;
        self.text.push_str(text);
        self.ends.push(end);
        index.insert(hash, id, |hasher, id| hasher.hash_one(self.get(id)));
        Some(id)
    }
}

/// One frame of a stack and the stack of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StackNode {
    pub(crate) caller: u32,
    pub(crate) location: u32,
}

/// The stacks. Id 0 is the empty stack.
#[derive(Clone, Debug)]
pub(crate) struct StackTable {
    nodes: Vec<StackNode>,
}

impl Default for StackTable {
    fn default() -> Self {
        Self { nodes: vec![StackNode { caller: 0, location: 0 }] }
    }
}

impl StackTable {
    pub(crate) fn memory(&self) -> usize {
        bytes_of(&self.nodes)
    }

    pub(crate) fn shrink(&mut self) {
        self.nodes.shrink_to_fit();
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// All but the empty stack. Callers come before their callees.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = StackNode> + '_ {
        self.nodes.iter().skip(1).copied()
    }

    /// The leaf of a stack and the stack of its caller; `None` for the empty stack.
    pub(crate) fn leaf(&self, stack: u32) -> Option<StackNode> {
        if stack == 0 { None } else { self.nodes.get(stack as usize).copied() }
    }

    /// The stack that calls `location` from `caller`; `None` when the table is full.
    pub(crate) fn push(
        &mut self,
        callees: &mut Children,
        caller: u32,
        location: u32,
    ) -> Option<u32> {
        let node = StackNode { caller, location };
        let next = self.nodes.len();
        let nodes = &self.nodes;
        let node_at = |stack: u32| nodes.get(stack as usize).copied().unwrap_or(node);
        let stack = callees.position_of(caller, &node, next, node_at)?;
        if stack as usize == next {
            self.nodes.push(node);
        }
        Some(stack)
    }

    /// The same without a check for an existing one.
    pub(crate) fn push_new(&mut self, caller: u32, location: u32) -> Option<u32> {
        let stack = u32::try_from(self.nodes.len()).ok()?;
        self.nodes.push(StackNode { caller, location });
        Some(stack)
    }
}

/// Lists of `T`, end to end. Id 0 is the empty list.
#[derive(Clone, Debug)]
pub(crate) struct ListTable<T> {
    items: Vec<T>,
    ends: Vec<u32>,
}

impl<T> Default for ListTable<T> {
    fn default() -> Self {
        Self { items: Vec::new(), ends: vec![0] }
    }
}

impl<T: Clone + Eq + Hash> ListTable<T> {
    pub(crate) fn memory(&self) -> usize {
        bytes_of(&self.items).saturating_add(bytes_of(&self.ends))
    }

    pub(crate) fn shrink(&mut self) {
        self.items.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    pub(crate) fn get(&self, id: u32) -> &[T] {
        let position = id as usize;
        let start = position.checked_sub(1).and_then(|before| self.ends.get(before));
        let start = start.map_or(0, |&start| start as usize);
        let end = self.ends.get(position).map_or(start, |&end| end as usize);
        self.items.get(start..end).unwrap_or_default()
    }

    /// All lists, by position.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..u32::try_from(self.ends.len()).unwrap_or(u32::MAX)).map(|id| self.get(id))
    }

    /// How many there are, with the empty one.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// `None` when the table is full.
    pub(crate) fn intern(&mut self, index: &mut Index, list: &[T]) -> Option<u32> {
        if list.is_empty() {
            return Some(0);
        }
        let hash = index.hash(list);
        if let Some(id) = index.find(hash, |id| self.get(id) == list) {
            return Some(id);
        }
        let end = u32::try_from(self.items.len().checked_add(list.len())?).ok()?;
        let id = u32::try_from(self.ends.len()).ok()?;
        self.items.extend_from_slice(list);
        self.ends.push(end);
        index.insert(hash, id, |hasher, id| hasher.hash_one(self.get(id)));
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_callee_is_found_again_however_many_its_caller_has() {
        let (mut table, mut callees) = (StackTable::default(), Children::default());
        let many = MOST_IN_A_ROW * 4;
        let root = table.push(&mut callees, 0, 7).expect("there is room");
        let push = |table: &mut StackTable, callees: &mut Children| -> Vec<u32> {
            let of = |caller| (0..many).map(move |location| (caller, location));
            let all = of(0).chain(of(root));
            all.filter_map(|(caller, location)| table.push(callees, caller, location)).collect()
        };
        let first = push(&mut table, &mut callees);
        assert_eq!(table.len(), 2 * many as usize + 1);
        assert_eq!(push(&mut table, &mut callees), first);
        assert_eq!(table.len(), 2 * many as usize + 1);
    }

    proptest! {
        #[test]
        fn stacks_are_the_same_where_their_callers_and_locations_are(
            pushed in prop::collection::vec((0_usize..400, 0_u32..80), 0..400),
            begun in 0_usize..400,
        ) {
            let (mut table, mut callees) = (StackTable::default(), Children::default());
            let mut known = hashbrown::HashMap::new();
            let mut stacks = vec![0];
            for (at, (caller, location)) in pushed.into_iter().enumerate() {
                if at == begun {
                    callees = Children::begun_at(table.len(), table.len());
                    known.clear();
                }
                let caller = stacks[caller % stacks.len()];
                let next = u32::try_from(table.len()).expect("it is small");
                let expected = *known.entry((caller, location)).or_insert(next);
                prop_assert_eq!(table.push(&mut callees, caller, location), Some(expected));
                prop_assert_eq!(table.leaf(expected), Some(StackNode { caller, location }));
                stacks.push(expected);
            }
        }
    }
}
