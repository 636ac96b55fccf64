//! Callbacks run on the app's threads, so what they take of a stack is little.

use std::path::PathBuf;
use std::process::Command;

use strata_bridge_protocol::record::Record;
use strata_bridge_protocol::status::Count;

use super::support::*;

/// What compiling a method may cost in stack, with the runtime's own functions that the bridge calls.
/// The smallest stack that .NET gives a thread has 16 KB and what is asked for on top of it, and the
/// runtime's compiler has used more before the callback comes.
const MOST: u64 = 8 << 10;

/// The library as it is shipped, but for that it measures.
fn measuring_library() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "-p", "strata-clr-profiler", "--message-format=json"]);
    build.args(["--profile", "bridge", "--features", "measure", "--target-dir"]);
    let folder = workspace().join("target/measure");
    let built = build.arg(folder).current_dir(workspace()).output().expect("starting cargo");
    let printed = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "the library does not build: {printed}");
    library_in(&String::from_utf8_lossy(&built.stdout))
}

#[test]
fn callbacks_use_little_of_an_apps_stack() {
    let library = measuring_library();
    for version in versions() {
        let mut target = Target::start(version, Start::default());
        let path = library.to_str().expect("a path of text");
        eventually("an attach", || (attach(target.pid(), path) == 0).then_some(()));
        let mut watcher = Watcher::find(&target);
        watcher.own();
        watcher.until_enumerated();
        for command in ["forms", "compile 50", "dynamic Deep", "collectible Deep", "collect"] {
            target.tell(command);
        }
        watcher.read();
        for entry in &watcher.entries {
            if let Record::Diagnostic(deepest) = &entry.record {
                println!("{version}: {}", deepest.text);
            }
        }
        let (used, callbacks) =
            (watcher.status().count(Count::StackBytes), watcher.status().count(Count::Callbacks));
        println!("{version}: {used} bytes of stack at most, {callbacks} callbacks");
        assert!((500..=MOST).contains(&used), "{version}: {used} bytes of stack");
        target.quit();
    }
}
