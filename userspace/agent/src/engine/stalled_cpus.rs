//! Detects CPUs whose sampling event has stalled, and replaces the event.
//!
//! Kernels have bugs that stop an event permanently: one that was throttled is sometimes never
//! started again (kernel/events/core.c, `perf_event_unthrottle_group`; the throttling of 6.16 and
//! later). The sampler's own counters reveal it: every tick is counted, also those that find a CPU
//! idle. A CPU that has worked while its count stood still has lost its event, and gets another
//! one.
//!
//! Invariant: this costs a read of the counters each second, in loop turns that run anyway, and no
//! additional wake-up. How long CPUs have worked is read rarely while those that do not tick are idle:
//! on a host with many CPUs that takes milliseconds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A count that has not changed for so long has stalled.
const STILL: Duration = Duration::from_secs(2);
/// The least number of missing ticks.
const MISSING: u32 = 4;
/// The least time that the CPU must have been busy meanwhile: an idle CPU may not tick.
const BUSY: Duration = Duration::from_millis(500);

/// The state of one CPU.
#[derive(Clone, Copy)]
struct Ticking {
    ticks: u64,
    since: Instant,
    /// How long it had worked when its count was first seen to stand still.
    busy: Option<Duration>,
}

/// After each reading that found CPUs without ticks idle, the next one is twice as late, up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A CPU that has worked for so long since is not idle.
const NOT_IDLE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct Watch {
    cpus: HashMap<u32, Ticking>,
    /// When the last reading was of how long CPUs have worked, and how long after it the next one is.
    read: Option<Instant>,
    pause: Duration,
}

impl Watch {
    /// Sampling restarts: resets all counts.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Notes how often each CPU has ticked, and returns those that have lost their event.
    /// `busy_time` returns how long each has worked so far, and is called only when some stand
    /// still.
    pub fn look(
        &mut self,
        ticks: &[(u32, u64)],
        frequency: u32,
        now: Instant,
        busy_time: impl FnOnce() -> HashMap<u32, Duration>,
    ) -> Vec<u32> {
        let mut still = Vec::new();
        if self.cpus.len() > ticks.len() {
            // A CPU was switched off: its state is invalid when it comes back.
            self.cpus.clear();
        }
        for &(cpu, ticks) in ticks {
            let fresh = Ticking { ticks, since: now, busy: None };
            let known = self.cpus.entry(cpu).or_insert(fresh);
            if known.ticks != ticks {
                *known = fresh;
            } else if known.since < now {
                still.push(cpu);
            }
        }
        if still.is_empty() || self.read.is_some_and(|read| now < read + self.pause) {
            return Vec::new();
        }
        self.read = Some(now);
        let long = STILL.max(Duration::from_secs(1) * MISSING / frequency.max(1));
        let busy_time = busy_time();
        let mut are_idle = true;
        still.retain(|cpu| {
            let (Some(known), Some(&busy)) = (self.cpus.get_mut(cpu), busy_time.get(cpu)) else {
                return false;
            };
            let before = *known.busy.get_or_insert(busy);
            let worked = busy.saturating_sub(before);
            are_idle &= worked < NOT_IDLE;
            let has_stopped = now - known.since >= long && worked > BUSY;
            if has_stopped {
                *known = Ticking { ticks: known.ticks, since: now, busy: None };
            }
            has_stopped
        });
        self.pause = match are_idle {
            true => (2 * self.pause).clamp(Duration::from_secs(1), LONGEST_PAUSE),
            false => Duration::ZERO,
        };
        still
    }
}

/// How long each CPU has worked since the start, by `/proc/stat`.
pub fn busy_times() -> HashMap<u32, Duration> {
    // SAFETY: only asks.
    let hertz = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.lines().filter_map(|line| busy_time(line, hertz)).collect()
}

/// A CPU's line: user, nice, system, idle, iowait, irq, softirq, and what others took.
fn busy_time(line: &str, hertz: u64) -> Option<(u32, Duration)> {
    let mut words = line.strip_prefix("cpu")?.split(' ');
    let cpu = words.next()?.parse().ok()?;
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|place| ticks.get(*place)).sum::<u64>();
    Some((cpu, Duration::from_millis(busy.saturating_mul(1000) / hertz)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What a CPU looks like each second, by its ticks and the seconds it has worked so far.
    fn restarts(frequency: u32, seconds: &[(u64, u64)]) -> Vec<usize> {
        let mut watch = Watch::default();
        let start = Instant::now();
        let stops = |(second, &(ticks, busy)): (usize, &(u64, u64))| {
            let now = start + SECOND * second as u32;
            let busy = || HashMap::from([(3, SECOND * busy as u32)]);
            let stopped = watch.look(&[(3, ticks)], frequency, now, busy);
            (stopped == [3]).then_some(second)
        };
        seconds.iter().enumerate().filter_map(stops).collect()
    }

    #[test]
    fn a_cpu_that_works_and_does_not_tick_has_lost_its_event() {
        let lost = [(97, 1), (194, 2), (194, 3), (194, 4), (194, 5), (194, 6)];
        assert_eq!(restarts(97, &lost), [3, 5], "the second one was of no use");
        let comes_back = [(97, 1), (97, 2), (97, 3), (150, 4), (150, 5), (247, 6)];
        assert_eq!(restarts(97, &comes_back), [2]);
    }

    #[test]
    fn a_cpu_that_ticks_or_does_nothing_is_left_alone() {
        assert!(restarts(97, &[(97, 1), (194, 2), (195, 3), (290, 4), (291, 5)]).is_empty());
        assert!(restarts(97, &[(97, 1); 5]).is_empty());
        let slow = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6)];
        assert_eq!(restarts(1, &slow), [4]);
    }

    #[test]
    fn an_idle_cpu_is_looked_at_rarely_and_still_found_when_it_stops() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let mut readings = 0;
        let mut look = |second: u32, busy: u32| {
            let busy_time = || {
                readings += 1;
                HashMap::from([(3, SECOND * busy)])
            };
            watch.look(&[(3, 97)], 97, start + SECOND * second, busy_time)
        };
        assert!((0..60).all(|second| look(second, 7).is_empty()));
        let stopped = (60..).find(|second| look(*second, 7 + second - 59) == [3]);
        assert!(stopped.is_some_and(|second| second <= 72), "{stopped:?}");
        assert!(readings <= 20, "{readings} readings");
    }

    #[test]
    fn the_time_a_cpu_has_worked_is_read() {
        let line = "cpu12 100 20 30 4000 50 6 4 700 0 0";
        assert_eq!(busy_time(line, 100), Some((12, Duration::from_millis(1600))));
        assert_eq!(busy_time("cpu  1 2 3 4 5 6 7 8", 100), None);
        assert_eq!(busy_time("intr 1 2 3", 100), None);
        assert!(!busy_times().is_empty());
    }
}
