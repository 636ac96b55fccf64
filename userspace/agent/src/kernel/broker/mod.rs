//! The broker: a helper process that keeps CAP_SYS_ADMIN, so that the process that parses what
//! targets write need not.
//!
//! Two operations need that capability while sampling: a uprobe of one process ([`Mapped`]), and
//! the events of a CPU that is switched on later where `kernel.perf_event_paranoid` is 3 or more.
//! The main process sends a request of fixed size, and gets the event's descriptor back.
//!
//! - this module: requests and replies as bytes;
//! - [`client`]: the main process's side, which never waits;
//! - [`process`]: the helper.
//!
//! Invariant: a request names numbers only: a CPU, or a mapping of a process by pid and addresses. No
//! path, no program and no bytes of code: the helper has the one program from its start, and attaches
//! it only where the bridge's event function is ([`FUNCTION`](strata_bridge_protocol::clr_event)).

pub mod client;
pub mod process;

use std::io;

use super::perf_event::CpuEvent;

/// The first argument of this executable as a broker.
pub const ARGUMENT: &str = "internal-broker";

const REQUEST_BYTES: usize = 48;
const REPLY_BYTES: usize = 16;

/// The most attaches at the same time, those included that hang.
pub(super) const MOST_PROBES: usize = 128;

/// The mapping of the bridge's library in a process, and where in its file the event function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub pid: u32,
    pub start: u64,
    pub end: u64,
    /// Of the function, in the file.
    pub offset: u64,
}

/// What the broker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Cpu(u32, CpuEvent),
    Probe(Mapped),
}

/// An operation with the number that its reply has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    id: u64,
    operation: Operation,
}

const CLOCK: u32 = 1;
const PROCESSES: u32 = 2;
const PROBE: u32 = 3;

