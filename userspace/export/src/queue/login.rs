//! The connection to a server with its current credential.
//!
//! A credential's file is checked before a request, at most every few seconds, and immediately when
//! the server refuses it. Without a usable credential nothing is sent: a request without one would
//! be refused permanently.
//!
//! Invariant: no text of a credential is in an error, a log or `Debug`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::http::{Credential, SetupError};
use crate::{Endpoint, Secret};

use crate::queue::clock::Moment;
use crate::queue::settings::{CredentialSource, ExporterSettings};

const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Longer than any token.
const MOST_BYTES: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LoginError {
    #[error("the credential in {path} could not be read: {source}")]
    Unreadable { path: String, source: std::io::Error },
    #[error("the file {0} holds no credential: it is empty, too long or no text")]
    NoText(String),
    #[error("the credential in {path} cannot be used: {source}")]
    ExporterError { path: String, source: SetupError },
}

/// The attributes by which a change of a file is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    length: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Login {
    endpoint: Option<Arc<Endpoint>>,
    /// Counts the credentials that were used.
    generation: u64,
    stamp: Option<Stamp>,
    secret: Option<Secret>,
    next_look: Moment,
}

impl Login {
    /// # Errors
    /// If the destination itself cannot be used. A file's credential may come later.
    pub(crate) fn new(plan: &ExporterSettings) -> Result<Self, SetupError> {
        let endpoint = Arc::new(Endpoint::new(plan.backend.clone(), &plan.destination)?);
        let is_ready = plan.credential.path().is_none();
        Ok(Self {
            endpoint: is_ready.then_some(endpoint),
            generation: 0,
            stamp: None,
            secret: None,
            next_look: Moment::ZERO,
        })
    }

    /// Replaces another one.
    pub(crate) fn after(self, other: &Self) -> Self {
        Self { generation: other.generation.saturating_add(1), ..self }
    }

    pub(crate) fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.endpoint.as_ref()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// When the file is to be checked; never if there is none.
    pub(crate) fn next_look(&self, plan: &ExporterSettings) -> Option<Moment> {
        plan.credential.path().map(|_| self.next_look)
    }

    /// Checks the file, and reads it if it changed, or if `is_doubted`. Blocks.
    ///
    /// # Errors
    /// If there is no credential in it. The last one stays in use.
    pub(crate) fn look(
        &mut self,
        plan: &ExporterSettings,
        now: Moment,
        is_doubted: bool,
    ) -> Result<(), LoginError> {
        let Some(path) = plan.credential.path() else { return Ok(()) };
        self.next_look = now.saturating_add(LOOK_EVERY);
        let shown = || path.display().to_string();
        let unreadable = |source| LoginError::Unreadable { path: shown(), source };
        let stamp = stamp(path).map_err(unreadable)?;
        if self.stamp == Some(stamp) && !is_doubted {
            return Ok(());
        }
        let secret = read(path).map_err(unreadable)?.ok_or_else(|| LoginError::NoText(shown()))?;
        if self.secret.as_ref() != Some(&secret) {
            let mut destination = plan.destination.clone();
            destination.credential = match &plan.credential {
                CredentialSource::PasswordFile { user, .. } => {
                    Credential::Basic { user: user.clone(), password: secret.clone() }
                }
                _ => Credential::Bearer(secret.clone()),
            };
            let made = Endpoint::new(plan.backend.clone(), &destination);
            let endpoint =
                made.map_err(|source| LoginError::ExporterError { path: shown(), source })?;
            self.endpoint = Some(Arc::new(endpoint));
            self.secret = Some(secret);
            self.generation = self.generation.saturating_add(1);
        }
        self.stamp = Some(stamp);
        Ok(())
    }
}

fn stamp(path: &Path) -> std::io::Result<Stamp> {
    let facts = std::fs::metadata(path)?;
    Ok(Stamp {
        device: facts.dev(),
        inode: facts.ino(),
        modified: (facts.mtime(), facts.mtime_nsec()),
        length: facts.len(),
    })
}

fn read(path: &Path) -> std::io::Result<Option<Secret>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= MOST_BYTES);
    let text = text.as_deref().map(str::trim).filter(|text| !text.is_empty());
    Ok(text.map(Secret::new))
}
