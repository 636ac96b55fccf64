//! A test's requirements of the machine: root, exclusive or shared use, and whether the long
//! variants are enabled.
//!
//! Invariant: a test that has the machine alone runs beside no other test of any clone of this
//! repository, and waits only for the tests that began before it.

use std::fs::File;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

/// Set to 1 for the variants of the tests with full sample counts and durations.
pub const LONG: &str = "STRATA_TEST_LONG";

/// Held while a test uses the machine.
pub struct Machine {
    _locks: Vec<File>,
}

/// Held by tests that record the whole host. Of all clones on this machine, as the others are.
const HOST: &str = "/tmp/strata-tests.lock";

/// Held by tests of .NET programs.
const DOTNET: &str = "/tmp/strata-tests-dotnet.lock";

/// Held while waiting for the others, so that no test is overtaken by those that share the machine.
const QUEUE: &str = "/tmp/strata-tests-queue.lock";

/// Waits for the machine and checks that it can be profiled at all. For tests that compare costs or
/// tools, that look at every process of the host, or whose daemon attaches to every .NET process.
pub fn alone() -> Result<Machine> {
    let _queue = queue()?;
    let locks = [HOST, DOTNET].map(|path| take(path, FlockOperation::LockExclusive));
    Ok(Machine { _locks: locks.into_iter().collect::<Result<_>>()? })
}

/// As [`alone`], beside other such tests: the result does not depend on what else runs, because the
/// test looks at its own processes, counts in their CPU time and waits for conditions. It may record
/// the whole host, which attaches to every .NET process, so no test of [`beside_dotnet`] runs.
pub fn beside_others() -> Result<Machine> {
    share(HOST, DOTNET)
}

/// As [`beside_others`], for tests that attach to .NET processes of their own and no other.
pub fn beside_dotnet() -> Result<Machine> {
    share(DOTNET, HOST)
}

/// Shares `own` once no test holds `other`. None can take it meanwhile: it would need the queue.
fn share(own: &str, other: &str) -> Result<Machine> {
    let _queue = queue()?;
    drop(take(other, FlockOperation::LockExclusive)?);
    Ok(Machine { _locks: vec![take(own, FlockOperation::LockShared)?] })
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
