//! The moment by which an operation on a target must have ended. Every wait takes its remaining
//! time from it, so that many small waits cannot add up to a long one.

use std::time::{Duration, Instant};

/// A point in time that waiting does not go past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Instant);

impl Deadline {
    /// This long from now.
    pub fn within(time: Duration) -> Self {
        // A century stands for any time that an `Instant` cannot hold.
        let now = Instant::now();
        Self(now.checked_add(time).unwrap_or(now + Duration::from_secs(100 * 365 * 24 * 3600)))
    }

    /// The earlier of this one and the moment `time` from now.
    pub fn at_most(self, time: Duration) -> Self {
        Self(self.0.min(Self::within(time).0))
    }

    /// The remaining time; `None` when it has passed.
    pub fn remaining(self) -> Option<Duration> {
        self.0.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    pub fn has_passed(self) -> bool {
        self.remaining().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_of_now_has_passed_and_a_huge_one_has_not() {
        assert!(Deadline::within(Duration::ZERO).has_passed());
        assert!(!Deadline::within(Duration::MAX).has_passed());
        assert!(Deadline::within(Duration::MAX).at_most(Duration::ZERO).has_passed());
    }
}
