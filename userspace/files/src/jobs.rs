//! What a worker can do with a file.
//!
//! [`StandardJobs`] are those of strata; a test's worker adds its own (hang, crash, use up memory)
//! through [`WorkerJobs`]. Jobs run inside the sandbox: they see files, and nothing else.

use crate::protocol::kind;
use crate::target_file::TargetFile;
use crate::wire::{Decoder, Encoder, WireError};

/// Why a job has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    #[error("{0}")]
    Parse(String),
    #[error("the result is too large")]
    TooLarge,
}

impl From<WireError> for JobError {
    fn from(error: WireError) -> Self {
        Self::Parse(error.to_string())
    }
}

/// The work of a worker process.
pub trait WorkerJobs {
    /// The answer to a request of `kind` with `body` on `files`. May panic: it is contained.
    fn run(&self, kind: u8, body: &[u8], files: &[TargetFile]) -> Result<Vec<u8>, JobError>;
}

/// The jobs of strata.
#[derive(Debug, Default)]
pub struct StandardJobs;

impl WorkerJobs for StandardJobs {
    fn run(&self, kind: u8, body: &[u8], files: &[TargetFile]) -> Result<Vec<u8>, JobError> {
        let file = files.first().ok_or_else(|| JobError::Parse("no file was given".into()))?;
        match kind {
            kind::READ => read(body, file),
            kind => Err(JobError::Parse(format!("unknown kind of work {kind}"))),
        }
    }
}

/// The longest piece of a file that one request reads.
pub const MAX_READ: u64 = 16 << 20;

pub(crate) fn encode_read(offset: u64, length: u64) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.u64(offset).u64(length);
    encoder.finish()
}

/// A piece of the file; shorter where the file ends.
fn read(body: &[u8], file: &TargetFile) -> Result<Vec<u8>, JobError> {
    let mut decoder = Decoder::new(body);
    let offset = decoder.u64()?;
    let length = decoder.u64()?.min(MAX_READ).min(file.size().saturating_sub(offset));
    decoder.finish()?;
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| JobError::TooLarge)?];
    file.read_exact_at(offset, &mut bytes).map_err(|error| JobError::Parse(error.to_string()))?;
    Ok(bytes)
}
