//! Waits for handles of .NET programs, from .NET 9 on.

use std::collections::BTreeMap;

use anyhow::Result;
use strata_tests::machine;
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::Stack;
use strata_tests::strata::{Recorded, record};

use crate::dotnet_events::{Target, of_method, recording_of};

/// The target's methods that wait: the name of the counter that it prints, the method, the source that
/// the runtime states.
const WAYS: [(&str, &str, &str); 5] = [
    ("manual", "Shop.Waits.WaitManual", "Unknown"),
    ("automatic", "Shop.Waits.WaitAutomatic", "Unknown"),
    ("semaphore", "Shop.Waits.WaitSemaphore", "Unknown"),
    ("slim", "Shop.Waits.WaitSlim", "MonitorWait"),
    ("task", "Shop.Waits.WaitTask", "MonitorWait"),
];
const ROUNDS: u64 = 20;

fn with_waits(dotnet: &DotNet) -> impl Iterator<Item = Version> {
    dotnet.versions().into_iter().filter(|version| matches!(version, Version::V9 | Version::V10))
}

/// What the target counted until its end, and the recording of its waits.
fn waited(
    dotnet: &DotNet,
    version: Version,
    how: &str,
    much: &str,
) -> Result<(BTreeMap<String, u64>, Recorded)> {
    let target = Target::start_way(dotnet, version, "Waits", how, much)?;
    let recording = recording_of(&target, "wait_handles", |record| record)?;
    target.go()?;
    let own = target.counts()?;
    let recorded = recording.end()?;
    recorded.print_losses();
    Ok((own, recorded))
}

fn has(stack: &Stack, label: &str, value: &str) -> bool {
    stack.labels.get(label).is_some_and(|one| one == value)
}

#[test]
fn waits_for_handles_are_counted_and_timed_with_their_source_and_their_whole_stack() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    for version in with_waits(&dotnet) {
        let (own, recorded) = waited(&dotnet, version, "ways", &ROUNDS.to_string())?;
        let profile = recorded.profile()?;
        let counts = profile.stacks_of("wait_handle_count")?;
        let times = profile.stacks_of("wait_handle_time")?;
        for (name, method, source) in WAYS {
            let (count, whole) = of_method(&counts, method);
            let (time, _) = of_method(&times, method);
            let measured = own[&format!("{name}_ns")];
            println!("{version} {name}: {count} seen, {whole} whole, {time} of {measured} ns");
            assert_eq!((own[name], count, whole), (ROUNDS, ROUNDS, ROUNDS), "{version} {name}");
            assert!((time as f64 / measured as f64 - 1.0).abs() < 0.1, "{version} {name}");
            let is_labelled = |stack: &Stack| {
                has(stack, "wait source", source) && has(stack, "Duration bucket", "100 - 499 ms")
            };
            let (labelled, _) = of_method(&counts.that(is_labelled), method);
            assert_eq!(labelled, count, "{version} {name}");
        }
        // These waits had begun before the recording.
        assert_eq!(of_method(&counts, "Shop.Waits.Through").0, 0, "{version}");
        let summary = recorded.summary()?;
        let waits = &summary.0["kinds"]["wait_handles"];
        println!("{waits}");
        let listed = |of: &serde_json::Value, key: &str, value: &str| {
            of.as_array().is_some_and(|all| {
                all.iter().any(|one| one[key].as_str().is_some_and(|name| name.starts_with(value)))
            })
        };
        for (_, method, source) in WAYS {
            assert!(listed(&waits["waits"]["functions"], "name", method), "{version} {method}");
            assert!(listed(&waits["by_label"]["wait source"], "value", source), "{version}");
        }
        assert_eq!(summary.losses_named(&["wait_handles_dropped"]), 0, "{version}");
    }
    Ok(())
}

#[test]
fn a_flood_of_waits_for_handles_is_sampled_and_its_sums_are_right() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    for version in with_waits(&dotnet) {
        let (own, recorded) = waited(&dotnet, version, "flood", "5")?;
        let profile = recorded.profile()?;
        let method = "Shop.Waits.WaitOften";
        let (count, _) = of_method(&profile.stacks_of("wait_handle_count")?, method);
        let (time, _) = of_method(&profile.stacks_of("wait_handle_time")?, method);
        let records = &recorded.summary()?.0["bpf"]["clr_events"];
        println!("{version}: {own:?}, {count} seen, {time} ns, {records} records");
        assert!(own["waits"] > 20_000, "{version}: no flood");
        assert!(records.as_u64().is_some_and(|records| records < own["waits"] / 2), "{version}");
        assert!((count as f64 / own["waits"] as f64 - 1.0).abs() < 0.05, "{version}");
        assert!((time as f64 / own["nanoseconds"] as f64 - 1.0).abs() < 0.1, "{version}");
    }
    Ok(())
}

/// .NET 8 does not report such waits: the recording says so, and has the other kinds.
#[test]
fn a_runtime_that_reports_no_waits_for_handles_is_named() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let target = Target::start_way(&dotnet, Version::V8, "Waits", "ways", "1")?;
    let kinds = "cpu,locks,wait_handles";
    let recorded = record()?.pid(target.pid()).option("-e", kinds).seconds(4.0).run()?.summary()?;
    let without = &recorded.0["clr"]["without_events"][0];
    println!("{without}");
    assert_eq!(without["pid"], target.pid());
    let reason = without["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("wait_handles") && !reason.contains("locks"), "{reason}");
    Ok(())
}
