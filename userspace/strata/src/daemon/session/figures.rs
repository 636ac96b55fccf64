//! How the loop is doing, for the board.

use super::{Daemon, kernel_frequency};
use crate::daemon::board::{self, Bridges, Snapshot};
use crate::record::report;
use strata_agent::kernel::introspect;

/// Figures that are found out less often.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlowFigures {
    helper_seconds: f64,
    sampler_seconds: f64,
    sampler_runs: u64,
    open_files: usize,
    /// Those of them that processes have mapped.
    mapped_files: usize,
    threads: usize,
}

impl Daemon {
    pub(super) fn slow_figures(&self) -> SlowFigures {
        let sampler = introspect::of_this_process().ok();
        let sampler = sampler.as_ref().and_then(|used| used.program("sample_cpu"));
        let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
        // What was used stays used, also while it cannot be found out: a helper that has ended is
        // counted when it was waited for.
        let before = self.slow;
        let helpers = [self.engine.loading.helpers(), self.flusher.symbolizer.helpers()];
        let helper_seconds =
            helpers.iter().map(|helpers| helpers.processor_time.as_secs_f64()).sum::<f64>();
        SlowFigures {
            sampler_seconds: sampler
                .map_or(0.0, |used| used.run_time.as_secs_f64())
                .max(before.sampler_seconds),
            sampler_runs: sampler.map_or(0, |used| used.run_count).max(before.sampler_runs),
            helper_seconds: helper_seconds.max(before.helper_seconds),
            open_files: count("/proc/self/fd"),
            mapped_files: self.engine.table.files.count(),
            threads: count("/proc/self/task"),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let engine = &self.engine;
        let tally = &self.flusher.tally;
        let bridges = engine.managed.totals();
        let mut ends = self.ends;
        for (sum, count) in ends.iter_mut().zip(engine.aggregate.ends()) {
            *sum += count;
        }
        Snapshot {
            frequency: kernel_frequency(&self.configuration),
            processes: engine.table.count(),
            images: engine.table.image_count(),
            files: self.slow.mapped_files,
            sampled_processes: self.flusher.processes.len(),
            readings: self.flusher.processes.readings(),
            environments: (
                self.flusher.processes.environment_bytes(),
                self.flusher.processes.not_kept(),
            ),
            services: self.services.clone(),
            containers: self.runtimes.health(),
            samples: tally.samples,
            left_out: tally.left_out + engine.deselected_samples,
            unattributed: tally.unattributed,
            own_samples: engine.own_samples,
            flushes: tally.flushes,
            early_flushes: self.early_flushes,
            profiles: tally.profiles,
            dropped_profiles: self.publisher.dropped,
            names: self.flusher.symbolizer.symbols().count(),
            late_symbols: tally.late,
            shed: [self.shed[0], self.shed[1], self.shed[2], engine.store.evicted],
            losses: board::causes(report::losses(engine, &ends, tally.unnamed)),
            memory: self.watch.last,
            memory_peak: self.watch.peak,
            memory_limit: self.watch.limit,
            open_files: self.slow.open_files,
            threads: self.slow.threads,
            own_seconds: own_seconds(),
            helper_seconds: self.slow.helper_seconds,
            flush_seconds: tally.nanos as f64 / 1e9,
            sampler_seconds: self.slow.sampler_seconds,
            sampler_runs: self.slow.sampler_runs,
            bridges: Bridges {
                attached: bridges.attached,
                detached: bridges.detached,
                methods: bridges.methods,
                waiting: engine.managed.candidates().count(),
                refused: bridges.refused,
            },
            reloads: self.reloads,
            reload_trouble: self.reload_trouble.clone(),
            configuration: self.source.shown(),
        }
    }
}

/// Processor time of strata itself.
fn own_seconds() -> f64 {
    // SAFETY: a zeroed `rusage` is valid, and the call only writes to it.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut used);
        used
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(used.ru_utime) + seconds(used.ru_stime)
}
