//! Roll-ups: the hours of a day's segments in one file, with one dictionary for each service.
//!
//! With merges over time a long query does not read the profiles, but every segment has its own
//! dictionaries, and a day of many services repeats the same names and stacks twenty-four times. A
//! roll-up holds the hours of consecutive segments, so a query over a day reads every stack about
//! once. It is rewritten whenever a segment joins it: existing data is copied byte for byte, and
//! only the new segment's hours are translated. A record names its segment, so retention can drop
//! segments one by one, without touching the file.
//!
//! Invariant: a record stands for exactly what the hour's record of its member's merges stands
//! for. One service is in memory at a time, and a roll-up whose dictionary of one has become too
//! large is joined no more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;

use strata_profile::ProfileBuilder;

use crate::body::{self, Body, Facts};
use crate::dictionary::Dictionary;
use crate::error::StoreError;
use crate::reader::{Answer, Source, read_source, sources_of};
use crate::segment::{Entry, Member, Segment, read_whole};
use crate::selection::{NANOS, Range, STEPS, Selection};
use crate::series::Series;
use crate::tables::{Detail, Replay, Tables};
use crate::writing::{Encoded, SegmentWriter};

/// The time span of a roll-up.
const SPAN_NANOS: i64 = 24 * 3_600 * NANOS;
/// Segments in one: those of a day are twenty-four, unless they were sealed early.
const MOST_MEMBERS: usize = 1_024;
/// The step whose records a roll-up has.
pub(crate) const STEP: u32 = STEPS[1];

/// Whether a segment belongs to the roll-up of `members`.
pub(crate) fn has_room_for(members: &[Member], new: Member) -> bool {
    let first = members.iter().map(|member| member.first).min().unwrap_or(new.first);
    let last = members.iter().map(|member| member.last).max().unwrap_or(new.last);
    let span = last.max(new.last).saturating_sub(first.min(new.first));
    let is_next = members.iter().all(|member| member.number < new.number);
    is_next && members.len() < MOST_MEMBERS && span < SPAN_NANOS
}

/// The files of one roll-up operation.
pub(crate) struct Paths<'p> {
    /// The roll-up as it is, if there is one, which the new one replaces.
    pub(crate) old: Option<&'p Path>,
    /// The merges of the segment that joins it.
    pub(crate) merged: &'p Path,
    /// The new roll-up, while it is written.
    pub(crate) new: &'p Path,
    pub(crate) rollup: &'p Path,
}

/// The bounds of one roll-up operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// Of the file.
    pub(crate) bytes: u64,
    /// Of memory for what the old roll-up's dictionary of one service is read into. What is made of
    /// it, to add to, takes two to three times as much.
    pub(crate) tables: usize,
}

/// Writes a roll-up of the old one's members and a new one. `None` if one of them is too large, or
/// the old one is damaged.
pub(crate) fn roll(
    paths: &Paths<'_>,
    member: Member,
    most: Most,
) -> Result<Option<u64>, StoreError> {
    let made = write(paths, member, most);
    match made {
        Ok(Some(writer)) => writer.seal(paths.rollup).map(Some),
        other => {
            if paths.new.exists() {
                std::fs::remove_file(paths.new).map_err(StoreError::io("remove", paths.new))?;
            }
            other.map(|_| None)
        }
    }
}

