//! The local store of a running daemon: opens, reopens and maintains it.

use std::mem::Discriminant;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strata_kinds::{Kind, Kinds};
use strata_profile::Times;
use strata_store::{Head, LateSymbol, Options, Store, StoreError};

use super::ages::{Ages, wall_nanos};
use super::{Figures, FlushedProfile, LASTING};
use crate::causes::with_causes;

/// Profiles that are refused for one cause are logged again after this long.
const WARN_AGAIN: Duration = Duration::from_secs(3600);
/// A store that could not be opened is tried again after this long.
const RETRY: Duration = Duration::from_secs(60);

/// Where profiles are kept.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    pub directory: PathBuf,
    pub options: Options,
}

impl StoreSettings {
    fn is_same(&self, other: &Self) -> bool {
        self.directory == other.directory
            && self.options.max_age == other.options.max_age
            && self.options.max_bytes == other.options.max_bytes
            && self.options.dictionary_bytes == other.options.dictionary_bytes
    }
}

/// Counts of profiles in stores, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub written: u64,
    /// For their age, or the size.
    pub dropped: u64,
    /// Without their stacks: see [`strata_store::Counters::profiles_folded`].
    pub folded: u64,
    /// Symbols of frames that were stored without: kept, and not.
    pub late_named: u64,
    pub late_refused: u64,
}

impl Kept {
    /// Adds a store's counters since it was opened.
    fn with(self, store: &Store) -> Self {
        let counters = store.counters();
        Self {
            written: self.written.saturating_add(counters.profiles_written),
            dropped: self.dropped.saturating_add(counters.profiles_dropped),
            folded: self.folded.saturating_add(counters.profiles_folded),
            late_named: self.late_named.saturating_add(counters.late_symbols_written),
            late_refused: self
                .late_refused
                .saturating_add(counters.late_symbols_refused)
                .saturating_add(counters.late_symbols_dropped),
        }
    }
}

pub struct StoreWriter {
    plan: Option<StoreSettings>,
    store: Option<Store>,
    /// Of stores that are closed.
    before: Kept,
    /// What is too old for it.
    ages: Ages,
    /// A store was opened before.
    has_opened: bool,
    next_try: Instant,
    /// Why it accepts no profiles.
    trouble: Option<String>,
    /// When it could not be opened, or a profile could not be written, for the last time.
    failed: Option<Instant>,
    /// Profiles that it did not take, each of one kind, as those are that it took.
    refused: u64,
    /// When it may be logged again that a service has had its share.
    next_fold_warning: Option<Instant>,
    /// What was logged of them last, and when.
    warned: Option<(Discriminant<StoreError>, Instant)>,
}

/// A refusal of one profile concerns only that profile; a disk error concerns all.
fn is_of_the_disk(error: &StoreError) -> bool {
    !matches!(error, StoreError::TooLarge { .. } | StoreError::TooManyTypes(_) | StoreError::TooOld)
}

impl StoreWriter {
    /// No store at all.
    pub fn nowhere() -> Self {
        Self {
            plan: None,
            store: None,
            before: Kept::default(),
            ages: Ages::new(None, wall_nanos(), Instant::now()),
            has_opened: false,
            next_try: Instant::now(),
            trouble: None,
            failed: None,
            refused: 0,
            next_fold_warning: None,
            warned: None,
        }
    }

    pub fn configure(&mut self, plan: Option<StoreSettings>) {
        let is_same = match (&self.plan, &plan) {
            (Some(old), Some(new)) => old.is_same(new),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            self.close();
            self.plan = plan;
            self.open();
        }
    }

    pub fn close(&mut self) {
        if let Some(mut store) = self.store.take() {
            note(store.seal(), "seal the store");
            self.before = self.before.with(&store);
        }
    }

