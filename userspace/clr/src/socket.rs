//! The diagnostics socket of a CLR process: where it is, and a connection that reaches only that
//! process.
//!
//! The runtime listens on `dotnet-diagnostic-{pid}-{key}-socket` in its `TMPDIR`; pid is its own
//! number for itself, and the key its start time as `/proc/PID/stat` has it, so the name is known
//! beforehand (`PAL_GetTransportName`, src/coreclr/pal/src/thread/process.cpp). Sockets of dead
//! processes stay behind, and a container's first process is always number 1.
//!
//! Invariant: nothing is sent before the socket node was found to be a socket (no link) that
//! belongs to the target's user or root, and the kernel confirmed that its listener is the target.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::deadline::Deadline;
use crate::root::{EntryError, Links, Root, RootError, shown};
use crate::switches::Switches;
use crate::target::{Status, Target, TargetError};

/// More names in a directory are not looked through for a socket under another key.
const MAX_NAMES: usize = 100_000;
/// More sockets that might be the target's are not tried.
const MAX_CANDIDATES: usize = 16;
/// More of the list of sockets is not read.
const MAX_SOCKETS_TEXT: usize = 8 << 20;
/// A runtime that is busy elsewhere does not accept, but its queue is rarely full.
const CONNECT: Duration = Duration::from_secs(3);

/// Why there is no connection to a target's diagnostics socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("the directory of its diagnostics socket: {0}")]
    Directory(RootError),
    #[error("diagnostics are switched off by {0} in its environment; start it without that")]
    SwitchedOff(String),
    /// A profiler that is attached would be loaded all the same.
    #[error("profilers are switched off by {0} in its environment; start it without that")]
    ProfilersOff(String),
    #[error(
        "no diagnostics socket dotnet-diagnostic-{inner_pid}-*-socket in its {directory}: switched off in its code or configuration, deleted, never made because the process may not write there (a read-only file system; TMPDIR names another directory), or the runtime has only just begun to start"
    )]
    NotFound { directory: String, inner_pid: u32 },
    #[error(
        "its diagnostics socket was not looked for, because filesystems of other processes hang strata already"
    )]
    NotLooked,
    #[error("{0} is not a socket but something put in its place")]
    NotASocket(String),
    #[error("{name} belongs to user {owner}, who is not the process's user {user}")]
    WrongOwner { name: String, owner: u32, user: u32 },
    /// A runtime binds its socket before it listens on it.
    #[error(
        "no process listens on {0}: the runtime has only just begun to start, has ended, or has executed itself anew and found its socket's name taken (with the variables of `strata env` it needs no socket)"
    )]
    NotListening(String),
    #[error("{name} is listened on by process {peer}, not by process {pid}")]
    WrongPeer { name: String, peer: i32, pid: u32 },
    #[error(
        "{0} did not accept a connection in time: too many tools talk to the process, or it is stopped"
    )]
    Busy(String),
    #[error(
        "no permission to connect to {0}: strata needs root or CAP_DAC_OVERRIDE, and no security module against it"
    )]
    Permission(String),
    #[error("connecting to {name}: {errno}")]
    Other { name: String, errno: Errno },
}

/// A socket that may be the target's: a handle of its node, already checked for kind and owner.
#[derive(Debug)]
pub struct FoundSocket {
    node: OwnedFd,
    /// Its path as the target sees it, for display.
    pub path: String,
}

/// The name of the socket of a process that knows itself by this pid.
fn exact_name(inner_pid: u32, start_time: u64) -> String {
    format!("dotnet-diagnostic-{inner_pid}-{start_time}-socket")
}

/// Whether a name is that of a socket of such a process, under whatever key. In another time
/// namespace the start time, and with it the key, is another number.
fn is_name_of(name: &[u8], inner_pid: u32) -> bool {
    let prefix = format!("dotnet-diagnostic-{inner_pid}-");
    name.strip_prefix(prefix.as_bytes())
        .and_then(|rest| rest.strip_suffix(b"-socket"))
        .is_some_and(|key| !key.is_empty() && key.iter().all(u8::is_ascii_digit))
}

