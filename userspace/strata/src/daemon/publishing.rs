//! Profiles go out: into the store, and to each sink in its own period.
//!
//! A thread of its own does it, because disks and compression take their time and sampling does
//! not wait. Cuts come as often as the shortest period asks for; what a sink with a longer one
//! gets is merged of several.
//!
//! Invariant: what is handed over is delivered, stored or counted.

mod files;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strata_delivery::{Delivery, PlanError, SinkPlan};
use strata_profile::Profile;
use strata_services::destinations::Wish;
use strata_sinks::Outgoing;
use strata_sinks::limits::Cuts;
use strata_store::{Options, Store};
use tokio::runtime::Handle;

use super::clock::{Ages, wall_nanos};
use super::cutting::Parcel;
use super::leftovers::{self, OF_TARGETS};
use super::memory;
use super::outlets::{self, Outlet, Way};
use files::Folder;

/// Parts of cuts that wait for the publisher; more would only take memory.
const WAITING_CUTS: usize = 2;
/// How long before its end a period counts as over: cuts do not come to the millisecond.
const EARLY: Duration = Duration::from_millis(500);
/// The store is looked after this often.
const TEND: Duration = Duration::from_secs(15);
/// A store that could not be opened is tried again after this long.
const RETRY: Duration = Duration::from_secs(60);

/// Giving memory back costs some milliseconds.
const WORTH_GIVING_BACK: usize = 1 << 20;

/// Where profiles are kept.
#[derive(Clone, Debug)]
pub struct StorePlan {
    pub directory: PathBuf,
    pub options: Options,
}

/// Where everything goes.
#[derive(Clone, Debug, Default)]
pub struct Destinations {
    pub store: Option<StorePlan>,
    pub outlets: Vec<Outlet>,
    /// Of the outlets that are sent.
    pub plans: Vec<SinkPlan>,
    /// Where sinks of targets that have their own keep what waits.
    pub spools: Option<PathBuf>,
    /// What each of those may keep in memory.
    pub memory: usize,
    /// Bytes of profiles that may wait for the end of their period.
    pub waiting: usize,
}

impl Destinations {
    /// Tells of spools that no sink uses.
    pub fn tell_leftovers(&self) {
        if let Some(spools) = &self.spools {
            let used = self.plans.iter().filter_map(|plan| plan.spool_dir.as_deref());
            leftovers::tell(spools, &used.collect());
        }
    }
}

/// What became of profiles in stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub written: u64,
    /// For their age, or the size.
    pub dropped: u64,
}

impl Kept {
    /// With what a store counts since it was opened.
    fn with(self, store: &Store) -> Self {
        let counters = store.counters();
        Self {
            written: self.written.saturating_add(counters.profiles_written),
            dropped: self.dropped.saturating_add(counters.profiles_dropped),
        }
    }
}

/// What the publisher has done.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub published: u64,
    /// Profiles that no sink has had yet, or that are being merged.
    pub pending: usize,
    /// Of all stores that were open, one after the other.
    pub kept: Kept,
    pub store_bytes: u64,
    /// Memory that the dictionaries of its open segment take.
    pub store_dictionaries: u64,
    /// Why the store does not take anything.
    pub store_trouble: Option<String>,
    /// Profiles that the store did not take.
    pub not_stored: u64,
    pub cuts: Cuts,
    /// By file sink: files written, and why the last was not.
    pub files: Vec<(String, u64, Option<String>)>,
    /// Batches that found no sink.
    pub undelivered: u64,
    /// How often profiles went out before their period was over, for want of memory.
    pub early: u64,
    pub nanos: u64,
}

enum Message {
    /// Some of a cut's profiles; the flag says that they are its last.
    Profiles(Vec<Parcel>, bool),
    /// What goes where from now on; the answer says whether the sinks could be set up.
    Configure(Box<Destinations>, SyncSender<Result<(), PlanError>>),
    /// Memory is short: what waits for its period's end goes out now.
    Hurry,
    /// All that was handed over goes out now, and nothing comes after it.
    End(SyncSender<()>),
}

