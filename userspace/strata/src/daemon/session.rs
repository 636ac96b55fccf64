//! The daemon's loop: samples and flushes, signals, bridges, memory, the watchdog.
//!
//! - [`publishing`]: runs flushes, and passes profiles to the pipeline.
//! - [`reloading`]: changes of the configuration.
//! - [`figures`]: its status.

mod figures;
mod publishing;
mod reloading;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use strata_abi::record::END_COUNT;
use strata_config::rules::BridgePolicy;
use strata_config::{Configuration, Loaded};
use strata_export::{Clock, Queues, disks, exporter};
use strata_kinds::Kind;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::flushing::Flusher;
use super::log::Log;
use super::memory::{self, Budget, Pressure, Watch};
use super::notify::Manager;
use super::paths;
use super::process_metadata::{Described, age_of};
use super::runtimes::Runtimes;
use super::settings::{Source, kept_times, kernel_frequencies, sampled_kinds};
use super::shared_status::SharedStatus;
use super::web;
use crate::status::SHED;
use crate::{capabilities, second_signal};
use figures::SlowFigures;
use strata_agent::engine::{Engine, Options};
use strata_agent::event_loop::{Due, EventLoop, Next};
use strata_agent::image_id::ImageId;
use strata_agent::kernel::introspect::{self, RunTimeStatistics};
use strata_agent::kernel::loader::{Settings, ThreadsOf};
use strata_agent::kernel::sideband::Wakeup;
use strata_agent::managed::Policy;
use strata_agent::managed::events::KINDS as CLR_EVENTS;
use strata_agent::selection::Wanted;
use strata_export::pipeline::{Hooks, Pipeline, PipelineSettings, PoolSettings, StoreSettings};
use strata_store::{Store, StoreError};

/// Records are drained at least this often; with the tick while there are none.
const TURN: Duration = Duration::from_millis(250);
/// Events arrive in bursts: they are taken together.
const BURST: Duration = Duration::from_millis(10);
/// The interval of polling bridges, memory and figures.
const TICK: Duration = Duration::from_secs(1);
/// The interval of figures that are costly to collect.
const SLOW_TICK: Duration = Duration::from_secs(10);
/// Processes that the status shows.
pub(super) const MOST_SHOWN: usize = 500;
/// Stacks that wait for their tables at the end wait so long.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time given to the store and the exporters at the end.
const LAST_PUBLISH: Duration = Duration::from_secs(15);
const LAST_DELIVERY: Duration = Duration::from_secs(10);
/// The store's profiles are of this period.
const STORE_PERIOD: Duration = Duration::from_secs(15);
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);
const MAX_FRAMES: u32 = 1024;

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

/// The action of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// By this signal.
    End(&'static str),
    Reload,
}

impl Signals {
    fn new() -> Result<Self> {
        let take = |kind| signal(kind).context("signals cannot be handled");
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: take(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::End("SIGINT"),
            _ = self.terminate.recv() => Asked::End("SIGTERM"),
            _ = self.hangup.recv() => Asked::Reload,
        }
    }
}

struct Daemon {
    reloading: Reloading,
    configuration: Configuration,
    engine: Engine,
    flusher: Flusher,
    /// Symbols have come.
    symbols: Arc<Notify>,
    runtimes: Runtimes,
    publisher: Pipeline,
    delivery: Arc<Queues>,
    status: Arc<SharedStatus>,
    network: Handle,
    manager: Manager,
    log: Log,
    /// Paths whose disks did not answer at the last tick.
    silent_disks: Vec<String>,
    memory: Memory,
    period: Duration,
    /// How stacks ended, of all flushes.
    ends: [u64; END_COUNT],
    slow: Slow,
    /// .NET processes that had a bridge at the last reload, and of which it is not decided yet which events are
    /// wanted.
    undecided_events: HashSet<ImageId>,
    _run_time: Option<RunTimeStatistics>,
}

/// The source of the configuration, and the outcomes of reloads.
struct Reloading {
    source: Source,
    count: u64,
    trouble: Option<String>,
}

