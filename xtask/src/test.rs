//! `cargo xtask test`: every test of the workspace, with one line of totals at the end.
//!
//! Unit and property tests run in parallel; the end-to-end tests of `strata-tests` one at a
//! time, because they share one kernel and measure shares of its CPUs. All are built at once, in
//! the development profile (overflow checks on); the `strata` they drive is the release binary.
//! One `cargo test` for all of them: two would resolve features twice and compile most
//! dependencies again. So cargo starts each test program through [`run_program`], which knows
//! the one that must be serial.
//!
//! Invariant: a test harness that ends without its result line counts as a failure.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::setup::{self, Profile, dotnet};
use crate::{build, project};

const END_TO_END: &str = "strata-tests";
/// How cargo names the program of its `e2e` tests.
const SERIAL_PROGRAM: &str = "e2e-";
/// This program's own command that cargo starts a test program with.
pub const RUN_PROGRAM: &str = "run-test-program";

pub fn run(arguments: &[OsString]) -> Result<ExitCode> {
    if !project::is_root() {
        bail!(
            "the end-to-end tests load BPF programs and need root. Run:\n  \
             sudo env \"PATH=$PATH\" \"HOME=$HOME\" cargo xtask test\n\
             (without root: `cargo test --workspace --exclude {END_TO_END}`)"
        );
    }
    setup::ensure(Profile::Test)?;
    build::ensure()?;

    let mut totals = Totals::default();
    let mut cargo = project::cargo();
    cargo
        .args(["test", "--workspace", "--no-fail-fast", "--config", &runner()?, "--"])
        .args(arguments)
        .env("STRATA_BIN", project::strata_binary())
        .env("STRATA_CACHE", project::cache())
        .env("STRATA_DOTNET", dotnet::directory());
    count(&mut cargo, &mut totals)?;

    println!();
    for name in &totals.failures {
        println!("failed: {name}");
    }
    totals.waits.sort_by_key(|(wait, _)| std::cmp::Reverse(*wait));
    println!("waited longest for:");
    for (wait, name) in totals.waits.iter().take(SLOWEST) {
        println!("  {:>5.1} s  {name}", wait.as_secs_f64());
    }
    println!("{} passed, {} failed, {} ignored", totals.passed, totals.failed, totals.ignored);
    Ok(if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Cargo's setting that makes it start test programs through [`run_program`].
fn runner() -> Result<String> {
    let this = std::env::current_exe()?;
    let this = this.to_str().context("xtask lies at a path that is not UTF-8")?;
    Ok(format!("target.x86_64-unknown-linux-gnu.runner=[{this:?}, \"{RUN_PROGRAM}\"]"))
}

/// Becomes the test program that `words` begin with.
pub fn run_program(words: &[OsString]) -> Result<ExitCode> {
    let (program, arguments) = words.split_first().context("no test program is named")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with(SERIAL_PROGRAM) {
        command.arg("--test-threads=1");
    }
    Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
}

#[derive(Default)]
struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
    failures: Vec<String>,
    /// Between the result of a test and the one before it: how long a test took, where they run one
    /// at a time.
    waits: Vec<(Duration, String)>,
}

/// Tests that are named for the time they took.
const SLOWEST: usize = 20;

/// Runs `cargo test`, shows what it says and adds up its result lines.
fn count(command: &mut Command, totals: &mut Totals) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no standard output")?;
    let mut started = 0_u64;
    let mut ended = 0_u64;
    let mut last = Instant::now();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        // The program that reads our output may be gone; the tests still count.
        _ = writeln!(std::io::stdout(), "{line}");
        if starts_a_harness(&line) {
            started += 1;
            last = Instant::now();
        }
        if let Some(name) = ended_test(&line) {
            totals.waits.push((last.elapsed(), name.to_owned()));
            last = Instant::now();
        }
        if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            totals.failures.push(name.to_owned());
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            ended += 1;
            totals.passed += number_before(result, " passed");
            totals.failed += number_before(result, " failed");
            totals.ignored += number_before(result, " ignored");
        }
    }
    let status = child.wait()?;
    let lost = started.saturating_sub(ended);
    if lost > 0 {
        totals.failed += lost;
        totals.failures.push(format!("{lost} test program(s) ended without a result"));
    } else if !status.success() && totals.failed == 0 {
        // It did not compile, or a doctest could not be built.
        totals.failed += 1;
        totals.failures.push(format!("cargo test ({status})"));
    }
    Ok(())
}

/// `test a_name ... ok`
fn ended_test(line: &str) -> Option<&str> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    matches!(result, "ok" | "FAILED").then_some(name)
}

/// `running 3 tests`
fn starts_a_harness(line: &str) -> bool {
    let Some((number, word)) =
        line.trim_end().strip_prefix("running ").and_then(|rest| rest.split_once(' '))
    else {
        return false;
    };
    number.parse::<u64>().is_ok() && matches!(word, "test" | "tests")
}

fn number_before(text: &str, word: &str) -> u64 {
    let Some((before, _)) = text.split_once(word) else { return 0 };
    before
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{ended_test, number_before};

    #[test]
    fn the_line_of_a_test_that_ended_has_its_name() {
        assert_eq!(ended_test("test a::b ... ok"), Some("a::b"));
        assert_eq!(ended_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(ended_test("test a::b ... ignored, for a reason"), None);
        assert_eq!(ended_test("test result: ok. 3 passed"), None);
    }

    #[test]
    fn the_numbers_of_a_result_line_are_read() {
        let line =
            "ok. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(number_before(line, " passed"), 12);
        assert_eq!(number_before(line, " failed"), 3);
        assert_eq!(number_before(line, " ignored"), 1);
        assert_eq!(number_before(line, " absent"), 0);
    }
}
