//! What strata counts, and what each backend calls it. One row a type: a new type is a row.
//!
//! The names of a Pyroscope row are those that dashboards for .NET already query; its profile
//! type id is `profile:name:unit:period_name:period_unit`. A backend whose cell is empty does not
//! take the type.

/// A counted thing: its name and unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantity {
    pub name: &'static str,
    pub unit: &'static str,
}

/// What Pyroscope calls a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PyroscopeType {
    /// The label `__name__`.
    pub profile: &'static str,
    pub value: Quantity,
    pub period: Quantity,
}

impl PyroscopeType {
    /// The profile type id, as queries have it.
    #[must_use]
    pub fn id(&self) -> String {
        let Self { profile, value, period } = self;
        format!("{profile}:{}:{}:{}:{}", value.name, value.unit, period.name, period.unit)
    }
}

/// What OTLP calls a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtlpType {
    pub value: Quantity,
    pub period: Quantity,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleType {
    /// As it is in a profile of strata.
    pub own: Quantity,
    pub pyroscope: Option<PyroscopeType>,
    pub datadog: Option<Quantity>,
    pub otlp: Option<OtlpType>,
}

const NANOSECONDS: &str = "nanoseconds";
const COUNT: &str = "count";
const BYTES: &str = "bytes";

const fn quantity(name: &'static str, unit: &'static str) -> Quantity {
    Quantity { name, unit }
}

const fn pyroscope(
    profile: &'static str,
    value: Quantity,
    period: Quantity,
) -> Option<PyroscopeType> {
    Some(PyroscopeType { profile, value, period })
}

const fn otlp(value: Quantity, period: Quantity) -> Option<OtlpType> {
    Some(OtlpType { value, period })
}

const CPU: Quantity = quantity("cpu", NANOSECONDS);
const WALL: Quantity = quantity("wall", NANOSECONDS);
const SPACE: Quantity = quantity("space", BYTES);

/// The table.
pub static SAMPLE_TYPES: [SampleType; 13] = [
    SampleType {
        own: quantity("samples", COUNT),
        pyroscope: pyroscope("process_cpu", quantity("cpu_samples", COUNT), CPU),
        datadog: Some(quantity("cpu-samples", COUNT)),
        otlp: otlp(quantity("samples", COUNT), CPU),
    },
    SampleType {
        own: CPU,
        pyroscope: pyroscope("process_cpu", CPU, CPU),
        datadog: Some(CPU),
        otlp: otlp(CPU, CPU),
    },
    SampleType {
        own: WALL,
        pyroscope: pyroscope("wall", WALL, CPU),
        datadog: Some(WALL),
        otlp: otlp(WALL, WALL),
    },
    SampleType {
        own: quantity("off_cpu", NANOSECONDS),
        pyroscope: pyroscope("offcpu", quantity("offcpu", NANOSECONDS), CPU),
        datadog: None,
        otlp: otlp(quantity("off_cpu", NANOSECONDS), quantity("off_cpu", NANOSECONDS)),
    },
    SampleType {
        own: quantity("exceptions", COUNT),
        pyroscope: pyroscope("exception", quantity("exception", COUNT), CPU),
        datadog: Some(quantity("exception", COUNT)),
        otlp: otlp(quantity("exceptions", COUNT), quantity("exceptions", COUNT)),
    },
    SampleType {
        own: quantity("lock_count", COUNT),
        pyroscope: pyroscope("lock", quantity("lock_count", COUNT), CPU),
        datadog: Some(quantity("lock-count", COUNT)),
        otlp: otlp(quantity("lock_count", COUNT), quantity("lock_time", NANOSECONDS)),
    },
    SampleType {
        own: quantity("lock_time", NANOSECONDS),
        pyroscope: pyroscope("lock", quantity("lock_time", NANOSECONDS), CPU),
        datadog: Some(quantity("lock-time", NANOSECONDS)),
        otlp: otlp(quantity("lock_time", NANOSECONDS), quantity("lock_time", NANOSECONDS)),
    },
    SampleType {
        own: quantity("alloc_samples", COUNT),
        pyroscope: pyroscope("memory", quantity("alloc_samples", COUNT), SPACE),
        datadog: Some(quantity("alloc-samples", COUNT)),
        otlp: otlp(quantity("alloc_samples", COUNT), SPACE),
    },
    SampleType {
        own: quantity("alloc_size", BYTES),
        pyroscope: pyroscope("memory", quantity("alloc_size", BYTES), SPACE),
        datadog: Some(quantity("alloc-size", BYTES)),
        otlp: otlp(quantity("alloc_size", BYTES), SPACE),
    },
    SampleType {
        own: quantity("inuse_objects", COUNT),
        pyroscope: pyroscope("memory", quantity("inuse_objects", COUNT), SPACE),
        datadog: Some(quantity("inuse-objects", COUNT)),
        otlp: otlp(quantity("inuse_objects", COUNT), SPACE),
    },
    SampleType {
        own: quantity("inuse_space", BYTES),
        pyroscope: pyroscope("memory", quantity("inuse_space", BYTES), SPACE),
        datadog: Some(quantity("inuse-space", BYTES)),
        otlp: otlp(quantity("inuse_space", BYTES), SPACE),
    },
    // Datadog shows collections, thread starts and stops on a line of time.
    SampleType {
        own: quantity("timeline", NANOSECONDS),
        pyroscope: None,
        datadog: Some(quantity("timeline", NANOSECONDS)),
        otlp: None,
    },
    SampleType {
        own: quantity("gc_pause", NANOSECONDS),
        pyroscope: pyroscope("gc", quantity("gc_pause", NANOSECONDS), CPU),
        datadog: None,
        otlp: otlp(quantity("gc_pause", NANOSECONDS), quantity("gc_pause", NANOSECONDS)),
    },
];

