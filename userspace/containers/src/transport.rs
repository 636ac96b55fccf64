//! HTTP and unary gRPC calls to one server, each in bounded time and memory.
//!
//! Invariant: no redirect is followed, no proxy is used, nothing is decompressed, and an answer
//! over its bound is rejected. A server's error text is truncated and made inert.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use http_body_util::BodyExt;
use prost::Message;
use reqwest::Url;
use reqwest::redirect::Policy;

use crate::trust::{self, Trust};

/// Bytes of an answer's headers over HTTP/2; HTTP/1 has a bound of its own.
const LONGEST_HEADERS: u32 = 16 << 10;
/// The most bytes kept of a failure's text.
const LONGEST_MESSAGE: usize = 300;

/// `UNIMPLEMENTED` of gRPC: the server has no such service.
const UNIMPLEMENTED: u32 = 12;
/// `NOT_FOUND` of gRPC.
const NOT_FOUND: u32 = 5;

/// Why a request has no answer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("{0}")]
    Setup(String),
    #[error("{0}")]
    Connection(String),
    #[error("an answer of HTTP status {0}")]
    Status(u16),
    #[error("the kubelet does not let this service account read its pods (HTTP status {0})")]
    Forbidden(u16),
    #[error("an answer of more than {0} bytes")]
    TooLarge(usize),
    #[error("an answer that cannot be read: {0}")]
    Malformed(String),
    #[error("gRPC status {code}: {message}")]
    Grpc { code: u32, message: String },
}

impl Failure {
    pub fn setup(error: &dyn Error) -> Self {
        Self::Setup(shown(&error.to_string()))
    }

    pub fn malformed(error: &dyn std::fmt::Display) -> Self {
        Self::Malformed(shown(&error.to_string()))
    }

    /// The server works, and has no such object.
    pub fn is_no(&self) -> bool {
        match self {
            Self::Status(status) => *status == 404,
            Self::Grpc { code, .. } => *code == NOT_FOUND,
            _ => false,
        }
    }

    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Grpc { code: UNIMPLEMENTED, .. })
    }
}

fn shown(text: &str) -> String {
    strata_metadata::text::value(text, LONGEST_MESSAGE).map(|(text, _)| text).unwrap_or_default()
}

/// A connection to one server.
pub(crate) struct Transport {
    http: reqwest::Client,
    base: String,
    timeout: Duration,
}

impl Transport {
    /// A server on a socket of this host; `grpc` is HTTP/2 without asking.
    pub fn on_socket(path: &Path, grpc: bool, timeout: Duration) -> Result<Self, Failure> {
        let builder = builder(&Trust::Nobody, timeout)?.unix_socket(path.to_owned());
        let builder = if grpc {
            builder.http2_prior_knowledge().http2_max_header_list_size(LONGEST_HEADERS)
        } else {
            builder.http1_only()
        };
        let http = builder.build().map_err(failed)?;
        Ok(Self { http, base: "http://localhost".to_owned(), timeout })
    }

    pub fn on_network(url: &str, trust: &Trust<'_>, timeout: Duration) -> Result<Self, Failure> {
        let http = builder(trust, timeout)?.http1_only().build().map_err(failed)?;
        Ok(Self { http, base: url.trim_end_matches('/').to_owned(), timeout })
    }

    /// The body of an answer of status 200.
    pub async fn get(
        &self,
        path: &str,
        bearer: Option<&str>,
        most: usize,
    ) -> Result<Vec<u8>, Failure> {
        let mut request = self.http.get(self.url(path)?);
        if let Some(token) = bearer {
            request = request.bearer_auth(token);
        }
        self.in_time(async {
            let response = request.send().await.map_err(failed)?;
            if response.status() != 200 {
                return Err(Failure::Status(response.status().as_u16()));
            }
            Ok(Body::read(http::Response::from(response).into_body(), most).await?.bytes)
        })
        .await
    }

