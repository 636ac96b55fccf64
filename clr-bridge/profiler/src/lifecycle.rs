//! The bridge's life cycle: from the runtime's first call to its last.
//!
//! There is one session at a time, in one pointer. Its users:
//!
//! - callbacks: the runtime lets none start after it was asked to detach, and waits until none runs
//!   before it calls `ProfilerDetachSucceeded` (src/coreclr/vm/profdetach.cpp, evacuation
//!   counters);
//! - the lookup thread: it is the one that asks to be detached, as its last act, and is joined
//!   before the session is freed;
//! - the thread of windows ([`crate::duty_cycle`]), which the lookup thread ends before that;
//! - [`Guest`]s, threads that the runtime does not count: they are counted here.
//!
//! **Invariant:** the session is freed when none of the four can hold it. The library stays
//! mapped, so its statics start the next session from a clean state.

use std::alloc::Layout;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use strata_bridge_protocol::record::Level;
use strata_bridge_protocol::status::{Loss, State};

use crate::com::info::Info;
use crate::com::{ALREADY_ACTIVE, E_FAIL, E_NOINTERFACE, E_OUTOFMEMORY, HResult, S_OK};
use crate::session::Session;
use crate::shared::Shared;
use crate::text::Text;
use crate::{duty_cycle, events, faults, own_thread};

/// How the bridge was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loading {
    Environment,
    Attach,
}

static SESSION: AtomicPtr<Session> = AtomicPtr::new(std::ptr::null_mut());
static SESSIONS: AtomicU64 = AtomicU64::new(0);
/// Threads with a [`Guest`].
static GUESTS: AtomicU32 = AtomicU32::new(0);
/// A panic was contained: nothing is reported any more.
static BROKEN: AtomicBool = AtomicBool::new(false);

const FREE: u8 = 0;
const TAKEN: u8 = 1;
static PLACE: AtomicU8 = AtomicU8::new(FREE);

/// The session, for callbacks and the lookup thread.
#[inline]
pub fn current() -> Option<&'static Session> {
    if BROKEN.load(Ordering::Relaxed) {
        return None;
    }
    // Sequentially consistent: the thread may have become a guest just before.
    // SAFETY: the pointer is null or a session that lives as long as its users; see the module.
    unsafe { SESSION.load(Ordering::SeqCst).as_ref() }
}

/// The session, also after a panic: for what must be known of the ids that it uses.
pub fn even_broken() -> Option<&'static Session> {
    // SAFETY: as in `current`.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

/// Counts the calling thread as a guest until it is dropped, also by a panic.
pub struct Guest(());

