//! Which processes are attached to, and what becomes of it: decisions, completed attaches, and
//! processes that another strata left.

use std::collections::hash_map::Entry;
use std::time::Instant;

use strata_clr::session::Which;

use super::attaching::Arrival;
use super::bridge;
use super::{LAST_WORDS, Managed, Policy, Standing, State, Target, runtime};
use crate::image_id::ImageId;

/// How often a process that another strata left is attached to again.
const MOST_FREED: u32 = 10;
/// How often a process is attached to that does not answer in time.
const MOST_SLOW_TRIES: u32 = 3;

impl Managed {
    /// A process that is recorded turns out to be a .NET process.
    pub fn found(&mut self, pid: u32, image: ImageId) {
        if self.policy == Policy::Off || self.targets.contains_key(&image) {
            return;
        }
        if self.policy == Policy::AsTold {
            if !self.left_alone.contains_key(&image) {
                self.candidates.insert(image, pid);
            }
            return;
        }
        self.reach(pid, image, self.policy == Policy::Attach);
    }

    /// Processes that [`Self::admit`] has to decide on.
    pub fn candidates(&self) -> impl Iterator<Item = (ImageId, u32)> + '_ {
        self.candidates.iter().map(|(image, pid)| (*image, *pid))
    }

    /// Decides what may be done to one process.
    pub fn admit(&mut self, image: ImageId, policy: Policy) {
        let Some(pid) = self.candidates.remove(&image) else { return };
        match policy {
            Policy::Attach | Policy::AsTold => self.reach(pid, image, true),
            Policy::EnvironmentOnly => self.reach(pid, image, false),
            Policy::Off => {
                self.left_alone.insert(image, pid);
            }
        }
    }

    /// The decisions on processes may have changed: all are evaluated again. Existing bridges stay
    /// where `is_kept` is true; returns the processes that lost theirs.
    pub fn ask_again(&mut self, is_kept: impl Fn(ImageId) -> bool) -> Vec<u32> {
        self.candidates.extend(self.left_alone.drain());
        let mut leaving = Vec::new();
        let mut left = Vec::new();
        for (image, target) in &mut self.targets {
            let current = self.current.get(&target.pid) == Some(image);
            if !current || is_kept(*image) {
                continue;
            }
            // An attach under way is detached when it completes.
            if matches!(target.state, State::Attaching) {
                self.bridges.withdraw(*image);
            }
            target.take_in_for(&mut self.maps_reader, LAST_WORDS);
            target.keep_last_snapshots(Which::All);
            if let State::Attached(bridge) = std::mem::replace(&mut target.state, State::Ended) {
                leaving.push(*bridge);
                self.detached += 1;
            }
            left.push((*image, target.pid));
        }
        for (image, pid) in &left {
            self.left(*pid);
            self.left_alone.insert(*image, *pid);
        }
        bridge::detach_aside(leaving);
        left.into_iter().map(|(_, pid)| pid).collect()
    }

    pub(super) fn reach(&mut self, pid: u32, image: ImageId, attach: bool) {
        self.left(pid);
        self.bridges.reach(pid, image, attach);
        let target = match self.targets.entry(image) {
            Entry::Occupied(target) => {
                let target = target.into_mut();
                target.attach_again();
                target
            }
            Entry::Vacant(place) => {
                place.insert(Target::new(pid, image, self.budget.min(runtime::MAX_BYTES)))
            }
        };
        if self.policy != Policy::AsTold {
            target.events.wanted = self.events;
        }
        self.current.insert(pid, image);
    }

    /// A process has executed another program, or ended: its state is kept for its samples.
    pub fn left(&mut self, pid: u32) {
        if let Some(image) = self.current.remove(&pid)
            && let Some(target) = self.targets.get_mut(&image)
        {
            // Its number may be another process's by then, and its program may be another one.
            if matches!(target.state, State::Attaching) {
                self.bridges.withdraw(image);
            }
            target.take_in_for(&mut self.maps_reader, LAST_WORDS);
            target.keep_last_objects();
            target.keep_last_snapshots(Which::OfEnded);
            target.state = State::Ended;
            target.ended = Some(Instant::now());
            target.units.clear();
        }
        self.candidates.retain(|_, candidate| *candidate != pid);
        self.left_alone.retain(|_, other| *other != pid);
    }

    /// Whether a process is known to be a .NET process, and the state of its bridge.
    pub fn standing_of(&self, image: ImageId) -> Option<Standing> {
        if self.candidates.contains_key(&image) || self.left_alone.contains_key(&image) {
            return Some(Standing::LeftAlone);
        }
        self.targets.get(&image).map(|target| match &target.state {
            State::Attaching => Standing::Attaching,
            State::Attached(_) => Standing::Attached,
            State::Refused(_) => Standing::Refused,
            State::Ended => Standing::Ended,
        })
    }

    /// Completed attaches.
    pub(super) fn take_arrivals(&mut self) {
        let mut leaving = Vec::new();
        self.bridges.turn();
        while let Some(arrival) = self.bridges.arrived() {
            let Arrival { pid, image, attach, outcome, is_withdrawn } = arrival;
            if is_withdrawn {
                if let Ok(bridge) = outcome {
                    tracing::info!(pid, "the bridge leaves again: it is not wanted any more");
                    self.attached += 1;
                    self.loaded += u64::from(bridge.was_loaded());
                    self.detached += 1;
                    leaving.push(*bridge);
                }
                continue;
            }
            let Some(target) = self.targets.get_mut(&image) else { continue };
            if matches!(target.state, State::Ended) {
                continue;
            }
            if outcome.is_ok()
                && let Some(before) = target.replace_earlier()
            {
                self.lost_before += before.lost_in_all();
                self.windows_before.add(before.events.allocation_windows.seen());
                self.taken_over += u64::from(before.was_free);
            }
            target.state = match outcome {
                Ok(bridge) => {
                    self.attached += 1;
                    self.loaded += u64::from(bridge.was_loaded());
                    match bridge.read_beside() {
                        Some(owner) => tracing::info!(pid, %owner, "read beside another strata"),
                        None => tracing::info!(pid, "the bridge is in place"),
                    }
                    State::Attached(bridge)
                }
                Err(refusal)
                    if refusal.is_passing
                        || refusal.is_slow && target.tries + 1 < MOST_SLOW_TRIES =>
                {
                    let why = &refusal.why;
                    match target.tries {
                        0 => tracing::info!(pid, why, "no bridge in a .NET process yet"),
                        _ => tracing::debug!(pid, why, "no bridge in a .NET process yet"),
                    }
                    target.tries = target.tries.saturating_add(1);
                    target.not_yet = Some(refusal.why);
                    self.bridges.reach_later(pid, image, attach, target.tries);
                    continue;
                }
                Err(refusal) => {
                    tracing::info!(pid, why = %refusal.why, "no bridge in a .NET process");
                    State::Refused(refusal)
                }
            };
        }
        bridge::detach_aside(leaving);
    }

    /// Processes that were read beside another strata, which has left them since.
    pub(super) fn reach_free_ones(&mut self) {
        let Self { targets, freed, .. } = self;
        freed.retain(|image, _| targets.contains_key(image));
        let mut free = Vec::new();
        for (image, target) in targets {
            let was_free = std::mem::take(&mut target.is_free);
            if was_free && self.current.get(&target.pid) == Some(image) {
                target.was_free = true;
                free.push((*image, target.pid));
            }
        }
        for (image, pid) in free {
            let times = self.freed.entry(image).or_default();
            *times += 1;
            // A process can claim to be owned, and not, all the time.
            if *times > MOST_FREED {
                continue;
            }
            tracing::info!(pid, "another strata has left a .NET process: it is attached to again");
            // As it was decided on, where each is.
            match self.policy {
                Policy::AsTold => {
                    self.left(pid);
                    self.candidates.insert(image, pid);
                }
                policy => self.reach(pid, image, policy == Policy::Attach),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managed::code::MethodIndex;

    #[test]
    fn a_bridge_on_its_way_is_taken_back_by_the_reload_that_forbids_it() {
        let mut managed = Managed::new(Policy::AsTold, false);
        // No process has this pid: nothing is done to any process.
        let (image, pid) = (ImageId(1), u32::MAX >> 1);
        managed.found(pid, image);
        managed.admit(image, Policy::Attach);
        assert_eq!(managed.standing_of(image), Some(Standing::Attaching));
        assert_eq!(managed.ask_again(|_| false), [pid]);
        assert_eq!(managed.standing_of(image), Some(Standing::LeftAlone));
        let arrival = loop {
            match managed.bridges.arrived() {
                Some(arrival) => break arrival,
                None => std::thread::yield_now(),
            }
        };
        assert!(arrival.is_withdrawn);
        // The next reload allows it.
        assert!(managed.ask_again(|_| true).is_empty());
        managed.admit(image, Policy::Attach);
        assert_eq!(managed.standing_of(image), Some(Standing::Attaching));
    }

    #[test]
    fn what_was_read_stays_where_a_process_ends_before_it_is_attached_to_again() {
        let mut managed = Managed::new(Policy::EnvironmentOnly, false);
        let (image, pid) = (ImageId(1), u32::MAX >> 1);
        managed.found(pid, image);
        let target = managed.targets.get_mut(&image).expect("it was found");
        target.runtime.code.insert(0x1000, 0x40, &[], MethodIndex(0));
        (target.state, target.is_free) = (State::Ended, true);
        managed.reach_free_ones();
        assert_eq!(managed.standing_of(image), Some(Standing::Attaching));
        while managed.standing_of(image) == Some(Standing::Attaching) {
            managed.take_arrivals();
            std::thread::yield_now();
        }
        assert_eq!(managed.standing_of(image), Some(Standing::Refused));
        assert!(managed.targets[&image].runtime.code.knows(0x1000));
        assert_eq!(managed.totals().taken_over, 0);
    }
}
