//! The files in `deploy/`, read by their consumers, and its image run as a container.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::compile::{OUTPUT, Recipe};
use crate::places;
use crate::running::{Running, run};

/// A file of `deploy/`.
pub fn file(name: &str) -> PathBuf {
    places::workspace().join("deploy").join(name)
}

pub fn text(name: &str) -> Result<String> {
    let path = file(name);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// The file as the real types of its reader have it: `kubernetes` or `compose`. What they do not
/// know is an error.
pub fn read_strictly(reader: &str, path: &Path) -> Result<Value> {
    let done = run(Command::new(checker()?).arg(reader).arg(path))?;
    if !done.status.success() {
        bail!("{}", done.stderr.trim());
    }
    serde_json::from_str(&done.stdout).context("reading what the checker read")
}

/// The Go program that has the types. Its modules are fetched into the cache, once.
fn checker() -> Result<PathBuf> {
    let directory = places::workspace().join("tests/deploy");
    let sources = ["main.go", "go.mod", "go.sum"].map(|name| directory.join(name)).to_vec();
    let environment = vec![
        ("CGO_ENABLED", "0".to_string()),
        ("GOFLAGS", "-mod=readonly -modcacherw".to_string()),
        ("GOMODCACHE", places::cache("go-modules")?.display().to_string()),
        ("GOTOOLCHAIN", "local".to_string()),
    ];
    // It runs for milliseconds: not optimised it is built in half the time.
    let arguments = ["build", "-buildvcs=false", "-gcflags=all=-N -l", "-o", OUTPUT, "."];
    Recipe {
        name: "check".to_string(),
        compiler: places::required("go", "golang-go")?,
        arguments: arguments.map(String::from).to_vec(),
        sources,
        directory,
        environment,
        strip: false,
        output_is_a_folder: false,
    }
    .build()
}

/// The file tree of the container image, made by what the Dockerfile makes it by.
pub fn make_image(strata: &Path, root: &Path) -> Result<()> {
    let done = run(Command::new(file("image-root.sh")).arg(strata).arg(root))?;
    if !done.status.success() {
        bail!("image-root.sh failed: {}", done.stderr);
    }
    Ok(())
}

/// The image as a privileged container in the host's PID namespace, as compose and Kubernetes start
/// it: every capability, the host's `/sys`, no filter of system calls, a root it cannot write to.
pub struct PrivilegedContainer {
    bundle: TempDir,
    id: String,
}

impl PrivilegedContainer {
    pub fn new(strata: &Path) -> Result<Self> {
        let bundle = tempfile::Builder::new().prefix("strata-image-").tempdir()?;
        make_image(strata, &bundle.path().join("rootfs"))?;
        for folder in ["state", "cache", "run"] {
            fs::create_dir(bundle.path().join(folder))?;
        }
        // Several may run in one process at once.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { bundle, id: format!("strata-image-{}-{count}", std::process::id()) })
    }

    /// `/var/lib/strata` of the container.
    pub fn state(&self) -> PathBuf {
        self.bundle.path().join("state")
    }

    /// Runs strata in it.
    pub fn start(&self, arguments: &[&str]) -> Result<Running> {
        let runc = places::required("runc", "runc")?;
        let configuration = self.configuration(arguments)?.to_string();
        fs::write(self.bundle.path().join("config.json"), configuration)?;
        let mut command = Command::new(runc);
        command.args(["run", "--bundle"]).arg(self.bundle.path()).arg(&self.id);
        Running::from_command(command)
    }

    fn configuration(&self, arguments: &[&str]) -> Result<Value> {
        let all = all_capabilities()?;
        let words: Vec<&str> = ["/usr/local/bin/strata"].iter().chain(arguments).copied().collect();
        let bind = |from: &Path, to: &str, how: &str| json!({"destination": to, "type": "none", "source": from, "options": ["rbind", how]});
        let below = |name: &str| self.bundle.path().join(name);
        Ok(json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0}, "args": words, "cwd": "/var/lib/strata",
                "env": ["PATH=/usr/local/bin"],
                "capabilities": {"bounding": all, "effective": all, "permitted": all},
                "noNewPrivileges": false,
            },
            "root": {"path": "rootfs", "readonly": true},
            "hostname": "strata-image",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
                bind(Path::new("/sys"), "/sys", "ro"),
                bind(&below("state"), "/var/lib/strata", "rw"),
                bind(&below("cache"), "/var/cache", "rw"),
                bind(&below("run"), "/run/strata", "rw"),
            ],
            "linux": {
                "cgroupsPath": format!("/{}", self.id),
                "namespaces": [{"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            },
        }))
    }
}

impl Drop for PrivilegedContainer {
    fn drop(&mut self) {
        if let Some(runc) = places::program(&["runc"]) {
            let _ = run(Command::new(runc).args(["delete", "--force", &self.id]));
        }
    }
}

/// Names of all capabilities that there are to give away here.
fn all_capabilities() -> Result<Vec<String>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mut lines = status.lines();
    let bounds = lines.find_map(|line| line.strip_prefix("CapBnd:")).context("no CapBnd")?;
    let bounds = u64::from_str_radix(bounds.trim(), 16)?;
    // In the order of their numbers.
    let done =
        Command::new(places::required("setpriv", "util-linux")?).args(["--list-caps"]).output()?;
    let names = String::from_utf8(done.stdout)?;
    let known = names.lines().zip(0..64).filter(|(_, number)| bounds & (1 << number) != 0);
    Ok(known.map(|(name, _)| format!("CAP_{}", name.trim().to_uppercase())).collect())
}
