//! Per-process metadata: read from `/proc` while the process is alive, then resolved to a service
//! identity by rules, environment and host.
//!
//! - [`reading`]: reads `/proc` of a process.
//! - [`resolved`]: the identity resolved from it.
//!
//! Invariant: data read from a process is untrusted, and applied only as far as `strata_metadata`
//! and the rules allow. Nothing here waits for a process.

mod reading;
mod resolved;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_bridge_protocol::record::AppDomainRecord;
use strata_config::Configuration;
use strata_config::rules;
use strata_export::origin::Language;
use strata_metadata::{Application, Container, Environment, Facts, Pod, identify};
use uuid::Uuid;

use crate::status::Service;

use reading::{Question, Reader, Seen, Wanted};
use resolved::{origin, stored_labels};
use strata_agent::blocking_reader::{Figures, Missing, Owner, ROOT, Ticket, owner_of};
use strata_agent::engine::Engine;
use strata_agent::host;
use strata_agent::image_id::ImageId;
use strata_agent::processes::container::Group;
use strata_agent::processes::table::ProcessTable;

pub use reading::age_of;
pub use resolved::ResolvedProcess;

/// The metadata of containers; `None` while it is unknown.
pub trait Containers {
    fn of(&self, id: &str) -> Option<Known>;
    /// Whether all container runtimes have answered that they run no such container.
    fn is_unknown(&self, id: &str) -> bool;
}

/// The container of a process, as far as its control group is trusted, and its metadata.
///
/// A user may give its groups the id of any container: such an id counts only if the runtime of
/// that user knows it, or none of the host's does. While that is open it is no container. A container that
/// may make groups may do so too: an id below another one's counts if the host's runtimes do not know it, as
/// that of a container of a runtime inside. What a user's runtime says of the host's containers does not count.
fn container_of<'a>(
    group: &'a Group,
    containers: &dyn Containers,
) -> (Option<&'a str>, Option<Known>) {
    let Some(id) = group.container.as_deref() else { return (None, None) };
    let known = containers.of(id);
    let is_hosts = |known: &Known| known.owner == 0;
    match (group.user, known, group.outer_container.as_deref()) {
        (None, Some(_), Some(outer)) => (Some(outer), containers.of(outer).filter(is_hosts)),
        (None, known, _) => (Some(id), known.filter(is_hosts)),
        (Some(user), Some(known), _) if known.owner == user => (Some(id), Some(known)),
        (Some(_), Some(_), _) => (None, None),
        (Some(_), None, _) => (containers.is_unknown(id).then_some(id), None),
    }
}

/// Whether a container may still turn out to be known.
fn is_unanswered(containers: &dyn Containers, id: &str) -> bool {
    containers.of(id).is_none() && !containers.is_unknown(id)
}

/// An orchestrator's metadata of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub container: Option<Container>,
    pub pod: Option<Pod>,
    /// The user whose runtime runs it; 0 is the host's.
    pub owner: u32,
    /// Changes whenever the rest does.
    pub version: usize,
}

#[derive(Debug)]
struct KeptProcess {
    pid: u32,
    owner: Owner,
    seen: Seen,
    /// How often it was read: its identity is resolved again after each.
    readings: u32,
    /// Its pending read.
    asked: Option<Ticket>,
    met: Instant,
    /// Reading it hung: it is not tried again.
    is_given_up: bool,
    /// When it is read again, because it seems to be in the middle of executing its program.
    again: Option<Instant>,
    /// How often that was so.
    looks: u32,
    runtime_id: Uuid,
    /// Functions of Go's runtime were sampled in it.
    is_go: bool,
    /// It has had a profile of its own.
    has_profile: bool,
    /// It was left out before a runtime had answered for its container.
    is_left_early: bool,
    /// By AppDomain; 0 is the whole process.
    known: HashMap<u64, (u64, Arc<ResolvedProcess>)>,
}

/// The bytes of environments that are kept, by user: one user's processes cannot take the room of all
/// others' (16 KiB of a process may be kept).
#[derive(Debug, Default)]
struct Environments {
    by_owner: HashMap<Owner, usize>,
    all: usize,
}

impl Environments {
    /// Of all processes.
    const MOST: usize = 8 << 20;
    /// Of one user but root.
    const MOST_OF_ONE: usize = Self::MOST / 4;

    fn of(kept: impl Iterator<Item = (Owner, usize)>) -> Self {
        let mut sum = Self::default();
        for (owner, bytes) in kept.filter(|(_, bytes)| *bytes > 0) {
            sum.all += bytes;
            *sum.by_owner.entry(owner).or_default() += bytes;
        }
        sum
    }

