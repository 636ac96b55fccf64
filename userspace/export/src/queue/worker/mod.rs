//! The worker of one exporter: takes batches, stores them, sends them and reports its health.
//!
//! A batch is put into the spool before it is sent, and removed after its answer: if the process is
//! killed, the batch is in the spool or was delivered. All state belongs to one task; work that may
//! block runs on blocking threads, one piece at a time. A disk that does not answer is waited for a
//! while, and then until it does: the worker goes on with what is in memory.
//!
//! - here: the loop, commands and the end.
//! - [`disk`]: work on the disk.
//! - [`storing`]: memory and disk.
//! - [`sending`]: requests and their outcomes.
//!
//! Invariant: a batch is in exactly one place: the intake, the queue, a request, or a count.

mod disk;
mod sending;
mod storing;
mod warnings;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::Outcome;
use crate::disks::Disks;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{Id, JoinHandle, JoinSet};

use crate::queue::clock::{Clock, Moment};
use crate::queue::health::{ExporterHealth, State, Trouble};
use crate::queue::intake::Intake;
use crate::queue::login::Login;
use crate::queue::order::Queue;
use crate::queue::pace::Pace;
use crate::queue::settings::ExporterSettings;
use crate::spool::{Key, Spool, SpoolError};

use disk::Done;
use sending::Flight;
pub(crate) use warnings::QUIET;
use warnings::Warnings;

pub(crate) enum Command {
    Replan { plan: Box<ExporterSettings>, login: Box<Login> },
    Stop { within: Duration, sends: bool },
}

/// State shared by a worker and the readers of its health.
pub(crate) type Figures = Arc<Mutex<ExporterHealth>>;

/// What a worker shares with others.
pub(crate) struct Outside {
    pub(crate) clock: Clock,
    pub(crate) intake: Arc<Intake>,
    pub(crate) commands: UnboundedReceiver<Command>,
    pub(crate) figures: Figures,
    pub(crate) disks: Arc<Disks>,
}

#[derive(Clone, Copy, Debug)]
struct Stopping {
    until: Moment,
    sends: bool,
}

pub(crate) struct Worker {
    plan: ExporterSettings,
    clock: Clock,
    intake: Arc<Intake>,
    commands: UnboundedReceiver<Command>,
    login: Login,
    /// `None` while it cannot be opened, and while a thread works with it.
    spool: Option<Spool>,
    /// The thread that the disk does not answer to.
    at_disk: Option<JoinHandle<Done>>,
    disks: Arc<Disks>,
    queue: Queue,
    flights: HashMap<Id, Flight>,
    requests: JoinSet<Outcome>,
    /// In the spool, and to be removed from it.
    finished: Vec<Key>,
    last_number: u64,
    /// Files of the spool that could not be read when it was opened.
    unreadable: u64,
    pace: Pace,
    health: ExporterHealth,
    figures: Figures,
    next_open: Moment,
    next_store: Moment,
    next_sync: Option<Moment>,
    next_refusal_warning: Moment,
    next_overflow_warning: Moment,
    /// Profiles dropped for lack of memory, as far as it was warned of them.
    overflowed: u64,
    next_drop_warning: Moment,
    /// Profiles dropped for other causes, as far as it was warned of them.
    dropped: u64,
    next_rejection_warning: Moment,
    warnings: Warnings,
    /// The spool itself had no room for the last that it did not take; else the disk failed.
    is_refused_by_spool: bool,
    /// The spool needs its limits.
    is_resized: bool,
    stopping: Option<Stopping>,
}

