//! Sets of labels of samples, beside a thread's context: an exception's type, an allocation's
//! class.

use std::hash::Hash;

use indexmap::{Equivalent, IndexSet};

use super::Hasher;

/// A set of labels of one aggregate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelsId(pub u32);

impl LabelsId {
    /// No labels.
    pub const NONE: Self = Self(0);
}

/// A name and a value.
pub type Label = (Box<str>, Box<str>);

pub(super) struct LabelSets {
    sets: IndexSet<Box<[Label]>, Hasher>,
    /// Of texts.
    bytes: usize,
}

/// A set that is looked for.
struct Borrowed<'a>(&'a [(&'a str, &'a str)]);

impl Hash for Borrowed<'_> {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.0.hash(hasher);
    }
}

impl Equivalent<Box<[Label]>> for Borrowed<'_> {
    fn equivalent(&self, known: &Box<[Label]>) -> bool {
        let known = known.iter().map(|(name, value)| (&**name, &**value));
        known.eq(self.0.iter().copied())
    }
}

impl LabelSets {
    pub(super) fn new(hasher: Hasher) -> Self {
        Self { sets: IndexSet::with_hasher(hasher), bytes: 0 }
    }

    pub(super) fn intern(&mut self, labels: &[(&str, &str)]) -> LabelsId {
        if labels.is_empty() {
            return LabelsId::NONE;
        }
        let position = self.sets.get_index_of(&Borrowed(labels)).unwrap_or_else(|| {
            let owned = labels.iter().map(|&(name, value)| (name.into(), value.into()));
            let texts = labels.iter().map(|(name, value)| name.len() + value.len());
            self.bytes += texts.sum::<usize>() + size_of_val(labels);
            self.sets.insert_full(owned.collect()).0
        });
        LabelsId(u32::try_from(position).map_or(0, |position| position.saturating_add(1)))
    }

    pub(super) fn get(&self, id: LabelsId) -> &[Label] {
        let position = id.0.checked_sub(1);
        let set = position.and_then(|position| self.sets.get_index(position as usize));
        set.map(|set| &**set).unwrap_or_default()
    }

    pub(super) fn count(&self) -> usize {
        self.sets.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.sets.len() * 48
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn a_set_is_kept_once_and_found_by_its_texts() {
        let hasher = Hasher::with_seed(7);
        let owned: Box<[Label]> = Box::new([("a".into(), "b".into())]);
        assert_eq!(hasher.hash_one(&owned), hasher.hash_one(Borrowed(&[("a", "b")])));
        let mut sets = LabelSets::new(hasher);
        let thrown = sets.intern(&[("exception type", "Shop.NotFound")]);
        assert_eq!(sets.intern(&[("exception type", "Shop.NotFound")]), thrown);
        assert_ne!(sets.intern(&[("exception type", "Shop.Sold")]), thrown);
        assert_eq!(sets.get(thrown)[0].1.as_ref(), "Shop.NotFound");
        assert_eq!(sets.intern(&[]), LabelsId::NONE);
        assert!(sets.get(LabelsId::NONE).is_empty() && sets.get(LabelsId(9)).is_empty());
    }
}
