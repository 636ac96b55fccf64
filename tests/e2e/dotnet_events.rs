//! Events of .NET runtimes: every exception with its type, message, count and whole stack, and a program
//! that does not notice.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use strata_tests::daemon::{Daemon, attaching_to, burn_as};
use strata_tests::dotnet_profiler::SecondProfiler;
use strata_tests::running::{Ended, Running, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::{Stack, Stacks};
use strata_tests::strata::{Record, Recording, record};
use strata_tests::{machine, stack_ends};

use crate::dotnet_running::{self, PATIENCE, each, wait_for_attach};

/// What the recording says once the bridge reports events.
pub const REPORTED: &str = "events of a .NET process are reported";

/// The target's throwing methods: the name of the counter that it prints, the type, the method.
pub const WAYS: [(&str, &str, &str); 3] = [
    ("sold", "Shop.Sold", "Shop.Throws.ThrowSold"),
    ("missing", "Shop.Throws+Missing", "Shop.Throws.ThrowMissing"),
    ("other", "System.InvalidOperationException", "Shop.Throws.ThrowOther"),
];

/// A target that waits until a file exists.
pub struct Target {
    pub running: Running,
    folder: tempfile::TempDir,
}

impl Target {
    pub fn start(dotnet: &DotNet, version: Version, how: &str, much: &str) -> Result<Self> {
        Self::start_as(dotnet, version, how, much, None)
    }

    pub fn start_program(
        dotnet: &DotNet,
        version: Version,
        name: &str,
        much: &str,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("strata-events-").tempdir()?;
        let go = folder.path().join("go").to_string_lossy().into_owned();
        let running = dotnet_running::start(dotnet, version, name, &[&go, much])?;
        Ok(Self { running, folder })
    }

    /// A program that waits for the file `go` in this folder.
    pub fn of(running: Running, folder: tempfile::TempDir) -> Self {
        Self { running, folder }
    }

    /// A program that does one of several things.
    pub fn start_way(
        dotnet: &DotNet,
        version: Version,
        name: &str,
        how: &str,
        much: &str,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("strata-events-").tempdir()?;
        let go = folder.path().join("go").to_string_lossy().into_owned();
        let running = dotnet_running::start(dotnet, version, name, &[how, &go, much])?;
        Ok(Self { running, folder })
    }

    pub fn start_as(
        dotnet: &DotNet,
        version: Version,
        how: &str,
        much: &str,
        service: Option<&str>,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("strata-throws-").tempdir()?;
        let go = folder.path().join("go").to_string_lossy().into_owned();
        let mut command = dotnet.program(version, "Throws", &[how, &go, much])?;
        command.envs(service.map(|service| ("DD_SERVICE", service)));
        let running = dotnet_running::start_command(command)?;
        Ok(Self { running, folder })
    }

    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    pub fn go(&self) -> Result<()> {
        Ok(std::fs::write(self.folder.path().join("go"), [])?)
    }

    /// How many exceptions it counted, by name, at its end.
    pub fn counts(self) -> Result<BTreeMap<String, u64>> {
        let Ended { status, stdout, stderr } = self.running.wait(PATIENCE)?;
        assert!(status.success(), "{status}\n{stdout}{stderr}");
        counts(&stdout)
    }
}

fn counts(text: &str) -> Result<BTreeMap<String, u64>> {
    let words = text.split_ascii_whitespace().filter_map(|word| word.split_once('='));
    words.map(|(name, count)| Ok((name.to_owned(), count.parse()?))).collect()
}

/// A recording of the target's exceptions that has begun.
fn recording(target: &Target, change: impl FnOnce(Record) -> Record) -> Result<Recording> {
    recording_of(target, "exceptions", change)
}

pub fn recording_of(
    target: &Target,
    kind: &str,
    change: impl FnOnce(Record) -> Record,
) -> Result<Recording> {
    let record = record()?.pid(target.pid()).option("-e", kind).flag("-v");
    let mut recording = change(record).start()?;
    recording.running().wait_for_log(REPORTED, PATIENCE)?;
    Ok(recording)
}

/// How many exceptions of a type the profile has, thrown for the first time.
pub fn thrown(stacks: &Stacks, type_name: &str) -> u64 {
    let is_first = |stack: &&Stack| !stack.labels.contains_key("rethrown");
    of_type(stacks, type_name).filter(is_first).map(|stack| stack.count).sum()
}

fn of_type<'a>(stacks: &'a Stacks, type_name: &'a str) -> impl Iterator<Item = &'a Stack> {
    let is_of = move |stack: &&Stack| {
        stack.labels.get("exception type").is_some_and(|label| label == type_name)
    };
    stacks.stacks.iter().filter(is_of)
}

/// Exceptions whose stack leads from the method that throws to the start of its thread.
fn whole(stacks: &Stacks, type_name: &str, method: &str) -> u64 {
    let is_whole = |stack: &&Stack| {
        let throws = stack.frames.iter().any(|frame| frame.name.starts_with(method));
        let caller = stack.frames.iter().any(|frame| frame.name.starts_with("Shop.Throws.Paced"));
        throws && caller && stack.frames.last().is_some_and(stack_ends::is_thread_start)
    };
    of_type(stacks, type_name).filter(is_whole).map(|stack| stack.count).sum()
}

fn print_some(stacks: &Stacks) {
    for stack in stacks.stacks.iter().take(2) {
        println!("{} × {:?}", stack.count, stack.labels);
        for frame in &stack.frames {
            println!("    {} ({})", frame.name, frame.file);
        }
    }
}

#[test]
fn every_exception_is_counted_with_its_type_its_message_and_its_whole_stack() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let target = Target::start(&dotnet, version, "paced", "1000")?;
        let recording = recording(&target, |record| record)?;
        target.go()?;
        let counted = target.counts()?;
        let recorded = recording.end()?;
        recorded.print_losses();
        let stacks = recorded.stacks()?;
        print_some(&stacks);
        let summary = recorded.summary()?;
        let types = &summary.0["kinds"]["exceptions"]["by_label"]["exception type"];
        for (position, (_, type_name, _)) in WAYS.iter().enumerate() {
            let listed = types.as_array().context("no types")?;
            assert!(listed.len() == 3 && listed.iter().any(|one| one["value"] == *type_name));
            assert!(types[position]["total"].as_i64() > Some(0), "{version}: {types}");
        }
        let (mut all, mut complete) = (0, 0);
        for (name, type_name, method) in WAYS {
            let own = *counted.get(name).with_context(|| format!("no {name}"))?;
            let (seen, is_whole) = (thrown(&stacks, type_name), whole(&stacks, type_name, method));
            println!("{version} {type_name}: {own} thrown, {seen} seen, {is_whole} whole");
            assert_eq!(seen, own, "{version} {type_name}");
            all += seen;
            complete += is_whole;
        }
        assert!(complete as f64 >= all as f64 * 0.995, "{version}: {complete} of {all}");
        let messages: u64 = (0..10)
            .map(|number| format!("item {number}"))
            .map(|message| {
                let has = |stack: &&Stack| stack.labels.get("exception message") == Some(&message);
                of_type(&stacks, "Shop.Sold").filter(has).map(|stack| stack.count).sum::<u64>()
            })
            .sum();
        assert_eq!(messages, thrown(&stacks, "Shop.Sold"), "{version}: messages");
        let bare = of_type(&stacks, "Shop.Throws+Missing");
        assert!({ bare }.all(|stack| !stack.labels.contains_key("exception message")));
    }
    Ok(())
}

