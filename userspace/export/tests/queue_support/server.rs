//! A real HTTP server, on a port of its own that stays the same while it is down.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

/// What the server does with a request that it has read.
#[derive(Clone, Debug)]
pub enum Act {
    Answer(u16, Vec<(&'static str, String)>),
    /// Answers after a while.
    Late(Duration, u16),
    /// Hangs up instead of an answer.
    HangUp,
    /// Never answers.
    Hang,
}

pub fn ok() -> Act {
    Act::Answer(200, Vec::new())
}

#[derive(Clone, Debug)]
pub struct Arrival {
    pub id: Uuid,
    pub authorization: String,
    pub body: Bytes,
    /// Which of several clients sent it, from its header.
    pub child: usize,
    /// Whether it was accepted, and the answer for that written.
    pub is_taken: bool,
}

type Decide = dyn Fn(usize, Uuid) -> Act + Send + Sync;

#[derive(Default)]
pub struct Seen {
    pub arrivals: Vec<Arrival>,
    at_once: usize,
    pub most_at_once: usize,
}

#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    decide: Arc<Mutex<Arc<Decide>>>,
    tls: Option<TlsAcceptor>,
    running: Arc<Mutex<Option<JoinHandle<()>>>>,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Server {
    /// Has a port, and does not listen yet.
    pub async fn down() -> Self {
        Self::with_tls(None).await
    }

    pub async fn up() -> Self {
        let server = Self::down().await;
        server.rise().await;
        server
    }

    pub async fn with_tls(tls: Option<TlsAcceptor>) -> Self {
        let address = listener("127.0.0.1:0".parse().unwrap()).local_addr().unwrap();
        let decide: Arc<Decide> = Arc::new(|_, _| ok());
        Self {
            address,
            seen: Arc::default(),
            decide: Arc::new(Mutex::new(decide)),
            tls,
            running: Arc::default(),
            connections: Arc::default(),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on it does so with its nth request (counted from 0) and this batch.
    pub fn act(&self, decide: impl Fn(usize, Uuid) -> Act + Send + Sync + 'static) {
        *self.decide.lock().unwrap() = Arc::new(decide);
    }

    pub async fn rise(&self) {
        let listener = listener(self.address);
        let server = self.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = server.clone();
                let task = tokio::spawn(async move {
                    match serving.tls.clone() {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serving.serve(stream).await;
                            }
                        }
                        None => serving.serve(stream).await,
                    }
                });
                server.connections.lock().unwrap().push(task);
            }
        });
        *self.running.lock().unwrap() = Some(task);
    }

    /// The listener and every connection are closed.
    pub async fn fall(&self) {
        let task = self.running.lock().unwrap().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
        let connections = std::mem::take(&mut *self.connections.lock().unwrap());
        for connection in connections {
            connection.abort();
            let _ = connection.await;
        }
    }

    pub fn arrivals(&self) -> Vec<Arrival> {
        self.seen.lock().unwrap().arrivals.clone()
    }

    /// The ids in the order they came.
    pub fn ids(&self) -> Vec<Uuid> {
        self.arrivals().into_iter().map(|arrival| arrival.id).collect()
    }

    pub fn most_at_once(&self) -> usize {
        self.seen.lock().unwrap().most_at_once
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = service_fn(|request: Request<Incoming>| self.clone().answer(request));
        // A client that hangs up, or is hung up on, is part of some tests.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, String> {
        let (head, body) = request.into_parts();
        let text =
            |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let id = Uuid::parse_str(&text("idempotency-key").unwrap()).unwrap();
        // A client may be killed while it sends: then nothing arrived.
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let number = {
            let mut seen = self.seen.lock().unwrap();
            seen.arrivals.push(Arrival {
                id,
                authorization: text("authorization").unwrap_or_default(),
                body,
                child: text("x-child").map_or(0, |text| text.parse().unwrap()),
                is_taken: false,
            });
            seen.at_once += 1;
            seen.most_at_once = seen.most_at_once.max(seen.at_once);
            seen.arrivals.len() - 1
        };
        let _leaving = Leaving(Arc::clone(&self.seen));
        let act = self.decide.lock().unwrap().clone()(number, id);
        let (status, headers) = match act {
            Act::Answer(status, headers) => (status, headers),
            Act::Late(wait, status) => {
                tokio::time::sleep(wait).await;
                (status, Vec::new())
            }
            Act::HangUp => return Err("as the test wants".to_owned()),
            Act::Hang => std::future::pending().await,
        };
        self.seen.lock().unwrap().arrivals[number].is_taken = status < 300;
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(name, value);
        }
        Ok(response.body(Full::default()).unwrap())
    }
}

/// Counts a request as ended, however it ends.
struct Leaving(Arc<Mutex<Seen>>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.lock().unwrap().at_once -= 1;
    }
}

/// A connection of another test may have the port of a server that was away.
fn listener(address: SocketAddr) -> TcpListener {
    let bound = || {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(64)
    };
    for _ in 0..200 {
        match bound() {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            outcome => return outcome.unwrap(),
        }
    }
    panic!("{address} stays in use")
}
