//! Random numbers for sampling: unpredictable enough that no program's rhythm follows them.

use super::monotonic_nanos;

/// Marsaglia's xorshift.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        Self::of(monotonic_nanos())
    }

    pub(super) fn of(seed: u64) -> Self {
        Self(seed | 1 << 63)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One of the numbers below `end`, each as likely as the others; 0 where there is none.
    pub(super) fn below(&mut self, end: u32) -> u32 {
        u32::try_from(((self.next() >> 32) * u64::from(end)) >> 32).unwrap_or_default()
    }
}
