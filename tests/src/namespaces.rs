//! Processes in namespaces of their own, and in a real OCI container by runc.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use serde_json::json;
use tempfile::TempDir;

use crate::daemon::PATIENCE;
use crate::places;
use crate::running::{Running, run, wait_until};

/// Runs a copy of a program, visible only in a mount namespace of its own, in a PID namespace of
/// its own. The folder is empty for all other processes. Seconds that it is given are CPU time.
pub fn hidden(program: &Path, name: &str, arguments: &str, folder: &Path) -> Result<Running> {
    let script = format!(
        "mount -t tmpfs none {folder} && cp {program} {folder}/{name} && exec {folder}/{name} {arguments}",
        folder = folder.display(),
        program = program.display(),
    );
    let mut command = Command::new(places::required("unshare", "util-linux")?);
    command.args(["--pid", "--mount", "--fork", "--kill-child", "/bin/sh", "-c", &script]);
    command.env("STRATA_TARGET_CLOCK", "cpu");
    let running = Running::from_command(command)?;
    wait_until("the hidden program runs", PATIENCE, || pid_of(name).is_some())?;
    Ok(running)
}

/// A container: its root file system has nothing but one static program.
pub struct Container {
    pub id: String,
    name: String,
    _bundle: TempDir,
    running: Running,
}

impl Container {
    /// Starts it by `runc run`.
    pub fn start(program: &Path, name: &str, arguments: &[&str]) -> Result<Self> {
        let runc = places::required("runc", "runc")?;
        let bundle = tempfile::Builder::new().prefix("strata-bundle-").tempdir()?;
        let root = bundle.path().join("rootfs");
        fs::create_dir_all(root.join("proc"))?;
        fs::copy(program, root.join(name))?;
        // 64 hexadecimal digits, as every container runtime names its containers. Several may run in one process
        // at once.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = u128::from(COUNT.fetch_add(1, Ordering::Relaxed)) << 96;
        let id =
            format!("{:064x}", count + u128::from(std::process::id()) * 0x1_0000_0001_0000_0001);
        let mut words = vec![format!("/{name}")];
        words.extend(arguments.iter().map(|a| a.to_string()));
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0}, "args": words, "cwd": "/", "env": ["PATH=/"],
                "noNewPrivileges": true,
            },
            "root": {"path": "rootfs", "readonly": false},
            "hostname": "strata-test",
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {
                "cgroupsPath": format!("/docker/{id}"),
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            },
        });
        fs::write(bundle.path().join("config.json"), config.to_string())?;
        let mut command = Command::new(runc);
        command.args(["run", "--bundle"]).arg(bundle.path()).arg(&id);
        let running = Running::from_command(command)?;
        // From now on it is deleted, whatever happens.
        let mut container = Self { id, name: name.to_string(), _bundle: bundle, running };
        let started = wait_until("the container runs", PATIENCE, || {
            pid_of(name).is_some() || !container.running.is_alive()
        });
        if started.is_err() || pid_of(name).is_none() {
            anyhow::bail!("runc did not start the container: {}", container.running.logged());
        }
        Ok(container)
    }

    /// Its first process, as the host numbers it.
    pub fn pid(&self) -> Result<i32> {
        pid_of(&self.name).context("the container's process")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(runc) = places::program(&["runc"]) {
            let _ = run(Command::new(runc).args(["delete", "--force", &self.id]));
        }
    }
}

/// The first process of this name, in the host's numbers.
pub fn pid_of(comm: &str) -> Option<i32> {
    let entries = fs::read_dir("/proc").ok()?;
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.into_iter()
        .find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == comm))
}
