//! Waits of threads: from the record of a switch-out and that of the return to a CPU to samples
//! with a duration.
//!
//! - `unsampled`: the time of those waits for which sampled ones stand
//!
//! A wait's time is counted when it ends, and what has passed of it so far at each flush: a thread
//! that waits for hours is in every period with what it waited in that period.
//!
//! Invariant: of a sampled wait every nanosecond is counted once, as runnable or in its state. What
//! is kept is bounded, and waits that found no room or lost their end are counted.

mod unsampled;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use strata_abi::record::{
    ENDED_WORDS, End, FLAG_KERNEL_CUT, FLAG_LATE, Header, NO_SYSCALL, RAN, STATE_RUNNABLE,
    WOKEN_BY_OWN_CPU,
};
use strata_abi::tables::UNWANTED_OFF_CPU;
use strata_kinds::Kind;
use syscalls::Sysno;

use self::unsampled::Others;
use super::samples::Sample;
use super::thread_memory::{Admission, ThreadMemory};
use super::{Engine, monotonic_nanos};
use crate::aggregate::{self, Aggregate, ThreadKey, Words};
use crate::image_id::ImageId;
use crate::kernel::functions;
use crate::processes::table::Space;

/// Bytes of stacks of threads that wait, of all processes ([`ThreadMemory`]).
const MOST_BYTES: usize = 32 << 20;

/// The state of a thread that would run if it had a CPU.
const RUNNABLE: &str = "runnable";
/// The kernel's function in which every thread waits.
const SWITCH: &str = "__schedule";
/// Frames of the sampler that may lie on top of it: the program, and how the kernel calls it.
const OWN_FRAMES: usize = 8;

/// Where a thread waits.
pub struct Stack {
    pub user: Box<[u64]>,
    pub end: End,
    pub era: u32,
    pub space: Space,
}

/// A thread that waits.
struct Wait {
    thread: ThreadKey,
    pid: u32,
    began: u64,
    /// Up to when its time is counted.
    counted: u64,
    weight: u32,
    /// What may be of the waits for which it stands, and had passed when it began.
    before: u64,
    /// `task_struct.__state`.
    state: u64,
    syscall: u64,
    kernel: Box<[u64]>,
    flags: u8,
    /// None while the copy of its stack waits for tables.
    stack: Option<Stack>,
    /// What is to be counted once there is a stack.
    later: Vec<Span>,
}

/// A part of a wait: when it ended, how long it was, how long those would be that it stands for, the thread's
/// state.
#[derive(Clone, Copy)]
struct Span {
    time: u64,
    value: u64,
    others: u64,
    state: &'static str,
}

/// Where waits are counted.
struct Counts<'a> {
    aggregate: &'a mut Aggregate,
    others: &'a mut Others,
}

impl Wait {
    fn key(&self) -> unsampled::Key {
        (self.thread.tid, self.thread.image)
    }

    fn bytes(&self) -> usize {
        let user = self.stack.as_ref().map_or(0, |stack| size_of_val(&*stack.user));
        size_of::<Self>() + size_of_val(&*self.kernel) + user
    }

    /// Counts the rest of it. `walk`: for how long its thread was walked when it began, and whether the CPU
    /// that it had left has woken it. Where that could only be after the walk, or it has been preempted, its
    /// wait began then; where it was woken meanwhile, it has run later for it.
    fn end(&mut self, until: u64, woken: u64, walk: u64, to: &mut Counts<'_>) {
        let left = self.began.saturating_add(walk & !WOKEN_BY_OWN_CPU);
        let depends_on_it = self.state == STATE_RUNNABLE || walk & WOKEN_BY_OWN_CPU != 0;
        let (from, woken) = match woken {
            0 if !depends_on_it => (self.began, 0),
            woken if woken != 0 && woken <= left => (self.began + (left - woken), left),
            woken if depends_on_it => (left, woken),
            woken => (self.began, woken),
        };
        self.counted = self.counted.max(from.min(until));
        self.count(until, woken, to);
    }

