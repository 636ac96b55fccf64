//! Measures the stack that callbacks use, with the runtime's functions that they call; only in a
//! measuring build.
//!
//! The stack below is painted before the work, and read afterwards from its far end on.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use strata_bridge_protocol::record::Level;
use strata_bridge_protocol::status::Count;

use crate::session::Session;

/// More than any callback may use, and less than any thread has left.
const PAINTED: usize = 96 << 10;
const PAINT: u64 = 0x5354_5241_5441_5354;

static DEEPEST: AtomicUsize = AtomicUsize::new(0);

/// The same work, which counts the deepest stack of all work so far.
pub fn measured<W: FnOnce(&Session)>(work: W) -> impl FnOnce(&Session) {
    move |session| measure(session, work)
}

fn measure<W: FnOnce(&Session)>(session: &Session, work: W) {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // The frame of a signal would count too.
    // SAFETY: plain calls on locals.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let lowest = paint();
    run(session, work);
    let used = used(lowest);
    // SAFETY: filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    let deepest = DEEPEST.fetch_max(used, Ordering::Relaxed);
    if let Some(more) = used.checked_sub(deepest) {
        session.shared().count(Count::StackBytes, more as u64);
        // Which callback it was.
        session.log(Level::Debug, std::any::type_name::<W>());
    }
}

#[inline(never)]
fn run(session: &Session, work: impl FnOnce(&Session)) {
    work(black_box(session));
}

#[inline(never)]
fn paint() -> usize {
    let mut room = [PAINT; PAINTED / 8];
    black_box(&mut room).as_ptr() as usize
}

#[inline(never)]
fn used(lowest: usize) -> usize {
    let is_painted = |number: &usize| {
        // SAFETY: this thread's stack, which `paint` has had all the pages of; what is there is
        // only looked at, and this function's own frame is at the other end.
        unsafe { std::ptr::read_volatile((lowest + 8 * number) as *const u64) == PAINT }
    };
    let untouched = (0..PAINTED / 8).take_while(is_painted).count();
    PAINTED - 8 * untouched
}
