//! Counters of what the service did, refused and lost, all of them reported.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cache::CacheStatistics;
use crate::error::{ChildKind, Death, FileError, Refusal};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Files opened.
    pub opened: u64,
    /// Of them, copied because reading them may hang.
    pub copied: u64,
    /// Files not opened, by class.
    pub refused: BTreeMap<Refusal, u64>,
    /// Requests that did not end in time.
    pub timeouts: BTreeMap<ChildKind, u64>,
    /// Children that died at work, by how.
    pub deaths: BTreeMap<(ChildKind, Death), u64>,
    /// Children started.
    pub starts: BTreeMap<ChildKind, u64>,
    /// Requests answered from memory that the same failed before.
    pub skipped: u64,
    /// Files that were not what was asked for, or damaged.
    pub parse_errors: u64,
    /// Faults of a parser, contained.
    pub panics: u64,
    /// Answers that were not well-formed or too large.
    pub bad_replies: u64,
    /// Requests answered by a worker.
    pub jobs_done: u64,
    pub reply_bytes: u64,
    /// The cache on disk.
    pub cache: CacheStatistics,
    /// Killed children that the kernel holds on to.
    pub stuck_children: u64,
    /// Of children that have ended.
    pub ended_processor_time: Duration,
    /// The most any worker had, as far as it was seen.
    pub peak_worker_memory_bytes: u64,
}

impl Statistics {
    pub(crate) fn failed(&mut self, error: &FileError) {
        match error {
            FileError::Refused { refusal, .. } => *self.refused.entry(*refusal).or_default() += 1,
            FileError::TimedOut(kind) => *self.timeouts.entry(*kind).or_default() += 1,
            FileError::ChildDied(kind, death) => {
                *self.deaths.entry((*kind, *death)).or_default() += 1
            }
            FileError::FailedBefore(_)
            | FileError::TooManyStuck(_)
            | FileError::TakesTooLong
            | FileError::Overloaded(_) => self.skipped += 1,
            FileError::Parse(_) => self.parse_errors += 1,
            FileError::Panicked(_) => self.panics += 1,
            FileError::BadReply(..) | FileError::BadTable(_) | FileError::ReplyTooLarge(_) => {
                self.bad_replies += 1
            }
            FileError::InvalidRequest(_) | FileError::Spawn(..) | FileError::Late => {}
        }
    }
}
