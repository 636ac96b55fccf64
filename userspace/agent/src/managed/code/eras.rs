//! When code was what it was: the eras of one process, and which of them a sample is of.
//!
//! Invariant: the beginnings that are kept are in order, at most [`MOST_BEGUN`], and a process's claims
//! of time cannot reach into the future ([`Eras::set_time`]).

use std::collections::VecDeque;

/// The eras for which stacks are unwound through code that is gone: some seconds of a program that
/// replaces all of its code all the time. Later, other code may be there without a record.
pub(super) const LATELY: u32 = 16_384;
/// The eras whose beginnings are known: samples arrive in the turn after they were taken.
pub(super) const MOST_BEGUN: usize = LATELY as usize;
/// For so many nanoseconds.
pub(super) const BEGUN_FOR: u64 = 5_000_000_000;
/// An era is held for so many nanoseconds, where what is written is not read to its end.
const LONGEST_HOLD: u64 = 1_000_000_000;
/// Records are written while others are read; reading takes less than this many nanoseconds.
const READING: u64 = 1_000_000_000;

pub struct Eras {
    now: u32,
    /// The era of samples, while records are read that were written before them.
    held: Option<u32>,
    /// The time of the last sample of that era.
    held_for: u64,
    /// The monotonic time until which all has been read.
    known_until: u64,
    /// See [`Eras::version`].
    version: u32,
    /// When the last eras began, in the monotonic clock's nanoseconds; the oldest first.
    begun: VecDeque<(u64, u32)>,
    /// When the record was written that is applied now.
    time: u64,
}

impl Default for Eras {
    fn default() -> Self {
        Self {
            now: 0,
            held: None,
            held_for: 0,
            known_until: 0,
            version: 1,
            begun: VecDeque::new(),
            time: 0,
        }
    }
}

impl Eras {
    pub fn now(&self) -> u32 {
        self.now
    }

    /// That of code which begins or ends with what is applied now. Samples of a held era are of what is
    /// there when all is read, also if that ends before they are named.
    pub(super) fn of_changes(&self) -> u32 {
        self.held.unwrap_or(self.now)
    }

    /// The version of the code's rules: it changes with each that does not hold any more.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What is applied next was written at this time: a claim of the process. Records of several
    /// threads may be out of order by moments. A time that is still to come is another clock's, in a
    /// time namespace: then samples are of what was read before they were taken in.
    pub fn set_time(&mut self, time: u64, read_at: u64) {
        if time <= read_at.saturating_add(READING) {
            self.time = self.time.max(time);
        }
    }

    /// The time of the last record, as far as it can be believed.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Rules that were cached must not be used any more; the code is the same.
    pub(super) fn renew_rules(&mut self) {
        self.version = self.version.wrapping_add(1).max(1);
    }

    /// Code has ended. Rules that were cached for it must not be used any more.
    pub(super) fn begin(&mut self) {
        self.renew_rules();
        self.now = self.now.wrapping_add(1);
        if self.held.is_some() {
            return;
        }
        let oldest = self.time.saturating_sub(BEGUN_FOR);
        // The last one before is in force until the next.
        while self.begun.get(1).is_some_and(|(time, _)| *time < oldest) {
            self.begun.pop_front();
        }
        self.note_beginning(self.time, self.now);
    }

    fn note_beginning(&mut self, time: u64, era: u32) {
        if self.begun.len() >= MOST_BEGUN {
            self.begun.pop_front();
        }
        let time = self.begun.back().map_or(time, |(last, _)| time.max(*last));
        // No sample lies between two of the same time.
        self.begun.pop_back_if(|(last, _)| *last == time);
        self.begun.push_back((time, era));
    }

    /// From here on records are read that were written before the samples that come meanwhile: what
    /// they say of code may be over. Such a sample is of code that is there when all is read, or was
    /// there last. `is_first`: no code is known yet.
    pub(super) fn hold(&mut self, is_first: bool) {
        if self.held.is_some() {
            return;
        }
        if is_first && self.begun.is_empty() {
            // As samples from before anything was known.
            self.begun.push_back((0, self.now));
        } else {
            // What ends meanwhile had ended when this era began.
            self.now = self.now.wrapping_add(1);
            self.note_beginning(self.known_until.saturating_add(1), self.now);
        }
        self.held = Some(self.now);
        self.held_for = 0;
    }

    /// The held era is that of a sample of this time, too.
    pub(super) fn hold_for(&mut self, time: u64) {
        self.held_for = self.held_for.max(time);
    }

    /// All has been read that was written until this time: samples until then are of what is known.
    pub fn was_read_until(&mut self, time: u64) {
        self.known_until = self.known_until.max(time);
        if self.held_for <= self.known_until
            && let Some(held) = self.held.take()
            && held != self.now
        {
            self.note_beginning(self.known_until.saturating_add(1), self.now);
        }
    }

    /// Reading falls behind: what was sampled more than a second ago is of what is known now.
    pub fn was_read_in_part_until(&mut self, time: u64, now: u64) {
        self.was_read_until(time);
        if self.held.is_some() && self.known_until.saturating_add(LONGEST_HOLD) < now {
            if self.held == Some(self.now) {
                self.now = self.now.wrapping_add(1);
            }
            self.was_read_until(self.held_for);
        }
    }

    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether this is the era of samples whose code is not known before all is read.
    pub fn is_held_at(&self, era: u32) -> bool {
        self.held == Some(era)
    }

    /// Whether all is known that was written until this time.
    pub fn is_known_at(&self, time: u64) -> bool {
        time <= self.known_until
    }

    pub(super) fn at(&self, time: u64) -> u32 {
        let later = self.begun.partition_point(|(begun, _)| *begun <= time);
        let then = self.begun.get(later.saturating_sub(1));
        then.map_or(self.now, |(_, era)| if later == 0 { era.wrapping_sub(1) } else { *era })
    }

    /// The beginnings that are kept.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.begun.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.begun.capacity() * size_of::<(u64, u32)>()
    }
}
