//! Attaching to real CLRs, reading the bridge's records, and detaching.

mod support;

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use strata_bridge_protocol::record::{MethodKind, Record};
use strata_clr::environment::environment;
use strata_clr::loading::Loaded;
use strata_clr::session::{
    BridgeState, Budget, Entry, Life, Poll, SessionOptions, State, presence,
};
use strata_clr::{
    AttachError, AttachOptions, CLibrary, How, Machine, Session, SessionError, Target, attach,
    attach_to, discover, runtime_version,
};
use support::{Clr, Runtime, alone, wait_until};

fn options(name: &str) -> AttachOptions {
    let session = SessionOptions { owner_name: name.to_owned(), ..SessionOptions::default() };
    AttachOptions { session, ..AttachOptions::default() }
}

fn poll(session: &mut Session) -> Poll {
    session.look_and_poll(Budget::default()).unwrap()
}

/// Reads until everything that existed was reported.
fn read_until_enumerated(session: &mut Session) -> Vec<Entry> {
    let mut entries = Vec::new();
    wait_until("the bridge has published everything", || {
        entries.extend(poll(session).entries);
        session.is_enumerated()
    });
    entries
}

fn method_names(entries: &[Entry]) -> HashSet<String> {
    let methods = entries.iter().filter_map(|entry| match &entry.record {
        Record::Method(method) => Some(method.name.clone()),
        _ => None,
    });
    methods.collect()
}

fn detach(session: &mut Session) -> Duration {
    let start = Instant::now();
    session.detach_and_wait(Duration::from_secs(12), Budget::default(), |_| {}).unwrap();
    start.elapsed()
}

fn count(pid: u32, folder: &str) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count()
}

fn lines_with(pid: u32, what: &str) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains(what)).count()
}

#[test]
fn methods_of_a_running_program_are_read_and_the_bridge_leaves_again() {
    let _alone = alone();
    for runtime in Runtime::ALL {
        let mut clr = runtime.start();
        let attached = attach(clr.pid(), &options("test")).unwrap();
        let mut session = attached.session;
        assert!(matches!(attached.how, How::Loaded(Loaded::FromFile(_))));
        let start = Instant::now();
        let mut entries = read_until_enumerated(&mut session);
        println!(
            "{runtime:?}: attached in {:?}, {} records in {:?}",
            attached.took,
            entries.len(),
            start.elapsed()
        );
        if runtime != Runtime::Net10 {
            assert!(method_names(&entries).contains("Work"), "{:?}", method_names(&entries));
            // Compiled while it is watched.
            wait_until("a dynamic method is published", || {
                entries.extend(poll(&mut session).entries);
                method_names(&entries).iter().any(|name| name.starts_with("Dynamic"))
            });
        }
        let found = discover(clr.pid()).unwrap().unwrap();
        let BridgeState::Loaded { state, holder, losses, .. } =
            presence(&found.target, &found.shared)
        else {
            panic!("the bridge is there")
        };
        assert_eq!((state, losses), (Some(State::Ready), 0));
        assert_eq!(holder.unwrap().to_string(), format!("test, pid {}", std::process::id()));
        println!("{runtime:?}: detached in {:?}", detach(&mut session));
        assert_eq!(session.life(), Life::Left);
        assert_eq!(lines_with(clr.pid(), "strata-clr (deleted)"), 0);
        assert_eq!(
            presence(&found.target, &discover(clr.pid()).unwrap().unwrap().shared),
            BridgeState::NotLoaded
        );
        assert!(clr.is_alive());
    }
}

#[test]
fn addresses_and_il_maps_are_answered() {
    let _alone = alone();
    for runtime in [Runtime::Core31, Runtime::Net8, Runtime::Net9] {
        let clr = runtime.start();
        let mut session = attach(clr.pid(), &options("test")).unwrap().session;
        let entries = read_until_enumerated(&mut session);
        let work = entries.iter().find_map(|entry| match &entry.record {
            Record::Method(method) if method.name == "Work" => Some(method.clone()),
            _ => None,
        });
        let work = work.expect("Steady.Work");
        let range = work.ranges.first().unwrap();
        session.resolve(&[range.start + 3, 0x10, range.start + 3]);
        session.il_maps(&[(work.function, work.rejit, range.start)]);
        assert_eq!(session.open_questions(), 3);
        let start = Instant::now();
        let (mut resolved, mut not_found, mut mapped) = (false, false, false);
        wait_until("all three are answered", || {
            for entry in poll(&mut session).entries {
                match entry.record {
                    Record::Method(method) if method.asked_ip == range.start + 3 => {
                        assert_eq!(method.kind(), Some(MethodKind::Resolved));
                        resolved = method.name == "Work";
                    }
                    Record::NotFound(no) if no.ip == 0x10 => not_found = true,
                    Record::IlMap(map) if map.function == work.function => {
                        mapped = !map.entries.is_empty();
                    }
                    _ => {}
                }
            }
            resolved && not_found && mapped
        });
        println!("{runtime:?}: answered in {:?}", start.elapsed());
        assert_eq!(session.open_questions(), 0);
    }
}

