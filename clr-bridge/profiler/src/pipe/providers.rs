//! The runtime's providers of events: their names, and the keywords and the level that a session of each
//! part has for the events wanted.

use std::sync::atomic::Ordering;

use strata_bridge_protocol::clr_event::kind;

use super::sessions::{Part, is_part_open};
use crate::com::info::Provider;
use crate::session::Session;

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

/// The first version whose event sources wait for calls when they are disposed of.
const DISPOSES_WELL: u16 = 9;
/// The first version whose allocations are sampled by chance.
pub const SAMPLES_ALLOCATIONS: u16 = 10;
/// The provider's name, with a NUL.
const NAME: [u16; 32] = utf16(b"Microsoft-Windows-DotNETRuntime\0");
/// The provider of what sessions say about themselves, which each of them has.
pub const ABOUT_SESSIONS: [u16; 31] = utf16(b"Microsoft-DotNETCore-EventPipe\0");

const fn utf16<const LENGTH: usize>(text: &[u8; LENGTH]) -> [u16; LENGTH] {
    let mut units = [0; LENGTH];
    let mut position = 0;
    while position < LENGTH {
        units[position] = text[position] as u16;
        position += 1;
    }
    units
}

/// What a session has to have.
pub fn provider(session: &Session, part: Part) -> Option<Provider> {
    let of = |keywords, level| {
        Some(Provider { name: NAME.as_ptr(), keywords, level, filter: std::ptr::null() })
    };
    if part == Part::End {
        let is_needed = session.major() < DISPOSES_WELL;
        let pipe = &session.events().pipe;
        let stays = pipe.keeps_end() && is_part_open(session, part);
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

/// Whether each part has a session of its own from the start. In one session with waits for handles, events
/// of collections have the level of those, at which the runtime also reports each pinned object, within the
/// pause, and every 100 kB allocated.
pub fn are_apart(major: u16, wants: impl Fn(u8) -> bool) -> bool {
    let of_collections = wants(kind::PAUSE) || wants(kind::OBJECT);
    let of_allocations = wants(kind::ALLOCATION) || wants(kind::OBJECT);
    // Allocations that are not sampled are events of that level, too.
    let is_verbose = of_allocations && major < SAMPLES_ALLOCATIONS;
    wants(kind::WAIT_HANDLE) && of_collections && !is_verbose
}

/// Whether a provider is the runtime's own; events of others have the same numbers.
pub fn is_of_the_runtime(session: &Session, provider: usize) -> bool {
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
pub fn is_named(session: &Session, provider: usize, name: &[u16]) -> Option<bool> {
    let mut found = [0; NAME.len() + 1];
    let length = session.info().event_provider_name(provider, &mut found)?;
    Some(found.get(..length) == name.get(..name.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_apart_where_only_waits_for_handles_are_verbose() {
        let of = |major, wanted: &[u8]| are_apart(major, |kind| wanted.contains(&kind));
        assert!(of(9, &[kind::WAIT_HANDLE, kind::PAUSE]));
        assert!(of(10, &[kind::WAIT_HANDLE, kind::OBJECT, kind::ALLOCATION]));
        assert!(!of(9, &[kind::WAIT_HANDLE, kind::PAUSE, kind::ALLOCATION]));
        assert!(!of(9, &[kind::WAIT_HANDLE, kind::OBJECT]));
        assert!(!of(10, &[kind::WAIT_HANDLE, kind::LOCK, kind::ALLOCATION]));
        assert!(!of(10, &[kind::PAUSE, kind::OBJECT, kind::LOCK]));
    }

    #[test]
    fn the_providers_names_end_with_a_nul() {
        for name in [&NAME[..], &ABOUT_SESSIONS] {
            assert_eq!(name.iter().position(|unit| *unit == 0), Some(name.len() - 1));
        }
    }
}
