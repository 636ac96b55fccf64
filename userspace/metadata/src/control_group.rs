//! Systemd units, container ids and pod ids in the paths of control groups.
//!
//! Container runtimes name the control group of a container by its id: 64 hex digits, with
//! decorations (`docker-<id>.scope`, `cri-containerd-<id>.scope`, `/kubepods/…/<id>`); ECS by
//! `<32 hex digits>-<digits>`. systemd names groups by the unit, and quotes what is special
//! (`\x2d`).
//!
//! Invariant: groups below a user's service manager (`user@UID.service`) belong to that user, who
//! names them at will (`Delegate=` in `user@.service`). No unit and no pod is read there, and a
//! container id found there is that user's: [`Group::user`].

/// The facts in the path of a process's control group.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Group {
    /// Path in the most informative hierarchy (the unified one, else the longest).
    pub path: String,
    /// Paths in hierarchies of version 1 where they are neither `path` nor the root, each once.
    pub other_paths: Vec<String>,
    pub container: Option<String>,
    /// The outermost container, where that is another one. A container that may make groups of its own (of
    /// systemd, or another runtime) names them at will.
    pub outer_container: Option<String>,
    /// The user below whose service manager `container` was found. Only a container of that user
    /// may have it: any process of theirs can make a group with any name.
    pub user: Option<u32>,
    /// The service that systemd runs the process for, as systemd writes it: `nginx.service`.
    pub unit: Option<String>,
    /// The pod's uid, as Kubernetes writes it.
    pub pod_uid: Option<String>,
}

/// Longest path that is looked at: the kernel's own limit.
const MAX_PATH: usize = 4096;
/// Hierarchies: version 1 has about a dozen controllers.
const MAX_LINES: usize = 64;
/// Other paths that are kept of a group.
const MAX_OTHER_PATHS: usize = 16;

impl Group {
    /// Its paths in all hierarchies, the most informative one first.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.path).chain(&self.other_paths).map(String::as_str)
    }
}

/// Parses `/proc/PID/cgroup`.
///
/// Lines are used in this order: the unified hierarchy, systemd's own, then the others in their
/// order. The first with a container, a unit or a pod decides it.
pub fn parse(text: &str) -> Group {
    let mut lines: Vec<(u8, &str)> = text.lines().take(MAX_LINES).filter_map(line).collect();
    lines.sort_by_key(|(rank, _)| *rank);
    let container = lines.iter().find_map(|(_, path)| container_in_path(path));
    let (container, user) = container.unzip();
    let outer = lines.iter().find_map(|(_, path)| outer_container_in_path(path));
    let outer = outer.filter(|outer| user.flatten().is_none() && Some(*outer) != container);
    // With the driver `cgroupfs` a container has groups in the hierarchies of version 1 only: in the
    // unified one its processes are in that of the runtime's service.
    let is_its = |path: &str| container.is_none() || container_in_path(path).is_some();
    let its = || lines.iter().filter(|(_, path)| is_its(path));
    let unified = its().find(|(rank, path)| *rank == UNIFIED && *path != "/");
    let longest = || its().rev().max_by_key(|(_, path)| path.len());
    let path = unified.or_else(longest).map_or("", |(_, path)| *path);
    let first = |find: fn(&str) -> Option<String>| its().find_map(|(_, path)| find(path));
    Group {
        path: path.to_owned(),
        other_paths: other_paths(&lines, path),
        container: container.map(str::to_owned),
        outer_container: outer.map(str::to_owned),
        user: user.flatten(),
        unit: first(|path| unit_in_path(path).map(str::to_owned)),
        pod_uid: first(pod_uid_in_path),
    }
}

fn other_paths(lines: &[(u8, &str)], shown: &str) -> Vec<String> {
    let mut others: Vec<String> = Vec::new();
    for (_, path) in lines {
        let is_new = *path != "/" && *path != shown && others.iter().all(|other| other != path);
        if is_new && others.len() < MAX_OTHER_PATHS {
            others.push((*path).to_owned());
        }
    }
    others
}

const UNIFIED: u8 = 0;
const SYSTEMD: u8 = 1;
const OTHER: u8 = 2;

fn line(line: &str) -> Option<(u8, &str)> {
    let mut fields = line.splitn(3, ':');
    let number = fields.next()?;
    let controllers = fields.next()?;
    let path = fields.next().filter(|path| path.len() <= MAX_PATH)?;
    let rank = match (number, controllers) {
        ("0", "") => UNIFIED,
        (_, "name=systemd") => SYSTEMD,
        _ => OTHER,
    };
    Some((rank, path))
}

