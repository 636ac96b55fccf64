//! Events of .NET runtimes where strata may not have a probe in a process: without CAP_SYS_ADMIN. Their
//! stacks are walked by the runtime, and have the managed frames that a probe's have.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use rustix::process::Signal;
use strata_tests::machine;
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::{Stack, Stacks};
use strata_tests::strata::{Record, Recorded};

use crate::dotnet_events::{Target, WAYS, of_method, recording_of, thrown, with_events};
use crate::dotnet_heap::{self, KEPT, LOOKED};
use crate::dotnet_running::{each, listed};

/// What probes of processes take.
fn without_probes(record: Record) -> Record {
    record.without_capability("sys_admin")
}

fn label<'a>(stack: &'a Stack, name: &str) -> &'a str {
    stack.labels.get(name).map_or("", String::as_str)
}

/// A function of the runtime that throws by managed code of its own, as .NET 9 does: its walk leaves
/// these out.
fn throws(name: &str) -> bool {
    [
        "System.Runtime.EH.",
        "System.Runtime.StackFrameIterator.",
        "System.Runtime.ExceptionServices.",
    ]
    .iter()
    .any(|of| name.starts_with(of))
}

/// The managed frames of stacks, and how often each is there.
fn managed(stacks: &Stacks) -> BTreeMap<(String, Vec<String>), u64> {
    let mut counts = BTreeMap::new();
    for stack in &stacks.stacks {
        let frames = stack.frames.iter().filter(|frame| frame.file.ends_with(".dll"));
        let names = frames.map(|frame| frame.name.clone());
        let names = names.skip_while(|name| throws(name)).collect();
        let type_name = label(stack, "exception type").to_owned();
        *counts.entry((type_name, names)).or_insert(0) += stack.count;
    }
    counts
}

/// Every stack is whole, has managed frames only, and says so; so does the summary.
fn check(version: Version, recorded: &Recorded, pid: i32, stacks: &Stacks) -> Result<()> {
    let summary = recorded.summary()?;
    let only = &summary.0["clr"]["managed_frames_only"][0];
    println!("{version}: {only}");
    assert_eq!(only["pid"], pid, "{version}");
    let reason = only["reason"].as_str().context("no reason")?;
    assert!(reason.contains("CAP_SYS_ADMIN"), "{version}: {reason}");
    assert!(!stacks.stacks.is_empty(), "{version}");
    for stack in &stacks.stacks {
        assert_eq!(label(stack, "frames"), "managed only", "{version}: {stack:?}");
        // A thread of the runtime's own may have no managed frame, and its walk fails.
        let is_own = label(stack, "comm").starts_with(".NET ");
        let outside = stack.frames.iter().find(|frame| !frame.file.ends_with(".dll"));
        let outside = outside.filter(|frame| !(is_own && frame.name == "[incomplete]"));
        assert!(outside.is_none(), "{version}: {outside:?} of {stack:?}");
    }
    Ok(())
}

