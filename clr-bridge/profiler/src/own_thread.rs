//! The bridge's own thread: its start, its end, and what contains its panics.
//!
//! A plain thread with every signal blocked and a small stack. It sleeps on the doorbell of the
//! shared memory ([`strata_bridge_protocol::doorbell`]), which also ends it.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::lifecycle;
use crate::lookup::Lookup;
use crate::session::Session;

/// Enough for the runtime's lookups; the records' texts take a few times 4 KiB.
const STACK: usize = 256 << 10;
/// What the runtime gives threads of its own.
const STACK_OF_RUNTIME: usize = 1536 << 10;

/// Which thread it is: a number for glibc, a pointer for musl.
struct Handle(libc::pthread_t);

// SAFETY: any thread may join any other.
unsafe impl Send for Handle {}

static THREAD: Mutex<Option<Handle>> = Mutex::new(None);
/// The thread is to end.
static STOP: AtomicBool = AtomicBool::new(false);

/// Starts the thread. It ends before the session does.
pub fn spawn(session: &'static Session) -> bool {
    STOP.store(false, Ordering::SeqCst);
    let made = make(session, run, STACK, &[]).map(Handle);
    let is_made = made.is_some();
    *THREAD.lock().unwrap_or_else(PoisonError::into_inner) = made;
    is_made
}

/// Starts a thread that becomes one of the runtime's: managed code may run there, whose faults are
/// exceptions, as when the app listens to events and is notified of a session.
pub fn make_for_runtime(session: &Session, run: Run) -> Option<libc::pthread_t> {
    const FAULTS: [libc::c_int; 5] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    make(session, run, STACK_OF_RUNTIME, &FAULTS)
}

type Run = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts a thread with all signals blocked but these.
fn make(
    session: &Session,
    run: Run,
    stack: usize,
    signals: &[libc::c_int],
) -> Option<libc::pthread_t> {
    // SAFETY: plain pthread calls on locals; a thread inherits its maker's signal mask, which is
    // put back.
    unsafe {
        let mut thread: libc::pthread_t = std::mem::zeroed();
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::sigfillset(&mut blocked);
        for signal in signals {
            libc::sigdelset(&mut blocked, *signal);
        }
        if libc::pthread_attr_init(&mut attributes) != 0 {
            return None;
        }
        libc::pthread_attr_setstacksize(&mut attributes, stack);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, &mut before) == 0;
        let argument = std::ptr::from_ref(session).cast_mut().cast();
        let made = masked && libc::pthread_create(&mut thread, &attributes, run, argument) == 0;
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        libc::pthread_attr_destroy(&mut attributes);
        made.then_some(thread)
    }
}

/// Whether the thread is to end.
pub fn is_stopped() -> bool {
    STOP.load(Ordering::SeqCst)
}

/// Asks the thread to end.
pub fn stop(session: &Session) {
    STOP.store(true, Ordering::SeqCst);
    session.shared().writer().ring();
}

/// Waits until the thread is over.
pub fn join(session: &Session) {
    stop(session);
    let thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Handle(thread)) = thread {
        // SAFETY: made by `spawn`, and joined once.
        unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
    }
}

extern "C" fn run(session: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends with a NUL and has at most 15 characters.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"strata-clr".as_ptr()) };
    // SAFETY: `spawn` passed a session that outlives the thread.
    if let Some(session) = unsafe { session.cast::<Session>().as_ref() } {
        // After a panic it only waits for the request to detach; after a second one it ends.
        for _ in 0..2 {
            let rounds = || Lookup::new(session).rounds();
            let Err(payload) = catch_unwind(AssertUnwindSafe(rounds)) else { break };
            std::mem::forget(payload);
            lifecycle::panicked();
        }
    }
    std::ptr::null_mut()
}
