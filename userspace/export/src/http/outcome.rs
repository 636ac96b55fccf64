//! The outcome of sending a batch: delivered, to be retried, or refused permanently.
//!
//! Pure: it judges a status, headers and the first bytes of a body. The body is untrusted: it is
//! bounded before it comes here, and what is shown of it is made inert and stripped of the
//! credentials that were sent.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use prost::Message;
use strata_profile::text::{visible, without_middle};

use crate::http::secret::Secret;

/// The longest wait a server can ask for.
pub const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Characters of a server's message that are shown.
const SHOWN: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server has it. According to the server, `rejected` profiles of it were not stored.
    Delivered { rejected: u64, message: Option<String> },
    /// To be retried: a network error, or a failing or overloaded server.
    Retry { after: Option<Duration>, reason: String },
    /// Sending the same bytes again would not help.
    Refused { status: Option<u16>, reason: String },
    /// The endpoint refuses everything as it is configured: the credential, the path or the tenant
    /// is wrong, or the server does not have the service. The same bytes may be taken later. The
    /// status is that of HTTP, or what a gRPC status about a credential means there.
    Denied { status: Option<u16>, reason: String },
}

impl Outcome {
    #[must_use]
    pub(crate) fn delivered() -> Self {
        Self::Delivered { rejected: 0, message: None }
    }

    #[must_use]
    pub(crate) fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { after: None, reason: reason.into() }
    }

    #[must_use]
    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused { status: None, reason: reason.into() }
    }
}

/// The outcome of an HTTP answer, except that of an OTLP delivery.
#[must_use]
pub(crate) fn of_status(status: u16, wait: Option<Duration>, message: &str) -> Outcome {
    let reason = if message.is_empty() {
        format!("the server answered {status}")
    } else {
        format!("the server answered {status}: {message}")
    };
    match status {
        200..=299 => Outcome::delivered(),
        300..=399 => Outcome::Denied {
            status: Some(status),
            reason: format!(
                "the server answered {status}, a redirect, which is never followed: set the \
                 address it leads to"
            ),
        },
        500 if is_of_a_bad_request(message) => Outcome::Refused { status: Some(status), reason },
        // 408: the server gave up waiting for the request.
        408 | 429 | 500..=599 => Outcome::Retry { after: wait, reason },
        400 if is_of_tls(message) => Outcome::Denied {
            status: Some(status),
            reason: format!("{reason}: set an address with https://"),
        },
        422 if is_of_an_ill_server(message) => Outcome::Retry { after: wait, reason },
        400 | 409 | 411 | 413..=415 | 417 | 422 | 431 => {
            Outcome::Refused { status: Some(status), reason }
        }
        _ => Outcome::Denied { status: Some(status), reason },
    }
}

/// Whether a refusal has the text with which Go's servers, and nginx, answer a request without TLS at
/// a port with it.
fn is_of_tls(message: &str) -> bool {
    message.starts_with("Client sent an HTTP request to an HTTPS server")
        || message.contains("The plain HTTP request was sent to HTTPS port")
}

/// Whether a refusal has the text of a gRPC or connect error that no request is at fault for.
///
/// Pyroscope's `/ingest` answers 422 for every error of its own, also while it starts or lacks a
/// component (grafana/pyroscope v2, `pkg/ingester/pyroscope/ingest_handler.go`):
/// `rpc error: code = Unavailable desc = service is unavailable`.
fn is_of_an_ill_server(message: &str) -> bool {
    let texts = ["code = Unavailable", "unavailable: ", "code = DeadlineExceeded"];
    let more = ["deadline_exceeded: ", "context deadline exceeded", "code = Canceled"];
    // What is quoted, a profile's labels for one, a process may have chosen.
    let own = message.split(['\'', '"', '{']).next().unwrap_or_default();
    texts.iter().chain(&more).any(|text| own.contains(text))
}

/// Whether an error of the server's has the text of a gRPC error that the request is at fault for, which would
/// be sent again and again. Pyroscope answers OTLP so (grafana/pyroscope v2,
/// `pkg/ingester/otlp/ingest_handler.go`): `rpc error: code = InvalidArgument desc = …`.
fn is_of_a_bad_request(message: &str) -> bool {
    let own = message.split(['\'', '"', '{']).next().unwrap_or_default();
    own.contains("code = InvalidArgument")
}

/// `Retry-After`: seconds, or a date.
#[must_use]
pub(crate) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse().ok() {
        Some(seconds) => Duration::from_secs(seconds),
        None => httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(LONGEST_WAIT))
}

/// The server's error for display: its `code` and `message` where it sent them as JSON or as the
/// status message of OTLP.
#[must_use]
pub(crate) fn message_of(body: &[u8], is_protobuf: bool, secrets: &[&Secret]) -> String {
    let text = if is_protobuf {
        RpcStatus::decode(body).map(|status| status.message).unwrap_or_default()
    } else {
        json_message(body).unwrap_or_else(|| String::from_utf8_lossy(body).into_owned())
    };
    shown(&text, secrets)
}

