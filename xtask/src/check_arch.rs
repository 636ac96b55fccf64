//! `cargo xtask check-arch`: verifies that portable code compiles for another architecture.
//!
//! The pure crates are checked for arm64, and with `--bpf` the BPF programs. For arm64 their `arch`
//! directories unwind nothing yet; the check proves that nothing outside of those directories
//! depends on x86-64.
//!
//! Invariant: checks only; nothing is linked, and so no cross compiler is needed.

use anyhow::Result;

use crate::setup::{self, Profile};
use crate::{project, run};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Crates without a line of C in what they depend on, by their packages' names.
const PURE: &[&str] = &[
    "strata-abi",
    "strata-bridge-protocol",
    "strata-bytes",
    "strata-config",
    "strata-dotnet",
    "strata-ecma",
    "strata-golang",
    "strata-kinds",
    "strata-metadata",
    "strata-profile",
    "strata-store",
    "strata-symbols",
    "strata-unwind",
];
/// What an `arch` directory that refuses everything leaves unused is no mistake.
const FLAGS: &str = "-Dwarnings -Adead_code";

pub fn pure_crates() -> Result<()> {
    let mut cargo = project::cargo();
    cargo
        .args(["check", "--locked", "--lib", "--target", TARGET])
        .args(PURE.iter().flat_map(|package| ["--package", package]))
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", FLAGS);
    run::quietly("check the pure crates for arm64", &mut cargo)
}

pub fn programs() -> Result<()> {
    setup::ensure(Profile::Bpf)?;
    let mut cargo = project::cargo();
    cargo
        .current_dir(project::root().join("ebpf/programs"))
        .args(["check", "--release", "--locked", "--target", "bpfel-unknown-none"])
        .args(["-Z", "build-std=core"])
        // `-Z build-std` on the pinned stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", project::target().join("check-arch"))
        .env("CARGO_ENCODED_RUSTFLAGS", "--cfg=bpf_target_arch=\"aarch64\"");
    run::quietly("check the BPF programs for an arm64 kernel", &mut cargo)
}
