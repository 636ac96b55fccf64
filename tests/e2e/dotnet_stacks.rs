//! Stacks of .NET programs: shares of the CPU, no caller skipped, waiting threads as the runtime
//! itself sees them, one stack from the kernel to `_start`.

use anyhow::Result;
use strata_tests::dotnet_calls::CallGraph;
use strata_tests::dotnet_parked::{self, ManagedStack};
use strata_tests::dotnet_profiler::SecondProfiler;
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::{Frame, Stack, Stacks};
use strata_tests::{machine, stack_ends, strata};

use crate::dotnet_running::{
    Clr, FREQUENCY, Wrongs, each, is_managed, print_examples, recorded_command, start,
    start_command, waiting_threads,
};

const SHARES: [(&str, f64); 3] =
    [("Shares.BurnFifty", 0.5), ("Shares.BurnThirty", 0.3), ("Shares.BurnTwenty", 0.2)];

/// Of the samples in the three methods, each one's share is its own within two points.
fn check_shares(version: Version, how: &str, own: &Stacks, least: u64, wrongs: &mut Wrongs) {
    let burning = own.that(|stack| SHARES.iter().any(|(name, _)| stack.has(name)));
    println!("{version}, {how}: {} samples, {} in the methods", own.total(), burning.total());
    wrongs.unless(burning.total() >= least, || {
        format!("{version}, {how}: {} samples in the methods", burning.total())
    });
    for (name, wanted) in SHARES {
        let seen = burning.share_with(name);
        println!("  {name}: {:.2} %", 100.0 * seen);
        wrongs.unless((seen - wanted).abs() < 0.02, || format!("{version}, {how}, {name}: {seen}"));
    }
}

#[test]
fn shares_are_within_two_points_from_the_first_second_on() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        // One second of CPU time, in which the code is compiled twice.
        let mut command = dotnet.program(version, "Shares", &["1"])?;
        command.env("STRATA_TARGET_CLOCK", "cpu");
        let record = recorded_command(strata::record()?.frequency(4999), &command)?;
        let recorded = record.run()?;
        check_shares(version, "first second", &recorded.stacks()?, 3500, &mut wrongs);
        recorded.print_losses();

        let app = start(&dotnet, version, "Shares", &["300"])?;
        let recording = strata::record()?.frequency(2 * FREQUENCY).pid(app.pid()).start()?;
        let recorded = recording.finish_when_used(&[app.pid()], 2.75)?;
        let own = recorded.stacks()?.of_pid(app.pid());
        check_shares(version, "attached", &own, 5000, &mut wrongs);
        recorded.print_losses();
    }
    wrongs.none();
    Ok(())
}

/// What the compiler makes `foreach` call, and `Task.Start` its scheduler: the program's own graph
/// leaves them out.
const CALLED_UNSEEN: &str = "\
edge Small.Sequences.Each Small.Sequences.Iterate.System.Collections.Generic.IEnumerable.GetEnumerator
edge Small.Sequences.Each Small.Sequences.Iterate.System.Collections.Generic.IEnumerator.Current.get
edge Small.Sequences.Each Small.Sequences.Iterate.System.IDisposable.Dispose
through Small.Waits.Waiter Small.InlineScheduler.QueueTask
";

#[test]
fn no_caller_is_skipped_in_ten_thousand_samples() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    each(&dotnet.versions(), 2, |version, wrongs| {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("graph");
        let path = file.display().to_string();
        // Its loops that are replaced while they run have a part of its time each.
        let mut command = dotnet.program(version, "SmallMethods", &[&path, "8"])?;
        command.env("STRATA_TARGET_CLOCK", "cpu");
        // Else lambdas, which cannot be kept from it, end up inside their callers.
        command.env("DOTNET_TieredPGO", "0");
        let app = start_command(command)?;
        let recording = strata::record()?.frequency(2 * FREQUENCY).pid(app.pid()).start()?;
        let recorded = recording.finish_when_used(&[app.pid()], 6.5)?;
        let own = recorded.stacks()?.of_pid(app.pid());
        let graph = std::fs::read_to_string(&file)? + CALLED_UNSEEN;
        let verdict = CallGraph::parse(&graph)?.check(&own);
        println!("{version}: {verdict}");
        println!("  complete {}", own.completeness());
        recorded.print_losses();
        let seen = (verdict.samples, verdict.fraction_right(), verdict.coverage());
        // 3.1 spends most of its time throwing, so that some calls are hardly ever sampled.
        wrongs.unless(seen.0 >= 10_000 && seen.1 >= 0.999 && seen.2 > 0.8, || {
            format!("{version}: {} samples, {} right, {} of the calls", seen.0, seen.1, seen.2)
        });
        Ok(())
    })
}

pub fn compare_waiting(
    how: &str,
    expected: &[ManagedStack],
    pid: i32,
    wrongs: &mut Wrongs,
) -> Result<()> {
    let threads = waiting_threads(pid)?;
    // A lambda of a static constructor: FrameNames.cs and frame names differ.
    let mut expected = expected.to_vec();
    for frame in expected.iter_mut().flat_map(|thread| &mut thread.frames) {
        if frame == "System.Threading.Tasks.Task..cctor_Lambda" {
            *frame = "System.Threading.Tasks.Task.Task_Lambda (static)".to_string();
        }
    }
    let comparison = dotnet_parked::compare(&expected, &threads, is_managed);
    println!("{how}: {} threads known, {comparison}", expected.len());
    let is_right = comparison.wrong == 0 && comparison.unseen.is_empty();
    wrongs.unless(is_right && comparison.samples == expected.len() as u64, || {
        format!("{how}: {} of {} differ", comparison.wrong, comparison.samples)
    });
    Ok(())
}

