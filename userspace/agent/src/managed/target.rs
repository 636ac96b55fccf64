//! One .NET process: how its bridge is, what that has said, and what was sampled of its code.
//!
//! A bridge that is on its way is *expected*: what code there is will be known in a moment. Until
//! then stacks that lead through generated code had better wait, because following the frame
//! pointer skips the caller of every method that keeps no frame.
//!
//! Invariant: a bridge is expected for [`EXPECTED`] at most, whatever its process does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::bridge::{Bridge, CodeReader, Refusal};
use super::looker::Looker;
use super::runtime::Runtime;
use super::units::Units;

/// Attaching takes some milliseconds, or a second on a busy host. A runtime may hold it up.
const EXPECTED: Duration = Duration::from_secs(10);
/// Code that a process adds is made known to the kernel this often.
const PUBLISH_AFTER: Duration = Duration::from_millis(100);
/// And this soon when stacks lead through it.
pub(super) const PUBLISH_AWAITED_AFTER: Duration = Duration::from_millis(10);
/// Samples of a process come this long after its end at most.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// What became of a process's bridge.
pub(super) enum State {
    Attaching,
    Attached(Box<Bridge>),
    /// Not reached, and why.
    Refused(Refusal),
    /// It was there; the process or the recording has ended.
    Ended,
}

/// A .NET process, or what one was before it executed something else.
pub(super) struct Target {
    pub pid: u32,
    pub state: State,
    pub runtime: Runtime,
    pub units: Units,
    modules_seen: usize,
    /// Records lost on their way here.
    pub lost: u64,
    pub published: Instant,
    /// Stacks wait for code that has been announced and is not published yet.
    pub is_awaited: bool,
    /// Since when its bridge is on its way; `None` when it is waited for no longer.
    reached: Option<Instant>,
    /// Whether it was expected at the last turn.
    pub is_expected: bool,
    /// Places of the aggregate that are this process's.
    pub sampled: Vec<(u64, u32)>,
    /// Those of them whose method was not known yet.
    pub nameless: Vec<(u64, u32)>,
    pub ended: Option<Instant>,
    /// Threads by the number they have outside: the one they have inside.
    pub inner_tids: HashMap<u32, u32>,
    /// How many of `sampled` belong to what was cut off.
    pub cut_off: usize,
    /// What is known of it may take so much.
    pub most_bytes: usize,
}

impl Target {
    /// A process that is being reached into.
    pub fn new(pid: u32, most_bytes: usize) -> Self {
        Self {
            pid,
            state: State::Attaching,
            runtime: Runtime::default(),
            units: Units::default(),
            modules_seen: 0,
            lost: 0,
            published: Instant::now(),
            is_awaited: false,
            reached: Some(Instant::now()),
            is_expected: false,
            sampled: Vec::new(),
            nameless: Vec::new(),
            ended: None,
            inner_tids: HashMap::new(),
            cut_off: 0,
            most_bytes,
        }
    }

    /// Whether its bridge has still to say what code there is.
    pub fn is_attaching(&self) -> bool {
        match self.state {
            State::Attaching => true,
            State::Attached(_) => !self.runtime.enumerated,
            State::Refused(_) | State::Ended => false,
        }
    }

    /// Whether its bridge is waited for; true when that is another answer than the last time.
    pub fn look_whether_expected(&mut self) -> bool {
        let in_time = self.reached.is_some_and(|reached| reached.elapsed() < EXPECTED);
        let is_expected = in_time && self.is_attaching();
        std::mem::replace(&mut self.is_expected, is_expected) != is_expected
    }

    /// Its bridge is waited for no longer.
    pub fn stop_expecting(&mut self) {
        self.reached = None;
    }

    /// Takes in what the bridge has said since the last time.
    pub fn take_in(&mut self, looker: &mut Looker) {
        let State::Attached(bridge) = &mut self.state else { return };
        let runtime = &mut self.runtime;
        let most = self.most_bytes;
        let alive = bridge.poll(looker, &mut |record| runtime.apply(record, most));
        // The process says so: it may say less later.
        self.lost = self.lost.max(bridge.lost());
        let modules = runtime.modules();
        if modules.len() > self.modules_seen {
            self.modules_seen = modules.len();
            self.units.set_modules(modules);
        }
        if !alive {
            self.state = State::Ended;
        }
    }

    /// Records lost on their way, or refused here.
    pub fn lost_in_all(&self) -> u64 {
        self.lost + self.runtime.refused + self.runtime.code.refused
    }

    /// Whether it ended so long ago that no sample of it can come any more.
    pub fn is_over(&self) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() > STRAGGLERS)
    }

    /// How long after a publication the next one follows.
    pub fn publish_after(&self) -> Duration {
        if self.is_awaited { PUBLISH_AWAITED_AFTER } else { PUBLISH_AFTER }
    }

    /// Places whose method was not known when they were sampled, and that were answered since.
    pub fn ask_about_nameless(&mut self, reader: &mut CodeReader) {
        let mut nameless = std::mem::take(&mut self.nameless);
        nameless.retain(|&(address, era)| {
            self.runtime.is_waiting_for(address) || !self.ask_about(address, era, reader)
        });
        self.nameless = nameless;
    }

    /// Asks for what is to be known of a place; false when its method is not known yet.
    pub fn ask_about(&mut self, address: u64, era: u32, reader: &mut CodeReader) -> bool {
        let State::Attached(bridge) = &mut self.state else { return true };
        match self.runtime.find(address, era) {
            Some(found) => {
                if let Some(size) = self.runtime.wants_code(found.start) {
                    let code = reader.read(bridge.pid(), found.start, size);
                    self.runtime.take_code(found.start, &code);
                }
                if self.runtime.ask_il_map(found.start)
                    && let Some(method) = self.runtime.method_of(found.method)
                {
                    bridge.ask_il_map(method.function, method.rejit, found.start);
                }
                true
            }
            None => {
                if self.runtime.ask(address) {
                    bridge.ask_address(address);
                }
                !self.runtime.is_waiting_for(address)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_is_expected_until_it_comes_or_does_not() {
        let mut target = Target::new(1, 0);
        assert!(!target.is_expected);
        assert!(target.look_whether_expected() && target.is_expected);
        assert!(!target.look_whether_expected() && target.is_expected, "nothing has changed");
        let refusal = Refusal { why: String::new(), writes_perf_map: false };
        target.state = State::Refused(refusal);
        assert!(target.look_whether_expected() && !target.is_expected);
    }

    #[test]
    fn a_bridge_that_takes_too_long_is_expected_no_longer() {
        let mut target = Target::new(1, 0);
        target.look_whether_expected();
        target.reached = Instant::now().checked_sub(EXPECTED);
        assert!(target.look_whether_expected() && !target.is_expected);
        assert!(target.is_attaching(), "it may come all the same");
        let mut target = Target::new(1, 0);
        target.stop_expecting();
        assert!(!target.look_whether_expected());
    }
}
