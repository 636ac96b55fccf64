//! What off-CPU sampling costs programs that switch: `bench switches`. Pairs of threads switch to each
//! other through pipes, 100,000 times a second and as fast as they can, beside nothing, a daemon that
//! samples CPUs, and one that samples off-CPU time as well.

use std::time::Duration;

use anyhow::{Context, Result};

use super::bpf_objects::{Loaded, loaded};
use super::figure::Figure;
use super::pairs::{self, median};
use crate::daemon::Daemon;
use crate::running::Running;
use crate::targets;

const PART: &str = "switches";
/// Context switches a second of the paced run.
const RATE: f64 = 100_000.0;
/// Percent of a core that the programs for off-CPU time may take at that rate.
const BOUND: f64 = 1.0;

/// What samples meanwhile.
#[derive(Clone, Copy)]
enum Beside {
    Nothing,
    Cpu,
    OffCpu,
}

impl Beside {
    fn configuration(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Cpu => Some("[sampling]\ntypes = [\"cpu\"]\n"),
            Self::OffCpu => Some("[sampling]\ntypes = [\"cpu\", \"off_cpu\"]\n"),
        }
    }
}

/// One run of the program.
struct Run {
    switches: f64,
    per_second: f64,
    /// Seconds in programs for tracepoints.
    traced: f64,
}

fn run(beside: Beside, rate: f64, seconds: f64) -> Result<Run> {
    let before = loaded();
    let mut daemon = Daemon::prepared()?;
    if let Some(configuration) = beside.configuration() {
        daemon.configure(configuration)?;
        daemon.start()?;
    }
    let programs = Loaded::since(&before);
    let program = targets::c("switches").flag("-pthread").build()?;
    let traced = programs.tracing_runs().nanoseconds;
    let running = Running::start(&program, &[&rate.to_string(), &seconds.to_string()])?;
    let output = running.wait(Duration::from_secs(60) + Duration::from_secs_f64(seconds))?.stdout;
    let traced = programs.tracing_runs().nanoseconds - traced;
    if beside.configuration().is_some() {
        daemon.end()?;
    }
    let number = |name: &str| -> Result<f64> {
        let word = output.split_whitespace().find_map(|word| word.strip_prefix(name));
        Ok(word.with_context(|| format!("no {name} in {output}"))?.parse()?)
    };
    Ok(Run {
        switches: number("switches=")?,
        per_second: number("per_second=")?,
        traced: traced as f64 / 1e9,
    })
}

/// Rounds of one run of each, in another order each time.
pub fn measure(count: usize, seconds: f64) -> Result<Vec<Figure>> {
    let ways = [Beside::Nothing, Beside::Cpu, Beside::OffCpu];
    let mut fast = [const { Vec::new() }; 3];
    let (mut shares, mut per_switch, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms the caches.
    for round in 0..=count {
        eprintln!("switches, round {round} of {count} …");
        for step in 0..ways.len() {
            let way = (round + step) % ways.len();
            let Some((&beside, speeds)) = ways.get(way).zip(fast.get_mut(way)) else { continue };
            let run = run(beside, 0.0, seconds)?;
            if round > 0 {
                speeds.push(run.per_second);
            }
        }
        let paced = run(Beside::OffCpu, RATE, seconds)?;
        if round > 0 {
            shares.push(100.0 * paced.traced / seconds);
            per_switch.push(1e9 * paced.traced / paced.switches);
            rates.push(paced.per_second);
        }
    }
    let [without, cpu, off_cpu] = &fast;
    let slower = |values: &[f64]| {
        let inverse = |values: &[f64]| values.iter().map(|value| 1.0 / value).collect::<Vec<_>>();
        pairs::relative(&inverse(values), &inverse(without))
    };
    Ok(vec![
        Figure::new(PART, "off-CPU programs, paced", median(&shares), "% of a core")
            .note(format!("{:.0} switches a second, {seconds} s each", median(&rates)))
            .at_most(BOUND),
        Figure::new(PART, "the same, a switch", median(&per_switch), "ns")
            .note("walks of stacks included"),
        Figure::new(PART, "as fast as they can, beside nothing", median(without) / 1e3, "k/s"),
        Figure::difference(PART, "a switch takes longer: cpu", &slower(cpu)),
        Figure::difference(PART, "a switch takes longer: cpu, off_cpu", &slower(off_cpu)),
    ])
}
