//! A profile limited to fit a server keeps its values and its leaves, and every part fits.

use std::collections::BTreeMap;

use proptest::prelude::*;
use strata_export::limits::{FEWEST_BYTES, Limits, Selection, TRIMMED, fit};
use strata_export::sample_labels::{Form, LabelRule};
use strata_profile::{
    FrameKind, Label, LabelValue, LocationId, Profile, ProfileBuilder, StackId, pprof,
};

const LIMITS: Limits = Limits {
    depth: 1000,
    samples: 16_000,
    bytes: 4 << 20,
    labels: 100,
    texts: usize::MAX,
    name_bytes: 1024,
    value_bytes: 2048,
    symbol_bytes: 4096,
    index_bytes: 1,
};

fn both() -> Vec<(usize, &'static str, &'static str)> {
    vec![(0, "cpu_samples", "count"), (1, "cpu", "nanoseconds")]
}

fn select(rules: &[LabelRule]) -> Selection<'_> {
    Selection {
        types: both(),
        period: ("cpu", "nanoseconds"),
        labels: rules,
        values: None,
        timed: false,
    }
}

/// A sample: its functions leaf first, its thread, its values.
type Drawn = (Vec<u16>, u8, i64, i64);

fn profile_of(samples: &[Drawn], name_length: usize) -> Profile {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    builder.set_period("cpu", "nanoseconds", 10_000_000);
    for (functions, thread, count, nanoseconds) in samples {
        let locations: Vec<LocationId> = functions
            .iter()
            .map(|function| {
                let name = format!("{function:0>width$}", width = name_length);
                let frame = builder.frame(FrameKind::Managed, &name, "", "/app/file.cs", 7);
                let mapping = builder.mapping(0, 1 << 40, 0, "/app/Shop.dll", "abcd");
                builder.location(u64::from(*function), Some(mapping), &[frame])
            })
            .collect();
        let stack = builder.stack(&locations);
        let thread = builder.thread(1, u32::from(*thread), "worker", "shop", "");
        let labels = builder.thread_labels(thread);
        builder.add(stack, labels, &[*count, *nanoseconds]);
    }
    builder.finish()
}

fn leaf(profile: &Profile, stack: StackId) -> String {
    let leaf = profile.stack(stack).next();
    let frames = leaf.map(|leaf| profile.frames(profile.location(leaf)).to_vec());
    let name = frames.and_then(|frames| frames.first().map(|frame| frame.name));
    profile.string(name.unwrap_or_default()).to_owned()
}

/// The sum of each type for each leaf.
fn leaves<'p>(profiles: impl IntoIterator<Item = &'p Profile>) -> BTreeMap<String, [i64; 2]> {
    let mut sums = BTreeMap::<String, [i64; 2]>::new();
    for profile in profiles {
        for sample in profile.samples() {
            let sum = sums.entry(leaf(profile, sample.stack)).or_default();
            sum[0] += sample.values[0];
            sum[1] += sample.values[1];
        }
    }
    sums.retain(|_, sum| *sum != [0, 0]);
    sums
}

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    let functions = prop::collection::vec(0_u16..3000, 1..120);
    let sample = (functions, 0_u8..5, 0_i64..100, 0_i64..1_000_000_000);
    prop::collection::vec(sample, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn sums_and_leaves_survive_and_every_part_fits(
        samples in drawn(),
        depth in 2_usize..140,
        most in 1_usize..40,
        name_length in 1_usize..400,
        threads in any::<bool>(),
    ) {
        let profile = profile_of(&samples, name_length);
        let limits = Limits { depth, samples: most, bytes: FEWEST_BYTES, ..LIMITS };
        let rules = [LabelRule::new("tid", "tid", Form::Number)];
        let rules = if threads { rules.as_slice() } else { &[] };
        let (parts, cuts) = fit(&profile, &select(rules), &limits);
        let profiles = || parts.iter().map(|part| &part.profile);

        prop_assert_eq!(leaves(profiles()), leaves([&profile]));
        for type_of in 0..2 {
            let sum: i64 = profiles().map(|part| part.total(type_of)).sum();
            prop_assert_eq!(sum, profile.total(type_of));
        }
        prop_assert_eq!(cuts.extra_parts, (parts.len() as u64).saturating_sub(1));
        for part in &parts {
            let profile = &part.profile;
            prop_assert!(profile.sample_count() <= most);
            let mut bytes = Vec::new();
            pprof::encode_plain(profile, &mut bytes).unwrap();
            prop_assert!(bytes.len() <= part.bytes, "{} > {}", bytes.len(), part.bytes);
            prop_assert!(part.bytes <= FEWEST_BYTES, "{}", part.bytes);
            for sample in profile.samples() {
                prop_assert!(profile.stack(sample.stack).count() <= depth);
            }
        }
    }
}

