//! Limits the number of files opened for each process.

use std::time::Instant;

/// Files that may be opened for one process at once, and as many a second from then on, so that a
/// process that maps files without end delays only itself.
const FILES_AT_ONCE: u32 = 512;
const FILES_A_SECOND: u32 = 32;

/// The budget of files to open for a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    left: u32,
    since: Instant,
}

impl Allowance {
    pub(super) fn full(now: Instant) -> Self {
        Self { left: FILES_AT_ONCE, since: now }
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.since).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(FILES_A_SECOND);
            self.left = self.left.saturating_add(more).min(FILES_AT_ONCE);
            self.since = now;
        }
    }

    /// Whether nothing was opened for so long that it is as good as a new one.
    pub(super) fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left >= FILES_AT_ONCE
    }

    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_that_maps_without_end_has_its_share_of_opened_files() {
        let now = Instant::now();
        let mut allowance = Allowance::full(now);
        let opened = (0..10_000).filter(|_| allowance.take(now)).count();
        assert_eq!(opened, FILES_AT_ONCE as usize);
        let later = now + Duration::from_secs(3);
        let opened = (0..10_000).filter(|_| allowance.take(later)).count();
        assert_eq!(opened, 3 * FILES_A_SECOND as usize);
    }
}
