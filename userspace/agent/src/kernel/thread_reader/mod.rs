//! The thread reader: a helper process that reads iterators over threads, which walk their stacks while
//! they are read: of all threads once, or one after the other of the processes and threads of a list, again
//! and again until there is another order. Between such passes it sleeps by itself: the engine, whose
//! turn costs as much as a pass over a few threads, is not woken for each.
//!
//! Reading another process's memory may fault on a file whose server never answers, and then sleeps
//! where SIGKILL does not reach it. So it is done by a process of its own, started from this
//! executable, that holds two descriptors: the program, and a socket. One that hangs is left
//! behind.
//!
//! - this module: orders and reports, and both as bytes;
//! - [`client`]: the engine's side, which never waits for a reader;
//! - [`process`]: the reader;
//! - [`iterator`]: the iterators of the program, for both.

pub mod client;
pub mod iterator;
pub mod process;

use std::io::{self, Read};
use std::time::Duration;

/// The first argument of this executable as a reader.
pub const ARGUMENT: &str = "internal-threads";

/// What of a pass is walked by itself: all threads of a process, or one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    Process(u32),
    Thread(u32),
}

/// Targets of a pass at most. Each costs as much as a dozen threads among all.
pub const MOST_TARGETS: usize = 64;

/// How often passes over targets are repeated: at random intervals, on average as long as wanted, or as the
/// share of a CPU allows that passes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pace {
    pub interval: Duration,
    /// A pass takes a CPU for one part in so many of the time from it to the next.
    pub one_in: u32,
    /// What taking the records of a pass costs, besides reading.
    pub taking: Duration,
}

impl Pace {
    /// How long it is on average from a pass of this cost to the next.
    fn pause(self, reading: Duration) -> Duration {
        ((reading + self.taking) * self.one_in).max(self.interval)
    }
}

/// What is to be repeated.
pub type Repeated = (Vec<Target>, Pace);

/// The next passes, until another order comes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Order {
    /// One over all threads, now.
    pub over_all: bool,
    /// Afterwards those over these targets.
    pub repeated: Option<Repeated>,
}

/// Of an order: its number, whether there is a pass over all threads, how many targets follow, and the pace.
const HEAD: usize = 32;
const TARGET: usize = 8;
/// In place of the number of targets.
const NONE: u32 = u32::MAX;

impl Target {
    fn words(self) -> (u32, u32) {
        match self {
            Self::Process(pid) => (0, pid),
            Self::Thread(tid) => (1, tid),
        }
    }

    fn of(kind: u32, number: u32) -> Self {
        if kind == 0 { Self::Process(number) } else { Self::Thread(number) }
    }
}

impl Order {
    fn bytes(&self, number: u32) -> Vec<u8> {
        let (count, targets, pace) = match &self.repeated {
            None => (NONE, &[][..], Pace::default()),
            Some((targets, pace)) => {
                let targets = targets.get(..MOST_TARGETS).unwrap_or(targets);
                (targets.len() as u32, targets, *pace)
            }
        };
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = Vec::with_capacity(HEAD + MOST_TARGETS * TARGET);
        for word in [number, u32::from(self.over_all), count, pace.one_in] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(nanos(pace.interval).to_ne_bytes());
        bytes.extend(nanos(pace.taking).to_ne_bytes());
        for (kind, number) in targets.iter().map(|target| target.words()) {
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(number.to_ne_bytes());
        }
        bytes
    }

    /// The next one and its number; `None` at the end.
    fn read(from: &mut impl Read) -> io::Result<Option<(u32, Self)>> {
        let mut head = [0; HEAD];
        match from.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut order = Self { over_all: short(&head, 4) != 0, repeated: None };
        let count = short(&head, 8);
        if count != NONE {
            let mut bytes = vec![0; (count as usize).min(MOST_TARGETS) * TARGET];
            from.read_exact(&mut bytes)?;
            let (words, _) = bytes.as_chunks::<TARGET>();
            let targets = words.iter().map(|word| Target::of(short(word, 0), short(word, 4)));
            let pace = Pace {
                one_in: short(&head, 12),
                interval: Duration::from_nanos(long(&head, 16)),
                taking: Duration::from_nanos(long(&head, 24)),
            };
            order.repeated = Some((targets.collect(), pace));
        }
        Ok(Some((short(&head, 0), order)))
    }
}

/// What passes have cost of a CPU, in nanoseconds, with the reader's sleeps between them; how many they
/// were, and how many of their targets could not be walked at all: before Linux 6.1, each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub nanos: u64,
    pub passes: u32,
    pub refused: u32,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.nanos += other.nanos;
        self.passes += other.passes;
        self.refused += other.refused;
    }
}

/// What a reader has done since its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The number of its order. The first one of an order with a pass over all threads is of that pass.
    pub order: u32,
    pub cost: Cost,
}

const REPORT: usize = 24;

impl Report {
    fn bytes(&self) -> [u8; REPORT] {
        let mut bytes = [0; REPORT];
        let Cost { nanos, passes, refused } = self.cost;
        let (nanoseconds, rest) = bytes.split_at_mut(8);
        nanoseconds.copy_from_slice(&nanos.to_ne_bytes());
        for (to, from) in rest.chunks_exact_mut(4).zip([self.order, passes, refused]) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8; REPORT]) -> Self {
        let cost =
            Cost { nanos: long(bytes, 0), passes: short(bytes, 12), refused: short(bytes, 16) };
        Self { order: short(bytes, 8), cost }
    }
}

fn short(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(word.copied().unwrap_or_default())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_ne_bytes(word.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace =
        Pace { interval: Duration::from_millis(4), one_in: 114, taking: Duration::from_micros(3) };

    #[test]
    fn orders_and_reports_arrive_as_they_were_given() -> io::Result<()> {
        let few = vec![Target::Process(7), Target::Thread(u32::MAX), Target::Thread(0)];
        let many: Vec<Target> = (0..100).map(Target::Thread).collect();
        let first = many.get(..MOST_TARGETS).map(<[Target]>::to_vec).unwrap_or_default();
        let given = [
            (true, None, None),
            (true, Some(few.clone()), Some(few)),
            (false, None, None),
            (false, Some(many), Some(first)),
        ];
        let order = |over_all, targets: Option<Vec<Target>>| Order {
            over_all,
            repeated: targets.map(|targets| (targets, PACE)),
        };
        let mut bytes = Vec::new();
        for (number, (over_all, targets, _)) in (7..).zip(&given) {
            bytes.extend(order(*over_all, targets.clone()).bytes(number));
        }
        let mut from = bytes.as_slice();
        for (number, (over_all, _, arrive)) in (7..).zip(given) {
            assert_eq!(Order::read(&mut from)?, Some((number, order(over_all, arrive))));
        }
        assert_eq!(Order::read(&mut from)?, None);
        let cost = Cost { nanos: u64::MAX, passes: 2, refused: 3 };
        let report = Report { order: 4, cost };
        assert_eq!(Report::of(&report.bytes()), report);
        Ok(())
    }

    #[test]
    fn a_dear_pass_puts_off_the_next_one() {
        let pauses = [0, 30, 1_000].map(|micros| PACE.pause(Duration::from_micros(micros)));
        assert_eq!(pauses.map(|pause| pause.as_micros()), [4_000, 4_000, 114_342]);
    }
}
