//! Samples in time, for backends that show them on a line of time: each sample that was taken becomes
//! one sample with its time as a label.
//!
//! Invariant: sums do not change. A kind is written in time only if its samples in time say exactly
//! what its sums say; profiles are merged of periods of which some have kept no times.

use strata_kinds::Kinds;
use strata_kinds::labels::END_TIMESTAMP;
use strata_profile::{Label, LabelValue, LabelsId, Profile, StringId, Tick};

use super::copy::Copy;

/// The kinds of a profile whose samples in time are complete.
pub(super) fn timed_kinds(profile: &Profile) -> Kinds {
    let kept: Kinds = profile.timeline().into_iter().flatten().map(|tick| tick.kind).collect();
    let is_whole = |kind: &strata_kinds::Kind| {
        let mut sums = vec![0_i64; kind.columns().len()];
        for tick in profile.timeline().into_iter().flatten().filter(|tick| tick.kind == *kind) {
            sums.iter_mut().zip(tick.values()).for_each(|(sum, value)| {
                *sum = sum.saturating_add(value);
            });
        }
        let first = profile.first_column_of(*kind);
        first.is_some_and(|first| (first..).zip(sums).all(|(at, sum)| profile.total(at) == sum))
    };
    kept.iter().filter(is_whole).collect()
}

/// The values of a sample in time, in the columns of the selection.
pub(super) fn values_of(
    profile: &Profile,
    tick: &Tick,
    types: &[(usize, &str, &str)],
    values: &mut Vec<i64>,
) {
    values.clear();
    let Some(first) = profile.first_column_of(tick.kind) else { return };
    values.extend(types.iter().map(|&(at, _, _)| {
        let column = at.checked_sub(first);
        column.and_then(|column| tick.values().nth(column)).unwrap_or(0)
    }));
}

impl Copy<'_> {
    /// A set of labels of the copy, and when the sample was taken, in nanoseconds since 1970.
    pub(super) fn at_time(&mut self, labels: LabelsId, time: i64) -> LabelsId {
        let mut all = self.builder.so_far().labels(labels).to_vec();
        let key = self.builder.string(END_TIMESTAMP);
        all.push(Label {
            key,
            value: LabelValue::Number { value: time, unit: StringId::default() },
        });
        self.builder.labels(&all)
    }
}

/// When a sample was taken, if it has a time.
pub fn time_of(profile: &Profile, labels: LabelsId) -> Option<u64> {
    profile.labels(labels).iter().find_map(|label| match label.value {
        LabelValue::Number { value, .. } if profile.string(label.key) == END_TIMESTAMP => {
            u64::try_from(value).ok()
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use strata_kinds::Kind;
    use strata_profile::{ProfileBuilder, StackId};

    use super::*;
    use crate::limits::{Selection, fit};

    fn profile(ticks: u32) -> Profile {
        let kinds = [Kind::Cpu, Kind::Locks].into_iter().collect();
        let mut builder = ProfileBuilder::of_kinds(kinds);
        builder.set_start(1000);
        builder.keep_timeline();
        let labels = builder.labels(&[]);
        builder.add_of(Kind::Cpu, StackId::default(), labels, &[3, 30]);
        builder.add_of(Kind::Locks, StackId::default(), labels, &[2, 900]);
        let (stack, kind) = (StackId::default(), Kind::Cpu);
        for tick in 0..ticks {
            let time = u64::from(tick) * 10;
            builder.tick(Tick { kind, labels, stack, time, weight: 1, value: 10 });
        }
        builder.finish()
    }

    fn sent(profile: &Profile, timed: bool) -> Vec<(Option<u64>, Vec<i64>)> {
        let types =
            vec![(0, "samples", "count"), (1, "cpu", "nanoseconds"), (3, "t", "nanoseconds")];
        let selection =
            Selection { types, period: ("cpu", "nanoseconds"), labels: &[], values: None, timed };
        let limits = crate::datadog::Settings::default().limits;
        let (parts, _) = fit(profile, &selection, &limits);
        let mut all: Vec<_> = parts
            .iter()
            .flat_map(|part| part.profile.samples().map(|sample| (&part.profile, sample)))
            .map(|(part, sample)| (time_of(part, sample.labels), sample.values.to_vec()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn each_sample_of_a_kind_with_times_is_sent_with_its_time_and_the_others_as_sums() {
        let slices = [1000, 1010, 1020].map(|time| (Some(time), vec![1, 10, 0]));
        let mut expected = vec![(None, vec![0, 0, 900])];
        expected.extend(slices);
        assert_eq!(sent(&profile(3), true), expected);
        assert_eq!(sent(&profile(3), false), [(None, vec![3, 30, 900])]);
    }

    #[test]
    fn times_that_do_not_tell_all_are_not_sent() {
        assert_eq!(sent(&profile(2), true), [(None, vec![3, 30, 900])]);
    }
}
