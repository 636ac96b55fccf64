//! The lifetimes of the runtime's ids.
//!
//! Ids of modules, functions, classes and threads are pointers into the runtime, and an address is
//! looked up in the runtime's code lists: both may be freed at any moment after the callback that
//! reports the end has returned. Callbacks of the runtime use what the runtime keeps alive for
//! them: a method that is being compiled keeps its module and its type arguments
//! (src/coreclr/vm/loaderallocator.cpp, `EnsureInstantiation`). The bridge's own thread keeps
//! nothing alive, so **everything it does with an id is in a section of a [`Gate`]**:
//!
//! - *Modules.* From `ModuleUnloadStarted` on, the gate is shut. It stays shut after
//!   `ModuleUnloadFinished`: the code of the module is in the runtime's lists until the same thread has
//!   suspended the others to take it out (`LoaderAllocator::GCLoaderAllocators`), and only then its memory
//!   is freed. `RuntimeResumeFinished` of that suspension, on that thread, opens the gate. A suspension
//!   that gives way to a collection is reported as resumed, too, before it is begun again
//!   (src/coreclr/vm/threadsuspend.cpp, `SuspendEE`): only one that was finished counts. A module that
//!   has ended is not asked about before another is loaded in its place.
//! - *Suspensions.* What the runtime frees while all of its threads are suspended it guards by nothing else:
//!   a collection takes out of its lists the code of dynamic methods that ended before, and old tables of
//!   precompiled methods are freed when the threads are let run (`CleanupCodeHeaps`, `SyncClean`). The
//!   bridge's own thread is none of them, so the gate is shut from `RuntimeSuspendStarted` to
//!   `RuntimeResumeStarted`.
//! - *Lists* of ids are used up within the section that took them, or while [`Lifetimes::unloads`]
//!   has not changed since: no function of a list reveals what keeps it alive (`List<T>` of the
//!   core library, made for a type of a collectible module, lives in that module), so all of them
//!   are dropped.
//! - *Dynamic methods.* Their callback notes the address of their code until new code is reported
//!   there, and waits for the section: that address is not looked up again.
//! - *Threads* are listed once. Those that end are noted before, and not queried.
//! - *The program's event sources* are called for each change of a session, and are disposed of at its end:
//!   see [`crate::pipe`].
//! - *Unloads that began before the bridge attached* are waited for: see [`Lifetimes::settle`].
//!
//! No runtime lock is held in the callbacks that wait, with three exceptions. The third is the program's end
//! ([`crate::pipe`]), whose waits are short. A detached thread's end
//! is reported under the lock of the thread list: sections of the threads' gate take no lock. So is a
//! suspension, whose threads begin to stop: it waits no longer than [`SUSPENDING`]. **Invariant:** sections
//! take only locks of the runtime's that none of its threads stops with (`CRST_UNSAFE_ANYMODE`,
//! `CRST_GC_NOTRIGGER_WHEN_TAKEN`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use strata_bridge_protocol::shared_file::monotonic_time;

use crate::dead_code::DeadCode;
use crate::gate::Gate;
use strata_bridge_protocol::table::Table;

/// `COR_PRF_SUSPEND_FOR_APPDOMAIN_SHUTDOWN` (corprof.idl): also for a collectible module.
const SUSPENDED_TO_UNLOAD: u32 = 2;

/// An unload that began before the bridge attached is over after this time, unless its thread did
/// not run.
const SETTLING: u64 = 100_000_000;
/// The thread that unloads may be busy with finalizers forever.
const SETTLING_MOST: u64 = 3_000_000_000;

/// How long a suspension waits for a section, in hundredths of a second.
const SUSPENDING: u32 = 25;

/// How long the end of the process waits for the change of a session, in hundredths of a second: code of the
/// program's may run in it, and wait for that end.
const CHANGING: u32 = 200;

/// A thread that sleeps so long after a module's end is not about to free it: its load failed.
const ABANDONED: u64 = 10_000_000_000;

/// The most ended threads, ended modules and failed modules tracked.
const MOST_REMEMBERED: usize = 65_536;

/// A suspension of the runtime's threads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suspension {
    None,
    Begun,
    Complete,
}

/// A thread that unloads modules.
struct Unload {
    tid: u32,
    /// Modules between the two callbacks of their unload.
    open: u32,
    /// One of them may have had code.
    has_code: bool,
    /// The suspension that removes the code.
    suspension: Suspension,
    since: u64,
}

