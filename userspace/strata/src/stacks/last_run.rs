//! When threads ran last, by the scheduler's clock of each CPU.
//!
//! These clocks leave out interrupts and time stolen by a hypervisor, so those of two CPUs differ by
//! seconds after some hours. A thread's time is compared with the clock of the CPU it ran on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::process_files;

/// Reads the CPUs' clocks by running on each, and returns to the CPUs it was allowed.
pub struct CpuClocks {
    allowed: Option<CpuSet>,
    /// `None`: this process may not run on that CPU.
    clocks: HashMap<usize, Option<(Duration, Instant)>>,
}

impl CpuClocks {
    pub fn new() -> Self {
        Self { allowed: sched_getaffinity(None).ok(), clocks: HashMap::new() }
    }

    /// How long ago a thread left the CPU, where the kernel provides it (`se.exec_start` of
    /// kernel/sched/debug.c, a build option).
    pub fn since_last_run(&mut self, pid: u32, tid: u32) -> Option<Duration> {
        let folder = format!("/proc/{pid}/task/{tid}");
        let cpu = last_cpu(&process_files::text(format!("{folder}/stat")).ok()?)?;
        let then = exec_start(&format!("{folder}/sched"))?;
        let (clock, read) = (*self.clocks.entry(cpu).or_insert_with(|| clock_of(cpu)))?;
        // It may have run after the clock was read.
        Some((clock + read.elapsed()).saturating_sub(then))
    }
}

impl Drop for CpuClocks {
    fn drop(&mut self) {
        if let Some(allowed) = &self.allowed {
            // It was allowed before.
            let _ = sched_setaffinity(None, allowed);
        }
    }
}

fn clock_of(cpu: usize) -> Option<(Duration, Instant)> {
    if cpu >= CpuSet::MAX_CPU {
        return None;
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).ok()?;
    // The thread has just been put on this CPU: its time is now.
    Some((exec_start("/proc/thread-self/sched")?, Instant::now()))
}

/// The CPU that a thread ran on last, of the text of its `stat`.
fn last_cpu(stat: &str) -> Option<usize> {
    // The name before it may contain anything; the state after it is field 3, the CPU field 39.
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(39 - 3)?.parse().ok()
}

fn exec_start(path: &str) -> Option<Duration> {
    let text = process_files::text(path).ok()?;
    let line = text.lines().find(|line| line.starts_with("se.exec_start"))?;
    let milliseconds: f64 = line.rsplit_once(':')?.1.trim().parse().ok()?;
    // The scheduler sets it to 0 when it moves a thread that waits to another CPU.
    Duration::try_from_secs_f64(milliseconds / 1e3).ok().filter(|start| !start.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_has_waited_as_long_as_it_did() {
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::spawn(move || {
            // SAFETY: a call without preconditions.
            send.send(unsafe { libc::gettid() }).unwrap();
            let _ = ended.recv();
        });
        let tid = u32::try_from(receive.recv().unwrap()).unwrap();
        let begun = Instant::now();
        std::thread::sleep(Duration::from_millis(200));
        let mut clocks = CpuClocks::new();
        let first = clocks.since_last_run(std::process::id(), tid);
        let most = begun.elapsed();
        drop(end);
        waiting.join().unwrap();
        // Where the kernel provides it. The thread's switch to its wait may come late.
        let Some(first) = first else { return };
        assert!(first <= most + Duration::from_millis(50), "{first:?} of {most:?}");
    }

    #[test]
    fn the_cpu_of_a_thread_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 5 6 7 8 9 10 11 12 13 14 \
                    15 16 17 18 19 20 17 3 0 0 0 0 0";
        assert_eq!(last_cpu(stat), Some(3));
    }
}
