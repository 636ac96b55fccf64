//! The TCP port of probes and scrapers: `/healthz` is answered here, every other request is passed on
//! to [`web`](super::web).
//!
//! Invariant: an answer to `/healthz` waits for nothing else in the daemon. Its thread allocates
//! nothing for it, because the heap's lock may be held by a thread that has no CPU for a second; it
//! takes no other lock either; and it has a CPU within [`DEADLINE`], however many programs want one,
//! for at most [`RUN_TIME`] of each [`PERIOD`], however many connections there are.
//!
//! At the limit the oldest connection is dropped for the newest, so that idle ones block no answer.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;

use super::shared_status::{DISKS_BYTES, SharedStatus};
use crate::priority;

const RUN_TIME: Duration = Duration::from_millis(2);
const DEADLINE: Duration = Duration::from_millis(20);
const PERIOD: Duration = Duration::from_millis(40);

/// The most open connections; those that are passed on do not count.
pub const MOST_CONNECTIONS: usize = 128;
/// The time limit of a connection, from its beginning to its answer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// When a port that another program has is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// Connections that are accepted before those that are there are looked at.
const AT_ONCE: usize = 32;
/// Connections that the kernel keeps until they are accepted: further ones would be tried again by
/// their clients after a second.
const BACKLOG: i32 = 4096;

const GET: &[u8] = b"GET /healthz ";
const HEAD: &[u8] = b"HEAD /healthz ";
/// Every request is longer, and tells from so many bytes whose it is.
const ENOUGH: usize = HEAD.len();

/// Serves the port on a thread of its own until the process ends; `others` gets the connections with
/// other requests, of which nothing has been read.
pub fn start(
    address: SocketAddr,
    status: Arc<SharedStatus>,
    others: Sender<TcpStream>,
) -> io::Result<()> {
    let serve = move || {
        let listener = listen(address, &status);
        if let Err(error) = priority::set_deadline(RUN_TIME, DEADLINE, PERIOD) {
            // Nothing is wrong: answers take longer while the host is overloaded.
            tracing::debug!(%error, "no scheduling by deadline for health probes");
        }
        Port { listener, status, others, open: Vec::with_capacity(MOST_CONNECTIONS) }.serve();
    };
    std::thread::Builder::new().name("health".into()).spawn(serve).map(drop)
}

/// Tries until the port is free.
fn listen(address: SocketAddr, status: &SharedStatus) -> TcpListener {
    let listener = loop {
        let error = match bind(address) {
            Ok(listener) => break listener,
            Err(error) => error,
        };
        if status.metrics_trouble().is_none() {
            tracing::warn!(
                "metrics are not served at {address} yet: {error}. Sampling goes on; it is tried \
                 again every {} s (metrics.address sets another, \"\" none)",
                AGAIN.as_secs()
            );
        }
        status.set_metrics_trouble(Some(format!("{address}: {error}")));
        std::thread::sleep(AGAIN);
    };
    if status.metrics_trouble().is_some() {
        tracing::info!("metrics are served at {address}");
        status.set_metrics_trouble(None);
    }
    listener
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    // SAFETY: the descriptor is a listening socket; a second call changes its backlog only.
    if unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(listener)
}

/// A connection that has not asked yet, or has its answer and is still open at the other end.
struct Open {
    stream: TcpStream,
    since: Instant,
    is_answered: bool,
}

/// What becomes of a connection that is readable.
enum Next {
    Keep,
    Close,
    PassOn,
}

struct Port {
    listener: TcpListener,
    status: Arc<SharedStatus>,
    others: Sender<TcpStream>,
    /// The oldest first.
    open: Vec<Open>,
}

impl Port {
    fn serve(mut self) {
        let nothing = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let mut polled = [nothing; MOST_CONNECTIONS + 1];
        loop {
            let watch = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            polled[0] = watch(self.listener.as_raw_fd());
            for (slot, open) in polled[1..].iter_mut().zip(&self.open) {
                *slot = watch(open.stream.as_raw_fd());
            }
            let count = self.open.len();
            wait(&mut polled[..=count], self.oldest_ends());
            // From the back: those that are removed move only what was looked at.
            for at in (0..count).rev() {
                if polled.get(at + 1).is_some_and(|slot| slot.revents != 0) {
                    self.look_at(at);
                }
            }
            let now = Instant::now();
            self.open.retain(|open| now.saturating_duration_since(open.since) < PATIENCE);
            if polled[0].revents != 0 {
                self.accept();
            }
        }
    }

    fn oldest_ends(&self) -> Option<Instant> {
        self.open.first().and_then(|open| open.since.checked_add(PATIENCE))
    }

    fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Possibly out of descriptors: closing a connection frees one.
                    if !self.open.is_empty() {
                        self.open.remove(0);
                    }
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() || readable_from(&stream, ENOUGH).is_err() {
                continue;
            }
            if self.open.len() >= MOST_CONNECTIONS {
                self.open.remove(0);
            }
            self.open.push(Open { stream, since: Instant::now(), is_answered: false });
        }
    }

    fn look_at(&mut self, at: usize) {
        let Some(open) = self.open.get_mut(at) else { return };
        match next(open, &self.status) {
            Next::Keep => {}
            Next::Close => drop(self.open.remove(at)),
            Next::PassOn => {
                let Open { stream, .. } = self.open.remove(at);
                if readable_from(&stream, 1).is_ok() {
                    // Without a receiver the daemon is ending. Where it is slower than what comes, the
                    // connection is closed.
                    let _ = self.others.try_send(stream);
                }
            }
        }
    }
}