#[test]
fn a_deep_stack_loses_its_root_and_says_so() {
    let functions: Vec<u16> = (0..1500).collect();
    let profile = profile_of(&[(functions, 1, 3, 30)], 1);
    let (parts, cuts) = fit(&profile, &select(&[]), &LIMITS);
    assert_eq!((parts.len(), cuts.trimmed_stacks), (1, 1));
    let part = &parts[0].profile;
    let sample = part.samples().next().unwrap();
    let names: Vec<&str> = part
        .stack(sample.stack)
        .map(|at| part.string(part.frames(part.location(at))[0].name))
        .collect();
    assert_eq!(names.len(), 1000);
    assert_eq!((names[0], names[998], names[999]), ("0", "998", TRIMMED));
}

#[test]
fn a_place_with_endless_inlined_functions_keeps_the_innermost() {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let frames: Vec<_> = (0..100_000)
        .map(|at| builder.frame(FrameKind::Native, &format!("inlined{at}"), "", "", 1))
        .collect();
    let location = builder.location(1, None, &frames);
    let stack = builder.stack(&[location, location]);
    builder.add(stack, Default::default(), &[1, 2]);
    let limits = Limits { bytes: FEWEST_BYTES, ..LIMITS };
    let (parts, cuts) = fit(&builder.finish(), &select(&[]), &limits);
    assert_eq!((parts.len(), cuts.trimmed_stacks), (1, 1));
    let part = &parts[0].profile;
    let mut bytes = Vec::new();
    pprof::encode_plain(part, &mut bytes).unwrap();
    assert!(bytes.len() <= FEWEST_BYTES);
    let sample = part.samples().next().unwrap();
    assert_eq!((leaf(part, sample.stack).as_str(), sample.values), ("inlined0", [1, 2].as_slice()));
}

#[test]
fn a_profile_that_fits_is_not_cut() {
    let profile = profile_of(&[(vec![1, 2], 1, 1, 10), (vec![1, 2], 2, 1, 10)], 1);
    let rules = [LabelRule::new("tid", "tid", Form::Number)];
    let (parts, cuts) = fit(&profile, &select(&rules), &LIMITS);
    assert_eq!((parts.len(), cuts.trimmed_stacks, cuts.extra_parts), (1, 0, 0));
    assert_eq!(parts[0].profile.sample_count(), 2);
    assert_eq!(parts[0].profile.period, 10_000_000);
}

#[test]
fn samples_that_differ_only_in_a_dropped_label_add_up() {
    let profile = profile_of(&[(vec![1, 2], 1, 1, 10), (vec![1, 2], 2, 1, 10)], 1);
    let (parts, cuts) = fit(&profile, &select(&[]), &LIMITS);
    assert_eq!(parts[0].profile.sample_count(), 1);
    assert_eq!(parts[0].profile.total(1), 20);
    // pid, tid, comm, process: of two threads.
    assert_eq!(cuts.dropped_labels, 8);
}

#[test]
fn a_text_never_becomes_a_thread_id() {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let key = builder.string("tid");
    let mut labels = Vec::new();
    for text in ["17", "evil"] {
        let value = LabelValue::Text(builder.string(text));
        labels.push(builder.labels(&[Label { key, value }]));
    }
    for labels in labels {
        builder.add(StackId::default(), labels, &[1, 1]);
    }
    let rules = [LabelRule::new("tid", "thread id", Form::Number)];
    let (parts, cuts) = fit(&builder.finish(), &select(&rules), &LIMITS);
    let part = &parts[0].profile;
    let labels: Vec<_> =
        part.samples().flat_map(|sample| part.labels(sample.labels).to_vec()).collect();
    assert_eq!((labels.len(), cuts.dropped_labels), (1, 1));
    assert_eq!(part.string(labels[0].key), "thread id");
    assert!(matches!(labels[0].value, LabelValue::Number { value: 17, .. }));
}

#[test]
fn long_names_are_shortened_at_a_character_and_counted() {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let frame = builder.frame(FrameKind::Managed, &"ä".repeat(10_000), "", "", 0);
    let location = builder.location(1, None, &[frame]);
    let stack = builder.stack(&[location]);
    builder.add(stack, Default::default(), &[1, 1]);
    let (parts, cuts) = fit(&builder.finish(), &select(&[]), &LIMITS);
    let part = &parts[0].profile;
    let sample = part.samples().next().unwrap();
    let name = leaf(part, sample.stack);
    assert!(name.len() <= 4096 && name.len() > 4090 && name.ends_with("ä…"));
    assert_eq!(cuts.shortened_texts, 1);
}

#[test]
fn a_profile_without_values_of_the_type_makes_no_part() {
    let profile = profile_of(&[(vec![1], 1, 0, 0)], 1);
    assert!(fit(&profile, &select(&[]), &LIMITS).0.is_empty());
}
