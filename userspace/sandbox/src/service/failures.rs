//! Files that hung or crashed their parser before, so that each failure is not repeated at full
//! cost.
//!
//! Each new failure doubles the time until the next try. The memory is bounded: with many hostile
//! processes old entries are dropped.

use std::collections::{HashMap, HashSet};
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
    /// The files of one kind of work. Each of them may be read with others: a process can choose a
    /// debug file for a library that all map.
    Files(Vec<FileIdentity>, u8),
}

#[derive(Debug)]
struct Failure {
    error: FileError,
    until: Instant,
    /// How long it is not tried.
    pause: Duration,
    strikes: u32,
}

#[derive(Debug)]
pub struct Failures {
    first_pause: Duration,
    known: HashMap<Culprit, Failure>,
    /// The processes that some of these are of, until they end.
    processes: HashSet<u32>,
}

impl Failures {
    pub fn new(first_pause: Duration) -> Self {
        Self { first_pause, known: HashMap::new(), processes: HashSet::new() }
    }

    pub fn remember(&mut self, culprit: Culprit, error: &FileError, now: Instant) {
        if self.known.len() >= MAX_REMEMBERED && !self.known.contains_key(&culprit) {
            self.forget_some(now);
        }
        let process = match &culprit {
            Culprit::Process(process) => Some(*process),
            Culprit::Locator(locator) => locator.process(),
            Culprit::Files(..) => None,
        };
        self.processes.extend(process.map(|process| process.pid));
        let failure = self.known.entry(culprit).or_insert_with(|| Failure {
            error: error.clone(),
            until: now,
            pause: Duration::ZERO,
            strikes: 0,
        });
        // It was tried since without one.
        if failure.until.checked_add(failure.pause).is_some_and(|quiet| quiet < now) {
            failure.strikes = 0;
        }
        let factor = 1_u32 << failure.strikes.min(MAX_DOUBLINGS);
        failure.strikes = failure.strikes.saturating_add(1);
        failure.pause = self.first_pause.saturating_mul(factor);
        failure.until = now.checked_add(failure.pause).unwrap_or(now);
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

    /// The next process with this number is another one.
    pub fn forget_process(&mut self, pid: u32) {
        if !self.processes.remove(&pid) {
            return;
        }
        let is_of = |process: ProcessRef| process.pid == pid;
        self.known.retain(|culprit, _| match culprit {
            Culprit::Process(process) => !is_of(*process),
            Culprit::Locator(locator) => !locator.process().is_some_and(is_of),
            Culprit::Files(..) => true,
        });
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
    fn a_failure_is_forgiven_when_none_followed_it_for_as_long_as_its_pause() {
        let mut failures = Failures::new(pause());
        let culprit = Culprit::Files(Vec::new(), 1);
        let error = FileError::TimedOut(ChildKind::Worker);
        let mut now = Instant::now();
        for _ in 0..5 {
            failures.remember(culprit.clone(), &error, now);
            now += pause() * 2 + Duration::from_secs(1);
            assert!(failures.check(&culprit, now).is_none(), "one an hour stays one");
        }
    }

    #[test]
    fn the_next_process_of_a_number_has_no_failures() {
        let mut failures = Failures::new(pause());
        let process = ProcessRef { pid: 7, start_time: None };
        let locator = Locator::InRoot { process, path: "/x".into() };
        let culprits = [Culprit::Process(process), Culprit::Locator(locator)];
        let (error, now) = (FileError::TimedOut(ChildKind::Opener), Instant::now());
        for culprit in culprits.iter().chain(&culprits) {
            failures.remember(culprit.clone(), &error, now);
        }
        failures.forget_process(8);
        assert!(culprits.iter().all(|culprit| failures.check(culprit, now).is_some()));
        failures.forget_process(7);
        assert!(culprits.iter().all(|culprit| failures.check(culprit, now).is_none()));
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
