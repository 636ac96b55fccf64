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

use hashbrown::HashMap;
use strata_profile::difference::Difference;
use strata_profile::{Profile, ProfileBuilder};

use crate::body::{self, Body};
use crate::directory::{self, Part};
use crate::error::{Damage, StoreError};
use crate::rollup;
use crate::segment::{Entry, Member, Segment, read_record};
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
    /// When the first of them began and the last ended.
    pub first_nanos: i64,
    pub last_nanos: i64,
    pub profiles: u64,
    /// What they take, without merges over time.
    pub bytes: u64,
}

/// What one segment has of a series.
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

    /// Which services, kinds and labels there are, from when to when, and how much of it.
    pub fn holdings(&self, selection: &Selection) -> Result<Vec<Holding>, StoreError> {
        type Key = (String, String, Vec<Pair>);
        let range = selection.range();
        let mut found: BTreeMap<Key, Holding> = BTreeMap::new();
        let mut damaged = 0;
        for number in directory::numbers(&self.directory)?.0 {
            let Some(segment) = self.open(number, Part::Profiles, &mut damaged)? else { continue };
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

    /// Everything that fits, merged into one profile.
    pub fn query(&self, selection: &Selection) -> Result<Answer, StoreError> {
        let (segments, rollups) = directory::numbers(&self.directory)?;
        let mut damaged = 0;
        let rollups = if selection.can_use_merges() {
            Rollups::open(self, &segments, rollups, &mut damaged)?
        } else {
            Rollups::default()
        };
        let mut plan = rollups.sources(selection);
        for number in segments {
            let member = rollups.member(number);
            plan.append(&mut self.plan(number, member, selection, &mut damaged)?);
        }
        // What one service shares is then met while it is still in the processor's caches.
        plan.sort_by(|one, other| one.service.cmp(&other.service));
        let mut merge = Merge::new(&plan, selection);
        merge.answer.damaged = damaged;
        let mut waiting: Vec<Source> = plan.into_iter().rev().collect();
        while let Some(source) = waiting.pop() {
            let read = match read_source(&source, &mut merge.answer) {
                Err(error) if error.is_gone() => continue,
                other => other?,
            };
            // Merges that are damaged are not needed: what they were made of is there.
            if read.damaged > 0 && !source.replaced_by.is_empty() {
                merge.answer.damaged = merge.answer.damaged.saturating_add(read.damaged);
                for replacement in &source.replaced_by {
                    let damaged = &mut merge.answer.damaged;
                    let mut instead =
                        self.plan_instead(replacement, &source, selection, damaged)?;
                    waiting.append(&mut instead);
                }
                continue;
            }
            merge.add(&source, read);
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

    pub(crate) fn open(
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

    /// What of a segment is to be read. A member of a roll-up has its whole hours there.
    fn plan(
        &self,
        number: u64,
        member: Option<Member>,
        selection: &Selection,
        damaged: &mut u64,
    ) -> Result<Vec<Source>, StoreError> {
        let range = selection.range();
        if !selection.can_use_merges() {
            return self.plan_profiles(number, selection, &[(0, range)], damaged);
        }
        let mut parts = cover(range);
        if let Some(member) = member {
            // The times are known, so files that have nothing of it are not even opened.
            parts.retain(|(step, range)| *step != rollup::STEP && range.overlaps(member));
        }
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        self.plan_merged(number, selection, &parts, damaged)
    }

    /// From the merges over time where they are whole steps.
    fn plan_merged(
        &self,
        number: u64,
        selection: &Selection,
        parts: &[(u32, Range)],
        damaged: &mut u64,
    ) -> Result<Vec<Source>, StoreError> {
        let is_edge = |(step, _): &&(u32, Range)| *step == 0;
        let mut edges: Vec<_> = parts.iter().filter(is_edge).copied().collect();
        let mut sources = Vec::new();
        if edges.len() < parts.len() {
            match self.open(number, Part::Merged, damaged)? {
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
            sources.append(&mut self.plan_profiles(number, selection, &edges, damaged)?);
        }
        Ok(sources)
    }

    fn plan_profiles(
        &self,
        number: u64,
        selection: &Selection,
        parts: &[(u32, Range)],
        damaged: &mut u64,
    ) -> Result<Vec<Source>, StoreError> {
        let opened = self.open(number, Part::Profiles, damaged)?;
        Ok(opened.map_or_else(Vec::new, |segment| sources_of(segment, selection, parts, &[])))
    }

    /// What says the same as a source that is damaged.
    fn plan_instead(
        &self,
        replacement: &Replacement,
        source: &Source,
        selection: &Selection,
        damaged: &mut u64,
    ) -> Result<Vec<Source>, StoreError> {
        let step = if replacement.merged { rollup::STEP } else { 0 };
        let parts: Vec<_> = replacement.ranges.iter().map(|range| (step, *range)).collect();
        let mut sources = self.plan_merged(replacement.number, selection, &parts, damaged)?;
        sources.retain(|other| other.service == source.service);
        Ok(sources)
    }
}

/// The roll-ups of a store, and whom each stands for.
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
        damaged: &mut u64,
    ) -> Result<Self, StoreError> {
        let mut rollups = Self::default();
        for number in numbers {
            let Some(file) = reader.open(number, Part::Rollup, damaged)? else { continue };
            // Segments that retention has dropped are not spoken for, nor is one twice.
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

    fn sources(&self, selection: &Selection) -> Vec<Source> {
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
            sources.append(&mut sources_where(file, selection, &parts, wanted, &instead));
        }
        sources
    }
}

/// Where else something can be read.
#[derive(Clone, Debug)]
pub(crate) struct Replacement {
    number: u64,
    ranges: Vec<Range>,
    /// From the merges of that segment, else from its profiles.
    merged: bool,
}

/// The records of one service in one file, up to the last that is wanted.
pub(crate) struct Source {
    path: PathBuf,
    pub(crate) service: String,
    /// With whether its samples are wanted; without, it is read for its dictionary.
    entries: Vec<(Entry, bool)>,
    series: Vec<(u32, Series)>,
    /// What says the same, if this is damaged.
    replaced_by: Vec<Replacement>,
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
    // A service of which nothing fits is not gone through entry by entry.
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
    /// Whose records came last.
    service: String,
    times: Option<(i64, i64)>,
    /// What times in the timeline count from.
    origin: i64,
}

impl<'s> Merge<'s> {
    fn new(plan: &[Source], selection: &'s Selection) -> Self {
        let mut sample_types: Vec<Pair> = Vec::new();
        let mut first: Option<&Series> = None;
        let mut origin = i64::MAX;
        for source in plan {
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
        Self {
            selection,
            builder,
            sample_types,
            answer: Answer::default(),
            service: String::new(),
            times: None,
            origin,
        }
    }

    fn add(&mut self, source: &Source, read: Read) {
        self.answer.damaged = self.answer.damaged.saturating_add(read.damaged);
        if self.service != source.service {
            // Services share few stacks, and samples of two are better told apart than looked up.
            self.builder.begin_part();
            self.service.clone_from(&source.service);
        }
        let mut replay = Replay::new(self.selection.detail, self.selection.pid);
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
