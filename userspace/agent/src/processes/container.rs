//! Control groups of processes, read once per image and kept after its exit.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

pub use strata_metadata::control_group::{Group, parse};

use crate::image_id::ImageId;
use crate::proc_file;

/// Groups of process images, read at an image's first sample.
#[derive(Default)]
pub struct Groups {
    by_text: HashMap<String, Arc<Group>>,
    by_image: HashMap<ImageId, Option<Arc<Group>>>,
    by_id: HashMap<u64, Arc<Group>>,
}

/// Where the unified hierarchy is mounted; where it is not (version 1), nothing is seen there.
const UNIFIED: &str = "/sys/fs/cgroup";
/// Number of the root of the unified hierarchy, where everything is on hosts without one.
const ROOT_GROUP: u64 = 1;

impl Groups {
    /// The group of an image. A process that is gone already has the group that others with the
    /// same number had; where it has no number, its parent's, if that is a container: a process
    /// started in a container stays there, while a service is moved into its own group by systemd.
    pub fn of_image(
        &mut self,
        image: ImageId,
        pid: u32,
        number: u64,
        parent: Option<ImageId>,
    ) -> Option<Arc<Group>> {
        if let Some(known) = self.by_image.get(&image) {
            return known.clone();
        }
        let text = proc_file::text(pid, "cgroup").ok();
        let group = text.as_deref().map(|text| self.of_text(text));
        if let (Some(group), Some(text)) = (&group, &text)
            && number > ROOT_GROUP
            && !self.by_id.get(&number).is_some_and(|known| Arc::ptr_eq(known, group))
            && is_numbered(Path::new(UNIFIED), text, number) != Some(false)
        {
            self.by_id.insert(number, group.clone());
        }
        let group = group.or_else(|| self.by_id.get(&number).cloned()).or_else(|| {
            let parents = self.known(parent.filter(|_| number <= ROOT_GROUP)?)?;
            parents.container.is_some().then(|| parents.clone())
        });
        self.by_image.insert(image, group.clone());
        group
    }

    /// Reads the group of an image that has no sample yet. False where it was read before, or cannot be:
    /// its first sample may say more.
    pub fn note(&mut self, image: ImageId, pid: u32) -> bool {
        if self.knows(image) {
            return false;
        }
        let Some(group) = self.read(pid) else { return false };
        self.by_image.insert(image, Some(group));
        true
    }

    pub fn knows(&self, image: ImageId) -> bool {
        self.by_image.contains_key(&image)
    }

    /// Reads the group of a process, of which nothing is kept: its first sample may say more.
    pub fn look(pid: u32) -> Option<Group> {
        Some(parse(&proc_file::text(pid, "cgroup").ok()?))
    }

    pub fn known(&self, image: ImageId) -> Option<&Arc<Group>> {
        self.by_image.get(&image)?.as_ref()
    }

    fn read(&mut self, pid: u32) -> Option<Arc<Group>> {
        Some(self.of_text(&proc_file::text(pid, "cgroup").ok()?))
    }

    fn of_text(&mut self, text: &str) -> Arc<Group> {
        if let Some(known) = self.by_text.get(text) {
            return known.clone();
        }
        let group = Arc::new(parse(text));
        self.by_text.insert(text.to_owned(), group.clone());
        group
    }

    /// Drops the groups of images that are forgotten, and groups without an image.
    pub fn retain(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        self.by_image.retain(|image, _| is_kept(*image));
        // One for the text, one for the number.
        self.by_id.retain(|_, group| Arc::strong_count(group) > 2);
        self.by_text.retain(|_, group| Arc::strong_count(group) > 1);
    }
}

/// Whether the group that a process is in has the number that its sample had: it may have been moved
/// since, as runtimes move the first process of a container out of their own group. `None` where no
/// group is seen below the directory.
fn is_numbered(unified: &Path, text: &str, number: u64) -> Option<bool> {
    let mut paths = text.lines().filter_map(|line| line.strip_prefix("0::/"));
    // Above the root of a namespace of control groups nothing is seen.
    let path = paths.find(|path| !path.starts_with(".."))?;
    let directory = unified.join(path.trim_end_matches(" (deleted)"));
    Some(directory.metadata().ok()?.ino() == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_moved_says_nothing_of_the_group_that_it_was_sampled_in() {
        let unified = tempfile::tempdir().expect("a folder");
        let [runtime, pod] = ["containerd.service", "pod-a"].map(|name| {
            let folder = unified.path().join(name);
            std::fs::create_dir(&folder).expect("made");
            folder.metadata().expect("it is there").ino()
        });
        let of = |text, number| is_numbered(unified.path(), text, number);
        assert_eq!(of("12:cpu:/x\n0::/pod-a\n", pod), Some(true));
        assert_eq!(of("12:cpu:/x\n0::/pod-a\n", runtime), Some(false));
        assert_eq!(of("0::/pod-b\n", runtime), None, "it is gone, or below another directory");
        assert_eq!(of("12:cpu:/x\n", runtime), None);
        assert_eq!(of("0::/../pod-a\n", runtime), None);
    }

    /// No process has this pid.
    const GONE: u32 = u32::MAX;

    #[test]
    fn a_group_is_noted_once_and_that_of_a_process_that_is_gone_is_left_to_its_first_sample() {
        let mut groups = Groups::default();
        assert!(groups.note(ImageId(1), std::process::id()));
        assert!(!groups.note(ImageId(1), std::process::id()));
        let own = groups.known(ImageId(1)).cloned();
        assert!(own.is_some());
        assert!(!groups.note(ImageId(2), GONE) && !groups.knows(ImageId(2)));
        let service = Arc::new(parse("0::/system.slice/cron.service"));
        groups.by_id.insert(77, service.clone());
        assert_eq!(groups.of_image(ImageId(2), GONE, 77, None), Some(service));
        assert_eq!(groups.of_image(ImageId(1), GONE, 77, None), own);
    }

    #[test]
    fn who_is_gone_has_the_group_of_its_number_or_of_its_parent_in_a_container() {
        let mut groups = Groups::default();
        let id = "9".repeat(64);
        let container = Arc::new(parse(&format!("0::/docker/{id}")));
        let service = Arc::new(parse("0::/system.slice/cron.service"));
        let (shell, cron) = (ImageId(1), ImageId(2));
        groups.by_image.insert(shell, Some(container.clone()));
        groups.by_image.insert(cron, Some(service.clone()));
        groups.by_id.insert(77, service.clone());
        let mut ask = |image, number, parent| {
            groups.of_image(ImageId(image), GONE, number, parent).map(|group| group.path.clone())
        };
        assert_eq!(ask(10, 77, Some(shell)), Some(service.path.clone()), "its number says more");
        assert_eq!(ask(11, 78, Some(shell)), None, "another group than any known one");
        assert_eq!(ask(12, 0, Some(shell)), Some(container.path.clone()));
        assert_eq!(ask(13, ROOT_GROUP, Some(shell)), Some(container.path.clone()));
        assert_eq!(ask(14, 0, Some(cron)), None, "it may be a service that starts");
        assert_eq!(ask(15, 0, None), None);
    }
}