/// The memory limit, the memory used, and what was freed.
struct Memory {
    budget: Budget,
    watch: Watch,
    /// Bytes of maps besides the tables' segments.
    fixed_maps: u64,
    early_flushes: u64,
    shed: [u64; SHED.len()],
}

/// Figures of the status that are collected every [`SLOW_TICK`].
struct Slow {
    taken: Instant,
    figures: SlowFigures,
    /// The sampled processes.
    described: Described,
}

/// Thousandths of a CPU that switches and sampling waits may cost the host.
const OFF_CPU_SHARE: u32 = 10;

const HOOKS: Hooks =
    Hooks { started: || crate::priority::set_priority(0), trim: memory::trim_now_and_then };

/// Runs until it is asked to end.
pub async fn run(source: Source, loaded: Loaded, network: Handle) -> Result<()> {
    let Loaded { configuration, notices, .. } = loaded;
    let log = Log::start(&configuration.log_target.value, configuration.log_level.value)?;
    for notice in notices {
        tracing::warn!("{notice}");
    }
    let mut signals = Signals::new()?;
    let manager = Manager::of_environment();
    raise_file_limit();
    let budget = Budget::of(configuration.memory_limit.value.0, configuration.exporters.len());
    let destinations = destinations(&configuration, &budget)?;
    // Listening first: a second daemon ends here, before it does anything to the host.
    let socket = match &configuration.status_socket.value {
        Some(path) => web::socket(path)?,
        None => None,
    };
    // Nor may two write one store: the second would sample for nothing.
    if let Some(store) = &destinations.store {
        check_free(store.directory.clone())?;
    }
    warn_of_orphans(destinations.clone());
    let starting = Queues::start(destinations.plans.clone(), Clock::real());
    let delivery = network.spawn(starting).await??;
    let delivery = Arc::new(delivery);
    crate::priority::set_priority(crate::priority::RECORDING_PRIORITY);
    let frequencies = kernel_frequencies(&configuration);
    let kinds = sampled_kinds(&configuration);
    let run_time = introspect::enable_run_time_stats()
        .inspect_err(|error| tracing::info!(%error, "BPF run times are not counted"))
        .ok();
    let mut engine = Engine::new(Options {
        wakeup: Wakeup::Many,
        settings: Settings {
            max_frames: MAX_FRAMES,
            ring_bytes: budget.ring,
            frequency: u64::from(frequencies.of(Kind::Cpu)),
            threads_of: ThreadsOf::None,
            off_cpu: kinds.contains(Kind::OffCpu).then_some(OFF_CPU_SHARE),
            wall: kinds.contains(Kind::Wall),
            clr_events: !kinds.and(CLR_EVENTS).is_empty(),
        },
        wanted: Wanted::default(),
        // Which kinds of a process are kept is decided when its identity is known.
        kinds,
        times: kept_times(&configuration),
        frequencies,
        table_memory: budget.tables,
        waiting_memory: budget.stacks,
        own_pid: own_pid(&configuration),
        managed: Policy::AsTold,
        messages: configuration.exception_messages.value,
        signatures: false,
        opened: Some(capabilities::give_up_administration),
    })?;
    engine.newcomers = Some(Vec::new());
    engine.managed.set_budget(budget.bridges);
    engine.start()?;
    let publisher = Pipeline::start(destinations, delivery.clone(), network.clone(), HOOKS)
        .context("the publisher's thread cannot be started")?;
    let maps = introspect::of_this_process().map_or(0, |used| used.map_bytes());
    let fixed_maps = maps.saturating_sub(engine.store.segments.bytes());
    let status = Arc::new(SharedStatus::new(publisher.figures(), delivery.clone()));
    web::start(socket, configuration.metrics.value, status.clone())?;
    let symbols = Arc::new(Notify::new());
    let wake = symbols.clone();
    let mut daemon = Daemon {
        flusher: Flusher::start(&configuration, budget.names, budget.process_metadata, move || {
            wake.notify_one();
        })
        .context("threads for symbols cannot be started")?,
        symbols,
        runtimes: Runtimes::start(&configuration.containers, &network),
        period: period(&configuration),
        memory: Memory {
            watch: Watch::new(budget.limit),
            budget,
            fixed_maps,
            early_flushes: 0,
            shed: Default::default(),
        },
        reloading: Reloading { source, count: 0, trouble: None },
        configuration,
        engine,
        publisher,
        delivery,
        status,
        network,
        manager,
        log,
        silent_disks: Vec::new(),
        ends: [0; END_COUNT],
        slow: Slow {
            taken: Instant::now() - SLOW_TICK,
            figures: SlowFigures::default(),
            described: Described::default(),
        },
        undecided_events: HashSet::new(),
        _run_time: run_time,
    };
    daemon.tick()?;
    let summary = daemon.summary();
    tracing::info!("strata {} is sampling: {summary}", env!("CARGO_PKG_VERSION"));
    daemon.manager.ready(&summary);
    daemon.serve(&mut signals).await?;
    drop(signals);
    daemon.finish().await
}

