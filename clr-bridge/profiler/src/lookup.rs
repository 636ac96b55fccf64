//! The bridge's own thread: it obeys the owner, tells what was there before, and answers requests.
//!
//! A plain thread with every signal blocked and a small stack. **Invariant:** it never becomes a
//! thread of the runtime's: one that does may not ask which function an address belongs to
//! (0x80131363). It calls nothing that needs one: no EventPipe, nothing that creates objects.
//!
//! It is also the one that asks the runtime to detach. That is its last act, so that by the time the
//! runtime says it has detached, the thread is over or about to be, and can be joined.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use strata_bridge_protocol::control::{Outcome, Request, Wishes, request, wish};
use strata_bridge_protocol::record::{Enumerated, Level, NotFound};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::{Count, Loss, State};

use crate::asking::{self, Asked};
use crate::session::Session;
use crate::{domains, enumerate, il_maps, lifecycle, tasks};

/// Milliseconds between two looks at the control page. Each costs 40 µs of CPU time, with what it
/// takes to wake up.
const WITH_OWNER: u32 = 20;
/// The same when nothing has been asked for a while.
const SETTLED: u32 = 60;
const SETTLED_AFTER: u64 = 2_000_000_000;
const WITHOUT_OWNER: u32 = 250;
/// Right after requests, more are likely.
const BUSY: u32 = 2;
/// An attach is followed by its owner.
const EXPECTING: u32 = 10;
const EXPECTING_FOR: u64 = 3_000_000_000;
const BUSY_ROUNDS: u32 = 25;
/// AppDomains are renamed while the runtime starts.
const NAMES_EVERY: u64 = 1_000_000_000;
/// Requests that are answered before the owner's wishes are looked at again.
const REQUESTS_AT_ONCE: usize = 256;

/// Enough for the runtime's lookups; the records' texts take a few times 4 KiB.
const STACK: usize = 256 << 10;

/// Given to the runtime to detach in; it looks again after that time.
const DETACH_MILLISECONDS: u32 = 50;

/// Between two attempts.
const DETACH_AGAIN: u64 = 1_000_000_000;

/// Which thread it is: a number for glibc, a pointer for musl.
struct Handle(libc::pthread_t);

// SAFETY: any thread may join any other.
unsafe impl Send for Handle {}

static THREAD: Mutex<Option<Handle>> = Mutex::new(None);
/// 1: the thread is to end. Waited on as a futex.
static STOP: AtomicU32 = AtomicU32::new(0);
static EAGER: AtomicBool = AtomicBool::new(false);

/// Starts the thread. It ends before the session does.
pub fn spawn(session: &'static Session, eager: bool) -> bool {
    STOP.store(0, Ordering::SeqCst);
    EAGER.store(eager, Ordering::SeqCst);
    // SAFETY: plain pthread calls on locals; a thread inherits its maker's signal mask, which is
    // put back.
    let made = unsafe {
        let mut thread: libc::pthread_t = std::mem::zeroed();
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        if libc::pthread_attr_init(&mut attributes) != 0 {
            return false;
        }
        libc::pthread_attr_setstacksize(&mut attributes, STACK);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        let argument = std::ptr::from_ref(session).cast_mut().cast();
        let made = masked && libc::pthread_create(&mut thread, &attributes, run, argument) == 0;
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        libc::pthread_attr_destroy(&mut attributes);
        made.then_some(Handle(thread))
    };
    let is_made = made.is_some();
    *THREAD.lock().unwrap_or_else(PoisonError::into_inner) = made;
    is_made
}

/// Whether the thread is to end.
pub fn is_stopped() -> bool {
    STOP.load(Ordering::SeqCst) != 0
}

/// Lets the thread end soon.
pub fn stop() {
    STOP.store(1, Ordering::SeqCst);
    // SAFETY: wakes whoever waits on the word; see `wait`.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            STOP.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            i32::MAX,
        )
    };
}

