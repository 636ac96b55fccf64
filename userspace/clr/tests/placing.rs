//! Where the library is put for real CLRs, in namespaces of their own and on mounts that refuse.
//!
//! The library here is none that a CLR could use: that the runtime refuses it (0x8007007f) shows
//! that it found and mapped it, which is all that placing is about.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use strata_clr::diagnostics::{ClassId, HResult};
use strata_clr::loading::{Library, LoadError, load};
use strata_clr::{Deadline, Patience, PlaceError, Unusable, discover};
use support::{Clr, Runtime, alone};

const NAME: &str = "libstrata_clr_test_placing.so";

/// A shared library that any process can map, and nothing more.
fn library() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("library.so");
    let done = Command::new("cc")
        .args(["-shared", "-nostdlib", "-x", "c", "-", "-o"])
        .arg(&output)
        .arg(format!("-Wl,-soname,{NAME}"))
        .stdin(std::process::Stdio::null())
        .status()
        .expect("a C compiler");
    assert!(done.success());
    std::fs::read(output).unwrap()
}

fn attempt(clr: &Clr) -> Result<(), LoadError> {
    let process = discover(clr.pid()).unwrap().expect("a CLR");
    let content = library();
    let library = Library { name: NAME, class: ClassId([7; 16]), content: &content };
    let deadline = Deadline::within(Duration::from_secs(10));
    let start = Instant::now();
    let outcome = load(&process, &library, Patience::AnyFilesystem, deadline).map(|_| ());
    println!("{outcome:?} after {:?}", start.elapsed());
    outcome
}

fn was_mapped(outcome: &Result<(), LoadError>) -> bool {
    matches!(outcome, Err(error) if error.result() == Some(HResult::PROCEDURE_NOT_FOUND))
}

fn leftovers(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().path());
    names.filter(|path| path.to_str().unwrap().contains(".strata-clr-")).collect()
}

#[test]
fn a_library_is_mapped_by_every_runtime_and_leaves_no_file_behind() {
    let _alone = alone();
    for runtime in Runtime::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mut command = runtime.command();
        command.env("TMPDIR", folder.path());
        let clr = Clr::start(command);
        assert!(was_mapped(&attempt(&clr)), "{runtime:?}");
        assert_eq!(leftovers(folder.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn no_library_is_put_where_another_user_could_replace_it() {
    let _alone = alone();
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(4321), None).unwrap();
    let mut command = Runtime::Net9.command();
    command.env("TMPDIR", &inner).current_dir(&inner);
    let clr = Clr::start(command);
    let process = discover(clr.pid()).unwrap().expect("a CLR");
    let placed = std::sync::atomic::AtomicBool::new(false);
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(std::sync::atomic::Ordering::SeqCst) {
                let is_there =
                    !leftovers(&inner).is_empty() || !leftovers(folder.path()).is_empty();
                placed.fetch_or(is_there, std::sync::atomic::Ordering::SeqCst);
            }
        });
        // It goes to a place that is root's own.
        assert!(was_mapped(&attempt(&clr)), "{:?}", process.status);
        ends.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    assert!(!placed.load(std::sync::atomic::Ordering::SeqCst));
}

#[test]
fn a_library_is_placed_in_namespaces_of_another_user_with_a_read_only_root() {
    let _alone = alone();
    for runtime in [Runtime::Core31, Runtime::Net9] {
        let arrange = "mount -t tmpfs none /tmp && mount -o remount,bind,ro /";
        let clr = Clr::in_namespaces(runtime, 4321, arrange);
        let process = discover(clr.pid()).unwrap().expect("a CLR");
        assert_eq!(process.status.user(), 4321);
        assert_eq!(process.status.inner_pid, 1);
        assert!(was_mapped(&attempt(&clr)), "{runtime:?}");
        let inside = format!("/proc/{}/root/tmp", clr.pid());
        assert_eq!(leftovers(Path::new(&inside)), Vec::<PathBuf>::new());
    }
}

#[test]
fn where_tmp_is_noexec_the_next_place_is_taken() {
    let _alone = alone();
    let arrange = "mount -t tmpfs -o noexec none /tmp && mount -t tmpfs none /var/tmp \
                   && mount -t tmpfs -o noexec none /dev/shm && mount -o remount,bind,ro /";
    let clr = Clr::in_namespaces(Runtime::Net9, 4321, arrange);
    assert!(was_mapped(&attempt(&clr)));
}

#[test]
fn any_writable_mount_will_do_when_the_usual_directories_will_not() {
    let _alone = alone();
    let arrange = "mount -t tmpfs -o noexec none /tmp && mount -t tmpfs -o noexec none /var/tmp \
                   && mount -t tmpfs -o noexec none /dev/shm && mount -t tmpfs none /srv \
                   && mount -o remount,bind,ro / && cd /";
    let clr = Clr::in_namespaces(Runtime::Net9, 4321, arrange);
    assert!(was_mapped(&attempt(&clr)));
}

#[test]
fn noexec_everywhere_is_the_reason() {
    let _alone = alone();
    let arrange = "mount -t tmpfs -o noexec none /tmp && mount -t tmpfs -o noexec none /var/tmp \
                   && mount -t tmpfs -o noexec none /dev/shm && mount -o remount,bind,ro / && cd /";
    let clr = Clr::in_namespaces(Runtime::Net9, 4321, arrange);
    let error = attempt(&clr).unwrap_err();
    println!("{error}");
    let LoadError::Place(PlaceError::NoExecEverywhere(tried)) = error else { panic!("{error}") };
    assert!(tried.iter().any(|tried| tried.directory == "/tmp" && tried.why == Unusable::NoExec));
}

#[test]
fn no_writable_place_at_all_is_the_reason() {
    let _alone = alone();
    let arrange = "mount -t tmpfs -o noexec none /dev/shm && mount -t tmpfs none /tmp && cd /";
    let clr = Clr::in_namespaces(Runtime::Net9, 4321, arrange);
    // The runtime had to make its socket first.
    let read_only = "mount -o remount,bind,ro /tmp && mount -o remount,bind,ro,noexec /dev/shm \
                     && mount -o remount,bind,ro /";
    let pid = clr.pid().to_string();
    let done = Command::new("nsenter")
        .args(["--target", &pid, "--user", "--mount"])
        .args(["sh", "-c", read_only])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let error = attempt(&clr).unwrap_err();
    println!("{error}");
    assert!(matches!(error, LoadError::Place(PlaceError::Nowhere(_))));
}

#[test]
fn a_full_temporary_directory_is_passed_over() {
    let _alone = alone();
    let arrange = "mount -t tmpfs -o size=64k none /tmp && mount -t tmpfs none /var/tmp \
                   && (head -c 60000 /dev/zero > /tmp/full; true)";
    let clr = Clr::in_namespaces(Runtime::Net9, 4321, arrange);
    assert!(was_mapped(&attempt(&clr)));
}