/// The publisher, from outside.
pub struct Publisher {
    sender: SyncSender<Message>,
    figures: Arc<Mutex<Figures>>,
    /// Profiles that found the publisher busy for too long.
    pub dropped: u64,
    thread: JoinHandle<()>,
}

impl Publisher {
    /// `delivery` has the sinks of `destinations` already.
    pub fn start(
        destinations: Destinations,
        delivery: Arc<Delivery>,
        network: Handle,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING_CUTS);
        let figures = Arc::new(Mutex::new(Figures::default()));
        let mut work = Work {
            store: None,
            kept_before: Kept::default(),
            ages: Ages::new(None, wall_nanos(), Instant::now()),
            has_opened: false,
            plan: None,
            next_try: Instant::now(),
            outlets: Vec::new(),
            own: HashMap::new(),
            destinations: Destinations::default(),
            delivery,
            network,
            tended: Instant::now(),
            done_with: 0,
            figures: Figures::default(),
            shown: figures.clone(),
        };
        work.configure(destinations);
        let thread = std::thread::Builder::new().name("publisher".into()).spawn(move || {
            crate::record::launch::set_priority(0);
            work.run(&receiver);
        })?;
        Ok(Self { sender, figures, dropped: 0, thread })
    }

    pub fn figures(&self) -> Arc<Mutex<Figures>> {
        self.figures.clone()
    }

    /// Hands profiles over; gives them back when the publisher is busy.
    pub fn try_publish(&self, parcels: Vec<Parcel>, last: bool) -> Result<(), Vec<Parcel>> {
        match self.sender.try_send(Message::Profiles(parcels, last)) {
            Ok(()) => Ok(()),
            Err(
                TrySendError::Full(Message::Profiles(parcels, _))
                | TrySendError::Disconnected(Message::Profiles(parcels, _)),
            ) => Err(parcels),
            Err(_) => Ok(()),
        }
    }

    /// Memory is short: nothing waits for the end of its period.
    pub fn hurry(&self) {
        // One that is busy is about to.
        let _ = self.sender.try_send(Message::Hurry);
    }

    /// Whether its thread is gone, which only a defect can cause.
    pub fn has_died(&self) -> bool {
        self.thread.is_finished()
    }

    /// Profiles go elsewhere from now on; the receiver says whether that can be.
    pub fn configure(&self, destinations: Destinations) -> Receiver<Result<(), PlanError>> {
        let (done, outcome) = sync_channel(1);
        // It is never long behind.
        let _ = self.sender.send(Message::Configure(Box::new(destinations), done));
        outcome
    }

    /// Everything goes out, periods over or not; false if that took too long.
    pub fn end(self, within: Duration) -> bool {
        let (done, wait) = sync_channel(1);
        self.sender.send(Message::End(done)).is_ok() && wait.recv_timeout(within).is_ok()
    }
}

/// Whose profiles an outlet takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    All,
    /// Of targets with these variables.
    Own(u64),
}

impl Whose {
    fn takes(self, own: Option<u64>) -> bool {
        match self {
            Self::All => true,
            Self::Own(key) => own == Some(key),
        }
    }
}

/// Destinations of targets' own.
const MOST_OWN: usize = 16;

/// An outlet and what it will get next.
struct Pending {
    whose: Whose,
    outlet: Outlet,
    folder: Option<Folder>,
    since: Instant,
    /// By runtime id, service and pid.
    profiles: HashMap<(String, String, u32), Vec<Outgoing>>,
    /// What those take.
    bytes: usize,
    sequences: HashMap<String, u64>,
}

impl Pending {
    fn new(outlet: Outlet, whose: Whose) -> Self {
        let folder = match &outlet.way {
            Way::Written(path) => Some(Folder::new(path.clone())),
            Way::Sent(_) => None,
        };
        Self {
            whose,
            outlet,
            folder,
            since: Instant::now(),
            profiles: HashMap::new(),
            bytes: 0,
            sequences: HashMap::new(),
        }
    }
}

