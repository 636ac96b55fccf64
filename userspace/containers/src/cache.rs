//! A cache of containers' metadata, and of lookups that found none.
//!
//! Pure: the caller knows the time. Invariants: the numbers of entries and bytes are bounded; an
//! entry without metadata is evicted first, then the least recently used; a container is in the
//! queue at most once; metadata stays until it is evicted, because samples of a container arrive
//! after its end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::metadata::Metadata;
use crate::settings::Pace;

struct Entry {
    known: Option<Arc<Metadata>>,
    bytes: usize,
    /// Failed attempts in a row.
    attempts: u32,
    /// All sources have answered that they do not know it.
    is_unknown: bool,
    is_queued: bool,
    /// The earliest next query.
    due: Instant,
    used: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Yes(Arc<Metadata>),
    /// All sources have answered that they do not know it.
    No,
    /// It was looked up, and no source knew it; one of them has failed.
    NoneKnows,
    NotYet,
}

pub(crate) struct Cache {
    pace: Pace,
    entries: HashMap<String, Entry>,
    queue: VecDeque<String>,
    bytes: usize,
    clock: u64,
    forgotten: u64,
}

pub(crate) struct Counts {
    pub known: usize,
    pub unknown: usize,
    pub waiting: usize,
    pub bytes: usize,
    pub forgotten: u64,
}

