//! Detects whether a process is a CLR, and what prevents attaching to it.
//!
//! A runtime in files of its own has libcoreclr.so mapped. In a single-file program the runtime is
//! part of the executable; such a program is recognised by memory files that only the runtime
//! makes, or by the names of its threads. Most processes are ruled out by their mappings alone.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use strata_sandbox::ProcessRef;

use crate::deadline::Deadline;
use crate::guarded::{self, Patience, Stuck};
use crate::mappings::{CLibrary, Mappings, SharedMapping};
use crate::root::Root;
use crate::socket::{self, FoundSocket, SocketError};
use crate::switches::{MAX_ENVIRONMENT, Switches};
use crate::target::{Status, Target, TargetError, read_to};
use crate::version::RuntimeVersion;

/// The time limit of examining a target.
const LOOKING: Duration = Duration::from_secs(2);
/// The most threads whose names are read in a process without libcoreclr.so.
const MAX_THREADS: usize = 24;

/// How a process was recognised as a CLR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// libcoreclr.so is mapped.
    Library,
    /// A single-file program: the runtime's memory files or thread names.
    SingleFile,
}

/// The machine an executable is made for (`e_machine`, include/uapi/linux/elf-em.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Machine(pub u16);

impl Machine {
    pub const X86_64: Self = Self(62);
    pub const AARCH64: Self = Self(183);
    pub const OWN: Self = if cfg!(target_arch = "x86_64") { Self::X86_64 } else { Self::AARCH64 };
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            3 => f.write_str("x86"),
            40 => f.write_str("arm"),
            62 => f.write_str("x86-64"),
            183 => f.write_str("arm64"),
            243 => f.write_str("riscv"),
            other => write!(f, "ELF machine {other}"),
        }
    }
}

/// A CLR process, as far as it can be examined without connecting to it.
#[derive(Debug)]
pub struct ClrProcess {
    pub target: Target,
    pub evidence: Evidence,
    /// Where the path of the runtime contains it.
    pub version: Option<RuntimeVersion>,
    /// Path of libcoreclr.so as the process sees it.
    pub runtime_path: Option<Vec<u8>>,
    pub c_library: Option<CLibrary>,
    pub machine: Option<Machine>,
    pub status: Status,
    pub switches: Switches,
    /// Strata's library in it: mappings of its memory files.
    pub shared: Vec<SharedMapping>,
    /// Its diagnostics socket, or why there is none.
    pub sockets: Result<Vec<FoundSocket>, SocketError>,
}

/// Why a process could not be examined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("looking into the process: {0}")]
    Stuck(#[from] Stuck),
}

/// Examines a process; `None` when it is no CLR. Waits for some seconds at most.
pub fn discover(pid: u32) -> Result<Option<ClrProcess>, DiscoverError> {
    discover_checked(ProcessRef { pid, start_time: None })
}

/// The same for a process whose start time is known.
pub fn discover_checked(process: ProcessRef) -> Result<Option<ClrProcess>, DiscoverError> {
    let target = Target::open_checked(process)?;
    let found =
        guarded::run("strata-clr-look", process.pid, LOOKING, move |patience, deadline| {
            look(target, patience, deadline)
        })?;
    Ok(found?)
}

fn evidence(target: &Target, mappings: &Mappings) -> Option<Evidence> {
    match &mappings.runtime {
        Some(_) => Some(Evidence::Library),
        None if mappings.runtime_memory
            || !mappings.shared.is_empty()
            || has_runtime_threads(target) =>
        {
            Some(Evidence::SingleFile)
        }
        None => None,
    }
}

/// Whether only the CLR, of .NET 6 and later, gives a thread this name. NativeAOT names a finalizer
/// too, but has no platform layer with a synchronisation manager
/// (src/coreclr/pal/src/synchmgr/synchmanager.cpp).
pub fn is_runtime_thread(name: &[u8]) -> bool {
    name == b".NET SynchManag"
}

/// Whether a thread of a process has such a name. The runtime starts it before any of the program's
/// own: the names of 24 threads are read.
pub fn has_runtime_threads(target: &Target) -> bool {
    let Ok(tasks) = target.open_file("task") else { return false };
    let Ok(entries) = rustix::fs::Dir::new(tasks) else { return false };
    let threads = entries.flatten().filter(|entry| !entry.file_name().to_bytes().starts_with(b"."));
    threads.take(MAX_THREADS).any(|entry| {
        let Ok(thread) = entry.file_name().to_str() else { return false };
        let name = target.read(&format!("task/{thread}/comm"), 32).unwrap_or_default();
        is_runtime_thread(name.trim_ascii_end())
    })
}

fn look(
    target: Target,
    patience: Patience,
    deadline: Deadline,
) -> Result<Option<ClrProcess>, TargetError> {
    // Waits for as long as the process holds its memory's lock.
    let mappings = Mappings::read(&target)?;
    let Some(evidence) = evidence(&target, &mappings) else { return Ok(None) };
    let status = target.status()?;
    let switches = match patience {
        Patience::AnyFilesystem => {
            Switches::parse(&target.read("environ", MAX_ENVIRONMENT).unwrap_or_default())
        }
        // Its pages may lie in a file that hangs.
        Patience::LocalOnly => Switches::default(),
    };
    let machine = match patience {
        Patience::AnyFilesystem => machine_of(&target),
        Patience::LocalOnly => None,
    };
    let sockets = {
        let mut root = Root::of(&target, patience, deadline)?;
        match (socket::find(&mut root, &target, &status, &switches, deadline), patience) {
            // Its environment, which may name another directory, was not read.
            (Err(SocketError::NotFound { .. }), Patience::LocalOnly) => Err(SocketError::NotLooked),
            (found, _) => found,
        }
    };
    Ok(Some(ClrProcess {
        evidence,
        version: mappings.runtime.as_deref().and_then(RuntimeVersion::of_path),
        runtime_path: mappings.runtime,
        c_library: mappings.c_library,
        machine,
        status,
        switches,
        shared: mappings.shared,
        sockets,
        target,
    }))
}

/// Four fields at the start of its executable: magic, class, byte order, machine.
fn machine_of(target: &Target) -> Option<Machine> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(target.directory(), "exe", flags, Mode::empty()).ok()?;
    let header = read_to(file.as_fd(), 20).ok()?;
    match header.first_chunk::<20>()? {
        [0x7f, b'E', b'L', b'F', _, 1, .., low, high] => {
            Some(Machine(u16::from_le_bytes([*low, *high])))
        }
        [0x7f, b'E', b'L', b'F', _, 2, .., high, low] => {
            Some(Machine(u16::from_be_bytes([*high, *low])))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_clr_is_none_and_a_pid_without_a_process_is_gone() {
        assert!(discover(std::process::id()).unwrap().is_none());
        let missing = discover(u32::MAX >> 1).unwrap_err();
        assert!(matches!(missing, DiscoverError::Target(TargetError::Gone(_))));
    }

    #[test]
    fn the_machine_is_that_of_the_executable() {
        let target = Target::open(std::process::id()).unwrap();
        assert_eq!(machine_of(&target), Some(Machine::OWN));
        assert_eq!(Machine(40).to_string(), "arm");
    }
}
