//! Sends one batch to one server, once.
//!
//! Invariants: no redirect is followed, so credentials go to the configured server only. An answer
//! costs bounded time and memory: a bounded part of the body is read, and nothing is decompressed.
//! No credential, tenant or header value is in any message.

mod address;
mod otlp_answer;
pub mod outcome;
mod secret;
mod tls;

use std::fmt;
use std::time::{Duration, SystemTime};

use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
    TE,
};
use http_body_util::BodyExt;
use reqwest::redirect::Policy;

use self::otlp_answer::{delivery, grpc_payload};
use crate::backends::otlp::PROTO_RELEASE;
use crate::batch::{Batch, Protocol};
use crate::causes::with_causes;
pub use address::{Address, AddressError};
pub use outcome::{LONGEST_WAIT, Outcome};
pub use secret::Secret;
pub use tls::TlsError;

/// Bytes of an answer that are read.
const LONGEST_ANSWER: usize = 64 << 10;

/// How long the body of an answer may take once its head is there.
const LONGEST_BODY_TIME: Duration = Duration::from_secs(5);

/// How long an unused connection is kept: for what waits already, not for the next period. Servers
/// close theirs after 5 s (Apache) up to 60 s (Datadog's agent, as long as its exporter's period),
/// and a request that they receive while they do is lost.
const LONGEST_UNUSED: Duration = Duration::from_secs(2);

/// Bytes of an answer's headers over HTTP/2; HTTP/1 has a bound of its own.
const LONGEST_HEADERS: u32 = 16 << 10;

/// The batch's id: the same each time the batch is sent.
const BATCH_ID: HeaderName = HeaderName::from_static("idempotency-key");

const TENANT: HeaderName = HeaderName::from_static("x-scope-orgid");

/// An exporter's credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credential {
    #[default]
    None,
    Bearer(Secret),
    Basic {
        user: String,
        password: Secret,
    },
}

/// A server and its connection settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSettings {
    pub address: Address,
    /// Where the server may listen instead, for connections that `address` refuses.
    pub other_address: Option<Address>,
    pub credential: Credential,
    /// `X-Scope-OrgID`.
    pub tenant: Option<Secret>,
    pub headers: Vec<(String, Secret)>,
    /// Certificates in PEM that are trusted in place of the system's.
    pub authorities: Option<Vec<u8>>,
    /// The time limit of a request, without its answer's body.
    pub timeout: Duration,
    pub connect_timeout: Duration,
    /// Whether `HTTPS_PROXY` and its like apply.
    pub environment_proxy: bool,
}

impl EndpointSettings {
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            other_address: None,
            credential: Credential::default(),
            tenant: None,
            headers: Vec::new(),
            authorities: None,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            environment_proxy: true,
        }
    }
}

/// Why there is no client for a destination.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{0:?} is not the name of a header")]
    HeaderName(String),
    #[error("the value of {0} has a character that no header may have")]
    HeaderValue(String),
    #[error("the header {0} is strata's own to set")]
    ReservedHeader(String),
    #[error("the header {0} and a token or password: remove one of them")]
    SecondCredential(String),
    #[error("the HTTP client could not be made: {0}")]
    Client(String),
}

/// Headers that describe the body, or its length.
const RESERVED: [&str; 9] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "grpc-encoding",
    "host",
    "idempotency-key",
    "te",
    "transfer-encoding",
];

