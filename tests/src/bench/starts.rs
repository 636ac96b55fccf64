//! The extra cost of starting programs while `strata daemon` or `strata record` samples the host:
//! `bench starts`.
//!
//! Every program that starts makes a dozen process events, whether it is ever sampled or not. Small
//! programs are started as fast as two CPUs can, so strata's own handling of their events is
//! included.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::figure::Figure;
use super::pairs::{self, median};
use crate::daemon::Daemon;
use crate::running::Running;
use crate::{strata, targets};

const PART: &str = "starts";
/// Percent of the time that a start takes.
const BOUND: f64 = 10.0;
const SECONDS: f64 = 2.0;
/// More than can be started.
const RATE: &str = "1000000";

/// Microseconds a start takes.
fn one_start() -> Result<f64> {
    let program = targets::c("exec_churn").build()?;
    let seconds = SECONDS.to_string();
    let running = Running::start(&program, &["/bin/true", RATE, &seconds])?;
    let output = running.wait(Duration::from_secs(60))?.stdout;
    let rate = output.split("per_second=").nth(1).context("no rate")?.trim().parse::<f64>()?;
    Ok(1e6 / rate)
}

/// What runs while programs are started.
#[derive(Clone, Copy)]
enum Beside {
    Daemon,
    /// Of the whole host, at this frequency.
    Recording(u32),
}

/// Below and above the frequency from which on a recording takes each process event at once.
const BESIDES: [Beside; 3] = [Beside::Daemon, Beside::Recording(97), Beside::Recording(997)];

impl Beside {
    fn name(self) -> String {
        match self {
            Self::Daemon => "with strata daemon".to_owned(),
            Self::Recording(frequency) => format!("with strata record --frequency {frequency}"),
        }
    }

    fn one_start(self) -> Result<f64> {
        match self {
            Self::Daemon => {
                let mut daemon = Daemon::prepared()?;
                daemon.configure("")?;
                daemon.start()?;
                let measured = one_start()?;
                daemon.end()?;
                Ok(measured)
            }
            Self::Recording(frequency) => {
                let mut recording = strata::record()?.frequency(frequency).start()?;
                let measured = one_start()?;
                recording.running().signal(Signal::INT)?;
                recording.finish()?;
                Ok(measured)
            }
        }
    }
}

/// Pairs of a window without and one with, each pair the other way round than the one before.
pub fn measure(count: usize) -> Result<Vec<Figure>> {
    let mut all = Vec::new();
    let mut figures = Vec::new();
    for beside in BESIDES {
        eprintln!("starts {} …", beside.name());
        let (mut without, mut with) = (Vec::new(), Vec::new());
        // The first round warms the caches.
        for round in 0..=count {
            let pair = if round % 2 == 0 {
                (one_start()?, beside.one_start()?)
            } else {
                let with = beside.one_start()?;
                (one_start()?, with)
            };
            if round > 0 {
                without.push(pair.0);
                with.push(pair.1);
            }
        }
        let difference = pairs::relative(&with, &without);
        figures.push(Figure::difference(PART, beside.name(), &difference).at_most(BOUND));
        all.append(&mut without);
    }
    let without = Figure::new(PART, "starting /bin/true without", median(&all), "µs")
        .note(format!("median; as many at a time as go, {SECONDS} s each"));
    figures.insert(0, without);
    Ok(figures)
}
