//! The thread that opens and closes the session of allocations for each window.
//!
//! It lives while there are too many events to be on all the time. It is a thread of its own because
//! one that opens a session becomes a thread of the runtime's; and one for all windows, because the
//! runtime reports each thread. The bridge's own thread starts it, and ends it before it changes
//! sessions itself.
//!
//! **Invariant:** it holds no lock while it calls the runtime, and ends before the session does.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::{Count, Loss};

use super::DutyCycle;
use super::planning::{BOUND, Clock, Cycle, Measured, Planner, Window};
use crate::session::Session;
use crate::{faults, gate, lifecycle, own_thread, pipe};

/// A cycle of collections is broken off when there is none for so long, and when it takes longer than that.
const PATIENCE: u64 = 1_000_000_000;
const LONGEST: u64 = 4_000_000_000;
/// Nanoseconds until what the runtime has refused is tried again.
const AGAIN: u64 = 1_000_000_000;
/// Nanoseconds until windows are tried again for which the runtime collected: doubled each time, up to a
/// bound.
const REST: u64 = 60_000_000_000;
const LONGEST_REST: u64 = 8 * REST;

struct Handle(libc::pthread_t);

// SAFETY: any thread may join any other.
unsafe impl Send for Handle {}

static THREAD: Mutex<Option<Handle>> = Mutex::new(None);
static STOP: AtomicBool = AtomicBool::new(false);
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Starts the thread if it is needed, and takes back one that has ended. For the bridge's own thread.
pub fn look(session: &'static Session) {
    if IS_OVER.load(Ordering::Acquire) {
        join();
    }
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_some() || !session.events().duty_cycle.is_exceeded() || !pipe::is_open(session) {
        return;
    }
    STOP.store(false, Ordering::SeqCst);
    *thread = own_thread::make_for_runtime(session, run).map(Handle);
}

/// Ends the thread: afterwards all events count. Sessions stay as they are.
pub fn stop(session: &Session) {
    STOP.store(true, Ordering::SeqCst);
    session.events().duty_cycle.ring();
    if join() {
        session.events().duty_cycle.set_always(BOUND, monotonic_time());
    }
}

/// Whether there was a thread.
fn join() -> bool {
    let thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner).take();
    let was_there = thread.is_some();
    if let Some(Handle(thread)) = thread {
        // SAFETY: made by `look`, and joined once.
        unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
    }
    IS_OVER.store(false, Ordering::Release);
    was_there
}

extern "C" fn run(session: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends with a NUL and has at most 15 characters.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"strata-clr-duty".as_ptr()) };
    // SAFETY: `look` passed a session that outlives the thread.
    if let Some(session) = unsafe { session.cast::<Session>().as_ref() } {
        let work = || Toggling::new(session).run();
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            std::mem::forget(payload);
            lifecycle::panicked();
        }
        IS_OVER.store(true, Ordering::Release);
        session.shared().writer().ring();
    }
    std::ptr::null_mut()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    Reached,
    /// Collections have become rare.
    Late,
    /// The runtime collects for each change of a session ([`crate::forced_collections`]).
    Forced,
    Stopped,
}

/// What was counted up to a moment.
#[derive(Clone, Copy)]
struct Sums {
    events: u64,
    time: u64,
    cpu: u64,
    collections: u64,
}

struct Toggling<'a> {
    session: &'a Session,
    duty: &'a DutyCycle,
    planner: Planner,
    before: Sums,
}

impl<'a> Toggling<'a> {
    fn new(session: &'a Session) -> Self {
        let duty = &session.events().duty_cycle;
        Self { session, duty, planner: Planner::new(monotonic_time()), before: sums(duty) }
    }

    fn run(&mut self) {
        while self.rest() && self.windows() == Woken::Forced {
            self.session.shared().count(Count::AllocationWindowsForgone, 1);
            let first = faults::rest_of_windows().map_or(REST, |rest| rest * 1_000_000);
            let rest = self.duty.rest.load(Ordering::Relaxed).clamp(first, LONGEST_REST);
            self.duty.rest.store(2 * rest, Ordering::Relaxed);
            self.duty.rests_until.store(monotonic_time() + rest, Ordering::Relaxed);
        }
    }

