//! Tables whose ids are positions: the same thing twice is the same id.
//!
//! Strings lie end to end in one buffer. Stacks are a tree in which a node is (caller, location):
//! the callers that stacks share are stored once, a stack's id is its leaf's node, and walking
//! to the root yields it leaf first. A table keeps only positions in its hash index, so a million
//! samples cost tens of megabytes.
//!
//! Invariant: an id that was never handed out finds an empty thing, not a panic. The hash is
//! seeded, since what is hashed belongs to the profiled programs.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

/// An index from things to their positions in some list.
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

/// What a list takes, with the room it has left.
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

    /// All but the empty stack. Callers come before what they call.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = StackNode> + '_ {
        self.nodes.iter().skip(1).copied()
    }

    /// The leaf of a stack and the stack of its caller; `None` for the empty stack.
    pub(crate) fn leaf(&self, stack: u32) -> Option<StackNode> {
        if stack == 0 { None } else { self.nodes.get(stack as usize).copied() }
    }

    /// The stack that calls `location` from `caller`; `None` when the table is full.
    pub(crate) fn push(&mut self, index: &mut Index, caller: u32, location: u32) -> Option<u32> {
        let node = StackNode { caller, location };
        let hash = index.hash(&node);
        if let Some(stack) = index.find(hash, |stack| self.leaf(stack) == Some(node)) {
            return Some(stack);
        }
        let stack = u32::try_from(self.nodes.len()).ok()?;
        self.nodes.push(node);
        index.insert(hash, stack, |hasher, stack| {
            hasher.hash_one(self.nodes.get(stack as usize).copied().unwrap_or(node))
        });
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
