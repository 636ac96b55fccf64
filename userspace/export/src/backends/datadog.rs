//! The requests of a Datadog agent: multipart, with `event.json` and `auto.pprof`.
//!
//! One request for each profile, which is that of one runtime id; the agent adds the key and
//! passes it on. Where the agent listens is found as its own libraries find it.

use bytes::Bytes;
use serde_json::json;
use strata_kinds::{Quantity, find_column};
use uuid::Uuid;

use super::EncoderState;
use crate::batch::{Batch, Encoded, Outgoing, Protocol, gzipped_pprof};
use crate::limits::{Limits, Part, Selection, fit};
use crate::origin::{LabelLimits, Language, Origin, datadog_tags};
use crate::sample_labels::{self, LabelRule};

/// Where a batch is sent.
pub(crate) const PATH: &str = "/profiling/v1/input";

/// Where an agent of the same host puts its socket.
pub const DEFAULT_SOCKET: &str = "/var/run/datadog/apm.socket";

/// The name of CPU time in the family `native`; `cpu` is that of .NET and Go.
const NATIVE_CPU: &str = "cpu-time";

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub limits: Limits,
    pub tag_limits: LabelLimits,
    pub sample_labels: Vec<LabelRule>,
    /// Whether samples have their times, which Datadog shows on a line of time.
    pub timestamps: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits {
                depth: 1000,
                samples: 200_000,
                bytes: 16 << 20,
                labels: 100,
                texts: usize::MAX,
                name_bytes: 1024,
                value_bytes: 4096,
                symbol_bytes: 4096,
                index_bytes: 1,
            },
            tag_limits: LabelLimits { count: 100, name_bytes: 200, value_bytes: 4096 },
            sample_labels: sample_labels::datadog_labels(),
            timestamps: false,
        }
    }
}

/// The agent's address from `DD_TRACE_AGENT_URL`, `DD_AGENT_HOST` and `DD_TRACE_AGENT_PORT`,
/// each if set: the URL, else the socket if there is one and no host was named, else the host.
#[must_use]
pub fn agent_url(
    url: Option<&str>,
    host: Option<&str>,
    port: Option<&str>,
    socket_exists: bool,
) -> String {
    if let Some(url) = set(url) {
        return url.to_owned();
    }
    let (host, port) = match (set(host), set(port)) {
        (None, None) if socket_exists => return format!("unix://{DEFAULT_SOCKET}"),
        (host, port) => (host.unwrap_or("localhost"), port.unwrap_or("8126")),
    };
    // The host of IPv6 has brackets in a URL.
    if host.contains(':') && !host.starts_with('[') {
        format!("http://[{host}]:{port}")
    } else {
        format!("http://{host}:{port}")
    }
}

