//! Loads strata's library into a running CLR.
//!
//! First by its bare name: where it is mapped already, from an earlier attach or because it was
//! installed for the process, the runtime finds that copy, and no process ever maps two. Only for a
//! runtime that does not find it (0x8007007e) a file is created, in the first directory that works.

use std::time::Duration;

use crate::deadline::Deadline;
use crate::diagnostics::{ClassId, Diagnostics, DiagnosticsError, HResult};
use crate::discover::ClrProcess;
use crate::guarded::Patience;
use crate::place::{self, PlaceError, Tried, Unusable};
use crate::root::{Root, RootError};
use crate::socket::{self, FoundSocket, SocketError};

/// Delays between attempts after a transient failure: the first, doubled each time up to the last.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// A runtime makes its socket within milliseconds of its start; from this age on it has none.
const STARTING: Duration = Duration::from_secs(3);

/// A profiler library that can be loaded into a CLR.
#[derive(Debug, Clone, Copy)]
pub struct Library<'a> {
    /// Its SONAME.
    pub name: &'a str,
    pub class: ClassId,
    pub content: &'a [u8],
}

/// How it was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loaded {
    /// By its bare name: it was mapped, or installed, already.
    ByName,
    /// From a file that strata put there and removed again.
    FromFile(String),
}

/// Why the library is not in the process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Diagnostics(DiagnosticsError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("the root of the process: {0}")]
    Root(#[from] RootError),
}

impl From<DiagnosticsError> for LoadError {
    fn from(error: DiagnosticsError) -> Self {
        match error {
            DiagnosticsError::Socket(error) => Self::Socket(error),
            error => Self::Diagnostics(error),
        }
    }
}

impl LoadError {
    /// The runtime's error text, if any.
    pub fn result(&self) -> Option<HResult> {
        match self {
            Self::Diagnostics(error) => error.result(),
            _ => None,
        }
    }
}

/// Loads the library. May hang: callers that cannot wait run it on a thread of its own.
pub fn load(
    process: &ClrProcess,
    library: &Library<'_>,
    patience: Patience,
    deadline: Deadline,
) -> Result<Loaded, LoadError> {
    let mut root = Root::of(&process.target, patience, deadline).map_err(RootError::from)?;
    let found_again;
    let sockets: &[FoundSocket] = match &process.sockets {
        Ok(sockets) => sockets,
        Err(SocketError::NotFound { .. }) => {
            found_again = wait_for_socket(process, &mut root, deadline)?;
            &found_again
        }
        Err(error) => return Err(error.clone().into()),
    };
    let diagnostics = Diagnostics::new(&process.target, sockets);
    match attach_first(process, &diagnostics, library, deadline) {
        Ok(()) => return Ok(Loaded::ByName),
        Err(error) if is_not_loadable(&error) => {}
        Err(error) => return Err(error.into()),
    }
    let mut tried = Vec::new();
    for directory in place::candidates(&mut root, &process.target, &process.switches) {
        let shown = crate::root::shown(&directory);
        let status = &process.status;
        let placed = match place::place(&mut root, status, &directory, library.content, deadline)? {
            Ok(placed) => placed,
            Err(why) => {
                tried.push(Tried { directory: shown, why });
                continue;
            }
        };
        match attach(&diagnostics, library, &placed.path, deadline) {
            Ok(()) => return Ok(Loaded::FromFile(placed.path.clone())),
            Err(error) if is_not_loadable(&error) => {
                tried.push(Tried { directory: shown, why: Unusable::NotLoadable });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(PlaceError::nowhere(tried).into())
}

fn is_not_loadable(error: &DiagnosticsError) -> bool {
    matches!(
        error.result(),
        Some(HResult::MODULE_NOT_FOUND | HResult::FILE_NOT_FOUND | HResult::ACCESS_DENIED)
    )
}

/// An attach by the library's name. A process that has only just started may have its socket and not
/// listen on it yet.
fn attach_first(
    process: &ClrProcess,
    diagnostics: &Diagnostics<'_>,
    library: &Library<'_>,
    deadline: Deadline,
) -> Result<(), DiagnosticsError> {
    loop {
        match attach(diagnostics, library, library.name, deadline) {
            Err(DiagnosticsError::Socket(SocketError::NotListening(_)))
                if is_starting(process)
                    && deadline.remaining().is_some_and(|left| left > FIRST_WAIT) => {}
            outcome => return outcome,
        }
        std::thread::sleep(FIRST_WAIT);
    }
}

fn is_starting(process: &ClrProcess) -> bool {
    process.target.age().is_some_and(|age| age < STARTING) && process.target.is_alive()
}

/// One attach, retried while the failure is transient.
fn attach(
    diagnostics: &Diagnostics<'_>,
    library: &Library<'_>,
    path: &str,
    deadline: Deadline,
) -> Result<(), DiagnosticsError> {
    let mut wait = FIRST_WAIT;
    loop {
        match diagnostics.attach_profiler(library.class, path, &[], deadline) {
            Err(DiagnosticsError::Refused(result)) if result.passes() => {
                if deadline.remaining().is_none_or(|left| left <= wait) {
                    return Err(DiagnosticsError::Refused(result));
                }
            }
            outcome => return outcome,
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// The socket of a process that has only just started.
fn wait_for_socket(
    process: &ClrProcess,
    root: &mut Root<'_>,
    deadline: Deadline,
) -> Result<Vec<FoundSocket>, SocketError> {
    let mut wait = FIRST_WAIT;
    loop {
        let found =
            socket::find(root, &process.target, &process.status, &process.switches, deadline);
        match found {
            Err(SocketError::NotFound { .. })
                if is_starting(process) && deadline.remaining().is_some_and(|left| left > wait) => {
            }
            outcome => return outcome,
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}
