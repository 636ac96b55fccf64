//! How often each kind is sampled.

use crate::{KIND_COUNT, Kind};

/// Samples a second of every kind that a clock samples; 1 for the others, of which every event counts
/// as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frequencies([u32; KIND_COUNT]);

impl Frequencies {
    /// The daemon's defaults.
    #[must_use]
    pub fn of_daemon() -> Self {
        Self(Kind::ALL.map(|kind| kind.info().rate.map_or(1, |rate| rate.daemon)))
    }

    /// Of a recording.
    #[must_use]
    pub fn of_recording() -> Self {
        Self(Kind::ALL.map(|kind| kind.info().rate.map_or(1, |rate| rate.recording)))
    }

    #[must_use]
    pub const fn of(&self, kind: Kind) -> u32 {
        self.0[kind as usize]
    }

    #[must_use]
    pub const fn with(mut self, kind: Kind, frequency: u32) -> Self {
        self.0[kind as usize] = frequency;
        self
    }

    /// The weight of one event of a kind, in the unit of its period: nanoseconds of the sampling
    /// interval where a clock samples it, 1 elsewhere.
    #[must_use]
    pub fn period(&self, kind: Kind) -> i64 {
        match kind.info().rate {
            Some(_) => 1_000_000_000 / i64::from(self.of(kind).max(1)),
            None => 1,
        }
    }
}
