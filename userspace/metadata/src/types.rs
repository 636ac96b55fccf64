//! Sample types, and the variables of in-process profilers that switch them for one process.
//!
//! A variable that is not set says nothing: those profilers are off until told otherwise, and a
//! profiler of the whole host would be left with nothing. When both families say something, the
//! narrower choice wins: off, then later (`auto`), then on.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::environment::Known;
use crate::facts::Choice;

/// What can be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SampleType {
    Cpu,
    Wall,
    Exceptions,
    Allocations,
    Locks,
    Heap,
    Gc,
}

impl SampleType {
    pub const ALL: [Self; 7] = [
        Self::Cpu,
        Self::Wall,
        Self::Exceptions,
        Self::Allocations,
        Self::Locks,
        Self::Heap,
        Self::Gc,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Wall => "wall",
            Self::Exceptions => "exceptions",
            Self::Allocations => "allocations",
            Self::Locks => "locks",
            Self::Heap => "heap",
            Self::Gc => "gc",
        }
    }

    /// Whether strata has a sampler for it so far. The others may be chosen, and give nothing.
    pub fn is_sampled(self) -> bool {
        self == Self::Cpu
    }
}

impl fmt::Display for SampleType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A name that is no sample type's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownType;

impl FromStr for SampleType {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<Self, UnknownType> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or(UnknownType)
    }
}

/// A set of sample types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Types(u8);

impl Types {
    pub const NONE: Self = Self(0);

    pub fn contains(self, kind: SampleType) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    pub fn with(self, kind: SampleType, on: bool) -> Self {
        let bit = 1 << kind as u8;
        Self(if on { self.0 | bit } else { self.0 & !bit })
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = SampleType> {
        SampleType::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<SampleType> for Types {
    fn from_iter<I: IntoIterator<Item = SampleType>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::NONE, |types, kind| types.with(kind, true))
    }
}

/// The variables of one type. Of several names in one family the first that is set counts.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    pub kind: SampleType,
    pub pyroscope: &'static [&'static str],
    pub datadog: &'static [&'static str],
}

pub const PYROSCOPE_PROFILING_ENABLED: &str = "PYROSCOPE_PROFILING_ENABLED";
pub const DD_PROFILING_ENABLED: &str = "DD_PROFILING_ENABLED";

/// With `auto`, a process is sampled from this age on: short jobs are left out. (The in-process
/// profilers wait for a span as well; spans are nothing that every process makes.)
pub const AUTO_AGE: Duration = Duration::from_secs(30);

/// Every variable that switches a type. The documentation's table is made of it.
pub const SWITCHES: [Switch; 7] = [
    Switch {
        kind: SampleType::Cpu,
        pyroscope: &["PYROSCOPE_PROFILING_CPU_ENABLED"],
        datadog: &["DD_PROFILING_CPU_ENABLED"],
    },
    Switch {
        kind: SampleType::Wall,
        pyroscope: &["PYROSCOPE_PROFILING_WALLTIME_ENABLED"],
        datadog: &["DD_PROFILING_WALLTIME_ENABLED"],
    },
    Switch {
        kind: SampleType::Exceptions,
        pyroscope: &["PYROSCOPE_PROFILING_EXCEPTION_ENABLED"],
        datadog: &["DD_PROFILING_EXCEPTION_ENABLED"],
    },
    Switch {
        kind: SampleType::Allocations,
        pyroscope: &["PYROSCOPE_PROFILING_ALLOCATION_ENABLED"],
        datadog: &["DD_PROFILING_ALLOCATION_ENABLED"],
    },
    Switch {
        kind: SampleType::Locks,
        pyroscope: &["PYROSCOPE_PROFILING_LOCK_ENABLED", "PYROSCOPE_PROFILING_CONTENTION_ENABLED"],
        datadog: &["DD_PROFILING_LOCK_ENABLED", "DD_PROFILING_CONTENTION_ENABLED"],
    },
    Switch {
        kind: SampleType::Heap,
        pyroscope: &["PYROSCOPE_PROFILING_HEAP_ENABLED"],
        datadog: &["DD_PROFILING_HEAP_ENABLED"],
    },
    Switch {
        kind: SampleType::Gc,
        pyroscope: &["PYROSCOPE_PROFILING_GC_ENABLED"],
        datadog: &["DD_PROFILING_GC_ENABLED"],
    },
];

