//! Answers queries: from merges over time where they suffice, from the profiles themselves
//! elsewhere. `sources` chooses what to read for a query, `answering` reads and merges it.
//!
//! Needs no lock: segments only grow, and roll-ups are replaced by name. Files to be read are held
//! open. When a file that was found is gone before that, or another one has its name, the query is
//! repeated on the files present then, a few times at most. After that, a missing file was dropped
//! by retention and is left out, and a replaced roll-up is read from its segments.
//!
//! Invariant: the answer is the same whether merges were there or not. Damage loses only the
//! damaged records and those that depend on them, and is counted.

mod answering;
mod sources;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use strata_profile::Profile;
use strata_profile::difference::Difference;

use crate::directory::{self, Part};
use crate::error::StoreError;
use crate::segment::Entry;
use crate::selection::Selection;
use crate::series::Pair;

use answering::Threads;
use sources::Troubles;

pub(crate) use sources::{Read, Source, read_source, sources_of};

/// The result of a query.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// All of the selection, merged.
    pub profile: Profile,
    /// How many profiles it was merged from.
    pub profiles: u64,
    /// The sources read for it.
    pub records_read: u64,
    pub bytes_read: u64,
    /// Records that could not be read; what they held is not in the profile.
    pub damaged: u64,
    /// Merges and roll-ups, or records of them, that could not be read: what they were made of was
    /// read instead.
    pub replaced: u64,
}

/// Two results and their difference.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    pub before: Answer,
    pub after: Answer,
    pub difference: Difference,
}

/// The number of profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub service: String,
    pub kind: String,
    pub labels: Vec<(String, String)>,
    /// When the first of them began and the last ended.
    pub first_nanos: i64,
    pub last_nanos: i64,
    pub profiles: u64,
    /// Their size, without merges over time.
    pub bytes: u64,
}

/// The part of a series in one segment.
#[derive(Clone, Copy)]
struct Totals {
    first: i64,
    last: i64,
    profiles: u64,
    bytes: u64,
}

impl Totals {
    fn at(entry: &Entry) -> Self {
        Self { first: entry.start, last: entry.end, profiles: 0, bytes: 0 }
    }

    fn add(&mut self, entry: &Entry) {
        self.first = self.first.min(entry.start);
        self.last = self.last.max(entry.end);
        self.profiles = self.profiles.saturating_add(1);
        self.bytes = self.bytes.saturating_add(u64::from(entry.length));
    }

    fn holding(self, (service, kind, labels): &(String, String, Vec<Pair>)) -> Holding {
        Holding {
            service: service.clone(),
            kind: kind.clone(),
            labels: labels.clone(),
            first_nanos: self.first,
            last_nanos: self.last,
            profiles: self.profiles,
            bytes: self.bytes,
        }
    }

    fn add_to(self, holding: &mut Holding) {
        holding.first_nanos = holding.first_nanos.min(self.first);
        holding.last_nanos = holding.last_nanos.max(self.last);
        holding.profiles = holding.profiles.saturating_add(self.profiles);
        holding.bytes = holding.bytes.saturating_add(self.bytes);
    }
}

/// Reads a store, also while another process writes it.
#[derive(Clone, Debug)]
pub struct Reader {
    directory: PathBuf,
}

impl Reader {
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Lists the services, kinds and labels in the store, with their time ranges and sizes.
    pub fn holdings(&self, selection: &Selection) -> Result<Vec<Holding>, StoreError> {
        type Key = (String, String, Vec<Pair>);
        let range = selection.range();
        let mut found: BTreeMap<Key, Holding> = BTreeMap::new();
        let mut troubles = Troubles::default();
        for number in directory::numbers(&self.directory)?.0 {
            let Some(segment) = self.open(number, Part::Profiles, &mut troubles)? else { continue };
            let fits: Vec<_> = segment.series.iter().map(|series| selection.fits(series)).collect();
            let mut totals: Vec<Option<Totals>> = vec![None; fits.len()];
            for entry in &segment.entries {
                let series = entry.series as usize;
                if range.has(entry.start)
                    && fits.get(series) == Some(&true)
                    && let Some(totals) = totals.get_mut(series)
                {
                    totals.get_or_insert(Totals::at(entry)).add(entry);
                }
            }
            for (series, totals) in segment.series.into_iter().zip(totals) {
                let Some(totals) = totals else { continue };
                let key = (series.service, series.kind, series.labels);
                match found.get_mut(&key) {
                    Some(holding) => totals.add_to(holding),
                    None => {
                        let holding = totals.holding(&key);
                        found.insert(key, holding);
                    }
                }
            }
        }
        Ok(found.into_values().collect())
    }

    /// All matching profiles, merged into one.
    pub fn query(&self, selection: &Selection) -> Result<Answer, StoreError> {
        answering::answer(self, selection, Threads::of_this_host())
    }

    /// Compares two selections: windows, services, versions.
    pub fn diff(
        &self,
        before: &Selection,
        after: &Selection,
        sample_type: &str,
    ) -> Result<Comparison, StoreError> {
        let before = self.query(before)?;
        let after = self.query(after)?;
        let difference = Difference::between(&before.profile, &after.profile, sample_type);
        Ok(Comparison { before, after, difference })
    }
}