impl Request {
    fn encode(&self) -> [u8; REQUEST_BYTES] {
        let (kind, of, numbers) = match self.operation {
            Operation::Cpu(cpu, CpuEvent::Clock { frequency }) => (CLOCK, cpu, [frequency, 0, 0]),
            Operation::Cpu(cpu, CpuEvent::Processes { wakeup_bytes, has_names }) => {
                (PROCESSES, cpu, [u64::from(wakeup_bytes), u64::from(has_names), 0])
            }
            Operation::Probe(Mapped { pid, start, end, offset }) => {
                (PROBE, pid, [start, end, offset])
            }
        };
        let mut bytes = [0; REQUEST_BYTES];
        let words = [self.id, u64::from(kind), u64::from(of)].into_iter().chain(numbers);
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None`: not one that an intact main process sends.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST_BYTES] = bytes.try_into().ok()?;
        let mut words = [0; REQUEST_BYTES / 8];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(from.try_into().ok()?);
        }
        let [id, kind, of, first, second, third] = words;
        let of = u32::try_from(of).ok()?;
        let operation = match u32::try_from(kind).ok()? {
            CLOCK if first != 0 && second == 0 && third == 0 => {
                Operation::Cpu(of, CpuEvent::Clock { frequency: first })
            }
            PROCESSES if second <= 1 && third == 0 => {
                let wakeup_bytes = u32::try_from(first).ok()?;
                Operation::Cpu(of, CpuEvent::Processes { wakeup_bytes, has_names: second == 1 })
            }
            PROBE if of != 0 && i32::try_from(of).is_ok() && first < second => {
                Operation::Probe(Mapped { pid: of, start: first, end: second, offset: third })
            }
            _ => return None,
        };
        Some(Self { id, operation })
    }
}

/// What became of a request; a descriptor comes with [`Outcome::Done`] alone.
#[derive(Debug)]
enum Outcome {
    Done,
    /// Not of a request: a broker has begun to serve, and whether it has CAP_SYS_ADMIN. Requests
    /// that are open were lost with the one before.
    Begun {
        is_privileged: bool,
        /// Brokers before it that ended one after the other, each soon ([`process::STEADY`]).
        failed: u32,
    },
    NoUprobes(io::Error),
    Library(io::Error),
    OtherCode,
    Open(io::Error),
    Attach(io::Error),
    /// The process that attaches could not be started, or has died.
    Died,
    /// Attaching was given up after [`process::LONGEST`].
    Late,
}

/// See [`Outcome::Begun`]: more are not distinguished.
const MOST_FAILED: u32 = 1 << 16;

struct Reply {
    id: u64,
    outcome: Outcome,
}

impl Reply {
    fn encode(&self) -> [u8; REPLY_BYTES] {
        let of = |error: &io::Error| error.raw_os_error().unwrap_or(0);
        let (kind, number) = match &self.outcome {
            Outcome::Done => (0u32, 0i32),
            Outcome::Begun { is_privileged, failed } => {
                (1, i32::from(*is_privileged) | ((*failed).min(MOST_FAILED) << 1) as i32)
            }
            Outcome::NoUprobes(error) => (2, of(error)),
            Outcome::Library(error) => (3, of(error)),
            Outcome::OtherCode => (4, 0),
            Outcome::Open(error) => (5, of(error)),
            Outcome::Attach(error) => (6, of(error)),
            Outcome::Died => (7, 0),
            Outcome::Late => (8, 0),
        };
        let mut bytes = [0; REPLY_BYTES];
        let (id, rest) = bytes.split_at_mut(8);
        id.copy_from_slice(&self.id.to_le_bytes());
        let (to_kind, to_number) = rest.split_at_mut(4);
        to_kind.copy_from_slice(&kind.to_le_bytes());
        to_number.copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REPLY_BYTES] = bytes.try_into().ok()?;
        let (id, rest) = bytes.split_first_chunk::<8>()?;
        let (kind, number) = rest.split_first_chunk::<4>()?;
        let number = i32::from_le_bytes(number.try_into().ok()?);
        let error = || io::Error::from_raw_os_error(number);
        let outcome = match u32::from_le_bytes(*kind) {
            0 => Outcome::Done,
            1 => Outcome::Begun {
                is_privileged: number & 1 != 0,
                failed: u32::try_from(number).ok()? >> 1,
            },
            2 => Outcome::NoUprobes(error()),
            3 => Outcome::Library(error()),
            4 => Outcome::OtherCode,
            5 => Outcome::Open(error()),
            6 => Outcome::Attach(error()),
            7 => Outcome::Died,
            8 => Outcome::Late,
            _ => return None,
        };
        Some(Self { id: u64::from_le_bytes(*id), outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> [Request; 4] {
        let mapped = Mapped { pid: 4711, start: 0x7f00_0000, end: 0x7f00_2000, offset: 0x1040 };
        [
            Request { id: 1, operation: Operation::Cpu(3, CpuEvent::Clock { frequency: 97 }) },
            Request {
                id: u64::MAX,
                operation: Operation::Cpu(
                    0,
                    CpuEvent::Processes { wakeup_bytes: 1, has_names: true },
                ),
            },
            Request {
                id: 2,
                operation: Operation::Cpu(
                    9,
                    CpuEvent::Processes { wakeup_bytes: 32 << 10, has_names: false },
                ),
            },
            Request { id: 7, operation: Operation::Probe(mapped) },
        ]
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
    }

    #[test]
    fn other_bytes_are_no_request() {
        for request in requests() {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes[..REQUEST_BYTES - 1]), None);
            assert_eq!(Request::decode(&[&bytes[..], &[0]].concat()), None);
            let changed = |word: usize, to: u64| {
                let mut bytes = bytes;
                bytes[word * 8..][..8].copy_from_slice(&to.to_le_bytes());
                Request::decode(&bytes)
            };
            for kind in [0, 4, u64::MAX, 1 << 32 | 1] {
                assert_eq!(changed(1, kind), None);
            }
            assert_eq!(changed(2, 1 << 32), None, "a number of 64 bits");
        }
        let [clock, processes, _, probe] = requests();
        let with = |request: Request, word: usize, to: u64| {
            let mut bytes = request.encode();
            bytes[word * 8..][..8].copy_from_slice(&to.to_le_bytes());
            Request::decode(&bytes)
        };
        assert_eq!(with(clock, 3, 0), None, "no frequency");
        assert_eq!(with(clock, 5, 1), None, "a number that it does not have");
        assert_eq!(with(processes, 3, 1 << 32), None);
        assert_eq!(with(processes, 4, 2), None, "neither with names nor without");
        assert_eq!(with(probe, 2, 0), None, "no process: the caller itself");
        assert_eq!(with(probe, 2, u64::from(u32::MAX)), None, "every process");
        assert_eq!(with(probe, 4, 0), None, "a mapping that ends before it begins");
    }

    #[test]
    fn replies_are_read_as_they_were_written() {
        let error = || io::Error::from_raw_os_error(libc::EACCES);
        let all = [
            Outcome::Done,
            Outcome::Begun { is_privileged: true, failed: 0 },
            Outcome::Begun { is_privileged: false, failed: 3 },
            Outcome::Begun { is_privileged: true, failed: MOST_FAILED },
            Outcome::NoUprobes(error()),
            Outcome::Library(error()),
            Outcome::OtherCode,
            Outcome::Open(error()),
            Outcome::Attach(error()),
            Outcome::Died,
            Outcome::Late,
        ];
        for outcome in all {
            let text = format!("{outcome:?}");
            let read = Reply::decode(&Reply { id: 9, outcome }.encode()).expect("it is one");
            assert_eq!((read.id, format!("{:?}", read.outcome)), (9, text));
        }
        assert!(Reply::decode(&[9; REPLY_BYTES]).is_none());
        assert!(Reply::decode(&[0; REPLY_BYTES - 1]).is_none());
    }
}
