//! The user and container that strata runs in: they decide which command fixes a missing privilege.
//!
//! Invariant: a command that is printed can be typed as it is; names that are the user's to
//! choose are in capitals.

use std::ffi::{CStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::parse;

/// What keeps the kernel's own privileges away from root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    Docker,
    Podman,
    Kubernetes,
    Other,
}

/// A capability: include/uapi/linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    pub name: &'static str,
    number: u32,
}

impl Capability {
    pub const DAC_OVERRIDE: Self = Self::new("CAP_DAC_OVERRIDE", 1);
    pub const DAC_READ_SEARCH: Self = Self::new("CAP_DAC_READ_SEARCH", 2);
    pub const KILL: Self = Self::new("CAP_KILL", 5);
    pub const SETGID: Self = Self::new("CAP_SETGID", 6);
    pub const SETUID: Self = Self::new("CAP_SETUID", 7);
    pub const SYS_PTRACE: Self = Self::new("CAP_SYS_PTRACE", 19);
    pub const SYS_ADMIN: Self = Self::new("CAP_SYS_ADMIN", 21);
    pub const SYS_NICE: Self = Self::new("CAP_SYS_NICE", 23);
    pub const SYSLOG: Self = Self::new("CAP_SYSLOG", 34);
    pub const PERFMON: Self = Self::new("CAP_PERFMON", 38);
    pub const BPF: Self = Self::new("CAP_BPF", 39);
    pub const CHECKPOINT_RESTORE: Self = Self::new("CAP_CHECKPOINT_RESTORE", 40);

    const fn new(name: &'static str, number: u32) -> Self {
        Self { name, number }
    }

    fn is_in(self, set: u64) -> bool {
        set & (1 << self.number) != 0
    }
}

/// A word as a POSIX shell reads it back.
fn shell_word(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@%+".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The initial user namespace has a fixed number: include/linux/proc_ns.h, Linux 6.12.
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// This process and its surroundings.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Effective capabilities, as a bit set.
    effective: u64,
    /// What programs started from here can have at most.
    bounding: u64,
    root: bool,
    no_new_privileges: bool,
    /// In a user namespace of its own, where capabilities count for nothing on the host.
    pub own_users: bool,
    /// A filter of system calls is in force (of a container or service).
    pub filtered: bool,
    pub container: Option<Container>,
    pub release: String,
    program: PathBuf,
}

impl Environment {
    pub fn read() -> Self {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let set = |name| parse::capabilities(&status, name).unwrap_or(0);
        Self {
            effective: set("CapEff"),
            bounding: set("CapBnd"),
            // SAFETY: takes nothing, cannot fail.
            root: unsafe { libc::geteuid() } == 0,
            no_new_privileges: parse::status_field(&status, "NoNewPrivs") == Some("1"),
            own_users: fs::metadata("/proc/self/ns/user")
                .is_ok_and(|found| found.ino() != INITIAL_USER_NAMESPACE),
            filtered: parse::status_field(&status, "Seccomp") == Some("2"),
            container: container(),
            release: release(),
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("strata")),
        }
    }

    pub fn has(&self, capability: Capability) -> bool {
        !self.own_users && capability.is_in(self.effective)
    }

    /// What runs strata with these capabilities.
    pub fn privilege_fix(&self, capabilities: &[Capability]) -> String {
        if self.own_users {
            return self.user_namespace_fix().to_owned();
        }
        let program = self.program.display();
        let within_reach = capabilities.iter().all(|capability| capability.is_in(self.bounding));
        if !self.root && within_reach && !self.no_new_privileges {
            return self.as_root(&format!("{program} record"));
        }
        if let Some(container) = self.container {
            return container.privileged().to_owned();
        }
        if !self.root {
            return format!(
                "outside of the service or sandbox that withholds privileges: sudo {program} record"
            );
        }
        let names: Vec<&str> = capabilities.iter().map(|capability| capability.name).collect();
        format!(
            "start it where root keeps {0} (systemd: CapabilityBoundingSet={0})",
            names.join(" ")
        )
    }

    /// The command line to run these arguments as root with; `None` where that would not help.
    pub fn rerun_as_root(&self, arguments: &[OsString]) -> Option<String> {
        let needed = [Capability::BPF, Capability::PERFMON];
        let is_within_reach = needed.iter().all(|capability| capability.is_in(self.bounding));
        let has_all = needed.iter().all(|&capability| self.has(capability));
        if self.root || self.own_users || self.no_new_privileges || !is_within_reach || has_all {
            return None;
        }
        let mut words = vec![shell_word(&self.program.to_string_lossy())];
        words.extend(arguments.iter().map(|word| shell_word(&word.to_string_lossy())));
        let command = words.join(" ");
        Some(match in_path("sudo") {
            true => format!("sudo {command}"),
            false => format!("su -c {}", shell_word(&command)),
        })
    }

    /// What leaves a user namespace.
    pub fn user_namespace_fix(&self) -> &'static str {
        match self.container {
            Some(Container::Docker) => {
                "docker run --userns=host --privileged --pid=host --cgroupns=host -v \"$PWD\":/out -w /out IMAGE record"
            }
            Some(Container::Podman) => {
                "sudo podman run --privileged --pid=host --cgroupns=host -v \"$PWD\":/out -w /out IMAGE record"
            }
            Some(Container::Kubernetes) => "in the pod's spec: hostUsers: true",
            _ => "run strata outside of the user namespace, as the host's root: sudo strata record",
        }
    }

    /// A command that needs root, as it is typed here.
    pub fn as_root(&self, command: &str) -> String {
        // Containers show most settings read-only, unless they are privileged.
        let on_host = self.container.is_some() && !Capability::SYS_ADMIN.is_in(self.bounding);
        match (on_host, self.root, in_path("sudo")) {
            (true, _, _) => format!("on the host: sudo {command}"),
            (false, true, _) => command.to_owned(),
            (false, false, true) => format!("sudo {command}"),
            (false, false, false) => format!("su -c '{command}'"),
        }
    }

    /// What lifts a filter of system calls.
    pub fn filter_fix(&self) -> &'static str {
        match self.container {
            Some(container) => container.privileged(),
            None => {
                "start strata outside of the service that filters its system calls (systemd: SystemCallFilter=)"
            }
        }
    }
}

