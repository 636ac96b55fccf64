//! Kernel on top of user: one stack from the kernel function to the caller's caller.

use std::process::Command;

use anyhow::Result;
use strata_tests::running::{Running, run};
use strata_tests::stacks::Stack;
use strata_tests::{machine, strata, targets};

#[test]
fn reading_dev_zero_shows_kernel_libc_and_caller_in_one_stack() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("zero").build()?;
    let recorded = strata::record()?.frequency(997).command(program, &["4"]).by_cpu_time().run()?;
    let own = recorded.stacks()?.of_comm("zero");
    let in_kernel = own.that(|s| s.leaf().is_some_and(|f| f.is_kernel()) && s.has("zero_inner"));
    let joined = in_kernel.share_that(|s| {
        let place = |name: &str| s.frames.iter().position(|f| f.name == name);
        let kernel = s.frames.iter().rposition(|f| f.is_kernel());
        let libc = s.frames.iter().position(|f| f.file.contains("libc.so"));
        let places = [kernel, libc, place("zero_inner"), place("zero_outer"), place("main")];
        places.is_sorted_by(|one, next| one.is_some() && one < next)
    });
    // Few are taken on the way there and back: how many depends on the processor.
    let reading = in_kernel.share_that(reads_zero);
    println!(
        "{} samples, {} in the kernel below zero_inner, {:.2} % of them whole, {:.2} % in the device",
        own.total(),
        in_kernel.total(),
        100.0 * joined,
        100.0 * reading
    );
    for stack in in_kernel.stacks.iter().take(3) {
        println!("  {} x {}", stack.count, stack.line());
    }
    assert!(in_kernel.total() as f64 > 0.9 * own.total() as f64);
    assert!(own.total() > 200 && joined > 0.98 && reading > 0.9);
    Ok(())
}

/// Workers of the kernel in a process, which never run any of its code: their stacks are the kernel's, whole.
#[test]
fn workers_of_io_uring_have_whole_stacks_in_the_kernel() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("io_workers").build()?;
    if run(Command::new(&program).arg("0"))?.status.code() == Some(77) {
        strata_skip::skipped!("the kernel allows no io_uring here");
        return Ok(());
    }
    let recorded = strata::record()?
        .frequency(499)
        .option("-e", "cpu,wall,off_cpu")
        .command(program, &["4"])
        .run()?;
    let profile = recorded.profile()?;
    for kind in ["cpu", "wall", "off_cpu"] {
        let stacks = profile.stacks_of(kind)?;
        let workers = stacks.that(|stack| stack.frames.iter().any(|f| f.name == "io_wq_worker"));
        let whole = workers.share_that(|stack| {
            stack.frames.iter().all(|frame| frame.is_kernel())
                && stack.frames.last().is_some_and(|frame| frame.name.contains("ret_from_fork"))
        });
        let in_call = workers.that(|stack| stack.labels.contains_key("syscall")).total();
        println!("{kind}: {} of {}, {whole:.3} whole", workers.total(), stacks.total());
        for stack in workers.stacks.iter().take(3) {
            println!("  {} x {}", stack.count, stack.line());
        }
        assert!(whole > 0.999 && in_call == 0, "{kind}");
        let least = if kind == "off_cpu" { 0.01 } else { 0.3 };
        assert!(workers.total() as f64 > least * stacks.total() as f64, "{kind}");
    }
    assert_eq!(recorded.summary()?.losses_named(&["stack_unsupported_rule"]), 0);
    Ok(())
}

/// Whether the kernel's function that reads the device is in the stack.
fn reads_zero(stack: &Stack) -> bool {
    let functions = ["read_zero", "read_iter_zero"];
    let is_one = |name: &str| functions.iter().any(|function| name.contains(function));
    stack.frames.iter().any(|frame| frame.is_kernel() && is_one(&frame.name))
}

#[test]
fn a_sleeping_program_has_almost_no_samples() -> Result<()> {
    let _machine = machine::beside_others()?;
    let sleeper = Running::start(&targets::c("sleeper").build()?, &["30"])?;
    let recorded = strata::record()?.frequency(997).seconds(5.0).run()?;
    let samples = recorded.stacks()?.of_pid(sleeper.pid()).total();
    println!("{samples} samples of a program that sleeps for 5 s at 997 Hz");
    assert!(samples <= 10);
    Ok(())
}

/// Restores a sysctl when dropped.
struct Sysctl {
    path: &'static str,
    before: String,
}

impl Sysctl {
    fn set(path: &'static str, value: &str) -> Result<Self> {
        let before = std::fs::read_to_string(path)?;
        std::fs::write(path, value)?;
        Ok(Self { path, before })
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path, &self.before);
    }
}

#[test]
fn hidden_kernel_addresses_cost_no_names() -> Result<()> {
    let _machine = machine::alone()?;
    let _hidden = Sysctl::set("/proc/sys/kernel/kptr_restrict", "2")?;
    let program = targets::c("zero").build()?;
    let recorded = strata::record()?.frequency(997).command(program, &["2"]).run()?;
    let own = recorded.stacks()?.of_comm("zero");
    let with_kernel = own.share_that(|s| s.frames.iter().any(|f| f.is_kernel()));
    let named = own.share_that(reads_zero);
    println!(
        "{} samples, {with_kernel:.3} with kernel frames, {named:.3} named, {:.3} with zero_outer",
        own.total(),
        own.share_with("zero_outer")
    );
    assert!(own.total() > 200 && own.share_with("zero_outer") > 0.95 && with_kernel > 0.9);
    assert!(named > 0.9, "{named:.3} have the name of the kernel's function");
    Ok(())
}
