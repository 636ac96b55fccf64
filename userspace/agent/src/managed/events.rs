//! Events of a process's runtime: exceptions, waits for locks and handles, allocations, objects in use,
//! pauses for garbage collections.
//!
//! The bridge reports them by calling an empty function, where a probe of the kernel's runs the BPF
//! program. The probe is attached first, by the broker; then the bridge gets the wish. Where probes
//! cannot be had, the bridge has the runtime walk the stacks ([`super::snapshots`]). Beside
//! another strata, that one adds the wish to its own, and events that only others asked for are left
//! out here. A bridge or a runtime that has no events of a kind is served without, and the reason is
//! kept.

use std::time::{Duration, Instant};

use strata_bridge_protocol::clr_event::{self, capability};
use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::objects::ObjectTable;
use strata_clr::SessionError;
use strata_clr::session::Holder;
use strata_kinds::{Kind, Kinds};

use super::bridge::Bridge;
use super::{Managed, State};
use crate::image_id::ImageId;
use crate::kernel::probes::{Arrival, ProbeError};

/// How long the mapping of a bridge is waited for.
const UNMAPPED: Duration = Duration::from_secs(5);
/// A probe that could not be attached, for a reason that may pass, is tried again after this time,
/// and twice as late each time after that.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// A runtime begins to report events within some tenths of a second.
const OBEYED_WITHIN: Duration = Duration::from_secs(3);

// The bridge's numbers of kinds are those of the table.
const _: () = {
    assert!(clr_event::kind::EXCEPTION == Kind::Exceptions as u8);
    assert!(clr_event::kind::LOCK == Kind::Locks as u8);
    assert!(clr_event::kind::ALLOCATION == Kind::Allocations as u8);
    assert!(clr_event::kind::OBJECT == Kind::Heap as u8);
    assert!(clr_event::kind::PAUSE == Kind::Gc as u8);
    assert!(clr_event::kind::WAIT_HANDLE == Kind::WaitHandles as u8);
};
const _: () = {
    // Each has a wish.
    let (mut wished, mut at) = (Kinds::NONE, 0);
    while at < wish::OF_KINDS.len() {
        wished = wished.with(Kind::ALL[wish::OF_KINDS[at].0 as usize], true);
        at += 1;
    }
    assert!(wished.is(KINDS));
};

/// The kinds that bridges report.
pub const KINDS: Kinds = Kinds::OF_BRIDGE;

/// What is wanted of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of [`KINDS`].
    pub kinds: Kinds,
    /// Exceptions with their messages.
    pub messages: bool,
}

/// The wishes for kinds.
fn kinds_and_wishes() -> impl Iterator<Item = (Kind, u64)> {
    wish::OF_KINDS.into_iter().filter_map(|(kind, wish)| Some((Kind::from_number(kind)?, wish)))
}

/// The kinds in bits of [`wish`].
pub fn wished(wishes: u64) -> Kinds {
    kinds_and_wishes().filter(|(_, wish)| wishes & wish != 0).map(|(kind, _)| kind).collect()
}

impl Wanted {
    /// Bits of [`wish`], without those for some kinds.
    fn wishes(self, without: Kinds) -> u64 {
        let is_wished = |kind: Kind| self.kinds.contains(kind) && !without.contains(kind);
        let wanted = kinds_and_wishes().filter(|(kind, _)| is_wished(*kind));
        let messages = if self.messages { wish::MESSAGES } else { 0 };
        wanted.fold(messages, |wishes, (_, wish)| wishes | wish)
    }
}

#[derive(Debug, Default)]
enum Progress {
    #[default]
    Idle,
    /// The function's address is in no mapping that is known, since then.
    Unmapped(Instant),
    Attaching,
    /// The bridge has the wish, since then, and has not said yet that it is in force.
    Asked(Instant),
    Reporting,
    /// No probe could be attached, for a reason that may pass: when it is tried again.
    Later(String, Instant),
    Failed(String),
}

/// The events of one process.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub wanted: Wanted,
    progress: Progress,
    /// Of the kinds wanted, those that its bridge does not have.
    absent: Kinds,
    /// Of the kinds wanted, those that its bridge has, but not safely.
    outdated: Kinds,
    /// Of the kinds wanted, those that the bridge was not asked for by the strata that owns it, and
    /// which one that is.
    unasked: Kinds,
    owner: String,
    /// Why its stacks are walked by the runtime, where they are.
    without_probe: Option<String>,
    /// Attempts to attach a probe that failed, for a reason that may pass.
    tries: u32,
    /// Its objects when it ended.
    pub last_objects: Option<ObjectTable>,
    pub allocation_windows: Windows,
    windows_forgone: Forgone,
}

/// How often its bridge has had events of allocations on for a while, because all of them would have cost
/// the process too much.
#[derive(Debug, Default)]
pub(super) struct Windows {
    before: Option<u64>,
    now: u64,
}

