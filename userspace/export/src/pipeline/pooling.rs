//! Pools many short-lived commands into one service.
//!
//! Each service is a series at Pyroscope, an upload at Datadog and a dictionary in the store, and a
//! host that builds something starts thousands of short-lived programs of no interest. A process
//! identified only by its executable's name belongs to the pool until that name has had a few
//! samples; a host has so many services an hour, and those beyond belong to the pool too, whatever
//! they claim to be. The samples keep their process's name as a label.
//!
//! Invariant: no sample is lost.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_kinds::{Kinds, Shape};
use strata_metadata::Source;
use strata_profile::{Profile, Times};
use strata_store::Head;

use super::FlushedProfile;
use crate::Outgoing;
use crate::origin::{Origin, shared_runtime_id};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// The name of the pool; empty for no pool.
    pub service: String,
    /// A name of an executable is a service of its own from so many samples an hour.
    pub samples: u64,
    /// Services an hour.
    pub services: usize,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self { service: "short-lived".to_owned(), samples: 5, services: 500 }
    }
}

/// What went into the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pooled {
    /// Profiles of processes that are known by their executable's name.
    pub short: u64,
    /// Profiles of services beyond the bound.
    pub over: u64,
}

/// How sure it is that a profile's service is one.
fn strength(profile: &FlushedProfile) -> u8 {
    match profile.named_by {
        Source::Executable | Source::Comm | Source::Nothing => 0,
        Source::Rule => 2,
        _ => 1,
    }
}

/// How long a service is one.
const HOUR: Duration = Duration::from_secs(3600);
/// How long places are kept for the services of the hour before: most have a sample in each flush.
const KEPT: Duration = Duration::from_secs(300);
/// Names whose samples are counted.
const MOST_NAMES: usize = 20_000;

#[derive(Debug)]
pub struct Pooling {
    settings: PoolSettings,
    /// Samples by service in this hour.
    now: HashMap<String, u64>,
    /// Services of this hour, and of the one before, that are not in the pool.
    own: HashSet<String>,
    before: HashSet<String>,
    /// Those of the hour before that have not had a sample in this one.
    absent: usize,
    /// More than those were logged in this hour.
    has_warned: bool,
    since: Instant,
    pub pooled: Pooled,
}

impl Pooling {
    pub fn new(settings: PoolSettings) -> Self {
        Self {
            settings,
            now: HashMap::new(),
            own: HashSet::new(),
            before: HashSet::new(),
            absent: 0,
            has_warned: false,
            since: Instant::now(),
            pooled: Pooled::default(),
        }
    }

    pub fn configure(&mut self, settings: PoolSettings) {
        self.settings = settings;
    }

    /// The profiles of a flush, those of the pool merged.
    pub fn apply(&mut self, flush: Vec<FlushedProfile>, now: Instant) -> Vec<FlushedProfile> {
        if self.settings.service.is_empty() {
            return flush;
        }
        if now.saturating_duration_since(self.since) >= HOUR {
            self.since = now;
            self.now.clear();
            self.before = std::mem::take(&mut self.own);
            self.absent = self.before.len();
            self.has_warned = false;
        }
        // All samples of a name in this flush count for each of its processes.
        // One that a rule or its environment names decides for those of the same name that are only called
        // so.
        let mut services: HashMap<&str, (u64, &FlushedProfile)> = HashMap::new();
        for profile in &flush {
            let found = services.entry(&profile.head.service).or_insert((0, profile));
            found.0 += samples_of(&profile.outgoing.profile);
            if strength(profile) > strength(found.1) {
                found.1 = profile;
            }
        }
        let mut is_own: HashMap<String, Option<bool>> = HashMap::new();
        for profile in &flush {
            let service = profile.head.service.as_str();
            if let Some((samples, named)) = services.remove(service) {
                is_own.insert(service.to_owned(), self.decide(named, samples, now));
            }
        }
        let (mut kept, mut pool) = (Vec::with_capacity(flush.len()), Vec::new());
        for profile in flush {
            let own = is_own.get(&profile.head.service).copied().flatten();
            // A process with an exporter of its own does not count.
            if own == Some(true) || !profile.own_settings.is_empty() {
                kept.push(profile);
                continue;
            }
            match own {
                None => self.pooled.short += 1,
                Some(_) => {
                    self.pooled.over += 1;
                    if !std::mem::replace(&mut self.has_warned, true) {
                        tracing::warn!(
                            service = profile.head.service,
                            "this host has had {} services in this hour: this one and further ones \
                             are in the service {} (services.most)",
                            self.own.len() + self.absent,
                            self.settings.service
                        );
                    }
                }
            }
            pool.push(profile);
        }
        kept.extend(self.merged(&pool));
        kept
    }

