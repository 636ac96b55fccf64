//! `cargo xtask test`: every test of the workspace, with one line of totals at the end.
//!
//! Unit and property tests run in parallel, programs of them beside each other ([`aside`]); then a few
//! end-to-end tests of `strata-tests` at a time, and those that measure with the machine alone
//! (`strata_tests::machine`). All are built at once, in
//! the development profile (overflow checks on); the `strata` they drive is the release binary.
//! Cargo starts each test program through [`run_program`], which knows the end-to-end one. `--only units`
//! leaves that one out and `--only end-to-end` runs no other, for CI, where other steps run beside the
//! unit tests. Either compiles for the whole workspace: of fewer packages, features would be resolved
//! anew and most dependencies compiled again.
//!
//! A test that cannot run here reports it (`strata-skip`) and passes as far as the harness knows. It
//! is taken off the passed ones and shown with its reason.
//!
//! Tests measure real programs on a machine that others may use too. One that fails is run once more,
//! with the machine to itself; if it passes then, it is *unsteady*: it counts as passed, and is named at
//! the end with what it printed when it failed above. Three at most: more are no chance. A program that
//! dies is none either ([`NEVER_AGAIN`]).
//!
//! Invariant: a test harness that ends without its result line counts as a failure.

pub mod aside;
mod printed;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::printed::Printed;
use crate::setup::{self, Profile, dotnet};
use crate::{build, project};

const END_TO_END: &str = "strata-tests";
/// How cargo names the program of its `e2e` tests.
const END_TO_END_PROGRAM: &str = "e2e-";
/// All of them: they take turns by what each needs of the machine (`tests/src/machine.rs`).
const END_TO_END_THREADS: &str = "--test-threads=1000";
/// What a test program is announced by, before what it prints.
const PROGRAM_LINE: &str = "test program: ";
/// The most tests that are run a second time.
const MOST_AGAIN: usize = 3;
/// Tests of what may not happen a single time, end-to-end ones and those of the bridge.
const NEVER_AGAIN: [&str; 9] = [
    "dotnet_hostile::",
    "dotnet_storms::",
    "dotnet_surviving::",
    "dotnet_unloading::",
    "changes::",
    "faults::",
    "lifecycle::",
    "long_lives::",
    "trouble::",
];
/// What proptest prints last of an input that it has made.
const RANDOM: &str = "global rejects:";
/// This program's own command that cargo starts a test program with.
pub const RUN_PROGRAM: &str = "run-test-program";

