//! `cargo xtask …`: the commands of developers and CI, in one program.
//!
//! | module | job |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`project`] | where things are: root, cache, target directory |
//! | [`run`] | starting programs, progress lines, logs |
//! | [`setup`] | what each command needs, and getting it |
//! | [`bpf_object`] | the committed BPF object and the digest of its sources |
//! | [`build`], [`record`], [`test`], [`bench`], [`fuzz`], [`dist`] | the commands of those names |
//! | [`check_arch`] | the same sources for another machine |
//! | [`vm`] | strata on other kernels, under emulation |
//!
//! Invariant: every command is idempotent, not interactive, and does its own set-up.

mod arguments;
mod bench;
mod bpf_object;
mod build;
mod check_arch;
mod dist;
mod fuzz;
mod project;
mod record;
mod run;
mod setup;
mod test;
mod vm;

use std::process::ExitCode;

use anyhow::Result;

use crate::arguments::Command;

fn main() -> ExitCode {
    match arguments::parse().and_then(dispatch) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Help(text) => print!("{text}"),
        Command::Setup(profile) => setup::run(profile)?,
        Command::Build(options) => build::run(options)?,
        Command::Record(arguments) => record::run(&arguments)?,
        Command::Test(filters) => return test::run(&filters),
        Command::RunTestProgram(words) => return test::run_program(&words),
        Command::RelayTestProgram(words) => return test::aside::relay(&words),
        Command::VmTest(options) => vm::run(&options)?,
        Command::Bench(arguments) => bench::run(&arguments)?,
        Command::Fuzz(options) => fuzz::run(&options)?,
        Command::Dist => dist::run()?,
        Command::CheckArch { bpf: false } => check_arch::pure_crates()?,
        Command::CheckArch { bpf: true } => check_arch::programs()?,
    }
    Ok(ExitCode::SUCCESS)
}
