//! A hash table from a non-zero number to a small value, which never aborts the process.
//!
//! The standard library's map would do, but for one thing: when memory runs out it aborts the
//! process, which here is the profiled app. **Invariant:** every growth can fail and then the table
//! stays as it was.

/// Open addressing with linear probing; at most three quarters full. Key 0 marks a free slot.
#[derive(Debug)]
pub struct Table<V: Copy + Default> {
    slots: Vec<(u64, V)>,
    used: usize,
}

/// There was no memory for one more entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMemory;

const SMALLEST: usize = 64;

impl<V: Copy + Default> Default for Table<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Copy + Default> Table<V> {
    #[must_use]
    pub const fn new() -> Self {
        Table { slots: Vec::new(), used: 0 }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.used
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    #[must_use]
    pub fn get(&self, key: u64) -> Option<V> {
        let mut slot = self.home(key)?;
        loop {
            match self.slots.get(slot)? {
                (0, _) => return None,
                (found, value) if *found == key => return Some(*value),
                _ => slot = self.next(slot),
            }
        }
    }

    /// Enters a key with its value, or changes the value. Returns whether the key is new.
    pub fn insert(&mut self, key: u64, value: V) -> Result<bool, NoMemory> {
        if key == 0 {
            return Ok(false);
        }
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.resize((self.slots.len() * 2).max(SMALLEST))?;
        }
        Ok(self.place(key, value))
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: u64) -> Option<V> {
        let mut slot = self.home(key)?;
        let value = loop {
            match self.slots.get(slot)? {
                (0, _) => return None,
                (found, value) if *found == key => break *value,
                _ => slot = self.next(slot),
            }
        };
        // Entries behind the gap move up, so that a search never ends too early.
        let mut free = slot;
        let mut looked_at = self.next(slot);
        while let Some((found, moved)) = self.slots.get(looked_at).copied()
            && found != 0
        {
            let home = self.home(found)?;
            let distance = looked_at.wrapping_sub(home) & (self.slots.len() - 1);
            let to_gap = looked_at.wrapping_sub(free) & (self.slots.len() - 1);
            if distance >= to_gap {
                *self.slots.get_mut(free)? = (found, moved);
                free = looked_at;
            }
            looked_at = self.next(looked_at);
        }
        *self.slots.get_mut(free)? = (0, V::default());
        self.used -= 1;
        Some(value)
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (u64, V)> {
        self.slots.iter().filter(|(key, _)| *key != 0).copied()
    }

    /// Keeps only the entries for which `keep` returns true, without another table. It is called once
    /// for each entry that goes, and once or twice for one that stays.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, V) -> bool) {
        let mut slot = 0;
        while let Some((key, value)) = self.slots.get(slot).copied() {
            // Another entry may move into the slot of one that goes: from behind it, or, where entries
            // reach around the end, from the start, where all stay.
            if key == 0 || keep(key, value) || self.remove(key).is_none() {
                slot += 1;
            }
        }
    }

    pub fn clear(&mut self) {
        *self = Self::new();
    }

    fn with_slots(count: usize) -> Result<Self, NoMemory> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(count).map_err(|_| NoMemory)?;
        slots.resize(count, (0, V::default()));
        Ok(Table { slots, used: 0 })
    }

    fn resize(&mut self, count: usize) -> Result<(), NoMemory> {
        let mut larger = Self::with_slots(count)?;
        for (key, value) in &self.slots {
            if *key != 0 {
                larger.place(*key, *value);
            }
        }
        *self = larger;
        Ok(())
    }

    /// There is a free slot: see `insert`.
    fn place(&mut self, key: u64, value: V) -> bool {
        let Some(mut slot) = self.home(key) else { return false };
        loop {
            let next = self.next(slot);
            let Some(entry) = self.slots.get_mut(slot) else { return false };
            if entry.0 == 0 {
                *entry = (key, value);
                self.used += 1;
                return true;
            }
            if entry.0 == key {
                entry.1 = value;
                return false;
            }
            slot = next;
        }
    }

    /// Slot counts are powers of two; addresses differ in their middle bits, so these are spread.
    fn home(&self, key: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let spread = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some((spread >> 32) as usize & (self.slots.len() - 1))
    }

    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_entered_is_found_and_nothing_else() {
        let mut table = Table::new();
        for key in 1..10_000u64 {
            assert_eq!(table.insert(key * 64, key), Ok(true));
        }
        assert_eq!(table.len(), 9_999);
        for key in 1..10_000u64 {
            assert_eq!(table.get(key * 64), Some(key));
            assert_eq!(table.get(key * 64 + 1), None);
        }
    }

    #[test]
    fn a_second_entry_changes_the_value() {
        let mut table = Table::new();
        assert_eq!(table.insert(7, 1), Ok(true));
        assert_eq!(table.insert(7, 2), Ok(false));
        assert_eq!(table.get(7), Some(2));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn what_is_not_kept_is_gone() {
        let mut table = Table::new();
        for key in 1..1_000u64 {
            table.insert(key, key).unwrap();
        }
        table.retain(|key, _| key % 3 == 0);
        assert_eq!(table.len(), 333);
        assert_eq!((table.get(3), table.get(4)), (Some(3), None));
    }

    #[test]
    fn each_entry_that_goes_is_seen_once_wherever_entries_lie() {
        let mut seed = 1u64;
        for round in 1..500u64 {
            let mut table = Table::new();
            // As full as it gets, so that entries reach around the end.
            for _ in 0..SMALLEST * 3 / 4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                table.insert(seed >> 20, round).unwrap();
            }
            let all: Vec<u64> = table.iter().map(|(key, _)| key).collect();
            let stays = |key: u64| key % 5 < round % 6;
            let mut gone = Vec::new();
            table.retain(|key, _| {
                if !stays(key) {
                    gone.push(key);
                }
                stays(key)
            });
            gone.sort_unstable();
            let mut expected: Vec<u64> = all.iter().copied().filter(|key| !stays(*key)).collect();
            expected.sort_unstable();
            assert_eq!(gone, expected);
            assert_eq!(table.len(), all.len() - gone.len());
            assert!(all.iter().all(|key| table.get(*key).is_some() == stays(*key)));
        }
    }

    #[test]
    fn entries_are_found_after_others_were_taken_out() {
        let mut table = Table::new();
        let mut seed = 1u64;
        let mut there = std::collections::HashMap::new();
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (seed >> 33) % 500 + 1;
            if seed & 1 << 20 == 0 {
                assert_eq!(table.insert(key, seed), Ok(there.insert(key, seed).is_none()));
            } else {
                assert_eq!(table.remove(key), there.remove(&key));
            }
        }
        assert_eq!(table.len(), there.len());
        for key in 1..=500 {
            assert_eq!(table.get(key), there.get(&key).copied());
        }
    }

    #[test]
    fn key_zero_is_never_there() {
        let mut table = Table::new();
        assert_eq!(table.insert(0, 1), Ok(false));
        assert_eq!(table.get(0), None);
    }
}