/// Waits until the thread is over.
pub fn join() {
    stop();
    let thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Handle(thread)) = thread {
        // SAFETY: made by `spawn`, and joined once.
        unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
    }
}

/// Waits until the time is over or the thread is to end.
fn wait(milliseconds: u32) {
    let time = libc::timespec {
        tv_sec: i64::from(milliseconds / 1000),
        tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
    };
    // SAFETY: the word and the time live during the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            STOP.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            0,
            &time,
        )
    };
}

extern "C" fn run(session: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends with a NUL and has at most 15 characters.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"strata-clr".as_ptr()) };
    // SAFETY: `spawn` passed a session that outlives the thread.
    if let Some(session) = unsafe { session.cast::<Session>().as_ref() } {
        // After a panic it only waits to be told to detach, and after another one it is over.
        for _ in 0..2 {
            let rounds = || Lookup::new(session).rounds();
            let Err(payload) = catch_unwind(AssertUnwindSafe(rounds)) else { break };
            std::mem::forget(payload);
            lifecycle::panicked();
        }
    }
    std::ptr::null_mut()
}

struct Lookup {
    session: &'static Session,
    started: u64,
    /// The epoch of the owner for whom everything was told.
    served: u32,
    named: u64,
    busy_rounds: u32,
    /// When something was asked last, or an owner came.
    asked: u64,
    /// The runtime refused to detach before: it is asked again then.
    detach_from: u64,
    /// The owner has not been told of everything yet.
    enumerating: bool,
}

/// Whether the thread goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Round { milliseconds: u32 },
    End,
}

impl Lookup {
    fn new(session: &'static Session) -> Lookup {
        let now = monotonic_time();
        Lookup {
            session,
            started: now,
            served: 0,
            named: 0,
            busy_rounds: 0,
            asked: now,
            detach_from: 0,
            enumerating: false,
        }
    }

    fn rounds(&mut self) {
        while STOP.load(Ordering::SeqCst) == 0 {
            match self.round() {
                Next::Round { milliseconds } => wait(milliseconds),
                Next::End => return,
            }
        }
    }

    fn round(&mut self) -> Next {
        let session = self.session;
        let now = monotonic_time();
        let owned = session.shared().writer().owner_lives(now);
        if session.is_compiling() {
            session.shared().writer().prepare_log(now);
        }
        if !session.is_ready() || session.is_closed() {
            return Next::Round { milliseconds: EXPECTING };
        }
        if !owned {
            self.go_quiet();
            let expecting = now.saturating_sub(self.started) < EXPECTING_FOR && self.served == 0;
            let milliseconds = match expecting {
                // Everything is told already: the owner will miss nothing.
                true if EAGER.load(Ordering::SeqCst) => WITH_OWNER,
                true => EXPECTING,
                false => WITHOUT_OWNER,
            };
            return Next::Round { milliseconds };
        }
        let Some(wishes) = session.shared().writer().control().wishes() else {
            return Next::Round { milliseconds: BUSY };
        };
        if wishes.has(wish::DETACH) && self.detach(&wishes) {
            return Next::End;
        }
        if session.is_given_up() {
            return Next::Round { milliseconds: WITHOUT_OWNER };
        }
        if !session.lifetimes().settle(now, tasks::finalizer_sleeps) {
            return Next::Round { milliseconds: EXPECTING };
        }
        self.obey(&wishes, now);
        if session.is_telling() && now.saturating_sub(self.named) > NAMES_EVERY {
            self.named = now;
            session.ask(|| domains::look_again(session));
        }
        self.answer(&wishes, now)
    }

    /// Nobody reads: compilations are not told. What is told already stays true.
    fn go_quiet(&mut self) {
        if self.session.is_compiling() && !EAGER.load(Ordering::SeqCst) {
            self.session.call(|| self.session.set_events(false));
        }
    }