#[test]
fn an_exception_that_is_thrown_again_is_distinguished_and_messages_can_be_left_out() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let target = Target::start(&dotnet, version, "again", "300")?;
        let recording = recording(&target, |record| record.flag("--no-exception-messages"))?;
        target.go()?;
        let own = target.counts()?.get("sold").copied();
        let stacks = recording.end()?.stacks()?;
        let again = of_type(&stacks, "Shop.Sold")
            .filter(|stack| stack.labels.contains_key("rethrown"))
            .map(|stack| stack.count)
            .sum::<u64>();
        let first = thrown(&stacks, "Shop.Sold");
        println!("{version}: {own:?} thrown, {first} seen, {again} again");
        assert_eq!((Some(first), Some(again)), (own, own), "{version}");
        assert!(stacks.stacks.iter().all(|stack| !stack.labels.contains_key("exception message")));
    }
    Ok(())
}

#[test]
fn a_flood_of_exceptions_is_sampled_and_its_totals_are_right() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let target = Target::start(&dotnet, version, "flood", "5")?;
        let recording = recording(&target, |record| record)?;
        target.go()?;
        let counted = target.counts()?;
        let recorded = recording.end()?;
        recorded.print_losses();
        let stacks = recorded.stacks()?;
        let summary = recorded.summary()?;
        println!("{version}: {} records", summary.0["bpf"]["clr_events"]);
        for (name, type_name, _) in WAYS {
            let own = *counted.get(name).with_context(|| format!("no {name}"))?;
            let seen = thrown(&stacks, type_name);
            println!("{version} {type_name}: {own} thrown, {seen} seen");
            assert!((seen as f64 / own as f64 - 1.0).abs() < 0.05, "{version} {type_name}");
        }
    }
    Ok(())
}

