//! The bridge's own thread: it applies the owner's wishes, reports what existed before, and answers
//! requests.
//!
//! **Invariant:** it never becomes a thread of the runtime's: one that does may not ask which
//! function an address belongs to (0x80131363). It calls nothing that needs one: no EventPipe,
//! nothing that creates objects.
//!
//! It is also the one that asks the runtime to detach: when the owner requests it, and by itself
//! when strata attached the bridge and was killed. That is its last act, so that by the time the
//! runtime reports that it has detached, the thread is over or about to be, and can be joined.

use strata_bridge_protocol::clr_event::kind;
use strata_bridge_protocol::compaction::{Compaction, Turn};
use strata_bridge_protocol::control::{Outcome, Request, Wishes, capability, request, wish};
use strata_bridge_protocol::record::{Enumerated, Level, NotFound};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::{Count, Loss, State};

use crate::asking::{self, Asked};
use crate::com::E_FAIL;
use crate::faults::{self, Call};
use crate::session::Session;
use crate::{domains, duty_cycle, enumerate, events, il_maps, objects, own_thread, pipe, tasks};

/// Milliseconds between checks without a wake-up: each check costs 40 µs of CPU time, including the
/// wake-up. Owners, callbacks that need something and the end of the session ring the doorbell; a
/// killed owner and a renamed AppDomain do not.
const IDLE: u32 = 5_000;
/// Work is pending until the runtime allows it, or the owner has written its wishes.
const SOON: u32 = 10;
/// Milliseconds between two turns of a compaction, each of which takes one at most.
const COMPACTING: u32 = 2;
/// AppDomains are renamed while the runtime starts: the interval at which names are read.
const NAMES_EVERY: u64 = 1_000_000_000;
const NAMES_SOON: u32 = 1_001;
/// Milliseconds between looks at watched objects, and where there are many.
const OBJECTS_EVERY: u32 = 1_000;
const OBJECTS_SOON: u32 = 200;
/// How long after an owner attached names are read every second; later on at every check.
const NAMES_FOR: u64 = 10_000_000_000;

/// An owner was killed: another may take over within this time, without a new attach.
const ORPHANED: u64 = 4_000_000_000;
/// Time after an attach, or after an owner released the bridge, in which an owner is expected.
const FORSAKEN: u64 = 30_000_000_000;

/// Requests answered before the owner's wishes are read again.
const REQUESTS_AT_ONCE: usize = 256;

/// The time given to the runtime to detach, in milliseconds. It looks after that time, or 300 ms, whether a
/// callback is still running, and once more when twice as long has passed; then it sleeps for ten minutes
/// (src/coreclr/vm/profdetach.cpp, `SleepWhileProfilerEvacuates`). With less there is no second look, and a
/// thread that a busy machine keeps off its CPUs in a callback is enough to miss the first.
const DETACH_IN: u32 = 300;

/// Milliseconds between two attempts to detach, or to have the events that are wanted.
const AGAIN: u32 = 1_000;

pub struct Lookup {
    session: &'static Session,
    /// The epoch of the owner for whom everything was enumerated.
    served: u32,
    /// When that was.
    served_from: u64,
    named: u64,
    /// When an owner was there last, or the session began.
    owned: u64,
    /// The runtime refused to detach: when it is asked again.
    detach_from: u64,
    /// Not everything has been reported to the owner yet.
    enumerating: bool,
    /// Everything has, but the record that says so is not in the log.
    is_end_due: bool,
    /// Since when the owner's wishes cannot be read; 0: they can be.
    unreadable_from: u64,
    /// The events wanted could not be had, or given up: when that is tried again. 0: they are in force.
    apply_from: u64,
    /// When watched objects were looked at, and milliseconds until they are again.
    looked: u64,
    look_in: u32,
    compaction: Compaction,
    /// The last owner knows of compaction, or there was none.
    may_compact: bool,
}

/// Whether the thread goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Round { milliseconds: u32 },
    End,
}

