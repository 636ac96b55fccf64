//! .NET processes: the bridge in each, the code it announces, and what its names are made of.
//!
//! - [`bridge`]: reaching into a process, in threads of their own: attaching may take seconds.
//! - [`runtime`]: what the bridge has said about one process.
//! - [`code`]: the code a runtime has generated: who is where, and how it is unwound.
//! - [`names`]: from what is known of a method to its name.
//! - [`start`]: loading the bridge at a process's start.
//! - [`units`]: that code in kernel memory.
//! - [`view`]: which frames a flame graph shows.
//!
//! Here they are tied together: a process that is recorded gets a bridge, what the bridge says
//! is taken in at every turn, and what is known is published before stacks that waited for it are
//! unwound.
//!
//! Invariant: nothing here waits for a process.

pub mod bridge;
pub mod code;
pub mod names;
pub mod runtime;
pub mod start;
pub mod units;
pub mod view;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::kernel::loader::Programs;
use crate::processes::table::ImageId;
use crate::recording::aggregate::Aggregate;
use crate::recording::place::Place;
use crate::tables::store::Store;
use bridge::{Arrival, Bridge, Bridges, Refusal};
use runtime::Runtime;
use units::Units;

/// What may be done to a .NET process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// Attach the bridge to running processes.
    #[default]
    Attach,
    /// Only use a bridge that a process loaded itself.
    EnvironmentOnly,
    Off,
}

/// What became of a process's bridge.
enum State {
    Attaching,
    Attached(Box<Bridge>),
    /// Not reached, and why.
    Refused(Refusal),
    /// It was there; the process or the recording has ended.
    Ended,
}

/// A .NET process, or what one was before it executed something else.
struct Target {
    pid: u32,
    state: State,
    runtime: Runtime,
    units: Units,
    modules_seen: usize,
    /// Records lost on their way here.
    lost: u64,
    published: Instant,
    /// Stacks wait for code that has been announced and is not published yet.
    is_awaited: bool,
    /// Places of the aggregate that are this process's.
    sampled: Vec<(u64, u32)>,
    /// Those of them whose method was not known yet.
    nameless: Vec<(u64, u32)>,
    ended: Option<Instant>,
}

/// What the bridges of a recording amount to, for the summary.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Processes with a bridge.
    pub attached: u64,
    /// Those of them that strata has loaded it into.
    pub loaded: u64,
    pub detached: u64,
    pub methods: u64,
    /// By pid: why not.
    pub refused: Vec<(u32, String)>,
    /// Records that were lost in a process or refused here.
    pub lost: u64,
}

pub struct Managed {
    policy: Policy,
    /// Names have the types of parameters.
    signatures: bool,
    bridges: Bridges,
    targets: HashMap<ImageId, Target>,
    current: HashMap<u32, ImageId>,
    /// Places of the aggregate that have been looked through.
    places_seen: usize,
    attached: u64,
    loaded: u64,
    detached: u64,
}

/// Code that a process adds is made known to the kernel this often.
const PUBLISH_AFTER: Duration = Duration::from_millis(100);
/// And this soon when stacks lead through it.
const PUBLISH_AWAITED_AFTER: Duration = Duration::from_millis(10);
/// Places whose method is not known yet, of one process.
const MOST_NAMELESS: usize = 10_000;
/// Samples of a process come this long after its end at most.
const STRAGGLERS: Duration = Duration::from_secs(5);
/// How long the last questions may take at the end.
const LAST_ANSWERS: Duration = Duration::from_millis(600);

impl Managed {
    pub fn new(policy: Policy, signatures: bool) -> Self {
        Self {
            policy,
            signatures,
            bridges: Bridges::default(),
            targets: HashMap::new(),
            current: HashMap::new(),
            places_seen: 0,
            attached: 0,
            loaded: 0,
            detached: 0,
        }
    }

    /// A process that is recorded turns out to be a .NET process.
    pub fn found(&mut self, pid: u32, image: ImageId) {
        if self.policy == Policy::Off || self.targets.contains_key(&image) {
            return;
        }
        self.left(pid);
        self.bridges.reach(pid, image, self.policy == Policy::Attach);
        let target = Target {
            pid,
            state: State::Attaching,
            runtime: Runtime::default(),
            units: Units::default(),
            modules_seen: 0,
            lost: 0,
            published: Instant::now(),
            is_awaited: false,
            sampled: Vec::new(),
            nameless: Vec::new(),
            ended: None,
        };
        self.targets.insert(image, target);
        self.current.insert(pid, image);
    }

    /// A process has executed something else, or ended: what it was stays for its samples.
    pub fn left(&mut self, pid: u32) {
        if let Some(image) = self.current.remove(&pid)
            && let Some(target) = self.targets.get_mut(&image)
        {
            target.take_in();
            target.state = State::Ended;
            target.ended = Some(Instant::now());
            target.units.clear();
        }
    }

