//! Samples of one recording: stacks interned, addresses unresolved.
//!
//! Most samples repeat a stack: its words are hashed together with what gives them meaning (the
//! image and its mappings' epoch), and only a stack seen for the first time is taken apart.
//!
//! Invariant: ids are positions and never change while the recording lasts.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use indexmap::IndexSet;
use strata_layout::record::{END_COUNT, End, FLAG_KERNEL_CUT};

use super::place::{Marker, Place};
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

type Hasher = FixedState;

pub struct Aggregate {
    places: IndexSet<Place, Hasher>,
    /// Places of all stacks, leaf first, one after the other.
    stack_places: Vec<u32>,
    /// Where each stack's places end.
    stack_ends: Vec<u32>,
    by_places: HashMap<u128, StackId, Hasher>,
    by_words: HashMap<u128, StackId, Hasher>,
    threads: IndexSet<ThreadKey, Hasher>,
    counts: HashMap<(ThreadId, StackId), u64, Hasher>,
    timeline: Option<Vec<Tick>>,
    ends: [u64; END_COUNT],
    samples: u64,
    seed: u64,
    scratch: Vec<u32>,
}

impl Aggregate {
    /// With a timeline every sample keeps its time: 16 bytes each.
    pub fn new(timeline: bool) -> Self {
        // Stacks come from hostile processes: their hashes must not be predictable.
        let mut seed = [0u8; 8];
        // SAFETY: 8 bytes of our own; fewer random bytes only make the seed weaker.
        unsafe { libc::getrandom(seed.as_mut_ptr().cast(), 8, 0) };
        let seed = u64::from_ne_bytes(seed);
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
            seed,
            scratch: Vec::new(),
        }
    }

    /// Adds one sample. `space` must be the process's at the sample's time.
    pub fn add(&mut self, time: u64, key: ThreadKey, words: Words<'_>, space: &Space) {
        self.samples += 1;
        if let Some(end) = self.ends.get_mut(words.end as usize) {
            *end += 1;
        }
        let thread = ThreadId(self.threads.insert_full(key).0 as u32);
        let stack = self.stack(key.image, words, space);
        *self.counts.entry((thread, stack)).or_insert(0) += 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.push(Tick { thread, stack, time });
        }
    }

    fn stack(&mut self, image: ImageId, words: Words<'_>, space: &Space) -> StackId {
        let mut hash = xxhash_rust::xxh3::Xxh3::with_seed(self.seed);
        hash.update(&image.0.to_ne_bytes());
        hash.update(&space.epoch.to_ne_bytes());
        hash.update(&words.era.to_ne_bytes());
        hash.update(&[words.end as u8, words.flags]);
        hash.update(&(words.kernel.len() as u32).to_ne_bytes());
        hash.update(bytes_of(words.kernel));
        hash.update(bytes_of(words.user));
        let hash = hash.digest128();
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
            push(Place::of_kernel(address, index == 0));
        }
        if words.flags & FLAG_KERNEL_CUT != 0 {
            push(Place::Marker(Marker::Truncated));
        }
        for &word in words.user {
            push(Place::of_user(word, space, image, words.era));
        }
        if let Some(marker) = Place::of_end(words.end) {
            push(marker);
        }
        let hash = xxhash_rust::xxh3::xxh3_128_with_seed(bytes_of_words(&places), self.seed);
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

    pub fn places(&self) -> impl ExactSizeIterator<Item = Place> + '_ {
        self.places.iter().copied()
    }

    /// The place at a position.
    pub fn place(&self, position: usize) -> Option<Place> {
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
            + table(self.counts.len(), 28)
            + self.timeline.as_ref().map_or(0, |timeline| table(timeline.capacity(), 16))
    }

    pub fn threads(&self) -> impl ExactSizeIterator<Item = ThreadKey> + '_ {
        self.threads.iter().copied()
    }

    pub fn counts(&self) -> impl Iterator<Item = (ThreadId, StackId, u64)> + '_ {
        self.counts.iter().map(|(&(thread, stack), &count)| (thread, stack, count))
    }

    pub fn timeline(&self) -> Option<&[Tick]> {
        self.timeline.as_deref()
    }
}

/// Prints what adding samples costs: `cargo xtask bench encode`.
pub fn measure() {
    const SAMPLES: u64 = 4_000_000;
    for stacks in [10_000u64, 100_000] {
        let words: Vec<[u64; 60]> = (0..stacks)
            .map(|which| std::array::from_fn(|depth| 0x40_0000 + ((which << 6) >> (depth / 4))))
            .collect();
        let mut aggregate = Aggregate::new(false);
        let comm = *b"measure\0\0\0\0\0\0\0\0\0";
        let begun = std::time::Instant::now();
        for sample in 0..SAMPLES {
            // Frequent stacks come more often.
            let which = sample.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let which = (which % stacks).min((which >> 7) % stacks);
            let user = words.get(which as usize).map(<[u64; 60]>::as_slice).unwrap_or_default();
            let words = Words { kernel: &[], user, end: End::Complete, flags: 0, era: 0 };
            let tid = (sample % 64) as u32;
            let key = ThreadKey { image: ImageId(0), tid, comm, domain: 0 };
            aggregate.add(sample, key, words, &Space::default());
        }
        let each = begun.elapsed().as_secs_f64() / SAMPLES as f64;
        println!(
            "aggregated  {stacks:>7} stacks of 60 frames: {:.2} M samples/s, {:.1} MB",
            1e-6 / each,
            aggregate.bytes() as f64 / 1e6
        );
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
    fn a_cut_stack_is_another_stack_and_is_marked() {
        let mut aggregate = Aggregate::new(false);
        let whole = Words { kernel: &[], user: &[3, 4], end: End::Complete, flags: 0, era: 0 };
        aggregate.add(0, key(1), whole, &Space::default());
        aggregate.add(0, key(1), Words { end: End::FrameLimit, ..whole }, &Space::default());
        assert_eq!(aggregate.stacks(), 2);
        let places: Vec<_> = aggregate.places().collect();
        let last = aggregate.stack_of(StackId(1)).last().map(|&place| places[place as usize]);
        assert_eq!(last, Some(Place::Marker(Marker::Truncated)));
    }
}
