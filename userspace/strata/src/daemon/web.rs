//! Serves `/metrics`, `/healthz` and `/status`.
//!
//! - A unix socket for root (mode 0660): everything, for `strata status`.
//! - A TCP port for scrapers and probes: `/metrics` and `/healthz`, which name no process. Any user
//!   of the host may take the port first: serving there is tried again until it works.
//!   [`health_port`] has the port, and passes on what is no probe.
//!
//! Invariant: read only, and open to connections at any time. At the limit the oldest connection is
//! dropped for the newest, so that idle ones block no answer. All of it runs on threads of its
//! own.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixListener};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::AbortHandle;

use super::health_port::{self, MOST_CONNECTIONS, PATIENCE};
use super::shared_status::SharedStatus;
use crate::status::metrics;

/// Metrics are put together at most this often, however often they are asked for.
const METRICS_AGE: Duration = Duration::from_millis(200);
/// How often the socket's path is looked at.
const LOOKED_AT: Duration = Duration::from_secs(30);
/// The most connections that are no probes and wait to be taken.
const MOST_PASSED_ON: usize = 64;

/// The unix socket, and the lock that no second daemon gets.
#[derive(Debug)]
pub struct Socket {
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    /// Device and number of what was made there.
    made: (u64, u64),
    _lock: File,
}

impl Socket {
    /// Whether it is still at its path: its directory may have been removed.
    fn is_there(&self) -> bool {
        number_of(&self.path).is_ok_and(|number| number == self.made)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn number_of(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Listens on the unix socket. `None` where it cannot be made, which is no reason not to sample.
///
/// # Errors
/// Another daemon listens there.
pub fn socket(path: &Path) -> Result<Option<Socket>> {
    let made = make(path)?;
    Ok(made.inspect_err(|error| warn_of_none(path, error)).ok())
}

fn warn_of_none(path: &Path, error: &io::Error) {
    tracing::warn!(
        "no status socket at {}: {error}; sampling goes on, `strata status` does not work (metrics.socket sets another path)",
        path.display()
    );
}

/// # Errors
/// Another daemon listens there.
fn make(path: &Path) -> Result<io::Result<Socket>> {
    let lock = match lock(path) {
        Ok(Ok(lock)) => lock,
        Ok(Err(owner)) => bail!(
            "another strata daemon is running{owner}: it serves its status at {} (metrics.socket sets \
             another, \"\" none)",
            path.display()
        ),
        Err(error) => return Ok(Err(error)),
    };
    let bound = bind(path).and_then(|listener| Ok((listener, number_of(path)?)));
    Ok(bound.map(|(listener, made)| Socket { listener, path: path.to_owned(), made, _lock: lock }))
}

/// A lock beside the socket, which only its owner can open; else the holder: ` (pid 7)`.
fn lock(path: &Path) -> io::Result<Result<File, String>> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(name)?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)?;
            write!(file, "{}", std::process::id())?;
            Ok(Ok(file))
        }
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut text = String::new();
            file.take(20).read_to_string(&mut text)?;
            let owner = text.parse().map(|pid: u32| format!(" (pid {pid})"));
            Ok(Err(owner.unwrap_or_default()))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    // An existing socket is of a daemon that has ended: the lock is ours.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o660))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves on threads of its own until the process ends.
pub fn start(
    socket: Option<Socket>,
    metrics: Option<SocketAddr>,
    status: Arc<SharedStatus>,
) -> Result<()> {
    if socket.is_none() && metrics.is_none() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the status cannot be served")?;
    let (others, connections) = channel(MOST_PASSED_ON);
    if let Some(address) = metrics {
        health_port::start(address, status.clone(), others)
            .context("a thread cannot be started")?;
    }
    let serve = move || {
        runtime.block_on(async move {
            let from_socket = serve_socket(socket, status.clone(), LOOKED_AT);
            tokio::join!(from_socket, serve_port(connections, status));
        });
    };
    std::thread::Builder::new()
        .name("status".into())
        .spawn(serve)
        .context("a thread cannot be started")?;
    Ok(())
}

/// Where the socket is not at its path any more, it is made anew.
async fn serve_socket(socket: Option<Socket>, status: Arc<SharedStatus>, looked_at: Duration) {
    let Some(mut socket) = socket else { return };
    loop {
        if let Err(error) = serve_until_gone(&socket, &status, looked_at).await {
            tracing::warn!("no status socket: {error}");
            return;
        }
        let path = socket.path.clone();
        tracing::warn!("the status socket at {} was removed: making it anew", path.display());
        // The lock went with its directory.
        drop(socket);
        let mut known = String::new();
        socket = loop {
            match make(&path) {
                Ok(Ok(socket)) => break socket,
                Ok(Err(error)) => {
                    // Once: it may be so for days.
                    if known != error.to_string() {
                        warn_of_none(&path, &error);
                        known = error.to_string();
                    }
                    tokio::time::sleep(looked_at).await;
                }
                Err(error) => {
                    tracing::warn!("no status socket: {error}");
                    return;
                }
            }
        };
        if !known.is_empty() {
            tracing::info!("the status socket is at {} again", path.display());
        }
    }
}

async fn serve_until_gone(
    socket: &Socket,
    status: &Arc<SharedStatus>,
    looked_at: Duration,
) -> io::Result<()> {
    let listener = socket.listener.try_clone().and_then(UnixListener::from_std)?;
    let mut open = Connections::default();
    let mut look = tokio::time::interval(looked_at);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let accepted = accepted.map(|(stream, _)| stream);
                open.take(accepted, Answers { status: status.clone(), cached: None }).await;
            }
            _ = look.tick() => if !socket.is_there() {
                return Ok(());
            },
        }
    }
}

