//! Attaches the bridge to processes, and reads the records that it publishes.
//!
//! Attaching may take seconds and runs on its own threads; the result arrives as a message. Reading
//! is done at every turn of the loop and never waits: reads that may hang are left to the
//! [`MapsReader`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use strata_bridge_protocol::decode_error::DecodeError;
use strata_bridge_protocol::event::EventRecord;
use strata_bridge_protocol::objects::ObjectTable;
use strata_bridge_protocol::record::RawRecord;
use strata_bridge_protocol::status::Count;
use strata_clr::loading::LoadError;
use strata_clr::session::{
    Budget, Consumer, Holder, Life, Loss, Question, SessionError, Unanswered, Which,
};
use strata_clr::{
    AttachError, AttachOptions, Deadline, Session, SessionOptions, SocketError, Stuck, Target,
};
use strata_kinds::Kind;

use super::maps_reader::MapsReader;
use crate::blocking_reader::{Owner, ROOT, owner_of};
use crate::image_id::ImageId;
use crate::kernel::probes::Probe;

/// The most concurrent attaches, and of them to processes of one user other than root.
const MOST_AT_ONCE: usize = 8;
const MOST_OF_ONE: usize = 2;
/// A runtime that is starting refuses for some milliseconds.
const STARTING: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(10);
/// A bridge leaves within some tenths of a second.
const LEAVING: Duration = Duration::from_secs(5);
/// Delay before a process is tried again for which no thread was free.
const LATER: Duration = Duration::from_secs(10);
/// It grows by itself with each try, up to so many times.
const LATEST: u32 = 60;
/// Reads of one turn: a JIT compiles some thousand methods in that time.
const READS: usize = 16;
/// The most losses that a process is believed to have had: more than a bridge can lose in days.
const MOST_STATED: u64 = 1 << 32;

/// The sum of what a process states to have lost, which is no more than [`MOST_STATED`]: sums over all
/// processes stay right for the others'.
fn stated(losses: impl IntoIterator<Item = u64>) -> u64 {
    losses.into_iter().fold(0, u64::saturating_add).min(MOST_STATED)
}

/// Whether only a .NET process maps a file of this name.
pub fn tells_a_runtime(path: &[u8]) -> bool {
    let name = path.strip_suffix(b" (deleted)").unwrap_or(path);
    name.ends_with(b"/libcoreclr.so")
}

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
            Ok((session, loaded)) => {
                // To one that reads beside its owner, nothing is reported again.
                let is_new = loaded || session.read_beside().is_some();
                let lost_before = if is_new { 0 } else { lost_there(&session) };
                return Ok(Bridge {
                    lost_before,
                    session,
                    loaded,
                    lag: Lag::Behind,
                    since: Instant::now(),
                    is_at_end: false,
                    has_more: false,
                    probe: None,
                });
            }
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

/// What is read of a bridge's log, in its order.
pub enum Update<'a> {
    Record(RawRecord<'a>),
    /// Records were given back that were not read. Everything that lives is reported again from
    /// here on.
    Gap,
    /// All has been read that was in the log when reading began, or at the last gap: what was not
    /// reported again since the gap has ended.
    CaughtUp,
    /// There is no answer to the request for an IL map.
    IlMapUnanswered {
        function: u64,
        start: u64,
    },
    /// The same for an address.
    AddressUnanswered {
        address: u64,
        /// The runtime could not be asked, or may not; otherwise the answer was lost.
        is_refused: bool,
    },
}

/// Takes what is read. A record with an error counts as malformed.
pub type Take<'a> = dyn FnMut(Update<'_>) -> Result<(), DecodeError> + 'a;

struct Taking<'a, 'b> {
    take: &'a mut Take<'b>,
    lag: &'a mut Lag,
}

impl Taking<'_, '_> {
    fn take(&mut self, update: Update<'_>) {
        // Only records can have errors.
        let _ = (self.take)(update);
    }
}

impl Consumer for Taking<'_, '_> {
    fn gap(&mut self) {
        *self.lag = Lag::Behind;
        self.take(Update::Gap);
    }

    fn record(&mut self, record: RawRecord<'_>) -> Result<(), DecodeError> {
        (self.take)(Update::Record(record))
    }
}

/// How far what was read is behind what the process has written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lag {
    /// Not all has been read that was in the log when reading began, or at the last gap.
    Behind,
    /// Only what was written meanwhile.
    Closing,
    /// The end of the log was reached since.
    None,
}

impl Lag {
    fn after(self, has_caught_up: bool, is_at_end: bool) -> Self {
        match self {
            Self::Behind if !has_caught_up => Self::Behind,
            Self::Behind | Self::Closing if !is_at_end => Self::Closing,
            _ => Self::None,
        }
    }
}

