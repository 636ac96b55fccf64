//! One .NET process: the state and records of its bridge, and the samples of its code.
//!
//! While a bridge is being attached it is *expected*: the existing code will be known soon. Until
//! then stacks that lead through generated code should wait, because following the frame pointer
//! skips the caller of every method without a frame. So it is while the log is read for the first time,
//! and after a gap: what lived at some place in it may have ended since, and other code may be there.
//!
//! Invariant: a bridge is expected for [`EXPECTED`] at most in [`EXPECTED_AGAIN`], whatever its process
//! does.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use strata_bridge_protocol::shared_file::monotonic_time;
use strata_clr::session::Which;
use strata_kinds::Kind;

use super::attaching::Refusal;
use super::bridge::{Bridge, Update};
use super::code_reader::{Answer, CodeReader, Place, Purpose};
use super::events::Events;
use super::maps_reader::MapsReader;
use super::name_cache::NameCache;
use super::names;
use super::runtime::Runtime;
use super::snapshots::Taken;
use super::stubs;
use super::units::Units;
use crate::image_id::ImageId;
use crate::kernel::loader::Programs;
use crate::processor_time::{TimeBudget, own_time};
use crate::tables::store::Store;

/// Attaching takes some milliseconds, or a second on a busy host. A runtime may delay it.
const EXPECTED: Duration = Duration::from_secs(10);
/// How long after the last time a bridge that was overtaken by its process is expected again.
const EXPECTED_AGAIN: Duration = Duration::from_secs(60);
/// Events of a process begin so long after each step to that, or are not waited for.
const EVENTS_BEGIN_WITHIN: Duration = Duration::from_secs(2);
/// The interval at which a process's new code is published to the kernel.
const PUBLISH_AFTER: Duration = Duration::from_millis(100);
/// The same when stacks lead through it.
pub(super) const PUBLISH_AWAITED_AFTER: Duration = Duration::from_millis(30);
/// The time for reading one process between two turns, when its samples are processed.
const BETWEEN_TURNS: Duration = Duration::from_millis(5);
/// Samples of a process come this long after its end at most; so do those of its code after the end
/// of that.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// The state of attaching to a process.
pub(super) enum State {
    Attaching,
    Attached(Box<Bridge>),
    /// Attaching failed, with the reason.
    Refused(Refusal),
    /// The bridge was attached; the process or the recording has ended.
    Ended,
}

/// A .NET process, or its earlier image.
pub(super) struct Target {
    pub pid: u32,
    pub image: ImageId,
    pub state: State,
    pub runtime: Runtime,
    pub units: Units,
    /// Attaches that are tried again later.
    pub tries: u32,
    /// It is attached to once more, and what an earlier bridge reported is still here.
    has_earlier: bool,
    modules_seen: usize,
    /// Records lost on their way here.
    pub lost: u64,
    pub published: Instant,
    /// Stacks wait for code that the bridge has reported and the kernel's tables do not have yet.
    pub is_awaited: bool,
    /// When attaching began; `None` when the bridge is no longer waited for.
    reached: Option<Instant>,
    /// Whether it was expected at the last turn.
    pub is_expected: bool,
    /// Code addresses of the aggregate that belong to this process.
    pub sampled: Vec<(u64, u32)>,
    /// Those of them whose method was not known yet.
    pub nameless: Vec<(u64, u32)>,
    /// Code of sampled methods that is to be read ([`Self::read_wanted_code`]).
    wanted_code: Vec<Place>,
    /// Code around addresses in no method that is to be read, and those addresses.
    wanted_stubs: Vec<Place>,
    stub_addresses: HashMap<Place, u64>,
    /// Its events: which are wanted, and how far that is.
    pub events: Events,
    /// Of events that the runtime has walked the stacks of: what was read so far.
    pub snapshots: Taken,
    pub ended: Option<Instant>,
    /// Why the last try to attach failed, after which another follows.
    pub not_yet: Option<String>,
    /// The memory of names kept since it has ended.
    pub kept_bytes: usize,
    /// The strata that it was read beside has left it.
    pub is_free: bool,
    /// It is attached to again for that reason.
    pub was_free: bool,
    /// Threads by their tid outside: their tid inside the process's namespace.
    pub inner_tids: HashMap<u32, u32>,
    /// How many of `sampled` belong to the flushed aggregate.
    pub flushed_addresses: usize,
    /// The era of its code at that flush.
    pub flushed_era: u32,
    /// The era of its code in each of the last seconds.
    past: VecDeque<(Instant, u32)>,
    /// Its limit of memory.
    pub most_bytes: usize,
    /// Its limit of kernel memory.
    pub most_table_bytes: u64,
    /// The time spent on reading since the last turn, besides that.
    taking_in: Duration,
    /// Its bridge reported something in the last turn.
    pub has_reported: bool,
    credit: Credit,
}

