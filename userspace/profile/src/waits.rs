//! The summary of a profile of waits: where, in which system call, in which process and state.
//!
//! Every stack of a wait ends in the scheduler, so the functions with the largest self time say
//! nothing. What is summed is the innermost function that is not of the kernel, of the C library or
//! of a language's runtime: the program's own, which waits.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use crate::idle;
use crate::kind::{FrameKind, base_name};
use crate::model::{LabelValue, Profile, Sample, StringId};
use crate::processes::{MoreProcesses, ProcessShare, ProcessSums};

/// Sums by what waits, each with the largest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waits {
    pub functions: Vec<WaitShare>,
    /// Of threads that did not run. Without a name: a page fault, or a thread that was
    /// preempted or stopped.
    pub system_calls: Vec<WaitShare>,
    /// The same by process, where a profile has processes.
    pub processes: Vec<ProcessShare>,
    pub more_processes: MoreProcesses,
    pub states: Vec<WaitShare>,
    /// Kinds of threads that waited for work; their waits are in none of the other lists but
    /// `states`.
    pub idle: Vec<WaitShare>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitShare {
    pub name: String,
    /// The file of a function's code, without folders; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub module: String,
    pub value: i64,
    pub percent: f64,
}

/// The state of a thread that waits for nothing.
const RUNNING: &str = "running";

/// Files of code that waits for others: how their names begin.
const LIBRARIES: [&str; 24] = [
    "[vdso]",
    "ld-linux",
    "ld-musl",
    "libSystem.",
    "libboost_",
    "libc++",
    "libc-2",
    "libc.",
    "libclrjit",
    "libcoreclr",
    "libev.",
    "libevent",
    "libgcc_s",
    "libhostfxr",
    "libhostpolicy",
    "libjvm",
    "libmono",
    "libpthread",
    "libpython",
    "libstdc++",
    "libuv",
    "libzmq",
    "Microsoft.",
    "System.",
];

/// The same of functions, where a language's library is in the program's own file.
const LIBRARY_FUNCTIONS: [&str; 27] = [
    "Interop.",
    "Microsoft.",
    "System.",
    "alloc::",
    "bufio.",
    "context.",
    "core::",
    "crossbeam",
    "database/sql.",
    "futures_",
    "internal/",
    "io.Copy",
    "io.Read",
    "java.",
    "jdk.",
    "mio::",
    "net.(*",
    "net/http.",
    "os.(*",
    "parking_lot",
    "runtime.",
    "std::",
    "sun.",
    "sync.",
    "syscall.",
    "time.",
    "tokio::",
];

/// Parts of the names of functions of Python's own library, which have their file.
const PYTHON_LIBRARY: [&str; 2] = ["/lib/python", ":<frozen "];

/// The `most` largest of each, by one sample type.
#[must_use]
pub fn summarize(profile: &Profile, sample_type: usize, most: usize) -> Waits {
    let mut functions: HashMap<(StringId, StringId), i64> = HashMap::new();
    let mut processes = ProcessSums::default();
    let [mut calls, mut states, mut idle]: [HashMap<StringId, i64>; 3] = Default::default();
    let mut total = 0_i64;
    let is_of_bridge =
        profile.kind_of(sample_type).is_some_and(|kind| kind.info().bridge.is_some());
    let add = |sum: &mut i64, value: i64| *sum = sum.saturating_add(value);
    for sample in profile.samples() {
        let value = sample.values.get(sample_type).copied().unwrap_or(0);
        if value <= 0 {
            continue;
        }
        add(&mut total, value);
        let (mut call, mut state) = (StringId::default(), StringId::default());
        for label in profile.labels(sample.labels) {
            match (profile.string(label.key), label.value) {
                ("syscall", LabelValue::Text(text)) => call = text,
                ("state", LabelValue::Text(text)) => state = text,
                _ => {}
            }
        }
        add(states.entry(state).or_default(), value);
        if let Some((_, kind)) = idle::of_labels(profile, sample.labels) {
            add(idle.entry(kind).or_default(), value);
            continue;
        }
        if profile.string(state) != RUNNING {
            add(calls.entry(call).or_default(), value);
            processes.add(&profile.identity(sample.labels), value);
        }
        let managed = if is_of_bridge { managed_function(profile, &sample) } else { None };
        let function = managed.unwrap_or_else(|| waiting_function(profile, &sample));
        add(functions.entry(function).or_default(), value);
    }
    let percent = |value: i64| 100.0 * value as f64 / total.max(1) as f64;
    let ranked = |sums: Vec<((StringId, StringId), i64)>| {
        let mut shares: Vec<_> = sums
            .into_iter()
            .map(|((name, module), value)| WaitShare {
                name: profile.string(name).to_owned(),
                module: base_name(profile.string(module)).to_owned(),
                value,
                percent: percent(value),
            })
            .collect();
        shares.sort_by(|a, b| Reverse(a.value).cmp(&Reverse(b.value)).then(a.name.cmp(&b.name)));
        shares.truncate(most);
        shares
    };
    let named = |sums: HashMap<StringId, i64>| {
        sums.into_iter().map(|(name, value)| ((name, StringId::default()), value)).collect()
    };
    processes.retain_known();
    let (processes, more_processes) = processes.top(profile, total, most);
    Waits {
        functions: ranked(functions.into_iter().collect()),
        system_calls: ranked(named(calls)),
        processes,
        more_processes,
        states: ranked(named(states)),
        idle: ranked(named(idle)),
    }
}

/// The innermost managed function of the program itself with its file. Where the runtime reports a wait,
/// the innermost frames are its own: native, and in a program of one file of the program's own file.
fn managed_function(profile: &Profile, sample: &Sample<'_>) -> Option<(StringId, StringId)> {
    profile.stack(sample.stack).find_map(|location| {
        let location = profile.location(location);
        let module = location.mapping.map(|id| profile.mapping(id).path).unwrap_or_default();
        let file = base_name(profile.string(module));
        let is_own = |name| !is_library(file, profile.string(name));
        let frames = profile.frames(location).iter();
        let mut managed = frames.filter(|frame| frame.kind == FrameKind::Managed);
        managed.find(|frame| is_own(frame.name)).map(|frame| (frame.name, module))
    })
}

/// The innermost function of the program itself with its file; of a stack that has none the
/// innermost outside of the kernel, or the outermost of the kernel.
pub(crate) fn waiting_function(profile: &Profile, sample: &Sample<'_>) -> (StringId, StringId) {
    let mut innermost = None;
    let mut outermost_of_kernel = (StringId::default(), StringId::default());
    for location in profile.stack(sample.stack) {
        let location = profile.location(location);
        let module = location.mapping.map(|id| profile.mapping(id).path).unwrap_or_default();
        for frame in profile.frames(location) {
            match frame.kind {
                FrameKind::Marker => {}
                FrameKind::Kernel => outermost_of_kernel = (frame.name, StringId::default()),
                FrameKind::Native | FrameKind::Jit | FrameKind::Managed => {
                    let file = base_name(profile.string(module));
                    if !is_library(file, profile.string(frame.name)) {
                        return (frame.name, module);
                    }
                    innermost.get_or_insert((frame.name, module));
                }
            }
        }
    }
    innermost.unwrap_or(outermost_of_kernel)
}

pub(crate) fn is_library(file: &str, function: &str) -> bool {
    LIBRARIES.iter().any(|start| file.starts_with(start))
        || LIBRARY_FUNCTIONS.iter().any(|start| function.starts_with(start))
        || function.starts_with("py::") && PYTHON_LIBRARY.iter().any(|part| function.contains(part))
}
