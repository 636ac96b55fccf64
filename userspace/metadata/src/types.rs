//! The variables of in-process profilers that switch kinds of samples for one process. Which
//! variable switches which kind is in the table of kinds.
//!
//! A variable that is not set has no effect: those profilers are off by default, and a host-wide
//! profiler that followed that would sample nothing. When both families are set, the narrower
//! choice wins: off, then later (`auto`), then on.

use std::time::Duration;

use strata_kinds::{KIND_COUNT, Kind, Kinds};

use crate::facts::Choice;
use crate::known_variables::Known;

pub const PYROSCOPE_PROFILING_ENABLED: &str = "PYROSCOPE_PROFILING_ENABLED";
pub const DD_PROFILING_ENABLED: &str = "DD_PROFILING_ENABLED";

/// With `auto`, a process is sampled from this age on: short jobs are left out. (The in-process
/// profilers wait for a span as well; spans are nothing that every process makes.)
pub const AUTO_AGE: Duration = Duration::from_secs(30);

/// Names of all variables that switch kinds.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let of_kinds = Kind::ALL.into_iter().flat_map(|kind| {
        let info = kind.info();
        info.pyroscope_switches.iter().chain(info.datadog_switches).copied()
    });
    [PYROSCOPE_PROFILING_ENABLED, DD_PROFILING_ENABLED].into_iter().chain(of_kinds)
}

/// Why a kind is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    Default,
    Rule,
    Variable(&'static str),
}

/// The kinds sampled of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    pub on: Kinds,
    /// Not before the process is this old.
    pub from_age: Duration,
    /// The source of the age.
    pub age_because: Because,
    because: [Because; KIND_COUNT],
}

impl Switched {
    pub fn because(&self, kind: Kind) -> Because {
        self.because.get(kind as usize).copied().unwrap_or(Because::Default)
    }
}

/// In order of narrowness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Switch {
    Off,
    Auto,
    On,
}

fn setting(known: &Known<'_>, name: &'static str) -> Option<(Switch, &'static str)> {
    let text = known.text(name)?;
    let is = |words: &[&str]| words.iter().any(|word| text.trim().eq_ignore_ascii_case(word));
    let switch = if is(&["false", "0", "no", "n", "f", "off"]) {
        Switch::Off
    } else if is(&["true", "1", "yes", "y", "t", "on"]) {
        Switch::On
    } else if is(&["auto"]) {
        Switch::Auto
    } else {
        return None;
    };
    Some((switch, name))
}

/// A family's setting for one type. Its master switch goes first where it is off; where it is on it
/// does not choose types.
fn family(
    known: &Known<'_>,
    master: Option<&'static str>,
    names: &[&'static str],
) -> Option<(Switch, &'static str)> {
    if let Some((Switch::Off, name)) = master.and_then(|master| setting(known, master)) {
        return Some((Switch::Off, name));
    }
    // `auto` chooses a time, and only the master has one.
    names.iter().find_map(|name| setting(known, name)).filter(|(switch, _)| *switch != Switch::Auto)
}

/// The kinds to sample: the rule's choice, else the environment's, else the default.
pub(crate) fn switch(known: &Known<'_>, choice: &Choice, defaults: Kinds) -> Switched {
    let mut switched = Switched {
        on: defaults,
        from_age: Duration::ZERO,
        age_because: Because::Default,
        because: [Because::Default; KIND_COUNT],
    };
    if choice.enabled == Some(false) || choice.types.is_some() {
        let on = choice.types.filter(|_| choice.enabled != Some(false)).unwrap_or_default();
        return Switched {
            on,
            age_because: Because::Rule,
            because: [Because::Rule; KIND_COUNT],
            ..switched
        };
    }
    // A rule that wants the process sampled is not overruled by its master switches.
    let master = |name| (choice.enabled != Some(true)).then_some(name);
    for (kind, because) in Kind::ALL.into_iter().zip(&mut switched.because) {
        let info = kind.info();
        let pyroscope = family(known, master(PYROSCOPE_PROFILING_ENABLED), info.pyroscope_switches);
        let datadog = family(known, master(DD_PROFILING_ENABLED), info.datadog_switches);
        // The first of two equal ones: Pyroscope's.
        let narrower = pyroscope.into_iter().chain(datadog).min_by_key(|(switch, _)| *switch);
        if let Some((switch, name)) = narrower {
            switched.on = switched.on.with(kind, switch == Switch::On);
            *because = Because::Variable(name);
        }
    }
    let masters = [PYROSCOPE_PROFILING_ENABLED, DD_PROFILING_ENABLED];
    let mut spoken = masters.into_iter().filter_map(master).filter_map(|name| setting(known, name));
    if let Some((_, name)) = spoken.find(|(switch, _)| *switch == Switch::Auto) {
        switched.from_age = AUTO_AGE;
        switched.age_because = Because::Variable(name);
    }
    switched
}
