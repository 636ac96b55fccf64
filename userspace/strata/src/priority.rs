//! How strata is scheduled beside what it profiles.

use std::io;
use std::time::Duration;

/// How a recording is scheduled: it uses little, but has to use it in time, or samples are lost
/// just when the host is busiest.
pub const RECORDING_PRIORITY: i32 = -10;

/// Sets this process's nice value; without the right to raise it, it stays what it is.
pub fn set_priority(nice: i32) {
    // SAFETY: plain numbers; failure leaves everything as it was.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

/// `struct sched_attr` of `include/uapi/linux/sched/types.h`, Linux 5.17: its first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// `SCHED_FLAG_RESET_ON_FORK`: what the thread starts is scheduled as usual.
const RESET_ON_FORK: u64 = 1;

/// From now on the calling thread runs within `deadline` of its waking, before all threads that are
/// scheduled by priority, and for no more than `run_time` in each `period` (sched(7)): for short work
/// that has to be done in time on an overloaded host.
///
/// # Errors
/// The right to do so is missing (CAP_SYS_NICE), or the thread may not run on all CPUs.
pub fn set_deadline(run_time: Duration, deadline: Duration, period: Duration) -> io::Result<()> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_DEADLINE as u32,
        flags: RESET_ON_FORK,
        nice: 0,
        priority: 0,
        runtime: nanos(run_time),
        deadline: nanos(deadline),
        period: nanos(period),
    };
    // SAFETY: of the calling thread (0); the attributes are of the size they state and only read.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
