//! The requests of Pyroscope: `push.v1.PusherService/Push`, and `/ingest` of older servers.
//!
//! The messages are those of `api/push/v1/push.proto` (github.com/grafana/pyroscope). All series
//! of a period go in few requests, each a part of what the server lets through in one burst: a larger
//! request would be refused as too fast however often it is sent.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use strata_kinds::{PyroscopeType, find_column};
use uuid::Uuid;

use super::EncoderState;
use crate::batch::{Batch, Encoded, Outgoing, Protocol, gzipped_pprof};
use crate::label_values::LabelValues;
use crate::limits::{Cuts, Limits, Selection, fit};
use crate::origin::{LabelLimits, Origin, pyroscope_labels};
use crate::sample_labels::{self, LabelRule};
use std::cell::RefCell;

/// Below the server's default burst of 2 MiB, which counts a request's profiles uncompressed.
const BURST: usize = 1_900_000;

/// Bytes of a request. The burst is that of a tenant: other hosts and exporters send at the same time.
pub(super) const REQUEST: usize = BURST / 4;

/// What a server takes in a second by default, of one tenant: 4 MiB.
const BYTES_A_SECOND: usize = 4 << 20;
/// Requests at once that this is shared by; who allows more has a server that takes more.
const USUAL_CONCURRENCY: usize = 4;

/// The time in which a server by default takes the bytes of a request. It applies its rate to each
/// series of a request: of one that is too fast some are stored and the others not, and it answers
/// 429 for all of it, so that what was stored is stored again when all of it is sent again
/// (grafana/pyroscope v2, `Distributor.PushBatch`).
pub(crate) fn spacing(settings: &Settings, concurrency: usize) -> Duration {
    if settings.api == Api::Ingest {
        return Duration::ZERO;
    }
    time_of(settings.batch_bytes.min(BURST), concurrency)
}

pub(super) fn time_of(bytes: usize, concurrency: usize) -> Duration {
    let seconds = bytes as f64 / BYTES_A_SECOND as f64;
    let share = USUAL_CONCURRENCY as f64 / concurrency.max(USUAL_CONCURRENCY) as f64;
    Duration::from_secs_f64(seconds * share)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    #[default]
    Push,
    /// Servers before 1.0: one request for each profile, and no profile type but the server's
    /// guess.
    Ingest,
}

const PUSH: &str = "/push.v1.PusherService/Push";
const INGEST: &str = "/ingest";

