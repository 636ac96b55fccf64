//! `/metrics`, `/healthz` and `/status` on a loopback port.
//!
//! Read only, and bounded: few connections at a time, small requests, no bodies.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::board::Board;

const MOST_CONNECTIONS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(2);

/// Binds; serving begins with [`serve`].
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Answers until the task is ended.
pub async fn serve(listener: TcpListener, board: Arc<Board>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, perhaps: others may give some back.
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let board = board.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(&board, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .max_buf_size(16 << 10)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever asked has gone.
            let _ = tokio::time::timeout(PATIENCE, connection).await;
            drop(permit);
        });
    }
}

fn answer(board: &Board, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned(), "text/plain");
    }
    match request.uri().path() {
        "/metrics" => text(StatusCode::OK, board.metrics(), "text/plain; version=0.0.4"),
        "/healthz" => match board.health() {
            Ok(()) => text(StatusCode::OK, "ok\n".to_owned(), "text/plain"),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"), "text/plain"),
        },
        "/status" => text(StatusCode::OK, format!("{}\n", board.status()), "application/json"),
        _ => text(
            StatusCode::NOT_FOUND,
            "there are /metrics, /healthz and /status\n".to_owned(),
            "text/plain",
        ),
    }
}

fn text(status: StatusCode, body: String, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
