//! Container ids from control groups.
//!
//! Container runtimes name the control group of a container by its id: 64 hex digits, with
//! decorations (`docker-<id>.scope`, `cri-containerd-<id>.scope`, `/kubepods/…/<id>`).

use std::collections::HashMap;
use std::sync::Arc;

use super::table::ImageId;

/// The innermost container id in a control group's path.
pub fn id_in_path(path: &str) -> Option<&str> {
    path.rsplit('/').find_map(|part| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let candidate = part.rsplit(['-', ':']).next().unwrap_or(part);
        is_id(candidate).then_some(candidate)
    })
}

fn is_id(text: &str) -> bool {
    (text.len() == 64 || text.len() == 32)
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// What is known of a process's control group.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Group {
    /// Path in the hierarchy that tells most (the unified one, else the longest).
    pub path: String,
    pub container: Option<String>,
}

/// Parses `/proc/PID/cgroup`.
pub fn parse(text: &str) -> Group {
    let mut best = "";
    let mut container = None;
    for line in text.lines() {
        let Some(path) = line.splitn(3, ':').nth(2) else { continue };
        if container.is_none() {
            container = id_in_path(path);
        }
        if line.starts_with("0::") && path != "/" || path.len() > best.len() {
            best = path;
        }
    }
    Group { path: best.to_owned(), container: container.map(str::to_owned) }
}

/// Groups of process images, read at an image's first sample.
#[derive(Default)]
pub struct Groups {
    by_text: HashMap<String, Arc<Group>>,
    by_image: HashMap<ImageId, Option<Arc<Group>>>,
    by_id: HashMap<u64, Arc<Group>>,
}

/// Number of the root of the unified hierarchy, where everything is on hosts without one.
const ROOT_GROUP: u64 = 1;

impl Groups {
    /// The group of an image. A process that is gone already has the group that others with
    /// the same number had.
    pub fn of_image(&mut self, image: ImageId, pid: u32, number: u64) -> Option<Arc<Group>> {
        if let Some(known) = self.by_image.get(&image) {
            return known.clone();
        }
        let group = self.read(pid);
        match &group {
            Some(group) if number > ROOT_GROUP => {
                self.by_id.insert(number, group.clone());
            }
            _ => {}
        }
        let group = group.or_else(|| self.by_id.get(&number).cloned());
        self.by_image.insert(image, group.clone());
        group
    }

    pub fn known(&self, image: ImageId) -> Option<&Arc<Group>> {
        self.by_image.get(&image)?.as_ref()
    }

    fn read(&mut self, pid: u32) -> Option<Arc<Group>> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        if let Some(known) = self.by_text.get(&text) {
            return Some(known.clone());
        }
        let group = Arc::new(parse(&text));
        self.by_text.insert(text, group.clone());
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f1d6ad20b5cf1b4a1d9a2f5f6e3f1b0aa3d7c7c8f6f8f1b0c9d8e7f6a5b4c3d";

    #[test]
    fn runtimes_name_their_groups_by_the_container() {
        for path in [
            format!("/system.slice/docker-{ID}.scope"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"),
            format!("/docker/{ID}"),
            format!("/kubepods/burstable/pod17/{ID}"),
            format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"),
        ] {
            assert_eq!(id_in_path(&path), Some(ID), "{path}");
        }
        assert_eq!(id_in_path("/user.slice/user-0.slice/session-1.scope"), None);
    }

    #[test]
    fn both_hierarchies_are_read() {
        let text = format!("12:cpu:/docker/{ID}\n0::/\n");
        let group = parse(&text);
        assert_eq!(group.container.as_deref(), Some(ID));
        assert_eq!(group.path, format!("/docker/{ID}"));
    }
}
