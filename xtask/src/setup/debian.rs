//! Debian packages: installing what is missing, and fetching single packages of any release
//! without installing them.
//!
//! Invariant: only [`ensure`] changes the system. [`Release`] keeps its package lists in the
//! cache directory and uses the mirror that this machine already uses, checked by apt with
//! Debian's own keys.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::step;
use crate::{project, run};

#[derive(Clone, Copy)]
pub struct Need {
    pub why: &'static str,
    pub found: Found,
    pub packages: &'static [&'static str],
}

/// How one sees that a [`Need`] is met.
#[derive(Clone, Copy)]
pub enum Found {
    Programs(&'static [&'static str]),
    AnyProgram(&'static [&'static str]),
    File(&'static str),
}

impl Found {
    fn is_here(self) -> bool {
        let on_path = |name: &&str| project::find_program(name).is_some();
        match self {
            Found::Programs(names) => names.iter().all(on_path),
            Found::AnyProgram(names) => names.iter().any(on_path),
            Found::File(path) => Path::new(path).exists(),
        }
    }
}

/// Installs the packages behind every need that is not met.
pub fn ensure(needs: &[Need]) -> Result<()> {
    let missing: Vec<&Need> = needs.iter().filter(|need| !need.found.is_here()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = Vec::new();
    for need in &missing {
        eprintln!("· needed: {} ({})", need.packages.join(" "), need.why);
        packages.extend(
            need.packages
                .iter()
                .filter(|name| !packages.contains(name))
                .copied()
                .collect::<Vec<_>>(),
        );
    }
    let by_hand = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if project::find_program("apt-get").is_none() {
        bail!(
            "this machine has no apt-get: install what is listed above with its own package \
             manager (the names are Debian's) and run this again"
        );
    }
    if !project::is_root() {
        bail!(
            "installing packages needs root. Run this, then the same command again:\n  sudo {by_hand}"
        );
    }
    // An unrelated source that is down must not stop the set-up: the install decides.
    if let Err(error) = step("refresh the package lists", apt_get().arg("update")) {
        eprintln!("  warning: {error:#}");
    }
    let mut install = apt_get();
    install.args(["install", "--yes", "--no-install-recommends"]).args(&packages);
    step(&format!("install {}", packages.join(" ")), &mut install)
        .with_context(|| format!("apt-get could not install them; try by hand: {by_hand}"))?;
    for need in missing {
        if !need.found.is_here() {
            bail!(
                "{} was installed, but what it is for is still missing ({})",
                need.packages.join(" "),
                need.why
            );
        }
    }
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Another apt process may be running: wait for it.
        .args(["-o", "DPkg::Lock::Timeout=600"]);
    command
}

/// One Debian release, from this machine's mirror, for fetching single packages.
pub struct Release {
    suite: &'static str,
    directory: PathBuf,
}

impl Release {
    /// Fetches the package lists of `suite` into the cache directory.
    pub fn open(suite: &'static str) -> Result<Self> {
        let release = Release { suite, directory: project::cache().join("apt").join(suite) };
        for directory in ["lists/partial", "archives/partial"] {
            let directory = release.directory.join(directory);
            fs::create_dir_all(&directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        fs::write(release.sources(), format!("deb {}{suite} main\n", mirror()?))?;
        step(&format!("package lists of Debian {suite}"), release.apt("apt-get").arg("update"))?;
        Ok(release)
    }

    /// The packages `package` depends on directly, alternatives included.
    pub fn dependencies_of(&self, package: &str) -> Result<Vec<String>> {
        let listing = run::output_of(self.apt("apt-cache").args(["depends", package]))?;
        let names = listing.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Downloads `package` and unpacks the files that match `patterns` below `into`.
    pub fn unpack(&self, package: &str, patterns: &[&str], into: &Path) -> Result<()> {
        let downloads = self.directory.join("download");
        _ = fs::remove_dir_all(&downloads);
        fs::create_dir_all(&downloads)?;
        let mut download = self.apt("apt-get");
        step(
            &format!("download {package} of Debian {}", self.suite),
            download.current_dir(&downloads).args(["download", package]),
        )?;
        let archive = fs::read_dir(&downloads)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt-get left no package in {}", downloads.display()))?;
        fs::create_dir_all(into)?;
        let script =
            "set -o pipefail; dpkg --fsys-tarfile \"$1\" | tar -x -C \"$2\" --wildcards \"${@:3}\"";
        let mut unpack = Command::new("bash");
        unpack.args(["-c", script, "unpack"]).arg(&archive).arg(into).args(patterns);
        step(&format!("unpack {package}"), &mut unpack)?;
        fs::remove_dir_all(&downloads)?;
        Ok(())
    }

    fn sources(&self) -> PathBuf {
        self.directory.join("sources.list")
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let set = |command: &mut Command, key: &str, value: &Path| {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        };
        set(&mut command, "Dir::Etc::sourcelist", &self.sources());
        set(&mut command, "Dir::Etc::sourceparts", Path::new("-"));
        set(&mut command, "Dir::State::lists", &self.directory.join("lists"));
        set(&mut command, "Dir::Cache", &self.directory);
        // Only the index of packages: no translations, no software-centre metadata.
        command.args(["-o", "Acquire::Languages=none"]);
        command.args(["-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"]);
        // apt's own unprivileged user cannot see into a clone under a user's home directory.
        command.args(["-o", "APT::Sandbox::User=root"]);
        command
    }
}

/// `[signed-by=…] URI ` of the Debian mirror in this machine's own apt configuration.
fn mirror() -> Result<String> {
    let format = "$(LABEL)|$(COMPONENT)|$(REPO_URI)";
    let ask = || {
        run::output_of(Command::new("apt-get").args([
            "indextargets",
            "--format",
            format,
            "Created-By: Packages",
        ]))
    };
    let find = |listing: String| {
        let mut rows = listing.lines().map(|row| row.splitn(3, '|').collect::<Vec<_>>());
        rows.find_map(|row| match row[..] {
            ["Debian", "main", uri] => Some(uri.to_owned()),
            _ => None,
        })
    };
    let mut uri = find(ask()?);
    if uri.is_none() && project::is_root() {
        // apt knows labels only of lists it has fetched.
        step("refresh the package lists", apt_get().arg("update"))?;
        uri = find(ask()?);
    }
    let Some(uri) = uri else {
        bail!("apt knows no Debian mirror on this machine: is it Debian? Try `apt-get update`")
    };
    const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let signed_by =
        if Path::new(KEYS).exists() { format!("[signed-by={KEYS}] ") } else { String::new() };
    Ok(format!("{signed_by}{uri} "))
}
