//! CPUs that are switched on and off while strata runs.
//!
//! Invariant: no CPU is sampled before the events of its processes are there, or have failed to be: their
//! stacks would be unwound with the tables of other programs.

use std::time::{Duration, Instant};

use super::{Engine, stalled_cpus};

/// Between checks for events that the broker was asked for.
const LOOK: Duration = Duration::from_millis(20);
/// They are made so long, and once a second afterwards.
const EXPECTED: Duration = Duration::from_secs(2);

impl Engine {
    /// Starts sampling on CPUs that came online, and restarts it on those that have lost their
    /// event.
    pub(super) fn look_after_cpus(&mut self) {
        let switched_on = self.programs.look_for_cpus().unwrap_or_default();
        self.events.sideband.close_others(self.programs.cpus());
        self.take_opened_events();
        for &cpu in &switched_on {
            // Process events are needed whatever is sampled.
            self.open_process_events(cpu);
            if !self.programs.has_room_for(cpu) {
                self.figures.cpus_without_room += 1;
            } else if self.programs.is_on() {
                tracing::info!(cpu, "this CPU was switched on, and is sampled from now on");
                self.restart_on(cpu);
            }
        }
        if !switched_on.is_empty() {
            self.sampling.cpus_expected = Some(self.turn.now);
        }
        if !self.programs.is_on() {
            return;
        }
        let ticks = self.programs.ticks();
        let frequency = u32::try_from(self.programs.frequency()).unwrap_or(u32::MAX);
        for cpu in
            self.sampling.stalled.look(&ticks, frequency, self.turn.now, stalled_cpus::busy_times)
        {
            tracing::warn!(cpu, "the kernel has stopped sampling this CPU: it is started again");
            self.figures.restarted += 1;
            self.sampling.cpus_expected = Some(self.turn.now);
            self.programs.forget_events_of(cpu);
            self.open_process_events(cpu);
            self.restart_on(cpu);
        }
    }

    /// Between the checks of all CPUs.
    pub(super) fn expect_cpus(&mut self) {
        if self.next_cpu_look().is_some() {
            self.take_opened_events();
        }
    }

    /// When CPUs that were just switched on are looked at again.
    pub(super) fn next_cpu_look(&self) -> Option<Instant> {
        let since = self.sampling.cpus_expected?;
        (self.turn.now < since + EXPECTED).then(|| self.turn.now + LOOK)
    }

    /// Takes what the broker has opened, in the order in which it was requested.
    fn take_opened_events(&mut self) {
        let cpus = self.programs.cpus().to_vec();
        let programs = &mut self.programs;
        self.events.sideband.open_missing(&cpus, &mut |cpu, event| programs.open_event(cpu, event));
        if programs.is_on() {
            programs.start_awaited();
        }
    }

    fn open_process_events(&mut self, cpu: u32) {
        let programs = &mut self.programs;
        self.events.sideband.open_on(cpu, &mut |cpu, event| programs.open_event(cpu, event));
    }

    fn restart_on(&mut self, cpu: u32) {
        if let Err(error) = self.programs.restart_on(cpu) {
            tracing::warn!(cpu, %error, "this CPU is not sampled until that succeeds");
        }
    }
}
