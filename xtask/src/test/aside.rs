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
/// What a line begins with that has how long the end of a program waited for one of its tests.
pub const WAITED: &str = "waited: ";
/// Tests that are not worth such a line.
const SHORT: Duration = Duration::from_secs(1);

/// What a line begins with that says that a program is started, and that all it has printed is there: of
/// a relay that is killed, nothing else is.
pub const STARTED: &str = "started: ";
pub const ENDED: &str = "ended: ";

/// Starts a test program beside others.
pub fn start(slots: &Path, words: &[OsString]) -> Result<ExitCode> {
    let slot = free_slot(slots)?;
    let program = words.first().context("no test program is named")?;
    print_whole(slots, format!("{STARTED}{}\n", program.display()).as_bytes())?;
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
    let slots = std::env::var_os(SLOTS).map(PathBuf::from).context("relays need slots")?;
    let mut printed = Printed::default();
    printed.line(&super::announced(Path::new(program))?);
    if let Err(error) = printed.of(&mut command, &slots) {
        printed.line(&format!("{}: {error:#}", program.display()));
        printed.is_bad = true;
    }
    if printed.is_bad && !printed.has_failed && (!printed.has_begun || printed.has_result) {
        // A harness that has not come to an end. One that died in the middle has begun itself.
        printed.line("running 1 test");
    }
    printed.line(&format!("{ENDED}{}", program.display()));
    print_whole(&slots, &printed.bytes)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints lines with none of another program between them: a pipe takes only so much at once.
fn print_whole(slots: &Path, lines: &[u8]) -> Result<()> {
    let turn = File::create(slots.join("output"))?;
    turn.lock()?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(lines)?;
    Ok(stdout.flush()?)
}

/// What a test program has printed.
#[derive(Default)]
struct Printed {
    bytes: Vec<u8>,
    has_begun: bool,
    has_result: bool,
    has_failed: bool,
    is_bad: bool,
}

impl Printed {
    fn line(&mut self, line: &str) {
        self.bytes.extend_from_slice(line.as_bytes());
        self.bytes.push(b'\n');
    }

    /// Runs it. A line that a test takes long is shown at once: it may never end.
    fn of(&mut self, command: &mut Command, slots: &Path) -> Result<()> {
        let mut child = command.spawn().context("cannot start it")?;
        let output = child.stdout.take().context("it has no standard output")?;
        let mut last = Instant::now();
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            self.note(&line, &mut last);
            if line.contains(" has been running for over ") {
                print_whole(slots, format!("{line}\n").as_bytes())?;
            }
            self.line(&line);
        }
        let status = child.wait()?;
        if !status.success() {
            self.is_bad = true;
            self.line(&format!("{} ended with {status}", command.get_program().display()));
        }
        Ok(())
    }

    fn note(&mut self, line: &str, last: &mut Instant) {
        self.has_begun |= super::starts_a_harness(line);
        self.has_result |= line.starts_with("test result: ");
        self.has_failed |= line.starts_with("test result: FAILED");
        if let Some(name) = super::ended_test(line) {
            let waited = std::mem::replace(last, Instant::now()).elapsed();
            if waited >= SHORT {
                self.line(&format!("{WAITED}{:.1} {name}", waited.as_secs_f64()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many programs a relay's output says have begun and not come to a result.
    fn unfinished(shell: &str) -> (i64, Printed) {
        let mut printed = Printed::default();
        let mut command = Command::new("sh");
        command.args(["-c", shell]).stdin(Stdio::null()).stdout(Stdio::piped());
        printed.of(&mut command, &std::env::temp_dir()).expect("sh starts");
        let text = String::from_utf8_lossy(&printed.bytes).into_owned();
        let begun = text.lines().filter(|line| super::super::starts_a_harness(line)).count() as i64;
        let ended = text.lines().filter(|line| line.starts_with("test result: ")).count() as i64;
        (begun - ended, printed)
    }

    #[test]
    fn a_program_that_dies_is_no_good_one_whatever_it_has_printed() {
        let passed = "echo running 2 tests; echo test a ... ok; echo test result: ok. 2 passed";
        let (left, printed) = unfinished(passed);
        assert!(left == 0 && !printed.is_bad);
        let (left, printed) = unfinished(&format!("{passed}; kill -SEGV $$"));
        assert!(left == 0 && printed.is_bad && printed.has_result && !printed.has_failed);
        let (left, printed) = unfinished("echo running 2 tests; kill -SEGV $$");
        assert!(left == 1 && printed.is_bad && printed.has_begun && !printed.has_result);
        let (_, printed) =
            unfinished("echo running 1 test; echo test result: FAILED. 0 passed; exit 101");
        assert!(printed.is_bad && printed.has_failed);
    }
}