/// What the loop's thread spends on single processes. Its processor time is read for what takes long;
/// what is brief counts as long as it took: reading takes a system call, and an idle process takes less
/// than that.
pub(super) struct Meter {
    /// Processor time at the last reading.
    read: Duration,
    /// What has been spent since, in brief pieces.
    brief: Duration,
}

impl Meter {
    const BRIEF: Duration = Duration::from_micros(100);

    pub fn new() -> Self {
        Self { read: own_time(), brief: Duration::ZERO }
    }

    /// At most what was spent since the last reading: the rest was the load of others.
    fn spent_since(&mut self, begun: Instant) -> Duration {
        let elapsed = begun.elapsed();
        if elapsed < Self::BRIEF {
            self.brief += elapsed;
            return elapsed;
        }
        let now = own_time();
        let used = now.saturating_sub(self.read).saturating_sub(self.brief);
        (self.read, self.brief) = (now, Duration::ZERO);
        used.min(elapsed)
    }
}

/// The time budget of one process in the loop: much when it starts and has many records, little in
/// the long run.
#[derive(Clone, Copy, Debug)]
struct Credit {
    left: Duration,
    since: Instant,
}

/// The initial budget of a process, which it regains after a long idle time.
const MOST_CREDIT: Duration = Duration::from_millis(400);
/// A process may take one part in so many of the elapsed time.
const CREDIT_PART: u32 = 25;
/// With less than this, no read is begun.
const LEAST_CREDIT: Duration = Duration::from_millis(5);

impl Credit {
    fn new(now: Instant) -> Self {
        Self { left: MOST_CREDIT, since: now }
    }

    fn is_enough(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.since) / CREDIT_PART;
        self.left = self.left.saturating_add(earned).min(MOST_CREDIT);
        self.since = now;
        self.left >= LEAST_CREDIT
    }

    fn pay(&mut self, spent: Duration) {
        self.left = self.left.saturating_sub(spent);
    }
}

impl Target {
    /// A process with an attach under way.
    pub fn new(pid: u32, image: ImageId, most_bytes: usize) -> Self {
        let mut runtime = Runtime::default();
        runtime.code.hold_era();
        Self {
            pid,
            image,
            state: State::Attaching,
            runtime,
            units: Units::default(),
            tries: 0,
            has_earlier: false,
            modules_seen: 0,
            lost: 0,
            published: Instant::now(),
            is_awaited: false,
            reached: Some(Instant::now()),
            is_expected: false,
            sampled: Vec::new(),
            nameless: Vec::new(),
            wanted_code: Vec::new(),
            wanted_stubs: Vec::new(),
            stub_addresses: HashMap::new(),
            events: Events::default(),
            snapshots: Taken::default(),
            ended: None,
            not_yet: None,
            kept_bytes: 0,
            is_free: false,
            was_free: false,
            inner_tids: HashMap::new(),
            flushed_addresses: 0,
            flushed_era: 0,
            past: VecDeque::new(),
            most_bytes,
            most_table_bytes: u64::MAX,
            taking_in: Duration::ZERO,
            has_reported: false,
            credit: Credit::new(Instant::now()),
        }
    }

    /// Is attached to once more. What was read before stays until there is a bridge to read again: the
    /// process may be about to end, and nothing else names its samples.
    pub fn attach_again(&mut self) {
        self.state = State::Attaching;
        self.has_earlier = true;
        self.tries = 0;
        self.reached = Some(Instant::now());
        self.ended = None;
        self.is_free = false;
    }

