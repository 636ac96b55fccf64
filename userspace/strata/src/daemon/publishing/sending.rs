//! What waits for sinks, and goes out when their periods end.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_delivery::{Delivery, PlanError};
use strata_profile::Profile;
use strata_services::destinations::Wish;
use strata_sinks::Outgoing;
use strata_sinks::limits::Cuts;
use strata_sinks::pyroscope::Moments;
use tokio::runtime::Handle;

use super::files::Folder;
use super::{Destinations, Figures, FileFigures};
use crate::daemon::cutting::Parcel;
use crate::daemon::leftovers::OF_TARGETS;
use crate::daemon::outlets::{self, Outlet, Way};

/// How long before its end a period counts as over: cuts do not come to the millisecond.
const EARLY: Duration = Duration::from_millis(500);

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
/// Whose variables are remembered, most of them for making none.
const MOST_KNOWN: usize = 10_000;

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

pub struct Sending {
    outlets: Vec<Pending>,
    /// Names of outlets that a target's own variables made, by a hash of those; empty when they
    /// make none.
    own: HashMap<u64, Vec<String>>,
    /// That there were more than [`MOST_KNOWN`] of those was said.
    has_too_many: bool,
    destinations: Destinations,
    /// By outlet.
    moments: HashMap<String, Moments>,
    delivery: Arc<Delivery>,
    network: Handle,
    cuts: Cuts,
    /// Batches that found no sink.
    undelivered: u64,
    /// How often profiles went out before their period was over, for want of memory.
    early: u64,
    /// Bytes of profiles that have gone out.
    sent: usize,
}

impl Sending {
    /// To nobody so far.
    pub fn new(delivery: Arc<Delivery>, network: Handle) -> Self {
        Self {
            outlets: Vec::new(),
            own: HashMap::new(),
            has_too_many: false,
            destinations: Destinations::default(),
            moments: HashMap::new(),
            delivery,
            network,
            cuts: Cuts::default(),
            undelivered: 0,
            early: 0,
            sent: 0,
        }
    }

    /// Sends to other sinks, if they can be set up.
    pub fn reconfigure(&mut self, destinations: &Destinations) -> Result<(), PlanError> {
        let plans = destinations.plans.clone();
        self.network.block_on(self.delivery.reconfigure(plans))?;
        self.configure(destinations.clone());
        Ok(())
    }

    /// The sinks of these are set up already.
    pub fn configure(&mut self, destinations: Destinations) {
        let outlets = destinations.outlets.clone();
        self.destinations = destinations;
        self.own.clear();
        self.has_too_many = false;
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
        if self.own.len() >= MOST_KNOWN {
            if !std::mem::replace(&mut self.has_too_many, true) {
                tracing::warn!(
                    "destinations of more than {MOST_KNOWN} targets' own are not looked at"
                );
            }
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

    /// A profile waits for the ends of its sinks' periods.
    pub fn take(&mut self, parcel: &Parcel) {
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
    /// A crowd's profiles do not wait for each other: those of the outlet that has most go out
    /// until the rest has room.
    pub fn send_early(&mut self) {
        loop {
            let bytes = self.outlets.iter().map(|pending| pending.bytes);
            if bytes.clone().sum::<usize>() <= self.destinations.waiting {
                return;
            }
            let Some((most, _)) = bytes.enumerate().max_by_key(|(_, bytes)| *bytes) else { return };
            self.early += 1;
            self.send(most);
        }
    }

    /// Outlets whose period is over.
    pub fn send_due(&mut self) {
        for index in 0..self.outlets.len() {
            let Some(pending) = self.outlets.get_mut(index) else { continue };
            if pending.since.elapsed() + EARLY >= pending.outlet.period {
                pending.since = Instant::now();
                self.send(index);
            }
        }
    }

    pub fn send_all(&mut self) {
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
        self.sent = self.sent.saturating_add(std::mem::take(&mut pending.bytes));
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
                let encoded = {
                    let name = pending.outlet.name.clone();
                    backend.encode(&outgoing, self.moments.entry(name).or_default())
                };
                self.cuts += encoded.cuts;
                for batch in encoded.batches {
                    if let Err(error) = self.delivery.give(&pending.outlet.name, batch) {
                        self.undelivered += 1;
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

    /// Bytes of profiles that have gone out since the last call.
    pub fn take_sent(&mut self) -> usize {
        std::mem::take(&mut self.sent)
    }

    pub fn show(&self, figures: &mut Figures) {
        figures.pending = self.outlets.iter().map(|pending| pending.profiles.len()).sum();
        let folders = self.outlets.iter().filter_map(|pending| {
            let folder = pending.folder.as_ref()?;
            Some(FileFigures {
                name: pending.outlet.name.clone(),
                written: folder.written,
                failed: folder.failed,
                trouble: folder.trouble.clone(),
            })
        });
        figures.files = folders.collect();
        figures.cuts = self.cuts;
        figures.undelivered = self.undelivered;
        figures.early = self.early;
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