    fn open(&mut self) {
        self.trouble = None;
        self.failed = None;
        let Some(plan) = &self.plan else { return };
        match Store::open(&plan.directory, plan.options) {
            Ok(store) => {
                warn_of_repairs(&store, &plan.directory);
                // One that is opened again holds profiles dated by a clock that is not trusted yet.
                if !std::mem::replace(&mut self.has_opened, true) {
                    self.ages = Ages::new(store.newest(), wall_nanos(), Instant::now());
                }
                self.store = Some(store);
            }
            Err(error) => {
                let text = with_causes(&error);
                tracing::error!(error = text, "profiles are not kept on this host");
                self.trouble = Some(text);
                self.failed = Some(Instant::now());
                self.next_try = Instant::now() + RETRY;
            }
        }
    }

    /// A store that could not be opened is tried again now and then, and one whose directory was taken
    /// away is made anew.
    pub fn try_again(&mut self) {
        if let (Some(store), Some(plan)) = (&self.store, &self.plan)
            && !store.is_there()
        {
            let directory = plan.directory.display();
            tracing::warn!(%directory, "the store was removed, or another is in its place: a new one is begun");
            self.before = self.before.with(store);
            // What it has open is nowhere any more, or moved away, to be recovered there.
            self.store = None;
            self.open();
        }
        if self.store.is_none() && self.plan.is_some() && Instant::now() >= self.next_try {
            self.open();
        }
    }

    pub fn keep(&mut self, parcel: &FlushedProfile) {
        let now = self.now();
        let Some(store) = &mut self.store else {
            if self.plan.is_some() {
                let profile = &*parcel.outgoing.profile;
                let has_some = |kind: &Kind| {
                    profile.first_column_of(*kind).is_some_and(|column| profile.total(column) != 0)
                };
                self.refused += profile.kinds().iter().filter(has_some).count() as u64;
            }
            return;
        };
        let folded = store.counters().profiles_folded;
        let errors = keep_kinds(store, parcel, now);
        if store.counters().profiles_folded > folded
            && self.next_fold_warning.is_none_or(|next| next <= Instant::now())
        {
            self.next_fold_warning = Some(Instant::now() + WARN_AGAIN);
            tracing::warn!(
                service = parcel.head.service,
                "a service has ever new stacks: until the hour is over its profiles are stored without \
                 them, so that the others keep their history (store.size)"
            );
        }
        if errors.is_empty() {
            // On a disk that is nearly full a small profile has room and the next has not.
            if self.failed.is_none_or(|failed| failed.elapsed() >= LASTING) {
                self.trouble = None;
                // A disk that fails again is news; a profile that is too large comes with every flush.
                if self.failed.take().is_some() {
                    self.warned = None;
                }
            }
            return;
        }
        for error in errors {
            self.refused += 1;
            if is_of_the_disk(&error) {
                self.failed = Some(Instant::now());
            }
            // What is the matter may differ in a size alone.
            let cause = std::mem::discriminant(&error);
            let is_known = self
                .warned
                .is_some_and(|(known, when)| known == cause && when.elapsed() < WARN_AGAIN);
            let text = with_causes(&error);
            if !is_known {
                self.warned = Some((cause, Instant::now()));
                tracing::warn!(
                    service = parcel.head.service,
                    error = text,
                    "a profile was not stored (further ones are counted: `strata status`)"
                );
            }
            self.trouble = Some(text);
        }
    }

    /// Keeps symbols of frames that were stored without.
    pub fn name_late(&mut self, symbols: &[LateSymbol]) {
        match &mut self.store {
            Some(store) => note(store.name_late(symbols), "store late symbols"),
            None => {
                let refused = self.before.late_refused.saturating_add(symbols.len() as u64);
                self.before.late_refused = refused;
            }
        }
    }

    fn now(&mut self) -> i64 {
        self.ages.time(wall_nanos(), Instant::now())
    }

    /// Drops old segments, merges hours.
    pub fn tend(&mut self) {
        let now = self.now();
        if let Some(store) = &mut self.store {
            note(store.tend(now), "look after the store");
        }
    }

