//! The samples of one kind: a count for each thread, stack and set of labels, and each sample's
//! time where times are kept.
//!
//! Weights add up, and so do measured values; what a column makes of both is in the table of kinds.
//! A snapshot kind holds the last snapshot of each process: a new one replaces it.
//!
//! Invariant: a sample without labels of a kind that measures nothing costs one look-up.

use std::collections::HashSet;

use strata_abi::record::END_COUNT;
use strata_kinds::Kind;

use super::keyed::Keyed;
use super::labels::LabelsId;
use super::{Sample, StackId, ThreadId};
use crate::image_id::ImageId;

/// What was sampled of a thread in a stack, with one set of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub kind: Kind,
    pub thread: ThreadId,
    pub stack: StackId,
    pub labels: LabelsId,
    /// How many there are. Those without labels of a kind that measures nothing are not counted apart
    /// from their weight, which is 1 each.
    pub samples: u64,
    /// How many events they stand for.
    pub weight: u64,
    /// The sum of what they measured.
    pub value: u64,
}

/// One sample in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    pub kind: Kind,
    pub thread: ThreadId,
    pub stack: StackId,
    pub time: u64,
    pub labels: LabelsId,
    pub weight: u32,
    pub value: u64,
}

/// How often a thread had a stack. With its key it fills half a line of the cache.
#[derive(Clone, Copy)]
struct Count {
    thread: ThreadId,
    stack: StackId,
    weight: u64,
}

/// What most samples do not have.
#[derive(Clone, Copy, Default)]
struct Detail {
    labels: LabelsId,
    /// Where the row is one sample in time, 0.
    samples: u32,
    value: u64,
}

#[derive(Clone, Copy)]
struct Moment {
    thread: ThreadId,
    stack: StackId,
    time: u64,
}

/// Samples in time. `details` ends with the last sample that has any.
#[derive(Default)]
struct Times {
    moments: Vec<Moment>,
    details: Vec<(Detail, u32)>,
}

pub(super) struct OfKind {
    kind: Kind,
    /// Whether it measures something.
    measures: bool,
    /// A sample without labels is a count and nothing else.
    only_counts: bool,
    counts: Keyed<Count>,
    /// By the same keys.
    details: Keyed<Detail>,
    times: Option<Times>,
    /// Processes and AppDomains that have a snapshot.
    snapshots: HashSet<(ImageId, u64)>,
    pub(super) samples: u64,
    /// How stacks ended.
    pub(super) ends: [u64; END_COUNT],
}

impl OfKind {
    pub(super) fn new(kind: Kind) -> Self {
        let measures = kind.info().measured_columns() > 0;
        Self {
            kind,
            measures,
            only_counts: !measures,
            counts: Keyed::default(),
            details: Keyed::default(),
            times: None,
            snapshots: HashSet::new(),
            samples: 0,
            ends: [0; END_COUNT],
        }
    }

    /// Whether every sample's time is kept from now on. A snapshot is of one time.
    pub(super) fn keep_times(&mut self, keep: bool) {
        let keep = keep && !self.kind.info().is_snapshot();
        if keep != self.times.is_some() {
            self.times = keep.then(Times::default);
            self.only_counts = !keep && !self.measures;
        }
    }

    pub(super) fn keeps_times(&self) -> bool {
        self.times.is_some()
    }

    /// Adds a sample to the row of this key; false if there is none yet.
    #[inline(always)]
    pub(super) fn add(&mut self, key: u128, added: &Sample<'_>) -> bool {
        let Some(row) = self.counts.get_mut(&key) else { return false };
        row.weight = row.weight.wrapping_add(u64::from(added.weight));
        let (thread, stack) = (row.thread, row.stack);
        if !self.only_counts || added.labels != LabelsId::NONE {
            self.add_rest(key, thread, stack, added);
        }
        true
    }

    /// Begins a row with a sample.
    pub(super) fn begin(
        &mut self,
        key: u128,
        thread: ThreadId,
        stack: StackId,
        added: &Sample<'_>,
    ) {
        self.counts.insert(key, Count { thread, stack, weight: u64::from(added.weight) });
        self.add_rest(key, thread, stack, added);
    }