    /// A process of `owner` has so many bytes now instead of those before: or none, where there is no room.
    fn replace(&mut self, owner: Owner, before: usize, now: usize) -> bool {
        let own = self.by_owner.entry(owner).or_default();
        *own = own.saturating_sub(before);
        self.all = self.all.saturating_sub(before);
        let most = if owner == ROOT { Self::MOST } else { Self::MOST_OF_ONE };
        if *own + now > most || self.all + now > Self::MOST {
            return false;
        }
        *own += now;
        self.all += now;
        true
    }
}

pub struct ProcessMetadata {
    kept: HashMap<ImageId, KeptProcess>,
    reader: Reader,
    /// Processes with a pending read.
    asked: HashMap<Ticket, ImageId>,
    /// Processes to be read again.
    again: Vec<ImageId>,
    /// What rules need of an environment.
    wanted: Arc<Wanted>,
    /// Changes with the configuration.
    generation: u64,
    hasher: RandomState,
    /// The number of identities kept, and its limit: others are resolved whenever they are needed.
    known: usize,
    most_known: usize,
    /// What was known before it was shed.
    described_before: Described,
    /// Variables dropped for lack of room.
    not_kept: u64,
}

/// Identities of processes, for the status.
#[derive(Clone, Debug, Default)]
pub struct Described {
    pub services: Vec<Service>,
    /// Identities without a place in the list.
    pub not_listed: usize,
}

/// AppDomains of a process that have profiles of their own.
const MOST_DOMAINS: usize = 16;
/// The service name of all kernel threads.
const KERNEL: &str = "kernel";
/// The runtime's name for its only AppDomain.
const ONLY_DOMAIN: &str = "clrhost";
/// After which times a process without an environment is read again: executing a program waits for
/// its files at worst. One that has none really is let be after the last.
const AGAIN: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(5)];
/// The delay before a process is read whose read was refused.
const REFUSED: Duration = Duration::from_secs(5);
/// Bytes of what [`ProcessMetadata::described`] says: JSON may take six times as many.
const MOST_DESCRIBED: usize = 1 << 20;
/// After this time a process's identity is resolved from the metadata known.
const UNDECIDED: Duration = Duration::from_secs(15);
/// How long a flush waits for pending reads.
const SETTLING: Duration = Duration::from_millis(300);

impl ProcessMetadata {
    pub fn new(configuration: &Configuration, most_known: usize) -> Self {
        Self::with_reader(configuration, most_known, reading::reader())
    }

    fn with_reader(configuration: &Configuration, most_known: usize, reader: Reader) -> Self {
        Self {
            kept: HashMap::new(),
            reader,
            asked: HashMap::new(),
            again: Vec::new(),
            wanted: Arc::new(Wanted::of(&configuration.rules)),
            not_kept: 0,
            generation: 0,
            hasher: RandomState::new(),
            known: 0,
            described_before: Described::default(),
            most_known,
        }
    }

    /// Rules may have changed, and use other variables.
    pub fn configure(&mut self, configuration: &Configuration, table: &ProcessTable) {
        self.generation += 1;
        let wanted = Wanted::of(&configuration.rules);
        if wanted != *self.wanted {
            self.wanted = Arc::new(wanted);
            let images: Vec<ImageId> = self.kept.keys().copied().collect();
            for image in images {
                self.ask(table, image);
            }
        }
    }

    /// Requests a read of a process, if it is still the same image. Earlier metadata holds until
    /// then.
    fn ask(&mut self, table: &ProcessTable, image: ImageId) {
        let Some(process) = self.kept.get_mut(&image) else { return };
        if table.has_ended(image) || process.is_given_up {
            return;
        }
        let question = Question { pid: process.pid, wanted: self.wanted.clone() };
        process.owner = owner_of(process.pid);
        process.asked = self.reader.ask_of(process.owner, question);
        match process.asked {
            Some(ticket) => {
                self.asked.insert(ticket, image);
            }
            None => self.ask_later(image),
        }
    }

    /// No thread is free to read a process because others hang: it is tried again.
    fn ask_later(&mut self, image: ImageId) {
        if let Some(process) = self.kept.get_mut(&image) {
            process.again = Some(Instant::now() + REFUSED);
            self.again.push(image);
        }
    }

