//! When passes over threads run, how often, and what becomes of one that does not end.
//!
//! A pass over all threads costs a look at each, and what changed since the one before. Where that is
//! more than a part of its share of a CPU, such passes run less often, and between them passes over the
//! threads that were switched lately ([`super::active_threads`]) run as often as is wanted. Nothing is
//! lost by it: time is counted as it has passed.
//!
//! Invariant: no pass is waited for without a limit. A reader that hangs is left behind, the
//! process that it hung at is not walked for a while, and the next pass goes on.

use std::time::{Duration, Instant};

use strata_abi::record::{FLAG_KERNEL_CUT, Header, STATE_ENDED};
use strata_abi::tables::{Pass, UNWANTED_WALL, Walking};

use super::active_threads::{ActiveThreads, Targets};
use super::random::Random;
use super::samples::Sample;
use super::waits::Stack;
use super::wall::{Activity, Wall, Whole};
use super::{Engine, monotonic_nanos};
use crate::aggregate::ThreadKey;
use crate::kernel::loader::PassState;
use crate::kernel::thread_reader::{Cost, Target};

/// Of the time, passes may take a CPU for one part in so many. Where others can run between those over all
/// threads, these take an eighth of it if that is enough, and leave an eighth in any case.
const SHARE: u32 = 100;
const SHARE_OF_ALL: u32 = 8 * SHARE;
const MOST_SHARE_OF_ALL: u32 = 8 * SHARE / 7 + 1;
/// A look at a thread costs a small part of sending it.
const OF_SENDING: u32 = 16;
/// From one pass over all threads to the next at most, while its share of a CPU allows it; from one that
/// sends every thread in any case, because unwind tables are loaded for what it meets.
const MOST_PAUSE: Duration = Duration::from_secs(2);
/// What passes that send every thread are paid for afterwards at most: some twelve seconds.
const MOST_OWED: Duration = Duration::from_millis(100);
/// A thread is active for so many pauses between passes over all threads after it was switched, and for
/// so long at least.
const ACTIVE_PAUSES: u32 = 4;
const ACTIVE: Duration = Duration::from_secs(1);
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

/// The passes of an engine.
pub(super) struct Passes {
    interval: Duration,
    is_on: bool,
    next: Instant,
    /// No pass begins before, whatever happens meanwhile: the share of a CPU, and the pause after a
    /// failure.
    earliest: Instant,
    number: u32,
    epoch: u32,
    active: ActiveThreads,
    /// Of passes over all threads: when the last one began, what it cost with what it has paid for
    /// earlier ones, what the next will cost, and what is between two.
    all_began: Instant,
    all_cost: Duration,
    next_cost: Duration,
    all_pause: Duration,
    /// What passes that sent every thread cost above their share: the next one over all pays for it.
    owed: Duration,
    /// The last pass sent every thread, and its records are being taken.
    is_settling: bool,
    /// The pass that is on goes over all threads.
    is_over_all: bool,
    /// No other passes: the kernel has no iterator over some threads.
    only_all: bool,
    /// Until when every thread was sent, switched or not, by the records' clock.
    all_sent: u64,
    /// When the last complete pass over all threads began, by the records' clock.
    previous: u64,
    /// When the one that is on began.
    current: u64,
    began: Option<Instant>,
    /// Where its reader was last seen, and since when.
    seen: (Walking, Instant),
    /// What taking its records has cost.
    taking: Duration,
    /// Every thread is sent by the next pass, or by the one that is on.
    wants_all: bool,
    sends_all: bool,
    random: Random,
    pub(super) figures: PassFigures,
}

/// From half to one and a half times as long: passes at even intervals would find a thread that works
/// at such intervals always at the same place.
fn spread(time: Duration, random: &mut Random) -> Duration {
    time / 2 + time.mul_f64((random.next() >> 11) as f64 / (1u64 << 53) as f64)
}

