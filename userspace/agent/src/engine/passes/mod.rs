//! Passes over threads: ordered from the reader ([`crate::kernel::thread_reader`]), which repeats those over
//! active threads at its own pace. A few times a second the engine takes their records and what they have
//! cost, and orders others where other threads are active by then.
//!
//! - [`schedule`]: when passes run, and which threads each goes over;
//! - [`cpu_share`]: what they have cost, and the share of a CPU that they may take;
//! - this module: orders, reports and records, and readers that hang.
//!
//! Invariant: no pass is waited for without a limit. A reader that hangs is left behind, the
//! process that it hung at is not walked for a while, and the next pass goes on.

mod cpu_share;
mod schedule;

use std::time::{Duration, Instant};

use strata_abi::record::{FLAG_KERNEL_CUT, Header, STATE_ENDED};
use strata_abi::tables::{Pass, UNWANTED_WALL, Walking};

use super::samples::Sample;
use super::waits::Stack;
use super::wall::{Activity, Wall, Whole};
use super::{Engine, monotonic_nanos};
use crate::aggregate::ThreadKey;
use crate::kernel::loader::PassReport;
use crate::kernel::thread_reader::{Cost, Order};
use schedule::{Choice, Schedule};

/// A reader that sleeps at one thread for so long hangs.
const HANGS: Duration = Duration::from_secs(1);
/// The last pass of a recording is waited for so long.
const LAST: Duration = Duration::from_secs(2);

/// Counts of outcomes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassFigures {
    pub passes: u64,
    /// Readers that were left behind.
    pub abandoned: u64,
    /// Passes that did not begin because too many readers hang, or whose reader failed.
    pub refused: u64,
    /// Nanoseconds of CPU time of readers.
    pub reading: u64,
    /// Of that, what passes used that sent every thread: each first one.
    pub sending_all: u64,
    /// Nanoseconds from the beginning of the last pass to the next.
    pub interval: u64,
    pub threads: usize,
}

/// The passes of an engine.
pub(super) struct Passes {
    is_on: bool,
    schedule: Schedule,
    epoch: u32,
    /// When the last complete pass over all threads began, by the records' clock.
    previous: u64,
    /// When the one that is on began, and by the other clock.
    current: u64,
    began: Option<Instant>,
    /// Where the reader was last seen, and since when.
    seen: (Walking, Instant),
    figures: PassFigures,
}

impl Passes {
    pub(super) fn new(frequency: u32, cpus: usize) -> Self {
        Self {
            is_on: false,
            schedule: Schedule::new(frequency, cpus),
            epoch: 1,
            previous: 0,
            current: 0,
            began: None,
            seen: (Walking::default(), Instant::now()),
            figures: PassFigures::default(),
        }
    }

    pub(super) fn start(&mut self) {
        self.is_on = true;
        self.schedule.set_next(Instant::now());
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn stop(&mut self) {
        self.is_on = false;
    }

    pub(super) fn set_frequency(&mut self, frequency: u32) {
        self.schedule.set_frequency(frequency);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.is_on.then_some(self.schedule.next())
    }

    /// Every thread is sent again, as if it had not been sent before.
    pub(super) fn send_all(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.schedule.send_all();
    }

    /// A pass failed, or could not begin.
    fn rest(&mut self) {
        self.figures.refused += 1;
        self.schedule.rest();
    }

    /// Takes the cost of repeated passes since the last report and, if a pass over all threads has ended
    /// since, its cost and whether records were lost. Where they were, a thread may never have been sent: the
    /// next pass is the first one for it, and its time counts from the pass that was complete. True where a
    /// pass over all threads has ended.
    fn take_report(&mut self, repeated: Cost, over_all: Option<(Cost, bool)>) -> bool {
        self.note_cost(repeated);
        let began = over_all.and_then(|_| self.began.take());
        let Some(((cost, lost_some), began)) = over_all.zip(began) else {
            self.schedule.take_report(repeated, None);
            return false;
        };
        if !lost_some {
            self.previous = self.current;
        }
        self.note_cost(cost);
        if self.schedule.sends_all() {
            self.figures.sending_all += cost.nanos;
        }
        self.schedule.take_report(repeated, Some((began, cost)));
        true
    }

    fn note_cost(&mut self, cost: Cost) {
        self.figures.passes += u64::from(cost.passes);
        self.figures.reading += cost.nanos;
    }
}

impl Engine {
    /// Takes what passes have done, and orders others, when that is due.
    pub(super) fn pass_over_threads(&mut self) {
        if !self.passes.is_on || Instant::now() < self.passes.schedule.next() {
            return;
        }
        self.take_pass_report();
        let now = Instant::now();
        let schedule = &mut self.passes.schedule;
        if self.passes.began.is_some() {
            schedule.await_over_all(now);
            return;
        }
        if now < schedule.next() {
            return;
        }
        let wall = self.wall.as_ref();
        let count = |pid| wall.map_or(0, |wall| wall.count_of(pid));
        match schedule.choose(now, count) {
            Choice::All => self.begin_pass(),
            Choice::Only => {
                schedule.stop_repeating();
                self.begin_pass();
            }
            Choice::Targets(targets) => {
                if schedule.repeat(targets, now) {
                    self.order_passes(false);
                }
            }
            Choice::Later(next) => {
                schedule.set_next(next);
                self.rest_passes();
            }
        }
    }

