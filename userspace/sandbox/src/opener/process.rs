//! `/proc/PID`, pinned so that it stays the same process.
//!
//! A descriptor of `/proc/PID` always refers to the same process: when that ends, every lookup
//! through it fails with ESRCH or ENOENT, also when the pid is given to another. So the start time
//! needs to be compared only once per descriptor, and once for a batch on one process.

use crate::process_text::{Stat, status_field};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;

use super::{Refused, refused};
use crate::error::Refusal;
use crate::living_thread::{is_over, living_thread};
use crate::protocol::ProcessRef;

/// How many processes are held at once.
const HELD: usize = 16;
/// More than `/proc/PID/stat` has before its last `)`.
const STAT_BYTES: usize = 1024;

#[derive(Debug, Default)]
pub struct HeldProcesses {
    recent: VecDeque<(ProcessRef, OwnedFd)>,
}

impl HeldProcesses {
    /// The directory of `process`, after a check that it is the one that was meant.
    pub fn directory(&mut self, process: ProcessRef) -> Result<&OwnedFd, Refused> {
        match self.recent.iter().position(|(held, _)| *held == process) {
            Some(index) => {
                if let Some(entry) = self.recent.remove(index) {
                    self.recent.push_front(entry);
                }
            }
            None => {
                let directory = open_process(process)?;
                self.recent.truncate(HELD.saturating_sub(1));
                self.recent.push_front((process, directory));
            }
        }
        match self.recent.front() {
            Some((_, directory)) => Ok(directory),
            None => Err((Refusal::ProcessGone, 0)),
        }
    }

    /// Drops a process's descriptor that turned out to be of an earlier one.
    pub fn forget(&mut self, process: ProcessRef) {
        self.recent.retain(|(held, _)| *held != process);
    }
}

/// Opens the directory of `process` after a check that it is the one that was meant.
pub fn open_process(process: ProcessRef) -> Result<OwnedFd, Refused> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(format!("/proc/{}", process.pid), flags, Mode::empty()).map_err(
        |errno| match errno {
            Errno::NOENT => (Refusal::ProcessGone, errno.raw_os_error()),
            errno => refused(errno),
        },
    )?;
    let gone = |errno: Errno| (Refusal::ProcessGone, errno.raw_os_error());
    let stat = openat(&directory, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(gone)?;
    let mut buffer = [0; STAT_BYTES];
    let length = rustix::io::read(&stat, &mut buffer).map_err(gone)?;
    let stat = buffer.get(..length).unwrap_or_default();
    if process.start_time.is_some_and(|expected| start_time_of_stat(stat) != Some(expected)) {
        return Err((Refusal::ProcessChanged, 0));
    }
    let state = Stat::parse(stat).and_then(|stat| stat.field(3));
    if !state.is_some_and(is_over) {
        return Ok(directory);
    }
    // Its threads may go on, and the directory of one shows the same files. A process that has been asked
    // for by its start time is there still, as long as one of its threads is.
    let thread = living_thread(process.pid).ok_or((Refusal::ProcessGone, 0))?;
    let directory = open(format!("/proc/{thread}"), flags, Mode::empty()).map_err(refused)?;
    // The thread may have ended since, and its number be another process's.
    if leader_of(&directory).map_err(gone)? == Some(process.pid) {
        Ok(directory)
    } else {
        Err((Refusal::ProcessChanged, 0))
    }
}

/// The process that a thread belongs to, by its directory in `/proc`.
fn leader_of(thread: &OwnedFd) -> Result<Option<u32>, Errno> {
    let status = openat(thread, "status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0; STAT_BYTES];
    let length = rustix::io::read(&status, &mut buffer)?;
    let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
    Ok(status_field(&text, "Tgid").and_then(|tgid| tgid.parse().ok()))
}

/// When a process started, by its `/proc/PID/stat`: in clock ticks since boot.
pub fn start_time_of_stat(stat: &[u8]) -> Option<u64> {
    Stat::parse(stat)?.start_time()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_a_name_with_parentheses() {
        let stat =
            b"7 (a) b) c)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1000 10 184467\n";
        assert_eq!(start_time_of_stat(stat), Some(4242));
        assert_eq!(start_time_of_stat(b"7 (a"), None);
        assert_eq!(start_time_of_stat(b""), None);
    }

    #[test]
    fn another_start_time_is_another_process() {
        let pid = std::process::id();
        let stat = std::fs::read("/proc/self/stat").unwrap();
        let start_time = start_time_of_stat(&stat).unwrap();
        let mut held = HeldProcesses::default();
        assert!(held.directory(ProcessRef { pid, start_time: Some(start_time) }).is_ok());
        assert!(held.directory(ProcessRef { pid, start_time: None }).is_ok());
        let other = ProcessRef { pid, start_time: Some(start_time + 1) };
        assert_eq!(held.directory(other).unwrap_err().0, Refusal::ProcessChanged);
    }
}