#[test]
fn an_exception_that_passes_through_six_async_methods_counts_once_and_shows_its_rethrows()
-> Result<()> {
    const ROUNDS: u64 = 200;
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let target = Target::start(&dotnet, version, "async", &ROUNDS.to_string())?;
        let recording = recording(&target, |record| record)?;
        target.go()?;
        let own = target.counts()?.get("sold").copied();
        let stacks = recording.end()?.stacks()?;
        let again: u64 = of_type(&stacks, "Shop.Sold")
            .filter(|stack| stack.labels.contains_key("rethrown"))
            .map(|stack| stack.count)
            .sum();
        let first = thrown(&stacks, "Shop.Sold");
        println!("{version}: {own:?} failures, {first} seen, {again} again");
        assert_eq!((own, first), (Some(ROUNDS), ROUNDS), "{version}");
        // Five methods await the one that throws, and the caller waits for the first.
        assert_eq!(again, 6 * ROUNDS, "{version}");
    }
    Ok(())
}

/// Recordings that come and go, some killed, while the program throws: it counts on, and the last
/// recording is as good as the first.
#[test]
fn recordings_come_and_go_in_the_middle_of_a_flood() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    each(&dotnet.versions(), 2, |version, _| {
        let mut target = Target::start(&dotnet, version, "flood", "600")?;
        target.go()?;
        for round in 0..4 {
            let all = "exceptions,locks,allocations";
            let mut recording = recording_of(&target, all, |record| record)?;
            std::thread::sleep(Duration::from_millis(500));
            if round % 2 == 0 {
                recording.running().signal(Signal::KILL)?;
                drop(recording);
                continue;
            }
            recording.running().signal(Signal::INT)?;
            let stacks = recording.finish()?.profile()?.stacks_of("exceptions")?;
            let seen: u64 = WAYS.iter().map(|(_, name, _)| thrown(&stacks, name)).sum();
            println!("{version}, round {round}: {seen} seen");
            assert!(seen > 1_000, "{version}");
            assert!(target.running.is_alive(), "{version}");
        }
        // It goes on after strata has left.
        std::thread::sleep(Duration::from_secs(2));
        assert!(target.running.is_alive(), "{version}");
        std::fs::write(target.folder.path().join("go.end"), [])?;
        let counted = target.counts()?;
        println!("{version}: {counted:?}");
        assert!(counted.values().all(|count| *count > 1_000));
        Ok(())
    })
}

