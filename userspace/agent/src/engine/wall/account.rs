//! One thread's account: from its records to time in states and places.
//!
//! Invariant: `until` moves forward only by what is added to the aggregate, or kept for the next
//! stack of the CPU sampler.

use std::sync::Arc;

use strata_abi::record::{
    End, FLAG_KERNEL_CUT, NO_SYSCALL, STATE_ENDED, STATE_RUNNABLE, STATE_RUNNING, THREAD_WORDS,
};
use strata_kinds::Kind;

use crate::aggregate::{self, Aggregate, ThreadKey, Words};
use crate::engine::waits::{Stack, state_name, syscall_name};
use crate::processes::table::Space;

/// The scheduler brings the account of a thread that runs up to date with its clock's tick.
const TICK: u64 = 10_000_000;
/// [`Account::start`] of a thread whose next record has it.
pub(super) const LATER: u64 = u64::MAX;

/// The last words of a thread's record.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    pub state: u64,
    pub syscall: u64,
    /// Switches because it waited.
    pub voluntary: u64,
    /// Others.
    pub involuntary: u64,
    pub run: u64,
    pub delay: u64,
    pub start: u64,
    /// When the pass before began; 0 in the first one.
    pub previous: u64,
}

impl Activity {
    pub fn of(words: &[u64]) -> Option<Self> {
        let &[state, syscall, voluntary, involuntary, run, delay, start, previous] =
            words.first_chunk::<THREAD_WORDS>()?;
        Some(Self { state, syscall, voluntary, involuntary, run, delay, start, previous })
    }
}

/// A stack with its kernel part.
pub struct Whole {
    pub kernel: Box<[u64]>,
    pub flags: u8,
    pub stack: Stack,
}

impl Whole {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.kernel) + size_of_val(&*self.stack.user)
    }

    /// It is walked again.
    pub(super) fn lacks_tables(&self) -> bool {
        matches!(self.stack.end, End::NoProcess | End::NoMapping)
    }

    fn words(&self) -> Words<'_> {
        Words {
            kernel: &self.kernel,
            user: &self.stack.user,
            end: self.stack.end,
            flags: self.flags & FLAG_KERNEL_CUT,
            era: self.stack.era,
        }
    }
}

/// Nanoseconds by the scheduler's account, and those added to the aggregate.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) seen: u64,
    pub(super) added: u64,
}

impl Tally {
    /// What is to be added of at most `rest`.
    fn due(self, rest: u64) -> u64 {
        self.seen.saturating_sub(self.added).min(rest)
    }
}

/// Where a thread was when it did not run.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) whole: Arc<Whole>,
    state: u64,
    syscall: u64,
}

impl Place {
    pub(super) fn is_blocked(&self) -> bool {
        is_blocked(self.state)
    }

    /// Where a thread waits for a CPU that has waited here.
    pub(super) fn of_woken(&self) -> Self {
        Self { state: STATE_RUNNABLE, syscall: NO_SYSCALL, ..self.clone() }
    }
}

/// A thread.
pub(super) struct Account {
    pub(super) thread: ThreadKey,
    pub(super) pid: u32,
    /// By the kernel; 0 until a record of it has come, and nothing is counted until then. Of a
    /// thread that has its process's number since it has executed a program: [`LATER`].
    pub(super) start: u64,
    /// Its time up to here is in the aggregate.
    pub(super) until: u64,
    pub(super) run: Tally,
    pub(super) wait: Tally,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
    pub(super) state: u64,
    /// The last of all places, and the last where it was blocked.
    pub(super) place: Option<Place>,
    pub(super) blocked: Option<Place>,
    /// Where a pass has last met it after its CPU was taken away, since all was counted.
    pub(super) preempted: Option<Place>,
    /// Whether that is so of its last record, the stack of which may have lacked tables.
    pub(super) is_preempted: bool,
    /// It may have been blocked since `until`; for how long at most in the place that it left.
    pub(super) may_have_blocked: bool,
    pub(super) before_woken: u64,
    /// Where the CPU sampler has met it since it was last sent: all places, or that many of them by
    /// chance, in the order of time.
    pub(super) running: Vec<Arc<Whole>>,
    /// How often that was.
    pub(super) met: u32,
    /// The last of these before.
    pub(super) ran: Option<Arc<Whole>>,
    /// Time on a CPU that has no stack yet, and when it was over.
    pub(super) unplaced: u64,
    pub(super) unplaced_until: u64,
    /// Of a thread that was younger than the pass before when a pass met it first: the time between both.
    pub(super) between_passes: u64,
    /// Its time was kept for the next count once, because where it waits has no callers yet.
    pub(super) is_held: bool,
}

