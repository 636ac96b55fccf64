//! The program's end, which no change of a session may meet.
//!
//! A change of a session calls the program's event sources, managed code, on the thread that changes it.
//! The end of a program disposes of them, and up to .NET 8 without waiting for such a call, which then
//! meets nothing and ends the program with a null reference (dotnet/runtime#80666). So there a session of
//! its own, [`Part::End`](super::Part::End), is open from the first change to the last. It has two events of the thread that ends the program, before anything is disposed of:
//! 1. `AppDomainUnload` (`ETW::EnumerationLog::ProcessShutdown`). From here on there are no changes. The
//!    thread is in cooperative mode and holds the runtime's lock of its domains, so it waits for the change
//!    under way for milliseconds only ([`ENDING`]), and takes no lock.
//! 2. `ProcessInfo`, as the runtime closes each session (`ep_shutdown`), in preemptive mode: a collection
//!    that the change waits for goes on. It holds the lock of sessions, which the change may still need:
//!    so this wait ends, too ([`CLOSING`]).
//!
//! The opening and the closing of that session itself are not guarded, but for an end that begins while it
//! is open.

use super::providers::{ABOUT_SESSIONS, is_named, is_of_the_runtime};
use crate::session::Session;
use crate::tasks;

/// Numbers of events; the second is of the provider [`ABOUT_SESSIONS`].
const APP_DOMAIN_UNLOAD: u32 = 157;
const PROCESS_INFO: u32 = 1;

/// How long the end of a program waits for the change of a session: at first, and each time that one of the
/// bridge's sessions is closed then. In nanoseconds.
const ENDING: u64 = 5_000_000;
const CLOSING: u64 = 100_000_000;

/// Whether an event may be one of the program's end, for [`ends`].
pub fn may_end(id: u32) -> bool {
    id == APP_DOMAIN_UNLOAD || id == PROCESS_INFO
}

/// The program ends on this thread, unless the event is another one of this number.
pub fn ends(session: &Session, provider: usize, id: u32) {
    let pipe = &session.events().pipe;
    let changes = session.lifetimes().changes();
    let wait = if id == APP_DOMAIN_UNLOAD && is_of_the_runtime(session, provider) {
        if pipe.begins_to_end() {
            changes.shut();
        }
        ENDING
    } else if id == PROCESS_INFO
        && pipe.is_ending()
        && is_named(session, provider, &ABOUT_SESSIONS) == Some(true)
    {
        CLOSING
    } else {
        return;
    };
    // The program's own code may end it during a change.
    if !pipe.is_changed_by(tasks::own()) {
        changes.wait_for_section_for(wait);
    }
}