    /// Counts what has passed until a moment. `woken`: since when it could have run, or 0.
    fn count(&mut self, until: u64, woken: u64, to: &mut Counts<'_>) {
        let runnable_from = match (self.state, woken) {
            (STATE_RUNNABLE, _) => self.began,
            (_, 0) => until,
            (_, woken) => woken,
        };
        let from = self.counted;
        let until = until.max(from);
        let runs_from = runnable_from.clamp(from, until);
        for (from, time, state) in
            [(from, runs_from, state_name(self.state)), (runs_from, until, RUNNABLE)]
        {
            let lasted = time - from;
            let others = lasted.saturating_mul(u64::from(self.weight.max(1)) - 1);
            let before = others.min(self.before);
            self.before -= before;
            let value = lasted.saturating_add(before);
            self.add(Span { time, value, others: others - before, state }, to);
        }
        self.counted = until;
        to.others.pass_wait(self.key(), until);
    }

    fn add(&mut self, span: Span, to: &mut Counts<'_>) {
        let Span { time, value, others, state } = span;
        if value == 0 {
            return;
        }
        let Some(stack) = &self.stack else {
            match self.later.iter_mut().find(|later| later.state == state) {
                Some(later) => {
                    let (value, others) =
                        (later.value + value, later.others.saturating_add(others));
                    *later = Span { time, value, others, state };
                }
                None => self.later.push(span),
            }
            return;
        };
        let syscall = syscall_name(self.syscall);
        let labels = match &syscall {
            Some(name) => to.aggregate.labels(&[("state", state), ("syscall", name)]),
            None => to.aggregate.labels(&[("state", state)]),
        };
        let row = to.aggregate.add(&aggregate::Sample {
            kind: Kind::OffCpu,
            time,
            thread: self.thread,
            labels,
            weight: self.weight,
            value,
            stack: Words {
                kernel: &self.kernel,
                user: &stack.user,
                end: stack.end,
                flags: self.flags & FLAG_KERNEL_CUT,
                era: stack.era,
            },
            space: &stack.space,
        });
        if others > 0 {
            to.others.claim(self.key(), row, others);
        }
    }

    /// What it waits in is known now.
    fn settle(&mut self, stack: Stack, to: &mut Counts<'_>) {
        self.stack = Some(stack);
        for span in std::mem::take(&mut self.later) {
            self.add(span, to);
        }
    }
}

/// Threads that wait.
#[derive(Default)]
pub struct Waits {
    /// By number of the thread.
    threads: HashMap<u32, Wait>,
    others: Others,
    /// When sampling started.
    pub started: u64,
    /// Of waits that have ended and whose stacks are not known yet, by thread and beginning.
    ended: HashMap<(u32, u64), Wait>,
    pub(super) memory: ThreadMemory<MOST_BYTES>,
    /// The function that switches threads, in which the sampler runs.
    switch: Option<Range<u64>>,
    /// Waits that found no room here, or gave theirs back to another process.
    pub refused: u64,
    /// Waits whose end was not seen in time. They are counted until their thread was woken, or at
    /// most until it was switched out again or lost its slot to another; without even that record,
    /// until its next wait, a pause of sampling or the last flush.
    pub endless: u64,
}

impl Waits {
    /// Those of sampled waits.
    pub fn sampled() -> Self {
        Self { switch: functions::range_of(SWITCH), ..Self::default() }
    }

