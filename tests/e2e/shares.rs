//! Shares: three leaves that do exactly 50, 30 and 20 % of a program's work have these shares of
//! its samples, in C, C++, Rust and Go, and their callers are on every stack.

use anyhow::Result;
use strata_tests::stacks::Stacks;
use strata_tests::{machine, strata, targets};

const FREQUENCY: u32 = 1999;
/// CPU seconds of each of the four programs: 10,500 samples.
const CPU_SECONDS: f64 = 5.3;

#[test]
fn leaf_shares_are_within_two_points_in_four_languages() -> Result<()> {
    let _machine = machine::alone()?;
    let programs = [
        targets::c("shares").build()?,
        targets::cpp_shares().build()?,
        targets::rust_shares()?,
        targets::go("shares", "shares_go", &[])?,
    ];
    let line: String =
        programs.iter().map(|p| format!("{} {CPU_SECONDS} & ", p.display())).collect();
    let recorded = strata::record()?
        .frequency(FREQUENCY)
        .shell(&format!("export STRATA_TARGET_CLOCK=cpu; {line} wait"))
        .run()?;
    let stacks = recorded.stacks()?;

    let mut wrong = Vec::new();
    for (comm, leaves, wanted_callers) in [
        ("shares", [["burn_fifty", ""], ["burn_thirty", ""], ["burn_twenty", ""]], ("descend", 8)),
        (
            "shares_cpp",
            [
                ["Leaf<work::Fifty>::burn", ""],
                ["Leaf<work::Thirty>::burn", ""],
                ["Leaf<work::Twenty>::burn", ""],
            ],
            ("work::descend", 8),
        ),
        (
            "shares_rust",
            [["Fifty", "burn"], ["Thirty", "burn"], ["Twenty", "burn"]],
            ("shares::Work::descend", 8),
        ),
        (
            "shares_go",
            [["main.burnFifty", ""], ["main.burnThirty", ""], ["main.burnTwenty", ""]],
            ("main.(*work).descend", 8),
        ),
    ] {
        let own = stacks.of_comm(comm);
        let called_for = recorded.ended.cpu_seconds(comm) * f64::from(FREQUENCY);
        println!(
            "{comm}: {} samples, its CPU time calls for {called_for:.0}; complete {}",
            own.total(),
            own.completeness()
        );
        for (parts, share) in leaves.iter().zip([0.5, 0.3, 0.2]) {
            let seen = own.share_of_leaf_like(parts);
            println!("  {}: {:.2} %", parts.join("…"), 100.0 * seen);
            if (seen - share).abs() > 0.02 {
                wrong.push(format!("{comm} {parts:?}: {seen}"));
            }
        }
        let (caller, times) = wanted_callers;
        let with_callers = share_with_callers(&own, caller, times);
        println!("  {times} x {caller}: {:.2} %", 100.0 * with_callers);
        if with_callers < 0.97 {
            wrong.push(format!("{comm}: only {with_callers} below {times} x {caller}"));
            print_examples(&own);
        }
        if own.total() < 10_000 || (own.total() as f64) < 0.95 * called_for {
            wrong.push(format!("{comm}: {} samples of {called_for}", own.total()));
        }
        if own.completeness().fraction() < 0.995 {
            wrong.push(format!("{comm}: complete {}", own.completeness()));
        }
    }
    recorded.print_losses();
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

#[test]
fn the_c_leaves_are_called_through_libc() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("shares").build()?;
    let recorded =
        strata::record()?.frequency(FREQUENCY).command(program, &["3"]).by_cpu_time().run()?;
    let own = recorded.stacks()?.of_comm("shares");
    let through_libc = own.share_that(|s| {
        let place = |name: &str| s.frames.iter().position(|f| f.name == name);
        let libc = s.frames.iter().position(|f| f.file.contains("libc.so"));
        matches!((place("compare_and_burn"), libc, place("descend")), (Some(a), Some(b), Some(c)) if a < b && b < c)
    });
    println!(
        "{} samples, {:.2} % burn < compare < libc < descend",
        own.total(),
        100.0 * through_libc
    );
    assert!(own.total() > 200 && through_libc > 0.98);
    Ok(())
}

fn share_with_callers(stacks: &Stacks, caller: &str, times: usize) -> f64 {
    // C++ with or without parameters.
    let is_caller = |name: &str| name.split('(').next() == Some(caller) || name == caller;
    stacks.share_that(|s| s.frames.iter().filter(|f| is_caller(&f.name)).count() == times)
}

fn print_examples(stacks: &Stacks) {
    for stack in stacks.stacks.iter().take(3) {
        println!("    {} x {}", stack.count, stack.line());
    }
}