/// The daemon asks the processes whose rule has exceptions, and no others.
#[test]
fn a_daemon_keeps_the_exceptions_that_a_rule_asks_for() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut daemon = Daemon::prepared()?;
    // Of this test alone: daemons of tests beside it attach to their own.
    let services @ [throwing, others] = ["throwing-kept", "others-kept"];
    daemon.configure(&configuration(services, &[(throwing, "\"exceptions\"")]))?;
    daemon.start()?;
    let targets = services
        .map(|service| Target::start_as(&dotnet, Version::V9, "paced", "1000", Some(service)));
    let [target, other] = targets;
    let (target, other) = (target?, other?);
    let reported = format!("{REPORTED} pid={}", target.pid());
    daemon.running()?.wait_for_log(&reported, PATIENCE)?;
    wait_for_attach(other.running.pid())?;
    target.go()?;
    other.go()?;
    let (own, _) = (target.counts()?, other.counts()?);
    burn_as(others)?;
    daemon.end()?;
    let seen = stored(&daemon, throwing)?;
    println!("{own:?}: {seen:?} seen");
    assert_eq!(seen, Some(own.values().sum::<u64>()));
    assert_eq!(stored(&daemon, others)?, None);
    Ok(())
}

/// Rules for some of the services that are attached to, with what is sampled beside CPU time.
fn configuration(services: [&str; 2], types: &[(&str, &str)]) -> String {
    let rule = |(service, types): &(&str, &str)| {
        format!(
            "[[rule]]\nmatch = {{ env = {{ DD_SERVICE = \"{service}\" }} }}\n\
             types = [\"cpu\", {types}]\n"
        )
    };
    attaching_to(&services) + &types.iter().map(rule).collect::<String>()
}

/// The exceptions of a service that are in the store, which has others of its samples.
fn stored(daemon: &Daemon, service: &str) -> Result<Option<u64>> {
    let stacks = daemon.query(service, "exceptions")?;
    Ok(stacks.map(|stacks| stacks.iter().map(|stack| stack.count).sum()))
}

/// A reload changes which events are reported, also of processes that report some already.
#[test]
fn a_reload_changes_the_events_of_processes_that_have_a_bridge() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut daemon = Daemon::prepared()?;
    let (locks, both) = ("\"locks\"", "\"exceptions\", \"locks\"");
    let services @ [throwing, others] = ["throwing-reloaded", "others-reloaded"];
    daemon.configure(&configuration(services, &[(throwing, locks), (others, both)]))?;
    daemon.start()?;
    let start = |service| Target::start_as(&dotnet, Version::V9, "paced", "1000", Some(service));
    let (target, other) = (start(throwing)?, start(others)?);
    for of in [&target, &other] {
        daemon.running()?.wait_for_log(&format!("{REPORTED} pid={}", of.pid()), PATIENCE)?;
    }
    daemon.configure(&configuration(services, &[(throwing, both), (others, locks)]))?;
    daemon.reload()?;
    for of in [&target, &other] {
        let asked = format!("other events are asked for pid={}", of.pid());
        daemon.running()?.wait_for_log(&asked, PATIENCE)?;
    }
    // Once for what was asked for first, and once for this.
    for of in [&target, &other] {
        let reported = format!("{REPORTED} pid={}", of.pid());
        wait_until("the runtimes follow", PATIENCE, || {
            daemon.running().is_ok_and(|running| running.logged().matches(&reported).count() == 2)
        })?;
    }
    target.go()?;
    other.go()?;
    let (own, _) = (target.counts()?, other.counts()?);
    burn_as(others)?;
    daemon.end()?;
    let seen = stored(&daemon, throwing)?;
    println!("{own:?}: {seen:?} seen");
    assert_eq!(seen, Some(own.values().sum::<u64>()));
    assert_eq!(stored(&daemon, others)?, None);
    Ok(())
}

/// The versions whose runtime reports events inside the process.
pub fn with_events(dotnet: &DotNet) -> impl Iterator<Item = Version> {
    dotnet.versions().into_iter().filter(|version| *version != Version::V3_1)
}

