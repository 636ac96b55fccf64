//! Makes a profile fit a server's limits, before the server truncates or refuses it.
//!
//! A server removes the leaf of a deep stack and refuses a profile that is too big. Here a stack
//! keeps its leaf and loses frames at its root, replaced by a marker, and a profile that is too big
//! is split. Labels that are not on the exporter's list are dropped, and samples that differ in
//! nothing else are added up.
//!
//! Invariant: no value is lost. For every type that is sent, the sum over all parts is the sum over
//! the profile, and so is the sum of each leaf. Every change is counted in [`Cuts`].

mod copy;
mod costs;
mod timed;

use std::cell::RefCell;
use std::ops::AddAssign;

use strata_kinds::Kinds;
use strata_profile::{LabelsId, Profile, Sample, StackId, Tick};

use crate::label_values::LabelValues;
use crate::positions::Known;
use crate::sample_labels::LabelRule;
use copy::Copy;
use costs::{Costs, Seen};
pub use timed::time_of;

/// The frame at the root of a stack that was too deep.
pub const TRIMMED: &str = "[stack trimmed]";

/// No part has a smaller limit: below it, a single sample might not fit.
pub const FEWEST_BYTES: usize = 64 << 10;

/// Bytes of a profile without any sample: types, times, comments, the paths of kinds.
const BASE_BYTES: usize = 4 << 10;

/// What a server takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Locations of a stack, the marker included.
    pub depth: usize,
    /// Samples of a profile.
    pub samples: usize,
    /// Bytes of a profile before it is compressed; at least [`FEWEST_BYTES`].
    pub bytes: usize,
    /// Labels of a sample.
    pub labels: usize,
    /// Labels of a sample that are texts, those of spans and traces apart: where each becomes a
    /// label of the series, it has only the places that the series has left.
    pub texts: usize,
    /// Bytes of a label's name.
    pub name_bytes: usize,
    /// Bytes of a label's value.
    pub value_bytes: usize,
    /// Bytes of a function's name, a file or a path.
    pub symbol_bytes: usize,
    /// Bytes that an index into a table takes at least: more than one where profiles share tables.
    pub index_bytes: usize,
}

/// Counts of what did not fit, or was not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Samples whose stack lost frames at its root, and places that lost outer inlined frames.
    pub trimmed_stacks: u64,
    /// Labels of samples, or of a profile, that were dropped.
    pub dropped_labels: u64,
    /// Names and values that were shortened.
    pub shortened_texts: u64,
    /// Sample types that the backend does not take.
    pub dropped_types: u64,
    /// Profiles that exist only because another one was too big.
    pub extra_parts: u64,
    /// Items over the recording's own limits.
    pub overflows: u64,
    /// Values of labels that were sent as `other`, because their label has too many.
    pub other_values: u64,
    /// Profiles that could not be written at all.
    pub failed_profiles: u64,
}

impl AddAssign for Cuts {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.trimmed_stacks, other.trimmed_stacks),
            (&mut self.dropped_labels, other.dropped_labels),
            (&mut self.shortened_texts, other.shortened_texts),
            (&mut self.dropped_types, other.dropped_types),
            (&mut self.extra_parts, other.extra_parts),
            (&mut self.overflows, other.overflows),
            (&mut self.other_values, other.other_values),
            (&mut self.failed_profiles, other.failed_profiles),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// The parts of a profile that are sent, and their names.
#[derive(Clone, Debug)]
pub struct Selection<'r> {
    /// For each type of the result: its position in the profile, its name and its unit.
    pub types: Vec<(usize, &'static str, &'static str)>,
    /// The name and unit of the period.
    pub period: (&'static str, &'static str),
    pub labels: &'r [LabelRule],
    /// How many values each label may have; none for as many as there are.
    pub values: Option<&'r RefCell<LabelValues>>,
    /// Whether samples whose times were kept are sent one by one, with their time.
    pub timed: bool,
}

/// One profile that fits.
#[derive(Debug)]
pub struct Part {
    pub profile: Profile,
    /// At least as many as it has when it is written and not compressed.
    pub bytes: usize,
}

/// The parts of the selected profile; none if it has no value there.
#[must_use]
pub fn fit(profile: &Profile, selection: &Selection, limits: &Limits) -> (Vec<Part>, Cuts) {
    let limits = Limits {
        bytes: limits.bytes.max(FEWEST_BYTES),
        depth: limits.depth.max(2),
        samples: limits.samples.max(1),
        ..*limits
    };
    let (whole, mut cuts) = project(profile, selection, &limits);
    cuts.overflows = profile.overflows;
    let parts = split(whole, &limits);
    cuts.extra_parts = (parts.len() as u64).saturating_sub(1);
    (parts, cuts)
}

/// `text` in at most `bytes` bytes; the end of a shortened one is marked.
#[must_use]
pub fn shortened(text: &str, bytes: usize) -> Option<String> {
    const MARK: &str = "…";
    if text.len() <= bytes {
        return None;
    }
    let kept = text.floor_char_boundary(bytes.saturating_sub(MARK.len()));
    let mut short = text.get(..kept).unwrap_or_default().to_owned();
    if bytes >= MARK.len() {
        short.push_str(MARK);
    }
    Some(short)
}

/// What becomes a sample.
enum One<'p> {
    Sum(Sample<'p>),
    InTime(Tick),
}

