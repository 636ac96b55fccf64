//! How long the cycles of windows are, which part of each is the window, and when the events may be on
//! all the time again.
//!
//! **Invariant:** a window is chosen with equal chances among the parts of its cycle, from what was
//! measured before the cycle began. Per step the part of the time that events are on is halved or
//! doubled.

use crate::sampling::mix;

/// Events a second, and for each CPU that the process keeps busy where it is more than one, that cost
/// too little to be switched off. An event costs about 5 µs, most of it in the runtime: 2 % of a CPU.
pub const BOUND: u64 = 4_000;

/// The events are on for one part of `2^MAX_SHIFT`, at least.
pub const MAX_SHIFT: u32 = 5;

const SECOND: f64 = 1e9;
/// A window, in nanoseconds, by each clock: sums scatter with the number of windows, and for each one the
/// session is opened for longer.
const WINDOW: u64 = 32_000_000;
const WINDOW_OF_COLLECTIONS: f64 = 0.020 * SECOND;
/// How long before a window the session is opened: a thread that is to run does so within a time slice or
/// two (3 ms, kernel/sched/fair.c) where all CPUs are busy.
const LEAD: u64 = 4_000_000;
/// The same where a window begins with a collection: one that begins with a later collection does no harm.
const LEAD_OF_COLLECTIONS: f64 = 0.002 * SECOND;
/// With fewer a second time is the clock.
const FREQUENT: f64 = 20.0;
/// Rates are smoothed over this time.
const SMOOTHED: f64 = SECOND;
/// A step down needs room for a rate that is larger by this factor.
const ROOM: f64 = 1.5;

/// What cycles are measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// In nanoseconds.
    Time,
    /// In collections.
    Collections,
}

/// When events count, and that each stands for `2^shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub clock: Clock,
    pub shift: u32,
    pub opens: u64,
    pub closes: u64,
}

impl Window {
    /// As long, but not before this position.
    pub fn not_before(self, position: u64) -> Self {
        let late = position.saturating_sub(self.opens);
        Self { opens: self.opens + late, closes: self.closes + late, ..self }
    }
}

/// One window, and the time around it that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cycle {
    pub window: Window,
    pub ends: u64,
    /// How long before a window its session is opened.
    pub lead: u64,
}

/// Sums since the last cycle.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// What the events stood for.
    pub events: u64,
    pub nanoseconds: u64,
    /// CPU time of the process.
    pub cpu: u64,
    pub collections: u64,
}

pub struct Planner {
    shift: u32,
    /// Events a second and busy CPU.
    events: f64,
    /// Collections a second.
    collections: f64,
    busy_cpus: f64,
    is_measured: bool,
    random: u64,
}

impl Planner {
    pub fn new(seed: u64) -> Self {
        Self {
            shift: 1,
            events: 0.0,
            collections: 0.0,
            busy_cpus: 1.0,
            is_measured: false,
            random: seed,
        }
    }

    /// Takes a step towards what the rates need. `false`: the events can be on all the time.
    pub fn step(&mut self, measured: Measured) -> bool {
        let time = measured.nanoseconds.max(1) as f64;
        let busy_cpus = (measured.cpu as f64 / time).max(1.0);
        let share = if self.is_measured { time / (time + SMOOTHED) } else { 1.0 };
        let smooth = |value: &mut f64, now: f64| *value += (now - *value) * share;
        smooth(&mut self.busy_cpus, busy_cpus);
        smooth(&mut self.events, measured.events as f64 * SECOND / time / busy_cpus);
        smooth(&mut self.collections, measured.collections as f64 * SECOND / time);
        self.is_measured = true;
        if self.needed(1.0) > self.shift {
            self.shift += 1;
        } else if self.needed(ROOM) < self.shift {
            self.shift -= 1;
        }
        self.shift > 0
    }

    /// The least shift that keeps to the bound at the rate, times `room`.
    fn needed(&self, room: f64) -> u32 {
        let (_, window, lead) = self.lengths();
        let on = self.events * room * (window + lead) as f64 / window as f64;
        (0..MAX_SHIFT).find(|shift| on <= (BOUND << shift) as f64).unwrap_or(MAX_SHIFT)
    }

    /// The clock, with the length of a window and of its lead.
    fn lengths(&self) -> (Clock, u64, u64) {
        if self.collections < FREQUENT {
            return (Clock::Time, WINDOW, LEAD);
        }
        let of = |nanoseconds: f64| self.collections * nanoseconds / SECOND;
        // The lead is one at least.
        let window = of(WINDOW_OF_COLLECTIONS).round().max(2.0);
        (Clock::Collections, window as u64, of(LEAD_OF_COLLECTIONS).ceil() as u64)
    }

