//! Columns that are snapshots: values in use at the end of a period, which are never summed over
//! periods.
//!
//! Code that puts several periods into one profile sets the end of each before it
//! ([`ProfileBuilder::begin_period`]). Of columns that are snapshots the profile then has the
//! values of the period that ends last; periods that end together, those of several processes, add
//! up.
//!
//! Invariant: a profile without such columns pays one comparison a sample.

use strata_kinds::{Aggregation, find_column};

use super::ProfileBuilder;
use crate::model::{SampleKey, ValueType};

/// Which periods' snapshots a profile has.
#[derive(Default)]
pub(super) struct Snapshots {
    /// Positions of the sample types that are snapshots.
    columns: Vec<usize>,
    /// When the period ended whose values they are.
    end: Option<i64>,
    /// Samples added now are of an earlier period.
    are_stale: bool,
    /// Values were taken back, so samples may be left that stand for nothing.
    were_cleared: bool,
}

impl ProfileBuilder {
    /// Everything added from now on is of a period that ends at `end`, in nanoseconds since 1970,
    /// and has values of these sample types. Without a snapshot among them the period has no values
    /// in use.
    pub fn begin_period(&mut self, end: i64, types: &[usize]) {
        let snapshots = &mut self.snapshots;
        if !snapshots.columns.iter().any(|column| types.contains(column)) {
            return;
        }
        let before = snapshots.end;
        snapshots.are_stale = before.is_some_and(|before| end < before);
        if snapshots.are_stale {
            return;
        }
        snapshots.end = Some(end);
        if before.is_some_and(|before| end > before) {
            snapshots.were_cleared = true;
            let width = self.profile.sample_types.len().max(1);
            for row in self.profile.values.chunks_mut(width) {
                for &column in &self.snapshots.columns {
                    if let Some(value) = row.get_mut(column) {
                        *value = 0;
                    }
                }
            }
        }
    }

    /// When the period ended whose snapshots the profile has; `None` if it has none.
    #[must_use]
    pub fn snapshot_end(&self) -> Option<i64> {
        self.snapshots.end
    }

    /// A sample type was added.
    pub(super) fn note_column(&mut self, kind: ValueType) {
        let (name, unit) = (self.profile.string(kind.name), self.profile.string(kind.unit));
        let known = find_column(name, unit);
        if known.is_some_and(|(_, column)| column.aggregation == Aggregation::Snapshot) {
            self.snapshots.columns.push(self.profile.sample_types.len().saturating_sub(1));
        }
    }

    /// The values without those of earlier snapshots, if there are any to be left out.
    pub(super) fn without_stale(&self, values: &[i64]) -> Option<Vec<i64>> {
        self.snapshots.are_stale.then(|| {
            let is_stale = |at: &usize| self.snapshots.columns.contains(at);
            values
                .iter()
                .enumerate()
                .map(|(at, value)| if is_stale(&at) { 0 } else { *value })
                .collect()
        })
    }

    /// Drops samples that earlier snapshots left without any value.
    pub(super) fn drop_emptied(&mut self) {
        if !self.snapshots.were_cleared && !self.snapshots.are_stale {
            return;
        }
        let width = self.profile.sample_types.len().max(1);
        let rows = self.profile.samples.iter().zip(self.profile.values.chunks(width));
        let kept = rows.filter(|(_, row)| row.iter().any(|value| *value != 0));
        let (samples, values): (Vec<SampleKey>, Vec<&[i64]>) = kept.unzip();
        let values = values.concat();
        self.profile.samples = samples;
        self.profile.values = values;
    }
}
