//! The kernel: version, type information, the bpf() system call, namespaces.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::environment::{Capability, Environment, setting};
use super::line::{Group, Line};
use super::parse;
use super::text;
use super::{Loaded, Part};
use strata_agent::kernel::type_info::{self, KernelTypes, TypeError};

const GROUP: Group = Group::Kernel;

/// The first kernel with `bpf_loop`.
const FLOOR: (u32, u32) = (5, 17);
/// The first one with sleepable task iterators and `bpf_copy_from_user_task`.
const SLEEPABLE_ITERATORS: (u32, u32) = (5, 18);

/// The initial PID namespace has a fixed number: include/linux/proc_ns.h, Linux 6.12.
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

pub fn lines(environment: &Environment) -> Vec<Line> {
    let mut lines = vec![platform(), version(&environment.release)];
    lines.extend(type_information());
    lines.push(bpf(environment));
    lines.extend(interpreter(environment));
    lines.extend(lockdown());
    lines.push(pid_namespace(environment));
    lines.extend(user_namespace(environment));
    lines.push(control_groups());
    lines
}

fn platform() -> Line {
    let found = format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH);
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        Line::ok(GROUP, "platform", found)
    } else {
        Line::missing(
            GROUP,
            "platform",
            found,
            "run strata on Linux on x86-64: it unwinds no other machine yet",
        )
    }
}

fn version(release: &str) -> Line {
    const FIX: &str = "boot a newer kernel; Debian: apt-get install linux-image-amd64 && reboot";
    match parse::version(release) {
        Some(found) if found >= SLEEPABLE_ITERATORS => {
            Line::ok(GROUP, "version", format!("{release} (5.17 is needed)"))
        }
        Some(found) if found >= FLOOR => Line::ok(
            GROUP,
            "version",
            format!("{release} (5.17 is needed, and 5.18 for wall-clock time and `strata stacks`)"),
        ),
        Some(_) => Line::missing(
            GROUP,
            "version",
            format!("{release}, and 5.17 is needed (bpf_loop)"),
            FIX,
        ),
        None => Line::missing(
            GROUP,
            "version",
            format!("not understood: {}", text::printable(release.as_bytes())),
            FIX,
        ),
    }
}

/// BTF, and the tracepoint that programs are attached to through it.
fn type_information() -> Vec<Line> {
    const KERNEL: &str = "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (those of Debian 11, Ubuntu 20.10, Fedora 31, RHEL 8.2 and later are)";
    let shown = fs::metadata(type_info::PATH);
    let types = match KernelTypes::read() {
        Ok(types) => types,
        Err(error) => {
            let why = match (shown, error) {
                (Err(error), _) => format!("{}: {error}", type_info::PATH),
                (Ok(_), TypeError::Unreadable(error)) => format!("{}: {error}", type_info::PATH),
                (Ok(_), error) => error.to_string(),
            };
            return vec![Line::missing(GROUP, "BTF", why, KERNEL)];
        }
    };
    let bytes = shown.map(|shown| shown.len()).unwrap_or(0);
    let found = format!("{}, {} types, {}", type_info::PATH, types.count(), text::size(bytes));
    let tracepoint = if types.has_tracepoint("sched_process_exec") {
        Line::ok(GROUP, "exec tracepoint", "sched_process_exec, no tracefs needed")
    } else {
        Line::missing(
            GROUP,
            "exec tracepoint",
            "no btf_trace_sched_process_exec in BTF",
            "boot a kernel built with CONFIG_TRACEPOINTS=y and CONFIG_BPF_EVENTS=y",
        )
    };
    vec![Line::ok(GROUP, "BTF", found), tracepoint]
}

