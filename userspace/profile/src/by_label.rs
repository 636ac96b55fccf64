//! The summary of a profile by the values of one label: exceptions by their types, allocations by their
//! classes, waits for locks by the threads that had them.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use crate::model::{LabelValue, Profile, StringId};

/// The samples with one value of the label.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfValue {
    pub value: String,
    pub total: i64,
    /// Of all samples of the column, with the label or without.
    pub percent: f64,
}

/// The values with the largest sums.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ByLabel {
    pub values: Vec<OfValue>,
    /// Values beyond those listed.
    pub more: usize,
}

/// The `most` values with the largest sums of a column. Samples without the label are in none.
#[must_use]
pub fn summarize(profile: &Profile, column: usize, label: &str, most: usize) -> ByLabel {
    let mut all = 0_i64;
    let mut values: HashMap<StringId, i64> = HashMap::new();
    for sample in profile.samples() {
        let value = sample.values.get(column).copied().unwrap_or(0).max(0);
        all = all.saturating_add(value);
        for found in profile.labels(sample.labels) {
            if let LabelValue::Text(text) = found.value
                && value > 0
                && profile.string(found.key) == label
            {
                let sum = values.entry(text).or_default();
                *sum = sum.saturating_add(value);
            }
        }
    }
    let of_value = |(value, total): (StringId, i64)| OfValue {
        value: profile.string(value).to_owned(),
        total,
        percent: 100.0 * total as f64 / all.max(1) as f64,
    };
    let mut values: Vec<_> = values.into_iter().map(of_value).collect();
    values.sort_by_cached_key(|one| (Reverse(one.total), one.value.clone()));
    let more = values.len().saturating_sub(most);
    values.truncate(most);
    ByLabel { values, more }
}

#[cfg(test)]
mod tests {
    use strata_kinds::Kind;

    use super::*;
    use crate::ProfileBuilder;
    use crate::kind::FrameKind;
    use crate::model::Label;

    #[test]
    fn values_of_a_label_are_summed_with_the_largest_first() {
        let mut builder = ProfileBuilder::of_kinds([Kind::Exceptions].into_iter().collect());
        let frame = builder.frame(FrameKind::Managed, "Shop.Main", "", "", 0);
        let location = builder.location(1, None, &[frame]);
        let stack = builder.stack(&[location]);
        for (value, count) in [("Sold", 3), ("Missing", 5), ("Sold", 4), ("Other", 1), ("", 7)] {
            let label = |builder: &mut ProfileBuilder, key, value| Label {
                key: builder.string(key),
                value: LabelValue::Text(builder.string(value)),
            };
            let mut labels = vec![label(&mut builder, "exception message", "none")];
            if !value.is_empty() {
                labels.push(label(&mut builder, "exception type", value));
            }
            let labels = builder.labels(&labels);
            builder.add_of(Kind::Exceptions, stack, labels, &[count]);
        }
        let profile = builder.finish();
        let found = summarize(&profile, 0, "exception type", 2);
        assert_eq!(found.more, 1);
        let found: Vec<_> = { found.values.iter() }
            .map(|one| (one.value.as_str(), one.total, one.percent))
            .collect();
        assert_eq!(found, [("Sold", 7, 35.0), ("Missing", 5, 25.0)]);
        assert!(summarize(&profile, 0, "gc reason", 2).values.is_empty());
    }
}
