//! Programs run one instruction at a time, and at every instruction the whole stack unwound with
//! our tables must be the stack that the calls and returns seen so far have made.

mod checker;
mod managed;
#[expect(dead_code, reason = "the other test reads programs in more ways")]
#[path = "../managed/runtime.rs"]
mod runtime;
mod shadow;
mod tracee;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use checker::{Checker, Report};

fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets").join(name)
}

/// Compiles a target; `None` (and prints why) when the compiler is missing.
fn compile(directory: &Path, mut command: Command, name: &str) -> Option<PathBuf> {
    let output = directory.join(name);
    let program = command.get_program().to_string_lossy().into_owned();
    match command.arg("-o").arg(&output).output() {
        Err(error) => {
            strata_skip::skipped!("{program}: {error}");
            None
        }
        Ok(result) => {
            let errors = String::from_utf8_lossy(&result.stderr);
            assert!(result.status.success(), "{program}: {errors}");
            Some(output)
        }
    }
}

fn compiler(program: &str, options: &[&str], source: &str) -> Command {
    let mut command = Command::new(program);
    command.args(options).arg(target(source));
    command
}

fn show(name: &str, report: &Report) {
    println!(
        "{name}: {} instructions checked, {} stacks taken over after a switch, {} wrong",
        report.steps,
        report.switches.values().sum::<u64>(),
        report.wrong(),
    );
    for (reason, count) in &report.excepted {
        println!("  {count} left out: {reason}");
    }
    for ((file, address), (count, what)) in report.failures.iter().take(20) {
        println!("  {file} {address:#x}: {count} times, first: {what}");
    }
}

/// Runs a compiled target and asserts that no instruction had a wrong stack.
fn assert_all_right(name: &str, build: Option<PathBuf>, least: u64, set_up: impl Fn(&mut Checker)) {
    let Some(program) = build else { return };
    let mut checker = Checker::new(Command::new(program));
    set_up(&mut checker);
    let report = checker.run();
    show(name, &report);
    assert!(report.steps >= least, "only {} instructions", report.steps);
    assert_eq!(report.wrong(), 0);
    let left_out: u64 = report.excepted.values().sum();
    assert!(left_out * 100 < report.steps, "{left_out} exceptions are too many");
}

#[test]
fn every_instruction_of_optimised_c_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let options = ["-O2", "-fomit-frame-pointer", "-Wl,-z,lazy", "-pthread"];
    let build = compile(directory.path(), compiler("gcc", &options, "shapes.c"), "c");
    assert_all_right("C -O2, lazy binding", build, 100_000, |_| {});
}

#[test]
fn every_instruction_of_unoptimised_c_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let options = ["-O0", "-fcf-protection=none", "-pthread"];
    let build = compile(directory.path(), compiler("gcc", &options, "shapes.c"), "c");
    assert_all_right("C -O0", build, 10_000, |checker| checker.from_entry = true);
}

#[test]
fn every_instruction_of_a_static_program_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let options = ["-Os", "-static-pie", "-pthread"];
    let build = compile(directory.path(), compiler("gcc", &options, "shapes.c"), "c");
    assert_all_right("C -Os, static-pie", build, 20_000, |_| {});
}

#[test]
fn every_instruction_of_hand_written_assembly_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let build = compile(directory.path(), compiler("gcc", &[], "shapes_assembly.S"), "assembly");
    assert_all_right("assembly", build, 1_000, |_| {});
}

#[test]
fn every_instruction_of_musl_programs_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let build = compile(
        directory.path(),
        compiler("musl-gcc", &["-O2", "-static", "-pthread"], "shapes.c"),
        "static",
    );
    assert_all_right("C with musl, static", build, 10_000, |_| {});
    let build = compile(
        directory.path(),
        compiler("musl-gcc", &["-O2", "-static", "-pthread", "-s"], "shapes.c"),
        "stripped",
    );
    assert_all_right("C with musl, static and stripped", build, 10_000, |_| {});
    let build = compile(
        directory.path(),
        compiler("musl-gcc", &["-O2", "-pthread"], "shapes.c"),
        "dynamic",
    );
    assert_all_right("C with musl, dynamic", build, 10_000, |_| {});
}

#[test]
fn every_instruction_of_cpp_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let build = compile(directory.path(), compiler("g++", &["-O2"], "shapes.cpp"), "cpp");
    assert_all_right("C++ with exceptions", build, 100_000, |checker| checker.from_entry = true);
}

#[test]
fn every_instruction_of_rust_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let options = ["--edition", "2024", "-Copt-level=3"];
    let build = compile(directory.path(), compiler("rustc", &options, "shapes.rs"), "rust");
    assert_all_right("Rust", build, 20_000, |checker| checker.from_entry = true);
}

fn go(compiler: impl AsRef<OsStr>, directory: &Path, source: &str) -> Option<PathBuf> {
    let mut command = Command::new(compiler);
    command.env("GOCACHE", directory.join("cache")).current_dir(directory);
    let copy = directory.join(source);
    std::fs::copy(target(source), &copy).unwrap();
    command.arg("build");
    // `go build` wants its output before the source.
    let output = directory.join("program");
    command.arg("-o").arg(&output).arg(&copy);
    match command.output() {
        Err(error) => {
            strata_skip::skipped!("go: {error}");
            None
        }
        Ok(result) => {
            assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
            Some(output)
        }
    }
}

#[test]
fn every_instruction_of_go_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let build = go("go", directory.path(), "shapes.go");
    assert_all_right("Go", build, 100_000, |checker| checker.switches_stacks = true);
}

/// `cargo xtask setup test` fetches it.
#[test]
fn every_instruction_of_go_1_19_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/go-1.19/usr/lib/go-1.19");
    let build = go(tree.join("bin/go"), directory.path(), "shapes.go");
    assert_all_right("Go 1.19", build, 100_000, |checker| {
        checker.switches_stacks = true;
        checker.is_old_go = true;
    });
}

#[test]
fn every_instruction_of_go_with_c_has_the_right_stack() {
    let directory = tempfile::tempdir().unwrap();
    let build = go("go", directory.path(), "shapes_cgo.go");
    assert_all_right("Go with C", build, 100_000, |checker| checker.switches_stacks = true);
}
