//! An OTLP request, as a server sees it, is at most as large as configured, and not much smaller.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use strata_export::limits::{FEWEST_BYTES, Limits};
use strata_export::origin::{LabelLimits, Origin};
use strata_export::{Outgoing, otlp};
use strata_profile::{FrameKind, Label, LabelValue, Profile, ProfileBuilder, StringId};
use support::server::unzipped;
use support::wire::Message;

/// What a gRPC server takes in one message.
const MESSAGE_BYTES: usize = 4 << 20;

/// How long things are.
#[derive(Clone, Copy)]
struct Shape {
    samples: usize,
    depth: usize,
    name: usize,
    label: usize,
    attributes: usize,
}

/// Each sample has a thread name, a function and a span of its own and callers that many have.
fn profile(of: usize, shape: Shape) -> Profile {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let build_id = format!("{of:040x}");
    let mapping = builder.mapping(0, u64::MAX, 0, &format!("/app/{of}/Shop.dll"), &build_id);
    let (width, label) = (shape.name, shape.label);
    for sample in 0..shape.samples {
        let mut places = Vec::new();
        for at in 0..shape.depth {
            let number = if at == 0 { sample } else { 1_000_000 + (sample + at) % 50 };
            let name = format!("{of}.{number:0width$}");
            let file = format!("/src/{of}/{:0width$}", number % 7);
            let frame = builder.frame(FrameKind::Managed, &name, &name, &file, u32::MAX);
            places.push(builder.location(u64::MAX - number as u64, Some(mapping), &[frame]));
        }
        let stack = builder.stack(&places);
        let texts = [("comm", format!("{of}.{sample:0label$}")), ("tid", format!("{sample}"))];
        let [comm, tid] = texts.map(|(key, text)| {
            let value = LabelValue::Text(builder.string(&text));
            Label { key: builder.string(key), value }
        });
        let value = LabelValue::Number { value: -1, unit: StringId::default() };
        let number = Label { key: builder.string("exception type"), value };
        let labels = builder.labels(&[comm, tid, number]);
        builder.add(stack, labels, &[1, i64::MAX / 2]);
    }
    builder.finish()
}

fn outgoing(of: usize, shape: Shape) -> Outgoing {
    let labels = (0..shape.attributes).map(|at| (format!("label {of} {at}"), "v".repeat(4_096)));
    let origin =
        Origin { service: format!("service {of}"), labels: labels.collect(), ..Origin::default() };
    Outgoing { profile: Arc::new(profile(of, shape)), origin: Arc::new(origin) }
}

/// How often each sample is in a request: by its service and its thread's name.
type Seen = BTreeMap<(String, String), usize>;

fn count(request: &[u8], seen: &mut Seen) {
    let request = Message::read(request);
    let dictionary = request.one(2);
    let (strings, attributes) = (dictionary.texts(5), dictionary.all(6));
    let value_of = |attributes: &[Message], key: &str, name: &dyn Fn(&Message) -> String| {
        let found = attributes.iter().find(|attribute| name(attribute) == key);
        found.map(|attribute| attribute.one(2).text(1)).unwrap()
    };
    for resource in request.all(1) {
        let facts = resource.one(1).all(1);
        let service = value_of(&facts, "service.name", &|fact| fact.text(1));
        for sample in resource.one(2).all(2).iter().flat_map(|profile| profile.all(2)) {
            let thread = sample
                .numbers(2)
                .into_iter()
                .map(|at| &attributes[at as usize])
                .find(|attribute| strings[attribute.number(1) as usize] == "thread.name")
                .map(|attribute| attribute.one(2).text(1));
            *seen.entry((service.clone(), thread.unwrap())).or_default() += 1;
        }
    }
}

/// Checks the requests of some profiles of a shape; returns their sizes.
fn sizes(settings: &otlp::Settings, profiles: usize, shape: Shape) -> Vec<usize> {
    let outgoing: Vec<_> = (0..profiles).map(|of| outgoing(of, shape)).collect();
    let strata_export::Encoded { batches, cuts } =
        otlp::encode(settings, &outgoing, &strata_export::EncoderState::default());
    let mut seen = Seen::new();
    let mut sizes = Vec::new();
    for batch in &batches {
        let request = unzipped(&batch.body);
        let bytes = request.len();
        assert!(bytes <= settings.batch_bytes, "{bytes} of {}", settings.batch_bytes);
        count(&request, &mut seen);
        sizes.push(bytes);
    }
    assert_eq!(seen.len(), profiles * shape.samples);
    // Once for each type.
    assert!(seen.values().all(|&times| times == 2), "a sample is there twice or lost");
    assert_eq!((cuts.dropped_labels, cuts.trimmed_stacks, cuts.failed_profiles), (0, 0, 0));
    sizes
}

/// The requests in the middle are at least half full: what comes first and last may be less.
fn assert_used(sizes: &[usize], bound: usize) {
    let [_, middle @ .., _] = sizes else { panic!("{sizes:?}") };
    assert!(middle.len() > 1, "{sizes:?}");
    let least = middle.iter().min().unwrap();
    assert!(*least >= bound / 2, "{least} of {bound}: {sizes:?}");
}

const LONG: Shape = Shape { samples: 400, depth: 12, name: 500, label: 900, attributes: 2 };

#[test]
fn long_names_and_labels_fill_requests_and_not_more() {
    let settings = otlp::Settings { batch_bytes: 400_000, ..otlp::Settings::default() };
    assert_used(&sizes(&settings, 3, LONG), settings.batch_bytes);
}

#[test]
fn many_small_profiles_share_requests() {
    let shape = Shape { samples: 30, name: 200, label: 300, ..LONG };
    let settings = otlp::Settings { batch_bytes: 400_000, ..otlp::Settings::default() };
    assert_used(&sizes(&settings, 60, shape), settings.batch_bytes);
}

#[test]
fn a_message_is_one_that_a_grpc_server_takes() {
    let settings = otlp::Settings::default();
    let shape = Shape { samples: 4_000, name: 1_000, label: 2_000, ..LONG };
    let sizes = sizes(&settings, 1, shape);
    assert!(sizes.iter().all(|&bytes| bytes <= MESSAGE_BYTES));
    assert_used(&sizes, settings.batch_bytes);
}

#[test]
fn attributes_of_a_service_are_within_the_bound() {
    let shape = Shape { attributes: 100, ..LONG };
    let attribute_limits = LabelLimits { count: 128, name_bytes: 1024, value_bytes: 4096 };
    let batch_bytes = 100 * 4_200 + FEWEST_BYTES + 10_000;
    let settings = otlp::Settings { batch_bytes, attribute_limits, ..otlp::Settings::default() };
    sizes(&settings, 2, shape);
    let limits = Limits { bytes: batch_bytes, ..settings.limits };
    sizes(&otlp::Settings { limits, ..settings }, 2, shape);
}