/// The sum of the stacks with a method, and of those of them that lead to a thread's start.
pub fn of_method(stacks: &Stacks, method: &str) -> (u64, u64) {
    let has = |stack: &&Stack| stack.frames.iter().any(|frame| frame.name.starts_with(method));
    let is_whole = |stack: &&&Stack| stack.frames.last().is_some_and(stack_ends::is_thread_start);
    let all: Vec<&Stack> = stacks.stacks.iter().filter(has).collect();
    let whole = all.iter().filter(is_whole).map(|stack| stack.count).sum();
    (all.iter().map(|stack| stack.count).sum(), whole)
}

#[test]
fn waits_for_locks_are_counted_and_timed_where_they_are() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    each(&with_events(&dotnet).collect::<Vec<_>>(), 3, |version, _| {
        let target = Target::start_program(&dotnet, version, "Contends", "100")?;
        let recording = recording_of(&target, "locks", |record| record)?;
        target.go()?;
        let own = target.counts()?;
        let recorded = recording.end()?;
        recorded.print_losses();
        let profile = recorded.profile()?;
        let (count, _) = of_method(&profile.stacks_of("lock_count")?, "Shop.Contends.Enter");
        let (time, whole) = of_method(&profile.stacks_of("lock_time")?, "Shop.Contends.Enter");
        println!("{version}: {own:?}, {count} seen, {time} ns, {whole} ns whole");
        // The runtime counts a wait once it has spun, and the program what it measured around it.
        assert!((count as f64 / own["waits"] as f64 - 1.0).abs() < 0.1, "{version}");
        assert!((time as f64 / own["nanoseconds"] as f64 - 1.0).abs() < 0.1, "{version}");
        assert!(whole as f64 > time as f64 * 0.98, "{version}");
        Ok(())
    })
}

/// A target that blocks, and a recording of its locks until it ends: what it counted, how many waits
/// there were, and their time.
fn blocks(
    dotnet: &DotNet,
    version: Version,
    how: &str,
    much: &str,
) -> Result<(BTreeMap<String, u64>, Stacks, Stacks)> {
    let target = Target::start_way(dotnet, version, "Blocks", how, much)?;
    let recording = recording_of(&target, "locks", |record| record)?;
    // The bridge has the wish, and opens its session.
    std::thread::sleep(Duration::from_secs(2));
    target.go()?;
    let own = target.counts()?;
    let recorded = recording.end()?;
    recorded.print_losses();
    let profile = recorded.profile()?;
    Ok((own, profile.stacks_of("lock_count")?, profile.stacks_of("lock_time")?))
}

fn label<'a>(stack: &'a Stack, name: &str) -> &'a str {
    stack.labels.get(name).map_or("", String::as_str)
}

#[test]
fn a_wait_has_the_thread_that_holds_the_lock_its_address_and_its_bucket() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    each(&with_events(&dotnet).collect::<Vec<_>>(), 3, |version, _| {
        let (own, counts, times) = blocks(&dotnet, version, "held", "20")?;
        let (count, _) = of_method(&counts, "Shop.Blocks.EnterHeld");
        let (time, _) = of_method(&times, "Shop.Blocks.EnterHeld");
        println!("{version}: {own:?}, {count} seen, {time} ns");
        print_some(&counts);
        assert!(count.abs_diff(20) <= 1, "{version}");
        assert!((time as f64 / own["nanoseconds"] as f64 - 1.0).abs() < 0.05, "{version}");
        let is_named = |stack: &Stack| {
            label(stack, "blocking thread name") == "holder"
                && label(stack, "blocking thread id").parse::<u32>().is_ok()
                && label(stack, "lock address").starts_with("0x")
        };
        let (named, _) = of_method(&counts.that(is_named), "Shop.Blocks.EnterHeld");
        assert_eq!(named, count, "{version}");
        // A thread that spins before it waits, or comes late, waits for less than the lock is held.
        let of_bucket = |bucket: &str| {
            let has = |stack: &Stack| label(stack, "Duration bucket") == bucket;
            of_method(&counts.that(has), "Shop.Blocks.EnterHeld").0
        };
        let (long, short) = (of_bucket("100 - 499 ms"), of_bucket("50 - 99 ms"));
        assert!(long + short == count && long > short, "{version}: {long} and {short}");
        Ok(())
    })
}