pub fn run(arguments: &[OsString]) -> Result<ExitCode> {
    if !project::is_root() {
        bail!(
            "the end-to-end tests load BPF programs and need root. Run:\n  \
             sudo env \"PATH=$PATH\" \"HOME=$HOME\" cargo xtask test\n\
             (without root: `cargo test --workspace --exclude {END_TO_END} --exclude strata-sandbox \
             --exclude strata-clr`)"
        );
    }
    let (part, filters) = Part::of(arguments)?;
    setup::ensure(Profile::Test)?;
    build::ensure()?;

    let mut totals = Totals::default();
    if part != Part::EndToEnd {
        let slots = project::target().join(format!("test-slots-{}", std::process::id()));
        std::fs::create_dir_all(&slots)?;
        let mut cargo = cargo(filters, &[])?;
        count(cargo.env(aside::SLOTS, &slots), &mut totals)?;
        std::fs::remove_dir_all(slots)?;
    }
    if part != Part::Units {
        count(&mut cargo(filters, &["--test", "e2e"])?, &mut totals)?;
    }
    run_again(&mut totals)?;

    println!();
    totals.waits.sort_by_key(|(wait, _)| std::cmp::Reverse(*wait));
    println!("waited longest for:");
    for (wait, name) in totals.waits.iter().take(SLOWEST) {
        println!("  {:>5.1} s  {name}", wait.as_secs_f64());
    }
    for (name, reason) in &totals.skipped {
        println!("skipped: {name}: {reason}");
    }
    // Last, with what they printed: of a long log, often only the end is kept.
    for name in &totals.unsteady {
        println!("unsteady: {name}: failed, and passed when it was run again");
        totals.show_printed(name);
    }
    for name in &totals.failures {
        println!("failed: {name}");
        totals.show_printed(name);
    }
    println!("{}", totals.line());
    Ok(if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo test`, with its own arguments.
fn cargo(filters: &[OsString], arguments: &[&str]) -> Result<Command> {
    let mut cargo = project::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast", "--config", &runner()?]).args(arguments);
    cargo.arg("--").args(filters);
    surroundings(&mut cargo);
    Ok(cargo)
}

/// Which tests are run.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    All,
    Units,
    EndToEnd,
}

impl Part {
    /// What `--only` says, and the arguments after it.
    fn of(arguments: &[OsString]) -> Result<(Self, &[OsString])> {
        match arguments {
            [only, rest @ ..] if only == "--only" => match rest.split_first() {
                Some((part, filters)) if part == "units" => Ok((Self::Units, filters)),
                Some((part, filters)) if part == "end-to-end" => Ok((Self::EndToEnd, filters)),
                _ => bail!("--only units, or --only end-to-end"),
            },
            filters => Ok((Self::All, filters)),
        }
    }
}

/// What end-to-end tests find their things by.
fn surroundings(command: &mut Command) -> &mut Command {
    command
        .env("STRATA_BIN", project::strata_binary())
        .env("STRATA_CACHE", project::cache())
        .env("STRATA_DOTNET", dotnet::directory())
}

/// Runs tests that failed a second time, one after the other.
fn run_again(totals: &mut Totals) -> Result<()> {
    for Failed { name, program } in totals.worth_a_second_run() {
        println!("\nonce more: {name}");
        let mut command = Command::new(&program.path);
        command.args(["--exact", "--nocapture", &name]).current_dir(&program.directory);
        let ended = surroundings(&mut command).stdin(Stdio::null()).output();
        let ended = ended.with_context(|| format!("cannot start {}", program.path.display()))?;
        let printed = [ended.stdout, ended.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        println!("{printed}");
        // A name that is no test's runs none.
        let has_run = printed.lines().any(|line| line.starts_with("test result: ok. 1 passed"));
        if ended.status.success() && has_run {
            totals.passes_after_all(&name);
        } else {
            let kept = totals.printed.entry(name).or_default();
            for line in std::iter::once("once more:").chain(printed.lines()) {
                kept.keep(line);
            }
        }
    }
    Ok(())
}

/// Cargo's setting that makes it start test programs through [`run_program`].
fn runner() -> Result<String> {
    let this = std::env::current_exe()?;
    let this = this.to_str().context("xtask lies at a path that is not UTF-8")?;
    Ok(format!("target.x86_64-unknown-linux-gnu.runner=[{this:?}, \"{RUN_PROGRAM}\"]"))
}

/// Becomes the test program that `words` begin with, or starts it beside others: the end-to-end one is
/// left out among them.
pub fn run_program(words: &[OsString]) -> Result<ExitCode> {
    let (program, arguments) = words.split_first().context("no test program is named")?;
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let is_end_to_end = name.starts_with(END_TO_END_PROGRAM);
    if let Some(slots) = std::env::var_os(aside::SLOTS) {
        return if is_end_to_end {
            Ok(ExitCode::SUCCESS)
        } else {
            aside::start(Path::new(&slots), words)
        };
    }
    let mut command = Command::new(program);
    command.args(arguments);
    if is_end_to_end {
        command.arg(END_TO_END_THREADS);
    }
    println!("{}", announced(Path::new(program))?);
    Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
}

/// The line before what a test program prints: cargo has started this one where it starts that one.
fn announced(program: &Path) -> Result<String> {
    let directory = std::env::current_dir()?;
    Ok(format!("{PROGRAM_LINE}{} in {}", program.canonicalize()?.display(), directory.display()))
}

/// A test program, and where cargo starts it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestProgram {
    path: PathBuf,
    directory: PathBuf,
}

impl TestProgram {
    fn of_line(line: &str) -> Option<Self> {
        let (path, directory) = line.strip_prefix(PROGRAM_LINE)?.rsplit_once(" in ")?;
        Some(Self { path: path.into(), directory: directory.into() })
    }
}

/// A test that failed, of a program that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failed {
    name: String,
    program: TestProgram,
}

#[derive(Default)]
struct Totals {
    passed: u64,
    failed: u64,
    failures: Vec<String>,
    /// The program whose lines come now.
    program: Option<TestProgram>,
    /// Of [`Self::failures`], those that may be run again.
    repeatable: Vec<Failed>,
    /// Tests that failed, and passed when they were run again.
    unsteady: Vec<String>,
    /// Tests that could not run here, or not wholly, and why.
    skipped: BTreeMap<String, String>,
    /// Between the result of a test and the one before it: what the end of the whole waited for.
    waits: Vec<(Duration, String)>,
    /// The last lines that each failed test printed, in both of its runs.
    printed: BTreeMap<String, Printed>,
    /// The failed test whose lines come now.
    prints: Option<String>,
}

impl Totals {
    /// The closing line, which CI reads.
    fn line(&self) -> String {
        let skipped = self.skipped.len() as u64;
        let passed = self.passed.saturating_sub(skipped);
        format!("{passed} passed, {} failed, {skipped} skipped", self.failed)
    }

    fn show_printed(&self, name: &str) {
        for line in self.printed.get(name).into_iter().flat_map(Printed::lines) {
            println!("    {line}");
        }
    }

    fn take_line(&mut self, line: &str) {
        if let Some(name) = block_of(line) {
            self.prints = Some(name.to_owned());
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.prints = None;
        } else if let Some(name) = &self.prints {
            self.printed.entry(name.clone()).or_default().keep(line);
        }
        if let Some((name, reason)) = skipped_test(line) {
            self.skipped.insert(name.to_owned(), reason.to_owned());
        }
        if let Some((name, reason)) = ignored_test(line) {
            // An ignored test is not among the passed ones, which skipped ones are taken off.
            self.passed += 1;
            self.skipped.insert(name.to_owned(), reason.to_owned());
        }
        let failed = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
        if let Some(name) = failed {
            self.skipped.remove(name);
            self.failures.push(name.to_owned());
            let name = name.to_owned();
            self.repeatable.extend(self.program.clone().map(|program| Failed { name, program }));
        }
        if let Some(program) = TestProgram::of_line(line) {
            self.program = Some(program);
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.passed += number_before(result, " passed");
            self.failed += number_before(result, " failed");
            self.program = None;
        }
    }

    /// Tests that failed, if they are so few that it may be chance. Not by that of their own input: another
    /// one proves nothing.
    fn worth_a_second_run(&self) -> Vec<Failed> {
        let is_random = |name: &String| {
            let printed = self.printed.get(name);
            printed.is_some_and(|printed| printed.lines().any(|line| line.contains(RANDOM)))
        };
        let is_final = |name: &String| {
            NEVER_AGAIN.iter().any(|module| name.starts_with(module)) || is_random(name)
        };
        if self.failures.len() > MOST_AGAIN || self.failures.iter().any(is_final) {
            return Vec::new();
        }
        self.repeatable.clone()
    }

    fn passes_after_all(&mut self, name: &str) {
        // Another program may have a test of the same name.
        if let Some(at) = self.failures.iter().position(|failed| failed == name) {
            self.failures.remove(at);
        }
        self.failed = self.failed.saturating_sub(1);
        self.passed += 1;
        self.unsteady.push(name.to_owned());
    }
}

/// Tests that are named for the time they took.
const SLOWEST: usize = 12;

/// Runs `cargo test`, shows its output and adds up its result lines.
fn count(command: &mut Command, totals: &mut Totals) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no standard output")?;
    let failed_before = totals.failed;
    let mut started = 0_u64;
    let mut ended = 0_u64;
    // Programs that are started aside, less those of which all is there.
    let mut relayed = 0_i64;
    let mut last = Instant::now();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if let Some(waited) = line.strip_prefix(aside::WAITED) {
            totals.waits.extend(wait_of(waited));
            continue;
        }
        if line.starts_with(aside::STARTED) || line.starts_with(aside::ENDED) {
            relayed += if line.starts_with(aside::STARTED) { 1 } else { -1 };
            continue;
        }
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
        if line.starts_with("test result: ") {
            ended += 1;
        }
        totals.take_line(&line);
    }
    let status = child.wait()?;
    let lost = started.saturating_sub(ended) + relayed.unsigned_abs();
    if lost > 0 {
        totals.failed += lost;
        totals.failures.push(format!("{lost} test program(s) ended without a result"));
    } else if !status.success() && totals.failed == failed_before {
        // It did not compile, or a doctest could not be built.
        totals.failed += 1;
        totals.failures.push(format!("cargo test ({status})"));
    }
    Ok(())
}

/// `3.4 a_name`
fn wait_of(waited: &str) -> Option<(Duration, String)> {
    let (seconds, name) = waited.split_once(' ')?;
    Some((Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?, name.to_owned()))
}

/// `test a_name ... ok`
fn ended_test(line: &str) -> Option<&str> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    matches!(result, "ok" | "FAILED").then_some(name)
}

/// `---- a_name stdout ----`, before what a failed test printed.
fn block_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// `skipped: a_name: a reason`, as `strata-skip` prints it.
fn skipped_test(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("skipped: ")?.split_once(": ")
}

/// `test a_name ... ignored, a reason`. One that another test runs, in a process of its own, is a
/// part of that test and no test by itself.
fn ignored_test(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let reason = result.strip_prefix(", ").unwrap_or("ignored without a reason");
    (!reason.starts_with("run by ")).then_some((name, reason))
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
    use std::ffi::OsString;

    use super::{Failed, Part, TestProgram, Totals, ended_test, number_before};

    #[test]
    fn a_part_of_the_tests_is_chosen_before_filters() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let all = words(&["shares::"]);
        assert_eq!(Part::of(&all).expect("a filter"), (Part::All, &all[..]));
        let units = words(&["--only", "units", "a"]);
        assert_eq!(Part::of(&units).expect("a part"), (Part::Units, &units[2..]));
        let end_to_end = words(&["--only", "end-to-end"]);
        assert_eq!(Part::of(&end_to_end).expect("a part"), (Part::EndToEnd, &[][..]));
        assert!(Part::of(&words(&["--only", "shares::"])).is_err());
        assert!(Part::of(&words(&["--only"])).is_err());
    }

    #[test]
    fn a_test_that_could_not_run_is_skipped_and_not_passed() {
        let mut totals = Totals::default();
        for line in [
            "running 5 tests",
            "test a::runs ... ok",
            "skipped: a::cannot: no node here: os error 2",
            "test a::cannot ... ok",
            "test a::fails ... FAILED",
            "test a::later ... ignored, until Linux 7.3",
            "test a::child ... ignored, run by a::runs, which kills it",
            "test result: FAILED. 2 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out",
        ] {
            totals.take_line(line);
        }
        assert_eq!(totals.line(), "1 passed, 1 failed, 2 skipped");
        let skipped: Vec<_> = totals.skipped.into_iter().collect();
        let expected = [("a::cannot", "no node here: os error 2"), ("a::later", "until Linux 7.3")];
        assert_eq!(skipped, expected.map(|(name, reason)| (name.to_owned(), reason.to_owned())));
        assert_eq!(totals.failures, ["a::fails"]);
    }

    #[test]
    fn what_a_failed_test_printed_last_is_kept() {
        let mut totals = Totals::default();
        let many = (0..100).map(|number| format!("line {number}"));
        for line in ["test a::fails ... FAILED", "failures:", "---- a::fails stdout ----"]
            .map(str::to_owned)
            .into_iter()
            .chain(many)
            .chain(
                ["---- a::other stdout ----", "one", "failures:", "    a::fails"]
                    .map(str::to_owned),
            )
        {
            totals.take_line(&line);
        }
        assert_eq!(totals.printed["a::fails"].lines().last(), Some("line 99"));
        assert_eq!(totals.printed["a::other"].lines().collect::<Vec<_>>(), ["one"]);
    }

    #[test]
    fn few_tests_that_fail_are_run_again() {
        let failing = |names: &[&str]| {
            let mut totals = Totals::default();
            totals.take_line("test doc::fails ... FAILED");
            totals.take_line("test result: FAILED. 0 passed; 1 failed; 0 ignored");
            totals.take_line("test program: /target/e2e in x-1 in /project/tests");
            for name in names {
                totals.take_line(&format!("test {name} ... FAILED"));
            }
            totals.take_line(&format!("test result: FAILED. 9 passed; {} failed", names.len()));
            totals
        };
        let mut one = failing(&["shares::of_go"]);
        let program =
            TestProgram { path: "/target/e2e in x-1".into(), directory: "/project/tests".into() };
        let name = "shares::of_go".to_owned();
        assert_eq!(one.worth_a_second_run(), [Failed { name, program }]);
        one.passes_after_all("shares::of_go");
        assert_eq!(one.line(), "10 passed, 1 failed, 0 skipped");
        assert_eq!(
            (one.failures, one.unsteady),
            (vec!["doc::fails".into()], vec!["shares::of_go".into()])
        );
        assert!(failing(&["a", "b", "c"]).worth_a_second_run().is_empty());
        assert!(failing(&["a", "dotnet_unloading::b"]).worth_a_second_run().is_empty());
        let mut of_random_input = failing(&["a"]);
        for line in ["---- a stdout ----", "\tlocal rejects: 0", "\tglobal rejects: 0"] {
            of_random_input.take_line(line);
        }
        assert!(of_random_input.worth_a_second_run().is_empty());
    }

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
