//! The processes whose threads are shown.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use strata_agent::processes::container;
use strata_agent::selection::Wanted;

use super::not_shown::ProcessKind;
use crate::process_files;

/// Any of these.
pub struct Which {
    pub pids: Vec<u32>,
    pub comms: Vec<String>,
    pub groups: Vec<String>,
    pub all: bool,
}

impl Which {
    /// Their ids: one at least.
    pub fn pids(&self) -> Result<BTreeSet<u32>> {
        let pids = self.pids.iter().map(|pid| process_files::process_of(*pid));
        let mut pids = pids.collect::<Result<BTreeSet<u32>>>()?;
        if !self.all && self.comms.is_empty() && self.groups.is_empty() {
            return Ok(pids);
        }
        let wanted =
            Wanted { comms: self.comms.clone(), groups: self.groups.clone(), ..Wanted::default() };
        let mut without_stacks = BTreeSet::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if pid == std::process::id() || !(self.all || self.has(&wanted, &entry.path())) {
                continue;
            }
            match ProcessKind::of(pid) {
                ProcessKind::Usual => _ = pids.insert(pid),
                kind => _ = without_stacks.insert(kind),
            }
        }
        if pids.is_empty() {
            bail!(none_of(&without_stacks));
        }
        Ok(pids)
    }

    /// Whether the process of a folder in /proc has a name or control group that is asked for.
    fn has(&self, wanted: &Wanted, process: &Path) -> bool {
        let text = |file| process_files::text(process.join(file)).unwrap_or_default();
        wanted.comm_matches(text("comm").trim_end())
            || !self.groups.is_empty() && wanted.group_matches(&container::parse(&text("cgroup")))
    }
}

/// Why nothing is shown, by the processes that match and have no stacks.
fn none_of(matching: &BTreeSet<ProcessKind>) -> &'static str {
    if matching.contains(&ProcessKind::Kernel) {
        return "only kernel threads have such a name, and they have no user stack: `cat \
                /proc/PID/stack` shows a kernel stack";
    }
    if matching.contains(&ProcessKind::Zombie) {
        return "only processes that have ended (zombies) have such a name or control group";
    }
    "no process has such a name or control group: `ps -eo pid,comm,cgroup` lists them"
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Which =
        Which { pids: Vec::new(), comms: Vec::new(), groups: Vec::new(), all: false };

    #[test]
    fn processes_are_found_by_name_and_all_are_others() {
        let own = std::process::id();
        let which = Which { pids: vec![own], ..NONE };
        assert_eq!(which.pids().expect("this one"), [own].into());
        let all = Which { all: true, ..NONE }.pids().expect("some");
        assert!(!all.contains(&own) && !all.is_empty());
        let error = Which { comms: vec!["no such name".into()], ..NONE }.pids();
        assert!(error.expect_err("none").to_string().contains("ps -eo"));
        assert!(Which { pids: vec![u32::MAX], ..NONE }.pids().is_err());

        assert!(none_of(&[ProcessKind::Kernel].into()).contains("kernel threads"));
        assert!(none_of(&[ProcessKind::Zombie].into()).contains("zombies"));
    }
    #[test]
    fn a_thread_is_of_its_process() {
        let found = std::thread::spawn(|| {
            // SAFETY: a call without preconditions.
            let tid = unsafe { libc::gettid() };
            Which { pids: vec![tid.unsigned_abs()], ..NONE }.pids().expect("its process")
        });
        assert_eq!(found.join().expect("it ends"), [std::process::id()].into());
    }
}