    pub fn clock(&self) -> Clock {
        self.lengths().0
    }

    /// The cycle that begins here.
    pub fn cycle(&mut self, begins: u64) -> Cycle {
        let (clock, length, lead) = self.lengths();
        let parts = 1 << self.shift;
        self.random = self.random.wrapping_add(1);
        let opens = begins + mix(self.random) % parts * length;
        let window = Window { clock, shift: self.shift, opens, closes: opens + length };
        Cycle { window, ends: begins + parts * length, lead }
    }

    /// Events a second that the whole process may have all the time.
    pub fn rate_allowed(&self) -> u64 {
        (BOUND as f64 * self.busy_cpus) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(events: u64, cpus: u64, collections: u64) -> Measured {
        Measured { events, nanoseconds: 1_000_000_000, cpu: cpus * 1_000_000_000, collections }
    }

    #[test]
    fn a_step_at_a_time_is_taken_to_the_bound_and_back() {
        let mut planner = Planner::new(1);
        let mut shifts = vec![];
        for _ in 0..6 {
            assert!(planner.step(measured(22_500, 1, 0)));
            shifts.push(planner.shift);
        }
        assert_eq!(shifts, [2, 3, 3, 3, 3, 3]);
        let mut steps = 0;
        while planner.step(measured(100, 1, 0)) {
            steps += 1;
        }
        assert!((2..20).contains(&steps), "{steps}");
        assert_eq!(planner.rate_allowed(), BOUND);
    }

    #[test]
    fn what_many_cpus_allocate_is_divided_by_them() {
        let mut planner = Planner::new(1);
        assert!(!planner.step(measured(20_000, 10, 0)));
        assert_eq!(planner.rate_allowed(), 10 * BOUND);
    }

    #[test]
    fn rates_around_a_step_do_not_change_it_all_the_time() {
        let mut planner = Planner::new(1);
        for _ in 0..8 {
            planner.step(measured(14_000, 1, 0));
        }
        let before = planner.shift;
        for number in 0..20 {
            planner.step(measured(12_500 + number % 2 * 1_500, 1, 0));
            assert_eq!(planner.shift, before);
        }
    }

    #[test]
    fn every_moment_of_a_cycle_has_the_same_chance() {
        for collections in [0, 200] {
            let mut planner = Planner::new(7);
            while planner.shift < 3 {
                planner.step(measured(20_000, 1, collections));
            }
            let first = planner.cycle(1_000);
            let length = first.window.closes - first.window.opens;
            assert_eq!(first.ends, 1_000 + 8 * length);
            let mut chosen = [0; 8];
            for _ in 0..8_000 {
                let window = planner.cycle(1_000).window;
                assert_eq!((window.opens - 1_000) % length, 0);
                chosen[((window.opens - 1_000) / length) as usize] += 1;
            }
            assert!(chosen.iter().all(|times| (850..1_150).contains(times)), "{chosen:?}");
        }
    }

    #[test]
    fn frequent_collections_are_the_clock() {
        let mut planner = Planner::new(1);
        planner.step(measured(20_000, 1, 250));
        let cycle = planner.cycle(40);
        assert_eq!(cycle.window.clock, Clock::Collections);
        assert_eq!((cycle.window.closes - cycle.window.opens, cycle.lead), (5, 1));
        for _ in 0..10 {
            planner.step(measured(20_000, 1, 2));
        }
        assert_eq!(planner.clock(), Clock::Time);
    }

    /// A program that allocates in bursts, whose period is that of the windows or not.
    #[test]
    fn sums_of_bursts_are_right() {
        for period in [100, 250, 256] {
            let mut planner = Planner::new(period);
            while planner.shift < 3 {
                planner.step(measured(20_000, 1, 0));
            }
            // Milliseconds of bursts that are in windows, which are as long as the cycle is short.
            let is_in_burst = |millisecond: u64| millisecond % period < period / 5;
            let (mut begins, mut all, mut seen) = (0, 0, 0);
            for _ in 0..20_000 {
                let cycle = planner.cycle(begins);
                let of = |from: u64, to: u64| {
                    (from / 1_000_000..to / 1_000_000).filter(|time| is_in_burst(*time)).count()
                };
                all += of(begins, cycle.ends);
                seen += of(cycle.window.opens, cycle.window.closes) << cycle.window.shift;
                begins = cycle.ends;
            }
            let error = (seen as f64 / all as f64 - 1.0).abs();
            assert!(error < 0.04, "{period}: {seen} of {all}");
        }
    }
}
