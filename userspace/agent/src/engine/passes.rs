//! When passes over threads run, how often, and what becomes of one that does not end.
//!
//! A pass over all threads costs a look at each, and what changed since the one before. Where that is
//! more than a part of its share of a CPU, such passes run less often, and between them passes over the
//! threads that were switched lately ([`super::active_threads`]) run as often as is wanted. Nothing is
//! lost by it: time is counted as it has passed.
//!
//! Passes over active threads are repeated by the reader itself, at its own pace
//! ([`crate::kernel::thread_reader`]). A few times a second the engine takes their records and what they
//! have cost, and orders others where other threads are active by then.
//!
//! Invariant: no pass is waited for without a limit. A reader that hangs is left behind, the
//! process that it hung at is not walked for a while, and the next pass goes on.

use std::time::{Duration, Instant};

use strata_abi::record::{FLAG_KERNEL_CUT, Header, STATE_ENDED};
use strata_abi::tables::{Pass, UNWANTED_WALL, Walking};

use super::active_threads::{ActiveThreads, Targets};
use super::samples::Sample;
use super::waits::Stack;
use super::wall::{Activity, Wall, Whole};
use super::{Engine, monotonic_nanos};
use crate::aggregate::ThreadKey;
use crate::kernel::loader::PassReport;
use crate::kernel::thread_reader::{Cost, Order, Pace, Repeated, Target};
use crate::random::Random;

/// Of the time, passes may take a CPU for one part in so many: with what the engine needs for them, one
/// percent. Where others can run between those over all threads, these take an eighth of it if that is
/// enough, and leave an eighth in any case.
const SHARE: u32 = 125;
const SHARE_OF_ALL: u32 = 8 * SHARE;
const MOST_SHARE_OF_ALL: u32 = 8 * SHARE / 7 + 1;
/// A look at a thread costs a small part of sending it.
const OF_SENDING: u32 = 16;
/// From one pass over all threads to the next at least, where others run between them: a thread is active
/// for longer after it was switched.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// The same at most, while its share of a CPU allows it; from one that sends every thread in any case,
/// because unwind tables are loaded for what it meets.
const MOST_PAUSE: Duration = Duration::from_secs(2);
/// What passes that send every thread are paid for afterwards at most: some twelve seconds.
const MOST_OWED: Duration = Duration::from_millis(80);
/// Taking a record costs this at most: what takes longer had to wait for a CPU.
const MOST_TAKING: Duration = Duration::from_micros(100);
/// A thread is active for so many pauses between passes over all threads after it was switched, for so long
/// at least, and for so long at most where one pause is shorter.
const ACTIVE_PAUSES: u32 = 4;
const ACTIVE: Duration = Duration::from_secs(1);
const MOST_ACTIVE: Duration = Duration::from_secs(8);
/// From one look at what repeated passes have done to the next.
const LOOK: Duration = Duration::from_millis(250);
/// A reader that sleeps at one thread for so long hangs.
const HANGS: Duration = Duration::from_secs(1);
/// Where too many hang, or a reader fails, passes are tried again so often.
const RETRY: Duration = Duration::from_secs(5);
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

/// What is to be walked next.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// All threads; what is repeated goes on afterwards.
    All,
    /// All threads, instead of those that are active.
    Only,
    Targets(Vec<Target>),
    /// Nothing before then.
    Later(Instant),
}

/// The passes of an engine.
pub(super) struct Passes {
    interval: Duration,
    is_on: bool,
    /// When the engine looks at passes, and orders others.
    next: Instant,
    /// Not before, whatever happens meanwhile: the share of a CPU, and the pause after a failure.
    earliest: Instant,
    epoch: u32,
    active: ActiveThreads,
    /// Of passes over all threads: when the last one began, when the next is due, what it cost with what it
    /// has paid for earlier ones, what the next will cost, and what is between two on average.
    all_began: Instant,
    all_due: Instant,
    all_cost: Duration,
    next_cost: Duration,
    all_pause: Duration,
    /// What passes that sent every thread cost above their share: the next one over all pays for it.
    owed: Duration,
    /// The last pass over all sent every thread, and its records are being taken.
    is_settling: bool,
    /// Of the records that are taken now, some are of a pass over all threads.
    follows_all: bool,
    /// What the reader repeats.
    repeated: Option<Repeated>,
    /// What taking the records of such a pass costs.
    each_taking: Duration,
    /// No other passes: the kernel has no iterator over some threads.
    only_all: bool,
    /// Until when every thread was sent, switched or not, by the records' clock.
    all_sent: u64,
    /// When the last complete pass over all threads began, by the records' clock.
    previous: u64,
    /// When the one that is on began, and by the other clock.
    current: u64,
    began: Option<Instant>,
    /// Where the reader was last seen, and since when.
    seen: (Walking, Instant),
    /// What taking records has cost.
    taking: Duration,
    /// Every thread is sent by the next pass over all, or by the one that is on.
    wants_all: bool,
    sends_all: bool,
    random: Random,
    pub(super) figures: PassFigures,
}

