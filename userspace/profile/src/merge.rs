//! One profile of several: what they have in common adds up, but values in use (snapshots, by the
//! table of kinds), which are those of the profile that ends last.
//!
//! Invariant: no value is lost, up to saturation. Profiles whose sample types differ from the
//! first one's are left for another merge, and handed back.

use crate::builder::{ProfileBuilder, Translation};
use crate::model::{Profile, StackId};

/// Merges profiles of the same sample types, the first's; those of others are handed back. It
/// begins with the earliest and ends with the latest. Timelines are not kept.
#[must_use]
pub fn merge<'p>(
    profiles: impl IntoIterator<Item = &'p Profile>,
) -> Option<(Profile, Vec<&'p Profile>)> {
    let mut profiles = profiles.into_iter();
    let first = profiles.next()?;
    let types = names_of(first);
    let pairs: Vec<(&str, &str)> = types.clone();
    let mut builder = ProfileBuilder::new(&pairs);
    builder.set_period(
        first.string(first.period_type.name),
        first.string(first.period_type.unit),
        first.period,
    );
    builder.set_default_sample_type(first.string(first.default_sample_type));
    builder.set_host(first.string(first.host));
    let (mut start, mut end) = (i64::MAX, i64::MIN);
    let mut others = Vec::new();
    for profile in std::iter::once(first).chain(profiles) {
        if names_of(profile) != types {
            others.push(profile);
            continue;
        }
        start = start.min(profile.start_nanos);
        end = end.max(profile.start_nanos.saturating_add(profile.duration_nanos));
        for comment in &profile.comments {
            let known: Vec<String> = builder
                .so_far()
                .comments
                .iter()
                .map(|known| builder.so_far().string(*known).to_owned())
                .collect();
            let comment = profile.string(*comment);
            if !known.iter().any(|known| known == comment) {
                builder.comment(comment);
            }
        }
        builder.count_overflows(profile.overflows);
        builder.begin_period(profile.start_nanos.saturating_add(profile.duration_nanos));
        Merging::new(&mut builder, profile).samples();
    }
    builder.set_start(start);
    builder.set_duration(end.saturating_sub(start));
    Some((builder.finish(), others))
}

fn names_of(profile: &Profile) -> Vec<(&str, &str)> {
    let types = profile.sample_types.iter();
    types.map(|kind| (profile.string(kind.name), profile.string(kind.unit))).collect()
}

/// What has been taken over from one profile.
struct Merging<'b, 'p> {
    into: &'b mut ProfileBuilder,
    from: &'p Profile,
    known: Translation<'p>,
    /// By position in `from`.
    stacks: Vec<Option<StackId>>,
}

impl<'b, 'p> Merging<'b, 'p> {
    fn new(into: &'b mut ProfileBuilder, from: &'p Profile) -> Self {
        Self { into, from, known: Translation::new(from), stacks: vec![None; from.stack_count()] }
    }

    fn samples(&mut self) {
        for sample in self.from.samples() {
            let stack = self.stack(sample.stack);
            let labels = self.known.labels(self.into, sample.labels);
            self.into.add(stack, labels, sample.values);
        }
    }