/// What a bridge says of windows that it has given up.
#[derive(Debug, Default)]
struct Forgone {
    before: Option<u64>,
    is_reported: bool,
}

impl Forgone {
    /// Whether there are some since the bridge was read first, for the first time.
    fn is_new(&mut self, count: u64) -> bool {
        let before = *self.before.get_or_insert(count);
        count > before && !std::mem::replace(&mut self.is_reported, true)
    }
}

/// The windows of several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllWindows {
    pub sum: u64,
    /// Of the process with the fewest, of those that have any: its sums are the least precise.
    pub least: u64,
}

impl AllWindows {
    pub(super) fn add(&mut self, windows: u64) {
        if windows > 0 {
            self.sum += windows;
            self.least = if self.least == 0 { windows } else { self.least.min(windows) };
        }
    }
}

impl Windows {
    /// The bridge's own count: a claim of the process.
    pub fn note(&mut self, count: u64) {
        self.before.get_or_insert(count);
        // Sums of many processes' claims stay within a number.
        self.now = self.now.max(count.min(u64::from(u32::MAX)));
    }

    /// Since this strata has read the bridge.
    pub fn seen(&self) -> u64 {
        self.now.saturating_sub(self.before.unwrap_or_default())
    }
}

/// Of the kinds that a bridge states, those that it may not be asked for: a library that was mapped
/// by an older strata stays in the process, and is attached again.
fn outdated(stated: u64) -> Kinds {
    let has_objects = stated >> Kind::Heap as u8 & 1 == 1;
    let is_checked = stated & capability::CHECKED_OBJECTS != 0;
    Kinds::NONE.with(Kind::Heap, has_objects && !is_checked)
}

impl Events {
    /// Takes what the bridge claims about windows of allocations.
    pub fn note_windows(&mut self, bridge: &Bridge) {
        self.allocation_windows.note(bridge.allocation_windows());
        if self.windows_forgone.is_new(bridge.windows_forgone()) {
            tracing::warn!(
                pid = bridge.pid(),
                "a change of strata's session of events made this .NET process collect fully: another \
                 tool had a session with the keyword GCHeapCollect (dotnet-gcdump, or all keywords). Its \
                 many allocations are recorded all the time instead of in windows, at a higher cost; \
                 windows are tried again after one to eight minutes"
            );
        }
    }

    /// The kinds that are not asked for.
    fn refused(&self) -> Kinds {
        self.absent.iter().chain(self.outdated.iter()).collect()
    }

    /// Why there are no events, or not of every kind.
    pub fn missing(&self) -> Option<String> {
        match &self.progress {
            Progress::Failed(why) => return Some(why.clone()),
            Progress::Later(why, _) => return Some(format!("{why}; it is tried again")),
            _ => {}
        }
        if !self.outdated.is_empty() {
            return Some(format!(
                "the bridge in it is of an older version, which could harm it with {}: restart the \
                 process",
                self.outdated
            ));
        }
        if !self.absent.is_empty() {
            return Some(format!("its runtime or its bridge reports no {}", self.absent));
        }
        if !self.unasked.is_empty() {
            return Some(format!(
                "another strata ({}) reads this process and has not asked for {}: one of an older \
                 version asks for what it records itself only; stop or update it, or have it record \
                 them too (`types` in its configuration)",
                self.owner, self.unasked
            ));
        }
        match self.progress {
            Progress::Asked(since) if since.elapsed() > OBEYED_WITHIN => Some(format!(
                "its runtime does not report all of {} yet: it is busy, or refuses an event session (it \
                 has 64 at most, those of other tools included); it is tried again",
                self.asked()
            )),
            _ => None,
        }
    }

    /// Why its stacks have managed frames only, where they have.
    pub fn managed_frames_only(&self) -> Option<&str> {
        self.without_probe.as_deref()
    }

    /// The kinds that the bridge was asked for.
    fn asked(&self) -> Kinds {
        let refused = self.refused();
        self.wanted.kinds.iter().filter(|kind| !refused.contains(*kind)).collect()
    }
}

impl Events {
    /// Whether some are on their way: wanted, not reported yet, and not given up.
    pub fn begin(&self) -> bool {
        use Progress::{Asked, Attaching, Idle, Unmapped};
        let are_on_their_way = matches!(self.progress, Idle | Unmapped(_) | Attaching | Asked(_));
        are_on_their_way && !self.wanted.kinds.is_empty()
    }

    /// Whether a probe is to be attached now.
    fn is_due(&self, now: Instant) -> bool {
        match self.progress {
            Progress::Idle | Progress::Unmapped(_) => true,
            Progress::Later(_, due) => due <= now,
            _ => false,
        }
    }

