//! What the opener opens and what it refuses, on real files of real processes. Needs root.

mod support;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use strata_sandbox::{ChildKind, FileError, IdentityTrust, Locator, ProcessRef, Refusal, Request};
use support::*;

fn sleep_program() -> PathBuf {
    std::fs::canonicalize("/bin/sleep").unwrap()
}

#[test]
fn a_mapped_file_is_opened_with_its_identity() {
    must_be_root();
    let mut service = service();
    let sleeper = Sleeper::start(&sleep_program());
    let (start, end) = sleeper.mapping("/sleep");
    let file =
        open(&mut service, Locator::Mapped { process: sleeper.process(), start, end }).unwrap();
    let metadata = std::fs::metadata(sleep_program()).unwrap();
    use std::os::unix::fs::MetadataExt;
    let identity = file.identity();
    assert_eq!(
        (identity.device, identity.inode, identity.size),
        (metadata.dev(), metadata.ino(), metadata.len())
    );
    assert_eq!(identity.ctime_ns, metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec());
    assert!(!file.is_deleted());
    let magic = bytes(service.call(Request::Read { file, offset: 0, length: 4 }));
    assert_eq!(magic, b"\x7fELF");
}

#[test]
fn a_deleted_and_replaced_program_is_still_opened_by_its_mapping() {
    must_be_root();
    let mut service = service();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sleep");
    std::fs::copy(sleep_program(), &program).unwrap();
    let sleeper = Sleeper::start(&program);
    let (start, end) = sleeper.mapping("/sleep");
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "another file").unwrap();
    let file =
        open(&mut service, Locator::Mapped { process: sleeper.process(), start, end }).unwrap();
    assert!(file.is_deleted());
    let whole = bytes(service.call(Request::Read { file, offset: 0, length: 1 << 20 }));
    assert_eq!(whole, std::fs::read(sleep_program()).unwrap());
}

#[test]
fn an_opened_file_outlives_its_process_and_its_opener() {
    must_be_root();
    let mut service = service();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sleep");
    std::fs::copy(sleep_program(), &program).unwrap();
    let sleeper = Sleeper::start(&program);
    let (start, end) = sleeper.mapping("/sleep");
    let file =
        open(&mut service, Locator::Mapped { process: sleeper.process(), start, end }).unwrap();
    drop(sleeper);
    std::fs::remove_file(&program).unwrap();
    service.release();
    for _ in 0..2 {
        let read = Request::Read { file: file.clone(), offset: 1, length: 3 };
        assert_eq!(bytes(service.call(read)), b"ELF");
    }
}

#[test]
fn a_reused_pid_is_not_taken_for_the_process_that_was_meant() {
    must_be_root();
    let mut service = service();
    let sleeper = Sleeper::start(&sleep_program());
    let (start, end) = sleeper.mapping("/sleep");
    let process = sleeper.process();
    let other = ProcessRef { start_time: process.start_time.map(|time| time + 1), ..process };
    assert_eq!(
        refusal(open(&mut service, Locator::Mapped { process: other, start, end })),
        Refusal::ProcessChanged
    );
    // Known and held by the opener, then gone.
    open(&mut service, Locator::Mapped { process, start, end }).unwrap();
    drop(sleeper);
    let outcome = refusal(open(&mut service, Locator::Mapped { process, start, end }));
    assert!(matches!(outcome, Refusal::ProcessGone | Refusal::NotFound), "{outcome:?}");
    let missing = ProcessRef { pid: 4_000_000, start_time: None };
    let outcome = refusal(open(
        &mut service,
        Locator::InRoot { process: missing, path: "/bin/sleep".into() },
    ));
    assert_eq!(outcome, Refusal::ProcessGone);
}

#[test]
fn only_regular_files_are_opened() {
    must_be_root();
    let mut service = service();
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let device = folder.path().join("device");
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &device,
        rustix::fs::FileType::CharacterDevice,
        0o600.into(),
        null,
    )
    .unwrap();
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let opener = {
        open_host(&mut service, "/bin/sleep").unwrap();
        pid_of(&service, ChildKind::Opener)
    };
    for path in [
        fifo.as_path(),
        &device,
        &socket,
        folder.path(),
        Path::new("/dev/tty"),
        Path::new("/dev/zero"),
    ] {
        assert_eq!(
            refusal(open_host(&mut service, path)),
            Refusal::NotRegular,
            "{}",
            path.display()
        );
        let in_root = Locator::InRoot { process: own(), path: path.into() };
        assert_eq!(refusal(open(&mut service, in_root)), Refusal::NotRegular, "{}", path.display());
    }
    assert_eq!(pid_of(&service, ChildKind::Opener), opener, "the opener was never held up");
    assert_eq!(service.statistics().refused.get(&Refusal::NotRegular), Some(&12));
}

