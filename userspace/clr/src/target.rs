//! A process, pinned by its directory in `/proc` so that it stays the same process, and what the
//! kernel knows about it. Everything here is answered by the kernel alone and cannot hang.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use strata_sandbox::opening::{open_process, start_time_of_stat};
use strata_sandbox::{ProcessRef, Refusal};

/// More than `stat` and `status` ever have, but for a process in very many groups.
const MAX_TEXT: usize = 256 << 10;

/// Why a process could not be examined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("process {0} is gone")]
    Gone(u32),
    #[error("pid {0} belongs to another process by now")]
    Changed(u32),
    #[error(
        "no permission to look into process {0}: strata needs root or CAP_SYS_PTRACE in the host's user namespace"
    )]
    Permission(u32),
    #[error("/proc/{pid}/{name} cannot be read: {errno}")]
    Unreadable { pid: u32, name: String, errno: Errno },
    #[error("/proc/{pid}/{name} has not the form this version of strata knows")]
    Malformed { pid: u32, name: &'static str },
}

/// One process.
#[derive(Debug)]
pub struct Target {
    pid: u32,
    start_time: u64,
    directory: OwnedFd,
}

impl Target {
    /// The process that has this pid now.
    pub fn open(pid: u32) -> Result<Self, TargetError> {
        Self::open_checked(ProcessRef { pid, start_time: None })
    }

    /// This process, and no other that got its pid.
    pub fn open_checked(process: ProcessRef) -> Result<Self, TargetError> {
        let pid = process.pid;
        let directory = open_process(process).map_err(|(refusal, errno)| match refusal {
            Refusal::ProcessGone | Refusal::NotFound => TargetError::Gone(pid),
            Refusal::ProcessChanged => TargetError::Changed(pid),
            Refusal::Permission => TargetError::Permission(pid),
            _ => {
                let errno = Errno::from_raw_os_error(errno);
                TargetError::Unreadable { pid, name: String::new(), errno }
            }
        })?;
        let mut target = Self { pid, start_time: 0, directory };
        let stat = target.read("stat", MAX_TEXT)?;
        target.start_time =
            start_time_of_stat(&stat).ok_or(TargetError::Malformed { pid, name: "stat" })?;
        Ok(target)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Field 22 of `/proc/PID/stat`, in clock ticks since boot.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    pub fn reference(&self) -> ProcessRef {
        ProcessRef { pid: self.pid, start_time: Some(self.start_time) }
    }

    /// How long ago it started. Nothing in a time namespace of another epoch.
    pub fn age(&self) -> Option<Duration> {
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let started = Duration::from_secs(self.start_time / ticks)
            + Duration::from_millis(self.start_time % ticks * 1000 / ticks);
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let now = Duration::try_from(now).ok()?;
        now.checked_sub(started)
    }

    /// Another handle of the same process.
    pub fn try_clone(&self) -> Result<Self, TargetError> {
        let directory = rustix::io::fcntl_dupfd_cloexec(&self.directory, 0)
            .map_err(|errno| self.error("", errno))?;
        Ok(Self { pid: self.pid, start_time: self.start_time, directory })
    }

    /// Whether it has not ended. A zombie has.
    pub fn is_alive(&self) -> bool {
        let Ok(stat) = self.read("stat", MAX_TEXT) else { return false };
        let after_name = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at..));
        let state = after_name.and_then(|rest| rest.get(2));
        !matches!(state, None | Some(b'Z' | b'X'))
    }

    pub(crate) fn open_file(&self, name: &str) -> Result<OwnedFd, TargetError> {
        openat(&self.directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| self.error(name, errno))
    }

    /// A directory that the process has: `root` or `cwd`. Nothing of it is opened.
    pub(crate) fn open_link(&self, name: &str) -> Result<OwnedFd, TargetError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.directory, name, flags, Mode::empty()).map_err(|errno| self.error(name, errno))
    }

    /// The content of a link of the process, as bytes.
    pub(crate) fn read_link(&self, name: &str) -> Result<Vec<u8>, TargetError> {
        readlinkat(&self.directory, name, Vec::new())
            .map(|text| text.into_bytes())
            .map_err(|errno| self.error(name, errno))
    }

    /// A small file, truncated at `limit`.
    pub(crate) fn read(&self, name: &str, limit: usize) -> Result<Vec<u8>, TargetError> {
        let file = self.open_file(name)?;
        read_to(file.as_fd(), limit).map_err(|errno| self.error(name, errno))
    }

    /// Its user, groups and innermost pid.
    pub fn status(&self) -> Result<Status, TargetError> {
        let text = self.read("status", MAX_TEXT)?;
        Status::parse(&text).ok_or(TargetError::Malformed { pid: self.pid, name: "status" })
    }

    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    pub(crate) fn error(&self, name: &str, errno: Errno) -> TargetError {
        match errno {
            Errno::SRCH | Errno::NOENT => TargetError::Gone(self.pid),
            Errno::ACCESS | Errno::PERM => TargetError::Permission(self.pid),
            errno => TargetError::Unreadable { pid: self.pid, name: name.to_owned(), errno },
        }
    }
}

