//! The threads of a process that have no stack in the answer, and why.
//!
//! Invariant: each is counted under one reason, by its state right after the walk.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use strata_sandbox::process_text::Stat;

use super::last_run::CpuClocks;
use crate::terminal::counted;

/// A process as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessKind {
    Usual,
    /// A thread of the kernel: a process without memory.
    Kernel,
    /// It has ended, and its parent has not read its exit status.
    Zombie,
    /// Not there any more.
    Gone,
}

impl ProcessKind {
    pub fn of(pid: u32) -> Self {
        let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { return Self::Gone };
        match Stat::parse(&stat) {
            Some(stat) if stat.is_kernel_thread() => Self::Kernel,
            // A main thread may end before the others.
            Some(stat) if is_ended(state_of(&stat)) && threads_of(pid).len() < 2 => Self::Zombie,
            _ => Self::Usual,
        }
    }
}

fn state_of(stat: &Stat<'_>) -> char {
    stat.field(3).and_then(|state| state.chars().next()).unwrap_or('?')
}

fn is_ended(state: char) -> bool {
    matches!(state, 'Z' | 'X')
}

fn threads_of(pid: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.collect()
}

/// The states of all threads of processes, at the moment of a walk.
pub struct States {
    of: BTreeMap<u32, BTreeMap<u32, State>>,
}

/// What a thread did.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// The letter of `/proc/PID/task/TID/stat`.
    pub letter: char,
    /// Time since it left the CPU, where the kernel provides it.
    pub since: Option<Duration>,
    /// It has run since the walk began.
    has_run: bool,
}

impl States {
    /// Reads them; the walk began at `walked`.
    pub fn read(pids: &BTreeSet<u32>, walked: Instant) -> Self {
        let mut clocks = CpuClocks::new();
        let mut state = |pid, tid| {
            let stat = std::fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
            let letter = state_of(&Stat::parse(&stat)?);
            let since = clocks.since_last_run(pid, tid);
            let has_run = since.is_some_and(|since| since <= walked.elapsed());
            Some((tid, State { letter, since, has_run }))
        };
        let mut states =
            |pid: u32| threads_of(pid).into_iter().filter_map(|tid| state(pid, tid)).collect();
        Self { of: pids.iter().map(|pid| (*pid, states(*pid))).collect() }
    }

    /// What a thread did when it was walked.
    pub fn of_thread(&self, pid: u32, tid: u32) -> Option<State> {
        self.of.get(&pid)?.get(&tid).copied()
    }

    /// Why the threads of a process have no stack that are not among the `shown`.
    pub fn not_shown(&self, pid: u32, shown: &BTreeSet<u32>) -> NotShown {
        let mut not_shown = NotShown { pid, shown: shown.len() as u64, ..NotShown::default() };
        let is_refused = is_refused(pid);
        for (tid, state) in self.of.get(&pid).into_iter().flatten() {
            if shown.contains(tid) {
                continue;
            }
            *match state.letter {
                'Z' | 'X' => &mut not_shown.ended,
                'R' => &mut not_shown.running,
                _ if is_refused => &mut not_shown.refused,
                _ if state.has_run => &mut not_shown.running,
                _ => &mut not_shown.unread,
            } += 1;
        }
        not_shown
    }
}

/// Whether strata may not read a process's memory: in some containers not even as root.
fn is_refused(pid: u32) -> bool {
    let opened = std::fs::File::open(format!("/proc/{pid}/maps"));
    opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Threads without a stack in the answer, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotShown {
    pid: u32,
    shown: u64,
    running: u64,
    ended: u64,
    /// Of a process that strata may not read.
    refused: u64,
    unread: u64,
}

impl NotShown {
    /// A line for each reason.
    pub fn lines(&self) -> Vec<String> {
        let pid = self.pid;
        let threads = |count| match self.shown {
            0 => counted(count, "thread"),
            _ => counted(count, "more thread"),
        };
        let line =
            |count, text: &dyn Fn(String) -> String| (count > 0).then(|| text(threads(count)));
        let have = |count| if count == 1 { "has" } else { "have" };
        [
            line(self.running, &|threads| {
                let are = if self.running == 1 { "is" } else { "are" };
                format!(
                    "{threads} ran at that moment and {are} not shown: `strata record --pid {pid}` \
                     shows running code"
                )
            }),
            line(self.ended, &|threads| format!("{threads} {} ended", have(self.ended))),
            line(self.refused, &|threads| {
                format!(
                    "{threads} could not be read: /proc/{pid}/maps may not be opened (Permission \
                     denied)"
                )
            }),
            line(self.unread, &|threads| {
                format!("{threads} did not run and could not be read at that moment")
            }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// What is shown of a process that has no stacks at all.
pub fn without_stacks(pid: u32, kind: ProcessKind) -> Option<String> {
    let what = match kind {
        ProcessKind::Usual => return None,
        ProcessKind::Kernel => &format!(
            "is a kernel thread and has no user stack: `cat /proc/{pid}/stack` shows its own"
        ),
        ProcessKind::Zombie => "has ended: a zombie until its parent reads its exit status",
        ProcessKind::Gone => "has ended",
    };
    Some(format!("process {pid} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted_under_the_reason_of_their_state() {
        let own = std::process::id();
        let of = [(1, 'S'), (2, 'R'), (3, 'Z'), (4, 'R')];
        let of = of.map(|(tid, letter)| (tid, State { letter, since: None, has_run: false }));
        let states = States { of: [(own, of.into())].into() };
        let lines = states.not_shown(own, &[1].into()).lines();
        let running = format!(
            "2 more threads ran at that moment and are not shown: `strata record --pid {own}` shows \
             running code"
        );
        assert_eq!(lines, [running, "1 more thread has ended".to_owned()]);
        let refused = NotShown { pid: 7, refused: 14, ..NotShown::default() };
        assert_eq!(
            refused.lines(),
            ["14 threads could not be read: /proc/7/maps may not be opened (Permission denied)"]
        );
        assert!(NotShown::default().lines().is_empty());
    }

    #[test]
    fn a_thread_that_runs_is_running() {
        let own = std::process::id();
        // SAFETY: no preconditions.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        let states = States::read(&[own].into(), Instant::now());
        assert_eq!(states.of_thread(own, tid).map(|state| state.letter), Some('R'));
        assert!(states.of_thread(own, u32::MAX).is_none());
    }

    #[test]
    fn kernel_threads_zombies_and_processes_that_are_gone_are_told_apart() {
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        let pid = child.id();
        let begun = Instant::now();
        while ProcessKind::of(pid) != ProcessKind::Zombie {
            assert!(begun.elapsed().as_secs() < 60, "{:?}", ProcessKind::of(pid));
            std::thread::yield_now();
        }
        child.wait().expect("it is a child");
        assert_eq!(ProcessKind::of(pid), ProcessKind::Gone);
        assert_eq!(ProcessKind::of(std::process::id()), ProcessKind::Usual);
        // In a container's own pid namespace there is none.
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
            assert_eq!(ProcessKind::of(2), ProcessKind::Kernel);
        }
    }
}
