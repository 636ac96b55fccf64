//! Events of the runtime's with the stack of their thread.
//!
//! A callback calls [`report`], which calls an empty function with the address of a block about the
//! event. strata has a probe there while it wants events: its BPF program walks the calling thread's
//! stack, with the rules that samples of the CPU have too. Without a probe the call costs a
//! nanosecond. Where strata cannot have one, the runtime walks the stack ([`crate::snapshots`]).
//!
//! **Invariant:** an event costs the same bounded time whatever strata does: it is counted against
//! a budget first ([`crate::sampling`]), and nothing waits for a reader.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use strata_bridge_protocol::clr_event::{Block, ClrEvent, capability, kind};
use strata_bridge_protocol::control::{Wishes, wish};
use strata_bridge_protocol::shared_file::monotonic_time;

use crate::contention::Contention;
use crate::duty_cycle::DutyCycle;
use crate::forced_collections::ForcedCollections;
use crate::objects::{self, Watched};
use crate::pauses::Pauses;
use crate::pipe;
use crate::repeated::Repeated;
use crate::sampling::Sampling;
use crate::session::Session;
use crate::snapshots::{self, Snapshots};
use crate::wait_handles::WaitHandles;

/// The kinds that can be wished for, a bit each.
const KINDS: u64 = {
    let (mut kinds, mut at) = (0, 0);
    while at < wish::OF_KINDS.len() && cfg!(target_arch = "x86_64") {
        kinds |= 1 << wish::OF_KINDS[at].0;
        at += 1;
    }
    kinds
};

/// The first version of the runtime that reports waits for handles.
const REPORTS_WAIT_HANDLES: u16 = 9;

/// Those of a runtime of this version with this `ICorProfilerInfo`, and what this bridge is capable of
/// with them.
pub fn kinds_of(major: u16, interface: u32) -> u64 {
    let kinds = match interface {
        objects::SINCE.. => KINDS | capability::CHECKED_OBJECTS,
        pipe::SINCE.. => KINDS & !(1 << kind::OBJECT),
        _ => KINDS & 1 << kind::EXCEPTION,
    };
    let kinds = if kinds == 0 { 0 } else { kinds | capability::SNAPSHOTS };
    if major >= REPORTS_WAIT_HANDLES { kinds } else { kinds & !(1 << kind::WAIT_HANDLE) }
}

/// A bit beside those of the kinds: exceptions with their messages.
pub const MESSAGES: u64 = 1 << 63;
/// Another one: the runtime walks the stacks of events.
pub const SNAPSHOTS: u64 = 1 << 62;
/// These bits, each with its wish.
const OF_ALL_KINDS: [(u64, u64); 2] = [(MESSAGES, wish::MESSAGES), (SNAPSHOTS, wish::SNAPSHOTS)];

#[cfg(target_arch = "x86_64")]
mod probed {
    // The bytes are `clr_event::FUNCTION`. Local: a symbol of another library cannot take its
    // place.
    std::arch::global_asm!(
        ".pushsection .text.strata_event,\"ax\",@progbits",
        ".p2align 4",
        ".globl strata_event",
        ".hidden strata_event",
        ".type strata_event,@function",
        "strata_event:",
        ".cfi_startproc",
        "nop",
        "ret",
        ".ascii \"strata-event-1\"",
        ".cfi_endproc",
        ".size strata_event, .-strata_event",
        ".popsection",
    );

    unsafe extern "C" {
        /// Empty: strata may have a probe at its first instruction.
        pub safe fn strata_event(block: *const u8);
    }

    pub fn address() -> u64 {
        strata_event as *const () as u64
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod probed {
    pub fn strata_event(_block: *const u8) {}

    pub fn address() -> u64 {
        0
    }
}

/// Where the function is that is called with events.
pub fn function() -> u64 {
    probed::address()
}

/// The kinds of an owner's wishes that a runtime of this version with this interface has, a bit each,
/// with [`MESSAGES`] and [`SNAPSHOTS`].
pub fn wanted(wishes: &Wishes, major: u16, interface: u32) -> u64 {
    let wanted = wish::OF_KINDS.into_iter().filter(|(_, wish)| wishes.has(*wish));
    let kinds = wanted.fold(0, |all, (kind, _)| all | 1 << kind) & kinds_of(major, interface);
    let wished = OF_ALL_KINDS.into_iter().filter(|(_, wish)| kinds != 0 && wishes.has(*wish));
    wished.fold(kinds, |all, (bit, _)| all | bit)
}

/// The events of a session.
pub struct Events {
    /// The kinds wanted, a bit each.
    wanted: AtomicU64,
    sampling: Sampling,
    /// Where the fields of exceptions are, once they were looked for ([`crate::exceptions`]).
    pub exception_fields: AtomicU64,
    /// The sessions of the runtime's events ([`crate::pipe`]).
    pub pipe: pipe::Sessions,
    /// When events of allocations are on.
    pub duty_cycle: DutyCycle,
    pub forced_collections: ForcedCollections,
    /// The runtime's provider of events, once it was met, or 0.
    pub provider: AtomicUsize,
    pub repeated: Repeated,
    pub contention: Contention,
    pub wait_handles: WaitHandles,
    pub pauses: Pauses,
    /// Objects are chosen apart from other events, which would take their part of the budget.
    object_sampling: Sampling,
    pub objects: Watched,
    pub snapshots: Snapshots,
}

impl Events {
    pub const fn new() -> Self {
        Self {
            wanted: AtomicU64::new(0),
            sampling: Sampling::new(),
            exception_fields: AtomicU64::new(0),
            pipe: pipe::Sessions::new(),
            duty_cycle: DutyCycle::new(),
            forced_collections: ForcedCollections::new(),
            provider: AtomicUsize::new(0),
            repeated: Repeated::new(),
            contention: Contention::new(),
            wait_handles: WaitHandles::new(),
            pauses: Pauses::new(),
            object_sampling: Sampling::new(),
            objects: Watched::new(),
            snapshots: Snapshots::new(),
        }
    }

    #[inline]
    pub fn wants(&self, kind: u8) -> bool {
        self.wanted.load(Ordering::Relaxed) & 1 << (kind & 31) != 0
    }

    /// The kinds wanted that the runtime's own events are of, a bit each: all but exceptions.
    pub fn of_sessions(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed) & KINDS & !(1 << kind::EXCEPTION)
    }

    pub fn wants_messages(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) & MESSAGES != 0
    }

