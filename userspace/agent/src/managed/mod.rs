//! .NET processes: the bridge in each, the code that it publishes, and the names of its methods.
//!
//! - [`bridge`]: attaching, on threads of its own, because it may take seconds.
//! - `reaching`: which processes are attached to.
//! - [`runtime`]: the bridge's records of one process.
//! - `methods`, `modules`: the methods among them; the modules, with their types.
//! - `asked`: the addresses that its bridge is asked about.
//! - [`maps_reader`]: reads processes' mappings, off the event loop.
//! - `code_reader`: reads the code of sampled methods.
//! - [`code`]: the code that a runtime has generated: which method lies where, and how it is
//!   unwound.
//! - [`events`]: exceptions and other events of the runtime.
//! - [`names`]: from a method's metadata to its display name.
//! - `name_cache`: names that processes of the same program share.
//! - [`snapshots`]: events whose stacks the runtime has walked.
//! - [`stubs`]: the names of the runtime's own generated code.
//! - [`target`]: one process: the state of its bridge, and the samples of its code.
//! - `turns`: the order in which processes are read.
//! - [`units`]: that code in kernel memory.
//!
//! This module ties them together: a process that is recorded gets a bridge, its records are read
//! at every turn, and its code is published before the stacks that waited for it are unwound.
//!
//! Invariant: nothing here waits for a process while a recording goes on, except for code that is
//! being read: 20 ms in all at a flush, and a fiftieth of the time otherwise.

mod asked;
pub mod bridge;
pub mod code;
mod code_reader;
pub mod events;
mod maps_reader;
mod methods;
mod modules;
mod name_cache;
pub mod names;
mod reaching;
pub mod runtime;
mod snapshots;
pub mod stubs;
mod target;
mod threads;
mod turns;
pub mod units;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use strata_abi::rule::Rule;
use strata_bridge_protocol::record::AppDomainRecord;

use self::name_cache::NameCache;
use crate::aggregate::Aggregate;
use crate::code_address::CodeAddress;
use crate::image_id::ImageId;
use crate::kernel::loader::Programs;
use crate::processor_time::TimeBudget;
use crate::tables::store::Store;
use bridge::{Bridges, Refusal};
use code_reader::CodeReader;
use maps_reader::MapsReader;
use runtime::Runtime;
use target::{Meter, PUBLISH_AWAITED_AFTER, State, Target};
use turns::Turns;
use units::Units;

/// What strata may do to a .NET process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// Attach the bridge to running processes.
    #[default]
    Attach,
    /// Only use a bridge that a process loaded itself.
    EnvironmentOnly,
    Off,
    /// Each process waits for the result of [`Managed::admit`].
    AsTold,
}

/// The state of a .NET process's bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    LeftAlone,
    Attaching,
    Attached,
    Refused,
    Ended,
}

/// Totals of a recording's bridges, for the summary.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Processes with a bridge.
    pub attached: u64,
    /// Those of them that strata has loaded it into.
    pub loaded: u64,
    pub detached: u64,
    /// Processes whose bridge is read now.
    pub read_now: usize,
    pub methods: u64,
    /// By pid: the reason why not.
    pub refused: Vec<(u32, String)>,
    /// By pid: why there are no events of it, or not of every kind.
    pub without_events: Vec<(u32, String)>,
    /// By pid: why the stacks of its events have managed frames only.
    pub managed_frames_only: Vec<(u32, String)>,
    /// Records that were lost in a process or refused here.
    pub lost: u64,
    /// In how many windows of time the allocations of processes were recorded that allocate too fast for
    /// all the time.
    pub allocation_windows: events::AllWindows,
    /// How often a process that was read beside another strata was left by that one, and attached to
    /// again: events of the moments between are missing.
    pub taken_over: u64,
}

