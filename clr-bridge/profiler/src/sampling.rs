//! Which events are reported, so that a program that throws without end pays a bounded price.
//!
//! Events are distinguished by a key (an exception's class), by which they are counted in one of a
//! fixed number of places. In each window of time a place's first event is reported, and then all
//! until its share of the budget is spent; from then on one of two, of four, … of a block of
//! events, chosen by chance before the block begins. Each report carries how many events it stands
//! for, so that sums are right whatever is chosen.
//!
//! All keys together have a budget too ([`Total`]): beyond it the blocks of every key double, and
//! double again after ever fewer reports. What a burst of many classes reports in its first window, when
//! nothing is known of it, is what the kernel takes of one process, as an event that it refuses takes
//! its weight with it.
//!
//! **Invariant:** no lock, no allocation; a place is one word. Whether an event is chosen depends
//! on the events before it only.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A window of time: 2^27 nanoseconds, 134 ms.
const WINDOW_SHIFT: u32 = 27;
/// Windows in a second, for budgets.
const WINDOWS: u32 = 8;
const PLACES: usize = 256;
/// A report stands for `2^MAX_SHIFT` events at most.
const MAX_SHIFT: u32 = 14;

/// Reports a second of one key, where the owner states none.
const DEFAULT_RATE: u32 = 1_500;
/// Reports of all keys in a window before the blocks double for the first time.
const OF_ALL: u32 = 310;

/// Reports of the longest burst in one window: until no block grows any more, and of each place the
/// first one and that of the block that was under way then, and those that two million events have beyond.
const _: () = {
    let (mut reports, mut grown) = (2 * PLACES + (2_000_000 >> MAX_SHIFT), 0);
    while grown < MAX_SHIFT {
        reports += (OF_ALL / (1 + grown)) as usize;
        grown += 1;
    }
    // A bridge has two of these: objects that are watched are chosen apart.
    assert!(2 * reports <= strata_bridge_protocol::clr_event::MOST_REPORTS);
};

/// A thread that read the clock in one of so many windows before the current one is late.
const LATE: u32 = 8;

/// How many windows have passed. `None`: none, for a late thread too, which would begin an old one again.
fn passed(from: u32, to: u32) -> Option<u32> {
    let passed = to.wrapping_sub(from) & 0xffff;
    (passed != 0 && passed < 0x1_0000 - LATE).then_some(passed)
}

/// A shift after so many windows, of which the first had few reports (`was_calm`) or not, and the others
/// none.
fn calmed(shift: u32, was_calm: bool, passed: u32) -> u32 {
    shift.saturating_sub(if was_calm { passed } else { passed - 1 })
}

pub struct Sampling {
    places: [AtomicU64; PLACES],
    total: AtomicU64,
    rate: AtomicU32,
    random: AtomicU64,
}

/// The state of a place, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Place {
    /// 16 bits.
    window: u32,
    /// Reports in this window, or since the shift grew in it; 10 bits.
    sent: u32,
    /// 4 bits: one of `2^shift` is reported.
    shift: u32,
    /// The same of the block under way.
    block_shift: u32,
    /// Events of the block so far; 15 bits.
    passed: u32,
    /// Which of the block is reported; 15 bits.
    choice: u32,
}

impl Place {
    fn pack(self) -> u64 {
        u64::from(self.window & 0xffff)
            | u64::from(self.sent & 0x3ff) << 16
            | u64::from(self.shift & 15) << 26
            | u64::from(self.block_shift & 15) << 30
            | u64::from(self.passed & 0x7fff) << 34
            | u64::from(self.choice & 0x7fff) << 49
    }

    fn unpack(word: u64) -> Self {
        let bits = |from: u32, mask: u64| (word >> from & mask) as u32;
        Self {
            window: bits(0, 0xffff),
            sent: bits(16, 0x3ff),
            shift: bits(26, 15),
            block_shift: bits(30, 15),
            passed: bits(34, 0x7fff),
            choice: bits(49, 0x7fff),
        }
    }

