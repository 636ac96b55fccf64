//! Queues: deliver each exporter's batches to its server.
//!
//! [`Queues`] runs a task for each [`ExporterSettings`]. [`Queues::enqueue`] hands it a batch and returns
//! at once; the task puts the batch into its [`crate::spool`], sends it, and removes it when the server
//! has answered.
//!
//! - Order: batches are sent in the order of their time, the backlog before new ones. Concurrent
//!   requests may be answered in another order, and every fourth request to a failing server
//!   carries the second batch, in case the first causes the failure.
//! - A server that is down is tried with one request at a time, after waits that double and are
//!   random within bounds. When it is back, the number of requests at once grows from one.
//! - The same batch arrives twice only if the answer to the first was lost, with the network or
//!   with this process. It has the same id both times.
//! - Batches older than an exporter's age are dropped and never sent. Every loss is counted by
//!   cause in [`ExporterHealth`].
//! - A full or failing disk is counted and tried again; batches are then sent from memory, also while
//!   a disk does not answer ([`crate::disks`]).
//!
//! Modules: this one manages all exporters, `worker` runs one; `pace` and `order` decide what is
//! sent when, independent of clocks, disks and servers; `intake` takes batches, `login` sends them.

mod clock;
mod health;
mod intake;
mod login;
mod order;
mod pace;
mod settings;
mod worker;

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::Batch;
use crate::disks::{Disks, PATIENCE, silence};
use crate::http::SetupError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::queue::intake::Intake;
use crate::queue::login::Login;
use crate::queue::worker::{Command, Figures, Outside, Worker};
use crate::spool::{Spool, SpoolError};

pub use clock::Clock;
pub use health::{Count, Drops, ExporterHealth, State, Trouble};
pub use pace::Waits;
pub use settings::{CredentialSource, ExporterSettings};
pub(crate) use worker::QUIET;

/// How long requests of an exporter that is taken away may still take.
const GRACE: Duration = Duration::from_secs(3);
/// An exporter ends so long after its last request at the latest; a disk that does not answer may
/// keep its task for longer.
const ENDING: Duration = PATIENCE.saturating_mul(3);

/// Why exporters cannot be started as planned. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("exporter {exporter}: {source}")]
    Setup { exporter: String, source: SetupError },
    #[error("exporter {exporter}: {source}")]
    Spool { exporter: String, source: SpoolError },
    #[error("two exporters are named {0}")]
    SameName(String),
    #[error("the exporters could not be set up: the runtime is ending")]
    Ending,
}

/// Why a batch was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    #[error("there is no exporter of this name")]
    NoSuchExporter,
    #[error("the exporter has ended")]
    Ended,
}

/// One exporter, from outside.
struct Handle {
    plan: Mutex<ExporterSettings>,
    intake: Arc<Intake>,
    commands: UnboundedSender<Command>,
    figures: Figures,
    disks: Arc<Disks>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The parts of a handle's worker.
struct Beginning {
    login: Login,
    commands: UnboundedReceiver<Command>,
}

impl Handle {
    fn new(plan: ExporterSettings, login: Login, disks: &Arc<Disks>) -> (Arc<Self>, Beginning) {
        let (commands, received) = unbounded_channel();
        let health = ExporterHealth { name: plan.name.clone(), ..ExporterHealth::default() };
        let handle = Self {
            intake: Arc::new(Intake::new(plan.memory / 2)),
            plan: Mutex::new(plan),
            commands,
            figures: Arc::new(Mutex::new(health)),
            disks: Arc::clone(disks),
            task: Mutex::new(None),
        };
        (Arc::new(handle), Beginning { login, commands: received })
    }

    fn begin(&self, beginning: Beginning, spool: Option<Result<Spool, SpoolError>>, clock: Clock) {
        let outside = Outside {
            clock,
            intake: Arc::clone(&self.intake),
            commands: beginning.commands,
            figures: Arc::clone(&self.figures),
            disks: Arc::clone(&self.disks),
        };
        let worker = Worker::new(self.plan(), beginning.login, spool, outside);
        *unpoisoned(&self.task) = Some(tokio::spawn(worker.run()));
    }

    fn plan(&self) -> ExporterSettings {
        unpoisoned(&self.plan).clone()
    }

    fn stop(&self, within: Duration, sends: bool) {
        // It has no receiver only if the worker has ended.
        let _ = self.commands.send(Command::Stop { within, sends });
    }

    /// It has ended, and no exporter has its spool.
    fn warn_of_left(&self, clock: Clock) {
        let (left, plan) = (self.health(clock).spooled, self.plan());
        if let (1.., Some(spool)) = (left, &plan.spool_dir) {
            tracing::warn!(
                exporter = plan.name,
                "batches in {} that are not sent: {left}. This exporter is gone, or its spool is elsewhere \
                 now; they are sent once it has this one again",
                spool.display()
            );
        }
    }

