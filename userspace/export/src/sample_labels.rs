//! What each backend calls the labels of samples, and which it is sent. What it calls the types is
//! in the table of kinds (`strata-kinds`).

/// What a label of a sample must look like for a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    AsItIs,
    /// A text that is not a number is dropped: a thread's id as text would make a series of each
    /// thread.
    Number,
    /// A label of a Pyroscope series, named as the program that set it did, made valid.
    Series,
}

/// One allowed label of samples: labels without a rule are dropped, and counted.
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
static SAMPLE_LABELS: [(&str, Form, &str, &str, &str); 28] = [
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
    ("object age", Form::AsItIs, "", "object age", "object.age"),
    ("collections survived", Form::AsItIs, "", "collections survived", "gc.collections_survived"),
    ("Duration bucket", Form::AsItIs, "", "Duration bucket", ""),
    ("blocking thread id", Form::Number, "blocking_thread_id", "blocking thread id", ""),
    ("blocking thread name", Form::AsItIs, "", "blocking thread name", ""),
    ("gc generation", Form::AsItIs, "gc_generation", "gc generation", "gc.generation"),
    ("gc number", Form::Number, "", "gc number", ""),
    ("gc reason", Form::AsItIs, "gc_reason", "gc reason", "gc.reason"),
    ("gc type", Form::AsItIs, "gc_type", "gc type", "gc.type"),
    ("event", Form::AsItIs, "", "event", ""),
    ("state", Form::AsItIs, "state", "state", "thread.state"),
    ("syscall", Form::AsItIs, "syscall", "syscall", "syscall"),
    ("idle", Form::AsItIs, "idle", "idle", "thread.idle"),
    ("rethrown", Form::AsItIs, "rethrown", "rethrown", "exception.rethrown"),
    ("wait source", Form::AsItIs, "wait_source", "wait source", "wait.source"),
    ("frames", Form::AsItIs, "frames", "frames", "stack.frames"),
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
    use strata_kinds::labels::{Cardinality, SAMPLE_LABELS as OWN};

    use super::*;

    /// What a profile as a whole has: its process's number, name and container.
    const OF_THE_PROFILE: [&str; 3] = ["pid", "process", "container_id"];

    #[test]
    fn every_label_of_few_values_has_a_name_at_each_backend_that_shows_labels() {
        for label in OWN.iter().filter(|label| label.cardinality == Cardinality::Bounded) {
            let row = SAMPLE_LABELS.iter().find(|row| row.0 == label.name);
            let is_left_out = OF_THE_PROFILE.contains(&label.name);
            assert_eq!(row.is_none(), is_left_out, "{}", label.name);
            assert!(row.is_none_or(|row| !row.3.is_empty()), "{}", label.name);
        }
        for row in &SAMPLE_LABELS {
            assert!(OWN.iter().any(|label| label.name == row.0), "{} is set by no kind", row.0);
        }
    }
}