    /// More has been measured of what a row stands for.
    pub(super) fn add_value(&mut self, key: u128, time: u64, value: u64) {
        let (Some(&Count { thread, stack, .. }), Some(detail)) =
            (self.counts.get(&key), self.details.get_mut(&key))
        else {
            return;
        };
        detail.value = detail.value.saturating_add(value);
        if let Some(times) = &mut self.times {
            times.push_value(Moment { thread, stack, time }, detail.labels, value);
        }
    }

    #[inline(never)]
    fn add_rest(&mut self, key: u128, thread: ThreadId, stack: StackId, added: &Sample<'_>) {
        if self.measures || added.labels != LabelsId::NONE {
            let detail = self.details.entry(key).or_default();
            detail.labels = added.labels;
            detail.samples = detail.samples.saturating_add(1);
            detail.value = detail.value.saturating_add(added.value);
        }
        if let Some(times) = &mut self.times {
            times.push(Moment { thread, stack, time: added.time }, added);
        }
    }

    /// Begins a new snapshot of a process, to which an earlier one must not be added. `is_of`
    /// returns whether a thread belongs to that process.
    pub(super) fn begin_snapshot(
        &mut self,
        whose: (ImageId, u64),
        is_of: impl Fn(ThreadId) -> bool,
    ) {
        if self.kind.info().is_snapshot() && !self.snapshots.insert(whose) {
            let Self { counts, details, .. } = self;
            counts.retain(|key, row| {
                let goes = is_of(row.thread);
                if goes {
                    details.remove(key);
                }
                !goes
            });
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.counts.iter().map(|(key, &Count { thread, stack, weight })| {
            // Most kinds have no entry at all: no look-up.
            let detail = if self.details.is_empty() { None } else { self.details.get(key) };
            let samples = detail.map_or(weight, |detail| detail.samples.into());
            let Detail { labels, value, .. } = detail.copied().unwrap_or_default();
            Row { kind: self.kind, thread, stack, labels, samples, weight, value }
        })
    }

    pub(super) fn ticks(&self) -> impl Iterator<Item = Tick> + '_ {
        let times = self.times.iter();
        times.flat_map(|times| {
            times.moments.iter().enumerate().map(|(at, &Moment { thread, stack, time })| {
                let detail = times.details.get(at).copied();
                let (Detail { labels, value, .. }, weight) =
                    detail.unwrap_or((Detail::default(), 1));
                Tick { kind: self.kind, thread, stack, time, labels, weight, value }
            })
        })
    }

    /// Drops the counts and the times; how many there were, and how stacks ended, stays.
    pub(super) fn drop_rows(&mut self) {
        self.counts = Keyed::default();
        self.details = Keyed::default();
        if let Some(times) = &mut self.times {
            *times = Times::default();
        }
    }

    /// What it takes, roughly.
    pub(super) fn bytes(&self) -> usize {
        let table = |entries: usize, bytes: usize| entries.saturating_mul(bytes);
        let times = self.times.as_ref().map_or(0, |times| {
            table(times.moments.capacity(), 16) + table(times.details.capacity(), 24)
        });
        table(self.counts.len(), 40) + table(self.details.len(), 40) + times
    }
}

impl Times {
    fn push(&mut self, moment: Moment, added: &Sample<'_>) {
        let Sample { labels, weight, value, .. } = *added;
        if weight != 1 || value != 0 || labels != LabelsId::NONE {
            self.push_detail(Detail { labels, samples: 0, value }, weight);
        }
        self.moments.push(moment);
    }

    fn push_value(&mut self, moment: Moment, labels: LabelsId, value: u64) {
        self.push_detail(Detail { labels, samples: 0, value }, 1);
        self.moments.push(moment);
    }

    fn push_detail(&mut self, detail: Detail, weight: u32) {
        self.details.resize(self.moments.len(), (Detail::default(), 1));
        self.details.push((detail, weight));
    }
}
