//! The clock of process events and records, and those beside it.

use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds.
pub fn monotonic_nanos() -> u64 {
    nanos_of(ClockId::Monotonic)
}

/// How long the machine has been suspended so far, in nanoseconds, to within the time between two calls.
pub fn suspended_nanos() -> u64 {
    let awake = monotonic_nanos();
    nanos_of(ClockId::Boottime).saturating_sub(awake)
}

fn nanos_of(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