impl Lookup {
    pub fn new(session: &'static Session) -> Lookup {
        Lookup {
            session,
            served: 0,
            served_from: 0,
            named: 0,
            owned: monotonic_time(),
            detach_from: 0,
            enumerating: false,
            is_end_due: false,
            unreadable_from: 0,
            apply_from: 0,
            looked: 0,
            look_in: OBJECTS_EVERY,
            compaction: Compaction::new(),
            may_compact: true,
        }
    }

    pub fn rounds(&mut self) {
        let writer = self.session.shared().writer();
        loop {
            // Read before all checks, so that later changes ring.
            let seen = writer.doorbell();
            if own_thread::is_stopped() {
                return;
            }
            match self.round() {
                Next::Round { milliseconds } => {
                    let milliseconds = match self.compact() {
                        Turn::More => milliseconds.min(COMPACTING),
                        Turn::Idle => milliseconds,
                    };
                    writer.wait(seen, u64::from(milliseconds) * 1_000_000);
                }
                Next::End => return,
            }
        }
    }

    /// Keeps the log as long as what lives, a little at a time.
    fn compact(&mut self) -> Turn {
        let session = self.session;
        if !self.may_compact || session.is_given_up() {
            self.compaction.stop();
            return Turn::Idle;
        }
        let start = monotonic_time();
        let turn = self.compaction.turn(session.shared().writer(), start);
        if turn == Turn::More {
            let busy = monotonic_time().saturating_sub(start);
            session.shared().count(Count::BusyNanoseconds, busy);
        }
        turn
    }

    fn round(&mut self) -> Next {
        let session = self.session;
        let now = monotonic_time();
        let is_owned = session.shared().writer().owner_lives(now);
        if session.is_compiling() {
            session.shared().writer().prepare_log(now);
        }
        if !session.is_ready() || session.is_closed() {
            return Next::Round { milliseconds: IDLE };
        }
        if !is_owned {
            self.unreadable_from = 0;
            self.go_quiet(now);
            if self.is_left_alone(now) && self.leave() {
                return Next::End;
            }
            return Next::Round { milliseconds: self.idle() };
        }
        self.owned = now;
        let Some(wishes) = session.shared().writer().control().wishes() else {
            return Next::Round { milliseconds: self.until_readable(now) };
        };
        self.unreadable_from = 0;
        self.may_compact = wishes.capabilities & capability::COMPACTION != 0;
        // Of a log that was compacted, an owner of an older version does not find all: it can attach
        // again, to another log.
        let is_unreadable = !self.may_compact
            && session.was_attached()
            && session.shared().writer().was_compacted();
        if wishes.has(wish::DETACH) || is_unreadable {
            if self.detach(Some(&wishes)) {
                return Next::End;
            }
            return Next::Round { milliseconds: AGAIN };
        }
        if session.is_given_up() {
            self.go_quiet(now);
            return Next::Round { milliseconds: self.idle() };
        }
        // The list is made under the lock that a suspension holds from its first callback to its last.
        let no_suspension = || {
            if let Some(list) = session.call(|| session.info().threads()).flatten() {
                list.release();
            }
        };
        if !session.lifetimes().settle(now, tasks::finalizer_sleeps, no_suspension) {
            return Next::Round { milliseconds: SOON };
        }
        self.obey(&wishes, now);
        if session.is_reporting() && now.saturating_sub(self.named) > NAMES_EVERY {
            self.named = now;
            session.in_section(|| domains::look_again(session));
        }
        self.look_at_objects(now);
        if self.apply_from == 0 {
            duty_cycle::thread::look(session);
        }
        self.answer(&wishes, now)
    }

    /// Milliseconds until wishes that cannot be read are read again. An owner writes them within a
    /// second of its attach and then rings, unless it was stopped in between.
    fn until_readable(&mut self, now: u64) -> u32 {
        if self.unreadable_from == 0 {
            self.unreadable_from = now;
        }
        let passed = now.saturating_sub(self.unreadable_from);
        if passed < u64::from(AGAIN) * 1_000_000 { SOON } else { AGAIN }
    }

    /// Which objects are gone, if it is time.
    fn look_at_objects(&mut self, now: u64) {
        let is_wanted = self.session.events().wants(kind::OBJECT);
        if !is_wanted || now.saturating_sub(self.looked) < u64::from(self.look_in) * 1_000_000 {
            return;
        }
        self.looked = now;
        let mut are_many = false;
        self.session.timed(|| are_many = objects::look(self.session));
        self.look_in = if are_many { OBJECTS_SOON } else { OBJECTS_EVERY };
    }

