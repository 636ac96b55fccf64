//! The summary of a profile of GC pauses: by generation, reason and type, and by the function that
//! collected or allocated.
//!
//! Every stack of a pause has the collector on top. What is summed is the program's own function
//! ([`crate::own_function`]); a stack of one of the collector's own threads has none.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use crate::kind::base_name;
use crate::model::{LabelValue, Profile, StringId};
use crate::own_function::{self, Which};

/// All pauses, and those of each kind and function, with the longest sum first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pauses {
    #[serde(flatten)]
    pub all: Sum,
    pub collections: Vec<OfCollections>,
    /// Rows beyond those listed; the same of functions.
    pub more_collections: usize,
    pub functions: Vec<OfFunction>,
    pub more_functions: usize,
}

/// Pauses together, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    pub pauses: i64,
    pub time: i64,
    /// Of pauses that are one sample, as they are where samples have their collection's number: the
    /// mean.
    pub longest: i64,
}

impl Sum {
    fn add(&mut self, pauses: i64, time: i64) {
        self.pauses = self.pauses.saturating_add(pauses);
        self.time = self.time.saturating_add(time);
        self.longest = self.longest.max(time / pauses.max(1));
    }

    #[must_use]
    pub fn mean(&self) -> i64 {
        self.time / self.pauses.max(1)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfCollections {
    pub generation: String,
    pub reason: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(flatten)]
    pub sum: Sum,
    pub percent: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfFunction {
    pub name: String,
    /// The file of its code, without folders; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub module: String,
    #[serde(flatten)]
    pub sum: Sum,
    pub percent: f64,
}

/// The `most` largest of each, by the columns of numbers and of times.
#[must_use]
pub fn summarize(profile: &Profile, counts: usize, times: usize, most: usize) -> Pauses {
    let mut all = Sum::default();
    let mut collections: HashMap<[StringId; 3], Sum> = HashMap::new();
    let mut functions: HashMap<(StringId, StringId), Sum> = HashMap::new();
    for sample in profile.samples() {
        let value = |column: usize| sample.values.get(column).copied().unwrap_or(0);
        let (pauses, time) = (value(counts), value(times));
        if pauses <= 0 || time < 0 {
            continue;
        }
        let mut collection = [StringId::default(); 3];
        for label in profile.labels(sample.labels) {
            let place = match profile.string(label.key) {
                "gc generation" => 0,
                "gc reason" => 1,
                "gc type" => 2,
                _ => continue,
            };
            if let (LabelValue::Text(text), Some(to)) = (label.value, collection.get_mut(place)) {
                *to = text;
            }
        }
        all.add(pauses, time);
        collections.entry(collection).or_default().add(pauses, time);
        let function = own_function::of_stack(profile, sample.stack, Which::Managed);
        functions.entry(function).or_default().add(pauses, time);
    }
    let percent = |sum: &Sum| 100.0 * sum.time as f64 / all.time.max(1) as f64;
    let text = |id: StringId| profile.string(id).to_owned();
    let mut collections: Vec<_> = collections
        .into_iter()
        .map(|([generation, reason, kind], sum)| OfCollections {
            generation: text(generation),
            reason: text(reason),
            kind: text(kind),
            sum,
            percent: percent(&sum),
        })
        .collect();
    collections.sort_by_cached_key(|one| {
        (Reverse(one.sum.time), one.generation.clone(), one.reason.clone(), one.kind.clone())
    });
    let more_collections = collections.len().saturating_sub(most);
    collections.truncate(most);
    let mut functions: Vec<_> = functions
        .into_iter()
        .map(|((name, module), sum)| OfFunction {
            name: text(name),
            module: base_name(profile.string(module)).to_owned(),
            sum,
            percent: percent(&sum),
        })
        .collect();
    functions.sort_by_cached_key(|one| (Reverse(one.sum.time), one.name.clone()));
    let more_functions = functions.len().saturating_sub(most);
    functions.truncate(most);
    Pauses { all, collections, more_collections, functions, more_functions }
}

#[cfg(test)]
mod tests {
    use strata_kinds::Kind;

    use super::*;
    use crate::ProfileBuilder;
    use crate::kind::FrameKind;
    use crate::model::Label;

    #[test]
    fn pauses_are_summed_by_collection_and_by_function() {
        let mut builder = ProfileBuilder::of_kinds([Kind::Gc].into_iter().collect());
        let stack = |builder: &mut ProfileBuilder, function: &str| {
            let frames = [
                (FrameKind::Native, "SVR::gc_heap::gc1"),
                (FrameKind::Managed, "System.GC.Collect"),
                (FrameKind::Managed, function),
                (FrameKind::Managed, "Shop.Main"),
            ];
            let locations = frames.map(|(kind, name)| {
                let frame = builder.frame(kind, name, "", "", 0);
                builder.location(1, None, &[frame])
            });
            builder.stack(&locations)
        };
        let (pay, list) = (stack(&mut builder, "Shop.Pay"), stack(&mut builder, "Shop.List"));
        for (number, generation, stack, time) in
            [("1", "0", pay, 10), ("2", "0", pay, 30), ("3", "2", list, 500), ("4", "0", list, 20)]
        {
            let texts = [("gc generation", generation), ("gc reason", "Induced")];
            let texts = texts.into_iter().chain([("gc number", number)]);
            let labels: Vec<_> = texts
                .map(|(key, value)| Label {
                    key: builder.string(key),
                    value: LabelValue::Text(builder.string(value)),
                })
                .collect();
            let labels = builder.labels(&labels);
            builder.add_of(Kind::Gc, stack, labels, &[1, time]);
        }
        let profile = builder.finish();
        let pauses = summarize(&profile, 0, 1, 10);
        assert_eq!(pauses.all, Sum { pauses: 4, time: 560, longest: 500 });
        let of = |one: &OfCollections| (one.generation.clone(), one.reason.clone(), one.sum);
        assert_eq!(pauses.collections.len(), 2);
        let young = Sum { pauses: 3, time: 60, longest: 30 };
        assert_eq!(of(&pauses.collections[1]), ("0".into(), "Induced".into(), young));
        let names: Vec<_> = { pauses.functions.iter() }
            .map(|one| (one.name.as_str(), one.sum.pauses, one.sum.longest))
            .collect();
        assert_eq!(names, [("Shop.List", 2, 500), ("Shop.Pay", 2, 30)]);
        assert_eq!(pauses.functions[1].sum.mean(), 20);
    }
}
