//! The second Ctrl-C: arrives while strata is still finishing after the first.
//!
//! Finishing reads, names and writes on the thread that would receive signals, for seconds. So a
//! further signal is handled where it arrives.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// The message printed then: a pointer and a length, which a signal handler may read.
static TEXT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// The first signal ends nothing.
static IS_FIRST: AtomicBool = AtomicBool::new(false);
/// The first signal, and when it came, by the monotonic clock.
static FIRST: AtomicI32 = AtomicI32::new(0);
static FIRST_MILLIS: AtomicI64 = AtomicI64::new(0);

/// One request to end may come as several signals: to the process, and to its group (`timeout 10 strata record`).
pub const ONE_REQUEST: Duration = Duration::from_millis(500);
const ONE_REQUEST_MILLIS: i64 = ONE_REQUEST.as_millis() as i64;
/// Until then, by the monotonic clock, a signal is of the request that is being followed.
static SAME_UNTIL_MILLIS: AtomicI64 = AtomicI64::new(0);

/// What the first signal prints while strata finishes by itself.
const FINISHING: &str = "\nstrata: finishing already (once more to stop at once)\n";

/// As [`ends_at_once`], but the first signal ends nothing: strata finishes without having been asked to, and
/// what is meant to end it must not lose what it writes. See [`first`].
pub fn ends_at_the_second(signals: &[i32], text: &'static str) {
    IS_FIRST.store(true, Ordering::SeqCst);
    handle(signals, text);
}

/// The signal that came while strata finished by itself.
pub fn first() -> Option<i32> {
    Some(FIRST.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// A signal has just asked strata to end: from now on a further one ends the process at once, after printing
/// `text`.
pub fn ends_at_once(signals: &[i32], text: &'static str) {
    SAME_UNTIL_MILLIS.store(monotonic_millis() + ONE_REQUEST_MILLIS, Ordering::SeqCst);
    handle(signals, text);
}

fn handle(signals: &[i32], text: &'static str) {
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
    if IS_FIRST.load(Ordering::SeqCst) && first().is_none() {
        FIRST_MILLIS.store(monotonic_millis(), Ordering::SeqCst);
        // Another one at this very moment is of the same request, whichever is noted.
        FIRST.store(signal, Ordering::SeqCst);
        // SAFETY: a static string, and write is safe in a handler.
        unsafe { libc::write(2, FINISHING.as_ptr().cast(), FINISHING.len()) };
        return;
    }
    let now = monotonic_millis();
    if now < SAME_UNTIL_MILLIS.load(Ordering::SeqCst) {
        return;
    }
    let passed = now - FIRST_MILLIS.load(Ordering::SeqCst);
    if first().is_some() && passed < ONE_REQUEST_MILLIS {
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

fn monotonic_millis() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place; safe in a handler.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}
