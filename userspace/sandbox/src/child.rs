//! strata's own child processes: started from this executable, killed without waiting, reaped when
//! they have ended.
//!
//! A child may be stuck in the kernel on a file that never answers; SIGKILL does not end it then.
//! Invariant: nothing here ever waits for a child.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};

use crate::channel::Channel;
use crate::error::{ChildKind, Death};
use crate::process_text::{Stat, status_bytes};
use crate::waiting;

/// How a child is started: which executable, and the arguments that make it an opener or a worker.
#[derive(Debug, Clone)]
pub struct ChildCommand {
    pub program: PathBuf,
    /// An opener gets its lane ([`crate::Lane::argument`]) as one more argument.
    pub opener: Vec<OsString>,
    pub worker: Vec<OsString>,
}

impl Default for ChildCommand {
    fn default() -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            opener: vec!["internal-opener".into()],
            worker: vec!["internal-worker".into()],
        }
    }
}

/// The resources that a child uses, or used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub processor_time: Duration,
    /// Resident, with pages shared with others; zero of one that has ended.
    pub memory_bytes: u64,
    pub peak_memory_bytes: u64,
}

impl Usage {
    /// The memory of the calling process.
    pub fn own_memory() -> io::Result<Self> {
        memory_in("/proc/self/status")
    }
}

/// Memory by a file `status` in `/proc`. `ru_maxrss` would not do: a process starts with the peak of
/// the one it was forked from (`setmax_mm_hiwater_rss` in fs/exec.c of Linux 6.12).
fn memory_in(status: &str) -> io::Result<Usage> {
    let status = std::fs::read_to_string(status)?;
    let bytes = |name| status_bytes(&status, name).unwrap_or(0);
    Ok(Usage {
        processor_time: Duration::ZERO,
        memory_bytes: bytes("VmRSS"),
        peak_memory_bytes: bytes("VmHWM"),
    })
}

/// A running (or dying) child.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    exit: OwnedFd,
    pub kind: ChildKind,
}

impl Child {
    /// Starts `program` with `arguments` and gives the daemon's end of its channel, which is the
    /// child's standard input.
    pub fn start(
        kind: ChildKind,
        program: &PathBuf,
        arguments: &[OsString],
    ) -> io::Result<(Self, Channel)> {
        let (ours, theirs) = Channel::pair()?;
        // Its own process group: a Ctrl-C on the terminal is for the daemon, which still needs
        // the child to finish.
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs.into_socket()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(io::ErrorKind::InvalidData)?;
        let exit = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(exit) => exit,
            Err(errno) => {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                return Err(errno.into());
            }
        };
        Ok((Self { pid, exit, kind }, ours))
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Becomes readable when the child has ended.
    pub fn exit_fd(&self) -> BorrowedFd<'_> {
        self.exit.as_fd()
    }

    pub fn kill(&self) {
        // Through the pidfd, so a reused pid is never hit. ESRCH: it has ended already.
        let _ = rustix::process::pidfd_send_signal(&self.exit, Signal::KILL);
    }

    /// How it ended and its processor time, if it has ended.
    pub fn try_reap(&self) -> Option<(Death, Duration)> {
        let mut status: libc::c_int = 0;
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: both pointers are valid for the call; rusage is plain data, valid when zeroed.
        let reaped = unsafe {
            libc::wait4(
                self.pid.as_raw_nonzero().get(),
                &mut status,
                libc::WNOHANG,
                usage.as_mut_ptr(),
            )
        };
        if reaped == 0 {
            return None;
        }
        if reaped < 0 {
            // Another thread reaped it.
            return Some((Death::Unknown, Duration::ZERO));
        }
        // SAFETY: zeroed above, and wait4 wrote it.
        let usage = unsafe { usage.assume_init() };
        Some((death_of_status(status), processor_time_of(&usage)))
    }

    /// Processor time and memory now, from `/proc`.
    pub fn current_usage(&self) -> io::Result<Usage> {
        Ok(Usage { processor_time: self.processor_time()?, ..self.current_memory()? })
    }

    /// Processor time used so far.
    pub fn processor_time(&self) -> io::Result<Duration> {
        let stat = std::fs::read(format!("/proc/{}/stat", self.pid()))?;
        let field = |number| Stat::parse(&stat)?.number(number);
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let used = field(14).unwrap_or(0).saturating_add(field(15).unwrap_or(0));
        Ok(Duration::from_millis(used.saturating_mul(1000) / ticks))
    }

    /// Whether it runs, or waits for a processor and nothing else.
    pub fn is_runnable(&self) -> bool {
        waiting::is_runnable(&self.pid().to_string())
    }

    /// Memory now.
    pub fn current_memory(&self) -> io::Result<Usage> {
        memory_in(&format!("/proc/{}/status", self.pid()))
    }
}

fn death_of_status(status: libc::c_int) -> Death {
    if libc::WIFSIGNALED(status) {
        match libc::WTERMSIG(status) {
            libc::SIGSYS => Death::SandboxViolation,
            // Rust aborts when an allocation fails; the kernel's limit on address space is what
            // lets it fail.
            libc::SIGABRT => Death::OutOfMemory,
            signal => Death::Signal(signal),
        }
    } else {
        Death::Exit(libc::WEXITSTATUS(status))
    }
}

fn processor_time_of(usage: &libc::rusage) -> Duration {
    let time = |value: libc::timeval| {
        Duration::from_secs(u64::try_from(value.tv_sec).unwrap_or(0))
            + Duration::from_micros(u64::try_from(value.tv_usec).unwrap_or(0))
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// The first step of every child: closes inherited descriptors, takes the socket passed as standard
/// input, and asks the kernel to be killed when the daemon dies.
///
/// The daemon's *thread* that started it must live as long as the child is wanted
/// (PR_SET_PDEATHSIG follows the thread).
pub(crate) fn enter(name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    const FIRST_UNWANTED: libc::c_uint = 3;
    // SAFETY: this runs at the start of a process that has opened nothing of its own beyond the
    // three standard descriptors.
    if unsafe { libc::syscall(libc::SYS_close_range, FIRST_UNWANTED, libc::c_uint::MAX, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: dup gives a descriptor of its own; fd 0 is open or the call fails.
    let socket: RawFd = unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, FIRST_UNWANTED) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, without another owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let _ = rustix::thread::set_name(name);
    Ok(socket)
}
