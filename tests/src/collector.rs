//! A server that takes what profilers send: real sockets, every request kept, answers as
//! configured.
//!
//! It implements just enough HTTP/1.1 (RFC 9112) for a client that sends bodies with a length.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// One request, read to its end.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub path: String,
    /// Names in small letters.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

/// The answer to requests.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Lines of the head, without their ends.
    pub head: Vec<String>,
    pub body: Vec<u8>,
    /// Delay before an answer.
    pub after: Duration,
    /// Nothing is read or answered.
    pub hangs_up: bool,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            status: 200,
            head: Vec::new(),
            body: b"{}".to_vec(),
            after: Duration::ZERO,
            hangs_up: false,
        }
    }
}

impl Answer {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// As if no server were there.
    pub fn hang_up() -> Self {
        Self { hangs_up: true, ..Self::default() }
    }
}

#[derive(Default)]
struct Shared {
    requests: Mutex<Vec<Request>>,
    /// Those that were answered with success, whether or not the client waited for it.
    taken: Mutex<Vec<Request>>,
    answer: Mutex<Answer>,
}

/// A server of this process; it ends with it.
#[derive(Clone)]
pub struct Collector {
    shared: Arc<Shared>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector {
    /// On a free port of the loopback interface, or on a given one.
    pub fn on_port(port: u16) -> Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind(("127.0.0.1", port)).context("binding a port")?;
        let address = listener.local_addr()?;
        let accept = move || listener.accept().ok().map(|(stream, _)| stream);
        Ok((Self::accepting(accept), address))
    }

    pub fn on_socket(path: &Path) -> Result<Self> {
        let listener = UnixListener::bind(path).context("binding a socket")?;
        Ok(Self::accepting(move || listener.accept().ok().map(|(stream, _)| stream)))
    }

    fn accepting<S: Stream + Send + 'static>(
        mut accept: impl FnMut() -> Option<S> + Send + 'static,
    ) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let serving = shared.clone();
        std::thread::spawn(move || {
            while let Some(stream) = accept() {
                let shared = serving.clone();
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { shared }
    }

    pub fn requests(&self) -> Vec<Request> {
        locked(&self.shared.requests).clone()
    }

    /// The requests that this server has taken: answered with 200, though the client may have hung
    /// up before.
    pub fn taken(&self) -> Vec<Request> {
        locked(&self.shared.taken).clone()
    }

    /// Sets the answer from now on.
    pub fn answer(&self, answer: Answer) {
        *locked(&self.shared.answer) = answer;
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn serve(stream: impl Stream, shared: &Shared) {
    let mut stream = BufReader::new(stream);
    while let Ok(Some(request)) = read(&mut stream) {
        let answer = locked(&shared.answer).clone();
        if answer.hangs_up {
            return;
        }
        if answer.status == 200 {
            locked(&shared.taken).push(request.clone());
        }
        locked(&shared.requests).push(request);
        std::thread::sleep(answer.after);
        let head: String = answer.head.iter().map(|line| format!("{line}\r\n")).collect();
        let length = answer.body.len();
        let head =
            format!("HTTP/1.1 {} X\r\ncontent-length: {length}\r\n{head}\r\n", answer.status);
        let to = stream.get_mut();
        // A client that hung up is part of some tests.
        if to.write_all(head.as_bytes()).and_then(|()| to.write_all(&answer.body)).is_err() {
            return;
        }
    }
}

fn read(stream: &mut impl BufRead) -> Result<Option<Request>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).context("no path")?.to_owned();
    let mut request = Request { path, ..Request::default() };
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length: usize = request.header("content-length").parse().unwrap_or(0);
    request.body = vec![0; length];
    stream.read_exact(&mut request.body)?;
    Ok(Some(request))
}