/// Processes whose samples are dropped: strata's own, unless configured otherwise.
fn own_pid(configuration: &Configuration) -> u32 {
    if configuration.profile_self.value { NOBODY } else { std::process::id() }
}

/// No process has this number.
const NOBODY: u32 = u32::MAX;

/// The shortest period of any consumer.
fn period(configuration: &Configuration) -> Duration {
    let exporters = configuration.exporters.iter().map(|exporter| exporter.period.value);
    let store = configuration.store.enabled.value.then_some(STORE_PERIOD);
    exporters.chain(store).min().unwrap_or(STORE_PERIOD).max(SHORTEST_PERIOD)
}

fn destinations(configuration: &Configuration, budget: &Budget) -> Result<PipelineSettings> {
    let store = &configuration.store;
    let spools = paths::spools_of(&store.path.value);
    let (exporters, plans) =
        exporter::of(&configuration.exporters, spools.as_deref(), budget.exporter)?;
    let defaults = strata_store::Options::default();
    let plan = store.enabled.value.then(|| StoreSettings {
        directory: store.path.value.clone(),
        options: strata_store::Options {
            max_age: store.age.value,
            max_bytes: store.size.value.0,
            dictionary_bytes: budget.store.min(defaults.dictionary_bytes),
            ..defaults
        },
    });
    let (memory, waiting) = (budget.exporter, budget.waiting);
    let services = &configuration.services;
    let pool = PoolSettings {
        service: services.pool.value.clone(),
        samples: services.pool_below.value.into(),
        services: services.most.value as usize,
    };
    Ok(PipelineSettings { store: plan, exporters, plans, spools, memory, waiting, pool })
}

