//! What labels take of a profile is bounded as a server bounds it, and what does not fit is counted.

mod support;

use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use strata_export::label_values::LabelValues;
use strata_export::limits::{FEWEST_BYTES, Limits, Part, Selection, fit};
use strata_export::origin::Origin;
use strata_export::sample_labels::{Form, LabelRule};
use strata_export::{Outgoing, pyroscope};
use strata_profile::{
    FrameKind, Label, LabelValue, LabelsId, Profile, ProfileBuilder, StackId, pprof,
};
use support::wire::Message;

/// What a Pyroscope server takes by default.
const LABELS: usize = 100;
const LABEL_NAMES: usize = 30;
const NAME_BYTES: usize = 1024;
const VALUE_BYTES: usize = 2048;
const SAMPLES: usize = 16_000;
const BURST: usize = 2 << 20;

fn limits() -> Limits {
    pyroscope::Settings::default().limits
}

/// Rules for labels `key0`, `key1`, … under the same names.
fn rules(count: usize) -> Vec<LabelRule> {
    let names = (0..count).map(|at| format!("key{at}"));
    names.map(|name| LabelRule::new(&name, &name, Form::AsItIs)).collect()
}

fn fitted(profile: &Profile, rules: &[LabelRule], limits: &Limits) -> (Vec<Part>, u64, u64) {
    let types = vec![(0, "cpu_samples", "count")];
    let selection = Selection {
        types,
        period: ("cpu", "nanoseconds"),
        labels: rules,
        values: None,
        timed: false,
    };
    let (parts, cuts) = fit(profile, &selection, limits);
    for part in &parts {
        assert!(written(part).len() <= part.bytes, "{} bytes output", part.bytes);
        assert!(part.bytes <= limits.bytes.max(FEWEST_BYTES), "{} bytes", part.bytes);
    }
    (parts, cuts.dropped_labels, cuts.shortened_texts)
}

fn written(part: &Part) -> Vec<u8> {
    let mut bytes = Vec::new();
    pprof::encode_plain(&part.profile, &mut bytes).unwrap();
    bytes
}

fn builder() -> ProfileBuilder {
    ProfileBuilder::new(&[("samples", "count")])
}

fn texts(builder: &mut ProfileBuilder, texts: &[String]) -> LabelsId {
    let labels = texts.iter().enumerate().map(|(at, text)| {
        let key = builder.string(&format!("key{at}"));
        Label { key, value: LabelValue::Text(builder.string(text)) }
    });
    let labels: Vec<_> = labels.collect();
    builder.labels(&labels)
}

/// One sample with these texts as labels.
fn labelled(values: &[String]) -> Profile {
    let mut builder = builder();
    let labels = texts(&mut builder, values);
    builder.add(StackId::default(), labels, &[1]);
    builder.finish()
}

fn values_of(part: &Part) -> Vec<&str> {
    let profile = &part.profile;
    let labels = profile.samples().flat_map(|sample| profile.labels(sample.labels));
    let text = |label: &Label| match label.value {
        LabelValue::Text(text) => profile.string(text),
        LabelValue::Number { .. } => "",
    };
    labels.map(text).collect()
}

#[test]
fn the_hundredth_label_is_sent_and_the_next_is_counted_and_leaves_nothing_behind() {
    let values: Vec<_> = (0..150).map(|at| format!("the value {at:03}")).collect();
    let (parts, dropped, shortened) = fitted(&labelled(&values), &rules(150), &limits());
    assert_eq!(values_of(&parts[0]), values[..LABELS]);
    assert_eq!((parts.len(), dropped, shortened), (1, 50, 0));
    let bytes = String::from_utf8_lossy(&written(&parts[0])).into_owned();
    assert!(bytes.contains("the value 099") && !bytes.contains("the value 100"));
}

/// Samples of one stack, each with one value of this label.
fn varying(label: &str, values: &[String]) -> Profile {
    let mut builder = builder();
    for value in values {
        let key = builder.string(label);
        let value = LabelValue::Text(builder.string(value));
        let labels = builder.labels(&[Label { key, value }]);
        builder.add(StackId::default(), labels, &[1]);
    }
    builder.finish()
}

