//! .NET processes: the bridge in each, the code that it publishes, and the names of its methods.
//!
//! - `reaching`: which processes are attached to.
//! - `attaching`: attaches to them, on threads of its own, because it may take seconds.
//! - [`bridge`]: the bridge of one process, whose records are read.
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
//! - `turning`: a turn: records are read and code is published. `turns`: the order of processes in it.
//! - `ending`: the ends of an aggregate and of the recording.
//! - `shares`: the memory of each process. `totals`: the totals of all.
//! - [`units`]: that code in kernel memory.
//!
//! [`Managed`] ties them together: a process that is recorded gets a bridge, its records are read
//! at every turn, and its code is published before the stacks that waited for it are unwound. Here is
//! what the engine asks of it about one process.
//!
//! Invariant: nothing here waits for a process while a recording goes on, except for code that is
//! being read: 20 ms in all at a flush, and a fiftieth of the time otherwise.

mod asked;
mod attaching;
pub mod bridge;
pub mod code;
mod code_reader;
mod ending;
pub mod events;
mod maps_reader;
mod methods;
mod modules;
mod name_cache;
pub mod names;
mod reaching;
pub mod runtime;
mod shares;
mod snapshots;
pub mod stubs;
mod target;
mod threads;
mod totals;
mod turning;
mod turns;
pub mod units;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use strata_abi::rule::Rule;
use strata_bridge_protocol::record::AppDomainRecord;

use self::name_cache::NameCache;
use crate::image_id::ImageId;
use crate::kernel::loader::Programs;
use crate::tables::store::Store;
use attaching::Bridges;
use code_reader::CodeReader;
use maps_reader::MapsReader;
use runtime::Runtime;
use target::{Meter, State, Target};
pub use totals::Totals;
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

/// The most AppDomains distinguished in one process.
const MOST_DOMAINS: usize = 16;
/// The most threads of one process whose inner tid is kept.
const MOST_THREADS: usize = 10_000;
/// The budget of a process that has ended.
const LAST_WORDS: Duration = Duration::from_millis(20);

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

    /// Reads of processes' mappings that hung, or were dropped because others hang.
    pub fn unanswered_looks(&self) -> u64 {
        self.maps_reader.unanswered()
    }
}
