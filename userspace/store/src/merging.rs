//! Merges over time: a sealed segment's profiles of each series, merged per hour and per five
//! minutes.
//!
//! A query over a day then reads one record per series and hour. The coarse steps come first in the
//! file and bring the whole dictionary, so that a query over an hour reads nothing else.
//!
//! Invariant: a merge stands for exactly the profiles of its own segment that start in its step,
//! without what [`Detail::Lasting`] leaves out. Merges that would be no smaller than what they
//! stand for are not made.

use std::collections::BTreeMap;
use std::path::Path;

use strata_profile::ProfileBuilder;

use crate::body::Facts;
use crate::error::StoreError;
use crate::reader::{Answer, Read, Source, read_source, sources_of};
use crate::segment::Segment;
use crate::selection::{NANOS, Range, STEPS, Selection};
use crate::tables::{Detail, Replay};
use crate::writing::SegmentWriter;

/// Merges in the making of one series and step.
struct Bucket {
    builder: ProfileBuilder,
    replay: Replay<'static>,
    times: (i64, i64),
    profiles: u64,
}

/// Makes the merges of a sealed segment in `new`, of at most `limit` bytes, and names them
/// `merged` when they are whole. `None` if there are none worth having.
pub(crate) fn merge(
    sealed: &Path,
    new: &Path,
    merged: &Path,
    limit: u64,
) -> Result<Option<u64>, StoreError> {
    let made = write(sealed, new, limit);
    match made {
        Ok(Some(writer)) => writer.seal(merged).map(Some),
        other => {
            if new.exists() {
                std::fs::remove_file(new).map_err(StoreError::io("remove", new))?;
            }
            other.map(|_| None)
        }
    }
}

fn write(sealed: &Path, new: &Path, limit: u64) -> Result<Option<SegmentWriter>, StoreError> {
    let segment = Segment::open(sealed)?;
    let always = [(0, Range { from: i64::MIN, to: i64::MAX })];
    let sources = sources_of(segment, &Selection::default(), &always, &[]);
    let mut writer = SegmentWriter::create(new)?;
    for source in &sources {
        let read = read_source(source, &mut Answer::default())?;
        if read.damaged > 0 {
            return Ok(None);
        }
        for step in STEPS.into_iter().rev() {
            if !write_step(&mut writer, source, &read, step, limit)? {
                return Ok(None);
            }
        }
        writer.close_service(&source.service);
    }
    Ok((writer.length.saturating_add(writer.index_bytes()) <= limit).then_some(writer))
}

/// Whether it was possible within `limit`.
fn write_step(
    writer: &mut SegmentWriter,
    source: &Source,
    read: &Read,
    step: u32,
    limit: u64,
) -> Result<bool, StoreError> {
    let mut order: BTreeMap<(u32, i64), Vec<usize>> = BTreeMap::new();
    for (at, (entry, _)) in read.bodies.iter().enumerate() {
        let bucket = entry.start.div_euclid(i64::from(step) * NANOS);
        order.entry((entry.series, bucket)).or_default().push(at);
    }
    for members in order.values() {
        let mut bucket: Option<Bucket> = None;
        let mut last = None;
        for (entry, body) in members.iter().filter_map(|&at| read.bodies.get(at)) {
            let Some(series) = source.series_of(entry) else { return Ok(false) };
            let types: Vec<_> = series
                .sample_types
                .iter()
                .map(|(name, unit)| (name.as_str(), unit.as_str()))
                .collect();
            let bucket = bucket.get_or_insert_with(|| Bucket {
                builder: ProfileBuilder::new(&types),
                replay: Replay::new(Detail::Lasting, None),
                times: (entry.start, entry.end),
                profiles: 0,
            });
            let columns: Vec<_> = (0..types.len()).collect();
            bucket.builder.begin_period(entry.end, &columns);
            let replay = &mut bucket.replay;
            if body.width != types.len()
                || replay.samples(&read.tables, &mut bucket.builder, body, &columns).is_err()
            {
                return Ok(false);
            }
            bucket.builder.count_overflows(body.overflows);
            bucket.builder.set_host(read.tables.string(body.host));
            bucket.profiles = bucket.profiles.saturating_add(body.profiles);
            let (start, end) = bucket.times;
            bucket.times = (start.min(entry.start), end.max(entry.end));
            last = Some(series);
        }
        let (Some(bucket), Some(series)) = (bucket, last) else { continue };
        let Bucket { builder, replay, times, profiles } = bucket;
        // As large as the dictionary, which is made once more now.
        drop(replay);
        let facts = Facts { runtime_id: "", profiles };
        let profile = builder.finish();
        let encoded = writer.encode(series, step, times, &profile, facts)?;
        let room = limit.saturating_sub(writer.length);
        if encoded.bytes.len() as u64 > room {
            return Ok(false);
        }
        writer.write(encoded)?;
    }
    Ok(true)
}