/// What comes to the TCP port and is no probe.
async fn serve_port(mut connections: Receiver<std::net::TcpStream>, status: Arc<SharedStatus>) {
    let cached = Arc::new(Mutex::new(None));
    let mut open = Connections::default();
    while let Some(stream) = connections.recv().await {
        let answers = Answers { status: status.clone(), cached: Some(cached.clone()) };
        open.take(TcpStream::from_std(stream), answers).await;
    }
}

/// The connections of one listener, the oldest first.
#[derive(Default)]
struct Connections {
    open: VecDeque<AbortHandle>,
}

impl Connections {
    async fn take<S>(&mut self, accepted: io::Result<S>, answers: Answers)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                // Possibly out of descriptors: closing connections frees some.
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                return;
            }
        };
        self.open.retain(|connection| !connection.is_finished());
        if self.open.len() >= MOST_CONNECTIONS
            && let Some(oldest) = self.open.pop_front()
        {
            oldest.abort();
        }
        self.open.push_back(tokio::spawn(serve(stream, answers)).abort_handle());
        // In a flood the newcomer is looked at before the next one is accepted.
        tokio::task::yield_now().await;
    }
}

async fn serve<S>(stream: S, answers: Answers)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = answers.to(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(16 << 10)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // An error means that the client has gone.
    let _ = tokio::time::timeout(PATIENCE, connection).await;
}

/// The last metrics text, and its time.
type LastMetrics = Mutex<Option<(Instant, Bytes)>>;

/// The answers of one listener.
struct Answers {
    status: Arc<SharedStatus>,
    /// For the TCP port, which any user may connect to: the last metrics, and no status.
    cached: Option<Arc<LastMetrics>>,
}

impl Answers {
    fn to(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n", "text/plain");
        }
        match (request.uri().path(), &self.cached) {
            ("/metrics", _) => text(StatusCode::OK, self.metrics(), "text/plain; version=0.0.4"),
            ("/healthz", _) => match self.status.health() {
                Ok(()) => {
                    let body = self.status.with_disks(|disks| format!("ok\n{disks}"));
                    text(StatusCode::OK, body, "text/plain")
                }
                Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"), "text/plain"),
            },
            ("/status", None) => {
                let status = serde_json::json!(self.status.status());
                text(StatusCode::OK, format!("{status}\n"), "application/json")
            }
            ("/status", Some(_)) => {
                let why = "the status names processes: it is on the unix socket (metrics.socket)\n";
                text(StatusCode::FORBIDDEN, why, "text/plain")
            }
            (_, cached) => {
                let status = if cached.is_none() { " and /status" } else { "" };
                let known = format!("there are /metrics, /healthz{status}\n");
                text(StatusCode::NOT_FOUND, known, "text/plain")
            }
        }
    }

    fn metrics(&self) -> Bytes {
        let Some(cached) = &self.cached else { return metrics::text(&self.status.status()).into() };
        let mut cached = cached.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((made, text)) if made.elapsed() < METRICS_AGE => text.clone(),
            _ => {
                let text = Bytes::from(metrics::text(&self.status.status()));
                *cached = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_socket_is_roots_and_a_second_daemon_does_not_get_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run").join("status.sock");
        let first = socket(&path).expect("no other daemon").expect("a folder of our own");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let second = socket(&path).expect_err("the first one has it").to_string();
        assert!(second.contains("another strata daemon"), "{second}");
        drop(first);
        assert!(!path.exists());
        // A socket left by a killed daemon is replaced.
        std::fs::write(&path, "").expect("a file");
        assert!(socket(&path).expect("the lock is free").is_some());
    }

    #[test]
    fn a_socket_whose_directory_was_removed_is_made_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run").join("status.sock");
        let made = socket(&path).expect("no other daemon");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let queues = strata_export::Queues::start(Vec::new(), strata_export::Clock::real());
            let queues = Arc::new(queues.await.expect("no exporters"));
            let status = Arc::new(SharedStatus::new(Arc::default(), queues));
            tokio::spawn(serve_socket(made, status, Duration::from_millis(20)));
            for _ in 0..2 {
                while tokio::net::UnixStream::connect(&path).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                std::fs::remove_dir_all(path.parent().expect("one")).expect("it is there");
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_costs_the_status_and_no_sample() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().join("status.sock");
        assert!(socket(&path).expect("no other daemon").is_none());
    }
}
