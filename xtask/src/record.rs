//! `cargo xtask record`: set-up, build, and `strata record` in this process's place.
//!
//! Invariant: strata *replaces* this process, so signals, exit codes and the terminal are its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, anyhow, bail};

use crate::setup::{self, Profile};
use crate::{build, project, run};

pub fn run(arguments: &[OsString]) -> Result<()> {
    setup::ensure(Profile::Record)?;
    build::ensure()?;
    let mut strata = Command::new(project::strata_binary());
    strata.arg("record").args(arguments);
    let needs_root = !arguments.iter().any(|word| word == "--help" || word == "-h");
    if needs_root && !project::is_root() {
        bail!("recording needs root. strata is built; run:\n  sudo {}", run::shown(&strata));
    }
    Err(anyhow!(strata.exec()).context(format!("cannot start {}", run::shown(&strata))))
}
