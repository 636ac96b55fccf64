//! Measures one scene under strata (with the bare program beside it), and the same scene under
//! perf.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use super::bare_program::BareProgram;
use super::bpf_objects::{self, Loaded, Runs};
use super::control_group::ControlGroup;
use super::meters::ProcessMeter;
use super::scenes::Scene;
use crate::perf::{self, CallGraph};
use crate::strata::{self, Recording};
use crate::summary::Summary;

/// Sampling frequency of every profiler here.
pub const FREQUENCY: u32 = 99;

/// A scene's figures.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    pub scene: String,
    pub seconds: f64,
    pub samples: f64,
    /// Frames of a sample, on average, kernel frames included.
    pub frames_per_sample: f64,
    /// Percent of the user stacks of what the scene started that end where a thread starts.
    pub complete_percent: f64,
    pub bpf_us_per_sample: f64,
    pub bpf_ns_per_frame: f64,
    pub bare_us_per_sample: f64,
    /// strata's BPF time over the bare program's.
    pub ratio_to_bare: f64,
    /// While it records, seen from outside.
    pub agent_cpu_percent: f64,
    /// From start to exit: loading, the first scan, symbols and writing included.
    pub agent_cpu_seconds: f64,
    pub peak_rss_mb: f64,
    pub map_mb: f64,
    pub map_bytes_by_kernel_mb: f64,
    pub losses: Vec<(String, u64)>,
    /// strata's own figures.
    pub own_summary: Option<serde_json::Value>,
    pub perf: Vec<PerfMeasured>,
}

/// The same scene under perf.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PerfMeasured {
    pub call_graph: String,
    pub agent_cpu_percent: f64,
    pub peak_rss_mb: f64,
    pub mb_written_per_minute: f64,
}

/// Readings taken while a recording runs.
struct Watched {
    cpu_percent: f64,
    cpu_seconds: f64,
    peak_rss: u64,
    sampler: Runs,
    bare: Runs,
    map_bytes: u64,
}

/// Measures strata in a scene.
pub fn under_strata(scene: Scene, seconds: f64, early_exit_ns: f64) -> Result<Measured> {
    let mut stage = scene.start()?;
    let before = bpf_objects::loaded();
    let group = ControlGroup::new(&scene.name())?;
    let recording = strata::record()?.frequency(FREQUENCY).seconds(seconds);
    let mut recording = group.around(|| recording.start())?;
    let loaded = Loaded::since(&before);
    let bare = BareProgram::start(u64::from(FREQUENCY))?;
    scene.continue_with_profiler(&mut stage)?;
    let watched = watch(&mut recording, seconds, &before, &loaded, &bare, &group)?;
    drop(bare);
    let recorded = recording.finish()?;
    let pids = stage.pids();
    drop(stage);

    let stacks = recorded.stacks()?;
    let own = stacks.that(|s| s.pid().is_some_and(|pid| pids.contains(&pid)));
    let completeness = if own.total() > 0 { own.completeness() } else { stacks.completeness() };
    let summary = recorded.summary()?;
    let samples = summary.number("bpf.samples").unwrap_or(stacks.total() as f64).max(1.0);
    let frames: u64 = stacks.stacks.iter().map(|s| s.count * machine_frames(s)).sum();
    let run_time = summary.number("bpf.run_time_ns").unwrap_or(watched.sampler.nanoseconds as f64);
    let run_count = summary.number("bpf.run_count").unwrap_or(watched.sampler.count as f64);
    let in_samples = (run_time - early_exit_ns * (run_count - samples).max(0.0)).max(0.0);
    let bare_samples = watched.bare.count as f64 * (samples / run_count.max(1.0)).min(1.0);
    let bare_early = early_exit_ns.min(60.0) * (watched.bare.count as f64 - bare_samples);
    let bare_us =
        (watched.bare.nanoseconds as f64 - bare_early).max(0.0) / bare_samples.max(1.0) / 1e3;
    let frames_per_sample = frames as f64 / stacks.total().max(1) as f64;
    let us = in_samples / samples / 1e3;
    Ok(Measured {
        scene: scene.name(),
        seconds,
        samples,
        frames_per_sample,
        complete_percent: 100.0 * completeness.fraction(),
        bpf_us_per_sample: us,
        bpf_ns_per_frame: 1e3 * us / frames_per_sample.max(1.0),
        bare_us_per_sample: bare_us,
        ratio_to_bare: us / bare_us.max(0.001),
        agent_cpu_percent: watched.cpu_percent,
        agent_cpu_seconds: watched.cpu_seconds,
        peak_rss_mb: watched.peak_rss as f64 / 1e6,
        map_mb: summary.number("bpf.map_bytes").unwrap_or(0.0) / 1e6,
        map_bytes_by_kernel_mb: watched.map_bytes as f64 / 1e6,
        losses: summary.losses(),
        own_summary: own_figures(&summary),
        perf: vec![],
    })
}

