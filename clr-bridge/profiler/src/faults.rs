//! Faults that the bridge's own tests provoke, in debug builds only: `STRATA_CLR_FAULTS` in the app's
//! environment names them when a session begins.
//!
//! | word | fault |
//! |---|---|
//! | `panic` | the callback panics that reports a thread's new name, if that is "panic" |
//! | `early` | a callback panics before the runtime is ready |
//! | `detach=N` | the runtime refuses to detach the bridge N times |
//! | `stop=N` | the session of events cannot be closed N times |
//! | `rest=N` | windows that were given up are tried again after N milliseconds |
//!
//! **Invariant:** the library that is shipped has none of it.

/// What can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Detach,
    StopSession,
}

#[cfg(debug_assertions)]
mod provoked {
    use std::ffi::CStr;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::Call;

    static AT_A_NAME: AtomicBool = AtomicBool::new(false);
    static EARLY: AtomicBool = AtomicBool::new(false);
    static DETACH: AtomicU32 = AtomicU32::new(0);
    static STOP: AtomicU32 = AtomicU32::new(0);
    static REST: AtomicU32 = AtomicU32::new(0);

    pub fn read() {
        // SAFETY: the name ends with a NUL, and no test changes its environment.
        let value = unsafe { libc::getenv(c"STRATA_CLR_FAULTS".as_ptr()) };
        if value.is_null() {
            return;
        }
        // SAFETY: the environment's texts end with a NUL.
        let value = unsafe { CStr::from_ptr(value) };
        for word in value.to_str().unwrap_or_default().split(',') {
            let (name, number) = word.split_once('=').unwrap_or((word, "1"));
            let number = number.parse().unwrap_or(0);
            match name {
                "panic" => AT_A_NAME.store(true, Ordering::Relaxed),
                "early" => EARLY.store(true, Ordering::Relaxed),
                "detach" => DETACH.store(number, Ordering::Relaxed),
                "stop" => STOP.store(number, Ordering::Relaxed),
                "rest" => REST.store(number, Ordering::Relaxed),
                _ => {}
            }
        }
    }

    pub fn at_a_threads_name(name: &str) {
        assert!(name != "panic" || !AT_A_NAME.swap(false, Ordering::Relaxed), "as wanted");
    }

    pub fn before_the_runtime_is_ready() {
        assert!(!EARLY.swap(false, Ordering::Relaxed), "as wanted");
    }

    pub fn rest_of_windows() -> Option<u64> {
        let milliseconds = REST.load(Ordering::Relaxed);
        (milliseconds != 0).then_some(u64::from(milliseconds))
    }

    pub fn refuses(call: Call) -> bool {
        let left = match call {
            Call::Detach => &DETACH,
            Call::StopSession => &STOP,
        };
        left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

#[cfg(not(debug_assertions))]
mod provoked {
    pub fn read() {}
    pub fn at_a_threads_name(_name: &str) {}
    pub fn before_the_runtime_is_ready() {}
    pub fn rest_of_windows() -> Option<u64> {
        None
    }
    pub fn refuses(_call: super::Call) -> bool {
        false
    }
}

pub use provoked::{
    at_a_threads_name, before_the_runtime_is_ready, read, refuses, rest_of_windows,
};