/// The bridge of one process.
pub struct Bridge {
    session: Session,
    /// strata has loaded it, and detaches it.
    loaded: bool,
    lag: Lag,
    /// When it was reached.
    since: Instant,
    /// The last reading has left nothing in the log.
    is_at_end: bool,
    /// It ended because there was no time for more.
    has_more: bool,
    /// Where it reports events; removed after it.
    probe: Option<Probe>,
    /// What it had lost before it was reached: all that lives is reported again since.
    lost_before: u64,
}

/// Records that a bridge has lost in its process, by its own account.
fn lost_there(session: &Session) -> u64 {
    let status = session.status();
    // Events are counted by kind.
    let of_records = Loss::ALL.iter().filter(|loss| !loss.is_of_events());
    stated(of_records.map(|loss| status.lost(*loss)))
}

impl Bridge {
    /// Returns the bridge's records since the last call; false when nothing more can come.
    pub fn poll(
        &mut self,
        maps_reader: &mut MapsReader,
        until: Instant,
        take: &mut Take<'_>,
    ) -> bool {
        let may_come = self.read(until, take);
        if let Some(look) = self.session.wanted() {
            maps_reader.look(self.pid(), look);
        }
        may_come
    }

    /// Reads at least once; the rest is read at the next turn.
    fn read(&mut self, until: Instant, take: &mut Take<'_>) -> bool {
        self.has_more = false;
        let mut taking = Taking { take, lag: &mut self.lag };
        for _ in 0..READS {
            let read = match self.session.read(Budget::default(), &mut taking) {
                Ok(read) => read,
                Err(error) => {
                    tracing::debug!(%error, "a bridge cannot be read any more");
                    return false;
                }
            };
            if read.caught_up {
                taking.take(Update::CaughtUp);
            }
            for (question, why) in read.unanswered {
                taking.take(match question {
                    Question::IlMap { function, start, .. } => {
                        Update::IlMapUnanswered { function, start }
                    }
                    Question::AppDomain(_) => continue,
                    Question::Address(address) => {
                        let is_refused = why == Unanswered::Refused;
                        Update::AddressUnanswered { address, is_refused }
                    }
                });
            }
            *taking.lag = taking.lag.after(read.caught_up, read.at_end);
            self.is_at_end = read.at_end;
            if !read.more {
                return read.life == Life::Running;
            }
            if Instant::now() >= until {
                break;
            }
        }
        self.has_more = true;
        true
    }

    /// Whether code that was read as living may have ended long ago: its end may lie further on in the
    /// log.
    pub fn is_behind(&self) -> bool {
        self.lag != Lag::None
    }

    /// Whether all has been read that was in the log when reading began, or at the last gap.
    pub fn has_caught_up(&self) -> bool {
        self.lag != Lag::Behind
    }

    /// How long ago it was reached.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether reading ended last because there was no time for more.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Whether all was read that had been written when reading began last.
    pub fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// Whether all code that existed when its owner came has been read: not only that of an earlier one.
    pub fn is_enumerated(&self) -> bool {
        self.session.is_enumerated()
    }

    /// Whether strata has loaded it, and detaches it.
    pub fn was_loaded(&self) -> bool {
        self.loaded
    }

    /// The strata that owns it, if this one only reads.
    pub fn read_beside(&self) -> Option<Holder> {
        self.session.read_beside()
    }

    /// Another strata left it while the process goes on: it may be owned now.
    pub fn is_free(&self) -> bool {
        !self.session.is_owner() && self.session.life() == Life::Left
    }

    /// Records lost in the process, or refused as invalid.
    pub fn lost(&self) -> u64 {
        let there = lost_there(&self.session).saturating_sub(self.lost_before);
        let here = self.session.losses();
        there
            + here.malformed
            + here.unknown_kind
            + here.unfinished
            + here.broken_segments
            + here.gaps
    }

    /// Windows of events of allocations so far: a claim of the process.
    pub fn allocation_windows(&self) -> u64 {
        self.session.status().count(Count::AllocationWindows)
    }

    /// How often all events of allocations were on although there were too many: a claim of the process.
    pub fn windows_forgone(&self) -> u64 {
        self.session.status().count(Count::AllocationWindowsForgone)
    }

    pub fn pid(&self) -> u32 {
        self.session.target().pid()
    }

    /// The address at which the process has mapped its table of thread contexts.
    pub fn contexts_address(&self) -> u64 {
        self.session.contexts_address()
    }

    /// The AppDomain that a thread has published, by its number inside the process's namespace.
    pub fn app_domain_of(&self, tid: u32) -> Option<u64> {
        self.session.app_domain_of(tid).filter(|domain| *domain != 0)
    }

    /// The address of the function that it calls with events, and the kinds of them that it has:
    /// claims of the process. 0: it is of a version without.
    pub fn events(&self) -> (u64, u64) {
        let status = self.session.status();
        (status.event_function, status.event_kinds)
    }

    /// Whether what was wished for is in force.
    pub fn is_obeying(&self) -> bool {
        self.session.is_obeyed()
    }

