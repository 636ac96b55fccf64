//! Looks up containers, and runs the task that queries the sources.
//!
//! Invariants: a lookup holds one lock for one table access, and never waits for a source; a single
//! task queries the sources, so that a source gets one request after the other, however many
//! containers start at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::cache::{Cache, Known};
use crate::health::{Health, SourceHealth};
use crate::metadata::{Found, Metadata};
use crate::settings::{Pace, Settings};
use crate::sources::{self, Source};

/// The metadata of this host's containers. Clones share one directory.
#[derive(Clone)]
pub struct Containers {
    shared: Arc<Shared>,
}

/// The task that queries the sources. Nothing is found unless it [runs](Self::run).
pub struct Refresher {
    shared: Weak<Shared>,
    wake: Arc<Notify>,
    sources: Vec<Source>,
    pace: Pace,
}

struct Shared {
    cache: Mutex<Cache>,
    sources: Mutex<Vec<SourceHealth>>,
    wake: Arc<Notify>,
    rounds: watch::Sender<u64>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The requesting side is gone: the task ends.
        self.wake.notify_one();
    }
}

/// A directory, and the task that fills it: spawn [`Refresher::run`].
#[must_use]
pub fn containers(settings: &Settings) -> (Containers, Refresher) {
    let sources = sources::of(settings);
    let wake = Arc::new(Notify::new());
    let shared = Arc::new(Shared {
        cache: Mutex::new(Cache::new(settings.pace)),
        sources: Mutex::new(sources.iter().map(|source| source.health.clone()).collect()),
        wake: wake.clone(),
        rounds: watch::Sender::new(0),
    });
    let weak = Arc::downgrade(&shared);
    (Containers { shared }, Refresher { shared: weak, wake, sources, pace: settings.pace })
}

impl Containers {
    /// The metadata of a container known now. Unknown or outdated metadata is queried in the
    /// background. Anything but a container id has none.
    #[must_use]
    pub fn lookup(&self, id: &str) -> Option<Arc<Metadata>> {
        match self.look(id)? {
            Known::Yes(metadata) => Some(metadata),
            Known::No | Known::NoneKnows | Known::NotYet => None,
        }
    }

    /// Whether all sources have answered that they run no such container. One without a socket has.
    #[must_use]
    pub fn is_unknown(&self, id: &str) -> bool {
        matches!(self.look(id), Some(Known::No))
    }

    /// As [`Self::lookup`], but waits until each source has answered or failed, or the time is up.
    pub async fn wait(&self, id: &str, longest: Duration) -> Option<Arc<Metadata>> {
        let mut rounds = self.shared.rounds.subscribe();
        let found = async {
            loop {
                match self.look(id)? {
                    Known::Yes(metadata) => return Some(metadata),
                    Known::No | Known::NoneKnows => return None,
                    Known::NotYet => rounds.changed().await.ok()?,
                }
            }
        };
        match tokio::time::timeout(longest, found).await {
            Ok(found) => found,
            Err(_) => self.lookup(id),
        }
    }

    /// The sources' health, and the size of the cache.
    #[must_use]
    pub fn health(&self) -> Health {
        let counts = locked(&self.shared.cache).counts();
        Health {
            sources: locked(&self.shared.sources).clone(),
            known: counts.known,
            unknown: counts.unknown,
            waiting: counts.waiting,
            bytes: counts.bytes,
            forgotten: counts.forgotten,
        }
    }

    fn look(&self, id: &str) -> Option<Known> {
        if !strata_metadata::control_group::is_id(id) {
            return None;
        }
        let (known, ask) = locked(&self.shared.cache).lookup(id, Instant::now());
        if ask {
            self.shared.wake.notify_one();
        }
        Some(known)
    }
}

impl Refresher {
    /// Until every [`Containers`] of it is gone.
    pub async fn run(mut self) {
        loop {
            let Some(batch) = self.batch() else { return };
            if batch.is_empty() {
                self.wake.notified().await;
                continue;
            }
            let mut found: HashMap<String, Found> = HashMap::new();
            let mut is_whole = true;
            for source in &mut self.sources {
                let has_answered = source.ask(&batch, &mut found, &self.pace).await;
                // No user's runtime keeps others' containers open.
                is_whole &= has_answered || source.is_users();
            }
            if !self.publish(&batch, found, is_whole) {
                return;
            }
            tokio::time::sleep(self.pace.pause).await;
        }
    }

    fn batch(&self) -> Option<Vec<String>> {
        self.shared.upgrade().map(|shared| locked(&shared.cache).take())
    }

    fn publish(&self, batch: &[String], mut found: HashMap<String, Found>, is_whole: bool) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let now = Instant::now();
        let mut cache = locked(&shared.cache);
        for id in batch {
            cache.answer(id, found.remove(id).map(Found::into_metadata), is_whole, now);
        }
        drop(cache);
        *locked(&shared.sources) =
            self.sources.iter().map(|source| source.health.clone()).collect();
        shared.rounds.send_modify(|round| *round = round.wrapping_add(1));
        true
    }
}

/// No code panics with the lock held; if it did, the data is still consistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
