//! Samples of one recording: stacks interned, addresses unresolved.
//!
//! Most samples repeat another one: the words of a stack are hashed together with what gives them
//! meaning (the image and its mappings' epoch), that together with the thread, and the sum is a
//! count in one table. Only a stack seen for the first time is taken apart.
//!
//! Invariant: ids are positions and never change while the recording lasts.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use indexmap::IndexSet;
use strata_abi::record::{END_COUNT, End, FLAG_KERNEL_CUT};
use xxhash_rust::xxh3;

use super::code_address::{CodeAddress, Marker};
use crate::processes::table::{ImageId, Space};

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

/// One sample in time.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    pub thread: ThreadId,
    pub stack: StackId,
    pub time: u64,
}

/// How often a thread had a stack. With its key it fills half a line of the cache.
#[derive(Clone, Copy)]
struct Count {
    thread: ThreadId,
    stack: StackId,
    count: u64,
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
    by_places: HashMap<u128, StackId, Hasher>,
    by_words: HashMap<u128, StackId, Hasher>,
    threads: IndexSet<ThreadKey, Hasher>,
    counts: HashMap<u128, Count, Hasher>,
    timeline: Option<Vec<Tick>>,
    ends: [u64; END_COUNT],
    samples: u64,
    secret: Box<[u8; SECRET]>,
    scratch: Vec<u32>,
}

impl Aggregate {
    /// With a timeline every sample keeps its time: 16 bytes each.
    pub fn new(timeline: bool) -> Self {
        // Stacks come from hostile processes: their hashes must not be predictable.
        let mut secret = Box::new([0u8; SECRET]);
        // SAFETY: bytes of our own, as many as are told; fewer random ones only make it weaker.
        unsafe { libc::getrandom(secret.as_mut_ptr().cast(), SECRET, 0) };
        let seed = secret.first_chunk().map_or(0, |first| u64::from_ne_bytes(*first));
        let hasher = || FixedState::with_seed(seed);
        Self {
            places: IndexSet::with_hasher(hasher()),
            stack_places: Vec::new(),
            stack_ends: Vec::new(),
            by_places: HashMap::with_hasher(hasher()),
            by_words: HashMap::with_hasher(hasher()),
            threads: IndexSet::with_hasher(hasher()),
            counts: HashMap::with_hasher(hasher()),
            timeline: timeline.then(Vec::new),
            ends: [0; END_COUNT],
            samples: 0,
            secret,
            scratch: Vec::new(),
        }
    }

    /// Adds one sample. `space` must be the process's at the sample's time.
    pub fn add(&mut self, time: u64, key: ThreadKey, words: Words<'_>, space: &Space) {
        self.samples += 1;
        if let Some(end) = self.ends.get_mut(words.end as usize) {
            *end += 1;
        }
        let words_hash = self.hash_of_words(key.image, words, space);
        let hash = words_hash ^ self.hash_of_thread(key);
        let known = self.counts.get_mut(&hash).map(|known| {
            known.count += 1;
            (known.thread, known.stack)
        });
        let (thread, stack) = known.unwrap_or_else(|| {
            let thread = ThreadId(self.threads.insert_full(key).0 as u32);
            let stack = self.stack(words_hash, key.image, words, space);
            self.counts.insert(hash, Count { thread, stack, count: 1 });
            (thread, stack)
        });
        if let Some(timeline) = &mut self.timeline {
            timeline.push(Tick { thread, stack, time });
        }
    }

    /// Whether the time of every sample is kept from now on.
    pub fn keep_timeline(&mut self, keep: bool) {
        if keep != self.timeline.is_some() {
            self.timeline = keep.then(Vec::new);
        }
    }

    fn hash(&self, bytes: &[u8]) -> u128 {
        xxh3::xxh3_128_with_secret(bytes, self.secret.as_slice())
    }