/// A connection to one server.
pub struct Client {
    http: reqwest::Client,
    address: Address,
    /// To the server's other address.
    other: Option<Box<Client>>,
    headers: HeaderMap,
    secrets: Vec<Secret>,
    timeout: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Client {
    /// `grpc` means HTTP/2 and nothing else, without asking on a plain connection.
    ///
    /// # Errors
    /// If a header or a certificate is none.
    pub fn new(destination: &EndpointSettings, grpc: bool) -> Result<Self, SetupError> {
        let address = destination.address.clone();
        address.join("/")?;
        let mut builder = reqwest::Client::builder()
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .connect_timeout(destination.connect_timeout)
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(LONGEST_UNUSED)
            .tls_backend_preconfigured(tls::configuration(
                address.is_https(),
                destination.authorities.as_deref(),
                grpc,
            )?);
        builder = if grpc {
            builder.http2_prior_knowledge().http2_max_header_list_size(LONGEST_HEADERS)
        } else {
            builder.http1_only()
        };
        if let Some(path) = address.socket() {
            builder = builder.unix_socket(path.clone()).no_proxy();
        } else if !destination.environment_proxy {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| SetupError::Client(causes(error)))?;
        let (headers, secrets) = headers_of(&http, destination)?;
        let other = destination.other_address.clone().map(|address| {
            let there = EndpointSettings { address, other_address: None, ..destination.clone() };
            Self::new(&there, grpc).map(Box::new)
        });
        let other = other.transpose()?;
        Ok(Self { http, address, other, headers, secrets, timeout: destination.timeout })
    }

    /// Sends the batch once.
    pub async fn send(&self, batch: &Batch) -> Outcome {
        match (self.try_send(batch).await, &self.other) {
            (Ok(outcome), _) => outcome,
            (Err(error), Some(other)) if error.is_connect() => match other.try_send(batch).await {
                Ok(outcome) => outcome,
                // What the settings name is what is to be checked.
                Err(_) => self.failed(error),
            },
            (Err(error), _) => self.failed(error),
        }
    }

    async fn try_send(&self, batch: &Batch) -> Result<Outcome, reqwest::Error> {
        let Ok(url) = self.address.join(&batch.path) else {
            return Ok(Outcome::refused("the batch has no usable path"));
        };
        let mut headers = self.headers.clone();
        let Ok(content_type) = HeaderValue::from_str(&batch.content_type) else {
            return Ok(Outcome::refused("the batch has no usable content type"));
        };
        headers.insert(CONTENT_TYPE, content_type);
        if let Ok(id) = HeaderValue::from_str(&batch.id.to_string()) {
            headers.insert(BATCH_ID, id);
        }
        headers.insert(http::header::USER_AGENT, user_agent(batch.protocol));
        for (name, value) in &batch.headers {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(*name, value);
            }
        }
        match batch.protocol {
            Protocol::OtlpGrpc => {
                headers.insert(TE, HeaderValue::from_static("trailers"));
                headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
                headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
            }
            Protocol::Plain | Protocol::OtlpHttp if batch.gzipped => {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            Protocol::Plain | Protocol::OtlpHttp => {}
        }
        let request = self.http.post(url).headers(headers).body(batch.body.clone());
        let response = match tokio::time::timeout(self.timeout, request.send()).await {
            Ok(response) => response?,
            Err(_) => {
                return Ok(Outcome::retry(format!("no answer within {:?}", self.timeout)));
            }
        };
        let (head, body) = http::Response::<reqwest::Body>::from(response).into_parts();
        let time = match batch.protocol {
            // Until its status arrives, it is unknown whether the batch was stored.
            Protocol::OtlpGrpc => self.timeout,
            Protocol::Plain | Protocol::OtlpHttp => self.timeout.min(LONGEST_BODY_TIME),
        };
        let answer = Answer::read(body, time).await;
        Ok(self.judge(batch.protocol, head.status.as_u16(), &head.headers, &answer))
    }

    fn judge(
        &self,
        protocol: Protocol,
        status: u16,
        headers: &HeaderMap,
        answer: &Answer,
    ) -> Outcome {
        let secrets: Vec<&Secret> = self.secrets.iter().collect();
        let is_delivered = (200..300).contains(&status);
        if is_delivered && text_of(headers, "content-type").starts_with("text/html") {
            return Outcome::Denied {
                status: Some(status),
                reason: format!(
                    "the server answered {status} with a web page, as a login or a proxy does: check \
                     the address"
                ),
            };
        }
        match protocol {
            Protocol::OtlpGrpc if is_delivered => self.judge_grpc(headers, answer, &secrets),
            Protocol::OtlpHttp if is_delivered => delivery(&answer.bytes, &secrets),
            _ => {
                let kind = text_of(headers, "content-type");
                let is_protobuf = kind.starts_with("application/x-protobuf");
                let message = outcome::message_of(&answer.bytes, is_protobuf, &secrets);
                let wait = text_of(headers, RETRY_AFTER.as_str());
                let wait = outcome::retry_after(wait, SystemTime::now());
                outcome::of_status(status, wait, &message)
            }
        }
    }

    /// The status is in the trailers, or in the headers of an answer without a body.
    fn judge_grpc(&self, headers: &HeaderMap, answer: &Answer, secrets: &[&Secret]) -> Outcome {
        let from =
            if answer.trailers.contains_key("grpc-status") { &answer.trailers } else { headers };
        let Ok(code) = text_of(from, "grpc-status").parse() else {
            // Whether it was stored is unknown.
            return Outcome::retry("the answer ended without a gRPC status");
        };
        if code == 0 {
            return delivery(grpc_payload(&answer.bytes).unwrap_or_default(), secrets);
        }
        let message = outcome::percent_decoded(text_of(from, "grpc-message"));
        let wait = outcome::grpc_wait(text_of(from, "grpc-status-details-bin"));
        outcome::of_grpc_status(code, wait, &outcome::shown(&message, secrets))
    }

    fn failed(&self, error: reqwest::Error) -> Outcome {
        let is_ours = error.is_builder();
        let secrets: Vec<&Secret> = self.secrets.iter().collect();
        let causes = causes(error);
        let advice = advice(&causes);
        let is_denied = causes.contains("invalid peer certificate");
        let reason = match advice {
            Some(advice) => format!("{causes}: {advice}"),
            None => causes,
        };
        let reason = outcome::shown(&reason, &secrets);
        if is_ours {
            Outcome::refused(reason)
        } else if is_denied {
            Outcome::Denied { status: None, reason }
        } else {
            Outcome::retry(reason)
        }
    }
}

/// What to do about an error below HTTP, where its text does not say that.
fn advice(causes: &str) -> Option<&'static str> {
    let known = [
        (
            "CaUsedAsEndEntity",
            "the server's own certificate is a CA's: it needs one that a CA has signed",
        ),
        ("InvalidContentType", "that port has no TLS: set an address with http://"),
        (
            "frame with invalid size",
            "that port has no gRPC: set protocol = \"http\" for one with HTTP",
        ),
        (
            "invalid HTTP version parsed",
            "that port has no HTTP/1: set protocol = \"grpc\" for one with gRPC",
        ),
    ];
    known.iter().find(|(text, _)| causes.contains(text)).map(|(_, advice)| *advice)
}

