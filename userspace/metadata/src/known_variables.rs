//! The variables of a process that strata understands.

use std::borrow::Cow;

/// The most that is read of one variable.
const MAX_VALUE: usize = 16 * 1024;

/// The variables of a block that strata understands.
#[derive(Clone, Default)]
pub(crate) struct Known<'a> {
    values: Vec<(&'static str, &'a [u8])>,
    unread: usize,
}

impl<'a> Known<'a> {
    /// Of a block of which so many bytes were not read.
    pub fn new(unread: usize) -> Self {
        Self { values: Vec::new(), unread }
    }

    /// Of a name that is there twice the first counts.
    pub fn note(&mut self, name: &'static str, value: &'a [u8]) {
        // No longer than the names that are understood.
        if self.values.iter().all(|(seen, _)| *seen != name) {
            self.values.push((name, value));
        }
    }

    pub fn unread(&self) -> usize {
        self.unread
    }

    /// A value as text: what is not UTF-8 becomes U+FFFD, what is over [`MAX_VALUE`] is not there.
    pub fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        let (_, value) = self.values.iter().find(|(known, _)| *known == name)?;
        let value = value.get(..MAX_VALUE).unwrap_or(value);
        (!value.is_empty()).then(|| String::from_utf8_lossy(value))
    }

    /// Names of variables that are set to something, in the block's order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.values.iter().filter(|(_, value)| !value.is_empty()).map(|(name, _)| *name)
    }
}