/// Creates a small map: the call exists, is allowed, and memory for it too.
fn bpf(environment: &Environment) -> Line {
    let name = "bpf()";
    let error = match create_array() {
        Ok(_) => return Line::ok(GROUP, name, "maps can be created"),
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::ENOSYS) if environment.filtered => Line::missing(
            GROUP,
            name,
            "hidden by a seccomp filter (ENOSYS)",
            environment.filter_fix(),
        ),
        Some(libc::ENOSYS) => Line::missing(
            GROUP,
            name,
            "this kernel has no bpf()",
            "boot a kernel built with CONFIG_BPF_SYSCALL=y",
        ),
        Some(libc::EPERM)
            if environment.has(Capability::BPF) || environment.has(Capability::SYS_ADMIN) =>
        {
            let (why, fix) = if environment.filtered {
                ("blocked by a seccomp filter (EPERM)", environment.filter_fix())
            } else {
                (
                    "refused in spite of CAP_BPF: by lockdown or a security module",
                    "see dmesg and the audit log for the denial",
                )
            };
            Line::missing(GROUP, name, why, fix)
        }
        Some(libc::EPERM) => {
            let unprivileged = match setting("kernel/unprivileged_bpf_disabled") {
                Some(0) => "allowed to unprivileged processes, but refused to this one",
                _ => "for privileged processes only (kernel.unprivileged_bpf_disabled)",
            };
            Line::missing(
                GROUP,
                name,
                unprivileged,
                environment.privilege_fix(&[Capability::BPF, Capability::PERFMON]),
            )
        }
        _ => Line::missing(GROUP, name, error.to_string(), environment.as_root("dmesg | tail")),
    }
}

/// The head of `union bpf_attr` for BPF_MAP_CREATE: include/uapi/linux/bpf.h.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

