//! The daemon's side of the workers: one job each at a time, a deadline for each job.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::shares::{Owner, Shares};
use super::{OpenFile, Shared};
use crate::channel::{Channel, MAX_MESSAGE, Wait, memory_file};
use crate::child::Child;
use crate::error::{ChildKind, Death, FileError, Refusal};
use crate::identity::IdentityTrust;
use crate::protocol::{JobStatus, WorkerReply, WorkerRequest};
use crate::waiting::Grace;
use crate::wire::WireError;
use crate::worker::MAX_INLINE;

/// A second worker is started when the first has been busy with one file for this long.
const HELP_AFTER: Duration = Duration::from_millis(250);
/// How long a dead worker's exit status is waited for.
const VERDICT_WITHIN: Duration = Duration::from_millis(500);
/// A worker's error message is truncated to this.
const MAX_TEXT: usize = 512;
/// After so many deaths or failed starts in a row, with no job done, all waiting jobs fail at once.
const HOPELESS_AFTER: u32 = 8;

#[derive(Debug)]
pub struct PendingJob {
    pub id: u64,
    pub kind: u8,
    pub body: Vec<u8>,
    pub files: Vec<Arc<OpenFile>>,
    pub timeout: Duration,
    /// An answer larger than this is rejected.
    pub reply_limit: u64,
    /// It is waited for (rules for samples, not names for a report).
    pub urgent: bool,
    pub owner: Owner,
}

/// The result of a job: the answer's bytes, not decoded yet.
pub type Outcome = (PendingJob, Result<Vec<u8>, FileError>);

#[derive(Debug)]
struct Worker {
    child: Child,
    channel: Channel,
    exchange: OwnedFd,
    job: Option<PendingJob>,
    since: Instant,
    /// The processor time that it had used then.
    used: Duration,
    grace: Grace,
}

impl Worker {
    /// Whether it has spent the time of a job without an answer. On a busy host that takes longer.
    fn is_late(&mut self, timeout: Duration, now: Instant) -> bool {
        let spent = now.saturating_duration_since(self.since);
        let (child, used) = (&self.child, self.used);
        self.grace.is_over(child, spent, timeout, now, || {
            let now_used = child.processor_time().unwrap_or(Duration::MAX);
            now_used.saturating_sub(used) >= timeout / 5 * 4
        })
    }
}

#[derive(Debug, Default)]
pub struct WorkerPool {
    workers: Vec<Worker>,
    /// Ended during a job; its exit status is not known yet.
    dying: Vec<(Child, PendingJob, Instant)>,
    waiting: Shares,
    deaths_in_a_row: u32,
}

impl WorkerPool {
    pub fn push(&mut self, job: PendingJob) {
        self.waiting.push(job);
    }

    /// Whether an owner's files have taken so much time that jobs samples wait for are refused.
    pub fn is_refused(&mut self, owner: Owner, now: Instant) -> bool {
        self.waiting.is_refused(owner, now)
    }

    /// Whether a waiting job could be given to a worker now.
    pub fn has_unsent(&self, shared: &Shared) -> bool {
        let is_free =
            || self.workers.is_empty() || self.workers.iter().any(|worker| worker.job.is_none());
        !self.waiting.is_empty() && is_free() && self.has_next(shared)
    }

    fn has_next(&self, shared: &Shared) -> bool {
        let busy = self.busy();
        self.waiting.has_next(&busy, is_last(busy.len(), shared))
    }

    /// The owners of the jobs that workers have.
    fn busy(&self) -> Vec<Owner> {
        self.workers.iter().filter_map(|worker| Some(worker.job.as_ref()?.owner)).collect()
    }

    pub fn pending(&self) -> usize {
        self.waiting.len() + self.dying.len() + self.busy().len()
    }

    pub fn children(&self) -> impl Iterator<Item = &Child> {
        self.workers.iter().map(|worker| &worker.child)
    }