/// The row of a type by strata's own name and unit.
#[must_use]
pub fn find(name: &str, unit: &str) -> Option<&'static SampleType> {
    SAMPLE_TYPES.iter().find(|row| row.own.name == name && row.own.unit == unit)
}

/// What a label of a sample must look like for a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    AsItIs,
    /// A text that is no number is dropped: a thread's id as text would make a series of each
    /// thread.
    Number,
}

/// One allowed label of samples: everything that no rule names is dropped, and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRule {
    /// strata's name of it.
    pub own: String,
    /// The backend's.
    pub named: String,
    pub form: Form,
}

impl LabelRule {
    #[must_use]
    pub fn new(own: &str, named: &str, form: Form) -> Self {
        Self { own: own.to_owned(), named: named.to_owned(), form }
    }
}

/// Labels of samples: strata's name and those of Pyroscope, Datadog and OTLP; empty where it is
/// not sent unless a rule is added. In Pyroscope each text makes a series of its own, so what has
/// many values is not sent there.
static SAMPLE_LABELS: [(&str, Form, &str, &str, &str); 20] = [
    ("tid", Form::Number, "tid", "thread id", "thread.id"),
    ("comm", Form::AsItIs, "", "thread name", "thread.name"),
    ("span_id", Form::AsItIs, "span_id", "", ""),
    ("trace_id", Form::AsItIs, "trace_id", "", ""),
    ("local root span id", Form::Number, "", "local root span id", ""),
    ("span id", Form::Number, "", "span id", ""),
    ("end_timestamp_ns", Form::Number, "", "end_timestamp_ns", ""),
    ("appdomain name", Form::AsItIs, "", "appdomain name", ""),
    ("appdomain process id", Form::Number, "", "appdomain process id", ""),
    ("exception type", Form::AsItIs, "exception_type", "exception type", "exception.type"),
    ("exception message", Form::AsItIs, "", "exception message", "exception.message"),
    ("allocation class", Form::AsItIs, "", "allocation class", "allocation.class"),
    ("Duration bucket", Form::AsItIs, "", "Duration bucket", ""),
    ("blocking thread id", Form::Number, "blocking_thread_id", "blocking thread id", ""),
    ("blocking thread name", Form::AsItIs, "", "blocking thread name", ""),
    ("gc generation", Form::AsItIs, "gc_generation", "gc generation", "gc.generation"),
    ("gc number", Form::Number, "", "gc number", ""),
    ("gc reason", Form::AsItIs, "gc_reason", "gc reason", "gc.reason"),
    ("gc type", Form::AsItIs, "gc_type", "gc type", "gc.type"),
    ("event", Form::AsItIs, "", "event", ""),
];

#[must_use]
pub fn pyroscope_labels() -> Vec<LabelRule> {
    SAMPLE_LABELS.iter().filter_map(|row| rule(row.0, row.2, row.1)).collect()
}

#[must_use]
pub fn datadog_labels() -> Vec<LabelRule> {
    SAMPLE_LABELS.iter().filter_map(|row| rule(row.0, row.3, row.1)).collect()
}

#[must_use]
pub fn otlp_labels() -> Vec<LabelRule> {
    SAMPLE_LABELS.iter().filter_map(|row| rule(row.0, row.4, row.1)).collect()
}

fn rule(own: &str, named: &str, form: Form) -> Option<LabelRule> {
    (!named.is_empty()).then(|| LabelRule::new(own, named, form))
}

#[cfg(test)]
mod tests {
    use super::{SAMPLE_TYPES, find};

    #[test]
    fn the_ids_are_those_that_dashboards_know() {
        for (name, unit, id) in [
            ("cpu", "nanoseconds", "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
            ("samples", "count", "process_cpu:cpu_samples:count:cpu:nanoseconds"),
            ("wall", "nanoseconds", "wall:wall:nanoseconds:cpu:nanoseconds"),
            ("alloc_samples", "count", "memory:alloc_samples:count:space:bytes"),
            ("alloc_size", "bytes", "memory:alloc_size:bytes:space:bytes"),
            ("inuse_objects", "count", "memory:inuse_objects:count:space:bytes"),
            ("inuse_space", "bytes", "memory:inuse_space:bytes:space:bytes"),
            ("lock_count", "count", "lock:lock_count:count:cpu:nanoseconds"),
            ("lock_time", "nanoseconds", "lock:lock_time:nanoseconds:cpu:nanoseconds"),
            ("exceptions", "count", "exception:exception:count:cpu:nanoseconds"),
        ] {
            let row = find(name, unit).and_then(|row| row.pyroscope);
            assert_eq!(row.map(|row| row.id()).as_deref(), Some(id));
        }
    }

    #[test]
    fn no_type_has_two_rows() {
        for (position, row) in SAMPLE_TYPES.iter().enumerate() {
            let first = SAMPLE_TYPES.iter().position(|other| other.own == row.own);
            assert_eq!(first, Some(position), "{row:?}");
        }
    }
}
