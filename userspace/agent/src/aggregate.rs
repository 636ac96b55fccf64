//! Samples of one period, of every kind: stacks interned, addresses not symbolized.
//!
//! Most samples repeat another one: the words of a stack are hashed together with their context
//! (the image and its mappings' epoch), the result with the thread, and the sample is a count in
//! the table of its kind. Only a stack seen for the first time is decoded.
//!
//! - [`of_kind`]: the samples of one kind. [`labels`]: labels of samples. [`keyed`]: tables whose
//!   keys are hashes.
//!
//! Invariant: ids are positions and never change while the recording lasts. Kinds share stacks,
//! threads and labels, never a count.

mod keyed;
mod labels;
mod of_kind;

use foldhash::fast::FixedState;
use indexmap::IndexSet;
use strata_abi::record::{END_COUNT, End, FLAG_KERNEL_CUT};
use strata_kinds::{KIND_COUNT, Kind, Kinds};
use xxhash_rust::xxh3;

use super::code_address::{CodeAddress, Marker};
use crate::hash::HashMap;
use crate::image_id::ImageId;
use crate::processes::table::Space;
use keyed::Keyed;
use labels::LabelSets;
pub use labels::{Label, LabelsId};
use of_kind::OfKind;
pub use of_kind::{Row, Tick};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(pub u32);

/// A thread under the name it had when it was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadKey {
    pub image: ImageId,
    pub tid: u32,
    pub comm: [u8; 16],
    /// The AppDomain it was in, where its process has several.
    pub domain: u64,
}

/// One sample's stack, as the record or the userspace unwinder gives it.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    pub kernel: &'a [u64],
    pub user: &'a [u64],
    pub end: End,
    pub flags: u8,
    /// The era of the process's generated code.
    pub era: u32,
}

/// A row of one kind, until the aggregate is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowKey(u128);

/// One sample, as its producer hands it over.
#[derive(Clone, Copy)]
pub struct Sample<'a> {
    pub kind: Kind,
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    pub thread: ThreadKey,
    /// The event's own labels, beside its thread's: see [`Aggregate::labels`].
    pub labels: LabelsId,
    /// How many events it stands for.
    pub weight: u32,
    /// What was measured; 0 for kinds that measure nothing.
    pub value: u64,
    pub stack: Words<'a>,
    /// What its process had mapped at that time.
    pub space: &'a Space,
}

/// One sample whose stack is known as code addresses.
#[derive(Clone, Copy)]
pub struct Addresses<'a> {
    pub kind: Kind,
    pub time: u64,
    pub thread: ThreadKey,
    pub labels: LabelsId,
    pub weight: u32,
    pub value: u64,
    /// Innermost first, with its markers.
    pub stack: &'a [CodeAddress],
    /// Why it ends where it does.
    pub end: End,
}

/// What samples lack that were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortfalls {
    /// Events without some of their labels, or all: there was no room for more sets.
    pub labels_left_out: u64,
    /// Exceptions and allocations whose type the bridge could not read.
    pub types_unknown: u64,
    /// Samples whose kernel stack has more frames than are taken.
    pub kernel_stacks_truncated: u64,
}

impl std::ops::Add for Shortfalls {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            labels_left_out: self.labels_left_out + other.labels_left_out,
            types_unknown: self.types_unknown + other.types_unknown,
            kernel_stacks_truncated: self.kernel_stacks_truncated + other.kernel_stacks_truncated,
        }
    }
}

type Hasher = FixedState;

/// Bytes of a hash's secret, as many as the function's own has.
const SECRET: usize = 192;

pub struct Aggregate {
    places: IndexSet<CodeAddress, Hasher>,
    /// Places of all stacks, leaf first, one after the other.
    stack_places: Vec<u32>,
    /// Where each stack's places end.
    stack_ends: Vec<u32>,
    by_places: Keyed<StackId>,
    by_words: Keyed<StackId>,
    threads: IndexSet<ThreadKey, Hasher>,
    labels: LabelSets,
    shortfalls: Shortfalls,
    /// How many of them events of an image were the first to have.
    label_sets_of: HashMap<ImageId, usize>,
    /// By number of the kind.
    kinds: [OfKind; KIND_COUNT],
    secret: Box<[u8; SECRET]>,
    scratch: Vec<u32>,
}

