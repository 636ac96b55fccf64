//! When passes over threads run, and which threads each goes over.
//!
//! A pass over all threads costs a look at each, and what changed since the one before. Where that is
//! more than a part of its share of a CPU ([`super::cpu_share`]), such passes run less often, and between
//! them passes over the threads that were switched lately ([`crate::engine::active_threads`]) run as
//! often as is wanted. Nothing is lost by it: time is counted as it has passed.
//!
//! Invariant: a thread that begins or is switched brings the next pass forward, but never to before the
//! share of a CPU, or the pause after a failure, allows one.

use std::time::{Duration, Instant};

use super::cpu_share::{CpuShare, OverAll};
use crate::engine::active_threads::{ActiveThreads, Targets};
use crate::engine::monotonic_nanos;
use crate::kernel::thread_reader::{Cost, Repeated, Target};
use crate::random::Random;

/// A thread is active for so many pauses between passes over all threads after it was switched, for so long
/// at least, and for so long at most where one pause is shorter.
const ACTIVE_PAUSES: u32 = 4;
const ACTIVE: Duration = Duration::from_secs(1);
const MOST_ACTIVE: Duration = Duration::from_secs(8);
/// From one look at what repeated passes have done to the next.
const LOOK: Duration = Duration::from_millis(250);
/// Where too many hang, or a reader fails, passes are tried again so often.
const RETRY: Duration = Duration::from_secs(5);

/// What is to be walked next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// All threads; what is repeated goes on afterwards.
    All,
    /// All threads, instead of those that are active.
    Only,
    Targets(Vec<Target>),
    /// Nothing before then.
    Later(Instant),
}

/// When the passes of an engine run.
pub(super) struct Schedule {
    share: CpuShare,
    /// When the engine looks at passes, and orders others.
    next: Instant,
    /// Not before, whatever happens meanwhile: the share of a CPU, and the pause after a failure.
    earliest: Instant,
    active: ActiveThreads,
    /// When the last pass over all threads began, and when the next is due.
    all_began: Instant,
    all_due: Instant,
    /// Every thread is sent by the next pass over all, or by the one that is on.
    wants_all: bool,
    sends_all: bool,
    /// Until when every thread was sent, switched or not, by the records' clock.
    all_sent: u64,
    /// What the reader is to repeat.
    repeated: Option<Repeated>,
    random: Random,
}

impl Schedule {
    pub(super) fn new(frequency: u32, cpus: usize) -> Self {
        let now = Instant::now();
        Self {
            share: CpuShare::new(frequency, cpus),
            next: now,
            earliest: now,
            active: ActiveThreads::default(),
            all_began: now,
            all_due: now,
            wants_all: true,
            sends_all: false,
            all_sent: u64::MAX,
            repeated: None,
            random: Random::new(),
        }
    }

    pub(super) fn set_frequency(&mut self, frequency: u32) {
        self.share.set_frequency(frequency);
    }

