//! Managed code, one instruction at a time: the target runs on its own until everything is
//! compiled, and its main thread is then stepped through all shapes of frames.

use std::time::Duration;

use crate::checker::Checker;
use crate::runtime::{self, Program};
use crate::show;

/// Steps the target; `version` 8 is a program of its own that runs the target as a hook.
fn check(version: &str, arguments: &str, steps: u64, variables: &[(&str, &str)]) {
    let Some(folder) = runtime::folder() else { return };
    let directory = tempfile::tempdir().unwrap();
    let assembly = runtime::compile(&folder, directory.path(), "managed");
    let mut command = match version {
        "8" => runtime::hooked_command(&folder.join("8/Sarif.Multitool"), &assembly),
        _ => runtime::command(&folder, version, &assembly),
    };
    if version == "8" {
        command.env("STRATA_TARGET", arguments);
    } else {
        command.args(arguments.split(' '));
    }
    command.envs(variables.iter().copied());
    let program = Program::start(command);
    // Past the writing itself, which binds methods that nothing else calls.
    std::thread::sleep(Duration::from_millis(200));
    let mut checker = Checker::attach(program.pid());
    checker.max_steps = steps;
    let report = checker.run();
    show(&format!(".NET {version}, {arguments}, {variables:?}"), &report);
    assert!(report.steps >= steps, "only {} instructions", report.steps);
    assert_eq!(report.wrong(), 0);
    let left_out: u64 = report.excepted.values().sum();
    assert!(left_out * 50 < report.steps, "{left_out} exceptions are too many");
}

const OPTIMISED: (&str, &str) = ("COMPlus_TieredCompilation", "0");

#[test]
fn every_instruction_of_managed_code_has_the_right_stack_on_9() {
    check("9", "40", 300_000, &[OPTIMISED]);
    check("9", "40", 300_000, &[]);
}

#[test]
fn every_instruction_of_managed_code_has_the_right_stack_on_8() {
    check("8", "40", 300_000, &[]);
}

#[test]
fn every_instruction_of_managed_code_has_the_right_stack_on_3_1() {
    check("3.1", "40", 300_000, &[OPTIMISED]);
    check("3.1", "40", 300_000, &[]);
}

/// Unoptimised methods that are replaced while they run, every time.
#[test]
fn every_instruction_of_replaced_methods_has_the_right_stack() {
    let replace = [
        ("COMPlus_OSR_HitLimit", "1"),
        ("COMPlus_TC_OnStackReplacement_InitialCounter", "1"),
        ("COMPlus_TC_CallCountThreshold", "1000000"),
    ];
    check("9", "40", 300_000, &replace);
}

#[test]
fn every_instruction_of_an_exception_has_the_right_stack() {
    check("9", "40 throw", 400_000, &[OPTIMISED]);
    check("3.1", "40 throw", 400_000, &[OPTIMISED]);
}
