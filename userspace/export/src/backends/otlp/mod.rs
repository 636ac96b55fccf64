//! The requests of OTLP profiles: HTTP `/v1development/profiles`, and gRPC `Export`.
//!
//! A server of another proto release may answer 200 and store nothing, so the release is in the
//! `User-Agent` and here: [`PROTO_RELEASE`]. The gRPC call is one message each way, framed by
//! hand: five bytes before it. It needs no service machinery, only HTTP/2 with trailers, which
//! the HTTP client has, with the same TLS, limits and credentials.

mod dictionary;
pub(crate) mod messages;

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use strata_kinds::labels::END_TIMESTAMP;
use strata_kinds::{Quantity, find_column};
use uuid::Uuid;

use super::{EncoderState, pyroscope};
use crate::batch::{Batch, Encoded, Outgoing, Protocol, gzipped};
use crate::limits::{Cuts, Limits, Part, Selection, fit, time_of};
use crate::origin::{LabelLimits, Origin, Value, otlp_attributes};
use crate::sample_labels::{self, LabelRule};
use dictionary::{Known, Tables};
use messages::{
    Any, ExportRequest, KeyValue, Profile, Resource, ResourceProfiles, Sample, Scope, ScopeProfiles,
};

/// The release of opentelemetry-proto that the messages are of.
pub const PROTO_RELEASE: &str = "1.10";

/// The semantic conventions that the names of attributes are of.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.34.0";

/// How and where a batch is sent.
pub(crate) fn route(transport: Transport) -> (Protocol, &'static str) {
    match transport {
        Transport::Http => (Protocol::OtlpHttp, HTTP_PATH),
        Transport::Grpc => (Protocol::OtlpGrpc, GRPC_PATH),
    }
}

pub(crate) const HTTP_PATH: &str = "/v1development/profiles";
const GRPC_PATH: &str =
    "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// A gRPC server takes 4 MiB in one message by default. Pyroscope makes a profile of each type, of which each kind
/// of samples has two at most, and takes 2 MiB of them at once: of a larger request it stores a part, answers
/// 429, and stores that part again when all of it is sent again.
const BATCH_BYTES: usize = pyroscope::REQUEST;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    #[default]
    Http,
    Grpc,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub transport: Transport,
    pub limits: Limits,
    pub attribute_limits: LabelLimits,
    pub sample_labels: Vec<LabelRule>,
    /// Whether samples have their times.
    pub timestamps: bool,
    /// Uncompressed bytes of a request; at least [`crate::limits::FEWEST_BYTES`] and what its
    /// attributes take.
    pub batch_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            transport: Transport::default(),
            limits: Limits {
                depth: 1000,
                samples: 100_000,
                bytes: BATCH_BYTES,
                labels: 100,
                texts: usize::MAX,
                name_bytes: 1024,
                value_bytes: 4096,
                symbol_bytes: 4096,
                index_bytes: 3,
            },
            attribute_limits: LabelLimits { count: 128, name_bytes: 1024, value_bytes: 4096 },
            sample_labels: sample_labels::otlp_labels(),
            timestamps: false,
            batch_bytes: BATCH_BYTES,
        }
    }
}

/// A column of a part: its type's name and unit, its period's name and unit, and that period.
type Column = (Quantity, Quantity, i64);

/// Makes the requests for these profiles.
#[must_use]
pub fn encode(settings: &Settings, profiles: &[Outgoing], state: &EncoderState) -> Encoded {
    let mut encoded = Encoded::default();
    let mut request = Request::new();
    for outgoing in profiles {
        let profile = &outgoing.profile;
        let mut selected = Vec::new();
        let mut columns: Vec<Column> = Vec::new();
        for (position, kind) in profile.sample_types.iter().enumerate() {
            let known = find_column(profile.string(kind.name), profile.string(kind.unit));
            let known = known.and_then(|(kind, column)| Some((kind, column.otlp?)));
            let Some((sampled, kind)) = known else {
                encoded.cuts.dropped_types = encoded.cuts.dropped_types.saturating_add(1);
                continue;
            };
            selected.push((position, kind.value.name, kind.value.unit));
            columns.push((kind.value, kind.period, profile.period_of(sampled)));
        }
        let period = profile.period_type;
        let period = find_column(profile.string(period.name), profile.string(period.unit));
        let period = period.map_or(("", ""), |(_, column)| (column.own.name, column.own.unit));
        let selection = Selection {
            types: selected,
            period,
            labels: &settings.sample_labels,
            values: Some(&state.label_values),
            timed: settings.timestamps,
        };
        let mut of_resource = Cuts::default();
        let attributes = attributes(&outgoing.origin, settings, &mut of_resource);
        let of_attributes: usize = attributes.iter().map(attribute_bytes).sum();
        // They are in the request with each part.
        let room = settings.batch_bytes.saturating_sub(of_attributes);
        let limits = Limits { bytes: settings.limits.bytes.min(room), ..settings.limits };
        let (parts, cuts) = fit(profile, &selection, &limits);
        encoded.cuts += cuts;
        if !parts.is_empty() {
            encoded.cuts += of_resource;
        }
        for part in parts {
            let bytes = of_attributes.saturating_add(part.bytes);
            if request.bytes.saturating_add(bytes) > settings.batch_bytes {
                let full = std::mem::replace(&mut request, Request::new());
                encoded.batches.extend(full.finish(settings, &mut encoded.cuts));
            }
            request.add(&part, &columns, attributes.clone(), bytes);
        }
    }
    encoded.batches.extend(request.finish(settings, &mut encoded.cuts));
    encoded
}