impl Guest {
    pub fn enter() -> Self {
        GUESTS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        GUESTS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs work on a thread that the runtime does not wait for when it detaches.
pub fn as_guest(work: impl FnOnce(Option<&Session>)) {
    as_guest_even_broken(|session| {
        work(session.filter(|session| !session.is_closed() && !BROKEN.load(Ordering::Relaxed)));
    });
}

/// The same, also after a panic.
pub fn as_guest_even_broken(work: impl FnOnce(Option<&Session>)) {
    let _guest = Guest::enter();
    // SAFETY: `end` takes the pointer away first and then waits for the guests.
    let session = unsafe { SESSION.load(Ordering::SeqCst).as_ref() };
    work(session);
}

/// Begins a session.
///
/// # Safety
/// `unknown` is null or the runtime's info object.
pub unsafe fn start(unknown: *mut c_void, loading: Loading) -> HResult {
    // The runtime does not refuse a second attach of the same library: statics would be
    // overwritten.
    if PLACE.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return ALREADY_ACTIVE;
    }
    BROKEN.store(false, Ordering::Relaxed);
    // SAFETY: passed on from the caller.
    let Some(info) = (unsafe { Info::obtain(unknown) }) else {
        PLACE.store(FREE, Ordering::Release);
        return E_NOINTERFACE;
    };
    match begin(info, loading) {
        Ok(()) => S_OK,
        Err(result) => {
            info.release();
            PLACE.store(FREE, Ordering::Release);
            result
        }
    }
}

fn begin(info: Info, loading: Loading) -> Result<(), HResult> {
    faults::read();
    let shared = Shared::create().map_err(|_| E_OUTOFMEMORY)?;
    let number = SESSIONS.fetch_add(1, Ordering::Relaxed) + 1;
    let major = describe(info, &shared);
    let attached = loading == Loading::Attach;
    let session = Session::new(info, shared, number, major, attached).and_then(allocate);
    let session = session.ok_or(E_OUTOFMEMORY)?;
    // SAFETY: just made, and freed below or in `end` only.
    let living = unsafe { &*session };
    let eager = loading == Loading::Environment && is_eager();
    if eager {
        living.start_reporting();
        living.set_eager(true);
    }
    // Before the events: they may come at once.
    SESSION.store(session, Ordering::Release);
    if !living.set_events(eager) || !own_thread::spawn(living) {
        // No callback of ours is running yet: the runtime counts this one, and no event was
        // allowed.
        SESSION.store(std::ptr::null_mut(), Ordering::SeqCst);
        wait_for_guests();
        living.shared().set_state(State::Failed);
        // SAFETY: allocated above, and no other reference exists.
        unsafe { free(session) };
        return Err(E_FAIL);
    }
    living.shared().set_state(State::Ready);
    Ok(())
}

/// Publishes the versions of the runtime and the bridge. Returns the runtime's major version.
fn describe(info: Info, shared: &Shared) -> u16 {
    let mut units = [0u16; 64];
    let (version, length) = info.runtime_version(&mut units).unwrap_or_default();
    let mut text = Text::<64>::new();
    text.push_units(units.get(..length).unwrap_or_default());
    let [major, minor, build] = version;
    let status = shared.writer().status();
    status.set_runtime([major, minor, build, 0], info.version(), text.as_str());
    status.set_bridge(env!("CARGO_PKG_VERSION"));
    status.set_events(events::function(), events::kinds_of(major, info.version()));
    major
}

/// Whether everything is to be reported from the first method on, without waiting for a reader.
fn is_eager() -> bool {
    // SAFETY: the name ends with a NUL. Profilers are loaded before the app's first thread runs
    // managed code, so no other thread changes the environment at the same time.
    let value = unsafe { libc::getenv(c"STRATA_CLR_EAGER".as_ptr()) };
    if value.is_null() {
        return false;
    }
    // SAFETY: the environment's texts end with a NUL.
    let value = unsafe { std::ffi::CStr::from_ptr(value) };
    value == c"1"
}

/// Ends the session: the runtime has detached.
pub fn end() {
    let session = SESSION.swap(std::ptr::null_mut(), Ordering::SeqCst);
    // SAFETY: the pointer is null or a session that was allocated in `begin`.
    if let Some(living) = unsafe { session.as_ref() } {
        own_thread::join(living);
        duty_cycle::thread::stop(living);
        wait_for_guests();
        living.shared().set_state(State::Detached);
        living.release();
        // SAFETY: allocated in `begin`; callbacks, lookup thread and guests are gone.
        unsafe { free(session) };
    }
    PLACE.store(FREE, Ordering::Release);
}

/// The process ends. Memory and thread stay as they are: the kernel frees them.
pub fn shut_down() {
    // SAFETY: as in `current`, whose check for a panic does not matter here.
    if let Some(session) = unsafe { SESSION.load(Ordering::Acquire).as_ref() } {
        session.stop_reporting();
        session.close();
        own_thread::stop(session);
        session.shared().set_state(State::Detached);
    }
}

/// A panic was contained.
pub fn panicked() {
    BROKEN.store(true, Ordering::Release);
    // SAFETY: as in `current`.
    if let Some(session) = unsafe { SESSION.load(Ordering::Acquire).as_ref() } {
        session.give_up();
        session.stop_reporting();
        session.shared().lost(Loss::Panic);
        session.shared().set_state(State::Failed);
        session.log(Level::Error, "a panic was contained; the bridge is quiet now");
    }
}

fn wait_for_guests() {
    while GUESTS.load(Ordering::SeqCst) != 0 {
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    }
}

/// On the heap, without aborting the process when there is no memory.
fn allocate(session: Session) -> Option<*mut Session> {
    // SAFETY: a session has a size.
    let place = unsafe { std::alloc::alloc(Layout::new::<Session>()) }.cast::<Session>();
    if place.is_null() {
        return None;
    }
    // SAFETY: just allocated with this layout.
    unsafe { place.write(session) };
    Some(place)
}

/// # Safety
/// `session` came from [`allocate`] and is not used any more.
unsafe fn free(session: *mut Session) {
    // SAFETY: passed on from the caller.
    unsafe {
        session.drop_in_place();
        std::alloc::dealloc(session.cast(), Layout::new::<Session>());
    }
}
