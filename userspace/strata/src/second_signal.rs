//! The second Ctrl-C: arrives while strata is still finishing after the first.
//!
//! Finishing reads, names and writes on the thread that would receive signals, for seconds. So a
//! further signal is handled where it arrives.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The message printed then: a pointer and a length, which a signal handler may read.
static TEXT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// The next signal is the first one.
static IS_FIRST: AtomicBool = AtomicBool::new(false);

/// What the first signal prints while strata finishes by itself.
const FINISHING: &str = "\nstrata: finishing already (once more to stop at once)\n";

/// As [`ends_at_once`], but the first signal only says so: strata finishes without having been asked to, and
/// what is meant to end it must not lose what it writes.
pub fn ends_at_the_second(signals: &[i32], text: &'static str) {
    IS_FIRST.store(true, Ordering::SeqCst);
    ends_at_once(signals, text);
}

/// From now on these signals end the process at once, after printing `text`.
pub fn ends_at_once(signals: &[i32], text: &'static str) {
    LENGTH.store(0, Ordering::SeqCst);
    TEXT.store(text.as_ptr().cast_mut(), Ordering::SeqCst);
    LENGTH.store(text.len(), Ordering::SeqCst);
    for signal in signals {
        let handler: extern "C" fn(i32) = end;
        // SAFETY: the handler calls only what is safe in one (signal-safety(7)).
        unsafe { libc::signal(*signal, handler as libc::sighandler_t) };
    }
}

extern "C" fn end(signal: i32) {
    if IS_FIRST.swap(false, Ordering::SeqCst) {
        // SAFETY: a static string, and write is safe in a handler.
        unsafe { libc::write(2, FINISHING.as_ptr().cast(), FINISHING.len()) };
        return;
    }
    let (text, length) = (TEXT.load(Ordering::SeqCst), LENGTH.load(Ordering::SeqCst));
    // SAFETY: text and length are of one static string, or the length is 0; write, signal and raise
    // are safe in a handler. The signal is blocked here and ends the process when this returns.
    unsafe {
        libc::write(2, text.cast(), length);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
