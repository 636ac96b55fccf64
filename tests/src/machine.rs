//! A test's requirements of the machine: root, exclusive or shared use, and whether the long
//! variants are enabled.
//!
//! The harness starts all tests at once (`xtask/src/test.rs`), and they take turns here: tests of one
//! kind run [`AT_A_TIME`] beside each other until none of them is left, then those of the next kind,
//! and last those that have the machine alone. In the order of their names, each test that is alone
//! would wait for the longest of those before it, on an idle machine. Of those that share it, the long
//! ones begin first: one that began last would run by itself.
//!
//! Invariant: a test that has the machine alone runs beside no other test of any clone of this
//! repository.

use std::fs::File;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

/// Set to 1 for the variants of the tests with full sample counts and durations.
pub const LONG: &str = "STRATA_TEST_LONG";

/// A file that the seconds of each test, the part of them that the machine's CPUs were idle, its kind and
/// its name are appended to at its end.
pub const TURNS_FILE: &str = "STRATA_TEST_TURNS";

/// Tests of this process that share the machine at a time: they wait more than they compute, on two
/// cores too.
const AT_A_TIME: usize = 3;

/// Held while a test uses the machine.
pub struct Machine {
    // Dropped in this order: the next test of this process finds the locks released.
    _locks: Vec<File>,
    turn: Turn,
    began: Instant,
    idle: f64,
}

impl Machine {
    fn with(locks: Vec<File>, turn: Turn) -> Self {
        Self { _locks: locks, turn, began: Instant::now(), idle: idle_seconds() }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Some(path) = std::env::var_os(TURNS_FILE) else { return };
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let (seconds, kind) = (self.began.elapsed().as_secs_f64(), self.turn.0);
        let file = File::options().create(true).append(true).open(path);
        let idle = (idle_seconds() - self.idle) / (seconds * cpus() as f64).max(f64::EPSILON);
        let line = format!("{seconds:.1} {:.0}% {kind:?} {name}\n", 100.0 * idle);
        // Without it, the test is as good.
        _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// What all CPUs together have been idle for since the machine started.
fn idle_seconds() -> f64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    uptime.split_ascii_whitespace().nth(1).and_then(|idle| idle.parse().ok()).unwrap_or_default()
}

/// Held by tests that record the whole host. Of all clones on this machine, as the others are.
const HOST: &str = "/tmp/strata-tests.lock";

/// Held by tests of .NET programs.
const DOTNET: &str = "/tmp/strata-tests-dotnet.lock";

/// Held while waiting for the tests of other processes, so that none is overtaken by those that share
/// the machine.
const QUEUE: &str = "/tmp/strata-tests-queue.lock";

/// Waits for the machine and checks that it can be profiled at all. For tests that compare costs or
/// tools, that look at every process of the host, or whose daemon attaches to every .NET process.
pub fn alone() -> Result<Machine> {
    let turn = Turn::of(Kind::Alone, Length::Short);
    let _queue = queue()?;
    let locks = [HOST, DOTNET].map(|path| take(path, FlockOperation::LockExclusive));
    Ok(Machine::with(locks.into_iter().collect::<Result<_>>()?, turn))
}

/// As [`alone`], beside other such tests: the result does not depend on what else runs, because the
/// test looks at its own processes, counts in their CPU time and waits for conditions. It may record
/// the whole host, which attaches to every .NET process, so no test of [`beside_dotnet`] runs.
pub fn beside_others() -> Result<Machine> {
    share(Kind::Others, Length::Short, HOST, DOTNET)
}

/// As [`beside_others`], for tests of half a minute and more.
pub fn long_beside_others() -> Result<Machine> {
    share(Kind::Others, Length::Long, HOST, DOTNET)
}

/// As [`beside_others`], for tests that attach to .NET processes of their own and no other.
pub fn beside_dotnet() -> Result<Machine> {
    share(Kind::DotNet, Length::Short, DOTNET, HOST)
}

/// As [`beside_dotnet`], for tests of half a minute and more.
pub fn long_beside_dotnet() -> Result<Machine> {
    share(Kind::DotNet, Length::Long, DOTNET, HOST)
}

/// Shares `own` once no test holds `other`. None can take it meanwhile: it would need the queue.
fn share(kind: Kind, length: Length, own: &str, other: &str) -> Result<Machine> {
    let turn = Turn::of(kind, length);
    let _queue = queue()?;
    drop(take(other, FlockOperation::LockExclusive)?);
    Ok(Machine::with(vec![take(own, FlockOperation::LockShared)?], turn))
}

/// Beside which tests a test may run. In the order of their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    DotNet,
    Others,
    Alone,
}

const KINDS: [Kind; 3] = [Kind::DotNet, Kind::Others, Kind::Alone];

