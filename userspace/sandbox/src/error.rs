//! Why a file could not be opened or parsed, as a message and as a counter's label.

use std::fmt;
use std::io;

use crate::wire::WireError;

/// Why the opener did not open a file. Counted and shown by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Refusal {
    /// A FIFO, device, directory, socket: only regular files are read.
    NotRegular = 1,
    /// No such file in the target's root, or nothing mapped at that range any more.
    NotFound = 2,
    /// The process is gone.
    ProcessGone = 3,
    /// The pid is another process by now.
    ProcessChanged = 4,
    /// The kernel does not let strata (or, for FUSE, any user but its owner) open it.
    Permission = 5,
    /// The path runs through a magic link or too many links.
    UnsafePath = 6,
    /// On a filesystem that may hang, and larger than strata copies from there.
    TooLarge = 7,
    /// A filesystem that may hang, or one nothing is known about: for the slow lane only.
    SlowFilesystem = 8,
    /// Another process holds a lease on the file.
    Busy = 9,
    /// The file changed or shrank while it was read.
    Changed = 10,
    /// Any other error of the kernel.
    Other = 11,
    /// On a filesystem that may hang: there is no room for a copy now, or copying took too long.
    NotCopied = 12,
}

impl Refusal {
    pub const ALL: [Self; 12] = [
        Self::NotRegular,
        Self::NotFound,
        Self::ProcessGone,
        Self::ProcessChanged,
        Self::Permission,
        Self::UnsafePath,
        Self::TooLarge,
        Self::SlowFilesystem,
        Self::Busy,
        Self::Changed,
        Self::Other,
        Self::NotCopied,
    ];

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| *refusal as u8 == byte)
    }

    /// The class of an error of a call that opens or looks up a file.
    pub(crate) fn from_errno(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => Self::NotFound,
            Errno::SRCH => Self::ProcessGone,
            Errno::ACCESS | Errno::PERM => Self::Permission,
            Errno::LOOP | Errno::XDEV => Self::UnsafePath,
            Errno::NXIO | Errno::NODEV => Self::NotRegular,
            Errno::AGAIN | Errno::TXTBSY => Self::Busy,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRegular => "not a regular file",
            Self::NotFound => "no such file",
            Self::ProcessGone => "the process is gone",
            Self::ProcessChanged => "the pid belongs to another process now",
            Self::Permission => "permission denied",
            Self::UnsafePath => "the path does not stay within the target's root",
            Self::TooLarge => "too large for a filesystem that may hang",
            Self::SlowFilesystem => "on a filesystem that may hang",
            Self::Busy => "the file is held by a lease",
            Self::Changed => "the file changed while it was read",
            Self::Other => "it could not be opened",
            Self::NotCopied => {
                "no room for a copy of it, or copying took too long: its filesystem may hang"
            }
        })
    }
}

/// The helper process in which an error happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChildKind {
    Opener,
    SlowOpener,
    Worker,
}

impl fmt::Display for ChildKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Opener => "file opener",
            Self::SlowOpener => "file opener for slow filesystems",
            Self::Worker => "file worker",
        })
    }
}

/// How a helper process ended while it worked on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Death {
    /// It exited with this status.
    Exit(i32),
    /// A signal: SIGSEGV, SIGKILL of the kernel's memory killer, ….
    Signal(i32),
    /// An allocation failed under its memory limit, or its stack was used up.
    OutOfMemory,
    /// It made a system call the sandbox does not allow: it may have been taken over.
    SandboxViolation,
    /// It sent something that is not a message.
    BadMessage,
    /// How it ended is unknown.
    Unknown,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "exit status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::OutOfMemory => f.write_str("it ran out of memory or stack"),
            Self::SandboxViolation => f.write_str("it made a forbidden system call"),
            Self::BadMessage => f.write_str("it sent a malformed message"),
            Self::Unknown => f.write_str("unknown cause"),
        }
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    #[error("{refusal}{}", errno_suffix(*.errno))]
    Refused { refusal: Refusal, errno: i32 },
    /// Opening or reading did not end in time; the process that tried was killed.
    #[error("the {0} did not answer in time")]
    TimedOut(ChildKind),
    /// An earlier try hung or crashed; it is not tried again for a while.
    #[error("skipped: {0}")]
    FailedBefore(Box<FileError>),
    #[error("the {0} ended while working on the file: {1}")]
    ChildDied(ChildKind, Death),
    /// The file was read, and is not what the request needs (or is damaged).
    #[error("{0}")]
    Parse(String),
    /// The parser itself has a fault; it was contained.
    #[error("the parser failed: {0}")]
    Panicked(String),
    #[error("malformed answer of the {0}: {1}")]
    BadReply(ChildKind, WireError),
    #[error("malformed answer of the file worker: {0}")]
    BadTable(String),
    #[error("the answer is larger than {0} bytes")]
    ReplyTooLarge(u64),
    /// Too many processes are stuck in the kernel on files that never answer.
    #[error("not tried: {0} processes of strata hang on files like this one")]
    TooManyStuck(usize),
    /// The files of its process, or of that one's user, took more than their share of time.
    #[error("not tried: the files of its process or user take too much time")]
    TakesTooLong,
    #[error("more than {0} file requests are waiting")]
    Overloaded(usize),
    /// The caller has stopped waiting; the work may still be done.
    #[error("there was no time for it")]
    Late,
    #[error("the request is not valid: {0}")]
    InvalidRequest(&'static str),
    #[error("cannot start the {0}: {1}")]
    Spawn(ChildKind, String),
}

impl FileError {
    pub(crate) fn refused(refusal: Refusal) -> Self {
        Self::Refused { refusal, errno: 0 }
    }

    /// Whether the same request may succeed a little later: the missing resource is strata's own
    /// (room in a queue, a descriptor, memory, a process), and is no property of the file.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Overloaded(_) | Self::TooManyStuck(_) | Self::TakesTooLong | Self::Spawn(..) => {
                true
            }
            Self::Refused { errno, .. } => {
                use rustix::io::Errno;
                let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::TOOMANYREFS];
                short.iter().any(|short| short.raw_os_error() == *errno)
            }
            _ => false,
        }
    }

    /// Whether the file has not been read at all: another try may find everything in it.
    pub fn is_no_answer(&self) -> bool {
        let is_missing = matches!(
            self,
            Self::TimedOut(_)
                | Self::FailedBefore(_)
                | Self::ChildDied(..)
                | Self::Late
                | Self::Refused { refusal: Refusal::NotCopied, .. }
        );
        is_missing || self.may_pass()
    }

    /// Whether the same request is likely to hang or crash again.
    pub(crate) fn is_costly(&self) -> bool {
        matches!(
            self,
            Self::TimedOut(_)
                | Self::ChildDied(..)
                | Self::Panicked(_)
                | Self::BadReply(..)
                | Self::ReplyTooLarge(_)
        )
    }
}

fn errno_suffix(errno: i32) -> String {
    if errno == 0 { String::new() } else { format!(": {}", io::Error::from_raw_os_error(errno)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strata_was_short_of_may_be_there_later_and_a_bad_file_stays_bad() {
        let refused = |errno: rustix::io::Errno| FileError::Refused {
            refusal: Refusal::from_errno(errno),
            errno: errno.raw_os_error(),
        };
        for passing in [FileError::Overloaded(1), refused(rustix::io::Errno::MFILE)] {
            assert!(passing.may_pass(), "{passing}");
        }
        for lasting in [FileError::Parse(String::new()), refused(rustix::io::Errno::NOENT)] {
            assert!(!lasting.may_pass(), "{lasting}");
        }
    }
}
