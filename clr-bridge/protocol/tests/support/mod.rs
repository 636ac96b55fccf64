//! What several tests need: another process's shared memory, found as strata finds it.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use strata_bridge_protocol::field::{Ranges, Texts};
use strata_bridge_protocol::reader::file::{self, Refused};
use strata_bridge_protocol::reader::{Limits, Reader};
use strata_bridge_protocol::record::{Method, MethodKind, Tier};

/// Paths in `map_files` of a process's mappings of the memfds with this name. Opening them needs
/// CAP_CHECKPOINT_RESTORE: these tests run as root.
pub fn mapped(pid: u32, name: &str) -> Vec<PathBuf> {
    let device = file::memfd_device().expect("a memfd can be made");
    let device = format!("{:02x}:{:02x}", libc::major(device), libc::minor(device));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps can be read");
    maps.lines()
        .filter(|line| line.ends_with(&format!("/memfd:{name} (deleted)")))
        .filter(|line| line.split(' ').nth(3) == Some(&device))
        .filter_map(|line| line.split_once(' '))
        .map(|(range, _)| PathBuf::from(format!("/proc/{pid}/map_files/{range}")))
        .collect()
}

/// The files of a process's mappings with this name, each as `check` wants it. Other tests of the
/// same process unmap theirs at any time, and map new ones in their place: what cannot be opened
/// any more is no fault unless it is still there.
fn opened(pid: u32, name: &str, check: impl Fn(&File) -> Result<(), Refused>) -> Vec<File> {
    let open = |path: &PathBuf| {
        let mut wrong = None;
        for _ in 0..100 {
            match file::open(path).and_then(|file| check(&file).map(|()| file)) {
                Ok(file) => return Some(file),
                Err(_) if !mapped(pid, name).contains(path) => return None,
                Err(error) => wrong = Some(error),
            }
        }
        panic!("{} is no {name}: {wrong:?}", path.display());
    };
    mapped(pid, name).iter().filter_map(open).collect()
}

/// The main files of a process, checked.
pub fn main_files(pid: u32) -> Vec<File> {
    opened(pid, "strata-clr", file::check_main)
}

/// A reader of a process's memory with all its segments; of the one with this id, if given.
pub fn reader(pid: u32, id: Option<[u8; 16]>) -> Reader<File> {
    let readers = main_files(pid).into_iter().map(|main| Reader::new(main, Limits::default()));
    let mut reader = readers
        .map(|reader| reader.expect("a main file"))
        .find(|reader| id.is_none_or(|id| id == reader.id()))
        .expect("the process has a main file");
    add_segments(&mut reader, pid);
    reader
}

/// Adds the segments that are not there yet.
pub fn add_segments(reader: &mut Reader<File>, pid: u32) {
    for segment in opened(pid, "strata-clr-log", file::check_segment) {
        // Those of other writers in this process, and those that are there, are refused.
        _ = reader.add_segment(segment);
    }
}

/// A method as the bridge writes them, which shows whether it was torn.
pub fn method(number: u64, name: &str) -> Method<'_> {
    Method {
        function: number,
        rejit: 0,
        module: 3,
        type_token: 0x0200_0002,
        token: 0x0600_0003,
        kind: MethodKind::Jitted as u8,
        tier: Tier::Tier1 as u8,
        app_domain: 1,
        name,
        generic_parameters: Texts::default(),
        signature: &[0x20, 0x01, 0x01, 0x08],
        class_arguments: Texts::default(),
        method_arguments: Texts::default(),
        asked_ip: number,
        ranges: Ranges::default(),
    }
}

/// Another process that plays a role; it is killed when dropped.
pub struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it and waits until it prints `ready`, or returns why it cannot play.
    pub fn start(role: &[&str]) -> Result<Self, String> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_strata-bridge-protocol-peer"))
            .args(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the peer starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut peer = Self { child, input, output };
        match peer.line() {
            line if line == "ready" => Ok(peer),
            line => Err(line),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the peer can be read");
        line.trim_end().to_owned()
    }

    /// Sends it a command, and returns its answer.
    pub fn tell(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").expect("the peer listens");
        self.line()
    }

    /// `kill -9`, and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().expect("the peer can be killed");
        self.child.wait().expect("the peer ends");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
