//! Bounds the values of a label, or of a fact that processes set, per exporter: each is a series or
//! an index entry of the server, so values beyond the limit are sent as [`OTHER`].

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::origin::CLAIMABLE;

/// The value that replaces those over the limit.
pub const OTHER: &str = "other";
/// The most names of labels that are tracked; no server takes so many.
const MOST_NAMES: usize = 1000;

/// The values that labels have had since the last reset.
#[derive(Debug)]
pub struct LabelValues {
    most: usize,
    /// By name: hashes of values.
    seen: HashMap<String, HashSet<u64>>,
}

impl Default for LabelValues {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl LabelValues {
    /// Another limit; values that are known stay.
    pub fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// At most so many values a label.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, seen: HashMap::new() }
    }

    /// Whether the value may be sent as it is.
    pub fn admit(&mut self, name: &str, value: &str) -> bool {
        if self.most == usize::MAX {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        let hash = hasher.finish();
        if !self.seen.contains_key(name) {
            // However many names the labels of processes have, facts have room.
            if self.seen.len() >= MOST_NAMES && !CLAIMABLE.contains(&name) {
                return false;
            }
            self.seen.insert(name.to_owned(), HashSet::new());
        }
        let Some(values) = self.seen.get_mut(name) else { return false };
        if values.contains(&hash) {
            return true;
        }
        values.len() < self.most && values.insert(hash)
    }

    /// Resets the values, so that new ones can take their place.
    pub fn forget(&mut self) {
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_was_sent_is_always_sent_and_a_new_one_while_there_is_room() {
        let mut values = LabelValues::new(2);
        let admitted: Vec<bool> =
            ["a", "b", "c", "a", "d"].iter().map(|value| values.admit("team", value)).collect();
        assert_eq!(admitted, [true, true, false, true, false]);
        assert!(values.admit("other", "c"));
        values.forget();
        assert!(values.admit("team", "c"));
    }

    #[test]
    fn labels_with_endless_names_leave_room_for_the_version() {
        let mut values = LabelValues::new(2);
        let labels = (0..2 * MOST_NAMES).filter(|name| values.admit(&name.to_string(), "a"));
        assert_eq!(labels.count(), MOST_NAMES);
        assert!(values.admit("version", "1"));
    }
}
