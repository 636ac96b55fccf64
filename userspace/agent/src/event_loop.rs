//! The event loop of the agent: waits for records, process events and answers about files, and lets
//! the engine take them. A recording and the daemon run the same one and add their own events to it
//! (signals, a command that ends, ticks, flushes).
//!
//! Invariant: [`EventLoop::due`] only waits, so that it may be dropped whenever something else is
//! due first; what it reports is taken by [`EventLoop::turn`].

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

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

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A turn of the engine.
    Turn(Due),
    /// The caller's own time.
    Time,
}

/// See the module.
pub struct EventLoop {
    process_events: AsyncFd<OwnedFd>,
    records: AsyncFd<OwnedFd>,
    waits: Option<AsyncFd<OwnedFd>>,
    threads: Option<AsyncFd<OwnedFd>>,
    clr_events: Option<AsyncFd<OwnedFd>>,
    files: AsyncFd<OwnedFd>,
    deadline: Timer,
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
            deadline: Timer::new()?,
            burst,
            next_turn: Some(Instant::now()),
        })
    }

    /// Waits until the engine has something to take, or until this time.
    pub async fn due(
        &self,
        engine: &Engine,
        time: Option<Instant>,
    ) -> Result<Next, EventLoopError> {
        let deadline = engine.next_deadline().into_iter().chain(self.next_turn).min();
        self.deadline.set(deadline.into_iter().chain(time).min())?;
        let due = tokio::select! {
            biased;
            ready = self.process_events.readable() => {
                // Stays readable until the turn, for when this is dropped.
                ready?.retain_ready();
                Due::ProcessEvents
            }
            ready = self.records.readable() => {
                ready?.clear_ready();
                Due::Records
            }
            ready = readable(self.waits.as_ref()) => {
                ready?.clear_ready();
                Due::Records
            }
            ready = readable(self.threads.as_ref()) => {
                ready?.clear_ready();
                Due::Records
            }
            ready = readable(self.clr_events.as_ref()) => {
                ready?.clear_ready();
                Due::Records
            }
            ready = self.files.readable() => {
                ready?.clear_ready();
                Due::Files
            }
            due = self.deadline.due() => {
                due?;
                if deadline.is_none_or(|deadline| deadline > Instant::now()) {
                    return Ok(Next::Time);
                }
                Due::Deadline
            }
        };
        Ok(Next::Turn(due))
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

/// A timer of the kernel, for times that change with each turn: one of the runtime takes three calls of
/// epoll to set, and another waking at the beginning of the 64 ms in which it ends.
struct Timer {
    fd: AsyncFd<OwnedFd>,
    set_to: Cell<Option<Instant>>,
}

impl Timer {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { fd: register(fd)?, set_to: Cell::new(None) })
    }

    /// It is due at this time, or not at all.
    fn set(&self, time: Option<Instant>) -> io::Result<()> {
        if self.set_to.get() == time {
            return Ok(());
        }
        let left = time.map(|time| time.saturating_duration_since(Instant::now()));
        // A time of 0 would switch it off.
        let left = left.map_or(Duration::ZERO, |left| left.max(Duration::from_nanos(1)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let new = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &new)?;
        self.set_to.set(time);
        Ok(())
    }

    async fn due(&self) -> io::Result<()> {
        self.fd.readable().await?.clear_ready();
        // A time that is past and stays wanted is due again.
        self.set_to.set(None);
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

/// Waits for ever without a descriptor.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
    match fd {
        Some(fd) => fd.readable().await,
        None => std::future::pending().await,
    }
}

/// A descriptor of our own: readiness belongs to what is open, not to the number.
fn watch(fd: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    register(fd.try_clone_to_owned()?)
}

fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is open, owned by the result and registered nowhere else.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_timer_is_due_at_its_time_and_again_while_that_is_past() -> io::Result<()> {
        let timer = Timer::new()?;
        let far = Duration::from_secs(3600);
        for time in [None, Some(Instant::now() + far)] {
            timer.set(time)?;
            let waits = tokio::time::timeout(Duration::from_millis(20), timer.due()).await;
            assert!(waits.is_err(), "{time:?}");
        }
        let soon = Instant::now() + Duration::from_millis(30);
        for _ in 0..3 {
            timer.set(Some(soon))?;
            timer.due().await?;
            assert!(Instant::now() >= soon);
        }
        // It waits for the last time that it was set to.
        timer.set(Some(Instant::now()))?;
        timer.set(Some(Instant::now() + far))?;
        while tokio::time::timeout(Duration::from_millis(20), timer.due()).await.is_ok() {
            timer.set(Some(Instant::now() + far))?;
        }
        Ok(())
    }
}