    /// Takes answers, kills what is late, gives out what waits.
    pub fn turn(&mut self, now: Instant, shared: &mut Shared) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for worker in std::mem::take(&mut self.workers) {
            let begun = worker.since;
            let begun = worker.job.as_ref().map(|job| (job.owner, job.urgent, begun, job.timeout));
            let ended = outcomes.len() + self.dying.len();
            self.look_after(worker, now, shared, &mut outcomes);
            if let Some((owner, urgent, begun, timeout)) = begun
                && outcomes.len() + self.dying.len() > ended
            {
                // What it has waited for a processor beyond that is not its owner's.
                let took = now.saturating_duration_since(begun).min(timeout);
                let refused = self.waiting.took(owner, urgent, took, now);
                outcomes.extend(refused.into_iter().map(|job| (job, Err(FileError::TakesTooLong))));
            }
        }
        self.bury(now, shared, &mut outcomes);
        self.give_out(now, shared, &mut outcomes);
        outcomes
    }

    /// One worker's answer or deadline; it stays if it can take another job.
    fn look_after(
        &mut self,
        mut worker: Worker,
        now: Instant,
        shared: &mut Shared,
        outcomes: &mut Vec<Outcome>,
    ) {
        let mut buffer = vec![0; if worker.job.is_some() { MAX_MESSAGE } else { 64 }];
        match worker.channel.receive(&mut buffer, false, Wait::DontWait) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let spent = now.saturating_duration_since(worker.since);
                let timeout = worker.job.as_ref().map(|job| job.timeout);
                let is_late = timeout.is_some_and(|timeout| worker.is_late(timeout, now));
                match worker.job.take_if(|_| is_late) {
                    Some(job) => {
                        shared.graveyard.kill(worker.child);
                        outcomes.push((job, Err(FileError::TimedOut(ChildKind::Worker))));
                    }
                    None if worker.job.is_none() && spent >= shared.config.idle => {
                        shared.graveyard.let_end(worker.child);
                    }
                    None => self.workers.push(worker),
                }
            }
            Ok(received) if received.length > 0 => {
                let message = buffer.get(..received.length).unwrap_or_default();
                self.answered(worker, message, now, shared, outcomes);
            }
            // A longer message than allowed.
            Err(_) => self.misbehaved(worker, shared, outcomes),
            Ok(_) => match worker.job.take() {
                Some(job) => self.dying.push((worker.child, job, now)),
                None => shared.graveyard.let_end(worker.child),
            },
        }
    }

    fn misbehaved(&mut self, worker: Worker, shared: &mut Shared, outcomes: &mut Vec<Outcome>) {
        shared.graveyard.kill(worker.child);
        if let Some(job) = worker.job {
            outcomes.push((job, Err(FileError::ChildDied(ChildKind::Worker, Death::BadMessage))));
        }
    }

    fn answered(
        &mut self,
        mut worker: Worker,
        message: &[u8],
        now: Instant,
        shared: &mut Shared,
        outcomes: &mut Vec<Outcome>,
    ) {
        let reply = match WorkerReply::decode(message) {
            Ok(reply) if worker.job.as_ref().is_some_and(|job| job.id == reply.id) => reply,
            _ => return self.misbehaved(worker, shared, outcomes),
        };
        let Some(job) = worker.job.take() else { return };
        self.deaths_in_a_row = 0;
        let body = match reply.in_exchange {
            None => Ok(reply.body.to_vec()),
            Some(length) => read_exchange(worker.exchange.as_fd(), length, job.reply_limit),
        };
        let outcome = match (reply.status, body) {
            (_, Err(error)) => Err(error),
            (JobStatus::Done, Ok(body)) => Ok(body),
            (JobStatus::ParseError, Ok(body)) => Err(FileError::Parse(text(&body))),
            (JobStatus::Panicked, Ok(body)) => Err(FileError::Panicked(text(&body))),
            (JobStatus::Changed, Ok(_)) => Err(FileError::refused(Refusal::Changed)),
            (JobStatus::TooLarge, Ok(_)) => Err(FileError::ReplyTooLarge(job.reply_limit)),
        };
        let bad = matches!(outcome, Err(FileError::BadReply(..)));
        outcomes.push((job, outcome));
        let memory = worker.child.current_memory().unwrap_or_default();
        let peak = &mut shared.statistics.peak_worker_memory_bytes;
        *peak = memory.peak_memory_bytes.max(*peak);
        if bad {
            shared.graveyard.kill(worker.child);
        } else if reply.retiring || memory.memory_bytes > shared.config.retire_above {
            // Its memory is freed by ending it; its channel closes here.
            shared.graveyard.let_end(worker.child);
        } else {
            worker.since = now;
            self.workers.push(worker);
        }
    }

    /// Reports the jobs of dead workers, once it is known how they died.
    fn bury(&mut self, now: Instant, shared: &mut Shared, outcomes: &mut Vec<Outcome>) {
        for (child, job, since) in std::mem::take(&mut self.dying) {
            let death = match child.try_reap() {
                Some((death, processor_time)) => {
                    shared.statistics.ended_processor_time += processor_time;
                    death
                }
                None if now.saturating_duration_since(since) < VERDICT_WITHIN => {
                    self.dying.push((child, job, since));
                    continue;
                }
                None => {
                    shared.graveyard.kill(child);
                    Death::Unknown
                }
            };
            self.deaths_in_a_row += 1;
            outcomes.push((job, Err(FileError::ChildDied(ChildKind::Worker, death))));
        }
    }

    fn give_out(&mut self, now: Instant, shared: &mut Shared, outcomes: &mut Vec<Outcome>) {
        loop {
            let busy = self.busy();
            let Some(job) = self.waiting.take(&busy, is_last(busy.len(), shared)) else { return };
            let stuck = shared.graveyard.stuck(now, |kind| kind == ChildKind::Worker);
            let risky = job
                .files
                .iter()
                .any(|file| file.trust != IdentityTrust::Persistent && !file.is_copy());
            if risky && stuck >= shared.config.max_stuck {
                outcomes.push((job, Err(FileError::TooManyStuck(stuck))));
                continue;
            }
            let idle = self.workers.iter().position(|worker| worker.job.is_none());
            let index = match idle {
                Some(index) => index,
                None if self.needs_another(now, shared) => match self.start(now, shared) {
                    Ok(index) => index,
                    Err(error) => {
                        let error = FileError::Spawn(ChildKind::Worker, error.to_string());
                        outcomes.push((job, Err(error)));
                        continue;
                    }
                },
                None => return self.put_back(job),
            };
            let Some(worker) = self.workers.get_mut(index) else { return self.put_back(job) };
            match give(worker, &job) {
                Ok(()) => {
                    worker.since = now;
                    worker.used = worker.child.processor_time().unwrap_or_default();
                    worker.job = Some(job);
                }
                Err(error) => {
                    // It ended while idle; the job did not cause that, unless no worker can take
                    // it.
                    let worker = self.workers.swap_remove(index);
                    shared.graveyard.kill(worker.child);
                    self.deaths_in_a_row += 1;
                    if self.deaths_in_a_row >= HOPELESS_AFTER {
                        outcomes.push((
                            job,
                            Err(FileError::Spawn(ChildKind::Worker, error.to_string())),
                        ));
                        self.deaths_in_a_row = 0;
                    } else {
                        self.put_back(job);
                    }
                }
            }
        }
    }

    fn put_back(&mut self, job: PendingJob) {
        self.waiting.give_back(job);
    }

    fn help_due(&self) -> Option<Instant> {
        self.workers
            .iter()
            .map(|worker| worker.since)
            .min()
            .and_then(|since| since.checked_add(HELP_AFTER))
    }

    fn needs_another(&self, now: Instant, shared: &Shared) -> bool {
        self.workers.is_empty()
            || (self.workers.len() < shared.config.workers
                && self.help_due().is_some_and(|due| due <= now))
    }

    fn start(&mut self, now: Instant, shared: &mut Shared) -> io::Result<usize> {
        let arguments = shared.config.command.worker.clone();
        let (child, channel) = shared.start_child(ChildKind::Worker, &arguments)?;
        let limits = shared.config.worker_limits();
        let hello = memory_file("strata-exchange").and_then(|exchange| {
            channel.send(&limits.encode(), &[exchange.as_fd()], Wait::DontWait).map(|()| exchange)
        });
        match hello {
            Ok(exchange) => {
                let (since, grace, used) = (now, Grace::none(now), Duration::ZERO);
                let job = None;
                self.workers.push(Worker { child, channel, exchange, job, since, used, grace });
                Ok(self.workers.len() - 1)
            }
            Err(error) => {
                shared.graveyard.kill(child);
                Err(error)
            }
        }
    }

    pub fn next_deadline(&self, shared: &Shared) -> Option<Instant> {
        let of_workers = self.workers.iter().map(|worker| {
            let limit = worker.job.as_ref().map_or(shared.config.idle, |job| job.timeout);
            worker.since.checked_add(limit).map(|due| due.max(worker.grace.ends()))
        });
        let of_dying = self.dying.iter().map(|(_, _, since)| since.checked_add(VERDICT_WITHIN));
        let help = if self.workers.len() < shared.config.workers && self.has_next(shared) {
            self.help_due()
        } else {
            None
        };
        of_workers.chain(of_dying).flatten().chain(help).min()
    }
}

