//! The addresses of generated code that a bridge is asked about, and the runtime's own code that was
//! found there.
//!
//! An address is asked about once, until its answer is old: other code may be there by then. Stubs
//! come and go without a record, so those that were found long ago make way for others.
//!
//! Invariant: at most [`MOST_ASKED`] addresses, and some ten thousand stubs.

use std::time::{Duration, Instant};

use crate::hash::HashMap;

const MOST_ASKED: usize = 100_000;
/// Stubs found before older ones are forgotten.
const MANY_STUBS: usize = 10_000;
/// Flushes after which an address may be asked about again.
const ANSWER_AGES: u32 = 2;
/// An address may be refused so often, each time after [`AGAIN`], until its code is read: an unload may keep
/// the bridge from answering, and a method there is reported meanwhile.
const MOST_TIMES: u8 = 3;
const AGAIN: Duration = Duration::from_secs(1);
/// What an entry takes.
const ENTRY: usize = 64;

/// An address whose method has been requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Whether the code there has called something, and how often it was asked before.
    Waiting {
        is_caller: bool,
        before: u8,
    },
    /// It was refused so often: it may be asked again after this time.
    Unanswered {
        times: u8,
        after: Instant,
    },
    /// No method is there: the code is read. Until then it has no rule.
    Reading {
        is_caller: bool,
    },
    Answered,
}

#[derive(Default)]
pub struct Addresses {
    /// With the flush before which it was asked about.
    asked: HashMap<u64, (Asked, u32)>,
    flush: u32,
    /// Stubs whose code was read, and their name.
    stubs: HashMap<u64, Option<&'static str>>,
    /// Those found before.
    older_stubs: HashMap<u64, Option<&'static str>>,
}

impl Addresses {
    /// Notes that an address is requested; false when it was requested before.
    pub fn ask(&mut self, address: u64, is_caller: bool, now: Instant) -> bool {
        let before = match self.asked.get(&address) {
            Some((Asked::Unanswered { times, after }, _)) if now >= *after => *times,
            Some(_) => return false,
            None if self.asked.len() >= MOST_ASKED => return false,
            None => 0,
        };
        self.asked.insert(address, (Asked::Waiting { is_caller, before }, self.flush));
        true
    }

    /// A method is known there.
    pub fn is_answered(&mut self, address: u64) {
        self.asked.remove(&address);
    }

    /// No method is there. True the first time, if that was asked: the code is to be read.
    pub fn is_in_no_method(&mut self, address: u64) -> bool {
        let Some((asked, _)) = self.asked.get_mut(&address) else { return false };
        let Asked::Waiting { is_caller, .. } = *asked else { return false };
        *asked = Asked::Reading { is_caller };
        true
    }

    /// There is no answer about an address. True when it was refused too often: the code is to be read.
    pub fn is_unanswered(&mut self, address: u64, is_refused: bool, now: Instant) -> bool {
        let Some((asked, _)) = self.asked.get_mut(&address) else { return false };
        let Asked::Waiting { is_caller, before } = *asked else { return false };
        let times = before + u8::from(is_refused);
        let is_read = times >= MOST_TIMES;
        *asked = match is_read {
            true => Asked::Reading { is_caller },
            false => Asked::Unanswered { times, after: now + AGAIN },
        };
        is_read
    }

    /// Whether the answer about an address is pending, or the code there is being read.
    pub fn is_waiting_for(&self, address: u64) -> bool {
        let asked = self.asked.get(&address);
        matches!(asked, Some((Asked::Waiting { .. } | Asked::Reading { .. }, _)))
    }

    /// Answers that are pending may be lost: those addresses may be asked about again.
    pub fn forget_waiting(&mut self) {
        self.asked.retain(|_, (asked, _)| !matches!(asked, Asked::Waiting { .. }));
    }

    /// The code there was read. Whether it has called something.
    pub fn add_stub(&mut self, address: u64, name: Option<&'static str>) -> bool {
        self.stubs.insert(address, name);
        let Some((asked, _)) = self.asked.get_mut(&address) else { return false };
        let before = std::mem::replace(asked, Asked::Answered);
        before == Asked::Reading { is_caller: true }
    }

