//! The kernel's accounting of BPF programs and maps, by bpf(2) and /proc/self/fdinfo: run time, run
//! count and memory of everything loaded since a snapshot.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};

const PROG_GET_NEXT_ID: u32 = 11; // enum bpf_cmd, include/uapi/linux/bpf.h
const MAP_GET_NEXT_ID: u32 = 12;
const PROG_GET_FD_BY_ID: u32 = 13;
const MAP_GET_FD_BY_ID: u32 = 14;
const PERF_EVENT_PROGRAM: u64 = 7; // enum bpf_prog_type
const TRACING_PROGRAM: u64 = 26;
/// That of uprobes, too.
const KPROBE_PROGRAM: u64 = 2;

/// bpf(2), with an attribute block of 64-bit words, zero-filled to the size newer kernels know.
pub fn bpf(command: u32, attribute: &mut [u64; 16]) -> std::io::Result<i64> {
    // SAFETY: the block is larger than every field these commands read or write, and lives through
    // the call; pointers in it are the callers' business and point to live buffers.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, attribute.as_mut_ptr(), size_of_val(attribute) as u32)
    };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}

/// A descriptor that a bpf(2) command made.
pub fn new_descriptor(command: u32, attribute: &mut [u64; 16]) -> std::io::Result<OwnedFd> {
    let descriptor = bpf(command, attribute)?;
    let descriptor = i32::try_from(descriptor).map_err(std::io::Error::other)?;
    // SAFETY: the kernel just made this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn ids(next: u32) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let mut id = 0u64;
    loop {
        let mut attribute = [0u64; 16];
        attribute[0] = id; // start_id, then next_id in the upper half
        if bpf(next, &mut attribute).is_err() {
            return found;
        }
        id = attribute[0] >> 32;
        found.insert(id);
    }
}

/// The ids of everything loaded.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    programs: BTreeSet<u64>,
    maps: BTreeSet<u64>,
}

/// What runs of programs cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs {
    pub nanoseconds: u64,
    pub count: u64,
}

/// What is loaded now.
pub fn loaded() -> Loaded {
    Loaded { programs: ids(PROG_GET_NEXT_ID), maps: ids(MAP_GET_NEXT_ID) }
}

impl Loaded {
    /// What is loaded now and was not then.
    pub fn since(before: &Self) -> Self {
        let now = loaded();
        Self {
            programs: now.programs.difference(&before.programs).copied().collect(),
            maps: now.maps.difference(&before.maps).copied().collect(),
        }
    }

    /// Run time and count of the samplers (programs for perf events) among it.
    pub fn sampler_runs(&self) -> Runs {
        self.runs_of(PERF_EVENT_PROGRAM)
    }

    /// The same of programs for tracepoints by the kernel's types.
    pub fn tracing_runs(&self) -> Runs {
        self.runs_of(TRACING_PROGRAM)
    }

    /// The same of programs for uprobes, at which events of the CLR stop.
    pub fn event_runs(&self) -> Runs {
        self.runs_of(KPROBE_PROGRAM)
    }

    fn runs_of(&self, program_type: u64) -> Runs {
        let mut runs = Runs::default();
        for info in self.programs.iter().filter_map(|id| fdinfo(PROG_GET_FD_BY_ID, *id).ok()) {
            if info.number("prog_type") == Some(program_type) {
                runs.nanoseconds += info.number("run_time_ns").unwrap_or(0);
                runs.count += info.number("run_cnt").unwrap_or(0);
            }
        }
        runs
    }

    /// Bytes of the maps among it.
    pub fn map_bytes(&self) -> u64 {
        let infos = self.maps.iter().filter_map(|id| fdinfo(MAP_GET_FD_BY_ID, *id).ok());
        infos.filter_map(|info| info.number("memlock")).sum()
    }
}

/// `name:\tvalue` lines.
pub struct FdInfo(String);

impl FdInfo {
    /// The kernel's `fdinfo` of a descriptor of this process.
    pub fn of(descriptor: &OwnedFd) -> Result<Self> {
        let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        Ok(Self(std::fs::read_to_string(path)?))
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        let line = self.0.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    }
}

fn fdinfo(command: u32, id: u64) -> Result<FdInfo> {
    let mut attribute = [0u64; 16];
    attribute[0] = id;
    FdInfo::of(&new_descriptor(command, &mut attribute).context("a BPF object that is gone")?)
}

/// Switches the kernel's counting of BPF run times on, and back when dropped.
pub struct RunTimes {
    before: String,
}

const SYSCTL: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl RunTimes {
    pub fn counted() -> Result<Self> {
        let before = std::fs::read_to_string(SYSCTL)?;
        std::fs::write(SYSCTL, "1").context("counting BPF run times")?;
        Ok(Self { before })
    }
}

impl Drop for RunTimes {
    fn drop(&mut self) {
        let _ = std::fs::write(SYSCTL, &self.before);
    }
}
