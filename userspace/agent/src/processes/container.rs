//! Control groups of processes, read once per image and kept after its exit.

use std::collections::HashMap;
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
        let group = self.read(pid);
        match &group {
            Some(group) if number > ROOT_GROUP => {
                self.by_id.insert(number, group.clone());
            }
            _ => {}
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
        let text = proc_file::text(pid, "cgroup").ok()?;
        if let Some(known) = self.by_text.get(&text) {
            return Some(known.clone());
        }
        let group = Arc::new(parse(&text));
        self.by_text.insert(text, group.clone());
        Some(group)
    }
    /// Drops the groups of images that are forgotten, and groups without an image.
    pub fn retain(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        self.by_image.retain(|image, _| is_kept(*image));
        // One for the text, one for the number.
        self.by_id.retain(|_, group| Arc::strong_count(group) > 2);
        self.by_text.retain(|_, group| Arc::strong_count(group) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
