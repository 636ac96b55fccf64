//! Answers questions: from merges over time where they know, from the profiles themselves where
//! they do not.
//!
//! Needs no lock: segments only grow, and are replaced by name. A segment that disappears while a
//! question is answered was dropped by retention, and is not in the answer.
//!
//! Invariant: the answer is the same whether merges were there or not. Damage costs the records
//! it is in and what depends on them, and is counted.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use strata_profile::difference::Difference;
use strata_profile::{Profile, ProfileBuilder};

use crate::body::{self, Body};
use crate::directory::{self, Part};
use crate::error::{Damage, StoreError};
use crate::segment::{Entry, Segment, read_record};
use crate::selection::{Range, Selection, cover};
use crate::series::{Pair, Series};
use crate::tables::{Replay, Tables};

/// What a question was answered with.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// All of the selection, merged.
    pub profile: Profile,
    /// How many profiles it was merged from.
    pub profiles: u64,
    /// What was read for it.
    pub records_read: u64,
    pub bytes_read: u64,
    /// Records that could not be read.
    pub damaged: u64,
}

/// Two answers and what differs.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    pub before: Answer,
    pub after: Answer,
    pub difference: Difference,
}

/// Profiles that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub service: String,
    pub kind: String,
    pub labels: Vec<(String, String)>,
    pub first_nanos: i64,
    pub last_nanos: i64,
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

    /// Which services, kinds and labels there are, and from when to when.
    pub fn holdings(&self, selection: &Selection) -> Result<Vec<Holding>, StoreError> {
        type Key = (String, String, Vec<Pair>);
        let range = selection.range();
        let mut found: BTreeMap<Key, (i64, i64)> = BTreeMap::new();
        let mut damaged = 0;
        for number in directory::segments(&self.directory)? {
            let merged = self.open(number, Part::Merged, &mut damaged)?;
            let has_merged = merged.is_some();
            let Some(segment) = (match merged {
                Some(merged) => Some(merged),
                None => self.open(number, Part::Profiles, &mut damaged)?,
            }) else {
                continue;
            };
            for entry in &segment.entries {
                let Some(series) = segment.series_of(entry) else { continue };
                let is_within = if has_merged {
                    entry.start < range.to && entry.end > range.from
                } else {
                    range.has(entry.start)
                };
                if !is_within || !selection.fits(series) {
                    continue;
                }
                let key = (series.service.clone(), series.kind.clone(), series.labels.clone());
                let times = found.entry(key).or_insert((entry.start, entry.end));
                *times = (times.0.min(entry.start), times.1.max(entry.end));
            }
        }
        let holding = |((service, kind, labels), (first_nanos, last_nanos))| Holding {
            service,
            kind,
            labels,
            first_nanos,
            last_nanos,
        };
        Ok(found.into_iter().map(holding).collect())
    }

    /// Everything that fits, merged into one profile.
    pub fn query(&self, selection: &Selection) -> Result<Answer, StoreError> {
        let (mut plan, mut damaged) = (Vec::new(), 0);
        for number in directory::segments(&self.directory)? {
            plan.push(self.plan(number, selection, &mut damaged)?);
        }
        let mut merge = Merge::new(&plan, selection);
        merge.answer.damaged = damaged;
        for sources in plan {
            for source in sources {
                let read = match read_source(&source, &mut merge.answer) {
                    Err(error) if error.is_gone() => continue,
                    other => other?,
                };
                // Merges that are damaged are not needed: what they were made of is there.
                if let (true, Some(number)) = (read.damaged > 0, source.replaced_by) {
                    merge.answer.damaged = merge.answer.damaged.saturating_add(read.damaged);
                    let damaged = &mut merge.answer.damaged;
                    let service = &source.service;
                    for source in self.plan_unmerged(number, service, selection, damaged)? {
                        match read_source(&source, &mut merge.answer) {
                            Err(error) if error.is_gone() => {}
                            other => merge.add(&source, other?),
                        }
                    }
                    continue;
                }
                merge.add(&source, read);
            }
        }
        Ok(merge.finish())
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

    fn open(
        &self,
        number: u64,
        part: Part,
        damaged: &mut u64,
    ) -> Result<Option<Segment>, StoreError> {
        for path in directory::candidates(&self.directory, number, part) {
            match Segment::open(&path) {
                Ok(segment) => return Ok(Some(segment)),
                Err(error) if error.is_gone() => {}
                // A file that does not even begin as one has nothing to say.
                Err(StoreError::Damaged { .. }) => {
                    *damaged = damaged.saturating_add(1);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn plan(
        &self,
        number: u64,
        selection: &Selection,
        damaged: &mut u64,
    ) -> Result<Vec<Source>, StoreError> {
        let range = selection.range();
        let merged = if selection.can_use_merges() {
            self.open(number, Part::Merged, damaged)?
        } else {
            None
        };
        let parts = if merged.is_some() { cover(range) } else { vec![(0, range)] };
        let mut sources = Vec::new();
        if let Some(merged) = merged {
            sources = sources_of(merged, selection, &parts, Some(number));
        }
        let edges: Vec<_> = parts.into_iter().filter(|(step, _)| *step == 0).collect();
        if !edges.is_empty()
            && let Some(segment) = self.open(number, Part::Profiles, damaged)?
        {
            sources.append(&mut sources_of(segment, selection, &edges, None));
        }
        Ok(sources)
    }

    /// The profiles of one service that its merges would have stood for.
    fn plan_unmerged(
        &self,
        number: u64,
        service: &str,
        selection: &Selection,
        damaged: &mut u64,
    ) -> Result<Vec<Source>, StoreError> {
        let merged = cover(selection.range()).into_iter().filter(|(step, _)| *step != 0);
        let parts: Vec<_> = merged.map(|(_, range)| (0, range)).collect();
        let opened = self.open(number, Part::Profiles, damaged)?;
        let Some(segment) = opened else { return Ok(Vec::new()) };
        let mut sources = sources_of(segment, selection, &parts, None);
        sources.retain(|source| source.service == service);
        Ok(sources)
    }
}

/// The records of one service in one file, up to the last that is wanted.
pub(crate) struct Source {
    path: PathBuf,
    pub(crate) service: String,
    /// With whether its samples are wanted; without, it is read for its dictionary.
    entries: Vec<(Entry, bool)>,
    series: Vec<(u32, Series)>,
    /// The segment whose profiles say the same.
    replaced_by: Option<u64>,
}

impl Source {
    pub(crate) fn series_of(&self, entry: &Entry) -> Option<&Series> {
        self.series.iter().find(|(number, _)| *number == entry.series).map(|(_, series)| series)
    }
}

/// What of a file is needed. `parts` are steps and ranges of starts.
pub(crate) fn sources_of(
    segment: Segment,
    selection: &Selection,
    parts: &[(u32, Range)],
    replaced_by: Option<u64>,
) -> Vec<Source> {
    let fits: Vec<bool> = segment.series.iter().map(|series| selection.fits(series)).collect();
    // With how many of the entries there are up to the last that is wanted.
    type Entries = (Vec<(Entry, bool)>, usize);
    let mut services: BTreeMap<&str, Entries> = BTreeMap::new();
    for entry in &segment.entries {
        let Some(series) = segment.series_of(entry) else { continue };
        let is_wanted = fits.get(entry.series as usize).copied().unwrap_or(false)
            && parts.iter().any(|(step, range)| *step == entry.step && range.has(entry.start));
        let (entries, wanted) = services.entry(&series.service).or_default();
        entries.push((*entry, is_wanted));
        if is_wanted {
            *wanted = entries.len();
        }
    }
    let mut sources = Vec::new();
    for (service, (mut entries, wanted)) in services {
        if wanted == 0 {
            continue;
        }
        entries.truncate(wanted);
        let of_service = |(number, series): (u32, &Series)| {
            (series.service == service).then(|| (number, series.clone()))
        };
        sources.push(Source {
            path: segment.path.clone(),
            service: service.to_owned(),
            entries,
            series: (0..).zip(&segment.series).filter_map(of_service).collect(),
            replaced_by,
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
    let file = directory::open_moved(&source.path)?;
    let mut read = Read { tables: Tables::new(), bodies: Vec::new(), damaged: 0 };
    for (at, (entry, is_wanted)) in source.entries.iter().enumerate() {
        answer.records_read = answer.records_read.saturating_add(1);
        answer.bytes_read = answer.bytes_read.saturating_add(u64::from(entry.length));
        match read_one(&file, entry, *is_wanted, &mut read.tables) {
            Ok(Ok(Some(body))) => read.bodies.push((*entry, body)),
            Ok(Ok(None)) => {}
            Ok(Err(_)) => {
                // What follows may refer to what this one would have added.
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

/// An answer in the making.
struct Merge<'s> {
    selection: &'s Selection,
    builder: ProfileBuilder,
    sample_types: Vec<Pair>,
    answer: Answer,
    times: Option<(i64, i64)>,
    /// What times in the timeline count from.
    origin: i64,
}

impl<'s> Merge<'s> {
    fn new(plan: &[Vec<Source>], selection: &'s Selection) -> Self {
        let mut sample_types: Vec<Pair> = Vec::new();
        let mut first: Option<&Series> = None;
        let mut origin = i64::MAX;
        for source in plan.iter().flatten() {
            for (_, series) in source.series.iter().filter(|(_, series)| selection.fits(series)) {
                first.get_or_insert(series);
                for pair in &series.sample_types {
                    if !sample_types.contains(pair) {
                        sample_types.push(pair.clone());
                    }
                }
            }
            let starts = source.entries.iter().filter(|(_, is_wanted)| *is_wanted);
            origin = starts.map(|(entry, _)| entry.start).fold(origin, i64::min);
        }
        let borrowed: Vec<_> =
            sample_types.iter().map(|(name, unit)| (name.as_str(), unit.as_str())).collect();
        let mut builder = ProfileBuilder::new(&borrowed);
        if let Some(series) = first {
            let (name, unit) = &series.period_type;
            builder.set_period(name, unit, series.period);
            builder.set_default_sample_type(&series.default_sample_type);
        }
        if selection.timeline {
            builder.keep_timeline();
        }
        Self { selection, builder, sample_types, answer: Answer::default(), times: None, origin }
    }

    fn add(&mut self, source: &Source, read: Read) {
        self.answer.damaged = self.answer.damaged.saturating_add(read.damaged);
        let mut replay = Replay::new(self.selection.detail);
        for (entry, body) in &read.bodies {
            let runtime_id = read.tables.string(body.runtime_id);
            if self.selection.runtime_id.as_ref().is_some_and(|wanted| wanted != runtime_id) {
                continue;
            }
            let Some(series) = source.series_of(entry) else { continue };
            let place = |pair| self.sample_types.iter().position(|known| known == pair);
            let columns: Vec<_> = series.sample_types.iter().filter_map(place).collect();
            if columns.len() != body.width {
                self.answer.damaged = self.answer.damaged.saturating_add(1);
                continue;
            }
            let shift = entry.start.saturating_sub(self.origin);
            let shift = u64::try_from(shift).unwrap_or(0);
            let added =
                replay.samples(&read.tables, &mut self.builder, body, &columns).and_then(|()| {
                    match self.selection.timeline {
                        true => replay.ticks(&read.tables, &mut self.builder, body, shift),
                        false => Ok(()),
                    }
                });
            if added.is_err() {
                self.answer.damaged = self.answer.damaged.saturating_add(1);
                continue;
            }
            let host = read.tables.string(body.host);
            if !host.is_empty() {
                self.builder.set_host(host);
            }
            self.answer.profiles = self.answer.profiles.saturating_add(body.profiles);
            let times = self.times.get_or_insert((entry.start, entry.end));
            *times = (times.0.min(entry.start), times.1.max(entry.end));
            self.builder.count_overflows(body.overflows);
        }
    }

    fn finish(mut self) -> Answer {
        if let Some((start, end)) = self.times {
            self.builder.set_start(start);
            self.builder.set_duration(end.saturating_sub(start));
        }
        self.answer.profile = self.builder.finish();
        self.answer
    }
}
