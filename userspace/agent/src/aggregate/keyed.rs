//! Tables whose keys are hashes already.
//!
//! Invariant: every key is a hash with the aggregate's secret, or several of them in one, so its
//! bits cannot be chosen by a process and need no second hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(super) type Keyed<V> = HashMap<u128, V, BuildHasherDefault<TakenAsIs>>;

/// A part of the key.
#[derive(Clone, Copy, Default)]
pub(super) struct TakenAsIs(u64);

impl Hasher for TakenAsIs {
    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        // Keys have no other types; hashing one by a sum would be slow, not wrong.
        bytes.iter().for_each(|byte| self.0 = self.0.wrapping_mul(31).wrapping_add((*byte).into()));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