pub(super) fn is_blocked(state: u64) -> bool {
    !matches!(state, STATE_RUNNABLE | STATE_RUNNING | STATE_ENDED)
}

/// Of time that a thread waited for a CPU, what it waited after one was taken away: it waits once for
/// each switch, else after it was woken. `switches`: because it waited, and others.
fn preempted_part(waited: u64, (voluntary, involuntary): (u64, u64)) -> u64 {
    let all = u128::from(voluntary) + u128::from(involuntary);
    let part = u128::from(waited) * u128::from(involuntary) / all.max(1);
    u64::try_from(part).unwrap_or(waited)
}

impl Account {
    pub(super) fn bytes(&self) -> usize {
        let running = self.running.iter().chain(&self.ran);
        let places = self.place.iter().map(|place| &place.whole);
        let is_place = |whole: &Arc<Whole>| {
            self.place.as_ref().is_some_and(|place| Arc::ptr_eq(&place.whole, whole))
        };
        let blocked = self.blocked.iter().map(|place| &place.whole);
        let preempted = self.preempted.iter().map(|place| &place.whole);
        let others = blocked.chain(preempted).filter(|whole| !is_place(whole));
        let all = running.chain(places).chain(others);
        size_of::<Self>() + all.map(|whole| whole.bytes()).sum::<usize>()
    }

    /// Nothing of a thread is known but what the CPU sampler has met.
    pub(super) fn unsent(thread: ThreadKey, pid: u32) -> Self {
        Self {
            thread,
            pid,
            start: 0,
            until: 0,
            run: Tally::default(),
            wait: Tally::default(),
            voluntary: 0,
            involuntary: 0,
            state: STATE_RUNNING,
            place: None,
            blocked: None,
            preempted: None,
            is_preempted: false,
            may_have_blocked: false,
            before_woken: 0,
            running: Vec::new(),
            met: 0,
            ran: None,
            unplaced: 0,
            unplaced_until: 0,
            between_passes: 0,
            is_held: false,
        }
    }

    /// Whether a record of a thread that started at this time is of this one.
    pub(super) fn is_of(&self, start: u64) -> bool {
        self.start == start || matches!(self.start, 0 | LATER)
    }

    /// Whether it was switched, or is in another state, since its last record.
    pub(super) fn has_moved(&self, now: &Activity) -> bool {
        self.state != now.state
            || (self.voluntary, self.involuntary) != (now.voluntary, now.involuntary)
    }

    /// The account of the same thread in the program that it executes, as `thread`. What it did
    /// before is counted already, and none of its stacks is one of the new program's.
    pub(super) fn of_next_program(self, thread: ThreadKey, time: u64) -> Self {
        let is_sent = self.start != 0;
        let has_number = self.thread.tid == thread.tid;
        Self {
            // A thread that takes its leader's number takes its start too (`de_thread` in
            // fs/exec.c, Linux 6.12).
            start: if is_sent && !has_number { LATER } else { self.start },
            until: if is_sent { self.until.max(time) } else { self.until },
            run: self.run,
            wait: self.wait,
            voluntary: self.voluntary,
            involuntary: self.involuntary,
            ..Self::unsent(thread, self.pid)
        }
    }

    /// Adds time in a state, which was over at `time`.
    fn add(
        &self,
        stack: Words<'_>,
        space: &Space,
        (state, syscall): (&str, u64),
        (time, lasted): (u64, u64),
        to: &mut Aggregate,
    ) {
        if lasted == 0 {
            return;
        }
        let syscall = syscall_name(syscall);
        let labels = match &syscall {
            Some(name) => to.labels(&[("state", state), ("syscall", name)]),
            None => to.labels(&[("state", state)]),
        };
        let thread = self.thread;
        let (kind, weight, value) = (Kind::Wall, 1, lasted);
        to.add(&aggregate::Sample { kind, time, thread, labels, weight, value, stack, space });
    }

    fn add_running(&self, whole: &Whole, span: (u64, u64), to: &mut Aggregate) {
        let state = ("running", NO_SYSCALL);
        self.add(whole.words(), &whole.stack.space, state, span, to);
    }

    /// Goes on by time on a CPU.
    fn run(&mut self, lasted: u64) {
        self.until += lasted;
        self.run.added += lasted;
        self.unplaced += lasted;
        if lasted > 0 {
            self.unplaced_until = self.until;
        }
    }

    /// Goes on by time that it waited for a CPU, where it was last seen.
    fn wait(&mut self, lasted: u64, to: &mut Aggregate) {
        self.wait_at(self.place.clone(), lasted, to);
    }

