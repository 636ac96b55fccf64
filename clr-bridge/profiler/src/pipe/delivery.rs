//! What the bridge takes each event for, and what it reports of it.

use strata_bridge_protocol::clr_event::{ClrEvent, kind, wait_bucket};
use strata_bridge_protocol::collection::{Collection, UNKNOWN};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::Loss;

use super::providers::{SAMPLES_ALLOCATIONS, is_of_the_runtime};
use crate::allocations::{self, Allocation};
use crate::events;
use crate::pauses::{Pause, Suspender};
use crate::session::Session;
use crate::tasks;
use crate::text::Text;
use crate::wait_handles::Begun;

/// Numbers of events.
const GC_START: u32 = 1;
const GC_END: u32 = 2;
pub const RESTARTED: u32 = 3;
const SUSPENDS: u32 = 9;
const ALLOCATION_TICK: u32 = 10;
const CONTENTION_START: u32 = 81;
const CONTENTION_STOP: u32 = 91;
const WAIT_HANDLE_START: u32 = 301;
const WAIT_HANDLE_STOP: u32 = 302;
const ALLOCATION_SAMPLED: u32 = 303;

/// Pauses have one budget.
const PAUSES: u64 = 0x7061_7573;
/// Waits of all locks have one budget for each of their durations.
const LOCKS: u64 = 0x6c6f_636b;
/// And those for handles.
const WAIT_HANDLES: u64 = 0x6861_6e64;

/// An event of the runtime's.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    pub id: u32,
    pub version: u32,
    pub data: &'a [u8],
}

/// What the bridge takes an event for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    WaitBegins,
    WaitEnds,
    HandleWaitBegins,
    HandleWaitEnds,
    Tick,
    Sample,
    /// Of a collection, or of nothing.
    Other,
    /// Nothing that is wanted.
    Unwanted,
}

/// Other profilers' sessions have events that this one did not ask for.
fn meaning(event: &Event<'_>, major: u16, wants: impl Fn(u8) -> bool) -> Meaning {
    let wants_allocations = wants(kind::ALLOCATION) || wants(kind::OBJECT);
    let wants_locks = wants(kind::LOCK) || wants(kind::WAIT_HANDLE);
    let is_sampled = major >= SAMPLES_ALLOCATIONS;
    match event.id {
        CONTENTION_START if event.version >= 2 && wants_locks => Meaning::WaitBegins,
        CONTENTION_STOP if event.version >= 1 && wants_locks => Meaning::WaitEnds,
        ALLOCATION_TICK if event.version >= 4 && wants_allocations && !is_sampled => Meaning::Tick,
        ALLOCATION_SAMPLED if wants_allocations && is_sampled => Meaning::Sample,
        WAIT_HANDLE_START if wants(kind::WAIT_HANDLE) => Meaning::HandleWaitBegins,
        WAIT_HANDLE_STOP if wants(kind::WAIT_HANDLE) => Meaning::HandleWaitEnds,
        CONTENTION_START | CONTENTION_STOP | ALLOCATION_TICK | ALLOCATION_SAMPLED
        | WAIT_HANDLE_START | WAIT_HANDLE_STOP => Meaning::Unwanted,
        _ => Meaning::Other,
    }
}

/// An event of the calling thread, which may be in cooperative mode, and which may have suspended
/// all others: nothing here takes a lock that they may hold, or allocates.
pub fn delivered(session: &Session, provider: usize, event: &Event<'_>) {
    let events = session.events();
    let Event { id, version, data } = *event;
    if !session.is_reporting() {
        return;
    }
    // Others of the same level and keywords come too, some within a pause and for each pinned object.
    if !is_used(id) {
        events.repeated.interrupt(tasks::key());
        return;
    }
    if !is_of_the_runtime(session, provider) || events.repeated.is(tasks::key(), id, data) {
        return;
    }
    match meaning(event, session.major(), |kind| events.wants(kind)) {
        Meaning::WaitBegins => wait_begins(session, data),
        Meaning::WaitEnds => wait_ends(session, data),
        Meaning::HandleWaitBegins => handle_wait_begins(session, data),
        Meaning::HandleWaitEnds => handle_wait_ends(session),
        Meaning::Tick => allocated(session, Allocation::of_tick(data)),
        Meaning::Sample => allocated(session, Allocation::of_sample(data)),
        Meaning::Other => collecting(session, id, version, data),
        Meaning::Unwanted => {}
    }
}