    /// When the engine looks at passes, and orders others.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    pub(super) fn set_next(&mut self, next: Instant) {
        self.next = next.max(self.earliest);
    }

    /// How long it is on average from the beginning of the last pass to the next.
    pub(super) fn next_interval(&self) -> Duration {
        self.share.next_interval()
    }

    /// Every thread is sent by the next pass over all.
    pub(super) fn send_all(&mut self) {
        self.wants_all = true;
    }

    /// Every thread is sent by the pass that is on.
    pub(super) fn sends_all(&self) -> bool {
        self.sends_all
    }

    /// What the reader is to repeat.
    pub(super) fn repeated(&self) -> Option<&Repeated> {
        self.repeated.as_ref()
    }

    /// A thread was switched, or runs. `is_new`: it was not known before.
    pub(super) fn note_moved(&mut self, pid: u32, tid: u32, time: u64, is_new: bool) {
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

    /// A process has begun, or has a new thread: more may come.
    pub(super) fn note_starting(&mut self, pid: u32, time: u64) {
        if self.active.starts(pid, time) {
            self.wake();
        }
    }

    /// A thread has ended.
    pub(super) fn note_ended(&mut self, tid: u32) {
        self.active.ended(tid);
    }

    /// A process has ended: nothing more of it can begin.
    pub(super) fn note_exited(&mut self, pid: u32) {
        self.active.exited(pid);
    }

    /// Something is to be walked: the next pass comes as soon as passes do.
    fn wake(&mut self) {
        let soon = Instant::now() + self.random.spread(self.share.interval());
        self.next = self.next.min(soon.max(self.earliest));
    }

    /// A pass failed, or could not begin: there are none for a while.
    pub(super) fn rest(&mut self) {
        self.repeated = None;
        self.earliest = Instant::now() + RETRY;
        self.next = self.earliest;
    }

    /// Which threads the next pass goes over. `count` says how many threads a process has.
    pub(super) fn choose(&mut self, now: Instant, count: impl Fn(u32) -> usize) -> Choice {
        let due = self.all_due;
        if self.share.only_all() {
            return if now < due { Choice::Later(due) } else { Choice::Only };
        }
        if self.wants_all || self.sends_all || now >= due {
            return Choice::All;
        }
        let all_pause = self.share.all_pause();
        let window = (all_pause * ACTIVE_PAUSES).clamp(ACTIVE, MOST_ACTIVE).max(all_pause);
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let all_cost = u64::try_from(self.share.next_cost().as_nanos()).unwrap_or(u64::MAX);
        match self.active.since(monotonic_nanos().saturating_sub(window), count) {
            Some(Targets { targets, .. }) if targets.is_empty() => Choice::Later(due),
            Some(Targets { targets, cost }) if cost < all_cost => Choice::Targets(targets),
            _ => {
                let allowed = due.min(self.all_began + self.share.least_all_pause());
                if now < allowed { Choice::Later(allowed) } else { Choice::Only }
            }
        }
    }

    /// A pass over all threads begins.
    pub(super) fn begin_over_all(&mut self, now: Instant) {
        self.sends_all |= std::mem::take(&mut self.wants_all);
        if self.sends_all {
            self.all_sent = u64::MAX;
        }
        self.await_over_all(now);
    }

    /// A pass over all threads is on: when the engine looks whether it is over. Until then no others go on, if
    /// none are repeated.
    pub(super) fn await_over_all(&mut self, now: Instant) {
        self.next = now + if self.repeated.is_some() { LOOK } else { self.share.interval() };
    }

    /// These are repeated from now on. False where they are already.
    pub(super) fn repeat(&mut self, targets: Vec<Target>, now: Instant) -> bool {
        self.next = self.all_due.min(now + LOOK);
        let pace = self.share.pace();
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

    /// Nothing is repeated any more. False where nothing was.
    pub(super) fn stop_repeating(&mut self) -> bool {
        self.repeated.take().is_some()
    }

    /// A record of a pass was taken.
    pub(super) fn note_taking(&mut self, time: Duration) {
        self.share.note_taking(time);
    }

    /// Takes the cost of repeated passes since the last report and, if a pass over all threads has ended
    /// since, when it began and what it cost.
    pub(super) fn take_report(&mut self, repeated: Cost, over_all: Option<(Instant, Cost)>) {
        let Some((began, cost)) = over_all else {
            self.share.take_report(repeated, None);
            return;
        };
        let sends_all = std::mem::take(&mut self.sends_all);
        if sends_all {
            self.all_sent = monotonic_nanos();
        }
        self.share.take_report(repeated, Some(OverAll { cost, sends_all }));
        let half = self.share.all_pause() / 2;
        let rest = if sends_all { half } else { self.random.spread(half) };
        self.all_began = began;
        self.all_due = began + half + rest;
        let wanted = self.share.next_interval();
        self.earliest = began + wanted;
        self.next = began + self.random.spread(wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::super::cpu_share::{MOST_PAUSE, MOST_TAKING};
    use super::*;

    fn cost(micros: u64) -> Cost {
        Cost { nanos: micros * 1000, passes: 1, refused: 0 }
    }

    /// A pass over all threads of this cost has ended.
    fn end(schedule: &mut Schedule, began: Instant, cost: Cost) {
        schedule.take_report(Cost::default(), Some((began, cost)));
    }

    /// After the first pass, which sent every thread.
    fn after_first_pass(began: Instant, cost: Cost) -> Schedule {
        let mut schedule = Schedule::new(20, 8);
        schedule.begin_over_all(began);
        end(&mut schedule, began, cost);
        schedule
    }

    #[test]
    fn what_is_repeated_is_ordered_again_only_where_it_is_another() {
        let mut schedule = Schedule::new(20, 8);
        let now = Instant::now();
        end(&mut schedule, now, cost(100));
        let (one, two) = (vec![Target::Thread(1)], vec![Target::Thread(1), Target::Thread(2)]);
        assert!(schedule.repeat(one.clone(), now) && !schedule.repeat(one, now));
        assert!(schedule.repeat(two.clone(), now));
        // Records of the pass over all threads are none of theirs.
        let went_on = |schedule: &mut Schedule, records: u32| {
            (0..records).for_each(|_| schedule.note_taking(MOST_TAKING));
            schedule.take_report(cost(10), None);
        };
        went_on(&mut schedule, 10);
        assert!(!schedule.repeat(two.clone(), now));
        for (records, is_another) in [(10, true), (10, true), (0, true), (4, false)] {
            went_on(&mut schedule, records);
            assert_eq!(schedule.repeat(two.clone(), now), is_another, "{records}");
        }
        schedule.set_frequency(10);
        assert!(schedule.repeat(two, now));
    }

    #[test]
    fn between_passes_over_all_threads_only_those_that_moved_are_walked() {
        let none = |_: u32| 0;
        let began = Instant::now();
        assert_eq!(Schedule::new(20, 8).choose(began, none), Choice::All);
        let mut schedule = after_first_pass(began, cost(20_000));
        schedule.note_moved(1, 1, 5, true);
        let second = began + MOST_PAUSE;
        // What every thread sent at first says nothing.
        assert_eq!(schedule.choose(began + Duration::from_millis(50), none), Choice::Later(second));
        assert_eq!(schedule.choose(second, none), Choice::All);
        end(&mut schedule, second, cost(2_000));
        // The next pass over all is due after 1,000 times the cost.
        let soon = second + Duration::from_millis(50);
        let later = schedule.all_due;
        let pause = later.duration_since(second).as_secs_f64();
        assert!((1.5..2.5).contains(&pause), "{pause}");
        assert_eq!(schedule.choose(soon, none), Choice::Later(later));
        schedule.next = later;
        schedule.note_moved(7, 8, monotonic_nanos(), false);
        assert!(schedule.next < second + Duration::from_secs(1));
        assert_eq!(schedule.choose(soon, |_| 500), Choice::Targets(vec![Target::Thread(8)]));
        assert_eq!(schedule.choose(later, |_| 500), Choice::All);
        // Where as much moves as all cost, all are walked, as often as a CPU's share allows.
        for tid in 0..64 {
            schedule.note_moved(7, tid, monotonic_nanos(), false);
        }
        end(&mut schedule, second, cost(300));
        assert_eq!(
            schedule.choose(second, |_| 800),
            Choice::Later(second + Duration::from_micros(37_500))
        );
        assert_eq!(schedule.choose(soon, |_| 800), Choice::Only);
        // A kernel without iterators over some threads: passes over all alone.
        schedule.take_report(Cost { refused: 1, ..cost(0) }, None);
        let due = schedule.all_due;
        assert_eq!(schedule.choose(soon, |_| 500), Choice::Later(due));
        assert_eq!(schedule.choose(due, |_| 500), Choice::Only);
    }

    #[test]
    fn a_dear_pass_over_active_threads_puts_off_none_over_all() {
        let began = Instant::now();
        let mut schedule = after_first_pass(began, cost(50_000));
        schedule.take_report(cost(1_000_000), None);
        schedule.note_moved(7, 8, monotonic_nanos(), false);
        assert_eq!(schedule.choose(began + MOST_PAUSE, |_| 500), Choice::All);
    }

    #[test]
    fn a_new_thread_brings_no_pass_before_the_share_of_a_cpu_allows_it() {
        let mut schedule = Schedule::new(20, 8);
        schedule.wants_all = false;
        schedule.all_sent = 0;
        schedule.take_report(Cost { refused: 1, ..cost(0) }, None);
        let began = Instant::now();
        end(&mut schedule, began, cost(30_000));
        let allowed = began + Duration::from_millis(30) * 125;
        for tid in 0..100 {
            schedule.next = began + Duration::from_secs(3600);
            schedule.note_moved(7, tid, 1, true);
            assert!(schedule.next >= allowed, "{tid}");
        }
        // After a failure, too.
        let failed = Instant::now();
        schedule.rest();
        schedule.note_moved(8, 8, 2, true);
        assert!(schedule.next >= failed + RETRY);
    }
}
