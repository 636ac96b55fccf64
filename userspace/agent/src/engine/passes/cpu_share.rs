//! The share of a CPU that passes over threads have, and what they have used of it.
//!
//! A pass costs what its reader uses of a CPU, and what the engine uses to take its records. One over
//! all threads puts off the next such one until both are paid for, and leaves a part of the share in any
//! case; passes over active threads have what is left.
//!
//! Invariant: nothing here knows what time it is. What has been used comes in, and pauses come out.

use std::time::Duration;

use crate::kernel::thread_reader::{Cost, Pace};

/// Of the time, passes may take a CPU for one part in so many: with what the engine needs for them, one
/// percent. Where others can run between those over all threads, these take an eighth of it if that is
/// enough, and leave an eighth in any case.
const OF_ONE: u32 = 125;
/// And all CPUs together for one part in so many: of few, it is more that programs lack.
const OF_ALL_CPUS: u32 = 500;
/// A look at a thread costs a small part of sending it.
const OF_SENDING: u32 = 16;
/// From one pass over all threads to the next at least, where others run between them: a thread is active
/// for longer after it was switched.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// The same at most, while its share of a CPU allows it; from one that sends every thread in any case,
/// because unwind tables are loaded for what it meets.
pub(super) const MOST_PAUSE: Duration = Duration::from_secs(2);
/// For what passes cost that send every thread, others pause for so long afterwards at most.
const MOST_OWED: Duration = Duration::from_secs(10);
/// Taking a record costs this at most: what takes longer had to wait for a CPU.
pub(super) const MOST_TAKING: Duration = Duration::from_micros(100);

/// A pass over all threads that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverAll {
    pub(super) cost: Cost,
    /// It sent every thread, switched or not.
    pub(super) sends_all: bool,
}

/// What passes may use.
pub(super) struct CpuShare {
    /// A CPU is theirs for one part in so many of the time.
    one_in: u32,
    /// From one pass to the next, as it is wanted.
    interval: Duration,
    /// From the last pass to the next, as its cost allows.
    next_interval: Duration,
    /// No passes but those over all threads: the kernel has no iterator over some.
    only_all: bool,
    /// Of passes over all threads: what the last one cost with what it has paid for earlier ones, what the
    /// next will cost, and what is between two on average.
    all_cost: Duration,
    next_cost: Duration,
    all_pause: Duration,
    /// What passes that sent every thread cost above their share: the next one over all pays for it.
    owed: Duration,
    /// The last pass over all sent every thread, and its records are being taken.
    is_settling: bool,
    /// Of the records that are taken now, some are of a pass over all threads.
    follows_all: bool,
    /// What taking records has cost since it was last counted.
    taking: Duration,
    /// What taking those of a pass over active threads costs.
    each_taking: Duration,
}

impl CpuShare {
    pub(super) fn new(frequency: u32, cpus: usize) -> Self {
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX).max(1);
        Self {
            one_in: (OF_ALL_CPUS / cpus).max(OF_ONE),
            interval: interval_of(frequency),
            next_interval: Duration::ZERO,
            only_all: false,
            all_cost: Duration::ZERO,
            next_cost: Duration::ZERO,
            all_pause: Duration::ZERO,
            owed: Duration::ZERO,
            is_settling: false,
            follows_all: false,
            taking: Duration::ZERO,
            each_taking: Duration::ZERO,
        }
    }

    pub(super) fn set_frequency(&mut self, frequency: u32) {
        self.interval = interval_of(frequency);
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// How long it is on average from the beginning of the last pass to the next.
    pub(super) fn next_interval(&self) -> Duration {
        self.next_interval
    }

    /// The same between passes over all threads.
    pub(super) fn all_pause(&self) -> Duration {
        self.all_pause
    }

    /// How soon after a pass over all threads the share allows the next one, if none run between them.
    pub(super) fn least_all_pause(&self) -> Duration {
        self.all_cost * self.one_in
    }

    /// What the next pass over all threads will cost.
    pub(super) fn next_cost(&self) -> Duration {
        self.next_cost
    }

    pub(super) fn only_all(&self) -> bool {
        self.only_all
    }

    /// A record of a pass was taken.
    pub(super) fn note_taking(&mut self, time: Duration) {
        self.taking += time.min(MOST_TAKING);
    }

    /// Takes the cost of repeated passes since the last report and, if a pass over all threads has ended
    /// since, that of this one.
    pub(super) fn take_report(&mut self, repeated: Cost, over_all: Option<OverAll>) {
        // Most of what was taken meanwhile is of a pass over all threads, if one has ended.
        let of_repeated = self.each_taking * repeated.passes;
        let of_all = self.taking.saturating_sub(of_repeated);
        if over_all.is_some() {
            self.taking -= of_all;
        }
        self.went_on(repeated);
        // What the records of a first pass cost that sends every thread is paid by now.
        self.is_settling &= repeated.passes == 0 || over_all.is_some();
        if let Some(OverAll { cost, sends_all }) = over_all {
            self.taking += of_all;
            self.only_all |= cost.refused > 0;
            self.end(Duration::from_nanos(cost.nanos), sends_all);
        }
    }

    /// Passes over active threads went on, and cost this.
    fn went_on(&mut self, cost: Cost) {
        if cost.passes == 0 {
            return;
        }
        self.only_all |= cost.refused > 0;
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
        self.next_interval = (each * self.pace().one_in).max(self.interval);
    }

    /// A pass over all threads has ended, whose reader has used so much of a CPU. One that sends every thread
    /// costs more than the next one will, and the next one is wanted soon: it pays for both.
    fn end(&mut self, reading: Duration, sends_all: bool) {
        // Of the records that were taken meanwhile, some are of the pass before.
        let mut taking = std::mem::take(&mut self.taking);
        if std::mem::replace(&mut self.is_settling, sends_all) {
            self.owe(std::mem::take(&mut taking));
        }
        let cost = reading + taking;
        let share = if self.only_all { self.one_in } else { 8 * self.one_in / 7 + 1 };
        self.follows_all = true;
        if sends_all {
            self.all_cost = cost;
            self.next_cost = cost / OF_SENDING;
            self.all_pause = (cost * share).min(MOST_PAUSE).max(self.interval);
            self.owe(cost.saturating_sub(self.all_pause / share));
        } else {
            self.all_cost = cost + std::mem::take(&mut self.owed);
            self.next_cost = cost;
            let least = (self.all_cost * share).max(self.interval);
            let wanted = (cost * (8 * self.one_in)).clamp(LEAST_PAUSE, MOST_PAUSE);
            let wanted = if self.only_all { least } else { wanted };
            self.all_pause = wanted.max(least);
        }
        self.next_interval = if self.only_all { self.all_pause } else { self.interval };
    }

    /// One that is repeated all the time puts off no pass for ever longer.
    fn owe(&mut self, cost: Duration) {
        self.owed = (self.owed + cost).min(MOST_OWED / self.one_in);
    }

    /// The pace of passes over active threads.
    pub(super) fn pace(&self) -> Pace {
        Pace { interval: self.interval, one_in: self.one_in_of_active(), taking: self.each_taking }
    }

    /// Passes over active threads have what those over all leave of the share: a CPU for one part in so
    /// many.
    fn one_in_of_active(&self) -> u32 {
        let of_all = if self.all_pause.is_zero() {
            0.0
        } else {
            self.all_cost.as_secs_f64() / self.all_pause.as_secs_f64()
        };
        let left = f64::from(self.one_in).recip() - of_all;
        left.max(f64::from(8 * self.one_in).recip()).recip().ceil() as u32
    }
}

