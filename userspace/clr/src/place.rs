//! Places the library where a target can load it, and removes it again.
//!
//! Only for a target that does not have it mapped already. The file is made by the target's own
//! user, with a random name, in a directory that was reached without following a link and whose
//! mount lets code be mapped. Once it is loaded the name may be removed: the mapping remains.
//!
//! The target looks its path up again to load it. So no user but root and the target's own may be able
//! to change any part of that path: code of that user's would run as the target.
//!
//! Invariant: whatever was made is removed when [`Placed`] is dropped.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxFlags};
use rustix::fs::{fstatvfs, openat2, statx, unlinkat};
use rustix::io::Errno;
use strata_sandbox::opening::answers_locally;

use crate::assume::Assumed;
use crate::deadline::Deadline;
use crate::profilers::STRATA_LIBRARY;
use crate::root::{Root, RootError};
use crate::socket::directory_of;
use crate::switches::Switches;
use crate::target::{Status, Target};

/// More mounts of a target are not tried after the usual directories.
const MAX_MOUNTS: usize = 32;
const MAX_MOUNTINFO: usize = 1 << 20;

/// Why the library cannot be placed in a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("mounted noexec")]
    NoExec,
    #[error("mounted read-only")]
    ReadOnly,
    #[error("users other than root and the process's own can change {0}")]
    NotPrivate(String),
    #[error("not writable for the process's user")]
    NotWritable,
    #[error("full")]
    Full,
    #[error("its name is not UTF-8, which the runtime needs")]
    Name,
    #[error("the runtime could not load the library from there")]
    NotLoadable,
    #[error("{0}")]
    Unreachable(#[from] RootError),
    #[error("{0}")]
    Failed(Errno),
}

/// A directory that was tried, and the reason why it is not usable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    pub directory: String,
    pub why: Unusable,
}

/// Why the library could not be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    #[error(
        "every directory the process can write to is mounted noexec ({}); mount one of them with exec, or load strata's library at start (`strata env`)",
        list(.0)
    )]
    NoExecEverywhere(Vec<Tried>),
    #[error(
        "the process has no directory where its library could be put ({}); give it a writable TMPDIR, or load the library at start (`strata env`)",
        list(.0)
    )]
    Nowhere(Vec<Tried>),
    #[error("strata may not act as the process's user: {0}; it needs CAP_SETUID and CAP_SETGID")]
    CannotAssume(Errno),
}

fn list(tried: &[Tried]) -> String {
    const SHOWN: usize = 8;
    let mut parts: Vec<String> = tried
        .iter()
        .take(SHOWN)
        .map(|tried| format!("{}: {}", tried.directory, tried.why))
        .collect();
    if tried.len() > SHOWN {
        parts.push(format!("and {} more", tried.len() - SHOWN));
    }
    parts.join(", ")
}

impl PlaceError {
    pub fn nowhere(tried: Vec<Tried>) -> Self {
        let is_no_exec = |tried: &Tried| tried.why == Unusable::NoExec;
        let is_closed = |tried: &Tried| {
            matches!(
                tried.why,
                Unusable::NotWritable
                    | Unusable::ReadOnly
                    | Unusable::Unreachable(RootError::NotFound(_) | RootError::NotADirectory(_))
            )
        };
        let only_no_exec = tried.iter().all(|tried| is_no_exec(tried) || is_closed(tried));
        if only_no_exec && tried.iter().any(is_no_exec) {
            Self::NoExecEverywhere(tried)
        } else {
            Self::Nowhere(tried)
        }
    }
}

/// The directories to try, in this order, by the names that the target knows them by.
pub fn candidates(root: &mut Root<'_>, target: &Target, switches: &Switches) -> Vec<Vec<u8>> {
    let usual: [&[u8]; 4] = [directory_of(switches), b"/tmp", b"/dev/shm", b"/var/tmp"];
    let mut found: Vec<Vec<u8>> = usual.map(<[u8]>::to_vec).to_vec();
    found.extend(root.working_directory().map(|(path, _)| path));
    found.extend(writable_mounts(&target.read("mountinfo", MAX_MOUNTINFO).unwrap_or_default()));
    let mut seen = std::collections::HashSet::new();
    found.retain(|path| path.first() == Some(&b'/') && seen.insert(path.clone()));
    found
}

/// Mount points that are writable, not noexec, and of a filesystem that cannot hang.
pub(crate) fn writable_mounts(mountinfo: &[u8]) -> Vec<Vec<u8>> {
    let lines = mountinfo.split(|&byte| byte == b'\n');
    lines.filter_map(writable_mount).take(MAX_MOUNTS).collect()
}

