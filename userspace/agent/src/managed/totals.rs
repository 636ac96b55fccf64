//! Totals over all processes, for the summary and the daemon's counters.
//!
//! Invariant: what a process has lost stays in the total when the process is forgotten.

use super::target::State;
use super::{Managed, events};

/// Totals of a recording's bridges, for the summary.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Processes with a bridge.
    pub attached: u64,
    /// Those of them that strata has loaded it into.
    pub loaded: u64,
    pub detached: u64,
    /// Processes whose bridge is read now.
    pub read_now: usize,
    pub methods: u64,
    /// By pid: the reason why not.
    pub refused: Vec<(u32, String)>,
    /// By pid: why there are no events of it, or not of every kind.
    pub without_events: Vec<(u32, String)>,
    /// By pid: why the stacks of its events have managed frames only.
    pub managed_frames_only: Vec<(u32, String)>,
    /// Records that were lost in a process or refused here.
    pub lost: u64,
    /// In how many windows of time the allocations of processes were recorded that allocate too fast for
    /// all the time.
    pub allocation_windows: events::AllWindows,
    /// How often a process that was read beside another strata was left by that one, and attached to
    /// again: events of the moments between are missing.
    pub taken_over: u64,
}

impl Managed {
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            attached: self.attached,
            loaded: self.loaded,
            detached: self.detached,
            // Code that cannot be read is missing as if it had not been published.
            lost: self.lost_before + self.code_reader.unread(),
            allocation_windows: self.windows_before,
            taken_over: self.taken_over,
            ..Totals::default()
        };
        for target in self.targets.values() {
            totals.methods += target.runtime.methods();
            totals.read_now += usize::from(matches!(target.state, State::Attached(_)));
            totals.lost += target.lost_in_all();
            totals.allocation_windows.add(target.events.allocation_windows.seen());
            if let Some(why) = target.events.missing() {
                totals.without_events.push((target.pid, why));
            }
            if let Some(why) = target.events.managed_frames_only() {
                totals.managed_frames_only.push((target.pid, why.to_owned()));
            }
            let why = match &target.state {
                State::Refused(refusal) => Some(&refusal.why),
                State::Attaching if target.ended.is_none() => target.not_yet.as_ref(),
                _ => None,
            };
            totals.refused.extend(why.map(|why| (target.pid, why.clone())));
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_id::ImageId;
    use crate::managed::Policy;

    #[test]
    fn what_was_lost_stays_lost_when_its_process_is_forgotten() {
        let mut managed = Managed::new(Policy::EnvironmentOnly, false);
        let (image, pid) = (ImageId(1), u32::MAX >> 1);
        managed.found(pid, image);
        managed.targets.get_mut(&image).expect("it was found").lost = 5;
        assert_eq!(managed.totals().lost, 5);
        // It has ended, and its last samples are named.
        managed.left(pid);
        managed.targets.get_mut(&image).expect("it is kept").ended = None;
        managed.forget_ended();
        assert!(managed.targets.is_empty());
        assert_eq!(managed.totals().lost, 5);
        managed.found(pid, image);
        managed.targets.get_mut(&image).expect("it was found").lost = 2;
        assert_eq!(managed.totals().lost, 7);
        managed.reach(pid, image, false);
        assert_eq!(managed.totals().lost, 7);
    }
}