/// With what comes before it.
fn attribute_bytes(attribute: &KeyValue) -> usize {
    attribute.encoded_len().saturating_add(5)
}

fn attributes(origin: &Origin, settings: &Settings, cuts: &mut Cuts) -> Vec<KeyValue> {
    let attributes = otlp_attributes(origin, &settings.attribute_limits, cuts);
    let value = |value| match value {
        Value::Text(text) => Any::Text(text.into_owned()),
        Value::Number(number) => Any::Number(number),
    };
    attributes
        .into_iter()
        .map(|(key, fact)| KeyValue { key, value: Some(value(fact).into()) })
        .collect()
}

/// A request that grows.
struct Request {
    tables: Tables,
    resources: Vec<ResourceProfiles>,
    bytes: usize,
    profiles: u32,
    oldest: Option<i64>,
}

impl Request {
    fn new() -> Self {
        Self { tables: Tables::new(), resources: Vec::new(), bytes: 0, profiles: 0, oldest: None }
    }

    /// One profile for each type: OTLP has one type a profile.
    fn add(&mut self, part: &Part, columns: &[Column], attributes: Vec<KeyValue>, bytes: usize) {
        let profile = &part.profile;
        let mut known = Known::default();
        let mut profiles = Vec::new();
        for (column, (value, period, length)) in columns.iter().enumerate() {
            let mut samples: Vec<Sample> = Vec::new();
            // Where the samples in time of a stack and its attributes are.
            let mut in_time: HashMap<(i32, Vec<i32>), usize> = HashMap::new();
            for sample in profile.samples() {
                let Some(&value) = sample.values.get(column).filter(|&&value| value != 0) else {
                    continue;
                };
                let stack = self.tables.stack(profile, &mut known, sample.stack);
                let Some(time) = time_of(profile, sample.labels) else {
                    let attributes = self.tables.labels(profile, &mut known, sample.labels);
                    let (values, times) = (vec![value], Vec::new());
                    samples.push(Sample { stack, attributes, values, times });
                    continue;
                };
                let attributes = self.tables.labels_but(profile, sample.labels, END_TIMESTAMP);
                let at = *in_time.entry((stack, attributes.clone())).or_insert(samples.len());
                if at == samples.len() {
                    let (values, times) = (Vec::new(), Vec::new());
                    samples.push(Sample { stack, attributes, values, times });
                }
                if let Some(sample) = samples.get_mut(at) {
                    sample.values.push(value);
                    sample.times.push(time);
                }
            }
            if samples.is_empty() {
                continue;
            }
            profiles.push(Profile {
                sample_type: Some(self.tables.value_type(value.name, value.unit)),
                samples,
                time_unix_nano: u64::try_from(profile.start_nanos).unwrap_or(0),
                duration_nano: u64::try_from(profile.duration_nanos).unwrap_or(0),
                period_type: Some(self.tables.value_type(period.name, period.unit)),
                // Pyroscope refuses a period of 0.
                period: (*length).max(1),
                profile_id: Uuid::new_v4().as_bytes().to_vec(),
            });
        }
        self.profiles =
            self.profiles.saturating_add(u32::try_from(profiles.len()).unwrap_or(u32::MAX));
        self.bytes = self.bytes.saturating_add(bytes);
        let start = profile.start_nanos;
        self.oldest = Some(self.oldest.unwrap_or(start).min(start));
        self.put(Resource { attributes }, profiles);
    }

