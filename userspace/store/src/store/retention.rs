//! What a store drops: segments beyond the age or size limit, and what stood for them.

use super::{Sealed, Store, nanos, remove};
use crate::directory::Name;
use crate::error::StoreError;
use crate::segment::Member;

impl Store {
    /// Removes roll-ups without remaining segments.
    pub(super) fn drop_rollups(&mut self) -> Result<(), StoreError> {
        let is_left = |member: &Member| self.sealed.contains_key(&member.number);
        let gone = self.rollups.iter().filter(|(_, rollup)| !rollup.members.iter().any(is_left));
        let gone: Vec<_> = gone.map(|(&number, _)| number).collect();
        for number in gone {
            remove(&Name::Rollup.path(&self.directory, number))?;
            self.rollups.remove(&number);
        }
        Ok(())
    }

    pub(super) fn oldest_kept(&self, now: i64) -> i64 {
        now.saturating_sub(nanos(self.options.max_age))
    }

    pub(super) fn drop_old(&mut self, now: i64) -> Result<(), StoreError> {
        let oldest_kept = self.oldest_kept(now);
        let is_old =
            |times: Option<(i64, i64)>| times.is_some_and(|(first, _)| first < oldest_kept);
        if self.open.as_ref().is_some_and(|open| is_old(open.writer.starts())) {
            self.seal()?;
        }
        let old: Vec<_> = self
            .sealed
            .iter()
            .filter(|(_, sealed)| sealed.oldest < oldest_kept)
            .map(|(&number, _)| number)
            .collect();
        for number in old {
            self.drop_segment(number)?;
            self.counters.dropped_by_age += 1;
        }
        let damaged = self.damaged.iter().filter(|(_, damaged)| damaged.written < oldest_kept);
        let damaged: Vec<_> = damaged.map(|(&number, _)| number).collect();
        damaged.into_iter().try_for_each(|number| self.drop_damaged(number))?;
        self.drop_old_names(oldest_kept)
    }

    /// Drops unreadable files and the oldest segments until `bytes` more fit.
    pub(super) fn make_room(&mut self, bytes: u64) -> Result<(), StoreError> {
        while self.bytes().saturating_add(bytes) > self.options.max_bytes {
            if !self.drop_next(None)? {
                break;
            }
        }
        Ok(())
    }

    /// Like [`Self::make_room`], but keeps one segment and all that are younger.
    pub(super) fn has_room_beside(&mut self, kept: u64, bytes: u64) -> Result<bool, StoreError> {
        while self.bytes().saturating_add(bytes) > self.options.max_bytes {
            if !self.drop_next(Some(kept))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Drops the least needed file, unless it is `kept`.
    fn drop_next(&mut self, kept: Option<u64>) -> Result<bool, StoreError> {
        if let Some((&number, _)) = self.damaged.first_key_value() {
            self.drop_damaged(number)?;
            return Ok(true);
        }
        let Some(number) = self.oldest().filter(|&number| Some(number) != kept) else {
            return Ok(false);
        };
        self.drop_segment(number)?;
        self.counters.dropped_by_size += 1;
        Ok(true)
    }

    fn drop_damaged(&mut self, number: u64) -> Result<(), StoreError> {
        remove(&Name::Damaged.path(&self.directory, number))?;
        self.damaged.remove(&number);
        Ok(())
    }

    fn oldest(&self) -> Option<u64> {
        let by_age = |(number, sealed): &(&u64, &Sealed)| (sealed.oldest, **number);
        self.sealed.iter().min_by_key(by_age).map(|(&number, _)| number)
    }

    fn drop_segment(&mut self, number: u64) -> Result<(), StoreError> {
        for name in [Name::Sealed, Name::Open, Name::New, Name::Merged] {
            remove(&name.path(&self.directory, number))?;
        }
        if let Some(sealed) = self.sealed.remove(&number) {
            let dropped = self.counters.profiles_dropped.saturating_add(sealed.profiles);
            self.counters.profiles_dropped = dropped;
        }
        self.waiting.retain(|&waiting| waiting != number);
        self.unrolled.retain(|&waiting| waiting != number);
        self.drop_rollups()
    }
}
