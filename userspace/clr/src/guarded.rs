//! Runs work that a target may hang on a thread of its own, with a bounded wait.
//!
//! Looking up a name on a FUSE mount, or reading a process's environment when its pages lie in a
//! file of such a mount, may never end, and nothing wakes a thread that waits in the kernel. So
//! such work is abandoned with its thread, and counted. Once [`MAX_STUCK`] threads of a user's
//! processes are stuck, new work about that user's may touch only file systems that this kernel alone
//! answers for ([`Patience::LocalOnly`]): hanging targets cost some threads, and prevent attaching only
//! to that user's processes whose files may hang. Reading a process's mappings may hang even so, while it holds its memory's lock; so those
//! threads are bounded too ([`MOST_STUCK`]).
//!
//! Invariant: work past its deadline changes nothing in its target: it checks its deadline before
//! every step that changes something.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::deadline::Deadline;

/// The number of abandoned threads of a user's processes from which filesystems that may hang are
/// refused for that user.
pub const MAX_STUCK: usize = 8;

/// The same for all users together.
const MAX_STUCK_OF_ALL: usize = MOST_STUCK / 2;

/// The number of abandoned threads from which all new work is refused.
const MOST_STUCK: usize = 256;

/// The same for processes of one user other than root, so that their hangs prevent attaching only
/// for that user.
const MOST_STUCK_OF_ONE: usize = 32;

static STUCK: AtomicUsize = AtomicUsize::new(0);

/// By user.
static STUCK_OF_ONE: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

fn stuck_of_one() -> MutexGuard<'static, BTreeMap<u32, usize>> {
    STUCK_OF_ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count_stuck(owner: u32) {
    STUCK.fetch_add(1, Ordering::Relaxed);
    *stuck_of_one().entry(owner).or_default() += 1;
}

fn uncount_stuck(owner: u32) {
    STUCK.fetch_sub(1, Ordering::Relaxed);
    let mut all = stuck_of_one();
    let left = all.get(&owner).map_or(0, |count| count.saturating_sub(1));
    match left {
        0 => all.remove(&owner),
        left => all.insert(owner, left),
    };
}

/// The real user of a process, which it cannot hide; root's if it cannot be found out.
fn owner_of(pid: u32) -> u32 {
    let status = std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.split(|byte| *byte == b'\n');
    let uids = lines.find_map(|line| line.strip_prefix(b"Uid:")).unwrap_or_default();
    let first = String::from_utf8_lossy(uids);
    first.split_ascii_whitespace().next().and_then(|uid| uid.parse().ok()).unwrap_or(0)
}

/// The file systems that work may access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// All of the target's: a hang costs a thread at worst.
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

/// The number of abandoned threads that are still blocked.
pub fn stuck_threads() -> usize {
    STUCK.load(Ordering::Relaxed)
}

const RUNNING: u8 = 0;
const ENDED: u8 = 1;
const LEFT_BEHIND: u8 = 2;

/// Reports in every case that the work has ended, also when it panicked.
struct Ending {
    state: Arc<AtomicU8>,
    owner: u32,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.state.swap(ENDED, Ordering::AcqRel) == LEFT_BEHIND {
            uncount_stuck(self.owner);
        }
    }
}

/// Runs `work`, which is about a process, on a thread of its own and waits for it at most `time`.
pub fn run<T, F>(name: &str, pid: u32, time: Duration, work: F) -> Result<T, Stuck>
where
    T: Send + 'static,
    F: FnOnce(Patience, Deadline) -> T + Send + 'static,
{
    run_of(name, owner_of(pid), time, work)
}

fn run_of<T, F>(name: &str, owner: u32, time: Duration, work: F) -> Result<T, Stuck>
where
    T: Send + 'static,
    F: FnOnce(Patience, Deadline) -> T + Send + 'static,
{
    let of_one = stuck_of_one().get(&owner).copied().unwrap_or(0);
    if stuck_threads() >= MOST_STUCK || owner != 0 && of_one >= MOST_STUCK_OF_ONE {
        return Err(Stuck::TooMany);
    }
    let patience = match of_one < MAX_STUCK && stuck_threads() < MAX_STUCK_OF_ALL {
        true => Patience::AnyFilesystem,
        false => Patience::LocalOnly,
    };
    let deadline = Deadline::within(time);
    let state = Arc::new(AtomicU8::new(RUNNING));
    let ending = Ending { state: state.clone(), owner };
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
            // Counted before it is reported, so that the thread's end always finds the count made.
            count_stuck(owner);
            if state.swap(LEFT_BEHIND, Ordering::AcqRel) == ENDED {
                uncount_stuck(owner);
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
        // The count of all threads is shared with the tests beside this one.
        const USER: u32 = 54_320;
        let counted = || stuck_of_one().get(&USER).copied();
        let (let_go, wait) = mpsc::channel::<()>();
        let outcome = run_of("test-hang", USER, Duration::from_millis(20), move |_, _| wait.recv());
        assert_eq!(outcome.unwrap_err(), Stuck::TimedOut(Duration::from_millis(20)));
        assert_eq!(counted(), Some(1));
        assert!(stuck_threads() >= 1);
        drop(let_go);
        let patience = Deadline::within(Duration::from_secs(60));
        while counted().is_some() && !patience.has_passed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(counted(), None);
    }

    #[test]
    fn a_panic_of_the_work_stays_on_its_thread() {
        let outcome = run_of("test-panic", 0, Duration::from_secs(5), |_, _| -> u8 {
            std::panic::resume_unwind(Box::new("silent"))
        });
        assert_eq!(outcome, Err(Stuck::Panicked));
        assert_eq!(run_of("test-fine", 0, Duration::from_secs(5), |_, _| 7), Ok(7));
    }

    #[test]
    fn a_user_whose_processes_hang_takes_attaching_away_from_no_other() {
        const USER: u32 = 54_321;
        const OTHER: u32 = 54_322;
        let (let_go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..MOST_STUCK_OF_ONE {
            let wait = wait.clone();
            let hangs = move |_, _| wait.lock().map(|wait| wait.recv()).is_ok();
            let of_user = stuck_of_one().get(&USER).copied().unwrap_or(0);
            if of_user == MAX_STUCK {
                let allowed =
                    run_of("test-user", USER, Duration::from_secs(60), |patience, _| patience);
                assert_eq!(allowed, Ok(Patience::LocalOnly));
            }
            let outcome = run_of("test-hang", USER, Duration::from_millis(2), hangs);
            assert!(matches!(outcome, Err(Stuck::TimedOut(_))));
        }
        let patience = Duration::from_secs(60);
        assert_eq!(run_of("test-user", USER, patience, |_, _| 7), Err(Stuck::TooMany));
        let allowed = run_of("test-other", OTHER, patience, |patience, _| patience);
        assert_eq!(allowed, Ok(Patience::AnyFilesystem));
        drop(let_go);
        let patience = Deadline::within(patience);
        while stuck_of_one().contains_key(&USER) && !patience.has_passed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(run_of("test-user", USER, Duration::from_secs(60), |_, _| 7), Ok(7));
    }
}