    /// Takes in what a process's bridge has said since the last turn.
    pub fn take_in(&mut self, image: ImageId) {
        if let Some(target) = self.targets.get_mut(&image) {
            target.take_in();
        }
    }

    /// Takes in what has come from all processes. Those that must be published anew are put into
    /// `dirty`.
    pub fn turn(
        &mut self,
        programs: &mut Programs,
        store: &mut Store,
        aggregate: &Aggregate,
        dirty: &mut HashSet<u32>,
    ) {
        if self.targets.is_empty() {
            return;
        }
        while let Some(Arrival { pid, image, outcome }) = self.bridges.arrived() {
            let Some(target) = self.targets.get_mut(&image) else { continue };
            if matches!(target.state, State::Ended) {
                continue;
            }
            target.state = match outcome {
                Ok(bridge) => {
                    self.attached += 1;
                    self.loaded += u64::from(bridge.was_loaded());
                    tracing::info!(pid, "the bridge is in place");
                    State::Attached(bridge)
                }
                Err(refusal) => {
                    tracing::info!(pid, why = %refusal.why, "no bridge in a .NET process");
                    State::Refused(refusal)
                }
            };
        }
        self.ask_about_new_places(aggregate);
        for (image, target) in &mut self.targets {
            if target.is_over() {
                target.runtime.keep_only(&target.sampled, self.signatures);
                target.ended = None;
            }
            let was_known = target.runtime.enumerated;
            target.take_in();
            // Nobody searches the code of a process that is gone.
            if self.current.get(&target.pid) != Some(image) {
                target.is_awaited = false;
                target.units.sweep(store);
                continue;
            }
            if !target.runtime.enumerated {
                continue;
            }
            if was_known && target.published.elapsed() < target.publish_after() {
                continue;
            }
            target.published = Instant::now();
            target.is_awaited = false;
            target.ask_about_nameless();
            let changed = target.units.update(&mut target.runtime.code, programs, store);
            if changed || !was_known {
                dirty.insert(target.pid);
            }
            target.units.sweep(store);
        }
    }

    /// Every sampled method's IL map is asked for once; every address nobody claims too.
    fn ask_about_new_places(&mut self, aggregate: &Aggregate) {
        for position in self.places_seen.. {
            let Some(place) = aggregate.place(position) else { break };
            self.places_seen = position + 1;
            if let Place::Generated { image, address, era, .. } = place
                && let Some(target) = self.targets.get_mut(&image)
            {
                target.sampled.push((address, era));
                if !target.ask_about(address, era) && target.nameless.len() < MOST_NAMELESS {
                    target.nameless.push((address, era));
                }
            }
        }
    }

    /// The generated code of a process, once its bridge has said all there was.
    pub fn units_of(&self, image: ImageId) -> Option<&Units> {
        let target = self.targets.get(&image)?;
        let current = self.current.get(&target.pid) == Some(&image);
        (current && target.runtime.enumerated).then_some(&target.units)
    }

    pub fn era_of(&self, image: ImageId) -> u32 {
        self.targets.get(&image).map_or(0, |target| target.runtime.code.era())
    }

    /// A stack led to code that nobody has announced. True while an answer may come.
    pub fn unannounced(&mut self, image: ImageId, address: u64) -> bool {
        let Some(target) = self.targets.get_mut(&image) else { return false };
        if target.runtime.code.knows(address) {
            // It was announced meanwhile, and comes with the next publication.
            target.is_awaited |= target.runtime.code.is_dirty();
            return target.is_awaited;
        }
        if let State::Attached(bridge) = &mut target.state
            && target.runtime.ask(address)
        {
            bridge.ask_address(address);
        }
        target.runtime.is_waiting_for(address)
    }

    /// Whether following the frame pointer leads from this code to its caller, if that is known by
    /// now.
    pub fn keeps_frame_pointer(&self, image: ImageId, address: u64) -> Option<bool> {
        self.targets.get(&image)?.runtime.code.keeps_frame_pointer(address)
    }

    /// Nobody will say anything about this address any more: it counts as a stub. False when it
    /// does already.
    pub fn take_for_stub(&mut self, image: ImageId, address: u64) -> bool {
        let Some(target) = self.targets.get_mut(&image) else { return false };
        target.runtime.code.insert_stub(address);
        target.runtime.code.is_dirty()
    }

    /// Makes what is known of a process's code known to searches at once.
    pub fn publish(&mut self, programs: &mut Programs, store: &mut Store, image: ImageId) {
        if let Some(target) = self.targets.get_mut(&image) {
            target.units.update(&mut target.runtime.code, programs, store);
        }
    }

