//! Waits of threads: from the record of a switch-out and that of the return to a CPU to samples
//! with a duration.
//!
//! A wait's time is counted when it ends, and what has passed of it so far at each flush: a thread
//! that waits for hours is in every period with what it waited in that period.
//!
//! Invariant: of a sampled wait every nanosecond is counted once, as runnable or in its state. What
//! is kept is bounded, and waits that found no room or lost their end are counted.

use std::collections::HashMap;
use std::ops::Range;

use strata_abi::record::{
    ENDED_WORDS, End, FLAG_KERNEL_CUT, FLAG_LATE, Header, NO_SYSCALL, STATE_RUNNABLE,
    WOKEN_BY_OWN_CPU,
};
use strata_abi::tables::UNWANTED_OFF_CPU;
use strata_kinds::Kind;
use syscalls::Sysno;

use super::Engine;
use super::samples::Sample;
use super::thread_memory::{Admission, ThreadMemory};
use crate::aggregate::{self, Aggregate, ThreadKey, Words};
use crate::image_id::ImageId;
use crate::kernel::functions;
use crate::processes::table::Space;
use crate::random::Random;

/// Bytes of stacks of threads that wait, of all processes ([`ThreadMemory`]).
const MOST_BYTES: usize = 32 << 20;

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
    spare: Spare,
    /// `task_struct.__state`.
    state: u64,
    syscall: u64,
    kernel: Box<[u64]>,
    flags: u8,
    /// None while the copy of its stack waits for tables.
    stack: Option<Stack>,
    /// What is to be counted once there is a stack.
    later: Vec<Span>,
    /// Of the waits that it stands for, what has not passed yet, and their state.
    owed: Option<(u64, &'static str)>,
}

/// A part of a wait: when it ended, how long it and those were that it stands for, the thread's state.
#[derive(Clone, Copy)]
struct Span {
    time: u64,
    value: u64,
    state: &'static str,
}

/// What has passed of a thread's time and was not counted as a wait: what others may have taken for which a
/// sampled one stands. A thread cannot wait for longer than time has passed: one that was switched all the
/// time and then sleeps once would, where that sleep is sampled.
#[derive(Clone, Copy, Default)]
struct Spare {
    nanos: u64,
    /// Up to when time has passed.
    until: u64,
}

/// More is not kept: a thread that was running for hours has not waited meanwhile. Of one that has not waited
/// for so long nothing is kept: it would have as much in any case.
const MOST_SPARE: u64 = 10_000_000_000;
/// More is not owed to a wait: what passes much later is of other waits, or none.
const MOST_OWED: u64 = 1_000_000_000;

impl Spare {
    /// Time passes without a wait that is sampled.
    fn pass(&mut self, until: u64) {
        let passed = until.saturating_sub(self.until);
        self.nanos = self.nanos.saturating_add(passed).min(MOST_SPARE);
        self.until = self.until.max(until);
    }

    /// What a part of a wait and others like it have taken, and what of those has not passed yet: they may
    /// come after it.
    fn take(&mut self, lasted: u64, weight: u32, until: u64) -> (u64, u64) {
        let others = lasted.saturating_mul(u64::from(weight.max(1)) - 1);
        let passed = self.pay(others);
        self.until = self.until.max(until);
        (lasted.saturating_add(passed), others - passed)
    }

    /// Takes so much of it, as far as it is there.
    fn pay(&mut self, owed: u64) -> u64 {
        let paid = owed.min(self.nanos);
        self.nanos -= paid;
        paid
    }
}

impl Wait {
    fn bytes(&self) -> usize {
        let user = self.stack.as_ref().map_or(0, |stack| size_of_val(&*stack.user));
        size_of::<Self>() + size_of_val(&*self.kernel) + user
    }

