//! What lives from the moment the runtime loads the bridge until it has let go of it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use strata_bridge_protocol::record::{Diagnostic, Encode, Level};
#[cfg(not(feature = "measure"))]
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::{Count, Loss};

use crate::canonical::Canonical;
use crate::com::info::Info;
use crate::known::{Known, Module};
use crate::modules;
use crate::shared::Shared;
use crate::threads::Threads;

pub struct Session {
    info: Info,
    shared: Shared,
    /// Counts the sessions of this process, from 1.
    number: u64,
    known: Mutex<Known>,
    threads: Threads,
    canonical: Canonical,
    /// Modules, threads, AppDomains and unloads are told. Once somebody has read the log it stays
    /// so: what is in the log stays true.
    telling: AtomicBool,
    /// Compilations are told.
    compiling: AtomicBool,
    /// An IL map is told with every compilation.
    il_maps: AtomicBool,
    /// The runtime has started far enough to be asked from another thread.
    ready: AtomicBool,
    modules_seen: AtomicU32,
    /// Modules that are going right now.
    unloading: AtomicU32,
    /// The lookup thread is inside the runtime.
    asking: AtomicBool,
    /// The runtime may not be called any more.
    closed: AtomicBool,
}

impl Session {
    /// `major` is the runtime's version.
    pub fn new(info: Info, shared: Shared, number: u64, major: u16) -> Session {
        Session {
            info,
            shared,
            number,
            known: Mutex::new(Known::new()),
            threads: Threads::new(),
            canonical: Canonical::new(major),
            telling: AtomicBool::new(false),
            compiling: AtomicBool::new(false),
            il_maps: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            modules_seen: AtomicU32::new(0),
            unloading: AtomicU32::new(0),
            asking: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
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

    /// Never held across a call into the runtime.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    pub fn canonical(&self) -> &Canonical {
        &self.canonical
    }

    pub fn module(&self, id: usize) -> Option<Module> {
        modules::module(self, id)
    }

    /// Appends a record. `false`: it was lost, and counted.
    pub fn write<E: Encode>(&self, record: &E) -> bool {
        self.shared.append(record)
    }

    /// Says something about the bridge itself.
    pub fn say(&self, level: Level, text: &str) {
        self.write(&Diagnostic { level: level as u8, text });
    }

    pub fn is_telling(&self) -> bool {
        self.telling.load(Ordering::Acquire)
    }

    pub fn is_compiling(&self) -> bool {
        self.compiling.load(Ordering::Acquire)
    }

    pub fn wants_il_maps(&self) -> bool {
        self.il_maps.load(Ordering::Relaxed)
    }

    pub fn set_il_maps(&self, wanted: bool) {
        self.il_maps.store(wanted, Ordering::Relaxed);
    }

    pub fn start_telling(&self) {
        self.telling.store(true, Ordering::Release);
    }

    /// Tells nothing any more.
    pub fn stop_telling(&self) {
        self.telling.store(false, Ordering::Release);
        self.compiling.store(false, Ordering::Release);
    }

    /// Asks for the events that telling needs; compilations only when somebody reads. The runtime
    /// refuses a mask as a whole, so less is asked for until it agrees.
    pub fn set_events(&self, compilations: bool) -> bool {
        // COR_PRF_MONITOR and COR_PRF_HIGH_MONITOR (corprof.idl).
        const MODULE_LOADS: u32 = 0x4;
        const APP_DOMAIN_LOADS: u32 = 0x10;
        const JIT_COMPILATION: u32 = 0x20;
        const THREADS: u32 = 0x200;
        const STACK_SNAPSHOT: u32 = 0x1000_0000;
        const DYNAMIC_FUNCTION_UNLOADS: u32 = 0x4;
        let jit = if compilations { JIT_COMPILATION } else { 0 };
        let least = MODULE_LOADS | THREADS | jit;
        let masks = [
            (least | APP_DOMAIN_LOADS | STACK_SNAPSHOT, DYNAMIC_FUNCTION_UNLOADS),
            (least | APP_DOMAIN_LOADS, DYNAMIC_FUNCTION_UNLOADS),
            (least | APP_DOMAIN_LOADS | STACK_SNAPSHOT, 0),
            (least, 0),
            (MODULE_LOADS | jit, 0),
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

    /// A module came. While the runtime starts, its own library is the first, and with the next one it
    /// is about to run the app.
    pub fn module_came(&self) {
        if !self.is_ready() && self.modules_seen.fetch_add(1, Ordering::Relaxed) > 0 {
            self.runtime_is_ready();
        }
    }

    pub fn runtime_is_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// A module's methods may not be asked about any more. Waits for the lookup thread, which is in
    /// the runtime for microseconds at a time, but not for long.
    pub fn unload_begins(&self) {
        self.unloading.fetch_add(1, Ordering::SeqCst);
        for _ in 0..200 {
            if !self.asking.load(Ordering::SeqCst) {
                return;
            }
            nap(100_000);
        }
    }

    pub fn unload_ends(&self) {
        let _ = self
            .unloading
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    }

    /// Runs a short piece of the lookup thread's work inside the runtime; not while a module goes,
    /// and not after the end.
    pub fn ask<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        for _ in 0..1_000 {
            if self.is_closed() {
                return None;
            }
            self.asking.store(true, Ordering::SeqCst);
            if self.unloading.load(Ordering::SeqCst) == 0 && !self.is_closed() {
                let result = work();
                self.asking.store(false, Ordering::SeqCst);
                return Some(result);
            }
            self.asking.store(false, Ordering::SeqCst);
            nap(1_000_000);
        }
        None
    }

    /// The runtime is shutting down: nobody may call it any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for _ in 0..1_000 {
            if !self.asking.load(Ordering::SeqCst) {
                return;
            }
            nap(100_000);
        }
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

    /// Counts what a piece of work cost.
    pub fn timed(&self, work: impl FnOnce()) {
        let start = cost_clock();
        work();
        self.shared.count(Count::Callbacks, 1);
        self.shared.count(Count::BusyNanoseconds, cost_clock().saturating_sub(start));
    }

    /// Gives everything of the runtime's back. Nobody uses the session any more.
    pub fn release(&self) {
        for metadata in self.known().metadata() {
            metadata.release();
        }
        self.info.release();
    }
}

/// What the bridge's own time is counted by: the monotonic clock, which costs 25 ns.
#[cfg(not(feature = "measure"))]
fn cost_clock() -> u64 {
    monotonic_time()
}

/// What the bridge's own time is counted by: the thread's CPU clock, which is a system call.
#[cfg(feature = "measure")]
fn cost_clock() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn nap(nanoseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: a valid time, and no place for the rest. An early return does no harm.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}
