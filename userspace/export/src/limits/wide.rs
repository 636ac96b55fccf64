//! Several profiles of one time as one, with the columns of all of them: for backends that take every
//! kind of sample in one upload.

use std::sync::Arc;

use strata_profile::{Profile, ProfileBuilder};

use super::copy::Copy;

/// One profile of several: a sample has its values in its own columns and 0 in the others. Profiles
/// of the same columns add up, which is the caller's to want.
#[must_use]
pub fn wide(profiles: &[Arc<Profile>]) -> Arc<Profile> {
    let [first, rest @ ..] = profiles else { return Arc::default() };
    if rest.is_empty() {
        return first.clone();
    }
    let mut types: Vec<(&str, &str)> = Vec::new();
    for profile in profiles {
        for column in columns(profile) {
            if !types.contains(&column) {
                types.push(column);
            }
        }
    }
    let mut builder = ProfileBuilder::new(&types);
    let period = first.period_type;
    builder.set_period(first.string(period.name), first.string(period.unit), first.period);
    let start = profiles.iter().map(|profile| profile.start_nanos).min().unwrap_or_default();
    let end = |profile: &Arc<Profile>| profile.start_nanos.saturating_add(profile.duration_nanos);
    let end = profiles.iter().map(end).max().unwrap_or_default();
    builder.set_start(start);
    builder.set_duration(end.saturating_sub(start));
    for profile in profiles {
        let places: Vec<Option<usize>> = columns(profile)
            .map(|column| types.iter().position(|known| *known == column))
            .collect();
        let mut copy = Copy::onto(builder, profile);
        let mut values = vec![0; types.len()];
        for sample in profile.samples() {
            values.fill(0);
            for (value, place) in sample.values.iter().zip(&places) {
                if let Some(slot) = place.and_then(|place| values.get_mut(place)) {
                    *slot = *value;
                }
            }
            let stack = copy.stack(sample.stack);
            let labels = copy.labels(sample.labels);
            copy.builder.add(stack, labels, &values);
        }
        copy.builder.count_overflows(profile.overflows);
        builder = copy.builder;
    }
    Arc::new(builder.finish())
}

fn columns(profile: &Profile) -> impl Iterator<Item = (&str, &str)> {
    profile.sample_types.iter().map(|kind| (profile.string(kind.name), profile.string(kind.unit)))
}

#[cfg(test)]
mod tests {
    use strata_profile::FrameKind;

    use super::*;

    fn profile(types: &[(&str, &str)], values: &[i64], start: i64) -> Arc<Profile> {
        let mut builder = ProfileBuilder::new(types);
        builder.set_start(start);
        builder.set_duration(10);
        let frame = builder.frame(FrameKind::Managed, "Work", "", "", 0);
        let location = builder.location(7, None, &[frame]);
        let stack = builder.stack(&[location]);
        let labels = builder.labels(&[]);
        builder.add(stack, labels, values);
        Arc::new(builder.finish())
    }

    #[test]
    fn kinds_of_one_period_are_columns_of_one_profile() {
        let cpu = profile(&[("samples", "count"), ("cpu", "nanoseconds")], &[3, 30], 5);
        let exceptions = profile(&[("exceptions", "count")], &[2], 7);
        let wide = wide(&[cpu, exceptions]);
        let names: Vec<(&str, &str)> = columns(&wide).collect();
        assert_eq!(names, [("samples", "count"), ("cpu", "nanoseconds"), ("exceptions", "count")]);
        // The stack is the same one.
        let samples: Vec<&[i64]> = wide.samples().map(|sample| sample.values).collect();
        assert_eq!(samples, [[3, 30, 2]]);
        assert_eq!((wide.start_nanos, wide.duration_nanos), (5, 12));
    }
}