    /// Takes in what was read meanwhile.
    fn take_in(&mut self, table: &ProcessTable) {
        let answers = self.reader.answers();
        let kept = self.kept.values();
        let mut environments = match answers.is_empty() {
            true => Environments::default(),
            false => Environments::of(
                kept.map(|process| (process.owner, process.seen.environment.len())),
            ),
        };
        for (ticket, seen) in answers {
            let Some(image) = self.asked.remove(&ticket) else { continue };
            let Some(process) = self.kept.get_mut(&image) else { continue };
            // It may have been requested again, or be another process with the same pid.
            if process.asked != Some(ticket) {
                continue;
            }
            process.asked = None;
            let of_parent = match &seen {
                Ok(seen) if seen.is_overwritten => {
                    environment_of_parent(&self.kept, table, seen, image)
                }
                _ => None,
            };
            let Some(process) = self.kept.get_mut(&image) else { continue };
            match seen {
                // Read again after a reload, and ended by then: what was known holds.
                Ok(seen) if process.readings > 0 && seen.is_nothing() && table.has_ended(image) => {
                }
                Ok(mut seen) => {
                    let before = process.seen.environment.len();
                    // What was read before its title took the place.
                    if seen.is_overwritten && before != 0 {
                        seen.environment.clone_from(&process.seen.environment);
                    } else if let Some(environment) = of_parent {
                        seen.environment = environment;
                    }
                    if !environments.replace(process.owner, before, seen.environment.len()) {
                        seen.environment = Vec::new();
                        seen.not_kept += 1;
                    }
                    self.not_kept += u64::from(seen.not_kept);
                    let is_open = seen.is_bare && !table.has_ended(image);
                    if let (true, Some(wait)) = (is_open, AGAIN.get(process.looks as usize)) {
                        process.looks += 1;
                        process.again = Some(Instant::now() + *wait);
                        self.again.push(image);
                    }
                    process.seen = seen;
                    process.readings += 1;
                }
                Err(Missing::GivenUp) => process.is_given_up = true,
                Err(Missing::Refused) => self.ask_later(image),
            }
        }
    }

    /// Applies completed reads, and requests those that are due.
    pub fn look(&mut self, table: &ProcessTable) {
        self.take_in(table);
        let now = Instant::now();
        for image in std::mem::take(&mut self.again) {
            let Some(process) = self.kept.get_mut(&image) else { continue };
            match process.again {
                Some(due) if due > now => self.again.push(image),
                Some(_) => {
                    process.again = None;
                    self.ask(table, image);
                }
                None => {}
            }
        }
    }

    /// Metadata read after or during an exec belongs to the new image. Of the old one only the
    /// executable is known.
    fn correct(&mut self, table: &ProcessTable, image: ImageId) {
        let Some(process) = self.kept.get_mut(&image) else { return };
        let Some(replaced) = table.image(image).and_then(|image| image.replaced) else { return };
        process.again = None;
        if process.seen.at >= replaced || process.seen.is_bare {
            process.seen = Seen::default();
            process.readings += 1;
        }
    }

    /// Collects pending reads, with a short wait: only processes known afterwards are in the
    /// profiles of this flush.
    pub fn settle(&mut self, table: &ProcessTable) {
        self.reader.settle(SETTLING);
        self.look(table);
    }

    /// Whether all that is to be known of a process was read, or was not for so long that it is
    /// decided without: it may be decided about for good.
    pub fn is_read(&self, image: ImageId) -> bool {
        self.kept.get(&image).is_some_and(|process| {
            let is_open = process.asked.is_some() || process.again.is_some();
            !is_open || process.met.elapsed() >= UNDECIDED
        })
    }

    /// Whether what a process is may be known soon.
    pub fn is_being_read(&self, image: ImageId) -> bool {
        self.kept.get(&image).is_some_and(|process| process.asked.is_some())
    }

    /// How reading goes.
    pub fn readings(&self) -> Figures {
        self.reader.figures()
    }

    /// How many of the sampled processes are still there.
    pub fn living(&self, table: &ProcessTable) -> usize {
        self.kept.keys().filter(|image| !table.has_ended(**image)).count()
    }

    /// Bytes of environments kept.
    pub fn environment_bytes(&self) -> usize {
        self.kept.values().map(|process| process.seen.environment.len()).sum()
    }

    /// Variables dropped for lack of room.
    pub fn not_kept(&self) -> u64 {
        self.not_kept
    }

    pub fn set_most_known(&mut self, most: usize) {
        self.most_known = most;
    }

    /// A process was sampled for the first time: it may be gone soon. The metadata of its earlier
    /// image cannot be read any more.
    pub fn meet(&mut self, table: &ProcessTable, image: ImageId, pid: u32) {
        if self.kept.contains_key(&image) {
            return;
        }
        let process = KeptProcess {
            pid,
            owner: ROOT,
            seen: Seen::default(),
            readings: 0,
            asked: None,
            met: Instant::now(),
            is_given_up: false,
            again: None,
            looks: 0,
            runtime_id: reading::runtime_id(pid).unwrap_or_else(Uuid::new_v4),
            is_go: false,
            has_profile: false,
            is_left_early: false,
            known: HashMap::new(),
        };
        self.kept.insert(image, process);
        self.ask(table, image);
    }

