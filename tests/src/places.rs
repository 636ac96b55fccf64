//! Paths: the workspace, its ignored cache, the `strata` binary under test.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

/// The folder of the target programs' sources.
pub fn target_sources() -> PathBuf {
    workspace().join("tests/targets")
}

/// A folder in the ignored cache, created when missing. `STRATA_CACHE` moves the cache.
pub fn cache(folder: &str) -> Result<PathBuf> {
    let root = std::env::var_os("STRATA_CACHE").map(PathBuf::from);
    let path = root.unwrap_or_else(|| workspace().join(".cache")).join(folder);
    std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
    Ok(path)
}

/// Where programs in mount namespaces of their own see the cache. A file has the path by which any process
/// was seen to map it first.
pub const CACHE_INSIDE: &str = "/mnt";

/// The path of a file of the cache here, by that inside.
pub fn outside(path: &str) -> PathBuf {
    let inside = path.strip_prefix(CACHE_INSIDE).and_then(|rest| rest.strip_prefix('/'));
    match inside.zip(cache("").ok()).map(|(rest, cache)| cache.join(rest)) {
        Some(outside) if outside.is_file() => outside,
        _ => path.into(),
    }
}

/// The binary under test: `STRATA_BIN`, else the newest of the usual build outputs.
pub fn strata_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("STRATA_BIN") {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("STRATA_BIN names {}, which is not a file", path.display());
        }
        return Ok(path);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let candidates = [target, Some(workspace().join("target"))];
    for target in candidates.into_iter().flatten() {
        for profile in ["release", "dist"] {
            let path = target.join(profile).join("strata");
            if path.is_file() {
                return Ok(path);
            }
        }
    }
    bail!("no strata binary: run `cargo build --release -p strata`, or set STRATA_BIN to one")
}

/// The first of these programs that is on PATH.
pub fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/go/bin".into()])
        .collect();
    names.iter().find_map(|name| folders.iter().map(|f| f.join(name)).find(|p| p.is_file()))
}

/// Debian 12's Go, older than 1.21.
pub fn go_1_19() -> Result<PathBuf> {
    let compiler = cache("go-1.19")?.join("usr/lib/go-1.19/bin/go");
    if !compiler.is_file() {
        bail!("Go 1.19 is missing: `cargo xtask setup test` fetches it");
    }
    Ok(compiler)
}

/// A program the tests need, or how to get it.
pub fn required(name: &str, package: &str) -> Result<PathBuf> {
    program(&[name]).with_context(|| {
        format!("`{name}` is missing: `cargo xtask setup test` installs it (Debian: apt-get install {package})")
    })
}
