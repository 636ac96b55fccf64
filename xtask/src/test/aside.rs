//! Test programs beside each other: most of their time they wait.
//!
//! Cargo starts one test program after the other, each through [`start`], which leaves it running and
//! returns when there is a slot for the next one. What a program prints comes in one piece, when it has
//! ended, by a [`relay`] that holds its slot. Cargo's own output ends with the last relay's.
//!
//! A slot is a file that is locked; the relay has it as its standard input.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// This program's own command for [`relay`].
pub const RELAY: &str = "relay-test-program";
/// The directory of the slots, for [`start`].
pub const SLOTS: &str = "STRATA_TEST_SLOTS";
/// What a line begins with that says how long the end of a program waited for one of its tests.
pub const WAITED: &str = "waited: ";
/// Tests that are not said to have been waited for.
const SHORT: Duration = Duration::from_secs(1);

/// Starts a test program beside others.
pub fn start(slots: &Path, words: &[OsString]) -> Result<ExitCode> {
    let slot = free_slot(slots)?;
    let mut relay = Command::new(std::env::current_exe()?);
    relay.arg(RELAY).args(words).stdin(Stdio::from(slot));
    relay.spawn().context("cannot start a test program")?;
    Ok(ExitCode::SUCCESS)
}

fn free_slot(slots: &Path) -> Result<File> {
    let number = std::thread::available_parallelism().map_or(2, |cpus| cpus.get().max(2));
    loop {
        for slot in 0..number {
            let path = slots.join(slot.to_string());
            let slot = File::create(&path).with_context(|| path.display().to_string())?;
            if slot.try_lock().is_ok() {
                return Ok(slot);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs the test program that `words` begin with, and prints what it has printed.
pub fn relay(words: &[OsString]) -> Result<ExitCode> {
    let (program, arguments) = words.split_first().context("no test program is named")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let begun = command.spawn().with_context(|| format!("cannot start {}", program.display()));
    let mut printed = format!("     of {}\n", program.display()).into_bytes();
    let mut has_result = false;
    let mut is_good = false;
    match begun {
        Ok(mut child) => {
            let output = child.stdout.take().context("a test program has no standard output")?;
            let mut last = Instant::now();
            for line in BufReader::new(output).split(b'\n') {
                let line = line?;
                let text = String::from_utf8_lossy(&line);
                has_result |= text.starts_with("test result: ");
                if let Some(name) = super::ended_test(&text) {
                    let waited = std::mem::replace(&mut last, Instant::now()).elapsed();
                    if waited >= SHORT {
                        writeln!(printed, "{WAITED}{:.1} {name}", waited.as_secs_f64())?;
                    }
                }
                printed.extend_from_slice(&line);
                printed.push(b'\n');
            }
            let status = child.wait()?;
            is_good = status.success();
            if !is_good {
                writeln!(printed, "{} ended with {status}", program.display())?;
            }
        }
        Err(error) => writeln!(printed, "{error:#}")?,
    }
    if !is_good && !has_result {
        // A harness that has not come to an end, also if it has not even begun.
        writeln!(printed, "running 1 test")?;
    }
    let turn = std::env::var_os(SLOTS).map(|slots| PathBuf::from(slots).join("output"));
    let turn = File::create(turn.context("relays need slots")?)?;
    turn.lock()?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&printed)?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}
