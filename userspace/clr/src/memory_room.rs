//! The memory that the control groups of a process have left. The bridge's log, and the pages that its library and
//! the runtime touch while it is loaded, are charged to them; where there is no room the kernel ends a process
//! of the group.
//!
//! What is not known counts as no limit: another way of mounting control groups costs the guard, and no names.

use std::fs;
use std::path::Path;

use crate::target::Target;

/// Attaching with every kind of event took 5.2 MB in a program of a few thousand methods.
pub(crate) const NEEDED: u64 = 8 << 20;

/// Where control groups are mounted, as strata and as the host's first process see it.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/proc/1/root/sys/fs/cgroup"];
/// More levels of groups are not looked at.
const MOST_LEVELS: usize = 32;

/// The names of a group's files in one version of control groups.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`: what the kernel takes back before it ends a process.
    reclaimable: [&'static str; 3],
}

const FIRST: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file", "total_slab_reclaimable"],
};
const SECOND: Files = Files {
    limit: "memory.max",
    used: "memory.current",
    reclaimable: ["inactive_file", "active_file", "slab_reclaimable"],
};

/// The bytes that the groups of a process have left, where one of them has a limit.
pub(crate) fn room(target: &Target) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/cgroup", target.pid())).ok()?;
    MOUNTS.iter().find_map(|mount| room_below(Path::new(mount), &text))
}

/// `text`: of `/proc/PID/cgroup`.
fn room_below(mount: &Path, text: &str) -> Option<u64> {
    let rooms = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let has_memory = controllers.split(',').any(|controller| controller == "memory");
        match controllers {
            "" => room_of(&mount.join("unified"), path, &SECOND)
                .or_else(|| room_of(mount, path, &SECOND)),
            _ if has_memory => room_of(&mount.join("memory"), path, &FIRST),
            _ => None,
        }
    });
    rooms.min()
}

/// The least that a group and those above it have left.
fn room_of(mount: &Path, path: &str, files: &Files) -> Option<u64> {
    // A group outside of strata's own namespace is said to be above it, and one that is not there may be one
    // of another mount. The uppermost has no limit.
    let path = Path::new(path.trim_start_matches('/'));
    if path.components().any(|part| !matches!(part, std::path::Component::Normal(_)))
        || !mount.join(path).is_dir()
    {
        return None;
    }
    let groups = path.ancestors().filter(|group| *group != Path::new("")).take(MOST_LEVELS);
    let groups = groups.map(|group| mount.join(group));
    groups.filter_map(|group| room_in(&group, files)).min()
}

fn room_in(group: &Path, files: &Files) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    // "max" is no number.
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limit, used) = (number(files.limit)?, number(files.used)?);
    let statistics = read("memory.stat").unwrap_or_default();
    let reclaimable: u64 = statistics
        .lines()
        .filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            files.reclaimable.contains(&name).then(|| bytes.trim().parse::<u64>().ok()).flatten()
        })
        .fold(0, u64::saturating_add);
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(mount: &Path, path: &str, files: &[(&str, &str)]) {
        let group = mount.join(path);
        fs::create_dir_all(&group).expect("a folder can be made");
        for (name, text) in files {
            fs::write(group.join(name), text).expect("a file can be written");
        }
    }

    #[test]
    fn the_least_room_of_a_group_and_those_above_counts_without_what_is_taken_back() {
        let mount = tempfile::tempdir().expect("a folder");
        let below = |text: &str| room_below(mount.path(), text);
        let second = |limit, used, stat| {
            [("memory.max", limit), ("memory.current", used), ("memory.stat", stat)]
        };
        group(mount.path(), "", &[("memory.stat", "anon 5\n")]);
        group(mount.path(), "pod", &second("1000\n", "900\n", "anon 5\ninactive_file 300\n"));
        group(mount.path(), "pod/app", &second("max\n", "700\n", "active_file 100\n"));
        assert_eq!(below("0::/pod/app\n"), Some(400));
        group(mount.path(), "pod/app", &second("750\n", "700\n", "active_file 100\n"));
        assert_eq!(below("0::/pod/app\n"), Some(150));
        // No limit, no such group, and one outside of strata's own.
        group(mount.path(), "free", &second("max\n", "700\n", ""));
        for other in ["0::/free\n", "0::/gone\n", "0::/../pod\n", "0::/\n", "", "x\n"] {
            assert_eq!(below(other), None, "{other}");
        }
    }

    #[test]
    fn control_groups_of_the_first_version_are_found_by_their_controller() {
        let mount = tempfile::tempdir().expect("a folder");
        let first = [
            ("memory.limit_in_bytes", "5000\n"),
            ("memory.usage_in_bytes", "4900\n"),
            ("memory.stat", "cache 9\ninactive_file 1\ntotal_inactive_file 500\n"),
        ];
        group(mount.path(), "memory/app", &first);
        let text = "9:cpu,cpuacct:/other\n8:memory:/app\n0::/\n";
        assert_eq!(room_below(mount.path(), text), Some(600));
    }
}
