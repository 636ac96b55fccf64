//! Installs the bridge library on the host, for processes that load it at their start.
//!
//! A user who can write the file, or a directory on its path, runs code in every process that loads
//! it. So directory and file belong to the user that runs strata, and no other user may write them.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::bridge_library;
use crate::mappings::CLibrary;
use crate::profilers::STRATA_LIBRARY;

/// Why the library was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("this build of strata carries no library for {0}")]
    NoLibrary(CLibrary),
    #[error(
        "{} can be changed by others than root and user {user}: choose a directory under one that only root can write, such as /run/strata", path.display()
    )]
    Writable { path: PathBuf, user: u32 },
    #[error("{} is mounted noexec: choose a directory from which programs can run", .0.display())]
    NoExec(PathBuf),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Puts the library into a directory, which is made when missing, and returns its path. A correct
/// existing file stays; another is replaced atomically, so that processes which have it mapped keep
/// theirs.
pub fn install(directory: &Path, c_library: CLibrary) -> Result<PathBuf, InstallError> {
    let content = bridge_library::content(c_library).ok_or(InstallError::NoLibrary(c_library))?;
    install_content(&directory.join(c_library.to_string()), content)
}

/// Creates a directory and those above it that are missing, which every user may enter whatever the
/// umask: services run as other users.
fn create_directories(directory: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = directory.ancestors().take_while(|path| !path.exists()).collect();
    for path in missing.into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
        match DirBuilder::new().mode(0o755).create(path) {
            Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn install_content(directory: &Path, content: &[u8]) -> Result<PathBuf, InstallError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| InstallError::Io { path, error }
    };
    create_directories(directory).map_err(at(directory))?;
    // Without links from here on, so that the checked path is the used one.
    let directory = directory.canonicalize().map_err(at(directory))?;
    check_owners(&directory)?;
    let mount = statvfs(&directory).map_err(|errno| at(&directory)(errno.into()))?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(InstallError::NoExec(directory));
    }
    let path = directory.join(STRATA_LIBRARY);
    if fs::read(&path).is_ok_and(|found| found == content) {
        return Ok(path);
    }
    let new = directory.join(format!(".{STRATA_LIBRARY}.{}", std::process::id()));
    let written = fs::write(&new, content)
        .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&new, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&new);
        return Err(at(&path)(error));
    }
    Ok(path)
}

/// Every directory on the way belongs to root or to the user that runs this, and only they can
/// write it. A sticky one (/tmp) may belong to any user: what lies in it cannot be replaced by
/// others.
fn check_owners(directory: &Path) -> Result<(), InstallError> {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let user = rustix::process::geteuid().as_raw();
    for (depth, path) in directory.ancestors().enumerate() {
        let found = fs::symlink_metadata(path)
            .map_err(|error| InstallError::Io { path: path.to_owned(), error })?;
        let is_own = found.uid() == 0 || found.uid() == user;
        let is_closed = found.mode() & OTHERS_WRITE == 0 || depth > 0 && found.mode() & STICKY != 0;
        if !is_own || !is_closed {
            return Err(InstallError::Writable { path: path.to_owned(), user });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_installed_once_and_replaced_when_it_is_another() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let directory = folder.path().join("a/b");
        let path = install_content(&directory, b"first").unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        assert_eq!(install_content(&directory, b"first").unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        install_content(&directory, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_ne!(fs::metadata(&path).unwrap().ino(), inode);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let directory = folder.path().join("open");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        for path in [directory.clone(), directory.join("below")] {
            let error = install_content(&path, b"x").unwrap_err();
            assert!(matches!(error, InstallError::Writable { .. }), "{error}");
        }
    }

    #[test]
    fn the_real_library_is_installed_under_its_name() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = install(folder.path(), CLibrary::Glibc).unwrap();
        assert!(path.ends_with("glibc/libstrata_clr.so"));
        assert!(fs::read(path).unwrap().starts_with(b"\x7fELF"));
    }
}