#[test]
fn nothing_leads_out_of_the_targets_root() {
    must_be_root();
    let mut service = service();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    std::fs::create_dir_all(root.join("inside")).unwrap();
    std::fs::create_dir_all(root.join("proc")).unwrap();
    // A secret beside the root, and a file of the same name within it.
    std::fs::write(folder.path().join("secret"), "outside").unwrap();
    let root_text = folder.path().to_str().unwrap();
    symlink("/secret", root.join("absolute")).unwrap();
    symlink(format!("{root_text}/secret"), root.join("absolute_on_host")).unwrap();
    symlink("../../../../../secret", root.join("upwards")).unwrap();
    symlink("inside/../../secret", root.join("up_and_down")).unwrap();
    symlink("/proc/self/root/etc/passwd", root.join("magic")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    // A process whose root this is: our own thread group would be harmed by chroot, so a child.
    let child = chrooted_sleeper(&root);
    let process = ProcessRef { pid: child.0.id(), start_time: start_time(child.0.id()) };
    let ask = |service: &mut strata_sandbox::FileService, path: &str| {
        open(service, Locator::InRoot { process, path: path.into() })
    };
    for path in [
        "/absolute",
        "/upwards",
        "/up_and_down",
        "/../secret",
        "/inside/../../secret",
        "../../secret",
    ] {
        assert_eq!(refusal(ask(&mut service, path)), Refusal::NotFound, "{path}");
    }
    assert_eq!(refusal(ask(&mut service, "/absolute_on_host")), Refusal::NotFound);
    assert_eq!(refusal(ask(&mut service, "/magic")), Refusal::NotFound);
    assert_eq!(refusal(ask(&mut service, "/loop")), Refusal::UnsafePath);
    std::fs::write(root.join("secret"), "inside").unwrap();
    for path in ["/absolute", "/upwards", "/up_and_down", "/../secret", "/inside/../../secret"] {
        let file = ask(&mut service, path).unwrap();
        let content = bytes(service.call(Request::Read { file, offset: 0, length: 100 }));
        assert_eq!(content, b"inside", "{path}");
    }
}

#[test]
fn a_magic_link_is_never_followed() {
    must_be_root();
    let mut service = service();
    let sleeper = Sleeper::start(&sleep_program());
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    symlink(format!("/proc/{}/root/etc/passwd", sleeper.0.id()), &link).unwrap();
    for path in
        [link, format!("/proc/{}/exe", sleeper.0.id()).into(), "/proc/self/root/etc/passwd".into()]
    {
        assert_eq!(
            refusal(open_host(&mut service, &path)),
            Refusal::UnsafePath,
            "{}",
            path.display()
        );
        let in_root = Locator::InRoot { process: sleeper.process(), path };
        assert_eq!(refusal(open(&mut service, in_root)), Refusal::UnsafePath);
    }
}

#[test]
fn requests_that_cannot_be_meant_are_refused_at_once() {
    let mut service = service();
    for locator in [
        Locator::Mapped { process: own(), start: 5, end: 5 },
        Locator::Host { path: "".into() },
        Locator::Host { path: "a\0b".into() },
        Locator::Host { path: "a".repeat(5000).into() },
    ] {
        assert!(matches!(open(&mut service, locator), Err(FileError::InvalidRequest(_))));
    }
    assert!(service.children().is_empty());
}

#[test]
fn a_file_of_proc_is_copied_and_its_identity_is_not_trusted() {
    must_be_root();
    let mut service = service();
    // A regular file, on a filesystem that nothing is known about.
    let file = open_host(&mut service, "/proc/version").unwrap();
    assert!(file.is_copy());
    assert_eq!(file.trust(), IdentityTrust::WithinProcess);
    let host = open_host(&mut service, "/bin/sleep").unwrap();
    assert!(!host.is_copy());
    assert!(service.children().iter().any(|child| child.kind == ChildKind::SlowOpener));
}

#[test]
fn the_opener_keeps_only_the_privilege_it_needs() {
    must_be_root();
    let mut service = service();
    open_host(&mut service, "/bin/sleep").unwrap();
    let pid = pid_of(&service, ChildKind::Opener).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    // DAC_READ_SEARCH (2), SYS_PTRACE (19), SYS_RESOURCE (24), CHECKPOINT_RESTORE (40).
    let most = 1_u64 << 2 | 1 << 19 | 1 << 24 | 1 << 40;
    assert_eq!(u64::from_str_radix(&field("CapEff:"), 16).unwrap() & !most, 0);
    assert_eq!(u64::from_str_radix(&field("CapPrm:"), 16).unwrap() & !most, 0);
    assert_eq!(field("NoNewPrivs:"), "1");
}

/// A process that sleeps with `root` as its root: `sleep`, opened before the root is changed.
fn chrooted_sleeper(root: &Path) -> Sleeper {
    use std::os::unix::process::CommandExt;
    let root = root.to_path_buf();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_strata-sandbox-helper"));
    command.arg("internal-sleep").arg(&root);
    let child = command.process_group(0).spawn().unwrap();
    let wanted = std::fs::canonicalize(&root).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while std::fs::read_link(format!("/proc/{}/root", child.id())).ok().as_deref() != Some(&wanted)
    {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Sleeper(child)
}