pub struct Managed {
    policy: Policy,
    /// Names have the types of parameters.
    signatures: bool,
    /// For all processes.
    pub name_cache: NameCache,
    bridges: Bridges,
    code_reader: CodeReader,
    maps_reader: MapsReader,
    targets: HashMap<ImageId, Target>,
    /// Processes without a record yet.
    candidates: HashMap<ImageId, u32>,
    /// Processes that are not attached to.
    left_alone: HashMap<ImageId, u32>,
    current: HashMap<u32, ImageId>,
    /// Processes whose thread contexts the kernel reads.
    contexts: HashMap<u32, ImageId>,
    /// How often another strata left a process that was read beside it.
    freed: HashMap<ImageId, u32>,
    taken_over: u64,
    /// The number of code addresses of the aggregate examined so far.
    places_seen: usize,
    /// The limit of memory for all runtimes together.
    budget: usize,
    attached: u64,
    loaded: u64,
    detached: u64,
    /// Records lost by processes that were dropped, so that the total stays.
    lost_before: u64,
    /// The same of windows of allocations.
    windows_before: events::AllWindows,
    turns: Turns,
    /// The events wanted of every process that is attached to, or of those decided on
    /// ([`Self::want_events`]).
    events: events::Wanted,
    snapshots: snapshots::Figures,
    turned: Instant,
    meter: Meter,
}

// The sampler reads what the bridge writes.
const _: () = {
    use strata_abi::context;
    use strata_bridge_protocol::layout;
    assert!(context::CONTEXT_SLOTS as usize == layout::CONTEXT_SLOTS);
    assert!(context::CONTEXT_PROBES as usize == layout::CONTEXT_PROBES);
    assert!(context::CONTEXT_SLOT_BYTES as usize == size_of::<layout::ContextSlot>());
    assert!(context::CONTEXT_FREE == layout::CONTEXT_FREE);
    assert!(context::context_place(0x1234_5678) as usize == layout::context_place(0x1234_5678));
    assert!(
        std::mem::offset_of!(context::ContextStart, app_domain)
            == std::mem::offset_of!(layout::ContextSlot, app_domain)
    );
    assert!(
        std::mem::offset_of!(context::ContextStart, label_set)
            == std::mem::offset_of!(layout::ContextSlot, label_set)
    );
};

/// What a text of its own costs.
fn text_bytes(text: &str) -> usize {
    // Where it is, and the allocator's part.
    const TEXT: usize = 40;
    text.len() + TEXT
}

/// The most code addresses of one process whose method is not known yet.
const MOST_NAMELESS: usize = 10_000;
/// The most AppDomains distinguished in one process.
const MOST_DOMAINS: usize = 16;
/// The most threads of one process whose inner tid is kept.
const MOST_THREADS: usize = 10_000;
/// The time for reading all processes in one turn: those not reached are first in the next one.
const ALL_TOGETHER: Duration = Duration::from_millis(20);
const NEXT_TURN: Duration = Duration::from_millis(20);
/// Why a process was not attached to that is still asked at the end.
const NO_ANSWER_YET: &str = "its runtime has not answered by now: the process is stopped, hangs, or has only just \
                             started";

/// The budget of a process that has ended.
const LAST_WORDS: Duration = Duration::from_millis(20);
/// The time limit of the last requests at the end.
const LAST_ANSWERS: Duration = Duration::from_millis(600);

/// Of processes that have ended, in a daemon: the names kept of one, and of all together.
const MOST_KEPT: usize = 4 << 20;
const MOST_KEPT_IN_ALL: usize = 32 << 20;
/// The same in a recording, for one.
const MOST_KEPT_ONCE: usize = 256 << 20;

/// What naming the samples of a process that has ended may take, with `kept` bytes kept of others.
fn limits_of_kept(kept: usize, is_bounded: bool) -> names::Limits {
    match is_bounded {
        true => names::Limits {
            bytes: MOST_KEPT_IN_ALL.saturating_sub(kept).min(MOST_KEPT),
            time: Duration::from_millis(50),
            longest: usize::MAX,
        },
        false => names::Limits {
            bytes: MOST_KEPT_ONCE,
            time: Duration::from_secs(5),
            longest: usize::MAX,
        },
    }
}

