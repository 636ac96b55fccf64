//! The dictionary of one service within a segment: strings, mappings, locations, stacks as a prefix
//! tree, label sets.
//!
//! The writer keeps only an index from items to their numbers. A new item is written with the
//! record that needs it first, so a segment can be read from its beginning to any record.
//!
//! Addresses are left out: the same function lies at another address in every process, and no
//! two samples of it need the same instruction. A location is its functions and lines, and the
//! file they are in; that is what makes a month of profiles share one dictionary.
//!
//! Invariant: number 0 of every table is the empty thing; numbers are given in order.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, Equivalent, HashMap, HashTable};
use strata_profile::{
    Frame, LabelValue, LabelsId, Location, LocationId, Profile, StackId, StringId,
};

use crate::tables::Tables;
use crate::wire::{put, put_signed, put_text};

/// What the allocator takes for itself.
const ALLOCATION_BYTES: usize = 16;

/// The most frames at one location: real code is not inlined deeper.
pub(crate) const MOST_FRAMES: usize = 4_096;

struct Table<K> {
    numbers: HashMap<K, u32>,
    next: u32,
    /// The first number that is not written yet.
    base: u32,
    added: Vec<u8>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), next: 1, base: 1, added: Vec::new() }
    }
}

impl<K: Hash + Eq> Table<K> {
    /// Bytes of memory, with the room that is left, without what keys have outside.
    fn memory(&self) -> usize {
        self.numbers.allocation_size().saturating_add(self.added.capacity())
    }

    /// The number of `key`; if it is new, which is also returned, `encode` writes it.
    fn number<Q: Hash + Equivalent<K> + ?Sized>(
        &mut self,
        key: &Q,
        own: impl FnOnce(&Q) -> K,
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) -> (u32, bool) {
        if let Some(&number) = self.numbers.get(key) {
            return (number, false);
        }
        let number = self.next;
        // A segment is closed long before it has 2^32 of anything.
        self.next = self.next.saturating_add(1);
        encode(&mut self.added, number);
        self.numbers.insert(own(key), number);
        (number, true)
    }

    fn take(&mut self, out: &mut Vec<u8>) {
        put(out, u64::from(self.base));
        put(out, u64::from(self.next.saturating_sub(self.base)));
        out.append(&mut self.added);
        self.base = self.next;
    }
}

/// The stacks: there may be a hundred times as many as of everything else, so each is kept once,
/// and its number in the index.
struct Stacks {
    /// Caller and location, by number; the empty stack first.
    nodes: Vec<(u32, u32)>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// The first number that is not written yet.
    base: u32,
    added: Vec<u8>,
}

impl Default for Stacks {
    fn default() -> Self {
        let (index, hasher) = (HashTable::new(), DefaultHashBuilder::default());
        Self { nodes: vec![(0, 0)], index, hasher, base: 1, added: Vec::new() }
    }
}

impl Stacks {
    fn memory(&self) -> usize {
        let nodes = self.nodes.capacity().saturating_mul(size_of::<(u32, u32)>());
        let lists = nodes.saturating_add(self.added.capacity());
        self.index.allocation_size().saturating_add(lists)
    }

