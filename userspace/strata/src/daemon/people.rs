//! Who the sampled processes are: what is known of each, read while it is there, and what rules,
//! its environment and its host make of that.
//!
//! Invariant: everything read here belongs to the process. It is bounded, and obeyed only as far
//! as `strata_services` and the rules let it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use serde_json::{Value, json};
use strata_bridge_layout::record::AppDomainRecord;
use strata_config::Configuration;
use strata_config::rules::{self, Decision, Rule};
use strata_services::environment::MAX_BLOCK;
use strata_services::identity::Sourced;
use strata_services::{
    Application, Container, Environment, Facts, Identity, Pod, SampleType, Source, identify,
};
use strata_sinks::origin::{Language, Origin};
use uuid::Uuid;

use crate::engine::Engine;
use crate::processes::table::{ImageId, ProcessTable};
use crate::recording::build::host_name;

/// What is known of containers; `None` while nobody knows.
pub trait Containers {
    fn of(&self, id: &str) -> Option<Known>;
}

/// What orchestrators know of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub container: Option<Container>,
    pub pod: Option<Pod>,
    /// Changes whenever the rest does.
    pub version: usize,
}

/// One runtime of a process: what it is called, and what is done with its samples.
#[derive(Debug)]
pub struct Who {
    pub identity: Identity,
    pub decision: Decision,
    /// Without a sequence.
    pub origin: Arc<Origin>,
    /// Names and values for the store.
    pub labels: Vec<(String, String)>,
}

impl Who {
    /// Every value with where it comes from.
    fn described(&self, pid: u32) -> Value {
        let identity = &self.identity;
        let sourced =
            |value: &str, source: Source| json!({ "value": value, "from": source.name() });
        let maybe = |known: &Option<Sourced>| {
            known.as_ref().map(|known| sourced(&known.value, known.source))
        };
        let labels: serde_json::Map<String, Value> = identity
            .labels
            .iter()
            .map(|label| (label.name.clone(), sourced(&label.value, label.source)))
            .collect();
        let types: Vec<&str> = identity.types.on.iter().map(SampleType::name).collect();
        json!({
            "pid": pid,
            "runtime_id": self.origin.runtime_id,
            "service": sourced(&identity.service.value, identity.service.source),
            "env": maybe(&identity.env),
            "version": maybe(&identity.version),
            "labels": labels,
            "types": types,
            "enabled": self.decision.choice.enabled != Some(false),
            "ignored": identity.ignored,
        })
    }
}

/// What was read of a process when it was first sampled.
#[derive(Debug, Default)]
struct Seen {
    pid: u32,
    /// The variables that somebody understands, as a block.
    environment: Vec<u8>,
    exe: Option<String>,
    /// If it is a .NET process.
    entry_assembly: Option<String>,
    /// A thread of the kernel: there are hundreds, with names that come and go.
    is_kernels: bool,
}

#[derive(Debug)]
struct Person {
    seen: Seen,
    runtime_id: Uuid,
    /// By AppDomain; 0 is the whole process.
    known: HashMap<u64, (u64, Arc<Who>)>,
}

pub struct People {
    persons: HashMap<ImageId, Person>,
    /// Names of variables that rules ask for.
    wanted: Vec<String>,
    /// Changes with the configuration.
    generation: u64,
    hasher: RandomState,
    /// How many are known, of all persons together, and how many may be: who the others are is
    /// worked out whenever it is needed.
    known: usize,
    most_known: usize,
}

/// Bytes of an environment that are kept: more understood variables than these are nobody's.
const MOST_KEPT: usize = 16 << 10;
/// AppDomains of a process that have profiles of their own.
const MOST_DOMAINS: usize = 16;
/// Bytes of a command line that are looked at.
const MAX_COMMAND: u64 = 16 << 10;
/// The service that all threads of the kernel are.
const KERNEL: &str = "kernel";
/// What the runtime calls its only AppDomain.
const ONLY_DOMAIN: &str = "clrhost";

