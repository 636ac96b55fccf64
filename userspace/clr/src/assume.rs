//! Lets the calling thread access files as the target: with its user, group and supplementary
//! groups.
//!
//! A file that is made in a target's filesystem must belong to the target, and in a mount of a user
//! namespace it cannot even belong to another user (EOVERFLOW, `inode_init_owner` and
//! `HAS_UNMAPPED_ID` in fs/). It also keeps strata from writing where the target's user could not
//! (where the target is root, that is anywhere).
//!
//! The kernel has these per thread; libc's `setgroups` sets them for all, so it is called directly.

use rustix::io::Errno;

use crate::target::Status;

/// Until dropped, this thread touches files as the target. It cannot move to another thread.
pub struct Assumed {
    user: u32,
    group: u32,
    groups: Option<Vec<u32>>,
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

impl Assumed {
    /// Takes the target's identity for file access.
    pub fn user_of(target: &Status) -> Result<Self, Errno> {
        let (user, group) = (filesystem_user(), filesystem_group());
        let mut assumed =
            Self { user, group, groups: None, _of_this_thread: std::marker::PhantomData };
        if (user, group) != (target.user(), target.group()) {
            let before = groups()?;
            // Groups first: afterwards the right to change them may be gone.
            set_groups(&target.further_groups)?;
            assumed.groups = Some(before);
            set_filesystem_group(target.group());
            set_filesystem_user(target.user());
        }
        // Neither call reports failure; on an error `assumed` puts everything back.
        if (filesystem_user(), filesystem_group()) == (target.user(), target.group()) {
            Ok(assumed)
        } else {
            Err(Errno::PERM)
        }
    }
}

impl Drop for Assumed {
    fn drop(&mut self) {
        // Back to root, this also brings the capabilities back that the change took
        // (`cap_task_fix_setuid`, LSM_SETID_FS).
        set_filesystem_user(self.user);
        set_filesystem_group(self.group);
        if let Some(groups) = self.groups.take() {
            let _ = set_groups(&groups);
        }
    }
}

/// An invalid id: passing it changes nothing and returns the current one.
const NOBODY_AT_ALL: u32 = u32::MAX;

fn filesystem_user() -> u32 {
    set_filesystem_user(NOBODY_AT_ALL)
}

fn filesystem_group() -> u32 {
    set_filesystem_group(NOBODY_AT_ALL)
}

/// Answers what was set before.
fn set_filesystem_user(user: u32) -> u32 {
    // SAFETY: the call takes a number and changes this thread's credentials alone.
    let before = unsafe { libc::syscall(libc::SYS_setfsuid, user) };
    // An id in the kernel's long: its low half.
    before as u32
}

fn set_filesystem_group(group: u32) -> u32 {
    // SAFETY: as above.
    let before = unsafe { libc::syscall(libc::SYS_setfsgid, group) };
    before as u32
}

fn groups() -> Result<Vec<u32>, Errno> {
    // SAFETY: a size of 0 only asks for the number; nothing is written.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).map_err(|_| last_error())?];
    // SAFETY: the buffer has room for as many ids as are asked for.
    let count = unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).map_err(|_| last_error())?);
    Ok(groups)
}

fn set_groups(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: pointer and number belong to one slice; the call changes this thread alone.
    let outcome = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if outcome == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_makes_files_as_another_user_and_is_itself_again() {
        use std::os::unix::fs::MetadataExt;
        if !rustix::process::geteuid().is_root() {
            strata_skip::skipped!("only root may take another user's place");
            return;
        }
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        std::os::unix::fs::chown(folder.path(), Some(12345), None).unwrap();
        let status = Status {
            users: [12345; 4],
            groups: [23456; 4],
            further_groups: vec![34567],
            inner_pid: 1,
        };
        let assumed = Assumed::user_of(&status).unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let outside = std::fs::write("/etc/strata-clr-test", "x");
        drop(assumed);
        let metadata = std::fs::metadata(&file).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (12345, 23456));
        assert!(outside.is_err(), "root's own directories are closed to the assumed user");
        assert_eq!((filesystem_user(), filesystem_group()), (0, 0));
        std::fs::write(folder.path().join("again"), "x").unwrap();
        assert!(std::fs::metadata(folder.path().join("again")).unwrap().uid() == 0);
    }
}
