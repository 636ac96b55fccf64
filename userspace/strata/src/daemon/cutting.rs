//! A cut: what was sampled since the last one, as a profile for each process and runtime id.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use strata_config::Configuration;
use strata_export::Outgoing;
use strata_export::origin::{Language, Origin};
use strata_export::pipeline::FlushedProfile;
use strata_kinds::Kind;
use strata_store::Head;

use super::clock::Period;
use super::people::{Containers, People, Who, age_of};
use strata_agent::aggregate::{Aggregate, StackId, ThreadId, Tick};
use strata_agent::engine::{Engine, monotonic_nanos};
use strata_agent::processes::table::ImageId;
use strata_symbolize::Shortfalls;
use strata_symbolize::build::{Build, Circumstances};
use strata_symbolize::naming::Naming;

/// What becomes of the samples of a cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub cuts: u64,
    pub profiles: u64,
    pub samples: u64,
    /// Of processes that a rule or their own environment leaves out.
    pub left_out: u64,
    /// Of processes that nobody could say anything of.
    pub nobodys: u64,
    /// Places without a name, of all cuts.
    pub unnamed: u64,
    /// Nanoseconds that cutting took.
    pub nanos: u64,
}

/// What was sampled of one runtime.
#[derive(Default)]
struct Group {
    /// So many samples of a thread in a stack.
    counts: Vec<(ThreadId, StackId, u64)>,
    /// Each sample, where times are kept at all.
    ticks: Vec<Tick>,
}

fn groups_of(aggregate: &Aggregate) -> HashMap<(ImageId, u64), Group> {
    let mut groups: HashMap<(ImageId, u64), Group> = HashMap::new();
    for (thread, stack, count) in aggregate.counts() {
        if let Some(key) = aggregate.thread(thread) {
            let group = groups.entry((key.image, key.domain)).or_default();
            group.counts.push((thread, stack, count));
        }
    }
    for tick in aggregate.timeline().unwrap_or_default() {
        let key = aggregate.thread(tick.thread);
        if let Some(group) = key.and_then(|key| groups.get_mut(&(key.image, key.domain))) {
            group.ticks.push(*tick);
        }
    }
    groups
}

/// Makes cuts, one after the other.
pub struct Cutter {
    pub naming: Naming,
    pub people: People,
    pub tally: Tally,
    /// By the records' clock.
    begun_nanos: u64,
    at: Instant,
}

/// What is still named at a cut: the kernel's record ring holds some seconds of samples, and is
/// emptied meanwhile.
const TURN: Duration = Duration::from_millis(100);

impl Cutter {
    pub fn new(configuration: &Configuration, names: usize, people: usize) -> Self {
        Self {
            naming: Naming::new(names, false),
            people: People::new(configuration, people),
            tally: Tally::default(),
            begun_nanos: monotonic_nanos(),
            at: Instant::now(),
        }
    }