    /// Which of the kinds that are wanted are not among those that the bridge states.
    fn look_at_kinds(&mut self, stated: u64) {
        let wanted = self.wanted.kinds;
        let has = |kind: &Kind| stated >> *kind as u8 & 1 == 1;
        self.absent = wanted.iter().filter(|kind| !has(kind)).collect();
        self.outdated = outdated(stated).and(wanted);
    }

    /// Which of the kinds that are asked for the bridge's owner has not asked it for.
    fn look_at_owner(&mut self, bridge: &Bridge) {
        if !matches!(self.progress, Progress::Asked(_) | Progress::Reporting) {
            return;
        }
        let Some(owner) = bridge.read_beside() else {
            self.unasked = Kinds::NONE;
            return;
        };
        if let Some(wishes) = bridge.wishes() {
            let asked = wished(wishes);
            self.unasked = self.asked().iter().filter(|kind| !asked.contains(*kind)).collect();
        }
        if !self.unasked.is_empty() {
            self.owner = owner.to_string();
        }
    }

    /// No probe can be attached, and the bridge was asked to do without.
    fn take_without_probe(
        &mut self,
        error: &ProbeError,
        asked: (Result<bool, SessionError>, Option<Holder>),
        pid: u32,
    ) -> Result<(), String> {
        match asked {
            (Ok(true), _) => {
                tracing::warn!(pid, %error, "stacks of events have managed frames only");
                self.without_probe = Some(error.to_string());
                Ok(())
            }
            (Ok(false), Some(owner)) => Err(format!(
                "{error}; without a probe, events are reported to the strata that owns the bridge only \
                 ({owner})"
            )),
            (Ok(false), None) => Err(format!(
                "{error}; the bridge in it is of an older version, which reports no events without a \
                 probe: restart the process"
            )),
            (Err(other), _) => Err(format!("{error}; nor can its bridge be read: {other}")),
        }
    }

    /// No probe could be attached.
    fn has_failed(&mut self, error: &ProbeError, now: Instant) {
        let why = error.to_string();
        if !error.may_pass() {
            self.progress = Progress::Failed(why);
            return;
        }
        let wait = AGAIN_AFTER.saturating_mul(1 << self.tries.min(16)).min(LONGEST_WAIT);
        self.tries += 1;
        self.progress = Progress::Later(why, now + wait);
    }
}

/// The objects of a process.
pub struct Objects {
    pub table: ObjectTable,
    /// That will never change again.
    pub has_ended: bool,
    /// Read beside another strata, there may be some that were reported before.
    pub are_all_reported: bool,
}

/// A process that a probe is wanted in.
pub struct Candidate {
    pub image: ImageId,
    pub pid: u32,
    pub address: u64,
}

impl Managed {
    /// The events wanted of processes that are attached to from now on.
    pub fn want_events(&mut self, wanted: Wanted) {
        self.events = Wanted { kinds: wanted.kinds.and(KINDS), ..wanted };
    }

    /// Whether an event of a process is one that this strata wants: others may want more of it.
    pub fn wants_event(&self, image: ImageId, kind: Kind) -> bool {
        self.targets.get(&image).is_none_or(|target| target.events.wanted.kinds.contains(kind))
    }

    pub fn wants_messages(&self) -> bool {
        self.events.messages
    }

    /// The same of one process, where each is decided on. One that reports events already is asked for
    /// these instead.
    pub fn want_events_of(&mut self, image: ImageId, kinds: Kinds) {
        let wanted = Wanted { kinds: kinds.and(self.events.kinds), ..self.events };
        let Some(target) = self.targets.get_mut(&image) else { return };
        if std::mem::replace(&mut target.events.wanted, wanted) == wanted {
            return;
        }
        let State::Attached(bridge) = &mut target.state else { return };
        target.events.look_at_kinds(bridge.events().1);
        if !matches!(target.events.progress, Progress::Asked(_) | Progress::Reporting) {
            return;
        }
        let wishes = wanted.wishes(target.events.outdated);
        target.events.progress = match bridge.wish_for_events(wishes) {
            Ok(()) => {
                tracing::info!(pid = target.pid, kinds = %wanted.kinds, "other events are asked for");
                Progress::Asked(Instant::now())
            }
            Err(error) => Progress::Failed(error.to_string()),
        };
    }

