//! The time, and waiting.
//!
//! A test's clock may run faster than real time, to cover an outage of minutes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Time since the clock began. Never goes back.
pub(crate) type Moment = Duration;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    began_at: SystemTime,
    speed: u32,
}

impl Clock {
    /// The clock of this host.
    #[must_use]
    pub fn real() -> Self {
        Self::faster(1)
    }

    /// A clock that starts now and runs `speed` times as fast. Requests keep their own time.
    #[must_use]
    pub fn faster(speed: u32) -> Self {
        Self { began: Instant::now(), began_at: SystemTime::now(), speed: speed.max(1) }
    }

    #[must_use]
    pub(crate) fn now(&self) -> Moment {
        self.began.elapsed().saturating_mul(self.speed)
    }

    /// The time of day, which may be set forward and back.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        if self.speed == 1 { SystemTime::now() } else { self.began_at + self.now() }
    }

    /// In nanoseconds since 1970, as batches have it.
    #[must_use]
    pub fn nanos(&self) -> i64 {
        let since = self.time().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Waits until `moment`, at least for an instant.
    pub(crate) async fn until(&self, moment: Moment) {
        let wait = moment.saturating_sub(self.now()) / self.speed;
        tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
    }
}