    /// Whether the runtime is to walk the stacks of events.
    fn wants_snapshots(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) & SNAPSHOTS != 0
    }

    /// Sets the kinds wanted; true when that is a change.
    pub fn want(&self, kinds: u64) -> bool {
        self.wanted.swap(kinds, Ordering::Relaxed) != kinds
    }

    pub fn set_rates(&self, rates: &[u32; 32]) {
        let rate = rates.get(usize::from(kind::EXCEPTION)).copied().unwrap_or_default();
        self.sampling.set_rate(rate);
    }

    /// How many events of this key, such as a class, the current one is to stand for; 0: it is not
    /// reported.
    pub fn choose(&self, key: u64) -> u32 {
        self.sampling.choose(key, monotonic_time())
    }

    /// The same of an event that other keys' leave its budget.
    pub fn choose_apart(&self, key: u64) -> u32 {
        self.sampling.choose_apart(key, monotonic_time())
    }

    /// The same of an allocated object that may be watched.
    pub fn choose_object(&self, key: u64) -> u32 {
        self.object_sampling.choose(key, monotonic_time())
    }
}

/// Reports an event of the calling thread.
#[inline(never)]
pub fn report(session: &Session, event: &ClrEvent<'_>) {
    let block = Block::new(event);
    if session.events().wants_snapshots() {
        snapshots::report(session, event, &block);
    }
    call(&block);
}

/// Where strata may have a probe.
#[inline(never)]
fn call(block: &Block) {
    probed::strata_event(block.as_ptr());
    // The block is alive during the call, and the call is no jump: this function is in the stack.
    std::hint::black_box(block);
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::clr_event::FUNCTION;

    use super::*;

    #[test]
    fn the_function_starts_with_the_bytes_that_strata_looks_for() {
        // SAFETY: the function's code is as long.
        let code = unsafe { std::slice::from_raw_parts(function() as *const u8, FUNCTION.len()) };
        assert_eq!(code, FUNCTION);
        call(&Block::new(&ClrEvent::default()));
    }

    #[test]
    fn a_bridge_with_objects_checks_their_addresses_and_says_so() {
        let has = |bits: u64, bit: u64| bits & bit == bit;
        for interface in 5..20 {
            let kinds = kinds_of(9, interface);
            let has_objects = has(kinds, 1 << kind::OBJECT);
            assert_eq!(has_objects, has(kinds, capability::CHECKED_OBJECTS), "{interface}");
        }
    }

    #[test]
    fn kinds_that_this_bridge_does_not_have_are_not_wanted() {
        let wishes = |flags| Wishes { flags, ..Wishes::default() };
        assert_eq!(wanted(&wishes(wish::EXCEPTIONS), 8, 11), 1 << kind::EXCEPTION);
        assert_eq!(
            wanted(&wishes(wish::EXCEPTIONS | wish::MESSAGES), 8, 11),
            1 << kind::EXCEPTION | MESSAGES
        );
        assert_eq!(wanted(&wishes(wish::MESSAGES | wish::JIT_EVENTS), 8, 15), 0);
        let snapshots = |flags| wanted(&wishes(flags | wish::SNAPSHOTS), 8, 11);
        assert_eq!(snapshots(wish::EXCEPTIONS), 1 << kind::EXCEPTION | SNAPSHOTS);
        assert_eq!(snapshots(wish::JIT_EVENTS), 0, "no event has a stack");
        assert_eq!(wanted(&wishes(wish::LOCKS), 8, 11), 0);
        assert_eq!(wanted(&wishes(wish::LOCKS), 8, 12), 1 << kind::LOCK);
        assert_eq!(wanted(&wishes(wish::PAUSES), 8, 11), 0);
        assert_eq!(wanted(&wishes(wish::PAUSES), 8, 12), 1 << kind::PAUSE);
        assert_eq!(wanted(&wishes(wish::OBJECTS), 8, 12), 0);
        assert_eq!(wanted(&wishes(wish::OBJECTS), 8, 13), 1 << kind::OBJECT);
        assert_eq!(wanted(&wishes(wish::WAIT_HANDLES), 8, 15), 0);
        assert_eq!(wanted(&wishes(wish::WAIT_HANDLES), 9, 15), 1 << kind::WAIT_HANDLE);
    }
}