impl Cache {
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            entries: HashMap::new(),
            queue: VecDeque::new(),
            bytes: 0,
            clock: 0,
            forgotten: 0,
        }
    }

    /// The known metadata, and whether a query was queued.
    pub fn lookup(&mut self, id: &str, now: Instant) -> (Known, bool) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(id) {
            entry.used = self.clock;
            let known = match &entry.known {
                Some(known) => Known::Yes(known.clone()),
                None if entry.is_unknown => Known::No,
                None if entry.attempts > 0 => Known::NoneKnows,
                None => Known::NotYet,
            };
            let ask = !entry.is_queued && now >= entry.due;
            if ask {
                entry.is_queued = true;
                self.queue.push_back(id.to_owned());
            }
            return (known, ask);
        }
        if self.pace.entries == 0 {
            return (Known::No, false);
        }
        while self.entries.len() >= self.pace.entries && self.forget_one(None) {}
        let entry = Entry {
            known: None,
            bytes: 0,
            attempts: 0,
            is_unknown: false,
            is_queued: true,
            due: now,
            used: self.clock,
        };
        self.entries.insert(id.to_owned(), entry);
        self.queue.push_back(id.to_owned());
        (Known::NotYet, true)
    }

    /// The next container to query.
    pub fn take(&mut self) -> Vec<String> {
        let count = self.pace.batch.max(1).min(self.queue.len());
        self.queue.drain(..count).collect()
    }

    /// Stores the result of a query, and whether all sources have answered. An entry evicted meanwhile stays
    /// evicted.
    pub fn answer(&mut self, id: &str, answer: Option<Metadata>, is_whole: bool, now: Instant) {
        self.clock += 1;
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.is_queued = false;
        let Some(mut metadata) = answer else {
            entry.attempts = entry.attempts.saturating_add(1);
            entry.is_unknown |= is_whole;
            entry.due = now + self.pace.retry_after(entry.attempts);
            return;
        };
        let bytes = metadata.size();
        self.bytes = self.bytes.saturating_sub(entry.bytes).saturating_add(bytes);
        entry.attempts = 0;
        entry.is_unknown = false;
        entry.due = now + self.pace.fresh;
        entry.bytes = bytes;
        // The same answer again is the same knowledge.
        let known = entry.known.as_ref().filter(|known| {
            let of = |one: &Metadata| (one.container.clone(), one.pod.clone(), one.owner);
            of(known) == of(&metadata)
        });
        if known.is_none() {
            metadata.revision = usize::try_from(self.clock).unwrap_or_default();
            entry.known = Some(Arc::new(metadata));
        }
        while self.bytes > self.pace.bytes && self.forget_one(Some(id)) {}
    }

    /// Evicts an entry other than `kept`; false if there is none.
    fn forget_one(&mut self, kept: Option<&str>) -> bool {
        let others = self.entries.iter().filter(|(id, _)| Some(id.as_str()) != kept);
        let least = others.min_by_key(|(_, entry)| (entry.known.is_some(), entry.used));
        let Some(id) = least.map(|(id, _)| id.clone()) else { return false };
        if let Some(entry) = self.entries.remove(&id) {
            self.bytes = self.bytes.saturating_sub(entry.bytes);
            if entry.is_queued {
                self.queue.retain(|queued| *queued != id);
            }
        }
        self.forgotten += 1;
        true
    }

    pub fn counts(&self) -> Counts {
        let known = self.entries.values().filter(|entry| entry.known.is_some()).count();
        let unknown = self.entries.values().filter(|entry| entry.known.is_none());
        Counts {
            known,
            unknown: unknown.filter(|entry| entry.attempts > 0).count(),
            waiting: self.queue.len(),
            bytes: self.bytes,
            forgotten: self.forgotten,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strata_metadata::Container;

    use super::*;

    fn named(name: &str) -> Metadata {
        let container = Container { name: Some(name.to_owned()), ..Container::default() };
        Metadata { container, ..Metadata::default() }
    }

    fn name_of(known: &Known) -> Option<&str> {
        match known {
            Known::Yes(metadata) => metadata.container.name.as_deref(),
            _ => None,
        }
    }

    #[test]
    fn a_container_is_asked_for_once_however_often_it_is_looked_up() {
        let (mut cache, now) = (Cache::new(Pace::default()), Instant::now());
        assert_eq!(cache.lookup("a", now), (Known::NotYet, true));
        assert_eq!(cache.lookup("a", now), (Known::NotYet, false));
        assert_eq!(cache.take(), ["a"]);
        // Its query is under way.
        assert_eq!(cache.lookup("a", now), (Known::NotYet, false));
        cache.answer("a", Some(named("web")), true, now);
        let (known, ask) = cache.lookup("a", now);
        assert_eq!((name_of(&known), ask), (Some("web"), false));
    }

    #[test]
    fn an_unknown_container_is_asked_for_less_and_less_often() {
        let pace = Pace::default();
        let (mut cache, mut now) = (Cache::new(pace), Instant::now());
        cache.lookup("a", now);
        let mut waits = Vec::new();
        for _ in 0..9 {
            assert_eq!(cache.take(), ["a"]);
            cache.answer("a", None, true, now);
            let mut waited = Duration::ZERO;
            while !cache.lookup("a", now + waited).1 {
                waited += Duration::from_secs(1);
            }
            now += waited;
            waits.push(waited.as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(cache.lookup("a", now).0, Known::No);
    }

    #[test]
    fn a_container_is_unknown_once_all_sources_have_answered() {
        let (mut cache, now) = (Cache::new(Pace::default()), Instant::now());
        cache.lookup("a", now);
        cache.take();
        cache.answer("a", None, false, now);
        assert_eq!(cache.lookup("a", now).0, Known::NoneKnows, "one of them has failed");
        cache.answer("a", None, true, now);
        assert_eq!(cache.lookup("a", now).0, Known::No);
        cache.answer("a", None, false, now);
        assert_eq!(cache.lookup("a", now).0, Known::No);
    }

    #[test]
    fn what_was_known_stays_known_while_it_is_asked_for_again() {
        let pace = Pace::default();
        let (mut cache, now) = (Cache::new(pace), Instant::now());
        cache.lookup("a", now);
        cache.take();
        cache.answer("a", Some(named("web")), true, now);
        let later = now + pace.fresh;
        let (known, ask) = cache.lookup("a", later);
        assert_eq!((name_of(&known), ask), (Some("web"), true));
        cache.take();
        // Its container is gone, its last samples are not.
        cache.answer("a", None, true, later);
        assert_eq!(name_of(&cache.lookup("a", later).0), Some("web"));
    }

    #[test]
    fn the_revision_changes_with_what_is_known_and_not_without() {
        let pace = Pace { fresh: Duration::ZERO, ..Pace::default() };
        let (mut cache, now) = (Cache::new(pace), Instant::now());
        let mut revisions = Vec::new();
        for name in ["web", "web", "shop"] {
            cache.lookup("a", now);
            cache.take();
            cache.answer("a", Some(named(name)), true, now);
            let Known::Yes(metadata) = cache.lookup("a", now).0 else { panic!("it is known") };
            revisions.push(metadata.revision);
        }
        assert_eq!(revisions[0], revisions[1]);
        assert_ne!(revisions[1], revisions[2]);
    }

    #[test]
    fn unknown_containers_never_push_out_known_ones() {
        let pace = Pace { entries: 8, ..Pace::default() };
        let (mut cache, now) = (Cache::new(pace), Instant::now());
        cache.lookup("known", now);
        cache.take();
        cache.answer("known", Some(named("web")), true, now);
        for number in 0..100 {
            cache.lookup(&format!("unknown{number}"), now);
        }
        assert_eq!(name_of(&cache.lookup("known", now).0), Some("web"));
        let counts = cache.counts();
        assert_eq!((counts.known, counts.waiting, counts.forgotten), (1, 7, 93));
        assert_eq!(cache.take().len(), 7);
    }

    #[test]
    fn there_is_a_bound_on_bytes() {
        let pace = Pace { bytes: 1000, ..Pace::default() };
        let (mut cache, now) = (Cache::new(pace), Instant::now());
        for id in ["a", "b", "c"] {
            cache.lookup(id, now);
            cache.take();
            cache.answer(id, Some(named(&"x".repeat(400))), true, now);
        }
        assert_eq!(cache.counts().bytes, 800);
        assert_eq!(cache.lookup("a", now).0, Known::NotYet);
    }

    #[test]
    fn what_was_forgotten_while_it_was_asked_for_does_not_come_back() {
        let pace = Pace { entries: 1, ..Pace::default() };
        let (mut cache, now) = (Cache::new(pace), Instant::now());
        cache.lookup("a", now);
        cache.take();
        cache.lookup("b", now);
        cache.answer("a", Some(named("web")), true, now);
        assert_eq!((cache.counts().known, cache.counts().bytes), (0, 0));
    }
}
