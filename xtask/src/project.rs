//! Paths: the repository, its cache directory, cargo's target directory.
//!
//! Invariant: whatever is downloaded or installed for the project itself lies under
//! [`cache`], which git ignores and `cargo clean` leaves alone.

use std::env;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or(manifest.clone(), Path::to_path_buf)
}

/// Downloads, tools and runtimes: `.cache`, or `STRATA_CACHE` to share one between clones.
pub fn cache() -> PathBuf {
    match env::var_os("STRATA_CACHE") {
        Some(directory) => absolute(PathBuf::from(directory)),
        None => root().join(".cache"),
    }
}

/// Programs built for the project, as `cargo install --root` lays them out.
pub fn tools() -> PathBuf {
    cache().join("tools")
}

pub fn tool(name: &str) -> PathBuf {
    tools().join("bin").join(name)
}

pub fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => absolute(PathBuf::from(directory)),
        None => root().join("target"),
    }
}

/// The release binary, once `build` has made it.
pub fn strata_binary() -> PathBuf {
    target().join("release/strata")
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// The cargo that runs this program, so that a nested build uses the same toolchain. It builds what a
/// cargo that is started by hand has built: build scripts (`ring`'s) run again, and all that depends
/// on them is compiled again, where they find another package's variables in their environment.
pub fn cargo() -> std::process::Command {
    let mut command =
        std::process::Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Whether this process may install packages and load BPF programs.
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))
            .and_then(|ids| ids.split_whitespace().nth(1))
            == Some("0")
    })
}

/// A program on `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}