/// What an early exit (a tick that hits the idle task) costs, from an idle scene; at most 100 ns,
/// because an idle CPU has cold caches and a busy one has not.
pub fn early_exit_ns(idle: &Measured) -> f64 {
    let number = |name: &str| idle.own_summary.as_ref().and_then(|s| s.pointer(name)?.as_f64());
    match (number("/bpf/run_time_ns"), number("/bpf/run_count"), number("/bpf/samples")) {
        // On a quiet host almost every run is an early exit; the rest is taken at 2 µs.
        (Some(time), Some(runs), Some(samples)) if runs > 2.0 * samples => {
            ((time - 2000.0 * samples) / (runs - samples)).clamp(0.0, 100.0)
        }
        _ => 0.0,
    }
}

fn watch(
    recording: &mut Recording,
    seconds: f64,
    before: &Loaded,
    own: &Loaded,
    bare: &BareProgram,
    group: &ControlGroup,
) -> Result<Watched> {
    let mut meter = ProcessMeter::of(recording.running().pid());
    let (start, cpu_at_start) = (Instant::now(), group.cpu_seconds()?);
    let mut watched = Watched {
        cpu_percent: 0.0,
        cpu_seconds: 0.0,
        peak_rss: 0,
        sampler: Runs::default(),
        bare: Runs::default(),
        map_bytes: 0,
    };
    // Measurements during the recording end before it does.
    let recording_ends = start + Duration::from_secs_f64((seconds - 1.5).max(1.0));
    let mut turn = 0u32;
    while recording.running().is_alive() {
        if turn.is_multiple_of(10) {
            meter.read_memory();
        }
        turn += 1;
        if Instant::now() < recording_ends {
            let elapsed = start.elapsed().as_secs_f64();
            watched.cpu_percent = 100.0 * (group.cpu_seconds()? - cpu_at_start) / elapsed;
            watched.sampler = own.sampler_runs();
            watched.bare = bare.runs();
            if turn % 10 == 1 {
                watched.map_bytes = Loaded::since(before).map_bytes();
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    watched.cpu_seconds = group.cpu_seconds()?;
    watched.peak_rss = meter.peak_rss;
    Ok(watched)
}

fn machine_frames(stack: &crate::stacks::Stack) -> u64 {
    stack.frames.iter().filter(|f| !f.is_inlined && f.address != 0).count() as u64
}

fn own_figures(summary: &Summary) -> Option<serde_json::Value> {
    let pick = |name: &str| summary.0.get(name).cloned().map(|v| (name.to_string(), v));
    Some(serde_json::Value::Object(["bpf", "agent"].into_iter().filter_map(pick).collect()))
}

/// Measures perf in a scene.
pub fn under_perf(scene: Scene, call_graph: CallGraph, seconds: f64) -> Result<PerfMeasured> {
    let mut stage = scene.start()?;
    let recording = perf::record(FREQUENCY, call_graph, None)?;
    scene.continue_with_profiler(&mut stage)?;
    let mut meter = ProcessMeter::of(recording.pid());
    meter.read_cpu();
    let (start, cpu_at_start) = (Instant::now(), meter.cpu_seconds());
    while start.elapsed().as_secs_f64() < seconds {
        std::thread::sleep(Duration::from_millis(500));
        meter.read_memory();
    }
    meter.read_cpu();
    let elapsed = start.elapsed().as_secs_f64();
    let cpu_percent = 100.0 * (meter.cpu_seconds() - cpu_at_start) / elapsed;
    drop(stage);
    let data = recording.stop()?;
    Ok(PerfMeasured {
        call_graph: format!("{call_graph:?}"),
        agent_cpu_percent: cpu_percent,
        peak_rss_mb: meter.peak_rss as f64 / 1e6,
        mb_written_per_minute: data.bytes() as f64 / 1e6 * 60.0 / elapsed,
    })
}
