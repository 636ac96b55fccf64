//! Managed threads: which OS thread each is, its name, and its slot in the thread-context table.
//!
//! The list is kept in every state of the bridge, since the runtime reports a thread's name only
//! when it changes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use strata_bridge_protocol::record::{Thread as ThreadRecord, ThreadEnd};

use crate::session::Session;
use crate::{domains, faults, scratch};

struct Thread {
    id: usize,
    /// In the thread's innermost PID namespace; 0 while it has none.
    tid: u32,
    name: String,
    reported: bool,
}

pub struct Threads {
    list: Mutex<Vec<Thread>>,
}

impl Threads {
    pub const fn new() -> Self {
        Threads { list: Mutex::new(Vec::new()) }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most threads kept; those beyond are reported without a name.
const MOST_THREADS: usize = 65_536;

fn entry(list: &mut Vec<Thread>, id: usize) -> Option<&mut Thread> {
    match list.iter().position(|thread| thread.id == id) {
        Some(position) => list.get_mut(position),
        None => {
            if list.len() >= MOST_THREADS || list.try_reserve(1).is_err() {
                return None;
            }
            list.push(Thread { id, tid: 0, name: String::new(), reported: false });
            list.last_mut()
        }
    }
}

/// Reports that a managed thread runs on an OS thread, unless that was the last report.
pub fn assigned(session: &Session, id: usize, tid: u32) {
    let app_domain = session.info().thread_app_domain(id).unwrap_or(0);
    domains::learn(session, app_domain);
    let mut list = session.threads().list();
    let Some(thread) = entry(&mut list, id) else { return };
    if thread.tid != tid {
        thread.tid = tid;
        thread.reported = false;
    }
    report(session, thread);
    drop(list);
    if session.is_reporting() {
        session.set_context(tid, app_domain);
    }
}

pub fn renamed(session: &Session, id: usize, units: &[u16]) {
    let Some(mut scratch) = scratch::take(session) else { return };
    let name = &mut scratch.get().text;
    name.push_units(units);
    faults::at_a_threads_name(name.as_str());
    let mut list = session.threads().list();
    let Some(thread) = entry(&mut list, id) else { return };
    domains::set(&mut thread.name, name.as_str());
    thread.reported = false;
    report(session, thread);
}

pub fn destroyed(session: &Session, id: usize) {
    let mut list = session.threads().list();
    let Some(position) = list.iter().position(|thread| thread.id == id) else { return };
    let gone = list.swap_remove(position);
    drop(list);
    // Also while there is no reader: its place and its labels are not the next thread's.
    if gone.tid != 0 {
        session.remove_context(gone.tid);
    }
    if gone.reported {
        session.write(&ThreadEnd { managed_id: id as u64 });
    }
}

fn report(session: &Session, thread: &mut Thread) {
    if thread.tid != 0 && !thread.reported && session.is_reporting() {
        thread.reported = session.write(&ThreadRecord {
            managed_id: thread.id as u64,
            os_tid: thread.tid,
            name: &thread.name,
        });
    }
}