/// Whether another daemon writes this store. A disk that does not answer is not waited for.
fn check_free(store: PathBuf) -> Result<()> {
    let (sender, receiver) = sync_channel(1);
    // Who asked may have gone on.
    std::thread::spawn(move || drop(sender.send(Store::check_free(&store))));
    match receiver.recv_timeout(disks::PATIENCE) {
        Ok(Err(error @ StoreError::Locked { .. })) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Nothing waits for their disk.
fn warn_of_orphans(destinations: PipelineSettings) {
    std::thread::spawn(move || destinations.warn_of_orphans());
}

/// Files of many containers are open at the same time.
fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for both calls; raising the soft limit up to the hard one is allowed.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

impl Daemon {
    async fn serve(&mut self, signals: &mut Signals) -> Result<()> {
        let mut agent = EventLoop::of(&self.engine, BURST)?;
        let mut next_tick = Instant::now();
        let mut watchdog = self.manager.watchdog().map(tokio::time::interval);
        loop {
            let time = self.next_flush_turn().into_iter().chain([next_tick]).min();
            let mut due = tokio::select! {
                biased;
                asked = signals.next() => match asked {
                    Asked::End(signal) => {
                        tracing::info!("{signal}: the daemon ends");
                        return Ok(());
                    }
                    Asked::Reload => {
                        self.reload().await;
                        Some(Due::Deadline)
                    }
                },
                () = beat(&mut watchdog) => {
                    self.manager.alive();
                    None
                }
                () = self.symbols.notified() => None,
                next = agent.due(&self.engine, time) => match next? {
                    Next::Turn(due) => Some(due),
                    Next::Time => None,
                },
            };
            if Instant::now() >= next_tick {
                self.tick()?;
                next_tick = Instant::now() + TICK;
                due.get_or_insert(Due::Deadline);
            }
            if let Some(due) = due {
                agent.turn(&mut self.engine, due).await?;
                self.meet_newcomers();
                if self.engine.aggregate.bytes() > self.memory.budget.samples {
                    self.memory.early_flushes += 1;
                    self.flush();
                }
            }
            self.publisher.retry();
            if self.flusher.elapsed() >= self.period && !self.is_held_up() {
                self.flush();
            } else if self.flusher.is_flushing() {
                self.go_on_with_flush(false);
            }
        }
    }

    fn meet_newcomers(&mut self) {
        self.flusher.meet_newcomers(&mut self.engine, &self.runtimes);
    }

    /// What is done once a second.
    fn tick(&mut self) -> Result<()> {
        // The samples would have no consumer.
        if self.publisher.has_died() {
            anyhow::bail!("the publisher has ended: see the log");
        }
        self.status.turned();
        self.look_at_disks();
        self.admit();
        self.decide_on_events();
        let maps = self.memory.fixed_maps.saturating_add(self.engine.store.segments.bytes());
        let mut workers: Vec<u32> = self.engine.loading.service().child_pids().collect();
        workers.extend(self.flusher.symbolizer.helper_pids());
        let pressure = self.memory.watch.look(workers.into_iter(), maps);
        self.flusher.symbolizer.set_worker_memory(self.memory.watch.room_for_workers());
        self.shed(pressure);
        if self.slow.taken.elapsed() >= SLOW_TICK {
            self.slow.taken = Instant::now();
            self.slow.figures = self.slow_figures();
            self.slow.described = self.flusher.processes.described(MOST_SHOWN);
        }
        self.status.set(self.status());
        Ok(())
    }

    /// Names the disks that do not answer, once in the log.
    fn look_at_disks(&mut self) {
        let silent = self.status.silent_disks();
        let paths: Vec<String> = silent.iter().map(|disk| disk.path.clone()).collect();
        for disk in silent.iter().filter(|disk| !self.silent_disks.contains(&disk.path)) {
            tracing::warn!("{}: only what needs it waits", disk.text());
        }
        for path in self.silent_disks.iter().filter(|path| !paths.contains(path)) {
            tracing::warn!("{path}: its disk answers again");
        }
        self.status.name_disks(&silent);
        self.silent_disks = paths;
    }

    /// .NET processes that are not decided on yet.
    fn admit(&mut self) {
        let candidates: Vec<_> = self.engine.managed.candidates().collect();
        for (image, pid) in candidates {
            // A process that does nothing has no sample yet, and is what a rule may protect.
            self.engine.meet(image, pid);
            let configuration = &self.configuration;
            let who =
                self.flusher.processes.who(&self.engine, configuration, &self.runtimes, image, 0);
            let processes = &self.flusher.processes;
            if !processes.is_read(image)
                || processes.awaits_container(&self.engine, &self.runtimes, image)
            {
                continue;
            }
            let decided = who.as_ref().and_then(|who| who.decision.bridge);
            let types = who.as_ref().map(|who| who.identity.types.on);
            let kinds = types.unwrap_or(configuration.types.value);
            let is_wanted = who.is_none_or(|who| who.decision.choice.enabled != Some(false));
            let policy = match decided.unwrap_or(configuration.bridge.value) {
                _ if !is_wanted => Policy::Off,
                BridgePolicy::Off => Policy::Off,
                BridgePolicy::Environment => Policy::EnvironmentOnly,
                BridgePolicy::Attach => match age_of(pid) {
                    Some(age) if age >= configuration.bridge_age.value => Policy::Attach,
                    // Not yet; or gone.
                    _ => continue,
                },
            };
            self.engine.managed.admit(image, policy);
            self.engine.managed.want_events_of(image, kinds);
        }
    }

    /// After a reload: which events are wanted of .NET processes that have a bridge already.
    fn decide_on_events(&mut self) {
        for image in std::mem::take(&mut self.undecided_events) {
            let (processes, configuration) = (&mut self.flusher.processes, &self.configuration);
            let who = processes.who(&self.engine, configuration, &self.runtimes, image, 0);
            let Some(who) = who else { continue };
            if !processes.is_read(image)
                || processes.awaits_container(&self.engine, &self.runtimes, image)
            {
                if self.engine.managed.standing_of(image).is_some() {
                    self.undecided_events.insert(image);
                }
                continue;
            }
            self.engine.managed.want_events_of(image, who.identity.types.on);
        }
    }

    /// Frees memory, the least needed first.
    fn shed(&mut self, pressure: Pressure) {
        if pressure == Pressure::None {
            return;
        }
        self.memory.shed[0] += 1;
        self.flusher.symbolizer.shed();
        self.flusher.processes.shed();
        if pressure == Pressure::Over {
            // There are few samples since the last flush, and a flush takes memory too: most, if the
            // profiles of the last one had to be built at once.
            if self.engine.aggregate.bytes() > self.memory.budget.samples / 8
                && !self.flusher.is_flushing()
            {
                self.memory.shed[1] += 1;
                self.flush();
            }
            self.memory.shed[2] += 1;
            self.engine.loading.service().release();
            self.flusher.symbolizer.release();
            self.publisher.end_early();
            tracing::debug!(bytes = self.memory.watch.last.total(), "at the memory limit");
        }
        memory::trim();
    }

    fn summary(&self) -> String {
        let configuration = &self.configuration;
        let exporters: Vec<&str> =
            configuration.exporters.iter().map(|exporter| exporter.name.as_str()).collect();
        let exporters = if exporters.is_empty() {
            "no exporters".to_owned()
        } else {
            format!("to {}", exporters.join(", "))
        };
        let store = match configuration.store.enabled.value {
            true => format!("store {}", configuration.store.path.value.display()),
            false => "no store".to_owned(),
        };
        let frequency = configuration.frequencies().of(Kind::Cpu);
        let of_rules = kernel_frequencies(configuration).of(Kind::Cpu);
        let frequency = crate::printing::frequency(frequency, of_rules);
        format!("{frequency}, {exporters}, {store}")
    }

    /// Flushes the rest of the period, and detaches bridges.
    async fn finish(mut self) -> Result<()> {
        second_signal::ends_at_once(
            &[libc::SIGINT, libc::SIGTERM],
            "strata: a second signal: ends at once; what was not sent yet is lost or in the spool\n",
        );
        self.manager.stopping();
        tracing::info!("ending: the last profiles are sent");
        self.engine.finish(PATIENCE);
        self.meet_newcomers();
        self.flush_all().await;
        self.engine.managed.release();
        let (publisher, delivery) = (self.publisher, self.delivery);
        let flushed = tokio::task::spawn_blocking(move || publisher.end(LAST_PUBLISH));
        if !flushed.await.unwrap_or(false) {
            tracing::warn!("not everything could be published in {LAST_PUBLISH:?}");
        }
        let last = self.network.spawn(async move { delivery.shutdown(LAST_DELIVERY).await });
        for exporter in last.await? {
            if exporter.spooled > 0 {
                tracing::info!(
                    exporter = exporter.name,
                    batches = exporter.spooled,
                    "left for the next start"
                );
            }
        }
        Ok(())
    }
}

async fn beat(watchdog: &mut Option<tokio::time::Interval>) {
    match watchdog {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}
