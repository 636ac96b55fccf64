//! Processes whose temporary directory never answers, or that hold their memory's lock forever:
//! strata goes on without them. Needs FUSE.

mod support;

#[path = "../../sandbox/tests/support/fuse.rs"]
mod fuse;

use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuse::Fuse;
use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::layout::{WISHES, WishBlock};
use strata_clr::session::{Budget, Life, Look};
use strata_clr::{
    DiscoverError, MAX_STUCK, Session, SessionError, SessionOptions, SocketError, Stuck, Target,
    discover, stuck_threads,
};
use support::{Clr, Runtime, alone, must_be_root, wait_until};

/// A user of a process that hangs.
const UNPRIVILEGED: u32 = 65_534;

#[test]
fn directories_that_hang_cost_a_few_threads_and_no_other_process_its_attach() {
    must_be_root();
    // Threads that hang are counted.
    let _alone = alone();
    let mount = tempfile::tempdir().unwrap();
    let Some(fuse) = Fuse::mount(mount.path(), Vec::new()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("impostor.py");
    let impostor = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/impostor.py");
    std::fs::copy(impostor, &script).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(UNPRIVILEGED), None).unwrap();
    let mut command = Command::new("python3");
    command.arg(script).arg(folder.path()).arg("nothing").env("TMPDIR", mount.path().join("x"));
    command.current_dir(folder.path()).uid(UNPRIVILEGED);
    let hanging = Clr::start(command);
    fuse.never_answer(fuse::LOOKUP);
    for _ in 0..MAX_STUCK {
        let start = Instant::now();
        let error = discover(hanging.pid()).unwrap_err();
        assert!(matches!(error, DiscoverError::Stuck(Stuck::TimedOut(_))), "{error}");
        assert!(start.elapsed() < Duration::from_secs(3));
    }
    assert_eq!(stuck_threads(), MAX_STUCK);
    // Nothing of it is touched any more; its environment neither, so that only /tmp is known.
    let start = Instant::now();
    let found = discover(hanging.pid()).unwrap().expect("it has a libcoreclr.so");
    println!("{:?} after {:?}", found.sockets, start.elapsed());
    assert!(matches!(found.sockets, Err(SocketError::NotLooked)));
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(stuck_threads(), MAX_STUCK);
    // Those of another user are looked at as ever: this one's socket is where its environment says.
    let directory = tempfile::tempdir().unwrap();
    let mut command = Runtime::Net9.command();
    command.env("TMPDIR", directory.path());
    let others = [Runtime::Net9.start(), Clr::start(command)];
    for other in &others {
        let found = discover(other.pid()).unwrap().unwrap().sockets;
        assert!(found.is_ok(), "{found:?}");
    }
    drop(fuse);
    wait_until("the threads are free again", || stuck_threads() == 0);
}

/// Looks on a thread of its own, which may hang.
fn look_aside(look: Look) -> JoinHandle<()> {
    std::thread::spawn(|| look.look())
}

/// The wishes of a bridge's owner.
fn wishes(pid: u32) -> WishBlock {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let is_main = |path: &PathBuf| {
        let name = std::fs::read_link(path).unwrap_or_default();
        name.to_string_lossy().starts_with("/memfd:strata-clr (")
    };
    let main = files.map(|file| file.path()).find(is_main).expect("its main file");
    let mut bytes = [0; size_of::<WishBlock>()];
    std::fs::File::open(main).unwrap().read_exact_at(&mut bytes, WISHES as u64).unwrap();
    WishBlock::from_bytes(&bytes)
}

/// Polls as the daemon does, and returns how long the longest took.
fn poll_until(session: &mut Session, mut is_enough: impl FnMut(&mut Session) -> bool) -> Duration {
    let mut longest = Duration::ZERO;
    wait_until("enough was polled", || {
        let start = Instant::now();
        session.poll(Budget::default()).unwrap();
        longest = longest.max(start.elapsed());
        is_enough(session)
    });
    longest
}

#[test]
fn a_process_that_holds_its_memorys_lock_holds_up_a_look_and_no_reader() {
    must_be_root();
    // Threads that hang are counted.
    let _alone = alone();
    let mount = tempfile::tempdir().unwrap();
    let Some(fuse) = Fuse::mount(mount.path(), vec![0; 4096]) else { return };
    fuse.never_answer(fuse::WRITE);
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-clr-hostile"));
    command.arg("holds").arg(mount.path().join("x"));
    let clr = Clr::start(command);
    // It holds the lock half a second after it printed that it runs.
    let target = Target::open(clr.pid()).unwrap();
    let mut session = Session::open(target, &SessionOptions::default()).unwrap();
    let mut looks = Vec::new();
    let longest = poll_until(&mut session, |session| {
        looks.extend(session.wanted().map(|look| (Instant::now(), look_aside(look))));
        looks.last().is_some_and(|(since, look)| {
            !look.is_finished() && since.elapsed() > Duration::from_secs(2)
        })
    });
    println!("{} looks, the last of which hangs; longest poll {longest:?}", looks.len());
    assert!(longest < Duration::from_millis(250));
    // No later caller waits forever.
    let target = Target::open(clr.pid()).unwrap();
    let error = Session::open(target, &SessionOptions::default()).unwrap_err();
    assert!(matches!(error, SessionError::Stuck(Stuck::TimedOut(_))), "{error}");
    let error = discover(clr.pid()).unwrap_err();
    assert!(matches!(error, DiscoverError::Stuck(Stuck::TimedOut(_))), "{error}");
    assert_eq!(session.life(), Life::Running);
    assert!(session.wanted().is_none(), "one look is out at a time");
    // It is not waited for with leaving either.
    let start = Instant::now();
    session.detach().unwrap();
    assert_eq!(wishes(clr.pid()).flags & wish::DETACH, 0, "a segment is missing");
    let longest = poll_until(&mut session, |_| wishes(clr.pid()).flags & wish::DETACH != 0);
    println!("asked to leave after {:?}; longest poll {longest:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(1) && longest < Duration::from_millis(250));
    drop(fuse);
    for (_, look) in looks {
        look.join().unwrap();
    }
    // It came back, and the next one is a long time away.
    let start = Instant::now();
    poll_until(&mut session, |session| {
        assert!(session.wanted().is_none());
        start.elapsed() > Duration::from_secs(3)
    });
    wait_until("the threads are free again", || stuck_threads() == 0);
}

#[test]
fn a_look_without_time_for_it_is_wanted_again_later() {
    must_be_root();
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-clr-hostile"));
    command.arg("promises");
    let clr = Clr::start(command);
    let target = Target::open(clr.pid()).unwrap();
    let mut session = Session::open(target, &SessionOptions::default()).unwrap();
    let mut dropped = Vec::new();
    poll_until(&mut session, |session| {
        // Dropped as it is.
        dropped.extend(session.wanted().map(|_| Instant::now()));
        dropped.len() == 2
    });
    assert!(dropped[1] - dropped[0] > Duration::from_secs(1));
}