    /// No reader, or a panic: compilations and events are not reported. What was reported already stays
    /// correct.
    fn go_quiet(&mut self, now: u64) {
        let session = self.session;
        let goes_on = session.is_compiling() && session.is_eager();
        let was_wanted = session.events().want(0) || session.is_compiling() && !goes_on;
        let is_left = pipe::is_open(session) || objects::are_watched(session);
        if was_wanted || is_left && now >= self.apply_from {
            self.apply_events(false);
            session.call(|| session.set_events(goes_on));
        }
    }

    /// Opens or closes what the events wanted need. `is_owned`: others may be wanted later.
    fn apply_events(&mut self, is_owned: bool) {
        let session = self.session;
        duty_cycle::thread::stop(session);
        let holds = session.call(|| {
            let holds = pipe::apply(session, is_owned);
            objects::apply(session);
            holds
        });
        let again = || monotonic_time() + u64::from(AGAIN) * 1_000_000;
        self.apply_from = if holds.unwrap_or(true) { 0 } else { again() };
    }

    /// Milliseconds until the next round when there is nothing to do but what failed.
    fn idle(&self) -> u32 {
        if self.apply_from == 0 { IDLE } else { AGAIN }
    }

    /// Whether the strata that attached the bridge is gone for good, so that the bridge has to
    /// detach itself. A bridge loaded by the process itself stays.
    fn is_left_alone(&self, now: u64) -> bool {
        let wishes = self.session.shared().writer().control().wishes();
        let was_killed = wishes.is_some_and(|wishes| wishes.owner_pid != 0);
        let limit = if was_killed { ORPHANED } else { FORSAKEN };
        self.session.was_attached() && now.saturating_sub(self.owned) >= limit
    }

    /// Detaches without an owner, and prevents a new one: it would find the state first, and then
    /// the lock taken.
    fn leave(&mut self) -> bool {
        if monotonic_time() < self.detach_from {
            return false;
        }
        let shared = self.session.shared();
        shared.set_state(State::Detaching);
        if !shared.writer().claim() {
            self.stay();
            return false;
        }
        let leaves = self.detach(None);
        if !leaves {
            shared.writer().unclaim();
        }
        leaves
    }

    fn obey(&mut self, wishes: &Wishes, now: u64) {
        let session = self.session;
        session.set_il_maps(wishes.has(wish::IL_MAPS));
        let wanted = wishes.has(wish::JIT_EVENTS);
        let is_new = self.served != wishes.epoch || !session.is_compiling();
        if wanted && (is_new || self.enumerating) {
            session.set_eager(false);
            let is_first_try = self.served != wishes.epoch && !self.enumerating;
            session.shared().count(Count::OwnersSeen, u64::from(is_first_try));
            if is_first_try && session.events().wants(kind::OBJECT) {
                // Objects that were reported to the last owner mean nothing to this one.
                session.events().want(0);
                session.events().pipe.forget();
                session.call(|| objects::apply(session));
                // Also when it wants none.
                self.apply_from = now;
            }
            session.start_reporting();
            session.call(|| session.set_events(true));
            let mut is_complete = false;
            session.timed(|| is_complete = enumerate::everything(session));
            if !is_complete {
                // Queries not allowed for long, or the end: retried in the next round.
                self.enumerating = true;
                return;
            }
            self.enumerating = false;
            self.is_end_due = true;
            self.served = wishes.epoch;
            self.served_from = now;
        } else if !wanted {
            self.go_quiet(now);
        }
        if wanted {
            if self.is_end_due {
                self.is_end_due = !session.write(&Enumerated { epoch: wishes.epoch });
            }
            self.obey_events(wishes, now);
            if self.apply_from != 0 {
                return;
            }
        }
        session.shared().writer().status().set_obeyed(wishes.epoch, wishes.generation);
    }

