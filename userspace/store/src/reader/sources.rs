//! Chooses the sources to read for a query, by file, and the replacement for a damaged one.
//!
//! Invariant: a profile that is asked for is in exactly one source, and so is its replacement.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use hashbrown::HashMap;

use super::{Answer, Reader};
use crate::body::{self, Body};
use crate::directory::{self, Identity, Part};
use crate::error::{Damage, StoreError};
use crate::rollup;
use crate::segment::{Entry, Member, Segment, read_record};
use crate::selection::{Range, Selection, cover};
use crate::series::Series;
use crate::tables::Tables;

/// The most files that a query holds open: a process may have a thousand.
const MOST_HELD: usize = 256;
/// The most roll-ups open while they are examined: the newest, because the last one is replaced by
/// a larger one.
const MOST_ROLLUPS_HELD: usize = 64;

/// Problems met while choosing the sources.
#[derive(Default)]
pub(super) struct Troubles {
    /// Damaged files and records.
    pub(super) damaged: u64,
    /// Those of them that only repeat what other files have.
    pub(super) replaced: u64,
    /// Whether a segment that was listed is not there any more.
    pub(super) is_gone: bool,
    /// Files that are held open.
    held: usize,
}

impl Troubles {
    /// Closes the files of `sources`, which are of two files at most, if too many are open.
    fn hold(&mut self, mut sources: Vec<Source>) -> Vec<Source> {
        if self.held >= MOST_HELD {
            sources.iter_mut().for_each(|source| source.file = None);
        } else if sources.iter().any(|source| source.file.is_some()) {
            self.held = self.held.saturating_add(2);
        }
        sources
    }
}

impl Reader {
    /// All sources of a query, in no order.
    pub(super) fn sources(
        &self,
        selection: &Selection,
        troubles: &mut Troubles,
    ) -> Result<Vec<Source>, StoreError> {
        let (segments, rollups) = directory::numbers(&self.directory)?;
        let rollups = if selection.can_use_merges() {
            Rollups::open(self, &segments, rollups, troubles)?
        } else {
            Rollups::default()
        };
        let mut sources = rollups.sources(selection, troubles);
        for number in segments {
            let member = rollups.member(number);
            let planned = self.plan(number, member, selection, troubles)?;
            sources.append(&mut troubles.hold(planned));
        }
        Ok(sources)
    }

