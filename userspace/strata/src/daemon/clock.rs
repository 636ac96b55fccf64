//! The period between two flushes, as recorded in profiles.
//!
//! Its length comes from the monotonic clock (`Instant`); the time of day, which may be set, is
//! read once.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time between two flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// As the clock has it that is right now: a clock that was set in between was wrong before.
    pub started: SystemTime,
    pub length: Duration,
}

impl Period {
    /// From `since` to `now`, which is `wall` by the time of day.
    pub fn between(since: Instant, now: Instant, wall: SystemTime) -> Self {
        let length = now.saturating_duration_since(since);
        let started = wall.checked_sub(length).unwrap_or(UNIX_EPOCH);
        Self { started: started.max(UNIX_EPOCH), length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_as_long_as_it_took_whatever_the_clock_says_meanwhile() {
        let since = Instant::now();
        let now = since + Duration::from_secs(15);
        let length = Duration::from_secs(15);
        for wall in [1_000_000, 1_000_000 + 86_400, 1_000_000 - 86_400] {
            let wall = UNIX_EPOCH + Duration::from_secs(wall);
            let period = Period::between(since, now, wall);
            assert_eq!(period, Period { started: wall - length, length });
        }
        let unset = Period::between(since, now, UNIX_EPOCH + Duration::from_secs(1));
        assert_eq!(unset, Period { started: UNIX_EPOCH, length });
        let turned = Period::between(now, since, UNIX_EPOCH);
        assert_eq!(turned.length, Duration::ZERO);
    }
}
