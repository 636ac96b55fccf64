//! Waiting, in an event loop, for what the engine is to take.

use std::os::fd::{BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Engine;

/// Readable when there is something to take.
pub struct Readiness {
    /// Processes have changed.
    pub events: AsyncFd<OwnedFd>,
    pub records: AsyncFd<OwnedFd>,
    /// Answers about files have come.
    pub files: AsyncFd<OwnedFd>,
}

impl Readiness {
    pub fn of(engine: &Engine) -> Result<Self> {
        Ok(Self {
            events: watch(engine.events_fd())?,
            records: watch(engine.programs.records_fd())?,
            files: watch(engine.loading.fd())?,
        })
    }
}

/// A descriptor of our own: readiness belongs to what is open, not to the number.
fn watch(fd: BorrowedFd<'_>) -> Result<AsyncFd<OwnedFd>> {
    let fd = fd.try_clone_to_owned().context("a descriptor cannot be copied")?;
    // SAFETY: the descriptor is open, owned by the result and registered nowhere else.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
        .map_err(|error| anyhow::anyhow!("a descriptor cannot be polled: {error}"))
}
