//! A control group of cgroup v2: what all processes in it have used, those that have ended included.
//!
//! `cpu.stat` counts processor time in every group, also where no controller is enabled and v1 has them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A group of this process's own making; it is removed with this value, once it is empty.
pub struct ControlGroup {
    path: PathBuf,
    /// Where this process belongs.
    home: PathBuf,
}

impl ControlGroup {
    pub fn new(name: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let root = mount_of(&mounts).context("no cgroup2 file system is mounted")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let path = root.join(format!("strata-bench-{}-{name}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Self { path, home: root.join(own.trim_start_matches('/')) })
    }

    /// Runs something in the group: processes that it starts stay there.
    pub fn around<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        enter(&self.path)?;
        let done = work();
        enter(&self.home)?;
        done
    }

    /// Processor time of the group so far.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let text = fs::read_to_string(self.path.join("cpu.stat"))?;
        let used = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        Ok(used.context("no usage in cpu.stat")?.trim().parse::<f64>()? / 1e6)
    }

    /// The processes in it now.
    pub fn pids(&self) -> Result<Vec<i32>> {
        let text = fs::read_to_string(self.path.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Proportional memory of all processes in it: what is shared counts once.
    pub fn proportional_bytes(&self) -> Result<u64> {
        let of = |pid: i32| {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
            let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            number.unwrap_or(0) << 10
        };
        Ok(self.pids()?.into_iter().map(of).sum())
    }
}

fn enter(group: &Path) -> Result<()> {
    let file = group.join("cgroup.procs");
    fs::write(&file, std::process::id().to_string()).with_context(|| format!("{}", file.display()))
}

/// Where cgroup2 is mounted: device, place, type, …
fn mount_of(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    })
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_beside_those_of_v1() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_of(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_of("proc /proc proc rw 0 0\n"), None);
    }
}
