//! The benchmark's table, with the figures to beat beside ours, and its JSON file.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::components::Component;
use super::figure::{self, Figure};
use super::measure::Measured;
use super::resident::Resident;

/// Everything one run found.
#[derive(Debug, Serialize)]
pub struct Report {
    pub kernel: String,
    pub processor: String,
    pub cpus: usize,
    pub early_exit_ns: f64,
    pub scenes: Vec<Measured>,
    pub daemon: Vec<Resident>,
    pub components: Vec<Component>,
    /// Of the groups that are no scenes.
    pub figures: Vec<Figure>,
    /// Scenes that could not be measured, and why.
    pub failed: Vec<(String, String)>,
}

/// Upper bounds a scene must stay below: µs a sample, agent CPU percent.
fn bounds(scene: &str) -> Option<(f64, f64)> {
    // A third of the agent CPU of the best host-wide profiler in use, measured on a machine of this size.
    Some(match scene {
        "idle" => (f64::INFINITY, 0.1),
        "recursion-5" => (1.5, 0.73 / 3.0),
        "recursion-50" => (3.0, 0.80 / 3.0),
        "recursion-200" => (7.0, 0.93 / 3.0),
        "dotnet-50" => (3.0, 0.65 / 3.0),
        "csharp-compiler" => (15.0, 1.7 / 3.0),
        "pythons-200" => (6.0, 3.2 / 3.0),
        _ => return None,
    })
}

/// The most that a sample may cost in a scene.
pub fn most_bpf_us(scene: &str) -> Option<f64> {
    bounds(scene).map(|(microseconds, _)| microseconds).filter(|bound| bound.is_finite())
}

const MOST_RSS_MB: f64 = 60.0;
const MOST_MAP_MB: f64 = 32.0;

/// A figure with its bound, marked when it is above.
fn bounded(value: f64, bound: Option<f64>, digits: usize) -> String {
    match bound {
        Some(bound) if bound.is_finite() => {
            let mark = if value > bound { " !" } else { "" };
            format!("{value:.digits$} (≤{bound:.digits$}){mark}")
        }
        _ => format!("{value:.digits$}"),
    }
}

/// Prints the table.
pub fn print(report: &Report) {
    println!("\n{} · {} CPUs · Linux {}", report.processor, report.cpus, report.kernel);
    if !report.scenes.is_empty() {
        print_scenes(report);
    }
    if !report.components.is_empty() {
        println!();
        let mut rows = vec![["component", "input", "figure"].map(String::from).to_vec()];
        rows.extend(
            report
                .components
                .iter()
                .map(|c| vec![c.name.clone(), c.input.clone(), c.figure.clone()]),
        );
        print_columns(&rows);
    }
    if !report.figures.is_empty() {
        figure::print(&report.figures);
    }
    for (scene, why) in &report.failed {
        println!("\nnot measured: {scene}: {why}");
    }
}

fn print_scenes(report: &Report) {
    println!(
        "99 Hz; a figure above its bound is marked with !; an early exit costs {:.0} ns\n",
        report.early_exit_ns
    );
    let mut rows = vec![header()];
    rows.extend(report.scenes.iter().map(row));
    print_columns(&rows);
    println!("\nThe same scenes under perf (BPF time has no counterpart there)\n");
    let mut rows =
        vec![["scene", "call graph", "agent CPU %", "RSS MB", "MB/min"].map(String::from).to_vec()];
    for scene in &report.scenes {
        for perf in &scene.perf {
            rows.push(vec![
                scene.scene.clone(),
                perf.call_graph.clone(),
                format!("{:.2}", perf.agent_cpu_percent),
                format!("{:.1}", perf.peak_rss_mb),
                format!("{:.1}", perf.mb_written_per_minute),
            ]);
        }
    }
    print_columns(&rows);
}

fn header() -> Vec<String> {
    let names = [
        "scene",
        "samples",
        "frames",
        "complete %",
        "BPF µs/sample",
        "ns/frame",
        "bare µs",
        "ratio",
        "agent CPU %",
        "CPU s in all",
        "RSS MB",
        "maps MB",
        "lost",
    ];
    names.map(String::from).to_vec()
}

fn row(m: &Measured) -> Vec<String> {
    let bound = bounds(&m.scene);
    let lost: u64 = m.losses.iter().map(|(_, count)| count).sum();
    let maps = m.map_bytes_by_kernel_mb.max(m.map_mb);
    vec![
        m.scene.clone(),
        format!("{:.0}", m.samples),
        format!("{:.0}", m.frames_per_sample),
        format!("{:.2}", m.complete_percent),
        bounded(m.bpf_us_per_sample, bound.map(|b| b.0), 2),
        format!("{:.0}", m.bpf_ns_per_frame),
        format!("{:.2}", m.bare_us_per_sample),
        format!("{:.2}", m.ratio_to_bare),
        bounded(m.agent_cpu_percent, bound.map(|b| b.1), 2),
        format!("{:.2}", m.agent_cpu_seconds),
        bounded(m.peak_rss_mb, Some(MOST_RSS_MB), 1),
        bounded(maps, Some(MOST_MAP_MB), 1),
        lost.to_string(),
    ]
}

/// Prints rows of cells below each other.
pub fn print_columns(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// Writes the JSON file.
pub fn write(report: &Report, path: &Path) -> Result<()> {
    std::fs::write(path, serde_json::to_string_pretty(report)? + "\n")?;
    println!("\n{}", path.display());
    Ok(())
}

/// The machine's processor, as the kernel names it.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("model name"));
    line.and_then(|l| l.split(": ").nth(1)).unwrap_or("unknown processor").to_string()
}

/// The running kernel's release.
pub fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string()
}
