//! A flush: turns the samples since the last one into a profile for each process and runtime id.
//!
//! [`short_processes`]: processes that have ended by their first flush share one where they are alike.

mod short_processes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use strata_config::Configuration;
use strata_export::Outgoing;
use strata_export::origin::{Language, Origin};
use strata_export::pipeline::{FlushedProfile, Pipeline};
use strata_kinds::Kinds;
use strata_store::{Head, LateFrame};

use super::clock::Period;
use super::process_metadata::{Containers, ProcessMetadata, ResolvedProcess, age_of};
use super::runtimes::Runtimes;
use super::settings::exports_times;
use short_processes::{Alike, ShortProcesses, Treatment, is_short};
use strata_agent::aggregate::{Aggregate, Row, Tick};
use strata_agent::engine::{Engine, monotonic_nanos};
use strata_agent::image_id::ImageId;
use strata_symbolize::build::{Build, Circumstances};
use strata_symbolize::late::LateSymbol;
use strata_symbolize::symbolizer::{Options, Symbolizer};
use strata_symbolize::{ModuleInfo, NamedFrame};

/// Counts of the samples of a flush, by outcome.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub flushes: u64,
    pub profiles: u64,
    pub samples: u64,
    /// Of processes that a rule or their own environment leaves out.
    pub left_out: u64,
    /// Of processes that exited before their metadata was read.
    pub unattributed: u64,
    /// Code addresses without a symbol, of all flushes.
    pub unnamed: u64,
    /// Those of them whose files answered too late.
    pub late: u64,
    /// Files whose debug information took too much memory.
    pub without_lines: u64,
    /// Nanoseconds that the loop was busy with flushes.
    pub nanos: u64,
}

/// The samples of one runtime.
#[derive(Default)]
struct Group {
    /// Of all kinds.
    rows: Vec<Row>,
    /// Each sample, where times are kept at all.
    ticks: Vec<Tick>,
}

impl Group {
    /// How many samples of these kinds there are.
    fn samples(&self, kinds: Kinds) -> u64 {
        self.rows.iter().filter(|row| kinds.contains(row.kind)).map(|row| row.samples).sum()
    }

    fn kinds(&self) -> Kinds {
        self.rows.iter().map(|row| row.kind).collect()
    }
}

fn groups_of(aggregate: &Aggregate) -> HashMap<(ImageId, u64), Group> {
    let mut groups: HashMap<(ImageId, u64), Group> = HashMap::new();
    for row in aggregate.rows() {
        if let Some(key) = aggregate.thread(row.thread) {
            groups.entry((key.image, key.domain)).or_default().rows.push(row);
        }
    }
    for tick in aggregate.ticks() {
        let key = aggregate.thread(tick.thread);
        if let Some(group) = key.and_then(|key| groups.get_mut(&(key.image, key.domain))) {
            group.ticks.push(tick);
        }
    }
    groups
}

/// The samples of a period, while they are symbolized and built.
struct Flush {
    aggregate: Aggregate,
    /// Of runtimes whose profiles are not built yet.
    groups: HashMap<(ImageId, u64), Group>,
    /// Those of processes that may share a profile.
    short: ShortProcesses,
    started: SystemTime,
    length: Duration,
    /// By the records' clock.
    begun_nanos: u64,
}

/// Flushes, one after the other: a period's samples are symbolized without waiting, and each
/// process's profile is built as soon as nothing of it is awaited.
pub struct Flusher {
    pub symbolizer: Symbolizer,
    pub processes: ProcessMetadata,
    pub tally: Tally,
    /// By the records' clock.
    begun_nanos: u64,
    at: Instant,
    flush: Option<Flush>,
    /// The last process that was decided about again.
    reviewed: ImageId,
}