/// `36 35 98:0 /root /mount rw,noatime master:1 - ext4 /dev/sda rw`
fn writable_mount(line: &[u8]) -> Option<Vec<u8>> {
    let mut fields = line.split(|&byte| byte == b' ');
    let point = fields.nth(4)?;
    let options = fields.next()?;
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    let mut options = options.split(|&byte| byte == b',');
    let usable = options.all(|option| option != b"ro" && option != b"noexec")
        && answers_locally(kind)
        && kind != b"devtmpfs";
    usable.then(|| unescaped(point))
}

/// Space, tab, newline and backslash are `\ooo` in mountinfo.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.first_chunk::<3>().and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match byte {
            Some(byte) if first == b'\\' => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                plain.push(first);
                rest = after;
            }
        }
    }
    plain
}

/// The library in a directory of the target, until dropped.
pub struct Placed {
    directory: OwnedFd,
    name: String,
    file: OwnedFd,
    /// Of the target, whose user removes it: a server may trust root with nothing.
    status: Status,
    /// Its path as the target sees it.
    pub path: String,
}

/// Makes the library in one directory.
pub fn place(
    root: &mut Root<'_>,
    status: &Status,
    directory: &[u8],
    library: &[u8],
    deadline: Deadline,
) -> Result<Result<Placed, Unusable>, PlaceError> {
    let Ok(text) = std::str::from_utf8(directory) else { return Ok(Err(Unusable::Name)) };
    let opened = match root.private_directory(directory, status.user()) {
        Ok(opened) => opened,
        Err(RootError::NotPrivate(part)) => return Ok(Err(Unusable::NotPrivate(part))),
        Err(error) => return Ok(Err(error.into())),
    };
    let flags = match fstatvfs(&opened) {
        Ok(found) => found.f_flag,
        Err(errno) => return Ok(Err(Unusable::Failed(errno))),
    };
    if flags.contains(StatVfsMountFlags::RDONLY) {
        return Ok(Err(Unusable::ReadOnly));
    }
    let no_exec = flags.contains(StatVfsMountFlags::NOEXEC);
    let Some(name) = random_name() else { return Ok(Err(Unusable::Failed(Errno::AGAIN))) };
    let path = format!("{}/{name}", text.trim_end_matches('/'));
    let _assumed = Assumed::user_of(status).map_err(PlaceError::CannotAssume)?;
    if no_exec {
        // What the process could not write to either is not called noexec.
        let may_write = rustix::fs::accessat(
            &opened,
            ".",
            rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
            AtFlags::EACCESS,
        );
        return Ok(Err(if may_write.is_ok() { Unusable::NoExec } else { Unusable::NotWritable }));
    }
    if deadline.has_passed() {
        return Ok(Err(RootError::TimedOut.into()));
    }
    Ok(make(opened, name, path, status, library))
}

fn make(
    directory: OwnedFd,
    name: String,
    path: String,
    status: &Status,
    library: &[u8],
) -> Result<Placed, Unusable> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mode = Mode::RUSR | Mode::XUSR;
    let file = openat2(&directory, &name, flags, mode, resolve).map_err(unusable)?;
    // From here on the guard removes it, also when writing fails.
    let placed = Placed { directory, name, file, status: status.clone(), path };
    let mut left = library;
    while !left.is_empty() {
        match rustix::io::write(&placed.file, left) {
            Ok(0) => return Err(Unusable::Full),
            Ok(length) => left = left.get(length..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(unusable(errno)),
        }
    }
    Ok(placed)
}

fn unusable(errno: Errno) -> Unusable {
    match errno {
        Errno::ACCESS | Errno::PERM => Unusable::NotWritable,
        Errno::ROFS => Unusable::ReadOnly,
        Errno::NOSPC | Errno::DQUOT => Unusable::Full,
        errno => Unusable::Failed(errno),
    }
}

/// The fixed parts of the library's random name.
const NAME: (&str, &str) = (".strata-clr-", ".so");
const RANDOM_DIGITS: usize = 32;