impl Passes {
    pub(super) fn new(frequency: u32) -> Self {
        let now = Instant::now();
        Self {
            interval: Duration::from_secs(1) / frequency.max(1),
            is_on: false,
            next: now,
            earliest: now,
            number: 0,
            epoch: 1,
            active: ActiveThreads::default(),
            all_began: now,
            all_cost: Duration::ZERO,
            next_cost: Duration::ZERO,
            all_pause: Duration::ZERO,
            owed: Duration::ZERO,
            is_settling: false,
            is_over_all: true,
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
        let soon = Instant::now() + spread(self.interval, &mut self.random);
        self.next = self.next.min(soon.max(self.earliest));
    }

    /// A pass failed, or could not begin.
    fn rest(&mut self) {
        self.figures.refused += 1;
        self.earliest = Instant::now() + RETRY;
        self.next = self.earliest;
    }

    /// Which threads the next pass goes over: all, or these; or when there is one.
    fn choose(
        &mut self,
        now: Instant,
        count: impl Fn(u32, usize) -> usize,
    ) -> Result<Option<Vec<Target>>, Instant> {
        let due = self.all_began + self.all_pause;
        let is_due = now >= due;
        if self.wants_all || self.sends_all || self.only_all || is_due {
            return Ok(None);
        }
        let window = (self.all_pause * ACTIVE_PAUSES).max(ACTIVE);
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let all_cost = u64::try_from(self.next_cost.as_nanos()).unwrap_or(u64::MAX);
        match self.active.since(monotonic_nanos().saturating_sub(window), count) {
            Some(Targets { targets, .. }) if targets.is_empty() => Err(due),
            Some(Targets { targets, cost }) if cost < all_cost => Ok(Some(targets)),
            _ => {
                let allowed = due.min(self.all_began + self.all_cost * SHARE);
                if now < allowed { Err(allowed) } else { Ok(None) }
            }
        }
    }

    /// A pass has ended, and what it has used of a CPU. Where records were lost, a thread may never have
    /// been sent: the next pass is the first one for it, and its time counts from the pass that was
    /// complete.
    fn end(&mut self, began: Instant, cost: Cost, lost_some: bool) {
        if self.is_over_all && !lost_some {
            self.previous = self.current;
        }
        let sends_all = std::mem::take(&mut self.sends_all);
        if sends_all {
            self.all_sent = monotonic_nanos();
            self.figures.sending_all += cost.nanos;
        }
        self.only_all |= cost.refused > 0;
        self.figures.passes += 1;
        self.figures.reading += cost.nanos;
        let wanted = self.pause_after(began, Duration::from_nanos(cost.nanos), sends_all);
        self.figures.interval = u64::try_from(wanted.as_nanos()).unwrap_or(u64::MAX);
        self.earliest = began + wanted;
        self.next = began + spread(wanted, &mut self.random);
        if !self.is_over_all && !self.all_pause.is_zero() {
            // However dear it was, a pass over all threads that is due comes then.
            let due = self.all_began + self.all_pause;
            self.earliest = self.earliest.min(due);
            self.next = self.next.min(due);
        }
    }

    /// How long it is until the next pass, on average, after one whose reader has used so much of a CPU.
    /// One that sends every thread costs more than the next one will, and the next one is wanted soon: it
    /// pays for both.
    fn pause_after(&mut self, began: Instant, reading: Duration, sends_all: bool) -> Duration {
        // Of the records that were taken meanwhile, some are of the pass before.
        let mut taking = std::mem::take(&mut self.taking);
        if std::mem::replace(&mut self.is_settling, sends_all) {
            self.owe(std::mem::take(&mut taking));
        }
        let cost = reading + taking;
        if !self.is_over_all {
            return self.pause_of_active(cost).max(self.interval);
        }
        let share = if self.only_all { SHARE } else { MOST_SHARE_OF_ALL };
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
            let wanted = if self.only_all { least } else { (cost * SHARE_OF_ALL).min(MOST_PAUSE) };
            self.all_pause = wanted.max(least);
        }
        if self.only_all { self.all_pause } else { self.interval }
    }

    /// One that is repeated all the time puts off no pass for ever longer.
    fn owe(&mut self, cost: Duration) {
        self.owed = (self.owed + cost).min(MOST_OWED);
    }