    /// The name of the runtime's own code at an address; `Some(None)` if it has none.
    pub fn stub_at(&self, address: u64) -> Option<Option<&'static str>> {
        self.stubs.get(&address).or_else(|| self.older_stubs.get(&address)).copied()
    }

    /// The samples until a flush were described. True when stubs that were found before the last
    /// time were forgotten.
    pub fn age(&mut self) -> bool {
        self.flush = self.flush.wrapping_add(1);
        let flush = self.flush;
        self.asked.retain(|_, (_, asked)| flush.wrapping_sub(*asked) < ANSWER_AGES);
        let are_many = self.stubs.len() > MANY_STUBS;
        if are_many {
            self.older_stubs = std::mem::take(&mut self.stubs);
        }
        are_many
    }

    /// Only some stubs are wanted any more.
    pub fn of_stubs(stubs: impl Iterator<Item = (u64, Option<&'static str>)>) -> Self {
        Self { stubs: stubs.collect(), ..Self::default() }
    }

    pub fn bytes(&self) -> usize {
        (self.asked.len() + self.stubs.len() + self.older_stubs.len()) * ENTRY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managed::stubs;

    #[test]
    fn an_address_is_asked_about_once_until_its_answer_is_old() {
        let (mut addresses, now) = (Addresses::default(), Instant::now());
        assert!(
            addresses.ask(7, true, now)
                && !addresses.ask(7, true, now)
                && addresses.is_waiting_for(7)
        );
        assert!(addresses.is_in_no_method(7) && !addresses.is_in_no_method(8));
        assert!(
            !addresses.ask(7, false, now) && addresses.is_waiting_for(7),
            "its code is being read"
        );
        assert!(!addresses.is_in_no_method(7), "its code is read once, whatever is answered");
        assert!(addresses.add_stub(7, None) && !addresses.add_stub(8, None));
        assert!(!addresses.ask(7, false, now) && !addresses.is_waiting_for(7));
        addresses.age();
        assert!(!addresses.ask(7, false, now));
        addresses.age();
        assert!(addresses.ask(7, false, now));
        addresses.is_answered(7);
        assert!(addresses.ask(7, false, now), "its method may be gone");
    }

    #[test]
    fn an_address_without_an_answer_is_asked_about_again_and_then_read() {
        let (mut addresses, mut now) = (Addresses::default(), Instant::now());
        for _ in 1..MOST_TIMES {
            for is_refused in [false, true] {
                assert!(addresses.ask(7, true, now));
                assert!(!addresses.is_unanswered(7, is_refused, now));
                assert!(!addresses.is_waiting_for(7));
                assert!(!addresses.ask(7, true, now), "it is too early");
                now += AGAIN;
            }
        }
        assert!(addresses.ask(7, true, now));
        assert!(addresses.is_unanswered(7, true, now) && addresses.is_waiting_for(7));
        assert!(!addresses.ask(7, true, now) && !addresses.is_unanswered(7, true, now));
        assert!(addresses.add_stub(7, None));
        assert!(!addresses.is_unanswered(8, true, now), "it was not asked");
    }

    #[test]
    fn addresses_without_end_are_asked_about_as_answers_get_old() {
        let (mut addresses, now) = (Addresses::default(), Instant::now());
        let mut asked = 0;
        for address in 0..5 * MOST_ASKED as u64 {
            asked += usize::from(addresses.ask(address, false, now));
            if address % MOST_ASKED as u64 == 0 {
                addresses.age();
            }
            assert!(addresses.bytes() <= MOST_ASKED * ENTRY);
        }
        assert!(asked > 2 * MOST_ASKED, "{asked}");
    }

    #[test]
    fn stubs_that_were_found_long_ago_make_way() {
        let mut addresses = Addresses::default();
        for turn in 0..10 {
            for address in 0..=MANY_STUBS as u64 {
                addresses.add_stub(turn << 32 | address, Some(stubs::NAMELESS));
            }
            assert!(addresses.age());
            assert_eq!(addresses.stub_at(turn << 32), Some(Some(stubs::NAMELESS)));
        }
        assert!(addresses.bytes() <= 3 * MANY_STUBS * ENTRY);
        assert_eq!(addresses.stub_at(1), None);
    }
}
