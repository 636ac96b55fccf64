//! `cargo xtask fuzz`: the parsers of hostile input under libFuzzer and AddressSanitizer.
//!
//! The sanitizer's flags are unstable; the pinned stable compiler takes them with `RUSTC_BOOTSTRAP`
//! and ships the sanitizer's runtime. They are the flags of cargo-fuzz 0.13: using them directly
//! avoids compiling a second tool before the first target runs.
//!
//! Invariant: a finding ends the command with an error that names the input's file, after the other
//! targets have run.

mod seeds;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::arguments::FuzzOptions;
use crate::setup::{self, Profile};
use crate::{project, run};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Coverage that libFuzzer reads, AddressSanitizer, and branches that it can tell apart.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Zsanitizer=address",
    "-Ccodegen-units=1",
    "--cfg",
    "fuzzing",
];
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
    let known = targets()?;
    let chosen: Vec<&String> =
        match &options.target {
            None => known.iter().collect(),
            Some(name) => vec![known.iter().find(|target| *target == name).with_context(|| {
                format!("no fuzz target '{name}': there are {}", known.join(", "))
            })?],
        };
    build(options.target.as_deref())?;
    seeds::make().context("cannot make the seeds")?;
    let findings = fuzz_all(&chosen, options);
    let seconds = options.time.as_secs();
    println!("each for {seconds} s:");
    println!("{} fuzz targets passed, {} failed", chosen.len() - findings.len(), findings.len());
    if !findings.is_empty() {
        bail!("{}", findings.join("\n"));
    }
    Ok(())
}

/// Fuzzes the targets, as many at a time as asked for; gives what was found.
fn fuzz_all(targets: &[&String], options: &FuzzOptions) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let findings = Mutex::new(Vec::new());
    let work = || {
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = fuzz_one(target, options.time.as_secs(), options.jobs > 1) {
                findings.lock().expect("no worker panics").push(format!("{error:#}"));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(work);
        }
    });
    findings.into_inner().expect("no worker panics")
}

/// Fuzzes one target. Beside others its output goes to a log, of which a failure shows the end.
fn fuzz_one(target: &str, seconds: u64, beside_others: bool) -> Result<()> {
    let largest = if target == "go_lines" { LARGEST_GO_TABLE } else { LARGEST_INPUT };
    let artifacts = project::root().join("fuzz/artifacts").join(target);
    let corpus = project::root().join("fuzz/corpus").join(target);
    for folder in [&artifacts, &corpus] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {folder:?}"))?;
    }
    let mut fuzz = Command::new(target_directory().join(TARGET).join("release").join(target));
    fuzz.current_dir(project::root())
        .args([
            format!("-artifact_prefix={}/", artifacts.display()),
            format!("-max_total_time={seconds}"),
            format!("-rss_limit_mb={MEMORY_LIMIT_MB}"),
            format!("-max_len={largest}"),
            format!("-timeout={TIME_LIMIT_SECONDS}"),
            "-print_final_stats=1".to_owned(),
            // Safe Rust may leak; the search for leaks needs ptrace, which containers often refuse.
            "-detect_leaks=0".to_owned(),
        ])
        .arg(&corpus)
        // Rust may define one static several times.
        .env("ASAN_OPTIONS", "detect_odr_violation=0");
    let label = format!("fuzz {target} for {seconds} s");
    let ended = if beside_others {
        run::quietly(&label, &mut fuzz)
    } else {
        eprintln!("· {label}");
        run::aloud(&mut fuzz)
    };
    ended.with_context(|| {
        format!("{target}: a finding; its input is the newest file in fuzz/artifacts/{target}/")
    })
}

fn build(target: Option<&str>) -> Result<()> {
    let mut cargo = project::cargo();
    cargo
        .args(["build", "--release", "--target", TARGET])
        .arg("--manifest-path")
        .arg(project::root().join("fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(target_directory());
    match target {
        Some(name) => cargo.args(["--bin", name]),
        None => cargo.arg("--bins"),
    };
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"))
        .env_remove("RUSTFLAGS")
        .stdin(Stdio::null());
    run::aloud(&mut cargo).context("the fuzz targets do not build")
}

fn target_directory() -> PathBuf {
    project::target().join("fuzz")
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
