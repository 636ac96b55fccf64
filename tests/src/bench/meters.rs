//! CPU time and memory of a process with its children, and CPU time of the host, as the kernel counts
//! them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// Reads a process and its children again and again; remembers those that have ended.
#[derive(Default)]
pub struct ProcessMeter {
    pid: i32,
    cpu_by_pid: BTreeMap<i32, u64>,
    pub peak_rss: u64,
}

impl ProcessMeter {
    pub fn of(pid: i32) -> Self {
        Self { pid, ..Self::default() }
    }

    /// Reads CPU times; cheap enough to do ten times a second.
    pub fn read_cpu(&mut self) {
        for pid in self.family() {
            if let Some(nanoseconds) = cpu_nanoseconds(pid) {
                self.cpu_by_pid.insert(pid, nanoseconds);
            }
        }
    }

    /// Reads memory: walks page tables, so only about once a second.
    pub fn read_memory(&mut self) {
        let total = self.family().iter().map(|pid| resident_without_bpf_maps(*pid)).sum();
        self.peak_rss = self.peak_rss.max(total);
    }

    /// CPU seconds of all of them at the last reading.
    pub fn cpu_seconds(&self) -> f64 {
        self.cpu_by_pid.values().sum::<u64>() as f64 / 1e9
    }

    /// The process, its children and theirs.
    fn family(&self) -> Vec<i32> {
        let mut family = vec![self.pid];
        let mut at = 0;
        while let Some(&pid) = family.get(at) {
            at += 1;
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for task in tasks.flatten() {
                let children =
                    std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
                family.extend(children.split_whitespace().filter_map(|c| c.parse::<i32>().ok()));
            }
        }
        family
    }
}

/// The CPU clock of another process: all its threads, to the nanosecond, ended threads too.
fn cpu_nanoseconds(pid: i32) -> Option<u64> {
    // CPUCLOCK_SCHED of a process: include/linux/posix-timers_types.h
    let clock = (!pid << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec that lives on this stack; a wrong clock is an error, no more.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    let nanoseconds = time.tv_sec.checked_mul(1_000_000_000)?.checked_add(time.tv_nsec)?;
    if result == 0 { u64::try_from(nanoseconds).ok() } else { None }
}

/// Resident bytes without the pages of BPF maps, which are counted with the maps.
fn resident_without_bpf_maps(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut is_bpf_map = false;
    let mut kilobytes = 0u64;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let size =
                rest.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            kilobytes += if is_bpf_map { 0 } else { size };
        } else if line.split('-').next().is_some_and(|w| u64::from_str_radix(w, 16).is_ok()) {
            is_bpf_map = line.contains("bpf-map") || line.contains("bpf_ringbuf");
        }
    }
    kilobytes << 10
}

/// How long all CPUs have worked, of how long they were there.
pub struct HostBusy {
    worked: u64,
    all: u64,
}

impl HostBusy {
    pub fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("an empty /proc/stat")?;
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let all = ticks.iter().take(8).sum::<u64>();
        let idle = ticks.iter().skip(3).take(2).sum::<u64>();
        Ok(Self { worked: all - idle, all })
    }

    pub fn percent_since(&self) -> Result<f64> {
        let now = Self::now()?;
        Ok(100.0 * (now.worked - self.worked) as f64 / (now.all - self.all).max(1) as f64)
    }
    /// CPU seconds that all programs have used since.
    pub fn seconds_since(&self) -> Result<f64> {
        let ticks = Self::now()?.worked - self.worked;
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}
