//! Which user a process runs as, its number in its own pid namespace, and which processes it was
//! forked from: noted once per image, at its first sample, because a short process is gone when its
//! code is symbolized.

use super::space::Backing;
use super::table::ProcessTable;
use crate::hash::HashMap;
use crate::image_id::ImageId;
use crate::proc_file;

/// Processes that one was forked from, one from the other, that are noted of it.
const MOST_ANCESTORS: usize = 4;

/// Credentials of a process: they decide which files about it are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user, as this process numbers users.
    pub user: u32,
    /// The user that started it, also where its program is another user's (setuid).
    pub real_user: u32,
    /// The user that is root inside the process's user namespace.
    pub root: u32,
    /// The process's number in its own pid namespace.
    pub inner_pid: u32,
}

impl Credentials {
    pub fn of(pid: u32) -> Option<Self> {
        let status = proc_file::text(pid, "status").ok()?;
        let map = proc_file::text(pid, "uid_map").unwrap_or_default();
        parse(&status, &map)
    }

    /// Whether a file of this owner is trusted about the process: only owners that could write into
    /// the process anyway are.
    pub fn believes(&self, owner: u32) -> bool {
        owner == self.user || owner == self.root || owner == 0
    }
}

fn parse(status: &str, uid_map: &str) -> Option<Credentials> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let mut users = field("Uid:")?.split_ascii_whitespace();
    let real_user = users.next()?.parse().ok()?;
    let user = users.next()?.parse().ok()?;
    let inner = field("NSpid:").or_else(|| field("Pid:"))?;
    let inner_pid = inner.split_ascii_whitespace().last()?.parse().ok()?;
    let root = uid_map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace();
        (numbers.next()? == "0").then(|| numbers.next()?.parse().ok())?
    });
    Some(Credentials { user, real_user, root: root.unwrap_or(0), inner_pid })
}

/// A process that another was forked from, directly or not.
#[derive(Clone, Copy, Debug)]
pub struct Ancestor {
    pub pid: u32,
    pub image: ImageId,
    /// Not of one that had ended unseen.
    pub credentials: Option<Credentials>,
}

struct Noted {
    credentials: Option<Credentials>,
    ancestors: Box<[Ancestor]>,
}

/// Of all images that were sampled.
#[derive(Default)]
pub struct AllCredentials {
    by_image: HashMap<ImageId, Noted>,
}

impl AllCredentials {
    /// Reads those of an image that is sampled for the first time.
    pub fn note(&mut self, image: ImageId, pid: u32, table: &ProcessTable) {
        if !self.by_image.contains_key(&image) {
            let noted = Noted {
                credentials: Credentials::of(pid),
                ancestors: self.ancestors_of(pid, table),
            };
            self.by_image.insert(image, noted);
        }
    }

    pub fn of(&self, image: ImageId) -> Option<Credentials> {
        self.by_image.get(&image)?.credentials
    }

    /// The processes that an image's was forked from, the nearest first: those that its code may be
    /// of, as it has generated code. Some may have ended since.
    pub fn ancestors(&self, image: ImageId) -> &[Ancestor] {
        self.by_image.get(&image).map_or(&[], |noted| &noted.ancestors)
    }

    fn ancestors_of(&self, pid: u32, table: &ProcessTable) -> Box<[Ancestor]> {
        let has_generated_code = table.get(pid).is_some_and(|process| {
            let mappings = process.space.mappings();
            mappings.iter().any(|mapping| mapping.backing == Backing::Anonymous)
        });
        if !has_generated_code {
            return Box::default();
        }
        let parents = std::iter::successors(Some(pid), |&pid| table.forked_from(pid)).skip(1);
        let ancestors = parents.take(MOST_ANCESTORS).filter_map(|pid| {
            let image = table.get(pid)?.image;
            // It may never have been sampled.
            let credentials = self.of(image).or_else(|| Credentials::of(pid));
            Some(Ancestor { pid, image, credentials })
        });
        ancestors.collect()
    }

    pub fn retain(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        self.by_image.retain(|image, _| is_kept(*image));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_the_effective_one_and_root_that_of_the_user_namespace() {
        let status = "Name:\tnode\nPid:\t900\nUid:\t0\t101000\t0\t0\nNSpid:\t900\t7\n";
        let inside = parse(status, "         0     100000      65536\n").expect("it is complete");
        assert_eq!(
            inside,
            Credentials { user: 101_000, real_user: 0, root: 100_000, inner_pid: 7 }
        );
        assert!(inside.believes(101_000) && inside.believes(100_000) && inside.believes(0));
        assert!(!inside.believes(1000), "another user of the host");
        let of_root = parse("Pid:\t5\nUid:\t0\t0\t0\t0\n", "0 0 4294967295\n").expect("complete");
        assert!(!of_root.believes(1000), "an unprivileged user says nothing about root's process");
    }

    #[test]
    fn this_process_is_found() {
        let own = Credentials::of(std::process::id()).expect("it is here");
        // SAFETY: takes nothing, cannot fail.
        assert_eq!(own.user, unsafe { libc::geteuid() });
    }
}