fn set(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

/// Makes the requests for these profiles.
#[must_use]
pub fn encode(settings: &Settings, profiles: &[Outgoing], state: &EncoderState) -> Encoded {
    let mut encoded = Encoded::default();
    for outgoing in profiles {
        let profile = &outgoing.profile;
        let is_native = outgoing.origin.language == Language::Native;
        let mut selected: Vec<(usize, &'static str, &'static str)> = Vec::new();
        for (position, kind) in profile.sample_types.iter().enumerate() {
            let known = find_column(profile.string(kind.name), profile.string(kind.unit));
            match known.and_then(|(_, column)| column.datadog) {
                Some(Quantity { name: "cpu", unit }) if is_native => {
                    selected.push((position, NATIVE_CPU, unit));
                }
                Some(Quantity { name, unit }) => selected.push((position, name, unit)),
                None => {
                    encoded.cuts.dropped_types = encoded.cuts.dropped_types.saturating_add(1);
                }
            }
        }
        let selection = Selection {
            types: selected,
            period: (if is_native { NATIVE_CPU } else { "cpu" }, "nanoseconds"),
            labels: &settings.sample_labels,
            values: Some(&state.label_values),
            timed: settings.timestamps,
        };
        let (parts, cuts) = fit(profile, &selection, &settings.limits);
        encoded.cuts += cuts;
        for part in parts {
            encoded.batches.extend(request(settings, outgoing, &part, &mut encoded.cuts));
        }
    }
    encoded
}

fn request(
    settings: &Settings,
    outgoing: &Outgoing,
    part: &Part,
    cuts: &mut crate::limits::Cuts,
) -> Option<Batch> {
    let raw = gzipped_pprof(&part.profile, cuts)?;
    let start = outgoing.profile.start_nanos;
    let end = start.saturating_add(outgoing.profile.duration_nanos);
    let family = match outgoing.origin.language {
        Language::DotNet => "dotnet",
        Language::Go => "go",
        Language::Native => "native",
    };
    let event = json!({
        "attachments": ["auto.pprof"],
        "tags_profiler": datadog_tags(&outgoing.origin, &settings.tag_limits, cuts).join(","),
        "start": date(start),
        "end": date(end),
        "family": family,
        "version": "4",
    });
    let id = Uuid::new_v4();
    let boundary = format!("strata-{}", Uuid::new_v4().simple());
    let event = event.to_string();
    let body = multipart(
        &boundary,
        &[
            ("event", "event.json", "application/json", event.as_bytes()),
            ("auto.pprof", "auto.pprof", "application/octet-stream", &raw),
        ],
    );
    Some(Batch {
        id,
        protocol: Protocol::Plain,
        path: PATH.to_owned(),
        content_type: format!("multipart/form-data; boundary={boundary}"),
        headers: headers_of(&outgoing.origin),
        gzipped: false,
        profiles: 1,
        oldest: start,
        body: Bytes::from(body),
    })
}

/// The container of the profile: without it an agent uses the container of its unix socket's peer,
/// which is strata's (github.com/DataDog/datadog-agent, pkg/trace/api/container_linux.go).
fn headers_of(origin: &Origin) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        ("dd-evp-origin", "strata".to_owned()),
        ("dd-evp-origin-version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    if !origin.container_id.is_empty() {
        headers.push(("datadog-container-id", origin.container_id.clone()));
        headers.push(("datadog-entity-id", format!("ci-{}", origin.container_id)));
    }
    headers
}

/// Files as (name, file name, content type, content). The boundary is random, so that content
/// cannot contain it on purpose.
fn multipart(boundary: &str, files: &[(&str, &str, &str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, kind, content) in files {
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; \
             filename=\"{file}\"\r\nContent-Type: {kind}\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    body
}

/// A time as RFC 3339 has it, in UTC.
fn date(nanos: i64) -> String {
    let seconds = nanos.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years of 400 begin on 1 March 0000, so that a leap day is the last of its year
    // (howardhinnant.github.io/date_algorithms.html, civil_from_days).
    let shifted = days.saturating_add(719_468);
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = nanos.rem_euclid(1_000_000_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:09}Z")
}

#[cfg(test)]
mod tests {
    use super::{agent_url, date};

    #[test]
    fn a_time_is_written_in_utc() {
        for (nanos, text) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400_000_000_001, "2000-02-29T00:00:00.000000001Z"),
            (1_709_251_199_999_999_999, "2024-02-29T23:59:59.999999999Z"),
            (1_735_689_600_000_000_000, "2025-01-01T00:00:00.000000000Z"),
            (4_107_542_400_000_000_000, "2100-03-01T00:00:00.000000000Z"),
            (-1, "1969-12-31T23:59:59.999999999Z"),
        ] {
            assert_eq!(date(nanos), text);
        }
        for nanos in [i64::MIN, i64::MAX] {
            assert!(date(nanos).ends_with('Z'));
        }
    }

    #[test]
    fn the_agent_is_found_as_its_own_libraries_find_it() {
        let url = Some("http://agent:1/");
        for (url, host, port, socket, found) in [
            (url, Some("other"), Some("2"), true, "http://agent:1/"),
            (Some("unix:///x/apm.socket"), None, None, false, "unix:///x/apm.socket"),
            (Some(" "), None, None, true, "unix:///var/run/datadog/apm.socket"),
            (None, Some("other"), None, true, "http://other:8126"),
            (None, None, Some("2"), true, "http://localhost:2"),
            (None, None, None, false, "http://localhost:8126"),
            (None, Some("::1"), Some("2"), false, "http://[::1]:2"),
        ] {
            assert_eq!(agent_url(url, host, port, socket), found);
        }
    }
}
