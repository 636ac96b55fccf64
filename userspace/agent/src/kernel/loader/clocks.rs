//! The sampler's clocks: a perf event on each CPU that is online. They are opened, started and stopped
//! here, and CPUs that are switched on or off are noticed.
//!
//! Invariant: a CPU that cannot be sampled does not keep the others from it. A clock that was started stays
//! open while it is stopped: where opening one takes CAP_SYS_ADMIN, the broker may have lost it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::programs::PerfEvent;

use super::{LoadError, Programs, SAMPLER, program};
use crate::clock::suspended_nanos;
use crate::kernel::perf_event::{self, CpuEvent};

pub(super) struct Clocks {
    cpus: Vec<u32>,
    /// Sampling has been started, and not stopped.
    is_on: bool,
    /// By CPU: those that were started.
    running: Vec<(u32, OwnedFd)>,
    /// Opened before the start, when this process has all of its capabilities.
    opened: Vec<(u32, OwnedFd)>,
    /// CPUs whose event the broker has been asked for.
    awaited: Vec<u32>,
    /// A CPU without working memory has been reported.
    is_crowded: bool,
    /// How long the machine had been suspended at the last check, in nanoseconds.
    suspended: u64,
}

impl Clocks {
    /// None is open yet.
    pub(super) fn of_this_machine() -> Result<Self, LoadError> {
        Ok(Self {
            cpus: online_cpus()?,
            is_on: false,
            running: Vec::new(),
            opened: Vec::new(),
            awaited: Vec::new(),
            is_crowded: false,
            suspended: suspended_nanos(),
        })
    }

    pub(super) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Those that were opened for the next start are of another frequency.
    pub(super) fn forget_opened(&mut self) {
        self.opened.clear();
    }

    pub(super) fn stop(&mut self) {
        self.is_on = false;
        // One that cannot be stopped is closed.
        self.running.retain(|(_, clock)| perf_event::disable(clock.as_fd()).is_ok());
        self.opened.clear();
        self.awaited.clear();
    }
}

fn online_cpus() -> Result<Vec<u32>, LoadError> {
    aya::util::online_cpus().map_err(|(path, _)| LoadError::Cpus(path.into()))
}

/// The least time of a suspension, in nanoseconds.
const SUSPENDED: u64 = 20_000_000;

/// CPUs that may be added to a running machine with fewer, and are sampled at once.
const ADDED: u32 = 32;

/// The CPUs that are present, switched off or not, and some that may be added. A virtual machine may have room
/// for hundreds more, each of which would take hundreds of kilobytes.
pub(super) fn room_for_cpus() -> Result<u32, LoadError> {
    let possible = aya::util::nr_cpus().map_err(|(path, _)| LoadError::Cpus(path.into()))?;
    let possible = u32::try_from(possible).unwrap_or(u32::MAX);
    let present = std::fs::read_to_string("/sys/devices/system/cpu/present");
    let last = present.ok().and_then(|list| last_of(&list));
    Ok(last.map_or(possible, |last| last.saturating_add(1).max(ADDED).min(possible)))
}

/// The highest number in a list of CPUs such as `0-3,8`.
fn last_of(list: &str) -> Option<u32> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

impl Programs {
    /// Opens the events of the sampler, for [`Self::start`]. One that cannot be opened is tried again
    /// there.
    pub fn open_clocks(&mut self) {
        let event = CpuEvent::Clock { frequency: self.settings.frequency };
        let opened = self.clocks.cpus.iter().filter_map(|cpu| Some((*cpu, event.open(*cpu).ok()?)));
        self.clocks.opened = opened.collect();
    }

