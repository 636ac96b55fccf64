//! The profiles that wait for exporters, sent at the ends of their periods.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_metadata::destinations::Wish;
use strata_profile::{Profile, Times};
use tokio::runtime::Handle;

use super::disk::Surroundings;
use super::folder_queue::FolderQueue;
use super::sequences::Sequences;
use super::unfinished_queue::UnfinishedQueue;
use super::{Figures, FlushedProfile, PipelineSettings};
use crate::disks::{FLUSH, PATIENCE};
use crate::exporter::{self, Exporter, Output};
use crate::label_values::{LabelValues, OTHER};
use crate::limits::Cuts;
use crate::origin::{CLAIMABLE, Origin};
use crate::orphans::OF_TARGETS;
use crate::{EncoderState, Outgoing, Queues, StartError};

/// How long the end waits for files that are being written.
const LAST_FILES: Duration = Duration::from_secs(8);
/// Values of labels count for so long.
const HOUR: Duration = Duration::from_secs(3600);

/// The processes whose profiles an exporter takes.
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

/// The exporters made by a target's own variables.
struct Own {
    /// Names of exporters; empty when they make none.
    names: Vec<String>,
    /// There was no room for it.
    is_refused: bool,
    /// When it was asked for last.
    used: Instant,
    /// After this time none of its batches waits any more.
    lasts: Duration,
}

/// The most exporters configured by targets themselves.
const MOST_OWN: usize = 16;
/// Those and variables without any are remembered at least so long.
const LEAST_KEPT: Duration = Duration::from_secs(3600);
/// The most sets of variables cached, most of which make no exporter.
const MOST_KNOWN: usize = 10_000;

/// An exporter and the profiles that it will get next.
struct Pending {
    whose: Whose,
    exporter: Exporter,
    folder: Option<FolderQueue>,
    /// The total length of the flushes that it holds.
    elapsed: Duration,
    unfinished: Option<UnfinishedQueue>,
    /// Arrived since the last flush's end, and is only in memory.
    fresh: Vec<Outgoing>,
    /// Its batches are being written to its spool.
    is_sent: bool,
    /// By runtime id, service and pid.
    profiles: HashMap<(String, String, u32), Vec<Outgoing>>,
    /// What those take.
    bytes: usize,
    sequences: Sequences,
}

impl Pending {
    /// `limit` bytes of profiles may wait for its disk.
    fn new(exporter: Exporter, whose: Whose, limit: usize, surroundings: &Surroundings) -> Self {
        let warn = |error: &std::io::Error| {
            tracing::warn!(exporter = exporter.name, %error, "a thread cannot be started");
        };
        let folder = match &exporter.output {
            Output::Folder(path) => {
                FolderQueue::start(&exporter.name, path, limit, surroundings).inspect_err(warn).ok()
            }
            Output::Endpoint(_) => None,
        };
        let unfinished = exporter.spool.as_ref().and_then(|(folder, most)| {
            UnfinishedQueue::start(folder.clone(), *most, limit, surroundings)
                .inspect_err(warn)
                .ok()
        });
        Self {
            whose,
            exporter,
            folder,
            elapsed: Duration::ZERO,
            unfinished,
            fresh: Vec::new(),
            is_sent: false,
            profiles: HashMap::new(),
            bytes: 0,
            sequences: Sequences::default(),
        }
    }

    fn read_left(&mut self) {
        if let Some(unfinished) = &mut self.unfinished {
            unfinished.read_left();
        }
    }
}

