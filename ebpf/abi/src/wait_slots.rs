//! Slots for threads that wait: sets of a few, each for the threads whose numbers have the same low
//! bits.
//!
//! Invariant: a slot has one owner, and a thread one slot. A thread keeps its slot while it waits, and
//! as long as it was switched lately.

/// Sets; a power of two.
pub const SETS: u32 = 1 << 14;
/// Slots of a set: as many threads with the same low bits may wait at once.
pub const WAYS: usize = 4;
/// Bytes of a set: a cache line.
pub const SET_BYTES: usize = 64;
/// Sets whose bits lie in one word of the map of slots in use by a wait.
const SETS_PER_WORD: u32 = u64::BITS / WAYS as u32;
/// Words of that map: 8 KiB, of which a process's threads are in a few lines.
pub const WAITING_WORDS: u32 = SETS / SETS_PER_WORD;

/// Which word has the bits of a thread's set.
#[inline(always)]
#[must_use]
pub fn waiting_word(tid: u32) -> u32 {
    set_of(tid) / SETS_PER_WORD
}

/// Where in that word the set's bits begin.
#[inline(always)]
#[must_use]
pub fn waiting_shift(tid: u32) -> u32 {
    set_of(tid) % SETS_PER_WORD * WAYS as u32
}

/// The number of a thread's set.
#[inline(always)]
#[must_use]
pub fn set_of(tid: u32) -> u32 {
    tid & (SETS - 1)
}

/// Which slot of its set a thread has. `owners`: the thread of each, or 0.
#[inline(always)]
#[must_use]
pub fn own(owners: &[u32; WAYS], tid: u32) -> Option<usize> {
    let mut way = 0;
    while way < WAYS {
        if owners[way] == tid {
            return Some(way);
        }
        way += 1;
    }
    None
}

/// Which slot a thread that has none may take: one without an owner, or whose owner is idle.
#[inline(always)]
#[must_use]
pub fn free(owners: &[u32; WAYS], is_idle: impl Fn(usize) -> bool) -> Option<usize> {
    let mut way = 0;
    while way < WAYS {
        if owners[way] == 0 || is_idle(way) {
            return Some(way);
        }
        way += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn threads_with_the_same_low_bits_have_slots_of_their_own() {
        let mut owners = [0; WAYS];
        let threads = [7, 7 + 65_536, 7 + 2 * 65_536, 7 + 3 * SETS];
        assert!(threads.iter().all(|tid| set_of(*tid) == set_of(threads[0])));
        for (way, tid) in threads.into_iter().enumerate() {
            assert_eq!(own(&owners, tid), None);
            assert_eq!(free(&owners, |_| false), Some(way));
            owners[way] = tid;
        }
        for (way, tid) in threads.into_iter().enumerate() {
            assert_eq!(own(&owners, tid), Some(way));
        }
        // One more finds room only where an owner is idle.
        assert_eq!((own(&owners, 99), free(&owners, |_| false)), (None, None));
        assert_eq!(free(&owners, |way| way == 2), Some(2));
    }

    #[test]
    fn sets_have_bits_of_their_own() {
        let mut words = std::vec![0u64; WAITING_WORDS as usize];
        for set in 0..SETS {
            let bits = ((1 << WAYS) - 1) << waiting_shift(set);
            let word = &mut words[waiting_word(set) as usize];
            assert_eq!(*word & bits, 0, "set {set}");
            *word |= bits;
        }
        assert!(words.iter().all(|word| *word == u64::MAX));
    }
}