impl Passes {
    pub(super) fn new(frequency: u32) -> Self {
        let now = Instant::now();
        Self {
            interval: Duration::from_secs(1) / frequency.max(1),
            is_on: false,
            next: now,
            earliest: now,
            epoch: 1,
            active: ActiveThreads::default(),
            all_began: now,
            all_due: now,
            all_cost: Duration::ZERO,
            next_cost: Duration::ZERO,
            all_pause: Duration::ZERO,
            owed: Duration::ZERO,
            is_settling: false,
            follows_all: false,
            repeated: None,
            each_taking: Duration::ZERO,
            only_all: false,
            all_sent: u64::MAX,
            previous: 0,
            current: 0,
            began: None,
            seen: (Walking::default(), now),
            taking: Duration::ZERO,
            wants_all: true,
            sends_all: false,
            random: Random::new(),
            figures: PassFigures::default(),
        }
    }

    pub(super) fn start(&mut self) {
        self.is_on = true;
        self.next = Instant::now();
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn stop(&mut self) {
        self.is_on = false;
    }

    pub(super) fn set_frequency(&mut self, frequency: u32) {
        self.interval = Duration::from_secs(1) / frequency.max(1);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.is_on.then_some(self.next)
    }

    /// Every thread is sent again, as if it had not been sent before.
    pub(super) fn send_all(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.wants_all = true;
    }

    /// A thread was switched, or runs. `is_new`: it was not known before.
    fn note_moved(&mut self, pid: u32, tid: u32, time: u64, is_new: bool) {
        // Of what every thread sends, nothing follows.
        if time <= self.all_sent {
            return;
        }
        let mut is_first = self.active.moved(pid, tid, time);
        if is_new {
            is_first |= self.active.starts(pid, time);
        }
        if is_first {
            self.wake();
        }
    }

    /// Something is to be walked: the next pass comes as soon as passes do.
    fn wake(&mut self) {
        let soon = Instant::now() + self.random.spread(self.interval);
        self.next = self.next.min(soon.max(self.earliest));
    }

    /// A pass failed, or could not begin.
    fn rest(&mut self) {
        self.figures.refused += 1;
        self.earliest = Instant::now() + RETRY;
        self.next = self.earliest;
    }

    /// Which threads the next pass goes over.
    fn choose(&mut self, now: Instant, count: impl Fn(u32) -> usize) -> Choice {
        let due = self.all_due;
        if self.only_all {
            return if now < due { Choice::Later(due) } else { Choice::Only };
        }
        if self.wants_all || self.sends_all || now >= due {
            return Choice::All;
        }
        let window = (self.all_pause * ACTIVE_PAUSES).clamp(ACTIVE, MOST_ACTIVE);
        let window = window.max(self.all_pause);
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let all_cost = u64::try_from(self.next_cost.as_nanos()).unwrap_or(u64::MAX);
        match self.active.since(monotonic_nanos().saturating_sub(window), count) {
            Some(Targets { targets, .. }) if targets.is_empty() => Choice::Later(due),
            Some(Targets { targets, cost }) if cost < all_cost => Choice::Targets(targets),
            _ => {
                let allowed = due.min(self.all_began + self.all_cost * SHARE);
                if now < allowed { Choice::Later(allowed) } else { Choice::Only }
            }
        }
    }

    /// A pass over all threads has ended. Where records were lost, a thread may never have been sent: the
    /// next pass is the first one for it, and its time counts from the pass that was complete.
    fn end(&mut self, began: Instant, cost: Cost, lost_some: bool) {
        if !lost_some {
            self.previous = self.current;
        }
        let sends_all = std::mem::take(&mut self.sends_all);
        if sends_all {
            self.all_sent = monotonic_nanos();
            self.figures.sending_all += cost.nanos;
        }
        self.note_cost(cost);
        let wanted = self.pause_after(began, Duration::from_nanos(cost.nanos), sends_all);
        self.note_interval(wanted);
        self.earliest = began + wanted;
        self.next = began + self.random.spread(wanted);
    }

    fn note_cost(&mut self, cost: Cost) {
        self.only_all |= cost.refused > 0;
        self.figures.passes += u64::from(cost.passes);
        self.figures.reading += cost.nanos;
    }

    /// How long it is from the beginning of a pass over all threads to the look whether it is over: until
    /// then no others go on, if none are repeated.
    fn while_over_all(&self) -> Duration {
        if self.repeated.is_some() { LOOK } else { self.interval }
    }

    fn note_interval(&mut self, interval: Duration) {
        self.figures.interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Passes over active threads went on, and cost this.
    fn went_on(&mut self, cost: Cost) {
        if cost.passes == 0 {
            return;
        }
        self.note_cost(cost);
        if cost.refused > 0 {
            return;
        }
        let taking = std::mem::take(&mut self.taking);
        if std::mem::take(&mut self.follows_all) {
            self.owe(taking.saturating_sub(self.each_taking * cost.passes));
        } else {
            self.each_taking = (self.each_taking + taking / cost.passes) / 2;
        }
        let each = Duration::from_nanos(cost.nanos) / cost.passes + self.each_taking;
        self.note_interval((each * self.pace().one_in).max(self.interval));
    }

    /// The pace of passes over active threads.
    fn pace(&self) -> Pace {
        Pace { interval: self.interval, one_in: self.one_in_of_active(), taking: self.each_taking }
    }

    /// These are repeated from now on. False where they are already.
    fn repeat(&mut self, targets: Vec<Target>) -> bool {
        let pace = self.pace();
        // Or hardly more than nothing, of what an interval allows.
        let little = pace.interval / pace.one_in.saturating_mul(8).max(1);
        let is_near = |a: Duration, b: Duration| a.abs_diff(b) <= little.max(a.max(b) / 4);
        let is_same = self.repeated.as_ref().is_some_and(|(before, paced)| {
            *before == targets
                && paced.interval == pace.interval
                && paced.one_in.abs_diff(pace.one_in) <= pace.one_in / 4
                && is_near(paced.taking, pace.taking)
        });
        if !is_same {
            self.repeated = Some((targets, pace));
        }
        !is_same
    }

    /// How long it is on average until the next pass that the engine orders, after one over all threads whose
    /// reader has used so much of a CPU. One that sends every thread costs more than the next one will, and
    /// the next one is wanted soon: it pays for both.
    fn pause_after(&mut self, began: Instant, reading: Duration, sends_all: bool) -> Duration {
        // Of the records that were taken meanwhile, some are of the pass before.
        let mut taking = std::mem::take(&mut self.taking);
        if std::mem::replace(&mut self.is_settling, sends_all) {
            self.owe(std::mem::take(&mut taking));
        }
        let cost = reading + taking;
        let share = if self.only_all { SHARE } else { MOST_SHARE_OF_ALL };
        self.follows_all = true;
        self.all_began = began;
        if sends_all {
            self.all_cost = cost;
            self.next_cost = cost / OF_SENDING;
            self.all_pause = (cost * share).min(MOST_PAUSE).max(self.interval);
            self.owe(cost.saturating_sub(self.all_pause / share));
        } else {
            self.all_cost = cost + std::mem::take(&mut self.owed);
            self.next_cost = cost;
            let least = (self.all_cost * share).max(self.interval);
            let wanted = (cost * SHARE_OF_ALL).clamp(LEAST_PAUSE, MOST_PAUSE);
            let wanted = if self.only_all { least } else { wanted };
            self.all_pause = wanted.max(least);
        }
        let half = self.all_pause / 2;
        let half = if sends_all { half } else { self.random.spread(half) };
        self.all_due = began + self.all_pause / 2 + half;
        if self.only_all { self.all_pause } else { self.interval }
    }

    /// One that is repeated all the time puts off no pass for ever longer.
    fn owe(&mut self, cost: Duration) {
        self.owed = (self.owed + cost).min(MOST_OWED);
    }

    /// Passes over active threads have what those over all leave of the share: a CPU for one part in so
    /// many.
    fn one_in_of_active(&self) -> u32 {
        let of_all = if self.all_pause.is_zero() {
            0.0
        } else {
            self.all_cost.as_secs_f64() / self.all_pause.as_secs_f64()
        };
        let left = f64::from(SHARE).recip() - of_all;
        left.max(f64::from(SHARE_OF_ALL).recip()).recip().ceil() as u32
    }
}

impl Engine {
    /// Takes what passes have done, and orders others, when that is due.
    pub(super) fn pass_over_threads(&mut self) {
        if !self.passes.is_on || Instant::now() < self.passes.next {
            return;
        }
        self.take_pass_report();
        let now = Instant::now();
        if self.passes.began.is_some() {
            self.passes.next = now + self.passes.while_over_all();
            return;
        }
        if now < self.passes.next {
            return;
        }
        let wall = self.wall.as_ref();
        let count = |pid| wall.map_or(0, |wall| wall.count_of(pid));
        match self.passes.choose(now, count) {
            Choice::All => self.begin_pass(),
            Choice::Only => {
                self.passes.repeated = None;
                self.begin_pass();
            }
            Choice::Targets(targets) => {
                self.passes.next = self.passes.all_due.min(now + LOOK);
                if self.passes.repeat(targets) {
                    self.order_passes(false);
                }
            }
            Choice::Later(next) => {
                self.passes.next = next;
                self.rest_passes();
            }
        }
    }

    /// Nothing is repeated any more.
    pub(super) fn rest_passes(&mut self) {
        if self.passes.repeated.take().is_some() {
            // One over all threads that is on ends for nothing.
            self.passes.began = None;
            self.order_passes(false);
        }
    }

    /// Begins a pass over all threads. Those that are repeated go on afterwards.
    fn begin_pass(&mut self) {
        let passes = &mut self.passes;
        let now = Instant::now();
        passes.sends_all |= std::mem::take(&mut passes.wants_all);
        if passes.sends_all {
            passes.all_sent = u64::MAX;
        }
        passes.current = monotonic_nanos();
        passes.next = now + passes.while_over_all();
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
        let order = Order { over_all, repeated: passes.repeated.clone() };
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
        passes.repeated = None;
        passes.rest();
        false
    }

    /// Takes what the reader reports. True where a pass over all threads has ended.
    fn take_pass_report(&mut self) -> bool {
        let PassReport { repeated, over_all, has_failed } = self.programs.pass_report();
        // Most of what was taken meanwhile is of a pass over all threads, if one has ended.
        let of_repeated = self.passes.each_taking * repeated.passes;
        let of_all = self.passes.taking.saturating_sub(of_repeated);
        if over_all.is_some() {
            self.passes.taking -= of_all;
        }
        self.passes.went_on(repeated);
        // What the records of a first pass cost that sends every thread is paid by now.
        self.passes.is_settling &= repeated.passes == 0 || over_all.is_some();
        if has_failed {
            self.passes.began = None;
            self.passes.repeated = None;
            self.passes.rest();
            return false;
        }
        if let Some((cost, lost_some)) = over_all
            && let Some(began) = self.passes.began.take()
        {
            self.passes.taking += of_all;
            self.passes.end(began, cost, lost_some);
            return true;
        }
        self.leave_hanging_reader();
        false
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
        self.passes.repeated = None;
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
                self.passes.active.ended(tid);
                let is_process = tid == pid;
                if is_new && !is_process && self.passes.active.starts(pid, time) {
                    self.passes.wake();
                }
            } else if is_new || wall.has_moved(tid, &activity) {
                self.passes.note_moved(pid, tid, time, is_new);
            }
            wall.take(&sample.header, thread, &activity, whole, &mut self.aggregate);
        }
        // The record of a thread's end is of no pass.
        if !is_end {
            self.passes.taking += began.elapsed().min(MOST_TAKING);
        }
    }