pub struct Exporters {
    exporters: Vec<Pending>,
    /// By a hash of a target's own variables.
    own: HashMap<u64, Own>,
    /// Whether more than [`MOST_KNOWN`] of them were reported already.
    has_too_many: bool,
    destinations: PipelineSettings,
    /// By exporter.
    states: HashMap<String, EncoderState>,
    /// When values of labels were forgotten.
    forgotten: Instant,
    delivery: Arc<Queues>,
    network: Handle,
    surroundings: Surroundings,
    cuts: Cuts,
    /// Profiles of targets whose own destination was over the limit.
    refused_own: u64,
    /// Batches that found no exporter.
    undelivered: u64,
    /// How often profiles were sent before the end of their period, for lack of memory.
    early: u64,
    /// Bytes of profiles sent.
    sent: usize,
}

impl Exporters {
    /// To no exporter so far.
    pub fn new(delivery: Arc<Queues>, network: Handle, surroundings: Surroundings) -> Self {
        Self {
            exporters: Vec::new(),
            own: HashMap::new(),
            has_too_many: false,
            destinations: PipelineSettings::default(),
            states: HashMap::new(),
            forgotten: Instant::now(),
            delivery,
            network,
            surroundings,
            cuts: Cuts::default(),
            refused_own: 0,
            undelivered: 0,
            early: 0,
            sent: 0,
        }
    }

    /// Sends to other exporters, if they can be set up.
    pub fn reconfigure(&mut self, destinations: &PipelineSettings) -> Result<(), StartError> {
        let plans = destinations.plans.clone();
        self.network.block_on(self.delivery.reconfigure(plans))?;
        self.configure(destinations.clone());
        Ok(())
    }

    /// The exporters of these are set up already.
    pub fn configure(&mut self, destinations: PipelineSettings) {
        let exporters = destinations.exporters.clone();
        self.destinations = destinations;
        self.own.clear();
        self.has_too_many = false;
        let until = Instant::now() + PATIENCE;
        let mut before: HashMap<String, (Sequences, Option<FolderQueue>)> = HashMap::new();
        // What a process before this one left has not arrived yet.
        let mut unread = HashSet::new();
        for old in self.exporters.drain(..) {
            // Its folder may be opened again.
            if let Some(unfinished) = old.unfinished {
                if unfinished.is_reading() {
                    unread.insert(old.exporter.name.clone());
                }
                unfinished.end(until);
            }
            before.insert(old.exporter.name, (old.sequences, old.folder));
        }
        for exporter in exporters {
            if let Some(state) = self.states.get_mut(&exporter.name) {
                state.set_most_values(exporter.label_values);
            }
            let old = before.remove(&exporter.name);
            let is_new = old.is_none() || unread.contains(&exporter.name);
            let (sequences, folder) = old.unwrap_or_default();
            let mut pending = self.pending(exporter, Whose::All);
            if is_new {
                pending.read_left();
            }
            if let (Some(new), Some(old)) = (&mut pending.folder, &folder) {
                new.go_on_from(old);
            }
            self.exporters.push(Pending { sequences, ..pending });
        }
    }

    fn pending(&self, exporter: Exporter, whose: Whose) -> Pending {
        let disks = self.destinations.exporters.len().saturating_add(1);
        let limit = self.destinations.waiting / 2 / disks;
        Pending::new(exporter, whose, limit, &self.surroundings)
    }

    /// The exporters that a target's own variables configure, which a rule allows.
    fn own_exporters(&mut self, wishes: &[Wish], now: Instant) -> u64 {
        let mut hasher = DefaultHasher::new();
        for wish in wishes {
            (wish.variable, &wish.value).hash(&mut hasher);
        }
        let key = hasher.finish();
        if let Some(own) = self.own.get_mut(&key) {
            own.used = now;
            self.refused_own += u64::from(own.is_refused);
            return key;
        }
        if self.own.len() >= MOST_KNOWN {
            if !std::mem::replace(&mut self.has_too_many, true) {
                tracing::warn!(
                    "destinations of more than {MOST_KNOWN} targets' own are not looked at"
                );
            }
            self.refused_own += 1;
            return key;
        }
        let own = self.make_own(key, wishes, now);
        self.refused_own += u64::from(own.is_refused);
        self.own.insert(key, own);
        key
    }

