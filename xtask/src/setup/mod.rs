//! The prerequisites of each command, and their installation.
//!
//! Invariant: nothing is installed without printing what and why; when nothing is missing, a set-up
//! uses no network and takes milliseconds.

pub mod bpf_toolchain;
pub mod debian;
pub mod dotnet;
pub mod kernels;
mod needs;
mod old_go;
pub mod rust_toolchain;

use anyhow::{Result, bail};

use crate::run;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// To build and run `strata record` from the committed BPF object.
    Record,
    /// To run every test.
    Test,
    /// To build the BPF programs.
    Bpf,
    /// To fuzz.
    Fuzz,
    /// To boot other kernels.
    Emulator,
    All,
}

/// `cargo xtask setup`: as [`ensure`], and prints a line when there was nothing to do.
pub fn run(profile: Profile) -> Result<()> {
    ensure(profile)?;
    eprintln!("· everything is in place");
    Ok(())
}

/// Gets whatever `profile` needs and this machine lacks.
pub fn ensure(profile: Profile) -> Result<()> {
    refuse_other_machines()?;
    match profile {
        Profile::Record => ensure_building(&[]),
        Profile::Bpf => bpf_toolchain::ensure(),
        Profile::Emulator => ensure_building(needs::EMULATOR),
        Profile::Fuzz => debian::ensure(needs::FUZZ),
        Profile::Test => ensure_tests(),
        Profile::All => {
            ensure_tests()?;
            ensure_emulator()?;
            bpf_toolchain::ensure()
        }
    }
}

/// What a build of strata needs, and `more` packages.
fn ensure_building(more: &[debian::Need]) -> Result<()> {
    debian::ensure(&[needs::RECORD, more].concat())?;
    rust_toolchain::ensure_targets()
}

fn ensure_tests() -> Result<()> {
    ensure_building(needs::TEST)?;
    old_go::ensure()?;
    dotnet::ensure()
}

/// The kernels and what boots them.
fn ensure_emulator() -> Result<()> {
    ensure_building(needs::EMULATOR)?;
    kernels::ensure(&[])?;
    kernels::ensure_busybox()?;
    Ok(())
}

fn refuse_other_machines() -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(
            "strata runs on Linux on x86-64 so far, this is {} on {}",
            std::env::consts::OS,
            std::env::consts::ARCH
        );
    }
    Ok(())
}

/// The packages the BPF toolchain needs, for [`bpf_toolchain`].
fn ensure_bpf_packages() -> Result<()> {
    debian::ensure(needs::BPF)
}

/// A command that ends in the log unless it fails.
fn step(label: &str, command: &mut std::process::Command) -> Result<()> {
    run::quietly(label, command)
}