fn next(open: &mut Open, status: &SharedStatus) -> Next {
    let mut bytes = [0; 4096];
    if open.is_answered {
        // The rest of the request, until the other end closes: closing first would reset the
        // connection, and the answer with it.
        return match open.stream.read(&mut bytes) {
            Ok(length) if length > 0 => Next::Keep,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Keep,
            _ => Next::Close,
        };
    }
    let mut start = [0; ENOUGH];
    match open.stream.peek(&mut start) {
        Ok(length) if length == ENOUGH => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Keep,
        // Closed before it has asked.
        _ => return Next::Close,
    }
    let with_body = start.starts_with(GET);
    if !with_body && start != *HEAD {
        return Next::PassOn;
    }
    let answered = open
        .stream
        .read(&mut bytes)
        .and_then(|_| readable_from(&open.stream, 1))
        .and_then(|()| answer(&mut open.stream, status, with_body))
        .and_then(|()| open.stream.shutdown(Shutdown::Write));
    open.is_answered = true;
    if answered.is_ok() { Next::Keep } else { Next::Close }
}

fn answer(stream: &mut TcpStream, status: &SharedStatus, with_body: bool) -> io::Result<()> {
    let (mut body, mut whole) = ([0; DISKS_BYTES + 128], [0; DISKS_BYTES + 512]);
    let mut text = io::Cursor::new(&mut body[..]);
    let code = match status.stuck_for() {
        None => {
            text.write_all(b"ok\n")?;
            status.with_disks(|disks| text.write_all(disks.as_bytes()))?;
            "200 OK"
        }
        Some(time) => {
            writeln!(text, "the sampling loop has not turned for {} s", time.as_secs())?;
            "503 Service Unavailable"
        }
    };
    let length = usize::try_from(text.position()).unwrap_or(0);
    let mut out = io::Cursor::new(&mut whole[..]);
    write!(
        out,
        "HTTP/1.1 {code}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n"
    )?;
    if with_body {
        out.write_all(body.get(..length).unwrap_or_default())?;
    }
    let length = usize::try_from(out.position()).unwrap_or(0);
    // So few bytes always fit into the buffer of a new connection.
    stream.write_all(whole.get(..length).unwrap_or_default())
}

/// The stream is reported as readable when it has so many bytes, or none will follow.
fn readable_from(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    // SAFETY: SO_RCVLOWAT takes an int, which is read during the call.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until one of these is readable, or until then.
fn wait(polled: &mut [libc::pollfd], until: Option<Instant>) {
    let timeout = until.map_or(-1, |until| {
        let left = until.saturating_duration_since(Instant::now()).as_millis() + 1;
        i32::try_from(left).unwrap_or(i32::MAX)
    });
    // SAFETY: a valid array of this length. An interrupted wait is like one that has ended: what is
    // readable was set to nothing before.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use strata_export::pipeline::Figures;
    use strata_export::{Clock, Queues};

    use super::*;

    /// A port that is served, and what is passed on.
    fn served() -> (SocketAddr, tokio::sync::mpsc::Receiver<TcpStream>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let queues = Queues::start(Vec::new(), Clock::real());
        let queues = runtime.expect("a runtime").block_on(queues).expect("no exporters");
        let figures = Arc::new(Mutex::new(Figures::default()));
        let status = Arc::new(SharedStatus::new(figures, Arc::new(queues)));
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("its address");
        drop(free);
        let (others, passed_on) = tokio::sync::mpsc::channel(8);
        start(address, status, others).expect("a thread");
        (address, passed_on)
    }

    fn connected(address: SocketAddr) -> TcpStream {
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => return stream,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn answer_to(mut stream: TcpStream, parts: &[&str]) -> String {
        for part in parts {
            stream.write_all(part.as_bytes()).expect("it takes the request");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer, and its end");
        answer
    }

    #[test]
    fn a_probe_is_answered_however_it_is_written() {
        let (address, _passed_on) = served();
        let whole = ["GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"];
        let pieces = ["GET", " /hea", "lthz HTTP/1.1\r\n", "Host: x\r\n", "\r\n"];
        for parts in [&whole[..], &pieces[..]] {
            let answer = answer_to(connected(address), parts);
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
        }
        let answer = answer_to(connected(address), &["HEAD /healthz HTTP/1.1\r\n\r\n"]);
        assert!(answer.contains("content-length: 3") && answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[test]
    fn other_requests_are_passed_on_unread() {
        let (address, mut passed_on) = served();
        let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        let mut asking = connected(address);
        asking.write_all(request.as_bytes()).expect("it takes the request");
        let mut stream = passed_on.blocking_recv().expect("it is passed on");
        let mut bytes = vec![0; request.len()];
        stream.set_nonblocking(false).expect("a socket");
        stream.read_exact(&mut bytes).expect("all of it");
        assert_eq!(bytes, request.as_bytes());
    }

    #[test]
    fn silent_connections_are_dropped_and_keep_no_answer_back() {
        let (address, _passed_on) = served();
        let silent: Vec<_> = (0..2 * MOST_CONNECTIONS).map(|_| connected(address)).collect();
        let answer = answer_to(connected(address), &["GET /healthz HTTP/1.0\r\n\r\n"]);
        assert!(answer.ends_with("ok\n"), "{answer}");
        for mut stream in silent {
            let mut end = [0; 1];
            // Closed, or reset: the test would hang if it stayed open.
            assert!(matches!(stream.read(&mut end), Ok(0) | Err(_)));
        }
    }
}
