//! A cgroup with a CPU quota, made for one process and removed with this value.
//!
//! Invariant: nothing existing is changed, except that cgroup v2 may have the CPU controller
//! enabled for the root's children, which is what makes a quota possible there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::running::wait_until;

/// Part of a CPU's time.
pub const HALF_A_CORE: f64 = 0.5;

const PERIOD_MICROSECONDS: u64 = 100_000;

/// Where quotas are made on this machine.
enum Hierarchy {
    Version1(PathBuf),
    Version2(PathBuf),
}

/// A cgroup.
pub struct Quota {
    folder: PathBuf,
    pub version: u8,
}

impl Quota {
    /// Limits a process, from now on until it ends.
    pub fn limit(pid: i32, cores: f64) -> Result<Self> {
        let microseconds = (cores * PERIOD_MICROSECONDS as f64) as u64;
        let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
        let found = hierarchy(&mountinfo).context("no cgroup hierarchy with the CPU controller")?;
        let name = format!("strata-bench-{}", std::process::id());
        let (folder, version) = match &found {
            Hierarchy::Version1(root) => (root.join(&name), 1),
            Hierarchy::Version2(root) => (root.join(&name), 2),
        };
        if let Hierarchy::Version2(root) = &found {
            write(&root.join("cgroup.subtree_control"), "+cpu")?;
        }
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        let quota = Self { folder, version };
        match found {
            Hierarchy::Version1(_) => {
                quota.write("cpu.cfs_period_us", &PERIOD_MICROSECONDS.to_string())?;
                quota.write("cpu.cfs_quota_us", &microseconds.to_string())?;
            }
            Hierarchy::Version2(_) => {
                quota.write("cpu.max", &format!("{microseconds} {PERIOD_MICROSECONDS}"))?;
            }
        }
        quota.write("cgroup.procs", &pid.to_string())?;
        Ok(quota)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        write(&self.folder.join(file), text)
    }

    /// Removes it: the process must have ended, or be about to.
    pub fn remove(&self) -> Result<()> {
        wait_until("the cgroup is empty", Duration::from_secs(10), || {
            fs::remove_dir(&self.folder).is_ok() || !self.folder.exists()
        })
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("{}: {error:#}", self.folder.display());
        }
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {text:?} to {}", path.display()))
}

/// Finds version 2 where it has the CPU controller, else version 1.
fn hierarchy(mountinfo: &str) -> Result<Hierarchy> {
    let mut version1 = None;
    for line in mountinfo.lines() {
        // 36 35 98:0 /root /mount options … - type source options (proc(5)).
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (kind, options) = (after.split(' ').next(), after.split(' ').nth(2));
        let Some(mount) = before.split(' ').nth(4).map(PathBuf::from) else { continue };
        let is_controller = |name: &str| name == "cpu";
        if kind == Some("cgroup2") {
            let controllers = fs::read_to_string(mount.join("cgroup.controllers"));
            if controllers.unwrap_or_default().split_whitespace().any(is_controller) {
                return Ok(Hierarchy::Version2(mount));
            }
        } else if kind == Some("cgroup") && options.is_some_and(|o| o.split(',').any(is_controller))
        {
            version1 = Some(mount);
        }
    }
    match version1 {
        Some(mount) => Ok(Hierarchy::Version1(mount)),
        None => bail!("neither version is mounted with it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_is_found_by_its_controller() {
        let text = "30 25 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                    31 25 0:27 / /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n";
        let Ok(Hierarchy::Version1(mount)) = hierarchy(text) else { panic!("not found") };
        assert_eq!(mount, Path::new("/sys/fs/cgroup/cpu"));
        assert!(hierarchy("30 25 0:26 / /sys rw - sysfs sysfs rw\n").is_err());
    }
}
