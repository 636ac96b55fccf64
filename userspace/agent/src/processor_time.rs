//! What a thread may spend: on a busy host the load of others does not count.

use std::time::{Duration, Instant};

/// Processor time that this thread has used.
pub fn own_time() -> Duration {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut used) };
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}

/// Processor time that this thread may use from now on. It is read, which takes a system call, when as
/// much time has passed.
#[derive(Debug)]
pub struct TimeBudget {
    /// Not used up until then.
    looked_at: Instant,
    ends: Duration,
}

impl TimeBudget {
    pub fn new(time: Duration) -> Self {
        Self { looked_at: Instant::now() + time, ends: own_time() + time }
    }

    pub fn left(&mut self) -> Duration {
        let left = self.looked_at.saturating_duration_since(Instant::now());
        if left > Duration::ZERO {
            return left;
        }
        let left = self.ends.saturating_sub(own_time());
        self.looked_at = Instant::now() + left;
        left
    }

    pub fn is_used_up(&mut self) -> bool {
        self.left() == Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_uses_nothing_up_and_work_does() {
        let time = Duration::from_millis(20);
        let mut budget = TimeBudget::new(time);
        std::thread::sleep(time * 2);
        assert!(!budget.is_used_up());
        let began = own_time();
        while !budget.is_used_up() {
            std::hint::spin_loop();
        }
        assert!(own_time() - began > time / 4);
        assert_eq!(budget.left(), Duration::ZERO);
    }
}