    /// Whether a service is one of its own: `None` if it has too few samples, `Some(false)` if there
    /// are too many services.
    fn decide(&mut self, profile: &FlushedProfile, samples: u64, now: Instant) -> Option<bool> {
        let service = &profile.head.service;
        if self.own.contains(service) {
            return Some(true);
        }
        let is_nameless = strength(profile) == 0;
        let least = if is_nameless { self.settings.samples } else { 0 };
        let was_before = self.before.contains(service);
        if self.now.contains_key(service) || self.now.len() < MOST_NAMES {
            *self.now.entry(service.clone()).or_default() += samples;
        }
        // One that was a service in the hour before is one from its first sample.
        let sum = self.now.get(service).copied().unwrap_or(0);
        if sum < least && !was_before {
            return None;
        }
        // A service named by a rule of this host is always kept.
        // Names of executables leave some room for those that were given.
        let most = match is_nameless {
            true => self.settings.services - self.settings.services / 5,
            false => self.settings.services,
        };
        // For a while those of the hour before keep their places, in whatever order samples come.
        let is_kept = now.saturating_duration_since(self.since) < KEPT;
        let has_place = profile.named_by == Source::Rule || (is_kept && was_before);
        let absent = if is_kept { self.absent } else { 0 };
        if self.own.len() + absent >= most && !has_place {
            self.now.remove(service);
            return Some(false);
        }
        self.absent = self.absent.saturating_sub(usize::from(was_before));
        self.own.insert(service.clone());
        Some(true)
    }

    /// One profile of all, if there are any.
    fn merged(&self, pool: &[FlushedProfile]) -> Option<FlushedProfile> {
        let first = pool.first()?;
        let of = &first.outgoing.origin;
        let origin = Arc::new(Origin {
            service: self.settings.service.clone(),
            host: of.host.clone(),
            node: of.node.clone(),
            cores: of.cores,
            architecture: of.architecture.clone(),
            runtime_id: shared_runtime_id(&format!("pool of {}", of.host)),
            ..Origin::default()
        });
        let all = pool.iter().map(|one| &*one.outgoing.profile);
        let profile = strata_profile::merge(all, Times::Dropped)?;
        let head = Head {
            service: origin.service.clone(),
            labels: Vec::new(),
            runtime_id: origin.runtime_id.clone(),
            start_nanos: profile.start_nanos,
            end_nanos: profile.start_nanos.saturating_add(profile.duration_nanos),
            ..Head::default()
        };
        Some(FlushedProfile {
            outgoing: Outgoing { profile: Arc::new(profile), origin },
            head,
            stores_times: false,
            own_settings: Vec::new(),
            named_by: Source::Nothing,
        })
    }
}

