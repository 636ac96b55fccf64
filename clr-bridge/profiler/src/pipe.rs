//! The runtime's own events (EventPipe) inside the process: waits for locks, allocations, objects and
//! collections, from .NET 5 on.
//!
//! A session makes the runtime call `EventPipeEventDelivered` on the thread that an event is of. It
//! is opened and closed on a thread that exists only for that: `EventPipeStartSession` turns its
//! caller into a thread of the runtime's, which may not ask about addresses any more. The first one
//! takes up to 120 ms.
//!
//! **Invariant:** a session is closed before the bridge is detached: one that is left open would
//! deliver into the next attach, before its state exists.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use strata_bridge_protocol::clr_event::{ClrEvent, MAX_TYPE, kind};
use strata_bridge_protocol::collection::{Collection, UNKNOWN};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::Loss;

use crate::com::info::Provider;
use crate::events;
use crate::exceptions::name_of;
use crate::objects::{self, Allocated};
use crate::pauses::Pause;
use crate::session::Session;
use crate::tasks;
use crate::text::Text;

/// The first `ICorProfilerInfo` with sessions.
pub const SINCE: u32 = 12;

/// Keywords and levels of Microsoft-Windows-DotNETRuntime (src/coreclr/vm/ClrEtwAll.man).
const CONTENTION: u64 = 0x4000;
const GC: u64 = 0x1;
const ALLOCATION_SAMPLING: u64 = 0x800_0000_0000;
const INFORMATIONAL: u32 = 4;
const VERBOSE: u32 = 5;

/// Numbers of events.
const GC_START: u32 = 1;
const GC_END: u32 = 2;
const RESTARTED: u32 = 3;
const SUSPENDS: u32 = 9;
const ALLOCATION_TICK: u32 = 10;
const CONTENTION_STOP: u32 = 91;
const ALLOCATION_SAMPLED: u32 = 303;

/// The first version whose allocations are sampled by chance.
const SAMPLES_ALLOCATIONS: u16 = 10;
/// The provider's name, with a NUL.
const NAME: [u16; 32] = {
    let text = b"Microsoft-Windows-DotNETRuntime\0";
    let mut units = [0; 32];
    let mut position = 0;
    while position < text.len() {
        units[position] = text[position] as u16;
        position += 1;
    }
    units
};

/// Objects from this size on are among the large ones, unless the program sets more
/// (src/coreclr/gc/gc.h, `LARGE_OBJECT_SIZE`).
const LARGE: u64 = 85_000;
/// Pauses have one budget.
const PAUSES: u64 = 0x7061_7573;
/// Waits of all locks have one budget.
const LOCKS: u64 = 0x6c6f_636b;

/// What a session has to have.
fn provider(session: &Session) -> Option<Provider> {
    let events = session.events();
    let mut keywords = 0;
    let mut level = INFORMATIONAL;
    if events.wants(kind::LOCK) {
        keywords |= CONTENTION;
    }
    if events.wants(kind::PAUSE) || events.wants(kind::OBJECT) {
        keywords |= GC;
    }
    if events.wants(kind::ALLOCATION) || events.wants(kind::OBJECT) {
        if session.major() >= SAMPLES_ALLOCATIONS {
            keywords |= ALLOCATION_SAMPLING;
        } else {
            keywords |= GC;
            level = VERBOSE;
        }
    }
    let is_any = keywords != 0 && session.info().version() >= SINCE;
    is_any.then(|| Provider { name: NAME.as_ptr(), keywords, level, filter: std::ptr::null() })
}

/// Opens, changes or closes the session, as the events wanted need it.
pub fn apply(session: &Session) {
    let place = &session.events().pipe;
    let wanted = provider(session);
    if place.load(Ordering::Relaxed) == 0 && wanted.is_none() {
        return;
    }
    if !on_a_thread(session) {
        session.shared().lost(Loss::RuntimeCall);
    }
}

/// Runs [`change`] on a thread of its own, and waits for it.
fn on_a_thread(session: &Session) -> bool {
    extern "C" fn run(session: *mut c_void) -> *mut c_void {
        // SAFETY: the session of `on_a_thread`, which waits.
        let Some(session) = (unsafe { session.cast::<Session>().as_ref() }) else {
            return std::ptr::null_mut();
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| change(session))) {
            std::mem::forget(payload);
            crate::lifecycle::panicked();
        }
        std::ptr::null_mut()
    }
    // SAFETY: plain pthread calls on locals; the thread inherits the calling one's signal mask, in
    // which all are blocked, and is joined.
    unsafe {
        let mut thread: libc::pthread_t = std::mem::zeroed();
        let argument = std::ptr::from_ref(session).cast_mut().cast();
        libc::pthread_create(&mut thread, std::ptr::null(), run, argument) == 0
            && libc::pthread_join(thread, std::ptr::null_mut()) == 0
    }
}

fn change(session: &Session) {
    let place = &session.events().pipe;
    let before = place.swap(0, Ordering::Relaxed);
    if before != 0 && session.info().stop_event_session(before).is_none() {
        session.shared().lost(Loss::RuntimeCall);
    }
    // What was under way is not known any more.
    session.events().pauses.reset();
    session.events().objects.collections.reset();
    if let Some(provider) = provider(session) {
        match session.info().start_event_session(&provider) {
            Some(opened) => place.store(opened, Ordering::Relaxed),
            None => session.shared().lost(Loss::RuntimeCall),
        }
    }
}

