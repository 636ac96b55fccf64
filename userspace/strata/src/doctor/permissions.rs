//! The permissions of this process: capabilities, `/proc`, limits.

use std::fs;

use super::environment::{Capability, Environment, setting};
use super::line::{Group, Line};
use super::parse;

const GROUP: Group = Group::Permissions;

/// A capability, or one of several that do.
struct Need {
    /// The narrowest first.
    any_of: &'static [Capability],
    /// What is lost without it; nothing is recorded without those that say nothing.
    lost: Option<&'static str>,
}

const NEEDS: &[Need] = &[
    Need { any_of: &[Capability::BPF, Capability::SYS_ADMIN], lost: None },
    Need { any_of: &[Capability::PERFMON, Capability::SYS_ADMIN], lost: None },
    Need {
        any_of: &[Capability::SYS_PTRACE],
        lost: Some("unwind rules and symbols of other users' processes"),
    },
    Need {
        any_of: &[Capability::CHECKPOINT_RESTORE, Capability::SYS_ADMIN],
        lost: Some("unwind rules and symbols of deleted and replaced files"),
    },
    Need {
        any_of: &[Capability::SYS_ADMIN],
        lost: Some(
            "kernel and native frames of events of .NET processes (exceptions, locks, …): their \
             runtime walks the stacks, managed frames only; and what BPF programs cost",
        ),
    },
    Need {
        any_of: &[Capability::SYSLOG],
        lost: Some("trimming of off-CPU stacks: they begin with the sampler's own frames"),
    },
    Need {
        any_of: &[Capability::DAC_READ_SEARCH, Capability::DAC_OVERRIDE],
        lost: Some("unwind rules and symbols of files that only their owner may read"),
    },
    Need {
        any_of: &[Capability::DAC_OVERRIDE],
        lost: Some(
            "names and events of other users' .NET processes: the runtime's socket is theirs",
        ),
    },
    Need {
        any_of: &[Capability::SETUID],
        lost: Some("a layer of the sandbox: files are parsed by root without capabilities"),
    },
    Need {
        any_of: &[Capability::SETGID],
        lost: Some("a layer of the sandbox: files are parsed in root's groups"),
    },
    Need {
        any_of: &[Capability::KILL],
        lost: Some("killing a parser that hangs on a crafted file"),
    },
    Need {
        any_of: &[Capability::SYS_NICE],
        lost: Some("samples, and the daemon's answers to health probes, on an overloaded host"),
    },
];

pub fn lines(environment: &Environment) -> Vec<Line> {
    let mut lines = capabilities(environment);
    lines.push(proc_mount(environment));
    lines.extend(locked_memory(environment));
    lines
}

fn capabilities(environment: &Environment) -> Vec<Line> {
    let lacking: Vec<&Need> = NEEDS
        .iter()
        .filter(|need| !need.any_of.iter().any(|&capability| environment.has(capability)))
        .collect();
    if lacking.is_empty() {
        return vec![Line::ok(GROUP, "capabilities", format!("all {}", NEEDS.len()))];
    }
    let wanted: Vec<Capability> =
        lacking.iter().filter_map(|need| need.any_of.first().copied()).collect();
    let names: Vec<&str> = wanted.iter().map(|capability| capability.name).collect();
    let fix = environment.privilege_fix(&wanted);
    if lacking.iter().any(|need| need.lost.is_none()) {
        let detail = format!("without {}", names.join(", "));
        return vec![Line::missing(GROUP, "capabilities", detail, fix)];
    }
    lacking
        .iter()
        .zip(names)
        .filter_map(|(need, name)| {
            Some(Line::degraded(
                GROUP,
                "capabilities",
                format!("without {name}"),
                need.lost?,
                &*fix,
            ))
        })
        .collect()
}

fn proc_mount(environment: &Environment) -> Line {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(mount) =
        parse::mounts(&text).find(|mount| mount.point == "/proc" && mount.filesystem == "proc")
    else {
        return Line::missing(
            GROUP,
            "/proc",
            "not mounted",
            environment.as_root("mount -t proc proc /proc"),
        );
    };
    if parse::option(mount.options, "subset").is_some() {
        return Line::degraded(
            GROUP,
            "/proc",
            "mounted with subset=pid",
            "names of kernel functions, and settings are not known",
            environment.as_root("mount -o remount,subset= /proc"),
        );
    }
    match parse::option(mount.options, "hidepid") {
        None | Some("0" | "off") => Line::ok(GROUP, "/proc", "shows every process"),
        Some(mode) if environment.has(Capability::SYS_PTRACE) => Line::ok(
            GROUP,
            "/proc",
            format!("shows every process (hidepid={mode}, and CAP_SYS_PTRACE)"),
        ),
        Some(mode) => Line::degraded(
            GROUP,
            "/proc",
            format!("mounted with hidepid={mode}"),
            "files and names of other users' processes",
            environment.privilege_fix(&[Capability::SYS_PTRACE]),
        ),
    }
}

/// Since 5.11 the memory of maps is accounted to control groups.
const ACCOUNTED: (u32, u32) = (5, 11);
/// What programs and maps take at least.
const LOCKED_BYTES: u64 = 64 << 20;

/// Only reported on kernels where it matters; those are too old in other ways, too.
fn locked_memory(environment: &Environment) -> Option<Line> {
    if parse::version(&environment.release).is_none_or(|version| version >= ACCOUNTED) {
        return None;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the result.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } != 0 {
        return None;
    }
    Some(if limit.rlim_max >= LOCKED_BYTES {
        Line::ok(GROUP, "locked memory", "enough")
    } else {
        Line::missing(
            GROUP,
            "locked memory",
            format!("at most {} KB", limit.rlim_max / 1024),
            environment.as_root("prlimit --memlock=unlimited strata record"),
        )
    })
}

/// What explains that unprivileged processes may not open events.
pub fn paranoia() -> String {
    match setting("kernel/perf_event_paranoid") {
        Some(level) => format!("kernel.perf_event_paranoid = {level}"),
        None => "no kernel.perf_event_paranoid".to_owned(),
    }
}
