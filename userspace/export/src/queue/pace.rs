//! Pacing of an exporter: how many requests at once, and when the next one.
//!
//! A server that fails is left alone for a time that doubles with each failure, and is then tried
//! with one request. From its first success the number of requests at once doubles until it is the
//! exporter's limit again. Waits are random within bounds, so that hosts that lost the same server
//! do not come back in the same second.
//!
//! Pure: the caller passes the time and random numbers.

use std::time::Duration;

use crate::queue::clock::Moment;

/// The delays before an exporter retries a failing server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// After the first failure.
    pub first: Duration,
    /// However often it failed.
    pub longest: Duration,
    /// However long the server asks for.
    pub longest_asked: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
            longest_asked: Duration::from_secs(600),
        }
    }
}

impl Waits {
    /// Between half and all of what is doubled with each failure. `chance` is from 0 to 1.
    pub(crate) fn after(&self, failures: u32, chance: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        let most = self.first.saturating_mul(1 << doublings).min(self.longest);
        most / 2 + (most / 2).mul_f64(chance.clamp(0.0, 1.0))
    }

    /// What the server asks for, within bounds, and up to a tenth more.
    fn asked(&self, asked: Duration, chance: f64) -> Duration {
        let asked = asked.min(self.longest_asked);
        asked.saturating_add((asked / 10).mul_f64(chance.clamp(0.0, 1.0)))
    }
}

/// When a request was begun: before or after the server's last failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) waits: Waits,
    limit: usize,
    at_once: usize,
    failures: u32,
    epoch: u64,
    wait: Option<Moment>,
    is_asked: bool,
    /// Between the beginnings of two requests.
    pub(crate) spacing: Duration,
    next: Moment,
}

impl Pace {
    pub(crate) fn new(limit: usize, waits: Waits) -> Self {
        Self {
            waits,
            limit: limit.max(1),
            at_once: 1,
            failures: 0,
            epoch: 0,
            wait: None,
            is_asked: false,
            spacing: Duration::ZERO,
            next: Moment::ZERO,
        }
    }

    pub(crate) fn spaced(self, spacing: Duration) -> Self {
        Self { spacing, ..self }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.max(1);
        self.at_once = self.at_once.min(self.limit);
    }

    /// How many requests may be under way now.
    pub(crate) fn at_once(&self, now: Moment) -> usize {
        if self.begins_from(now).is_some() { 0 } else { self.at_once }
    }

    /// A request begins.
    pub(crate) fn begun(&mut self, now: Moment) {
        self.next = now.saturating_add(self.spacing);
    }

    /// Until when no request begins: the server is waited for, or the last one began just now.
    pub(crate) fn begins_from(&self, now: Moment) -> Option<Moment> {
        self.waits_until(now).max(Some(self.next).filter(|&next| next > now))
    }

    pub(crate) fn waits_until(&self, now: Moment) -> Option<Moment> {
        self.wait.filter(|&until| until > now)
    }

    /// Failures since the last success.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// For a request that begins now.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    pub(crate) fn succeeded(&mut self, begun: Epoch) {
        // A request begun before the last failure gives no information about the server after it.
        if begun.0 == self.epoch {
            self.failures = 0;
            self.at_once = self.at_once.saturating_mul(2).min(self.limit);
        }
    }

    /// Of several requests that fail together, only the first makes the wait longer.
    pub(crate) fn failed(
        &mut self,
        begun: Epoch,
        now: Moment,
        asked: Option<Duration>,
        chance: f64,
    ) {
        let mut wait = Duration::ZERO;
        if begun.0 == self.epoch {
            self.epoch = self.epoch.saturating_add(1);
            self.failures = self.failures.saturating_add(1);
            wait = self.waits.after(self.failures, chance);
        }
        if let Some(asked) = asked {
            wait = wait.max(self.waits.asked(asked, chance));
            self.is_asked = true;
        }
        self.at_once = 1;
        let until = now.saturating_add(wait);
        self.wait = Some(self.wait.map_or(until, |earlier| earlier.max(until)));
    }

    /// Retries at once, unless the server itself named the time.
    pub(crate) fn retry_now(&mut self, now: Moment) {
        if !self.is_asked || self.waits_until(now).is_none() {
            self.wait = None;
            self.is_asked = false;
        }
    }

    /// For another server, all state is reset.
    pub(crate) fn forget(&mut self) {
        self.epoch = self.epoch.saturating_add(1);
        self.failures = 0;
        self.at_once = 1;
        self.wait = None;
        self.is_asked = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Pace, Waits};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_failure_doubles_the_wait_up_to_the_longest() {
        let waits = Waits::default();
        let longest: Vec<u64> = (1..9).map(|n| waits.after(n, 1.0).as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits.after(u32::MAX, 0.0), 30 * SECOND);
    }

    #[test]
    fn requests_begin_apart() {
        let mut pace = Pace::new(4, Waits::default()).spaced(SECOND);
        assert_eq!((pace.at_once(SECOND), pace.begins_from(SECOND)), (1, None));
        pace.begun(SECOND);
        assert_eq!((pace.at_once(SECOND), pace.begins_from(SECOND)), (0, Some(2 * SECOND)));
        assert_eq!((pace.waits_until(SECOND), pace.at_once(2 * SECOND)), (None, 1));
        pace.failed(pace.epoch(), SECOND, Some(5 * SECOND), 0.0);
        assert_eq!(pace.begins_from(2 * SECOND), Some(6 * SECOND));
    }

    #[test]
    fn a_server_that_comes_back_is_asked_once_and_then_more_and_more() {
        let mut pace = Pace::new(5, Waits::default());
        let begun = pace.epoch();
        pace.failed(begun, SECOND, None, 1.0);
        assert_eq!(pace.at_once(SECOND), 0);
        assert_eq!(pace.waits_until(SECOND), Some(2 * SECOND));
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(pace.at_once(2 * SECOND));
            pace.succeeded(pace.epoch());
        }
        assert_eq!(seen, [1, 2, 4, 5]);
    }

    #[test]
    fn requests_that_fail_together_count_once_and_late_successes_not_at_all() {
        let mut pace = Pace::new(8, Waits::default());
        let begun = pace.epoch();
        for _ in 0..4 {
            pace.failed(begun, SECOND, None, 1.0);
        }
        assert_eq!(pace.waits_until(SECOND), Some(2 * SECOND));
        pace.succeeded(begun);
        assert_eq!((pace.failures(), pace.at_once(3 * SECOND)), (1, 1));
    }

    #[test]
    fn a_server_that_names_a_time_gets_it_within_bounds() {
        let mut pace = Pace::new(1, Waits::default());
        pace.failed(pace.epoch(), SECOND, Some(30 * SECOND), 0.0);
        assert_eq!(pace.waits_until(SECOND), Some(31 * SECOND));
        pace.retry_now(SECOND);
        assert_eq!(pace.waits_until(SECOND), Some(31 * SECOND));
        pace.failed(pace.epoch(), 31 * SECOND, Some(Duration::MAX), 0.0);
        assert_eq!(pace.waits_until(31 * SECOND), Some(631 * SECOND));
    }
}
