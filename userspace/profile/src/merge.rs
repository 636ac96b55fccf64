//! Merges several profiles: values add up, except values in use (snapshots, by the table of kinds),
//! which are those of the profile that ends last. A kind that a profile lacks has no values from
//! it. [`of_kind`] is the inverse: it extracts one kind.
//!
//! Invariant: no value is lost, up to saturation.

use strata_kinds::{Kind, Kinds, find_column};

use crate::builder::{ProfileBuilder, Translation};
use crate::kind::FrameKind;
use crate::model::{Profile, StackId, Tick, ValueType};

/// Whether a merged profile has its parts' samples in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    Kept,
    Dropped,
}

/// Merges profiles. The result has the columns of all, begins with the earliest and ends with the
/// latest; its description is that of the first kind's profile.
#[must_use]
pub fn merge<'p>(profiles: impl IntoIterator<Item = &'p Profile>, times: Times) -> Option<Profile> {
    let profiles: Vec<&Profile> = profiles.into_iter().collect();
    let first_kind =
        |profile: &Profile| profile.kinds().iter().next().map_or(u8::MAX, |kind| kind as u8);
    let lead = profiles.iter().min_by_key(|profile| first_kind(profile))?;
    let types = types_of_all(&profiles);
    let mut builder = ProfileBuilder::new(&types);
    builder.set_period(
        lead.string(lead.period_type.name),
        lead.string(lead.period_type.unit),
        lead.period,
    );
    builder.set_default_sample_type(lead.string(lead.default_sample_type));
    builder.set_host(lead.string(lead.host));
    let start = profiles.iter().map(|profile| profile.start_nanos).min()?;
    let end = profiles.iter().map(|profile| end_of(profile)).max()?;
    builder.set_start(start);
    builder.set_duration(end.saturating_sub(start));
    if times == Times::Kept && profiles.iter().any(|profile| profile.timeline.is_some()) {
        builder.keep_timeline();
    }
    for profile in profiles {
        builder.comments_of(profile);
        builder.count_overflows(profile.overflows);
        for (kind, period) in &profile.periods {
            builder.note_period(*kind, *period);
        }
        let columns: Vec<usize> = names_of(profile)
            .filter_map(|column| types.iter().position(|known| *known == column))
            .collect();
        builder.begin_period(end_of(profile), &columns);
        let mut merging = Merging::new(&mut builder, profile);
        merging.samples(&columns);
        if times == Times::Kept {
            let later = profile.start_nanos.saturating_sub(start);
            merging.ticks(u64::try_from(later).unwrap_or(0), Kinds::all());
        }
    }
    Some(builder.finish())
}

/// The samples of one kind; the profile's description stays. Not needed for a profile with one kind
/// only.
#[must_use]
pub fn of_kind(profile: &Profile, kind: Kind, times: Times) -> Profile {
    let only = Kinds::NONE.with(kind, true);
    let mut builder = ProfileBuilder::of_kinds(only);
    builder.set_period_of(kind, profile.period_of(kind));
    builder.set_host(profile.string(profile.host));
    builder.set_start(profile.start_nanos);
    builder.set_duration(profile.duration_nanos);
    builder.comments_of(profile);
    if profile.kinds().iter().next() == Some(kind) {
        builder.count_overflows(profile.overflows);
    }
    let first = profile.first_column_of(kind);
    let places: Vec<Option<usize>> = (0..profile.sample_types.len())
        .map(|at| at.checked_sub(first?).filter(|at| *at < kind.columns().len()))
        .collect();
    let mut merging = Merging::new(&mut builder, profile);
    // One without any value says that nothing is in use any more.
    merging.samples_at(kind.columns().len(), &places, kind.info().is_snapshot());
    if times == Times::Kept
        && profile.timeline().is_some_and(|mut ticks| ticks.any(|tick| tick.kind == kind))
    {
        merging.into.keep_timeline();
        merging.ticks(0, only);
    }
    builder.finish()
}