    /// Identities with the sources of their values: at most so many.
    pub fn described(&self, most: usize) -> Described {
        let known = self.kept.values().flat_map(|process| {
            process.known.values().map(move |(_, who)| who.described(process.pid))
        });
        // Names and labels are what processes say: of those with endless ones fewer are shown.
        let mut room = MOST_DESCRIBED;
        let has_room = |one: &Service| {
            room = room.saturating_sub(one.bytes());
            room > 0
        };
        let mut all: Vec<Service> = known.take(most).take_while(has_room).collect();
        if all.is_empty() {
            return self.described_before.clone();
        }
        all.sort_by_key(|one| one.pid);
        let known: usize = self.kept.values().map(|process| process.known.len()).sum();
        Described { not_listed: known.saturating_sub(all.len()), services: all }
    }

    /// Identities are resolved again when they are needed.
    pub fn shed(&mut self) {
        self.described_before = self.described(super::session::MOST_SHOWN);
        for process in self.kept.values_mut() {
            process.known = HashMap::new();
        }
        self.known = 0;
    }

    pub fn retain(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        self.kept.retain(|image, _| is_kept(*image));
        self.known = self.kept.values().map(|process| process.known.len()).sum();
    }

    /// The process is a Go program, by its functions.
    pub fn mark_go(&mut self, image: ImageId) {
        if let Some(process) = self.kept.get_mut(&image) {
            process.is_go = true;
        }
    }

    pub fn has_profile(&self, image: ImageId) -> bool {
        self.kept.get(&image).is_some_and(|process| process.has_profile)
    }

    /// The process has a profile of its own.
    pub fn note_profile(&mut self, image: ImageId) {
        if let Some(process) = self.kept.get_mut(&image) {
            process.has_profile = true;
        }
    }

    /// Whether a runtime may still say in which container a process is; not for ever.
    pub fn awaits_container(
        &self,
        engine: &Engine,
        containers: &dyn Containers,
        image: ImageId,
    ) -> bool {
        let group = engine.groups.known(image);
        let Some(id) = group.and_then(|group| group.container.as_deref()) else { return false };
        let is_early = || {
            let process = self.kept.get(&image);
            process.is_some_and(|process| process.met.elapsed() < UNDECIDED)
        };
        is_unanswered(containers, id) && is_early()
    }

    /// A process is left out, which may be wrong: its container's runtime may not have answered.
    pub fn note_left_out(&mut self, engine: &Engine, containers: &dyn Containers, image: ImageId) {
        let group = engine.groups.known(image);
        let id = group.and_then(|group| group.container.as_deref());
        let is_early = id.is_some_and(|id| is_unanswered(containers, id));
        if let Some(process) = self.kept.get_mut(&image) {
            process.is_left_early = is_early;
        }
    }

    /// Processes that were left out before a runtime had answered for their containers, and of which one
    /// has by now.
    pub fn take_left_early(
        &mut self,
        engine: &Engine,
        containers: &dyn Containers,
    ) -> Vec<ImageId> {
        let left = self.kept.iter_mut().filter(|(_, process)| process.is_left_early);
        let mut answered = Vec::new();
        for (image, process) in left {
            let group = engine.groups.known(*image);
            let id = group.and_then(|group| group.container.as_deref());
            if id.is_none_or(|id| !is_unanswered(containers, id)) {
                process.is_left_early = false;
                answered.push(*image);
            }
        }
        answered
    }