/// Where the runtime puts its socket (`GetTempPathA`, src/coreclr/pal/src/file/path.cpp).
pub fn directory_of(switches: &Switches) -> &[u8] {
    switches.temporary_directory.as_deref().unwrap_or(b"/tmp")
}

/// The sockets that may be the target's, the likeliest first. May hang: see [`crate::guarded`].
pub fn find(
    root: &mut Root<'_>,
    target: &Target,
    status: &Status,
    switches: &Switches,
    deadline: Deadline,
) -> Result<Vec<FoundSocket>, SocketError> {
    let wanted = directory_of(switches);
    let path = match wanted.first() {
        Some(b'/') => wanted.to_vec(),
        _ => {
            // Relative to where the process was when it started; most stay there.
            let start = root.working_directory().map(|(path, _)| path).unwrap_or_default();
            [&start, &b"/"[..], wanted].concat()
        }
    };
    let directory = root.directory(&path, Links::OfRoot).map_err(SocketError::Directory)?;
    let exact = exact_name(status.inner_pid, target.start_time());
    let mut found = Vec::new();
    let mut refused = None;
    let mut keep = |root: &mut Root<'_>, name: &[u8]| -> Result<bool, SocketError> {
        let full = format!("{}/{}", shown(&path).trim_end_matches('/'), shown(name));
        match checked(root, directory.as_fd(), name, full, status) {
            Ok(Some(socket)) => found.push(socket),
            Ok(None) => return Ok(false),
            Err(error @ (SocketError::NotASocket(_) | SocketError::WrongOwner { .. })) => {
                refused = Some(error);
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    };
    if !keep(root, exact.as_bytes())? {
        // In another time namespace, or restored from a checkpoint, it has another key. So have the
        // sockets of dead processes, but those have no listener.
        let candidates = names(directory.as_fd(), status.inner_pid, deadline);
        let listening = if candidates.is_empty() { Vec::new() } else { listening(target)? };
        let listening: HashSet<Vec<u8>> = listening.into_iter().collect();
        let candidates = candidates.iter().filter(|name| listening.contains(*name));
        for name in candidates.take(MAX_CANDIDATES) {
            keep(root, name)?;
        }
    }
    match (found.is_empty(), refused, switches.socket_switched_off()) {
        (false, ..) => Ok(found),
        (true, Some(refused), _) => Err(refused),
        (true, None, Some(variable)) => Err(SocketError::SwitchedOff(variable)),
        (true, None, None) => {
            Err(SocketError::NotFound { directory: shown(&path), inner_pid: status.inner_pid })
        }
    }
}

/// Names in the directory that may be the target's, bounded by number and by time.
fn names(
    directory: std::os::fd::BorrowedFd<'_>,
    inner_pid: u32,
    deadline: Deadline,
) -> Vec<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = openat(directory, ".", flags, Mode::empty()) else { return Vec::new() };
    let Ok(entries) = Dir::new(opened) else { return Vec::new() };
    entries
        .take(MAX_NAMES)
        .take_while(|_| !deadline.has_passed())
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_bytes().to_vec())
        .filter(|name| is_name_of(name, inner_pid))
        .collect()
}

/// File names of the diagnostics sockets that are bound in the target's network namespace.
fn listening(target: &Target) -> Result<Vec<Vec<u8>>, TargetError> {
    let text = target.read("net/unix", MAX_SOCKETS_TEXT)?;
    let names = text.split(|&byte| byte == b'\n').filter_map(|line| {
        let name = line.rsplit(|&byte| byte == b'/').next()?;
        name.starts_with(b"dotnet-diagnostic-").then(|| name.to_vec())
    });
    Ok(names.collect())
}