    /// The number that the next new stack gets.
    fn next(&self) -> u32 {
        // A segment is closed long before it has 2^32 of anything.
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    fn number(&mut self, key: (u32, u32)) -> u32 {
        let Self { nodes, index, hasher, .. } = self;
        let hash = hasher.hash_one(key);
        let is_same = |&number: &u32| nodes.get(number as usize) == Some(&key);
        if let Some(&number) = index.find(hash, is_same) {
            return number;
        }
        let number = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        nodes.push(key);
        index.insert_unique(hash, number, |&other| {
            hasher.hash_one(nodes.get(other as usize).copied().unwrap_or_default())
        });
        let (caller, location) = key;
        put(&mut self.added, u64::from(number.saturating_sub(caller)));
        put(&mut self.added, u64::from(location));
        number
    }

    fn take(&mut self, out: &mut Vec<u8>) {
        let next = self.next();
        put(out, u64::from(self.base));
        put(out, u64::from(next.saturating_sub(self.base)));
        // Without its room: most records bring less than the one before.
        out.append(&mut std::mem::take(&mut self.added));
        self.base = next;
    }
}

#[derive(Default)]
pub(crate) struct Dictionary {
    strings: Table<Box<str>>,
    mappings: Table<(u32, u32)>,
    locations: Table<Box<[u32]>>,
    stacks: Stacks,
    labels: Table<Box<[i64]>>,
    /// Bytes of keys outside the tables.
    owned: usize,
}

impl Dictionary {
    /// How many things it has.
    pub(crate) fn known(&self) -> u64 {
        let next = [
            self.strings.next,
            self.mappings.next,
            self.locations.next,
            self.stacks.next(),
            self.labels.next,
        ];
        next.into_iter().map(u64::from).sum()
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        let tables = [
            self.strings.memory(),
            self.mappings.memory(),
            self.locations.memory(),
            self.stacks.memory(),
            self.labels.memory(),
        ];
        tables.into_iter().fold(self.owned, usize::saturating_add)
    }

    /// Writes what is new since the last time.
    pub(crate) fn take_added(&mut self, out: &mut Vec<u8>) {
        self.strings.take(out);
        self.mappings.take(out);
        self.locations.take(out);
        self.stacks.take(out);
        self.labels.take(out);
    }

    /// The dictionary that wrote these tables, with nothing new in it. `None` if no dictionary of
    /// ours writes them: it has nothing twice.
    pub(crate) fn of(tables: &Tables) -> Option<Self> {
        let mut dictionary = Self::default();
        tables.each_string(|text| {
            if !text.is_empty() {
                let added = dictionary.strings.number(text, |text| Box::from(text), |_, _| {});
                dictionary.grow(added, text.len());
            }
        });
        for &key in tables.mappings() {
            let added = dictionary.mappings.number(&key, |key| *key, |_, _| {});
            dictionary.grow(added, 0);
        }
        let mut fields = Vec::new();
        for number in 1..tables.location_count() {
            tables.location_fields(number, &mut fields);
            let added =
                dictionary.locations.number(fields.as_slice(), |key| Box::from(key), |_, _| {});
            dictionary.grow(added, size_of_val(fields.as_slice()));
        }
        for &key in tables.stacks() {
            dictionary.stacks.number(key);
        }
        let mut fields = Vec::new();
        for number in 1..tables.label_sets() {
            tables.label_fields(number, &mut fields);
            let added =
                dictionary.labels.number(fields.as_slice(), |key| Box::from(key), |_, _| {});
            dictionary.grow(added, size_of_val(fields.as_slice()));
        }
        // What it has is written already.
        dictionary.take_added(&mut Vec::new());
        let counts = [
            dictionary.strings.next,
            dictionary.mappings.next,
            dictionary.locations.next,
            dictionary.stacks.next(),
            dictionary.labels.next,
        ];
        (counts == tables.counts()).then_some(dictionary)
    }

    /// Counts the `bytes` that a new key has outside its table.
    fn grow(&mut self, (number, is_new): (u32, bool), bytes: usize) -> u32 {
        if is_new && bytes > 0 {
            self.owned = self.owned.saturating_add(bytes).saturating_add(ALLOCATION_BYTES);
        }
        number
    }

    pub(crate) fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let added = self.strings.number(text, |text| Box::from(text), |out, _| put_text(out, text));
        self.grow(added, text.len())
    }

    fn mapping(&mut self, path: &str, build_id: &str) -> u32 {
        let key = (self.string(path), self.string(build_id));
        let added = self.mappings.number(
            &key,
            |key| *key,
            |out, _| {
                put(out, u64::from(key.0));
                put(out, u64::from(key.1));
            },
        );
        self.grow(added, 0)
    }