    fn make_own(&mut self, key: u64, wishes: &[Wish], now: Instant) -> Own {
        let mut own = Own { names: Vec::new(), is_refused: false, used: now, lasts: LEAST_KEPT };
        let (mut exporters, problems) = strata_config::families::own_exporters(wishes);
        for problem in problems {
            tracing::warn!("a target's own destination: {problem}");
        }
        if exporters.is_empty() {
            return own;
        }
        let made = self.own.values().filter(|own| !own.names.is_empty()).count();
        if made >= MOST_OWN {
            tracing::warn!("more than {MOST_OWN} targets have destinations of their own");
            own.is_refused = true;
            return own;
        }
        for exporter in &mut exporters {
            exporter.name = format!("{OF_TARGETS}{}-{key:016x}", exporter.name);
        }
        let (spools, memory) = (self.destinations.spools.clone(), self.destinations.memory);
        match exporter::of(&exporters, spools.as_deref(), memory) {
            Ok((exporters, plans)) => {
                let mut all = self.destinations.plans.clone();
                all.extend(plans.iter().cloned());
                match self.network.block_on(self.delivery.reconfigure(all.clone())) {
                    Ok(()) => {
                        self.destinations.plans = all;
                        let period = exporters.iter().map(|exporter| exporter.period).max();
                        let age = plans.iter().map(|plan| plan.spool_age).max();
                        let waits =
                            period.unwrap_or_default().saturating_add(age.unwrap_or_default());
                        own.lasts = own.lasts.max(waits);
                        for exporter in exporters {
                            tracing::info!(
                                exporter = exporter.name,
                                "a target has its own destination"
                            );
                            own.names.push(exporter.name.clone());
                            let mut pending = self.pending(exporter, Whose::Own(key));
                            pending.read_left();
                            self.exporters.push(pending);
                            self.take_left(self.exporters.len() - 1, Instant::now() + PATIENCE);
                        }
                    }
                    Err(error) => tracing::warn!(%error, "a target's own destination"),
                }
            }
            Err(error) => tracing::warn!(%error, "a target's own destination"),
        }
        own
    }

    /// Targets' own destinations without a profile for so long that no batch of theirs waits are
    /// evicted for others. A credential that changes makes another one each time.
    pub fn forget_unused(&mut self, now: Instant) {
        if now.saturating_duration_since(self.forgotten) >= HOUR {
            self.forgotten = now;
            for state in self.states.values() {
                state.label_values.borrow_mut().forget();
            }
        }
        let waiting = self.exporters.iter().filter(|pending| !pending.profiles.is_empty());
        let waiting: Vec<Whose> = waiting.map(|pending| pending.whose).collect();
        let is_unused = |key: u64, own: &Own| {
            now.saturating_duration_since(own.used) >= own.lasts
                && !waiting.contains(&Whose::Own(key))
        };
        let unused = self.own.iter().filter(|(key, own)| is_unused(**key, own));
        let unused: HashSet<u64> = unused.map(|(key, _)| *key).collect();
        if unused.is_empty() {
            return;
        }
        let names = unused.iter().filter_map(|key| self.own.get(key)).flat_map(|own| &own.names);
        let names: HashSet<String> = names.cloned().collect();
        if !names.is_empty() {
            let mut plans = self.destinations.plans.clone();
            plans.retain(|plan| !names.contains(&plan.name));
            if let Err(error) = self.network.block_on(self.delivery.reconfigure(plans.clone())) {
                tracing::warn!(%error, "destinations that no target uses are not taken down");
                return;
            }
            self.destinations.plans = plans;
            self.exporters.retain(|pending| !names.contains(&pending.exporter.name));
            self.states.retain(|name, _| !names.contains(name));
            for name in &names {
                tracing::info!(exporter = name, "no target uses this destination any more");
            }
            // Those may have their place.
            self.own.retain(|_, own| !own.is_refused);
        }
        self.own.retain(|key, _| !unused.contains(key));
        self.has_too_many = false;
    }

