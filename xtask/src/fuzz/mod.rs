//! `cargo xtask fuzz`: the parsers of hostile input under libFuzzer and AddressSanitizer.
//!
//! cargo-fuzz wants a nightly compiler for one flag; the pinned stable one takes it with
//! `RUSTC_BOOTSTRAP` and ships the sanitizer's runtime, so nothing else is installed.
//!
//! Invariant: a finding ends the command with an error that names the input's file.

mod seeds;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::arguments::FuzzOptions;
use crate::setup::{self, Profile};
use crate::{project, run};

const CARGO_FUZZ_VERSION: &str = "0.13.2";
/// Far above what a parser may use for an input of [`LARGEST_INPUT`]: memory is bounded by it.
const MEMORY_LIMIT_MB: u32 = 1024;
/// Several times the largest seed; small inputs are tried more often.
const LARGEST_INPUT: u32 = 64 << 10;
/// The line table of the smallest Go program has half of it.
const LARGEST_GO_TABLE: u32 = 1 << 20;
/// One input that takes longer than this is a finding.
const TIME_LIMIT_SECONDS: u32 = 10;

pub fn run(options: &FuzzOptions) -> Result<()> {
    setup::ensure(Profile::Fuzz)?;
    ensure_cargo_fuzz()?;
    let known = targets()?;
    let chosen: Vec<&String> =
        match &options.target {
            None => known.iter().collect(),
            Some(name) => vec![known.iter().find(|target| *target == name).with_context(|| {
                format!("no fuzz target '{name}': there are {}", known.join(", "))
            })?],
        };
    let mut build = cargo_fuzz("build");
    build.args(&options.target);
    run::aloud(&mut build).context("the fuzz targets do not build")?;
    seeds::make().context("cannot make the seeds")?;
    for target in &chosen {
        fuzz_one(target, options.time.as_secs())?;
    }
    println!("{} target(s), {} s each: nothing found", chosen.len(), options.time.as_secs());
    Ok(())
}

fn fuzz_one(target: &str, seconds: u64) -> Result<()> {
    eprintln!("· fuzz {target} for {seconds} s");
    let largest = if target == "go_lines" { LARGEST_GO_TABLE } else { LARGEST_INPUT };
    let mut fuzz = cargo_fuzz("run");
    fuzz.arg(target).arg("--").args([
        format!("-max_total_time={seconds}"),
        format!("-rss_limit_mb={MEMORY_LIMIT_MB}"),
        format!("-max_len={largest}"),
        format!("-timeout={TIME_LIMIT_SECONDS}"),
        "-print_final_stats=1".to_owned(),
        // Safe Rust may leak; the search for leaks needs ptrace, which containers often refuse.
        "-detect_leaks=0".to_owned(),
    ]);
    run::aloud(&mut fuzz).with_context(|| {
        format!("{target}: a finding; its input is the newest file in fuzz/artifacts/{target}/")
    })
}

/// The targets, by the files of `fuzz/targets`.
fn targets() -> Result<Vec<String>> {
    let directory = project::root().join("fuzz/targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).context("cannot read fuzz/targets")? {
        let path = entry?.path();
        if path.extension().is_some_and(|kind| kind == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    if names.is_empty() {
        bail!("{} has no targets", directory.display());
    }
    names.sort();
    Ok(names)
}

fn cargo_fuzz(subcommand: &str) -> Command {
    let mut command = Command::new(project::tool("cargo-fuzz"));
    command.current_dir(project::root()).args(["fuzz", subcommand]).env("RUSTC_BOOTSTRAP", "1");
    command
}

fn ensure_cargo_fuzz() -> Result<()> {
    let wanted = format!("cargo-fuzz {CARGO_FUZZ_VERSION}");
    let said =
        run::output_of(Command::new(project::tool("cargo-fuzz")).args(["fuzz", "--version"]));
    if said.is_ok_and(|said| said.trim() == wanted) {
        return Ok(());
    }
    eprintln!("· needed: {wanted} (drives libFuzzer; built once)");
    let mut install = project::cargo();
    install
        .env("CARGO_TARGET_DIR", project::cache().join("build/cargo-fuzz"))
        .args(["install", "cargo-fuzz", "--version", &format!("={CARGO_FUZZ_VERSION}"), "--locked"])
        .args(["--force", "--root"])
        .arg(project::tools());
    run::quietly(&format!("build {wanted}"), &mut install)
}
