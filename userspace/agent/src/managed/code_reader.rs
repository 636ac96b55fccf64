//! Reads methods' code in processes, off the event loop.
//!
//! A process chooses where its code lies: reading there may hang or be slow. So requests are put,
//! and their answers are taken at a later turn.
//!
//! Memory that answers does so at once, and stacks are unwound better when what their code is was
//! read before: so a turn waits for some milliseconds, while there is [`Credit`].
//!
//! Invariant: waits take a fiftieth of the time in the long run, however many processes are slow,
//! besides those of [`CodeReader::settle`]. What was asked and not taken yet is bounded, of each
//! process and of all.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::blocking_reader::{BlockingReader, Owner, Patience, Ticket, owner_of};
use crate::image_id::ImageId;

/// Time limit of reading methods' code, which is exceeded only if its pages lie in a file that
/// hangs.
const READING: Patience = Patience { limit: Duration::from_millis(500), threads: 32, of_one: 4 };
/// How long the user of a process is taken to be the same.
const OWNERS_LAST: Duration = Duration::from_secs(1);
/// Methods that are read at one time: one that hangs costs the others of its request.
const AT_ONCE: usize = 64;
/// Bytes of code that are asked for, and not taken yet: of one process, and of all.
const MOST_BYTES: u64 = 1 << 20;
const MOST_BYTES_IN_ALL: u64 = 16 << 20;

/// The longest wait of one turn.
const SHORTLY: Duration = Duration::from_millis(5);
/// Waits that may be made at once, and one part in so many of the elapsed time.
const MOST_CREDIT: Duration = Duration::from_millis(100);
const CREDIT_PART: u32 = 50;

/// Time that may be waited for.
struct Credit {
    left: Duration,
    since: Instant,
}

impl Credit {
    fn new(now: Instant) -> Self {
        Self { left: MOST_CREDIT, since: now }
    }

    /// How long to wait now.
    fn take(&mut self, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.since) / CREDIT_PART;
        self.left = self.left.saturating_add(earned).min(MOST_CREDIT);
        self.since = now;
        if self.left < SHORTLY { Duration::ZERO } else { SHORTLY }
    }

    fn pay(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }
}

/// A method's code: where it starts, and its size.
pub type Place = (u64, u32);

/// Why code is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It belongs to a method, of which more must be known.
    Method,
    /// What it is must be found out: the code around an address.
    Stub,
}

/// What is being read.
struct Asked {
    image: ImageId,
    purpose: Purpose,
    places: Vec<Place>,
    bytes: u64,
}

/// The code at some places of a process: as much of each as could be read.
pub struct Answer {
    pub image: ImageId,
    pub purpose: Purpose,
    pub codes: Vec<(Place, Vec<u8>)>,
}

/// See the module.
pub struct CodeReader {
    reader: BlockingReader<(u32, Vec<Place>), Vec<Vec<u8>>>,
    asked: HashMap<Ticket, Asked>,
    /// The bytes asked for, by process.
    bytes: HashMap<ImageId, u64>,
    /// The users of processes with questions, and since when they are known.
    owners: (HashMap<ImageId, Owner>, Instant),
    credit: Credit,
    /// Methods whose code was not read because that hangs.
    unread: u64,
}

impl Default for CodeReader {
    fn default() -> Self {
        Self::with(|(pid, places)| read_code(pid, &places))
    }
}

impl CodeReader {
    fn with(read: impl Fn((u32, Vec<Place>)) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self {
            reader: BlockingReader::new("code", READING, read),
            asked: HashMap::new(),
            bytes: HashMap::new(),
            owners: (HashMap::new(), Instant::now()),
            credit: Credit::new(Instant::now()),
            unread: 0,
        }
    }

    /// Asks for a process's code at the first of these places, and removes those; the others have to
    /// be asked for later. Returns what cannot be read now, as if nothing was there.
    pub fn ask(
        &mut self,
        (pid, image): (u32, ImageId),
        purpose: Purpose,
        places: &mut Vec<Place>,
    ) -> Option<Answer> {
        let mut refused = Vec::new();
        while !places.is_empty() {
            let room = MOST_BYTES.saturating_sub(self.bytes.get(&image).copied().unwrap_or(0));
            let all: u64 = self.bytes.values().sum();
            let room = room.min(MOST_BYTES_IN_ALL.saturating_sub(all));
            let mut bytes = 0;
            let fitting = places.iter().take(AT_ONCE).take_while(|(_, size)| {
                bytes += u64::from(*size);
                bytes <= room
            });
            let count = fitting.count();
            if count == 0 {
                break;
            }
            let some: Vec<Place> = places.drain(..count).collect();
            let owner = self.owner_of((pid, image));
            let Some(ticket) = self.reader.ask_of(owner, (pid, some.clone())) else {
                self.unread += some.len() as u64;
                refused.extend(some.into_iter().map(|place| (place, Vec::new())));
                continue;
            };
            let bytes = some.iter().map(|(_, size)| u64::from(*size)).sum();
            *self.bytes.entry(image).or_default() += bytes;
            self.asked.insert(ticket, Asked { image, purpose, places: some, bytes });
        }
        (!refused.is_empty()).then_some(Answer { image, purpose, codes: refused })
    }

    fn owner_of(&mut self, (pid, image): (u32, ImageId)) -> Owner {
        let (owners, since) = &mut self.owners;
        if since.elapsed() > OWNERS_LAST {
            owners.clear();
            *since = Instant::now();
        }
        *owners.entry(image).or_insert_with(|| owner_of(pid))
    }