#[test]
fn twenty_cycles_leave_no_thread_file_mapping_or_socket_behind() {
    let _alone = alone();
    for runtime in [Runtime::Core31, Runtime::Net8, Runtime::Net9, Runtime::Net10] {
        let mut clr = runtime.start();
        let pid = clr.pid();
        clr.settle();
        let mut after_first = None;
        let mut last = (0, 0, 0);
        let mut times = Vec::new();
        for cycle in 0..20 {
            let start = Instant::now();
            let attached = attach(pid, &options("test")).unwrap();
            times.push(start.elapsed());
            let by_name = How::Loaded(Loaded::ByName);
            assert!(cycle == 0 || attached.how == by_name, "{:?}", attached.how);
            let mut session = attached.session;
            read_until_enumerated(&mut session);
            detach(&mut session);
            drop(session);
            last = (count(pid, "task"), count(pid, "fd"), lines_with(pid, "strata"));
            after_first = after_first.or((cycle == 1).then_some(last));
        }
        times.sort();
        println!(
            "{runtime:?}: threads, files, mappings {after_first:?} → {last:?}; attach median {:?}, longest {:?}",
            times[10], times[19]
        );
        assert!(clr.is_alive());
        let (threads, files, mappings) = after_first.unwrap();
        // The runtime's own pool may have one worker more or less.
        assert!(last.0 <= threads + 2 && last.1 <= files + 2 && last.2 == mappings);
    }
}

#[test]
fn a_second_strata_learns_which_one_reads_the_process() {
    let _alone = alone();
    let clr = Runtime::Net9.start();
    let first = attach(clr.pid(), &options("the first")).unwrap().session;
    let error = attach(clr.pid(), &options("the second")).unwrap_err();
    println!("{error}");
    let AttachError::Session(SessionError::Owned(holder)) = error else { panic!("{error}") };
    assert_eq!((holder.name.as_str(), holder.pid), ("the first", std::process::id()));
    drop(first);
    let second = attach(clr.pid(), &options("the second")).unwrap();
    assert_eq!(second.how, How::AlreadyLoaded);
    let mut session = second.session;
    assert!(method_names(&read_until_enumerated(&mut session)).contains("Work"));
}

#[test]
fn what_was_written_is_read_after_the_process_was_killed() {
    let _alone = alone();
    let mut clr = Runtime::Net9.start();
    let mut session = attach(clr.pid(), &options("test")).unwrap().session;
    // The bridge writes, without a reader.
    let mut methods = 0;
    wait_until("the bridge has published methods", || {
        session.look_and_poll(Budget { records: 0, bytes: 0 }).unwrap();
        let before = methods;
        methods = session.methods();
        methods > 20 && methods > before
    });
    clr.kill();
    let mut names = HashSet::new();
    let mut records = 0;
    loop {
        let read = poll(&mut session);
        records += read.entries.len();
        names.extend(method_names(&read.entries));
        if read.life == Life::Ended && !read.more && read.entries.is_empty() {
            break;
        }
    }
    println!("{methods} methods when killed, {records} records read afterwards");
    assert!(records as u64 >= methods && names.contains("Work"));
}

