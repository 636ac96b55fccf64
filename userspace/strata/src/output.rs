//! Files that belong to the right user and never follow a link.
//!
//! strata runs as root, and often for another user (`sudo`). Files are created with that user's own
//! rights, so a prepared directory or link can lead nowhere the user could not write anyway; a link
//! in the file's own place is refused outright. The content goes to a new file beside the target
//! first, so that a full disk leaves nothing half-written under the target's name.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::user::User;

/// Takes a user's rights on files for the life of the value (of this thread only): the user and the
/// group, and none of root's supplementary groups.
struct AsUser {
    /// The groups this thread had.
    groups: Option<Vec<libc::gid_t>>,
}

/// The groups of this thread. libc's own calls speak for all threads.
fn own_groups() -> Vec<libc::gid_t> {
    // SAFETY: with a size of 0 nothing is written.
    let count = unsafe { libc::syscall(libc::SYS_getgroups, 0, std::ptr::null_mut::<u32>()) };
    let mut groups = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for as many as are asked for.
    let count = unsafe { libc::syscall(libc::SYS_getgroups, groups.len(), groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    groups
}

fn set_own_groups(groups: &[libc::gid_t]) -> io::Result<()> {
    // SAFETY: exactly as many as the length are read.
    match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl AsUser {
    fn new(user: Option<&User>) -> Result<Self> {
        let Some(user) = user else { return Ok(Self { groups: None }) };
        let groups = own_groups();
        // Its other groups may let it write more, and are not asked for: what they would let it is
        // refused, which is the safe side.
        set_own_groups(&[]).with_context(|| {
            format!("files cannot be written as `{}`", user.name.to_string_lossy())
        })?;
        // SAFETY: plain numbers; these calls report no errors and affect this thread only.
        unsafe {
            libc::setfsgid(user.gid);
            libc::setfsuid(user.uid);
        }
        Ok(Self { groups: Some(groups) })
    }
}

impl Drop for AsUser {
    fn drop(&mut self) {
        if let Some(groups) = &self.groups {
            // SAFETY: as above.
            unsafe {
                libc::setfsuid(libc::geteuid());
                libc::setfsgid(libc::getegid());
            }
            if let Err(error) = set_own_groups(groups) {
                tracing::warn!(%error, "strata goes on without its supplementary groups");
            }
        }
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Reports at the start, not after the recording, that a file cannot be written or is named twice.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a Path>, user: Option<&User>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for path in paths {
        if !seen.insert(in_real_folder(path)) {
            bail!(
                "`{}` is written by two outputs: name another file with --output",
                path.display()
            );
        }
        check_one(path, user)?;
    }
    Ok(())
}

/// The same text for a file in a folder, however the folder is named.
fn in_real_folder(path: &Path) -> PathBuf {
    let folder = folder_of(path).canonicalize();
    folder.unwrap_or_else(|_| folder_of(path)).join(path.file_name().unwrap_or_default())
}

fn check_one(path: &Path, user: Option<&User>) -> Result<()> {
    if path == Path::new("-") {
        return Ok(());
    }
    let _rights = AsUser::new(user)?;
    refuse_links(path)?;
    let folder = folder_of(path);
    let name = beside(path, "check");
    let probe = create_new(&name, PUBLIC).with_context(|| {
        format!(
            "`{}` cannot be written: no file can be created in `{}`. Choose another place with \
             --output",
            path.display(),
            folder.display()
        )
    })?;
    drop(probe);
    fs::remove_file(&name).ok();
    Ok(())
}

fn refuse_links(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => bail!(
            "`{}` is a symbolic link: strata does not write through links. Remove it or choose \
             another --output",
            path.display()
        ),
        Ok(found) if found.is_dir() => {
            bail!("`{}` is a directory: name a file in it with --output", path.display())
        }
        Ok(found) if !found.is_file() => bail!(
            "`{}` is not a regular file; for a pipe use `--output -` and redirect",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// A name for a temporary file in the same directory.
fn beside(path: &Path, purpose: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{purpose}.{}", std::process::id()));
    folder_of(path).join(name)
}

/// As far as the umask lets.
const PUBLIC: u32 = 0o644;
const PRIVATE: u32 = 0o600;

fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .mode(mode)
        .open(path)
}

/// Takes a name for an output: an empty file of the user's, which [`write`] replaces. `false` if
/// there is a file of that name.
pub fn claim(path: &Path, user: Option<&User>) -> Result<bool> {
    claim_with(path, user, PUBLIC)
}

/// The same for an output that only the user may read.
pub fn claim_private(path: &Path, user: Option<&User>) -> Result<bool> {
    claim_with(path, user, PRIVATE)
}

fn claim_with(path: &Path, user: Option<&User>, mode: u32) -> Result<bool> {
    let _rights = AsUser::new(user)?;
    match create_new(path, mode) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| format!("writing `{}` failed", path.display())),
    }
}

/// Gives a claimed name back that nothing was written to.
pub fn release(path: &Path, user: Option<&User>) {
    if let Ok(_rights) = AsUser::new(user) {
        let is_empty =
            fs::symlink_metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0);
        if is_empty {
            fs::remove_file(path).ok();
        }
    }
}

/// Whether writing failed because the reader of the standard output has closed it (`| head`).
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io.into_iter().any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes one file, or the standard output for `-`. Returns the bytes written. A reader of the
/// standard output that has closed it (`| head`) is no failure.
pub fn write(
    path: &Path,
    user: Option<&User>,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<u64> {
    if path == Path::new("-") {
        let mut out = Counting { to: BufWriter::new(io::stdout().lock()), bytes: 0 };
        let flushed = || content(&mut out).and_then(|()| Ok(out.flush()?));
        return match flushed() {
            Err(error) if is_closed_pipe(&error) => Ok(out.bytes),
            Err(error) => Err(error.context("writing to the standard output failed")),
            Ok(()) => Ok(out.bytes),
        };
    }
    let _rights = AsUser::new(user)?;
    refuse_links(path)?;
    let temporary = beside(path, "part");
    let result = write_beside(path, &temporary, content);
    if result.is_err() {
        fs::remove_file(&temporary).ok();
    }
    result
}

fn write_beside(
    path: &Path,
    temporary: &Path,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<u64> {
    let failed = || format!("writing `{}` failed", path.display());
    let file = create_new(temporary, PUBLIC).with_context(failed)?;
    // Who may read the file that is replaced may read the new one.
    if let Ok(replaced) = fs::symlink_metadata(path) {
        let mode = replaced.permissions().mode() & 0o777;
        // Where files have no modes of their own, nothing is lost.
        file.set_permissions(Permissions::from_mode(mode)).ok();
    }
    let mut out = Counting { to: BufWriter::new(&file), bytes: 0 };
    content(&mut out).with_context(failed)?;
    out.flush().with_context(failed)?;
    let bytes = out.bytes;
    drop(out);
    fs::rename(temporary, path).with_context(failed)?;
    Ok(bytes)
}

struct Counting<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.to.write(buffer)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_file_that_two_outputs_name_is_refused_however_its_folder_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let checked = |names: [&str; 2]| {
            let paths = names.map(at);
            check(paths.iter().map(PathBuf::as_path), None)
        };
        assert!(checked(["z.folded", "z.svg"]).is_ok());
        for names in [["z.folded", "z.folded"], ["z.folded", "./z.folded"]] {
            let error = checked(names).expect_err("it is the same file").to_string();
            assert!(error.contains("is written by two outputs"), "{error}");
        }
        assert!(check([Path::new("-"), Path::new("-")], None).is_err());
    }

    /// Needs root, as strata does.
    #[test]
    fn a_user_gets_no_file_where_only_a_group_of_root_may_write() {
        const GROUP: u32 = 54_321;
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for (name, mode) in [("groups", 0o770), ("everybodys", 0o777)] {
            fs::create_dir(at(name)).expect("a folder");
            std::os::unix::fs::chown(at(name), Some(0), Some(GROUP)).expect("root may");
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("root may");
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("root may");
        let before = own_groups();
        set_own_groups(&[GROUP]).expect("root may");
        let user = User { uid: 65_534, gid: 65_534, name: "nobody".into(), home: "/".into() };
        let put = |name: &str| {
            let path = at(name).join("profile");
            write(&path, Some(&user), |out| Ok(out.write_all(b"x")?)).map(|_| path)
        };
        assert!(put("groups").is_err(), "the group is root's");
        let path = put("everybodys").expect("any user may");
        assert_eq!(fs::metadata(path).expect("it is there").uid(), 65_534);
        assert_eq!(own_groups(), [GROUP], "afterwards it is as it was");
        set_own_groups(&before).expect("root may");
    }
}
