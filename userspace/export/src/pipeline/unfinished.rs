//! The profiles of an unfinished period, on disk: an exporter with a period of several flushes
//! merges their profiles, and a kill meanwhile would lose them.
//!
//! A separate spool below the exporter's holds them unmerged. They are removed after the batches of
//! the period are in the exporter's spool; what is found at the start is sent as a shorter period.
//!
//! Invariant: a failing disk costs only this safety.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use strata_profile::pprof;
use uuid::Uuid;

use crate::origin::{Language, Origin};
use crate::spool::{Key, Spool};
use crate::{Batch, Outgoing, Protocol};

/// The folder in an exporter's own.
const FOLDER: &str = "period";
/// Roughly so many bytes of profiles go into one file.
const FILE_BYTES: usize = 4 << 20;

/// The unfinished period of one exporter.
#[derive(Debug)]
pub struct Unfinished {
    spool: Spool,
    next_number: u64,
    /// Of the period that is not over: written, and not removed.
    written: Vec<Key>,
    /// Of periods that are over.
    ended: Vec<Key>,
    /// Why the last was not written.
    trouble: Option<String>,
}

impl Unfinished {
    /// Opens the folder, for at most so many bytes.
    pub fn open(exporter: &Path, most: u64) -> Option<Self> {
        let opened = Spool::open(&exporter.join(FOLDER), most);
        let spool = opened
            .inspect_err(|error| {
                tracing::warn!(%error, "periods that are not over do not outlive this process");
            })
            .ok()?;
        let written: Vec<Key> = spool.entries().map(|(key, _)| key).collect();
        let last = written.iter().map(|key| key.number).max();
        let next_number = last.map_or(0, |last| last.saturating_add(1));
        Some(Self { spool, next_number, written, ended: Vec::new(), trouble: None })
    }

    /// The profiles left by a process that did not end in order, oldest first.
    pub fn left(&mut self) -> Vec<Outgoing> {
        let mut left = Vec::new();
        for key in self.written.clone() {
            match self.spool.read(key) {
                Ok(batch) => left.extend(decode(batch.body)),
                Err(error) => tracing::warn!(%error, "profiles of the last period are lost"),
            }
        }
        left
    }

    /// Writes the profiles of a flush.
    pub fn add(&mut self, profiles: &[Outgoing]) {
        let mut file = Stored::default();
        let mut bytes = 0_usize;
        for outgoing in profiles {
            let mut written = Vec::new();
            // Writing into memory fails only for what the model cannot express.
            if pprof::encode_plain(&outgoing.profile, &mut written).is_err() {
                continue;
            }
            bytes = bytes.saturating_add(written.len());
            file.profiles.push(StoredProfile::new(&outgoing.origin, written));
            file.oldest = match file.oldest {
                0 => outgoing.profile.start_nanos,
                oldest => oldest.min(outgoing.profile.start_nanos),
            };
            if bytes >= FILE_BYTES {
                self.put(&std::mem::take(&mut file));
                bytes = 0;
            }
        }
        if !file.profiles.is_empty() {
            self.put(&file);
        }
    }

    fn put(&mut self, file: &Stored) {
        let batch = Batch {
            id: Uuid::new_v4(),
            protocol: Protocol::Plain,
            path: "/".to_owned(),
            content_type: String::new(),
            headers: Vec::new(),
            gzipped: false,
            profiles: u32::try_from(file.profiles.len()).unwrap_or(u32::MAX),
            oldest: file.oldest,
            body: Bytes::from(file.encode_to_vec()),
        };
        let number = self.next_number;
        self.next_number = number.saturating_add(1);
        let mut dropped = Vec::new();
        match self.spool.put(number, &batch, &mut dropped) {
            Ok(key) => {
                self.written.push(key);
                self.trouble = None;
            }
            Err(error) => {
                let text = error.to_string();
                if self.trouble.as_ref() != Some(&text) {
                    tracing::warn!(%error, "a period that is not over would not outlive this process");
                }
                self.trouble = Some(text);
            }
        }
        for keys in [&mut self.written, &mut self.ended] {
            keys.retain(|key| !dropped.iter().any(|(gone, _)| gone == key));
        }
    }

    /// The period is over: what comes from now on belongs to the next one.
    pub fn end_period(&mut self) {
        self.ended.append(&mut self.written);
    }

    /// The batches of periods that are over are in the exporter's spool.
    pub fn clear(&mut self) {
        for key in std::mem::take(&mut self.ended) {
            if let Err(error) = self.spool.remove(key) {
                tracing::warn!(%error, "a period may be sent twice after the next start");
            }
        }
    }
}

