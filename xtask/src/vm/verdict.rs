//! Judges whether a guest's recordings are right.
//!
//! `known` (xtask/guest/known.c) spends its user time in three leaves, 50/30/20, below twenty
//! levels of recursion and a callback from libc, and the rest in the kernel. Invariant: a
//! recording with too few samples to judge is a failure, not a pass.

use anyhow::{Context, Result, bail, ensure};

use super::profile::{self, Stack};
use super::transcript::Transcript;
use crate::setup::kernels::Kernel;

const LEAVES: [(&str, f64); 3] = [("leaf_half", 0.5), ("leaf_third", 0.3), ("leaf_fifth", 0.2)];
const CHAIN: [&str; 6] = ["_start", "main", "descend", "through_libc", "compare", "leaves"];
const RECURSION: usize = 21;
const COMPLETE: f64 = 0.95;
/// Three standard deviations of a share of 0.5 at some 400 samples are 0.08. An emulator that is
/// kept from running delivers the ticks it missed in a burst, all in one place: as much again.
/// (How exact shares are is tested where clocks are real.)
const SHARE_TOLERANCE: f64 = 0.16;
const FEWEST_SAMPLES: u64 = 100;

pub fn judge(transcript: &Transcript, kernel: &Kernel, with_strata: bool) -> Result<String> {
    let release = text_of(transcript, "release")?;
    ensure!(release.trim() == kernel.release, "another kernel booted: {}", release.trim());
    if !with_strata {
        let output = text_of(transcript, "known")?;
        ensure!(output.contains("rounds"), "the program output {output:?}");
        return Ok(format!("boots and runs programs ({})", output.trim()));
    }
    let doctor = text_of(transcript, "doctor").context("strata doctor")?;
    let loads = |line: &str| line.trim().starts_with("ok ") && line.contains("strata's programs");
    ensure!(
        doctor.lines().any(loads),
        "strata doctor does not say that its programs load:\n{doctor}"
    );
    text_of(transcript, "record").context("strata record -- known")?;
    let child = recording(transcript, "child").context("recorded as a child")?;
    text_of(transcript, "record-host").context("strata record, host-wide")?;
    let host = recording(transcript, "host").context("recorded host-wide")?;
    let rights = rights(text_of(transcript, "rights")?).context("what strata may do")?;
    text_of(transcript, "record-waits").context("strata record -e off_cpu -- sleep 2")?;
    let waits = waits(transcript).context("what `sleep 2` waits for")?;
    text_of(transcript, "record-wall").context("strata record -e wall -- sleep 2")?;
    let wall = wall(transcript).context("all time of `sleep 2`")?;
    text_of(transcript, "record-switched").context("strata record while a CPU goes and comes")?;
    let switched = recording(transcript, "switched").context("on a CPU that was switched on")?;
    Ok(format!(
        "as a child {child}; host-wide {host}; on a CPU switched on {switched}; {waits}; {wall}; {rights}"
    ))
}

/// CAP_SYS_ADMIN (include/uapi/linux/capability.h).
const SYS_ADMIN: u32 = 21;

/// Debian's kernels ask for CAP_SYS_ADMIN to open events: the broker alone keeps it.
fn rights(text: &str) -> Result<String> {
    let level: i32 = text.lines().find_map(|line| line.trim().parse().ok()).context("a level")?;
    let (mut name, mut with, mut without) = ("", Vec::new(), Vec::new());
    for (field, value) in text.lines().filter_map(|line| line.split_once(':')) {
        match field {
            "Name" => name = value.trim(),
            "CapEff" | "CapPrm" => {
                let set = u64::from_str_radix(value.trim(), 16)?;
                if set >> SYS_ADMIN & 1 == 1 { with.push(name) } else { without.push(name) }
            }
            _ => {}
        }
    }
    ensure!(without.contains(&"strata"), "strata is not there or keeps CAP_SYS_ADMIN:\n{text}");
    let is_broker = |name: &&str| ["strata-keeper", "strata-broker"].contains(name);
    ensure!(with.iter().all(is_broker), "others have CAP_SYS_ADMIN:\n{text}");
    ensure!(with.contains(&"strata-broker") == (level >= 3), "at level {level}:\n{text}");
    Ok(format!(
        "at perf_event_paranoid {level} {} has CAP_SYS_ADMIN",
        match level {
            3.. => "the broker alone",
            _ => "no process",
        }
    ))
}