impl Flusher {
    /// `wake` is called when symbols have arrived.
    pub fn start(
        configuration: &Configuration,
        symbols: usize,
        processes: usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        Ok(Self {
            symbolizer: Symbolizer::start(Options::often(symbols), wake)?,
            processes: ProcessMetadata::new(configuration, processes),
            tally: Tally::default(),
            begun_nanos: monotonic_nanos(),
            at: Instant::now(),
            flush: None,
            reviewed: ImageId(0),
        })
    }

    /// Since the last flush began.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Whether there is a flush that has not ended.
    pub fn is_flushing(&self) -> bool {
        self.flush.is_some()
    }

    /// When a flush ends in any case.
    pub fn ends(&self) -> Option<Instant> {
        self.symbolizer.ends()
    }

    /// Begins a flush. One that is under way must have ended.
    pub fn begin(&mut self, engine: &mut Engine, runtimes: &Runtimes) {
        let begun = Instant::now();
        let mut aggregate = engine.take_aggregate();
        let Period { started, length } = Period::between(self.at, begun, SystemTime::now());
        self.at = begun;
        let begun_nanos = std::mem::replace(&mut self.begun_nanos, monotonic_nanos());
        self.tally.flushes += 1;
        self.symbolizer.begin(engine, &aggregate);
        // Of those met by the turn that the flush began with, too.
        self.meet_newcomers(engine, runtimes);
        self.processes.settle(&engine.table);
        // What was executed before something was read is known after it.
        engine.turn();
        let groups = groups_of(&aggregate);
        // Half of its memory, while the profiles take most.
        aggregate.keep_what_is_referred_to();
        let short = ShortProcesses::default();
        self.flush = Some(Flush { aggregate, groups, short, started, length, begun_nanos });
        self.note_time(begun);
    }

    /// Requests the metadata of processes that were sampled for the first time: they may have exited
    /// by the time their samples are flushed.
    pub fn meet_newcomers(&mut self, engine: &mut Engine, runtimes: &Runtimes) {
        self.processes.look(&engine.table);
        let Some(newcomers) = &mut engine.newcomers else { return };
        for (image, pid) in newcomers.drain(..) {
            self.processes.meet(&engine.table, image, pid);
            let group = engine.groups.known(image);
            if let Some(id) = group.and_then(|group| group.container.as_deref()) {
                runtimes.prepare(id);
            }
        }
    }

    fn note_time(&mut self, since: Instant) {
        let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.tally.nanos = self.tally.nanos.saturating_add(nanos);
    }

    /// Builds the profiles whose symbols have arrived, as far as the pipeline has room for them, or
    /// all of them at once. They are passed on in parts: all of a crowded host would take much
    /// memory. True when the flush has ended.
    pub fn go_on(
        &mut self,
        engine: &mut Engine,
        configuration: &Configuration,
        containers: &dyn Containers,
        pipeline: &mut Pipeline,
        at_once: bool,
    ) -> bool {
        self.symbolizer.collect();
        let has_room = |pipeline: &Pipeline| {
            at_once || (!pipeline.is_full() && pipeline.waiting() < MOST_WAITING)
        };
        if self.flush.is_some() && !has_room(pipeline) {
            return false;
        }
        let Some(mut flush) = self.flush.take() else { return true };
        let begun = Instant::now();
        let waits = self.at.elapsed() < IDENTITIES;
        let mut images = flush.groups.keys().map(|(image, _)| *image);
        let is_identified = !waits || !images.any(|image| self.processes.is_being_read(image));
        let is_settled = at_once || self.symbolizer.is_settled() && is_identified;
        let ready: Vec<(ImageId, u64)> = flush
            .groups
            .iter()
            .filter(|((image, _), group)| {
                let is_unread = waits && self.processes.is_being_read(*image);
                is_settled || !is_unread && self.is_ready(&flush.aggregate, *image, group)
            })
            .map(|(key, _)| *key)
            .collect();
        let mut ready = ready.into_iter();
        let (mut profiles, mut bytes) = (Vec::new(), 0);
        while !profiles.is_empty() || has_room(pipeline) {
            let alike = match ready.next() {
                Some(key) => self.next(engine, configuration, containers, &mut flush, key),
                None if flush.groups.is_empty() && !flush.short.is_empty() => flush.short.take(),
                None => break,
            };
            let Some(alike) = alike else { continue };
            let built = self.build(engine, configuration, &flush, alike);
            bytes += built.memory();
            profiles.push(built);
            if profiles.len() >= AT_ONCE || bytes >= pipeline.most_bytes_at_once() {
                pipeline.publish(std::mem::take(&mut profiles), None);
                bytes = 0;
            }
        }
        let ends = is_settled && flush.groups.is_empty() && flush.short.is_empty();
        if ends || !profiles.is_empty() {
            pipeline.publish(profiles, ends.then_some(flush.length));
        }
        if ends {
            self.review_kinds(engine, configuration, containers);
            self.review_left_out(engine, configuration, containers);
            self.name_late(pipeline);
            self.end(engine, &flush.aggregate);
        } else {
            self.flush = Some(flush);
        }
        self.note_time(begun);
        ends
    }

