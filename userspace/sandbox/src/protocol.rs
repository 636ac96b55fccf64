//! The messages between the daemon and its children.
//!
//! Requests come from the daemon and are trusted; replies come from a process that may have been
//! taken over by a file, so every decoder of a reply checks every byte and keeps its own bounds.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::error::Refusal;
use crate::identity::FileIdentity;
use crate::wire::{Decoder, Encoder, WireError};

/// A process, safe against pid reuse when its start time is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessRef {
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`, in clock ticks since boot.
    pub start_time: Option<u64>,
}

/// The locator of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Locator {
    /// What a process has mapped at exactly this range, by `/proc/PID/map_files`: works for
    /// deleted and replaced files and across mount namespaces.
    Mapped { process: ProcessRef, start: u64, end: u64 },
    /// A path as the process sees it, resolved without leaving its root.
    InRoot { process: ProcessRef, path: PathBuf },
    /// A path on the host.
    Host { path: PathBuf },
}

impl Locator {
    pub fn process(&self) -> Option<ProcessRef> {
        match self {
            Self::Mapped { process, .. } | Self::InRoot { process, .. } => Some(*process),
            Self::Host { .. } => None,
        }
    }
}

/// The longest path that is asked for (PATH_MAX).
pub(crate) const MAX_PATH: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenRequest {
    pub id: u64,
    pub locator: Locator,
    /// How much of a file that may hang its reader is copied; `None`: its identity is all that is
    /// wanted.
    pub most_copied: Option<u64>,
}

impl OpenRequest {
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.u64(self.id);
        encoder.u8(u8::from(self.most_copied.is_some())).u64(self.most_copied.unwrap_or_default());
        match &self.locator {
            Locator::Mapped { process, start, end } => {
                encode_process(encoder.u8(1), *process).u64(*start).u64(*end);
            }
            Locator::InRoot { process, path } => {
                encode_process(encoder.u8(2), *process).bytes(path.as_os_str().as_bytes());
            }
            Locator::Host { path } => {
                encoder.u8(3).bytes(path.as_os_str().as_bytes());
            }
        }
        encoder.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let id = decoder.u64()?;
        let is_copied = decoder.bool()?;
        let most_copied = decoder.u64()?;
        let most_copied = is_copied.then_some(most_copied);
        let locator = match decoder.u8()? {
            1 => Locator::Mapped {
                process: decode_process(&mut decoder)?,
                start: decoder.u64()?,
                end: decoder.u64()?,
            },
            2 => Locator::InRoot {
                process: decode_process(&mut decoder)?,
                path: decode_path(&mut decoder)?,
            },
            3 => Locator::Host { path: decode_path(&mut decoder)? },
            _ => return Err(WireError::Invalid("a locator")),
        };
        decoder.finish()?;
        Ok(Self { id, locator, most_copied })
    }
}

fn encode_process(encoder: &mut Encoder, process: ProcessRef) -> &mut Encoder {
    encoder.u32(process.pid);
    match process.start_time {
        None => encoder.u8(0).u64(0),
        Some(start_time) => encoder.u8(1).u64(start_time),
    }
}

fn decode_process(decoder: &mut Decoder<'_>) -> Result<ProcessRef, WireError> {
    let pid = decoder.u32()?;
    let known = decoder.bool()?;
    let start_time = decoder.u64()?;
    Ok(ProcessRef { pid, start_time: known.then_some(start_time) })
}

fn decode_path(decoder: &mut Decoder<'_>) -> Result<PathBuf, WireError> {
    let bytes = decoder.bytes()?;
    if bytes.is_empty() || bytes.len() > MAX_PATH || bytes.contains(&0) {
        return Err(WireError::Invalid("a path"));
    }
    Ok(PathBuf::from(OsString::from_vec(bytes.to_vec())))
}

/// The opener's facts about an opened file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenedFacts {
    pub identity: FileIdentity,
    pub filesystem_magic: u64,
    pub deleted: bool,
    /// The user that owns the file, as this process numbers users.
    pub owner: u32,
    /// The descriptor is a copy of the content, because the file itself may hang its reader.
    pub copied: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenReply {
    pub id: u64,
    pub outcome: Result<OpenedFacts, (Refusal, i32)>,
}

impl OpenReply {
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.u64(self.id);
        match &self.outcome {
            Ok(facts) => {
                let identity = facts.identity;
                encoder
                    .u8(0)
                    .u64(identity.device)
                    .u64(identity.inode)
                    .u64(identity.size)
                    .i64(identity.ctime_ns);
                encoder
                    .u64(facts.filesystem_magic)
                    .u8(facts.deleted.into())
                    .u8(facts.copied.into())
                    .u32(facts.owner);
            }
            Err((refusal, errno)) => {
                encoder.u8(*refusal as u8).i64(i64::from(*errno));
            }
        }
        encoder.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let id = decoder.u64()?;
        let outcome = match decoder.u8()? {
            0 => Ok(OpenedFacts {
                identity: FileIdentity {
                    device: decoder.u64()?,
                    inode: decoder.u64()?,
                    size: decoder.u64()?,
                    ctime_ns: decoder.i64()?,
                },
                filesystem_magic: decoder.u64()?,
                deleted: decoder.bool()?,
                copied: decoder.bool()?,
                owner: decoder.u32()?,
            }),
            class => {
                let refusal = Refusal::from_byte(class).ok_or(WireError::Invalid("a refusal"))?;
                let errno =
                    i32::try_from(decoder.i64()?).map_err(|_| WireError::Invalid("an errno"))?;
                Err((refusal, errno))
            }
        };
        decoder.finish()?;
        Ok(Self { id, outcome })
    }
}

/// The first message to a worker, before it gives up its privilege.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerLimits {
    /// Of its address space.
    pub address_space: u64,
    /// Of one answer; also what it may write at all.
    pub reply_bytes: u64,
    /// Of a file by one job, repeated reads counted.
    pub read_bytes: u64,
}

impl WorkerLimits {
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.u64(self.address_space).u64(self.reply_bytes).u64(self.read_bytes);
        encoder.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let limits = Self {
            address_space: decoder.u64()?,
            reply_bytes: decoder.u64()?,
            read_bytes: decoder.u64()?,
        };
        decoder.finish()?;
        Ok(limits)
    }
}

/// Kinds of work. Others are passed to the worker's own [`crate::WorkerJobs`].
pub(crate) mod kind {
    pub const UNWIND_TABLE: u8 = 1;
    pub const FACTS: u8 = 2;
    pub const SYMBOLIZE: u8 = 3;
    pub const READ: u8 = 4;
    pub const FITS: u8 = 5;
    pub const MANAGED_FACTS: u8 = 6;
    pub const MANAGED_NAMES: u8 = 7;
    pub const MANAGED_LINES: u8 = 8;
    pub const BUNDLE: u8 = 9;
    pub const RELATED: u8 = 10;
}

/// A request to a worker; its files go along as envelopes, the body inline or in the exchange
/// file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerRequest<'a> {
    pub id: u64,
    pub kind: u8,
    /// The body is this long and in the exchange file.
    pub in_exchange: Option<u64>,
    pub body: &'a [u8],
}

impl<'a> WorkerRequest<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.u64(self.id).u8(self.kind);
        match self.in_exchange {
            Some(length) => encoder.u8(1).u64(length).bytes(&[]),
            None => encoder.u8(0).u64(0).bytes(self.body),
        };
        encoder.finish()
    }

    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let id = decoder.u64()?;
        let kind = decoder.u8()?;
        let in_exchange = decoder.bool()?;
        let length = decoder.u64()?;
        let body = decoder.bytes()?;
        decoder.finish()?;
        Ok(Self { id, kind, in_exchange: in_exchange.then_some(length), body })
    }
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum JobStatus {
    Done = 0,
    /// The body is a human-readable message.
    ParseError = 1,
    Panicked = 2,
    Changed = 3,
    TooLarge = 4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerReply<'a> {
    pub id: u64,
    pub status: JobStatus,
    /// The worker leaves now; it must not be given another request.
    pub retiring: bool,
    /// The body is this long and in the exchange file.
    pub in_exchange: Option<u64>,
    pub body: &'a [u8],
}

impl<'a> WorkerReply<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.u64(self.id).u8(self.status as u8).u8(self.retiring.into());
        match self.in_exchange {
            Some(length) => encoder.u8(1).u64(length).bytes(&[]),
            None => encoder.u8(0).u64(0).bytes(self.body),
        };
        encoder.finish()
    }

    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let id = decoder.u64()?;
        let status = match decoder.u8()? {
            0 => JobStatus::Done,
            1 => JobStatus::ParseError,
            2 => JobStatus::Panicked,
            3 => JobStatus::Changed,
            4 => JobStatus::TooLarge,
            _ => return Err(WireError::Invalid("a status")),
        };
        let retiring = decoder.bool()?;
        let in_exchange = decoder.bool()?;
        let length = decoder.u64()?;
        let body = decoder.bytes()?;
        decoder.finish()?;
        Ok(Self { id, status, retiring, in_exchange: in_exchange.then_some(length), body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_requests_survive_the_wire() {
        let process = ProcessRef { pid: 7, start_time: Some(99) };
        for locator in [
            Locator::Mapped { process, start: 0x1000, end: 0x2000 },
            Locator::InRoot {
                process: ProcessRef { pid: 1, start_time: None },
                path: "/lib/libc.so.6".into(),
            },
            Locator::Host { path: "/usr/lib/debug".into() },
        ] {
            let request = OpenRequest { id: 3, locator, most_copied: Some(7) };
            assert_eq!(OpenRequest::decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn a_path_with_a_nul_or_none_at_all_is_refused() {
        for path in ["", "a\0b"] {
            let request = OpenRequest {
                id: 1,
                locator: Locator::Host { path: path.into() },
                most_copied: None,
            };
            assert_eq!(OpenRequest::decode(&request.encode()), Err(WireError::Invalid("a path")));
        }
    }

    #[test]
    fn no_cut_or_flipped_reply_is_taken_for_another() {
        let reply = WorkerReply {
            id: 1,
            status: JobStatus::Done,
            retiring: false,
            in_exchange: None,
            body: b"abc",
        };
        let bytes = reply.encode();
        assert_eq!(WorkerReply::decode(&bytes), Ok(reply));
        for length in 0..bytes.len() {
            assert!(WorkerReply::decode(&bytes[..length]).is_err());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(WorkerReply::decode(&longer), Err(WireError::TrailingBytes));
        let mut odd = bytes;
        odd[8] = 77;
        assert_eq!(WorkerReply::decode(&odd), Err(WireError::Invalid("a status")));
    }
}
