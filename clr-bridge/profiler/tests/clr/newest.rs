//! The newest runtime, in a single trimmed file: it runs the targets that the end-to-end tests have.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::record::Record;
use strata_tests::runtimes::{Version, dotnet};

use crate::support::*;

/// Killed when it is dropped.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        // It may be over already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeper(seconds: &str) -> Command {
    let dotnet = dotnet().expect("the runtimes");
    dotnet.program(Version::V10, "Sleeper", &["3", seconds, "20"]).expect("the program")
}

fn start(mut command: Command) -> Sleeper {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Sleeper(command.spawn().expect("starting the program"));
    let mut line = String::new();
    let output = child.0.stdout.take().expect("its output");
    let mut output = BufReader::new(output);
    output.read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), "ready");
    child.0.stdout = Some(output.into_inner());
    child
}

fn has(watcher: &Watcher, name: &str) -> bool {
    watcher.full_names().iter().any(|found| found == name)
}

#[test]
fn net_10_is_attached_to_and_left_again_and_again() {
    let sleeper = start(sleeper("120"));
    let pid = sleeper.0.id();
    let mut first = None;
    for cycle in 0..10 {
        attach_bridge_to(pid);
        let mut watcher = Watcher::find_in(pid);
        watcher.own();
        watcher.until_enumerated();
        assert!(has(&watcher, "Sleeper.Main") && has(&watcher, "Sleeper.Sleep"), "{cycle}");
        let is_net_10 = watcher.status().runtime[0] == 10;
        assert!(is_net_10, "{:?}", watcher.status());
        assert_eq!(attach(pid, SONAME), 0x8013_136a);
        watcher.wish(wish::DETACH);
        eventually("the end of the bridge", || (Footprint::of(pid).memory == 0).then_some(()));
        let now = Footprint::of(pid);
        let first = *first.get_or_insert(now);
        assert_eq!(Footprint { threads: 0, ..now }, Footprint { threads: 0, ..first });
        assert!(now.threads <= first.threads + 2, "{cycle}: {now:?}");
    }
}

#[test]
fn net_10_loads_the_bridge_by_its_environment() {
    let notification = format!("{}={CLASS};", library().display());
    let ways: [&[(&str, &str)]; 2] = [
        &[
            ("CORECLR_ENABLE_PROFILING", "1"),
            ("CORECLR_PROFILER", CLASS),
            ("CORECLR_PROFILER_PATH", library().to_str().expect("a path of text")),
        ],
        &[
            ("CORECLR_ENABLE_NOTIFICATION_PROFILERS", "1"),
            ("CORECLR_NOTIFICATION_PROFILERS", &notification),
        ],
    ];
    for way in ways {
        let mut command = sleeper("2");
        command.envs(way.iter().copied()).env("STRATA_CLR_EAGER", "1");
        let mut sleeper = start(command);
        let mut watcher = Watcher::find_in(sleeper.0.id());
        watcher.until("a thread's method", |entries| {
            let is = |record: &Record| matches!(record, Record::Method(m) if m.name == "Sleep");
            entries.iter().find(|entry| is(&entry.record)).map(drop)
        });
        assert!(has(&watcher, "Sleeper.Main"));
        let status = sleeper.0.wait().expect("waiting for the program");
        let mut printed = String::new();
        let mut errors = sleeper.0.stderr.take().expect("its errors");
        errors.read_to_string(&mut printed).expect("text");
        assert!(status.success() && printed.is_empty(), "{status}: {printed}");
    }
}
