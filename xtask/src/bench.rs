//! `cargo xtask bench`: hands over to the benchmark program of `strata-tests`.

use std::ffi::OsString;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Profile};
use crate::{build, project, run, setup::dotnet};

pub fn run(arguments: &[OsString]) -> Result<()> {
    if !project::is_root() {
        bail!(
            "the benchmarks load BPF programs and need root: sudo env \"PATH=$PATH\" \"HOME=$HOME\" cargo xtask bench"
        );
    }
    setup::ensure(Profile::Test)?;
    build::ensure()?;
    let mut cargo = project::cargo();
    cargo
        .args(["run", "--release", "--package", "strata-tests", "--bin", "bench", "--"])
        .args(arguments)
        .env("STRATA_BIN", project::strata_binary())
        .env("STRATA_CACHE", project::cache())
        .env("STRATA_DOTNET", dotnet::directory());
    run::aloud(&mut cargo).context("the benchmarks failed")
}
