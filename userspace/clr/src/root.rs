//! Directories below a target's root, walked name by name.
//!
//! Each step is an `openat2` of one name with `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_MAGICLINKS`,
//! and nothing is opened: what is found are `O_PATH` handles. A link, where allowed, is read and
//! followed here, so that it cannot lead out of the root nor through `/proc/PID/root` of another.
//!
//! Invariant: with [`Patience::LocalOnly`] no name is looked up on a filesystem for which a server
//! other than this kernel answers. Without it a lookup may hang: see [`crate::guarded`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat2, readlinkat, statx,
};
use rustix::io::Errno;
use strata_sandbox::opening::{Manners, Mounts};

use crate::deadline::Deadline;
use crate::guarded::Patience;
use crate::target::{Target, TargetError};

/// As many links as the kernel follows (MAXSYMLINKS, include/linux/namei.h).
const MAX_LINKS: usize = 40;
/// Deeper directories are not walked.
const MAX_DEPTH: usize = 128;
/// PATH_MAX.
const MAX_PATH: usize = 4096;
/// How often a step is tried again when a rename raced with it (openat2(2), EAGAIN).
const RACED_STEPS: usize = 8;

/// Which links in the way of a directory are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Those of root: for reading. A target's own links are refused.
    OfRoot,
    /// None: for creating a file.
    Refused,
}

/// Why a directory of a target could not be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RootError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("{0} does not exist there")]
    NotFound(String),
    #[error("{0} is not a directory")]
    NotADirectory(String),
    #[error("{0} is a link, and strata follows no link of a process it looks into")]
    Link(String),
    #[error("{0} can be changed by users other than root and the process's own")]
    NotPrivate(String),
    #[error("{0} is on a filesystem that may hang, and other processes hang strata already")]
    MayHang(String),
    #[error("{0} is too long, too deep, not absolute or has no end of links")]
    UnusablePath(String),
    #[error("{path}: {errno}")]
    Other { path: String, errno: Errno },
    #[error("the time for looking was up")]
    TimedOut,
}

/// The root of a target, and how to walk below it.
pub struct Root<'a> {
    target: &'a Target,
    directory: OwnedFd,
    mounts: Mounts,
    patience: Patience,
    deadline: Deadline,
}

impl<'a> Root<'a> {
    pub fn of(
        target: &'a Target,
        patience: Patience,
        deadline: Deadline,
    ) -> Result<Self, TargetError> {
        let directory = target.open_link("root")?;
        Ok(Self { target, directory, mounts: Mounts::default(), patience, deadline })
    }

    /// An `O_PATH` handle of the directory that the target knows by this absolute path.
    pub fn directory(&mut self, path: &[u8], links: Links) -> Result<OwnedFd, RootError> {
        self.walk(path, links, |_| true)
    }

    /// The same, when no user but root and this one can put something else in the place of any part
    /// of the path: for what the target will look up by that path again. The owner of the target's
    /// root is root in its container.
    pub fn private_directory(&mut self, path: &[u8], user: u32) -> Result<OwnedFd, RootError> {
        let handle = rustix::io::fcntl_dupfd_cloexec(&self.directory, 0);
        let root = handle.and_then(Entry::of);
        let root = root.map_err(|errno| RootError::Other { path: shown(path), errno })?;
        let trusted = [0, user, root.owner];
        if !root.is_private_to(&trusted) {
            return Err(RootError::NotPrivate("/".to_owned()));
        }
        self.walk(path, Links::Refused, |entry| entry.is_private_to(&trusted))
    }

    fn walk(
        &mut self,
        path: &[u8],
        links: Links,
        is_good: impl Fn(&Entry) -> bool,
    ) -> Result<OwnedFd, RootError> {
        let shown = || shown(path);
        if path.len() > MAX_PATH || path.first() != Some(&b'/') {
            return Err(RootError::UnusablePath(shown()));
        }
        // Names still to walk, the next one last.
        let mut names = names_reversed(path);
        let mut walked: Vec<OwnedFd> = Vec::new();
        // The path of what is walked, for an error.
        let mut trail: Vec<Vec<u8>> = Vec::new();
        let mut links_left = MAX_LINKS;
        while let Some(name) = names.pop() {
            if self.deadline.has_passed() {
                return Err(RootError::TimedOut);
            }
            if name == b".." {
                // At the root it stays there, as in the kernel.
                walked.pop();
                trail.pop();
                continue;
            }
            if walked.len() >= MAX_DEPTH || names.len() > MAX_PATH {
                return Err(RootError::UnusablePath(shown()));
            }
            let here = walked.last().unwrap_or(&self.directory).as_fd();
            let here = rustix::io::fcntl_dupfd_cloexec(here, 0)
                .map_err(|errno| RootError::Other { path: shown(), errno })?;
            let found = self.entry(here.as_fd(), &name).map_err(|error| error.of(path))?;
            match found.kind {
                FileType::Directory => {
                    trail.push(name);
                    if !is_good(&found) {
                        let part: Vec<u8> =
                            trail.iter().flat_map(|n| [b"/", &**n].concat()).collect();
                        return Err(RootError::NotPrivate(self::shown(&part)));
                    }
                    walked.push(found.handle);
                }
                FileType::Symlink => {
                    let may_follow = links == Links::OfRoot && found.owner == 0;
                    links_left = links_left.saturating_sub(1);
                    if !may_follow {
                        return Err(RootError::Link(shown()));
                    }
                    if links_left == 0 {
                        return Err(RootError::UnusablePath(shown()));
                    }
                    let text = readlinkat(&found.handle, "", Vec::new())
                        .map_err(|errno| RootError::Other { path: shown(), errno })?;
                    if text.as_bytes().first() == Some(&b'/') {
                        walked.clear();
                        trail.clear();
                    }
                    names.extend(names_reversed(text.as_bytes()));
                }
                _ => return Err(RootError::NotADirectory(shown())),
            }
        }
        match walked.pop() {
            Some(directory) => Ok(directory),
            None => rustix::io::fcntl_dupfd_cloexec(&self.directory, 0)
                .map_err(|errno| RootError::Other { path: shown(), errno }),
        }
    }