    /// The identity of an AppDomain of a process; 0 for a process with at most one.
    pub fn who(
        &mut self,
        engine: &Engine,
        configuration: &Configuration,
        containers: &dyn Containers,
        image: ImageId,
        domain: u64,
    ) -> Option<Arc<ResolvedProcess>> {
        let process = engine.table.image(image)?;
        let (pid, comm) = (process.pid, process.comm.clone());
        self.meet(&engine.table, image, pid);
        self.correct(&engine.table, image);
        let group = engine.groups.known(image);
        let is_dotnet = engine.managed.standing_of(image).is_some();
        let domains = engine.managed.domains_of(image);
        let record = domains.and_then(|domains| domain_of(domains, domain));
        let (id, container) = group.map_or((None, None), |group| container_of(group, containers));
        let is_believed = group.is_none_or(|group| group.container.as_deref() == id);
        let corrected = group.filter(|_| !is_believed).map(|group| Group {
            container: id.map(str::to_owned),
            user: None,
            ..Group::clone(group)
        });
        let group = corrected.as_ref().or(group.map(|group| &**group));
        let recorded = record.map(|record| {
            (&record.name, &record.service, &record.environment, &record.version, record.runtime_id)
        });
        let version = container.as_ref().map(|known| known.version);
        let process = self.kept.get_mut(&image)?;
        let program = program_of(&engine.table, image).filter(|_| process.seen.exe.is_none());
        let version = (version, is_believed);
        let state = (
            self.generation,
            process.readings,
            &program,
            &comm,
            is_dotnet,
            process.is_go,
            recorded,
            version,
            group.map(|group| (&group.path, &group.container, &group.unit)),
        );
        let state = self.hasher.hash_one(state);
        // Numbers of AppDomains are a process's claim.
        if process.known.len() >= MOST_DOMAINS && !process.known.contains_key(&domain) {
            self.known = self.known.saturating_sub(process.known.len());
            process.known.clear();
        }
        if let Some((known, who)) = process.known.get(&domain)
            && *known == state
        {
            return Some(who.clone());
        }
        // A name that is not the runtime's default is that of the program in the AppDomain.
        let named = record.map(|record| record.name.as_str());
        let named = named.filter(|name| !name.is_empty() && *name != ONLY_DOMAIN);
        let entry = named.or(process.seen.entry_assembly.as_deref()).filter(|_| is_dotnet);
        let facts = Facts {
            application: record.map_or_else(Application::default, |record| Application {
                service: &record.service,
                env: &record.environment,
                version: &record.version,
            }),
            environment: Environment::new(&process.seen.environment),
            entry_assembly: entry,
            group,
            container: container.as_ref().and_then(|facts| facts.container.as_ref()),
            pod: container.as_ref().and_then(|facts| facts.pod.as_ref()),
            exe: process.seen.exe.as_deref().or(program.as_deref()),
            is_exe_of_host: process.seen.is_in_host,
            called: process.seen.called.as_deref(),
            comm: if process.seen.is_kernels { KERNEL } else { &comm },
        };
        let decision = rules::decide(&configuration.rules, &facts);
        let mut identity = identify(&facts, &decision.choice, configuration.types.value);
        // A process may want kinds that this host does not sample.
        identity.types.on = identity.types.on.and(engine.sampled_kinds());
        let runtime_id = match record.map(|record| Uuid::from_bytes(record.runtime_id)) {
            Some(id) if !id.is_nil() => id,
            _ => process.runtime_id,
        };
        let language = match (is_dotnet, process.is_go) {
            (true, _) => Language::DotNet,
            (false, true) => Language::Go,
            (false, false) => Language::Native,
        };
        let host = host_of(configuration);
        let origin = Arc::new(origin(&identity, &facts, host, pid, runtime_id, language));
        let labels = stored_labels(&identity);
        let who = Arc::new(ResolvedProcess { identity, decision, origin, labels });
        match process.known.entry(domain) {
            Entry::Occupied(mut known) => {
                known.insert((state, who.clone()));
            }
            Entry::Vacant(place) if self.known < self.most_known => {
                self.known += 1;
                place.insert((state, who.clone()));
            }
            Entry::Vacant(_) => {}
        }
        Some(who)
    }
}

/// The environment of the process that has forked this one, if both run the same program.
fn environment_of_parent(
    kept: &HashMap<ImageId, KeptProcess>,
    table: &ProcessTable,
    seen: &Seen,
    image: ImageId,
) -> Option<Vec<u8>> {
    let process = table.get(table.image(image)?.pid).filter(|process| process.image == image)?;
    let parent = &kept.get(&table.get(process.parent)?.image)?.seen;
    let is_same = parent.exe.is_some() && parent.exe == seen.exe;
    (is_same && !parent.environment.is_empty()).then(|| parent.environment.clone())
}

/// The host's name: as configured, else its own.
pub fn host_of(configuration: &Configuration) -> &str {
    configuration.host.value.as_deref().unwrap_or(host::name())
}

/// The file that an image was started from, as its first mapping named it.
fn program_of(table: &ProcessTable, image: ImageId) -> Option<String> {
    let program = table.program_of(image)?;
    Some(String::from_utf8_lossy(program.path).into_owned())
}

/// The description that an AppDomain published; the first one's for a process as a whole.
fn domain_of(domains: &HashMap<u64, AppDomainRecord>, domain: u64) -> Option<&AppDomainRecord> {
    domains.get(&domain).or_else(|| domains.values().min_by_key(|record| record.id))
}

#[cfg(test)]
mod tests;