#[test]
fn a_pattern_lets_labels_of_programs_through_up_to_a_number_of_values() {
    let rules = [LabelRule::new("user_*", "", Form::Series)];
    let values = RefCell::new(LabelValues::new(3));
    let names: Vec<_> = (0..5).map(|at| format!("value{at}")).collect();
    let sent = |label: &str| {
        let selection = Selection {
            types: vec![(0, "cpu_samples", "count")],
            period: ("cpu", "nanoseconds"),
            labels: &rules,
            values: Some(&values),
            timed: false,
        };
        let (parts, cuts) = fit(&varying(label, &names), &selection, &limits());
        let sent: Vec<_> = parts.iter().flat_map(values_of).map(str::to_owned).collect();
        let total: i64 =
            parts.iter().flat_map(|part| part.profile.samples()).map(|s| s.values[0]).sum();
        (sent, cuts.other_values, cuts.dropped_labels, total)
    };
    let three = ["value0", "value1", "value2", "other"].map(str::to_owned);
    assert_eq!(sent("user_tenant"), (three.to_vec(), 2, 0, 5), "samples beyond it are one");
    assert_eq!(sent("team"), (vec![], 0, 5, 5), "no rule lets it through; its samples stay");
    assert_eq!(sent("state"), (vec![], 0, 5, 5), "the labels of strata follow no pattern");
}

#[test]
fn a_value_as_long_as_a_server_takes_stays_and_a_longer_one_says_that_it_was_cut() {
    let values = ["a".repeat(VALUE_BYTES), "b".repeat(VALUE_BYTES + 1)];
    let (parts, dropped, shortened) = fitted(&labelled(&values), &rules(2), &limits());
    let sent = values_of(&parts[0]);
    assert_eq!((sent[0], sent[1].len()), (values[0].as_str(), VALUE_BYTES));
    assert!(sent[1].ends_with("b…"));
    assert_eq!((dropped, shortened), (0, 1));
}

#[test]
fn a_name_that_is_too_long_is_cut_and_counted() {
    let long = LabelRule::new("key0", &"n".repeat(NAME_BYTES + 1), Form::AsItIs);
    let (parts, dropped, shortened) = fitted(&labelled(&["text".into()]), &[long], &limits());
    let profile = &parts[0].profile;
    let sample = profile.samples().next().unwrap();
    let name = profile.string(profile.labels(sample.labels)[0].key);
    assert!(name.len() <= NAME_BYTES && name.ends_with("n…"));
    assert_eq!((dropped, shortened), (0, 1));
}

#[test]
fn labels_larger_than_a_profile_may_be_are_dropped_and_a_small_one_after_them_is_not() {
    let mut values: Vec<_> = (0..99).map(|at| format!("{at:02000}")).collect();
    values.push("small".to_owned());
    let mut builder = builder();
    let labels = texts(&mut builder, &values);
    let mut place = |at: u64| {
        let frame = builder.frame(FrameKind::Native, &format!("{at:04000}"), "", "", 0);
        builder.location(at, None, &[frame])
    };
    let places: Vec<_> = (0..100).map(&mut place).collect();
    let stack = builder.stack(&places);
    builder.add(stack, labels, &[1]);
    let limits = Limits { bytes: FEWEST_BYTES, ..limits() };
    let (parts, dropped, _) = fitted(&builder.finish(), &rules(100), &limits);
    assert_eq!(parts.len(), 1);
    let sent = values_of(&parts[0]);
    assert_eq!(sent.len() as u64 + dropped, 100);
    assert!(sent.len() > 3 && sent.last() == Some(&"small"), "{}", sent.len());
    let text = String::from_utf8_lossy(&written(&parts[0])).into_owned();
    assert!(!text.contains(&values[50]), "a dropped label's text is sent");
}

#[test]
fn very_many_labels_make_more_profiles_and_every_sample_is_in_one() {
    let mut builder = builder();
    let count = SAMPLES * 2 + 1;
    for at in 0..count {
        let labels = texts(&mut builder, &[format!("{at:0150}")]);
        builder.add(StackId::default(), labels, &[1]);
    }
    let (parts, dropped, shortened) = fitted(&builder.finish(), &rules(1), &limits());
    let sent: BTreeSet<_> = parts.iter().flat_map(values_of).collect();
    let samples: usize = parts.iter().map(|part| part.profile.sample_count()).sum();
    assert_eq!((sent.len(), samples, dropped, shortened), (count, count, 0, 0));
    assert!((12..=32).contains(&parts.len()), "{}", parts.len());
}

