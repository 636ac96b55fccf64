//! The pipeline's side of the store, which is written on a thread of its own.
//!
//! Invariant: a store whose disk does not answer costs its own profiles, which are counted, and holds
//! nothing else up for longer than [`PATIENCE`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use strata_store::LateSymbol;

use super::disk::{Disk, Surroundings};
use super::store_writer::{StoreSettings, StoreWriter};
use super::{Figures, FlushedProfile};
use crate::disks::{FLUSH, PATIENCE};

enum Work {
    Configure(Option<StoreSettings>),
    /// A flush begins.
    Flush,
    Keep(Box<FlushedProfile>),
    NameLate(Vec<LateSymbol>),
    Tend,
    Close,
}

pub struct StoreQueue {
    disk: Disk<Work>,
    /// As of the last thing that it did.
    shown: Arc<Mutex<Figures>>,
    directory: Option<PathBuf>,
    /// Profiles without room, because its disk did not answer.
    refused: u64,
    is_refusing: bool,
    /// Late symbols without room.
    refused_symbols: u64,
}

impl StoreQueue {
    /// No store yet; `limit` bytes of profiles may wait.
    pub fn start(limit: usize, surroundings: &Surroundings) -> io::Result<Self> {
        let shown = Arc::new(Mutex::new(Figures::default()));
        let (mut store, to_show) = (StoreWriter::nowhere(), shown.clone());
        let work = move |work| {
            match work {
                Work::Configure(settings) => store.configure(settings),
                Work::Flush => store.try_again(),
                Work::Keep(profile) => store.keep(&profile),
                Work::NameLate(symbols) => store.name_late(&symbols),
                Work::Tend => store.tend(),
                Work::Close => store.close(),
            }
            let mut figures = Figures::default();
            store.show(&mut figures);
            *to_show.lock().unwrap_or_else(PoisonError::into_inner) = figures;
        };
        let disk = Disk::start(Path::new(""), limit, surroundings, work)?;
        Ok(Self {
            disk,
            shown,
            directory: None,
            refused: 0,
            is_refusing: false,
            refused_symbols: 0,
        })
    }

    /// Writes to another store, or none, from now on.
    pub fn configure(&mut self, settings: Option<StoreSettings>) {
        self.directory = settings.as_ref().map(|settings| settings.directory.clone());
        self.disk.set_path(self.directory.as_deref().unwrap_or(Path::new("")));
        self.always(Work::Configure(settings));
        self.disk.wait(Instant::now() + PATIENCE);
    }

    /// Work that takes no memory is refused only if thousands wait.
    fn always(&self, work: Work) {
        if self.disk.give(work, 0).is_err() {
            tracing::warn!("the store has too much to do");
        }
    }

    pub fn keep(&mut self, profiles: Vec<FlushedProfile>) {
        if self.directory.is_none() || profiles.is_empty() {
            return;
        }
        if self.disk.is_idle() {
            self.is_refusing = false;
            self.always(Work::Flush);
        }
        let until = Instant::now() + FLUSH;
        for profile in profiles {
            let bytes = profile.memory();
            let Err(Work::Keep(profile)) = self.disk.give(Work::Keep(Box::new(profile)), bytes)
            else {
                continue;
            };
            // A disk that is only slow makes room.
            self.disk.wait(until);
            if self.disk.give(Work::Keep(profile), bytes).is_err() {
                self.refused = self.refused.saturating_add(1);
                if !std::mem::replace(&mut self.is_refusing, true) {
                    tracing::warn!("profiles are not stored: the store's disk does not answer");
                }
            }
        }
        self.disk.wait(until);
    }

    /// Keeps symbols of frames that were stored without.
    pub fn name_late(&mut self, symbols: Vec<LateSymbol>) {
        if self.directory.is_none() {
            return;
        }
        let bytes = LateSymbol::memory(&symbols);
        let Err(refused @ Work::NameLate(_)) = self.disk.give(Work::NameLate(symbols), bytes)
        else {
            return;
        };
        // As for profiles, which went before them.
        self.disk.wait(Instant::now() + FLUSH);
        if let Err(Work::NameLate(symbols)) = self.disk.give(refused, bytes) {
            let refused = self.refused_symbols.saturating_add(symbols.len() as u64);
            self.refused_symbols = refused;
        }
    }

    /// Drops old segments, merges hours; later, if it is busy.
    pub fn tend(&mut self) {
        if self.disk.is_idle() {
            self.always(Work::Tend);
            self.disk.wait(Instant::now() + PATIENCE);
        }
    }

    /// Everything is in it when this returns, unless its disk does not answer.
    pub fn close(&mut self) {
        self.always(Work::Close);
        if !self.disk.wait(Instant::now() + PATIENCE) {
            // The last is the closing itself.
            let profiles = self.disk.waiting().saturating_sub(1);
            tracing::warn!(profiles, "not stored: the store's disk does not answer");
        }
    }

    pub fn show(&self, figures: &mut Figures) {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        figures.kept = shown.kept;
        let refused = figures.kept.late_refused.saturating_add(self.refused_symbols);
        figures.kept.late_refused = refused;
        figures.store_bytes = shown.store_bytes;
        figures.store_dictionaries = shown.store_dictionaries;
        figures.store_trouble = shown.store_trouble;
        figures.store_fails = shown.store_fails;
        figures.not_stored = shown.not_stored.saturating_add(self.refused);
    }
}