    /// Whether no symbol of a runtime's samples is awaited.
    fn is_ready(&self, aggregate: &Aggregate, image: ImageId, group: &Group) -> bool {
        let is_awaited = |number: &u32| {
            let place = aggregate.code_address(*number as usize);
            place.is_some_and(|place| self.symbolizer.awaits(place))
        };
        !self.symbolizer.awaits_related(image)
            && !group.rows.iter().any(|row| aggregate.stack_of(row.stack).iter().any(is_awaited))
    }

    /// Passes on symbols that came after their flush, unless earlier ones still wait.
    fn name_late(&mut self, pipeline: &mut Pipeline) {
        if pipeline.is_naming() {
            return;
        }
        let mut texts = ModuleTexts::default();
        let late = self.symbolizer.take_late().into_iter();
        let symbols: Vec<_> = late.map(|symbol| late_symbol(symbol, &mut texts)).collect();
        if !symbols.is_empty() {
            pipeline.name_late(symbols);
        }
    }

    fn end(&mut self, engine: &mut Engine, aggregate: &Aggregate) {
        let shortfalls = self.symbolizer.end(aggregate);
        self.tally.unnamed += shortfalls.unnamed;
        self.tally.late += shortfalls.late;
        self.tally.without_lines += shortfalls.without_lines;
        for problem in &shortfalls.problems {
            tracing::debug!("{problem}");
        }
        engine.forget();
        let table = &engine.table;
        self.processes.retain(|image| table.image(image).is_some());
        self.symbolizer.forget(|image| table.image(image).is_none());
    }

    /// The samples of one runtime, if they are wanted and have a profile now: those of a short process
    /// wait for others like it.
    fn next(
        &mut self,
        engine: &mut Engine,
        configuration: &Configuration,
        containers: &dyn Containers,
        flush: &mut Flush,
        (image, domain): (ImageId, u64),
    ) -> Option<Alike> {
        let group = flush.groups.remove(&(image, domain))?;
        let sampled = group.kinds();
        let who = self.processes.who(engine, configuration, containers, image, domain);
        let Some(who) = who else {
            self.tally.unattributed += group.samples(sampled);
            return None;
        };
        self.publish_kinds(engine, containers, image, &who);
        let kinds = wanted_kinds(engine, image, &who);
        self.tally.left_out += group.samples(sampled) - group.samples(kinds);
        if sampled.and(kinds).is_empty() {
            self.leave_out(engine, containers, image, &who);
            return None;
        }
        let frequencies = engine.rates.all_of(image);
        let usual = configuration.frequencies();
        for kind in Kinds::all().iter() {
            let wanted = who.decision.frequency(kind).unwrap_or(usual.of(kind));
            engine.rates.set(kind, image, wanted);
        }
        let stores_times = who.decision.timestamps.unwrap_or(configuration.store.timestamps.value);
        let treatment = Treatment { kinds, frequencies, stores_times };
        if domain == 0 && !self.processes.has_profile(image) && is_short(engine, flush, image) {
            return flush.short.add(image, who, treatment, group);
        }
        self.processes.note_profile(image);
        Some(Alike::one(image, who, treatment, group))
    }

