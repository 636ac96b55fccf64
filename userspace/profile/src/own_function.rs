//! The program's own function of a stack: the one that waits, allocates or throws on its behalf.
//!
//! The innermost frames of a wait are the scheduler's, those of an event of the CLR are the
//! runtime's: they are the same for all samples, and say nothing. The program's own function is the
//! innermost one that is not of the kernel, of the C library or of a language's runtime. Where only
//! a framework's code is on the stack, it is the outermost managed function that is not what every
//! thread starts with: the job that the framework has given to the thread.

use hashbrown::HashMap;
use serde::Serialize;

use crate::kind::{FrameKind, base_name, is_unnamed};
use crate::model::{Profile, StackId, StringId};

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

/// What managed threads and jobs of the thread pool start with: how their names begin.
const STARTS: [&str; 19] = [
    "System.Environment.",
    "System.Reflection.",
    "System.Runtime.CompilerServices.Async",
    "System.RuntimeMethodHandle.",
    "System.Threading.ExecutionContext.",
    "System.Threading.PortableThreadPool",
    "System.Threading.QueueUserWorkItemCallback",
    "System.Threading.Tasks.AwaitTaskContinuation",
    "System.Threading.Tasks.SynchronizationContextAwaitTaskContinuation",
    "System.Threading.Tasks.Task.<",
    "System.Threading.Tasks.Task.Execute",
    "System.Threading.Tasks.Task.InnerInvoke",
    "System.Threading.Tasks.Task.Run",
    "System.Threading.Thread.Start",
    "System.Threading.ThreadHelper.",
    "System.Threading.ThreadPoolWorkQueue",
    "System.Threading.TimerQueue",
    "System.Threading.UnmanagedThreadPoolWorkItem",
    "System.Threading._ThreadPoolWaitCallback",
];

/// Which functions of a stack may be the program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All: a thread waits in them.
    Any,
    /// Managed ones before others: the runtime reports an event, with native frames that are in a
    /// program of one file of the program's own file.
    Managed,
}

impl Which {
    /// As the samples of a column are taken.
    pub(crate) fn of_samples(profile: &Profile, sample_type: usize) -> Self {
        let kind = profile.kind_of(sample_type);
        if kind.is_some_and(|kind| kind.info().bridge.is_some()) {
            Self::Managed
        } else {
            Self::Any
        }
    }
}

/// The program's own function of a stack with its file; of a stack that has none the outermost
/// managed one that is no start of a thread, else the innermost outside of the kernel, or the
/// outermost of the kernel. Code of the program's without a symbol is passed over where there is a
/// managed function: it may be the runtime's inside a program of one file, or its host's.
pub(crate) fn of_stack(profile: &Profile, stack: StackId, which: Which) -> (StringId, StringId) {
    let [mut own, mut of_framework, mut start, mut innermost] = [None; 4];
    let mut outermost_of_kernel = (StringId::default(), StringId::default());
    for location in profile.stack(stack) {
        let location = profile.location(location);
        let module = location.mapping.map(|id| profile.mapping(id).path).unwrap_or_default();
        let file = base_name(profile.string(module));
        for frame in profile.frames(location) {
            let (name, function) = (profile.string(frame.name), (frame.name, module));
            let is_managed = match frame.kind {
                FrameKind::Marker => continue,
                FrameKind::Kernel => {
                    outermost_of_kernel = (frame.name, StringId::default());
                    continue;
                }
                FrameKind::Managed => true,
                FrameKind::Native | FrameKind::Jit => false,
            };
            innermost.get_or_insert(function);
            if !is_library(file, name) {
                if is_managed || which == Which::Any && own.is_none() && !is_unnamed(name) {
                    return function;
                }
                own.get_or_insert(function);
            } else if is_managed && STARTS.iter().any(|start| name.starts_with(start)) {
                start.get_or_insert(function);
            } else if is_managed {
                of_framework = Some(function);
            }
        }
    }
    let found = of_framework.or(own).or(start).or(innermost);
    found.unwrap_or(outermost_of_kernel)
}

fn is_library(file: &str, function: &str) -> bool {
    LIBRARIES.iter().any(|start| file.starts_with(start))
        || LIBRARY_FUNCTIONS.iter().any(|start| function.starts_with(start))
        || function.starts_with("py::") && PYTHON_LIBRARY.iter().any(|part| function.contains(part))
}

/// The sums of a column by the program's own functions, the largest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnFunctions {
    pub functions: Vec<OwnFunction>,
    /// Functions beyond those listed.
    pub more: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnFunction {
    pub name: String,
    /// The file of its code, without folders; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub module: String,
    pub value: i64,
    pub percent: f64,
}

