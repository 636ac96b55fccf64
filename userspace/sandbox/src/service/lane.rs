//! The daemon's side of one opener: requests of all processes in turns; when the opener hangs, the
//! first unanswered request is the cause.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::open_file::Copied;
use super::shares::{Owner, ROOT};
use super::turns::Turns;
use super::{OpenFile, Shared};
use crate::channel::{Channel, Envelope, Wait};
use crate::child::Child;
use crate::error::{ChildKind, Death, FileError, Refusal};
use crate::identity::{IdentityTrust, trust_of_filesystem};
use crate::opener::{Lane, MAX_COPY};
use crate::process_text;
use crate::protocol::{Locator, OpenReply, OpenRequest, ProcessRef};
use crate::waiting::Grace;

/// Requests under way in one opener: few enough to fit any socket buffer.
const MAX_IN_FLIGHT: usize = 32;
/// The same where each may take seconds, and none of them can be taken back: the one that is worked
/// on, and the next one, of another process and user.
const MAX_IN_FLIGHT_SLOW: usize = 2;
/// An opener that dies this often without any answer cannot work on this host.
const HOPELESS_AFTER: u32 = 3;
/// How long a hopeless opener is not started again.
const HOPELESS_PAUSE: Duration = Duration::from_secs(1);
const MAX_REPLY: usize = 256;

#[derive(Debug)]
pub struct PendingOpen {
    pub id: u64,
    pub locator: Locator,
    /// Root, unless it is known to be another.
    pub user: u32,
    /// The file is not going to be read.
    pub identity_only: bool,
}

impl PendingOpen {
    pub fn new(id: u64, locator: Locator) -> Self {
        Self { id, locator, user: ROOT, identity_only: false }
    }

    /// Whose turn it takes.
    pub fn owner(&self) -> Owner {
        Owner { user: self.user, process: self.locator.process() }
    }
}

/// The real user of a process, which it cannot hide as it can hide its files.
fn user_of(process: ProcessRef) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{}/status", process.pid)).ok()?;
    let status = String::from_utf8_lossy(&status);
    let users = process_text::status_field(&status, "Uid")?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

/// The result of an open request.
pub type Outcome = (PendingOpen, Result<Arc<OpenFile>, FileError>);

#[derive(Debug)]
pub struct OpenerLane {
    kind: ChildKind,
    timeout: Duration,
    running: Option<Running>,
    waiting: Turns,
    deaths_in_a_row: u32,
    hopeless_until: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    channel: Channel,
    in_flight: VecDeque<PendingOpen>,
    /// Since when the first request in flight (or, with none, nothing) is being worked on.
    since: Instant,
    grace: Grace,
}

impl Running {
    /// Whether the first request has no answer within its time. On a busy host that takes longer.
    fn is_late(&mut self, timeout: Duration, now: Instant) -> bool {
        let spent = now.saturating_duration_since(self.since);
        // Opening computes nothing.
        !self.in_flight.is_empty() && self.grace.is_over(&self.child, spent, timeout, now, || false)
    }
}

impl OpenerLane {
    pub fn new(kind: ChildKind, timeout: Duration) -> Self {
        Self {
            kind,
            timeout,
            running: None,
            waiting: Turns::default(),
            deaths_in_a_row: 0,
            hopeless_until: None,
        }
    }

    pub fn push(&mut self, mut open: PendingOpen) {
        if self.kind == ChildKind::SlowOpener {
            open.user = open.locator.process().and_then(user_of).unwrap_or(ROOT);
        }
        self.waiting.push(open);
    }

    /// Whether requests wait although no answer is due.
    pub fn has_unsent(&self) -> bool {
        let busy = self.running.as_ref().is_some_and(|running| !running.in_flight.is_empty());
        !self.waiting.is_empty() && !busy
    }

    pub fn pending(&self) -> usize {
        self.waiting.len() + self.running.as_ref().map_or(0, |running| running.in_flight.len())
    }

    pub fn child(&self) -> Option<&Child> {
        self.running.as_ref().map(|running| &running.child)
    }

