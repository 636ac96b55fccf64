//! The object that the runtime calls: `ICorProfilerCallback` to `ICorProfilerCallback11`.
//!
//! One static object; reference counts mean nothing to it. **Invariant:** every function in the
//! table returns to the runtime whatever happens: a panic is contained, and after one the bridge
//! stays inactive. `errno` is left as it was found.

mod table;

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use strata_bridge_protocol::clr_event::kind;
use strata_bridge_protocol::status::Loss;

use crate::com::{E_FAIL, E_NOINTERFACE, E_POINTER, Guid, HResult, IUNKNOWN, S_OK};
use crate::compilations::Code;
use crate::lifecycle;
use crate::methods::{self, Reason};
use crate::session::Session;
use crate::{domains, exceptions, faults, modules, pipe, tasks, threads};

pub use table::CALLBACK;

/// Every callback interface up to the newest; the table has the slots of all of them.
const IDENTITIES: [Guid; 11] = [
    Guid::new(0x176fbed1_a55c_4796_98ca_a9da0ef883e7),
    Guid::new(0x8a8cc829_ccf2_49fe_bbae_0f022228071a),
    Guid::new(0x4fd2ed52_7731_4b8d_9469_03d2cc3086c5),
    Guid::new(0x7b63b2e3_107d_4d48_b2f6_f61e229470d2),
    Guid::new(0x8dfba405_8c9f_45f8_bffa_83b14cef78b5),
    Guid::new(0xfc13df4b_4448_4f4f_950c_ba8d19d00c36),
    Guid::new(0xf76a2dba_1d52_4539_866c_2aa518f9efc3),
    Guid::new(0x5bed9b15_c079_4d47_bfe2_215a140c07e0),
    Guid::new(0x27583ec3_c8f5_482f_8052_194b8ce4705a),
    Guid::new(0xcec5b60e_c69c_495f_87f6_84d28ee16ffb),
    Guid::new(0x42350846_aaed_47f7_b128_fd0c98881cde),
];

/// Runs one callback's work, with panics contained.
fn contained(work: impl FnOnce() -> HResult) -> HResult {
    // SAFETY: every libc has it, and it is a plain thread-local.
    let errno = unsafe { *libc::__errno_location() };
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        // A panic's payload may panic when it is dropped.
        std::mem::forget(payload);
        lifecycle::panicked();
        E_FAIL
    });
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// Runs the work of an event, if there is a session that reports it. In a forked child there is none: its
/// locks may be those of threads that it does not have.
#[inline]
fn event(work: impl FnOnce(&Session)) -> HResult {
    contained(|| {
        if let Some(session) = lifecycle::current()
            && !session.shared().writer().is_forked()
        {
            #[cfg(feature = "measure")]
            let work = crate::stack_use::measured(work);
            work(session);
        }
        S_OK
    })
}

/// Reports about lifetimes are handled also after a panic: a section may be under way. In a forked
/// child there is none.
fn lifetime(work: impl FnOnce(&Session)) -> HResult {
    contained(|| {
        if let Some(session) = lifecycle::even_broken()
            && !session.shared().writer().is_forked()
        {
            work(session);
        }
        S_OK
    })
}

/// The same of reports about suspensions. A server collector's thread is not the runtime's: it is counted
/// by nothing that a detach waits for, and `RuntimeResumeFinished` comes when the lock is free that the
/// detach takes instead (src/coreclr/vm/eetoprofinterfaceimpl.cpp, `EvacuationCounterHolder`). So does the
/// event of the same moment.
fn suspension(work: impl FnOnce(&Session)) -> HResult {
    contained(|| {
        lifecycle::as_guest_even_broken(|session| {
            if let Some(session) = session
                && !session.shared().writer().is_forked()
            {
                work(session);
            }
        });
        S_OK
    })
}

unsafe extern "C" fn query_interface(
    this: *mut c_void,
    identity: *const Guid,
    found: *mut *mut c_void,
) -> HResult {
    if identity.is_null() || found.is_null() {
        return E_POINTER;
    }
    // SAFETY: the caller passes an identity and a place for the result, as COM has it.
    unsafe {
        let known = *identity == IUNKNOWN || IDENTITIES.contains(&*identity);
        *found = if known { this } else { std::ptr::null_mut() };
        if known { S_OK } else { E_NOINTERFACE }
    }
}