/// The innermost container id that the host vouches for, else the innermost one below a user's
/// manager with that user.
pub fn container_in_path(path: &str) -> Option<(&str, Option<u32>)> {
    let (host, user) = split_at_user(path);
    let of_host = id_in_path(host).map(|id| (id, None));
    of_host.or_else(|| user.and_then(|(uid, below)| Some((id_in_path(below)?, Some(uid)))))
}

/// The outermost container id that the host vouches for.
fn outer_container_in_path(path: &str) -> Option<&str> {
    split_at_user(path).0.split('/').find_map(id_in_part)
}

/// Splits a path into the part named by the host, and the part below the service manager of a user
/// other than root.
fn split_at_user(path: &str) -> (&str, Option<(u32, &str)>) {
    let mut at = 0;
    for part in path.split('/') {
        let end = at + part.len();
        let uid = part.strip_prefix("user@").and_then(|name| name.strip_suffix(".service"));
        // An instance that is not a number is no user's manager, but is not trusted as the host's
        // either.
        let uid = uid.map(|uid| uid.parse().unwrap_or(u32::MAX)).filter(|uid| *uid != 0);
        if let (Some(uid), Some(host), Some(below)) = (uid, path.get(..at), path.get(end..)) {
            return (host, Some((uid, below)));
        }
        at = end + 1;
    }
    (path, None)
}

fn id_in_path(path: &str) -> Option<&str> {
    path.rsplit('/').find_map(id_in_part)
}

fn id_in_part(part: &str) -> Option<&str> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    if is_ecs_id(part) {
        return Some(part);
    }
    let (before, candidate) = match part.rfind(['-', ':']) {
        Some(at) => (part.get(..at)?, part.get(at + 1..)?),
        None => ("", part),
    };
    // `conmon` watches a container from outside of it.
    (is_id(candidate) && !before.ends_with("conmon")).then_some(candidate)
}

/// Whether a text is an id as runtimes give it.
pub fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(is_lower_hex) || is_ecs_id(text)
}

/// `<32 hex digits>-<digits>`: a container of a task on Fargate. The digits alone of the task are
/// no container.
fn is_ecs_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(task, number)| {
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        task.len() == 32 && task.bytes().all(is_lower_hex) && digits && number.len() <= 20
    })
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// The innermost systemd service that is the process's own.
///
/// A unit around a container is the runtime's (`containerd.service`), unless Podman put the
/// container there because the unit *is* the container (`web.service/libpod-payload-<id>`). The
/// managers of users' sessions (`user@1000.service`) are no service, and groups below them were
/// named by that user.
pub fn unit_in_path(path: &str) -> Option<&str> {
    if split_at_user(path).1.is_some() {
        return None;
    }
    let mut below_podman = false;
    for part in path.rsplit('/') {
        if id_in_part(part).is_some() {
            below_podman = part.starts_with("libpod-");
            if !below_podman {
                return None;
            }
        }
        let name = part.strip_suffix(".service").filter(|name| !name.is_empty());
        if let Some(name) = name {
            let runtime = below_podman && name == "podman";
            return (!runtime && !name.starts_with("user@")).then_some(part);
        }
    }
    None
}

/// The service that a unit runs: its name without `.service`, without the instance of a template
/// (`worker@3.service` is `worker`), with systemd's quotes undone.
pub fn unit_service(unit: &str) -> String {
    let name = unit.strip_suffix(".service").unwrap_or(unit);
    let name = match name.split_once('@') {
        Some((template, _)) if !template.is_empty() => template,
        _ => name,
    };
    unquote(name)
}