    /// A profile waits for the ends of its exporters' periods.
    pub fn take(&mut self, parcel: &FlushedProfile) {
        let own = match parcel.own_settings.as_slice() {
            [] => None,
            wishes => Some(self.own_exporters(wishes, Instant::now())),
        };
        for pending in &mut self.exporters {
            if !pending.whose.takes(own) {
                continue;
            }
            let key = key_of(&parcel.outgoing.origin);
            let profile = &parcel.outgoing.profile;
            if pending.unfinished.is_some() {
                pending.fresh.push(parcel.outgoing.clone());
            }
            pending.bytes =
                pending.bytes.saturating_add(profile.memory()).saturating_add(ORIGIN_BYTES);
            pending.profiles.entry(key).or_default().push(parcel.outgoing.clone());
        }
    }

    /// Bytes of waiting profiles: one that waits for several exporters is there once.
    fn waiting_bytes(&self) -> usize {
        let mut seen = HashSet::new();
        let profiles =
            self.exporters.iter().flat_map(|pending| pending.profiles.values().flatten());
        let bytes = profiles.map(|outgoing| {
            let is_first = seen.insert(Arc::as_ptr(&outgoing.profile));
            ORIGIN_BYTES.saturating_add(if is_first { outgoing.profile.memory() } else { 0 })
        });
        bytes.sum()
    }

    /// Under memory pressure the profiles of the exporter that has most are sent until the rest has
    /// room.
    pub fn send_early(&mut self) {
        loop {
            let bytes = self.exporters.iter().map(|pending| pending.bytes);
            let limit = self.destinations.waiting;
            if bytes.clone().sum::<usize>() <= limit || self.waiting_bytes() <= limit {
                return;
            }
            let Some((most, _)) = bytes.enumerate().max_by_key(|(_, bytes)| *bytes) else { return };
            self.early += 1;
            self.send(most);
        }
    }

    /// The end of a flush that was so long, or of a part of one. Exporters whose period is over send;
    /// what the others hold is on disk when this returns. A period is as many flushes as come nearest
    /// to it: how late one is does not move the next.
    pub fn flushed(&mut self, length: Option<Duration>) {
        for index in 0..self.exporters.len() {
            // What a disk gave back only now.
            self.take_left(index, Instant::now());
            let Some(pending) = self.exporters.get_mut(index) else { continue };
            let is_over = length.is_some_and(|length| {
                pending.elapsed = pending.elapsed.saturating_add(length);
                pending.elapsed + length / 2 >= pending.exporter.period
            });
            if is_over {
                self.send(index);
            } else if let Some(unfinished) = &mut pending.unfinished {
                unfinished.add(&std::mem::take(&mut pending.fresh));
            }
        }
        self.settle();
    }

    pub fn send_all(&mut self) {
        for index in 0..self.exporters.len() {
            self.send(index);
        }
        self.settle();
    }

    /// Everything is sent, and files are written, unless a disk does not answer.
    pub fn end(&mut self) {
        let until = Instant::now() + LAST_FILES;
        self.send_all();
        for pending in &self.exporters {
            if let Some(folder) = pending.folder.as_ref().filter(|folder| !folder.wait(until)) {
                let (exporter, profiles) = (&pending.exporter.name, folder.waiting());
                tracing::warn!(exporter, profiles, "not written: its disk does not answer");
            }
        }
    }

    /// Profiles left by a killed process are sent as a shorter period.
    pub fn send_left(&mut self) {
        let until = Instant::now() + PATIENCE;
        self.exporters.iter_mut().for_each(Pending::read_left);
        for index in 0..self.exporters.len() {
            self.take_left(index, until);
        }
        self.settle();
    }

