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

use std::collections::HashMap;
use std::sync::Arc;

use strata_abi::record::{Header, STATE_ENDED, STATE_RUNNABLE, STATE_RUNNING};

use crate::aggregate::{Aggregate, ThreadKey};
use crate::processes::table::{ImageId, Space};
use account::{Account, Tally, is_blocked};
pub use account::{Activity, Whole};

/// Bytes of stacks of threads.
const MOST_BYTES: usize = 64 << 20;
/// Stacks of a thread between two passes at most; further samples count for the last one.
const MOST_RUNNING: usize = 64;

/// The threads that are sampled.
pub struct Wall {
    threads: HashMap<u32, Account>,
    bytes: usize,
    /// Of the CPU sampler, in nanoseconds.
    period: u64,
    /// When sampling began.
    pub started: u64,
    /// Records of threads that found no room here.
    pub refused: u64,
}

impl Wall {
    pub fn new(period: u64) -> Self {
        Self { threads: HashMap::new(), bytes: 0, period, started: 0, refused: 0 }
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
        if known.as_ref().is_some_and(|known| known.start != 0 && known.start != now.start) {
            // Another thread has the number: the end of the one before it was lost.
            if let Some(before) = known.take() {
                before.end(now.start, self.period, to);
            }
        }
        let mut account = match known {
            Some(known) if known.start != 0 => known,
            sampled => self.begin(sampled.map_or(Vec::new(), |one| one.running), pid, thread, now),
        };
        if now.state == STATE_ENDED {
            account.take(time, now, None, to);
            account.count(time, to);
            return;
        }
        account.thread = thread;
        account.pid = pid;
        account.take(time, now, whole, to);
        self.insert(account);
    }

    /// The account of a thread of which no record has come before.
    fn begin(
        &self,
        running: Vec<Arc<Whole>>,
        pid: u32,
        thread: ThreadKey,
        now: &Activity,
    ) -> Account {
        // One that was there before sampling began, or was not selected before, has done what it
        // has done by now outside of its account.
        let from = if now.previous == 0 { self.started } else { now.previous };
        let is_new = now.start >= from;
        let past = |nanos: u64| Tally { seen: nanos, added: if is_new { 0 } else { nanos } };
        Account {
            thread,
            pid,
            start: now.start.max(1),
            until: now.start.max(from),
            run: past(now.run),
            wait: past(now.delay),
            // What it does now it has done since then, but for what its counters say.
            voluntary: if is_new { 0 } else { now.voluntary },
            involuntary: if is_new { u64::MAX } else { now.involuntary },
            state: if is_new { STATE_RUNNABLE } else { now.state },
            place: None,
            blocked: None,
            may_have_blocked: false,
            before_woken: 0,
            running,
            ran: None,
            unplaced: 0,
            unplaced_until: 0,
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
        if let Some(account) = self.threads.get_mut(&header.tid) {
            if account.running.len() < MOST_RUNNING && self.bytes < MOST_BYTES {
                self.bytes += whole.bytes();
                account.running.push(whole);
            }
        } else if !is_late {
            self.insert(Account {
                thread,
                pid: header.pid,
                start: 0,
                until: 0,
                run: Tally::default(),
                wait: Tally::default(),
                voluntary: 0,
                involuntary: 0,
                state: STATE_RUNNING,
                place: None,
                blocked: None,
                may_have_blocked: false,
                before_woken: 0,
                running: vec![whole],
                ran: None,
                unplaced: 0,
                unplaced_until: 0,
            });
        }
    }

    fn remove(&mut self, tid: u32) -> Option<Account> {
        let account = self.threads.remove(&tid)?;
        self.bytes = self.bytes.saturating_sub(account.bytes());
        Some(account)
    }

    fn insert(&mut self, account: Account) {
        let bytes = account.bytes();
        if self.bytes + bytes > MOST_BYTES {
            self.refused += 1;
            return;
        }
        self.bytes += bytes;
        self.threads.insert(account.thread.tid, account);
    }

    /// A thread has ended.
    pub fn end(&mut self, tid: u32, time: u64, to: &mut Aggregate) {
        if let Some(account) = self.remove(tid) {
            account.end(time, self.period, to);
        }
    }

    /// Counts everything up to a moment.
    pub fn count(&mut self, until: u64, to: &mut Aggregate) {
        for account in self.threads.values_mut() {
            // Stacks that are placed here leave.
            let before = account.bytes();
            account.count(until, to);
            self.bytes = (self.bytes + account.bytes()).saturating_sub(before);
        }
    }

    /// How many there are.
    pub fn count_of_threads(&self) -> usize {
        self.threads.len()
    }

    /// Whose they are, and what those had mapped.
    pub fn owners(&self) -> impl Iterator<Item = (ImageId, &Space)> + '_ {
        self.threads.values().flat_map(|account| {
            let places = account.place.iter().chain(&account.blocked).map(|place| &place.whole);
            let stacks = account.running.iter().chain(&account.ran).chain(places);
            stacks.map(|whole| (account.thread.image, &whole.stack.space))
        })
    }

    /// Forgets those of processes that are gone.
    pub fn retain(&mut self, is_there: impl Fn(u32, ImageId) -> bool) {
        let bytes = &mut self.bytes;
        self.threads.retain(|_, account| {
            let stays = is_there(account.pid, account.thread.image);
            if !stays {
                *bytes = bytes.saturating_sub(account.bytes());
            }
            stays
        });
    }
}