    fn obey(&mut self, wishes: &Wishes, now: u64) {
        let session = self.session;
        session.set_il_maps(wishes.has(wish::IL_MAPS));
        let wanted = wishes.has(wish::JIT_EVENTS);
        let is_new = self.served != wishes.epoch || !session.is_compiling();
        if wanted && (is_new || self.enumerating) {
            EAGER.store(false, Ordering::SeqCst);
            let is_first_try = self.served != wishes.epoch && !self.enumerating;
            session.shared().count(Count::OwnersSeen, u64::from(is_first_try));
            session.start_telling();
            session.call(|| session.set_events(true));
            let mut is_complete = false;
            session.timed(|| is_complete = enumerate::everything(session));
            self.asked = now;
            if !is_complete {
                // Not allowed to ask for long, or the end: again in the next round.
                self.enumerating = true;
                return;
            }
            self.enumerating = false;
            session.write(&Enumerated { epoch: wishes.epoch });
            self.served = wishes.epoch;
        } else if !wanted {
            self.go_quiet();
        }
        session.shared().writer().status().set_obeyed(wishes.epoch, wishes.generation);
    }

    fn detach(&mut self, wishes: &Wishes) -> bool {
        let session = self.session;
        if monotonic_time() < self.detach_from {
            return false;
        }
        session.stop_telling();
        session.shared().set_state(State::Detaching);
        session.shared().writer().status().set_obeyed(wishes.epoch, wishes.generation);
        let result = session.call(|| session.info().request_detach(DETACH_MILLISECONDS));
        if result.is_some_and(|result| result >= 0) {
            return true;
        }
        if self.detach_from == 0 {
            session.shared().lost(Loss::RuntimeCall);
            session
                .say(Level::Error, "the runtime refused to detach the bridge; it is asked again");
        }
        self.detach_from = monotonic_time() + DETACH_AGAIN;
        if !session.is_given_up() {
            session.shared().set_state(State::Ready);
        }
        false
    }

    fn answer(&mut self, wishes: &Wishes, now: u64) -> Next {
        let session = self.session;
        let control = session.shared().writer().control();
        let mut answered = 0;
        while answered < REQUESTS_AT_ONCE
            && STOP.load(Ordering::SeqCst) == 0
            && let Some(request) = control.next_request(wishes.epoch)
        {
            session.timed(|| {
                let outcome = session.ask(|| serve(session, &request)).unwrap_or(Outcome::Failed);
                control.answer(&request, outcome);
            });
            session.shared().count(Count::Requests, 1);
            answered += 1;
        }
        if answered == REQUESTS_AT_ONCE {
            return Next::Round { milliseconds: 0 };
        }
        if answered > 0 {
            self.busy_rounds = BUSY_ROUNDS;
            self.asked = now;
        }
        self.busy_rounds = self.busy_rounds.saturating_sub(1);
        let milliseconds = match now.saturating_sub(self.asked) {
            _ if self.busy_rounds > 0 => BUSY,
            ..SETTLED_AFTER => WITH_OWNER,
            _ => SETTLED,
        };
        Next::Round { milliseconds }
    }
}

/// In the second word of a question about an address: a thread was seen running there.
const RUNNING: u64 = 1;

fn serve(session: &Session, request: &Request) -> Outcome {
    let written = match request.kind {
        request::RESOLVE_IP => {
            let running = request.second & RUNNING != 0;
            match asking::tell_asked(session, request.first, running) {
                Asked::Told { written } => written,
                Asked::NotFound => session.write(&NotFound { ip: request.first }),
                Asked::Refused => return Outcome::Failed,
            }
        }
        request::IL_MAP => match il_maps::tell(session, request.first, request.second) {
            Some(written) => written,
            None => return Outcome::Failed,
        },
        request::APP_DOMAIN => match domains::tell_again(session, request.first as usize) {
            Some(written) => written,
            None => return Outcome::Failed,
        },
        _ => {
            session.shared().lost(Loss::RequestUnknown);
            return Outcome::Unknown;
        }
    };
    if written { Outcome::Answered } else { Outcome::Lost }
}
