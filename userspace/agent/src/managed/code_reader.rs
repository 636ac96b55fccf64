//! Reading methods' code in processes.
//!
//! A process chooses where its code lies: reading there may hang or be slow, and the loop waits for
//! it. So many methods are read by one thread at one time, and the waits for one process are
//! bounded by [`SLOW_IN_ALL`].

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::blocking_reader::{BlockingReader, Patience, owner_of};

/// Time limit of reading methods' code, which is exceeded only if its pages lie in a file that
/// hangs.
const READING: Patience = Patience { limit: Duration::from_millis(500), threads: 32, of_one: 4 };
/// Total time of slow reads for one process.
const SLOW_IN_ALL: Duration = Duration::from_secs(1);
const USUAL: Duration = Duration::from_millis(5);
/// The most processes tracked for that.
const MOST_SLOW: usize = 1000;
/// Methods that are read at one time: one that hangs costs the others of its process.
const AT_ONCE: usize = 64;

/// A method's code: where it starts, and its size.
pub type Place = (u64, u32);

/// See the module.
pub struct CodeReader {
    reader: BlockingReader<(u32, Vec<Place>), Vec<Vec<u8>>>,
    /// The time spent on slow processes.
    slow: HashMap<u32, Duration>,
    /// Methods whose code was not read because that hangs, or takes too long.
    unread: u64,
}

impl Default for CodeReader {
    fn default() -> Self {
        let read = |(pid, places): (u32, Vec<Place>)| read_code(pid, &places);
        Self { reader: BlockingReader::new("code", READING, read), slow: HashMap::new(), unread: 0 }
    }
}

impl CodeReader {
    /// A process's code at each of these places, or as much of it as can be read.
    pub fn read(&mut self, pid: u32, places: &[Place]) -> Vec<Vec<u8>> {
        let mut codes = Vec::with_capacity(places.len());
        for some in places.chunks(AT_ONCE) {
            if let Some(read) = self.read_some(pid, some) {
                codes.extend(read);
            } else {
                self.unread += some.len() as u64;
                codes.extend(some.iter().map(|_| Vec::new()));
            }
        }
        codes
    }

    fn read_some(&mut self, pid: u32, places: &[Place]) -> Option<Vec<Vec<u8>>> {
        if self.slow.get(&pid).is_some_and(|spent| *spent > SLOW_IN_ALL) {
            return None;
        }
        let begun = Instant::now();
        let ticket = self.reader.ask_of(owner_of(pid), (pid, places.to_vec()))?;
        // Long enough for an answer or a timeout.
        self.reader.settle(READING.limit * 2);
        let took = begun.elapsed();
        if took > USUAL {
            if self.slow.len() >= MOST_SLOW {
                self.slow.clear();
            }
            *self.slow.entry(pid).or_default() += took;
        }
        let mut answers = self.reader.answers().into_iter();
        answers.find(|(answered, _)| *answered == ticket).and_then(|(_, codes)| codes.ok())
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
        let mut reader = CodeReader::default();
        let mut read = |pid| loop {
            // A machine may be too busy to answer in time.
            let unread = reader.unread();
            let codes = reader.read(pid, &places);
            if reader.unread() == unread {
                return codes;
            }
        };
        let codes = read(std::process::id());
        assert_eq!(codes.len(), places.len());
        assert_eq!((&*codes[0], &*codes[200]), (&[0, 1, 2, 3][..], &[199, 200, 201, 202][..]));
        assert!(codes[3].is_empty(), "nothing is there");
        assert!(read(NO_PROCESS).iter().all(Vec::is_empty));
    }
}
