//! Sets of kinds, and the error of a name that is none.

use core::fmt;

use crate::{KIND_COUNT, Kind};

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kinds(u64);

const _: () = assert!(KIND_COUNT <= 64, "a set of kinds is 64 bits");

impl Kinds {
    pub const NONE: Self = Self(0);

    /// The kinds that the daemon samples by default.
    #[must_use]
    pub fn defaults() -> Self {
        Kind::ALL.into_iter().filter(|kind| kind.info().on_by_default).collect()
    }

    /// The kinds that the CLR bridge reports.
    pub const OF_BRIDGE: Self = {
        let (mut set, mut at) = (Self::NONE, 0);
        while at < KIND_COUNT {
            let kind = Kind::ALL[at];
            set = set.with(kind, kind.info().bridge.is_some());
            at += 1;
        }
        set
    };

    #[must_use]
    pub fn all() -> Self {
        Kind::ALL.into_iter().collect()
    }

    /// Those that are in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are in one of them.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    #[must_use]
    pub const fn with(self, kind: Kind, on: bool) -> Self {
        let bit = 1 << kind as u8;
        Self(if on { self.0 | bit } else { self.0 & !bit })
    }

    /// Whether both are the same set: `==` in constants.
    #[must_use]
    pub const fn is(self, other: Self) -> bool {
        self.0 == other.0
    }

    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// In the table's order.
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }

    /// Parses names or aliases with commas between them.
    ///
    /// # Errors
    ///
    /// The first unknown name.
    pub fn parse(text: &str) -> Result<Self, UnknownKind<'_>> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|name| Kind::find(name).ok_or(UnknownKind(name))).collect()
    }
}

impl FromIterator<Kind> for Kinds {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::NONE, |set, kind| set.with(kind, true))
    }
}

/// The names with commas between them.
impl fmt::Display for Kinds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, kind) in self.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(formatter, "{separator}{}", kind.name())?;
        }
        Ok(())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A name that is no kind's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKind<'a>(pub &'a str);

impl fmt::Display for UnknownKind<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Kinds = Kind::ALL.into_iter().collect();
        write!(formatter, "{:?} is no kind of sample; there are {all}", self.0)
    }
}

impl core::error::Error for UnknownKind<'_> {}
