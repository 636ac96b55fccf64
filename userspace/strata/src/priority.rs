//! How strata is scheduled beside what it profiles.

/// How a recording is scheduled: it uses little, but has to use it in time, or samples are lost
/// just when the host is busiest.
pub const RECORDING_PRIORITY: i32 = -10;

/// Sets this process's nice value; without the right to raise it, it stays what it is.
pub fn set_priority(nice: i32) {
    // SAFETY: plain numbers; failure leaves everything as it was.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}