/// Names of all variables that switch something.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let of_types = SWITCHES.iter().flat_map(|row| row.pyroscope.iter().chain(row.datadog).copied());
    [PYROSCOPE_PROFILING_ENABLED, DD_PROFILING_ENABLED].into_iter().chain(of_types)
}

/// Why a type is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    Default,
    Rule,
    Variable(&'static str),
}

/// What is sampled of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    pub on: Types,
    /// Not before the process is this old.
    pub from_age: Duration,
    /// Where the age comes from.
    pub age_because: Because,
    because: [Because; 7],
}

impl Switched {
    pub fn because(&self, kind: SampleType) -> Because {
        self.because.get(kind as usize).copied().unwrap_or(Because::Default)
    }
}

/// In order of narrowness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Off,
    Auto,
    On,
}

fn said(known: &Known<'_>, name: &'static str) -> Option<(Said, &'static str)> {
    let text = known.text(name)?;
    let is = |words: &[&str]| words.iter().any(|word| text.trim().eq_ignore_ascii_case(word));
    let said = if is(&["false", "0", "no", "n", "f", "off"]) {
        Said::Off
    } else if is(&["true", "1", "yes", "y", "t", "on"]) {
        Said::On
    } else if is(&["auto"]) {
        Said::Auto
    } else {
        return None;
    };
    Some((said, name))
}

/// What a family says of one type. Its master switch goes first where it is off; where it is on
/// it does not choose types.
fn family(
    known: &Known<'_>,
    master: Option<&'static str>,
    names: &[&'static str],
) -> Option<(Said, &'static str)> {
    if let Some((Said::Off, name)) = master.and_then(|master| said(known, master)) {
        return Some((Said::Off, name));
    }
    // `auto` chooses a time, and only the master has one.
    names.iter().find_map(|name| said(known, name)).filter(|(said, _)| *said != Said::Auto)
}

/// What is sampled: the rule's choice, else the environment's, else strata's own.
pub(crate) fn switch(known: &Known<'_>, choice: &Choice, defaults: Types) -> Switched {
    let mut switched = Switched {
        on: defaults,
        from_age: Duration::ZERO,
        age_because: Because::Default,
        because: [Because::Default; 7],
    };
    if choice.enabled == Some(false) || choice.types.is_some() {
        let on = choice.types.filter(|_| choice.enabled != Some(false)).unwrap_or_default();
        return Switched {
            on,
            age_because: Because::Rule,
            because: [Because::Rule; 7],
            ..switched
        };
    }
    // A rule that wants the process sampled is not overruled by its master switches.
    let master = |name| (choice.enabled != Some(true)).then_some(name);
    for (row, because) in SWITCHES.iter().zip(&mut switched.because) {
        let pyroscope = family(known, master(PYROSCOPE_PROFILING_ENABLED), row.pyroscope);
        let datadog = family(known, master(DD_PROFILING_ENABLED), row.datadog);
        // The first of two equal ones: Pyroscope's.
        let narrower = pyroscope.into_iter().chain(datadog).min_by_key(|(said, _)| *said);
        if let Some((said, name)) = narrower {
            switched.on = switched.on.with(row.kind, said == Said::On);
            *because = Because::Variable(name);
        }
    }
    let masters = [PYROSCOPE_PROFILING_ENABLED, DD_PROFILING_ENABLED];
    let mut spoken = masters.into_iter().filter_map(master).filter_map(|name| said(known, name));
    if let Some((_, name)) = spoken.find(|(said, _)| *said == Said::Auto) {
        switched.from_age = AUTO_AGE;
        switched.age_because = Because::Variable(name);
    }
    switched
}
