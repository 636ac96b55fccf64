//! The paths that the daemon writes to, and `strata config check` of them: what shows without writing.
//!
//! Invariant: nothing is created, opened for writing or changed.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use strata_config::{Configuration, Origin, Problem};

/// File systems of the kernel's own data, where no file can be kept (`linux/magic.h`).
const VIRTUAL: [(i64, &str); 9] = [
    (libc::PROC_SUPER_MAGIC, "proc"),
    (libc::SYSFS_MAGIC, "sysfs"),
    (libc::CGROUP_SUPER_MAGIC, "cgroup"),
    (libc::CGROUP2_SUPER_MAGIC, "cgroup2"),
    (libc::DEBUGFS_MAGIC, "debugfs"),
    (libc::TRACEFS_MAGIC, "tracefs"),
    (libc::SECURITYFS_MAGIC, "securityfs"),
    (libc::BPF_FS_MAGIC, "bpf"),
    (libc::DEVPTS_SUPER_MAGIC, "devpts"),
];

/// The directory of the exporters' spools: beside the store, or in it where that lies in the root directory, as
/// a volume of a container does.
pub fn spools_of(store: &Path) -> Option<PathBuf> {
    let parent = store.parent()?;
    Some(if parent.parent().is_none() { store } else { parent }.join("spool"))
}

/// The problems of all paths that a configuration has the daemon write to.
pub fn problems(configuration: &Configuration) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |key: String, origin: &Origin, checked: Result<(), Refused>| {
        let Err(Refused { why, fix }) = checked else { return };
        let (message, origin) = (format!("{key}: {why}"), origin.clone());
        problems.push(Problem { message, origin, excerpt: None, hint: Some(fix) });
    };
    let store = &configuration.store;
    if store.enabled.value {
        add("store.path".to_owned(), &store.path.origin, check_directory(&store.path.value));
    }
    for exporter in &configuration.exporters {
        if let Some(path) = &exporter.path {
            let key = format!("exporter.{}.path", exporter.name);
            add(key, &path.origin, check_directory(&path.value));
        }
    }
    let target = &configuration.log_target;
    if target.value.starts_with('/') {
        add("log.target".to_owned(), &target.origin, check_file(Path::new(&target.value)));
    }
    problems
}

#[derive(Debug)]
struct Refused {
    why: String,
    fix: String,
}

/// A directory that the daemon creates, with those above it.
fn check_directory(path: &Path) -> Result<(), Refused> {
    let exists = |path: &&Path| path.symlink_metadata().is_ok();
    let Some(existing) = path.ancestors().find(exists) else { return Ok(()) };
    if !existing.is_dir() {
        return Err(Refused {
            why: format!("{} is not a directory", existing.display()),
            fix: "name a directory, or one that can be created".to_owned(),
        });
    }
    check_writable(existing)
}

/// A file that the daemon creates in a directory that must exist.
fn check_file(path: &Path) -> Result<(), Refused> {
    let fix = || "name a file in a directory that exists".to_owned();
    if path.is_dir() {
        return Err(Refused { why: format!("{} is a directory", path.display()), fix: fix() });
    }
    if path.is_symlink() {
        return Err(Refused {
            why: format!("{} is a symbolic link, which the daemon does not follow", path.display()),
            fix: "name the file itself".to_owned(),
        });
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    if !parent.is_dir() {
        return Err(Refused {
            why: format!("the directory {} does not exist", parent.display()),
            fix: format!("create it (`mkdir -p {}`), or {}", parent.display(), fix()),
        });
    }
    check_writable(parent)
}

fn check_writable(directory: &Path) -> Result<(), Refused> {
    let elsewhere = || "choose a path on a file system that keeps files".to_owned();
    let shown = directory.display();
    let system = file_system(directory).map_err(|error| Refused {
        why: format!("{shown} cannot be examined: {error}"),
        fix: elsewhere(),
    })?;
    if let Some((_, name)) = VIRTUAL.iter().find(|(magic, _)| *magic == system) {
        let why = format!("{shown} is on the kernel's {name} file system, which keeps no files");
        return Err(Refused { why, fix: elsewhere() });
    }
    match access(directory) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Err(Refused {
            why: format!("{shown} is on a file system that is mounted read-only"),
            fix: "mount it writable, or choose another path".to_owned(),
        }),
        // Whether another user may write there shows only when that user checks it.
        Err(error) if rustix::process::geteuid().is_root() => Err(Refused {
            why: format!("{shown} cannot be written: {error}"),
            fix: "choose a directory that root may write".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn file_system(path: &Path) -> io::Result<i64> {
    let path = c_path(path)?;
    // SAFETY: a zeroed `statfs` is valid, the path ends with a zero, and the call only writes to it.
    let (failed, facts) = unsafe {
        let mut facts: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &raw mut facts), facts)
    };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(facts.f_type) }
}

fn access(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let (mode, flags) = (libc::W_OK | libc::X_OK, libc::AT_EACCESS);
    // SAFETY: the path ends with a zero.
    let failed = unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, flags) };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spools_are_in_the_store_where_that_lies_in_the_root_directory() {
        let of = |store: &str| spools_of(Path::new(store));
        assert_eq!(of("/var/lib/strata/store"), Some("/var/lib/strata/spool".into()));
        assert_eq!(of("/data/store"), Some("/data/spool".into()));
        assert_eq!(of("/data"), Some("/data/spool".into()));
        assert_eq!(of("/"), None);
    }

    #[test]
    fn a_directory_is_created_only_where_files_can_be_kept() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "in the way").unwrap();
        for good in [place.path().to_owned(), place.path().join("new/store")] {
            check_directory(&good).unwrap();
        }
        let why = |path: &Path| check_directory(path).unwrap_err().why;
        assert!(why(&file.join("store")).ends_with("file is not a directory"));
        assert!(why(Path::new("/proc/x")).contains("proc file system"));
        assert!(why(Path::new("/sys/x/y")).contains("sysfs file system"));
        assert!(!place.path().join("new").exists(), "nothing is created");
    }

    #[test]
    fn a_log_file_needs_a_directory_that_exists() {
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("strata.log");
        check_file(&log).unwrap();
        let refused = check_file(&place.path().join("missing/strata.log")).unwrap_err();
        assert!(refused.why.contains("does not exist") && refused.fix.contains("mkdir -p"));
        assert!(check_file(place.path()).unwrap_err().why.contains("is a directory"));
        assert!(!log.exists(), "nothing is created");
    }
}
