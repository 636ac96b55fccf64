//! Files on filesystems that never answer: strata goes on, and leaves them alone. Needs root.

mod support;

#[path = "support/fuse.rs"]
mod fuse;

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use fuse::Fuse;
use strata_sandbox::{
    ChildKind, Config, FileError, FileService, IdentityTrust, Locator, Refusal, Reply, Request,
};
use support::*;

fn content() -> Vec<u8> {
    std::fs::read("/bin/sleep").unwrap()
}

fn impatient() -> FileService {
    let config = Config {
        open_timeout: Duration::from_millis(700),
        slow_open_timeout: Duration::from_millis(700),
        read_timeout: Duration::from_millis(700),
        max_stuck: 3,
        ..config()
    };
    FileService::new(config).unwrap()
}

/// A file mapped into this process, until dropped.
struct Mapped {
    start: u64,
    end: u64,
}

impl Mapped {
    fn of(path: &Path) -> Self {
        let file = std::fs::File::open(path).unwrap();
        let length = (file.metadata().unwrap().len() as usize).next_multiple_of(4096);
        // SAFETY: a new private mapping, never read.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start as u64, end: start as u64 + length as u64 }
    }

    fn locator(&self) -> Locator {
        Locator::Mapped { process: own(), start: self.start, end: self.end }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: made by mmap above, and nothing points into it.
        unsafe { libc::munmap(self.start as *mut _, (self.end - self.start) as usize) };
    }
}

fn serves(service: &mut FileService) {
    let file = open_host(service, "/bin/sleep").unwrap();
    assert_eq!(bytes(service.call(Request::Read { file, offset: 0, length: 4 })), b"\x7fELF");
}

#[test]
fn a_fuse_file_that_answers_is_copied_and_read() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let Some(fuse) = Fuse::mount(folder.path(), content()) else { return };
    let mut service = service();
    let path = fuse.mount.join("program");
    let mapped = Mapped::of(&path);
    for locator in [
        mapped.locator(),
        Locator::Host { path: path.clone() },
        Locator::InRoot { process: own(), path: path.clone() },
    ] {
        let file = open(&mut service, locator).unwrap();
        assert!(file.is_copy());
        assert_eq!(file.trust(), IdentityTrust::WithinProcess);
        let whole = bytes(service.call(Request::Read { file, offset: 0, length: 1 << 20 }));
        assert!(whole == content());
    }
    assert!(service.statistics().timeouts.is_empty());
}

#[test]
fn copies_are_bounded_and_an_identity_needs_none() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let Some(fuse) = Fuse::mount(folder.path(), content()) else { return };
    let size = content().len() as u64;
    let mut service = FileService::new(Config { copies: size + 1, ..config() }).unwrap();
    let path = fuse.mount.join("program");
    let identify = Request::Identify(Locator::Host { path: path.clone() });
    let Ok(Reply::Opened(identified)) = service.call(identify) else { panic!("no identity") };
    assert!(!identified.is_copy());
    assert_eq!(service.copied_bytes(), 0);
    let mut copy = || open(&mut service, Locator::Host { path: path.clone() });
    let first = copy().unwrap();
    assert_eq!(first.identity(), identified.identity());
    let second = copy();
    let is_refused = matches!(second, Err(FileError::Refused { refusal: Refusal::NotCopied, .. }));
    assert!(is_refused, "{second:?}");
    drop(first);
    let third = copy().unwrap();
    assert_eq!(service.copied_bytes(), size);
    drop(third);
    assert_eq!(service.copied_bytes(), 0);
}

#[test]
fn a_fuse_file_that_never_answers_delays_no_other_file() {
    must_be_root();
    for operation in
        [fuse::LOOKUP, fuse::STATFS, fuse::OPEN, fuse::GETATTR, fuse::READ, fuse::FLUSH]
    {
        let folder = tempfile::tempdir().unwrap();
        let Some(fuse) = Fuse::mount(folder.path(), content()) else { return };
        let mut service = impatient();
        let path = fuse.mount.join("program");
        let mapped = Mapped::of(&path);
        fuse.never_answer(operation);
        // Not asked for by a mapping: its inode is known.
        let locator =
            if operation == fuse::LOOKUP { Locator::Host { path } } else { mapped.locator() };
        let hanging = service.submit(Request::Open(locator.clone()));
        let fine = service.submit(Request::Open(Locator::Host { path: "/bin/sleep".into() }));
        let mut answers = Vec::new();
        while answers.len() < 2 {
            service.wait();
            answers.extend(service.drain());
        }
        assert_eq!(answers[0].0, fine, "operation {operation}: {answers:?}");
        assert!(matches!(answers[0].1, Ok(Reply::Opened(_))));
        assert_eq!(answers[1].0, hanging);
        let hung = matches!(answers[1].1, Err(FileError::TimedOut(ChildKind::SlowOpener)));
        assert!(hung, "operation {operation}: {:?}", answers[1].1);
        // It is left alone now, at no price.
        let again = open(&mut service, locator);
        assert!(
            matches!(again, Err(FileError::FailedBefore(_))),
            "operation {operation}: {again:?}"
        );
        serves(&mut service);
        assert_eq!(service.statistics().timeouts.get(&ChildKind::Opener), None);
        drop((mapped, fuse));
        // The kernel lets go of the killed opener.
        let until = Instant::now() + Duration::from_secs(10);
        while service.children().iter().any(|child| child.ending) {
            assert!(Instant::now() < until, "operation {operation}: {:?}", service.children());
            service.wait();
            service.drain();
        }
    }
}