    fn obey_events(&mut self, wishes: &Wishes, now: u64) {
        let session = self.session;
        let wanted = events::wanted(wishes, session.major(), session.info().version());
        // Before the kinds are wanted: a session that is open already delivers events of them at once.
        if wanted != 0 {
            session.class_names().prepare();
        }
        if wanted & 1 << kind::LOCK != 0 {
            session.events().contention.prepare();
        }
        if wanted & 1 << kind::WAIT_HANDLE != 0 {
            session.events().wait_handles.prepare();
        }
        if wanted & events::SNAPSHOTS != 0 {
            self.prepare_snapshots();
        }
        let is_new = session.events().want(wanted);
        if !is_new && (self.apply_from == 0 || now < self.apply_from) {
            return;
        }
        session.events().set_rates(&wishes.rates);
        session.call(|| session.set_events(session.is_compiling()));
        self.apply_events(true);
    }

    /// Without memory for the ring, events are counted as ones without room.
    fn prepare_snapshots(&self) {
        self.session.events().snapshots.prepare();
        if self.session.shared().writer().prepare_ring().is_err() {
            self.session.shared().lost(Loss::LogMemory);
        }
    }

    fn detach(&mut self, wishes: Option<&Wishes>) -> bool {
        let session = self.session;
        if monotonic_time() < self.detach_from {
            return false;
        }
        session.stop_reporting();
        session.shared().set_state(State::Detaching);
        if let Some(wishes) = wishes {
            session.shared().writer().status().set_obeyed(wishes.epoch, wishes.generation);
        }
        // A session that is left open would deliver into the next attach.
        self.apply_events(false);
        // Nor may those of other profilers deliver into this one while it is freed.
        session.call(|| session.set_events(false));
        let result = session.call(|| {
            if pipe::is_open(session) || faults::refuses(Call::Detach) {
                return E_FAIL;
            }
            session.info().request_detach(DETACH_IN)
        });
        if result.is_some_and(|result| result >= 0) {
            return true;
        }
        if self.detach_from == 0 {
            session.shared().lost(Loss::RuntimeCall);
            session.log(Level::Error, "the bridge cannot be detached now; it is tried again");
        }
        self.detach_from = monotonic_time() + u64::from(AGAIN) * 1_000_000;
        self.stay();
        false
    }

    /// The state of a bridge that did not detach.
    fn stay(&self) {
        let is_given_up = self.session.is_given_up();
        self.session.shared().set_state(if is_given_up { State::Failed } else { State::Ready });
    }

    fn answer(&mut self, wishes: &Wishes, now: u64) -> Next {
        let session = self.session;
        let control = session.shared().writer().control();
        let mut answered = 0;
        while answered < REQUESTS_AT_ONCE
            && !own_thread::is_stopped()
            && let Some(request) = control.next_request(wishes.epoch)
        {
            session.timed(|| {
                let outcome =
                    session.in_section(|| serve(session, &request)).unwrap_or(Outcome::Failed);
                control.answer(&request, outcome);
            });
            session.shared().count(Count::Requests, 1);
            answered += 1;
        }
        let milliseconds = match answered {
            REQUESTS_AT_ONCE => 0,
            _ if self.enumerating => SOON,
            _ if self.apply_from != 0 || self.is_end_due => AGAIN,
            _ if now.saturating_sub(self.served_from) < NAMES_FOR => NAMES_SOON,
            _ => IDLE,
        };
        let most = if session.events().wants(kind::OBJECT) { self.look_in } else { IDLE };
        Next::Round { milliseconds: milliseconds.min(most) }
    }
}

/// In the second word of a question about an address: a thread was seen running there.
const RUNNING: u64 = 1;

fn serve(session: &Session, request: &Request) -> Outcome {
    let written = match request.kind {
        request::RESOLVE_IP => {
            let running = request.second & RUNNING != 0;
            match asking::report_code_at(session, request.first, running) {
                Asked::Reported { written } => written,
                Asked::NotFound => session.write(&NotFound { ip: request.first }),
                Asked::Refused => return Outcome::Failed,
            }
        }
        request::IL_MAP => match il_maps::report(session, request.first, request.second) {
            Some(written) => written,
            None => return Outcome::Failed,
        },
        request::APP_DOMAIN => match domains::report_again(session, request.first as usize) {
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