#[test]
fn in_a_convoy_waits_have_the_thread_that_got_the_lock() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    each(&with_events(&dotnet).collect::<Vec<_>>(), 3, |version, _| {
        let (own, counts, _) = blocks(&dotnet, version, "convoy", "300")?;
        let (mut all, mut agree) = (0, 0);
        for waiter in 0..4 {
            for owner in 0..4 {
                let name = format!("convoy{owner}");
                let is_by = |stack: &Stack| label(stack, "blocking thread name") == name;
                let method = format!("Shop.Blocks.Enter{waiter}");
                let (seen, _) = of_method(&counts.that(is_by), &method);
                let truth = own.get(&format!("convoy{waiter}_{name}")).copied().unwrap_or(0);
                println!("{version}: convoy{waiter} waited for {name} {truth} times, {seen} seen");
                all += truth;
                agree += truth.min(seen);
            }
        }
        println!("{version}: {agree} of {all} agree");
        assert!(all > 600 && agree as f64 >= all as f64 * 0.95, "{version}: {agree} of {all}");
        Ok(())
    })
}

#[test]
fn locks_without_contention_are_no_samples() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in with_events(&dotnet) {
        let (own, counts, _) = blocks(&dotnet, version, "free", "100000")?;
        let (count, _) = of_method(&counts, "Shop.Blocks.Free");
        println!("{version}: {own:?}, {count} seen");
        assert_eq!((own["rounds"], count), (100_000, 0), "{version}");
    }
    Ok(())
}

#[test]
fn classes_are_named_with_their_arguments_however_long_their_names_are() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    const CLASSES: [(&str, &str); 5] = [
        ("MakeLists", "System.Collections.Generic.List<System.Int32>[]"),
        ("MakeMaps", "System.Collections.Generic.Dictionary<System.String, System.Int32>"),
        ("MakeInner", "Shop.Outer<System.Int32>+Inner<System.String>"),
        ("MakeTables", "System.Int64[][,]"),
        ("MakeDeep", "Shop.Deep<Shop.Pair<Shop.Pair<Shop.Pair<Shop.Pair<"),
    ];
    for version in with_events(&dotnet) {
        let target = Target::start_program(&dotnet, version, "Classes", "80")?;
        let recording = recording_of(&target, "allocations,heap", |record| record)?;
        std::thread::sleep(Duration::from_secs(2));
        target.go()?;
        let own = target.counts()?;
        let recorded = recording.end()?;
        recorded.print_losses();
        let profile = recorded.profile()?;
        let (objects, bytes) =
            (profile.stacks_of("alloc_samples")?, profile.stacks_of("alloc_size")?);
        for (method, class) in CLASSES {
            let method = format!("Shop.Classes.{method}");
            let (all, _) = of_method(&bytes, &method);
            let is_of = |stack: &Stack| {
                let label = label(stack, "allocation class");
                if class.ends_with('<') { label.starts_with(class) } else { label == class }
            };
            let (of_class, _) = of_method(&bytes.that(is_of), &method);
            println!("{version} {class}: {of_class} of {all} bytes");
            assert!(all > 40_000_000 && of_class as f64 > all as f64 * 0.98, "{version} {class}");
        }
        let method = "Shop.Classes.MakeDeep";
        let ((count, _), (size, _)) = (of_method(&objects, method), of_method(&bytes, method));
        println!("{version}: {own:?}, {count} objects of {size} bytes");
        // A method allocates all in a moment, part of it before its code is published: the sums of
        // other tests are of programs that run for longer. Here an object's size is read behind its
        // long name.
        let each = own["deep_bytes"] as f64 / own["deep"] as f64;
        assert!((size as f64 / count as f64 / each - 1.0).abs() < 0.05, "{version}");
    }
    Ok(())
}

