//! When it is said that a server fails, and that it takes profiles again.
//!
//! Requests are under way beside each other: a server may fail one, and take the next. So a failure
//! is said at once only where none was for some time; another if it lasts.

use std::time::Duration;

use crate::queue::clock::Moment;

/// The interval of warnings about a server that fails, and recovers, again and again; and about one
/// that refuses batch after batch, or a folder that takes no profiles.
pub(crate) const QUIET: Duration = Duration::from_secs(600);

/// After so long a failure is no brief one.
const BRIEF: Duration = Duration::from_secs(60);

/// Of one server.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    failing_since: Option<Moment>,
    is_said: bool,
    next: Moment,
}

impl Warnings {
    /// A request has failed: whether to say so.
    pub(super) fn failed(&mut self, now: Moment) -> bool {
        let since = *self.failing_since.get_or_insert(now);
        let is_due = self.next <= now || since.saturating_add(BRIEF) <= now;
        if self.is_said || !is_due {
            return false;
        }
        self.is_said = true;
        self.next = now.saturating_add(QUIET);
        true
    }

    /// One was taken: whether to say that it is over.
    pub(super) fn recovered(&mut self) -> bool {
        self.failing_since = None;
        std::mem::take(&mut self.is_said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::ZERO.saturating_add(Duration::from_secs(seconds))
    }

    #[test]
    fn the_first_failure_and_its_end_are_said_once() {
        let mut warnings = Warnings::default();
        assert!(!warnings.recovered(), "nothing has failed");
        let failed = [0, 1, 60, 700, 5000].map(|second| warnings.failed(at(second)));
        assert_eq!(failed, [true, false, false, false, false]);
        assert_eq!([warnings.recovered(), warnings.recovered()], [true, false]);
    }

    #[test]
    fn a_server_that_fails_one_request_of_each_period_is_said_to_now_and_then() {
        let mut warnings = Warnings::default();
        let (mut failed, mut recovered) = (0, 0);
        for second in (0..3600).step_by(15) {
            failed += u32::from(warnings.failed(at(second)));
            recovered += u32::from(warnings.recovered());
        }
        assert_eq!((failed, recovered), (6, 6));
    }

    #[test]
    fn a_failure_soon_after_another_is_said_when_it_lasts() {
        let mut warnings = Warnings::default();
        assert!(warnings.failed(at(0)) && warnings.recovered());
        let failed = [15, 30, 74, 75, 90].map(|second| warnings.failed(at(second)));
        assert_eq!(failed, [false, false, false, true, false]);
        assert!(warnings.recovered());
    }
}
