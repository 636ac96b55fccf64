//! `cargo xtask build`: the BPF object when it is out of date, then the release binary.

use anyhow::{Context, Result};

use crate::arguments::BuildOptions;
use crate::setup::{self, Profile};
use crate::{bpf_object, project, run};

pub fn run(options: BuildOptions) -> Result<()> {
    match options {
        BuildOptions::BpfOnly => return bpf_object::rebuild(),
        BuildOptions::BpfDebug => return bpf_object::build_debug(),
        BuildOptions::CheckBpf => bpf_object::check()?,
        BuildOptions::All => bpf_object::ensure()?,
    }
    strata()
}

/// Everything `strata` needs to run, built for release.
pub fn ensure() -> Result<()> {
    bpf_object::ensure()?;
    strata()
}

fn strata() -> Result<()> {
    setup::ensure(Profile::Record)?;
    let mut cargo = project::cargo();
    cargo.args(["build", "--release", "--package", "strata"]);
    run::aloud(&mut cargo).context("strata does not build")
}
