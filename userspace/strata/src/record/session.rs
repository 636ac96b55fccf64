//! The recording itself: one thread, one loop over records, events, signals and the command.

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use strata_abi::record::End;
use strata_clr::environment::Variable;
use strata_kinds::{Kind, Kinds};
use tokio::process::Child;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::launch;
use super::live::{Figures, Live};
use super::{Plan, report};
use crate::losses::lost;
use crate::user::User;
use crate::{capabilities, output, priority, process_files, second_signal};
use strata_agent::engine::{Engine, Options};
use strata_agent::event_loop::{Due, EventLoop, Next};
use strata_agent::image_id::ImageId;
use strata_agent::kernel::introspect;
use strata_agent::kernel::loader::{Settings, ThreadsOf};
use strata_agent::kernel::sideband::Wakeup;
use strata_agent::managed::Policy;
use strata_agent::managed::events::KINDS as CLR_EVENTS;
use strata_agent::selection::Wanted;

/// A recording that has ended, not yet symbolized.
pub struct Recorded {
    pub engine: Engine,
    pub started: SystemTime,
    pub length: Duration,
    pub command_status: Option<ExitStatus>,
    /// The command, when it goes on after the recording.
    pub still_running: Option<u32>,
    pub user: Option<User>,
}

/// The reason why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedBy {
    Duration,
    Signal,
    Command,
    /// The selected process has ended.
    Target,
}

/// Events arrive in bursts (a program starting maps a dozen files): they are taken together.
const BURST: Duration = Duration::from_millis(3);
/// Up to this frequency, process events are taken together ([`wakeup`]).
const GENTLE: u32 = 250;
/// The live line is renewed this often.
const SHOW: Duration = Duration::from_secs(1);
/// Stacks that wait for their tables at the end wait so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Thousandths of a CPU that switches and sampling waits may cost the host: more than in the daemon,
/// so that every wait of what is recorded is seen as long as there are not many thousands a second.
const OFF_CPU_SHARE: u32 = 30;

/// Bytes of copied stacks that wait until they can be unwound.
const WAITING_MEMORY: usize = 64 << 20;

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `nohup` ignores it, for the recording and its command.
    hangup: Option<Signal>,
    quit: Signal,
    /// When the first one came that ends the recording.
    asked_to_end: Option<Instant>,
}

impl Signals {
    fn new() -> Result<Self> {
        let take = |kind| signal(kind).context("signals cannot be handled");
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: match is_ignored(libc::SIGHUP) {
                true => None,
                false => Some(take(SignalKind::hangup())?),
            },
            quit: take(SignalKind::quit())?,
            asked_to_end: None,
        })
    }

    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => libc::SIGINT,
            _ = self.terminate.recv() => libc::SIGTERM,
            _ = received(&mut self.hangup) => libc::SIGHUP,
            _ = self.quit.recv() => libc::SIGQUIT,
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

