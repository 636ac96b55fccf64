//! Errors of a query. Each names the next step.

use std::io;
use std::path::{Path, PathBuf};

use strata_store::StoreError;

pub type Result<T> = std::result::Result<T, QueryError>;

#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error("there is no store in `{}`: start `strata daemon`, or pass another directory with --store", path.display())]
    NoStore { path: PathBuf },
    #[error("the store in `{}` may not be read by this user: run the same with `sudo`", path.display())]
    Denied {
        path: PathBuf,
        #[source]
        source: Option<StoreError>,
    },
    #[error("the store in `{}` cannot be read", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the store cannot be read")]
    Store(#[source] StoreError),
    #[error("the window is empty: --from is {from}, --to is {to}{}", with_semicolon(*hint))]
    EmptyWindow { from: String, to: String, hint: Option<&'static str> },
    /// Nothing was found; `damaged` records of the store could not be read.
    #[error("{why}")]
    Nothing { why: String, damaged: u64 },
    #[error("these profiles do not count `{asked}`; --value takes one of: {known}")]
    NoSuchValue { asked: String, known: String },
    #[error("values of several kinds do not add up: choose one with --type ({known})")]
    SeveralKinds { known: String },
}

fn with_semicolon(hint: Option<&str>) -> String {
    hint.map(|hint| format!("; {hint}")).unwrap_or_default()
}

impl QueryError {
    pub(crate) fn of_store(error: StoreError, directory: &Path) -> Self {
        match error {
            StoreError::Io { ref source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Self::Denied { path: directory.to_owned(), source: Some(error) }
            }
            _ => Self::Store(error),
        }
    }

    pub(crate) fn with_hint(self, hint: &'static str) -> Self {
        match self {
            Self::EmptyWindow { from, to, .. } => Self::EmptyWindow { from, to, hint: Some(hint) },
            other => other,
        }
    }
}
