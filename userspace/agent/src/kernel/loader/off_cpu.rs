//! The off-CPU sampler's programs and maps.

use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Array, MapData, RingBuf};
use aya::programs::BtfTracePoint;
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::{Btf, Ebpf, EbpfLoader};
use strata_abi::tables::WAIT_SLOTS;

use super::{HotValue, LoadError, Programs, map, program};

/// The programs and their tracepoints.
const PROGRAMS: [(&str, &str); 2] = [("switched", "sched_switch"), ("woken", "sched_wakeup")];

/// A window of time is 32 jiffies: 128 ms with the usual HZ of 250, and up to 320.
const WINDOW: u64 = 128_000_000;
/// Nanoseconds that a CPU may spend on waits in a window, however many CPUs there are: a stack.
const LEAST: u64 = 20_000;

/// Switched on by [`super::Settings::off_cpu`].
pub(super) struct OffCpu {
    pub(super) waits: RingBuf<MapData>,
    hot: Array<MapData, HotValue>,
    /// Of the programs that are attached.
    links: Vec<(&'static str, BtfTracePointLinkId)>,
}

/// Nanoseconds that a CPU may spend on waits in a window of time. `share`: thousandths of one CPU
/// that the whole host may.
pub(super) fn budget(share: u32, cpus: u32) -> u32 {
    let all = WINDOW / 1000 * u64::from(share);
    u32::try_from((all / u64::from(cpus.max(1))).max(LEAST)).unwrap_or(u32::MAX)
}

/// Sets the sizes of the maps.
pub(super) fn size(loader: &mut EbpfLoader<'_>, cpus: u32, ring_bytes: u32) {
    for name in ["OFF_CPU_HOT", "OFF_CPU_RECORD", "OFF_CPU_CACHE", "OFF_CPU_PACES"] {
        loader.map_max_entries(name, cpus);
    }
    loader.map_max_entries("WAIT_SLOTS", WAIT_SLOTS).map_max_entries("WAITS", ring_bytes);
}

impl OffCpu {
    pub(super) fn of(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let types = Btf::from_sys_fs().map_err(LoadError::Types)?;
        for (name, tracepoint) in PROGRAMS {
            let program: &mut BtfTracePoint = program(ebpf, name)?;
            program
                .load(tracepoint, &types)
                .map_err(|source| LoadError::Program { name, source })?;
        }
        let (waits, hot) = (map(ebpf, "WAITS")?, map(ebpf, "OFF_CPU_HOT")?);
        Ok(Self { waits, hot, links: Vec::new() })
    }

    pub(super) fn start(&mut self, ebpf: &mut Ebpf) -> Result<(), LoadError> {
        for (name, _) in PROGRAMS {
            let program: &mut BtfTracePoint = program(ebpf, name)?;
            let link = program.attach().map_err(|source| LoadError::Program { name, source })?;
            self.links.push((name, link));
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, ebpf: &mut Ebpf) -> Result<(), LoadError> {
        for (name, link) in std::mem::take(&mut self.links) {
            let program: &mut BtfTracePoint = program(ebpf, name)?;
            program.detach(link).map_err(|source| LoadError::Program { name, source })?;
        }
        Ok(())
    }

    /// A counter of one CPU.
    pub(super) fn count(&self, cpu: u32, counter: usize) -> u64 {
        let hot = self.hot.get(&cpu, 0).ok();
        hot.and_then(|hot| hot.counters.get(counter).copied()).unwrap_or_default()
    }
}

impl Programs {
    /// Starts sampling waits, if the settings say so.
    pub fn start_off_cpu(&mut self) -> Result<(), LoadError> {
        match &mut self.off_cpu {
            Some(off_cpu) => off_cpu.start(&mut self.ebpf),
            None => Ok(()),
        }
    }

    /// As [`Self::records_fd`], of waits.
    pub fn waits_fd(&self) -> Option<BorrowedFd<'_>> {
        self.off_cpu.as_ref().map(|off_cpu| off_cpu.waits.as_fd())
    }

    /// The next record of a wait.
    pub fn next_wait(&mut self) -> Option<impl std::ops::Deref<Target = [u8]> + '_> {
        self.off_cpu.as_mut()?.waits.next()
    }

    /// A counter of the off-CPU sampler; as [`Programs::count`].
    pub fn count_of_waits(&self, counter: usize) -> u64 {
        let Some(off_cpu) = &self.off_cpu else { return 0 };
        (0..self.possible_cpus).map(|cpu| off_cpu.count(cpu, counter)).sum()
    }
}