fn interval_of(frequency: u32) -> Duration {
    Duration::from_secs(1) / frequency.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_sends_every_thread_is_paid_for_by_the_second_one() {
        let mut share = CpuShare::new(20, 8);
        share.only_all = true;
        let mut pause = |reading: u64, taking: u64, sends_all| {
            share.taking += Duration::from_millis(taking);
            share.end(Duration::from_millis(reading), sends_all);
            share.next_interval().as_millis()
        };
        // Of 60 ms, two seconds pay for 16. What it has sent is taken after it, too.
        assert_eq!(pause(50, 10, true), 2_000);
        let pauses = [pause(2, 20, false), pause(2, 2, false), pause(0, 0, false)];
        assert_eq!(pauses, [8_250, 500, 50]);
    }

    #[test]
    fn a_dear_pass_over_active_threads_is_no_cost_of_those_over_all() {
        let mut share = CpuShare::new(20, 8);
        let repeated = Cost { nanos: 500_000, passes: 1, refused: 0 };
        share.end(Duration::from_millis(50), true);
        assert_eq!(share.all_pause, MOST_PAUSE);
        // The records of the first pass, which are no cost of the one that follows.
        share.taking = Duration::from_millis(40);
        share.went_on(repeated);
        assert_eq!(share.each_taking, Duration::ZERO);
        share.taking = Duration::from_secs(1);
        share.went_on(repeated);
        assert_eq!(share.each_taking, Duration::from_millis(500));
        assert_eq!(share.all_pause, MOST_PAUSE);
        // The second one pays for it: 50 and 40 ms, less what two seconds paid.
        share.taking = Duration::ZERO;
        share.end(Duration::from_millis(1), false);
        let paid = (MOST_PAUSE + share.all_pause).as_secs_f64() / 0.091;
        let most = f64::from(8 * OF_ONE / 7 + 1);
        assert!((most - 1.0..most + 1.0).contains(&paid), "{paid}");
    }

    #[test]
    fn every_thread_sent_again_and_again_puts_off_no_pass_for_ever() {
        let mut share = CpuShare::new(20, 8);
        for _ in 0..100 {
            share.end(Duration::from_millis(50), true);
        }
        share.end(Duration::from_millis(1), false);
        assert!(share.all_pause < Duration::from_secs(12), "{:?}", share.all_pause);
        // And what is not much dearer than a look at all is walked by itself.
        share.end(Duration::from_millis(50), true);
        assert_eq!(share.next_cost, Duration::from_millis(50) / OF_SENDING);
    }

    #[test]
    fn passes_over_all_threads_and_over_active_ones_share_a_part_of_a_cpu() {
        for (cpus, most) in [(1, 0.002), (2, 0.004), (3, 0.006), (4, 0.008), (64, 0.008)] {
            for cost in [10, 200, 2_000, 5_000, 20_000, 200_000].map(Duration::from_micros) {
                let mut share = CpuShare::new(20, cpus);
                share.end(cost, false);
                let of_all = cost.as_secs_f64() / share.all_pause.as_secs_f64();
                let of_active = f64::from(share.one_in_of_active()).recip();
                println!("{cost:?}: {of_all:.5} for all, {of_active:.5} for active ones");
                assert!(of_all + of_active <= 1.005 * most);
                assert!(of_active >= 0.995 * most / 8.0);
            }
        }
    }
}