    /// Nothing is repeated any more.
    pub(super) fn rest_passes(&mut self) {
        if self.passes.schedule.stop_repeating() {
            // One over all threads that is on ends for nothing.
            self.passes.began = None;
            self.order_passes(false);
        }
    }

    /// Begins a pass over all threads. Those that are repeated go on afterwards.
    fn begin_pass(&mut self) {
        let now = Instant::now();
        self.passes.schedule.begin_over_all(now);
        self.passes.current = monotonic_nanos();
        if self.order_passes(true) {
            self.passes.began = Some(now);
            // It may still be at a thread of the passes before.
            if self.passes.seen.0.tid == 0 {
                self.passes.seen = (Walking::default(), now);
            }
        }
    }

    /// A pass over all threads, if wanted, and those that are repeated. False where there is no reader for
    /// them.
    fn order_passes(&mut self, over_all: bool) -> bool {
        let passes = &mut self.passes;
        let order = Order { over_all, repeated: passes.schedule.repeated().cloned() };
        let pass = Pass { epoch: passes.epoch, previous: passes.previous, ..Pass::default() };
        match self.programs.order_passes(pass, &order) {
            Ok(true) => return true,
            Ok(false) => {
                if passes.figures.refused == 0 {
                    tracing::warn!(
                        "wall-clock time pauses: {} processes that read threads hang",
                        passes.figures.abandoned
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "threads cannot be walked"),
        }
        passes.rest();
        false
    }

    /// Takes what the reader reports. True where a pass over all threads has ended.
    fn take_pass_report(&mut self) -> bool {
        let PassReport { repeated, over_all, has_failed } = self.programs.pass_report();
        let has_ended = self.passes.take_report(repeated, over_all);
        if has_failed {
            self.passes.began = None;
            self.passes.rest();
            return false;
        }
        if !has_ended {
            self.leave_hanging_reader();
        }
        has_ended
    }

    /// Gives the reader up, if it hangs.
    fn leave_hanging_reader(&mut self) {
        let at = self.programs.pass_position();
        let now = Instant::now();
        // Between two passes it sleeps, too.
        let is_at_work = self.passes.began.is_some() || at.tid != 0;
        if !is_at_work || at != self.passes.seen.0 || !self.programs.pass_sleeps() {
            self.passes.seen = (at, now);
            return;
        }
        if now.saturating_duration_since(self.passes.seen.1) < HANGS {
            return;
        }
        let pid = if at.tid == 0 { 0 } else { at.pid };
        tracing::warn!(
            pid,
            tid = at.tid,
            "reading a thread's stack hangs: its process is not walked for a while"
        );
        self.programs.abandon_pass(pid);
        self.passes.figures.abandoned += 1;
        self.passes.began = None;
        self.passes.schedule.stop_repeating();
    }

    /// A whole pass over all threads, now: false if it did not end in time.
    pub(super) fn pass_now(&mut self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        // One that is on began before now.
        let mut is_this = false;
        while Instant::now() < end {
            let refused = self.passes.figures.refused;
            let has_ended = self.take_pass_report();
            if self.passes.figures.refused > refused {
                return false;
            }
            if is_this && has_ended {
                return true;
            }
            if self.passes.began.is_none() {
                self.begin_pass();
                is_this = self.passes.began.is_some();
                if !is_this {
                    return false;
                }
            }
            // Stacks of many threads do not fit into the ring together.
            self.empty_rings();
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// The last pass of a recording.
    pub(super) fn pass_last(&mut self) {
        if self.passes.is_on {
            self.pass_now(LAST);
            self.passes.stop();
        }
    }

    /// A thread's record of a pass.
    pub(super) fn take_thread(&mut self, sample: Sample<'_>, thread: ThreadKey, stack: Stack) {
        let began = Instant::now();
        let Header { pid, flags, kernel_frames, user_frames, .. } = sample.header;
        let kernel = usize::from(kernel_frames);
        let at = kernel + usize::from(user_frames);
        let Some(activity) = sample.words.get(at..).and_then(Activity::of) else { return };
        let is_end = activity.state == STATE_ENDED;
        // It was left out after this was sent.
        if self.store.is_skipped(pid) || self.store.unwanted_of(pid) & UNWANTED_WALL != 0 {
            return;
        }
        if stack.end == strata_abi::record::End::NoProcess {
            // It is walked again once there are tables.
            self.processes.dirty.insert(pid);
            self.loading.need(&self.table, pid, 0);
        }
        let kernel = sample.words.get(..kernel).unwrap_or_default().into();
        let whole = Whole { kernel, flags: flags & FLAG_KERNEL_CUT, stack };
        if let Some(wall) = &mut self.wall {
            let Header { tid, time, .. } = sample.header;
            // One that was there before was not sent, because its record found no room.
            let is_new = activity.start >= self.passes.previous && !wall.knows(tid);
            if is_end {
                // A thread that was too short-lived for any pass: others like it may follow.
                self.passes.schedule.note_ended(tid);
                let is_process = tid == pid;
                if is_new && !is_process {
                    self.passes.schedule.note_starting(pid, time);
                }
            } else if is_new || wall.has_moved(tid, &activity) {
                self.passes.schedule.note_moved(pid, tid, time, is_new);
            }
            wall.take(&sample.header, thread, &activity, whole, &mut self.aggregate);
        }
        // The record of a thread's end is of no pass.
        if !is_end {
            self.passes.schedule.note_taking(began.elapsed());
        }
    }

    /// The CPU sampler has met a thread.
    pub(super) fn note_on_cpu(&mut self, header: &Header) {
        self.passes.schedule.note_moved(header.pid, header.tid, header.time, false);
    }

    /// A process has ended: nothing more of it can begin.
    pub(super) fn note_exited(&mut self, pid: u32) {
        self.passes.schedule.note_exited(pid);
    }

    /// A process begins, or executes another program: its threads are looked at from now on.
    pub(super) fn note_begun(&mut self, pid: u32, time: u64) {
        if self.passes.is_on {
            self.passes.schedule.note_starting(pid, time);
        }
    }

    /// A process executes another program.
    pub(super) fn executed_in_wall(&mut self, pid: u32, time: u64) {
        let Some(wall) = &mut self.wall else { return };
        let Some(image) = self.table.get(pid).map(|process| process.image) else { return };
        let mut comm = [0; 16];
        let name = self.table.image(image).map(|image| image.comm.clone()).unwrap_or_default();
        for (to, from) in comm.iter_mut().zip(name.bytes().take(15)) {
            *to = from;
        }
        let thread = ThreadKey { image, tid: pid, comm, domain: 0 };
        if wall.executed(thread, time, &mut self.aggregate) {
            self.processes.note_executed(pid);
        }
    }

    /// What passes have done so far.
    pub fn pass_figures(&self) -> PassFigures {
        let threads = self.wall.as_ref().map_or(0, Wall::count_of_threads);
        let interval = self.passes.schedule.next_interval();
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        PassFigures { interval, threads, ..self.passes.figures }
    }

    /// Processes whose threads are not walked now: reading the stack of one hung.
    pub fn not_walked(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.programs.not_walked().collect();
        pids.sort_unstable();
        pids
    }

    /// Threads that found no room.
    pub fn threads_refused(&self) -> u64 {
        self.wall.as_ref().map_or(0, |wall| wall.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_whose_record_was_lost_counts_from_the_last_complete_pass() {
        let mut passes = Passes::new(20, 8);
        let previous = [(1, false), (2, true), (3, true), (4, false)].map(|(began, lost_some)| {
            passes.current = began;
            passes.began = Some(Instant::now());
            assert!(passes.take_report(Cost::default(), Some((Cost::default(), lost_some))));
            passes.previous
        });
        assert_eq!(previous, [1, 1, 1, 4]);
    }
}
