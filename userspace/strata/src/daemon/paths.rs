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

/// The directory of the exporters' spools: beside the store, or in it where that is a volume of its own. What
/// lies beside a volume may be gone with the container, or be on a disk that is not meant for it. The disk
/// itself is not asked: it may not answer.
pub fn spools_of(store: &Path) -> Option<PathBuf> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    spools_beside(store, &mounts)
}

fn spools_beside(store: &Path, mounts: &[u8]) -> Option<PathBuf> {
    let parent = store.parent()?;
    let is_volume = mounts.split(|byte| *byte == b'\n').any(|line| {
        let point = line.split(|byte| *byte == b' ').nth(4);
        point.is_some_and(|point| unescaped(point) == store.as_os_str().as_bytes())
    });
    Some(if is_volume { store } else { parent }.join("spool"))
}

/// A path in the kernel's list of mounts: spaces and the like are octal numbers (`\\040`).
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        let number = after.get(..3).filter(|_| *first == b'\\');
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
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
    fn spools_are_in_the_store_where_that_is_a_volume() {
        let mounts = b"22 1 253:0 / / rw - ext4 /dev/vda rw\n\
            30 22 0:5 / /data rw,relatime shared:9 - ext4 /dev/vdb rw\n\
            31 22 0:6 / /var/lib/a\\040store rw - ext4 /dev/vdc rw\n";
        let of = |store: &str| spools_beside(Path::new(store), mounts);
        assert_eq!(of("/var/lib/strata/store"), Some("/var/lib/strata/spool".into()));
        assert_eq!(of("/data"), Some("/data/spool".into()));
        assert_eq!(of("/data/store"), Some("/data/spool".into()));
        assert_eq!(of("/var/lib/a store"), Some("/var/lib/a store/spool".into()));
        assert_eq!(of("/"), None);
        assert_eq!(spools_of(Path::new("/proc")), Some("/proc/spool".into()));
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