    /// One name in a directory, whatever it is; a link is found as such.
    pub fn entry(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<Entry, EntryError> {
        if self.patience == Patience::LocalOnly && !self.answers_locally(directory) {
            return Err(EntryError::MayHang);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mut tries = 0;
        let handle = loop {
            match openat2(directory, name, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) if tries < RACED_STEPS => tries += 1,
                outcome => break outcome.map_err(EntryError::Failed)?,
            }
        };
        Entry::of(handle).map_err(EntryError::Failed)
    }

    /// Whether looking up names in this directory ends in bounded time.
    fn answers_locally(&mut self, directory: BorrowedFd<'_>) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let Ok(found) = statx(directory, "", flags, StatxFlags::MNT_ID) else { return false };
        if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return false;
        }
        let manners = self.mounts.manners(found.stx_mnt_id, Some(self.target.directory()));
        matches!(manners, Manners::Local | Manners::Overlay)
    }

    /// The path by which the target itself would name its working directory; checked by walking
    /// it, because a process may have left its root, or the directory its place.
    pub fn working_directory(&mut self) -> Option<(Vec<u8>, OwnedFd)> {
        let seen = self.target.read_link("cwd").ok()?;
        let root = self.target.read_link("root").ok()?;
        let root = root.strip_suffix(b"/").unwrap_or(&root);
        let path = seen.strip_prefix(root)?.to_vec();
        let path = if path.is_empty() { b"/".to_vec() } else { path };
        let real = Entry::of(self.target.open_link("cwd").ok()?).ok()?;
        let walked = Entry::of(self.directory(&path, Links::Refused).ok()?).ok()?;
        (real.is_same_as(&walked)).then_some((path, walked.handle))
    }
}

/// Something found by a name.
#[derive(Debug)]
pub struct Entry {
    pub handle: OwnedFd,
    pub kind: FileType,
    /// Its owner, in the numbers of strata's own user namespace.
    pub owner: u32,
    mode: u16,
    device: (u32, u32),
    inode: u64,
}

impl Entry {
    fn of(handle: OwnedFd) -> Result<Self, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID | StatxFlags::INO;
        let found = statx(&handle, "", flags, wanted)?;
        if found.stx_mask & wanted.bits() != wanted.bits() {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Self {
            kind: FileType::from_raw_mode(found.stx_mode.into()),
            owner: found.stx_uid,
            mode: found.stx_mode,
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            handle,
        })
    }

    /// No other user can change what lies in this directory: it belongs to one of these, and others
    /// may not write there, or may not touch what is not theirs (the sticky bit). An access list
    /// that grants write access shows in the group's bits (acl(5)).
    fn is_private_to(&self, users: &[u32]) -> bool {
        const STICKY: u16 = 0o1000;
        const OTHERS_WRITE: u16 = 0o022;
        users.contains(&self.owner) && (self.mode & OTHERS_WRITE == 0 || self.mode & STICKY != 0)
    }

    pub fn is_same_as(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Why a name could not be looked up; the path is the caller's to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryError {
    MayHang,
    Failed(Errno),
}

impl EntryError {
    pub fn of(self, path: &[u8]) -> RootError {
        let path = shown(path);
        match self {
            Self::MayHang => RootError::MayHang(path),
            Self::Failed(Errno::NOENT) => RootError::NotFound(path),
            Self::Failed(Errno::NOTDIR) => RootError::NotADirectory(path),
            Self::Failed(Errno::LOOP | Errno::XDEV) => RootError::Link(path),
            Self::Failed(errno) => RootError::Other { path, errno },
        }
    }
}

/// The names of a path, last one first.
fn names_reversed(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.reverse();
    names
}

