//! Objects in use of .NET programs: a leak of known size is seen with its types and stacks, what is
//! freed leaves, what is only passing never shows, a snapshot is never added to another one, and a
//! program does not notice.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use strata_tests::daemon::{Daemon, attaching_to};
use strata_tests::running::{Ended, Running, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::{Stack, Stacks};
use strata_tests::strata::{Record, Recorded, Recording, record};
use strata_tests::{machine, stack_ends};

use crate::dotnet_running::{self, PATIENCE};

/// What the recording says once the bridge reports events.
const REPORTED: &str = "events of a .NET process are reported";

/// The bridge has got the wish then, and opens a session of events, which takes .NET 10 a tenth of a
/// second the first time.
const OPENED: Duration = Duration::from_secs(2);

/// The bridge looks at its objects about once a second, after a collection.
pub const LOOKED: Duration = Duration::from_secs(4);

/// What the target keeps: the class, the method that allocates it, and its name in the program's
/// own count.
pub const KEPT: [(&str, &str, &str); 4] = [
    ("Shop.Keeps+Node", "Shop.Keeps.LeakNodes", "nodes"),
    ("Shop.Keeps+Temporary", "Shop.Keeps.KeepForNow", "temporary"),
    ("System.Byte[]", "Shop.Keeps.LeakLarge", "large"),
    ("System.Byte[]", "Shop.Keeps.LeakArrays", "arrays"),
];

/// A target that does what files in its folder tell it to.
pub struct Target {
    running: Running,
    folder: tempfile::TempDir,
}

impl Target {
    pub fn start(
        dotnet: &DotNet,
        version: Version,
        words: [&str; 2],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("strata-heap-").tempdir()?;
        let place = folder.path().to_string_lossy().into_owned();
        let [how, much] = words;
        let mut command = dotnet.program(version, "Keeps", &[how, &place, much])?;
        command.envs(variables.iter().copied());
        let running = dotnet_running::start_command(command)?;
        Ok(Self { running, folder })
    }

    fn pid(&self) -> i32 {
        self.running.pid()
    }

    fn tell(&self, word: &str) -> Result<()> {
        Ok(std::fs::write(self.folder.path().join(word), [])?)
    }

    /// Allocates what it keeps.
    pub fn keep(&mut self) -> Result<()> {
        self.tell("go")?;
        self.running.wait_for_line("kept", PATIENCE)
    }

    /// Drops what is temporary.
    fn free(&mut self) -> Result<()> {
        self.tell("free")?;
        self.running.wait_for_line("freed", PATIENCE)
    }

    /// What it counted, by name, at its end.
    pub fn counts(self) -> Result<BTreeMap<String, u64>> {
        for word in ["go", "free", "end"] {
            self.tell(word)?;
        }
        let Ended { status, stdout, stderr } = self.running.wait(PATIENCE)?;
        assert!(status.success(), "{status}\n{stdout}{stderr}");
        let words = stdout.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        words.map(|(name, count)| Ok((name.to_owned(), count.parse()?))).collect()
    }

    /// A recording of its objects that has begun.
    fn recording(&self) -> Result<Recording> {
        self.recording_as(|record| record)
    }

    pub fn recording_as(&self, change: impl FnOnce(Record) -> Record) -> Result<Recording> {
        let record = record()?.pid(self.pid()).option("-e", "heap").flag("-v");
        let mut recording = change(record).start()?;
        recording.running().wait_for_log(REPORTED, PATIENCE)?;
        std::thread::sleep(OPENED);
        Ok(recording)
    }
}

/// The versions whose runtime has weak handles for profilers.
fn versions(dotnet: &DotNet) -> impl Iterator<Item = Version> {
    dotnet.versions().into_iter().filter(|version| *version != Version::V3_1)
}

fn label<'a>(stack: &'a Stack, name: &str) -> &'a str {
    stack.labels.get(name).map_or("", String::as_str)
}

fn sum(stacks: &Stacks) -> u64 {
    stacks.stacks.iter().map(|stack| stack.count).sum()
}