fn write(
    paths: &Paths<'_>,
    member: Member,
    most: Most,
) -> Result<Option<SegmentWriter>, StoreError> {
    let limit = most.bytes;
    let old = paths.old.map(Segment::open).transpose()?;
    let mut members = old.as_ref().map_or_else(Vec::new, |old| old.members.clone());
    let Ok(position) = u16::try_from(members.len()) else { return Ok(None) };
    members.push(member);
    let mut writer = SegmentWriter::create(paths.new)?;
    let mut kept: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    let mut file = None;
    if let Some(old) = &old {
        file = Some(File::open(&old.path).map_err(StoreError::io("open", &old.path))?);
        for entry in &old.entries {
            let Some(series) = old.series_of(entry) else { return Ok(None) };
            kept.entry(series.service.clone()).or_default().push(*entry);
        }
    }
    writer.begin_rollup(members, old.as_ref().map_or(&[], |old| &old.series))?;
    let always = [(STEP, Range { from: i64::MIN, to: i64::MAX })];
    let merged = Segment::open(paths.merged)?;
    let sources = sources_of(merged, &Selection::default(), &always, &[]);
    let mut added: BTreeMap<String, Source> =
        sources.into_iter().map(|source| (source.service.clone(), source)).collect();
    let services: BTreeSet<String> = kept.keys().chain(added.keys()).cloned().collect();
    for service in services {
        let (kept, added) = (kept.remove(&service).unwrap_or_default(), added.remove(&service));
        if let Some((old, file)) = old.as_ref().zip(file.as_ref()) {
            // For a service without new records nothing is translated, so its dictionary is not
            // needed.
            let tables = added.is_some().then_some(most.tables);
            let Some(tables) = copy(&mut writer, old, file, &kept, tables)? else {
                return Ok(None);
            };
            let Some(dictionary) = Dictionary::of(&tables) else { return Ok(None) };
            writer.take_over(&service, dictionary);
        }
        if let Some(source) = added
            && !translate(&mut writer, &source, position, limit)?
        {
            return Ok(None);
        }
        writer.close_service(&service);
    }
    Ok((writer.length.saturating_add(writer.index_bytes()) <= limit).then_some(writer))
}

/// Copies records unchanged; returns their additions to the dictionary, if those are wanted, in at
/// most so many bytes of memory. `None` if a record is damaged, or that is not enough.
fn copy(
    writer: &mut SegmentWriter,
    old: &Segment,
    file: &File,
    entries: &[Entry],
    wanted: Option<usize>,
) -> Result<Option<Tables>, StoreError> {
    let mut tables = Tables::new();
    for entry in entries {
        let read = read_whole(file, entry).map_err(StoreError::io("read", &old.path))?;
        let Ok((header, bytes)) = read else { return Ok(None) };
        let Ok(payload) = crate::record::payload_of(&header, &bytes) else { return Ok(None) };
        if let Some(most) = wanted {
            let added = body::parts(&payload).and_then(|(added, _)| tables.add(added));
            if added.is_err() || tables.memory() > most {
                return Ok(None);
            }
        }
        writer.copy(*entry, &bytes)?;
    }
    Ok(Some(tables))
}

/// Whether all of a service's hours could be read and written.
fn translate(
    writer: &mut SegmentWriter,
    source: &Source,
    position: u16,
    limit: u64,
) -> Result<bool, StoreError> {
    let read = read_source(source, &mut Answer::default())?;
    if read.damaged > 0 {
        return Ok(false);
    }
    for (entry, body) in &read.bodies {
        let Some(series) = source.series_of(entry) else { return Ok(false) };
        let encoded = translate_one(writer, series, &read.tables, (entry, body), position)?;
        let Some(encoded) = encoded else { return Ok(false) };
        let room = limit.saturating_sub(writer.index_bytes()).saturating_sub(writer.length);
        if encoded.bytes.len() as u64 > room {
            return Ok(false);
        }
        writer.write(encoded)?;
    }
    Ok(true)
}

fn translate_one(
    writer: &mut SegmentWriter,
    series: &Series,
    tables: &Tables,
    (entry, body): (&Entry, &Body),
    position: u16,
) -> Result<Option<Encoded>, StoreError> {
    let types: Vec<_> =
        series.sample_types.iter().map(|(name, unit)| (name.as_str(), unit.as_str())).collect();
    let columns: Vec<_> = (0..types.len()).collect();
    let mut builder = ProfileBuilder::new(&types);
    let mut replay = Replay::new(Detail::Lasting, None);
    if body.width != types.len() || replay.samples(tables, &mut builder, body, &columns).is_err() {
        return Ok(None);
    }
    // As large as the dictionary, which grows by as much now.
    drop(replay);
    builder.count_overflows(body.overflows);
    builder.set_host(tables.string(body.host));
    let facts = Facts { runtime_id: "", profiles: body.profiles };
    let times = (entry.start, entry.end);
    writer.encode_for(position, series, STEP, times, &builder.finish(), facts).map(Some)
}