    /// A kernel stack without the sampler's own frames.
    fn below_the_switch<'a>(&self, kernel: &'a [u64]) -> &'a [u64] {
        let Some(switch) = &self.switch else { return kernel };
        let first = kernel.iter().take(OWN_FRAMES).position(|address| switch.contains(address));
        kernel.get(first.unwrap_or_default()..).unwrap_or_default()
    }

    /// `ran`: for how long its thread has run. `since`: when its program began, if sampling had started by
    /// then.
    fn begin(&mut self, mut wait: Wait, ran: u64, since: u64) {
        let since = self.started.max(since);
        wait.before = self.others.begin(wait.key(), wait.pid, wait.began, ran, since);
        let (pid, bytes) = (wait.pid, wait.bytes());
        if !self.has_room(pid, bytes) {
            self.refused += 1;
            return;
        }
        self.memory.take(pid, bytes);
        self.threads.insert(wait.thread.tid, wait);
    }

    /// Whether so much more can be kept of a process; others may lose waits for it.
    fn has_room(&mut self, pid: u32, bytes: usize) -> bool {
        if self.memory.admits(pid, bytes) == Admission::AfterExcess {
            self.drop_excess();
        }
        self.memory.admits(pid, bytes) == Admission::Admitted
    }

    fn drop_excess(&mut self) {
        let mut excess = self.memory.excess();
        let Self { threads, ended, memory, refused, .. } = self;
        let mut stays = |wait: &Wait| {
            let bytes = wait.bytes();
            let is_dropped = excess.includes(wait.pid, bytes);
            if is_dropped {
                memory.give_back(wait.pid, bytes);
                *refused += 1;
            }
            !is_dropped
        };
        threads.retain(|_, wait| stays(wait));
        ended.retain(|_, wait| stays(wait));
    }

    /// The copied stack of a wait has been unwound.
    fn settle(&mut self, tid: u32, began: u64, stack: Stack, aggregate: &mut Aggregate) {
        if let Some(mut wait) = self.ended.remove(&(tid, began)) {
            self.memory.give_back(wait.pid, wait.bytes());
            wait.settle(stack, &mut Counts { aggregate, others: &mut self.others });
            return;
        }
        let known = self.threads.get(&tid).filter(|wait| wait.began == began);
        let Some(pid) = known.map(|wait| wait.pid) else { return };
        let bytes = size_of_val(&*stack.user);
        let has_room = self.has_room(pid, bytes);
        let Some(mut wait) = self.take(tid) else { return };
        // What has passed of it until now has its stack in any case.
        wait.settle(stack, &mut Counts { aggregate, others: &mut self.others });
        if has_room {
            self.memory.take(pid, wait.bytes());
            self.threads.insert(tid, wait);
        } else {
            self.refused += 1;
        }
    }

    fn take(&mut self, tid: u32) -> Option<Wait> {
        let wait = self.threads.remove(&tid)?;
        self.memory.give_back(wait.pid, wait.bytes());
        Some(wait)
    }

    /// A wait has ended, and was counted.
    fn note_ended(&mut self, wait: Wait) {
        if wait.stack.is_none() {
            self.memory.take(wait.pid, wait.bytes());
            self.ended.insert((wait.thread.tid, wait.began), wait);
        }
    }

    /// Counts what has passed of all waits, and those for which sampled ones stand.
    fn count(&mut self, until: u64, aggregate: &mut Aggregate) {
        self.count_sampled(until, aggregate);
        let all = self.threads.values().chain(self.ended.values());
        let unknown: HashSet<unsampled::Key> =
            all.filter(|wait| wait.stack.is_none()).map(Wait::key).collect();
        self.others.divide(until, aggregate, |key| unknown.contains(key));
    }

    fn count_sampled(&mut self, until: u64, aggregate: &mut Aggregate) {
        let mut to = Counts { aggregate, others: &mut self.others };
        self.threads.values_mut().for_each(|wait| wait.count(until, 0, &mut to));
    }

    /// Whose they are, and what those had mapped.
    pub fn owners(&self) -> impl Iterator<Item = (ImageId, Option<&Space>)> + '_ {
        let all = self.threads.values().chain(self.ended.values());
        all.map(|wait| (wait.thread.image, wait.stack.as_ref().map(|stack| &stack.space)))
    }

    /// Waits of a process are not sampled any more.
    pub(super) fn leave_out(&mut self, pid: u32) {
        let Self { threads, memory, .. } = self;
        threads.retain(|_, wait| {
            let stays = wait.pid != pid;
            if !stays {
                memory.give_back(pid, wait.bytes());
            }
            stays
        });
    }

    /// Sampling was stopped, and what threads have done since is not known: their waits end with what
    /// was counted of them.
    pub(super) fn interrupt(&mut self) {
        for wait in std::mem::take(&mut self.threads).into_values() {
            self.memory.give_back(wait.pid, wait.bytes());
            self.endless += 1;
        }
        self.others.interrupt();
    }

    /// Forgets those of programs that are gone: their ends were lost.
    pub fn retain(&mut self, is_there: impl Fn(u32, ImageId) -> bool) {
        let (memory, endless) = (&mut self.memory, &mut self.endless);
        self.threads.retain(|_, wait| {
            let stays = is_there(wait.pid, wait.thread.image);
            if !stays {
                memory.give_back(wait.pid, wait.bytes());
                *endless += 1;
            }
            stays
        });
        let threads = &self.threads;
        let waits =
            |key: &unsampled::Key| threads.get(&key.0).is_some_and(|wait| wait.key() == *key);
        self.others.retain(waits, is_there);
    }
}

