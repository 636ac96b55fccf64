//! The bridge of one process: reads the records that it publishes, passes on what it is asked, and
//! detaches it.
//!
//! Invariant: reading is done at every turn of the loop and never waits. Reads that may hang are left to
//! the [`MapsReader`].

use std::time::{Duration, Instant};

use strata_bridge_protocol::decode_error::DecodeError;
use strata_bridge_protocol::event::EventRecord;
use strata_bridge_protocol::objects::ObjectTable;
use strata_bridge_protocol::record::RawRecord;
use strata_bridge_protocol::status::Count;
use strata_clr::session::{
    Budget, Consumer, Holder, Life, Loss, Question, SessionError, Unanswered, Which,
};
use strata_clr::{Deadline, Session};
use strata_kinds::Kind;

use super::maps_reader::MapsReader;
use crate::kernel::probes::Probe;

/// A bridge leaves within some tenths of a second.
const LEAVING: Duration = Duration::from_secs(5);
/// The time for reading one that leaves.
const LAST_READ: Duration = Duration::from_millis(10);
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
    /// One that was reached just now; `loaded`: by strata.
    pub(super) fn new(session: Session, loaded: bool) -> Self {
        // To one that reads beside its owner, nothing is reported again.
        let is_new = loaded || session.read_beside().is_some();
        let lost_before = if is_new { 0 } else { lost_there(&session) };
        Self {
            lost_before,
            session,
            loaded,
            lag: Lag::Behind,
            since: Instant::now(),
            is_at_end: false,
            has_more: false,
            probe: None,
        }
    }

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
            let here = bridge.poll(&mut maps_reader, Instant::now() + LAST_READ, &mut |_| Ok(()));
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

    #[test]
    fn a_process_that_lies_about_its_losses_does_not_change_the_sum_of_others() {
        assert_eq!(stated([3, 4]), 7);
        assert_eq!(stated([u64::MAX, u64::MAX, 1]), MOST_STATED);
        let of_all: u64 = (0..1 << 16).map(|_| stated([u64::MAX])).sum();
        assert_eq!(of_all, MOST_STATED << 16);
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
}
