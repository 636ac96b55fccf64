//! Threads that wait for work, and for nothing else: a pool's workers, an event loop, a runtime's
//! own threads. Most of a profile of waits is theirs.
//!
//! A rule is about a whole stack: what the thread waits in, and that the program's own code has not
//! called that. A stack that no rule knows is not idle. Samples keep their stacks, and have a label
//! ([`LABEL`]); pictures show them as one box, or not at all.

use std::borrow::Cow;

use crate::kind::{FrameKind, base_name};
use crate::model::{LabelValue, LabelsId, Profile, StackId, StringId};

/// The label of a sample of an idle thread: which kind of thread it is.
pub const LABEL: &str = "idle";

/// What is shown of idle threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Their stacks, as of other threads.
    Whole,
    /// One box for all of a kind.
    #[default]
    Folded,
    Hidden,
}

/// A kind of idle thread.
struct Rule {
    name: &'static str,
    /// How the thread's own name begins, in one of these ways; none: any.
    threads: &'static [&'static str],
    /// Every function outside of the kernel is one of these; none: any.
    only: &'static [Part],
    /// One of these calls is on the stack.
    has: &'static [Call],
}

/// Some functions.
enum Part {
    /// By how the name of their file begins.
    File(&'static str),
    /// By how their own name begins.
    Start(&'static str),
    /// All whose name begins in another way.
    Other(&'static str),
    /// All of files with machine code.
    Native,
}

use Part::{File, Native, Other, Start};

/// Functions, each called by the next: parts of their names, or, after a `=`, a whole name.
type Call = &'static [&'static str];

static RULES: [Rule; 15] = [
    // strata's own thread in a .NET process, which waits for records to write.
    Rule {
        name: "strata",
        threads: &["strata-clr"],
        only: &[File("[strata-clr]"), File("libc."), File("ld-musl"), File("libpthread")],
        has: &[&["[strata-clr]!"]],
    },
    Rule {
        name: "Go scheduler",
        only: &[
            Start("runtime."),
            Start("internal/runtime/"),
            Start("os/signal."),
            Start("crosscall"),
            Start("threadentry"),
            File("libc."),
            File("ld-musl"),
            File("libpthread"),
        ],
        has: &[
            &["runtime.findRunnable"],
            &["runtime.mPark"],
            &["runtime.sysmon"],
            &["runtime.templateThread"],
            &["os/signal.signal_recv"],
        ],
        ..ANY
    },
    // Programs in one file have the runtime's code in their own.
    Rule {
        name: ".NET thread pool",
        only: &[Native, Start("System.Threading."), Start("Interop.")],
        has: &[&["System.Threading.PortableThreadPool"]],
        ..ANY
    },
    Rule {
        name: ".NET timers",
        only: &[Native, Start("System.Threading.")],
        has: &[&["System.Threading.TimerQueue.TimerThread"]],
        ..ANY
    },
    Rule {
        name: ".NET socket events",
        only: &[
            Native,
            Start("System.Threading."),
            Start("System.Net.Sockets.SocketAsyncEngine."),
            Start("Interop."),
        ],
        has: &[&["System.Net.Sockets.SocketAsyncEngine.EventLoop"]],
        ..ANY
    },
    // Without any managed code.
    Rule { name: ".NET runtime", threads: &OF_DOTNET, only: &[Native], ..ANY },
    Rule { name: ".NET runtime", threads: &[".NET "], only: DOTNET_FILES, ..ANY },
    Rule {
        name: ".NET runtime",
        only: DOTNET_FILES,
        has: &[&["libcoreclr.so!"], &["CorUnix::"]],
        ..ANY
    },
    Rule {
        name: "Java VM",
        only: &[File("libjvm.so"), File("libc."), File("ld-musl"), File("libpthread")],
        has: &[&["Thread::call_run"], &["thread_native_entry"]],
        ..ANY
    },
    Rule { name: "Java VM", has: &[&["JVM_WaitForReferencePendingList"]], ..ANY },
    Rule {
        name: "Java thread pool",
        has: &[
            &["java.util.concurrent.ThreadPoolExecutor.getTask"],
            &["java.util.concurrent.ForkJoinPool.awaitWork"],
        ],
        ..ANY
    },
    Rule {
        name: "Node workers",
        has: &[
            &["uv_cond_wait", "node::(anonymous namespace)::PlatformWorkerThread"],
            &["uv_run", "node::WorkerThreadsTaskRunner::DelayedTaskScheduler"],
            &["uv_sem_wait", "node::inspector::(anonymous namespace)::StartIoThreadMain"],
        ],
        ..ANY
    },
    Rule {
        name: "libuv",
        has: &[&["uv_cond_wait", "=worker"], &["epoll", "uv__io_poll", "uv_run"]],
        ..ANY
    },
    Rule {
        name: "Python thread pool",
        // Without the perf support of Python 3.12 its functions have no names.
        only: &[Other("py::"), Start("py::_worker:"), Start("py::Thread.")],
        has: &[&["py::_worker:"]],
        ..ANY
    },
    Rule {
        name: "tokio",
        has: &[
            &["tokio::runtime::scheduler::multi_thread::worker::Context::park"],
            &["ondvar::wait", "tokio::runtime::blocking::pool::Inner::run"],
        ],
        ..ANY
    },
];

/// The files of a .NET runtime that is not in its program's own.
const DOTNET_FILES: &[Part] = &[
    File("libcoreclr.so"),
    File("libclrgc"),
    File("libclrjit.so"),
    File("libSystem.Native.so"),
    // strata's library in the process.
    File("[strata-clr]"),
    File("libstdc++"),
    File("libc."),
    File("ld-musl"),
    File("libpthread"),
];

/// Any stack.
const ANY: Rule = Rule { name: "", threads: &[], only: &[], has: &[&[]] };

/// Threads of a .NET runtime that run nothing of the program's. Others do, and code that was compiled
/// ahead of time looks like the runtime's: it is machine code of the same file.
const OF_DOTNET: [&str; 7] = [
    ".NET BGC",
    ".NET EventPipe",
    ".NET Server GC",
    ".NET SigHandler",
    ".NET SynchManag",
    ".NET TP Gate",
    ".NET Tiered",
];

/// A function of a stack.
struct Function<'p> {
    name: Cow<'p, str>,
    /// Without folders.
    file: &'p str,
    kind: FrameKind,
}

/// The kind of idle thread that a stack of a thread of this name is of; `None`: it works, or waits
/// for what its program asked for.
#[must_use]
pub fn of_stack(profile: &Profile, stack: StackId, thread: &str) -> Option<&'static str> {
    let mut functions: Vec<Function<'_>> = Vec::new();
    for location in profile.stack(stack) {
        let location = profile.location(location);
        let file = base_name(profile.path_of(location));
        for frame in profile.frames(location) {
            match frame.kind {
                FrameKind::Kernel => {}
                // Part of the stack is missing.
                FrameKind::Marker => return None,
                FrameKind::Native | FrameKind::Jit | FrameKind::Managed => {
                    let name = plain(profile.string(frame.name));
                    functions.push(Function { name, file, kind: frame.kind });
                }
            }
        }
    }
    let rule = RULES.iter().find(|rule| rule.knows(thread, &functions))?;
    Some(rule.name)
}

