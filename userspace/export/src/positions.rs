//! Tables indexed by position, for ids that count from 0. A lookup costs a load, where one in a
//! hash table costs a hash, and every frame of every stack is looked up.

/// A table of values by position.
#[derive(Debug)]
pub(crate) struct Known<T>(Vec<Option<T>>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone> Known<T> {
    pub(crate) fn get(&self, position: usize) -> Option<&T> {
        self.0.get(position)?.as_ref()
    }

    pub(crate) fn set(&mut self, position: usize, thing: T) {
        if position >= self.0.len() {
            self.0.resize(position.saturating_add(1), None);
        }
        if let Some(place) = self.0.get_mut(position) {
            *place = Some(thing);
        }
    }
}

/// Positions that have been seen, all forgotten at once.
#[derive(Debug)]
pub(crate) struct Marks {
    round: u32,
    /// The round in which a position was seen last.
    seen: Vec<u32>,
}

impl Default for Marks {
    fn default() -> Self {
        Self { round: 1, seen: Vec::new() }
    }
}

impl Marks {
    /// Whether the position is new.
    pub(crate) fn insert(&mut self, position: usize) -> bool {
        if position >= self.seen.len() {
            self.seen.resize(position.saturating_add(1), 0);
        }
        let Some(place) = self.seen.get_mut(position) else { return false };
        std::mem::replace(place, self.round) != self.round
    }

    pub(crate) fn clear(&mut self) {
        self.round = self.round.checked_add(1).unwrap_or_else(|| {
            self.seen.clear();
            1
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_forgotten_together() {
        let mut marks = Marks::default();
        assert!(marks.insert(3));
        assert!(!marks.insert(3));
        marks.clear();
        assert!(marks.insert(3) && marks.insert(0));
        marks.round = u32::MAX;
        assert!(marks.insert(1));
        marks.clear();
        assert!(marks.insert(1));
    }

    #[test]
    fn only_what_was_set_is_known() {
        let mut known = Known::default();
        known.set(2, 'b');
        assert_eq!((known.get(1), known.get(2), known.get(3)), (None, Some(&'b'), None));
    }
}