    fn take_left(&mut self, index: usize, until: Instant) {
        let Some(pending) = self.exporters.get_mut(index) else { return };
        let left = pending.unfinished.as_mut().map(|unfinished| unfinished.left(until));
        let left = left.unwrap_or_default();
        if left.is_empty() {
            return;
        }
        let name = &pending.exporter.name;
        tracing::info!(exporter = name, profiles = left.len(), "sends an unfinished period");
        if !pending.profiles.is_empty() {
            // A disk gave it back late: one of the same process would become one profile with it.
            self.send(index);
        }
        let Some(pending) = self.exporters.get_mut(index) else { return };
        for outgoing in left {
            pending.profiles.entry(key_of(&outgoing.origin)).or_default().push(outgoing);
        }
        self.send(index);
    }

    /// Waits until all batches are in the spools, then no other copy is needed, and what belongs to no
    /// batch yet on its disk; for [`PATIENCE`] at most, and not for a disk that does not answer.
    fn settle(&mut self) {
        let until = Instant::now() + PATIENCE;
        for pending in &mut self.exporters {
            if pending.is_sent && self.delivery.wait_for_spool(&pending.exporter.name, until) {
                pending.is_sent = false;
                if let Some(unfinished) = pending.unfinished.as_mut() {
                    unfinished.clear();
                }
            }
        }
        for pending in &self.exporters {
            if let Some(folder) = &pending.folder {
                folder.wait(until);
            }
            if let Some(unfinished) = &pending.unfinished {
                unfinished.wait(until);
            }
        }
    }

    pub fn waiting_limit(&self) -> usize {
        self.destinations.waiting
    }

    /// Sends the waiting profiles of an exporter.
    fn send(&mut self, index: usize) {
        let Some(pending) = self.exporters.get_mut(index) else { return };
        self.sent = self.sent.saturating_add(std::mem::take(&mut pending.bytes));
        pending.elapsed = Duration::ZERO;
        pending.fresh.clear();
        if let Some(unfinished) = &mut pending.unfinished {
            unfinished.end_period();
        }
        pending.is_sent = true;
        let waiting = std::mem::take(&mut pending.profiles);
        if waiting.is_empty() {
            return;
        }
        pending.sequences.begin();
        let mut outgoing = Vec::with_capacity(waiting.len());
        let most = pending.exporter.label_values;
        let name = pending.exporter.name.clone();
        let state = self.states.entry(name).or_insert_with(|| EncoderState::new(most));
        for ((runtime, ..), profiles) in waiting {
            let Some(last) = profiles.last() else { continue };
            let mut origin = pending.exporter.shaped(&last.origin);
            let others = bound(&mut origin, &mut state.label_values.borrow_mut());
            self.cuts.other_values = self.cuts.other_values.saturating_add(others);
            let times = if pending.exporter.timestamps { Times::Kept } else { Times::Dropped };
            origin.sequence = pending.sequences.next(&runtime);
            let profile = merged(&profiles, times);
            outgoing.push(Outgoing { profile, origin: Arc::new(origin) });
        }
        match &pending.exporter.output {
            Output::Endpoint(backend) => {
                let encoded = backend.encode(&outgoing, state);
                self.cuts += encoded.cuts;
                let name = &pending.exporter.name;
                let (mut given, mut lost) = (0, 0);
                for batch in encoded.batches {
                    // The queue in memory is short; the spool takes them meanwhile. What a disk that
                    // does not answer leaves no room for is dropped, and counted.
                    let until = Instant::now() + PATIENCE;
                    let _ = self.delivery.wait_for_room(name, batch.body.len(), until);
                    match self.delivery.enqueue(name, batch) {
                        Ok(()) => given += 1,
                        Err(error) => {
                            lost += 1;
                            self.undelivered += 1;
                            tracing::warn!(exporter = name, %error, "a batch is not taken");
                        }
                    }
                }
                // The end: what is on disk of this period is sent after the next start.
                pending.is_sent = given > 0 || lost == 0;
            }
            Output::Folder(_) => match &mut pending.folder {
                Some(folder) => folder.write(outgoing, Instant::now() + FLUSH),
                None => self.undelivered += 1,
            },
        }
    }