impl Worker {
    pub(crate) fn new(
        plan: ExporterSettings,
        login: Login,
        spool: Option<Result<Spool, SpoolError>>,
        outside: Outside,
    ) -> Self {
        let Outside { clock, intake, commands, figures, disks } = outside;
        let health = figures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut worker = Self {
            pace: Pace::new(plan.concurrency, plan.waits).spaced(plan.spacing),
            plan,
            clock,
            intake,
            commands,
            login,
            spool: None,
            at_disk: None,
            disks,
            queue: Queue::default(),
            flights: HashMap::new(),
            requests: JoinSet::new(),
            finished: Vec::new(),
            last_number: 0,
            unreadable: 0,
            figures,
            next_open: Moment::ZERO,
            next_store: Moment::ZERO,
            next_sync: None,
            next_refusal_warning: Moment::ZERO,
            next_overflow_warning: Moment::ZERO,
            overflowed: 0,
            next_drop_warning: Moment::ZERO,
            dropped: health.drops.own().map(|(_, profiles)| profiles).sum(),
            health,
            next_rejection_warning: Moment::ZERO,
            warnings: Warnings::default(),
            is_refused_by_spool: false,
            is_resized: false,
            stopping: None,
        };
        if let Some(opened) = spool {
            worker.opened(opened);
        }
        worker.publish();
        worker
    }

