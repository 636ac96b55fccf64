//! The figures of the event loop, for its status.

use super::{Daemon, kernel_frequencies};
use crate::losses;
use crate::status::{
    self, Broker, Containers, CpuSeconds, DotNet, Memory, Profiles, Reading, RefusedProcess, SHED,
    Sampling, Status, UnreadableFile, Wall,
};
use strata_kinds::Kind;

/// Files that cannot be read which the status names.
const MOST_FILES: usize = 5;

/// Figures that are collected less often.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlowFigures {
    helper_seconds: f64,
    /// Of all BPF programs.
    bpf_seconds: f64,
    sampler_runs: u64,
    open_files: usize,
    /// Those of them that processes have mapped.
    mapped_files: usize,
    threads: usize,
}

impl Daemon {
    pub(super) fn slow_figures(&self) -> SlowFigures {
        let sampler = self.engine.sampler_use_so_far();
        let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
        // What was used stays used, also while it cannot be found out: a helper that has ended is
        // counted when it was waited for.
        let before = self.slow.figures;
        let helpers = [self.engine.loading.helpers(), self.flusher.symbolizer.helpers()];
        let helper_seconds =
            helpers.iter().map(|helpers| helpers.processor_time.as_secs_f64()).sum::<f64>();
        SlowFigures {
            bpf_seconds: self.engine.run_time_so_far().as_secs_f64().max(before.bpf_seconds),
            sampler_runs: sampler.map_or(0, |used| used.run_count).max(before.sampler_runs),
            helper_seconds: helper_seconds.max(before.helper_seconds),
            open_files: count("/proc/self/fd"),
            mapped_files: self.engine.table.files.count(),
            threads: count("/proc/self/task"),
        }
    }

    /// The loop's part of the status.
    pub(super) fn status(&self) -> Status {
        Status {
            configuration: status::Configuration {
                file: self.reloading.source.shown(),
                reloads: self.reloading.count,
                trouble: self.reloading.trouble.clone(),
            },
            broker: self.engine.broker().map(|broker| Broker {
                pid: broker.pid,
                restarts: broker.restarts,
                trouble: broker.trouble,
            }),
            sampling: self.sampling(),
            profiles: Profiles {
                flushes: self.flusher.tally.flushes,
                early_flushes: self.memory.early_flushes,
                made: self.flusher.tally.profiles,
                dropped: self.publisher.dropped,
                waiting: self.publisher.waiting(),
                late_symbols: self.flusher.tally.late,
                late_awaited: self.flusher.symbolizer.late_places().0,
                late_unnamed: self.flusher.symbolizer.late_places().1,
                ..Profiles::default()
            },
            dotnet: self.dotnet(),
            reading: self.reading(),
            wall: self.wall(),
            containers: self.containers(),
            services: self.slow.described.services.clone(),
            services_not_listed: self.slow.described.not_listed,
            memory: self.memory(),
            cpu_seconds: CpuSeconds {
                own: own_seconds(),
                helpers: self.slow.figures.helper_seconds,
                flushes: self.flusher.tally.nanos as f64 / 1e9,
                bpf: self.slow.figures.bpf_seconds,
            },
            bpf_runs: self.slow.figures.sampler_runs,
            open_files: self.slow.figures.open_files,
            threads: self.slow.figures.threads,
            names: self.flusher.symbolizer.symbols().count(),
            images: self.engine.table.image_count(),
            mapped_files: self.slow.figures.mapped_files,
            ..Status::default()
        }
    }

    fn sampling(&self) -> Sampling {
        let (engine, tally) = (&self.engine, &self.flusher.tally);
        let mut ends = self.ends;
        for (sum, count) in ends.iter_mut().zip(engine.aggregate.ends()) {
            *sum += count;
        }
        let losses = losses::losses(engine, &ends, tally.unnamed);
        Sampling {
            frequency: self.configuration.frequencies().of(Kind::Cpu),
            highest_frequency: kernel_frequencies(&self.configuration).of(Kind::Cpu),
            trouble: engine.not_sampling().map(str::to_owned),
            processes: engine.table.count(),
            sampled_processes: self.flusher.processes.living(&engine.table),
            samples: tally.samples,
            left_out: tally.left_out + engine.figures.deselected_samples,
            unattributed: tally.unattributed,
            own: engine.figures.own_samples,
            losses: losses.into_iter().map(|loss| (loss.cause.to_owned(), loss.count)).collect(),
            unreadable_files: engine
                .unreadable_files(MOST_FILES)
                .into_iter()
                .map(|(path, why)| UnreadableFile { path, why })
                .collect(),
        }
    }

    fn dotnet(&self) -> DotNet {
        let managed = &self.engine.managed;
        let totals = managed.totals();
        let without_events = totals.without_events.into_iter();
        let without_events = without_events.map(|(pid, why)| (pid, format!("no events: {why}")));
        let only = totals.managed_frames_only.into_iter();
        let only = only.map(|(pid, why)| (pid, format!("events with managed frames only: {why}")));
        DotNet {
            attached: totals.attached,
            detached: totals.detached,
            read_now: totals.read_now,
            waiting: managed.candidates().count(),
            methods: totals.methods,
            policy: self.configuration.bridge.value.name().to_owned(),
            refused: totals
                .refused
                .into_iter()
                .chain(without_events)
                .chain(only)
                .map(|(pid, why)| RefusedProcess { pid, why })
                .collect(),
        }
    }

    fn reading(&self) -> Reading {
        let processes = &self.flusher.processes;
        let readings = processes.readings();
        Reading {
            given_up: readings.given_up,
            refused: readings.refused,
            stuck: readings.stuck,
            environment_bytes: processes.environment_bytes(),
            variables_not_kept: processes.not_kept(),
        }
    }

    fn wall(&self) -> Option<Wall> {
        let figures = self.engine.pass_figures();
        let is_on = figures.passes > 0 || figures.abandoned > 0;
        is_on.then(|| Wall {
            passes: figures.passes,
            interval_seconds: figures.interval as f64 / 1e9,
            threads: figures.threads,
            cpu_seconds: figures.reading as f64 / 1e9,
            not_walked: self
                .engine
                .not_walked()
                .into_iter()
                .map(|pid| RefusedProcess { pid, why: HUNG.to_owned() })
                .collect(),
        })
    }

    fn containers(&self) -> Containers {
        let health = self.runtimes.health();
        Containers {
            known: health.known,
            unknown: health.unknown,
            waiting: health.waiting,
            forgotten: health.forgotten,
            sources: health.sources.iter().map(Into::into).collect(),
        }
    }

    fn memory(&self) -> Memory {
        let used = self.memory.watch.last;
        let shed = [
            self.memory.shed[0],
            self.memory.shed[1],
            self.memory.shed[2],
            self.engine.store.evicted,
            self.flusher.tally.without_lines,
        ];
        Memory {
            bytes: used.total(),
            own: used.own,
            workers: used.workers,
            bpf_maps: used.maps,
            peak: self.memory.watch.peak,
            limit: self.memory.watch.limit,
            shed: SHED.iter().map(|what| (*what).to_owned()).zip(shed).collect(),
        }
    }
}

/// Why a process's threads are not walked.
const HUNG: &str = "not walked: reading the stack of one of its threads hung (memory of a file that \
                    does not answer?)";

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
