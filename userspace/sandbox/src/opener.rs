//! The opener: a process that opens files for the daemon and does nothing else.
//!
//! Opening a file of a target may hang forever (FUSE, a dead server) or have side effects (a FIFO,
//! a device). So it happens here, one request after the other, in a process that can be killed and
//! replaced; answers come in the order of the requests, and the first missing answer identifies the
//! file that hangs. What is opened is put into an [`Envelope`], because even closing a file can
//! hang.
//!
//! Two instances run at most: the fast one touches only filesystems that this kernel alone answers
//! for and hands everything else back ([`Refusal::SlowFilesystem`]); the slow one takes those,
//! and copies the content of a file that may hang its reader.
//!
//! Invariants: no file's content is interpreted here; only regular files are opened for reading;
//! a path is resolved below its root and never through a magic link.

pub(crate) mod filesystems;
pub(crate) mod process;
mod resolve;
pub(crate) use resolve::MAX_COPY;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;

use crate::capabilities;
use crate::channel::{Channel, Envelope, MAX_MESSAGE, Wait};
use crate::error::Refusal;
use crate::protocol::{OpenReply, OpenRequest, OpenedFacts};

/// The files that an opener accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Only where opening cannot hang. `wary`: overlays do not count as such, because the daemon
    /// has found one that hangs.
    Fast { wary: bool },
    /// Files on filesystems that may hang.
    Slow,
}

impl Lane {
    /// The argument that names a re-executed opener's lane.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Fast { wary: false } => "fast",
            Self::Fast { wary: true } => "wary",
            Self::Slow => "slow",
        }
    }

    pub fn from_argument(argument: &[u8]) -> Option<Self> {
        [Self::Fast { wary: false }, Self::Fast { wary: true }, Self::Slow]
            .into_iter()
            .find(|lane| lane.argument().as_bytes() == argument)
    }
}

/// The result of opening: the file and its facts.
type Opened = (OwnedFd, OpenedFacts);
/// A refusal and the errno behind it (0 for none).
type Refused = (Refusal, i32);

fn refused(errno: rustix::io::Errno) -> Refused {
    (Refusal::from_errno(errno), errno.raw_os_error())
}

/// Serves open requests on standard input until its other end is closed.
pub fn run_opener(lane: Lane) -> io::Result<()> {
    let channel = Channel::from_socket(crate::child::enter(c"strata-opener")?);
    keep_only_what_opening_needs();
    let mut resolver = resolve::Resolver::new(lane);
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let received = channel.receive(&mut buffer, false, Wait::Block)?;
        if received.length == 0 {
            return Ok(());
        }
        let message = buffer.get(..received.length).unwrap_or_default();
        let request = OpenRequest::decode(message).map_err(io::Error::other)?;
        let outcome =
            resolver.open(&request.locator, request.most_copied).and_then(|(file, facts)| {
                Envelope::seal(file.as_fd())
                    .map(|envelope| (envelope, file, facts))
                    .map_err(|error| (Refusal::Other, error.raw_os_error().unwrap_or(0)))
            });
        match outcome {
            Ok((envelope, file, facts)) => {
                // Closing may hang, so it comes before the answer: then the hang is attributed to
                // this file.
                drop(file);
                let reply = OpenReply { id: request.id, outcome: Ok(facts) };
                channel.send(&reply.encode(), &[envelope.as_fd()], Wait::Block)?;
            }
            Err(refusal) => {
                let reply = OpenReply { id: request.id, outcome: Err(refusal) };
                channel.send(&reply.encode(), &[], Wait::Block)?;
            }
        }
    }
}

/// Looking into other processes, past file modes, and files in flight beyond the usual number. Best
/// effort: without root there is nothing to give up, and a failed open reports what is missing.
fn keep_only_what_opening_needs() {
    let wanted = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE
        | CapabilitySet::SYS_RESOURCE;
    let _ = capabilities::keep_only(|_| wanted);
    let _ = rustix::thread::set_no_new_privs(true);
    let files = rustix::process::getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit { current: files.maximum, maximum: files.maximum },
    );
    let _ =
        rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}
