//! `cargo xtask vm-test`: strata on other kernels, each booted under emulation.
//!
//! The guest is a kernel of Debian's and an archive of four things: busybox, an init script,
//! a program whose profile is known, strata. It records that program three times, the last time on
//! a CPU that is switched off and on meanwhile, and writes what it found to a serial port;
//! [`verdict`] judges it here.
//!
//! Emulation and not KVM: it works in every container and CI, at the price of some seconds.
//! Invariant: a guest that hangs, panics or prints nothing fails the test within
//! [`emulator::TIME_LIMIT`].

mod archive;
mod emulator;
mod profile;
mod transcript;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::arguments::VmOptions;
use crate::setup::{self, Profile, kernels};
use crate::{build, project, run};
use archive::Archive;

pub fn run(options: &VmOptions) -> Result<()> {
    setup::ensure(Profile::Emulator)?;
    let kernels = kernels::ensure(&options.kernels)?;
    let strata = match std::env::var_os("STRATA_BIN") {
        _ if options.boot_only => None,
        // Another build of it, to be judged on the same kernels.
        Some(binary) => Some(PathBuf::from(binary)),
        None => {
            build::ensure()?;
            Some(project::strata_binary())
        }
    };
    let work = project::target().join("vm-test");
    fs::create_dir_all(&work)?;
    let initrd = initrd(&work, strata.as_deref())?;

    let mut failures = Vec::new();
    for kernel in &kernels {
        let directory = work.join(kernel.name);
        let boot = || {
            emulator::boot(&kernel.release, &kernel.image, &initrd, &directory)
                .and_then(|transcript| verdict::judge(&transcript, kernel, strata.is_some()))
        };
        // The emulator is one thread on a machine that does other things meanwhile.
        let result = boot().or_else(|error| {
            println!("Linux {}: failed, and is booted once more: {error:#}", kernel.release);
            boot()
        });
        match result {
            Ok(summary) => println!("Linux {}: {summary}", kernel.release),
            Err(error) => {
                println!("Linux {}: FAILED: {error:#}", kernel.release);
                println!("  the guest's words: {}", directory.display());
                failures.push(kernel.release.clone());
            }
        }
    }
    println!("{} kernels passed, {} failed", kernels.len() - failures.len(), failures.len());
    if !failures.is_empty() {
        bail!("vm-test failed on Linux {}", failures.join(", "));
    }
    Ok(())
}

/// The archive the guest runs from.
fn initrd(work: &Path, strata: Option<&Path>) -> Result<PathBuf> {
    let known = work.join("known");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-fomit-frame-pointer", "-Wall", "-Werror", "-o"]).arg(&known);
    compile.arg(project::root().join("xtask/guest/known.c"));
    run::output_of(&mut compile).context("the guest's program does not compile")?;

    let mut archive = Archive::new();
    archive.file("init", 0o755, &fs::read(project::root().join("xtask/guest/init.sh"))?)?;
    archive.copy("bin/busybox", &kernels::ensure_busybox()?)?;
    archive.copy_with_libraries("bin/known", &known)?;
    if let Some(strata) = strata {
        archive.copy_with_libraries("bin/strata", strata)?;
    }
    let file = work.join("initrd");
    fs::write(&file, archive.finish())?;
    Ok(file)
}
