//! The time of threads off their CPUs that no sampled wait has: it is of waits for which sampled ones stand.
//!
//! A sampled wait of weight `w` stands for `w - 1` others like it: a claim. The scheduler's account of how
//! long a thread has run says how much time those others have really taken: what has passed between sampled
//! waits and was not spent on a CPU. It is divided by claims when a period ends. So the sum of a thread's
//! waits is its time off the CPU, and chance decides only in which stacks.
//!
//! Invariant: claims are of rows of one aggregate, of which there are as many at most.

use std::collections::{HashMap, HashSet};

use strata_abi::record::RAN;
use strata_kinds::Kind;

use crate::aggregate::{Aggregate, RowKey};
use crate::image_id::ImageId;

/// Of the time between two sampled waits no more counts: it would be of a period long gone.
pub const MOST: u64 = 10_000_000_000;
/// The account of a thread that runs is behind by no more. One that has run less than before is another's, which
/// has the number of one that has ended.
pub const TICK: u64 = 20_000_000;
/// Threads whose account is kept.
const MOST_THREADS: usize = 100_000;
/// Threads whose account is read when sampling ends.
const MOST_LAST: usize = 20_000;

/// Of one thread.
#[derive(Clone, Copy, Default)]
struct Unsampled {
    nanos: u64,
    /// Up to when time has passed.
    until: u64,
    /// For how long the thread had run by then, once that is known: the low bits of it ([`RAN`]).
    ran: Option<u64>,
}

impl Unsampled {
    /// Time passes up to this moment, without a wait that is sampled. `ran`: for how long the thread has run by
    /// now.
    fn pass(&mut self, until: u64, ran: u64) {
        let is_another = |before: u64| {
            let back = before.wrapping_sub(ran) & RAN;
            (TICK..RAN / 2).contains(&back)
        };
        if let Some(before) = self.ran.filter(|before| !is_another(*before)) {
            let passed = until.saturating_sub(self.until);
            let off = passed.saturating_sub(run_between(before, ran));
            self.nanos = self.nanos.saturating_add(off.min(MOST));
        }
        self.until = self.until.max(until);
        self.ran = Some(ran);
    }

    /// Time passes up to a moment before `now`, when the thread's account was read.
    fn pass_part(&mut self, until: u64, now: u64, ran: u64) {
        let Some(before) = self.ran else { return };
        let [part, all] = [until, now].map(|end| u128::from(end.saturating_sub(self.until)));
        let on = u128::from(run_between(before, ran)) * part.min(all) / all.max(1);
        self.pass(until, before.wrapping_add(u64::try_from(on).unwrap_or(0)));
    }
}

/// For how long a thread has run between two readings of its account.
fn run_between(before: u64, after: u64) -> u64 {
    let ran = after.wrapping_sub(before) & RAN;
    // The account of a thread that runs is read without its lock.
    if ran > RAN / 2 { 0 } else { ran }
}

/// A thread of a program: its number may be another's later.
pub type Key = (u32, ImageId);

struct Thread {
    pid: u32,
    unsampled: Unsampled,
}

/// Of all threads with sampled waits.
#[derive(Default)]
pub struct Others {
    threads: HashMap<Key, Thread>,
    /// By row: whose it is, and for how long its waits' others have lasted by what they stand for.
    claims: HashMap<RowKey, (Key, u64)>,
}

impl Others {
    /// A sampled wait begins. `ran`: for how long its thread has run; `since`: when its program or sampling
    /// began. Returns how long the thread may have waited before its first one: for how much of that it has
    /// run is not known.
    pub fn begin(&mut self, thread: Key, pid: u32, began: u64, ran: u64, since: u64) -> u64 {
        if self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&thread) {
            return 0;
        }
        let new = Thread { pid, unsampled: Unsampled { until: since, ..Unsampled::default() } };
        let Thread { unsampled, .. } = self.threads.entry(thread).or_insert(new);
        let before = match unsampled.ran {
            None => began.saturating_sub(unsampled.until).min(MOST),
            Some(_) => 0,
        };
        unsampled.pass(began, ran);
        before
    }

    /// A sampled wait has lasted until now.
    pub fn pass_wait(&mut self, thread: Key, until: u64) {
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.unsampled.until = thread.unsampled.until.max(until);
        }
    }

    pub fn claim(&mut self, thread: Key, row: RowKey, nanos: u64) {
        let (_, sum) = self.claims.entry(row).or_insert((thread, 0));
        *sum = sum.saturating_add(nanos);
    }

    /// Divides the time of threads by their claims. Of those without any nothing is added: each of their waits
    /// was sampled, or lost. `claims_later`: the stack of a wait of a thread is not known yet.
    pub fn divide(&mut self, time: u64, to: &mut Aggregate, claims_later: impl Fn(&Key) -> bool) {
        let mut sums: HashMap<Key, u64> = HashMap::new();
        for (thread, claim) in self.claims.values() {
            let sum = sums.entry(*thread).or_default();
            *sum = sum.saturating_add(*claim);
        }
        for (row, (key, claim)) in std::mem::take(&mut self.claims) {
            let Some(sum) = sums.get(&key) else { continue };
            let value = match self.threads.get(&key) {
                Some(thread) => {
                    let all = u128::from(thread.unsampled.nanos);
                    u64::try_from(all * u128::from(claim) / u128::from(*sum).max(1)).unwrap_or(0)
                }
                // Its account is not kept: by what its waits stand for the sum is right on average.
                None => claim,
            };
            to.add_value(Kind::OffCpu, row, time, value);
        }
        for (key, thread) in &mut self.threads {
            if sums.contains_key(key) || !claims_later(key) {
                thread.unsampled.nanos = 0;
            }
        }
    }

    /// Sampling has ended: time passes for threads with claims. `ran`: for how long one has run by now, if it
    /// is still there, and what time it is.
    pub fn pass_last(&mut self, until: u64, ran: impl Fn(u32, u32) -> Option<(u64, u64)>) {
        let last: HashSet<Key> = self.claims.values().map(|(thread, _)| *thread).collect();
        for key in last.into_iter().take(MOST_LAST) {
            let Some(thread) = self.threads.get_mut(&key) else { continue };
            if thread.unsampled.until < until
                && let Some((ran, now)) = ran(thread.pid, key.0)
            {
                thread.unsampled.pass_part(until, now, ran);
            }
        }
    }

    /// Sampling was stopped: what threads do until it goes on is not known.
    pub fn interrupt(&mut self) {
        self.threads.values_mut().for_each(|thread| thread.unsampled.ran = None);
    }

    /// Forgets threads of programs that are gone, and those that have not waited for long; with claims, at the
    /// end of the period. `waits`: whether one is in a sampled wait, which may last for long.
    pub fn retain(
        &mut self,
        waits: impl Fn(&Key) -> bool,
        is_there: impl Fn(u32, ImageId) -> bool,
    ) {
        let untils = self.threads.values().map(|thread| thread.unsampled.until);
        let latest = untils.max().unwrap_or_default();
        let claiming: HashSet<Key> = self.claims.values().map(|(thread, _)| *thread).collect();
        self.threads.retain(|key, thread| {
            let is_recent = latest - thread.unsampled.until < MOST || waits(key);
            claiming.contains(key) || is_recent && is_there(thread.pid, key.1)
        });
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.threads.len()
    }
}