/// Where a batch is sent, without its query.
pub(crate) fn path(settings: &Settings) -> &'static str {
    match settings.api {
        Api::Push => PUSH,
        Api::Ingest => INGEST,
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub api: Api,
    pub limits: Limits,
    pub label_limits: LabelLimits,
    /// The labels of samples that are sent; a text makes a series of its own.
    pub sample_labels: Vec<LabelRule>,
    /// Facts that are sent as labels besides the usual: `pid`, `runtime_id`, `container_id`.
    pub more_labels: Vec<String>,
    /// Uncompressed bytes of a request; at least [`crate::limits::FEWEST_BYTES`] and what the
    /// labels of a series take.
    pub batch_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            api: Api::default(),
            limits: Limits {
                depth: 1000,
                samples: 16_000,
                bytes: REQUEST,
                labels: 100,
                texts: usize::MAX,
                name_bytes: 1024,
                value_bytes: 2048,
                symbol_bytes: 4096,
                index_bytes: 1,
            },
            label_limits: LabelLimits { count: 30, name_bytes: 1024, value_bytes: 2048 },
            sample_labels: sample_labels::pyroscope_labels(),
            more_labels: Vec::new(),
            batch_bytes: REQUEST,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
    #[prost(string, tag = "2")]
    id: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Series {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<Series>,
}

/// When the last profile of each series began.
///
/// A server treats two profiles of one series and one time as a duplicate, and shows one of them
/// (grafana/pyroscope, `DedupeProfileRowIterator`). Processes of one service make one series, and
/// so do the parts of a large profile.
#[derive(Debug, Default)]
pub struct Moments {
    /// By a hash of the series's labels.
    last: HashMap<u64, i64>,
}

/// Servers before 2.0 compare milliseconds.
const APART: i64 = 1_000_000;
/// Further than the profiles of a period spread, and less than a server lets them lie in its future.
const FAR: i64 = 300_000_000_000;

impl Moments {
    /// The moment that the next profile of a series is sent with: its own, or the next free one.
    fn next(&mut self, labels: &[(String, String)], start: i64) -> i64 {
        const MOST: usize = 100_000;
        const LONG_AGO: i64 = 3_600_000_000_000;
        if self.last.len() >= MOST {
            self.last.retain(|_, last| *last > start.saturating_sub(LONG_AGO));
        }
        // All of them recent: a bound for memory, at which one pair may coincide.
        if self.last.len() >= MOST {
            self.last.clear();
        }
        let mut series = DefaultHasher::new();
        labels.hash(&mut series);
        let last = self.last.entry(series.finish()).or_insert(i64::MIN);
        // Far ahead only where the clock was set back: servers refuse what lies in their future.
        *last = if last.saturating_sub(start) > FAR {
            start
        } else {
            start.max(last.saturating_add(APART))
        };
        *last
    }
}

/// Makes the requests for these profiles.
#[must_use]
pub fn encode(settings: &Settings, profiles: &[Outgoing], state: &mut EncoderState) -> Encoded {
    let EncoderState { moments, label_values } = state;
    let mut encoded = Encoded::default();
    let mut push = Push::default();
    for outgoing in profiles {
        for (kind, period, selection) in groups(settings, outgoing, label_values, &mut encoded.cuts)
        {
            let mut of_series = Cuts::default();
            let labels = labels_of(settings, outgoing, kind, &mut of_series);
            let of_labels = label_bytes(&labels);
            let (parts, cuts) =
                fit(&outgoing.profile, &selection, &limits_beside(settings, &labels));
            encoded.cuts += cuts;
            if !parts.is_empty() {
                encoded.cuts += of_series;
            }
            for mut part in parts {
                part.profile.period = period;
                part.profile.start_nanos = moments.next(&labels, part.profile.start_nanos);
                let raw = gzipped_pprof(&part.profile, &mut encoded.cuts);
                let Some(raw) = raw else { continue };
                match settings.api {
                    Api::Push => {
                        let bytes = part.bytes.saturating_add(of_labels);
                        if push.bytes.saturating_add(bytes) > settings.batch_bytes {
                            encoded.batches.extend(push.take());
                        }
                        push.add(labels.clone(), raw, bytes, outgoing.profile.start_nanos);
                    }
                    Api::Ingest => {
                        let batch = ingest(outgoing, &labels, raw);
                        encoded.batches.push(batch);
                    }
                }
            }
        }
    }
    encoded.batches.extend(push.take());
    encoded
}

/// The types of the profile that go together: those with the same `__name__` and period, with the
/// sampling period of their kind.
fn groups<'s>(
    settings: &'s Settings,
    outgoing: &Outgoing,
    values: &'s RefCell<LabelValues>,
    cuts: &mut Cuts,
) -> Vec<(PyroscopeType, i64, Selection<'s>)> {
    let profile = &outgoing.profile;
    let mut groups: Vec<(PyroscopeType, i64, Selection)> = Vec::new();
    for (position, kind) in profile.sample_types.iter().enumerate() {
        let known = find_column(profile.string(kind.name), profile.string(kind.unit));
        let known = known.and_then(|(kind, column)| Some((kind, column.pyroscope?)));
        let Some((sampled, kind)) = known else {
            cuts.dropped_types = cuts.dropped_types.saturating_add(1);
            continue;
        };
        let column = (position, kind.value.name, kind.value.unit);
        let known = groups
            .iter_mut()
            .find(|(other, ..)| other.profile == kind.profile && other.period == kind.period);
        match known {
            Some((.., selection)) => selection.types.push(column),
            None => groups.push((
                kind,
                profile.period_of(sampled),
                Selection {
                    types: vec![column],
                    period: (kind.period.name, kind.period.unit),
                    labels: &settings.sample_labels,
                    values: Some(values),
                    timed: false,
                },
            )),
        }
    }
    groups
}

/// The server's limit for a profile beside the labels of its series: it counts both together, and
/// texts of samples become labels of a series too.
fn limits_beside(settings: &Settings, labels: &[(String, String)]) -> Limits {
    let limits = settings.limits;
    let bytes = settings.batch_bytes.saturating_sub(label_bytes(labels));
    let texts = settings.label_limits.count.saturating_sub(labels.len());
    Limits { bytes: limits.bytes.min(bytes), texts: limits.texts.min(texts), ..limits }
}

fn label_bytes(labels: &[(String, String)]) -> usize {
    labels.iter().map(|(name, value)| name.len().saturating_add(value.len())).sum()
}

fn labels_of(
    settings: &Settings,
    outgoing: &Outgoing,
    kind: PyroscopeType,
    cuts: &mut Cuts,
) -> Vec<(String, String)> {
    let limits = &settings.label_limits;
    let mut labels = pyroscope_labels(&outgoing.origin, &settings.more_labels, limits, cuts);
    labels.push(("__name__".to_owned(), kind.profile.to_owned()));
    labels.sort();
    labels
}

/// A request that grows.
#[derive(Default)]
struct Push {
    request: PushRequest,
    bytes: usize,
    profiles: u32,
    oldest: Option<i64>,
}