impl Engine {
    /// The first record of a wait. Without a stack, a copy of that waits for tables.
    pub(super) fn begin_wait(
        &mut self,
        sample: Sample<'_>,
        thread: ThreadKey,
        stack: Option<Stack>,
    ) {
        let Header { time, pid, weight, flags, kernel_frames, .. } = sample.header;
        let Some([state, syscall]) = sample.wait() else { return };
        let ran = sample.header.value & RAN;
        // It was left out after this was sent.
        if self.store.is_skipped(pid) || self.store.unwanted_of(pid) & UNWANTED_OFF_CPU != 0 {
            return;
        }
        let kernel = sample.words.get(..usize::from(kernel_frames)).unwrap_or_default();
        if stack.as_ref().is_some_and(|stack| stack.end == End::NoProcess) {
            // The next one will be whole.
            self.processes.dirty.insert(pid);
            self.loading.need(&self.table, pid, 0);
        }
        if let Some(mut before) = self.waits.take(thread.tid) {
            // Its end was lost. It was before this one began, and not long before where every wait
            // of the thread is recorded. Another process may have the number by now.
            self.waits.endless += 1;
            if before.weight == 1 && before.thread.image == thread.image {
                let others = &mut self.waits.others;
                before.count(time, 0, &mut Counts { aggregate: &mut self.aggregate, others });
            }
            self.waits.note_ended(before);
        }
        let since = self.table.image(thread.image).map_or(0, |image| image.started);
        let wait = Wait {
            thread,
            pid,
            began: time,
            counted: time,
            weight: weight.max(1),
            before: 0,
            state,
            syscall,
            kernel: self.waits.below_the_switch(kernel).into(),
            flags,
            stack,
            later: Vec::new(),
        };
        self.waits.begin(wait, ran, since);
    }

    /// The copied stack of a wait has been unwound.
    pub(super) fn settle_wait(&mut self, tid: u32, began: u64, stack: Stack) {
        self.waits.settle(tid, began, stack, &mut self.aggregate);
    }

    /// The thread of a wait runs again.
    pub(super) fn end_wait(&mut self, sample: Sample<'_>) {
        let Header { time, tid, value: began, flags, .. } = sample.header;
        if self.waits.threads.get(&tid).is_none_or(|wait| wait.began != began) {
            return;
        }
        let Some(mut wait) = self.waits.take(tid) else { return };
        self.waits.endless += u64::from(flags & FLAG_LATE != 0);
        let Some(&[woken, walk]) = sample.words.first_chunk::<ENDED_WORDS>() else { return };
        let others = &mut self.waits.others;
        wait.end(time, woken, walk, &mut Counts { aggregate: &mut self.aggregate, others });
        self.waits.note_ended(wait);
    }

    /// Counts what has passed of all waits.
    pub(super) fn count_waits(&mut self, until: u64) {
        self.waits.count(until, &mut self.aggregate);
    }

    /// Sampling has ended: counts what has passed of all waits until then.
    pub(super) fn count_last_waits(&mut self, until: u64) {
        self.waits.count_sampled(until, &mut self.aggregate);
        self.waits.others.pass_last(until, run_time_of);
        self.count_waits(until);
    }
}

/// For how long a thread has run by now, in nanoseconds, and what time it is; `None` when it is gone.
fn run_time_of(pid: u32, tid: u32) -> Option<(u64, u64)> {
    let account = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    Some((account.split_ascii_whitespace().next()?.parse().ok()?, monotonic_nanos()))
}

/// A thread's state, by the bits of `task_struct.__state` (include/linux/sched.h).
pub(super) fn state_name(state: u64) -> &'static str {
    const UNINTERRUPTIBLE: u64 = 2;
    const STOPPED: u64 = 4 | 8;
    match state {
        STATE_RUNNABLE => RUNNABLE,
        state if state & STOPPED != 0 => "stopped",
        state if state & UNINTERRUPTIBLE != 0 => "uninterruptible",
        _ => "blocked",
    }
}

pub(super) fn syscall_name(number: u64) -> Option<&'static str> {
    if number == NO_SYSCALL {
        return None;
    }
    Some(Sysno::new(usize::try_from(number).ok()?)?.name())
}

#[cfg(test)]
mod tests;