pub struct Lifetimes {
    code: Gate,
    threads: Gate,
    /// Calls that use no id: only the end of the process waits for them.
    calls: Gate,
    /// Changes of sessions of events, which the program's event sources are called for.
    changes: Gate,
    unloads: AtomicU64,
    unloading: Mutex<Vec<Unload>>,
    is_unloading: AtomicBool,
    /// The runtime suspends its threads, or has.
    is_suspended: AtomicBool,
    /// Modules whose load is under way or failed.
    half_loaded: Mutex<Table<()>>,
    /// Modules whose end was reported.
    ended_modules: Mutex<Table<()>>,
    dead_code: Mutex<DeadCode>,
    has_dead_code: AtomicBool,
    /// `None` once all threads have been listed, or there were too many.
    ended_threads: Mutex<Option<Table<()>>>,
    /// When the runtime could be queried first; 0: not yet.
    asked_from: AtomicU64,
    is_settled: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes an id, unless there is no memory.
fn remember(ids: &Mutex<Table<()>>, id: usize) {
    let mut ids = lock(ids);
    if ids.len() >= MOST_REMEMBERED {
        ids.clear();
    }
    let _ = ids.insert(id as u64, ());
}

impl Lifetimes {
    /// `attached`: the runtime was running before the bridge was loaded.
    pub fn new(attached: bool) -> Self {
        let code = Gate::new();
        if attached {
            code.shut();
        }
        Lifetimes {
            code,
            threads: Gate::new(),
            calls: Gate::new(),
            changes: Gate::new(),
            unloads: AtomicU64::new(0),
            unloading: Mutex::new(Vec::new()),
            is_unloading: AtomicBool::new(false),
            is_suspended: AtomicBool::new(false),
            half_loaded: Mutex::new(Table::new()),
            ended_modules: Mutex::new(Table::new()),
            dead_code: Mutex::new(DeadCode::new()),
            has_dead_code: AtomicBool::new(false),
            ended_threads: Mutex::new(Some(Table::new())),
            asked_from: AtomicU64::new(0),
            is_settled: AtomicBool::new(!attached),
        }
    }

    pub fn code(&self) -> &Gate {
        &self.code
    }

    pub fn threads(&self) -> &Gate {
        &self.threads
    }

    pub fn calls(&self) -> &Gate {
        &self.calls
    }

    pub fn changes(&self) -> &Gate {
        &self.changes
    }

    /// Changes with every unload of a module.
    pub fn unloads(&self) -> u64 {
        self.unloads.load(Ordering::SeqCst)
    }

    /// Whether unloads and suspensions that began before the bridge came are over. The thread that unloads
    /// is the runtime's finalizer: when it sleeps a while after the first callback that the bridge got, it
    /// is not between a callback that the bridge did not get and the unload that it precedes. It sleeps
    /// in a long collection, too: `no_suspension` returns when none of before is under way.
    pub fn settle(
        &self,
        now: u64,
        finalizer_sleeps: impl FnOnce() -> bool,
        no_suspension: impl FnOnce(),
    ) -> bool {
        if self.is_settled.load(Ordering::Relaxed) {
            return true;
        }
        let _ = self.asked_from.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let passed = now.saturating_sub(self.asked_from.load(Ordering::Relaxed));
        if passed < SETTLING || (passed < SETTLING_MOST && !finalizer_sleeps()) {
            return false;
        }
        no_suspension();
        self.is_settled.store(true, Ordering::Relaxed);
        self.code.open();
        true
    }

    /// Changes the set of modules that this thread unloads; the gate is shut while there are any.
    fn unload_of<T>(&self, tid: u32, change: impl FnOnce(&mut Unload) -> T) -> Option<T> {
        let mut unloading = lock(&self.unloading);
        let position = match unloading.iter().position(|unload| unload.tid == tid) {
            Some(position) => position,
            None => {
                self.code.shut();
                self.is_unloading.store(true, Ordering::SeqCst);
                // Without memory the gate stays shut permanently.
                unloading.try_reserve(1).ok()?;
                unloading.push(Unload {
                    tid,
                    open: 0,
                    has_code: false,
                    suspension: Suspension::None,
                    since: 0,
                });
                unloading.len() - 1
            }
        };
        unloading.get_mut(position).map(change)
    }

