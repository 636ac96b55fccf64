//! The opener's functions for accessing processes' files, for code that accesses them itself.
//!
//! Attaching has to access a target's sockets and directories directly: they cannot be passed in an
//! envelope from another process. That code pins processes and judges mounts as the opener does.

use std::os::fd::OwnedFd;

use crate::error::Refusal;
pub use crate::opener::filesystems::{Manners, Mounts};
pub use crate::opener::process::start_time_of_stat;
use crate::protocol::ProcessRef;

/// The directory of a process in `/proc`, which stays that process's: once it has ended, every
/// lookup through the descriptor fails, also when its pid was given away again. The error has an
/// errno where there is one (0 otherwise).
pub fn open_process(process: ProcessRef) -> Result<OwnedFd, (Refusal, i32)> {
    crate::opener::process::open_process(process)
}

/// Whether this kernel alone answers for a filesystem named so in mountinfo.
pub fn answers_locally(filesystem_type: &[u8]) -> bool {
    crate::identity::answers_locally(filesystem_type)
}