    /// Since the last cut.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Cuts, names, and makes the profiles, which `take` gets some at a time, and is
    /// told how long the flush was with the last: all of a crowded host would be much memory.
    pub fn cut(
        &mut self,
        engine: &mut Engine,
        configuration: &Configuration,
        containers: &dyn Containers,
        beat: &mut dyn FnMut(),
        mut take: impl FnMut(&mut Engine, Vec<FlushedProfile>, Option<Duration>),
    ) {
        let cutting = Instant::now();
        let aggregate = engine.cut();
        let now = Instant::now();
        let Period { started, length } = Period::between(self.at, now, SystemTime::now());
        self.at = now;
        let begun_nanos = std::mem::replace(&mut self.begun_nanos, monotonic_nanos());
        self.tally.cuts += 1;
        let mut shortfalls = Shortfalls::default();
        let mut turned = Instant::now();
        self.naming.name_all(
            engine,
            &aggregate,
            &mut shortfalls,
            Some(PATIENCE),
            |engine, _, _| {
                beat();
                if turned.elapsed() > TURN {
                    engine.turn();
                    turned = Instant::now();
                }
            },
        );
        self.tally.unnamed += shortfalls.unnamed;
        for problem in &shortfalls.problems {
            tracing::debug!("{problem}");
        }
        self.people.settle(&engine.table);
        // What was executed before something was read is known after it.
        engine.turn();
        let mut parcels = Vec::new();
        for ((image, domain), group) in groups_of(&aggregate) {
            beat();
            let samples: u64 = group.counts.iter().map(|(_, _, count)| *count).sum();
            let who = self.people.who(engine, configuration, containers, image, domain);
            let Some(who) = who else {
                self.tally.nobodys += samples;
                continue;
            };
            if !wants_cpu(engine, image, &who) {
                self.tally.left_out += samples;
                self.leave_out(engine, image, &who);
                continue;
            }
            let frequency = engine.rates.of(image);
            let usual = configuration.frequency.value;
            engine.rates.set(image, who.decision.frequency.unwrap_or(usual));
            let circumstances = Circumstances { started, length, frequency };
            let mut build = Build::new(engine, &aggregate, &self.naming, &circumstances);
            for (thread, stack, count) in group.counts {
                build.add(thread, stack, count);
            }
            if who.decision.timestamps.unwrap_or(configuration.store.timestamps.value) {
                build.add_ticks(&group.ticks, begun_nanos);
            }
            let profile = Arc::new(build.finish());
            let head = Head {
                service: who.origin.service.clone(),
                kind: Kind::Cpu.name().to_owned(),
                labels: who.labels.clone(),
                runtime_id: who.origin.runtime_id.clone(),
                start_nanos: profile.start_nanos,
                end_nanos: profile.start_nanos.saturating_add(profile.duration_nanos),
            };
            let mut origin = who.origin.clone();
            if origin.language == Language::Native && Language::of_native(&profile) == Language::Go
            {
                self.people.mark_go(image);
                origin = Arc::new(Origin { language: Language::Go, ..(*origin).clone() });
            }
            self.tally.profiles += 1;
            self.tally.samples += samples;
            if parcels.len() >= AT_ONCE {
                take(engine, std::mem::take(&mut parcels), None);
            }
            let own_settings = who.identity.wishes.clone();
            parcels.push(FlushedProfile {
                outgoing: Outgoing { profile, origin },
                head,
                own_settings,
                named_by: who.identity.service.source,
            });
        }
        take(engine, parcels, Some(length));
        drop(aggregate);
        engine.forget();
        let table = &engine.table;
        self.people.retain(|image| table.image(image).is_some());
        self.naming.forget(|image| table.image(image).is_none());
        self.tally.nanos += u64::try_from(cutting.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }

    /// What nobody wants is not sampled any more, unless another runtime of the process is.
    fn leave_out(&self, engine: &mut Engine, image: ImageId, who: &Who) {
        let only = engine.managed.domains_of(image).is_none_or(|domains| domains.len() < 2);
        let is_known = self.people.is_read(image);
        // `auto` may mean later.
        let for_good = who.decision.choice.enabled == Some(false);
        if let Some(pid) = engine
            .table
            .image(image)
            .map(|image| image.pid)
            .filter(|_| only && for_good && is_known)
        {
            engine.leave_out(pid);
        }
    }
}

/// How long naming one cut may take: what has no name by then is asked for at a later cut.
const PATIENCE: Duration = Duration::from_secs(5);
/// Profiles that are handed over together.
const AT_ONCE: usize = 64;

fn wants_cpu(engine: &Engine, image: ImageId, who: &Who) -> bool {
    let types = &who.identity.types;
    let is_old_enough = || {
        let pid = engine.table.image(image).map(|image| image.pid);
        // Of a process that is gone nobody knows how old it was.
        let age = pid.and_then(age_of).unwrap_or(Duration::ZERO);
        types.from_age.is_zero() || age >= types.from_age
    };
    who.decision.choice.enabled != Some(false) && types.on.contains(Kind::Cpu) && is_old_enough()
}