fn is_used(id: u32) -> bool {
    let of_collections = matches!(id, GC_START | GC_END | RESTARTED | SUSPENDS);
    let of_allocations = matches!(id, ALLOCATION_TICK | ALLOCATION_SAMPLED);
    let of_waits =
        matches!(id, CONTENTION_START | CONTENTION_STOP | WAIT_HANDLE_START | WAIT_HANDLE_STOP);
    of_collections || of_allocations || of_waits
}

fn allocated(session: &Session, allocation: Option<Allocation<'_>>) {
    match allocation {
        Some(allocation) => allocations::report(session, &allocation),
        None => session.shared().lost(Loss::EventInvalid),
    }
}

/// Suspends, collects, or goes on.
fn collecting(session: &Session, id: u32, version: u32, data: &[u8]) {
    let events = session.events();
    let (pauses, collections) = (&events.pauses, &events.objects.collections);
    let (of_pauses, of_objects) = (events.wants(kind::PAUSE), events.wants(kind::OBJECT));
    match id {
        // Reason, count.
        SUSPENDS if version >= 1 && of_pauses => {
            let Some(reason) = half_word(data, 0) else { return };
            let suspender = || Suspender::named(tasks::own_name());
            pauses.suspends(reason, tasks::own(), monotonic_time(), suspender);
        }
        // Number, generation, reason, type.
        GC_START if version >= 1 => {
            let [number, generation, reason, kind] =
                [0, 4, 8, 12].map(|at| half_word(data, at).unwrap_or(u32::MAX));
            events.forced_collections.starts(generation, reason);
            if of_objects {
                collections.starts(number, monotonic_time());
            }
            if of_pauses {
                let [generation, reason, kind] = [generation, reason, kind]
                    .map(|number| u8::try_from(number).unwrap_or(UNKNOWN));
                pauses.collects(tasks::own(), number, Collection { generation, reason, kind });
            }
        }
        // Number, generation.
        GC_END if version >= 1 => {
            let Some(number) = half_word(data, 0) else { return };
            if of_pauses {
                pauses.collected(number);
            }
            if of_objects && let Some(generation) = half_word(data, 4) {
                collections.ends(number, u8::try_from(generation).unwrap_or_default());
            }
        }
        RESTARTED if of_pauses => {
            if let Some(pause) = pauses.restarted(tasks::own(), monotonic_time()) {
                paused(session, &pause);
            }
        }
        _ => {}
    }
}

/// A pause for a collection is over.
fn paused(session: &Session, pause: &Pause) {
    let weight = session.events().choose_apart(PAUSES);
    if weight == 0 {
        return;
    }
    let mut number = Text::<16>::new();
    if pause.number != 0 {
        number.push_number(pause.number);
    }
    events::report(
        session,
        &ClrEvent {
            kind: kind::PAUSE,
            weight,
            value: pause.nanoseconds.saturating_mul(u64::from(weight)),
            size: pause.collection.pack(),
            message: number.as_str(),
            ..ClrEvent::default()
        },
    );
}

/// A thread finds a lock taken.
fn wait_begins(session: &Session, data: &[u8]) {
    let (events, now) = (session.events(), monotonic_time());
    if events.wants(kind::WAIT_HANDLE) {
        note_begun(session, events.wait_handles.lock_begins(tasks::key(), now));
    }
    if !events.wants(kind::LOCK) {
        return;
    }
    // Flags, instance, lock, object, owner.
    let Some((lock, owner)) = word(data, 3).zip(word(data, 19)) else { return };
    let owner = u32::try_from(owner).unwrap_or_default();
    events.contention.begins(tasks::own(), lock, owner, now);
}

/// A thread has got the lock that it waited for.
fn wait_ends(session: &Session, data: &[u8]) {
    let events = session.events();
    if events.wants(kind::WAIT_HANDLE) {
        events.wait_handles.lock_ends(tasks::key());
    }
    if !events.wants(kind::LOCK) {
        return;
    }
    // Flags, instance, nanoseconds as a double.
    let Some(bits) = word(data, 3) else { return };
    let nanoseconds = f64::from_bits(bits) as u64;
    let wait = events.contention.ends(tasks::own(), monotonic_time());
    let weight = events.choose(LOCKS + wait_bucket(nanoseconds) as u64);
    if weight == 0 {
        return;
    }
    let mut message = Text::<32>::new();
    if let Some(wait) = wait {
        message.push_hexadecimal(wait.lock);
        message.push(":");
        message.push_number(wait.owner);
    }
    events::report(
        session,
        &ClrEvent {
            kind: kind::LOCK,
            weight,
            value: nanoseconds.saturating_mul(u64::from(weight)),
            message: message.as_str(),
            ..ClrEvent::default()
        },
    );
}

