//! The part of strata that runs inside a .NET process: a profiler of the CLR's.
//!
//! The runtime loads it because the environment names it (`CORECLR_*`) or because strata asked over
//! the diagnostics socket. It publishes what only the runtime knows (methods and their code,
//! modules, types, threads, AppDomains) through memory that it shares ([`strata_bridge_protocol`]),
//! and does nothing else: no file, no output, no signal handler, no waiting for a reader.
//!
//! | module | holds |
//! |---|---|
//! | `com` | the runtime's interfaces, called by slot, gated by version |
//! | `callbacks` | the table that the runtime calls; containment of panics |
//! | `lifecycle` | from the first call to the last: one session at a time |
//! | `session` | what lives from attach to detach |
//! | `lookup`, `own_thread` | the bridge's own thread: applies wishes, enumerates, answers requests |
//! | `enumerate` | what was there before its owner came |
//! | `methods`, `types`, `modules`, `threads`, `domains`, `il_maps` | what is reported, each in its record |
//! | `events`, `sampling` | events with a stack: the function that strata probes, and which are chosen |
//! | `snapshots` | stacks of events that the runtime walks, where strata cannot have a probe |
//! | `exceptions` | events of thrown exceptions |
//! | `pipe` | the sessions of the runtime's own events: waits for locks, allocations, collections |
//! | `repeated` | events that the runtime delivers more than once |
//! | `contention` | the owner of the lock that a thread waits for |
//! | `wait_handles` | how long a thread has waited for a handle |
//! | `allocations` | events of allocations, and objects to watch |
//! | `duty_cycle` | when events of allocations are on: all the time, or in windows |
//! | `objects`, `collections` | which sampled objects are alive, by weak handles |
//! | `pauses` | which suspensions of the process are pauses for a collection |
//! | `lifetimes`, `gate`, `dead_code` | how long the runtime's ids may be used |
//! | `asking` | lookup of code addresses on request |
//! | `compilations` | where a function's code lies |
//! | `metadata`, `image`, `signature` | a module's own words, read where the runtime mapped them |
//! | `canonical` | the class of shared code, where the interface gives none |
//! | `known` | what was reported already |
//! | `class_names` | names of classes for events, without waiting |
//! | `faults` | what the bridge's tests provoke, in debug builds |
//! | `scratch` | room for texts that is not on the app's stacks |
//! | `shared` | the shared memory |
//!
//! **Invariant:** the bridge never crashes the app, never makes it wait for strata, and restores
//! everything when it detaches.

mod allocations;
mod asking;
mod callbacks;
mod canonical;
mod class_names;
mod collections;
mod com;
mod compilations;
mod contention;
mod dead_code;
mod domains;
mod duty_cycle;
mod enumerate;
mod events;
mod exceptions;
mod faults;
mod forced_collections;
mod gate;
mod il_maps;
mod image;
mod known;
mod lifecycle;
mod lifetimes;
mod lookup;
mod metadata;
mod methods;
mod modules;
mod objects;
#[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
mod old_glibc;
mod own_thread;
mod pauses;
mod pipe;
mod repeated;
mod sampling;
mod scratch;
mod session;
mod shared;
mod snapshots;
#[cfg(feature = "measure")]
mod stack_use;
mod tasks;
mod text;
mod threads;
mod types;
mod wait_handles;

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use com::{CLASS_E_CLASSNOTAVAILABLE, E_FAIL, E_POINTER, Guid, HResult};

/// The profiler's class identity, `{8A4D1E52-6F0B-4C39-9B7E-D5C1A7F23E60}`: for `CORECLR_PROFILER`,
/// `CORECLR_NOTIFICATION_PROFILERS` and the attach command.
pub const CLASS: Guid = Guid::new(0x8a4d1e52_6f0b_4c39_9b7e_d5c1a7f23e60);

/// The entry point that the runtime calls first: returns the class factory.
///
/// # Safety
/// `class` and `interface` are null or identities, `found` is null or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DllGetClassObject(
    class: *const Guid,
    interface: *const Guid,
    found: *mut *mut c_void,
) -> HResult {
    if class.is_null() || interface.is_null() || found.is_null() {
        return E_POINTER;
    }
    // SAFETY: not null, so an identity.
    if unsafe { *class } != CLASS {
        return CLASS_E_CLASSNOTAVAILABLE;
    }
    // A panic may not write to the app's standard error.
    if catch_unwind(|| std::panic::set_hook(Box::new(|_| ()))).is_err() {
        return E_FAIL;
    }
    let factory = (&raw const callbacks::factory::FACTORY).cast_mut().cast::<c_void>();
    // SAFETY: the factory begins with its table, whose first slot is QueryInterface.
    match unsafe { com::Interface::from_raw(factory) } {
        // SAFETY: as above; the caller's pointers are passed on.
        Some(factory) => unsafe {
            type Query =
                unsafe extern "C" fn(*mut c_void, *const Guid, *mut *mut c_void) -> HResult;
            factory.slot::<Query>(0)(factory.raw(), interface, found)
        },
        None => E_FAIL,
    }
}

/// Never: the runtime keeps a profiler's library mapped, and threads may still return through it.
#[unsafe(no_mangle)]
pub extern "C" fn DllCanUnloadNow() -> HResult {
    const S_FALSE: HResult = 1;
    S_FALSE
}

/// Called by a tracer: the service and runtime id of the calling thread's AppDomain. The last call
/// wins. Texts are UTF-8; null means nothing. Name and signature are those that dd-trace-dotnet's
/// profiler exports (`PInvoke.h`), so that its callers work unchanged.
///
/// # Safety
/// Each argument is null or a NUL-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SetApplicationInfoForAppDomain(
    runtime_id: *const c_char,
    service_name: *const c_char,
    environment: *const c_char,
    version: *const c_char,
) {
    let text = |pointer: *const c_char| {
        if pointer.is_null() {
            return "";
        }
        // SAFETY: the caller promises a NUL-terminated text that lives during the call.
        let text = unsafe { CStr::from_ptr(pointer) };
        text::valid_part(text.to_bytes())
    };
    let work = || {
        let mut application = domains::Application {
            runtime_id: domains::parse_uuid(text(runtime_id)),
            ..domains::Application::default()
        };
        domains::set(&mut application.service, text(service_name));
        domains::set(&mut application.environment, text(environment));
        domains::set(&mut application.version, text(version));
        lifecycle::as_guest(|session| domains::bind(session, application));
    };
    // SAFETY: every libc has it, and it is a plain thread-local.
    let errno = unsafe { *libc::__errno_location() };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        std::mem::forget(payload);
        lifecycle::panicked();
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
