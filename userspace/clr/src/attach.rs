//! Attaching: from a pid to an open session.
//!
//! What can be answered without the target is: another architecture, a C library that this build has
//! no library for. Then strata's library is loaded (or is there already), and its memory opened.

use std::time::{Duration, Instant};

use crate::bridge_library;
use crate::deadline::Deadline;
use crate::diagnostics::{Diagnostics, DiagnosticsError, HResult, PerfMapKind};
use crate::discover::{ClrProcess, DiscoverError, Machine, discover};
use crate::guarded::{self, Patience, Stuck};
use crate::loading::{self, LoadError, Loaded};
use crate::mappings::CLibrary;
use crate::session::{Session, SessionError, SessionOptions};
use crate::target::{Target, TargetError};
use crate::version::RuntimeVersion;

/// How long an attach may take: an AttachProfiler behind a detach, and some before and after.
pub const ATTACH_TIME: Duration = Duration::from_secs(15);
/// Between the runtime's answer and the mapping of the memory nothing happens; but looking costs
/// little.
const OPENING: Duration = Duration::from_secs(2);
const OPENING_LOOK: Duration = Duration::from_millis(5);

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

/// How strata's library came to be in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// The process loaded it at its start, or a strata before attached and left it.
    AlreadyLoaded,
    Loaded(Loaded),
}

/// A process that was attached to.
#[derive(Debug)]
pub struct Attached {
    pub session: Session,
    pub how: How,
    pub took: Duration,
    /// As the path of its runtime has it; see also [`Session::status`].
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
    /// Whether trying again after a while is worth it: the runtime is starting, stopped or busy.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Load(LoadError::Diagnostics(error)) => match error {
                DiagnosticsError::Refused(result) => result.passes(),
                DiagnosticsError::NoAnswer(_) | DiagnosticsError::Closed => true,
                _ => false,
            },
            Self::Load(LoadError::Socket(crate::socket::SocketError::Busy(_)))
            | Self::Stuck(Stuck::TimedOut(_)) => true,
            _ => false,
        }
    }
}

/// Attaches to a process. Blocks for [`AttachOptions::time`] at most, so it belongs on a thread that
/// may.
pub fn attach(pid: u32, options: &AttachOptions) -> Result<Attached, AttachError> {
    let process = discover(pid)?.ok_or(AttachError::NotClr)?;
    attach_to(process, options)
}

/// Attaches to a process that was discovered.
pub fn attach_to(process: ClrProcess, options: &AttachOptions) -> Result<Attached, AttachError> {
    let start = Instant::now();
    if let Some(machine) = process.machine.filter(|machine| *machine != Machine::OWN) {
        return Err(AttachError::AnotherArchitecture(machine));
    }
    let version = process.version;
    let done = |session, how| Attached { session, how, took: start.elapsed(), version };
    if !process.shared.is_empty() {
        match Session::open(process.target.try_clone()?, &options.session) {
            Ok(session) => return Ok(done(session, How::AlreadyLoaded)),
            Err(SessionError::NotLoaded) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let target = process.target.try_clone()?;
    let other = other_profiler(&process);
    let c_library = process.c_library.unwrap_or(CLibrary::Glibc);
    let library = bridge_library::library(c_library).ok_or(AttachError::NoLibrary(c_library))?;
    let loaded = guarded::run("strata-clr-load", options.time, move |patience, deadline| {
        loading::load(&process, &library, patience, deadline)
    })?;
    let how = match loaded {
        Ok(loaded) => How::Loaded(loaded),
        // Somebody else's strata was faster, or the process has a profiler and takes no second.
        Err(error) if error.result() == Some(HResult::ALREADY_ACTIVE) => {
            return match Session::open(target, &options.session) {
                Ok(session) => Ok(done(session, How::AlreadyLoaded)),
                Err(SessionError::NotLoaded) => Err(AttachError::AnotherProfiler(other)),
                Err(error) => Err(error.into()),
            };
        }
        Err(error) => return Err(AttachError::Load(error)),
    };
    let session = open_soon(&target, options, Deadline::within(OPENING))?;
    Ok(done(session, how))
}

/// What the environment says of a profiler that is not strata's.
fn other_profiler(process: &ClrProcess) -> String {
    let profilers = process.switches.profilers();
    let other = profilers.iter().find(|profiler| !profiler.is_strata());
    other.map_or_else(|| "another profiler".to_owned(), ToString::to_string)
}

fn open_soon(
    target: &Target,
    options: &AttachOptions,
    deadline: Deadline,
) -> Result<Session, AttachError> {
    loop {
        match Session::open(target.try_clone()?, &options.session) {
            Err(SessionError::NotLoaded) if !deadline.has_passed() => {
                std::thread::sleep(OPENING_LOOK);
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// Lets a runtime write a perf map, where strata's library may not be loaded (.NET 8 and later).
/// The file is `perf-PID.map` in the process's temporary directory, under its own number.
pub fn enable_perf_map(process: ClrProcess) -> Result<(), AttachError> {
    with_diagnostics(process, |diagnostics, deadline| {
        diagnostics.enable_perf_map(PerfMapKind::PerfMap, deadline)
    })
}

/// Ends what [`enable_perf_map`] began.
pub fn disable_perf_map(process: ClrProcess) -> Result<(), AttachError> {
    with_diagnostics(process, |diagnostics, deadline| diagnostics.disable_perf_map(deadline))
}

fn with_diagnostics(
    process: ClrProcess,
    work: impl FnOnce(&Diagnostics<'_>, Deadline) -> Result<(), DiagnosticsError> + Send + 'static,
) -> Result<(), AttachError> {
    const TIME: Duration = Duration::from_secs(5);
    let outcome = guarded::run("strata-clr-ask", TIME, move |_: Patience, deadline| {
        let sockets = process.sockets.as_ref().map_err(|error| LoadError::from(error.clone()))?;
        work(&Diagnostics::new(&process.target, sockets), deadline).map_err(LoadError::from)
    })?;
    outcome.map_err(AttachError::Load)
}