#[test]
fn many_files_that_never_answer_leave_a_bounded_number_of_stuck_openers() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let Some(fuse) = Fuse::mount(folder.path(), content()) else { return };
    fuse.never_answer(fuse::LOOKUP);
    let mut service = impatient();
    let names = (0..20).map(|number| fuse.mount.join(format!("file{number}")));
    let requests = names.map(|path| Request::Open(Locator::Host { path })).collect();
    let outcomes = service.call_all(requests);
    let count = |matcher: fn(&FileError) -> bool| {
        outcomes.iter().filter(|outcome| outcome.as_ref().is_err_and(matcher)).count()
    };
    let timed_out = count(|error| matches!(error, FileError::TimedOut(ChildKind::SlowOpener)));
    let refused = count(|error| matches!(error, FileError::TooManyStuck(_)));
    assert_eq!(timed_out + refused, 20, "{outcomes:?}");
    // Three may be stuck forever; a killed one counts as stuck after a second only.
    assert!((3..=5).contains(&timed_out), "{timed_out}");
    assert!(service.children().len() <= 7, "{:?}", service.children());
    serves(&mut service);
}

#[test]
fn a_process_whose_files_hang_is_not_tried_file_by_file() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let Some(fuse) = Fuse::mount(folder.path(), content()) else { return };
    let mappings: Vec<Mapped> =
        (0..20).map(|name| Mapped::of(&fuse.mount.join(name.to_string()))).collect();
    fuse.never_answer(fuse::STATFS);
    let mut service = impatient();
    let requests = mappings.iter().map(|mapped| Request::Open(mapped.locator())).collect();
    let outcomes = service.call_all(requests);
    let timed_out =
        outcomes.iter().filter(|outcome| matches!(outcome, Err(FileError::TimedOut(_)))).count();
    let skipped = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Err(FileError::FailedBefore(_))))
        .count();
    assert_eq!((timed_out, skipped), (2, 18), "{outcomes:?}");
    serves(&mut service);
    drop((fuse, mappings));
}

#[test]
fn an_overlay_above_a_filesystem_that_never_answers_costs_one_opener() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let [lower, empty, merged] = ["lower", "empty", "merged"].map(|name| folder.path().join(name));
    for path in [&lower, &empty, &merged] {
        std::fs::create_dir(path).unwrap();
    }
    let Some(fuse) = Fuse::mount(&lower, content()) else { return };
    let options = format!("lowerdir={}:{}", lower.display(), empty.display());
    let text = |text: &str| std::ffi::CString::new(text).unwrap();
    let target = text(merged.to_str().unwrap());
    // SAFETY: all pointers are to terminated strings that live through the call.
    let mounted = unsafe {
        let kind = text("overlay");
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            libc::MS_RDONLY,
            text(&options).as_ptr().cast(),
        )
    };
    if mounted != 0 {
        strata_skip::skipped!("no overlay above FUSE here: {}", std::io::Error::last_os_error());
        return;
    }
    let mut service = impatient();
    let mapped = Mapped::of(&merged.join("program"));
    // Closing a file calls the server too, through the overlay: the daemon must not do it.
    let opened = open(&mut service, mapped.locator()).unwrap();
    fuse.never_answer(fuse::READ);
    let read = Request::Read { file: opened.clone(), offset: 0, length: 4 };
    let outcome = service.call(read);
    assert!(matches!(outcome, Err(FileError::TimedOut(ChildKind::Worker))), "{outcome:?}");
    serves(&mut service);
    fuse.never_answer(fuse::FLUSH);
    drop(opened);
    let outcome = open(&mut service, mapped.locator());
    assert!(matches!(outcome, Err(FileError::TimedOut(ChildKind::Opener))), "{outcome:?}");
    serves(&mut service);
    fuse.never_answer(fuse::NOTHING);
    drop(mapped);
    // SAFETY: a terminated string.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    drop(fuse);
}