    /// Counts the rest of it. `walk`: for how long its thread was walked when it began, and whether the CPU
    /// that it had left has woken it. Where that could only be after the walk, or it has been preempted, its
    /// wait began then; where it was woken meanwhile, it has run later for it.
    fn end(&mut self, until: u64, woken: u64, walk: u64, to: &mut Aggregate) {
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
    fn count(&mut self, until: u64, woken: u64, to: &mut Aggregate) {
        let runnable_from = match (self.state, woken) {
            (STATE_RUNNABLE, _) => self.began,
            (_, 0) => until,
            (_, woken) => woken,
        };
        let from = self.counted;
        let until = until.max(from);
        let runs_from = runnable_from.clamp(from, until);
        for (from, time, state) in
            [(from, runs_from, state_name(self.state)), (runs_from, until, "runnable")]
        {
            let (value, owed) = self.spare.take(time - from, self.weight, time);
            self.add(Span { time, value, state }, to);
            if owed > 0 {
                let before = self.owed.map_or(0, |(before, _)| before);
                self.owed = Some((before.saturating_add(owed).min(MOST_OWED), state));
            }
        }
        self.counted = until;
    }

    fn add(&mut self, span: Span, to: &mut Aggregate) {
        let Span { time, value, state } = span;
        if value == 0 {
            return;
        }
        let Some(stack) = &self.stack else {
            match self.later.iter_mut().find(|later| later.state == state) {
                Some(later) => *later = Span { time, value: later.value + value, state },
                None => self.later.push(span),
            }
            return;
        };
        let syscall = syscall_name(self.syscall);
        let labels = match &syscall {
            Some(name) => to.labels(&[("state", state), ("syscall", name)]),
            None => to.labels(&[("state", state)]),
        };
        to.add(&aggregate::Sample {
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
    }

    /// What it waits in is known now.
    fn settle(&mut self, stack: Stack, to: &mut Aggregate) {
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
    /// Of threads whose last sampled wait has ended.
    spares: HashMap<u32, (ImageId, Spare)>,
    /// When sampling started.
    pub started: u64,
    /// By thread: a wait that has ended, of whose time some has not passed yet.
    owed: HashMap<u32, Wait>,
    random: Random,
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

    /// `since`: when its program began, if sampling had started by then.
    fn begin(&mut self, mut wait: Wait, since: u64, to: &mut Aggregate) {
        let known = self.spares.remove(&wait.thread.tid);
        let known = known.filter(|(image, _)| *image == wait.thread.image);
        // What one may have waited that has not been seen before.
        let new = Spare { nanos: 0, until: self.started.max(since) };
        wait.spare = known.map_or(new, |(_, spare)| spare);
        wait.spare.pass(wait.began);
        self.pay_what_is_owed(&mut wait, to);
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
        let Self { threads, ended, owed, memory, refused, .. } = self;
        let mut stays = |wait: &Wait| {
            let bytes = wait.bytes();
            let is_dropped = excess.includes(wait.pid, bytes);
            if is_dropped {
                memory.give_back(wait.pid, bytes);
                *refused += 1;
            }
            !is_dropped
        };
        // Of these the least is lost.
        owed.retain(|_, wait| stays(wait));
        threads.retain(|_, wait| stays(wait));
        ended.retain(|_, wait| stays(wait));
    }

    /// The copied stack of a wait has been unwound.
    fn settle(&mut self, tid: u32, began: u64, stack: Stack, to: &mut Aggregate) {
        if let Some(mut wait) = self.ended.remove(&(tid, began)) {
            self.memory.give_back(wait.pid, wait.bytes());
            wait.settle(stack, to);
            return;
        }
        let known = self.threads.get(&tid).filter(|wait| wait.began == began);
        let Some(pid) = known.map(|wait| wait.pid) else { return };
        let bytes = size_of_val(&*stack.user);
        let has_room = self.has_room(pid, bytes);
        let Some(mut wait) = self.take(tid) else { return };
        // What has passed of it until now has its stack in any case.
        wait.settle(stack, to);
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
        let tid = wait.thread.tid;
        self.spares.insert(tid, (wait.thread.image, wait.spare));
        if wait.stack.is_none() {
            self.memory.take(wait.pid, wait.bytes());
            self.ended.insert((tid, wait.began), wait);
        } else if let Some((owed, state)) = wait.owed {
            // Of several, one by chance has what all are owed.
            let all = owed.saturating_add(self.owed_to(tid).unwrap_or_default()).min(MOST_OWED);
            if self.random.below(u32::try_from(all).unwrap_or(u32::MAX)) as u64 >= owed {
                if let Some(before) = self.owed.get_mut(&tid).and_then(|wait| wait.owed.as_mut()) {
                    before.0 = all;
                }
            } else if self.has_room(wait.pid, wait.bytes()) {
                self.forget_owed(tid);
                self.memory.take(wait.pid, wait.bytes());
                self.owed.insert(tid, Wait { owed: Some((all, state)), ..wait });
            }
        }
    }

    fn owed_to(&self, tid: u32) -> Option<u64> {
        Some(self.owed.get(&tid)?.owed?.0)
    }

    fn forget_owed(&mut self, tid: u32) {
        if let Some(wait) = self.owed.remove(&tid) {
            self.memory.give_back(wait.pid, wait.bytes());
        }
    }

    /// Time has passed since the thread of a wait has waited before.
    fn pay_what_is_owed(&mut self, now: &mut Wait, to: &mut Aggregate) {
        let tid = now.thread.tid;
        let Some(wait) = self.owed.get_mut(&tid) else { return };
        let is_same = wait.thread.image == now.thread.image;
        if let Some((owed, state)) = wait.owed.filter(|_| is_same) {
            let value = now.spare.pay(owed);
            wait.add(Span { time: now.began, value, state }, to);
            if value < owed {
                wait.owed = Some((owed - value, state));
                return;
            }
        }
        self.forget_owed(tid);
    }

    /// Whose they are, and what those had mapped.
    pub fn owners(&self) -> impl Iterator<Item = (ImageId, Option<&Space>)> + '_ {
        let all = self.threads.values().chain(self.ended.values()).chain(self.owed.values());
        all.map(|wait| (wait.thread.image, wait.stack.as_ref().map(|stack| &stack.space)))
    }

    /// Waits of a process are not sampled any more.
    pub(super) fn leave_out(&mut self, pid: u32) {
        let Self { threads, owed, memory, .. } = self;
        let mut stays = |wait: &Wait| {
            let stays = wait.pid != pid;
            if !stays {
                memory.give_back(pid, wait.bytes());
            }
            stays
        };
        threads.retain(|_, wait| stays(wait));
        owed.retain(|_, wait| stays(wait));
    }

    /// Sampling was stopped, and what threads have done since is not known: their waits end with what
    /// was counted of them.
    pub(super) fn interrupt(&mut self) {
        for wait in std::mem::take(&mut self.threads).into_values() {
            self.memory.give_back(wait.pid, wait.bytes());
            self.endless += 1;
        }
        for wait in std::mem::take(&mut self.owed).into_values() {
            self.memory.give_back(wait.pid, wait.bytes());
        }
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
        let latest = self.spares.values().map(|(_, spare)| spare.until).max().unwrap_or_default();
        self.spares.retain(|_, (_, spare)| latest - spare.until < MOST_SPARE);
        // Threads end without a word here: one that has not waited for long is owed nothing.
        let Self { threads, spares, owed, memory, .. } = self;
        owed.retain(|tid, wait| {
            let is_known = spares.contains_key(tid) || threads.contains_key(tid);
            let stays = is_known && is_there(wait.pid, wait.thread.image);
            if !stays {
                memory.give_back(wait.pid, wait.bytes());
            }
            stays
        });
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
        let Some((state, syscall)) = sample.wait() else { return };
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
                before.count(time, 0, &mut self.aggregate);
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
            spare: Spare::default(),
            state,
            syscall,
            kernel: self.waits.below_the_switch(kernel).into(),
            flags,
            stack,
            later: Vec::new(),
            owed: None,
        };
        self.waits.begin(wait, since, &mut self.aggregate);
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
        wait.end(time, woken, walk, &mut self.aggregate);
        self.waits.note_ended(wait);
    }

    /// Counts what has passed of all waits.
    pub(super) fn count_waits(&mut self, until: u64) {
        for wait in self.waits.threads.values_mut() {
            wait.count(until, 0, &mut self.aggregate);
        }
    }
}

/// A thread's state, by the bits of `task_struct.__state` (include/linux/sched.h).
pub(super) fn state_name(state: u64) -> &'static str {
    const UNINTERRUPTIBLE: u64 = 2;
    const STOPPED: u64 = 4 | 8;
    match state {
        STATE_RUNNABLE => "runnable",
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
mod tests {
    use super::*;

    fn wait(state: u64, began: u64, stack: Option<Stack>) -> Wait {
        Wait {
            thread: ThreadKey { image: ImageId(1), tid: 7, comm: [0; 16], domain: 0 },
            pid: 7,
            began,
            counted: began,
            weight: 4,
            spare: Spare { nanos: MOST_SPARE, until: began },
            state,
            syscall: NO_SYSCALL,
            kernel: Box::new([0xffff_ffff_8100_0000]),
            flags: 0,
            stack,
            later: Vec::new(),
            owed: None,
        }
    }

    fn stack() -> Stack {
        Stack { user: Box::default(), end: End::KernelOnly, era: 0, space: Space::default() }
    }

    /// Nanoseconds by state.
    fn counted(aggregate: &Aggregate) -> Vec<(String, u64)> {
        let rows = aggregate.rows().map(|row| {
            let labels = aggregate.labels_of(row.labels);
            let state = labels.iter().find(|(name, _)| &**name == "state");
            (state.map_or_else(String::new, |(_, value)| value.to_string()), row.value)
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        rows
    }

    #[test]
    fn a_wait_is_blocked_until_it_is_woken_and_runnable_from_then_on() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        wait(1, 100, Some(stack())).count(200, 180, &mut aggregate);
        let expected = [("blocked".to_owned(), 80 * 4), ("runnable".to_owned(), 20 * 4)];
        assert_eq!(counted(&aggregate), expected);
    }

    #[test]
    fn a_preempted_thread_is_runnable_all_the_time() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        wait(STATE_RUNNABLE, 100, Some(stack())).count(150, 0, &mut aggregate);
        assert_eq!(counted(&aggregate), [("runnable".to_owned(), 50 * 4)]);
    }

    #[test]
    fn a_thread_waits_no_longer_than_time_passes() {
        let (mut waits, mut to) = (Waits::default(), Aggregate::new(strata_kinds::Kinds::NONE));
        let mut run = |began, ended, weight| {
            let before = counted(&to).iter().map(|(_, value)| value).sum::<u64>();
            waits.begin(Wait { weight, ..wait(1, began, Some(stack())) }, 0, &mut to);
            let mut wait = waits.take(7).expect("it waits");
            wait.end(ended, 0, 0, &mut to);
            waits.note_ended(wait);
            counted(&to).iter().map(|(_, value)| value).sum::<u64>() - before
        };
        assert_eq!(run(1_000, 1_010, 16), 160, "of 1,000 since sampling started");
        assert_eq!(run(1_200, 9_200, 16), 8_000 + 850 + 190, "with what is left, and has passed");
        assert_eq!(run(9_210, 9_220, 4), 20);
        // And one that has not waited for long.
        assert_eq!(run(90 * MOST_SPARE, 100 * MOST_SPARE, 4), 11 * MOST_SPARE);
        waits.retain(|_, _| true);
        assert_eq!(waits.spares.len(), 1);
        waits.spares.insert(8, (ImageId(1), Spare { nanos: 0, until: 101 * MOST_SPARE }));
        waits.retain(|_, _| true);
        assert!(!waits.spares.contains_key(&7));
    }

    #[test]
    fn waits_that_come_after_the_one_that_stands_for_them_are_counted() {
        // Blocks of two waits of a hundred: of each, one by turns is sampled.
        let (mut waits, mut to) = (Waits::default(), Aggregate::new(strata_kinds::Kinds::NONE));
        waits.started = 1;
        for block in 0..100 {
            let began = 1 + block * 200 + block % 2 * 100;
            waits.begin(Wait { weight: 2, ..wait(1, began, Some(stack())) }, 0, &mut to);
            let mut wait = waits.take(7).expect("it waits");
            wait.end(began + 100, 0, 0, &mut to);
            waits.note_ended(wait);
        }
        let sum: u64 = counted(&to).iter().map(|(_, value)| value).sum();
        assert_eq!(sum, 100 * 200);
        // What is owed does not grow without end, and ends with its program.
        waits.begin(Wait { weight: 1 << 20, ..wait(1, 20_001, Some(stack())) }, 0, &mut to);
        let mut wait = waits.take(7).expect("it waits");
        wait.end(2 * MOST_OWED, 0, 0, &mut to);
        waits.note_ended(wait);
        assert_eq!(waits.owed_to(7), Some(MOST_OWED));
        waits.retain(|_, _| false);
        assert_eq!((waits.owed_to(7), waits.memory.used()), (None, 0));
    }

    #[test]
    fn what_walking_a_thread_adds_to_its_wait_is_not_counted() {
        let ended = |state, woken, walk| {
            let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
            wait(state, 100, Some(stack())).end(200, woken, walk, &mut aggregate);
            counted(&aggregate).into_iter().map(|(_, value)| value / 4).collect::<Vec<_>>()
        };
        let own = WOKEN_BY_OWN_CPU;
        assert_eq!(ended(1, 180, 30), [80, 20], "another CPU has gone on meanwhile");
        assert_eq!(ended(1, 180, 30 | own), [50, 20], "its own could not");
        assert_eq!(ended(1, 110, 30), [10, 70], "it was woken during the walk");
        assert_eq!(ended(1, 110, 30 | own), [10, 70], "by an interrupt");
        assert_eq!(ended(1, 0, 30), [100], "it is not known when it was woken");
        assert_eq!(ended(STATE_RUNNABLE, 0, 30), [70]);
        assert!(ended(STATE_RUNNABLE, 0, 300).is_empty());
        // A part of it has been counted.
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        let mut wait = wait(1, 100, Some(stack()));
        wait.count(150, 0, &mut aggregate);
        wait.end(200, 180, 30 | own, &mut aggregate);
        let expected = [("blocked".to_owned(), 80 * 4), ("runnable".to_owned(), 20 * 4)];
        assert_eq!(counted(&aggregate), expected);
    }

    #[test]
    fn every_nanosecond_of_a_long_wait_is_in_one_period() {
        let [mut first, mut second] = [(); 2].map(|()| Aggregate::new(strata_kinds::Kinds::NONE));
        let mut wait = wait(2, 100, Some(stack()));
        wait.count(1_000, 0, &mut first);
        // A clock that two CPUs read may seem to go back.
        wait.count(990, 0, &mut second);
        wait.count(1_500, 1_400, &mut second);
        assert_eq!(counted(&first), [("uninterruptible".to_owned(), 900 * 4)]);
        let expected = [("runnable".to_owned(), 100 * 4), ("uninterruptible".to_owned(), 400 * 4)];
        assert_eq!(counted(&second), expected);
    }

    #[test]
    fn what_passes_before_the_stack_is_known_is_counted_with_it() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        let mut wait = wait(1, 100, None);
        wait.count(200, 0, &mut aggregate);
        wait.count(350, 0, &mut aggregate);
        assert_eq!(counted(&aggregate), []);
        wait.settle(stack(), &mut aggregate);
        assert_eq!(counted(&aggregate), [("blocked".to_owned(), 250 * 4)]);
    }

    #[test]
    fn a_wait_that_goes_with_its_program_is_counted_as_one_without_an_end() {
        let mut waits = Waits::default();
        let mut to = Aggregate::new(strata_kinds::Kinds::NONE);
        waits.begin(wait(1, 100, Some(stack())), 0, &mut to);
        waits.retain(|pid, image| (pid, image) == (7, ImageId(1)));
        assert_eq!((waits.threads.len(), waits.endless), (1, 0));
        waits.retain(|_, image| image == ImageId(2));
        assert_eq!((waits.threads.len(), waits.endless, waits.memory.used()), (0, 1, 0));
    }

    #[test]
    fn a_wait_from_before_a_pause_is_not_counted_after_it() {
        let (mut waits, mut to) = (Waits::default(), Aggregate::new(strata_kinds::Kinds::NONE));
        waits.begin(wait(1, 1_000, Some(stack())), 0, &mut to);
        waits.threads.values_mut().for_each(|wait| wait.count(1_050, 0, &mut to));
        waits.interrupt();
        assert_eq!((waits.threads.len(), waits.endless, waits.memory.used()), (0, 1, 0));
        waits.threads.values_mut().for_each(|wait| wait.count(2_000, 0, &mut to));
        assert_eq!(counted(&to), [("blocked".to_owned(), 50 * 4)]);
    }

    /// A wait of a thread of a process, in a deep stack.
    fn deep(pid: u32, tid: u32) -> Wait {
        let stack = Stack { user: vec![0; 1024].into(), ..stack() };
        let wait = wait(1, 100, Some(stack));
        Wait { pid, thread: ThreadKey { image: ImageId(pid), tid, ..wait.thread }, ..wait }
    }

    #[test]
    fn a_process_with_threads_without_end_leaves_others_their_waits() {
        let mut waits = Waits::default();
        let mut to = Aggregate::new(strata_kinds::Kinds::NONE);
        for tid in 0..10_000 {
            waits.begin(deep(7, tid), 0, &mut to);
        }
        let alone = waits.memory.of(7);
        assert!(alone > MOST_BYTES / 2 && alone <= MOST_BYTES - MOST_BYTES / 4, "{alone}");
        let refused = waits.refused;
        assert!(refused > 0);
        // Others need more than it has left.
        for tid in 10_000..11_500 {
            let pid = 8 + tid % 3;
            waits.begin(deep(pid, tid), 0, &mut to);
            waits.begin(deep(7, tid + 10_000), 0, &mut to);
        }
        let kept = |pid: u32| waits.threads.values().filter(|wait| wait.pid == pid).count();
        assert_eq!([8, 9, 10].map(kept), [500; 3]);
        assert_eq!(kept(7) as u64 + 3 * 500 + waits.refused, 10_000 + 2 * 1_500);
        assert!(waits.refused > refused);
        for tid in 20_000..30_000 {
            waits.begin(deep(7, tid), 0, &mut to);
            waits.begin(deep(8 + tid % 3, tid + 20_000), 0, &mut to);
        }
        // One that began within the share may end above it.
        let most = MOST_BYTES / 4 + deep(7, 1).bytes();
        assert!(waits.memory.of(7) <= most, "{} of {most}", waits.memory.of(7));
        assert!(waits.memory.used() <= MOST_BYTES);
    }

    #[test]
    fn a_stack_that_finds_no_room_when_it_is_known_is_counted_up_to_then() {
        let (mut waits, mut to) = (Waits::default(), Aggregate::new(strata_kinds::Kinds::NONE));
        for tid in 0..10_000 {
            waits.begin(deep(7, tid), 0, &mut to);
        }
        let mut shallow = Wait { pid: 7, ..wait(1, 100, None) };
        shallow.thread.tid = 50_000;
        shallow.count(200, 0, &mut to);
        waits.memory.take(7, shallow.bytes());
        waits.threads.insert(50_000, shallow);
        let (used, refused) = (waits.memory.used(), waits.refused);
        let Some(Stack { user, .. }) = deep(7, 1).stack else { panic!("it has a stack") };
        waits.settle(50_000, 100, Stack { user, ..stack() }, &mut to);
        assert_eq!(counted(&to), [("blocked".to_owned(), 100 * 4)]);
        assert!(waits.memory.used() < used && waits.refused == refused + 1);
    }

    #[test]
    fn the_samplers_own_frames_are_left_out() {
        let waits = Waits { switch: Some(100..200), ..Waits::default() };
        assert_eq!(waits.below_the_switch(&[1, 2, 150, 300]), [150, 300]);
        assert_eq!(waits.below_the_switch(&[1, 2, 300]), [1, 2, 300]);
        assert_eq!(Waits::default().below_the_switch(&[1, 150]), [1, 150]);
    }
}
