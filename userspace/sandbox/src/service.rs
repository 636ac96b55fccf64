//! The daemon's access to targets' files: takes requests and returns answers, without waiting.
//!
//! [`FileService`] owns the opener and worker processes. The daemon's event loop submits requests,
//! polls one descriptor ([`FileService::poll_fd`]) until [`FileService::next_deadline`], and drains
//! answers. Phases that have nothing else to do use [`FileService::call`].
//!
//! Invariants: no call but `call` and `call_all` waits; every submitted request is answered exactly
//! once, at the latest by its deadline, which counts from the start of its turn; the daemon never
//! holds, reads, or closes a target's file itself.

mod config;
mod failures;
mod graveyard;
mod lane;
mod open_file;
mod shares;
mod statistics;
mod turns;
mod workers;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::process::{Resource, Rlimit};

use crate::answer::{self, Expected};
use crate::cache::{Cache, CacheError};
use crate::child::Usage;
use crate::error::{ChildKind, FileError, Refusal};
use crate::protocol::kind;
use crate::request::{Reply, Request};

pub use config::Config;
pub(crate) use config::timeout_of;
use failures::{Culprit, Failures};
use graveyard::Graveyard;
use lane::{OpenerLane, PendingOpen};
pub use open_file::OpenFile;
pub(crate) use shares::Owner;
pub use statistics::Statistics;
pub(crate) use workers::PendingJob;
use workers::WorkerPool;

/// Identifies a submitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

/// A child of the service, for self-metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildReport {
    pub kind: ChildKind,
    pub pid: u32,
    /// Asked to end, and not gone yet.
    pub ending: bool,
    /// Processor time so far and memory now; zero when it cannot be read.
    pub usage: Usage,
}

/// State shared by lanes and workers.
#[derive(Debug)]
struct Shared {
    config: Config,
    epoll: OwnedFd,
    graveyard: Graveyard,
    statistics: Statistics,
    /// Bytes of copies in memory.
    copies: Arc<AtomicU64>,
}

/// See the module.
#[derive(Debug)]
pub struct FileService {
    shared: Shared,
    fast: OpenerLane,
    slow: OpenerLane,
    workers: WorkerPool,
    /// The context needed to decode a worker's answer.
    expected: HashMap<u64, Expected>,
    failures: Failures,
    cache: Option<Cache>,
    cache_trouble: Option<CacheError>,
    ready: Vec<(RequestId, Result<Reply, FileError>)>,
    /// Answers to be collected by their number; `None` while they are pending.
    apart: HashMap<RequestId, Option<Result<Reply, FileError>>>,
    next_id: u64,
}