pub(crate) fn read_to(file: BorrowedFd<'_>, limit: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 8 << 10];
    while bytes.len() < limit {
        match rustix::io::read(file, &mut chunk) {
            Ok(0) => break,
            Ok(length) => bytes.extend(chunk.iter().take(length.min(limit - bytes.len()))),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(bytes)
}

/// A process's credentials, in the ids of strata's own namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Real, effective, saved and filesystem user.
    pub users: [u32; 4],
    /// Real, effective, saved and filesystem group.
    pub groups: [u32; 4],
    pub further_groups: Vec<u32>,
    /// Its pid in its innermost PID namespace: the one it knows itself by.
    pub inner_pid: u32,
}

impl Status {
    /// Reads `/proc/PID/status`. The name in its first line has newlines escaped (`string_escape`
    /// in fs/proc/array.c), so no process can add lines of its own.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (mut users, mut groups, mut further_groups, mut inner_pid) = (None, None, None, None);
        for line in text.split(|&byte| byte == b'\n') {
            let Some((name, values)) =
                std::str::from_utf8(line).ok().and_then(|line| line.split_once(':'))
            else {
                continue;
            };
            let mut numbers = values.split_ascii_whitespace().map(str::parse::<u32>);
            match name {
                "Uid" => users = four(numbers),
                "Gid" => groups = four(numbers),
                "Groups" => further_groups = numbers.collect::<Result<Vec<_>, _>>().ok(),
                "NSpid" => inner_pid = numbers.next_back()?.ok(),
                _ => {}
            }
        }
        Some(Self {
            users: users?,
            groups: groups?,
            further_groups: further_groups.unwrap_or_default(),
            inner_pid: inner_pid?,
        })
    }

    /// The user that owns what the process makes.
    pub fn user(&self) -> u32 {
        let [_, _, _, filesystem] = self.users;
        filesystem
    }

    /// The group that owns what the process makes.
    pub fn group(&self) -> u32 {
        let [_, _, _, filesystem] = self.groups;
        filesystem
    }
}

fn four<E>(mut numbers: impl Iterator<Item = Result<u32, E>>) -> Option<[u32; 4]> {
    let mut next = || numbers.next()?.ok();
    Some([next()?, next()?, next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_pid_is_the_last_of_the_line() {
        let text = b"Name:\tdotnet\nUid:\t1000\t1001\t1002\t1003\nGid:\t5\t6\t7\t8\n\
                     Groups:\t4 24 27 \nNSpid:\t4242\t17\t1\n";
        let status = Status::parse(text).unwrap();
        assert_eq!(status.inner_pid, 1);
        assert_eq!((status.user(), status.group()), (1003, 8));
        assert_eq!(status.further_groups, [4, 24, 27]);
        assert_eq!(Status::parse(b"Uid:\t1\t2\t3\n"), None);
        assert_eq!(Status::parse(b"\xff:\n:\n"), None);
    }

    #[test]
    fn this_process_is_itself_and_alive() {
        let target = Target::open(std::process::id()).unwrap();
        assert!(target.is_alive() && target.start_time() > 0);
        assert!(target.age().is_some_and(|age| age < Duration::from_secs(3600)));
        assert_eq!(target.status().unwrap().inner_pid, std::process::id());
        assert!(Target::open_checked(target.reference()).is_ok());
        let other = ProcessRef { start_time: Some(1), ..target.reference() };
        assert_eq!(
            Target::open_checked(other).unwrap_err(),
            TargetError::Changed(std::process::id())
        );
    }

    #[test]
    fn a_process_that_ended_is_gone_and_not_another() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        assert!(target.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!target.is_alive());
        assert_eq!(target.read("maps", 100), Err(TargetError::Gone(child.id())));
    }
}
