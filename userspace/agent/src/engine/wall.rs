//! Wall-clock time: every moment of a thread's life as running, runnable, blocked or stopped.
//!
//! A pass over threads ([`super::passes`]) sends what each thread that ran since the pass before
//! has run and waited for a CPU so far, by the scheduler's own accounts, and the stack of each that
//! does not run. The rest of its time it was blocked. A thread that is not sent has not moved, and
//! its time since belongs to the stack that it had. Time on a CPU is given to the stacks that the
//! CPU sampler has seen of that thread, in equal parts.
//!
//! Invariant: an account moves forward only by what is added to the aggregate, so the sum of a
//! thread's states is the time that has passed. What the scheduler's accounts have not caught up
//! with yet is added by the thread's state, and deducted when they have.

mod account;
mod brief;
mod by_process;

use std::collections::HashMap;
use std::sync::Arc;

use strata_abi::record::{Header, STATE_ENDED, STATE_RUNNABLE};

use super::thread_memory::{Admission, ThreadMemory};
use crate::aggregate::{Aggregate, ThreadKey};
use crate::image_id::ImageId;
use crate::processes::table::Space;
use crate::random::Random;
use account::{Account, LATER, Tally, is_blocked};
pub use account::{Activity, Whole};
use brief::BriefThreads;
use by_process::ByProcess;

/// Bytes of accounts with their stacks, of all processes ([`ThreadMemory`]).
const MOST_BYTES: usize = 64 << 20;
/// Stacks of a thread between two passes at most. Of more samples these are as many by chance.
const MOST_RUNNING: usize = 64;
/// Threads of which one look finds out whether they are there, and after process events were lost: without
/// that, few ends are missed.
const LOOKS: usize = 64;
/// Or one of so many of all.
const LOOKS_OF: usize = 64;
const LOOKS_AFTER_LOSS: usize = 1 << 14;

/// The threads that are sampled.
pub struct Wall {
    threads: HashMap<u32, Account>,
    /// Their numbers, by process.
    by_process: ByProcess,
    brief: BriefThreads,
    pub(super) memory: ThreadMemory<MOST_BYTES>,
    random: Random,
    /// The last process and thread that was looked for, and those that were not there.
    looked_for: (u32, u32),
    missing: Vec<(u32, u32)>,
    /// Process events were lost since all threads were looked for.
    has_lost: bool,
    /// Of the CPU sampler, in nanoseconds.
    period: u64,
    /// When sampling began.
    pub started: u64,
    /// Records of threads that found no room here, or gave theirs back to another process.
    pub refused: u64,
}

impl Wall {
    pub fn new(period: u64) -> Self {
        Self {
            threads: HashMap::new(),
            by_process: ByProcess::default(),
            brief: BriefThreads::default(),
            memory: ThreadMemory::default(),
            random: Random::new(),
            looked_for: (0, 0),
            missing: Vec::new(),
            has_lost: false,
            period,
            started: 0,
            refused: 0,
        }
    }

    /// The CPU sampler ticks at another frequency from now on.
    pub fn set_period(&mut self, nanos: u64) {
        self.period = nanos;
    }

    /// A record of a pass.
    pub fn take(
        &mut self,
        header: &Header,
        thread: ThreadKey,
        now: &Activity,
        whole: Whole,
        to: &mut Aggregate,
    ) {
        let Header { tid, pid, time, .. } = *header;
        let whole = (is_blocked(now.state) || now.state == STATE_RUNNABLE).then(|| Arc::new(whole));
        let mut known = self.remove(tid);
        if known.as_ref().is_some_and(|known| !known.is_of(now.start)) {
            // Another thread has the number: the end of the one before it was lost.
            if let Some(mut before) = known.take() {
                before.settle(now.start, self.period, to);
            }
        }
        let is_unmet = known.as_ref().is_none_or(|known| known.start == 0);
        let mut account = match known {
            Some(known) if !is_unmet => known,
            unsent => self.begin(unsent.unwrap_or_else(|| Account::unsent(thread, pid)), now),
        };
        if account.start == LATER {
            account.start = now.start.max(1);
        }
        if now.state == STATE_ENDED {
            if is_unmet {
                self.brief.lend(&mut account, &mut self.random);
            } else if account.between_passes > 0 {
                self.brief.ended(&account, time, &mut self.random);
            }
            account.take(time, now, None, to);
            account.count(time, to);
            return;
        }
        account.thread = thread;
        account.pid = pid;
        account.take(time, now, whole, to);
        if is_unmet && self.is_new(now) {
            account.between_passes = time.saturating_sub(self.counted_from(now));
        }
        self.insert(account);
    }

