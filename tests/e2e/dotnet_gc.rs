//! Pauses of .NET programs for garbage collections: each is counted and timed, with its generation,
//! its reason and the stack of the thread that collected, and a program that does not notice.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use strata_tests::daemon::{Daemon, attaching_to};
use strata_tests::running::{Ended, Running};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::{Stack, Stacks};
use strata_tests::strata::{Recorded, Recording, record};
use strata_tests::{machine, stack_ends};

use crate::dotnet_running::{self, PATIENCE, each};

/// What the recording says once the bridge reports events.
const REPORTED: &str = "events of a .NET process are reported";

/// The target's methods that collect, by generation.
const METHODS: [&str; 3] =
    ["Shop.Collects.CollectYoung", "Shop.Collects.CollectMiddle", "Shop.Collects.CollectAll"];

/// A target that waits until a file exists.
struct Target {
    running: Running,
    folder: tempfile::TempDir,
}

impl Target {
    fn start(
        dotnet: &DotNet,
        version: Version,
        words: [&str; 2],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("strata-gc-").tempdir()?;
        let go = folder.path().join("go").to_string_lossy().into_owned();
        let [how, much] = words;
        let mut command = dotnet.program(version, "Collects", &[how, &go, much])?;
        command.envs(variables.iter().copied());
        let running = dotnet_running::start_command(command)?;
        Ok(Self { running, folder })
    }

    fn pid(&self) -> i32 {
        self.running.pid()
    }

    fn go(&self) -> Result<()> {
        Ok(std::fs::write(self.folder.path().join("go"), [])?)
    }

    /// Ends a storm, after a moment in which strata has left.
    fn end(&self) -> Result<()> {
        std::thread::sleep(Duration::from_secs(2));
        Ok(std::fs::write(self.folder.path().join("go.end"), [])?)
    }

    /// What it counted, by name, at its end.
    fn counts(self) -> Result<BTreeMap<String, u64>> {
        let Ended { status, stdout, stderr } = self.running.wait(PATIENCE)?;
        assert!(status.success(), "{status}\n{stdout}{stderr}");
        let words = stdout.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        words.map(|(name, count)| Ok((name.to_owned(), count.parse()?))).collect()
    }

    /// A recording of its pauses that has begun.
    fn recording(&self) -> Result<Recording> {
        let mut recording = record()?.pid(self.pid()).option("-e", "gc").flag("-v").start()?;
        recording.running().wait_for_log(REPORTED, PATIENCE)?;
        Ok(recording)
    }
}

/// The versions whose runtime reports pauses.
fn versions(dotnet: &DotNet) -> impl Iterator<Item = Version> {
    dotnet.versions().into_iter().filter(|version| *version != Version::V3_1)
}

fn label<'a>(stack: &'a Stack, name: &str) -> &'a str {
    stack.labels.get(name).map_or("", String::as_str)
}

fn sum(stacks: &Stacks) -> u64 {
    stacks.stacks.iter().map(|stack| stack.count).sum()
}

/// The pauses of a recording: how many, and for how long.
fn pauses(recorded: &Recorded) -> Result<(Stacks, Stacks)> {
    let profile = recorded.profile()?;
    Ok((profile.stacks_of("gc_count")?, profile.stacks_of("gc_pause")?))
}

