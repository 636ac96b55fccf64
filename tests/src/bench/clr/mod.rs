//! What strata costs .NET programs: `bench clr`.
//!
//! | module | measures |
//! |---|---|
//! | [`startup`] | a program that compiles very many methods, with and without the bridge; one JIT event |
//! | [`steady`] | the speed of a busy program, with and without strata, free and under a quota |
//! | [`method_map`] | the memory of many methods, in the program and in strata |
//! | [`session`] | attaching, asking for an address, detaching |
//! | [`stacks`] | BPF time for managed stacks beside native ones of the same depth |
//! | [`kinds`] | a server's throughput beside recordings of each kind of event; totals of floods of events |
//! | [`server`] | a server's throughput and latencies beside a daemon, and the pause of an attach |
//!
//! and, to do so: [`quota`] (half a core).
//!
//! Invariant: compared figures are measured alternately in one run, so that other load makes them
//! less certain, not wrong.

pub mod kinds;
pub mod method_map;
pub mod quota;
pub mod server;
pub mod session;
pub mod stacks;
pub mod startup;
pub mod steady;

use anyhow::{Context, Result};

use super::figure::Figure;

/// A part of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Startup,
    Steady,
    Quota,
    MethodMap,
    Session,
    Stacks,
    Kinds,
    Ladder,
    Server,
}

impl Part {
    pub const ALL: [Self; 9] = [
        Self::Startup,
        Self::Steady,
        Self::Quota,
        Self::MethodMap,
        Self::Session,
        Self::Stacks,
        Self::Kinds,
        Self::Ladder,
        Self::Server,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Steady => "steady",
            Self::Quota => "quota",
            Self::MethodMap => "method-map",
            Self::Session => "session",
            Self::Stacks => "stacks",
            Self::Kinds => "kinds",
            Self::Ladder => "ladder",
            Self::Server => "server",
        }
    }

    pub fn by_name(name: &str) -> Result<Self> {
        let names = || Self::ALL.map(Self::name).join(" ");
        let found = Self::ALL.into_iter().find(|part| part.name() == name);
        found.with_context(|| format!("no part {name}; there are: {}", names()))
    }
}

/// How long it may take.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Pairs of a run with and a run without.
    pub pairs: usize,
    /// Of a window in which a program's speed is measured.
    pub seconds: f64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { pairs: 20, seconds: 4.0 }
    }
}

/// Measures the parts, one after the other; one that fails leaves the others.
pub fn measure(parts: &[Part], effort: Effort) -> (Vec<Figure>, Vec<(String, String)>) {
    let (mut figures, mut failed) = (Vec::new(), Vec::new());
    for part in parts {
        eprintln!("clr {} …", part.name());
        let measured = match part {
            Part::Startup => startup::measure(effort),
            Part::Steady => steady::measure(effort, None),
            Part::Quota => steady::measure(effort, Some(quota::HALF_A_CORE)),
            Part::MethodMap => method_map::measure(),
            Part::Session => session::measure(effort),
            Part::Stacks => stacks::measure(effort),
            Part::Kinds => kinds::measure(effort),
            Part::Ladder => kinds::ladder(effort),
            Part::Server => server::measure(effort),
        };
        match measured {
            Ok(measured) => figures.extend(measured),
            Err(error) => failed.push((format!("clr {}", part.name()), format!("{error:#}"))),
        }
    }
    (figures, failed)
}