#[test]
fn in_namespaces_of_another_user_with_a_read_only_root_methods_are_named() {
    let _alone = alone();
    for runtime in [Runtime::Core31, Runtime::Net9] {
        let arrange = "mount -t tmpfs none /tmp && mount -o remount,bind,ro /";
        let clr = Clr::in_namespaces(runtime, 4321, arrange);
        let attached = attach(clr.pid(), &options("test")).unwrap();
        let mut session = attached.session;
        assert!(method_names(&read_until_enumerated(&mut session)).contains("Work"));
        let inside = format!("/proc/{}/root/tmp", clr.pid());
        let left: Vec<_> = std::fs::read_dir(Path::new(&inside))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.to_str().unwrap().contains("strata"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        println!(
            "{runtime:?}: {:?} in {:?}, then {:?}",
            attached.how,
            attached.took,
            detach(&mut session)
        );
    }
}

#[test]
fn a_process_that_is_starting_is_attached_to_as_soon_as_it_can_be() {
    let _alone = alone();
    for _ in 0..5 {
        let clr = Clr::start_with(Runtime::Net9.command(), false);
        wait_until("it maps its runtime", || matches!(discover(clr.pid()), Ok(Some(_))));
        let attached = attach(clr.pid(), &options("test")).unwrap();
        println!("{:?} after {:?}", attached.how, attached.took);
        let mut session = attached.session;
        let mut names = HashSet::new();
        wait_until("its own methods are published", || {
            names.extend(method_names(&poll(&mut session).entries));
            names.contains("Work")
        });
    }
}

#[test]
fn strata_that_is_killed_leaves_the_process_to_the_next() {
    let _alone = alone();
    let mut clr = Runtime::Net9.start();
    let first = attach(clr.pid(), &options("the first")).unwrap().session;
    // What the kernel does when an owner dies: it closes the descriptors.
    drop(first);
    for _ in 0..3 {
        let mut next = Session::open(
            Target::open(clr.pid()).unwrap(),
            &SessionOptions { owner_name: "the next".to_owned(), ..SessionOptions::default() },
        )
        .unwrap();
        read_until_enumerated(&mut next);
    }
    assert!(clr.is_alive());
}

#[test]
fn a_bridge_that_is_leaving_is_waited_for() {
    let _alone = alone();
    for runtime in [Runtime::Core31, Runtime::Net8, Runtime::Net9] {
        let clr = runtime.start();
        let mut session = attach(clr.pid(), &options("test")).unwrap().session;
        read_until_enumerated(&mut session);
        session.detach().unwrap();
        drop(session);
        let again = attach(clr.pid(), &options("test")).unwrap();
        println!("{runtime:?}: {:?} in {:?}", again.how, again.took);
        let mut session = again.session;
        assert!(method_names(&read_until_enumerated(&mut session)).contains("Work"));
    }
}

#[test]
fn the_version_of_every_runtime_is_known() {
    let _alone = alone();
    for runtime in Runtime::ALL {
        let clr = runtime.start();
        let asked = runtime_version(&discover(clr.pid()).unwrap().unwrap());
        let attached = attach(clr.pid(), &options("test")).unwrap();
        assert_eq!(asked.map(|version| version.major), Some(runtime.major()));
        assert_eq!(attached.version, asked);
    }
}

#[test]
fn programs_for_other_machines_are_refused_with_that_reason() {
    let _alone = alone();
    let clr = Runtime::Net9.start();
    let mut process = discover(clr.pid()).unwrap().unwrap();
    process.machine = Some(Machine::AARCH64);
    let error = attach_to(process, &options("test")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "it is a program for arm64; this strata attaches to programs for x86-64 only"
    );
}

#[test]
fn a_run_of_the_compiler_is_read_to_the_last_of_its_methods() {
    let _alone = alone();
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let library = strata_clr::install(folder.path(), CLibrary::Glibc).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/Steady.cs");
    let mut command = std::process::Command::new(support::dotnet().join("compile"));
    command.arg(folder.path().join("out.dll")).arg(source);
    for variable in environment(&library, b"", true).unwrap().variables {
        command.env(variable.name, &variable.value);
    }
    let mut compiler = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut session = None;
    wait_until("the compiler runs", || {
        // The script starts the compiler as its child.
        let clr = support::innermost_child(compiler.id());
        // With IL maps there is more than fits into one segment.
        let options = SessionOptions { il_maps: true, ..SessionOptions::default() };
        session = Target::open(clr).ok().and_then(|target| Session::open(target, &options).ok());
        session.is_some()
    });
    let mut session = session.unwrap();
    let (mut methods, mut records, mut longest) = (0_u64, 0, Duration::ZERO);
    loop {
        let start = Instant::now();
        let read = poll(&mut session);
        longest = longest.max(start.elapsed());
        records += read.entries.len();
        let is_method = |entry: &&Entry| matches!(entry.record, Record::Method(_));
        methods += read.entries.iter().filter(is_method).count() as u64;
        if read.life != Life::Running && !read.more && read.entries.is_empty() {
            break;
        }
        if !read.more {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let status = session.status();
    println!(
        "{methods} methods of {} in {records} records, {} segments, longest poll {longest:?}, {:?}",
        session.methods(),
        status.segments,
        session.losses()
    );
    compiler.wait().unwrap();
    assert!(methods > 5000 && methods == session.methods());
    assert!(status.segments > 1, "the log grew while it was read");
}
