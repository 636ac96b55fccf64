//! A turn: the records of all processes are read, what was sampled is asked about, and new code is
//! published.
//!
//! Invariant: no process is begun with after [`ALL_TOGETHER`]; those that were not reached are first in the
//! next turn.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::shares::limits_of_kept;
use super::target::{PUBLISH_AWAITED_AFTER, State, Target};
use super::turns::Turns;
use super::{Managed, Meter};
use crate::aggregate::Aggregate;
use crate::code_address::CodeAddress;
use crate::kernel::loader::Programs;
use crate::tables::store::Store;

/// The most code addresses of one process whose method is not known yet.
const MOST_NAMELESS: usize = 10_000;
/// The time for reading all processes in one turn: those not reached are first in the next one.
pub(super) const ALL_TOGETHER: Duration = Duration::from_millis(20);
const NEXT_TURN: Duration = Duration::from_millis(20);

impl Managed {
    /// Reads the records of all processes. Those that must be republished are put into `dirty`.
    pub fn turn(
        &mut self,
        programs: &mut Programs,
        store: &mut Store,
        aggregate: &Aggregate,
        dirty: &mut HashSet<u32>,
    ) {
        self.maps_reader.turn();
        self.take_arrivals();
        self.take_read_code();
        self.publish_contexts(programs);
        if self.targets.is_empty() {
            self.turns = Turns::default();
            return;
        }
        self.reach_free_ones();
        self.ask_about_new_places(aggregate);
        self.divide_budget();
        self.divide_table_memory(store.segments.limit_bytes());
        let order = self.turns.begin(self.targets.keys().copied());
        self.turned = Instant::now();
        self.meter = Meter::new();
        let until = self.turned + ALL_TOGETHER;
        let is_bounded = self.budget != usize::MAX;
        let mut kept: usize = self.targets.values().map(|target| target.kept_bytes).sum();
        for image in &order {
            if Instant::now() >= until {
                self.turns.cut_short(*image);
                break;
            }
            let Some(target) = self.targets.get_mut(image) else { continue };
            if target.is_over() {
                let limits = limits_of_kept(kept, is_bounded);
                target.keep_only_names(&self.name_cache, self.signatures, limits);
                kept = kept.saturating_add(target.kept_bytes);
            }
            let knew_code = target.knows_code();
            let had_turn = target.take_turn(&mut self.maps_reader, &mut self.meter, until);
            target.forget_unsampled();
            let is_current = self.current.get(&target.pid) == Some(image);
            // A process that was never sampled is published when it is.
            if target.look_whether_expected() && is_current && store.is_published(target.pid) {
                dirty.insert(target.pid);
            }
            // Tables that were taken back make room for those that follow them.
            target.units.sweep(store);
            // The code of a process that has exited is not searched any more.
            if !is_current {
                target.is_awaited = false;
                continue;
            }
            if !target.knows_code() || !had_turn {
                continue;
            }
            if knew_code && target.published.elapsed() < target.publish_after() {
                continue;
            }
            target.published = Instant::now();
            target.is_awaited = false;
            target.ask_about_nameless(&mut self.code_reader);
            self.code_reader.settle_shortly();
            self.take_read_code();
            let Some(target) = self.targets.get_mut(image) else { continue };
            let changed = target.update_units(programs, store, &mut self.meter);
            if changed || !knew_code {
                dirty.insert(target.pid);
            }
            target.units.sweep(store);
        }
    }

    /// Code that was read since the last turn.
    pub(super) fn take_read_code(&mut self) {
        for answer in self.code_reader.answers() {
            if let Some(target) = self.targets.get_mut(&answer.image) {
                target.take_read_code(answer);
            }
        }
    }

    /// Publishes to the kernel where processes with a bridge keep their thread contexts.
    fn publish_contexts(&mut self, programs: &mut Programs) {
        let Self { contexts, targets, current, .. } = self;
        contexts.retain(|pid, image| {
            let is_attached = |target: &Target| matches!(target.state, State::Attached(_));
            let stays =
                current.get(pid) == Some(image) && targets.get(image).is_some_and(is_attached);
            if !stays {
                programs.remove_contexts(*pid);
            }
            stays
        });
        for (pid, image) in current {
            let Some(Target { state: State::Attached(bridge), .. }) = targets.get(image) else {
                continue;
            };
            if contexts.contains_key(pid) {
                continue;
            }
            // Refused once, userspace looks the thread up itself.
            contexts.insert(*pid, *image);
            if let Err(error) = programs.set_contexts(*pid, bridge.contexts_address()) {
                tracing::debug!(pid, %error, "thread contexts are not read by the sampler");
            }
        }
    }

    /// Every sampled method's IL map is asked for once; every address without a method too.
    pub(super) fn ask_about_new_places(&mut self, aggregate: &Aggregate) {
        for position in self.places_seen.. {
            let Some(place) = aggregate.code_address(position) else { break };
            self.places_seen = position + 1;
            if let CodeAddress::Generated { image, address, era, .. } = place
                && let Some(target) = self.targets.get_mut(&image)
            {
                target.sampled.push((address, era));
                if !target.ask_about(address, era) && target.nameless.len() < MOST_NAMELESS {
                    target.nameless.push((address, era));
                }
            }
        }
        for target in self.targets.values_mut() {
            target.read_wanted_code(&mut self.code_reader);
        }
    }

    /// Whether a bridge reported something in the last turn or is about to, or code is being read: what
    /// was read is taken at the next turn.
    pub fn is_busy(&self) -> bool {
        let is_busy = |target: &Target| match target.state {
            State::Attached(ref bridge) => {
                target.has_reported
                    || target.is_expected
                    || !target.runtime.enumerated
                    || bridge.reports_snapshots()
            }
            State::Attaching => target.not_yet.is_none(),
            State::Refused(_) | State::Ended => false,
        };
        self.turns.has_more || self.code_reader.is_reading() || self.targets.values().any(is_busy)
    }

    /// When code is to be published that stacks wait for.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.turns.has_more {
            return Some(self.turned + NEXT_TURN);
        }
        let awaited = self.targets.values().filter(|target| target.is_awaited);
        // One that has used up its time is not published at every turn.
        let awaited = awaited
            .map(|target| (target.published + PUBLISH_AWAITED_AFTER).max(self.turned + NEXT_TURN));
        let awaited = awaited.min();
        let begin =
            !self.events.kinds.is_empty() && self.targets.values().any(Target::begins_events);
        awaited.into_iter().chain(begin.then(|| self.turned + NEXT_TURN)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_id::ImageId;
    use crate::managed::Policy;

    #[test]
    fn code_that_is_awaited_and_has_no_time_left_is_no_reason_for_a_turn_at_once() {
        let mut managed = Managed::new(Policy::EnvironmentOnly, false);
        let image = ImageId(1);
        managed.found(u32::MAX >> 1, image);
        let now = Instant::now();
        managed.turned = now;
        let target = managed.targets.get_mut(&image).expect("it was found");
        (target.is_awaited, target.published) = (true, now - Duration::from_secs(1));
        assert_eq!(managed.next_deadline(), Some(now + NEXT_TURN));
    }
}