#[test]
fn labels_of_a_series_and_of_its_samples_are_together_no_more_than_a_server_takes() {
    let labels = (0..27).map(|at| (format!("of_service_{at}"), "x".repeat(VALUE_BYTES)));
    let origin = Origin { service: "shop".into(), labels: labels.collect(), ..Origin::default() };
    let settings =
        pyroscope::Settings { sample_labels: rules(100), ..pyroscope::Settings::default() };
    let values: Vec<_> = (0..5).map(|at| format!("value {at}")).collect();
    let outgoing = Outgoing { profile: Arc::new(labelled(&values)), origin: Arc::new(origin) };
    let encoded = pyroscope::encode(
        &settings,
        &vec![outgoing; 40],
        &mut strata_export::EncoderState::default(),
    );
    let mut sent = 0;
    for batch in &encoded.batches {
        let mut bytes = 0;
        for series in Message::read(&batch.body).all(1) {
            let pairs = series.all(1);
            let names = pairs.len();
            let of_labels = |pair: &Message| pair.text(1).len() + pair.text(2).len();
            for sample in series.all(2) {
                let profile = support::server::unzipped(sample.all_bytes(1)[0]);
                bytes += profile.len() + pairs.iter().map(of_labels).sum::<usize>();
                let texts = support::pprof::see(&profile).samples[0].texts.len();
                assert!(names + texts <= LABEL_NAMES, "{names} and {texts}");
                sent += 1;
            }
        }
        assert!(bytes <= BURST, "{bytes}");
    }
    assert_eq!((sent, encoded.cuts.dropped_labels), (40, 40 * 6));
    assert!(encoded.batches.len() > 1);
}

#[test]
fn shortened_names_of_a_series_stay_valid_and_different() {
    let long = |end: &str| (format!("{}{end}", "n".repeat(NAME_BYTES)), "value".to_owned());
    let origin =
        Origin { service: "shop".into(), labels: vec![long("a"), long("b")], ..Origin::default() };
    let outgoing = Outgoing { profile: Arc::new(labelled(&[])), origin: Arc::new(origin) };
    let encoded = pyroscope::encode(
        &pyroscope::Settings::default(),
        &[outgoing],
        &mut strata_export::EncoderState::default(),
    );
    let series = Message::read(&encoded.batches[0].body).one(1);
    let names: Vec<_> = series.all(1).iter().map(|pair| pair.text(1)).collect();
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    let valid = |name: &String| name.chars().all(|at| at.is_ascii_alphanumeric() || at == '_');
    assert!(names.iter().all(valid), "a name that the server refuses");
    assert_eq!((encoded.cuts.dropped_labels, encoded.cuts.shortened_texts), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_labels_fit_and_no_sample_is_lost(
        samples in prop::collection::vec(
            prop::collection::vec((0_usize..6_000, any::<bool>()), 0..60),
            1..20,
        ),
        index_bytes in 1_usize..4,
    ) {
        let mut builder = builder();
        for (of, drawn) in samples.iter().enumerate() {
            let labels = drawn.iter().enumerate().map(|(at, &(length, is_number))| {
                let key = builder.string(&format!("key{at}"));
                let text = builder.string(&format!("{of:0length$}"));
                let value = match is_number {
                    true => LabelValue::Number { value: i64::MIN, unit: text },
                    false => LabelValue::Text(text),
                };
                Label { key, value }
            });
            let labels: Vec<_> = labels.collect();
            let labels = builder.labels(&labels);
            builder.add(StackId::default(), labels, &[1]);
        }
        let profile = builder.finish();
        let total = profile.total(0);
        let limits = Limits { bytes: FEWEST_BYTES, index_bytes, ..limits() };
        let (parts, ..) = fitted(&profile, &rules(50), &limits);
        let sum: i64 = parts.iter().map(|part| part.profile.total(0)).sum();
        prop_assert_eq!(sum, total);
    }
}