/// The `most` largest, by one sample type.
#[must_use]
pub fn summarize(profile: &Profile, sample_type: usize, most: usize) -> OwnFunctions {
    let which = Which::of_samples(profile, sample_type);
    let mut sums: HashMap<(StringId, StringId), i64> = HashMap::new();
    let mut total = 0_i64;
    for sample in profile.samples() {
        let value = sample.values.get(sample_type).copied().unwrap_or(0);
        if value > 0 {
            total = total.saturating_add(value);
            let sum = sums.entry(of_stack(profile, sample.stack, which)).or_default();
            *sum = sum.saturating_add(value);
        }
    }
    let of_sum = |((name, module), value): ((StringId, StringId), i64)| OwnFunction {
        name: profile.string(name).to_owned(),
        module: base_name(profile.string(module)).to_owned(),
        value,
        percent: 100.0 * value as f64 / total.max(1) as f64,
    };
    let mut functions: Vec<_> = sums.into_iter().map(of_sum).collect();
    functions.sort_by(|a, b| b.value.cmp(&a.value).then_with(|| a.name.cmp(&b.name)));
    let more = functions.len().saturating_sub(most);
    functions.truncate(most);
    OwnFunctions { functions, more }
}

#[cfg(test)]
mod tests {
    use strata_kinds::Kind;

    use super::*;
    use crate::ProfileBuilder;
    use crate::model::LabelsId;

    /// A profile of one sample; frames are innermost first, with their kinds and files.
    fn profile(kind: Kind, frames: &[(FrameKind, &str, &str)]) -> Profile {
        let mut builder = ProfileBuilder::of_kinds([kind].into_iter().collect());
        let mut locations = Vec::new();
        for (number, &(kind, name, file)) in (1..).zip(frames) {
            let start = number << 32;
            let mapping = builder.mapping(start, start + 4096, 0, file, "");
            let frame = builder.frame(kind, name, "", "", 0);
            locations.push(builder.location(start, Some(mapping), &[frame]));
        }
        let stack = builder.stack(&locations);
        builder.add_of(kind, stack, LabelsId::default(), &[1, 64]);
        builder.finish()
    }

    fn own(kind: Kind, frames: &[(FrameKind, &str, &str)]) -> (String, i64) {
        let profile = profile(kind, frames);
        let found = summarize(&profile, kind.info().default_column, 1);
        (found.functions[0].name.clone(), found.functions[0].value)
    }

    const CORE: &str = "/srv/System.Private.CoreLib.dll";

    #[test]
    fn an_event_is_the_programs_own_functions_and_not_the_runtimes() {
        use FrameKind::{Managed, Native};
        // The runtime's code is in the program's file.
        let frames = [
            (Native, "EEToProfInterfaceImpl::ExceptionThrown", "/srv/shop"),
            (Managed, "System.Collections.Generic.List.Add", CORE),
            (Managed, "Shop.Pay", "/srv/Shop.dll"),
            (Managed, "Shop.Main", "/srv/Shop.dll"),
            (Native, "main", "/srv/shop"),
        ];
        assert_eq!(own(Kind::Allocations, &frames), ("Shop.Pay".to_owned(), 64));
    }

    #[test]
    fn where_only_a_framework_waits_it_is_the_job_that_the_thread_was_given() {
        use FrameKind::{Kernel, Managed, Native};
        let kestrel = "/srv/Microsoft.AspNetCore.Server.Kestrel.Core.dll";
        let frames = [
            (Kernel, "futex_wait", "[kernel]"),
            (Native, "__futex_abstimed_wait_common64", "/usr/lib/libc.so.6"),
            (Native, "shop!0x1234", "/srv/shop"),
            (Managed, "System.Threading.WaitHandle.WaitOneNoCheck", CORE),
            (Managed, "Microsoft.AspNetCore.Server.Kestrel.Core.Heartbeat.TimerLoop", kestrel),
            (Managed, "System.Threading.Thread.StartCallback", CORE),
            (Native, "start_thread", "/usr/lib/libc.so.6"),
        ];
        let (name, _) = own(Kind::OffCpu, &frames);
        assert_eq!(name, "Microsoft.AspNetCore.Server.Kestrel.Core.Heartbeat.TimerLoop");
        // The program's own native code waits itself.
        let native = (Native, "rd_kafka_poll", "/srv/librdkafka.so");
        let (name, _) = own(Kind::OffCpu, &[&[native], &frames[3..]].concat());
        assert_eq!(name, "rd_kafka_poll");
        // A thread that has only begun.
        assert_eq!(own(Kind::OffCpu, &frames[5..]).0, "System.Threading.Thread.StartCallback");
    }

    #[test]
    fn a_program_without_symbols_and_without_managed_code_is_still_the_program() {
        use FrameKind::Native;
        let libc = "/usr/lib/libc.so.6";
        let frames = [
            (Native, "poll", libc),
            (Native, "shop!0x10", "/srv/shop"),
            (Native, "main", "/srv/shop"),
        ];
        assert_eq!(own(Kind::OffCpu, &frames).0, "shop!0x10");
    }

    #[test]
    fn functions_beyond_the_list_are_counted() {
        let mut builder = ProfileBuilder::of_kinds([Kind::Exceptions].into_iter().collect());
        for name in ["Shop.A", "Shop.B", "Shop.C"] {
            let frame = builder.frame(FrameKind::Managed, name, "", "", 0);
            let location = builder.location(1, None, &[frame]);
            let stack = builder.stack(&[location]);
            builder.add_of(Kind::Exceptions, stack, LabelsId::default(), &[1]);
        }
        let found = summarize(&builder.finish(), 0, 2);
        assert_eq!((found.functions.len(), found.more), (2, 1));
    }
}
