//! What the daemon can ask for, and what it gets.

use std::sync::Arc;

use crate::answer::Expected;
use crate::error::FileError;
use crate::jobs::{self, MAX_READ};
use crate::protocol::{Locator, MAX_PATH, kind};
use crate::service::{Config, OpenFile, PendingJob, timeout_of};

/// A request to [`crate::FileService`].
#[derive(Debug)]
pub enum Request {
    /// Answered by [`Reply::Opened`].
    Open(Locator),
    /// A piece of the file, at most 16 MiB; shorter where it ends. Answered by [`Reply::Bytes`].
    Read { file: Arc<OpenFile>, offset: u64, length: u64 },
    /// A kind of work the worker's own [`crate::WorkerJobs`] know. Answered by [`Reply::Bytes`].
    Custom { kind: u8, body: Vec<u8>, files: Vec<Arc<OpenFile>> },
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub enum Reply {
    Opened(Arc<OpenFile>),
    Bytes(Vec<u8>),
}

/// More does not fit a message.
const MAX_FILES: usize = crate::channel::MAX_DESCRIPTORS;
/// What a worker takes.
const MAX_BODY: usize = 64 << 20;

impl Request {
    pub(crate) fn into_job(
        self,
        id: u64,
        config: &Config,
    ) -> Result<(PendingJob, Expected), FileError> {
        let (kind, body, files, expected) = match self {
            Self::Open(_) => return Err(FileError::InvalidRequest("opening is not for workers")),
            Self::Read { file, offset, length } => {
                let length = length.min(MAX_READ);
                (kind::READ, jobs::encode_read(offset, length), vec![file], Expected::Bytes)
            }
            Self::Custom { kind, body, files } => (kind, body, files, Expected::Bytes),
        };
        if files.len() > MAX_FILES {
            return Err(FileError::InvalidRequest("too many files"));
        }
        if body.len() > MAX_BODY {
            return Err(FileError::InvalidRequest("too much at once"));
        }
        let timeout = timeout_of(kind, config);
        Ok((
            PendingJob { id, kind, body, files, timeout, urgent: kind != kind::SYMBOLIZE },
            expected,
        ))
    }
}

pub(crate) fn check_locator(locator: &Locator) -> Result<(), FileError> {
    use std::os::unix::ffi::OsStrExt;
    match locator {
        Locator::Mapped { start, end, .. } if start >= end => {
            Err(FileError::InvalidRequest("an empty range"))
        }
        Locator::Mapped { .. } => Ok(()),
        Locator::InRoot { path, .. } | Locator::Host { path } => {
            let bytes = path.as_os_str().as_bytes();
            if bytes.is_empty() || bytes.len() > MAX_PATH || bytes.contains(&0) {
                return Err(FileError::InvalidRequest("a path that cannot exist"));
            }
            Ok(())
        }
    }
}
