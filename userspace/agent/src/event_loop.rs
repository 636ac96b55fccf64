//! The event loop of the agent: waits for records, process events and answers about files, and lets
//! the engine take them. A recording and the daemon run the same one and add their own events to it
//! (signals, a command that ends, ticks, flushes).
//!
//! Invariant: [`EventLoop::due`] only waits, so that it may be dropped whenever something else is
//! due first; what it reports is taken by [`EventLoop::turn`].

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::time::Instant;

use crate::engine::Engine;

/// Records are drained at least this often, while there are any and a bridge may have something to
/// report: code that a runtime replaces must be known before samples of it are old.
const BESIDE_BRIDGES: Duration = Duration::from_millis(250);
/// The same when neither samples nor bridges had anything in the last turn. A stack through code that
/// no bridge has reported wakes the loop by itself.
const BESIDE_IDLE_BRIDGES: Duration = Duration::from_millis(1000);
/// The same without bridges. Recordings and the daemon turn every second anyway, so this comes due
/// only when they are late: each waking costs an idle host.
const WITHOUT_BRIDGES: Duration = Duration::from_millis(1500);

#[derive(Debug, thiserror::Error)]
#[error("the agent's descriptors cannot be waited for: {0}")]
pub struct EventLoopError(#[from] io::Error);

/// The reason for a turn of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Processes have changed.
    ProcessEvents,
    Records,
    /// Files or tables have arrived.
    Files,
    /// The engine wanted a turn at this time.
    Deadline,
}

/// See the module.
pub struct EventLoop {
    process_events: AsyncFd<OwnedFd>,
    records: AsyncFd<OwnedFd>,
    waits: Option<AsyncFd<OwnedFd>>,
    threads: Option<AsyncFd<OwnedFd>>,
    clr_events: Option<AsyncFd<OwnedFd>>,
    files: AsyncFd<OwnedFd>,
    /// Process events arrive in bursts (a program starting maps a dozen files): they are taken
    /// together after this time.
    burst: Duration,
    /// None while there is nothing to drain: every waking costs an idle host.
    next_turn: Option<Instant>,
}

impl EventLoop {
    pub fn of(engine: &Engine, burst: Duration) -> Result<Self, EventLoopError> {
        Ok(Self {
            process_events: watch(engine.events_fd())?,
            records: watch(engine.programs.records_fd())?,
            waits: engine.programs.waits_fd().map(watch).transpose()?,
            threads: engine.programs.threads_fd().map(watch).transpose()?,
            clr_events: engine.programs.clr_events_fd().map(watch).transpose()?,
            files: watch(engine.loading.fd())?,
            burst,
            next_turn: Some(Instant::now()),
        })
    }

    /// Waits until the engine has something to take.
    pub async fn due(&self, engine: &Engine) -> Result<Due, EventLoopError> {
        let deadline = engine.next_deadline().map(Instant::from_std);
        let deadline = deadline.into_iter().chain(self.next_turn).min();
        tokio::select! {
            biased;
            ready = self.process_events.readable() => {
                // Stays readable until the turn, for when this is dropped.
                ready?.retain_ready();
                Ok(Due::ProcessEvents)
            }
            ready = self.records.readable() => {
                ready?.clear_ready();
                Ok(Due::Records)
            }
            ready = readable(self.waits.as_ref()) => {
                ready?.clear_ready();
                Ok(Due::Records)
            }
            ready = readable(self.threads.as_ref()) => {
                ready?.clear_ready();
                Ok(Due::Records)
            }
            ready = readable(self.clr_events.as_ref()) => {
                ready?.clear_ready();
                Ok(Due::Records)
            }
            ready = self.files.readable() => {
                ready?.clear_ready();
                Ok(Due::Files)
            }
            () = until(deadline) => Ok(Due::Deadline),
        }
    }

    /// Runs a turn of the engine.
    pub async fn turn(&mut self, engine: &mut Engine, due: Due) -> Result<(), EventLoopError> {
        if due == Due::ProcessEvents {
            self.process_events.readable().await?.clear_ready();
            tokio::time::sleep(self.burst).await;
            engine.clear_events_ready();
        }
        engine.turn();
        self.next_turn = (!engine.is_quiet()).then(|| Instant::now() + longest_pause(engine));
        Ok(())
    }
}

fn longest_pause(engine: &Engine) -> Duration {
    match (engine.has_bridges(), engine.is_busy()) {
        (false, _) => WITHOUT_BRIDGES,
        (true, true) => BESIDE_BRIDGES,
        (true, false) => BESIDE_IDLE_BRIDGES,
    }
}

/// Waits until a time; for ever without one.
pub async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Waits for ever without a descriptor.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
    match fd {
        Some(fd) => fd.readable().await,
        None => std::future::pending().await,
    }
}

/// A descriptor of our own: readiness belongs to what is open, not to the number.
fn watch(fd: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.try_clone_to_owned()?;
    // SAFETY: the descriptor is open, owned by the result and registered nowhere else.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}
