//! Errors of a store.

use std::io;
use std::path::{Path, PathBuf};

/// Why bytes are not what the store writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damage(pub(crate) &'static str);

/// Why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("could not {action} {path}", path = .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the store in {path} is written by {owner} already; stop that one or choose another directory",
        path = .directory.display(),
        owner = .owner.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Locked {
        directory: PathBuf,
        /// In its own PID namespace; `None` if it has not written it.
        owner: Option<u32>,
    },
    #[error("{path} is damaged", path = .path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: Damage,
    },
    #[error(
        "{path} is of version {version} of the store's format, which this strata does not know; let \
         the strata that wrote it use the store, or move the directory away or choose another one",
        path = .path.display()
    )]
    OtherVersion { path: PathBuf, version: u32 },
    #[error("a profile of {bytes} bytes is larger than the store holds in one piece")]
    TooLarge { bytes: u64 },
    #[error("a profile of {0} sample types has more than the store holds")]
    TooManyTypes(usize),
    #[error("the profile ended before the oldest time that the store keeps")]
    TooOld,
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// Whether the file is simply not there (any more).
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
