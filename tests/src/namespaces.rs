//! Processes in namespaces of their own, and in a real OCI container by runc.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tempfile::TempDir;

use crate::places;
use crate::running::{Running, wait_until};

/// Runs a copy of a program, visible only in a mount namespace of its own, in a PID namespace of
/// its own. The folder is empty for all other processes.
pub fn hidden(program: &Path, name: &str, arguments: &str, folder: &Path) -> Result<Running> {
    let script = format!(
        "mount -t tmpfs none {folder} && cp {program} {folder}/{name} && exec {folder}/{name} {arguments}",
        folder = folder.display(),
        program = program.display(),
    );
    let mut command = Command::new(places::required("unshare", "util-linux")?);
    command.args(["--pid", "--mount", "--fork", "--kill-child", "/bin/sh", "-c", &script]);
    let running = Running::from_command(command)?;
    wait_until("the hidden program runs", Duration::from_secs(10), || pid_of(name).is_some())?;
    Ok(running)
}

/// A container: its root file system has nothing but one static program.
pub struct Container {
    pub id: String,
    name: String,
    _bundle: TempDir,
    _running: Running,
}

impl Container {
    /// Starts it by `runc run`.
    pub fn start(program: &Path, name: &str, arguments: &[&str]) -> Result<Self> {
        let runc = places::required("runc", "runc")?;
        let bundle = tempfile::Builder::new().prefix("strata-bundle-").tempdir()?;
        let root = bundle.path().join("rootfs");
        fs::create_dir_all(root.join("proc"))?;
        fs::copy(program, root.join(name))?;
        // 64 hexadecimal digits, as every container runtime names its containers.
        let id = format!("{:064x}", u128::from(std::process::id()) * 0x1_0000_0001_0000_0001);
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
        let mut running = Running::from_command(command)?;
        let started = wait_until("the container runs", Duration::from_secs(15), || {
            pid_of(name).is_some() || !running.is_alive()
        });
        if started.is_err() || pid_of(name).is_none() {
            let printed =
                running.wait(Duration::from_secs(1)).map(|e| e.stderr).unwrap_or_default();
            anyhow::bail!("runc did not start the container: {printed}");
        }
        Ok(Self { id, name: name.to_string(), _bundle: bundle, _running: running })
    }

    /// Its first process, as the host numbers it.
    pub fn pid(&self) -> Result<i32> {
        pid_of(&self.name).context("the container's process")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(runc) = places::program(&["runc"]) {
            let _ = Command::new(runc).args(["delete", "--force", &self.id]).output();
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
