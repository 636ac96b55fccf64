//! An exporter's settings: its endpoint, its credential, and the limits of its queue.

use std::path::PathBuf;
use std::time::Duration;

use crate::Backend;
use crate::http::EndpointSettings;

use crate::queue::pace::Waits;

/// One exporter.
#[derive(Clone, Debug, PartialEq)]
pub struct ExporterSettings {
    /// No two exporters have the same.
    pub name: String,
    pub backend: Backend,
    pub destination: EndpointSettings,
    pub credential: CredentialSource,
    /// Requests at once, at most.
    pub concurrency: usize,
    /// Between the beginnings of two requests, at least.
    pub spacing: Duration,
    /// Belongs to this exporter alone. Without one, what does not fit in memory is dropped.
    pub spool_dir: Option<PathBuf>,
    /// Of all files of the spool together.
    pub spool_size: u64,
    /// What began longer ago is dropped and never sent.
    pub spool_age: Duration,
    /// Bytes of batches in memory, besides one that is larger.
    pub memory: usize,
    pub waits: Waits,
    /// Whether batches that an endpoint denies (a wrong credential or path) wait, up to their age;
    /// else they are dropped at once.
    pub keeps_denied: bool,
    /// Whether what is not delivered is a loss; else the program that enqueues it keeps it.
    pub reports_losses: bool,
}

impl ExporterSettings {
    #[must_use]
    pub fn new(name: impl Into<String>, backend: Backend, destination: EndpointSettings) -> Self {
        Self {
            name: name.into(),
            backend,
            destination,
            credential: CredentialSource::Settings,
            concurrency: 4,
            spacing: Duration::ZERO,
            spool_dir: None,
            spool_size: 256_000_000,
            spool_age: Duration::from_secs(3600),
            memory: 16 << 20,
            waits: Waits::default(),
            keeps_denied: true,
            reports_losses: true,
        }
    }

    /// Whether the endpoint or the credentials differ.
    pub(crate) fn leads_elsewhere(&self, other: &Self) -> bool {
        self.destination != other.destination
            || self.credential != other.credential
            || self.backend != other.backend
    }
}

/// Where the credential is. Files are read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CredentialSource {
    /// In the plan's destination.
    #[default]
    Settings,
    /// A file with a bearer token.
    TokenFile(PathBuf),
    /// A file with the password of `user`.
    PasswordFile { user: String, path: PathBuf },
}

impl CredentialSource {
    pub(crate) fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Settings => None,
            Self::TokenFile(path) | Self::PasswordFile { path, .. } => Some(path),
        }
    }
}