    /// The same after a pass over active threads: they have what those over all leave of the share.
    fn pause_of_active(&self, cost: Duration) -> Duration {
        let of_all = if self.all_pause.is_zero() {
            0.0
        } else {
            self.all_cost.as_secs_f64() / self.all_pause.as_secs_f64()
        };
        let left = f64::from(SHARE).recip() - of_all;
        cost.div_f64(left.max(f64::from(SHARE_OF_ALL).recip()))
    }
}

impl Engine {
    /// Begins a pass that is due, and ends one that is over or hangs.
    pub(super) fn pass_over_threads(&mut self) {
        if !self.passes.is_on || Instant::now() < self.passes.next {
            return;
        }
        self.end_pass();
        let now = Instant::now();
        if self.passes.began.is_some() {
            self.passes.next = now + self.passes.interval;
        } else if now >= self.passes.next {
            let wall = self.wall.as_ref();
            let count = |pid, most| wall.map_or(0, |wall| wall.count_of(pid, most));
            match self.passes.choose(now, count) {
                Ok(targets) => self.begin_pass(targets.as_deref()),
                Err(next) => self.passes.next = next,
            }
        }
    }

    /// Begins a pass over these targets, or over all threads.
    fn begin_pass(&mut self, targets: Option<&[Target]>) {
        let passes = &mut self.passes;
        let now = Instant::now();
        passes.is_over_all = targets.is_none();
        passes.number = passes.number.wrapping_add(1).max(1);
        passes.sends_all |= std::mem::take(&mut passes.wants_all);
        if passes.sends_all {
            passes.all_sent = u64::MAX;
        }
        passes.current = monotonic_nanos();
        passes.next = now + passes.interval;
        let (epoch, number, previous) = (passes.epoch, passes.number, passes.previous);
        let pass = Pass { epoch, number, previous, began: passes.current, ..Pass::default() };
        match self.programs.begin_pass(pass, targets) {
            Ok(true) => {
                passes.began = Some(now);
                passes.seen = (Walking::default(), now);
            }
            Ok(false) => {
                if passes.figures.refused == 0 {
                    tracing::warn!(
                        "wall-clock time pauses: {} processes that read threads hang",
                        passes.figures.abandoned
                    );
                }
                passes.rest();
            }
            Err(error) => {
                tracing::warn!(%error, "threads cannot be walked");
                passes.rest();
            }
        }
    }