impl Managed {
    pub fn new(policy: Policy, signatures: bool) -> Self {
        let bridges = Bridges::default();
        if policy == Policy::AsTold {
            bridges.forbid_perf_maps();
        }
        Self {
            policy,
            signatures,
            name_cache: NameCache::default(),
            bridges,
            code_reader: CodeReader::default(),
            maps_reader: MapsReader::default(),
            targets: HashMap::new(),
            candidates: HashMap::new(),
            left_alone: HashMap::new(),
            current: HashMap::new(),
            contexts: HashMap::new(),
            freed: HashMap::new(),
            taken_over: 0,
            places_seen: 0,
            budget: usize::MAX,
            attached: 0,
            loaded: 0,
            detached: 0,
            lost_before: 0,
            windows_before: events::AllWindows::default(),
            turns: Turns::default(),
            events: events::Wanted::default(),
            snapshots: snapshots::Figures::default(),
            turned: Instant::now(),
            meter: Meter::new(),
        }
    }

    /// What is known of all runtimes may take so many bytes together.
    pub fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Divides the budget: one half in equal shares, so that a process with many records leaves
    /// room for others; the other half goes to the first that need it.
    fn divide_budget(&mut self) {
        let half = self.budget / 2;
        let share = half / self.targets.len().max(1);
        let beyond = |target: &Target| target.runtime.bytes().saturating_sub(share);
        let used: usize = self.targets.values().map(beyond).sum();
        let left = (self.budget - half).saturating_sub(used);
        for target in self.targets.values_mut() {
            let own = target.runtime.bytes().max(share);
            target.most_bytes = own.saturating_add(left).min(runtime::MAX_BYTES);
        }
    }

    /// Divides kernel memory likewise: half of it is for generated code at most, so that no runtime
    /// can take the room of files' tables and of other runtimes.
    fn divide_table_memory(&mut self, all: u64) {
        let half = all / 4;
        let share = half / self.targets.len().max(1) as u64;
        let beyond = |target: &Target| target.units.bytes().saturating_sub(share);
        let used: u64 = self.targets.values().map(beyond).sum();
        let left = (all / 2 - half).saturating_sub(used);
        for target in self.targets.values_mut() {
            target.most_table_bytes = target.units.bytes().max(share).saturating_add(left);
        }
    }

    /// The AppDomain that a thread was in; 0 where a process has no more than one. `read` is what
    /// the kernel read when it took the sample; without it the thread's current one is read.
    pub fn domain_of(&mut self, image: ImageId, tid: u32, read: Option<u64>) -> u64 {
        let Some(target) = self.targets.get_mut(&image) else { return 0 };
        // More than any runtime has are made up by the process.
        if !(2..=MOST_DOMAINS).contains(&target.runtime.domains.len()) {
            return 0;
        }
        if let Some(domain) = read {
            return if target.runtime.domains.contains_key(&domain) { domain } else { 0 };
        }
        let State::Attached(bridge) = &target.state else { return 0 };
        if target.inner_tids.len() > MOST_THREADS {
            target.inner_tids.clear();
        }
        let inside = *target
            .inner_tids
            .entry(tid)
            .or_insert_with(|| crate::processes::innermost_pid(tid).unwrap_or(tid));
        bridge
            .app_domain_of(inside)
            .filter(|id| target.runtime.domains.contains_key(id))
            .unwrap_or(0)
    }

    /// The name of a managed thread, by its number in the process's own namespace.
    pub fn thread_name(&self, image: ImageId, inside: u32) -> Option<&str> {
        self.targets.get(&image)?.runtime.thread_name(inside)
    }

    /// The descriptions published by a process's AppDomains, by their number.
    pub fn domains_of(&self, image: ImageId) -> Option<&HashMap<u64, AppDomainRecord>> {
        self.targets.get(&image).map(|target| &target.runtime.domains)
    }