    fn wait_at(&mut self, place: Option<Place>, lasted: u64, to: &mut Aggregate) {
        self.until += lasted;
        self.wait.added += lasted;
        match place {
            Some(Place { whole, syscall, .. }) => {
                let state = ("runnable", syscall);
                self.add(whole.words(), &whole.stack.space, state, (self.until, lasted), to);
            }
            None => self.nowhere("runnable", (self.until, lasted), to),
        }
    }

    /// Goes on by time that it waited for a CPU that was taken away: where a pass has last met it in
    /// such a wait, as where a CPU is taken away need not be where most of its time goes; else where
    /// the CPU sampler has met it meanwhile, in equal parts.
    fn wait_preempted(&mut self, lasted: u64, to: &mut Aggregate) {
        if self.preempted.is_some() {
            return self.wait_at(self.preempted.clone(), lasted, to);
        }
        let parts = self.running.len() as u64;
        if parts == 0 {
            return self.wait(lasted, to);
        }
        let mut left = lasted;
        for (whole, parts) in self.running.iter().zip((1..=parts).rev()) {
            let part = left / parts;
            left -= part;
            let span = (self.until + lasted - left, part);
            let state = ("runnable", NO_SYSCALL);
            self.add(whole.words(), &whole.stack.space, state, span, to);
        }
        self.until += lasted;
        self.wait.added += lasted;
    }

    /// Goes on by time that it was blocked.
    fn block(&mut self, place: Option<Place>, lasted: u64, to: &mut Aggregate) {
        self.until += lasted;
        match place {
            Some(Place { whole, state, syscall }) => {
                let state = (state_name(state), syscall);
                self.add(whole.words(), &whole.stack.space, state, (self.until, lasted), to);
            }
            None => self.nowhere("blocked", (self.until, lasted), to),
        }
    }

    /// Time of a thread that no pass has met: it has the stack of its last sample, or none.
    fn nowhere(&self, state: &str, span: (u64, u64), to: &mut Aggregate) {
        let state = (state, NO_SYSCALL);
        if let Some(ran) = self.running.last().or(self.ran.as_ref()) {
            self.add(ran.words(), &ran.stack.space, state, span, to);
        } else {
            let words = Words { kernel: &[], user: &[], end: End::NotWalked, flags: 0, era: 0 };
            self.add(words, &Space::default(), state, span, to);
        }
    }

    /// Whether a CPU was taken away from a thread that waits for one here. One that has waited for anything
    /// else may have been woken: then this is where it waited.
    fn lost_its_cpu(&self, place: &Place, (voluntary, involuntary): (u64, u64)) -> bool {
        place.state == STATE_RUNNABLE && involuntary > 0 && voluntary == 0 && !self.may_have_blocked
    }

    /// Goes on by time that it was in the state and place that it was last seen in.
    fn stay(&mut self, lasted: u64, to: &mut Aggregate) {
        match self.state {
            STATE_RUNNING => self.run(lasted),
            STATE_RUNNABLE => self.wait(lasted, to),
            _ => self.block(self.blocked.clone(), lasted, to),
        }
    }

