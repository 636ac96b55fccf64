//! The service's limits and deadlines.

use std::time::Duration;

use crate::cache::CacheConfig;
use crate::child::ChildCommand;
use crate::protocol::{WorkerLimits, kind};

/// See the module.
#[derive(Debug, Clone)]
pub struct Config {
    pub command: ChildCommand,
    /// Where unwind tables are kept; `None`: nowhere.
    pub cache: Option<CacheConfig>,
    pub open_timeout: Duration,
    /// On filesystems that may hang; includes copying the file.
    pub slow_open_timeout: Duration,
    pub unwind_timeout: Duration,
    pub facts_timeout: Duration,
    pub symbolize_timeout: Duration,
    pub read_timeout: Duration,
    /// Workers at most; more than one only while the first is held up by a file.
    pub workers: usize,
    /// Address space of a worker.
    pub worker_memory: u64,
    pub reply_bytes: u64,
    /// What one job may read of a file, repeated reads counted; five times that for a checksum.
    /// The symbols and lines of the largest programs are below the default.
    pub read_bytes: u64,
    /// Bytes of copies of files on filesystems that may hang, all together: those that are not copied are
    /// not read.
    pub copies: u64,
    /// A worker that grew beyond this ends after its answer.
    pub retire_above: u64,
    /// Children without work for so long end.
    pub idle: Duration,
    /// Children of one kind that may be stuck in the kernel before files like theirs are refused.
    pub max_stuck: usize,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// The first delay before a file that hung or crashed a child is tried again.
    pub failure_pause: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            command: ChildCommand::default(),
            cache: Some(CacheConfig::default()),
            open_timeout: Duration::from_secs(2),
            slow_open_timeout: Duration::from_secs(5),
            unwind_timeout: Duration::from_secs(5),
            facts_timeout: Duration::from_secs(5),
            symbolize_timeout: Duration::from_secs(20),
            read_timeout: Duration::from_secs(2),
            workers: 2,
            worker_memory: 1 << 30,
            reply_bytes: 64 << 20,
            read_bytes: 1 << 30,
            copies: 96 << 20,
            retire_above: 32 << 20,
            idle: Duration::from_secs(20),
            max_stuck: 8,
            max_waiting: 1 << 16,
            failure_pause: Duration::from_secs(60),
        }
    }
}

impl Config {
    pub(super) fn worker_limits(&self) -> WorkerLimits {
        WorkerLimits {
            address_space: self.worker_memory,
            reply_bytes: self.reply_bytes,
            read_bytes: self.read_bytes,
        }
    }
}

/// All kinds of work, for counters per kind.
pub(crate) fn timeout_of(kind: u8, config: &Config) -> Duration {
    match kind {
        kind::UNWIND_TABLE => config.unwind_timeout,
        kind::FACTS | kind::MANAGED_FACTS | kind::BUNDLE => config.facts_timeout,
        // The checksum of a debug file may be one of gigabytes.
        kind::FITS
        | kind::SYMBOLIZE
        | kind::MANAGED_NAMES
        | kind::MANAGED_LINES
        | kind::RELATED => config.symbolize_timeout,
        _ => config.read_timeout,
    }
}
