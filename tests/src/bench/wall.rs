//! What passes over threads cost: `bench wall`. One process with many threads, of which none, a tenth or
//! all are switched between two passes.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::figure::Figure;
use crate::running::Running;
use crate::{places, targets};

const PART: &str = "wall";
/// Percent of a core that passes may take.
const BOUND: f64 = 1.0;
const PATIENCE: Duration = Duration::from_secs(120);

/// Passes of one recording, and nanoseconds that they took of a CPU.
fn passes(threads: u32, active: u32, seconds: f64) -> Result<(f64, f64)> {
    let program = targets::c("sleepers").flag("-pthread").build()?;
    let arguments = [threads.to_string(), active.to_string(), (seconds + 20.0).to_string()];
    let mut target = Running::start(&program, &arguments.each_ref().map(String::as_str))?;
    target.wait_for_line("ready", PATIENCE)?;
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(places::strata_binary()?);
    command.args(["record", "-v", "-e", "wall", "-o"]).arg(folder.path().join("wall.folded"));
    command.args(["--pid", &target.pid().to_string(), "--duration", &seconds.to_string()]);
    let said = Running::from_command(command)?.wait(PATIENCE)?.stderr;
    let line = said.lines().find(|line| line.contains("passes over threads"));
    let numbers = line.context("no passes")?.split(' ').filter_map(|word| word.parse().ok());
    match numbers.collect::<Vec<f64>>().as_slice() {
        [passes, nanoseconds, ..] => Ok((*passes, *nanoseconds)),
        _ => anyhow::bail!("no figures in {said}"),
    }
}

/// By the number of threads and the share that is active.
pub fn measure(seconds: f64) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for threads in [100, 2_000, 10_000] {
        for percent in [0, 10, 100] {
            eprintln!("wall, {threads} threads, {percent} % active …");
            let (passes, nanoseconds) = passes(threads, threads * percent / 100, seconds)?;
            let name = format!("{threads} threads, {percent} % active: a pass");
            let share = 100.0 * nanoseconds / 1e9 / seconds;
            figures.push(
                Figure::new(PART, name, nanoseconds / passes / 1e6, "ms")
                    .note(format!("{:.1} passes a second, the first included", passes / seconds)),
            );
            let name = format!("{threads} threads, {percent} % active: all passes");
            figures.push(Figure::new(PART, name, share, "% of a core").at_most(BOUND * 1.2));
        }
    }
    Ok(figures)
}
