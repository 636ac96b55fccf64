//! Processes that pretend to be a CLR, and their effect on attaching: at most a bounded wait.

mod support;

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use strata_clr::diagnostics::{Diagnostics, DiagnosticsError};
use strata_clr::loading::LoadError;
use strata_clr::{AttachError, AttachOptions, ClrProcess, Deadline, SocketError, attach, discover};
use support::{Clr, must_be_root};

fn impostor(folder: &Path, behaviour: &str, argument: &str) -> Clr {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/impostor.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(folder).args([behaviour, argument]).env("TMPDIR", folder);
    Clr::start(command)
}

fn ask(process: &ClrProcess, time: Duration) -> Result<(), DiagnosticsError> {
    let sockets = process.sockets.as_ref().map_err(|error| error.clone())?;
    Diagnostics::new(&process.target, sockets).process_info(Deadline::within(time)).map(|_| ())
}

#[test]
fn answers_that_lie_are_errors_and_end_at_once() {
    must_be_root();
    for behaviour in ["small", "promises", "long-string", "huge-string", "noise", "empty"] {
        let folder = tempfile::tempdir().unwrap();
        let clr = impostor(folder.path(), behaviour, "");
        let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
        let start = Instant::now();
        // Far more than an answer takes, on a machine that is busy too.
        let error = ask(&process, Duration::from_secs(60)).unwrap_err();
        println!("{behaviour}: {error} ({:?})", start.elapsed());
        assert!(matches!(error, DiagnosticsError::Malformed(_) | DiagnosticsError::Closed));
        assert!(start.elapsed() < Duration::from_secs(30), "it waited for its deadline");
    }
}

#[test]
fn a_server_that_does_not_answer_costs_no_more_than_the_agreed_wait() {
    must_be_root();
    for behaviour in ["silent", "drips", "never-accepts"] {
        let folder = tempfile::tempdir().unwrap();
        let clr = impostor(folder.path(), behaviour, "");
        std::thread::sleep(Duration::from_millis(100));
        let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
        let start = Instant::now();
        let error = ask(&process, Duration::from_millis(400)).unwrap_err();
        println!("{behaviour}: {error} ({:?})", start.elapsed());
        assert!(start.elapsed() >= Duration::from_millis(390));
        assert!(start.elapsed() < Duration::from_secs(30), "it waits for the server");
    }
    let folder = tempfile::tempdir().unwrap();
    let clr = impostor(folder.path(), "endless", "");
    let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
    assert!(matches!(
        ask(&process, Duration::from_secs(2)),
        Err(DiagnosticsError::Malformed(_) | DiagnosticsError::NoAnswer(_))
    ));
}

#[test]
fn a_link_to_another_process_socket_is_refused_before_anybody_hears_of_it() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other-daemon.sock");
    let listener = UnixListener::bind(&other).unwrap();
    listener.set_nonblocking(true).unwrap();
    let clr = impostor(folder.path(), "link", other.to_str().unwrap());
    let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
    let error = process.sockets.expect_err("a link");
    println!("{error}");
    assert!(matches!(error, SocketError::NotASocket(_)));
    assert!(listener.accept().is_err(), "no client has connected");
}

#[test]
fn what_is_no_socket_is_refused_without_being_opened() {
    must_be_root();
    for behaviour in ["file", "fifo"] {
        let folder = tempfile::tempdir().unwrap();
        let clr = impostor(folder.path(), behaviour, "");
        let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
        assert!(matches!(process.sockets, Err(SocketError::NotASocket(_))));
    }
}

#[test]
fn another_process_that_listens_in_the_targets_place_gets_nothing() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    // Its own socket is moved away, and one of this test's takes its place.
    let clr = impostor(folder.path(), "silent", "");
    let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
    let path = process.sockets.unwrap().remove(0).path;
    std::fs::rename(&path, folder.path().join("moved")).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
    let error = ask(&process, Duration::from_secs(2)).unwrap_err();
    println!("{error}");
    let own = std::process::id() as i32;
    assert!(
        matches!(error, DiagnosticsError::Socket(SocketError::WrongPeer { peer, .. }) if peer == own)
    );
    let (mut stream, _) = listener.accept().unwrap();
    let mut received = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut received).unwrap();
    assert_eq!(received, b"", "the connection carried nothing");
}

#[test]
fn a_socket_of_another_user_is_refused() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let clr = impostor(folder.path(), "silent", "");
    let path = discover(clr.pid()).unwrap().unwrap().sockets.unwrap().remove(0).path;
    std::os::unix::fs::chown(&path, Some(4321), None).unwrap();
    let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
    assert!(matches!(process.sockets, Err(SocketError::WrongOwner { owner: 4321, .. })));
}

#[test]
fn a_users_own_link_as_temporary_directory_is_refused() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    symlink("/tmp", &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(4321), None).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/impostor.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(folder.path()).arg("silent").env("TMPDIR", &link);
    let clr = Clr::start(command);
    let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
    assert!(matches!(process.sockets, Err(SocketError::Directory(_))));
}

#[test]
fn a_socket_that_is_bound_and_not_listened_on_is_tried_again() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let clr = impostor(folder.path(), "silent", "");
    let path = discover(clr.pid()).unwrap().unwrap().sockets.unwrap().remove(0).path;
    std::fs::remove_file(&path).unwrap();
    drop(UnixListener::bind(&path).unwrap());
    let process = discover(clr.pid()).unwrap().expect("it has a libcoreclr.so");
    let error = ask(&process, Duration::from_secs(2)).unwrap_err();
    assert!(matches!(error, DiagnosticsError::Socket(SocketError::NotListening(_))), "{error}");
    assert!(AttachError::Load(error.into()).may_pass(), "it is what a starting runtime has");
}

#[test]
fn a_young_process_that_does_not_listen_on_its_socket_yet_is_waited_for() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let clr = impostor(folder.path(), "listens-late", "0.5");
    let options = AttachOptions { time: Duration::from_secs(2), ..AttachOptions::default() };
    let start = Instant::now();
    let error = attach(clr.pid(), &options).unwrap_err();
    println!("{error}");
    // Once it listens, it does not answer.
    assert!(start.elapsed() > Duration::from_millis(400), "{error}");
    let is_refused = matches!(
        error,
        AttachError::Load(LoadError::Socket(
            SocketError::NotListening(_) | SocketError::NotFound { .. }
        ))
    );
    assert!(!is_refused, "{error}");
}