impl People {
    pub fn new(configuration: &Configuration, most_known: usize) -> Self {
        let mut people = Self {
            persons: HashMap::new(),
            wanted: Vec::new(),
            generation: 0,
            hasher: RandomState::new(),
            known: 0,
            most_known,
        };
        people.configure(configuration, &ProcessTable::default());
        people
    }

    /// Rules may say something else now.
    pub fn configure(&mut self, configuration: &Configuration, table: &ProcessTable) {
        self.generation += 1;
        let wanted = wanted_variables(&configuration.rules);
        if wanted != self.wanted {
            self.wanted = wanted;
            for (image, person) in &mut self.persons {
                let pid = person.seen.pid;
                // The number may be another's by now.
                let is_current = table.get(pid).is_some_and(|process| process.image == *image);
                if let Some(environment) =
                    is_current.then(|| read_environment(pid, &self.wanted)).flatten()
                {
                    person.seen.environment = environment;
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.persons.len()
    }

    pub fn set_most_known(&mut self, most: usize) {
        self.most_known = most;
    }

    /// A process was sampled for the first time: it may be gone soon. What it was before it executed
    /// something else has nothing left to be read.
    pub fn meet(&mut self, table: &ProcessTable, image: ImageId, pid: u32) {
        let wanted = &self.wanted;
        let is_current = table.get(pid).is_some_and(|process| process.image == image);
        self.persons.entry(image).or_insert_with(|| Person {
            seen: match is_current {
                true => Seen::read(pid, wanted),
                false => Seen { pid, ..Seen::default() },
            },
            runtime_id: Uuid::new_v4(),
            known: HashMap::new(),
        });
    }

    /// Who they are, and why: at most so many.
    pub fn described(&self, most: usize) -> Vec<Value> {
        let known = self.persons.values().flat_map(|person| {
            person.known.values().map(move |(_, who)| who.described(person.seen.pid))
        });
        let mut all: Vec<Value> = known.take(most).collect();
        all.sort_by_key(|one| one["pid"].as_u64());
        all
    }

    /// Who they are is worked out anew when it is needed.
    pub fn shed(&mut self) {
        for person in self.persons.values_mut() {
            person.known = HashMap::new();
        }
        self.known = 0;
    }

    pub fn retain(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        self.persons.retain(|image, _| is_kept(*image));
        self.known = self.persons.values().map(|person| person.known.len()).sum();
    }

    /// Who an AppDomain of a process is; 0 for one that has no more than one.
    pub fn who(
        &mut self,
        engine: &Engine,
        configuration: &Configuration,
        containers: &dyn Containers,
        image: ImageId,
        domain: u64,
    ) -> Option<Arc<Who>> {
        let process = engine.table.image(image)?;
        let (pid, comm) = (process.pid, process.comm.clone());
        self.meet(&engine.table, image, pid);
        let group = engine.groups.known(image);
        let is_dotnet = engine.managed.standing_of(image).is_some();
        let domains = engine.managed.domains_of(image);
        let record = domains.and_then(|domains| domain_of(domains, domain));
        let container = group.and_then(|group| containers.of(group.container.as_deref()?));
        let said = record.map(|record| {
            (&record.name, &record.service, &record.environment, &record.version, record.runtime_id)
        });
        let version = container.as_ref().map(|known| known.version);
        let state = (self.generation, &comm, is_dotnet, said, version);
        let state = self.hasher.hash_one(state);
        let person = self.persons.get_mut(&image)?;
        // Numbers of AppDomains are a process's claim.
        if person.known.len() >= MOST_DOMAINS && !person.known.contains_key(&domain) {
            self.known = self.known.saturating_sub(person.known.len());
            person.known.clear();
        }
        if let Some((known, who)) = person.known.get(&domain)
            && *known == state
        {
            return Some(who.clone());
        }
        // A name that the runtime did not make up is that of the program in the AppDomain.
        let named = record.map(|record| record.name.as_str());
        let named = named.filter(|name| !name.is_empty() && *name != ONLY_DOMAIN);
        let entry = named.or(person.seen.entry_assembly.as_deref()).filter(|_| is_dotnet);
        let facts = Facts {
            application: record.map_or_else(Application::default, |record| Application {
                service: &record.service,
                env: &record.environment,
                version: &record.version,
            }),
            environment: Environment::new(&person.seen.environment),
            entry_assembly: entry,
            group: group.map(|group| &**group),
            container: container.as_ref().and_then(|facts| facts.container.as_ref()),
            pod: container.as_ref().and_then(|facts| facts.pod.as_ref()),
            exe: person.seen.exe.as_deref(),
            comm: if person.seen.is_kernels { KERNEL } else { &comm },
        };
        let decision = rules::decide(&configuration.rules, &facts);
        let identity = identify(&facts, &decision.choice, configuration.types.value);
        let runtime_id = match record.map(|record| Uuid::from_bytes(record.runtime_id)) {
            Some(id) if !id.is_nil() => id,
            _ => person.runtime_id,
        };
        let language = if is_dotnet { Language::DotNet } else { Language::Native };
        let origin = Arc::new(origin(&identity, &facts, pid, runtime_id, language));
        let labels = stored_labels(&identity);
        let who = Arc::new(Who { identity, decision, origin, labels });
        match person.known.entry(domain) {
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

/// What an AppDomain said of itself; the first one's for a process as a whole.
fn domain_of(domains: &HashMap<u64, AppDomainRecord>, domain: u64) -> Option<&AppDomainRecord> {
    domains.get(&domain).or_else(|| domains.values().min_by_key(|record| record.id))
}

impl Seen {
    fn read(pid: u32, wanted: &[String]) -> Self {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let exe = exe.map(|path| String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned());
        Self {
            pid,
            environment: read_environment(pid, wanted).unwrap_or_default(),
            entry_assembly: entry_assembly(pid, exe.as_deref()),
            is_kernels: exe.is_none() && is_kernels(pid),
            exe,
        }
    }
}

/// Whether it is a thread of the kernel: those have no memory of their own (PF_KTHREAD,
/// include/linux/sched.h, in the ninth field of `stat`).
fn is_kernels(pid: u32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    stat_field(pid, 6).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// A number of `/proc/PID/stat`, counted from the one after the name.
fn stat_field(pid: u32, number: usize) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(after_name + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(number)?.parse().ok()
}

fn wanted_variables(rules: &[Rule]) -> Vec<String> {
    let names = rules.iter().flat_map(|rule| rule.conditions.env.iter());
    let mut names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// The variables of a process that profilers or rules understand.
fn read_environment(pid: u32, wanted: &[String]) -> Option<Vec<u8>> {
    let mut block = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(MAX_BLOCK as u64 + 1).read_to_end(&mut block).ok()?;
    let mut kept = Vec::new();
    for (name, value) in Environment::new(&block).variables() {
        let understood = name.starts_with(b"DD_")
            || name.starts_with(b"OTEL_")
            || name.starts_with(b"PYROSCOPE_")
            || wanted.iter().any(|wanted| wanted.as_bytes() == name);
        let most = MOST_KEPT.saturating_sub(kept.len());
        if understood && name.len() + value.len() + 2 <= most {
            kept.extend_from_slice(name);
            kept.push(b'=');
            kept.extend_from_slice(value);
            kept.push(0);
        }
    }
    kept.shrink_to_fit();
    Some(kept)
}

/// The assembly that a .NET process was started with: the first argument of its host that is one,
/// else the program itself.
fn entry_assembly(pid: u32, exe: Option<&str>) -> Option<String> {
    let exe = exe?.trim_end_matches(" (deleted)");
    let name = exe.rsplit('/').next()?;
    if name != "dotnet" && name != "corerun" {
        return Some(name.to_owned());
    }
    let mut command = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(MAX_COMMAND).read_to_end(&mut command).ok()?;
    let mut arguments = command.split(|byte| *byte == 0).skip(1);
    let assembly =
        arguments.find(|argument| argument.ends_with(b".dll") || argument.ends_with(b".exe"))?;
    Some(String::from_utf8_lossy(assembly).into_owned())
}

/// Facts that have a place of their own among those of an origin.
const OWN_PLACES: [&str; 5] = ["container_id", "container_name", "container", "namespace", "pod"];

fn origin(
    identity: &Identity,
    facts: &Facts<'_>,
    pid: u32,
    runtime_id: Uuid,
    language: Language,
) -> Origin {
    let value = |sourced: &Option<Sourced>| {
        sourced.as_ref().map(|sourced| sourced.value.clone()).unwrap_or_default()
    };
    let label = |name: &str| {
        let found = identity.labels.iter().find(|label| label.name == name);
        found.map(|label| label.value.clone())
    };
    let variable = |name: &str| {
        let value = facts.environment.get(name).map(String::from_utf8_lossy);
        value.and_then(|value| strata_services::text::value(&value, 512)).map(|(value, _)| value)
    };
    let git = |names: [&str; 2], name: &str| {
        names.into_iter().find_map(label).or_else(|| variable(name)).unwrap_or_default()
    };
    let others = identity.labels.iter().filter(|label| !OWN_PLACES.contains(&label.name.as_str()));
    Origin {
        service: identity.service.value.clone(),
        env: value(&identity.env),
        version: value(&identity.version),
        host: host_name().to_owned(),
        pid: Some(pid),
        runtime_id: runtime_id.to_string(),
        language,
        runtime_version: String::new(),
        container_id: label("container_id").unwrap_or_default(),
        container_name: label("container").or_else(|| label("container_name")).unwrap_or_default(),
        pod: label("pod").unwrap_or_default(),
        namespace: label("namespace").unwrap_or_default(),
        node: String::new(),
        git_repository: git(["git.repository_url", "service_repository"], "DD_GIT_REPOSITORY_URL"),
        git_commit: git(["git.commit.sha", "service_git_ref"], "DD_GIT_COMMIT_SHA"),
        cores: std::thread::available_parallelism()
            .ok()
            .and_then(|cores| cores.get().try_into().ok()),
        architecture: std::env::consts::ARCH.to_owned(),
        sequence: 0,
        labels: others.map(|label| (label.name.clone(), label.value.clone())).collect(),
    }
}

fn stored_labels(identity: &Identity) -> Vec<(String, String)> {
    let mut labels: Vec<(String, String)> =
        identity.labels.iter().map(|label| (label.name.clone(), label.value.clone())).collect();
    for (name, sourced) in [("env", &identity.env), ("version", &identity.version)] {
        if let Some(sourced) = sourced {
            labels.push((name.to_owned(), sourced.value.clone()));
        }
    }
    labels
}

/// How old a process is; `None` when it is gone.
pub fn age_of(pid: u32) -> Option<std::time::Duration> {
    let started = stat_field(pid, 19)?;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result; neither call has other preconditions.
    let ticks = unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now);
        libc::sysconf(libc::_SC_CLK_TCK)
    };
    let ticks = u64::try_from(ticks).unwrap_or(100).max(1);
    let now = u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + now.tv_nsec as u64 / 1_000_000;
    let started = started.saturating_mul(1000) / ticks;
    Some(std::time::Duration::from_millis(now.saturating_sub(started)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_young_and_not_the_kernels() {
        let pid = std::process::id();
        assert!(!is_kernels(pid));
        assert!(age_of(pid).expect("it is there") < std::time::Duration::from_secs(3600));
        let threads: Vec<u32> = (2..20).filter(|pid| is_kernels(*pid)).collect();
        println!("threads of the kernel: {threads:?}");
        assert_eq!(age_of(u32::MAX), None);
    }
}
