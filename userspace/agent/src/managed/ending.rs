//! The ends of an aggregate and of a recording: the last requests are made, and what no sample needs any
//! more is forgotten.
//!
//! Invariant: nothing is waited for without a limit, whatever processes do: [`ALL_TOGETHER`] for reading at
//! the end of an aggregate, [`LAST_ANSWERS`] for the answers at that of a recording.

use std::time::{Duration, Instant};

use super::attaching::{self, Refusal};
use super::target::State;
use super::turning::ALL_TOGETHER;
use super::{Managed, bridge};
use crate::aggregate::Aggregate;
use crate::image_id::ImageId;
use crate::processor_time::TimeBudget;

/// Why a process was not attached to that is still asked at the end.
const NO_ANSWER_YET: &str = "its runtime has not answered by now: the process is stopped, hangs, or has only just \
                             started";

/// The time limit of the last requests at the end.
const LAST_ANSWERS: Duration = Duration::from_millis(600);

impl Managed {
    /// The aggregate starts anew.
    pub fn forget_places(&mut self) {
        self.places_seen = 0;
    }

    /// The last requests about an aggregate, before another one begins.
    pub fn ask_last(&mut self, aggregate: &Aggregate) {
        self.ask_about_new_places(aggregate);
        self.places_seen = 0;
        let mut budget = TimeBudget::new(ALL_TOGETHER);
        for target in self.targets.values_mut() {
            target.take_in_for(&mut self.maps_reader, budget.left());
            target.look_at_stubs(&mut self.code_reader);
            target.flushed_addresses = target.sampled.len();
            target.flushed_era = target.runtime.code.eras.now();
            // What was read last may be theirs: it is kept until they are described.
            target.ask_about_what_is_held();
            target.nameless.clear();
        }
        // Of processes whose memory answers, which is most of them.
        self.code_reader.settle(ALL_TOGETHER);
        self.take_read_code();
    }

    /// When all that was sampled is named: of what processes have sampled nothing more needs to be
    /// remembered, and those that have ended and been waited for are forgotten.
    pub fn forget_ended(&mut self) {
        let (lost_before, windows_before) = (&mut self.lost_before, &mut self.windows_before);
        self.targets.retain(|image, target| {
            let is_current = self.current.get(&target.pid) == Some(image);
            // Samples taken since the flush still need their symbols.
            let named = target.flushed_addresses.min(target.sampled.len());
            target.sampled.drain(..named);
            target.runtime.forget_described(target.flushed_era);
            target.sampled.shrink_to_fit();
            target.flushed_addresses = 0;
            let is_kept = is_current
                || target.ended.is_some()
                || !target.sampled.is_empty()
                || !target.units.is_empty()
                || target.events.last_objects.is_some();
            if !is_kept {
                *lost_before += target.lost_in_all();
                windows_before.add(target.events.allocation_windows.seen());
            }
            is_kept
        });
    }

    /// Processes that were not attached to and have exited.
    pub fn forget_left_alone(&mut self, is_there: impl Fn(ImageId) -> bool) {
        self.left_alone.retain(|image, _| is_there(*image));
        self.candidates.retain(|image, _| is_there(*image));
    }

    /// The end: the last answers are waited for, and every bridge that was attached is detached.
    pub fn finish(&mut self, aggregate: &Aggregate) {
        self.bridges.forbid_perf_maps();
        self.ask_about_new_places(aggregate);
        let deadline = Instant::now() + LAST_ANSWERS;
        for target in self.targets.values_mut() {
            if let State::Attached(bridge) = &mut target.state {
                bridge.look_now();
            }
        }
        loop {
            self.maps_reader.turn();
            for target in self.targets.values_mut() {
                target.take_in(&mut self.maps_reader, deadline);
                if Instant::now() + LAST_ANSWERS / 2 > deadline {
                    target.ask_about_what_is_held();
                }
                target.ask_about_nameless(&mut self.code_reader);
            }
            self.take_read_code();
            let waiting = self.code_reader.is_reading()
                || self.targets.values_mut().any(|target| match &mut target.state {
                    State::Attached(bridge) => {
                        let is_held = target.runtime.code.eras.is_held();
                        bridge.expects_more() || bridge.is_behind() || is_held
                    }
                    _ => false,
                });
            if !waiting || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut leaving = Vec::new();
        for target in self.targets.values_mut() {
            match std::mem::replace(&mut target.state, State::Ended) {
                State::Attached(bridge) => leaving.push(*bridge),
                State::Attaching if target.ended.is_none() => {
                    let why = target.not_yet.take().unwrap_or_else(|| NO_ANSWER_YET.to_owned());
                    let refusal =
                        Refusal { why, writes_perf_map: false, is_passing: false, is_slow: true };
                    target.state = State::Refused(refusal);
                }
                // The summary reports why not.
                other => target.state = other,
            }
        }
        self.detached += bridge::detach_all(leaving);
    }

    /// After everything is symbolized: runtimes that were asked to write a perf map can stop.
    pub fn release(&self) {
        self.bridges.stop_late_perf_maps();
        for target in self.targets.values() {
            if let State::Refused(Refusal { writes_perf_map: true, .. }) = target.state
                // Its number may be another process's.
                && target.ended.is_none()
            {
                attaching::stop_perf_map(target.pid);
            }
        }
    }
}
