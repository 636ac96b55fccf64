//! The runtime's own events (EventPipe) inside the process: waits for locks, allocations, objects and
//! collections from .NET 5 on, waits for handles from .NET 9 on.
//!
//! A session makes the runtime call `EventPipeEventDelivered` on the thread that an event is of. It
//! is opened and closed on a thread that exists only for that: `EventPipeStartSession` turns its
//! caller into a thread of the runtime's, which may not ask about addresses any more. The first one
//! takes up to 120 ms.
//!
//! One session has all events, until those of allocations are to be switched off for a while
//! ([`crate::duty_cycle`]): then they have one of their own, and the others go on in theirs. So it is from
//! the start where one session would have the runtime report more than is wanted.
//!
//! **Invariant:** a session is closed before the bridge is detached: one that is left open would
//! deliver into the next attach, before its state exists.

mod delivery;
mod end;
mod providers;
mod sessions;

pub use delivery::{Event, RESTARTED, delivered, half_word, word};
pub use end::{ends, may_end};
pub use providers::SINCE;
pub use sessions::{Part, Sessions, apply, close, is_open, is_part_open, open, part};
