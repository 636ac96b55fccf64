//! Events whose stacks the runtime has walked: where no probe can be had in a process, its bridge
//! pushes them into its ring, which is read here.
//!
//! Invariant: what of them is lost is counted by kind: in the process, as its bridge states, and here.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use strata_bridge_protocol::event::EventRecord;
use strata_clr::session::Which;
use strata_kinds::{KIND_COUNT, Kind};

use super::bridge::Bridge;
use super::events::KINDS;
use super::{LAST_WORDS, MOST_THREADS, Managed, State, Target};
use crate::image_id::ImageId;
use crate::processes::innermost_pid;

/// Threads of one process that are looked up at once.
const MOST_LOOKUPS: usize = 256;
const LOOKUPS_EVERY: Duration = Duration::from_millis(500);
/// What one event may stand for.
const MOST_WEIGHT: u32 = 1 << 20;
/// A thread may have ended, and another have its number, by then.
const TRUSTED: Duration = Duration::from_secs(10);

/// Events that were lost, by kind, and what is none.
#[derive(Debug, Default)]
struct Losses {
    of_kind: [u64; KIND_COUNT],
    unreadable: u64,
}

impl Losses {
    /// Adds what a bridge has lost since it was `before`.
    fn add_of(&mut self, bridge: &Bridge, before: &mut Self) {
        for kind in KINDS.iter() {
            let at = kind as usize;
            if let (Some(sum), Some(before)) =
                (self.of_kind.get_mut(at), before.of_kind.get_mut(at))
            {
                grow(sum, before, bridge.snapshots_lost(kind));
            }
        }
        grow(&mut self.unreadable, &mut before.unreadable, bridge.snapshots_unreadable());
    }

    fn add(&mut self, other: &Self) {
        for (sum, one) in self.of_kind.iter_mut().zip(other.of_kind) {
            *sum = sum.saturating_add(one);
        }
        self.unreadable = self.unreadable.saturating_add(other.unreadable);
    }
}

/// Totals.
#[derive(Debug, Default)]
pub(super) struct Figures {
    lost: Losses,
    /// The process that is read next.
    next: u32,
}

/// The events of one process that were read, and its threads.
#[derive(Debug, Default)]
pub(super) struct Taken {
    events: Vec<EventRecord>,
    /// What is not in the totals yet, and what its bridge has stated before.
    new: Losses,
    before: Losses,
    /// By their tid inside the process's namespace: their tid outside.
    outer_tids: HashMap<u32, u32>,
    /// When threads were last looked up.
    looked: Option<Instant>,
    /// Since when threads were looked up that are there.
    since: Option<Instant>,
}

/// What a total grows by; a process may state any number, also a smaller one.
fn grow(total: &mut u64, before: &mut u64, now: u64) {
    *total = total.saturating_add(now.saturating_sub(*before));
    *before = now.max(*before);
}

impl Taken {
    fn is_empty(&self) -> bool {
        let Losses { of_kind, unreadable } = &self.new;
        self.events.is_empty() && *unreadable == 0 && of_kind.iter().all(|lost| *lost == 0)
    }

    pub fn take_in(&mut self, bridge: &mut Bridge, which: Which) {
        self.events.extend(bridge.snapshots(which));
        self.new.add_of(bridge, &mut self.before);
    }
}

/// Adds threads of a process in a namespace of its own.
fn look_up_threads(pid: u32, outer_tids: &mut HashMap<u32, u32>) {
    let known: HashSet<u32> = outer_tids.values().copied().collect();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    for tid in tids.filter(|tid| !known.contains(tid)).take(MOST_LOOKUPS) {
        outer_tids.insert(innermost_pid(tid).unwrap_or(tid), tid);
    }
}

impl Managed {
    /// Processes that report events so, beginning with the one whose turn it is.
    pub fn with_snapshots(&self) -> Vec<(ImageId, u32)> {
        let reports = |target: &Target| match &target.state {
            State::Attached(bridge) => bridge.reports_snapshots(),
            _ => !target.snapshots.is_empty(),
        };
        let all = self.targets.iter().filter(|(_, target)| reports(target));
        let mut all: Vec<_> = all.map(|(image, target)| (*image, target.pid)).collect();
        all.sort_unstable();
        let first = all.partition_point(|(image, _)| image.0 < self.snapshots.next);
        all.rotate_left(first);
        all
    }

    /// The process that is to be read first the next time.
    pub fn go_on_with_snapshots(&mut self, image: ImageId) {
        self.snapshots.next = image.0;
    }

    /// What a process has reported.
    pub fn snapshots_of(&mut self, image: ImageId, which: Which) -> Vec<EventRecord> {
        let Some(target) = self.targets.get_mut(&image) else { return Vec::new() };
        if which == Which::OfEnded {
            target.take_in_for(&mut self.maps_reader, LAST_WORDS);
        }
        let taken = &mut target.snapshots;
        if let State::Attached(bridge) = &mut target.state {
            taken.take_in(bridge, which);
        }
        self.snapshots.lost.add(&std::mem::take(&mut taken.new));
        std::mem::take(&mut taken.events)
    }

    /// An event that was read and cannot be used: its process runs another program by now.
    pub fn lose_snapshot(&mut self, kind: Kind, weight: u32) {
        if let Some(lost) = self.snapshots.lost.of_kind.get_mut(kind as usize) {
            // A claim of the process.
            *lost = lost.saturating_add(u64::from(weight.min(MOST_WEIGHT)));
        }
    }

    /// Events of a kind that were lost so.
    pub fn snapshots_lost(&self, kind: Kind) -> u64 {
        self.snapshots.lost.of_kind.get(kind as usize).copied().unwrap_or_default()
    }

    /// What was in rings and is no event.
    pub fn snapshots_unreadable(&self) -> u64 {
        self.snapshots.lost.unreadable
    }

    /// The number of a thread outside of its process's namespace; the one inside if that cannot be
    /// found.
    pub fn outer_tid(&mut self, image: ImageId, inside: u32) -> u32 {
        let Some(target) = self.targets.get_mut(&image) else { return inside };
        let Taken { outer_tids, looked, since, .. } = &mut target.snapshots;
        if since.is_some_and(|since| since.elapsed() > TRUSTED) || outer_tids.len() > MOST_THREADS {
            outer_tids.clear();
            *since = None;
        }
        if let Some(outside) = outer_tids.get(&inside) {
            return *outside;
        }
        if looked.is_some_and(|looked| looked.elapsed() < LOOKUPS_EVERY) {
            return inside;
        }
        *looked = Some(Instant::now());
        *since = since.or(*looked);
        if innermost_pid(target.pid).is_some_and(|own| own != target.pid) {
            look_up_threads(target.pid, outer_tids);
        }
        outer_tids.get(&inside).copied().unwrap_or(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_grows_by_what_is_new_whatever_a_process_states() {
        let (mut total, mut before) = (0, 0);
        for now in [3, 3, 5, 0, 4, 6, u64::MAX, 1, u64::MAX] {
            grow(&mut total, &mut before, now);
        }
        assert_eq!((total, before), (u64::MAX, u64::MAX));
        let (mut total, mut before) = (7, 0);
        grow(&mut total, &mut before, 2);
        grow(&mut total, &mut before, 1);
        assert_eq!(total, 9);
    }
}