/// A recording with a probe reads beside the one without: both have each exception, with the same
/// managed frames.
#[test]
fn without_a_probe_exceptions_have_the_managed_frames_that_they_have_with_one() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    each(&dotnet.versions(), 2, |version, _| {
        let target = Target::start(&dotnet, version, "paced", "1000")?;
        let pid = target.pid();
        let without = recording_of(&target, "exceptions", without_probes)?;
        let bridge = listed(pid)?.context("it is not listed")?["bridge"].to_string();
        println!("{version}: {bridge}");
        assert!(bridge.contains("reports exceptions, with managed frames only"), "{version}");
        let with = recording_of(&target, "exceptions", |record| record)?;
        target.go()?;
        let own = target.counts()?;
        let (without, with) = (without.end()?, with.end()?);
        without.print_losses();
        let (stacks, whole) = (without.stacks()?, with.stacks()?);
        check(version, &without, pid, &stacks)?;
        assert!(whole.stacks.iter().all(|stack| label(stack, "frames").is_empty()), "{version}");
        for (name, type_name, method) in WAYS {
            let (seen, truth) = (thrown(&stacks, type_name), own[name]);
            println!("{version} {type_name}: {truth} thrown, {seen} seen");
            if seen != truth {
                println!("{version}: {}", without.summary()?.0["clr"]);
                println!("{version}: {}", with.summary()?.0["clr"]);
            }
            assert_eq!((seen, thrown(&whole, type_name)), (truth, truth), "{version} {type_name}");
            let calls = |stack: &Stack| {
                ["Shop.Throws.Paced", method]
                    .iter()
                    .all(|method| stack.frames.iter().any(|frame| frame.name.starts_with(method)))
            };
            let is_message = |stack: &Stack| !label(stack, "exception message").is_empty();
            let is_of = |stack: &Stack| label(stack, "exception type") == type_name;
            for (how, stacks) in [("without", &stacks), ("with", &whole)] {
                for stack in stacks.that(|stack| is_of(stack) && !calls(stack)).stacks {
                    println!("{version}, {how} a probe, not complete: {stack:#?}");
                }
            }
            let complete = stacks.that(calls);
            assert_eq!(thrown(&complete, type_name), truth, "{version} {type_name}");
            let expected = if name == "missing" { 0 } else { truth };
            assert_eq!(thrown(&complete.that(is_message), type_name), expected, "{version}");
        }
        let (stacks, whole) = (managed(&stacks), managed(&whole));
        for (stack, count) in
            stacks.iter().filter(|(stack, count)| whole.get(*stack) != Some(*count))
        {
            println!("{version}: {count} without, {:?} with a probe: {stack:#?}", whole.get(stack));
        }
        for (stack, count) in whole.iter().filter(|(stack, _)| !stacks.contains_key(*stack)) {
            println!("{version}: none without, {count} with a probe: {stack:#?}");
        }
        assert_eq!(stacks, whole, "{version}");
        Ok(())
    })
}

/// A recording without a probe, until the target ends; what it counted.
fn recorded(target: Target, kind: &str) -> Result<(BTreeMap<String, u64>, Recorded)> {
    let recording = recording_of(&target, kind, without_probes)?;
    // The bridge has the wish, and opens its session.
    std::thread::sleep(LOOKED);
    target.go()?;
    let own = target.counts()?;
    let recorded = recording.end()?;
    recorded.print_losses();
    Ok((own, recorded))
}

#[test]
fn without_a_probe_waits_allocations_and_pauses_are_as_many_and_as_long() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let parts: [fn(&DotNet, Version) -> Result<()>; 4] =
        [waits_for_locks, allocations, pauses, waits_for_handles];
    let cases: Vec<_> =
        with_events(&dotnet).flat_map(|version| parts.map(|part| (version, part))).collect();
    each(&cases, 6, |(version, part), _| part(&dotnet, version))
}

fn waits_for_locks(dotnet: &DotNet, version: Version) -> Result<()> {
    let target = Target::start_way(dotnet, version, "Blocks", "held", "20")?;
    let pid = target.pid();
    let (own, recorded) = recorded(target, "locks")?;
    let profile = recorded.profile()?;
    let counts = profile.stacks_of("lock_count")?;
    check(version, &recorded, pid, &counts)?;
    let (count, _) = of_method(&counts, "Shop.Blocks.EnterHeld");
    let (time, _) = of_method(&profile.stacks_of("lock_time")?, "Shop.Blocks.EnterHeld");
    println!("{version}: {own:?}, {count} seen, {time} ns");
    assert!(count.abs_diff(20) <= 1, "{version}");
    assert!((time as f64 / own["nanoseconds"] as f64 - 1.0).abs() < 0.05, "{version}");
    let is_named = |stack: &Stack| label(stack, "blocking thread name") == "holder";
    for stack in counts.that(|stack| !is_named(stack)).stacks {
        println!("{version}: of another one: {} × {:?}", stack.count, stack.labels);
    }
    let by_holder = counts.that(is_named);
    assert_eq!(of_method(&by_holder, "Shop.Blocks.EnterHeld").0, count, "{version}");
    Ok(())
}

fn allocations(dotnet: &DotNet, version: Version) -> Result<()> {
    let target = Target::start_program(dotnet, version, "Allocates", "60000")?;
    let pid = target.pid();
    let (own, recorded) = recorded(target, "allocations")?;
    let bytes = recorded.profile()?.stacks_of("alloc_size")?;
    check(version, &recorded, pid, &bytes)?;
    for (name, method) in [
        ("small", "Shop.Allocates.MakeSmall"),
        ("middle", "Shop.Allocates.MakeMiddle"),
        ("large", "Shop.Allocates.MakeLarge"),
    ] {
        let (size, made) = (of_method(&bytes, method).0, own[&format!("{name}_bytes")]);
        println!("{version} {name}: {made} bytes, {size} seen");
        assert!((size as f64 / made as f64 - 1.0).abs() < 0.25, "{version} {name}");
    }
    Ok(())
}