    /// Starts sampling on every CPU. One that cannot be sampled now (it may just have been switched
    /// off) does not keep the others from it; the first error is returned where none can.
    pub fn start(&mut self) -> Result<(), LoadError> {
        let mut failed = Vec::new();
        for cpu in self.clocks.cpus.clone() {
            if let Err(error) = self.start_on(cpu) {
                failed.push((cpu, error));
            }
        }
        self.clocks.is_on = !self.clocks.running.is_empty() || !self.clocks.awaited.is_empty();
        if self.clocks.is_on {
            for (cpu, error) in failed {
                tracing::warn!(cpu, %error, "this CPU is not sampled yet");
            }
            return Ok(());
        }
        failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Samples a CPU, from [`Self::start_awaited`] on where the broker has to open the event.
    fn start_on(&mut self, cpu: u32) -> Result<(), LoadError> {
        if !self.has_room_for(cpu) {
            return Ok(());
        }
        let frequency = self.settings.frequency;
        if let Some(place) = self.clocks.running.iter().position(|(of, _)| *of == cpu) {
            let (_, clock) = self.clocks.running.swap_remove(place);
            let goes_on = perf_event::set_frequency(clock.as_fd(), frequency)
                .and_then(|()| perf_event::enable(clock.as_fd()));
            match goes_on {
                Ok(()) => {
                    self.clocks.running.push((cpu, clock));
                    return Ok(());
                }
                Err(error) => tracing::warn!(cpu, %error, "the timer of a CPU is opened again"),
            }
        }
        let opened = self.clocks.opened.iter().position(|(of, _)| *of == cpu);
        let event = match opened {
            Some(place) => Ok(self.clocks.opened.swap_remove(place).1),
            None => self.open_event(cpu, CpuEvent::Clock { frequency }),
        };
        let event = match event {
            Ok(event) => event,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.clocks.awaited.push(cpu);
                return Ok(());
            }
            Err(error) => return Err(LoadError::Clock(error)),
        };
        let sampler: &mut PerfEvent = program(&mut self.ebpf, SAMPLER)?;
        let sampler = sampler.fd();
        let sampler = sampler.map_err(|source| LoadError::Program { name: SAMPLER, source })?;
        perf_event::attach(event.as_fd(), sampler.as_fd()).map_err(LoadError::Attach)?;
        self.clocks.running.push((cpu, event));
        Ok(())
    }

    /// Whether a CPU can be sampled. One that cannot is reported: the first.
    pub fn has_room_for(&mut self, cpu: u32) -> bool {
        let has_room = cpu < self.room;
        if !has_room && !std::mem::replace(&mut self.clocks.is_crowded, true) {
            tracing::warn!(
                cpu,
                "CPUs were added to this machine for which there is no room: nothing on them is sampled \
                 until strata is started again"
            );
        }
        has_room
    }

    /// Samples CPUs whose event has arrived.
    pub fn start_awaited(&mut self) {
        for cpu in std::mem::take(&mut self.clocks.awaited) {
            if self.clocks.cpus.contains(&cpu)
                && let Err(error) = self.start_on(cpu)
            {
                tracing::warn!(cpu, %error, "this CPU is not sampled until that succeeds");
            }
        }
    }

    /// Samples a CPU with a new event, whether it has one or not.
    pub fn restart_on(&mut self, cpu: u32) -> Result<(), LoadError> {
        self.clocks.running.retain(|(of, _)| *of != cpu);
        self.clocks.awaited.retain(|of| *of != cpu);
        self.start_on(cpu)
    }

    /// Events that were opened for a CPU and are not in use are of no use: it was switched off meanwhile.
    pub fn forget_events_of(&mut self, cpu: u32) {
        self.clocks.awaited.retain(|of| *of != cpu);
        self.clocks.opened.retain(|(of, _)| *of != cpu);
        if let Some(broker) = &mut self.broker {
            broker.forget_cpu(cpu);
        }
    }

    /// Checks which CPUs are online, and returns those that were not at the last check, or since when the
    /// machine was suspended, which switches all off and on but the first. CPUs that are offline now have
    /// lost their event.
    pub fn look_for_cpus(&mut self) -> Result<Vec<u32>, LoadError> {
        let now = online_cpus()?;
        let suspended = suspended_nanos();
        if suspended > self.clocks.suspended + SUSPENDED {
            self.clocks.suspended = suspended;
            let mut others = std::mem::take(&mut self.clocks.cpus).into_iter();
            self.clocks.cpus.extend(others.next());
            for cpu in others {
                self.clocks.running.retain(|(of, _)| *of != cpu);
                self.forget_events_of(cpu);
            }
        }
        if now == self.clocks.cpus {
            return Ok(Vec::new());
        }
        self.clocks.running.retain(|(cpu, _)| now.contains(cpu));
        let before = std::mem::replace(&mut self.clocks.cpus, now);
        let switched_on =
            self.clocks.cpus.iter().copied().filter(|cpu| !before.contains(cpu)).collect();
        for cpu in before {
            if !self.clocks.cpus.contains(&cpu) {
                self.forget_events_of(cpu);
            }
        }
        Ok(switched_on)
    }

    pub fn is_on(&self) -> bool {
        self.clocks.is_on
    }

    pub fn cpus(&self) -> &[u32] {
        &self.clocks.cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_a_list_of_cpus() {
        let lists = ["0\n", "0-3\n", "0-3,8\n", "0,2-127\n", "", "x"];
        let last = [Some(0), Some(3), Some(8), Some(127), None, None];
        assert_eq!(lists.map(last_of), last);
        let room = room_for_cpus().expect("it is readable");
        assert!(room >= 1);
    }
}
