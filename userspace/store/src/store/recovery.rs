//! Opening a directory: what an earlier writer left is read, recovered or put aside.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Damaged, Rollup, Sealed, Store, remove};
use crate::directory::{self, Name};
use crate::error::StoreError;
use crate::segment::{Member, Segment};
use crate::writing::SegmentWriter;

impl Store {
    pub(super) fn recover(&mut self) -> Result<(), StoreError> {
        let files = directory::list(&self.directory)?;
        let mut unsealed = BTreeSet::new();
        // Before anything is changed: the version that wrote it may run again.
        for &(number, name, _) in files.iter().filter(|(_, name, _)| *name != Name::Damaged) {
            Segment::check_version(&name.path(&self.directory, number))?;
        }
        for &(number, name, length) in &files {
            self.next = self.next.max(number.saturating_add(1));
            let path = name.path(&self.directory, number);
            match name {
                Name::New => remove(&path)?,
                Name::Open => {
                    if !self.recover_open(number, &path)? {
                        unsealed.insert(number);
                    }
                }
                Name::Sealed => self.recover_sealed(number, &path, length)?,
                Name::Damaged => self.note_damaged(number, &path)?,
                Name::Names => self.recover_names(number, &path)?,
                Name::Merged | Name::Rollup => {}
            }
        }
        for (number, name, length) in files {
            let path = name.path(&self.directory, number);
            match (name, self.sealed.get_mut(&number)) {
                (Name::Merged, Some(sealed)) => sealed.merged_bytes = length,
                (Name::Merged, None) => remove(&path)?,
                (Name::Rollup, _) => self.recover_rollup(number, &path, length)?,
                _ => {}
            }
        }
        self.drop_rollups()?;
        let rolled = self.rollups.values().flat_map(|rollup| &rollup.members);
        let rolled: BTreeSet<_> = rolled.map(|member| member.number).collect();
        // With what was left open and has just been sealed; merges are made of sealed files only.
        self.waiting.clear();
        for (&number, sealed) in &self.sealed {
            if unsealed.contains(&number) {
                continue;
            }
            if sealed.merged_bytes == 0 {
                self.waiting.push_back(number);
            } else if !rolled.contains(&number) {
                self.unrolled.push_back(number);
            }
        }
        Ok(())
    }

    fn recover_rollup(&mut self, number: u64, path: &Path, bytes: u64) -> Result<(), StoreError> {
        match Segment::open(path) {
            Ok(Segment { members, .. }) => {
                // It would stand for a new segment that got the number of a dropped one.
                let last = members.iter().map(|member| member.number).max().unwrap_or(number);
                self.next = self.next.max(last.saturating_add(1));
                // As older versions gave them. A damaged segment may have less than its roll-up,
                // but none has more.
                let is_another = |member: &Member| {
                    self.sealed.get(&member.number).is_some_and(|sealed| {
                        sealed.newest > i64::MIN
                            && (sealed.oldest < member.first || sealed.newest > member.last)
                    })
                };
                if members.iter().any(is_another) {
                    return remove(path);
                }
                self.rollups.insert(number, Rollup { bytes, members });
                Ok(())
            }
            // The data it replaced is equal.
            Err(StoreError::Damaged { .. }) => {
                self.counters.files_unreadable += 1;
                remove(path)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether it does not stay open.
    fn recover_open(&mut self, number: u64, path: &Path) -> Result<bool, StoreError> {
        match SegmentWriter::recover(path) {
            Ok((writer, cut)) => {
                self.counters.bytes_cut_off = self.counters.bytes_cut_off.saturating_add(cut);
                self.counters.segments_recovered += 1;
                // On a full disk it stays open: it can be read, and dropped, like this.
                Ok(self.seal_writer(number, writer, path).is_ok())
            }
            Err(StoreError::Damaged { .. }) => self.put_aside(number, path).map(|()| true),
            Err(error) => Err(error),
        }
    }

    fn recover_sealed(&mut self, number: u64, path: &Path, bytes: u64) -> Result<(), StoreError> {
        match Segment::open(path) {
            Ok(segment) => {
                let starts = || segment.entries.iter().map(|entry| entry.start);
                let profiles = segment.entries.len() as u64;
                let oldest = starts().min().unwrap_or(i64::MIN);
                let newest = starts().max().unwrap_or(i64::MIN);
                let merged_bytes = 0;
                self.sealed
                    .insert(number, Sealed { bytes, merged_bytes, profiles, oldest, newest });
                Ok(())
            }
            Err(StoreError::Damaged { .. }) => self.put_aside(number, path),
            Err(error) => Err(error),
        }
    }

    /// A segment that cannot be read takes the place of one of the same number that could not
    /// either.
    fn put_aside(&mut self, number: u64, path: &Path) -> Result<(), StoreError> {
        self.counters.files_unreadable += 1;
        let aside = Name::Damaged.path(&self.directory, number);
        std::fs::rename(path, &aside).map_err(StoreError::io("rename", path))?;
        self.note_damaged(number, &aside)
    }

    fn note_damaged(&mut self, number: u64, path: &Path) -> Result<(), StoreError> {
        let facts = std::fs::metadata(path).map_err(StoreError::io("read", path))?;
        let seconds = facts.mtime().saturating_mul(1_000_000_000);
        let written = seconds.saturating_add(facts.mtime_nsec());
        self.damaged.insert(number, Damaged { bytes: facts.len(), written });
        Ok(())
    }
}