    /// What was read since the last call.
    pub fn answers(&mut self) -> Vec<Answer> {
        if self.asked.is_empty() {
            return Vec::new();
        }
        let mut answers = Vec::new();
        for (ticket, outcome) in self.reader.answers() {
            let Some(Asked { image, purpose, places, bytes }) = self.asked.remove(&ticket) else {
                continue;
            };
            if let Some(left) = self.bytes.get_mut(&image) {
                *left = left.saturating_sub(bytes);
            }
            let codes = outcome.unwrap_or_else(|_| {
                self.unread += places.len() as u64;
                vec![Vec::new(); places.len()]
            });
            let codes = places.into_iter().zip(codes).collect();
            answers.push(Answer { image, purpose, codes });
        }
        self.bytes.retain(|_, bytes| *bytes > 0);
        answers
    }

    /// Whether something is being read.
    pub fn is_reading(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Waits until everything that was asked is read, if that is soon.
    pub fn settle_shortly(&mut self) {
        if !self.is_reading() {
            return;
        }
        let begun = Instant::now();
        let wait = self.credit.take(begun);
        if !wait.is_zero() {
            self.reader.settle(wait);
            self.credit.pay(begun.elapsed());
        }
    }

    /// Waits until everything that was asked is read, no longer than this.
    pub fn settle(&mut self, at_most: Duration) {
        if self.is_reading() {
            self.reader.settle(at_most);
        }
    }

    /// Methods whose code could not be read because that hangs.
    pub fn unread(&self) -> u64 {
        self.unread
    }
}

fn read_code(pid: u32, places: &[Place]) -> Vec<Vec<u8>> {
    let memory = File::open(format!("/proc/{pid}/mem"));
    let read = |&(start, size): &Place| {
        let mut code = vec![0; size as usize];
        let read =
            memory.as_ref().map_or(0, |memory| memory.read_at(&mut code, start).unwrap_or(0));
        code.truncate(read);
        code
    };
    places.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No process has this number.
    const NO_PROCESS: u32 = u32::MAX >> 1;

    #[test]
    fn every_place_has_its_code_in_order_and_none_where_nothing_is_mapped() {
        let code: Vec<u8> = (0..=255).collect();
        let start = code.as_ptr().addr() as u64;
        let mut places: Vec<Place> = (0..200).map(|at| (start + at, 4)).collect();
        places.insert(3, (16, 4));
        let read = |pid| loop {
            // A machine may be too busy to answer in time.
            let mut reader = CodeReader::default();
            let mut left = places.clone();
            assert!(reader.ask((pid, ImageId(1)), Purpose::Method, &mut left).is_none());
            assert!(left.is_empty());
            let mut codes = Vec::new();
            while reader.is_reading() {
                reader.settle(READING.limit);
                codes.extend(reader.answers().into_iter().flat_map(|answer| answer.codes));
            }
            if reader.unread() == 0 {
                return codes;
            }
        };
        let codes = read(std::process::id());
        assert!(codes.iter().map(|(place, _)| place).eq(&places));
        assert_eq!((&*codes[0].1, &*codes[200].1), (&[0, 1, 2, 3][..], &[199, 200, 201, 202][..]));
        assert!(codes[3].1.is_empty(), "nothing is there");
        assert!(read(NO_PROCESS).iter().all(|(_, code)| code.is_empty()));
    }

    #[test]
    fn code_that_is_slow_is_not_waited_for_and_others_is_read_meanwhile() {
        let (let_go, hangs) = std::sync::mpsc::channel::<()>();
        let hangs = std::sync::Mutex::new(hangs);
        let mut reader = CodeReader::with(move |(pid, places)| {
            if pid == NO_PROCESS {
                let _ = hangs.lock().expect("one at a time").recv();
            }
            vec![vec![7]; places.len()]
        });
        let (slow, other) = (ImageId(1), ImageId(2));
        assert!(reader.ask((NO_PROCESS, slow), Purpose::Stub, &mut vec![(1, 1)]).is_none());
        let here = std::process::id();
        assert!(reader.ask((here, other), Purpose::Method, &mut vec![(2, 1)]).is_none());
        assert!(reader.answers().iter().all(|answer| answer.image != slow));
        let answer = loop {
            let mut answers = reader.answers().into_iter();
            if let Some(answer) = answers.find(|answer| answer.image == other) {
                break answer;
            }
            std::thread::yield_now();
        };
        assert_eq!(answer.codes, [((2, 1), vec![7])]);
        drop(let_go);
    }

    #[test]
    fn waits_for_code_that_is_slow_take_a_small_part_of_the_time() {
        let mut now = Instant::now();
        let mut credit = Credit::new(now);
        let (turn, all) = (Duration::from_millis(20), Duration::from_secs(60));
        let mut waited = Duration::ZERO;
        for _ in 0..all.as_millis() / turn.as_millis() {
            let wait = credit.take(now);
            credit.pay(wait);
            waited += wait;
            now += turn;
        }
        assert!(waited <= MOST_CREDIT + all / CREDIT_PART, "{waited:?}");
        assert!(waited >= MOST_CREDIT);
    }

    #[test]
    fn a_process_has_little_code_read_that_nothing_has_taken() {
        let mut reader = CodeReader::with(|(_, places)| {
            places.iter().map(|(_, size)| vec![0; *size as usize]).collect()
        });
        let process = (std::process::id(), ImageId(1));
        let mut places: Vec<Place> = (0..1000).map(|at| (at << 16, 64 << 10)).collect();
        assert!(reader.ask(process, Purpose::Method, &mut places).is_none());
        assert_eq!(places.len(), 1000 - 16);
        while reader.is_reading() {
            reader.settle(READING.limit);
            reader.answers();
        }
        reader.ask(process, Purpose::Method, &mut places);
        assert_eq!(places.len(), 1000 - 32);
    }
}
