//! The runtime's diagnostics protocol, DOTNET_IPC_V1: one command and one answer per connection.
//!
//! A message is a header of 20 bytes (magic, total size in 16 bits, command set, command, reserved)
//! and a payload; numbers are little-endian, strings are a count of UTF-16 units with the final
//! NUL, then the units (src/native/eventpipe/ds-types.h, ds-protocol.c). The target answers: every
//! size is checked, and every wait has an end.

mod process_info;
mod reason;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub use process_info::ProcessInfo;
pub use reason::HResult;

use crate::deadline::Deadline;
use crate::socket::{FoundSocket, SocketError, connect_to_any};
use crate::target::Target;

const MAGIC: &[u8; 14] = b"DOTNET_IPC_V1\0";
const HEADER: usize = 20;

/// Command sets and their commands (src/native/eventpipe/ds-types.h).
const PROFILER: u8 = 3;
const ATTACH_PROFILER: u8 = 1;
const PROCESS: u8 = 4;
const PROCESS_INFO: u8 = 0;
const PROCESS_INFO_2: u8 = 4;
const ENABLE_PERF_MAP: u8 = 5;
const DISABLE_PERF_MAP: u8 = 6;
const SERVER: u8 = 0xff;
const OK: u8 = 0;
const ERROR: u8 = 0xff;

/// A command that the runtime does at once.
const QUICK: Duration = Duration::from_secs(3);
/// AttachProfiler waits behind a detach that is still going on, for up to nine seconds.
pub const ATTACH: Duration = Duration::from_secs(12);

/// Why a command has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiagnosticsError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("the runtime did not answer within {} ms: it is stopped, frozen, suspended at its start or very busy", .0.as_millis())]
    NoAnswer(Duration),
    #[error(
        "the runtime closed the connection without an answer: it is ending, or does not know the command"
    )]
    Closed,
    #[error("talking to the diagnostics socket: {0}")]
    Io(ErrorKind),
    #[error("the answer is not one of the diagnostics protocol: {0}")]
    Malformed(&'static str),
    #[error("the runtime refused: {0}")]
    Refused(HResult),
    #[error("a message of {0} bytes is longer than the protocol allows")]
    TooLong(usize),
}

impl DiagnosticsError {
    /// The runtime's error text, if any.
    pub fn result(&self) -> Option<HResult> {
        match self {
            Self::Refused(result) => Some(*result),
            _ => None,
        }
    }
}

/// What kind of perf file the runtime is to write (`PerfMapType`, src/coreclr/vm/perfmap.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PerfMapKind {
    JitDump = 2,
    PerfMap = 3,
}

/// A class id as the runtime wants it in memory and on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassId(pub [u8; 16]);

impl ClassId {
    /// From the digits of its text. The first three fields are little-endian numbers in memory.
    pub const fn from_fields(digits: u128) -> Self {
        let first = (digits >> 96) as u32;
        let second = (digits >> 80) as u16;
        let third = (digits >> 64) as u16;
        let fields = (first as u128)
            | (second as u128) << 32
            | (third as u128) << 48
            | ((digits as u64).swap_bytes() as u128) << 64;
        Self(fields.to_le_bytes())
    }
}

/// The diagnostics commands of one process.
#[derive(Debug)]
pub struct Diagnostics<'a> {
    target: &'a Target,
    sockets: &'a [FoundSocket],
}

impl<'a> Diagnostics<'a> {
    pub fn new(target: &'a Target, sockets: &'a [FoundSocket]) -> Self {
        Self { target, sockets }
    }