    /// Has all events on while windows are given up: these cost a known part of a CPU, and full
    /// collections of a large heap any. `false`: the thread ends.
    fn rest(&mut self) -> bool {
        let until = self.duty.rests_until.load(Ordering::Relaxed);
        if monotonic_time() < until {
            self.stay_on();
            let woken = self.sleep(Clock::Time, until, u64::MAX);
            if woken == Woken::Stopped || !self.duty.is_exceeded() {
                return false;
            }
            *self = Self::new(self.session);
        }
        self.session.events().forced_collections.forget();
        true
    }

    /// Until the events may be on all the time, or there can be no windows.
    fn windows(&mut self) -> Woken {
        let begun = monotonic_time();
        // From here on the first cycle decides what counts.
        let mut next = Some(self.begin());
        self.duty.closes.store(0, Ordering::Release);
        if !self.call(pipe::part) {
            self.duty.set_always(BOUND, monotonic_time());
            return self.sleep(Clock::Time, monotonic_time() + AGAIN, u64::MAX);
        }
        while let Some(mut cycle) = next {
            if self.is_forced() {
                return Woken::Forced;
            }
            next = match self.cycle(&mut cycle) {
                Woken::Reached => {
                    if monotonic_time().saturating_sub(begun) > REST {
                        self.duty.rest.store(0, Ordering::Relaxed);
                    }
                    self.following(&cycle)
                }
                Woken::Late => self.instead(),
                woken => return woken,
            };
        }
        self.stay_on();
        Woken::Reached
    }

    fn is_forced(&self) -> bool {
        self.session.events().forced_collections.is_forced()
    }

    /// A cycle that begins now.
    fn begin(&mut self) -> Cycle {
        let now = self.duty.position(self.planner.clock(), monotonic_time());
        self.planner.cycle(now)
    }

    /// The cycle instead of one in which collections have become rare; `None`: there is none any more.
    fn instead(&mut self) -> Option<Cycle> {
        self.duty.closes.store(0, Ordering::Release);
        self.close();
        let before = self.before.collections;
        let goes_on = self.step();
        (goes_on && self.before.collections != before).then(|| self.begin())
    }

    /// The cycle after one whose end is near; `None`: the events may be on all the time.
    fn following(&mut self, cycle: &Cycle) -> Option<Cycle> {
        let Window { clock, shift, closes, .. } = cycle.window;
        let goes_on = self.step();
        let is_same = goes_on && self.planner.clock() == clock;
        let next = is_same.then(|| self.planner.cycle(cycle.ends));
        let until = monotonic_time() + LONGEST;
        let is_next_to = |next: &Cycle| next.window.opens <= closes + next.lead;
        if closes > cycle.ends.saturating_sub(cycle.lead) {
            // The window is the last part.
            let extends =
                next.is_some_and(|next| next.window.opens == closes && next.window.shift == shift);
            if let Some(next) = next
                && extends
            {
                self.duty.closes.store(next.window.closes, Ordering::Release);
            } else if self.sleep(clock, closes, until) == Woken::Stopped {
                return None;
            }
            if goes_on && !next.as_ref().is_some_and(is_next_to) {
                self.close();
            }
        }
        if !is_same && self.sleep(clock, cycle.ends, until) == Woken::Stopped {
            return None;
        }
        if goes_on { next.or_else(|| Some(self.begin())) } else { None }
    }

