//! Processes that load strata's library at their start, alone and beside another profiler.

mod support;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use strata_bridge_protocol::record::Record;
use strata_clr::environment::environment;
use strata_clr::session::{BridgeState, Budget, State, presence};
use strata_clr::{AttachError, AttachOptions, CLibrary, How, Session, attach, discover, install};
use support::{Clr, Runtime, alone, wait_until};

/// The class of the test profiler in tests/targets/profiler.
const OTHER: &str = "{7F0A3C52-6B1E-4D0B-9E0A-5D2E1C0B8A11}";

/// Another profiler: it counts compilations in a file.
fn other_profiler(folder: &Path) -> PathBuf {
    let source = support::workspace().join("tests/targets/profiler/profiler.c");
    let output = folder.join("libother.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-pthread", "-o"]).arg(&output).arg(source);
    assert!(compiler.status().expect("a C compiler").success());
    output
}

/// Compilations that the other profiler has counted.
fn counted_by_other(folder: &Path) -> u64 {
    let text = std::fs::read_to_string(folder.join("counts")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("jit-finished "));
    line.map_or(0, |count| count.parse().unwrap())
}

/// The command with what strata would add to its environment.
fn with_strata(mut command: Command, folder: &Path, eager: bool) -> (Command, Option<String>) {
    let library = install(folder, CLibrary::Glibc).unwrap();
    let mut existing = Vec::new();
    for (name, value) in command.get_envs() {
        existing.extend(name.as_bytes());
        existing.push(b'=');
        existing.extend(value.unwrap_or(OsStr::new("")).as_bytes());
        existing.push(0);
    }
    let added = environment(&library, &existing, eager).unwrap();
    for variable in &added.variables {
        command.env(variable.name, &variable.value);
    }
    (command, added.beside)
}

fn with_other(mut command: Command, folder: &Path) -> Command {
    command
        .env("CORECLR_ENABLE_PROFILING", "1")
        .env("CORECLR_PROFILER", OTHER)
        .env("CORECLR_PROFILER_PATH", other_profiler(folder))
        .env("STRATA_TEST_PROFILER", folder.join("counts"));
    command
}

fn names_until(session: &mut Session, wanted: &str) -> HashSet<String> {
    let mut names = HashSet::new();
    wait_until(&format!("{wanted} is published"), || {
        for entry in session.look_and_poll(Budget::default()).unwrap().entries {
            if let Record::Method(method) = entry.record {
                names.insert(method.name);
            }
        }
        names.contains(wanted)
    });
    names
}

fn open(clr: &Clr) -> Session {
    let attached = attach(clr.pid(), &AttachOptions::default()).unwrap();
    assert_eq!(attached.how, How::AlreadyLoaded);
    attached.session
}

#[test]
fn a_process_started_with_strata_is_read_without_being_attached_to() {
    let _alone = alone();
    for runtime in Runtime::ALL {
        for eager in [false, true] {
            let folder = tempfile::tempdir_in("/tmp").unwrap();
            let (command, beside) = with_strata(runtime.command(), folder.path(), eager);
            assert_eq!(beside, None);
            let clr = Clr::start(command);
            let mut methods = 0;
            let mut look = || {
                let found = discover(clr.pid()).unwrap().expect("a CLR");
                let BridgeState::Loaded { state, holder, methods: now, .. } =
                    presence(&found.target, &found.shared)
                else {
                    panic!("the library is loaded")
                };
                assert_eq!((state, holder), (Some(State::Ready), None));
                methods = now;
                now > 0
            };
            if eager {
                wait_until("compilations are published without a reader", look);
            } else {
                assert!(!look());
            }
            println!("{runtime:?}, eager {eager}: {methods} methods before anybody read");
            let mut session = open(&clr);
            let main = if runtime == Runtime::Net10 { "MoveNext" } else { "Work" };
            names_until(&mut session, main);
        }
    }
}

