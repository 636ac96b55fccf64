//! What the tests of this crate share: a service whose children are the tests' own helper.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_sandbox::{
    ChildCommand, ChildKind, Config, FileError, FileService, Locator, OpenFile, ProcessRef,
    Refusal, Reply, Request,
};

pub fn command() -> ChildCommand {
    ChildCommand {
        program: env!("CARGO_BIN_EXE_strata-sandbox-helper").into(),
        ..ChildCommand::default()
    }
}

pub fn config() -> Config {
    Config { command: command(), cache: None, ..Config::default() }
}

pub fn service() -> FileService {
    FileService::new(config()).unwrap()
}

pub fn must_be_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests look into other processes: run them as root"
    );
}

pub fn own() -> ProcessRef {
    ProcessRef { pid: std::process::id(), start_time: None }
}

pub fn open(service: &mut FileService, locator: Locator) -> Result<Arc<OpenFile>, FileError> {
    match service.call(Request::Open(locator))? {
        Reply::Opened(file) => Ok(file),
        other => panic!("not an opened file: {other:?}"),
    }
}

pub fn open_host(
    service: &mut FileService,
    path: impl AsRef<Path>,
) -> Result<Arc<OpenFile>, FileError> {
    open(service, Locator::Host { path: path.as_ref().into() })
}

pub fn refusal(outcome: Result<Arc<OpenFile>, FileError>) -> Refusal {
    match outcome {
        Err(FileError::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

pub fn bytes(outcome: Result<Reply, FileError>) -> Vec<u8> {
    match outcome {
        Ok(Reply::Bytes(bytes)) => bytes,
        other => panic!("no bytes: {other:?}"),
    }
}

pub fn custom(kind: u8, body: &[u8], files: &[&Arc<OpenFile>]) -> Request {
    Request::Custom {
        kind,
        body: body.to_vec(),
        files: files.iter().map(|file| Arc::clone(file)).collect(),
    }
}

pub fn pid_of(service: &FileService, kind: ChildKind) -> Option<u32> {
    service
        .children()
        .into_iter()
        .find(|child| child.kind == kind && !child.ending)
        .map(|child| child.pid)
}

/// A process that sleeps until dropped.
pub struct Sleeper(pub Child);

impl Sleeper {
    pub fn start(program: &Path) -> Self {
        let child = loop {
            match Command::new(program).arg("1000").stdin(Stdio::null()).spawn() {
                // Another test forked while the program's copy was open for writing.
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                child => break child.unwrap(),
            }
        };
        wait_for_exec(child.id(), program);
        Self(child)
    }

    pub fn process(&self) -> ProcessRef {
        ProcessRef { pid: self.0.id(), start_time: start_time(self.0.id()) }
    }

    /// The first mapping of a file whose path ends so.
    pub fn mapping(&self, ending: &str) -> (u64, u64) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.0.id())).unwrap();
        let line = maps
            .lines()
            .find(|line| line.ends_with(ending))
            .unwrap_or_else(|| panic!("{ending} in {maps}"));
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for_exec(pid: u32, program: &Path) {
    let program = std::fs::canonicalize(program).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    let mapped = |maps: String| maps.contains(program.to_str().unwrap_or_default());
    while !std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(mapped) {
        assert!(Instant::now() < until, "{} did not start", program.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