    /// When code is to be published that stacks wait for.
    pub fn next_deadline(&self) -> Option<Instant> {
        let awaited = self.targets.values().filter(|target| target.is_awaited);
        awaited.map(|target| target.published + PUBLISH_AWAITED_AFTER).min()
    }

    /// The aggregate starts anew.
    pub fn forget_places(&mut self) {
        self.places_seen = 0;
    }

    /// Whether a process still has questions to answer, or code that is not published yet.
    pub fn is_settling(&mut self, image: ImageId) -> bool {
        self.targets.get_mut(&image).is_some_and(|target| {
            let asked = match &mut target.state {
                State::Attached(bridge) => bridge.has_questions(),
                _ => false,
            };
            asked || target.runtime.code.is_dirty()
        })
    }

    /// Whether a process's bridge is still on its way.
    pub fn is_attaching(&self, image: ImageId) -> bool {
        self.targets.get(&image).is_some_and(|target| match target.state {
            State::Attaching => true,
            State::Attached(_) => !target.runtime.enumerated,
            State::Refused(_) | State::Ended => false,
        })
    }

    /// What is known of a process's runtime.
    pub fn runtime_of(&self, image: ImageId) -> Option<&Runtime> {
        self.targets.get(&image).map(|target| &target.runtime)
    }

    /// Whether all code that a process's runtime has made is known: nothing of what its bridge said
    /// was lost.
    pub fn knows_all(&self, image: ImageId) -> bool {
        self.targets.get(&image).is_some_and(|target| {
            let runtime = &target.runtime;
            runtime.enumerated && target.lost + runtime.refused + runtime.code.refused == 0
        })
    }

    /// The end: the last answers are waited for, and every bridge that was attached is detached.
    pub fn finish(&mut self, aggregate: &Aggregate) {
        self.ask_about_new_places(aggregate);
        let deadline = Instant::now() + LAST_ANSWERS;
        loop {
            for target in self.targets.values_mut() {
                target.take_in();
                target.ask_about_nameless();
            }
            let waiting = self.targets.values_mut().any(|target| match &mut target.state {
                State::Attached(bridge) => bridge.has_questions(),
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
                // Why not is told in the summary.
                other => target.state = other,
            }
        }
        self.detached += bridge::detach_all(leaving);
    }

    /// When everything is named: what runtimes were told to write, they need not write any more.
    pub fn release(&self) {
        for target in self.targets.values() {
            if let State::Refused(Refusal { writes_perf_map: true, .. }) = target.state {
                bridge::stop_perf_map(target.pid);
            }
        }
    }

    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            attached: self.attached,
            loaded: self.loaded,
            detached: self.detached,
            ..Totals::default()
        };
        for target in self.targets.values() {
            totals.methods += target.runtime.methods();
            totals.lost += target.lost + target.runtime.refused + target.runtime.code.refused;
            if let State::Refused(refusal) = &target.state {
                let map =
                    if refusal.writes_perf_map { "; its perf map is read instead" } else { "" };
                totals.refused.push((target.pid, format!("{}{map}", refusal.why)));
            }
        }
        totals
    }
}

impl Target {
    /// Takes in what the bridge has said since the last time.
    fn take_in(&mut self) {
        let State::Attached(bridge) = &mut self.state else { return };
        let runtime = &mut self.runtime;
        let alive = bridge.poll(&mut |record| runtime.apply(record));
        self.lost = bridge.lost();
        let modules = runtime.modules();
        if modules.len() > self.modules_seen {
            self.modules_seen = modules.len();
            self.units.set_modules(modules);
        }
        if !alive {
            self.state = State::Ended;
        }
    }

    /// Whether it ended so long ago that no sample of it can come any more.
    fn is_over(&self) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() > STRAGGLERS)
    }

    /// How long after a publication the next one follows.
    fn publish_after(&self) -> Duration {
        if self.is_awaited { PUBLISH_AWAITED_AFTER } else { PUBLISH_AFTER }
    }

    /// Places whose method was not known when they were sampled, and that were answered since.
    fn ask_about_nameless(&mut self) {
        let mut nameless = std::mem::take(&mut self.nameless);
        nameless.retain(|&(address, era)| {
            self.runtime.is_waiting_for(address) || !self.ask_about(address, era)
        });
        self.nameless = nameless;
    }

    /// Asks for what is to be known of a place; false when its method is not known yet.
    fn ask_about(&mut self, address: u64, era: u32) -> bool {
        let State::Attached(bridge) = &mut self.state else { return true };
        match self.runtime.find(address, era) {
            Some(found) => {
                if let Some(size) = self.runtime.wants_code(found.start) {
                    self.runtime.take_code(found.start, &bridge.read_code(found.start, size));
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