    fn put(&mut self, resource: Resource, profiles: Vec<Profile>) {
        let same = |other: &&mut ResourceProfiles| other.resource.as_ref() == Some(&resource);
        if let Some(known) = self.resources.iter_mut().find(same)
            && let Some(scope) = known.scope_profiles.first_mut()
        {
            scope.profiles.extend(profiles);
            return;
        }
        let scope =
            Scope { name: "strata".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        self.resources.push(ResourceProfiles {
            resource: Some(resource),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(scope),
                profiles,
                schema_url: SCHEMA_URL.to_owned(),
            }],
            schema_url: SCHEMA_URL.to_owned(),
        });
    }

    fn finish(self, settings: &Settings, cuts: &mut Cuts) -> Option<Batch> {
        let oldest = self.oldest?;
        let request = ExportRequest {
            resource_profiles: self.resources,
            dictionary: Some(self.tables.finish()),
        };
        let body = gzipped(&request.encode_to_vec(), cuts)?;
        let (protocol, path) = route(settings.transport);
        let (content_type, body) = match settings.transport {
            Transport::Http => ("application/x-protobuf", Bytes::from(body)),
            Transport::Grpc => ("application/grpc+proto", grpc_message(&body)?),
        };
        Some(Batch {
            id: Uuid::new_v4(),
            protocol,
            path: path.to_owned(),
            content_type: content_type.to_owned(),
            headers: Vec::new(),
            gzipped: true,
            profiles: self.profiles,
            oldest,
            body,
        })
    }
}

/// A compressed message as gRPC has it: a flag, its length, itself.
fn grpc_message(body: &[u8]) -> Option<Bytes> {
    let length = u32::try_from(body.len()).ok()?;
    let mut message = BytesMut::with_capacity(body.len().saturating_add(5));
    message.put_u8(1);
    message.put_u32(length);
    message.put_slice(body);
    Some(message.freeze())
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;
    use std::sync::Arc;

    use strata_kinds::{Kind, Kinds};
    use strata_profile::{ProfileBuilder, StackId, Tick};

    use super::*;

    fn request_of(encoded: &Encoded) -> ExportRequest {
        let mut plain = Vec::new();
        let mut gzip = flate2::read::GzDecoder::new(&*encoded.batches[0].body);
        std::io::Read::read_to_end(&mut gzip, &mut plain).expect("gzip");
        ExportRequest::decode(&*plain).expect("a request")
    }

    #[test]
    fn the_same_place_in_several_profiles_is_one_entry() {
        let outgoing = |service: &str| {
            let mut builder = ProfileBuilder::of_kinds(Kinds::NONE.with(Kind::Cpu, true));
            let mapping = builder.mapping(1, 2, 3, "/lib/libc.so.6", "ab");
            let frame = builder.frame(strata_profile::FrameKind::Native, "read", "read", "", 0);
            let place = builder.location(7, Some(mapping), &[frame]);
            let (stack, labels) = (builder.stack(&[place]), builder.labels(&[]));
            builder.add_of(Kind::Cpu, stack, labels, &[1, 2]);
            let origin = Origin { service: service.to_owned(), ..Origin::default() };
            Outgoing { profile: Arc::new(builder.finish()), origin: Arc::new(origin) }
        };
        let all = [outgoing("one"), outgoing("two")];
        let encoded = encode(&Settings::default(), &all, &EncoderState::default());
        let request = request_of(&encoded);
        let dictionary = request.dictionary.expect("a dictionary");
        assert_eq!(request.resource_profiles.len(), 2);
        // The first of each table is nothing.
        assert_eq!((dictionary.mappings.len(), dictionary.locations.len()), (2, 2));
        assert_eq!((dictionary.functions.len(), dictionary.stacks.len()), (2, 2));
    }

    #[test]
    fn samples_in_time_of_one_stack_are_one_sample_with_a_value_and_a_time_each() {
        let mut builder = ProfileBuilder::of_kinds(Kinds::NONE.with(Kind::Locks, true));
        builder.set_start(1000);
        builder.keep_timeline();
        let (stack, kind) = (StackId::default(), Kind::Locks);
        let labels = builder.labels(&[]);
        for (time, value) in [(5, 70), (9, 30)] {
            let tick = Tick { kind, labels, stack, time, weight: 1, value };
            builder.add_of(kind, stack, labels, &tick.values().collect::<Vec<_>>());
            builder.tick(tick);
        }
        let outgoing =
            Outgoing { profile: Arc::new(builder.finish()), origin: Arc::new(Origin::default()) };
        for (timestamps, expected) in
            [(true, (vec![70, 30], vec![1005, 1009])), (false, (vec![100], Vec::new()))]
        {
            let settings = Settings { timestamps, ..Settings::default() };
            let encoded = encode(&settings, from_ref(&outgoing), &EncoderState::default());
            let request = request_of(&encoded);
            let profiles = &request.resource_profiles[0].scope_profiles[0].profiles;
            let waited = &profiles[1].samples;
            assert_eq!((waited.len(), profiles[0].samples.len()), (1, 1));
            assert_eq!((waited[0].values.clone(), waited[0].times.clone()), expected);
        }
    }
}