unsafe extern "C" fn count_reference(_this: *mut c_void) -> u32 {
    1
}

/// The implementation of every unused callback. The C convention lets the callee ignore arguments,
/// and the caller removes them.
unsafe extern "C" fn ignore(_this: *mut c_void) -> HResult {
    S_OK
}

unsafe extern "C" fn initialize(_this: *mut c_void, unknown: *mut c_void) -> HResult {
    contained(|| {
        // SAFETY: the runtime passes its info object.
        unsafe { lifecycle::start(unknown, lifecycle::Loading::Environment) }
    })
}

unsafe extern "C" fn initialize_for_attach(
    _this: *mut c_void,
    unknown: *mut c_void,
    _data: *mut c_void,
    _size: u32,
) -> HResult {
    contained(|| {
        // SAFETY: the runtime passes its info object.
        unsafe { lifecycle::start(unknown, lifecycle::Loading::Attach) }
    })
}

/// Also after a panic: a bridge that is never ready never detaches.
unsafe extern "C" fn profiler_attach_complete(_this: *mut c_void) -> HResult {
    event(|_| faults::before_the_runtime_is_ready());
    lifetime(Session::runtime_is_ready)
}

unsafe extern "C" fn profiler_detach_succeeded(_this: *mut c_void) -> HResult {
    contained(|| {
        lifecycle::end();
        S_OK
    })
}

unsafe extern "C" fn shutdown(_this: *mut c_void) -> HResult {
    contained(|| {
        lifecycle::shut_down();
        S_OK
    })
}

/// Always yes: it is called before anything else is known, and a notification-only profiler can run
/// beside any other.
unsafe extern "C" fn load_as_notification_only(_this: *mut c_void, answer: *mut i32) -> HResult {
    if answer.is_null() {
        return E_POINTER;
    }
    // SAFETY: the runtime passes a place for the answer.
    unsafe { *answer = 1 };
    S_OK
}

unsafe extern "C" fn app_domain_creation_finished(
    _this: *mut c_void,
    app_domain: usize,
    status: HResult,
) -> HResult {
    event(|session| {
        if status >= 0 {
            domains::learn(session, app_domain);
        }
    })
}

unsafe extern "C" fn app_domain_shutdown_finished(
    _this: *mut c_void,
    app_domain: usize,
    _status: HResult,
) -> HResult {
    event(|session| domains::report_end(session, app_domain))
}

/// The first callback of a module at which its assembly is known.
unsafe extern "C" fn module_attached_to_assembly(
    _this: *mut c_void,
    module: usize,
    _assembly: usize,
) -> HResult {
    lifetime(|session| {
        session.lifetimes().module_lives(module);
        session.module_came();
    });
    event(|session| {
        if session.is_reporting() {
            modules::module(session, module);
        }
    })
}

unsafe extern "C" fn module_load_started(_this: *mut c_void, module: usize) -> HResult {
    lifetime(|session| session.lifetimes().module_load_started(module))
}

unsafe extern "C" fn module_load_finished(
    _this: *mut c_void,
    module: usize,
    status: HResult,
) -> HResult {
    lifetime(|session| session.lifetimes().module_load_finished(module, status >= 0))
}

unsafe extern "C" fn module_unload_started(_this: *mut c_void, module: usize) -> HResult {
    lifetime(|session| {
        session.count_awaited(session.lifetimes().module_unload_started(tasks::own(), module));
    });
    event(|session| modules::report_end(session, module))
}

unsafe extern "C" fn module_unload_finished(
    _this: *mut c_void,
    _module: usize,
    _status: HResult,
) -> HResult {
    lifetime(|session| {
        session.count_awaited(session.lifetimes().module_unload_finished(tasks::own()));
    })
}

/// `COR_PRF_SUSPEND_FOR_GC` (corprof.idl).
const SUSPENDED_TO_COLLECT: u32 = 1;

