//! The sessions: which are open, for what, and how they are changed.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::{Count, Loss};

use super::providers::{are_apart, provider};
use crate::events::Events;
use crate::faults::{self, Call};
use crate::forced_collections::Change;
use crate::session::Session;
use crate::{own_thread, tasks};

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

    /// Whether a session of this part has the events of another.
    pub fn has(self, part: Self) -> bool {
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

    /// Whether the session of the program's end stays when no other is wanted.
    pub fn keeps_end(&self) -> bool {
        self.keeps_end.load(Ordering::Relaxed)
    }

    /// The program begins to end. `false`: it had begun before.
    pub fn begins_to_end(&self) -> bool {
        !self.is_ending.swap(true, Ordering::SeqCst)
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Whether this thread changes a session.
    pub fn is_changed_by(&self, thread: u32) -> bool {
        self.changer.load(Ordering::SeqCst) == thread
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
    let holds = has_end
        && if are_apart(session.major(), |kind| session.events().wants(kind)) {
            part(session) && open(session, Part::Allocations)
        } else {
            open(session, Part::Whole)
        };
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
    let Some(started) = changing(session, part, Change::Opens, start) else { return true };
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
    if changing(session, part, Change::Closes, stop).is_some_and(|stopped| stopped.is_none()) {
        return false;
    }
    place.store(0, Ordering::Relaxed);
    if part != Part::End {
        session.shared().count(Count::EventSessionsClosed, 1);
    }
    true
}

/// Changes a session. `None`: the program is ending, and nothing is changed any more.
fn changing<T>(
    session: &Session,
    part: Part,
    what: Change,
    change: impl FnOnce() -> T,
) -> Option<T> {
    let Events { forced_collections, duty_cycle, pipe, .. } = session.events();
    let own = tasks::own();
    pipe.changer.store(own, Ordering::SeqCst);
    let section = session.lifetimes().changes().enter();
    let changed = section.is_some().then(|| match part {
        Part::End => change(),
        _ => forced_collections.watch(own, what, || duty_cycle.collections(), change),
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
