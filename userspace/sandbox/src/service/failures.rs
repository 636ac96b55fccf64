//! Files that hung or crashed their parser before, so that each failure is not repeated at full
//! cost.
//!
//! Each new failure doubles the time until the next try. The memory is bounded: with many hostile
//! processes old entries are dropped.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::error::FileError;
use crate::identity::FileIdentity;
use crate::protocol::{Locator, ProcessRef};

const MAX_REMEMBERED: usize = 4096;
/// 60 s, doubled at most this often: about an hour.
const MAX_DOUBLINGS: u32 = 6;
/// A process with so many files that hang is not asked for any other.
const STRIKES_OF_A_PROCESS: u32 = 2;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Culprit {
    Locator(Locator),
    Process(ProcessRef),
    /// A file, for one kind of work.
    File(FileIdentity, u8),
}

#[derive(Debug)]
struct Failure {
    error: FileError,
    until: Instant,
    strikes: u32,
}

#[derive(Debug)]
pub struct Failures {
    first_pause: Duration,
    known: HashMap<Culprit, Failure>,
}

impl Failures {
    pub fn new(first_pause: Duration) -> Self {
        Self { first_pause, known: HashMap::new() }
    }

    pub fn remember(&mut self, culprit: Culprit, error: &FileError, now: Instant) {
        if self.known.len() >= MAX_REMEMBERED && !self.known.contains_key(&culprit) {
            self.forget_some(now);
        }
        let failure = self.known.entry(culprit).or_insert_with(|| Failure {
            error: error.clone(),
            until: now,
            strikes: 0,
        });
        let factor = 1_u32 << failure.strikes.min(MAX_DOUBLINGS);
        failure.strikes = failure.strikes.saturating_add(1);
        failure.until = now.checked_add(self.first_pause.saturating_mul(factor)).unwrap_or(now);
        failure.error = error.clone();
    }

    fn forget_some(&mut self, now: Instant) {
        self.known.retain(|_, failure| failure.until > now);
        if self.known.len() >= MAX_REMEMBERED {
            let mut ends: Vec<Instant> = self.known.values().map(|failure| failure.until).collect();
            ends.sort_unstable();
            let median = ends.get(ends.len() / 2).copied().unwrap_or(now);
            self.known.retain(|_, failure| failure.until > median);
        }
    }

    /// The reason not to try `culprit` now.
    pub fn check(&self, culprit: &Culprit, now: Instant) -> Option<FileError> {
        let failure = self.known.get(culprit).filter(|failure| failure.until > now)?;
        if matches!(culprit, Culprit::Process(_)) && failure.strikes < STRIKES_OF_A_PROCESS {
            return None;
        }
        Some(FileError::FailedBefore(Box::new(failure.error.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ChildKind;

    fn pause() -> Duration {
        Duration::from_secs(60)
    }

    #[test]
    fn a_failure_is_left_alone_twice_as_long_each_time() {
        let mut failures = Failures::new(pause());
        let culprit = Culprit::Locator(Locator::Host { path: "/x".into() });
        let error = FileError::TimedOut(ChildKind::Opener);
        let start = Instant::now();
        failures.remember(culprit.clone(), &error, start);
        assert!(failures.check(&culprit, start + pause() / 2).is_some());
        let later = start + pause() + Duration::from_secs(1);
        assert!(failures.check(&culprit, later).is_none());
        failures.remember(culprit.clone(), &error, later);
        assert!(failures.check(&culprit, later + pause() + pause() / 2).is_some());
    }

    #[test]
    fn a_process_is_given_a_second_chance_but_no_third() {
        let mut failures = Failures::new(pause());
        let culprit = Culprit::Process(ProcessRef { pid: 1, start_time: None });
        let now = Instant::now();
        failures.remember(culprit.clone(), &FileError::TimedOut(ChildKind::Opener), now);
        assert!(failures.check(&culprit, now).is_none());
        failures.remember(culprit.clone(), &FileError::TimedOut(ChildKind::Opener), now);
        assert!(failures.check(&culprit, now).is_some());
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut failures = Failures::new(pause());
        let now = Instant::now();
        for pid in 0..20_000 {
            let culprit = Culprit::Process(ProcessRef { pid, start_time: None });
            failures.remember(culprit, &FileError::TimedOut(ChildKind::Opener), now);
        }
        assert!(failures.known.len() <= MAX_REMEMBERED);
    }
}
