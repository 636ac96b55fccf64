//! The table of the callback object: 98 slots in the order of corprof.idl.

use std::ffi::c_void;

/// The callback object: a pointer to its table.
#[repr(C)]
pub struct Callback {
    table: &'static Table,
}

/// Slots of `ICorProfilerCallback11` and all that it derives from.
pub const SLOTS: usize = 98;

#[repr(C)]
struct Table {
    slots: [Slot; SLOTS],
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Slot(*const c_void);

// SAFETY: a slot is the address of a function.
unsafe impl Sync for Slot {}

/// The slots that are not ignored.
mod slot {
    // IUnknown
    pub const QUERY_INTERFACE: usize = 0;
    pub const ADD_REFERENCE: usize = 1;
    pub const RELEASE: usize = 2;
    // ICorProfilerCallback: 3 to 71
    pub const INITIALIZE: usize = 3;
    pub const SHUTDOWN: usize = 4;
    pub const APP_DOMAIN_CREATION_FINISHED: usize = 6;
    pub const APP_DOMAIN_SHUTDOWN_FINISHED: usize = 8;
    pub const MODULE_LOAD_STARTED: usize = 13;
    pub const MODULE_LOAD_FINISHED: usize = 14;
    pub const MODULE_UNLOAD_STARTED: usize = 15;
    pub const MODULE_UNLOAD_FINISHED: usize = 16;
    pub const MODULE_ATTACHED_TO_ASSEMBLY: usize = 17;
    pub const JIT_COMPILATION_FINISHED: usize = 24;
    pub const JIT_INLINING: usize = 28;
    pub const THREAD_CREATED: usize = 29;
    pub const THREAD_DESTROYED: usize = 30;
    pub const THREAD_ASSIGNED_TO_OS_THREAD: usize = 31;
    pub const RUNTIME_SUSPEND_STARTED: usize = 42;
    pub const RUNTIME_SUSPEND_FINISHED: usize = 43;
    pub const RUNTIME_RESUME_STARTED: usize = 45;
    pub const RUNTIME_RESUME_FINISHED: usize = 46;
    pub const EXCEPTION_THROWN: usize = 54;
    // ICorProfilerCallback2: 72 to 79
    pub const THREAD_NAME_CHANGED: usize = 72;
    // ICorProfilerCallback3: 80 to 82
    pub const INITIALIZE_FOR_ATTACH: usize = 80;
    pub const PROFILER_ATTACH_COMPLETE: usize = 81;
    pub const PROFILER_DETACH_SUCCEEDED: usize = 82;
    // ICorProfilerCallback4: 83 to 88
    pub const REJIT_COMPILATION_FINISHED: usize = 85;
    // ICorProfilerCallback5, 6 and 7: 89, 90 and 91
    // ICorProfilerCallback8: 92 and 93
    pub const DYNAMIC_METHOD_JIT_COMPILATION_FINISHED: usize = 93;
    // ICorProfilerCallback9
    pub const DYNAMIC_METHOD_UNLOADED: usize = 94;
    // ICorProfilerCallback10: 95 and 96
    pub const EVENT_PIPE_EVENT_DELIVERED: usize = 95;
    // ICorProfilerCallback11
    pub const LOAD_AS_NOTIFICATION_ONLY: usize = 97;
}

macro_rules! table {
    ($($slot:ident => $function:ident,)*) => {{
        let mut slots = [Slot(super::ignore as *const c_void); SLOTS];
        $(slots[slot::$slot] = Slot(super::$function as *const c_void);)*
        Table { slots }
    }};
}

static TABLE: Table = table! {
    QUERY_INTERFACE => query_interface,
    ADD_REFERENCE => count_reference,
    RELEASE => count_reference,
    INITIALIZE => initialize,
    SHUTDOWN => shutdown,
    APP_DOMAIN_CREATION_FINISHED => app_domain_creation_finished,
    APP_DOMAIN_SHUTDOWN_FINISHED => app_domain_shutdown_finished,
    MODULE_LOAD_STARTED => module_load_started,
    MODULE_LOAD_FINISHED => module_load_finished,
    MODULE_UNLOAD_STARTED => module_unload_started,
    MODULE_UNLOAD_FINISHED => module_unload_finished,
    MODULE_ATTACHED_TO_ASSEMBLY => module_attached_to_assembly,
    JIT_COMPILATION_FINISHED => jit_compilation_finished,
    JIT_INLINING => jit_inlining,
    THREAD_CREATED => thread_created,
    THREAD_DESTROYED => thread_destroyed,
    THREAD_ASSIGNED_TO_OS_THREAD => thread_assigned_to_os_thread,
    RUNTIME_SUSPEND_STARTED => runtime_suspend_started,
    RUNTIME_SUSPEND_FINISHED => runtime_suspend_finished,
    RUNTIME_RESUME_STARTED => runtime_resume_started,
    RUNTIME_RESUME_FINISHED => runtime_resume_finished,
    EXCEPTION_THROWN => exception_thrown,
    THREAD_NAME_CHANGED => thread_name_changed,
    INITIALIZE_FOR_ATTACH => initialize_for_attach,
    PROFILER_ATTACH_COMPLETE => profiler_attach_complete,
    PROFILER_DETACH_SUCCEEDED => profiler_detach_succeeded,
    REJIT_COMPILATION_FINISHED => rejit_compilation_finished,
    DYNAMIC_METHOD_JIT_COMPILATION_FINISHED => dynamic_method_jit_compilation_finished,
    DYNAMIC_METHOD_UNLOADED => dynamic_method_unloaded,
    EVENT_PIPE_EVENT_DELIVERED => event_pipe_event_delivered,
    LOAD_AS_NOTIFICATION_ONLY => load_as_notification_only,
};

pub static CALLBACK: Callback = Callback { table: &TABLE };