impl Push {
    fn add(&mut self, labels: Vec<(String, String)>, raw: Vec<u8>, bytes: usize, start: i64) {
        let labels: Vec<LabelPair> =
            labels.into_iter().map(|(name, value)| LabelPair { name, value }).collect();
        let sample = RawSample { raw_profile: raw, id: Uuid::new_v4().to_string() };
        match self.request.series.iter_mut().find(|series| series.labels == labels) {
            Some(series) => series.samples.push(sample),
            None => self.request.series.push(Series { labels, samples: vec![sample] }),
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.profiles = self.profiles.saturating_add(1);
        self.oldest = Some(self.oldest.unwrap_or(start).min(start));
    }

    fn take(&mut self) -> Option<Batch> {
        let full = std::mem::take(self);
        Some(Batch {
            id: Uuid::new_v4(),
            protocol: Protocol::Plain,
            path: PUSH.to_owned(),
            content_type: "application/proto".to_owned(),
            headers: Vec::new(),
            // The profiles in it are compressed.
            gzipped: false,
            profiles: full.profiles,
            oldest: full.oldest?,
            body: Bytes::from(full.request.encode_to_vec()),
        })
    }
}

/// `POST /ingest` with the profile as the whole body: `format=pprof` and multipart together are
/// refused.
fn ingest(outgoing: &Outgoing, labels: &[(String, String)], raw: Vec<u8>) -> Batch {
    let profile = &outgoing.profile;
    let origin: &Origin = &outgoing.origin;
    let service = labels.iter().find(|(name, _)| name == "service_name");
    let service = service.map_or("unknown", |(_, value)| value.as_str());
    let pairs: Vec<String> = labels
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "service_name" | "__name__" | "pyroscope_spy"))
        .map(|(name, value)| format!("{name}={}", in_key(value)))
        .collect();
    let name = format!("{}{{{}}}", in_name(service), pairs.join(","));
    let seconds = |nanos: i64| nanos.div_euclid(1_000_000_000).max(0);
    let from = seconds(profile.start_nanos);
    let until = seconds(profile.start_nanos.saturating_add(profile.duration_nanos));
    let path = format!(
        "{INGEST}?name={}&from={from}&until={}&format=pprof&spyName={}",
        in_query(&name),
        until.max(from.saturating_add(1)),
        origin.language.spy()
    );
    Batch {
        id: Uuid::new_v4(),
        protocol: Protocol::Plain,
        path,
        content_type: "binary/octet-stream".to_owned(),
        headers: Vec::new(),
        gzipped: false,
        profiles: 1,
        oldest: profile.start_nanos,
        body: Bytes::from(raw),
    }
}

/// A value inside `name{key=value,…}`, which knows no escapes.
fn in_key(value: &str) -> String {
    value.replace(['{', '}', ',', '='], "_")
}

/// The name before it, in which servers take few characters and else refuse the profile
/// (`ValidateAppName` of pyroscope's `pkg/og/flameql`).
fn in_name(name: &str) -> String {
    let taken = |character: char| character.is_ascii_alphanumeric() || "_.-/".contains(character);
    name.chars().map(|character| if taken(character) { character } else { '_' }).collect()
}

fn in_query(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            made.push(char::from(byte));
        } else {
            made.push_str(&format!("%{byte:02X}"));
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Api, Settings, in_key, in_name, spacing};

    /// As `chrony` sets a clock that was ahead when the host started.
    #[test]
    fn profiles_of_after_the_clock_was_set_back_have_their_own_times() {
        let mut moments = super::Moments::default();
        let labels = [("service_name".to_owned(), "shop".to_owned())];
        let hour = 3_600_000_000_000;
        assert_eq!(moments.next(&labels, 5 * hour), 5 * hour);
        assert_eq!(moments.next(&labels, 5 * hour), 5 * hour + super::APART);
        assert_eq!(moments.next(&labels, 4 * hour), 4 * hour);
        assert_eq!(moments.next(&labels, 4 * hour - super::FAR / 2), 4 * hour + super::APART);
    }

    #[test]
    fn requests_are_no_faster_than_a_server_takes_their_bytes_by_default() {
        let settings = Settings::default();
        let apart = spacing(&settings, 1);
        let taken = apart.as_secs_f64() * f64::from(4 << 20);
        assert!((taken - settings.batch_bytes as f64).abs() < 1.0, "{taken}");
        assert!(apart < Duration::from_millis(500) && spacing(&settings, 4) == apart);
        assert!(spacing(&settings, 8) < apart * 6 / 10, "a server that takes more");
        // One request a profile.
        assert_eq!(spacing(&Settings { api: Api::Ingest, ..settings }, 4), Duration::ZERO);
    }

    #[test]
    fn a_name_has_only_what_old_servers_take() {
        for (name, sent) in [
            ("shop-web_1.2", "shop-web_1.2"),
            ("default/web", "default/web"),
            ("g++", "g__"),
            ("(sd-pam)", "_sd-pam_"),
            ("a b:c", "a_b_c"),
            ("kworker/0:1", "kworker/0_1"),
            ("x{y=z}", "x_y_z_"),
            ("é", "_"),
        ] {
            assert_eq!(in_name(name), sent, "{name}");
        }
    }

    #[test]
    fn a_value_has_all_but_what_ends_it() {
        assert_eq!(in_key("g++ (a:b)"), "g++ (a:b)");
        assert_eq!(in_key("a=b,{c}"), "a_b__c_");
    }
}
