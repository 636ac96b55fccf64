//! The processes whose threads are shown.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use strata_agent::processes::container;
use strata_agent::selection::Wanted;

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
        for pid in &self.pids {
            if !Path::new(&format!("/proc/{pid}")).exists() {
                bail!("there is no process {pid}");
            }
        }
        let mut pids: BTreeSet<u32> = self.pids.iter().copied().collect();
        if !self.all && self.comms.is_empty() && self.groups.is_empty() {
            return Ok(pids);
        }
        let wanted =
            Wanted { comms: self.comms.clone(), groups: self.groups.clone(), ..Wanted::default() };
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if pid != std::process::id() && self.has(&wanted, &entry.path()) {
                pids.insert(pid);
            }
        }
        if pids.is_empty() {
            bail!(
                "no process has such a name or control group: `ps -eo pid,comm,cgroup` lists them"
            );
        }
        Ok(pids)
    }

    /// Whether the process of a folder in /proc is one of them.
    fn has(&self, wanted: &Wanted, process: &Path) -> bool {
        // Threads of the kernel have no mappings.
        let is_empty =
            |file| std::fs::read(process.join(file)).map_or(true, |text| text.is_empty());
        if self.all {
            return !is_empty("maps");
        }
        let text = |file| std::fs::read_to_string(process.join(file)).unwrap_or_default();
        let is_wanted = wanted.comm_matches(text("comm").trim_end())
            || !self.groups.is_empty() && wanted.group_matches(&container::parse(&text("cgroup")));
        is_wanted && !is_empty("maps")
    }
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
    }
}
