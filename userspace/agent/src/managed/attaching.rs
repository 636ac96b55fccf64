//! Attaches the bridge to processes. That may take seconds and runs on its own threads; the result
//! arrives as a message. A runtime that the bridge cannot be loaded into may write a perf map instead.
//!
//! Invariant: at most [`MOST_AT_ONCE`] attaches are under way, and [`MOST_OF_ONE`] of them to processes
//! of one user other than root: where those hang, other users' are still attached to.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use strata_clr::loading::LoadError;
use strata_clr::session::SessionError;
use strata_clr::{
    AttachError, AttachOptions, Deadline, Session, SessionOptions, SocketError, Stuck, Target,
};

use super::bridge::Bridge;
use crate::blocking_reader::{Owner, ROOT, owner_of};
use crate::image_id::ImageId;

/// The most concurrent attaches, and of them to processes of one user other than root.
const MOST_AT_ONCE: usize = 8;
const MOST_OF_ONE: usize = 2;
/// A runtime that is starting refuses for some milliseconds.
const STARTING: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(10);
/// Delay before a process is tried again for which no thread was free.
const LATER: Duration = Duration::from_secs(10);
/// It grows by itself with each try, up to so many times.
const LATEST: u32 = 60;

/// The result of attaching to a process.
pub struct Arrival {
    pub pid: u32,
    pub image: ImageId,
    /// Whether the bridge was to be loaded.
    pub attach: bool,
    pub outcome: Result<Box<Bridge>, Refusal>,
    /// No longer wanted: see [`Bridges::withdraw`].
    pub is_withdrawn: bool,
}

/// Why a process has no bridge.
pub struct Refusal {
    pub why: String,
    /// Its runtime writes a perf map instead, until it is asked to stop.
    pub writes_perf_map: bool,
    /// No thread was free to attach, because others hang: it is tried again.
    pub is_passing: bool,
    /// It did not answer in time, as on a busy host: it is tried a few times more.
    pub is_slow: bool,
}

/// A process that waits to be attached to.
#[derive(Clone, Copy)]
struct Waiting {
    pid: u32,
    image: ImageId,
    attach: bool,
    owner: Owner,
}

/// Attaching, on a few threads; users take turns.
pub struct Bridges {
    waiting: VecDeque<Waiting>,
    /// Processes to be tried again, and when, in that order.
    later: VecDeque<(Instant, Waiting)>,
    /// Processes with an attach under way, with their users, and those of them that were withdrawn
    /// meanwhile.
    running: HashMap<ImageId, Owner>,
    withdrawn: HashSet<ImageId>,
    /// By user: the last turn.
    turns: HashMap<Owner, u64>,
    next_turn: u64,
    sender: Sender<Arrival>,
    receiver: Receiver<Arrival>,
    /// Runtimes that cannot be attached to may be asked to write a perf map instead, only for the
    /// duration of a recording, because the map grows.
    may_write_perf_maps: Arc<AtomicBool>,
}

impl Default for Bridges {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self {
            waiting: VecDeque::new(),
            later: VecDeque::new(),
            running: HashMap::new(),
            withdrawn: HashSet::new(),
            turns: HashMap::new(),
            next_turn: 0,
            sender,
            receiver,
            may_write_perf_maps: Arc::new(AtomicBool::new(true)),
        }
    }
}

impl Bridges {
    /// No runtime is asked to write a perf map any more, also by an attach under way.
    pub fn forbid_perf_maps(&self) {
        self.may_write_perf_maps.store(false, Ordering::SeqCst);
    }

    /// Stops the perf maps of runtimes that were asked for one as the recording ended.
    pub fn stop_late_perf_maps(&self) {
        while let Ok(arrival) = self.receiver.try_recv() {
            if let Err(Refusal { writes_perf_map: true, .. }) = arrival.outcome {
                stop_perf_map(arrival.pid);
            }
        }
    }

    /// Connects to a process's bridge; with `attach`, loads it when it is not there.
    pub fn reach(&mut self, pid: u32, image: ImageId, attach: bool) {
        // An attach under way completes, and is used by the next recording that wants it.
        if self.running.contains_key(&image) {
            self.withdrawn.remove(&image);
            return;
        }
        self.waiting.push_back(Waiting { pid, image, attach, owner: owner_of(pid) });
        self.start_waiting();
    }

    /// Cancels attaching to a process. An attach under way cannot be stopped, and arrives as
    /// withdrawn.
    pub fn withdraw(&mut self, image: ImageId) {
        self.waiting.retain(|waiting| waiting.image != image);
        self.later.retain(|(_, waiting)| waiting.image != image);
        if self.running.contains_key(&image) {
            self.withdrawn.insert(image);
        }
    }

    /// Schedules a later attach, after so many tries: too many others hang now, or it is slow.
    pub fn reach_later(&mut self, pid: u32, image: ImageId, attach: bool, tries: u32) {
        let waiting = Waiting { pid, image, attach, owner: owner_of(pid) };
        let due = Instant::now() + LATER * tries.clamp(1, LATEST);
        let place = self.later.partition_point(|(other, _)| *other <= due);
        self.later.insert(place, (due, waiting));
    }

