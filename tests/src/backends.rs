//! What arrives at Pyroscope, a Datadog agent and an OTLP collector, read by their documented
//! schemas, implemented here a second time so that a mistake of the product's cannot hide.

use std::collections::BTreeMap;
use std::io::Read;

use anyhow::{Context, Result};
use prost::Message;

use crate::collector::Request;
use crate::pprof::Profile;

/// One profile as a backend understands it.
#[derive(Clone, Debug)]
pub struct Received {
    pub labels: BTreeMap<String, String>,
    pub profile: Profile,
    /// The same each time a request is made again.
    pub batch: String,
}

impl Received {
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// `push.v1.PushRequest` (api/push/v1/push.proto of github.com/grafana/pyroscope).
#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<Series>,
}

#[derive(Clone, PartialEq, Message)]
struct Series {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Pair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
    #[prost(string, tag = "2")]
    id: String,
}

fn unzipped(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).context("not gzip")?;
    Ok(plain)
}

/// A body without its compression.
fn body(request: &Request) -> Result<Vec<u8>> {
    match request.header("content-encoding") {
        "gzip" => unzipped(&request.body),
        _ => Ok(request.body.clone()),
    }
}

fn pprof(bytes: &[u8]) -> Result<Profile> {
    Profile::decode(unzipped(bytes)?.as_slice()).context("not a pprof")
}

/// All series of all push requests.
pub fn pyroscope(requests: &[Request]) -> Result<Vec<Received>> {
    let mut received = Vec::new();
    for request in requests {
        anyhow::ensure!(request.path == "/push.v1.PusherService/Push", "{}", request.path);
        let push = PushRequest::decode(body(request)?.as_slice()).context("not a push")?;
        for series in push.series {
            let labels: BTreeMap<_, _> =
                series.labels.into_iter().map(|pair| (pair.name, pair.value)).collect();
            for sample in series.samples {
                received.push(Received {
                    labels: labels.clone(),
                    profile: pprof(&sample.raw_profile)?,
                    batch: request.header("idempotency-key").to_owned(),
                });
            }
        }
    }
    Ok(received)
}

/// All profiles of all uploads to an agent, with the tags of their event.
pub fn datadog(requests: &[Request]) -> Result<Vec<Received>> {
    let mut received = Vec::new();
    for request in requests {
        anyhow::ensure!(request.path == "/profiling/v1/input", "{}", request.path);
        let kind = request.header("content-type");
        let boundary = kind.split("boundary=").nth(1).context("no boundary")?.trim_matches('"');
        let parts = parts(&request.body, boundary);
        let event = parts.get("event.json").context("no event.json")?;
        let event: serde_json::Value = serde_json::from_slice(event).context("event.json")?;
        let tags = event["tags_profiler"].as_str().context("no tags")?;
        let labels = tags.split(',').filter_map(|tag| tag.split_once(':'));
        received.push(Received {
            labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            profile: pprof(parts.get("auto.pprof").context("no auto.pprof")?)?,
            batch: request.header("idempotency-key").to_owned(),
        });
    }
    Ok(received)
}

/// Parts of a multipart body by their file name (RFC 7578).
fn parts(body: &[u8], boundary: &str) -> BTreeMap<String, Vec<u8>> {
    let delimiter = format!("--{boundary}");
    let mut parts = BTreeMap::new();
    for part in split(body, delimiter.as_bytes()) {
        let Some(end) = find(part, b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&part[..end]);
        let Some(name) = head.split("filename=\"").nth(1).and_then(|rest| rest.split('"').next())
        else {
            continue;
        };
        let content = &part[end + 4..];
        parts.insert(name.to_owned(), content[..content.len().saturating_sub(2)].to_vec());
    }
    parts
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

fn split<'a>(mut text: &'a [u8], by: &[u8]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    while let Some(at) = find(text, by) {
        pieces.push(&text[..at]);
        text = &text[at + by.len()..];
    }
    pieces.push(text);
    pieces
}

/// `ExportProfilesServiceRequest` (opentelemetry/proto/collector/profiles/v1development and
/// profiles/v1development of github.com/open-telemetry/opentelemetry-proto 1.10), what tests look
/// at.
#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    dictionary: Option<Dictionary>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(int64, optional, tag = "3")]
    number: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeProfiles {
    #[prost(message, repeated, tag = "2")]
    profiles: Vec<OtlpProfile>,
}

#[derive(Clone, PartialEq, Message)]
struct OtlpProfile {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<OtlpValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<OtlpSample>,
}

#[derive(Clone, PartialEq, Message)]
struct OtlpValueType {
    #[prost(int32, tag = "1")]
    r#type: i32,
    #[prost(int32, tag = "2")]
    unit: i32,
}

#[derive(Clone, PartialEq, Message)]
struct OtlpSample {
    #[prost(int32, tag = "1")]
    stack: i32,
    #[prost(int32, repeated, tag = "2")]
    attributes: Vec<i32>,
    #[prost(int32, tag = "3")]
    link: i32,
    #[prost(int64, repeated, tag = "4")]
    values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Dictionary {
    #[prost(string, repeated, tag = "5")]
    strings: Vec<String>,
}

/// Sums of one type of one resource.
#[derive(Clone, Debug)]
pub struct OtlpSum {
    pub attributes: BTreeMap<String, String>,
    /// `cpu/nanoseconds`.
    pub sample_type: String,
    pub total: i64,
}

pub fn otlp(requests: &[Request]) -> Result<Vec<OtlpSum>> {
    let mut sums = Vec::new();
    for request in requests {
        anyhow::ensure!(request.path == "/v1development/profiles", "{}", request.path);
        let export = Export::decode(body(request)?.as_slice()).context("not an export")?;
        let dictionary = export.dictionary.unwrap_or_default();
        let string = |index: i32| {
            usize::try_from(index)
                .ok()
                .and_then(|index| dictionary.strings.get(index))
                .map_or("", String::as_str)
        };
        for resource in export.resources {
            let attributes: BTreeMap<_, _> = resource
                .resource
                .unwrap_or_default()
                .attributes
                .into_iter()
                .map(|pair| {
                    let value = pair.value.unwrap_or_default();
                    let number = value.number.map(|number| number.to_string());
                    (pair.key, value.text.or(number).unwrap_or_default())
                })
                .collect();
            for profile in resource.scopes.into_iter().flat_map(|scope| scope.profiles) {
                let kind = profile.sample_type.unwrap_or_default();
                sums.push(OtlpSum {
                    attributes: attributes.clone(),
                    sample_type: format!("{}/{}", string(kind.r#type), string(kind.unit)),
                    total: profile.samples.iter().flat_map(|sample| &sample.values).sum(),
                });
            }
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_body_are_found_by_their_file_names() {
        let body =
            b"--x\r\nContent-Disposition: form-data; name=\"event\"; filename=\"event.json\"\r\n\
            \r\n{}\r\n--x\r\nContent-Disposition: form-data; name=\"auto.pprof\"; \
            filename=\"auto.pprof\"\r\n\r\nab\r\n\x00\r\n--x--\r\n";
        let parts = parts(body, "x");
        assert_eq!(parts["event.json"], b"{}");
        assert_eq!(parts["auto.pprof"], b"ab\r\n\x00");
    }
}