/// The same values in one stack, of a marker.
#[must_use]
pub fn without_stacks(profile: &Profile, marker: &str) -> Profile {
    let types: Vec<(&str, &str)> = names_of(profile).collect();
    let mut builder = ProfileBuilder::new(&types);
    let period = profile.period_type;
    builder.set_period(profile.string(period.name), profile.string(period.unit), profile.period);
    builder.set_default_sample_type(profile.string(profile.default_sample_type));
    builder.set_host(profile.string(profile.host));
    builder.set_start(profile.start_nanos);
    builder.set_duration(profile.duration_nanos);
    builder.comments_of(profile);
    builder.count_overflows(profile.overflows);
    for (kind, period) in &profile.periods {
        builder.note_period(*kind, *period);
    }
    let values: Vec<i64> = (0..types.len()).map(|column| profile.total(column)).collect();
    if values.iter().any(|value| *value != 0) {
        let frame = builder.frame(FrameKind::Marker, marker, "", "", 0);
        let location = builder.location(0, None, &[frame]);
        let stack = builder.stack(&[location]);
        let labels = builder.labels(&[]);
        builder.add(stack, labels, &values);
    }
    builder.finish()
}

fn end_of(profile: &Profile) -> i64 {
    profile.start_nanos.saturating_add(profile.duration_nanos)
}

/// The columns of all: those of kinds in the table's order, then the others as they come.
fn types_of_all<'p>(profiles: &[&'p Profile]) -> Vec<(&'p str, &'p str)> {
    let mut types: Vec<(&str, &str)> = Vec::new();
    for profile in profiles {
        for column in names_of(profile) {
            if !types.contains(&column) {
                types.push(column);
            }
        }
    }
    types.sort_by_key(|(name, unit)| {
        let known = find_column(name, unit);
        known.map_or((u8::MAX, 0), |(kind, column)| {
            let place = kind.columns().iter().position(|other| other.own == column.own);
            (kind as u8, place.unwrap_or(0))
        })
    });
    types
}

fn names_of(profile: &Profile) -> impl Iterator<Item = (&str, &str)> {
    let name = |kind: &ValueType| (profile.string(kind.name), profile.string(kind.unit));
    profile.sample_types.iter().map(name)
}