    /// The profile of one runtime, or of processes that are alike.
    fn build(
        &mut self,
        engine: &Engine,
        configuration: &Configuration,
        flush: &Flush,
        alike: Alike,
    ) -> FlushedProfile {
        let mut origin = alike.origin();
        let Alike { image, who, treatment, group, .. } = alike;
        let Treatment { frequencies, stores_times, .. } = treatment;
        let kinds = group.kinds().and(treatment.kinds);
        self.tally.profiles += 1;
        self.tally.samples += group.samples(kinds);
        let Flush { started, length, begun_nanos, ref aggregate, .. } = *flush;
        let host = super::process_metadata::host_of(configuration).to_owned();
        let circumstances = Circumstances { started, length, frequencies, kinds, host };
        let mut build = Build::new(
            (&engine.table, &engine.groups),
            aggregate,
            self.symbolizer.symbols(),
            &circumstances,
        );
        for row in group.rows.iter().filter(|row| kinds.contains(row.kind)) {
            build.add(row);
        }
        if stores_times || exports_times(configuration) {
            let ticks = group.ticks.into_iter().filter(|tick| kinds.contains(tick.kind));
            build.add_ticks(ticks, begun_nanos);
        }
        let late = build.take_late();
        let profile = Arc::new(build.finish());
        let end_nanos = profile.start_nanos.saturating_add(profile.duration_nanos);
        self.symbolizer.note_late(image, &late, end_nanos);
        let head = Head {
            service: origin.service.clone(),
            labels: who.labels.clone(),
            runtime_id: origin.runtime_id.clone(),
            start_nanos: profile.start_nanos,
            end_nanos,
            ..Head::default()
        };
        if origin.language == Language::Native && Language::of_native(&profile) == Language::Go {
            self.processes.mark_go(image);
            origin = Arc::new(Origin { language: Language::Go, ..(*origin).clone() });
        }
        FlushedProfile {
            outgoing: Outgoing { profile, origin },
            head,
            stores_times,
            own_settings: who.identity.wishes.clone(),
            named_by: who.identity.service.source,
        }
    }

    /// A process without enabled kinds is not sampled any more, unless another runtime in it is.
    fn leave_out(
        &mut self,
        engine: &mut Engine,
        containers: &dyn Containers,
        image: ImageId,
        who: &ResolvedProcess,
    ) {
        // `auto` may mean later.
        let for_good = who.decision.choice.enabled == Some(false);
        // Samples of the program before may be flushed when its process runs another one.
        let is_decided = for_good && self.is_decided(engine, containers, image);
        if let Some(pid) = engine.pid_of(image).filter(|_| is_decided) {
            engine.leave_out(pid);
            self.processes.note_left_out(engine, containers, image);
        }
    }

    /// A runtime that was down may be there again: what it knows of a container may decide otherwise.
    fn review_left_out(
        &mut self,
        engine: &mut Engine,
        configuration: &Configuration,
        containers: &dyn Containers,
    ) {
        for image in self.processes.take_left_early(engine, containers) {
            let who = self.processes.who(engine, configuration, containers, image, 0);
            let is_wanted = who.is_some_and(|who| who.decision.choice.enabled != Some(false));
            if let Some(pid) = engine.pid_of(image).filter(|_| is_wanted) {
                engine.take_in(pid);
            }
        }
    }

    /// Whether what is known of a process decides for all of it.
    fn is_decided(&self, engine: &Engine, containers: &dyn Containers, image: ImageId) -> bool {
        let is_only = engine.managed.domains_of(image).is_none_or(|domains| domains.len() < 2);
        is_only
            && self.processes.is_read(image)
            && !self.processes.awaits_container(engine, containers, image)
    }