#[test]
fn every_pause_has_its_generation_its_reason_its_length_and_the_stack_that_collected() -> Result<()>
{
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in versions(&dotnet) {
        let target = Target::start(&dotnet, version, ["counted", "60"], &[])?;
        let recording = target.recording()?;
        target.go()?;
        let own = target.counts()?;
        let recorded = recording.end()?;
        recorded.print_losses();
        let (counts, times) = pauses(&recorded)?;
        let mut all = 0;
        for (generation, method) in METHODS.into_iter().enumerate() {
            let of = |stack: &Stack| {
                stack.frames.iter().any(|frame| frame.name.starts_with(method))
                    && label(stack, "gc generation") == generation.to_string()
                    && label(stack, "gc reason") == "Induced"
                    && label(stack, "gc type") == "NonConcurrentGC"
            };
            let is_whole = |stack: &Stack| {
                let caller =
                    stack.frames.iter().any(|f| f.name.starts_with("Shop.Collects.Counted"));
                of(stack) && caller && stack.frames.last().is_some_and(stack_ends::is_thread_start)
            };
            let seen = sum(&counts.that(of));
            let (whole, time) = (sum(&counts.that(is_whole)), sum(&times.that(of)));
            let wanted = own[&format!("gen{generation}")];
            let measured = own[&format!("gen{generation}_time")];
            println!(
                "{version} generation {generation}: {wanted} wanted, {seen} seen, {whole} whole; \
                 {measured} ns around the calls, {time} ns paused"
            );
            assert_eq!((seen, whole), (wanted, wanted), "{version} generation {generation}");
            // The call is the pause and little more.
            assert!(time <= measured, "{version} generation {generation}");
            all += measured;
        }
        let (paused, time) = (own["pauses"], sum(&times));
        println!("{version}: {paused} ns by the runtime, {time} ns seen");
        // The runtime leaves out how long it takes to let the threads run again.
        assert!(time as f64 > paused as f64 * 0.95, "{version}");
        assert!(time > all / 2, "{version}");
        let numbers = counts.stacks.iter().map(|stack| label(stack, "gc number"));
        assert!({ numbers }.all(|number| number.parse::<u32>().is_ok()), "{version}");
        let summary = recorded.summary()?;
        let printed = &summary.0["kinds"]["gc"]["pauses"];
        assert_eq!(printed["pauses"], sum(&counts), "{version}: {printed}");
        let first = printed["functions"][0]["name"].as_str();
        assert!(first.is_some_and(|name| name.starts_with("Shop.Collects.Collect")), "{printed}");
    }
    Ok(())
}

/// The application goes on while the collector works: its threads stand still only at the beginning
/// and near the end.
#[test]
fn a_background_collection_makes_two_short_pauses() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in versions(&dotnet) {
        let target = Target::start(&dotnet, version, ["background", "20"], &[])?;
        let recording = target.recording()?;
        target.go()?;
        let own = target.counts()?;
        let recorded = recording.end()?;
        recorded.print_losses();
        let (counts, times) = pauses(&recorded)?;
        let in_background = |stack: &Stack| label(stack, "gc type") == "BackgroundGC";
        let counted = counts.that(in_background);
        let mut by_number: BTreeMap<&str, u64> = BTreeMap::new();
        for stack in &counted.stacks {
            *by_number.entry(label(stack, "gc number")).or_default() += stack.count;
        }
        let called = |stack: &Stack| {
            stack.frames.iter().any(|f| f.name.starts_with("Shop.Collects.CollectInBackground"))
        };
        let by_collector = |stack: &Stack| stack.comm() == ".NET BGC";
        let (first, second) = (sum(&counted.that(called)), sum(&counted.that(by_collector)));
        println!(
            "{version}: {own:?}, {by_number:?}, {first} of the caller, {second} of the collector, \
             {} ns",
            sum(&times)
        );
        // A collection that is wanted while another one is under way is none of its own.
        let collections = by_number.len() as u64;
        assert!(collections >= 1 && collections <= own["wanted"], "{version}");
        assert!(by_number.values().all(|pauses| *pauses == 2), "{version}");
        assert_eq!((first, second), (collections, collections), "{version}");
        assert!(counted.stacks.iter().all(|stack| label(stack, "gc generation") == "2"));
        assert!(sum(&times) as f64 > own["pauses"] as f64 * 0.9, "{version}");
    }
    Ok(())
}

/// The server collector has threads of its own: the pause is theirs.
#[test]
fn pauses_of_the_server_collector_are_those_of_its_threads() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in versions(&dotnet) {
        let server = [("DOTNET_gcServer", "1"), ("DOTNET_GCHeapCount", "2")];
        let target = Target::start(&dotnet, version, ["counted", "20"], &server)?;
        let recording = target.recording()?;
        target.go()?;
        let own = target.counts()?;
        let (counts, times) = pauses(&recording.end()?)?;
        let of_server = |stack: &Stack| stack.comm() == ".NET Server GC";
        println!("{version}: {own:?}, {} seen, {} ns", sum(&counts), sum(&times));
        for generation in 0..3 {
            let of = |stack: &Stack| {
                of_server(stack) && label(stack, "gc generation") == generation.to_string()
            };
            let wanted = own[&format!("gen{generation}")];
            assert_eq!(sum(&counts.that(of)), wanted, "{version} generation {generation}");
        }
    }
    Ok(())
}