    /// The CPU sampler has met a thread.
    pub(super) fn note_on_cpu(&mut self, header: &Header) {
        self.passes.note_moved(header.pid, header.tid, header.time, false);
    }

    /// A process has ended: nothing more of it can begin.
    pub(super) fn note_exited(&mut self, pid: u32) {
        self.passes.active.exited(pid);
    }

    /// A process begins, or executes another program: its threads are looked at from now on.
    pub(super) fn note_begun(&mut self, pid: u32, time: u64) {
        if self.passes.is_on && self.passes.active.starts(pid, time) {
            self.passes.wake();
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
        PassFigures { threads, ..self.passes.figures }
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
    fn a_pass_that_sends_every_thread_is_paid_for_by_the_second_one() {
        let mut passes = Passes::new(20);
        passes.only_all = true;
        let mut pause = |reading: u64, taking: u64, sends_all| {
            passes.taking += Duration::from_millis(taking);
            let reading = Duration::from_millis(reading);
            passes.pause_after(Instant::now(), reading, sends_all).as_millis()
        };
        // Of 60 ms, two seconds pay for 16. What it has sent is taken after it, too.
        assert_eq!(pause(50, 10, true), 2_000);
        let pauses = [pause(2, 20, false), pause(2, 2, false), pause(0, 0, false)];
        assert_eq!(pauses, [8_250, 500, 50]);
    }

    fn cost(micros: u64) -> Cost {
        Cost { nanos: micros * 1000, passes: 1, refused: 0 }
    }

    #[test]
    fn a_dear_pass_over_active_threads_puts_off_none_over_all() {
        let mut passes = Passes::new(20);
        passes.wants_all = false;
        passes.sends_all = true;
        let began = Instant::now();
        passes.end(began, cost(50_000), false);
        assert_eq!(passes.all_pause, MOST_PAUSE);
        // The records of the first pass, which are no cost of the one that follows.
        passes.taking = Duration::from_millis(40);
        passes.went_on(cost(500));
        assert_eq!(passes.each_taking, Duration::ZERO);
        passes.taking = Duration::from_secs(1);
        passes.went_on(cost(500));
        assert_eq!(passes.each_taking, Duration::from_millis(500));
        passes.note_moved(7, 8, monotonic_nanos(), false);
        assert_eq!(passes.choose(began + MOST_PAUSE, |_| 500), Choice::All);
        // The second one pays for it: 50 and 40 ms, less what two seconds paid.
        passes.taking = Duration::ZERO;
        passes.end(began + MOST_PAUSE, cost(1_000), false);
        let paid = (MOST_PAUSE + passes.all_pause).as_secs_f64() / 0.091;
        let share = f64::from(MOST_SHARE_OF_ALL);
        assert!((share - 1.0..share + 1.0).contains(&paid), "{paid}");
    }

    #[test]
    fn what_is_repeated_is_ordered_again_only_where_it_is_another() {
        let mut passes = Passes::new(20);
        passes.end(Instant::now(), cost(100), false);
        let (one, two) = (vec![Target::Thread(1)], vec![Target::Thread(1), Target::Thread(2)]);
        assert!(passes.repeat(one.clone()) && !passes.repeat(one) && passes.repeat(two.clone()));
        // Records of the pass over all threads are none of theirs.
        passes.taking = Duration::from_millis(1);
        passes.went_on(cost(10));
        assert!(!passes.repeat(two.clone()));
        for (taking, is_another) in [(1_000, true), (1_000, true), (0, true), (400, false)] {
            passes.taking = Duration::from_micros(taking);
            passes.went_on(cost(10));
            assert_eq!(passes.repeat(two.clone()), is_another, "{taking}");
        }
        passes.set_frequency(10);
        assert!(passes.repeat(two));
    }

    #[test]
    fn every_thread_sent_again_and_again_puts_off_no_pass_for_ever() {
        let mut passes = Passes::new(20);
        for _ in 0..100 {
            passes.pause_after(Instant::now(), Duration::from_millis(50), true);
        }
        passes.pause_after(Instant::now(), Duration::from_millis(1), false);
        assert!(passes.all_pause < Duration::from_secs(12), "{:?}", passes.all_pause);
        // And what is not much dearer than a look at all is walked by itself.
        passes.pause_after(Instant::now(), Duration::from_millis(50), true);
        assert_eq!(passes.next_cost, Duration::from_millis(50) / OF_SENDING);
    }

    #[test]
    fn passes_over_all_threads_and_over_active_ones_share_a_part_of_a_cpu() {
        for cost in [10, 200, 2_000, 5_000, 20_000, 200_000].map(Duration::from_micros) {
            let mut passes = Passes::new(20);
            passes.pause_after(Instant::now(), cost, false);
            let of_all = cost.as_secs_f64() / passes.all_pause.as_secs_f64();
            let of_active = f64::from(passes.one_in_of_active()).recip();
            println!("{cost:?}: {of_all:.5} for all, {of_active:.5} for active ones");
            assert!(of_all + of_active <= 1.001 / f64::from(SHARE));
            assert!(of_active >= 0.999 / f64::from(SHARE_OF_ALL));
        }
    }

    #[test]
    fn between_passes_over_all_threads_only_those_that_moved_are_walked() {
        let none = |_: u32| 0;
        let mut passes = Passes::new(20);
        let began = Instant::now();
        assert_eq!(passes.choose(began, none), Choice::All);
        // The first pass, which sends every thread.
        passes.sends_all = true;
        passes.wants_all = false;
        passes.end(began, cost(20_000), false);
        passes.note_moved(1, 1, 5, true);
        let second = began + MOST_PAUSE;
        // What every thread sent at first says nothing.
        assert_eq!(passes.choose(began + Duration::from_millis(50), none), Choice::Later(second));
        assert_eq!(passes.choose(second, none), Choice::All);
        passes.end(second, cost(2_000), false);
        // The next pass over all is due after 1,000 times the cost.
        let soon = second + Duration::from_millis(50);
        let later = passes.all_due;
        let pause = later.duration_since(second).as_secs_f64();
        assert!((1.5..2.5).contains(&pause), "{pause}");
        assert_eq!(passes.choose(soon, none), Choice::Later(later));
        passes.next = later;
        passes.note_moved(7, 8, monotonic_nanos(), false);
        assert!(passes.next < second + Duration::from_secs(1));
        assert_eq!(passes.choose(soon, |_| 500), Choice::Targets(vec![Target::Thread(8)]));
        assert_eq!(passes.choose(later, |_| 500), Choice::All);
        // Where as much moves as all cost, all are walked, as often as a CPU's share allows.
        for tid in 0..64 {
            passes.note_moved(7, tid, monotonic_nanos(), false);
        }
        passes.all_cost = Duration::from_micros(300);
        passes.next_cost = passes.all_cost;
        assert_eq!(
            passes.choose(second, |_| 800),
            Choice::Later(second + Duration::from_micros(37_500))
        );
        assert_eq!(passes.choose(soon, |_| 800), Choice::Only);
        // A kernel without iterators over some threads: passes over all alone.
        passes.went_on(Cost { refused: 1, ..cost(0) });
        let due = passes.all_due;
        assert_eq!(passes.choose(soon, |_| 500), Choice::Later(due));
        assert_eq!(passes.choose(due, |_| 500), Choice::Only);
    }

    #[test]
    fn a_new_thread_brings_no_pass_before_the_share_of_a_cpu_allows_it() {
        let mut passes = Passes::new(20);
        passes.wants_all = false;
        passes.all_sent = 0;
        passes.only_all = true;
        let began = Instant::now();
        passes.end(began, cost(30_000), false);
        let allowed = began + Duration::from_millis(30) * SHARE;
        for tid in 0..100 {
            passes.next = began + Duration::from_secs(3600);
            passes.note_moved(7, tid, 1, true);
            assert!(passes.next >= allowed, "{tid}");
        }
        // After a failure, too.
        let failed = Instant::now();
        passes.rest();
        passes.note_moved(8, 8, 2, true);
        assert!(passes.next >= failed + RETRY);
    }

    #[test]
    fn a_thread_whose_record_was_lost_counts_from_the_last_complete_pass() {
        let mut passes = Passes::new(20);
        let previous = [(1, false), (2, true), (3, true), (4, false)].map(|(began, lost_some)| {
            passes.current = began;
            passes.end(Instant::now(), Cost::default(), lost_some);
            passes.previous
        });
        assert_eq!(previous, [1, 1, 1, 4]);
    }
}