    /// There is another bridge, which reports everything anew: what an earlier one reported is replaced,
    /// and returned.
    pub fn replace_earlier(&mut self) -> Option<Self> {
        if !self.has_earlier {
            return None;
        }
        let mut now = Self::new(self.pid, self.image, self.most_bytes);
        now.most_table_bytes = self.most_table_bytes;
        now.reached = self.reached;
        now.events.wanted = self.events.wanted;
        // What is in kernel memory is taken out of it with the next update.
        std::mem::swap(&mut now.units, &mut self.units);
        now.units.clear();
        Some(std::mem::replace(self, now))
    }

    /// Whether its bridge may begin to report events at any moment: each step to that is a turn, and what
    /// happens until then is missing.
    pub fn begins_events(&self) -> bool {
        match &self.state {
            State::Attaching => {
                self.reached.is_some_and(|reached| reached.elapsed() < EVENTS_BEGIN_WITHIN)
            }
            State::Attached(bridge) => self.events.begin() && bridge.age() < EVENTS_BEGIN_WITHIN,
            State::Refused(_) | State::Ended => false,
        }
    }

    /// Whether its bridge has not reported the existing code yet, or not all of that has been read.
    pub fn is_attaching(&self) -> bool {
        match &self.state {
            State::Attaching => true,
            State::Attached(bridge) => !self.runtime.enumerated || bridge.is_behind(),
            State::Refused(_) | State::Ended => false,
        }
    }

    /// Whether all code that its runtime has made is known: no record of its bridge was lost.
    pub fn knows_all(&self) -> bool {
        let is_there = self.runtime.enumerated && !self.has_earlier;
        is_there && !self.is_attaching() && self.lost_in_all() == 0
    }

    /// Whether the existing code is known, and no more of it is expected.
    pub fn knows_code(&self) -> bool {
        // What an earlier bridge reported may have been replaced since.
        self.runtime.enumerated && !self.has_earlier && !self.is_expected
    }

    /// The process has ended: what was in use is what its memory states.
    pub fn keep_last_objects(&mut self) {
        if let State::Attached(bridge) = &self.state
            && self.events.wanted.kinds.contains(Kind::Heap)
        {
            self.events.last_objects = bridge.objects();
        }
    }

    /// The same of events that the runtime has walked the stacks of.
    pub fn keep_last_snapshots(&mut self, which: Which) {
        if let State::Attached(bridge) = &mut self.state
            && bridge.reports_snapshots()
        {
            self.snapshots.take_in(bridge, which);
        }
    }

    /// Updates whether its bridge is waited for; true when that has changed.
    pub fn look_whether_expected(&mut self) -> bool {
        let in_time = self.reached.is_some_and(|reached| reached.elapsed() < EXPECTED);
        let is_expected = in_time && self.is_attaching();
        std::mem::replace(&mut self.is_expected, is_expected) != is_expected
    }

    /// Stops waiting for its bridge.
    pub fn stop_expecting(&mut self) {
        self.reached = None;
    }

    /// Its code in kernel memory is out of date: until all is read, stacks through it wait.
    fn expect_again(&mut self) {
        if self.reached.is_some_and(|reached| reached.elapsed() >= EXPECTED_AGAIN) {
            self.reached = Some(Instant::now());
            self.units.clear();
            self.runtime.code.touch_all();
        }
    }

    /// Reads the bridge's records since the last turn, while samples are processed: no longer than
    /// [`BETWEEN_TURNS`] from one turn to the next.
    pub fn take_in_between(&mut self, maps_reader: &mut MapsReader, meter: &mut Meter) {
        let begun = Instant::now();
        if self.taking_in < BETWEEN_TURNS && self.credit.is_enough(begun) {
            self.take_in(maps_reader, begun + BETWEEN_TURNS);
            let used = meter.spent_since(begun);
            self.taking_in += used;
            self.credit.pay(used);
        }
    }

    /// The era of a sample that was taken at this time. Code may have ended, and other code come to
    /// its place, since the records were read last: they are read first.
    pub fn era_at(&mut self, time: u64, maps_reader: &mut MapsReader, meter: &mut Meter) -> u32 {
        let is_attached = matches!(self.state, State::Attached(_));
        if is_attached && time > self.runtime.read_at && !self.runtime.code.eras.is_known_at(time) {
            self.take_in_between(maps_reader, meter);
        }
        self.runtime.code.era_of_sample(time)
    }