    /// Ends the pass that is on, if it is over or hangs.
    fn end_pass(&mut self) {
        let Some(began) = self.passes.began else { return };
        match self.programs.pass() {
            PassState::Idle => {}
            PassState::Failed => self.passes.rest(),
            PassState::Done { cost, lost_some } => self.passes.end(began, cost, lost_some),
            PassState::Reading => {
                let (at, sleeps) = self.programs.pass_position();
                let now = Instant::now();
                if !sleeps || at != self.passes.seen.0 {
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
            }
        }
        self.passes.began = None;
    }

    /// A whole pass, now: false if it did not end in time.
    pub(super) fn pass_now(&mut self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        // One that is on began before now.
        let mut is_this = false;
        while Instant::now() < end {
            let PassFigures { passes, refused, .. } = self.passes.figures;
            self.end_pass();
            if self.passes.figures.refused > refused {
                return false;
            }
            if is_this && self.passes.figures.passes > passes {
                return true;
            }
            if self.passes.began.is_none() {
                self.begin_pass(None);
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
            self.passes.taking += began.elapsed();
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
        // Of 100 ms, two seconds pay for 20. What it has sent is taken after it, too.
        assert_eq!(pause(90, 10, true), 2_000);
        let pauses = [pause(2, 20, false), pause(2, 2, false), pause(0, 0, false)];
        assert_eq!(pauses, [10_200, 400, 50]);
    }

    #[test]
    fn a_dear_pass_over_active_threads_puts_off_none_over_all() {
        let mut passes = Passes::new(20);
        passes.wants_all = false;
        passes.sends_all = true;
        let began = Instant::now();
        passes.end(began, Cost { nanos: 50_000_000, refused: 0 }, false);
        assert_eq!(passes.all_pause, MOST_PAUSE);
        // The records of the first pass, which are no cost of the one that follows.
        passes.taking = Duration::from_millis(40);
        passes.is_over_all = false;
        passes.end(began + Duration::from_millis(100), Cost { nanos: 500_000, refused: 0 }, false);
        assert!(passes.next <= began + Duration::from_millis(100) + Duration::from_millis(600));
        passes.taking = Duration::from_secs(1);
        passes.end(began + Duration::from_millis(700), Cost { nanos: 500_000, refused: 0 }, false);
        assert_eq!(passes.next.max(passes.earliest), began + MOST_PAUSE);
        // The second one pays for it: 50 and 40 ms, less what two seconds paid.
        passes.is_over_all = true;
        passes.taking = Duration::ZERO;
        passes.end(began + MOST_PAUSE, Cost { nanos: 1_000_000, refused: 0 }, false);
        let paid = (MOST_PAUSE + passes.all_pause).as_secs_f64() / 0.091;
        assert!((114.0..116.0).contains(&paid), "{paid}");
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
            passes.is_over_all = false;
            let active = Duration::from_millis(2);
            let pause = passes.pause_after(Instant::now(), active, false);
            let of_active = active.as_secs_f64() / pause.as_secs_f64();
            println!("{cost:?}: {of_all:.5} for all, {of_active:.5} for active ones");
            assert!(of_all + of_active <= 0.010_01);
            assert!(of_active >= 0.001_24);
        }
    }

    #[test]
    fn between_passes_over_all_threads_only_those_that_moved_are_walked() {
        let none = |_: u32, _: usize| 0;
        let mut passes = Passes::new(20);
        let began = Instant::now();
        assert_eq!(passes.choose(began, none), Ok(None));
        // The first pass, which sends every thread.
        passes.sends_all = true;
        passes.wants_all = false;
        passes.end(began, Cost { nanos: 20_000_000, refused: 0 }, false);
        passes.note_moved(1, 1, 5, true);
        let second = began + MOST_PAUSE;
        // What every thread sent at first says nothing.
        assert_eq!(passes.choose(began + Duration::from_millis(50), none), Err(second));
        assert_eq!(passes.choose(second, none), Ok(None));
        passes.end(second, Cost { nanos: 2_000_000, refused: 0 }, false);
        // The next pass over all is due after 800 times the cost.
        let soon = second + Duration::from_millis(50);
        let later = second + Duration::from_millis(1_600);
        assert_eq!(passes.choose(soon, none), Err(later));
        passes.next = later;
        passes.note_moved(7, 8, monotonic_nanos(), false);
        assert!(passes.next < second + Duration::from_secs(1));
        assert_eq!(passes.choose(soon, |_, _| 500), Ok(Some(vec![Target::Thread(8)])));
        assert_eq!(passes.choose(later, |_, _| 500), Ok(None));
        // Where as much moves as all cost, all are walked, as often as a CPU's share allows.
        for tid in 0..64 {
            passes.note_moved(7, tid, monotonic_nanos(), false);
        }
        passes.all_cost = Duration::from_micros(300);
        passes.next_cost = passes.all_cost;
        assert_eq!(passes.choose(second, |_, _| 800), Err(second + Duration::from_millis(30)));
        assert_eq!(passes.choose(soon, |_, _| 800), Ok(None));
        // A kernel without iterators over some threads: passes over all alone.
        passes.is_over_all = false;
        passes.end(soon, Cost { nanos: 0, refused: 1 }, false);
        assert_eq!(passes.choose(soon, |_, _| 500), Ok(None));
    }

    #[test]
    fn a_new_thread_brings_no_pass_before_the_share_of_a_cpu_allows_it() {
        let mut passes = Passes::new(20);
        passes.wants_all = false;
        passes.all_sent = 0;
        passes.is_over_all = false;
        let began = Instant::now();
        passes.end(began, Cost { nanos: 30_000_000, refused: 0 }, false);
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
