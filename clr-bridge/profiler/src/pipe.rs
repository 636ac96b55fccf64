//! The runtime's own events (EventPipe) inside the process: waits for locks, allocations, objects and
//! collections from .NET 5 on, waits for handles from .NET 9 on.
//!
//! A session makes the runtime call `EventPipeEventDelivered` on the thread that an event is of. It
//! is opened and closed on a thread that exists only for that: `EventPipeStartSession` turns its
//! caller into a thread of the runtime's, which may not ask about addresses any more. The first one
//! takes up to 120 ms.
//!
//! One session has all events, until those of allocations are to be switched off for a while
//! ([`crate::duty_cycle`]): then they have one of their own, and the others go on in theirs.
//!
//! *The program's end.* A change of a session calls the program's event sources, managed code, on the
//! thread that changes it. The end of a program disposes of them, and up to .NET 8 without waiting for
//! such a call, which then meets nothing and ends the program with a null reference
//! (dotnet/runtime#80666). So there a session of its own, [`Part::End`], is open from the first change to
//! the last. It has two events of the thread that ends the program, before anything is disposed of:
//! 1. `AppDomainUnload` (`ETW::EnumerationLog::ProcessShutdown`). From here on there are no changes. The
//!    thread is in cooperative mode and holds the runtime's lock of its domains, so it waits for the change
//!    under way for milliseconds only ([`ENDING`]), and takes no lock.
//! 2. `ProcessInfo`, as the runtime closes each session (`ep_shutdown`), in preemptive mode: a collection
//!    that the change waits for goes on. It holds the lock of sessions, which the change may still need:
//!    so this wait ends, too ([`CLOSING`]).
//!
//! The opening and the closing of that session itself are not guarded, but for an end that begins while it
//! is open.
//!
//! **Invariant:** a session is closed before the bridge is detached: one that is left open would
//! deliver into the next attach, before its state exists.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use strata_bridge_protocol::clr_event::{ClrEvent, kind, wait_bucket};
use strata_bridge_protocol::collection::{Collection, UNKNOWN};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::{Count, Loss};

use crate::allocations::{self, Allocation};
use crate::com::info::Provider;
use crate::events::{self, Events};
use crate::faults::{self, Call};
use crate::pauses::Pause;
use crate::session::Session;
use crate::text::Text;
use crate::wait_handles::Begun;
use crate::{own_thread, tasks};

/// The first `ICorProfilerInfo` with sessions.
pub const SINCE: u32 = 12;

/// Keywords and levels of Microsoft-Windows-DotNETRuntime (src/coreclr/vm/ClrEtwAll.man).
const CONTENTION: u64 = 0x4000;
const GC: u64 = 0x1;
const WAIT_HANDLE: u64 = 0x400_0000_0000;
const ALLOCATION_SAMPLING: u64 = 0x800_0000_0000;
/// What is loaded, and at the program's end what then ends.
const LOADER: u64 = 0x8;
const INFORMATIONAL: u32 = 4;
const VERBOSE: u32 = 5;

/// Numbers of events.
const GC_START: u32 = 1;
const GC_END: u32 = 2;
const RESTARTED: u32 = 3;
const SUSPENDS: u32 = 9;
const ALLOCATION_TICK: u32 = 10;
const CONTENTION_START: u32 = 81;
const CONTENTION_STOP: u32 = 91;
const APP_DOMAIN_UNLOAD: u32 = 157;
/// Of the provider [`ABOUT_SESSIONS`].
const PROCESS_INFO: u32 = 1;
const WAIT_HANDLE_START: u32 = 301;
const WAIT_HANDLE_STOP: u32 = 302;
const ALLOCATION_SAMPLED: u32 = 303;

/// The first version whose event sources wait for calls when they are disposed of.
const DISPOSES_WELL: u16 = 9;
/// The first version whose allocations are sampled by chance.
const SAMPLES_ALLOCATIONS: u16 = 10;
/// The provider's name, with a NUL.
const NAME: [u16; 32] = utf16(b"Microsoft-Windows-DotNETRuntime\0");
/// The provider of what sessions say about themselves, which each of them has.
const ABOUT_SESSIONS: [u16; 31] = utf16(b"Microsoft-DotNETCore-EventPipe\0");

