//! A process whose temporary directory never answers: strata goes on without it. Needs FUSE.

mod support;

#[path = "../../files/tests/support/fuse.rs"]
mod fuse;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fuse::Fuse;
use strata_clr::{DiscoverError, MAX_STUCK, SocketError, Stuck, discover, stuck_threads};
use support::{Clr, Runtime, must_be_root, wait_until};

#[test]
fn directories_that_hang_cost_a_few_threads_and_no_other_process_its_attach() {
    must_be_root();
    let mount = tempfile::tempdir().unwrap();
    let Some(fuse) = Fuse::mount(mount.path(), Vec::new()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/impostor.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(folder.path()).arg("nothing").env("TMPDIR", mount.path().join("x"));
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
    let other = Runtime::Net9.start();
    assert!(discover(other.pid()).unwrap().unwrap().sockets.is_ok());
    drop(fuse);
    wait_until("the threads are free again", || stuck_threads() == 0);
}