fn calls(stack: &Stack, method: &str) -> bool {
    stack.frames.iter().any(|frame| frame.name.starts_with(method))
}

/// The objects of a recording: how many, and how large.
pub fn in_use(recorded: &Recorded) -> Result<(Stacks, Stacks)> {
    let profile = recorded.profile()?;
    Ok((profile.stacks_of("inuse_objects")?, profile.stacks_of("inuse_space")?))
}

/// Checks what a snapshot says of all that is kept, against the program's own count.
fn check(
    version: Version,
    (objects, space): &(Stacks, Stacks),
    own: &BTreeMap<String, u64>,
    is_freed: bool,
) {
    for (class, method, name) in KEPT {
        let of = |stack: &Stack| label(stack, "allocation class") == class && calls(stack, method);
        let is_whole = |stack: &Stack| {
            of(stack) && stack.frames.last().is_some_and(stack_ends::is_thread_start)
        };
        let (count, bytes) = (sum(&objects.that(of)), sum(&space.that(of)));
        let truth = own[name];
        println!("{version} {name}: {truth} bytes by itself, {bytes} seen, {count} objects");
        if is_freed && name == "temporary" {
            assert_eq!((count, bytes), (0, 0), "{version}: freed objects leave");
            continue;
        }
        let error = bytes as f64 / truth as f64 - 1.0;
        assert!(error.abs() < 0.1, "{version} {name}: {:.1} %", error * 100.0);
        let whole = sum(&space.that(is_whole));
        assert!(whole as f64 > bytes as f64 * 0.99, "{version} {name}: {whole} whole");
    }
    let churned: Vec<&Stack> =
        { space.stacks.iter() }.filter(|stack| calls(stack, "Shop.Keeps.Churn")).collect();
    assert!(churned.is_empty(), "{version}: {churned:?}");
    let all = sum(space);
    let kept = sum(&space.that(|stack| KEPT.iter().any(|(_, method, _)| calls(stack, method))));
    assert!(kept as f64 > all as f64 * 0.95, "{version}: {kept} of {all}");
    for stack in &space.stacks {
        assert!(!label(stack, "object age").is_empty(), "{version}");
        assert!(!["", "0"].contains(&label(stack, "collections survived")), "{version}");
    }
}

#[test]
fn a_leak_of_known_size_is_on_top_and_what_is_passing_never_shows() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in versions(&dotnet) {
        let mut target = Target::start(&dotnet, version, ["kept", "150"], &[])?;
        let recording = target.recording()?;
        target.keep()?;
        std::thread::sleep(LOOKED);
        let mut recording = recording;
        recording.running().signal(Signal::INT)?;
        let recorded = recording.finish()?;
        recorded.print_losses();
        let found = in_use(&recorded)?;
        check(version, &found, &target.counts()?, false);
        let summary = recorded.summary()?;
        println!("{}", summary.0["kinds"]["heap"]);
    }
    Ok(())
}

#[test]
fn freed_objects_leave_after_the_next_collection() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in versions(&dotnet) {
        let mut target = Target::start(&dotnet, version, ["kept", "150"], &[])?;
        let mut recording = target.recording()?;
        target.keep()?;
        std::thread::sleep(LOOKED);
        target.free()?;
        std::thread::sleep(LOOKED);
        recording.running().signal(Signal::INT)?;
        let found = in_use(&recording.finish()?)?;
        check(version, &found, &target.counts()?, true);
    }
    Ok(())
}

/// What was in use when the program ended is what the recording shows.
#[test]
fn a_program_that_ends_leaves_what_it_had_last() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in versions(&dotnet) {
        let mut target = Target::start(&dotnet, version, ["kept", "150"], &[])?;
        let recording = target.recording()?;
        target.keep()?;
        target.free()?;
        std::thread::sleep(LOOKED);
        let own = target.counts()?;
        check(version, &in_use(&recording.end()?)?, &own, true);
    }
    Ok(())
}

