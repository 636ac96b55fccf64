//! A real HTTP server, on a port over TLS or on a socket, that records its requests and returns the
//! answers that a test sets.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Asked {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub type Body = BoxBody<Bytes, Infallible>;
type Answerer = dyn Fn(&Asked) -> Response<Body> + Send + Sync;

pub fn answer(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Response<Body> {
    let mut made = Response::builder().status(status);
    for (name, value) in headers {
        made = made.header(*name, *value);
    }
    made.body(Full::new(body.into()).boxed()).unwrap()
}

/// A gRPC answer: a message, then the status in trailers.
pub fn grpc_answer(message: &[u8]) -> Response<Body> {
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    stream([Frame::data(Bytes::from(framed)), Frame::trailers(trailers)])
}

/// A gRPC answer that is a failure: without a body, with its status in the headers.
pub fn grpc_failure(code: u32, message: &str) -> Response<Body> {
    let headers = [
        ("content-type", "application/grpc"),
        ("grpc-status", &code.to_string()),
        ("grpc-message", message),
    ];
    answer(200, &headers, "")
}

/// A head and a body that never comes.
pub fn never() -> Response<Body> {
    Response::builder().header("content-length", "10").body(BodyExt::boxed(Never)).unwrap()
}

fn stream(frames: [Frame<Bytes>; 2]) -> Response<Body> {
    let frames = Frames(frames.map(Ok).into_iter().collect());
    Response::builder()
        .header("content-type", "application/grpc")
        .body(BodyExt::boxed(StreamBody::new(frames)))
        .unwrap()
}

struct Frames(std::collections::VecDeque<Result<Frame<Bytes>, Infallible>>);

impl futures_core::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

struct Never;

impl hyper::body::Body for Never {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Pending
    }
}

/// A certificate of its own authority, and the authority's in PEM.
pub fn tls() -> (TlsAcceptor, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let configuration = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(configuration)), made.cert.pem())
}

#[derive(Clone)]
pub struct Server {
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
    answerer: Arc<Answerer>,
}

impl Server {
    fn new(answerer: impl Fn(&Asked) -> Response<Body> + Send + Sync + 'static) -> Self {
        Self { asked: Arc::default(), connections: Arc::default(), answerer: Arc::new(answerer) }
    }

    pub async fn on_port(
        tls: TlsAcceptor,
        answerer: impl Fn(&Asked) -> Response<Body> + Send + Sync + 'static,
    ) -> (Self, SocketAddr) {
        let server = Self::new(answerer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, tls) = (accepting.clone(), tls.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        server.serve(stream).await;
                    }
                });
            }
        });
        (server, address)
    }

    pub fn on_socket(
        path: &Path,
        answerer: impl Fn(&Asked) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        let server = Self::new(answerer);
        let listener = UnixListener::bind(path).unwrap();
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(accepting.clone().serve(stream));
            }
        });
        server
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let service = service_fn(|request: http::Request<Incoming>| {
            let server = self.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let path = head.uri.path().to_owned();
                let asked = Asked { path, headers: head.headers, body };
                server.asked.lock().unwrap().push(asked.clone());
                Ok::<_, Infallible>((server.answerer)(&asked))
            }
        });
        // A client that hangs up is part of some tests.
        let _ = auto::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn paths(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.path).collect()
    }
}