#[test]
fn waiting_threads_are_where_the_runtime_says() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        for tiered in ["1", "0"] {
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("parked");
            let app = start_command(parked(&dotnet, version, &file, tiered)?)?;
            let expected = dotnet_parked::read(&file)?;
            let how = format!("{version}, tiered {tiered}");
            compare_waiting(&how, &expected, app.pid(), &mut wrongs)?;
            wrongs.unless(expected.len() == 23, || format!("{how}: {} threads", expected.len()));
        }
    }
    wrongs.none();
    Ok(())
}

/// By another profiler's `DoStackSnapshot`, while they wait. 3.1 takes one profiler only.
#[test]
fn waiting_threads_are_where_a_snapshot_by_another_profiler_says() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in [Version::V9, Version::V10] {
        let folder = tempfile::tempdir()?;
        let profiler = SecondProfiler::new(folder.path())?;
        let file = folder.path().join("parked");
        let mut command = parked(&dotnet, version, &file, "1")?;
        profiler.load_into(&mut command);
        let app = start_command(command)?;
        let own = dotnet_parked::read(&file)?;
        let mut expected = profiler.snapshot()?;
        // It has no names for dynamic methods.
        expected.retain(|thread| !thread.frames.iter().any(|name| name == "Parking.Dynamic.Begin"));
        expected.retain(|thread| own.iter().any(|other| other.tid == thread.tid));
        let how = format!("{version}, by a snapshot");
        compare_waiting(&how, &expected, app.pid(), &mut wrongs)?;
        wrongs.unless(expected.len() == 22, || format!("{how}: {} threads", expected.len()));
    }
    wrongs.none();
    Ok(())
}

fn parked(
    dotnet: &DotNet,
    version: Version,
    file: &std::path::Path,
    tiered: &str,
) -> Result<std::process::Command> {
    let path = file.display().to_string();
    let mut command = dotnet.program(version, "Parked", &[&path, "300"])?;
    command.env("DOTNET_TieredCompilation", tiered).env("COMPlus_TieredCompilation", tiered);
    Ok(command)
}

#[test]
fn one_stack_goes_from_the_kernel_to_the_start_of_the_program() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let cases: [(&[&str], &str, &str, &str); 2] = [
            (&["file", "/dev/zero", "300"], "Reader.ReadFile", "Reader.File", "System.IO."),
            (&["socket", "300"], "Reader.ReadSocket", "Reader.Socket", "System.Net.Sockets."),
        ];
        for (words, method, caller, framework) in cases {
            // Else the framework's virtual methods end up inside the program's.
            let mut command = dotnet.program(version, "Reader", words)?;
            command.env("DOTNET_TieredPGO", "0");
            let app = start_command(command)?;
            let recording = strata::record()?.frequency(FREQUENCY).pid(app.pid()).start()?;
            let recorded = recording.finish_when_used(&[app.pid()], 1.5)?;
            let own = recorded.stacks()?.of_pid(app.pid());
            let reading = own.that(|stack| is_in_a_system_call(stack) && stack.has(method));
            let is_whole = |stack: &Stack| is_whole(stack, method, caller, framework);
            let whole = reading.share_that(is_whole);
            println!(
                "{version}, {}: {} samples, {} in the kernel below {method}, {:.2} % of them whole, {:?}",
                words[0],
                own.total(),
                reading.total(),
                100.0 * whole,
                Clr::of(&recorded)?
            );
            print_examples(&reading.that(is_whole), 1);
            print_examples(&reading.that(|stack| !is_whole(stack)), 2);
            wrongs.unless(reading.total() > 200 && whole > 0.99, || {
                format!("{version}, {}: {whole} of {}", words[0], reading.total())
            });
        }
    }
    wrongs.none();
    Ok(())
}

/// Kernel, libc, the framework, the program's methods, the host, `_start`: in this order.
fn is_whole(stack: &Stack, method: &str, caller: &str, framework: &str) -> bool {
    let place = |holds: &dyn Fn(&Frame) -> bool| stack.frames.iter().position(holds);
    let last = |holds: &dyn Fn(&Frame) -> bool| stack.frames.iter().rposition(holds);
    let main = last(&|frame| frame.name == "Reader.Main");
    let below = |index: usize| main.is_some_and(|main| index > main);
    let host = stack.frames.iter().enumerate().position(|(index, frame)| {
        below(index) && (frame.file.contains("hostpolicy") || is_single_file_host(frame))
    });
    let places = [
        last(&|frame| frame.is_kernel()),
        place(&|frame| frame.file.contains("libc.so")),
        place(&|frame| frame.name.starts_with(framework)),
        place(&|frame| frame.name == method),
        place(&|frame| frame.name == caller),
        main,
        host,
        last(&|frame| frame.file.contains("libc.so")),
    ];
    let in_order = places.iter().zip(places.iter().skip(1)).all(|(a, b)| a.is_some() && a < b);
    in_order && stack.outermost_user_frame().is_some_and(stack_ends::is_thread_start)
}

fn is_in_a_system_call(stack: &Stack) -> bool {
    stack.frames.iter().any(|frame| frame.is_kernel() && frame.name.starts_with("entry_SYSCALL"))
}

fn is_single_file_host(frame: &Frame) -> bool {
    frame.file.ends_with("/Sarif.Multitool") || frame.file.ends_with("/Reader")
}