/// A thread begins to wait for a handle, or in `Monitor.Wait`.
fn handle_wait_begins(session: &Session, data: &[u8]) {
    // Source, object, instance.
    let Some(source) = data.first() else { return };
    let waits = &session.events().wait_handles;
    note_begun(session, waits.begins(tasks::key(), *source, monotonic_time()));
}

fn note_begun(session: &Session, begun: Begun) {
    if begun != Begun::Kept {
        session.shared().lost(Loss::WaitsCrowded);
    }
}

/// A thread has waited for a handle.
fn handle_wait_ends(session: &Session) {
    let events = session.events();
    let Some(wait) = events.wait_handles.ends(tasks::key(), monotonic_time()) else { return };
    let weight = events.choose(WAIT_HANDLES + wait_bucket(wait.nanoseconds) as u64);
    if weight == 0 {
        return;
    }
    events::report(
        session,
        &ClrEvent {
            kind: kind::WAIT_HANDLE,
            weight,
            value: wait.nanoseconds.saturating_mul(u64::from(weight)),
            size: u64::from(wait.source),
            ..ClrEvent::default()
        },
    );
}

/// Eight bytes of an event's data.
pub fn word(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Four bytes of an event's data.
pub fn half_word(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::clr_event::WAIT_BUCKETS;

    use super::*;
    use crate::sampling::place_of;

    #[test]
    fn events_of_other_sessions_mean_nothing() {
        let of = |id, version, major, wanted: &[u8]| {
            let event = Event { id, version, data: &[] };
            meaning(&event, major, |kind| wanted.contains(&kind))
        };
        let all = [kind::LOCK, kind::ALLOCATION, kind::OBJECT, kind::PAUSE];
        assert_eq!(of(ALLOCATION_TICK, 4, 9, &all), Meaning::Tick);
        assert_eq!(of(ALLOCATION_SAMPLED, 0, 10, &all), Meaning::Sample);
        // Each runtime has one of the two counted.
        assert_eq!(of(ALLOCATION_TICK, 4, 10, &all), Meaning::Unwanted);
        assert_eq!(of(ALLOCATION_SAMPLED, 0, 9, &all), Meaning::Unwanted);
        assert_eq!(of(ALLOCATION_TICK, 3, 9, &all), Meaning::Unwanted);
        for (id, major) in [(ALLOCATION_TICK, 9), (ALLOCATION_SAMPLED, 10)] {
            assert_eq!(of(id, 4, major, &[kind::LOCK, kind::PAUSE]), Meaning::Unwanted);
            assert_ne!(of(id, 4, major, &[kind::OBJECT]), Meaning::Unwanted);
        }
        assert_eq!(of(CONTENTION_STOP, 1, 9, &[kind::LOCK]), Meaning::WaitEnds);
        assert_eq!(of(CONTENTION_START, 2, 9, &[kind::LOCK]), Meaning::WaitBegins);
        assert_eq!(of(CONTENTION_START, 1, 5, &[kind::LOCK]), Meaning::Unwanted);
        assert_eq!(of(CONTENTION_STOP, 1, 9, &[kind::PAUSE]), Meaning::Unwanted);
        assert_eq!(of(CONTENTION_STOP, 1, 9, &[kind::WAIT_HANDLE]), Meaning::WaitEnds);
        assert_eq!(of(GC_START, 2, 9, &[kind::PAUSE]), Meaning::Other);
        for (id, meaning) in [
            (WAIT_HANDLE_START, Meaning::HandleWaitBegins),
            (WAIT_HANDLE_STOP, Meaning::HandleWaitEnds),
        ] {
            assert_eq!(of(id, 0, 9, &[kind::WAIT_HANDLE]), meaning);
            assert_eq!(of(id, 0, 9, &all), Meaning::Unwanted);
        }
    }

    #[test]
    fn every_duration_of_waits_has_a_budget_of_its_own() {
        let of_each =
            |key| (0..WAIT_BUCKETS.len() as u64).map(move |bucket| place_of(key + bucket));
        let places = of_each(LOCKS).chain(of_each(WAIT_HANDLES)).chain([place_of(PAUSES)]);
        let different: std::collections::HashSet<_> = places.collect();
        assert_eq!(different.len(), 2 * WAIT_BUCKETS.len() + 1);
    }

    #[test]
    fn numbers_are_read_where_there_are_enough_bytes() {
        assert_eq!(word(&[1, 0, 0, 0, 0, 0, 0, 0], 0), Some(1));
        assert_eq!(word(&[1, 0, 0, 0, 0, 0, 0, 0], 1), None);
        assert_eq!(half_word(&[1, 0, 0, 0], 0), Some(1));
    }
}
