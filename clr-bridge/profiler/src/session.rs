//! A session: the bridge's state from its loading by the runtime until its detach.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use strata_bridge_protocol::clr_event;
use strata_bridge_protocol::record::{Diagnostic, Encode, Level};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::{Count, Loss};

use crate::canonical::Canonical;
use crate::class_names::ClassNames;
use crate::com::info::Info;
use crate::events::Events;
use crate::known::{Known, Module};
use crate::lifetimes::Lifetimes;
use crate::scratch::Pool;
use crate::shared::Shared;
use crate::threads::Threads;
use crate::{modules, tasks};

/// The longest wait for a section: unloads take milliseconds.
const LONGEST_WAIT: u64 = 2_000_000_000;
/// Interval of checks for the end.
const AT_A_TIME: u64 = 20_000_000;

pub struct Session {
    info: Info,
    shared: Shared,
    /// Counts the sessions of this process, from 1.
    number: u64,
    known: Mutex<Known>,
    class_names: ClassNames,
    threads: Threads,
    canonical: Canonical,
    scratch: Pool,
    /// Modules, threads, AppDomains and unloads are reported. This stays on once the log has been
    /// read, so that the log stays correct.
    reporting: AtomicBool,
    /// Compilations are reported.
    compiling: AtomicBool,
    /// They are reported even before there is an owner.
    eager: AtomicBool,
    /// The runtime was running before: strata has attached the bridge, and will detach it.
    attached: bool,
    /// An IL map is reported with every compilation.
    il_maps: AtomicBool,
    events: Events,
    /// The runtime has started far enough to be called from another thread.
    ready: AtomicBool,
    modules_seen: AtomicU32,
    /// The runtime's version.
    major: u16,
    lifetimes: Lifetimes,
    /// The runtime may not be called any more.
    closed: AtomicBool,
    /// A panic was contained.
    given_up: AtomicBool,
}

impl Session {
    /// `major` is the runtime's version; `attached`: it was running before.
    /// `None`: there is no memory.
    pub fn new(
        info: Info,
        shared: Shared,
        number: u64,
        major: u16,
        attached: bool,
    ) -> Option<Session> {
        Some(Session {
            info,
            shared,
            number,
            known: Mutex::new(Known::new()),
            class_names: ClassNames::new(),
            threads: Threads::new(),
            canonical: Canonical::new(major),
            scratch: Pool::new()?,
            reporting: AtomicBool::new(false),
            compiling: AtomicBool::new(false),
            eager: AtomicBool::new(false),
            attached,
            il_maps: AtomicBool::new(false),
            events: Events::new(),
            ready: AtomicBool::new(false),
            modules_seen: AtomicU32::new(0),
            major,
            lifetimes: Lifetimes::new(attached),
            closed: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        })
    }