    /// Takes answers and kills what is late.
    pub fn collect(&mut self, now: Instant, shared: &mut Shared) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        self.receive(now, shared, &mut outcomes);
        self.kill_late(now, shared, &mut outcomes);
        outcomes
    }

    /// Sends waiting requests, up to the opener's limit.
    pub fn send_waiting(&mut self, now: Instant, shared: &mut Shared) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        self.send(now, shared, &mut outcomes);
        outcomes
    }

    /// Removes waiting requests for files of a process.
    pub fn withdraw(&mut self, process: ProcessRef) -> Vec<PendingOpen> {
        self.waiting.withdraw(process)
    }

    fn receive(&mut self, now: Instant, shared: &mut Shared, outcomes: &mut Vec<Outcome>) {
        let mut buffer = [0; MAX_REPLY];
        while let Some(running) = &mut self.running {
            let received = match running.channel.receive(&mut buffer, true, Wait::DontWait) {
                Ok(received) if received.length > 0 => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(_) => return self.died(None, now, shared, outcomes),
                Err(_) => return self.died(Some(Death::BadMessage), now, shared, outcomes),
            };
            let reply = OpenReply::decode(buffer.get(..received.length).unwrap_or_default());
            let expected = running.in_flight.front().map(|open| open.id);
            let (Ok(reply), Some(expected)) = (reply, expected) else {
                return self.died(Some(Death::BadMessage), now, shared, outcomes);
            };
            if reply.id != expected {
                return self.died(Some(Death::BadMessage), now, shared, outcomes);
            }
            let Some(open) = running.in_flight.pop_front() else { return };
            running.since = now;
            self.deaths_in_a_row = 0;
            let result = match (reply.outcome, received.descriptors.into_iter().next()) {
                (Ok(facts), Some(socket)) => {
                    let trust = trust_of_filesystem(facts.filesystem_magic);
                    let process = open.locator.process();
                    // Only root can have made it, whatever process maps it.
                    let is_roots =
                        facts.owner == ROOT && trust == IdentityTrust::Persistent && !facts.copied;
                    let user = match process {
                        Some(process) if !is_roots => user_of(process).unwrap_or(facts.owner),
                        _ => facts.owner,
                    };
                    Ok(Arc::new(OpenFile {
                        envelope: Envelope::from_socket(socket),
                        identity: facts.identity,
                        trust,
                        deleted: facts.deleted,
                        copy: (facts.copied && !open.identity_only)
                            .then(|| Copied::new(&shared.copies, facts.identity.size)),
                        owner: facts.owner,
                        share: Owner { user, process },
                    }))
                }
                // The kernel leaves out a descriptor that this process has no number for.
                (Ok(_), None) => Err(FileError::Refused {
                    refusal: Refusal::Other,
                    errno: rustix::io::Errno::MFILE.raw_os_error(),
                }),
                (Err((refusal, errno)), _) => Err(FileError::Refused { refusal, errno }),
            };
            outcomes.push((open, result));
        }
    }

    fn kill_late(&mut self, now: Instant, shared: &mut Shared, outcomes: &mut Vec<Outcome>) {
        let timeout = self.timeout;
        let late = self.running.as_mut().is_some_and(|running| running.is_late(timeout, now));
        if late && let Some(mut running) = self.running.take() {
            let culprit = running.in_flight.pop_front();
            // The same process is likely to hang the next opener too: others go first.
            let process = culprit.as_ref().and_then(|open| open.locator.process());
            outcomes.extend(culprit.map(|open| (open, Err(FileError::TimedOut(self.kind)))));
            self.end(running, shared);
            if let Some(process) = process {
                self.waiting.put_last(process);
            }
        }
        let idle = self.running.as_ref().is_some_and(|running| {
            running.in_flight.is_empty()
                && now.saturating_duration_since(running.since) >= shared.config.idle
        });
        if idle
            && self.waiting.is_empty()
            && let Some(running) = self.running.take()
        {
            shared.graveyard.let_end(running.child);
        }
    }

    /// The opener has died or violated the protocol: its first request failed, the others get
    /// another opener.
    fn died(
        &mut self,
        death: Option<Death>,
        now: Instant,
        shared: &mut Shared,
        outcomes: &mut Vec<Outcome>,
    ) {
        let Some(mut running) = self.running.take() else { return };
        self.deaths_in_a_row += 1;
        if let Some(open) = running.in_flight.pop_front() {
            let death = death.or_else(|| running.child.try_reap().map(|(death, _)| death));
            let error = FileError::ChildDied(self.kind, death.unwrap_or(Death::Unknown));
            if self.deaths_in_a_row >= HOPELESS_AFTER {
                self.hopeless_until = now.checked_add(HOPELESS_PAUSE);
                let waiting = self.waiting.take_all();
                let others = running.in_flight.drain(..).chain(waiting);
                // None of them was tried.
                let why = "it ended several times in a row";
                let not_tried = FileError::Spawn(self.kind, why.to_owned());
                outcomes.extend(others.map(|open| (open, Err(not_tried.clone()))));
            }
            outcomes.push((open, Err(error)));
        }
        self.end(running, shared);
    }

    fn end(&mut self, running: Running, shared: &mut Shared) {
        let Running { child, in_flight, .. } = running;
        for open in in_flight.into_iter().rev() {
            self.waiting.give_back(open);
        }
        shared.graveyard.kill(child);
    }

    fn send(&mut self, now: Instant, shared: &mut Shared, outcomes: &mut Vec<Outcome>) {
        while !self.waiting.is_empty() {
            if let Some(error) = self.start(now, shared) {
                let waiting = self.waiting.take_all();
                outcomes.extend(waiting.into_iter().map(|open| (open, Err(error.clone()))));
                return;
            }
            let is_slow = self.kind == ChildKind::SlowOpener;
            let Some(running) = &mut self.running else { return };
            let in_flight = &running.in_flight;
            if in_flight.len() >= if is_slow { MAX_IN_FLIGHT_SLOW } else { MAX_IN_FLIGHT } {
                return;
            }
            let has_its_share = |owner: Owner| {
                is_slow && in_flight.iter().any(|open| owner.shares_with(open.owner()))
            };
            let Some(open) = self.waiting.take(has_its_share) else { return };
            let PendingOpen { user, identity_only, .. } = open;
            // What another request may be copying.
            let copying = in_flight.iter().filter(|open| is_slow && !open.identity_only).count();
            let taken = shared.copies.load(Ordering::Relaxed) + copying as u64 * MAX_COPY;
            let room = shared.config.copies.saturating_sub(taken);
            let most_copied = (!identity_only).then_some(room);
            let request = OpenRequest { id: open.id, locator: open.locator, most_copied };
            match running.channel.send(&request.encode(), &[], Wait::DontWait) {
                Ok(()) => {
                    if running.in_flight.is_empty() {
                        running.since = now;
                    }
                    let OpenRequest { id, locator, .. } = request;
                    let sent = PendingOpen { id, locator, user, identity_only };
                    running.in_flight.push_back(sent);
                }
                Err(error) => {
                    let OpenRequest { id, locator, .. } = request;
                    let unsent = PendingOpen { id, locator, user, identity_only };
                    self.waiting.give_back(unsent);
                    if error.kind() != io::ErrorKind::WouldBlock {
                        // It ended while idle; requests in flight are sent to the next one.
                        if let Some(running) = self.running.take() {
                            self.deaths_in_a_row += 1;
                            if self.deaths_in_a_row >= HOPELESS_AFTER {
                                self.hopeless_until = now.checked_add(HOPELESS_PAUSE);
                            }
                            self.end(running, shared);
                        }
                        continue;
                    }
                    return;
                }
            }
        }
    }

    /// Starts the opener if none runs. An error has the reason why none can run now.
    fn start(&mut self, now: Instant, shared: &mut Shared) -> Option<FileError> {
        if self.running.is_some() {
            return None;
        }
        if self.hopeless_until.is_some_and(|until| now < until) {
            return Some(FileError::Spawn(
                self.kind,
                "it keeps ending right after its start".into(),
            ));
        }
        if self.hopeless_until.take().is_some() {
            self.deaths_in_a_row = 0;
        }
        let stuck = shared.graveyard.stuck(now, |kind| kind == self.kind);
        let lane = match self.kind {
            ChildKind::SlowOpener if stuck >= shared.config.max_stuck => {
                return Some(FileError::TooManyStuck(stuck));
            }
            ChildKind::SlowOpener => Lane::Slow,
            _ => Lane::Fast { wary: stuck >= shared.config.max_stuck },
        };
        let mut arguments = shared.config.command.opener.clone();
        arguments.push(lane.argument().into());
        match shared.start_child(self.kind, &arguments) {
            Ok((child, channel)) => {
                let in_flight = VecDeque::new();
                self.running = Some(Running {
                    child,
                    channel,
                    in_flight,
                    since: now,
                    grace: Grace::none(now),
                });
                None
            }
            Err(error) => Some(FileError::Spawn(self.kind, error.to_string())),
        }
    }

    pub fn next_deadline(&self, shared: &Shared) -> Option<Instant> {
        let running = self.running.as_ref()?;
        let limit = if running.in_flight.is_empty() { shared.config.idle } else { self.timeout };
        running.since.checked_add(limit).map(|due| due.max(running.grace.ends()))
    }
}

impl Shared {
    pub fn start_child(
        &mut self,
        kind: ChildKind,
        arguments: &[std::ffi::OsString],
    ) -> io::Result<(Child, Channel)> {
        use rustix::event::epoll;
        let (child, channel) = Child::start(kind, &self.config.command.program, arguments)?;
        let added = epoll::add(
            &self.epoll,
            channel.as_fd(),
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )
        .and_then(|()| {
            epoll::add(
                &self.epoll,
                child.exit_fd(),
                epoll::EventData::new_u64(0),
                epoll::EventFlags::IN,
            )
        });
        if let Err(errno) = added {
            self.graveyard.kill(child);
            return Err(errno.into());
        }
        *self.statistics.starts.entry(kind).or_default() += 1;
        Ok((child, channel))
    }
}
