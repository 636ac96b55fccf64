//! The health of every source, for display and metrics.

/// All of it, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub sources: Vec<SourceHealth>,
    /// Containers with metadata.
    pub known: usize,
    /// Containers that no source knew at the last lookup.
    pub unknown: usize,
    /// Containers that wait for a query.
    pub waiting: usize,
    /// Bytes of all metadata.
    pub bytes: usize,
    /// Containers that were evicted for lack of room.
    pub forgotten: u64,
}

/// One source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceHealth {
    /// `docker /var/run/docker.sock`: for display.
    pub name: String,
    /// Whether it was reachable when it was last needed: its socket exists.
    pub is_there: bool,
    /// Containers queried.
    pub asked: u64,
    /// Containers it knew.
    pub found: u64,
    /// Times it did not answer, or answered what cannot be used.
    pub failed: u64,
    /// Containers not queried: it was too slow, or had failed shortly before.
    pub skipped: u64,
    pub last_error: Option<String>,
}