pub(super) fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no action is set; the other pointer is valid for the call, and the struct plain data.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Records as planned. Everything that can fail early fails before sampling starts.
pub async fn record(plan: &Plan) -> Result<Recorded> {
    let user = User::of_recording(plan.user.as_deref())?;
    output::check(plan.files()?.iter().map(|file| file.path.as_path()), user.as_ref())?;
    let wanted = wanted(plan)?;
    let mut signals = Signals::new()?;
    priority::set_priority(priority::RECORDING_PRIORITY);
    // Counting costs a little, and only scripts and the curious look at it.
    let run_time = (plan.json || plan.verbose > 0)
        .then(introspect::enable_run_time_stats)
        .and_then(|enabled| {
            enabled
                .inspect_err(|error| tracing::warn!(%error, "BPF run times are not counted"))
                .ok()
        });
    let mut engine = Engine::new(Options {
        wakeup: wakeup(plan),
        settings: Settings {
            max_frames: plan.max_frames,
            ring_bytes: ring_bytes(plan.frequency),
            frequency: u64::from(plan.frequency),
            threads_of: ThreadsOf::None,
            off_cpu: plan.kinds.contains(Kind::OffCpu).then_some(OFF_CPU_SHARE),
            wall: plan.kinds.contains(Kind::Wall),
            clr_events: !plan.kinds.and(CLR_EVENTS).is_empty(),
        },
        wanted,
        kinds: plan.kinds,
        times: if plan.timeline { plan.kinds } else { Kinds::NONE },
        frequencies: plan.frequencies(),
        table_memory: plan.table_memory,
        waiting_memory: WAITING_MEMORY,
        own_pid: std::process::id(),
        managed: plan.managed,
        messages: plan.exception_messages,
        signatures: plan.signatures,
        opened: Some(capabilities::give_up_administration),
    })?;
    engine.start()?;
    engine.note_matches();
    let started = SystemTime::now();
    let mut command = match plan.command.as_slice() {
        [] => None,
        command => Some(launch::start(command, user.as_ref(), &variables(plan))?),
    };
    if let Some(pid) = command.as_ref().and_then(Child::id) {
        engine.selection.add_root(pid);
    }
    let mut live = Live::new(plan.duration, plan.quiet || plan.json);
    if engine.selection.matches_nothing() {
        live.say(&format!(
            "{} yet: waiting for one to start",
            report::unmatched(&engine.selection)
        ));
    }
    let begun = Instant::now();
    let (ended_by, command_status) =
        run(plan, &mut engine, &mut command, &mut signals, &mut live).await?;
    let length = begun.elapsed();
    if ended_by == EndedBy::Target {
        live.say("what was to be profiled has ended");
    }
    live.clear();
    engine.note_matches();
    let still_running = match command_status {
        Some(_) => None,
        None => command.as_ref().and_then(Child::id),
    };
    // It is waited for later, and not by this event loop.
    std::mem::forget(command);
    // From here on a second Ctrl-C ends strata at once, whatever it is doing.
    let all = [libc::SIGINT, libc::SIGTERM, libc::SIGQUIT, libc::SIGHUP];
    let all = if signals.hangup.is_some() { &all[..] } else { &all[..3] };
    let text = "\nstrata: stopped before the profile was written\n";
    match signals.asked_to_end.is_some() {
        true => second_signal::ends_at_once(all, text),
        false => second_signal::ends_at_the_second(all, text),
    }
    drop(signals);
    engine.finish(PATIENCE);
    // Symbolizing and writing delay no other work.
    priority::set_priority(0);
    engine.note_kernel_use();
    drop(run_time);
    Ok(Recorded { engine, started, length, command_status, still_running, user })
}

/// What makes .NET programs below the command load the bridge at their start.
fn variables(plan: &Plan) -> Vec<Variable> {
    if plan.managed == Policy::Off {
        return Vec::new();
    }
    crate::environment::for_child().unwrap_or_else(|error| {
        tracing::info!("the bridge is not loaded at the start of .NET programs: {error:#}");
        Vec::new()
    })
}

fn wanted(plan: &Plan) -> Result<Wanted> {
    let mut wanted = plan.wanted.clone();
    for pid in &mut wanted.pids {
        *pid = process_files::process_of(*pid)?;
    }
    // With a command and no other wish, only the command is recorded.
    wanted.only_roots = !plan.command.is_empty();
    Ok(wanted)
}