impl Container {
    /// What gives a container the host's privileges.
    fn privileged(self) -> &'static str {
        match self {
            Self::Docker => {
                "docker run --privileged --pid=host --cgroupns=host -v \"$PWD\":/out -w /out IMAGE record"
            }
            Self::Podman => {
                "sudo podman run --privileged --pid=host --cgroupns=host -v \"$PWD\":/out -w /out IMAGE record"
            }
            Self::Kubernetes => {
                "in the pod's spec: hostPID: true, and in the container's: securityContext: {privileged: true}"
            }
            Self::Other => "start the container privileged, with the host's PID namespace",
        }
    }

    /// What gives a container the host's processes.
    pub fn host_pids(self) -> &'static str {
        match self {
            Self::Docker => {
                "docker run --pid=host --privileged --cgroupns=host -v \"$PWD\":/out -w /out IMAGE record"
            }
            Self::Podman => {
                "sudo podman run --pid=host --privileged --cgroupns=host -v \"$PWD\":/out -w /out IMAGE record"
            }
            Self::Kubernetes => "in the pod's spec: hostPID: true",
            Self::Other => "start the container with the host's PID namespace",
        }
    }
}

fn container() -> Option<Container> {
    let exists = |path: &str| Path::new(path).exists();
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        || exists("/var/run/secrets/kubernetes.io")
    {
        return Some(Container::Kubernetes);
    }
    if exists("/.dockerenv") {
        return Some(Container::Docker);
    }
    if exists("/run/.containerenv") {
        return Some(Container::Podman);
    }
    std::env::var_os("container").map(|_| Container::Other)
}

fn release() -> String {
    // SAFETY: plain arrays of characters, valid when zeroed.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the result.
    if unsafe { libc::uname(&raw mut names) } != 0 {
        return String::new();
    }
    // SAFETY: the kernel ends its text with a NUL.
    let text = unsafe { CStr::from_ptr(names.release.as_ptr()) };
    text.to_string_lossy().into_owned()
}

fn in_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|place| place.join(program).exists()))
}

/// A number in a file of `/proc/sys`.
pub fn setting(name: &str) -> Option<i64> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somebody(root: bool, bounding: u64, container: Option<Container>) -> Environment {
        Environment {
            effective: 0,
            bounding,
            root,
            no_new_privileges: false,
            own_users: false,
            filtered: false,
            container,
            release: "6.1.0".to_owned(),
            program: PathBuf::from("/opt/strata"),
        }
    }

    const NEEDED: &[Capability] = &[Capability::BPF, Capability::PERFMON];

    #[test]
    fn a_user_gets_the_command_that_runs_it_as_root() {
        for container in [None, Some(Container::Docker)] {
            let fix = somebody(false, u64::MAX, container).privilege_fix(NEEDED);
            assert!(
                fix == "sudo /opt/strata record" || fix == "su -c '/opt/strata record'",
                "{fix}"
            );
        }
    }

    #[test]
    fn a_container_without_privileges_gets_the_flags_that_give_them() {
        let fix = |container| somebody(true, 0, Some(container)).privilege_fix(NEEDED);
        assert!(fix(Container::Docker).starts_with("docker run --privileged --pid=host"));
        assert!(fix(Container::Podman).starts_with("sudo podman run --privileged"));
        assert!(fix(Container::Kubernetes).contains("privileged: true"));
    }

    #[test]
    fn a_service_learns_what_its_unit_takes_away() {
        let fix = somebody(true, 0, None).privilege_fix(NEEDED);
        assert!(fix.contains("CapabilityBoundingSet=CAP_BPF CAP_PERFMON"), "{fix}");
    }

    #[test]
    fn capabilities_of_another_user_namespace_do_not_count() {
        let mut environment = somebody(true, u64::MAX, None);
        environment.effective = u64::MAX;
        assert!(environment.has(Capability::BPF));
        environment.own_users = true;
        assert!(!environment.has(Capability::BPF));
        assert!(environment.privilege_fix(NEEDED).contains("user namespace"));
    }
}
