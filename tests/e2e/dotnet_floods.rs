//! .NET programs that allocate so fast that the bridge has events of allocations on for part of the time
//! only: sums are right all the same, whether the program does so all the time or in bursts.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use strata_tests::event_sessions::{self, EventSession, Provider};
use strata_tests::machine;
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::{Stack, Stacks};
use strata_tests::strata::Recorded;

use crate::dotnet_events::{Target, of_method, recording_of};
use crate::dotnet_running;

/// The classes that the target allocates: the name in its own count, the method, the class.
const MADE: [(&str, &str, &str); 3] = [
    ("small", "Shop.Floods.MakeSmall", "Shop.Floods+Small"),
    ("middle", "Shop.Floods.MakeMiddle", "System.Byte[]"),
    ("large", "Shop.Floods.MakeLarge", "System.Int64[]"),
];

/// How a program allocates: for so long, in bursts of so many milliseconds with as many of rest between
/// them; in one of so many rounds something is kept.
#[derive(Clone, Copy)]
struct Pattern {
    seconds: u32,
    on: u32,
    off: u32,
    keep: u32,
}

/// What the program counted, and the recording.
struct Seen {
    own: BTreeMap<String, u64>,
    recorded: Recorded,
}

impl Seen {
    fn of(dotnet: &DotNet, version: Version, kinds: &str, pattern: Pattern) -> Result<Self> {
        Self::beside(dotnet, version, kinds, pattern, None)
    }

    /// Beside another tool's session.
    fn beside(
        dotnet: &DotNet,
        version: Version,
        kinds: &str,
        pattern: Pattern,
        tool: Option<Provider>,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("strata-floods-").tempdir()?;
        let go = folder.path().join("go").to_string_lossy().into_owned();
        let words = [pattern.seconds, pattern.on, pattern.off, pattern.keep].map(|n| n.to_string());
        let [seconds, on, off, keep] = words.each_ref();
        let words = [&go, seconds, on, off, keep].map(String::as_str);
        let running = dotnet_running::start(dotnet, version, "Floods", &words)?;
        let target = Target::of(running, folder);
        if let Some(provider) = tool {
            let session = EventSession::open(target.pid(), provider)?;
            session.context("the runtime refuses a session")?.read()?;
        }
        let recording = recording_of(&target, kinds, |record| record)?;
        target.go()?;
        let own = target.counts()?;
        let recorded = recording.end()?;
        recorded.print_losses();
        Ok(Self { own, recorded })
    }

    fn windows(&self) -> Result<u64> {
        let summary = self.recorded.summary()?;
        summary.0["clr"]["allocation_windows"].as_u64().context("a number of windows")
    }
}

fn sums(stacks: &Stacks, method: &str, class: &str) -> u64 {
    let is_of =
        |stack: &Stack| stack.labels.get("allocation class").is_some_and(|label| label == class);
    of_method(&stacks.that(is_of), method).0
}

fn error(seen: u64, own: u64) -> f64 {
    seen as f64 / own as f64 - 1.0
}

/// Records allocations: the largest error of the bytes in all, and of each class its number and bytes.
/// Returns the number of windows.
fn check_sums(version: Version, pattern: Pattern, in_all: f64, of_class: f64) -> Result<u64> {
    let dotnet = dotnet()?;
    let seen = Seen::of(&dotnet, version, "allocations", pattern)?;
    let (own, windows) = (&seen.own, seen.windows()?);
    let profile = seen.recorded.profile()?;
    let (objects, bytes) = (profile.stacks_of("alloc_samples")?, profile.stacks_of("alloc_size")?);
    let (mut all_seen, mut all_made) = (0, 0);
    let mut errors = Vec::new();
    for (name, method, class) in MADE {
        let (count, size) = (sums(&objects, method, class), sums(&bytes, method, class));
        let made = own[&format!("{name}_bytes")];
        all_seen += size;
        all_made += made;
        errors.extend([error(count, own[name]), error(size, made)]);
    }
    let rate = all_made as f64 / own["milliseconds"] as f64 / 1e6;
    println!(
        "{version} {} ms of {}: {rate:.2} GB/s, {} collections, {windows} windows, bytes {:+.3}, \
         classes {errors:.3?}",
        pattern.on,
        pattern.on + pattern.off,
        own["collections"],
        error(all_seen, all_made),
    );
    assert!(error(all_seen, all_made).abs() < in_all, "{version}");
    assert!(errors.iter().all(|error| error.abs() < of_class), "{version}: {errors:?}");
    Ok(windows)
}

/// What .NET 8 and 9 count of each class of a mixture is off by some percent, with or without windows.
fn of_class(version: Version, error: f64) -> f64 {
    if version == Version::V10 { error } else { error + 0.1 }
}