/// A target's path for display: without control characters.
pub fn shown(path: &[u8]) -> String {
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(path.get(..LONGEST).unwrap_or(path));
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::Duration;

    fn walk(path: &Path, links: Links) -> Result<OwnedFd, RootError> {
        use std::os::unix::ffi::OsStrExt;
        let target = Target::open(std::process::id()).unwrap();
        let deadline = Deadline::within(Duration::from_secs(5));
        let mut root = Root::of(&target, Patience::AnyFilesystem, deadline).unwrap();
        root.directory(path.as_os_str().as_bytes(), links)
    }

    #[test]
    fn a_directory_is_found_through_dots_and_doubled_slashes() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("below")).unwrap();
        let path = folder.path().join("below//./../below/");
        let found = Entry::of(walk(&path, Links::Refused).unwrap()).unwrap();
        let same = Entry::of(walk(&folder.path().join("below"), Links::Refused).unwrap()).unwrap();
        assert!(found.is_same_as(&same));
        assert!(walk(Path::new("/../../.."), Links::Refused).is_ok());
        let missing = walk(&folder.path().join("missing"), Links::Refused).unwrap_err();
        assert!(matches!(missing, RootError::NotFound(_)));
    }

    #[test]
    fn links_are_followed_only_where_that_was_asked_for_and_only_roots() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        std::fs::create_dir(place.join("real")).unwrap();
        symlink(place.join("real"), place.join("absolute")).unwrap();
        symlink("./absolute/../real", place.join("relative")).unwrap();
        symlink("loop", place.join("loop")).unwrap();
        assert!(matches!(walk(&place.join("relative"), Links::Refused), Err(RootError::Link(_))));
        if !rustix::process::geteuid().is_root() {
            assert!(walk(&place.join("relative"), Links::OfRoot).is_err());
            return strata_skip::skipped!("only root follows links of the target's root");
        }
        let found = Entry::of(walk(&place.join("relative"), Links::OfRoot).unwrap()).unwrap();
        let real = Entry::of(walk(&place.join("real"), Links::Refused).unwrap()).unwrap();
        assert!(found.is_same_as(&real));
        let endless = walk(&place.join("loop"), Links::OfRoot).unwrap_err();
        assert!(matches!(endless, RootError::UnusablePath(_)));
        std::os::unix::fs::lchown(place.join("absolute"), Some(1234), None).unwrap();
        assert!(matches!(walk(&place.join("absolute"), Links::OfRoot), Err(RootError::Link(_))));
    }

    #[test]
    fn a_path_that_another_user_can_change_is_not_private() {
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::{PermissionsExt, chown};

        if !rustix::process::geteuid().is_root() {
            return strata_skip::skipped!("only root can give a directory to another user");
        }
        let private = |path: &Path, user| {
            let target = Target::open(std::process::id()).unwrap();
            let deadline = Deadline::within(Duration::from_secs(5));
            let mut root = Root::of(&target, Patience::AnyFilesystem, deadline).unwrap();
            root.private_directory(path.as_os_str().as_bytes(), user).map(|_| ())
        };
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let between = folder.path().join("between");
        let inner = between.join("inner");
        std::fs::create_dir_all(&inner).unwrap();
        assert_eq!(private(&inner, 0), Ok(()));
        let refused = Err(RootError::NotPrivate(between.to_str().unwrap().to_owned()));
        chown(&between, Some(4321), None).unwrap();
        assert_eq!(private(&inner, 0), refused);
        assert_eq!(private(&inner, 4321), Ok(()));
        assert_eq!(private(&inner, 4322), refused);
        chown(&between, Some(0), None).unwrap();
        for mode in [0o777, 0o775] {
            std::fs::set_permissions(&between, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(private(&inner, 0), refused);
        }
        std::fs::set_permissions(&between, PermissionsExt::from_mode(0o1777)).unwrap();
        assert_eq!(private(&inner, 0), Ok(()));
    }

    #[test]
    fn a_magic_link_is_no_way_out() {
        let path = format!("/proc/{}/root/tmp", std::process::id());
        let outcome = walk(Path::new(&path), Links::OfRoot).map(|_| ());
        // The kernel's own links have an owner, and their text leads back below the same root.
        assert!(outcome.is_ok() || matches!(outcome, Err(RootError::Link(_))), "{outcome:?}");
        let outside = walk(Path::new(&path), Links::Refused).unwrap_err();
        assert!(matches!(outside, RootError::Link(_)));
    }

    #[test]
    fn only_local_filesystems_are_walked_when_that_is_asked() {
        let target = Target::open(std::process::id()).unwrap();
        let deadline = Deadline::within(Duration::from_secs(5));
        let mut root = Root::of(&target, Patience::LocalOnly, deadline).unwrap();
        assert!(root.directory(b"/proc/self/..", Links::Refused).is_err());
        let late = Deadline::within(Duration::ZERO);
        let mut root = Root::of(&target, Patience::AnyFilesystem, late).unwrap();
        assert_eq!(root.directory(b"/tmp", Links::Refused).unwrap_err(), RootError::TimedOut);
    }

    #[test]
    fn the_working_directory_is_the_one_the_process_is_in() {
        let target = Target::open(std::process::id()).unwrap();
        let deadline = Deadline::within(Duration::from_secs(5));
        let mut root = Root::of(&target, Patience::AnyFilesystem, deadline).unwrap();
        let (path, _) = root.working_directory().unwrap();
        assert_eq!(
            String::from_utf8(path).unwrap(),
            std::env::current_dir().unwrap().to_str().unwrap()
        );
    }
}