    fn stack(&mut self, id: StackId) -> StackId {
        // From the leaf up to what is known, and down again: stacks may be long.
        let mut todo = Vec::new();
        let mut at = id;
        let mut known = StackId::default();
        while let Some((location, caller)) = self.from.leaf(at) {
            if let Some(Some(found)) = self.stacks.get(at.position()) {
                known = *found;
                break;
            }
            todo.push((at, location));
            at = caller;
        }
        for (id, location) in todo.into_iter().rev() {
            let location = self.known.location(self.into, location);
            known = self.into.called_from(known, location);
            if let Some(place) = self.stacks.get_mut(id.position()) {
                *place = Some(known);
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameKind, Label, LabelValue};

    fn profile(start: i64, stacks: &[(&[&str], &str, i64)]) -> Profile {
        let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
        builder.set_period("cpu", "nanoseconds", 10);
        builder.set_start(start);
        builder.set_duration(15);
        for (names, label, count) in stacks {
            let mapping = builder.mapping(0, 100, 0, "/bin/app", "ab");
            let locations: Vec<_> = names
                .iter()
                .map(|name| {
                    let frame = builder.frame(FrameKind::Native, name, "", "a.c", 7);
                    builder.location(name.len() as u64, Some(mapping), &[frame])
                })
                .collect();
            let stack = builder.stack(&locations);
            let label = Label {
                key: builder.string("thread"),
                value: LabelValue::Text(builder.string(label)),
            };
            let labels = builder.labels(&[label]);
            builder.add(stack, labels, &[*count, *count * 10]);
        }
        builder.finish()
    }

    #[test]
    fn equal_stacks_add_up_and_different_ones_stay_apart() {
        let first = profile(100, &[(&["work", "main"], "a", 3), (&["main"], "a", 1)]);
        let second = profile(
            115,
            &[(&["main"], "a", 1), (&["work", "main"], "b", 5), (&["work", "main"], "a", 2)],
        );
        let (merged, others) = merge([&first, &second]).expect("some profiles");
        assert!(others.is_empty());
        assert_eq!((merged.start_nanos, merged.duration_nanos), (100, 30));
        assert_eq!([merged.total(0), merged.total(1)], [12, 120]);
        assert_eq!(merged.sample_count(), 3);
        let mut counts: Vec<_> = merged.samples().map(|sample| sample.values[0]).collect();
        counts.sort_unstable();
        assert_eq!(counts, [2, 5, 5]);
        assert_eq!(merged.locations().len(), 2);
        assert_eq!(merged.period, 10);
    }

    fn heap(start: i64, objects: &[(&str, i64, i64)]) -> Profile {
        let types = [("exceptions", "count"), ("inuse_objects", "count"), ("inuse_space", "bytes")];
        let mut builder = ProfileBuilder::new(&types);
        builder.set_start(start);
        builder.set_duration(10);
        for (name, count, thrown) in objects {
            let frame = builder.frame(FrameKind::Managed, name, "", "", 0);
            let location = builder.location(1, None, &[frame]);
            let stack = builder.stack(&[location]);
            let labels = builder.labels(&[]);
            builder.add(stack, labels, &[*thrown, *count, *count * 100]);
        }
        builder.finish()
    }

    #[test]
    fn what_is_in_use_is_never_summed_over_periods_and_what_happened_is() {
        let profiles = [
            heap(0, &[("Leak", 5, 1), ("Freed", 7, 0)]),
            heap(20, &[("Leak", 9, 2)]),
            heap(10, &[("Leak", 7, 4), ("Freed", 1, 0)]),
        ];
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]] {
            let (merged, _) = merge(order.map(|at| &profiles[at])).expect("some profiles");
            let totals = [0, 1, 2].map(|column| merged.total(column));
            assert_eq!(totals, [7, 9, 900], "{order:?}");
            assert_eq!(merged.sample_count(), 1, "freed objects leave: {order:?}");
        }
    }

    #[test]
    fn what_two_processes_have_in_use_at_one_time_adds_up() {
        let (one, other) = (heap(0, &[("Leak", 5, 0)]), heap(0, &[("Leak", 6, 0)]));
        let (merged, _) = merge([&one, &other]).expect("some profiles");
        assert_eq!(merged.total(1), 11);
    }

    #[test]
    fn profiles_of_other_types_are_handed_back() {
        let first = profile(0, &[(&["a"], "x", 1)]);
        let other = ProfileBuilder::new(&[("exceptions", "count")]).finish();
        let (merged, others) = merge([&first, &other, &first]).expect("some profiles");
        assert_eq!((merged.total(0), others.len()), (2, 1));
        assert!(merge([]).is_none());
    }
}
