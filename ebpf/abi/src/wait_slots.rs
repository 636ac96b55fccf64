//! Slots for threads that wait: sets of a few. Threads whose numbers follow each other are in different
//! sets, side by side; which of those that are further apart share a set depends on a seed that is chosen
//! at each start, so that no program can choose the numbers of its threads to fill another's set.
//!
//! Invariant: a slot has one owner, and a thread one slot. A thread keeps its slot while it waits, and
//! as long as it was switched lately, unless its set is full: then a slot is taken from one of its
//! owners by chance, whatever they do, so that none is kept out for good.

/// Sets; a power of two.
pub const SETS: u32 = 1 << SET_BITS;
const SET_BITS: u32 = 14;
/// Slots of a set: as many of its threads may wait at once.
pub const WAYS: usize = 4;
/// Bytes of a set: a cache line.
pub const SET_BYTES: usize = 64;
/// Sets whose bits lie in one word of the map of slots in use by a wait.
const SETS_PER_WORD: u32 = u64::BITS / WAYS as u32;
/// Of the switches of a thread that finds its set full, one in `2^EVICTION_SHIFT` takes a slot.
const EVICTION_SHIFT: u32 = 2;
/// Words of that map: 8 KiB, of which a process's threads are in a few lines.
pub const WAITING_WORDS: u32 = SETS / SETS_PER_WORD;

/// Which word has the bits of a set.
#[inline(always)]
#[must_use]
pub fn waiting_word(set: u32) -> u32 {
    set / SETS_PER_WORD
}

/// Where in that word the set's bits begin.
#[inline(always)]
#[must_use]
pub fn waiting_shift(set: u32) -> u32 {
    set % SETS_PER_WORD * WAYS as u32
}

/// The number of a thread's set. `seed`: an odd number.
#[inline(always)]
#[must_use]
pub fn set_of(tid: u32, seed: u32) -> u32 {
    let moved = (tid >> SET_BITS).wrapping_mul(seed) >> (u32::BITS - SET_BITS);
    (tid ^ moved) & (SETS - 1)
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

/// Which slot a thread that has none may take, and its owner: one without an owner, or whose owner is
/// idle.
#[inline(always)]
#[must_use]
pub fn free(owners: &[u32; WAYS], is_idle: impl Fn(usize) -> bool) -> Option<(usize, u32)> {
    let mut way = 0;
    while way < WAYS {
        let owner = owners[way];
        if owner == 0 || is_idle(way) {
            return Some((way, owner));
        }
        way += 1;
    }
    None
}

/// Which slot of a full set is taken from its owner, if one is. Neither depends on what the owners do.
/// The longer a wait lasts, the likelier its slot is taken meanwhile: sums of crowded sets lack what was
/// cut off.
#[inline(always)]
#[must_use]
pub fn evicted(random: u32) -> Option<usize> {
    if random & ((1 << EVICTION_SHIFT) - 1) != 0 {
        return None;
    }
    Some((random >> EVICTION_SHIFT) as usize & (WAYS - 1))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// Numbers of threads are below 2^22 (include/linux/threads.h: `PID_MAX_LIMIT`).
    const MOST_THREADS: u32 = 1 << 22;

    #[test]
    fn threads_of_a_set_have_slots_of_their_own() {
        let mut owners = [0; WAYS];
        for (way, tid) in [7, 8, 9, 10].into_iter().enumerate() {
            assert_eq!(own(&owners, tid), None);
            assert_eq!(free(&owners, |_| false), Some((way, 0)));
            owners[way] = tid;
        }
        for (way, tid) in [7, 8, 9, 10].into_iter().enumerate() {
            assert_eq!(own(&owners, tid), Some(way));
        }
        // One more finds room only where an owner is idle.
        assert_eq!((own(&owners, 99), free(&owners, |_| false)), (None, None));
        assert_eq!(free(&owners, |way| way == 2), Some((2, 9)));
    }

    #[test]
    fn threads_that_share_a_set_at_one_start_do_not_at_another() {
        let with_7 = |seed| {
            let all = (0..MOST_THREADS).filter(move |tid| set_of(*tid, seed) == set_of(7, seed));
            all.collect::<std::vec::Vec<_>>()
        };
        let seeds = [0x9e37_79b9, 0x2545_f491, 0x4f6c_dd1d, 0x85eb_ca6b];
        let sets = seeds.map(with_7);
        for (at, set) in sets.iter().enumerate() {
            // Each set has as many threads, whatever the seed.
            assert_eq!(set.len() as u32, MOST_THREADS / SETS);
            for other in &sets[..at] {
                let both = set.iter().filter(|tid| other.contains(tid)).count();
                assert!(both <= WAYS, "{both} threads share a set twice");
            }
        }
        // Those that follow each other have sets of their own.
        let mut seen = std::vec![false; SETS as usize];
        for tid in 3 * SETS..4 * SETS {
            assert!(!std::mem::replace(&mut seen[set_of(tid, seeds[0]) as usize], true));
        }
    }

    #[test]
    fn a_newcomer_to_a_full_set_takes_each_slot_as_often() {
        let mut taken = [0; WAYS];
        for random in 0..1 << 16 {
            if let Some(way) = evicted(random) {
                taken[way] += 1;
            }
        }
        assert_eq!(taken, [(1 << 16 >> EVICTION_SHIFT) / WAYS as u32; WAYS]);
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