/// A name without the angle brackets of Rust's symbols: `<a::B>::c` is `a::B::c`.
fn plain(name: &str) -> Cow<'_, str> {
    match name.contains("tokio::") {
        true => name.replace(['<', '>'], "").into(),
        false => name.into(),
    }
}

impl Rule {
    fn knows(&self, thread: &str, functions: &[Function<'_>]) -> bool {
        let is_one = |function: &Function<'_>| {
            self.only.is_empty() || self.only.iter().any(|part| part.has(function))
        };
        !functions.is_empty()
            && (self.threads.is_empty()
                || self.threads.iter().any(|start| thread.starts_with(start)))
            && self.has.iter().any(|call| has_call(functions, call))
            && functions.iter().all(is_one)
    }
}

impl Part {
    fn has(&self, function: &Function<'_>) -> bool {
        match self {
            File(start) => function.file.starts_with(start),
            Start(start) => function.name.starts_with(start),
            Other(start) => !function.name.starts_with(start),
            Native => function.kind == FrameKind::Native,
        }
    }
}

fn has_call(functions: &[Function<'_>], call: Call) -> bool {
    let is = |name: &str, wanted: &str| match wanted.strip_prefix('=') {
        Some(whole) => name == whole,
        None => name.contains(wanted),
    };
    let is_call = |some: &[Function<'_>]| {
        some.iter().zip(call).all(|(function, wanted)| is(&function.name, wanted))
    };
    call.is_empty() || functions.windows(call.len()).any(is_call)
}

/// [`LABEL`] and its value in a set of labels.
#[must_use]
pub fn of_labels(profile: &Profile, labels: LabelsId) -> Option<(StringId, StringId)> {
    profile.labels(labels).iter().find_map(|label| match label.value {
        LabelValue::Text(kind) if profile.string(label.key) == LABEL => Some((label.key, kind)),
        _ => None,
    })
}