    /// A record. `whole`: its stack, if it does not run.
    pub(super) fn take(
        &mut self,
        time: u64,
        now: &Activity,
        whole: Option<Arc<Whole>>,
        to: &mut Aggregate,
    ) {
        let time = time.max(self.until);
        let is_same = !self.has_moved(now);
        self.run.seen = self.run.seen.max(now.run);
        self.wait.seen = self.wait.seen.max(now.delay);
        let before = self.blocked.clone();
        let was_blocked = is_blocked(self.state);
        if was_blocked {
            if !is_same {
                // The pass before has found it as it was.
                let still = now.previous.clamp(self.until, time) - self.until;
                self.block(before.clone(), still, to);
                self.before_woken = time - self.until;
            }
            self.may_have_blocked = true;
        }
        self.may_have_blocked |= self.voluntary != now.voluntary || is_blocked(now.state);
        let switches = (
            now.voluntary.saturating_sub(self.voluntary),
            now.involuntary.saturating_sub(self.involuntary),
        );
        let lacks_tables = whole.as_ref().is_some_and(|whole| whole.lacks_tables());
        (self.voluntary, self.involuntary) = (now.voluntary, now.involuntary);
        self.state = now.state;
        if let Some(whole) = whole {
            let place = Place { whole, state: now.state, syscall: now.syscall };
            if is_blocked(now.state) {
                self.blocked = Some(place.clone());
            }
            // One that is the same has been walked again.
            self.is_preempted = self.lost_its_cpu(&place, switches) || is_same && self.is_preempted;
            if self.is_preempted && !lacks_tables {
                self.preempted = Some(place.clone());
            }
            self.place = Some(place);
        }
        if is_same {
            // How long it waits for a CPU is in the scheduler's account once it has one. A stack
            // that was walked again because tables were missing was there all the time: while they
            // are missing, its time waits for it.
            if now.state != STATE_RUNNABLE && !lacks_tables {
                self.stay(time - self.until, to);
                self.place_running(to);
            }
            return;
        }
        let left = time - self.until;
        let ran = self.run.due(left);
        let waited = self.wait.due(left - ran);
        let rest = left - ran - waited;
        // In the order of time as far as it is known: what was blocked ran afterwards.
        let (first, last) = match now.state {
            STATE_RUNNABLE => (0, 0),
            _ if !self.may_have_blocked => (0, 0),
            // What its account lacks until the next tick may be a part of it.
            STATE_RUNNING => (rest.saturating_sub(TICK), 0),
            STATE_ENDED => (rest, 0),
            _ => {
                let first = self.before_woken.min(rest / 2);
                (first, rest - first)
            }
        };
        let before = before.or_else(|| self.blocked.clone().filter(|_| is_blocked(now.state)));
        if was_blocked {
            self.block(before.clone(), first, to);
        }
        let preempted = preempted_part(waited, switches);
        self.run(ran);
        self.wait(waited - preempted, to);
        self.wait_preempted(preempted, to);
        self.place_running(to);
        if !was_blocked {
            self.block(before, first, to);
        }
        self.block(self.blocked.clone(), last, to);
        let rest = time - self.until;
        if now.state == STATE_RUNNABLE || rest > 0 && self.may_have_blocked {
            return;
        }
        // It was on a CPU that another system, or interrupts, had meanwhile.
        self.run(rest);
        self.may_have_blocked = false;
        self.before_woken = 0;
    }

    /// Gives time on a CPU to the stacks that were sampled there meanwhile.
    fn place_running(&mut self, to: &mut Aggregate) {
        if self.unplaced == 0 || self.running.is_empty() {
            return;
        }
        let all = std::mem::take(&mut self.running);
        self.met = 0;
        let each = self.unplaced / all.len() as u64;
        let mut left = std::mem::take(&mut self.unplaced);
        // They follow each other. What was left of an earlier record makes the first one longer.
        let mut time = self.unplaced_until;
        for whole in all.iter().skip(1).rev() {
            self.add_running(whole, (time, each), to);
            left -= each;
            time = time.saturating_sub(each);
        }
        if let Some(first) = all.first() {
            self.add_running(first, (time, left), to);
        }
        self.ran = all.into_iter().next_back();
    }

    /// Everything up to a moment, but of a thread that waits in a stack without tables, which is walked again
    /// soon in most cases: its time is left to the next call, once.
    pub(super) fn count_known(&mut self, until: u64, to: &mut Aggregate) {
        let lacks_tables = is_blocked(self.state)
            && self.blocked.as_ref().is_some_and(|place| place.whole.lacks_tables());
        let was_held = std::mem::replace(&mut self.is_held, lacks_tables);
        if was_held || !lacks_tables {
            self.count(until, to);
        }
    }

    /// Everything up to a moment, by what it was last seen to do.
    pub(super) fn count(&mut self, until: u64, to: &mut Aggregate) {
        if self.start == 0 {
            return;
        }
        self.stay(until.saturating_sub(self.until), to);
        self.preempted = None;
        self.place_running(to);
        // It ran between two ticks: where it was sampled before, or around where it waits.
        let rest = (self.unplaced_until, std::mem::take(&mut self.unplaced));
        if let Some(ran) = self.ran.clone() {
            self.add_running(&ran, rest, to);
        } else if let Some(Place { whole, .. }) = self.place.clone() {
            let words = Words { kernel: &[], ..whole.words() };
            self.add(words, &whole.stack.space, ("running", NO_SYSCALL), rest, to);
        } else {
            self.nowhere("running", rest, to);
        }
    }

    /// Everything up to a moment after which nothing more is known of what it did until then.
    /// `period`: of the CPU sampler.
    pub(super) fn settle(&mut self, time: u64, period: u64, to: &mut Aggregate) {
        if self.start != 0 && self.state != STATE_RUNNING {
            let rest = time.saturating_sub(self.until);
            let run = u64::from(self.met).saturating_mul(period).min(rest);
            self.run(run);
        }
        self.count(time, to);
    }
}

#[cfg(test)]
mod tests;
