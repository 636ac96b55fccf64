//! What is seen of real CLR processes, and what they answer.

mod support;

use std::time::{Duration, Instant};

use strata_clr::diagnostics::{Diagnostics, DiagnosticsError, HResult};
use strata_clr::{CLibrary, Deadline, Evidence, Machine, RuntimeVersion, SocketError, discover};
use support::{Clr, Runtime, alone};

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(5))
}

#[test]
fn every_runtime_is_found_with_its_version_and_socket() {
    let _alone = alone();
    for runtime in Runtime::ALL {
        let clr = runtime.start();
        let start = Instant::now();
        let found = discover(clr.pid()).unwrap().expect("a CLR");
        println!("{runtime:?}: discovered in {:?}: {:?}", start.elapsed(), found.sockets);
        let single = runtime.is_single_file();
        assert_eq!(found.evidence, if single { Evidence::SingleFile } else { Evidence::Library });
        assert_eq!(found.machine, Some(Machine::OWN));
        assert_eq!(found.c_library, Some(CLibrary::Glibc));
        assert_eq!(found.status.inner_pid, clr.pid());
        assert!(found.shared.is_empty() && found.switches.profilers().is_empty());
        let sockets = found.sockets.as_ref().expect("a socket");
        assert_eq!(sockets.len(), 1);
        let info = Diagnostics::new(&found.target, sockets).process_info(soon());
        match runtime {
            Runtime::Core31 => {
                assert_eq!(found.version, RuntimeVersion::parse("3.1.2"));
                let refused = DiagnosticsError::Refused(HResult::UNKNOWN_COMMAND);
                assert_eq!(info, Err(refused));
            }
            _ => {
                let info = info.unwrap();
                println!("{info:?}");
                let version = RuntimeVersion::parse(&info.runtime_version.unwrap()).unwrap();
                assert_eq!(version.major, runtime.major());
                assert_eq!(info.pid, u64::from(clr.pid()));
                assert_eq!(info.architecture, "x64");
                assert!(found.version.is_none_or(|found| found == version));
                assert_eq!(found.version.is_some(), !single);
            }
        }
    }
}

#[test]
fn a_single_file_program_that_does_not_map_its_code_twice_is_found() {
    let _alone = alone();
    for runtime in Runtime::ALL.into_iter().filter(|runtime| runtime.is_single_file()) {
        let mut command = runtime.command();
        command.env("DOTNET_EnableWriteXorExecute", "0");
        let clr = Clr::start(command);
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", clr.pid())).unwrap();
        assert!(!maps.contains("doublemapper"), "{runtime:?}");
        let found = discover(clr.pid()).unwrap().expect("a CLR");
        assert_eq!(found.evidence, Evidence::SingleFile);
        assert_eq!(found.sockets.expect("a socket").len(), 1);
    }
}

#[test]
fn diagnostics_that_are_switched_off_are_the_reason() {
    let _alone = alone();
    for (runtime, name) in [
        (Runtime::Core31, "COMPlus_EnableDiagnostics"),
        (Runtime::Net9, "DOTNET_EnableDiagnostics"),
        (Runtime::Net9, "DOTNET_EnableDiagnostics_IPC"),
    ] {
        let mut command = runtime.command();
        command.env(name, "0");
        let clr = Clr::start(command);
        let found = discover(clr.pid()).unwrap().expect("a CLR");
        let error = found.sockets.expect_err("no socket");
        assert_eq!(error, SocketError::SwitchedOff(format!("{name}=0")));
    }
}

#[test]
fn the_socket_is_looked_for_where_the_process_puts_temporary_files() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
    let mut command = Runtime::Net9.command();
    command.env("TMPDIR", folder.path().join("link"));
    let clr = Clr::start(command).with_folder(folder);
    let found = discover(clr.pid()).unwrap().expect("a CLR");
    let sockets = found.sockets.as_ref().expect("a socket behind root's link");
    assert!(Diagnostics::new(&found.target, sockets).process_info(soon()).is_ok());
}

/// The program in a time namespace of its own: it has another start time there, and so another key.
fn in_another_time(folder: &std::path::Path) -> Clr {
    let program = Runtime::Net9.command();
    let mut command = std::process::Command::new("unshare");
    command.args(["--time", "--boottime", "1000000", "--fork", "--kill-child"]);
    command.arg(program.get_program()).args(program.get_args()).env("TMPDIR", folder);
    for (name, value) in program.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    Clr::start(command)
}

