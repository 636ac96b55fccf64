//! The processes of a profile with the most of a value: many small ones of a name are summed.
//!
//! Invariant: each value is in exactly one row or in the rest, so all of them add up to the total.

use std::cmp::Reverse;

use hashbrown::{HashMap, HashSet};
use serde::Serialize;

use crate::identity::Identity;
use crate::model::{Profile, StringId};

/// A process, or the small ones of one name and container.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessShare {
    /// Of one process.
    pub pid: Option<u32>,
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// How many they are.
    pub processes: usize,
    pub value: i64,
    pub percent: f64,
}

/// Processes that have no room in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MoreProcesses {
    pub processes: usize,
    pub percent: f64,
}

/// A process that has less than one part in so many of the total is small wherever not all have a row.
const SMALL: i64 = 100;

/// A process by its id and name: a process that executes another program has a row for each.
type Key = (Option<u32>, StringId);

/// The values of processes so far, with their containers.
#[derive(Default)]
pub(crate) struct ProcessSums(HashMap<Key, (i64, StringId)>);

impl ProcessSums {
    pub(crate) fn add(&mut self, identity: &Identity, value: i64) {
        let process = self.0.entry((identity.pid, identity.process)).or_default();
        process.0 = process.0.saturating_add(value);
        process.1 = identity.container;
    }

    /// Leaves values out that belong to no process.
    pub(crate) fn retain_known(&mut self) {
        self.0.retain(|(pid, name), _| pid.is_some() || *name != StringId::default());
    }

    /// Distinct processes: of what has no id, distinct names.
    pub(crate) fn count(&self) -> usize {
        let ids: HashSet<_> = self.0.keys().filter_map(|(pid, _)| *pid).collect();
        ids.len() + self.0.keys().filter(|(pid, _)| pid.is_none()).count()
    }

    /// The largest value that has no room among the `most` largest.
    fn largest_without_row(&self, most: usize) -> Option<i64> {
        let mut values: Vec<_> = self.0.values().map(|(value, _)| *value).collect();
        values.sort_unstable_by_key(|value| Reverse(*value));
        values.get(most).copied()
    }

    /// The `most` largest in shares of `total`, the largest first.
    pub(crate) fn top(
        self,
        profile: &Profile,
        total: i64,
        most: usize,
    ) -> (Vec<ProcessShare>, MoreProcesses) {
        let (without_row, count) = (self.largest_without_row(most), self.count());
        let is_small =
            |value| without_row.is_some_and(|largest| value <= largest || value < total / SMALL);
        let mut small: HashMap<(StringId, StringId), Vec<(Key, i64)>> = HashMap::new();
        let mut rows = Vec::new();
        for (key, (value, container)) in self.0 {
            if is_small(value) {
                small.entry((key.1, container)).or_default().push((key, value));
            } else {
                rows.push(Row { key, container, processes: 1, value });
            }
        }
        rows.extend(small.into_iter().map(|((name, container), of_name)| Row {
            // One alone stays what it is.
            key: (if let [((pid, _), _)] = of_name.as_slice() { *pid } else { None }, name),
            container,
            processes: of_name.len(),
            value: of_name.iter().fold(0, |sum, (_, value)| sum.saturating_add(*value)),
        }));
        let name = |row: &Row| profile.string(row.key.1);
        rows.sort_by(|a, b| {
            let order = |row: &Row| (Reverse(row.value), row.key.0);
            order(a).cmp(&order(b)).then_with(|| name(a).cmp(name(b)))
        });
        let percent =
            |value: i64| if total > 0 { 100.0 * value as f64 / total as f64 } else { 0.0 };
        let rest = rows.split_off(most.min(rows.len()));
        let more_value = rest.iter().fold(0_i64, |sum, row| sum.saturating_add(row.value));
        let share = |row: &Row| ProcessShare {
            pid: row.key.0,
            name: name(row).to_owned(),
            container: profile.string(row.container).to_owned(),
            processes: row.processes,
            value: row.value,
            percent: percent(row.value),
        };
        let shown: usize = rows.iter().map(|row| row.processes).sum();
        let more = MoreProcesses {
            // One that executes another program has two names, and may be in two rows.
            processes: rest
                .iter()
                .map(|row| row.processes)
                .sum::<usize>()
                .min(count.saturating_sub(shown).max(usize::from(!rest.is_empty()))),
            percent: percent(more_value),
        };
        (rows.iter().map(share).collect(), more)
    }
}

struct Row {
    key: Key,
    container: StringId,
    processes: usize,
    value: i64,
}
