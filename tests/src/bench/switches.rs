//! What off-CPU sampling costs programs that switch: `bench switches`. Pairs of threads switch to each
//! other through pipes, 100,000 times a second and as fast as they can, beside nothing, a daemon that
//! samples CPUs, and one that samples off-CPU time as well.
//!
//! The kernel's count of a program's run time contains the clock by which it counts. Programs that do
//! nothing, at the same tracepoints at the same time, say how much that is; it is taken off.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::bare_tracepoints::BareTracepoint;
use super::bpf_objects::{Loaded, Runs, loaded};
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
    per_second: f64,
    traced: Traced,
}

/// Programs for tracepoints while it ran.
struct Traced {
    seconds: f64,
    /// In those for off-CPU time, as the kernel counts it.
    counted: f64,
    /// Of that, what counting takes.
    counting: f64,
    /// Switches of the whole host.
    switches: f64,
}

/// Programs that do nothing where those for off-CPU time run.
struct Bare([BareTracepoint; 2]);

impl Bare {
    fn start() -> Result<Self> {
        let [switch, wakeup] = [c"sched_switch", c"sched_waking"].map(BareTracepoint::at);
        Ok(Self([switch?, wakeup?]))
    }

    fn runs(&self) -> [Runs; 2] {
        self.0.each_ref().map(BareTracepoint::runs)
    }
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
    let bare = Bare::start()?;
    let (traced, empty, began) = (programs.tracing_runs(), bare.runs(), Instant::now());
    let running = Running::start(&program, &[&rate.to_string(), &seconds.to_string()])?;
    let output = running.wait(Duration::from_secs(60) + Duration::from_secs_f64(seconds))?.stdout;
    let traced = programs.tracing_runs().nanoseconds - traced.nanoseconds;
    let ([switches, wakeups], seconds) = (bare.runs(), began.elapsed().as_secs_f64());
    let counting = switches.nanoseconds + wakeups.nanoseconds;
    let counting = counting - empty.iter().map(|runs| runs.nanoseconds).sum::<u64>();
    let traced = Traced {
        seconds,
        counted: traced as f64 / 1e9,
        counting: counting as f64 / 1e9,
        switches: (switches.count - empty[0].count) as f64,
    };
    drop(bare);
    if beside.configuration().is_some() {
        daemon.end()?;
    }
    let number = |name: &str| -> Result<f64> {
        let word = output.split_whitespace().find_map(|word| word.strip_prefix(name));
        Ok(word.with_context(|| format!("no {name} in {output}"))?.parse()?)
    };
    Ok(Run { per_second: number("per_second=")?, traced })
}

/// Rounds of one run of each, in another order each time.
pub fn measure(count: usize, seconds: f64) -> Result<Vec<Figure>> {
    let ways = [Beside::Nothing, Beside::Cpu, Beside::OffCpu];
    let mut fast = [const { Vec::new() }; 3];
    let mut paced = Vec::new();
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
        let run = run(Beside::OffCpu, RATE, seconds)?;
        if round > 0 {
            paced.push(run.traced);
        }
    }
    let [without, cpu, off_cpu] = &fast;
    let slower = |values: &[f64]| {
        let inverse = |values: &[f64]| values.iter().map(|value| 1.0 / value).collect::<Vec<_>>();
        pairs::relative(&inverse(values), &inverse(without))
    };
    let of = |value: fn(&Traced) -> f64| median(&paced.iter().map(value).collect::<Vec<_>>());
    let rate = of(|traced| traced.switches / traced.seconds);
    let counted = of(|traced| 100.0 * traced.counted / traced.seconds);
    let share = of(|traced| 100.0 * (traced.counted - traced.counting) / traced.seconds);
    let a_switch = of(|traced| 1e9 * (traced.counted - traced.counting) / traced.switches);
    Ok(vec![
        Figure::new(PART, "off-CPU programs, paced", share, "% of a core")
            .note(format!("{rate:.0} switches a second of the host, {seconds} s each"))
            .note(format!("{counted:.2} with what counting takes"))
            .at_most(BOUND),
        Figure::new(PART, "the same, a switch", a_switch, "ns").note("walks of stacks included"),
        Figure::new(PART, "as fast as they can, beside nothing", median(without) / 1e3, "k/s"),
        Figure::difference(PART, "a switch takes longer: cpu", &slower(cpu)),
        Figure::difference(PART, "a switch takes longer: cpu, off_cpu", &slower(off_cpu)),
    ])
}
