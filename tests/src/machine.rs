//! What a test asks of the machine: to be the only one profiling it, to be root, and whether the
//! long variants are wanted.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Set to 1 for the variants of the tests with full sample counts and durations.
pub const LONG: &str = "STRATA_TEST_LONG";

/// Held while a test uses the machine's CPUs: one at a time, in whatever process it runs.
pub struct Alone {
    _lock: File,
}

/// Waits for the machine and checks that it can be profiled at all.
pub fn alone() -> Result<Alone> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the end-to-end tests load BPF programs: run them as root (`sudo -E cargo xtask test`)"
        );
    }
    // Of all clones on this machine, whatever their caches and variables.
    let path = Path::new("/tmp/strata-tests.lock");
    let mut options = File::options();
    let lock = options
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("creating {}", path.display()))?;
    lock.lock().context("waiting for the machine")?;
    Ok(Alone { _lock: lock })
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
