//! How long it takes to attach, to get an answer to an address, and to detach, on every runtime.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use strata_bridge_protocol::record::Record;
use strata_clr::session::Budget;
use strata_clr::{AttachOptions, Session};

use super::Effort;
use crate::bench::figure::Figure;
use crate::bench::pairs::{median, percentile};
use crate::running::Running;
use crate::runtimes::{self, Version};

const PART: &str = "session";
const PATIENCE: Duration = Duration::from_secs(60);
/// The times without a request after which the bridge polls less often.
const QUIET: Duration = Duration::from_millis(120);
const VERY_QUIET: Duration = Duration::from_millis(2500);
/// Interval of polls for an answer.
const LOOK: Duration = Duration::from_micros(100);
/// Asked one at a time, and together, in each session.
const ALONE: usize = 10;
const TOGETHER: usize = 200;

/// Milliseconds, a list for each kind.
#[derive(Default)]
struct Times {
    attach: Vec<f64>,
    enumerate: Vec<f64>,
    late: Vec<f64>,
    first: Vec<f64>,
    next: Vec<f64>,
    /// Microseconds an answer.
    together: Vec<f64>,
    detach: Vec<f64>,
}

/// Measures this part.
pub fn measure(effort: Effort) -> Result<Vec<Figure>> {
    let dotnet = runtimes::dotnet()?;
    let mut figures = Vec::new();
    for version in dotnet.versions() {
        let command = dotnet.program(version, "Busy", &["3600", "1"])?;
        let mut program = Running::from_command(command)?;
        program.wait_for_line("ready", PATIENCE)?;
        let pid = u32::try_from(program.pid())?;
        let mut times = Times::default();
        for _ in 0..effort.pairs.div_ceil(2) {
            cycle(pid, &mut times).with_context(|| version.to_string())?;
        }
        figures.extend(times.figures(version));
    }
    Ok(figures)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn cycle(pid: u32, times: &mut Times) -> Result<()> {
    let start = Instant::now();
    let attached = strata_clr::attach(pid, &AttachOptions::default())?;
    times.attach.push(attached.took.as_secs_f64() * 1e3);
    let mut session = attached.session;
    let addresses = enumerated(&mut session)?;
    times.enumerate.push(milliseconds(start));
    let mut addresses = addresses.into_iter().cycle();
    std::thread::sleep(VERY_QUIET);
    times.late.push(asked(&mut session, &[addresses.next().context("a method")?])?);
    for _ in 0..ALONE {
        std::thread::sleep(QUIET);
        times.first.push(asked(&mut session, &[addresses.next().context("a method")?])?);
        times.next.push(asked(&mut session, &[addresses.next().context("a method")?])?);
    }
    let mut many: Vec<u64> = addresses.take(TOGETHER).collect();
    many.sort_unstable();
    many.dedup();
    times.together.push(asked(&mut session, &many)? * 1e3 / many.len() as f64);
    let start = Instant::now();
    session.detach_and_wait(PATIENCE, Budget::default(), drop)?;
    times.detach.push(milliseconds(start));
    Ok(())
}

/// Reads what was there, and answers where its methods start.
fn enumerated(session: &mut Session) -> Result<Vec<u64>> {
    let (start, mut addresses) = (Instant::now(), Vec::new());
    while !session.is_enumerated() {
        if start.elapsed() > PATIENCE {
            bail!("the bridge did not tell everything in {PATIENCE:?}");
        }
        let read = session.look_and_poll(Budget::default())?;
        for entry in &read.entries {
            if let Record::Method(method) = &entry.record {
                addresses.extend(method.ranges.first().map(|range| range.start));
            }
        }
        if !read.more {
            std::thread::sleep(LOOK);
        }
    }
    Ok(addresses)
}

/// Milliseconds until all of them are answered.
fn asked(session: &mut Session, addresses: &[u64]) -> Result<f64> {
    let start = Instant::now();
    session.resolve(addresses);
    let mut answers = 0;
    while answers < addresses.len() {
        if start.elapsed() > PATIENCE {
            bail!("{answers} of {} addresses were answered", addresses.len());
        }
        let read = session.look_and_poll(Budget::default())?;
        if let Some((question, why)) = read.unanswered.first() {
            bail!("no answer to {question:x?}: {why:?}");
        }
        let is_answer = |record: &Record| match record {
            Record::Method(method) => method.asked_ip != 0,
            Record::NotFound(_) => true,
            _ => false,
        };
        answers += read.entries.iter().filter(|entry| is_answer(&entry.record)).count();
        if answers < addresses.len() && !read.more {
            std::thread::sleep(LOOK);
        }
    }
    Ok(milliseconds(start))
}

impl Times {
    fn figures(&self, version: Version) -> Vec<Figure> {
        let line = |name: &str, values: &[f64], unit: &str| {
            Figure::new(PART, format!("{version}: {name}"), median(values), unit).note(format!(
                "median of {}; 95 % below {:.2}",
                values.len(),
                percentile(values, 0.95)
            ))
        };
        let enumerated = "until all methods were published";
        vec![
            line("attach", &self.attach, "ms"),
            line(&format!("attach {enumerated}"), &self.enumerate, "ms"),
            line("an address, after a long silence", &self.late, "ms"),
            line("an address, after a short one", &self.first, "ms"),
            line("an address, right after another", &self.next, "ms"),
            line(&format!("each of {TOGETHER} addresses at once"), &self.together, "µs"),
            line("detach", &self.detach, "ms"),
        ]
    }
}