fn create_array() -> io::Result<OwnedFd> {
    const BPF_MAP_CREATE: libc::c_long = 0;
    const BPF_MAP_TYPE_ARRAY: u32 = 2;
    let attributes =
        MapCreate { kind: BPF_MAP_TYPE_ARRAY, key_bytes: 4, value_bytes: 8, entries: 1, flags: 0 };
    // SAFETY: the length passed is that of the attributes; the result is checked.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, &raw const attributes, size_of::<MapCreate>())
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner; descriptors fit 32 bits.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Only reported when programs would be interpreted.
fn interpreter(environment: &Environment) -> Option<Line> {
    (setting("net/core/bpf_jit_enable") == Some(0)).then(|| {
        Line::degraded(
            GROUP,
            "BPF compiler",
            "off (net.core.bpf_jit_enable = 0)",
            "speed: a sample costs several times as much",
            environment.as_root("sysctl -w net.core.bpf_jit_enable=1"),
        )
    })
}

/// Only reported when the kernel has the feature.
fn lockdown() -> Option<Line> {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    let mode = parse::chosen(&text)?;
    Some(if mode == "confidentiality" {
        Line::missing(
            GROUP,
            "lockdown",
            "confidentiality: programs cannot read kernel memory",
            "boot with lockdown=integrity on the kernel's command line",
        )
    } else {
        Line::ok(GROUP, "lockdown", mode)
    })
}

fn pid_namespace(environment: &Environment) -> Line {
    let name = "PID namespace";
    match fs::metadata("/proc/self/ns/pid") {
        Ok(found) if found.ino() == INITIAL_PID_NAMESPACE => Line::ok(GROUP, name, "the host's"),
        Ok(_) => Line::missing(
            GROUP,
            name,
            "not the host's: pids of samples are not those of this /proc",
            environment.container.map_or(
                "run strata outside of the container, or with the host's PID namespace",
                |container| container.host_pids(),
            ),
        ),
        Err(error) => Line::missing(
            GROUP,
            name,
            format!("/proc/self/ns/pid: {error}"),
            environment.as_root("mount -t proc proc /proc"),
        ),
    }
}

/// Only reported when it is not the host's: capabilities have no effect then.
fn user_namespace(environment: &Environment) -> Option<Line> {
    environment.own_users.then(|| {
        Line::missing(
            GROUP,
            "user namespace",
            "not the host's: root here has no privilege over the kernel",
            environment.user_namespace_fix(),
        )
    })
}

fn control_groups() -> Line {
    let name = "control groups";
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let has = |filesystem| parse::mounts(&text).any(|mount| mount.filesystem == filesystem);
    let found = match (has("cgroup"), has("cgroup2")) {
        (true, true) => "v1 and v2",
        (true, false) => "v1",
        (false, true) => "v2",
        (false, false) if fs::metadata("/proc/self/cgroup").is_ok() => {
            "not mounted, and not needed"
        }
        (false, false) => {
            return Line::degraded(
                GROUP,
                name,
                "this kernel has none",
                "container ids, and --container and --cgroup",
                "boot a kernel built with CONFIG_CGROUPS=y",
            );
        }
    };
    Line::ok(GROUP, name, found)
}

/// The real thing: strata's own programs, loaded and unloaded.
pub fn programs(release: &str, loaded: &Result<Loaded, String>) -> Vec<Line> {
    let name = "strata's programs";
    let short = |printed: &str| printed.lines().take(3).collect::<Vec<_>>().join("; ");
    match loaded {
        Ok(Loaded { found, refused, .. }) => {
            let refused = refused.iter().map(|(part, error)| refusal(release, *part, short(error)));
            std::iter::once(Line::ok(GROUP, name, found.clone())).chain(refused).collect()
        }
        Err(printed) => vec![Line::missing(
            GROUP,
            name,
            short(printed),
            "report it, with the output of: strata record -v --duration 1",
        )],
    }
}

/// Programs of a part that this kernel refuses: the others work all the same.
fn refusal(release: &str, part: Part, error: String) -> Line {
    let (name, lost, report) = match part {
        Part::Wall => (
            "wall-clock time",
            "`-e wall`, and `strata stacks`",
            "report it, with the output of: strata record -v -e wall --duration 1",
        ),
        Part::OffCpu => (
            "off-CPU time",
            "`-e off_cpu`",
            "report it, with the output of: strata record -v -e off_cpu --duration 1",
        ),
        Part::ClrEvents => (
            ".NET events",
            "exceptions, waits, allocations and pauses of .NET processes",
            "report it, with the output of: strata record -v -e exceptions --duration 1",
        ),
    };
    let is_too_old = parse::version(release).is_some_and(|found| found < SLEEPABLE_ITERATORS);
    if part == Part::Wall && is_too_old {
        let detail = format!("not on {release}: Linux 5.18 is the first that can walk threads");
        return Line::degraded(GROUP, name, detail, lost, "boot Linux 5.18 or a later one");
    }
    Line::degraded(GROUP, name, error, lost, report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::line::State;

    #[test]
    fn a_kernel_before_the_floor_is_missing_and_says_why() {
        let line = version("5.10.0-28-amd64");
        assert_eq!(line.state(), State::Missing);
        assert!(line.detail.contains("5.17"));
        assert_eq!(version("5.17.1").state(), State::Ok);
        assert_eq!(version("6.1.0").state(), State::Ok);
        assert_eq!(version("?").state(), State::Missing);
    }

    #[test]
    fn programs_that_do_not_load_are_missing() {
        let [line] = &programs("6.12.0", &Err("refused\nby the verifier".into()))[..] else {
            panic!("one line")
        };
        assert_eq!(line.state(), State::Missing);
        assert_eq!(line.detail, "refused; by the verifier");
    }

    #[test]
    fn what_this_kernel_refuses_is_a_line_with_what_is_lost_and_why() {
        let error = "the BPF program was refused".to_owned();
        let refused = vec![(Part::OffCpu, error.clone()), (Part::Wall, error)];
        let loaded = Ok(Loaded { found: "loaded".to_owned(), refused, ..Loaded::default() });
        for (release, why, fix) in [
            ("5.17.15", "Linux 5.18 is the first", "boot Linux 5.18"),
            ("6.12.0", "the BPF program was refused", "strata record -v -e wall"),
        ] {
            let lines = programs(release, &loaded);
            let states: Vec<State> = lines.iter().map(Line::state).collect();
            assert_eq!(states, [State::Ok, State::Degraded, State::Degraded]);
            assert_eq!(lines[1].lost(), Some("`-e off_cpu`"));
            assert_eq!(lines[1].detail, "the BPF program was refused");
            assert_eq!(lines[2].lost(), Some("`-e wall`, and `strata stacks`"));
            assert!(lines[2].detail.contains(why), "{}", lines[2].detail);
            assert!(lines[2].fix().is_some_and(|text| text.contains(fix)), "{:?}", lines[2].fix());
        }
    }
}