const fn utf16<const LENGTH: usize>(text: &[u8; LENGTH]) -> [u16; LENGTH] {
    let mut units = [0; LENGTH];
    let mut position = 0;
    while position < LENGTH {
        units[position] = text[position] as u16;
        position += 1;
    }
    units
}

/// How long the end of a program waits for the change of a session: at first, and each time that one of the
/// bridge's sessions is closed then. In nanoseconds.
const ENDING: u64 = 5_000_000;
const CLOSING: u64 = 100_000_000;

/// Pauses have one budget.
const PAUSES: u64 = 0x7061_7573;
/// Waits of all locks have one budget for each of their durations.
const LOCKS: u64 = 0x6c6f_636b;
/// And those for handles.
const WAIT_HANDLES: u64 = 0x6861_6e64;

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of the following but the last.
    Whole,
    Waits,
    Collections,
    Allocations,
    /// The program's end.
    End,
}

impl Part {
    const ALL: [Self; 5] =
        [Self::Whole, Self::Waits, Self::Collections, Self::Allocations, Self::End];
    const WITHOUT_WHOLE: [Self; 3] = [Self::Waits, Self::Collections, Self::Allocations];

    fn has(self, part: Self) -> bool {
        self == Self::Whole || self == part
    }
}

/// Sessions are being changed, or that has failed.
const UNKNOWN_KINDS: u64 = u64::MAX;

/// The open sessions.
pub struct Sessions {
    /// By part; 0: there is none.
    open: [AtomicU64; Part::ALL.len()],
    /// The kinds of events that they were opened for.
    kinds: AtomicU64,
    /// The thread that changes one; 0: none does.
    changer: AtomicU32,
    /// That of the program's end stays when it is open.
    keeps_end: AtomicBool,
    /// The program has begun to end.
    is_ending: AtomicBool,
}

impl Sessions {
    pub const fn new() -> Self {
        Self {
            open: [const { AtomicU64::new(0) }; Part::ALL.len()],
            kinds: AtomicU64::new(UNKNOWN_KINDS),
            changer: AtomicU32::new(0),
            keeps_end: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
        }
    }

    /// What is open is not what is wanted, whatever the kinds.
    pub fn forget(&self) {
        self.kinds.store(UNKNOWN_KINDS, Ordering::Relaxed);
    }

    fn of(&self, part: Part) -> &AtomicU64 {
        let [whole, waits, collections, allocations, end] = &self.open;
        match part {
            Part::Whole => whole,
            Part::Waits => waits,
            Part::Collections => collections,
            Part::Allocations => allocations,
            Part::End => end,
        }
    }
}

/// What a session has to have.
fn provider(session: &Session, part: Part) -> Option<Provider> {
    let of = |keywords, level| {
        Some(Provider { name: NAME.as_ptr(), keywords, level, filter: std::ptr::null() })
    };
    if part == Part::End {
        let is_needed = session.major() < DISPOSES_WELL;
        let pipe = &session.events().pipe;
        let stays = pipe.keeps_end.load(Ordering::Relaxed) && is_part_open(session, part);
        let is_wanted = stays || provider(session, Part::Whole).is_some();
        return if is_needed && is_wanted { of(LOADER, INFORMATIONAL) } else { None };
    }
    let events = session.events();
    let mut keywords = 0;
    let mut level = INFORMATIONAL;
    if part.has(Part::Waits) && events.wants(kind::LOCK) {
        keywords |= CONTENTION;
    }
    let of_collections = events.wants(kind::PAUSE) || events.wants(kind::OBJECT);
    if part.has(Part::Collections) && of_collections {
        keywords |= GC;
    }
    let of_allocations = events.wants(kind::ALLOCATION) || events.wants(kind::OBJECT);
    if part.has(Part::Allocations) && of_allocations {
        if session.major() >= SAMPLES_ALLOCATIONS {
            keywords |= ALLOCATION_SAMPLING;
            if part == Part::Allocations {
                // Collections that it makes are recognized ([`crate::forced_collections`]).
                keywords |= GC;
            }
        } else {
            keywords |= GC;
            level = VERBOSE;
        }
    }
    if part.has(Part::Waits) && events.wants(kind::WAIT_HANDLE) {
        // Of the other keywords, GC alone has events of this level that nothing here asks for. The
        // waits of contended locks are none for handles, and are left out.
        keywords |= WAIT_HANDLE | CONTENTION;
        level = VERBOSE;
    }
    if keywords != 0 && session.info().version() >= SINCE { of(keywords, level) } else { None }
}