    /// A new window: what was reported little is reported more often. True if it is one.
    fn turn(&mut self, window: u32, most: u32) -> bool {
        let Some(passed) = passed(self.window, window) else { return false };
        self.shift = calmed(self.shift, self.sent < most / 2, passed);
        self.window = window;
        self.sent = 0;
        true
    }

    /// One more was reported.
    fn note(&mut self, most: u32) {
        self.sent += 1;
        if self.sent >= most && self.shift < MAX_SHIFT {
            self.sent = 0;
            self.shift += 1;
        }
        self.sent = self.sent.min(0x3ff);
    }

    /// What the next event stands for.
    fn next(&mut self, window: u32, most: u32, more_shift: u32, random: u32) -> u32 {
        if self.turn(window, most) {
            self.note(most);
            // It is no part of a block. One of a flood that is over would take long to end; a place
            // that was never used has none under way.
            if self.block_shift == 0 || self.block_shift > self.shift + more_shift + 1 {
                self.passed = 1 << self.block_shift;
            }
            return 1;
        }
        if self.passed >= 1 << self.block_shift {
            self.block_shift = (self.shift + more_shift).min(MAX_SHIFT);
            self.choice = random & ((1 << self.block_shift) - 1);
            self.passed = 0;
        }
        let is_chosen = self.passed == self.choice;
        self.passed += 1;
        if !is_chosen {
            return 0;
        }
        self.note(most);
        1 << self.block_shift
    }
}

/// The state of all keys together, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Total {
    /// 16 bits.
    window: u32,
    /// Reports in this window, or since the shift grew in it; 16 bits.
    sent: u32,
    /// The blocks of all keys are `2^shift` times as long; 4 bits.
    shift: u32,
    /// How often the shift grew in this window; 4 bits.
    grown: u32,
}

impl Total {
    fn pack(self) -> u64 {
        u64::from(self.window & 0xffff)
            | u64::from(self.sent & 0xffff) << 16
            | u64::from(self.shift & 15) << 32
            | u64::from(self.grown & 15) << 36
    }

    fn unpack(word: u64) -> Self {
        let bits = |from: u32, mask: u64| (word >> from & mask) as u32;
        Self {
            window: bits(0, 0xffff),
            sent: bits(16, 0xffff),
            shift: bits(32, 15),
            grown: bits(36, 15),
        }
    }

    /// One more was reported. The first ones of keys in a window are no reason for longer blocks: those of
    /// rare keys would never end.
    fn note(&mut self, window: u32, is_first: bool) {
        if let Some(passed) = passed(self.window, window) {
            let shift = calmed(self.shift, self.sent < OF_ALL / 2, passed);
            *self = Self { window, sent: 0, shift, grown: 0 };
        }
        if is_first {
            return;
        }
        self.sent += 1;
        // Each further step takes fewer reports, so that they grow with the logarithm of the
        // logarithm of the events.
        if self.sent >= OF_ALL / (1 + self.grown) && self.shift < MAX_SHIFT {
            self.sent = 0;
            self.shift += 1;
            self.grown += 1;
        }
        self.sent = self.sent.min(0xffff);
    }
}

impl Sampling {
    pub const fn new() -> Self {
        Self {
            places: [const { AtomicU64::new(0) }; PLACES],
            total: AtomicU64::new(0),
            rate: AtomicU32::new(DEFAULT_RATE),
            random: AtomicU64::new(0),
        }
    }