    /// Runs until it is asked to stop. Then everything unsent is in the spool.
    pub(crate) async fn run(mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
            while let Some(ended) = self.requests.try_join_next_with_id() {
                self.judge(ended).await;
            }
            self.keep(false).await;
            self.send_due().await;
            self.publish();
            let now = self.clock.now();
            if self.is_done(now) {
                break;
            }
            let (clock, wake) = (self.clock, self.next_wake(now));
            let alarm = async {
                match wake {
                    Some(moment) => clock.until(moment).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                command = self.commands.recv() => {
                    // No receiver is left to report it to.
                    let stop = Command::Stop { within: Duration::ZERO, sends: false };
                    self.obey(command.unwrap_or(stop));
                }
                Some(ended) = self.requests.join_next_with_id() => self.judge(ended).await,
                done = disk::answer(&mut self.at_disk) => self.disk_answered(done),
                () = self.intake.arrived() => {}
                () = alarm => {}
            }
        }
        self.end().await;
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Replan { plan, login } => self.replan(*plan, *login),
            Command::Stop { within, sends } => {
                let now = self.clock.now();
                self.stopping = Some(Stopping { until: now.saturating_add(within), sends });
                self.intake.close();
                self.pace.retry_now(now);
            }
        }
    }

    /// Requests that are under way end as they began.
    fn replan(&mut self, plan: ExporterSettings, login: Login) {
        if plan.leads_elsewhere(&self.plan) {
            self.login = login.after(&self.login);
            self.pace.forget();
            // Another server's troubles are others.
            self.warnings = Warnings::default();
            self.health.failing_since = None;
        }
        self.pace.set_limit(plan.concurrency);
        self.pace.waits = plan.waits;
        self.pace.spacing = plan.spacing;
        self.intake.set_limit(plan.memory / 2);
        self.plan = plan;
        self.is_resized = true;
    }

    fn is_done(&self, now: Moment) -> bool {
        let Some(stopping) = self.stopping else { return false };
        let is_idle = self.flights.is_empty() && self.intake.is_empty();
        let is_sent = is_idle && (self.queue.is_empty() || !stopping.sends);
        is_sent || stopping.until <= now
    }

    async fn end(&mut self) {
        self.requests.abort_all();
        while let Some(ended) = self.requests.join_next_with_id().await {
            match ended {
                Err(error) if error.is_cancelled() => self.put_back(error.id()),
                ended => self.judge(ended).await,
            }
        }
        self.wait_for_disk().await;
        self.next_open = Moment::ZERO;
        self.next_store = Moment::ZERO;
        self.keep(true).await;
        if self.queue.unstored() > 0 && self.plan.reports_losses {
            let (exporter, batches) = (&self.plan.name, self.queue.unstored());
            tracing::warn!(exporter, batches, "lost: neither sent nor on a disk");
        }
        self.drop_unstored();
        self.health.state = State::Stopped;
        self.publish();
    }

    /// The next time at which there is work without an external event.
    fn next_wake(&self, now: Moment) -> Option<Moment> {
        let mut moments = Vec::new();
        moments.extend(self.stopping.map(|stopping| stopping.until));
        // Without a spool there is nothing to sync.
        moments.extend(self.next_sync.filter(|_| self.spool.is_some()));
        if self.plan.spool_dir.is_some() {
            let is_closed = self.spool.is_none() && self.at_disk.is_none();
            moments.extend(is_closed.then_some(self.next_open));
            moments.extend((self.queue.unstored() > 0).then_some(self.next_store));
        }
        moments.extend(self.queue.oldest().map(|key| self.expiry(key, now)));
        if !self.queue.is_empty() && self.stopping.is_none_or(|stopping| stopping.sends) {
            moments.extend(match self.pace.begins_from(now) {
                Some(moment) => Some(moment),
                None if self.login.endpoint().is_none() => self.login.next_look(&self.plan),
                // With requests under way the end of one is waited for. Without, something is due
                // only if it became so a moment ago.
                None => self.queue.next_due().filter(|&moment| {
                    moment > now || (self.flights.is_empty() && self.can_read_next(now))
                }),
            });
        }
        moments.into_iter().min()
    }

    fn can_read_next(&self, now: Moment) -> bool {
        let next = self.queue.next(now, self.pace.failures());
        next.is_some_and(|key| self.is_within_reach(key))
    }

    fn publish(&mut self) {
        let now = self.clock.now();
        let state = match self.pace.waits_until(now) {
            _ if self.health.state == State::Stopped => State::Stopped,
            _ if self.queue.is_empty() && self.flights.is_empty() => State::Idle,
            Some(moment) => State::Waiting(self.time_of(moment, now)),
            None => match self.login.next_look(&self.plan) {
                Some(moment) if self.login.endpoint().is_none() => {
                    State::Waiting(self.time_of(moment, now))
                }
                _ => State::Ok,
            },
        };
        let unstored = self.flights.values().filter(|flight| !flight.pending.is_stored).count();
        let flying = self.flights.values().map(|flight| flight.key.oldest).min();
        self.health.state = state;
        self.health.in_flight = self.flights.len();
        self.health.queued = self.queue.unstored().saturating_add(unstored);
        // What a thread works with is as it was.
        if self.at_disk.is_none() {
            self.health.spooled = self.spool.as_ref().map_or(0, Spool::len);
            self.health.spooled_bytes = self.spool.as_ref().map_or(0, Spool::bytes);
        }
        self.health.oldest =
            self.queue.oldest().map(|key| key.oldest).into_iter().chain(flying).min();
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        figures.clone_from(&self.health);
        drop(figures);
        self.intake.settled();
    }

    fn time_of(&self, moment: Moment, now: Moment) -> SystemTime {
        let time = self.clock.time();
        time.checked_add(moment.saturating_sub(now)).unwrap_or(time)
    }

    fn trouble(&self, reason: impl Into<String>) -> Option<Trouble> {
        Some(Trouble { at: self.clock.time(), reason: reason.into() })
    }
}

#[cfg(test)]
mod tests {
    use crate::http::EndpointSettings;
    use crate::{Address, Backend, pyroscope};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_spool_that_was_lost_unsynced_wakes_its_exporter_when_it_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let destination = EndpointSettings::new(Address::parse("http://127.0.0.1:9").unwrap());
        let backend = Backend::Pyroscope(pyroscope::Settings::default());
        let mut plan = ExporterSettings::new("exporter", backend, destination);
        plan.spool_dir = Some(folder.path().to_owned());
        let login = Login::new(&plan).unwrap();
        let spool = Spool::open(folder.path(), plan.spool_size);
        let intake = Arc::new(Intake::new(plan.memory));
        let (_commands, commands) = unbounded_channel();
        let (clock, figures, disks) = (Clock::real(), Figures::default(), Arc::default());
        let outside = Outside { clock, intake, commands, figures, disks };
        let mut worker = Worker::new(plan, login, Some(spool), outside);
        worker.next_sync = Some(9 * SECOND);
        assert_eq!(worker.next_wake(10 * SECOND), Some(9 * SECOND));
        worker.spool = None;
        worker.next_open = 15 * SECOND;
        assert_eq!(worker.next_wake(10 * SECOND), Some(15 * SECOND));
    }
}
