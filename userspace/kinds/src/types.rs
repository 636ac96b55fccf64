//! The columns of the table's rows.

use core::fmt;

use crate::Kind;

/// A counted thing: its name and unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantity {
    pub name: &'static str,
    pub unit: &'static str,
}

/// How the values of one column from several periods become one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregation {
    /// What happened in a period: periods add up.
    Delta,
    /// The state at the end of a period: the latest period counts, and two are never added.
    Snapshot,
}

/// Where the value of a column comes from when samples are aggregated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// How many events the samples stand for: the sum of their weights.
    Count,
    /// That number times the sampling period.
    Period,
    /// What the samples measured: the sum of their values.
    Value,
}

/// The form of a sample on a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// One period on a CPU.
    CpuSlice,
    /// The thread waited from the sample's time minus its value until the sample's time.
    Blocked,
    /// A garbage collection of that length.
    Collection,
    /// Something that happened, with a duration where its value is one.
    Event,
}

/// How often a clock samples a kind, in samples a second of what it watches (a CPU, a thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Its key in the configuration, below `sampling` and in rules.
    pub setting: &'static str,
    /// The daemon's default.
    pub daemon: u32,
    /// Of a recording.
    pub recording: u32,
}

/// Pyroscope's names for a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PyroscopeType {
    /// The label `__name__`.
    pub profile: &'static str,
    pub value: Quantity,
    pub period: Quantity,
}

/// The profile type id, as queries have it.
impl fmt::Display for PyroscopeType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { profile, value, period } = self;
        write!(formatter, "{profile}:{}:{}:{}:{}", value.name, value.unit, period.name, period.unit)
    }
}

/// What OTLP calls a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtlpType {
    pub value: Quantity,
    pub period: Quantity,
}

/// What the CLR bridge reports of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeEvents {
    /// For scripts: the cause of losses of its events.
    pub dropped: &'static str,
    /// The same for display.
    pub dropped_text: &'static str,
}

/// One value column of a kind. A backend whose name is missing does not take the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// As it is in strata's own profiles and store.
    pub own: Quantity,
    pub measure: Measure,
    pub aggregation: Aggregation,
    pub pyroscope: Option<PyroscopeType>,
    pub datadog: Option<Quantity>,
    pub otlp: Option<OtlpType>,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindInfo {
    pub kind: Kind,
    /// Its name in the configuration, commands and the store.
    pub name: &'static str,
    /// Further names that commands and the configuration accept.
    pub aliases: &'static [&'static str],
    /// One line for help texts.
    pub help: &'static str,
    /// For titles of pictures and tables.
    pub title: &'static str,
    pub columns: &'static [Column],
    /// The column that a viewer shows first, as a position in `columns`.
    pub default_column: usize,
    /// What the sampling period counts.
    pub period: Quantity,
    /// None for kinds that are sampled when something happens.
    pub rate: Option<Rate>,
    /// Whether every sample keeps its time unless a command decides otherwise.
    pub keeps_times: bool,
    /// Whether the daemon samples it by default.
    pub on_by_default: bool,
    pub shape: Shape,
    /// None for kinds that the kernel's programs sample.
    pub bridge: Option<BridgeEvents>,
    /// The label whose values tell most about its samples: a summary lists them.
    pub telling_label: Option<&'static str>,
    /// Variables of Pyroscope's in-process profiler that switch it; the first one set counts.
    pub pyroscope_switches: &'static [&'static str],
    /// The same of Datadog's.
    pub datadog_switches: &'static [&'static str],
}

impl KindInfo {
    /// The column that a viewer shows first.
    #[must_use]
    pub const fn shown_column(&self) -> &'static Column {
        &self.columns[self.default_column]
    }

    /// Whether its values are what was there at one time: a later snapshot replaces an earlier one.
    #[must_use]
    pub const fn is_snapshot(&self) -> bool {
        let mut at = 0;
        while at < self.columns.len() {
            if matches!(self.columns[at].aggregation, Aggregation::Snapshot) {
                return true;
            }
            at += 1;
        }
        false
    }

    /// The position of the column whose values say how long its samples lasted.
    #[must_use]
    pub fn duration_column(&self) -> Option<usize> {
        let lasts =
            |column: &Column| column.measure != Measure::Count && column.own.unit == "nanoseconds";
        self.columns.iter().position(lasts)
    }

    /// The values of samples that stand for `weight` events and measured `value`, one for each
    /// column. `period` is what an event of a sampled clock stands for.
    pub fn values(&self, weight: u64, value: u64, period: i64) -> impl Iterator<Item = i64> {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.columns.iter().map(move |column| match column.measure {
            Measure::Count => whole(weight),
            Measure::Period => whole(weight).saturating_mul(period),
            Measure::Value => whole(value),
        })
    }

    /// How many columns hold measured values.
    #[must_use]
    pub const fn measured_columns(&self) -> usize {
        let mut measured = 0;
        let mut at = 0;
        while at < self.columns.len() {
            if matches!(self.columns[at].measure, Measure::Value) {
                measured += 1;
            }
            at += 1;
        }
        measured
    }
}