    pub fn show(&self, figures: &mut Figures) {
        let store = self.store.as_ref();
        figures.kept = store.map_or(self.before, |store| self.before.with(store));
        figures.store_bytes = store.map_or(0, Store::bytes);
        figures.store_dictionaries = store.map_or(0, Store::dictionaries) as u64;
        figures.store_trouble.clone_from(&self.trouble);
        figures.not_stored = self.refused;
        let is_failing = self.failed.is_some_and(|failed| failed.elapsed() < LASTING);
        figures.store_fails = self.plan.is_some() && (store.is_none() || is_failing);
    }
}

/// A profile's kinds are series of their own: a query reads only its own kind, and each is merged
/// over time by its own rule. One that is refused keeps no other from being stored.
fn keep_kinds(store: &mut Store, parcel: &FlushedProfile, now: i64) -> Vec<StoreError> {
    let profile = &*parcel.outgoing.profile;
    let kinds = profile.kinds();
    let has_unwanted_times = !parcel.stores_times && profile.timeline().is_some();
    let mut errors = Vec::new();
    for kind in kinds.iter() {
        let head = Head { kind: kind.name().to_owned(), ..parcel.head.clone() };
        if kinds == Kinds::NONE.with(kind, true) && !has_unwanted_times {
            errors.extend(store.append(&head, profile, now).err());
            continue;
        }
        let times = if parcel.stores_times { Times::Kept } else { Times::Dropped };
        let only = strata_profile::of_kind(profile, kind, times);
        if only.sample_count() > 0 {
            errors.extend(store.append(&head, &only, now).err());
        }
    }
    errors
}

/// Reports problems found while opening a store.
fn warn_of_repairs(store: &Store, directory: &Path) {
    let counters = store.counters();
    let (directory, files) = (directory.display(), counters.files_unreadable);
    if files > 0 {
        tracing::warn!(
            %directory,
            files,
            "files of the store do not begin as such; segments among them are not read any more, \
             and kept for a while as NUMBER.damaged"
        );
    }
    let (segments, bytes) = (counters.segments_recovered, counters.bytes_cut_off);
    if segments > 0 || bytes > 0 {
        tracing::warn!(
            %directory,
            segments,
            bytes,
            "the strata before this one did not end in order: its segments were recovered, and bytes \
             of half written records cut off"
        );
    }
}

fn note(outcome: Result<(), StoreError>, what: &str) {
    if let Err(error) = outcome {
        tracing::warn!(error = with_causes(&error), "strata could not {what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_removed_or_replaced_is_begun_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = folder.path().join("store");
        let mut writer = StoreWriter::nowhere();
        let plan = StoreSettings { directory: directory.clone(), options: Options::default() };
        writer.configure(Some(plan));
        let fails = |writer: &StoreWriter| {
            let mut figures = Figures::default();
            writer.show(&mut figures);
            figures.store_fails
        };
        for replaced in [false, true] {
            writer.try_again();
            assert!(directory.join("lock").exists() && !fails(&writer));
            std::fs::remove_dir_all(&directory).expect("it is there");
            if replaced {
                std::fs::create_dir(&directory).expect("there is none");
            }
            writer.try_again();
            assert!(directory.join("lock").exists() && !fails(&writer), "{replaced}");
            assert!(writer.store.as_ref().is_some_and(Store::is_there));
        }
        std::fs::remove_dir_all(&directory).expect("it is there");
        std::fs::write(&directory, "no folder").expect("there is none");
        writer.try_again();
        assert!(fails(&writer));
    }

    #[test]
    fn a_store_is_opened_anew_for_other_bounds_only() {
        let plan = StoreSettings { directory: "/nowhere".into(), options: Options::default() };
        assert!(plan.is_same(&plan.clone()));
        let others = [
            Options { max_age: Duration::from_secs(60), ..Options::default() },
            Options { max_bytes: 1 << 20, ..Options::default() },
            Options { dictionary_bytes: 1 << 20, ..Options::default() },
        ];
        for options in others {
            assert!(!plan.is_same(&StoreSettings { options, ..plan.clone() }), "{options:?}");
        }
        assert!(!plan.is_same(&StoreSettings { directory: "/elsewhere".into(), ..plan.clone() }));
    }
}
