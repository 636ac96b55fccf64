//! The payload of a profile's record: what it adds to the dictionary, then its samples in columns.
//!
//! Samples are sorted by stack, so their numbers are small steps; a column of values is divided
//! by its greatest common divisor, which turns nanoseconds of a sampling period back into counts.
//!
//! Invariant: [`Body::read`] checks every number's form, not what it refers to: that is
//! [`crate::tables::Tables`]' part.

use strata_profile::Profile;

use crate::dictionary::{Dictionary, Import};
use crate::error::Damage;
use crate::wire::{Cursor, put, put_signed};

/// Sample types of one profile; pprof's own have four at most.
pub(crate) const MOST_WIDTH: usize = 64;

/// The metadata of a profile beside its samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts<'a> {
    pub(crate) runtime_id: &'a str,
    /// How many profiles it was merged from.
    pub(crate) profiles: u64,
}

/// The samples as they lie in a record.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) runtime_id: u32,
    pub(crate) host: u32,
    pub(crate) profiles: u64,
    pub(crate) overflows: u64,
    pub(crate) width: usize,
    pub(crate) stacks: Vec<u32>,
    pub(crate) labels: Vec<u32>,
    /// A column for each sample type, one after the other.
    pub(crate) values: Vec<i64>,
    pub(crate) timeline: Option<Timeline>,
}

#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) labels: Vec<u32>,
    pub(crate) stacks: Vec<u32>,
    pub(crate) times: Vec<u64>,
    pub(crate) values: Vec<u64>,
    pub(crate) weights: Vec<u32>,
}

/// The payload for a profile. Its new items are in the dictionary from now on.
pub(crate) fn encode(dictionary: &mut Dictionary, profile: &Profile, facts: Facts<'_>) -> Vec<u8> {
    let mut import = Import::new(dictionary, profile);
    let width = profile.sample_types.len();
    let mut rows: Vec<(u32, u32, &[i64])> = profile
        .samples()
        .map(|sample| (import.stack(sample.stack), import.labels(sample.labels), sample.values))
        .collect();
    rows.sort_unstable_by_key(|&(stack, labels, _)| (stack, labels));
    let mut samples = Vec::with_capacity(rows.len().saturating_mul(4));
    put(&mut samples, u64::from(import.text(facts.runtime_id)));
    put(&mut samples, u64::from(import.string(profile.host)));
    put(&mut samples, facts.profiles);
    put(&mut samples, profile.overflows);
    put(&mut samples, width as u64);
    put(&mut samples, rows.len() as u64);
    put_steps(&mut samples, rows.iter().map(|row| i64::from(row.0)));
    put_steps(&mut samples, rows.iter().map(|row| i64::from(row.1)));
    for at in 0..width {
        let column = rows.iter().map(|row| row.2.get(at).copied().unwrap_or(0));
        let divisor = column.clone().fold(0, common).max(1);
        put(&mut samples, divisor);
        for value in column {
            // The greatest divisor of a column of i64::MIN alone is 2^63, one too large for i64.
            let divisor = i64::try_from(divisor).unwrap_or(i64::MIN);
            put_signed(&mut samples, value.wrapping_div(divisor));
        }
    }
    match profile.timeline() {
        None => put(&mut samples, 0),
        Some(ticks) => {
            let ticks: Vec<_> = ticks.collect();
            put(&mut samples, 1);
            put(&mut samples, ticks.len() as u64);
            let labels: Vec<_> = ticks.iter().map(|tick| import.labels(tick.labels)).collect();
            let stacks: Vec<_> = ticks.iter().map(|tick| import.stack(tick.stack)).collect();
            put_steps(&mut samples, labels.into_iter().map(i64::from));
            put_steps(&mut samples, stacks.into_iter().map(i64::from));
            put_steps(&mut samples, ticks.iter().map(|tick| tick.time as i64));
            put_steps(&mut samples, ticks.iter().map(|tick| tick.value as i64));
            put_steps(&mut samples, ticks.iter().map(|tick| i64::from(tick.weight)));
        }
    }
    let mut payload = Vec::with_capacity(samples.len().saturating_mul(2));
    let mut added = Vec::new();
    import.take_added(&mut added);
    put(&mut payload, added.len() as u64);
    payload.append(&mut added);
    payload.append(&mut samples);
    payload
}

/// Each as the difference to the one before.
fn put_steps(out: &mut Vec<u8>, column: impl Iterator<Item = i64>) {
    let mut before = 0_i64;
    for value in column {
        put_signed(out, value.wrapping_sub(before));
        before = value;
    }
}

fn common(one: u64, other: i64) -> u64 {
    let (mut one, mut other) = (one, other.unsigned_abs());
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// The two parts of a payload: what it adds to the dictionary, and the samples.
pub(crate) fn parts(payload: &[u8]) -> Result<(Cursor<'_>, Cursor<'_>), Damage> {
    let mut cursor = Cursor::new(payload);
    let added = cursor.part()?;
    Ok((added, cursor))
}

impl Body {
    pub(crate) fn read(mut cursor: Cursor<'_>) -> Result<Self, Damage> {
        let mut body = Self {
            runtime_id: cursor.small()?,
            host: cursor.small()?,
            profiles: cursor.number()?,
            overflows: cursor.number()?,
            ..Self::default()
        };
        body.width = cursor.count()?;
        if body.width > MOST_WIDTH {
            return Err(Damage("it has too many sample types"));
        }
        let count = cursor.count()?;
        body.stacks = numbers(&mut cursor, count)?;
        body.labels = numbers(&mut cursor, count)?;
        for _ in 0..body.width {
            let divisor = cursor.number()? as i64;
            body.values.reserve(count);
            for _ in 0..count {
                body.values.push(cursor.signed()?.wrapping_mul(divisor));
            }
        }
        if cursor.number()? == 1 {
            let count = cursor.count()?;
            body.timeline = Some(Timeline {
                labels: numbers(&mut cursor, count)?,
                stacks: numbers(&mut cursor, count)?,
                times: long_numbers(&mut cursor, count)?,
                values: long_numbers(&mut cursor, count)?,
                weights: numbers(&mut cursor, count)?,
            });
        }
        if !cursor.is_empty() {
            return Err(Damage("something follows the samples"));
        }
        Ok(body)
    }
}

fn steps<'c>(
    cursor: &'c mut Cursor<'_>,
    count: usize,
) -> impl Iterator<Item = Result<i64, Damage>> + 'c {
    let mut value = 0_i64;
    (0..count).map(move |_| {
        value = value.wrapping_add(cursor.signed()?);
        Ok(value)
    })
}

fn long_numbers(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u64>, Damage> {
    steps(cursor, count).map(|number| number.map(|number| number as u64)).collect()
}

fn numbers(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u32>, Damage> {
    // There are at least as many bytes.
    let mut numbers = Vec::with_capacity(count);
    for value in steps(cursor, count) {
        numbers.push(u32::try_from(value?).map_err(|_| Damage("a number is too large"))?);
    }
    Ok(numbers)
}