    /// Bytes of profiles sent since the last call.
    pub fn take_sent(&mut self) -> usize {
        std::mem::take(&mut self.sent)
    }

    pub fn show(&self, figures: &mut Figures) {
        figures.pending = self.exporters.iter().map(|pending| pending.profiles.len()).sum();
        let folders = self.exporters.iter().filter_map(|pending| pending.folder.as_ref());
        figures.files = folders.map(FolderQueue::figures).collect();
        figures.cuts = self.cuts;
        figures.refused_own = self.refused_own;
        figures.undelivered = self.undelivered;
        figures.early = self.early;
    }
}

/// Limits the number of values that labels and facts set by processes have. Returns how many of this
/// origin become `other`.
fn bound(origin: &mut Origin, values: &mut LabelValues) -> u64 {
    let Origin { env, version, git_repository, git_commit, .. } = origin;
    let facts = CLAIMABLE.into_iter().zip([env, version, git_repository, git_commit]);
    let claimed = &origin.claimed_facts;
    let facts = facts
        .filter(|(name, value)| !value.is_empty() && claimed.iter().any(|known| known == name));
    let target_labels = &origin.target_labels;
    let labels = origin.labels.iter_mut().filter(|(name, _)| target_labels.contains(name));
    let labels = labels.map(|(name, value)| (name.as_str(), value));
    let mut others = 0;
    for (name, value) in facts.chain(labels) {
        if !values.admit(name, value) {
            OTHER.clone_into(value);
            others += 1;
        }
    }
    others
}

/// A process's own claims are not enough to merge it with another.
fn key_of(origin: &Origin) -> (String, String, u32) {
    (origin.runtime_id.clone(), origin.service.clone(), origin.pid.unwrap_or(0))
}

/// The approximate size of a waiting profile's entry, with its origin.
const ORIGIN_BYTES: usize = 1 << 10;

