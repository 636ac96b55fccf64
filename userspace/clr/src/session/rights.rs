//! Whether a session owns the bridge, or reads beside its owner.

use std::fs::File;
use std::io;

use strata_bridge_protocol::beside::{BesideError, ReaderWishes};
use strata_bridge_protocol::control::Wishes;
use strata_bridge_protocol::owning::{Owner, read_wishes};
use strata_bridge_protocol::status::StatusRecord;

use super::presence::{Holder, is_owned};

/// What a session may do with a bridge.
#[derive(Debug)]
pub(super) enum Rights {
    Owner(Box<Owner>),
    Reader(Box<Beside>),
}

/// The main file of a bridge that another strata owns.
#[derive(Debug)]
pub(super) struct Beside {
    file: File,
    /// The owner's, when the session began; `None` where they could not be read.
    wishes: Option<Wishes>,
    /// What this reader wishes for, once it does, and its place for that.
    own: Option<(u64, ReaderWishes)>,
}

impl Beside {
    pub fn new(file: File) -> io::Result<Self> {
        let wishes = read_wishes(&file)?;
        Ok(Self { file, wishes, own: None })
    }

    /// Wishes for events: the owner adds them to its own.
    pub fn wish(&mut self, flags: u64) -> Result<(), BesideError> {
        let place = match self.own.take() {
            Some((_, place)) => place,
            None => ReaderWishes::take(self.file.try_clone()?)?,
        };
        place.wish(flags)?;
        self.own = Some((flags, place));
        Ok(())
    }

    /// Whether the owner has added this reader's wishes to its own, and the bridge follows them.
    fn is_obeyed(&self, status: &StatusRecord) -> bool {
        let Ok(Some(owners)) = read_wishes(&self.file) else { return false };
        let own = self.own.as_ref().map_or(0, |(flags, _)| *flags);
        owners.flags & own == own && status.obeyed == (owners.epoch, owners.generation)
    }

    pub fn holder(&self) -> Holder {
        let wishes = self.wishes.as_ref();
        wishes
            .map_or(Holder::new("", 0), |wishes| Holder::new(&wishes.owner_name, wishes.owner_pid))
    }
}

impl Rights {
    pub fn owner(&mut self) -> Option<&mut Owner> {
        match self {
            Self::Owner(owner) => Some(owner),
            Self::Reader(_) => None,
        }
    }

    /// Renews the owner's sign of life; false when there is no owner any more to read beside.
    pub fn beat(&mut self) -> io::Result<bool> {
        match self {
            Self::Owner(owner) => owner.beat().map(|()| true),
            Self::Reader(beside) => Ok(is_owned(&beside.file)),
        }
    }

    /// Whether an enumeration of this epoch is the owner's.
    pub fn is_owners(&self, epoch: u32) -> bool {
        match self {
            Self::Owner(owner) => owner.wishes().epoch == epoch,
            Self::Reader(beside) => {
                beside.wishes.as_ref().is_none_or(|wishes| wishes.epoch == epoch)
            }
        }
    }

    /// Whether the bridge has said that the wishes are in force.
    pub fn are_obeyed(&self, status: &StatusRecord) -> bool {
        match self {
            Self::Owner(owner) => owner.is_obeyed(status),
            Self::Reader(beside) => beside.is_obeyed(status),
        }
    }

    /// What the bridge is to do now, by its owner's wishes and those of readers that the owner has
    /// added: bits of [`strata_bridge_protocol::control::wish`]. `None` while the owner changes them.
    pub fn wishes(&self) -> Option<u64> {
        match self {
            Self::Owner(owner) => Some(owner.wishes().flags),
            Self::Reader(beside) => Some(read_wishes(&beside.file).ok()??.flags),
        }
    }
}