    fn end_unload(&self, unloading: &mut Vec<Unload>, ends: impl Fn(&Unload) -> bool) -> usize {
        let before = unloading.len();
        unloading.retain(|unload| !ends(unload));
        if unloading.is_empty() {
            self.is_unloading.store(false, Ordering::SeqCst);
        }
        let ended = before - unloading.len();
        (0..ended).for_each(|_| self.code.open());
        ended
    }

    /// A module ends. When this returns, no id of it is in use. `false`: the wait timed out.
    pub fn module_unload_started(&self, tid: u32, module: usize) -> bool {
        let has_code = lock(&self.half_loaded).remove(module as u64).is_none();
        remember(&self.ended_modules, module);
        self.unload_of(tid, |unload| {
            unload.open += 1;
            unload.has_code |= has_code;
            unload.suspension = Suspension::None;
        });
        self.unloads.fetch_add(1, Ordering::SeqCst);
        self.code.wait_for_section()
    }

    /// `false`: the wait for a section timed out.
    pub fn module_unload_finished(&self, tid: u32) -> bool {
        // Without a start it began before the bridge attached.
        let began_before = self.unload_of(tid, |unload| {
            let began_before = unload.open == 0;
            unload.has_code |= began_before;
            unload.open = unload.open.saturating_sub(1);
            unload.since = monotonic_time();
            began_before
        });
        let mut unloading = lock(&self.unloading);
        self.end_unload(&mut unloading, |unload| {
            unload.tid == tid && unload.open == 0 && !unload.has_code
        });
        drop(unloading);
        began_before == Some(false) || self.code.wait_for_section()
    }

    /// When this returns, no section runs. `false`: the wait timed out.
    pub fn suspend_started(&self, tid: u32, reason: u32) -> bool {
        if !self.is_suspended.swap(true, Ordering::SeqCst) {
            self.code.shut();
        }
        if reason == SUSPENDED_TO_UNLOAD {
            self.unload_of(tid, |unload| {
                unload.suspension = Suspension::Begun;
                unload.since = monotonic_time();
            });
            self.unloads.fetch_add(1, Ordering::SeqCst);
        }
        self.code.wait_for_section_at_most(SUSPENDING)
    }

    /// All threads stand still: the suspension was not given up.
    pub fn suspend_finished(&self, tid: u32) {
        if self.is_unloading.load(Ordering::SeqCst)
            && let Some(unload) = lock(&self.unloading).iter_mut().find(|unload| unload.tid == tid)
            && unload.suspension == Suspension::Begun
        {
            unload.suspension = Suspension::Complete;
        }
    }

    /// The threads are let run, after a suspension or one that was given up.
    pub fn resume_started(&self) {
        if self.is_suspended.swap(false, Ordering::SeqCst) {
            self.code.open();
        }
    }

    pub fn resume_finished(&self, tid: u32) {
        if self.is_unloading.load(Ordering::SeqCst) {
            let mut unloading = lock(&self.unloading);
            self.end_unload(&mut unloading, |unload| {
                let is_out = unload.suspension == Suspension::Complete;
                unload.tid == tid && unload.open == 0 && is_out
            });
        }
    }

    /// Drops unloads that no callback will end. Returns their number.
    pub fn give_up_abandoned(&self, now: u64, sleeps: impl Fn(u32) -> bool) -> usize {
        let mut unloading = lock(&self.unloading);
        self.end_unload(&mut unloading, |unload| {
            unload.open == 0 && now.saturating_sub(unload.since) > ABANDONED && sleeps(unload.tid)
        })
    }

    pub fn module_load_started(&self, module: usize) {
        // Without memory its callback arrives all the same.
        remember(&self.half_loaded, module);
        lock(&self.ended_modules).remove(module as u64);
    }

    pub fn module_load_finished(&self, module: usize, loaded: bool) {
        if loaded {
            lock(&self.half_loaded).remove(module as u64);
            lock(&self.ended_modules).remove(module as u64);
        }
    }

    /// A callback names a module that is alive.
    pub fn module_lives(&self, module: usize) {
        lock(&self.ended_modules).remove(module as u64);
    }

    /// Whether a module has ended, and none was loaded in its place.
    pub fn has_ended(&self, module: usize) -> bool {
        lock(&self.ended_modules).get(module as u64).is_some()
    }

