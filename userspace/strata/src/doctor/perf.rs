//! perf events: the clock of the samples, the events about processes, their limits.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use strata_agent::kernel::perf_event::{needs_administration, try_probes};

use super::environment::{Capability, Environment, setting};
use super::line::{Group, Line};
use super::parse;
use super::permissions::paranoia;

const GROUP: Group = Group::Perf;

/// Samples a second and CPU, unless asked otherwise.
const FREQUENCY: u64 = 97;
/// Frequencies up to here are usual.
const HIGH_FREQUENCY: i64 = 1000;
/// Frames of the kernel that strata asks for.
const KERNEL_FRAMES: i64 = 127;

pub fn lines(environment: &Environment) -> Vec<Line> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpu = parse::first_cpu(&online).unwrap_or(0);
    let clock = open(&Attributes::cpu_clock(), cpu);
    let opened = clock.is_ok();
    let mut lines = vec![match clock {
        Ok(_) => {
            let cpus = parse::count_cpus(&online);
            Line::ok(GROUP, "cpu-clock", format!("can be sampled on every CPU ({cpus} online)"))
        }
        Err(error) => refused(environment, "cpu-clock", &error),
    }];
    lines.push(match open(&Attributes::process_events(), cpu) {
        Ok(_) => Line::ok(GROUP, "process events", "mmap, comm, fork, exit; no mounts needed"),
        Err(error) => refused(environment, "process events", &error),
    });
    if opened {
        lines.push(cycles(cpu));
    }
    lines.push(probes(environment));
    lines.extend(limits(environment));
    lines
}

/// Probes of .NET processes, by which their events have whole stacks.
fn probes(environment: &Environment) -> Line {
    const NAME: &str = "uprobes";
    const LOST: &str = "kernel and native frames of events of .NET programs (exceptions, locks, …): \
                        their runtime walks the stacks, managed frames only";
    let degraded = |found: String, fix: String| Line::degraded(GROUP, NAME, found, LOST, fix);
    let Err(error) = try_probes() else {
        return Line::ok(GROUP, NAME, "events of .NET programs have whole stacks");
    };
    match error.raw_os_error() {
        Some(libc::ENOENT) => degraded(
            "this kernel has no uprobe PMU".to_owned(),
            "boot a kernel built with CONFIG_UPROBE_EVENTS=y".to_owned(),
        ),
        Some(libc::EPERM | libc::EACCES) if !environment.has(Capability::SYS_ADMIN) => degraded(
            "not permitted without CAP_SYS_ADMIN".to_owned(),
            environment.privilege_fix(&[Capability::SYS_ADMIN]),
        ),
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) if environment.filtered => degraded(
            format!("blocked by a seccomp filter ({error})"),
            environment.filter_fix().to_string(),
        ),
        _ => degraded(
            format!("refused in spite of CAP_SYS_ADMIN ({error})"),
            "see dmesg and the audit log for the denial".to_owned(),
        ),
    }
}

fn refused(environment: &Environment, name: &'static str, error: &io::Error) -> Line {
    let allowed = environment.has(Capability::PERFMON) || environment.has(Capability::SYS_ADMIN);
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) if environment.filtered && allowed => Line::missing(
            GROUP,
            name,
            "perf_event_open is blocked by a seccomp filter",
            environment.filter_fix(),
        ),
        Some(libc::ENOSYS) => Line::missing(
            GROUP,
            name,
            "this kernel has no perf_event_open",
            "boot a kernel built with CONFIG_PERF_EVENTS=y",
        ),
        Some(libc::EPERM | libc::EACCES) if !allowed => Line::missing(
            GROUP,
            name,
            format!("not permitted without CAP_PERFMON ({})", paranoia()),
            environment.privilege_fix(&[Capability::PERFMON]),
        ),
        Some(libc::EPERM | libc::EACCES)
            if needs_administration() && !environment.has(Capability::SYS_ADMIN) =>
        {
            Line::missing(
                GROUP,
                name,
                format!("not permitted without CAP_SYS_ADMIN ({})", paranoia()),
                environment.privilege_fix(&[Capability::SYS_ADMIN]),
            )
        }
        Some(libc::EPERM | libc::EACCES) => Line::missing(
            GROUP,
            name,
            format!("refused in spite of CAP_PERFMON: by lockdown or a security module ({error})"),
            "see dmesg and the audit log for the denial",
        ),
        Some(libc::EMFILE) => Line::missing(GROUP, name, error.to_string(), "ulimit -n 65536"),
        _ => Line::missing(GROUP, name, error.to_string(), environment.as_root("dmesg | tail")),
    }
}

