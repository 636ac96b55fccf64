//! Kernels to boot in `vm-test`, from Debian's packages, which are not installed.
//!
//! Each comes from the release that carries that series; `newest` is whatever Debian builds now.
//! Invariant: a fetched kernel is kept, so that test runs are repeatable.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::debian::Release;
use crate::project;

struct Source {
    name: &'static str,
    suite: &'static str,
}

const SOURCES: &[Source] = &[
    Source { name: "6.1", suite: "bookworm" },
    Source { name: "6.12", suite: "bookworm-backports" },
    Source { name: "newest", suite: "sid" },
];

pub struct Kernel {
    pub name: &'static str,
    /// As `uname -r` prints it.
    pub release: String,
    pub image: PathBuf,
}

/// The kernels that `wanted` names, all without a name, fetched where needed.
pub fn ensure(wanted: &[String]) -> Result<Vec<Kernel>> {
    if wanted.is_empty() {
        return SOURCES.iter().map(ensure_one).collect();
    }
    let mut kernels: Vec<Kernel> = Vec::new();
    for name in wanted {
        let kernel = named(name)?;
        if kernels.iter().all(|known| known.name != kernel.name) {
            kernels.push(kernel);
        }
    }
    Ok(kernels)
}

fn named(wanted: &str) -> Result<Kernel> {
    if let Some(source) = SOURCES.iter().find(|source| source.name == wanted) {
        return ensure_one(source);
    }
    // The release of the newest ("7.2") is known only once the kernel is here.
    let newest = SOURCES.last().context("there are kernels")?;
    let kernel = ensure_one(newest)?;
    if !kernel.release.starts_with(wanted) {
        bail!(
            "no kernel '{wanted}': there are 6.1, 6.12 and newest, which is {} here",
            kernel.release
        );
    }
    Ok(kernel)
}

fn ensure_one(source: &Source) -> Result<Kernel> {
    let directory = project::cache().join("kernels").join(source.name);
    let image = directory.join("vmlinuz");
    let release_file = directory.join("release");
    if !(image.exists() && release_file.exists()) {
        eprintln!(
            "· needed: Linux {} (to boot in vm-test; kept under .cache, not installed)",
            source.name
        );
        fetch(source, &directory)?;
    }
    let release = fs::read_to_string(&release_file)
        .with_context(|| format!("cannot read {}", release_file.display()))?;
    Ok(Kernel { name: source.name, release: release.trim().to_owned(), image })
}

fn fetch(source: &Source, directory: &Path) -> Result<()> {
    let debian = Release::open(source.suite)?;
    let package = package_with_image(&debian)?;
    let release = package
        .strip_prefix("linux-image-")
        .or_else(|| package.strip_prefix("linux-binary-"))
        .context("a kernel package of another name")?
        .to_owned();
    let unpacked = directory.join("unpacked");
    // Before 7.x the image is in /boot, later in the modules' directory.
    let patterns = [format!("./boot/vmlinuz-{release}"), "*/vmlinuz".to_owned()];
    let pattern = if package.starts_with("linux-binary-") { &patterns[1] } else { &patterns[0] };
    debian.unpack(&package, &[pattern], &unpacked)?;
    let image = find_image(&unpacked)?
        .with_context(|| format!("{package} holds no kernel image where one was expected"))?;
    fs::rename(&image, directory.join("vmlinuz"))?;
    fs::remove_dir_all(&unpacked)?;
    fs::write(directory.join("release"), format!("{release}\n"))?;
    Ok(())
}

/// `linux-image-amd64` depends on the real package, which since 7.x is split once more.
fn package_with_image(debian: &Release) -> Result<String> {
    let mut package = "linux-image-amd64".to_owned();
    loop {
        let next = debian.dependencies_of(&package)?.into_iter().find(|name| {
            let image = name.starts_with("linux-image-") || name.starts_with("linux-binary-");
            image && *name != package && name.ends_with("-amd64")
        });
        match next {
            Some(next) => package = next,
            None if package == "linux-image-amd64" => bail!("Debian names no kernel here"),
            None => return Ok(package),
        }
    }
}

fn find_image(directory: &Path) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            if let Some(found) = find_image(&path)? {
                return Ok(Some(found));
            }
        } else if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
        {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// A static busybox, from its package: Debian lets only one busybox be installed, and the
/// machine may have the other.
pub fn ensure_busybox() -> Result<PathBuf> {
    let directory = project::cache().join("busybox");
    let program = directory.join("bin/busybox");
    if !program.exists() {
        eprintln!(
            "· needed: busybox (the guest's shell in vm-test; kept under .cache, not installed)"
        );
        let unfinished = directory.with_extension("unfinished");
        _ = fs::remove_dir_all(&unfinished);
        Release::open("bookworm")?.unpack("busybox-static", &["./bin/busybox"], &unfinished)?;
        _ = fs::remove_dir_all(&directory);
        fs::rename(&unfinished, &directory)
            .with_context(|| format!("cannot put busybox into {}", directory.display()))?;
    }
    Ok(program)
}