    /// Begins the turn of this process: false when it has used up its time.
    pub fn take_turn(
        &mut self,
        maps_reader: &mut MapsReader,
        meter: &mut Meter,
        until: Instant,
    ) -> bool {
        let begun = Instant::now();
        if !self.credit.is_enough(begun) {
            return false;
        }
        self.taking_in = Duration::ZERO;
        self.has_reported = false;
        // Events were taken since the log was read last.
        self.runtime.forget_ended_threads();
        self.take_in(maps_reader, until.min(begun + BETWEEN_TURNS * 2));
        self.credit.pay(meter.spent_since(begun));
        true
    }

    /// Loads its changed code; true when it must be republished.
    pub fn update_units(
        &mut self,
        programs: &mut Programs,
        store: &mut Store,
        meter: &mut Meter,
    ) -> bool {
        let begun = Instant::now();
        let most = self.most_table_bytes;
        let changed = self.units.update(&mut self.runtime.code, programs, store, most);
        self.credit.pay(meter.spent_since(begun));
        changed
    }

    /// Reads the bridge's records since the last call, for so much of this thread's time.
    pub fn take_in_for(&mut self, maps_reader: &mut MapsReader, time: Duration) {
        let mut budget = TimeBudget::new(time);
        loop {
            self.take_in(maps_reader, Instant::now() + budget.left());
            let has_more = matches!(&self.state, State::Attached(bridge) if bridge.has_more());
            if !has_more || budget.is_used_up() {
                return;
            }
        }
    }

    /// Reads the bridge's records since the last call, until this time.
    pub fn take_in(&mut self, maps_reader: &mut MapsReader, until: Instant) {
        let State::Attached(bridge) = &mut self.state else { return };
        let runtime = &mut self.runtime;
        runtime.read_at = monotonic_time();
        let most = self.most_bytes;
        let (mut has_reported, mut was_overtaken) = (false, false);
        let alive = bridge.poll(maps_reader, until, &mut |update| {
            match update {
                Update::Record(record) => {
                    has_reported = true;
                    runtime.take(record, most)?;
                }
                Update::Gap => {
                    was_overtaken = true;
                    runtime.confirm_all();
                    runtime.code.hold_era();
                }
                Update::CaughtUp => runtime.forget_unconfirmed(),
                Update::IlMapUnanswered { function, start } => {
                    runtime.il_map_is_unanswered(function, start);
                }
                Update::AddressUnanswered { address, is_refused } => {
                    runtime.is_unanswered(address, is_refused);
                }
            }
            Ok(())
        });
        self.has_reported |= has_reported;
        // Code that existed before is reported later than it was sampled.
        let is_late = self.reached.is_none() || bridge.age() >= EXPECTED;
        if bridge.has_caught_up() && runtime.enumerated && (bridge.is_enumerated() || is_late) {
            let code = &mut runtime.code;
            if bridge.is_at_end() {
                code.eras.was_read_until(runtime.read_at);
            } else {
                code.eras.was_read_in_part_until(code.eras.time(), runtime.read_at);
            }
        }
        if bridge.is_behind() && was_overtaken {
            self.expect_again();
        }
        let State::Attached(bridge) = &self.state else { return };
        let runtime = &mut self.runtime;
        // A claim of the process: it may shrink later.
        self.lost = self.lost.max(bridge.lost());
        self.events.note_windows(bridge);
        if runtime.module_changes() != self.modules_seen {
            self.modules_seen = runtime.module_changes();
            self.units.set_modules(runtime.modules());
        }
        if !alive {
            self.is_free = bridge.is_free();
            self.keep_last_objects();
            self.keep_last_snapshots(Which::OfEnded);
            self.state = State::Ended;
            self.runtime.code.eras.was_read_until(u64::MAX);
        }
    }

    /// Forgets code that was not sampled and has been gone for some seconds.
    pub fn forget_unsampled(&mut self) {
        const EVERY: Duration = Duration::from_secs(1);
        // Stacks that wait for a bridge wait for longer.
        if self.is_expected || self.ended.is_some() {
            return;
        }
        if self.past.back().is_none_or(|(since, _)| since.elapsed() >= EVERY) {
            self.past.push_back((Instant::now(), self.runtime.code.eras.now()));
        }
        while let Some((_, era)) =
            self.past.pop_front_if(|(since, _)| since.elapsed() >= STRAGGLERS)
        {
            self.runtime.forget_unsampled(era);
        }
    }

