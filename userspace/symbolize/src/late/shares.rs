//! Which part of the symbols that the store has are of which process and file.
//!
//! The store keeps so many bytes of late symbols, drops the oldest for newer ones, and drops them with
//! the profiles that lacked them. So those that were taken last, up to that many bytes and that age, are
//! taken for the ones that it has: what comes of one process or file displaces what came of it before,
//! and no more than its share of what came of others.
//!
//! Invariant: what a process has taken counts until it cannot be there any more, and no longer.

use std::collections::{HashMap, VecDeque};

use strata_agent::image_id::ImageId;
use strata_agent::processes::mapped::FileId;

/// Bytes of symbols that the store has room for, and of them those of a process and a file.
const MOST: usize = 16 << 20;
const MOST_OF_PROCESS: usize = MOST / 8;
const MOST_OF_FILE: usize = MOST / 16;
/// Flushes after which they count no more: a day's, at four a minute.
const MOST_FLUSHES: u32 = 4 * 60 * 24;

/// Symbols of a file that were taken at a flush.
struct Taken {
    flush: u32,
    image: ImageId,
    file: FileId,
    bytes: usize,
}

#[derive(Default)]
pub(super) struct Shares {
    /// In the order of time.
    taken: VecDeque<Taken>,
    /// Where in `taken` this flush's are.
    current: HashMap<(ImageId, FileId), usize>,
    all: usize,
    by_image: HashMap<ImageId, usize>,
    by_file: HashMap<FileId, usize>,
    flush: u32,
}

impl Shares {
    pub fn begin_flush(&mut self, flush: u32) {
        self.flush = flush;
        self.current = HashMap::new();
        while let Some(first) = self.taken.front()
            && (self.all > MOST || flush.saturating_sub(first.flush) > MOST_FLUSHES)
        {
            let Some(Taken { image, file, bytes, .. }) = self.taken.pop_front() else { break };
            self.all = self.all.saturating_sub(bytes);
            less(&mut self.by_image, image, bytes);
            less(&mut self.by_file, file, bytes);
        }
    }

    /// Takes so many bytes of a process and a file; false if they have their shares.
    pub fn take(&mut self, image: ImageId, file: FileId, bytes: usize) -> bool {
        let of_image = self.by_image.get(&image).copied().unwrap_or_default().saturating_add(bytes);
        let of_file = self.by_file.get(&file).copied().unwrap_or_default().saturating_add(bytes);
        if of_image > MOST_OF_PROCESS || of_file > MOST_OF_FILE {
            return false;
        }
        self.by_image.insert(image, of_image);
        self.by_file.insert(file, of_file);
        self.all = self.all.saturating_add(bytes);
        let next = self.taken.len();
        let place = *self.current.entry((image, file)).or_insert(next);
        match self.taken.get_mut(place) {
            Some(taken) => taken.bytes = taken.bytes.saturating_add(bytes),
            None => self.taken.push_back(Taken { flush: self.flush, image, file, bytes }),
        }
        true
    }
}

fn less<K: std::hash::Hash + Eq>(of: &mut HashMap<K, usize>, key: K, bytes: usize) {
    if let Some(before) = of.get_mut(&key) {
        *before = before.saturating_sub(bytes);
        if *before == 0 {
            of.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 1 << 16;

    /// Takes what it gets of a process's file; the bytes.
    fn take_all(shares: &mut Shares, image: u32, file: u32) -> usize {
        let parts = (0..1_000).take_while(|_| shares.take(ImageId(image), FileId(file), PART));
        parts.count() * PART
    }

    #[test]
    fn a_process_has_its_share_however_many_files_it_maps() {
        let mut shares = Shares::default();
        let taken: Vec<usize> = (0..16).map(|file| take_all(&mut shares, 1, file)).collect();
        assert_eq!(taken[..3], [MOST_OF_FILE, MOST_OF_FILE, 0]);
        assert_eq!(taken.iter().sum::<usize>(), MOST_OF_PROCESS);
        // Another process that maps the same file, and one that maps another.
        assert_eq!(take_all(&mut shares, 2, 0), 0);
        assert_eq!(take_all(&mut shares, 2, 20), MOST_OF_FILE);
    }

    #[test]
    fn a_file_that_is_slow_for_months_gets_its_symbols_as_earlier_ones_go() {
        let mut shares = Shares::default();
        assert_eq!(take_all(&mut shares, 1, 1), MOST_OF_FILE);
        for flush in 0..=MOST_FLUSHES {
            shares.begin_flush(flush);
            assert!(!shares.take(ImageId(1), FileId(1), PART));
        }
        // Its profiles are old; or the store has dropped them for what came later.
        shares.begin_flush(MOST_FLUSHES + 1);
        assert_eq!(take_all(&mut shares, 1, 1), MOST_OF_FILE);
        for image in 2..20 {
            shares.begin_flush(MOST_FLUSHES + image);
            take_all(&mut shares, image, image);
        }
        shares.begin_flush(MOST_FLUSHES + 20);
        assert!(shares.all <= MOST);
        assert_eq!(take_all(&mut shares, 1, 1), MOST_OF_FILE);
        shares.begin_flush(u32::MAX);
        assert_eq!((shares.all, shares.taken.len()), (0, 0));
        assert!(shares.by_image.is_empty() && shares.by_file.is_empty());
    }
}
