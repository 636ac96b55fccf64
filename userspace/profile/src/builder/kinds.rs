//! Profiles of several kinds of samples: the columns of each are those of the table of kinds.

use strata_kinds::{Kind, Kinds, find_column};

use super::ProfileBuilder;
use crate::model::{LabelsId, Profile, StackId, ValueType};

impl ProfileBuilder {
    /// A profile with the value columns of these kinds, in the table's order. A viewer shows the
    /// default column of the first.
    #[must_use]
    pub fn of_kinds(kinds: Kinds) -> Self {
        let columns = kinds.iter().flat_map(Kind::columns);
        let types: Vec<_> = columns.map(|column| (column.own.name, column.own.unit)).collect();
        let mut builder = Self::new(&types);
        if let Some(first) = kinds.iter().next() {
            builder.set_default_sample_type(first.info().shown_column().own.name);
        }
        builder
    }

    /// The sampling period of a kind. That of the first is the profile's own.
    pub fn set_period_of(&mut self, kind: Kind, period: i64) {
        if self.profile.kinds().iter().next() == Some(kind) {
            let unit = kind.info().period;
            self.set_period(unit.name, unit.unit, period);
        }
        self.profile.periods.retain(|(known, _)| *known != kind);
        self.profile.periods.push((kind, period));
    }

    /// The same, unless one is known.
    pub(crate) fn note_period(&mut self, kind: Kind, period: i64) {
        if self.profile.periods.iter().all(|(known, _)| *known != kind) {
            self.profile.periods.push((kind, period));
        }
    }

    /// Adds values to the columns of one kind; the others stay as they are. Of a kind that the
    /// profile does not have nothing is added.
    pub fn add_of(&mut self, kind: Kind, stack: StackId, labels: LabelsId, values: &[i64]) {
        let columns = kind.columns();
        let width = self.profile.sample_types.len();
        let Some(first) = self.profile.first_column_of(kind) else { return };
        if width == columns.len() {
            self.add(stack, labels, values);
            return;
        }
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        row.resize(width, 0);
        let places = row.iter_mut().skip(first).take(columns.len());
        places.zip(values).for_each(|(place, value)| *place = *value);
        self.add(stack, labels, &row);
        self.row = row;
    }
}

impl Profile {
    /// The kinds whose columns it has.
    #[must_use]
    pub fn kinds(&self) -> Kinds {
        let types = self.sample_types.iter();
        let known = |kind: &ValueType| find_column(self.string(kind.name), self.string(kind.unit));
        types.filter_map(known).map(|(kind, _)| kind).collect()
    }

    /// The weight of an event of a kind, in the unit of its period; 1 if unknown.
    #[must_use]
    pub fn period_of(&self, kind: Kind) -> i64 {
        let known = self.periods.iter().find(|(known, _)| *known == kind);
        let own = kind.info().period;
        let names = (self.string(self.period_type.name), self.string(self.period_type.unit));
        match known {
            Some((_, period)) => *period,
            None if names == (own.name, own.unit) => self.period,
            None => 1,
        }
    }

    /// Where the columns of a kind begin.
    #[must_use]
    pub fn first_column_of(&self, kind: Kind) -> Option<usize> {
        let own = kind.columns().first()?.own;
        self.sample_types.iter().position(|column| {
            self.string(column.name) == own.name && self.string(column.unit) == own.unit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameKind, Label, LabelValue, folded, pprof};

    fn of_three_kinds() -> Profile {
        let kinds = [Kind::Cpu, Kind::Exceptions, Kind::Heap].into_iter().collect();
        let mut builder = ProfileBuilder::of_kinds(kinds);
        let frame = builder.frame(FrameKind::Managed, "Shop.Order", "", "", 0);
        let location = builder.location(1, None, &[frame]);
        let stack = builder.stack(&[location]);
        let plain = builder.labels(&[]);
        let key = builder.string("customer");
        let value = LabelValue::Text(builder.string("a label beyond the fixed ones"));
        let labelled = builder.labels(&[Label { key, value }]);
        builder.add_of(Kind::Cpu, stack, plain, &[2, 20]);
        builder.add_of(Kind::Heap, stack, plain, &[3, 300]);
        builder.add_of(Kind::Exceptions, stack, labelled, &[7]);
        builder.add_of(Kind::Locks, stack, plain, &[1, 1]);
        builder.finish()
    }

    #[test]
    fn several_kinds_in_one_profile_come_back_from_pprof_with_labels_beyond_the_fixed_set() {
        let written = of_three_kinds();
        let mut bytes = Vec::new();
        pprof::encode(&written, &mut bytes).expect("written");
        let read = pprof::decode(&bytes).expect("a profile");
        for profile in [&written, &read] {
            let totals: Vec<i64> = (0..5).map(|column| profile.total(column)).collect();
            assert_eq!(totals, [2, 20, 7, 3, 300]);
            let names: Vec<&str> =
                profile.sample_types.iter().map(|column| profile.string(column.name)).collect();
            assert_eq!(names, ["samples", "cpu", "exceptions", "inuse_objects", "inuse_space"]);
            let labels = profile.samples().flat_map(|sample| profile.labels(sample.labels));
            let keys: Vec<&str> = labels.map(|label| profile.string(label.key)).collect();
            assert_eq!(keys, ["customer"]);
        }
    }

    /// As at the flush after the last object of a process has gone.
    #[test]
    fn that_nothing_is_in_use_stays_in_the_snapshots_own_profile() {
        let mut builder = ProfileBuilder::of_kinds([Kind::Cpu, Kind::Heap].into_iter().collect());
        let labels = builder.labels(&[]);
        let frame = builder.frame(FrameKind::Native, "runs", "", "", 0);
        let location = builder.location(1, None, &[frame]);
        let stack = builder.stack(&[location]);
        builder.add_of(Kind::Cpu, stack, labels, &[2, 20]);
        builder.add_of(Kind::Heap, StackId::default(), labels, &[0, 0]);
        let profile = builder.finish();
        let samples = |kind| crate::of_kind(&profile, kind, crate::Times::Dropped).sample_count();
        assert_eq!((samples(Kind::Cpu), samples(Kind::Heap)), (1, 1));
    }

    #[test]
    fn each_kind_is_folded_by_itself() {
        let profile = of_three_kinds();
        for (name, count) in [("cpu", 20), ("exceptions", 7), ("inuse_space", 300)] {
            let mut text = Vec::new();
            let column = profile.sample_type(name).expect(name);
            folded::write(&profile, column, &mut text).expect("folded");
            let read = folded::read(&String::from_utf8(text).expect("text")).expect("stacks");
            assert_eq!(read.total(0), count, "{name}");
        }
    }
}