impl Aggregate {
    /// Samples of the kinds in `times` keep their time each: 16 bytes, or 40 with a value or
    /// labels.
    pub fn new(times: Kinds) -> Self {
        // Stacks come from hostile processes: their hashes must not be predictable.
        let mut secret = Box::new([0u8; SECRET]);
        // SAFETY: bytes of our own, of the length passed; fewer random ones only make it weaker.
        unsafe { libc::getrandom(secret.as_mut_ptr().cast(), SECRET, 0) };
        let seed = secret.first_chunk().map_or(0, |first| u64::from_ne_bytes(*first));
        let hasher = Hasher::with_seed(seed);
        let mut aggregate = Self {
            places: IndexSet::with_hasher(hasher.clone()),
            stack_places: Vec::new(),
            stack_ends: Vec::new(),
            by_places: Keyed::default(),
            by_words: Keyed::default(),
            threads: IndexSet::with_hasher(hasher.clone()),
            labels: LabelSets::new(hasher),
            shortfalls: Shortfalls::default(),
            label_sets_of: HashMap::default(),
            kinds: Kind::ALL.map(OfKind::new),
            secret,
            scratch: Vec::new(),
        };
        aggregate.keep_times(times);
        aggregate
    }

    /// Adds one sample.
    pub fn add(&mut self, sample: &Sample<'_>) -> RowKey {
        let Sample { kind, ref thread, labels, ref stack, space, .. } = *sample;
        self.shortfalls.kernel_stacks_truncated += u64::from(stack.flags & FLAG_KERNEL_CUT != 0);
        let words_hash = self.hash_of_words(thread.image, stack, space);
        let mut hash = words_hash ^ self.hash_of_thread(thread);
        if labels != LabelsId::NONE {
            hash ^= self.hash(&labels.0.to_ne_bytes()).rotate_left(80);
        }
        let Some(of_kind) = self.kinds.get_mut(kind as usize) else { return RowKey(hash) };
        of_kind.samples += 1;
        if let Some(end) = of_kind.ends.get_mut(stack.end as usize) {
            *end += 1;
        }
        if of_kind.add(hash, sample) {
            return RowKey(hash);
        }
        let id = ThreadId(self.threads.insert_full(*thread).0 as u32);
        let stack = self.stack(words_hash, thread.image, stack, space);
        if let Some(of_kind) = self.kinds.get_mut(kind as usize) {
            of_kind.begin(hash, id, stack, sample);
        }
        RowKey(hash)
    }

    /// More has been measured of what a row stands for.
    pub fn add_value(&mut self, kind: Kind, row: RowKey, time: u64, value: u64) {
        if let Some(of_kind) = self.kinds.get_mut(kind as usize) {
            of_kind.add_value(row.0, time, value);
        }
    }

    /// The same of a sample whose stack was taken earlier.
    pub fn add_addresses(&mut self, added: &Addresses<'_>) {
        let Addresses { kind, time, thread, labels, weight, value, stack, end } = *added;
        let mut places = std::mem::take(&mut self.scratch);
        places.clear();
        places.extend(stack.iter().map(|place| self.places.insert_full(*place).0 as u32));
        let id = self.stack_at(&places);
        self.scratch = places;
        // What distinguishes rows of the same kind; its own words are no stack's.
        let row = [u64::from(id.0) << 32 | u64::from(labels.0), u64::MAX];
        let hash = self.hash(bytes_of(&row)) ^ self.hash_of_thread(&thread);
        let space = Space::default();
        let stack = Words { kernel: &[], user: &[], end, flags: 0, era: 0 };
        let sample = Sample { kind, time, thread, labels, weight, value, stack, space: &space };
        let Some(of_kind) = self.kinds.get_mut(kind as usize) else { return };
        of_kind.samples += 1;
        if let Some(count) = of_kind.ends.get_mut(end as usize) {
            *count += 1;
        }
        if !of_kind.add(hash, &sample) {
            let thread = ThreadId(self.threads.insert_full(thread).0 as u32);
            of_kind.begin(hash, thread, id, &sample);
        }
    }

    /// Takes code addresses in that samples will have later: what is asked about them is asked now.
    pub fn note_addresses(&mut self, addresses: &[CodeAddress]) {
        self.places.extend(addresses.iter().copied());
    }