/// One profile of several, with every kind of samples that any of them has.
fn merged(profiles: &[Outgoing], times: Times) -> Arc<Profile> {
    if let [only] = profiles {
        return only.profile.clone();
    }
    let all = profiles.iter().map(|outgoing| &*outgoing.profile);
    Arc::new(strata_profile::merge(all, times).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use crate::Clock;

    use super::*;

    fn sending() -> Exporters {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let network = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        let delivery = network.block_on(Queues::start(Vec::new(), Clock::real()));
        let delivery = Arc::new(delivery.expect("no exporters can be started"));
        let surroundings = Surroundings { disks: delivery.disks().clone(), started: || () };
        Exporters::new(delivery, network, surroundings)
    }

    #[test]
    fn a_profile_that_waits_for_several_exporters_takes_its_memory_once() {
        let outgoing = || {
            let mut builder = strata_profile::ProfileBuilder::new(&[("samples", "count")]);
            builder.string(&"x".repeat(100_000));
            Outgoing { profile: Arc::new(builder.finish()), origin: Arc::new(Origin::default()) }
        };
        let folder = tempfile::tempdir().expect("a folder can be made");
        let exporter = |name: &str| Exporter {
            name: name.to_owned(),
            output: Output::Folder(folder.path().to_owned()),
            period: Duration::from_secs(60),
            labels: Vec::new(),
            target_labels: false,
            label_values: 10,
            timestamps: false,
            spool: None,
        };
        let mut sending = sending();
        sending.destinations.waiting = 250_000;
        for name in ["one", "two", "three"] {
            let pending = sending.pending(exporter(name), Whose::All);
            sending.exporters.push(pending);
        }
        let take = |sending: &mut Exporters| {
            let outgoing = outgoing();
            for pending in &mut sending.exporters {
                pending.bytes += outgoing.profile.memory() + ORIGIN_BYTES;
                let key = key_of(&outgoing.origin);
                pending.profiles.entry(key).or_default().push(outgoing.clone());
            }
            sending.send_early();
            sending.early
        };
        assert_eq!((take(&mut sending), take(&mut sending)), (0, 0));
        assert!(take(&mut sending) > 0, "three have no room");
        assert!(sending.waiting_bytes() <= 250_000);
    }

    #[test]
    fn facts_that_a_process_sets_have_a_number_of_values_and_those_of_a_rule_have_any() {
        let mut values = LabelValues::new(2);
        let claimed: Vec<String> = CLAIMABLE.map(str::to_owned).into();
        let mut bounded = |value: &str, claimed_facts: &[String]| {
            let mut origin = Origin {
                env: "prod".to_owned(),
                version: value.to_owned(),
                git_commit: value.to_owned(),
                labels: vec![("team".to_owned(), value.to_owned())],
                claimed_facts: claimed_facts.to_vec(),
                ..Origin::default()
            };
            let others = bound(&mut origin, &mut values);
            assert_eq!((origin.env.as_str(), origin.git_repository.as_str()), ("prod", ""));
            assert_eq!(origin.labels[0].1, value, "it is a rule's");
            (origin.version, origin.git_commit, others)
        };
        let same = |value: &str, others| (value.to_owned(), value.to_owned(), others);
        assert_eq!(bounded("1", &claimed), same("1", 0));
        assert_eq!(bounded("2", &claimed), same("2", 0));
        assert_eq!(bounded("3", &claimed), same(OTHER, 2));
        assert_eq!(bounded("1", &claimed), same("1", 0));
        assert_eq!(bounded("3", &[]), same("3", 0));
        let version_only = [claimed[1].clone()];
        assert_eq!(bounded("4", &version_only), (OTHER.to_owned(), "4".to_owned(), 1));
    }

    fn wishes(token: usize) -> [Wish; 2] {
        let url = "http://127.0.0.1:9".to_owned();
        [
            Wish { variable: "PYROSCOPE_SERVER_ADDRESS", value: url },
            Wish { variable: "PYROSCOPE_AUTH_TOKEN", value: token.to_string() },
        ]
    }

    #[test]
    fn destinations_that_no_target_uses_make_room_for_others() {
        let mut sending = sending();
        let now = Instant::now();
        for token in 0..=MOST_OWN {
            sending.own_exporters(&wishes(token), now);
        }
        assert_eq!((sending.exporters.len(), sending.refused_own), (MOST_OWN, 1));
        sending.forget_unused(now);
        let later = now + Duration::from_secs(24 * 3600);
        for token in [0, MOST_OWN] {
            sending.own_exporters(&wishes(token), later);
        }
        assert_eq!((sending.exporters.len(), sending.refused_own), (MOST_OWN, 2));
        sending.forget_unused(later);
        assert_eq!((sending.exporters.len(), sending.delivery.health().len()), (1, 1));
        sending.own_exporters(&wishes(MOST_OWN), later);
        assert_eq!((sending.exporters.len(), sending.delivery.health().len()), (2, 2));
        assert_eq!(sending.refused_own, 2);
    }

    #[test]
    fn variables_that_make_no_destination_are_not_remembered_for_ever() {
        let mut sending = sending();
        let now = Instant::now();
        let wish =
            |number: usize| [Wish { variable: "PYROSCOPE_AUTH_TOKEN", value: number.to_string() }];
        for number in 0..=MOST_KNOWN {
            sending.own_exporters(&wish(number), now);
        }
        assert_eq!((sending.own.len(), sending.refused_own), (MOST_KNOWN, 1));
        sending.forget_unused(now + LEAST_KEPT);
        assert!(sending.own.is_empty() && sending.exporters.is_empty());
    }
}
