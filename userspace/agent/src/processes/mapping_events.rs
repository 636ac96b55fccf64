//! Limits the rate of mapping events that are applied for a process.
//!
//! A loop over `mmap` of memory files makes 39,000 mapping events a second, and any user may run
//! one. A process that maps so much is *muted*: its events are skipped for a while, and then its
//! mappings are read once from `/proc`. So its cost is bounded, however much it maps, and the
//! events of other processes are not delayed. Events that change nothing cost little, and count as
//! little: a .NET program that loads and unloads code for every request makes thousands a second.
//!
//! Invariant: skipped events are counted, and the process is re-read afterwards. Neither a fork nor
//! an exec resets the limit.

/// Burst limit: more mappings than the largest programs make while they start.
const AT_ONCE: u32 = 4096 * NEW;
/// Sustained limit per second.
const A_SECOND: u32 = 128 * NEW;
/// The burst limit of a program that a muted process executes.
const OF_A_PROGRAM: u32 = 64 * NEW;
/// How long a process is muted, and how many mappings are taken after that.
const MUTED_NANOS: u64 = 10_000_000_000;
const AFTERWARDS: u32 = 256 * NEW;
/// What a new mapping costs: as much as so many of known ones.
const NEW: u32 = 64;

/// What the effect of a mapping event costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Price {
    /// A file to look at, extents to publish.
    New,
    /// Nothing changes: generated code where such is known to be. Runtimes that load and unload
    /// code all the time make thousands of these a second.
    Known,
}

/// Times are those of events.
#[derive(Clone, Copy, Debug)]
pub struct MappingEvents {
    left: u32,
    since: u64,
    muted_until: Option<u64>,
}

impl Default for MappingEvents {
    fn default() -> Self {
        Self { left: AT_ONCE, since: 0, muted_until: None }
    }
}

impl MappingEvents {
    /// Whether events of this time are skipped.
    pub fn is_muted(&self, time: u64) -> bool {
        self.muted_until.is_some_and(|until| time < until)
    }

    /// Whether a mapping of this time is applied.
    pub fn take(&mut self, time: u64, price: Price) -> bool {
        match self.muted_until {
            Some(until) if time < until => return false,
            Some(_) => *self = Self { left: AFTERWARDS, since: time, muted_until: None },
            None => {
                let seconds = time.saturating_sub(self.since) / 1_000_000_000;
                if seconds > 0 {
                    let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(A_SECOND);
                    self.left = self.left.saturating_add(more).min(AT_ONCE);
                    self.since = time;
                }
            }
        }
        let price = match price {
            Price::New => NEW,
            Price::Known => 1,
        };
        if self.left < price {
            self.muted_until = Some(time.saturating_add(MUTED_NANOS));
            return false;
        }
        self.left -= price;
        true
    }

    /// The state for the program that the process executes.
    pub fn of_next_program(self) -> Self {
        Self { left: self.left.max(OF_A_PROGRAM), muted_until: None, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_process_that_maps_without_end_is_muted_and_then_taken_up_again() {
        let mut events = MappingEvents::default();
        let taken = (0..100_000).filter(|_| events.take(5 * SECOND, Price::New)).count();
        assert_eq!(taken, 4096);
        assert!(events.is_muted(5 * SECOND) && events.is_muted(14 * SECOND));
        assert!(!events.is_muted(15 * SECOND));
        let taken = (0..100_000).filter(|_| events.take(15 * SECOND, Price::New)).count();
        assert_eq!(taken, 256);
    }

    #[test]
    fn mappings_now_and_then_are_all_taken() {
        let mut events = MappingEvents::default();
        let each = SECOND / 128;
        assert!((0..1_000_000).all(|number| events.take(number * each, Price::New)));
    }

    #[test]
    fn code_where_code_is_known_may_be_mapped_thousands_of_times_a_second_and_not_without_end() {
        let mut events = MappingEvents::default();
        let each = SECOND / 8_000;
        assert!((0..1_000_000).all(|number| events.take(number * each, Price::Known)));
        let mut events = MappingEvents::default();
        let each = SECOND / 39_000;
        let taken = (0..1_000_000).take_while(|n| events.take(n * each, Price::Known)).count();
        assert!(taken < 9 * 39_000, "{taken}");
    }

    #[test]
    fn a_program_that_is_executed_has_some_and_no_new_start() {
        let mut events = MappingEvents::default();
        (0..100_000).for_each(|_| {
            events.take(SECOND, Price::New);
        });
        let mut next = events.of_next_program();
        let taken = (0..100_000).filter(|_| next.take(SECOND, Price::New)).count();
        assert_eq!(taken, 64);
    }
}