/// Whether a file is called as the library is, wherever it lies.
#[must_use]
pub fn has_librarys_name(path: &std::path::Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let random = name.strip_prefix(NAME.0).and_then(|rest| rest.strip_suffix(NAME.1));
    // The one that programs load when they start.
    name == STRATA_LIBRARY
        || random.is_some_and(|random| {
            random.len() == RANDOM_DIGITS && random.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
}

/// No other process can create it first.
fn random_name() -> Option<String> {
    let mut random = [0_u8; 16];
    // SAFETY: the pointer and the length are those of one array.
    let length = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    (usize::try_from(length) == Ok(random.len()))
        .then(|| format!("{}{:032x}{}", NAME.0, u128::from_le_bytes(random), NAME.1))
}

impl Drop for Placed {
    fn drop(&mut self) {
        let _assumed = Assumed::user_of(&self.status);
        // Only the file that was made: the target may have replaced it under the same name.
        let wanted = StatxFlags::INO;
        let made = statx(&self.file, "", AtFlags::EMPTY_PATH, wanted);
        let there = statx(self.directory.as_fd(), &*self.name, AtFlags::SYMLINK_NOFOLLOW, wanted);
        if let (Ok(made), Ok(there)) = (made, there) {
            let device = (made.stx_dev_major, made.stx_dev_minor);
            if made.stx_ino == there.stx_ino && device == (there.stx_dev_major, there.stx_dev_minor)
            {
                let _ = unlinkat(self.directory.as_fd(), &*self.name, AtFlags::empty());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarded::Patience;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::time::Duration;

    fn place_here(
        directory: &std::path::Path,
        status: &Status,
    ) -> Result<Result<Placed, Unusable>, PlaceError> {
        use std::os::unix::ffi::OsStrExt;
        let target = Target::open(std::process::id()).unwrap();
        let deadline = Deadline::within(Duration::from_secs(5));
        let mut root = Root::of(&target, Patience::AnyFilesystem, deadline).unwrap();
        place(&mut root, status, directory.as_os_str().as_bytes(), b"library", deadline)
    }

    fn own_status() -> Status {
        Target::open(std::process::id()).unwrap().status().unwrap()
    }

    #[test]
    fn a_placed_library_is_readable_for_its_owner_and_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let placed = place_here(folder.path(), &own_status()).unwrap().unwrap();
        let metadata = std::fs::metadata(&placed.path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o500);
        assert_eq!(std::fs::read(&placed.path).unwrap(), b"library");
        drop(placed);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_library_is_recognised_by_its_name() {
        let name = random_name().unwrap();
        let has_name = |path: &str| has_librarys_name(std::path::Path::new(path));
        assert!(has_name(&format!("/tmp/{name}")) && has_name(&name));
        assert!(has_name("/run/strata/glibc/libstrata_clr.so"));
        assert!(!has_name("/tmp/.strata-clr-7c446c.so") && !has_name(&format!("/tmp/{name}.so")));
        assert!(!has_name("/") && !has_name(&format!("/tmp/{name}/libc.so")));
    }

    #[test]
    fn what_took_the_place_of_the_library_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let placed = place_here(folder.path(), &own_status()).unwrap().unwrap();
        let path = placed.path.clone();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "the target's own").unwrap();
        drop(placed);
        assert_eq!(std::fs::read(&path).unwrap(), b"the target's own");
    }

    #[test]
    fn a_library_is_made_by_the_targets_user_and_only_where_that_user_may() {
        if !rustix::process::geteuid().is_root() {
            strata_skip::skipped!("only root may take another user's place");
            return;
        }
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let status =
            Status { users: [4321; 4], groups: [5432; 4], further_groups: vec![], inner_pid: 1 };
        let closed = place_here(folder.path(), &status).unwrap().err().unwrap();
        assert_eq!(closed, Unusable::NotWritable);
        // Every user may write there: what is placed could be replaced.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let open = place_here(folder.path(), &status).unwrap().err().unwrap();
        assert_eq!(open, Unusable::NotPrivate(folder.path().to_str().unwrap().to_owned()));
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        let placed = place_here(folder.path(), &status).unwrap().unwrap();
        let metadata = std::fs::metadata(&placed.path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (4321, 5432));
        drop(placed);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn mounts_that_will_not_do_are_left_out() {
        let text =
            b"1 1 0:2 / / ro - ext4 x rw\n2 1 0:3 / /data\\040dir rw,nosuid shared:1 - xfs x rw\n\
                     3 1 0:4 / /n rw,noexec - tmpfs x rw\n4 1 0:5 / /f rw - fuse.x x rw\n5 1\n\n\
                     6 1 0:6 / /dev rw - devtmpfs x rw\n";
        assert_eq!(writable_mounts(text), [b"/data dir".to_vec()]);
    }

    #[test]
    fn reasons_tell_noexec_from_no_place_at_all() {
        let tried = |why| Tried { directory: "/tmp".to_owned(), why };
        let missing = || Unusable::Unreachable(RootError::NotFound("/dev/shm".to_owned()));
        let no_exec = vec![tried(Unusable::NoExec), tried(missing())];
        assert!(matches!(PlaceError::nowhere(no_exec), PlaceError::NoExecEverywhere(_)));
        let closed = vec![tried(Unusable::ReadOnly), tried(missing())];
        assert!(matches!(PlaceError::nowhere(closed), PlaceError::Nowhere(_)));
        let full = vec![tried(Unusable::NoExec), tried(Unusable::Full)];
        assert!(matches!(PlaceError::nowhere(full), PlaceError::Nowhere(_)));
    }
}