    /// Records lost on their way, or refused here.
    pub fn lost_in_all(&self) -> u64 {
        self.lost + self.runtime.refused + self.runtime.code.refused
    }

    /// Whether it ended so long ago that no sample of it can arrive any more.
    pub fn is_over(&self) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() > STRAGGLERS)
    }

    /// No sample of it can arrive any more: keeps the names that its samples need, as far as the
    /// limits allow. Those that are left out count as lost.
    pub fn keep_only_names(&mut self, cache: &NameCache, signatures: bool, limits: names::Limits) {
        let (kept, bytes) =
            names::affordable(&self.runtime, cache, &self.sampled, signatures, limits);
        self.lost += self.sampled.len().saturating_sub(kept.len()) as u64;
        self.runtime.keep_only(kept);
        self.kept_bytes = bytes.saturating_add(self.runtime.bytes());
        self.ended = None;
    }

    /// How long after a publication the next one follows.
    pub fn publish_after(&self) -> Duration {
        if self.is_awaited { PUBLISH_AWAITED_AFTER } else { PUBLISH_AFTER }
    }

    /// Has the code at addresses in no method read: soon, because it may be gone later.
    pub fn look_at_stubs(&mut self, reader: &mut CodeReader) {
        let unknown = self.runtime.take_unknown_stubs();
        let State::Attached(bridge) = &self.state else {
            // There is nothing to read any more.
            unknown.into_iter().for_each(|address| self.runtime.take_stub(address, None));
            return;
        };
        for address in unknown {
            let place = stubs::around(address);
            self.stub_addresses.insert(place, address);
            self.wanted_stubs.push(place);
        }
        let process = (bridge.pid(), self.image);
        if let Some(refused) = reader.ask(process, Purpose::Stub, &mut self.wanted_stubs) {
            self.take_read_code(refused);
        }
    }

    /// Takes code that was read.
    pub fn take_read_code(&mut self, Answer { purpose, codes, .. }: Answer) {
        for (place, code) in codes {
            match purpose {
                Purpose::Method => self.runtime.take_code(place, &code),
                Purpose::Stub => {
                    let Some(address) = self.stub_addresses.remove(&place) else { continue };
                    let stub = stubs::find(&code, (address - place.0) as usize);
                    self.runtime.take_stub(address, stub);
                }
            }
        }
    }

    /// Code addresses whose method was unknown when they were sampled, and was answered since.
    pub fn ask_about_nameless(&mut self, reader: &mut CodeReader) {
        self.look_at_stubs(reader);
        let mut nameless = std::mem::take(&mut self.nameless);
        nameless.retain(|&(address, era)| {
            self.runtime.is_waiting_for(address) || !self.ask_about(address, era)
        });
        self.nameless = nameless;
        self.read_wanted_code(reader);
    }

    /// Code addresses of a held era: nothing more is read before they are described.
    pub fn ask_about_what_is_held(&mut self) {
        let mut nameless = std::mem::take(&mut self.nameless);
        nameless.retain(|&(address, era)| {
            !self.runtime.code.eras.is_held_at(era) || !self.ask_anyway(address, era)
        });
        self.nameless = nameless;
    }

    /// Has the code read that sampled methods want.
    pub fn read_wanted_code(&mut self, reader: &mut CodeReader) {
        let State::Attached(bridge) = &self.state else { return };
        if self.wanted_code.is_empty() {
            return;
        }
        self.wanted_code.sort_unstable();
        self.wanted_code.dedup();
        let process = (bridge.pid(), self.image);
        if let Some(refused) = reader.ask(process, Purpose::Method, &mut self.wanted_code) {
            self.take_read_code(refused);
        }
    }

    /// Requests the metadata of a code address; false when its method is not known yet.
    pub fn ask_about(&mut self, address: u64, era: u32) -> bool {
        let is_attached = matches!(self.state, State::Attached(_));
        if is_attached && self.runtime.code.eras.is_held_at(era) {
            // What is known there may be older.
            return false;
        }
        self.ask_anyway(address, era)
    }

    /// As [`Self::ask_about`], although what is known there may be older.
    pub fn ask_anyway(&mut self, address: u64, era: u32) -> bool {
        let found = self.runtime.find_sampled(address, era);
        let State::Attached(bridge) = &mut self.state else { return true };
        match found {
            Some(found) => {
                if let Some(size) = self.runtime.wants_code(found) {
                    self.wanted_code.push((found.start, size));
                }
                if self.runtime.ask_il_map(found)
                    && let Some(method) = self.runtime.method_of(found.method)
                {
                    bridge.ask_il_map(method.function, method.texts().rejit, found.start);
                }
                true
            }
            None => {
                if bridge.answers() && self.runtime.ask(address, false) {
                    bridge.ask_address(address);
                }
                !self.runtime.is_waiting_for(address)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::code::MethodIndex;
    use super::*;

    #[test]
    fn a_bridge_is_expected_until_it_comes_or_does_not() {
        let mut target = Target::new(1, ImageId(1), 0);
        assert!(!target.is_expected);
        assert!(target.look_whether_expected() && target.is_expected);
        assert!(!target.look_whether_expected() && target.is_expected, "nothing has changed");
        let refusal = Refusal {
            why: String::new(),
            writes_perf_map: false,
            is_passing: false,
            is_slow: false,
        };
        target.state = State::Refused(refusal);
        assert!(target.look_whether_expected() && !target.is_expected);
    }

    #[test]
    fn a_bridge_that_is_overtaken_all_the_time_is_expected_now_and_then() {
        let mut target = Target::new(1, ImageId(1), 0);
        target.runtime.code.insert(0x1000, 0x40, &[], MethodIndex(0));
        target.runtime.code.take_dirty(1);
        target.reached = Instant::now().checked_sub(EXPECTED);
        target.expect_again();
        assert!(!target.look_whether_expected() && !target.runtime.code.is_dirty());
        target.reached = Instant::now().checked_sub(EXPECTED_AGAIN);
        target.expect_again();
        assert!(target.look_whether_expected() && target.is_expected);
        assert!(target.runtime.code.is_dirty(), "its tables are built again");
        target.stop_expecting();
        target.expect_again();
        assert!(target.look_whether_expected() && !target.is_expected);
    }

    #[test]
    fn what_was_sampled_before_the_attach_is_of_the_code_that_is_reported() {
        let mut target = Target::new(1, ImageId(1), 0);
        let (mut maps_reader, mut meter) = (MapsReader::default(), Meter::new());
        let era = target.era_at(5_000, &mut maps_reader, &mut meter);
        let code = &mut target.runtime.code;
        code.eras.set_time(9_000, 9_000);
        code.insert(0x1000, 0x40, &[], MethodIndex(7));
        code.eras.was_read_until(10_000);
        // 0: before there was a target.
        for era in [0, era] {
            let found = code.method_at(0x1008, era);
            assert_eq!(found.map(|found| found.method), Some(MethodIndex(7)), "{era}");
        }
    }

    #[test]
    fn a_process_that_always_has_more_to_say_gets_a_small_part_of_the_loops_time() {
        let mut now = Instant::now();
        let mut credit = Credit::new(now);
        let (step, mut taken) = (Duration::from_millis(10), Duration::ZERO);
        let all = Duration::from_secs(60);
        for _ in 0..all.as_millis() / step.as_millis() {
            if credit.is_enough(now) {
                credit.pay(step);
                taken += step;
            }
            now += step;
        }
        assert!(taken <= MOST_CREDIT + all / CREDIT_PART * 2, "{taken:?}");
        assert!(taken >= MOST_CREDIT, "a start has all the time it needs: {taken:?}");
    }

    #[test]
    fn a_bridge_that_takes_too_long_is_expected_no_longer() {
        let mut target = Target::new(1, ImageId(1), 0);
        target.look_whether_expected();
        target.reached = Instant::now().checked_sub(EXPECTED);
        assert!(target.look_whether_expected() && !target.is_expected);
        assert!(target.is_attaching(), "it may come all the same");
        let mut target = Target::new(1, ImageId(1), 0);
        target.stop_expecting();
        assert!(!target.look_whether_expected());
    }
}
