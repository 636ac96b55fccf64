//! The labels of samples that strata itself sets, and how many values they may have.
//!
//! Labels of few values (a thread's name, an exception's type) belong to what a sample is; those
//! of many (a message, a trace id) and every label that the table does not name (user labels) are
//! *separable*: a store that merges periods may drop them so that equal stacks become one.

/// How many values a label has over a day of one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cardinality {
    /// Few: samples that differ in it stay apart in every roll-up.
    Bounded,
    /// As many as there are events: roll-ups drop it.
    Unbounded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLabel {
    pub name: &'static str,
    pub cardinality: Cardinality,
}

const fn bounded(name: &'static str) -> SampleLabel {
    SampleLabel { name, cardinality: Cardinality::Bounded }
}

const fn unbounded(name: &'static str) -> SampleLabel {
    SampleLabel { name, cardinality: Cardinality::Unbounded }
}

/// When a sample was taken or ended, in nanoseconds since 1970.
pub const END_TIMESTAMP: &str = "end_timestamp_ns";

/// The table.
pub static SAMPLE_LABELS: [SampleLabel; 32] = [
    bounded("pid"),
    bounded("tid"),
    bounded("comm"),
    bounded("process"),
    bounded("container_id"),
    unbounded("span_id"),
    unbounded("trace_id"),
    unbounded("local root span id"),
    unbounded("span id"),
    unbounded(END_TIMESTAMP),
    bounded("appdomain name"),
    bounded("appdomain process id"),
    bounded("exception type"),
    unbounded("exception message"),
    bounded("allocation class"),
    bounded("object age"),
    bounded("collections survived"),
    bounded("Duration bucket"),
    unbounded("lock address"),
    unbounded("blocking thread id"),
    bounded("blocking thread name"),
    bounded("gc generation"),
    unbounded("gc number"),
    bounded("gc reason"),
    bounded("gc type"),
    bounded("event"),
    bounded("state"),
    bounded("syscall"),
    bounded("idle"),
    bounded("rethrown"),
    bounded("wait source"),
    bounded("frames"),
];

/// Whether roll-ups drop a label.
#[must_use]
pub fn is_separable(name: &str) -> bool {
    let known = SAMPLE_LABELS.iter().find(|label| label.name == name);
    known.is_none_or(|label| label.cardinality == Cardinality::Unbounded)
}