    /// Processes that are due.
    pub fn turn(&mut self) {
        let now = Instant::now();
        while self.later.front().is_some_and(|(due, _)| *due <= now) {
            self.waiting.extend(self.later.pop_front().map(|(_, waiting)| waiting));
        }
        self.start_waiting();
    }

    /// The next process, of the user whose last turn was the longest ago, if that one has not enough
    /// attaches under way.
    fn take_next(&mut self) -> Option<Waiting> {
        let running_of = |owner| self.running.values().filter(|other| **other == owner).count();
        let may = |owner| owner == ROOT || running_of(owner) < MOST_OF_ONE;
        let mut first: HashMap<Owner, usize> = HashMap::new();
        for (at, waiting) in self.waiting.iter().enumerate() {
            first.entry(waiting.owner).or_insert(at);
        }
        let turn = |owner: &Owner| self.turns.get(owner).copied().unwrap_or(0);
        let next = first.into_iter().filter(|(owner, _)| may(*owner));
        let (_, at) = next.min_by_key(|(owner, at)| (turn(owner), *at))?;
        let next = self.waiting.remove(at)?;
        if self.waiting.is_empty() {
            self.turns.clear();
        }
        self.next_turn += 1;
        self.turns.insert(next.owner, self.next_turn);
        Some(next)
    }

    fn start_waiting(&mut self) {
        while self.running.len() < MOST_AT_ONCE
            && let Some(Waiting { pid, image, attach, owner }) = self.take_next()
        {
            let sender = self.sender.clone();
            let may_write = self.may_write_perf_maps.clone();
            let reach = move || {
                let outcome = reach(pid, attach)
                    .map(Box::new)
                    .map_err(|error| instead(pid, attach, &may_write, &error));
                // There is no receiver when the recording has ended meanwhile.
                let _ = sender.send(Arrival { pid, image, attach, outcome, is_withdrawn: false });
            };
            self.running.insert(image, owner);
            if let Err(error) = std::thread::Builder::new().name("attach".into()).spawn(reach) {
                let why = format!("no thread to attach with: {error}");
                let outcome =
                    Err(Refusal { why, writes_perf_map: false, is_passing: true, is_slow: false });
                let _ =
                    self.sender.send(Arrival { pid, image, attach, outcome, is_withdrawn: false });
            }
        }
    }

    pub fn arrived(&mut self) -> Option<Arrival> {
        let arrival = self.receiver.try_recv().ok()?;
        self.running.remove(&arrival.image);
        let is_withdrawn = self.withdrawn.remove(&arrival.image);
        self.start_waiting();
        Some(Arrival { is_withdrawn, ..arrival })
    }
}