    /// The samples of these kinds keep their times from now on, those of others do not.
    pub fn keep_times(&mut self, kinds: Kinds) {
        for (kind, table) in Kind::ALL.into_iter().zip(&mut self.kinds) {
            table.keep_times(kinds.contains(kind));
        }
    }

    /// Whose samples keep their times.
    pub fn times_kept(&self) -> Kinds {
        let kinds = Kind::ALL.into_iter().zip(&self.kinds);
        kinds.filter(|(_, table)| table.keeps_times()).map(|(kind, _)| kind).collect()
    }

    /// The id of a set of labels, names and values, for [`Sample::labels`].
    pub fn labels(&mut self, labels: &[(&str, &str)]) -> LabelsId {
        self.labels.intern(labels)
    }

    /// The same of an event of this image, whose sets are counted.
    pub fn labels_of_event(&mut self, image: ImageId, labels: &[(&str, &str)]) -> LabelsId {
        let before = self.labels.count();
        let id = self.labels.intern(labels);
        if self.labels.count() > before {
            *self.label_sets_of.entry(image).or_default() += 1;
        }
        id
    }

    /// An event lacks labels: there was no room for its set.
    pub fn note_labels_left_out(&mut self) {
        self.shortfalls.labels_left_out += 1;
    }

    pub fn note_type_unknown(&mut self) {
        self.shortfalls.types_unknown += 1;
    }

    pub fn shortfalls(&self) -> Shortfalls {
        self.shortfalls
    }

    /// How many sets of labels the events of an image have added.
    pub fn label_sets_of(&self, image: ImageId) -> usize {
        self.label_sets_of.get(&image).copied().unwrap_or_default()
    }

    /// How many sets of labels there are.
    pub fn label_sets(&self) -> usize {
        self.labels.count()
    }

    /// What is added from now on of a snapshot kind and of this process and AppDomain is a new
    /// snapshot, which replaces the one before.
    pub fn begin_snapshot(&mut self, kind: Kind, image: ImageId, domain: u64) {
        let Self { threads, kinds, .. } = self;
        let is_of = |thread: ThreadId| {
            let key = threads.get_index(thread.0 as usize);
            key.is_some_and(|key| key.image == image && key.domain == domain)
        };
        if let Some(of_kind) = kinds.get_mut(kind as usize) {
            of_kind.begin_snapshot((image, domain), is_of);
        }
    }

    fn hash(&self, bytes: &[u8]) -> u128 {
        xxh3::xxh3_128_with_secret(bytes, self.secret.as_slice())
    }

    fn hash_of_words(&self, image: ImageId, words: &Words<'_>, space: &Space) -> u128 {
        let end = u64::from(words.end as u8) | u64::from(words.flags) << 8;
        let meaning = [
            u64::from(image.0) | u64::from(words.era) << 32,
            space.epoch.into(),
            end | (words.kernel.len() as u64) << 16,
        ];
        // Each is turned by another distance: a process that makes its stack look like another part
        // must not make the two cancel each other.
        let user = self.hash(bytes_of(words.user)) ^ self.hash(bytes_of(&meaning)).rotate_left(32);
        if words.kernel.is_empty() {
            return user;
        }
        user ^ self.hash(bytes_of(words.kernel)).rotate_left(64)
    }

    fn hash_of_thread(&self, key: &ThreadKey) -> u128 {
        let [first, second] = [0, 8].map(|at| {
            key.comm
                .get(at..at + 8)
                .and_then(|part| part.try_into().ok())
                .map_or(0, u64::from_ne_bytes)
        });
        let words = [u64::from(key.image.0) | u64::from(key.tid) << 32, key.domain, first, second];
        self.hash(bytes_of(&words)).rotate_left(96)
    }

    fn stack(&mut self, hash: u128, image: ImageId, words: &Words<'_>, space: &Space) -> StackId {
        if let Some(&known) = self.by_words.get(&hash) {
            return known;
        }
        let stack = self.new_stack(image, words, space);
        self.by_words.insert(hash, stack);
        stack
    }

    fn new_stack(&mut self, image: ImageId, words: &Words<'_>, space: &Space) -> StackId {
        let mut places = std::mem::take(&mut self.scratch);
        places.clear();
        let mut push = |place| places.push(self.places.insert_full(place).0 as u32);
        for (index, &address) in words.kernel.iter().enumerate() {
            push(CodeAddress::of_kernel(address, index == 0));
        }
        if words.flags & FLAG_KERNEL_CUT != 0 {
            push(CodeAddress::Marker(Marker::Truncated));
        }
        CodeAddress::of_user(words.user, space, image, words.era).for_each(&mut push);
        if let Some(marker) = CodeAddress::of_end(words.end) {
            push(marker);
        }
        let stack = self.stack_at(&places);
        self.scratch = places;
        stack
    }

