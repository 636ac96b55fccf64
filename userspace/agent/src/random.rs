//! Random numbers for sampling: unpredictable enough that no program's rhythm follows them.

use std::time::{Duration, SystemTime};

/// Marsaglia's xorshift.
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}

impl Random {
    pub(crate) fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::of(now.as_nanos() as u64)
    }

    pub(crate) fn of(seed: u64) -> Self {
        Self(seed | 1 << 63)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One of the numbers below `end`, each as likely as the others; 0 where there is none.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        u32::try_from(((self.next() >> 32) * u64::from(end)) >> 32).unwrap_or_default()
    }

    /// From half to one and a half, by which a pause is multiplied: what happens at even intervals would find
    /// a thread that works at such intervals always at the same place.
    pub(crate) fn factor(&mut self) -> f64 {
        0.5 + (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn spread(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.factor())
    }
}