/// A program that sleeps for two seconds waits in the kernel's timer for as long. A guest's clock is
/// real, but what it runs is slow: where the budget of walking stacks is spent, the wait is chosen by
/// chance and counts for 2, 4 or 8.
fn waits(transcript: &Transcript) -> Result<String> {
    let stacks = profile::parse(text_of(transcript, "waits")?)?;
    let chain = ["hrtimer_nanosleep", "do_nanosleep", "schedule", "__schedule"];
    let sleeps = stacks.iter().filter(|stack| stack.has_chain(&chain));
    let seconds = sleeps.map(|stack| stack.count as f64 / 1e9).sum::<f64>();
    let texts = || stacks.iter().map(Stack::text).collect::<Vec<_>>().join("\n  ");
    let is_estimate = |weight: &f64| (1.9..3.0).contains(&(seconds / weight));
    let weight = [1.0, 2.0, 4.0, 8.0].into_iter().find(is_estimate);
    let Some(weight) = weight else {
        bail!("it slept for {seconds:.2} s:\n  {}", texts());
    };
    Ok(format!("{seconds:.2} s of waiting, chosen as one of {weight}"))
}

/// The same by passes over threads, which leave the scheduler's own functions out.
fn wall(transcript: &Transcript) -> Result<String> {
    let stacks = profile::parse(text_of(transcript, "wall")?)?;
    let sleeps = stacks.iter().filter(|stack| stack.has("hrtimer_nanosleep"));
    let seconds = sleeps.map(|stack| stack.count as f64 / 1e9).sum::<f64>();
    let texts = || stacks.iter().map(Stack::text).collect::<Vec<_>>().join("\n  ");
    ensure!((1.5..3.0).contains(&seconds), "it slept for {seconds:.2} s:\n  {}", texts());
    Ok(format!("{seconds:.2} s of wall-clock time asleep"))
}

fn text_of<'a>(transcript: &'a Transcript, name: &str) -> Result<&'a str> {
    let section =
        transcript.section(name).with_context(|| format!("the guest has no section '{name}'"))?;
    if section.status != 0 {
        bail!("exit status {}:\n{}", section.status, section.text);
    }
    Ok(&section.text)
}

fn recording(transcript: &Transcript, name: &str) -> Result<String> {
    let stacks = profile::parse(text_of(transcript, name)?)?;
    let in_leaf = |stack: &&Stack| LEAVES.iter().any(|(leaf, _)| stack.has(leaf));
    let leaves: Vec<&Stack> = stacks.iter().filter(in_leaf).collect();
    let total: u64 = leaves.iter().map(|stack| stack.count).sum();
    ensure!(total >= FEWEST_SAMPLES, "only {total} samples in the leaves");

    let complete: u64 =
        leaves.iter().filter(|stack| is_complete(stack)).map(|stack| stack.count).sum();
    if (complete as f64) < COMPLETE * total as f64 {
        let examples = leaves.iter().filter(|stack| !is_complete(stack)).take(3);
        let examples: Vec<String> = examples.map(|stack| stack.text()).collect();
        bail!("{complete} of {total} stacks are complete; not so:\n  {}", examples.join("\n  "));
    }
    for (leaf, expected) in LEAVES {
        let count: u64 =
            leaves.iter().filter(|stack| stack.has(leaf)).map(|stack| stack.count).sum();
        let share = count as f64 / total as f64;
        ensure!(
            (share - expected).abs() <= SHARE_TOLERANCE,
            "{leaf} has {:.1} % of the samples, not {:.0} %",
            share * 100.0,
            expected * 100.0
        );
    }

    let kernel_on_top = ["_start", "main", "read_zeros", "vfs_read"];
    let reading: u64 =
        stacks.iter().filter(|stack| stack.has("read_zeros")).map(|stack| stack.count).sum();
    let below_kernel: u64 = stacks
        .iter()
        .filter(|stack| stack.has_chain(&kernel_on_top))
        .map(|stack| stack.count)
        .sum();
    ensure!(reading > 0, "no sample of the program is in a system call");
    ensure!(
        below_kernel as f64 >= COMPLETE * 0.9 * reading as f64,
        "{below_kernel} of {reading} samples under read_zeros have the kernel on top of main"
    );
    Ok(format!(
        "{complete}/{total} stacks complete, {below_kernel}/{reading} with the kernel on top"
    ))
}

fn is_complete(stack: &Stack) -> bool {
    stack.has_chain(&CHAIN) && stack.number_of("descend") == RECURSION
}