/// The samples of a profile that make its service one of its own: those on a CPU, and events. Every
/// process waits, and each wait is a sample: so of waiting, a second of a thread counts as one.
fn samples_of(profile: &Profile) -> u64 {
    let total = |column: usize| u64::try_from(profile.total(column)).unwrap_or(0);
    let (mut counted, mut waited) = (0_u64, 0);
    let kinds = profile.kinds();
    for kind in kinds.iter() {
        let first = profile.first_column_of(kind);
        if kind.info().shape == Shape::Blocked {
            let time = first.and_then(|first| first.checked_add(kind.info().default_column));
            waited = time.map_or(0, total).max(waited);
        } else if let Some(count) = first.and_then(|first| profile.count_of(first)) {
            counted = counted.saturating_add(total(count));
        }
    }
    if kinds == Kinds::NONE {
        return profile.sample_count() as u64;
    }
    counted.saturating_add(waited / 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use strata_kinds::Kind;
    use strata_profile::{FrameKind, ProfileBuilder, StackId};

    use super::*;

    fn profile(service: &str, samples: i64, named_by: Source) -> FlushedProfile {
        let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
        let thread = builder.thread(7, 7, service, service, "");
        let labels = builder.thread_labels(thread);
        builder.add(StackId::default(), labels, &[samples, samples * 1000]);
        let profile = Arc::new(builder.finish());
        let origin = Origin { service: service.to_owned(), ..Origin::default() };
        let head = Head {
            service: service.to_owned(),
            kind: String::new(),
            labels: Vec::new(),
            runtime_id: service.to_owned(),
            start_nanos: 0,
            end_nanos: 1,
        };
        FlushedProfile {
            outgoing: Outgoing { profile, origin: Arc::new(origin) },
            head,
            stores_times: false,
            own_settings: Vec::new(),
            named_by,
        }
    }

    fn services(flush: &[FlushedProfile]) -> Vec<(String, u64)> {
        let mut all: Vec<_> = flush
            .iter()
            .map(|one| (one.head.service.clone(), samples_of(&one.outgoing.profile)))
            .collect();
        all.sort();
        all
    }

    /// A profile of waits: so many samples of so many milliseconds each.
    fn waiting(service: &str, waits: i64, milliseconds: i64) -> FlushedProfile {
        let mut one = profile(service, 0, Source::Executable);
        let mut builder = ProfileBuilder::of_kinds([Kind::Cpu, Kind::OffCpu].into_iter().collect());
        for wait in 0..waits {
            let frame = builder.frame(FrameKind::Native, &format!("f{wait}"), "", "", 0);
            let location = builder.location(0, None, &[frame]);
            let stack = builder.stack(&[location]);
            let labels = builder.labels(&[]);
            builder.add_of(Kind::OffCpu, stack, labels, &[milliseconds * 1_000_000]);
        }
        one.outgoing.profile = Arc::new(builder.finish());
        one
    }

    #[test]
    fn the_many_waits_of_a_short_command_make_no_service_and_a_long_wait_does() {
        let mut pooling = Pooling::new(PoolSettings::default());
        let flush = vec![waiting("gzip", 40, 2), waiting("server", 2, 8_000)];
        let names: Vec<String> =
            pooling.apply(flush, Instant::now()).into_iter().map(|one| one.head.service).collect();
        assert_eq!(names, ["server", "short-lived"]);
    }

    #[test]
    fn names_of_executables_leave_room_for_services_that_were_given_one() {
        let mut pooling = Pooling::new(PoolSettings { services: 10, ..PoolSettings::default() });
        let commands = (0..20).map(|at| profile(&format!("command-{at}"), 9, Source::Executable));
        let flush = commands.chain([profile("shop", 1, Source::SystemdUnit)]).collect();
        let kept = services(&pooling.apply(flush, Instant::now()));
        assert_eq!(kept.len(), 8 + 1 + 1, "{kept:?}");
        assert!(kept.contains(&("shop".to_owned(), 1)));
    }

    #[test]
    fn two_thousand_short_commands_are_one_service_with_all_their_samples_and_names() {
        let mut pooling = Pooling::new(PoolSettings::default());
        let flush: Vec<_> = (0..2000)
            .map(|at| profile(&format!("command-{at}"), 1, Source::Executable))
            .chain([profile("shop", 1, Source::SystemdUnit), profile("make", 9, Source::Comm)])
            .collect();
        let before = flush.len();
        let pooled = pooling.apply(flush, Instant::now());
        println!("profiles of 2,000 short commands: {before} before, {} after", pooled.len());
        assert_eq!(
            services(&pooled),
            [("make".into(), 9), ("shop".into(), 1), ("short-lived".into(), 2000)]
        );
        assert_eq!(pooling.pooled, Pooled { short: 2000, over: 0 });
        let pool = pooled.iter().find(|one| one.head.service == "short-lived").unwrap();
        let profile = &pool.outgoing.profile;
        let names: std::collections::HashSet<&str> = profile
            .samples()
            .flat_map(|sample| profile.labels(sample.labels))
            .filter(|label| profile.string(label.key) == "comm")
            .filter_map(|label| match label.value {
                strata_profile::LabelValue::Text(text) => Some(profile.string(text)),
                strata_profile::LabelValue::Number { .. } => None,
            })
            .collect();
        assert_eq!(names.len(), 2000);
    }

    #[test]
    fn a_rules_service_is_one_beside_a_program_that_is_called_so() {
        let mut pooling = Pooling::new(PoolSettings { services: 0, ..PoolSettings::default() });
        let flush = vec![profile("web", 1, Source::Executable), profile("web", 1, Source::Rule)];
        let pooled = services(&pooling.apply(flush, Instant::now()));
        assert_eq!(pooled, [("web".into(), 1), ("web".into(), 1)]);
    }

    #[test]
    fn a_program_that_is_seen_again_and_again_becomes_a_service_and_stays_one() {
        let mut pooling = Pooling::new(PoolSettings::default());
        let mut now = Instant::now();
        let mut seen = Vec::new();
        for _ in 0..4 {
            let flush = vec![profile("cron", 2, Source::Executable)];
            seen.push(services(&pooling.apply(flush, now)).remove(0).0);
        }
        now += HOUR;
        let flush = vec![profile("cron", 1, Source::Executable)];
        seen.push(services(&pooling.apply(flush, now)).remove(0).0);
        assert_eq!(seen, ["short-lived", "short-lived", "cron", "cron", "cron"]);
    }

    #[test]
    fn services_keep_their_places_when_an_hour_begins_with_a_flood_of_others() {
        let settings = PoolSettings { services: 4, ..PoolSettings::default() };
        let mut pooling = Pooling::new(settings);
        let mut now = Instant::now();
        let lasting = || ["shop", "stock"].map(|name| profile(name, 9, Source::DdService));
        let flood = || (0..9).map(|at| profile(&format!("claim-{at}"), 9, Source::DdService));
        pooling.apply(lasting().into(), now);
        now += HOUR;
        let kept = services(&pooling.apply(flood().chain(lasting()).collect(), now));
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["claim-0", "claim-1", "shop", "short-lived", "stock"]);
        // Places of those that have ended are given to others after a while.
        now += HOUR;
        assert_eq!(services(&pooling.apply(flood().skip(5).collect(), now)).len(), 1);
        assert_eq!(services(&pooling.apply(flood().skip(5).collect(), now + KEPT)).len(), 4);
    }

    #[test]
    fn names_of_executables_keep_their_places_beside_services_that_were_given_one() {
        let settings = PoolSettings { services: 10, ..PoolSettings::default() };
        let mut pooling = Pooling::new(settings);
        let now = Instant::now();
        let commands = || (0..8).map(|at| profile(&format!("command-{at}"), 9, Source::Executable));
        let named = || ["shop", "stock"].map(|name| profile(name, 9, Source::DdService));
        let first = pooling.apply(commands().chain(named()).collect(), now);
        assert_eq!(first.len(), 10);
        let second = pooling.apply(named().into_iter().chain(commands()).collect(), now + HOUR);
        assert_eq!(services(&second), services(&first));
    }

    #[test]
    fn services_beyond_the_bound_are_pooled_whatever_they_claim_but_those_of_rules() {
        let settings = PoolSettings { services: 2, ..PoolSettings::default() };
        let mut pooling = Pooling::new(settings);
        let flush: Vec<_> = (0..5)
            .map(|at| profile(&format!("claim-{at}"), 50, Source::DdService))
            .chain([profile("wanted", 1, Source::Rule)])
            .collect();
        let pooled = services(&pooling.apply(flush, Instant::now()));
        assert_eq!(
            pooled,
            [
                ("claim-0".into(), 50),
                ("claim-1".into(), 50),
                ("short-lived".into(), 150),
                ("wanted".into(), 1)
            ]
        );
        assert_eq!(pooling.pooled, Pooled { short: 0, over: 3 });
    }
}
