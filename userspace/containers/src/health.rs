//! The health of every source, for display and metrics.

/// All of it, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub sources: Vec<SourceHealth>,
    /// Containers that are known.
    pub known: usize,
    /// Containers that no source knew at the last lookup.
    pub unknown: usize,
    /// Containers that wait to be asked for.
    pub waiting: usize,
    /// Bytes of what is known.
    pub bytes: usize,
    /// Containers that were forgotten because there was no room.
    pub forgotten: u64,
}

/// One source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceHealth {
    /// `docker /var/run/docker.sock`: for display.
    pub name: String,
    /// Whether it could be asked at all when it was last needed: its socket is there.
    pub is_there: bool,
    /// Containers it was asked for.
    pub asked: u64,
    /// Containers it knew.
    pub found: u64,
    /// Times it did not answer, or answered what cannot be used.
    pub failed: u64,
    /// Containers it was not asked for: it was too slow, or had failed shortly before.
    pub skipped: u64,
    pub last_error: Option<String>,
}