/// Another profiler's session has the same events, which the runtime then delivers to both twice.
#[test]
fn events_of_another_profilers_session_do_not_count() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    each(&with_events(&dotnet).collect::<Vec<_>>(), 3, |version, _| {
        let other_folder = tempfile::tempdir()?;
        let other = SecondProfiler::new(other_folder.path())?;
        let folder = tempfile::Builder::new().prefix("strata-events-").tempdir()?;
        let go = folder.path().join("go").to_string_lossy().into_owned();
        let mut command = dotnet.program(version, "Contends", &[&go, "100"])?;
        other.load_into(&mut command);
        let running = dotnet_running::start_command(command)?;
        let target = Target { running, folder };
        other.open_events()?;
        let recording = recording_of(&target, "locks", |record| record)?;
        std::thread::sleep(Duration::from_secs(2));
        target.go()?;
        let own = target.counts()?;
        let profile = recording.end()?.profile()?;
        let (count, _) = of_method(&profile.stacks_of("lock_count")?, "Shop.Contends.Enter");
        let (time, _) = of_method(&profile.stacks_of("lock_time")?, "Shop.Contends.Enter");
        println!("{version}: {own:?}, {count} seen, {time} ns");
        assert!((count as f64 / own["waits"] as f64 - 1.0).abs() < 0.1, "{version}");
        assert!((time as f64 / own["nanoseconds"] as f64 - 1.0).abs() < 0.1, "{version}");
        Ok(())
    })
}

#[test]
fn allocations_have_their_classes_their_number_and_their_bytes() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in with_events(&dotnet) {
        let target = Target::start_program(&dotnet, version, "Allocates", "60000")?;
        let recording = recording_of(&target, "allocations", |record| record)?;
        target.go()?;
        let own = target.counts()?;
        let recorded = recording.end()?;
        recorded.print_losses();
        let profile = recorded.profile()?;
        let (objects, bytes) =
            (profile.stacks_of("alloc_samples")?, profile.stacks_of("alloc_size")?);
        for (name, method, class) in [
            ("small", "Shop.Allocates.MakeSmall", "Shop.Allocates+Small"),
            ("middle", "Shop.Allocates.MakeMiddle", "System.Byte[]"),
            ("large", "Shop.Allocates.MakeLarge", "System.Int64[]"),
        ] {
            let ((count, _), (size, whole)) =
                (of_method(&objects, method), of_method(&bytes, method));
            let (made, made_bytes) = (own[name], own[&format!("{name}_bytes")]);
            println!(
                "{version} {class}: {made} of {made_bytes} bytes, {count} of {size} seen, {whole} whole"
            );
            // The runtime samples: some 2,000 of each class here.
            assert!((count as f64 / made as f64 - 1.0).abs() < 0.25, "{version} {class}");
            assert!((size as f64 / made_bytes as f64 - 1.0).abs() < 0.25, "{version} {class}");
            // Where the kernel has no tables for code yet, few stacks are copied.
            assert!(whole as f64 > size as f64 * 0.97, "{version} {class}");
            let is_of = |stack: &Stack| {
                stack.labels.get("allocation class").is_some_and(|label| label == class)
            };
            let (of_class, _) = of_method(&bytes.that(is_of), method);
            assert_eq!(of_class, size, "{version} {class}");
        }
    }
    Ok(())
}

/// 3.1 has no events inside the process: the recording says so.
#[test]
fn a_runtime_without_events_is_named() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let target = Target::start(&dotnet, Version::V3_1, "paced", "10")?;
    let recorded =
        record()?.pid(target.pid()).option("-e", "cpu,locks").seconds(4.0).run()?.summary()?;
    let without = &recorded.0["clr"]["without_events"][0];
    println!("{without}");
    assert_eq!(without["pid"], target.pid());
    assert!(without["reason"].as_str().is_some_and(|reason| reason.contains("locks")));
    Ok(())
}