    /// Reads the records of a process's bridge since the last turn.
    pub fn take_in(&mut self, image: ImageId) {
        if let Some(target) = self.targets.get_mut(&image) {
            target.take_in_between(&mut self.maps_reader, &mut self.meter);
        }
    }

    /// Reads the records of all processes. Those that must be republished are put into `dirty`.
    pub fn turn(
        &mut self,
        programs: &mut Programs,
        store: &mut Store,
        aggregate: &Aggregate,
        dirty: &mut HashSet<u32>,
    ) {
        self.maps_reader.turn();
        self.take_arrivals();
        self.take_read_code();
        self.publish_contexts(programs);
        if self.targets.is_empty() {
            self.turns = Turns::default();
            return;
        }
        self.reach_free_ones();
        self.ask_about_new_places(aggregate);
        self.divide_budget();
        self.divide_table_memory(store.segments.limit_bytes());
        let order = self.turns.begin(self.targets.keys().copied());
        self.turned = Instant::now();
        self.meter = Meter::new();
        let until = self.turned + ALL_TOGETHER;
        let is_bounded = self.budget != usize::MAX;
        let mut kept: usize = self.targets.values().map(|target| target.kept_bytes).sum();
        for image in &order {
            if Instant::now() >= until {
                self.turns.cut_short(*image);
                break;
            }
            let Some(target) = self.targets.get_mut(image) else { continue };
            if target.is_over() {
                let limits = limits_of_kept(kept, is_bounded);
                target.keep_only_names(&self.name_cache, self.signatures, limits);
                kept = kept.saturating_add(target.kept_bytes);
            }
            let knew_code = target.knows_code();
            let had_turn = target.take_turn(&mut self.maps_reader, &mut self.meter, until);
            target.forget_unsampled();
            let is_current = self.current.get(&target.pid) == Some(image);
            // A process that was never sampled is published when it is.
            if target.look_whether_expected() && is_current && store.is_published(target.pid) {
                dirty.insert(target.pid);
            }
            // Tables that were taken back make room for those that follow them.
            target.units.sweep(store);
            // The code of a process that has exited is not searched any more.
            if !is_current {
                target.is_awaited = false;
                continue;
            }
            if !target.knows_code() || !had_turn {
                continue;
            }
            if knew_code && target.published.elapsed() < target.publish_after() {
                continue;
            }
            target.published = Instant::now();
            target.is_awaited = false;
            target.ask_about_nameless(&mut self.code_reader);
            self.code_reader.settle_shortly();
            self.take_read_code();
            let Some(target) = self.targets.get_mut(image) else { continue };
            let changed = target.update_units(programs, store, &mut self.meter);
            if changed || !knew_code {
                dirty.insert(target.pid);
            }
            target.units.sweep(store);
        }
    }

    /// Code that was read since the last turn.
    fn take_read_code(&mut self) {
        for answer in self.code_reader.answers() {
            if let Some(target) = self.targets.get_mut(&answer.image) {
                target.take_read_code(answer);
            }
        }
    }

    /// Publishes to the kernel where processes with a bridge keep their thread contexts.
    fn publish_contexts(&mut self, programs: &mut Programs) {
        let Self { contexts, targets, current, .. } = self;
        contexts.retain(|pid, image| {
            let is_attached = |target: &Target| matches!(target.state, State::Attached(_));
            let stays =
                current.get(pid) == Some(image) && targets.get(image).is_some_and(is_attached);
            if !stays {
                programs.remove_contexts(*pid);
            }
            stays
        });
        for (pid, image) in current {
            let Some(Target { state: State::Attached(bridge), .. }) = targets.get(image) else {
                continue;
            };
            if contexts.contains_key(pid) {
                continue;
            }
            // Refused once, userspace looks the thread up itself.
            contexts.insert(*pid, *image);
            if let Err(error) = programs.set_contexts(*pid, bridge.contexts_address()) {
                tracing::debug!(pid, %error, "thread contexts are not read by the sampler");
            }
        }
    }