async fn run(
    plan: &Plan,
    engine: &mut Engine,
    command: &mut Option<Child>,
    signals: &mut Signals,
    live: &mut Live,
) -> Result<(EndedBy, Option<ExitStatus>)> {
    let mut agent = EventLoop::of(engine, BURST)?;
    let end = plan.duration.map(|duration| Instant::now() + duration);
    let mut next_show = Instant::now();
    loop {
        let time = end.into_iter().chain([next_show]).min();
        let due = tokio::select! {
            biased;
            received = signals.next() => {
                match signals.asked_to_end {
                    Some(asked) if asked.elapsed() < second_signal::ONE_REQUEST => continue,
                    Some(_) if received != libc::SIGHUP => return Ok((EndedBy::Signal, None)),
                    _ => signals.asked_to_end = Some(Instant::now()),
                }
                let Some(child) = command.as_ref().and_then(Child::id) else {
                    return Ok((EndedBy::Signal, None));
                };
                // The terminal sends its signals to the whole group: the command has it already.
                if !(from_terminal(received)) {
                    // SAFETY: plain numbers; the child is not reaped yet.
                    unsafe { libc::kill(child as i32, received) };
                }
                live.say("ending: waiting for the command (once more to stop at once)");
                None
            }
            status = wait_for(command) => {
                let status = status.context("waiting for the command failed")?;
                return Ok((EndedBy::Command, Some(status)));
            }
            next = agent.due(engine, time) => match next? {
                Next::Turn(due) => Some(due),
                Next::Time => None,
            },
        };
        let now = Instant::now();
        if end.is_some_and(|end| now >= end) {
            return Ok((EndedBy::Duration, None));
        }
        let shows = now >= next_show;
        let due = if shows { due.or(Some(Due::Deadline)) } else { due };
        if let Some(due) = due {
            agent.turn(engine, due).await?;
            if targets_are_gone(plan, engine) {
                return Ok((EndedBy::Target, None));
            }
        }
        if shows {
            next_show = now + SHOW;
            live.update(figures(engine));
        }
    }
}

async fn wait_for(command: &mut Option<Child>) -> std::io::Result<ExitStatus> {
    match command {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

/// Whether a signal is one that a terminal sends to its whole foreground group, and we are in it.
pub(super) fn from_terminal(signal: i32) -> bool {
    if signal != libc::SIGINT && signal != libc::SIGQUIT {
        return false;
    }
    // Whatever the standard input is: `record -- tool < input` has a terminal too.
    let Ok(terminal) = std::fs::File::open("/dev/tty") else { return false };
    // SAFETY: no preconditions.
    unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) == libc::getpgrp() }
}

/// A recording of given processes ends with the last of them.
fn targets_are_gone(plan: &Plan, engine: &Engine) -> bool {
    !plan.wanted.pids.is_empty()
        && plan.wanted.comms.is_empty()
        && plan.wanted.groups.is_empty()
        && plan.command.is_empty()
        && engine.selection.roots_are_gone()
}

fn figures(engine: &Engine) -> Figures {
    let ends = engine.aggregate.ends();
    let of = |end: End| ends.get(end as usize).copied().unwrap_or_default();
    let samples = engine.aggregate.samples();
    // Strata knows more than it has sampled.
    let images: HashSet<ImageId> = engine.aggregate.threads().map(|thread| thread.image).collect();
    // A process has an image for each program that it executed.
    let pids = images.iter().filter_map(|image| engine.table.image(*image)).map(|image| image.pid);
    let pids: HashSet<u32> = pids.collect();
    Figures {
        samples,
        processes: pids.len(),
        lost: lost(engine),
        incomplete: samples - of(End::Complete) - of(End::KernelOnly),
    }
}

/// A command may end before it is looked at for the first time, and at high rates much of what a
/// runtime has just compiled is sampled within milliseconds: then each process event is taken at once.
/// Else they are taken together, and programs that start elsewhere on the host do not pay for it.
fn wakeup(plan: &Plan) -> Wakeup {
    if plan.frequency > GENTLE || !plan.command.is_empty() { Wakeup::Each } else { Wakeup::Many }
}

/// Room for about a second of usual records of all CPUs, and for some raw stacks of new processes,
/// which are larger: between 4 and 16 MiB.
fn ring_bytes(frequency: u32) -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let bytes = u64::from(frequency) * cpus * 8_192;
    bytes.next_power_of_two().clamp(4 << 20, 16 << 20) as u32
}
