//! A real HTTP server, on a port, over TLS or on a socket, that keeps its requests and returns the
//! answers that a test sets.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
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

#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Asked {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The body without its gzip.
    pub fn unzipped(&self) -> Vec<u8> {
        unzipped(&self.body)
    }
}

pub fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut plain).unwrap();
    plain
}

pub type Body = BoxBody<Bytes, Infallible>;
type Answerer = dyn Fn() -> Response<Body> + Send + Sync;

pub fn answer(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Response<Body> {
    let mut made = Response::builder().status(status);
    for (name, value) in headers {
        made = made.header(*name, *value);
    }
    made.body(Full::new(body.into()).boxed()).unwrap()
}

/// A gRPC answer: a message, then the status in trailers.
pub fn grpc_answer(message: &[u8], status: &str, text: &str) -> Response<Body> {
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().unwrap());
    trailers.insert("grpc-message", text.parse().unwrap());
    let frames = [Frame::data(Bytes::from(framed)), Frame::trailers(trailers)];
    let body = StreamBody::new(Frames(frames.map(Ok).into_iter().collect()));
    Response::builder()
        .header("content-type", "application/grpc")
        .body(BodyExt::boxed(body))
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

#[derive(Clone)]
pub struct Server {
    asked: Arc<Mutex<Vec<Asked>>>,
    answerer: Arc<Answerer>,
}

impl Server {
    fn new(answerer: impl Fn() -> Response<Body> + Send + Sync + 'static) -> Self {
        Self { asked: Arc::default(), answerer: Arc::new(answerer) }
    }

    pub async fn start(
        answerer: impl Fn() -> Response<Body> + Send + Sync + 'static,
    ) -> (Self, SocketAddr) {
        Self::start_with(None, answerer).await
    }

    pub async fn start_with(
        tls: Option<TlsAcceptor>,
        answerer: impl Fn() -> Response<Body> + Send + Sync + 'static,
    ) -> (Self, SocketAddr) {
        let server = Self::new(answerer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = accepting.clone();
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                server.serve(stream).await;
                            }
                        }
                        None => server.serve(stream).await,
                    }
                });
            }
        });
        (server, address)
    }

    pub fn start_on_socket(
        path: &Path,
        answerer: impl Fn() -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        let server = Self::new(answerer);
        let listener = UnixListener::bind(path).unwrap();
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = accepting.clone();
                tokio::spawn(async move { server.serve(stream).await });
            }
        });
        server
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = service_fn(|request: http::Request<Incoming>| {
            let server = self.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                server.asked.lock().unwrap().push(Asked {
                    path: head.uri.path().to_owned(),
                    query: head.uri.query().unwrap_or_default().to_owned(),
                    headers: head.headers,
                    body,
                });
                Ok::<_, Infallible>((server.answerer)())
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

    /// The only request there was.
    pub fn only(&self) -> Asked {
        let mut asked = self.asked();
        assert_eq!(asked.len(), 1);
        asked.remove(0)
    }
}