    /// Waits until it has ended, after a stop; not for a disk that does not answer.
    async fn ended(&self, within: Duration) {
        let task = unpoisoned(&self.task).take();
        if let Some(task) = task
            && tokio::time::timeout(within.saturating_add(ENDING), task).await.is_err()
        {
            let name = &self.plan().name;
            tracing::warn!(exporter = name, "did not end in time: does its disk answer?");
        }
    }

    /// Whether its disk holds it up for so long that it is not waited for.
    fn is_held_up(&self) -> bool {
        let directory = unpoisoned(&self.plan).spool_dir.clone();
        let busy = directory.and_then(|directory| self.disks.busy_for(&directory));
        busy.is_some_and(|lasting| lasting >= PATIENCE)
    }

    fn health(&self, clock: Clock) -> ExporterHealth {
        // The intake first: a batch that moves in between is counted twice rather than never.
        let (waiting, oldest, dropped) = self.intake.figures();
        let mut health = unpoisoned(&self.figures).clone();
        health.queued = health.queued.saturating_add(waiting);
        health.drops.memory_full.add(dropped.batches, dropped.profiles);
        health.oldest = health.oldest.into_iter().chain(oldest).min();
        let lag = health.oldest.map_or(0, |oldest| clock.nanos().saturating_sub(oldest));
        health.lag = Duration::from_nanos(u64::try_from(lag).unwrap_or(0));
        if let Some(directory) = &unpoisoned(&self.plan).spool_dir
            && let Some(lasting) = self.disks.silent_for(directory)
        {
            let at = clock.time();
            let at = at.checked_sub(lasting).unwrap_or(at);
            health.spool_error = Some(Trouble { at, reason: silence(directory, lasting) });
        }
        health
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Delivers batches to servers, for all exporters. See the module's documentation.
pub struct Queues {
    exporters: RwLock<Vec<Arc<Handle>>>,
    clock: Clock,
    disks: Arc<Disks>,
    /// Held while plans change.
    changing: tokio::sync::Mutex<()>,
}

impl Queues {
    /// Starts all exporters on the tokio runtime that this is called from. What lies in their spools
    /// is sent too. A spool that cannot be opened for now is tried again.
    ///
    /// # Errors
    /// If a destination cannot be used, two exporters have one name, or another process has a spool.
    pub async fn start(plans: Vec<ExporterSettings>, clock: Clock) -> Result<Self, StartError> {
        check_names(&plans)?;
        let disks: Arc<Disks> = Arc::default();
        let until = tokio::time::Instant::now() + PATIENCE;
        let mut ready = Vec::new();
        for plan in plans {
            let login = login(&plan).await?;
            let spool = match open(&plan, &disks, until).await? {
                Some(Err(source @ SpoolError::Locked(_))) => {
                    return Err(StartError::Spool { exporter: plan.name, source });
                }
                opened => opened,
            };
            ready.push((Handle::new(plan, login, &disks), spool));
        }
        let mut exporters = Vec::new();
        for ((handle, beginning), spool) in ready {
            handle.begin(beginning, spool, clock);
            exporters.push(handle);
        }
        let (exporters, changing) = (RwLock::new(exporters), tokio::sync::Mutex::new(()));
        Ok(Self { exporters, clock, disks, changing })
    }

    /// The disks that work is done on, of these queues and of the pipeline before them.
    #[must_use]
    pub fn disks(&self) -> &Arc<Disks> {
        &self.disks
    }

    /// Passes a batch to an exporter. Never blocks; a batch that does not fit is counted as
    /// dropped.
    ///
    /// # Errors
    /// If there is no such exporter, or no more.
    pub fn enqueue(&self, exporter: &str, batch: Batch) -> Result<(), EnqueueError> {
        let handle =
            self.handles().into_iter().find(|handle| unpoisoned(&handle.plan).name == exporter);
        let handle = handle.ok_or(EnqueueError::NoSuchExporter)?;
        if handle.intake.give(batch) { Ok(()) } else { Err(EnqueueError::Ended) }
    }

    /// Waits until all batches passed in are in an exporter's spool, as far as its disk works; false
    /// if that takes longer, or its disk does not answer. Not for an async runtime's thread.
    #[must_use]
    pub fn wait_for_spool(&self, exporter: &str, until: Instant) -> bool {
        self.wait(exporter, until, Intake::wait)
    }

    /// Waits until an exporter can take a batch of so many bytes without dropping another, as
    /// [`Self::wait_for_spool`] does.
    #[must_use]
    pub fn wait_for_room(&self, exporter: &str, bytes: usize, until: Instant) -> bool {
        self.wait(exporter, until, |intake, within| intake.wait_for_room(bytes, within))
    }

    fn wait(
        &self,
        exporter: &str,
        until: Instant,
        wait: impl FnOnce(&Intake, Duration) -> bool,
    ) -> bool {
        let handle =
            self.handles().into_iter().find(|handle| unpoisoned(&handle.plan).name == exporter);
        handle.is_none_or(|handle| {
            let until = if handle.is_held_up() { Instant::now() } else { until };
            wait(&handle.intake, until.saturating_duration_since(Instant::now()))
        })
    }

    /// The health of every exporter, in the order of their plans.
    #[must_use]
    pub fn health(&self) -> Vec<ExporterHealth> {
        self.handles().iter().map(|handle| handle.health(self.clock)).collect()
    }

    /// Changes to other plans, by name. An exporter that disappears leaves its spool on disk, and
    /// one that comes back finds it. A new destination or credential applies to spooled batches
    /// too. An exporter with an unchanged plan is not interrupted.
    ///
    /// # Errors
    /// If the plans cannot be used. Then nothing changes.
    pub async fn reconfigure(&self, plans: Vec<ExporterSettings>) -> Result<(), StartError> {
        let _changing = self.changing.lock().await;
        check_names(&plans)?;
        let mut old = self.handles();
        let mut exporters = Vec::new();
        let mut changed = Vec::new();
        let mut begun = Vec::new();
        for plan in plans {
            let same = |handle: &Arc<Handle>| {
                let known = unpoisoned(&handle.plan);
                known.name == plan.name && known.spool_dir == plan.spool_dir
            };
            let Some(position) = old.iter().position(same) else {
                let login = login(&plan).await?;
                let (handle, beginning) = Handle::new(plan, login, &self.disks);
                exporters.push(Arc::clone(&handle));
                begun.push((handle, beginning));
                continue;
            };
            let handle = old.remove(position);
            if handle.plan() != plan {
                let login = login(&plan).await?;
                changed.push((Arc::clone(&handle), plan, login));
            }
            exporters.push(handle);
        }
        // From here on nothing fails.
        for (handle, plan, login) in changed {
            *unpoisoned(&handle.plan) = plan.clone();
            let (plan, login) = (Box::new(plan), Box::new(login));
            let _ = handle.commands.send(Command::Replan { plan, login });
        }
        // One whose spool is elsewhere now goes on counting.
        let go_on = || {
            for (handle, _) in &begun {
                let name = handle.plan().name;
                if let Some(before) = old.iter().find(|before| before.plan().name == name) {
                    unpoisoned(&handle.figures).go_on_from(before.health(self.clock));
                }
            }
        };
        go_on();
        *self.exporters.write().unwrap_or_else(PoisonError::into_inner) = exporters;
        for handle in &old {
            handle.stop(GRACE, false);
        }
        for handle in &old {
            handle.ended(GRACE).await;
            handle.warn_of_left(self.clock);
        }
        go_on();
        // Last, because an exporter may have the spool of one that just ended.
        let until = tokio::time::Instant::now() + PATIENCE;
        for (handle, beginning) in begun {
            let spool = open(&handle.plan(), &self.disks, until).await.unwrap_or_default();
            handle.begin(beginning, spool, self.clock);
        }
        Ok(())
    }

    /// Sends pending batches for as long as `within`; then the unsent ones are in the spools and
    /// synced to disk, unless that does not answer. Later batches are refused.
    pub async fn shutdown(&self, within: Duration) -> Vec<ExporterHealth> {
        let _changing = self.changing.lock().await;
        let handles = self.handles();
        for handle in &handles {
            handle.stop(within, true);
        }
        let until = Instant::now() + within;
        for handle in &handles {
            handle.ended(until.saturating_duration_since(Instant::now())).await;
        }
        self.health()
    }

    fn handles(&self) -> Vec<Arc<Handle>> {
        self.exporters.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn check_names(plans: &[ExporterSettings]) -> Result<(), StartError> {
    let mut names = std::collections::BTreeSet::new();
    match plans.iter().find(|plan| !names.insert(&plan.name)) {
        Some(plan) => Err(StartError::SameName(plan.name.clone())),
        None => Ok(()),
    }
}

async fn login(plan: &ExporterSettings) -> Result<Login, StartError> {
    let (plan, exporter) = (plan.clone(), plan.name.clone());
    let made = blocking(move || Login::new(&plan)).await?;
    made.map_err(|source| StartError::Setup { exporter, source })
}

/// The plan's spool, if it has one and its disk answers until then. Else the worker opens it.
async fn open(
    plan: &ExporterSettings,
    disks: &Arc<Disks>,
    until: tokio::time::Instant,
) -> Result<Option<Result<Spool, SpoolError>>, StartError> {
    let Some(directory) = plan.spool_dir.clone() else { return Ok(None) };
    let most = plan.spool_size;
    let busy = disks.begin(&directory);
    let opening = blocking(move || {
        let opened = Spool::open(&directory, most);
        drop(busy);
        opened
    });
    match tokio::time::timeout_at(until, opening).await {
        Ok(opened) => opened.map(Some),
        Err(_) => Ok(None),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StartError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| StartError::Ending)
}