fn reach(pid: u32, attach: bool) -> Result<Bridge, AttachError> {
    let options = SessionOptions { beside: true, ..SessionOptions::default() };
    let deadline = Deadline::within(STARTING);
    loop {
        let outcome = if attach {
            let options = AttachOptions { session: options.clone(), ..AttachOptions::default() };
            strata_clr::attach(pid, &options)
                .map(|attached| (attached.session, attached.how))
                // An existing bridge is another strata's, was left by one that was killed, or was
                // loaded by the process itself.
                .map(|(session, how)| {
                    let loaded = matches!(how, strata_clr::How::Loaded(_));
                    let loaded = session.is_owner() && (loaded || !loads_it_itself(pid));
                    (session, loaded)
                })
        } else {
            let target = Target::open(pid)?;
            let opened = Session::open(target, &options);
            opened.map(|session| (session, false)).map_err(AttachError::from)
        };
        match outcome {
            Ok((session, loaded)) => return Ok(Bridge::new(session, loaded)),
            Err(error) if error.may_pass() && !deadline.has_passed() => {
                std::thread::sleep(RETRY);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether a process's environment makes it load the bridge at its start.
fn loads_it_itself(pid: u32) -> bool {
    let process = strata_clr::discover(pid).ok().flatten();
    process.is_none_or(|process| process.switches.profilers().iter().any(|p| p.is_strata()))
}

/// Where the bridge may not be loaded, a runtime that can is asked to write a perf map.
fn instead(pid: u32, attach: bool, allowed: &AtomicBool, error: &AttachError) -> Refusal {
    let may_write = attach && allowed.load(Ordering::SeqCst);
    let hangs =
        matches!(error, AttachError::Stuck(_) | AttachError::Session(SessionError::Stuck(_)));
    let is_passing = matches!(
        error,
        AttachError::Stuck(Stuck::TooMany | Stuck::NoThread)
            | AttachError::Session(SessionError::Stuck(Stuck::TooMany | Stuck::NoThread))
            // It may have more later.
            | AttachError::NoRoom(_)
            // While other processes of its user hang.
            | AttachError::Load(LoadError::Socket(SocketError::NotLooked))
    );
    // A recording that attaches has no time for that.
    let is_slow = !may_write && error.may_pass();
    let is_known =
        !hangs && !is_passing && !matches!(error, AttachError::NotClr | AttachError::Target(_));
    let process = if is_known { strata_clr::discover(pid).ok().flatten() } else { None };
    let writes_one = process.as_ref().is_some_and(|process| process.switches.writes_perf_map());
    let writes_perf_map = may_write
        && !writes_one
        && process
            .filter(|process| process.version.is_none_or(|version| version.major >= 8))
            .is_some_and(|process| {
                let is_enabled = strata_clr::enable_perf_map(&process).is_ok();
                // The recording has ended meanwhile, and stops no other.
                if is_enabled && !allowed.load(Ordering::SeqCst) {
                    stop_perf_map(pid);
                    return false;
                }
                is_enabled
            });
    let is_switched_off = matches!(
        error,
        AttachError::Load(LoadError::Socket(
            SocketError::SwitchedOff(_) | SocketError::ProfilersOff(_)
        ))
    );
    let more = match writes_one || writes_perf_map {
        true => "; its perf map is read instead",
        false if is_switched_off => ", or with DOTNET_PerfMapEnabled=1 for names alone",
        false => "",
    };
    Refusal { why: format!("{error}{more}"), writes_perf_map, is_passing, is_slow }
}

/// Asks a runtime to stop writing its perf map.
pub fn stop_perf_map(pid: u32) {
    let stopped = strata_clr::discover(pid)
        .ok()
        .flatten()
        .map(|process| strata_clr::disable_perf_map(&process));
    if let Some(Err(error)) = stopped {
        tracing::debug!(pid, %error, "a runtime goes on writing its perf map");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No process has these pids: attaching fails at once.
    const NOBODY: u32 = u32::MAX >> 1;

    fn next(bridges: &mut Bridges) -> Arrival {
        loop {
            match bridges.arrived() {
                Some(arrival) => return arrival,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_process_that_was_tried_often_waits_longer_than_one_that_was_not() {
        let mut bridges = Bridges::default();
        for (image, tries) in [(1, 5), (2, 1), (3, u32::MAX), (4, 5)] {
            bridges.reach_later(NOBODY, ImageId(image), true, tries);
        }
        let images: Vec<u32> = bridges.later.iter().map(|(_, waiting)| waiting.image.0).collect();
        assert_eq!(images, [2, 1, 4, 3]);
        let last = bridges.later.back().expect("four wait").0;
        assert!(last.saturating_duration_since(Instant::now()) <= LATER * LATEST);
    }

    #[test]
    fn what_is_withdrawn_on_its_way_arrives_as_that_unless_it_is_wanted_again() {
        let mut bridges = Bridges::default();
        let (one, other) = (ImageId(1), ImageId(2));
        bridges.reach(NOBODY, one, true);
        bridges.reach(NOBODY, other, true);
        bridges.withdraw(one);
        bridges.withdraw(other);
        bridges.reach(NOBODY, other, true);
        let mut arrivals = [next(&mut bridges), next(&mut bridges)];
        arrivals.sort_by_key(|arrival| arrival.image);
        let withdrawn = arrivals.map(|arrival| (arrival.image, arrival.is_withdrawn));
        assert_eq!(withdrawn, [(one, true), (other, false)]);
        // Its published state has ended.
        bridges.reach(NOBODY, one, true);
        assert!(!next(&mut bridges).is_withdrawn);
        assert!(bridges.arrived().is_none(), "it was reached into once");
    }

    #[test]
    fn users_take_turns_and_none_but_root_has_more_than_two_attaches_under_way() {
        let mut bridges = Bridges::default();
        let mut number = 0;
        let mut waiting = |owner| {
            number += 1;
            Waiting { pid: NOBODY, image: ImageId(number), attach: true, owner }
        };
        bridges.waiting.extend((0..1000).map(|_| waiting(1000)));
        bridges.waiting.extend([1001, 1001, 1001, ROOT, ROOT, ROOT].map(&mut waiting));
        let mut begun = Vec::new();
        while let Some(next) = bridges.take_next() {
            bridges.running.insert(next.image, next.owner);
            begun.push(next.owner);
        }
        assert_eq!(begun, [1000, 1001, ROOT, 1000, 1001, ROOT, ROOT]);
        // One of a user has ended: its next begins.
        bridges.running.remove(&ImageId(1));
        assert_eq!(bridges.take_next().map(|next| next.owner), Some(1000));
    }

    #[test]
    fn what_is_withdrawn_before_its_turn_is_never_reached_into() {
        let mut bridges = Bridges::default();
        for number in 0..=MOST_AT_ONCE as u32 {
            bridges.reach(NOBODY, ImageId(number), true);
        }
        let last = ImageId(MOST_AT_ONCE as u32);
        assert_eq!(bridges.waiting.len(), 1);
        bridges.withdraw(last);
        for _ in 0..MOST_AT_ONCE {
            assert_ne!(next(&mut bridges).image, last);
        }
        assert!(bridges.running.is_empty() && bridges.waiting.is_empty());
    }
}