/// A handle of the node, when it is a socket of a user who may be the target; nothing when there
/// is no such name.
fn checked(
    root: &mut Root<'_>,
    directory: std::os::fd::BorrowedFd<'_>,
    name: &[u8],
    path: String,
    status: &Status,
) -> Result<Option<FoundSocket>, SocketError> {
    let entry = match root.entry(directory, name) {
        Ok(entry) => entry,
        Err(EntryError::Failed(Errno::NOENT)) => return Ok(None),
        Err(EntryError::Failed(Errno::LOOP)) => return Err(SocketError::NotASocket(path)),
        Err(error) => return Err(SocketError::Directory(error.of(path.as_bytes()))),
    };
    if entry.kind != FileType::Socket {
        return Err(SocketError::NotASocket(path));
    }
    // A process that gave up root after its start has a socket of root's.
    if entry.owner != 0 && !status.users.contains(&entry.owner) {
        let (owner, user) = (entry.owner, status.user());
        return Err(SocketError::WrongOwner { name: path, owner, user });
    }
    Ok(Some(FoundSocket { node: entry.handle, path }))
}

impl FoundSocket {
    /// A connection, after the kernel confirmed that the target is at its other end.
    pub fn connect(&self, target: &Target, deadline: Deadline) -> Result<UnixStream, SocketError> {
        let other = |errno| SocketError::Other { name: self.path.clone(), errno };
        let time = deadline.at_most(CONNECT).remaining();
        let time = time.ok_or_else(|| SocketError::Busy(self.path.clone()))?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(other)?;
        // How long `connect` waits for a place in the listener's queue (unix(7), af_unix.c).
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(time)).map_err(other)?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", self.node.as_raw_fd()))
            .map_err(other)?;
        rustix::net::connect(&socket, &address).map_err(|errno| match errno {
            Errno::CONNREFUSED => SocketError::NotListening(self.path.clone()),
            Errno::AGAIN | Errno::INTR => SocketError::Busy(self.path.clone()),
            Errno::ACCESS | Errno::PERM => SocketError::Permission(self.path.clone()),
            errno => other(errno),
        })?;
        let peer = peer_of(&socket).map_err(other)?;
        if u32::try_from(peer) != Ok(target.pid()) || !target.is_alive() {
            let (name, pid) = (self.path.clone(), target.pid());
            return Err(SocketError::WrongPeer { name, peer, pid });
        }
        Ok(socket.into())
    }
}

/// The process that began to listen on a socket's other end, in strata's PID namespace; 0 when it
/// is not in it.
fn peer_of(socket: &OwnedFd) -> Result<i32, Errno> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: `peer` is a ucred that may be written, and `length` is its size. (rustix's own call
    // has no value for a peer outside the namespace.)
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if outcome == 0 {
        Ok(peer.pid)
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

/// Connects to the first of these sockets at which the target listens.
pub fn connect_to_any(
    sockets: &[FoundSocket],
    target: &Target,
    deadline: Deadline,
) -> Result<UnixStream, SocketError> {
    let mut first = None;
    for socket in sockets {
        match socket.connect(target, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => first = first.or(Some(error)),
        }
    }
    let none = SocketError::NotFound { directory: String::new(), inner_pid: 0 };
    Err(first.unwrap_or(none))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_processes_and_other_things_are_left_out() {
        assert_eq!(exact_name(7, 42), "dotnet-diagnostic-7-42-socket");
        assert!(is_name_of(b"dotnet-diagnostic-7-42-socket", 7));
        for other in [
            &b"dotnet-diagnostic-71-42-socket"[..],
            b"dotnet-diagnostic-7--socket",
            b"dotnet-diagnostic-7-42-socket.bak",
            b"dotnet-diagnostic-7-4/2-socket",
            b"clr-debug-pipe-7-42-in",
            b"",
        ] {
            assert!(!is_name_of(other, 7));
        }
    }
}
