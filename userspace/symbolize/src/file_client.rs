//! The file service of symbolization, on a thread of its own: separate from the one that builds
//! unwind tables, so that symbols never delay tables.
//!
//! Invariant: every request has a deadline. A late request fails for its requester; its answer is
//! dropped when it arrives.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use strata_agent::engine::loading::Helpers;
use strata_sandbox::{Config, FileError, FileService, Reply, Request, RequestId};
use strata_symbols::Options;

/// The interval of measuring the helper processes' resources, while they work.
const MEASURED_AFTER: Duration = Duration::from_secs(1);

type Answer = Result<Reply, FileError>;

/// Requests files and waits for the answers, until a deadline.
pub trait Ask {
    /// Answers in the order of the requests.
    fn ask_all(&mut self, requests: Vec<Request>) -> Vec<Answer>;

    /// Whether the deadline has passed: requests get no answer any more.
    fn is_late(&self) -> bool {
        false
    }

    /// How symbols are to be read.
    fn options(&self) -> Options {
        Options::default()
    }

    fn ask(&mut self, request: Request) -> Answer {
        let answer = self.ask_all(vec![request]).pop();
        answer.unwrap_or(Err(FileError::InvalidRequest("no answer")))
    }
}

/// Requests on their way to the service's thread, and where their answers go.
struct Batch {
    requests: Vec<Request>,
    answers: Sender<(usize, Answer)>,
}

/// The state of its child processes, published by the thread.
#[derive(Default)]
struct Children {
    pids: Mutex<Vec<u32>>,
    used: Mutex<Helpers>,
    idle_asked: AtomicUsize,
}

/// A handle of the service's thread, which ends when the last handle is dropped.
#[derive(Clone)]
pub struct FileClient {
    /// Always there, but while a handle is dropped.
    batches: Option<Sender<Batch>>,
    wake: Arc<OwnedFd>,
    children: Arc<Children>,
}

impl FileClient {
    pub fn start() -> io::Result<Self> {
        let (batches, incoming) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let children = Arc::new(Children::default());
        // Tables are kept on disk by the other service; there is nothing else to keep.
        let config = Config { cache: None, ..Config::default() };
        let (woken, published) = (wake.clone(), children.clone());
        thread::Builder::new().name("symbol-files".into()).spawn(move || {
            // Its children live as long as this thread.
            match FileService::new(config) {
                Ok(service) => serve(service, &incoming, &woken, &published),
                Err(error) => tracing::warn!(%error, "files cannot be symbolized"),
            }
        })?;
        Ok(Self { batches: Some(batches), wake, children })
    }

    /// Sends requests; those without an answer at the time that `deadline` returns are late.
    /// `deadline` is asked again when it has passed: a request may be granted more time.
    pub fn call(
        &self,
        requests: Vec<Request>,
        deadline: &mut dyn FnMut() -> Option<Instant>,
    ) -> Vec<Answer> {
        let mut answers: Vec<Answer> = requests.iter().map(|_| Err(FileError::Late)).collect();
        let Some(mut until) = deadline() else { return answers };
        let mut missing = answers.len();
        let (sender, receiver) = channel();
        let batch = Batch { requests, answers: sender };
        let sent = self.batches.as_ref().is_some_and(|batches| batches.send(batch).is_ok());
        if !sent {
            return answers;
        }
        self.wake();
        while missing > 0 {
            let left = until.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok((position, answer)) => {
                    if let Some(place) = answers.get_mut(position) {
                        *place = answer;
                        missing -= 1;
                    }
                }
                Err(RecvTimeoutError::Timeout) => match deadline() {
                    Some(later) => until = later,
                    None => break,
                },
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        answers
    }

    /// The helper processes there are now, as of the last time that the thread did something.
    pub fn child_pids(&self) -> Vec<u32> {
        self.children.pids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What they have used, up to a second ago.
    pub fn helpers(&self) -> Helpers {
        *self.children.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends helper processes that are idle.
    pub fn release(&self) {
        self.children.idle_asked.fetch_add(1, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        // A full counter is as good as one more.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for FileClient {
    fn drop(&mut self) {
        // The thread looks whether it was the last handle.
        self.batches = None;
        self.wake();
    }
}

fn serve(
    mut service: FileService,
    incoming: &Receiver<Batch>,
    wake: &OwnedFd,
    children: &Children,
) {
    let mut waiting: HashMap<RequestId, (usize, Sender<(usize, Answer)>)> = HashMap::new();
    let mut released = 0;
    let mut measured = Instant::now();
    loop {
        loop {
            match incoming.try_recv() {
                Ok(Batch { requests, answers }) => {
                    for (position, request) in requests.into_iter().enumerate() {
                        waiting.insert(service.submit(request), (position, answers.clone()));
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        for (id, answer) in service.drain() {
            if let Some((position, answers)) = waiting.remove(&id) {
                // The late requester has gone.
                let _ = answers.send((position, answer));
            }
        }
        let asked = children.idle_asked.load(Ordering::Relaxed);
        if asked != released {
            released = asked;
            service.release();
        }
        if waiting.is_empty() || measured.elapsed() > MEASURED_AFTER {
            measured = Instant::now();
            *children.used.lock().unwrap_or_else(PoisonError::into_inner) = helpers_of(&service);
        }
        let pids: Vec<u32> = service.child_pids().collect();
        *children.pids.lock().unwrap_or_else(PoisonError::into_inner) = pids;
        wait(&service, wake);
    }
}

fn helpers_of(service: &FileService) -> Helpers {
    let statistics = service.statistics();
    let living = service.children();
    let now = living.iter().map(|child| child.usage.processor_time).sum::<Duration>();
    let memory = living.iter().map(|child| child.usage.peak_memory_bytes).sum::<u64>();
    Helpers {
        processor_time: statistics.ended_processor_time + now,
        peak_memory_bytes: memory.max(statistics.peak_worker_memory_bytes),
    }
}

/// Until the service or a requester has something to do.
fn wait(service: &FileService, wake: &OwnedFd) {
    let timeout = service.next_deadline().map(|deadline| {
        // One millisecond more, so that the deadline has passed.
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    let service = service.poll_fd();
    let mut ready = [PollFd::new(&service, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
    // An interrupted wait is followed by a look, like any other.
    let _ = poll(&mut ready, timeout.as_ref());
    let mut count = [0; 8];
    // Empty is as good.
    let _ = rustix::io::read(wake.as_fd(), &mut count);
}