    /// Every sampled method's IL map is asked for once; every address without a method too.
    fn ask_about_new_places(&mut self, aggregate: &Aggregate) {
        for position in self.places_seen.. {
            let Some(place) = aggregate.code_address(position) else { break };
            self.places_seen = position + 1;
            if let CodeAddress::Generated { image, address, era, .. } = place
                && let Some(target) = self.targets.get_mut(&image)
            {
                target.sampled.push((address, era));
                if !target.ask_about(address, era) && target.nameless.len() < MOST_NAMELESS {
                    target.nameless.push((address, era));
                }
            }
        }
        for target in self.targets.values_mut() {
            target.read_wanted_code(&mut self.code_reader);
        }
    }

    /// The generated code of a process, once its bridge has reported all existing code.
    pub fn units_of(&self, image: ImageId) -> Option<&Units> {
        let target = self.targets.get(&image)?;
        let current = self.current.get(&target.pid) == Some(&image);
        (current && target.knows_code()).then_some(&target.units)
    }

    /// What a process is published with: as [`Self::units_of`], and while its bridge is expected
    /// code of which nothing is known yet, so that stacks through it wait.
    pub fn units_to_publish(&self, image: ImageId) -> Option<&Units> {
        let target = self.targets.get(&image)?;
        let current = self.current.get(&target.pid) == Some(&image);
        (current && (target.knows_code() || target.is_expected)).then_some(&target.units)
    }

    /// The era of a process's generated code in which a sample was taken, by its time.
    pub fn era_of(&mut self, image: ImageId, time: u64) -> u32 {
        let Self { targets, maps_reader, meter, .. } = self;
        targets.get_mut(&image).map_or(0, |target| target.era_at(time, maps_reader, meter))
    }

    /// A stack led to unpublished code, which has called something or not. True while an answer may
    /// arrive.
    pub fn unannounced(&mut self, image: ImageId, address: u64, is_caller: bool) -> bool {
        let Some(target) = self.targets.get_mut(&image) else { return false };
        if target.runtime.code.knows(address) {
            // It was published meanwhile, and is loaded with the next publication.
            target.is_awaited |= target.runtime.code.is_dirty();
            return target.is_awaited;
        }
        if target.runtime.code.is_gone(address) {
            return false;
        }
        if let State::Attached(bridge) = &mut target.state
            && bridge.answers()
            && target.runtime.ask(address, is_caller)
        {
            bridge.ask_address(address);
        }
        target.runtime.is_waiting_for(address)
    }

    /// Whether unknown code that ran at this time may be described by a record that is still to be read.
    pub fn has_yet_to_read(&self, image: ImageId, time: u64) -> bool {
        self.targets.get(&image).is_some_and(|target| {
            let State::Attached(bridge) = &target.state else { return false };
            // The owner of a bridge has asked about it.
            let written =
                if bridge.answers() { time } else { time.saturating_add(code::WRITTEN_LATE) };
            !target.runtime.code.eras.is_known_at(written)
        })
    }

    /// Whether following the frame pointer leads from this code to its caller, if known.
    pub fn keeps_frame_pointer(&self, image: ImageId, address: u64) -> Option<bool> {
        self.targets.get(&image)?.runtime.code.keeps_frame_pointer(address)
    }

    /// The rule of a method's code that was at this address until lately, where no other is known:
    /// code that is unloaded soon is gone when the stacks through it are unwound.
    pub fn rule_of_gone(&self, image: ImageId, address: u64) -> Option<Rule> {
        self.targets.get(&image)?.runtime.code.rule_of_gone(address)
    }

    /// No record will describe this address any more: it counts as a stub. False when it does
    /// already.
    pub fn take_for_stub(&mut self, image: ImageId, address: u64, is_caller: bool) -> bool {
        let Some(target) = self.targets.get_mut(&image) else { return false };
        target.runtime.code.insert_stub(address, is_caller);
        target.runtime.code.is_dirty()
    }

    /// Loads a process's code into the tables at once.
    pub fn publish(&mut self, programs: &mut Programs, store: &mut Store, image: ImageId) {
        if let Some(target) = self.targets.get_mut(&image) {
            target.update_units(programs, store, &mut self.meter);
        }
    }