    /// Up to shortly before the end. A window that begins late is as long as planned.
    fn cycle(&mut self, cycle: &mut Cycle) -> Woken {
        let Cycle { mut window, ends, lead } = *cycle;
        let until = monotonic_time() + LONGEST;
        let was_open = self.is_open();
        if !was_open {
            let woken = self.sleep(window.clock, window.opens.saturating_sub(lead), until);
            if woken != Woken::Reached {
                return woken;
            }
            self.call(|session| pipe::open(session, pipe::Part::Allocations));
            if self.is_forced() {
                return Woken::Forced;
            }
        }
        if self.duty.closes.load(Ordering::Relaxed) != window.closes {
            let now = self.duty.position(window.clock, monotonic_time());
            // Since the last collection there was no session for a while.
            let is_partial = !was_open && window.clock == Clock::Collections;
            window = window.not_before(now + u64::from(is_partial && now >= window.opens));
            self.duty.set(&window);
            cycle.window = window;
        }
        self.session.shared().count(Count::AllocationWindows, 1);
        let last_look = ends.saturating_sub(lead);
        if window.closes <= last_look {
            let woken = self.sleep(window.clock, window.closes, until);
            self.close();
            if woken != Woken::Reached {
                return woken;
            }
        }
        self.sleep(window.clock, last_look, until)
    }

    /// Measures, and takes a step. `false`: the events may be on all the time.
    fn step(&mut self) -> bool {
        let now = sums(self.duty);
        let before = std::mem::replace(&mut self.before, now);
        let measured = Measured {
            events: now.events.saturating_sub(before.events),
            nanoseconds: now.time.saturating_sub(before.time),
            cpu: now.cpu.saturating_sub(before.cpu),
            collections: now.collections.saturating_sub(before.collections),
        };
        self.planner.step(measured)
    }

    fn stay_on(&self) {
        while !self.is_stopped() {
            if self.is_open() || self.call(|session| pipe::open(session, pipe::Part::Allocations)) {
                return self.duty.set_always(self.planner.rate_allowed(), monotonic_time());
            }
            self.sleep(Clock::Time, monotonic_time() + AGAIN, u64::MAX);
        }
    }

    fn is_open(&self) -> bool {
        pipe::is_part_open(self.session, pipe::Part::Allocations)
    }

    fn close(&self) {
        if self.is_open() {
            self.call(|session| pipe::close(session, pipe::Part::Allocations));
        }
    }

    /// Calls the runtime; what fails is counted.
    fn call(&self, work: impl FnOnce(&Session) -> bool) -> bool {
        let holds = work(self.session);
        if !holds {
            self.session.shared().lost(Loss::RuntimeCall);
        }
        holds
    }

    fn is_stopped(&self) -> bool {
        STOP.load(Ordering::SeqCst) || self.session.is_closed() || self.session.is_given_up()
    }

    /// Sleeps until the clock has come to a position; one of collections until a time at most, and while
    /// there are some.
    fn sleep(&self, clock: Clock, position: u64, until: u64) -> Woken {
        let collections = &self.duty.collections;
        let (mut last, mut next_look) = (u64::MAX, 0);
        loop {
            let seen = collections.bell.load(Ordering::SeqCst);
            if self.is_stopped() {
                return Woken::Stopped;
            }
            let now = monotonic_time();
            let wake_up = match clock {
                Clock::Time if now >= position => return Woken::Reached,
                Clock::Time => position,
                Clock::Collections => {
                    collections.awaited.store(position, Ordering::SeqCst);
                    let count = collections.count.load(Ordering::SeqCst);
                    if count >= position {
                        return Woken::Reached;
                    }
                    if now >= next_look {
                        if count == last || now >= until {
                            return Woken::Late;
                        }
                        (last, next_look) = (count, now + PATIENCE);
                    }
                    next_look
                }
            };
            gate::wait(&collections.bell, seen, wake_up - now);
        }
    }
}

fn sums(duty: &DutyCycle) -> Sums {
    Sums {
        events: duty.counted.load(Ordering::Relaxed),
        time: monotonic_time(),
        cpu: cpu_time(),
        collections: duty.collections.count.load(Ordering::Relaxed),
    }
}

/// Of the process, in nanoseconds.
fn cpu_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