/// Undoes `\x2d`. What is not such a quote stays as it is.
fn unquote(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let quoted = match rest {
            [b'\\', b'x', high, low, tail @ ..] => {
                hex(*high).zip(hex(*low)).map(|(high, low)| (high << 4 | low, tail))
            }
            _ => None,
        };
        let (byte, tail) = quoted.unwrap_or((first, tail));
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// The uid in `pod<uid>` or `kubepods-burstable-pod<uid>.slice`, where systemd's `_` is Kubernetes's `-`.
pub fn pod_uid_in_path(path: &str) -> Option<String> {
    split_at_user(path).0.rsplit('/').find_map(|part| {
        let part = part.split(':').next().unwrap_or(part);
        let part = part.strip_suffix(".slice").unwrap_or(part);
        let at = part.rfind("pod")?;
        let before = part.get(..at)?;
        if !(before.is_empty() || before.starts_with("kubepods") && before.ends_with('-')) {
            return None;
        }
        let uid = part.get(at + 3..)?.replace('_', "-");
        let hex = |byte: u8| is_lower_hex(byte) || byte == b'-';
        // Pods that the kubelet reads from files have 32 digits without dashes.
        (matches!(uid.len(), 32 | 36) && uid.bytes().all(hex)).then_some(uid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f1d6ad20b5cf1b4a1d9a2f5f6e3f1b0aa3d7c7c8f6f8f1b0c9d8e7f6a5b4c3d";
    const UID: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

    #[test]
    fn runtimes_name_their_groups_by_the_container() {
        for path in [
            format!("/system.slice/docker-{ID}.scope"),
            format!("/system.slice/docker-{ID}.scope/inner"),
            format!("/docker/{ID}"),
            format!("/docker/{ID}/system.slice/cron.service"),
            format!("/actions_job/{ID}"),
            format!("/default/{ID}"),
            format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"),
            format!("/kubepods.slice/kubepods-besteffort.slice/crio-{ID}.scope/container"),
            format!("/kubepods/burstable/pod17/{ID}"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"),
            format!("/system.slice/web.service/libpod-payload-{ID}"),
            format!("/libpod_parent/libpod-{ID}"),
            format!("/../../kubepods-pod1.slice/cri-containerd-{ID}.scope"),
        ] {
            let found = container_in_path(&path).map(|(id, _)| id);
            assert_eq!(found, Some(ID), "{path}");
        }
    }

    /// Ubuntu 18.04 to 21.04 and Debian 10, with the driver `cgroupfs`.
    #[test]
    fn a_containers_processes_are_not_of_its_runtimes_service() {
        let text = format!(
            "12:pids:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service\n"
        );
        let group = parse(&text);
        assert_eq!((group.container.as_deref(), group.unit), (Some(ID), None));
        assert_eq!(group.path, format!("/docker/{ID}"));
        let group = parse("1:name=systemd:/system.slice/nginx.service\n0::/\n");
        assert_eq!(group.unit.as_deref(), Some("nginx.service"));
    }

    #[test]
    fn a_container_below_another_has_both_ids() {
        let outer = "1".repeat(64);
        let nested = parse(&format!("0::/system.slice/docker-{outer}.scope/docker-{ID}.scope\n"));
        assert_eq!(nested.container.as_deref(), Some(ID));
        assert_eq!(nested.outer_container.as_deref(), Some(outer.as_str()));
        for path in ["/user.slice/user-1000.slice/user@1000.service", "/kubepods/pod1"] {
            assert_eq!(parse(&format!("0::{path}/docker-{ID}.scope\n")).outer_container, None);
        }
    }

    #[test]
    fn what_is_no_container_has_no_id() {
        for path in [
            "/user.slice/user-0.slice/session-1.scope".to_owned(),
            "/".to_owned(),
            String::new(),
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            format!("/machine.slice/crio-conmon-{ID}.scope"),
            format!("/docker/{}", ID.to_uppercase()),
            format!("/docker/{ID}0"),
            // The task of a container on ECS, or anything else.
            format!("/ecs/{}", &ID[..32]),
            format!("/system.slice/{}", &ID[..32]),
        ] {
            assert_eq!(container_in_path(&path), None, "{path}");
        }
    }

    #[test]
    fn a_container_on_ecs_has_its_whole_id() {
        let id = format!("{}-2794083910", &ID[..32]);
        assert!(is_id(&id));
        let group = parse(&format!("0::/ecs/{}/{id}\n", &ID[..32]));
        assert_eq!(group.container.as_deref(), Some(id.as_str()));
        for wrong in [format!("{id}x"), format!("{}-", &ID[..32]), format!("{ID}-12")] {
            assert!(!is_id(&wrong), "{wrong}");
        }
    }

    #[test]
    fn what_a_user_names_below_its_manager_is_no_unit_and_no_pod_and_its_containers_are_its_own() {
        const USER: &str = "/user.slice/user-1000.slice/user@1000.service";
        for below in [
            "/app.slice/postgresql.service".to_owned(),
            format!("/app.slice/docker-{ID}.scope"),
            format!("/kubepods/burstable/pod{UID}/{ID}"),
            format!("/postgresql.service/libpod-payload-{ID}"),
            format!("/user@0.service/postgresql.service/docker-{ID}.scope"),
        ] {
            let group = parse(&format!("0::{USER}{below}\n"));
            assert_eq!((group.unit, group.pod_uid), (None, None), "{below}");
            let owner = group.container.is_some().then_some(1000);
            assert_eq!((group.user, owner.is_some()), (owner, below.contains(ID)), "{below}");
        }
        // The host put the user's manager into the container, and root is the host.
        let group = parse(&format!("0::/docker/{ID}{USER}/docker-{}.scope\n", "1".repeat(64)));
        assert_eq!((group.container.as_deref(), group.user), (Some(ID), None));
        let group = parse("0::/user.slice/user-0.slice/user@0.service/app.slice/sync.service\n");
        assert_eq!(group.unit.as_deref(), Some("sync.service"));
    }

    #[test]
    fn both_hierarchies_are_read() {
        let text = format!("12:cpu:/docker/{ID}\n0::/\n");
        let group = parse(&text);
        assert_eq!(group.container.as_deref(), Some(ID));
        assert_eq!(group.path, format!("/docker/{ID}"));
        let group = parse("5:cpu:/a/longer/path\n1:name=systemd:/system.slice/a.service\n0::/b\n");
        assert_eq!((group.path.as_str(), group.unit.as_deref()), ("/b", Some("a.service")));
    }

    #[test]
    fn paths_of_all_hierarchies_of_version_1_are_kept_once() {
        let group = parse(
            "9:memory:/a/longer/path\n4:pids:/\n3:cpu:/quota\n2:cpuacct:/quota\n\
             1:name=systemd:/init.scope\n0::/\n",
        );
        assert_eq!(group.path, "/a/longer/path");
        let paths: Vec<_> = group.paths().collect();
        assert_eq!(paths, ["/a/longer/path", "/init.scope", "/quota"]);
        // With version 2 alone there is one path.
        let unified = parse("0::/system.slice/a.service\n");
        assert!(unified.paths().eq(["/system.slice/a.service"]) && unified.other_paths.is_empty());
        let many: String =
            (1..64).map(|number| format!("{number}:c{number}:/{number}\n")).collect();
        assert_eq!(parse(&many).other_paths.len(), MAX_OTHER_PATHS);
    }

    #[test]
    fn the_innermost_service_is_the_unit() {
        for (path, unit) in [
            ("/system.slice/nginx.service", Some("nginx.service")),
            ("/system.slice/system-worker.slice/worker@3.service", Some("worker@3.service")),
            ("/system.slice/nginx.service/workers", Some("nginx.service")),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/sync.service", None),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", None),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x-1.scope", None),
            ("/user.slice/user-0.slice/session-1.scope", None),
            ("/system.slice", None),
            ("/system.slice/.service", None),
        ] {
            assert_eq!(unit_in_path(path), unit, "{path}");
        }
    }

    #[test]
    fn a_unit_around_a_container_is_the_runtimes_unless_podman_put_it_there() {
        for (path, unit) in [
            (
                format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"),
                None,
            ),
            (format!("/system.slice/docker.service/docker/{ID}"), None),
            (format!("/system.slice/web.service/libpod-payload-{ID}"), Some("web.service")),
            (format!("/system.slice/podman.service/libpod-{ID}"), None),
            (format!("/user.slice/user@1.service/user.slice/libpod-{ID}.scope"), None),
            (format!("/docker/{ID}/system.slice/cron.service"), Some("cron.service")),
        ] {
            assert_eq!(unit_in_path(&path), unit, "{path}");
        }
    }

    #[test]
    fn a_unit_gives_its_service_a_name() {
        for (unit, service) in [
            ("nginx.service", "nginx"),
            ("worker@3.service", "worker"),
            ("@3.service", "@3"),
            (r"my\x2dapp.service", "my-app"),
            (r"odd\x2.service", r"odd\x2"),
            (r"odd\xzz.service", r"odd\xzz"),
        ] {
            assert_eq!(unit_service(unit), service);
        }
    }

    #[test]
    fn pods_are_found_under_both_drivers() {
        let quoted = UID.replace('-', "_");
        for path in [
            format!("/kubepods/burstable/pod{UID}/{ID}"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{quoted}.slice/crio-{ID}.scope"
            ),
            format!("/kubepods.slice/kubepods-pod{quoted}.slice/cri-containerd-{ID}.scope"),
            format!(
                "/system.slice/containerd.service/kubepods-besteffort-pod{quoted}.slice:cri-containerd:{ID}"
            ),
        ] {
            assert_eq!(pod_uid_in_path(&path).as_deref(), Some(UID), "{path}");
        }
        for path in ["/kubepods/burstable", "/system.slice/tripod.service", "/podracer"] {
            assert_eq!(pod_uid_in_path(path), None, "{path}");
        }
    }
}