unsafe extern "C" fn runtime_suspend_started(_this: *mut c_void, reason: u32) -> HResult {
    suspension(|session| {
        let thread = tasks::own();
        if !session.lifetimes().suspend_started(thread, reason) {
            session.shared().lost(Loss::SuspensionNotAwaited);
        }
        if session.events().duty_cycle.suspends(reason) {
            // The thread of concurrent collections is a managed one with either collector.
            let is_managed =
                || reason == SUSPENDED_TO_COLLECT && session.info().current_thread().is_some();
            session.events().forced_collections.suspends(thread, is_managed);
        }
    })
}

unsafe extern "C" fn runtime_suspend_finished(_this: *mut c_void) -> HResult {
    suspension(|session| {
        session.lifetimes().suspend_finished(tasks::own());
        session.events().duty_cycle.suspended();
    })
}

unsafe extern "C" fn runtime_resume_started(_this: *mut c_void) -> HResult {
    suspension(|session| session.lifetimes().resume_started())
}

unsafe extern "C" fn runtime_resume_finished(_this: *mut c_void) -> HResult {
    suspension(|session| session.lifetimes().resume_finished(tasks::own()))
}

unsafe extern "C" fn jit_compilation_finished(
    _this: *mut c_void,
    function: usize,
    status: HResult,
    _safe_to_block: i32,
) -> HResult {
    event(|session| {
        if status >= 0 && session.is_compiling() {
            session.timed(|| methods::report_compiled(session, function, 0));
        }
    })
}

unsafe extern "C" fn rejit_compilation_finished(
    _this: *mut c_void,
    function: usize,
    rejit: usize,
    status: HResult,
    _safe_to_block: i32,
) -> HResult {
    event(|session| {
        if status >= 0 && session.is_compiling() {
            session.timed(|| methods::report_compiled(session, function, rejit));
        }
    })
}

/// Not subscribed to, but delivered with the compilations: the other profilers decide.
unsafe extern "C" fn jit_inlining(
    _this: *mut c_void,
    _caller: usize,
    _callee: usize,
    should_inline: *mut i32,
) -> HResult {
    if !should_inline.is_null() {
        // SAFETY: the runtime passes a place for the answer.
        unsafe { *should_inline = 1 };
    }
    S_OK
}

unsafe extern "C" fn dynamic_method_jit_compilation_finished(
    _this: *mut c_void,
    function: usize,
    status: HResult,
    _safe_to_block: i32,
) -> HResult {
    event(|session| {
        if status >= 0 && session.is_compiling() {
            session.timed(|| {
                methods::report_dynamic(session, function, Reason::Compiled);
            });
        }
    })
}

unsafe extern "C" fn dynamic_method_unloaded(_this: *mut c_void, function: usize) -> HResult {
    lifetime(|session| {
        // The method lives until this callback returns.
        let code = Code::of_dynamic(session, function);
        session.count_awaited(session.lifetimes().code_ends(code.places()));
    });
    event(|session| methods::report_dynamic_end(session, function))
}

unsafe extern "C" fn thread_created(_this: *mut c_void, thread: usize) -> HResult {
    lifetime(|session| session.lifetimes().thread_created(thread))
}

unsafe extern "C" fn thread_assigned_to_os_thread(
    _this: *mut c_void,
    thread: usize,
    tid: u32,
) -> HResult {
    event(|session| threads::assigned(session, thread, tid))
}

unsafe extern "C" fn thread_destroyed(_this: *mut c_void, thread: usize) -> HResult {
    lifetime(|session| session.count_awaited(session.lifetimes().thread_destroyed(thread)));
    event(|session| threads::destroyed(session, thread))
}

/// The thread is in cooperative mode: the object stays where it is until this returns, and a
/// collection waits for it.
unsafe extern "C" fn exception_thrown(_this: *mut c_void, object: usize) -> HResult {
    event(|session| {
        if session.events().wants(kind::EXCEPTION) {
            // SAFETY: the runtime passes the thrown object, and the thread is in cooperative mode.
            unsafe { exceptions::thrown(session, object) };
        }
    })
}