    fn location(&mut self, profile: &Profile, location: Location) -> u32 {
        let mapping = location.mapping.map_or(0, |mapping| {
            let mapping = profile.mapping(mapping);
            self.mapping(profile.string(mapping.path), profile.string(mapping.build_id))
        });
        let nameless = [Frame::default()];
        let frames = match profile.frames(location) {
            [] => nameless.as_slice(),
            frames => frames.get(..MOST_FRAMES).unwrap_or(frames),
        };
        let mut key = Vec::with_capacity(frames.len().saturating_mul(5).saturating_add(1));
        key.push(mapping);
        let late = profile.late_key(location).map(|late| late.to_string());
        for frame in frames {
            key.push(self.string(profile.string(frame.name)));
            let system_name = profile.string(frame.system_name);
            key.push(self.string(late.as_deref().unwrap_or(system_name)));
            key.push(self.string(profile.string(frame.file)));
            key.push(frame.line);
            key.push(frame.kind as u32);
        }
        let added = self.locations.number(
            key.as_slice(),
            |key| Box::from(key),
            |out, _| {
                put(out, u64::from(mapping));
                put(out, frames.len() as u64);
                for &field in key.iter().skip(1) {
                    put(out, u64::from(field));
                }
            },
        );
        self.grow(added, size_of_val(key.as_slice()))
    }

    fn labels(&mut self, profile: &Profile, labels: LabelsId) -> u32 {
        let labels = profile.labels(labels);
        if labels.is_empty() {
            return 0;
        }
        let mut key = Vec::with_capacity(labels.len().saturating_mul(4));
        for label in labels {
            key.push(i64::from(self.string(profile.string(label.key))));
            match label.value {
                LabelValue::Text(text) => {
                    key.extend([0, i64::from(self.string(profile.string(text))), 0]);
                }
                LabelValue::Number { value, unit } => {
                    key.extend([1, value, i64::from(self.string(profile.string(unit)))]);
                }
            }
        }
        let added = self.labels.number(
            key.as_slice(),
            |key| Box::from(key),
            |out, _| {
                put(out, labels.len() as u64);
                for &field in &key {
                    put_signed(out, field);
                }
            },
        );
        self.grow(added, size_of_val(key.as_slice()))
    }
}

/// The numbers that a dictionary has for the things of one profile, each looked up once.
pub(crate) struct Import<'a> {
    dictionary: &'a mut Dictionary,
    profile: &'a Profile,
    locations: Vec<u32>,
    stacks: Vec<u32>,
    labels: HashMap<LabelsId, u32>,
}

impl<'a> Import<'a> {
    pub(crate) fn new(dictionary: &'a mut Dictionary, profile: &'a Profile) -> Self {
        Self {
            dictionary,
            profile,
            locations: vec![0; profile.locations().len()],
            stacks: vec![0; profile.stack_count()],
            labels: HashMap::new(),
        }
    }

    pub(crate) fn string(&mut self, id: StringId) -> u32 {
        self.dictionary.string(self.profile.string(id))
    }

    pub(crate) fn text(&mut self, text: &str) -> u32 {
        self.dictionary.string(text)
    }

    fn location(&mut self, id: LocationId) -> u32 {
        let known = self.locations.get(id.position()).copied().unwrap_or(0);
        if known != 0 {
            return known;
        }
        let number = self.dictionary.location(self.profile, self.profile.location(id));
        if let Some(place) = self.locations.get_mut(id.position()) {
            *place = number;
        }
        number
    }

    pub(crate) fn stack(&mut self, id: StackId) -> u32 {
        let mut missing = Vec::new();
        let mut at = id;
        let mut number = 0;
        while let Some((location, caller)) = self.profile.leaf(at) {
            let known = self.stacks.get(at.position()).copied().unwrap_or(0);
            if known != 0 {
                number = known;
                break;
            }
            missing.push((at, location));
            at = caller;
        }
        for (stack, location) in missing.into_iter().rev() {
            let location = self.location(location);
            number = self.dictionary.stacks.number((number, location));
            if let Some(place) = self.stacks.get_mut(stack.position()) {
                *place = number;
            }
        }
        number
    }

    pub(crate) fn labels(&mut self, id: LabelsId) -> u32 {
        if let Some(&known) = self.labels.get(&id) {
            return known;
        }
        let number = self.dictionary.labels(self.profile, id);
        self.labels.insert(id, number);
        number
    }

    /// Writes what this profile brought.
    pub(crate) fn take_added(self, out: &mut Vec<u8>) {
        self.dictionary.take_added(out);
    }
}