    /// Processes whose bridge has reported everything, and whose events are wanted.
    pub fn events_to_attach(&mut self) -> Vec<Candidate> {
        if self.events.kinds.is_empty() {
            return Vec::new();
        }
        let (now, mut candidates) = (Instant::now(), Vec::new());
        for (image, target) in &mut self.targets {
            let State::Attached(bridge) = &target.state else { continue };
            if matches!(target.events.progress, Progress::Asked(_)) && bridge.is_obeying() {
                tracing::info!(pid = target.pid, "events of a .NET process are reported");
                target.events.progress = Progress::Reporting;
            }
            target.events.look_at_owner(bridge);
            if !target.events.is_due(now) {
                continue;
            }
            let wanted = target.events.wanted.kinds;
            if !target.runtime.enumerated || wanted.is_empty() {
                continue;
            }
            let (address, kinds) = bridge.events();
            target.events.look_at_kinds(kinds);
            if address == 0 {
                let why = "the bridge in it is of an older version, which reports no events: \
                           restart the process";
                target.events.progress = Progress::Failed(why.to_owned());
            } else if target.events.refused() != wanted {
                candidates.push(Candidate { image: *image, pid: target.pid, address });
            }
        }
        candidates
    }

    /// The bridge's function is in no known mapping yet.
    pub fn events_unmapped(&mut self, image: ImageId) {
        let Some(target) = self.targets.get_mut(&image) else { return };
        match target.events.progress {
            Progress::Unmapped(since) if since.elapsed() > UNMAPPED => {
                let why = "the function that its bridge names is in no mapped file";
                target.events.progress = Progress::Failed(why.to_owned());
            }
            Progress::Unmapped(_) => {}
            _ => target.events.progress = Progress::Unmapped(Instant::now()),
        }
    }

    /// A probe is being attached.
    pub fn events_attaching(&mut self, image: ImageId) {
        if let Some(target) = self.targets.get_mut(&image) {
            target.events.progress = Progress::Attaching;
        }
    }

    /// Which of a process's objects are alive. `None`: it has none, or its bridge was taken back.
    pub fn objects_of(&mut self, image: ImageId) -> Option<Objects> {
        let target = self.targets.get_mut(&image)?;
        Some(match &target.state {
            State::Attached(bridge) => Objects {
                table: bridge.objects()?,
                has_ended: false,
                are_all_reported: bridge.answers(),
            },
            _ => Objects {
                table: target.events.last_objects.take()?,
                has_ended: true,
                are_all_reported: false,
            },
        })
    }

    /// Tables of processes that have ended and are counted; of some no object was ever reported.
    pub fn forget_last_objects(&mut self) {
        for target in self.targets.values_mut() {
            target.events.last_objects = None;
        }
    }

    /// A probe is attached, or cannot be.
    pub fn events_attached(&mut self, arrival: Arrival) {
        // Without a bridge the probe is removed again.
        let Some(target) = self.targets.get_mut(&arrival.image) else { return };
        let State::Attached(bridge) = &mut target.state else { return };
        let wishes = target.events.wanted.wishes(target.events.outdated);
        let asked = match arrival.outcome {
            Ok(probe) => bridge.report_events(probe, wishes).map_err(|error| error.to_string()),
            Err(error) if error.is_for_good() => {
                let asked = bridge.report_snapshots(wishes);
                let owner = bridge.read_beside();
                target.events.take_without_probe(&error, (asked, owner), target.pid)
            }
            Err(error) => {
                tracing::warn!(pid = target.pid, %error, "no events of a .NET process");
                target.events.has_failed(&error, Instant::now());
                return;
            }
        };
        target.events.tries = 0;
        target.events.progress = match asked {
            Ok(()) => Progress::Asked(Instant::now()),
            Err(why) => {
                tracing::warn!(pid = target.pid, %why, "no events of a .NET process");
                Progress::Failed(why)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_that_does_not_check_addresses_is_not_asked_for_objects() {
        let objects = 1 << Kind::Heap as u8;
        assert!(outdated(objects).contains(Kind::Heap));
        assert!(outdated(objects | capability::CHECKED_OBJECTS).is_empty());
        assert!(outdated(1 << Kind::Locks as u8).is_empty());
        let wanted = Wanted {
            kinds: Kinds::NONE.with(Kind::Heap, true).with(Kind::Locks, true),
            messages: false,
        };
        assert_eq!(wanted.wishes(outdated(objects)), wish::LOCKS);
        assert_eq!(wanted.wishes(Kinds::NONE), wish::LOCKS | wish::OBJECTS);
        let events = Events { wanted, outdated: outdated(objects), ..Events::default() };
        assert!(events.missing().is_some_and(|why| why.contains("restart the process")));
    }

    #[test]
    fn a_probe_that_finds_no_helper_is_tried_again_and_later_each_time() {
        let (mut events, mut now) = (Events::default(), Instant::now());
        assert!(events.is_due(now));
        let mut waits = Vec::new();
        for _ in 0..12 {
            events.has_failed(&ProbeError::Ended, now);
            assert!(!events.is_due(now) && events.missing().is_some());
            let begun = now;
            while !events.is_due(now) {
                now += Duration::from_secs(1);
            }
            waits.push((now - begun).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        events.has_failed(&ProbeError::OtherCode, now);
        assert!(!events.is_due(now + LONGEST_WAIT * 2), "that stays so");
    }
}