#[test]
fn beside_another_profiler_strata_is_loaded_as_a_notification_profiler() {
    let _alone = alone();
    for runtime in [Runtime::Net8, Runtime::Net9, Runtime::Net10] {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let command = with_other(runtime.command(), folder.path());
        let (command, beside) = with_strata(command, folder.path(), false);
        assert_eq!(beside.as_deref(), Some("libother.so"));
        let clr = Clr::start(command);
        let found = discover(clr.pid()).unwrap().expect("a CLR");
        let profilers: Vec<String> =
            found.switches.profilers().iter().map(ToString::to_string).collect();
        assert_eq!(profilers, ["libother.so", "strata"]);
        let mut session = open(&clr);
        let main = if runtime == Runtime::Net10 { "MoveNext" } else { "Work" };
        names_until(&mut session, main);
        session.detach_and_wait(Duration::from_secs(12), Budget::default(), |_| {}).unwrap();
        goes_on_counting(folder.path(), runtime);
    }
}

/// 10's program compiles nothing more once it stands still.
fn goes_on_counting(folder: &Path, runtime: Runtime) {
    let before = counted_by_other(folder);
    wait_until("the other profiler goes on counting", || {
        let now = counted_by_other(folder);
        now > before || runtime == Runtime::Net10 && now > 0
    });
}

#[test]
fn strata_attaches_beside_another_profiler_where_the_runtime_can_have_two() {
    let _alone = alone();
    for runtime in Runtime::ALL {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let mut clr = Clr::start(with_other(runtime.command(), folder.path()));
        let outcome = attach(clr.pid(), &AttachOptions::default());
        match outcome {
            Ok(attached) => {
                assert_ne!(runtime, Runtime::Core31);
                let mut session = attached.session;
                let name = if runtime == Runtime::Net10 { "MoveNext" } else { "Work" };
                names_until(&mut session, name);
                goes_on_counting(folder.path(), runtime);
                let time = Duration::from_secs(12);
                session.detach_and_wait(time, Budget::default(), |_| {}).unwrap();
                goes_on_counting(folder.path(), runtime);
            }
            Err(error) => {
                println!("{runtime:?}: {error}");
                assert_eq!(runtime, Runtime::Core31);
                let AttachError::AnotherProfiler(name) = error else { panic!("{error}") };
                assert_eq!(name, "libother.so");
            }
        }
        assert!(clr.is_alive());
    }
}

#[test]
fn strata_that_is_loaded_by_the_environment_detaches_and_is_attached_again() {
    let _alone = alone();
    for runtime in [Runtime::Core31, Runtime::Net8, Runtime::Net9] {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let (command, _) = with_strata(runtime.command(), folder.path(), false);
        let mut clr = Clr::start(command);
        let mut session = open(&clr);
        names_until(&mut session, "Work");
        session.detach_and_wait(Duration::from_secs(12), Budget::default(), |_| {}).unwrap();
        drop(session);
        let again = attach(clr.pid(), &AttachOptions::default()).unwrap();
        println!("{runtime:?}: {:?}", again.how);
        let mut session = again.session;
        names_until(&mut session, "Work");
        assert!(clr.is_alive());
    }
}

/// The runtime would load one that is attached.
#[test]
fn where_profilers_are_switched_off_nothing_is_attached() {
    let _alone = alone();
    let mut command = Runtime::Net9.command();
    command.env("DOTNET_EnableDiagnostics_Profiler", "0");
    let clr = Clr::start(command);
    let refused = attach(clr.pid(), &AttachOptions::default()).map(|attached| attached.how);
    let reason = refused.unwrap_err().to_string();
    let variable = "profilers are switched off by DOTNET_EnableDiagnostics_Profiler=0";
    assert!(reason.contains(variable), "{reason}");
    let switches = discover(clr.pid()).unwrap().unwrap().switches;
    assert!(switches.profilers_switched_off().is_some());
}