    /// Whether a bridge reported something in the last turn or is about to, or code is being read: what
    /// was read is taken at the next turn.
    pub fn is_busy(&self) -> bool {
        let is_busy = |target: &Target| match target.state {
            State::Attached(ref bridge) => {
                target.has_reported
                    || target.is_expected
                    || !target.runtime.enumerated
                    || bridge.reports_snapshots()
            }
            State::Attaching => target.not_yet.is_none(),
            State::Refused(_) | State::Ended => false,
        };
        self.turns.has_more || self.code_reader.is_reading() || self.targets.values().any(is_busy)
    }

    /// When code is to be published that stacks wait for.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.turns.has_more {
            return Some(self.turned + NEXT_TURN);
        }
        let awaited = self.targets.values().filter(|target| target.is_awaited);
        // One that has used up its time is not published at every turn.
        let awaited = awaited
            .map(|target| (target.published + PUBLISH_AWAITED_AFTER).max(self.turned + NEXT_TURN));
        let awaited = awaited.min();
        let begin =
            !self.events.kinds.is_empty() && self.targets.values().any(Target::begins_events);
        awaited.into_iter().chain(begin.then(|| self.turned + NEXT_TURN)).min()
    }

    /// The aggregate starts anew.
    pub fn forget_places(&mut self) {
        self.places_seen = 0;
    }

    /// The last requests about an aggregate, before another one begins.
    pub fn ask_last(&mut self, aggregate: &Aggregate) {
        self.ask_about_new_places(aggregate);
        self.places_seen = 0;
        let mut budget = TimeBudget::new(ALL_TOGETHER);
        for target in self.targets.values_mut() {
            target.take_in_for(&mut self.maps_reader, budget.left());
            target.look_at_stubs(&mut self.code_reader);
            target.flushed_addresses = target.sampled.len();
            target.flushed_era = target.runtime.code.eras.now();
            // What was read last may be theirs: it is kept until they are described.
            target.ask_about_what_is_held();
            target.nameless.clear();
        }
        // Of processes whose memory answers, which is most of them.
        self.code_reader.settle(ALL_TOGETHER);
        self.take_read_code();
    }

    /// When all that was sampled is named: of what processes have sampled nothing more needs to be
    /// remembered, and those that have ended and been waited for are forgotten.
    pub fn forget_ended(&mut self) {
        let (lost_before, windows_before) = (&mut self.lost_before, &mut self.windows_before);
        self.targets.retain(|image, target| {
            let is_current = self.current.get(&target.pid) == Some(image);
            // Samples taken since the flush still need their symbols.
            let named = target.flushed_addresses.min(target.sampled.len());
            target.sampled.drain(..named);
            target.runtime.forget_described(target.flushed_era);
            target.sampled.shrink_to_fit();
            target.flushed_addresses = 0;
            let is_kept = is_current
                || target.ended.is_some()
                || !target.sampled.is_empty()
                || !target.units.is_empty()
                || target.events.last_objects.is_some();
            if !is_kept {
                *lost_before += target.lost_in_all();
                windows_before.add(target.events.allocation_windows.seen());
            }
            is_kept
        });
    }

    /// Processes that were not attached to and have exited.
    pub fn forget_left_alone(&mut self, is_there: impl Fn(ImageId) -> bool) {
        self.left_alone.retain(|image, _| is_there(*image));
        self.candidates.retain(|image, _| is_there(*image));
    }

    pub fn images(&self) -> impl Iterator<Item = ImageId> + '_ {
        self.targets.keys().copied()
    }

    /// Whether a process has pending requests, or code that is not published yet.
    pub fn is_settling(&mut self, image: ImageId) -> bool {
        self.targets.get_mut(&image).is_some_and(|target| {
            let asked = match &mut target.state {
                State::Attached(bridge) => bridge.has_questions(),
                _ => false,
            };
            asked || target.runtime.code.is_dirty()
        })
    }

    /// Whether attaching to a process is still under way.
    pub fn is_attaching(&self, image: ImageId) -> bool {
        self.targets.get(&image).is_some_and(Target::is_attaching)
    }

    /// Whether stacks of a process should wait for the records of its bridge.
    pub fn expects(&self, image: ImageId) -> bool {
        self.targets.get(&image).is_some_and(|target| target.is_expected)
    }

    /// Stops waiting for bridges: stacks are unwound with what is known.
    pub fn stop_expecting(&mut self) {
        self.targets.values_mut().for_each(Target::stop_expecting);
    }

    /// The state of a process's runtime.
    pub fn runtime_of(&self, image: ImageId) -> Option<&Runtime> {
        self.targets.get(&image).map(|target| &target.runtime)
    }

    /// Whether all code that a process's runtime has made is known: no record of its bridge was
    /// lost.
    pub fn knows_all(&self, image: ImageId) -> bool {
        self.targets.get(&image).is_some_and(|target| target.knows_all())
    }

    /// The end: the last answers are waited for, and every bridge that was attached is detached.
    pub fn finish(&mut self, aggregate: &Aggregate) {
        self.bridges.forbid_perf_maps();
        self.ask_about_new_places(aggregate);
        let deadline = Instant::now() + LAST_ANSWERS;
        for target in self.targets.values_mut() {
            if let State::Attached(bridge) = &mut target.state {
                bridge.look_now();
            }
        }
        loop {
            self.maps_reader.turn();
            for target in self.targets.values_mut() {
                target.take_in(&mut self.maps_reader, deadline);
                if Instant::now() + LAST_ANSWERS / 2 > deadline {
                    target.ask_about_what_is_held();
                }
                target.ask_about_nameless(&mut self.code_reader);
            }
            self.take_read_code();
            let waiting = self.code_reader.is_reading()
                || self.targets.values_mut().any(|target| match &mut target.state {
                    State::Attached(bridge) => {
                        let is_held = target.runtime.code.eras.is_held();
                        bridge.expects_more() || bridge.is_behind() || is_held
                    }
                    _ => false,
                });
            if !waiting || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut leaving = Vec::new();
        for target in self.targets.values_mut() {
            match std::mem::replace(&mut target.state, State::Ended) {
                State::Attached(bridge) => leaving.push(*bridge),
                State::Attaching if target.ended.is_none() => {
                    let why = target.not_yet.take().unwrap_or_else(|| NO_ANSWER_YET.to_owned());
                    let refusal =
                        Refusal { why, writes_perf_map: false, is_passing: false, is_slow: true };
                    target.state = State::Refused(refusal);
                }
                // The summary reports why not.
                other => target.state = other,
            }
        }
        self.detached += bridge::detach_all(leaving);
    }

    /// After everything is symbolized: runtimes that were asked to write a perf map can stop.
    pub fn release(&self) {
        self.bridges.stop_late_perf_maps();
        for target in self.targets.values() {
            if let State::Refused(Refusal { writes_perf_map: true, .. }) = target.state
                // Its number may be another process's.
                && target.ended.is_none()
            {
                bridge::stop_perf_map(target.pid);
            }
        }
    }

    /// Reads of processes' mappings that hung, or were dropped because others hang.
    pub fn unanswered_looks(&self) -> u64 {
        self.maps_reader.unanswered()
    }

    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            attached: self.attached,
            loaded: self.loaded,
            detached: self.detached,
            // Code that cannot be read is missing as if it had not been published.
            lost: self.lost_before + self.code_reader.unread(),
            allocation_windows: self.windows_before,
            taken_over: self.taken_over,
            ..Totals::default()
        };
        for target in self.targets.values() {
            totals.methods += target.runtime.methods();
            totals.read_now += usize::from(matches!(target.state, State::Attached(_)));
            totals.lost += target.lost_in_all();
            totals.allocation_windows.add(target.events.allocation_windows.seen());
            if let Some(why) = target.events.missing() {
                totals.without_events.push((target.pid, why));
            }
            if let Some(why) = target.events.managed_frames_only() {
                totals.managed_frames_only.push((target.pid, why.to_owned()));
            }
            let why = match &target.state {
                State::Refused(refusal) => Some(&refusal.why),
                State::Attaching if target.ended.is_none() => target.not_yet.as_ref(),
                _ => None,
            };
            totals.refused.extend(why.map(|why| (target.pid, why.clone())));
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::code::MethodIndex;
    use super::*;

    #[test]
    fn a_bridge_on_its_way_is_taken_back_by_the_reload_that_forbids_it() {
        let mut managed = Managed::new(Policy::AsTold, false);
        // No process has this pid: nothing is done to any process.
        let (image, pid) = (ImageId(1), u32::MAX >> 1);
        managed.found(pid, image);
        managed.admit(image, Policy::Attach);
        assert_eq!(managed.standing_of(image), Some(Standing::Attaching));
        assert_eq!(managed.ask_again(|_| false), [pid]);
        assert_eq!(managed.standing_of(image), Some(Standing::LeftAlone));
        let arrival = loop {
            match managed.bridges.arrived() {
                Some(arrival) => break arrival,
                None => std::thread::yield_now(),
            }
        };
        assert!(arrival.is_withdrawn);
        // The next reload allows it.
        assert!(managed.ask_again(|_| true).is_empty());
        managed.admit(image, Policy::Attach);
        assert_eq!(managed.standing_of(image), Some(Standing::Attaching));
    }

    #[test]
    fn code_that_is_awaited_and_has_no_time_left_is_no_reason_for_a_turn_at_once() {
        let mut managed = Managed::new(Policy::EnvironmentOnly, false);
        let image = ImageId(1);
        managed.found(u32::MAX >> 1, image);
        let now = Instant::now();
        managed.turned = now;
        let target = managed.targets.get_mut(&image).expect("it was found");
        (target.is_awaited, target.published) = (true, now - Duration::from_secs(1));
        assert_eq!(managed.next_deadline(), Some(now + NEXT_TURN));
    }

    #[test]
    fn what_was_read_stays_where_a_process_ends_before_it_is_attached_to_again() {
        let mut managed = Managed::new(Policy::EnvironmentOnly, false);
        let (image, pid) = (ImageId(1), u32::MAX >> 1);
        managed.found(pid, image);
        let target = managed.targets.get_mut(&image).expect("it was found");
        target.runtime.code.insert(0x1000, 0x40, &[], MethodIndex(0));
        (target.state, target.is_free) = (State::Ended, true);
        managed.reach_free_ones();
        assert_eq!(managed.standing_of(image), Some(Standing::Attaching));
        while managed.standing_of(image) == Some(Standing::Attaching) {
            managed.take_arrivals();
            std::thread::yield_now();
        }
        assert_eq!(managed.standing_of(image), Some(Standing::Refused));
        assert!(managed.targets[&image].runtime.code.knows(0x1000));
        assert_eq!(managed.totals().taken_over, 0);
    }

    #[test]
    fn what_was_lost_stays_lost_when_its_process_is_forgotten() {
        let mut managed = Managed::new(Policy::EnvironmentOnly, false);
        let (image, pid) = (ImageId(1), u32::MAX >> 1);
        managed.found(pid, image);
        managed.targets.get_mut(&image).expect("it was found").lost = 5;
        assert_eq!(managed.totals().lost, 5);
        // It has ended, and its last samples are named.
        managed.left(pid);
        managed.targets.get_mut(&image).expect("it is kept").ended = None;
        managed.forget_ended();
        assert!(managed.targets.is_empty());
        assert_eq!(managed.totals().lost, 5);
        managed.found(pid, image);
        managed.targets.get_mut(&image).expect("it was found").lost = 2;
        assert_eq!(managed.totals().lost, 7);
        managed.reach(pid, image, false);
        assert_eq!(managed.totals().lost, 7);
    }
}