    /// The runtime's description of its process: .NET 6 and later with a version, 5 without; 3.1
    /// does not know the command.
    pub fn process_info(&self, deadline: Deadline) -> Result<ProcessInfo, DiagnosticsError> {
        match self.command(PROCESS, PROCESS_INFO_2, &[], deadline.at_most(QUICK)) {
            Ok(payload) => ProcessInfo::parse(&payload, true),
            Err(DiagnosticsError::Refused(HResult::UNKNOWN_COMMAND)) => {
                let deadline = deadline.at_most(QUICK);
                let payload = self.command(PROCESS, PROCESS_INFO, &[], deadline)?;
                ProcessInfo::parse(&payload, false)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets the runtime load a profiler library from a path or by a bare name.
    pub fn attach_profiler(
        &self,
        class: ClassId,
        library: &str,
        client_data: &[u8],
        deadline: Deadline,
    ) -> Result<(), DiagnosticsError> {
        let mut payload = Vec::new();
        // The runtime ignores this time, but requires the field.
        payload.extend(u32::try_from(ATTACH.as_millis()).unwrap_or(u32::MAX).to_le_bytes());
        payload.extend(class.0);
        put_string(&mut payload, library);
        payload.extend(u32::try_from(client_data.len()).unwrap_or(u32::MAX).to_le_bytes());
        payload.extend(client_data);
        let answer = self.command(PROFILER, ATTACH_PROFILER, &payload, deadline.at_most(ATTACH))?;
        result_in(&answer)
    }

    /// Lets the runtime write `/tmp/perf-PID.map` or a jitdump from now on, beginning with what is
    /// compiled already (.NET 8 and later).
    pub fn enable_perf_map(
        &self,
        kind: PerfMapKind,
        deadline: Deadline,
    ) -> Result<(), DiagnosticsError> {
        let payload = (kind as u32).to_le_bytes();
        let deadline = deadline.at_most(QUICK);
        result_in(&self.command(PROCESS, ENABLE_PERF_MAP, &payload, deadline)?)
    }

    /// Ends what [`Self::enable_perf_map`] began.
    pub fn disable_perf_map(&self, deadline: Deadline) -> Result<(), DiagnosticsError> {
        let deadline = deadline.at_most(QUICK);
        result_in(&self.command(PROCESS, DISABLE_PERF_MAP, &[], deadline)?)
    }

    fn command(
        &self,
        set: u8,
        command: u8,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, DiagnosticsError> {
        let request = message(set, command, payload)?;
        let start = Instant::now();
        let mut stream = connect_to_any(self.sockets, self.target, deadline)?;
        let timely = |error| match error {
            DiagnosticsError::Io(ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                DiagnosticsError::NoAnswer(start.elapsed())
            }
            error => error,
        };
        send(&mut stream, &request, deadline).map_err(timely)?;
        receive(&mut stream, deadline).map_err(timely)
    }
}

fn message(set: u8, command: u8, payload: &[u8]) -> Result<Vec<u8>, DiagnosticsError> {
    let total = HEADER.saturating_add(payload.len());
    let size = u16::try_from(total).map_err(|_| DiagnosticsError::TooLong(total))?;
    let mut message = Vec::with_capacity(total);
    message.extend(MAGIC);
    message.extend(size.to_le_bytes());
    message.extend([set, command, 0, 0]);
    message.extend(payload);
    Ok(message)
}

fn put_string(payload: &mut Vec<u8>, text: &str) {
    let units: Vec<u16> = text.encode_utf16().chain([0]).collect();
    payload.extend(u32::try_from(units.len()).unwrap_or(u32::MAX).to_le_bytes());
    payload.extend(units.into_iter().flat_map(u16::to_le_bytes));
}

fn io(error: &std::io::Error) -> DiagnosticsError {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => {
            DiagnosticsError::Closed
        }
        kind => DiagnosticsError::Io(kind),
    }
}

const LATE: DiagnosticsError = DiagnosticsError::Io(ErrorKind::TimedOut);

fn send(stream: &mut UnixStream, bytes: &[u8], deadline: Deadline) -> Result<(), DiagnosticsError> {
    let mut left = bytes;
    while !left.is_empty() {
        stream
            .set_write_timeout(Some(deadline.remaining().ok_or(LATE)?))
            .map_err(|error| io(&error))?;
        match stream.write(left) {
            Ok(0) => return Err(DiagnosticsError::Closed),
            Ok(length) => left = left.get(length..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(io(&error)),
        }
    }
    Ok(())
}

/// The payload of one answer. A message has at most 64 KiB, so nothing large is ever kept.
fn receive(stream: &mut UnixStream, deadline: Deadline) -> Result<Vec<u8>, DiagnosticsError> {
    let mut header = [0; HEADER];
    fill(stream, &mut header, deadline)?;
    let [magic @ .., size_low, size_high, set, command, _, _] = header;
    if &magic != MAGIC {
        return Err(DiagnosticsError::Malformed("not its magic"));
    }
    let size = usize::from(u16::from_le_bytes([size_low, size_high]));
    let length = size
        .checked_sub(HEADER)
        .ok_or(DiagnosticsError::Malformed("smaller than its own header"))?;
    let mut payload = vec![0; length];
    fill(stream, &mut payload, deadline)?;
    match (set, command) {
        (SERVER, OK) => Ok(payload),
        (SERVER, ERROR) => Err(DiagnosticsError::Refused(first_result(&payload)?)),
        _ => Err(DiagnosticsError::Malformed("neither a success nor an error")),
    }
}

/// Reads all of it. Bytes that drip in do not lengthen the wait.
fn fill(
    stream: &mut UnixStream,
    buffer: &mut [u8],
    deadline: Deadline,
) -> Result<(), DiagnosticsError> {
    let mut left = buffer;
    while !left.is_empty() {
        stream
            .set_read_timeout(Some(deadline.remaining().ok_or(LATE)?))
            .map_err(|error| io(&error))?;
        match stream.read(left) {
            Ok(0) => return Err(DiagnosticsError::Closed),
            Ok(length) => left = left.get_mut(length..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(io(&error)),
        }
    }
    Ok(())
}

fn first_result(payload: &[u8]) -> Result<HResult, DiagnosticsError> {
    let first = payload.first_chunk().ok_or(DiagnosticsError::Malformed("it has no result"))?;
    Ok(HResult(u32::from_le_bytes(*first)))
}

/// A success that carries a result of its own.
fn result_in(payload: &[u8]) -> Result<(), DiagnosticsError> {
    let result = first_result(payload)?;
    if result.is_failure() { Err(DiagnosticsError::Refused(result)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_of(bytes: &[u8]) -> Result<Vec<u8>, DiagnosticsError> {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        drop(theirs);
        receive(&mut ours, Deadline::within(Duration::from_secs(5)))
    }

    #[test]
    fn an_attach_request_has_the_bytes_that_the_runtime_expects() {
        let mut text = Vec::new();
        put_string(&mut text, "ab");
        assert_eq!(text, [3, 0, 0, 0, b'a', 0, b'b', 0, 0, 0]);
        let request = message(PROFILER, ATTACH_PROFILER, &text).unwrap();
        assert_eq!(request, b"DOTNET_IPC_V1\0\x1e\0\x03\x01\0\0\x03\0\0\0a\0b\0\0\0");
        assert_eq!(message(1, 1, &[0; 65536]), Err(DiagnosticsError::TooLong(65556)));
    }

    #[test]
    fn answers_that_lie_about_themselves_are_refused() {
        let malformed = |what| Err(DiagnosticsError::Malformed(what));
        assert_eq!(answer_of(b"HTTP/1.1 400 Bad Request"), malformed("not its magic"));
        let small = b"DOTNET_IPC_V1\0\x05\0\xff\0\0\0";
        assert_eq!(answer_of(small), malformed("smaller than its own header"));
        let long = b"DOTNET_IPC_V1\0\xff\xff\xff\0\0\0abc";
        assert_eq!(answer_of(long), Err(DiagnosticsError::Closed));
        let other = b"DOTNET_IPC_V1\0\x14\0\x04\0\0\0";
        assert_eq!(answer_of(other), malformed("neither a success nor an error"));
        let empty_error = b"DOTNET_IPC_V1\0\x14\0\xff\xff\0\0";
        assert_eq!(answer_of(empty_error), malformed("it has no result"));
        let error = b"DOTNET_IPC_V1\0\x18\0\xff\xff\0\0\x7e\0\x07\x80";
        assert_eq!(answer_of(error), Err(DiagnosticsError::Refused(HResult(0x8007_007e))));
    }

    #[test]
    fn bytes_that_drip_in_do_not_lengthen_the_wait() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let dripping = std::thread::spawn(move || {
            for byte in MAGIC.iter().cycle() {
                if theirs.write_all(&[*byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let start = std::time::Instant::now();
        let outcome = receive(&mut ours, Deadline::within(Duration::from_millis(150)));
        assert!(start.elapsed() < Duration::from_secs(30), "it waits as long as bytes come");
        assert!(matches!(outcome, Err(DiagnosticsError::Io(_))), "{outcome:?}");
        drop(ours);
        dripping.join().unwrap();
    }
}
