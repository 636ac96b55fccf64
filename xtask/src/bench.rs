//! `cargo xtask bench`: runs the benchmark program of `strata-tests`.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Profile};
use crate::{build, project, run, setup::dotnet};

/// The group that measures aggregating samples and making requests of them.
const ENCODE: &str = "encode";

/// The group that measures what .NET programs pay.
const CLR: &str = "clr";

pub fn run(arguments: &[OsString]) -> Result<()> {
    let is_help = |word: &OsString| word == "-h" || word == "--help";
    if arguments.iter().any(is_help) {
        return run::aloud(benchmark().args(arguments)).context("no help");
    }
    if arguments.first().is_some_and(|word| word == ENCODE) {
        return encode();
    }
    if !project::is_root() {
        bail!(
            "the benchmarks load BPF programs and need root: sudo env \"PATH=$PATH\" \"HOME=$HOME\" cargo xtask bench"
        );
    }
    setup::ensure(Profile::Test)?;
    build::ensure()?;
    let mut benchmark = benchmark();
    benchmark.args(arguments);
    if arguments.iter().any(|word| word == CLR) {
        benchmark.env("STRATA_BENCH_MEASURING_BRIDGE", measuring_bridge()?);
    }
    run::aloud(&mut benchmark).context("the benchmarks failed")
}

fn encode() -> Result<()> {
    setup::ensure(Profile::Record)?;
    build::ensure()?;
    let mut cargo = project::cargo();
    run::aloud(cargo.args(["bench", "--package", "strata-agent", "--bench", "aggregate"]))
        .context("aggregating failed")?;
    let mut cargo = project::cargo();
    run::aloud(cargo.args(["bench", "--package", "strata-export", "--bench", "encode"]))
        .context("encoding failed")
}

fn benchmark() -> std::process::Command {
    let mut cargo = project::cargo();
    cargo
        .args(["run", "--release", "--package", "strata-tests", "--bin", "bench", "--"])
        .env("STRATA_BIN", project::strata_binary())
        .env("STRATA_CACHE", project::cache())
        .env("STRATA_DOTNET", dotnet::directory());
    cargo
}

/// The bridge with an exact clock for its own time, in a folder of its own: nothing else is to use it.
fn measuring_bridge() -> Result<PathBuf> {
    let folder = project::target().join("measuring-bridge");
    let mut cargo = project::cargo();
    cargo
        .args(["build", "--package", "strata-clr-profiler", "--profile", "bridge"])
        .args(["--features", "measure", "--target-dir"])
        .arg(&folder);
    run::aloud(&mut cargo).context("the bridge does not build")?;
    Ok(folder.join("bridge/libstrata_clr.so"))
}