fn leave_dead_sockets(folder: &std::path::Path, pid: u32) {
    for key in 1..4 {
        let name = format!("dotnet-diagnostic-{pid}-{key}-socket");
        drop(std::os::unix::net::UnixListener::bind(folder.join(name)).unwrap());
    }
}

#[test]
fn a_socket_under_another_key_is_distinguished_from_those_of_the_dead() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let clr = in_another_time(folder.path());
    leave_dead_sockets(folder.path(), clr.pid());
    let found = discover(clr.pid()).unwrap().expect("a CLR");
    let sockets = found.sockets.as_ref().unwrap();
    println!("{sockets:?}");
    assert_eq!(sockets.len(), 1);
    assert!(!sockets[0].path.contains(&format!("-{}-", found.target.start_time())));
    assert!(Diagnostics::new(&found.target, sockets).process_info(soon()).is_ok());
}

#[test]
fn sockets_of_the_dead_do_not_hide_that_diagnostics_are_off() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Runtime::Net9.command();
    command.env("TMPDIR", folder.path()).env("DOTNET_EnableDiagnostics", "0");
    let clr = Clr::start(command);
    leave_dead_sockets(folder.path(), clr.pid());
    let found = discover(clr.pid()).unwrap().expect("a CLR");
    assert!(matches!(found.sockets, Err(SocketError::SwitchedOff(_))));
}

#[test]
fn a_stopped_runtime_costs_a_bounded_wait() {
    let _alone = alone();
    let clr = Runtime::Net9.start();
    let found = discover(clr.pid()).unwrap().expect("a CLR");
    // SAFETY: a signal to a process that this test started.
    unsafe { libc::kill(clr.pid() as i32, libc::SIGSTOP) };
    let stat = format!("/proc/{}/stat", clr.pid());
    support::wait_until("it stands still", || {
        std::fs::read_to_string(&stat).unwrap().contains(") T ")
    });
    let start = Instant::now();
    let again = discover(clr.pid()).unwrap().expect("a stopped CLR is one");
    let sockets = found.sockets.as_ref().unwrap();
    let answer = Diagnostics::new(&again.target, sockets)
        .process_info(Deadline::within(Duration::from_millis(300)));
    println!("{answer:?} after {:?}", start.elapsed());
    assert!(matches!(answer, Err(DiagnosticsError::NoAnswer(_))));
    assert!(start.elapsed() < Duration::from_secs(30), "it waits for the runtime");
}

#[test]
fn the_perf_map_of_a_running_program_can_be_switched_on_and_off() {
    let _alone = alone();
    for runtime in [Runtime::Net8, Runtime::Net9] {
        let clr = runtime.start();
        let found = discover(clr.pid()).unwrap().expect("a CLR");
        let diagnostics = Diagnostics::new(&found.target, found.sockets.as_ref().unwrap());
        let map = format!("/tmp/perf-{}.map", clr.pid());
        // One may be there of an earlier process that had this number.
        let _ = std::fs::remove_file(&map);
        let start = Instant::now();
        diagnostics.enable_perf_map(strata_clr::diagnostics::PerfMapKind::PerfMap, soon()).unwrap();
        println!("{runtime:?}: perf map after {:?}", start.elapsed());
        let text = std::fs::read_to_string(&map).unwrap();
        let named = text.lines().filter(|line| line.contains("Steady::")).count();
        println!("{} lines, {named} of the program", text.lines().count());
        assert!(named > 0);
        diagnostics.disable_perf_map(soon()).unwrap();
        std::fs::remove_file(map).unwrap();
    }
    let clr = Runtime::Core31.start();
    let found = discover(clr.pid()).unwrap().expect("a CLR");
    let diagnostics = Diagnostics::new(&found.target, found.sockets.as_ref().unwrap());
    let kind = strata_clr::diagnostics::PerfMapKind::PerfMap;
    let answer = diagnostics.enable_perf_map(kind, soon());
    assert_eq!(answer, Err(DiagnosticsError::Refused(HResult::UNKNOWN_COMMAND)));
}