/// Of any session that a profiler of the process has opened; the thread may be in cooperative mode.
unsafe extern "C" fn event_pipe_event_delivered(
    _this: *mut c_void,
    provider: usize,
    id: u32,
    version: u32,
    _metadata_size: u32,
    _metadata: *const u8,
    size: u32,
    data: *const u8,
    _activity: *const Guid,
    _related: *const Guid,
    _thread: usize,
    _frame_count: u32,
    _frames: *const usize,
) -> HResult {
    if pipe::may_end(id) {
        // Also after a panic: sessions are closed then.
        lifetime(|session| pipe::ends(session, provider, id));
    }
    let _guest = (id == pipe::RESTARTED).then(lifecycle::Guest::enter);
    event(|session| {
        let data = if data.is_null() {
            &[]
        } else {
            // SAFETY: the runtime passes that many bytes, which live during the call.
            unsafe { std::slice::from_raw_parts(data, size as usize) }
        };
        pipe::delivered(session, provider, &pipe::Event { id, version, data });
    })
}

unsafe extern "C" fn thread_name_changed(
    _this: *mut c_void,
    thread: usize,
    length: u32,
    name: *const u16,
) -> HResult {
    event(|session| {
        let name = if name.is_null() {
            &[]
        } else {
            // SAFETY: the runtime passes that many units, not ended by a NUL (corprof.idl).
            unsafe { std::slice::from_raw_parts(name, length as usize) }
        };
        threads::renamed(session, thread, name);
    })
}

/// What `DllGetClassObject` hands out: it makes the one callback object.
pub mod factory {
    use super::*;
    use crate::com::{CLASS_E_NOAGGREGATION, ICLASSFACTORY};

    #[repr(C)]
    pub struct Factory {
        table: &'static Table,
    }

    #[repr(C)]
    struct Table {
        query_interface:
            unsafe extern "C" fn(*mut c_void, *const Guid, *mut *mut c_void) -> HResult,
        add_reference: unsafe extern "C" fn(*mut c_void) -> u32,
        release: unsafe extern "C" fn(*mut c_void) -> u32,
        create_instance: unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            *const Guid,
            *mut *mut c_void,
        ) -> HResult,
        lock_server: unsafe extern "C" fn(*mut c_void, i32) -> HResult,
    }

    pub static FACTORY: Factory = Factory {
        table: &Table {
            query_interface,
            add_reference: count_reference,
            release: count_reference,
            create_instance,
            lock_server,
        },
    };

    unsafe extern "C" fn query_interface(
        this: *mut c_void,
        identity: *const Guid,
        found: *mut *mut c_void,
    ) -> HResult {
        if identity.is_null() || found.is_null() {
            return E_POINTER;
        }
        // SAFETY: the caller passes an identity and a place for the result, as COM has it.
        unsafe {
            let known = *identity == IUNKNOWN || *identity == ICLASSFACTORY;
            *found = if known { this } else { std::ptr::null_mut() };
            if known { S_OK } else { E_NOINTERFACE }
        }
    }

    unsafe extern "C" fn create_instance(
        _this: *mut c_void,
        outer: *mut c_void,
        identity: *const Guid,
        made: *mut *mut c_void,
    ) -> HResult {
        if !outer.is_null() {
            return CLASS_E_NOAGGREGATION;
        }
        let callback = (&raw const CALLBACK).cast_mut().cast();
        // SAFETY: the caller passes an identity and a place for the result.
        unsafe { super::query_interface(callback, identity, made) }
    }

    unsafe extern "C" fn lock_server(_this: *mut c_void, _lock: i32) -> HResult {
        S_OK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_does_not_leave_a_callback_and_errno_stays() {
        // SAFETY: every libc has it, and it is a plain thread-local.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno = libc::EAGAIN };
        let result = contained(|| {
            // SAFETY: as above.
            unsafe { *errno = libc::ENOMEM };
            if std::hint::black_box(true) {
                panic!("contained");
            }
            S_OK
        });
        assert_eq!(result, E_FAIL);
        // SAFETY: as above.
        assert_eq!(unsafe { *errno }, libc::EAGAIN);
        assert!(lifecycle::current().is_none());
    }

    #[test]
    fn what_carries_a_panic_may_panic_itself() {
        struct Worse;
        impl Drop for Worse {
            fn drop(&mut self) {
                panic!("while dropping");
            }
        }
        let result = contained(|| std::panic::panic_any(Worse));
        assert_eq!(result, E_FAIL);
    }
}