/// Whether a test begins before the others of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Short,
    Long,
}

/// The tests of this process, by kind.
struct Turns {
    waiting: [usize; KINDS.len()],
    /// Of those that wait, the long ones.
    long_waiting: [usize; KINDS.len()],
    running: [usize; KINDS.len()],
}

static TURNS: Mutex<Turns> =
    Mutex::new(Turns { waiting: [0; 3], long_waiting: [0; 3], running: [0; 3] });
static TURN_OVER: Condvar = Condvar::new();

impl Turns {
    fn locked() -> MutexGuard<'static, Self> {
        TURNS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a test of this kind may begin.
    fn has_come(&self, kind: Kind, length: Length) -> bool {
        if length == Length::Short && self.long_waiting[kind as usize] > 0 {
            return false;
        }
        let at_a_time = if kind == Kind::Alone { 1 } else { AT_A_TIME };
        let of_this = self.running[kind as usize];
        if self.running.iter().sum::<usize>() > of_this || of_this >= at_a_time {
            return false;
        }
        // While some of them run, others of their kind go on.
        of_this > 0 || self.waiting[..kind as usize].iter().all(|waiting| *waiting == 0)
    }
}

/// A test's turn in this process.
struct Turn(Kind);

impl Turn {
    /// Waits for it.
    fn of(kind: Kind, length: Length) -> Self {
        let is_long = usize::from(length == Length::Long);
        let mut turns = Turns::locked();
        turns.waiting[kind as usize] += 1;
        turns.long_waiting[kind as usize] += is_long;
        while !turns.has_come(kind, length) {
            turns = TURN_OVER.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        turns.waiting[kind as usize] -= 1;
        turns.long_waiting[kind as usize] -= is_long;
        turns.running[kind as usize] += 1;
        drop(turns);
        // One less waits: another kind's turn may have come.
        TURN_OVER.notify_all();
        Self(kind)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        Turns::locked().running[self.0 as usize] -= 1;
        TURN_OVER.notify_all();
    }
}

fn queue() -> Result<File> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the end-to-end tests load BPF programs: run them as root (`sudo -E cargo xtask test`)"
        );
    }
    take(QUEUE, FlockOperation::LockExclusive)
}

fn take(path: &str, operation: FlockOperation) -> Result<File> {
    let mut options = File::options();
    let lock = options
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("creating {path}"))?;
    flock(&lock, operation).with_context(|| format!("waiting for {path}"))?;
    Ok(lock)
}

/// Whether the long variants are wanted.
pub fn is_long() -> bool {
    std::env::var(LONG).is_ok_and(|v| v == "1")
}

/// The first value by default, the second in long runs.
pub fn short_or_long<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}

/// Number of CPUs this process may run on.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

#[cfg(test)]
mod tests {
    use super::{AT_A_TIME, Kind, Length, Turns};

    fn none() -> Turns {
        Turns { waiting: [0; 3], long_waiting: [0; 3], running: [0; 3] }
    }

    #[test]
    fn tests_of_one_kind_run_beside_each_other_and_those_that_are_alone_come_last() {
        let has_come = |turns: &Turns, kind| turns.has_come(kind, Length::Short);
        let waiting = Turns { waiting: [1, 1, 1], ..none() };
        assert!(has_come(&waiting, Kind::DotNet));
        assert!(!has_come(&waiting, Kind::Others) && !has_come(&waiting, Kind::Alone));

        let some = Turns { running: [0, 1, 0], waiting: [1, 1, 1], ..none() };
        assert!(has_come(&some, Kind::Others));
        assert!(!has_come(&some, Kind::DotNet) && !has_come(&some, Kind::Alone));

        let full = Turns { running: [AT_A_TIME, 0, 0], waiting: [1, 0, 0], ..none() };
        assert!(!has_come(&full, Kind::DotNet));

        let alone = Turns { running: [0, 0, 1], waiting: [1, 1, 1], ..none() };
        assert!(
            [Kind::DotNet, Kind::Others, Kind::Alone].iter().all(|kind| !has_come(&alone, *kind))
        );
        assert!(has_come(&Turns { waiting: [0, 0, 1], ..none() }, Kind::Alone));
    }

    #[test]
    fn long_tests_begin_before_the_others_of_their_kind() {
        let turns = Turns { waiting: [2, 1, 0], long_waiting: [1, 1, 0], ..none() };
        assert!(turns.has_come(Kind::DotNet, Length::Long));
        assert!(!turns.has_come(Kind::DotNet, Length::Short));
        assert!(!turns.has_come(Kind::Others, Length::Long));
        let no_long = Turns { long_waiting: [0, 1, 0], ..turns };
        assert!(no_long.has_come(Kind::DotNet, Length::Short));
    }
}