#[test]
fn a_runtime_without_weak_handles_is_reported_as_such() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    if !dotnet.versions().into_iter().any(|version| version == Version::V3_1) {
        strata_skip::skipped!("no .NET Core 3.1 here");
        return Ok(());
    }
    let target = Target::start(&dotnet, Version::V3_1, ["kept", "1"], &[])?;
    let recorded = record()?.pid(target.pid()).option("-e", "cpu,heap").seconds(3.0).run()?;
    let summary = recorded.summary()?;
    let text = summary.0.to_string();
    assert!(text.contains("its runtime or its bridge reports no heap"), "{text}");
    target.counts()?;
    Ok(())
}

/// Recordings that come and go, some killed, while the program allocates and collects: it goes on.
#[test]
fn recordings_of_objects_come_and_go_in_the_middle_of_a_storm() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    let (rounds, seconds) = machine::short_or_long((4, "110".to_owned()), (20, "600".to_owned()));
    dotnet_running::each(&versions(&dotnet).collect::<Vec<_>>(), 2, |version, _| {
        let mut target = Target::start(&dotnet, version, ["storm", &seconds], &[])?;
        target.tell("go")?;
        for round in 0..rounds {
            let mut recording = target.recording()?;
            std::thread::sleep(Duration::from_millis(500));
            if round % 2 == 0 {
                recording.running().signal(Signal::KILL)?;
                drop(recording);
                continue;
            }
            recording.running().signal(Signal::INT)?;
            let recorded = recording.finish()?;
            let (objects, space) = in_use(&recorded)?;
            println!("{version}, round {round}: {} in use, {} bytes", sum(&objects), sum(&space));
            assert!(space.stacks.iter().all(|stack| !label(stack, "allocation class").is_empty()));
            assert!(target.running.is_alive(), "{version}");
        }
        // It goes on after strata has left.
        std::thread::sleep(Duration::from_secs(2));
        assert!(target.running.is_alive(), "{version}");
        let counted = target.counts()?;
        println!("{version}: {counted:?}");
        assert!(counted.values().all(|rounds| *rounds > 10), "{version}");
        Ok(())
    })
}

/// Over several periods a daemon has what was in use at the end, and not the sum.
#[test]
fn a_daemon_keeps_snapshots_that_are_read_once() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut daemon = Daemon::prepared()?;
    let files = daemon.folder().join("files");
    daemon.configure(&format!(
        "{}[exporter.file]\npath = \"{}\"\nperiod = \"2s\"\n\
         [[rule]]\nmatch = {{ env = {{ DD_SERVICE = \"keeping\" }} }}\n\
         types = [\"heap\"]\n",
        attaching_to(&["keeping"]),
        files.display()
    ))?;
    daemon.start()?;
    let variables = [("DD_SERVICE", "keeping")];
    let mut target = Target::start(&dotnet, Version::V9, ["kept", "100"], &variables)?;
    let reported = format!("{REPORTED} pid={}", target.pid());
    daemon.running()?.wait_for_log(&reported, PATIENCE)?;
    std::thread::sleep(OPENED);
    target.keep()?;
    std::thread::sleep(LOOKED);
    let flushes =
        |daemon: &Daemon| daemon.status().map(|status| status["profiles"]["flushes"].as_u64());
    let before = flushes(&daemon)?.context("a counter")?;
    wait_until("four periods and more pass", PATIENCE, || {
        flushes(&daemon).is_ok_and(|now| now > Some(before + 4))
    })?;
    daemon.end()?;
    let own = target.counts()?;
    let stacks = daemon.kept("keeping", "heap")?;
    // Folded stacks are in bytes, the column that is shown first.
    let bytes: u64 = stacks.iter().map(|stack| stack.count).sum();
    let truth: u64 = KEPT.iter().map(|(_, _, name)| own[*name]).sum();
    println!("{own:?}: {bytes} bytes kept, {truth} by itself");
    let error = bytes as f64 / truth as f64 - 1.0;
    assert!(error.abs() < 0.1, "{:.1} %", error * 100.0);
    Ok(())
}