    /// What its owner wishes for, for itself and for those beside it: bits of
    /// [`strata_bridge_protocol::control::wish`]. `None`: that cannot be read at this moment.
    pub fn wishes(&self) -> Option<u64> {
        self.session.wishes()
    }

    /// Which of the watched objects are alive.
    pub fn objects(&self) -> Option<ObjectTable> {
        self.session.objects()
    }

    /// From now on it reports events, and the probe passes them on.
    pub fn report_events(&mut self, probe: Probe, wishes: u64) -> Result<(), SessionError> {
        self.probe = Some(probe);
        self.session.wish_for_events(wishes)
    }

    /// It is asked for other events than before.
    pub fn wish_for_events(&mut self, wishes: u64) -> Result<(), SessionError> {
        self.session.wish_for_events(wishes)
    }

    /// From now on it reports events with stacks that the runtime walks. False: it cannot, or not for
    /// this strata.
    pub fn report_snapshots(&mut self, wishes: u64) -> Result<bool, SessionError> {
        let can = self.session.take_snapshots()?;
        if can {
            self.session.wish_for_events(wishes)?;
        }
        Ok(can)
    }

    pub fn reports_snapshots(&self) -> bool {
        self.session.takes_snapshots()
    }

    /// The events that it has reported so.
    pub fn snapshots(&mut self, which: Which) -> Vec<EventRecord> {
        self.session.snapshots(which).unwrap_or_else(|error| {
            tracing::debug!(%error, "events of a bridge cannot be read");
            Vec::new()
        })
    }

    /// Of these, how many were lost in the process of a kind, and how many hold together as none.
    pub fn snapshots_lost(&self, kind: Kind) -> u64 {
        stated([self.session.snapshots_without_room(kind as u8)])
    }

    pub fn snapshots_unreadable(&self) -> u64 {
        stated([self.session.snapshots_unreadable()])
    }

    /// Whether questions are answered. Beside an owner, what it asked is read.
    pub fn answers(&self) -> bool {
        self.session.is_owner()
    }

    pub fn ask_address(&mut self, address: u64) {
        self.session.resolve(&[address]);
    }

    pub fn ask_il_map(&mut self, function: u64, rejit: u64, start: u64) {
        self.session.il_maps(&[(function, rejit, start)]);
    }

    pub fn has_questions(&self) -> bool {
        self.session.open_questions() > 0
    }

    /// Whether answers, or segments with more records, may come soon.
    pub fn expects_more(&self) -> bool {
        self.has_questions() || self.session.is_looking()
    }

    /// What is missing is looked for at the next poll.
    pub fn look_now(&mut self) {
        self.session.look_now();
    }
}

/// Detaches the bridges that strata has loaded, all at the same time; returns how many have
/// detached.
pub fn detach_all(bridges: Vec<Bridge>) -> u64 {
    let mut leaving: Vec<Bridge> = Vec::new();
    let mut left = 0;
    for mut bridge in bridges {
        if !bridge.loaded {
            if let Err(error) = bridge.session.release() {
                tracing::debug!(%error, "a bridge was not released");
            }
        } else if bridge.session.detach().is_ok() {
            leaving.push(bridge);
        }
    }
    let deadline = Deadline::within(LEAVING);
    let mut maps_reader = MapsReader::default();
    while !leaving.is_empty() && !deadline.has_passed() {
        maps_reader.turn();
        leaving.retain_mut(|bridge| {
            let here = bridge.poll(&mut maps_reader, Instant::now() + RETRY, &mut |_| Ok(()));
            left += u64::from(!here);
            here
        });
        if !leaving.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    left
}

/// The same on a thread of its own: the loop does not wait for it.
pub fn detach_aside(bridges: Vec<Bridge>) {
    if bridges.is_empty() {
        return;
    }
    let leave = move || {
        detach_all(bridges);
    };
    if let Err(error) = std::thread::Builder::new().name("detach".into()).spawn(leave) {
        tracing::warn!(%error, "bridges are left behind: no thread to detach them with");
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
    fn a_process_that_lies_about_its_losses_does_not_change_the_sum_of_others() {
        assert_eq!(stated([3, 4]), 7);
        assert_eq!(stated([u64::MAX, u64::MAX, 1]), MOST_STATED);
        let of_all: u64 = (0..1 << 16).map(|_| stated([u64::MAX])).sum();
        assert_eq!(of_all, MOST_STATED << 16);
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
    fn what_was_read_is_current_when_the_end_of_the_log_was_reached() {
        // A segment that is not found yet, or too many records: there is no more for now.
        assert!(Lag::Behind.after(false, false) == Lag::Behind);
        assert!(Lag::Behind.after(true, false) == Lag::Closing);
        assert!(Lag::Closing.after(false, false) == Lag::Closing);
        assert!(Lag::Closing.after(false, true) == Lag::None);
        assert!(Lag::Behind.after(true, true) == Lag::None);
        assert!(Lag::None.after(false, false) == Lag::None);
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
