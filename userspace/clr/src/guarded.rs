//! Work that a target may hang, on a thread of its own that is not waited for longer than agreed.
//!
//! Looking up a name on a FUSE mount, or reading a process's environment when its pages lie in a
//! file of such a mount, may never end, and nothing wakes a thread that waits in the kernel. So
//! such work is left behind on its thread, and counted. Once [`MAX_STUCK`] threads are stuck, new
//! work is told to touch only what this kernel alone answers for ([`Patience::LocalOnly`]): who
//! hangs us costs some threads, and takes attaching away from those alone whose files may hang. What
//! a process has mapped may hang all the same, where it holds its memory's lock; so there is an end
//! to that too ([`MOST_STUCK`]).
//!
//! Invariant: work whose time is up does nothing more to its target: it checks its deadline before
//! every step that changes something.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::deadline::Deadline;

/// How many threads may be left behind before hanging filesystems are refused.
pub const MAX_STUCK: usize = 8;

/// How many threads may be left behind before nothing new is begun.
const MOST_STUCK: usize = 64;

static STUCK: AtomicUsize = AtomicUsize::new(0);

/// What work may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Whatever the target has: a wait costs a thread at worst.
    AnyFilesystem,
    /// Only filesystems for which this kernel alone answers.
    LocalOnly,
}

/// Why guarded work has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    #[error(
        "not ended within {0:?}: a filesystem of the process does not answer, or the process is stopped"
    )]
    TimedOut(Duration),
    #[error("no thread could be started for it; raise the limit of threads (pids.max, ulimit -u)")]
    NoThread,
    #[error("too many other processes do not answer: {MOST_STUCK} threads wait for them")]
    TooMany,
    #[error("the work failed inside strata; please report it")]
    Panicked,
}

/// How many threads wait, left behind, for something that does not answer.
pub fn stuck_threads() -> usize {
    STUCK.load(Ordering::Relaxed)
}

const RUNNING: u8 = 0;
const ENDED: u8 = 1;
const LEFT_BEHIND: u8 = 2;

/// Says in every case that the work has ended, also when it panicked.
struct Ending(Arc<AtomicU8>);

impl Drop for Ending {
    fn drop(&mut self) {
        if self.0.swap(ENDED, Ordering::AcqRel) == LEFT_BEHIND {
            STUCK.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Runs `work` on a thread of its own and waits for it at most `time`.
pub fn run<T, F>(name: &str, time: Duration, work: F) -> Result<T, Stuck>
where
    T: Send + 'static,
    F: FnOnce(Patience, Deadline) -> T + Send + 'static,
{
    if stuck_threads() >= MOST_STUCK {
        return Err(Stuck::TooMany);
    }
    let patience =
        if stuck_threads() < MAX_STUCK { Patience::AnyFilesystem } else { Patience::LocalOnly };
    let deadline = Deadline::within(time);
    let state = Arc::new(AtomicU8::new(RUNNING));
    let ending = Ending(state.clone());
    let (send, receive) = channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // Dropped after the result was sent, also when the work panics.
            let _ending = ending;
            let _ = send.send(work(patience, deadline));
        })
        .map_err(|_| Stuck::NoThread)?;
    match receive.recv_timeout(time) {
        Ok(result) => Ok(result),
        Err(RecvTimeoutError::Disconnected) => Err(Stuck::Panicked),
        Err(RecvTimeoutError::Timeout) => {
            // Counted before it is said, so that the thread's end always finds the count made.
            STUCK.fetch_add(1, Ordering::Relaxed);
            if state.swap(LEFT_BEHIND, Ordering::AcqRel) == ENDED {
                STUCK.fetch_sub(1, Ordering::Relaxed);
                return receive.try_recv().map_err(|_| Stuck::TimedOut(time));
            }
            Err(Stuck::TimedOut(time))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn work_that_hangs_is_left_behind_and_counted_until_it_ends() {
        let (let_go, wait) = mpsc::channel::<()>();
        let before = stuck_threads();
        let outcome = run("test-hang", Duration::from_millis(20), move |_, _| wait.recv());
        assert_eq!(outcome.unwrap_err(), Stuck::TimedOut(Duration::from_millis(20)));
        assert_eq!(stuck_threads(), before + 1);
        drop(let_go);
        let patience = Deadline::within(Duration::from_secs(5));
        while stuck_threads() > before && !patience.has_passed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(stuck_threads(), before);
    }

    #[test]
    fn a_panic_of_the_work_stays_on_its_thread() {
        let outcome = run("test-panic", Duration::from_secs(5), |_, _| -> u8 {
            std::panic::resume_unwind(Box::new("silent"))
        });
        assert_eq!(outcome, Err(Stuck::Panicked));
        assert_eq!(run("test-fine", Duration::from_secs(5), |_, _| 7), Ok(7));
    }
}