/// An event of the calling thread, which may be in cooperative mode, and which may have suspended
/// all others: nothing here takes a lock that they may hold, or allocates.
pub fn delivered(session: &Session, id: u32, version: u32, data: &[u8]) {
    let events = session.events();
    match id {
        CONTENTION_STOP if version >= 1 && events.wants(kind::LOCK) => wait(session, data),
        ALLOCATION_TICK if version >= 4 => {
            // Amount (32 bits), kind, instance, amount, class, name, heap, address, size.
            let (Some(amount), Some(class)) = (word(data, 10), word(data, 18)) else { return };
            let Some((kind, rest)) = half_word(data, 4).zip(data.get(26..)) else { return };
            let (name, rest) = text(rest);
            let Some((address, size)) = word(rest, 4).zip(word(rest, 12)) else { return };
            allocation(session, &Allocation { class, name, size, amount, address, kind });
        }
        ALLOCATION_SAMPLED => {
            // Kind, instance, class, name, address, size, offset.
            let Some((class, rest)) = word(data, 6).zip(data.get(14..)) else { return };
            let Some(kind) = half_word(data, 0) else { return };
            let (name, rest) = text(rest);
            let Some((address, size)) = word(rest, 0).zip(word(rest, 8)) else { return };
            allocation(session, &Allocation { class, name, size, amount: 0, address, kind });
        }
        _ => collecting(session, id, version, data),
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
    events::report(&ClrEvent {
        kind: kind::PAUSE,
        weight,
        value: pause.nanoseconds.saturating_mul(u64::from(weight)),
        size: pause.collection.pack(),
        message: number.as_str(),
        ..ClrEvent::default()
    });
}

/// A thread has got the lock that it waited for.
fn wait(session: &Session, data: &[u8]) {
    // Flags, instance, nanoseconds as a double.
    let Some(bits) = word(data, 3) else { return };
    let nanoseconds = f64::from_bits(bits) as u64;
    let weight = session.events().choose(LOCKS);
    if weight == 0 {
        return;
    }
    events::report(&ClrEvent {
        kind: kind::LOCK,
        weight,
        value: nanoseconds.saturating_mul(u64::from(weight)),
        ..ClrEvent::default()
    });
}

/// An object was allocated.
struct Allocation<'a> {
    class: u64,
    /// The class's, in UTF-16.
    name: &'a [u8],
    size: u64,
    /// The bytes that it stands for; 0: that follows from its size.
    amount: u64,
    address: u64,
    /// Where: among the small objects (0), or others.
    kind: u32,
}

fn allocation(session: &Session, allocation: &Allocation<'_>) {
    let Allocation { class, name, size, amount, address, kind } = *allocation;
    let events = session.events();
    let weight = |is_wanted: bool, choose: &dyn Fn() -> u32| if is_wanted { choose() } else { 0 };
    let weight_of_object = weight(events.wants(kind::OBJECT), &|| events.choose_object(class));
    // First: what follows may let the object move.
    let object = (weight_of_object != 0).then(|| {
        let is_large = kind != 0 || size >= LARGE;
        objects::watch(session, Allocated { address, is_large })
    });
    let object = object.flatten();
    let weight = weight(events.wants(kind::ALLOCATION), &|| events.choose(class));
    if weight == 0 && object.is_none() {
        return;
    }
    let mut type_name = Text::<MAX_TYPE>::new();
    // The event's own name leaves out what a nested class is nested in; an array has no other.
    name_of(session, class as usize, &mut type_name);
    if type_name.as_str().is_empty() {
        for unit in name.as_chunks::<2>().0 {
            type_name.push_units(&[u16::from_le_bytes(*unit)]);
        }
    }
    let event = ClrEvent { size, type_name: type_name.as_str(), ..ClrEvent::default() };
    if weight != 0 {
        let value = amount.saturating_mul(u64::from(weight));
        events::report(&ClrEvent { kind: kind::ALLOCATION, weight, value, ..event });
    }
    if let Some(id) = object {
        let mut message = Text::<24>::new();
        message.push_number(u32::from(id.slot));
        message.push(":");
        message.push_number(id.serial);
        let value = amount.saturating_mul(u64::from(weight_of_object));
        events::report(&ClrEvent {
            kind: kind::OBJECT,
            weight: weight_of_object,
            value,
            message: message.as_str(),
            ..event
        });
    }
}

/// Eight bytes of an event's data.
fn word(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Four bytes of an event's data.
fn half_word(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// A text in UTF-16 that ends with a NUL, and what follows it.
fn text(data: &[u8]) -> (&[u8], &[u8]) {
    let units = data.as_chunks::<2>().0;
    let end = units.iter().take(MAX_TYPE * 4).position(|unit| *unit == [0; 2]);
    let end = end.unwrap_or(0) * 2;
    (data.get(..end).unwrap_or_default(), data.get(end + 2..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_providers_name_ends_with_a_nul() {
        assert_eq!(NAME.iter().position(|unit| *unit == 0), Some(NAME.len() - 1));
    }

    #[test]
    fn a_text_ends_at_its_nul_and_the_rest_follows() {
        let data = [b'a', 0, b'b', 0, 0, 0, 7];
        assert_eq!(text(&data), (&data[..4], &data[6..]));
        assert_eq!(text(&[1, 1]), (&[][..], &[][..]));
        assert_eq!(word(&[1, 0, 0, 0, 0, 0, 0, 0], 0), Some(1));
        assert_eq!(word(&[1, 0, 0, 0, 0, 0, 0, 0], 1), None);
    }
}