    /// When the time begins that is counted of a thread with a first record, if it was there then.
    fn counted_from(&self, now: &Activity) -> u64 {
        if now.previous == 0 { self.started } else { now.previous }
    }

    /// Whether a thread with a first record has begun since then.
    fn is_new(&self, now: &Activity) -> bool {
        now.start >= self.counted_from(now)
    }

    /// The account of a thread of which no record has come before.
    fn begin(&self, unsent: Account, now: &Activity) -> Account {
        // One that was there before sampling began, or was not selected before, has done what it
        // has done by now outside of its account; so has one whose program has just begun.
        let from = self.counted_from(now);
        let is_new = unsent.until == 0 && self.is_new(now);
        let past = |nanos: u64| Tally { seen: nanos, added: if is_new { 0 } else { nanos } };
        Account {
            start: now.start.max(1),
            until: now.start.max(from).max(unsent.until),
            run: past(now.run),
            wait: past(now.delay),
            // What it does now it has done since then, but for what its counters say.
            voluntary: if is_new { 0 } else { now.voluntary },
            involuntary: if is_new { u64::MAX } else { now.involuntary },
            state: if is_new { STATE_RUNNABLE } else { now.state },
            ..unsent
        }
    }

    /// The CPU sampler has met a thread. `is_late`: it may have ended since.
    pub fn note_running(
        &mut self,
        header: &Header,
        thread: ThreadKey,
        whole: Whole,
        is_late: bool,
    ) {
        let whole = Arc::new(whole);
        if !self.knows(header.tid) {
            self.brief.ran((thread, header.pid), &whole, &mut self.random);
        }
        if let Some(account) = self.threads.get_mut(&header.tid) {
            // A stack may come after its thread has executed another program, or ended.
            if account.thread.image != thread.image {
                return;
            }
            account.met = account.met.saturating_add(1);
            if account.running.len() >= MOST_RUNNING {
                let place = self.random.below(account.met) as usize;
                if place >= account.running.len() {
                    return;
                }
                let before = account.running.remove(place);
                self.memory.give_back(account.pid, before.bytes());
            }
            if self.memory.admits(account.pid, whole.bytes()) != Admission::Admitted {
                return;
            }
            self.memory.take(account.pid, whole.bytes());
            account.running.push(whole);
        } else if !is_late {
            let account = Account::unsent(thread, header.pid);
            self.insert(Account { running: vec![whole], met: 1, ..account });
        }
    }

    fn remove(&mut self, tid: u32) -> Option<Account> {
        let account = self.threads.remove(&tid)?;
        self.by_process.remove(account.pid, tid);
        self.memory.give_back(account.pid, account.bytes());
        Some(account)
    }

    fn insert(&mut self, account: Account) {
        // The end of another thread with the number may have been lost.
        self.remove(account.thread.tid);
        let (pid, bytes) = (account.pid, account.bytes());
        if self.memory.admits(pid, bytes) == Admission::AfterExcess {
            self.drop_excess();
        }
        if self.memory.admits(pid, bytes) != Admission::Admitted {
            self.refused += 1;
            return;
        }
        self.memory.take(pid, bytes);
        self.by_process.insert(pid, account.thread.tid);
        self.threads.insert(account.thread.tid, account);
    }

    /// Drops accounts of processes that have more than their share, so that others find room.
    fn drop_excess(&mut self) {
        let mut excess = self.memory.excess();
        let Self { threads, by_process, memory, refused, .. } = self;
        threads.retain(|tid, account| {
            let (pid, bytes) = (account.pid, account.bytes());
            let is_dropped = excess.includes(pid, bytes);
            if is_dropped {
                by_process.remove(pid, *tid);
                memory.give_back(pid, bytes);
                *refused += 1;
            }
            !is_dropped
        });
    }

    /// A thread has ended.
    pub fn end(&mut self, tid: u32, time: u64, to: &mut Aggregate) {
        if let Some(mut account) = self.remove(tid) {
            account.settle(time, self.period, to);
        }
    }

