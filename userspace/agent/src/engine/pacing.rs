//! Paces work that grows with the number of a process's mappings: the more mappings, the less
//! often.
//!
//! A process may have 4,096 mappings and change them all the time; scanning all of them for every
//! stack and every turn would delay the samples of other processes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Processes with so few mappings are scanned every time.
const FEW: usize = 256;
/// Time until the next scan, per mapping: 200 ms for 4,096.
const PER_MAPPING: Duration = Duration::from_micros(50);

/// When the next scan of a process is due, for one kind of scan.
#[derive(Debug, Default)]
pub struct DueScans {
    due: HashMap<u32, Instant>,
}

impl DueScans {
    /// Whether a process may be scanned now; the delay to the next scan grows with its mappings.
    pub fn take(&mut self, pid: u32, mappings: usize, now: Instant) -> bool {
        if mappings <= FEW {
            return true;
        }
        if self.due.get(&pid).is_some_and(|due| now < *due) {
            return false;
        }
        let pause = PER_MAPPING.saturating_mul(u32::try_from(mappings).unwrap_or(u32::MAX));
        self.due.insert(pid, now + pause);
        true
    }

    pub fn sweep(&mut self, now: Instant) {
        self.due.retain(|_, due| now < *due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_a_process_maps_the_less_often_all_of_it_is_looked_at() {
        let now = Instant::now();
        let looks = |mappings: usize| {
            let mut due = DueScans::default();
            (0..1000).filter(|ms| due.take(7, mappings, now + Duration::from_millis(*ms))).count()
        };
        assert_eq!([looks(10), looks(4096)], [1000, 5]);
        let mut due = DueScans::default();
        assert!(due.take(7, 4096, now) && !due.take(7, 4096, now) && due.take(8, 4096, now));
        due.sweep(now + Duration::from_secs(1));
        assert!(due.due.is_empty());
    }
}