/// The beginning of an answer's body, and its trailers if it ended.
struct Answer {
    bytes: Vec<u8>,
    trailers: HeaderMap,
}

impl Answer {
    /// Reads until the end, the bound, an error or the time limit, and returns what arrived.
    async fn read(mut body: reqwest::Body, time: Duration) -> Self {
        let mut answer = Self { bytes: Vec::new(), trailers: HeaderMap::new() };
        // Returning drops the connection, which ends an endless answer.
        let _ = tokio::time::timeout(time, async {
            while let Some(Ok(frame)) = body.frame().await {
                match frame.into_data() {
                    Ok(data) => {
                        let room = LONGEST_ANSWER.saturating_sub(answer.bytes.len());
                        answer.bytes.extend(data.iter().take(room));
                        if data.len() > room {
                            break;
                        }
                    }
                    Err(frame) => answer.trailers = frame.into_trailers().unwrap_or_default(),
                }
            }
        })
        .await;
        answer
    }
}

fn text_of<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn user_agent(protocol: Protocol) -> HeaderValue {
    let own = concat!("strata/", env!("CARGO_PKG_VERSION"));
    let text = match protocol {
        Protocol::Plain => own.to_owned(),
        Protocol::OtlpHttp | Protocol::OtlpGrpc => format!("{own} otlp-proto/{PROTO_RELEASE}"),
    };
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("strata"))
}

/// The headers of every request, and every text in them that must never be shown.
fn headers_of(
    http: &reqwest::Client,
    destination: &EndpointSettings,
) -> Result<(HeaderMap, Vec<Secret>), SetupError> {
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    for (name, value) in &destination.headers {
        let known = HeaderName::from_bytes(name.as_bytes());
        let known = known.map_err(|_| SetupError::HeaderName(name.clone()))?;
        if RESERVED.contains(&known.as_str()) {
            return Err(SetupError::ReservedHeader(name.clone()));
        }
        if known == AUTHORIZATION && destination.credential != Credential::None {
            return Err(SetupError::SecondCredential(name.clone()));
        }
        headers.append(known, hidden(name, value)?);
        secrets.push(value.clone());
    }
    if let Some(tenant) = &destination.tenant {
        headers.insert(TENANT, hidden("the tenant", tenant)?);
        secrets.push(tenant.clone());
    }
    let request = http.post(destination.address.join("/")?);
    let request = match &destination.credential {
        Credential::None => return Ok((headers, secrets)),
        Credential::Bearer(token) => {
            secrets.push(token.clone());
            request.bearer_auth(token.reveal())
        }
        Credential::Basic { user, password } => {
            secrets.push(password.clone());
            request.basic_auth(user, Some(password.reveal()))
        }
    };
    let name = "the credential";
    let made = request.build().map_err(|_| SetupError::HeaderValue(name.to_owned()))?;
    if let Some(value) = made.headers().get(AUTHORIZATION) {
        let encoded = value.to_str().ok().and_then(|text| text.split_once(' '));
        secrets.extend(encoded.map(|(_, encoded)| Secret::new(encoded)));
        headers.insert(AUTHORIZATION, hidden(name, &Secret::new(value.to_str().unwrap_or("")))?);
    }
    Ok((headers, secrets))
}

fn hidden(name: &str, value: &Secret) -> Result<HeaderValue, SetupError> {
    let mut value = HeaderValue::from_str(value.reveal())
        .map_err(|_| SetupError::HeaderValue(name.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// What went wrong and why, without the URL.
fn causes(error: reqwest::Error) -> String {
    with_causes(&error.without_url())
}