/// The versions that a test floods: `some` of them in the short form. Each has a short flood in one test at
/// least; 8 and 9 count in the same way.
fn versions(dotnet: &DotNet, some: &[Version]) -> impl Iterator<Item = Version> {
    let is_wanted = |version: &Version| machine::is_long() || some.contains(version);
    dotnet.versions().into_iter().filter(|version| *version != Version::V3_1).filter(is_wanted)
}

#[test]
fn a_flood_of_allocations_is_recorded_in_windows_and_its_sums_are_right() -> Result<()> {
    let _machine = machine::alone()?;
    for version in versions(&dotnet()?, &[Version::V8, Version::V10]) {
        let pattern = Pattern { seconds: 15, on: 1_000, off: 0, keep: 0 };
        let windows = check_sums(version, pattern, 0.07, of_class(version, 0.1))?;
        assert!(windows > 10, "{version}");
    }
    Ok(())
}

#[test]
fn sums_of_allocations_in_bursts_are_right() -> Result<()> {
    let _machine = machine::alone()?;
    let patterns = [(50, 50), (125, 125)];
    for (number, version) in versions(&dotnet()?, &[Version::V9, Version::V10]).enumerate() {
        let some = patterns.get(number % 2..=number % 2).unwrap_or_default();
        for &(on, off) in machine::short_or_long(some, &patterns) {
            let pattern = Pattern { seconds: 20, on, off, keep: 0 };
            let windows = check_sums(version, pattern, 0.1, of_class(version, 0.13))?;
            assert!(windows > 10, "{version}");
        }
    }
    Ok(())
}

#[test]
fn a_program_that_floods_and_rests_in_turn_has_windows_only_while_it_floods() -> Result<()> {
    let _machine = machine::alone()?;
    for version in versions(&dotnet()?, &[Version::V9]) {
        let pattern = Pattern { seconds: 24, on: 3_000, off: 3_000, keep: 0 };
        let windows = check_sums(version, pattern, 0.1, of_class(version, 0.13))?;
        assert!(windows > 10, "{version}");
    }
    Ok(())
}

/// A tool for which the runtime collects at each change of a session: windows are given up, and their sums
/// are those of all events.
#[test]
fn a_flood_beside_a_tool_that_collects_is_recorded_without_collections_for_each_window()
-> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    for version in versions(&dotnet, &[Version::V8, Version::V10]) {
        let pattern = Pattern { seconds: 12, on: 1_000, off: 0, keep: 0 };
        let tool = Some(event_sessions::COLLECTING);
        let seen = Seen::beside(&dotnet, version, "allocations,gc", pattern, tool)?;
        let profile = seen.recorded.profile()?;
        let is_induced =
            |stack: &Stack| stack.labels.get("gc reason").is_some_and(|reason| reason == "Induced");
        let induced: u64 = profile
            .stacks_of("gc_count")?
            .that(is_induced)
            .stacks
            .iter()
            .map(|stack| stack.count)
            .sum();
        let bytes = profile.stacks_of("alloc_size")?;
        let all_seen: u64 = MADE.iter().map(|(_, method, class)| sums(&bytes, method, class)).sum();
        let all_made: u64 = MADE.iter().map(|(name, ..)| seen.own[&format!("{name}_bytes")]).sum();
        let windows = seen.windows()?;
        println!(
            "{version}: {induced} collections that were asked for, {windows} windows, bytes {:+.3}",
            error(all_seen, all_made)
        );
        // One or two for the first session, and a few for those that show it.
        assert!((1..=8).contains(&induced), "{version}: {induced}");
        assert!(error(all_seen, all_made).abs() < 0.1, "{version}");
    }
    Ok(())
}

#[test]
fn what_a_flooding_program_keeps_is_in_use() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    for version in versions(&dotnet, &[Version::V10]) {
        let pattern = Pattern { seconds: 12, on: 1_000, off: 0, keep: 4 };
        let seen = Seen::of(&dotnet, version, "heap", pattern)?;
        let windows = seen.windows()?;
        let profile = seen.recorded.profile()?;
        let bytes = profile.stacks_of("inuse_space")?;
        let kept = sums(&bytes, "Shop.Floods.Keep", "System.Byte[]");
        let own = seen.own["kept_bytes"];
        let churned: u64 = MADE.iter().map(|(_, method, class)| sums(&bytes, method, class)).sum();
        println!("{version}: {kept} of {own} bytes, {churned} of others, {windows} windows");
        assert!(windows > 10, "{version}");
        // Of some twenty windows, with sixteen times their own time each, the sums scatter by 8 %.
        assert!(error(kept, own).abs() < 0.3, "{version}: {kept} of {own}");
        assert!((churned as f64) < own as f64 * 0.05, "{version}: {churned}");
    }
    Ok(())
}