/// Whether there is a session.
pub fn is_open(session: &Session) -> bool {
    Part::ALL.iter().any(|part| is_part_open(session, *part))
}

/// Whether there is one for this part, apart from the whole.
pub fn is_part_open(session: &Session, part: Part) -> bool {
    session.events().pipe.of(part).load(Ordering::Relaxed) != 0
}

/// Opens, changes or closes the session, as the events wanted need it; that of the program's end is closed
/// when no other will be wanted any more (`keeps_end`). `false`: that failed, and is to be tried again.
pub fn apply(session: &Session, keeps_end: bool) -> bool {
    session.events().pipe.keeps_end.store(keeps_end, Ordering::Relaxed);
    if !is_open(session) && provider(session, Part::Whole).is_none() {
        return true;
    }
    let holds = on_a_thread(session);
    if !holds {
        session.shared().lost(Loss::RuntimeCall);
    }
    holds
}

/// Runs [`change`] on a thread of its own, and waits for it. `false`: it failed, or there was no thread.
fn on_a_thread(session: &Session) -> bool {
    const DONE: *mut c_void = std::ptr::without_provenance_mut(1);
    extern "C" fn run(session: *mut c_void) -> *mut c_void {
        // SAFETY: the session of `on_a_thread`, which waits.
        let Some(session) = (unsafe { session.cast::<Session>().as_ref() }) else {
            return std::ptr::null_mut();
        };
        match catch_unwind(AssertUnwindSafe(|| change(session))) {
            Ok(true) => DONE,
            Ok(false) => std::ptr::null_mut(),
            Err(payload) => {
                std::mem::forget(payload);
                crate::lifecycle::panicked();
                std::ptr::null_mut()
            }
        }
    }
    let Some(thread) = own_thread::make_for_runtime(session, run) else { return false };
    let mut result = std::ptr::null_mut();
    // SAFETY: it was just made, and is joined once.
    unsafe { libc::pthread_join(thread, &mut result) == 0 && result == DONE }
}

fn change(session: &Session) -> bool {
    let kinds = session.events().of_sessions();
    let open_for = &session.events().pipe.kinds;
    let has_end = provider(session, Part::End).is_some() == is_part_open(session, Part::End);
    if has_end && kinds == open_for.load(Ordering::Relaxed) {
        // A change may make the runtime collect ([`crate::forced_collections`]).
        let (is_whole, parts) = (is_part_open(session, Part::Whole), Part::WITHOUT_WHOLE);
        if !is_whole && parts.iter().all(|part| open(session, *part)) {
            return true;
        }
        if is_whole && !parts.iter().any(|part| is_part_open(session, *part)) {
            return true;
        }
    }
    session.events().pipe.forget();
    if !close(session, Part::Whole) || !Part::WITHOUT_WHOLE.iter().all(|part| close(session, *part))
    {
        return false;
    }
    // What was under way is not known any more.
    session.events().pauses.reset();
    session.events().objects.collections.reset();
    session.events().wait_handles.reset(monotonic_time());
    let has_end = match provider(session, Part::End) {
        Some(_) => open(session, Part::End),
        None => close(session, Part::End),
    };
    let holds = has_end && open(session, Part::Whole);
    if holds {
        open_for.store(kinds, Ordering::Relaxed);
    }
    holds
}

/// Opens the session of a part, unless there is one or it is not wanted. On a thread that is to become one
/// of the runtime's.
pub fn open(session: &Session, part: Part) -> bool {
    let place = session.events().pipe.of(part);
    let Some(provider) = provider(session, part) else { return true };
    if place.load(Ordering::Relaxed) != 0 {
        return true;
    }
    let start = || session.info().start_event_session(&provider);
    let Some(started) = changing(session, part, start) else { return true };
    let Some(opened) = started else { return false };
    place.store(opened, Ordering::Relaxed);
    if part != Part::End {
        session.shared().count(Count::EventSessionsOpened, 1);
    }
    true
}

