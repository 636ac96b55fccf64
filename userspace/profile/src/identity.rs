//! The process and thread of a sample, read from its labels.
//!
//! strata writes `pid`, `tid` (numbers), `comm`, `process` (only where it differs from `comm`) and
//! `container_id`; the names other profilers use for the same things are understood too.

use crate::builder::ProfileBuilder;
use crate::model::{LabelValue, LabelsId, Profile, StringId};

/// The process and thread of a sample, as far as its labels say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    /// The thread's name; empty if unknown.
    pub comm: StringId,
    /// The process's name, or the thread's if that is all there is.
    pub process: StringId,
    pub container: StringId,
}

impl Profile {
    #[must_use]
    pub fn identity(&self, labels: LabelsId) -> Identity {
        let mut found = Identity::default();
        for label in self.labels(labels) {
            match self.string(label.key) {
                "pid" | "process_id" | "process id" => found.pid = self.number(label.value),
                "tid" | "thread_id" | "thread id" => found.tid = self.number(label.value),
                "comm" | "thread_comm" | "thread_name" | "thread name" => {
                    found.comm = words(label.value);
                }
                "process" | "process_name" | "process name" => found.process = words(label.value),
                "container_id" | "container id" => found.container = words(label.value),
                _ => {}
            }
        }
        if found.process == StringId::default() {
            found.process = found.comm;
        }
        if found.comm == StringId::default() {
            found.comm = found.process;
        }
        found
    }

    fn number(&self, value: LabelValue) -> Option<u32> {
        match value {
            LabelValue::Number { value, .. } => u32::try_from(value).ok(),
            LabelValue::Text(text) => self.string(text).parse().ok(),
        }
    }
}

fn words(value: LabelValue) -> StringId {
    match value {
        LabelValue::Text(text) => text,
        LabelValue::Number { .. } => StringId::default(),
    }
}

/// The keys of the labels strata writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommonStrings {
    pub(crate) pid: StringId,
    pub(crate) tid: StringId,
    pub(crate) comm: StringId,
    pub(crate) process: StringId,
    pub(crate) container: StringId,
}

pub(crate) fn intern_common(builder: &mut ProfileBuilder) -> CommonStrings {
    CommonStrings {
        pid: builder.string("pid"),
        tid: builder.string("tid"),
        comm: builder.string("comm"),
        process: builder.string("process"),
        container: builder.string("container_id"),
    }
}