    /// One unary call: `/package.Service/Method`.
    pub async fn call<Answer: Message + Default>(
        &self,
        method: &str,
        headers: &HeaderMap,
        question: &impl Message,
        most: usize,
    ) -> Result<Answer, Failure> {
        let request = self
            .http
            .post(self.url(method)?)
            .headers(headers.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
            .header(TE, HeaderValue::from_static("trailers"))
            .body(frame(question));
        let (head, body) = self
            .in_time(async {
                let response = request.send().await.map_err(failed)?;
                let (head, body) = http::Response::<reqwest::Body>::from(response).into_parts();
                if head.status != 200 {
                    return Err(Failure::Status(head.status.as_u16()));
                }
                Ok((head, Body::read(body, most).await?))
            })
            .await?;
        // The status is in the trailers, or in the headers of an answer without a body.
        let from =
            if body.trailers.contains_key("grpc-status") { &body.trailers } else { &head.headers };
        let text = |name| from.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match text("grpc-status").parse() {
            Ok(0) => {}
            Ok(code) => {
                return Err(Failure::Grpc { code, message: shown(text("grpc-message")) });
            }
            Err(_) => return Err(Failure::Malformed("it has no gRPC status".to_owned())),
        }
        let message = unframed(&body.bytes)
            .ok_or_else(|| Failure::Malformed("it is not one gRPC message".to_owned()))?;
        Answer::decode(message).map_err(|error| Failure::malformed(&error))
    }

    fn url(&self, path: &str) -> Result<Url, Failure> {
        Url::parse(&format!("{}{path}", self.base)).map_err(|error| Failure::setup(&error))
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let late = Failure::Late(self.timeout);
        tokio::time::timeout(self.timeout, work).await.unwrap_or(Err(late))
    }
}

fn builder(trust: &Trust<'_>, timeout: Duration) -> Result<reqwest::ClientBuilder, Failure> {
    Ok(reqwest::Client::builder()
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        .user_agent(concat!("strata/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(timeout)
        .pool_max_idle_per_host(1)
        .tls_backend_preconfigured(trust::configuration(trust)?))
}

/// A message with the five bytes that gRPC puts before it.
fn frame(message: &impl Message) -> Bytes {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&[0], length.to_be_bytes().as_slice(), &bytes].concat().into()
}

/// The one message, not compressed.
fn unframed(bytes: &[u8]) -> Option<&[u8]> {
    let [0, a, b, c, d, message @ ..] = bytes else { return None };
    let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).ok()?;
    (message.len() == length).then_some(message)
}

struct Body {
    bytes: Vec<u8>,
    trailers: HeaderMap,
}

impl Body {
    async fn read(mut body: reqwest::Body, most: usize) -> Result<Self, Failure> {
        let mut read = Self { bytes: Vec::new(), trailers: HeaderMap::new() };
        while let Some(frame) = body.frame().await {
            match frame.map_err(failed)?.into_data() {
                Ok(data) if data.len() > most.saturating_sub(read.bytes.len()) => {
                    return Err(Failure::TooLarge(most));
                }
                Ok(data) => read.bytes.extend_from_slice(&data),
                Err(frame) => read.trailers = frame.into_trailers().unwrap_or_default(),
            }
        }
        Ok(read)
    }
}

/// What went wrong and why, without the URL.
fn failed(error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Failure::Connection(shown(&text))
}

#[cfg(test)]
mod tests {
    use super::unframed;

    #[test]
    fn a_grpc_answer_is_exactly_one_message() {
        assert_eq!(unframed(&[0, 0, 0, 0, 2, 7, 8]), Some([7, 8].as_slice()));
        assert_eq!(unframed(&[0, 0, 0, 0, 0]), Some([].as_slice()));
        for bytes in [
            [].as_slice(),
            &[0, 0, 0, 0],
            &[1, 0, 0, 0, 2, 7, 8],
            &[0, 0, 0, 0, 2, 7],
            &[0, 0, 0, 0, 2, 7, 8, 9],
            &[0, 255, 255, 255, 255, 7],
        ] {
            assert_eq!(unframed(bytes), None, "{bytes:?}");
        }
    }
}