    pub fn info(&self) -> Info {
        self.info
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Never held across a call into the runtime, nor taken by a thread that a collection waits for.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn class_names(&self) -> &ClassNames {
        &self.class_names
    }

    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    pub fn canonical(&self) -> &Canonical {
        &self.canonical
    }

    pub fn scratch(&self) -> &Pool {
        &self.scratch
    }

    pub fn module(&self, id: usize) -> Option<Module> {
        modules::module(self, id)
    }

    /// Appends a record. `false`: it was lost, and counted.
    pub fn write<E: Encode>(&self, record: &E) -> bool {
        self.shared.append(record)
    }

    /// Writes a diagnostic about the bridge itself.
    pub fn log(&self, level: Level, text: &str) {
        self.write(&Diagnostic { level: level as u8, text });
    }

    pub fn is_reporting(&self) -> bool {
        self.reporting.load(Ordering::Acquire)
    }

    pub fn is_compiling(&self) -> bool {
        self.compiling.load(Ordering::Acquire)
    }

    pub fn is_eager(&self) -> bool {
        self.eager.load(Ordering::SeqCst)
    }

    pub fn set_eager(&self, eager: bool) {
        self.eager.store(eager, Ordering::SeqCst);
    }

    pub fn was_attached(&self) -> bool {
        self.attached
    }

    pub fn wants_il_maps(&self) -> bool {
        self.il_maps.load(Ordering::Relaxed)
    }

    pub fn set_il_maps(&self, wanted: bool) {
        self.il_maps.store(wanted, Ordering::Relaxed);
    }

    pub fn major(&self) -> u16 {
        self.major
    }

    pub fn events(&self) -> &Events {
        &self.events
    }

    pub fn start_reporting(&self) {
        self.reporting.store(true, Ordering::Release);
    }

    /// Stops reporting.
    pub fn stop_reporting(&self) {
        self.reporting.store(false, Ordering::Release);
        self.compiling.store(false, Ordering::Release);
        self.events.want(0);
    }

    /// Subscribes to the events that reporting needs; to compilations only with a reader. The
    /// runtime refuses a mask as a whole, so fewer are requested until it accepts.
    pub fn set_events(&self, compilations: bool) -> bool {
        // COR_PRF_MONITOR and COR_PRF_HIGH_MONITOR (corprof.idl).
        const MODULE_LOADS: u32 = 0x4;
        const APP_DOMAIN_LOADS: u32 = 0x10;
        const JIT_COMPILATION: u32 = 0x20;
        const THREADS: u32 = 0x200;
        const EXCEPTIONS: u32 = 0x40;
        const SUSPENDS: u32 = 0x1_0000;
        const STACK_SNAPSHOT: u32 = 0x1000_0000;
        const DYNAMIC_FUNCTION_UNLOADS: u32 = 0x4;
        const EVENT_PIPE: u32 = 0x80;
        let jit = if compilations { JIT_COMPILATION } else { 0 };
        let exceptions = if self.events.wants(clr_event::kind::EXCEPTION) { EXCEPTIONS } else { 0 };
        let least = MODULE_LOADS | THREADS | SUSPENDS | jit | exceptions;
        let pipe = if self.events.of_sessions() != 0 { EVENT_PIPE } else { 0 };
        let masks = [
            (least | APP_DOMAIN_LOADS | STACK_SNAPSHOT, DYNAMIC_FUNCTION_UNLOADS | pipe),
            (least | APP_DOMAIN_LOADS, DYNAMIC_FUNCTION_UNLOADS | pipe),
            (least | APP_DOMAIN_LOADS | STACK_SNAPSHOT, 0),
            (least, 0),
            (MODULE_LOADS | SUSPENDS | jit, 0),
        ];
        // Before the mask: an event may come while it is being set.
        self.compiling.store(compilations, Ordering::Release);
        for (low, high) in masks {
            if self.info.set_event_mask(low, high) >= 0 {
                return true;
            }
        }
        self.shared.lost(Loss::RuntimeCall);
        false
    }

    /// A module was loaded. While the runtime starts, its own library is the first, and with the
    /// next one it is about to run the app.
    pub fn module_came(&self) {
        if !self.is_ready() && self.modules_seen.fetch_add(1, Ordering::Relaxed) > 0 {
            self.runtime_is_ready();
        }
    }

    pub fn runtime_is_ready(&self) {
        self.ready.store(true, Ordering::Release);
        self.shared.writer().ring();
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Runs one runtime call, or the report of one id, in a section: while it runs, no unload
    /// callback returns. Waits for a bounded time for unloads that are under way. `None`: it was
    /// not run.
    pub fn in_section<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let until = monotonic_time() + LONGEST_WAIT;
        loop {
            if self.is_closed() || self.is_given_up() {
                return None;
            }
            if let Some(_section) = self.lifetimes.code().enter() {
                return Some(work());
            }
            if monotonic_time() >= until {
                return None;
            }
            self.lifetimes.code().wait_until_open(AT_A_TIME);
            let given_up = self.lifetimes.give_up_abandoned(monotonic_time(), tasks::sleeps);
            (0..given_up).for_each(|_| self.shared.lost(Loss::UnloadNotAwaited));
        }
    }

    /// Runs what concerns one listed thread, unless it has ended.
    pub fn in_section_of_thread(&self, thread: usize, work: impl FnOnce()) {
        let gate = self.lifetimes.threads();
        while !self.is_closed() && !self.is_given_up() {
            if let Some(_section) = gate.enter() {
                if self.lifetimes.is_thread_alive(thread) {
                    work();
                }
                return;
            }
            gate.wait_until_open(AT_A_TIME);
        }
    }

    /// Runs a call that uses no id.
    pub fn call<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let _section = self.lifetimes.calls().enter()?;
        Some(work())
    }

    pub fn lifetimes(&self) -> &Lifetimes {
        &self.lifetimes
    }

    /// Unloads are waited for by their callbacks; here a wait that timed out is counted.
    pub fn count_awaited(&self, awaited: bool) {
        if !awaited {
            self.shared.lost(Loss::UnloadNotAwaited);
        }
    }

    /// The runtime is shutting down: nothing may call it any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if !self.shared.writer().is_forked() {
            self.lifetimes.close();
        }
    }

    /// After a panic: no id is used any more, but the runtime can be asked to detach.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        self.lifetimes.shut_for_good();
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub fn set_context(&self, tid: u32, app_domain: usize) {
        self.shared.enter_thread(tid, app_domain);
    }

    pub fn remove_context(&self, tid: u32) {
        self.shared.writer().remove_thread(tid);
    }

    /// Counts the CPU time of a piece of work.
    pub fn timed(&self, work: impl FnOnce()) {
        let start = cost_clock();
        work();
        self.shared.count(Count::Callbacks, 1);
        self.shared.count(Count::BusyNanoseconds, cost_clock().saturating_sub(start));
    }

    /// Releases every runtime object. The session is not used any more.
    pub fn release(&self) {
        for metadata in self.known().metadata() {
            metadata.release();
        }
        self.info.release();
    }
}

/// The clock for the bridge's own time: the monotonic clock, which costs 25 ns.
#[cfg(not(feature = "measure"))]
fn cost_clock() -> u64 {
    monotonic_time()
}

/// The clock for the bridge's own time: the thread's CPU clock, which is a system call.
#[cfg(feature = "measure")]
fn cost_clock() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
