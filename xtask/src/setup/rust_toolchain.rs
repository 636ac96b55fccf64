//! The pinned Rust toolchain: its name, its path, and its required targets.
//!
//! rustup installs the targets of `rust-toolchain.toml` together with the toolchain. A toolchain that
//! was there before, or that a `+channel` or `RUSTUP_TOOLCHAIN` chose, may lack them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::step;
use crate::{project, run};

const MUSL: &str = "x86_64-unknown-linux-musl";

/// Installs the target of the bridge for .NET processes on musl. Without rustup, building strata only
/// warns that it has no such bridge: a distribution's own Rust cannot be extended from here.
pub fn ensure_targets() -> Result<()> {
    if sysroot()?.join("lib/rustlib").join(MUSL).join("lib").is_dir() {
        return Ok(());
    }
    if project::find_program("rustup").is_none() {
        eprintln!(
            "  warning: Rust's target {MUSL} is missing and there is no rustup to install it: \
             strata will not attach to .NET processes on musl"
        );
        return Ok(());
    }
    eprintln!("· needed: Rust's target {MUSL} (the bridge for .NET processes on musl)");
    let mut add = Command::new("rustup");
    add.args(["target", "add", MUSL, "--toolchain"]).arg(toolchain()?);
    step(&format!("rustup target add {MUSL}"), &mut add)
}

/// The toolchain that runs this program (`1.95.0-x86_64-unknown-linux-gnu`), else the pinned one.
fn toolchain() -> Result<String> {
    match std::env::var("RUSTUP_TOOLCHAIN") {
        Ok(name) if !name.is_empty() => Ok(name),
        _ => channel(),
    }
}

pub fn sysroot() -> Result<PathBuf> {
    let path = run::output_of(
        Command::new("rustc").current_dir(project::root()).args(["--print", "sysroot"]),
    )?;
    Ok(PathBuf::from(path.trim_end()))
}

/// The toolchain that `rust-toolchain.toml` pins.
pub fn channel() -> Result<String> {
    let file = project::root().join("rust-toolchain.toml");
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let channel = text.lines().find_map(|line| line.trim().strip_prefix("channel"));
    let channel = channel.and_then(|rest| rest.split('"').nth(1));
    Ok(channel.context("rust-toolchain.toml names no channel")?.to_owned())
}
