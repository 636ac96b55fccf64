//! Attaching: from a pid to an open session.
//!
//! First come the checks that do not involve the target: another architecture, a C library without
//! a bridge build. Then strata's library is loaded, unless it is there already, and its memory
//! opened.

use std::time::{Duration, Instant};

use crate::bridge_library;
use crate::deadline::Deadline;
use crate::diagnostics::{Diagnostics, DiagnosticsError, HResult, PerfMapKind};
use crate::discover::{ClrProcess, DiscoverError, Machine, discover};
use crate::guarded::{self, Stuck};
use crate::loading::{self, LoadError, Loaded};
use crate::mappings::CLibrary;
use crate::memory_room;
use crate::session::{Session, SessionError, SessionOptions};
use crate::socket::SocketError;
use crate::target::{Target, TargetError};
use crate::version::RuntimeVersion;

/// The time limit of an attach: an AttachProfiler behind a detach, and some margin.
pub const ATTACH_TIME: Duration = Duration::from_secs(15);
/// The time limit of a small request to a runtime.
const ASKING: Duration = Duration::from_secs(3);
/// Nothing depends on it.
const ASKING_FOR_VERSION: Duration = Duration::from_secs(1);
/// Interval of checks on a library that is detaching.
const LEAVING_LOOK: Duration = Duration::from_millis(20);

/// How to attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachOptions {
    pub session: SessionOptions,
    pub time: Duration,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self { session: SessionOptions::default(), time: ATTACH_TIME }
    }
}

/// The origin of strata's library in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// The process loaded it at its start, or an earlier strata attached it and left it.
    AlreadyLoaded,
    Loaded(Loaded),
}

/// A process that was attached to.
#[derive(Debug)]
pub struct Attached {
    pub session: Session,
    pub how: How,
    pub took: Duration,
    /// From the path of its runtime, else as reported by the runtime.
    pub version: Option<RuntimeVersion>,
}

/// Why a process was not attached to.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("it is no .NET process")]
    NotClr,
    #[error("it is a program for {0}; this strata attaches to programs for {own} only", own = Machine::OWN)]
    AnotherArchitecture(Machine),
    #[error(
        "it runs on {0}, and this build of strata carries no library for that; build strata with Rust's x86_64-unknown-linux-musl target and musl-tools installed"
    )]
    NoLibrary(CLibrary),
    #[error(
        "its memory control group has {} KiB left, and attaching may take {} KiB: raise the group's limit",
        .0 >> 10,
        memory_room::NEEDED >> 10
    )]
    NoRoom(u64),
    #[error("its runtime takes one profiler only and has {0} loaded already")]
    AnotherProfiler(String),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Load(LoadError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("attaching: {0}")]
    Stuck(#[from] Stuck),
}

impl From<DiscoverError> for AttachError {
    fn from(error: DiscoverError) -> Self {
        match error {
            DiscoverError::Target(error) => Self::Target(error),
            DiscoverError::Stuck(error) => Self::Stuck(error),
        }
    }
}

impl AttachError {
    /// Whether a retry may succeed: the runtime is starting or busy. A hang is not retried: it
    /// would cost another thread each time.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Load(LoadError::Diagnostics(error)) => match error {
                DiagnosticsError::Refused(result) => result.passes(),
                DiagnosticsError::NoAnswer(_) | DiagnosticsError::Closed => true,
                _ => false,
            },
            Self::Load(LoadError::Socket(SocketError::Busy(_) | SocketError::NotListening(_))) => {
                true
            }
            _ => false,
        }
    }
}

/// Attaches to a process. Blocks for [`AttachOptions::time`] at most, so call it on a thread that
/// may block.
pub fn attach(pid: u32, options: &AttachOptions) -> Result<Attached, AttachError> {
    let process = discover(pid)?.ok_or(AttachError::NotClr)?;
    attach_to(process, options)
}