impl FileService {
    /// Starts no child yet: children are started on demand. Raises the process's soft limit of open
    /// files to the hard one.
    ///
    /// The thread that drives the service must live as long as the service: its children die
    /// with the thread that started them.
    pub fn new(config: Config) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Every opened file is a descriptor of this process.
        let files = rustix::process::getrlimit(Resource::Nofile);
        let _ = rustix::process::setrlimit(
            Resource::Nofile,
            Rlimit { current: files.maximum, maximum: files.maximum },
        );
        let (cache, cache_trouble) =
            match config.cache.as_ref().map(|cache| Cache::open(cache, config.reply_bytes)) {
                None => (None, None),
                Some(Ok(cache)) => (Some(cache), None),
                Some(Err(error)) => (None, Some(error)),
            };
        Ok(Self {
            cache,
            cache_trouble,
            fast: OpenerLane::new(ChildKind::Opener, config.open_timeout),
            slow: OpenerLane::new(ChildKind::SlowOpener, config.slow_open_timeout),
            workers: WorkerPool::default(),
            expected: HashMap::new(),
            failures: Failures::new(config.failure_pause),
            ready: Vec::new(),
            apart: HashMap::new(),
            next_id: 1,
            shared: Shared {
                config,
                epoll,
                graveyard: Graveyard::default(),
                statistics: Statistics::default(),
                copies: Arc::default(),
            },
        })
    }

    /// Takes a request. Its answer comes from [`Self::drain`]; ask for [`Self::next_deadline`]
    /// after the last of several requests, as some are answered at once.
    pub fn submit(&mut self, request: Request) -> RequestId {
        let id = self.next_id;
        self.next_id += 1;
        if let Err(error) = self.try_submit(id, request) {
            self.answer(id, Err(error));
        }
        RequestId(id)
    }

    fn try_submit(&mut self, id: u64, request: Request) -> Result<(), FileError> {
        let now = Instant::now();
        let limit = self.shared.config.max_waiting;
        if self.pending() >= limit {
            return Err(FileError::Overloaded(limit));
        }
        let identity_only = matches!(request, Request::Identify(_));
        if let Request::Open(locator) | Request::Identify(locator) = request {
            crate::request::check_locator(&locator)?;
            let process = locator.process().map(Culprit::Process);
            let culprits = process.into_iter().chain([Culprit::Locator(locator.clone())]);
            for culprit in culprits {
                if let Some(error) = self.failures.check(&culprit, now) {
                    return Err(error);
                }
            }
            self.fast.push(PendingOpen { identity_only, ..PendingOpen::new(id, locator) });
            return Ok(());
        }
        let (job, expected) = request.into_job(id, &self.shared.config)?;
        if let Some(error) = self.failures.check(&culprit_of(&job), now) {
            return Err(error);
        }
        if let (Expected::UnwindTable(Some(key)), Some(cache)) = (&expected, &mut self.cache)
            && let Some(table) = cache.load(key)
        {
            self.answer(id, Ok(Reply::UnwindTable(Box::new(table))));
            return Ok(());
        }
        if job.urgent && self.workers.is_refused(job.owner, now) {
            return Err(FileError::TakesTooLong);
        }
        self.expected.insert(id, expected);
        self.workers.push(job);
        Ok(())
    }

    /// What the copies of files on filesystems that may hang take in memory.
    pub fn copied_bytes(&self) -> u64 {
        self.shared.copies.load(Ordering::Relaxed)
    }

    /// Requests that have no answer yet.
    pub fn pending(&self) -> usize {
        self.fast.pending() + self.slow.pending() + self.workers.pending()
    }

    /// Readable when [`Self::drain`] has something to do.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.shared.epoll.as_fd()
    }

    /// When [`Self::drain`] is to be called even if nothing became readable.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.ready.is_empty() { Some(Instant::now()) } else { self.next_move() }
    }

    /// The next deadline, when there is work even if nothing became readable.
    fn next_move(&self) -> Option<Instant> {
        let now = Instant::now();
        if self.fast.has_unsent() || self.workers.has_unsent(&self.shared) {
            return Some(now);
        }
        [
            self.fast.next_deadline(&self.shared),
            self.slow.next_deadline(&self.shared),
            self.workers.next_deadline(&self.shared),
            self.shared.graveyard.next_deadline(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Makes progress without waiting, and returns the answers available.
    pub fn drain(&mut self) -> Vec<(RequestId, Result<Reply, FileError>)> {
        self.move_on();
        std::mem::take(&mut self.ready)
    }

    /// As [`Self::submit`], but the answer is for [`Self::take_apart`] alone: others may drain theirs
    /// meanwhile.
    pub fn submit_apart(&mut self, request: Request) -> RequestId {
        let id = self.submit(request);
        self.apart.insert(id, None);
        id
    }

    /// An answer to [`Self::submit_apart`], once, when it is there.
    pub fn take_apart(&mut self, id: RequestId) -> Option<Result<Reply, FileError>> {
        self.apart.get(&id)?.as_ref()?;
        self.apart.remove(&id)?
    }

    /// Makes progress without waiting.
    pub fn move_on(&mut self) {
        self.turn();
        if self.apart.is_empty() {
            return;
        }
        for (id, outcome) in std::mem::take(&mut self.ready) {
            match self.apart.get_mut(&id) {
                Some(place) => *place = Some(outcome),
                None => self.ready.push((id, outcome)),
            }
        }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        self.shared.graveyard.reap(now, &mut self.shared.statistics);

        let opened = self.fast.collect(now, &mut self.shared);
        self.settle_opens(opened, now);
        let opened = self.fast.send_waiting(now, &mut self.shared);
        self.settle_opens(opened, now);
        let opened = self.slow.collect(now, &mut self.shared);
        self.settle_opens(opened, now);
        let opened = self.slow.send_waiting(now, &mut self.shared);
        self.settle_opens(opened, now);

        for (job, outcome) in self.workers.turn(now, &mut self.shared) {
            self.settle_job(job, outcome, now);
        }
    }

    fn settle_opens(&mut self, outcomes: Vec<lane::Outcome>, now: Instant) {
        for (open, outcome) in outcomes {
            match outcome {
                Err(FileError::Refused { refusal: Refusal::SlowFilesystem, .. }) => {
                    self.slow.push(open)
                }
                Err(error) => {
                    if error.is_costly() {
                        self.failures.remember(Culprit::Locator(open.locator.clone()), &error, now);
                        if let Some(process) = open.locator.process() {
                            self.suspect(process, &error, now);
                        }
                    }
                    self.answer(open.id, Err(error));
                }
                Ok(file) => {
                    self.shared.statistics.opened += 1;
                    self.shared.statistics.copied += u64::from(file.is_copy());
                    self.answer(open.id, Ok(Reply::Opened(file)));
                }
            }
        }
    }

    /// Counts a hang against a process; with too many, nothing of it is tried any more.
    fn suspect(&mut self, process: crate::ProcessRef, error: &FileError, now: Instant) {
        let culprit = Culprit::Process(process);
        self.failures.remember(culprit.clone(), error, now);
        if let Some(error) = self.failures.check(&culprit, now) {
            let withdrawn =
                self.fast.withdraw(process).into_iter().chain(self.slow.withdraw(process));
            for open in withdrawn.collect::<Vec<_>>() {
                self.answer(open.id, Err(error.clone()));
            }
        }
    }

    fn settle_job(&mut self, job: PendingJob, outcome: Result<Vec<u8>, FileError>, now: Instant) {
        let expected = self.expected.remove(&job.id);
        let outcome = outcome.and_then(|bytes| {
            self.shared.statistics.jobs_done += 1;
            self.shared.statistics.reply_bytes += bytes.len() as u64;
            let expected =
                expected.ok_or(FileError::InvalidRequest("nothing expects its answer"))?;
            let reply = answer::decode(&expected, &bytes)?;
            if let (Expected::UnwindTable(Some(key)), Some(cache)) = (&expected, &mut self.cache) {
                cache.store(key, &bytes);
            }
            Ok(reply)
        });
        if let Err(error) = &outcome
            && error.is_costly()
            // Fewer addresses have a shorter answer.
            && !(job.kind == kind::SYMBOLIZE && matches!(error, FileError::ReplyTooLarge(_)))
        {
            self.failures.remember(culprit_of(&job), error, now);
        }
        self.answer(job.id, outcome);
    }

    /// A process has ended: what hung in it says nothing of the next one with its number.
    pub fn process_ended(&mut self, pid: u32) {
        self.failures.forget_process(pid);
    }

    fn answer(&mut self, id: u64, outcome: Result<Reply, FileError>) {
        if let Err(error) = &outcome {
            self.shared.statistics.failed(error);
        }
        self.ready.push((RequestId(id), outcome));
    }

    /// One request, waited for. Answers to others are kept for [`Self::drain`].
    pub fn call(&mut self, request: Request) -> Result<Reply, FileError> {
        let mut outcomes = self.call_all(vec![request]);
        outcomes.pop().unwrap_or(Err(FileError::InvalidRequest("no answer")))
    }

    /// Several requests, waited for; answers in the order of the requests.
    pub fn call_all(&mut self, requests: Vec<Request>) -> Vec<Result<Reply, FileError>> {
        let ids: Vec<RequestId> =
            requests.into_iter().map(|request| self.submit(request)).collect();
        let positions: HashMap<RequestId, usize> =
            ids.iter().enumerate().map(|(position, id)| (*id, position)).collect();
        let mut outcomes: Vec<_> =
            ids.iter().map(|_| Err(FileError::InvalidRequest("no answer"))).collect();
        let mut missing = ids.len();
        let mut of_others = Vec::new();
        loop {
            for (id, outcome) in self.drain() {
                match positions.get(&id).and_then(|position| outcomes.get_mut(*position)) {
                    Some(place) => {
                        *place = outcome;
                        missing -= 1;
                    }
                    None => of_others.push((id, outcome)),
                }
            }
            if missing == 0 {
                break;
            }
            self.wait();
        }
        of_others.append(&mut self.ready);
        self.ready = of_others;
        outcomes
    }

    /// Waits until there is something to drain.
    pub fn wait(&self) {
        self.wait_until(self.next_deadline());
    }

    /// Waits until there is something to move on, or for so long; answers that are there already are
    /// no reason to come back.
    pub fn wait_at_most(&self, most: Duration) {
        let end = Instant::now() + most;
        self.wait_until(Some(self.next_move().map_or(end, |next| next.min(end))));
    }

    fn wait_until(&self, deadline: Option<Instant>) {
        let now = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            return;
        }
        let timeout = deadline.map(|deadline| {
            // One millisecond more, so that the deadline has passed.
            let wait = deadline.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            }
        });
        let mut descriptors = [PollFd::new(&self.shared.epoll, PollFlags::IN)];
        // An interrupted wait is followed by a look, like any other.
        let _ = rustix::event::poll(&mut descriptors, timeout.as_ref());
    }

    pub fn statistics(&self) -> Statistics {
        let cache = self.cache.as_ref().map(|cache| cache.statistics).unwrap_or_default();
        Statistics { cache, ..self.shared.statistics.clone() }
    }

    /// Why tables are not cached on disk, although that is configured.
    pub fn cache_trouble(&self) -> Option<&CacheError> {
        self.cache_trouble.as_ref()
    }

    /// The pids of all children there are now; costs nothing.
    pub fn child_pids(&self) -> impl Iterator<Item = u32> {
        let alive =
            self.fast.child().into_iter().chain(self.slow.child()).chain(self.workers.children());
        alive.chain(self.shared.graveyard.children()).map(crate::child::Child::pid)
    }

    /// The children there are now, with what they use: some reads of `/proc` for each.
    pub fn children(&self) -> Vec<ChildReport> {
        let report = |child: &crate::child::Child, ending| ChildReport {
            kind: child.kind,
            pid: child.pid(),
            ending,
            usage: child.current_usage().unwrap_or_default(),
        };
        let alive =
            self.fast.child().into_iter().chain(self.slow.child()).chain(self.workers.children());
        let ending = self.shared.graveyard.children();
        alive
            .map(|child| report(child, false))
            .chain(ending.map(|child| report(child, true)))
            .collect()
    }

    /// Ends all idle children now instead of after [`Config::idle`].
    pub fn release(&mut self) {
        let idle = std::mem::replace(&mut self.shared.config.idle, Duration::ZERO);
        self.turn();
        self.shared.config.idle = idle;
    }
}

/// What a failure of a job is remembered by.
fn culprit_of(job: &PendingJob) -> Culprit {
    Culprit::Files(job.files.iter().map(|file| file.identity).collect(), job.kind)
}