/// Whether one worker is left when so many are busy.
fn is_last(busy: usize, shared: &Shared) -> bool {
    shared.config.workers > 1 && busy + 1 >= shared.config.workers
}

fn give(worker: &Worker, job: &PendingJob) -> io::Result<()> {
    let in_exchange = if job.body.len() > MAX_INLINE {
        rustix::fs::ftruncate(&worker.exchange, 0)?;
        let mut done = 0;
        while let Some(rest) = job.body.get(done..).filter(|rest| !rest.is_empty()) {
            done += rustix::io::pwrite(&worker.exchange, rest, done as u64)?;
        }
        Some(job.body.len() as u64)
    } else {
        None
    };
    let request = WorkerRequest { id: job.id, kind: job.kind, in_exchange, body: &job.body };
    let files: Vec<BorrowedFd<'_>> = job.files.iter().map(|file| file.envelope.as_fd()).collect();
    worker.channel.send(&request.encode(), &files, Wait::DontWait)
}

/// A copy of the worker's answer, whatever the worker does with the file meanwhile.
fn read_exchange(exchange: BorrowedFd<'_>, length: u64, limit: u64) -> Result<Vec<u8>, FileError> {
    if length > limit {
        return Err(FileError::ReplyTooLarge(limit));
    }
    let cut = || FileError::BadReply(ChildKind::Worker, WireError::Truncated);
    let size = rustix::fs::fstat(exchange).map_err(|_| cut())?.st_size;
    if u64::try_from(size).unwrap_or(0) < length {
        return Err(cut());
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| cut())?];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(exchange, rest, done as u64) {
            Ok(0) | Err(_) => return Err(cut()),
            Ok(length) => done += length,
        }
    }
    // Its pages are not held until the next answer.
    let _ = rustix::fs::ftruncate(exchange, 0);
    Ok(bytes)
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body.get(..body.len().min(MAX_TEXT)).unwrap_or_default()).into_owned()
}
