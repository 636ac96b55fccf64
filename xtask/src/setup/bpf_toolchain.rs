//! The toolchain of the BPF programs: LLVM, rust-src, and bpf-linker in the project's own tools.
//!
//! Invariant: all three have the LLVM major version of the pinned rustc, and bpf-linker's version
//! is exact: the committed object must be reproducible everywhere.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use super::{rust_toolchain, step};
use crate::{project, run};

pub const LINKER_VERSION: &str = "0.13.0";
pub const LLVM: &str = "/usr/lib/llvm-22";

pub fn ensure() -> Result<()> {
    super::ensure_bpf_packages()?;
    ensure_rust_source()?;
    ensure_linker()
}

pub fn linker() -> PathBuf {
    project::tool("bpf-linker")
}

pub fn strip() -> PathBuf {
    PathBuf::from(LLVM).join("bin/llvm-strip")
}

/// The versions that decide the object's bytes, for comparing two builds.
pub fn versions() -> Result<String> {
    let rustc =
        run::output_of(Command::new("rustc").current_dir(project::root()).arg("--version"))?;
    let llvm =
        run::output_of(Command::new(PathBuf::from(LLVM).join("bin/llvm-config")).arg("--version"))?;
    Ok(format!("{}, bpf-linker {LINKER_VERSION}, LLVM {}", rustc.trim_end(), llvm.trim_end()))
}

/// `core` has no prebuilt form for BPF: it is compiled from its source.
fn ensure_rust_source() -> Result<()> {
    let source = rust_toolchain::sysroot()?.join("lib/rustlib/src/rust/library/core/Cargo.toml");
    if source.exists() {
        return Ok(());
    }
    if project::find_program("rustup").is_none() {
        bail!(
            "the BPF programs need rustc's own source, and there is no rustup to get it: {} is missing",
            source.display()
        );
    }
    eprintln!("· needed: rust-src (the source of `core`, compiled for BPF)");
    let mut add = Command::new("rustup");
    add.args(["component", "add", "rust-src", "--toolchain", &rust_toolchain::channel()?]);
    step("rustup component add rust-src", &mut add)
}

fn ensure_linker() -> Result<()> {
    let wanted = format!("bpf-linker {LINKER_VERSION}");
    if run::output_of(Command::new(linker()).arg("--version"))
        .is_ok_and(|output| output.trim() == wanted)
    {
        return Ok(());
    }
    eprintln!("· needed: {wanted} (links the BPF programs; built once, about a minute)");
    let mut install = project::cargo();
    install
        .env("LLVM_PREFIX", LLVM)
        .env("CARGO_TARGET_DIR", project::cache().join("build/bpf-linker"))
        .args(["install", "bpf-linker", "--version", &format!("={LINKER_VERSION}"), "--locked"])
        .args(["--no-default-features", "--features", "llvm-22", "--force", "--root"])
        .arg(project::tools());
    step(&format!("build {wanted}"), &mut install)?;
    // Half a gigabyte that nothing needs again.
    _ = fs::remove_dir_all(project::cache().join("build/bpf-linker"));
    Ok(())
}