/// A file. Numbers of fields never change their meaning.
#[derive(Clone, PartialEq, Eq, Message)]
struct Stored {
    #[prost(message, repeated, tag = "1")]
    profiles: Vec<StoredProfile>,
    #[prost(int64, tag = "2")]
    oldest: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct StoredProfile {
    #[prost(bytes = "vec", tag = "1")]
    pprof: Vec<u8>,
    /// The texts of an origin, in the order of [`texts`].
    #[prost(string, repeated, tag = "2")]
    texts: Vec<String>,
    #[prost(uint32, optional, tag = "3")]
    pid: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    cores: Option<u32>,
    #[prost(string, tag = "5")]
    language: String,
    /// Names and values, one after the other.
    #[prost(string, repeated, tag = "6")]
    labels: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    target_labels: Vec<String>,
    #[prost(string, repeated, tag = "8")]
    claimed_facts: Vec<String>,
}

/// The texts of an origin.
fn texts(origin: &mut Origin) -> [&mut String; 15] {
    [
        &mut origin.service,
        &mut origin.env,
        &mut origin.version,
        &mut origin.host,
        &mut origin.runtime_id,
        &mut origin.runtime_version,
        &mut origin.container_id,
        &mut origin.container_name,
        &mut origin.pod,
        &mut origin.namespace,
        &mut origin.node,
        &mut origin.git_repository,
        &mut origin.git_commit,
        &mut origin.architecture,
        &mut origin.executable,
    ]
}

impl StoredProfile {
    fn new(origin: &Origin, pprof: Vec<u8>) -> Self {
        let mut origin = origin.clone();
        Self {
            pprof,
            texts: texts(&mut origin).map(std::mem::take).into(),
            pid: origin.pid,
            cores: origin.cores,
            language: origin.language.name().to_owned(),
            labels: origin.labels.into_iter().flat_map(|(name, value)| [name, value]).collect(),
            target_labels: origin.target_labels,
            claimed_facts: origin.claimed_facts,
        }
    }

    fn outgoing(self) -> Option<Outgoing> {
        let profile = pprof::decode(&self.pprof).ok()?;
        let mut origin = Origin {
            pid: self.pid,
            cores: self.cores,
            language: Language::from_name(&self.language),
            target_labels: self.target_labels,
            claimed_facts: self.claimed_facts,
            ..Origin::default()
        };
        for (place, text) in texts(&mut origin).into_iter().zip(self.texts) {
            *place = text;
        }
        let mut labels = self.labels.into_iter();
        while let (Some(name), Some(value)) = (labels.next(), labels.next()) {
            origin.labels.push((name, value));
        }
        Some(Outgoing { profile: Arc::new(profile), origin: Arc::new(origin) })
    }
}

fn decode(body: Bytes) -> Vec<Outgoing> {
    let stored = Stored::decode(body).unwrap_or_default();
    stored.profiles.into_iter().filter_map(StoredProfile::outgoing).collect()
}

#[cfg(test)]
mod tests {
    use strata_profile::ProfileBuilder;

    use super::*;

    #[test]
    fn a_period_that_was_not_over_is_found_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = ProfileBuilder::new(&[("samples", "count")]);
        builder.set_start(7_000_000_000);
        let labels = builder.labels(&[]);
        builder.add(strata_profile::StackId::default(), labels, &[3]);
        let origin = Origin {
            service: "shop".to_owned(),
            executable: "/bin/shop".to_owned(),
            pid: Some(7),
            language: Language::Go,
            labels: vec![("team".to_owned(), "a".to_owned())],
            target_labels: vec!["team".to_owned()],
            claimed_facts: vec!["env".to_owned()],
            ..Origin::default()
        };
        let outgoing = Outgoing { profile: Arc::new(builder.finish()), origin: Arc::new(origin) };
        let mut unfinished = Unfinished::open(folder.path(), 1 << 20).unwrap();
        unfinished.add(std::slice::from_ref(&outgoing));
        drop(unfinished);
        let mut unfinished = Unfinished::open(folder.path(), 1 << 20).unwrap();
        let left = unfinished.left();
        let [found] = left.as_slice() else { panic!("{left:?}") };
        assert_eq!(found.origin, outgoing.origin);
        assert_eq!((found.profile.total(0), found.profile.start_nanos), (3, 7_000_000_000));
        unfinished.clear();
        assert_eq!(unfinished.left().len(), 1, "its period is not over");
        unfinished.end_period();
        unfinished.add(std::slice::from_ref(&outgoing));
        unfinished.clear();
        assert_eq!(unfinished.left().len(), 1, "the next period's");
        unfinished.end_period();
        unfinished.clear();
        assert!(Unfinished::open(&folder.path().join("other"), 1).unwrap().left().is_empty());
        drop(unfinished);
        assert!(Unfinished::open(folder.path(), 1 << 20).unwrap().left().is_empty());
    }
}
