//! The summary of a profile: the functions and processes with the most time.
//!
//! Returned as data, for a terminal and for JSON alike. Names are the profile's own: a terminal
//! shows them through [`crate::text::sanitize_for_terminal`].
//!
//! Invariant: a function that calls itself counts once in a stack; nothing is counted in a total
//! more often than it was sampled.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use crate::kind::{FrameKind, base_name};
use crate::model::{LocationId, Profile, StringId};
use crate::processes::{MoreProcesses, ProcessShare, ProcessSums};

/// The whole profile in a few lines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub sample_type: String,
    pub unit: String,
    /// The sum of the sample type's values.
    pub total: i64,
    /// The number of samples, if the profile counts them.
    pub samples: Option<i64>,
    pub duration_nanos: i64,
    /// Distinct processes and functions in the profile.
    pub processes: usize,
    pub functions: usize,
    /// Value by kind of the leaf.
    pub kinds: Vec<KindShare>,
    /// By self value, the largest first.
    pub top_functions: Vec<FunctionShare>,
    /// The largest first; small ones of a name are one.
    pub top_processes: Vec<ProcessShare>,
    pub more_processes: MoreProcesses,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KindShare {
    pub kind: FrameKind,
    pub value: i64,
    pub percent: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionShare {
    pub name: String,
    pub kind: FrameKind,
    /// The file of its code, without folders; empty if unknown.
    pub module: String,
    /// Value of samples whose leaf it is.
    #[serde(rename = "self")]
    pub own: i64,
    pub self_percent: f64,
    /// Value of samples it is in.
    pub total: i64,
    pub total_percent: f64,
}

/// The `most` largest functions and processes by one sample type.
#[must_use]
pub fn summarize(profile: &Profile, sample_type: usize, most: usize) -> Summary {
    let functions = Functions::of(profile);
    let mut own = vec![0_i64; functions.list.len()];
    let mut all = vec![0_i64; functions.list.len()];
    let mut last_seen = vec![0_usize; functions.list.len()];
    let mut kinds: HashMap<FrameKind, i64> = HashMap::new();
    let mut processes = ProcessSums::default();
    let mut total = 0_i64;
    for (number, sample) in (1..).zip(profile.samples()) {
        let value = sample.values.get(sample_type).copied().unwrap_or(0);
        if value <= 0 {
            continue;
        }
        total = total.saturating_add(value);
        processes.add(&profile.identity(sample.labels), value);
        let mut is_leaf = true;
        for location in profile.stack(sample.stack) {
            for &function in functions.at(location) {
                let place = function as usize;
                if is_leaf {
                    is_leaf = false;
                    add(&mut own, place, value);
                    let kind = functions.list.get(place).map_or(FrameKind::Marker, |key| key.kind);
                    let sum = kinds.entry(kind).or_default();
                    *sum = sum.saturating_add(value);
                }
                let Some(last) = last_seen.get_mut(place) else { continue };
                if *last != number {
                    *last = number;
                    add(&mut all, place, value);
                }
            }
        }
    }
    let percent = |value: i64| if total > 0 { 100.0 * value as f64 / total as f64 } else { 0.0 };
    let shown = profile.sample_types.get(sample_type).copied().unwrap_or_default();
    let mut kinds: Vec<_> = kinds
        .into_iter()
        .map(|(kind, value)| KindShare { kind, value, percent: percent(value) })
        .collect();
    kinds.sort_by_key(|share| (Reverse(share.value), share.kind));
    let count = processes.count();
    let (top_processes, more_processes) = processes.top(profile, total, most);
    Summary {
        sample_type: profile.string(shown.name).to_owned(),
        unit: profile.string(shown.unit).to_owned(),
        total,
        samples: profile.samples_beside(sample_type).map(|counting| profile.total(counting)),
        duration_nanos: profile.duration_nanos,
        processes: count,
        functions: all.iter().filter(|&&value| value > 0).count(),
        kinds,
        top_functions: functions.top(profile, &own, &all, most, percent),
        top_processes,
        more_processes,
    }
}

fn add(sums: &mut [i64], place: usize, value: i64) {
    if let Some(sum) = sums.get_mut(place) {
        *sum = sum.saturating_add(value);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FunctionKey {
    name: StringId,
    kind: FrameKind,
    module: StringId,
}

/// The functions of a profile, numbered, and which are at each location, innermost first.
struct Functions {
    list: Vec<FunctionKey>,
    at: Vec<u32>,
    ends: Vec<usize>,
}

impl Functions {
    fn of(profile: &Profile) -> Self {
        let mut functions = Self { list: Vec::new(), at: Vec::new(), ends: Vec::new() };
        let mut numbers: HashMap<FunctionKey, u32> = HashMap::new();
        for &location in profile.locations() {
            let module = location.mapping.map(|id| profile.mapping(id).path).unwrap_or_default();
            for frame in profile.frames(location) {
                let key = FunctionKey { name: frame.name, kind: frame.kind, module };
                let next = u32::try_from(functions.list.len()).unwrap_or(u32::MAX);
                let number = *numbers.entry(key).or_insert(next);
                if number == next {
                    functions.list.push(key);
                }
                functions.at.push(number);
            }
            functions.ends.push(functions.at.len());
        }
        functions
    }

    fn at(&self, location: LocationId) -> &[u32] {
        let place = location.position();
        let before = place.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(place).copied().unwrap_or(0);
        self.at.get(before.copied().unwrap_or(0)..end).unwrap_or_default()
    }

    fn top(
        &self,
        profile: &Profile,
        own: &[i64],
        all: &[i64],
        most: usize,
        percent: impl Fn(i64) -> f64,
    ) -> Vec<FunctionShare> {
        let mut list: Vec<_> = self.list.iter().zip(own.iter().zip(all)).collect();
        list.retain(|(_, (_, all))| **all > 0);
        list.sort_by_key(|(key, (own, all))| {
            (Reverse(**own), Reverse(**all), profile.string(key.name))
        });
        list.truncate(most);
        let share = |(key, (&own, &total)): (&FunctionKey, (&i64, &i64))| FunctionShare {
            name: profile.string(key.name).to_owned(),
            kind: key.kind,
            module: base_name(profile.string(key.module)).to_owned(),
            own,
            self_percent: percent(own),
            total,
            total_percent: percent(total),
        };
        list.into_iter().map(share).collect()
    }
}