/// Attaches to a process that was discovered.
pub fn attach_to(process: ClrProcess, options: &AttachOptions) -> Result<Attached, AttachError> {
    let start = Instant::now();
    let deadline = Deadline::within(options.time);
    if let Some(machine) = process.machine.filter(|machine| *machine != Machine::OWN) {
        return Err(AttachError::AnotherArchitecture(machine));
    }
    let target = process.target.try_clone()?;
    let path_version = process.version;
    let done = |session: Session, how| Attached {
        version: path_version.or_else(|| RuntimeVersion::of_status(session.status())),
        session,
        how,
        took: start.elapsed(),
    };
    match open(&target, options, deadline) {
        Ok(session) => return Ok(done(session, How::AlreadyLoaded)),
        Err(SessionError::NotLoaded) => {}
        Err(error) => return Err(error.into()),
    }
    // Its socket does other things: it can be asked for a perf map.
    if let (None, Some(variable)) =
        (process.switches.socket_switched_off(), process.switches.profilers_switched_off())
    {
        return Err(AttachError::Load(LoadError::Socket(SocketError::ProfilersOff(variable))));
    }
    if let Some(left) = memory_room::room(&target).filter(|left| *left < memory_room::NEEDED) {
        return Err(AttachError::NoRoom(left));
    }
    let other = other_profiler(&process);
    let c_library = process.c_library.unwrap_or(CLibrary::Glibc);
    let library = bridge_library::library(c_library).ok_or(AttachError::NoLibrary(c_library))?;
    let left = deadline.remaining().unwrap_or_default();
    let loaded = guarded::run("strata-clr-load", target.pid(), left, move |patience, deadline| {
        loading::load(&process, &library, patience, deadline)
    })?;
    let how = match loaded {
        Ok(loaded) => How::Loaded(loaded),
        // Another strata was faster, or the process has a profiler and accepts no second.
        Err(error) if error.result() == Some(HResult::ALREADY_ACTIVE) => {
            return match open(&target, options, deadline) {
                Ok(session) => Ok(done(session, How::AlreadyLoaded)),
                Err(SessionError::NotLoaded) => Err(AttachError::AnotherProfiler(other)),
                Err(error) => Err(error.into()),
            };
        }
        Err(error) => return Err(AttachError::Load(error)),
    };
    // The library maps its memory before the runtime answers. Memory that no reader opened is never
    // reclaimed, so a slow process is waited for.
    loop {
        match open(&target, options, deadline) {
            Err(SessionError::Stuck(Stuck::TimedOut(_))) if !deadline.has_passed() => {}
            outcome => return Ok(done(outcome?, how)),
        }
    }
}

/// Opens the memory of the library, if it is in the process. A detaching one is waited for: then
/// there is none.
fn open(
    target: &Target,
    options: &AttachOptions,
    deadline: Deadline,
) -> Result<Session, SessionError> {
    loop {
        match Session::open(target.try_clone()?, &options.session) {
            Err(SessionError::Leaving) if !deadline.has_passed() => {
                std::thread::sleep(LEAVING_LOOK);
            }
            outcome => return outcome,
        }
    }
}

/// A profiler in the environment that is not strata's.
fn other_profiler(process: &ClrProcess) -> String {
    let profilers = process.switches.profilers();
    let other = profilers.iter().find(|profiler| !profiler.is_strata());
    other.map_or_else(|| "another profiler".to_owned(), ToString::to_string)
}

/// Lets a runtime write a perf map, where strata's library may not be loaded (.NET 8 and later).
/// The file is `perf-PID.map` in the process's temporary directory, under its own number.
pub fn enable_perf_map(process: &ClrProcess) -> Result<(), AttachError> {
    let deadline = Deadline::within(ASKING);
    let outcome = diagnostics(process)?.enable_perf_map(PerfMapKind::PerfMap, deadline);
    outcome.map_err(|error| AttachError::Load(error.into()))
}

/// Undoes [`enable_perf_map`].
pub fn disable_perf_map(process: &ClrProcess) -> Result<(), AttachError> {
    let outcome = diagnostics(process)?.disable_perf_map(Deadline::within(ASKING));
    outcome.map_err(|error| AttachError::Load(error.into()))
}

/// The version of a process's runtime: from its path, else from its own answer (.NET 6 and later).
pub fn runtime_version(process: &ClrProcess) -> Option<RuntimeVersion> {
    process.version.or_else(|| {
        let deadline = Deadline::within(ASKING_FOR_VERSION);
        let info = diagnostics(process).ok()?.process_info(deadline).ok()?;
        RuntimeVersion::parse(&info.runtime_version?)
    })
}

/// The exchange over a socket has a deadline, whatever its other side does.
fn diagnostics(process: &ClrProcess) -> Result<Diagnostics<'_>, AttachError> {
    match &process.sockets {
        Ok(sockets) => Ok(Diagnostics::new(&process.target, sockets)),
        Err(error) => Err(AttachError::Load(error.clone().into())),
    }
}