    fn hash_of_words(&self, image: ImageId, words: Words<'_>, space: &Space) -> u128 {
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

    fn hash_of_thread(&self, key: ThreadKey) -> u128 {
        let [first, second] = [0, 8].map(|at| {
            key.comm
                .get(at..at + 8)
                .and_then(|part| part.try_into().ok())
                .map_or(0, u64::from_ne_bytes)
        });
        let words = [u64::from(key.image.0) | u64::from(key.tid) << 32, key.domain, first, second];
        self.hash(bytes_of(&words)).rotate_left(96)
    }

    fn stack(&mut self, hash: u128, image: ImageId, words: Words<'_>, space: &Space) -> StackId {
        if let Some(&known) = self.by_words.get(&hash) {
            return known;
        }
        let stack = self.new_stack(image, words, space);
        self.by_words.insert(hash, stack);
        stack
    }

    fn new_stack(&mut self, image: ImageId, words: Words<'_>, space: &Space) -> StackId {
        let mut places = std::mem::take(&mut self.scratch);
        places.clear();
        let mut push = |place| places.push(self.places.insert_full(place).0 as u32);
        for (index, &address) in words.kernel.iter().enumerate() {
            push(CodeAddress::of_kernel(address, index == 0));
        }
        if words.flags & FLAG_KERNEL_CUT != 0 {
            push(CodeAddress::Marker(Marker::Truncated));
        }
        for &word in words.user {
            push(CodeAddress::of_user(word, space, image, words.era));
        }
        if let Some(marker) = CodeAddress::of_end(words.end) {
            push(marker);
        }
        let hash = self.hash(bytes_of_words(&places));
        let next = StackId(self.stack_ends.len() as u32);
        let stack = *self.by_places.entry(hash).or_insert(next);
        if stack == next {
            self.stack_places.extend_from_slice(&places);
            self.stack_ends.push(self.stack_places.len() as u32);
        }
        self.scratch = places;
        stack
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// How many stacks ended how; index as in [`End`].
    pub fn ends(&self) -> &[u64; END_COUNT] {
        &self.ends
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
            + table(self.counts.len(), 40)
            + self.timeline.as_ref().map_or(0, |timeline| table(timeline.capacity(), 16))
    }

    pub fn threads(&self) -> impl ExactSizeIterator<Item = ThreadKey> + '_ {
        self.threads.iter().copied()
    }

    pub fn counts(&self) -> impl Iterator<Item = (ThreadId, StackId, u64)> + '_ {
        self.counts.values().map(|of| (of.thread, of.stack, of.count))
    }

    pub fn timeline(&self) -> Option<&[Tick]> {
        self.timeline.as_deref()
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
mod tests {
    use super::*;

    fn key(tid: u32) -> ThreadKey {
        ThreadKey { image: ImageId(0), tid, comm: *b"test\0\0\0\0\0\0\0\0\0\0\0\0", domain: 0 }
    }

    #[test]
    fn the_same_stack_is_kept_once() {
        let mut aggregate = Aggregate::new(false);
        let words = Words { kernel: &[1, 2], user: &[3, 4], end: End::Complete, flags: 0, era: 0 };
        for tid in 0..3 {
            aggregate.add(0, key(tid), words, &Space::default());
            aggregate.add(1, key(tid), words, &Space::default());
        }
        assert_eq!(aggregate.stacks(), 1);
        assert_eq!(aggregate.counts().count(), 3);
        assert_eq!(aggregate.counts().map(|(_, _, count)| count).sum::<u64>(), 6);
    }

    #[test]
    fn a_stack_that_looks_like_what_is_hashed_with_it_is_a_stack_of_its_own() {
        let aggregate = Aggregate::new(false);
        let hash = |era: u32| {
            // The words that say what those of the user mean.
            let user = [u64::from(era) << 32, 0, u64::from(End::Complete as u8)];
            let words = Words { kernel: &[], user: &user, end: End::Complete, flags: 0, era };
            aggregate.hash_of_words(ImageId(0), words, &Space::default())
        };
        assert_ne!(hash(1), hash(2));
    }

    #[test]
    fn a_cut_stack_is_another_stack_and_is_marked() {
        let mut aggregate = Aggregate::new(false);
        let whole = Words { kernel: &[], user: &[3, 4], end: End::Complete, flags: 0, era: 0 };
        aggregate.add(0, key(1), whole, &Space::default());
        aggregate.add(0, key(1), Words { end: End::FrameLimit, ..whole }, &Space::default());
        assert_eq!(aggregate.stacks(), 2);
        let places: Vec<_> = aggregate.code_addresses().collect();
        let last = aggregate.stack_of(StackId(1)).last().map(|&place| places[place as usize]);
        assert_eq!(last, Some(CodeAddress::Marker(Marker::Truncated)));
    }
}
