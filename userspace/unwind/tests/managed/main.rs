//! Rules of managed code against what the runtimes themselves know: of methods compiled at run
//! time, and of compiled images.

mod hostile;
mod images;
mod methods;
#[expect(dead_code, reason = "the other test watches perf maps grow")]
mod runtime;
mod shapes;
mod truth;

use std::process::Command;

use methods::{Report, check_all};
use runtime::Program;

fn assert_all_right(name: &str, report: &Report, least: usize) {
    println!(
        "{name}: {} methods, {} handlers, {} replacements, {} without a frame pointer, {} with a \
         probing loop, {} wrong",
        report.methods,
        report.handlers,
        report.replacements,
        report.without_frame_pointer,
        report.probes,
        report.wrong.len()
    );
    for wrong in report.wrong.iter().take(20) {
        println!("  {wrong}");
    }
    assert!(report.methods >= least, "only {} methods", report.methods);
    assert!(report.wrong.is_empty());
}

/// Framework assemblies with many methods of all kinds.
const ASSEMBLIES: [&str; 3] =
    ["System.Private.Xml", "System.Linq.Expressions", "System.Collections"];

/// Runs the target in one runtime, set up by variables.
fn check_target(version: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Option<Report> {
    let folder = runtime::folder()?;
    let directory = tempfile::tempdir().unwrap();
    let assembly = runtime::compile(&folder, directory.path(), "managed");
    let mut command = runtime::command(&folder, version, &assembly);
    command.args(arguments).envs(variables.iter().copied());
    Some(check_all(&Program::start(command)))
}

fn check_framework(version: &str, variables: &[(&str, &str)]) {
    let arguments = [&["prepare"][..], &ASSEMBLIES].concat();
    let Some(report) = check_target(version, &arguments, variables) else { return };
    assert_all_right(&format!("the framework on {version}, {variables:?}"), &report, 10_000);
    assert!(report.handlers > 500);
}

/// Methods that replace a running frame appear at once.
const REPLACE: [(&str, &str); 3] = [
    ("COMPlus_OSR_HitLimit", "1"),
    ("COMPlus_TC_OnStackReplacement_InitialCounter", "1"),
    ("COMPlus_TC_CallCountThreshold", "1000000"),
];

#[test]
fn every_frame_of_3_1_is_known_at_every_byte() {
    let Some(report) = check_target("3.1", &["40"], &[]) else { return };
    assert_all_right("3.1", &report, 60);
    assert!(report.probes >= 2);
}

#[test]
fn every_frame_of_9_is_known_at_every_byte() {
    let Some(report) = check_target("9", &["40"], &[]) else { return };
    assert_all_right("9", &report, 40);
    let Some(report) = check_target("9", &["40", "throw"], &REPLACE) else { return };
    assert_all_right("9, replacing", &report, 40);
    assert!(report.replacements >= 5);
}

#[test]
fn all_methods_of_a_framework_are_known_unoptimised() {
    let from_their_code = [("COMPlus_ReadyToRun", "0")];
    check_framework("3.1", &from_their_code);
    check_framework("9", &from_their_code);
}

#[test]
fn all_methods_of_a_framework_are_known_optimised() {
    let optimised = [("COMPlus_ReadyToRun", "0"), ("COMPlus_TieredCompilation", "0")];
    check_framework("3.1", &optimised);
    check_framework("9", &optimised);
}

/// The single-file program has our code run before its own.
#[test]
fn all_methods_of_8_are_known() {
    let Some(folder) = runtime::folder() else { return };
    let program = folder.join("8/Sarif.Multitool");
    if !program.is_file() {
        return strata_skip::skipped!("no {}", program.display());
    }
    let directory = tempfile::tempdir().unwrap();
    let hook = runtime::compile(&folder, directory.path(), "managed");
    for tiered in ["0", "1"] {
        let mut command = runtime::hooked_command(&program, &hook);
        command.env("STRATA_TARGET", [&["prepare"][..], &ASSEMBLIES].concat().join(" "));
        command.env("COMPlus_ReadyToRun", "0").env("COMPlus_TieredCompilation", tiered);
        let report = check_all(&Program::start(command));
        assert_all_right(&format!("8, tiered {tiered}"), &report, 10_000);
        assert!(report.handlers > 500);
    }
}

/// A real program that serves until its input ends.
#[test]
fn all_methods_of_10_are_known() {
    let Some(folder) = runtime::folder() else { return };
    let program = folder.join("10/azmcp");
    if !program.is_file() {
        return strata_skip::skipped!("no {}", program.display());
    }
    for variables in [&[("COMPlus_TieredCompilation", "0")][..], &[], &REPLACE] {
        let mut command = Command::new(&program);
        runtime::describe(&mut command);
        command.args(["server", "start"]).env("AZURE_MCP_COLLECT_TELEMETRY", "false");
        command.envs(variables.iter().copied());
        let report = check_all(&Program::start_until(command, 5_000));
        assert_all_right(&format!("10, {variables:?}"), &report, 4_000);
        assert!(report.handlers > 200);
    }
}