/// Closes the session of a part; no event of it is under way afterwards. On such a thread too.
pub fn close(session: &Session, part: Part) -> bool {
    let place = session.events().pipe.of(part);
    let open = place.load(Ordering::Relaxed);
    if open == 0 {
        return true;
    }
    // One that cannot be closed is not forgotten.
    if faults::refuses(Call::StopSession) {
        return false;
    }
    let stop = || session.info().stop_event_session(open);
    // At the program's end the runtime closes them all.
    if changing(session, part, stop).is_some_and(|stopped| stopped.is_none()) {
        return false;
    }
    place.store(0, Ordering::Relaxed);
    if part != Part::End {
        session.shared().count(Count::EventSessionsClosed, 1);
    }
    true
}

/// Changes a session. `None`: the program is ending, and nothing is changed any more.
fn changing<T>(session: &Session, part: Part, change: impl FnOnce() -> T) -> Option<T> {
    let Events { forced_collections, duty_cycle, pipe, .. } = session.events();
    let own = tasks::own();
    pipe.changer.store(own, Ordering::SeqCst);
    let section = session.lifetimes().changes().enter();
    let changed = section.is_some().then(|| match part {
        Part::End => change(),
        _ => forced_collections.watch(own, || duty_cycle.collections(), change),
    });
    drop(section);
    pipe.changer.store(0, Ordering::SeqCst);
    changed
}

/// Gives waits and collections sessions of their own, without allocations. What is delivered twice
/// meanwhile is taken once.
pub fn part(session: &Session) -> bool {
    // Apart, because a keyword has events of allocations at the level that waits for handles need.
    open(session, Part::Waits) && open(session, Part::Collections) && close(session, Part::Whole)
}

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

/// Whether an event may be one of the program's end, for [`ends`].
pub fn may_end(id: u32) -> bool {
    id == APP_DOMAIN_UNLOAD || id == PROCESS_INFO
}

/// The program ends on this thread, unless the event is another one of this number.
pub fn ends(session: &Session, provider: usize, id: u32) {
    let pipe = &session.events().pipe;
    let changes = session.lifetimes().changes();
    let is_ending = pipe.is_ending.load(Ordering::SeqCst);
    let wait = if id == APP_DOMAIN_UNLOAD && is_of_the_runtime(session, provider) {
        if !pipe.is_ending.swap(true, Ordering::SeqCst) {
            changes.shut();
        }
        ENDING
    } else if id == PROCESS_INFO
        && is_ending
        && is_named(session, provider, &ABOUT_SESSIONS) == Some(true)
    {
        CLOSING
    } else {
        return;
    };
    // The program's own code may end it during a change.
    if pipe.changer.load(Ordering::SeqCst) != tasks::own() {
        changes.wait_for_section_for(wait);
    }
}

fn is_used(id: u32) -> bool {
    let of_collections = matches!(id, GC_START | GC_END | RESTARTED | SUSPENDS);
    let of_allocations = matches!(id, ALLOCATION_TICK | ALLOCATION_SAMPLED);
    let of_waits =
        matches!(id, CONTENTION_START | CONTENTION_STOP | WAIT_HANDLE_START | WAIT_HANDLE_STOP);
    of_collections || of_allocations || of_waits
}

/// Whether a provider is the runtime's own; events of others have the same numbers.
fn is_of_the_runtime(session: &Session, provider: usize) -> bool {
    let known = &session.events().provider;
    if provider == known.load(Ordering::Relaxed) {
        return true;
    }
    // Where it has no name, only this session's are expected.
    let is_it = is_named(session, provider, &NAME).unwrap_or(true);
    if is_it {
        known.store(provider, Ordering::Relaxed);
    }
    is_it
}

/// Whether a provider has this name, which ends with a NUL; `None`: it has none.
fn is_named(session: &Session, provider: usize, name: &[u16]) -> Option<bool> {
    let mut found = [0; NAME.len() + 1];
    let length = session.info().event_provider_name(provider, &mut found)?;
    Some(found.get(..length) == name.get(..name.len() - 1))
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
            pauses.suspends(reason, tasks::own(), monotonic_time());
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
    let weight = session.events().choose(PAUSES);
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
    fn the_providers_name_ends_with_a_nul() {
        assert_eq!(NAME.iter().position(|unit| *unit == 0), Some(NAME.len() - 1));
    }

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