/// A server's text, short, inert, and without the credentials it may echo.
#[must_use]
pub(crate) fn shown(text: &str, secrets: &[&Secret]) -> String {
    let mut text = text.trim().to_owned();
    for secret in secrets.iter().map(|secret| secret.reveal()).filter(|text| !text.is_empty()) {
        if text.contains(secret) {
            text = text.replace(secret, "[secret]");
        }
    }
    visible(&without_middle(&text, SHOWN)).into_owned()
}

fn json_message(body: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    let code = value.get("code").map(|code| match code {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let message = ["message", "error"].iter().find_map(|key| value.get(*key)?.as_str());
    match (code, message) {
        (Some(code), Some(message)) => Some(format!("{code}: {message}")),
        (Some(code), None) => Some(code),
        (None, message) => message.map(str::to_owned),
    }
}

/// `google.rpc.Status`, which OTLP answers with.
#[derive(Clone, PartialEq, Eq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// `google.protobuf.Any`, a detail of a status.
#[derive(Clone, PartialEq, Eq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`, with its `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Eq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    delay: Option<Delay>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The delay requested by `grpc-status-details-bin`.
#[must_use]
pub(crate) fn grpc_wait(details: &str) -> Option<Duration> {
    let bytes = STANDARD_NO_PAD.decode(details.trim_end_matches('=')).ok()?;
    let status = RpcStatus::decode(bytes.as_slice()).ok()?;
    let mut details = status.details.iter();
    let info = details.find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.delay.unwrap_or_default();
    let seconds = Duration::from_secs(u64::try_from(delay.seconds).unwrap_or(0));
    let nanos = Duration::from_nanos(u64::try_from(delay.nanos).unwrap_or(0));
    Some(seconds.saturating_add(nanos).min(LONGEST_WAIT))
}

/// The outcome of a gRPC status (github.com/grpc/grpc/blob/master/doc/statuscodes.md): those that
/// OTLP lists as retryable are retried. `RESOURCE_EXHAUSTED` with a retry delay means the server's
/// load; without one it means the message.
#[must_use]
pub(crate) fn of_grpc_status(code: u32, wait: Option<Duration>, message: &str) -> Outcome {
    let name = match code {
        0 => return Outcome::delivered(),
        1 => "CANCELLED",
        3 => "INVALID_ARGUMENT",
        4 => "DEADLINE_EXCEEDED",
        5 => "NOT_FOUND",
        7 => "PERMISSION_DENIED",
        8 => "RESOURCE_EXHAUSTED",
        10 => "ABORTED",
        11 => "OUT_OF_RANGE",
        12 => "UNIMPLEMENTED",
        13 => "INTERNAL",
        14 => "UNAVAILABLE",
        15 => "DATA_LOSS",
        16 => "UNAUTHENTICATED",
        _ => "another status",
    };
    let reason = format!("the server answered gRPC status {code}, {name}: {message}");
    match code {
        1 | 4 | 10 | 11 | 14 | 15 => Outcome::Retry { after: wait, reason },
        8 if wait.is_some() => Outcome::Retry { after: wait, reason },
        // The same text for every protocol: the credential is at fault.
        7 => Outcome::Denied { status: Some(403), reason },
        16 => Outcome::Denied { status: Some(401), reason },
        // No pipeline takes profiles, or not yet.
        5 | 12 => Outcome::Denied { status: None, reason },
        _ => Outcome::Refused { status: None, reason },
    }
}

/// Undoes the percent-encoding of `grpc-message`.
#[must_use]
pub(crate) fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = hex.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match byte {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD_NO_PAD;

    use super::{LONGEST_WAIT, Outcome, message_of, of_grpc_status, of_status, percent_decoded};
    use super::{grpc_wait, retry_after, shown};
    use crate::http::secret::Secret;

    #[test]
    fn an_error_of_the_server_that_says_the_request_is_wrong_is_final() {
        let refusal = "rpc error: code = InvalidArgument desc = sample values length mismatch 41 1";
        assert!(matches!(
            of_status(500, None, refusal),
            Outcome::Refused { status: Some(500), .. }
        ));
        // What a process may have chosen is not the server's word.
        for other in ["", "oops", "bad label \"code = InvalidArgument\""] {
            assert!(matches!(of_status(500, None, other), Outcome::Retry { .. }), "{other}");
        }
    }

    #[test]
    fn only_the_network_too_much_and_an_ill_server_are_tried_again() {
        for status in [408, 429, 500, 502, 503, 504] {
            assert!(matches!(of_status(status, None, ""), Outcome::Retry { .. }), "{status}");
        }
        for status in [400, 413, 415, 422] {
            assert!(matches!(of_status(status, None, ""), Outcome::Refused { .. }), "{status}");
        }
        for status in [301, 302, 307, 401, 403, 404, 405, 407] {
            assert!(matches!(of_status(status, None, ""), Outcome::Denied { .. }), "{status}");
        }
        assert_eq!(of_status(204, None, ""), Outcome::delivered());
    }

    #[test]
    fn a_422_that_is_no_fault_of_the_request_is_tried_again() {
        let of = "pushing IngestInput-pprof failed push series with index 0 and id  failed";
        for (error, is_retried) in [
            ("unknown: rpc error: code = Unavailable desc = service is unavailable", true),
            ("unavailable: no instance", true),
            ("deadline_exceeded: context deadline exceeded", true),
            ("invalid_argument: the service is unavailable in this plan", false),
            ("invalid_argument: unknown sample type", false),
            ("invalid labels '{service_name=\"unavailable: x\"}'", false),
            ("", false),
        ] {
            let outcome = of_status(422, None, &format!("unknown: {of}: {error}"));
            assert_eq!(matches!(outcome, Outcome::Retry { .. }), is_retried, "{error}");
            assert_eq!(matches!(outcome, Outcome::Refused { .. }), !is_retried, "{error}");
        }
    }

    #[test]
    fn the_grpc_codes_that_otlp_retries_are_retried() {
        for code in 1..=17 {
            let retried = matches!(of_grpc_status(code, None, ""), Outcome::Retry { .. });
            assert_eq!(retried, [1, 4, 10, 11, 14, 15].contains(&code), "{code}");
        }
        let wait = Some(Duration::from_secs(1));
        assert!(matches!(of_grpc_status(8, wait, ""), Outcome::Retry { .. }));
    }

    #[test]
    fn a_credential_that_grpc_refuses_looks_as_it_does_over_http() {
        for (code, status) in [(5, None), (7, Some(403)), (12, None), (16, Some(401))] {
            let outcome = of_grpc_status(code, None, "");
            assert!(matches!(outcome, Outcome::Denied { status: seen, .. } if seen == status));
        }
        assert!(matches!(of_grpc_status(3, None, ""), Outcome::Refused { .. }));
    }

    #[test]
    fn a_wait_is_seconds_or_a_date_and_bounded() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 60);
        assert_eq!(retry_after(" 7 ", now), Some(Duration::from_secs(7)));
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(retry_after(date, now), Some(Duration::from_secs(60)));
        assert_eq!(retry_after("99999999999", now), Some(LONGEST_WAIT));
        assert_eq!(retry_after("soon", now), None);
        assert_eq!(retry_after(date, SystemTime::now()), Some(Duration::ZERO));
    }

    #[test]
    fn a_wait_of_grpc_is_in_the_details() {
        // Status { code: 8, details: [RetryInfo { retry_delay: 5 s }] }, by hand.
        let mut status = vec![0x08, 8, 0x1a, 46, 0x0a, 40];
        status.extend(b"type.googleapis.com/google.rpc.RetryInfo");
        status.extend([0x12, 2, 0x0a, 0]);
        let base64 = |bytes: &[u8]| STANDARD_NO_PAD.encode(bytes);
        assert_eq!(grpc_wait(&base64(&status)), Some(Duration::ZERO));
        status.truncate(status.len() - 4);
        status.extend([0x12, 4, 0x0a, 2, 0x08, 5]);
        status[3] = 48;
        assert_eq!(grpc_wait(&base64(&status)), Some(Duration::from_secs(5)));
        assert_eq!(grpc_wait(&format!("{}==", base64(&status))), Some(Duration::from_secs(5)));
        for nonsense in ["", "!", "AAAA", "//////"] {
            assert_eq!(grpc_wait(nonsense), None);
        }
    }

    #[test]
    fn a_port_with_tls_keeps_what_it_was_sent_without() {
        let go = "Client sent an HTTP request to an HTTPS server.";
        let nginx = "<title>400 The plain HTTP request was sent to HTTPS port</title>";
        for message in [go, nginx] {
            let Outcome::Denied { reason, .. } = of_status(400, None, message) else {
                panic!("{message}");
            };
            assert!(reason.ends_with("set an address with https://"), "{reason}");
        }
        let quoted = format!("invalid label '{go}'");
        assert!(matches!(of_status(400, None, &quoted), Outcome::Refused { .. }));
    }

    #[test]
    fn the_servers_answer_is_shown_without_what_was_sent() {
        let token = Secret::new("s3cret");
        let body = br#"{"code":"invalid_argument","message":"token s3cret \u001b[2J is bad"}"#;
        let message = message_of(body, false, &[&token]);
        assert!(message.starts_with("invalid_argument: token [secret] "), "{message}");
        assert!(!message.contains('\u{1b}'));
        let long = format!("400: series '{}' has too many labels", "x".repeat(100_000));
        let message = shown(&long, &[]);
        assert!(message.len() < 400 && message.starts_with("400: series"), "{message}");
        assert!(message.ends_with("' has too many labels"), "{message}");
    }

    #[test]
    fn a_percent_that_encodes_nothing_stays() {
        assert_eq!(percent_decoded("a%20b%C3%A4%zz%"), "a bä%zz%");
    }
}