    pub fn is_half_loaded(&self, module: usize) -> bool {
        lock(&self.half_loaded).get(module as u64).is_some()
    }

    /// A dynamic method's code ends: when this returns, no lookup reads there.
    pub fn code_ends(&self, pieces: impl Iterator<Item = (usize, usize)>) -> bool {
        let mut dead = lock(&self.dead_code);
        pieces.for_each(|(start, size)| dead.insert(start, size));
        drop(dead);
        self.has_dead_code.store(true, Ordering::SeqCst);
        self.code.shut();
        let awaited = self.code.wait_for_section();
        self.code.open();
        awaited
    }

    /// Code was compiled here.
    pub fn code_lives(&self, start: usize, size: usize) {
        if self.has_dead_code.load(Ordering::SeqCst) {
            lock(&self.dead_code).remove(start, size);
        }
    }

    /// Whether the code at an address has ended. Called within a section.
    pub fn is_dead_code(&self, address: usize) -> bool {
        self.has_dead_code.load(Ordering::SeqCst) && lock(&self.dead_code).contains(address)
    }

    pub fn thread_created(&self, thread: usize) {
        if let Some(ended) = lock(&self.ended_threads).as_mut() {
            ended.remove(thread as u64);
        }
    }

    pub fn thread_destroyed(&self, thread: usize) -> bool {
        let mut ended = lock(&self.ended_threads);
        let Some(table) = ended.as_mut() else { return true };
        if table.len() >= MOST_REMEMBERED || table.insert(thread as u64, ()).is_err() {
            *ended = None;
        }
        drop(ended);
        self.threads.shut();
        let awaited = self.threads.wait_for_section();
        self.threads.open();
        awaited
    }

    /// Whether a listed thread may be queried. Called within a section.
    pub fn is_thread_alive(&self, thread: usize) -> bool {
        lock(&self.ended_threads).as_ref().is_some_and(|ended| ended.get(thread as u64).is_none())
    }

    /// Whether threads are still to be listed.
    pub fn may_list_threads(&self) -> bool {
        lock(&self.ended_threads).is_some()
    }

    /// From now on the callbacks report all changes of threads.
    pub fn threads_are_listed(&self) {
        *lock(&self.ended_threads) = None;
    }

    /// The end of the process: waits for what is under way.
    pub fn close(&self) {
        let gates = [&self.code, &self.threads, &self.calls];
        gates.into_iter().chain([&self.changes]).for_each(Gate::shut);
        // The change of a session may be a part of a call.
        let is_changed = self.changes.wait_for_section_at_most(CHANGING);
        for gate in [&self.code, &self.threads] {
            gate.wait_for_section();
        }
        if is_changed {
            self.calls.wait_for_section();
        }
    }