/// The items copied from one profile.
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

    /// All samples; `columns` maps each of their values to its position.
    fn samples(&mut self, columns: &[usize]) {
        let width = self.into.so_far().sample_types.len();
        if columns.iter().copied().eq(0..width) {
            for sample in self.from.samples() {
                let stack = self.stack(sample.stack);
                let labels = self.known.labels(self.into, sample.labels);
                self.into.add(stack, labels, sample.values);
            }
        } else {
            let places: Vec<_> = columns.iter().copied().map(Some).collect();
            self.samples_at(width, &places, false);
        }
    }

    /// Samples with a value in one of `places`, which maps each value to one of so many positions; those
    /// without any value if `keeps_empty`.
    fn samples_at(&mut self, width: usize, places: &[Option<usize>], keeps_empty: bool) {
        let mut row = vec![0; width];
        for sample in self.from.samples() {
            row.fill(0);
            for (value, place) in sample.values.iter().zip(places) {
                if let Some(slot) = place.and_then(|place| row.get_mut(place)) {
                    *slot = *value;
                }
            }
            let stands_for_none = || keeps_empty && sample.values.iter().all(|value| *value == 0);
            if row.iter().all(|value| *value == 0) && !stands_for_none() {
                continue;
            }
            let stack = self.stack(sample.stack);
            let labels = self.known.labels(self.into, sample.labels);
            self.into.add(stack, labels, &row);
        }
    }

    /// The samples in time of these kinds, so many nanoseconds later than they say.
    fn ticks(&mut self, later: u64, kinds: Kinds) {
        for tick in self.from.timeline().into_iter().flatten() {
            if kinds.contains(tick.kind) {
                let stack = self.stack(tick.stack);
                let labels = self.known.labels(self.into, tick.labels);
                let time = tick.time.saturating_add(later);
                self.into.tick(Tick { stack, labels, time, ..tick });
            }
        }
    }

    fn stack(&mut self, id: StackId) -> StackId {
        // From the leaf up to a known caller, and down again: stacks may be long.
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
        let merged = merge([&first, &second], Times::Dropped).expect("some profiles");
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
            let merged =
                merge(order.map(|at| &profiles[at]), Times::Dropped).expect("some profiles");
            let totals = [0, 1, 2].map(|column| merged.total(column));
            assert_eq!(totals, [7, 9, 900], "{order:?}");
            assert_eq!(merged.sample_count(), 1, "freed objects leave: {order:?}");
        }
    }

    #[test]
    fn what_two_processes_have_in_use_at_one_time_adds_up() {
        let (one, other) = (heap(0, &[("Leak", 5, 0)]), heap(0, &[("Leak", 6, 0)]));
        let merged = merge([&one, &other], Times::Dropped).expect("some profiles");
        assert_eq!(merged.total(1), 11);
    }

    #[test]
    fn kinds_that_only_some_have_are_columns_of_the_whole_and_snapshots_of_a_period_that_has_them()
    {
        let cpu = profile(0, &[(&["Leak"], "a", 3)]);
        let heaps = [heap(0, &[("Leak", 5, 1)]), heap(100, &[("Leak", 7, 2)])];
        // The last period has no snapshot, and so no values in use.
        let later = profile(200, &[(&["Leak"], "a", 4)]);
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let all = [&heaps[0], &cpu, &heaps[1], &later];
            let merged = merge(order.map(|at| all[at]), Times::Dropped).expect("some profiles");
            let names: Vec<&str> =
                merged.sample_types.iter().map(|kind| merged.string(kind.name)).collect();
            assert_eq!(names, ["samples", "cpu", "exceptions", "inuse_objects", "inuse_space"]);
            let totals: Vec<i64> = (0..5).map(|column| merged.total(column)).collect();
            assert_eq!(totals, [7, 70, 3, 7, 700], "{order:?}");
            assert_eq!((merged.start_nanos, merged.duration_nanos, merged.period), (0, 215, 10));
            let of_heap = of_kind(&merged, Kind::Heap, Times::Kept);
            assert_eq!([of_heap.total(0), of_heap.total(1)], [7, 700]);
            assert_eq!(of_heap.kinds(), Kinds::NONE.with(Kind::Heap, true));
            assert_eq!(of_kind(&merged, Kind::Cpu, Times::Kept).total(1), 70);
            assert_eq!(of_kind(&merged, Kind::Locks, Times::Kept).sample_count(), 0);
        }
        assert!(merge([], Times::Dropped).is_none());
    }

    fn in_time(start: i64, ticks: &[(Kind, u64, u64)]) -> Profile {
        let kinds: Kinds = ticks.iter().map(|(kind, ..)| *kind).collect();
        let mut builder = ProfileBuilder::of_kinds(kinds);
        builder.set_start(start);
        builder.keep_timeline();
        let labels = builder.labels(&[]);
        for &(kind, time, value) in ticks {
            let tick = Tick { kind, labels, stack: StackId::default(), time, weight: 2, value };
            let values: Vec<i64> = tick.values().collect();
            builder.add_of(kind, tick.stack, labels, &values);
            builder.tick(tick);
        }
        builder.finish()
    }

    #[test]
    fn samples_in_time_stay_at_their_time_and_leave_with_their_kind() {
        let first = in_time(100, &[(Kind::Cpu, 5, 10), (Kind::Locks, 9, 4)]);
        let second = in_time(300, &[(Kind::Locks, 1, 6)]);
        let merged = merge([&second, &first], Times::Kept).expect("some profiles");
        let ticks = |profile: &Profile| -> Vec<(Kind, u64, u32, u64)> {
            let ticks = profile.timeline().into_iter().flatten();
            let mut ticks: Vec<_> =
                ticks.map(|tick| (tick.kind, tick.time, tick.weight, tick.value)).collect();
            ticks.sort_by_key(|tick| tick.1);
            ticks
        };
        let cpu = (Kind::Cpu, 5, 2, 10);
        let locks = [(Kind::Locks, 9, 2, 4), (Kind::Locks, 201, 2, 6)];
        assert_eq!(ticks(&merged), [cpu, locks[0], locks[1]]);
        assert_eq!(ticks(&of_kind(&merged, Kind::Locks, Times::Kept)), locks);
        assert_eq!(of_kind(&merged, Kind::Locks, Times::Kept).total(1), 10);
        assert!(merge([&first], Times::Dropped).is_some_and(|one| one.timeline().is_none()));
    }
}
