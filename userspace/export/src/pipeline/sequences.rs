//! The sequence numbers of a runtime's profiles at one exporter.
//!
//! A runtime keeps its id over restarts of strata, and backends identify its profiles by their
//! numbers. So the first number is the time since the host's start, in tenths of a second: as a
//! runtime has a profile a second at most, a later count begins beyond any number of an earlier
//! one, and a count dropped for lack of memory may begin again. From then on numbers follow each
//! other, and a gap is a profile that was lost.
//!
//! Invariant: no two profiles of a runtime have the same number, whatever ended the process that
//! gave the first one its number.

use std::collections::HashMap;

/// The most runtimes tracked.
const MOST: usize = 100_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Sequences {
    /// The number of a runtime's next profile.
    next: HashMap<String, u64>,
    /// Runtimes that have had a profile since [`Self::begin`].
    sent: HashMap<String, u64>,
}

impl Sequences {
    /// Begins the profiles of a period. The runtimes of the last one are kept, and others while
    /// they are few.
    pub fn begin(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        if self.next.len().saturating_add(sent.len()) > MOST {
            self.next.clear();
        }
        self.next.extend(sent);
    }

    /// The number of a profile.
    pub fn next(&mut self, runtime: &str) -> u64 {
        if let Some(next) = self.sent.get_mut(runtime) {
            *next += 1;
            return *next - 1;
        }
        let number = self.next.remove(runtime).unwrap_or_else(tenths_since_boot);
        self.sent.insert(runtime.to_owned(), number + 1);
        number
    }
}

/// By a clock that cannot be set, and that goes on while the host sleeps.
fn tenths_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(10).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0) / 100_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_runtime_follow_each_other_over_periods() {
        let mut sequences = Sequences::default();
        sequences.begin();
        let first = sequences.next("a");
        assert_eq!(sequences.next("a"), first + 1);
        for _ in 0..3 {
            sequences.begin();
            sequences.next("b");
        }
        sequences.begin();
        assert_eq!(sequences.next("a"), first + 2);
    }

    #[test]
    fn a_count_that_begins_anew_gives_out_no_number_again() {
        let mut before = Sequences::default();
        let given: Vec<u64> = (0..3).map(|_| before.next("a")).collect();
        // Four periods of the shortest length would be more.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let again = Sequences::default().next("a");
        assert!(given.iter().all(|number| *number < again), "{given:?}, {again}");
    }

    #[test]
    fn runtimes_without_profiles_are_forgotten_when_they_are_many() {
        let mut sequences = Sequences::default();
        for runtime in 0..=MOST {
            sequences.next(&runtime.to_string());
        }
        sequences.begin();
        sequences.next("a");
        sequences.begin();
        assert_eq!(sequences.next.len(), 1);
    }
}