    /// Prevents further uses of ids, without waiting.
    pub fn shut_for_good(&self) {
        for gate in [&self.code, &self.threads] {
            gate.shut();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINALIZER: u32 = 7;

    fn is_open(lifetimes: &Lifetimes) -> bool {
        lifetimes.code().enter().is_some()
    }

    #[test]
    fn nothing_is_asked_from_a_modules_end_until_its_code_is_out_of_the_runtimes_lists() {
        let lifetimes = Lifetimes::new(false);
        assert!(is_open(&lifetimes));
        let before = lifetimes.unloads();
        lifetimes.module_unload_started(FINALIZER, 1);
        lifetimes.module_unload_finished(FINALIZER);
        assert!(!is_open(&lifetimes));
        // A collection, and another thread's.
        lifetimes.suspend_started(FINALIZER, 1);
        lifetimes.suspend_finished(FINALIZER);
        resume(&lifetimes);
        lifetimes.resume_finished(8);
        assert!(!is_open(&lifetimes));
        // The suspension gives way to a collection, and is begun again.
        lifetimes.suspend_started(FINALIZER, SUSPENDED_TO_UNLOAD);
        resume(&lifetimes);
        assert!(!is_open(&lifetimes));
        suspend_and_resume(&lifetimes);
        assert!(is_open(&lifetimes));
        assert!(lifetimes.unloads() > before);
    }

    fn resume(lifetimes: &Lifetimes) {
        lifetimes.resume_started();
        lifetimes.resume_finished(FINALIZER);
    }

    fn suspend_and_resume(lifetimes: &Lifetimes) {
        lifetimes.suspend_started(FINALIZER, SUSPENDED_TO_UNLOAD);
        assert!(!is_open(lifetimes));
        lifetimes.suspend_finished(FINALIZER);
        resume(lifetimes);
    }

    #[test]
    fn nothing_is_asked_while_the_runtimes_threads_are_suspended() {
        let lifetimes = Lifetimes::new(false);
        let section = lifetimes.code().enter();
        std::thread::scope(|scope| {
            let suspends = scope.spawn(|| {
                assert!(lifetimes.suspend_started(8, 1));
                assert!(!is_open(&lifetimes));
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!suspends.is_finished());
            drop(section);
        });
        lifetimes.suspend_finished(8);
        lifetimes.resume_started();
        assert!(is_open(&lifetimes));
        // The end of one whose start was missed.
        lifetimes.resume_started();
        assert!(is_open(&lifetimes));
        // One that does not end delays no collection for long.
        let _section = lifetimes.code().enter();
        assert!(!lifetimes.suspend_started(8, 1));
    }

    #[test]
    fn a_module_that_has_ended_is_not_asked_about_before_another_has_its_place() {
        let lifetimes = Lifetimes::new(false);
        lifetimes.module_unload_started(FINALIZER, 1);
        assert!(lifetimes.has_ended(1) && !lifetimes.has_ended(2));
        lifetimes.module_load_started(1);
        assert!(!lifetimes.has_ended(1));
        lifetimes.module_unload_started(FINALIZER, 1);
        lifetimes.module_lives(1);
        assert!(!lifetimes.has_ended(1));
    }

    #[test]
    fn a_module_whose_load_failed_ends_with_its_callback() {
        let lifetimes = Lifetimes::new(false);
        lifetimes.module_load_started(1);
        assert!(lifetimes.is_half_loaded(1));
        lifetimes.module_load_finished(1, false);
        assert!(lifetimes.is_half_loaded(1));
        lifetimes.module_unload_started(9, 1);
        assert!(!is_open(&lifetimes));
        lifetimes.module_unload_finished(9);
        assert!(is_open(&lifetimes) && !lifetimes.is_half_loaded(1));
    }

    #[test]
    fn an_unload_that_began_before_the_bridge_came_is_waited_for() {
        let lifetimes = Lifetimes::new(true);
        assert!(!is_open(&lifetimes));
        assert!(!lifetimes.settle(1, || true, || ()));
        assert!(!lifetimes.settle(SETTLING, || true, || ()));
        assert!(!lifetimes.settle(SETTLING + 1, || false, || ()));
        assert!(lifetimes.settle(SETTLING + 2, || true, || ()) && is_open(&lifetimes));
        // Its second half only.
        lifetimes.module_unload_finished(FINALIZER);
        assert!(!is_open(&lifetimes));
        suspend_and_resume(&lifetimes);
        assert!(is_open(&lifetimes));
        // Its suspension only.
        suspend_and_resume(&lifetimes);
        assert!(is_open(&lifetimes));
    }

    #[test]
    fn an_unload_without_an_end_is_given_up_only_when_its_thread_sleeps() {
        let lifetimes = Lifetimes::new(false);
        lifetimes.module_unload_started(9, 1);
        let later = monotonic_time() + 2 * ABANDONED;
        assert_eq!(lifetimes.give_up_abandoned(later, |_| true), 0);
        lifetimes.module_unload_finished(9);
        assert_eq!(lifetimes.give_up_abandoned(monotonic_time(), |_| true), 0);
        assert_eq!(lifetimes.give_up_abandoned(later, |_| false), 0);
        assert!(!is_open(&lifetimes));
        assert_eq!(lifetimes.give_up_abandoned(later, |tid| tid == 9), 1);
        assert!(is_open(&lifetimes));
    }

    #[test]
    fn threads_that_ended_are_not_asked_about() {
        let lifetimes = Lifetimes::new(false);
        lifetimes.thread_destroyed(1);
        assert!(!lifetimes.is_thread_alive(1) && lifetimes.is_thread_alive(2));
        lifetimes.thread_created(1);
        assert!(lifetimes.is_thread_alive(1));
        lifetimes.threads_are_listed();
        assert!(!lifetimes.may_list_threads());
    }
}