fn cycles(cpu: u32) -> Line {
    match open(&Attributes::cycles(), cpu) {
        Ok(_) => Line::ok(GROUP, "hardware cycles", "there (strata samples by cpu-clock)"),
        Err(_) => {
            Line::ok(GROUP, "hardware cycles", "none; not needed, strata samples by cpu-clock")
        }
    }
}

fn limits(environment: &Environment) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(rate) = setting("kernel/perf_event_max_sample_rate") {
        let name = "sample rate";
        let fix = || environment.as_root("sysctl -w kernel.perf_event_max_sample_rate=100000");
        let found = format!("at most {rate} Hz (kernel.perf_event_max_sample_rate)");
        lines.push(if rate < FREQUENCY as i64 {
            Line::missing(GROUP, name, found, fix())
        } else if rate < HIGH_FREQUENCY {
            Line::degraded(GROUP, name, found, format!("--frequency above {rate}"), fix())
        } else {
            Line::ok(GROUP, name, found + &throttling())
        });
    }
    if let Some(frames) = setting("kernel/perf_event_max_stack")
        && frames < KERNEL_FRAMES
    {
        lines.push(Line::degraded(
            GROUP,
            "kernel stacks",
            format!("at most {frames} frames (kernel.perf_event_max_stack)"),
            "the outer frames of deeper kernel stacks",
            environment.as_root("sysctl -w kernel.perf_event_max_stack=127"),
        ));
    }
    lines
}

/// The kernel lowers the rate by itself when sampling takes more of a CPU than this.
fn throttling() -> String {
    match setting("kernel/perf_cpu_time_max_percent") {
        Some(percent @ 1..=99) => {
            format!(", lowered by the kernel when it takes {percent} % of a CPU")
        }
        _ => String::new(),
    }
}

/// The head of `struct perf_event_attr` (PERF_ATTR_SIZE_VER0): include/uapi/linux/perf_event.h.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

impl Attributes {
    const HARDWARE: u32 = 0;
    const SOFTWARE: u32 = 1;
    const DISABLED: u64 = 1;
    const FREQUENCY: u64 = 1 << 10;

    fn new(kind: u32, config: u64, flags: u64) -> Self {
        let frequency = if flags & Self::FREQUENCY == 0 { 0 } else { FREQUENCY };
        Self {
            kind,
            size: size_of::<Self>() as u32,
            config,
            frequency,
            sample_type: 0,
            read_format: 0,
            flags: flags | Self::DISABLED,
            wakeup: 0,
            breakpoint: 0,
            config1: 0,
        }
    }

    fn cpu_clock() -> Self {
        Self::new(Self::SOFTWARE, 0, Self::FREQUENCY)
    }

    fn cycles() -> Self {
        Self::new(Self::HARDWARE, 0, Self::FREQUENCY)
    }

    /// A dummy event with mmap, comm, task, mmap2 and comm_exec records.
    fn process_events() -> Self {
        Self::new(Self::SOFTWARE, 9, 1 << 8 | 1 << 9 | 1 << 13 | 1 << 23 | 1 << 24)
    }
}

/// Opens a disabled event for all processes on one CPU.
fn open(attributes: &Attributes, cpu: u32) -> io::Result<OwnedFd> {
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
    // SAFETY: a valid attribute block that contains its own length; the result is checked.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attributes),
            -1 as libc::c_long,
            libc::c_long::from(cpu),
            -1 as libc::c_long,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner; descriptors fit 32 bits.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