    /// Which elapsed time of a process is worth its cost. Its age has no say: it grows.
    fn publish_kinds(
        &self,
        engine: &mut Engine,
        containers: &dyn Containers,
        image: ImageId,
        who: &ResolvedProcess,
    ) {
        let is_decided = self.is_decided(engine, containers, image);
        engine
            .set_wanted_kinds(image, if is_decided { who.identity.types.on } else { Kinds::all() });
    }

    /// Decides again about processes of which some elapsed time is not taken: what is known of them may have
    /// changed, and they may have no samples. A part of them at each flush.
    fn review_kinds(
        &mut self,
        engine: &mut Engine,
        configuration: &Configuration,
        containers: &dyn Containers,
    ) {
        let mut images = engine.unwanted_images();
        images.sort_unstable();
        let first = images.partition_point(|image| *image <= self.reviewed);
        let next = images.get(first..).unwrap_or_default();
        self.reviewed = ImageId(0);
        for &image in next.iter().take(MOST_REVIEWED) {
            self.reviewed = image;
            if let Some(who) = self.processes.who(engine, configuration, containers, image, 0) {
                self.publish_kinds(engine, containers, image, &who);
            }
        }
        if next.len() <= MOST_REVIEWED {
            self.reviewed = ImageId(0);
        }
    }
}

/// Path and build id of each module, which its symbols share: a process determines how long they are.
#[derive(Default)]
struct ModuleTexts(HashMap<*const ModuleInfo, SharedTexts>);

struct SharedTexts {
    /// Kept, so that no other module comes to lie where it does.
    _module: Option<Arc<ModuleInfo>>,
    path: Arc<str>,
    build_id: Arc<str>,
}

impl ModuleTexts {
    fn of(&mut self, module: Option<Arc<ModuleInfo>>) -> &SharedTexts {
        let at = module.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
        self.0.entry(at).or_insert_with(|| {
            let text = |text: fn(&ModuleInfo) -> &str| module.as_deref().map_or("", text).into();
            let (path, build_id) = (text(|module| &module.path), text(|module| &module.build_id));
            SharedTexts { _module: module, path, build_id }
        })
    }
}

/// A late symbol in the store's terms.
fn late_symbol(late: LateSymbol, texts: &mut ModuleTexts) -> strata_store::LateSymbol {
    let LateSymbol { key, last_nanos, module, frames } = late;
    let SharedTexts { path, build_id, .. } = texts.of(module);
    let (path, build_id) = (path.clone(), build_id.clone());
    let frames = frames.into_iter().map(|frame| {
        let NamedFrame { kind, name, system_name, file, line } = frame;
        LateFrame { kind, name, system_name, file, line }
    });
    strata_store::LateSymbol { key, path, build_id, frames: frames.collect(), last_nanos }
}

/// Processes that are decided about again at a flush.
const MOST_REVIEWED: usize = 500;
/// Profiles that are passed on together.
const AT_ONCE: usize = 64;
/// How long a process's profile waits for what it is: it has another name without.
const IDENTITIES: Duration = Duration::from_secs(3);
/// Profiles that wait for the pipeline. Of small ones, what they are from takes more than themselves,
/// and they are built faster than they can be stored and sent.
const MOST_WAITING: usize = 256;

/// The kinds of a process's samples that its rules, its environment and its age let through.
fn wanted_kinds(engine: &Engine, image: ImageId, who: &ResolvedProcess) -> Kinds {
    let types = &who.identity.types;
    let is_old_enough = || {
        if types.from_age.is_zero() {
            return true;
        }
        let pid = engine.table.image(image).map(|image| image.pid);
        // The age of a process that has exited is unknown.
        let age = pid.and_then(age_of).unwrap_or(Duration::ZERO);
        age >= types.from_age
    };
    let is_on = who.decision.choice.enabled != Some(false) && is_old_enough();
    if is_on { types.on } else { Kinds::NONE }
}