    /// Reports a second of one key; 0: the usual.
    pub fn set_rate(&self, rate: u32) {
        let rate = if rate == 0 { DEFAULT_RATE } else { rate };
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// How many events of this key the current one is to stand for; 0: it is not reported.
    pub fn choose(&self, key: u64, time: u64) -> u32 {
        self.choose_with(key, time, Total::unpack(self.total.load(Ordering::Relaxed)).shift)
    }

    /// The same, whatever other keys have: of events of which there are some hundreds a second at most, and
    /// of which the longest one counts. They are beyond what is stated for the longest burst.
    pub fn choose_apart(&self, key: u64, time: u64) -> u32 {
        self.choose_with(key, time, 0)
    }

    /// `more_shift`: blocks are so many powers of two longer.
    fn choose_with(&self, key: u64, time: u64, more_shift: u32) -> u32 {
        let window = (time >> WINDOW_SHIFT) as u32 & 0xffff;
        let most = (self.rate.load(Ordering::Relaxed) / WINDOWS).clamp(2, 0x1ff);
        let random = mix(self.random.fetch_add(1, Ordering::Relaxed) ^ time) as u32;
        let Some(place) = self.places.get(place_of(key)) else { return 0 };
        let next = |word| {
            let mut place = Place::unpack(word);
            let is_first = passed(place.window, window).is_some();
            let weight = place.next(window, most, more_shift, random);
            (place.pack(), (weight, is_first))
        };
        let (weight, is_first) = change(place, next);
        if weight != 0 {
            change(&self.total, |word| {
                let mut total = Total::unpack(word);
                total.note(window, is_first);
                (total.pack(), ())
            });
        }
        weight
    }
}

/// The number of a key's place; keys with the same one share a budget.
pub fn place_of(key: u64) -> usize {
    mix(key) as usize % PLACES
}

/// Changes a word that other threads may change at the same time.
fn change<T>(word: &AtomicU64, step: impl Fn(u64) -> (u64, T)) -> T {
    let mut before = word.load(Ordering::Relaxed);
    loop {
        let (after, result) = step(before);
        match word.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return result,
            Err(now) => before = now,
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of the seed.
pub fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::clr_event::MOST_REPORTS;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Events of a key at a rate: how many, how many reports, and what these stand for.
    fn run(sampling: &Sampling, key: u64, rate: u64, seconds: u64, start: u64) -> (u64, u64, u64) {
        let (mut reports, mut total) = (0, 0);
        for number in 0..rate * seconds {
            let weight = sampling.choose(key, start + number * SECOND / rate);
            reports += u64::from(weight != 0);
            total += u64::from(weight);
        }
        (rate * seconds, reports, total)
    }

    #[test]
    fn a_flood_of_others_takes_nothing_from_what_is_chosen_apart() {
        let sampling = Sampling::new();
        let mut weights = Vec::new();
        for number in 0..200_000u64 {
            let time = SECOND + number * SECOND / 100_000;
            for class in 0..50 {
                sampling.choose(class, time);
            }
            if number % 250 == 0 {
                weights
                    .push((sampling.choose_apart(1 << 40, time), sampling.choose(1 << 41, time)));
            }
        }
        assert!(weights.iter().all(|(apart, _)| *apart == 1));
        assert!(weights.iter().any(|(_, beside)| *beside != 1));
    }

    #[test]
    fn a_place_fits_into_a_word() {
        let place = Place {
            window: 0xffff,
            sent: 0x3ff,
            shift: 14,
            block_shift: 14,
            passed: 16384,
            choice: 1,
        };
        assert_eq!(Place::unpack(place.pack()), place);
    }

    #[test]
    fn late_threads_begin_no_old_window_again() {
        let sampling = Sampling::new();
        let mut reports = 0;
        for number in 0..40_000u64 {
            let window = if number % 100 == 0 { 8 } else { 9 };
            reports += u64::from(sampling.choose(number % 10, window << WINDOW_SHIFT) != 0);
        }
        assert!(reports <= MOST_REPORTS as u64 / 2, "{reports}");
    }

    #[test]
    fn after_a_burst_and_silence_every_event_of_a_window_is_reported_again() {
        let sampling = Sampling::new();
        // Whatever the last window of the burst had.
        for events in (1_000..20_000).step_by(500) {
            for number in 0..events {
                sampling.choose(number % 10, (8 + events * 40) << WINDOW_SHIFT);
            }
            let reports = (0..100).filter(|number| {
                sampling.choose(number % 10, (8 + events * 40 + 30) << WINDOW_SHIFT) == 1
            });
            // A short block may be under way.
            assert!(reports.count() >= 90, "{events}");
        }
    }

    #[test]
    fn the_total_fits_into_a_word() {
        let total = Total { window: 0xffff, sent: 0xffff, shift: 14, grown: 14 };
        assert_eq!(Total::unpack(total.pack()), total);
    }

    #[test]
    fn a_burst_in_one_window_reports_what_the_kernel_takes() {
        // In a row, and all at the same time; the last is what 60 CPUs may allocate.
        for (keys, of_each) in
            [(5, 800), (1, 26_000), (40, 1_000), (300, 100), (300, 600), (1_500, 1_000)]
        {
            for in_turn in [false, true] {
                let (mut most, mut total) = (0, 0);
                const ROUNDS: u64 = 20;
                for round in 1..=ROUNDS {
                    let sampling = Sampling::new();
                    let mut reports = 0;
                    for number in 0..keys * of_each {
                        let key = if in_turn { number % keys } else { number / of_each };
                        let weight = sampling.choose(key, round << WINDOW_SHIFT);
                        reports += u64::from(weight != 0);
                        total += u64::from(weight);
                    }
                    most = most.max(reports);
                }
                let error = total as f64 / (keys * of_each * ROUNDS) as f64 - 1.0;
                println!("{keys} of {of_each}: {most} reports, {:.1} % wrong", error * 100.0);
                assert!(most <= MOST_REPORTS as u64 / 2, "{most}");
                assert!(error.abs() < 0.05, "{total}");
            }
        }
    }

    #[test]
    fn below_the_budget_every_event_is_reported() {
        let sampling = Sampling::new();
        assert_eq!(run(&sampling, 7, 1_000, 5, SECOND), (5_000, 5_000, 5_000));
    }

    #[test]
    fn beyond_it_totals_stay_right_and_reports_few() {
        for rate in [5_000, 100_000, 1_000_000] {
            let sampling = Sampling::new();
            let (events, reports, total) = run(&sampling, 7, rate, 5, SECOND);
            let error = (total as f64 / events as f64 - 1.0).abs();
            assert!(error < 0.02, "{rate}: {total} of {events}");
            assert!(reports < 5 * 2 * u64::from(DEFAULT_RATE), "{rate}: {reports}");
        }
    }

    #[test]
    fn many_keys_together_have_a_budget_too() {
        let sampling = Sampling::new();
        let (mut events, mut reports, mut total) = (0, 0, 0);
        for number in 0..1_000_000u64 {
            let weight = sampling.choose(number % 50, SECOND + number * 5_000);
            events += 1;
            reports += u64::from(weight != 0);
            total += u64::from(weight);
        }
        let error = (total as f64 / events as f64 - 1.0).abs();
        assert!(error < 0.03, "{total} of {events}");
        // Five seconds; the first of each key in each window comes on top.
        assert!(reports < 5 * 2 * u64::from(OF_ALL * WINDOWS) + 5 * 8 * 50, "{reports}");
    }

    #[test]
    fn a_rare_key_is_seen_in_the_middle_of_a_flood() {
        let sampling = Sampling::new();
        let (mut rare, mut seen) = (0, 0);
        for number in 0..1_000_000u64 {
            let time = SECOND + number * 5_000;
            sampling.choose(1, time);
            // One in half a second.
            if number % 100_000 == 0 {
                rare += 1;
                seen += sampling.choose(2, time);
            }
        }
        assert_eq!(seen, rare);
    }

    #[test]
    fn after_a_flood_every_event_is_reported_again() {
        let sampling = Sampling::new();
        run(&sampling, 7, 1_000_000, 3, SECOND);
        run(&sampling, 7, 100, 5, 4 * SECOND);
        let (events, reports, total) = run(&sampling, 7, 100, 5, 9 * SECOND);
        assert_eq!((reports, total), (events, events));
    }

    #[test]
    fn threads_count_together() {
        let sampling = Sampling::new();
        let total = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..100_000u64 {
                        let weight = sampling.choose(7, SECOND + number * 10_000);
                        total.fetch_add(u64::from(weight), Ordering::Relaxed);
                    }
                });
            }
        });
        // The threads' clocks differ here, so windows come and go.
        let error = (total.load(Ordering::Relaxed) as f64 / 400_000.0 - 1.0).abs();
        assert!(error < 0.1, "{total:?}");
    }
}
