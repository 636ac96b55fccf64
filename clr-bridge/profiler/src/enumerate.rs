//! Enumerates what existed before the owner attached: modules, threads, compiled methods.
//!
//! Lists hold ids of what existed when they were taken; see `lifetimes` for how long those may be
//! used. **Invariant:** an enumeration ends even while the app unloads continuously: an outdated
//! list is taken again, and each retry reports some more functions in the section that took the
//! list.

use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::Loss;

use crate::com::enumerators::{self, FunctionVersion};
use crate::session::Session;
use crate::{methods, own_thread, threads};
use strata_bridge_protocol::table::Table;

/// The most functions reported in the section that takes the list: less than a millisecond.
const AT_ONCE: usize = 64;
/// How long modules are reported in the section that takes the list, in nanoseconds.
const LONGEST_AT_ONCE: u64 = 1_000_000;
/// The most functions whose class is asked for before any is reported: a microsecond each.
const MOST_PROOFS: usize = 256;

/// Reports everything that exists and was not reported. `false`: the session ended, or queries were
/// not allowed.
pub fn everything(session: &Session) -> bool {
    modules(session) && threads(session) && functions(session)
}

/// Takes a list of ids, without those of `done`.
fn take<T: Copy>(
    list: impl FnOnce(&mut dyn FnMut(T) -> bool),
    is_done: impl Fn(T) -> bool,
) -> Option<Vec<T>> {
    let mut ids = Vec::new();
    let mut is_complete = true;
    list(&mut |id| {
        if !is_done(id) {
            is_complete = ids.try_reserve(1).is_ok();
            if is_complete {
                ids.push(id);
            }
        }
        is_complete
    });
    is_complete.then_some(ids)
}

/// Reports the ids of a list, of which some may have been reported in the section that took it.
/// `None`: something was unloaded, and the rest of the list is invalid.
fn each<T: Copy>(
    session: &Session,
    taken_at: u64,
    ids: &[T],
    mut report: impl FnMut(T),
) -> Option<()> {
    for id in ids {
        let is_current = session.in_section(|| {
            let is_current = session.lifetimes().unloads() == taken_at;
            if is_current {
                report(*id);
            }
            is_current
        });
        if is_current != Some(true) || own_thread::is_stopped() {
            return None;
        }
    }
    Some(())
}

fn may_go_on(session: &Session) -> bool {
    !own_thread::is_stopped() && !session.is_closed() && !session.is_given_up()
}

fn modules(session: &Session) -> bool {
    while may_go_on(session) {
        let taken = session.in_section(|| {
            let taken_at = session.lifetimes().unloads();
            let list = session.info().modules()?;
            // SAFETY: a list of modules.
            let ids = take(|each| unsafe { enumerators::ids(list, each) }, |_| false)?;
            // At least one. Most take microseconds, those without an image milliseconds.
            let start = monotonic_time();
            for id in ids.iter().filter(|id| !is_reported(session, **id)) {
                report_module(session, *id);
                if monotonic_time().saturating_sub(start) >= LONGEST_AT_ONCE {
                    break;
                }
            }
            Some((taken_at, ids))
        });
        match taken {
            Some(Some((taken_at, ids))) => {
                if each(session, taken_at, &ids, |id| report_module(session, id)).is_some() {
                    return true;
                }
            }
            Some(None) => return failed(session),
            None => return false,
        }
    }
    false
}

fn is_reported(session: &Session, module: usize) -> bool {
    session.known().module(module).is_some_and(|module| module.reported)
}

fn report_module(session: &Session, module: usize) {
    if !session.lifetimes().is_half_loaded(module) {
        session.module(module);
    }
}

/// Threads are listed once: callbacks report all changes from then on.
fn threads(session: &Session) -> bool {
    if !session.lifetimes().may_list_threads() {
        return true;
    }
    // Under the lock of the runtime's list, so in no section that a thread's end waits for: threads
    // that end from now on are noted.
    let list = session.call(|| session.info().threads());
    let Some(list) = list.flatten() else { return failed(session) };
    // SAFETY: a list of threads.
    let Some(ids) = take(|each| unsafe { enumerators::ids(list, each) }, |_| false) else {
        return failed(session);
    };
    for thread in ids {
        if !may_go_on(session) {
            return false;
        }
        session.in_section_of_thread(thread, || {
            if let Some(tid) = session.info().thread_os_id(thread).filter(|tid| *tid != 0) {
                threads::assigned(session, thread, tid);
            }
        });
    }
    session.lifetimes().threads_are_listed();
    true
}

fn functions(session: &Session) -> bool {
    // By their ids: one that is used again is reported by its compilation.
    let mut done = Table::<()>::new();
    while may_go_on(session) {
        let taken = session.in_section(|| {
            let taken_at = session.lifetimes().unloads();
            let list = session.info().jitted_functions()?;
            let is_done =
                |version: FunctionVersion| done.get(key(version)).is_some() && version.rejit == 0;
            // SAFETY: a list of functions.
            let ids = take(|each| unsafe { enumerators::functions(list, each) }, is_done)?;
            // What is reported first has its exact class too.
            let classes = ids.iter().take(MOST_PROOFS).map(|version| version.function);
            methods::prove_classes(session, classes);
            let now = ids.iter().take(AT_ONCE);
            now.for_each(|version| report_function(session, &mut done, *version));
            Some((taken_at, ids))
        });
        match taken {
            Some(Some((taken_at, ids))) => {
                let later = ids.get(AT_ONCE..).unwrap_or_default();
                let report = |version| report_function(session, &mut done, version);
                if each(session, taken_at, later, report).is_some() {
                    return true;
                }
            }
            Some(None) => return failed(session),
            None => return false,
        }
    }
    false
}

fn key(version: FunctionVersion) -> u64 {
    version.function as u64
}

fn report_function(session: &Session, done: &mut Table<()>, version: FunctionVersion) {
    methods::report_compiled(session, version.function, version.rejit);
    // Without memory it is found again, and known.
    let _ = done.insert(key(version), ());
}

/// The runtime returned no list, or there was no memory for it: counted; later events are reported
/// all the same.
fn failed(session: &Session) -> bool {
    session.shared().lost(Loss::RuntimeCall);
    true
}