fn pauses(dotnet: &DotNet, version: Version) -> Result<()> {
    let target = Target::start_way(dotnet, version, "Collects", "counted", "60")?;
    let pid = target.pid();
    let (own, recorded) = recorded(target, "gc")?;
    let profile = recorded.profile()?;
    let counts = profile.stacks_of("gc_count")?;
    check(version, &recorded, pid, &counts)?;
    for (generation, method) in
        ["CollectYoung", "CollectMiddle", "CollectAll"].into_iter().enumerate()
    {
        let is_of = |stack: &Stack| label(stack, "gc generation") == generation.to_string();
        let (seen, _) = of_method(&counts.that(is_of), &format!("Shop.Collects.{method}"));
        println!("{version} generation {generation}: {seen} seen");
        assert_eq!(seen, own[&format!("gen{generation}")], "{version} generation {generation}");
    }
    Ok(())
}

fn waits_for_handles(dotnet: &DotNet, version: Version) -> Result<()> {
    // It reports none.
    if version == Version::V8 {
        return Ok(());
    }
    let target = Target::start_way(dotnet, version, "Waits", "ways", "20")?;
    let pid = target.pid();
    let (own, recorded) = recorded(target, "wait_handles")?;
    let counts = recorded.profile()?.stacks_of("wait_handle_count")?;
    check(version, &recorded, pid, &counts)?;
    for (name, method) in [
        ("manual", "Shop.Waits.WaitManual"),
        ("semaphore", "Shop.Waits.WaitSemaphore"),
        ("task", "Shop.Waits.WaitTask"),
    ] {
        let (count, _) = of_method(&counts, method);
        println!("{version} {name}: {count} seen");
        assert_eq!(count, own[name], "{version} {name}");
    }
    Ok(())
}

#[test]
fn without_a_probe_objects_in_use_have_their_sizes_and_their_stacks() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let versions: Vec<_> = with_events(&dotnet).collect();
    each(&versions, 2, |version, _| {
        let mut target = dotnet_heap::Target::start(&dotnet, version, ["kept", "150"], &[])?;
        let mut recording = target.recording_as(without_probes)?;
        target.keep()?;
        std::thread::sleep(LOOKED);
        recording.running().signal(Signal::INT)?;
        let recorded = recording.finish()?;
        recorded.print_losses();
        let (_, space) = dotnet_heap::in_use(&recorded)?;
        let own = target.counts()?;
        for (class, method, name) in KEPT {
            let is_of = |stack: &Stack| {
                label(stack, "allocation class") == class
                    && label(stack, "frames") == "managed only"
            };
            let (bytes, truth) = (of_method(&space.that(is_of), method).0, own[name]);
            println!("{version} {name}: {truth} bytes by itself, {bytes} seen");
            assert!((bytes as f64 / truth as f64 - 1.0).abs() < 0.1, "{version} {name}");
        }
        Ok(())
    })
}

/// One that throws without end is sampled as with a probe: its totals are right, and so is what is
/// stated to be lost.
#[test]
fn without_a_probe_a_flood_of_exceptions_is_sampled_and_its_totals_are_right() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let is_wanted = |version: &Version| machine::is_long() || !matches!(*version, Version::V8);
    for version in dotnet.versions().into_iter().filter(is_wanted) {
        let target = Target::start(&dotnet, version, "flood", "5")?;
        let recording = recording_of(&target, "exceptions", without_probes)?;
        target.go()?;
        let own = target.counts()?;
        let recorded = recording.end()?;
        recorded.print_losses();
        let lost = recorded.summary()?.losses_named(&["exceptions_dropped"]);
        let stacks = recorded.stacks()?;
        let sums = WAYS.map(|(name, type_name, _)| (own[name], thrown(&stacks, type_name)));
        let (all, seen) =
            sums.iter().fold((0, 0), |(all, seen), (own, one)| (all + own, seen + one));
        println!("{version}: {sums:?}, {lost} lost");
        assert!(all > 20_000, "{version}: no flood");
        assert!(((seen + lost) as f64 / all as f64 - 1.0).abs() < 0.05, "{version}");
    }
    Ok(())
}