    /// A process executes another program; `thread` is its only one from now on. Which one it was
    /// before is not reported: the kernel gives it the leader's number, and reports the ends of all
    /// others, that of the leader too. Whether the new program has time from now on, before a record
    /// of it.
    pub fn executed(&mut self, thread: ThreadKey, time: u64, to: &mut Aggregate) -> bool {
        let pid = thread.tid;
        let mut all: Vec<Account> = Vec::new();
        for tid in self.by_process.threads_of(pid) {
            if let Some(mut account) = self.remove(tid) {
                account.settle(time, self.period, to);
                all.push(account);
            }
        }
        let goes_on = match all.iter().position(|account| account.thread.tid == pid) {
            Some(leader) => Some(all.swap_remove(leader)),
            None if all.len() > 1 => {
                // The ends of some were lost.
                Some(Account { until: time, ..Account::unsent(thread, pid) })
            }
            None => all.pop(),
        };
        let Some(account) = goes_on else { return false };
        self.insert(account.of_next_program(thread, time));
        self.knows(pid)
    }

    /// A process is not sampled any more. Should it be again, its time until then is not its.
    pub fn leave_out(&mut self, pid: u32) {
        for tid in self.by_process.threads_of(pid) {
            self.remove(tid);
        }
    }

    /// Process events were lost, ends of threads perhaps.
    pub fn events_were_lost(&mut self) {
        self.has_lost = true;
        self.looked_for = (0, 0);
    }

    /// Looks whether some of the threads are there, the next ones at each call. One that is not
    /// there twice has ended, and the record of it was lost: it would gain time for ever. After the
    /// first time its last record may still be on its way.
    pub fn look_for_threads(&mut self, is_there: impl Fn(u32, u32) -> bool) {
        for (pid, tid) in std::mem::take(&mut self.missing) {
            if self.by_process.contains((pid, tid)) && !is_there(pid, tid) {
                self.remove(tid);
            }
        }
        let most = LOOKS.max(self.threads.len() / LOOKS_OF);
        let most = if self.has_lost { LOOKS_AFTER_LOSS } else { most };
        let mut looked_at = 0;
        for (pid, tid) in self.by_process.after(self.looked_for).take(most) {
            looked_at += 1;
            self.looked_for = (pid, tid);
            if !is_there(pid, tid) {
                self.missing.push((pid, tid));
            }
        }
        if looked_at < most {
            self.looked_for = (0, 0);
            self.has_lost = false;
        }
    }

    /// Counts everything up to a moment. What lacks its callers is left to the next call, once, unless
    /// this is the last one.
    pub fn count(&mut self, until: u64, is_last: bool, to: &mut Aggregate) {
        for account in self.threads.values_mut() {
            // Stacks that are placed here leave.
            let before = account.bytes();
            if is_last {
                account.count(until, to)
            } else {
                account.count_known(until, to)
            }
            self.memory.give_back(account.pid, before);
            self.memory.take(account.pid, account.bytes());
        }
    }

    /// Whether a record of this thread has come.
    pub fn knows(&self, tid: u32) -> bool {
        self.threads.get(&tid).is_some_and(|account| account.start != 0)
    }

    /// Whether a thread has been switched since its last record. One is sent without it too, where its
    /// stack is walked again, or the record was lost.
    pub fn has_moved(&self, tid: u32, now: &Activity) -> bool {
        self.threads.get(&tid).is_some_and(|account| account.has_moved(now))
    }

    /// How many threads a process has here.
    pub fn count_of(&self, pid: u32) -> usize {
        self.by_process.count_of(pid)
    }

    /// How many there are.
    pub fn count_of_threads(&self) -> usize {
        self.threads.len()
    }

    /// Whose they are, and what those had mapped.
    pub fn owners(&self) -> impl Iterator<Item = (ImageId, &Space)> + '_ {
        let threads = self.threads.values().flat_map(|account| {
            let places = account.place.iter().chain(&account.blocked).chain(&account.preempted);
            let places = places.map(|place| &place.whole);
            let stacks = account.running.iter().chain(&account.ran).chain(places);
            stacks.map(|whole| (account.thread.image, &whole.stack.space))
        });
        threads.chain(self.brief.owners())
    }

    /// Forgets those of processes that are gone.
    pub fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        self.brief.retain(&is_there);
        let (memory, by_process) = (&mut self.memory, &mut self.by_process);
        self.threads.retain(|tid, account| {
            let stays = is_there(account.pid);
            if !stays {
                by_process.remove(account.pid, *tid);
                memory.give_back(account.pid, account.bytes());
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests;
