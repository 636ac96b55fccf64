//! The runtime's own code below and between methods: stubs and helpers have names, and end no stack.

use std::collections::BTreeMap;

use anyhow::Result;
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::{Frame, Stacks};
use strata_tests::{machine, strata};

use crate::dotnet_running::{FREQUENCY, Wrongs, print_examples, start};

const NAMELESS: &str = "(stub) runtime";

/// How often each stub is the innermost frame, the commonest first.
fn innermost_stubs(stacks: &Stacks) -> Vec<(String, u64)> {
    let mut counts = BTreeMap::<&str, u64>::new();
    for stack in &stacks.stacks {
        if let Some(leaf) = stack.leaf().filter(|leaf| leaf.name.starts_with("(stub)")) {
            *counts.entry(&leaf.name).or_default() += stack.count;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().map(|(name, n)| (name.to_string(), n)).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

fn check_stubs(dotnet: &DotNet, version: Version, wrongs: &mut Wrongs) -> Result<()> {
    let app = start(dotnet, version, "Stubs", &["90"])?;
    let recording = strata::record()?.frequency(FREQUENCY).pid(app.pid()).start()?;
    let recorded = recording.finish_when_used(&[app.pid()], 6.0)?;
    let stacks = recorded.stacks()?.of_pid(app.pid());
    let stubs = innermost_stubs(&stacks);
    let all: u64 = stubs.iter().map(|(_, count)| count).sum();
    let nameless = stacks.share_of_leaf(NAMELESS);
    let jit = |frame: &Frame| frame.name.starts_with("[jit]");
    let unknown = stacks.share_that(|stack| stack.frames.iter().any(jit));
    let short =
        |stack: &strata_tests::stacks::Stack| stack.frames.len() <= 2 && !stack.has("[incomplete]");
    println!(
        "{version}: {} samples, {all} in stubs, {:.3} % nameless, {:.3} % with [jit]: {stubs:?}",
        stacks.total(),
        100.0 * nameless,
        100.0 * unknown,
    );
    println!("  {:?}", stacks.completeness());
    print_examples(&stacks.that(|stack| stack.has(NAMELESS)), 3);
    print_examples(&stacks.that(|stack| stack.frames.iter().any(jit)), 3);
    print_examples(&stacks.that(|stack| stack.has("[incomplete]")), 3);
    wrongs.unless(all * 100 > stacks.total() * 2, || format!("{version}: {all} in stubs"));
    wrongs.unless(nameless <= 0.001, || format!("{version}: {nameless} nameless"));
    wrongs.unless(unknown <= 0.001, || format!("{version}: {unknown} with [jit]"));
    wrongs.unless(stacks.share_that(short) == 0.0, || format!("{version}: ends in a stub"));
    wrongs.unless(stacks.completeness().fraction() >= 0.998, || {
        format!("{version}: {:?}", stacks.completeness())
    });
    Ok(())
}

#[test]
fn stubs_and_helpers_of_the_runtime_have_names() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        check_stubs(&dotnet, version, &mut wrongs)?;
    }
    wrongs.none();
    Ok(())
}