/// The server collector of 9 and 10 adapts its number of heaps to the program.
#[test]
fn a_change_of_the_number_of_heaps_is_no_collection() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut changes = 0;
    for version in [Version::V9, Version::V10] {
        let server = [("DOTNET_gcServer", "1")];
        let target = Target::start(&dotnet, version, ["storm", "20"], &server)?;
        let recording = target.recording()?;
        target.go()?;
        std::thread::sleep(Duration::from_secs(6));
        target.end()?;
        target.counts()?;
        let (counts, _) = pauses(&recording.end()?)?;
        let is_change = |stack: &Stack| label(stack, "gc type") == "HeapCountChange";
        let has = |stack: &Stack, name: &str| !label(stack, name).is_empty();
        for stack in &counts.stacks {
            // In a storm there is no room for the numbers of all collections.
            let is_collection = !is_change(stack);
            let labels = ["gc generation", "gc reason"].map(|name| has(stack, name));
            assert_eq!(labels, [is_collection; 2], "{}", stack.line());
            assert!(is_collection || !has(stack, "gc number"), "{}", stack.line());
        }
        println!("{version}: {} of {}", sum(&counts.that(is_change)), sum(&counts));
        changes += sum(&counts.that(is_change));
    }
    assert!(changes > 0, "the number of heaps did not change");
    Ok(())
}

/// Recordings that come and go, some killed, while the program allocates and collects: it goes on.
#[test]
fn recordings_come_and_go_in_the_middle_of_a_storm_of_collections() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let (rounds, seconds) = machine::short_or_long((4, "110".to_owned()), (20, "600".to_owned()));
    each(&versions(&dotnet).collect::<Vec<_>>(), 2, |version, _| {
        let mut target = Target::start(&dotnet, version, ["storm", &seconds], &[])?;
        target.go()?;
        for round in 0..rounds {
            let mut recording = target.recording()?;
            std::thread::sleep(Duration::from_millis(300));
            if round % 2 == 0 {
                recording.running().signal(Signal::KILL)?;
                drop(recording);
                continue;
            }
            recording.running().signal(Signal::INT)?;
            let recorded = recording.finish()?;
            let (counts, times) = pauses(&recorded)?;
            println!("{version}, round {round}: {} seen, {} ns", sum(&counts), sum(&times));
            assert!(sum(&counts) > 0, "{version}");
            assert!(counts.stacks.iter().all(|stack| !label(stack, "gc generation").is_empty()));
            assert!(target.running.is_alive(), "{version}");
        }
        target.end()?;
        assert!(target.running.is_alive(), "{version}");
        let counted = target.counts()?;
        println!("{version}: {counted:?}");
        assert!(counted.values().all(|rounds| *rounds > 10), "{version}");
        Ok(())
    })
}

#[test]
fn a_daemon_keeps_the_pauses_that_a_rule_asks_for() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&format!(
        "{}[[rule]]\nmatch = {{ env = {{ DD_SERVICE = \"collecting\" }} }}\n\
         types = [\"gc\"]\n",
        attaching_to(&["collecting"])
    ))?;
    daemon.start()?;
    let variables = [("DD_SERVICE", "collecting")];
    let target = Target::start(&dotnet, Version::V9, ["counted", "20"], &variables)?;
    let reported = format!("{REPORTED} pid={}", target.running.pid());
    daemon.running()?.wait_for_log(&reported, PATIENCE)?;
    target.go()?;
    let own = target.counts()?;
    daemon.end()?;
    let stacks = daemon.kept("collecting", "gc")?;
    let time: u64 = stacks.iter().map(|stack| stack.count).sum();
    println!("{own:?}: {time} ns kept");
    // Folded stacks are in nanoseconds, the column that is shown first.
    let measured: u64 = (0..3).map(|generation| own[&format!("gen{generation}_time")]).sum();
    assert!(time as f64 > own["pauses"] as f64 * 0.95 && time <= measured);
    Ok(())
}
