//! A series: the profiles of one service, of one kind, with one set of labels.

use strata_profile::{Profile, ValueType};

use crate::error::Damage;
use crate::wire::{Cursor, put, put_signed, put_text};

/// What a profile describes, as given by its producer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub service: String,
    /// The type of profile: `cpu`, `exceptions`.
    pub kind: String,
    /// Labels of all its samples: `env`, `version`, `pod`.
    pub labels: Vec<(String, String)>,
    /// Distinguishes processes and AppDomains; merges over time leave it out.
    pub runtime_id: String,
    /// Nanoseconds since 1970.
    pub start_nanos: i64,
    pub end_nanos: i64,
}

/// A name and its unit.
pub(crate) type Pair = (String, String);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Series {
    pub(crate) service: String,
    pub(crate) kind: String,
    /// Sorted by name.
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) sample_types: Vec<Pair>,
    pub(crate) default_sample_type: String,
    pub(crate) period_type: Pair,
    pub(crate) period: i64,
}

impl Series {
    pub(crate) fn of(head: &Head, profile: &Profile) -> Self {
        let pair = |kind: &ValueType| {
            (profile.string(kind.name).to_owned(), profile.string(kind.unit).to_owned())
        };
        let mut labels = head.labels.clone();
        labels.sort();
        Self {
            service: head.service.clone(),
            kind: head.kind.clone(),
            labels,
            sample_types: profile.sample_types.iter().map(pair).collect(),
            default_sample_type: profile.string(profile.default_sample_type).to_owned(),
            period_type: pair(&profile.period_type),
            period: profile.period,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_text(out, &self.service);
        put_text(out, &self.kind);
        put_pairs(out, &self.labels);
        put_pairs(out, &self.sample_types);
        put_text(out, &self.default_sample_type);
        put_text(out, &self.period_type.0);
        put_text(out, &self.period_type.1);
        put_signed(out, self.period);
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Damage> {
        Ok(Self {
            service: cursor.text()?.to_owned(),
            kind: cursor.text()?.to_owned(),
            labels: pairs(cursor)?,
            sample_types: pairs(cursor)?,
            default_sample_type: cursor.text()?.to_owned(),
            period_type: (cursor.text()?.to_owned(), cursor.text()?.to_owned()),
            period: cursor.signed()?,
        })
    }
}

fn put_pairs(out: &mut Vec<u8>, pairs: &[Pair]) {
    put(out, pairs.len() as u64);
    for (one, other) in pairs {
        put_text(out, one);
        put_text(out, other);
    }
}

fn pairs(cursor: &mut Cursor<'_>) -> Result<Vec<Pair>, Damage> {
    let mut pairs = Vec::new();
    for _ in 0..cursor.count()? {
        pairs.push((cursor.text()?.to_owned(), cursor.text()?.to_owned()));
    }
    Ok(pairs)
}
