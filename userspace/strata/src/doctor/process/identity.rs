//! The contents of `/proc` for a process: name, program, namespaces, control group.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use strata_sandbox::process_text::Stat;

use crate::doctor::parse;
use crate::doctor::text::printable;
use strata_agent::processes::container::{self, Group};

pub struct ResolvedProcess {
    pub pid: u32,
    /// The number that was asked for, when it is a thread of this process.
    pub thread: Option<u32>,
    pub name: String,
    pub program: String,
    pub threads: u64,
    pub start_time: Option<u64>,
    pub kernel_thread: bool,
    pub ended: bool,
    /// Its numbers from the host's PID namespace to its own.
    pub pids: Vec<u32>,
    /// Namespaces, and whether each is that of this process (strata's); `None` when not readable.
    pub namespaces: Vec<(&'static str, Option<bool>)>,
    pub group: Group,
}

impl ResolvedProcess {
    /// Its number as it sees itself.
    pub fn inner_pid(&self) -> u32 {
        self.pids.last().copied().unwrap_or(self.pid)
    }
}

pub fn read(asked: u32) -> Option<ResolvedProcess> {
    let status = fs::read(format!("/proc/{asked}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let pid = number(&status, "Tgid")?;
    let of = |file: &str| format!("/proc/{pid}/{file}");
    let stat = fs::read(of("stat")).unwrap_or_default();
    let program = match fs::read_link(of("exe")) {
        Ok(path) => printable(path.as_os_str().as_bytes()),
        Err(error) => format!("not readable: {error}"),
    };
    Some(ResolvedProcess {
        pid,
        thread: (asked != pid).then_some(asked),
        name: fs::read(of("comm")).map(|name| printable(name.trim_ascii_end())).unwrap_or_default(),
        program,
        threads: number(&status, "Threads").map_or(0, u64::from),
        start_time: parse::start_time(&stat),
        kernel_thread: Stat::parse(&stat).is_some_and(|stat| stat.is_kernel_thread()),
        ended: parse::status_field(&status, "State")
            .is_some_and(|state| state.starts_with(['Z', 'X'])),
        pids: parse::status_field(&status, "NSpid")
            .map(|pids| pids.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
            .unwrap_or_default(),
        namespaces: ["pid", "mnt", "user", "cgroup"].map(|kind| (kind, shared(pid, kind))).to_vec(),
        group: fs::read_to_string(of("cgroup"))
            .map(|text| container::parse(&text))
            .unwrap_or_default(),
    })
}

fn number(status: &str, name: &str) -> Option<u32> {
    parse::status_field(status, name)?.parse().ok()
}

/// Whether a namespace of the process is strata's own.
fn shared(pid: u32, kind: &str) -> Option<bool> {
    let inode =
        |who: &str| fs::metadata(format!("/proc/{who}/ns/{kind}")).ok().map(|found| found.ino());
    Some(inode(&pid.to_string())? == inode("self")?)
}