/// The profile with the selected types, labels and depth.
fn project(profile: &Profile, selection: &Selection, limits: &Limits) -> (Profile, Cuts) {
    let types: Vec<(&str, &str)> =
        selection.types.iter().map(|&(_, name, unit)| (name, unit)).collect();
    let mut copy = Copy::new(profile, &types, limits.symbol_bytes, limits.bytes / 4);
    let (period_name, period_unit) = selection.period;
    copy.builder.set_period(period_name, period_unit, profile.period);
    let costs = Costs::new(profile, limits.symbol_bytes, limits.bytes / 4, limits.index_bytes);
    let most_bytes = costs.most_bytes();
    // The other half is for labels, values and the marker.
    let room = limits.bytes / 2;
    let fits = |id: StackId| {
        let bytes = most_bytes.get(id.position());
        costs.depth(id) <= limits.depth && bytes.is_some_and(|&bytes| bytes <= room)
    };
    let mut long_stacks: Known<(StackId, bool)> = Known::default();
    let mut labels: Known<LabelsId> = Known::default();
    let mut values = Vec::new();
    let timed = if selection.timed { timed::timed_kinds(profile) } else { Kinds::NONE };
    let is_timed: Vec<bool> = (0..profile.sample_types.len())
        .map(|at| profile.kind_of(at).is_some_and(|kind| timed.contains(kind)))
        .collect();
    let ticks = profile.timeline().into_iter().flatten();
    let ticks = ticks.filter(|tick| timed.contains(tick.kind)).map(One::InTime);
    for one in profile.samples().map(One::Sum).chain(ticks) {
        let (stack, of_labels, time) = match &one {
            One::Sum(sample) => {
                values.clear();
                values.extend(selection.types.iter().map(|&(at, _, _)| {
                    let is_apart = is_timed.get(at) == Some(&true);
                    let value = sample.values.get(at).filter(|_| !is_apart);
                    value.copied().unwrap_or(0)
                }));
                (sample.stack, sample.labels, None)
            }
            One::InTime(tick) => {
                timed::values_of(profile, tick, &selection.types, &mut values);
                let time = i64::try_from(tick.time).unwrap_or(i64::MAX);
                (tick.stack, tick.labels, Some(profile.start_nanos.saturating_add(time)))
            }
        };
        if values.iter().all(|&value| value == 0) {
            continue;
        }
        let position = stack.position();
        let (stack, trimmed) = match long_stacks.get(position) {
            Some(&known) => known,
            None if fits(stack) => (copy.stack(stack), false),
            None => {
                let made = copy.trimmed_stack(stack, limits, room, &costs);
                long_stacks.set(position, made);
                made
            }
        };
        copy.cuts.trimmed_stacks = copy.cuts.trimmed_stacks.saturating_add(u64::from(trimmed));
        let mut made_labels = match labels.get(of_labels.position()) {
            Some(&known) => known,
            None => {
                let made = copy.allowed_labels(of_labels, selection, limits);
                labels.set(of_labels.position(), made);
                made
            }
        };
        if let Some(time) = time {
            made_labels = copy.at_time(made_labels, time);
        }
        copy.builder.add(stack, made_labels, &values);
    }
    (copy.builder.finish(), copy.cuts)
}

/// The profile in parts of at most so many samples and bytes.
fn split(whole: Profile, limits: &Limits) -> Vec<Part> {
    if whole.sample_count() == 0 {
        return Vec::new();
    }
    let costs = Costs::new(&whole, usize::MAX, usize::MAX, limits.index_bytes);
    let mut seen = Seen::default();
    let mut bytes = BASE_BYTES;
    // Where each part begins, and its bytes.
    let mut parts = vec![(0_usize, bytes)];
    let mut in_part = 0_usize;
    for (position, sample) in whole.samples().enumerate() {
        let mut cost = costs.sample(&sample, &mut seen);
        if in_part >= limits.samples || bytes.saturating_add(cost) > limits.bytes {
            seen.clear();
            cost = costs.sample(&sample, &mut seen);
            if in_part > 0 {
                parts.push((position, BASE_BYTES));
            }
            bytes = BASE_BYTES;
            in_part = 0;
        }
        bytes = bytes.saturating_add(cost);
        in_part = in_part.saturating_add(1);
        if let Some(part) = parts.last_mut() {
            part.1 = bytes;
        }
    }
    if let [(_, bytes)] = parts[..] {
        return vec![Part { profile: whole, bytes }];
    }
    let ends = parts.iter().skip(1).map(|&(start, _)| start).chain([whole.sample_count()]);
    let ranges = parts.iter().zip(ends).map(|(&(start, bytes), end)| (start, end, bytes));
    ranges.map(|(start, end, bytes)| part_of(&whole, start, end, bytes)).collect()
}

fn part_of(whole: &Profile, start: usize, end: usize, bytes: usize) -> Part {
    let types: Vec<(&str, &str)> = whole
        .sample_types
        .iter()
        .map(|kind| (whole.string(kind.name), whole.string(kind.unit)))
        .collect();
    let mut copy = Copy::new(whole, &types, usize::MAX, usize::MAX);
    let period = whole.period_type;
    copy.builder.set_period(whole.string(period.name), whole.string(period.unit), whole.period);
    for sample in whole.samples().skip(start).take(end.saturating_sub(start)) {
        let stack = copy.stack(sample.stack);
        let labels = copy.labels(sample.labels);
        copy.builder.add(stack, labels, sample.values);
    }
    Part { profile: copy.builder.finish(), bytes }
}
