//! The clock for the age of stored profiles, from two clocks: a monotonic one (`Instant`), and the
//! time of day, which may be set.
//!
//! A wrongly set clock would delete everything at once, so a leap forwards is accepted only when it
//! has lasted.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time of day in nanoseconds since 1970.
pub fn wall_nanos() -> i64 {
    nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Smaller differences are adjustments of the same clock, or the end of daylight saving time on a
/// clock that wrongly follows it.
const LEAP: i64 = 2 * 3600 * SECOND;
const SECOND: i64 = 1_000_000_000;
/// How long a leap forwards has to last.
pub const PROBATION: Duration = Duration::from_secs(3600);

/// The time by which the store's profiles grow old.
///
/// Invariant: it never runs ahead of the time of day, and leaps ahead only after [`PROBATION`]. So
/// a clock that is wrong for less deletes nothing for its age; the bound of size holds all the time.
#[derive(Debug)]
pub struct Ages {
    /// The time of day at `began` by the trusted clock.
    base: i64,
    began: Instant,
    /// The same for a clock that has leapt, and when the leap was first seen.
    leapt: Option<(i64, Instant)>,
}

impl Ages {
    /// `newest` is the youngest of what is kept: a clock that is far ahead of it may be wrong, unless
    /// strata was not there for long.
    pub fn new(newest: Option<i64>, wall: i64, now: Instant) -> Self {
        Self { base: newest.map_or(wall, |newest| newest.min(wall)), began: now, leapt: None }
    }

    /// The time now, when the clock reads `wall`.
    pub fn time(&mut self, wall: i64, now: Instant) -> i64 {
        let since = nanos(now.saturating_duration_since(self.began));
        let base = wall.saturating_sub(since);
        let leap = base.saturating_sub(self.base);
        if leap <= LEAP {
            if leap < -LEAP {
                tracing::warn!("the clock was set back by {}", span(leap));
            } else if self.leapt.is_some() {
                tracing::info!("the clock is back where it was");
            }
            self.base = base;
            self.leapt = None;
            return wall;
        }
        match self.leapt {
            Some((before, since)) if base.saturating_sub(before).saturating_abs() <= LEAP => {
                if now.saturating_duration_since(since) >= PROBATION {
                    tracing::info!("the clock has stayed {} ahead and is believed", span(leap));
                    self.base = base;
                    self.leapt = None;
                    return wall;
                }
            }
            _ => {
                tracing::warn!(
                    "the clock is {} ahead of what was last known: the store drops nothing for its \
                     age until that has lasted for {} minutes",
                    span(leap),
                    PROBATION.as_secs() / 60
                );
                self.leapt = Some((base, now));
            }
        }
        self.base.saturating_add(since)
    }
}

fn span(nanos: i64) -> String {
    let hours = nanos.unsigned_abs() / 3_600_000_000_000;
    if hours < 48 { format!("{hours} hours") } else { format!("{} days", hours / 24) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600 * SECOND;
    const DAY: i64 = 24 * HOUR;
    /// Some day in 2026.
    const TODAY: i64 = 1_780_000_000 * SECOND;
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_clock_that_goes_right_is_followed() {
        let began = Instant::now();
        let mut ages = Ages::new(None, TODAY, began);
        for minutes in [0, 1, 2, 500] {
            // It is set by a minute now and then.
            let wall = TODAY + i64::from(minutes) * 61 * SECOND;
            assert_eq!(ages.time(wall, began + MINUTE * minutes), wall);
        }
    }

    #[test]
    fn a_clock_that_leaps_ahead_and_comes_back_makes_nothing_old() {
        let began = Instant::now();
        let mut ages = Ages::new(Some(TODAY), TODAY, began);
        let minute = 60 * SECOND;
        assert_eq!(ages.time(TODAY + 30 * DAY + minute, began + MINUTE), TODAY + minute);
        assert_eq!(
            ages.time(TODAY + 30 * DAY + 30 * minute, began + MINUTE * 30),
            TODAY + 30 * minute
        );
        assert_eq!(ages.time(TODAY + 31 * minute, began + MINUTE * 31), TODAY + 31 * minute);
        // The next leap is as suspect as the first.
        assert_eq!(ages.time(TODAY + 30 * DAY, began + MINUTE * 62), TODAY + 62 * minute);
    }

    #[test]
    fn a_clock_that_stays_ahead_is_believed_in_the_end() {
        let began = Instant::now();
        let mut ages = Ages::new(None, TODAY, began);
        let ahead = |minutes: u32| TODAY + 30 * DAY + i64::from(minutes) * 60 * SECOND;
        assert!(ages.time(ahead(1), began + MINUTE) < TODAY + DAY);
        assert!(ages.time(ahead(60), began + MINUTE * 60) < TODAY + DAY);
        assert_eq!(ages.time(ahead(61), began + MINUTE * 61), ahead(61));
        assert_eq!(ages.time(ahead(62), began + MINUTE * 62), ahead(62));
    }

    #[test]
    fn a_clock_that_leaps_again_and_again_is_never_believed() {
        let began = Instant::now();
        let mut ages = Ages::new(None, TODAY, began);
        for minutes in 1..300 {
            let wall = TODAY + i64::from(minutes) * DAY;
            let time = ages.time(wall, began + MINUTE * minutes);
            assert_eq!(time, TODAY + i64::from(minutes) * 60 * SECOND);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed_at_once() {
        let began = Instant::now();
        let mut ages = Ages::new(Some(TODAY), TODAY, began);
        let wall = TODAY - 30 * DAY;
        assert_eq!(ages.time(wall, began + MINUTE), wall);
        assert_eq!(ages.time(wall + HOUR, began + MINUTE * 61), wall + HOUR);
    }

    #[test]
    fn after_a_long_time_off_the_clock_is_on_probation_too() {
        let began = Instant::now();
        let mut ages = Ages::new(Some(TODAY - 30 * DAY), TODAY, began);
        assert_eq!(ages.time(TODAY, began), TODAY - 30 * DAY);
        // What is kept may be of a time that is still to come.
        let mut ages = Ages::new(Some(TODAY + DAY), TODAY, began);
        assert_eq!(ages.time(TODAY, began), TODAY);
    }
}