struct Work {
    store: Option<Store>,
    /// Of stores that are closed.
    kept_before: Kept,
    /// What is too old for it.
    ages: Ages,
    /// A store was opened before.
    has_opened: bool,
    plan: Option<StorePlan>,
    next_try: Instant,
    outlets: Vec<Pending>,
    /// Names of outlets that a target's own variables made, by a hash of those; empty when they
    /// make none.
    own: HashMap<u64, Vec<String>>,
    destinations: Destinations,
    delivery: Arc<Delivery>,
    network: Handle,
    tended: Instant,
    /// Bytes of profiles that are done with, or were worked on, since memory was given back.
    done_with: usize,
    figures: Figures,
    shown: Arc<Mutex<Figures>>,
}

impl Work {
    fn run(&mut self, receiver: &Receiver<Message>) {
        loop {
            let message = receiver.recv_timeout(TEND);
            let begun = Instant::now();
            let is_over = !matches!(message, Ok(Message::Profiles(_, false)));
            match message {
                Ok(Message::Profiles(parcels, last)) => {
                    self.take(parcels);
                    if last {
                        self.send_due();
                    }
                }
                Ok(Message::Hurry) => self.send_all(),
                Ok(Message::Configure(destinations, done)) => {
                    self.send_all();
                    let plans = destinations.plans.clone();
                    let outcome = self.network.block_on(self.delivery.reconfigure(plans));
                    if outcome.is_ok() {
                        self.configure(*destinations);
                    }
                    // Who asked may have gone.
                    let _ = done.try_send(outcome);
                }
                Ok(Message::End(done)) => {
                    self.end();
                    // Who asked may have gone.
                    let _ = done.try_send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => self.send_due(),
                Err(RecvTimeoutError::Disconnected) => return self.end(),
            }
            if self.tended.elapsed() >= TEND {
                self.tend();
            }
            // The loop has given back what was its own at the cut, when all this was still in use.
            if is_over && self.done_with >= WORTH_GIVING_BACK {
                self.done_with = 0;
                memory::trim();
            }
            let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.figures.nanos = self.figures.nanos.saturating_add(nanos);
            self.show();
        }
    }

    fn end(&mut self) {
        self.send_all();
        self.close_store();
        self.show();
    }

    fn configure(&mut self, destinations: Destinations) {
        let Destinations { store, outlets, .. } = destinations.clone();
        self.destinations = destinations;
        self.own.clear();
        let same = match (&self.plan, &store) {
            (Some(old), Some(new)) => {
                old.directory == new.directory
                    && old.options.max_age == new.options.max_age
                    && old.options.max_bytes == new.options.max_bytes
            }
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.close_store();
            self.plan = store;
            self.open_store();
        }
        let mut before: HashMap<String, HashMap<String, u64>> =
            self.outlets.drain(..).map(|old| (old.outlet.name, old.sequences)).collect();
        let outlets = outlets.into_iter().map(|outlet| {
            let sequences = before.remove(&outlet.name).unwrap_or_default();
            Pending { sequences, ..Pending::new(outlet, Whose::All) }
        });
        self.outlets = outlets.collect();
    }

    /// The outlets that a target's own variables make, which a rule allows.
    fn own_outlets(&mut self, wishes: &[Wish]) -> u64 {
        let mut hasher = DefaultHasher::new();
        for wish in wishes {
            (wish.variable, &wish.value).hash(&mut hasher);
        }
        let key = hasher.finish();
        if self.own.contains_key(&key) {
            return key;
        }
        let mut names = Vec::new();
        let made = self.own.values().filter(|names| !names.is_empty()).count();
        let (mut sinks, problems) = strata_config::families::own_sinks(wishes);
        for problem in problems {
            tracing::warn!("a target's own destination: {problem}");
        }
        if made >= MOST_OWN {
            tracing::warn!("more than {MOST_OWN} targets have destinations of their own");
            sinks.clear();
        }
        for sink in &mut sinks {
            sink.name = format!("{OF_TARGETS}{}-{key:016x}", sink.name);
        }
        let (spools, memory) = (self.destinations.spools.clone(), self.destinations.memory);
        match outlets::of(&sinks, spools.as_deref(), memory) {
            Ok((outlets, plans)) => {
                let mut all = self.destinations.plans.clone();
                all.extend(plans.iter().cloned());
                match self.network.block_on(self.delivery.reconfigure(all.clone())) {
                    Ok(()) => {
                        self.destinations.plans = all;
                        for outlet in outlets {
                            tracing::info!(sink = outlet.name, "a target has its own destination");
                            names.push(outlet.name.clone());
                            self.outlets.push(Pending::new(outlet, Whose::Own(key)));
                        }
                    }
                    Err(error) => tracing::warn!(%error, "a target's own destination"),
                }
            }
            Err(error) => tracing::warn!(%error, "a target's own destination"),
        }
        self.own.insert(key, names);
        key
    }

    fn close_store(&mut self) {
        if let Some(mut store) = self.store.take() {
            note(store.seal(), "seal the store");
            self.kept_before = self.kept_before.with(&store);
        }
    }

    fn open_store(&mut self) {
        self.figures.store_trouble = None;
        let Some(plan) = &self.plan else { return };
        match Store::open(&plan.directory, plan.options) {
            Ok(store) => {
                // One that is opened again holds what was kept by a clock that is not believed yet.
                if !std::mem::replace(&mut self.has_opened, true) {
                    self.ages = Ages::new(store.newest(), wall_nanos(), Instant::now());
                }
                self.store = Some(store);
            }
            Err(error) => {
                tracing::error!(%error, "profiles are not kept on this host");
                self.figures.store_trouble = Some(error.to_string());
                self.next_try = Instant::now() + RETRY;
            }
        }
    }

    fn take(&mut self, mut parcels: Vec<Parcel>) {
        // The store has a dictionary for each service, and perhaps no room for all of them.
        parcels.sort_by(|one, other| one.head.service.cmp(&other.head.service));
        if self.store.is_none() && self.plan.is_some() && Instant::now() >= self.next_try {
            self.open_store();
        }
        let now = self.ages.time(wall_nanos(), Instant::now());
        for parcel in parcels {
            self.figures.published += 1;
            self.done_with = self.done_with.saturating_add(parcel.outgoing.profile.memory());
            if let Some(store) = &mut self.store {
                if let Err(error) = store.append(&parcel.head, &parcel.outgoing.profile, now) {
                    self.figures.not_stored += 1;
                    let text = error.to_string();
                    if self.figures.store_trouble.as_ref() != Some(&text) {
                        tracing::warn!(%error, "a profile was not stored");
                        self.figures.store_trouble = Some(text);
                    }
                } else {
                    self.figures.store_trouble = None;
                }
            } else if self.plan.is_some() {
                self.figures.not_stored += 1;
            }
            let own = match parcel.who.identity.wishes.as_slice() {
                [] => None,
                wishes => Some(self.own_outlets(wishes)),
            };
            for pending in &mut self.outlets {
                if !pending.whose.takes(own) {
                    continue;
                }
                let origin = &parcel.outgoing.origin;
                // What a process claims to be is not enough to be merged with another.
                let pid = origin.pid.unwrap_or(0);
                let key = (origin.runtime_id.clone(), origin.service.clone(), pid);
                let profile = &parcel.outgoing.profile;
                pending.bytes =
                    pending.bytes.saturating_add(profile.memory()).saturating_add(ORIGIN_BYTES);
                pending.profiles.entry(key).or_default().push(parcel.outgoing.clone());
            }
        }
        self.send_early();
    }

    /// A crowd's profiles do not wait for each other: those of the outlet that has most go out
    /// until the rest has room.
    fn send_early(&mut self) {
        loop {
            let bytes = self.outlets.iter().map(|pending| pending.bytes);
            if bytes.clone().sum::<usize>() <= self.destinations.waiting {
                return;
            }
            let Some((most, _)) = bytes.enumerate().max_by_key(|(_, bytes)| *bytes) else { return };
            self.figures.early += 1;
            self.send(most);
        }
    }

    /// Outlets whose period is over.
    fn send_due(&mut self) {
        for index in 0..self.outlets.len() {
            let Some(pending) = self.outlets.get_mut(index) else { continue };
            if pending.since.elapsed() + EARLY >= pending.outlet.period {
                pending.since = Instant::now();
                self.send(index);
            }
        }
    }

    fn send_all(&mut self) {
        for index in 0..self.outlets.len() {
            if let Some(pending) = self.outlets.get_mut(index) {
                pending.since = Instant::now();
            }
            self.send(index);
        }
    }

    /// What an outlet has waiting goes out.
    fn send(&mut self, index: usize) {
        let Some(pending) = self.outlets.get_mut(index) else { return };
        self.done_with = self.done_with.saturating_add(std::mem::take(&mut pending.bytes));
        let waiting = std::mem::take(&mut pending.profiles);
        if waiting.is_empty() {
            return;
        }
        let mut sequences = std::mem::take(&mut pending.sequences);
        let mut outgoing = Vec::with_capacity(waiting.len());
        for ((runtime, ..), profiles) in waiting {
            let Some(last) = profiles.last() else { continue };
            let mut origin = pending.outlet.shaped(&last.origin);
            let sequence = sequences.remove(&runtime).unwrap_or(0);
            for profile in merged(&profiles) {
                let next = pending.sequences.entry(runtime.clone()).or_insert(sequence);
                origin.sequence = *next;
                *next += 1;
                outgoing.push(Outgoing { profile, origin: Arc::new(origin.clone()) });
            }
        }
        // Runtimes that had nothing to say this time go on counting later, while they are few.
        if sequences.len() < MOST_SEQUENCES {
            for (runtime, sequence) in sequences {
                pending.sequences.entry(runtime).or_insert(sequence);
            }
        }
        match &pending.outlet.way {
            Way::Sent(backend) => {
                let encoded = backend.encode(&outgoing);
                self.figures.cuts += encoded.cuts;
                for batch in encoded.batches {
                    if let Err(error) = self.delivery.give(&pending.outlet.name, batch) {
                        self.figures.undelivered += 1;
                        tracing::warn!(sink = pending.outlet.name, %error, "a batch is lost");
                    }
                }
            }
            Way::Written(_) => {
                if let Some(folder) = &mut pending.folder {
                    folder.write(&outgoing);
                }
            }
        }
    }

    fn tend(&mut self) {
        self.tended = Instant::now();
        let now = self.ages.time(wall_nanos(), Instant::now());
        if let Some(store) = &mut self.store {
            note(store.tend(now), "look after the store");
        }
    }

    fn show(&mut self) {
        self.figures.kept = match &self.store {
            Some(store) => self.kept_before.with(store),
            None => self.kept_before,
        };
        self.figures.store_bytes = self.store.as_ref().map_or(0, Store::bytes);
        let dictionaries = self.store.as_ref().map_or(0, Store::dictionaries);
        self.figures.store_dictionaries = dictionaries as u64;
        let pending = self.outlets.iter().map(|pending| pending.profiles.len());
        self.figures.pending = pending.sum();
        let folders = self.outlets.iter().filter_map(|pending| {
            let folder = pending.folder.as_ref()?;
            Some((pending.outlet.name.clone(), folder.written, folder.trouble.clone()))
        });
        self.figures.files = folders.collect();
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = self.figures.clone();
    }
}

/// Runtimes that have had profiles and are remembered.
const MOST_SEQUENCES: usize = 100_000;
/// Roughly what a profile's place among those that wait takes, and whom it is of.
const ORIGIN_BYTES: usize = 1 << 10;

/// One profile of several, or as many as have different sample types.
fn merged(profiles: &[Outgoing]) -> Vec<Arc<Profile>> {
    if let [only] = profiles {
        return vec![only.profile.clone()];
    }
    let mut rest: Vec<&Profile> = profiles.iter().map(|outgoing| &*outgoing.profile).collect();
    let mut merged = Vec::new();
    while let Some((profile, others)) = strata_profile::merge(rest) {
        merged.push(Arc::new(profile));
        rest = others;
    }
    merged
}

fn note(outcome: Result<(), strata_store::StoreError>, what: &str) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "strata could not {what}");
    }
}