    /// The stack with these places.
    fn stack_at(&mut self, places: &[u32]) -> StackId {
        let hash = self.hash(bytes_of_words(places));
        let next = StackId(self.stack_ends.len() as u32);
        let stack = *self.by_places.entry(hash).or_insert(next);
        if stack == next {
            self.stack_places.extend_from_slice(places);
            self.stack_ends.push(self.stack_places.len() as u32);
        }
        stack
    }

    /// Drops all that rows and samples in time do not refer to, and those themselves: they have been
    /// taken out, and nothing is added any more.
    pub fn keep_what_is_referred_to(&mut self) {
        self.by_places = Keyed::default();
        self.by_words = Keyed::default();
        self.scratch = Vec::new();
        self.kinds.iter_mut().for_each(OfKind::drop_rows);
    }

    /// Of all kinds.
    pub fn samples(&self) -> u64 {
        self.kinds.iter().map(|of_kind| of_kind.samples).sum()
    }

    pub fn samples_of(&self, kind: Kind) -> u64 {
        self.kinds.get(kind as usize).map_or(0, |of_kind| of_kind.samples)
    }

    /// How many stacks ended how, those of all kinds; index as in [`End`].
    pub fn ends(&self) -> [u64; END_COUNT] {
        let mut ends = [0; END_COUNT];
        for of_kind in &self.kinds {
            ends.iter_mut().zip(of_kind.ends).for_each(|(sum, count)| *sum += count);
        }
        ends
    }

    /// The same of one kind.
    pub fn ends_of(&self, kind: Kind) -> [u64; END_COUNT] {
        self.kinds.get(kind as usize).map_or([0; END_COUNT], |of_kind| of_kind.ends)
    }

    pub fn code_addresses(&self) -> impl ExactSizeIterator<Item = CodeAddress> + '_ {
        self.places.iter().copied()
    }

    /// The place at a position.
    pub fn code_address(&self, position: usize) -> Option<CodeAddress> {
        self.places.get_index(position).copied()
    }

    /// Positions in [`Self::places`], leaf first.
    pub fn stack_of(&self, stack: StackId) -> &[u32] {
        let index = stack.0 as usize;
        let start = index
            .checked_sub(1)
            .and_then(|before| self.stack_ends.get(before))
            .map_or(0, |end| *end as usize);
        let end = self.stack_ends.get(index).map_or(start, |end| *end as usize);
        self.stack_places.get(start..end).unwrap_or_default()
    }

    pub fn stacks(&self) -> usize {
        self.stack_ends.len()
    }

    pub fn thread(&self, id: ThreadId) -> Option<ThreadKey> {
        self.threads.get_index(id.0 as usize).copied()
    }

    /// What it takes, roughly.
    pub fn bytes(&self) -> usize {
        let table = |entries: usize, bytes: usize| entries.saturating_mul(bytes);
        table(self.places.len(), 64)
            + table(self.stack_places.capacity(), 4)
            + table(self.stack_ends.len(), 40)
            + table(self.by_words.len(), 32)
            + table(self.threads.len(), 64)
            + self.labels.bytes()
            + self.kinds.iter().map(OfKind::bytes).sum::<usize>()
    }

    pub fn threads(&self) -> impl ExactSizeIterator<Item = ThreadKey> + '_ {
        self.threads.iter().copied()
    }

    pub fn labels_of(&self, id: LabelsId) -> &[Label] {
        self.labels.get(id)
    }

    /// What was sampled, in the order of kinds.
    pub fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.kinds.iter().flat_map(OfKind::rows)
    }

    /// Each sample of the kinds whose times are kept, in the order of kinds.
    pub fn ticks(&self) -> impl Iterator<Item = Tick> + '_ {
        self.kinds.iter().flat_map(OfKind::ticks)
    }
}

pub fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: any `u64` is eight initialised bytes, and `u8` has no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

fn bytes_of_words(words: &[u32]) -> &[u8] {
    // SAFETY: as above, four bytes each.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

#[cfg(test)]
mod tests;