    pub(super) fn open(
        &self,
        number: u64,
        part: Part,
        troubles: &mut Troubles,
    ) -> Result<Option<Segment>, StoreError> {
        for path in directory::candidates(&self.directory, number, part) {
            match Segment::open(&path) {
                Ok(segment) => return Ok(Some(segment)),
                Err(error) if error.is_gone() => {}
                // A file without a valid start is not a segment, or of another version.
                Err(StoreError::Damaged { .. } | StoreError::OtherVersion { .. }) => {
                    let count = match part {
                        Part::Profiles => &mut troubles.damaged,
                        Part::Merged | Part::Rollup => &mut troubles.replaced,
                    };
                    *count = count.saturating_add(1);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        // Merges may not have been made yet, and a roll-up's segments are present without it.
        troubles.is_gone |= part == Part::Profiles;
        Ok(None)
    }

    /// The parts of a segment to read. A member of a roll-up has its whole hours there.
    fn plan(
        &self,
        number: u64,
        member: Option<Member>,
        selection: &Selection,
        troubles: &mut Troubles,
    ) -> Result<Vec<Source>, StoreError> {
        let range = selection.range();
        if !selection.can_use_merges() {
            return self.plan_profiles(number, selection, &[(0, range)], troubles);
        }
        let mut parts = cover(range);
        if let Some(member) = member {
            // The times are known, so files without a match are not opened.
            parts.retain(|(step, range)| *step != rollup::STEP && range.overlaps(member));
        }
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        self.plan_merged(number, selection, &parts, troubles)
    }

    /// From the merges over time where they are whole steps.
    fn plan_merged(
        &self,
        number: u64,
        selection: &Selection,
        parts: &[(u32, Range)],
        troubles: &mut Troubles,
    ) -> Result<Vec<Source>, StoreError> {
        let is_edge = |(step, _): &&(u32, Range)| *step == 0;
        let mut edges: Vec<_> = parts.iter().filter(is_edge).copied().collect();
        let mut sources = Vec::new();
        if edges.len() < parts.len() {
            match self.open(number, Part::Merged, troubles)? {
                Some(merged) => {
                    let steps: Vec<_> = parts.iter().filter(|part| !is_edge(part)).collect();
                    let ranges = steps.iter().map(|(_, range)| *range).collect();
                    let instead = vec![Replacement { number, ranges, merged: false }];
                    sources = sources_of(merged, selection, parts, &instead);
                }
                None => edges = parts.iter().map(|(_, range)| (0, *range)).collect(),
            }
        }
        if !edges.is_empty() {
            sources.append(&mut self.plan_profiles(number, selection, &edges, troubles)?);
        }
        Ok(sources)
    }

    fn plan_profiles(
        &self,
        number: u64,
        selection: &Selection,
        parts: &[(u32, Range)],
        troubles: &mut Troubles,
    ) -> Result<Vec<Source>, StoreError> {
        let opened = self.open(number, Part::Profiles, troubles)?;
        Ok(opened.map_or_else(Vec::new, |segment| sources_of(segment, selection, parts, &[])))
    }

    /// A replacement for a source that is damaged or gone, with the same data.
    pub(super) fn instead(
        &self,
        replacement: &Replacement,
        source: &Source,
        selection: &Selection,
        troubles: &mut Troubles,
    ) -> Result<Vec<Source>, StoreError> {
        let step = if replacement.merged { rollup::STEP } else { 0 };
        let parts: Vec<_> = replacement.ranges.iter().map(|range| (step, *range)).collect();
        let mut sources = self.plan_merged(replacement.number, selection, &parts, troubles)?;
        sources.retain(|other| other.service == source.service);
        // A roll-up may stand for many files.
        sources.iter_mut().for_each(|source| source.file = None);
        Ok(sources)
    }
}

/// The roll-ups of a store, and the segments that each replaces.
#[derive(Default)]
struct Rollups {
    files: Vec<(Segment, Vec<bool>)>,
    members: HashMap<u64, Member>,
}

impl Rollups {
    fn open(
        reader: &Reader,
        segments: &[u64],
        numbers: Vec<u64>,
        troubles: &mut Troubles,
    ) -> Result<Self, StoreError> {
        let mut rollups = Self::default();
        let first_held = numbers.len().saturating_sub(MOST_ROLLUPS_HELD);
        for (at, number) in numbers.into_iter().enumerate() {
            let Some(mut file) = reader.open(number, Part::Rollup, troubles)? else { continue };
            if at < first_held {
                file.file = None;
            }
            // Segments that retention has dropped are not counted as replaced, and none is replaced
            // twice.
            let speaks = |member: &Member| {
                segments.binary_search(&member.number).is_ok()
                    && rollups.members.insert(member.number, *member).is_none()
            };
            let spoken_for = file.members.iter().map(speaks).collect();
            rollups.files.push((file, spoken_for));
        }
        Ok(rollups)
    }

    fn member(&self, number: u64) -> Option<Member> {
        self.members.get(&number).copied()
    }

    fn sources(&self, selection: &Selection, troubles: &mut Troubles) -> Vec<Source> {
        let parts: Vec<_> = cover(selection.range())
            .into_iter()
            .filter(|(step, _)| *step == rollup::STEP)
            .collect();
        let ranges: Vec<_> = parts.iter().map(|(_, range)| *range).collect();
        let mut sources = Vec::new();
        for (file, spoken_for) in &self.files {
            let instead: Vec<_> = file
                .members
                .iter()
                .zip(spoken_for)
                .filter(|(member, speaks)| {
                    **speaks && ranges.iter().any(|range| range.overlaps(**member))
                })
                .map(|(member, _)| Replacement {
                    number: member.number,
                    ranges: ranges.clone(),
                    merged: true,
                })
                .collect();
            if instead.is_empty() {
                continue;
            }
            let wanted = |entry: &Entry| spoken_for.get(usize::from(entry.member)) == Some(&true);
            let planned = sources_where(file, selection, &parts, wanted, &instead);
            sources.append(&mut troubles.hold(planned));
        }
        sources
    }
}

/// The alternative source.
#[derive(Clone, Debug)]
pub(crate) struct Replacement {
    number: u64,
    ranges: Vec<Range>,
    /// From the merges of that segment, else from its profiles.
    merged: bool,
}

/// The records of one service in one file, up to the last that is wanted.
pub(crate) struct Source {
    pub(super) path: PathBuf,
    /// Held open, so that it stays as it was found. Of many files only some are.
    pub(super) file: Option<Arc<File>>,
    pub(super) identity: Identity,
    pub(crate) service: String,
    /// With whether its samples are wanted; without, it is read for its dictionary.
    pub(super) entries: Vec<(Entry, bool)>,
    pub(super) series: Vec<(u32, Series)>,
    /// The replacement with the same data, if this is damaged or gone.
    pub(super) replaced_by: Vec<Replacement>,
}

impl Source {
    /// Of all its records in the file.
    pub(super) fn bytes(&self) -> u64 {
        let lengths = self.entries.iter().map(|(entry, _)| u64::from(entry.length));
        lengths.fold(0, u64::saturating_add)
    }

    pub(crate) fn series_of(&self, entry: &Entry) -> Option<&Series> {
        self.series.iter().find(|(number, _)| *number == entry.series).map(|(_, series)| series)
    }
}

/// The records needed of a file. `parts` are steps and ranges of starts.
pub(crate) fn sources_of(
    segment: Segment,
    selection: &Selection,
    parts: &[(u32, Range)],
    replaced_by: &[Replacement],
) -> Vec<Source> {
    sources_where(&segment, selection, parts, |_| true, replaced_by)
}

fn sources_where(
    segment: &Segment,
    selection: &Selection,
    parts: &[(u32, Range)],
    wanted: impl Fn(&Entry) -> bool,
    replaced_by: &[Replacement],
) -> Vec<Source> {
    let fits: Vec<bool> = segment.series.iter().map(|series| selection.fits(series)).collect();
    // The entries of each service, and how many there are up to the last that is wanted.
    type Entries = (Vec<(Entry, bool)>, usize);
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut services: Vec<(&str, Entries)> = Vec::new();
    let mut of_series = Vec::with_capacity(segment.series.len());
    for series in &segment.series {
        let next = services.len();
        let number = *numbers.entry(&series.service).or_insert(next);
        if number == next {
            services.push((&series.service, Entries::default()));
        }
        of_series.push(number);
    }
    // A service without a match is skipped as a whole.
    let mut is_asked = vec![false; services.len()];
    for (&number, &fits) in of_series.iter().zip(&fits) {
        if let Some(is_asked) = is_asked.get_mut(number).filter(|_| fits) {
            *is_asked = true;
        }
    }
    for entry in &segment.entries {
        let series = entry.series as usize;
        let Some(&number) = of_series.get(series) else { continue };
        if is_asked.get(number) != Some(&true) {
            continue;
        }
        let Some((_, (entries, last))) = services.get_mut(number) else { continue };
        let is_wanted = fits.get(series) == Some(&true)
            && parts.iter().any(|(step, range)| *step == entry.step && range.has(entry.start))
            && wanted(entry);
        entries.push((*entry, is_wanted));
        if is_wanted {
            *last = entries.len();
        }
    }
    services.sort_unstable_by_key(|(service, _)| *service);
    let mut sources = Vec::new();
    for (service, (mut entries, last)) in services {
        if last == 0 {
            continue;
        }
        entries.truncate(last);
        let of_service = |(number, series): (u32, &Series)| {
            (series.service == service).then(|| (number, series.clone()))
        };
        sources.push(Source {
            path: segment.path.clone(),
            file: segment.file.clone(),
            identity: segment.identity,
            service: service.to_owned(),
            entries,
            series: (0..).zip(&segment.series).filter_map(of_service).collect(),
            replaced_by: replaced_by.to_vec(),
        });
    }
    sources
}

/// One service's records of one file, read.
pub(crate) struct Read {
    pub(crate) tables: Tables,
    pub(crate) bodies: Vec<(Entry, Body)>,
    pub(crate) damaged: u64,
}

pub(crate) fn read_source(source: &Source, answer: &mut Answer) -> Result<Read, StoreError> {
    let file = match &source.file {
        Some(held) => Arc::clone(held),
        None => Arc::new(directory::open_again(&source.path, source.identity)?),
    };
    let mut read = Read { tables: Tables::new(), bodies: Vec::new(), damaged: 0 };
    for (at, (entry, is_wanted)) in source.entries.iter().enumerate() {
        answer.records_read = answer.records_read.saturating_add(1);
        answer.bytes_read = answer.bytes_read.saturating_add(u64::from(entry.length));
        match read_one(&file, entry, *is_wanted, &mut read.tables) {
            Ok(Ok(Some(body))) => read.bodies.push((*entry, body)),
            Ok(Ok(None)) => {}
            Ok(Err(_)) => {
                // Later records may refer to entries that this one would have added.
                let lost = source.entries.iter().skip(at).filter(|(_, is_wanted)| *is_wanted);
                read.damaged = lost.count() as u64;
                break;
            }
            Err(error) => return Err(StoreError::io("read", &source.path)(error)),
        }
    }
    Ok(read)
}

fn read_one(
    file: &File,
    entry: &Entry,
    is_wanted: bool,
    tables: &mut Tables,
) -> std::io::Result<Result<Option<Body>, Damage>> {
    let payload = read_record(file, entry)?;
    Ok(payload.and_then(|payload| {
        let (added, samples) = body::parts(&payload)?;
        tables.add(added)?;
        if is_wanted { Body::read(samples).map(Some) } else { Ok(None) }
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strata_profile::{ProfileBuilder, StackId};

    use super::{MOST_ROLLUPS_HELD, Rollups, Troubles};
    use crate::{Head, Options, Selection, Store, directory};

    #[test]
    fn of_many_roll_ups_only_some_are_held_open_and_all_are_asked() {
        const DAYS: i64 = MOST_ROLLUPS_HELD as i64 + 6;
        const DAY: i64 = 24 * 3_600 * 1_000_000_000;
        let directory = tempfile::tempdir().unwrap();
        let options = Options { max_age: Duration::from_secs(365 * 24 * 3_600), ..<_>::default() };
        let mut store = Store::open(directory.path(), options).unwrap();
        let mut builder = ProfileBuilder::new(&[("samples", "count")]);
        builder.add(StackId::default(), <_>::default(), &[1]);
        let profile = builder.finish();
        for day in 0..DAYS {
            let head = Head {
                service: "shop".to_owned(),
                kind: "cpu".to_owned(),
                labels: Vec::new(),
                runtime_id: String::new(),
                start_nanos: (day * 2 + 20_000) * DAY,
                end_nanos: (day * 2 + 20_000) * DAY + 1,
            };
            // So many that merging them is worth it.
            for _ in 0..50 {
                store.append(&head, &profile, head.start_nanos).unwrap();
            }
            store.seal().unwrap();
            store.tend(head.start_nanos).unwrap();
        }
        assert_eq!(store.counters().rollups_made, DAYS as u64);
        let reader = store.reader();
        let (segments, numbers) = directory::numbers(directory.path()).unwrap();
        assert_eq!(numbers.len(), DAYS as usize);
        let rollups = Rollups::open(&reader, &segments, numbers, &mut Troubles::default()).unwrap();
        let held = rollups.files.iter().filter(|(file, _)| file.file.is_some()).count();
        assert_eq!(held, MOST_ROLLUPS_HELD);
        let answer = reader.query(&Selection::default()).unwrap();
        assert_eq!((answer.profiles, answer.damaged), (DAYS as u64 * 50, 0));
        // Each roll-up's record was enough.
        assert_eq!(answer.records_read, DAYS as u64);
    }
}
